#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "levin/stream.h"
#include "tests/device.h"
#include "tests/ops/samples.h"
#include "tests/skip.h"
#if defined(LEVIN_SIMT)
#include "tensor/device/launch_ledger.h"
#endif

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();

// y = (x - mean) / sqrt(var + eps) * w + b where element i belongs to set group(i) and channel(i); plain loops in f64.
template <class G, class C>
Tensor normalised(const Tensor& x, const Tensor& w, const Tensor& b, double eps, std::int64_t groups, G group,
                  C channel, bool centered = true) {
  const auto v = x.detach().to_vector<double>();
  const auto ws = w.defined() ? w.detach().to_vector<double>() : std::vector<double>(),
             bs = b.defined() ? b.detach().to_vector<double>() : std::vector<double>();
  std::vector<double> mean(static_cast<std::size_t>(groups), 0.0), var(mean), count(mean), out(v.size());
  const auto of = [&](std::size_t i) { return static_cast<std::size_t>(group(static_cast<std::int64_t>(i))); };
  for (std::size_t i = 0; i < v.size(); ++i) {
    mean[of(i)] += v[i];
    count[of(i)] += 1;
  }
  for (std::size_t g = 0; g < mean.size(); ++g) mean[g] = centered && count[g] > 0 ? mean[g] / count[g] : 0;
  for (std::size_t i = 0; i < v.size(); ++i) var[of(i)] += (v[i] - mean[of(i)]) * (v[i] - mean[of(i)]) / count[of(i)];
  for (std::size_t i = 0; i < v.size(); ++i) {
    const auto c = static_cast<std::size_t>(channel(static_cast<std::int64_t>(i)));
    out[i] = (v[i] - mean[of(i)]) / std::sqrt(var[of(i)] + eps) * (w.defined() ? ws[c] : 1) + (b.defined() ? bs[c] : 0);
  }
  return from_data(out, x.shape(), cpu);
}

Tensor third(const Tensors& in) { return in.size() > 2 ? in[2] : Tensor(); }
Tensor second(const Tensors& in) { return in.size() > 1 ? in[1] : Tensor(); }
std::int64_t product_from(const Shape& s, int d) {
  std::int64_t n = 1;
  for (; d < s.rank(); ++d) n *= s[d];
  return n;
}

}  // namespace

LEVIN_OP_CASE(layer_norm) {
  OpCase c{.ops = {"layer_norm", "layer_norm_backward"}, .dtypes = kFloatDTypes, .ulps = 8, .sums = 10};
  const auto add = [&](Shape x, std::optional<Shape> w, bool bias) {
    const std::int64_t cols = w ? w->numel() : x.back();
    OpSample s{.inputs = {real(x)},
               .call = [](const Tensors& in) { return Tensors{layer_norm(in[0], second(in), third(in))}; },
               .reference =
                   [cols](const Tensors& in) {
                     const std::int64_t rows = cols ? in[0].numel() / cols : 0;
                     return Tensors{normalised(
                         in[0], second(in), third(in), 1e-5, std::max<std::int64_t>(rows, 1),
                         [cols](std::int64_t i) { return i / cols; }, [cols](std::int64_t i) { return i % cols; })};
                   }};
    if (w) s.inputs.push_back(optional(real(*w)));
    if (bias) s.inputs.push_back(optional(real(*w)));
    c.samples.push_back(std::move(s));
  };
  add({1, 1}, Shape{1}, true);
  add({3, 5}, Shape{5}, true);
  add({2, 2, 3}, Shape{2, 3}, true);
  add({4, 6}, std::nullopt, false);
  add({2, 3, 4}, Shape{4}, false);
  add({0, 4}, Shape{4}, true);
  add({9, 1000}, Shape{1000}, true);
  add({3, 1100}, Shape{1100}, true);
  for (const std::size_t k : {std::size_t{1}, std::size_t{3}, std::size_t{7}})
    c.samples.push_back(under_autocast(c.samples[k]));
  c.errors.push_back({"weight",
                      [] {
                        (void)layer_norm(zeros({2, 3}, cpu), zeros({2}, cpu), {});
                      },
                      throws<ShapeError>, "layer_norm: weight has shape [2]"});
  c.errors.push_back({"bias",
                      [] {
                        (void)layer_norm(zeros({2, 3}, cpu), zeros({3}, cpu), zeros({2}, cpu));
                      },
                      throws<ShapeError>, "layer_norm: bias has shape [2]"});
  c.errors.push_back({"eps",
                      [] {
                        (void)layer_norm(zeros({2, 3}, cpu), {}, {}, -1);
                      },
                      throws<ConfigError>, "layer_norm: eps is -1"});
  c.errors.push_back({"dtype",
                      [] {
                        (void)layer_norm(zeros({2, 3}, cpu), zeros({3}, cpu, DType::f64), {});
                      },
                      throws<DTypeError>, "layer_norm: weight is f64"});
  return c;
}

