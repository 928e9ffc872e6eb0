// Layer and RMS norm of a sum, on devices that launch kernels: h = x + r and y = norm(h) w + b in one pass over memory,
// and both gradients of the sum in one pass.
//
// X: type of x and h; R: type of r and y, X itself or, for float, a 16-bit type; A = Accum<X>: sums, parameters and
// saved statistics. All tensors contiguous, [rows, cols]; w, b [cols] may be null; mean, rstd [rows], mean null for RMS
// norm. h is rounded to X and y is that of the rounded h: the bits are those of an addition and a norm.
#pragma once

#include "kernels/norm/norm.cuh"

namespace levin::kernels::gpu {

// This thread's part of a row of x + r. The first read writes the sum, and a row that is not kept is read from there.
template <class X, class R, int kThreads>
struct SumPart {
  using Number = X;
  static constexpr int V = kVec<X>, kTeam = kThreads;
  const X* x;
  const R* r;
  X* h;
  std::int64_t n;
  RowPlan plan;
  Vec<X>* kept;

  __device__ __forceinline__ Vec<X> read(std::int64_t chunk, bool vectors) const {
    const std::int64_t i = chunk * V;
    auto sum = widened(read_chunk<X>(x, i, n, vectors, X(0.0f)));
    const auto more = widened(read_chunk<X>(r, i, n, vectors, X(0.0f)));
#pragma unroll
    for (int j = 0; j < V; ++j) sum[j] += more[j];
    const Vec<X> v = narrowed(sum);
    write_chunk(h, i, n, vectors, v);
    return v;
  }
  __device__ __forceinline__ void keep(std::int64_t chunk, const Vec<X>& v) const {
    if (plan.keeps) kept[chunk] = v;
  }
  __device__ __forceinline__ Vec<X> again(std::int64_t chunk) const {
    return plan.keeps ? kept[chunk] : read_chunk<X>(static_cast<const X*>(h), chunk * V, n, plan.vectors, X(0.0f));
  }
};

template <bool kCentered, class X, class R, int kThreads>
__global__ __launch_bounds__(Team<kThreads>::kBlock) void add_norm_rows(const X* x, const R* r, const Accum<X>* w,
                                                                        const Accum<X>* b, X* h, R* y, Accum<X>* mean,
                                                                        Accum<X>* rstd, std::int64_t rows,
                                                                        std::int64_t cols, Accum<X> eps, RowPlan plan) {
  using Of = Team<kThreads>;
  LEVIN_SHARED_DYNAMIC(Vec<X>, shared);
  for (std::int64_t i = std::int64_t{blockIdx.x} * Of::kRows + Of::row(); i < rows;
       i += std::int64_t{gridDim.x} * Of::kRows) {
    const SumPart<X, R, kThreads> row{x + i * cols, r + i * cols, h + i * cols,
                                      cols,         plan,         shared + Of::row() * plan.chunks};
    norm_row<kCentered, kThreads>(row, w, b, y + i * cols, mean, rstd, i, cols, eps, plan);
  }
}

template <bool kCentered, class X, class R>
void launch_add_norm_rows(const Gpu& on, const X* x, const R* r, const Accum<X>* w, const Accum<X>* b, X* h, R* y,
                          Accum<X>* mean, Accum<X>* rstd, std::int64_t rows, std::int64_t cols, double eps) {
  with_team<X, kRowThreads>(cols, [&]<int kThreads>(std::integral_constant<int, kThreads>) {
    const RowPlan plan = plan_rows<X, kThreads>(cols, 1, {x, r, w, b, h, y});
    on.launch(add_norm_rows<kCentered, X, R, kThreads>, row_grid<kThreads>(plan, rows, 1), x, r, w, b, h, y, mean, rstd,
              rows, cols, static_cast<Accum<X>>(eps), plan);
  });
}

// gh and gy: gradients of h and y. gx = gh + the norm's gradient of h; gr is the same as R. gx and gr may be null.
template <bool kCentered, class X, class R>
void launch_add_norm_rows_backward(const Gpu& on, const X* gh, const R* gy, const X* h, const Accum<X>* w,
                                   const Accum<X>* mean, const Accum<X>* rstd, X* gx, R* gr, Accum<X>* gw, Accum<X>* gb,
                                   std::int64_t rows, std::int64_t cols, Accum<X>* scratch) {
  with_team<X, kRowThreads, kRowThreads>(cols, [&]<int kThreads>(std::integral_constant<int, kThreads>) {
    const bool sums = gw != nullptr || gb != nullptr;
    const BackwardPlan plan = plan_backward<X, kThreads>(rows, cols, sums, {gh, gy, h, w, gx, gr});
    on.launch(norm_rows_backward<kCentered, X, X, kThreads, SumGradient<X, R>>,
              Grid{.blocks = plan.blocks, .threads = Team<kThreads>::kBlock, .shared = plan.shared}, gy, h, w, mean,
              rstd, SumGradient<X, R>{gh, gx, gr}, scratch, rows, cols, plan);
    if (!sums) return;
    on.launch(norm_columns<X>, Grid{.blocks = {blocks_for(cols, 32), 2, 1}, .threads = kFinishThreads}, scratch,
              std::int64_t{plan.blocks}, cols, gw, gb);
  });
}

}  // namespace levin::kernels::gpu
