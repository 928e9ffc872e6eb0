#include <cstring>
#include <utility>

#include "data/errors.h"
#include "data/store/samples.h"
#include "levin/data/store.h"
#include "tensor/files/file.h"

namespace levin::data {

Sample store::sample_of(const Dataset& dataset, const EpochRandom& random, std::int64_t index) {
  Sample sample;
  try {
    Generator rng = random.sample(dataset.random_index(index));
    sample = dataset.get(index, rng);
    for (Tensor& t : sample) t = levin::detail::dense_on_host("sample", t.detach());
  } catch (...) { rethrow_with("; loading sample " + text(index)); }
  if (sample.empty()) fail<DataError>("sample ", index, " has no fields");
  return sample;
}
bool store::are_alike(const Sample& a, const Sample& b) {
  bool alike = a.size() == b.size();
  for (std::size_t f = 0; alike && f < a.size(); ++f)
    alike = a[f].dtype() == b[f].dtype() && a[f].shape() == b[f].shape();
  return alike;
}

namespace {

// Samples of different shapes.
class Listed final : public Dataset {
 public:
  explicit Listed(std::vector<Sample> samples) : samples_(std::move(samples)) {}
  std::int64_t size() const override { return static_cast<std::int64_t>(samples_.size()); }
  Sample get(std::int64_t index, Generator&) const override {
    if (index < 0 || index >= size()) fail<IndexError>("dataset: index is ", index, ", expected 0 to ", size() - 1);
    Sample copy;
    for (const Tensor& t : samples_[static_cast<std::size_t>(index)]) copy.push_back(t.clone());
    return copy;
  }

 private:
  std::vector<Sample> samples_;
};

}  // namespace

DatasetRef in_memory(const DatasetRef& base, const Generator& generator) {
  if (!base) fail<ConfigError>("in_memory: the dataset is null");
  const EpochRandom random(generator, 0);
  const std::int64_t n = base->size();
  if (n == 0) return std::make_shared<Listed>(std::vector<Sample>());
  const Sample first = store::sample_of(*base, random, 0);
  Tensors fields;
  for (const Tensor& t : first) fields.push_back(empty(t.shape().inserted(0, n), Device::cpu(), t.dtype()));
  std::vector<Sample> others;  // from the first sample of another shape on
  std::int64_t alike = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    Sample sample = i == 0 ? first : store::sample_of(*base, random, i);
    if (!others.empty() || !store::are_alike(first, sample)) {
      others.push_back(std::move(sample));
      continue;
    }
    for (std::size_t f = 0; f < fields.size(); ++f) {
      const auto from = levin::detail::bytes_of(sample[f]);
      const auto to = levin::detail::bytes_of(fields[f]).data() + static_cast<std::size_t>(i) * from.size();
      if (!from.empty()) std::memcpy(const_cast<std::byte*>(to), from.data(), from.size());
    }
    ++alike;
  }
  DatasetRef stacked = tensor_dataset(std::move(fields));
  if (others.empty()) return stacked;
  std::vector<Sample> all;
  Generator unused(0);
  for (std::int64_t i = 0; i < alike; ++i) all.push_back(stacked->get(i, unused));
  for (Sample& s : others) all.push_back(std::move(s));
  return std::make_shared<Listed>(std::move(all));
}

}  // namespace levin::data