LEVIN_OP_CASE(rms_norm) {
  OpCase c{.ops = {"rms_norm", "rms_norm_backward"}, .dtypes = kFloatDTypes, .ulps = 8, .sums = 10};
  for (const Shape& x : {Shape{1, 1}, Shape{3, 5}, Shape{0, 4}, Shape{2, 2, 3}, Shape{9, 1000}, Shape{2, 1028}}) {
    const std::int64_t cols = x.back();
    c.samples.push_back({.inputs = {real(x), optional(real({cols}))},
                         .call = [](const Tensors& in) { return Tensors{rms_norm(in[0], in[1], 1e-6)}; },
                         .reference =
                             [cols](const Tensors& in) {
                               return Tensors{normalised(
                                   in[0], in[1], {}, 1e-6, std::max<std::int64_t>(1, in[0].numel() / cols),
                                   [cols](std::int64_t i) { return i / cols; },
                                   [cols](std::int64_t i) { return i % cols; }, false)};
                             }});
  }
  for (const std::size_t k : {std::size_t{1}, std::size_t{5}}) c.samples.push_back(under_autocast(c.samples[k]));
  c.errors.push_back({"weight",
                      [] {
                        (void)rms_norm(zeros({2, 3}, cpu), zeros({2}, cpu));
                      },
                      throws<ShapeError>, "rms_norm: weight has shape [2]"});
  return c;
}

LEVIN_OP_CASE(group_norm) {
  OpCase c{.ops = {"group_norm", "group_norm_backward"}, .dtypes = kFloatDTypes, .ulps = 8, .sums = 10};
  const auto add = [&](Shape x, std::int64_t groups, bool affine) {
    OpSample s{
        .inputs = {real(x)},
        .call = [groups](const Tensors& in) { return Tensors{group_norm(in[0], groups, second(in), third(in))}; },
        .reference =
            [groups, x](const Tensors& in) {
              const std::int64_t spatial = product_from(x, 2), per_group = x[1] / groups * spatial;
              return Tensors{normalised(
                  in[0], second(in), third(in), 1e-5, std::max<std::int64_t>(1, x[0] * groups),
                  [=](std::int64_t i) { return i / per_group; }, [=](std::int64_t i) { return i / spatial % x[1]; })};
            }};
    if (affine) {
      s.inputs.push_back(optional(real({x[1]})));
      s.inputs.push_back(optional(real({x[1]})));
    }
    c.samples.push_back(std::move(s));
  };
  add({1, 1}, 1, true);
  add({2, 4, 3}, 2, true);
  add({1, 4, 2, 2}, 4, false);
  add({2, 2}, 1, true);
  add({0, 4, 3}, 2, true);
  add({2, 4, 4, 8}, 2, true);
  add({1, 2, 50, 90}, 1, true);
  for (const std::size_t k : {std::size_t{1}, std::size_t{3}, std::size_t{5}})
    c.samples.push_back(under_autocast(c.samples[k]));
  c.errors.push_back({"groups",
                      [] {
                        (void)group_norm(zeros({2, 4, 3}, cpu), 3, {}, {});
                      },
                      throws<ShapeError>, "group_norm: 3 groups"});
  c.errors.push_back({"rank", [] { (void)group_norm(zeros({4}, cpu), 1, {}, {}); }, throws<ShapeError>,
                      "group_norm: x has shape [4]"});
  return c;
}

