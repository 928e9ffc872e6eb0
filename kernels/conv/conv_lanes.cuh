// What conv.cuh multiplies, in the lanes of its products: a lane holds a number of float or double, or a pair of bf16
// numbers that are neighbours along the summed dimension (Note [Pairs of bf16]).
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_CONV_LANES_CUH
#define LEVIN_KERNELS_CONV_LANES_CUH
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/conv/conv_shape.h"
#include "kernels/conv/conv_windows.cuh"
#include "kernels/executor/cpu.h"
#include "kernels/gemm/gemm_tile.cuh"
#include "kernels/lib/scratch.h"
#include "levin/dtype.h"

#define LEVIN_LEVEL_FILE "kernels/conv/conv_lanes.cuh"
#include "kernels/executor/each_level.h"
#endif
#else
namespace levin::kernels::cpu::LEVIN_LEVEL {

// Channels of x or gy that share a lane of F: Note [Pairs of bf16].
template <class T>
inline constexpr int64_t kInLane = std::is_same_v<T, bf16> ? 2 : 1;
// Of other numbers of 16 bits, and of bf16 at other levels, f32 copies are multiplied.
template <class T>
inline constexpr bool kIsDirect = sizeof(T) > 2 || (kInLane<T> == 2 && LEVIN_VECTOR_BYTES == 64);
template <class T>
inline int64_t lanes_of(int64_t numbers) {
  return (numbers + kInLane<T> - 1) / kInLane<T>;
}

// pack_panel of gy: its rows are pixels, or pairs of them.
template <class T>
inline void pack_pixels(const Matrix<T>& gy, int64_t pixels, int64_t cols, Accum<T>* to, int64_t width, int64_t pitch) {
#if LEVIN_VECTOR_BYTES == 64
  if constexpr (kInLane<T> == 2) return pack_panel_pairs(gy, pixels, cols, to, width, pitch);
#endif
  pack_panel<T, Accum<T>>(gy, pixels, cols, to, width, pitch);
}

// A row of lanes from that of a number each, `stride` apart, and with pairs that of their second numbers or null.
template <class T>
inline void copy_lanes(const T* first, [[maybe_unused]] const T* second, int64_t stride, Accum<T>* to, int64_t count) {
#if LEVIN_VECTOR_BYTES == 64
  if constexpr (kInLane<T> == 2) return zip_pairs(first, second, reinterpret_cast<PairBits*>(to), count, stride);
#endif
  copy_run(first, stride, to, count);
}

// With `channels` channels of an image [channels, H, W], those that share a lane as pairs.
template <class T>
void fill_lanes(const ConvShape& s, const Window& win, const T* image, int64_t channels, Accum<T>* to) {
  const int64_t plane = s.height * s.width;
  fill_window(s, win, lanes_of<T>(channels), to,
              [=](int64_t lane, int64_t at, int64_t stride, Accum<T>* row, int64_t count) {
                const T* const first = image + lane * kInLane<T> * plane + at;
                copy_lanes(first, lane * kInLane<T> + 1 < channels ? first + plane : nullptr, stride, row, count);
              });
}

// multiply_block for lanes of T.
template <class T>
void multiply_lanes([[maybe_unused]] const Cpu& on, int64_t m, int64_t n, int64_t k, const TileRows<Accum<T>>& a,
                    const Accum<T>* b, int64_t b_row, const TileOut<Accum<T>>& out, int64_t writable) {
#if LEVIN_VECTOR_BYTES == 64
  if constexpr (kInLane<T> == 2) return block_of_pairs(on.bf16_products)(m, n, k, a, b, b_row, out, writable);
#endif
  multiply_block<Accum<T>>(m, n, k, a, b, b_row, out, writable);
}

// Filters as rows of lanes, [O, lanes of channels, taps].
template <class T>
class FilterRows {
 public:
  using F = Accum<T>;
  FilterRows(const ConvShape& s, const T* w, int64_t lanes)
      : numbers_(lanes * s.taps()),
        // Filters serve where they lie, unless their rows fall into the same sets of L1.
        in_place_(kInLane<T> == 1 && numbers_ * int64_t(sizeof(T)) % 1024 != 0),
        pitch_(in_place_ ? numbers_ : pitch_for<F>(numbers_)),
        memory_(in_place_ ? 0 : size_t(s.out_channels * pitch_) * sizeof(F)) {
    if constexpr (kInLane<T> == 1) rows_ = w;
    if (in_place_) return;
    rows_ = memory_.template as<F>();
    for (int64_t o = 0; o < s.out_channels; ++o)
      for (int64_t lane = 0; lane < lanes; ++lane) {
        const int64_t c = lane * kInLane<T>;
        const T* const first = w + (o * s.group_in() + c) * s.taps();
        copy_lanes(first, c + 1 < s.group_in() ? first + s.taps() : nullptr, 1,
                   memory_.template as<F>() + o * pitch_ + lane * s.taps(), s.taps());
      }
  }
  // From output channel o and number i of its filter on.
  TileRows<F> from(int64_t o, int64_t i) const { return {rows_ + o * pitch_ + i, pitch_, 1}; }

