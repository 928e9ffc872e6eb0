// The kernels of resample.cuh's functions for devices. They take the arguments of the CPU's, but their tables are
// DeviceTables, which make_table fills on the device: a call copies nothing from the host. A thread computes an output,
// or that of several planes.
#pragma once

#include <cstdint>

#include "kernels/device/bits.cuh"
#include "kernels/device/strided.cuh"
#include "kernels/executor/gpu.h"
#include "kernels/executor/hd.h"
#include "kernels/image/resample.cuh"
#include "levin/dtype.h"

namespace levin::kernels::gpu {

// One axis of a launch: its inputs [begin, end) for output o, and their weights. The adjoint reads the forward table,
// whose outputs are its inputs, and a range of them for each of its own outputs.
template <class A>
struct DeviceTable {
  std::int64_t in = 1, out = 1, taps = 1;
  const std::int32_t* starts = nullptr;  // null: every output is its input
  const A* weights = nullptr;            // [taps, the forward direction's outputs]
  const std::int32_t* ranges = nullptr;  // [2, out]: of the adjoint

  __device__ std::int64_t begin(std::int64_t o) const { return !starts ? o : ranges ? ranges[o] : starts[o]; }
  __device__ std::int64_t end(std::int64_t o) const {
    return !starts ? o + 1 : ranges ? ranges[out + o] : starts[o] + taps;
  }
  __device__ A weight(std::int64_t o, std::int64_t i) const {
    if (!starts) return A(1);
    return ranges ? weights[(o - starts[i]) * in + i] : weights[(i - starts[o]) * out + o];
  }
};

template <class A>
__global__ void make_resample_windows(ResampleAxis axis, std::int64_t taps, std::int32_t* starts, A* weights) {
  const std::int64_t o = own_item();
  if (o >= axis.out) return;
  starts[o] = static_cast<std::int32_t>(axis.window(o, taps, weights + o, axis.out));
}
// The outputs whose windows hold input i.
template <class A>
__global__ void make_resample_ranges(std::int64_t in, std::int64_t out, std::int64_t taps, const std::int32_t* starts,
                                     std::int32_t* ranges) {
  const std::int64_t i = own_item();
  if (i >= in) return;
  // The first output that starts after `place`.
  const auto after = [=](std::int64_t place) {
    std::int64_t low = 0, high = out;
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (starts[middle] > place)
        high = middle;
      else
        low = middle + 1;
    }
    return static_cast<std::int32_t>(low);
  };
  ranges[i] = after(i - taps);
  ranges[in + i] = after(i);
}

// starts: [out], weights: [taps, out]; ranges: [2, in], null for the forward direction.
template <class A>
DeviceTable<A> make_table(const Gpu& on, const ResampleAxis& axis, std::int32_t* starts, A* weights,
                          std::int32_t* ranges) {
  on.launch(make_resample_windows<A>, item_grid(axis.out), axis, axis.taps(), starts, weights);
  if (!ranges) return {axis.in, axis.out, axis.taps(), starts, weights, nullptr};
  on.launch(make_resample_ranges<A>, item_grid(axis.in), axis.in, axis.out, axis.taps(), starts, ranges);
  return {axis.out, axis.in, axis.taps(), starts, weights, ranges};
}

template <class In, class Out>
__global__ void resample_axis_items(const In* x, Out* y, std::int64_t n, DeviceTable<Accum<In>> table, Divider inner,
                                    Divider out) {
  using A = Accum<In>;
  const std::int64_t u = own_item();
  if (u >= n) return;
  const auto width = static_cast<std::int64_t>(inner.divisor);
  const std::int64_t row = inner.quotient(u), outer = out.quotient(row), o = row - outer * table.out;
  const In* const from = x + outer * table.in * width + (u - row * width);
  A sum = 0;
  const std::int64_t end = table.end(o);
  for (std::int64_t i = table.begin(o); i < end; ++i) {
    const A w = table.weight(o, i);
    if (w != A(0)) sum += w * A(from[i * width]);
  }
  y[u] = Out(sum);
}
template <class In, class Out>
void resample_axis(const Gpu& on, const In* x, Out* y, std::int64_t outer, std::int64_t inner,
                   const DeviceTable<Accum<In>>& table) {
  const std::int64_t n = outer * table.out * inner;
  on.launch(resample_axis_items<In, Out>, item_grid(n), x, y, n, table, Divider(inner), Divider(table.out));
}

// Planes of a thread: what it finds out about a place serves them all.
inline constexpr int kPlanesAtOnce = 8;
// The first of a thread's planes, and its place among those of a plane.
struct PlanesAt {
  std::int64_t planes, places;
  Divider by_places;
  PlanesAt(std::int64_t planes_, std::int64_t places_) : planes(planes_), places(places_), by_places(places_) {}
  [[nodiscard]] std::int64_t items() const { return (planes + kPlanesAtOnce - 1) / kPlanesAtOnce * places; }
  // body(first plane, place)
  template <class F>
  __device__ __forceinline__ void run(F&& body) const {
    const std::int64_t u = own_item(), chunk = by_places.quotient(u);
    if (chunk * kPlanesAtOnce < planes) body(chunk * kPlanesAtOnce, u - chunk * places);
  }
};

// The sum of weights[t] * of(t). With kSkips a weight of 0 adds nothing, even if its value is a NaN.
template <bool kSkips, int kTaps, class A, class F>
__device__ __forceinline__ A weighted_sum(const A (&weights)[kTaps], const F& of) {
  A sum = 0;
#pragma unroll
  for (int t = 0; t < kTaps; ++t) {
    const A more = sum + weights[t] * of(t);
    sum = !kSkips || weights[t] != A(0) ? more : sum;
  }
  return sum;
}

