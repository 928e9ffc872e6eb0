#include <doctest/doctest.h>

#include "levin/error.h"
#include "levin/graph.h"
#include "levin/sparse.h"

namespace levin {
namespace {

template <class I>
Tensor indices(std::vector<I> values) {
  return from_data<I>(values, {static_cast<std::int64_t>(values.size())}, Device::cpu());
}
Csr pattern() {
  return {.crow = indices<std::int64_t>({0, 2, 2, 3}), .col = indices<std::int32_t>({0, 3, 1}), .cols = 4};
}

TEST_CASE("a checked pattern knows its longest row until something writes into it") {
  Csr a = checked(pattern());
  REQUIRE(a.known() != nullptr);
  CHECK(a.known()->longest_row == 2);
  CHECK(a.known()->longest_column == -1);
  Csr other = a;
  other.col = other.col.clone();
  CHECK(other.known() == nullptr);
  Csr narrower = a;
  narrower.cols = 3;
  CHECK(narrower.known() == nullptr);
  a.col.mutable_data<std::int32_t>()[0] = 1;
  CHECK(a.known() == nullptr);
}

TEST_CASE("checked() names the position of what is wrong in a pattern") {
  const auto message = [](Csr a) {
    try {
      (void)checked(std::move(a));
    } catch (const IndexError& e) { return std::string(e.what()); }
    return std::string();
  };
  Csr a = pattern();
  a.col = indices<std::int32_t>({0, 4, 1});
  CHECK(message(a).find("col[1] is 4, expected 0 to 3") != std::string::npos);
  a.col = indices<std::int32_t>({0, -1, 1});
  CHECK(message(a).find("col[1] is -1") != std::string::npos);
  a = pattern();
  a.crow = indices<std::int64_t>({0, 2, 1, 3});
  CHECK(message(a).find("crow[2] is 1, expected 2 or more") != std::string::npos);
  a.crow = indices<std::int64_t>({0, 2, 2, 4});
  CHECK(message(a).find("crow[3] is 4, expected 3") != std::string::npos);
  a.crow = indices<std::int64_t>({1, 2, 2, 3});
  CHECK(message(a).find("crow[0] is 1, expected 0") != std::string::npos);
  a = pattern();
  a.edge = indices<std::int32_t>({0, 0, 2});
  CHECK(message(a).find("edge[1] is 0, which another entry has") != std::string::npos);
  a.edge = indices<std::int64_t>({0, 1, 2});
  CHECK_THROWS_AS((void)checked(a), DTypeError);
}

TEST_CASE("checked() refuses a transpose of another pattern") {
  Csr a = pattern();
  a.t_crow = indices<std::int64_t>({0, 1, 2, 2, 3});
  a.t_col = indices<std::int32_t>({0, 2, 0});
  a.t_edge = indices<std::int32_t>({0, 2, 1});
  CHECK(checked(a).known()->longest_column == 1);
  a.t_edge = indices<std::int32_t>({0, 1, 2});
  CHECK_THROWS_AS((void)checked(a), IndexError);
}

}  // namespace
}  // namespace levin
