// Permutations shared by samplers and splits.
#pragma once

#include <cstdint>
#include <vector>

#include "data/random.h"
#include "levin/data.h"

namespace levin::data {

// Fisher-Yates from the end: position i swaps with one of 0 .. i, drawn by word i of the stream. n <= 2^32.
[[nodiscard]] std::vector<std::int64_t> permutation(std::int64_t n, std::uint64_t seed, std::int64_t epoch,
                                                    Purpose purpose);

}  // namespace levin::data
