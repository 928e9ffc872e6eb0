#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_REDUCE_CUH
#define LEVIN_KERNELS_REDUCE_CUH
// Reductions of a strided tensor over a set of its dimensions, without a copy of it.
//
//   reduce<T, A>(on, const T* x, const ReducePlan&, Reduce, Map, A* out, const A* shift, double p)
//     out[o] = op over the elements i of output o of map(x[i]); out: [plan.outputs], row-major over the kept
//     dimensions. A: float for f32, f16, bf16; double for f64; int64_t for integers and bool (exact, wraps around).
//     shift: [plan.outputs] or null, read by the maps that say so; p: the exponent of Map::power.
//     Nothing to reduce gives the identity: 0, 1, and for max and min the lowest and highest A (infinities for floats).
//
// Note [Order of sums]
// Elements are summed in blocks of kBlock (rows) or kBlockRows (columns), blocks are joined in pairs, and a long
// reduction is cut into chunks that threads take and that are joined in pairs again. All these sizes are constants, so
// the bits do not depend on the number of threads, and the error grows with log(n), not with n. They may depend on the
// x86 level.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "kernels/executor/cpu.h"
#include "kernels/executor/hd.h"
#include "kernels/math/math.h"
#include "kernels/reduce/half_sums.cuh"
#include "kernels/reduce/reduce_plan.h"
#include "kernels/reduce/row_sums.cuh"
#include "levin/dtype.h"

namespace levin::kernels {

enum class Reduce : uint8_t { sum, prod, max, min };  // max and min: NaN wins
// What is reduced: x, x != 0, |x|, x^2, |x|^p, (x - shift)^2, exp(x - shift). All but the first two need floats.
enum class Map : uint8_t { value, nonzero, abs, square, power, deviation, exp };

// The result of a reduced value v: v, v / number, sqrt(v), sqrt(v / number), v^number, log(v) + shift, v or 0 where
// it is not finite, v > 0.
struct Finish {
  enum Kind : uint8_t { as_is, divide, root, divide_root, power, log, finite, positive };
  Kind kind = as_is;
  double number = 0;
};
template <class A>
LEVIN_HD A finished(Finish f, A v, A shift) {
  if constexpr (std::is_floating_point_v<A>) {
    const A number = static_cast<A>(f.number);
    switch (f.kind) {
      case Finish::divide: return v / number;
      case Finish::root: return std::sqrt(v);
      case Finish::divide_root: return std::sqrt(v / number);
      case Finish::power: return std::pow(v, number);
      case Finish::log: return std::log(v) + shift;
      case Finish::finite: return v - v == A(0) ? v : A(0);
      default: return v;
    }
  } else {
    return f.kind == Finish::positive ? A(v > 0) : v;
  }
}

template <class T>
using ReduceAccum = std::conditional_t<std::is_integral_v<T>, int64_t, Accum<T>>;

namespace reduce_detail {
inline constexpr int64_t kBlock = 1024;          // elements of one output summed before blocks are joined
inline constexpr int64_t kRowChunk = 64 * 1024;  // elements of one output that one thread takes: some 10 us
inline constexpr int64_t kBlockRows = 32;        // the same for columns
inline constexpr int64_t kChunkRows = 4096;
inline constexpr int64_t kTile = 256;       // columns that one thread walks together
inline constexpr int64_t kWideTile = 1024;  // the same where rows lie dense: the tile is long enough to prefetch
inline constexpr int64_t kTaskElements = 32 * 1024;
// Both chunks hold at most 2^7 blocks, so pairs of pairs stack 8 high.
inline constexpr int kDepth = 8;

// The offset of element `i` in row-major order over sizes and steps.
inline int64_t offset_of(int64_t i, int rank, const int64_t* size, const int64_t* step) {
  int64_t offset = 0;
  for (int d = rank - 1; d > 0; --d) {
    offset += i % size[d] * step[d];
    i /= size[d];
  }
  return rank > 0 ? offset + i * step[0] : 0;
}

template <class A>
A identity(Reduce op) {
  using Limits = std::numeric_limits<A>;
  switch (op) {
    case Reduce::sum: return A(0);
    case Reduce::prod: return A(1);
    case Reduce::max: return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
    case Reduce::min: break;
  }
  return Limits::has_infinity ? Limits::infinity() : Limits::max();
}
}  // namespace reduce_detail

}  // namespace levin::kernels

