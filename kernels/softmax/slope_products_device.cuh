// Products of slopes on devices, added to sums in the type of sums (gemm_device.cuh); T: float, double, f16, bf16.
//
//   add_product<kLeftAlongK>(on, plan, a, b, y, sums, partial)   y = or += a b: a [m, k], b [k, n], y dense [m, n]
//   add_columns(on, x, y, rows, cols, sums)                      y = or += the sum of x's rows; x dense [rows, cols]
//
// kLeftAlongK: whether a is read fastest along k; b is read fastest along n. partial: memory for plan.workspace() sums.
// The order of a sum depends on the sizes alone.
#pragma once

#include <cstdint>

#include "kernels/gemm/gemm_device.cuh"

namespace levin::kernels {

// Whether a product begins sums or adds to them.
enum class SumsOf : uint8_t { this_product, all_products };

}  // namespace levin::kernels

namespace levin::kernels::gpu {

template <class T>
struct AddedTo {
  SumsOf sums;
};

// A dense result of another type than T.
template <class T>
struct Target<T, AddedTo<T>> {
  Accum<T>* y;
  int64_t row_step;
  Accum<T>* partial = nullptr;
  AddedTo<T> epilogue{};
  unsigned* tickets = nullptr;  // set by launch_gemm

  __device__ __forceinline__ void finish(const GemmPlan&, int64_t, int64_t offset, int64_t i, int64_t j,
                                         Accum<T> sum) const {
    Accum<T>& at = y[offset + i * row_step + j];
    at = epilogue.sums == SumsOf::all_products ? at + sum : sum;
  }
  __device__ __forceinline__ Accum<T>& part(const GemmPlan& plan, int64_t split, int64_t b, int64_t i,
                                            int64_t j) const {
    return partial[((split * plan.batches + b) * plan.m + i) * plan.n + j];
  }
};

template <bool kLeftAlongK, class T>
void add_product(const Gpu& on, const GemmPlan& plan, const Matrix<T>& a, const Matrix<T>& b, Accum<T>* y, SumsOf sums,
                 Accum<T>* partial) {
  Strided<3> single;
  single.rank = 1;
  launch_gemm(on, plan, lines_of<kLeftAlongK>(a.data, a.row, a.col, plan.m, plan.k),
              lines_of<false>(b.data, b.col, b.row, plan.n, plan.k), single,
              Target<T, AddedTo<T>>{.y = y, .row_step = plan.n, .partial = partial, .epilogue = {sums}});
}

// A block has 32 neighbouring columns, and each of its 8 warps an eighth of their rows.
inline constexpr int kColumnWarps = 8;
template <class T>
__global__ __launch_bounds__(32 * kColumnWarps) void add_columns_of(const T* x, Accum<T>* y, int64_t rows, int64_t cols,
                                                                    SumsOf sums) {
  using A = Accum<T>;
  LEVIN_SHARED(A, parts, 32 * kColumnWarps);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t c = int64_t{blockIdx.x} * 32 + lane;
  A sum = 0;
  for (int64_t r = warp; c < cols && r < rows; r += kColumnWarps) sum += A(x[r * cols + c]);
  parts[threadIdx.x] = sum;
  __syncthreads();
  if (warp != 0 || c >= cols) return;
#pragma unroll
  for (int w = 1; w < kColumnWarps; ++w) sum += parts[w * 32 + lane];
  y[c] = sums == SumsOf::all_products ? y[c] + sum : sum;
}
template <class T>
void add_columns(const Gpu& on, const T* x, Accum<T>* y, int64_t rows, int64_t cols, SumsOf sums) {
  on.launch(add_columns_of<T>, Grid{.blocks = blocks_for(cols, 32), .threads = 32 * kColumnWarps}, x, y, rows, cols,
            sums);
}

}  // namespace levin::kernels::gpu
