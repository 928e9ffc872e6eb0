#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "tests/ops/loss_reference.h"
#include "tests/ops/samples.h"

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();

double positive(double x) { return std::max(0.0, x); }
// 1, -1, 1, ...
Tensor signs(const Shape& s) {
  std::vector<double> v(static_cast<std::size_t>(s.numel()));
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = i % 2 == 0 ? 1 : -1;
  return from_data(std::span<const double>(v), s, cpu);
}
const Reduction kReductions[] = {Reduction::none, Reduction::mean, Reduction::sum};
const Shape kShapes[] = {{}, {1}, {0}, {7}, {3, 50}};
// The mean of no element is 0 / 0.
bool has_gradient(const Shape& s, Reduction r) { return s.numel() > 0 || r != Reduction::mean; }

OpError shape_error(const std::string& op, const std::function<Tensor(const Tensor&, const Tensor&)>& f) {
  return {"shapes",
          [f] {
            (void)f(zeros({2, 1}, cpu), zeros({2}, cpu));
          },
          throws<ShapeError>, op + ": x has shape [2, 1] and target [2], expected equal shapes"};
}

}  // namespace

LEVIN_OP_CASE(margin_ranking_loss) {
  OpCase c{.ops = {}, .dtypes = kFloatDTypes, .ulps = 8, .sums = 8, .layout_changes_sums = true};
  for (const Reduction r : kReductions) {
    for (const Shape& s : kShapes) {
      c.samples.push_back(
          {.inputs = {real(s), real(s), fixed(signs(s))},
           .call = [=](const Tensors& in) { return Tensors{margin_ranking_loss(in[0], in[1], in[2], 0.3, r)}; },
           .reference =
               [=](const Tensors& in) {
                 const Tensor apart = map_reference(in[0], in[1], [](double a, double b) { return a - b; });
                 return Tensors{reduced_reference(
                     map_reference(apart, in[2], [](double d, double sign) { return positive(0.3 - sign * d); }), r)};
               },
           .gradcheck = has_gradient(s, r)});
    }
  }
  c.errors.push_back({"target", [] { (void)margin_ranking_loss(zeros({2}, cpu), zeros({2}, cpu), ones({1}, cpu)); },
                      throws<ShapeError>, "margin_ranking_loss: a has shape [2] and target [1]"});
  return c;
}

LEVIN_OP_CASE(hinge_embedding_loss) {
  OpCase c{.ops = {}, .dtypes = kFloatDTypes, .ulps = 8, .sums = 8, .layout_changes_sums = true};
  for (const Reduction r : kReductions) {
    for (const Shape& s : kShapes) {
      c.samples.push_back(
          {.inputs = {real(s), fixed(signs(s))},
           .call = [=](const Tensors& in) { return Tensors{hinge_embedding_loss(in[0], in[1], 0.8, r)}; },
           .reference =
               [=](const Tensors& in) {
                 return Tensors{reduced_reference(
                     map_reference(in[0], in[1],
                                   [](double x, double sign) { return sign > 0 ? x : positive(0.8 - x); }),
                     r)};
               },
           .gradcheck = has_gradient(s, r)});
    }
  }
  c.errors.push_back(
      shape_error("hinge_embedding_loss", [](const Tensor& x, const Tensor& t) { return hinge_embedding_loss(x, t); }));
  return c;
}

LEVIN_OP_CASE(soft_margin_loss) {
  OpCase c{.ops = {}, .dtypes = kFloatDTypes, .ulps = 8, .sums = 8, .layout_changes_sums = true};
  for (const Reduction r : kReductions) {
    for (const Shape& s : kShapes) {
      c.samples.push_back(
          {.inputs = {real(s), fixed(signs(s))},
           .call = [=](const Tensors& in) { return Tensors{soft_margin_loss(in[0], in[1], r)}; },
           .reference =
               [=](const Tensors& in) {
                 return Tensors{reduced_reference(
                     map_reference(in[0], in[1], [](double x, double sign) { return std::log1p(std::exp(-sign * x)); }),
                     r)};
               },
           .gradcheck = has_gradient(s, r)});
    }
  }
  c.errors.push_back(
      shape_error("soft_margin_loss", [](const Tensor& x, const Tensor& t) { return soft_margin_loss(x, t); }));
  return c;
}

