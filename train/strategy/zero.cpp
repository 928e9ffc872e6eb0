// ZeRO's rules; the work is ShardedStrategy's.
#include "levin/train/zero_strategy.h"

#include "levin/train/fsdp_strategy.h"
#include "levin/train/options.h"
#include "levin/train/trainer.h"

namespace levin {

ZeroStrategy::ZeroStrategy(ZeroOptions options)
    : ShardedStrategy(options.process, {.bucket_cap_mb = options.bucket_cap_mb,
                                        .reduces_each_batch = options.stage >= 2,
                                        .parameters = options.stage == 3,
                                        .is_unit = wrap_list_children()}),
      zero_(options) {
  if (zero_.stage < 1 || zero_.stage > 3)
    fail<ConfigError>("ZeroStrategy: stage is ", zero_.stage, ", expected 1, 2 or 3");
  if (!(zero_.bucket_cap_mb > 0))
    fail<ConfigError>("ZeroStrategy: bucket_cap_mb is ", zero_.bucket_cap_mb, ", expected more than 0");
}
ZeroStrategy::~ZeroStrategy() = default;

void ZeroStrategy::check(const TrainerOptions& o) const {
  ProcessStrategy::check(o);
  if (o.gradient_clip_val.value_or(0) > 0 && o.gradient_clip_algorithm == ClipAlgorithm::value)
    fail<ConfigError>("Trainer: strategy is ", name(),
                      " and gradient_clip_algorithm is value, which ZeRO does not have; clip by norm, or use ddp");
}

void ZeroStrategy::attach_model(TrainModule& module, nn::Module* tree, Stage stage) {
  ShardedStrategy::attach_model(module, tree, stage);
  module_ = stage == Stage::fit ? &module : nullptr;
}

void ZeroStrategy::attach_optimizers(std::span<const std::shared_ptr<optim::Optimizer>> optimizers) {
  if (const std::size_t n = module_ ? module_->trainer().schedulers().size() : 0; n > 1)
    fail<ConfigError>("fit: strategy is ", name(), " and there are ", n, " schedulers, expected at most one; use ddp");
  ShardedStrategy::attach_optimizers(optimizers);
}

}  // namespace levin