#define LEVIN_LEVEL_FILE "kernels/reduce/reduce.cuh"
#include "kernels/executor/each_level.h"

namespace levin::kernels::cpu {
LEVIN_PICK(reduce)
}  // namespace levin::kernels::cpu
#endif
#else
namespace levin::kernels::cpu::LEVIN_LEVEL {
namespace reduce_detail {
using namespace kernels::reduce_detail;

typedef int64_t Signed __attribute__((vector_size(LEVIN_VECTOR_BYTES)));
typedef uint64_t Unsigned __attribute__((vector_size(LEVIN_VECTOR_BYTES)));
// The type in which V adds and multiplies: integers wrap around, which only unsigned ones may.
template <class V>
struct Wrapping {
  using type = V;
};
template <>
struct Wrapping<int64_t> {
  using type = uint64_t;
};
template <>
struct Wrapping<Signed> {
  using type = Unsigned;
};

// The operations work on scalars and on vector registers alike.
struct Sum {
  template <class V>
  [[gnu::always_inline]] static V join(V a, V b) {
    using W = typename Wrapping<V>::type;
    return V(W(a) + W(b));
  }
};
struct Prod {
  template <class V>
  [[gnu::always_inline]] static V join(V a, V b) {
    using W = typename Wrapping<V>::type;
    return V(W(a) * W(b));
  }
};
// In two steps: g++ 12 makes no vector code of several joins with conditions of two comparisons.
struct Max {
  template <class V>
  [[gnu::always_inline]] static V join(V a, V b) {
    const V larger = a > b ? a : b;
    return a != a ? a : larger;
  }
};
struct Min {
  template <class V>
  [[gnu::always_inline]] static V join(V a, V b) {
    const V smaller = a < b ? a : b;
    return a != a ? a : smaller;
  }
};

// n elements, `step` apart, mapped, into `to`. shift: one value an element (shift_step 1) or for all (0).
template <class A>
using Load = void (*)(const void* x, int64_t step, A* to, int64_t n, const A* shift, int64_t shift_step, double p);

template <class T, class A, Map kMap>
void load(const void* from, int64_t step, A* to, int64_t n, [[maybe_unused]] const A* shift,
          [[maybe_unused]] int64_t shift_step, [[maybe_unused]] double p) {
  const T* x = static_cast<const T*>(from);
  if constexpr (kMap == Map::value && std::is_same_v<A, float> && !std::is_same_v<T, A>)
    if (step == 1) return static_cast<void>(wide_numbers(x, n, to));
  // Numbers of 16 bits are widened first, a block at a time: the loops below then are vector code.
  if constexpr (sizeof(T) == 2 && std::is_same_v<A, float> && kMap != Map::value && kMap != Map::nonzero) {
    if (step == 1) {
      constexpr int64_t kWide = 256;
      alignas(64) A wide[kWide];
      for (int64_t i = 0; i < n; i += kWide) {
        const int64_t count = std::min(kWide, n - i);
        wide_numbers(x + i, count, wide);
        load<A, A, kMap>(wide, 1, to + i, count, shift ? shift + i * shift_step : nullptr, shift_step, p);
      }
      return;
    }
  }
  const auto walk = [&](auto step_of_x, auto step_of_shift) {
    for (int64_t i = 0; i < n; ++i) {
      const T raw = x[i * step_of_x];
      if constexpr (kMap == Map::value) to[i] = static_cast<A>(raw);
      if constexpr (kMap == Map::nonzero) {
        if constexpr (std::is_integral_v<T>) {
          to[i] = raw != T(0);
        } else {
          to[i] = static_cast<Accum<T>>(raw) != 0;
        }
      }
      if constexpr (kMap == Map::abs) to[i] = std::fabs(static_cast<A>(raw));
      if constexpr (kMap == Map::square) to[i] = static_cast<A>(raw) * static_cast<A>(raw);
      if constexpr (kMap == Map::power) to[i] = std::pow(std::fabs(static_cast<A>(raw)), static_cast<A>(p));
      if constexpr (kMap == Map::deviation) {
        const A d = static_cast<A>(raw) - shift[i * step_of_shift];
        to[i] = d * d;
      }
      if constexpr (kMap == Map::exp) to[i] = math::exp(static_cast<A>(raw) - shift[i * step_of_shift]);
    }
  };
  using Zero = std::integral_constant<int64_t, 0>;
  using One = std::integral_constant<int64_t, 1>;
  if constexpr (kMap == Map::deviation || kMap == Map::exp) {
    if (step == 1) return shift_step == 0 ? walk(One{}, Zero{}) : walk(One{}, One{});
    return walk(step, shift_step);
  } else {
    return step == 1 ? walk(One{}, Zero{}) : walk(step, Zero{});
  }
}

// Sums of dense 16-bit numbers where they lie (see half_sums.cuh); null for other sources.
template <class A>
struct Halves {
  A (*sum)(const Cpu& on, const void* x, int64_t n) = nullptr;
  void (*columns)(const Cpu& on, const void* x, int64_t step, int64_t n, A* to, int64_t width) = nullptr;
};
template <class T>
float sum_halves(const Cpu& on, const void* x, int64_t n) {
  return cpu::half_sum(on, static_cast<const T*>(x), n);
}
template <class T>
void sum_half_columns(const Cpu& on, const void* x, int64_t step, int64_t n, float* to, int64_t width) {
  cpu::half_columns(on, static_cast<const T*>(x), step, n, to, width);
}

template <class A>
struct Source {
  const char* x;
  int64_t item;  // bytes of an element of x
  Load<A> load;
  bool is_direct;  // x holds As and the map is the identity
  const A* shift;
  double p;
  const Cpu& on;
  Halves<A> halves = {};

