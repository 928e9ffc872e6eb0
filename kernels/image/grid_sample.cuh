// Images at points that a grid gives, and the gradients of that. All contiguous:
//
//   grid_sample<K>(on, const T* x, const T* grid, T* y, shape, how)
//     y[n, c, p] = sum over i, j < K of down[i] across[j] x[n, c, row[i], column[j]]
//   grid_sample_grid<K>(on, gy, x, grid, T* ggrid, shape, how)      the gradient in the grid, summed over c ascending
//   cpu::grid_sample_image<K>(on, gy, grid, T* gx, shape, how)      the gradient in x, summed over p, i, j ascending
//   gpu::grid_sample_parts<K>(on, gy, grid, int64_t* index, A* parts, shape, how)
//     parts[n, p, i, j, c] = down[i] across[j] gy[n, c, p] belongs to row index[n, p, i, j] of [n, row, column], or to
//     the row after the last where there is no pixel: index_add sums them in their order
//
// x: [images, channels, rows, columns], grid: [images, points, 2], y: [images, channels, points]. K, the taps along an
// axis: 1 nearest, 2 bilinear, 4 bicubic. T: float, double, f16, bf16; all is computed in A = Accum<T>. A tap outside
// of the image is not read.
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_GRID_SAMPLE_CUH
#define LEVIN_KERNELS_GRID_SAMPLE_CUH

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/device/bits.cuh"
#include "kernels/device/strided.cuh"
#include "kernels/executor/cpu.h"
#include "kernels/executor/gpu.h"
#include "kernels/executor/hd.h"
#include "kernels/lib/scratch.h"
#include "levin/dtype.h"

namespace levin::kernels {

enum class GridEdge : std::uint8_t { zeros, border, reflection };
struct GridRule {
  GridEdge edge = GridEdge::zeros;
  bool align_corners = false;
};
struct GridShape {
  std::int64_t images = 0, channels = 0, rows = 1, columns = 1, points = 0, slices = 1;
  [[nodiscard]] LEVIN_HD std::int64_t plane() const { return rows * columns; }
  [[nodiscard]] LEVIN_HD std::int64_t extent() const { return slices * rows * columns; }  // of a channel
};

// The pixels along one axis that a coordinate of the grid sees (-1: none), their weights, and the derivatives of these
// in the coordinate.
template <class A, int K>
struct GridTaps {
  std::int32_t at[K];
  A w[K], d[K];

  LEVIN_HD GridTaps(A coordinate, std::int64_t size, const GridRule& rule) {
    const A half = rule.align_corners ? A(size - 1) / 2 : A(size) / 2;
    A s = (coordinate + 1) * half - (rule.align_corners ? A(0) : A(0.5)), slope = half;
    if (K != 4 && rule.edge != GridEdge::zeros) {
      const Placed to = placed(s, size, rule);
      s = to.at;
      slope *= to.slope;
    }
    // A coordinate far from the image is like one near it, unless its neighbours are reflected.
    const bool turns = K == 4 && rule.edge == GridEdge::reflection;
    const A least = turns ? -A(kFar) : A(-8), most = turns ? A(kFar) : A(size) + 8;
    if (!(s > least)) s = least;
    if (s > most) s = most;
    if constexpr (K == 1) {
      at[0] = inside(nearest(s), size);
      w[0] = A(1);
      d[0] = A(0);
    } else if constexpr (K == 2) {
      const std::int64_t first = floor_of(s);
      const A u = s - A(first);
      w[0] = 1 - u, w[1] = u;
      d[0] = -slope, d[1] = slope;
      for (int k = 0; k < 2; ++k) at[k] = inside(first + k, size);
    } else {
      const std::int64_t first = floor_of(s);
      const A u = s - A(first), a = A(-0.75);
      const A x[4] = {u + 1, u, 1 - u, 2 - u};
      for (int k = 0; k < 4; ++k) {
        const bool near = k == 1 || k == 2;
        w[k] = near ? ((a + 2) * x[k] - (a + 3)) * x[k] * x[k] + 1 : ((a * x[k] - 5 * a) * x[k] + 8 * a) * x[k] - 4 * a;
        const A by = near ? (3 * (a + 2) * x[k] - 2 * (a + 3)) * x[k] : (3 * a * x[k] - 10 * a) * x[k] + 8 * a;
        d[k] = k < 2 ? by * slope : -by * slope;
        const std::int64_t pixel = first - 1 + k;
        at[k] = rule.edge == GridEdge::zeros ? inside(pixel, size)
                                             : static_cast<std::int32_t>(placed(A(pixel), size, rule).at);
      }
    }
  }

