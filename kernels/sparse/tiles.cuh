#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_TILES_CUH
#define LEVIN_KERNELS_TILES_CUH
// Rows of any width as tiles of vectors that stay in registers, for the CPU loops of this folder.
#include <cstdint>

#include "kernels/executor/cpu.h"
#include "kernels/executor/hd.h"
#include "kernels/reduce/row_sums.cuh"

#define LEVIN_LEVEL_FILE "kernels/sparse/tiles.cuh"
#include "kernels/executor/each_level.h"
#endif

#else
namespace levin::kernels::cpu::LEVIN_LEVEL {

template <class T, int kLanes>
struct LanesOf {
  typedef T Type __attribute__((vector_size(kLanes * sizeof(T))));
};
template <class T>
struct LanesOf<T, 1> {
  using Type = T;
};
// The lanes of a full vector of the type that sums of T have.
template <class T>
inline constexpr int kFullLanes = LEVIN_VECTOR_BYTES / int{sizeof(Accum<T>)};

// `kCount` vectors of neighbouring columns [first, first + columns); numbers of 16 bits are floats there. The last
// vector ends with the tile and overlaps the one before it where the tile's columns are no multiple of kLanes: both
// compute the same there.
template <class T, int kLanes, int kCount_>
struct ColumnTile {
  using Type = T;
  using Lanes = typename LanesOf<Accum<T>, kLanes>::Type;
  static constexpr int kCount = kCount_, kWidth = kLanes;
  std::int64_t first, columns;
  [[nodiscard]] std::int64_t at(int n) const {
    if constexpr (kCount == 2) return n == 0 ? 0 : columns - kLanes;
    return n * kLanes;
  }
  static Lanes load(const T* from) { return LEVIN_LEVEL::load<Lanes>(from); }
  static void store(T* to, Lanes v) { put(to, v); }
};

// f(tile) for tiles that cover the columns [0, width), none twice.
template <class T, class F>
void each_column_tile(std::int64_t width, const F& f) {
  constexpr int kFull = kFullLanes<T>, kHalf = kFull > 2 ? kFull / 2 : 1;
  std::int64_t c = 0;
  for (; width - c >= 8 * kFull; c += 8 * kFull) f(ColumnTile<T, kFull, 8>{c, 8 * kFull});
  if (width - c >= 4 * kFull) f(ColumnTile<T, kFull, 4>{c, 4 * kFull}), c += 4 * kFull;
  if (width - c >= 2 * kFull) f(ColumnTile<T, kFull, 2>{c, 2 * kFull}), c += 2 * kFull;
  const std::int64_t rest = width - c;
  if (rest > kFull) return f(ColumnTile<T, kFull, 2>{c, rest});
  if (rest == kFull) return f(ColumnTile<T, kFull, 1>{c, rest});
  if constexpr (kHalf > 1) {
    if (rest > kHalf) return f(ColumnTile<T, kHalf, 2>{c, rest});
    if (rest == kHalf) return f(ColumnTile<T, kHalf, 1>{c, rest});
  }
  for (; c < width; ++c) f(ColumnTile<T, 1, 1>{c, 1});
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
