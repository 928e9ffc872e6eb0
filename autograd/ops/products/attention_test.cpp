#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "tests/device.h"
#include "tests/ops/samples.h"
#include "tests/skip.h"
#if defined(LEVIN_SIMT)
#include "tensor/device/launch_ledger.h"
#endif

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();
const double inf = std::numeric_limits<double>::infinity();

// The definition in plain loops. q [B, L, E], k [B, S, E], v [B, S, Ev] as f64; mask [B, L, S] of added numbers, or
// empty.
Tensor attention_reference(const Tensor& q, const Tensor& k, const Tensor& v, const std::vector<double>& mask,
                           bool causal, double scale) {
  const std::int64_t b = q.size(0), l = q.size(1), e = q.size(2), s = k.size(1), ev = v.size(2);
  const std::vector<double> qs = q.contiguous().to_vector<double>(), ks = k.contiguous().to_vector<double>(),
                            vs = v.contiguous().to_vector<double>();
  std::vector<double> y(std::size_t(b * l * ev), 0.0);
  for (std::int64_t n = 0; n < b; ++n) {
    for (std::int64_t i = 0; i < l; ++i) {
      std::vector<double> w(std::size_t(s), 0.0);
      double most = -inf, sum = 0;
      for (std::int64_t j = 0; j < s; ++j) {
        double dot = 0;
        for (std::int64_t c = 0; c < e; ++c)
          dot += qs[std::size_t((n * l + i) * e + c)] * ks[std::size_t((n * s + j) * e + c)];
        dot *= scale;
        if (!mask.empty()) dot += mask[std::size_t((n * l + i) * s + j)];
        if (causal && j > i) dot = -inf;
        w[std::size_t(j)] = dot;
        most = std::max(most, dot);
      }
      if (most == -inf) continue;
      for (double& x : w) sum += x = std::exp(x - most);
      for (std::int64_t j = 0; j < s; ++j) {
        for (std::int64_t c = 0; c < ev; ++c)
          y[std::size_t((n * l + i) * ev + c)] += w[std::size_t(j)] / sum * vs[std::size_t((n * s + j) * ev + c)];
      }
    }
  }
  return from_data(std::span<const double>(y), {b, l, ev}, cpu);
}

std::vector<double> added(const Tensor& mask, const Shape& shape) {
  const Tensor full = expand(mask, shape).contiguous();
  std::vector<double> v = full.to(DType::f64).to_vector<double>();
  if (mask.dtype() == DType::b8) {
    for (double& x : v) x = x != 0 ? 0 : -inf;
  }
  return v;
}

}  // namespace

