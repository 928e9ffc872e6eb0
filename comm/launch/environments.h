// The environments that ClusterEnvironment::detect() knows.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "levin/comm/cluster.h"

namespace levin::dist {

// What the variables of a launcher say.
struct ClusterFacts {
  std::string_view name{};
  bool external = true;
  std::string address = "127.0.0.1";
  int port = 0;
  bool port_is_taken = false;
  int world = 1, rank = 0, local_rank = 0, node_rank = 0;
  std::string run_id{};
  int restarts = 0;
  std::string counted_by{};  // where `world` was read: "WORLD_SIZE"
};

// An environment that keeps the facts: later changes of the variables do not reach it.
class KnownEnvironment : public ClusterEnvironment {
 public:
  explicit KnownEnvironment(ClusterFacts facts);  // throws ConfigError for ranks outside of the world
  [[nodiscard]] std::string_view name() const override { return facts_.name; }
  [[nodiscard]] bool creates_processes_externally() const override { return facts_.external; }
  [[nodiscard]] std::string main_address() const override { return facts_.address; }
  [[nodiscard]] int main_port() const override { return facts_.port; }
  [[nodiscard]] bool main_port_is_taken() const override { return facts_.port_is_taken; }
  [[nodiscard]] int world_size() const override { return facts_.world; }
  [[nodiscard]] int global_rank() const override { return facts_.rank; }
  [[nodiscard]] int local_rank() const override { return facts_.local_rank; }
  [[nodiscard]] int node_rank() const override { return facts_.node_rank; }
  [[nodiscard]] std::string run_id() const override { return facts_.run_id; }
  [[nodiscard]] int restart_count() const override { return facts_.restarts; }
  void validate(int devices, int num_nodes) const override;

 protected:
  ClusterFacts facts_;
};

// Each returns null where its launcher did not start this process.
[[nodiscard]] std::shared_ptr<ClusterEnvironment> torchrun_environment();
[[nodiscard]] std::shared_ptr<ClusterEnvironment> slurm_environment();
[[nodiscard]] std::shared_ptr<ClusterEnvironment> lsf_environment();
[[nodiscard]] std::shared_ptr<ClusterEnvironment> mpi_environment();
[[nodiscard]] std::shared_ptr<ClusterEnvironment> own_environment();
[[nodiscard]] std::shared_ptr<ClusterEnvironment> single_environment();  // never null

// 15000 + the last four digits of the id of a job; 12910 for a text that does not end in a digit.
[[nodiscard]] int port_of_job(std::string_view id);
// Whether a program of this name is in a folder of PATH.
[[nodiscard]] bool on_path(std::string_view program);

}  // namespace levin::dist
