#include <doctest/doctest.h>

#include <cmath>

#include "levin/autograd.h"
#include "levin/nn.h"
#include "levin/ops.h"

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

TEST_CASE("a checkpointed region is recomputed under the autocast it ran under") {
  Tensor w = parameter({4, 4});
  const Tensor x = ramp({3, 4});
  const auto region = [&](std::span<const Tensor> in) { return Tensors{relu(matmul(in[0], w))}; };
  Tensor plain, kept;
  {
    const Autocast on(DType::bf16);
    const Tensor warm = matmul(x, w);  // its cast is cached: the region must not take it
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

}  // namespace levin
