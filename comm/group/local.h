// Ranks that are threads of one process: for several devices of one process, for tests and studies.
#pragma once

#include <memory>
#include <vector>

#include "levin/comm.h"
#include "levin/function.h"

namespace levin::dist {

struct LocalOptions {
  double timeout = 1800;  // seconds
};
// The groups of `size` ranks that are threads of this process; element r is for the thread of rank r. backend() is
// "local". Waits end with CommError when abort() is called on one of them, or when the timeout is over.
[[nodiscard]] std::vector<std::shared_ptr<ProcessGroup>> make_local_groups(int size, const LocalOptions& options = {});

// Runs body(group of rank r) on `size` threads, with the thread modes of the caller, and returns when all have ended.
// The first exception aborts the groups of the others and is rethrown. A CommError that another rank's failure caused
// yields to the exception of that rank, also where that one comes later.
void run_local(int size, const Function<void(const std::shared_ptr<ProcessGroup>&)>& body,
               const LocalOptions& options = {});

}  // namespace levin::dist
