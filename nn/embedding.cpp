#include "levin/nn/layers.h"
#include "nn/options.h"

namespace levin::nn {
namespace {

const EmbeddingOptions& checked(const EmbeddingOptions& o) {
  check_size("Embedding", "count", o.count);
  check_size("Embedding", "dim", o.dim);
  if (o.padding_idx && (*o.padding_idx < -o.count || *o.padding_idx >= o.count)) {
    fail<ConfigError>("Embedding: padding_idx is ", *o.padding_idx, ", expected ", -o.count, " to ", o.count - 1);
  }
  return o;
}

// The padding row counted from 0, as the op takes it.
std::optional<std::int64_t> padding_row(const EmbeddingOptions& o) {
  if (!o.padding_idx || *o.padding_idx >= 0) return o.padding_idx;
  return *o.padding_idx + o.count;
}

}  // namespace

Embedding::Embedding(Module& parent, std::string_view name, Options given)
    : Module(parent, name),
      options(checked(given)),
      weight(*this, "weight", {options.count, options.dim}, [this](Tensor& x, Generator& gen) {
        init::normal_(x, gen);
        if (const auto row = padding_row(options)) {
          Tensor padding = select(x, 0, *row);
          init::zeros_(padding);
        }
      }) {}

Tensor Embedding::operator()(const Tensor& index) const {
  return Call(*this, index).gives(embedding(weight, index, padding_row(options)));
}

}  // namespace levin::nn
