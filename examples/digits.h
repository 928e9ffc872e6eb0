// The handwritten digits that mnist and gan train on: MNIST's files, or drawn digits.
#pragma once

#include "examples/dataset.h"

namespace levin::examples {

// The published files, gzip.
inline constexpr const char* kDigitsUrl = "https://ossci-datasets.s3.amazonaws.com/mnist/";
inline constexpr RemoteFile kDigitsFiles[] = {
    {"train-images-idx3-ubyte.gz", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"},
    {"train-labels-idx1-ubyte.gz", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"},
    {"t10k-images-idx3-ubyte.gz", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"},
    {"t10k-labels-idx1-ubyte.gz", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"},
};

struct Digits {
  data::DatasetRef train, test;
  bool real = false;
  std::string said;  // the program's first line
};

inline Digits real_digits(const std::string& dir, data::Normalization scale) {
  return {.train = data::mnist(dir, data::Split::train, scale),
          .test = data::mnist(dir, data::Split::test, scale),
          .real = true,
          .said = "data: MNIST from " + dir};
}

inline bool complete_digits(const std::string& dir) {
  return data::has_mnist(dir, data::Split::train) && data::has_mnist(dir, data::Split::test);
}

// Tries --data, $LEVIN_DATA/mnist, the cache and a download into the cache in this order; else draws digits.
inline Digits find_digits(const std::string& asked, const Generator& gen,
                          data::Normalization scale = data::kMnistNormalization) {
  if (!asked.empty()) {
    if (!complete_digits(asked))
      fail<DataError>("--data: ", asked,
                      " lacks the four MNIST files (train-images-idx3-ubyte and so on, plain or .gz)");
    return real_digits(asked, scale);
  }
  if (const std::string root = environment("LEVIN_DATA"); !root.empty() && complete_digits(root + "/mnist"))
    return real_digits(root + "/mnist", scale);
  std::string why = "no home directory for a cache";
  if (const std::string cache = cache_dir(); !cache.empty()) {
    const std::string dir = cache + "/mnist";
    if (!complete_digits(dir)) why = download(kDigitsUrl, kDigitsFiles, dir);
    if (complete_digits(dir)) return real_digits(dir, scale);
  }
  return {.train = data::generated_digits(data::Split::train, gen, 60000, scale),
          .test = data::generated_digits(data::Split::test, gen, 10000, scale),
          .real = false,
          .said = "data: generated digits, not MNIST (" + why + "; --data DIR names a folder with the files)"};
}

}  // namespace levin::examples
