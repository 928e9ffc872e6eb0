#include "comm/launch/environments.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "comm/launch/variables.h"
#include "levin/error.h"
#include "levin/serialize.h"

namespace levin::dist {

ClusterEnvironment::~ClusterEnvironment() = default;
bool ClusterEnvironment::main_port_is_taken() const { return false; }
std::string ClusterEnvironment::run_id() const { return "levin"; }
int ClusterEnvironment::restart_count() const { return 0; }

void ClusterEnvironment::validate(int devices, int num_nodes) const {
  if (!creates_processes_externally()) return;
  const std::int64_t wanted = std::int64_t{devices} * num_nodes;
  if (world_size() == wanted) return;
  fail<ConfigError>(name(), ": the job has ", world_size(), " processes, and num_nodes ", num_nodes, " times devices ",
                    devices, " is ", wanted, "; make both numbers equal");
}

std::shared_ptr<ClusterEnvironment> ClusterEnvironment::detect() {
  // The launchers of Levin come first, because they may run inside of a step of SLURM or under mpirun.
  if (has_variable(kLauncher)) return own_environment();
  for (const auto& find :
       {torchrun_environment, slurm_environment, lsf_environment, mpi_environment, own_environment}) {
    if (auto found = find()) return found;
  }
  return single_environment();
}

KnownEnvironment::KnownEnvironment(ClusterFacts facts) : facts_(std::move(facts)) {
  const ClusterFacts& f = facts_;
  if (f.rank >= f.world || f.local_rank >= f.world) {
    fail<ConfigError>(f.name, ": rank ", f.rank, " (local rank ", f.local_rank, ") is outside of a job of ", f.world,
                      " processes, as ", f.counted_by, " says; start the program by its launcher alone");
  }
}

void KnownEnvironment::validate(int devices, int num_nodes) const {
  const std::int64_t wanted = std::int64_t{devices} * num_nodes;
  if (!facts_.external || facts_.world == wanted) return;
  fail<ConfigError>(facts_.name, ": ", facts_.counted_by, " is ", facts_.world, ", and num_nodes ", num_nodes,
                    " times devices ", devices, " is ", wanted, "; start as many processes as the trainer has devices");
}

int port_of_job(std::string_view id) {
  int last = 0, scale = 1;
  std::size_t digits = 0;
  for (; digits < 4 && digits < id.size(); ++digits, scale *= 10) {
    const char c = id[id.size() - 1 - digits];
    if (c < '0' || c > '9') break;
    last += scale * (c - '0');
  }
  return digits == 0 ? 12910 : 15000 + last;
}

bool on_path(std::string_view program) {
  std::string path = variable("PATH");
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find(':', begin), path.size());
    if (end > begin && ::access((path.substr(begin, end - begin) + "/" + std::string(program)).c_str(), X_OK) == 0)
      return true;
    begin = end + 1;
  }
  return false;
}

// ---- torchrun

std::shared_ptr<ClusterEnvironment> torchrun_environment() {
  if (!has_variable("TORCHELASTIC_RUN_ID") && !has_variable("LEVIN_ELASTIC_RUN_ID")) return nullptr;
  const Variables v("torchrun");
  ClusterFacts f{.name = "torchrun"};
  f.world = v.number("WORLD_SIZE", 1, kMostRanks);
  f.rank = v.number("RANK", 0, kMostRanks);
  f.local_rank = v.number("LOCAL_RANK", 0, kMostRanks);
  const int local_world = v.number_or("LOCAL_WORLD_SIZE", f.world, 1, kMostRanks);
  f.node_rank = v.number_or("GROUP_RANK", has_variable("LOCAL_WORLD_SIZE") ? f.rank / local_world : -1, 0, kMostRanks);
  if (local_world > f.world || f.local_rank >= local_world) {
    fail<ConfigError>("torchrun: LOCAL_RANK ", f.local_rank, ", LOCAL_WORLD_SIZE ", local_world, " and WORLD_SIZE ",
                      f.world, " contradict each other; start the program by torchrun alone");
  }
  f.address = v.text("MASTER_ADDR");
  f.port = v.number("MASTER_PORT", 1, kMostPort);
  f.port_is_taken = variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
  f.run_id = has_variable("TORCHELASTIC_RUN_ID") ? variable("TORCHELASTIC_RUN_ID") : variable("LEVIN_ELASTIC_RUN_ID");
  f.restarts = v.number_or("TORCHELASTIC_RESTART_COUNT", 0, 0);
  f.counted_by = "WORLD_SIZE";
  return std::make_shared<KnownEnvironment>(std::move(f));
}

