// The device bodies of kernels/sparse/edge_scores.cuh, where the contract stands.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/device/block.cuh"
#include "kernels/device/row.cuh"
#include "kernels/executor/hd.h"
#include "kernels/sparse/csr.cuh"
#include "kernels/sparse/spmm.cuh"

namespace levin::kernels::gpu {

// Where an entry's column and place are, or that they are outside.
struct EntryPlaces {
  CsrView a;
  IndexRange cols, entries;
  EntryPlaces(const Gpu& on, const char* op, const CsrView& a_)
      : a(a_), cols(on, op, a_.cols), entries(on, op, a_.entries) {}
  __device__ bool find(std::int64_t e, std::int64_t& column, std::int64_t& place) const {
    column = a.col[e];
    place = a.edge ? a.edge[e] : e;
    return cols.holds(column) && (!a.edge || entries.holds(place));
  }
};

// inner is 1: each column is a head.
template <int V, class T>
struct ScoreOfEntry : EntryPlaces {
  static constexpr int kSize = V;
  const T *x, *z, *attn;
  T* y;
  std::int64_t width;
  Accum<T> slope;
  std::int64_t column = 0;
  __device__ void enter(std::int64_t c) { column = c; }
  __device__ void operator()(std::int64_t e, std::int64_t row) const {
    std::int64_t j, at;
    if (!this->find(e, j, at)) return;
    const Vec<T, V> p = load<V>(x + row * width + column), q = load<V>(z + j * width + column);
    Vec<T, V> out;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const Accum<T> s = Accum<T>(p[i]) + Accum<T>(q[i]), leaky = s > 0 ? s : s * slope;
      out[i] = T(attn ? Accum<T>(attn[column + i]) * leaky : leaky);
    }
    store(y + at * width + column, out);
  }
};

// A team of `lanes` lanes has a group of entries of one head, four entries at a time.
template <class T>
__global__ __launch_bounds__(kMoveThreads) void score_groups(EntryPlaces places, const std::int64_t* group_row,
                                                             const T* x, const T* z, const T* attn, T* y, Heads h,
                                                             Accum<T> slope, int lanes, std::int64_t items,
                                                             Divider heads, bool vectors) {
  const CsrView& a = places.a;
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
      std::int64_t j, at;
      if (!places.find(e, j, at)) continue;
      of_x[i] = x + (row * h.heads + head) * h.inner;
      of_z[i] = z + (j * h.heads + head) * h.inner;
      to[i] = at;
    }
    for (std::int64_t c = lane * kVec<T>; c < h.inner; c += lanes * kVec<T>) {
      const Vec<T> w = u < items ? read_chunk(attn + head * h.inner, c, h.inner, vectors, T(0.0f)) : Vec<T>{};
      Vec<T> p[4], q[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (to[i] < 0) continue;
        p[i] = read_chunk(of_x[i], c, h.inner, vectors, T(0.0f));
        q[i] = read_chunk(of_z[i], c, h.inner, vectors, T(0.0f));
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (to[i] < 0) continue;
#pragma unroll
        for (int j = 0; j < kVec<T>; ++j) {
          if (c + j >= h.inner) continue;
          const Accum<T> s = Accum<T>(p[i][j]) + Accum<T>(q[i][j]);
          sum[i] += Accum<T>(w[j]) * (s > 0 ? s : s * slope);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      for (int m = lanes / 2; m > 0; m /= 2) sum[i] += from_lane_xor(sum[i], m);
      if (lane == 0 && to[i] >= 0) y[to[i] * h.heads + head] = T(sum[i]);
    }
  }
}

