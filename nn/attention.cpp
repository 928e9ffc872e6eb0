#include "levin/nn/attention.h"

#include <array>
#include <limits>

#include "nn/feed_forward.h"
#include "nn/options.h"

namespace levin::nn {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

const MultiheadAttentionOptions& checked(const MultiheadAttentionOptions& o) {
  check_size("MultiheadAttention", "embed_dim", o.embed_dim);
  check_at_least("MultiheadAttention", "num_heads", o.num_heads, 1);
  check_probability("MultiheadAttention", "dropout", o.dropout);
  if (o.embed_dim % o.num_heads != 0) {
    fail<ConfigError>("MultiheadAttention: num_heads is ", o.num_heads, ", expected a divisor of embed_dim ",
                      o.embed_dim);
  }
  if (o.kdim) check_size("MultiheadAttention", "kdim", *o.kdim);
  if (o.vdim) check_size("MultiheadAttention", "vdim", *o.vdim);
  return o;
}

bool one_width(const MultiheadAttentionOptions& o) {
  return o.kdim.value_or(o.embed_dim) == o.embed_dim && o.vdim.value_or(o.embed_dim) == o.embed_dim;
}
void xavier(Tensor& x, Generator& gen) { init::xavier_uniform_(x, gen); }

const TransformerEncoderLayerOptions& checked(const TransformerEncoderLayerOptions& o) {
  check_size("TransformerEncoderLayer", "d_model", o.d_model);
  check_at_least("TransformerEncoderLayer", "nhead", o.nhead, 1);
  check_size("TransformerEncoderLayer", "dim_feedforward", o.dim_feedforward);
  check_probability("TransformerEncoderLayer", "dropout", o.dropout);
  check_eps("TransformerEncoderLayer", o.layer_norm_eps);
  return o;
}

// A mask of the scores' dtype: minus infinity where a bool mask leaves out.
Tensor additive(const Tensor& mask, DType dtype) {
  if (mask.dtype() != DType::b8) return mask;
  return masked_fill(zeros(mask.shape(), mask.device(), dtype), mask, -kInfinity);
}

// Both masks as the op takes them: bool, true for positions that take part, or added to the scores.
Tensor op_mask(const AttentionMasks& masks, std::int64_t n, std::int64_t heads, std::int64_t l, std::int64_t s,
               DType dtype) {
  Tensor padding = masks.key_padding, attention = masks.attention;
  const auto check_dtype = [&](const char* name, const Tensor& mask) {
    if (mask.dtype() != DType::b8 && mask.dtype() != dtype) {
      fail<DTypeError>("MultiheadAttention: ", name, " is ", mask.dtype(), ", expected bool or the query's ", dtype);
    }
  };
  if (padding.defined()) {
    check_dtype("key_padding", padding);
    if (padding.shape() != Shape{n, s}) {
      fail<ShapeError>("MultiheadAttention: key_padding has shape ", padding.shape(), ", expected ", Shape{n, s});
    }
    padding = view(padding.contiguous(), {n, 1, 1, s});
  }
  if (attention.defined()) {
    check_dtype("attention", attention);
    if (attention.shape() == Shape{n * heads, l, s}) {
      attention = view(attention.contiguous(), {n, heads, l, s});
    } else if (attention.shape() != Shape{l, s}) {
      fail<ShapeError>("MultiheadAttention: attention has shape ", attention.shape(), ", expected ", Shape{l, s},
                       " or ", Shape{n * heads, l, s});
    }
  }
  const auto left_out = [](const Tensor& t) { return !t.defined() || t.dtype() == DType::b8; };
  if (left_out(padding) && left_out(attention)) {
    if (padding.defined() && attention.defined()) return logical_not(logical_or(padding, attention));
    const Tensor& one = padding.defined() ? padding : attention;
    return one.defined() ? logical_not(one) : Tensor();
  }
  if (padding.defined() && attention.defined()) return additive(padding, dtype) + additive(attention, dtype);
  return padding.defined() ? padding : attention;
}

// The op's mask, which may be undefined, and Causal, for `more` keys at the end that every query sees.
Tensor with_more_keys(const Tensor& mask, Causal causal, std::int64_t l, std::int64_t s, std::int64_t more,
                      Device device) {
  Tensor all = mask;
  if (causal == Causal::yes) {
    const Tensor later = gt(arange(s, device), unsqueeze(arange(l, device), 1));
    if (!mask.defined())
      all = logical_not(later);
    else
      all = mask.dtype() == DType::b8 ? logical_and(mask, logical_not(later)) : masked_fill(mask, later, -kInfinity);
  }
  return all.defined() ? pad(all, {0, more}, all.dtype() == DType::b8 ? 1 : 0) : all;
}

}  // namespace

