#include "levin/nn/kv_cache.h"

#include <cmath>
#include <optional>

#include "nn/golden_test.h"

namespace levin {
namespace {

// A block as Llama has it: RMS norms, rotated queries and keys, fewer heads of keys than of queries, a gated
// perceptron.
struct LlamaBlock : nn::Module {
  static constexpr std::int64_t kHeads = 4, kKeyHeads = 2, kWidth = 6, kModel = kHeads * kWidth, kHidden = 10;
  using Module::Module;
  nn::RMSNorm input_layernorm{*this, "input_layernorm", {.features = kModel, .eps = 1e-5}};
  nn::Linear q_proj{*this, "q_proj", {.in = kModel, .out = kModel, .bias = false}};
  nn::Linear k_proj{*this, "k_proj", {.in = kModel, .out = kKeyHeads * kWidth, .bias = false}};
  nn::Linear v_proj{*this, "v_proj", {.in = kModel, .out = kKeyHeads * kWidth, .bias = false}};
  nn::Linear o_proj{*this, "o_proj", {.in = kModel, .out = kModel, .bias = false}};
  nn::RMSNorm post_attention_layernorm{*this, "post_attention_layernorm", {.features = kModel, .eps = 1e-5}};
  nn::Linear gate_proj{*this, "gate_proj", {.in = kModel, .out = kHidden, .bias = false}};
  nn::Linear up_proj{*this, "up_proj", {.in = kModel, .out = kHidden, .bias = false}};
  nn::Linear down_proj{*this, "down_proj", {.in = kHidden, .out = kModel, .bias = false}};

