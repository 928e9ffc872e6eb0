// Volumes at points that a grid gives, and the gradients of that: grid_sample.cuh's functions with _volume after their
// names, of x [images, channels, slices, rows, columns], grid [images, points, 3] of (column, row, slice), K taps along
// the third axis as well, and parts[n, p, h, i, j, c]. K is 1 or 2.
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_GRID_SAMPLE_VOLUME_CUH
#define LEVIN_KERNELS_GRID_SAMPLE_VOLUME_CUH

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/image/grid_sample.cuh"

#define LEVIN_LEVEL_FILE "kernels/image/grid_sample_volume.cuh"
#include "kernels/executor/each_level.h"
#include "kernels/executor/pick_float.h"

namespace levin::kernels::cpu {
LEVIN_PICK_F32(grid_sample_volume)
LEVIN_PICK_F32(grid_sample_grid_volume)
LEVIN_PICK_F32(grid_sample_image_volume)
}  // namespace levin::kernels::cpu

namespace levin::kernels::gpu {

// The taps of a point (column, row, slice).
template <class A, int K>
struct VolumeTaps {
  GridTaps<A, K> across, down, deep;
  template <class T>
  __device__ VolumeTaps(const T* point, const GridShape& s, const GridRule& rule)
      : across(A(point[0]), s.columns, rule), down(A(point[1]), s.rows, rule), deep(A(point[2]), s.slices, rule) {}
  // f(h, i, j, place) for the taps inside.
  template <class F>
  __device__ __forceinline__ void each(const GridShape& s, const F& f) const {
#pragma unroll
    for (int t = 0; t < K * K * K; ++t) {
      const int h = t / (K * K), i = t / K % K, j = t % K;
      if (deep.at[h] < 0 || down.at[i] < 0 || across.at[j] < 0) continue;
      f(h, i, j, (deep.at[h] * s.rows + down.at[i]) * s.columns + across.at[j]);
    }
  }
};

template <class Taps, class T>
__global__ void grid_sample_volume_items(const T* x, const T* grid, T* y, std::int64_t n, GridShape s, GridRule rule,
                                         Divider points, Divider channels) {
  using A = Accum<T>;
  const std::int64_t u = own_item();
  if (u >= n) return;
  const std::int64_t plane = points.quotient(u), image = channels.quotient(plane);
  const VolumeTaps<A, Taps::value> taps(grid + 3 * (image * s.points + u - plane * s.points), s, rule);
  const T* const from = x + plane * s.extent();
  A sum = 0;
  taps.each(s, [&](int h, int i, int j, std::int64_t at) {
    sum += taps.deep.w[h] * taps.down.w[i] * taps.across.w[j] * A(from[at]);
  });
  y[u] = T(sum);
}
template <class Taps, class T>
void grid_sample_volume(const Gpu& on, const T* x, const T* grid, T* y, const GridShape& s, const GridRule& rule) {
  const std::int64_t n = s.images * s.channels * s.points;
  on.launch(grid_sample_volume_items<Taps, T>, item_grid(n), x, grid, y, n, s, rule, Divider(s.points),
            Divider(s.channels));
}

template <class Taps, class T>
__global__ void grid_sample_grid_volume_points(const T* gy, const T* x, const T* grid, T* ggrid, std::int64_t n,
                                               GridShape s, GridRule rule, Divider points) {
  using A = Accum<T>;
  const std::int64_t u = own_item();
  if (u >= n) return;
  const std::int64_t image = points.quotient(u), p = u - image * s.points;
  const VolumeTaps<A, Taps::value> taps(grid + 3 * u, s, rule);
  A by_x = 0, by_y = 0, by_z = 0;
  for (std::int64_t c = 0; c < s.channels; ++c) {
    const std::int64_t plane = image * s.channels + c;
    const T* const from = x + plane * s.extent();
    A part_x = 0, part_y = 0, part_z = 0;
    taps.each(s, [&](int h, int i, int j, std::int64_t at) {
      const A v = A(from[at]);
      part_x += taps.deep.w[h] * taps.down.w[i] * taps.across.d[j] * v;
      part_y += taps.deep.w[h] * taps.down.d[i] * taps.across.w[j] * v;
      part_z += taps.deep.d[h] * taps.down.w[i] * taps.across.w[j] * v;
    });
    const A g = A(gy[plane * s.points + p]);
    by_x += g * part_x;
    by_y += g * part_y;
    by_z += g * part_z;
  }
  ggrid[3 * u] = T(by_x);
  ggrid[3 * u + 1] = T(by_y);
  ggrid[3 * u + 2] = T(by_z);
}
template <class Taps, class T>
void grid_sample_grid_volume(const Gpu& on, const T* gy, const T* x, const T* grid, T* ggrid, const GridShape& s,
                             const GridRule& rule) {
  const std::int64_t n = s.images * s.points;
  on.launch(grid_sample_grid_volume_points<Taps, T>, item_grid(n), gy, x, grid, ggrid, n, s, rule, Divider(s.points));
}

template <class Taps, class T>
__global__ void grid_sample_volume_part_rows(const T* gy, const T* grid, std::int64_t* index, Accum<T>* parts,
                                             std::int64_t n, GridShape s, GridRule rule, Divider points) {
  using A = Accum<T>;
  constexpr int kTaps = Taps::value * Taps::value * Taps::value;
  const std::int64_t u = own_item();
  if (u >= n) return;
  const std::int64_t point = u / kTaps, image = points.quotient(point), p = point - image * s.points;
  const int tap = static_cast<int>(u - point * kTaps);
  const VolumeTaps<A, Taps::value> taps(grid + 3 * point, s, rule);
  std::int64_t place = -1;
  A weight = 0;
  taps.each(s, [&](int h, int i, int j, std::int64_t at) {
    if ((h * Taps::value + i) * Taps::value + j != tap) return;
    place = at;
    weight = taps.deep.w[h] * taps.down.w[i] * taps.across.w[j];
  });
  index[u] = place < 0 ? s.images * s.extent() : image * s.extent() + place;
  const T* const from = gy + image * s.channels * s.points + p;
  A* const to = parts + u * s.channels;
  for (std::int64_t c = 0; c < s.channels; ++c) to[c] = place < 0 ? A(0) : weight * A(from[c * s.points]);
}
template <class Taps, class T>
void grid_sample_volume_parts(const Gpu& on, const T* gy, const T* grid, std::int64_t* index, Accum<T>* parts,
                              const GridShape& s, const GridRule& rule) {
  const std::int64_t n = s.images * s.points * Taps::value * Taps::value * Taps::value;
  on.launch(grid_sample_volume_part_rows<Taps, T>, item_grid(n), gy, grid, index, parts, n, s, rule, Divider(s.points));
}

}  // namespace levin::kernels::gpu

