// First values of graph layers.
#pragma once

#include "levin/nn/graph.h"
#include "nn/options.h"

namespace levin::gnn {

// U(-r, r), r = sqrt(6 / (rows + columns)) over the last two dimensions. Glorot & Bengio, 2010.
inline nn::Initializer glorot() {
  return [](Tensor& x, Generator& gen) {
    const double bound = std::sqrt(6 / static_cast<double>(x.size(-1) + x.size(-2)));
    nn::init::uniform_(x, gen, -bound, bound);
  };
}
// Gives a layer's weight glorot's values, from the generator of that name.
inline void start_glorot(nn::Linear& layer) {
  Generator gen = layer.fork("weight");
  glorot()(layer.weight, gen);
}

// A layer that options may leave out.
[[nodiscard]] inline std::optional<nn::Linear> linear_if(bool present, nn::Module& parent, std::string_view name,
                                                         nn::LinearOptions options) {
  if (!present) return std::nullopt;
  return std::optional<nn::Linear>(std::in_place, parent, name, options);
}

}  // namespace levin::gnn