// ---- LSF

namespace {

// The hosts of the rank file without repeats. Its first line is the host that runs the batch script, unless it
// computes, too: jsrun then lists it again.
std::vector<std::string> hosts_of_ranks(const std::string& path) {
  std::string text;
  try {
    text = read_file(path, std::size_t{16} << 20);
  } catch (const Error& e) { fail<ConfigError>("lsf: LSB_DJOB_RANKFILE cannot be read: ", e.message()); }
  std::vector<std::string> lines, hosts;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    while (!line.empty() && (line.back() == ' ' || line.back() == '\r')) line.pop_back();
    if (!line.empty()) lines.push_back(std::move(line));
    begin = end + 1;
  }
  for (std::size_t i = lines.size() > 1 ? 1 : 0; i < lines.size(); ++i) {
    if (std::find(hosts.begin(), hosts.end(), lines[i]) == hosts.end()) hosts.push_back(lines[i]);
  }
  if (hosts.empty()) fail<ConfigError>("lsf: the file of LSB_DJOB_RANKFILE, ", path, ", names no host");
  return hosts;
}

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "";
}

}  // namespace

std::shared_ptr<ClusterEnvironment> lsf_environment() {
  if (!has_variable("LSB_JOBID") || !has_variable("JSM_NAMESPACE_RANK")) return nullptr;
  const Variables v("lsf");
  ClusterFacts f{.name = "lsf"};
  f.world = v.number("JSM_NAMESPACE_SIZE", 1, kMostRanks);
  f.rank = v.number("JSM_NAMESPACE_RANK", 0, kMostRanks);
  f.local_rank = v.number("JSM_NAMESPACE_LOCAL_RANK", 0, kMostRanks);
  const std::vector<std::string> hosts = hosts_of_ranks(v.text("LSB_DJOB_RANKFILE"));
  f.address = hosts.size() == 1 ? "127.0.0.1" : hosts[0];
  const std::string mine = host_name();
  f.node_rank = hosts.size() == 1 ? 0 : -1;
  for (std::size_t i = 0; i < hosts.size(); ++i) {  // the file may hold names with or without their domain
    if (hosts[i] == mine || hosts[i].substr(0, hosts[i].find('.')) == mine.substr(0, mine.find('.'))) {
      f.node_rank = static_cast<int>(i);
      break;
    }
  }
  f.port = v.number_or("MASTER_PORT", port_of_job(variable("LSB_JOBID")), 1, kMostPort);
  f.run_id = "lsf-" + variable("LSB_JOBID");
  f.counted_by = "JSM_NAMESPACE_SIZE";
  return std::make_shared<KnownEnvironment>(std::move(f));
}

// ---- MPI

namespace {

// FNV-1a: the same port on all ranks of a job.
int port_of_name(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return 15000 + static_cast<int>(hash % 10000);
}

}  // namespace

std::shared_ptr<ClusterEnvironment> mpi_environment() {
  const bool open_mpi = has_variable("OMPI_COMM_WORLD_RANK");
  if (!open_mpi && !(has_variable("PMI_RANK") && has_variable("PMI_SIZE"))) return nullptr;
  const Variables v(open_mpi ? "mpirun (Open MPI)" : "mpirun (PMI)");
  ClusterFacts f{.name = "mpi"};
  f.counted_by = open_mpi ? "OMPI_COMM_WORLD_SIZE" : "PMI_SIZE";
  f.world = v.number(f.counted_by.c_str(), 1, kMostRanks);
  f.rank = v.number(open_mpi ? "OMPI_COMM_WORLD_RANK" : "PMI_RANK", 0, kMostRanks);
  int local_world = f.world;
  if (open_mpi) {
    f.local_rank = v.number("OMPI_COMM_WORLD_LOCAL_RANK", 0, kMostRanks);
    local_world = v.number("OMPI_COMM_WORLD_LOCAL_SIZE", 1, kMostRanks);
  } else if (f.world > 1) {  // Hydra's and Intel's names
    f.local_rank = v.number("MPI_LOCALRANKID", 0, kMostRanks);
    local_world = v.number("MPI_LOCALNRANKS", 1, kMostRanks);
  }
  const bool one_node = local_world == f.world;
  // OMPI_COMM_WORLD_NODE_RANK is the rank within the node, no number of a node.
  f.node_rank = one_node ? 0 : -1;
  if (!one_node && !has_variable("MASTER_ADDR")) {
    fail<ConfigError>("mpirun: the ", f.world, " ranks are on several nodes (", local_world,
                      " on this one), and mpirun gives no address; set MASTER_ADDR to the host of rank 0: mpirun -x "
                      "MASTER_ADDR=HOST ...");
  }
  if (has_variable("MASTER_ADDR")) f.address = variable("MASTER_ADDR");
  const std::string space = has_variable("PMIX_NAMESPACE") ? variable("PMIX_NAMESPACE") : variable("PMI_KVS");
  f.run_id = space.empty() ? "mpi" : "mpi-" + space;
  if (!space.empty() || has_variable("MASTER_PORT")) {
    f.port = v.number_or("MASTER_PORT", port_of_name(space), 1, kMostPort);
  } else if (f.world > 1) {
    fail<ConfigError>(
        "mpirun: no variable names the job (PMIX_NAMESPACE, PMI_KVS), so no port can be derived; set "
        "MASTER_PORT to a free port of rank 0's host");
  }
  return std::make_shared<KnownEnvironment>(std::move(f));
}

