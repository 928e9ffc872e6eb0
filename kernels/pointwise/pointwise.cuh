// Pointwise kernels: out[i] = f(a[i], b[i], c[i]) over strided operands, up to three inputs of any element types.
//
// A functor F holds its constants and has `template <class T> T operator()(T...) const`; it is the kernel of every
// device and dtype. 16-bit floats are computed in float: blocks of them are widened, run through the float loop and
// rounded once.
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_POINTWISE_CUH
#define LEVIN_KERNELS_POINTWISE_CUH

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/device/strided.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/executor/cpu.h"
#include "kernels/executor/gpu.h"
#include "kernels/executor/hd.h"
#include "levin/dtype.h"
#include "levin/shape.h"

namespace levin::kernels {

inline constexpr int kMaxOperands = 4;  // the output first, then up to three inputs

// n elements: p[k] + i * step[k] bytes is operand k of element i.
using PointwiseLoop = void (*)(const void* functor, char* const* p, const std::int64_t* step, std::int64_t n);

// Operands over a common shape, dimensions merged where every operand allows it. Steps are bytes, 0 where broadcast.
struct PointwisePlan {
  int operands = 0;
  int rank = 0;
  std::int64_t numel = 1;
  std::array<std::int64_t, kMaxRank> sizes{};
  std::array<std::array<std::int64_t, kMaxRank>, kMaxOperands> steps{};
  std::array<char*, kMaxOperands> data{};
  // 16-bit operands as seen by the float loop: how each is widened.
  enum class Half : std::uint8_t { no, f16, bf16 };
  bool spread = false;  // the loop has no form for broadcast inputs: they are written out, a block at a time
  std::array<Half, kMaxOperands> half{};
  std::array<std::uint8_t, kMaxOperands> width{};  // bytes an element

  void add(void* p, const Shape& common, const Shape& shape, const Strides& strides, DType dtype);
  // Brings the dimensions into the order of the output's memory and merges them.
  void collapse();

 private:
  void follow_output();
};

// Runs a loop over a plan, in chunks on several threads when there is enough of it.
void run_pointwise(const Cpu& on, PointwiseLoop loop, const void* functor, const PointwisePlan& plan,
                   std::int64_t grain);
// The same for one dense row: every operand contiguous with n elements, or a single broadcast element (step 0).
void run_pointwise_row(const Cpu& on, PointwiseLoop loop, const void* functor, const PointwisePlan& plan,
                       std::int64_t grain);

// Functors that declare a kGrain have loops without a form for a broadcast input, which would be half of the library's
// code; see PointwisePlan::spread. They cost more than a memory access, or are cheap (comparisons, choices by a mask)
// and declare the default grain for this alone.
template <class F>
inline constexpr bool kCostly = requires {
  F::kGrain;
};

// Functors of about a hundred instructions an element or more declare a kGrain of 4,096 at most.
template <class F>
inline constexpr bool kLong = [] {
  if constexpr (kCostly<F>)
    return F::kGrain <= 4096;
  else
    return false;
}();

// A functor may have a second form for what a dense loop of the CPU meets: near(x...), which becomes vector code and
// holds unless is_far(x...). Where some elements of a block are far, the functor itself computes them again, or the
// whole block if kIsVectorCode says that it becomes vector code, too.
template <class F, class... T>
concept HasNear = requires(const F& f, T... x) {
  f.near(x...);
};
template <class F>
concept IsVectorCode = requires {
  requires F::kIsVectorCode;
};

// The C++ type a loop sees for a tensor element: float for the 16-bit floats.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, f16> || std::is_same_v<T, bf16>, float, T>;

}  // namespace levin::kernels

#define LEVIN_LEVEL_FILE "kernels/pointwise/pointwise.cuh"
#include "kernels/executor/each_level.h"

