// The error of an undefined tensor that is used, as long as nobody has said by what.
#pragma once

#include "levin/error.h"

namespace levin::detail {

struct UndefinedTensor final : StateError {
  using StateError::StateError;
};

}  // namespace levin::detail
