// Matrix products: C = alpha * A * B + beta * C + bias.
//
//   cpu::gemm(on, GemmSize{m, n, k}, Matrix<T> a, Matrix<T> b, C* c, int64_t ldc, GemmOptions<T> options = {})
//   cpu::gemm_batched(on, std::span<const BatchDim> batch, GemmSize, Matrix<T> a, Matrix<T> b, C* c, ldc, options = {})
//
// a: [m, k], b: [k, n], each read through any two strides (a transpose or a slice is a change of strides, not a copy).
// c: [m, n], rows contiguous, ldc >= n apart, overlapping neither a nor b. Any m, n, k >= 0; k = 0 gives product 0.
// T: float, double, f16, bf16. C: T, or float for the 16-bit types; they are summed in float and rounded once.
// beta = 0 does not read c. Everything else is computed as written: 0 * NaN is NaN, also where alpha is 0.
// Biases: col_bias [n] is added to every row (nn.Linear), row_bias [m] to every column (convolution); null for none.
//
// gemm_batched runs one product for each index of the batch dimensions (outermost first); every dimension moves a, b
// and c by its own strides, 0 to use the same matrix again. No dimension: one product. Two products may not share c.
//
// Bits: the order of an element's sum depends on (m, n, k), strides, T and level alone. They are the same for any
// number of threads, and for a batch and its products one by one. Levels differ in the last bits, and so do products of
// bf16 between the ways of Bf16Products; pairs and tiles take numbers and sums below 2^-126 for zero (Note [Pairs of
// bf16], Note [Products by tiles] in gemm_amx.h).
// Throws OutOfMemoryError when there is no memory for packed panels.
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_GEMM_CUH
#define LEVIN_KERNELS_GEMM_CUH

#include <algorithm>
#include <cstdint>
#include <span>
#include <type_traits>

#include "kernels/executor/cpu.h"
#include "kernels/gemm/amx_tiles.h"
#include "kernels/gemm/gemm_plan.cuh"
#include "kernels/gemm/gemm_tile.cuh"
#include "kernels/gemm/gemv.cuh"
#include "kernels/lib/scratch.h"
#include "levin/dtype.h"

namespace levin::kernels {

template <class T>
struct GemmOptions {
  double alpha = 1;
  double beta = 0;
  const T* col_bias = nullptr;  // [n]
  const T* row_bias = nullptr;  // [m]
};

// One batch dimension: its extent, and how far apart neighbours are in a, b and c, in elements.
struct BatchDim {
  int64_t size;
  int64_t a, b, c;
};

}  // namespace levin::kernels

#define LEVIN_LEVEL_FILE "kernels/gemm/gemm.cuh"
#include "kernels/executor/each_level.h"

namespace levin::kernels::cpu {
LEVIN_PICK_EVERY(gemm)
LEVIN_PICK_EVERY(gemm_batched)
}  // namespace levin::kernels::cpu
#endif
#else
namespace levin::kernels::cpu::LEVIN_LEVEL {

// ---- Few rows times a matrix whose columns are contiguous (a small batch through nn.Linear)

// More rows pay for packing B.
inline constexpr int64_t kDotRows = 16;

// sums[r * Q + q] = dot product of row r of A and column q of B, both contiguous.
template <class F, int R, int Q>
void dot_tile(int64_t k, const F* a, int64_t a_row, const F* b, int64_t b_col, F* sums) {
  using Vec = Vector<F>;
  constexpr int L = kLanes<F>;
  Vec sum[R][Q] = {};
  int64_t kk = 0;
  for (; kk + L <= k; kk += L) {
    Vec x[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) __builtin_memcpy(&x[r], a + r * a_row + kk, sizeof(Vec));
#pragma GCC unroll 4
    for (int q = 0; q < Q; ++q) {
      Vec y;
      __builtin_memcpy(&y, b + q * b_col + kk, sizeof(Vec));
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) sum[r][q] += x[r] * y;
    }
  }
  for (int r = 0; r < R; ++r)
    for (int q = 0; q < Q; ++q) {
      F lanes[L];
      std::memcpy(lanes, &sum[r][q], sizeof lanes);
#pragma GCC unroll 4
      for (int half = L / 2; half > 0; half /= 2)
        for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
      F s = lanes[0];
      for (int64_t i = kk; i < k; ++i) s += a[r * a_row + i] * b[q * b_col + i];
      sums[r * Q + q] = s;
    }
}