template <class T, class Room>
void edge_scores(const Gpu& on, const char* op, const char* offsets, const CsrView& a, const T* x, const T* z,
                 const T* attn, T* y, const Heads& h, Accum<T> slope, const Room& room) {
  check_rows(on, offsets, a);
  if (a.rows == 0 || a.entries * h.heads == 0) return;
  const EntryPlaces places(on, op, a);
  if (h.inner == 1) {
    with_vectors<T>(h.heads, {x, z, y}, [&]<int V>(std::integral_constant<int, V>) {
      map_entries(on, a, ScoreOfEntry<V, T>{places, x, z, attn, y, h.heads, slope}, h.heads, room);
    });
    return;
  }
  const std::int64_t items = (a.entries + kEntryGroup - 1) / kEntryGroup * h.heads;
  const auto chunks = static_cast<std::uint64_t>((h.inner + kVec<T> - 1) / kVec<T>);
  const int lanes = static_cast<int>(std::bit_ceil(std::clamp<std::uint64_t>(chunks, 1, 32)));
  const bool vectors = h.inner % kVec<T> == 0 && aligned16(x) && aligned16(z) && aligned16(attn);
  on.launch(score_groups<T>, item_grid(items * lanes), places, group_rows(on, a, room), x, z, attn, y, h, slope, lanes,
            items, Divider(h.heads), vectors);
}

// gx and t of a row, V columns of one head, or of V heads where inner is 1.
template <int V, class T>
struct LeakyOfRow : EntryPlaces {
  static constexpr int kSize = V;
  struct State {
    Accum<T> sum[V], moment[V];
  };
  const T *gy, *x, *z, *attn;
  T* gx;
  Accum<T>* t;
  std::int64_t width, heads;
  Divider inner;
  Accum<T> slope;
  std::int64_t column = 0, head = 0;
  __device__ void enter(std::int64_t c) {
    column = c;
    head = inner.quotient(c);
  }
  __device__ State start() const { return State{}; }
  __device__ void add(State& s, std::int64_t first, std::int64_t last) const {
    if (first == last) return;
    const std::int64_t row = row_of(this->a.crow, first, 0, this->a.rows - 1);
    const Vec<T, V> p = load<V>(x + row * width + column);
    for (std::int64_t e = first; e < last; e += 4) {
      Vec<T, V> q[4], g[4];
      bool is_there[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        std::int64_t j, at;
        is_there[k] = e + k < last && this->find(e + k, j, at);
        if (!is_there[k]) continue;
        q[k] = load<V>(z + j * width + column);
        if (inner.divisor == 1)
          g[k] = load<V>(gy + at * heads + column);
        else
          for (int i = 0; i < V; ++i) g[k][i] = gy[at * heads + head];
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (!is_there[k]) continue;
#pragma unroll
        for (int i = 0; i < V; ++i) {
          const Accum<T> of = Accum<T>(g[k][i]), z_ = Accum<T>(p[i]) + Accum<T>(q[k][i]), d = z_ > 0 ? of : of * slope;
          s.sum[i] += d;
          s.moment[i] += d * z_;
        }
      }
    }
  }
  __device__ void merge(State& s, const State& later) const {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      s.sum[i] += later.sum[i];
      s.moment[i] += later.moment[i];
    }
  }
  __device__ void finish(std::int64_t row, const State& s, std::int64_t) const {
    Vec<T, V> out;
#pragma unroll
    for (int i = 0; i < V; ++i) out[i] = T(attn ? Accum<T>(attn[column + i]) * s.sum[i] : s.sum[i]);
    store(gx + row * width + column, out);
    if (!t) return;
    for (int i = 0; i < V; ++i) t[row * width + column + i] = s.moment[i];
  }
};

template <class T, class Room>
void edge_scores_backward(const Gpu& on, const char* op, const char* offsets, const CsrView& a, const T* gy, const T* x,
                          const T* z, const T* attn, T* gx, Accum<T>* t, const Heads& h, Accum<T> slope,
                          const Room& room) {
  check_rows(on, offsets, a);
  if (h.width() == 0) return;
  with_vectors<T>(h.inner == 1 ? h.heads : h.inner, {x, z, gx, h.inner == 1 ? gy : nullptr},
                  [&]<int V>(std::integral_constant<int, V>) {
                    reduce_rows(on, a,
                                LeakyOfRow<V, T>{EntryPlaces(on, op, a), gy, x, z, attn, gx, t, h.width(), h.heads,
                                                 Divider(h.inner), slope},
                                h.width(), room);
                  });
}

}  // namespace levin::kernels::gpu
