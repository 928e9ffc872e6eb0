#include "comm/launch/job_variables.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cstdlib>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "comm/launch/variables.h"
#include "levin/error.h"
#include "tensor/device/cpus.h"

namespace levin::dist {

HeldPort::HeldPort() {
  socket_ = above_stderr(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "no socket");
  const int yes = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (::setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
      ::bind(socket_.get(), any, size) != 0 || ::getsockname(socket_.get(), any, &size) != 0) {
    fail<CommError>("launch: 127.0.0.1 has no free port for rank 0: ", std::strerror(errno));
  }
  port_ = ntohs(address.sin_port);
}

std::string random_hex(int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) {
    std::uint8_t byte = 0;
    while (::getrandom(&byte, 1, 0) != 1) {
      if (errno != EINTR) fail<ConfigError>("launch: the system gives no random bytes: ", std::strerror(errno));
    }
    constexpr const char* kDigits = "0123456789abcdef";
    out += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return out;
}

void name_job(JobShape& job) {
  job.run_id = variable(kRunId);
  job.secret = variable(kSecret);
  // The nodes of a job are started one by one: only their address is known to all of them.
  if (job.run_id.empty()) job.run_id = job.nodes == 1 ? random_hex(8) : job.address + ":" + std::to_string(job.port);
  if (job.secret.empty() && job.nodes == 1) job.secret = random_hex(32);
}

VariableList job_variables(const JobShape& job) {
  VariableList out{
      {kLauncher, job.launcher},
      {"NODE_RANK", std::to_string(job.node_rank)},
      {"WORLD_SIZE", std::to_string(job.processes * job.nodes)},
      {"LOCAL_WORLD_SIZE", std::to_string(job.processes)},
      {"MASTER_ADDR", job.address},
      {"MASTER_PORT", std::to_string(job.port)},
      {kRestartCount, std::to_string(job.restarts)},
      {kRunId, job.run_id},
  };
  if (!job.secret.empty()) out.emplace_back(kSecret, job.secret);
  const auto set_if_unset = [&](const char* name, const std::string& value) {
    out.emplace_back(name, has_variable(name) ? variable(name) : value);
  };
  const std::string threads = std::to_string(std::max(1, detail::usable_cpus() / job.processes));
  const std::string own = has_variable("OMP_NUM_THREADS") ? variable("OMP_NUM_THREADS") : threads;
  set_if_unset("OMP_NUM_THREADS", threads);
  set_if_unset("LEVIN_NUM_THREADS", own);
  return out;
}

VariableList rank_variables(const JobShape& job, int local_rank) {
  return {{"LOCAL_RANK", std::to_string(local_rank)},
          {"RANK", std::to_string(job.node_rank * job.processes + local_rank)}};
}

void set_variables(const VariableList& variables) {
  for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
}

EnvironmentBlock::EnvironmentBlock(const VariableList& changes) {
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    if (std::none_of(changes.begin(), changes.end(), [&](const auto& change) { return change.first == name; }))
      entries_.emplace_back(text);
  }
  for (const auto& [name, value] : changes) entries_.push_back(name + "=" + value);
  for (std::string& entry : entries_) pointers_.push_back(entry.data());
  pointers_.push_back(nullptr);
}

}  // namespace levin::dist
