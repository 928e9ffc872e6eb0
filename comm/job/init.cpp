// init_process_group: from an environment to a group.
#include <unistd.h>

#include <algorithm>

#include "comm/group/group.h"
#include "comm/group/nccl.h"
#include "comm/job/job.h"
#include "levin/error.h"

namespace levin::dist {

std::shared_ptr<ProcessGroup> init_process_group(const InitOptions& options) {
  if (options.backend == "single") return single_process_group();
  const std::shared_ptr<ClusterEnvironment> environment =
      options.environment ? options.environment : ClusterEnvironment::detect();
  const int world = environment->world_size();
  if (world == 1) return single_process_group();
  const bool gpus = options.backend == "nccl";
  const Device device = gpus ? nccl_device(environment->local_rank()) : Device::cpu();
  Job::Place place{.main = {environment->main_address(), environment->main_port()},
                   .port_is_taken = environment->main_port_is_taken(),
                   .world = world,
                   .rank = environment->global_rank(),
                   .local_rank = environment->local_rank(),
                   .node_rank = std::max(0, environment->node_rank()),
                   .restart = environment->restart_count()};
  if (const std::string run = environment->run_id(); !run.empty()) place.run = run;
  const std::shared_ptr<Job> job = Job::join(options, place, own_card(world, options.agreement));
  try {
    std::shared_ptr<ProcessGroup> group =
        gpus ? make_nccl_group(job->rendezvous(), device) : make_cpu_group(job->rendezvous(), options.backend);
    job->serves(group);
    return group;
  } catch (const Error& e) {
    job->failed(e.what());  // the other ranks wait for this one
    throw;
  }
}

}  // namespace levin::dist
