#include <doctest/doctest.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "data/idx.h"
#include "levin/data.h"
#include "levin/serialize.h"
#include "tensor/core/formats_test.h"
#include "tests/datasets.h"
#include "tests/skip.h"
#include "tests/temporary.h"

using namespace levin;
using namespace levin::data;
using namespace levin::test;

namespace {

const auto reads = [](detail::Source& s) { (void)read_idx(s); };

Tensor parsed(const std::string& bytes) {
  detail::MemorySource source("memory", std::as_bytes(std::span<const char>(bytes)));
  return read_idx(source);
}
template <class T>
std::vector<T> values(const Tensor& x) {
  return {x.data<T>(), x.data<T>() + x.numel()};
}

std::string idx(unsigned type, const std::vector<std::uint32_t>& dims, const std::string& data) {
  std::string out{'\0', '\0', static_cast<char>(type), static_cast<char>(dims.size())};
  for (const std::uint32_t d : dims) {
    for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(d >> shift & 0xff);
  }
  return out + data;
}

std::string gzip(const std::string& content) {
  z_stream z{};
  REQUIRE(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(deflateBound(&z, content.size()), '\0');
  std::string input = content;
  z.next_in = reinterpret_cast<Bytef*>(input.data());
  z.avail_in = static_cast<uInt>(input.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  REQUIRE(deflate(&z, Z_FINISH) == Z_STREAM_END);
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

unsigned long checksum(const Tensor& x) { return crc32(0, x.data<std::uint8_t>(), static_cast<uInt>(x.numel())); }

void write_split(const TemporaryFolder& folder, const std::string& images, const std::string& labels) {
  write_file_atomically(folder / "t10k-images-idx3-ubyte", images);
  write_file_atomically(folder / "t10k-labels-idx1-ubyte", labels);
}

}  // namespace

TEST_CASE("IDX files of every type read, plain and gzipped, big-endian") {
  const auto both = [](const std::string& bytes, const auto& check) {
    check(parsed(bytes));
    check(parsed(gzip(bytes)));
  };
  both(idx(8, {2, 3}, std::string("\0\1\2\3\4\xff", 6)), [](const Tensor& x) {
    CHECK(x.shape() == Shape{2, 3});
    CHECK(values<std::uint8_t>(x) == std::vector<std::uint8_t>{0, 1, 2, 3, 4, 255});
  });
  both(idx(9, {2}, "\x80\x7f"), [](const Tensor& x) {
    CHECK(values<std::int8_t>(x) == std::vector<std::int8_t>{-128, 127});
  });
  both(idx(11, {2}, std::string("\xff\xfe\x01\x02", 4)), [](const Tensor& x) {
    CHECK(values<std::int16_t>(x) == std::vector<std::int16_t>{-2, 258});
  });
  both(idx(12, {1}, std::string("\0\0\1\2", 4)),
       [](const Tensor& x) { CHECK(values<std::int32_t>(x) == std::vector<std::int32_t>{258}); });
  both(idx(13, {1}, std::string("\x3f\x80\0\0", 4)),
       [](const Tensor& x) { CHECK(values<float>(x) == std::vector<float>{1.f}); });
  both(idx(14, {1, 1, 1, 1}, std::string("\x3f\xf0\0\0\0\0\0\0", 8)), [](const Tensor& x) {
    CHECK(x.rank() == 4);
    CHECK(values<double>(x) == std::vector<double>{1.});
  });
  both(idx(8, {0, 28, 28}, ""), [](const Tensor& x) { CHECK(x.shape() == Shape{0, 28, 28}); });
}

TEST_CASE("an IDX file cut at any byte, or with any bit of its header flipped, is refused or read, nothing else") {
  const std::string good = idx(8, {2, 3, 4}, std::string(24, 'x'));
  check_truncations(good, reads);
  // Sizes contradict the file's, zeros and rank the format; of the types int8 alone (9 for 8) has the same width.
  CHECK(check_bit_flips(good, 0, 16, reads) == 1);
  const std::string shorts = idx(11, {4}, "12345678");
  check_truncations(shorts, reads);
  CHECK(check_bit_flips(shorts, 0, 8, reads) == 0);
}

TEST_CASE("a gzipped IDX file cut at any byte, or with any bit flipped, is refused or read, nothing else") {
  std::string data;
  for (int i = 0; i < 600; ++i) data += static_cast<char>(i * i >> 3);
  const std::string good = gzip(idx(8, {20, 30}, data));
  check_truncations(good, reads);
  // Only unused bits may change unseen: gzip's time, level, system and text flag, and the bits that fill the last byte
  // of the deflate stream. The check sum guards the rest.
  CHECK(check_bit_flips(good, 0, good.size(), reads) <= 8 * 6 + 1 + 7);
}

TEST_CASE("thousands of randomly damaged IDX files never do more than throw FormatError") {
  const std::vector<std::string> tokens = {std::string(4, '\0'), "\xff\xff\xff\xff", "\x1f\x8b", "\x08\x03"};
  check_mutations(idx(8, {2, 3, 4}, std::string(24, 'x')), 10000, tokens, reads);
  check_mutations(gzip(idx(8, {2, 3, 4}, std::string(24, 'x'))), 10000, tokens, reads);
}

TEST_CASE("wrong IDX headers are refused with the value got and the one expected") {
  CHECK(contains(refusal("PK\3\4............", reads), "bytes 80 and 75, expected 0 and 0"));
  CHECK(contains(refusal(idx(10, {1}, "1"), reads), "element type is 10"));
  CHECK(contains(refusal(idx(8, {}, ""), reads), "rank is 0"));
  CHECK(contains(refusal(idx(8, {1, 1, 1, 1, 1}, "1"), reads), "rank is 5"));
  CHECK(contains(refusal(idx(8, {3}, "12"), reads), "the data have 2 bytes, expected 3 for shape [3]"));
  CHECK(contains(refusal(idx(8, {0xffffffff, 0xffffffff}, "12"), reads), "2^48"));
  CHECK(contains(refusal(idx(14, {0xffffffff, 0xffff}, "12"), reads), "expected 2251765453422600"));
  CHECK(contains(refusal("", reads), "ends within the 4 bytes"));
}

TEST_CASE("gzip that holds more, less or other than its IDX header says is refused before memory is spent") {
  reset_peak_memory(Device::cpu());
  const std::int64_t before = memory_stats(Device::cpu()).peak;
  CHECK(contains(refusal(gzip(idx(8, {4000, 4000, 200}, "tiny")), reads), "hold at most"));
  CHECK(memory_stats(Device::cpu()).peak == before);
  // A bomb: far more data than the header implies. Only the implied size is unpacked.
  CHECK(contains(refusal(gzip(idx(8, {10}, std::string(50'000'000, '\0'))), reads), "more than the 10 bytes"));
  CHECK(contains(refusal(gzip(idx(8, {3000}, std::string(2000, 'x'))), reads),
                 "unpacks to 2000 bytes of data, expected 3000"));
  CHECK(contains(refusal(gzip(idx(8, {3}, "abc")) + "garbage", reads), "7 bytes follow the gzip stream"));
  CHECK(contains(refusal(gzip(idx(8, {3}, "abc")) + gzip("more"), reads), "follow the gzip stream"));
  std::string wrong_sum = gzip(idx(8, {3}, "abc"));
  wrong_sum[wrong_sum.size() - 6] ^= 1;
  CHECK(contains(refusal(wrong_sum, reads), "damaged"));
  CHECK(contains(refusal(gzip("PK..............."), reads), "is no IDX file"));
}

TEST_CASE("images and labels must fit each other and be digits") {
  const TemporaryFolder folder;
  const std::string images = idx(8, {2, 28, 28}, std::string(2 * 784, 'x'));
  const auto refused = [&](const std::string& i, const std::string& l) {
    write_split(folder, i, l);
    try {
      (void)load_mnist(folder.path(), Split::test);
    } catch (const FormatError& e) { return std::string(e.what()); }
    return std::string();
  };
  CHECK(refused(images, idx(8, {2}, "\1\2")) == "");
  CHECK(contains(refused(images, idx(8, {3}, "\1\2\3")), "labels are u8 [3] on cpu, expected u8 [2]"));
  CHECK(contains(refused(images, idx(8, {2}, "\1\x0a")), "label 1 is 10, expected 0 to 9"));
  CHECK(contains(refused(idx(8, {2, 28, 27}, std::string(2 * 756, 'x')), idx(8, {2}, "\1\2")),
                 "expected u8 [N, 28, 28]"));
  CHECK(contains(refused(images, idx(9, {2}, "\1\2")), "labels are i8"));
  CHECK(!has_mnist(folder.path(), Split::train));
  CHECK(has_mnist(folder.path(), Split::test));
  CHECK_THROWS_AS((void)mnist(folder.path(), Split::train), FileError);
  CHECK_THROWS_AS((void)mnist(folder / "absent", Split::test), FileError);
}

TEST_CASE("a digit set gives pictures with a channel in [0, 1] and i64 labels") {
  const TemporaryFolder folder;
  write_file_atomically(folder / "t10k-images-idx3-ubyte.gz", gzip(idx(8, {2, 28, 28}, std::string(2 * 784, '\xff'))));
  write_file_atomically(folder / "t10k-labels-idx1-ubyte", idx(8, {2}, "\7\3"));
  DataLoader loader(mnist(folder.path(), Split::test), {.batch_size = 2});
  for (const Batch& b : loader) {
    CHECK(b[0].shape() == Shape{2, 1, 28, 28});
    CHECK(b[0].dtype() == DType::f32);
    CHECK(values<float>(b[0]) == std::vector<float>(2 * 784, 1.f));
    CHECK(values<std::int64_t>(b[1]) == std::vector<std::int64_t>{7, 3});
  }
}

TEST_CASE("the real MNIST reads with the published content") {
  const std::string dir = levin::test::real_data("mnist");
  if (dir.empty()) return levin::test::skip("no MNIST: set LEVIN_DATA to a folder that has mnist/");
  const auto [images, labels] = load_mnist(dir, Split::train);
  CHECK(images.shape() == Shape{60000, 28, 28});
  CHECK(checksum(images) == 0xf3639b56);
  CHECK(checksum(labels) == 0xba07e8ef);
  std::array<int, 10> counts{};
  for (const std::uint8_t label : values<std::uint8_t>(labels)) ++counts[label];
  CHECK(counts == std::array<int, 10>{5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949});
  const auto [test_images, test_labels] = load_mnist(dir, Split::test);
  CHECK(test_images.shape() == Shape{10000, 28, 28});
  CHECK(checksum(test_images) == 0xe4ca5f57);
  CHECK(checksum(test_labels) == 0xee8604d9);
  // Mean and deviation of the pixels are those of the usual normalization.
  double sum = 0, squares = 0;
  for (const std::uint8_t p : values<std::uint8_t>(images)) {
    sum += p / 255.;
    squares += p / 255. * (p / 255.);
  }
  const double n = static_cast<double>(images.numel()), mean = sum / n;
  CHECK(std::abs(mean - kMnistNormalization.mean) < 5e-5);
  CHECK(std::abs(std::sqrt(squares / n - mean * mean) - kMnistNormalization.std) < 5e-5);
}

TEST_CASE("drawn digits are a function of seed, split and index") {
  const auto [a, la] = draw_digits(Split::train, Generator(1), 50);
  const auto [b, lb] = draw_digits(Split::train, Generator(1), 20);
  CHECK(a.shape() == Shape{50, 28, 28});
  CHECK(std::memcmp(a.data<std::uint8_t>(), b.data<std::uint8_t>(), 20 * 784) == 0);
  CHECK(std::memcmp(la.data<std::uint8_t>(), lb.data<std::uint8_t>(), 20) == 0);
  CHECK(values<std::uint8_t>(draw_digits(Split::test, Generator(1), 50).first) != values<std::uint8_t>(a));
  CHECK(values<std::uint8_t>(draw_digits(Split::train, Generator(2), 50).first) != values<std::uint8_t>(a));
  CHECK_THROWS_AS((void)draw_digits(Split::test, Generator(1), -1), ConfigError);
}

TEST_CASE("a dataset of drawn digits has the drawn ones, whichever thread asks for them first") {
  constexpr std::int64_t kCount = 300;
  const auto [images, labels] = draw_digits(Split::train, Generator(1), kCount);
  const DatasetRef digits = generated_digits(Split::train, Generator(1), kCount);
  REQUIRE(digits->size() == kCount);
  const EpochRandom random(Generator(2), 0);
  std::vector<Tensors> all(4);
  {
    std::vector<std::jthread> threads;
    for (std::size_t t = 0; t < all.size(); ++t) {
      threads.emplace_back([&, t] {
        std::vector<std::int64_t> indices(kCount);
        std::iota(indices.begin(), indices.end(), 0);
        std::rotate(indices.begin(), indices.begin() + static_cast<std::ptrdiff_t>(t), indices.end());
        all[t] = digits->gather(indices, random);
      });
    }
  }
  for (std::size_t t = 0; t < all.size(); ++t) {
    REQUIRE(all[t][0].shape() == Shape{kCount, 1, 28, 28});
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < kCount; ++i) {
      const std::int64_t from = (i + static_cast<std::int64_t>(t)) % kCount;
      wrong += all[t][1].data<std::int64_t>()[i] != labels.data<std::uint8_t>()[from];
      for (std::int64_t p = 0; p < 784; ++p) {
        wrong += all[t][0].data<float>()[i * 784 + p] !=
                 static_cast<float>(images.data<std::uint8_t>()[from * 784 + p]) / 255;
      }
    }
    CHECK(wrong == 0);
  }
  Generator rng(1);
  CHECK(generated_digits(Split::train, Generator(1), kCount)->get(7, rng)[1].item<std::int64_t>() ==
        labels.data<std::uint8_t>()[7]);
  CHECK_THROWS_AS((void)digits->gather(std::vector<std::int64_t>{0, kCount}, random), IndexError);
}

TEST_CASE("drawn digits of one kind look alike: the nearest class mean names most of them") {
  const auto [images, labels] = draw_digits(Split::train, Generator(3), 2000);
  const auto [tests, truth] = draw_digits(Split::test, Generator(3), 500);
  std::array<std::array<double, 784>, 10> means{};
  std::array<int, 10> counts{};
  for (std::int64_t i = 0; i < 2000; ++i) {
    const std::uint8_t label = labels.data<std::uint8_t>()[i];
    ++counts[label];
    for (std::size_t p = 0; p < 784; ++p)
      means[label][p] += images.data<std::uint8_t>()[i * 784 + static_cast<std::int64_t>(p)];
  }
  for (std::size_t c = 0; c < 10; ++c) {
    CHECK(counts[c] > 100);  // 200 expected, sd 13
    for (double& m : means[c]) m /= counts[c];
  }
  int right = 0;
  for (std::int64_t i = 0; i < 500; ++i) {
    std::size_t best = 0;
    double least = 1e300;
    for (std::size_t c = 0; c < 10; ++c) {
      double d = 0;
      for (std::size_t p = 0; p < 784; ++p) {
        const double x = tests.data<std::uint8_t>()[i * 784 + static_cast<std::int64_t>(p)] - means[c][p];
        d += x * x;
      }
      if (d < least) {
        least = d;
        best = c;
      }
    }
    right += best == truth.data<std::uint8_t>()[i];
  }
  // On the real digits this method is right for 82 %: the drawn ones should be neither harder nor easier.
  CHECK(right > 300);
  CHECK(right < 490);
}
