#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_ROW_SUMS_CUH
#define LEVIN_KERNELS_ROW_SUMS_CUH
// Sums and maxima over contiguous elements inside a kernel, with the vectors of its level written out: a compiler may
// not reorder a floating-point sum by itself. The order depends on the length (and the level) alone.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <type_traits>

#include "kernels/executor/cpu.h"
#include "kernels/executor/hd.h"

#define LEVIN_LEVEL_FILE "kernels/reduce/row_sums.cuh"
#include "kernels/executor/each_level.h"
#endif
#else
namespace levin::kernels::cpu::LEVIN_LEVEL {

template <class A>
struct RowVector {
  typedef A Type __attribute__((vector_size(LEVIN_VECTOR_BYTES)));
  static constexpr int64_t lanes = LEVIN_VECTOR_BYTES / int64_t{sizeof(A)};
};

// Reads a V, a vector or a single number, at p.
template <class V, class A>
[[gnu::always_inline]] inline V load(const A* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

template <class A, int kSums>
struct Sums {
  A s[kSums];
};

// The sum of a vector's lanes, by halves and in registers.
template <int kBytes, class A, class V>
[[gnu::always_inline]] inline A lane_sum(V v) {
  if constexpr (kBytes == sizeof(A)) {
    return v[0];
  } else {
    typedef A Half __attribute__((vector_size(kBytes / 2)));
    Half parts[2];
    static_assert(sizeof parts == sizeof v);
    std::memcpy(parts, &v, sizeof v);
    return lane_sum<kBytes / 2, A>(parts[0] + parts[1]);
  }
}

// Sums over i of term(V{}, i), which returns Sums<V, kSums> of the V at i: V is a vector, or A for the last elements.
template <int kSums, class A, class Term>
[[gnu::always_inline]] inline Sums<A, kSums> sum_terms(int64_t n, const Term& term) {
  using V = typename RowVector<A>::Type;
  constexpr int64_t lanes = RowVector<A>::lanes;
  constexpr int unroll = kSums == 1 ? 4 : 2;  // independent sums hide the latency of addition
  V total[kSums][unroll] = {};
  int64_t i = 0;
  for (; i + unroll * lanes <= n; i += unroll * lanes) {
#pragma GCC unroll 4
    for (int u = 0; u < unroll; ++u) {
      const Sums<V, kSums> t = term(V{}, i + u * lanes);
#pragma GCC unroll 4
      for (int k = 0; k < kSums; ++k) total[k][u] += t.s[k];
    }
  }
  for (; i + lanes <= n; i += lanes) {
    const Sums<V, kSums> t = term(V{}, i);
    for (int k = 0; k < kSums; ++k) total[k][0] += t.s[k];
  }
  Sums<A, kSums> sum = {};
  for (; i < n; ++i) {
    const Sums<A, kSums> t = term(A{}, i);
    for (int k = 0; k < kSums; ++k) sum.s[k] += t.s[k];
  }
  for (int k = 0; k < kSums; ++k) {
    V v = total[k][0];
    for (int u = 1; u < unroll; ++u) v += total[k][u];
    sum.s[k] += lane_sum<LEVIN_VECTOR_BYTES, A>(v);
  }
  return sum;
}

template <class A>
A row_sum(const A* x, int64_t n) {
  return sum_terms<1, A>(
             n, [=]<class V>(V, int64_t i) __attribute__((always_inline)) { return Sums<V, 1>{{load<V>(x + i)}}; })
      .s[0];
}

template <class A>
A row_dot(const A* x, const A* y, int64_t n) {
  return sum_terms<1, A>(
             n, [=]<class V>(V, int64_t i)
                    __attribute__((always_inline)) { return Sums<V, 1>{{load<V>(x + i) * load<V>(y + i)}}; })
      .s[0];
}

// -inf for n = 0; NaN elements are passed over.
template <class A>
A row_max(const A* x, int64_t n) {
  using V = typename RowVector<A>::Type;
  constexpr int64_t lanes = RowVector<A>::lanes;
  A top = -std::numeric_limits<A>::infinity();
  int64_t i = 0;
  if (n >= lanes) {
    V a = V{} + top, b = a, c = a, d = a;
    const auto raise = [](V & m, V v) __attribute__((always_inline)) { m = v > m ? v : m; };
    for (; i + 4 * lanes <= n; i += 4 * lanes) {
      raise(a, load<V>(x + i));
      raise(b, load<V>(x + i + lanes));
      raise(c, load<V>(x + i + 2 * lanes));
      raise(d, load<V>(x + i + 3 * lanes));
    }
    for (; i + lanes <= n; i += lanes) raise(a, load<V>(x + i));
    raise(a, b);
    raise(c, d);
    raise(a, c);
    for (int64_t j = 0; j < lanes; ++j) top = a[j] > top ? a[j] : top;
  }
  for (; i < n; ++i) top = x[i] > top ? x[i] : top;
  return top;
}

// A row in the type that sums are made in: the row itself, or a copy for the 16-bit types.
template <class T>
class WideRow {
 public:
  using A = Accum<T>;
  explicit WideRow(int64_t cols) {
    if constexpr (!std::is_same_v<T, A>) copy_.reset(new A[size_t(cols)]);
  }
  const A* read(const T* x, int64_t cols) {
    if constexpr (std::is_same_v<T, A>) {
      return x;
    } else {
      for (int64_t i = 0; i < cols; ++i) copy_[i] = A(x[i]);
      return copy_.get();
    }
  }
  // Where a row that becomes y is computed; finish(y) puts it there.
  A* begin(T* y) {
    if constexpr (std::is_same_v<T, A>)
      return y;
    else
      return copy_.get();
  }
  void finish(T* y, int64_t cols) {
    if constexpr (!std::is_same_v<T, A>)
      for (int64_t i = 0; i < cols; ++i) y[i] = T(copy_[i]);
  }

 private:
  std::unique_ptr<A[]> copy_;
};

// Rows a task takes, so that it has some ten microseconds of work.
inline int64_t rows_at_once(int64_t cols) { return std::max<int64_t>(1, 32768 / std::max<int64_t>(1, cols)); }

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
