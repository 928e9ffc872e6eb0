#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "data/errors.h"
#include "data/random.h"
#include "data/sampler.h"
#include "levin/data.h"
#include "tensor/core/sole_owner.h"

namespace levin::data {
namespace {

std::size_t row_bytes(const Tensor& x) {
  return x.size(0) == 0 ? 0 : static_cast<std::size_t>(x.numel() / x.size(0)) * itemsize(x.dtype());
}
std::byte* bytes_of(const Tensor& x) {
  return x.get().storage->data + static_cast<std::size_t>(x.offset()) * itemsize(x.dtype());
}
Shape row_shape(const Tensor& x) { return x.shape().removed(0); }

Tensor dense_on_host(const Tensor& x, const char* what) {
  if (!x.defined()) fail<DataError>(what, ": a field is an undefined tensor");
  if (!x.device().is_cpu()) fail<DeviceError>(what, ": a field is on ", x.device(), ", expected cpu");
  if (x.rank() == 0) fail<DataError>(what, ": a field has shape [], expected a first dimension of samples");
  return x.detach().contiguous();
}

// Shuffled rows lie anywhere: a prefetch two rows ahead hides most of the memory latency.
constexpr std::size_t kRowsAhead = 2, kCacheLine = 64, kMaxAhead = 4096;
void prefetch(const Tensor& x, std::span<const std::int64_t> indices, std::size_t at) {
  if (at + kRowsAhead >= indices.size()) return;
  const std::size_t bytes = row_bytes(x);
  const auto index = static_cast<std::size_t>(indices[at + kRowsAhead]);
  if (index >= static_cast<std::size_t>(x.size(0))) return;  // refused when its turn comes
  const std::byte* row = bytes_of(x) + index * bytes;
  for (std::size_t i = 0; i < std::min(bytes, kMaxAhead); i += kCacheLine) __builtin_prefetch(row + i);
}

void check_index(std::int64_t index, std::int64_t n) {
  if (index < 0 || index >= n) fail<IndexError>("dataset: index is ", index, ", expected 0 to ", n - 1);
}

class TensorDataset final : public Dataset {
 public:
  explicit TensorDataset(Tensors fields) : fields_(std::move(fields)) {
    if (fields_.empty()) fail<DataError>("tensor_dataset: no fields are given");
    for (Tensor& field : fields_) {
      field = dense_on_host(field, "tensor_dataset");
      if (field.size(0) != fields_[0].size(0)) {
        fail<DataError>("tensor_dataset: fields have ", fields_[0].size(0), " and ", field.size(0), " samples");
      }
    }
  }
  std::int64_t size() const override { return fields_[0].size(0); }

  Sample get(std::int64_t index, Generator&) const override {
    check_index(index, size());
    Sample sample;
    for (const Tensor& field : fields_) {
      sample.push_back(empty(row_shape(field), Device::cpu(), field.dtype()));
      copy(field, index, bytes_of(sample.back()));
    }
    return sample;
  }
  Tensors gather(std::span<const std::int64_t> indices, const EpochRandom& random) const override {
    return gather_into(indices, random, {});
  }
  Tensors gather_into(std::span<const std::int64_t> indices, const EpochRandom&, Tensors batch) const override {
    batch.resize(fields_.size());
    for (std::size_t f = 0; f < fields_.size(); ++f) {
      const Tensor& field = fields_[f];
      const auto n = static_cast<std::int64_t>(indices.size());
      batch[f] = recycled(std::move(batch[f]), row_shape(field).inserted(0, n), field.dtype());
      std::byte* to = bytes_of(batch[f]);
      for (std::size_t i = 0; i < indices.size(); ++i) {
        check_index(indices[i], size());
        prefetch(field, indices, i);
        copy(field, indices[i], to);
        to += row_bytes(field);
      }
    }
    return batch;
  }

 private:
  static void copy(const Tensor& field, std::int64_t index, std::byte* to) {
    const std::size_t bytes = row_bytes(field);
    if (bytes) std::memcpy(to, bytes_of(field) + static_cast<std::size_t>(index) * bytes, bytes);
  }
  Tensors fields_;
};

// u8 pictures and labels, converted as they are gathered. A table of 256 results is as exact as the formula
// and cheaper.
class ImageDataset final : public Dataset {
 public:
  ImageDataset(const Tensor& images, const Tensor& labels, std::span<const Normalization> channels)
      : images_(dense_on_host(images, "image_dataset")), labels_(dense_on_host(labels, "image_dataset")) {
    if (images_.dtype() != DType::u8 || labels_.dtype() != DType::u8) {
      fail<DTypeError>("image_dataset: images are ", images_.dtype(), " and labels ", labels_.dtype(),
                       ", expected u8 for both");
    }
    if (labels_.rank() != 1 || images_.size(0) != labels_.size(0)) {
      fail<DataError>("image_dataset: images have shape ", images_.shape(), " and labels ", labels_.shape(),
                      ", expected [N, ...] and [N]");
    }
    for (const Normalization& n : channels) {
      if (!(n.std > 0)) fail<ConfigError>("image_dataset: std is ", n.std, ", expected more than 0");
      Table& table = tables_.emplace_back();
      for (std::size_t i = 0; i < table.size(); ++i) table[i] = (static_cast<float>(i) / 255.f - n.mean) / n.std;
    }
  }
  std::int64_t size() const override { return labels_.size(0); }

