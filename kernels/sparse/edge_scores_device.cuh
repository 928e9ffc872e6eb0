// The device bodies of kernels/sparse/edge_scores.cuh, where the contract stands.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/device/block.cuh"
#include "kernels/device/row.cuh"
#include "kernels/executor/hd.h"
#include "kernels/sparse/csr.cuh"
#include "kernels/sparse/pairs.cuh"

namespace levin::kernels::gpu {

// inner is 1: each column is a head.
template <int V, class T>
struct ScoreOfEntry : Entries {
  static constexpr int kSize = V;
  const T *x, *z, *attn;
  T* y;
  std::int64_t width;
  Accum<T> slope;
  std::int64_t column = 0;
  __device__ void enter(std::int64_t c) { column = c; }
  __device__ void operator()(std::int64_t e, std::int64_t row) {
    EntryAt at;
    if (!find(e, at)) return;
    const Vec<T, V> p = load<V>(x + row * width + column), q = load<V>(z + at.column * width + column);
    Vec<T, V> out;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const Accum<T> s = Accum<T>(p[i]) + Accum<T>(q[i]), leaky = s > 0 ? s : s * slope;
      out[i] = T(attn ? Accum<T>(attn[column + i]) * leaky : leaky);
    }
    store(y + at.place * width + column, out);
  }
};

template <class T>
struct LeakyOfEnds : Ends<T> {
  const T* attn;
  Accum<T> slope;
  LeakyOfEnds(const Ends<T>& ends, const T* attn_, Accum<T> slope_) : Ends<T>(ends), attn(attn_), slope(slope_) {
    this->vectors = this->vectors && aligned16(attn_);
  }
  __device__ Vec<T> weights(std::int64_t head, std::int64_t c) const {
    return this->chunk(attn + head * this->h.inner, c);
  }
  __device__ __forceinline__ void add(Accum<T>& sum, const Vec<T>& p, const Vec<T>& q, const Vec<T>& w) const {
#pragma unroll
    for (int j = 0; j < kVec<T>; ++j) {
      // What lies past the last feature is 0 in p, q and w.
      const Accum<T> s = Accum<T>(p[j]) + Accum<T>(q[j]);
      sum += Accum<T>(w[j]) * (s > 0 ? s : s * slope);
    }
  }
};

template <class T, class Room>
void edge_scores(const Gpu& on, const char* op, const char* offsets, const CsrView& a, const T* x, const T* z,
                 const T* attn, T* y, const Heads& h, Accum<T> slope, const Room& room) {
  check_rows(on, offsets, a);
  if (h.inner == 1) {
    with_vectors<T>(h.heads, {x, z, y}, [&]<int V>(std::integral_constant<int, V>) {
      map_entries(on, a, ScoreOfEntry<V, T>{Entries(on, op, a), x, z, attn, y, h.heads, slope}, h.heads, room);
    });
  } else {
    sum_pairs(on, LeakyOfEnds<T>(Ends<T>(on, op, a, x, z, y, h), attn, slope), room);
  }
}

// gx and t of a row, V columns of one head, or of V heads where inner is 1.
template <int V, class T>
struct LeakyOfRow : Entries {
  static constexpr bool kReadsRow = true;
  static constexpr int kSize = V;
  struct State {
    Accum<T> sum[V], moment[V];
  };
  struct Value {
    Vec<T, V> z, gy;
  };
  const T *gy, *x, *z, *attn;
  T* gx;
  Accum<T>* t;
  std::int64_t width, heads;
  Divider inner;
  Accum<T> slope;
  std::int64_t column = 0, head = 0;
  Vec<T, V> own{};  // x of the row
  __device__ void enter(std::int64_t c) {
    column = c;
    head = inner.quotient(c);
  }
  // Wrong offsets may lead past the last row, and are reported.
  __device__ void enter_row(std::int64_t row) { own = load<V>(x + min(row, a.rows - 1) * width + column); }
  __device__ State start() const { return State{}; }
  template <class At>
  __device__ __forceinline__ Value fetch(const At& at) const {
    Value v;
    v.z = load<V>(z + offset(at.column, width) + column);
    const T* const of = gy + offset(at.place, heads);
    if (inner.divisor == 1)
      v.gy = load<V>(of + column);
    else
      for (int i = 0; i < V; ++i) v.gy[i] = of[head];
    return v;
  }
  __device__ __forceinline__ void take(State& s, std::int64_t, const Value& v) const {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const Accum<T> of = Accum<T>(v.gy[i]), z_ = Accum<T>(own[i]) + Accum<T>(v.z[i]), d = z_ > 0 ? of : of * slope;
      s.sum[i] += d;
      s.moment[i] += d * z_;
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
                                LeakyOfRow<V, T>{Entries(on, op, a), gy, x, z, attn, gx, t, h.width(), h.heads,
                                                 Divider(h.inner), slope},
                                h.width(), room);
                  });
}

}  // namespace levin::kernels::gpu
