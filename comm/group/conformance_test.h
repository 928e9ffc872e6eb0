// What every backend must do, as one list of checks. They throw instead of using doctest, because a rank may be a
// process of its own.
#pragma once

#include <memory>

#include "levin/comm.h"
#include "levin/function.h"

namespace levin::test {

using RankBody = Function<void(const std::shared_ptr<dist::ProcessGroup>&)>;

// Called by every rank of a group; tensors on `device`. Throws std::runtime_error for a wrong value.
void check_collectives(dist::ProcessGroup& group, Device device);  // all collectives, dtypes and sizes
void check_messages(dist::ProcessGroup& group, Device device);     // needs two ranks
void check_overlap(dist::ProcessGroup& group, Device device);      // several works under way
void check_split(dist::ProcessGroup& group, Device device);
void check_texts(dist::ProcessGroup& group);
// The last rank calls something else; every rank must get a CommError with both calls.
enum class Mismatch { count, dtype, reduction, operation, root, line };
void check_mismatch(dist::ProcessGroup& group, Mismatch kind);
// The last rank aborts the group while the others wait.
void check_abort(dist::ProcessGroup& group, Device device = Device::cpu());

// The bits of 50 sums of `count` values, for comparisons between backends.
[[nodiscard]] std::string hash_of_sums(dist::ProcessGroup& group, DType dtype, std::int64_t count,
                                       dist::ReduceOrder order);

}  // namespace levin::test