  // Where the elements of that output lie one behind another as As, else null.
  const A* run(const ReducePlan& plan, int64_t base) const {
    const bool dense = plan.reduced == 0 || (plan.reduced == 1 && plan.reduced_step[0] == 1);
    return is_direct && dense ? reinterpret_cast<const A*>(x + base * item) : nullptr;
  }
  // Elements [i, i + n) of the output whose elements start at `base`; `buffer` has room for n.
  const A* row(const ReducePlan& plan, int64_t base, int64_t i, int64_t n, A* buffer, int64_t output) const {
    const A* s = shift ? shift + output : nullptr;
    const auto inner = static_cast<size_t>(plan.reduced - 1);
    if (plan.reduced <= 1) {
      const int64_t step = plan.reduced ? plan.reduced_step[0] : 1;
      const char* from = x + (base + i * step) * item;
      if (is_direct && step == 1) return reinterpret_cast<const A*>(from);
      load(from, step, buffer, n, s, 0, p);
      return buffer;
    }
    const int64_t size = plan.reduced_size[inner], step = plan.reduced_step[inner];
    for (int64_t done = 0; done < n;) {
      const int64_t within = (i + done) % size, length = std::min(size - within, n - done);
      const int64_t outer = reduce_detail::offset_of((i + done) / size, plan.reduced - 1, plan.reduced_size.data(),
                                                     plan.reduced_step.data());
      const char* from = x + (base + outer + within * step) * item;
      if (is_direct && step == 1 && length == n) return reinterpret_cast<const A*>(from);
      load(from, step, buffer + done, length, s, 0, p);
      done += length;
    }
    return buffer;
  }
};

// The lanes of a vector joined by halves, in registers.
template <class Op, int kBytes, class A, class V>
[[gnu::always_inline]] inline A joined_lanes(V v) {
  if constexpr (kBytes == sizeof(A)) {
    return v[0];
  } else {
    typedef A Half __attribute__((vector_size(kBytes / 2)));
    Half parts[2];
    std::memcpy(parts, &v, sizeof v);
    return joined_lanes<Op, kBytes / 2, A>(Op::join(parts[0], parts[1]));
  }
}

// Four chains of vectors, joined in pairs; then what is left over.
template <class Op, class A>
A block(const A* x, int64_t n) {
  constexpr int64_t kLanes = LEVIN_VECTOR_BYTES / int64_t{sizeof(A)};
  typedef A Vector __attribute__((vector_size(LEVIN_VECTOR_BYTES)));
  int64_t i = 0;
  A result;
  if (n >= kLanes) {
    Vector v0;
    std::memcpy(&v0, x, sizeof v0);
    i = kLanes;
    if (n >= 4 * kLanes) {
      Vector v1, v2, v3;
      std::memcpy(&v1, x + kLanes, sizeof v1);
      std::memcpy(&v2, x + 2 * kLanes, sizeof v2);
      std::memcpy(&v3, x + 3 * kLanes, sizeof v3);
      for (i = 4 * kLanes; i + 4 * kLanes <= n; i += 4 * kLanes) {
        Vector w0, w1, w2, w3;
        std::memcpy(&w0, x + i, sizeof w0);
        std::memcpy(&w1, x + i + kLanes, sizeof w1);
        std::memcpy(&w2, x + i + 2 * kLanes, sizeof w2);
        std::memcpy(&w3, x + i + 3 * kLanes, sizeof w3);
        v0 = Op::join(v0, w0);
        v1 = Op::join(v1, w1);
        v2 = Op::join(v2, w2);
        v3 = Op::join(v3, w3);
      }
      v0 = Op::join(Op::join(v0, v1), Op::join(v2, v3));
    }
    for (; i + kLanes <= n; i += kLanes) {
      Vector w;
      std::memcpy(&w, x + i, sizeof w);
      v0 = Op::join(v0, w);
    }
    result = joined_lanes<Op, LEVIN_VECTOR_BYTES, A>(v0);
  } else {
    result = x[0];
    i = 1;
  }
  for (; i < n; ++i) result = Op::join(result, x[i]);
  return result;
}

// Elements [begin, end) of one output; end > begin, at most kRowChunk of them.
template <class Op, class A>
A row_range(const Source<A>& source, const ReducePlan& plan, int64_t base, int64_t begin, int64_t end, A* buffer,
            int64_t output) {
  A pairs[kDepth];
  int depth = 0;
  int64_t blocks = 0;
  const A* const run = source.run(plan, base);
  if (run && end - begin <= kBlock) return block<Op>(run + begin, end - begin);
  const bool in_place = source.halves.sum && (plan.reduced == 0 || (plan.reduced == 1 && plan.reduced_step[0] == 1));
  for (int64_t i = begin; i < end; i += kBlock) {
    const int64_t n = std::min(kBlock, end - i);
    pairs[depth++] = in_place ? source.halves.sum(source.on, source.x + (base + i) * source.item, n)
                              : block<Op>(run ? run + i : source.row(plan, base, i, n, buffer, output), n);
    for (int64_t b = ++blocks; (b & 1) == 0; b >>= 1, --depth)
      pairs[depth - 2] = Op::join(pairs[depth - 2], pairs[depth - 1]);
  }
  for (; depth > 1; --depth) pairs[depth - 2] = Op::join(pairs[depth - 2], pairs[depth - 1]);
  return pairs[0];
}

template <class Op, class A>
void rows(const Cpu& on, const Source<A>& source, const ReducePlan& plan, A* out) {
  const int64_t chunks = (plan.n + kRowChunk - 1) / kRowChunk;
  const auto base_of = [&](int64_t output) {
    return reduce_detail::offset_of(output, plan.kept, plan.kept_size.data(), plan.kept_step.data());
  };
  if (chunks == 1) {
    on.parallel_for(plan.outputs, std::max<int64_t>(1, kTaskElements / plan.n), [&](int64_t begin, int64_t end) {
      alignas(64) A buffer[kBlock];
      for (int64_t o = begin; o < end; ++o) out[o] = row_range<Op>(source, plan, base_of(o), 0, plan.n, buffer, o);
    });
    return;
  }
  std::vector<A> partial(static_cast<size_t>(plan.outputs * chunks));
  on.parallel_for(plan.outputs * chunks, 1, [&](int64_t begin, int64_t end) {
    alignas(64) A buffer[kBlock];
    for (int64_t t = begin; t < end; ++t) {
      const int64_t o = t / chunks, first = t % chunks * kRowChunk;
      partial[static_cast<size_t>(t)] =
          row_range<Op>(source, plan, base_of(o), first, std::min(plan.n, first + kRowChunk), buffer, o);
    }
  });
  for (int64_t o = 0; o < plan.outputs; ++o) {
    A* p = partial.data() + o * chunks;
    for (int64_t half = 1; half < chunks; half *= 2)
      for (int64_t c = 0; c + half < chunks; c += 2 * half) p[c] = Op::join(p[c], p[c + half]);
    out[o] = p[0];
  }
}

// Rows of `width` <= kWideTile columns, one below the other.
template <class A>
struct Rows {
  const A* direct;  // row r stands at direct + r * step; null: rows are loaded
  int64_t step;
  const Source<A>* source = nullptr;
  const ReducePlan* plan = nullptr;
  int64_t base = 0, column_step = 1, output = 0;