LEVIN_OP_CASE(scaled_dot_product_attention) {
  OpCase c{.ops = {"scaled_dot_product_attention", "scaled_dot_product_attention_backward"},
           .dtypes = kFloatDTypes,
           .ulps = 32,
           .layout_changes_sums = true};
  const auto add = [&](std::int64_t b, std::int64_t l, std::int64_t s, std::int64_t e, std::int64_t ev, Causal causal,
                       std::vector<Input> mask = {}) {
    OpSample x{.inputs = {real({b, l, e}), real({b, s, e}), real({b, s, ev})}, .call = {}, .reference = {}};
    for (const Input& m : mask) x.inputs.push_back(optional(m));
    x.call = [causal](const Tensors& in) {
      return Tensors{scaled_dot_product_attention(in[0], in[1], in[2],
                                                  {.mask = in.size() > 3 ? in[3] : Tensor(), .causal = causal})};
    };
    x.reference = [=](const Tensors& in) {
      return Tensors{attention_reference(in[0], in[1], in[2],
                                         in.size() > 3 ? added(in[3], {b, l, s}) : std::vector<double>{},
                                         causal == Causal::yes, 1 / std::sqrt(double(e)))};
    };
    c.samples.push_back(x);
  };
  add(1, 1, 1, 1, 1, Causal::no);
  add(0, 2, 3, 2, 2, Causal::no);
  add(2, 3, 4, 2, 3, Causal::no);
  add(1, 4, 4, 3, 2, Causal::yes);
  add(1, 3, 5, 2, 2, Causal::yes);
  add(1, 5, 3, 2, 2, Causal::yes);
  add(2, 3, 4, 2, 2, Causal::no, {mask({3, 4})});
  add(1, 4, 3, 2, 2, Causal::no,
      {fixed(from_data(std::span<const bool>(std::array<bool, 12>{true, false, true, false, false, false, true, true,
                                                                  true, false, true, true}),
                       {4, 3}, cpu))});
  add(2, 3, 4, 2, 2, Causal::yes, {real({2, 1, 4})});
  add(3, 40, 65, 16, 24, Causal::yes);
  add(2, 150, 150, 16, 8, Causal::yes);  // several blocks of rows
  add(2, 130, 70, 8, 16, Causal::no);
  c.errors.push_back({"widths",
                      [] {
                        (void)scaled_dot_product_attention(zeros({2, 3}, cpu), zeros({2, 4}, cpu), zeros({2, 4}, cpu));
                      },
                      throws<ShapeError>, "scaled_dot_product_attention: q has shape [2, 3], k [2, 4] and v [2, 4]"});
  c.errors.push_back({"mask",
                      [] {
                        (void)scaled_dot_product_attention(zeros({2, 3}, cpu), zeros({4, 3}, cpu), zeros({4, 3}, cpu),
                                                           {.mask = zeros({2, 2, 4}, cpu)});
                      },
                      throws<ShapeError>, "the mask has shape [2, 2, 4], expected one that broadcasts to [2, 4]"});
  c.errors.push_back({"mask dtype",
                      [] {
                        (void)scaled_dot_product_attention(zeros({2, 3}, cpu), zeros({4, 3}, cpu), zeros({4, 3}, cpu),
                                                           {.mask = zeros({2, 4}, cpu, DType::i64)});
                      },
                      throws<DTypeError>, "the mask is i64, expected bool or q's f32"});
  c.errors.push_back({"no generator",
                      [] {
                        (void)scaled_dot_product_attention(zeros({2, 3}, cpu), zeros({4, 3}, cpu), zeros({4, 3}, cpu),
                                                           {.dropout_p = 0.5});
                      },
                      throws<ConfigError>, "dropout_p is 0.5 and generator is null"});
  return c;
}

LEVIN_OP_CASE(grouped_queries) {
  OpCase c{.ops = {},
           .dtypes = kFloatDTypes,
           .ulps = 32,
           .layout_changes_sums = true,
           .no_single = "a group has several queries"};
  const auto add = [&](std::int64_t b, std::int64_t heads, std::int64_t group, std::int64_t l, std::int64_t s,
                       std::int64_t e, Causal causal, std::vector<Input> mask = {}) {
    OpSample x{.inputs = {real({b, heads * group, l, e}), real({b, heads, s, e}), real({b, heads, s, e + 1})},
               .call = {},
               .reference = {}};
    for (const Input& m : mask) x.inputs.push_back(optional(m));
    x.call = [causal](const Tensors& in) {
      return Tensors{scaled_dot_product_attention(
          in[0], in[1], in[2], {.mask = in.size() > 3 ? in[3] : Tensor(), .causal = causal, .enable_gqa = true})};
    };
    x.reference = [=](const Tensors& in) {
      const auto flat = [](const Tensor& t) { return flatten(t, 0, 1); };
      const auto repeated = [&](const Tensor& t) { return flat(repeat_interleave(t, group, 1)); };
      std::vector<double> masks;
      if (in.size() > 3) masks = added(in[3], {b, heads * group, l, s});
      const Tensor y = attention_reference(flat(in[0]), repeated(in[1]), repeated(in[2]), masks, causal == Causal::yes,
                                           1 / std::sqrt(double(e)));
      return Tensors{reshape(y, {b, heads * group, l, e + 1})};
    };
    c.samples.push_back(x);
  };
  add(1, 1, 2, 1, 2, 1, Causal::no);
  add(0, 2, 2, 2, 3, 2, Causal::no);
  add(2, 2, 3, 3, 4, 2, Causal::no);
  add(2, 1, 4, 4, 4, 3, Causal::yes);
  add(1, 2, 2, 3, 4, 2, Causal::no, {mask({3, 4})});
  add(2, 2, 2, 3, 2, 2, Causal::no, {real({2, 4, 3, 2})});
  add(2, 2, 2, 3, 2, 2, Causal::yes, {real({2, 1, 3, 2})});
  add(1, 2, 4, 70, 33, 16, Causal::yes);
  c.errors.push_back({"heads",
                      [] {
                        (void)scaled_dot_product_attention(zeros({5, 2, 3}, cpu), zeros({2, 4, 3}, cpu),
                                                           zeros({2, 4, 3}, cpu), {.enable_gqa = true});
                      },
                      throws<ShapeError>, "q has shape [5, 2, 3] and k [2, 4, 3], expected [..., heads, L, E] and"});
  c.errors.push_back({"heads of v",
                      [] {
                        (void)scaled_dot_product_attention(zeros({4, 2, 3}, cpu), zeros({2, 4, 3}, cpu),
                                                           zeros({1, 4, 3}, cpu), {.enable_gqa = true});
                      },
                      throws<ShapeError>, "expected one number of heads"});
  c.errors.push_back(
      {"fewer heads without enable_gqa",
       [] {
         (void)scaled_dot_product_attention(zeros({4, 2, 3}, cpu), zeros({2, 4, 3}, cpu), zeros({2, 4, 3}, cpu));
       },
       throws<ShapeError>, "scaled_dot_product_attention: "});
  c.errors.push_back({"no heads",
                      [] {
                        (void)scaled_dot_product_attention(zeros({2, 3}, cpu), zeros({4, 3}, cpu), zeros({4, 3}, cpu),
                                                           {.enable_gqa = true});
                      },
                      throws<ShapeError>, "q has shape [2, 3]"});
  return c;
}

