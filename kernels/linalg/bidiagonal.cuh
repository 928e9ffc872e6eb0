// Matrices to bidiagonals by reflections from both sides, and bidiagonals to their singular values by the implicitly
// shifted QR iteration.
//
// Golub & Van Loan, "Matrix Computations", 5.4.8 and 8.6; Demmel & Kahan, "Accurate singular values of bidiagonal
// matrices", 1990, for the step without a shift.
//
// Note [One pass a column]
// A step needs a^T u and, with v made of that and of a row, a v. Both wait for memory, and so would the update by the
// step before. v is t - beta e of a vector t that is known column by column once a^T u is, so the sum of columns times
// t takes each column while it is in L1, and a v = (a t - beta a e) / (alpha - beta) follows (Howell, Demmel, Fulton,
// Hammarling & Marmol, "Cache efficient bidiagonalization using BLAS 2.5 operators", 2008).
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_BIDIAGONAL_CUH
#define LEVIN_KERNELS_BIDIAGONAL_CUH

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/executor/cpu.h"
#include "kernels/linalg/columns.cuh"
#include "kernels/linalg/reflections.cuh"
#include "kernels/linalg/rotations.cuh"

#define LEVIN_LEVEL_FILE "kernels/linalg/bidiagonal.cuh"
#include "kernels/executor/each_level.h"
#endif
#else
namespace levin::kernels::cpu::LEVIN_LEVEL {

// An upper bidiagonal: its diagonal d and what stands right of it, e; a = left diag(d, e) right^T of n columns.
template <class T>
struct Bidiagonal {
  static constexpr int64_t kMostParts = 16;
  T *d, *e;
  Reflections<T> left, right;
  T *x, *y, *sums;  // of a step; sums: of each part

  static int64_t numbers(int64_t n, int64_t pitch) {
    const int64_t n_pitch = pitch_of<T>(n);
    return reflection_numbers<T>(n, pitch) + reflection_numbers<T>(n, n_pitch) + 3 * n_pitch + (1 + kMostParts) * pitch;
  }
  Bidiagonal(int64_t m, int64_t n, int64_t pitch, T* memory) {
    const int64_t n_pitch = pitch_of<T>(n);
    left = reflections(memory, n, pitch, m, int64_t{0});
    right = reflections(memory + reflection_numbers<T>(n, pitch), n - 1, n_pitch, n, int64_t{1});
    d = right.v.data + reflection_numbers<T>(n, n_pitch);
    e = d + n_pitch;
    y = e + n_pitch;
    x = y + n_pitch;
    sums = x + pitch;
  }
};

// a - u y^T - x v^T is due before the next reflection.
template <class T>
struct BidiagonalUpdate {
  const T *u, *y, *x, *v;
};

// The reflection of row and column j from the left.
template <class T>
struct LeftReflection {
  const T* u;
  T tau;
  int64_t j, m;
};

// Columns [c, c + N) of a: makes the update; y = tau a^T u; t, row j of the reflected a; sums += a t.
template <class T, int N>
void update_columns(Columns<T> a, int64_t c, BidiagonalUpdate<T> by, LeftReflection<T> h, T* y, T* t, T* sums) {
  constexpr int64_t L = kLanes<T>;
  T* const first = a[c];
  const int64_t begin = vector_of<T>(h.j);
  Vector<T> products[N] = {};
  T of_u[N], of_x[N];
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) {
    of_u[n] = by.y[c + n];
    of_x[n] = by.v[c + n];
  }
  for (int64_t i = begin; i < h.m; i += L) {
    const Vector<T> u = vector_at(by.u + i), x = vector_at(by.x + i), next = vector_at(h.u + i);
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      T* const at = first + n * a.pitch + i;
      const Vector<T> numbers = vector_at(at) - u * of_u[n] - x * of_x[n];
      put(at, numbers);
      products[n] += numbers * next;
    }
  }
  T sums_of_u[N];
  sum_each<T>(products, sums_of_u);
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) {
    y[c + n] = h.tau * sums_of_u[n];
    of_u[n] = t[c + n] = first[n * a.pitch + h.j] - y[c + n];
  }
  for (int64_t i = begin; i < h.m; i += L) {
    Vector<T> sum = vector_at(sums + i);
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) sum += vector_at(first + n * a.pitch + i) * of_u[n];
    put(sums + i, sum);
  }
}