template <class F>
void gemm_by_dots(const Cpu& on, bool spread, GemmSize size, Matrix<F> a, Matrix<F> b, F* c, int64_t ldc,
                  const GemmOptions<F>& options) {
  // Sums fill half of the registers: 16 of 32, or 8 of 16.
  constexpr int R = 4, Q = LEVIN_VECTOR_BYTES == 64 ? 4 : 2;
  const auto [m, n, k] = size;
  const int64_t grain = std::max<int64_t>(1, kChunkFlops / (2 * m * std::max<int64_t>(1, k)) / Q) * Q;
  on.parallel_for(n, spread ? grain : n, [&](int64_t from, int64_t to) {
    F sums[size_t(R * Q)];
    for (int64_t j = from; j < to;) {
      const int q = to - j >= Q ? Q : 1;
      for (int64_t i = 0; i < m;) {
        const int r = m - i >= R ? R : 1;
        const F *at = a.data + i * a.row, *bt = b.data + j * b.col;
        if (r == R) {
          q == Q ? dot_tile<F, R, Q>(k, at, a.row, bt, b.col, sums) : dot_tile<F, R, 1>(k, at, a.row, bt, b.col, sums);
        } else {
          q == Q ? dot_tile<F, 1, Q>(k, at, a.row, bt, b.col, sums) : dot_tile<F, 1, 1>(k, at, a.row, bt, b.col, sums);
        }
        put_sums(sums, q, r, q, F(options.alpha), F(options.beta), options.col_bias ? options.col_bias + j : nullptr,
                 options.row_bias ? options.row_bias + i : nullptr, c + i * ldc + j, ldc);
        i += r;
      }
      j += q;
    }
  });
}

// ---- Matrix times matrix

// A planned product, with the memory of what is packed. Blocks of k run one after the other. With kPairs the plan's k
// counts pairs: Note [Pairs of bf16].
template <class T, class C, bool kPairs = false>
class PlannedGemm {
  using F = Accum<T>;
  static constexpr int L = kLanes<F>;
  static constexpr int64_t N = kTileCols<F>;
  static constexpr bool kPlain = std::is_same_v<T, F>;

 public:
  PlannedGemm(const Cpu& on, const GemmPlan<F>& plan, int64_t k, Matrix<T> a, Matrix<T> b, bool turned, C* c,
              int64_t ldc, const GemmOptions<T>& options)
      : on_(on),
        plan_(plan),
        turned_(turned),
        k_(k),
        a_(a),
        b_(b),
        c_(c),
        ldc_(ldc),
        options_(options),
        sums_wait_(!std::is_same_v<C, F> && plan.k_blocks > 1),
        memory_(size_t(plan.a_numbers + plan.b_numbers + (sums_wait_ ? plan.size.m * plan.size.n : 0)) * sizeof(F)) {}

  void run() {
    for (int64_t block = 0; block < plan_.k_blocks; ++block) {
      const int64_t k0 = block * plan_.size.k / plan_.k_blocks, k1 = (block + 1) * plan_.size.k / plan_.k_blocks;
      const int64_t n0 = k0 * kNumbers, n1 = std::min(k1 * kNumbers, k_);
      const Block at{
          {a_.data + n0 * a_.col, a_.row, a_.col}, {b_.data + n0 * b_.row, b_.row, b_.col}, k1 - k0, n1 - n0, block};
      pack(at);
      if (plan_.packed_b == PackedB::by_rows) {
        multiply_rows(at);
      } else if (plan_.packed_b == PackedB::by_task) {
        multiply_panels(at);
      } else {
        multiply_tasks(at);
      }
    }
  }