namespace levin::kernels {  // of the executor that is given
using cpu::grid_sample_grid_volume, gpu::grid_sample_grid_volume;
using cpu::grid_sample_volume, gpu::grid_sample_volume;
}  // namespace levin::kernels

#endif  // LEVIN_KERNELS_GRID_SAMPLE_VOLUME_CUH
#else

namespace levin::kernels::cpu::LEVIN_LEVEL {

// GridBlock of volumes.
template <class A, int K, bool kSlopes>
struct VolumeBlock {
  static constexpr std::int64_t kPoints = kGridBlock;
  static constexpr int kTaps = K * K * K, kAxes = 3;
  std::int32_t at[kTaps][kPoints];  // in the volume; -1: outside
  A w[kTaps][kPoints], by[kSlopes ? kAxes : 1][kTaps][kPoints];

  template <class T>
  void fill(const T* grid, std::int64_t points, const GridShape& s, const GridRule& rule) {
    if constexpr (K == 2 && std::is_same_v<A, float>) {
      if (rule.edge != GridEdge::reflection && std::max({s.rows, s.columns, s.slices}) < kLongest) {
        return rule.edge == GridEdge::border ? fill_vectors<true>(grid, points, s, rule)
                                             : fill_vectors<false>(grid, points, s, rule);
      }
    }
    for (std::int64_t p = 0; p < points; ++p, grid += kAxes) {
      const GridTaps<A, K> across(A(grid[0]), s.columns, rule), down(A(grid[1]), s.rows, rule),
          deep(A(grid[2]), s.slices, rule);
#pragma GCC unroll 8
      for (int t = 0; t < kTaps; ++t) {
        const int h = t / (K * K), i = t / K % K, j = t % K;
        const bool seen = deep.at[h] >= 0 && down.at[i] >= 0 && across.at[j] >= 0;
        at[t][p] = seen ? static_cast<std::int32_t>((deep.at[h] * s.rows + down.at[i]) * s.columns + across.at[j]) : -1;
        w[t][p] = deep.w[h] * down.w[i] * across.w[j];
        if constexpr (kSlopes) {
          by[0][t][p] = deep.w[h] * down.w[i] * across.d[j];
          by[1][t][p] = deep.w[h] * down.d[i] * across.w[j];
          by[2][t][p] = deep.d[h] * down.w[i] * across.w[j];
        }
      }
    }
  }
  template <class T, class F>
  [[gnu::always_inline]] void each_point(const T* from, std::int64_t extent, std::int64_t channels, std::int64_t points,
                                         const F& take) const {
    for (std::int64_t c = 0; c < channels; ++c, from += extent) {
      const auto take_one = take(c);
#pragma GCC ivdep
      for (std::int64_t p = 0; p < points; ++p) {
        A values[kTaps];
#pragma GCC unroll 8
        for (int t = 0; t < kTaps; ++t) values[t] = A(from[at[t][p] < 0 ? 0 : at[t][p]]);
        take_one(p, values);
      }
    }
  }

