#include "levin/autograd.h"
#include "levin/nn/call.h"
#include "levin/nn/embedding_bag.h"
#include "levin/nn/layers.h"
#include "nn/options.h"

namespace levin::nn {
namespace {

template <class Options>
Options checked(const char* layer, const Options& o) {
  check_size(layer, "count", o.count);
  check_size(layer, "dim", o.dim);
  if (o.padding_idx && (*o.padding_idx < -o.count || *o.padding_idx >= o.count)) {
    fail<ConfigError>(layer, ": padding_idx is ", *o.padding_idx, ", expected ", -o.count, " to ", o.count - 1);
  }
  if (o.max_norm && !(*o.max_norm > 0))
    fail<ConfigError>(layer, ": max_norm is ", *o.max_norm, ", expected a number above 0");
  if (!(o.norm_type > 0)) fail<ConfigError>(layer, ": norm_type is ", o.norm_type, ", expected a number above 0");
  return o;
}

// The padding row counted from 0, as the ops take it.
template <class Options>
std::optional<std::int64_t> padding_row(const Options& o) {
  if (!o.padding_idx || *o.padding_idx >= 0) return o.padding_idx;
  return *o.padding_idx + o.count;
}
template <class Options>
EmbeddingGrad gradient_of(const Options& o) {
  return o.sparse ? EmbeddingGrad::rows : EmbeddingGrad::dense;
}
// Shortens the rows of a call where the table has a max_norm.
template <class Options>
void shorten_rows(Tensor weight, const Tensor& index, const Options& o) {
  if (!o.max_norm) return;
  const NoGrad off;
  embedding_renorm_(weight, index, *o.max_norm, o.norm_type);
}
// N(0, 1), and 0 in the padding row.
Initializer rows_of(std::optional<std::int64_t> padding) {
  return [padding](Tensor& x, Generator& gen) {
    init::normal_(x, gen);
    if (!padding) return;
    Tensor row = select(x, 0, *padding);
    init::zeros_(row);
  };
}

}  // namespace

Embedding::Embedding(Module& parent, std::string_view name, Options given)
    : Module(parent, name),
      options(checked("Embedding", given)),
      weight(*this, "weight", {options.count, options.dim}, rows_of(padding_row(options))) {}

Tensor Embedding::operator()(const Tensor& index) const {
  const Call call(*this, index);
  shorten_rows(weight, index, options);
  return call.gives(embedding(weight, index, padding_row(options), gradient_of(options)));
}

EmbeddingBag::EmbeddingBag(Module& parent, std::string_view name, Options given)
    : Module(parent, name),
      options(checked("EmbeddingBag", given)),
      weight(*this, "weight", {options.count, options.dim}, rows_of(padding_row(options))) {}

Tensor EmbeddingBag::operator()(const Tensor& index, const Tensor& offsets, const Tensor& per_sample_weights) const {
  const Call call(*this, index, offsets, per_sample_weights);
  shorten_rows(weight, index, options);
  return call.gives(embedding_bag(weight, index, offsets,
                                  {.mode = options.mode,
                                   .per_sample_weights = per_sample_weights,
                                   .padding_idx = padding_row(options),
                                   .include_last_offset = options.include_last_offset,
                                   .gradient = gradient_of(options)}));
}

}  // namespace levin::nn
