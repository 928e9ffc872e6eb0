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
                                        .is_unit = wrap_list_children(),
                                        .offload = {.optimizer = options.offload_optimizer,
                                                    .params = options.offload_params,
                                                    .nvme_path = options.nvme_path,
                                                    .pin_memory = options.pin_memory,
                                                    .sub_group_size = options.sub_group_size},
                                        .overlaps = options.overlap_comm,
                                        .state_dict_type = options.state_dict_type}),
      zero_(options) {
  if (zero_.stage < 1 || zero_.stage > 3)
    fail<ConfigError>("ZeroStrategy: stage is ", zero_.stage, ", expected 1, 2 or 3");
  if (!(zero_.bucket_cap_mb > 0))
    fail<ConfigError>("ZeroStrategy: bucket_cap_mb is ", zero_.bucket_cap_mb, ", expected more than 0");
  if (zero_.offload_params != Offload::none && zero_.stage != 3)
    fail<ConfigError>("ZeroStrategy: offload_params is set and stage is ", zero_.stage,
                      ", whose ranks have whole parameters; use stage 3");
  if (zero_.offload_params != Offload::none && zero_.offload_optimizer == Offload::none)
    fail<ConfigError>(
        "ZeroStrategy: offload_params is set and offload_optimizer is not; the optimizer updates the "
        "parameters where they are kept, so set both");
  if (zero_.sub_group_size < 1)
    fail<ConfigError>("ZeroStrategy: sub_group_size is ", zero_.sub_group_size, ", expected 1 element or more");
}
ZeroStrategy::~ZeroStrategy() = default;

void ZeroStrategy::check(const TrainerOptions& o) const {
  ShardedStrategy::check(o);
  if (o.gradient_clip_val.value_or(0) > 0 && o.gradient_clip_algorithm == ClipAlgorithm::value)
    fail<ConfigError>("Trainer: strategy is ", name(),
                      " and gradient_clip_algorithm is value, which ZeRO does not have; clip by norm, or use ddp");
}

void ZeroStrategy::attach_model(TrainModule& module, nn::Module* tree, Stage stage) {
  for (const std::shared_ptr<Callback>& c : module.trainer().callbacks()) {
    if (stage == Stage::fit && c->largest_accumulation() > 0)
      fail<ConfigError>("fit: strategy is ", name(),
                        " and a callback changes accumulate_grad_batches, which ZeRO keeps as it is; give the number "
                        "to the trainer, or use ddp");
  }
  ShardedStrategy::attach_model(module, tree, stage);
  module_ = stage == Stage::fit ? &module : nullptr;
}

void ZeroStrategy::attach_optimizers(std::span<const std::shared_ptr<optim::Optimizer>> optimizers) {
  if (const std::size_t n = module_ ? module_->trainer().schedulers().size() : 0; n > 1)
    fail<ConfigError>("fit: strategy is ", name(), " and there are ", n, " schedulers, expected at most one; use ddp");
  ShardedStrategy::attach_optimizers(optimizers);
}

StepOutput ZeroStrategy::training_step(const StepCall& call) {
  StepOutput output = ShardedStrategy::training_step(call);
  if (!output.loss().defined())
    fail<StateError>("fit: training_step returned nothing and strategy is ", name(),
                     ", whose optimizer needs a gradient of each parameter; return a loss of 0 that depends on them");
  return output;
}

}  // namespace levin
