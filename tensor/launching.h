// Errors that the device reports later than the call that caused them.
#pragma once

#include <string>

namespace levin::detail {

// What the message of a CUDA error adds: codes 700 to 719 are of work that ran, and another call than the one that started
// it may have been told. Empty for others and when launches block; see Note [Blocking launches].
[[nodiscard]] std::string late_error_hint(int code);

}  // namespace levin::detail