  Sample get(std::int64_t index, Generator&) const override {
    check_index(index, size());
    Sample sample{empty(row_shape(images_), Device::cpu()), empty({}, Device::cpu(), DType::i64)};
    convert(index, reinterpret_cast<float*>(bytes_of(sample[0])), reinterpret_cast<std::int64_t*>(bytes_of(sample[1])));
    return sample;
  }
  Tensors gather(std::span<const std::int64_t> indices, const EpochRandom& random) const override {
    return gather_into(indices, random, {});
  }
  Tensors gather_into(std::span<const std::int64_t> indices, const EpochRandom&, Tensors batch) const override {
    const auto n = static_cast<std::int64_t>(indices.size());
    batch.resize(2);
    batch[0] = recycled(std::move(batch[0]), row_shape(images_).inserted(0, n), DType::f32);
    batch[1] = recycled(std::move(batch[1]), {n}, DType::i64);
    auto* pixels = reinterpret_cast<float*>(bytes_of(batch[0]));
    auto* labels = reinterpret_cast<std::int64_t*>(bytes_of(batch[1]));
    for (std::size_t i = 0; i < indices.size(); ++i) {
      check_index(indices[i], size());
      prefetch(images_, indices, i);
      convert(indices[i], pixels, labels++);
      pixels += pixels_each();
    }
    return batch;
  }

 private:
  // Values of one picture, in the batch as in the file.
  [[nodiscard]] std::size_t pixels_each() const {
    return images_.size(0) == 0 ? 0 : static_cast<std::size_t>(images_.numel() / images_.size(0));
  }
  void convert(std::int64_t index, float* pixels, std::int64_t* label) const {
    const std::size_t count = pixels_each(), plane = count / tables_.size();
    const auto* from =
        reinterpret_cast<const std::uint8_t*>(bytes_of(images_)) + static_cast<std::size_t>(index) * count;
    for (const Table& channel : tables_) {
      const float* const table = channel.data();
      for (std::size_t i = 0; i < plane; ++i) pixels[i] = table[from[i]];
      from += plane, pixels += plane;
    }
    *label = static_cast<std::int64_t>(reinterpret_cast<const std::uint8_t*>(bytes_of(labels_))[index]);
  }
  using Table = std::array<float, 256>;
  Tensor images_, labels_;
  std::vector<Table> tables_;  // one, or one a channel
};

class Transformed final : public Dataset {
 public:
  Transformed(DatasetRef base, Function<Sample(Sample, Generator&)> f) : base_(std::move(base)), f_(std::move(f)) {}
  std::int64_t size() const override { return base_->size(); }
  Sample get(std::int64_t index, Generator& rng) const override { return f_(base_->get(index, rng), rng); }
  std::int64_t random_index(std::int64_t index) const override { return base_->random_index(index); }

 private:
  DatasetRef base_;
  Function<Sample(Sample, Generator&)> f_;
};

class Subset final : public Dataset {
 public:
  Subset(DatasetRef base, std::vector<std::int64_t> indices) : base_(std::move(base)), indices_(std::move(indices)) {
    for (const std::int64_t index : indices_) check_index(index, base_->size());
  }
  std::int64_t size() const override { return static_cast<std::int64_t>(indices_.size()); }
  Sample get(std::int64_t index, Generator& rng) const override { return base_->get(mapped(index), rng); }
  Tensors gather(std::span<const std::int64_t> indices, const EpochRandom& random) const override {
    return gather_into(indices, random, {});
  }
  Tensors gather_into(std::span<const std::int64_t> indices, const EpochRandom& random, Tensors spare) const override {
    // A usual batch has its list on the stack. For a larger one the thread keeps the list's memory; a subset that
    // `base_` asks meanwhile finds none and makes its own.
    std::array<std::int64_t, 1024> few;
    static thread_local std::vector<std::int64_t> kept;
    std::vector<std::int64_t> many =
        indices.size() > few.size() ? std::exchange(kept, {}) : std::vector<std::int64_t>();
    if (indices.size() > few.size()) many.resize(indices.size());
    const std::span<std::int64_t> inner(many.empty() ? few.data() : many.data(), indices.size());
    for (std::size_t i = 0; i < indices.size(); ++i) inner[i] = mapped(indices[i]);
    Tensors batch = base_->gather_into(inner, random, std::move(spare));
    if (!many.empty()) kept = std::move(many);
    return batch;
  }
  // The subset of a subset is one of the whole, which has one list of indices.
  static DatasetRef of(DatasetRef base, std::vector<std::int64_t> indices) {
    const auto* outer = dynamic_cast<const Subset*>(base.get());
    if (!outer) return std::make_shared<Subset>(std::move(base), std::move(indices));
    for (std::int64_t& index : indices) index = outer->mapped(index);
    return std::make_shared<Subset>(outer->base_, std::move(indices));
  }
  std::int64_t random_index(std::int64_t index) const override { return base_->random_index(mapped(index)); }

