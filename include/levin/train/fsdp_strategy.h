// FsdpStrategy: fully sharded data parallel. Ranks share the parameters, the gradients and the optimizer's state.
//
//   Trainer trainer({.devices = 4, .strategy = "fsdp"});
//   Trainer trainer({.devices = 4, .strategy = std::make_shared<FsdpStrategy>(FsdpOptions{
//       .auto_wrap_policy = wrap_larger_than(1'000'000)})});
//
// The module is cut into units (auto_wrap_policy). A unit's parameters exist while it runs, forward and backward; else
// a rank has its slice of them. Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", 2023.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "levin/function.h"
#include "levin/train/sharded_strategy.h"

namespace levin {

// What is shared, and among whom.
//   full_shard     parameters, gradients, optimizer state
//   shard_grad_op  the same, but a unit's parameters stay from its forward to the end of its backward
//   hybrid_shard   full_shard among hybrid_group ranks; groups have equal slices and average their gradients
//   no_shard       nothing, as ddp
enum class FsdpSharding : std::uint8_t { full_shard, shard_grad_op, hybrid_shard, no_shard };

// Whether a module is a unit. It is asked from the root down, and not below a unit. What is left is one unit, which
// stays during the whole pass.
using AutoWrapPolicy = Function<bool(const nn::Module&)>;
// The children of nn::Sequential and nn::ModuleList: modules whose name is a number.
[[nodiscard]] LEVIN_API AutoWrapPolicy wrap_list_children();
// The innermost modules that have at least `elements` parameter elements.
[[nodiscard]] LEVIN_API AutoWrapPolicy wrap_larger_than(std::int64_t elements);

// When backward gathers the unit before the present one. PyTorch's names.
//   backward_pre   while the present unit's backward runs: two units have memory at once
//   backward_post  when the present unit's gradients are complete: one unit
enum class BackwardPrefetch : std::uint8_t { backward_pre, backward_post };

// Dtypes of a pass, f32, f16 or bf16; without one: as it is without mixed precision. PyTorch's MixedPrecision.
//   param   a unit's parameters while it runs, and the floating fields of a batch. A rank's slices, the optimizer's
//           state and checkpoints stay f32, and evaluations run in f32.
//   reduce  gradients on their way between ranks (param's without one); the optimizer gets them in f32
//   buffer  floating buffers, except those of metrics; in evaluations and checkpoints they have their own dtype
// f16 has a narrow range, and no loss scale helps here; bf16 needs none.
struct MixedPrecision {
  std::optional<DType> param{}, reduce{}, buffer{};
};

struct FsdpOptions {
  FsdpSharding sharding = FsdpSharding::full_shard;
  AutoWrapPolicy auto_wrap_policy{};  // empty: wrap_list_children()
  int hybrid_group = 0;               // ranks of a group with hybrid_shard, a divisor of all; 0: those of a node
  // "fsdp_cpu_offload": slices, their gradients and the optimizer's state lie on the CPU; OffloadOptions with both cpu.
  bool cpu_offload = false;
  MixedPrecision mixed_precision{};  // of f32 parameters (precision "32-true"); ConfigError with others
  // Forward gathers the unit that the pass before called next, while the present one runs: two units have memory.
  bool forward_prefetch = false;
  BackwardPrefetch backward_prefetch = BackwardPrefetch::backward_pre;
  // Modules that run in checkpoint() during training: nn::CheckpointPolicy. Empty: none.
  Function<bool(const nn::Module&)> activation_checkpoint_policy{};
  // Modules whose parameters, with those below them, are not sharded: each rank has them whole, in their own dtype.
  // Their gradients are averaged as those of others, and their optimizer's state is shared. Empty: none.
  Function<bool(const nn::Module&)> ignored_modules{};
  StateDictType state_dict_type = StateDictType::full;  // of checkpoints; mixed_precision needs full (ConfigError)
  ProcessOptions process{};
};

// Sharding begins when configure_optimizers has returned: until then each rank has the whole module.
class LEVIN_API FsdpStrategy : public ShardedStrategy {
 public:
  explicit FsdpStrategy(FsdpOptions options = {});  // throws ConfigError for options out of range
  ~FsdpStrategy() override;
  [[nodiscard]] std::string_view name() const override { return "fsdp"; }
};

}  // namespace levin
