#include <algorithm>
#include <cmath>
#include <numeric>

#include "data/random.h"
#include "data/sampler.h"

namespace levin::data {

Sampler::~Sampler() = default;
BatchSampler::~BatchSampler() = default;
BatchSamplerRef BatchSampler::over(SamplerRef) const { return nullptr; }

std::vector<std::int64_t> permutation(std::int64_t n, std::uint64_t seed, std::int64_t epoch, Purpose purpose) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  Words words(seed, epoch, purpose);
  for (std::int64_t i = n - 1; i >= 1; --i) {
    const auto at = static_cast<std::size_t>(i);
    std::swap(order[at], order[bounded(words(at), at + 1)]);
  }
  return order;
}

namespace {

void check_size(std::int64_t n, const char* what) {
  // The words that draw an index have 32 bits.
  if (n < 0 || n > (std::int64_t{1} << 32)) fail<ConfigError>(what, ": size is ", n, ", expected 0 to 2^32");
}

class Sequential final : public Sampler {
 public:
  explicit Sequential(std::int64_t n) : n_(n) {}
  std::int64_t size() const override { return n_; }
  std::vector<std::int64_t> indices(std::int64_t) const override {
    std::vector<std::int64_t> order(static_cast<std::size_t>(n_));
    std::iota(order.begin(), order.end(), std::int64_t{0});
    return order;
  }

 private:
  std::int64_t n_;
};

class Random final : public Sampler {
 public:
  Random(std::int64_t n, std::uint64_t seed) : n_(n), seed_(seed) {}
  std::int64_t size() const override { return n_; }
  std::vector<std::int64_t> indices(std::int64_t epoch) const override {
    return permutation(n_, seed_, epoch, Purpose::shuffle);
  }
  bool shuffles() const override { return true; }

 private:
  std::int64_t n_;
  std::uint64_t seed_;
};

class Weighted final : public Sampler {
 public:
  Weighted(std::vector<double> sums, std::int64_t samples, std::uint64_t seed)
      : sums_(std::move(sums)), samples_(samples), seed_(seed) {}
  std::int64_t size() const override { return samples_; }
  std::vector<std::int64_t> indices(std::int64_t epoch) const override {
    std::vector<std::int64_t> drawn(static_cast<std::size_t>(samples_));
    Words words(seed_, epoch, Purpose::weights);
    for (std::size_t i = 0; i < drawn.size(); ++i) {
      // 53 bits, so that classes of very small weight are not lost.
      const std::uint64_t bits = (static_cast<std::uint64_t>(words(2 * i)) << 21) | (words(2 * i + 1) >> 11);
      const double u = static_cast<double>(bits) * 0x1p-53 * sums_.back();
      // The first sum above u: an index of weight 0 adds nothing to the sums and is never the first. u * back may round
      // to back: then the last weight that is not 0 is taken.
      auto at = std::upper_bound(sums_.begin(), sums_.end(), u);
      if (at == sums_.end()) at = std::lower_bound(sums_.begin(), sums_.end(), sums_.back());
      drawn[i] = at - sums_.begin();
    }
    return drawn;
  }
  bool shuffles() const override { return true; }

 private:
  std::vector<double> sums_;
  std::int64_t samples_;
  std::uint64_t seed_;
};

class Listed final : public Sampler {
 public:
  Listed(std::vector<std::int64_t> indices, std::optional<std::uint64_t> seed)
      : indices_(std::move(indices)), seed_(seed) {}
  std::int64_t size() const override { return static_cast<std::int64_t>(indices_.size()); }
  std::vector<std::int64_t> indices(std::int64_t epoch) const override {
    if (!seed_) return indices_;
    std::vector<std::int64_t> order = permutation(size(), *seed_, epoch, Purpose::shuffle);
    for (std::int64_t& i : order) i = indices_[static_cast<std::size_t>(i)];
    return order;
  }
  bool shuffles() const override { return seed_.has_value(); }

 private:
  std::vector<std::int64_t> indices_;
  std::optional<std::uint64_t> seed_;
};

// Position i of virtual rank v, which belongs to rank v / shards, is position v + i V of the order, V = world * shards.
class Distributed final : public Sampler {
 public:
  Distributed(std::int64_t n, SamplerRef order, const DistributedSamplerOptions& o)
      : n_(n), all_(static_cast<std::int64_t>(o.world) * o.shards), order_(std::move(order)), o_(o) {
    for (int s = 0; s < o_.shards; ++s) size_ += count(first() + s);
  }
  std::int64_t size() const override { return size_; }
  std::vector<std::int64_t> indices(std::int64_t epoch) const override {
    std::vector<std::int64_t> order;
    if (order_)
      order = order_->indices(epoch);
    else if (o_.shuffle)
      order = permutation(n_, o_.seed, epoch, Purpose::shuffle);
    if (order_ && static_cast<std::int64_t>(order.size()) != n_)
      fail<DataError>("distributed_sampler: the sampler gave ", order.size(), " indices for epoch ", epoch,
                      ", its size() was ", n_);
    std::vector<std::int64_t> mine;
    mine.reserve(static_cast<std::size_t>(size_));
    const std::int64_t step = o_.shards > 1 ? o_.batch_size / o_.shards : size_;
    for (std::int64_t begin = 0; static_cast<std::int64_t>(mine.size()) < size_; begin += step) {
      for (int s = 0; s < o_.shards; ++s) {
        const std::int64_t v = first() + s, end = std::min(begin + step, count(v));
        for (std::int64_t i = begin; i < end; ++i) {
          const std::int64_t at = (v + i * all_) % n_;
          mine.push_back(order.empty() ? at : order[static_cast<std::size_t>(at)]);
        }
      }
    }
    return mine;
  }
  bool shuffles() const override { return order_ ? order_->shuffles() : o_.shuffle; }
  bool is_distributed() const override { return true; }