 private:
  std::int64_t mapped(std::int64_t index) const {
    check_index(index, size());
    return indices_[static_cast<std::size_t>(index)];
  }
  DatasetRef base_;
  std::vector<std::int64_t> indices_;
};

class Concatenated final : public Dataset {
 public:
  explicit Concatenated(std::vector<DatasetRef> parts) : parts_(std::move(parts)) {
    for (const DatasetRef& part : parts_) {
      std::int64_t& end = ends_.emplace_back(ends_.empty() ? 0 : ends_.back());
      if (__builtin_add_overflow(end, part->size(), &end))
        fail<DataError>("concat: the ", parts_.size(), " parts have more than 2^63 - 1 samples together");
    }
  }
  std::int64_t size() const override { return ends_.back(); }
  Sample get(std::int64_t index, Generator& rng) const override {
    check_index(index, size());
    const auto part = static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin());
    return parts_[part]->get(part ? index - ends_[part - 1] : index, rng);
  }

 private:
  std::vector<DatasetRef> parts_;
  std::vector<std::int64_t> ends_;
};

void check_base(const DatasetRef& base, const char* what) {
  if (!base) fail<ConfigError>(what, ": the dataset is null");
}

}  // namespace

Dataset::~Dataset() = default;
std::int64_t Dataset::random_index(std::int64_t index) const { return index; }
Tensors Dataset::gather_into(std::span<const std::int64_t> indices, const EpochRandom& random, Tensors) const {
  return gather(indices, random);
}

Tensor recycled(Tensor spare, const Shape& shape, DType dtype) {
  const bool fits = spare.defined() && spare.device().is_cpu() && spare.dtype() == dtype && spare.shape() == shape &&
                    spare.is_contiguous();
  if (fits && levin::detail::is_sole_owner(spare)) {
    spare.get().storage->wrote("recycled");
    return spare;
  }
  // Page-locked memory that a device may still read: another block of it, which needs no copy later either.
  return fits && spare.is_pinned() ? levin::detail::empty_pinned(shape, dtype) : empty(shape, Device::cpu(), dtype);
}

Tensors Dataset::gather(std::span<const std::int64_t> indices, const EpochRandom& random) const {
  std::vector<Sample> samples;
  samples.reserve(indices.size());
  for (const std::int64_t index : indices) {
    try {
      Generator rng = random.sample(random_index(index));
      samples.push_back(get(index, rng));
    } catch (...) { rethrow_with("; loading sample " + text(index) + " of epoch " + text(random.epoch())); }
  }
  return collate(samples);
}

Generator EpochRandom::sample(std::int64_t index) const {
  const Counter block = philox({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
                                static_cast<std::uint32_t>(epoch_), static_cast<std::uint32_t>(Purpose::sample)},
                               seed_);
  return Generator(static_cast<std::uint64_t>(block[1]) << 32 | block[0]);
}

