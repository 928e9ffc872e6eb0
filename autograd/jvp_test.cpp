#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "levin/autograd.h"
#include "levin/ops.h"

namespace levin {
namespace {

const Device cpu = Device::cpu();
double at(const Tensor& t, std::size_t i) { return t.to_vector<double>()[i]; }

TEST_CASE("jvp is the derivative along the tangents, of several inputs and outputs") {
  Generator gen(3);
  const auto random = [&](const Shape& s) { return randn(s, gen, cpu, DType::f64); };
  const Tensors x{random({3, 4}), random({4, 2})}, v{random({3, 4}), random({4, 2})};
  const auto fn = [](std::span<const Tensor> in) {
    const Tensor product = matmul(in[0], in[1]);
    return Tensors{softmax(product, 1), sum(tanh(in[0])), ones({2}, Device::cpu(), DType::f64)};
  };
  const JvpResult got = jvp(fn, x, v);
  REQUIRE(got.outputs.size() == 3);
  REQUIRE(got.tangents.size() == 3);
  const double h = 1e-6;
  const Tensors up{x[0] + v[0] * h, x[1] + v[1] * h}, down{x[0] - v[0] * h, x[1] - v[1] * h};
  const Tensors high = fn(up), low = fn(down), here = fn(x);
  for (std::size_t k = 0; k < 3; ++k) {
    CHECK(got.tangents[k].shape() == here[k].shape());
    CHECK_FALSE(got.tangents[k].requires_grad());
    CHECK_FALSE(got.outputs[k].requires_grad());
    CHECK(equal(got.outputs[k], here[k]));
    CHECK(amax(abs(got.tangents[k] - (high[k] - low[k]) / (2 * h))).item() <= 1e-8);
  }
  // One input moves alone.
  const JvpResult half = jvp(fn, x, Tensors{Tensor(), v[1]});
  CHECK(half.tangents[1].item() == 0);
  CHECK(amax(abs(half.tangents[0])).item() > 1e-3);
}

TEST_CASE("jvp keeps its history where asked: the derivative of a slope along a direction") {
  Tensor x = tensor({0.5, 2.0}, cpu), v = tensor({1.0, 3.0}, cpu);
  x.requires_grad_();
  v.requires_grad_();
  const auto cube = [](std::span<const Tensor> in) { return Tensors{in[0] * in[0] * in[0]}; };
  const Tensor slope = jvp(cube, std::span(&x, 1), std::span(&v, 1), {.create_graph = true}).tangents[0];
  CHECK(at(slope, 1) == 36);  // 3 x^2 v
  const Tensors both{x, v};
  const Tensors g = grad(sum(slope), both);
  CHECK(at(g[0], 1) == 36);  // 6 x v
  CHECK(at(g[1], 0) == 0.75);
  const NoGrad off;  // the caller's mode does not matter
  CHECK(at(jvp(cube, std::span(&x, 1), std::span(&v, 1)).tangents[0], 0) == 0.75);
}

TEST_CASE("jvp of a linear function is the function, and wrong tangents are refused") {
  const Tensor x = tensor({1.0, 2.0}, cpu), v = tensor({5.0, 7.0}, cpu);
  const auto doubled = [](std::span<const Tensor> in) { return Tensors{in[0] * 2}; };
  const auto of = [&](const Tensors& in, const Tensors& along) { return jvp(doubled, in, along); };
  CHECK(of({x}, {v}).tangents[0].to_vector<double>() == std::vector<double>{10, 14});
  CHECK_THROWS_WITH_AS(of({x}, {}), doctest::Contains("0 tangents are given for 1 inputs"), AutogradError);
  CHECK_THROWS_AS(of({}, {}), AutogradError);
  CHECK_THROWS_AS(of({x}, {zeros({3}, cpu, DType::f64)}), ShapeError);
  CHECK_THROWS_AS(of({x}, {v.to(DType::f32)}), DTypeError);
  CHECK_THROWS_AS(of({tensor({std::int64_t{1}}, cpu)}, {v}), DTypeError);
}

}  // namespace
}  // namespace levin
