// Resampling of images along their axes. Along an axis every output is a weighted sum of neighbouring inputs,
//
//   y[o] = sum over t of weight[t][o] x[start[o] + t],   0 <= t < taps
//
// whose starts do not fall with o. So each input is seen by a range of outputs, and the adjoint (the gradient) has the
// same form. All contiguous; T: float, double, f16, bf16; sums in A = Accum<T>. A tap of weight 0 is left out: its
// infinity or NaN would spread.
//
//   resample_axis<In, Out>(on, x, y, outer, inner, table)   x [outer, in, inner] -> y [outer, out, inner]
//   resample_plane<In, Out>(on, x, y, planes, h, w)         x [planes, h.in, w.in] -> y [planes, h.out, w.out]
//   resample_nearest(on, const U* x, U* y, planes, axes)    copies: U is the unsigned integer as wide as the element
//
// In and Out are T or A. On the CPU a table is made by CpuTable. resample_device.cuh has the kernels of devices.
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_RESAMPLE_CUH
#define LEVIN_KERNELS_RESAMPLE_CUH

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/executor/cpu.h"
#include "kernels/executor/hd.h"
#include "kernels/lib/scratch.h"
#include "levin/dtype.h"

namespace levin::kernels {

enum class ResampleKind : std::uint8_t { copy, nearest, nearest_exact, linear, cubic, area, linear_aa, cubic_aa };

// The windows along one axis. Where `in` equals `out` and nothing moves, the kind is `copy`.
struct ResampleAxis {
  std::int64_t in = 1, out = 1;
  ResampleKind kind = ResampleKind::copy;
  double scale = 1;            // inputs for each output
  bool align_corners = false;  // the first and the last elements of both sides have the same places

  [[nodiscard]] bool copies() const { return kind == ResampleKind::copy; }
  [[nodiscard]] bool antialias() const { return kind == ResampleKind::linear_aa || kind == ResampleKind::cubic_aa; }
  // Half the width of an antialiasing filter.
  [[nodiscard]] LEVIN_HD double support() const {
    return (kind == ResampleKind::linear_aa ? 1.0 : 2.0) * (scale > 1 ? scale : 1.0);
  }
  // An upper bound of the taps of each output; at most `in`.
  [[nodiscard]] std::int64_t taps() const {
    std::int64_t n = 1;
    if (kind == ResampleKind::linear) n = 2;
    if (kind == ResampleKind::cubic) n = 4;
    if (kind == ResampleKind::area) n = in % out == 0 ? in / out : in / out + 2;
    if (antialias()) n = support() < double(in) ? 2 * static_cast<std::int64_t>(std::ceil(support())) + 1 : in;
    return std::min(n, in);
  }
  // The input nearest to output o, as PyTorch counts: in float.
  [[nodiscard]] LEVIN_HD std::int64_t nearest(std::int64_t o) const {
    if (kind == ResampleKind::copy) return o;
    const auto step = static_cast<float>(scale);
    std::int64_t at;
    if (kind == ResampleKind::nearest_exact) {
      at = static_cast<std::int64_t>((static_cast<float>(o) + 0.5f) * step);
    } else {
      if (out == in) return o;
      if (out == 2 * in) return o >> 1;
      at = static_cast<std::int64_t>(static_cast<float>(o) * step);
    }
    return at < in ? at : in - 1;
  }