 private:
  static constexpr std::int64_t kFar = 1 << 22;  // float holds halves up to there
  struct Placed {
    A at, slope;
  };
  // Inside of the image, by reflections at its edge and then at its border.
  LEVIN_HD static Placed placed(A s, std::int64_t size, const GridRule& rule) {
    A slope = 1;
    const A last = A(size - 1);
    if (rule.edge == GridEdge::reflection) {
      const A low = rule.align_corners ? A(0) : A(-0.5), span = rule.align_corners ? last : A(size);
      if (span == 0) return {A(0), A(0)};
      if (s < low) slope = -1;
      const A far = s < low ? low - s : s - low;
      const A rest = std::fmod(far, span), turns = (far - rest) / span;
      // Of numbers this large every one is even.
      const bool odd = turns < A(kFar) && (static_cast<std::int64_t>(turns + A(0.5)) & 1) != 0;
      s = odd ? span - rest + low : rest + low;
      if (odd) slope = -slope;
    }
    if (!(s > 0)) return {A(0), A(0)};
    if (s >= last) return {last, A(0)};
    return {s, slope};
  }
  LEVIN_HD static std::int32_t inside(std::int64_t pixel, std::int64_t size) {
    return pixel >= 0 && pixel < size ? static_cast<std::int32_t>(pixel) : -1;
  }
  LEVIN_HD static std::int64_t floor_of(A x) {
    const auto cut = static_cast<std::int64_t>(x);
    return cut - (x < A(cut));
  }
  // Half to even.
  LEVIN_HD static std::int64_t nearest(A s) {
    const std::int64_t first = floor_of(s);
    const A rest = s - A(first);
    return first + (rest > A(0.5) || (rest == A(0.5) && (first & 1) != 0));
  }
};

}  // namespace levin::kernels

#define LEVIN_LEVEL_FILE "kernels/image/grid_sample.cuh"
#include "kernels/executor/each_level.h"
#include "kernels/executor/pick_float.h"

namespace levin::kernels::cpu {
LEVIN_PICK_F32(grid_sample)
LEVIN_PICK_F32(grid_sample_grid)
LEVIN_PICK_F32(grid_sample_image)
}  // namespace levin::kernels::cpu