namespace {
void add_batch_norm(OpCase& c, Shape x, bool affine) {
  OpSample s{.inputs = {real(x)},
             .call = [](const Tensors& in) { return Tensors{batch_norm_train(in[0], second(in), third(in)).y}; },
             .reference =
                 [x](const Tensors& in) {
                   const std::int64_t spatial = product_from(x, 2);
                   const auto channel = [=](std::int64_t i) { return i / spatial % x[1]; };
                   return Tensors{normalised(in[0], second(in), third(in), 1e-5, std::max<std::int64_t>(1, x[1]),
                                             channel, channel)};
                 }};
  if (affine) {
    s.inputs.push_back(optional(real({x[1]})));
    s.inputs.push_back(optional(real({x[1]})));
  }
  c.samples.push_back(std::move(s));
}
}  // namespace

LEVIN_OP_CASE(batch_norm) {
  OpCase c{.ops = {"batch_norm", "batch_norm_backward"},
           .dtypes = kFloatDTypes,
           .ulps = 8,
           .sums = 10,
           .layout_changes_sums = true,
           .no_single = "training needs two values a channel"};
  add_batch_norm(c, {4, 3}, true);
  add_batch_norm(c, {2, 2, 3}, true);
  add_batch_norm(c, {3, 2, 2, 1}, false);
  add_batch_norm(c, {2, 0}, true);
  add_batch_norm(c, {9, 7, 5, 11}, true);
  add_batch_norm(c, {130, 33}, true);
  c.errors.push_back({"one value",
                      [] {
                        (void)batch_norm_train(zeros({1, 3}, cpu), {}, {});
                      },
                      throws<ShapeError>, "batch_norm_train: x of shape [1, 3] has 1 values"});
  c.errors.push_back({"weight",
                      [] {
                        (void)batch_norm_train(zeros({2, 3}, cpu), zeros({2}, cpu), {});
                      },
                      throws<ShapeError>, "batch_norm_train: weight has shape [2]"});
  return c;
}

// Many terms per channel: the sums' own error becomes visible.
namespace {
RunningStatistics new_statistics(const Tensor& x) {
  const DType sums = x.dtype() == DType::f64 ? DType::f64 : DType::f32;
  return {zeros({x.size(1)}, x.device(), sums), ones({x.size(1)}, x.device(), sums), zeros({}, x.device(), DType::i64)};
}
Tensor fourth(const Tensors& in) { return in.size() > 3 ? in[3] : Tensor(); }
// The sum with a residual, if there is one, and relu of it.
Tensor rectified(const Tensor& y, const Tensor& residual) {
  auto v = y.to_vector<double>();
  const auto r = residual.defined() ? residual.to_vector<double>() : std::vector<double>(v.size());
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = std::max(v[i] + r[i], 0.0);
  return from_data(v, y.shape(), cpu);
}
void add_batch_norm_relu(OpCase& c, Shape x, bool affine, bool adds) {
  OpSample s{
      .inputs = {real(x)},
      .call =
          [](const Tensors& in) {
            return Tensors{batch_norm_relu_train(in[0], second(in), third(in), new_statistics(in[0]), fourth(in))};
          },
      .reference =
          [x](const Tensors& in) {
            const std::int64_t spatial = product_from(x, 2);
            const auto channel = [=](std::int64_t i) { return i / spatial % x[1]; };
            return Tensors{rectified(
                normalised(in[0], second(in), third(in), 1e-5, std::max<std::int64_t>(1, x[1]), channel, channel),
                fourth(in))};
          }};
  if (affine) {
    s.inputs.push_back(optional(real({x[1]})));
    s.inputs.push_back(optional(real({x[1]})));
    if (adds) s.inputs.push_back(optional(real(x)));
  }
  c.samples.push_back(std::move(s));
}
}  // namespace

