#include "levin/nn/recurrent.h"

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

const RNNCellOptions& checked(const RNNCellOptions& o) {
  check_size("RNNCell", "in", o.in);
  check_size("RNNCell", "hidden", o.hidden);
  return o;
}

RecurrentOptions checked(const char* layer, const RecurrentOptions& o) {
  const std::string_view kind = layer;
  if (kind != "LSTM" && o.proj_size != 0)
    fail<ConfigError>(layer, ": proj_size is ", o.proj_size, ", expected 0: LSTM alone projects its state");
  if (kind != "RNN" && o.nonlinearity != RNNNonlinearity::tanh)
    fail<ConfigError>(layer, ": nonlinearity is relu, expected tanh: RNN alone takes another one");
  check_size(layer, "in", o.in);
  check_size(layer, "hidden", o.hidden);
  check_at_least(layer, "num_layers", o.num_layers, 1);
  check_range(layer, "proj_size", o.proj_size, 0, o.hidden - 1);
  check_probability(layer, "dropout", o.dropout);
  if (o.dropout > 0 && o.num_layers == 1) {
    fail<ConfigError>(layer, ": dropout is ", o.dropout,
                      " with one layer, expected 0: it acts between layers; use nn::Dropout on the output");
  }
  return o;
}

// gates_x, gates_h: [N, 4 hidden], bias included.
LSTMState lstm_step(const Tensor& gates_x, const Tensor& gates_h, const Tensor& c) {
  auto [h, next] = lstm_cell(gates_x + gates_h, c);
  return {h, next};
}

// gates_x, gates_h: [N, 3 hidden]; the gate r acts on the recurrent part of n alone.
Tensor gru_step(const Tensor& gates_x, const Tensor& gates_h, const Tensor& h) {
  const Tensors x = chunk(gates_x, 3, 1), u = chunk(gates_h, 3, 1);
  const Tensor r = sigmoid(x[0] + u[0]), z = sigmoid(x[1] + u[1]);
  const Tensor n = tanh(x[2] + r * u[2]);
  return n + z * (h - n);
}

