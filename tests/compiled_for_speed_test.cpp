// What the build compiles for size and what for speed.
#include <doctest/doctest.h>

#include <string>

#include "tests/launchers/command.h"
#include "tests/skip.h"
#include "tests/temporary.h"
#include "tests/where.h"

using namespace levin::test;

// A kernel that a header gives to a source compiled for size runs there at a fraction of its speed.
TEST_CASE("no source that is compiled for size has a kernel of the CPU") {
  if (!LEVIN_OPTIMIZED) return skip("this build is not the default one");
  const TemporaryFolder folder;
  const auto ended =
      Command({"/bin/sh", "-c",
               "command -v nm >/dev/null || exit 77\n"
               "nm -C --defined-only \"$0\" 2>/dev/null | grep -E ' [tTwW] .*levin::kernels::cpu::' >&2\n"
               "nm -C --defined-only \"$0\" 2>/dev/null | grep -c ' [tTwW] '",
               build_dir() + "/liblevin_small.a"},
              folder.path())
          .wait();
  if (ended.code == 77) return skip("nm is not installed (Debian: binutils)");
  CHECK(std::stoi(ended.out) > 1000);  // nm has read the library
  CHECK(ended.err == "");
}
