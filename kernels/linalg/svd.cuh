// a = u diag(s) vh: to a bidiagonal by reflections and to a diagonal by rotations (bidiagonal.cuh).
//
//   cpu::svd_each(on, a, u, s, vh, batch, m, n)   what svd() of linalg.h says
//
// A matrix with fewer rows than columns is taken as its transpose, and one with many more becomes a square r by QR
// first (Golub & Van Loan, "Matrix Computations", 5.4.9).
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_SVD_CUH
#define LEVIN_KERNELS_SVD_CUH

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include "kernels/executor/cpu.h"
#include "kernels/lib/scratch.h"
#include "kernels/linalg/bidiagonal.cuh"
#include "kernels/linalg/columns.cuh"
#include "kernels/linalg/each_matrix.h"
#include "kernels/linalg/reflections.cuh"
#include "kernels/linalg/rotations.cuh"

#define LEVIN_LEVEL_FILE "kernels/linalg/svd.cuh"
#include "kernels/executor/each_level.h"

namespace levin::kernels::cpu {
LEVIN_PICK_EVERY(svd_each)
}  // namespace levin::kernels::cpu
#endif
#else
namespace levin::kernels::cpu::LEVIN_LEVEL {

inline bool is_by_qr(int64_t m, int64_t n) { return 2 * m > 3 * n; }
// Memory that decompose() takes.
template <class T>
int64_t decompose_numbers(int64_t m, int64_t n) {
  const int64_t pitch = pitch_of<T>(m), n_pitch = pitch_of<T>(n);
  if (!is_by_qr(m, n)) return Bidiagonal<T>::numbers(n, pitch);
  return reflection_numbers<T>(n, pitch) + n * n_pitch + Bidiagonal<T>::numbers(n, n_pitch);
}

// The SVD of m >= n columns a, which it overwrites: vectors by columns, u like a; values in no order, in d. `sweeps`:
// memory of rotate_all().
template <class T>
bool decompose(const Cpu& on, Columns<T> a, int64_t m, int64_t n, Columns<T> u, Columns<T> v, const T*& d, T* memory,
               char* sweeps) {
  const bool by_qr = is_by_qr(m, n);
  Reflections<T> h{};
  if (by_qr) {
    h = reflections(memory, n, a.pitch, m, int64_t{0});
    factorise(on, a, n, h);
    memory += reflection_numbers<T>(n, a.pitch);
    const Columns<T> r{memory, pitch_of<T>(n)};
    for (int64_t j = 0; j < n; ++j) {
      std::copy(a[j], a[j] + j + 1, r[j]);
      std::fill(r[j] + j + 1, r[j] + r.pitch, T(0));
    }
    a = r;
    memory += n * r.pitch;
  }
  const int64_t rows = by_qr ? n : m;
  const Bidiagonal<T> b(rows, n, a.pitch, memory);
  bidiagonalise(on, a, n, b);
  b.left.join_all(on);
  b.right.join_all(on);
  put_identity(u, n);
  put_identity(v, n);
  b.left.put_on(on, u, n, true);
  b.right.put_on(on, v, n, true);
  BidiagonalIteration<T> iteration(b.d, b.e, n);
  rotate_all<T, 2>(on, n, {Rotated<T>{v, n}, Rotated<T>{u, rows}}, sweeps,
                   [&](auto& stores) { iteration.find(stores[0], stores[1]); });
  if (by_qr) h.put_on(on, u, n, false);
  for (int64_t j = 0; j < n; ++j) {
    if (b.d[j] < 0) scale(v[j], T(-1), 0, n);
    b.d[j] = std::abs(b.d[j]);
  }
  d = b.d;
  return iteration.has_ended();
}

// What svd_of() takes in T for m >= n; behind it stand n places and the sweeps of rotate_all().
template <class T>
int64_t svd_numbers(int64_t m, int64_t n) {
  return n * (2 * pitch_of<T>(m) + pitch_of<T>(n)) + decompose_numbers<T>(m, n);
}
template <class T>
int64_t svd_bytes(int64_t m, int64_t n) {
  return svd_numbers<T>(m, n) * int64_t(sizeof(T)) + n * int64_t(sizeof(int64_t)) + 4 * SweepStore<T>::bytes(n);
}

template <class T>
bool svd_of(const Cpu& on, const T* from, T* u, T* s, T* vh, int64_t m, int64_t n, T* memory) {
  const bool is_wide = m < n;
  const int64_t rows = std::max(m, n), k = std::min(m, n), pitch = pitch_of<T>(rows), k_pitch = pitch_of<T>(k);
  Extent<T> extent;
  extent.add(from, m * n);
  bool is_found = extent.is_finite();
  if (is_found) {
    int64_t* const order = reinterpret_cast<int64_t*>(memory + svd_numbers<T>(rows, k));
    const Columns<T> a{memory, pitch}, left{a[k], pitch}, right{left[k], k_pitch};
    const T factor = extent.factor();
    if (is_wide) {
      for (int64_t j = 0; j < k; ++j) {
        for (int64_t i = 0; i < rows; ++i) a[j][i] = from[j * n + i] * factor;
        std::fill(a[j] + rows, a[j] + pitch, T(0));
      }
    } else {
      columns_of_rows(from, n, factor, a, rows, k);
    }
    const T* d = nullptr;
    is_found = decompose(on, a, rows, k, left, right, d, right[k], reinterpret_cast<char*>(order + k));
    sort_places(d, order, k, false);
    for (int64_t i = 0; i < k; ++i) s[i] = d[order[i]] / factor;
    const Columns<T>&by_rows = is_wide ? right : left, &by_columns = is_wide ? left : right;
    rows_of_columns<T>(on, {by_rows.data, by_rows.pitch}, order, T(1), u, k, m, k);
    for (int64_t i = 0; i < k; ++i) std::copy_n(by_columns[order[i]], n, vh + i * n);
  }
  if (!is_found) {
    constexpr T kNan = std::numeric_limits<T>::quiet_NaN();
    std::fill_n(u, m * k, kNan);
    std::fill_n(s, k, kNan);
    std::fill_n(vh, k * n, kNan);
  }
  return is_found;
}

template <class T>
int64_t svd_each(const Cpu& on, const T* a, T* u, T* s, T* vh, int64_t batch, int64_t m, int64_t n) {
  const int64_t k = std::min(m, n);
  if (k == 0) return -1;
  const int64_t bytes = svd_bytes<T>(std::max(m, n), k);
  return each_matrix(on, batch, 1000 + m * n * k / 2, bytes, [&](int64_t i, const lib::Scratch& memory) {
    return svd_of(on, a + i * m * n, u + i * m * k, s + i * k, vh + i * k * n, m, n, memory.as<T>());
  });
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
