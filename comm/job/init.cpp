// init_process_group: from an environment to a group.
#include <unistd.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "comm/group/by_device.h"
#include "comm/group/group.h"
#include "comm/group/nccl.h"
#include "comm/job/job.h"
#include "levin/error.h"

namespace levin::dist {

namespace {

// By kind of device; empty: none.
struct Backends {
  std::string cpu, cuda;
};
Backends backends_of(const std::string& given) {
  if (given == "nccl") return {.cpu = {}, .cuda = given};
  constexpr std::string_view kCpu = "cpu:", kCuda = "cuda:";
  if (!given.starts_with(kCpu) && !given.starts_with(kCuda)) return {.cpu = given, .cuda = {}};
  Backends out;
  std::string_view rest = given;
  while (!rest.empty()) {
    const std::string_view one = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(one.size() + 1, rest.size()));
    if (one.starts_with(kCpu) && out.cpu.empty()) out.cpu = one.substr(kCpu.size());
    if (one.starts_with(kCuda) && out.cuda.empty()) out.cuda = one.substr(kCuda.size());
  }
  if (given != "cpu:" + out.cpu + ",cuda:" + out.cuda && given != "cuda:" + out.cuda + ",cpu:" + out.cpu)
    out.cuda.clear();
  if (out.cpu.empty() || out.cuda != "nccl")
    fail<ConfigError>("init_process_group: backend is \"", given,
                      "\", expected one backend for each kind of device, such as \"cpu:gloo,cuda:nccl\"; CUDA devices "
                      "have nccl");
  return out;
}

}  // namespace

std::shared_ptr<ProcessGroup> init_process_group(const InitOptions& options) {
  if (options.backend == "single") return single_process_group();
  const Backends backends = backends_of(options.backend);
  const std::shared_ptr<ClusterEnvironment> environment =
      options.environment ? options.environment : ClusterEnvironment::detect();
  const int world = environment->world_size();
  if (world == 1) return single_process_group();
  const bool gpus = !backends.cuda.empty();
  const Device device = gpus ? nccl_device(environment->local_rank(), options.cuda_device) : Device::cpu();
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
    std::shared_ptr<ProcessGroup> group;
    if (!gpus)
      group = make_cpu_group(job->rendezvous(), backends.cpu);
    else if (backends.cpu.empty())
      group = make_nccl_group(job->rendezvous(), device);
    else
      group = group_by_device(job->rendezvous(), backends.cpu, device);
    job->serves(group);
    return group;
  } catch (const Error& e) {
    job->failed(e.what());  // the other ranks wait for this one
    throw;
  }
}

}  // namespace levin::dist
