// Sequences of plane rotations of neighbouring columns: found and noted by an implicit QR iteration, and later applied
// to the columns of vectors.
//
// Note [Rotations in waves]
// A sweep rotates columns (i, i + 1) for i = first, first + 1, ... Of two sweeps the second may follow one rotation
// behind the first: then each number is loaded and stored once for two rotations, and the sums of both sweeps are
// chains of their own (Van Zee, van de Geijn & Quintana-Orti, "Restructuring the tridiagonal and bidiagonal QR
// algorithms for performance", 2014). Rows have nothing to do with each other: two vectors of rows and all of their
// columns stay in L1 for all sweeps, and threads share the rows.
// To find rotations is a chain of roots and quotients on one thread. While those of one store are applied, one of the
// chunks of the same loop finds those of the next. What a store holds depends on the matrix alone, and so do all bits.
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_ROTATIONS_CUH
#define LEVIN_KERNELS_ROTATIONS_CUH

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "kernels/executor/cpu.h"
#include "kernels/linalg/columns.cuh"

namespace levin::kernels::cpu {

// [c, s; -s, c] of two columns x, y: x = c x + s y, y = c y - s x.
template <class T>
struct Rotation {
  T c, s;
};

template <class T>
struct Sweep {
  const Rotation<T>* at;
  int64_t first, count;
};

// Columns that rotate, in vectors of rows.
template <class T>
struct Rotated {
  Columns<T> columns;
  int64_t rows;
};

// Sweeps of up to n - 1 rotations each, as noted.
template <class T>
class SweepStore {
 public:
  static constexpr int64_t kSweeps = 24;
  static int64_t bytes(int64_t n) { return kSweeps * n * int64_t(sizeof(Rotation<T>)); }
  void use(void* memory, int64_t n) {
    rotations_ = static_cast<Rotation<T>*>(memory);
    room_ = kSweeps * n;
  }
  void clear() { count_ = used_ = 0; }
  bool has_room(int64_t rotations) const { return count_ < int64_t(sweeps_.size()) && used_ + rotations <= room_; }
  // Where the next sweep's rotations go.
  Rotation<T>* begin(int64_t first, int64_t count) {
    Rotation<T>* at = rotations_ + used_;
    sweeps_[size_t(count_++)] = {at, first, count};
    used_ += count;
    return at;
  }
  int64_t count() const { return count_; }
  const Sweep<T>& operator[](int64_t i) const { return sweeps_[size_t(i)]; }

 private:
  Rotation<T>* rotations_ = nullptr;
  int64_t room_ = 0, count_ = 0, used_ = 0;
  std::array<Sweep<T>, 4 * kSweeps> sweeps_;
};

}  // namespace levin::kernels::cpu

#define LEVIN_LEVEL_FILE "kernels/linalg/rotations.cuh"
#include "kernels/executor/each_level.h"
#endif
#else
namespace levin::kernels::cpu::LEVIN_LEVEL {

// The rotation that makes (f, g) to (r, 0), whose numbers may be far from 1.
template <class T>
[[gnu::noinline]] Rotation<T> far_rotation_of(T f, T g, T& r) {
  const T most = std::max(std::abs(f), std::abs(g));
  if (most == 0 || g == 0) {
    r = f;
    return {1, 0};
  }
  const int away = std::ilogb(most);
  const T x = std::ldexp(f, -away), y = std::ldexp(g, -away), size = std::sqrt(x * x + y * y);
  r = std::ldexp(size, away);
  return {x / size, y / size};
}
template <class T>
[[gnu::always_inline]] inline Rotation<T> rotation_of(T f, T g, T& r) {
  // Both squares and their sum have all of their bits, or the lesser is nothing beside the other.
  constexpr T kLeast = std::numeric_limits<T>::min() * 0x1p40f, kMost = std::numeric_limits<T>::max() / 4;
  const T squares = f * f + g * g;
  if (!(squares >= kLeast && squares <= kMost)) [[unlikely]]
    return far_rotation_of(f, g, r);
  r = std::sqrt(squares);
  return {f / r, g / r};
}

// One sweep, rotations [from, to) of columns, on V vectors of rows from `row` on.
template <class T, int V>
void rotate(const Sweep<T>& by, int64_t from, int64_t to, Columns<T> columns, int64_t row) {
  constexpr int64_t L = kLanes<T>;
  if (from >= to) return;
  T* at = columns[from] + row;
  Vector<T> x[V];
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) x[v] = vector_at(at + v * L);
  const Rotation<T>* with = by.at + (from - by.first);
  for (int64_t i = from; i < to; ++i, ++with) {
    const T c = with->c, s = with->s;
    T* next = at + columns.pitch;
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      const Vector<T> y = vector_at(next + v * L), sum = x[v] * c + y * s, last = x[v] * s;
      put(at + v * L, sum);
      x[v] = y * c - last;
    }
    at = next;
  }
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) put(at + v * L, x[v]);
}

