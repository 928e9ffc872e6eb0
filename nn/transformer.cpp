#include "levin/nn/transformer.h"

#include <limits>

#include "nn/feed_forward.h"
#include "nn/options.h"

namespace levin::nn {
namespace {

const TransformerDecoderLayerOptions& checked(const TransformerDecoderLayerOptions& o) {
  check_size("TransformerDecoderLayer", "d_model", o.d_model);
  check_at_least("TransformerDecoderLayer", "nhead", o.nhead, 1);
  check_size("TransformerDecoderLayer", "dim_feedforward", o.dim_feedforward);
  check_probability("TransformerDecoderLayer", "dropout", o.dropout);
  check_eps("TransformerDecoderLayer", o.layer_norm_eps);
  return o;
}
template <class Options>
Options checked_stack(const char* layer, const Options& o) {
  check_range(layer, "num_layers", o.num_layers, 1, kMostLayers);
  return o;
}
const TransformerOptions& checked(const TransformerOptions& o) {
  check_range("Transformer", "num_encoder_layers", o.num_encoder_layers, 1, kMostLayers);
  check_range("Transformer", "num_decoder_layers", o.num_decoder_layers, 1, kMostLayers);
  return o;
}

MultiheadAttentionOptions attention_of(const TransformerDecoderLayerOptions& o) {
  return {
      .embed_dim = o.d_model, .num_heads = o.nhead, .dropout = o.dropout, .bias = o.bias, .batch_first = o.batch_first};
}
LayerNormOptions norm_of(const TransformerEncoderLayerOptions& o) {
  return {.shape = o.d_model, .eps = o.layer_norm_eps, .bias = o.bias};
}
TransformerEncoderLayerOptions layer_of(const TransformerOptions& o) {
  return {.d_model = o.d_model,
          .nhead = o.nhead,
          .dim_feedforward = o.dim_feedforward,
          .dropout = o.dropout,
          .activation = o.activation,
          .layer_norm_eps = o.layer_norm_eps,
          .norm_first = o.norm_first,
          .bias = o.bias,
          .batch_first = o.batch_first};
}

}  // namespace

Tensor generate_square_subsequent_mask(std::int64_t size, Device device, DType dtype) {
  if (size < 0) fail<ShapeError>("generate_square_subsequent_mask: size is ", size, ", expected 0 or more");
  return triu(full({size, size}, -std::numeric_limits<double>::infinity(), device, dtype), 1);
}

TransformerEncoder::TransformerEncoder(Module& parent, std::string_view name, Options given)
    : Module(parent, name), options(checked_stack("TransformerEncoder", given)), layers(*this, "layers") {
  for (std::int64_t i = 0; i < options.num_layers; ++i) layers.add(options.layer);
  if (options.norm) norm.emplace(*this, "norm", norm_of(options.layer));
}

Tensor TransformerEncoder::operator()(const Tensor& x, const AttentionMasks& masks) const {
  const Call call(*this, x);
  Tensor y = x;
  for (const TransformerEncoderLayer& layer : layers) y = layer(y, masks);
  return call.gives(norm ? (*norm)(y) : y);
}

TransformerDecoderLayer::TransformerDecoderLayer(Module& parent, std::string_view name, Options given)
    : Module(parent, name),
      options(checked(given)),
      self_attn(*this, "self_attn", attention_of(options)),
      multihead_attn(*this, "multihead_attn", attention_of(options)),
      linear1(*this, "linear1", {.in = options.d_model, .out = options.dim_feedforward, .bias = options.bias}),
      dropout(*this, "dropout", {.p = options.dropout}),
      linear2(*this, "linear2", {.in = options.dim_feedforward, .out = options.d_model, .bias = options.bias}),
      norm1(*this, "norm1", norm_of(options)),
      norm2(*this, "norm2", norm_of(options)),
      norm3(*this, "norm3", norm_of(options)),
      dropout1(*this, "dropout1", {.p = options.dropout}),
      dropout2(*this, "dropout2", {.p = options.dropout}),
      dropout3(*this, "dropout3", {.p = options.dropout}) {}

Tensor TransformerDecoderLayer::operator()(const Tensor& tgt, const Tensor& memory, const DecoderMasks& masks) const {
  const Call call(*this, tgt, memory);
  const auto attend = [&](const Tensor& x) { return dropout1(self_attn(x, masks.tgt)); };
  const auto look_up = [&](const Tensor& x) { return dropout2(multihead_attn(x, memory, memory, masks.memory)); };
  const auto feed_forward = [&](const Tensor& x) {
    return dropout3(perceptron(x, linear1, dropout, linear2, options.activation));
  };
  if (options.norm_first) {
    const Tensor y = tgt + attend(norm1(tgt));
    const Tensor z = y + look_up(norm2(y));
    return call.gives(z + feed_forward(norm3(z)));
  }
  const Tensor y = norm1(tgt + attend(tgt));
  const Tensor z = norm2(y + look_up(y));
  return call.gives(norm3(z + feed_forward(z)));
}

TransformerDecoder::TransformerDecoder(Module& parent, std::string_view name, Options given)
    : Module(parent, name), options(checked_stack("TransformerDecoder", given)), layers(*this, "layers") {
  for (std::int64_t i = 0; i < options.num_layers; ++i) layers.add(options.layer);
  if (options.norm) norm.emplace(*this, "norm", norm_of(options.layer));
}

Tensor TransformerDecoder::operator()(const Tensor& tgt, const Tensor& memory, const DecoderMasks& masks) const {
  const Call call(*this, tgt, memory);
  Tensor y = tgt;
  for (const TransformerDecoderLayer& layer : layers) y = layer(y, memory, masks);
  return call.gives(norm ? (*norm)(y) : y);
}

Transformer::Transformer(Module& parent, std::string_view name, Options given)
    : Module(parent, name),
      options(checked(given)),
      encoder(*this, "encoder", {.layer = layer_of(options), .num_layers = options.num_encoder_layers, .norm = true}),
      decoder(*this, "decoder", {.layer = layer_of(options), .num_layers = options.num_decoder_layers, .norm = true}) {
  for (const ParamRef& p : parameters()) {
    Generator gen = fork(p.name);
    if (p.value->rank() > 1) init::xavier_uniform_(*p.value, gen);
  }
}

Tensor Transformer::operator()(const Tensor& src, const Tensor& tgt, const TransformerMasks& masks) const {
  const Call call(*this, src, tgt);
  return call.gives(decoder(tgt, encoder(src, masks.src), {.tgt = masks.tgt, .memory = masks.memory}));
}

}  // namespace levin::nn
