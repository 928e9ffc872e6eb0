// What a launcher tells the processes of its job.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "comm/launch/descriptor.h"

namespace levin::dist {

using VariableList = std::vector<std::pair<std::string, std::string>>;

// A port of 127.0.0.1 that no other process is given while this object lives. Rank 0 binds and listens beside it: both
// sockets have SO_REUSEADDR, and this one does not listen.
class HeldPort {
 public:
  HeldPort();  // throws CommError where the system has no free port
  [[nodiscard]] int port() const { return port_; }

 private:
  Fd socket_;
  int port_ = 0;
};

struct JobShape {
  const char* launcher;  // LEVIN_LAUNCHER
  int processes = 1, nodes = 1, node_rank = 0;
  std::string address = "127.0.0.1";
  int port = 0;
  int restarts = 0;
  // Of all starts of the job: those of the environment, else made by name_job.
  std::string run_id{}, secret{};
};
// Fills in run_id and, on one node, secret.
void name_job(JobShape& job);
// The variables of all ranks of this node: size, address, run id, secret. OMP_NUM_THREADS and LEVIN_NUM_THREADS keep
// the value that they have.
[[nodiscard]] VariableList job_variables(const JobShape& job);  // after name_job
// Those of one rank.
[[nodiscard]] VariableList rank_variables(const JobShape& job, int local_rank);

void set_variables(const VariableList& variables);  // in this process
// The environment of this process, changed, for execve.
class EnvironmentBlock {
 public:
  explicit EnvironmentBlock(const VariableList& changes);
  [[nodiscard]] char* const* get() const { return pointers_.data(); }

 private:
  std::vector<std::string> entries_;
  std::vector<char*> pointers_;
};

[[nodiscard]] std::string random_hex(int bytes);

}  // namespace levin::dist
