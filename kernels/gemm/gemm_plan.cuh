// How a CPU cuts a matrix product, and what it copies before it multiplies: plans of gemm.cuh. Those of devices are in
// gemm_device.cuh.
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_GEMM_PLAN_CUH
#define LEVIN_KERNELS_GEMM_PLAN_CUH

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/executor/cpu.h"
#include "kernels/gemm/gemm_tile.cuh"
#include "kernels/gemm/gemv.cuh"
#include "levin/dtype.h"

namespace levin::kernels {

struct GemmSize {
  int64_t m, n, k;
};

}  // namespace levin::kernels

#define LEVIN_LEVEL_FILE "kernels/gemm/gemm_plan.cuh"
#include "kernels/executor/each_level.h"

namespace levin::kernels::cpu {
LEVIN_PICK_EVERY(panel_columns)
}  // namespace levin::kernels::cpu
#endif
#else
namespace levin::kernels::cpu::LEVIN_LEVEL {

// Blocks of k: long enough that reading and writing C costs little, short enough that the panels of B of one task stay
// in L2 (4 panels of 128 columns in f32: 512 KiB).
template <class F>
inline constexpr int64_t kBlockK = 4096 / int64_t(sizeof(F));
// Of pairs: sums of 16-bit results that wait for another block cost a pass over f32 numbers each.
inline constexpr int64_t kBlockPairs = 1024;

// What is copied into shape before it is multiplied. A: nothing; rows, `a_pitch` apart; every row tile on its own, as
// [k, rows of the tile]. B: nothing; the last panel, whose columns do not fill their vectors; all panels, once for all
// tasks; each panel, by the task that uses it at once; panels, by each task of rows.
enum class PackedA : std::uint8_t { nothing, rows, tiles };
enum class PackedB : std::uint8_t { nothing, last_panel, all_panels, by_task, by_rows };

// Note [What is copied]
// A copy of B costs as much as the products of 3 row tiles on a core with two FMA units of 512 bits, so it pays where
// many tiles read B, or where B is slow to read as it lies. On an Intel core with 12 lines a set of L1, f32 products
// from B as it lies were 2 % slower than from panels, and 24 % where its rows were a multiple of 4,096 bytes apart and
// so fell into two sets. The 14 rows of a tile of A so far apart are more than a set holds. On a quiet machine they
// cost nothing; where other guests used the cores too, 1,024^3 on two of them took 11.1 ms from such rows and 9.5 from
// tiles, and 2,048^3 89 ms and 74. An AMD core (Zen 4) has 8 lines a set: there rows of A a multiple of 1,024 bytes
// apart are copied, and B for more than 3 tiles. The 6 rows of a tile of AVX2 fit beside a panel there unless they are
// a multiple of 4,096 bytes apart: 256^3 on two threads takes 205 us from A as it lies and 239 from copies, 512^3 1.59
// ms and 1.70. Rows become tiles (reads_tiles) where kPanelsOfTiles and more panels use them.
// Of a product with B^T (nn.Linear), panels of B are a transpose of all of B. Where A has few rows and k is long, the
// plan is that of C^T = B^T A^T: B is read row by row as it lies, A becomes the panels, and tiles are transposed on
// their way to C, a few of a panel together: a tile alone is less than a line of C wide, and rows of C whose distance
// is a multiple of 4,096 bytes fall into one set of L1. On an Intel core 32 x 1,024 by 1,024 x 1,024 takes 449 us so
// and 611 with panels of B; 64 x 64 by 64 x 256 takes 19 us and 15.
// Panels that a task packs for itself stay in its core's L2. Packed before, for all tasks, they go through the last
// cache twice, which took 2 % of 2,048^3. Cores of an AMD CPU that share no last cache pay more: 256^3 on two of them
// took 255 us where one packed what the other read, tiles of A too, and takes 173 where each task packs its own. So
// where a thread has one task or two, it copies all of A for each, but not where A is transposed and of 16 bits: such
// copies are slow, and bf16 512^3 took 767 us with them and 680 without where the cores share a cache.
// Where k is short, C is most of what moves, and a thread had better write rows of C than columns: 512 x 64 by 64 x 512
// on two cores without a common cache took 308 us by tasks that pack panels, and takes 228 by tasks of rows and panels
// packed before; with a common cache 185 and 176.
// Of a product with A^T (the gradient of a weight) A is copied, which is slow: the numbers of a tile lie in another
// page at each step along k. Where n is small, a task takes rows of C, copies its tiles of A once, and B panel by
// panel. On two AMD cores 1,024 x 2,048 by 2,048 x 256, A transposed, takes 5.6 ms so, and 7.2 where each task of
// panels copies A; 512 x 64 by 64 x 512 takes 170 us, and 178 to 233 where one core reads what the other copied. Up to
// eight tiles are copied together, because a tile's numbers along a row of A^T are a part of a cache line: 1,024 x 512
// by 512 x 128, A transposed, takes 828 us so and 919 tile by tile (AVX2). Each such task copies all of B, so there are
// as many as threads, or twice as many of 256 rows or more.
// A tile of pairs of bf16 reads rows of A as they lie where k is even and each row begins at a multiple of 4 bytes.
// B of one panel whose rows lie one behind the other is what a copy of it would be.
// Every element's sum is the same chain of additions, so no choice changes bits.
inline constexpr int kWideL1 = 12;
inline constexpr int64_t kPanelsOfTiles = 16;
inline constexpr int64_t kShortK = 128;       // up to which k is short
inline constexpr int64_t kOwnB = 512 * 1024;  // the most bytes of panels that a task of rows packs at once
// Up to how many tiles read B, whose rows are `bytes` apart, as it lies.
inline int64_t tiles_in_place(int64_t bytes, int l1_ways) {
  if (l1_ways < kWideL1) return 3;
  return bytes % 4096 == 0 ? 12 : 96;
}
// Whether the rows of a tile of A, `bytes` apart, are read as they lie.
inline bool rows_in_place(int64_t bytes, int l1_ways) {
  return bytes % (l1_ways >= kWideL1 || kTileRows <= 6 ? 4096 : 1024) != 0;
}
// Whether copies of such rows are read fastest as [k, rows of a tile].
inline bool reads_tiles(int l1_ways) {
  return LEVIN_VECTOR_BYTES == 32 || (LEVIN_VECTOR_BYTES == 64 && l1_ways >= kWideL1);
}

// Where one B multiplies many A of m rows, `a_bytes` apart, one after the other: the columns of the panels in which a
// product reads B as it lies, the rows of a panel one behind the other. 0 where B, its rows contiguous and `b_bytes`
// apart, is read as it lies anyway, where A would have to be copied for each panel, and where T is converted before it
// is multiplied.
template <class T>
int64_t panel_columns(const Cpu& on, T, int64_t m, int64_t a_bytes, int64_t b_bytes) {
  const bool reads_b = RowTiles(m).count <= tiles_in_place(b_bytes, on.l1_ways);
  if (!std::is_same_v<T, Accum<T>> || reads_b || !rows_in_place(a_bytes, on.l1_ways)) return 0;
  return kTileCols<Accum<T>>;
}

// How a product is cut. F is the type of its sums.
template <class F>
struct GemmPlan {
  static constexpr int L = kLanes<F>;
  static constexpr int64_t N = kTileCols<F>;
  static constexpr int64_t kTurnedTiles = 4;  // row tiles of a task that are transposed together
  GemmSize size;
  RowTiles tiles;
  int64_t panels, last_cols, last_width;  // of B, N columns each; of the last one, and of the vectors that hold them
  int64_t k_blocks, k_most;               // blocks of k, and the longest of them
  PackedA packed_a = PackedA::nothing;
  PackedB packed_b = PackedB::nothing;
  int64_t a_pitch, tile_pitch;           // numbers between packed rows, and row tiles, of A
  int64_t a_numbers = 0, b_numbers = 0;  // packed for all tasks
  int64_t at_once, tiles_at_once = 1;    // panels and row tiles of a task
  int64_t row_tasks = 0;                 // tasks of rows, with PackedB::by_rows
  bool spread;                           // over threads
  bool a_by_task = false;                // tiles of A are packed by each task that uses them

