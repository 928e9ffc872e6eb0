// The kernels of reduce.cuh's reductions for devices that launch them.
//
//   reduce<Reduce, Map>(on, const T* x, const ReducePlan&, Finish, O* out, const A* shift, double p, scratch)
//     out[o] = finish(op over the elements i of output o of map(x[i])), rounded once. shift: [plan.outputs] or null.
//     scratch(n) gives room for n values of A; it is called at most once.
//
// Note [Reductions on a GPU]
// Where the elements of an output lie close together, 1 to 32 lanes or a block take an output; where outputs lie close
// together, neighbouring threads take neighbouring outputs and the block's rows of threads share the elements. Few and
// long outputs are cut into chunks whose partial results a second launch joins: no atomics, and the cut depends on the
// shape alone, so the bits are the same in every run. Each thread keeps four partial results and joins vectors as
// trees.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/device/block.cuh"
#include "kernels/device/hardware_math.cuh"
#include "kernels/device/strided.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/executor/gpu.h"
#include "kernels/executor/hd.h"
#include "kernels/math/math.h"
#include "kernels/reduce/reduce.cuh"
#include "kernels/reduce/reduce_plan.h"

namespace levin::kernels::gpu {

template <class A>
LEVIN_APART A finished_apart(Finish finish, A v, A shift) {
  return finished(finish, v, shift);
}

template <class A, class O>
struct ReduceOut {
  O* out;
  A* parts;        // where it is not null, unfinished values go there
  const A* shift;  // of outputs; null: none
  Finish finish;