LEVIN_OP_CASE(attention_weights) {
  OpCase c{.ops = {}, .dtypes = kFloatDTypes, .ulps = 32, .layout_changes_sums = true};
  const auto add = [&](std::int64_t b, std::int64_t l, std::int64_t s, std::int64_t e, Causal causal,
                       std::vector<Input> mask = {}) {
    OpSample x{.inputs = {real({b, l, e}), real({b, s, e})}, .call = {}, .reference = {}};
    for (const Input& m : mask) x.inputs.push_back(optional(m));
    x.call = [causal](const Tensors& in) {
      return Tensors{attention_weights(in[0], in[1], {.mask = in.size() > 2 ? in[2] : Tensor(), .causal = causal})};
    };
    // Attention to the unit vectors.
    x.reference = [=](const Tensors& in) {
      return Tensors{attention_reference(in[0], in[1], expand(eye(s, cpu, DType::f64), {b, s, s}),
                                         in.size() > 2 ? added(in[2], {b, l, s}) : std::vector<double>{},
                                         causal == Causal::yes, 1 / std::sqrt(double(e)))};
    };
    c.samples.push_back(x);
  };
  add(1, 1, 2, 1, Causal::no);
  add(0, 2, 3, 2, Causal::no);
  add(2, 3, 4, 2, Causal::no);
  add(1, 4, 3, 2, Causal::yes);
  add(2, 3, 4, 2, Causal::no, {mask({3, 4})});
  add(2, 3, 4, 2, Causal::yes, {real({2, 1, 4})});
  c.no_single = "the only weight of one key is 1, whatever the inputs";
  c.errors.push_back({"widths",
                      [] {
                        (void)attention_weights(zeros({2, 3}, cpu), zeros({2, 4}, cpu));
                      },
                      throws<ShapeError>, "attention_weights: q has shape [2, 3] and k [2, 4]"});
  c.errors.push_back({"mask",
                      [] {
                        (void)attention_weights(zeros({2, 3}, cpu), zeros({4, 3}, cpu), {.mask = zeros({3, 4}, cpu)});
                      },
                      throws<ShapeError>, "attention_weights: "});
  c.errors.push_back({"heads",
                      [] {
                        (void)attention_weights(zeros({5, 2, 3}, cpu), zeros({2, 4, 3}, cpu), {.enable_gqa = true});
                      },
                      throws<ShapeError>, "attention_weights: q has shape [5, 2, 3] and k [2, 4, 3]"});
  return c;
}