  // reads_a: whether tiles can read rows of A as they lie.
  template <class T>
  GemmPlan(int l1_ways, GemmSize of, Matrix<T> a, Matrix<T> b, bool turned, bool may_spread, bool reads_a,
           int64_t block_k)
      : size(of),
        tiles(of.m),
        panels((of.n + N - 1) / N),
        last_cols(of.n - (panels - 1) * N),
        last_width(last_cols <= L ? L : N),
        k_blocks(std::max<int64_t>(1, (of.k + block_k - 1) / block_k)),
        k_most((of.k + k_blocks - 1) / k_blocks) {
    constexpr bool kPlain = std::is_same_v<T, F>;
    // Where A lies is good enough unless its rows fall into too few sets of the L1 cache, or every step down k would
    // touch another page again for each panel.
    bool pack_a = !reads_a;
    if (reads_a && a.col == 1) pack_a = panels > 2 && !rows_in_place(a.row * int64_t(sizeof(T)), l1_ways);
    if (reads_a && a.col != 1) pack_a = panels > (a.row == 1 ? 2 : 1);
    const bool turns_tiles = reads_tiles(l1_ways) && kPlain && a.col == 1 && panels >= kPanelsOfTiles;
    if (pack_a) packed_a = (a.row == 1 && a.col != 1) || turns_tiles ? PackedA::tiles : PackedA::rows;
    // Rows of packed A, and row tiles, are an odd number of cache lines apart: what is read or written side by side
    // falls into different sets.
    const auto odd_lines = [](int64_t numbers) {
      return ((numbers * int64_t(sizeof(F)) + 63) / 64 | 1) * 64 / int64_t(sizeof(F));
    };
    a_pitch = odd_lines(k_most);
    tile_pitch = odd_lines(kTileRows * k_most);

    const int64_t threads = may_spread ? num_threads() : 1, pieces = tiles.count * panels;
    at_once = pieces >= 64 ? 4 : pieces >= 16 ? 2 : 1;
    if (turned) {  // as many pieces, of one panel first
      const int64_t most = std::max<int64_t>(1, pieces / (16 * threads));
      tiles_at_once = std::min(most, kTurnedTiles);
      at_once = std::clamp<int64_t>(most / tiles_at_once, 1, 4);
    }
    // Panels are packed by the task that uses them at once, for all rows, in memory of its own, where there are enough
    // for all threads; of few rows one by one. Packed panels that wander from core to core would cost as much as the
    // products of few rows.
    const bool is_panel = kPlain && b.col == 1 && b.row == N && of.n == N;
    if (!is_panel && (!kPlain || b.col != 1 || tiles.count > tiles_in_place(b.row * int64_t(sizeof(T)), l1_ways))) {
      const bool few = tiles.count <= 16, by_task = (few || !kPlain || of.k > kShortK) &&
                                                    panels >= (few ? may_spread ? 2 * threads : 1 : 4 * threads);
      packed_b = by_task ? PackedB::by_task : PackedB::all_panels;
      row_tasks = of.m < 512 * threads ? threads : 2 * threads;
      if (kPlain && !turned && packed_a == PackedA::tiles && a.col != 1 && threads > 1 && of.m >= 64 * threads &&
          of.n * k_most * int64_t(sizeof(F)) <= 4 * kOwnB)
        packed_b = PackedB::by_rows;
      if (by_task)
        at_once =
            few ? 1 : std::clamp<int64_t>(panels / ((packed_a == PackedA::nothing ? 4 : 2) * threads), 1, at_once);
      const bool cheap = packed_a == PackedA::rows || (kPlain && packed_a == PackedA::tiles);
      a_by_task = packed_b == PackedB::by_rows ||
                  (by_task && !turned && cheap && threads > 1 && panels <= 2 * threads * at_once);
    } else if (last_cols < last_width) {
      packed_b = PackedB::last_panel;
    }
    if (packed_a == PackedA::rows && !a_by_task) a_numbers = of.m * a_pitch;
    if (packed_a == PackedA::tiles && !a_by_task) a_numbers = tiles.count * tile_pitch;
    if (packed_b == PackedB::all_panels) b_numbers = (panels - 1) * N * k_most + last_width * k_most;
    if (packed_b == PackedB::last_panel) b_numbers = last_width * k_most;

    const double flops = 2.0 * double(of.m) * double(of.n) * double(std::max<int64_t>(of.k, 1));
    spread = may_spread && flops >= 2.0 * double(kChunkFlops);
  }
  int64_t cols(int64_t panel) const { return panel == panels - 1 ? last_cols : N; }
  int64_t width(int64_t panel) const { return panel == panels - 1 ? last_width : N; }
};

// Whether the plan is that of C^T: Note [What is copied]. That transposes m k numbers on their way to panels in place
// of n k, and m n sums of each block of k on their way to C, of which one costs as much as kSum numbers. Lanes of a
// panel that A does not fill multiply for nothing, kLane of them as long as a number. The costs follow from 39 products
// on one and two threads of an Intel core.
template <class T>
bool better_turned(GemmSize size, int64_t block_k, Matrix<T> a, Matrix<T> b) {
  if (a.col != 1 || b.row != 1 || b.col == 1) return false;
  constexpr int64_t N = kTileCols<Accum<T>>, L = kLanes<Accum<T>>, kSum = 11, kLane = 14;
  const int64_t last = size.m % N, empty = last == 0 ? 0 : (last <= L ? L : N) - last;
  const double m = double(size.m), n = double(size.n), k = double(size.k);
  const double blocks = double((size.k + block_k - 1) / block_k);
  return k * (n - m - n * double(empty) / kLane) > kSum * m * n * blocks;
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
