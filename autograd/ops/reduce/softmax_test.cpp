#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "levin/autograd.h"
#include "levin/stream.h"
#include "tests/device.h"
#include "tests/ops/samples.h"
#include "tests/skip.h"

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();

Tensor softmax_reference(const Tensor& x, std::int64_t dim, bool log_of_it) {
  const int r = x.rank(), d = r == 0 ? 0 : int((dim + r) % r);
  std::vector<double> v = x.contiguous().to_vector<double>();
  std::int64_t inner = 1, n = r == 0 ? 1 : x.shape()[d];
  for (int k = d + 1; k < r; ++k) inner *= x.shape()[k];
  for (std::int64_t o = 0; n > 0 && inner > 0 && o < x.numel() / (n * inner); ++o) {
    for (std::int64_t i = 0; i < inner; ++i) {
      const auto at = [&](std::int64_t k) -> double& { return v[std::size_t((o * n + k) * inner + i)]; };
      double most = -std::numeric_limits<double>::infinity(), sum = 0;
      for (std::int64_t k = 0; k < n; ++k) most = std::max(most, at(k));
      for (std::int64_t k = 0; k < n; ++k) sum += std::exp(at(k) - most);
      for (std::int64_t k = 0; k < n; ++k)
        at(k) = log_of_it ? at(k) - most - std::log(sum) : std::exp(at(k) - most) / sum;
    }
  }
  return from_data(std::span<const double>(v), x.shape(), cpu);
}

OpCase softmax_case(std::vector<std::string> ops, Tensor (*f)(const Tensor&, std::int64_t), bool log_of_it) {
  // The rounding of x - max, at most 4 eps for 8, is a relative error of the result, here and in the reference.
  OpCase c{.ops = ops, .dtypes = kFloatDTypes, .ulps = 16};
  const auto add = [&](Shape s, std::int64_t dim) {
    c.samples.push_back(
        {.inputs = {real(s, -4, 4)},
         .call = [f, dim](const Tensors& in) { return Tensors{f(in[0], dim)}; },
         .reference = [dim,
                       log_of_it](const Tensors& in) { return Tensors{softmax_reference(in[0], dim, log_of_it)}; }});
  };
  add({}, 0);
  add({1}, 0);
  add({5}, -1);
  add({0, 3}, 1);
  add({3, 0}, 1);
  add({3, 5}, 1);
  add({3, 5}, 0);
  // All three elements of a column have one cotangent g, 1.5 in the last: the gradient y * (g - sum of g * y) is 0, and
  // some y of that column is 1/3 or more.
  if (!log_of_it) c.samples.back().cancelled_terms = 0.5;
  add({2, 3, 4}, 1);
  add({30, 1030}, -1);
  add({2, 11, 41}, 1);
  // Under autocast: rows of a warp and of a block, with whole vectors and without, and columns.
  for (const std::size_t k : {std::size_t{2}, std::size_t{5}, std::size_t{8}, std::size_t{9}})
    c.samples.push_back(under_autocast(c.samples[k]));
  add({3, 1100}, 1);
  c.samples.back() = under_autocast(c.samples.back());
  const std::string name = ops[0];
  c.errors.push_back({"dimension", [f] { (void)f(zeros({2, 3}, cpu), 2); }, throws<IndexError>, name});
  return c;
}

}  // namespace

LEVIN_OP_CASE(softmax) { return softmax_case({"softmax", "softmax_backward"}, softmax, false); }
LEVIN_OP_CASE(log_softmax) { return softmax_case({"log_softmax", "log_softmax_backward"}, log_softmax, true); }

TEST_CASE("softmax of large logits is finite, and a row of -inf is NaN as in PyTorch") {
  const float inf = std::numeric_limits<float>::infinity();
  const Tensor big = softmax(tensor({1e4f, 1e4f, -1e4f}, cpu), 0);
  CHECK(equal(big, tensor({0.5f, 0.5f, 0.f}, cpu)));
  CHECK(equal(softmax(tensor({-inf, 0.f}, cpu), 0), tensor({0.f, 1.f}, cpu)));
  CHECK(std::isnan(softmax(tensor({-inf, -inf}, cpu), 0).to_vector<float>()[0]));
}

