#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "autograd/autocast.h"
#include "tests/device.h"
#include "tests/ops/samples.h"

namespace levin::testing {
namespace {
const Device cpu = Device::cpu();
}

LEVIN_OP_CASE(cast) {
  OpCase c{.ops = {"cast"}, .dtypes = kAllDTypes};
  for (const Shape& s : {Shape{1}, Shape{0}, Shape{3, 5}}) {
    for (const DType to : {DType::f32, DType::f64, DType::bf16}) {
      c.samples.push_back({.inputs = {real(s, 0, 8)},
                           .call = [to](const Tensors& in) { return Tensors{cast(in[0], to)}; },
                           .reference = [](const Tensors& in) { return Tensors{in[0]}; },
                           .gradcheck = to == DType::f64});
    }
  }
  // A cast to the same dtype twice records nothing; a cast through f64 and back does, and f64 can be checked
  // numerically.
  c.samples.push_back({.inputs = {real({3}, 0, 8)},
                       .call = [](const Tensors& in) { return Tensors{cast(cast(in[0], DType::f32), DType::f64)}; },
                       .reference = [](const Tensors& in) { return Tensors{in[0].to(DType::f32).to(DType::f64)}; },
                       .gradcheck = false});
  c.errors.push_back({"undefined", [] { (void)cast(Tensor(), DType::f32); }, throws<StateError>, "undefined"});
  return c;
}

LEVIN_OP_CASE(cast_all) {
  OpCase c{.ops = {"cast_all"}, .dtypes = kAllDTypes, .no_single = "one tensor is cast()"};
  for (const Shape& s : {Shape{7}, Shape{0}, Shape{3, 5}}) {
    for (const DType to : {DType::f32, DType::f64, DType::bf16}) {
      c.samples.push_back({.inputs = {real(s, 0, 8), real({33}, 0, 8)},
                           .call = [to](const Tensors& in) { return cast_all(in, to); },
                           .reference = [](const Tensors& in) { return in; },
                           .gradcheck = to == DType::f64});
    }
  }
  c.errors.push_back({"dtypes",
                      [] {
                        (void)cast_all(Tensors{zeros({2}, cpu), zeros({2}, cpu, DType::f64)}, DType::bf16);
                      },
                      throws<DTypeError>, "cast_all: tensors are f32 and f64"});
  return c;
}

LEVIN_OP_CASE(clone) {
  OpCase c{.ops = {"clone"}, .dtypes = kAllDTypes};
  for (const Shape& s : {Shape{1}, Shape{0}, Shape{3, 5}}) {
    c.samples.push_back({.inputs = {real(s, 0, 8)},
                         .call = [](const Tensors& in) { return Tensors{in[0].clone()}; },
                         .reference = [](const Tensors& in) { return Tensors{in[0]}; }});
  }
  c.errors.push_back({"undefined", [] { (void)Tensor().clone(); }, throws<StateError>, "undefined"});
  return c;
}

// There and back; on a machine without such a device the tensor stays where it is.
LEVIN_OP_CASE(to) {
  OpCase c{.ops = {"to"}, .dtypes = kAllDTypes, .values_on_meta = true, .needs_device = true};
  const Device device = test::launching_device().value_or(cpu);
  for (const Shape& s : {Shape{1}, Shape{0}, Shape{3, 5}}) {
    c.samples.push_back({.inputs = {real(s, 0, 8)},
                         .call = [device](const Tensors& in) { return Tensors{in[0].to(device).to(cpu)}; },
                         .reference = [](const Tensors& in) { return Tensors{in[0].to(cpu)}; }});
  }
  c.errors.push_back({"undefined", [device] { (void)Tensor().to(device); }, throws<StateError>, "undefined"});
  c.errors.push_back({"from meta", [] { (void)empty({2}, Device::meta()).to(cpu); }, throws<UnsupportedError>,
                      "to: a meta tensor has no values"});
  return c;
}

LEVIN_OP_CASE(alias) {
  OpCase c{.ops = {"alias"}, .dtypes = kFloatDTypes};
  for (const Shape& s : {Shape{1}, Shape{0}, Shape{3, 5}}) {
    c.samples.push_back(
        {.inputs = {real(s)},
         .call =
             [](const Tensors& in) { return Tensors{records(in[0]) ? detail::recorded_alias(in[0]) : in[0].detach()}; },
         .reference = [](const Tensors& in) { return Tensors{in[0]}; }});
  }
  for (const DType t : {DType::i32, DType::i64, DType::u8, DType::b8, DType::i8, DType::i16}) c.dtypes.push_back(t);
  c.errors.push_back(
      {"integers", [] { (void)detail::recorded_alias(zeros({1}, cpu, DType::i64)); }, throws<DTypeError>, "i64"});
  return c;
}

TEST_CASE("every dtype converts to every other, and integers out of range saturate") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor x = tensor({-3.7, 0.0, 2.9, 300.0, 1e30, nan}, cpu);
  CHECK(x.to(DType::i64).to_vector<std::int64_t>() ==
        std::vector<std::int64_t>{-3, 0, 2, 300, std::numeric_limits<std::int64_t>::max(), 0});
  CHECK(x.to(DType::u8).to_vector<std::uint8_t>() == std::vector<std::uint8_t>{0, 0, 2, 255, 255, 0});
  CHECK(x.to(DType::b8).to_vector<bool>() == std::vector<bool>{true, false, true, true, true, true});
  for (const DType a : kAllDTypes) {
    for (const DType b : kAllDTypes) {
      CAPTURE(text(a));
      CAPTURE(text(b));
      CHECK(ones({3}, cpu, a).to(b).to(DType::f64).to_vector<double>() == std::vector<double>{1, 1, 1});
    }
  }
}

