// to_float, normalize and one_hot.
#include <algorithm>
#include <array>

#include "data/transforms/step.h"

namespace levin::data {
namespace {

class ToFloat final : public Transform::Step {
 public:
  explicit ToFloat(std::size_t field) : Step("to_float", field) {
    for (std::size_t i = 0; i < table_.size(); ++i) table_[i] = static_cast<float>(i) / 255.f;
  }
  Plane plan(const Plane& in) const override {
    if (in.dtype != DType::u8 && in.dtype != DType::f32)
      fail<DTypeError>("to_float: field ", field(), " is ", in.dtype, ", expected u8 or f32");
    return {DType::f32, in.shape};
  }
  void run(const Plane& in, const std::byte* from, std::byte* to, Generator&) const override {
    with_pixels(in.dtype, [&]<class T>(T) {
      const T* x = pixels<T>(from);
      float* y = pixels<float>(to);
      for (std::int64_t i = 0, n = in.shape.numel(); i < n; ++i) {
        if constexpr (sizeof(T) == 1)
          y[i] = table_[x[i]];
        else
          y[i] = x[i];
      }
    });
  }

 private:
  std::array<float, 256> table_;
};

// A table of the 256 results of u8 is as exact as the formula and cheaper.
class Normalize final : public Transform::Step {
 public:
  Normalize(std::vector<Normalization> channels, std::size_t field)
      : Step("normalize", field), channels_(std::move(channels)) {
    if (channels_.empty()) fail<ConfigError>("normalize: no channels are given, expected a mean and a std");
    for (const Normalization& n : channels_) {
      if (!(n.std > 0)) fail<ConfigError>("normalize: std is ", n.std, ", expected more than 0");
      auto& table = tables_.emplace_back();
      for (std::size_t i = 0; i < table.size(); ++i) table[i] = (static_cast<float>(i) / 255.f - n.mean) / n.std;
    }
  }
  Plane plan(const Plane& in) const override {
    check_image(in);
    if (channels_.size() != 1 && static_cast<std::size_t>(in.channels()) != channels_.size())
      fail<ShapeError>("normalize: field ", field(), " has shape ", in.shape, " and ", channels_.size(),
                       " channels are normalized, expected [", channels_.size(), ", H, W]");
    return {DType::f32, in.shape};
  }
  void run(const Plane& in, const std::byte* from, std::byte* to, Generator&) const override {
    const std::int64_t plane = in.height() * in.width();
    float* y = pixels<float>(to);
    with_pixels(in.dtype, [&]<class T>(T) {
      const T* x = pixels<T>(from);
      for (std::int64_t c = 0; c < in.channels(); ++c, x += plane, y += plane) {
        const std::size_t channel = channels_.size() == 1 ? 0 : static_cast<std::size_t>(c);
        const auto [mean, std] = channels_[channel];
        const float* const table = tables_[channel].data();
        for (std::int64_t i = 0; i < plane; ++i) {
          if constexpr (sizeof(T) == 1)
            y[i] = table[x[i]];
          else
            y[i] = (x[i] - mean) / std;
        }
      }
    });
  }

 private:
  std::vector<Normalization> channels_;
  std::vector<std::array<float, 256>> tables_;
};

class OneHot final : public Transform::Step {
 public:
  OneHot(std::int64_t classes, std::size_t field) : Step("one_hot", field), classes_(classes) {
    if (classes < 1) fail<ConfigError>("one_hot: classes is ", classes, ", expected 1 or more");
  }
  Plane plan(const Plane& in) const override {
    if (in.dtype != DType::i64 && in.dtype != DType::i32 && in.dtype != DType::u8)
      fail<DTypeError>("one_hot: field ", field(), " is ", in.dtype, ", expected a label of u8, i32 or i64");
    if (in.shape.rank() != 0)
      fail<ShapeError>("one_hot: field ", field(), " has shape ", in.shape, ", expected a label []");
    return {DType::f32, {classes_}};
  }
  void run(const Plane& in, const std::byte* from, std::byte* to, Generator&) const override {
    const std::int64_t label = in.dtype == DType::i64   ? *pixels<std::int64_t>(from)
                               : in.dtype == DType::i32 ? *pixels<std::int32_t>(from)
                                                        : *pixels<std::uint8_t>(from);
    if (label < 0 || label >= classes_)
      fail<IndexError>("one_hot: the label is ", label, ", expected 0 to ", classes_ - 1);
    float* y = pixels<float>(to);
    std::fill_n(y, classes_, 0.f);
    y[label] = 1;
  }

 private:
  std::int64_t classes_;
};

}  // namespace

Transform to_float(std::size_t field) { return Transform(std::make_shared<ToFloat>(field)); }
Transform normalize(std::vector<Normalization> channels, std::size_t field) {
  return Transform(std::make_shared<Normalize>(std::move(channels), field));
}
Transform one_hot(std::int64_t classes, std::size_t field) {
  return Transform(std::make_shared<OneHot>(classes, field));
}

}  // namespace levin::data
