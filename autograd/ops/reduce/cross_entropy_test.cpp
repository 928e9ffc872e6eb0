#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "levin/stream.h"
#include "tests/device.h"
#include "tests/ops/loss_reference.h"
#include "tests/ops/samples.h"
#include "tests/skip.h"

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();

struct Classes {
  bool smooth_from_logits;  // cross_entropy; else nll_loss, whose input are log probabilities
  double smoothing;
  std::int64_t ignore;
  Reduction reduction;
};

// The definition, a row at a time. x: [N, C, d...] as f64.
Tensor class_loss_reference(const Tensor& x, const Tensor& target, const Tensor& weight, const Classes& o) {
  const std::int64_t n = x.shape()[0], c = x.shape()[1], d = x.numel() == 0 ? 0 : x.numel() / (n * c);
  const std::vector<double> v = x.contiguous().to_vector<double>();
  const std::vector<std::int64_t> t = target.contiguous().to_vector<std::int64_t>();
  const std::vector<double> w =
      weight.defined() ? weight.contiguous().to_vector<double>() : std::vector<double>(std::size_t(c), 1.0);
  std::vector<double> rows(t.size(), 0.0);
  double total = 0, shares = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t s = 0; s < d; ++s) {
      const std::size_t r = std::size_t(i * d + s);
      if (t[r] == o.ignore) continue;
      const auto at = [&](std::int64_t k) { return v[std::size_t((i * c + k) * d + s)]; };
      double lse = 0;
      if (o.smooth_from_logits) {
        double most = at(0), sum = 0;
        for (std::int64_t k = 0; k < c; ++k) most = std::max(most, at(k));
        for (std::int64_t k = 0; k < c; ++k) sum += std::exp(at(k) - most);
        lse = most + std::log(sum);
      }
      rows[r] = w[std::size_t(t[r])] * (1 - o.smoothing) * (lse - at(t[r]));
      for (std::int64_t k = 0; k < c; ++k) rows[r] += o.smoothing / double(c) * w[std::size_t(k)] * (lse - at(k));
      total += rows[r];
      shares += w[std::size_t(t[r])];
    }
  }
  if (o.reduction == Reduction::none) return from_data(std::span<const double>(rows), target.shape(), cpu);
  const double y = o.reduction == Reduction::mean ? total / shares : total;
  return from_data(std::span<const double>(&y, 1), {}, cpu);
}

void add_samples(OpCase& c, bool cross) {
  const auto add = [&](Shape shape, bool weighted, double smoothing, std::int64_t ignore, Reduction reduction) {
    OpSample s{.inputs = {real(shape), index(shape.removed(1), shape[1])}, .call = {}, .reference = {}};
    if (weighted) s.inputs.push_back(optional(constant({shape[1]}, 0.5, 2)));
    s.call = [=](const Tensors& in) {
      const Tensor w = in.size() > 2 ? in[2] : Tensor();
      if (cross)
        return Tensors{cross_entropy(
            in[0], in[1], {.weight = w, .ignore_index = ignore, .label_smoothing = smoothing, .reduction = reduction})};
      return Tensors{nll_loss(in[0], in[1], {.weight = w, .ignore_index = ignore, .reduction = reduction})};
    };
    s.reference = [=](const Tensors& in) {
      return Tensors{
          class_loss_reference(in[0], in[1], in.size() > 2 ? in[2] : Tensor(), {cross, smoothing, ignore, reduction})};
    };
    s.gradcheck = shape.numel() > 0 || reduction != Reduction::mean;  // 0 / 0
    c.samples.push_back(s);
  };
  for (const Reduction r : {Reduction::none, Reduction::mean, Reduction::sum}) {
    add({1, 1}, false, 0, -100, r);
    add({0, 3}, false, 0, -100, r);
    add({5, 4}, false, 0, -100, r);
    add({5, 4}, true, 0, 1, r);
    add({2, 3, 4}, true, 0, 2, r);
    add({20, 300}, false, 0, -100, r);
    if (!cross) continue;
    add({5, 4}, false, 0.1, -100, r);
    add({5, 4}, true, 0.3, 1, r);
    add({3, 1030}, true, 0.1, 1, r);
    add({2, 3, 2, 2}, true, 0.2, 0, r);
    const std::size_t count = c.samples.size();
    for (const std::size_t back : {std::size_t{2}, std::size_t{3}, std::size_t{5}})
      c.samples.push_back(under_autocast(c.samples[count - back]));
  }
}

}  // namespace