  const A* row(int64_t r, int64_t width, A* buffer) const {
    if (direct) return direct + r * step;
    const int64_t offset = plan->reduced == 1 ? r * step
                                              : reduce_detail::offset_of(r, plan->reduced, plan->reduced_size.data(),
                                                                         plan->reduced_step.data());
    const char* from = source->x + (base + offset) * source->item;
    if (source->is_direct && column_step == 1) return reinterpret_cast<const A*>(from);
    source->load(from, column_step, buffer, width, source->shift ? source->shift + output : nullptr, 1, source->p);
    return buffer;
  }
  // Joins n rows from r on in `to` where that needs no buffer.
  bool join_in_place(int64_t r, int64_t n, int64_t width, A* to) const {
    if (!source || !source->halves.columns || column_step != 1 || plan->reduced > 1) return false;
    source->halves.columns(source->on, source->x + (base + r * step) * source->item, step, n, to, width);
    return true;
  }
};

// to[j] = to[j] joined with join(V{}, j), where V is a vector at j or a number. (Of several joins in a loop over
// numbers g++ 12 makes three times the instructions.)
template <class Op, class A, class Join>
[[gnu::always_inline]] inline void join_columns(int64_t width, A* to, const Join& join) {
  each_vector<A>(
      width, [=]<class V>(V v, int64_t j)
                 __attribute__((always_inline)) { put(to + j, Op::join(LEVIN_LEVEL::load<V>(to + j), join(v, j))); });
}
template <class Op, class A>
void join_row(int64_t width, A* to, const A* from) {
  join_columns<Op>(
      width, to, [=]<class V>(V, int64_t j) __attribute__((always_inline)) { return LEVIN_LEVEL::load<V>(from + j); });
}

// Joins rows [begin, end), at least one and at most kChunkRows, into out. tile >= width: kTile or kWideTile.
template <class Op, class A>
void column_range(const Rows<A>& x, int64_t tile, int64_t begin, int64_t end, int64_t width, A* out) {
  alignas(64) A pair_room[kDepth * kWideTile];
  alignas(64) A row_room[4 * kWideTile];
  const auto pair = [&](int d) { return pair_room + d * tile; };
  const auto load_row = [&](int64_t r, int k) { return x.row(r, width, row_room + k * tile); };
  int depth = 0;
  int64_t blocks = 0;
  const auto join_pair = [&](int d) { join_row<Op>(width, pair(d), pair(d + 1)); };
  for (int64_t r0 = begin; r0 < end; r0 += kBlockRows) {
    const int64_t last = std::min(end, r0 + kBlockRows);
    A* const sum = pair(depth++);
    int64_t r = last;
    if (!x.join_in_place(r0, last - r0, width, sum)) {
      std::copy_n(load_row(r0, 0), width, sum);
      r = r0 + 1;
    }
    for (; r + 4 <= last; r += 4) {
      const A *a = load_row(r, 0), *b = load_row(r + 1, 1), *c = load_row(r + 2, 2), *d = load_row(r + 3, 3);
      join_columns<Op>(
          width, sum, [=]<class V>(V, int64_t j) __attribute__((always_inline)) {
            const auto at = [j](const A* row) __attribute__((always_inline)) { return LEVIN_LEVEL::load<V>(row + j); };
            return Op::join(Op::join(at(a), at(b)), Op::join(at(c), at(d)));
          });
    }
    for (; r < last; ++r) join_row<Op>(width, sum, load_row(r, 0));
    for (int64_t k = ++blocks; (k & 1) == 0; k >>= 1, --depth) join_pair(depth - 2);
  }
  for (; depth > 1; --depth) join_pair(depth - 2);
  std::copy_n(pair(0), width, out);
}

// The innermost kept dimension is the one with the smallest step: walk along it.
template <class Op, class A>
void columns(const Cpu& on, const Source<A>& source, const ReducePlan& plan, A* out) {
  const auto inner = static_cast<size_t>(plan.kept - 1);
  const int64_t width = plan.kept_size[inner], step = plan.kept_step[inner], outer = plan.outputs / width;
  const bool has_halves = source.halves.columns && step == 1 && plan.reduced <= 1;
  const bool is_long = source.is_direct && step == 1 && plan.reduced <= 1 && plan.n > 4 * kBlockRows;
  const bool is_wide = (has_halves || is_long) && width > kTile;
  const int64_t columns_at_once = is_wide ? kWideTile : kTile;
  const int64_t sixteenth = (plan.n + 16 * kBlockRows - 1) / (16 * kBlockRows) * kBlockRows;
  const int64_t rows_of_chunk = is_wide ? std::clamp<int64_t>(sixteenth, 4 * kBlockRows, kChunkRows / 4) : kChunkRows;
  const int64_t tiles = (width + columns_at_once - 1) / columns_at_once,
                chunks = (plan.n + rows_of_chunk - 1) / rows_of_chunk;
  const int64_t work = std::min(plan.n, rows_of_chunk) * std::min(width, columns_at_once);
  // Narrow dense rows: several of them side by side fill the vectors.
  const bool is_dense = (source.is_direct || has_halves) && plan.reduced == 1 && step == 1 &&
                        plan.reduced_step[0] == width && 2 * width <= kTile;
  std::vector<A> partial(chunks > 1 ? static_cast<size_t>(plan.outputs * chunks) : 0);
  on.parallel_for(outer * tiles * chunks, std::max<int64_t>(1, kTaskElements / work), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t chunk = t % chunks, tile = t / chunks % tiles, o = t / chunks / tiles;
      const int64_t first = tile * columns_at_once, w = std::min(columns_at_once, width - first);
      const int64_t base =
          reduce_detail::offset_of(o, plan.kept - 1, plan.kept_size.data(), plan.kept_step.data()) + first * step;
      int64_t row = chunk * rows_of_chunk;
      const int64_t last = std::min(plan.n, row + rows_of_chunk);
      A* to = (chunks > 1 ? partial.data() + chunk * plan.outputs : out) + o * width + first;
      const int64_t side = is_dense ? kTile / width : 1;  // rows taken as one
      const Rows<A> all{.direct = source.is_direct && step == 1 && plan.reduced == 1
                                      ? reinterpret_cast<const A*>(source.x) + base
                                      : nullptr,
                        .step = plan.reduced_step[0],
                        .source = &source,
                        .plan = &plan,
                        .base = base,
                        .column_step = step,
                        .output = o * width + first};
      if (side > 1 && last - row >= 2 * side) {
        const int64_t groups = (last - row) / side;
        alignas(64) A joined[kTile];
        Rows<A> grouped = all;
        if (grouped.direct) grouped.direct += row * width;
        grouped.base += row * width;
        grouped.step = side * width;
        column_range<Op>(grouped, kTile, 0, groups, side * width, joined);
        column_range<Op>(Rows<A>{.direct = joined, .step = width}, kTile, 0, side, width, to);
        row += groups * side;
        if (row < last) {
          column_range<Op>(all, kTile, row, last, width, joined);
          for (int64_t j = 0; j < width; ++j) to[j] = Op::join(to[j], joined[j]);
        }
      } else {
        column_range<Op>(all, columns_at_once, row, last, w, to);
      }
    }
  });
  if (chunks == 1) return;
  for (int64_t half = 1; half < chunks; half *= 2) {
    for (int64_t c = 0; c + half < chunks; c += 2 * half) {
      A *a = partial.data() + c * plan.outputs, *b = a + half * plan.outputs;
      for (int64_t o = 0; o < plan.outputs; ++o) a[o] = Op::join(a[o], b[o]);
    }
  }
  std::copy_n(partial.data(), plan.outputs, out);
}

