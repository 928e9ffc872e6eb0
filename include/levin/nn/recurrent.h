// Recurrent layers with PyTorch's gate order, parameter names and initialisation U(-b, b), b = 1 / sqrt(hidden).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "levin/nn/module.h"

namespace levin::nn {

struct CellOptions {
  std::int64_t in = 0, hidden = 0;  // features of x and of the state
  bool bias = true;
};
struct LSTMState {
  Tensor h{}, c{};
};
// One step. Gates i, f, g, o: c' = sigmoid(f) c + sigmoid(i) tanh(g), h' = sigmoid(o) tanh(c').
// Hochreiter & Schmidhuber, 1997. weight_ih [4 hidden, in], weight_hh [4 hidden, hidden], bias_ih, bias_hh [4 hidden].
class LEVIN_API LSTMCell : public Module {
 public:
  using Options = CellOptions;
  LSTMCell(Module& parent, std::string_view name, Options options);
  // x [N, in]; h, c [N, hidden], zeros when undefined -> the next h and c. Throws ShapeError.
  LSTMState operator()(const Tensor& x, const LSTMState& state = {}) const;

  const Options options;
  Parameter weight_ih, weight_hh, bias_ih, bias_hh;
};

// One step. Gates r, z, n: n' = tanh(W_n x + b_n + sigmoid(r) (U_n h + c_n)), h' = (1 - sigmoid(z)) n' + sigmoid(z) h.
// Cho et al., 2014. Parameters as LSTMCell's, with 3 hidden rows instead of 4 hidden.
class LEVIN_API GRUCell : public Module {
 public:
  using Options = CellOptions;
  GRUCell(Module& parent, std::string_view name, Options options);
  // x [N, in], h [N, hidden], zeros when undefined -> [N, hidden]. Throws ShapeError.
  Tensor operator()(const Tensor& x, const Tensor& h = {}) const;

  const Options options;
  Parameter weight_ih, weight_hh, bias_ih, bias_hh;
};

// What RNNCell and RNN apply to their sums.
enum class RNNNonlinearity : std::uint8_t { tanh, relu };
struct RNNCellOptions {
  std::int64_t in = 0, hidden = 0;
  bool bias = true;
  RNNNonlinearity nonlinearity = RNNNonlinearity::tanh;
};
// One step: h' = tanh(W x + b + U h + c), or relu of it. Parameters as LSTMCell's, with hidden rows instead of
// 4 hidden. Elman, "Finding structure in time", 1990.
class LEVIN_API RNNCell : public Module {
 public:
  using Options = RNNCellOptions;
  RNNCell(Module& parent, std::string_view name, Options options);
  // x [N, in], h [N, hidden], zeros when undefined -> [N, hidden]. Throws ShapeError.
  Tensor operator()(const Tensor& x, const Tensor& h = {}) const;

  const Options options;
  Parameter weight_ih, weight_hh, bias_ih, bias_hh;
};

struct RecurrentOptions {
  std::int64_t in = 0, hidden = 0, num_layers = 1;
  bool bias = true;
  bool batch_first = false;    // x and y are [N, L, ...] instead of [L, N, ...]
  double dropout = 0;          // of each layer's output but the last's, in training; 0 for one layer
  bool bidirectional = false;  // a second pass from the end; outputs are joined, forward first
  std::int64_t proj_size = 0;  // LSTM alone, below hidden: features of h after a projection; 0: none
  RNNNonlinearity nonlinearity = RNNNonlinearity::tanh;  // RNN alone
};
// What RNN, LSTM and GRU share. Parameters of layer k: weight_ih_l<k>, weight_hh_l<k>, bias_ih_l<k>, bias_hh_l<k>,
// shaped as the cell's, and the same with "_reverse" for the pass from the end. `in` of later layers is
// directions * hidden.
//
// Sequences of different lengths: x is padded to L steps, and lengths i64 [N], in any order, on x's device, counts the
// steps of each. Steps from there on are not read, whatever they hold; y is 0 there, the final states are those after
// the last step of each sequence, and the pass from the end starts there. These are the values of PyTorch's packed
// sequences. y keeps L steps, and a length may be 0 (PyTorch cuts y to the longest, and refuses 0): its final states
// are the initial ones. On the CPU a length below 0 or above L throws IndexError; on a device it counts as 0 or as L.
class LEVIN_API Recurrent : public Module {
 public:
  using Options = RecurrentOptions;
  const Options options;

 protected:
  enum class Kind : std::uint8_t { rnn, lstm, gru };
  struct Weights {
    const Tensor *ih, *hh, *bias_ih, *bias_hh, *hr;
  };
  // The states after a step from those before it, h first; gates_x = x W_ih^T + b_ih [N, gates * hidden].
  using Step = Tensors (*)(const Tensor& gates_x, const Weights& weights, const Tensors& states);
  // All steps of a sequence [L, N, in] at once: its y, and in `states` those after the last step.
  using Whole = Tensor (*)(const Tensor& sequence, const Weights& weights, Tensors& states, bool reverse);

  Recurrent(Module& parent, std::string_view name, Kind kind, Options options);
  // y, then the final value of each state [num_layers * directions, N, features].
  [[nodiscard]] Tensors run(const Tensor& x, const Tensors& initial, const Tensor& lengths, Step step,
                            Whole whole = nullptr) const;

 private:
  const Kind kind_;
  std::vector<Weights> weights_;  // layer by layer, forward before reverse
  mutable std::optional<ModuleGenerator> generator_;
};

struct LSTMOutput {
  Tensor y, h, c;
};
// LSTMCell over a sequence, num_layers times. With a proj_size P the h of each step is weight_hr times the cell's:
// weight_hr_l<k> [P, hidden], weight_hh_l<k> [4 hidden, P], and P features take hidden's place in y and h. Sak et al.,
// 2014.
class LEVIN_API LSTM : public Recurrent {
 public:
  LSTM(Module& parent, std::string_view name, Options options);
  // x [L, N, in] -> y [L, N, directions * hidden], h and c [num_layers * directions, N, hidden]; the initial state is
  // zeros when undefined, the lengths are L. Throws ShapeError, DTypeError, IndexError.
  LSTMOutput operator()(const Tensor& x, const LSTMState& state = {}, const Tensor& lengths = {}) const;
};

struct GRUOutput {
  Tensor y, h;
};
// GRUCell over a sequence, num_layers times.
class LEVIN_API GRU : public Recurrent {
 public:
  GRU(Module& parent, std::string_view name, Options options);
  // As LSTM, without c.
  GRUOutput operator()(const Tensor& x, const Tensor& h = {}, const Tensor& lengths = {}) const;
};

struct RNNOutput {
  Tensor y, h;
};
// RNNCell over a sequence, num_layers times.
class LEVIN_API RNN : public Recurrent {
 public:
  RNN(Module& parent, std::string_view name, Options options);
  // As LSTM, without c.
  RNNOutput operator()(const Tensor& x, const Tensor& h = {}, const Tensor& lengths = {}) const;
};

}  // namespace levin::nn
