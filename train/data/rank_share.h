// The part of a loader that this rank reads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "levin/train.h"

namespace levin::train {

// Note [Loaders of ranks]
// Ranks share the samples of a loader: the trainer makes, of the user's loader, one whose sampler gives this rank its
// part of the same order (data::distributed_sampler). A training loader is padded, so that all ranks have as many
// batches, and shuffles unless the user gave a sampler; the loaders of evaluations are not padded, so that each sample
// counts once, and a rank may have no batch. A sampler of the user's is asked on rank 0 alone, so it may be anything.
// Streams divide themselves by WorkerInfo. A loader whose sampler is distributed already stays as it is.
enum class Reads : std::uint8_t {
  training,
  in_sequence,  // training with overfit_batches
  evaluation,
};

// This rank's part. A null `loader`: the given loader serves as it is.
struct RankShare {
  std::unique_ptr<data::DataLoader> loader;
  std::int64_t whole = -1;  // samples of all ranks, without padding; -1: of combined loaders and streams
};
// Throws ConfigError for a batch sampler that cannot be divided, and for a batch size that DataShare::shards does not
// divide. `name` is for messages.
[[nodiscard]] RankShare share_of_rank(const std::shared_ptr<Strategy>& strategy, const data::DataLoader& loader,
                                      Reads reads, const std::string& name);
// Whether the loader is one rank's part, by its sampler or, of streams, by DataLoaderOptions::world.
[[nodiscard]] bool is_divided(const data::DataLoader& loader);
// The places, in the order of all ranks, of the samples that this rank reads of `whole`, unpadded.
[[nodiscard]] std::vector<std::int64_t> places_of_rank(const DataShare& share, std::int64_t whole,
                                                       std::int64_t batch_size);

// Throws ConfigError on every rank unless all have the same `mine`: the words that describe a loader.
void check_equal_on_ranks(Strategy& strategy, const std::string& name, const std::string& mine);
// What ranks compare of a loader: samples, batches, seed.
[[nodiscard]] std::string describe_share(const data::DataLoader& loader, std::int64_t whole);

}  // namespace levin::train