namespace levin::kernels::gpu {

// A functor may have a form for results of a 16-bit type H, for_half<H>(x...) of float, made of the short functions of
// kernels/device/hardware_math.cuh.
template <class H, class F, class... X>
concept HasHalfForm = sizeof(H) == 2 && requires(const F& f, const X&... x) {
  f.template for_half<H>(x...);
};
template <class O, class F, class... X>
__device__ __forceinline__ O result_of(const F& f, const X&... x) {
  if constexpr (HasHalfForm<O, F, X...>)
    return static_cast<O>(f.template for_half<O>(x...));
  else
    return static_cast<O>(f(x...));
}

template <class T>
struct Operand {  // elements in memory
  const T* p;
};
template <class T>
struct Number {  // one value for all elements
  Wide<T> value;
};

template <class T, int V>
struct Loaded {
  Wide<T> v[V];
};
template <int V, class T>
__device__ Loaded<T, V> fetch(const Operand<T>& in, std::int64_t offset, bool dense) {
  Loaded<T, V> r;
  if constexpr (V == 1) {
    r.v[0] = Wide<T>(in.p[offset]);
  } else if (dense) {
    const Vec<T, V> x = load<V>(in.p + offset);
    for (int j = 0; j < V; ++j) r.v[j] = Wide<T>(x[j]);
  } else {
    const Wide<T> x = Wide<T>(in.p[offset]);
    for (int j = 0; j < V; ++j) r.v[j] = x;
  }
  return r;
}
template <int V, class T>
__device__ Loaded<T, V> fetch(const Number<T>& in, std::int64_t, bool) {
  Loaded<T, V> r;
  for (int j = 0; j < V; ++j) r.v[j] = in.value;
  return r;
}

// out[i] = f(in[i]...). An item is V elements that lie together in `out`; an operand's item is V elements that lie
// together where `dense` has its bit (out is bit 0), else one element for all of them. V elements are 16 bytes of the
// widest operand. One item a thread, in a grid-stride loop.
template <class F, int V, class O, class... I, std::size_t... K>
__device__ __forceinline__ Vec<O, V> pointwise_item(const F& f, const std::int64_t* offset, unsigned dense,
                                                    std::index_sequence<K...>, const I&... in) {
  const auto compute = [&](const auto&... x) {
    Vec<O, V> y;
    for (int j = 0; j < V; ++j) y[j] = result_of<O>(f, x.v[j]...);
    return y;
  };
  return compute(fetch<V>(in, offset[K], (dense >> (K + 1) & 1u) != 0)...);
}
template <class F, int V, class O, class... I>
__global__ void pointwise(F f, Strided<sizeof...(I) + 1> at, std::int64_t items, unsigned dense, O* out, I... in) {
  const std::int64_t step = std::int64_t{blockDim.x} * gridDim.x;
  for (std::int64_t u = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; u < items; u += step) {
    std::int64_t offset[sizeof...(I) + 1];
    at.offsets(u, offset);
    store(out + offset[0],
          pointwise_item<F, V, O>(f, offset + 1, dense, std::make_index_sequence<sizeof...(I)>{}, in...));
  }
}
// The same where every operand is one dense row. All loads of kPointwiseAhead items stand before the first use, even
// where f has branches, so that they are in flight together. A kLong function is not limited by loads: its code, which
// stands once for each element a thread has loaded, takes one item.
inline constexpr int kPointwiseThreads = 256;
template <class F>
inline constexpr int kPointwiseAhead = kLong<F> ? 1 : 4;
template <int V, class T>
__device__ __forceinline__ Vec<T, V> fetch_row(const Operand<T>& in, std::int64_t u) {
  return load<V>(in.p + u * V);
}
template <int V, class T>
__device__ __forceinline__ Number<T> fetch_row(const Number<T>& in, std::int64_t) {
  return in;
}
template <class T, int V>
__device__ __forceinline__ Wide<T> element(const Vec<T, V>& x, int j) {
  return Wide<T>(x[j]);
}
template <class T>
__device__ __forceinline__ Wide<T> element(const Number<T>& x, int) {
  return x.value;
}
template <class... X>
struct Loads {};  // what an item has loaded of each operand
template <class X, class... Rest>
struct Loads<X, Rest...> {
  X x;
  Loads<Rest...> rest;
};
template <int V>
__device__ __forceinline__ Loads<> fetch_all(std::int64_t) {
  return {};
}
template <int V, class I, class... Rest>
__device__ __forceinline__ auto fetch_all(std::int64_t u, const I& in, const Rest&... rest)
    -> Loads<decltype(fetch_row<V>(in, u)), decltype(fetch_row<V>(rest, u))...> {
  return {fetch_row<V>(in, u), fetch_all<V>(u, rest...)};
}
template <class O, class F, class... E>
__device__ __forceinline__ O of_elements(const F& f, int, const Loads<>&, const E&... e) {
  return result_of<O>(f, e...);
}
template <class O, class F, class X, class... Rest, class... E>
__device__ __forceinline__ O of_elements(const F& f, int j, const Loads<X, Rest...>& loads, const E&... e) {
  return of_elements<O>(f, j, loads.rest, e..., element(loads.x, j));
}
template <class F, int V, class O, class... I>
__global__ void pointwise_row(F f, std::int64_t items, O* out, I... in) {
  const auto finish = [&](std::int64_t u, const auto& loads) {
    Vec<O, V> y;
#pragma unroll
    for (int j = 0; j < V; ++j) y[j] = of_elements<O>(f, j, loads);
    store(out + u * V, y);
  };
  // A block has one stretch of memory, and blocks start in order: what the device reads at a time lies together.
  constexpr int kAhead = kPointwiseAhead<F>;
  const std::int64_t u = std::int64_t{blockIdx.x} * (kAhead * kPointwiseThreads) + threadIdx.x;
  if constexpr (kAhead > 1) {
    if (u + (kAhead - 1) * kPointwiseThreads < items) {
      decltype(fetch_all<V>(u, in...)) loads[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; ++k) loads[k] = fetch_all<V>(u + k * kPointwiseThreads, in...);
#pragma unroll
      for (int k = 0; k < kAhead; ++k) finish(u + k * kPointwiseThreads, loads[k]);
      return;
    }
  }
#pragma unroll 1  // the last block alone comes here, unless its code is all there is
  for (int k = 0; k < kAhead; ++k) {
    const std::int64_t rest = u + k * kPointwiseThreads;
    if (rest < items) finish(rest, fetch_all<V>(rest, in...));
  }
}

// The plan in items of V elements.
template <int N>
[[nodiscard]] Strided<N> in_items(const PointwisePlan& plan, int v) {
  Strided<N> at;
  at.rank = plan.rank > 0 ? plan.rank : 1;
  for (int d = 0; d < plan.rank; ++d) {
    const bool inner = d == plan.rank - 1;
    const auto i = static_cast<std::size_t>(d);
    at.sizes[d] = Divider(inner ? plan.sizes[i] / v : plan.sizes[i]);
    for (std::size_t k = 0; k < N; ++k) at.steps[k][d] = plan.steps[k][i] / plan.width[k] * (inner ? v : 1);
  }
  return at;
}

inline constexpr std::int64_t kPointwiseBlocks =
    132 * 16;  // of `pointwise`: several waves of an H200; more only repeat the loop's set-up

template <class T>
inline constexpr std::size_t kBytesOf = 0;
template <class T>
inline constexpr std::size_t kBytesOf<Operand<T>> = sizeof(T);

template <class F, int V, class O, class... I>
void launch_items(const Gpu& on, const F& f, const PointwisePlan& plan, unsigned dense, O* out, const I&... in) {
  const std::int64_t items = plan.numel / V;
  constexpr bool kIsNumber[] = {false, kBytesOf<I> == 0 ...};
  bool row = V > 1 && plan.rank == 1;
  for (std::size_t k = 0; k <= sizeof...(I); ++k) row = row && (kIsNumber[k] || (dense >> k & 1u) != 0);
  if constexpr (V > 1) {
    if (row) {
      const Grid grid{.blocks = blocks_for(items, kPointwiseAhead<F> * kPointwiseThreads),
                      .threads = kPointwiseThreads};
      return on.launch(pointwise_row<F, V, O, I...>, grid, f, items, out, in...);
    }
  }
  const std::int64_t blocks = (items + kPointwiseThreads - 1) / kPointwiseThreads;
  const Grid grid{.blocks = static_cast<unsigned>(std::min(blocks, kPointwiseBlocks)), .threads = kPointwiseThreads};
  on.launch(pointwise<F, V, O, I...>, grid, f, in_items<static_cast<int>(sizeof...(I)) + 1>(plan, V), items, dense, out,
            in...);
}

// Whether operand k's innermost dimension is read in vectors of `bytes`.
[[nodiscard]] inline bool in_vectors(const PointwisePlan& plan, std::size_t k, std::int64_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(plan.data[k]) % static_cast<std::uintptr_t>(bytes) != 0) return false;
  for (int d = 0; d + 1 < plan.rank; ++d) {
    if (plan.steps[k][static_cast<std::size_t>(d)] % bytes != 0) return false;
  }
  return plan.steps[k][static_cast<std::size_t>(plan.rank - 1)] == plan.width[k];
}