LEVIN_OP_CASE(batch_norm_relu) {
  OpCase c{.ops = {"batch_norm_relu"},
           .dtypes = kFloatDTypes,
           .ulps = 8,
           .sums = 10,
           .layout_changes_sums = true,
           .no_single = "training needs two values a channel"};
  add_batch_norm_relu(c, {4, 3}, true, true);
  add_batch_norm_relu(c, {2, 2, 3}, true, false);
  add_batch_norm_relu(c, {3, 2, 2, 1}, false, false);
  add_batch_norm_relu(c, {2, 0}, true, true);
  add_batch_norm_relu(c, {3, 4, 5, 6}, true, true);
  add_batch_norm_relu(c, {33, 24}, true, false);
  c.errors.push_back({"residual",
                      [] {
                        const Tensor x = zeros({2, 3}, cpu);
                        (void)batch_norm_relu_train(x, {}, {}, new_statistics(x), zeros({3}, cpu));
                      },
                      throws<ShapeError>, "batch_norm_relu_train: the residual has shape [3]"});
  c.errors.push_back({"dtype",
                      [] {
                        const Tensor x = zeros({2, 3}, cpu);
                        (void)batch_norm_relu_train(x, {}, {}, new_statistics(x), zeros({2, 3}, cpu, DType::f64));
                      },
                      throws<DTypeError>, "batch_norm_relu_train"});
  return c;
}
LEVIN_OP_CASE(batch_norm_relu_eval) {
  OpCase c{.ops = {"batch_norm_relu"}, .dtypes = kFloatDTypes, .ulps = 8};
  for (const Shape& x : {Shape{1, 1}, Shape{3, 2, 2}, Shape{0, 2}, Shape{2, 3, 4, 4}}) {
    const std::int64_t spatial = product_from(x, 2), channels = x[1];
    c.samples.push_back(
        {.inputs = {real(x), optional(real({channels})), optional(real({channels})), constant({channels}),
                    constant({channels}, 0.5, 2), optional(real(x))},
         .call =
             [](const Tensors& in) { return Tensors{batch_norm_relu_eval(in[0], in[1], in[2], in[3], in[4], in[5])}; },
         .reference =
             [=](const Tensors& in) {
               auto v = in[0].to_vector<double>();
               const auto w = in[1].to_vector<double>(), b = in[2].to_vector<double>(), m = in[3].to_vector<double>(),
                          s = in[4].to_vector<double>();
               for (std::size_t i = 0; i < v.size(); ++i) {
                 const auto k = static_cast<std::size_t>(static_cast<std::int64_t>(i) / spatial % channels);
                 v[i] = (v[i] - m[k]) / std::sqrt(s[k] + 1e-5) * w[k] + b[k];
               }
               return Tensors{rectified(from_data(v, in[0].shape(), cpu), in[5])};
             }});
  }
  c.errors.push_back({"statistics",
                      [] {
                        (void)batch_norm_relu_eval(zeros({2, 3}, cpu), {}, {}, zeros({2}, cpu), zeros({3}, cpu));
                      },
                      throws<ShapeError>, "batch_norm_relu_eval: a running statistic has shape [2]"});
  return c;
}
LEVIN_OP_CASE(batch_norm_long) {
  OpCase c{.ops = {},  // the case of batch_norm runs these ops on samples small enough for gradcheck
           .dtypes = kFloatDTypes,
           .ulps = 8,
           .sums = 2 * 33 * 64,
           .layout_changes_sums = true,
           .no_empty = "one long channel",
           .no_single = "one long channel"};
  add_batch_norm(c, {2, 1, 33, 64}, true);
  c.errors.push_back({"bias",
                      [] {
                        (void)batch_norm_train(zeros({2, 3}, cpu), {}, zeros({2}, cpu));
                      },
                      throws<ShapeError>, "batch_norm_train: bias has shape [2]"});
  return c;
}

LEVIN_OP_CASE(batch_norm_eval) {
  OpCase c{.ops = {"batch_norm"}, .dtypes = kFloatDTypes, .ulps = 8};
  for (const Shape& x : {Shape{1, 1}, Shape{3, 2, 2}, Shape{0, 2}, Shape{2, 3, 16}}) {
    const std::int64_t spatial = product_from(x, 2), channels = x[1];
    c.samples.push_back(
        {.inputs = {real(x), optional(real({channels})), optional(real({channels})), constant({channels}),
                    constant({channels}, 0.5, 2)},
         .call = [](const Tensors& in) { return Tensors{batch_norm_eval(in[0], in[1], in[2], in[3], in[4])}; },
         .reference =
             [=](const Tensors& in) {
               auto v = in[0].to_vector<double>();
               const auto w = in[1].to_vector<double>(), b = in[2].to_vector<double>(), m = in[3].to_vector<double>(),
                          s = in[4].to_vector<double>();
               for (std::size_t i = 0; i < v.size(); ++i) {
                 const auto k = static_cast<std::size_t>(static_cast<std::int64_t>(i) / spatial % channels);
                 v[i] = (v[i] - m[k]) / std::sqrt(s[k] + 1e-5) * w[k] + b[k];
               }
               return Tensors{from_data(v, in[0].shape(), cpu)};
             }});
  }
  c.errors.push_back({"statistics",
                      [] {
                        (void)batch_norm_eval(zeros({2, 3}, cpu), {}, {}, zeros({2}, cpu), zeros({3}, cpu));
                      },
                      throws<ShapeError>, "batch_norm_eval: a running statistic has shape [2]"});
  return c;
}