TEST_CASE("grouped queries give each head's group what repeated heads give, in groups of one weight too") {
  Generator gen(1);
  const Tensor q = randn({2, 6, 5, 4}, gen, cpu), k = randn({2, 2, 7, 4}, gen, cpu), v = randn({2, 2, 7, 3}, gen, cpu);
  const Tensor k3 = repeat_interleave(k, 3, 1), v3 = repeat_interleave(v, 3, 1);
  CHECK(equal(scaled_dot_product_attention(q, k, v, {.enable_gqa = true}), scaled_dot_product_attention(q, k3, v3)));
  CHECK(allclose(attention_weights(q, k, {.enable_gqa = true}), attention_weights(q, k3), 1e-5, 1e-6));
  // Heads of memory [B, L, H, E], as a projection leaves them.
  const Tensor inside = transpose(transpose(q, 1, 2).contiguous(), 1, 2);
  CHECK(
      equal(scaled_dot_product_attention(inside, k, v, {.enable_gqa = true}), scaled_dot_product_attention(q, k3, v3)));
  // Dropout draws one number for each weight.
  Generator one(3), two(3);
  const auto dropped = [&](Generator& g, const Tensor& keys, const Tensor& values, bool gqa) {
    return scaled_dot_product_attention(q, keys, values, {.dropout_p = 0.5, .generator = &g, .enable_gqa = gqa});
  };
  CHECK(allclose(dropped(one, k, v, true), dropped(two, k3, v3, false), 1e-5, 1e-6));
}

TEST_CASE(
    "attention on a device: 16-bit heads of every width it fuses, broadcast and strided batches, equal the cpu's") {
  const auto device = test::launching_device();
  if (!device) return test::skip("no device that launches kernels here");
  struct Case {
    Shape q, k, v;
  };
  for (const Case& c :
       {Case{{1, 70, 64}, {1, 70, 64}, {1, 70, 64}}, Case{{2, 1, 9, 100}, {1, 2, 80, 100}, {2, 2, 80, 40}},
        Case{{1, 65, 128}, {1, 130, 128}, {1, 130, 128}}, Case{{3, 20}, {2, 20}, {2, 129}}}) {
    for (const Causal causal : {Causal::no, Causal::yes}) {
      for (const DType dtype : {DType::f16, DType::bf16})
        for (const EngineChoice by : {EngineChoice::own, EngineChoice::first}) {
          const test::ChosenEngine engine(EngineFamily::attention, by);
          if (c.v.back() > 128 && causal == Causal::yes) continue;  // too wide for the fused op
          CAPTURE(text(c.q));
          CAPTURE(text(dtype));
          Generator g(1);
          const auto make = [&](const Shape& s) { return randn(s, g, cpu, DType::f64).to(dtype); };
          // Rows of q and k as a projection to two heads leaves them: every second row is the other head's.
          const auto both = [](const Shape& s) { return s.with(s.rank() - 2, 2 * s[s.rank() - 2]); };
          const auto head = [](const Tensor& t) { return slice(t, -2, 0, t.size(-2), 2); };
          const Tensor q = make(both(c.q)), k = make(both(c.k)), v = make(c.v);
          const Tensor want = scaled_dot_product_attention(head(q).to(DType::f64), head(k).to(DType::f64),
                                                           v.to(DType::f64), {.causal = causal});
          const Tensor got =
              scaled_dot_product_attention(head(q.to(*device)), head(k.to(*device)), v.to(*device), {.causal = causal});
          // A weight is rounded once and the result once; the weights of a row add up to 1 and |v| < 5.
          const double eps = dtype == DType::f16 ? 0x1p-11 : 0x1p-8;
          CHECK(allclose(got.to(cpu).to(DType::f64), want, 0, 5 * 2 * eps));
        }
    }
  }
}

