#include "levin/engines.h"

#include "kernels/lib/computed_by.h"
#include "levin/error.h"

namespace levin {
namespace {

// The public names and those of kernels/ have the same values; kernels/ includes no header of a higher layer.
using kernels::ComputedBy;
using kernels::LibraryFamily;
static_assert(int(EngineChoice::own) == int(ComputedBy::own) && int(EngineChoice::first) == int(ComputedBy::first) &&
              int(EngineChoice::timed) == int(ComputedBy::timed));
static_assert(int(EngineFamily::product) == int(LibraryFamily::product) &&
              int(EngineFamily::convolution) == int(LibraryFamily::convolution) &&
              int(EngineFamily::attention) == int(LibraryFamily::attention) &&
              int(EngineFamily::batch_norm) == int(LibraryFamily::batch_norm));
LibraryFamily inner(EngineFamily family) { return static_cast<LibraryFamily>(family); }

}  // namespace

EngineChoice engine_choice(EngineFamily family) noexcept {
  return static_cast<EngineChoice>(kernels::computed_by(inner(family)));
}
EngineChoice set_engine_choice(EngineFamily family, EngineChoice choice) noexcept {
  const EngineChoice before = engine_choice(family);
  kernels::set_computed_by(inner(family), static_cast<ComputedBy>(choice));
  return before;
}

AllowTf32 allow_tf32(EngineFamily family) noexcept { return AllowTf32{kernels::tf32_allowed(inner(family))}; }
AllowTf32 set_allow_tf32(EngineFamily family, AllowTf32 allow) {
  if (family != EngineFamily::product && family != EngineFamily::convolution)
    fail<ConfigError>("set_allow_tf32: ", family == EngineFamily::attention ? "attention" : "batch_norm",
                      " multiplies no f32 numbers on tensor cores; expected product or convolution");
  const AllowTf32 before = allow_tf32(family);
  kernels::allow_tf32(inner(family), allow == AllowTf32::yes);
  return before;
}

}  // namespace levin
