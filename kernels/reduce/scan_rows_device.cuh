// Scans of dense rows for devices that launch kernels.
//
//   scan_rows(on, const T* x, const Op& op, rows, n)     x: [rows, n]; Op is one of scan.cuh
//   scans_rows(x, op, rows, n)                           whether scan_rows takes these rows, which start at x
//
// A warp or a block takes a row, 8 to 16 bytes of elements a thread at a time. A thread joins its own elements, lanes
// join what stands before them by shuffles, and warps by shared memory. Four loads stand together.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/device/block.cuh"
#include "kernels/device/row.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/executor/gpu.h"
#include "kernels/reduce/extreme_row_device.cuh"

namespace levin::kernels::gpu {

// Elements of a thread at a time: as many values of 8 bytes and more have registers.
template <class T>
inline constexpr int kScanned = kVec<T> < 8 ? kVec<T> : 8;
inline constexpr int kTilesAhead = 4;

// A value of a scan from another lane: a number, or a number and its place.
template <class V, class F>
__device__ __forceinline__ V shuffled(const V& x, F&& shuffle) {
  if constexpr (std::is_arithmetic_v<V>)
    return shuffle(x);
  else
    return {shuffle(x.value), shuffle(x.place)};
}

// The results of values that follow each other, to aligned y.
template <int N, class S, class Value, class F>
__device__ __forceinline__ void put_results(S* y, const Value (&v)[N], F&& result_of) {
  constexpr int kPart = N < kVec<S> ? N : kVec<S>;
#pragma unroll
  for (int j = 0; j < N; j += kPart) {
    Vec<S, kPart> part;
#pragma unroll
    for (int e = 0; e < kPart; ++e) part[e] = result_of(v[j + e]);
    store(y + j, part);
  }
}

// Threads that a processor has at least: given, because ptxas aims at more by itself and then spills.
inline constexpr int kScanThreads = 512;

template <int kThreads, class T, class Op>
__global__ void __launch_bounds__(Team<kThreads>::kBlock, kScanThreads / Team<kThreads>::kBlock)
    scan_dense_rows(const T* x, std::int64_t rows, std::int64_t n, Op op) {
  using Of = Team<kThreads>;
  using Value = typename Op::Value;
  constexpr int N = kScanned<T>, kTile = kThreads * N, kWarps = kThreads / 32;
  LEVIN_SHARED(Value, totals, 2 * kWarps);  // of each warp, in turns
  const int lane = Of::rank() % 32, warp = Of::rank() / 32;
  int turn = 0;
  for (std::int64_t row = std::int64_t{blockIdx.x} * Of::kRows + Of::row(); row < rows;
       row += std::int64_t{gridDim.x} * Of::kRows) {
    const T* const in = x + row * n;
    Value before = Op::none();
    for (std::int64_t first = 0; first < n; first += kTilesAhead * kTile) {
      Vec<T, N> tile[kTilesAhead] = {};
#pragma unroll
      for (int t = 0; t < kTilesAhead; ++t) {
        const std::int64_t k = first + t * kTile + Of::rank() * N;
        if (k < n) tile[t] = load<N>(in + k);
      }
#pragma unroll
      for (int t = 0; t < kTilesAhead; ++t) {
        if (first + t * kTile >= n) break;
        const std::int64_t k = first + t * kTile + Of::rank() * N;
        const bool inside = k < n;
        Value run[N];
        run[0] = Op::of(tile[t][0], k);
#pragma unroll
        for (int j = 1; j < N; ++j) run[j] = Op::join(run[j - 1], Op::of(tile[t][j], k + j));
        Value all = inside ? run[N - 1] : Op::none();
        // What the warp has up to this lane, and before it.
#pragma unroll
        for (int apart = 1; apart < 32; apart *= 2) {
          const Value left = shuffled(all, [=](auto v) { return __shfl_up_sync(kAllLanes, v, unsigned(apart)); });
          if (lane >= apart) all = Op::join(left, all);
        }
        const Value left = shuffled(all, [](auto v) { return __shfl_up_sync(kAllLanes, v, 1u); });
        Value base = before;
        if constexpr (kWarps == 1) {
          before = Op::join(before, shuffled(all, [](auto v) { return __shfl_sync(kAllLanes, v, 31); }));
        } else {
          Value* const of = totals + turn * kWarps;
          if (lane == 31) of[warp] = all;
          __syncthreads();
#pragma unroll
          for (int w = 0; w < kWarps; ++w) {
            if (w == warp) base = before;
            before = Op::join(before, of[w]);
          }
          turn ^= 1;
        }
        if (lane > 0) base = Op::join(base, left);
#pragma unroll
        for (int j = 0; j < N; ++j) run[j] = Op::join(base, run[j]);
        if (inside) {
          op.each_result([&](auto* y, auto result_of) { put_results(y + row * n + k, run, result_of); });
        }
      }
    }
  }
}

template <class T, class Op>
[[nodiscard]] bool scans_rows(const T* x, const Op& op, std::int64_t rows, std::int64_t n) {
  if (rows < Op::kManyRows) return false;
  bool aligned = aligned16(x);
  op.each_result([&](auto* y, auto) { aligned = aligned && aligned16(y); });
  return aligned && n % kScanned<T> == 0 && n >= kLeastChunks * kScanned<T>;
}

template <class T, class Op>
void scan_rows(const Gpu& on, const T* x, const Op& op, std::int64_t rows, std::int64_t n) {
  with_team<T, kRowThreads, kRowThreads>(n, [&]<int kThreads>(std::integral_constant<int, kThreads>) {
    on.launch(scan_dense_rows<kThreads, T, Op>, row_grid<kThreads>(RowPlan{}, rows, 0), x, rows, n, op);
  });
}

}  // namespace levin::kernels::gpu
