// Modules of sequences on a device: the CPU's numbers, no waits; and under autocast.
#include <doctest/doctest.h>

#include <algorithm>

#include "levin/autograd.h"
#include "levin/nn.h"
#include "levin/ops.h"
#include "levin/sync.h"
#include "tests/device.h"

namespace levin {
namespace {

// A text, its lengths, and layers of every kind over it.
struct Sequences : nn::Module {
  explicit Sequences(nn::Options o) : Module(std::move(o)) {}
  nn::EmbeddingBag bag{*this, "bag", {.count = 7, .dim = 8, .padding_idx = 2}};
  nn::Transformer transformer{*this,
                              "transformer",
                              {.d_model = 8,
                               .nhead = 2,
                               .num_encoder_layers = 1,
                               .num_decoder_layers = 1,
                               .dim_feedforward = 6,
                               .dropout = 0,
                               .activation = nn::Activation::gelu}};
  nn::MultiheadAttention attention{
      *this,
      "attention",
      {.embed_dim = 8, .num_heads = 2, .add_bias_kv = true, .add_zero_attn = true, .kdim = 5, .vdim = 6}};
  nn::LSTM lstm{*this, "lstm", {.in = 8, .hidden = 5, .batch_first = true, .bidirectional = true, .proj_size = 3}};
  nn::GRU gru{*this, "gru", {.in = 6, .hidden = 5, .batch_first = true}};
  nn::RNN rnn{*this, "rnn", {.in = 5, .hidden = 4, .batch_first = true}};
  nn::Linear head{*this, "head", {.in = 4, .out = 5}};

  // x [2, 4, 8], index [2, 4, 3] of rows of the bag, lengths and targets [2], labels [2, 2].
  Tensor operator()(const Tensor& x, const Tensor& index, const Tensor& lengths, const Tensor& labels,
                    const Tensor& target_lengths) const {
    const Tensor words = reshape(bag(reshape(index, {8, 3})), {2, 4, 8});
    const Tensor padding = ge(arange(4, x.device()), unsqueeze(lengths, 1));
    const nn::AttentionMasks padded{.key_padding = padding};
    const Tensor y = transformer(words, x, {.src = padded, .tgt = {.causal = Causal::yes}, .memory = padded});
    const auto [z, weights] =
        attention.with_weights(y, narrow(x, 2, 0, 5), narrow(x, 2, 2, 6), padded, nn::AverageHeads::yes);
    const Tensor turned = rotary_embedding(z, arange(4, x.device()));
    const Tensor h = rnn(gru(lstm(turned, {}, lengths).y, {}, lengths).y, {}, lengths).y;
    const Tensor loss = ctc_loss(log_softmax(transpose(head(h), 0, 1), -1), labels, lengths, target_lengths);
    return loss + sum(square(weights));
  }
};

struct Text {
  Generator gen{5};
  Tensor x = randn({2, 4, 8}, gen, Device::cpu()), index = randint(0, 7, {2, 4, 3}, gen, Device::cpu());
  Tensor lengths = from_data(std::vector<std::int64_t>{4, 3}, {2}, Device::cpu());
  Tensor labels = from_data(std::vector<std::int64_t>{1, 3, 4, 0}, {2, 2}, Device::cpu());
  Tensor target_lengths = from_data(std::vector<std::int64_t>{2, 1}, {2}, Device::cpu());
  [[nodiscard]] Tensor loss(const Sequences& m) const { return m(x, index, lengths, labels, target_lengths); }
};

TEST_CASE("modules of sequences on a device give the CPU's values and gradients without a wait") {
  DEVICE_OR_SKIP();
  const Text text;
  Generator seed(1);
  Sequences here({.gen = seed, .device = Device::cpu()}), there({.gen = seed, .device = device});
  const Tensor y = text.loss(here);
  backward(y);
  Text moved = text;
  for (Tensor* t : {&moved.x, &moved.index, &moved.lengths, &moved.labels, &moved.target_lengths}) *t = t->to(device);
  Tensor z;
  {
    SyncLedger ledger;
    const SyncGuard guard(ledger, SyncCheck::forbid);
    z = moved.loss(there);
    backward(z);
  }
  // Some hundred roundings on the way.
  CHECK(allclose(z.detach().to(Device::cpu()), y.detach(), 1e-5, 1e-5));
  const auto a = here.parameters(), b = there.parameters();
  for (std::size_t i = 0; i < a.size(); ++i) {
    CAPTURE(a[i].name);
    CHECK(allclose(b[i].value->grad().to(Device::cpu()), a[i].value->grad(), 1e-4, 1e-5));
  }
}

TEST_CASE("a cache on a device keeps keys and values without a wait") {
  DEVICE_OR_SKIP();
  Generator gen(1);
  const Tensor k = randn({1, 2, 5, 8}, gen, Device::cpu()), v = randn({1, 2, 5, 8}, gen, Device::cpu()),
               q = randn({1, 4, 5, 8}, gen, Device::cpu());
  const Tensor want = scaled_dot_product_attention(q, k, v, {.causal = Causal::yes, .enable_gqa = true});
  const NoGrad off;
  nn::KeyValueCache cache({.batch = 1, .heads = 2, .capacity = 6, .width = 8, .device = device});
  const Tensor dk = k.to(device), dv = v.to(device), dq = q.to(device);
  Tensors rows;
  {
    SyncLedger ledger;
    const SyncGuard guard(ledger, SyncCheck::forbid);
    for (const auto& [at, n] : {std::pair<std::int64_t, std::int64_t>{0, 2}, {2, 1}, {3, 2}}) {
      const auto all = cache.append(narrow(dk, 2, at, n), narrow(dv, 2, at, n));
      rows.push_back(scaled_dot_product_attention(narrow(dq, 2, at, n), all.k, all.v,
                                                  {.mask = cache.causal_mask(n), .enable_gqa = true}));
    }
  }
  CHECK(allclose(cat(rows, 2).to(Device::cpu()), want, 1e-5, 1e-5));
}

TEST_CASE("modules of sequences on the cpu, as on a device, run under autocast near the loss of f32") {
  const Text text;
  Generator seed(1);
  Sequences m({.gen = seed, .device = Device::cpu()});
  const double exact = text.loss(m).item<double>();
  for (const DType dtype : {DType::bf16, DType::f16}) {
    m.zero_grad();
    const Autocast on(dtype);
    const Tensor loss = text.loss(m);
    // Losses of about 5 and an eps of 2^-8.
    CHECK(loss.item<double>() == doctest::Approx(exact).epsilon(0.05));
    backward(loss);
    for (const ParamRef& p : m.parameters()) {
      CAPTURE(p.name);
      CHECK(all(isfinite(p.value->grad())).item<bool>());
    }
  }
}

}  // namespace
}  // namespace levin
