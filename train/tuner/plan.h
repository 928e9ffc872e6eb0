// A step on shapes alone.
#pragma once

#include <optional>

#include "levin/train/tuner.h"
#include "train/run/run.h"

namespace levin::train {

// Note [Plans]
// The run's own step with parameters, buffers and batch on meta, where an op checks, counts its result in a ledger and runs no
// kernel. The ledger counts as the allocator of `as` does, so that the plan of a step differs from what memory_stats shows of it by
// what kernels take for themselves, which it lacks: a plan that is too large is no mistake, one that fits is to be tried. Two
// batches, so that the first one's gradients are there in the second one's forward; with accumulation three. Updates are not run:
// they take no memory but the state, which stands in the ledger from the start. Module and run are put back.
//
// `batch` as the loader gives it; `loop` none: a step of fit. Throws what the step throws, UnsupportedError where it reads values.
[[nodiscard]] MemoryPlan plan_step(Trainer::Run& run, std::optional<Trainer::Run::Loop> loop, const Batch& batch,
                                   Device as);

// Bytes that `device` will have in use at the peak of the planned step, with everything that is there now.
[[nodiscard]] std::int64_t planned_use(const Trainer::Run& run, const MemoryPlan& plan, Device device);

}  // namespace levin::train
