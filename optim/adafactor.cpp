#include "kernels/update/adafactor.cuh"

#include <limits>

#include "kernels/update/adafactor_device.h"
#include "levin/stream.h"
#include "optim/optimizer_of.h"

namespace levin::optim {
namespace {

// torch.finfo(dtype).eps
double eps_of(DType dtype) {
  switch (dtype) {
    case DType::f64: return std::numeric_limits<double>::epsilon();
    case DType::f16: return 0x1p-10;
    case DType::bf16: return 0x1p-7;
    default: return std::numeric_limits<float>::epsilon();
  }
}

kernels::AdafactorLines lines_of(const Tensor& p) {
  kernels::AdafactorLines lines;
  const int rank = p.rank();
  lines.columns = p.numel();
  if (rank < 2) return lines;
  lines.factored = true;
  lines.rows = p.shape()[rank - 2], lines.columns = p.shape()[rank - 1];
  lines.row_step = p.strides()[rank - 2], lines.column_step = p.strides()[rank - 1];
  if (p.is_contiguous()) {
    lines.steps[2] = lines.rows * lines.columns;
    for (int d = 0; d < rank - 2; ++d) lines.sizes[2] *= p.shape()[d];
  } else {  // channels_last
    for (int d = 0; d < rank - 2; ++d) lines.sizes[d] = p.shape()[d], lines.steps[d] = p.strides()[d];
  }
  lines.matrices = lines.sizes[0] * lines.sizes[1] * lines.sizes[2];
  return lines;
}

}  // namespace

template <>
struct Kind<AdafactorOptions> {
  static constexpr const char *kName = "adafactor", *kWriter = "adafactor_step";

  static void check(const AdafactorOptions& o) {
    if (!(o.beta2_decay <= 0) || !std::isfinite(o.beta2_decay))
      fail<ConfigError>(kName, ": beta2_decay is ", o.beta2_decay, ", expected a finite number of 0 or below");
    if (o.eps1) check_not_negative(kName, "eps1", *o.eps1);
    check_not_negative(kName, "eps2", o.eps2);
    check_not_negative(kName, "weight_decay", o.weight_decay);
    if (!(o.d >= 1) || !std::isfinite(o.d))
      fail<ConfigError>(kName, ": d is ", o.d, ", expected a finite number of at least 1");
  }
  static std::array<const char*, 3> state_names(const AdafactorOptions&, const auto&) {
    return {"row_var", "col_var", "variance"};
  }
  static std::optional<Shape> state_shape(int which, const Shape& parameter) {
    const int rank = parameter.rank();
    if ((rank >= 2) != (which < 2)) return {};
    if (rank < 2) return parameter;
    std::vector<std::int64_t> dims(parameter.begin(), parameter.end());
    dims[static_cast<std::size_t>(which == 0 ? rank - 1 : rank - 2)] = 1;
    return Shape(dims);
  }
  static std::vector<std::pair<const char*, double*>> numbers(AdafactorOptions& o) {
    std::vector<std::pair<const char*, double*>> all{
        {"beta2_decay", &o.beta2_decay}, {"eps2", &o.eps2}, {"d", &o.d}, {"weight_decay", &o.weight_decay}};
    if (o.eps1) all.emplace_back("eps1", &*o.eps1);
    return all;
  }

  static void run(Optimizer& optimizer, int group, const AdafactorOptions& o, [[maybe_unused]] const float* found_inf) {
    const Updates::Collected all = Updates::collect(optimizer, group, kWriter);
    const auto update = [&](const auto& slots, auto&& one) {
      for (const auto& slot : slots) {
        const Tensor& p = Updates::value_of(optimizer, group, slot.parameter - all.first_place);
        one(kernels::AdafactorRule{Updates::lr_of(optimizer, group), o.beta2_decay,
                                   o.eps1 ? *o.eps1 : eps_of(p.dtype()), o.eps2, o.d, o.weight_decay, o.maximize},
            slot, lines_of(p));
      }
    };
#if LEVIN_LAUNCHES
    if (const Device device = Updates::value_of(optimizer, group, 0).device(); device.launches()) {
      const kernels::Gpu on{Stream::current(device)};
      const double* const numbers = Updates::device_numbers(optimizer, group);
      all.slots.each([&](const auto& slots) {
        update(slots, [&](const kernels::AdafactorRule& rule, const auto& slot, const kernels::AdafactorLines& lines) {
          kernels::adafactor_on_device(on, rule, slot, lines, numbers, found_inf);
        });
      });
      return;
    }
#endif
    const kernels::Cpu on;
    const auto here = [&](const kernels::AdafactorRule& rule, const auto& slot, const kernels::AdafactorLines& lines) {
      kernels::cpu::adafactor(on, rule, slot, lines);
    };
    update(all.slots.single, here);
    update(all.slots.wide, here);
  }
};
template class OptimizerOf<AdafactorOptions>;

}  // namespace levin::optim
