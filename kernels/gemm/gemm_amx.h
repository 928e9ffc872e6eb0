// Products of bf16 matrices by AMX tiles, as gemm.cuh defines them; g++ on x86-64 alone, as all levels above base.
//
// Note [Products by tiles]
// Both operands are packed as pairs (Note [Pairs of bf16]) in whole tiles, zeros beyond the edges: A as rows, B as
// panels of 32 columns. Four tiles hold 32 x 32 sums. A step loads two tiles of each operand and multiplies four times:
// 4 KiB for 64 cycles of work. k is cut into blocks of kBlock pairs, whose part of a panel of B takes 32 KiB and stays
// in L1 while the rows of a task pass by. The sums of a task wait between blocks in f32. An element's sum runs over k
// in steps of 16 pairs, so its bits depend on k alone. multiply_block_by_tiles multiplies what a task has laid out by
// itself: whole tiles are read where they lie, those at an edge from a copy with zeros.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/gemm/amx_tiles.h"
#include "kernels/gemm/gemm.cuh"
#include "kernels/lib/scratch.h"

#if LEVIN_X86_LEVELS
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4")
namespace levin::kernels::cpu::v4 {

template <class Tiles, class C>
class TiledProduct {
  static constexpr std::int64_t kSide = kTileSide, kGroup = 2 * kSide;  // kGroup: rows and columns of four tiles
  static constexpr std::int64_t kBlock = 256;                           // pairs; a multiple of kSide
  static constexpr std::int64_t kMost = 4;                              // groups of rows, and panels, of a task

 public:
  TiledProduct(const Cpu& on, bool spread, GemmSize size, Matrix<bf16> a, Matrix<bf16> b, C* c, std::int64_t ldc,
               const GemmOptions<bf16>& options)
      : on_(on),
        spread_(spread && 2.0 * double(size.m) * double(size.n) * double(size.k) >= 2.0 * double(kChunkFlops)),
        size_(size),
        a_(a),
        b_(b),
        c_(c),
        ldc_(ldc),
        options_(options),
        steps_((size.k + 2 * kSide - 1) / (2 * kSide)),
        // Rows are an odd number of cache lines apart: those of a tile then fall into different sets.
        pitch_(kSide * (steps_ | 1)),
        row_tiles_((size.m + kSide - 1) / kSide),
        groups_((size.m + kGroup - 1) / kGroup),
        panels_((size.n + kGroup - 1) / kGroup),
        memory_(static_cast<std::size_t>(row_tiles_ * kSide * pitch_ + panels_ * panel_size()) * sizeof(PairBits)) {}

  void run() const {
    pack();
    std::int64_t rows = std::min(kMost, groups_), cols = std::min(kMost, panels_);
    const auto tasks = [&] { return ((groups_ + rows - 1) / rows) * ((panels_ + cols - 1) / cols); };
    while (spread_ && tasks() < 4 * num_threads() && rows * cols > 1) (rows > cols ? rows : cols) /= 2;
    const std::int64_t across = (panels_ + cols - 1) / cols;
    const double flops = 2.0 * double(rows * cols * kGroup * kGroup) * double(size_.k);
    const auto grain = std::max<std::int64_t>(1, static_cast<std::int64_t>(8.0 * double(kChunkFlops) / flops));
    on_.parallel_for(tasks(), spread_ ? grain : tasks(), [&](std::int64_t from, std::int64_t to) {
      const lib::Scratch sums(static_cast<std::size_t>(rows * cols * kGroup * kGroup) * sizeof(float));
      Tiles tiles;
      for (std::int64_t t = from; t < to; ++t) {
        const std::int64_t i = t / across * rows, j = t % across * cols;
        multiply(tiles, i, std::min(i + rows, groups_), j, std::min(j + cols, panels_), sums.as<float>());
      }
    });
  }

 private:
  std::int64_t panel_size() const { return steps_ * kSide * kGroup; }
  PairBits* packed_a() const { return memory_.template as<PairBits>(); }
  PairBits* packed_b() const { return packed_a() + row_tiles_ * kSide * pitch_; }