TEST_CASE("attention on a device: 16-bit gradients of every width it fuses, odd lengths and causal, are those of f64") {
  const auto device = test::launching_device();
  if (!device) return test::skip("no device that launches kernels here");
  struct Case {
    Shape q, k, v;
  };
  for (const Case& c :
       {Case{{1, 70, 64}, {1, 70, 64}, {1, 70, 64}}, Case{{2, 1, 9, 33}, {1, 2, 81, 33}, {2, 2, 81, 20}},
        Case{{67, 128}, {130, 128}, {130, 128}}, Case{{150, 96}, {65, 96}, {65, 128}},
        Case{{2, 131, 32}, {2, 150, 32}, {2, 150, 24}}, Case{{1, 8}, {3, 8}, {3, 5}}}) {
    for (const Causal causal : {Causal::no, Causal::yes}) {
      for (const DType dtype : {DType::f16, DType::bf16})
        for (const EngineChoice by : {EngineChoice::own, EngineChoice::first}) {
          const test::ChosenEngine engine(EngineFamily::attention, by);
          CAPTURE(text(c.q));
          CAPTURE(text(dtype));
          CAPTURE(int(causal));
          Generator g(1);
          // Every second row is another head's, as a projection leaves them; the gradient is transposed, as from a
          // merge of heads.
          const auto make = [&](const Shape& s) {
            const Tensor both = randn(s.with(s.rank() - 2, 2 * s[s.rank() - 2]), g, cpu, DType::f64).to(dtype);
            return slice(both, -2, 0, both.size(-2), 2);
          };
          const Tensors in{make(c.q), make(c.k), make(c.v)};
          const auto seed_of = [&](const Shape& s) {
            Generator other(2);
            return transpose(
                randn(s.with(s.rank() - 2, s.back()).with(s.rank() - 1, s[s.rank() - 2]), other, cpu, DType::f64)
                    .to(dtype),
                -2, -1);
          };
          const auto gradients = [&](Device where, DType t) {
            Tensors x;
            for (const Tensor& u : in) x.push_back(u.to(where).to(t).detach()), x.back().requires_grad_();
            const Tensor y = scaled_dot_product_attention(x[0], x[1], x[2], {.causal = causal});
            Tensors out;
            for (const Tensor& u : grad(Tensors{y}, x, std::array{seed_of(y.shape()).to(where).to(t)}))
              out.push_back(u.to(cpu).to(DType::f64));
            return out;
          };
          const Tensors got = gradients(*device, dtype), want = gradients(cpu, DType::f64);

          // Rounded to T: weights, slopes, y (from rounded weights) and the results.
          const Tensor q = in[0].to(DType::f64), k = in[1].to(DType::f64), v = in[2].to(DType::f64);
          const double scale = 1 / std::sqrt(double(c.q.back()));
          Tensor scores = matmul(q, transpose(k, -2, -1)) * scale;
          if (causal == Causal::yes) {
            const Tensor row = unsqueeze(arange(scores.size(-2), cpu), 1), col = arange(scores.size(-1), cpu);
            scores = masked_fill(scores, gt(col, row), -inf);
          }
          const Tensor w = softmax(scores, -1), gy = seed_of(matmul(w, v).shape()).to(DType::f64);
          const Tensor mean_error = sum(abs(gy) * matmul(w, abs(v)), -1, KeepDim::yes) * 2;
          const Tensor d = matmul(gy, transpose(v, -2, -1));
          // The unit of T, and f32 sums of up to 150 terms; f16 has steps of 2^-24 even for the smallest numbers.
          const double eps = (dtype == DType::f16 ? 0x1p-11 : 0x1p-9) + 150 * 0x1p-24,
                       least = dtype == DType::f16 ? 0x1p-25 : 0;
          const Tensor slope_error = (w * (abs(d - sum(d * w, -1, KeepDim::yes)) + mean_error) * eps + least) * scale;
          const Tensors bounds{matmul(slope_error, abs(k)), matmul(transpose(slope_error, -2, -1), abs(q)),
                               matmul(transpose(w * eps + least, -2, -1), abs(gy))};
          for (std::size_t i = 0; i < 3; ++i) {
            CAPTURE(i);
            const Tensor bound = bounds[i].shape() == want[i].shape() ? bounds[i] : sum_to(bounds[i], want[i].shape());
            // The sum over a broadcast batch rounds its result once more.
            const Tensor allowed = bound * 2 + abs(want[i]) * (2 * eps) + 2 * least;
            CHECK(all(le(abs(got[i] - want[i]), allowed)).item<bool>());
          }
        }
    }
  }
}