namespace levin::kernels::gpu {

template <class Taps, class T>
__global__ void grid_sample_items(const T* x, const T* grid, T* y, std::int64_t n, GridShape s, GridRule rule,
                                  Divider points, Divider channels) {
  using A = Accum<T>;
  constexpr int K = Taps::value;
  const std::int64_t u = own_item();
  if (u >= n) return;
  const std::int64_t plane = points.quotient(u), image = channels.quotient(plane);
  const T* const at = grid + 2 * (image * s.points + u - plane * s.points);
  const GridTaps<A, K> across(A(at[0]), s.columns, rule), down(A(at[1]), s.rows, rule);
  const T* const from = x + plane * s.plane();
  A sum = 0;
  for (int i = 0; i < K; ++i) {
    for (int j = 0; j < K; ++j) {
      if (down.at[i] < 0 || across.at[j] < 0) continue;
      sum += down.w[i] * across.w[j] * A(from[down.at[i] * s.columns + across.at[j]]);
    }
  }
  y[u] = T(sum);
}
template <class Taps, class T>
void grid_sample(const Gpu& on, const T* x, const T* grid, T* y, const GridShape& s, const GridRule& rule) {
  const std::int64_t n = s.images * s.channels * s.points;
  on.launch(grid_sample_items<Taps, T>, item_grid(n), x, grid, y, n, s, rule, Divider(s.points), Divider(s.channels));
}

template <class Taps, class T>
__global__ void grid_sample_grid_points(const T* gy, const T* x, const T* grid, T* ggrid, std::int64_t n, GridShape s,
                                        GridRule rule, Divider points) {
  using A = Accum<T>;
  constexpr int K = Taps::value;
  const std::int64_t u = own_item();
  if (u >= n) return;
  const std::int64_t image = points.quotient(u), p = u - image * s.points;
  const GridTaps<A, K> across(A(grid[2 * u]), s.columns, rule), down(A(grid[2 * u + 1]), s.rows, rule);
  A by_x = 0, by_y = 0;
  for (std::int64_t c = 0; c < s.channels; ++c) {
    const std::int64_t plane = image * s.channels + c;
    const T* const from = x + plane * s.plane();
    A part_x = 0, part_y = 0;
    for (int i = 0; i < K; ++i) {
      for (int j = 0; j < K; ++j) {
        if (down.at[i] < 0 || across.at[j] < 0) continue;
        const A v = A(from[down.at[i] * s.columns + across.at[j]]);
        part_x += down.w[i] * across.d[j] * v;
        part_y += down.d[i] * across.w[j] * v;
      }
    }
    const A g = A(gy[plane * s.points + p]);
    by_x += g * part_x;
    by_y += g * part_y;
  }
  ggrid[2 * u] = T(by_x);
  ggrid[2 * u + 1] = T(by_y);
}
template <class Taps, class T>
void grid_sample_grid(const Gpu& on, const T* gy, const T* x, const T* grid, T* ggrid, const GridShape& s,
                      const GridRule& rule) {
  const std::int64_t n = s.images * s.points;
  on.launch(grid_sample_grid_points<Taps, T>, item_grid(n), gy, x, grid, ggrid, n, s, rule, Divider(s.points));
}

template <class Taps, class T>
__global__ void grid_sample_part_rows(const T* gy, const T* grid, std::int64_t* index, Accum<T>* parts, std::int64_t n,
                                      GridShape s, GridRule rule, Divider points) {
  using A = Accum<T>;
  constexpr int K = Taps::value;
  const std::int64_t u = own_item();
  if (u >= n) return;
  const std::int64_t point = u / (K * K), image = points.quotient(point), p = point - image * s.points;
  const int tap = static_cast<int>(u - point * (K * K)), i = tap / K, j = tap - i * K;
  const GridTaps<A, K> across(A(grid[2 * point]), s.columns, rule), down(A(grid[2 * point + 1]), s.rows, rule);
  std::int32_t row = 0, column = 0;
  A weight = 0;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    if (k == i) row = down.at[k];
    if (k == j) column = across.at[k];
  }
#pragma unroll
  for (int k = 0; k < K * K; ++k)
    if (k == tap) weight = down.w[k / K] * across.w[k % K];
  const bool seen = row >= 0 && column >= 0;
  index[u] = seen ? (image * s.rows + row) * s.columns + column : s.images * s.plane();
  const T* const from = gy + image * s.channels * s.points + p;
  A* const to = parts + u * s.channels;
  for (std::int64_t c = 0; c < s.channels; ++c) to[c] = seen ? weight * A(from[c * s.points]) : A(0);
}
template <class Taps, class T>
void grid_sample_parts(const Gpu& on, const T* gy, const T* grid, std::int64_t* index, Accum<T>* parts,
                       const GridShape& s, const GridRule& rule) {
  const std::int64_t n = s.images * s.points * Taps::value * Taps::value;
  on.launch(grid_sample_part_rows<Taps, T>, item_grid(n), gy, grid, index, parts, n, s, rule, Divider(s.points));
}

}  // namespace levin::kernels::gpu

