// Stacks of encoder and decoder layers, and the transformer of both: batches first, [N, L, E]. Vaswani et al.,
// "Attention is all you need", 2017. Layers of a stack start with values of their own (PyTorch copies one layer).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "levin/nn/attention.h"
#include "levin/nn/layers.h"
#include "levin/nn/module.h"
#include "levin/nn/sequential.h"

namespace levin::nn {

// [size, size]: 0 on and below the diagonal, -inf above it: AttentionMasks::attention of queries that see no later key.
// Causal::yes means the same without a mask in memory.
[[nodiscard]] LEVIN_API Tensor generate_square_subsequent_mask(std::int64_t size, Device device,
                                                               DType dtype = DType::f32);

struct TransformerEncoderOptions {
  TransformerEncoderLayerOptions layer{};
  std::int64_t num_layers = 6;
  bool norm = false;  // a layer norm of the result, with the eps and bias of the layers
};
// The layers "layers.0", "layers.1", ... one after another, then "norm": x [N, L, E] -> [N, L, E]. All get the masks.
class LEVIN_API TransformerEncoder : public Module {
 public:
  using Options = TransformerEncoderOptions;
  TransformerEncoder(Module& parent, std::string_view name, Options options);
  Tensor operator()(const Tensor& x, const AttentionMasks& masks = {}) const;

  const Options options;
  ModuleList<TransformerEncoderLayer> layers;
  std::optional<LayerNorm> norm;
};

// Those of a decoder's two attentions. tgt: [N, T] and [T, T] or [N * nhead, T, T]; memory: [N, S] and [T, S] or
// [N * nhead, T, S], for a target of T and a memory of S positions. PyTorch's tgt_mask is tgt.attention, its
// tgt_key_padding_mask tgt.key_padding, its tgt_is_causal tgt.causal, and so on.
struct DecoderMasks {
  AttentionMasks tgt{}, memory{};
};
using TransformerDecoderLayerOptions = TransformerEncoderLayerOptions;
// Self-attention, attention to the memory, and a perceptron of two layers, each with dropout, a residual sum and a
// layer norm: tgt [N, T, E], memory [N, S, E] -> [N, T, E].
//   y = norm1(tgt + self_attn(tgt)), z = norm2(y + multihead_attn(y, memory)), norm3(z + mlp(z))
// norm_first: y = tgt + self_attn(norm1(tgt)), z = y + multihead_attn(norm2(y), memory), z + mlp(norm3(z)).
class LEVIN_API TransformerDecoderLayer : public Module {
 public:
  using Options = TransformerDecoderLayerOptions;
  TransformerDecoderLayer(Module& parent, std::string_view name, Options options);
  Tensor operator()(const Tensor& tgt, const Tensor& memory, const DecoderMasks& masks = {}) const;

  const Options options;
  MultiheadAttention self_attn, multihead_attn;
  Linear linear1;
  Dropout dropout;
  Linear linear2;
  LayerNorm norm1, norm2, norm3;
  Dropout dropout1, dropout2, dropout3;
};

struct TransformerDecoderOptions {
  TransformerDecoderLayerOptions layer{};
  std::int64_t num_layers = 6;
  bool norm = false;  // as in TransformerEncoderOptions
};
// The layers "layers.0", "layers.1", ... one after another, then "norm": tgt [N, T, E], memory [N, S, E] ->
// [N, T, E]. All get the memory and the masks.
class LEVIN_API TransformerDecoder : public Module {
 public:
  using Options = TransformerDecoderOptions;
  TransformerDecoder(Module& parent, std::string_view name, Options options);
  Tensor operator()(const Tensor& tgt, const Tensor& memory, const DecoderMasks& masks = {}) const;

  const Options options;
  ModuleList<TransformerDecoderLayer> layers;
  std::optional<LayerNorm> norm;
};

struct TransformerOptions {
  std::int64_t d_model = 512, nhead = 8, num_encoder_layers = 6, num_decoder_layers = 6, dim_feedforward = 2048;
  double dropout = 0.1;
  Activation activation = Activation::relu;
  double layer_norm_eps = 1e-5;
  bool norm_first = false, bias = true;  // as in TransformerEncoderLayerOptions
  bool batch_first = true;               // false: [L, N, E], PyTorch's default
};
struct TransformerMasks {
  AttentionMasks src{}, tgt{}, memory{};  // of the encoder, and of the decoder's two attentions
};
// decoder(tgt, encoder(src)), both with a final norm: src [N, S, E], tgt [N, T, E] -> [N, T, E]. Every matrix starts
// with xavier_uniform. A decoder that predicts the next position gets {.tgt = {.causal = Causal::yes}}; a padded src
// wants its key_padding in src and in memory.
class LEVIN_API Transformer : public Module {
 public:
  using Options = TransformerOptions;
  Transformer(Module& parent, std::string_view name, Options options = {});
  Tensor operator()(const Tensor& src, const Tensor& tgt, const TransformerMasks& masks = {}) const;

  const Options options;
  TransformerEncoder encoder;
  TransformerDecoder decoder;
};

}  // namespace levin::nn
