#include "data/readers/cifar.h"

#include <doctest/doctest.h>
#include <zlib.h>

#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>

#include "data/readers/unpack.h"
#include "levin/serialize.h"
#include "tensor/core/formats_test.h"
#include "tests/datasets.h"
#include "tests/skip.h"
#include "tests/temporary.h"
#include "tests/where.h"

using namespace levin;
using namespace levin::data;
using namespace levin::test;

namespace {

const auto reads = [](detail::Source& s) { (void)read_cifar10(s); };

std::string record(int label, int step) {
  std::string out(1, static_cast<char>(label));
  for (std::size_t i = 0; i < kCifarPixels; ++i) out += static_cast<char>(i * static_cast<std::size_t>(step));
  return out;
}
// A seed of the fuzz target, made by Python's lzma.
std::string seed(const std::string& name) {
  return read_file(test::source_dir() + "/tests/fuzz/corpus/cifar/" + name, 1 << 16);
}
std::string gzip(std::string content) {
  z_stream z{};
  REQUIRE(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(deflateBound(&z, content.size()), '\0');
  z.next_in = reinterpret_cast<Bytef*>(content.data());
  z.avail_in = static_cast<uInt>(content.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  REQUIRE(deflate(&z, Z_FINISH) == Z_STREAM_END);
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}
std::vector<std::uint8_t> values(const Tensor& x) {
  return {x.data<std::uint8_t>(), x.data<std::uint8_t>() + x.numel()};
}
std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) { return e.what(); }
  return "";
}

}  // namespace

TEST_CASE("CIFAR-10 batches read as planes and labels, whichever way they are packed, file after file") {
  const TemporaryFolder folder;
  const std::string two = record(9, 1) + record(0, 0);
  write_file_atomically(folder / "a", two);
  write_file_atomically(folder / "b", gzip(record(3, 7)));
  std::vector<std::string> files{folder / "a", folder / "b"};
  if (has_lzma()) {
    write_file_atomically(folder / "c", seed("xz_delta"));  // holds `two`
    files.push_back(folder / "c");
  }
  const Cifar10 read = load_cifar10_files(files);
  const std::int64_t n = has_lzma() ? 5 : 3;
  CHECK(read.images.shape() == Shape{n, 3, 32, 32});
  CHECK(read.labels.shape() == Shape{n});
  CHECK(read.files == files);
  const std::vector<std::uint8_t> labels{9, 0, 3, 9, 0}, pixels = values(read.images);
  CHECK(values(read.labels) == std::vector<std::uint8_t>(labels.begin(), labels.begin() + n));
  // Red, green and blue plane of each picture, each row by row.
  const auto at = [&](std::size_t image, std::size_t channel, std::size_t y, std::size_t x) {
    return pixels[((image * 3 + channel) * 32 + y) * 32 + x];
  };
  CHECK(at(0, 2, 3, 5) == static_cast<std::uint8_t>(2 * 1024 + 3 * 32 + 5));
  CHECK(at(1, 1, 1, 1) == 0);
  CHECK(at(2, 1, 31, 30) == static_cast<std::uint8_t>(7 * (1024 + 31 * 32 + 30)));
  if (has_lzma()) CHECK(std::memcmp(&pixels[0], &pixels[3 * kCifarPixels], 2 * kCifarPixels) == 0);
}

TEST_CASE("a folder of CIFAR-10 names the test file that was read, the whole one before its first thousand records") {
  const TemporaryFolder folder;
  CHECK_FALSE(has_cifar10(folder.path(), Split::test));
  CHECK(contains(message_of([&] { (void)load_cifar10(folder.path(), Split::test); }),
                 "has no test_batch.bin and no test_batch_first1000.bin"));
  write_file_atomically(folder / "test_batch_first1000.bin.gz", gzip(record(1, 0)));
  CHECK(load_cifar10(folder.path(), Split::test).files == std::vector{folder / "test_batch_first1000.bin.gz"});
  write_file_atomically(folder / "test_batch.bin", record(2, 0));
  CHECK(load_cifar10(folder.path(), Split::test).files == std::vector{folder / "test_batch.bin"});
  CHECK(has_cifar10(folder.path(), Split::test));
  for (int i = 5; i >= 1; --i) {
    CHECK_FALSE(has_cifar10(folder.path(), Split::train));
    CHECK(contains(message_of([&] { (void)load_cifar10(folder.path(), Split::train); }), "has no data_batch_1.bin,"));
    write_file_atomically(folder / ("data_batch_" + text(i) + ".bin"), record(i, 0));
  }
  CHECK(values(load_cifar10(folder.path(), Split::train).labels) == std::vector<std::uint8_t>{1, 2, 3, 4, 5});
  // A folder of a file's name is no file.
  std::filesystem::remove(folder / "data_batch_3.bin");
  std::filesystem::create_directory(folder / "data_batch_3.bin");
  CHECK_FALSE(has_cifar10(folder.path(), Split::train));
}

