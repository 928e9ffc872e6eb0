#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "levin/serialize.h"
#include "tensor/core/formats_test.h"
#include "tests/capture.h"
#include "tests/skip.h"
#include "tests/temporary.h"

// The compiler defines the macro; this test keeps the requested standard and the actual one together.
TEST_CASE("the build is C++20") { CHECK(__cplusplus >= 202002L); }

TEST_CASE("what a passing test prints is dropped, and what a failing one prints is shown") {
  const levin::test::TemporaryFolder folder;
  const std::string path = folder / "printed";
  const pid_t child = ::fork();
  if (child == 0) {
    const int to = ::open(path.c_str(), O_WRONLY | O_CREAT, 0600);
    ::dup2(to, 1);
    ::dup2(to, 2);
    levin::test::Capture capture;
    for (const auto output : {levin::test::Output::dropped, levin::test::Output::shown}) {
      capture.start();
      std::printf(output == levin::test::Output::shown ? "out of a failing test\n" : "out of a passing test\n");
      std::fprintf(stderr,
                   output == levin::test::Output::shown ? "err of a failing test\n" : "err of a passing test\n");
      capture.end(output);
    }
    std::printf("between tests\n");
    std::fflush(stdout);
    ::_exit(0);
  }
  REQUIRE(child > 0);
  REQUIRE(::waitpid(child, nullptr, 0) == child);
  CHECK(levin::read_file(path, 1 << 12) == "err of a failing test\nout of a failing test\nbetween tests\n");
}

namespace {
const char* planted() { return std::getenv("LEVIN_TEST_PLANTED"); }
}  // namespace

TEST_CASE("undefined behaviour that the test of its report plants") {
  if (!planted()) return;
  volatile int number = std::numeric_limits<int>::max();
  if (std::string_view(planted()) == "overflow") number = number + 1;
  char* volatile gone = new char[8];  // read again after each use, so that no compiler removes the planted bug
  delete[] gone;
  number = gone[0];
}

TEST_CASE("one of four planted tests passes") {}
TEST_CASE("one of four planted tests is skipped") {
  if (planted()) levin::test::skip("it is planted");
}
TEST_CASE("one of four planted tests ends its process") {
  if (planted()) ::raise(SIGKILL);
}
TEST_CASE("one of four planted tests crashes") {
  if (planted()) ::raise(SIGSEGV);
}

TEST_CASE("processes share the tests, and one that a test ends is replaced: the test is a failure with its name") {
  const levin::test::TemporaryFolder folder;
  const std::string path = folder / "printed";
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string arguments = " --filter 'one of four planted tests' --jobs 2 >'" + path + "' 2>&1";
  CHECK(std::system(("'" + program + "'" + arguments).c_str()) == 0);
  CHECK(levin::read_file(path, 1 << 20) == "4 passed, 0 failed, 0 skipped\n");
  CHECK(std::system(("LEVIN_TEST_PLANTED=yes '" + program + "'" + arguments).c_str()) != 0);
  const std::string printed = levin::read_file(path, 1 << 20);
  CHECK(levin::test::contains(printed,
                              "FAILED one of four planted tests ends its process\n  its process ended by signal 9"));
  CHECK(levin::test::contains(printed, "1 skipped: it is planted\n1 passed, 2 failed, 1 skipped\n"));
}

TEST_CASE("what sanitizers find in a test is shown") {
#if defined(__SANITIZE_ADDRESS__)
  for (const auto& [what, words] :
       {std::pair("overflow", "signed integer overflow"), std::pair("memory", "heap-use-after-free")}) {
    CAPTURE(std::string(what));
    const levin::test::TemporaryFolder folder;
    const std::string path = folder / "printed";
    const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
    const int rc =
        std::system(("LEVIN_TEST_PLANTED=" + std::string(what) + " '" + program +
                     "' --name 'undefined behaviour that the test of its report plants' >'" + path + "' 2>&1")
                        .c_str());
    CHECK(rc != 0);
    CHECK(levin::read_file(path, 1 << 20).find(words) != std::string::npos);
  }
#else
  levin::test::skip("needs -Db_sanitize=address,undefined");
#endif
}