MultiheadAttention::MultiheadAttention(Module& parent, std::string_view name, Options given)
    : Module(parent, name),
      options(checked(given)),
      in_proj_weight(one_width(options)
                         ? Parameter(*this, "in_proj_weight", {3 * options.embed_dim, options.embed_dim}, xavier)
                         : Parameter()),
      q_proj_weight(one_width(options)
                        ? Parameter()
                        : Parameter(*this, "q_proj_weight", {options.embed_dim, options.embed_dim}, xavier)),
      k_proj_weight(one_width(options)
                        ? Parameter()
                        : Parameter(*this, "k_proj_weight",
                                    {options.embed_dim, options.kdim.value_or(options.embed_dim)}, xavier)),
      v_proj_weight(one_width(options)
                        ? Parameter()
                        : Parameter(*this, "v_proj_weight",
                                    {options.embed_dim, options.vdim.value_or(options.embed_dim)}, xavier)),
      in_proj_bias(options.bias ? Parameter(*this, "in_proj_bias", {3 * options.embed_dim}, constant_value(0))
                                : Parameter()),
      bias_k(options.add_bias_kv ? Parameter(*this, "bias_k", {1, 1, options.embed_dim},
                                             [](Tensor& x, Generator& gen) { init::xavier_normal_(x, gen); })
                                 : Parameter()),
      bias_v(options.add_bias_kv ? Parameter(*this, "bias_v", {1, 1, options.embed_dim},
                                             [](Tensor& x, Generator& gen) { init::xavier_normal_(x, gen); })
                                 : Parameter()),
      out_proj(*this, "out_proj", {.in = options.embed_dim, .out = options.embed_dim, .bias = options.bias}),
      generator_(*this, "generator") {
  if (options.bias) init::zeros_(out_proj.bias);
}

AttentionOutput MultiheadAttention::run(const Tensor& query, const Tensor& key, const Tensor& value,
                                        const AttentionMasks& masks, Weights weights) const {
  const std::int64_t e = options.embed_dim, heads = options.num_heads;
  const auto check = [&](const char* name, const Tensor& x, std::int64_t features) {
    if (x.rank() != 3 || x.size(2) != features) {
      fail<ShapeError>("MultiheadAttention: ", name, " has shape ", x.shape(), ", expected ",
                       options.batch_first ? "[N, L, " : "[L, N, ", features, "]");
    }
  };
  check("query", query, e);
  check("key", key, options.kdim.value_or(e));
  check("value", value, options.vdim.value_or(e));
  std::array<Tensor, 3> in{query, key, value};
  const bool one = query.impl() == key.impl() && key.impl() == value.impl();
  if (!options.batch_first) {
    for (Tensor& t : in) t = transpose(t, 0, 1);
  }
  const std::int64_t n = in[0].size(0), l = in[0].size(1), s = in[1].size(1);
  if (in[1].size(0) != n || in[2].size(0) != n || in[2].size(1) != s) {
    fail<ShapeError>("MultiheadAttention: query ", query.shape(), ", key ", key.shape(), " and value ", value.shape(),
                     "; expected one N, and one S of key and value");
  }
  // One product where query, key and value are one tensor, else three.
  std::array<Tensor, 3> qkv;
  if (one && in_proj_weight.defined()) {
    const Tensors parts = chunk(linear(in[0], in_proj_weight, in_proj_bias), 3, -1);
    for (std::size_t i = 0; i < 3; ++i) qkv[i] = parts[i];
  } else {
    const std::array<const Parameter*, 3> own{&q_proj_weight, &k_proj_weight, &v_proj_weight};
    for (std::size_t i = 0; i < 3; ++i) {
      const auto row = static_cast<std::int64_t>(i) * e;
      qkv[i] = linear(in[i], in_proj_weight.defined() ? narrow(in_proj_weight, 0, row, e) : Tensor(*own[i]),
                      in_proj_bias.defined() ? narrow(in_proj_bias, 0, row, e) : Tensor());
    }
  }
  Tensor mask = op_mask(masks, n, heads, l, s, qkv[0].dtype());
  Causal causal = masks.causal;
  if (const int more = (options.add_bias_kv ? 1 : 0) + (options.add_zero_attn ? 1 : 0); more > 0) {
    mask = with_more_keys(mask, causal, l, s, more, query.device());
    causal = Causal::no;
    const std::array<const Parameter*, 2> trained{&bias_k, &bias_v};
    for (std::size_t i = 0; i < 2; ++i) {
      Tensor& t = qkv[i + 1];
      const Tensor last = options.add_bias_kv ? expand(cast(*trained[i], t.dtype()), {n, 1, e}) : Tensor();
      if (last.defined()) t = cat({t, last}, 1);
      if (options.add_zero_attn) t = pad(t, {0, 0, 0, 1});
    }
  }
  for (Tensor& t : qkv) t = transpose(reshape(t, {n, t.size(1), heads, e / heads}), 1, 2);  // [N, heads, L, E / heads]
  const double p = is_training() ? options.dropout : 0;
  const AttentionOptions how{
      .mask = mask, .causal = causal, .dropout_p = p, .generator = p > 0 ? &generator_ : nullptr};
  AttentionOutput out;
  if (weights == Weights::yes) out.weights = attention_weights(qkv[0], qkv[1], how);
  const Tensor y =
      out.weights.defined() ? matmul(out.weights, qkv[2]) : scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], how);
  out.y = out_proj(reshape(transpose(y, 1, 2), {n, l, e}));
  if (!options.batch_first) out.y = transpose(out.y, 0, 1);
  return out;
}