// Launches f over a collapsed plan. Its first operand is out, the others are `in`, as Operand or Number, in their
// order.
template <class F, class O, class... I>
void launch_pointwise(const Gpu& on, const F& f, PointwisePlan plan, O* out, const I&... in) {
  if (plan.numel == 0) return;
  constexpr std::size_t kWidest = std::max({sizeof(O), kBytesOf<I>...});
  constexpr int V = static_cast<int>(16 / kWidest);
  constexpr bool kIsNumber[] = {false, kBytesOf<I> == 0 ...};
  const auto last = static_cast<std::size_t>(plan.rank > 0 ? plan.rank - 1 : 0);
  const std::int64_t inner = plan.rank > 0 ? plan.sizes[last] : 1;
  // A row whose length is no multiple of V ends in a launch of its own; rows of several dimensions go by single
  // elements.
  bool vectors = plan.rank > 0 && (inner % V == 0 || (plan.rank == 1 && inner >= 64 * V));
  unsigned dense = 0;
  for (std::size_t k = 0; vectors && k < static_cast<std::size_t>(plan.operands); ++k) {
    if (kIsNumber[k]) continue;
    if (in_vectors(plan, k, V * plan.width[k]))
      dense |= 1u << k;
    else
      vectors = k > 0 && plan.steps[k][last] == 0;
  }
  if (!vectors) return launch_items<F, 1>(on, f, plan, 0u, out, in...);
  const std::int64_t tail = inner % V;
  if (tail == 0) return launch_items<F, V>(on, f, plan, dense, out, in...);
  PointwisePlan head = plan, rest = plan;
  head.numel = head.sizes[0] = inner - tail;
  rest.numel = rest.sizes[0] = tail;
  launch_items<F, V>(on, f, head, dense, out, in...);
  const auto behind = [&]<class T>(const T& x, std::size_t k) {
    if constexpr (kBytesOf<T> == 0)
      return x;
    else
      return T{x.p + (inner - tail) * plan.steps[k][0] / plan.width[k]};
  };
  [&]<std::size_t... K>(std::index_sequence<K...>) {
    launch_items<F, 1>(on, f, rest, 0u, out + (inner - tail), behind(in, K + 1)...);
  }
  (std::make_index_sequence<sizeof...(I)>{});
}

}  // namespace levin::kernels::gpu