TEST_CASE("attention of a row that may look at nothing is zero, and so are its gradients") {
  Generator g(1);
  Tensor q = randn({2, 4}, g, cpu, DType::f64), k = randn({3, 4}, g, cpu, DType::f64),
         v = randn({3, 2}, g, cpu, DType::f64);
  q.requires_grad_(), k.requires_grad_(), v.requires_grad_();
  const Tensor mask = logical_not(eq(arange(2, cpu), 0));  // row 0 attends to nothing
  const Tensor y = scaled_dot_product_attention(q, k, v, {.mask = unsqueeze(mask, 1)});
  CHECK(equal(select(y, 0, 0), zeros({2}, cpu, DType::f64)));
  backward(sum(y));
  CHECK(equal(select(q.grad(), 0, 0), zeros({4}, cpu, DType::f64)));
  CHECK(all(isfinite(k.grad())).item<bool>());
}

TEST_CASE("fused attention and its gradients over several blocks of rows equal the composite's") {
  // A mask that hides nothing runs in public ops.
  struct Case {
    Shape q, k, v;
  };
  for (const Case& c : {Case{{2, 150, 16}, {2, 150, 16}, {2, 150, 8}}, Case{{3, 1, 130, 8}, {2, 70, 8}, {2, 70, 12}}}) {
    for (const Causal causal : {Causal::no, Causal::yes}) {
      for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
        Generator g(1);
        const Tensors in{randn(c.q, g, cpu, DType::f64), randn(c.k, g, cpu, DType::f64),
                         randn(c.v, g, cpu, DType::f64)};
        const auto run = [&](DType t, bool fused, const Tensor& seed) {
          Tensors x;
          for (const Tensor& u : in) x.push_back(u.to(dtype).to(t)), x.back().requires_grad_();
          const Tensor everybody = fused ? Tensor() : ones({1, 1}, cpu, DType::b8);
          Tensors out{scaled_dot_product_attention(x[0], x[1], x[2], {.mask = everybody, .causal = causal})};
          for (const Tensor& u : grad(out, x, std::array{seed.to(t)})) out.push_back(u);
          return out;
        };
        const Tensor y = scaled_dot_product_attention(in[0], in[1], in[2]);
        const Tensor seed = randn(y.shape(), g, cpu, DType::f64).to(dtype);
        const Tensors got = run(dtype, true, seed), want = run(DType::f64, false, seed);
        for (std::size_t i = 0; i < got.size(); ++i) {
          CAPTURE(i);
          CAPTURE(text(dtype));
          // Sums of at most 150 * 3 rounded terms, each a product of a few rounded factors.
          const double error = amax(abs(got[i].to(DType::f64) - want[i])).item(), scale = amax(abs(want[i])).item();
          CHECK(error <= 8 * epsilon(dtype) * std::sqrt(450.0) * scale);
        }
      }
    }
  }
}

TEST_CASE("attention with dropout draws from the generator it is given and keeps the mean") {
  Generator g(1), d(2);
  const Tensor q = randn({64, 8}, g, cpu), k = randn({64, 8}, g, cpu), v = ones({64, 1}, cpu);
  const Tensor y = scaled_dot_product_attention(q, k, v, {.dropout_p = 0.25, .generator = &d});
  CHECK(d.state().offset == 64 * 64 / 4);
  // Each row is a mean of 64 weights, kept with probability 3/4 and scaled by 4/3; 64 rows: standard error below 0.05.
  CHECK(std::abs(mean(y).item() - 1) < 0.25);
  CHECK(std::abs(mean(y).item() - 1) > 0);
}