  // The start of output o, at most in - taps, and its weights at w[t * step].
  template <class A>
  LEVIN_HD std::int64_t window(std::int64_t o, std::int64_t taps, A* w, std::int64_t step) const {
    for (std::int64_t t = 0; t < taps; ++t) w[t * step] = A(0);
    const auto clamped = [](std::int64_t at, std::int64_t most) { return at < 0 ? 0 : at < most ? at : most; };
    std::int64_t start = 0;
    switch (kind) {
      case ResampleKind::copy:
      case ResampleKind::nearest:
      case ResampleKind::nearest_exact:
        start = nearest(o);
        w[0] = A(1);
        break;
      case ResampleKind::linear: {
        double at = align_corners ? scale * double(o) : scale * (double(o) + 0.5) - 0.5;
        if (at < 0) at = 0;
        const std::int64_t first = clamped(floor_of(at), in - 1), second = clamped(first + 1, in - 1);
        const double rest = at - double(first), u = rest < 1 ? rest : 1.0;
        start = clamped(first, in - taps);
        w[(first - start) * step] += A(1 - u);
        w[(second - start) * step] += A(u);
        break;
      }
      case ResampleKind::cubic: {
        const double at = align_corners ? scale * double(o) : scale * (double(o) + 0.5) - 0.5;
        const std::int64_t first = floor_of(at) - 1;
        const double u = at - double(first + 1);
        start = clamped(first, in - taps);
        for (int k = 0; k < 4; ++k)
          w[(clamped(first + k, in - 1) - start) * step] += A(cubic(u < k - 1 ? k - 1 - u : u - (k - 1), -0.75));
        break;
      }
      case ResampleKind::area: {
        const std::int64_t begin = o * in / out, end = ((o + 1) * in + out - 1) / out;
        start = clamped(begin, in - taps);
        for (std::int64_t i = begin; i < end; ++i) w[(i - start) * step] = A(1 / double(end - begin));
        break;
      }
      case ResampleKind::linear_aa:
      case ResampleKind::cubic_aa: {
        const double center = scale * (double(o) + 0.5), reach = support(), narrow = scale > 1 ? 1 / scale : 1.0;
        const std::int64_t begin = clamped(floor_of(center - reach + 0.5), in - 1);
        std::int64_t end = clamped(floor_of(center + reach + 0.5), in);
        start = clamped(begin, in - taps);
        if (end > start + taps) end = start + taps;
        double sum = 0;
        for (std::int64_t i = begin; i < end; ++i) sum += filter((double(i) - center + 0.5) * narrow);
        for (std::int64_t i = begin; i < end; ++i)
          w[(i - start) * step] = A(filter((double(i) - center + 0.5) * narrow) / sum);
        break;
      }
    }
    return start;
  }

 private:
  // x86-64 without SSE4 has no instruction for floor.
  [[nodiscard]] LEVIN_HD static std::int64_t floor_of(double x) {
    const auto cut = static_cast<std::int64_t>(x);
    return cut - (x < double(cut));
  }
  // Keys, "Cubic convolution interpolation for digital image processing", 1981, at distance x >= 0.
  [[nodiscard]] LEVIN_HD static double cubic(double x, double a) {
    if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a : 0.0;
  }
  [[nodiscard]] LEVIN_HD double filter(double x) const {
    const double far = x < 0 ? -x : x;
    if (kind == ResampleKind::cubic_aa) return cubic(far, -0.5);
    return far < 1 ? 1 - far : 0.0;
  }
};

// Depth, height and width.
using ResampleAxes = std::array<ResampleAxis, 3>;

namespace cpu {

// One axis: starts [padded], at most in - taps, and weights [taps, padded]; those after the last output are 0.
template <class A>
struct TapTable {
  std::int64_t in = 1, out = 1, taps = 1;
  const std::int32_t* starts = nullptr;  // null: every output is its input
  const A* weights = nullptr;
  // A short row is computed in full registers.
  [[nodiscard]] std::int64_t padded() const { return out < 128 ? (out + 7) / 8 * 8 : out; }
  // Of outputs [even_begin, even_end) each starts `stride` after the one before; 0: none do, or it is neither 1 nor 2.
  std::int64_t stride = 0, even_begin = 0, even_end = 0;
};

enum class Direction : bool { forward, adjoint };

// The memory of a TapTable.
template <class A>
class CpuTable {
 public:
  CpuTable(const ResampleAxis& axis, Direction direction) {
    table_ = {.in = axis.in, .out = axis.out};
    if (axis.copies()) return;
    table_.taps = axis.taps();
    Memory& to = memory_.emplace(table_);
    for (std::int64_t o = 0; o < axis.out; ++o)
      to.starts()[o] = static_cast<std::int32_t>(axis.window(o, table_.taps, to.weights() + o, table_.padded()));
    take(to);
    if (direction == Direction::adjoint) turn();
    find_even();
  }
  [[nodiscard]] const TapTable<A>& get() const { return table_; }

