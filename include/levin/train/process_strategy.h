// ProcessStrategy: what all strategies of several processes share. It starts or joins the processes, agrees between
// them, and makes their modules equal.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "levin/comm.h"
#include "levin/train/strategy.h"

namespace levin {

namespace dist {
class Job;
}

// Who starts the processes of a run that nothing else has started.
//   script  this process runs its own command line again for each other rank (dist::launch_script), so all that main
//           does before the first stage is done in every process
//   spawn   each stage runs in copies of this process, made by fork (dist::spawn): Note [Stages in copies]
enum class Launcher : std::uint8_t { script, spawn };

// Note [Stages in copies]
//
// With Launcher::spawn ("ddp_spawn") fit, validate, test and predict run in copies of the calling process, one for each
// rank, all of this node and on the CPU. The caller waits, and is no rank: its global_rank is 0 of 1. What comes back
// from rank 0: the module's state_dict (through a file in the folder of temporary files), the trainer's
// counters and requests to stop, callback_metrics, history, results, and the files that ModelCheckpoint callbacks have
// written, such as best_model_path. What does not: optimizers, schedulers, attributes that a stage set on the module
// or on callbacks, reports, and what predict returns, so predict with return_predictions is a ConfigError. A trainer
// fits once: a second fit, which would begin without the first one's optimizer, is a StateError. Resume from a
// checkpoint in another trainer. Trainer::evaluate and the tuner run in the calling process.
//
// A copy has one thread: the caller's other threads are not in it. Levin's kernels and loaders start theirs again.
// Threads of the program's own do not exist there, and a lock that one of them held at the fork stays held. A process
// that has used a GPU cannot be copied (StateError).
//
// When a copy throws, the call throws an error of that type with the rank before its text, and the others are ended. A
// signal that ends the caller reaches the copies as SIGTERM (Note [Interrupts]).

struct ProcessOptions {
  // dist::InitOptions. Where the accelerator is CUDA, "auto" is "cpu:auto,cuda:nccl": decisions and texts travel
  // on the CPU, and tensors of the module by NCCL. The name of a CPU backend alone means that one for the former.
  std::string backend = "auto";
  double timeout = 1800;           // seconds that a collective waits for a rank that is alive
  double rendezvous_timeout = 60;  // seconds that ranks may take to arrive
  double silence = 3;              // seconds without a sign of life after which a rank is given up
  // Ranks that are connected already, such as threads of one process; nothing is started then.
  std::shared_ptr<dist::ProcessGroup> group{};
  Launcher launcher = Launcher::script;
};

// Of a process for each device. Where nothing else has started the processes, the first stage does: Launcher. With
// accelerator = "cuda" each rank has a GPU of its own: of TrainerOptions::devices where it is a list, else that with
// the number of the rank on its node. The module moves there.
class LEVIN_API ProcessStrategy : public Strategy {
 public:
  explicit ProcessStrategy(ProcessOptions options);
  ~ProcessStrategy() override;

  // Throws ConfigError for a list of devices on the CPU, where devices counts processes, for a CUDA device that is not
  // there, for a backend that does not fit the accelerator, and with Launcher::spawn for several nodes, for another
  // accelerator than the CPU and for an environment or a group that is given.
  void check(const TrainerOptions& options) const override;
  // Starts and connects the processes once; a later stage uses the same. With Launcher::spawn, outside of the copies,
  // this process is the only rank. Throws ConfigError, CommError, DeviceError for a rank without a GPU.
  void connect(const TrainerOptions& options) override;
  [[nodiscard]] bool runs_in_copies() const override;
  // Throws what dist::spawn does, and ConfigError where a launcher has started this process.
  [[nodiscard]] std::string run_in_copies(const TrainerOptions& options, const Function<std::string()>& stage) override;
  [[nodiscard]] RankInfo ranks() const override { return ranks_; }
  [[nodiscard]] std::optional<Device> device() const override { return device_; }
  [[nodiscard]] DataShare share() const override { return {.index = ranks_.rank, .replicas = ranks_.size}; }
  [[nodiscard]] std::shared_ptr<dist::ProcessGroup> group() const override { return group_; }

  [[nodiscard]] Votes vote(const Votes& mine) override;
  [[nodiscard]] std::vector<std::string> gather(std::string_view mine) override;
  [[nodiscard]] std::string from_rank_zero(std::string_view mine) override;
  void all_reduce(const Tensor& t, dist::ReduceOp op) override;
  void barrier() override;

  // Compares the parameters and buffers of all ranks, in name, shape, dtype and order, and gives them the values of
  // rank 0. Generators become forks of rank 0's by rank, so that ranks draw different numbers, such as dropout's; where
  // fuses_backward() is true, which forks by itself, they become rank 0's. Throws CommError that names the first
  // difference and its rank.
  void attach_model(TrainModule& module, nn::Module* tree, Stage stage) override;
  void entered(Phase phase, std::int64_t global_step) noexcept override;
  void failed(const std::exception& error) noexcept override;
  void interrupted() noexcept override;

 protected:
  // For `rescues` of strategies whose ranks all hold the whole state: whether this rank survived another one, and is
  // the lowest of the survivors with the most optimizer steps. Where rank 0 is lost, which knew that, rank 1 and the
  // first rank of each other node.
  [[nodiscard]] bool is_rescuer() const;
  // A copy ends: lets go of all that has the process group, whose last handle says farewell to the other ranks.
  virtual void leave() noexcept;
  // For decisions, of CPU tensors.
  [[nodiscard]] dist::ProcessGroup& control() const { return *control_; }
  [[nodiscard]] const ProcessOptions& process_options() const { return options_; }

 private:
  ProcessOptions options_;
  RankInfo ranks_;
  std::optional<Device> device_;
  std::shared_ptr<dist::Job> job_;  // null: of ranks that are no processes, and of one
  std::shared_ptr<dist::ProcessGroup> group_, control_;
  Tensor votes_;
  bool in_copy_ = false;  // this process is one of the copies
};

}  // namespace levin
