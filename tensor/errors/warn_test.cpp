#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "levin/error.h"
#include "levin/warning.h"
#include "tensor/errors/warn.h"
#include "tests/temporary.h"
#include "tests/warnings.h"

using namespace levin;
using enum WarningCategory;

namespace {
struct NoFilters {
  ~NoFilters() { forget_warning_filters(); }
};
constexpr const char* kText =
    "the train_loader does not have many workers. Consider increasing the value of the `num_workers` argument";
}  // namespace

TEST_CASE("warnings are dropped by category, by id, by a regex on the text, and by all that a filter says together") {
  const NoFilters after;
  const auto heard = [](const WarningFilter& filter) {
    const test::Warnings warnings;
    ignore_warnings(filter);
    warn("W-A", possible_user, kText);
    warn("W-B", user, "many workers");
    warn("W-B", possible_user, "nothing of that kind");
    forget_warning_filters();
    return warnings.ids();
  };
  using Ids = std::vector<std::string>;
  CHECK(heard({.id = "W-OTHER"}) == Ids{"W-A", "W-B", "W-B"});
  CHECK(heard({.category = possible_user}) == Ids{"W-B"});
  CHECK(heard({.id = "W-B"}) == Ids{"W-A"});
  CHECK(heard({.regex = ".*does not have many workers.*"}) == Ids{"W-B", "W-B"});
  CHECK(heard({.regex = ".*Consider increasing the value of the `num_workers` argument*"}) == Ids{"W-B", "W-B"});
  CHECK(heard({.regex = "^many|kind$"}) == Ids{"W-A"});
  CHECK(heard({.category = possible_user, .id = "W-B"}) == Ids{"W-A", "W-B"});
  CHECK_THROWS_AS(ignore_warnings({}), ConfigError);
  CHECK_THROWS_AS(ignore_warnings({.regex = "(open"}), ConfigError);
  CHECK(heard({.id = "W-OTHER"}) == Ids{"W-A", "W-B", "W-B"});  // a refused call drops nothing
}

TEST_CASE("LEVIN_POSSIBLE_USER_WARNINGS=off drops possible_user and no other category") {
  const test::Warnings warnings;
  ::setenv("LEVIN_POSSIBLE_USER_WARNINGS", "off", 1);
  warn("W-A", possible_user, "a");
  warn("W-B", user, "b");
  warn("I-C", info, "c");
  ::setenv("LEVIN_POSSIBLE_USER_WARNINGS", "on", 1);
  warn("W-D", possible_user, "d");
  ::unsetenv("LEVIN_POSSIBLE_USER_WARNINGS");
  warn("W-E", possible_user, "e");
  CHECK(warnings.ids() == std::vector<std::string>{"W-B", "I-C", "W-D", "W-E"});
}

TEST_CASE("a process whose printing is off prints no warning, and its handler still hears each") {
  const test::TemporaryFolder folder;
  std::fflush(stderr);
  const int before = ::dup(STDERR_FILENO);
  const int file = ::open((folder / "stderr").c_str(), O_CREAT | O_RDWR, 0600);
  REQUIRE(file >= 0);
  ::dup2(file, STDERR_FILENO);
  auto handler = set_warning_handler({});
  detail::print_warnings(false);
  warn("W-SILENT", user, "not printed", Repeat::yes);
  int heard = 0;
  (void)set_warning_handler([&](const Warning&) { ++heard; });
  warn("W-SILENT", user, "heard", Repeat::yes);
  (void)set_warning_handler({});
  detail::print_warnings(true);
  warn("W-LOUD", user, "printed", Repeat::yes);
  (void)set_warning_handler(std::move(handler));
  std::fflush(stderr);
  ::dup2(before, STDERR_FILENO);
  ::close(before);
  ::close(file);
  std::ifstream in(folder / "stderr");
  const std::string printed{std::istreambuf_iterator<char>(in), {}};
  CHECK(heard == 1);
  CHECK(printed == "warning: printed [W-LOUD]\n");
}
