// What a checkpoint of several ranks has besides one process's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "train/checkpoint/content.h"

namespace levin::train {

// Note [Checkpoints of ranks]
// Rank 0 writes one file for all. What ranks have together is merged: the sums of an open epoch, the states of metrics,
// the gradients of an open window (their average, which every rank then has). What each has of its own is a tensor of
// the rank, i64: levin.rank.R.generators, a row {seed, offset} for each generator of the module in the order of their
// names, where ranks draw different numbers; and levin.rank.R.position, {batch, absent batches, batches ahead...},
// where the loaders of ranks stand at different places. levin.rank.R.strategy.NAME is what the strategy of the rank
// has, such as what PowerSGD left out of its gradients; a run with another number of ranks leaves it out.
//
// The position of an epoch is a number of global batches, so another number of ranks with the same global batch
// continues at the same sample. With another global batch the rest of the epoch is left out, with a warning.

// Note [Random numbers of ranks]
// Ranks begin with equal modules, and then draw different numbers, such as dropout's, for their different samples: rank
// 0 those of one process, rank R those of the fork "rank R". A strategy whose step runs several passes
// (Strategy::fuses_backward) forks for each of them by itself, so there all ranks have the same generators. A file of
// one process, and one that rank 0 wrote alone, has the generators of rank 0, of which other ranks take forks again.

// The state of a generator for this rank, of that of rank 0.
[[nodiscard]] RandomRange random_numbers_of_rank(const Strategy& strategy, RandomRange first);

// What the strategy of each rank has of its own (Strategy::state): on rank 0 that of all, under the prefixes of ranks.
// All ranks call it. In a folder each rank writes its own.
[[nodiscard]] std::string strategy_prefix(int rank);  // levin.rank.R.strategy.
[[nodiscard]] NamedTensors strategy_states(const Trainer::Run& run);

// What one rank has of its own.
struct RankState {
  std::vector<std::pair<std::string, RandomRange>> generators;  // sorted by name
  std::int64_t batch = 0, absent = 0;
  std::vector<std::int64_t> ahead;

  friend bool operator==(const RankState& a, const RankState& b);
};
[[nodiscard]] RankState rank_state_of(const Trainer::Run& run);
// Every rank's, in the order of ranks. All ranks call it.
[[nodiscard]] std::vector<RankState> states_of_ranks(const Trainer::Run& run);
// Adds the tensors of the ranks, unless all ranks have the same.
void append_rank_states(NamedTensors& tensors, const std::vector<RankState>& all);
// What this rank gets: its own of the file; of a file without it, that of the file's rank 0, with random numbers by
// random_numbers_of_rank. Throws FormatError for a damaged entry.
[[nodiscard]] RankState rank_state_in(const Checkpoint& file, const Strategy& strategy);

// The states of the tree's metrics, of all ranks together. All ranks call it.
[[nodiscard]] NamedTensors merged_metric_states(const Trainer::Run& run);

}  // namespace levin::train
