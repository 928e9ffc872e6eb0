// dp: one process that trains copies of the module on several devices, a thread for each, each on a part of the batch.
//
//   struct Net : TrainModuleOf<Net, DataParallelModule> {
//     std::unique_ptr<TrainModule> replica(const nn::Options& o) const override { return std::make_unique<Net>(o); }
//     ...
//   };
//   Trainer trainer({.devices = 2, .strategy = "dp"});
//
// A step, with D devices and a batch of n samples:
//   1. The batch is cut along dim 0 into parts of ceil(n / D) samples: 10 over 4 are 3, 3, 3, 1. Tensors without a
//      dimension are copied. Fewer parts than devices are allowed.
//   2. Each replica gets the parameters, flags and buffers of the module and runs training_step on its part. Replica 0
//      is the module itself, on the first device, the root. Random streams of replica i > 0 are forks by i.
//   3. The outputs are gathered on the root: tensors joined along dim 0, tensors without a dimension as [D]. The loss
//      is  sum_i n_i loss_i / sum_i n_i,  n_i the samples of part i, so it equals that of one device; with
//      StepOutput::sum it is  sum_i sum_i / sum_i weight_i.  training_step_end may return another.
//   4. The gradients of the replicas are added on the root in the order of the replicas, so the bits do not depend on
//      the threads' timing. The one optimizer steps there, and hooks on gradients see the sum.
//
// The effective batch is the loader's batch_size. Buffers that replica 0 writes are kept, such as its batch norm's
// statistics, those of others are not. log() in training_step keeps what replica 0 logs; log in training_step_end to
// see the whole batch. Evaluations run on the root. Optimization is automatic (ConfigError). CPU devices share the
// parameters' memory. ddp is faster wherever it runs, also on one machine. After torch.nn.DataParallel, whose mean of
// losses weighs a short last part too much.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "levin/train/strategy.h"

namespace levin {

// A module that dp can train by the strategy's name alone: class Net : TrainModuleOf<Net, DataParallelModule>.
class LEVIN_API DataParallelModule : public TrainModule {
 public:
  using TrainModule::TrainModule;
  // A module with the same parameters and buffers by name, made from these options. Its configure_model is called.
  [[nodiscard]] virtual std::unique_ptr<TrainModule> replica(const nn::Options& options) const = 0;
  // The step's output from the gathered outputs of all replicas, on the root; "loss" is [D] there. Called inside of
  // training_step's hook. Default: the weighted mean of the losses, and the outputs as they are.
  [[nodiscard]] virtual StepOutput training_step_end(const NamedTensors& outputs);
};

struct DataParallelOptions {
  // The first is the root. Empty: the CUDA devices that TrainerOptions::devices and accelerator name. CPU devices
  // {Device::cpu(), Device::cpu(1)} must be listed here.
  std::vector<Device> devices{};
  // Makes a replica of a module that is no DataParallelModule.
  Function<std::unique_ptr<TrainModule>(const nn::Options&)> replica{};
};

// The strategy "dp". One step at a time, on the Trainer's thread and one thread for each further device.
class LEVIN_API DataParallelStrategy : public Strategy {
 public:
  // Throws ConfigError for a device that is listed twice, and for meta.
  explicit DataParallelStrategy(DataParallelOptions options = {});
  ~DataParallelStrategy() override;
  [[nodiscard]] std::string_view name() const override { return "dp"; }
  // Throws ConfigError on the CPU without a list of devices, for several nodes, and for CUDA devices that are absent.
  void check(const TrainerOptions& options) const override;
  void connect(const TrainerOptions& options) override;
  [[nodiscard]] std::optional<Device> device() const override;
  // Makes the replicas of a fit. Throws ConfigError for a module without a way to make one, for a replica whose
  // parameters or buffers differ (all differences of names and shapes), and for manual optimization.
  void attach_model(TrainModule& module, nn::Module* tree, Stage stage) override;
  void detach() noexcept override;
  // Throws ShapeError for a batch whose tensors differ in size(0), ConfigError for one without a dimension to cut.
  [[nodiscard]] StepOutput training_step(const StepCall& call) override;
  [[nodiscard]] bool fuses_backward() const override { return true; }
  [[nodiscard]] std::string prevents_capture() const override;

 private:
  struct Replicas;
  DataParallelOptions options_;
  std::vector<Device> devices_;  // of the running stage
  std::unique_ptr<Replicas> replicas_;
};

}  // namespace levin