// Windows of kTaps along both axes, in the forward direction. A thread that has all its planes and no weight of 0 takes
// a way without conditions.
template <int kTaps, class In, class Out>
__global__ void resample_plane_taps(const In* x, Out* y, PlanesAt at, DeviceTable<Accum<In>> h,
                                    DeviceTable<Accum<In>> w, Divider columns) {
  using A = Accum<In>;
  at.run([=](std::int64_t first, std::int64_t place) {
    const std::int64_t r = columns.quotient(place), c = place - r * w.out, size = h.in * w.in;
    const int here = static_cast<int>(min(at.planes - first, std::int64_t{kPlanesAtOnce}));
    const In* const from = x + first * size + h.starts[r] * w.in + w.starts[c];
    Out* to = y + first * at.places + place;
    const In* line[kTaps];  // of the window, in the plane that is next
    A down[kTaps], across[kTaps];
    bool is_plain = here == kPlanesAtOnce;
#pragma unroll
    for (int t = 0; t < kTaps; ++t) {
      line[t] = from + t * w.in;
      down[t] = h.weights[t * h.out + r];
      across[t] = w.weights[t * w.out + c];
      is_plain = is_plain && down[t] != A(0) && across[t] != A(0);
    }
    const auto next = [&]<bool kSkips>(std::bool_constant<kSkips>) {
      const A sum = weighted_sum<kSkips>(
          down, [&](int i) { return weighted_sum<kSkips>(across, [&](int j) { return A(line[i][j]); }); });
#pragma unroll
      for (int i = 0; i < kTaps; ++i) line[i] += size;
      return sum;
    };
    A sum[kPlanesAtOnce];
    if (is_plain) {
#pragma unroll
      for (A& of : sum) of = next(std::false_type{});
#pragma unroll
      for (int p = 0; p < kPlanesAtOnce; ++p, to += at.places) *to = Out(sum[p]);
      return;
    }
#pragma unroll
    for (int p = 0; p < kPlanesAtOnce; ++p)
      if (p < here) sum[p] = next(std::true_type{});
#pragma unroll
    for (int p = 0; p < kPlanesAtOnce; ++p, to += at.places)
      if (p < here) *to = Out(sum[p]);
  });
}

template <class In, class Out>
__global__ void resample_plane_items(const In* x, Out* y, std::int64_t n, DeviceTable<Accum<In>> h,
                                     DeviceTable<Accum<In>> w, Divider rows, Divider columns) {
  using A = Accum<In>;
  const std::int64_t u = own_item();
  if (u >= n) return;
  const std::int64_t line = columns.quotient(u), plane = rows.quotient(line), r = line - plane * h.out,
                     c = u - line * w.out;
  const In* const from = x + plane * h.in * w.in;
  const std::int64_t bottom = h.end(r), left = w.begin(c), right = w.end(c);
  A sum = 0;
  for (std::int64_t i = h.begin(r); i < bottom; ++i) {
    const A down = h.weight(r, i);
    if (down == A(0)) continue;
    A part = 0;
    for (std::int64_t j = left; j < right; ++j) {
      const A across = w.weight(c, j);
      if (across != A(0)) part += across * A(from[i * w.in + j]);
    }
    sum += down * part;
  }
  y[u] = Out(sum);
}
template <class In, class Out>
void resample_plane(const Gpu& on, const In* x, Out* y, std::int64_t planes, const DeviceTable<Accum<In>>& h,
                    const DeviceTable<Accum<In>>& w) {
  const auto has_taps = [&](int taps) {
    return h.starts && !h.ranges && w.starts && !w.ranges && h.taps == taps && w.taps == taps;
  };
  const PlanesAt at(planes, h.out * w.out);
  if (has_taps(2))
    return on.launch(resample_plane_taps<2, In, Out>, item_grid(at.items()), x, y, at, h, w, Divider(w.out));
  if (has_taps(4))
    return on.launch(resample_plane_taps<4, In, Out>, item_grid(at.items()), x, y, at, h, w, Divider(w.out));
  const std::int64_t n = planes * h.out * w.out;
  on.launch(resample_plane_items<In, Out>, item_grid(n), x, y, n, h, w, Divider(h.out), Divider(w.out));
}

template <class U>
__global__ void resample_nearest_items(const U* x, U* y, PlanesAt at, ResampleAxis d, ResampleAxis h, ResampleAxis w,
                                       Divider rows, Divider columns) {
  at.run([=](std::int64_t first, std::int64_t place) {
    const std::int64_t line = columns.quotient(place), sheet = rows.quotient(line), size = d.in * h.in * w.in;
    const std::int64_t i = d.nearest(sheet) * h.in + h.nearest(line - sheet * h.out);
    const U* const from = x + first * size + i * w.in + w.nearest(place - line * w.out);
    U v[kPlanesAtOnce];
#pragma unroll
    for (int p = 0; p < kPlanesAtOnce; ++p)
      if (first + p < at.planes) v[p] = from[p * size];
#pragma unroll
    for (int p = 0; p < kPlanesAtOnce; ++p)
      if (first + p < at.planes) y[(first + p) * at.places + place] = v[p];
  });
}
template <class U>
void resample_nearest(const Gpu& on, const U* x, U* y, std::int64_t planes, const ResampleAxes& a) {
  const PlanesAt at(planes, a[0].out * a[1].out * a[2].out);
  on.launch(resample_nearest_items<U>, item_grid(at.items()), x, y, at, a[0], a[1], a[2], Divider(a[1].out),
            Divider(a[2].out));
}

}  // namespace levin::kernels::gpu

namespace levin::kernels {  // of the executor that is given
using cpu::resample_axis, gpu::resample_axis;
using cpu::resample_nearest, gpu::resample_nearest;
using cpu::resample_plane, gpu::resample_plane;
}  // namespace levin::kernels