TEST_CASE("batch statistics come with the result, the variance with n - 1") {
  const Tensor x = reshape(tensor({1.0, 10.0, 2.0, 20.0, 6.0, 60.0}, cpu), {3, 2});
  const BatchNormResult r = batch_norm_train(x, {}, {});
  CHECK(r.mean.to_vector<double>() == std::vector<double>{3, 30});
  CHECK(r.var.to_vector<double>()[0] == doctest::Approx(7));
  CHECK(r.var.to_vector<double>()[1] == doctest::Approx(700));
  CHECK_FALSE(r.mean.requires_grad());
}

namespace {
RunningStatistics fresh_statistics(Device device, std::optional<double> momentum, DType dtype = DType::f32) {
  return {zeros({3}, device, dtype), ones({3}, device, dtype), zeros({}, device, DType::i64), momentum};
}
}  // namespace

TEST_CASE("running statistics follow the batches as the formula says, by momentum and as an average") {
  const std::vector<Device> devices = test::all_devices();
  for (const Device device : devices)
    for (const std::optional<double> momentum : {std::optional(0.1), std::optional(1.0), std::optional<double>()})
      for (const auto& [x_type, type] : {std::pair(DType::f32, DType::f32), std::pair(DType::bf16, DType::f32),
                                         std::pair(DType::f64, DType::f64), std::pair(DType::bf16, DType::bf16)}) {
        CAPTURE(text(device));
        CAPTURE(momentum.value_or(-1));
        CAPTURE(text(x_type));
        CAPTURE(text(type));
        const RunningStatistics running = fresh_statistics(device, momentum, type);
        std::array<double, 3> mean{}, var{1, 1, 1};
        Generator gen(1);
        for (int batch = 1; batch <= 3; ++batch) {
          const Tensor x = ((randn({5, 3, 4}, gen, cpu) + batch).to(x_type)).to(device);
          const BatchNormResult r = batch_norm_train(x, {}, {});
          const Tensor y = batch_norm_train(x, {}, {}, running);
          CHECK(y.to(cpu).to(DType::f64).to_vector<double>() == r.y.to(cpu).to(DType::f64).to_vector<double>());
          const auto m = r.mean.to(cpu).to(DType::f64).to_vector<double>(),
                     v = r.var.to(cpu).to(DType::f64).to_vector<double>();
          const double share = momentum.value_or(1.0 / batch);
          const auto got_mean = running.mean.to(cpu).to(DType::f64).to_vector<double>(),
                     got_var = running.var.to(cpu).to(DType::f64).to_vector<double>();
          for (std::size_t c = 0; c < 3; ++c) {
            mean[c] += (m[c] - mean[c]) * share;
            var[c] += (v[c] - var[c]) * share;
            CHECK(std::abs(got_mean[c] - mean[c]) <= 4 * batch * epsilon(type) * 4);
            CHECK(std::abs(got_var[c] - var[c]) <= 4 * batch * epsilon(type) * 4);
          }
          CHECK(running.count.to(cpu).item<std::int64_t>() == batch);
        }
      }
}

TEST_CASE("a batch without channels counts as a batch") {
  const std::vector<Device> devices = test::all_devices();
  for (const Device device : devices)
    for (const std::optional<double> momentum : {std::optional(0.1), std::optional<double>()}) {
      const RunningStatistics running{zeros({0}, device), ones({0}, device), zeros({}, device, DType::i64), momentum};
      (void)batch_norm_train(zeros({4, 0, 2}, device), {}, {}, running);
      CHECK(running.count.to(cpu).item<std::int64_t>() == 1);
    }
}

