// Samples of lstm_layer for the conformance suite.
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "levin/autograd.h"
#include "levin/ops.h"
#include "tests/ops/samples.h"

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();

// The definition, step by step.
Tensors by_steps(const Tensors& in, bool reverse) {
  const std::int64_t steps = in[0].size(0);
  Tensors y(static_cast<std::size_t>(steps));
  LstmCellState state{in[1], in[2]};
  for (std::int64_t i = 0; i < steps; ++i) {
    const std::int64_t t = reverse ? steps - 1 - i : i;
    Tensor gates = matmul(select(in[0], 0, t), transpose(in[3], 0, 1)) + matmul(state.h, transpose(in[4], 0, 1));
    if (in[5].defined()) gates = gates + in[5];
    state = lstm_cell(gates, state.c);
    y[static_cast<std::size_t>(t)] = state.h;
  }
  return {stack(y, 0), state.c};
}

}  // namespace

LEVIN_OP_CASE(lstm_layer) {
  OpCase c{.ops = {"lstm_layer", "lstm_layer_backward"},
           .dtypes = kFloatDTypes,
           .ulps = 8,
           .sums = 20,
           .layout_changes_sums = true};
  struct Sizes {
    std::int64_t steps, n, in, hidden;
  };
  for (const Sizes& s : {Sizes{1, 1, 1, 1}, {3, 2, 3, 2}, {4, 1, 2, 3}, {2, 0, 2, 2}, {2, 2, 0, 1}, {2, 2, 2, 0}}) {
    for (const bool reverse : {false, true}) {
      c.samples.push_back(
          {.inputs = {real({s.steps, s.n, s.in}), real({s.n, s.hidden}), real({s.n, s.hidden}),
                      real({4 * s.hidden, s.in}), real({4 * s.hidden, s.hidden}), optional(real({4 * s.hidden}))},
           .call =
               [reverse](const Tensors& in) {
                 const LstmLayerOutput y = lstm_layer(in[0], {in[1], in[2]}, {in[3], in[4], in[5]}, reverse);
                 return Tensors{y.y, y.c};
               },
           .reference = [reverse](const Tensors& in) { return by_steps(in, reverse); }});
    }
  }
  c.no_single = "weights are of four gates";
  const auto call = [](const Shape& x, const Shape& h, const Shape& ih, const Shape& hh, const Shape& bias) {
    (void)lstm_layer(zeros(x, cpu), {zeros(h, cpu), zeros(h, cpu)}, {zeros(ih, cpu), zeros(hh, cpu), zeros(bias, cpu)});
  };
  const auto refuses = [&](const char* what, auto wrong, const char* text) {
    c.errors.push_back({what, wrong, throws<ShapeError>, text});
  };
  refuses(
      "no steps",
      [=] {
        call({0, 1, 2}, {1, 2}, {8, 2}, {8, 2}, {8});
      },
      "lstm_layer: x has shape [0, 1, 2]");
  refuses(
      "h",
      [=] {
        call({3, 1, 2}, {2, 2}, {8, 2}, {8, 2}, {8});
      },
      "lstm_layer: h has shape [2, 2], expected [1, 2]");
  refuses(
      "ih",
      [=] {
        call({3, 1, 2}, {1, 2}, {8, 3}, {8, 2}, {8});
      },
      "lstm_layer: the weight ih has shape [8, 3], expected [8, 2]");
  refuses(
      "hh",
      [=] {
        call({3, 1, 2}, {1, 2}, {8, 2}, {6, 2}, {8});
      },
      "lstm_layer: the weight hh has shape [6, 2]");
  refuses(
      "bias",
      [=] {
        call({3, 1, 2}, {1, 2}, {8, 2}, {8, 2}, {4});
      },
      "lstm_layer: the bias has shape [4]");
  return c;
}