  __device__ void put(std::int64_t at, std::int64_t output, A v) const {
    if (parts) {
      parts[at] = v;
      return;
    }
    const A s = shift ? shift[output] : A(0);
    out[output] = O(finish.kind == Finish::as_is ? v : finished_apart(finish, v, s));
  }
};

template <Reduce kOp, class A>
struct Joiner {
  __device__ __forceinline__ A operator()(A a, A b) const {
    if constexpr (kOp == Reduce::max) return Larger{}(a, b);
    if constexpr (kOp == Reduce::min) return Smaller{}(a, b);
    // Integers wrap around.
    using W = typename std::conditional_t<std::is_integral_v<A>, std::make_unsigned<A>, std::type_identity<A>>::type;
    return kOp == Reduce::sum ? A(W(a) + W(b)) : A(W(a) * W(b));
  }
  __device__ __forceinline__ static A identity() {
    using Limits = std::numeric_limits<A>;
    if constexpr (kOp == Reduce::sum) return A(0);
    if constexpr (kOp == Reduce::prod) return A(1);
    if constexpr (kOp == Reduce::max) return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
    return Limits::has_infinity ? Limits::infinity() : Limits::max();
  }
};

template <Map kMap, class A, class T>
__device__ __forceinline__ A mapped(T raw, [[maybe_unused]] A shift, [[maybe_unused]] A p) {
  if constexpr (kMap == Map::nonzero) {
    if constexpr (std::is_integral_v<T>) {
      return raw != T(0);
    } else {
      return static_cast<Accum<T>>(raw) != 0;
    }
  } else {
    const A v = static_cast<A>(raw);
    if constexpr (kMap == Map::abs) return std::fabs(v);
    if constexpr (kMap == Map::square) return v * v;
    if constexpr (kMap == Map::power) return std::pow(std::fabs(v), p);
    if constexpr (kMap == Map::deviation) return (v - shift) * (v - shift);
    if constexpr (kMap == Map::exp && sizeof(T) == 2) return half_math::exp(v - shift);  // for a result of 16 bits
    if constexpr (kMap == Map::exp && sizeof(T) != 2) return math::exp(v - shift);
    if constexpr (kMap == Map::value) return v;
  }
}
template <Map kMap>
inline constexpr bool kReadsShift = kMap == Map::deviation || kMap == Map::exp;

// A plan for kernels. An item is V elements that lie together.
struct ReduceAt {
  Strided<1> kept, reduced;  // of outputs, of items, in elements
  std::int64_t outputs = 1, n = 0;
  std::int64_t chunks = 1, per_chunk = 0;  // items of a chunk
  bool flat = false;                       // an output's elements lie together, from any address on
};

template <int V, class T>
__device__ __forceinline__ Vec<T, V> fetch_item(const T* p) {
  if constexpr (V == 1) {
    return {{*p}};
  } else {
    return load<V>(p);
  }
}

// The part of one output that one of `lanes` threads joins.
template <class T, class A, Reduce kOp, Map kMap, int V>
__device__ A reduce_items(const T* row, const ReduceAt& at, std::int64_t chunk, int lane, int lanes, A shift, A p) {
  const Joiner<kOp, A> join;
  A part[4] = {join.identity(), join.identity(), join.identity(), join.identity()};
  const auto take = [&](A& to, const Vec<T, V>& item) {
    A v[V];
#pragma unroll
    for (int j = 0; j < V; ++j) v[j] = mapped<kMap>(item[j], shift, p);
#pragma unroll
    for (int w = V / 2; w > 0; w /= 2) {
#pragma unroll
      for (int j = 0; j < w; ++j) v[j] = join(v[j], v[j + w]);
    }
    to = join(to, v[0]);
  };
  std::int64_t items = at.n / V;
  if constexpr (V > 1) {
    if (at.flat) {
      // Single elements before the first aligned item and after the last.
      constexpr auto kBytes = static_cast<std::uintptr_t>(V * int(sizeof(T)));
      const std::uintptr_t past = reinterpret_cast<std::uintptr_t>(row) % kBytes;
      const auto before = static_cast<std::int64_t>((kBytes - past) % kBytes / sizeof(T));
      const std::int64_t head = before < at.n ? before : at.n;
      items = (at.n - head) / V;
      if (chunk == 0) {
        for (std::int64_t i = lane; i < head; i += lanes) part[0] = join(part[0], mapped<kMap>(row[i], shift, p));
      }
      if (chunk == at.chunks - 1) {
        for (std::int64_t i = head + items * V + lane; i < at.n; i += lanes)
          part[1] = join(part[1], mapped<kMap>(row[i], shift, p));
      }
      row += head;
    }
  }
  const auto item = [&](std::int64_t u) {
    std::int64_t offset[1];
    at.reduced.offsets(u, offset);
    return fetch_item<V>(row + offset[0]);
  };
  std::int64_t u = chunk * at.per_chunk + lane;
  const std::int64_t rest = items - chunk * at.per_chunk;
  const std::int64_t end = chunk * at.per_chunk + (rest < at.per_chunk ? rest : at.per_chunk);
  // Four loads are under way along one dimension, two along several, whose divisions are most of a kernel's code.
  if (at.reduced.rank == 1) {
    const std::int64_t step = lanes * at.reduced.steps[0][0];
    const T* from = row + u * at.reduced.steps[0][0];
    for (; u + 3 * lanes < end; u += 4 * lanes, from += 4 * step) {
      const Vec<T, V> a = fetch_item<V>(from), b = fetch_item<V>(from + step), c = fetch_item<V>(from + 2 * step),
                      d = fetch_item<V>(from + 3 * step);
      take(part[0], a);
      take(part[1], b);
      take(part[2], c);
      take(part[3], d);
    }
  }
  for (; u + lanes < end; u += 2 * lanes) {
    const Vec<T, V> a = item(u), b = item(u + lanes);
    take(part[0], a);
    take(part[1], b);
  }
  if (u < end) take(part[2], item(u));
  return join(join(part[0], part[1]), join(part[2], part[3]));
}

inline constexpr int kReduceThreads = 256;
// Blocks a processor: given, because ptxas aims at five by itself and then spills.
inline constexpr int kReduceBlocks = 3;

// `group` (a power of two up to 32) lanes an output.
template <class T, class A, Reduce kOp, Map kMap, int V, class O>
__global__ void __launch_bounds__(kReduceThreads, kReduceBlocks)
    reduce_groups(const T* x, ReduceAt at, int group, ReduceOut<A, O> out, A p) {
  const Joiner<kOp, A> join;
  const int lane = static_cast<int>(threadIdx.x) % group;
  const std::int64_t per_block = kReduceThreads / group;
  for (std::int64_t first = blockIdx.x * per_block; first < at.outputs; first += gridDim.x * per_block) {
    const std::int64_t o = first + threadIdx.x / static_cast<unsigned>(group);
    A v = join.identity();
    if (o < at.outputs) {
      std::int64_t base[1];
      at.kept.offsets(o, base);
      const A shift = kReadsShift<kMap> ? out.shift[o] : A(0);
      v = reduce_items<T, A, kOp, kMap, V>(x + base[0], at, 0, lane, group, shift, p);
    }
    for (int lanes = group / 2; lanes > 0; lanes /= 2) v = join(v, from_lane_xor(v, lanes));
    if (lane == 0 && o < at.outputs) out.put(o, o, v);
  }
}

// A block a chunk of an output. parts: [outputs, chunks].
template <class T, class A, Reduce kOp, Map kMap, int V, class O>
__global__ void __launch_bounds__(kReduceThreads, kReduceBlocks)
    reduce_blocks(const T* x, ReduceAt at, ReduceOut<A, O> out, A p) {
  LEVIN_SHARED(A, scratch, kReduceThreads / 32);
  for (std::int64_t t = blockIdx.x; t < at.outputs * at.chunks; t += gridDim.x) {
    const std::int64_t o = at.chunks == 1 ? t : t / at.chunks;
    std::int64_t base[1];
    at.kept.offsets(o, base);
    const A shift = kReadsShift<kMap> ? out.shift[o] : A(0);
    A v = reduce_items<T, A, kOp, kMap, V>(x + base[0], at, t - o * at.chunks, static_cast<int>(threadIdx.x),
                                           kReduceThreads, shift, p);
    v = block_reduce<kReduceThreads>(v, scratch, Joiner<kOp, A>{});
    if (threadIdx.x == 0) out.put(t, o, v);
  }
}

// Neighbouring outputs of the innermost kept dimension: `width` of them, `step` elements apart, V in an item. A block
// has `across` threads along them and kReduceThreads / across rows of threads along the elements. at.kept: the other
// kept dimensions; at.per_chunk counts elements. parts: [chunks, outputs].
struct Columns {
  std::int64_t width, step, tiles;
  int across;
};
template <class T, class A, Reduce kOp, Map kMap, int V, class O>
__global__ void __launch_bounds__(kReduceThreads, kReduceBlocks)
    reduce_columns(const T* x, ReduceAt at, Columns columns, ReduceOut<A, O> out, A p) {
  LEVIN_SHARED(A, scratch, kReduceThreads * V);
  const Joiner<kOp, A> join;
  const int thread = static_cast<int>(threadIdx.x), down = kReduceThreads / columns.across;
  const int row = thread / columns.across, column = thread % columns.across;
  const std::int64_t blocks = at.outputs / columns.width * columns.tiles * at.chunks;
  for (std::int64_t t = blockIdx.x; t < blocks; t += gridDim.x) {
    const std::int64_t chunk = t % at.chunks, tile = t / at.chunks % columns.tiles, o = t / at.chunks / columns.tiles;
    const std::int64_t first = (tile * columns.across + column) * V;  // this thread's columns
    const std::int64_t output = o * columns.width + first;
    A part[V], shift[V];
#pragma unroll
    for (int j = 0; j < V; ++j) part[j] = join.identity();
    if (first < columns.width) {
      std::int64_t base[1];
      at.kept.offsets(o, base);
      const T* from = x + base[0] + first * columns.step;
#pragma unroll
      for (int j = 0; j < V; ++j) shift[j] = kReadsShift<kMap> ? out.shift[output + j] : A(0);
      const auto item = [&](std::int64_t r) {
        std::int64_t offset[1];
        at.reduced.offsets(r, offset);
        return fetch_item<V>(from + offset[0]);
      };
      const std::int64_t last = (chunk + 1) * at.per_chunk, end = last < at.n ? last : at.n;
      std::int64_t r = chunk * at.per_chunk + row;
      if (at.reduced.rank == 1) {  // as in reduce_items
        const std::int64_t step = down * at.reduced.steps[0][0];
        const T* top = from + r * at.reduced.steps[0][0];
        for (; r + 3 * down < end; r += 4 * down, top += 4 * step) {
          const Vec<T, V> a = fetch_item<V>(top), b = fetch_item<V>(top + step), c = fetch_item<V>(top + 2 * step),
                          d = fetch_item<V>(top + 3 * step);
#pragma unroll
          for (int j = 0; j < V; ++j) {
            part[j] = join(part[j], join(join(mapped<kMap>(a[j], shift[j], p), mapped<kMap>(b[j], shift[j], p)),
                                         join(mapped<kMap>(c[j], shift[j], p), mapped<kMap>(d[j], shift[j], p))));
          }
        }
      }
      for (; r + down < end; r += 2 * down) {
        const Vec<T, V> a = item(r), b = item(r + down);
#pragma unroll
        for (int j = 0; j < V; ++j)
          part[j] = join(part[j], join(mapped<kMap>(a[j], shift[j], p), mapped<kMap>(b[j], shift[j], p)));
      }
      if (r < end) {
        const Vec<T, V> a = item(r);
#pragma unroll
        for (int j = 0; j < V; ++j) part[j] = join(part[j], mapped<kMap>(a[j], shift[j], p));
      }
    }
    // Rows of threads are joined in pairs.
    for (int half = down / 2; half > 0; half /= 2) {
      if (row >= half && row < 2 * half) {
#pragma unroll
        for (int j = 0; j < V; ++j) scratch[j * kReduceThreads + thread] = part[j];
      }
      __syncthreads();
      if (row < half) {
#pragma unroll
        for (int j = 0; j < V; ++j)
          part[j] = join(part[j], scratch[j * kReduceThreads + thread + half * columns.across]);
      }
      __syncthreads();
    }
    if (row == 0 && first < columns.width) {
#pragma unroll
      for (int j = 0; j < V; ++j) out.put(chunk * at.outputs + output + j, output + j, part[j]);
    }
  }
}

namespace reduce_detail {

inline constexpr std::int64_t kBlocks = 132 * 8;  // that run together on an H200
inline constexpr std::int64_t kMostBlocks = std::int64_t{1} << 30;
inline constexpr std::int64_t kChunkElements = 8192;  // less is not worth a block of its own
inline constexpr std::int64_t kChunkRows = 64;

inline std::int64_t divide_up(std::int64_t n, std::int64_t d) { return (n + d - 1) / d; }
inline std::int64_t power_of_two_from(std::int64_t n) {
  std::int64_t power = 1;
  while (power < n) power *= 2;
  return power;
}
inline std::int64_t reach(std::int64_t step) {
  return step == 0 ? std::numeric_limits<std::int64_t>::max() : std::abs(step);
}
inline Strided<1> strided(int rank, const std::int64_t* sizes, const std::int64_t* steps, std::int64_t v = 1) {
  Strided<1> at;
  at.rank = rank > 0 ? rank : 1;
  for (int d = 0; d < rank; ++d) {
    const bool inner = d == rank - 1;
    at.sizes[d] = Divider(std::max<std::int64_t>(1, inner ? sizes[d] / v : sizes[d]));
    at.steps[0][d] = steps[d] * (inner ? v : 1);
  }
  return at;
}

// How the work is cut. Which way depends on shape and strides alone, not on addresses.
struct Way {
  bool by_column = false, one_thread = false;
  Columns columns{};
  std::int64_t chunks = 1;
};
inline Way way_of(const ReducePlan& plan, int v) {
  Way way;
  const auto k = static_cast<std::size_t>(plan.kept - 1), r = static_cast<std::size_t>(plan.reduced - 1);
  way.by_column = plan.kept > 0 && plan.reduced > 0 && reach(plan.kept_step[k]) < reach(plan.reduced_step[r]);
  if (way.by_column) {
    const std::int64_t width = plan.kept_size[k], outer = plan.outputs / width;
    // Many narrow and low groups of columns would leave most threads of their blocks idle.
    way.one_thread = outer > 1 && width < 64 && plan.n < 256;
    const std::int64_t items = divide_up(width, v);
    std::int64_t across = std::min<std::int64_t>(kReduceThreads, power_of_two_from(items));
    while (across > 32 && kReduceThreads / across < power_of_two_from(divide_up(plan.n, 8))) across /= 2;
    way.columns = {width, plan.kept_step[k], divide_up(items, across), static_cast<int>(across)};
    const std::int64_t blocks = outer * way.columns.tiles;
    if (!way.one_thread && blocks < kBlocks / 2)
      way.chunks = std::clamp<std::int64_t>(plan.n / kChunkRows, 1, kBlocks / blocks);
  } else if (plan.outputs < kBlocks / 2) {
    way.chunks =
        std::clamp<std::int64_t>(plan.n / kChunkElements, 1, kBlocks / std::max<std::int64_t>(1, plan.outputs));
  }
  return way;
}

// Elements a load: 16 bytes of floats; what is rare or costly to compute is loaded one by one, in fewer
// kernels.
template <class T, Reduce kOp, Map kMap>
constexpr int vector_of() {
  if (kOp == Reduce::prod || kMap == Map::power) return 1;
  if (sizeof(T) == 1) return 4;
  return std::is_integral_v<T> || kMap == Map::nonzero ? 1 : 16 / int(sizeof(T));
}

inline bool all_multiples(std::int64_t v, const std::int64_t* steps, int count) {
  return std::all_of(steps, steps + std::max(count, 0), [v](std::int64_t step) { return step % v == 0; });
}

// kMost: elements a load where addresses and sizes allow it.
template <int kMost, class T, class A, Reduce kOp, Map kMap, class O>
void launch(const Gpu& on, const T* x, const ReducePlan& plan, const ReduceOut<A, O>& out, double p_, const Way& way) {
  const A p = static_cast<A>(p_);
  const bool aligned = reinterpret_cast<std::uintptr_t>(x) % (kMost * sizeof(T)) == 0;
  ReduceAt at;
  at.outputs = plan.outputs;
  at.n = plan.n;
  at.chunks = way.chunks;
  const auto grid = [](std::int64_t blocks) {
    return Grid{.blocks = static_cast<unsigned>(std::min(blocks, kMostBlocks)), .threads = kReduceThreads};
  };
  if (way.by_column && !way.one_thread) {
    at.kept = strided(plan.kept - 1, plan.kept_size.data(), plan.kept_step.data());
    at.reduced = strided(plan.reduced, plan.reduced_size.data(), plan.reduced_step.data());
    at.per_chunk = divide_up(plan.n, way.chunks);
    const auto go = [&]<int V>(std::integral_constant<int, V>) {
      Columns columns = way.columns;
      columns.tiles = divide_up(divide_up(columns.width, V), columns.across);
      on.launch(reduce_columns<T, A, kOp, kMap, V, O>, grid(plan.outputs / columns.width * columns.tiles * way.chunks),
                x, at, columns, out, p);
    };
    const bool vectors = aligned && way.columns.step == 1 && way.columns.width % kMost == 0 &&
                         all_multiples(kMost, plan.kept_step.data(), plan.kept - 1) &&
                         all_multiples(kMost, plan.reduced_step.data(), plan.reduced);
    // Eight columns of exp take more registers than three blocks a processor leave.
    constexpr int kColumns = kMap == Map::exp && kMost == 8 ? 4 : kMost;
    return vectors ? go(std::integral_constant<int, kColumns>{}) : go(std::integral_constant<int, 1>{});
  }
  const auto go = [&]<int V>(std::integral_constant<int, V>) {
    at.kept = strided(plan.kept, plan.kept_size.data(), plan.kept_step.data());
    at.reduced = strided(plan.reduced, plan.reduced_size.data(), plan.reduced_step.data(), V);
    at.per_chunk = divide_up(plan.n / V, way.chunks);
    const bool warps = plan.n <= 1024 || (plan.n <= 8192 && plan.outputs >= 8 * kBlocks);
    if (way.chunks == 1 && warps) {
      const std::int64_t group =
          way.one_thread ? 1 : std::min<std::int64_t>(32, power_of_two_from(divide_up(plan.n, 2 * V)));
      on.launch(reduce_groups<T, A, kOp, kMap, V, O>, grid(divide_up(plan.outputs, kReduceThreads / group)), x, at,
                static_cast<int>(group), out, p);
    } else {
      on.launch(reduce_blocks<T, A, kOp, kMap, V, O>, grid(plan.outputs * way.chunks), x, at, out, p);
    }
  };
  const auto inner = static_cast<std::size_t>(plan.reduced - 1);
  bool vectors = kMost > 1 && !way.one_thread && plan.reduced > 0 && plan.reduced_step[inner] == 1;
  if (vectors && plan.reduced == 1) {
    const bool is_aligned = aligned && plan.n % kMost == 0 && all_multiples(kMost, plan.kept_step.data(), plan.kept);
    vectors = plan.n >= (is_aligned ? kMost : 8 * kMost);
    at.flat = true;
  } else {
    vectors = vectors && aligned && plan.reduced_size[inner] % kMost == 0 &&
              all_multiples(kMost, plan.kept_step.data(), plan.kept) &&
              all_multiples(kMost, plan.reduced_step.data(), plan.reduced - 1);
  }
  return vectors ? go(std::integral_constant<int, kMost>{}) : go(std::integral_constant<int, 1>{});
}

}  // namespace reduce_detail

template <Reduce kOp, Map kMap, class T, class A, class O, class F>
void reduce(const Gpu& on, const T* x, const ReducePlan& plan, Finish finish, O* out, const A* shift, double p,
            F&& scratch) {
  if (plan.outputs == 0) return;
  constexpr int kMost = reduce_detail::vector_of<T, kOp, kMap>();
  const reduce_detail::Way way = reduce_detail::way_of(plan, kMost);
  A* parts = way.chunks > 1 ? scratch(way.chunks * plan.outputs) : nullptr;
  reduce_detail::launch<kMost, T, A, kOp, kMap, O>(
      on, x, plan, {.out = out, .parts = parts, .shift = shift, .finish = finish}, p, way);
  if (!parts) return;
  const Shape shape = way.by_column ? Shape{way.chunks, plan.outputs} : Shape{plan.outputs, way.chunks};
  const ReducePlan rest(shape, contiguous_strides(shape), way.by_column ? 1u : 2u);
  reduce_detail::Way join = reduce_detail::way_of(rest, 1);
  join.chunks = 1;
  reduce_detail::launch<1, A, A, kOp, Map::value, O>(
      on, parts, rest, {.out = out, .parts = nullptr, .shift = shift, .finish = finish}, 0, join);
}

}  // namespace levin::kernels::gpu
