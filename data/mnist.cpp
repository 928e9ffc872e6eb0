#include <algorithm>
#include <filesystem>
#include <optional>

#include "levin/data.h"

namespace levin::data {
namespace {

constexpr std::int64_t kSide = 28, kClasses = 10;

struct Names {
  const char *images, *labels;
};
Names names(Split split) {
  return split == Split::train ? Names{"train-images-idx3-ubyte", "train-labels-idx1-ubyte"}
                               : Names{"t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"};
}

std::optional<std::string> found(const std::string& dir, const std::string& name) {
  for (const char* ending : {"", ".gz"}) {
    const std::filesystem::path path = std::filesystem::path(dir) / (name + ending);
    std::error_code ignored;
    if (std::filesystem::is_regular_file(path, ignored)) return path.string();
  }
  return std::nullopt;
}
std::string required(const std::string& dir, const std::string& name) {
  const auto path = found(dir, name);
  if (!path) fail<FileError>(dir, ": has neither ", name, " nor ", name, ".gz");
  return *path;
}

}  // namespace

bool has_mnist(const std::string& dir, Split split) {
  return found(dir, names(split).images).has_value() && found(dir, names(split).labels).has_value();
}

std::pair<Tensor, Tensor> load_mnist(const std::string& dir, Split split) {
  const std::string images_path = required(dir, names(split).images);
  const std::string labels_path = required(dir, names(split).labels);
  Tensor images = load_idx(images_path), labels = load_idx(labels_path);
  if (images.dtype() != DType::u8 || images.rank() != 3 || images.size(1) != kSide || images.size(2) != kSide) {
    fail<FormatError>(images_path, ": images are ", text(images), ", expected u8 [N, 28, 28]");
  }
  if (labels.dtype() != DType::u8 || labels.rank() != 1 || labels.size(0) != images.size(0)) {
    fail<FormatError>(labels_path, ": labels are ", text(labels), ", expected u8 [", images.size(0),
                      "] for the images of ", images_path);
  }
  const std::uint8_t* begin = labels.data<std::uint8_t>();
  const std::uint8_t* bad = std::find_if(begin, begin + labels.numel(), [](std::uint8_t l) { return l >= kClasses; });
  if (bad != begin + labels.numel()) {
    fail<FormatError>(labels_path, ": label ", bad - begin, " is ", unsigned{*bad}, ", expected 0 to 9");
  }
  return {std::move(images), std::move(labels)};
}

DatasetRef mnist(const std::string& dir, Split split, Normalization normalization) {
  const auto [images, labels] = load_mnist(dir, split);
  const Shape shape = images.shape().inserted(1, 1);  // by as_strided, since unsqueeze is an op and data/ stands below
  return image_dataset(as_strided(images, shape, contiguous_strides(shape), 0), labels, normalization);
}

}  // namespace levin::data
