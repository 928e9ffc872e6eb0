// Options that are text, and options from text.
#pragma once

#include <optional>
#include <string_view>

#include "levin/engines.h"
#include "levin/train/options.h"

namespace levin::train {

// Throws ConfigError for a name of no accelerator, of one that this library has no code for, and of one that can not be used.
void check_accelerator_name(std::string_view name);
// Throws ConfigError when the module is elsewhere.
void check_accelerator(const TrainerOptions& options, const char* call, Device device);

// The library's engines as TrainerOptions::benchmark asks for, for the length of a stage.
class EngineScope {
 public:
  explicit EngineScope(std::optional<bool> benchmark) {
    if (benchmark) before_ = set_engine_choice(*benchmark ? EngineChoice::timed : EngineChoice::first);
  }
  ~EngineScope() {
    if (before_) set_engine_choice(*before_);
  }
  EngineScope(const EngineScope&) = delete;
  EngineScope& operator=(const EngineScope&) = delete;

 private:
  std::optional<EngineChoice> before_;
};

}  // namespace levin::train
