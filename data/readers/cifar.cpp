#include "data/readers/cifar.h"

#include <tbb/parallel_for.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <filesystem>
#include <optional>
#include <span>

#include "data/readers/unpack.h"
#include "levin/serialize.h"

namespace levin::data {
namespace {

constexpr std::size_t kClasses = 10, kCifar100Record = 2 + kCifarPixels;
constexpr std::uint64_t kMostRatio = 64;  // of packed pictures, drawn ones included
constexpr const char* kPartOfTest = "test_batch_first1000.bin";

std::optional<std::string> found(const std::string& dir, const std::string& name) {
  for (const char* ending : {"", ".gz", ".xz"}) {
    const std::filesystem::path path = std::filesystem::path(dir) / (name + ending);
    std::error_code ignored;
    if (std::filesystem::is_regular_file(path, ignored)) return path.string();
  }
  return std::nullopt;
}

// The files of a split, or the name of the first that is absent.
struct Files {
  std::vector<std::string> paths{};
  std::string absent{};
};
Files files_of(const std::string& dir, Split split) {
  Files files;
  std::vector<std::string> names{"test_batch.bin"};
  if (split == Split::train) {
    names.clear();
    for (int i = 1; i <= 5; ++i) names.push_back("data_batch_" + text(i) + ".bin");
  }
  for (const std::string& name : names) {
    auto path = found(dir, name);
    if (!path && split == Split::test) path = found(dir, kPartOfTest);
    if (!path) return {{}, name};
    files.paths.push_back(*path);
  }
  return files;
}

std::byte* bytes_of(const Tensor& x) { return x.get().storage->data; }

}  // namespace

std::vector<std::byte> read_cifar10(detail::Source& source, std::uint64_t most_bytes, std::uint64_t xz_memory) {
  const std::string& file = source.name();
  const bool packed = is_gzip(source) || is_xz(source);
  const std::uint64_t size = source.size();
  const std::uint64_t most = std::max(most_bytes, kMostRatio * std::min(size, UINT64_MAX / kMostRatio));
  if (!packed && size % kCifarRecord != 0) {  // before the file is read
    fail<FormatError>(file, ": has ", size, " bytes, which is ", size / kCifarRecord, " records of 3073 bytes and ",
                      size % kCifarRecord, " more; expected whole records",
                      size % kCifar100Record == 0 ? "; records of CIFAR-100, of 3074 bytes, are not read" : "");
  }
  std::vector<std::byte> records = read_unpacked(source, packed ? most : size, xz_memory);
  if (records.empty()) fail<FormatError>(file, ": holds no records, expected at least one of 3073 bytes");
  if (records.size() % kCifarRecord != 0) {
    fail<FormatError>(file, ": unpacks to ", records.size(), " bytes, which is ", records.size() / kCifarRecord,
                      " records of 3073 bytes and ", records.size() % kCifarRecord, " more; expected whole records");
  }
  for (std::size_t at = 0; at < records.size(); at += kCifarRecord) {
    if (records[at] >= std::byte{kClasses}) {
      fail<FormatError>(file, ": record ", at / kCifarRecord, ", at byte ", at, packed ? " after unpacking" : "",
                        ": label is ", static_cast<unsigned>(records[at]), ", expected 0 to 9");
    }
  }
  return records;
}

Cifar10 load_cifar10_files(const std::vector<std::string>& files) {
  if (files.empty()) fail<ConfigError>("load_cifar10_files: no files are given");
  std::vector<std::vector<std::byte>> parts(files.size());
  std::vector<std::exception_ptr> errors(files.size());
  tbb::parallel_for(std::size_t{0}, files.size(), [&](std::size_t i) {
    try {
      detail::FileSource source(files[i]);
      parts[i] = read_cifar10(source);
    } catch (...) { errors[i] = std::current_exception(); }
  });
  for (const std::exception_ptr& error : errors) {  // the first file's, whichever came first
    if (error) std::rethrow_exception(error);
  }
  std::size_t count = 0;
  for (const auto& part : parts) count += part.size() / kCifarRecord;
  const auto n = static_cast<std::int64_t>(count);
  Cifar10 read{empty({n, 3, 32, 32}, Device::cpu(), DType::u8), empty({n}, Device::cpu(), DType::u8), files};
  std::byte *pixels = bytes_of(read.images), *label = bytes_of(read.labels);
  for (auto& part : parts) {
    for (std::size_t at = 0; at < part.size(); at += kCifarRecord) {
      *label++ = part[at];
      std::memcpy(pixels, part.data() + at + 1, kCifarPixels);
      pixels += kCifarPixels;
    }
    std::vector<std::byte>().swap(part);  // so that the whole set exists once
  }
  return read;
}

bool has_cifar10(const std::string& dir, Split split) { return files_of(dir, split).absent.empty(); }

Cifar10 load_cifar10(const std::string& dir, Split split) {
  const Files files = files_of(dir, split);
  if (!files.absent.empty()) {
    fail<FileError>(dir, ": has no ", files.absent, split == Split::test ? " and no test_batch_first1000.bin" : "",
                    ", plain or with .gz or .xz; load_cifar10_files reads any batches");
  }
  return load_cifar10_files(files.paths);
}

DatasetRef cifar10(const std::string& dir, Split split, const std::array<Normalization, 3>& channels) {
  const Cifar10 read = load_cifar10(dir, split);
  return image_dataset(read.images, read.labels, {channels.begin(), channels.end()});
}

std::vector<std::string> read_cifar10_classes(const std::string& file, std::string_view content) {
  std::vector<std::string> names;
  for (std::size_t line = 1; !content.empty(); ++line) {
    const std::size_t end = std::min(content.find('\n'), content.size());
    std::string_view name = content.substr(0, end);
    if (name.ends_with('\r')) name.remove_suffix(1);
    content.remove_prefix(std::min(end + 1, content.size()));
    if (name.empty()) continue;  // the file ends in one
    if (names.size() == kClasses) fail<FormatError>(file, ": line ", line, " is an eleventh name, expected ten");
    names.emplace_back(name);
  }
  if (names.size() != kClasses) fail<FormatError>(file, ": has ", names.size(), " names of classes, expected ten");
  return names;
}

std::vector<std::string> cifar10_classes(const std::string& dir) {
  const std::string path = (std::filesystem::path(dir) / "batches.meta.txt").string();
  constexpr std::size_t kMostBytes = 4096;
  return read_cifar10_classes(path, read_file(path, kMostBytes));
}

}  // namespace levin::data
