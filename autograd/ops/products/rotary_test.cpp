#include <doctest/doctest.h>

#include <cmath>

#include "tests/device.h"
#include "tests/ops/samples.h"

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();

Tensor positions_of(const std::vector<std::int64_t>& p, const Shape& shape) {
  return from_data(std::span<const std::int64_t>(p), shape, cpu);
}

// The definition in plain loops; x as f64.
Tensor rotary_reference(const Tensor& x, const Tensor& positions, std::int64_t dim, double base, RotaryPairs pairs) {
  const Shape places = x.shape().removed(x.rank() - 1);
  std::vector<double> v = x.contiguous().to_vector<double>();
  const std::vector<std::int64_t> p = expand(positions, places).contiguous().to_vector<std::int64_t>();
  const auto width = static_cast<std::size_t>(x.size(-1)), half = static_cast<std::size_t>(dim / 2);
  for (std::size_t row = 0; row < p.size(); ++row) {
    for (std::size_t i = 0; i < half; ++i) {
      const double angle = double(p[row]) * std::pow(base, -2.0 * double(i) / double(dim));
      double& a = v[row * width + (pairs == RotaryPairs::halves ? i : 2 * i)];
      double& b = v[row * width + (pairs == RotaryPairs::halves ? i + half : 2 * i + 1)];
      const double first = a;
      a = first * std::cos(angle) - b * std::sin(angle);
      b = b * std::cos(angle) + first * std::sin(angle);
    }
  }
  return from_data(std::span<const double>(v), x.shape(), cpu);
}

}  // namespace