  void pack() const {
    const std::int64_t pieces = row_tiles_ + panels_, piece = kGroup * size_.k;
    on_.parallel_for(pieces, spread_ ? std::max<std::int64_t>(1, 65536 / std::max<std::int64_t>(1, piece)) : pieces,
                     [&](std::int64_t from, std::int64_t to) {
                       for (std::int64_t i = from; i < to; ++i)
                         i < row_tiles_ ? pack_rows(i) : pack_panel(i - row_tiles_);
                     });
  }
  void pack_rows(std::int64_t tile) const {
    const std::int64_t first = tile * kSide, rows = std::min(kSide, size_.m - first), pairs = (size_.k + 1) / 2;
    PairBits* const to = packed_a() + first * pitch_;
    if (a_.row == 1 && a_.col != 1) return turn_rows(a_.data + first, rows, to);
    for (std::int64_t row = 0; row < kSide; ++row) {
      PairBits* const line = to + row * pitch_;
      const std::int64_t used = row < rows ? pairs : 0;
      if (row < rows) copy_pairs(a_.data + (first + row) * a_.row, a_.col, line, size_.k);
      std::fill(line + used, line + steps_ * kSide, 0);
    }
  }
  // Of a matrix whose columns are contiguous: square by square.
  void turn_rows(const bf16* from, std::int64_t rows, PairBits* to) const {
    alignas(64) PairBits square[kSide * kSide];
    for (std::int64_t step = 0; step < steps_; ++step) {
      std::memset(square, 0, sizeof square);
      for (std::int64_t pair = 0; pair < kSide; ++pair) {
        const std::int64_t k = 2 * (step * kSide + pair);
        if (k >= size_.k) break;
        const bf16* const numbers = from + k * a_.col;
        zip_pairs(numbers, k + 1 < size_.k ? numbers + a_.col : nullptr, square + pair * kSide, rows);
      }
      transpose_square(reinterpret_cast<const float*>(square), kSide, reinterpret_cast<float*>(to + step * kSide),
                       pitch_);
    }
  }
  void pack_panel(std::int64_t j) const {
    PairBits* const to = packed_b() + j * panel_size();
    const std::int64_t cols = std::min(kGroup, size_.n - j * kGroup), pairs = (size_.k + 1) / 2;
    pack_panel_pairs({b_.data + j * kGroup * b_.col, b_.row, b_.col}, size_.k, cols, reinterpret_cast<float*>(to),
                     kGroup, kGroup);
    std::fill(to + pairs * kGroup, to + panel_size(), 0);
  }

  // Groups [i0, i1) of rows times panels [j0, j1).
  void multiply(Tiles& tiles, std::int64_t i0, std::int64_t i1, std::int64_t j0, std::int64_t j1, float* sums) const {
    const std::int64_t ld = (j1 - j0) * kGroup;
    for (std::int64_t k = 0; k < steps_; k += kBlock / kSide) {
      const std::int64_t steps = std::min(kBlock / kSide, steps_ - k);
      for (std::int64_t j = j0; j < j1; ++j) {
        for (std::int64_t i = i0; i < i1; ++i) {
          const PairBits* const a = packed_a() + i * kGroup * pitch_ + k * kSide;
          const PairBits* const b = packed_b() + j * panel_size() + k * kSide * kGroup;
          float* const to = sums + (i - i0) * kGroup * ld + (j - j0) * kGroup;
          const bool two_rows = size_.m - i * kGroup > kSide, two_cols = size_.n - j * kGroup > kSide;
          const auto block = two_rows ? (two_cols ? &TiledProduct::add<2, 2> : &TiledProduct::add<2, 1>)
                                      : (two_cols ? &TiledProduct::add<1, 2> : &TiledProduct::add<1, 1>);
          (this->*block)(tiles, k, steps, a, b, to, ld);
        }
      }
    }
    for (std::int64_t i = i0 * kGroup; i < std::min(i1 * kGroup, size_.m); i += kGroup)
      put(i, std::min(kGroup, size_.m - i), j0 * kGroup, std::min(j1 * kGroup, size_.n), sums + (i - i0 * kGroup) * ld,
          ld);
  }

  // Steps from `k` on of H x W tiles of sums; the first step of all begins with zeros.
  template <int H, int W>
  void add(Tiles& t, std::int64_t k, std::int64_t steps, const PairBits* a, const PairBits* b, float* c,
           std::int64_t ld) const {
    constexpr std::int64_t kBytes = sizeof(PairBits);
    each_sum<H, W>([&]<int I, int J>() {
      if (k == 0)
        t.template zero<2 * I + J>();
      else
        t.template load<2 * I + J>(c + I * kSide * ld + J * kSide, ld * kBytes);
    });
    for (std::int64_t s = 0; s < steps; ++s, a += kSide, b += kSide * kGroup) {
      t.template load<4>(a, pitch_ * kBytes);
      if constexpr (H == 2) t.template load<5>(a + kSide * pitch_, pitch_ * kBytes);
      t.template load<6>(b, kGroup * kBytes);
      if constexpr (W == 2) t.template load<7>(b + kSide, kGroup * kBytes);
      each_sum<H, W>([&]<int I, int J>() { t.template multiply<2 * I + J, 4 + I, 6 + J>(); });
    }
    each_sum<H, W>([&]<int I, int J>() { t.template store<2 * I + J>(c + I * kSide * ld + J * kSide, ld * kBytes); });
  }
  template <int H, int W, class F>
  [[gnu::always_inline]] static void each_sum(F&& f) {
    f.template operator()<0, 0>();
    if constexpr (W == 2) f.template operator()<0, 1>();
    if constexpr (H == 2) f.template operator()<1, 0>();
    if constexpr (H == 2 && W == 2) f.template operator()<1, 1>();
  }

