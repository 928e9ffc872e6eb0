// Eigenvalues and vectors of symmetric matrices: to a tridiagonal by reflections, and that to a diagonal by the
// implicitly shifted QR iteration.
//
//   cpu::eigh_each(on, a, w, v, batch, n)   what eigh() of linalg.h says
//
// Golub & Van Loan, "Matrix Computations", 8.3.
//
// Note [One pass a reflection]
// Half of a tridiagonal's work is products of a symmetric matrix and a vector, which wait for memory. So the update
// a - v w^T - w v^T by one reflection waits until the next reflection is known, and the pass that makes it multiplies
// by that one's v, too (Howell, Demmel, Fulton, Hammarling & Marmol, "Cache efficient bidiagonalization using BLAS 2.5
// operators", 2008, do so for bidiagonals). Rows are reduced from the last one up: what is left then begins where
// memory is aligned. Only the lower triangle is passed, with squares of one vector a side on the diagonal whole, where
// a row is multiplied and not its mirrored column.
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_EIGH_CUH
#define LEVIN_KERNELS_EIGH_CUH

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "kernels/executor/cpu.h"
#include "kernels/lib/scratch.h"
#include "kernels/linalg/columns.cuh"
#include "kernels/linalg/each_matrix.h"
#include "kernels/linalg/reflections.cuh"
#include "kernels/linalg/rotations.cuh"

#define LEVIN_LEVEL_FILE "kernels/linalg/eigh.cuh"
#include "kernels/executor/each_level.h"

namespace levin::kernels::cpu {
LEVIN_PICK_EVERY(eigh_each)
}  // namespace levin::kernels::cpu
#endif
#else
namespace levin::kernels::cpu::LEVIN_LEVEL {

// a - v w^T - w v^T is due before the next reflection.
template <class T>
struct SymmetricUpdate {
  const T *v, *w;
};

// R rows of a from `row` on: makes the update, and adds to y what their numbers left of the diagonal contribute to a x.
template <class T, int R>
void update_and_multiply(Columns<T> a, int64_t row, SymmetricUpdate<T> by, const T* x, T* y) {
  constexpr int64_t L = kLanes<T>;
  Vector<T> sums[R] = {};
  T* const rows = a[row];
  T v[R], w[R], own[R];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    v[r] = by.v[row + r];
    w[r] = by.w[row + r];
    own[r] = x[row + r];
  }
  const int64_t diagonal = vector_of<T>(row);
  for (int64_t j = 0; j < diagonal; j += L) {
    const Vector<T> vj = vector_at(by.v + j), wj = vector_at(by.w + j), xj = vector_at(x + j);
    Vector<T> yj = vector_at(y + j);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      T* const at = rows + r * a.pitch + j;
      const Vector<T> numbers = vector_at(at) - wj * v[r] - vj * w[r];
      put(at, numbers);
      sums[r] += numbers * xj;
      yj += numbers * own[r];
    }
    put(y + j, yj);
  }
  const Vector<T> vj = vector_at(by.v + diagonal), wj = vector_at(by.w + diagonal), xj = vector_at(x + diagonal);
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    T* const at = rows + r * a.pitch + diagonal;
    const Vector<T> numbers = vector_at(at) - wj * v[r] - vj * w[r];
    put(at, numbers);
    sums[r] += numbers * xj;
  }
  sum_each<T>(sums, own);
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) y[row + r] += own[r];
}

// Memory of a tridiagonalisation of n rows, `pitch` numbers apart: the tridiagonal's diagonal d and what stands beside
// it, e; the reflections' tau and, of kReflections of them each, t; vectors.
template <class T>
struct Tridiagonal {
  static constexpr int64_t kMostParts = 16;
  int64_t n, pitch;
  T *d, *e, *tau, *w, *products, *t;

  static int64_t numbers(int64_t n, int64_t pitch) { return (6 + kMostParts) * pitch + n * kReflections; }
  Tridiagonal(int64_t rows, int64_t pitch_, T* memory)
      : n(rows),
        pitch(pitch_),
        d(memory),
        e(d + pitch),
        tau(e + pitch),
        w(tau + pitch),
        products(w + 3 * pitch),
        t(products + kMostParts * pitch) {}
};

