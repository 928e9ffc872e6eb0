// Householder reflections h = 1 - tau v v^T of columns, and products of them.
//
// Golub & Van Loan, "Matrix Computations", 5.1 and 5.2; Schreiber & Van Loan, "A storage-efficient WY representation
// for products of Householder transformations", 1989. Signs are LAPACK's: beta has the sign that differs from alpha's,
// and h = 1 where there is nothing to reflect.
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_REFLECTIONS_CUH
#define LEVIN_KERNELS_REFLECTIONS_CUH

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/executor/cpu.h"
#include "kernels/gemm/gemm.cuh"
#include "kernels/lib/scratch.h"
#include "kernels/linalg/columns.cuh"

namespace levin::kernels::cpu {

// Squares of numbers whose sum is in [kLeastSquares, kMostSquares] have neither over- nor underflown by much.
template <class T>
inline constexpr T kLeastSquares = std::numeric_limits<T>::min() / std::numeric_limits<T>::epsilon();
template <class T>
inline constexpr T kMostSquares = std::numeric_limits<T>::max() / 4;

// As many reflections as one block has. Fewer columns are reflected by one after another.
inline constexpr int64_t kReflections = 32;

}  // namespace levin::kernels::cpu

#define LEVIN_LEVEL_FILE "kernels/linalg/reflections.cuh"
#include "kernels/executor/each_level.h"
#endif
#else
namespace levin::kernels::cpu::LEVIN_LEVEL {

// h x = beta e_pivot.
template <class T>
struct Reflection {
  T tau, beta;
  T inverse;  // 1 / (alpha - beta), with which v was made; 0 where h = 1
};

template <class T>
Reflection<T> reflection_of(T* x, int64_t from, int64_t to, int64_t pivot);

// Where squares over- or underflow: the same of numbers near 1.
template <class T>
[[gnu::noinline]] Reflection<T> scaled_reflection_of(T* x, int64_t from, int64_t to, int64_t pivot) {
  Extent<T> extent;
  extent.add(x + from, to - from);
  if (!extent.is_finite()) {
    constexpr T kNan = std::numeric_limits<T>::quiet_NaN();
    return {kNan, kNan, kNan};
  }
  const T factor = extent.factor();
  for (int64_t i = from; i < to; ++i) x[i] *= factor;
  Reflection<T> h = reflection_of(x, from, to, pivot);
  h.beta /= factor;
  h.inverse *= factor;
  return h;
}

// Makes v of x, its numbers [from, to), and 0 around them: v[pivot] is 1.
template <class T>
Reflection<T> reflection_of(T* x, int64_t from, int64_t to, int64_t pivot) {
  const T alpha = x[pivot];
  x[pivot] = 0;
  const T rest = dot(x, x, from, to), squares = rest + alpha * alpha;
  if (const bool is_safe = squares >= kLeastSquares<T> && squares <= kMostSquares<T>; !is_safe || rest == 0) {
    if (!is_safe && !std::all_of(x + from, x + to, [](T number) { return number == 0; })) {
      x[pivot] = alpha;
      return scaled_reflection_of(x, from, to, pivot);
    }
    std::fill(x + from, x + to, T(0));
    x[pivot] = 1;
    return {0, alpha, 0};
  }
  const T beta = -std::copysign(std::sqrt(squares), alpha), inverse = 1 / (alpha - beta);
  scale(x, inverse, from, to);
  x[pivot] = 1;
  return {(beta - alpha) / beta, beta, inverse};
}

template <class T, int N>
[[gnu::always_inline]] inline void reflect_some(const T* v, T tau, T* c, int64_t pitch, int64_t from, int64_t to) {
  constexpr int64_t L = kLanes<T>;
  Vector<T> sums[N] = {};
  for (int64_t i = vector_of<T>(from); i < to; i += L) {
    const Vector<T> x = vector_at(v + i);
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) sums[n] += x * vector_at(c + n * pitch + i);
  }
  T factors[N];
  sum_each<T>(sums, factors);
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) factors[n] *= tau;
  for (int64_t i = vector_of<T>(from); i < to; i += L) {
    const Vector<T> x = vector_at(v + i);
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) put(c + n * pitch + i, vector_at(c + n * pitch + i) - x * factors[n]);
  }
}

// c = h c for `count` columns, of which h changes [from, to).
template <class T>
void reflect(const T* v, T tau, Columns<T> c, int64_t count, int64_t from, int64_t to) {
  int64_t at = 0;
  for (; at + 4 <= count; at += 4) reflect_some<T, 4>(v, tau, c[at], c.pitch, from, to);
  for (; at < count; ++at) reflect_some<T, 1>(v, tau, c[at], c.pitch, from, to);
}

// h_0 h_1 ... h_(count-1) = 1 - v t v^T of reflections that change the rows [from, to) alone.
template <class T>
struct ReflectionBlock {
  Columns<const T> v;
  int64_t count, from, to;
  T* t;  // [count, count] by columns
};

