// LU factors with partial pivoting on the CPU. kernels/linalg/linalg.h says what a level's factor_lu computes.
//
// Note [Recursive LU]
// The columns are halved until kPanelColumns are left (Toledo, "Locality of Reference in LU Decomposition with Partial
// Pivoting", 1997). After the left half, each strip of columns of the right half (Note [Strips] in triangles.cuh) is
// one task: it exchanges its rows, solves with l's triangle, and subtracts the product of l's rows below and what it
// solved, which stays in the cache as the product's second matrix. A panel is factored in a copy by columns, where the
// search for a pivot and the products run along vectors. Rows of 16 numbers, as they lie, would need an exchange of
// lanes for each number of a column.
//
// A pivot is the first of the largest numbers of a column. NaN is larger than none: it is a pivot only where it stands
// on the diagonal, and then all below it becomes NaN. A column of zeros stays as it is, and the others go on.
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_LU_CUH
#define LEVIN_KERNELS_LU_CUH

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/executor/cpu.h"
#include "kernels/gemm/gemm_tile.cuh"
#include "kernels/lib/scratch.h"
#include "kernels/linalg/columns.cuh"
#include "kernels/linalg/each_matrix.h"
#include "kernels/linalg/triangles.cuh"

#define LEVIN_LEVEL_FILE "kernels/linalg/lu.cuh"
#include "kernels/executor/each_level.h"

namespace levin::kernels::cpu {
LEVIN_PICK_EVERY(factor_lu)
}  // namespace levin::kernels::cpu
#endif
#else
namespace levin::kernels::cpu::LEVIN_LEVEL {

inline constexpr std::int64_t kPanelColumns = 16;

// A panel: the columns [0, w) of m rows, in a copy by columns.
template <class F>
class LuPanel {
  static constexpr std::int64_t P = kPanelColumns;
  static constexpr int L = kLanes<F>;
  using Vec = Vector<F>;
  using Index = std::conditional_t<sizeof(F) == 8, std::int64_t, std::int32_t>;
  using Places = Vector<Index>;

 public:
  // Of a copy of m rows.
  static std::int64_t numbers(std::int64_t m) { return P * pitch_of<F>(m); }

  LuPanel(F* a, std::int64_t ld, std::int64_t m, std::int64_t w, F* columns)
      : a_(a), ld_(ld), m_(m), w_(w), pitch_(pitch_of<F>(m)), columns_(columns) {}

  // Factors the panel; pivots[j]: the row that was exchanged with row j. Returns whether no pivot is 0.
  bool factor(std::int64_t* pivots) {
    load();
    bool is_regular = true;
    for (std::int64_t j = 0; j < w_; ++j) {
      const std::int64_t at = finish_column(j);
      pivots[j] = at;
      if (at != j)
        for (std::int64_t q = 0; q < w_; ++q) std::swap(column(q)[j], column(q)[at]);
      finish_row(j);
      const F pivot = column(j)[j];
      if (pivot == F(0)) {
        is_regular = false;
      } else {
        divide(j, pivot);
      }
    }
    store();
    return is_regular;
  }

 private:
  F* column(std::int64_t j) const { return columns_ + j * pitch_; }
  std::int64_t squares() const { return w_ == P ? m_ / L * L : 0; }  // rows that are copied as squares

  void load() {
    const std::int64_t whole = squares();
    for (std::int64_t r = 0; r < whole; r += L)
      for (std::int64_t q = 0; q < P; q += L) transpose_square(a_ + r * ld_ + q, ld_, column(q) + r, pitch_);
    for (std::int64_t q = 0; q < w_; ++q) {
      copy_run(a_ + whole * ld_ + q, ld_, column(q) + whole, m_ - whole);
      for (std::int64_t r = m_; r % L != 0; ++r) column(q)[r] = 0;
    }
  }
  void store() const {
    const std::int64_t whole = squares();
    for (std::int64_t r = 0; r < whole; r += L)
      for (std::int64_t q = 0; q < P; q += L) transpose_square(column(q) + r, pitch_, a_ + r * ld_ + q, ld_);
    for (std::int64_t r = whole; r < m_; ++r)
      for (std::int64_t q = 0; q < w_; ++q) a_[r * ld_ + q] = column(q)[r];
    for (std::int64_t r = 0; r < w_; ++r)
      for (std::int64_t q = r + 1; q < w_; ++q) a_[r * ld_ + q] = upper_[r * P + q];
  }