Tensor rnn_step(const Tensor& gates_x, const Tensor& gates_h, RNNNonlinearity nonlinearity) {
  const Tensor sums = gates_x + gates_h;
  return nonlinearity == RNNNonlinearity::tanh ? tanh(sums) : relu(sums);
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

RNNCell::RNNCell(Module& parent, std::string_view name, Options given)
    : Module(parent, name),
      options(checked(given)),
      weight_ih(*this, "weight_ih", {options.hidden, options.in}, uniform_by_fan(options.hidden)),
      weight_hh(*this, "weight_hh", {options.hidden, options.hidden}, uniform_by_fan(options.hidden)),
      bias_ih(options.bias ? Parameter(*this, "bias_ih", {options.hidden}, uniform_by_fan(options.hidden))
                           : Parameter()),
      bias_hh(options.bias ? Parameter(*this, "bias_hh", {options.hidden}, uniform_by_fan(options.hidden))
                           : Parameter()) {}

Tensor RNNCell::operator()(const Tensor& x, const Tensor& state) const {
  const Call call(*this, x, state);
  check_cell_input("RNNCell", x, options.in);
  const Tensor h = state_or_zeros("RNNCell", "h", state, {x.size(0), options.hidden}, x);
  return call.gives(rnn_step(linear(x, weight_ih, bias_ih), linear(h, weight_hh, bias_hh), options.nonlinearity));
}

// ---- Whole sequences

namespace {

constexpr std::array<const char*, 3> kLayers{"RNN", "LSTM", "GRU"};
constexpr std::array<std::int64_t, 3> kGates{1, 4, 3};

// i64 [N] on x's device, 0 to `steps`.
void check_lengths(const char* layer, const Tensor& lengths, const Tensor& x, std::int64_t n, std::int64_t steps) {
  if (lengths.device() != x.device())
    fail<DeviceError>(layer, ": lengths are on ", lengths.device(), ", expected x's ", x.device());
  if (lengths.dtype() != DType::i64) fail<DTypeError>(layer, ": lengths are ", lengths.dtype(), ", expected i64");
  if (lengths.shape() != Shape{n})
    fail<ShapeError>(layer, ": lengths have shape ", lengths.shape(), ", expected ", Shape{n});
  if (!lengths.device().is_cpu()) return;
  for (const std::int64_t length : lengths.contiguous().to_vector<std::int64_t>()) {
    if (length < 0 || length > steps) fail<IndexError>(layer, ": a length is ", length, ", expected 0 to ", steps);
  }
}

}  // namespace

Recurrent::Recurrent(Module& parent, std::string_view name, Kind kind, Options given)
    : Module(parent, name), options(checked(kLayers[static_cast<std::size_t>(kind)], given)), kind_(kind) {
  static const Tensor kAbsent;
  const std::int64_t directions = options.bidirectional ? 2 : 1;
  const std::int64_t rows = kGates[static_cast<std::size_t>(kind)] * options.hidden;
  const std::int64_t features = options.proj_size > 0 ? options.proj_size : options.hidden;
  const auto add = [&](const char* what, const std::string& suffix, const Shape& shape) {
    return static_cast<const Tensor*>(&register_parameter(what + suffix, shape, uniform_by_fan(options.hidden)));
  };
  for (std::int64_t layer = 0; layer < options.num_layers; ++layer) {
    const std::int64_t in = layer == 0 ? options.in : directions * features;
    for (std::int64_t d = 0; d < directions; ++d) {
      const std::string suffix = "_l" + std::to_string(layer) + (d == 1 ? "_reverse" : "");
      Weights w{};
      w.ih = add("weight_ih", suffix, {rows, in});
      w.hh = add("weight_hh", suffix, {rows, features});
      w.bias_ih = options.bias ? add("bias_ih", suffix, {rows}) : &kAbsent;
      w.bias_hh = options.bias ? add("bias_hh", suffix, {rows}) : &kAbsent;
      w.hr = options.proj_size > 0 ? add("weight_hr", suffix, {features, options.hidden}) : &kAbsent;
      weights_.push_back(w);
    }
  }
  if (options.dropout > 0) generator_.emplace(*this, "generator");
}

Tensors Recurrent::run(const Tensor& x, const Tensors& initial, const Tensor& lengths, Step step, Whole whole) const {
  const char* layer = kLayers[static_cast<std::size_t>(kind_)];
  if (x.rank() != 3 || x.size(2) != options.in) {
    fail<ShapeError>(layer, ": x has shape ", x.shape(), ", expected ", options.batch_first ? "[N, L, " : "[L, N, ",
                     options.in, "]");
  }
  Tensor sequence = options.batch_first ? transpose(x, 0, 1) : x;  // [L, N, in]
  const std::int64_t steps = sequence.size(0), n = sequence.size(1), directions = options.bidirectional ? 2 : 1;
  if (steps == 0) fail<ShapeError>(layer, ": x has shape ", x.shape(), ", expected a sequence of 1 step or more");
  constexpr std::array<const char*, 2> kNames{"h", "c"};
  Tensors entering;
  for (std::size_t k = 0; k < initial.size(); ++k) {
    const std::int64_t features = k == 0 && options.proj_size > 0 ? options.proj_size : options.hidden;
    entering.push_back(state_or_zeros(layer, kNames[k], initial[k], {options.num_layers * directions, n, features}, x));
  }
  // Where the steps are behind the end of their sequence, [N, 1] of each step.
  Tensors idle;
  if (lengths.defined()) {
    check_lengths(layer, lengths, x, n, steps);
    const Tensor behind = unsqueeze(ge(unsqueeze(arange(steps, x.device()), 1), lengths), 2);
    idle = unbind(behind, 0);
    // What the padding holds, a NaN too, reaches no weight's gradient.
    sequence = masked_fill(sequence, behind, 0);
  }
  std::vector<Tensors> leaving(initial.size());
  for (std::int64_t l = 0; l < options.num_layers; ++l) {
    Tensors directed;  // y of each direction
    for (std::int64_t d = 0; d < directions; ++d) {
      const std::int64_t at = l * directions + d;
      const Weights& w = weights_[static_cast<std::size_t>(at)];
      Tensors states;
      for (const Tensor& s : entering) states.push_back(select(s, 0, at));
      if (whole && idle.empty() && !w.hr->defined()) {
        directed.push_back(whole(sequence, w, states, d == 1));
      } else {
        const Tensors gates = unbind(linear(sequence, *w.ih, *w.bias_ih), 0);
        Tensors out(gates.size());
        for (std::size_t i = 0; i < gates.size(); ++i) {
          const std::size_t t = d == 1 ? gates.size() - 1 - i : i;
          Tensors next = step(gates[t], w, states);
          if (!idle.empty()) {
            for (std::size_t k = 0; k < next.size(); ++k) next[k] = where(idle[t], states[k], next[k]);
          }
          states = std::move(next);
          out[t] = idle.empty() ? states[0] : masked_fill(states[0], idle[t], 0);
        }
        directed.push_back(stack(out, 0));
      }
      for (std::size_t k = 0; k < states.size(); ++k) leaving[k].push_back(states[k]);
    }
    sequence = directions == 2 ? cat(directed, 2) : directed[0];
    if (generator_ && is_training() && l + 1 < options.num_layers) {
      sequence = levin::dropout(sequence, options.dropout, *generator_);
    }
  }
  Tensors out{options.batch_first ? transpose(sequence, 0, 1) : sequence};
  for (const Tensors& states : leaving) out.push_back(stack(states, 0));
  return out;
}

LSTM::LSTM(Module& parent, std::string_view name, Options given) : Recurrent(parent, name, Kind::lstm, given) {}

LSTMOutput LSTM::operator()(const Tensor& x, const LSTMState& state, const Tensor& lengths) const {
  const Call call(*this, x, state.h, state.c);
  const Step step = [](const Tensor& gates_x, const Weights& w, const Tensors& states) {
    const LSTMState next = lstm_step(gates_x, linear(states[0], *w.hh, *w.bias_hh), states[1]);
    return Tensors{w.hr->defined() ? linear(next.h, *w.hr) : next.h, next.c};
  };
  const Whole whole = [](const Tensor& sequence, const Weights& w, Tensors& states, bool reverse) {
    const Tensor bias = w.bias_ih->defined() ? *w.bias_ih + *w.bias_hh : Tensor();
    const auto [y, c] = lstm_layer(sequence, {states[0], states[1]}, {*w.ih, *w.hh, bias}, reverse);
    states = {select(y, 0, reverse ? 0 : -1), c};
    return y;
  };
  const Tensors out = run(x, {state.h, state.c}, lengths, step, whole);
  call.gave(out[0], out[1], out[2]);
  return {out[0], out[1], out[2]};
}

GRU::GRU(Module& parent, std::string_view name, Options given) : Recurrent(parent, name, Kind::gru, given) {}

GRUOutput GRU::operator()(const Tensor& x, const Tensor& h, const Tensor& lengths) const {
  const Call call(*this, x, h);
  const Tensors out = run(x, {h}, lengths, [](const Tensor& gates_x, const Weights& w, const Tensors& states) {
    return Tensors{gru_step(gates_x, linear(states[0], *w.hh, *w.bias_hh), states[0])};
  });
  call.gave(out[0], out[1]);
  return {out[0], out[1]};
}

RNN::RNN(Module& parent, std::string_view name, Options given) : Recurrent(parent, name, Kind::rnn, given) {}

RNNOutput RNN::operator()(const Tensor& x, const Tensor& h, const Tensor& lengths) const {
  const Call call(*this, x, h);
  const auto step =
      options.nonlinearity == RNNNonlinearity::tanh
          ? Step([](const Tensor& gates_x, const Weights& w, const Tensors& states) {
              return Tensors{rnn_step(gates_x, linear(states[0], *w.hh, *w.bias_hh), RNNNonlinearity::tanh)};
            })
          : Step([](const Tensor& gates_x, const Weights& w, const Tensors& states) {
              return Tensors{rnn_step(gates_x, linear(states[0], *w.hh, *w.bias_hh), RNNNonlinearity::relu)};
            });
  const Tensors out = run(x, {h}, lengths, step);
  call.gave(out[0], out[1]);
  return {out[0], out[1]};
}

}  // namespace levin::nn
