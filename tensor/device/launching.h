// What a thread is executing, and errors that the device reports later than the call that caused them.
#pragma once

#include <cstdint>
#include <string>

#include "levin/op_info.h"

namespace levin::detail {

// The number of a module's path, from 1 on, the same for equal paths; 0 for "". The texts live until the process ends:
// a recorded op names its module after the module is destroyed.
[[nodiscard]] std::uint32_t path_id(const std::string& path);
[[nodiscard]] const std::string& path_text(std::uint32_t id) noexcept;

// The innermost call of a module in this thread; returns the one before.
const ModuleCall* set_module_call(const ModuleCall* now) noexcept;
// The path of that call; 0 outside of calls, and in a call of a root, which has no path, unless another module calls
// it.
[[nodiscard]] std::uint32_t module_path_id() noexcept;

// While it lives, this thread works for the module of that path, and its errors begin with the path.
class InModule {
 public:
  explicit InModule(std::uint32_t path) noexcept : here_{.path = path} { here_.outer = set_module_call(&here_); }
  ~InModule() { set_module_call(here_.outer); }
  InModule(const InModule&) = delete;
  InModule& operator=(const InModule&) = delete;

 private:
  ModuleCall here_;
};

// What the message of a CUDA error adds. Codes 700 to 719 belong to work that ran, and a later call than the launch may
// report them. Empty for other codes and for blocking launches; see Note [Blocking launches].
[[nodiscard]] std::string late_error_hint(int code);
// Whether a code of CUDA's ends a recording and leaves the device whole.
[[nodiscard]] bool breaks_recording(int code) noexcept;

}  // namespace levin::detail
