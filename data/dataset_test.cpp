#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <string>

#include "data/random.h"
#include "data/sampler.h"
#include "kernels/device/philox.cuh"
#include "levin/data.h"
#include "levin/ops.h"

using namespace levin;
using namespace levin::data;

namespace {

template <class T>
Tensor of(std::vector<T> values, const Shape& shape) {
  Tensor x = empty(shape, Device::cpu(), dtype_of<T>);
  std::copy(values.begin(), values.end(), x.mutable_data<T>());
  return x;
}
template <class T>
std::vector<T> values(const Tensor& x) {
  return {x.data<T>(), x.data<T>() + x.numel()};
}
Tensors gathered(const DatasetRef& d, std::vector<std::int64_t> indices) {
  return d->gather(indices, EpochRandom(Generator(0), 0));
}

}  // namespace

TEST_CASE("the host's Philox is the kernels' Philox") {
  for (std::uint32_t i = 0; i < 1000; ++i) {
    const std::uint64_t key = 0x9e3779b97f4a7c15u * (i + 1);
    const Counter c{i, i * 77777u, ~i, i << 16};
    const auto k = kernels::philox({c[0], c[1], c[2], c[3]}, static_cast<std::uint32_t>(key),
                                   static_cast<std::uint32_t>(key >> 32));
    REQUIRE(philox(c, key) == Counter{k.x0, k.x1, k.x2, k.x3});
  }
  // The vectors published with the paper's code.
  static_assert(philox({0, 0, 0, 0}, 0) == Counter{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u});
  constexpr std::uint32_t ones = 0xffffffffu;
  static_assert(philox({ones, ones, ones, ones}, ~std::uint64_t{0}) ==
                Counter{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu});
}

TEST_CASE("rows of tensors are gathered in any order, repeated, and one by one alike") {
  const DatasetRef d = tensor_dataset({of<float>({0, 1, 2, 3, 4, 5}, {3, 2}), of<std::int64_t>({7, 8, 9}, {3})});
  CHECK(d->size() == 3);
  const Tensors b = gathered(d, {2, 0, 2});
  CHECK(b[0].shape() == Shape{3, 2});
  CHECK(values<float>(b[0]) == std::vector<float>{4, 5, 0, 1, 4, 5});
  CHECK(values<std::int64_t>(b[1]) == std::vector<std::int64_t>{9, 7, 9});
  Generator g(0);
  const Sample s = d->get(1, g);
  CHECK(s[0].shape() == Shape{2});
  CHECK(s[1].shape() == Shape{});
  CHECK(values<float>(s[0]) == std::vector<float>{2, 3});
  CHECK_THROWS_AS((void)d->get(3, g), IndexError);
  CHECK_THROWS_AS((void)gathered(d, {0, -1}), IndexError);
}

TEST_CASE("fields of i8 and i16 are loaded as they are, by any number of workers") {
  const DatasetRef d = tensor_dataset(
      {of<std::int8_t>({-128, 1, -1, 127}, {4}), of<std::int16_t>({-32768, 2, -2, 3, 4, 5, 6, 32767}, {4, 2})});
  const Tensors b = gathered(d, {3, 0});
  CHECK(values<std::int8_t>(b[0]) == std::vector<std::int8_t>{127, -128});
  CHECK(values<std::int16_t>(b[1]) == std::vector<std::int16_t>{6, 32767, -32768, 2});
  for (const int workers : {0, 2}) {
    DataLoader loader(d, {.batch_size = 2, .num_workers = workers});
    std::vector<std::int16_t> shorts;
    for (const Batch& batch : loader) {
      const std::vector<std::int16_t> more = values<std::int16_t>(batch[1]);
      shorts.insert(shorts.end(), more.begin(), more.end());
    }
    CHECK(shorts == std::vector<std::int16_t>{-32768, 2, -2, 3, 4, 5, 6, 32767});
  }
}

