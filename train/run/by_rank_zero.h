// What rank 0 does for all: files, folders and clocks, which ranks may see differently.
#pragma once

#include <string>

#include "levin/function.h"
#include "levin/train/strategy.h"

namespace levin::train {

// Calls f on rank 0 and returns, on every rank, what it returned there. What f throws is thrown on every rank: on
// others with the type of the levin::Error and the same words, else as CommError. Every rank calls it.
std::string by_rank_zero(Strategy& strategy, const Function<std::string()>& f);

}  // namespace levin::train
