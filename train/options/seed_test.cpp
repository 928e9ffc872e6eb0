#include "levin/train/seed.h"

#include <doctest/doctest.h>

#include "levin/error.h"
#include "tests/variables.h"
#include "tests/warnings.h"

using namespace levin;

TEST_CASE("seed_everything gives the root generator of a number, of the environment's, or of 0 with a warning") {
  const test::PlantedVariables none({});
  CHECK(seed_everything(7).state().seed == Generator(7).state().seed);
  CHECK(seed_everything(0xffffffff).fork("net").state().seed == Generator(0xffffffff).fork("net").state().seed);
  {
    const test::ExpectedWarnings told{"W-SEED"};
    CHECK(seed_everything().state().seed == Generator(0).state().seed);
  }
  const test::PlantedVariables planted({{"LEVIN_GLOBAL_SEED", "11"}});
  CHECK(seed_everything().state().seed == Generator(11).state().seed);
  CHECK(seed_everything(7).state().seed == Generator(7).state().seed);  // an argument wins
}

TEST_CASE("seed_everything refuses numbers outside of 32 bits and texts that are none, with the value and the range") {
  for (const std::int64_t bad : {std::int64_t{-1}, std::int64_t{1} << 32})
    CHECK_THROWS_WITH_AS((void)seed_everything(bad), doctest::Contains("expected a whole number in [0, 4294967295]"),
                         ConfigError);
  for (const char* bad : {"-1", "4294967296", "99999999999999999999", "7 ", "0x7", "seven"}) {
    const test::PlantedVariables planted({{"LEVIN_GLOBAL_SEED", bad}});
    CHECK_THROWS_WITH_AS((void)seed_everything(), doctest::Contains(bad), ConfigError);
  }
}