TEST_CASE("views become rows of their own, fields of differing length are refused") {
  const Tensor x = of<float>({0, 1, 2, 3, 4, 5}, {2, 3});
  const DatasetRef d = tensor_dataset({as_strided(x, {3, 2}, Strides{{1, 3}}, 0)});
  CHECK(values<float>(gathered(d, {1})[0]) == std::vector<float>{1, 4});
  CHECK_THROWS_AS((void)tensor_dataset({}), DataError);
  CHECK_THROWS_AS((void)tensor_dataset({x, of<float>({1}, {1})}), DataError);
  CHECK_THROWS_AS((void)tensor_dataset({of<float>({1}, {})}), DataError);
  CHECK_THROWS_AS((void)tensor_dataset({Tensor()}), DataError);
  CHECK_THROWS_AS((void)tensor_dataset({empty({2}, Device::meta())}), DeviceError);
}

TEST_CASE("pictures become normalised floats, exactly as the formula says for every byte") {
  std::vector<std::uint8_t> bytes(512);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i);
  const Tensor images = of(bytes, {2, 1, 16, 16}), labels = of<std::uint8_t>({3, 255}, {2});
  const DatasetRef d = image_dataset(images, labels, kMnistNormalization);
  const Tensors b = gathered(d, {1, 0});
  CHECK(b[0].shape() == Shape{2, 1, 16, 16});
  CHECK(values<std::int64_t>(b[1]) == std::vector<std::int64_t>{255, 3});
  for (std::size_t i = 0; i < 512; ++i) {
    REQUIRE(b[0].data<float>()[i] == (static_cast<float>(i % 256) / 255.f - 0.1307f) / 0.3081f);
  }
  Generator g(0);
  const Sample s = d->get(1, g);
  CHECK(values<float>(s[0]) == std::vector<float>(b[0].data<float>(), b[0].data<float>() + 256));
  CHECK(*s[1].data<std::int64_t>() == 255);
  CHECK(gathered(image_dataset(images, labels), {0})[0].data<float>()[255] == 1.f);
  CHECK_THROWS_AS((void)image_dataset(images, of<std::uint8_t>({1}, {1})), DataError);
  CHECK_THROWS_AS((void)image_dataset(images, of<std::int64_t>({1, 2}, {2})), DTypeError);
  CHECK_THROWS_AS((void)image_dataset(images, labels, {.mean = 0, .std = 0}), ConfigError);
}

TEST_CASE("a transform changes samples, with random numbers of the sample's own") {
  const DatasetRef base = tensor_dataset({of<float>({0, 1, 2, 3}, {4})});
  const DatasetRef d = transform(base, [](Sample s, Generator& rng) {
    Tensor x = empty({2}, Device::cpu());
    x.mutable_data<float>()[0] = 10 * *s[0].data<float>();
    x.mutable_data<float>()[1] = static_cast<float>(rng.seed() % 1000003);
    return Sample{x};
  });
  const Tensors a = gathered(d, {0, 3}), b = gathered(d, {3});
  CHECK(a[0].data<float>()[2] == 30);
  CHECK(a[0].data<float>()[3] == b[0].data<float>()[1]);
  CHECK(a[0].data<float>()[1] != a[0].data<float>()[3]);
  CHECK_THROWS_AS((void)transform(nullptr, [](Sample s, Generator&) { return s; }), ConfigError);
  CHECK_THROWS_AS((void)transform(base, {}), ConfigError);
}

TEST_CASE("samples of a subset have the random numbers of their base, one by one and in batches") {
  const auto draw = [](Sample s, Generator& rng) {
    Tensor x = empty({2}, Device::cpu());
    x.mutable_data<float>()[0] = *s[0].data<float>();
    x.mutable_data<float>()[1] = static_cast<float>(rng.seed() % 1000003);
    return Sample{x};
  };
  const DatasetRef plain = tensor_dataset({of<float>({0, 1, 2, 3, 4, 5}, {6})}), drawn = transform(plain, draw);
  const std::vector<float> expected = values<float>(gathered(drawn, {5, 2, 4})[0]);
  const std::vector<std::int64_t> picked{0, 5, 2, 4};
  const auto all = [](std::span<const Sample> samples) { return collate(samples); };
  for (const DatasetRef& d : {subset(drawn, picked), transform(subset(plain, picked), draw),
                              subset(subset(drawn, {4, 5, 0, 2}), {2, 1, 3, 0})}) {
    CHECK(values<float>(gathered(d, {1, 2, 3})[0]) == expected);
    DataLoader a(d, {.batch_size = 4}), b(d, {.batch_size = 4, .collate = all});
    CHECK(values<float>((*a.begin())[0]) == values<float>((*b.begin())[0]));
  }
}

