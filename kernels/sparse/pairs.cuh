// Sums over the features of both ends of each entry: y[place, head] = sum over c of term(x[row, head, c],
// z[column, head, c]). Sums of an entry have one order, whichever kernel takes it.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/device/block.cuh"
#include "kernels/device/row.cuh"
#include "kernels/executor/hd.h"
#include "kernels/sparse/short_rows.cuh"

namespace levin::kernels {
struct Heads {
  std::int64_t heads, inner;
  [[nodiscard]] std::int64_t width() const { return heads * inner; }
};
}  // namespace levin::kernels

namespace levin::kernels::gpu {

// A Term has, besides, weights(head, c), a chunk w that all entries of a head share, and add(sum, chunk of x, of z, w).
template <class T_>
struct Ends : Entries {
  using T = T_;
  const T *x, *z;
  T* y;
  Heads h;
  bool vectors;
  Ends(const Gpu& on, const char* op, const CsrView& a_, const T* x_, const T* z_, T* y_, const Heads& h_)
      : Entries(on, op, a_),
        x(x_),
        z(z_),
        y(y_),
        h(h_),
        vectors(h_.inner % kVec<T> == 0 && aligned16(x_) && aligned16(z_)) {}
  [[nodiscard]] int lanes() const {
    const auto chunks = static_cast<std::uint64_t>((h.inner + kVec<T> - 1) / kVec<T>);
    return static_cast<int>(std::bit_ceil(std::clamp<std::uint64_t>(chunks, 1, 32)));
  }
  __device__ __forceinline__ Vec<T> chunk(const T* p, std::int64_t c) const {
    return read_chunk(p, c, h.inner, vectors, T(0.0f));
  }
};

// A team of `lanes` lanes has a group of entries of one head, four entries at a time.
template <class Term>
__global__ void pair_groups(const std::int64_t* group_row, Term term, int lanes, std::int64_t items, Divider heads) {
  using T = typename Term::T;
  const CsrView& a = term.a;
  const Heads& h = term.h;
  const std::int64_t u = own_item() / lanes;
  const int lane = int(threadIdx.x) % lanes;
  const std::int64_t g = u < items ? heads.quotient(u) : 0, head = u - g * h.heads, first = g * kEntryGroup;
  std::int64_t row = u < items ? group_row[g] : 0;
  for (int k = 0; k < kEntryGroup; k += 4) {
    const T *of_x[4], *of_z[4];
    std::int64_t to[4];
    Accum<T> sum[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::int64_t e = first + k + i;
      to[i] = -1;
      if (u >= items || e >= a.entries) continue;
      if (a.crow[row + 1] <= e) row = row_of(a.crow, e, row, group_row[g + 1]);
      EntryAt at;
      if (!term.find(e, at)) continue;
      of_x[i] = term.x + (row * h.heads + head) * h.inner;
      of_z[i] = term.z + (at.column * h.heads + head) * h.inner;
      to[i] = at.place;
    }
    for (std::int64_t c = lane * kVec<T>; c < h.inner; c += lanes * kVec<T>) {
      if (u >= items) break;
      const auto w = term.weights(head, c);
      Vec<T> p[4], q[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (to[i] < 0) continue;
        p[i] = term.chunk(of_x[i], c);
        q[i] = term.chunk(of_z[i], c);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (to[i] >= 0) term.add(sum[i], p[i], q[i], w);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      for (int m = lanes / 2; m > 0; m /= 2) sum[i] += from_lane_xor(sum[i], m);
      if (lane == 0 && to[i] >= 0) term.y[to[i] * h.heads + head] = T(sum[i]);
    }
  }
  term.report();
}

// Note [Short rows]: a group of [entry lanes, lanes over features] has a row and a head, whose x it reads once for four
// entries.
template <class Term>
__global__ void pair_short_rows(const std::int64_t* crow, Term term, int lanes, int entry_lanes, Divider heads,
                                std::int64_t units) {
  using T = typename Term::T;
  const Heads& h = term.h;
  const std::int64_t unit = own_item() / (lanes * entry_lanes);
  const int own = int(threadIdx.x) % (lanes * entry_lanes), lane = own % lanes;
  const bool is_there = unit < units;
  const std::int64_t row = is_there ? heads.quotient(unit) : 0, head = unit - row * h.heads;
  const int end = is_there ? int(crow[row + 1]) : 0, begin = is_there ? int(crow[row]) : 0;
  const int first = begin + own / lanes;
  const T* const of_x = term.x + (row * h.heads + head) * h.inner;
  // All lanes of a warp take as many steps, for the sums over lanes.
  const int steps = warp_max((end - begin + 4 * entry_lanes - 1) / (4 * entry_lanes));
  for (int s = 0; s < steps; ++s) {
    const T* of_z[4];
    std::uint32_t to[4];
    Accum<T> sum[4] = {};
    const auto has = [&](int i) { return first + (4 * s + i) * entry_lanes < end; };
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (!has(i)) continue;
      const ShortEntryAt at = term.known(unsigned(first + (4 * s + i) * entry_lanes));
      of_z[i] = term.z + offset(at.column, h.heads * h.inner) + head * h.inner;
      to[i] = at.place;
    }
    for (std::int64_t c = lane * kVec<T>; c < h.inner; c += lanes * kVec<T>) {
      if (!has(0)) break;
      const auto w = term.weights(head, c);
      const Vec<T> p = term.chunk(of_x, c);
      Vec<T> q[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (has(i)) q[i] = term.chunk(of_z[i], c);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (has(i)) term.add(sum[i], p, q[i], w);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      for (int m = lanes / 2; m > 0; m /= 2) sum[i] += from_lane_xor(sum[i], m);
      if (lane == 0 && has(i)) term.y[offset(to[i], h.heads) + head] = T(sum[i]);
    }
  }
}

// Entries and rows are not 0.
template <class Term, class Room>
void sum_pairs(const Gpu& on, const Term& term, const Room& room) {
  const CsrView& a = term.a;
  const Heads& h = term.h;
  const int lanes = term.lanes();
  if (a.rows == 0 || a.entries * h.heads == 0) return;
  if (RowGroups::takes(a, std::max(h.width(), a.rows * h.heads))) {
    const auto mean = static_cast<std::uint64_t>(a.entries / a.rows / 4 + 1);
    const int entry_lanes = std::min(32 / lanes, static_cast<int>(std::bit_floor(mean)));
    const std::int64_t units = a.rows * h.heads;
    on.launch(pair_short_rows<Term>, item_grid(units * lanes * entry_lanes), a.crow, term, lanes, entry_lanes,
              Divider(h.heads), units);
    return;
  }
  const std::int64_t items = (a.entries + kEntryGroup - 1) / kEntryGroup * h.heads;
  on.launch(pair_groups<Term>, item_grid(items * lanes), group_rows(on, a, room), term, lanes, items, Divider(h.heads));
}

}  // namespace levin::kernels::gpu
