// ZeroStrategy: ranks share the optimizer's state, with stage 2 the gradients, and with stage 3 the parameters.
//
//   Trainer trainer({.devices = 4, .strategy = "zero_stage_2"});
//   Trainer trainer({.devices = 4, .strategy = std::make_shared<ZeroStrategy>(ZeroOptions{.stage = 1})});
//
// Names: "zero_stage_1", "zero_stage_2", "zero_stage_3", and the same with "deepspeed_stage_"; "deepspeed" and
// "ddp_sharded" are stage 2. Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter
// Models", 2020.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "levin/train/sharded_strategy.h"

namespace levin {

// stage  parameters  gradients            optimizer state  reductions of gradients
// 1      whole       whole until reduced  1 / ranks        one a window of accumulation
// 2      whole       1 / ranks            1 / ranks        one a batch
// 3      1 / ranks   1 / ranks            1 / ranks        one a batch; units are FsdpStrategy's
struct ZeroOptions {
  int stage = 2;
  double bucket_cap_mb = 25;  // MiB of parameters in one reduction and one gather; above 0. Stage 3: a unit
  ProcessOptions process{};
};

// With at most one scheduler, and clipping by norm alone (ConfigError).
class LEVIN_API ZeroStrategy : public ShardedStrategy {
 public:
  explicit ZeroStrategy(ZeroOptions options = {});  // throws ConfigError for options out of range
  ~ZeroStrategy() override;
  [[nodiscard]] std::string_view name() const override {
    return zero_.stage == 1 ? "zero_stage_1" : zero_.stage == 2 ? "zero_stage_2" : "zero_stage_3";
  }
  [[nodiscard]] const ZeroOptions& options() const { return zero_; }

  void check(const TrainerOptions& options) const override;
  void attach_model(TrainModule& module, nn::Module* tree, Stage stage) override;
  void attach_optimizers(std::span<const std::shared_ptr<optim::Optimizer>> optimizers) override;

 private:
  ZeroOptions zero_;
  TrainModule* module_ = nullptr;  // of a fit
};

}  // namespace levin
