// Strategy: how the processes and devices of a run share its work.
//
//   Trainer trainer({.devices = 4, .strategy = "ddp"});               // by name: StrategyRegistry
//   Trainer trainer({.devices = 4, .strategy = std::make_shared<DdpStrategy>(DdpOptions{.bucket_cap_mb = 50})});
//
// A Trainer asks its strategy at fixed places of a run. The base class is a run of one process on one device: every
// function does there what one process needs, so the loop has no case for several. Derive from it for a way of sharing
// that Levin does not have, and name the class with StrategyRegistry::add.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "levin/comm.h"
#include "levin/device.h"
#include "levin/export.h"
#include "levin/function.h"
#include "levin/optim.h"
#include "levin/serialize.h"
#include "levin/train/module.h"

namespace levin {

enum class Phase : std::uint8_t;  // levin/train/profiler.h

// The place of a process among those of a run.
struct RankInfo {
  int rank = 0, size = 1;              // among all
  int local_rank = 0, local_size = 1;  // among those of this node
  int node = 0, nodes = 1;
};

// The part of each data set that a process reads: every `replicas`-th sample, from `index` on. {0, 1}: all. With shards
// a process reads for `shards` of replicas * shards virtual ranks, batch by batch (DistributedSamplerOptions::shards).
struct DataShare {
  int index = 0, replicas = 1;
  int shards = 1;
};

// What one rank wants, and what all ranks do: the largest value of each field.
struct Votes {
  std::uint8_t stop = 0;     // 1: a stop was requested; 2: one that checkpoints keep
  std::uint8_t skip = 0;     // on_train_batch_start returned skip_epoch
  std::uint8_t no_data = 0;  // the rank's streams have ended
  std::uint8_t signal = 0;   // the number of the signal that came
};

// One training batch, as the loop passes it to Strategy::training_step.
struct StepCall {
  TrainModule& module;
  const Batch& batch;  // on the strategy's device, in the precision's dtype
  std::int64_t batch_idx;
  bool closes;  // the batch ends a window of accumulation
  // training_step of a module for a batch, under the run's precision and inside of its hook.
  const Function<StepOutput(TrainModule&, const Batch&)>& forward;
  // The tensor that backward differentiates: the loss, or the sum with exact weighting, divided for the window and
  // times the loss scale.
  const Function<Tensor(const StepOutput&)>& objective;
};

// One process on one device; a strategy of several overrides what differs. A strategy serves one Trainer at a time.
class LEVIN_API Strategy {
 public:
  Strategy();
  virtual ~Strategy();
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;
  [[nodiscard]] virtual std::string_view name() const { return "single_device"; }

  // ---- Processes and devices

  // Throws ConfigError for options that the strategy cannot serve. Called by the constructor of Trainer.
  virtual void check(const TrainerOptions& options) const;
  // Starts or joins the processes, if that is not done. Called at the beginning of each stage, before any hook. Throws
  // ConfigError, CommError.
  virtual void connect(const TrainerOptions& options);
  [[nodiscard]] virtual RankInfo ranks() const { return {}; }  // known after connect
  // Where this process has its module; nothing: accelerator decides.
  [[nodiscard]] virtual std::optional<Device> device() const { return {}; }
  [[nodiscard]] virtual DataShare share() const { return {}; }
  // The ranks that share gradients; null: one process.
  [[nodiscard]] virtual std::shared_ptr<dist::ProcessGroup> group() const { return {}; }

  // ---- Agreement. Every rank calls these, in the same order; they wait.

  [[nodiscard]] virtual Votes vote(const Votes& mine) { return mine; }
  // Every rank's bytes, in the order of ranks.
  [[nodiscard]] virtual std::vector<std::string> gather(std::string_view mine) { return {std::string(mine)}; }
  // Those of rank 0.
  [[nodiscard]] virtual std::string from_rank_zero(std::string_view mine) { return std::string(mine); }
  // t, on any device, becomes the combination of all ranks' t.
  virtual void all_reduce(const Tensor& t, dist::ReduceOp op);
  virtual void barrier() {}

  // ---- The module of a fit or an evaluation

  // After setup, configure_model and the move to device(); before the weights of a checkpoint are loaded.
  virtual void attach_model(TrainModule& module, nn::Module* tree, Stage stage);
  // After configure_optimizers, before the state of a checkpoint is loaded.
  virtual void attach_optimizers(std::span<const std::shared_ptr<optim::Optimizer>> optimizers);
  virtual void detach() noexcept {}  // at the end of the stage; the module stays as it is

  // ---- A training batch