 private:
  static constexpr int64_t kNumbers = kPairs ? 2 : 1;  // of a step along k
  static constexpr int64_t kTilesTogether = 8;         // row tiles of A^T that are copied together
  // An odd number of cache lines: rows of transposed tiles fall into different sets.
  static constexpr int64_t kTurnedPitch =
      ((GemmPlan<F>::kTurnedTiles * kTileRows + kSquareRows<F> + L - 1) / L | 1) * L;
  struct Block {
    Matrix<T> a, b;
    int64_t kc, numbers, index;  // kc: steps
  };
  static TileFn<F> tile_for(int64_t h, int64_t width) {
#if LEVIN_VECTOR_BYTES == 64
    if constexpr (kPairs) return tile_of_pairs(int(h), int(width / L));
#endif
    return tile_of<F>(int(h), int(width / L));
  }
  F* a_packed() const { return memory_.template as<F>(); }
  F* b_packed() const { return a_packed() + plan_.a_numbers; }
  F* waiting() const { return b_packed() + plan_.b_numbers; }

  void pack_panel_of(const Block& at, int64_t j, F* to) const {
    const Matrix<T> from{at.b.data + j * N * at.b.col, at.b.row, at.b.col};
#if LEVIN_VECTOR_BYTES == 64
    if constexpr (kPairs) return pack_panel_pairs(from, at.numbers, plan_.cols(j), to, plan_.width(j), plan_.width(j));
#endif
    pack_panel<T, F>(from, at.kc, plan_.cols(j), to, plan_.width(j), plan_.width(j));
  }
  // Where row tile i lies among all that are packed.
  F* tile_packed(int64_t i) const {
    return a_packed() + (plan_.packed_a == PackedA::rows ? plan_.tiles.begin(i) * plan_.a_pitch : i * plan_.tile_pitch);
  }
#if LEVIN_VECTOR_BYTES == 64
  void pack_pairs(const Block& at, const T* from, int64_t h, PairBits* to) const {
    if (plan_.packed_a == PackedA::rows) {
      for (int64_t r = 0; r < h; ++r) copy_pairs(from + r * at.a.row, at.a.col, to + r * plan_.a_pitch, at.numbers);
      return;
    }
    for (int64_t k = 0; k < at.kc; ++k) {
      const T* const first = from + 2 * k * at.a.col;
      zip_pairs(first, 2 * k + 1 < at.numbers ? first + at.a.col : nullptr, to + k * h, h);
    }
  }
#endif
  // Row tile i: its rows, a_pitch apart, or [k, rows].
  void pack_tile(const Block& at, int64_t i, F* to) const {
    const int64_t i0 = plan_.tiles.begin(i), h = plan_.tiles.begin(i + 1) - i0;
    const T* const from = at.a.data + i0 * at.a.row;
#if LEVIN_VECTOR_BYTES == 64
    if constexpr (kPairs) return pack_pairs(at, from, h, reinterpret_cast<PairBits*>(to));
#endif
    if (plan_.packed_a == PackedA::rows) {
      for (int64_t r = 0; r < h; ++r) copy_run(from + r * at.a.row, at.a.col, to + r * plan_.a_pitch, at.kc);
      return;
    }
    if constexpr (kPlain) {
      if (at.a.col == 1) return pack_rows_as_tile(from, at.a.row, int(h), at.kc, to);
    }
    for (int64_t k = 0; k < at.kc; ++k) to = copy_tile_row(from + k * at.a.col, h, to);
  }
  // How many row tiles from i on are copied together: of A^T up to eight, of one height.
  int64_t tiles_together(const Block& at, int64_t i, int64_t i_end) const {
    if (!kPlain || plan_.packed_a != PackedA::tiles || at.a.row != 1 || at.a.col == 1) return 1;
    const RowTiles& tiles = plan_.tiles;
    const int64_t same = i < tiles.taller ? std::min(i_end, tiles.taller) : i_end;
    int64_t count = std::min(same - i, kTilesTogether);
    const int64_t last = plan_.size.m - kSquareRows<F>;  // where copies, which read whole vectors, stay in a row of A^T
    while (count > 1 && tiles.begin(i + count - 1) > last) --count;
    return count;
  }
  // Row tile i of [i, i_end) to place(i); tiles of A^T are tile_pitch apart.
  template <class Place>
  void pack_tiles(const Block& at, int64_t i, int64_t i_end, const Place& place) const {
    while (i < i_end) {
      const int64_t count = tiles_together(at, i, i_end);
      if (count == 1) pack_tile(at, i, place(i));
      if constexpr (kPlain) {
        const int64_t i0 = plan_.tiles.begin(i), h = plan_.tiles.begin(i + 1) - i0;
        if (count > 1) pack_columns_as_tiles(at.a.data + i0, at.a.col, h, at.kc, count, place(i), plan_.tile_pitch);
      }
      i += count;
    }
  }
  void pack(const Block& at) const {
    const bool all = plan_.packed_b == PackedB::all_panels, last = plan_.packed_b == PackedB::last_panel;
    const int64_t first_panel = all ? 0 : plan_.panels - 1;
    const int64_t a_pieces = plan_.packed_a == PackedA::nothing || plan_.a_by_task ? 0 : plan_.tiles.count;
    const int64_t b_pieces = all || last ? plan_.panels - first_panel : 0;
    const int64_t grain = std::max<int64_t>(1, kChunkFlops / 16 / (std::max<int64_t>(at.kc, 1) * N));
    on_.parallel_for(a_pieces + b_pieces, plan_.spread ? grain : a_pieces + b_pieces, [&](int64_t from, int64_t to) {
      pack_tiles(at, from, std::min(to, a_pieces), [&](int64_t i) { return tile_packed(i); });
      for (int64_t piece = std::max(from, a_pieces); piece < to; ++piece) {
        const int64_t j = first_panel + piece - a_pieces;
        pack_panel_of(at, j, b_packed() + (all ? j * N * at.kc : 0));
      }
    });
  }