template <class Op, class A>
void run(const Cpu& on, const Source<A>& source, const ReducePlan& plan, A* out) {
  const auto reach = [](int64_t step) { return step == 0 ? std::numeric_limits<int64_t>::max() : std::abs(step); };
  // One element an output: a walk along the outputs, too.
  const bool by_column =
      plan.kept > 0 && (plan.reduced == 0 || reach(plan.kept_step[static_cast<size_t>(plan.kept - 1)]) <
                                                 reach(plan.reduced_step[static_cast<size_t>(plan.reduced - 1)]));
  if (by_column) return columns<Op>(on, source, plan, out);
  rows<Op>(on, source, plan, out);
}

template <class T, class A>
Load<A> load_of(Map map) {
  if constexpr (std::is_same_v<A, ReduceAccum<T>>) {
    if constexpr (std::is_floating_point_v<A>) {
      switch (map) {
        case Map::abs: return load<T, A, Map::abs>;
        case Map::square: return load<T, A, Map::square>;
        case Map::power: return load<T, A, Map::power>;
        case Map::deviation: return load<T, A, Map::deviation>;
        case Map::exp: return load<T, A, Map::exp>;
        default: break;
      }
    }
    if (map == Map::value) return load<T, A, Map::value>;
  }
  if constexpr (std::is_same_v<A, int64_t>) return load<T, A, Map::nonzero>;
  return nullptr;  // not reached: the ops ask only for the maps above
}

}  // namespace reduce_detail

