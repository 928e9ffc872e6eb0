// Transforms of samples: composition, the way of a sample's tensors through the steps, and the dataset that writes the
// steps' results into the rows of a batch.
#include <algorithm>
#include <array>
#include <cstring>

#include "data/errors.h"
#include "data/transforms/step.h"

namespace levin::data {
namespace {

std::byte* bytes_of(const Tensor& x) {
  return x.get().storage->data + static_cast<std::size_t>(x.offset()) * itemsize(x.dtype());
}

class OfUser final : public Transform::Step {
 public:
  explicit OfUser(Function<Sample(Sample, Generator&)> f) : Step("transform", 0), f_(std::move(f)) {}
  bool of_field() const override { return false; }
  Sample apply(Sample sample, Generator& rng) const override { return f_(std::move(sample), rng); }
  Plane plan(const Plane& in) const override { return in; }
  void run(const Plane&, const std::byte*, std::byte*, Generator&) const override {}

 private:
  Function<Sample(Sample, Generator&)> f_;
};

// Samples {image, label}. With the user's functions among the steps each sample is made of tensors.
class TransformedImages final : public Dataset {
 public:
  TransformedImages(const Tensor& images, const Tensor& labels, Transform transform)
      : images_(images.detach().contiguous()), labels_(wide(labels)), transform_(std::move(transform)) {
    const auto& steps = transform_.steps();
    by_rows_ = std::all_of(steps.begin(), steps.end(), [](const auto& s) { return s->of_field(); });
    if (!by_rows_) return;
    planes_[0].push_back({DType::u8, images_.shape().removed(0)});
    planes_[1].push_back({DType::i64, {}});
    for (const auto& step : steps) {
      if (step->field() > 1)
        fail<IndexError>("image_dataset: a transform is for field ", step->field(),
                         ", samples have fields 0 (image) and 1 (label)");
      std::vector<Plane>& planes = planes_[step->field()];
      planes.push_back(step->plan(planes.back()));
      place_ = std::max(place_, (planes.back().bytes() + 63) / 64 * 64);
    }
  }
  std::int64_t size() const override { return labels_.size(0); }

  Sample get(std::int64_t index, Generator& rng) const override {
    check(index);
    if (by_rows_) {
      Sample sample{empty(planes_[0].back().shape, Device::cpu(), planes_[0].back().dtype),
                    empty(planes_[1].back().shape, Device::cpu(), planes_[1].back().dtype)};
      write(index, rng, {bytes_of(sample[0]), bytes_of(sample[1])}, scratch());
      return sample;
    }
    return transform_({select_row(images_, index), select_row(labels_, index)}, rng);
  }

  Tensors gather(std::span<const std::int64_t> indices, const EpochRandom& random) const override {
    return gather_into(indices, random, {});
  }
  Tensors gather_into(std::span<const std::int64_t> indices, const EpochRandom& random, Tensors batch) const override {
    if (!by_rows_) return Dataset::gather(indices, random);
    const auto n = static_cast<std::int64_t>(indices.size());
    batch.resize(2);
    std::array<std::byte*, 2> row{};
    for (std::size_t f = 0; f < 2; ++f) {
      const Plane& result = planes_[f].back();
      batch[f] = recycled(std::move(batch[f]), result.shape.inserted(0, n), result.dtype);
      row[f] = bytes_of(batch[f]);
    }
    std::byte* const between = scratch();
    for (std::size_t i = 0; i < indices.size(); ++i) {
      const std::int64_t index = indices[i];
      check(index);
      if (i + kRowsAhead < indices.size()) prefetch(indices[i + kRowsAhead]);
      try {
        Generator rng = random.sample(index);
        write(index, rng, row, between);
      } catch (...) { rethrow_with("; loading sample " + text(index) + " of epoch " + text(random.epoch())); }
      for (std::size_t f = 0; f < 2; ++f) row[f] += planes_[f].back().bytes();
    }
    return batch;
  }

