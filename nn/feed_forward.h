// What the layers of encoders and decoders share.
#pragma once

#include "levin/nn/attention.h"

namespace levin::nn {

// linear2(dropout(activation(linear1(x)))).
inline Tensor perceptron(const Tensor& x, const Linear& linear1, const Dropout& dropout, const Linear& linear2,
                         Activation activation) {
  const bool drops = dropout.is_training() && dropout.options.p > 0;
  if (activation == Activation::gelu && !drops)
    return gelu_mlp(x, linear1.weight, linear1.bias, linear2.weight, linear2.bias);
  const Tensor hidden = linear1(x);
  return linear2(dropout(activation == Activation::relu ? relu(hidden) : gelu(hidden)));
}

}  // namespace levin::nn