TEST_CASE("a layer of an LSTM has the gradients of its steps, for each set of inputs that want one") {
  Generator generator(4);
  const std::vector<Shape> shapes{{5, 3, 4}, {3, 2}, {3, 2}, {8, 4}, {8, 2}, {8}};
  Tensors in;
  for (const Shape& s : shapes) in.push_back(randn(s, generator, cpu, DType::f64));
  const Tensor seed_y = randn({5, 3, 2}, generator, cpu, DType::f64),
               seed_c = randn({3, 2}, generator, cpu, DType::f64);
  for (unsigned wanted = 1; wanted < 64; ++wanted) {
    Tensors leaves;
    for (std::size_t i = 0; i < in.size(); ++i) {
      in[i] = in[i].detach();
      if ((wanted >> i & 1u) != 0) leaves.push_back(in[i].requires_grad_());
    }
    for (const bool reverse : {false, true}) {
      const LstmLayerOutput y = lstm_layer(in[0], {in[1], in[2]}, {in[3], in[4], in[5]}, reverse);
      const Tensors want = by_steps(in, reverse);
      const Tensors seeds{seed_y, seed_c};
      const Tensors got = grad(Tensors{y.y, y.c}, leaves, seeds), expected = grad(want, leaves, seeds);
      for (std::size_t i = 0; i < got.size(); ++i) CHECK(allclose(got[i], expected[i], 1e-11, 1e-12));
    }
  }
}

TEST_CASE("a layer of an LSTM of more sequences than 16 has the gradients of its steps") {
  Generator generator(4);
  constexpr std::int64_t kSteps = 4, kN = 45, kIn = 5;
  for (const DType dtype : {DType::f64, DType::f32})
    for (const std::int64_t hidden : {128, 32, 3})  // panels both ways, forward, and none; rows of 128 are padded
      for (const bool reverse : {false, true}) {
        Tensors in;
        for (const Shape& s : {Shape{kSteps, kN, kIn}, Shape{kN, hidden}, Shape{kN, hidden}, Shape{4 * hidden, kIn},
                               Shape{4 * hidden, hidden}, Shape{4 * hidden}})
          in.push_back(randn(s, generator, cpu, dtype).requires_grad_());
        const Tensor of_step = randn({kN, hidden}, generator, cpu, dtype);
        const Tensors seeds{expand(unsqueeze(of_step, 0), {kSteps, kN, hidden}), of_step.clone()};
        const LstmLayerOutput y = lstm_layer(in[0], {in[1], in[2]}, {in[3], in[4], in[5]}, reverse);
        const Tensors want = by_steps(in, reverse);
        const double tolerance = dtype == DType::f64 ? 1e-11 : 1e-4;
        CHECK(allclose(y.y, want[0], tolerance, tolerance));
        CHECK(allclose(y.c, want[1], tolerance, tolerance));
        const Tensors got = grad(Tensors{y.y, y.c}, in, seeds), expected = grad(want, in, seeds);
        for (std::size_t i = 0; i < got.size(); ++i) CHECK(allclose(got[i], expected[i], tolerance, 10 * tolerance));
        CHECK(equal(of_step, seeds[1]));  // the gradient given is only read
      }
}

TEST_CASE("under autocast a layer of an LSTM multiplies in 16 bits and keeps its state in f32") {
  Generator generator(4);
  const Tensor x = randn({3, 2, 4}, generator, cpu), h = randn({2, 5}, generator, cpu),
               ih = randn({20, 4}, generator, cpu), hh = randn({20, 5}, generator, cpu);
  const Autocast on(DType::bf16);
  const LstmLayerOutput y = lstm_layer(x, {h, h}, {ih, hh, {}});
  CHECK(y.y.dtype() == DType::f32);
  CHECK(y.c.dtype() == DType::f32);
  LstmCellState state{h, h};
  for (std::int64_t t = 0; t < 3; ++t) {
    state = lstm_cell(linear(select(x, 0, t), ih, {}) + linear(state.h, hh, {}), state.c);
    CHECK(equal(select(y.y, 0, t), state.h));
  }
  CHECK(equal(y.c, state.c));
}

}  // namespace levin::testing
