// Streams of random words for samplers and drawn data, by counter (tensor/random/philox.h).
#pragma once

#include <array>
#include <cstdint>

#include "tensor/random/philox.h"

namespace levin::data {

using Counter = levin::detail::PhiloxCounter;
using levin::detail::bounded;
using levin::detail::philox;

// The use of a stream of words: the last word of its counters, so that no two uses share numbers.
enum class Purpose : std::uint32_t {
  shuffle = 0x53485546u,
  sample = 0x53414d50u,
  weights = 0x57454947u,
  split = 0x53504c54u
};

// Word i of the stream of (seed, epoch, purpose); blocks of four are kept, so reading in order costs a quarter block.
class Words {
 public:
  Words(std::uint64_t seed, std::int64_t epoch, Purpose purpose) : seed_(seed), epoch_(epoch), purpose_(purpose) {}
  std::uint32_t operator()(std::uint64_t i) {
    const std::uint64_t block = i >> 2;
    if (block != at_) {
      values_ = philox({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                        static_cast<std::uint32_t>(epoch_), static_cast<std::uint32_t>(purpose_)},
                       seed_);
      at_ = block;
    }
    return values_[i & 3];
  }

 private:
  std::uint64_t seed_;
  std::int64_t epoch_;
  Purpose purpose_;
  std::uint64_t at_ = ~std::uint64_t{0};
  Counter values_{};
};

}  // namespace levin::data