 private:
  template <bool kBorder, class T>
  void fill_vectors(const T* grid, std::int64_t points, const GridShape& s, const GridRule& rule) {
    A x[kPoints], y[kPoints], z[kPoints];
    for (std::int64_t p = 0; p < points; ++p)
      x[p] = A(grid[3 * p]), y[p] = A(grid[3 * p + 1]), z[p] = A(grid[3 * p + 2]);
    GridAxis<A> across, down, deep;
    across.template fill<kBorder>(x, points, s.columns, rule);
    down.template fill<kBorder>(y, points, s.rows, rule);
    deep.template fill<kBorder>(z, points, s.slices, rule);
    const auto slices = static_cast<std::uint32_t>(s.slices), rows = static_cast<std::uint32_t>(s.rows),
               columns = static_cast<std::uint32_t>(s.columns);
    for (int t = 0; t < kTaps; ++t) {
      const bool back = t / 4 != 0, low = t / 2 % 2 != 0, right = t % 2 != 0;
      for (std::int64_t p = 0; p < points; ++p) {
        const auto slice = static_cast<std::uint32_t>(deep.first[p]) + back,
                   row = static_cast<std::uint32_t>(down.first[p]) + low,
                   column = static_cast<std::uint32_t>(across.first[p]) + right;
        const bool seen = (slice < slices) & (row < rows) & (column < columns);
        at[t][p] = seen ? static_cast<std::int32_t>((slice * rows + row) * columns + column) : -1;
        const A deep_w = back ? deep.u[p] : 1 - deep.u[p], down_w = low ? down.u[p] : 1 - down.u[p],
                across_w = right ? across.u[p] : 1 - across.u[p];
        w[t][p] = deep_w * down_w * across_w;
        if constexpr (kSlopes) {
          by[0][t][p] = deep_w * down_w * (right ? across.slope[p] : -across.slope[p]);
          by[1][t][p] = deep_w * (low ? down.slope[p] : -down.slope[p]) * across_w;
          by[2][t][p] = (back ? deep.slope[p] : -deep.slope[p]) * down_w * across_w;
        }
      }
    }
  }
};

template <class Taps, class T>
void grid_sample_volume(const Cpu& on, const T* x, const T* grid, T* y, const GridShape& s, const GridRule& rule) {
  sample_blocks<VolumeBlock<Accum<T>, Taps::value, false>>(on, x, grid, y, s, rule);
}

template <class Taps, class T>
void grid_sample_grid_volume(const Cpu& on, const T* gy, const T* x, const T* grid, T* ggrid, const GridShape& s,
                             const GridRule& rule) {
  using A = Accum<T>;
  using Block = VolumeBlock<A, Taps::value, true>;
  each_grid_block(on, s, Block::kPoints, Block::kTaps, [&](std::int64_t image, std::int64_t first, std::int64_t count) {
    Block block;
    block.fill(grid + 3 * (image * s.points + first), count, s, rule);
    A sums[3][Block::kPoints] = {};
    const T* const from = x + image * s.channels * s.extent();
    block.each_point(from, s.extent(), s.channels, count, [&](std::int64_t c) {
      return [&block, &sums, g = gy + (image * s.channels + c) * s.points + first ](std::int64_t p, const A* values)
          __attribute__((always_inline)) {
        // No array of the three: g++ makes no vectors of a loop that holds one.
        A by_x = 0, by_y = 0, by_z = 0;
#pragma GCC unroll 8
        for (int t = 0; t < Block::kTaps; ++t) {
          const A v = block.at[t][p] < 0 ? A(0) : values[t];
          by_x += block.by[0][t][p] * v;
          by_y += block.by[1][t][p] * v;
          by_z += block.by[2][t][p] * v;
        }
        sums[0][p] += A(g[p]) * by_x;
        sums[1][p] += A(g[p]) * by_y;
        sums[2][p] += A(g[p]) * by_z;
      };
    });
    T* const to = ggrid + 3 * (image * s.points + first);
    for (std::int64_t p = 0; p < count; ++p)
      for (int axis = 0; axis < 3; ++axis) to[3 * p + axis] = T(sums[axis][p]);
  });
}
template <class Taps, class T>
void grid_sample_image_volume(const Cpu& on, const T* gy, const T* grid, T* gx, const GridShape& s,
                              const GridRule& rule) {
  scatter_blocks<VolumeBlock<Accum<T>, Taps::value, false>>(on, gy, grid, gx, s, rule);
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
