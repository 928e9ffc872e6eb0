// README.md against the tree: its program, its links, its targets.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <regex>
#include <string>

#include "levin/serialize.h"
#include "tests/where.h"

namespace {

namespace fs = std::filesystem;
using levin::test::source_dir;

std::string text_of(const std::string& path) { return levin::read_file(source_dir() + "/" + path, 1 << 20); }

}  // namespace

TEST_CASE("the program of README.md is examples/tiny_mnist.cpp, of at most 45 lines") {
  const std::string readme = text_of("README.md"), program = text_of("examples/tiny_mnist.cpp");
  const std::string open = "```cpp\n";
  const std::size_t at = readme.find(open);
  REQUIRE(at != std::string::npos);
  const std::size_t begin = at + open.size();
  CHECK(readme.substr(begin, readme.find("```\n", begin) - begin) == program);
  CHECK(std::count(program.begin(), program.end(), '\n') <= 45);
}

TEST_CASE("every file that README.md links or shows is in the tree") {
  const std::string readme = text_of("README.md");
  const std::regex link(R"(\]\(([^):# ]+)\))");
  int found = 0;
  for (auto it = std::sregex_iterator(readme.begin(), readme.end(), link); it != std::sregex_iterator();
       ++it, ++found) {
    const std::string path = (*it)[1].str();
    INFO(path);
    CHECK(fs::exists(fs::path(source_dir()) / path));
  }
  CHECK(found > 3);
}

TEST_CASE("every ./run of README.md names a target of the script") {
  const std::string readme = text_of("README.md"), run = text_of("run");
  const std::regex command(R"(\./run (?:--\w+ )*(\w+))");
  int found = 0;
  for (auto it = std::sregex_iterator(readme.begin(), readme.end(), command); it != std::sregex_iterator();
       ++it, ++found) {
    const std::string target = (*it)[1].str();
    INFO(target);
    const bool program = fs::exists(fs::path(source_dir()) / "examples" / (target + ".cpp"));
    CHECK((program || run.find("\n  " + target + ")") != std::string::npos || target == "levin"));
  }
  CHECK(found > 3);
}
