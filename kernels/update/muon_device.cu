#include "kernels/update/muon_device.cuh"

#include <algorithm>

#include "kernels/gemm/gemm_device.cuh"
#include "levin/tensor.h"
#include "tensor/device/in_stream.h"

#if LEVIN_LAUNCHES
namespace levin::kernels {
namespace {

Grid grid_of(std::int64_t n) {
  return update_grid(std::clamp<std::int64_t>((n + kUpdateBlock - 1) / kUpdateBlock, 1, 4096));
}

}  // namespace

template <class T>
void muon_direction_on_device(const Gpu& on, const MuonRule& rule, const Slot<T>& slot, bf16* x, const double* numbers,
                              const float* found_inf) {
  on.launch(gpu::muon_direction<T>, grid_of(slot.n), slot, rule, x, numbers, found_inf);
}
void muon_scale_on_device(const Gpu& on, bf16* x, std::int64_t n, const double* norm, double eps) {
  on.launch(gpu::muon_scale, grid_of(n), x, n, norm, eps);
}
void muon_product_on_device(const Gpu& on, const GemmSize& size, Matrix<bf16> a, Matrix<bf16> b, bf16* y) {
  const GemmPlan plan = plan_gemm<bf16>(size, 1);
  gpu::Target<bf16> to{.y = y, .row_step = size.n};
  Tensor parts;
  if (plan.workspace() > 0) {
    parts = empty({plan.workspace()}, on.stream.device(), DType::f32);
    to.partial = reinterpret_cast<float*>(levin::detail::address_in_stream(parts));
  }
  gpu::gemm_batched(on, plan, {}, a, b, to);
}
void muon_combine_on_device(const Gpu& on, bf16* y, const bf16* x, std::int64_t n, float a, float b) {
  on.launch(gpu::muon_combine, grid_of(n), y, x, n, a, b);
}
template <class T>
void muon_apply_on_device(const Gpu& on, const MuonRule& rule, const Slot<T>& slot, const bf16* x,
                          const double* numbers, const float* found_inf) {
  on.launch(gpu::muon_apply<T>, grid_of(slot.n), slot, rule, x, numbers, found_inf);
  on.launch(gpu::muon_count, Grid{.blocks = 1, .threads = 1}, slot.step, found_inf);
}
#define LEVIN_MUON(T)                                                                                            \
  template void muon_direction_on_device<T>(const Gpu&, const MuonRule&, const Slot<T>&, bf16*, const double*,   \
                                            const float*);                                                       \
  template void muon_apply_on_device<T>(const Gpu&, const MuonRule&, const Slot<T>&, const bf16*, const double*, \
                                        const float*);
LEVIN_MUON(float)
LEVIN_MUON(double)
LEVIN_MUON(f16)
LEVIN_MUON(bf16)
#undef LEVIN_MUON

}  // namespace levin::kernels
#endif
