// ProcessStrategy: what all strategies of several processes share. It starts or joins the processes, agrees between
// them, and makes their modules equal.
#pragma once

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

struct ProcessOptions {
  std::string backend = "auto";    // dist::InitOptions
  double timeout = 1800;           // seconds that a collective waits for a rank that is alive
  double rendezvous_timeout = 60;  // seconds that ranks may take to arrive
  double silence = 3;              // seconds without a sign of life after which a rank is given up
  // Ranks that are connected already, such as threads of one process; nothing is started then.
  std::shared_ptr<dist::ProcessGroup> group{};
};

// Of a process for each device, which has the whole module. Where nothing else has started the processes, the first
// stage does: this process becomes rank 0 and runs its own command line again for each other rank
// (dist::launch_script), so all that main does before the first stage is done in every process.
class LEVIN_API ProcessStrategy : public Strategy {
 public:
  explicit ProcessStrategy(ProcessOptions options);
  ~ProcessStrategy() override;

  // Throws ConfigError for a list of devices on the CPU, where devices counts processes, and UnsupportedError for CUDA.
  void check(const TrainerOptions& options) const override;
  // Starts and connects the processes once; a later stage uses the same. Throws ConfigError, CommError.
  void connect(const TrainerOptions& options) override;
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

 protected:
  // For `rescues` of strategies whose ranks all hold the whole state: whether this rank survived another one, and is
  // the lowest of the survivors with the most optimizer steps. Where rank 0 is lost, which knew that, rank 1 and the
  // first rank of each other node.
  [[nodiscard]] bool is_rescuer() const;
  // Of CPU tensors, for decisions; where the module is on the CPU the same as group().
  [[nodiscard]] dist::ProcessGroup& control() const { return *control_; }
  [[nodiscard]] const ProcessOptions& process_options() const { return options_; }

 private:
  ProcessOptions options_;
  RankInfo ranks_;
  std::optional<Device> device_;
  std::shared_ptr<dist::Job> job_;  // null: of ranks that are no processes, and of one
  std::shared_ptr<dist::ProcessGroup> group_, control_;
  Tensor votes_;
};

}  // namespace levin