namespace levin::kernels {  // of the executor that is given
using cpu::grid_sample, gpu::grid_sample;
using cpu::grid_sample_grid, gpu::grid_sample_grid;
}  // namespace levin::kernels

#endif  // LEVIN_KERNELS_GRID_SAMPLE_CUH
#else

namespace levin::kernels::cpu::LEVIN_LEVEL {

// What two linear taps of a block of points along one axis need, as GridTaps has it but without branches, in 32 bits,
// for vector code. No edge reflects, and an axis is shorter than kLongest.
inline constexpr std::int64_t kGridBlock = 64, kLongest = std::int64_t{1} << 30;
template <class A>
struct GridAxis {
  std::int32_t first[kGridBlock];
  A u[kGridBlock], slope[kGridBlock];
  template <bool kBorder>
  void fill(const A* coordinate, std::int64_t points, std::int64_t size, const GridRule& rule) {
    const A half = rule.align_corners ? A(size - 1) / 2 : A(size) / 2, shift = rule.align_corners ? A(0) : A(0.5);
    const A last = A(size - 1), least = A(-8), most = A(size) + 8;
    for (std::int64_t p = 0; p < points; ++p) {
      A s = (coordinate[p] + 1) * half - shift, by = half;
      if constexpr (kBorder) {
        by = ((s > 0) & (s < last)) ? half : A(0);
        s = s > 0 ? s : A(0);
        s = s < last ? s : last;
      }
      s = s > least ? s : least;
      s = s > most ? most : s;
      const auto cut = static_cast<std::int32_t>(s);
      const std::int32_t floor = cut - (s < A(cut) ? 1 : 0);
      first[p] = floor;
      u[p] = s - A(floor);
      slope[p] = by;
    }
  }
};

// The taps of a block of points, a row of each kind; kSlopes: with their derivatives in the grid.
template <class A, int K, bool kSlopes>
struct GridBlock {
  static constexpr std::int64_t kPoints = kGridBlock;
  static constexpr int kTaps = K * K, kAxes = 2;
  std::int32_t at[K * K][kPoints];  // in the plane; -1: outside
  A w[K * K][kPoints], by_x[kSlopes ? K * K : 1][kPoints], by_y[kSlopes ? K * K : 1][kPoints];

  template <class T>
  void fill(const T* grid, std::int64_t points, const GridShape& s, const GridRule& rule) {
    in_pairs = false;
    if constexpr (kMayPair) {
      if (s.rows < kLongest && s.columns < kLongest && s.rows > 0 && s.columns >= 2 &&
          rule.edge != GridEdge::reflection) {
        in_pairs = true;
        return rule.edge == GridEdge::border ? fill_pairs<true>(grid, points, s, rule)
                                             : fill_pairs<false>(grid, points, s, rule);
      }
    }
    for (std::int64_t p = 0; p < points; ++p) {
      const GridTaps<A, K> across(A(grid[2 * p]), s.columns, rule), down(A(grid[2 * p + 1]), s.rows, rule);
      for (int i = 0; i < K; ++i) {
        for (int j = 0; j < K; ++j) {
          const int t = i * K + j;
          const bool seen = down.at[i] >= 0 && across.at[j] >= 0;
          at[t][p] = seen ? static_cast<std::int32_t>(down.at[i] * s.columns + across.at[j]) : -1;
          w[t][p] = down.w[i] * across.w[j];
          if constexpr (kSlopes) {
            by_x[t][p] = down.w[i] * across.d[j];
            by_y[t][p] = down.d[i] * across.w[j];
          }
        }
      }
    }
  }