TEST_CASE("the dataset of CIFAR-10 normalizes each channel by its own mean and deviation") {
  const TemporaryFolder folder;
  write_file_atomically(folder / "test_batch.bin", record(4, 0).replace(1, kCifarPixels, kCifarPixels, '\x33'));
  const DatasetRef data = cifar10(folder.path(), Split::test, {{{0.5f, 0.5f}, {0.2f, 2.f}, {0.f, 0.1f}}});
  Generator rng(0);
  const Sample sample = data->get(0, rng);
  CHECK(sample[0].shape() == Shape{3, 32, 32});
  CHECK(sample[1].data<std::int64_t>()[0] == 4);
  const float* x = sample[0].data<float>();  // 0x33 is 0.2 of 255
  CHECK(x[0] == doctest::Approx(-0.6));
  CHECK(x[1024] == doctest::Approx(0));
  CHECK(x[3071] == doctest::Approx(2));
}

TEST_CASE("a CIFAR-10 batch that is cut anywhere, or damaged in a packed byte, is refused with its name") {
  check_truncations(gzip(record(5, 1)), reads);
  const std::string plain = record(5, 1);
  for (const std::size_t n : {std::size_t{0}, std::size_t{1}, plain.size() - 1}) {
    CHECK(outcome(plain.substr(0, n), reads) == Outcome::refused);
  }
  if (!has_lzma()) {
    CHECK(contains(message_of([&] {
                     const std::string xz = seed("xz");
                     detail::MemorySource source("b.xz", std::as_bytes(std::span<const char>(xz)));
                     (void)read_cifar10(source);
                   }),
                   "liblzma-dev"));
    return skip("no liblzma in this build");
  }
  for (const char* name : {"xz", "xz_delta", "xz_sha256"}) {
    CAPTURE(name);
    check_truncations(seed(name), reads);
    // Everything in xz has a check sum; the last bits of a range coder may not matter.
    CHECK(check_bit_flips(seed(name), 0, seed(name).size(), reads) <= 8);
  }
}

TEST_CASE("wrong CIFAR-10 batches are refused with the position, the value got and the one expected") {
  CHECK(contains(refusal(record(1, 0) + record(10, 0), reads), "record 1, at byte 3073: label is 10, expected 0 to 9"));
  CHECK(contains(refusal(gzip(record(255, 0)), reads), "record 0, at byte 0 after unpacking: label is 255"));
  CHECK(contains(refusal(record(1, 0) + "x", reads), "has 3074 bytes, which is 1 records of 3073 bytes and 1 more"));
  CHECK(contains(refusal(record(1, 0) + "x", reads), "CIFAR-100"));
  CHECK(contains(refusal(gzip(record(1, 0) + "xy"), reads), "unpacks to 3075 bytes"));
  CHECK(contains(refusal("", reads), "holds no records"));
  CHECK(contains(refusal(gzip(""), reads), "holds no records"));
  CHECK(contains(refusal(gzip(record(1, 0)) + "more", reads), "4 bytes follow the gzip stream"));
  const auto limited = [](detail::Source& s) { (void)read_cifar10(s, 3073); };
  const std::string bomb = gzip(std::string(100 * kCifarRecord, '\0'));
  CHECK(bomb.size() < 100 * kCifarRecord / 64);
  CHECK(contains(refusal(bomb, limited), "unpacks to more than " + text(bomb.size() * 64) + " bytes"));
  CHECK_THROWS_AS((void)load_cifar10_files({}), ConfigError);
  const TemporaryFolder folder;
  CHECK_THROWS_AS((void)load_cifar10_files({folder.path()}), FileError);
  CHECK_THROWS_AS((void)load_cifar10_files({folder / "absent"}), FileError);
  // Of several wrong files the first is reported, whichever was read first.
  write_file_atomically(folder / "long", std::string(200 * kCifarRecord, '\x0b'));
  write_file_atomically(folder / "short", "x");
  for (int i = 0; i < 20; ++i) {
    CHECK(contains(message_of([&] { (void)load_cifar10_files({folder / "long", folder / "short"}); }), "label is 11"));
  }
  if (!has_lzma()) return skip("no liblzma in this build");
  CHECK(contains(refusal(seed("xz_more"), reads), "4 bytes follow the xz stream"));
  CHECK(contains(refusal(seed("xz_bomb"), limited), "unpacks to more than "));
}