namespace levin::kernels::cpu {
LEVIN_PICK(pointwise_loop)  // pointwise_loop<F, Out, In...>(on): the loop of on's level
}  // namespace levin::kernels::cpu

#endif  // LEVIN_KERNELS_POINTWISE_CUH
#else

namespace levin::kernels::cpu::LEVIN_LEVEL {

// o[i] = f(a[i]...) by f.near, in blocks that stay in the nearest cache until it is known whether all was near.
template <class F, class O, class... A>
void near_loop(const F& f, std::int64_t n, O* o, const A*... a) {
  constexpr std::int64_t kBlock = 512;
  for (std::int64_t begin = 0; begin < n; begin += kBlock) {
    const std::int64_t end = std::min(n, begin + kBlock);
    int far = 0;
    for (std::int64_t i = begin; i < end; ++i) far |= f.is_far(a[i]...) ? 1 : 0;
    if constexpr (IsVectorCode<F>) {
      if (far != 0) {
#pragma GCC ivdep
        for (std::int64_t i = begin; i < end; ++i) o[i] = static_cast<O>(f(a[i]...));
        continue;
      }
    }
#pragma GCC ivdep
    for (std::int64_t i = begin; i < end; ++i) o[i] = static_cast<O>(f.near(a[i]...));
    if (far == 0) [[likely]]
      continue;
    for (std::int64_t i = begin; i < end; ++i) {
      if (f.is_far(a[i]...)) o[i] = static_cast<O>(f(a[i]...));
    }
  }
}

template <class F, class O, class A>
void loop1(const void* functor, char* const* p, const std::int64_t* step, std::int64_t n) {
  const F f = *static_cast<const F*>(functor);
  if (step[0] == sizeof(O) && step[1] == sizeof(A)) {
    O* o = reinterpret_cast<O*>(p[0]);
    const A* a = reinterpret_cast<const A*>(p[1]);
    if constexpr (HasNear<F, A>) {
      near_loop(f, n, o, a);
    } else {
#pragma GCC ivdep
      for (std::int64_t i = 0; i < n; ++i) o[i] = static_cast<O>(f(a[i]));
    }
    return;
  }
  if (step[0] == sizeof(O) && step[1] == 0) {
    O* o = reinterpret_cast<O*>(p[0]);
    const O value = static_cast<O>(f(*reinterpret_cast<const A*>(p[1])));
    for (std::int64_t i = 0; i < n; ++i) o[i] = value;
    return;
  }
  for (std::int64_t i = 0; i < n; ++i) {
    *reinterpret_cast<O*>(p[0] + i * step[0]) = static_cast<O>(f(*reinterpret_cast<const A*>(p[1] + i * step[1])));
  }
}

template <class F, class O, class A, class B>
void loop2(const void* functor, char* const* p, const std::int64_t* step, std::int64_t n) {
  const F f = *static_cast<const F*>(functor);
  O* o = reinterpret_cast<O*>(p[0]);
  const A* a = reinterpret_cast<const A*>(p[1]);
  const B* b = reinterpret_cast<const B*>(p[2]);
  if (step[0] == sizeof(O) && step[1] == sizeof(A) && step[2] == sizeof(B)) {
    if constexpr (HasNear<F, A, B>) {
      near_loop(f, n, o, a, b);
    } else {
#pragma GCC ivdep
      for (std::int64_t i = 0; i < n; ++i) o[i] = static_cast<O>(f(a[i], b[i]));
    }
  } else if (!kCostly<F> && step[0] == sizeof(O) && step[1] == sizeof(A) && step[2] == 0) {
    const B y = *b;
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) o[i] = static_cast<O>(f(a[i], y));
  } else if (!kCostly<F> && step[0] == sizeof(O) && step[1] == 0 && step[2] == sizeof(B)) {
    const A x = *a;
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) o[i] = static_cast<O>(f(x, b[i]));
  } else {
    for (std::int64_t i = 0; i < n; ++i) {
      *reinterpret_cast<O*>(p[0] + i * step[0]) = static_cast<O>(
          f(*reinterpret_cast<const A*>(p[1] + i * step[1]), *reinterpret_cast<const B*>(p[2] + i * step[2])));
    }
  }
}

