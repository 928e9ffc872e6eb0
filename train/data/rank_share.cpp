#include "train/data/rank_share.h"

#include <utility>

#include "train/run/packed.h"

namespace levin::train {
namespace {

// The order of a user's sampler on rank 0, which draws it once an epoch. Every rank begins its loops in the same order.
class OfRankZero final : public data::Sampler {
 public:
  OfRankZero(std::shared_ptr<Strategy> strategy, data::SamplerRef order)
      : strategy_(std::move(strategy)), order_(std::move(order)) {}
  std::int64_t size() const override { return order_->size(); }
  std::vector<std::int64_t> indices(std::int64_t epoch) const override {
    Packed drawn;
    if (strategy_->ranks().rank == 0) {
      for (const std::int64_t i : order_->indices(epoch)) drawn.add(i);
    }
    const std::string all = strategy_->from_rank_zero(drawn.bytes());
    std::vector<std::int64_t> order;
    order.reserve(all.size() / sizeof(std::int64_t));
    for (Unpacked in(all); !in.empty();) order.push_back(in.take<std::int64_t>());
    return order;
  }
  bool shuffles() const override { return order_->shuffles(); }

 private:
  std::shared_ptr<Strategy> strategy_;
  data::SamplerRef order_;
};

data::DistributedSamplerOptions options_of(const DataShare& share, bool pad) {
  return {.rank = share.index, .world = share.replicas, .shuffle = false, .pad = pad, .shards = share.shards};
}

void tell_of_shuffle(const std::string& name) {
  warn("I-DATA-SHUFFLE", WarningCategory::info,
       "the " + name +
           " is read in the order of its dataset, and ranks that share a training shuffle it; to keep the order give "
           ".sampler = data::sequential_sampler(n)");
}

std::unique_ptr<data::DataLoader> part_of(const std::shared_ptr<Strategy>& strategy, const data::DataLoader& loader,
                                          Reads reads, const std::string& name, std::int64_t* whole) {
  const DataShare share = strategy->share();
  data::DataLoaderOptions o = loader.options();
  if (loader.stream()) {
    if (share.shards > 1 && reads != Reads::evaluation)
      fail<ConfigError>("fit: the ", name, " reads streams, which ", share.shards,
                        " shards a rank cannot divide; use a Dataset, or a strategy without shards");
    o.rank = share.index;
    o.world = share.replicas;
    return std::make_unique<data::DataLoader>(loader.stream(), std::move(o));
  }
  data::DistributedSamplerOptions s = options_of(share, reads != Reads::evaluation);
  data::SamplerRef order = o.batch_sampler ? o.batch_sampler->order() : o.sampler;
  s.batch_size = o.batch_sampler ? o.batch_sampler->batch_size() : o.batch_size.value_or(1);
  if (o.batch_sampler && !order)
    fail<ConfigError>("fit: the ", name, " has a batch sampler of its own, and ", share.replicas,
                      " ranks cannot divide its batches; override BatchSampler::order and over, or set "
                      "use_distributed_sampler = false and give each rank its batches by Trainer::global_rank");
  if (s.shards > 1 && s.batch_size % s.shards != 0)
    fail<ConfigError>("fit: the ", name, " has batches of ", s.batch_size, " samples, and each rank reads for ",
                      s.shards, " shards, expected a multiple of that");
  s.batch_size = std::max<std::int64_t>(1, s.batch_size);
  const std::int64_t n = order ? order->size() : loader.dataset()->size();
  if (whole) *whole = n;
  data::SamplerRef mine;
  if (order) {
    mine = distributed_sampler(std::make_shared<OfRankZero>(strategy, std::move(order)), s);
  } else {
    s.shuffle = reads != Reads::in_sequence && (o.shuffle || reads == Reads::training);
    s.seed = o.generator.seed();
    if (s.shuffle && !o.shuffle) tell_of_shuffle(name);
    mine = distributed_sampler(n, s);
  }
  o.shuffle = false;
  if (o.batch_sampler) {
    o.batch_sampler = o.batch_sampler->over(std::move(mine));
    if (!o.batch_sampler)
      fail<ConfigError>("fit: the batch sampler of the ", name,
                        " has an order() and no over(), by which it would divide that of a rank; override both");
  } else {
    o.sampler = std::move(mine);
  }
  return std::make_unique<data::DataLoader>(loader.dataset(), std::move(o));
}

}  // namespace

bool is_divided(const data::DataLoader& loader) {
  for (std::size_t k = 0; k < loader.parts(); ++k) {
    if (is_divided(loader.part(k))) return true;
  }
  if (loader.parts() > 0) return false;
  const data::DataLoaderOptions& o = loader.options();
  return o.world > 1 || (o.sampler && o.sampler->is_distributed()) ||
         (o.batch_sampler && o.batch_sampler->is_distributed());
}

RankShare share_of_rank(const std::shared_ptr<Strategy>& strategy, const data::DataLoader& loader, Reads reads,
                        const std::string& name) {
  const DataShare share = strategy->share();
  if (share.replicas * share.shards == 1 || is_divided(loader)) return {};
  RankShare out;
  if (loader.parts() == 0) {
    out.loader = part_of(strategy, loader, reads, name, &out.whole);
    return out;
  }
  std::vector<std::unique_ptr<data::DataLoader>> parts;
  std::vector<data::NamedLoader> named;
  for (std::size_t k = 0; k < loader.parts(); ++k) {
    const std::string part = name + " (part \"" + loader.part_name(k) + "\")";
    parts.push_back(part_of(strategy, loader.part(k), reads, part, nullptr));
    named.push_back({.name = loader.part_name(k), .loader = parts.back().get()});
  }
  out.loader = std::make_unique<data::DataLoader>(data::combine(named, loader.combined_by()));
  return out;
}

std::vector<std::int64_t> places_of_rank(const DataShare& share, std::int64_t whole, std::int64_t batch_size) {
  data::DistributedSamplerOptions o = options_of(share, /*pad=*/false);
  o.batch_size = batch_size;
  return data::distributed_sampler(whole, o)->indices(0);
}

std::string describe_share(const data::DataLoader& loader, std::int64_t whole) {
  std::string words;
  for (std::size_t k = 0; k < loader.parts(); ++k)
    words += (k ? "; " : "") + loader.part_name(k) + ": " + describe_share(loader.part(k), -1);
  if (loader.parts() > 0) return words;
  const data::DataLoaderOptions& o = loader.options();
  words = whole >= 0 ? text(whole) + " samples" : std::string();
  if (loader.dataset() && whole < 0) words = text(loader.dataset()->size()) + " samples in its dataset";
  if (o.batch_size) words += ", batch_size " + text(*o.batch_size);
  if (loader.shuffles() && !o.batch_sampler) words += ", seed " + text(o.generator.seed());
  return words;
}

void check_equal_on_ranks(Strategy& strategy, const std::string& name, const std::string& mine) {
  const std::vector<std::string> all = strategy.gather(mine);
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (all[r] != all[0])
      fail<ConfigError>("the ", name, " differs between ranks: rank 0 has ", all[0], "; rank ", r, " has ", all[r],
                        "; give all ranks the same dataset, options and seed");
  }
}

}  // namespace levin::train