// ---- Levin's own, and by hand

std::shared_ptr<ClusterEnvironment> own_environment() {
  if (!has_variable("LOCAL_RANK")) {
    if (!has_variable(kLauncher)) return nullptr;
    fail<ConfigError>(
        "levin: LEVIN_LAUNCHER is set and LOCAL_RANK is not; remove LEVIN_LAUNCHER, which Levin's launchers "
        "alone set");
  }
  const Variables v("levin");
  ClusterFacts f{.name = "levin"};
  f.world = v.number("WORLD_SIZE", 1, kMostRanks);
  f.local_rank = v.number("LOCAL_RANK", 0, kMostRanks);
  f.node_rank = v.number_or("NODE_RANK", 0, 0, kMostRanks);
  if (has_variable("RANK")) {
    f.rank = v.number("RANK", 0, kMostRanks);
  } else if (f.node_rank == 0) {
    f.rank = f.local_rank;
  } else {
    const std::int64_t rank = std::int64_t{f.node_rank} * v.number("LOCAL_WORLD_SIZE", 1, kMostRanks) + f.local_rank;
    f.rank = static_cast<int>(std::min<std::int64_t>(rank, kMostRanks));
  }
  if (has_variable("MASTER_ADDR")) f.address = variable("MASTER_ADDR");
  if (f.world > 1 || has_variable("MASTER_PORT")) f.port = v.number("MASTER_PORT", 1, kMostPort);
  if (has_variable(kRunId))
    f.run_id = variable(kRunId);
  else
    f.run_id = "levin";
  f.restarts = v.number_or(kRestartCount, 0, 0);
  f.counted_by = "WORLD_SIZE";
  return std::make_shared<KnownEnvironment>(std::move(f));
}

// ---- One process

namespace {

class SingleEnvironment final : public KnownEnvironment {
 public:
  using KnownEnvironment::KnownEnvironment;
  void validate(int, int num_nodes) const override {
    if (num_nodes > 1 && (!has_variable("MASTER_ADDR") || facts_.port == 0)) {
      fail<ConfigError>("num_nodes is ", num_nodes,
                        ", and nothing says where node 0 is: start the program on each node "
                        "with MASTER_ADDR, MASTER_PORT and NODE_RANK, or by srun, torchrun, mpirun or levin-run");
    }
    if (facts_.node_rank >= num_nodes) {
      fail<ConfigError>("NODE_RANK is ", facts_.node_rank, ", and num_nodes is ", num_nodes,
                        "; number the nodes from 0 to ", num_nodes - 1);
    }
  }
};

}  // namespace

std::shared_ptr<ClusterEnvironment> single_environment() {
  const Variables v("levin");
  ClusterFacts f{.name = "single", .external = false};
  f.node_rank = v.number_or("NODE_RANK", 0, 0, kMostRanks);
  if (has_variable("MASTER_ADDR")) f.address = variable("MASTER_ADDR");
  f.port = v.number_or("MASTER_PORT", 0, 1, kMostPort);
  f.run_id = has_variable(kRunId) ? variable(kRunId) : "levin";
  f.counted_by = "this process";
  return std::make_shared<SingleEnvironment>(std::move(f));
}

}  // namespace levin::dist