  // take(c)(p, values) with the numbers of plane c of `channels` under the taps of each point; what lies outside counts
  // for nothing.
  template <class T, class F>
  [[gnu::always_inline]] void each_point(const T* from, std::int64_t plane, std::int64_t channels, std::int64_t points,
                                         const F& take) const {
    if constexpr (kMayPair) {
      if (in_pairs) {
        std::int64_t c = 0;
        for (; c + kTogether <= channels; c += kTogether) take_pairs<kTogether>(from, plane, c, points, take);
        for (; c < channels; ++c) take_pairs<1>(from, plane, c, points, take);
        return;
      }
    }
    for (std::int64_t c = 0; c < channels; ++c, from += plane) {
      const auto take_one = take(c);
#pragma GCC ivdep
      for (std::int64_t p = 0; p < points; ++p) {
        A values[K * K];
#pragma GCC unroll 16
        for (int t = 0; t < K * K; ++t) values[t] = A(from[at[t][p] < 0 ? 0 : at[t][p]]);
        take_one(p, values);
      }
    }
  }

 private:
  static constexpr bool kMayPair = K == 2 && std::is_same_v<A, float>;
  static constexpr int kTogether = 3;  // planes, as an image in colours has
  bool in_pairs = false;
  // Of two neighbours in each of the two rows that a point sees, moved into the plane by `shift` columns to the left.
  std::int32_t pair_at[kMayPair ? 2 : 1][kPoints], shift[kMayPair ? kPoints : 1];

  // each_point for kPlanes planes from plane `first` on, which share the look at a point's place. A gather takes longer
  // than as many loads, and a load of two neighbours as long as one.
  template <int kPlanes, class T, class F>
  [[gnu::always_inline]] void take_pairs(const T* from, std::int64_t plane, std::int64_t first, std::int64_t points,
                                         const F& take) const {
    using Both [[gnu::may_alias]] = std::conditional_t<sizeof(T) == 4, std::uint64_t, std::uint32_t>;
    alignas(64) T pair[kPlanes][2][2 * kPoints];
    for (int i = 0; i < 2; ++i) {
      for (std::int64_t p = 0; p < points; ++p) {
        const T* const place = from + first * plane + pair_at[i][p];
#pragma GCC unroll 4
        for (int c = 0; c < kPlanes; ++c) {
          Both both;
          std::memcpy(&both, place + c * plane, sizeof both);
          // Of plain stores g++ makes vectors, put together by more instructions than these.
          *reinterpret_cast<volatile Both*>(pair[c][i] + 2 * p) = both;
        }
      }
    }
    for (int c = 0; c < kPlanes; ++c) take_rows(pair[c][0], pair[c][1], points, take(first + c));
  }
  template <class T, class F>
  [[gnu::always_inline]] void take_rows(const T* upper, const T* lower, std::int64_t points, const F& take) const {
#pragma GCC ivdep
    for (std::int64_t p = 0; p < points; ++p) {
      const A a = A(upper[2 * p]), b = A(upper[2 * p + 1]), c = A(lower[2 * p]), d = A(lower[2 * p + 1]);
      const A values[4] = {shift[p] > 0 ? b : a, shift[p] < 0 ? a : b, shift[p] > 0 ? d : c, shift[p] < 0 ? c : d};
      take(p, values);
    }
  }

