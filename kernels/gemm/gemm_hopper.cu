// The kernels of gemm_hopper_device.cuh for compute capability 9.0 alone: wgmma and setmaxnreg exist in no other.
#include <algorithm>

#include "kernels/executor/gpu.h"
#include "kernels/gemm/gemm_hopper.h"
#include "kernels/gemm/gemm_hopper_device.cuh"
#include "levin/error.h"
#include "tensor/device/hardware.h"

namespace levin::kernels {

namespace {

using gpu::Major;

TensorMap boxes_of(const HopperProduct& p, const void* data, std::int64_t columns, std::int64_t rows, std::int64_t step,
                   int box_rows) {
  return tensor_map({.data = data,
                     .dtype = p.dtype,
                     .columns = columns,
                     .rows = rows,
                     .row_bytes = step * 2,
                     .box_columns = 64,
                     .box_rows = box_rows});
}

// Along k one box has all lines of a tile, along the lines one box is a panel of 64.
TensorMap boxes_of(const HopperProduct& p, const HopperProduct::Operand& o, std::int64_t lines, int tile) {
  return o.along_lines ? boxes_of(p, o.data, lines, p.size.k, o.step, gpu::kHopperDepth)
                       : boxes_of(p, o.data, p.size.k, lines, o.step, tile);
}

template <class T, int kN, Major kMajorA, Major kMajorB, class Form, gpu::Before kBefore>
void launch(const HopperProduct& p, const HopperPlan& plan, Stream stream) {
  const auto up = [](std::int64_t a, std::int64_t b) { return int((a + b - 1) / b); };
  const gpu::HopperTiles tiles{up(p.size.m, std::int64_t{gpu::kHopperRows} * plan.peers), up(p.size.n, kN),
                               up(p.size.k, gpu::kHopperDepth), plan.peers};
  const TensorMap y = boxes_of(p, p.y, p.size.n, p.size.m, p.y_step, 64);
  const TensorMap before = p.before ? boxes_of(p, p.before, p.size.n, p.size.m, p.y_step, 64) : y;
  const Grid grid{.blocks = unsigned(plan.peers * std::min(std::max(1, plan.blocks / plan.peers), tiles.groups())),
                  .threads = gpu::kHopperThreads,
                  .shared = gpu::kHopperBytes<kN>,
                  .cluster = unsigned(plan.peers)};
  Gpu{stream}.launch(gpu::gemm_hopper<T, kN, kMajorA, kMajorB, Form, kBefore>, grid,
                     boxes_of(p, p.a, p.size.m, gpu::kHopperRows), boxes_of(p, p.b, p.size.n, kN / plan.peers), y,
                     before, tiles, int(p.size.n), static_cast<const T*>(p.bias));
}

template <class T, int kN>
void launch_form(const HopperProduct& p, const HopperPlan& plan, Stream stream) {
  constexpr Major k = Major::k, mn = Major::mn;
  using gpu::Before;
  switch (p.end) {
    case HopperProduct::End::gelu_tanh:
      return p.before ? launch<T, kN, k, k, GeluTanh, Before::written>(p, plan, stream)
                      : launch<T, kN, k, k, GeluTanh, Before::none>(p, plan, stream);
    case HopperProduct::End::gelu_erf:
      return p.before ? launch<T, kN, k, k, GeluErf, Before::written>(p, plan, stream)
                      : launch<T, kN, k, k, GeluErf, Before::none>(p, plan, stream);
    case HopperProduct::End::gelu_tanh_slope: return launch<T, kN, k, mn, GeluTanh, Before::read>(p, plan, stream);
    case HopperProduct::End::gelu_erf_slope: return launch<T, kN, k, mn, GeluErf, Before::read>(p, plan, stream);
    case HopperProduct::End::bias: break;
  }
  if (p.a.along_lines)
    return p.b.along_lines ? launch<T, kN, mn, mn, gpu::NoForm, Before::none>(p, plan, stream)
                           : launch<T, kN, mn, k, gpu::NoForm, Before::none>(p, plan, stream);
  return p.b.along_lines ? launch<T, kN, k, mn, gpu::NoForm, Before::none>(p, plan, stream)
                         : launch<T, kN, k, k, gpu::NoForm, Before::none>(p, plan, stream);
}

template <class T>
void launch_tile(const HopperProduct& p, const HopperPlan& plan, Stream stream) {
  plan.columns == 256 ? launch_form<T, 256>(p, plan, stream) : launch_form<T, 128>(p, plan, stream);
}

}  // namespace

void hopper_multiply(const HopperProduct& p, const HopperPlan& plan, Stream stream) {
  if (const auto why = hopper_refusal(p)) fail<UnsupportedError>("hopper_multiply: ", *why);
  p.dtype == DType::f16 ? launch_tile<f16>(p, plan, stream) : launch_tile<bf16>(p, plan, stream);
}

bool hopper_made(const std::optional<HopperProduct>& p, Stream stream) {
  const auto plan = p ? plan_hopper(p->size) : std::nullopt;
  if (!plan || hopper_refusal(*p) || levin::detail::compute_capability(stream.device()) != 90) return false;
  hopper_multiply(*p, *plan, stream);
  return true;
}

}  // namespace levin::kernels
