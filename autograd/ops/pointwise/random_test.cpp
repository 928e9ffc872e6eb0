#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "levin/stream.h"
#include "tests/device.h"
#include "tests/ops/harness.h"
#include "tests/ops/samples.h"
#include "tests/skip.h"

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();

double mean_of(const std::vector<double>& v) { return std::accumulate(v.begin(), v.end(), 0.0) / double(v.size()); }
std::vector<double> values(const Tensor& t) { return t.to(DType::f64).to_vector<double>(); }

}  // namespace

LEVIN_OP_CASE(dropout) {
  OpCase c{.ops = {"dropout"}, .dtypes = kFloatDTypes};
  const auto drop = [](double p) {
    return [p](const Tensors& in) {
      Generator g(3);
      return Tensors{dropout(in[0], p, g)};
    };
  };
  // The mask does not depend on x: a tensor of ones shows it.
  const auto want = [](double p) {
    return [p](const Tensors& in) {
      Generator g(3);
      const Tensor kept = dropout(ones(in[0].shape(), cpu, DType::f64), p, g);
      return Tensors{map_reference(in[0], kept, [p](double x, double k) { return k != 0 ? x / (1 - p) : 0; })};
    };
  };
  for (const Shape& s : {Shape{}, Shape{1}, Shape{0, 3}, Shape{7}, Shape{3, 5}, Shape{130, 1000}}) {
    for (const double p : {0.0, 0.25, 1.0})
      c.samples.push_back({.inputs = {real(s)}, .call = drop(p), .reference = want(p)});
  }
  c.errors.push_back({"p above 1",
                      [] {
                        Generator g(1);
                        (void)dropout(zeros({2}, cpu), 1.5, g);
                      },
                      throws<ConfigError>, "dropout: p is 1.5, expected a probability in [0, 1]"});
  return c;
}

LEVIN_OP_CASE(feature_dropout) {
  OpCase c{.ops = {}, .dtypes = kFloatDTypes};
  for (const Shape& s : {Shape{1, 1}, Shape{0, 3}, Shape{40, 25}, Shape{5, 7, 3}, Shape{2, 30, 2, 3, 2}}) {
    for (const double p : {0.0, 0.25, 1.0}) {
      c.samples.push_back({.inputs = {real(s)},
                           .call =
                               [p](const Tensors& in) {
                                 Generator g(3);
                                 return Tensors{feature_dropout(in[0], p, g)};
                               },
                           .reference =
                               [=](const Tensors& in) {
                                 Generator g(3);
                                 Shape channels = s;
                                 for (int d = 2; d < s.rank(); ++d) channels = channels.with(d, 1);
                                 const Tensor kept = dropout(ones(channels, cpu, DType::f64), p, g);
                                 return Tensors{map_reference(in[0], expand(kept, s), [p](double x, double k) {
                                   return k != 0 ? x / (1 - p) : 0;
                                 })};
                               }});
    }
  }
  c.errors.push_back({"rank",
                      [] {
                        Generator g(1);
                        (void)feature_dropout(zeros({2}, cpu), 0.5, g);
                      },
                      throws<ShapeError>, "feature_dropout: x has shape [2], expected [N, C, ...]"});
  c.errors.push_back({"p",
                      [] {
                        Generator g(1);
                        (void)feature_dropout(zeros({2, 2}, cpu), -0.5, g);
                      },
                      throws<ConfigError>, "feature_dropout: p is -0.5"});
  return c;
}

