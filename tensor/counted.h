// What is counted of the traffic between the host and a device; read by levin/sync.h.
#pragma once

#include <cstddef>

#include "levin/sync.h"
#include "tensor/runtime.h"

namespace levin::detail {

void count_copy(runtime::Copy kind, std::size_t bytes) noexcept;  // that this thread enqueues
void count_wait() noexcept;                                       // of this thread for a device

}  // namespace levin::detail
