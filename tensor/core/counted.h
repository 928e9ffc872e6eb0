// Counts of the traffic between host and device, which levin/sync.h reports.
#pragma once

#include <cstddef>

#include "levin/sync.h"
#include "tensor/device/runtime.h"

namespace levin::detail {

void count_copy(runtime::Copy kind, std::size_t bytes) noexcept;  // a copy that this thread enqueues
void count_wait() noexcept;                                       // a wait of this thread for a device

}  // namespace levin::detail