LEVIN_OP_CASE(alpha_dropout) {
  OpCase c{.ops = {}, .dtypes = kFloatDTypes, .ulps = 8};
  for (const Shape& s : {Shape{}, Shape{1}, Shape{0, 3}, Shape{3, 5}, Shape{13, 100}}) {
    for (const double p : {0.0, 0.25, 1.0}) {
      c.samples.push_back({.inputs = {real(s)},
                           .call =
                               [p](const Tensors& in) {
                                 Generator g(3);
                                 return Tensors{alpha_dropout(in[0], p, g)};
                               },
                           .reference =
                               [=](const Tensors& in) {
                                 Generator g(3);
                                 const Tensor kept = bernoulli(full(s, 1 - p, cpu), g).to(DType::f64);
                                 return Tensors{map_reference(in[0], kept, [p](double x, double k) {
                                   if (p == 0 || p == 1) return p == 0 ? x : 0;
                                   // torch.nn.functional.alpha_dropout: a x + b, x being -1.758 where it drops
                                   const double limit = 1.0507009873554805 * -1.6732632423543772;
                                   const double a = std::pow((1 - p) + p * limit * limit * (1 - p), -0.5);
                                   return a * (k != 0 ? x : limit) - a * limit * p;
                                 })};
                               }});
    }
  }
  c.errors.push_back({"p",
                      [] {
                        Generator g(1);
                        (void)alpha_dropout(zeros({2, 2}, cpu), 1.5, g);
                      },
                      throws<ConfigError>, "alpha_dropout: p is 1.5"});
  return c;
}

TEST_CASE("alpha dropout keeps the mean 0 and the variance 1 of its input") {
  Generator g(1);
  const Tensor x = randn({1000000}, g, cpu, DType::f64), y = alpha_dropout(x, 0.3, g);
  // Deviations of the mean, 1 / sqrt(n), and of the variance, sqrt((kurtosis - 1) / n) with a kurtosis below 4; five
  // of them.
  CHECK(std::abs(mean(y).item()) < 5e-3);
  CHECK(std::abs(var(y).item() - 1) < 9e-3);
}

LEVIN_OP_CASE(bernoulli) {
  OpCase c{.ops = {"bernoulli"}, .dtypes = kFloatDTypes, .differentiable = false};
  for (const Shape& s : {Shape{}, Shape{1}, Shape{0}, Shape{3, 5}, Shape{40, 1000}}) {
    c.samples.push_back({.inputs = {real(s, 0, 1)},
                         .call =
                             [](const Tensors& in) {
                               Generator g(5);
                               return Tensors{bernoulli(in[0], g)};
                             },
                         .reference =
                             [](const Tensors& in) {
                               Generator g(5);
                               // An f32 number is the first 24 bits of the f64 one.
                               const Tensor u = rand(in[0].shape(), g, cpu, DType::f64);
                               return Tensors{map_reference(u, in[0], [](double a, double p) {
                                 return std::floor(a * 0x1p24) * 0x1p-24 < p ? 1.0 : 0.0;
                               })};
                             }});
  }
  c.errors.push_back({"a probability outside [0, 1]",
                      [] {
                        Generator g(1);
                        (void)bernoulli(tensor({0.5f, 2.f}, cpu), g);
                      },
                      throws<ConfigError>, "bernoulli: p is 2 at position 1"});
  return c;
}

TEST_CASE("a device reports what is no probability at the next wait, counts it as 0, and goes on") {
  DEVICE_OR_SKIP();
  const auto error_of = [&](const auto& work) -> std::string {
    try {
      work();
    } catch (const ConfigError& e) { return e.what(); }
    return "none";
  };
  const auto refused = [&](const std::string& p) {
    return "bernoulli: p is " + p + " on " + text(device) + ", expected probabilities in [0, 1]";
  };
  const Tensor good = tensor({0.f, 1.f, 1.f}, device);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const DType t : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    CAPTURE(text(t));
    for (const float bad : {1.5f, -0.25f, nan}) {
      Generator g(1);
      Tensor y;
      CHECK_NOTHROW(y = bernoulli(tensor({1.f, bad, 0.f}, device).to(t), g));  // the host does not wait
      CHECK(error_of([&] { synchronize(device); }) == refused(text(static_cast<double>(bad))));
      CHECK(y.to(DType::f32).to_vector<float>() == std::vector<float>{1, 0, 0});
      CHECK(bernoulli(good.to(t), g).to(DType::f32).to_vector<float>() == std::vector<float>{0, 1, 1});
    }
  }
  // Each replay of a recording checks the values that the tensor holds by then.
  Generator g(1);
  Tensor p = tensor({1.f, 0.5f}, device), y;
  Graph graph(Stream::current(device), [&] { y = bernoulli(p, g); });
  for (const bool bad : {false, true, false}) {
    NoGrad guard;
    copy_(p, tensor({1.f, bad ? 2.f : 0.f}, device));
    graph.replay();
    CHECK(error_of([&] { synchronize(device); }) == (bad ? refused("2") : "none"));
    CHECK(y.to_vector<float>() == std::vector<float>{1, 0});
  }
}