  template <bool kBorder, class T>
  void fill_pairs(const T* grid, std::int64_t points, const GridShape& s, const GridRule& rule) {
    // Both coordinates in one loop: of a loop over every second number g++ leaves the last vector to scalar code.
    A x[kPoints], y[kPoints];
    for (std::int64_t p = 0; p < points; ++p) x[p] = A(grid[2 * p]), y[p] = A(grid[2 * p + 1]);
    GridAxis<A> across, down;
    across.template fill<kBorder>(x, points, s.columns, rule);
    down.template fill<kBorder>(y, points, s.rows, rule);
    const auto rows = static_cast<std::uint32_t>(s.rows), columns = static_cast<std::uint32_t>(s.columns);
    for (std::int64_t p = 0; p < points; ++p) {
      const std::int32_t last = static_cast<std::int32_t>(columns) - 2, first = across.first[p],
                         column = first < 0      ? 0
                                  : first > last ? last
                                                 : first;
      shift[p] = first - column;
      for (int i = 0; i < 2; ++i) {
        const std::int32_t row = down.first[p] + i, bottom = static_cast<std::int32_t>(rows) - 1;
        pair_at[i][p] = (row < 0 ? 0 : row > bottom ? bottom : row) * static_cast<std::int32_t>(columns) + column;
      }
    }
    for (int t = 0; t < K * K; ++t) {
      const bool low = t / K != 0, right = t % K != 0;
      for (std::int64_t p = 0; p < points; ++p) {
        const auto row = static_cast<std::uint32_t>(down.first[p]) + low,
                   column = static_cast<std::uint32_t>(across.first[p]) + right;
        const bool seen = (row < rows) & (column < columns);
        at[t][p] = seen ? static_cast<std::int32_t>(row * columns + column) : -1;
        const A down_w = low ? down.u[p] : 1 - down.u[p], across_w = right ? across.u[p] : 1 - across.u[p];
        w[t][p] = down_w * across_w;
        if constexpr (kSlopes) {
          by_x[t][p] = down_w * (right ? across.slope[p] : -across.slope[p]);
          by_y[t][p] = (low ? down.slope[p] : -down.slope[p]) * across_w;
        }
      }
    }
  }
};
inline constexpr std::int64_t kGridTask = 16 * 1024;  // pixels read by one task, about

// body(image, first, count) for blocks of points.
template <class F>
void each_grid_block(const Cpu& on, const GridShape& s, std::int64_t block, std::int64_t taps, const F& body) {
  const std::int64_t blocks = (s.points + block - 1) / block,
                     grain = std::max<std::int64_t>(1, kGridTask / (block * taps * (s.channels + 4)));
  on.parallel_for(s.images * blocks, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      const std::int64_t image = b / blocks, first = (b - image * blocks) * block;
      body(image, first, std::min(block, s.points - first));
    }
  });
}

template <class Block, class T>
void sample_blocks(const Cpu& on, const T* x, const T* grid, T* y, const GridShape& s, const GridRule& rule) {
  using A = Accum<T>;
  each_grid_block(on, s, Block::kPoints, Block::kTaps, [&](std::int64_t image, std::int64_t first, std::int64_t count) {
    Block block;
    block.fill(grid + Block::kAxes * (image * s.points + first), count, s, rule);
    const T* const from = x + image * s.channels * s.extent();
    block.each_point(from, s.extent(), s.channels, count, [&](std::int64_t c) {
      return [&block, to = y + (image * s.channels + c) * s.points + first ](std::int64_t p, const A* values)
          __attribute__((always_inline)) {
        A sum = 0;
#pragma GCC unroll 16
        for (int t = 0; t < Block::kTaps; ++t) {
          const A part = block.w[t][p] * values[t];
          sum += block.at[t][p] < 0 ? A(0) : part;
        }
        to[p] = T(sum);
      };
    });
  });
}
template <class Taps, class T>
void grid_sample(const Cpu& on, const T* x, const T* grid, T* y, const GridShape& s, const GridRule& rule) {
  sample_blocks<GridBlock<Accum<T>, Taps::value, false>>(on, x, grid, y, s, rule);
}
template <class Taps, class T>
void grid_sample_grid(const Cpu& on, const T* gy, const T* x, const T* grid, T* ggrid, const GridShape& s,
                      const GridRule& rule) {
  using A = Accum<T>;
  constexpr int K = Taps::value;
  using Block = GridBlock<A, K, true>;
  each_grid_block(on, s, Block::kPoints, K * K, [&](std::int64_t image, std::int64_t first, std::int64_t count) {
    Block block;
    block.fill(grid + 2 * (image * s.points + first), count, s, rule);
    A by_x[Block::kPoints] = {}, by_y[Block::kPoints] = {};
    const T* const from = x + image * s.channels * s.plane();
    block.each_point(from, s.plane(), s.channels, count, [&](std::int64_t c) {
      return [&block, &by_x, &by_y, g = gy + (image * s.channels + c) * s.points +
              first ](std::int64_t p, const A* values) __attribute__((always_inline)) {
        A part_x = 0, part_y = 0;
#pragma GCC unroll 16
        for (int t = 0; t < Block::kTaps; ++t) {
          const A x_part = block.by_x[t][p] * values[t], y_part = block.by_y[t][p] * values[t];
          part_x += block.at[t][p] < 0 ? A(0) : x_part;
          part_y += block.at[t][p] < 0 ? A(0) : y_part;
        }
        by_x[p] += A(g[p]) * part_x;
        by_y[p] += A(g[p]) * part_y;
      };
    });
    T* const to = ggrid + 2 * (image * s.points + first);
    for (std::int64_t p = 0; p < count; ++p) to[2 * p] = T(by_x[p]), to[2 * p + 1] = T(by_y[p]);
  });
}

