// Attention and the encoder layer of a transformer, batches first: [N, L, E]. Vaswani et al., "Attention is all you
// need", 2017. Decoders and whole transformers: levin/nn/transformer.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "levin/nn/layers.h"
#include "levin/nn/module.h"
#include "levin/ops.h"

namespace levin::nn {

// Throws ConfigError unless num_heads divides embed_dim.
struct MultiheadAttentionOptions {
  std::int64_t embed_dim = 0, num_heads = 0;  // heads of embed_dim / num_heads each
  double dropout = 0;                         // of the attention weights, in training
  bool bias = true;
  bool add_bias_kv = false;            // one more key and value, trained: bias_k and bias_v [1, 1, E]
  bool add_zero_attn = false;          // one more key and value of zeros
  std::optional<std::int64_t> kdim{};  // features of key and value; default embed_dim
  std::optional<std::int64_t> vdim{};
  bool batch_first = true;  // false: [L, N, E], PyTorch's default; weights and masks stay as they are
};
// Positions to leave out, as PyTorch's module takes them: true in a bool mask leaves out (the op's mask means the
// opposite); a mask of the query's dtype is added to the scores.
struct AttentionMasks {
  Tensor key_padding{};  // [N, S]
  Tensor attention{};    // [L, S] or [N * num_heads, L, S]
  Causal causal = Causal::no;
};
// yes: the mean of the heads' weights [N, L, S]; no: each head's [N, num_heads, L, S].
enum class AverageHeads : bool { no, yes };
struct AttentionOutput {
  Tensor y, weights;
};
// out_proj of the heads' softmax(q k^T / sqrt(E / num_heads) + mask) v, with q, k, v = in_proj of query, key, value.
// in_proj_weight [3 E, E] (rows of q, k, v) starts with xavier_uniform, in_proj_bias [3 E] and out_proj.bias [E] with
// 0, out_proj.weight [E, E] as Linear's. With a kdim or vdim other than E, q_proj_weight [E, E], k_proj_weight
// [E, kdim] and v_proj_weight [E, vdim] take the place of in_proj_weight. bias_k and bias_v start with xavier_normal;
// every query sees them and the zeros, whatever the masks. Dropout draws from the module's own stream, "generator"
// below its path.
class LEVIN_API MultiheadAttention : public Module {
 public:
  using Options = MultiheadAttentionOptions;
  MultiheadAttention(Module& parent, std::string_view name, Options options);
  // query [N, L, E], key [N, S, kdim], value [N, S, vdim] -> [N, L, E].
  Tensor operator()(const Tensor& query, const Tensor& key, const Tensor& value,
                    const AttentionMasks& masks = {}) const;
  Tensor operator()(const Tensor& x, const AttentionMasks& masks = {}) const { return (*this)(x, x, x, masks); }
  // The same, with what the values were multiplied with, after dropout: PyTorch's need_weights. The L x S weights are
  // in memory as a whole. S counts the keys that add_bias_kv and add_zero_attn add. A query that may see nothing has
  // weights of 0 (PyTorch: NaN).
  [[nodiscard]] AttentionOutput with_weights(const Tensor& query, const Tensor& key, const Tensor& value,
                                             const AttentionMasks& masks = {},
                                             AverageHeads average = AverageHeads::yes) const;

  const Options options;
  Parameter in_proj_weight, q_proj_weight, k_proj_weight, v_proj_weight, in_proj_bias, bias_k, bias_v;
  Linear out_proj;

 private:
  enum class Weights : bool { no, yes };
  [[nodiscard]] AttentionOutput run(const Tensor& query, const Tensor& key, const Tensor& value,
                                    const AttentionMasks& masks, Weights weights) const;
  mutable ModuleGenerator generator_;
};

enum class Activation : std::uint8_t { relu, gelu };
struct TransformerEncoderLayerOptions {
  std::int64_t d_model = 0, nhead = 0, dim_feedforward = 2048;  // E, heads, and the perceptron's hidden features
  double dropout = 0.1;  // of attention weights, hidden features and both parts' results
  Activation activation = Activation::relu;
  double layer_norm_eps = 1e-5;
  bool norm_first = false;  // normalise before each part (pre-norm) instead of after its residual sum
  bool bias = true;         // of all linear layers and norms
  bool batch_first = true;  // false: [L, N, E], PyTorch's default
};
// Self-attention and a perceptron of two layers, each with dropout, a residual sum and a layer norm: x [N, L, E] ->
// [N, L, E]. y = norm1(x + attn(x)), norm2(y + mlp(y)); norm_first: y = x + attn(norm1(x)), y + mlp(norm2(y)).
class LEVIN_API TransformerEncoderLayer : public Module {
 public:
  using Options = TransformerEncoderLayerOptions;
  TransformerEncoderLayer(Module& parent, std::string_view name, Options options);
  Tensor operator()(const Tensor& x, const AttentionMasks& masks = {}) const;

  const Options options;
  MultiheadAttention self_attn;
  Linear linear1;
  Dropout dropout;
  Linear linear2;
  LayerNorm norm1, norm2;
  Dropout dropout1, dropout2;

 private:
  [[nodiscard]] Tensor attend(const Tensor& x, const AttentionMasks& masks) const;
  [[nodiscard]] Tensor feed_forward(const Tensor& x) const;
};

}  // namespace levin::nn