LEVIN_OP_CASE(cross_entropy) {
  OpCase c{.ops = {"cross_entropy", "cross_entropy_backward"}, .dtypes = kFloatDTypes, .ulps = 8, .sums = 20};
  add_samples(c, true);
  c.errors.push_back({"class out of range",
                      [] {
                        (void)cross_entropy(zeros({2, 3}, cpu), tensor<std::int64_t>({1, 3}, cpu));
                      },
                      throws<IndexError>,
                      "cross_entropy: target 3 at position 1 is not a class, expected 0 to 2 or ignore_index -100"});
  c.errors.push_back({"negative class",
                      [] {
                        (void)cross_entropy(zeros({2, 3}, cpu), tensor<std::int64_t>({-1, 0}, cpu));
                      },
                      throws<IndexError>, "cross_entropy: target -1 at position 0"});
  c.errors.push_back({"shape",
                      [] {
                        (void)cross_entropy(zeros({2, 3}, cpu), zeros({3}, cpu, DType::i64));
                      },
                      throws<ShapeError>, "cross_entropy: the input has shape [2, 3] and target [3]"});
  c.errors.push_back({"float target",
                      [] {
                        (void)cross_entropy(zeros({2, 3}, cpu), zeros({2}, cpu));
                      },
                      throws<ShapeError>, "cross_entropy: the input has shape [2, 3] and the target [2] of f32"});
  c.errors.push_back({"integer target",
                      [] {
                        (void)cross_entropy(zeros({2, 3}, cpu), zeros({2}, cpu, DType::i32));
                      },
                      throws<DTypeError>, "cross_entropy: target is i32"});
  c.errors.push_back(
      {"weight",
       [] {
         (void)cross_entropy(zeros({2, 3}, cpu), zeros({2}, cpu, DType::i64), {.weight = zeros({2}, cpu)});
       },
       throws<ShapeError>, "cross_entropy: weight has shape [2], expected [3]"});
  c.errors.push_back({"smoothing",
                      [] {
                        (void)cross_entropy(zeros({2, 3}, cpu), zeros({2}, cpu, DType::i64), {.label_smoothing = 2});
                      },
                      throws<ConfigError>, "cross_entropy: label_smoothing is 2"});
  return c;
}

LEVIN_OP_CASE(cross_entropy_of_probabilities) {
  OpCase c{.ops = {}, .dtypes = kFloatDTypes, .ulps = 8, .sums = 20, .layout_changes_sums = true};
  const auto add = [&](Shape shape, bool weighted, double smoothing, Reduction reduction) {
    OpSample s{.inputs = {real(shape), real(shape, 0, 1)}, .call = {}, .reference = {}};
    if (weighted) s.inputs.push_back(optional(constant({shape[1]}, 0.5, 2)));
    s.call = [=](const Tensors& in) {
      return Tensors{cross_entropy(
          in[0], in[1],
          {.weight = in.size() > 2 ? in[2] : Tensor(), .label_smoothing = smoothing, .reduction = reduction})};
    };
    s.reference = [=](const Tensors& in) {
      const std::int64_t n = shape[0], classes = shape[1], d = shape.numel() == 0 ? 0 : shape.numel() / (n * classes);
      const auto v = in[0].contiguous().to_vector<double>(), t = in[1].contiguous().to_vector<double>();
      std::vector<double> w(std::size_t(classes), 1.0), rows;
      if (in.size() > 2 && in[2].defined()) w = in[2].contiguous().to_vector<double>();
      for (std::int64_t i = 0; i < n; ++i) {
        for (std::int64_t j = 0; j < d; ++j) {
          const auto at = [&](std::int64_t k) { return std::size_t((i * classes + k) * d + j); };
          double sum = 0, row = 0;
          for (std::int64_t k = 0; k < classes; ++k) sum += std::exp(v[at(k)]);
          for (std::int64_t k = 0; k < classes; ++k) {
            const double share = t[at(k)] * (1 - smoothing) + smoothing / double(classes);
            row += w[std::size_t(k)] * share * (std::log(sum) - v[at(k)]);
          }
          rows.push_back(row);
        }
      }
      return Tensors{reduced_reference(from_data(std::span<const double>(rows), shape.removed(1), cpu), reduction)};
    };
    s.gradcheck = shape.numel() > 0 || reduction != Reduction::mean;  // 0 / 0
    c.samples.push_back(s);
  };
  for (const Reduction r : {Reduction::none, Reduction::mean, Reduction::sum}) {
    add({1, 1}, false, 0, r);
    add({0, 3}, false, 0, r);
    add({5, 4}, true, 0.3, r);
    add({2, 3, 4}, true, 0, r);
    add({20, 300}, false, 0.1, r);
    c.samples.push_back(under_autocast(c.samples.back()));
  }
  c.errors.push_back({"ignore_index",
                      [] {
                        (void)cross_entropy(zeros({2, 3}, cpu), zeros({2, 3}, cpu), {.ignore_index = 1});
                      },
                      throws<ConfigError>, "cross_entropy: ignore_index is 1, which probabilities can not equal"});
  return c;
}