TEST_CASE("subsets and random splits select without changing") {
  const DatasetRef base = tensor_dataset({of<float>({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, {10})});
  const DatasetRef s = subset(base, {9, 3, 3});
  CHECK(s->size() == 3);
  CHECK(values<float>(gathered(s, {2, 0})[0]) == std::vector<float>{3, 9});
  CHECK_THROWS_AS((void)gathered(s, {3}), IndexError);
  CHECK_THROWS_AS((void)subset(base, {10}), IndexError);
  const auto parts = random_split(base, {7, 0, 3}, Generator(3));
  std::multiset<float> all;
  for (const DatasetRef& part : parts) {
    std::vector<std::int64_t> every(static_cast<std::size_t>(part->size()));
    std::iota(every.begin(), every.end(), 0);
    if (every.empty()) continue;
    for (const float v : values<float>(gathered(part, every)[0])) all.insert(v);
  }
  CHECK(parts[0]->size() == 7);
  CHECK(all == std::multiset<float>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  CHECK_THROWS_AS((void)random_split(base, {5, 4}, Generator(3)), DataError);
  CHECK_THROWS_AS((void)random_split(base, {11, -1}, Generator(3)), DataError);
}

TEST_CASE("collate stacks fields and names the field and sample that differ") {
  const Sample a{of<float>({1, 2}, {2}), of<std::int64_t>({5}, {})};
  const Sample b{of<float>({3, 4}, {2}), of<std::int64_t>({6}, {})};
  const Tensors stacked = collate(std::vector<Sample>{a, b});
  CHECK(values<float>(stacked[0]) == std::vector<float>{1, 2, 3, 4});
  CHECK(stacked[0].shape() == Shape{2, 2});
  CHECK(stacked[1].shape() == Shape{2});
  CHECK_THROWS_AS((void)collate(std::vector<Sample>{}), DataError);
  CHECK_THROWS_AS((void)collate(std::vector<Sample>{a, {b[0]}}), DataError);
  CHECK_THROWS_AS((void)collate(std::vector<Sample>{a, {b[1], b[1]}}), DTypeError);
  CHECK_THROWS_AS((void)collate(std::vector<Sample>{a, {of<float>({1}, {1}), b[1]}}), ShapeError);
  CHECK_THROWS_AS((void)collate(std::vector<Sample>{a, {Tensor(), b[1]}}), DataError);
}

TEST_CASE("the shuffle is the Fisher-Yates of the written rule") {
  // Repeated here from the words, so that the order of epochs cannot change unnoticed.
  const std::uint64_t seed = 0x123456789abcdefu;
  std::vector<std::int64_t> expected(1001);
  std::iota(expected.begin(), expected.end(), 0);
  for (std::uint32_t i = 1000; i >= 1; --i) {
    const Counter words = philox({i >> 2, 0, 7, 0x53485546u}, seed);
    std::swap(expected[i], expected[static_cast<std::size_t>((std::uint64_t{words[i % 4]} * (i + 1)) >> 32)]);
  }
  CHECK(random_sampler(1001, Generator(seed))->indices(7) == expected);
}

TEST_CASE("each index comes to each place equally often") {
  // 5 places of 6000 permutations: counts are binomial(6000, 1/5), sd 31; 6 sd bounds all 25 of them.
  std::vector<int> counts(25);
  const SamplerRef sampler = random_sampler(5, Generator(11));
  for (std::int64_t e = 0; e < 6000; ++e) {
    const auto order = sampler->indices(e);
    for (std::size_t p = 0; p < 5; ++p) ++counts[p * 5 + static_cast<std::size_t>(order[p])];
  }
  const double sd = std::sqrt(6000 * 0.2 * 0.8);
  for (const int c : counts) CHECK(std::abs(c - 1200) < 6 * sd);
}

TEST_CASE("weighted draws follow the weights, and an index of weight 0 never comes") {
  const std::int64_t n = 40000;
  const auto drawn = weighted_sampler({0, 1, 0, 3, 0}, n, Generator(2))->indices(0);
  const auto ones = std::count(drawn.begin(), drawn.end(), 1), threes = std::count(drawn.begin(), drawn.end(), 3);
  CHECK(ones + threes == n);
  CHECK(std::abs(static_cast<double>(ones) - n * 0.25) < 6 * std::sqrt(n * 0.25 * 0.75));
  CHECK(weighted_sampler({0, 1, 0, 3, 0}, n, Generator(2))->indices(1) != drawn);
  CHECK_THROWS_AS((void)weighted_sampler({0, 0}, 1, Generator(2)), ConfigError);
  CHECK_THROWS_AS((void)weighted_sampler({1, -1}, 1, Generator(2)), ConfigError);
  CHECK_THROWS_AS((void)weighted_sampler({1, NAN}, 1, Generator(2)), ConfigError);
  CHECK_THROWS_AS((void)weighted_sampler({1e308, 1e308}, 1, Generator(2)), ConfigError);
  CHECK_THROWS_AS((void)random_sampler(-1, Generator(2)), ConfigError);
  CHECK_THROWS_AS((void)random_sampler((std::int64_t{1} << 32) + 1, Generator(2)), ConfigError);
}

TEST_CASE("pictures of several channels are normalised each with its own mean and deviation") {
  std::vector<std::uint8_t> bytes(2 * 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(10 * i);
  const Tensor images = of(bytes, {2, 3, 2, 2}), labels = of<std::uint8_t>({1, 2}, {2});
  const std::vector<Normalization> channels{{0.5f, 0.25f}, {0.1f, 2.f}, {0.f, 1.f}};
  const DatasetRef d = image_dataset(images, labels, channels);
  const Tensors b = gathered(d, {1, 0});
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const std::size_t from = (i + 12) % 24;
    const Normalization n = channels[i / 4 % 3];
    REQUIRE(b[0].data<float>()[i] == (static_cast<float>(bytes[from]) / 255.f - n.mean) / n.std);
  }
  Generator g(0);
  CHECK(values<float>(d->get(1, g)[0]) == std::vector<float>(b[0].data<float>(), b[0].data<float>() + 12));
  CHECK_THROWS_AS((void)image_dataset(images, labels, {{0.5f, 1.f}, {0.5f, 1.f}}), ShapeError);
  CHECK_THROWS_AS((void)image_dataset(of(bytes, {2, 12}), labels, channels), ShapeError);
  CHECK_THROWS_AS((void)image_dataset(images, labels, {{0.f, 1.f}, {0.f, 0.f}, {0.f, 1.f}}), ConfigError);
  CHECK_THROWS_AS((void)image_dataset(of<std::uint8_t>({}, {2, 0, 2, 2}), labels, std::vector<Normalization>{}),
                  ConfigError);
}

TEST_CASE("concatenated parts stand one behind the other, and each sample has random numbers of its own") {
  const auto draw = [](Sample s, Generator& rng) {
    return Sample{s[0], of<std::int64_t>({rng.integer(0, std::int64_t{1} << 40)}, {})};
  };
  const DatasetRef a = tensor_dataset({of<float>({0, 1, 2}, {3})}), b = tensor_dataset({of<float>({3, 4}, {2})}),
                   none = subset(a, {});
  const DatasetRef all = concat({transform(a, draw), none, transform(b, draw)});
  CHECK(all->size() == 5);
  const Tensors batch = gathered(all, {4, 0, 3, 2, 1});
  CHECK(values<float>(batch[0]) == std::vector<float>{4, 0, 3, 2, 1});
  const std::vector<std::int64_t> drawn = values<std::int64_t>(batch[1]);
  CHECK(std::set<std::int64_t>(drawn.begin(), drawn.end()).size() == 5);
  // The random numbers are those of the index in the whole, as for one dataset of five.
  const DatasetRef one = transform(tensor_dataset({of<float>({0, 1, 2, 3, 4}, {5})}), draw);
  CHECK(values<std::int64_t>(gathered(one, {4, 0, 3, 2, 1})[1]) == drawn);
  DataLoader loader(all, {.batch_size = 2, .shuffle = true, .num_workers = 1});
  std::multiset<float> seen;
  for (const Batch& x : loader) {
    for (const float v : values<float>(x[0])) seen.insert(v);
  }
  CHECK(seen == std::multiset<float>{0, 1, 2, 3, 4});
  Generator g(0);
  CHECK_THROWS_AS((void)all->get(5, g), IndexError);
  CHECK_THROWS_AS((void)all->get(-1, g), IndexError);
  CHECK_THROWS_AS((void)concat({}), ConfigError);
  CHECK_THROWS_AS((void)concat({a, nullptr}), ConfigError);
}

TEST_CASE("a random split by fractions has whole parts that are all samples, what is left over in the first") {
  const DatasetRef base = tensor_dataset({of<float>({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, {10})});
  const auto sizes = [&](std::vector<double> fractions) {
    std::vector<std::int64_t> all;
    for (const DatasetRef& part : random_split(base, Fractions{std::move(fractions)}, Generator(3)))
      all.push_back(part->size());
    return all;
  };
  using Sizes = std::vector<std::int64_t>;
  CHECK(sizes({0.7, 0.3}) == Sizes{7, 3});
  CHECK(sizes({0.25, 0.25, 0.5}) == Sizes{3, 2, 5});
  CHECK(sizes({1.0 / 3, 1.0 / 3, 1.0 / 3}) == Sizes{4, 3, 3});
  CHECK(sizes({0, 1}) == Sizes{0, 10});
  const auto by_parts = random_split(base, Fractions{{0.7, 0.3}}, Generator(3)),
             by_sizes = random_split(base, {7, 3}, Generator(3));
  CHECK(values<float>(gathered(by_parts[1], {0, 1, 2})[0]) == values<float>(gathered(by_sizes[1], {0, 1, 2})[0]));
  for (const std::vector<double>& wrong : {std::vector<double>{0.5, 0.4}, {1.5, -0.5}, {std::nan(""), 1}, {}})
    CHECK_THROWS_AS((void)sizes(wrong), DataError);
}

TEST_CASE("the augmentation of the manual gives other pictures each epoch, the same for any number of workers") {
  std::vector<std::uint8_t> bytes(8 * 3 * 2 * 4);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i);
  const DatasetRef train = image_dataset(of(bytes, {8, 3, 2, 4}), of<std::uint8_t>({0, 1, 2, 3, 4, 5, 6, 7}, {8}));
  const auto augmented = transform(train, [](Sample s, Generator& rng) {
    if (rng.uniform() < 0.5) s[0] = flip(s[0], {2});
    s[0] = s[0] * rng.normal(1, 0.1);
    return s;
  });
  const auto epochs = [&](int workers) {
    DataLoader loader(augmented, {.batch_size = 4, .num_workers = workers, .generator = Generator(9)});
    std::vector<std::vector<float>> all;
    for (int e = 0; e < 2; ++e) {
      for (const Batch& b : loader) all.push_back(values<float>(b[0]));
    }
    return all;
  };
  const auto expected = epochs(0);
  CHECK(expected[0] != expected[2]);
  int mirrored = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    const float* const row = expected[i / 4].data() + i % 4 * 24;
    mirrored += row[1] > row[2];
  }
  CHECK(mirrored > 0);
  CHECK(mirrored < 8);
  CHECK(epochs(1) == expected);
}