// y = a x of the first k rows of a, after the update; a's lower triangle is passed. Parts of rows have sums of their
// own in `products`, which are added in their order.
template <class T>
void update_and_multiply(const Cpu& on, Columns<T> a, int64_t k, SymmetricUpdate<T> by, const T* x, T* y,
                         const Tridiagonal<T>& room) {
  constexpr int64_t kPartNumbers = 64 * 1024, R = std::min(4, kLanes<T>);
  const int64_t parts = std::clamp<int64_t>(k * k / 2 / kPartNumbers, 1, Tridiagonal<T>::kMostParts);
  const auto row_of = [&](int64_t part) {  // parts have the same area
    return part == parts ? k : int64_t(double(k) * std::sqrt(double(part) / double(parts))) / R * R;
  };
  const auto sums_of = [&](int64_t part) { return parts == 1 ? y : room.products + part * room.pitch; };
  on.parallel_for(parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      T* const sums = sums_of(part);
      int64_t row = row_of(part);
      const int64_t last = row_of(part + 1);
      std::fill_n(sums, vectors_before<T>(last), T(0));
      for (; row + R <= last; row += R) update_and_multiply<T, R>(a, row, by, x, sums);
      for (; row < last; ++row) update_and_multiply<T, 1>(a, row, by, x, sums);
    }
  });
  if (parts == 1) return;
  std::fill_n(y, vectors_before<T>(k), T(0));
  for (int64_t part = 0; part < parts; ++part) add_to(y, T(1), sums_of(part), 0, row_of(part + 1));
}

// Makes t.d and t.e of a, and in row i + 1 of a the v of reflection i, which has the numbers [0, i]:
// a = q t q^T with q = h_(n-2) ... h_0.
template <class T>
void tridiagonalise(const Cpu& on, Columns<T> a, const Tridiagonal<T>& t) {
  std::fill_n(t.w, 3 * t.pitch, T(0));
  const std::array<T*, 2> w{t.w, t.w + t.pitch};
  SymmetricUpdate<T> by{t.w + 2 * t.pitch, t.w + 2 * t.pitch};  // of zeros
  for (int64_t k = t.n - 1; k > 0; --k) {
    T *const row = a[k], *const next = w[size_t(k % 2)];
    add_to(row, -by.v[k], by.w, 0, k + 1);
    add_to(row, -by.w[k], by.v, 0, k + 1);
    t.d[k] = row[k];
    std::fill(row + k, row + a.pitch, T(0));
    const Reflection<T> h = reflection_of(row, 0, k, k - 1);
    t.e[k - 1] = h.beta;
    t.tau[k - 1] = h.tau;
    update_and_multiply(on, a, k, by, row, next, t);
    scale(next, h.tau, 0, k);
    add_to(next, -h.tau / 2 * dot(next, row, 0, k), row, 0, k);
    by = {row, next};
  }
  t.d[0] = a[0][0] - 2 * by.v[0] * by.w[0];
}

// q of tridiagonalise(), by columns.
template <class T>
void put_q(const Cpu& on, Columns<T> a, const Tridiagonal<T>& t, Columns<T> q) {
  put_identity(q, t.n);
  const int64_t count = t.n - 1;
  if (count <= kReflections) {
    for (int64_t i = 0; i < count; ++i) reflect(a[i + 1], t.tau[i], q, i + 1, 0, i + 1);
    return;
  }
  for (int64_t at = 0; at < count; at += kReflections) {
    const int64_t end = std::min(count, at + kReflections);
    const ReflectionBlock<T> block{{a[at + 1], a.pitch}, end - at, 0, end, t.t + at * kReflections};
    join(on, block, t.tau + at);
    reflect(on, block, true, q, end);
  }
}