TEST_CASE("cross_entropy of one-hot probabilities has the value and the gradient of class indices") {
  const Tensor classes = tensor<std::int64_t>({2, 0, 1}, cpu);
  Generator random(5);
  Tensor x = randn({3, 4}, random, cpu);
  x.requires_grad_();
  for (const double smoothing : {0.0, 0.2}) {
    const CrossEntropyOptions o{.label_smoothing = smoothing};
    const Tensor hard = cross_entropy(x, classes, o), soft = cross_entropy(x, one_hot(classes, 4).to(DType::f32), o);
    CHECK(allclose(soft, hard, 1e-6, 0));
    CHECK(allclose(grad(Tensors{soft}, Tensors{x})[0], grad(Tensors{hard}, Tensors{x})[0], 1e-5, 1e-7));
  }
}

LEVIN_OP_CASE(nll_loss) {
  OpCase c{.ops = {}, .dtypes = kFloatDTypes, .ulps = 8, .sums = 20, .layout_changes_sums = true};
  add_samples(c, false);
  c.errors.push_back({"class out of range",
                      [] {
                        (void)nll_loss(zeros({2, 3}, cpu), tensor<std::int64_t>({1, 3}, cpu));
                      },
                      throws<IndexError>, "nll_loss: target 3 at position 1"});
  return c;
}

LEVIN_OP_CASE(accuracy) {
  OpCase c{.ops = {}, .dtypes = kFloatDTypes, .differentiable = false};
  for (const Shape& s : {Shape{1, 1}, Shape{0, 3}, Shape{40, 3}, Shape{5, 2, 3}}) {
    c.samples.push_back({.inputs = {real(s), index(s.removed(1), s[1])},
                         .call = [](const Tensors& in) { return Tensors{accuracy(in[0], in[1])}; },
                         .reference =
                             [](const Tensors& in) {
                               const Tensor hit = eq(argmax(in[0], 1), in[1]).to(DType::f64);
                               double n = 0;
                               for (const double h : hit.to_vector<double>()) n += h;
                               const double y = n / double(hit.numel());
                               return Tensors{from_data(std::span<const double>(&y, 1), {}, cpu)};
                             }});
  }
  c.errors.push_back({"shape",
                      [] {
                        (void)accuracy(zeros({2, 3}, cpu), zeros({3}, cpu, DType::i64));
                      },
                      throws<ShapeError>, "accuracy: the input has shape [2, 3] and target [3]"});
  return c;
}

TEST_CASE("cross-entropy where every target is ignored: mean is NaN, sum is 0, the gradient of the sum is 0") {
  Tensor x = ones({2, 3}, cpu);
  x.requires_grad_();
  const Tensor ignored = full({2}, -100, cpu, DType::i64);
  CHECK(std::isnan(cross_entropy(x, ignored).item()));
  const Tensor y = cross_entropy(x, ignored, {.reduction = Reduction::sum});
  CHECK(y.item() == 0);
  backward(y);
  CHECK(equal(x.grad(), zeros({2, 3}, cpu)));
}

TEST_CASE("cross-entropy of logits far apart neither overflows nor cancels") {
  const Tensor x = from_data(std::vector<float>{1000, 0, -1000, 0, 1000, -1000}, {2, 3}, cpu);
  const Tensor y = cross_entropy(x, tensor<std::int64_t>({0, 2}, cpu), {.reduction = Reduction::none});
  CHECK(equal(y, tensor({0.f, 2000.f}, cpu)));
}