TEST_CASE("random factories fill their distribution and move the generator once") {
  const std::int64_t n = 100000;
  for (const DType dtype : kFloatDTypes) {
    CAPTURE(text(dtype));
    Generator g(11);
    const std::vector<double> u = values(rand({n}, g, cpu, dtype));
    CHECK(*std::min_element(u.begin(), u.end()) >= 0);
    CHECK(*std::max_element(u.begin(), u.end()) < 1);
    // Five standard errors; bf16's grid of 2^-8 shifts the mean by half a step.
    CHECK(std::abs(mean_of(u) - 0.5) < 5 * std::sqrt(1 / 12.0 / double(n)) + (dtype == DType::bf16  ? 0x1p-9
                                                                              : dtype == DType::f16 ? 0x1p-12
                                                                                                    : 0));
    CHECK(g.state().offset == std::uint64_t(n / 4));
    std::vector<double> z = values(randn({n}, g, cpu, dtype));
    CHECK(std::abs(mean_of(z)) < 5 / std::sqrt(double(n)));
    for (double& v : z) v *= v;
    CHECK(std::abs(mean_of(z) - 1) < 5 * std::sqrt(2 / double(n)));
  }
}

TEST_CASE("rand_like and randn_like draw what rand and randn draw for the tensor's shape, dtype and device") {
  for (const Tensor& x : {zeros({3, 5}, cpu, DType::f64), zeros({}, cpu), zeros({0, 2}, cpu, DType::bf16)}) {
    Generator a(5), b(5);
    CHECK(same_bits(rand_like(x, a), rand(x.shape(), b, cpu, x.dtype())));
    CHECK(same_bits(randn_like(x, a), randn(x.shape(), b, cpu, x.dtype())));
  }
  Generator g(5);
  CHECK(randn_like(zeros({2}, Device::meta()), g).device().is_meta());
  CHECK_THROWS_AS((void)randn_like(zeros({2}, cpu, DType::i64), g), UnsupportedError);
}

TEST_CASE("randint covers its range in every dtype and refuses what a dtype can not hold") {
  for (const DType dtype : kAllDTypes) {
    CAPTURE(text(dtype));
    Generator g(2);
    const std::int64_t low = dtype == DType::u8 || dtype == DType::b8 ? 0 : -3, high = dtype == DType::b8 ? 2 : 4;
    const std::vector<double> v = values(randint(low, high, {50, 20}, g, cpu, dtype));
    CHECK(*std::min_element(v.begin(), v.end()) == double(low));
    CHECK(*std::max_element(v.begin(), v.end()) == double(high - 1));
  }
  Generator g(2);
  CHECK_THROWS_AS((void)randint(0, 1000, {2}, g, cpu, DType::u8), ConfigError);
  CHECK_THROWS_AS((void)randint(0, 1000, {2}, g, cpu, DType::bf16), ConfigError);
  CHECK_THROWS_AS((void)randint(0, 129, {2}, g, cpu, DType::i8), ConfigError);
  CHECK_THROWS_AS((void)randint(-32769, 0, {2}, g, cpu, DType::i16), ConfigError);
  CHECK_THROWS_AS((void)randint(3, 3, {2}, g, cpu), ConfigError);
  CHECK_THROWS_AS((void)rand({2}, g, cpu, DType::i64), UnsupportedError);
  CHECK(g.state().offset == 0);
  CHECK(randint(0, 7, {2, 3}, g, Device::meta()).shape() == Shape{2, 3});
  CHECK(g.state().offset == 0);
}