  // The sums of row tile i and panel j, which lies at bt; `own`: the row tile where the task has packed it. Inlined:
  // the call would take 3 % of a tile of 64 steps.
  [[gnu::always_inline]] void sum_tile(const Block& at, int64_t i, int64_t j, const F* bt, int64_t b_row,
                                       const TileOut<F>& out, const F* own = nullptr) const {
    const int64_t i0 = plan_.tiles.begin(i), h = plan_.tiles.begin(i + 1) - i0;
    const TileFn<F> run = tile_for(h, plan_.width(j));
    if (plan_.packed_a == PackedA::nothing) {
      const T* const rows = at.a.data + i0 * a_.row;
      if constexpr (kPlain) run(at.kc, rows, a_.row, a_.col, bt, b_row, out);
      if constexpr (kPairs) run(at.kc, reinterpret_cast<const F*>(rows), a_.row / 2, 1, bt, b_row, out);
      return;
    }
    const F* const rows = own ? own : tile_packed(i);
    if (plan_.packed_a == PackedA::tiles) return run(at.kc, rows, 1, h, bt, b_row, out);
    run(at.kc, rows, plan_.a_pitch, 1, bt, b_row, out);
  }
  // The same into `sums`, over the blocks of k so far. Returns whether more will follow; then `sums` is not of use.
  bool sum_blocks(const Block& at, int64_t i, int64_t j, const F* bt, int64_t b_row, F* sums,
                  const F* own = nullptr) const {
    sum_tile(at, i, j, bt, b_row, {sums, N, F(1), F(0), nullptr, nullptr}, own);
    if (!sums_wait_) return false;
    const int64_t i0 = plan_.tiles.begin(i), h = plan_.tiles.begin(i + 1) - i0, cols = plan_.cols(j);
    F* const kept = waiting() + i0 * plan_.size.n + j * N;
    const bool more = at.index < plan_.k_blocks - 1;
    if (more) {
      put_sums<F, F, F>(sums, N, h, cols, F(1), F(at.index > 0), nullptr, nullptr, kept, plan_.size.n);
    } else {
      put_sums<F, F, F>(kept, plan_.size.n, h, cols, F(1), F(1), nullptr, nullptr, sums, N);
    }
    return more;
  }
  // Row tiles [i, i_end), tiles_at_once at most, times panel j, which lies at bt.
  void multiply(const Block& at, int64_t i, int64_t i_end, int64_t j, const F* bt, int64_t b_row,
                const F* own = nullptr) const {
    if (turned_) return multiply_turned(at, i, i_end, j, bt, b_row);
    for (; i < i_end; ++i) {
      const int64_t i0 = plan_.tiles.begin(i), j0 = j * N, cols = plan_.cols(j);
      const auto [alpha, beta, col_bias, row_bias] = epilogue(at, i0, j0);
      C* const to = c_ + i0 * ldc_ + j0;
      if constexpr (std::is_same_v<C, F> && kPlain) {
        if (cols == plan_.width(j)) {
          sum_tile(at, i, j, bt, b_row, {to, ldc_, alpha, beta, col_bias, row_bias}, own);
          continue;
        }
      }
      F sums[size_t(kSquareRows<F> * N)];
      if (!sum_blocks(at, i, j, bt, b_row, sums, own))
        put(sums, N, plan_.tiles.begin(i + 1) - i0, cols, alpha, beta, col_bias, row_bias, to);
    }
  }
  void multiply_turned(const Block& at, int64_t i, int64_t i_end, int64_t j, const F* bt, int64_t b_row) const {
    const int64_t i0 = plan_.tiles.begin(i), j0 = j * N, rows = plan_.cols(j), cols = plan_.tiles.begin(i_end) - i0;
    const auto [alpha, beta, col_bias, row_bias] = epilogue(at, j0, i0);
    C* const to = c_ + j0 * ldc_ + i0;
    F sums[size_t(kSquareRows<F> * N)], turned[size_t(N * kTurnedPitch)];
    bool more = false;
    for (int64_t t = i; t < i_end; ++t) {
      const int64_t first = (t - i) * rows / (i_end - i), end = (t - i + 1) * rows / (i_end - i);
      prefetch_to_write(to + first * ldc_, ldc_, end - first, cols);
      more = sum_blocks(at, t, j, bt, b_row, sums);
      if (!more) turn_tile(sums, turned + (plan_.tiles.begin(t) - i0), kTurnedPitch);
    }
    if (!more) put(turned, kTurnedPitch, rows, cols, alpha, beta, col_bias, row_bias, to);
  }
  // How sums become the piece of C at [row, col].
  struct Epilogue {
    F alpha, beta;
    const T *col_bias, *row_bias;
  };
  Epilogue epilogue(const Block& at, int64_t row, int64_t col) const {
    const bool later = std::is_same_v<C, F> && at.index > 0;  // C holds the sums so far
    return {F(options_.alpha), later ? F(1) : F(options_.beta),
            later || !options_.col_bias ? nullptr : options_.col_bias + col,
            later || !options_.row_bias ? nullptr : options_.row_bias + row};
  }
  // Not inlined: its two calls would double its code.
  [[gnu::noinline]] void put(const F* sums, int64_t ld, int64_t rows, int64_t cols, F alpha, F beta, const T* col_bias,
                             const T* row_bias, C* to) const {
#if LEVIN_VECTOR_BYTES == 64
    if constexpr (kPairs) return put_sums_in_bf16(sums, ld, rows, cols, alpha, beta, col_bias, row_bias, to, ldc_);
#endif
    if (turned_) return put_turned(sums, ld, rows, cols, alpha, beta, col_bias, row_bias, to, ldc_);
    put_sums(sums, ld, rows, cols, alpha, beta, col_bias, row_bias, to, ldc_);
  }