  // The largest numbers so far, and their rows: one a lane.
  struct Largest {
    Vec size;
    Places row;
  };
  // N vectors of column j from row r on, minus the products of the columns before and row j of u.
  template <int N>
  [[gnu::always_inline]] void subtract(std::int64_t j, std::int64_t r, Largest& most) const {
    Vec sum[N];
    F* const to = column(j) + r;
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) __builtin_memcpy(&sum[i], to + i * L, sizeof(Vec));
    const F *from = columns_ + r, *u = upper_ + j;
    for (std::int64_t p = 0; p < j; ++p, from += pitch_, u += P) {
#pragma GCC unroll 4
      for (int i = 0; i < N; ++i) {
        Vec l;
        __builtin_memcpy(&l, from + i * L, sizeof(Vec));
        sum[i] -= l * *u;
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) {
      __builtin_memcpy(to + i * L, &sum[i], sizeof(Vec));
      const Places rows = lanes() + Index(r + i * L);
      const Vec size = sum[i] < F(0) ? -sum[i] : sum[i];
      const Places is_larger = (size > most.size) & (rows >= Index(j));
      most.size = is_larger ? size : most.size;
      most.row = is_larger ? rows : most.row;
    }
  }
  [[gnu::always_inline]] static Places lanes() {
    Places all;
    for (int i = 0; i < L; ++i) all[i] = Index(i);
    return all;
  }

  // Subtracts what is left to subtract from column j, and returns its pivot's row.
  std::int64_t finish_column(std::int64_t j) const {
    Largest most{Vec{} - F(1), Places{}};
    std::int64_t r = j / L * L;
    for (; r + 4 * L <= m_; r += 4 * L) subtract<4>(j, r, most);
    for (; r < m_; r += L) subtract<1>(j, r, most);
    const F top = column(j)[j];
    if (top != top) return j;
    F size[L];
    Index row[L];
    std::memcpy(size, &most.size, sizeof size);
    std::memcpy(row, &most.row, sizeof row);
#pragma GCC unroll 4
    for (int half = L / 2; half > 0; half /= 2)
#pragma GCC unroll 8
      for (int i = 0; i < half; ++i) {
        const int other = i + half;
        const bool wins = size[other] > size[i] || (size[other] == size[i] && row[other] < row[i]);
        size[i] = wins ? size[other] : size[i];
        row[i] = wins ? row[other] : row[i];
      }
    return row[0];
  }

  // Row j of u, whose columns after j still miss the products of the rows above.
  void finish_row(std::int64_t j) {
    F* const row = upper_ + j * P;
    for (std::int64_t q = j + 1; q < w_; ++q) row[q] = column(q)[j];
    for (std::int64_t p = 0; p < j; ++p) {
      const F l = column(p)[j];
      const F* const above = upper_ + p * P;
      for (std::int64_t q = 0; q < P; ++q) row[q] -= l * above[q];
    }
  }

  // Column j of l. A pivot so small that it has no inverse divides.
  void divide(std::int64_t j, F pivot) const {
    const F inverse = F(1) / pivot;
    const bool multiplies = std::isfinite(inverse);
    F* const to = column(j);
    for (std::int64_t r = j / L * L; r < m_; r += L) {
      Vec x;
      __builtin_memcpy(&x, to + r, sizeof(Vec));
      x = multiplies ? x * inverse : x / pivot;
      __builtin_memcpy(to + r, &x, sizeof(Vec));
    }
    to[j] = pivot;
  }