TEST_CASE("randperm is a permutation, another one each time") {
  Generator g(4);
  for (const std::int64_t n : {0, 1, 2, 1000}) {
    std::vector<std::int64_t> v = randperm(n, g, cpu).to_vector<std::int64_t>();
    std::vector<std::int64_t> sorted = v;
    std::sort(sorted.begin(), sorted.end());
    for (std::int64_t i = 0; i < n; ++i) CHECK(sorted[std::size_t(i)] == i);
    if (n == 1000) CHECK(v != randperm(n, g, cpu).to_vector<std::int64_t>());
  }
  CHECK_THROWS_AS((void)randperm(-1, g, cpu), ShapeError);
}

TEST_CASE("random ops give the bits of the cpu on a device") {
  const auto device = test::launching_device();
  if (!device) return test::skip("no device that launches kernels here");
  // Odd sizes: tails, several blocks, and permutations of more elements than are swapped at a time.
  for (const std::int64_t n : {0, 1, 5, 17, 4099}) {
    CAPTURE(n);
    const auto same = [&](const char* what, const std::function<Tensor(Generator&, Device)>& draw) {
      CAPTURE(what);
      Generator here(7), there(7);
      here.set_state({7, 0xfffffff0u});  // the counter's upper word changes during the draws
      there.set_state({7, 0xfffffff0u});
      CHECK(same_bits(draw(here, cpu), draw(there, *device)));
      CHECK(here.state().offset == there.state().offset);
    };
    for (const DType t : kFloatDTypes) {
      CAPTURE(text(t));
      same("rand", [&](Generator& g, Device d) { return rand({n}, g, d, t); });
      same("randn", [&](Generator& g, Device d) { return randn({n}, g, d, t); });
      same("bernoulli", [&](Generator& g, Device d) { return bernoulli(full({n}, 0.3, d, t), g); });
      same("dropout", [&](Generator& g, Device d) { return dropout(arange(n, cpu, DType::f32).to(t).to(d), 0.3, g); });
      same("dropout of an unaligned tensor", [&](Generator& g, Device d) {
        return dropout(narrow(arange(n + 1, cpu, DType::f32).to(t).to(d), 0, 1, n), 0.3, g);
      });
      same("the gradient of dropout", [&](Generator& g, Device d) {
        Tensor x = ones({n}, d, t);
        x.requires_grad_();
        backward(dropout(x, 0.3, g), arange(n, cpu, DType::f32).to(t).to(d));
        return x.grad();
      });
    }
    for (const DType t : kAllDTypes) {
      CAPTURE(text(t));
      const std::int64_t high = t == DType::b8 ? 2 : 7;
      same("randint", [&](Generator& g, Device d) { return randint(0, high, {n}, g, d, t); });
    }
    same("randint of 64 bits",
         [&](Generator& g, Device d) { return randint(-(std::int64_t{1} << 62), std::int64_t{1} << 61, {n}, g, d); });
    same("randperm", [&](Generator& g, Device d) { return randperm(n, g, d); });
  }
}

TEST_CASE("checkpoint draws the numbers of dropout again and leaves the generator where one run would") {
  Generator data(1), plain(9), again(9);
  const Tensor x = randn({64, 33}, data, cpu);
  Tensor a = x.detach(), b = x.detach();
  a.requires_grad_(), b.requires_grad_();
  backward(dropout(square(a), 0.3, plain), ones_like(x));
  backward(checkpoint([&](const Tensor& t) { return dropout(square(t), 0.3, again); }, b), ones_like(x));
  CHECK(equal(a.grad(), b.grad()));
  CHECK(plain.state().offset == again.state().offset);
}

}  // namespace levin::testing