TEST_CASE("long rows of f32 become the bf16 numbers that single elements become: ties, NaN, infinities, subnormals") {
  std::vector<float> values;
  for (std::uint32_t upper = 0; upper < 65536; ++upper) {
    for (const std::uint32_t lower : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      values.push_back(std::bit_cast<float>(upper << 16 | lower));
  }
  values.push_back(1.5f);  // no whole register
  const Tensor rounded =
      from_data(std::span<const float>(values), {static_cast<std::int64_t>(values.size())}, Device::cpu())
          .to(DType::bf16);
  const std::vector<bf16> got = rounded.to_vector<bf16>();
  std::size_t differ = 0;
  for (std::size_t i = 0; i < values.size(); ++i) differ += got[i].bits != bf16(values[i]).bits ? 1 : 0;
  CHECK(differ == 0);
}

TEST_CASE("copy_, fill_, add_ and mul_ write through views, convert, and refuse what does not fit") {
  Tensor x = zeros({2, 3}, cpu);
  Tensor column = select(x, 1, 1);
  copy_(column, tensor({std::int64_t{4}, std::int64_t{5}}, cpu));
  CHECK(x.to_vector<float>() == std::vector<float>{0, 4, 0, 0, 5, 0});
  add_(x, ones({3}, cpu), 2);
  mul_(x, 2);
  CHECK(x.to_vector<float>() == std::vector<float>{4, 12, 4, 4, 14, 4});
  Tensor moved = narrow(x, 1, 0, 2), source = narrow(x, 1, 1, 2);
  copy_(moved, source);  // the memory overlaps: the source is read first
  CHECK(x.to_vector<float>() == std::vector<float>{12, 4, 4, 14, 4, 4});
  CHECK_THROWS_AS(add_(x, ones({4, 3}, cpu)), ShapeError);
  CHECK_THROWS_AS(add_(x, ones({3}, cpu, DType::f64)), DTypeError);
}

TEST_CASE("factories: ranges, identity, constants") {
  CHECK(arange(2, 9, 3, cpu).to_vector<std::int64_t>() == std::vector<std::int64_t>{2, 5, 8});
  CHECK(arange(0.0, 1.0, 0.25, cpu, DType::f64).to_vector<double>() == std::vector<double>{0, 0.25, 0.5, 0.75});
  CHECK(arange(5, 2, -1, cpu).to_vector<std::int64_t>() == std::vector<std::int64_t>{5, 4, 3});
  constexpr std::int64_t big = std::int64_t{1} << 60, most = std::numeric_limits<std::int64_t>::max();
  CHECK(arange(big, big + 3, 1, cpu).to_vector<std::int64_t>() == std::vector<std::int64_t>{big, big + 1, big + 2});
  CHECK(arange(-most, most, most, cpu).to_vector<std::int64_t>() == std::vector<std::int64_t>{-most, 0});
  CHECK_THROWS_AS((void)arange(-most, most, 1, cpu), ShapeError);
  CHECK_THROWS_AS((void)arange(0, 257, 1, cpu, DType::u8), DTypeError);
  CHECK_THROWS_AS((void)arange(-1, 2, 1, cpu, DType::u8), DTypeError);
  CHECK_THROWS_AS((void)arange(big, big + 1, 1, cpu, DType::i32), DTypeError);
  CHECK(arange(0, 256, 255, cpu, DType::u8).to_vector<std::uint8_t>() == std::vector<std::uint8_t>{0, 255});
  CHECK_THROWS_AS((void)arange(0, 3, 0, cpu), ShapeError);
  CHECK_THROWS_AS((void)arange(0, 3, -1, cpu), ShapeError);
  CHECK_THROWS_AS((void)arange(1.0, 0.5, 1.0, cpu, DType::f32), ShapeError);
  CHECK(arange(1.0, 1.0, 1.0, cpu, DType::f32).numel() == 0);
  CHECK(linspace(0, 1, 5, cpu, DType::f64).to_vector<double>() == std::vector<double>{0, 0.25, 0.5, 0.75, 1});
  CHECK(linspace(3, 4, 1, cpu).to_vector<float>() == std::vector<float>{3});
  CHECK(eye(2, 3, cpu).to_vector<float>() == std::vector<float>{1, 0, 0, 0, 1, 0});
  CHECK(full({2}, 7, cpu, DType::i32).to_vector<std::int32_t>() == std::vector<std::int32_t>{7, 7});
  CHECK_THROWS_AS((void)full({2}, 0.5, cpu, DType::i32), DTypeError);
  CHECK(zeros({2, 0}, cpu).numel() == 0);
  CHECK_THROWS_AS((void)zeros({std::int64_t{1} << 41}, cpu), ShapeError);
  CHECK_THROWS_AS((void)empty({std::int64_t{1} << 40, 64}, cpu), OutOfMemoryError);
}

}  // namespace levin::testing
