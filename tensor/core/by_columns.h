// Matrices that lie column by column in memory, as t(x) of a dense x does.
#pragma once

#include "levin/tensor.h"

namespace levin::detail {

// Whether m is a matrix whose columns follow each other without gaps, and whose rows do not.
[[nodiscard]] inline bool lies_by_columns(const Tensor& m) {
  return m.rank() == 2 && m.size(0) > 1 && m.size(1) > 1 && m.strides()[0] == 1 && m.strides()[1] == m.size(0);
}

}  // namespace levin::detail
