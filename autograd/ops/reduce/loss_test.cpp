#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "tests/ops/loss_reference.h"
#include "tests/ops/samples.h"

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();

using Loss = Tensor (*)(const Tensor&, const Tensor&, Reduction);
OpCase pair_case(std::vector<std::string> ops, const char* name, Loss f, double (*want)(double, double),
                 double low = -2, double high = 2) {
  OpCase c{.ops = std::move(ops), .dtypes = kFloatDTypes, .ulps = 8, .sums = 4, .layout_changes_sums = true};
  for (const Reduction r : {Reduction::none, Reduction::mean, Reduction::sum}) {
    for (const Shape& s : {Shape{}, Shape{1}, Shape{0}, Shape{7}, Shape{3, 5}, Shape{50, 700}}) {
      if (r == Reduction::none || s.numel() < 1000)
        c.samples.push_back({.inputs = {real(s), real(s, low, high)},
                             .call = [f, r](const Tensors& in) { return Tensors{f(in[0], in[1], r)}; },
                             .reference =
                                 [want, r](const Tensors& in) {
                                   return Tensors{reduced_reference(map_reference(in[0], in[1], want), r)};
                                 },
                             .gradcheck = r != Reduction::mean || s.numel() > 0});  // the mean of no element is 0 / 0
    }
  }
  const std::string op = name;
  c.errors.push_back({"shapes",
                      [f] {
                        (void)f(zeros({2, 1}, cpu), zeros({2}, cpu), Reduction::mean);
                      },
                      throws<ShapeError>, op + ": x has shape [2, 1] and target [2], expected equal shapes"});
  c.errors.push_back({"dtypes", [f] { (void)f(zeros({2}, cpu), zeros({2}, cpu, DType::f64), Reduction::mean); },
                      throws<DTypeError>, op + ": tensors are f32 and f64"});
  return c;
}

Tensor huber(const Tensor& x, const Tensor& t, Reduction r) { return huber_loss(x, t, 0.7, r); }
Tensor smooth_l1(const Tensor& x, const Tensor& t, Reduction r) { return smooth_l1_loss(x, t, 0.7, r); }
Tensor bce(const Tensor& x, const Tensor& t, Reduction r) { return binary_cross_entropy_with_logits(x, t, {}, {}, r); }
Tensor probability_loss(const Tensor& x, const Tensor& t, Reduction r) { return binary_cross_entropy(x, t, {}, r); }
double huber_of(double d) { return std::abs(d) <= 0.7 ? d * d / 2 : 0.7 * (std::abs(d) - 0.35); }

}  // namespace

LEVIN_OP_CASE(mse_loss) {
  return pair_case({"mse_loss", "mse_loss_backward"}, "mse_loss", mse_loss,
                   [](double x, double t) { return (x - t) * (x - t); });
}
LEVIN_OP_CASE(l1_loss) {
  return pair_case({"l1_loss", "l1_loss_backward"}, "l1_loss", l1_loss,
                   [](double x, double t) { return std::abs(x - t); });
}
LEVIN_OP_CASE(huber_loss) {
  OpCase c = pair_case({"huber_loss", "huber_loss_backward"}, "huber_loss", huber,
                       [](double x, double t) { return huber_of(x - t); });
  c.errors.push_back({"delta", [] { (void)huber_loss(zeros({2}, cpu), zeros({2}, cpu), 0); }, throws<ConfigError>,
                      "huber_loss: delta is 0"});
  return c;
}
LEVIN_OP_CASE(smooth_l1_loss) {
  OpCase c = pair_case({"smooth_l1_loss", "smooth_l1_loss_backward"}, "smooth_l1_loss", smooth_l1,
                       [](double x, double t) { return huber_of(x - t) / 0.7; });
  c.errors.push_back({"beta", [] { (void)smooth_l1_loss(zeros({2}, cpu), zeros({2}, cpu), -1); }, throws<ConfigError>,
                      "smooth_l1_loss: beta is -1"});
  return c;
}