  // A task is `at_once` panels, which it packs, times all rows.
  void multiply_panels(const Block& at) const {
    const int64_t groups = (plan_.panels + plan_.at_once - 1) / plan_.at_once;
    const double task_flops = 2.0 * double(plan_.size.m) * double(N * plan_.at_once) * double(at.kc + 8);
    const int64_t grain = std::max<int64_t>(1, int64_t(double(kChunkFlops) / task_flops));
    on_.parallel_for(groups, plan_.spread ? grain : groups, [&](int64_t from, int64_t to) {
      const int64_t panel_numbers = at.kc * N * plan_.at_once;
      const lib::Scratch memory(size_t(panel_numbers + (plan_.a_by_task ? kSquareRows<F> * plan_.a_pitch : 0)) *
                                sizeof(F));
      F* const own = plan_.a_by_task ? memory.as<F>() + panel_numbers : nullptr;
      for (int64_t group = from; group < to; ++group) {
        const int64_t j0 = group * plan_.at_once, j_end = std::min(plan_.panels, j0 + plan_.at_once);
        const auto panel = [&](int64_t j) { return memory.as<F>() + (j - j0) * at.kc * N; };
        for (int64_t j = j0; j < j_end; ++j) pack_panel_of(at, j, panel(j));
        for (int64_t i = 0; i < plan_.tiles.count; i += plan_.tiles_at_once) {
          if (own) pack_tile(at, i, own);
          for (int64_t j = j0; j < j_end; ++j)
            multiply(at, i, std::min(plan_.tiles.count, i + plan_.tiles_at_once), j, panel(j), plan_.width(j), own);
        }
      }
    });
  }
  // A task is some row tiles, which it packs, times all panels, of which it packs as many at a time as L2 has room for.
  // Where that is all of them, a packed tile is of no further use after its products.
  void multiply_rows(const Block& at) const {
    const int64_t tasks = plan_.row_tasks, panel_numbers = N * at.kc;
    const int64_t at_once = std::clamp<int64_t>(kOwnB / (panel_numbers * int64_t(sizeof(F))), 1, plan_.panels);
    const bool once = at_once == plan_.panels;
    on_.parallel_for(tasks, plan_.spread ? 1 : tasks, [&](int64_t from, int64_t to) {
      const int64_t i0 = plan_.tiles.count * from / tasks, i_end = plan_.tiles.count * to / tasks;
      const int64_t kept = once ? std::min(i_end - i0, kTilesTogether) : i_end - i0;
      const lib::Scratch memory(size_t(at_once * panel_numbers + kept * plan_.tile_pitch) * sizeof(F));
      F* const tiles = memory.as<F>() + at_once * panel_numbers;
      for (int64_t j0 = 0; j0 < plan_.panels; j0 += at_once) {
        const int64_t j_end = std::min(plan_.panels, j0 + at_once);
        const auto panel = [&](int64_t j) { return memory.as<F>() + (j - j0) * panel_numbers; };
        const auto tile = [&](int64_t i) {
          return tiles + (once ? (i - i0) % kTilesTogether : i - i0) * plan_.tile_pitch;
        };
        for (int64_t j = j0; j < j_end; ++j) pack_panel_of(at, j, panel(j));
        for (int64_t i = i0; i < i_end; ++i) {
          if (j0 == 0 && (i - i0) % kTilesTogether == 0) pack_tiles(at, i, std::min(i_end, i + kTilesTogether), tile);
          for (int64_t j = j0; j < j_end; ++j) multiply(at, i, i + 1, j, panel(j), plan_.width(j), tile(i));
        }
      }
    });
  }
  // A task is `tiles_at_once` row tiles times `at_once` panels. Neighbouring tasks share their panels of B, unless all
  // of B stays in a core's cache anyway: they then walk along the rows of C, and a thread writes rows of C as one
  // piece. What reads or updates C next is cut the same way, and memory that another core wrote last costs several
  // times as much.
  void multiply_tasks(const Block& at) const {
    const int64_t tall = plan_.tiles_at_once, rows = (plan_.tiles.count + tall - 1) / tall;
    const int64_t groups = (plan_.panels + plan_.at_once - 1) / plan_.at_once;
    const double task_flops = 2.0 * kTileRows * double(tall * N * plan_.at_once) * double(at.kc + 8);
    const int64_t grain = std::max<int64_t>(1, int64_t(double(kChunkFlops) / task_flops));
    const bool along_rows = plan_.size.n * at.kc * int64_t(sizeof(F)) <= 512 * 1024;
    on_.parallel_for(rows * groups, plan_.spread ? grain : rows * groups, [&](int64_t from, int64_t to) {
      for (int64_t task = from; task < to; ++task) {
        const int64_t row = along_rows ? task / groups : task % rows;
        const int64_t group = along_rows ? task % groups : task / rows;
        const int64_t i = row * tall, i_end = std::min(plan_.tiles.count, i + tall);
        const int64_t j_end = std::min(plan_.panels, (group + 1) * plan_.at_once);
        for (int64_t j = group * plan_.at_once; j < j_end; ++j) {
          if (plan_.packed_b == PackedB::all_panels) {
            multiply(at, i, i_end, j, b_packed() + j * N * at.kc, plan_.width(j));
          } else if (plan_.packed_b == PackedB::last_panel && j == plan_.panels - 1) {
            multiply(at, i, i_end, j, b_packed(), plan_.last_width);
          } else {
            if constexpr (kPlain) multiply(at, i, i_end, j, at.b.data + j * N, b_.row);
          }
        }
      }
    });
  }

