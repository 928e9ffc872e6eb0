// Plans the memory of a step by running it on shapes alone.
#pragma once

#include <optional>

#include "levin/train/tuner.h"
#include "train/run/evaluation.h"

namespace levin::train {

// Note [Plans]
// Runs the run's own step with parameters, buffers and batch on meta, where an op checks, counts its result in a ledger
// and runs no kernel. The ledger counts as the allocator of `as` does. So a plan lacks only the memory that kernels
// take for themselves: a plan that exceeds the memory is right, one that fits must be tried. The plan runs two batches,
// so that the gradients of the first are there in the forward pass of the second; with accumulation three. Updates do
// not run: they take no memory except the optimizer's state, which is in the ledger from the start. Module and run are
// then restored.
//
// `batch`: as the loader gives it. `loop`: unset is a step of fit. Throws what the step throws, UnsupportedError if it
// reads values.
[[nodiscard]] MemoryPlan plan_step(Trainer::Run& run, std::optional<Loop> loop, const Batch& batch, Device as);

// Bytes in use on `device` at the peak of the planned step, with everything that is there before it.
[[nodiscard]] std::int64_t planned_use(const Trainer::Run& run, const MemoryPlan& plan, Device device);

}  // namespace levin::train
