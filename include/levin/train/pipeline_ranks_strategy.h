// rpc_sequential: a pipeline whose stages are processes, the layers of a PipelineModule in one stage for each rank.
//
//   Trainer trainer({.accelerator = "cpu", .devices = 2, .strategy = "rpc_sequential"});
//   Trainer trainer({.accelerator = "cpu", .devices = 2, .strategy = std::make_shared<PipelineRanksStrategy>(
//       PipelineRanksOptions{.pipeline = {.balance = {3, 2}}})});
//
// A step is that of levin/train/pipeline_strategy.h. Of R ranks, rank r runs stage R - 1 - r: rank 0, which logs and
// writes checkpoints, has the last stage with loss_of. on_step_output is called on every rank, with the loss on all and
// the other outputs on rank 0 alone; what loss_of logs is known on rank 0 alone.
//
// Every rank builds the module and reads all batches, whose order must not depend on the rank. A rank computes and
// updates the layers of its stage, and holds activations, gradients and optimizer state of these alone. In a fit the
// layers of other stages have old values on a rank: the module's operator() passes x through all ranks, which must call
// it together, and returns the result on each. Checkpoints hold the whole model and load under any strategy. In an
// evaluation and at the end of a fit each rank has the parameters, buffers and streams of the whole model, those of
// loss_of among them; what a module keeps in other members stays on its rank.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "levin/train/pipeline_strategy.h"
#include "levin/train/process_strategy.h"

namespace levin {

struct PipelineRanksOptions {
  PipelineOptions pipeline{};  // without devices: each process has one
  ProcessOptions process{};
};

// The strategy "rpc_sequential": a process for each stage.
class LEVIN_API PipelineRanksStrategy : public ProcessStrategy {
 public:
  // Throws ConfigError for options that PipelineStrategy refuses, and for a list of devices.
  explicit PipelineRanksStrategy(PipelineRanksOptions options = {});
  ~PipelineRanksStrategy() override;
  [[nodiscard]] std::string_view name() const override { return "rpc_sequential"; }
  // As ProcessStrategy. Throws ConfigError for a balance of another length than processes, and for a callback that
  // averages weights, which no rank has all of.
  void check(const TrainerOptions& options) const override;
  void connect(const TrainerOptions& options) override;
  [[nodiscard]] DataShare share() const override { return {}; }  // every rank reads all

  // In a fit throws ConfigError for a module or balance that PipelineStrategy refuses.
  void attach_model(TrainModule& module, nn::Module* tree, Stage stage) override;
  void attach_optimizers(std::span<const std::shared_ptr<optim::Optimizer>> optimizers) override;
  void detach() noexcept override;
  [[nodiscard]] StepOutput training_step(const StepCall& call) override;
  [[nodiscard]] bool fuses_backward() const override { return true; }
  void merge_squared_norm(Tensor& sum) override;
  void merge_found_inf(Tensor& found) override;
  [[nodiscard]] std::string prevents_capture() const override;
  [[nodiscard]] Tensor whole(const Tensor& piece, const Tensor& of) override;
  [[nodiscard]] Tensor piece(const Tensor& whole, const Tensor& of) override;
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> piece_range(const Tensor& of) const override;
  void unshard() override;  // every rank gets the values of all stages
  // Layers of each stage in the running or last fit, to be given as PipelineOptions::balance.
  [[nodiscard]] const std::vector<std::int64_t>& balance() const { return balance_; }

 private:
  friend class PipelineModule;
  struct Stages;
  [[nodiscard]] Tensor through_all(const Tensor& x);  // PipelineModule::operator() in a fit
  PipelineOptions pipeline_;
  std::vector<std::int64_t> balance_;
  bool exact_ = false;  // accumulate_weighting
  std::unique_ptr<Stages> stages_;
};

}  // namespace levin