// Rotations [from, to) of the first of two sweeps, and of the second each time the one before.
template <class T, int V>
void rotate_both(const Sweep<T>& a, const Sweep<T>& b, int64_t from, int64_t to, Columns<T> columns, int64_t row) {
  constexpr int64_t L = kLanes<T>;
  T* at = columns[from - 1] + row;
  const int64_t pitch = columns.pitch;
  Vector<T> x[V], y[V];  // columns i - 1 and i before the rotations of step i
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) {
    x[v] = vector_at(at + v * L);
    y[v] = vector_at(at + pitch + v * L);
  }
  const Rotation<T>*of_a = a.at + (from - a.first), *of_b = b.at + (from - 1 - b.first);
  for (int64_t i = from; i < to; ++i, ++of_a, ++of_b) {
    const T ca = of_a->c, sa = of_a->s, cb = of_b->c, sb = of_b->s;
    const T* ahead = at + 2 * pitch;
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      const Vector<T> z = vector_at(ahead + v * L), done = y[v] * ca + z * sa, last = y[v] * sa;
      y[v] = z * ca - last;
      const Vector<T> sum = x[v] * cb + done * sb, before = x[v] * sb;
      put(at + v * L, sum);
      x[v] = done * cb - before;
    }
    at += pitch;
  }
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) {
    put(at + v * L, x[v]);
    put(at + pitch + v * L, y[v]);
  }
}

// All sweeps of a store, on V vectors of rows from `row` on.
template <class T, int V>
void rotate_rows(const SweepStore<T>& by, Columns<T> columns, int64_t row) {
  int64_t at = 0;
  for (; at + 2 <= by.count(); at += 2) {
    const Sweep<T>&a = by[at], &b = by[at + 1];
    const int64_t a_end = a.first + a.count, b_end = b.first + b.count;
    const int64_t from = std::max(a.first, b.first + 1), to = std::min(a_end, b_end + 1);
    if (from >= to) {
      rotate<T, V>(a, a.first, a_end, columns, row);
      rotate<T, V>(b, b.first, b_end, columns, row);
      continue;
    }
    rotate<T, V>(a, a.first, from, columns, row);
    rotate<T, V>(b, b.first, from - 1, columns, row);
    rotate_both<T, V>(a, b, from, to, columns, row);
    rotate<T, V>(a, to, a_end, columns, row);
    rotate<T, V>(b, to - 1, b_end, columns, row);
  }
  if (at < by.count()) rotate<T, V>(by[at], by[at].first, by[at].first + by[at].count, columns, row);
}

// What is left of a QR iteration on a tridiagonal or an upper bidiagonal with the diagonal d and e beside it. A number
// of e below the precision of its neighbours counts as 0 and cuts the matrix into blocks.
template <class T>
class Unreduced {
 public:
  static constexpr T kEps = std::numeric_limits<T>::epsilon() / 2;
  // The columns [first, last].
  struct Block {
    int64_t first = 0, last = 0;
    int64_t rotations() const { return last - first; }
  };
  Unreduced(const T* d, const T* e, int64_t n) : d_(d), e_(e), last_(n - 1), sweeps_left_(30 * n) {
    least_ = kEps * kEps * largest(0, n - 1);
  }
  // The next block to sweep; one of no rotations where nothing is left, its rotations have no room, or the iteration
  // took too long.
  Block next(const SweepStore<T>& room) {
    while (last_ > 0 && is_small(last_ - 1)) --last_;
    if (last_ <= 0) return {};
    int64_t first = last_ - 1;
    while (first > 0 && !is_small(first - 1)) --first;
    if (!room.has_room(last_ - first) || sweeps_left_ == 0) return {};
    --sweeps_left_;
    return {first, last_};
  }
  bool has_ended() const { return last_ <= 0; }
  // The largest number of the columns [first, last].
  T largest(int64_t first, int64_t last) const {
    T most = std::abs(d_[last]);
    for (int64_t i = first; i < last; ++i) most = std::max({most, std::abs(d_[i]), std::abs(e_[i])});
    return most;
  }

 private:
  bool is_small(int64_t i) const {
    const T e = std::abs(e_[i]);
    return e <= kEps * (std::abs(d_[i]) + std::abs(d_[i + 1])) || e <= least_;
  }
  const T *d_, *e_;
  int64_t last_, sweeps_left_;
  T least_;
};

// Applies to each of the targets all rotations that find(stores) notes into its store, call by call; it notes none
// when it is done. Columns are at most n. `memory`: 2 * kTargets * SweepStore<T>::bytes(n).
template <class T, size_t kTargets, class F>
void rotate_all(const Cpu& on, int64_t n, const std::array<Rotated<T>, kTargets>& targets, char* memory,
                const F& find) {
  using Stores = std::array<SweepStore<T>, kTargets>;
  constexpr int64_t kRows = 2 * kLanes<T>, kFew = 48;
  const int64_t bytes = SweepStore<T>::bytes(n);
  std::array<Stores, 2> stores;
  for (size_t i = 0; i < 2 * kTargets; ++i) stores[i / kTargets][i % kTargets].use(memory + int64_t(i) * bytes, n);
  int64_t pieces = 0;
  for (const Rotated<T>& target : targets) pieces += (target.rows + kRows - 1) / kRows;
  const auto rotate_piece = [&](const Stores& by, int64_t piece) {
    size_t at = 0;
    for (; piece * kRows >= targets[at].rows; ++at) piece -= (targets[at].rows + kRows - 1) / kRows;
    const Rotated<T>& to = targets[at];
    if (to.rows - piece * kRows > kLanes<T>) return rotate_rows<T, 2>(by[at], to.columns, piece * kRows);
    rotate_rows<T, 1>(by[at], to.columns, piece * kRows);
  };
  size_t ready = 0;
  find(stores[ready]);
  while (stores[ready][0].count() > 0) {
    Stores& next = stores[1 - ready];
    on.parallel_for(1 + pieces, n < kFew ? 1 + pieces : 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) i == 0 ? find(next) : rotate_piece(stores[ready], i - 1);
    });
    ready = 1 - ready;
  }
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
