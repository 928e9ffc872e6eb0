#include "kernels/update/update_device.cuh"

#include <type_traits>

#include "levin/tensor.h"
#include "tensor/device/in_stream.h"

#if LEVIN_LAUNCHES
namespace levin::kernels {
namespace {

template <class F>
void each_gradient_table(const GradientSlots& gradients, F&& f) {
  each_table(gradients.single, f);
  each_table(gradients.wide, f);
  each_table(gradients.half, f);
  each_table(gradients.brain, f);
}

}  // namespace

template <class R, class T>
void update_on_device(const Gpu& on, const R& rule, std::span<const Slot<T>> slots, const double* numbers,
                      const float* found_inf, const double* factors) {
  if constexpr (std::is_same_v<R, LambRule>) {
    each_table(slots, [&](const SlotTable<Slot<T>>& table, std::int64_t n) {
      const std::int64_t blocks = finishing_blocks(n);
      const Tensor sums = empty({2 * blocks + table.count}, on.stream.device(), DType::f64);
      double* const partial = reinterpret_cast<double*>(levin::detail::address_in_stream(sums));
      double* const ratios = partial + 2 * blocks;
      on.launch(gpu::lamb_ratios<T>, update_grid(blocks), table, rule, numbers, found_inf, factors, partial, ratios,
                on.tickets());
      on.launch(gpu::lamb_apply<T>, update_grid(blocks), table, rule, numbers, found_inf,
                static_cast<const double*>(ratios), on.tickets());
    });
  } else {
    each_table(slots, [&](const SlotTable<Slot<T>>& table, std::int64_t blocks) {
      on.launch(gpu::update<R, T>, update_grid(finishing_blocks(blocks)), table, rule, numbers, found_inf, factors,
                on.tickets());
    });
  }
}
#define LEVIN_UPDATE_OF(R, T)                                                                                       \
  template void update_on_device<R, T>(const Gpu&, const R&, std::span<const Slot<T>>, const double*, const float*, \
                                       const double*);
#define LEVIN_UPDATE(R) \
  LEVIN_UPDATE_OF(R, float) LEVIN_UPDATE_OF(R, double) LEVIN_UPDATE_OF(R, f16) LEVIN_UPDATE_OF(R, bf16)
LEVIN_UPDATE(SgdRule)
LEVIN_UPDATE(AdamRule)
LEVIN_UPDATE(RmspropRule)
LEVIN_UPDATE(AdagradRule)
LEVIN_UPDATE(NadamRule)
LEVIN_UPDATE(RadamRule)
LEVIN_UPDATE(AdamaxRule)
LEVIN_UPDATE(AdadeltaRule)
LEVIN_UPDATE(LionRule)
LEVIN_UPDATE(AsgdRule)
LEVIN_UPDATE(RpropRule)
LEVIN_UPDATE(LambRule)
#undef LEVIN_UPDATE
#undef LEVIN_UPDATE_OF

void gradient_norm(const Gpu& on, const GradientSlots& gradients, double p, double* norm, const Factors& factors) {
  std::int64_t blocks = 0, tables = 0;
  each_gradient_table(gradients, [&](const auto&, std::int64_t n) {
    blocks += sum_blocks(n);
    ++tables;
  });
  if (tables == 0) {
    const Slot<float> none{};
    return gradient_norm(on, {.single = {&none, 1}, .wide = {}, .half = {}, .brain = {}}, p, norm, factors);
  }
  const Tensor partial = empty({blocks}, on.stream.device(), DType::f64);
  double* const sums = reinterpret_cast<double*>(levin::detail::address_in_stream(partial));
  std::int64_t first = 0;
  each_gradient_table(gradients, [&]<class T>(const SlotTable<Slot<T>>& table, std::int64_t n) {
    on.launch(gpu::power_sums<T>, update_grid(sum_blocks(n)), table, p, sums, first, --tables == 0 ? norm : nullptr,
              factors, on.tickets());
    first += sum_blocks(n);
  });
}

void scale_to_norm(const Gpu& on, const GradientSlots& gradients, double max_norm, const double* norm) {
  each_gradient_table(gradients, [&]<class T>(const SlotTable<Slot<T>>& table, std::int64_t blocks) {
    on.launch(gpu::scale_to_norm<T>, update_grid(blocks), table, max_norm, norm);
  });
}

void divide_gradients(const Gpu& on, const GradientSlots& gradients, const double* by) {
  each_gradient_table(gradients, [&]<class T>(const SlotTable<Slot<T>>& table, std::int64_t blocks) {
    on.launch(gpu::divide_all<T>, update_grid(blocks), table, by);
  });
}

void fill_gradients(const Gpu& on, const GradientSlots& gradients, double value) {
  each_gradient_table(gradients, [&]<class T>(const SlotTable<Slot<T>>& table, std::int64_t blocks) {
    on.launch(gpu::fill_all<T>, update_grid(blocks), table, value);
  });
}

void clamp_gradients(const Gpu& on, const GradientSlots& gradients, double limit) {
  each_gradient_table(gradients, [&]<class T>(const SlotTable<Slot<T>>& table, std::int64_t blocks) {
    on.launch(gpu::clamp_all<T>, update_grid(blocks), table, limit);
  });
}

}  // namespace levin::kernels
#endif