TEST_CASE("a file of more bytes than any memory is a typed error") {
  const TemporaryFolder folder;
  const std::string path = folder / "data_batch_1.bin";
  write_file_atomically(path, record(1, 0));
  for (const std::uintmax_t bytes :
       {std::uintmax_t{9223372036854775807}, std::uintmax_t{1} << 60, kCifarRecord << 48}) {
    std::error_code refused;
    std::filesystem::resize_file(path, bytes / kCifarRecord * kCifarRecord, refused);  // sparse, where it can be made
    if (!refused) CHECK_THROWS_AS((void)load_cifar10_files({path}), OutOfMemoryError);
  }
}

TEST_CASE("names of CIFAR-10's classes are the ten lines of batches.meta.txt") {
  const std::string names = "airplane\nautomobile\nbird\r\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n\n";
  CHECK(read_cifar10_classes("m", names).front() == "airplane");
  CHECK(read_cifar10_classes("m", names)[2] == "bird");
  CHECK(read_cifar10_classes("m", names.substr(0, names.size() - 2)).back() == "truck");
  CHECK(contains(message_of([&] { (void)read_cifar10_classes("m", names + "eel"); }), "line 12 is an eleventh name"));
  CHECK(contains(message_of([&] { (void)read_cifar10_classes("m", "cat\n"); }), "m: has 1 names"));
  CHECK_THROWS_AS((void)cifar10_classes("/nowhere"), FileError);
}

TEST_CASE("the real CIFAR-10 reads as published: sizes, classes, pixels and the usual normalization") {
  const std::string dir = test::real_data("cifar10");
  if (dir.empty()) return skip("no CIFAR-10: set LEVIN_DATA to a folder with cifar10/");
  if (!has_lzma()) return skip("no liblzma in this build");
  const Cifar10 test = load_cifar10(dir, Split::test);
  // Counts of the first 1,000 test labels, 0 to 9; of all 10,000 each class has 1,000.
  std::array<int, 10> counts{};
  for (const std::uint8_t label : values(test.labels)) ++counts[label];
  if (test.labels.numel() == 1000) {
    CHECK(counts == std::array{103, 89, 100, 103, 90, 86, 112, 102, 106, 109});
  } else {
    CHECK(counts == std::array{1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000});
  }
  CHECK(cifar10_classes(dir)[counts.size() - 1] == "truck");
  // Mean and deviation of one training batch lie near those of all five.
  std::string first = dir + "/data_batch_1.bin";
  for (const char* ending : {"", ".gz", ".xz"}) {
    if (std::filesystem::exists(dir + "/data_batch_1.bin" + ending)) first = dir + "/data_batch_1.bin" + ending;
  }
  const Cifar10 batch = load_cifar10_files({first});
  CHECK(batch.images.shape() == Shape{10000, 3, 32, 32});
  for (std::size_t c = 0; c < 3; ++c) {
    double sum = 0, squares = 0;
    for (std::int64_t i = 0; i < 10000; ++i) {
      const std::uint8_t* plane = batch.images.data<std::uint8_t>() + (i * 3 + static_cast<std::int64_t>(c)) * 1024;
      for (int p = 0; p < 1024; ++p) {
        sum += plane[p] / 255.;
        squares += plane[p] / 255. * (plane[p] / 255.);
      }
    }
    const double n = 10000. * 1024, mean = sum / n;
    CHECK(std::abs(mean - kCifar10Normalization[c].mean) < 5e-3);
    CHECK(std::abs(std::sqrt(squares / n - mean * mean) - kCifar10Normalization[c].std) < 5e-3);
  }
}
