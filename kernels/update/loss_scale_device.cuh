// Loss scaling on devices; the contract is in loss_scale.h. Nothing here waits for the host or reports to it:
// the device reads, judges and moves the scale in its own memory, so a recorded step can be replayed.
#pragma once

#include <cstdint>

#include "kernels/update/loss_scale.h"
#include "kernels/update/update_device.cuh"

namespace levin::kernels::gpu {

template <class T>
__device__ __forceinline__ bool is_finite(T x) {
  return x - x == T(0);
}

// Multiplies V elements at a time; returns the sum of their squares, and in `finite` whether all are.
template <int V, class From, class To>
__device__ double unscale_elements(const Piece<Move<From, To>>& piece, To factor, bool& finite) {
  double sum = 0;
  each_loaded<V>(piece.slot.from, piece.begin, piece.end, true, [&](std::int64_t i, const Vec<From, V>& from) {
    Vec<To, V> to;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      to[j] = static_cast<To>(from[j]) * factor;
      finite = finite && is_finite(to[j]);
      sum += static_cast<double>(to[j]) * static_cast<double>(to[j]);
    }
    if (piece.slot.to) store(piece.slot.to + i, to);
  });
  return sum;
}
// Whether V elements can be moved at a time, 16 bytes of the wider type.
template <int V, class From, class To>
__device__ bool takes_vectors(const Piece<Move<From, To>>& piece) {
  return (piece.end - piece.begin) % V == 0 && aligned16(piece.slot.from) && aligned16(piece.slot.to);
}
template <class From, class To>
inline constexpr int kMoved = kVec<From> < kVec<To> ? kVec<From> : kVec<To>;

// Where the passes over all gradients leave their blocks' parts, squares and bad [parts], and what one block makes of
// them: the verdict and the norm, the factors of an update and the scale that follows.
struct Judgement {
  double *squares, *bad;
  std::int64_t parts;
  float* found_inf;
  double* norm;
  StepVerdict step;
};
__device__ inline void judge(const Judgement& to, double inverse_scale) {
  LEVIN_SHARED(double, scratch, kUpdateThreads / 32);
  double sum = 0;
  bool found = false;
  for (std::int64_t i = threadIdx.x; i < to.parts; i += kUpdateThreads) {
    sum += to.squares[i];
    found = found || to.bad[i] != 0;
  }
  const int any = __syncthreads_or(found);
  sum = block_sum<kUpdateThreads>(sum, scratch);
  if (threadIdx.x > 0) return;
  const double norm = ::sqrt(sum);
  *to.found_inf = any ? 1.0f : 0.0f;
  *to.norm = norm;
  write_factors(to.step.factors, inverse_scale, norm);
  const LossScale& state = to.step.state;
  if (!state.scale) return;
  if (any) ++*state.skipped;
  next_scale(to.step.rule, any != 0, *state.scale, *state.tracker);
}

// The blocks' parts begin at `first`. The last block of the last pass judges.
template <class From, class To>
__global__ void unscale(const __grid_constant__ SlotTable<Move<From, To>> table, const float* scale, Judgement to,
                        std::int64_t first, unsigned* ticket) {
  LEVIN_SHARED(double, scratch, kUpdateThreads / 32);
  const double inverse_scale = 1.0 / static_cast<double>(*scale);
  const To factor = To(inverse_scale);
  constexpr int V = kMoved<From, To>;
  bool finite = true;
  double sum = 0;
  each_piece(table, [&](const Piece<Move<From, To>>& piece) {
    sum += takes_vectors<V>(piece) ? unscale_elements<V>(piece, factor, finite)
                                   : unscale_elements<1>(piece, factor, finite);
  });
  const int any = __syncthreads_or(!finite);
  sum = block_sum<kUpdateThreads>(sum, scratch);
  if (threadIdx.x == 0) {
    to.squares[first + blockIdx.x] = sum;
    to.bad[first + blockIdx.x] = any ? 1 : 0;
  }
  if (first + gridDim.x == to.parts && is_last_block(ticket, gridDim.x)) judge(to, inverse_scale);
}

template <int V, class From, class To>
__device__ void convert_elements(const Piece<Move<From, To>>& piece) {
  each_loaded<V>(piece.slot.from, piece.begin, piece.end, true, [&](std::int64_t i, const Vec<From, V>& from) {
    Vec<To, V> to;
#pragma unroll
    for (int j = 0; j < V; ++j) to[j] = static_cast<To>(from[j]);
    store(piece.slot.to + i, to);
  });
}
template <class From, class To>
__global__ void convert(const __grid_constant__ SlotTable<Move<From, To>> table, const float* found_inf) {
  if (skipped(found_inf)) return;
  const Piece<Move<From, To>> piece = piece_of(table, blockIdx.x);
  constexpr int V = kMoved<From, To>;
  if (takes_vectors<V>(piece))
    convert_elements<V>(piece);
  else
    convert_elements<1>(piece);
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
