#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "kernels/gemm/gemm.cuh"
#include "kernels/update/lists.cuh"
#include "kernels/update/muon_device.h"
#include "levin/stream.h"
#include "optim/optimizer_of.h"

namespace levin::optim {
namespace {

// Passes over bf16 matrices on the cpu.
struct OnCpu {
  kernels::Cpu on;
  // y = alpha a b + beta z
  void add_product(bf16* y, const bf16* z, const kernels::GemmSize& size, kernels::Matrix<bf16> a,
                   kernels::Matrix<bf16> b, double alpha, double beta) const {
    if (beta != 0) std::memcpy(y, z, static_cast<std::size_t>(size.m * size.n) * sizeof(bf16));
    kernels::cpu::gemm(on, size, a, b, y, size.n, kernels::GemmOptions<bf16>{.alpha = alpha, .beta = beta});
  }
};
#if LEVIN_LAUNCHES
struct OnGpu {
  kernels::Gpu on;
  void add_product(bf16* y, const bf16* z, const kernels::GemmSize& size, kernels::Matrix<bf16> a,
                   kernels::Matrix<bf16> b, double alpha, double beta) const {
    kernels::muon_product_on_device(on, size, a, b, y);
    if (beta != 0 || alpha != 1)
      kernels::muon_combine_on_device(on, y, z, size.m * size.n, static_cast<float>(beta), static_cast<float>(alpha));
  }
};
#endif

// The memory of one matrix.
struct Scratch {
  Tensor x, next, gram, mix;
  Scratch(std::int64_t rows, std::int64_t columns, Device device) {
    const std::int64_t side = std::min(rows, columns);
    x = empty({rows * columns}, device, DType::bf16);
    next = empty({rows * columns}, device, DType::bf16);
    gram = empty({side * side}, device, DType::bf16);
    mix = empty({side * side}, device, DType::bf16);
  }
};
// Newton-Schulz from the shorter side, so that the squares are small: (b G + c G^2) x with G = x x^T, or
// x (b G + c G^2) with G = x^T x. Returns where the last x is.
template <class On>
bf16* orthogonalize(const On& on, const Scratch& memory, std::int64_t rows, std::int64_t columns,
                    const MuonOptions& o) {
  using Matrix = kernels::Matrix<bf16>;
  bf16 *x = Updates::first<bf16>(memory.x), *next = Updates::first<bf16>(memory.next),
       *gram = Updates::first<bf16>(memory.gram), *mix = Updates::first<bf16>(memory.mix);
  const auto [a, b, c] = o.ns_coefficients;
  const bool tall = rows > columns;
  const std::int64_t side = tall ? columns : rows, depth = tall ? rows : columns;
  const Matrix square{gram, side, 1}, mixed{mix, side, 1};
  for (int i = 0; i < o.ns_steps; ++i) {
    const Matrix plain{x, columns, 1}, turned{x, 1, columns};
    on.add_product(gram, nullptr, {side, side, depth}, tall ? turned : plain, tall ? plain : turned, 1, 0);
    on.add_product(mix, gram, {side, side, side}, square, square, c, b);
    on.add_product(next, x, {rows, columns, side}, tall ? plain : mixed, tall ? mixed : plain, 1, a);
    std::swap(x, next);
  }
  return x;
}

}  // namespace

template <>
struct Kind<MuonOptions> {
  static constexpr const char *kName = "muon", *kWriter = "muon_step";
  static constexpr auto kMomentum = &MuonOptions::momentum;
  static constexpr bool kMomentumMakesState = false;

