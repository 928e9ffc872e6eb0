// Which engine of the vendor's library computes an op, in builds with CUDA.
#pragma once

#include <cstdint>

#include "levin/export.h"

namespace levin {

// first: the one that the library's heuristic names first, so that two processes give the same bits. timed: the fastest of
// the first few, timed at the first call of a shape and never while a graph is recorded. Of both kinds only those that repeat
// their bits are asked.
enum class EngineChoice : std::uint8_t { first, timed };

// From now on, for the ops that the library computes (convolutions by default). Of the process; returns what was chosen before
// for convolutions.
LEVIN_API EngineChoice set_engine_choice(EngineChoice choice) noexcept;

}  // namespace levin
