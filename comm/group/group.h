// One collective on its way from ProcessGroup's checks to a backend, and the backends.
#pragma once

#include <cstdint>
#include <memory>
#include <source_location>
#include <string_view>

#include "comm/job/plan.h"
#include "comm/job/rendezvous.h"
#include "levin/comm.h"

namespace levin::dist {

struct ProcessGroup::Call {
  Collective op;
  Tensor out, in;  // in place: the same tensor
  ReduceOp reduce = ReduceOp::sum;
  ReduceOrder order = ReduceOrder::fast;
  int peer = 0;  // the root, or the other rank of a message
  int tag = 0;
  // Elements: of the tensor for all_reduce, broadcast, send and recv; of one rank's slice for all_gather,
  // reduce_scatter and all_to_all.
  std::int64_t count = 0;
  Entry entry;  // without the group
  std::source_location where;
  bool waits = false;  // the caller waits at once: the work runs in its thread where the backend has threads
};

// ---- The backends. Each connects all ranks of the rendezvous and throws CommError.

// CPU tensors. backend: "auto" and "gloo" (shared memory within a host, Gloo between hosts), "shm" (one host),
// "gloo:all" (Gloo within a host, too). Throws ConfigError for another name, for shm on several hosts and where
// liblevin_gloo.so is missing.
[[nodiscard]] std::shared_ptr<ProcessGroup> make_cpu_group(std::shared_ptr<Rendezvous> ranks, std::string_view backend);

}  // namespace levin::dist
