#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "levin/device.h"
#include "levin/nn/layers.h"
#include "levin/stream.h"
#include "tensor/device/launch_ledger.h"
#include "tests/device.h"
#include "tests/ops/samples.h"
#include "tests/skip.h"

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();

// The definition in plain loops over f64.
Tensor reference(const Tensor& x, const Tensor& w, const Tensor& target, const Tensor& b,
                 const CrossEntropyOptions& o) {
  const std::int64_t classes = w.size(0), in = w.size(1), rows = target.numel();
  const std::vector<double> xs = x.contiguous().to_vector<double>(), ws = w.contiguous().to_vector<double>();
  const auto numbers = [&](const Tensor& t, double without) {
    return t.defined() ? t.contiguous().to_vector<double>() : std::vector<double>(std::size_t(classes), without);
  };
  const std::vector<double> bias = numbers(b, 0), weight = numbers(o.weight, 1);
  const std::vector<std::int64_t> t = target.contiguous().to_vector<std::int64_t>();
  std::vector<double> losses(t.size(), 0.0);
  double total = 0, shares = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t own = t[std::size_t(r)];
    if (own == o.ignore_index) continue;
    std::vector<double> logits = bias;
    for (std::int64_t c = 0; c < classes; ++c) {
      for (std::int64_t k = 0; k < in; ++k)
        logits[std::size_t(c)] += xs[std::size_t(r * in + k)] * ws[std::size_t(c * in + k)];
    }
    const double most = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const double l : logits) sum += std::exp(l - most);
    const double lse = most + std::log(sum);
    double& loss = losses[std::size_t(r)];
    loss = weight[std::size_t(own)] * (1 - o.label_smoothing) * (lse - logits[std::size_t(own)]);
    for (std::int64_t c = 0; c < classes; ++c)
      loss += o.label_smoothing / double(classes) * weight[std::size_t(c)] * (lse - logits[std::size_t(c)]);
    total += loss;
    shares += weight[std::size_t(own)];
  }
  if (o.reduction == Reduction::none) return from_data(std::span<const double>(losses), target.shape(), cpu);
  const double y = o.reduction == Reduction::mean ? total / shares : total;
  return from_data(std::span<const double>(&y, 1), {}, cpu);
}

// Its twin, for x [N, in].
Tensor layers(const Tensor& x, const Tensor& w, const Tensor& target, const Tensor& b, const CrossEntropyOptions& o) {
  return cross_entropy(linear(x, w, b), target, o);
}

// A chunk has at most 2048 rows on the CPU, 4096 on other devices.
struct Case {
  Tensor x, w, b, target;
  Case(std::int64_t rows, std::int64_t in, std::int64_t classes, DType dtype, Device device = Device::cpu()) {
    Generator gen(1);
    const auto made = [&](const Shape& shape) {
      Tensor t = randn(shape, gen, cpu, DType::f64).to(dtype).to(device);
      t.requires_grad_();
      return t;
    };
    x = made({rows, in});
    w = made({classes, in});
    b = made({classes});
    target = randint(0, classes, {rows}, gen, cpu).to(device);
  }
  [[nodiscard]] Tensors inputs() const { return {x, w, b}; }
  [[nodiscard]] Tensor fused(const CrossEntropyOptions& o = {}) const {
    return linear_cross_entropy(x, w, target, b, o);
  }
  [[nodiscard]] Tensor twin(const CrossEntropyOptions& o = {}) const { return layers(x, w, target, b, o); }
};

std::vector<double> numbers(const Tensor& t) { return t.detach().to(cpu).to(DType::f64).to_vector<double>(); }

// Equal within `bound` of the largest number; NaN meets NaN.
void check_close(const Tensor& got, const Tensor& want, double bound) {
  REQUIRE(got.shape() == want.shape());
  CHECK(got.dtype() == want.dtype());
  const std::vector<double> a = numbers(got), b = numbers(want);
  double most = 0, off = 0;
  std::size_t nan = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) != std::isnan(b[i])) ++nan;
    if (std::isnan(b[i]) || a[i] == b[i]) continue;
    most = std::max(most, std::abs(b[i]));
    off = std::max(off, std::abs(a[i] - b[i]));
  }
  CHECK(nan == 0);
  CHECK(off <= bound * most);
}