inline constexpr std::int64_t kScatterLanes = 4;  // channels that are summed side by side

// The sums of channels beside each other, a cell for each pixel and one for each tap that is outside: a tap adds to all
// of them at once, without a branch.
template <class A>
struct ScatterCell {
  typedef A Type __attribute__((vector_size(kScatterLanes * sizeof(A))));
  // The numbers of a point's channels are `step` apart. Without the last ones, sums are computed that nothing reads.
  template <class Block, class T>
  static void add(const Block& block, const T* g, std::int64_t step, std::int64_t lanes, std::int64_t count,
                  std::int64_t extent, A* cells) {
    static_assert(kScatterLanes == 4);
    const T *const second = g + std::min<std::int64_t>(1, lanes - 1) * step,
                   *const third = g + std::min<std::int64_t>(2, lanes - 1) * step,
                   *const fourth = g + (lanes - 1) * step;
    for (std::int64_t p = 0; p < count; ++p) {
      // nvcc's front end takes no initializer of a vector whose type depends on A.
      Type values = Type() + A(g[p]);
      values[1] = A(second[p]), values[2] = A(third[p]), values[3] = A(fourth[p]);
#pragma GCC unroll 16
      for (int t = 0; t < Block::kTaps; ++t) {
        const std::int64_t at = block.at[t][p];
        A* const to = cells + kScatterLanes * (at < 0 ? extent + t : at);
        Type sum;
        std::memcpy(&sum, to, sizeof sum);
        sum += block.w[t][p] * values;
        std::memcpy(to, &sum, sizeof sum);
      }
    }
  }
  template <class T>
  static void unpack(const A* cells, std::int64_t extent, std::int64_t lanes, T* planes) {
    constexpr std::int64_t kPixels = 256;  // stay in the nearest cache
    for (std::int64_t first = 0; first < extent; first += kPixels) {
      const std::int64_t last = std::min(extent, first + kPixels);
      for (std::int64_t c = 0; c < lanes; ++c)
        for (std::int64_t k = first; k < last; ++k) planes[c * extent + k] = T(cells[k * kScatterLanes + c]);
    }
  }
};