// The QR iteration on a tridiagonal, which leaves the eigenvalues in d.
template <class T>
class SymmetricIteration {
 public:
  SymmetricIteration(T* d, T* e, int64_t n) : d_(d), e_(e), left_(d, e, n) {}
  // Goes on until `out` is full or the iteration ends.
  void find(SweepStore<T>& out) {
    out.clear();
    for (auto b = left_.next(out); b.rotations() > 0; b = left_.next(out))
      sweep(b.first, b.last, out.begin(b.first, b.rotations()));
  }
  bool has_ended() const { return left_.has_ended(); }

 private:
  // One step with Wilkinson's shift.
  void sweep(int64_t first, int64_t last, Rotation<T>* out) const {
    T* const d = d_;
    T* const e = e_;
    const T half = (d[last - 1] - d[last]) / (2 * e[last - 1]), root = std::sqrt(half * half + 1);
    T g = d[first] - d[last] + e[last - 1] / (half + std::copysign(root, half));
    T c = 1, s = 1, moved = 0, ignored = 0;
    T* r = &ignored;  // e[i - 1]
    for (int64_t i = first; i < last; ++i) {
      const T f = s * e[i], b = c * e[i];
      const Rotation<T> by = rotation_of(g, f, *r);
      c = by.c;
      s = by.s;
      *out++ = by;
      const T kept = d[i] - moved, turned = (d[i + 1] - kept) * s + 2 * c * b;
      moved = s * turned;
      d[i] = kept + moved;
      g = c * turned - b;
      r = e + i;
    }
    d[last] -= moved;
    e[last - 1] = g;
  }

  T *d_, *e_;
  Unreduced<T> left_;
};

// What eigh_of() takes in T; behind it stand n places and the sweeps of rotate_all().
template <class T>
int64_t eigh_numbers(int64_t n) {
  const int64_t pitch = pitch_of<T>(n);
  return 2 * n * pitch + Tridiagonal<T>::numbers(n, pitch);
}
template <class T>
int64_t eigh_bytes(int64_t n) {
  return eigh_numbers<T>(n) * int64_t(sizeof(T)) + n * int64_t(sizeof(int64_t)) + 2 * SweepStore<T>::bytes(n);
}

template <class T>
bool eigh_of(const Cpu& on, const T* from, T* w, T* v, int64_t n, T* memory) {
  const int64_t pitch = pitch_of<T>(n);
  const Columns<T> a{memory, pitch}, q{a[n], pitch};
  const Tridiagonal<T> t(n, pitch, q[n]);
  Extent<T> extent;
  for (int64_t i = 0; i < n; ++i) extent.add(from + i * n, i + 1);
  bool is_found = extent.is_finite();
  if (is_found) {
    const T factor = extent.factor();
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j <= i; ++j) a[i][j] = from[i * n + j] * factor;
      std::fill(a[i] + i + 1, a[i] + pitch, T(0));
      for (int64_t j = vector_of<T>(i); j < i; ++j) a[j][i] = a[i][j];
    }
    int64_t* const order = reinterpret_cast<int64_t*>(memory + eigh_numbers<T>(n));
    tridiagonalise(on, a, t);
    put_q(on, a, t, q);
    SymmetricIteration<T> iteration(t.d, t.e, n);
    rotate_all<T, 1>(on, n, {Rotated<T>{q, n}}, reinterpret_cast<char*>(order + n),
                     [&](auto& stores) { iteration.find(stores[0]); });
    is_found = iteration.has_ended();
    sort_places(t.d, order, n, true);
    for (int64_t i = 0; i < n; ++i) w[i] = t.d[order[i]] / factor;
    rows_of_columns<T>(on, {q.data, pitch}, order, T(1), v, n, n, n);
  }
  if (!is_found) {
    constexpr T kNan = std::numeric_limits<T>::quiet_NaN();
    std::fill_n(w, n, kNan);
    std::fill_n(v, n * n, kNan);
  }
  return is_found;
}

template <class T>
int64_t eigh_each(const Cpu& on, const T* a, T* w, T* v, int64_t batch, int64_t n) {
  if (n == 0) return -1;
  return each_matrix(on, batch, 500 + n * n * n / 4, eigh_bytes<T>(n), [&](int64_t i, const lib::Scratch& memory) {
    return eigh_of(on, a + i * n * n, w + i * n, v + i * n * n, n, memory.as<T>());
  });
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
