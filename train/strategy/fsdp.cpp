// The options of FSDP; the work is ShardedStrategy's.
#include "levin/train/fsdp_strategy.h"

#include <algorithm>
#include <utility>

#include "levin/nn/module.h"

namespace levin {
namespace {

std::int64_t elements_of(const nn::Module& m) {
  std::int64_t n = 0;
  for (const auto& [path, t] : m.named_parameters()) n += t.numel();
  return n;
}

}  // namespace

AutoWrapPolicy wrap_list_children() {
  return [](const nn::Module& m) {
    const std::string& name = m.name();
    return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
  };
}

AutoWrapPolicy wrap_larger_than(std::int64_t elements) {
  return [elements](const nn::Module& m) {
    if (elements_of(m) < elements) return false;
    return std::all_of(m.children().begin(), m.children().end(),
                       [&](const nn::Module* child) { return elements_of(*child) < elements; });
  };
}

FsdpStrategy::FsdpStrategy(FsdpOptions options)
    : ShardedStrategy(options.process,
                      {.parameters = true,
                       .frees_after_forward = options.sharding != FsdpSharding::shard_grad_op,
                       .forward_prefetch = options.forward_prefetch,
                       .backward_prefetch = options.backward_prefetch == BackwardPrefetch::backward_pre,
                       .param = options.mixed_precision.param,
                       .reduce = options.mixed_precision.reduce,
                       .buffer = options.mixed_precision.buffer,
                       .is_unit = options.auto_wrap_policy ? options.auto_wrap_policy : wrap_list_children(),
                       .checkpoints = options.activation_checkpoint_policy,
                       .ignores = options.ignored_modules,
                       .group_size = options.sharding == FsdpSharding::no_shard       ? 1
                                     : options.sharding != FsdpSharding::hybrid_shard ? 0
                                     : options.hybrid_group > 0                       ? options.hybrid_group
                                                                                      : -1,
                       .offload = {.optimizer = options.cpu_offload ? Offload::cpu : Offload::none,
                                   .params = options.cpu_offload ? Offload::cpu : Offload::none},
                       .state_dict_type = options.state_dict_type}) {
  if (options.hybrid_group < 0)
    fail<ConfigError>("FsdpStrategy: hybrid_group is ", options.hybrid_group, ", expected 0 or more");
  const auto check = [](const char* name, std::optional<DType> dtype) {
    if (dtype && *dtype != DType::f32 && *dtype != DType::f16 && *dtype != DType::bf16)
      fail<ConfigError>("FsdpStrategy: mixed_precision.", name, " is ", *dtype, ", expected f32, f16 or bf16");
  };
  check("param", options.mixed_precision.param);
  check("reduce", options.mixed_precision.reduce);
  check("buffer", options.mixed_precision.buffer);
}
FsdpStrategy::~FsdpStrategy() = default;

}  // namespace levin