  void put(std::int64_t i, std::int64_t rows, std::int64_t j, std::int64_t j_end, const float* sums,
           std::int64_t ld) const {
    put_sums_in_bf16(sums, ld, rows, j_end - j, static_cast<float>(options_.alpha), static_cast<float>(options_.beta),
                     options_.col_bias ? options_.col_bias + j : nullptr,
                     options_.row_bias ? options_.row_bias + i : nullptr, c_ + i * ldc_ + j, ldc_);
  }

  const Cpu& on_;
  const bool spread_;  // over threads
  const GemmSize size_;
  const Matrix<bf16> a_, b_;
  C* const c_;
  const std::int64_t ldc_;
  const GemmOptions<bf16>& options_;
  const std::int64_t steps_;  // of a tile along k
  const std::int64_t pitch_;  // pairs from row to row of packed A
  const std::int64_t row_tiles_, groups_, panels_;
  const lib::Scratch memory_;
};

// multiply_block of pairs (gemm_tile.cuh); A is not by tile, its columns are contiguous.
template <class Tiles>
class TiledBlock {
  static constexpr std::int64_t kSide = kTileSide, kGroup = 2 * kSide, kBytes = sizeof(PairBits);

 public:
  TiledBlock(std::int64_t m, std::int64_t n, std::int64_t k, TileRows<float> a, const float* b, std::int64_t b_row)
      : m_(m), n_(n), k_(k), a_(a), b_(b), b_row_(b_row) {}

  // The sums of rows from i on and columns from j on: at most 32 of each, rows kGroup apart. What lies beyond m and n
  // in the last tiles may be anything.
  void sums(std::int64_t i, std::int64_t j, float* to) {
    const bool second_rows = m_ - i > kSide, second_cols = n_ - j > kSide;
    t_.template zero<0>();
    t_.template zero<1>();
    t_.template zero<2>();
    t_.template zero<3>();
    for (std::int64_t k = 0; k < k_; k += kSide) {
      left<4>(i, k);
      right<6>(j, k);
      t_.template multiply<0, 4, 6>();
      if (second_rows) {
        left<5>(i + kSide, k);
        t_.template multiply<2, 5, 6>();
      }
      if (!second_cols) continue;
      right<7>(j + kSide, k);
      t_.template multiply<1, 4, 7>();
      if (second_rows) t_.template multiply<3, 5, 7>();
    }
    t_.template store<0>(to, kGroup * kBytes);
    t_.template store<1>(to + kSide, kGroup * kBytes);
    t_.template store<2>(to + kSide * kGroup, kGroup * kBytes);
    t_.template store<3>(to + kSide * kGroup + kSide, kGroup * kBytes);
  }

 private:
  template <int N>
  void left(std::int64_t i, std::int64_t k) {
    const std::int64_t rows = std::min(kSide, m_ - i), pairs = std::min(kSide, k_ - k);
    const float* const from = a_.data + i * a_.row + k;
    if (rows == kSide && pairs == kSide) return t_.template load<N>(from, a_.row * kBytes);
    copied<N>(from, a_.row, rows, pairs);
  }
  // The rows of B have room for whole vectors.
  template <int N>
  void right(std::int64_t j, std::int64_t k) {
    const std::int64_t pairs = std::min(kSide, k_ - k);
    const float* const from = b_ + k * b_row_ + j;
    if (pairs == kSide) return t_.template load<N>(from, b_row_ * kBytes);
    copied<N>(from, b_row_, pairs, kSide);
  }
  template <int N>
  void copied(const float* from, std::int64_t row, std::int64_t rows, std::int64_t cols) {
    std::memset(edge_, 0, sizeof edge_);
    for (std::int64_t r = 0; r < rows; ++r)
      std::memcpy(edge_[r], from + r * row, static_cast<std::size_t>(cols) * sizeof(float));
    t_.template load<N>(edge_, sizeof edge_[0]);
  }

  Tiles t_;
  const std::int64_t m_, n_, k_;
  const TileRows<float> a_;
  const float* const b_;
  const std::int64_t b_row_;
  alignas(64) float edge_[kSide][kSide];
};

template <class Tiles>
void multiply_block_by_tiles(std::int64_t m, std::int64_t n, std::int64_t k, TileRows<float> a, const float* b,
                             std::int64_t b_row, TileOut<float> out, std::int64_t) {
  constexpr std::int64_t kGroup = 2 * kTileSide;
  TiledBlock<Tiles> block(m, n, k, a, b, b_row);
  alignas(64) float sums[static_cast<std::size_t>(kGroup * kGroup)];
  for (std::int64_t j = 0; j < n; j += kGroup) {
    for (std::int64_t i = 0; i < m; i += kGroup) {
      block.sums(i, j, sums);
      put_sums(sums, kGroup, std::min(kGroup, m - i), std::min(kGroup, n - j), out.alpha, out.beta,
               out.col_bias ? out.col_bias + j : nullptr, out.row_bias ? out.row_bias + i : nullptr,
               out.c + i * out.ldc + j, out.ldc);
    }
  }
}

}  // namespace levin::kernels::cpu::v4
#pragma GCC pop_options
#endif
