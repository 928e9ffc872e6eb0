// A step of an LSTM's state and its gradient, written where a layer keeps them.
#pragma once

#include "levin/tensor.h"

namespace levin {

// lstm_cell's h, into h, and its c'.
[[nodiscard]] Tensor lstm_cell_into(const Tensor& h, const Tensor& gates, const Tensor& c);

// From the gradients of h and of c' those of the gates, into g_gates, and of c. `next` is c'.
[[nodiscard]] Tensor lstm_cell_backward_into(const Tensor& g_gates, const Tensor& gh, const Tensor& gc,
                                             const Tensor& gates, const Tensor& c, const Tensor& next);

}  // namespace levin