  static void check_momentum(double momentum) { check_not_negative(kName, "momentum", momentum); }
  static void check(const MuonOptions& o) {
    check_momentum(o.momentum);
    check_not_negative(kName, "weight_decay", o.weight_decay);
    check_not_negative(kName, "eps", o.eps);
    for (const double c : o.ns_coefficients) check_finite(kName, "a Newton-Schulz coefficient", c);
    check_at_least(kName, "ns_steps", o.ns_steps, 1);
    if (o.ns_steps > 99) fail<ConfigError>(kName, ": ns_steps is ", o.ns_steps, ", expected 1 to 99");
  }
  static void check_parameters(const Parameters& parameters) {
    for (const ParamRef& p : parameters) {
      if (p.value && p.value->defined() && p.value->rank() != 2)
        fail<ConfigError>(kName, ": parameter ", p.name, " is ", text(*p.value),
                          ", expected a matrix; give the others to another optimizer, such as AdamW");
    }
  }
  static std::array<const char*, 3> state_names(const MuonOptions&, const auto&) { return {"momentum_buffer"}; }
  static std::vector<std::pair<const char*, double*>> numbers(MuonOptions& o) {
    return {{"momentum", &o.momentum},       {"weight_decay", &o.weight_decay}, {"eps", &o.eps},
            {"ns_a", &o.ns_coefficients[0]}, {"ns_b", &o.ns_coefficients[1]},   {"ns_c", &o.ns_coefficients[2]}};
  }
  static double scale(const MuonOptions& o, double rows, double columns) {
    return o.adjust_lr_fn == AdjustLr::original ? std::sqrt(std::max(1.0, rows / columns))
                                                : 0.2 * std::sqrt(std::max(rows, columns));
  }

  static void run(Optimizer& optimizer, int group, const MuonOptions& o, [[maybe_unused]] const float* found_inf) {
    const Updates::Collected all = Updates::collect(optimizer, group, kWriter);
    const auto matrices = [&](const auto& slots, auto&& update) {
      for (const auto& slot : slots) {
        const Tensor& p = Updates::value_of(optimizer, group, slot.parameter - all.first_place);
        const std::int64_t rows = p.shape()[0], columns = p.shape()[1];
        if (slot.n == 0) continue;
        const kernels::MuonRule rule{Updates::lr_of(optimizer, group), o.momentum, o.weight_decay,
                                     scale(o, static_cast<double>(rows), static_cast<double>(columns)), o.nesterov};
        update(slot, rule, Scratch(rows, columns, p.device()), rows, columns);
      }
    };
#if LEVIN_LAUNCHES
    if (const Device device = Updates::value_of(optimizer, group, 0).device(); device.launches()) {
      const OnGpu on{{Stream::current(device)}};
      const double* const numbers = Updates::device_numbers(optimizer, group);
      const Tensor norm = empty({}, device, DType::f64);
      all.slots.each([&](const auto& slots) {
        matrices(slots, [&](const auto& slot, const kernels::MuonRule& rule, const Scratch& memory, std::int64_t rows,
                            std::int64_t columns) {
          bf16* x = Updates::first<bf16>(memory.x);
          kernels::muon_direction_on_device(on.on, rule, slot, x, numbers, found_inf);
          const kernels::Slot<bf16> whole[] = {{.p = x, .g = x, .n = slot.n}};
          kernels::gradient_norm(on.on, {.single = {}, .wide = {}, .half = {}, .brain = whole}, 2,
                                 Updates::first<double>(norm));
          kernels::muon_scale_on_device(on.on, x, slot.n, Updates::first<double>(norm), o.eps);
          x = orthogonalize(on, memory, rows, columns, o);
          kernels::muon_apply_on_device(on.on, rule, slot, static_cast<const bf16*>(x), numbers, found_inf);
        });
      });
      return;
    }
#endif
    const OnCpu on;
    const auto update = [&](const auto& slot, const kernels::MuonRule& rule, const Scratch& memory, std::int64_t rows,
                            std::int64_t columns) {
      bf16* x = Updates::first<bf16>(memory.x);
      kernels::cpu::muon_direction(on.on, rule, slot, x);
      const kernels::Slot<bf16> whole[] = {{.p = x, .g = x, .n = slot.n}};
      const double sum = kernels::cpu::power_sum(on.on, std::span<const kernels::Slot<bf16>>(whole), 2);
      const float norm = static_cast<float>(bf16(static_cast<float>(std::sqrt(sum)))),
                  by = norm < static_cast<float>(o.eps) ? static_cast<float>(o.eps) : norm;
      on.on.parallel_for(slot.n, kernels::kUpdateChunk, [=](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) x[i] = bf16(static_cast<float>(x[i]) / by);
      });
      x = orthogonalize(on, memory, rows, columns, o);
      kernels::cpu::muon_apply(on.on, rule, slot, static_cast<const bf16*>(x));
    };
    matrices(all.slots.single, update);
    matrices(all.slots.wide, update);
  }
};
template class OptimizerOf<MuonOptions>;

}  // namespace levin::optim
