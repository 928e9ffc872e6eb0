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
std::shared_ptr<Strategy> zero_1() { return std::make_shared<ZeroStrategy>(ZeroOptions{.stage = 1}); }
std::shared_ptr<Strategy> zero_3() { return std::make_shared<ZeroStrategy>(ZeroOptions{.stage = 3}); }
constexpr NamedStrategy kNamed[] = {
    {"ddp", &made<DdpStrategy>, "a process for each device, averaged gradients"},
    {"ddp_find_unused_parameters_false", &made<DdpStrategy>, "ddp"},
    {"ddp_find_unused_parameters_true", &finding_unused, "ddp, for losses that use some of the parameters"},
    {"ddp_fork", &spawning, "ddp_spawn"},
    {"ddp_notebook", &spawning, "ddp_spawn"},
    {"ddp_sharded", &made<ZeroStrategy>, "zero_stage_2"},
    {"ddp_sharded_spawn", &sharding_spawning, "zero_stage_2, in copies of this process"},
    {"ddp_spawn", &spawning, "ddp, in copies of this process on the CPU"},
    {"deepspeed", &made<ZeroStrategy>, "zero_stage_2"},
    {"deepspeed_stage_1", &zero_1, "zero_stage_1"},
    {"deepspeed_stage_2", &made<ZeroStrategy>, "zero_stage_2"},
    {"deepspeed_stage_3", &zero_3, "zero_stage_3"},
    {"dp", &made<DataParallelStrategy>, "one process, several devices, a thread and a part of the batch for each"},
    {"fsdp", &made<FsdpStrategy>, "ddp whose ranks share parameters, gradients and the optimizer's state, by units"},
    {"pipe", &made<PipelineStrategy>, "pipeline"},
    {"pipeline", &made<PipelineStrategy>, "one process, a stage of the layers on each device"},
    {"rpc_sequential", &made<PipelineRanksStrategy>, "a process for each stage of the layers"},
    {"single_device", &made<Strategy>, "one process, one device"},
    {"split_batch", &made<DataParallelStrategy>, "dp"},
    {"zero_stage_1", &zero_1, "ddp whose ranks share the optimizer's state"},
    {"zero_stage_2", &made<ZeroStrategy>, "ddp whose ranks share the optimizer's state and the gradients"},
    {"zero_stage_3", &zero_3, "fsdp"},
};
}  // namespace

std::span<const NamedStrategy> named_strategies() { return kNamed; }

bool asks_for_processes(const TrainerOptions& o) {
  if (o.num_nodes.value() > 1) return true;
  return o.devices.is_list() ? o.devices.indices().size() > 1 : o.devices.count().value_or(1) > 1;
}

bool ranks_have_cuda(const TrainerOptions& o) {
  const std::optional<Device> where = accelerator_device(o);
  return where ? where->is_cuda() : o.devices.is_list() && device_count(DeviceType::cuda) > 0;
}

}  // namespace levin::train