 private:
  void check(std::int64_t index) const {
    if (index < 0 || index >= size()) fail<IndexError>("dataset: index is ", index, ", expected 0 to ", size() - 1);
  }
  // Shuffled images lie anywhere: one that is wanted soon comes from memory while others are written.
  static constexpr std::size_t kRowsAhead = 2, kCacheLine = 64, kMostAhead = 4096;
  void prefetch(std::int64_t index) const {
    if (index < 0 || index >= size()) return;  // refused when its turn comes
    const std::size_t bytes = planes_[0][0].bytes();
    const std::byte* const row = bytes_of(images_) + static_cast<std::size_t>(index) * bytes;
    for (std::size_t i = 0; i < std::min(bytes, kMostAhead); i += kCacheLine) __builtin_prefetch(row + i);
  }
  static Tensor select_row(const Tensor& x, std::int64_t index) {
    Tensor row = empty(x.shape().removed(0), Device::cpu(), x.dtype());
    const std::size_t bytes = static_cast<std::size_t>(row.numel()) * itemsize(x.dtype());
    if (bytes) std::memcpy(bytes_of(row), bytes_of(x) + static_cast<std::size_t>(index) * bytes, bytes);
    return row;
  }
  static Tensor wide(const Tensor& labels) {
    const Tensor from = labels.detach().contiguous();
    Tensor to = empty(from.shape(), Device::cpu(), DType::i64);
    std::copy_n(from.data<std::uint8_t>(), from.numel(), to.mutable_data<std::int64_t>());
    return to;
  }
  // What lies between two steps, four places of place_ bytes: of each field two, which its steps write in turn.
  std::byte* scratch() const {
    static thread_local std::vector<std::byte> places;
    if (places.size() < 4 * place_) places.resize(4 * place_);
    return places.data();
  }
  // The last step of a field writes to `to`.
  void write(std::int64_t index, Generator& rng, std::array<std::byte*, 2> to, std::byte* between) const {
    const std::array<const Tensor*, 2> given{&images_, &labels_};
    std::array<const std::byte*, 2> at{};
    std::array<std::size_t, 2> done{};
    for (std::size_t f = 0; f < 2; ++f)
      at[f] = bytes_of(*given[f]) + static_cast<std::size_t>(index) * planes_[f][0].bytes();
    for (const auto& step : transform_.steps()) {
      const std::size_t f = step->field(), k = done[f]++;
      std::byte* const result = done[f] + 1 < planes_[f].size() ? between + (2 * f + k % 2) * place_ : to[f];
      step->run(planes_[f][k], at[f], result, rng);
      at[f] = result;
    }
    for (std::size_t f = 0; f < 2; ++f) {
      const std::size_t bytes = planes_[f].back().bytes();
      if (done[f] == 0 && bytes) std::memcpy(to[f], at[f], bytes);
    }
  }

  Tensor images_, labels_;
  Transform transform_;
  bool by_rows_ = true;
  std::array<std::vector<Plane>, 2> planes_;  // of each field: as given, and after each of its steps
  std::size_t place_ = 0;
};

}  // namespace

Sample Transform::Step::apply(Sample sample, Generator& rng) const {
  if (field_ >= sample.size())
    fail<IndexError>(name_, ": field is ", field_, ", the sample has ", sample.size(), " fields");
  Tensor& x = sample[field_];
  if (!x.defined()) fail<DataError>(name_, ": field ", field_, " is an undefined tensor");
  if (!x.device().is_cpu()) fail<DeviceError>(name_, ": field ", field_, " is on ", x.device(), ", expected cpu");
  const Plane in{x.dtype(), x.shape()}, out = plan(in);
  const Tensor dense = x.detach().contiguous();
  Tensor result = empty(out.shape, Device::cpu(), out.dtype);
  run(in, bytes_of(dense), bytes_of(result), rng);
  x = std::move(result);
  return sample;
}

void Transform::Step::check_image(const Plane& in) const {
  if (in.dtype != DType::u8 && in.dtype != DType::f32)
    fail<DTypeError>(name_, ": field ", field_, " is ", in.dtype, ", expected an image of u8 or f32");
  if (in.shape.rank() != 3)
    fail<ShapeError>(name_, ": field ", field_, " has shape ", in.shape, ", expected an image [C, H, W]");
}

Transform::Transform(Function<Sample(Sample, Generator&)> f) {
  if (!f) fail<ConfigError>("transform: the function is empty");
  steps_.push_back(std::make_shared<OfUser>(std::move(f)));
}
Transform::Transform(std::shared_ptr<const Step> step) : steps_{std::move(step)} {}

Sample Transform::operator()(Sample sample, Generator& rng) const {
  for (const auto& step : steps_) sample = step->apply(std::move(sample), rng);
  return sample;
}

Transform compose(const std::vector<Transform>& transforms) {
  Transform all;
  for (const Transform& t : transforms) all.steps_.insert(all.steps_.end(), t.steps_.begin(), t.steps_.end());
  return all;
}

DatasetRef image_dataset(Tensor images, Tensor labels, const std::vector<Transform>& transforms) {
  for (const Tensor* x : {&images, &labels}) {
    if (!x->defined()) fail<DataError>("image_dataset: a field is an undefined tensor");
    if (!x->device().is_cpu()) fail<DeviceError>("image_dataset: a field is on ", x->device(), ", expected cpu");
  }
  if (images.dtype() != DType::u8 || labels.dtype() != DType::u8)
    fail<DTypeError>("image_dataset: images are ", images.dtype(), " and labels ", labels.dtype(),
                     ", expected u8 for both");
  if (images.rank() != 4)
    fail<ShapeError>("image_dataset: images have shape ", images.shape(), ", expected [N, C, H, W]");
  if (labels.rank() != 1 || images.size(0) != labels.size(0))
    fail<DataError>("image_dataset: images have shape ", images.shape(), " and labels ", labels.shape(),
                    ", expected [N, C, H, W] and [N]");
  return std::make_shared<TransformedImages>(images, labels, compose(transforms));
}

}  // namespace levin::data