template <class T, class A>
void reduce(const Cpu& on, const T* x, const ReducePlan& plan, Reduce op, Map map, A* out, const A* shift = nullptr,
            double p = 0) {
  if (plan.outputs == 0) return;
  if (plan.n == 0) {
    std::fill_n(out, plan.outputs, kernels::reduce_detail::identity<A>(op));
    return;
  }
  reduce_detail::Source<A> source{.x = reinterpret_cast<const char*>(x),
                                  .item = int64_t{sizeof(T)},
                                  .load = reduce_detail::load_of<T, A>(map),
                                  .is_direct = std::is_same_v<T, A> && map == Map::value,
                                  .shift = shift,
                                  .p = p,
                                  .on = on};
  if constexpr (std::is_same_v<A, float> && !std::is_same_v<T, A>)
    if (op == Reduce::sum && map == Map::value)
      source.halves = {reduce_detail::sum_halves<T>, reduce_detail::sum_half_columns<T>};
  switch (op) {
    case Reduce::sum: return reduce_detail::run<reduce_detail::Sum>(on, source, plan, out);
    case Reduce::prod: return reduce_detail::run<reduce_detail::Prod>(on, source, plan, out);
    case Reduce::max: return reduce_detail::run<reduce_detail::Max>(on, source, plan, out);
    case Reduce::min: return reduce_detail::run<reduce_detail::Min>(on, source, plan, out);
  }
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
