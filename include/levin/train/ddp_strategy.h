// DdpStrategy: every process holds the whole module and trains on its part of the data; gradients are averaged.
//
//   Trainer trainer({.devices = 4, .strategy = "ddp"});
//   Trainer trainer({.devices = 4, .strategy = std::make_shared<DdpStrategy>(DdpOptions{.bucket_cap_mb = 50})});
//
// Names: "ddp"; "ddp_find_unused_parameters_true" and "..._false" set that option; "ddp_spawn", "ddp_fork" and
// "ddp_notebook" run stages in copies of this process (Note [Stages in copies]). Li et al., "PyTorch Distributed:
// Experiences on Accelerating Data Parallel Training", 2020.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "levin/train/process_strategy.h"

namespace levin {

// In which form gradients travel.
//   none         as they are
//   fp16, bf16   divided by the number of ranks, rounded to 16 bits, added, and back: half the bytes
//   powersgd     f32 and f64 gradients of two or more dimensions as products of two thin matrices (PowerSgdOptions)
enum class CommHook : std::uint8_t { none, fp16, bf16, powersgd };

// CommHook::powersgd, with PyTorch's names. A gradient is a matrix of its first dimension and all others; the average
// of the ranks' matrices [n, m] is approximated by P Q' with P [n, k] and Q [m, k], which travel instead. Other
// gradients travel as they are. A checkpoint has the state of each rank, so a run that resumes with as many ranks goes
// on to the same bits; with another number of ranks, and from a rescue checkpoint, it begins with passes that are not
// compressed. Vogels et al., "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization", 2019.
struct PowerSgdOptions {
  std::int64_t matrix_approximation_rank = 1;  // k, 1 or more
  std::int64_t start_powerSGD_iter = 1000;     // passes before it that reduce as with none; 2 or more
  // Gradients are compressed that have more than this times the elements of P and Q; above 0.
  double min_compression_rate = 2;
  bool use_error_feedback = true;  // what was left out is added to the next gradient; memory of the gradients once more
  bool warm_start = true;          // an approximation begins with the last Q, otherwise with random numbers
  std::uint64_t random_seed = 0;   // of these
};

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
  PowerSgdOptions powersgd{};  // with CommHook::powersgd, which excludes a loss scale
  // V above 0: the bits of a training depend on V and not on the number of ranks, which divides V. Both are powers of
  // two. Each rank runs V / ranks forward and backward passes a batch, one after the other, each with an equal part of
  // the batch, and all sums are one binary tree. Batch norms take the statistics of the part; running statistics become
  // the mean. Excludes manual optimization, sync_batchnorm, comm_hook and captured steps. A checkpoint that is written
  // inside of an open window of accumulation lacks the window's gradients.
  int virtual_ranks = 0;
  ProcessOptions process{};
};

// Data-parallel training. The gradient of each rank is that of its own batch; after backward every rank has the average
// over ranks, in the same bits. Reductions overlap with the backward pass. While a window of accumulation is open, and
// under SyncGrad::no, nothing is reduced. With one process the strategy does nothing.
class LEVIN_API DdpStrategy : public ProcessStrategy {
 public:
  explicit DdpStrategy(DdpOptions options = {});  // throws ConfigError for options out of range or that exclude others
  ~DdpStrategy() override;
  [[nodiscard]] std::string_view name() const override { return "ddp"; }
  [[nodiscard]] const DdpOptions& options() const { return ddp_; }

  void check(const TrainerOptions& options) const override;
  void connect(const TrainerOptions& options) override;  // also ConfigError for ranks that do not divide virtual_ranks
  [[nodiscard]] DataShare share() const override;
  void attach_model(TrainModule& module, nn::Module* tree, Stage stage) override;
  void attach_optimizers(std::span<const std::shared_ptr<optim::Optimizer>> optimizers) override;
  void detach() noexcept override;
  void begin_step() override;
  [[nodiscard]] StepOutput training_step(const StepCall& call) override;
  [[nodiscard]] bool fuses_backward() const override { return ddp_.virtual_ranks > 0; }
  void backward(const Tensor& loss, SyncGrad sync) override;
  void merge_weight(Tensor& weight) override;
  [[nodiscard]] std::string prevents_capture() const override;
  [[nodiscard]] bool rescues() const override { return is_rescuer(); }
  [[nodiscard]] NamedTensors state() const override;
  void load_state(const NamedTensors& state) override;

  // What was reduced since the strategy was made.
  struct Report {
    std::int64_t buckets = 0;     // of the present or last fit
    std::int64_t reductions = 0;  // of one bucket each
    std::int64_t bytes = 0;       // of gradients in these reductions, as they travel
  };
  [[nodiscard]] Report report() const;

 private:
  struct Reducers;  // of a fit
  DdpOptions ddp_;
  nn::Module* tree_ = nullptr;          // of a fit
  std::unique_ptr<Reducers> reducers_;  // never null
  Report before_;                       // of reducers that are gone
  NamedTensors state_before_;           // likewise, of the last fit
  bool stale_ = false;                  // buffers, since the last reduction
};

}  // namespace levin