// A loss for each row becomes one by weights of its own, so that rows have different gradients.
Tensor as_one(const Tensor& loss) {
  if (loss.rank() == 0) return loss * 3;
  return sum(loss * cast(arange(1, loss.numel() + 1, 1, loss.device()), loss.dtype()));
}

}  // namespace

LEVIN_OP_CASE(linear_cross_entropy) {
  // The longest sums are over 300 classes.
  OpCase c{.ops = {"linear_cross_entropy", "linear_cross_entropy_backward"},
           .dtypes = kFloatDTypes,
           .ulps = 8,
           .sums = 300,
           .layout_changes_sums = true};
  const auto add = [&](Shape x, std::int64_t classes, bool biased, bool weighted, CrossEntropyOptions o) {
    const Shape rows = x.removed(x.rank() - 1);
    OpSample s{.inputs = {real(x), real({classes, x.back()}), index(rows, classes)}, .call = {}, .reference = {}};
    if (biased) s.inputs.push_back(optional(real({classes})));
    if (weighted) s.inputs.push_back(optional(constant({classes}, 0.5, 2)));
    const auto with = [=](const Tensors& in, auto&& f) {
      CrossEntropyOptions given = o;
      if (weighted) given.weight = in.back();
      return Tensors{f(in[0], in[1], in[2], biased ? in[3] : Tensor(), given)};
    };
    s.call = [=](const Tensors& in) { return with(in, [](auto&... p) { return linear_cross_entropy(p...); }); };
    s.reference = [=](const Tensors& in) { return with(in, reference); };
    s.gradcheck = rows.numel() > 0 || o.reduction != Reduction::mean;  // 0 / 0
    c.samples.push_back(s);
  };
  for (const Reduction r : {Reduction::none, Reduction::mean, Reduction::sum}) {
    add({1, 1}, 1, true, false, {.reduction = r});
    add({0, 3}, 4, true, false, {.reduction = r});
    add({3}, 4, false, false, {.reduction = r});
    add({5, 3}, 4, false, false, {.reduction = r});
    add({5, 3}, 4, true, true, {.ignore_index = 1, .label_smoothing = 0.3, .reduction = r});
    add({2, 2, 3}, 4, true, true, {.ignore_index = 2, .reduction = r});
    add({5, 3}, 4, true, false, {.label_smoothing = 0.1, .reduction = r});
    add({9, 24}, 300, true, false, {.reduction = r});
  }
  const auto refused = [&](std::string what, auto call, auto is, std::string contains) {
    c.errors.push_back({std::move(what), call, is, std::move(contains)});
  };
  refused(
      "class out of range",
      [] {
        (void)linear_cross_entropy(zeros({2, 4}, cpu), zeros({3, 4}, cpu), tensor<std::int64_t>({1, 3}, cpu));
      },
      throws<IndexError>,
      "linear_cross_entropy: target 3 at position 1 is not a class, expected 0 to 2 or ignore_index -100");
  refused(
      "columns of the weight",
      [] {
        (void)linear_cross_entropy(zeros({2, 4}, cpu), zeros({3, 5}, cpu), zeros({2}, cpu, DType::i64));
      },
      throws<ShapeError>, "linear_cross_entropy: input has shape [2, 4] and linear_weight [3, 5]");
  refused(
      "targets",
      [] {
        (void)linear_cross_entropy(zeros({2, 4}, cpu), zeros({3, 4}, cpu), zeros({3}, cpu, DType::i64));
      },
      throws<ShapeError>, "linear_cross_entropy: input has shape [2, 4] and target [3], expected [..., in] and [...]");
  refused(
      "float targets",
      [] {
        (void)linear_cross_entropy(zeros({2, 4}, cpu), zeros({3, 4}, cpu), zeros({2}, cpu));
      },
      throws<DTypeError>, "linear_cross_entropy: target is f32");
  refused(
      "bias",
      [] {
        (void)linear_cross_entropy(zeros({2, 4}, cpu), zeros({3, 4}, cpu), zeros({2}, cpu, DType::i64),
                                   zeros({2}, cpu));
      },
      throws<ShapeError>, "linear_cross_entropy: linear_bias has shape [2], expected [3]");
  refused(
      "weights of classes",
      [] {
        (void)linear_cross_entropy(zeros({2, 4}, cpu), zeros({3, 4}, cpu), zeros({2}, cpu, DType::i64), {},
                                   {.weight = zeros({2}, cpu)});
      },
      throws<ShapeError>, "linear_cross_entropy: weight has shape [2], expected [3], one for each class");
  refused(
      "smoothing",
      [] {
        (void)linear_cross_entropy(zeros({2, 4}, cpu), zeros({3, 4}, cpu), zeros({2}, cpu, DType::i64), {},
                                   {.label_smoothing = 2});
      },
      throws<ConfigError>, "linear_cross_entropy: label_smoothing is 2");
  refused(
      "dtypes",
      [] {
        (void)linear_cross_entropy(zeros({2, 4}, cpu), zeros({3, 4}, cpu, DType::f64), zeros({2}, cpu, DType::i64));
      },
      throws<DTypeError>, "linear_cross_entropy: tensors are f32 and f64");
  return c;
}

