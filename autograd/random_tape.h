// How checkpoint() repeats a region's random numbers: every random op draws through reserve_random.
#pragma once

#include <vector>

#include "levin/extend.h"
#include "levin/generator.h"

namespace levin::detail {

// The ranges that a region drew: its first run records them, its second run replays them.
class RandomTape {
 public:
  RandomRange next(Generator& generator, std::int64_t n, Device device) {
    if (!playing_) return ranges_.emplace_back(generator.reserve(n, device));
    if (position_ == ranges_.size()) {
      fail<StateError>(
          "checkpoint: the second run draws more random numbers than the first; the function must be pure");
    }
    return ranges_[position_++];
  }
  void play() {
    playing_ = true;
    position_ = 0;
  }

 private:
  std::vector<RandomRange> ranges_;
  std::size_t position_ = 0;
  bool playing_ = false;
};

// Counters for n numbers of `generator` for a tensor on `device`. Where a region runs again, the counters of its first
// run.
[[nodiscard]] inline RandomRange reserve_random(Generator& generator, std::int64_t n, Device device) {
  RandomTape* tape = mode().tape;
  return tape ? tape->next(generator, n, device) : generator.reserve(n, device);
}

}  // namespace levin::detail