template <class F, class O, class A, class B, class C>
void loop3(const void* functor, char* const* p, const std::int64_t* step, std::int64_t n) {
  const F f = *static_cast<const F*>(functor);
  if (step[0] == sizeof(O) && step[1] == sizeof(A) && step[2] == sizeof(B) && step[3] == sizeof(C)) {
    O* o = reinterpret_cast<O*>(p[0]);
    const A* a = reinterpret_cast<const A*>(p[1]);
    const B* b = reinterpret_cast<const B*>(p[2]);
    const C* c = reinterpret_cast<const C*>(p[3]);
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) o[i] = static_cast<O>(f(a[i], b[i], c[i]));
    return;
  }
  for (std::int64_t i = 0; i < n; ++i) {
    *reinterpret_cast<O*>(p[0] + i * step[0]) = static_cast<O>(f(*reinterpret_cast<const A*>(p[1] + i * step[1]),
                                                                 *reinterpret_cast<const B*>(p[2] + i * step[2]),
                                                                 *reinterpret_cast<const C*>(p[3] + i * step[3])));
  }
}

template <class F, class O, class... I>
PointwiseLoop pointwise_loop(const Cpu&) {
  if constexpr (sizeof...(I) == 1) {
    return &loop1<F, O, I...>;
  } else if constexpr (sizeof...(I) == 2) {
    return &loop2<F, O, I...>;
  } else {
    static_assert(sizeof...(I) == 3);
    return &loop3<F, O, I...>;
  }
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
