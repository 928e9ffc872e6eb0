// A layer of an LSTM as one op: the gradients of its weights are products over all steps at once.
#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "autograd/autocast.h"
#include "autograd/home.h"
#include "autograd/op_table.h"
#include "autograd/ops/pointwise/lstm_cell.h"
#include "autograd/ops/products/backward_parts.h"
#include "autograd/ops/products/repeated_factor.h"
#include "levin/autograd.h"
#include "levin/ops.h"

namespace levin {
namespace {

// In the order of the op's inputs.
enum Input : std::size_t { kX, kH, kC, kIh, kHh, kBias, kInputs };
using Inputs = std::array<Tensor, kInputs>;

// The steps one by one, in the order of time or against it.
struct Walk {
  std::int64_t steps;
  bool reverse;
  [[nodiscard]] std::int64_t at(std::int64_t i) const { return reverse ? steps - 1 - i : i; }
};

Tensor rows_of(const Tensor& x) { return reshape(x, {x.size(0) * x.size(1), x.size(2)}); }

// Rows that products on CPUs read as they lie: numbers at the same place of rows a multiple of 1,024 bytes apart share
// few sets of a cache.
Tensor empty_rows(const Shape& shape, Device device, DType dtype) {
  constexpr std::int64_t kLine = 64, kApart = 1024;
  const auto size = static_cast<std::int64_t>(itemsize(dtype));
  const std::int64_t numbers = shape.back();
  if (!device.is_cpu() || numbers * size % kApart != 0) return empty(shape, device, dtype);
  return narrow(empty(shape.with(shape.rank() - 1, numbers + kLine / size), device, dtype), -1, 0, numbers);
}

// The composite twin.
std::array<Tensor, 2> layer_by_steps(const Inputs& in, bool reverse) {
  const Walk walk{in[kX].size(0), reverse};
  const Tensors gates = unbind(linear(in[kX], in[kIh], in[kBias]), 0);
  Tensors y(gates.size());
  Tensor h = in[kH], c = in[kC];
  for (std::int64_t i = 0; i < walk.steps; ++i) {
    const auto step = static_cast<std::size_t>(walk.at(i));
    const LstmCellState next = lstm_cell(gates[step] + matmul(h, t(in[kHh])), c);
    y[step] = h = next.h;
    c = next.c;
  }
  return {stack(y, 0), c};
}
// Its gradients, as a function that has derivatives.
Grads<kInputs> slope_by_steps(const Tensor& gy, const Tensor& gc, const Inputs& in, bool reverse, NeedMask need) {
  return vjp<kInputs>([&](const auto& of) { return layer_by_steps(of, reverse); }, in, std::array{gy, gc}, need);
}

// What the steps left behind: gates [L, N, 4 hidden], and of each step the c that it came to.
struct Trace {
  Tensor gates{}, y{};
  Tensors c{};
};

struct LstmLayerBackward {
  static constexpr OpInfo info{.name = "lstm_layer_backward"};
  bool reverse;
  NeedMask need;
  Trace trace;
  Tensor home_ih{}, home_hh{};  // for the gradients of the weights, during forward only
  std::array<SavedInput, 2 + kInputs> saved{};

  template <class... T>
  std::array<Tensor, kInputs> forward(const Tensor& gy, const Tensor& gc, const T&... inputs) {
    saved = {};
    std::size_t k = 0;
    for (const Tensor* t : {&gy, &gc, &inputs...}) saved[k++] = *t;
    const Inputs in{inputs...};
    const Walk walk{in[kX].size(0), reverse};
    const Tensor g_gates = empty_rows(trace.gates.shape(), gy.device(), gy.dtype());
    const RepeatedFactor across(in[kHh], in[kH].size(0), g_gates.stride(1), walk.steps - 1);
    // The gradient of each step's h, as the steps after it add to gy.
    Tensor gh = empty(gy.shape(), gy.device(), gy.dtype()), g_c = gc;
    copy_(gh, gy);
    for (std::int64_t i = walk.steps - 1; i >= 0; --i) {
      const std::int64_t step = walk.at(i);
      const Tensor& before = i == 0 ? in[kC] : trace.c[static_cast<std::size_t>(i - 1)];
      const Tensor of_step = select(g_gates, 0, step);
      g_c = lstm_cell_backward_into(of_step, select(gh, 0, step), g_c, select(trace.gates, 0, step), before,
                                    trace.c[static_cast<std::size_t>(i)]);
      if (i > 0) across.add_product_to(select(gh, 0, walk.at(i - 1)), of_step);
    }
    gh = {};
    const Tensor all = rows_of(g_gates);
    std::array<Tensor, kInputs> g;
    if (need[kX]) g[kX] = reshape(matmul(all, in[kIh]), Dims(in[kX].shape().dims()));
    if (need[kH]) g[kH] = matmul(select(g_gates, 0, walk.at(0)), in[kHh]);
    if (need[kC]) g[kC] = g_c;
    std::array<Tensor, 2> parameters = linear_parameters_backward(all, rows_of(in[kX]), need_of(need[kIh], need[kBias]),
                                                                  std::exchange(home_ih, Tensor()));
    g[kIh] = std::move(parameters[0]);
    g[kBias] = std::move(parameters[1]);
    if (need[kHh]) g[kHh] = matmul_into(std::exchange(home_hh, Tensor()), t(all), rows_of(states_before(in[kH])));
    return g;
  }
  // h that entered each step, in the order of time.
  [[nodiscard]] Tensor states_before(const Tensor& first) const {
    const std::int64_t more = trace.y.size(0) - 1;
    const Tensor rest = narrow(trace.y, 0, reverse ? 1 : 0, more), one = unsqueeze(first, 0);
    return reverse ? cat({rest, one}, 0) : cat({one, rest}, 0);
  }
  Grads<2 + kInputs> backward(const Tensor& g0, const Tensor& g1, const Tensor& g2, const Tensor& g3, const Tensor& g4,
                              const Tensor& g5, NeedMask wanted) {
    std::array<Tensor, 2 + kInputs> inputs;
    for (std::size_t k = 0; k < inputs.size(); ++k) inputs[k] = saved[k].get();
    const auto slope = [&](const auto& of) {
      Inputs in;
      std::copy(of.begin() + 2, of.end(), in.begin());
      return slope_by_steps(of[0], of[1], in, reverse, need);
    };
    return vjp<2 + kInputs>(slope, inputs, std::array{g0, g1, g2, g3, g4, g5}, wanted);
  }
};
LEVIN_OP_TABLE(LstmLayerBackward)

struct LstmLayer {
  static constexpr OpInfo info{.name = "lstm_layer"};
  bool reverse;
  std::array<SavedInput, kInputs> saved{};
  SavedOutput y{};
  Trace trace{};