 private:
  class Memory {
   public:
    explicit Memory(const TapTable<A>& t)
        : weights_(static_cast<std::size_t>(t.taps * t.padded()) * sizeof(A)),
          starts_(static_cast<std::size_t>(t.padded()) * sizeof(std::int32_t)) {
      std::fill_n(weights(), t.taps * t.padded(), A(0));
      std::fill_n(starts(), t.padded(), 0);
    }
    [[nodiscard]] A* weights() const { return weights_.as<A>(); }
    [[nodiscard]] std::int32_t* starts() const { return starts_.as<std::int32_t>(); }

   private:
    lib::Scratch weights_, starts_;
  };
  void take(const Memory& memory) {
    table_.starts = memory.starts();
    table_.weights = memory.weights();
  }
  // The outputs that see an input become its taps.
  void turn() {
    const TapTable<A> from = table_;
    const auto each = [&](const auto& f) {
      for (std::int64_t o = 0; o < from.out; ++o) {
        for (std::int64_t t = 0; t < from.taps; ++t) {
          const A weight = from.weights[t * from.padded() + o];
          if (weight != A(0)) f(static_cast<std::int32_t>(o), from.starts[o] + t, weight);
        }
      }
    };
    const lib::Scratch ends(static_cast<std::size_t>(2 * from.in) * sizeof(std::int32_t));
    std::int32_t *const first = ends.as<std::int32_t>(), *const last = first + from.in;
    std::fill(first, last, -1);
    each([&](std::int32_t o, std::int64_t i, A) {
      if (first[i] < 0) first[i] = o;
      last[i] = o;
    });
    table_ = {.in = from.out, .out = from.in};
    std::int32_t before = 0;  // where an input that no output sees starts
    for (std::int64_t i = 0; i < from.in; ++i) {
      if (first[i] < 0) first[i] = last[i] = before;
      before = first[i];
      table_.taps = std::max<std::int64_t>(table_.taps, last[i] - first[i] + 1);
    }
    Memory& to = turned_.emplace(table_);
    for (std::int64_t i = 0; i < from.in; ++i)
      to.starts()[i] = std::min(first[i], static_cast<std::int32_t>(from.out - table_.taps));
    const std::int64_t step = table_.padded();
    each([&](std::int32_t o, std::int64_t i, A weight) { to.weights()[(o - to.starts()[i]) * step + i] = weight; });
    take(to);
    memory_.reset();
  }

  // Around the middle: the ends have fewer neighbours.
  void find_even() {
    const std::int64_t middle = table_.out / 2;
    if (middle + 1 >= table_.out) return;
    const std::int32_t* const starts = table_.starts;
    const std::int32_t stride = starts[middle + 1] - starts[middle];
    if (stride != 1 && stride != 2) return;
    table_.stride = stride;
    table_.even_begin = middle;
    table_.even_end = middle + 2;
    while (table_.even_begin > 0 && starts[table_.even_begin] - starts[table_.even_begin - 1] == stride)
      --table_.even_begin;
    while (table_.even_end < table_.out && starts[table_.even_end] - starts[table_.even_end - 1] == stride)
      ++table_.even_end;
  }

  TapTable<A> table_;
  std::optional<Memory> memory_, turned_;
};

inline constexpr std::int64_t kResampleTask = 8 * 1024;    // elements written by one task, at least a block
inline constexpr std::int64_t kResampleBlock = 32 * 1024;  // of a plane whose rows become more

}  // namespace cpu
}  // namespace levin::kernels

#define LEVIN_LEVEL_FILE "kernels/image/resample.cuh"
#include "kernels/executor/each_level.h"

