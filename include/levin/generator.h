// Random numbers as values: a Generator is an argument, never a global.
#pragma once

#include <cstdint>
#include <string_view>

#include "levin/export.h"

namespace levin {

// A range of Philox4x32-10 counters: element i of a draw uses counter `offset + i / 4` under key `seed`.
struct RandomRange {
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;
};

// A stream of random numbers (Philox4x32-10; Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
// State is {seed, offset}; the same state gives the same bits on every device, thread count and CPU level.
class LEVIN_API Generator {
 public:
  explicit Generator(std::uint64_t seed) : state_{seed, 0} {}

  // An independent stream, a pure function of this generator's seed and the name (not of its offset).
  [[nodiscard]] Generator fork(std::string_view name) const;

  // Takes the counters for n numbers; the next call gets the ones behind. n >= 0.
  RandomRange reserve(std::int64_t n);

  [[nodiscard]] RandomRange state() const { return state_; }
  void set_state(RandomRange state) { state_ = state; }
  [[nodiscard]] std::uint64_t seed() const { return state_.seed; }

 private:
  RandomRange state_;
};

}  // namespace levin
