// How checkpoint() repeats the random numbers of a region: every random op draws through reserve_random.
#pragma once

#include <vector>

#include "levin/extend.h"
#include "levin/generator.h"

namespace levin::detail {

// The ranges a region drew, written down by its first run and played back by its second.
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

// Counters for n numbers of `generator` for a tensor on `device`, or those of the first run inside a region that is run again.
[[nodiscard]] inline RandomRange reserve_random(Generator& generator, std::int64_t n, Device device) {
  RandomTape* tape = mode().tape;
  return tape ? tape->next(generator, n, device) : generator.reserve(n, device);
}

}  // namespace levin::detail
