#include "levin/function.h"

#include <doctest/doctest.h>

#include <array>
#include <memory>
#include <string>

#include "levin/error.h"
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

TEST_CASE("calling an empty Function is a StateError, also after a move and for a null pointer") {
  Function<int(int)> f;
  CHECK_THROWS_WITH_AS((void)f(1), doctest::Contains("an empty Function is called"), levin::StateError);
  f = twice;
  const Function<int(int)> g = std::move(f);
  CHECK(g(2) == 4);
  CHECK_THROWS_AS((void)f(1), levin::StateError);
  int (*const none)(int) = nullptr;
  CHECK(!Function<int(int)>(none));
}

TEST_CASE("copies of a Function share what it holds, also what can only be moved, and it goes with the last of them") {
  Function<int()> count([n = 0]() mutable { return ++n; });
  const Function<int()> same = count;
  CHECK(count() == 1);
  CHECK(same() == 2);
  CHECK(count() == 3);
  const auto watched = std::make_shared<int>(7);
  {
    Function<int()> a([p = std::make_unique<int>(5), watched] { return *p + *watched; });
    Function<int()> b;
    b = a;
    a = {};
    CHECK(b() == 12);
    CHECK(watched.use_count() == 2);
  }
  CHECK(watched.use_count() == 1);
  int seen = 0;
  Function<void(int)> small([&seen](int x) { seen += x; });
  const Function<void(int)> other = small;
  small(1);
  other(2);
  CHECK(seen == 3);
}
