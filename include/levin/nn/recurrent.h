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

struct RecurrentOptions {
  std::int64_t in = 0, hidden = 0, num_layers = 1;
  bool bias = true;
  bool batch_first = false;    // x and y are [N, L, ...] instead of [L, N, ...]
  double dropout = 0;          // of each layer's output but the last's, in training; 0 for one layer
  bool bidirectional = false;  // a second pass from the end; outputs are joined, forward first
};
// What LSTM and GRU share. Parameters of layer k: weight_ih_l<k>, weight_hh_l<k>, bias_ih_l<k>, bias_hh_l<k>, shaped as
// the cell's, and the same with "_reverse" for the pass from the end. `in` of later layers is directions * hidden.
class LEVIN_API Recurrent : public Module {
 public:
  using Options = RecurrentOptions;
  const Options options;

 protected:
  struct Weights {
    const Tensor *ih, *hh, *bias_ih, *bias_hh;
  };
  // Runs one pass over gates_x = x W_ih^T + b_ih, one [N, gates * hidden] for each step in the pass's order, and
  // returns the hidden state after each step; `states` holds the initial states and, on return, the final ones.
  using Pass = Tensors (*)(const Tensors& gates_x, const Weights& weights, std::vector<Tensor>& states);

  Recurrent(Module& parent, std::string_view name, std::int64_t gates, Options options);
  // y, then the final value of each state [num_layers * directions, N, hidden].
  [[nodiscard]] Tensors run(const char* layer, const Tensor& x, const Tensors& initial, Pass pass) const;

 private:
  std::vector<Weights> weights_;  // layer by layer, forward before reverse
  mutable std::optional<ModuleGenerator> generator_;
};

struct LSTMOutput {
  Tensor y, h, c;
};
// LSTMCell over a sequence, num_layers times.
class LEVIN_API LSTM : public Recurrent {
 public:
  LSTM(Module& parent, std::string_view name, Options options);
  // x [L, N, in] -> y [L, N, directions * hidden], h and c [num_layers * directions, N, hidden]; the initial state is
  // zeros when undefined. Throws ShapeError.
  LSTMOutput operator()(const Tensor& x, const LSTMState& state = {}) const;
};

struct GRUOutput {
  Tensor y, h;
};
// GRUCell over a sequence, num_layers times.
class LEVIN_API GRU : public Recurrent {
 public:
  GRU(Module& parent, std::string_view name, Options options);
  // As LSTM, without c.
  GRUOutput operator()(const Tensor& x, const Tensor& h = {}) const;
};

}  // namespace levin::nn