TEST_CASE("linear_cross_entropy over several chunks of rows agrees with linear and cross_entropy") {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    const Case c(4500, 4, 50, dtype);
    Generator gen(2);
    const Tensor weight = (rand({50}, gen, cpu, DType::f64) + 0.5).to(dtype);
    for (const Reduction r : {Reduction::none, Reduction::sum, Reduction::mean}) {
      for (const bool weighted : {false, true}) {
        CrossEntropyOptions o{.ignore_index = c.target.to_vector<std::int64_t>()[7], .reduction = r};
        if (weighted) o.weight = weight, o.label_smoothing = 0.2;
        CAPTURE(name(dtype));
        CAPTURE(int(r));
        CAPTURE(weighted);
        const Tensor got = c.fused(o), want = c.twin(o);
        // Sums of 16-bit logits end in another order: a loss moves by the eps of a logit.
        check_close(got, want, 32 * epsilon(dtype));
        const Tensors in = c.inputs(), g = grad(as_one(got), in), w = grad(as_one(want), in);
        for (std::size_t i = 0; i < in.size(); ++i) check_close(g[i], w[i], 32 * epsilon(dtype));
      }
    }
  }
}

TEST_CASE("linear_cross_entropy has the same bits for one and two threads, and with gradients and without") {
  const int before = num_threads();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    std::vector<std::vector<double>> first;
    for (const int threads : {1, 2}) {
      set_num_threads(threads);
      const Case c(4500, 8, 50, dtype);
      std::vector<std::vector<double>> all;
      for (const Reduction r : {Reduction::none, Reduction::mean}) {
        const Tensor loss = c.fused({.reduction = r});
        all.push_back(numbers(loss));
        for (const Tensor& g : grad(as_one(loss), c.inputs())) all.push_back(numbers(g));
        const NoGrad off;
        CHECK(numbers(c.fused({.reduction = r})) == numbers(loss));
      }
      if (first.empty()) first = all;
      CHECK(all == first);
    }
  }
  set_num_threads(before);
}

TEST_CASE("linear_cross_entropy of rows with NaN and infinities, and of ignored rows, is that of its layers") {
  for (const double odd : {kNaN, kInf, -kInf, 1e30, 0.0}) {
    for (const std::int64_t ignored : {std::int64_t{-100}, std::int64_t{2}}) {
      for (const Reduction r : {Reduction::none, Reduction::sum, Reduction::mean}) {
        for (const bool weighted : {false, true}) {
          CAPTURE(odd);
          CAPTURE(ignored);
          CAPTURE(int(r));
          CAPTURE(weighted);
          Tensor x = from_data(std::vector<double>{1, 2, odd, 3, -1, 1, 0.5, -2}, {4, 2}, cpu);
          Tensor w = from_data(std::vector<double>{1, -1, 0.5, 2, -1, 0.25}, {3, 2}, cpu);
          x.requires_grad_();
          w.requires_grad_();
          // Row 1 is the odd one. It counts, or is ignored together with the last.
          const Tensor target = tensor<std::int64_t>({0, 2, 1, 2}, cpu);
          CrossEntropyOptions o{.ignore_index = ignored, .reduction = r};
          if (weighted) o.weight = tensor({0.0, 1.0, 0.5}, cpu);
          const Tensors in{x, w};
          const Tensor got = linear_cross_entropy(x, w, target, {}, o), want = layers(x, w, target, {}, o);
          check_close(got, want, 1e-14);
          const Tensors g = grad(as_one(got), in), gw = grad(as_one(want), in);
          for (std::size_t i = 0; i < in.size(); ++i) check_close(g[i], gw[i], 1e-14);
        }
      }
    }
  }
}

