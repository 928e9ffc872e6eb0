// Random words on the host, without ops: Philox4x32-10 by counter. kernels/device/philox.cuh has the same function in
// the language of devices; a test compares the two.
#pragma once

#include <array>
#include <cstdint>

namespace levin::detail {

using PhiloxCounter = std::array<std::uint32_t, 4>;

// Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
constexpr PhiloxCounter philox(PhiloxCounter c, std::uint64_t key) {
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

}  // namespace levin::detail
