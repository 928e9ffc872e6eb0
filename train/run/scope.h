// Guards that set something for a scope and restore it at the end.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "levin/memory.h"

namespace levin::train {

// Calls `enter`, and `leave` at the end of the scope, also if `enter` throws.
template <class Enter, class Leave>
class Scope {
 public:
  Scope(Enter enter, Leave leave) : leave_(std::move(leave)) {
    try {
      enter();
    } catch (...) {
      leave_();
      throw;
    }
  }
  ~Scope() { leave_(); }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  Leave leave_;
};

// Sets a variable, and restores it at the end of the scope.
template <class T>
class Restore {
 public:
  Restore(T& variable, T value) : variable_(variable), before_(std::exchange(variable, std::move(value))) {}
  ~Restore() { variable_ = std::move(before_); }
  Restore(const Restore&) = delete;
  Restore& operator=(const Restore&) = delete;

 private:
  T& variable_;
  T before_;
};

// Limits the memory in use on a device for a scope. `bytes`: unset is no limit.
class MemoryLimit {
 public:
  MemoryLimit(Device device, std::optional<std::int64_t> bytes)
      : device_(device), before_(set_memory_limit(device, bytes)) {}
  ~MemoryLimit() { (void)set_memory_limit(device_, before_); }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

 private:
  Device device_;
  std::optional<std::int64_t> before_;
};

}  // namespace levin::train