 private:
  [[nodiscard]] std::int64_t first() const { return static_cast<std::int64_t>(o_.rank) * o_.shards; }
  [[nodiscard]] std::int64_t count(std::int64_t v) const {
    const std::int64_t rest = n_ % all_;
    return n_ / all_ + (o_.drop_last ? 0 : o_.pad ? rest > 0 : v < rest);
  }
  std::int64_t n_, all_, size_ = 0;
  SamplerRef order_;  // null: by the options
  DistributedSamplerOptions o_;
};

class Cut final : public BatchSampler {
 public:
  Cut(SamplerRef sampler, std::int64_t batch_size, bool drop_last)
      : sampler_(std::move(sampler)), step_(batch_size), drop_last_(drop_last) {}
  std::int64_t size() const override {
    const std::int64_t n = sampler_->size();
    return n / step_ + (!drop_last_ && n % step_ != 0);
  }
  std::vector<std::vector<std::int64_t>> batches(std::int64_t epoch) const override {
    const std::vector<std::int64_t> order = sampler_->indices(epoch);
    std::vector<std::vector<std::int64_t>> all;
    const auto n = static_cast<std::int64_t>(order.size());
    for (std::int64_t at = 0; at < n && (!drop_last_ || at + step_ <= n); at += step_)
      all.emplace_back(order.begin() + at, order.begin() + std::min(n, at + step_));
    return all;
  }
  bool is_distributed() const override { return sampler_->is_distributed(); }
  SamplerRef order() const override { return sampler_; }
  BatchSamplerRef over(SamplerRef order) const override { return batch_sampler(std::move(order), step_, drop_last_); }
  std::int64_t batch_size() const override { return step_; }

 private:
  SamplerRef sampler_;
  std::int64_t step_;
  bool drop_last_;
};

}  // namespace

SamplerRef subset_sampler(std::vector<std::int64_t> indices) {
  return std::make_shared<Listed>(std::move(indices), std::nullopt);
}
SamplerRef subset_random_sampler(std::vector<std::int64_t> indices, const Generator& generator) {
  check_size(static_cast<std::int64_t>(indices.size()), "subset_random_sampler");
  return std::make_shared<Listed>(std::move(indices), generator.seed());
}
namespace {
SamplerRef distributed(std::int64_t n, SamplerRef order, const DistributedSamplerOptions& o) {
  check_size(n, "distributed_sampler");
  if (o.world < 1 || o.rank < 0 || o.rank >= o.world)
    fail<ConfigError>("distributed_sampler: rank is ", o.rank, " of ", o.world, ", expected 0 to world - 1");
  if (o.drop_last && !o.pad)
    fail<ConfigError>(
        "distributed_sampler: drop_last comes with pad = false; drop_last gives all ranks as many "
        "samples, and pad = false does not");
  if (o.shards < 1 || o.batch_size < 1 || (o.shards > 1 && o.batch_size % o.shards != 0))
    fail<ConfigError>("distributed_sampler: batch_size is ", o.batch_size, " and shards is ", o.shards,
                      ", expected a multiple of shards; each of the shards has its part of every batch");
  return std::make_shared<Distributed>(n, std::move(order), o);
}
}  // namespace
SamplerRef distributed_sampler(std::int64_t n, const DistributedSamplerOptions& o) {
  return distributed(n, nullptr, o);
}
SamplerRef distributed_sampler(SamplerRef order, const DistributedSamplerOptions& o) {
  if (!order) fail<ConfigError>("distributed_sampler: the sampler is null");
  const std::int64_t n = order->size();
  return distributed(n, std::move(order), o);
}
BatchSamplerRef batch_sampler(SamplerRef sampler, std::int64_t batch_size, bool drop_last) {
  if (!sampler) fail<ConfigError>("batch_sampler: the sampler is null");
  if (batch_size < 1) fail<ConfigError>("batch_sampler: batch_size is ", batch_size, ", expected 1 or more");
  return std::make_shared<Cut>(std::move(sampler), batch_size, drop_last);
}
SamplerRef sequential_sampler(std::int64_t n) {
  check_size(n, "sequential_sampler");
  return std::make_shared<Sequential>(n);
}
SamplerRef random_sampler(std::int64_t n, const Generator& generator) {
  check_size(n, "random_sampler");
  return std::make_shared<Random>(n, generator.seed());
}
SamplerRef weighted_sampler(std::vector<double> weights, std::int64_t samples, const Generator& generator) {
  check_size(samples, "weighted_sampler");
  double sum = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (!(weights[i] >= 0) || !std::isfinite(sum + weights[i])) {
      fail<ConfigError>("weighted_sampler: weight ", i, " is ", weights[i], ", expected 0 or more and a finite sum");
    }
    weights[i] = sum += weights[i];
  }
  if (sum == 0) fail<ConfigError>("weighted_sampler: all ", weights.size(), " weights are 0");
  return std::make_shared<Weighted>(std::move(weights), samples, generator.seed());
}

}  // namespace levin::data
