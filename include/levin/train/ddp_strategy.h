// DdpStrategy: data parallel training. Every process has the whole module and trains on its part of each batch, and
// the gradients of all processes are averaged.
//
//   Trainer trainer({.devices = 2, .strategy = "ddp"});
//   Trainer trainer({.devices = 2, .strategy = std::make_shared<DdpStrategy>(DdpOptions{.bucket_cap_mb = 50})});
//
// R ranks with batches of n samples make the step that one process makes with a batch of R n: the gradient is
//   g = (1 / R) sum_r g_r,  g_r of the loss of rank r.
// S. Li et al., PyTorch Distributed: Experiences on Accelerating Data Parallel Training, VLDB 2020.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "levin/train/process_strategy.h"

namespace levin {

struct DdpOptions {
  // A backward may reach only some of the parameters. They are reduced as zeros; a parameter that no rank used has no
  // gradient. false: such a parameter is a StateError that names it.
  bool find_unused_parameters = false;
  bool broadcast_buffers = true;  // rank 0's buffers replace those of the others before each training step
  // Gradients travel in buckets of this many MB, each as soon as its last gradient is known; the first has 1 MB.
  double bucket_cap_mb = 25;
  ProcessOptions process{};
};

// Averages gradients while the backward pass still runs. After a step a parameter's gradient lies in a bucket, whose
// memory the next step writes again.
class LEVIN_API DdpStrategy : public ProcessStrategy {
 public:
  explicit DdpStrategy(DdpOptions options = {});  // throws ConfigError for a bucket_cap_mb that is not above 0
  ~DdpStrategy() override;
  [[nodiscard]] std::string_view name() const override { return "ddp"; }
  void attach_model(TrainModule& module, nn::Module* tree, Stage stage) override;
  void attach_optimizers(std::span<const std::shared_ptr<optim::Optimizer>> optimizers) override;
  void detach() noexcept override;
  void begin_step() override;
  // Throws StateError for a parameter without a gradient, on every rank alike, unless find_unused_parameters is on.
  void backward(const Tensor& loss, SyncGrad sync) override;
  void merge_weight(Tensor& weight) override;

 private:
  struct Buckets;
  DdpOptions options_;
  NamedTensors buffers_;              // of the module in training, without the states of metrics
  std::unique_ptr<Buckets> buckets_;  // null: one rank, or no fit
};

}  // namespace levin