TEST_CASE("running statistics that do not fit are named before anything changes") {
  const Tensor x = rand({4, 3}, *std::make_unique<Generator>(1), cpu);
  const auto with = [&](auto change) {
    RunningStatistics running = fresh_statistics(cpu, 0.1);
    change(running);
    (void)batch_norm_train(x, {}, {}, running);
  };
  CHECK_THROWS_WITH_AS(with([](auto& r) { r.mean = zeros({2}, cpu); }), doctest::Contains("running mean is"),
                       ShapeError);
  CHECK_THROWS_WITH_AS(with([](auto& r) { r.var = ones({3}, cpu, DType::f64); }),
                       doctest::Contains("running var is f64"), DTypeError);
  CHECK_THROWS_WITH_AS(with([](auto& r) { r.count = zeros({}, cpu); }), doctest::Contains("expected one i64"),
                       DTypeError);
  CHECK_THROWS_AS(with([](auto& r) { r.mean = zeros({3}, Device::meta()); }), DeviceError);
  CHECK_THROWS_WITH_AS(with([](auto& r) { r.momentum = 1.5; }), doctest::Contains("momentum is 1.5"), ConfigError);
  CHECK_THROWS_AS(with([](auto& r) { r.var = Tensor(); }), StateError);
}

#if defined(LEVIN_SIMT)
TEST_CASE("batch norm on simt is two launches with its running statistics, with relu and a residual, and backward") {
  struct Ledger : detail::LaunchLedger {
    Ledger() { detail::mode().detour = true; }
  };
  const Device simt = Device::simt();
  const RunningStatistics running = fresh_statistics(simt, 0.1);
  for (const Shape& shape : {Shape{4, 3, 5, 2}, Shape{200, 3}}) {
    for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
      if (shape.rank() != 4 && format == MemoryFormat::channels_last) continue;
      Tensor x = ones(shape, simt).contiguous(format).detach();
      x.requires_grad_();
      const Tensor seed = ones_like(x.detach());
      Ledger ledger;
      const auto launches = [&](std::size_t expected_calls) {
        const auto calls = ledger.take();
        CHECK(calls.size() == expected_calls);
        std::size_t all = 0;
        for (const auto& call : calls) all += call.launches.size();
        return all;
      };
      const Tensor plain = batch_norm_train(x, {}, {}, running);
      CHECK(launches(1) == 2);
      const Tensor fused = batch_norm_relu_train(x, {}, {}, running);
      CHECK(launches(1) == 2);
      (void)batch_norm_relu_train(x, {}, {}, running, seed);
      CHECK(launches(1) == 2);
      (void)batch_norm_relu_eval(x, {}, {}, running.mean, running.var, seed);
      CHECK(launches(1) == 2);
      (void)grad(std::array{plain}, std::array{x}, std::array{seed});
      CHECK(launches(1) == 2);
      (void)grad(std::array{fused}, std::array{x}, std::array{seed});
      CHECK(launches(1) == 2);
    }
  }
}
#endif

TEST_CASE("16-bit activations take f32 parameters, and their gradients are f32") {
  Tensor x = rand({4, 8}, *std::make_unique<Generator>(1), cpu).to(DType::bf16);
  Tensor w = ones({8}, cpu), b = zeros({8}, cpu);
  x = x.detach();
  for (Tensor* t : {&x, &w, &b}) t->requires_grad_();
  backward(sum(layer_norm(x, w, b)).to(DType::f32));
  CHECK(x.grad().dtype() == DType::bf16);
  CHECK(w.grad().dtype() == DType::f32);
  CHECK(b.grad().to_vector<float>() == std::vector<float>(8, 4.f));
}

TEST_CASE("batch norm on a device keeps the variance of channels far from zero") {
  const auto device = test::launching_device();
  if (!device) return test::skip("no device that launches kernels here");
  for (const Shape& shape : {Shape{3, 2, 601}, Shape{3, 2, 600}, Shape{300, 2}}) {
    std::vector<float> v(static_cast<std::size_t>(shape.numel()));
    for (std::size_t i = 0; i < v.size(); ++i) v[i] = 4096 + float(i * 7 % 64) / 64;  // exact in f32
    const Tensor x = from_data(std::span<const float>(v), shape, cpu);
    const Tensor want = batch_norm_train(x.to(DType::f64), {}, {}).var;
    const auto a = want.to_vector<double>();
    const auto b = batch_norm_train(x.to(*device), {}, {}).var.to(cpu).to(DType::f64).to_vector<double>();
    // Numbers around a guess lie within the spread: squares and their difference round a few times, and sums are by
    // blocks.
    for (std::size_t k = 0; k < a.size(); ++k) CHECK(std::abs(a[k] - b[k]) <= 32 * epsilon(DType::f32) * a[k]);
  }
}

