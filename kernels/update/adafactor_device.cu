#include "kernels/update/adafactor_device.cuh"

#include <algorithm>

#include "levin/tensor.h"
#include "tensor/device/in_stream.h"

#if LEVIN_LAUNCHES
namespace levin::kernels {
namespace {

Grid grid_of(std::int64_t items, std::int64_t per_block) {
  return update_grid(std::clamp<std::int64_t>((items + per_block - 1) / per_block, 1, 132 * 8));
}

}  // namespace

template <class T>
void adafactor_on_device(const Gpu& on, const AdafactorRule& rule, const Slot<T>& slot, const AdafactorLines& lines,
                         const double* numbers, const float* found_inf) {
  using A = Accum<T>;
  constexpr std::int64_t kRowsOfSplit = 64;
  const Device device = on.stream.device();
  const std::int64_t count = lines.count(), columns = lines.matrices * lines.columns;
  const std::int64_t splits = lines.factored ? std::clamp<std::int64_t>(lines.rows / kRowsOfSplit, 1, 128) : 0;
  const Tensor sums = empty({1 + 2 * count + splits * columns}, device, DType::f64);
  const Tensor of_matrices = empty({lines.matrices}, device, sizeof(A) == 8 ? DType::f64 : DType::f32);
  double* const rate = reinterpret_cast<double*>(levin::detail::address_in_stream(sums));
  double *const of_p = rate + 1, *const of_u = of_p + count, *const part = of_u + count;
  A* const means = reinterpret_cast<A*>(levin::detail::address_in_stream(of_matrices));
  const Grid by_lines = grid_of(count, kUpdateThreads / 32);
  if (slot.n > 0) {
    on.launch(gpu::adafactor_rows<T>, by_lines, slot, rule, lines, of_p, found_inf);
    if (lines.factored) {
      const Grid by_columns = grid_of(columns, kUpdateThreads);
      Grid by_parts = by_columns;
      by_parts.blocks.y = static_cast<unsigned>(splits);
      on.launch(gpu::adafactor_columns<T>, by_parts, slot, lines, part, found_inf);
      on.launch(gpu::adafactor_factors<T>, by_columns, slot, rule, lines, static_cast<const double*>(part), splits,
                means, found_inf);
    }
    on.launch(gpu::adafactor_lengths<T>, by_lines, slot, rule, lines, static_cast<const A*>(means),
              static_cast<const double*>(of_p), of_u, rate, numbers, found_inf, on.tickets());
  }
  on.launch(gpu::adafactor_apply<T>, by_lines, slot, rule, lines, static_cast<const A*>(means),
            static_cast<const double*>(rate), numbers, found_inf, on.tickets());
}
#define LEVIN_ADAFACTOR(T)                                                                                      \
  template void adafactor_on_device<T>(const Gpu&, const AdafactorRule&, const Slot<T>&, const AdafactorLines&, \
                                       const double*, const float*);
LEVIN_ADAFACTOR(float)
LEVIN_ADAFACTOR(double)
LEVIN_ADAFACTOR(f16)
LEVIN_ADAFACTOR(bf16)
#undef LEVIN_ADAFACTOR

}  // namespace levin::kernels
#endif
