#include "kernels/random/random.cuh"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "kernels/executor/rows_test.h"

namespace levin::kernels {
namespace {

using test::levels;

// Runs `draw` (on, out, n, range) at every level and thread count; all bits must agree with base on one thread, and
// with a draw of fewer elements and one that starts later.
template <class T, class Draw>
std::vector<T> same_everywhere(const Draw& draw, RandomRange range = {0x0123456789abcdefu, 0xfffff000u}) {
  constexpr int64_t n = 100003, part = 1237, skip = 40000;
  std::vector<T> want(n);
  const int threads = num_threads();
  set_num_threads(1);
  draw(Cpu{CpuLevel::base}, want.data(), n, range);
  for (const CpuLevel level : levels()) {
    INFO("level ", std::string(name(level)));
    for (const int count : {1, 2, 3}) {
      set_num_threads(count);
      std::vector<T> got(n + 1, T(7));
      draw(Cpu{level}, got.data(), n, range);
      CHECK(std::memcmp(got.data(), want.data(), n * sizeof(T)) == 0);
      CHECK(float(got[n]) == 7.0f);  // nothing after the end
    }
    std::vector<T> got(part);
    draw(Cpu{level}, got.data(), part, range);
    CHECK(std::memcmp(got.data(), want.data(), part * sizeof(T)) == 0);
    draw(Cpu{level}, got.data(), part, {range.seed, range.offset + skip / 4});
    CHECK(std::memcmp(got.data(), want.data() + skip, part * sizeof(T)) == 0);
  }
  set_num_threads(threads);
  return want;
}

template <class T>
std::vector<double> in_double(const std::vector<T>& x) {
  std::vector<double> y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = double(float(x[i]));
  if constexpr (std::is_same_v<T, double>) y = x;
  return y;
}

struct Moments {
  double mean, variance, third, fourth;
};
Moments moments(const std::vector<double>& x) {
  const double n = double(x.size());
  Moments m{};
  for (const double v : x) m.mean += v / n;
  for (const double v : x) {
    const double d = v - m.mean;
    m.variance += d * d / n, m.third += d * d * d / n, m.fourth += d * d * d * d / n;
  }
  return m;
}

double correlation(const std::vector<double>& x, const std::vector<double>& y, size_t lag = 0) {
  const Moments a = moments(x), b = moments(y);
  double s = 0;
  for (size_t i = 0; i + lag < x.size(); ++i) s += (x[i] - a.mean) * (y[i + lag] - b.mean);
  return s / (double(x.size()) * std::sqrt(a.variance * b.variance));
}

TEST_CASE("Philox4x32-10 gives the known answers of its authors") {
  auto check = [](PhiloxBlock counter, uint32_t key0, uint32_t key1, PhiloxBlock want) {
    const PhiloxBlock got = philox(counter, key0, key1);
    CHECK(got.x0 == want.x0);
    CHECK(got.x1 == want.x1);
    CHECK(got.x2 == want.x2);
    CHECK(got.x3 == want.x3);
  };
  constexpr uint32_t ones = 0xffffffffu;
  check({0, 0, 0, 0}, 0, 0, {0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u});
  check({ones, ones, ones, ones}, ones, ones, {0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu});
  check({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, 0xa4093822u, 0x299f31d0u,
        {0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u});
}

TEST_CASE("the vector form of Philox makes the words of its counters, also over the end of a 32-bit word") {
  const uint64_t seed = 0xa4093822299f31d0u, start = 0xfffffffau;
  alignas(64) uint32_t words[4 * 128];
  auto check = [&] {
    for (uint64_t b = 0; b < 13; ++b) {
      const uint64_t c = start + b;
      const PhiloxBlock want = philox({uint32_t(c), uint32_t(c >> 32), 1, 0}, uint32_t(seed), uint32_t(seed >> 32));
      REQUIRE(words[4 * b] == want.x0);
      REQUIRE(words[4 * b + 1] == want.x1);
      REQUIRE(words[4 * b + 2] == want.x2);
      REQUIRE(words[4 * b + 3] == want.x3);
    }
  };
  cpu::base::random_words(seed, start, 1, 13, words);
  check();
#if LEVIN_X86_LEVELS
  if (cpu_level() >= CpuLevel::v3) cpu::v3::random_words(seed, start, 1, 13, words), check();
  if (cpu_level() >= CpuLevel::v4) cpu::v4::random_words(seed, start, 1, 13, words), check();
#endif
}

// n = 100003 numbers: a mean of n strays by sigma / sqrt(n); five of those are allowed.
constexpr double kStray = 5 / 316.2;

TEST_CASE_TEMPLATE("uniform numbers have the same bits everywhere, the right moments, and stay below the end", T, float,
                   double, f16, bf16) {
  const auto draw = [](const Cpu& on, T* out, int64_t n, RandomRange r) { cpu::uniform(on, out, n, r, 0.0, 1.0); };
  const std::vector<double> x = in_double(same_everywhere<T>(draw));
  for (const double v : x) REQUIRE((v >= 0 && v < 1));
  const Moments m = moments(x);
  const double half_step = std::is_same_v<T, bf16> ? 0x1p-9 : 0;  // bf16 has 256 values: their mean is below 1/2
  CHECK(std::fabs(m.mean - (0.5 - half_step)) < kStray * std::sqrt(1.0 / 12) + 0x1p-12);
  CHECK(std::fabs(m.variance - 1.0 / 12) < kStray * std::sqrt(1.0 / 180));
  CHECK(std::fabs(correlation(x, x, 1)) < kStray);
  CHECK(std::fabs(correlation(x, x, 4)) < kStray);
  const std::vector<T> y = same_everywhere<T>(
      [](const Cpu& on, T* out, int64_t n, RandomRange r) { cpu::uniform(on, out, n, r, -3.0, 1.7); });
  for (size_t i = 0; i < y.size(); ++i) REQUIRE((float(y[i]) >= -3 && double(float(y[i])) <= double(float(T(1.7)))));
}

TEST_CASE_TEMPLATE("normal numbers have the same bits everywhere and the right moments", T, float, double, f16, bf16) {
  const auto draw = [](const Cpu& on, T* out, int64_t n, RandomRange r) { cpu::normal(on, out, n, r, 0.0, 1.0); };
  const std::vector<double> x = in_double(same_everywhere<T>(draw));
  const Moments m = moments(x);
  CHECK(std::fabs(m.mean) < kStray);
  CHECK(std::fabs(m.variance - 1) < kStray * std::sqrt(2.0) + 0x1p-12);
  CHECK(std::fabs(m.third) < kStray * std::sqrt(15.0));
  CHECK(std::fabs(m.fourth - 3) < kStray * std::sqrt(96.0) + 0x1p-10);
  CHECK(std::fabs(correlation(x, x, 1)) < kStray);
  // Kolmogorov and Smirnov at 1e-4: 2.2 / sqrt(n); rounding to 16 bits moves steps of up to 2^-9.
  std::vector<double> sorted = x;
  std::sort(sorted.begin(), sorted.end());
  double distance = 0;
  for (size_t i = 0; i < sorted.size(); ++i)
    distance = std::max(distance, std::fabs(std::erfc(-sorted[i] / std::sqrt(2.0)) / 2 - double(i) / double(x.size())));
  CHECK(distance < 2.2 / 316.2 + (sizeof(T) == 2 ? 0x1p-9 : 0));
  same_everywhere<T>([](const Cpu& on, T* out, int64_t n, RandomRange r) { cpu::normal(on, out, n, r, 0.3, 1.7); });
}

TEST_CASE("normal numbers are the Box-Muller transform of their words") {
  const RandomRange range{5, 77};
  std::vector<float> z(4096);
  std::vector<double> w(4096);
  cpu::normal(Cpu{}, z.data(), 4096, range, 0.0, 1.0);
  cpu::normal(Cpu{}, w.data(), 4096, range, 0.0, 1.0);
  for (size_t i = 0; i < 4096; i += 4) {
    const PhiloxBlock b = philox({uint32_t(77 + i / 4), 0, 0, 0}, 5, 0);
    const PhiloxBlock l = philox({uint32_t(77 + i / 4), 0, 1, 0}, 5, 0);
    const double pi = 3.14159265358979323846;
    const double u = double((b.x0 >> 1) | 1) * 0x1p-31,
                 a = (double(b.x1 >> 30) + double(int32_t(b.x1 << 2)) * 0x1p-32) * pi / 2;
    const double r = std::sqrt(-2 * std::log(u));
    // u is rounded to 24 bits before the logarithm, which near u = 1 is -log(u) + 2^-25.
    const double eps = 8 * 0x1p-24 + 0x1p-24 / (r * r + 0x1p-24);
    REQUIRE(std::fabs(double(z[i]) - r * std::cos(a)) <= eps * (1 + r));
    REQUIRE(std::fabs(double(z[i + 1]) - r * std::sin(a)) <= eps * (1 + r));
    const double u64 = unit_double(b.x0, l.x0 | (1u << 11)), r64 = std::sqrt(-2 * std::log(u64));
    const double a64 = a + double(l.x1 >> 11) * 0x1p-53 * pi / 2;
    REQUIRE(std::fabs(w[i] - r64 * std::cos(a64)) <= 16 * 0x1p-53 * (1 + r64));
    REQUIRE(std::fabs(w[i + 1] - r64 * std::sin(a64)) <= 16 * 0x1p-53 * (1 + r64));
  }
}

TEST_CASE("integers are uniform in their range, for narrow and wide ranges and every type") {
  const std::vector<int64_t> x = same_everywhere<int64_t>([](const Cpu& on, int64_t* out, int64_t n, RandomRange r) {
    cpu::randint(on, out, n, r, int64_t{-3}, int64_t{4});
  });
  std::vector<double> count(7);
  for (const int64_t v : x) {
    REQUIRE((v >= -3 && v < 4));
    count[size_t(v + 3)] += 1;
  }
  double chi = 0;
  for (const double c : count) chi += (c - double(x.size()) / 7) * (c - double(x.size()) / 7) / (double(x.size()) / 7);
  CHECK(chi < 35);  // six degrees of freedom: 4e-6
  const int64_t low = -(int64_t{1} << 62), high = (int64_t{1} << 62) + 12345;
  const std::vector<int64_t> wide = same_everywhere<int64_t>(
      [=](const Cpu& on, int64_t* out, int64_t n, RandomRange r) { cpu::randint(on, out, n, r, low, high); });
  double mean = 0;
  for (const int64_t v : wide) {
    REQUIRE((v >= low && v < high));
    mean += double(v) / double(wide.size());
  }
  CHECK(std::fabs(mean) < kStray * 0x1p63 / std::sqrt(12.0));
  same_everywhere<uint8_t>([](const Cpu& on, uint8_t* out, int64_t n, RandomRange r) {
    cpu::randint(on, out, n, r, int64_t{0}, int64_t{256});
  });
  same_everywhere<float>(
      [](const Cpu& on, float* out, int64_t n, RandomRange r) { cpu::randint(on, out, n, r, int64_t{0}, int64_t{9}); });
}

TEST_CASE("dropout zeroes a share of p and scales the rest; the same range drops the same places") {
  for (const double p : {0.0, 0.25, 1.0}) {
    CAPTURE(p);
    std::vector<float> x(100003), gy(x.size());
    for (size_t i = 0; i < x.size(); ++i) x[i] = float(i % 8) + 1;  // no zeros; a period that divides 40000, as 16 does
    for (size_t i = 0; i < x.size(); ++i) gy[i] = float(i % 16) - 20;
    const auto dropped = [&](const std::vector<float>& from) {
      return same_everywhere<float>(
          [&](const Cpu& on, float* out, int64_t n, RandomRange r) { cpu::dropout(on, from.data(), out, n, r, p); });
    };
    const std::vector<float> y = dropped(x), gx = dropped(gy);
    double zeros = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const float scale = float(1 / (1 - p));
      REQUIRE((y[i] == 0 || y[i] == x[i] * scale));
      REQUIRE(gx[i] == (y[i] == 0 ? 0.0f : gy[i] * scale));
      zeros += y[i] == 0;
    }
    CHECK(std::fabs(zeros / double(x.size()) - p) <= kStray * std::sqrt(p * (1 - p)));
  }
}

TEST_CASE("a permutation holds every index once and is the same at every level") {
  for (const int64_t n : {0, 1, 2, 5, 511, 512, 513, 10000}) {
    std::vector<int64_t> want(size_t(n), -1);
    cpu::permutation(Cpu{CpuLevel::base}, want.data(), n, RandomRange{9, 1});
    std::vector<char> seen(size_t(n), 0);
    for (const int64_t v : want) {
      REQUIRE((v >= 0 && v < n));
      seen[size_t(v)] += 1;
    }
    for (const char c : seen) REQUIRE(c == 1);
    for (const CpuLevel level : levels()) {
      std::vector<int64_t> got(size_t(n), -1);
      cpu::permutation(Cpu{level}, got.data(), n, RandomRange{9, 1});
      CHECK(got == want);
    }
  }
  std::vector<int> count(6);
  for (uint64_t t = 0; t < 6000; ++t) {  // the six orders of three things
    int64_t p[3];
    cpu::permutation(Cpu{}, p, int64_t{3}, RandomRange{1, t});
    count[size_t(p[0] * 2 + (p[1] > p[2]))] += 1;
  }
  for (const int c : count) CHECK(std::abs(c - 1000) < 5 * 29);
}

TEST_CASE("streams of different forks and seeds do not correlate") {
  const Generator root(42);
  std::vector<std::vector<double>> streams;
  for (const Generator& g : {root, root.fork("a"), root.fork("b"), root.fork("a").fork("b"), Generator(43)}) {
    std::vector<double> x(100003);
    cpu::uniform(Cpu{}, x.data(), int64_t(x.size()), g.state(), 0.0, 1.0);
    streams.push_back(std::move(x));
  }
  for (size_t i = 0; i < streams.size(); ++i)
    for (size_t j = i + 1; j < streams.size(); ++j)
      for (const size_t lag : {0, 1, 4}) CHECK(std::fabs(correlation(streams[i], streams[j], lag)) < kStray);
}

}  // namespace
}  // namespace levin::kernels