TEST_CASE("cross-entropy agrees with PyTorch") {
  // torch.nn.functional.cross_entropy(x, t, weight=w, ignore_index=2, label_smoothing=0.1), float64, and x.grad
  const Tensor x0 = from_data(std::vector<double>{0.5, -1.0, 2.0, 1.5, 0.25, -0.75, -0.3, 0.9, 0.1}, {3, 3}, cpu);
  Tensor x = x0.detach();
  x.requires_grad_();
  const Tensor w = tensor({1.0, 2.0, 0.5}, cpu);
  const Tensor y =
      cross_entropy(x, tensor<std::int64_t>({0, 2, 1}, cpu), {.weight = w, .ignore_index = 2, .label_smoothing = 0.1});
  backward(y);
  CHECK(std::abs(y.item() - 0.9906121094980913) < 1e-14);
  const std::vector<double> want{-0.2517071448858765, -0.0089674057249337,  0.26067455061081013, 0.0, 0.0, 0.0,
                                 0.09881581703435029, -0.25725196782203136, 0.15843615078768103};
  const std::vector<double> got = x.grad().to_vector<double>();
  for (std::size_t i = 0; i < want.size(); ++i) CHECK(std::abs(got[i] - want[i]) < 1e-15);
}

TEST_CASE("nll_loss of 16 bits is f32 under Autocast, so that a sum beyond f16 is finite") {
  constexpr std::int64_t kRows = 100;
  const Tensor x = full({kRows, 2}, -1000, cpu, DType::f16), target = zeros({kRows}, cpu, DType::i64);
  CHECK(nll_loss(x, target, {.reduction = Reduction::sum}).dtype() == DType::f16);
  const Autocast on(DType::f16);
  for (const Tensor& weight : {Tensor(), full({2}, 2, cpu, DType::f16)}) {
    const double one = weight.defined() ? 2000 : 1000;
    const Tensor total = nll_loss(x, target, {.weight = weight, .reduction = Reduction::sum});
    CHECK(total.dtype() == DType::f32);
    CHECK(total.item() == one * kRows);
    const Tensor each = nll_loss(x, target, {.weight = weight, .reduction = Reduction::none});
    CHECK(each.dtype() == DType::f32);
    CHECK(sum(each).item() == one * kRows);
  }
}

TEST_CASE("cross-entropy on a CPU has no subnormal slopes, which its products would take long for") {
  Tensor x = tensor({0.f, -84.f, -86.f, -70.f, 1.f, -200.f}, cpu);
  x = view(x, {1, 6}).detach();
  x.requires_grad_();
  // The probabilities of -84 and -86 are normal numbers, 9e-38 and 1.2e-38; a hundredth of them is not.
  const Tensor y = cross_entropy(x, tensor<std::int64_t>({0}, cpu)) * 0.01;
  backward(y);
  const std::vector<float> slopes = x.grad().to_vector<float>();
  for (const float s : slopes) CHECK((s == 0 || std::abs(s) >= std::numeric_limits<float>::min()));
  CHECK(slopes[1] == 0);
  CHECK(slopes[2] == 0);
  CHECK(slopes[3] > 0);
}

TEST_CASE("cross-entropy on a device: a target that is no class is reported when the host waits, and work goes on") {
  const auto device = test::launching_device();
  if (!device) return test::skip("no device that launches kernels here");
  const Tensor x = zeros({3, 4}, *device);
  for (const std::int64_t bad : {std::int64_t{4}, std::int64_t{-1}}) {
    const Tensor y = cross_entropy(x, tensor<std::int64_t>({0, bad, 3}, *device), {.reduction = Reduction::sum});
    std::string message;
    try {
      (void)y.to(cpu);
    } catch (const IndexError& e) { message = e.what(); }
    CAPTURE(message);
    CHECK(message.find("cross_entropy: index " + text(bad)) == 0);
    CHECK(message.find("expected 0 to 3") != std::string::npos);
    // The bad row was left out, the others are present, and the device works.
    CHECK(std::abs(y.to(cpu).item() - 2 * std::log(4.0)) <= 8 * epsilon(DType::f32));
    const Tensor good = cross_entropy(x, tensor<std::int64_t>({0, 1, 3}, *device));
    CHECK(std::abs(good.to(cpu).item() - std::log(4.0)) <= 8 * epsilon(DType::f32));
  }
}

}  // namespace levin::testing
