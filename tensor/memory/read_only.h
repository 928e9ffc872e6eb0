// Memory that is mapped read-only: a write to it ends the process, so writers ask first.
#pragma once

#include <cstddef>

#include "levin/tensor.h"

namespace levin::detail {

// From now on, until release_read_only, these bytes are read-only.
void mark_read_only(const std::byte* begin, std::size_t bytes);
void release_read_only(const std::byte* begin);
// Throws StateError `op: ...` when x lies in such memory. Costs a load where there is none.
LEVIN_API void check_writable(const char* op, const Tensor& x);

}  // namespace levin::detail
