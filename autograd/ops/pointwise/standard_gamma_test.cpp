#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/device/draw.cuh"
#include "kernels/device/philox.cuh"
#include "kernels/math/gamma_slope.h"
#include "levin/distributions.h"
#include "tests/device.h"
#include "tests/ops/harness.h"
#include "tests/ops/samples.h"

namespace levin::testing {
namespace {

using distributions::Logarithm, distributions::standard_gamma;
const Device cpu = Device::cpu();
constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();

std::vector<double> values(const Tensor& t) { return t.detach().to(cpu).to(DType::f64).to_vector<double>(); }
Tensor vec(const std::vector<double>& v, DType dtype = DType::f64) {
  return from_data(v, {static_cast<std::int64_t>(v.size())}, cpu).to(dtype);
}

// Marsaglia and Tsang's method as their paper has it, for element i of a generator's first draw.
double draw_of(double a, std::uint64_t seed, std::uint32_t i) {
  using namespace levin::kernels;
  const auto block = [&](std::uint32_t part) {
    return philox({i, 0, part, 0}, std::uint32_t(seed), std::uint32_t(seed >> 32));
  };
  const double d = (a < 1 ? a + 1 : a) - 1.0 / 3;
  for (std::uint32_t k = 0;; ++k) {
    const PhiloxBlock w = block(2 * k), low = block(2 * k + 1);
    const double z = normal_pair(w.x0, w.x1, low.x0, low.x1).first, v = std::pow(1 + z / std::sqrt(9 * d), 3);
    const double u = unit_double(w.x2, low.x2 | 2048);
    if (v <= 0 || std::log(u) >= z * z / 2 + d - d * v + d * std::log(v)) continue;
    return d * v * (a < 1 ? std::pow(unit_double(w.x3, low.x3 | 2048), 1 / a) : 1);
  }
}

}  // namespace

LEVIN_OP_CASE(standard_gamma) {
  OpCase c{.ops = {"standard_gamma", "standard_gamma_backward"}, .dtypes = kFloatDTypes, .ulps = 24};
  for (const Shape& s : {Shape{}, Shape{1}, Shape{0, 3}, Shape{7}, Shape{3, 5}, Shape{4, 300}}) {
    for (const Logarithm logarithm : {Logarithm::no, Logarithm::yes}) {
      c.samples.push_back({.inputs = {real(s, 0.25, 4)},
                           .call =
                               [=](const Tensors& in) {
                                 Generator g(5);
                                 return Tensors{standard_gamma(in[0], g, logarithm)};
                               },
                           .reference =
                               [=](const Tensors& in) {
                                 std::uint32_t i = 0;
                                 return Tensors{map_reference(in[0], [&](double a) {
                                   const double x = draw_of(a, 5, i++);
                                   return logarithm == Logarithm::yes ? std::log(x) : x;
                                 })};
                               },
                           .gradcheck = false});  // a draw with the same words is no quantile
    }
  }
  c.errors.push_back({"integers",
                      [] {
                        Generator g(1);
                        (void)standard_gamma(ones({2}, cpu, DType::i64), g);
                      },
                      throws<UnsupportedError>, "standard_gamma"});
  return c;
}

TEST_CASE("gamma draws and their logarithms have the moments of the distribution") {
  constexpr std::int64_t n = 50'000;
  Generator g(3);
  for (const double a : {0.01, 0.4, 1.0, 2.5, 60.0, 1e4}) {
    for (const DType dtype : {DType::f32, DType::f64}) {
      CAPTURE(a);
      CAPTURE(text(dtype));
      const auto check = [&](const Tensor& drawn, double mean, double variance, double fourth) {
        const Tensor x = drawn.to(DType::f64);
        CHECK(std::abs(levin::mean(x).item() - mean) < 5 * std::sqrt(variance / n));
        CHECK(std::abs(var(x).item() - variance) < 5 * std::sqrt((fourth - variance * variance) / n));
      };
      const Tensor concentration = full({n}, a, cpu, dtype), one = full({}, a, cpu, DType::f64);
      if (a >= 0.4) check(standard_gamma(concentration, g), a, a, 3 * a * a + 6 * a);
      const double variance = polygamma(1, one).item(), fourth = polygamma(3, one).item() + 3 * variance * variance;
      check(standard_gamma(concentration, g, Logarithm::yes), digamma(one).item(), variance, fourth);
    }
  }
}

TEST_CASE("the gradient of a gamma draw is that of its quantile, in every dtype") {
  constexpr std::int64_t n = 2000;
  Generator g(3);
  const Tensor wide = exp(rand({n}, g, cpu, DType::f64) * 14 - 5);  // from 0.007 to 8000
  for (const DType dtype : kFloatDTypes) {
    for (const Logarithm logarithm : {Logarithm::no, Logarithm::yes}) {
      CAPTURE(text(dtype));
      Tensor a = wide.to(dtype).detach();
      a.requires_grad_();
      const Tensor y = standard_gamma(a, g, logarithm);
      backward(y, full_like(y, 3).detach());
      const std::vector<double> of_a = values(a), of_y = values(y), slopes = values(a.grad());
      const double tolerance = dtype == DType::f64    ? 1e-11
                               : dtype == DType::f32  ? 3e-6
                               : dtype == DType::bf16 ? 0x1p-7
                                                      : 0x1p-10;
      for (std::size_t k = 0; k < of_a.size(); ++k) {
        const bool logs = logarithm == Logarithm::yes;
        const double x = logs ? std::exp(of_y[k]) : of_y[k], log_x = logs ? of_y[k] : std::log(of_y[k]);
        const double want = 3 * kernels::math::gamma_log_slope<double>(of_a[k], x, log_x) * (logs ? 1 : x);
        if (dtype == DType::f16 && std::abs(want) > 65000) continue;
        CHECK(std::abs(slopes[k] - want) <= tolerance * std::abs(want) + (dtype == DType::f16 ? 0x1p-24 : 1e-37));
      }
    }
  }
}

TEST_CASE("the mean gradient of a gamma draw is 1, and that of its logarithm the trigamma function") {
  constexpr std::int64_t n = 50'000;
  Generator g(8);
  for (const double of : {0.3, 2.0, 45.0}) {
    CAPTURE(of);
    for (const Logarithm logarithm : {Logarithm::no, Logarithm::yes}) {
      Tensor a = full({n}, of, cpu, DType::f64);
      a.requires_grad_();
      backward(sum(standard_gamma(a, g, logarithm)));
      const double want = logarithm == Logarithm::no ? 1 : polygamma(1, full({}, of, cpu, DType::f64)).item();
      CHECK(std::abs(mean(a.grad()).item() - want) < 5 * std::sqrt(var(a.grad()).item() / double(n)));
    }
  }
}

TEST_CASE("the gradient of a gamma draw has no derivative in the concentration, which the error names") {
  Generator g(8);
  Tensor a = vec({0.5, 2}), w = vec({1, 3});
  a.requires_grad_();
  w.requires_grad_();
  const Tensor loss = sum(standard_gamma(a, g) * square(w));
  const Tensor first = grad(loss, std::array{a}, {.create_graph = true})[0];
  // In the cotangent it is linear.
  CHECK(values(grad(sum(first), std::array{w}, {.retain_graph = true})[0])[1] ==
        doctest::Approx(values(first)[1] * 2 / 3));
  CHECK_THROWS_WITH_AS((void)grad(sum(first), std::array{a}),
                       doctest::Contains("standard_gamma_backward: the gradient of a gamma draw has no derivative in "
                                         "the concentration"),
                       AutogradError);
}

TEST_CASE("a concentration that is NaN, 0 or below draws NaN, an infinite one infinity, and no draw is 0") {
  for (const DType dtype : kFloatDTypes) {
    CAPTURE(text(dtype));
    Generator g(8);
    const std::vector<double> x = values(standard_gamma(vec({kNan, 0, -1, -kInf, kInf, 2}, dtype), g));
    for (const std::size_t k : {0, 1, 2, 3}) CHECK(std::isnan(x[k]));
    CHECK(x[4] == kInf);
    CHECK(x[5] > 0);
    const double least = amin(standard_gamma(full({1000}, 1e-3, cpu, dtype), g)).to(DType::f64).item();
    CHECK(least == (dtype == DType::f16 ? 0x1p-24 : dtype == DType::f64 ? 0x1p-1022 : 0x1p-126));
    CHECK(amax(standard_gamma(full({1000}, 1e-3, cpu, dtype), g, Logarithm::yes)).to(DType::f64).item() < 3);
  }
  Generator g(8);
  const double far = amin(standard_gamma(full({1000}, 1e-3, cpu), g, Logarithm::yes)).item();
  CHECK(far < -1000);
  CHECK(std::isfinite(far));
}

TEST_CASE("gamma draws take a counter an element, so two halves are the whole, and meta takes none") {
  for (const DType dtype : {DType::f32, DType::f64}) {
    Generator whole(4), halves(4);
    const Tensor a = full({600}, 0.7, cpu, dtype), both = standard_gamma(a, whole);
    const Tensor first = standard_gamma(narrow(a, 0, 0, 301), halves),
                 second = standard_gamma(narrow(a, 0, 301, 299), halves);
    CHECK(equal(both, cat({first, second}, 0)));
    CHECK(whole.state().offset == 600);
    CHECK(halves.state().offset == 600);
  }
  Generator g(4);
  CHECK(standard_gamma(ones({3, 2}, Device::meta()), g).shape() == Shape{3, 2});
  CHECK_THROWS_AS((void)standard_gamma(ones({2}, cpu, DType::i64), g), UnsupportedError);
  CHECK(g.state().offset == 0);
}

TEST_CASE("checkpoint draws the gamma numbers of its first run again") {
  Generator plain(9), again(9);
  Tensor a = full({64}, 1.5, cpu), b = full({64}, 1.5, cpu);
  a.requires_grad_(), b.requires_grad_();
  backward(sum(standard_gamma(a * 2, plain)));
  backward(sum(checkpoint([&](const Tensor& t) { return standard_gamma(t * 2, again); }, b)));
  CHECK(equal(a.grad(), b.grad()));
  CHECK(plain.state().offset == again.state().offset);
}

TEST_CASE("gamma draws have the bits of the cpu on a device, and gradients as near as their dtype") {
  DEVICE_OR_SKIP();
  for (const DType dtype : kFloatDTypes) {
    for (const Logarithm logarithm : {Logarithm::no, Logarithm::yes}) {
      CAPTURE(text(dtype));
      Generator here(7), there(7), numbers(2);
      here.set_state({7, 0xfffffff0u});  // the counter's upper word changes during the draws
      there.set_state({7, 0xfffffff0u});
      Tensor a = exp(rand({517}, numbers, cpu, DType::f64) * 8 - 3).to(dtype), b = a.to(device);
      a.requires_grad_(), b.requires_grad_();
      const Tensor x = standard_gamma(a, here, logarithm), y = standard_gamma(b, there, logarithm);
      CHECK(same_bits(x.detach(), y.detach()));
      CHECK(here.state().offset == there.state().offset);
      backward(sum(x));
      backward(sum(y));
      const std::vector<double> want = values(a.grad()), got = values(b.grad());
      const double tolerance = dtype == DType::f64 ? 1e-13 : dtype == DType::f32 ? 1e-6 : 0x1p-7;
      for (std::size_t k = 0; k < want.size(); ++k) CHECK(std::abs(got[k] - want[k]) <= tolerance * std::abs(want[k]));
    }
  }
}

}  // namespace levin::testing
