#include "levin/shape.h"

#include <doctest/doctest.h>

#include <limits>
#include <string>
#include <vector>

using namespace levin;

namespace {

std::string message(const auto& f) {
  try {
    f();
  } catch (const Error& e) { return e.what(); }
  return "";
}

Shape made_of(std::vector<std::int64_t> dims) { return Shape(std::span<const std::int64_t>(dims)); }

}  // namespace

TEST_CASE("a shape counts its elements, and rank 0 is one") {
  CHECK(Shape{}.rank() == 0);
  CHECK(Shape{}.numel() == 1);
  CHECK(Shape{2, 3, 4}.numel() == 24);
  CHECK(Shape{2, 0, 4}.numel() == 0);
  CHECK(Shape{2, 3, 4}.back() == 4);
  CHECK(Shape{2, 3, 4}[1] == 3);
  CHECK(text(Shape{2, 3}) == "[2, 3]");
  CHECK(text(Shape{}) == "[]");
}

TEST_CASE("shapes are equal when rank and sizes are") {
  CHECK(Shape{2, 3} == Shape{2, 3});
  CHECK(Shape{2, 3} != Shape{3, 2});
  CHECK(Shape{2} != Shape{2, 1});
  CHECK(Shape{} != Shape{1});
}

TEST_CASE("a shape outside the limits can not be made") {
  CHECK_THROWS_AS(made_of({-1}), ShapeError);
  CHECK_THROWS_AS(made_of({kMaxDim + 1}), ShapeError);
  CHECK_NOTHROW(made_of({kMaxDim}));
  CHECK_NOTHROW(made_of({1 << 24, 1 << 24}));
  CHECK_THROWS_AS(made_of({1 << 24, 1 << 24, 2}), ShapeError);
  CHECK_THROWS_AS(made_of(std::vector<std::int64_t>(9, 1)), ShapeError);
  CHECK_NOTHROW(made_of(std::vector<std::int64_t>(8, 1)));
  CHECK_THROWS_AS(made_of({std::numeric_limits<std::int64_t>::min()}), ShapeError);
}

TEST_CASE("a zero dimension does not hide a product that would overflow without it") {
  CHECK_THROWS_AS(made_of({0, kMaxDim, kMaxDim}), ShapeError);
  CHECK_THROWS_AS(made_of({kMaxDim, 0, kMaxDim}), ShapeError);
  CHECK_THROWS_AS(made_of({kMaxDim, kMaxDim, 0}), ShapeError);
  CHECK_THROWS_AS(made_of(std::vector<std::int64_t>(8, kMaxDim)), ShapeError);
  CHECK(made_of({0, kMaxDim}).numel() == 0);
}

TEST_CASE("dimensions are set, inserted and removed") {
  const Shape s{2, 3, 4};
  CHECK(s.with(1, 7) == Shape{2, 7, 4});
  CHECK(s.inserted(0, 9) == Shape{9, 2, 3, 4});
  CHECK(s.inserted(3, 9) == Shape{2, 3, 4, 9});
  CHECK(s.removed(0) == Shape{3, 4});
  CHECK(s.removed(2) == Shape{2, 3});
  CHECK(s.with(0, 0).numel() == 0);
  CHECK(s.with(0, 0).with(0, 5).numel() == 60);
  CHECK_THROWS_AS((void)made_of(std::vector<std::int64_t>(8, 2)).inserted(4, 1), ShapeError);
  CHECK_THROWS_AS((void)s.with(0, -1), ShapeError);
}

TEST_CASE("row-major strides are products of the sizes behind, a zero counting as one") {
  const Strides a = contiguous_strides({2, 3, 4});
  CHECK(a[0] == 12);
  CHECK(a[1] == 4);
  CHECK(a[2] == 1);
  const Strides b = contiguous_strides({2, 0, 4});
  CHECK(b[0] == 4);
  CHECK(b[1] == 4);
  CHECK(b[2] == 1);
}

TEST_CASE("shapes broadcast from the right, ones stretch, zeros stay") {
  CHECK(broadcast_shapes("add", {2, 3}, {3}) == Shape{2, 3});
  CHECK(broadcast_shapes("add", {2, 1, 4}, {3, 1}) == Shape{2, 3, 4});
  CHECK(broadcast_shapes("add", {}, {5}) == Shape{5});
  CHECK(broadcast_shapes("add", {}, {}) == Shape{});
  CHECK(broadcast_shapes("add", {0}, {1}) == Shape{0});
  CHECK(broadcast_shapes("add", {1}, {0}) == Shape{0});
  CHECK_THROWS_AS((void)broadcast_shapes("add", {0}, {2}), ShapeError);
  const std::string m = message([] { return broadcast_shapes("add", {2, 3}, {2, 4}); });
  CHECK(m.starts_with("add: "));
  CHECK(m.find("[2, 3]") != std::string::npos);
  CHECK(m.find("[2, 4]") != std::string::npos);
  // Both are within the limits, but their common shape is not.
  CHECK_THROWS_AS((void)broadcast_shapes("add", {kMaxDim, 1}, {1, kMaxDim}), ShapeError);
}

TEST_CASE("a negative dimension counts from the end") {
  CHECK(wrap_dim("sum", -1, 3) == 2);
  CHECK(wrap_dim("sum", -3, 3) == 0);
  CHECK(wrap_dim("sum", 2, 3) == 2);
  CHECK_THROWS_AS((void)wrap_dim("sum", 3, 3), IndexError);
  CHECK_THROWS_AS((void)wrap_dim("sum", -4, 3), IndexError);
  CHECK_THROWS_AS((void)wrap_dim("sum", 0, 0), IndexError);
  CHECK_THROWS_AS((void)wrap_dim("sum", std::numeric_limits<std::int64_t>::min(), 8), IndexError);
  CHECK(message([] { return wrap_dim("sum", 5, 3); }).starts_with("sum: dimension is 5, expected -3 to 2"));
}

TEST_CASE("the message for a dimension of a rank 0 tensor does not name an empty range") {
  const std::string m = message([] { return wrap_dim("sum", 0, 0); });
  CHECK(m.find("0 to -1") == std::string::npos);
  CHECK(m.find("rank 0") != std::string::npos);
}

TEST_CASE("a list of dimensions is a bit mask; empty means all, twice is an error") {
  const auto mask = [](std::vector<std::int64_t> dims, int rank) { return wrap_dims("sum", dims, rank); };
  CHECK(mask({}, 3) == 7u);
  CHECK(mask({}, 0) == 0u);
  CHECK(mask({}, 8) == 255u);
  CHECK(mask({0, -1}, 3) == 5u);
  CHECK_THROWS_AS(mask({1, 1}, 3), IndexError);
  CHECK_THROWS_AS(mask({2, -1}, 3), IndexError);
  CHECK_THROWS_AS(mask({3}, 3), IndexError);
}

TEST_CASE("Dims are one number or a list of at most eight") {
  CHECK(Dims(3).count() == 1);
  CHECK(Dims(3)[0] == 3);
  CHECK(Dims{0, -1}.count() == 2);
  CHECK(Dims{}.count() == 0);
  const std::vector<std::int64_t> nine(9, 0);
  CHECK_THROWS_AS(Dims(std::span<const std::int64_t>(nine)), ShapeError);
}
