#include "kernels/update/loss_scale_device.cuh"

#if LEVIN_LAUNCHES
namespace levin::kernels {
namespace {

template <class S>
std::int64_t blocks_of(std::span<const S> slots) {
  std::int64_t blocks = 0;
  each_table(slots, [&](const auto&, std::int64_t n) { blocks += sum_blocks(n); });
  return blocks;
}
std::int64_t blocks_of(const GradientMoves& g) {
  return blocks_of(g.single) + blocks_of(g.wide) + blocks_of(g.half) + blocks_of(g.brain);
}

}  // namespace

std::int64_t unscale_workspace(const GradientMoves& gradients) { return 2 * blocks_of(gradients); }

void unscale_on_device(const Gpu& on, const GradientMoves& gradients, const float* scale, double* workspace,
                       float* found_inf, double* norm, const StepVerdict& step) {
  const std::int64_t all = blocks_of(gradients);
  const gpu::Judgement to{workspace, workspace + all, all, found_inf, norm, step};
  std::int64_t first = 0;
  const auto pass = [&]<class From, class To>(const SlotTable<Move<From, To>>& table, std::int64_t n) {
    on.launch(gpu::unscale<From, To>, update_grid(sum_blocks(n)), table, scale, to, first, on.tickets());
    first += sum_blocks(n);
  };
  each_table(gradients.single, pass);
  each_table(gradients.wide, pass);
  each_table(gradients.half, pass);
  each_table(gradients.brain, pass);
}

template <class From, class To>
void convert_on_device(const Gpu& on, std::span<const Move<From, To>> moves, const float* found_inf) {
  each_table(moves, [&](const SlotTable<Move<From, To>>& table, std::int64_t blocks) {
    on.launch(gpu::convert<From, To>, update_grid(blocks), table, found_inf);
  });
}
template void convert_on_device(const Gpu&, std::span<const Move<f16, float>>, const float*);
template void convert_on_device(const Gpu&, std::span<const Move<bf16, float>>, const float*);
template void convert_on_device(const Gpu&, std::span<const Move<float, f16>>, const float*);
template void convert_on_device(const Gpu&, std::span<const Move<float, bf16>>, const float*);

void update_scale_on_device(const Gpu& on, const Verdicts& verdicts, const LossScaleRule& rule,
                            const LossScale& state) {
  on.launch(gpu::update_scale<float>, Grid{}, verdicts, rule, state.scale, state.tracker, state.skipped);
}

}  // namespace levin::kernels
#endif
