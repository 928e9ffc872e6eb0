// Muon on devices; muon_device.h. One element a thread at a time: the products between these passes take the time.
#pragma once

#include "kernels/update/muon_device.h"
#include "kernels/update/update_device.cuh"

namespace levin::kernels::gpu {

template <class T>
__global__ void muon_direction(Slot<T> s, MuonRule r, bf16* x, const double* numbers, const float* found_inf) {
  using A = Accum<T>;
  if (skipped(found_inf)) return;
  const A mu = A(numbers[1]), rest = A(1 - numbers[1]);
  const std::int64_t stride = std::int64_t{gridDim.x} * kUpdateThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kUpdateThreads + threadIdx.x; i < s.n; i += stride) {
    const A g = static_cast<A>(s.g[i]), a = s.a[i] + rest * (g - s.a[i]);
    s.a[i] = a;
    x[i] = bf16(static_cast<float>(r.nesterov ? g + mu * (a - g) : a));
  }
}
static __global__ void muon_scale(bf16* x, std::int64_t n, const double* norm, double eps) {
  const float rounded = static_cast<float>(bf16(static_cast<float>(*norm))), least = static_cast<float>(eps);
  const float by = rounded < least ? least : rounded;
  const std::int64_t stride = std::int64_t{gridDim.x} * kUpdateThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kUpdateThreads + threadIdx.x; i < n; i += stride)
    x[i] = bf16(static_cast<float>(x[i]) / by);
}
static __global__ void muon_combine(bf16* y, const bf16* x, std::int64_t n, float a, float b) {
  const std::int64_t stride = std::int64_t{gridDim.x} * kUpdateThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kUpdateThreads + threadIdx.x; i < n; i += stride)
    y[i] = bf16(a * static_cast<float>(x[i]) + b * static_cast<float>(y[i]));
}
// Every thread of a block has read the count before it grows: one block counts, in a launch of its own.
template <class T>
__global__ void muon_apply(Slot<T> s, MuonRule r, const bf16* x, const double* numbers, const float* found_inf) {
  using A = Accum<T>;
  if (skipped(found_inf)) return;
  const A shrink = A(1 - numbers[0] * r.weight_decay), rate = A(numbers[0] * r.scale);
  const std::int64_t step = *s.step + 1, stride = std::int64_t{gridDim.x} * kUpdateThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kUpdateThreads + threadIdx.x; i < s.n; i += stride) {
    const A value[1] = {static_cast<A>(s.p[i]) * shrink - rate * A(static_cast<float>(x[i]))};
    Vec<T, 1> p{};
    round_parameters<1>(s, step, i, value, p);
    store(s.p + i, p);
  }
}
static __global__ void muon_count(std::int64_t* step, const float* found_inf) {
  if (!skipped(found_inf)) ++*step;
}

}  // namespace levin::kernels::gpu