TEST_CASE("layer norm on a device of rows too long for a block's memory has the values and gradients of the cpu") {
  const auto device = test::launching_device();
  if (!device) return test::skip("no device that launches kernels here");
  const std::int64_t cols = 60001;
  std::vector<float> v(static_cast<std::size_t>(3 * cols)), g(v.size()), w(static_cast<std::size_t>(cols));
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = float(i * 37 % 101) / 50 - 1, g[i] = float(i * 11 % 29) / 16 - 1;
  for (std::size_t i = 0; i < w.size(); ++i) w[i] = 1 + float(i % 5) / 8;
  const auto run_on = [&](Device d) {
    Tensor x = from_data(std::span<const float>(v), {3, cols}, cpu).to(d),
           weight = from_data(std::span<const float>(w), {cols}, cpu).to(d), bias = zeros({cols}, d);
    for (Tensor* t : {&x, &weight, &bias}) t->requires_grad_();
    const Tensor y = layer_norm(x, weight, bias);
    const Tensors roots{y}, wanted{x, weight, bias}, seeds{from_data(std::span<const float>(g), {3, cols}, cpu).to(d)};
    Tensors all = grad(roots, wanted, seeds);
    all.push_back(y.detach());
    return all;
  };
  const Tensors want = run_on(cpu), got = run_on(*device);
  for (std::size_t k = 0; k < want.size(); ++k) {
    CAPTURE(k);
    const auto a = want[k].to_vector<float>(), b = got[k].to(cpu).to_vector<float>();
    double most = 0, off = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      most = std::max(most, double(std::abs(a[i])));
      off = std::max(off, std::abs(double(a[i]) - double(b[i])));
    }
    CHECK(off <= 32 * epsilon(DType::f32) * most);  // a few roundings; the row's sums add fewer, in blocks
  }
}

TEST_CASE(
    "layer norm on a device: long rows, also such that a block has all the threads it can, equal the cpu's in f64") {
  const auto device = test::launching_device();
  if (!device) return test::skip("no device that launches kernels here");
  struct Width {
    DType dtype;
    std::int64_t cols;
  };
  // 4096 of bf16 and 3072 of f32 take exactly 48 KiB of dynamic shared memory; see Note [More than 48 KiB of shared
  // memory].
  for (const auto& [dtype, cols] : {Width{DType::f32, 16500}, Width{DType::bf16, 16500}, Width{DType::f64, 16500},
                                    Width{DType::bf16, 4096}, Width{DType::f32, 3072}}) {
    CAPTURE(text(dtype));
    CAPTURE(cols);
    Generator g(1);
    const Tensors in{randn({3, cols}, g, Device::cpu(), DType::f64).to(dtype),
                     randn({cols}, g, Device::cpu(), DType::f64).to(dtype),
                     randn({cols}, g, Device::cpu(), DType::f64).to(dtype)};
    const Tensor seed = randn({3, cols}, g, Device::cpu(), DType::f64).to(dtype);
    const auto run_on = [&](Device where, DType t) {
      Tensors x;
      for (const Tensor& u : in) x.push_back(u.to(where).to(t).detach()), x.back().requires_grad_();
      Tensors out{layer_norm(x[0], x[1], x[2])};
      for (const Tensor& u : grad(out, x, std::array{seed.to(where).to(t)})) out.push_back(u);
      for (Tensor& u : out) u = u.detach().to(Device::cpu()).to(DType::f64);
      return out;
    };
    const Tensors got = run_on(*device, dtype), want = run_on(Device::cpu(), DType::f64);
    for (std::size_t i = 0; i < got.size(); ++i) {
      CAPTURE(i);
      // A result is rounded once, from f32 sums of 17 numbers a thread and 10 more levels over threads.
      const double error = amax(abs(got[i] - want[i])).item(), scale = amax(abs(want[i])).item();
      CHECK(error <= (epsilon(dtype) + (dtype == DType::f64 ? 0x1p-53 : 0x1p-24) * 4 * 27) * scale);
    }
  }
}