  // x [B, T, kModel] at the positions i64 [T], after the tokens in the cache, if there is one.
  Tensor operator()(const Tensor& x, const Tensor& positions, nn::KeyValueCache* cache = nullptr) const {
    const nn::Call call(*this, x);
    const std::int64_t n = x.size(0), length = x.size(1);
    const auto heads = [&](const Tensor& t, std::int64_t count) {
      return transpose(view(t, {n, length, count, kWidth}), 1, 2);
    };
    const Tensor in = input_layernorm(x);
    const RotaryTable table = rotary_table(positions, kWidth, 500, x.dtype());
    const Tensor q = apply_rotary(heads(q_proj(in), kHeads), table);
    Tensor k = apply_rotary(heads(k_proj(in), kKeyHeads), table), v = heads(v_proj(in), kKeyHeads);
    AttentionOptions how{.causal = Causal::yes, .enable_gqa = true};
    if (cache) {
      const auto all = cache->append(k, v);
      k = all.k, v = all.v;
      how = {.mask = cache->causal_mask(length), .enable_gqa = true};
    }
    const Tensor y = scaled_dot_product_attention(q, k, v, how);
    const Tensor z = x + o_proj(reshape(transpose(y, 1, 2), {n, length, kModel}));
    const Tensor normed = post_attention_layernorm(z);
    return call.gives(z + down_proj(silu(gate_proj(normed)) * up_proj(normed)));
  }
};

using Matrix = std::vector<std::vector<double>>;

// The block in plain loops, for one text x [T][kModel].
Matrix plain_block(const LlamaBlock& block, const Matrix& x) {
  const auto weight = [](const nn::Linear& l) { return l.weight.detach().to_vector<double>(); };
  const auto product = [](const std::vector<double>& w, const std::vector<double>& in) {
    std::vector<double> out(w.size() / in.size(), 0.0);
    for (std::size_t i = 0; i < out.size(); ++i)
      for (std::size_t j = 0; j < in.size(); ++j) out[i] += w[i * in.size() + j] * in[j];
    return out;
  };
  const auto norm = [](const nn::RMSNorm& m, const std::vector<double>& in) {
    const std::vector<double> w = m.weight.detach().to_vector<double>();
    double squares = 0;
    for (const double v : in) squares += v * v;
    std::vector<double> out(in.size());
    for (std::size_t i = 0; i < in.size(); ++i)
      out[i] = in[i] / std::sqrt(squares / static_cast<double>(in.size()) + 1e-5) * w[i];
    return out;
  };
  constexpr std::size_t width = LlamaBlock::kWidth, half = width / 2;
  const auto rotate = [](std::vector<double>& heads, std::size_t position) {
    for (std::size_t begin = 0; begin < heads.size(); begin += width) {
      for (std::size_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(position) * std::pow(500.0, -2.0 * static_cast<double>(i) / width);
        const double a = heads[begin + i], b = heads[begin + i + half];
        heads[begin + i] = a * std::cos(angle) - b * std::sin(angle);
        heads[begin + i + half] = b * std::cos(angle) + a * std::sin(angle);
      }
    }
  };
  Matrix q, k, v, out;
  for (std::size_t t = 0; t < x.size(); ++t) {
    const std::vector<double> in = norm(block.input_layernorm, x[t]);
    q.push_back(product(weight(block.q_proj), in));
    k.push_back(product(weight(block.k_proj), in));
    v.push_back(product(weight(block.v_proj), in));
    rotate(q.back(), t);
    rotate(k.back(), t);
    std::vector<double> seen(LlamaBlock::kModel, 0.0);
    for (std::size_t h = 0; h < LlamaBlock::kHeads; ++h) {
      const std::size_t of = h / (LlamaBlock::kHeads / LlamaBlock::kKeyHeads) * width;
      std::vector<double> scores;
      double total = 0;
      for (std::size_t s = 0; s <= t; ++s) {
        double dot = 0;
        for (std::size_t i = 0; i < width; ++i) dot += q[t][h * width + i] * k[s][of + i];
        scores.push_back(std::exp(dot / std::sqrt(static_cast<double>(width))));
        total += scores.back();
      }
      for (std::size_t s = 0; s <= t; ++s)
        for (std::size_t i = 0; i < width; ++i) seen[h * width + i] += scores[s] / total * v[s][of + i];
    }
    std::vector<double> z = product(weight(block.o_proj), seen);
    for (std::size_t i = 0; i < z.size(); ++i) z[i] += x[t][i];
    const std::vector<double> normed = norm(block.post_attention_layernorm, z);
    std::vector<double> hidden = product(weight(block.gate_proj), normed);
    const std::vector<double> up = product(weight(block.up_proj), normed);
    for (std::size_t i = 0; i < hidden.size(); ++i) hidden[i] *= up[i] / (1 + std::exp(-hidden[i]));
    const std::vector<double> more = product(weight(block.down_proj), hidden);
    for (std::size_t i = 0; i < z.size(); ++i) z[i] += more[i];
    out.push_back(z);
  }
  return out;
}

struct Llama {
  Root root;
  LlamaBlock block{root, "block"};
  Tensor x = wave({2, 7, LlamaBlock::kModel}, 0.25);
  Tensor positions = arange(7, Device::cpu());
  Llama() { fill_waves(block); }
  static nn::KeyValueCache cache(std::int64_t capacity) {
    return nn::KeyValueCache({.batch = 2,
                              .heads = LlamaBlock::kKeyHeads,
                              .capacity = capacity,
                              .width = LlamaBlock::kWidth,
                              .device = Device::cpu(),
                              .dtype = DType::f64});
  }
};

TEST_CASE("a block with rotated, grouped queries is what plain loops compute") {
  const Llama llama;
  const Tensor y = llama.block(llama.x, llama.positions);
  for (std::int64_t n = 0; n < 2; ++n) {
    Matrix rows;
    for (const Tensor& row : unbind(select(llama.x, 0, n))) rows.push_back(row.to_vector<double>());
    std::vector<double> expected;
    for (const std::vector<double>& row : plain_block(llama.block, rows))
      expected.insert(expected.end(), row.begin(), row.end());
    check_close(select(y, 0, n), expected);
  }
  backward(sum(square(y)));
  for (const auto& [name, p] : llama.block.named_parameters()) CHECK_MESSAGE(p.grad().defined(), name);
}

TEST_CASE("generation with a cache gives each token what the whole text gives it") {
  const Llama llama;
  const NoGrad off;
  const Tensor whole = llama.block(llama.x, llama.positions);
  // A prompt of some tokens, then the others in pieces.
  for (const std::vector<std::int64_t>& pieces :
       {std::vector<std::int64_t>{1, 1, 1, 1, 1, 1, 1}, {4, 1, 1, 1}, {3, 2, 2}, {7}}) {
    nn::KeyValueCache cache = Llama::cache(7);
    std::int64_t at = 0;
    for (const std::int64_t n : pieces) {
      const Tensor y = llama.block(narrow(llama.x, 1, at, n), narrow(llama.positions, 0, at, n), &cache);
      check_close(y, narrow(whole, 1, at, n).to_vector<double>());
      at += n;
      CHECK(cache.length() == at);
    }
  }
  // Back to the first three tokens, and on.
  nn::KeyValueCache cache = Llama::cache(7);
  (void)llama.block(llama.x, llama.positions, &cache);
  cache.truncate(3);
  const Tensor y = llama.block(narrow(llama.x, 1, 3, 2), narrow(llama.positions, 0, 3, 2), &cache);
  check_close(y, narrow(whole, 1, 3, 2).to_vector<double>());
}

TEST_CASE("a cache keeps its memory, and gives views of it") {
  const NoGrad off;
  nn::KeyValueCache cache = Llama::cache(4);
  const Tensor k = wave({2, 2, 1, 6}, 0.5), v = wave({2, 2, 1, 6}, 1.5);
  const auto first = cache.append(k, v), second = cache.append(v, k);
  CHECK(first.k.shares_storage(second.k));
  CHECK(equal(first.k, k));
  CHECK(equal(first.v, v));
  CHECK(equal(second.k, cat({k, v}, 2)));
  CHECK(equal(cache.views().v, cat({v, k}, 2)));
  CHECK(cache.causal_mask(2).to_vector<bool>() == std::vector<bool>{true, false, true, true});
  CHECK(!cache.causal_mask(1).defined());
  cache.clear();
  CHECK(cache.views().k.shape() == Shape{2, 2, 0, 6});
}

TEST_CASE("a cache refuses what does not fit, and keeps what it has") {
  CHECK_THROWS_AS(nn::KeyValueCache({.batch = 1, .heads = 1, .capacity = 0, .width = 1, .device = Device::cpu()}),
                  ConfigError);
  CHECK_THROWS_AS(
      nn::KeyValueCache(
          {.batch = 1, .heads = 1, .capacity = 1, .width = 1, .device = Device::cpu(), .dtype = DType::i64}),
      DTypeError);
  nn::KeyValueCache cache = Llama::cache(2);
  const Tensor one = wave({2, 2, 1, 6}, 0.5), two = wave({2, 2, 2, 6}, 0.5);
  (void)cache.append(one, one);
  CHECK_THROWS_WITH_AS((void)cache.append(two, two), doctest::Contains("1 tokens and 2 more, expected at most the"),
                       ShapeError);
  CHECK_THROWS_AS((void)cache.append(one, two), ShapeError);
  CHECK_THROWS_AS((void)cache.append(select(one, 0, 0), one), ShapeError);
  CHECK_THROWS_AS((void)cache.append(one.to(DType::f32), one), DTypeError);
  CHECK_THROWS_AS((void)cache.append(one, Tensor()), StateError);
  CHECK_THROWS_AS((void)cache.append(one, empty({2, 2, 1, 6}, Device::meta(), DType::f64)), DeviceError);
  Tensor recorded = one.clone();
  recorded.requires_grad_();
  CHECK_THROWS_AS((void)cache.append(recorded, one), AutogradError);
  CHECK_THROWS_AS((void)cache.causal_mask(2), ShapeError);
  CHECK_THROWS_AS((void)cache.causal_mask(0), ShapeError);
  CHECK_THROWS_AS(cache.truncate(2), ShapeError);
  CHECK(cache.length() == 1);
  CHECK(equal(cache.views().k, one));
}

}  // namespace
}  // namespace levin