namespace levin::kernels::cpu {
// Registers of 64 bytes make none of them faster.
#if LEVIN_X86_LEVELS
#define LEVIN_PICK_V3(f) LEVIN_PICK_IF(f, false)
#else
#define LEVIN_PICK_V3(f) LEVIN_PICK(f)
#endif
LEVIN_PICK_V3(resample_axis)
LEVIN_PICK_V3(resample_plane)
LEVIN_PICK_V3(resample_nearest)
#undef LEVIN_PICK_V3
}  // namespace levin::kernels::cpu

#endif  // LEVIN_KERNELS_RESAMPLE_CUH
#else

namespace levin::kernels::cpu::LEVIN_LEVEL {

// y = the sum of K rows of n elements, each times its weight.
template <int K, class In, class Out, class A>
void add_rows(const In* const* rows, const A* w, std::int64_t n, Out* y) {
  const In* const a = rows[0];
  const In* const b = rows[K > 1 ? 1 : 0];
  const In* const c = rows[K > 2 ? 2 : 0];
  const In* const d = rows[K > 3 ? 3 : 0];
  const A wa = w[0], wb = w[K > 1 ? 1 : 0], wc = w[K > 2 ? 2 : 0], wd = w[K > 3 ? 3 : 0];
#pragma GCC ivdep
  for (std::int64_t k = 0; k < n; ++k) {
    A sum = wa * A(a[k]);
    if constexpr (K > 1) sum += wb * A(b[k]);
    if constexpr (K > 2) sum += wc * A(c[k]);
    if constexpr (K > 3) sum += wd * A(d[k]);
    y[k] = Out(sum);
  }
}

// The same of the rows x, x + step, ... that have a weight; w of the first, the next ones w_step further each.
template <class In, class Out, class A>
void weighted_rows(const In* x, std::int64_t step, const A* w, std::int64_t w_step, std::int64_t taps, std::int64_t n,
                   Out* y) {
  constexpr std::int64_t kPiece = 1024;
  const In* rows[4];
  A weights[4];
  int found = 0;
  for (std::int64_t t = 0; t < taps && found <= 4; ++t) {
    const A weight = w[t * w_step];
    if (weight == A(0)) continue;
    if (found < 4) {
      rows[found] = x + t * step;
      weights[found] = weight;
    }
    ++found;
  }
  switch (found) {
    case 0: std::fill(y, y + n, Out(0.0f)); return;
    case 1: return add_rows<1>(rows, weights, n, y);
    case 2: return add_rows<2>(rows, weights, n, y);
    case 3: return add_rows<3>(rows, weights, n, y);
    case 4: return add_rows<4>(rows, weights, n, y);
    default: break;
  }
  A sums[kPiece];
  for (std::int64_t first = 0; first < n; first += kPiece) {
    const std::int64_t m = std::min(kPiece, n - first);
    std::fill(sums, sums + m, A(0));
    for (std::int64_t t = 0; t < taps; ++t) {
      const A weight = w[t * w_step];
      if (weight == A(0)) continue;
      const In* const from = x + t * step + first;
#pragma GCC ivdep
      for (std::int64_t k = 0; k < m; ++k) sums[k] += weight * A(from[k]);
    }
    for (std::int64_t k = 0; k < m; ++k) y[first + k] = Out(sums[k]);
  }
}

// Outputs [first, last) of a row, each of K taps; S is the distance of their starts, or 0 for any.
template <int K, int S, class Out, class A>
void fixed_columns(const A* row, const TapTable<A>& w, std::int64_t first, std::int64_t last, Out* y) {
  const std::int64_t n = w.padded();
  const std::int32_t* const starts = w.starts;
  const A* const weights = w.weights;
  const A* const even = row + (S > 0 ? starts[first] - S * first : 0);
#pragma GCC ivdep
  for (std::int64_t o = first; o < last; ++o) {
    A sum = 0;
#pragma GCC unroll 4
    for (int t = 0; t < K; ++t) {
      const A weight = weights[t * n + o], product = weight * (S > 0 ? even[S * o + t] : row[starts[o] + t]);
      sum += weight != A(0) ? product : A(0);
    }
    y[o] = Out(sum);
  }
}
template <int K, class Out, class A>
void fixed_columns(const A* row, const TapTable<A>& w, std::int64_t n, Out* y) {
  if (w.stride == 0) return fixed_columns<K, 0>(row, w, 0, n, y);
  fixed_columns<K, 0>(row, w, 0, w.even_begin, y);
  if (w.stride == 1)
    fixed_columns<K, 1>(row, w, w.even_begin, w.even_end, y);
  else
    fixed_columns<K, 2>(row, w, w.even_begin, w.even_end, y);
  fixed_columns<K, 0>(row, w, w.even_end, n, y);
}
// The first n outputs of a row, w.out or w.padded(), by the table of its axis.
template <class Out, class A>
void weighted_columns(const A* row, const TapTable<A>& w, std::int64_t n, Out* y) {
  switch (w.taps) {
    case 1: return fixed_columns<1>(row, w, n, y);
    case 2: return fixed_columns<2>(row, w, n, y);
    case 3: return fixed_columns<3>(row, w, n, y);
    case 4: return fixed_columns<4>(row, w, n, y);
    default: break;
  }
  constexpr std::int64_t kBlock = 64;
  A sums[kBlock];
  for (std::int64_t first = 0; first < n; first += kBlock) {
    const std::int64_t m = std::min(kBlock, n - first);
    std::fill(sums, sums + m, A(0));
    const std::int32_t* const starts = w.starts + first;
    for (std::int64_t t = 0; t < w.taps; ++t) {
      const A* const weights = w.weights + t * w.padded() + first;
#pragma GCC ivdep
      for (std::int64_t k = 0; k < m; ++k) {
        const A product = weights[k] * row[starts[k] + std::int32_t(t)];
        sums[k] += weights[k] != A(0) ? product : A(0);
      }
    }
    for (std::int64_t k = 0; k < m; ++k) y[first + k] = Out(sums[k]);
  }
}

template <class In, class Out, class A>
void resample_axis(const Cpu& on, const In* x, Out* y, std::int64_t outer, std::int64_t inner,
                   const TapTable<A>& table) {
  const std::int64_t grain = std::max<std::int64_t>(1, kResampleTask / (inner * std::min<std::int64_t>(8, table.taps)));
  on.parallel_for(outer * table.out, grain, [=, &table](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t at = row / table.out, o = row - at * table.out, start = table.starts ? table.starts[o] : o;
      const In* const from = x + (at * table.in + start) * inner;
      const A one = 1;
      weighted_rows(from, inner, table.weights ? table.weights + o : &one, table.padded(), table.taps, inner,
                    y + row * inner);
    }
  });
}

