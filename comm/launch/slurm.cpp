// Note [Steps of SLURM]
//
// In a batch script SLURM_PROCID is 0 and SLURM_NTASKS the number of tasks of the job, also for a program that the
// script starts without srun: such a program would wait for ranks that do not exist. SLURM_STEP_ID is set inside of
// srun alone. A step's own numbers (SLURM_STEP_NUM_TASKS) come before those of the job: `srun -n 1` in a job of four
// tasks is one process.
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "comm/launch/environments.h"
#include "comm/launch/nodelist.h"
#include "comm/launch/variables.h"
#include "levin/error.h"
#include "levin/warning.h"

namespace levin::dist {
namespace {

// The first of these variables that is set; the last where none is.
const char* first_of(std::initializer_list<const char*> names) {
  const char* last = nullptr;
  for (const char* name : names) {
    if (has_variable(name)) return name;
    last = name;
  }
  return last;
}

// The tasks of each node, and the variable that said so. One number stands for all nodes.
struct Tasks {
  std::vector<int> of_nodes;
  const char* variable;
};

class SlurmEnvironment final : public KnownEnvironment {
 public:
  SlurmEnvironment(ClusterFacts facts, Tasks tasks, int nodes)
      : KnownEnvironment(std::move(facts)), tasks_(std::move(tasks)), nodes_(nodes) {}

  void validate(int devices, int num_nodes) const override {
    if (nodes_ > 0 && nodes_ != num_nodes) {
      fail<ConfigError>("slurm: the step has ", nodes_, " nodes, and num_nodes is ", num_nodes,
                        "; make srun's --nodes and num_nodes equal");
    }
    for (const int tasks : tasks_.of_nodes) {
      if (tasks == devices) continue;
      fail<ConfigError>("slurm: a node runs ", tasks, " tasks, as ", tasks_.variable, " says, and devices is ", devices,
                        "; make srun's --ntasks-per-node and devices equal");
    }
    KnownEnvironment::validate(devices, num_nodes);
  }

 private:
  Tasks tasks_;
  int nodes_;  // 0: unknown
};

// By the variable that says most about the step.
Tasks tasks_of(int world) {
  for (const char* name : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}) {
    if (!has_variable(name)) continue;
    auto tasks = slurm_tasks_per_node(variable(name));
    if (!tasks) {
      fail<ConfigError>("slurm: the environment variable ", name, " is \"", variable(name),
                        "\", expected numbers of tasks as in \"4(x3),2\"");
    }
    std::int64_t sum = 0;
    for (const int n : *tasks) sum += n;
    if (sum == world) return {*std::move(tasks), name};  // else it is that of the job, and the step is smaller
  }
  constexpr const char* kEach = "SLURM_NTASKS_PER_NODE";
  if (has_variable(kEach)) return {{Variables("slurm").number(kEach, 1, kMostRanks)}, kEach};
  if (world > 1) {
    fail<ConfigError>("slurm: ", world,
                      " tasks run, and none of SLURM_NTASKS_PER_NODE, SLURM_TASKS_PER_NODE and "
                      "SLURM_STEP_TASKS_PER_NODE says how many of them on a node; give srun --ntasks-per-node");
  }
  return {{1}, "SLURM_NTASKS"};
}

}  // namespace

std::shared_ptr<ClusterEnvironment> slurm_environment() {
  if (!has_variable("SLURM_STEP_ID")) {
    if (has_variable("SLURM_JOB_ID") && on_path("srun") && !has_variable("OMPI_COMM_WORLD_RANK") &&
        !has_variable("LOCAL_RANK")) {
      warn("W-SLURM-SRUN", WarningCategory::possible_user,
           "srun is on the PATH of this SLURM job and did not start this program, which is one process: start it as "
           "`srun PROGRAM` to use all tasks of the job");
    }
    return nullptr;
  }
  if (has_variable("OMPI_COMM_WORLD_RANK")) return nullptr;  // mpirun's daemon is the task of SLURM, not its ranks
  const Variables v("slurm");
  const char* const tasks_name = first_of({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"});
  const std::string job_name = variable("SLURM_JOB_NAME");
  if (job_name == "bash" || job_name == "interactive") {
    if (has_variable(tasks_name) && v.number(tasks_name, 1, kMostRanks) > 1) {
      warn("W-SLURM-JOB-NAME", WarningCategory::user,
           "the SLURM job is named " + job_name + ", which marks an interactive job, so each of its " +
               variable(tasks_name) + " tasks is a job by itself; srun --job-name gives it another name");
    }
    return nullptr;
  }
  ClusterFacts f{.name = "slurm"};
  f.world = v.number(tasks_name, 1, kMostRanks);
  f.rank = v.number("SLURM_PROCID", 0, kMostRanks);
  f.local_rank = v.number("SLURM_LOCALID", 0, kMostRanks);
  f.node_rank = v.number("SLURM_NODEID", 0, kMostRanks);
  f.counted_by = tasks_name;
  Tasks tasks = tasks_of(f.world);
  const int nodes =
      v.number_or(first_of({"SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"}), 0, 1, kMostRanks);
  if (has_variable("MASTER_ADDR")) {
    f.address = variable("MASTER_ADDR");
  } else if (nodes != 1) {
    const char* const list_name = first_of({"SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"});
    const auto hosts = slurm_hosts(v.text(list_name), 1);
    if (!hosts) {
      fail<ConfigError>("slurm: the environment variable ", list_name, " is \"", variable(list_name),
                        "\", expected hosts as in \"a[5-9,12],b\"");
    }
    f.address = hosts->front();
  }
  const std::string job = variable(first_of({"SLURM_JOB_ID", "SLURM_JOBID"}));
  f.port = v.number_or("MASTER_PORT", port_of_job(job), 1, kMostPort);
  f.run_id = "slurm-" + job + "." + variable("SLURM_STEP_ID");
  f.restarts = v.number_or("SLURM_RESTART_COUNT", 0, 0);
  return std::make_shared<SlurmEnvironment>(std::move(f), std::move(tasks), nodes);
}

}  // namespace levin::dist
