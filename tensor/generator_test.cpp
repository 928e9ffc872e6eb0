#include "levin/generator.h"

#include <doctest/doctest.h>

#include <set>
#include <string>

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
