// What a thread is at work on, and errors that the device reports later than the call that caused them.
#pragma once

#include <string>

#include "levin/op_info.h"

namespace levin::detail {

// The innermost call of a module in this thread; returns the one before.
const ModuleCall* set_module_call(const ModuleCall* now) noexcept;
// Its path, "layers.0.fc1"; empty outside of calls, and in one of a root, which has none.
[[nodiscard]] std::string module_path();

// What the message of a CUDA error adds: codes 700 to 719 are of work that ran, and another call than the one that started
// it may have been told. Empty for others and when launches block; see Note [Blocking launches].
[[nodiscard]] std::string late_error_hint(int code);

}  // namespace levin::detail
