#include "levin/function.h"

#include <doctest/doctest.h>

#include <array>
#include <memory>
#include <string>

#include "tests/allocations.h"

using levin::Function;

namespace {
int twice(int x) { return 2 * x; }
}  // namespace

TEST_CASE("a Function holds a plain function, a lambda that can only be moved, and nothing") {
  CHECK(Function<int(int)>(twice)(3) == 6);
  CHECK(Function<int(int)>(&twice)(3) == 6);
  CHECK(Function<int()>([p = std::make_unique<int>(5)] { return *p; })() == 5);
  CHECK(!Function<int()>());
}

TEST_CASE("a Function that is moved calls what it called before, small or large, and what it held is destroyed once") {
  auto count = std::make_shared<int>(0);
  const auto check = [&](auto callable) {
    Function<std::string(int)> a(std::move(callable));
    Function<std::string(int)> b(std::move(a));
    CHECK(!a);
    CHECK(b(7) == "7");
    Function<std::string(int)> c([](int) { return std::string("replaced"); });
    c = std::move(b);
    CHECK(!b);
    CHECK(c(8) == "8");
    CHECK(count.use_count() == 2);  // ours and c's
    c = {};
    CHECK(!c);
    CHECK(count.use_count() == 1);
  };
  check([count](int x) { return std::to_string(x); });
  check([count, large = std::array<double, 20>{}](int x) { return std::to_string(x + static_cast<int>(large[0])); });
}

TEST_CASE("a Function of a lambda with eight references allocates nothing") {
  if (!levin::test::counts_allocations()) return levin::test::skip_allocations();
  int a = 1, b = 2, c = 3, d = 4, e = 5, f = 6, g = 7, h = 8;
  const std::int64_t before = levin::test::allocations();
  const Function<int()> sum([&] { return a + b + c + d + e + f + g + h; });
  const int result = sum();
  CHECK(levin::test::allocations() == before);
  CHECK(result == 36);
}
