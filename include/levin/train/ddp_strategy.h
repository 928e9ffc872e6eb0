// DdpStrategy: every process holds the whole module and trains on its part of the data; gradients are averaged.
//
//   Trainer trainer({.devices = 4, .strategy = "ddp"});
//   Trainer trainer({.devices = 4, .strategy = std::make_shared<DdpStrategy>(DdpOptions{.bucket_cap_mb = 50})});
//
// Names: "ddp"; "ddp_find_unused_parameters_true" and "..._false" set that option. Li et al., "PyTorch Distributed:
// Experiences on Accelerating Data Parallel Training", 2020.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "levin/train/process_strategy.h"

namespace levin {

namespace train {
class Reducer;
}

// In which form gradients travel.
//   none         as they are
//   fp16, bf16   rounded to 16 bits, and back after the average: half the bytes
enum class CommHook : std::uint8_t { none, fp16, bf16 };

struct DdpOptions {
  // Whether a backward pass may leave parameters without a gradient, or the set of those may differ between ranks. Such
  // a parameter counts as a gradient of 0 where another rank has one, and keeps none where no rank has. Costs a walk
  // over the graph and one small reduction a step. false: a parameter without a gradient is a StateError at the end of
  // backward that names it. Parameters that do not require grad are never waited for.
  bool find_unused_parameters = false;
  // The module promises that each backward pass over the same trainable parameters leaves out the same ones. They are
  // found in the first pass; a change is a StateError.
  bool static_graph = false;
  // true: gradients lie in the buckets that are reduced, and the next backward pass overwrites their memory also under
  // handles that grad() gave before. false: grad() is a tensor of its own, for one more copy.
  bool gradient_as_bucket_view = true;
  // Buffers, such as batch norm's running statistics, become rank 0's before the first training forward of each window.
  bool broadcast_buffers = true;
  double bucket_cap_mb = 25;  // MiB of gradients in one reduction; above 0. The first bucket has at most 1 MiB.
  CommHook comm_hook = CommHook::none;
  ProcessOptions process{};
};

// Data-parallel training. The gradient of each rank is that of its own batch; after backward every rank has the average
// over ranks, in the same bits. Reductions overlap with the backward pass. While a window of accumulation is open, and
// under SyncGrad::no, nothing is reduced. With one process the strategy does nothing.
class LEVIN_API DdpStrategy : public ProcessStrategy {
 public:
  explicit DdpStrategy(DdpOptions options = {});  // throws ConfigError for a bucket_cap_mb that is not above 0
  ~DdpStrategy() override;
  [[nodiscard]] std::string_view name() const override { return "ddp"; }
  [[nodiscard]] const DdpOptions& options() const { return ddp_; }

  void attach_model(TrainModule& module, nn::Module* tree, Stage stage) override;
  void attach_optimizers(std::span<const std::shared_ptr<optim::Optimizer>> optimizers) override;
  void detach() noexcept override;
  void begin_step() override;
  void backward(const Tensor& loss, SyncGrad sync) override;
  void merge_weight(Tensor& weight) override;
  [[nodiscard]] std::string prevents_capture() const override;

  // What was reduced since the strategy was made.
  struct Report {
    std::int64_t buckets = 0;     // of the present or last fit
    std::int64_t reductions = 0;  // of one bucket each
    std::int64_t bytes = 0;       // of gradients in these reductions, as they travel
  };
  [[nodiscard]] Report report() const;

 private:
  DdpOptions ddp_;
  nn::Module* tree_ = nullptr;  // of a fit
  std::unique_ptr<train::Reducer> reducer_;
  Report before_;       // of reducers that are gone
  bool stale_ = false;  // buffers, since the last reduction
};

}  // namespace levin