 private:
  int64_t numbers_;
  bool in_place_;
  int64_t pitch_;
  lib::Scratch memory_;
  const F* rows_ = nullptr;
};

// sums [rows, cols], `pitch` apart, into an image of T.
template <class T>
inline void round_rows(const Accum<T>* sums, int64_t pitch, int64_t rows, int64_t cols, T* y, int64_t y_pitch) {
#if LEVIN_VECTOR_BYTES == 64
  if constexpr (std::is_same_v<T, bf16>) return put_sums_of_pairs(sums, pitch, rows, cols, 1, 0, nullptr, y, y_pitch);
#endif
  for (int64_t r = 0; r < rows; ++r) copy_run(sums + r * pitch, 1, y + r * y_pitch, cols);
}

// The transposed filters of every block of channels, [rows, lanes of output channels]: tile by tile as TileRows says;
// with pairs, row by row.
template <class T>
class TurnedFilters {
 public:
  using F = Accum<T>;
  TurnedFilters(const Cpu& on, const ConvShape& s, const EvenBlocks& channels, const T* w)
      : lanes_(lanes_of<T>(s.group_out())),
        pitch_(kInLane<T> == 1 ? lanes_ : pitch_for<F>(lanes_)),
        block_(channels.size * s.taps() * pitch_),
        memory_(size_t(s.groups * channels.count * block_) * sizeof(F)) {
    const int64_t filter = s.group_in() * s.taps(), gout = s.group_out();
    const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, block_));
    on.parallel_for(s.groups * channels.count, grain, [&](int64_t begin, int64_t end) {
      for (int64_t gb = begin; gb < end; ++gb) {
        const int64_t g = gb / channels.count, block = gb % channels.count;
        const int64_t rows = (channels.end(block) - channels.begin(block)) * s.taps();
        const T* const from = w + g * gout * filter + channels.begin(block) * s.taps();
        F* to = memory_.template as<F>() + gb * block_;
        if constexpr (kInLane<T> == 1) {
          const RowTiles tiles(rows);
          for (int64_t i = 0; i < tiles.count; ++i)
            for (int64_t o = 0; o < gout; ++o)
              to = copy_tile_row(from + o * filter + tiles.begin(i), tiles.begin(i + 1) - tiles.begin(i), to);
        } else {
          for (int64_t t = 0; t < rows; ++t, to += pitch_)
            for (int64_t lane = 0; lane < lanes_; ++lane) {
              const T* const first = from + lane * kInLane<T> * filter + t;
              copy_lanes(first, lane * kInLane<T> + 1 < gout ? first + filter : nullptr, 1, to + lane, 1);
            }
        }
      }
    });
  }
  TileRows<F> of(int64_t group_block) const {
    return {memory_.template as<F>() + group_block * block_, pitch_, 1, kInLane<T> == 1};
  }

 private:
  int64_t lanes_, pitch_, block_;
  lib::Scratch memory_;
};

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
