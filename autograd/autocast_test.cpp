#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <string>

#include "levin/autograd.h"
#include "levin/nn.h"
#include "levin/ops.h"
#include "levin/stream.h"
#include "tests/device.h"
#include "tests/skip.h"

namespace levin {
namespace {

const Device cpu = Device::cpu();

Tensor ramp(const Shape& shape, DType dtype = DType::f32) {
  return reshape(linspace(-1, 1, shape.numel(), cpu, DType::f64), Dims(shape.dims())).to(dtype);
}
Tensor parameter(const Shape& shape) {
  Tensor t = ramp(shape);
  t.requires_grad_();
  return t;
}

}  // namespace

namespace {
// The names of all nodes that a gradient of y passes.
std::set<std::string> names_of(const Tensor& y) {
  std::set<std::string> names;
  std::vector<Node*> stack{edge_of(y).node.get()};
  while (!stack.empty()) {
    Node* const n = stack.back();
    stack.pop_back();
    if (n->kind() == Node::Kind::op) names.insert(n->info().name);
    for (const Edge& e : n->edges())
      if (e.node) stack.push_back(e.node.get());
  }
  return names;
}
}  // namespace

TEST_CASE("autocast runs each op in the dtype of its policy") {
  const Tensor a = ramp({4, 4}), half = a.to(DType::bf16), wide = a.to(DType::f64);
  {
    const Autocast on(DType::bf16);
    CHECK(autocast_dtype() == DType::bf16);
    CHECK(matmul(a, a).dtype() == DType::bf16);
    CHECK(linear(a, a, ramp({4})).dtype() == DType::bf16);
    CHECK(matmul(half, a).dtype() == DType::bf16);
    CHECK(matmul(wide, wide).dtype() == DType::f64);
    CHECK(softmax(half, 1).dtype() == DType::f32);
    CHECK(sum(half).dtype() == DType::f32);
    CHECK(exp(half).dtype() == DType::f32);
    CHECK(layer_norm(half, ramp({4}), ramp({4})).dtype() == DType::f32);
    CHECK(mse_loss(half, a).dtype() == DType::f32);
    CHECK((half + a).dtype() == DType::f32);
    CHECK((half + half).dtype() == DType::bf16);
    CHECK((half * 2).dtype() == DType::bf16);
    CHECK(cat(Tensors{half, a}, 0).dtype() == DType::f32);
    CHECK(relu(half).dtype() == DType::bf16);
    CHECK(relu(a).dtype() == DType::f32);
    CHECK(gt(a, half).dtype() == DType::b8);
    CHECK(cast(a, DType::f16).dtype() == DType::f16);
    CHECK(arange(3, cpu, DType::i64).dtype() == DType::i64);
    CHECK_THROWS_AS((void)matmul(wide, a), DTypeError);
  }
  CHECK(autocast_dtype() == DType::f32);
  CHECK(matmul(a, a).dtype() == DType::f32);
  CHECK_THROWS_AS((void)(half + a), DTypeError);
  CHECK_THROWS_AS((void)matmul(half, a), DTypeError);
  CHECK_THROWS_AS(Autocast(DType::f32), DTypeError);
}

TEST_CASE("autocast scopes nest and can be switched off inside") {
  const Tensor a = ramp({2, 2});
  const Autocast outer(DType::bf16);
  {
    const Autocast inner(DType::f16);
    CHECK(matmul(a, a).dtype() == DType::f16);
    const Autocast off = Autocast::off();
    CHECK(matmul(a, a).dtype() == DType::f32);
    {
      const Autocast again(DType::f16);
      CHECK(matmul(a, a).dtype() == DType::f16);
    }
    CHECK(matmul(a, a).dtype() == DType::f32);
  }
  CHECK(matmul(a, a).dtype() == DType::bf16);
}

TEST_CASE("under autocast f32 parameters get f32 gradients, near those of f32") {
  Tensor w = parameter({3, 4});
  const Tensor x = ramp({5, 4});
  const auto loss_of = [&] { return mse_loss(relu(linear(x, w)), ramp({5, 3})); };
  backward(loss_of());
  const auto want = w.grad().to_vector<float>();
  w.set_grad({});
  Tensor loss;
  {
    const Autocast on(DType::bf16);
    loss = loss_of();
    CHECK(loss.dtype() == DType::f32);
  }
  backward(loss);
  CHECK(w.grad().dtype() == DType::f32);
  const auto got = w.grad().to_vector<float>();
  float largest = 0;
  for (const float v : want) largest = std::max(largest, std::abs(v));
  // Three roundings to bf16 on the way, and sums of 15 terms.
  for (std::size_t i = 0; i < got.size(); ++i)
    CHECK(std::abs(got[i] - want[i]) <= 4 * std::sqrt(15.0) * epsilon(DType::bf16) * largest);
}

TEST_CASE("a parameter is cast once in a scope, again once it is written, and never without its graph") {
  Tensor w = parameter({2, 2});
  const Tensor x = ramp({2, 2});
  const auto cast_node = [](const Tensor& y) {  // the producer of matmul's second input
    return edge_of(y).node->edges()[1].node.get();
  };
  const Autocast on(DType::bf16);
  Tensor frozen;
  {
    const NoGrad off;
    frozen = matmul(x, w);  // this cast has no graph
  }
  const Tensor first = matmul(x, w), second = matmul(x, w);
  CHECK(first.requires_grad());
  CHECK(cast_node(first) == cast_node(second));
  {
    const NoGrad off;
    fill_(w, 3);
  }
  const Tensor third = matmul(x, w);
  CHECK(cast_node(third) != cast_node(first));
  CHECK(third.to(DType::f32).to_vector<float>() == matmul(x, full({2, 2}, 3, cpu)).to(DType::f32).to_vector<float>());
}

TEST_CASE("on a device a step with a plan casts the parameters of the step before together, with the same values") {
  DEVICE_OR_SKIP();
  Tensor w = parameter({4, 6}), v = parameter({3, 4});
  const auto leaf = [&](const Tensor& t) {
    Tensor on = t.detach().to(device).detach();
    on.requires_grad_();
    return on;
  };
  const Tensor a = leaf(w), b = leaf(v), x = (ramp({5, 6}) + 2).to(device);
  const auto loss = [&] { return sum(linear(linear(x, a, {}), b, {})); };
  const auto step = [&](CastPlan* plan) {
    Tensor y;
    {
      std::optional<Autocast> on;
      if (plan)
        on.emplace(DType::bf16, *plan);
      else
        on.emplace(DType::bf16);
      y = loss();
    }
    const std::set<std::string> names = names_of(y);
    Tensors all = grad(Tensors{y}, Tensors{a, b}, {});
    all.push_back(y.detach());
    return std::pair(std::move(all), names.count("cast_all"));
  };
  const auto [want, none] = step(nullptr);
  CHECK(none == 0);
  CastPlan plan;
  for (const std::size_t together : {0, 1, 1}) {
    const auto [got, casts_together] = step(&plan);
    CHECK(casts_together == together);
    for (std::size_t i = 0; i < want.size(); ++i) {
      CHECK(got[i].dtype() == want[i].dtype());
      CHECK(got[i].to(cpu).to(DType::f32).to_vector<float>() == want[i].to(cpu).to(DType::f32).to_vector<float>());
    }
  }
  {  // a parameter that is written within the guard is cast anew
    const Autocast on(DType::bf16, plan);
    const Tensor before = loss().detach();
    {
      const NoGrad off;
      Tensor written = a;
      fill_(written, 0);
    }
    CHECK(before.to(cpu).item() != 0);
    CHECK(loss().to(cpu).item() == 0);
  }
}

TEST_CASE("on a device, parameters cast together get gradients as parameters cast one by one do") {
  DEVICE_OR_SKIP();
  const auto leaf = [&](Shape shape) {
    Tensor on = (ramp(std::move(shape)) + 2).to(device).detach();
    on.requires_grad_();
    return on;
  };
  Tensor a = leaf({4, 6}), b = leaf({3, 6});
  const Tensor x = ramp({5, 6}).to(device);
  CastPlan plan;
  {
    const Autocast on(DType::bf16, plan);
    (void)linear(x, a, {});
    (void)linear(x, b, {});
  }
  SUBCASE("none where the loss does not reach them") {
    Tensor loss;
    {
      const Autocast on(DType::bf16, plan);
      loss = sum(linear(x, a, {}));
    }
    backward(loss);
    CHECK(names_of(loss).count("cast_all") == 1);
    CHECK(a.grad().defined());
    CHECK_FALSE(b.grad().defined());
  }
  SUBCASE("in a backward pass of each loss") {
    Tensor first, second;
    {
      const Autocast on(DType::bf16, plan);
      first = sum(linear(x, a, {}));
      second = sum(linear(x, b, {}));
    }
    backward(first);
    CHECK_FALSE(b.grad().defined());
    backward(second);
    CHECK(b.grad().defined());
    CHECK(b.grad().dtype() == DType::f32);
  }
}

TEST_CASE("a checkpointed region is recomputed under the autocast it ran under") {
  Tensor w = parameter({4, 4});
  const Tensor x = ramp({3, 4});
  const auto region = [&](std::span<const Tensor> in) { return Tensors{relu(matmul(in[0], w))}; };
  Tensor plain, kept;
  {
    const Autocast on(DType::bf16);
    const Tensor warm = matmul(x, w);  // its cast is cached: the region must not use the cache
    plain = sum(region(std::array{x})[0]);
    kept = sum(checkpoint(region, std::array{x})[0]);
    CHECK(kept.dtype() == DType::f32);
  }
  backward(plain);
  const auto want = w.grad().to_vector<float>();
  w.set_grad({});
  backward(kept);
  CHECK(w.grad().to_vector<float>() == want);
}

TEST_CASE("layers run under autocast: products in bf16, norms and losses in f32") {
  struct Net : nn::Module {
    using Module::Module;
    nn::Linear fc{*this, "fc", {.in = 4, .out = 3}};
    nn::LayerNorm norm{*this, "norm", {.shape = {3}}};
    nn::LSTM lstm{*this, "lstm", {.in = 4, .hidden = 5}};
  };
  Generator gen(3);
  Net net({.gen = gen, .device = cpu});
  const Autocast on(DType::bf16);
  const Tensor y = net.fc(ramp({2, 4}));
  CHECK(y.dtype() == DType::bf16);
  CHECK(net.norm(y).dtype() == DType::f32);
  CHECK(cross_entropy(y, tensor<std::int64_t>({0, 2}, cpu)).dtype() == DType::f32);
  const Tensor states = net.lstm(ramp({6, 2, 4})).y;
  CHECK(states.shape() == Shape{6, 2, 5});
  backward(sum(states) + sum(net.norm(y)));
  CHECK(net.fc.weight.grad().dtype() == DType::f32);
}

// ---- Ops whose kernels read 16 bits where the result is f32.

namespace {

struct FullResult {
  std::string name;
  std::function<Tensor(const Tensor& x, const Tensor& w, const Tensor& b)> f;  // x [rows, cols], w and b [cols] of f32
  bool same_sums = true;                                                       // in the order of the f32 kernel
};
std::vector<FullResult> full_results(std::int64_t rows, std::int64_t cols, Device device) {
  std::vector<std::int64_t> classes;
  for (std::int64_t r = 0; r < rows; ++r) classes.push_back(r % 4 == 3 ? -100 : r * 7919 % cols);
  const Tensor target = from_data(classes, {rows}, Device::cpu()).to(device);
  const auto loss = [=](Reduction reduction, double smoothing, bool weighted) {
    return [=](const Tensor& x, const Tensor& w, const Tensor&) {
      const Tensor weight = weighted ? abs(w.detach()) + 1 : Tensor();
      return cross_entropy(x, target, {.weight = weight, .label_smoothing = smoothing, .reduction = reduction});
    };
  };
  using T = const Tensor&;
  return {{"softmax of rows", [](T x, T, T) { return softmax(x, 1); }},
          {"softmax of columns", [](T x, T, T) { return softmax(x, 0); }},
          {"log_softmax of rows", [](T x, T, T) { return log_softmax(x, 1); }},
          {"log_softmax of columns", [](T x, T, T) { return log_softmax(x, 0); }},
          {"layer_norm", [](T x, T w, T b) { return layer_norm(x, w, b); }},
          {"rms_norm", [](T x, T w, T) { return rms_norm(x, w); }},
          {"group_norm of columns", [](T x, T w, T b) { return group_norm(x, 1, w, b); }},
          {"cross_entropy, mean", loss(Reduction::mean, 0, false), false},
          {"cross_entropy, none", loss(Reduction::none, 0, true), false},
          {"cross_entropy, smoothed", loss(Reduction::sum, 0.1, true), false},
          {"sum of all", [](T x, T, T) { return sum(x); }, false},
          {"sum of rows", [](T x, T, T) { return sum(x, 1); }, false},
          {"mean of columns", [](T x, T, T) { return mean(x, 0); }, false}};
}

// The result, the gradients of x, w and b, and the second derivative of a sum over x's gradient.
Tensors all_orders(const FullResult& op, const Tensors& in, bool cast_by_hand) {
  Tensors leaves;
  for (const Tensor& t : in) leaves.push_back(t.detach()), leaves.back().requires_grad_();
  Tensor y;
  if (cast_by_hand) {
    y = op.f(cast(leaves[0], DType::f32), leaves[1], leaves[2]);
  } else {
    const Autocast on(DType::bf16);
    y = op.f(leaves[0], leaves[1], leaves[2]);
  }
  const auto seed_like = [](const Tensor& t) {
    return reshape(linspace(-1, 2, t.numel(), Device::cpu(), DType::f64), Dims(t.shape().dims()))
        .to(t.dtype())
        .to(t.device());
  };
  Tensors all{y};
  const Tensors first = grad(Tensors{y}, leaves, Tensors{seed_like(y)}, {.create_graph = true, .allow_unused = true});
  all.insert(all.end(), first.begin(), first.end());
  if (first[0].requires_grad())
    all.push_back(grad(Tensors{first[0]}, Tensors{leaves[0]}, Tensors{seed_like(first[0])}, {.allow_unused = true})[0]);
  for (Tensor& t : all)
    if (t.defined()) t = t.detach().to(Device::cpu());
  return all;
}

void check_as_cast_by_hand(Device device) {
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const Shape& shape : {Shape{6, 40}, Shape{5, 37}, Shape{3, 1100}})
      for (const FullResult& op : full_results(shape[0], shape[1], device)) {
        CAPTURE(op.name);
        CAPTURE(text(dtype));
        CAPTURE(text(shape));
        Generator g(5);
        const std::int64_t cols = shape[1];
        const Tensors in{randn(shape, g, Device::cpu(), DType::f32).to(dtype).to(device),
                         randn({cols}, g, Device::cpu(), DType::f32).to(device),
                         randn({cols}, g, Device::cpu(), DType::f32).to(device)};
        const Tensors got = all_orders(op, in, false), want = all_orders(op, in, true);
        REQUIRE(got.size() == want.size());
        CHECK(got[0].dtype() == DType::f32);
        for (std::size_t k = 0; k < got.size(); ++k) {
          CAPTURE(k);
          REQUIRE(got[k].defined() == want[k].defined());
          if (!got[k].defined()) continue;
          REQUIRE(got[k].dtype() == want[k].dtype());
          if (op.same_sums) {
            CHECK(equal(got[k], want[k]));
            continue;
          }
          // Sums of a row of f32 numbers in two orders and, where the gradient has 16 bits, one rounding on either
          // side.
          const double scale = amax(abs(want[k].to(DType::f64))).item(),
                       error = amax(abs(got[k].to(DType::f64) - want[k].to(DType::f64))).item();
          const double rounding = got[k].dtype() == DType::f32 ? 0 : epsilon(got[k].dtype());
          CHECK(error <= (rounding + 4 * std::sqrt(double(cols)) * epsilon(DType::f32)) * scale);
        }
      }
}

}  // namespace