Tensor MultiheadAttention::operator()(const Tensor& query, const Tensor& key, const Tensor& value,
                                      const AttentionMasks& masks) const {
  const Call call(*this, query, key, value);
  return call.gives(run(query, key, value, masks, Weights::no).y);
}

AttentionOutput MultiheadAttention::with_weights(const Tensor& query, const Tensor& key, const Tensor& value,
                                                 const AttentionMasks& masks, AverageHeads average) const {
  const Call call(*this, query, key, value);
  AttentionOutput out = run(query, key, value, masks, Weights::yes);
  if (average == AverageHeads::yes) out.weights = mean(out.weights, {1});
  call.gave(out.y, out.weights);
  return out;
}

TransformerEncoderLayer::TransformerEncoderLayer(Module& parent, std::string_view name, Options given)
    : Module(parent, name),
      options(checked(given)),
      self_attn(*this, "self_attn",
                {.embed_dim = options.d_model,
                 .num_heads = options.nhead,
                 .dropout = options.dropout,
                 .bias = options.bias,
                 .batch_first = options.batch_first}),
      linear1(*this, "linear1", {.in = options.d_model, .out = options.dim_feedforward, .bias = options.bias}),
      dropout(*this, "dropout", {.p = options.dropout}),
      linear2(*this, "linear2", {.in = options.dim_feedforward, .out = options.d_model, .bias = options.bias}),
      norm1(*this, "norm1", {.shape = options.d_model, .eps = options.layer_norm_eps, .bias = options.bias}),
      norm2(*this, "norm2", {.shape = options.d_model, .eps = options.layer_norm_eps, .bias = options.bias}),
      dropout1(*this, "dropout1", {.p = options.dropout}),
      dropout2(*this, "dropout2", {.p = options.dropout}) {}

Tensor TransformerEncoderLayer::attend(const Tensor& x, const AttentionMasks& masks) const {
  return dropout1(self_attn(x, masks));
}

Tensor TransformerEncoderLayer::feed_forward(const Tensor& x) const {
  return dropout2(perceptron(x, linear1, dropout, linear2, options.activation));
}

Tensor TransformerEncoderLayer::operator()(const Tensor& x, const AttentionMasks& masks) const {
  const Call call(*this, x);
  if (options.norm_first) {
    const Tensor y = x + attend(norm1(x), masks);
    return call.gives(y + feed_forward(norm2(y)));
  }
  const Tensor y = norm1(x + attend(x, masks));
  return call.gives(norm2(y + feed_forward(y)));
}

}  // namespace levin::nn