  virtual void begin_step() {}  // before the forward pass
  // By default call.forward(call.module, call.batch). A strategy that runs the backward pass within it says so.
  [[nodiscard]] virtual StepOutput training_step(const StepCall& call);
  // Whether training_step also runs the backward pass, of call.objective. Then gradients are cleared before it,
  // on_before_backward sees a loss without history, and backward is not called.
  [[nodiscard]] virtual bool fuses_backward() const { return false; }
  // By default levin::backward(loss).
  virtual void backward(const Tensor& loss, SyncGrad sync);
  // With exact weighting: the weight of the window, f64 [], becomes that of all ranks. In the closing batch.
  virtual void merge_weight(Tensor& weight);
  // With pieces: the sum of squares, f64 [], of this rank's part becomes that of all parts.
  virtual void merge_squared_norm(Tensor& sum);
  // With pieces: whether a gradient is not finite, f32 [], becomes that of any rank.
  virtual void merge_found_inf(Tensor& found);
  virtual void finish_step() {}  // after the optimizer's step
  // Why a Graph cannot record the step; empty: it can.
  [[nodiscard]] virtual std::string prevents_capture() const { return {}; }

  // ---- Failures

  // What the run does from here, and how many optimizer steps it has completed: ranks name it in the error of all when
  // this one fails. Called at each change.
  virtual void entered(Phase phase, std::int64_t global_step) noexcept;
  // The stage ends with this error: tells the other ranks. Called before on_exception.
  virtual void failed(const std::exception& error) noexcept;
  // Instead of failed(): all ranks end the stage here, on a signal that they agreed on. Each may still save.
  virtual void interrupted() noexcept;
  // After a CommError that ended the fit on every survivor of another rank: whether this rank has the newest complete
  // state and writes it. The trainer then saves default_root_dir/rescue-<step>.safetensors, which ckpt_path = "last"
  // finds. Strategies whose ranks hold different parts of the state return false.
  [[nodiscard]] virtual bool rescues() const { return false; }

  // ---- Parts, where each rank's optimizers update a piece of each parameter (Optimizer::use_pieces). Every rank calls
  // these, in the same order; they wait.

  // A tensor like parameter `of`, of which each rank has the elements of its piece: all of it, on the CPU of rank 0;
  // undefined on other ranks. By default `piece`.
  [[nodiscard]] virtual Tensor whole(const Tensor& piece, const Tensor& of);
  // The elements of this rank's piece, of a tensor like parameter `of`. Does not wait. By default `whole`.
  [[nodiscard]] virtual Tensor piece(const Tensor& whole, const Tensor& of);
  // Elements [first, second) of parameter `of`, as one dimension: those of this rank's piece. By default all.
  [[nodiscard]] virtual std::pair<std::int64_t, std::int64_t> piece_range(const Tensor& of) const;
  // Whether the checkpoints that the trainer names are folders, to which each rank writes its pieces.
  [[nodiscard]] virtual bool shards_checkpoints() const { return false; }
  // What this rank has of its own beside the module and the optimizers, for a checkpoint, by name. A resume with as
  // many ranks passes it to load_state of the same rank, which throws ConfigError for what does not fit and changes
  // nothing then.
  [[nodiscard]] virtual NamedTensors state() const { return {}; }
  virtual void load_state(const NamedTensors& state);
  // Sharded parameters have all their elements from unshard() to reshard(), which keeps what was written to them.
  // Calls nest.
  virtual void unshard() {}
  virtual void reshard() {}

  // ---- Copies of this process

  // Whether stages run in processes that a call of Trainer makes as copies of this one: Note [Stages in copies] in
  // levin/train/process_strategy.h.
  [[nodiscard]] virtual bool runs_in_copies() const { return false; }
  // Calls `stage` in each of these copies, and returns what it returned in that of rank 0. Throws what one of them
  // threw first, with its rank.
  [[nodiscard]] virtual std::string run_in_copies(const TrainerOptions& options, const Function<std::string()>& stage);
};

// The strategies by name. Throws ConfigError for an unknown name, which lists all.
class LEVIN_API StrategyRegistry {
 public:
  using Factory = Function<std::shared_ptr<Strategy>()>;
  // Makes `name` usable in TrainerOptions::strategy. Throws ConfigError for a name that is taken, unless `replace`.
  static void add(std::string_view name, Factory factory, std::string_view description, bool replace = false);
  [[nodiscard]] static std::shared_ptr<Strategy> make(std::string_view name);
  struct Entry {
    std::string name, description;
  };
  [[nodiscard]] static std::vector<Entry> all();  // sorted by name
};

}  // namespace levin