// A row as A: itself, or a copy in `room`.
template <class In, class A>
const A* widened(const In* row, std::int64_t n, A* room) {
  if constexpr (std::is_same_v<In, A>) {
    return row;
  } else {
#pragma GCC ivdep
    for (std::int64_t k = 0; k < n; ++k) room[k] = A(row[k]);
    return room;
  }
}

// Note [Order of two axes]
// Sums along a row read by index, those of rows stream. So the rows are added first where they become fewer, and last
// where they become more.
template <class In, class Out, class A>
void resample_plane(const Cpu& on, const In* x, Out* y, std::int64_t planes, const TapTable<A>& h,
                    const TapTable<A>& w) {
  if (!w.starts) return LEVIN_LEVEL::resample_axis(on, x, y, planes, w.in, h);
  if (!h.starts || h.out <= h.in) {
    const std::int64_t grain = std::max<std::int64_t>(1, kResampleTask / (w.in + w.out));
    on.parallel_for(planes * h.out, grain, [&](std::int64_t begin, std::int64_t end) {
      const lib::Scratch memory(static_cast<std::size_t>(w.in) * sizeof(A));
      A* const room = memory.as<A>();
      for (std::int64_t line = begin; line < end; ++line) {
        const std::int64_t plane = line / h.out, r = line - plane * h.out;
        const In* const from = x + (plane * h.in + (h.starts ? h.starts[r] : r)) * w.in;
        const A* row = room;
        if (h.starts)
          weighted_rows(from, w.in, h.weights + r, h.padded(), h.taps, w.in, room);
        else
          row = widened(from, w.in, room);
        weighted_columns(row, w, w.out, y + line * w.out);
      }
    });
    return;
  }
  const std::int64_t block = std::clamp<std::int64_t>(kResampleBlock / w.out, 8, std::max<std::int64_t>(8, h.out)),
                     blocks = (h.out + block - 1) / block,
                     grain = std::max<std::int64_t>(1, kResampleTask / (block * w.out));
  // The rows [top, bottom) of x that outputs [first, first + block) see.
  const auto seen = [&](std::int64_t first) {
    const auto ends = std::minmax_element(h.starts + first, h.starts + std::min(h.out, first + block));
    return std::pair{std::int64_t{*ends.first}, *ends.second + h.taps};
  };
  std::int64_t most = 0;
  for (std::int64_t b = 0; b < blocks; ++b) {
    const auto [top, bottom] = seen(b * block);
    most = std::max(most, bottom - top);
  }
  on.parallel_for(planes * blocks, grain, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t wide = w.padded();
    const lib::Scratch memory(static_cast<std::size_t>(most * (w.in + wide)) * sizeof(A));
    A *const room = memory.as<A>(), *const rows = room + most * w.in;  // rows of x, and as wide as the result
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t plane = task / blocks, first = (task - plane * blocks) * block,
                         last = std::min(h.out, first + block);
      const auto [top, bottom] = seen(first);
      const A* const from = widened(x + (plane * h.in + top) * w.in, (bottom - top) * w.in, room);
      for (std::int64_t i = 0; i < bottom - top; ++i) weighted_columns(from + i * w.in, w, wide, rows + i * wide);
      // What a row writes after its end, the next one overwrites.
      for (std::int64_t r = first; r < last; ++r)
        weighted_rows(rows + (h.starts[r] - top) * wide, wide, h.weights + r, h.padded(), h.taps,
                      r + 1 < last ? std::min(wide, (last - r) * w.out) : w.out, y + (plane * h.out + r) * w.out);
    }
  });
}

