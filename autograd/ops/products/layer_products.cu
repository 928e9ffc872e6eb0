// Note [Who multiplies]
//
// On a device the hidden product of gelu_mlp applies GELU as it stores. cuBLASLt does so where it takes the product
// and the form is tanh, the one form that it has; our kernel (gemm_gelu_device.cuh) does so for every other product
// but one kind: a product that cuBLASLt takes in the erf form runs there without GELU, and GELU is a pass of its
// own. A product of that size gains more from the library's kernel than the pass costs. The slope is a pass of its
// own in both forms where cuBLASLt multiplies: its epilogue for that (DGELU_BGRAD) is a kernel of its own, which
// took three times as long on an H100 as the pass (bench/results/2026-11-26_gpu_h100.md). The product that gives the
// gradient of a layer's weight gives that of the bias as well, by either. The CPU, whose products wait for
// arithmetic and not for memory, goes layer by layer.
#include "autograd/ops/products/layer_products.h"

#include "autograd/ops/products/gemm_parts.h"
#include "kernels/executor/dispatch.h"
#include "kernels/gemm/gemm_gelu_device.cuh"
#include "kernels/math/gelu.h"

#if LEVIN_LAUNCHES
namespace levin {
namespace {

using kernels::GemmSize;
using kernels::Matrix;

constexpr OpInfo kInfo{.name = "product"};

Gpu executor(const Tensor& t) { return Gpu{Stream::current(t.device())}; }

// a [m, k] times b [k, n], with GELU or its slope at the end. by_library(product) is the library's call, or none where
// it has no such form; by_kernel(form, plan, a, b, partial) runs our kernel.
template <class T, class Library, class Kernel>
bool ends_in_gelu(const Gpu& on, GeluForm form, const Tensor& a, const Tensor& b, const Tensor& out, const T* col_bias,
                  const Library& by_library, const Kernel& by_kernel) {
  const GemmSize size{a.size(0), b.size(1), a.size(1)};
  const Matrix<T> left = matrix<T>(a), right = matrix<T>(b);
  if constexpr (kHasGemmLibrary) {
    if (library_multiplies()) {
      const auto product = kernels::library_product<T>({}, size, left, right, ptr<T>(out), size.n, col_bias);
      if (library_made(on, by_library(product))) return true;
      if (product) return false;
    }
  }
  if (size.m * size.n == 0) return false;
  const kernels::GemmPlan plan = kernels::plan_gemm<T>(size, 1);
  const GemmParts<T> parts(plan, a.device());
  form == GeluForm::erf ? by_kernel(kernels::GeluErf{}, plan, left, right, parts.get())
                        : by_kernel(kernels::GeluTanh{}, plan, left, right, parts.get());
  return true;
}

}  // namespace

bool gelu_layer_on_device(GeluForm form, const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& z,
                          const Tensor& h) {
  bool made = false;
  dispatch_dtype(kInfo, x, kFloats, [&]<class T>(T) {
    const Gpu on = executor(x);
    const Tensor bias = b.defined() ? b.contiguous() : b;
    const T* const col_bias = ptr_or_null<T>(bias);
    T* const kept = ptr_or_null<T>(z);
    made = ends_in_gelu<T>(
        on, form, x, t(w), h, col_bias,
        [&](const auto& product) { return form == GeluForm::tanh ? kernels::with_gelu(product, kept) : std::nullopt; },
        [&]<class F>(F, const auto& plan, const auto& left, const auto& right, auto* partial) {
          kernels::gpu::gelu_product<F>(on, plan, left, right, col_bias, kept, ptr<T>(h), partial);
        });
  });
  return made;
}

bool gelu_slope_on_device(GeluForm form, const Tensor& gy, const Tensor& w, const Tensor& z, const Tensor& dz) {
  bool made = false;
  dispatch_dtype(kInfo, gy, kFloats, [&]<class T>(T) {
    const Gpu on = executor(gy);
    made = ends_in_gelu<T>(
        on, form, gy, w, dz, nullptr,
        [](const auto&) -> std::optional<kernels::LibraryProduct> { return std::nullopt; },
        [&]<class F>(F, const auto& plan, const auto& left, const auto& right, auto* partial) {
          kernels::gpu::gelu_slope_product<F>(on, plan, left, right, ptr<const T>(z), ptr<T>(dz), partial);
        });
  });
  return made;
}

bool linear_parameters_on_device(const Tensor& gy, const Tensor& x, const Tensor& gw, const Tensor& gb) {
  const GemmSize size{gy.size(1), x.size(1), gy.size(0)};
  if (size.m * size.n == 0) return false;
  bool made = true;
  dispatch_dtype(kInfo, gy, kFloats, [&]<class T>(T) {
    const Gpu on = executor(gy);
    const Matrix<T> left = matrix<T>(t(gy)), right = matrix<T>(x);
    if constexpr (kHasGemmLibrary) {
      if (library_multiplies()) {
        const auto product = kernels::library_product<T>({}, size, left, right, ptr<T>(gw), size.n, nullptr);
        made = library_made(on, kernels::with_row_sums(product, ptr<T>(gb)));
        if (made || product) return;
      }
    }
    const kernels::GemmPlan plan = kernels::plan_gemm<T>(size, 1);
    const GemmParts<T> parts(plan, gy.device(), true);
    kernels::gpu::gemm_with_row_sums(on, plan, left, right, ptr<T>(gw), ptr<T>(gb), parts.get());
    made = true;
  });
  return made;
}

}  // namespace levin
#endif
