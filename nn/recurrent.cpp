#include "levin/nn/recurrent.h"

#include <algorithm>
#include <array>
#include <string>

#include "levin/nn/call.h"
#include "levin/ops.h"
#include "nn/options.h"

namespace levin::nn {
namespace {

CellOptions checked(const char* layer, const CellOptions& o) {
  check_size(layer, "in", o.in);
  check_size(layer, "hidden", o.hidden);
  return o;
}

RecurrentOptions checked(const char* layer, const RecurrentOptions& o) {
  check_size(layer, "in", o.in);
  check_size(layer, "hidden", o.hidden);
  check_at_least(layer, "num_layers", o.num_layers, 1);
  check_probability(layer, "dropout", o.dropout);
  if (o.dropout > 0 && o.num_layers == 1) {
    fail<ConfigError>(layer, ": dropout is ", o.dropout,
                      " with one layer, expected 0: it acts between layers; use nn::Dropout on the output");
  }
  return o;
}

// gates_x, gates_h: [N, 4 hidden], bias included.
LSTMState lstm_step(const Tensor& gates_x, const Tensor& gates_h, const Tensor& c) {
  const Tensors g = chunk(gates_x + gates_h, 4, 1);
  Tensor next = sigmoid(g[1]) * c + sigmoid(g[0]) * tanh(g[2]);
  return {sigmoid(g[3]) * tanh(next), next};
}

// gates_x, gates_h: [N, 3 hidden]; the gate r acts on the recurrent part of n alone.
Tensor gru_step(const Tensor& gates_x, const Tensor& gates_h, const Tensor& h) {
  const Tensors x = chunk(gates_x, 3, 1), u = chunk(gates_h, 3, 1);
  const Tensor r = sigmoid(x[0] + u[0]), z = sigmoid(x[1] + u[1]);
  const Tensor n = tanh(x[2] + r * u[2]);
  return n + z * (h - n);
}

void check_cell_input(const char* layer, const Tensor& x, std::int64_t in) {
  if (x.rank() != 2 || x.size(1) != in) {
    fail<ShapeError>(layer, ": x has shape ", x.shape(), ", expected [N, ", in, "]");
  }
}
// The state given, or zeros.
Tensor state_or_zeros(const char* layer, const char* name, const Tensor& state, const Shape& shape, const Tensor& x) {
  if (!state.defined()) return zeros(shape, x.device(), x.dtype());
  if (state.shape() != shape) fail<ShapeError>(layer, ": ", name, " has shape ", state.shape(), ", expected ", shape);
  return state;
}

}  // namespace

LSTMCell::LSTMCell(Module& parent, std::string_view name, Options given)
    : Module(parent, name),
      options(checked("LSTMCell", given)),
      weight_ih(*this, "weight_ih", {4 * options.hidden, options.in}, uniform_by_fan(options.hidden)),
      weight_hh(*this, "weight_hh", {4 * options.hidden, options.hidden}, uniform_by_fan(options.hidden)),
      bias_ih(options.bias ? Parameter(*this, "bias_ih", {4 * options.hidden}, uniform_by_fan(options.hidden))
                           : Parameter()),
      bias_hh(options.bias ? Parameter(*this, "bias_hh", {4 * options.hidden}, uniform_by_fan(options.hidden))
                           : Parameter()) {}

LSTMState LSTMCell::operator()(const Tensor& x, const LSTMState& state) const {
  const Call call(*this, x, state.h, state.c);
  check_cell_input("LSTMCell", x, options.in);
  const Shape shape{x.size(0), options.hidden};
  const Tensor h = state_or_zeros("LSTMCell", "h", state.h, shape, x);
  const Tensor c = state_or_zeros("LSTMCell", "c", state.c, shape, x);
  LSTMState next = lstm_step(linear(x, weight_ih, bias_ih), linear(h, weight_hh, bias_hh), c);
  call.gave(next.h, next.c);
  return next;
}

GRUCell::GRUCell(Module& parent, std::string_view name, Options given)
    : Module(parent, name),
      options(checked("GRUCell", given)),
      weight_ih(*this, "weight_ih", {3 * options.hidden, options.in}, uniform_by_fan(options.hidden)),
      weight_hh(*this, "weight_hh", {3 * options.hidden, options.hidden}, uniform_by_fan(options.hidden)),
      bias_ih(options.bias ? Parameter(*this, "bias_ih", {3 * options.hidden}, uniform_by_fan(options.hidden))
                           : Parameter()),
      bias_hh(options.bias ? Parameter(*this, "bias_hh", {3 * options.hidden}, uniform_by_fan(options.hidden))
                           : Parameter()) {}

Tensor GRUCell::operator()(const Tensor& x, const Tensor& state) const {
  const Call call(*this, x, state);
  check_cell_input("GRUCell", x, options.in);
  const Tensor h = state_or_zeros("GRUCell", "h", state, {x.size(0), options.hidden}, x);
  return call.gives(gru_step(linear(x, weight_ih, bias_ih), linear(h, weight_hh, bias_hh), h));
}

// ---- Whole sequences

Recurrent::Recurrent(Module& parent, std::string_view name, std::int64_t gates, Options given)
    : Module(parent, name), options(checked(gates == 4 ? "LSTM" : "GRU", given)) {
  static const Tensor kAbsent;
  const std::int64_t directions = options.bidirectional ? 2 : 1, rows = gates * options.hidden;
  const auto add = [&](const char* what, const std::string& suffix, const Shape& shape) {
    return static_cast<const Tensor*>(&register_parameter(what + suffix, shape, uniform_by_fan(options.hidden)));
  };
  for (std::int64_t layer = 0; layer < options.num_layers; ++layer) {
    const std::int64_t in = layer == 0 ? options.in : directions * options.hidden;
    for (std::int64_t d = 0; d < directions; ++d) {
      const std::string suffix = "_l" + std::to_string(layer) + (d == 1 ? "_reverse" : "");
      Weights w{};
      w.ih = add("weight_ih", suffix, {rows, in});
      w.hh = add("weight_hh", suffix, {rows, options.hidden});
      w.bias_ih = options.bias ? add("bias_ih", suffix, {rows}) : &kAbsent;
      w.bias_hh = options.bias ? add("bias_hh", suffix, {rows}) : &kAbsent;
      weights_.push_back(w);
    }
  }
  if (options.dropout > 0) generator_.emplace(*this, "generator");
}

Tensors Recurrent::run(const char* layer, const Tensor& x, const Tensors& initial, Pass pass) const {
  if (x.rank() != 3 || x.size(2) != options.in) {
    fail<ShapeError>(layer, ": x has shape ", x.shape(), ", expected ", options.batch_first ? "[N, L, " : "[L, N, ",
                     options.in, "]");
  }
  Tensor sequence = options.batch_first ? transpose(x, 0, 1) : x;  // [L, N, in]
  const std::int64_t steps = sequence.size(0), directions = options.bidirectional ? 2 : 1;
  if (steps == 0) fail<ShapeError>(layer, ": x has shape ", x.shape(), ", expected a sequence of 1 step or more");
  const Shape state_shape{options.num_layers * directions, sequence.size(1), options.hidden};
  constexpr std::array<const char*, 2> kNames{"h", "c"};
  Tensors entering;
  for (std::size_t k = 0; k < initial.size(); ++k) {
    entering.push_back(state_or_zeros(layer, kNames[k], initial[k], state_shape, x));
  }
  std::vector<Tensors> leaving(initial.size());
  for (std::int64_t l = 0; l < options.num_layers; ++l) {
    std::array<Tensors, 2> hidden;
    for (std::int64_t d = 0; d < directions; ++d) {
      const std::int64_t at = l * directions + d;
      const Weights& w = weights_[static_cast<std::size_t>(at)];
      Tensors gates = unbind(linear(sequence, *w.ih, *w.bias_ih), 0);
      if (d == 1) std::reverse(gates.begin(), gates.end());
      Tensors states;
      for (const Tensor& s : entering) states.push_back(select(s, 0, at));
      Tensors& out = hidden[static_cast<std::size_t>(d)];
      out = pass(gates, w, states);
      if (d == 1) std::reverse(out.begin(), out.end());
      for (std::size_t k = 0; k < states.size(); ++k) leaving[k].push_back(states[k]);
    }
    sequence = stack(hidden[0], 0);
    if (directions == 2) sequence = cat({sequence, stack(hidden[1], 0)}, 2);
    if (generator_ && is_training() && l + 1 < options.num_layers) {
      sequence = levin::dropout(sequence, options.dropout, *generator_);
    }
  }
  Tensors out{options.batch_first ? transpose(sequence, 0, 1) : sequence};
  for (const Tensors& states : leaving) out.push_back(stack(states, 0));
  return out;
}

LSTM::LSTM(Module& parent, std::string_view name, Options given) : Recurrent(parent, name, 4, given) {}

LSTMOutput LSTM::operator()(const Tensor& x, const LSTMState& state) const {
  const Call call(*this, x, state.h, state.c);
  Tensors out = run("LSTM", x, {state.h, state.c}, [](const Tensors& gates_x, const Weights& w, Tensors& states) {
    Tensors hidden;
    for (const Tensor& g : gates_x) {
      LSTMState next = lstm_step(g, linear(states[0], *w.hh, *w.bias_hh), states[1]);
      states[0] = std::move(next.h);
      states[1] = std::move(next.c);
      hidden.push_back(states[0]);
    }
    return hidden;
  });
  call.gave(out[0], out[1], out[2]);
  return {out[0], out[1], out[2]};
}

GRU::GRU(Module& parent, std::string_view name, Options given) : Recurrent(parent, name, 3, given) {}

GRUOutput GRU::operator()(const Tensor& x, const Tensor& h) const {
  const Call call(*this, x, h);
  Tensors out = run("GRU", x, {h}, [](const Tensors& gates_x, const Weights& w, Tensors& states) {
    Tensors hidden;
    for (const Tensor& g : gates_x) {
      states[0] = gru_step(g, linear(states[0], *w.hh, *w.bias_hh), states[0]);
      hidden.push_back(states[0]);
    }
    return hidden;
  });
  call.gave(out[0], out[1]);
  return {out[0], out[1]};
}

}  // namespace levin::nn
