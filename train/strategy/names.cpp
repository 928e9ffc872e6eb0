#include "train/strategy/names.h"

#include <optional>

#include "levin/device.h"
#include "levin/train/data_parallel_strategy.h"
#include "levin/train/ddp_strategy.h"
#include "levin/train/fsdp_strategy.h"
#include "levin/train/options.h"
#include "levin/train/pipeline_ranks_strategy.h"
#include "levin/train/pipeline_strategy.h"
#include "levin/train/zero_strategy.h"
#include "train/options/accelerators.h"
#include "train/strategy/zero_config.h"

namespace levin::train {
namespace {
template <class S>
std::shared_ptr<Strategy> made() {
  return std::make_shared<S>();
}
std::shared_ptr<Strategy> finding_unused() {
  return std::make_shared<DdpStrategy>(DdpOptions{.find_unused_parameters = true});
}
std::shared_ptr<Strategy> spawning() {
  return std::make_shared<DdpStrategy>(DdpOptions{.process = {.launcher = Launcher::spawn}});
}
std::shared_ptr<Strategy> sharding_spawning() {
  return std::make_shared<ZeroStrategy>(ZeroOptions{.process = {.launcher = Launcher::spawn}});
}
template <int stage, Offload to = Offload::none>
std::shared_ptr<Strategy> zero() {
  return std::make_shared<ZeroStrategy>(zero_options_of(
      {.stage = stage, .offload_optimizer = to, .offload_params = stage == 3 ? to : Offload::none}, NamesStage::yes));
}
std::shared_ptr<Strategy> deepspeed() { return std::make_shared<ZeroStrategy>(zero_options_of({}, NamesStage::no)); }
std::shared_ptr<Strategy> fsdp_cpu_offload() {
  return std::make_shared<FsdpStrategy>(FsdpOptions{.cpu_offload = true});
}
constexpr NamedStrategy kNamed[] = {
    {"ddp", &made<DdpStrategy>, "a process for each device, averaged gradients"},
    {"ddp_find_unused_parameters_false", &made<DdpStrategy>, "ddp"},
    {"ddp_find_unused_parameters_true", &finding_unused, "ddp, for losses that use some of the parameters"},
    {"ddp_fork", &spawning, "ddp_spawn"},
    {"ddp_notebook", &spawning, "ddp_spawn"},
    {"ddp_sharded", &made<ZeroStrategy>, "zero_stage_2"},
    {"ddp_sharded_spawn", &sharding_spawning, "zero_stage_2, in copies of this process"},
    {"ddp_spawn", &spawning, "ddp, in copies of this process on the CPU"},
    {"deepspeed", &deepspeed, "zero_stage_2"},
    {"deepspeed_stage_1", &zero<1>, "zero_stage_1"},
    {"deepspeed_stage_2", &zero<2>, "zero_stage_2"},
    {"deepspeed_stage_2_offload", &zero<2, Offload::cpu>, "zero_stage_2_offload"},
    {"deepspeed_stage_3", &zero<3>, "zero_stage_3"},
    {"deepspeed_stage_3_offload", &zero<3, Offload::cpu>, "zero_stage_3_offload"},
    {"deepspeed_stage_3_offload_nvme", &zero<3, Offload::nvme>, "zero_stage_3_offload_nvme"},
    {"dp", &made<DataParallelStrategy>, "one process, several devices, a thread and a part of the batch for each"},
    {"fsdp", &made<FsdpStrategy>, "ddp whose ranks share parameters, gradients and the optimizer's state, by units"},
    {"fsdp_cpu_offload", &fsdp_cpu_offload, "fsdp whose optimizer and slices are on the CPU"},
    {"pipe", &made<PipelineStrategy>, "pipeline"},
    {"pipeline", &made<PipelineStrategy>, "one process, a stage of the layers on each device"},
    {"rpc_sequential", &made<PipelineRanksStrategy>, "a process for each stage of the layers"},
    {"single_device", &made<Strategy>, "one process, one device"},
    {"split_batch", &made<DataParallelStrategy>, "dp"},
    {"zero_stage_1", &zero<1>, "ddp whose ranks share the optimizer's state"},
    {"zero_stage_2", &zero<2>, "ddp whose ranks share the optimizer's state and the gradients"},
    {"zero_stage_2_offload", &zero<2, Offload::cpu>, "zero_stage_2 whose optimizer is on the CPU"},
    {"zero_stage_3", &zero<3>, "fsdp"},
    {"zero_stage_3_offload", &zero<3, Offload::cpu>, "zero_stage_3 whose optimizer and slices are on the CPU"},
    {"zero_stage_3_offload_nvme", &zero<3, Offload::nvme>, "the same, in a file below /local_nvme"},
};
}  // namespace

std::span<const NamedStrategy> named_strategies() { return kNamed; }

bool asks_for_processes(const TrainerOptions& o) {
  if (o.num_nodes.value() > 1) return true;
  if (o.devices.is_list()) return o.devices.indices().size() > 1;
  return o.devices.count().value_or(ranks_have_cuda(o) ? device_count(DeviceType::cuda) : 1) > 1;
}

bool ranks_have_cuda(const TrainerOptions& o) {
  const std::optional<Device> where = accelerator_device(o);
  return where ? where->is_cuda() : o.devices.is_list() && device_count(DeviceType::cuda) > 0;
}

}  // namespace levin::train