LEVIN_OP_CASE(multi_margin_loss) {
  OpCase c{.ops = {}, .dtypes = kFloatDTypes, .ulps = 8, .sums = 20, .layout_changes_sums = true};
  for (const Reduction r : kReductions) {
    for (const int p : {1, 2}) {
      for (const Shape& s : {Shape{3}, Shape{1, 1}, Shape{0, 3}, Shape{6, 5}, Shape{9, 70}}) {
        const std::int64_t classes = s.back();
        const double margin = p == 1 ? 1 : 0.6;
        c.samples.push_back(
            {.inputs = {real(s), index(s.removed(s.rank() - 1), classes), optional(constant({classes}, 0.5, 2))},
             .call =
                 [=](const Tensors& in) {
                   return Tensors{
                       multi_margin_loss(in[0], in[1], {.p = p, .margin = margin, .weight = in[2], .reduction = r})};
                 },
             .reference =
                 [=](const Tensors& in) {
                   const auto x = in[0].contiguous().to_vector<double>();
                   const auto t = in[1].contiguous().to_vector<std::int64_t>();
                   std::vector<double> w(std::size_t(classes), 1.0), out;
                   if (in[2].defined()) w = in[2].contiguous().to_vector<double>();
                   for (std::size_t i = 0; i < t.size(); ++i) {
                     const double* row = x.data() + i * std::size_t(classes);
                     double sum = 0;
                     for (std::int64_t k = 0; k < classes; ++k)
                       if (k != t[i]) sum += std::pow(positive(margin - row[t[i]] + row[k]), p);
                     out.push_back(w[std::size_t(t[i])] * sum / double(classes));
                   }
                   return Tensors{reduced_reference(from_data(std::span<const double>(out), in[1].shape(), cpu), r)};
                 },
             .gradcheck = has_gradient(s, r)});
      }
    }
  }
  c.errors.push_back({"class",
                      [] {
                        (void)multi_margin_loss(zeros({2, 3}, cpu), tensor<std::int64_t>({1, 3}, cpu));
                      },
                      throws<IndexError>, "multi_margin_loss: target 3 at position 1 is not a class, expected 0 to 2"});
  c.errors.push_back({"p",
                      [] {
                        (void)multi_margin_loss(zeros({2, 3}, cpu), zeros({2}, cpu, DType::i64), {.p = 3});
                      },
                      throws<ConfigError>, "multi_margin_loss: p is 3"});
  c.errors.push_back({"shape",
                      [] {
                        (void)multi_margin_loss(zeros({2, 3}, cpu), zeros({3}, cpu, DType::i64));
                      },
                      throws<ShapeError>, "multi_margin_loss: x has shape [2, 3] and target [3]"});
  return c;
}

LEVIN_OP_CASE(multilabel_margin_loss) {
  OpCase c{.ops = {}, .dtypes = kFloatDTypes, .ulps = 8, .sums = 20, .layout_changes_sums = true};
  for (const Reduction r : kReductions) {
    for (const Shape& s : {Shape{3}, Shape{1, 1}, Shape{0, 3}, Shape{6, 5}, Shape{9, 20}}) {
      const std::int64_t classes = s.back();
      // Row k lists k classes, one of them twice, then -1; what follows counts for nothing, whatever it is.
      std::vector<std::int64_t> targets(std::size_t(s.numel()));
      for (std::size_t i = 0; i < targets.size(); ++i) {
        const std::int64_t row = std::int64_t(i) / classes, k = std::int64_t(i) % classes;
        targets[i] = k == row + 1 ? -1 : k > row + 1 ? classes + 7 : (k == 1 ? 0 : 3 * k) % classes;
      }
      c.samples.push_back({.inputs = {real(s), fixed(from_data(std::span<const std::int64_t>(targets), s, cpu))},
                           .call = [=](const Tensors& in) { return Tensors{multilabel_margin_loss(in[0], in[1], r)}; },
                           .reference =
                               [=](const Tensors& in) {
                                 const auto x = in[0].contiguous().to_vector<double>();
                                 const auto t = in[1].contiguous().to_vector<std::int64_t>();
                                 std::vector<double> out;
                                 for (std::int64_t row = 0; row < s.numel() / classes; ++row) {
                                   std::vector<std::int64_t> listed;
                                   for (std::int64_t k = 0; k < classes && t[std::size_t(row * classes + k)] >= 0; ++k)
                                     listed.push_back(t[std::size_t(row * classes + k)]);
                                   const double* const v = x.data() + row * classes;
                                   double sum = 0;
                                   for (const std::int64_t target : listed) {
                                     for (std::int64_t k = 0; k < classes; ++k)
                                       if (std::find(listed.begin(), listed.end(), k) == listed.end())
                                         sum += positive(1 - v[target] + v[k]);
                                   }
                                   out.push_back(sum / double(classes));
                                 }
                                 return Tensors{reduced_reference(
                                     from_data(std::span<const double>(out), s.removed(s.rank() - 1), cpu), r)};
                               },
                           .gradcheck = has_gradient(s, r)});
    }
  }
  c.errors.push_back({"class",
                      [] {
                        (void)multilabel_margin_loss(zeros({2}, cpu), tensor<std::int64_t>({1, 2}, cpu));
                      },
                      throws<IndexError>, "multilabel_margin_loss: target 2 at position 1 is not a class"});
  c.errors.push_back({"shapes",
                      [] {
                        (void)multilabel_margin_loss(zeros({2, 3}, cpu), zeros({2}, cpu, DType::i64));
                      },
                      throws<ShapeError>, "multilabel_margin_loss: x has shape [2, 3] and target [2]"});
  return c;
}