LEVIN_OP_CASE(rotary_embedding) {
  OpCase c{.ops = {"apply_rotary"}, .dtypes = kFloatDTypes, .ulps = 16, .no_single = "pairs of elements are rotated"};
  const auto add = [&](const Shape& shape, const Tensor& positions, RotaryOptions o) {
    c.samples.push_back({.inputs = {real(shape), fixed(positions)},
                         .call = [=](const Tensors& in) { return Tensors{rotary_embedding(in[0], in[1], o)}; },
                         .reference =
                             [=](const Tensors& in) {
                               return Tensors{
                                   rotary_reference(in[0], positions, o.dim.value_or(in[0].size(-1)), o.base, o.pairs)};
                             }});
  };
  for (const RotaryPairs pairs : {RotaryPairs::halves, RotaryPairs::interleaved}) {
    add({1, 2}, positions_of({3}, {1}), {.pairs = pairs});
    add({0, 4}, positions_of({}, {0}), {.pairs = pairs});
    add({3, 8}, positions_of({0, 1, 9}, {3}), {.pairs = pairs});
    add({2, 3, 4, 6}, positions_of({5, 0, 7, 2}, {4}), {.base = 500'000, .pairs = pairs});
    add({2, 3, 2, 6}, positions_of({5, 6, 8, 1}, {2, 1, 2}), {.pairs = pairs});
    add({2, 4, 9}, positions_of({0, 1, 2, 3}, {4}), {.base = 100, .pairs = pairs, .dim = 4});
    // Whole vectors of 16 bytes in every dtype, with and without elements that stay.
    add({2, 2, 3, 32}, positions_of({5, 6, 8, 1, 2, 3}, {2, 1, 3}), {.pairs = pairs});
    add({3, 48}, positions_of({5, 0, 7}, {3}), {.pairs = pairs, .dim = 32});
  }
  const Tensor place = zeros({3}, cpu, DType::i64);
  c.errors.push_back({"odd width",
                      [=] {
                        (void)rotary_embedding(zeros({3, 5}, cpu), place);
                      },
                      throws<ConfigError>, "rotary_embedding: dim is 5, expected an even number"});
  c.errors.push_back({"wide",
                      [=] {
                        (void)rotary_embedding(zeros({3, 4}, cpu), place, {.dim = 6});
                      },
                      throws<ShapeError>, "rotary_embedding: x has shape [3, 4], expected a last dimension of 6"});
  c.errors.push_back({"base",
                      [=] {
                        (void)rotary_embedding(zeros({3, 4}, cpu), place, {.base = 0});
                      },
                      throws<ConfigError>, "rotary_embedding: base is 0"});
  c.errors.push_back({"positions",
                      [=] {
                        (void)rotary_embedding(zeros({2, 4}, cpu), place);
                      },
                      throws<ShapeError>, "rotary_embedding: "});
  c.errors.push_back({"vector", [=] { (void)rotary_embedding(zeros({4}, cpu), place); }, throws<ShapeError>,
                      "rotary_embedding: x has shape [4], expected [..., T, D]"});
  c.errors.push_back({"dtype",
                      [=] {
                        (void)rotary_embedding(zeros({3, 4}, cpu), zeros({3}, cpu));
                      },
                      throws<DTypeError>, "rotary_embedding: positions are f32, expected i64"});
  return c;
}

LEVIN_OP_CASE(apply_rotary) {
  OpCase c{.ops = {}, .dtypes = kFloatDTypes, .ulps = 16, .no_single = "pairs of elements are rotated"};
  for (const RotaryPairs pairs : {RotaryPairs::halves, RotaryPairs::interleaved}) {
    for (const Shape& s : {Shape{2, 3, 6}, Shape{0, 3, 4}, Shape{3, 9}}) {
      const Tensor positions = positions_of({4, 1, 10}, {3});
      const std::int64_t dim = s.back() / 2 * 2;
      c.samples.push_back(
          {.inputs = {real(s), fixed(positions)},
           .call =
               [=](const Tensors& in) {
                 const DType wide = in[0].dtype() == DType::f64 ? DType::f64 : DType::f32;
                 return Tensors{apply_rotary(in[0], rotary_table(in[1], dim, 10000, wide), pairs)};
               },
           .reference =
               [=](const Tensors& in) { return Tensors{rotary_reference(in[0], positions, dim, 10000, pairs)}; }});
    }
  }
  c.errors.push_back({"table's dtype",
                      [] {
                        const RotaryTable f32 = rotary_table(zeros({3}, cpu, DType::i64), 4);
                        (void)apply_rotary(zeros({3, 4}, cpu, DType::f64), f32);
                      },
                      throws<DTypeError>, "apply_rotary: x is f64 and the table f32 and f32, expected a table of f64"});
  c.errors.push_back({"table's shape",
                      [] {
                        const RotaryTable three = rotary_table(zeros({3}, cpu, DType::i64), 4);
                        (void)apply_rotary(zeros({2, 4}, cpu), three);
                      },
                      throws<ShapeError>, "apply_rotary: "});
  c.errors.push_back({"shapes",
                      [] {
                        (void)apply_rotary(zeros({2, 4}, cpu), {.cos = zeros({2, 2}, cpu), .sin = zeros({2, 1}, cpu)});
                      },
                      throws<ShapeError>, "apply_rotary: cos has shape [2, 2] and sin [2, 1]"});
  c.errors.push_back({"dtype of a table", [] { (void)rotary_table(zeros({3}, cpu, DType::i64), 4, 1e4, DType::f16); },
                      throws<DTypeError>, "rotary_table: dtype is f16"});
  return c;
}

TEST_CASE("angles of far positions are exact to the last digit of f32") {
  Generator gen(1);
  const Tensor x = randn({4, 64}, gen, cpu);
  const Tensor far = positions_of({131'071, 1'000'003, 99'999, 7'654'321}, {4});
  const Tensor got = rotary_embedding(x, far, {.base = 500'000});
  const Tensor want = rotary_reference(x.to(DType::f64), far, 64, 500'000, RotaryPairs::halves);
  // Three roundings of values up to 2 |x|, |x| < 5.
  CHECK(allclose(got.to(DType::f64), want, 0, 3 * 10 * 0x1p-24));
}

TEST_CASE("a rotation of a view is that of its copy, and a table has gradients, on a device, too") {
  Generator gen(2);
  for (const RotaryPairs pairs : {RotaryPairs::halves, RotaryPairs::interleaved}) {
    const Tensor packed = randn({2, 3, 3, 4, 16}, gen, cpu);  // a packed projection [B, T, 3, heads, D]
    Tensors inputs{randn({2, 3, 6}, gen, cpu, DType::f64), randn({2, 1, 2}, gen, cpu, DType::f64),
                   randn({2, 1, 2}, gen, cpu, DType::f64)};
    for (Tensor& in : inputs) in.requires_grad_();
    const auto turn = [&](std::span<const Tensor> in) { return Tensors{apply_rotary(in[0], {in[1], in[2]}, pairs)}; };
    CHECK(gradcheck(turn, inputs));
    CHECK(gradgradcheck(turn, inputs, gen));
    const Tensors expected = grad(Tensors{sum(square(turn(inputs)[0]) * 0.5)}, inputs);
    for (const Device device : levin::test::all_devices()) {
      const Tensor q = transpose(select(packed.to(device), 2, 1), 1, 2);
      const RotaryTable table = rotary_table(positions_of({4, 5, 6}, {3}).to(device), 16);
      CHECK(equal(apply_rotary(q, table, pairs), apply_rotary(q.contiguous(), table, pairs)));
      Tensors there;
      for (const Tensor& in : inputs) there.push_back(in.detach().to(device).requires_grad_());
      const Tensors grads = grad(Tensors{sum(square(turn(there)[0]) * 0.5)}, there);
      for (std::size_t k = 0; k < grads.size(); ++k) CHECK(allclose(grads[k].to(cpu), expected[k], 1e-12, 1e-12));
    }
  }
}

TEST_CASE("products of rotated vectors depend on the difference of their positions alone") {
  Generator gen(1);
  const Tensor q = randn({1, 8}, gen, cpu, DType::f64), k = randn({1, 8}, gen, cpu, DType::f64);
  for (const RotaryPairs pairs : {RotaryPairs::halves, RotaryPairs::interleaved}) {
    const auto product = [&](std::int64_t i, std::int64_t j) {
      const Tensor a = rotary_embedding(q, positions_of({i}, {1}), {.pairs = pairs});
      return sum(a * rotary_embedding(k, positions_of({j}, {1}), {.pairs = pairs})).item<double>();
    };
    CHECK(std::abs(product(7, 4) - product(1003, 1000)) < 1e-12);
    CHECK(std::abs(product(7, 4) - product(4, 7)) > 1e-3);
  }
}

}  // namespace levin::testing
