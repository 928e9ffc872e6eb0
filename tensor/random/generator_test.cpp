#include "levin/generator.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "levin/error.h"

using namespace levin;

TEST_CASE("a fork depends on seed and name alone, not on what was drawn") {
  Generator a(42);
  const Generator before = a.fork("shuffle");
  a.reserve(1000);
  const Generator after = a.fork("shuffle");
  CHECK(before.seed() == after.seed());
  CHECK(after.state().offset == 0);
  CHECK(Generator(42).fork("shuffle").seed() == before.seed());
}

TEST_CASE("forks of different names, seeds and depth differ") {
  std::set<std::uint64_t> seeds;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const Generator g(seed);
    seeds.insert(g.seed());
    for (int i = 0; i < 100; ++i) seeds.insert(g.fork(std::to_string(i)).seed());
    seeds.insert(g.fork("").seed());
    seeds.insert(g.fork(std::string_view("\0", 1)).seed());
    seeds.insert(g.fork(std::string_view("\0\0", 2)).seed());
    seeds.insert(g.fork("a").fork("b").seed());
    seeds.insert(g.fork("ab").seed());
    seeds.insert(g.fork("ba").seed());
  }
  CHECK(seeds.size() == 100 * 107);
}

TEST_CASE("reserve hands out ranges of counters that do not overlap, four numbers each") {
  Generator g(7);
  const RandomRange a = g.reserve(5);  // counters 0 and 1
  const RandomRange b = g.reserve(4);  // counter 2
  const RandomRange c = g.reserve(0);
  const RandomRange d = g.reserve(1);
  CHECK(a.seed == 7);
  CHECK(a.offset == 0);
  CHECK(b.offset == 2);
  CHECK(c.offset == 3);
  CHECK(d.offset == 3);
  CHECK(g.state().offset == 4);
  CHECK_THROWS_AS(g.reserve(-1), IndexError);
  CHECK(g.state().offset == 4);
}

TEST_CASE("a generator continues from a state that was kept") {
  Generator g(7);
  g.reserve(100);
  const RandomRange kept = g.state();
  const RandomRange next = g.reserve(8);
  Generator h(0);
  h.set_state(kept);
  const RandomRange again = h.reserve(8);
  CHECK(again.seed == next.seed);
  CHECK(again.offset == next.offset);
}

TEST_CASE("draws for the host follow from seed and offset, share no counter, and have the moments of their law") {
  Generator a(3), b(3);
  CHECK(a.uniform() == b.uniform());
  CHECK(a.state().offset == 1);
  CHECK(a.normal() == b.normal());
  CHECK(a.integer(0, 1000000) == b.integer(0, 1000000));
  CHECK(a.permutation(9) == b.permutation(9));
  CHECK(a.state().offset == 3 + 3);  // nine words are three counters
  CHECK(a.uniform() != Generator(4).uniform());
  constexpr int n = 200000;
  // Of n draws a mean is within 5 deviations of itself, and so is a variance: 5 sqrt((kurtosis - 1) / n) of its value.
  const auto moments = [&](const auto& draw) {
    double sum = 0, squares = 0;
    for (int i = 0; i < n; ++i) {
      const double x = draw();
      sum += x;
      squares += x * x;
    }
    const double mean = sum / n;
    return std::array{mean, squares / n - mean * mean};
  };
  const auto [mean, variance] = moments([&] { return a.normal(2, 3); });
  CHECK(std::abs(mean - 2) < 5 * 3 / std::sqrt(n));
  CHECK(std::abs(variance / 9 - 1) < 5 * std::sqrt(2.0 / n));
  const auto [middle, spread] = moments([&] {
    const double x = a.uniform(-1, 3);
    REQUIRE(x >= -1);
    REQUIRE(x < 3);
    return x;
  });
  CHECK(std::abs(middle - 1) < 5 * std::sqrt(16.0 / 12 / n));
  CHECK(std::abs(spread * 12 / 16 - 1) < 5 * std::sqrt(0.8 / n));
}

TEST_CASE("host draws by hand: the bits of Philox's words, and the logarithm and cosine of Box and Muller") {
  Generator g(0);
  // The published vector of counter 0 and key 0 is 6627e8d5 e169c58d bc57ac4c 9b00dbd8, lowest word first.
  const double first = static_cast<double>(0xe169c58d6627e8d5u >> 11) * 0x1p-53;
  const double second = static_cast<double>(0x9b00dbd8bc57ac4cu >> 11) * 0x1p-53;
  CHECK(g.uniform() == first);
  g.set_state({0, 0});
  CHECK(g.integer(-5, 5) == -5 + static_cast<std::int64_t>(first * 10));
  g.set_state({0, 0});
  const std::int64_t least = std::numeric_limits<std::int64_t>::min(), most = std::numeric_limits<std::int64_t>::max();
  CHECK(g.integer(least, most) ==
        static_cast<std::int64_t>(0xe169c58d6627e8d5u - 1 + static_cast<std::uint64_t>(least)));  // width 2^64 - 1
  Generator draws(11), again(11);
  for (int i = 0; i < 10000; ++i) {
    const double u = again.uniform();
    again.set_state({11, static_cast<std::uint64_t>(i)});
    const double x = draws.normal();
    // Its second word pair, from the range where the first is known: |x| is at most the radius.
    REQUIRE(std::abs(x) <= std::sqrt(-2 * std::log1p(-u)) * (1 + 1e-14));
    (void)again.reserve(4);
  }
  g.set_state({0, 0});
  CHECK(g.normal() ==
        doctest::Approx(std::sqrt(-2 * std::log1p(-first)) * std::cos(2 * std::acos(-1.0) * second)).epsilon(1e-14));
}

TEST_CASE("integers of a small range are all as likely, and a permutation holds each number once") {
  Generator g(5);
  std::array<int, 7> seen{};
  constexpr int n = 70000;
  for (int i = 0; i < n; ++i) ++seen[static_cast<std::size_t>(g.integer(-3, 4) + 3)];
  for (const int count : seen) CHECK(std::abs(count - n / 7) < 5 * std::sqrt(n / 7.0));
  for (const std::int64_t size : {0, 1, 2, 1000}) {
    std::vector<std::int64_t> order = g.permutation(size);
    CHECK(order.size() == static_cast<std::size_t>(size));
    if (size == 1000) CHECK(!std::is_sorted(order.begin(), order.end()));
    std::sort(order.begin(), order.end());
    for (std::int64_t i = 0; i < size; ++i) REQUIRE(order[static_cast<std::size_t>(i)] == i);
  }
  std::set<std::vector<std::int64_t>> orders;
  for (int i = 0; i < 200; ++i) orders.insert(g.permutation(3));
  CHECK(orders.size() == 6);
}

TEST_CASE("host draws refuse an empty range, and leave the generator where it was") {
  Generator g(1);
  const double infinity = std::numeric_limits<double>::infinity();
  CHECK_THROWS_AS((void)g.uniform(1, 1), ConfigError);
  CHECK_THROWS_AS((void)g.uniform(0, infinity), ConfigError);
  CHECK_THROWS_AS((void)g.uniform(-1e308, 1e308), ConfigError);
  CHECK_THROWS_AS((void)g.normal(0, -1), ConfigError);
  CHECK_THROWS_AS((void)g.normal(std::nan(""), 1), ConfigError);
  CHECK_THROWS_AS((void)g.integer(3, 3), ConfigError);
  CHECK_THROWS_AS((void)g.permutation(-1), ConfigError);
  CHECK(g.state().offset == 0);
}
