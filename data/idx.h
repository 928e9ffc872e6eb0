// The IDX reader over any source: tests give it damaged bytes in memory.
#pragma once

#include "levin/tensor.h"
#include "tensor/files/file.h"

namespace levin::data {

[[nodiscard]] Tensor read_idx(detail::Source& source);

}  // namespace levin::data
