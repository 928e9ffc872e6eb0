#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/device.h"
#include "tests/ops/samples.h"

namespace levin::testing {
namespace {

using Ints = std::vector<std::int64_t>;
const Device cpu = Device::cpu();
const double inf = std::numeric_limits<double>::infinity();
Tensor ints(const Ints& v, const Shape& shape) { return from_data(std::span<const std::int64_t>(v), shape, cpu); }
Tensor ints(const Ints& v) { return ints(v, {static_cast<std::int64_t>(v.size())}); }

struct Texts {
  std::int64_t steps, classes;
  std::vector<Ints> targets;
  Ints input_lengths;
  [[nodiscard]] std::int64_t count() const { return static_cast<std::int64_t>(targets.size()); }
  [[nodiscard]] Tensor lengths() const {
    Ints n;
    for (const Ints& t : targets) n.push_back(static_cast<std::int64_t>(t.size()));
    return ints(n);
  }
  // [N, longest + 1], filled up with what is no class.
  [[nodiscard]] Tensor padded() const {
    std::size_t longest = 0;
    for (const Ints& t : targets) longest = std::max(longest, t.size());
    Ints all;
    for (const Ints& t : targets) {
      all.insert(all.end(), t.begin(), t.end());
      all.insert(all.end(), longest + 1 - t.size(), -7);
    }
    return ints(all, {count(), static_cast<std::int64_t>(longest) + 1});
  }
};

// -log of the sum over all classes^steps paths that spell the target, each with its product of probabilities.
double loss_of(const std::vector<double>& x, std::int64_t n, std::int64_t count, std::int64_t classes,
               std::int64_t steps, const Ints& target, std::int64_t blank) {
  double total = 0;
  std::int64_t paths = 1;
  for (std::int64_t t = 0; t < steps; ++t) paths *= classes;
  for (std::int64_t path = 0; path < paths; ++path) {
    Ints spelled;
    double log_probability = 0;
    std::int64_t rest = path, last = -1;
    for (std::int64_t t = 0; t < steps; ++t) {
      const std::int64_t c = rest % classes;
      rest /= classes;
      log_probability += x[static_cast<std::size_t>((t * count + n) * classes + c)];
      if (c != last && c != blank) spelled.push_back(c);
      last = c;
    }
    if (spelled == target) total += std::exp(log_probability);
  }
  return -std::log(total);
}

Tensor ctc_reference(const Tensor& log_probs, const Texts& texts, const CtcOptions& o) {
  const std::vector<double> x = log_probs.contiguous().to_vector<double>();
  std::vector<double> losses;
  double sum = 0;
  for (std::int64_t n = 0; n < texts.count(); ++n) {
    const auto i = static_cast<std::size_t>(n);
    double loss = loss_of(x, n, texts.count(), texts.classes, texts.input_lengths[i], texts.targets[i], o.blank);
    if (o.zero_infinity && loss == inf) loss = 0;
    losses.push_back(loss);
    sum += o.reduction == Reduction::mean ? loss / std::max(1.0, double(texts.targets[i].size())) : loss;
  }
  if (o.reduction == Reduction::none) return from_data(std::span<const double>(losses), {texts.count()}, cpu);
  return full({}, o.reduction == Reduction::mean ? sum / double(texts.count()) : sum, cpu, DType::f64);
}

}  // namespace

LEVIN_OP_CASE(ctc_loss) {
  OpCase c{.ops = {"ctc_paths", "ctc_paths_backward"},
           .dtypes = kFloatDTypes,
           .ulps = 8,
           .sums = 16,
           .layout_changes_sums = true};
  const auto add = [&](const Texts& texts, const CtcOptions& o) {
    c.samples.push_back({.inputs = {real({texts.steps, texts.count(), texts.classes}), fixed(texts.padded()),
                                    fixed(ints(texts.input_lengths)), fixed(texts.lengths())},
                         .call = [=](const Tensors& in) { return Tensors{ctc_loss(in[0], in[1], in[2], in[3], o)}; },
                         .reference = [=](const Tensors& in) { return Tensors{ctc_reference(in[0], texts, o)}; }});
  };
  const Texts single{1, 2, {{1}}, {1}}, nothing{2, 3, {}, {}},
      several{5, 4, {{1, 1, 3}, {2, 1}, {}, {3}}, {5, 4, 5, 3}}, last_blank{4, 3, {{0, 1}, {1, 1}}, {4, 4}};
  for (const Reduction r : {Reduction::none, Reduction::mean, Reduction::sum}) {
    add(single, {.reduction = r});
    add(several, {.reduction = r});
    add(last_blank, {.blank = 2, .reduction = r});
  }
  add({1, 1, {{}}, {1}}, {.reduction = Reduction::none});
  add(nothing, {.reduction = Reduction::none});
  // What no path spells: an infinite loss that has no gradient, or none with zero_infinity.
  add({3, 3, {{1, 1, 2}, {2}, {}, {1}}, {3, 3, 0, 0}}, {.reduction = Reduction::none, .zero_infinity = true});
  add({4, 3, {{1, 1, 2}, {2}, {1}}, {4, 4, 2}}, {.zero_infinity = true});

  const Tensor x = zeros({3, 2, 4}, cpu), targets = ints({1, 2, 3, 1}, {2, 2}), three = ints({3, 3}),
               two = ints({2, 2});
  const auto refuse = [&](const char* what, std::function<void()> call, std::function<bool(const Error&)> is,
                          const char* contains) {
    c.errors.push_back({what, std::move(call), std::move(is), contains});
  };
  refuse(
      "rank",
      [=] {
        (void)ctc_loss(zeros({3, 4}, cpu), targets, three, two);
      },
      throws<ShapeError>, "ctc_loss: log_probs have shape [3, 4], expected [T, N, C]");
  refuse(
      "targets",
      [=] {
        (void)ctc_loss(x, ints({1, 2, 3}, {3, 1}), three, two);
      },
      throws<ShapeError>, "ctc_loss: targets have shape [3, 1]");
  refuse(
      "lengths", [=] { (void)ctc_loss(x, targets, ints({3}), two); }, throws<ShapeError>,
      "ctc_loss: input_lengths have shape [1]");
  refuse(
      "long input",
      [=] {
        (void)ctc_loss(x, targets, ints({3, 4}), two);
      },
      throws<IndexError>, "ctc_loss: one of the input_lengths is 4, expected 0 to 3");
  refuse(
      "long target",
      [=] {
        (void)ctc_loss(x, targets, three, ints({2, 3}));
      },
      throws<IndexError>, "ctc_loss: one of the target_lengths is 3, expected 0 to 2");
  refuse(
      "no class",
      [=] {
        (void)ctc_loss(x, ints({1, 2, 4, 1}, {2, 2}), three, two);
      },
      throws<IndexError>, "ctc_loss: a target is 4, expected a class from 0 to 3");
  refuse(
      "blank", [=] { (void)ctc_loss(x, targets, three, two, {.blank = 4}); }, throws<ConfigError>,
      "ctc_loss: blank is 4, expected a class from 0 to 3");
  refuse(
      "end to end",
      [=] {
        (void)ctc_loss(x, ints({1, 2, 3}), three, two);
      },
      throws<ShapeError>, "ctc_loss: 3 targets end to end, expected the sum of target_lengths, 4");
  refuse(
      "dtype", [=] { (void)ctc_loss(x, targets.to(DType::i32), three, two); }, throws<DTypeError>,
      "ctc_loss: targets are i32, expected i64");
  return c;
}

// x[i] = 0.5 sin(0.7 i + 0.25), [5, 3, 4], after log_softmax: PyTorch 2.13 prints these losses.
TEST_CASE("the CTC loss is PyTorch's, of targets in rows and end to end") {
  std::vector<double> v(60);
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = 0.5 * std::sin(0.7 * static_cast<double>(i) + 0.25);
  const Tensor x = log_softmax(from_data(v, {5, 3, 4}, cpu), -1);
  const Tensor rows = ints({1, 1, 3, 2, 1, 0, 3, 0, 0}, {3, 3}), in = ints({5, 4, 5}), n = ints({3, 2, 0});
  const auto close = [](const Tensor& got, const std::vector<double>& want) {
    const std::vector<double> values = got.to_vector<double>();
    REQUIRE(values.size() == want.size());
    for (std::size_t i = 0; i < want.size(); ++i) CHECK(values[i] == doctest::Approx(want[i]).epsilon(1e-13));
  };
  for (const Tensor& targets : {rows, ints({1, 1, 3, 2, 1})}) {
    close(ctc_loss(x, targets, in, n, {.reduction = Reduction::none}),
          {5.1383781594116, 2.70919307387519, 7.14776252047094});
    close(ctc_loss(x, targets, in, n), {3.40505059240414});
    close(ctc_loss(x, targets, in, n, {.reduction = Reduction::sum}), {14.9953337537577});
  }
}

TEST_CASE("a target that no path spells has an infinite loss, which zero_infinity makes 0, and no gradient") {
  Tensor x = log_softmax(zeros({3, 2, 4}, cpu, DType::f64), -1).detach();
  x.requires_grad_();
  const Tensor targets = ints({1, 1, 2, 0}, {2, 2}), in = ints({2, 3}), n = ints({2, 1});
  const Tensor losses = ctc_loss(x, targets, in, n, {.reduction = Reduction::none});
  CHECK(losses.detach().to_vector<double>()[0] == inf);
  CHECK(std::isfinite(losses.detach().to_vector<double>()[1]));
  CHECK(ctc_loss(x, targets, in, n, {.reduction = Reduction::none, .zero_infinity = true})
            .detach()
            .to_vector<double>()[0] == 0);
  for (const bool zero : {false, true}) {
    const Tensor y = ctc_loss(x, targets, in, n, {.reduction = Reduction::sum, .zero_infinity = zero});
    const Tensor g = grad(Tensors{y}, Tensors{x})[0];
    CHECK(equal(select(g, 1, 0), zeros({3, 4}, cpu, DType::f64)));
    CHECK(all(isfinite(g)).item<bool>());
    CHECK(any(ne(select(g, 1, 1), 0)).item<bool>());
  }
}

TEST_CASE("a long text's CTC loss neither underflows nor overflows in f32") {
  Generator gen(1);
  const Tensor logits = randn({400, 2, 20}, gen, cpu) * 5;
  const Tensor targets = randint(1, 20, {2, 60}, gen, cpu), in = ints({400, 300}), n = ints({60, 50});
  const Tensor wide = ctc_loss(log_softmax(logits.to(DType::f64), -1), targets, in, n);
  const Tensor loss = ctc_loss(log_softmax(logits, -1), targets, in, n);
  CHECK(loss.item<float>() == doctest::Approx(wide.item<double>()).epsilon(1e-5));
}

TEST_CASE("shares of paths sum to one at each step, on a device, too, and equal those of the cpu") {
  Generator gen(3);
  const Tensor x = log_softmax(randn({50, 3, 12}, gen, cpu, DType::f64) * 3, -1).detach();
  // 20 labels with repeats, none, and as many as the steps can spell without a blank.
  Tensor targets = zeros({3, 20}, cpu, DType::i64);
  for (const std::int64_t n : {0, 2}) {
    Tensor row = select(targets, 0, n);
    copy_(row, n == 0 ? randint(1, 4, {20}, gen, cpu) : remainder(arange(20, cpu), 11) + 1);
  }
  const Tensor in = ints({50, 30, 20}), n = ints({20, 0, 20});
  Tensor first;
  for (const Device device : levin::test::all_devices()) {
    Tensor p = x.to(device).detach();
    p.requires_grad_();
    const Tensor losses = ctc_loss(p, targets.to(device), in.to(device), n.to(device), {.reduction = Reduction::none});
    const Tensor g = grad(Tensors{sum(losses)}, Tensors{p})[0].to(cpu);
    const Tensor steps = lt(unsqueeze(arange(50, cpu), 1), unsqueeze(in, 0));
    CHECK(allclose(sum(g, {2}), -cast(steps, DType::f64), 1e-12, 1e-12));
    if (first.defined()) CHECK(allclose(g, first, 1e-12, 1e-12));
    first = g;
  }
}

}  // namespace levin::testing