// Fills block.t: column j is tau_j e_j - tau_j t v^T v_j.
template <class T>
void join(const Cpu& on, const ReflectionBlock<T>& block, const T* tau) {
  const int64_t n = block.count;
  T products[kReflections * kReflections];
  const T* v = block.v.data + block.from;
  gemm(on, {n, n, block.to - block.from}, Matrix<T>{v, block.v.pitch, 1}, Matrix<T>{v, 1, block.v.pitch}, products, n,
       GemmOptions<T>{});
  for (int64_t j = 0; j < n; ++j) {
    T* column = block.t + j * n;
    std::fill_n(column, n, T(0));
    for (int64_t l = 0; l < j; ++l) {
      const T factor = -tau[j] * products[j * n + l];
      for (int64_t i = 0; i <= l; ++i) column[i] += factor * block.t[l * n + i];
    }
    column[j] = tau[j];
  }
}

// c = (h_0 h_1 ...) c for `count` columns, or its transpose times c.
template <class T>
void reflect(const Cpu& on, const ReflectionBlock<T>& block, bool transposed, Columns<T> c, int64_t count) {
  const int64_t n = block.count, rows = block.to - block.from;
  if (count == 0 || rows == 0) return;
  const lib::Scratch memory(size_t(2 * count * n) * sizeof(T));
  T *sums = memory.as<T>(), *factors = sums + count * n;
  const T* v = block.v.data + block.from;
  // By columns c^T, v and t are matrices by rows: c^T - (c^T v) t^T v^T.
  gemm(on, {count, n, rows}, Matrix<T>{c.data + block.from, c.pitch, 1}, Matrix<T>{v, 1, block.v.pitch}, sums, n,
       GemmOptions<T>{});
  const Matrix<T> t = transposed ? Matrix<T>{block.t, 1, n} : Matrix<T>{block.t, n, 1};
  gemm(on, {count, n, n}, Matrix<T>{sums, n, 1}, t, factors, n, GemmOptions<T>{});
  gemm(on, {count, rows, n}, Matrix<T>{factors, n, 1}, Matrix<T>{v, block.v.pitch, 1}, c.data + block.from, c.pitch,
       GemmOptions<T>{.alpha = -1, .beta = 1});
}

// Columns of the identity.
template <class T>
void put_identity(Columns<T> c, int64_t count) {
  std::fill_n(c.data, count * c.pitch, T(0));
  for (int64_t i = 0; i < count; ++i) c[i][i] = 1;
}

// `count` reflections of rows [0, m), of which number i changes rows from i + `first` on: v, their tau, and room for t
// of each block.
template <class T>
struct Reflections {
  Columns<T> v;
  T* tau;
  T* t;  // [count, kReflections]
  int64_t count, m, first;

  bool is_blocked() const { return count > kReflections; }
  ReflectionBlock<T> block(int64_t begin) const {
    const int64_t n = std::min(kReflections, count - begin);
    return {{v[begin], v.pitch}, n, begin + first, m, t + begin * kReflections};
  }
  void join_all(const Cpu& on) const {
    for (int64_t at = 0; is_blocked() && at < count; at += kReflections) join(on, block(at), tau + at);
  }
  // c = h_0 h_1 ... c for `columns` columns of which those before i have no numbers in rows from i on, where
  // is_triangle.
  void put_on(const Cpu& on, Columns<T> c, int64_t columns, bool is_triangle) const {
    if (!is_blocked()) {
      for (int64_t i = count - 1; i >= 0; --i) {
        const int64_t begin = is_triangle ? std::min(columns, i + first) : 0;
        reflect(v[i], tau[i], Columns<T>{c[begin], c.pitch}, columns - begin, i + first, m);
      }
      return;
    }
    for (int64_t at = (count - 1) / kReflections * kReflections; at >= 0; at -= kReflections) {
      const int64_t begin = is_triangle ? std::min(columns, at + first) : 0;
      reflect(on, block(at), false, Columns<T>{c[begin], c.pitch}, columns - begin);
    }
  }
};

// Memory that reflections() takes.
template <class T>
int64_t reflection_numbers(int64_t count, int64_t pitch) {
  return count * (pitch + kReflections) + pitch_of<T>(count);
}
template <class T>
Reflections<T> reflections(T* memory, int64_t count, int64_t pitch, int64_t m, int64_t first) {
  T* t = memory + count * pitch;
  return {{memory, pitch}, t + count * kReflections, t, count, m, first};
}

// Makes r of the n columns a, and the reflections h whose product is q. What is below r's diagonal stays undefined.
template <class T>
void factorise(const Cpu& on, Columns<T> a, int64_t n, const Reflections<T>& h) {
  std::fill_n(h.v.data, h.count * h.v.pitch, T(0));
  for (int64_t begin = 0; begin < h.count; begin += kReflections) {
    const int64_t end = std::min(h.count, begin + kReflections), all = h.is_blocked() ? end : n;
    for (int64_t j = begin; j < end; ++j) {
      T* v = h.v[j];
      std::copy(a[j] + j, a[j] + h.m, v + j);
      const Reflection<T> made = reflection_of(v, j, h.m, j);
      a[j][j] = made.beta;
      h.tau[j] = made.tau;
      reflect(v, made.tau, Columns<T>{a[j + 1], a.pitch}, all - j - 1, j, h.m);
    }
    if (!h.is_blocked()) return;
    const ReflectionBlock<T> block = h.block(begin);
    join(on, block, h.tau + begin);
    reflect(on, block, true, Columns<T>{a[end], a.pitch}, n - end);
  }
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
