// Loss scaling on devices; the contract is in kernels/loss_scale.h. Nothing here waits for the host or tells it anything:
// the scale is read, judged and moved in the device's memory, so that a recorded step can be replayed.
#pragma once

#include <cstdint>

#include "kernels/loss_scale.h"
#include "kernels/update_device.cuh"

namespace levin::kernels::gpu {

template <class T>
__device__ __forceinline__ bool is_finite(T x) {
  return x - x == T(0);
}

// Multiplies V elements at a time; returns the sum of their squares, and in `finite` whether all are.
template <int V, class T>
__device__ double unscale_elements(const Piece<Slot<T>>& piece, T factor, bool& finite) {
  double sum = 0;
  for (std::int64_t i = piece.begin + threadIdx.x * V; i < piece.end; i += std::int64_t{kUpdateThreads} * V) {
    Vec<T, V> g = load<V>(piece.slot.g + i);
    for (int j = 0; j < V; ++j) {
      g[j] *= factor;
      finite = finite && is_finite(g[j]);
      sum += static_cast<double>(g[j]) * static_cast<double>(g[j]);
    }
    store(piece.slot.p + i, g);
  }
  return sum;
}

// Slots as for clipping: p and g are the gradient. squares[block] and bad[block] are the block's part of the result.
template <class T>
__global__ void unscale(const __grid_constant__ SlotTable<Slot<T>> table, const float* scale, double* squares,
                        double* bad) {
  LEVIN_SHARED(double, scratch, kUpdateThreads / 32);
  const Piece<Slot<T>> piece = piece_of(table, blockIdx.x);
  const T factor = T(1.0 / static_cast<double>(*scale));
  constexpr int V = kVec<T>;
  bool finite = true;
  const bool vectors = (piece.end - piece.begin) % V == 0 && aligned16(piece.slot.g);
  double sum = vectors ? unscale_elements<V>(piece, factor, finite) : unscale_elements<1>(piece, factor, finite);
  const int any = __syncthreads_or(!finite);
  sum = block_sum<kUpdateThreads>(sum, scratch);
  if (threadIdx.x == 0) {
    squares[blockIdx.x] = sum;
    bad[blockIdx.x] = any ? 1 : 0;
  }
}

// One block: the verdict and the norm from the blocks' parts.
template <class T>  // T of the norm: double
__global__ void judge(const double* squares, const double* bad, std::int64_t n, float* found_inf, T* norm) {
  LEVIN_SHARED(double, scratch, kUpdateThreads / 32);
  double sum = 0;
  bool found = false;
  for (std::int64_t i = threadIdx.x; i < n; i += kUpdateThreads) {
    sum += squares[i];
    found = found || bad[i] != 0;
  }
  const int any = __syncthreads_or(found);
  sum = block_sum<kUpdateThreads>(sum, scratch);
  if (threadIdx.x == 0) {
    *found_inf = any ? 1.0f : 0.0f;
    *norm = ::sqrt(sum);
  }
}

// One thread.
template <class T>  // T of the scale: float
__global__ void update_scale(const __grid_constant__ Verdicts verdicts, LossScaleRule rule, T* scale,
                             std::int64_t* tracker, std::int64_t* skipped_steps) {
  bool any = false;
  for (int k = 0; k < verdicts.count; ++k) {
    if (*verdicts.found[k] == 0) continue;
    any = true;
    if (verdicts.stepped[k]) ++*skipped_steps;
  }
  next_scale(rule, any, *scale, *tracker);
}

}  // namespace levin::kernels::gpu
