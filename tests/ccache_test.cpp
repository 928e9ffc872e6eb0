// ccache as ./run sets it up.
#include <doctest/doctest.h>

#include "tests/launchers/command.h"
#include "tests/skip.h"
#include "tests/temporary.h"
#include "tests/where.h"

using namespace levin::test;

TEST_CASE("ccache with the settings of ./run sees a change in a header of a precompiled header") {
  const TemporaryFolder folder;
  const auto ended = Command({source_dir() + "/tests/ccache.sh", folder.path(), source_dir()}, folder.path()).wait();
  CAPTURE(ended.out);
  CAPTURE(ended.err);
  if (ended.code == 77) return skip("no ccache or no g++");
  CHECK(ended.code == 0);
}
