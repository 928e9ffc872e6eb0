// What rank 0 does for all: files, folders and clocks, which ranks may see differently. What all ranks do, or none.
#pragma once

#include <string>

#include "levin/function.h"
#include "levin/train/strategy.h"

namespace levin::train {

// Calls f on rank 0 and returns, on every rank, what it returned there. What f throws is thrown on every rank: on
// others with the type of the levin::Error and the same words, else as CommError. Every rank calls it.
std::string by_rank_zero(Strategy& strategy, const Function<std::string()>& f);
// Calls f, which runs what may fail on one rank alone, such as hooks of the user, and makes no collective that would
// then lack a rank. If it throws on any rank, all ranks throw the error of the first of them, with its type and words
// as by_rank_zero does. Every rank calls it.
void by_all_ranks(Strategy& strategy, const Function<void()>& f);

}  // namespace levin::train
