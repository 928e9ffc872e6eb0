// Products that end in GELU or in its derivative (gemm_device.cuh); Form is GeluErf or GeluTanh of kernels/math/gelu.h.
//
//   gelu_product<Form>(on, plan, x, w, bias, z, h, partial)      z = x w + bias, h = gelu(z); bias and z may be null
//   gelu_slope_product<Form>(on, plan, gy, w, z, dz, partial)    dz = (gy w) * gelu'(z)
//
// x, gy: [m, k] and w: [k, n], each through any two strides; z, h and dz: dense [m, n]; bias: [n]; partial: memory for
// plan.workspace() sums. T: float, double, f16, bf16. h is computed from the sum before it is rounded to z.
// x and gy are read fastest along k. w is read fastest along k by the first, along n by the second: the directions in
// which the weights of two layers lie, each [out, in].
#pragma once

#include "kernels/gemm/gemm_device.cuh"
#include "kernels/math/gelu.h"

namespace levin::kernels::gpu {

template <class T, class Form>
struct GeluOfSum {
  T* z = nullptr;  // where y lies, or null
  __device__ __forceinline__ Accum<T> operator()(Accum<T> sum, int64_t at) const {
    if (z) z[at] = T(sum);
    return Form::value(sum);
  }
};
template <class T, class Form>
struct SumTimesGeluSlope {
  const T* z = nullptr;
  __device__ __forceinline__ Accum<T> operator()(Accum<T> sum, int64_t at) const {
    return sum * Form::slope(Accum<T>(z[at]));
  }
};

// One product, without batches.
template <bool kRightAlongK, class T, class E>
void launch_product(const Gpu& on, const GemmPlan& plan, const Matrix<T>& a, const Matrix<T>& b,
                    const Target<T, E>& to) {
  Strided<3> single;
  single.rank = 1;
  launch_gemm(on, plan, lines_of<true>(a.data, a.row, a.col, plan.m, plan.k),
              lines_of<kRightAlongK>(b.data, b.col, b.row, plan.n, plan.k), single, to);
}

// y by gemm_hopper_device.cuh, where that takes the product. Returns whether it did.
template <class T>
bool made_by_hopper(const Gpu& on, const GemmPlan& plan, const Matrix<T>& a, const Matrix<T>& b, T* y, const T* bias,
                    HopperProduct::End end, T* before) {
  if constexpr (kOnTensorCores<T>) {
    if (plan.splits != 1 || plan.tile != 128) return false;
    auto product = hopper_product<T>({plan.m, plan.n, plan.k}, a, b, y, plan.n, bias);
    if (!product) return false;
    product->end = end;
    product->before = before;
    return hopper_made(product, on.stream);
  } else {
    return false;
  }
}

template <class Form, class T>
void gelu_product(const Gpu& on, const GemmPlan& plan, const Matrix<T>& x, const Matrix<T>& w, const T* bias, T* z,
                  T* h, Accum<T>* partial) {
  using End = HopperProduct::End;
  constexpr End kEnd = std::is_same_v<Form, GeluErf> ? End::gelu_erf : End::gelu_tanh;
  if (made_by_hopper(on, plan, x, w, h, bias, kEnd, z)) return;
  launch_product<true>(
      on, plan, x, w,
      Target<T, GeluOfSum<T, Form>>{.y = h, .row_step = plan.n, .col_bias = bias, .partial = partial, .epilogue = {z}});
}
template <class Form, class T>
void gelu_slope_product(const Gpu& on, const GemmPlan& plan, const Matrix<T>& gy, const Matrix<T>& w, const T* z, T* dz,
                        Accum<T>* partial) {
  using End = HopperProduct::End;
  constexpr End kEnd = std::is_same_v<Form, GeluErf> ? End::gelu_erf_slope : End::gelu_tanh_slope;
  if (made_by_hopper(on, plan, gy, w, dz, static_cast<const T*>(nullptr), kEnd, const_cast<T*>(z))) return;
  launch_product<false>(
      on, plan, gy, w,
      Target<T, SumTimesGeluSlope<T, Form>>{.y = dz, .row_step = plan.n, .partial = partial, .epilogue = {z}});
}

}  // namespace levin::kernels::gpu
