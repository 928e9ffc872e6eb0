// The accelerator that the options name, and options of the engines, which hold during a stage.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "levin/engines.h"
#include "levin/train/options.h"

namespace levin::train {

[[nodiscard]] std::string lower(std::string_view text);  // ASCII alone

// Throws ConfigError, which lists the devices that this build has.
[[noreturn]] void fail_unsupported(const std::string& option, const std::string& accelerator);
// Throws ConfigError for an unknown name, for an accelerator that this library has no code for, and for one that cannot
// be used on this machine.
void check_accelerator_name(std::string_view name);
// The device that TrainerOptions::accelerator names; nullopt for auto.
[[nodiscard]] std::optional<Device> accelerator_device(const TrainerOptions& options);
// Throws ConfigError if `device`, which has the parameters, is another one than the accelerator. `call` is for the
// message.
void check_accelerator(const TrainerOptions& options, const char* call, Device device);

// Sets what benchmark and float32_matmul_precision ask of the engines, and restores the engines at the end of the
// stage. A family whose choice is our own kernels keeps them.
class EngineScope {
 public:
  explicit EngineScope(const TrainerOptions& options) : tf32_(allow_tf32(EngineFamily::product)) {
    for (const EngineFamily family : kFamilies) {
      EngineChoice& before = choices_[std::size_t(family)] = engine_choice(family);
      if (options.benchmark && before != EngineChoice::own)
        set_engine_choice(family, *options.benchmark ? EngineChoice::timed : EngineChoice::first);
    }
    if (const auto asked = options.float32_matmul_precision)
      set_allow_tf32(EngineFamily::product, AllowTf32{*asked == MatmulPrecision::high});
  }
  ~EngineScope() {
    for (const EngineFamily family : kFamilies) set_engine_choice(family, choices_[std::size_t(family)]);
    set_allow_tf32(EngineFamily::product, tf32_);
  }
  EngineScope(const EngineScope&) = delete;
  EngineScope& operator=(const EngineScope&) = delete;

 private:
  static constexpr std::array kFamilies{EngineFamily::product, EngineFamily::convolution, EngineFamily::attention,
                                        EngineFamily::batch_norm};
  std::array<EngineChoice, kFamilies.size()> choices_{};
  AllowTf32 tf32_;
};

}  // namespace levin::train