Tensors collate(std::span<const Sample> samples) {
  if (samples.empty()) fail<DataError>("collate: no samples are given");
  const Sample& first = samples[0];
  Tensors batch;
  for (std::size_t f = 0; f < first.size(); ++f) {
    if (!first[f].defined()) fail<DataError>("collate: field ", f, " of sample 0 is undefined");
    const auto n = static_cast<std::int64_t>(samples.size());
    Tensor out = empty(first[f].shape().inserted(0, n), Device::cpu(), first[f].dtype());
    std::byte* to = bytes_of(out);
    const std::size_t bytes = static_cast<std::size_t>(first[f].numel()) * itemsize(first[f].dtype());
    for (std::size_t s = 0; s < samples.size(); ++s) {
      if (samples[s].size() != first.size()) {
        fail<DataError>("collate: sample ", s, " of the batch has ", samples[s].size(), " fields, sample 0 has ",
                        first.size());
      }
      const Tensor& x = samples[s][f];
      if (!x.defined()) fail<DataError>("collate: field ", f, " of sample ", s, " is undefined");
      if (!x.device().is_cpu()) {
        fail<DeviceError>("collate: field ", f, " of sample ", s, " is on ", x.device(), ", expected cpu");
      }
      if (x.dtype() != first[f].dtype()) {
        fail<DTypeError>("collate: field ", f, " of sample ", s, " of the batch is ", x.dtype(), ", of sample 0 ",
                         first[f].dtype());
      }
      if (x.shape() != first[f].shape()) {
        fail<ShapeError>("collate: field ", f, " of sample ", s, " of the batch has shape ", x.shape(),
                         ", sample 0 has ", first[f].shape(), "; make them equal, or give a collate function");
      }
      if (bytes) std::memcpy(to, bytes_of(x.detach().contiguous()), bytes);
      to += bytes;
    }
    batch.push_back(std::move(out));
  }
  return batch;
}

DatasetRef tensor_dataset(Tensors fields) { return std::make_shared<TensorDataset>(std::move(fields)); }
DatasetRef image_dataset(Tensor images, Tensor labels, Normalization normalization) {
  return std::make_shared<ImageDataset>(images, labels, std::span<const Normalization>(&normalization, 1));
}
DatasetRef image_dataset(Tensor images, Tensor labels, const std::vector<Normalization>& channels) {
  if (images.defined() && (images.rank() != 4 || static_cast<std::size_t>(images.size(1)) != channels.size()))
    fail<ShapeError>("image_dataset: images have shape ", images.shape(), " and ", channels.size(),
                     " channels are normalized, expected [N, ", channels.size(), ", H, W]");
  if (channels.empty()) fail<ConfigError>("image_dataset: no channels are given, expected a mean and a std for each");
  return std::make_shared<ImageDataset>(images, labels, channels);
}
DatasetRef transform(DatasetRef base, Function<Sample(Sample, Generator&)> f) {
  check_base(base, "transform");
  if (!f) fail<ConfigError>("transform: the function is empty");
  return std::make_shared<Transformed>(std::move(base), std::move(f));
}
DatasetRef subset(DatasetRef base, std::vector<std::int64_t> indices) {
  check_base(base, "subset");
  return Subset::of(std::move(base), std::move(indices));
}
std::vector<DatasetRef> random_split(DatasetRef base, const std::vector<std::int64_t>& sizes,
                                     const Generator& generator) {
  check_base(base, "random_split");
  std::int64_t sum = 0;
  for (const std::int64_t size : sizes) {
    if (size < 0 || __builtin_add_overflow(sum, size, &sum)) {
      fail<DataError>("random_split: a size is ", size, ", expected 0 or more");
    }
  }
  if (sum != base->size()) fail<DataError>("random_split: sizes sum to ", sum, ", the dataset has ", base->size());
  const std::vector<std::int64_t> order = permutation(sum, generator.seed(), 0, Purpose::split);
  std::vector<DatasetRef> parts;
  auto at = order.begin();
  for (const std::int64_t size : sizes) {
    parts.push_back(subset(base, {at, at + size}));
    at += size;
  }
  return parts;
}

std::vector<DatasetRef> random_split(DatasetRef base, const Fractions& fractions, const Generator& generator) {
  check_base(base, "random_split");
  const std::int64_t n = base->size();
  double sum = 0;
  std::int64_t left = n;
  std::vector<std::int64_t> sizes;
  for (const double part : fractions.parts) {
    if (!(part >= 0 && part <= 1)) fail<DataError>("random_split: a fraction is ", part, ", expected 0 to 1");
    sum += part;
    sizes.push_back(std::min(left, static_cast<std::int64_t>(part * static_cast<double>(n))));
    left -= sizes.back();
  }
  if (!(std::abs(sum - 1) <= 1e-9)) fail<DataError>("random_split: fractions sum to ", sum, ", expected 1");
  for (std::size_t i = 0; left > 0; i = (i + 1) % sizes.size(), --left) ++sizes[i];
  return random_split(std::move(base), sizes, generator);
}
DatasetRef concat(std::vector<DatasetRef> parts) {
  if (parts.empty()) fail<ConfigError>("concat: no datasets are given");
  for (const DatasetRef& part : parts) check_base(part, "concat");
  return std::make_shared<Concatenated>(std::move(parts));
}

const Tensor& Batch::operator[](std::size_t field) const {
  if (fields.empty()) fail<IndexError>("batch: field is ", field, ", the batch has none");
  if (field >= fields.size()) fail<IndexError>("batch: field is ", field, ", expected 0 to ", fields.size() - 1);
  return fields[field];
}

}  // namespace levin::data
