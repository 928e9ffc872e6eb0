// Copies between lists of tensors and one buffer, and running averages; the contract is in bucket_device.h.
#pragma once

#include <cstdint>

#include "kernels/device/bits.cuh"
#include "kernels/update/bucket_device.h"
#include "kernels/update/update_device.cuh"

namespace levin::kernels::gpu {

// Blocks of items of W bytes, the last item perhaps shorter and followed by a gap. Four loads of a thread are on their
// way at a time; of 16 bytes they are all that it moves.
template <int W>
struct Items {
  const std::uint8_t* from;
  std::uint8_t* to;
  std::int64_t n;
  int rest, gap;  // bytes of the last item, if it is shorter, and after it
};
}  // namespace levin::kernels::gpu
namespace levin::kernels {
template <>
inline constexpr std::int64_t kPiece<gpu::Items<16>> = 4 * kUpdateThreads;
}  // namespace levin::kernels
namespace levin::kernels::gpu {
template <int W>
__global__ void copy_items(const __grid_constant__ SlotTable<Items<W>> table) {
  const auto [s, begin, end] = piece_of(table, blockIdx.x);
  const bool last = end == s.n && (s.rest > 0 || s.gap > 0);
  const std::int64_t full = last && s.rest > 0 ? end - 1 : end;
  constexpr int kAhead = 4;
  for (std::int64_t i = begin + threadIdx.x; i < full; i += kAhead * kUpdateThreads) {
    Bytes<W> v[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k)
      if (i + k * kUpdateThreads < full) v[k] = load_bytes<W>(s.from, i + k * kUpdateThreads);
#pragma unroll
    for (int k = 0; k < kAhead; ++k)
      if (i + k * kUpdateThreads < full) store_bytes<W>(s.to, i + k * kUpdateThreads, v[k]);
  }
  if (last && static_cast<int>(threadIdx.x) < s.rest + s.gap) {
    const std::int64_t at = full * W + threadIdx.x;
    s.to[at] = static_cast<int>(threadIdx.x) < s.rest ? s.from[at] : std::uint8_t{0};
  }
}

template <int V, class From, class To>
__device__ void average_elements(const Piece<Average<From, To>>& piece, Accum<To> keep, Accum<To> take) {
  using A = Accum<To>;
  for (std::int64_t i = piece.begin + threadIdx.x * V; i < piece.end; i += std::int64_t{kUpdateThreads} * V) {
    const Vec<From, V> from = load<V>(piece.slot.from + i);
    Vec<To, V> to = load<V>(piece.slot.to + i);
    for (int j = 0; j < V; ++j) to[j] = To(keep * static_cast<A>(to[j]) + take * static_cast<A>(from[j]));
    store(piece.slot.to + i, to);
  }
}
template <class From, class To>
__global__ void average(const __grid_constant__ SlotTable<Average<From, To>> table, const double* decay) {
  const Piece<Average<From, To>> piece = piece_of(table, blockIdx.x);
  const auto keep = static_cast<Accum<To>>(*decay), take = static_cast<Accum<To>>(1 - *decay);
  constexpr int V = kVec<From> < kVec<To> ? kVec<From> : kVec<To>;
  if ((piece.end - piece.begin) % V == 0 && aligned16(piece.slot.from) && aligned16(piece.slot.to))
    average_elements<V>(piece, keep, take);
  else
    average_elements<1>(piece, keep, take);
}

}  // namespace levin::kernels::gpu
