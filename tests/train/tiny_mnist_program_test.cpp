#include <cstdlib>

#include "tests/train/program.h"

using levin::test::Program;
using levin::test::TemporaryFolder;

TEST_CASE("tiny_mnist trains a few steps on drawn digits, says so first, and prints an accuracy above chance") {
  const TemporaryFolder dir;
  const Program tiny("tiny_mnist", dir);
  if (!tiny.built()) return;
  setenv("LEVIN_TRAINER_MAX_STEPS", "40", 1);
  const Program::Ended e = tiny.run({});
  unsetenv("LEVIN_TRAINER_MAX_STEPS");
  CAPTURE(e.output);
  CHECK(e.code == 0);
  CHECK(e.output.find("data: generated digits") != std::string::npos);
  const std::size_t at = e.output.find("test accuracy ");
  REQUIRE(at != std::string::npos);
  CHECK(std::atof(e.output.c_str() + at + 14) > 30);  // per cent; chance is 10
}