template <class U>
void resample_nearest(const Cpu& on, const U* x, U* y, std::int64_t planes, const ResampleAxes& a) {
  const ResampleAxis &d = a[0], &h = a[1], &w = a[2];
  std::vector<std::int32_t> columns(static_cast<std::size_t>(w.out));
  for (std::int64_t o = 0; o < w.out; ++o)
    columns[static_cast<std::size_t>(o)] = static_cast<std::int32_t>(w.nearest(o));
  bool doubles = w.out == 2 * w.in;
  for (std::size_t o = 0; doubles && o < columns.size(); ++o) doubles = columns[o] == static_cast<std::int32_t>(o / 2);
  on.parallel_for(planes * d.out * h.out, std::max<std::int64_t>(1, kResampleTask / w.out),
                  [&](std::int64_t begin, std::int64_t end) {
                    const std::int32_t* const at = columns.data();
                    const U* before = nullptr;
                    for (std::int64_t line = begin; line < end; ++line) {
                      const std::int64_t sheet = line / h.out, plane = sheet / d.out,
                                         k = plane * d.in + d.nearest(sheet - plane * d.out),
                                         i = k * h.in + h.nearest(line - sheet * h.out);
                      const U* const from = x + i * w.in;
                      U* const to = y + line * w.out;
                      if (from == before)
                        std::memcpy(to, to - w.out, static_cast<std::size_t>(w.out) * sizeof(U));
                      else if (w.copies())
                        std::memcpy(to, from, static_cast<std::size_t>(w.out) * sizeof(U));
                      else if (doubles) {
#pragma GCC ivdep
                        for (std::int64_t o = 0; o < w.in; ++o) to[2 * o] = to[2 * o + 1] = from[o];
                      } else {
#pragma GCC ivdep
                        for (std::int64_t o = 0; o < w.out; ++o) to[o] = from[at[o]];
                      }
                      before = from;
                    }
                  });
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
