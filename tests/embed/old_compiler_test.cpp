// Too old a compiler or standard gives one clear message and no other.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/skip.h"
#include "tests/where.h"

namespace {

// The compiler's output for a program that includes all of Levin.
struct Said {
  bool compiled;
  std::string first_error, all;
};
Said compile(const std::string& compiler) {
  const std::string line = "echo '#include <levin/levin.h>' | LC_ALL=C " + compiler + " -fsyntax-only -I'" +
                           levin::test::source_dir() + "/include' -x c++ - 2>&1";
  Said said{false, "", ""};
  FILE* pipe = popen(line.c_str(), "r");
  REQUIRE(pipe != nullptr);
  char buffer[4096];
  while (const std::size_t n = std::fread(buffer, 1, sizeof(buffer), pipe)) said.all.append(buffer, n);
  said.compiled = pclose(pipe) == 0;
  const std::size_t at = said.all.find("error: ");
  if (at != std::string::npos) said.first_error = said.all.substr(at, said.all.find('\n', at) - at);
  return said;
}
bool there(const std::string& compiler) {
  return std::system(("command -v " + compiler + " >/dev/null 2>&1").c_str()) == 0;
}

// The message, its include path, and the end.
void check_told(const Said& said, const std::string& what) {
  INFO(said.all);
  CHECK_FALSE(said.compiled);
  CHECK(said.first_error.find("Levin needs " + what) != std::string::npos);
  CHECK(std::count(said.all.begin(), said.all.end(), '\n') <= 20);
}

}  // namespace

TEST_CASE("a standard below C++20 is refused by one line that names the flag") {
  for (const std::string compiler : {"g++", "clang++-16", "clang++-18"}) {
    if (!there(compiler)) continue;
    CAPTURE(compiler);
    for (const char* standard : {"11", "14", "17"}) {
      check_told(compile(compiler + " -std=c++" + standard), "C++20: compile with -std=c++20");
    }
  }
}

TEST_CASE("a compiler older than g++ 12 or clang 15 is refused by one line that names both") {
  int tried = 0;
  for (const std::string compiler : {"clang++-13", "clang++-14", "g++-11"}) {
    if (!there(compiler)) continue;
    CAPTURE(compiler);
    check_told(compile(compiler + " -std=c++20"), "g++ 12 or clang 15");
    ++tried;
  }
  if (tried == 0) levin::test::skip("no older compiler is installed: clang++-13, clang++-14, g++-11");
}
