// pipeline: the layers of a module in stages, one on each device; microbatches pass through the stages one after
// another, so that the devices work at the same time (Huang et al., "GPipe", 2019; Narayanan et al., "Efficient
// Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", 2021, for 1F1B).
//
//   struct Net : TrainModuleOf<Net, PipelineModule> {
//     using TrainModuleOf::TrainModuleOf;
//     nn::Sequential body{*this, "body"};                         // filled in the constructor
//     nn::Sequential& layers() override { return body; }
//     StepOutput loss_of(const Tensor& y, const Batch& b) override { return mse_loss(y, b[1]); }
//     OptimizerConfig configure_optimizers() override { ... }
//   };
//   Trainer trainer({.strategy = std::make_shared<PipelineStrategy>(PipelineOptions{.balance = {3, 2}})});
//
// A step, with p stages and m microbatches:
//   1. The batch is cut along dim 0 into parts of ceil(n / m) samples (fewer samples than m: one in each part).
//   2. Each stage runs the forward and backward passes of the parts in the order of the schedule. The fraction of slots
//      in which a stage waits is (p - 1) / (m + p - 1), under both schedules.
//   3. The loss is  sum_i n_i loss_i / sum_i n_i,  n_i the samples of part i. Gradients are added in the order of the
//      backward passes. Result and gradients are those of the unsplit module up to the order of additions, apart from
//      layers that look at several samples (batch norm) or draw numbers (dropout), which do so for each microbatch.
//
// configure_optimizers finds the layers on their devices. An optimizer's group of parameters belongs to one device, so
// CUDA devices need a group each (OptimizerOf::add_group); CPU devices are one memory.
//
// Recomputation draws the same random numbers again. Buffers that layers write in a step, such as running statistics,
// take one step towards the mean over the microbatches, weighted by samples; integers take the value after one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "levin/nn/sequential.h"
#include "levin/train/strategy.h"

namespace levin {

// A module whose layers a pipeline can share out: class Net : TrainModuleOf<Net, PipelineModule>. Under another
// strategy it trains as a whole.
class LEVIN_API PipelineModule : public TrainModule {
 public:
  using TrainModule::TrainModule;
  // Called one after another. The module's other parameters, which loss_of uses, go to the last device.
  [[nodiscard]] virtual nn::Sequential& layers() = 0;
  // What the first layer gets. Default: the first field.
  [[nodiscard]] virtual Tensor input_of(const Batch& batch) { return batch[0]; }
  // The step's output from that of the last layer, on its device with the batch. In a pipeline once for each
  // microbatch: what it logs on steps is that of the last one.
  [[nodiscard]] virtual StepOutput loss_of(const Tensor& output, const Batch& batch) = 0;
  // Called once a step with the output for the whole batch, inside of training_step's hook: the place for log().
  virtual void on_step_output(const StepOutput& output);
  // The layers on x, each on its own device; for evaluations. The result is on the last layer's device.
  [[nodiscard]] Tensor operator()(const Tensor& x);
  // loss_of the layers' output for the whole batch. With automatic optimization a pipeline does not call it.
  [[nodiscard]] StepOutput training_step(const Batch& batch, std::int64_t batch_idx) override;
  // For a training_step that optimizes manually, instead of loss_of and manual_backward: the forward and backward
  // passes of the batch, in the stages of a pipeline or as a whole. Adds to gradients, and returns the output without
  // history. Throws StateError outside of training_step, and with automatic optimization.
  StepOutput forward_backward(const Batch& batch);

 private:
  [[nodiscard]] StepOutput whole_step(const Batch& batch);
};

// gpipe runs all forward passes, then all backward passes: a stage keeps m microbatches. one_f_one_b alternates as soon
// as it can: stage s of p keeps at most min(m, p - s).
enum class PipelineSchedule : std::uint8_t { gpipe, one_f_one_b };
// Which microbatches a stage computes again in their backward pass instead of keeping what the first pass computed.
enum class PipelineCheckpoint : std::uint8_t { except_last, always, never };
// What a layer costs, for a balance that the strategy chooses.
//   by_size  bytes of its output for a microbatch of the example, and twice the bytes of its parameters
//   by_time  seconds of a forward and a backward pass on the example, repeated for a second
enum class AutoBalance : std::uint8_t { by_size, by_time };

struct PipelineOptions {
  // A stage each. Empty: the CUDA devices that TrainerOptions::devices and accelerator name. List CPU devices here.
  std::vector<Device> devices{};
  // Layers of each stage. Empty: the largest cost of a stage becomes as small as it can be; needs example_input().
  std::vector<std::int64_t> balance{};
  std::int64_t microbatches = 8;
  PipelineCheckpoint checkpoint = PipelineCheckpoint::except_last;
  PipelineSchedule schedule = PipelineSchedule::gpipe;
  AutoBalance auto_mode = AutoBalance::by_size;
};

// What a stage does in a slot of time. A forward or a backward pass of one microbatch takes one slot.
struct PipelineSlot {
  enum class Kind : std::uint8_t { idle, forward, backward } kind = Kind::idle;
  std::int64_t microbatch = 0;
  friend bool operator==(const PipelineSlot&, const PipelineSlot&) = default;
};
// The slots of each stage, 2 (m + p - 1) of them. Throws ConfigError for less than one stage or microbatch.
[[nodiscard]] LEVIN_API std::vector<std::vector<PipelineSlot>> pipeline_slots(PipelineSchedule schedule,
                                                                              std::int64_t stages,
                                                                              std::int64_t microbatches);
// The cut of `costs` into `stages` parts whose largest sum is least, as numbers of layers. Throws ConfigError unless
// there is a layer for each stage.
[[nodiscard]] LEVIN_API std::vector<std::int64_t> pipeline_balance(const std::vector<double>& costs,
                                                                   std::int64_t stages);

// The strategy "pipeline": one process, a thread for each stage; the last stage runs on the Trainer's thread.
class LEVIN_API PipelineStrategy : public Strategy {
 public:
  // Throws ConfigError for microbatches below 1, an entry of balance below 1, and a device that is listed twice.
  explicit PipelineStrategy(PipelineOptions options = {});
  ~PipelineStrategy() override;
  [[nodiscard]] std::string_view name() const override { return "pipeline"; }
  // Throws ConfigError for a balance of another length than devices, on the CPU without a list of devices, for several
  // nodes, and for CUDA devices that are absent.
  void check(const TrainerOptions& options) const override;
  void connect(const TrainerOptions& options) override;
  [[nodiscard]] std::optional<Device> device() const override;
  // Moves each layer to the device of its stage; they stay there after the fit. Throws ConfigError for a module that is
  // no PipelineModule, a balance that does not fit the layers, memory that parameters of two stages share, and an
  // automatic balance without example_input().
  void attach_model(TrainModule& module, nn::Module* tree, Stage stage) override;
  void detach() noexcept override;
  [[nodiscard]] StepOutput training_step(const StepCall& call) override;
  [[nodiscard]] bool fuses_backward() const override { return true; }
  [[nodiscard]] std::string prevents_capture() const override;
  // Layers of each stage in the running or last fit, to be given as PipelineOptions::balance.
  [[nodiscard]] const std::vector<std::int64_t>& balance() const { return balance_; }

 private:
  struct Stages;
  PipelineOptions options_;
  std::vector<Device> devices_;
  std::vector<std::int64_t> balance_;
  std::weak_ptr<const void> chosen_for_;  // the module of an automatic balance
  bool exact_ = false;                    // accumulate_weighting
  std::unique_ptr<Stages> stages_;
};

}  // namespace levin
