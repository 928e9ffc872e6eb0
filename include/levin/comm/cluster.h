// Who started the processes of a job, and what each of them knows: its rank, the number of ranks, where rank 0 listens.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "levin/export.h"

namespace levin::dist {

// A process's view of its job. Derive from it for a launcher that Levin does not know, and pass the object as
// TrainerOptions::plugins or InitOptions::environment.
class LEVIN_API ClusterEnvironment {
 public:
  virtual ~ClusterEnvironment();

  [[nodiscard]] virtual std::string_view name() const = 0;  // "torchrun", "slurm", "lsf", "mpi", "levin", "single"
  // Whether something else starts the processes. false: the strategy's launcher starts them.
  [[nodiscard]] virtual bool creates_processes_externally() const = 0;
  // Host name or address of rank 0, and its port; port 0: rank 0 publishes its own.
  [[nodiscard]] virtual std::string main_address() const = 0;
  [[nodiscard]] virtual int main_port() const = 0;
  // Whether the launcher itself listens at that port, as torchrun's agent does. Rank 0 then publishes an address of its
  // own in the agent's store.
  [[nodiscard]] virtual bool main_port_is_taken() const;
  [[nodiscard]] virtual int world_size() const = 0;  // ranks of the job
  [[nodiscard]] virtual int global_rank() const = 0;
  [[nodiscard]] virtual int local_rank() const = 0;  // among the ranks of this node
  [[nodiscard]] virtual int node_rank() const = 0;   // -1: not known before the ranks have compared their host names
  // Distinguishes this job, and this start of it, from others at the same address.
  [[nodiscard]] virtual std::string run_id() const;
  [[nodiscard]] virtual int restart_count() const;  // how often the launcher has started the job again
  // Throws ConfigError, with both numbers, where the job's size is not num_nodes times devices.
  virtual void validate(int devices, int num_nodes) const;

  // The first that matches:
  //   levin     LEVIN_LAUNCHER, which Levin's own launchers set (levin/comm/launch.h)
  //   torchrun  TORCHELASTIC_RUN_ID or LEVIN_ELASTIC_RUN_ID, with RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and
  //             MASTER_PORT
  //   slurm     SLURM_STEP_ID, that is inside of srun. In a batch script without srun a program is one process. The job
  //             names bash and interactive disable it.
  //   lsf       LSB_JOBID with JSM_NAMESPACE_RANK: jsrun
  //   mpi       OMPI_COMM_WORLD_RANK (Open MPI; also inside of a step of SLURM), or PMI_RANK with PMI_SIZE
  //   levin     LOCAL_RANK: processes that somebody started by hand, with WORLD_SIZE, MASTER_ADDR and MASTER_PORT
  //   single    one process that nothing started; NODE_RANK, MASTER_ADDR and MASTER_PORT say which node of a job of
  //             several nodes it is
  // Never null. Throws ConfigError for variables that are missing, are no numbers, or contradict each other.
  [[nodiscard]] static std::shared_ptr<ClusterEnvironment> detect();
};

}  // namespace levin::dist