  const Cpu& on_;
  const GemmPlan<F>& plan_;
  const bool turned_;  // the plan is of C^T
  const int64_t k_;    // in numbers
  Matrix<T> a_, b_;
  C* c_;
  int64_t ldc_;
  const GemmOptions<T>& options_;
  bool sums_wait_;  // 16-bit results of several blocks of k wait in float
  lib::Scratch memory_;
};

#if LEVIN_VECTOR_BYTES == 64
// By AMX, only for a CPU that has it: gemm_amx.h.
void gemm_by_tiles(const Cpu& on, bool spread, GemmSize size, Matrix<bf16> a, Matrix<bf16> b, bf16* c, int64_t ldc,
                   const GemmOptions<bf16>& options);
void gemm_by_tiles(const Cpu& on, bool spread, GemmSize size, Matrix<bf16> a, Matrix<bf16> b, float* c, int64_t ldc,
                   const GemmOptions<bf16>& options);
#endif

template <class T, class C, bool kPairs = false>
void gemm_planned(const Cpu& on, bool spread, GemmSize size, Matrix<T> a, Matrix<T> b, C* c, int64_t ldc,
                  const GemmOptions<T>& options) {
  constexpr int64_t kNumbers = kPairs ? 2 : 1, kBlock = kPairs ? kBlockPairs : kBlockK<Accum<T>>;
  const bool turned = better_turned(size, kBlock * kNumbers, a, b);
  if (turned) {
    std::swap(size.m, size.n);
    std::swap(a, b);
    std::swap(a.row, a.col);
    std::swap(b.row, b.col);
  }
  const bool reads_a = std::is_same_v<T, Accum<T>> || (kPairs && a.col == 1 && a.row % 2 == 0 && size.k % 2 == 0 &&
                                                       reinterpret_cast<std::uintptr_t>(a.data) % 4 == 0);
  const GemmPlan<Accum<T>> plan(on.l1_ways, {size.m, size.n, (size.k + kNumbers - 1) / kNumbers}, a, b, turned, spread,
                                reads_a, kBlock);
  PlannedGemm<T, C, kPairs>(on, plan, size.k, a, b, turned, c, ldc, options).run();
}

