// Readers of datasets: CIFAR-10.
//
// Readers check a file before anything changes and throw FileError for one that cannot be read (absent, a folder,
// without permission), FormatError with file, position, actual and expected value for other content than expected, and
// OutOfMemoryError where its content does not fit. A packed file is known by its first bytes, not by its name. A build
// without liblzma throws UnsupportedError for xz (Meson's option `lzma`).
#pragma once

#include <array>
#include <string>
#include <vector>

#include "levin/data.h"

namespace levin::data {

// ---- CIFAR-10 in its binary version: https://www.cs.toronto.edu/~kriz/cifar.html, plain, gzip or xz

// Pictures and labels as they are in the files.
struct Cifar10 {
  Tensor images;                     // u8 [N, 3, 32, 32]: planes red, green, blue
  Tensor labels;                     // u8 [N], 0 to 9
  std::vector<std::string> files{};  // that were read, in order
};
// The files of `dir`, each as it is or with .gz or .xz after its name. train: data_batch_1.bin to data_batch_5.bin.
// test: test_batch.bin; where that is absent test_batch_first1000.bin, a file of the first 1,000 of its 10,000 records,
// on which an accuracy is no test accuracy: `files` names what was read. Throws FileError when a file is absent.
[[nodiscard]] LEVIN_API Cifar10 load_cifar10(const std::string& dir, Split split);
// Any files of such records, in this order: load_cifar10_files({"data_batch_5.bin.xz"}). Several files are unpacked at
// once. Throws FormatError for a file that is damaged, empty, no whole number of 3,073-byte records, has a label over 9
// or unpacks to more than 256 MiB and 64 times its size; ConfigError for no files.
[[nodiscard]] LEVIN_API Cifar10 load_cifar10_files(const std::vector<std::string>& files);
// True when load_cifar10 finds all files of the split.
[[nodiscard]] LEVIN_API bool has_cifar10(const std::string& dir, Split split);
// The names of the ten classes in the order of labels, from batches.meta.txt: "airplane", "automobile" and so on.
[[nodiscard]] LEVIN_API std::vector<std::string> cifar10_classes(const std::string& dir);
// The same pictures as samples {f32 [3, 32, 32], i64 []}, each channel (x / 255 - mean) / std.
[[nodiscard]] LEVIN_API DatasetRef cifar10(const std::string& dir, Split split,
                                           const std::array<Normalization, 3>& channels = {});
// The usual normalization of CIFAR-10: mean and deviation of each channel of the training pixels.
inline constexpr std::array<Normalization, 3> kCifar10Normalization{{{0.4914f, 0.2470f},  //
                                                                     {0.4822f, 0.2435f},
                                                                     {0.4465f, 0.2616f}}};

}  // namespace levin::data
