#include "kernels/update/bucket_device.cuh"

#include <vector>

#include "levin/dtype.h"

#if LEVIN_LAUNCHES
namespace levin::kernels {
namespace {

// The copies whose addresses allow W bytes at a time and no more.
template <int W>
void copy_by(const Gpu& on, std::span<const Copy> copies) {
  std::vector<gpu::Items<W>> items;
  for (const Copy& c : copies) {
    if (c.n == 0 || gpu::common_width({gpu::address_of(c.from), gpu::address_of(c.to)}) != W) continue;
    items.push_back({reinterpret_cast<const std::uint8_t*>(c.from), reinterpret_cast<std::uint8_t*>(c.to),
                     (c.n + W - 1) / W, static_cast<int>(c.n % W), c.gap});
  }
  each_table(std::span<const gpu::Items<W>>(items), [&](const SlotTable<gpu::Items<W>>& table, std::int64_t blocks) {
    on.launch(gpu::copy_items<W>, update_grid(blocks), table);
  });
}

}  // namespace

void copy_on_device(const Gpu& on, std::span<const Copy> copies) {
  copy_by<16>(on, copies);
  copy_by<8>(on, copies);
  copy_by<4>(on, copies);
  copy_by<2>(on, copies);
  copy_by<1>(on, copies);
}

template <class From, class To>
void average_on_device(const Gpu& on, std::span<const Average<From, To>> averages, const double* decay) {
  each_table(averages, [&](const SlotTable<Average<From, To>>& table, std::int64_t blocks) {
    on.launch(gpu::average<From, To>, update_grid(blocks), table, decay);
  });
}
#define LEVIN_AVERAGE(From, To) \
  template void average_on_device(const Gpu&, std::span<const Average<From, To>>, const double*);
LEVIN_AVERAGE(float, float)
LEVIN_AVERAGE(double, double)
LEVIN_AVERAGE(f16, f16)
LEVIN_AVERAGE(bf16, bf16)
LEVIN_AVERAGE(f16, float)
LEVIN_AVERAGE(bf16, float)
#undef LEVIN_AVERAGE

}  // namespace levin::kernels
#endif