TEST_CASE("linear_cross_entropy without a row that counts: mean is NaN, gradients are 0") {
  const Case c(5, 3, 4, DType::f32);
  const Tensor ignored = full({5}, -100, cpu, DType::i64);
  for (const Reduction r : {Reduction::mean, Reduction::sum}) {
    const Tensor loss = linear_cross_entropy(c.x, c.w, ignored, c.b, {.reduction = r});
    if (r == Reduction::mean) CHECK(std::isnan(loss.item()));
    if (r == Reduction::sum) CHECK(loss.item() == 0);
    for (const Tensor& g : grad(loss, c.inputs())) CHECK(equal(g, zeros_like(g)));
  }
  // Rows that count with weight 0 make 0 / 0.
  const CrossEntropyOptions zero{.weight = zeros({4}, cpu)};
  const Tensors got = grad(c.fused(zero), c.inputs()), want = grad(c.twin(zero), c.inputs());
  for (std::size_t i = 0; i < got.size(); ++i) check_close(got[i], want[i], 0);
}

TEST_CASE("a graph of linear_cross_entropy that is retained gives its gradients again") {
  const Case c(300, 8, 50, DType::f32);
  const Tensor loss = c.fused();
  const Tensors in = c.inputs(), first = grad(loss, in, {.retain_graph = true}), second = grad(loss * 2, in);
  for (std::size_t i = 0; i < in.size(); ++i) CHECK(equal(first[i] * 2, second[i]));
}

TEST_CASE("linear_cross_entropy computes the gradients that are wanted alone, each with the same bits") {
  const Case c(40, 8, 50, DType::f32);
  const Tensors all = grad(c.fused(), c.inputs());
  for (std::size_t i = 0; i < 3; ++i) {
    Tensors in{c.x.detach(), c.w.detach(), c.b.detach()};
    in[i].requires_grad_();
    const Tensor loss = linear_cross_entropy(in[0], in[1], c.target, in[2]);
    CHECK(equal(grad(loss, std::span(&in[i], 1))[0], all[i]));
  }
}

TEST_CASE("gradients of linear_cross_entropy in 16 bits are as near to those of f64 as the gradients of its layers") {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    // Most classes have probabilities that f16 holds with few bits.
    const Case c(400, 32, 60000, dtype);
    const auto wide = [](const Tensor& t) {
      Tensor w = t.detach().to(DType::f64);
      w.requires_grad_();
      return w;
    };
    const Tensors in{wide(c.x), wide(c.w), wide(c.b)};
    // A scaled loss, as it is trained in f16.
    const Tensors exact = grad(layers(in[0], in[1], c.target, in[2], {}) * 1024, in);
    const Tensors fused = grad(c.fused() * 1024, c.inputs()), twin = grad(c.twin() * 1024, c.inputs());
    const auto off = [](const Tensor& a, const Tensor& b) {
      const std::vector<double> x = numbers(a), y = numbers(b);
      double sum = 0;
      for (std::size_t i = 0; i < x.size(); ++i) sum += (x[i] - y[i]) * (x[i] - y[i]);
      return std::sqrt(sum);
    };
    for (std::size_t i = 0; i < in.size(); ++i) {
      CAPTURE(name(dtype));
      CAPTURE(i);
      CHECK(off(fused[i], exact[i]) <= 1.05 * off(twin[i], exact[i]));
    }
  }
}

TEST_CASE("linear_cross_entropy and its backward take less memory than three quarters of the logits") {
  for (const Reduction r : {Reduction::mean, Reduction::none}) {
    const Case c(4096, 2, 8192, DType::f32);  // two chunks of 64 MiB
    const std::int64_t logits = 4096 * 8192 * 4;
    reset_peak_memory(cpu);
    const std::int64_t before = memory_stats(cpu).in_use;
    const Tensors g = grad(as_one(c.fused({.reduction = r})), c.inputs());
    CHECK(memory_stats(cpu).peak - before < logits * 3 / 4);
    reset_peak_memory(cpu);
    const std::int64_t layers_before = memory_stats(cpu).in_use;
    const Tensors twin = grad(as_one(c.twin({.reduction = r})), c.inputs());
    CHECK(memory_stats(cpu).peak - layers_before > logits);
  }
}