LEVIN_OP_CASE(binary_cross_entropy_with_logits) {
  OpCase c = pair_case(
      {"binary_cross_entropy_with_logits", "binary_cross_entropy_with_logits_backward"},
      "binary_cross_entropy_with_logits", bce,
      [](double x, double t) { return std::max(x, 0.0) - x * t + std::log1p(std::exp(-std::abs(x))); }, 0, 1);
  const auto softplus_of = [](double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); };
  c.samples.push_back(
      {.inputs = {real({3, 4}), real({3, 4}, 0, 1), optional(real({4}, 0.5, 2)), optional(real({3, 1}, 0.5, 2))},
       .call =
           [](const Tensors& in) {
             return Tensors{binary_cross_entropy_with_logits(in[0], in[1], in[2], in[3], Reduction::none)};
           },
       .reference =
           [softplus_of](const Tensors& in) {
             const Tensor sharp = map_reference(in[0], in[1], [](double x, double t) { return (1 - t) * x; });
             const Tensor share = map_reference(in[1], in[3], [](double t, double p) { return 1 + (p - 1) * t; });
             const Tensor soft = map_reference(share, map_reference(in[0], [=](double x) { return softplus_of(-x); }),
                                               [](double a, double b) { return a * b; });
             const Tensor both = map_reference(sharp, soft, [](double a, double b) { return a + b; });
             return Tensors{map_reference(both, in[2], [](double a, double w) { return a * w; })};
           }});
  c.errors.push_back({"weight",
                      [] {
                        (void)binary_cross_entropy_with_logits(zeros({2}, cpu), zeros({2}, cpu), zeros({3, 2}, cpu));
                      },
                      throws<ShapeError>, "binary_cross_entropy_with_logits: weight has shape [3, 2]"});
  return c;
}

LEVIN_OP_CASE(binary_cross_entropy) {
  OpCase c = pair_case(
      {"binary_cross_entropy", "binary_cross_entropy_backward"}, "binary_cross_entropy", probability_loss,
      [](double x, double t) { return -t * std::log(x) - (1 - t) * std::log1p(-x); }, 0.1, 0.9);
  for (OpSample& s : c.samples) {
    for (Input& in : s.inputs) in.low = 0.1, in.high = 0.9;
  }
  c.samples.push_back(
      {.inputs = {real({3, 4}, 0.1, 0.9), real({3, 4}, 0, 1), optional(real({4}, 0.5, 2))},
       .call = [](const Tensors& in) { return Tensors{binary_cross_entropy(in[0], in[1], in[2], Reduction::none)}; },
       .reference =
           [](const Tensors& in) {
             const Tensor y = map_reference(
                 in[0], in[1], [](double x, double t) { return -t * std::log(x) - (1 - t) * std::log1p(-x); });
             return Tensors{map_reference(y, in[2], [](double a, double w) { return a * w; })};
           }});
  c.errors.push_back({"weight",
                      [] {
                        (void)binary_cross_entropy(zeros({2}, cpu), zeros({2}, cpu), zeros({3, 2}, cpu));
                      },
                      throws<ShapeError>, "binary_cross_entropy: weight has shape [3, 2]"});
  return c;
}

LEVIN_OP_CASE(kl_div) {
  OpCase c{.ops = {}, .dtypes = kFloatDTypes, .ulps = 16, .sums = 15, .layout_changes_sums = true};
  for (const LogTarget log_target : {LogTarget::no, LogTarget::yes}) {
    for (const KlReduction r : {KlReduction::none, KlReduction::mean, KlReduction::sum, KlReduction::batchmean}) {
      for (const Shape& s : {Shape{1}, Shape{0, 3}, Shape{3, 5}}) {
        const bool log_of_it = log_target == LogTarget::yes;
        c.samples.push_back(
            {.inputs = {real(s, -3, 0), log_of_it ? real(s, -3, 0) : real(s, 0.1, 1)},
             .call = [=](const Tensors& in) { return Tensors{kl_div(in[0], in[1], r, log_target)}; },
             .reference =
                 [=](const Tensors& in) {
                   const Tensor y = map_reference(in[0], in[1], [log_of_it](double x, double t) {
                     return log_of_it ? std::exp(t) * (t - x) : t * (std::log(t) - x);
                   });
                   if (r == KlReduction::none) return Tensors{y};
                   return Tensors{number(r == KlReduction::sum
                                             ? total(y)
                                             : total(y) / double(r == KlReduction::mean ? y.numel() : y.shape()[0]))};
                 },
             .gradcheck = s.numel() > 0 || r == KlReduction::none || r == KlReduction::sum});
      }
    }
  }
  c.errors.push_back({"shapes", [] { (void)kl_div(zeros({2}, cpu), zeros({3}, cpu)); }, throws<ShapeError>,
                      "kl_div: x has shape [2] and target [3]"});
  return c;
}

