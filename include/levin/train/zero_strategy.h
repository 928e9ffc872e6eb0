// ZeroStrategy: ranks share the optimizer's state, with stage 2 the gradients, and with stage 3 the parameters.
//
//   Trainer trainer({.devices = 4, .strategy = "zero_stage_2"});
//   Trainer trainer({.devices = 4, .strategy = std::make_shared<ZeroStrategy>(ZeroOptions{.stage = 1})});
//
// Names: "zero_stage_1", "zero_stage_2", "zero_stage_3", "zero_stage_2_offload" (the optimizer, to the CPU),
// "zero_stage_3_offload" (the optimizer and the parameters), "zero_stage_3_offload_nvme" (both to /local_nvme), and the
// same with "deepspeed_stage_"; "deepspeed" and "ddp_sharded" are stage 2. Where LEVIN_ZERO_CONFIG or
// PL_DEEPSPEED_CONFIG_PATH names a file for read_zero_config, these strategies, except for ddp_sharded, take their
// options from it, and those that it has not from the name; another stage than the name's is a ConfigError, except for
// "deepspeed". Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020.
#pragma once

#include <memory>
#include <span>
#include <string>
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
  bool overlap_comm = true;   // gradients are reduced beside the rest of backward
  // OffloadOptions; offload_params with stage 3, and where the optimizer is offloaded (ConfigError).
  Offload offload_optimizer = Offload::none, offload_params = Offload::none;
  std::string nvme_path = "/local_nvme";
  bool pin_memory = true;
  std::int64_t sub_group_size = 1'000'000'000'000;
  StateDictType state_dict_type = StateDictType::full;  // of checkpoints; DeepSpeed's are sharded
  ProcessOptions process{};
};

// The options in a JSON file of DeepSpeed's shape:
//
//   {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
//
// stage, allgather_bucket_size and reduce_bucket_size (elements of f32; one bucket serves both, of the smaller size),
// overlap_comm, contiguous_gradients (true), offload_optimizer and offload_param {device, nvme_path, pin_memory},
// sub_group_size. Throws FileError, FormatError for what is no JSON, and ConfigError that lists all other keys; values
// of another kind; gradient_accumulation_steps and gradient_clipping, which belong to the trainer.
[[nodiscard]] LEVIN_API ZeroOptions read_zero_config(const std::string& path);
// The same of a text; `name` is for messages.
[[nodiscard]] LEVIN_API ZeroOptions parse_zero_config(std::string_view json, const std::string& name = "zero config");

// With one optimizer and at most one scheduler, and clipping by norm alone (ConfigError). A training_step that returns
// nothing is a StateError.
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
  [[nodiscard]] StepOutput training_step(const StepCall& call) override;

 private:
  ZeroOptions zero_;
  TrainModule* module_ = nullptr;  // of a fit
};

}  // namespace levin