TEST_CASE(
    "softmax on a device reads a row that no block can keep on the chip twice, with masked and infinite numbers") {
  const auto device = test::launching_device();
  if (!device) return test::skip("no device that launches kernels here");
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> v(std::size_t(2 * 60001));
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = i % 3 == 0 ? -inf : float(i % 1000) / 500;
  v[60001 + 7] = inf;
  const Tensor x = from_data(std::span<const float>(v), {2, 60001}, cpu), there = x.to(*device);
  for (const bool log_of_it : {false, true}) {
    const auto want = (log_of_it ? log_softmax(x, 1) : softmax(x, 1)).to_vector<float>();
    const auto got = (log_of_it ? log_softmax(there, 1) : softmax(there, 1)).to(cpu).to_vector<float>();
    // An exponential, the sum of positive numbers and a division: 4 eps of the result each, on both sides.
    for (std::size_t i = 0; i < v.size(); ++i) {
      if (std::isnan(want[i]) ? std::isnan(got[i]) : want[i] == got[i]) continue;
      REQUIRE(std::abs(double(want[i]) - double(got[i])) <= 24 * epsilon(DType::f32) * std::abs(double(want[i])));
    }
  }
}

TEST_CASE("gumbel_softmax draws categories by their probabilities, hard ones with the gradient of the soft ones") {
  constexpr std::int64_t kRows = 20000;
  const Tensor p = tensor({0.1, 0.2, 0.7}, cpu), logits = expand(log(p), {kRows, 3});
  Generator a(3), b(3), c(3);
  const Tensor soft = gumbel_softmax(logits, a), hard = gumbel_softmax(logits, b, {.hard = true});
  CHECK(allclose(sum(soft, {1}), ones({kRows}, cpu, DType::f64), 1e-12, 1e-12));
  CHECK(equal(hard, eq(soft, amax(soft, {1}, KeepDim::yes)).to(DType::f64)));
  const std::vector<double> share = mean(hard, {0}).to_vector<double>();
  for (std::size_t k = 0; k < 3; ++k) {  // five standard errors
    const double want = p.to_vector<double>()[k];
    CHECK(std::abs(share[k] - want) < 5 * std::sqrt(want * (1 - want) / double(kRows)));
  }
  // (logits + g) / tau: the same noise at another temperature.
  const Tensor cold = gumbel_softmax(logits, c, {.tau = 0.5});
  CHECK(allclose(cold, softmax(2 * log(soft), 1), 1e-9, 1e-12));

  Tensor x = tensor({0.5, -1.0, 2.0, 0.0}, cpu).to(DType::f64);
  const Tensor seed = tensor({1.0, -2.0, 3.0, 0.5}, cpu);
  x.requires_grad_();
  Generator of_soft(9), of_hard(9);
  const Tensor to_soft = grad(Tensors{gumbel_softmax(x, of_soft)}, Tensors{x}, Tensors{seed})[0];
  const Tensor to_hard = grad(Tensors{gumbel_softmax(x, of_hard, {.hard = true})}, Tensors{x}, Tensors{seed})[0];
  CHECK(equal(to_soft, to_hard));
  CHECK(amax(abs(to_soft)).item() > 0);
}

TEST_CASE("gumbel_softmax takes every float and dimension, gives -inf no chance, and refuses a temperature of 0") {
  Generator g(1);
  for (const DType dtype : kFloatDTypes) {
    const Tensor y = gumbel_softmax(zeros({5, 4}, cpu, dtype), g, {.hard = true, .dim = 0});
    CHECK(y.dtype() == dtype);
    CHECK(equal(sum(y.to(DType::f32), {0}), ones({4}, cpu)));
  }
  CHECK(gumbel_softmax(zeros({}, cpu), g).item() == 1);
  CHECK(gumbel_softmax(zeros({}, cpu), g, {.hard = true}).item() == 1);
  CHECK(gumbel_softmax(zeros({0, 3}, cpu), g, {.hard = true}).shape() == Shape{0, 3});
  CHECK(gumbel_softmax(tensor({-std::numeric_limits<float>::infinity(), 0.f}, cpu), g).to_vector<float>() ==
        std::vector<float>{0, 1});
  CHECK_THROWS_WITH_AS((void)gumbel_softmax(zeros({2}, cpu), g, {.tau = 0}),
                       doctest::Contains("gumbel_softmax: tau is 0"), ConfigError);
  CHECK_THROWS_AS((void)gumbel_softmax(zeros({2}, cpu), g, {.dim = 1}), IndexError);
  CHECK_THROWS_AS((void)gumbel_softmax(zeros({2}, cpu, DType::i64), g), UnsupportedError);
}

}  // namespace levin::testing