TEST_CASE("binary cross-entropy of large logits is finite and keeps its small values") {
  const Tensor y = binary_cross_entropy_with_logits(tensor({1000., -1000., 40., -40.}, cpu),
                                                    tensor({0., 1., 1., 0.}, cpu), {}, {}, Reduction::none);
  const std::vector<double> v = y.to_vector<double>();
  CHECK(v[0] == 1000);
  CHECK(v[1] == 1000);
  CHECK(v[2] == doctest::Approx(std::exp(-40.0)).epsilon(1e-12));
  CHECK(v[3] == doctest::Approx(std::exp(-40.0)).epsilon(1e-12));
}

TEST_CASE(
    "binary cross-entropy of the probabilities 0 and 1 is finite, as its gradients are; outside of them it is NaN") {
  for (const DType dtype : {DType::f32, DType::f64}) {
    Tensor x = tensor({0.0, 0.0, 1.0, 1.0}, cpu).to(dtype);
    x.requires_grad_();
    Tensor target = tensor({0.0, 1.0, 0.0, 1.0}, cpu).to(dtype);
    target.requires_grad_();
    const Tensor y = binary_cross_entropy(x, target, {}, Reduction::none);
    CHECK(y.to(DType::f64).to_vector<double>() == std::vector<double>{0, 100, 100, 0});
    backward(sum(y));
    const std::vector<double> g = x.grad().to(DType::f64).to_vector<double>();
    CHECK(g[0] == 0);
    CHECK(g[1] == doctest::Approx(-1e12));
    CHECK(g[2] == doctest::Approx(1e12));
    CHECK(g[3] == 0);
    CHECK(target.grad().to(DType::f64).to_vector<double>() == std::vector<double>{100, 100, -100, -100});
    CHECK(all(isnan(binary_cross_entropy(tensor({-0.5, 1.5}, cpu), tensor({1.0, 0.0}, cpu), {}, Reduction::none)))
              .item() == 1);
  }
}

TEST_CASE("kl_div of a target with zeros is finite, and so is its gradient") {
  Tensor x = tensor({-1.0, -0.5}, cpu);
  x.requires_grad_();
  const Tensor y = kl_div(x, tensor({0.0, 1.0}, cpu), KlReduction::sum);
  backward(y);
  CHECK(y.item() == 0.5);
  CHECK(equal(x.grad(), tensor({-0.0, -1.0}, cpu)));
}

TEST_CASE("binary cross-entropy of infinite logits is 0 where the target agrees and infinite where it does not") {
  const double inf = std::numeric_limits<double>::infinity();
  for (const DType dtype : kFloatDTypes) {
    Tensor x = tensor({inf, inf, -inf, -inf, inf}, cpu).to(dtype);
    x.requires_grad_();
    const Tensor target = tensor({0.0, 1.0, 0.0, 1.0, 0.5}, cpu).to(dtype);
    for (const Tensor& pos_weight : {Tensor(), ones({5}, cpu, dtype)}) {
      CAPTURE(pos_weight.defined());
      const Tensor loss = binary_cross_entropy_with_logits(x, target, {}, pos_weight, Reduction::none);
      CHECK(loss.to(DType::f64).to_vector<double>() == std::vector<double>{inf, 0, 0, inf, inf});
      CHECK(grad(Tensors{sum(loss)}, Tensors{x})[0].to(DType::f64).to_vector<double>() ==
            std::vector<double>{1, 0, 0, -1, 0.5});
    }
  }
}

TEST_CASE("the gradient of binary cross-entropy with pos_weight in 16 bits is near that of f64, for either target") {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    std::vector<double> logits;
    for (double v = -8; v <= 8; v += 0.25) logits.push_back(v);
    const auto n = static_cast<std::int64_t>(logits.size());
    for (const double t : {0.0, 1.0}) {
      const auto gradient = [&](DType in) {
        Tensor x = from_data(logits, {n}, cpu).to(in);
        x.requires_grad_();
        const Tensor loss =
            binary_cross_entropy_with_logits(x, full({n}, t, cpu, in), {}, full({n}, 3, cpu, in), Reduction::sum);
        return grad(Tensors{loss}, Tensors{x})[0].to(DType::f64).to_vector<double>();
      };
      const std::vector<double> got = gradient(dtype), want = gradient(DType::f64);
      for (std::size_t i = 0; i < got.size(); ++i) {
        CAPTURE(logits[i]);
        CAPTURE(t);
        REQUIRE(std::abs(got[i] - want[i]) <= 3 * epsilon(dtype) * std::abs(want[i]));  // rounded products
      }
    }
  }
}

}  // namespace levin::testing
