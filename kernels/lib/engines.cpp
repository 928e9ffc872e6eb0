#include "levin/engines.h"

#include <atomic>
#include <cstddef>

#include "levin/error.h"

namespace levin {
namespace {

struct Engine {
  std::atomic<EngineChoice> choice;
  std::atomic<AllowTf32> tf32 = AllowTf32::no;
};
// In the order of EngineFamily.
Engine engines[] = {{EngineChoice::first}, {EngineChoice::first}, {EngineChoice::first}, {EngineChoice::own}};

Engine& engine_of(EngineFamily family) { return engines[static_cast<std::size_t>(family)]; }

}  // namespace

EngineChoice engine_choice(EngineFamily family) noexcept {
  return engine_of(family).choice.load(std::memory_order_relaxed);
}
EngineChoice set_engine_choice(EngineFamily family, EngineChoice choice) noexcept {
  return engine_of(family).choice.exchange(choice, std::memory_order_relaxed);
}

AllowTf32 allow_tf32(EngineFamily family) noexcept { return engine_of(family).tf32.load(std::memory_order_relaxed); }
AllowTf32 set_allow_tf32(EngineFamily family, AllowTf32 allow) {
  if (family != EngineFamily::product && family != EngineFamily::convolution)
    fail<ConfigError>("set_allow_tf32: ", family == EngineFamily::attention ? "attention" : "batch_norm",
                      " multiplies no f32 numbers on tensor cores; expected product or convolution");
  return engine_of(family).tf32.exchange(allow, std::memory_order_relaxed);
}

}  // namespace levin
