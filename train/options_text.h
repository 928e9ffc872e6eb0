// Options that are text, and options from text.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

#include "levin/engines.h"
#include "levin/train/options.h"

namespace levin::train {

// Throws ConfigError for a name of no accelerator, of one that this library has no code for, and of one that can not be used.
void check_accelerator_name(std::string_view name);
// Throws ConfigError when the module is elsewhere.
void check_accelerator(const TrainerOptions& options, const char* call, Device device);

// The library's engines as TrainerOptions::benchmark asks for, for the length of a stage; then each family has its choice again.
class EngineScope {
 public:
  explicit EngineScope(std::optional<bool> benchmark) {
    if (!benchmark) return;
    for (const EngineFamily family : kFamilies) before_[std::size_t(family)] = engine_choice(family);
    set_engine_choice(*benchmark ? EngineChoice::timed : EngineChoice::first);
    chosen_ = true;
  }
  ~EngineScope() {
    if (!chosen_) return;
    for (const EngineFamily family : kFamilies) set_engine_choice(family, before_[std::size_t(family)]);
  }
  EngineScope(const EngineScope&) = delete;
  EngineScope& operator=(const EngineScope&) = delete;

 private:
  static constexpr std::array kFamilies{EngineFamily::product, EngineFamily::convolution, EngineFamily::attention,
                                        EngineFamily::batch_norm};
  std::array<EngineChoice, kFamilies.size()> before_{};
  bool chosen_ = false;
};

}  // namespace levin::train