TEST_CASE("under autocast linear_cross_entropy multiplies in 16 bits, and gives a loss and gradients of f32") {
  const Case c(6, 8, 10, DType::f32);
  const auto run = [&](auto&& f) {
    const Autocast on(DType::bf16);
    return f();
  };
  const Tensor got = run([&] { return c.fused(); }), want = run([&] { return c.twin(); });
  CHECK(got.dtype() == DType::f32);
  check_close(got, want, 4 * epsilon(DType::bf16));
  const Tensors g = grad(got, c.inputs()), w = grad(want, c.inputs());
  for (std::size_t i = 0; i < g.size(); ++i) check_close(g[i], w[i], 4 * epsilon(DType::bf16));
}

TEST_CASE("LinearCrossEntropyLoss is linear_cross_entropy of its layer") {
  Generator gen(1);
  struct Net : nn::Module {
    using Module::Module;
    nn::LinearCrossEntropyLoss loss{*this, "loss", {.in = 8, .classes = 10, .loss = {.label_smoothing = 0.1}}};
  } net({.gen = gen, .device = cpu});
  const Case c(6, 8, 10, DType::f32);
  CHECK(equal(net.loss(c.x, c.target),
              linear_cross_entropy(c.x, net.loss.linear.weight, c.target, {}, {.label_smoothing = 0.1})));
  CHECK(net.parameters().size() == 1);
  CHECK(net.parameters()[0].name == "loss.linear.weight");
}

TEST_CASE("linear_cross_entropy over several chunks on a device agrees with the CPU") {
  DEVICE_OR_SKIP();
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    const Case here(4500, 3, 5, dtype), there(4500, 3, 5, dtype, device);
    for (const Reduction r : {Reduction::none, Reduction::mean}) {
      CAPTURE(name(dtype));
      const Tensor got = there.fused({.ignore_index = 3, .label_smoothing = 0.1, .reduction = r});
      const Tensor want = here.fused({.ignore_index = 3, .label_smoothing = 0.1, .reduction = r});
      check_close(got.to(cpu), want, 8 * epsilon(dtype));
      const Tensors g = grad(as_one(got), there.inputs()), w = grad(as_one(want), here.inputs());
      for (std::size_t i = 0; i < g.size(); ++i) check_close(g[i].to(cpu), w[i], 32 * epsilon(dtype));
    }
  }
}

TEST_CASE("linear_cross_entropy on a device reports a target that is no class, and leaves its row out") {
  DEVICE_OR_SKIP();
  const Tensor x = zeros({3, 2}, device), w = zeros({4, 2}, device);
  const Tensor y =
      linear_cross_entropy(x, w, tensor<std::int64_t>({0, 4, 3}, device), {}, {.reduction = Reduction::sum});
  std::string message;
  try {
    (void)y.to(cpu);
  } catch (const IndexError& e) { message = e.what(); }
  CAPTURE(message);
  CHECK(message.find("linear_cross_entropy: index 4") == 0);
  CHECK(std::abs(y.to(cpu).item() - 2 * std::log(4.0)) <= 8 * epsilon(DType::f32));
}

#if defined(LEVIN_SIMT)
TEST_CASE("on simt a chunk of linear_cross_entropy is four launches, and backward one for each gradient") {
  struct Ledger : detail::LaunchLedger {
    Ledger() { detail::mode().detour = true; }
    std::size_t launches() {
      std::size_t all = 0;
      for (const auto& call : take()) all += call.launches.size();
      return all;
    }
  };
  for (const std::int64_t rows : {std::int64_t{64}, std::int64_t{4500}}) {
    const Case c(rows, 8, 5, DType::f32, Device::simt());
    Tensor w = c.w.detach();
    w.requires_grad_();
    const std::size_t chunks = rows == 64 ? 1 : 2;
    Ledger ledger;
    const Tensor loss = linear_cross_entropy(c.x, w, c.target);
    // The logits, losses and slopes, and two products; the zeros of the totals.
    CHECK(ledger.launches() == 4 * chunks + 1);
    (void)grad(loss, Tensors{c.x, w});
    CHECK(ledger.launches() == 2 + 1);  // and the seed
  }
}
#endif

}  // namespace levin::testing