// The same onto planes, where points are too few for cells to be worth their memory, and for one channel.
template <class A, class Block, class T>
void add_to_planes(const Block& block, const T* g, std::int64_t step, std::int64_t lanes, std::int64_t count,
                   std::int64_t extent, A* planes) {
  for (std::int64_t p = 0; p < count; ++p) {
    A values[kScatterLanes] = {};
    for (std::int64_t c = 0; c < lanes; ++c) values[c] = A(g[c * step + p]);
    for (int t = 0; t < Block::kTaps; ++t) {
      const std::int32_t at = block.at[t][p];
      if (at < 0) continue;
      const A w = block.w[t][p];
      A* const to = planes + at;
      if (lanes == kScatterLanes) {
        for (std::int64_t c = 0; c < kScatterLanes; ++c) to[c * extent] += w * values[c];
      } else {
        for (std::int64_t c = 0; c < lanes; ++c) to[c * extent] += w * values[c];
      }
    }
  }
}

// A task has channels of its own, so that their sums need no atomics.
template <class Block, class T>
void scatter_blocks(const Cpu& on, const T* gy, const T* grid, T* gx, const GridShape& s, const GridRule& rule) {
  using A = Accum<T>;
  constexpr std::int64_t kLanes = kScatterLanes, kMostCells = std::int64_t{1} << 19;
  const std::int64_t extent = s.extent(), room = extent + Block::kTaps;  // cells of kLanes channels
  const bool in_cells = s.channels > 1 && s.points * Block::kTaps >= extent;
  // Channels that share the taps: many, as long as there are tasks for all threads and cells take little memory.
  const std::int64_t most = in_cells ? std::clamp<std::int64_t>(kMostCells / room * kLanes, kLanes, 32) : 32,
                     together = std::clamp<std::int64_t>(s.images * s.channels / 16 / kLanes * kLanes, kLanes, most),
                     groups = (s.channels + together - 1) / together,
                     sets = (std::min(together, s.channels) + kLanes - 1) / kLanes;
  const std::int64_t held = in_cells ? sets * room * kLanes : std::is_same_v<T, A> ? 0 : together * extent;
  on.parallel_for(s.images * groups, 1, [&](std::int64_t begin, std::int64_t end) {
    const lib::Scratch memory(static_cast<std::size_t>(held) * sizeof(A));
    Block block;
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t image = task / groups, low = (task - image * groups) * together,
                         channels = std::min(together, s.channels - low);
      T* const out = gx + (image * s.channels + low) * extent;
      A* sums = memory.as<A>();
      if constexpr (std::is_same_v<T, A>)
        if (!in_cells) sums = out;
      std::fill(sums, sums + (in_cells ? (channels + kLanes - 1) / kLanes * kLanes * room : channels * extent), A(0));
      for (std::int64_t first = 0; first < s.points; first += Block::kPoints) {
        const std::int64_t count = std::min<std::int64_t>(Block::kPoints, s.points - first);
        block.fill(grid + Block::kAxes * (image * s.points + first), count, s, rule);
        // Neighbouring points add to one pixel: the channels' sums do not wait for each other.
        for (std::int64_t lane = 0; lane < channels; lane += kLanes) {
          const std::int64_t lanes = std::min(kLanes, channels - lane);
          const T* const g = gy + (image * s.channels + low + lane) * s.points + first;
          if (in_cells)
            ScatterCell<A>::add(block, g, s.points, lanes, count, extent, sums + lane * room);
          else
            add_to_planes(block, g, s.points, lanes, count, extent, sums + lane * extent);
        }
      }
      if (in_cells) {
        for (std::int64_t lane = 0; lane < channels; lane += kLanes)
          ScatterCell<A>::unpack(sums + lane * room, extent, std::min(kLanes, channels - lane), out + lane * extent);
      } else if constexpr (!std::is_same_v<T, A>) {
        for (std::int64_t k = 0; k < channels * extent; ++k) out[k] = T(sums[k]);
      }
    }
  });
}
template <class Taps, class T>
void grid_sample_image(const Cpu& on, const T* gy, const T* grid, T* gx, const GridShape& s, const GridRule& rule) {
  scatter_blocks<GridBlock<Accum<T>, Taps::value, false>>(on, gy, grid, gx, s, rule);
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