template <class T, class C>
void gemm_one(const Cpu& on, bool spread, GemmSize size, Matrix<T> a, Matrix<T> b, C* c, int64_t ldc,
              const GemmOptions<T>& options) {
  using F = Accum<T>;
  const auto [m, n, k] = size;
  if (m <= 0 || n <= 0) return;
  if (k <= 0) {  // a and b may be null
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        const F zero = 0;
        put_sums(&zero, 1, 1, 1, F(1), F(options.beta), options.col_bias ? options.col_bias + j : nullptr,
                 options.row_bias ? options.row_bias + i : nullptr, c + i * ldc + j, ldc);
      }
    return;
  }
  if (m == 1)
    return gemv(on, spread, n, k, Matrix<T>{b.data, b.col, b.row}, a.data, a.col, options.alpha, options.beta,
                options.col_bias, 1, options.row_bias, c, 1);
  if (n == 1)
    return gemv(on, spread, m, k, a, b.data, b.row, options.alpha, options.beta, options.row_bias, 1, options.col_bias,
                c, ldc);

  if constexpr (std::is_same_v<T, F> && std::is_same_v<C, F>) {
    if (m <= kDotRows && a.col == 1 && b.row == 1 && b.col != 1 && k >= 4 * kLanes<F>)
      return gemm_by_dots(on, spread, size, a, b, c, ldc, options);
  }