// The same of all columns right of j, and their sum in room.sums. Parts of them have sums of their own, which are added
// in their order.
template <class T>
void update_columns(const Cpu& on, Columns<T> a, int64_t n, BidiagonalUpdate<T> by, LeftReflection<T> h, T* t,
                    const Bidiagonal<T>& room) {
  constexpr int64_t kPartNumbers = 128 * 1024, N = 4;
  const int64_t columns = n - h.j - 1, begin = vector_of<T>(h.j), pitch = a.pitch;
  const int64_t parts = std::clamp<int64_t>(columns * (h.m - h.j) / kPartNumbers, 1, Bidiagonal<T>::kMostParts);
  const auto column_of = [&](int64_t part) { return part == parts ? n : h.j + 1 + columns * part / parts / N * N; };
  on.parallel_for(parts, 1, [&](int64_t from, int64_t to) {
    for (int64_t part = from; part < to; ++part) {
      T* const sums = room.sums + part * pitch;
      std::fill(sums + begin, sums + vectors_before<T>(h.m), T(0));
      int64_t c = column_of(part);
      for (const int64_t last = column_of(part + 1); c < last;) {
        const bool is_whole = c + N <= last;
        is_whole ? update_columns<T, N>(a, c, by, h, room.y, t, sums)
                 : update_columns<T, 1>(a, c, by, h, room.y, t, sums);
        c += is_whole ? N : 1;
      }
    }
  });
  for (int64_t part = 1; part < parts; ++part) add_to(room.sums, T(1), room.sums + part * pitch, h.j, h.m);
}

// Makes d, e and the reflections of the n columns a, whose numbers are near 1: a row of which squares vanish beside
// that is taken for 0.
template <class T>
void bidiagonalise(const Cpu& on, Columns<T> a, int64_t n, const Bidiagonal<T>& to) {
  const int64_t m = to.left.m;
  std::fill_n(to.left.v.data, n * to.left.v.pitch, T(0));
  std::fill_n(to.right.v.data, n * to.right.v.pitch, T(0));
  std::fill_n(to.y, to.right.v.pitch, T(0));
  std::fill_n(to.x, to.left.v.pitch, T(0));
  BidiagonalUpdate<T> by{to.x, to.y, to.x, to.y};  // of zeros
  for (int64_t j = 0; j < n; ++j) {
    T *const column = a[j], *const u = to.left.v[j], *const t = to.right.v[j];
    add_to(column, -by.y[j], by.u, j, m);
    add_to(column, -by.v[j], by.x, j, m);
    std::copy(column + j, column + m, u + j);
    const Reflection<T> h = reflection_of(u, j, m, j);
    to.d[j] = h.beta;
    to.left.tau[j] = h.tau;
    if (j + 1 == n) return;

    update_columns(on, a, n, by, LeftReflection<T>{u, h.tau, j, m}, t, to);
    add_to(to.sums, -dot(to.y, t, j + 1, n), u, j, m);
    if (dot(t, t, j + 1, n) < kLeastSquares<T>) std::fill(t + j + 1, t + n, T(0));
    const Reflection<T> g = reflection_of(t, j + 1, n, j + 1);
    to.e[j] = g.beta;
    to.right.tau[j] = g.tau;
    // x = tau a v, of the a that the left reflection leaves.
    const T factor = g.tau * g.inverse;
    const T* const next = a[j + 1];
    for (int64_t i = vector_of<T>(j); i < m; i += kLanes<T>)
      put(to.x + i,
          (vector_at(to.sums + i) - (vector_at(next + i) - vector_at(u + i) * to.y[j + 1]) * g.beta) * factor);
    std::fill(to.x + vector_of<T>(j), to.x + j + 1, T(0));
    by = {u, to.y, to.x, t};
  }
}

