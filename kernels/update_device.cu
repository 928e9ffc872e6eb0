#include "kernels/update_device.cuh"

#include <algorithm>
#include <memory>

#include "levin/tensor.h"

#if LEVIN_LAUNCHES
namespace levin::kernels {
namespace {

// Calls f(table, blocks) for tables of the slots in order, each laid out in blocks.
template <class T, class F>
void each_table(std::span<const Slot<T>> slots, F&& f) {
  constexpr std::size_t kMost = SlotTable<T>::kMost;
  const auto table = std::make_unique<SlotTable<T>>();
  for (std::size_t begin = 0; begin < slots.size(); begin += kMost) {
    table->count = static_cast<int>(std::min(kMost, slots.size() - begin));
    std::int64_t blocks = 0;
    for (int k = 0; k < table->count; ++k) {
      table->slots[k] = slots[begin + static_cast<std::size_t>(k)];
      table->first_block[k] = blocks;
      blocks += (table->slots[k].n + kUpdateBlock - 1) / kUpdateBlock;
    }
    table->first_block[table->count] = blocks;
    f(*table, blocks);
  }
}
template <class F>
void each_table(const GradientSlots& gradients, F&& f) {
  each_table(gradients.single, f);
  each_table(gradients.wide, f);
}

Grid grid_of(std::int64_t blocks) { return {.blocks = static_cast<unsigned>(blocks), .threads = kUpdateThreads}; }

}  // namespace

template <class R, class T>
void update_on_device(const Gpu& on, const R& rule, std::span<const Slot<T>> slots, const double* numbers) {
  each_table(slots, [&](const SlotTable<T>& table, std::int64_t blocks) {
    on.launch(gpu::advance_steps<T>, grid_of(blocks_for(table.count, kUpdateThreads)), table);
    on.launch(gpu::update<R, T>, grid_of(blocks), table, rule, numbers);
  });
}
#define LEVIN_UPDATE(R)                                                                                        \
  template void update_on_device<R, float>(const Gpu&, const R&, std::span<const Slot<float>>, const double*); \
  template void update_on_device<R, double>(const Gpu&, const R&, std::span<const Slot<double>>, const double*);
LEVIN_UPDATE(SgdRule)
LEVIN_UPDATE(AdamRule)
LEVIN_UPDATE(RmspropRule)
LEVIN_UPDATE(AdagradRule)
#undef LEVIN_UPDATE

void gradient_norm(const Gpu& on, const GradientSlots& gradients, double p, double* norm) {
  std::int64_t blocks = 0;
  each_table(gradients, [&](const auto&, std::int64_t n) { blocks += n; });
  const Tensor partial = empty({blocks}, on.stream.device(), DType::f64);
  double* const sums = reinterpret_cast<double*>(partial.get().storage->data);
  double* at = sums;
  each_table(gradients, [&]<class T>(const SlotTable<T>& table, std::int64_t n) {
    on.launch(gpu::power_sums<T>, grid_of(n), table, p, at);
    at += n;
  });
  on.launch(gpu::norm_of_sums<double>, grid_of(1), sums, blocks, p, norm);
}

void scale_to_norm(const Gpu& on, const GradientSlots& gradients, double max_norm, const double* norm) {
  each_table(gradients, [&]<class T>(const SlotTable<T>& table, std::int64_t blocks) {
    on.launch(gpu::scale_to_norm<T>, grid_of(blocks), table, max_norm, norm);
  });
}

void clamp_gradients(const Gpu& on, const GradientSlots& gradients, double limit) {
  each_table(gradients, [&]<class T>(const SlotTable<T>& table, std::int64_t blocks) {
    on.launch(gpu::clamp_all<T>, grid_of(blocks), table, limit);
  });
}

}  // namespace levin::kernels
#endif