#if LEVIN_VECTOR_BYTES == 64
  if constexpr (std::is_same_v<T, bf16>) {
    if (on.bf16_products == Bf16Products::tiles && m >= kTileSide && n >= kTileSide && k >= 2 * kTileSide)
      return gemm_by_tiles(on, spread, size, a, b, c, ldc, options);
    if (on.bf16_products != Bf16Products::f32) return gemm_planned<T, C, true>(on, spread, size, a, b, c, ldc, options);
  }
#endif
  gemm_planned<T, C>(on, spread, size, a, b, c, ldc, options);
}

template <class T, class C>
void gemm(const Cpu& on, GemmSize size, Matrix<T> a, Matrix<T> b, C* c, int64_t ldc,
          const GemmOptions<T>& options = {}) {
  gemm_one(on, true, size, a, b, c, ldc, options);
}

template <class T, class C>
void gemm_batched(const Cpu& on, std::span<const BatchDim> batch, GemmSize size, Matrix<T> a, Matrix<T> b, C* c,
                  int64_t ldc, const GemmOptions<T>& options = {}) {
  int64_t count = 1;
  for (const BatchDim& dim : batch) count *= dim.size;
  const auto product = [&](int64_t index, bool spread) {
    Matrix<T> ai = a, bi = b;
    C* ci = c;
    for (size_t d = batch.size(); d-- > 0;) {
      const int64_t at = index % batch[d].size;
      index /= batch[d].size;
      ai.data += at * batch[d].a;
      bi.data += at * batch[d].b;
      ci += at * batch[d].c;
    }
    gemm_one(on, spread, size, ai, bi, ci, ldc, options);
  };
  const double flops = 2.0 * double(size.m) * double(size.n) * double(std::max<int64_t>(size.k, 1)) + 1000;
  // Few large products use the threads inside each, one after the other; else each runs on one thread.
  if (count < 8 && flops > 16.0 * double(kChunkFlops)) {
    for (int64_t i = 0; i < count; ++i) product(i, true);
    return;
  }
  on.parallel_for(count, std::max<int64_t>(1, int64_t(double(kChunkFlops) / flops)), [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) product(i, false);
  });
}

// Compiled once, in gemm.cpp.
#ifdef LEVIN_COMPILE_GEMM
#define LEVIN_GEMM_IS template
#else
#define LEVIN_GEMM_IS extern template
#endif
#define LEVIN_GEMM(T, C)                                                                                              \
  LEVIN_GEMM_IS void gemm(const Cpu&, GemmSize, Matrix<T>, Matrix<T>, C*, int64_t, const GemmOptions<T>&);            \
  LEVIN_GEMM_IS void gemm_batched(const Cpu&, std::span<const BatchDim>, GemmSize, Matrix<T>, Matrix<T>, C*, int64_t, \
                                  const GemmOptions<T>&);
LEVIN_GEMM(float, float)
LEVIN_GEMM(double, double)
LEVIN_GEMM(f16, f16)
LEVIN_GEMM(bf16, bf16)
LEVIN_GEMM(f16, float)
LEVIN_GEMM(bf16, float)
#undef LEVIN_GEMM
#undef LEVIN_GEMM_IS

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
