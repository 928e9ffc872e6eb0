// The stages of a pipeline, wherever they run: threads of one process, or ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "levin/train/pipeline_strategy.h"
#include "train/strategy/parts.h"

namespace levin {
class PipelineRanksStrategy;
}  // namespace levin

namespace levin::train {

[[nodiscard]] std::string balance_words(const std::vector<std::int64_t>& balance);  // "{2, 3}"

// What errors call the strategy and the places of its stages.
struct PipelineWords {
  std::string_view strategy, places;
};
inline constexpr PipelineWords kThreadStages{"pipeline", "devices"}, kRankStages{"rpc_sequential", "processes"};

// Throws ConfigError, which begins with `op`, for microbatches below 1 and an entry of balance below 1.
void check_pipeline(const char* op, const PipelineOptions& options);

struct PipelineStage {
  Device device = Device::cpu();
  std::int64_t begin = 0, end = 0;  // of its layers
  std::vector<ParamRef> parameters{};
  std::vector<Tensor*> buffers{};          // of its layers
  std::vector<Tensor*> buffers_of_loss{};  // of the last stage: the module's others, without the states of metrics
  std::vector<Generator*> generators{};
};

// The module as a pipeline for these options. Throws ConfigError for another module, and for fewer layers than stages.
[[nodiscard]] PipelineModule& pipeline_module(TrainModule& module, std::size_t stages, PipelineWords words);
// Throws ConfigError for a balance that does not fit.
void check_balance(const std::vector<std::int64_t>& balance, std::size_t stages, std::int64_t layers,
                   PipelineWords words);
// An automatic balance. Throws ConfigError without example_input().
[[nodiscard]] std::vector<std::int64_t> chosen_balance(PipelineModule& module, const PipelineOptions& options,
                                                       std::size_t stages, PipelineWords words);
void tell_balance(const std::vector<std::int64_t>& balance, PipelineWords words);  // as the option that repeats it
// The device of a layer's first parameter or buffer.
[[nodiscard]] Device device_of_layer(nn::Module& layer, Device otherwise);
// The strategy of a fit whose stages are ranks; null outside of one.
[[nodiscard]] PipelineRanksStrategy* ranks_of(const PipelineModule& module);
void set_ranks_of(const PipelineModule& module, PipelineRanksStrategy* strategy);  // null: the fit ends
// Layers, parameters, buffers and streams of each stage; what else the module has belongs to the last.
// Throws ConfigError for memory that parameters of two stages share.
[[nodiscard]] std::vector<PipelineStage> stages_of(PipelineModule& module, const std::vector<std::int64_t>& balance,
                                                   PipelineWords words);

// What a stage gets from others and gives to them.
class StageLinks {
 public:
  StageLinks() = default;
  virtual ~StageLinks();
  StageLinks(const StageLinks&) = delete;
  StageLinks& operator=(const StageLinks&) = delete;
  // The activations of a microbatch from the stage before, on this stage's device.
  [[nodiscard]] virtual Tensor take_input(std::size_t i) = 0;
  virtual void give_output(std::size_t i, const Tensor& y) = 0;  // to the next stage
  // The gradient of what was given; undefined: none flows back.
  [[nodiscard]] virtual Tensor take_gradient(std::size_t i) = 0;
  virtual void give_gradient(std::size_t i, const Tensor& g) = 0;
};

// A step of all stages.
struct PipelineStep {
  PipelineModule& module;
  const PipelineOptions& options;
  const std::vector<Part>& parts;  // the microbatches
  const Function<Tensor(const StepOutput&)>& objective;
  bool exact;  // accumulate_weighting
  PipelineWords words;
  [[nodiscard]] double share_of(std::size_t i) const;
};

// Runs the passes of stage s of p in the order of the schedule. Returns the gradients of its parameters that require
// grad. The last stage fills `outputs`, one for each microbatch, without history.
[[nodiscard]] Tensors run_stage(const PipelineStep& step, const PipelineStage& stage, std::size_t s, std::size_t p,
                                StageLinks& links, std::vector<StepOutput>& outputs);
// The output of the whole batch: the mean of the losses by samples or the sum of sums, other outputs one after another.
[[nodiscard]] StepOutput joined(const PipelineStep& step, const std::vector<StepOutput>& outputs);
// The gradients reach the leaves, whose hooks see them whole.
void deliver(const PipelineStage& stage, Tensors&& gradients);

}  // namespace levin::train