  F* a_;
  std::int64_t ld_, m_, w_, pitch_;
  F* columns_;
  F upper_[std::size_t(P * P)] = {};  // rows of u
};

// The LU of a [n, n] with n <= kPanelColumns in a copy by rows. Of so few rows most of the time is the way from one
// pivot to the next, which is shorter than in a panel: no lanes are compared.
template <class F>
bool factor_few(F* a, std::int64_t ld, std::int64_t n, std::int64_t* pivots) {
  constexpr std::int64_t P = kPanelColumns;
  alignas(64) F rows[std::size_t(P * P)];
  for (std::int64_t r = 0; r < n; ++r) {
    for (std::int64_t c = 0; c < P; ++c) rows[r * P + c] = 0;
    copy_run(a + r * ld, 1, rows + r * P, n);
  }
  bool is_regular = true;
  for (std::int64_t j = 0; j < n; ++j) {
    std::int64_t at = j;
    F most = std::abs(rows[j * P + j]);
    for (std::int64_t r = j + 1; r < n; ++r) {
      const F size = std::abs(rows[r * P + j]);
      at = size > most ? r : at;
      most = size > most ? size : most;
    }
    pivots[j] = at;
    F *const top = rows + j * P, *const other = rows + at * P;
    for (std::int64_t c = 0; c < P; ++c) {
      const F x = other[c];
      other[c] = top[c];
      top[c] = x;
    }
    const F pivot = top[j];
    is_regular = is_regular && pivot != F(0);
    const F inverse = F(1) / pivot;
    const bool multiplies = std::isfinite(inverse);
    for (std::int64_t r = j + 1; r < n; ++r) {
      F* const row = rows + r * P;
      F l = row[j];
      if (pivot != F(0)) l = multiplies ? l * inverse : l / pivot;
      for (std::int64_t c = 0; c < P; ++c) row[c] = c > j ? row[c] - l * top[c] : row[c];
      row[j] = l;
    }
  }
  for (std::int64_t r = 0; r < n; ++r) copy_run(rows + r * P, 1, a + r * ld, n);
  return is_regular;
}

// The LU of one matrix a [n, n], by rows.
template <class F>
class RecursiveLu {
 public:
  RecursiveLu(const Cpu& on, F* a, std::int64_t n, std::int64_t* pivots, F* room)
      : on_(on), a_(a), n_(n), pivots_(pivots), ones_(room), panel_(room + n) {
    for (std::int64_t i = 0; i < n; ++i) ones_[i] = 1;
  }
  // Numbers of `room`.
  static std::int64_t numbers(std::int64_t n) { return n + LuPanel<F>::numbers(n); }

  // Factors the columns [begin, end) of the rows from `begin` on; pivots_[j]: the row that was exchanged with row j.
  // Returns whether no pivot is 0.
  bool factor(std::int64_t begin, std::int64_t end) {
    const std::int64_t w = end - begin;
    if (n_ - begin <= kPanelColumns) {
      const bool is_regular = factor_few(at(begin, begin), n_, w, pivots_ + begin);
      for (std::int64_t j = begin; j < end; ++j) pivots_[j] += begin;
      return is_regular;
    }
    if (w <= kPanelColumns) {
      LuPanel<F> panel(at(begin, begin), n_, n_ - begin, w, panel_);
      const bool is_regular = panel.factor(pivots_ + begin);
      for (std::int64_t j = begin; j < end; ++j) pivots_[j] += begin;
      return is_regular;
    }
    const std::int64_t middle = begin + (w / 2 + kPanelColumns - 1) / kPanelColumns * kPanelColumns;
    const bool left = factor(begin, middle);
    update(begin, middle, end);
    const bool right = factor(middle, end);
    const std::int64_t grain = std::max(std::int64_t{64}, kTaskNumbers / (end - middle));
    on_.parallel_for(middle - begin, grain,
                     [&](std::int64_t from, std::int64_t to) { exchange(middle, end, begin + from, begin + to); });
    return left && right;
  }

