// Random numbers on the host for samplers and drawn data, without ops: Philox4x32-10 by counter.
// The same function stands in kernels/device/philox.cuh, which this layer may not see; a test holds them together.
#pragma once

#include <array>
#include <cstdint>

namespace levin::data {

using Counter = std::array<std::uint32_t, 4>;

// Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
constexpr Counter philox(Counter c, std::uint64_t key) {
  auto key0 = static_cast<std::uint32_t>(key), key1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xd2511f53u} * c[0], p1 = std::uint64_t{0xcd9e8d57u} * c[2];
    c = {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ key0, static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ key1, static_cast<std::uint32_t>(p0)};
    key0 += 0x9e3779b9u;
    key1 += 0xbb67ae85u;
  }
  return c;
}

// 0 .. n-1 from a random word (multiply and shift; n <= 2^32).
constexpr std::uint64_t bounded(std::uint32_t word, std::uint64_t n) { return (word * n) >> 32; }

// What a stream of words is for: the last word of its counters, so that no two uses share numbers.
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
