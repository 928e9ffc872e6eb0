// What ops share that multiply matrices on devices: operands as kernels take them, memory for the parts of split sums,
// held for the length of an op, and calls to cuBLASLt.
#pragma once

#include "kernels/executor/dispatch.h"
#include "kernels/gemm/gemm_device.cuh"
#include "kernels/gemm/gemm_library.h"
#include "levin/engines.h"
#include "levin/ops.h"

namespace levin {

// The last two dimensions of t as a matrix.
template <class T>
kernels::Matrix<T> matrix(const Tensor& t) {
  return {ptr<T>(t), t.stride(-2), t.stride(-1)};
}

// See Note [Long sums are split].
template <class T>
class GemmParts {
 public:
  GemmParts(const kernels::GemmPlan& plan, Device device, bool row_sums = false) {
    if (const std::int64_t numbers = plan.workspace(row_sums); numbers > 0)
      memory_ = empty({numbers}, device, dtype_of<kernels::Accum<T>>);
  }
  [[nodiscard]] kernels::Accum<T>* get() const { return memory_.defined() ? ptr<kernels::Accum<T>>(memory_) : nullptr; }

 private:
  Tensor memory_;
};

// Whether large products go to cuBLASLt in this build.
#if defined(LEVIN_CUDA)
inline constexpr bool kHasGemmLibrary = true;
#else
inline constexpr bool kHasGemmLibrary = false;
#endif

// As above, and the engine choice does not ask for our kernels.
inline bool library_multiplies() {
  return kHasGemmLibrary && engine_choice(EngineFamily::product) != EngineChoice::own;
}

// Returns true where cuBLASLt computed the product.
inline bool library_made(const Gpu& on, const std::optional<kernels::LibraryProduct>& product) {
#if defined(LEVIN_CUDA)
  if (!product) return false;
  const Tensor workspace = empty({kernels::lib::kCublasWorkspace}, on.stream.device(), DType::u8);
  return kernels::lib::cublas_multiply(*product, ptr<std::uint8_t>(workspace), on.stream);
#else
  (void)on, (void)product;
  return false;
#endif
}

}  // namespace levin