LEVIN_OP_CASE(multilabel_soft_margin_loss) {
  OpCase c{.ops = {}, .dtypes = kFloatDTypes, .ulps = 8, .sums = 20, .layout_changes_sums = true};
  for (const Reduction r : kReductions) {
    for (const Shape& s : {Shape{3}, Shape{1, 1}, Shape{0, 3}, Shape{6, 5}, Shape{2, 3, 70}}) {
      c.samples.push_back(
          {.inputs = {real(s), real(s, 0, 1), optional(real({s.back()}, 0.5, 2))},
           .call = [=](const Tensors& in) { return Tensors{multilabel_soft_margin_loss(in[0], in[1], in[2], r)}; },
           .reference =
               [=](const Tensors& in) {
                 Tensor each = map_reference(in[0], in[1], [](double x, double t) {
                   return t * std::log1p(std::exp(-x)) + (1 - t) * std::log1p(std::exp(x));
                 });
                 if (in[2].defined()) each = map_reference(each, in[2], [](double v, double w) { return v * w; });
                 const std::int64_t classes = s.back();
                 const auto v = each.to_vector<double>();
                 std::vector<double> out(v.size() / std::size_t(classes), 0.0);
                 for (std::size_t i = 0; i < v.size(); ++i) out[i / std::size_t(classes)] += v[i] / double(classes);
                 return Tensors{
                     reduced_reference(from_data(std::span<const double>(out), s.removed(s.rank() - 1), cpu), r)};
               },
           .gradcheck = has_gradient(s, r)});
    }
  }
  c.errors.push_back(shape_error("multilabel_soft_margin_loss",
                                 [](const Tensor& x, const Tensor& t) { return multilabel_soft_margin_loss(x, t); }));
  return c;
}

LEVIN_OP_CASE(poisson_nll_loss) {
  OpCase c{.ops = {}, .dtypes = kFloatDTypes, .ulps = 8, .sums = 20, .layout_changes_sums = true};
  for (const Reduction r : kReductions) {
    for (const RateInput input : {RateInput::log, RateInput::rate}) {
      for (const LossConstant constant : {LossConstant::without, LossConstant::full}) {
        for (const Shape& s : kShapes) {
          const bool log = input == RateInput::log, full = constant == LossConstant::full;
          const PoissonNllOptions o{.input = input, .constant = constant, .reduction = r};
          c.samples.push_back({.inputs = {log ? real(s) : real(s, 0.5, 4), real(s, 1.5, 6)},
                               .call = [=](const Tensors& in) { return Tensors{poisson_nll_loss(in[0], in[1], o)}; },
                               .reference =
                                   [=](const Tensors& in) {
                                     return Tensors{reduced_reference(
                                         map_reference(in[0], in[1],
                                                       [=](double x, double t) {
                                                         const double y =
                                                             log ? std::exp(x) - t * x : x - t * std::log(x + 1e-8);
                                                         const double stirling = t * std::log(t) - t +
                                                                                 std::log(2 * std::numbers::pi * t) / 2;
                                                         return y + (full ? stirling : 0);
                                                       }),
                                         r)};
                                   },
                               .gradcheck = has_gradient(s, r)});
        }
      }
    }
  }
  c.errors.push_back(
      shape_error("poisson_nll_loss", [](const Tensor& x, const Tensor& t) { return poisson_nll_loss(x, t); }));
  return c;
}