TEST_CASE("the gradient of a norm over one element is exact, however small eps is") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Generator gen(1);
    Tensor x = randn({50, 1}, gen, cpu).to(dtype);
    const Tensor w = tensor({0.7f}, cpu).to(dtype), seed = randn({50, 1}, gen, cpu).to(dtype);
    x.requires_grad_();
    const auto gradient = [&](const Tensor& y) {
      return grad(Tensors{y}, Tensors{x}, Tensors{seed})[0].to(DType::f64).to_vector<double>();
    };
    for (const double g : gradient(layer_norm(x, w, {}, 1e-12))) REQUIRE(g == 0);
    for (const double g : gradient(group_norm(x, 1, w, {}, 1e-12))) REQUIRE(g == 0);
    const double eps = 1e-6;
    const std::vector<double> got = gradient(rms_norm(x, w, eps)), v = x.detach().to(DType::f64).to_vector<double>(),
                              s = seed.to(DType::f64).to_vector<double>();
    for (std::size_t i = 0; i < v.size(); ++i) {
      const double want = s[i] * w.to(DType::f64).item() * eps / std::pow(v[i] * v[i] + eps, 1.5);
      REQUIRE(std::abs(got[i] - want) <= 8 * epsilon(dtype) * std::abs(want));
    }
    // A NaN is not lost.
    Tensor nan = full({1, 1}, std::numeric_limits<double>::quiet_NaN(), cpu, dtype);
    nan.requires_grad_();
    CHECK(std::isnan(grad(Tensors{sum(layer_norm(nan, w, {}))}, Tensors{nan})[0].item()));
  }
}

TEST_CASE(
    "without an eps an RMS norm adds PyTorch's, the machine epsilon of f64 or f32, and 16 bits have that of f32") {
  // x = (torch.tensor([[1., -2., 3., 5.]], dtype=torch.float64) * scale).to(dtype).requires_grad_()
  // y = F.rms_norm(x, (4,), torch.tensor([0.5, 1, 2, -1], dtype=dtype)); torch.autograd.grad(y.sum(), x)
  // An eps of 1e-6 gives values of half the size in f32 and bf16, and of 3e-5 of it in f64.
  struct Expected {
    DType dtype;
    double scale;
    std::vector<double> y, gradient;
  };
  const Expected all[] = {
      {DType::f32,
       0x1p-13,
       {0.11867817491292953, -0.47471269965171814, 1.424138069152832, -1.1867817640304565},
       {985.9047241210938, 1917.0369873046875, 3929.92578125, -1875.9576416015625}},
      {DType::f64,
       0x1p-27,
       {0.13483997249264842, -0.5393598899705937, 1.618079669911781, -1.3483997249264843},
       {18426967.747028418, 35537723.51212624, 73378817.99263102, -34550564.525678284}},
      {DType::bf16, 0x1p-13, {0.11865234375, -0.474609375, 1.421875, -1.1875}, {984, 1920, 3936, -1872}},
  };
  for (const Expected& e : all) {
    CAPTURE(text(e.dtype));
    Tensor x = (from_data(std::vector<double>{1, -2, 3, 5}, {1, 4}, cpu) * e.scale).to(e.dtype).detach();
    x.requires_grad_();
    const Tensor w = tensor({0.5, 1.0, 2.0, -1.0}, cpu).to(e.dtype), half = x.detach() * 0.5;
    const auto check = [&](const Tensor& got, const std::vector<double>& want) {
      const std::vector<double> values = got.detach().to(DType::f64).to_vector<double>();
      REQUIRE(values.size() == want.size());
      // Ten roundings of sums, root and products, on either side.
      for (std::size_t i = 0; i < want.size(); ++i)
        CHECK(std::abs(values[i] - want[i]) <= 10 * epsilon(e.dtype) * std::abs(want[i]));
    };
    const Tensor y = rms_norm(x, w);
    check(y, e.y);
    check(grad(Tensors{sum(y)}, Tensors{x})[0], e.gradient);
    check(add_rms_norm(half, half, w).normed, e.y);
  }
}

}  // namespace levin::testing