 private:
  static constexpr std::int64_t kTaskNumbers = 32 * 1024;    // that are exchanged
  static constexpr std::int64_t kTaskProducts = 192 * 1024;  // of an update

  F* at(std::int64_t row, std::int64_t col) const { return a_ + row * n_ + col; }

  // The exchanges of the rows [first, last) in the columns [from, to).
  void exchange(std::int64_t first, std::int64_t last, std::int64_t from, std::int64_t to) const {
    for (std::int64_t r = first; r < last; ++r) {
      if (pivots_[r] == r) continue;
      F* __restrict const x = at(r, 0), * __restrict const y = at(pivots_[r], 0);
      for (std::int64_t c = from; c < to; ++c) {
        const F other = x[c];
        x[c] = y[c];
        y[c] = other;
      }
    }
  }

  // The columns [middle, end) after [begin, middle): u = l^-1 a of the rows up to `middle`, a - l u of those below.
  void update(std::int64_t begin, std::int64_t middle, std::int64_t end) const {
    const std::int64_t k = middle - begin;
    const std::int64_t products = Strip<F>::kColumns * k * (n_ - middle + k / 2);
    on_.parallel_for(Strip<F>::count(end - middle), std::max(std::int64_t{1}, kTaskProducts / products),
                     [&](std::int64_t from, std::int64_t to) {
                       const lib::Scratch memory(std::size_t(k * Strip<F>::kColumns) * sizeof(F));
                       for (std::int64_t i = from; i < to; ++i)
                         update_strip(begin, middle, end, Strip<F>(i, end - middle), memory.as<F>());
                     });
  }
  void update_strip(std::int64_t begin, std::int64_t middle, std::int64_t end, const Strip<F>& strip, F* y) const {
    const std::int64_t k = middle - begin, first = middle + strip.first, width = strip.width;
    exchange(begin, middle, first, first + strip.cols);
    for (std::int64_t r = 0; r < k; ++r) copy_row(at(begin + r, first), y + r * width, strip.cols, width);
    substitute(k, {at(begin, begin), n_, 1}, ones_, y, width, width);
    for (std::int64_t r = 0; r < k; ++r) copy_row(y + r * width, at(begin + r, first), strip.cols, strip.cols);
    multiply_block<F>(n_ - middle, strip.cols, k, {at(middle, begin), n_, 1}, y, width,
                      {at(middle, first), n_, F(-1), F(1), nullptr, nullptr}, end - first);
  }

  const Cpu& on_;
  F* a_;
  std::int64_t n_;
  std::int64_t* pivots_;
  F *ones_, *panel_;
};

template <class F>
std::int64_t factor_lu(const Cpu& on, F* a, std::int64_t* rows, std::int64_t batch, std::int64_t n) {
  if (n == 0) return -1;
  const auto places = 2 * n * std::int64_t(sizeof(std::int64_t));
  const std::int64_t bytes = places + RecursiveLu<F>::numbers(n) * std::int64_t(sizeof(F));
  return each_matrix(on, batch, n * n * n / 40 + 40 * n, bytes, [&](std::int64_t i, const lib::Scratch& memory) {
    auto *const pivots = memory.as<std::int64_t>(), *const order = pivots + n;
    F* const room = reinterpret_cast<F*>(memory.as<char>() + places);
    const bool is_regular = RecursiveLu<F>(on, a + i * n * n, n, pivots, room).factor(0, n);
    for (std::int64_t r = 0; r < n; ++r) order[r] = r;
    for (std::int64_t r = 0; r < n; ++r) std::swap(order[r], order[pivots[r]]);
    for (std::int64_t r = 0; r < n; ++r) rows[i * n + order[r]] = r;
    return is_regular;
  });
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