LEVIN_OP_CASE(gaussian_nll_loss) {
  OpCase c{.ops = {}, .dtypes = kFloatDTypes, .ulps = 8, .sums = 20, .layout_changes_sums = true};
  for (const Reduction r : kReductions) {
    for (const LossConstant constant : {LossConstant::without, LossConstant::full}) {
      for (const Shape& s : kShapes) {
        const GaussianNllOptions o{.constant = constant, .reduction = r};
        const Shape wide = s.rank() == 2 ? Shape{s[0], 1} : s;  // one variance a row
        c.samples.push_back(
            {.inputs = {real(s), real(s), real(wide, 0.5, 3)},
             .call = [=](const Tensors& in) { return Tensors{gaussian_nll_loss(in[0], in[1], in[2], o)}; },
             .reference =
                 [=](const Tensors& in) {
                   const Tensor d = map_reference(in[0], in[1], [](double x, double t) { return (x - t) * (x - t); });
                   return Tensors{reduced_reference(map_reference(d, in[2],
                                                                  [=](double square, double v) {
                                                                    const double all = constant == LossConstant::full
                                                                                           ? 2 * std::numbers::pi
                                                                                           : 1;
                                                                    return (std::log(v * all) + square / v) / 2;
                                                                  }),
                                                    r)};
                 },
             .gradcheck = has_gradient(s, r)});
      }
    }
  }
  c.errors.push_back({"variance",
                      [] {
                        (void)gaussian_nll_loss(zeros({2}, cpu), zeros({2}, cpu), ones({3, 2}, cpu));
                      },
                      throws<ShapeError>, "gaussian_nll_loss: the variance has shape [3, 2]"});
  c.errors.push_back({"eps",
                      [] {
                        const Tensor x = zeros({2}, cpu);
                        (void)gaussian_nll_loss(x, x, x, {.eps = 0});
                      },
                      throws<ConfigError>, "gaussian_nll_loss: eps is 0"});
  return c;
}

TEST_CASE("the soft margin of large scores is finite and keeps its small values") {
  const Tensor y = soft_margin_loss(tensor({1000., -1000., 40.}, cpu), tensor({-1., 1., 1.}, cpu), Reduction::none);
  const std::vector<double> v = y.to_vector<double>();
  CHECK(v[0] == 1000);
  CHECK(v[1] == 1000);
  CHECK(v[2] == doctest::Approx(std::exp(-40.0)).epsilon(1e-12));
}

TEST_CASE("targets of 1 and -1 may be integers, and other targets count as both, as in PyTorch") {
  const Tensor x = tensor({0.25, 0.25, 0.25}, cpu), t = tensor<std::int64_t>({1, -1, 0}, cpu);
  CHECK(hinge_embedding_loss(x, t, 1, Reduction::none).to_vector<double>() == std::vector<double>{0.25, 0.75, 1});
  CHECK(margin_ranking_loss(x, zeros({3}, cpu, DType::f64), t, 0, Reduction::none).to_vector<double>() ==
        std::vector<double>{0, 0.25, 0});
}

TEST_CASE("Stirling's part of a Poisson loss is 0 for counts of 0 and 1, and so is its gradient") {
  Tensor target = tensor({0.0, 1.0, 2.0}, cpu);
  target.requires_grad_();
  const Tensor x = zeros({3}, cpu, DType::f64);
  const Tensor y = poisson_nll_loss(x, target, {.constant = LossConstant::full, .reduction = Reduction::none});
  const std::vector<double> v = y.to_vector<double>();
  CHECK(v[0] == 1);
  CHECK(v[1] == 1);
  CHECK(v[2] == doctest::Approx(1 + 2 * std::log(2.0) - 2 + std::log(4 * std::numbers::pi) / 2));
  backward(sum(y));
  CHECK(all(isfinite(target.grad())).item() == 1);
}

TEST_CASE("a score at the margin has no gradient, as in PyTorch") {
  for (const int p : {1, 2}) {
    Tensor x = tensor({0.0, 1.0, 2.0, 3.0}, cpu);
    x.requires_grad_();
    backward(multi_margin_loss(x, tensor<std::int64_t>({2}, cpu).reshape({}), {.p = p}));  // 1 + x1 - x2 is 0
    const double slope = p == 1 ? 0.25 : 1;  // of 1 + x3 - x2 = 2, over 4 classes
    CHECK(x.grad().to_vector<double>() == std::vector<double>{0, 0, -slope, slope});
  }
}

TEST_CASE("a variance below eps counts as eps, and a negative one too") {
  const Tensor x = tensor({1.0, 1.0, 1.0}, cpu), target = zeros({3}, cpu, DType::f64);
  const auto v =
      gaussian_nll_loss(x, target, tensor({0.0, -3.0, 1e-6}, cpu), {.reduction = Reduction::none}).to_vector<double>();
  CHECK(v[0] == v[2]);
  CHECK(v[1] == v[2]);
  CHECK(v[2] == doctest::Approx((std::log(1e-6) + 1e6) / 2));
}

}  // namespace levin::testing