// The QR iteration on a bidiagonal, which leaves the singular values in d with any sign.
template <class T>
class BidiagonalIteration {
 public:
  BidiagonalIteration(T* d, T* e, int64_t n) : d_(d), e_(e), left_(d, e, n) {}
  // Goes on until the stores are full or the iteration ends.
  void find(SweepStore<T>& of_right, SweepStore<T>& of_left) {
    of_right.clear();
    of_left.clear();
    for (auto b = left_.next(of_right); b.rotations() > 0; b = left_.next(of_right)) {
      const T shift = shift_of(b.first, b.last);
      Rotation<T>*right = of_right.begin(b.first, b.rotations()), *left = of_left.begin(b.first, b.rotations());
      shift == 0 ? sweep(b.first, b.last, right, left) : sweep(b.first, b.last, shift, right, left);
    }
  }
  bool has_ended() const { return left_.has_ended(); }

 private:
  static constexpr T kEps = Unreduced<T>::kEps;
  // The lesser singular value of the last two columns; 0 where the block is singular to its precision, or the shift
  // would not change its first number.
  T shift_of(int64_t first, int64_t last) const {
    T least = std::abs(d_[last]);
    for (int64_t i = first; i < last; ++i) least = std::min(least, std::abs(d_[i]));
    if (least <= kEps * left_.largest(first, last)) return 0;
    const T f = std::abs(d_[last - 1]), g = e_[last - 1], h = std::abs(d_[last]);
    const T most = std::max({f, std::abs(g), h}), x = f / most, y = g / most, z = h / most;
    // Their sum and difference.
    const T sum = std::sqrt((x + z) * (x + z) + y * y), difference = std::sqrt((x - z) * (x - z) + y * y);
    const T shift = most * (x * z / ((sum + difference) / 2)), share = shift / d_[first];
    return share * share < kEps ? T(0) : shift;
  }
  void sweep(int64_t first, int64_t last, T shift, Rotation<T>* right, Rotation<T>* left) const {
    T* const d = d_;
    T* const e = e_;
    T f = (std::abs(d[first]) - shift) * (std::copysign(T(1), d[first]) + shift / d[first]), g = e[first], ignored = 0;
    T* r = &ignored;  // e[i - 1]
    for (int64_t i = first; i < last; ++i) {
      const Rotation<T> a = rotation_of(f, g, *r);
      f = a.c * d[i] + a.s * e[i];
      const T above = a.c * e[i] - a.s * d[i], below = a.c * d[i + 1];
      g = a.s * d[i + 1];
      const Rotation<T> b = rotation_of(f, g, d[i]);
      f = b.c * above + b.s * below;
      d[i + 1] = b.c * below - b.s * above;
      if (i + 1 < last) {
        g = b.s * e[i + 1];
        e[i + 1] *= b.c;
      }
      *right++ = a;
      *left++ = b;
      r = e + i;
    }
    e[last - 1] = f;
  }
  // Without a shift, where no number is a difference.
  void sweep(int64_t first, int64_t last, Rotation<T>* right, Rotation<T>* left) const {
    Rotation<T> a{1, 0}, b{1, 0};
    T size = 0;
    for (int64_t i = first; i < last; ++i) {
      a = rotation_of(d_[i] * a.c, e_[i], size);
      if (i > first) e_[i - 1] = b.s * size;
      b = rotation_of(b.c * size, d_[i + 1] * a.s, d_[i]);
      *right++ = a;
      *left++ = b;
    }
    const T end = d_[last] * a.c;
    d_[last] = end * b.c;
    e_[last - 1] = end * b.s;
  }

  T *d_, *e_;
  Unreduced<T> left_;
};

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
