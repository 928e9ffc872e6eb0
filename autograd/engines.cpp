#include "levin/engines.h"

#include <initializer_list>

#include "kernels/computed_by.h"

namespace levin {

EngineChoice set_engine_choice(EngineChoice choice) noexcept {
  using enum kernels::ComputedBy;
  using enum kernels::LibraryFamily;
  const bool timed_before = kernels::computed_by(convolution) == timed;
  for (const kernels::LibraryFamily family : {convolution, attention, batch_norm}) {
    if (kernels::computed_by(family) != own)
      kernels::set_computed_by(family, choice == EngineChoice::timed ? timed : first);
  }
  return timed_before ? EngineChoice::timed : EngineChoice::first;
}

}  // namespace levin
