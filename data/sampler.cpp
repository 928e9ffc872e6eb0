#include <algorithm>
#include <cmath>
#include <numeric>

#include "data/random.h"
#include "data/sampler.h"

namespace levin::data {

Sampler::~Sampler() = default;
BatchSampler::~BatchSampler() = default;

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

}  // namespace

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
