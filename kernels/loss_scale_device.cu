#include "kernels/loss_scale_device.cuh"

#if LEVIN_LAUNCHES
namespace levin::kernels {
namespace {

template <class T>
std::int64_t blocks_of(std::span<const Slot<T>> slots) {
  std::int64_t blocks = 0;
  for (const Slot<T>& s : slots) blocks += blocks_for(s.n, kUpdateBlock);
  return blocks;
}
std::int64_t blocks_of(const GradientSlots& gradients) {
  return blocks_of(gradients.single) + blocks_of(gradients.wide);
}

}  // namespace

std::int64_t unscale_workspace(const GradientSlots& gradients) { return 2 * blocks_of(gradients); }

void unscale_on_device(const Gpu& on, const GradientSlots& gradients, const float* scale, double* workspace,
                       float* found_inf, double* norm) {
  const std::int64_t all = blocks_of(gradients);
  double *squares = workspace, *bad = workspace + all;
  const auto pass = [&]<class T>(const SlotTable<Slot<T>>& table, std::int64_t blocks) {
    on.launch(gpu::unscale<T>, update_grid(blocks), table, scale, squares, bad);
    squares += blocks;
    bad += blocks;
  };
  each_table(gradients.single, pass);
  each_table(gradients.wide, pass);
  on.launch(gpu::judge<double>, update_grid(1), workspace, workspace + all, all, found_inf, norm);
}

void update_scale_on_device(const Gpu& on, const Verdicts& verdicts, const LossScaleRule& rule,
                            const LossScale& state) {
  on.launch(gpu::update_scale<float>, Grid{}, verdicts, rule, state.scale, state.tracker, state.skipped);
}

}  // namespace levin::kernels
#endif