namespace {
// Attention as models call it: heads are thirds of one product's columns, and the result's heads lie beside each other
// for the next product. `apart` gives attention copies of the thirds.
struct OfHeads {
  Tensor qkv;  // [B, L, 3, H, E]
  [[nodiscard]] Tensor joined(const Tensor& y) const {
    return reshape(permute(y, {0, 2, 1, 3}), {qkv.size(0), qkv.size(1), qkv.size(3) * qkv.size(4)});
  }
  [[nodiscard]] Tensor result(bool apart) const {
    Tensors parts = unbind(permute(qkv, {2, 0, 3, 1, 4}));
    if (apart)
      for (Tensor& t : parts) t = t.contiguous();
    return scaled_dot_product_attention(parts[0], parts[1], parts[2], {.causal = Causal::yes});
  }
};
OfHeads heads_on(Device device, DType dtype) {
  Generator gen(5);
  OfHeads h{(rand({2, 70, 3, 3, 32}, gen, cpu) * 2 - 1).to(dtype).to(device).detach()};
  h.qkv.requires_grad_();
  return h;
}
}  // namespace

TEST_CASE("attention of heads that lie beside each other has the values of attention of copies, on a device") {
  DEVICE_OR_SKIP();
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const OfHeads h = heads_on(device, dtype);
    Generator gen(6);
    const Tensor seed = (rand({2, 70, 96}, gen, cpu) - 0.5).to(dtype).to(device);
    const auto values = [&](bool apart) {
      const Tensor y = h.joined(h.result(apart));
      const Tensor g = grad(Tensors{y}, Tensors{h.qkv}, Tensors{seed})[0];
      CHECK(g.shape() == h.qkv.shape());
      return std::pair(y.to(cpu).to(DType::f32).to_vector<float>(), g.to(cpu).to(DType::f32).to_vector<float>());
    };
    CHECK(values(false) == values(true));
  }
}

TEST_CASE("gradients of the thirds of one product on a device are joined only where they lie as thirds do") {
  DEVICE_OR_SKIP();
  const OfHeads h = heads_on(device, DType::bf16);
  const auto gradient = [&](auto f) {
    const Tensors parts = unbind(permute(h.qkv, {2, 0, 3, 1, 4}));
    const Tensor y = sum(f(parts).to(DType::f32));
    return grad(Tensors{y}, Tensors{h.qkv}, {})[0].to(cpu).to(DType::f32);
  };
  // The second third alone, and the thirds in another order.
  const Tensor one = gradient([](const Tensors& t) { return t[1] * 2; });
  CHECK(sum(one).item() == 2 * one.numel() / 3);
  CHECK(sum(select(one, 2, 1)).item() == 2 * one.numel() / 3);
  const auto attend = [](const Tensor& q, const Tensor& k, const Tensor& v) {
    return scaled_dot_product_attention(q, k, v);
  };
  const Tensor turned = gradient([&](const Tensors& t) { return attend(t[2], t[0], t[1]); });
  const Tensor copied =
      gradient([&](const Tensors& t) { return attend(t[2].contiguous(), t[0].contiguous(), t[1].contiguous()); });
  CHECK(turned.to_vector<float>() == copied.to_vector<float>());
}

#if defined(LEVIN_SIMT)
TEST_CASE("attention between two products of heads launches itself alone, and two kernels in its backward") {
  struct Ledger : detail::LaunchLedger {
    Ledger() { detail::mode().detour = true; }
  };
  const OfHeads h = heads_on(Device::simt(), DType::bf16);
  const Tensor seed = zeros({2, 70, 96}, Device::simt(), DType::bf16);
  Ledger ledger;
  const Tensor y = h.joined(h.result(false));
  auto calls = ledger.take();
  REQUIRE(calls.size() == 1);
  CHECK(calls[0].op == "scaled_dot_product_attention");
  CHECK(calls[0].launches.size() == 1);
  (void)grad(Tensors{y}, Tensors{h.qkv}, Tensors{seed});
  calls = ledger.take();
  REQUIRE(calls.size() == 1);
  CHECK(calls[0].op == "scaled_dot_product_attention_backward");
  CHECK(calls[0].launches.size() == 2);
}
#endif

}  // namespace levin::testing