  template <class... T>
  std::array<Tensor, 2> forward(const T&... inputs) {
    std::size_t k = 0;
    for (const Tensor* t : {&inputs...}) saved[k++] = *t;
    const Inputs in{inputs...};
    const Walk walk{in[kX].size(0), reverse};
    const std::int64_t n = in[kH].size(0), hidden = in[kH].size(1);
    trace.gates = linear(in[kX], in[kIh], in[kBias]);
    const Tensor states = empty({walk.steps, n, hidden}, in[kX].device(), in[kX].dtype());
    const RepeatedFactor across(t(in[kHh]), n, hidden, walk.steps);
    Tensor h = in[kH], c = in[kC];
    for (std::int64_t i = 0; i < walk.steps; ++i) {
      const std::int64_t step = walk.at(i);
      const Tensor gates = select(trace.gates, 0, step);
      across.add_product_to(gates, h);
      h = select(states, 0, step);
      c = lstm_cell_into(h, gates, c);
      trace.c.push_back(c.detach());  // the last one is a result, and would keep the op with its history
    }
    y = states;
    return {states, c};
  }
  auto saved_outputs() { return std::tie(y); }
  Grads<kInputs> backward(const Tensor& gy, const Tensor& gc, NeedMask need) {
    trace.y = y.get().detach();
    LstmLayerBackward op{.reverse = reverse, .need = need, .trace = trace};
    if (need[kIh]) op.home_ih = detail::birth_place(kIh);
    if (need[kHh]) op.home_hh = detail::birth_place(kHh);
    return apply(std::move(op), gy, gc, saved[kX].get(), saved[kH].get(), saved[kC].get(), saved[kIh].get(),
                 saved[kHh].get(), saved[kBias].get());
  }
};
LEVIN_OP_TABLE(LstmLayer)

void check_shape(const char* op, const char* name, const Tensor& x, const Shape& shape) {
  if (x.shape() != shape) fail<ShapeError>(op, ": ", name, " has shape ", x.shape(), ", expected ", shape);
}

}  // namespace

LstmLayerOutput lstm_layer(const Tensor& x, const LstmCellState& state, const LstmWeights& w, bool reverse) {
  constexpr const char* op = "lstm_layer";
  for (const Tensor& other : {state.h, state.c, w.ih, w.hh}) {
    check_dtypes_meet(op, x, other);
    check_same_device(op, x, other);
  }
  if (x.rank() != 3 || x.size(0) == 0)
    fail<ShapeError>(op, ": x has shape ", x.shape(), ", expected [L, N, in] with a step or more");
  if (state.h.rank() != 2) fail<ShapeError>(op, ": h has shape ", state.h.shape(), ", expected [N, hidden]");
  const std::int64_t n = x.size(1), hidden = state.h.size(1);
  check_shape(op, "h", state.h, {n, hidden});
  check_shape(op, "c", state.c, {n, hidden});
  check_shape(op, "the weight ih", w.ih, {4 * hidden, x.size(2)});
  check_shape(op, "the weight hh", w.hh, {4 * hidden, hidden});
  if (w.bias.defined()) {
    check_dtypes_meet(op, x, w.bias);
    check_same_device(op, x, w.bias);
    check_shape(op, "the bias", w.bias, {4 * hidden});
  }
  // Under autocast each product and each step is cast by its own rule.
  auto [y, c] = detail::mode().autocast ? layer_by_steps({x, state.h, state.c, w.ih, w.hh, w.bias}, reverse)
                                        : apply(LstmLayer{.reverse = reverse}, x, state.h, state.c, w.ih, w.hh, w.bias);
  return {y, c};
}

}  // namespace levin
