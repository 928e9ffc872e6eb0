// What a thread is at work on, and errors that the device reports later than the call that caused them.
#pragma once

#include <cstdint>
#include <string>

#include "levin/op_info.h"

namespace levin::detail {

// The number that stands for a module's path, from 1 on, the same for equal paths; 0 for "". Texts are kept until the
// process ends: a recorded op names its module when that is gone.
[[nodiscard]] std::uint32_t path_id(const std::string& path);
[[nodiscard]] const std::string& path_text(std::uint32_t id) noexcept;

// The innermost call of a module in this thread; returns the one before.
const ModuleCall* set_module_call(const ModuleCall* now) noexcept;
// Its path; 0 outside of calls, and in one of a root, which has none, unless another module calls the root.
[[nodiscard]] std::uint32_t module_path_id() noexcept;

// This thread is at work for the module of that path while this lives: its errors begin with it.
class InModule {
 public:
  explicit InModule(std::uint32_t path) noexcept : here_{.path = path} { here_.outer = set_module_call(&here_); }
  ~InModule() { set_module_call(here_.outer); }
  InModule(const InModule&) = delete;
  InModule& operator=(const InModule&) = delete;

 private:
  ModuleCall here_;
};

// What the message of a CUDA error adds: codes 700 to 719 are of work that ran, and another call than the one that started
// it may have been told. Empty for others and when launches block; see Note [Blocking launches].
[[nodiscard]] std::string late_error_hint(int code);
// Whether a code of CUDA's is one of those that end a recording and leave the device whole.
[[nodiscard]] bool breaks_recording(int code) noexcept;

}  // namespace levin::detail