TEST_CASE(
    "under autocast softmax, norms, sums and cross-entropy of 16 bits give what a cast by hand gives, to the second "
    "order") {
  check_as_cast_by_hand(cpu);
}
TEST_CASE("on a device under autocast softmax, norms, sums and cross-entropy give what a cast by hand gives") {
  DEVICE_OR_SKIP();
  check_as_cast_by_hand(device);
}

TEST_CASE("under autocast no cast stands before an op that reads 16 bits itself") {
  Tensor x = ramp({4, 6}, DType::bf16), w = parameter({6}), b = parameter({6});
  x.requires_grad_();
  for (const FullResult& op : full_results(4, 6, cpu)) {
    CAPTURE(op.name);
    const Autocast on(DType::bf16);
    CHECK(names_of(op.f(relu(x), w, b)).count("cast") == 0);
    CHECK(names_of(exp(relu(x))).count("cast") == 1);  // shows that names_of finds a cast where there is one
  }
}

TEST_CASE("a step of cross-entropy under autocast keeps 16-bit logits alone, and its peak is their gradient") {
  const std::int64_t rows = 64, classes = 4096, bytes = rows * classes * 2;
  Tensor x = ramp({rows, classes}, DType::bf16);
  x.requires_grad_();
  const Tensor target = zeros({rows}, cpu, DType::i64);
  const auto step = [&](bool cast_by_hand) {
    const std::int64_t before = memory_stats(cpu).in_use;
    reset_peak_memory(cpu);
    Tensor loss;
    if (cast_by_hand) {
      loss = cross_entropy(cast(x, DType::f32), target);
    } else {
      const Autocast on(DType::bf16);
      loss = cross_entropy(x, target);
    }
    const std::int64_t kept = memory_stats(cpu).in_use - before;
    const Tensors g = grad(Tensors{loss}, Tensors{x}, {});
    return std::pair(kept, memory_stats(cpu).peak - before);
  };
  const auto [kept, peak] = step(false);
  const auto [kept_by_hand, peak_by_hand] = step(true);
  const std::int64_t some = 64 * rows;  // the statistics of rows and the loss
  CHECK(kept <= some);
  CHECK(peak <= bytes + some);
  CHECK(kept_by_hand >= 2 * bytes);
  CHECK(peak_by_hand >= 4 * bytes);
}

}  // namespace levin
