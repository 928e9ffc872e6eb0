// The error for a use of an undefined tensor, before a caller adds the name of the op.
#pragma once

#include "levin/error.h"

namespace levin::detail {

struct UndefinedTensor final : StateError {
  using StateError::StateError;
};

}  // namespace levin::detail
