// What is said to the vendor's library is the attention that was asked for, and cuDNN has engines for it: asked on the
// host, for a device that is described to it and need not be here.
#include "kernels/attention/attention_library.h"

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/lib/described_h100_test.h"
#include "levin/engines.h"
#include "levin/ops.h"
#include "tests/skip.h"

using namespace levin;
using namespace levin::kernels;

namespace {

// Numbers of 16 bits whose neighbours differ.
Tensor numbers(const Shape& shape, std::uint32_t seed) {
  std::vector<float> values(static_cast<std::size_t>(shape.numel()));
  for (float& v : values) {
    seed = seed * 1664525u + 1013904223u;
    v = float(int(seed >> 24) % 17 - 8) / 8;
  }
  return from_data<float>(values, shape, Device::cpu()).to(DType::bf16);
}

struct Sizes {
  std::int64_t rows, cols, width, out_width;
};
AttentionTensors tensors_of(const Shape& batch, const Sizes& s, DType dtype, bool backward) {
  const auto make = [&](std::int64_t rows, std::int64_t cols) {
    return empty(batch.inserted(batch.rank(), rows).inserted(batch.rank() + 1, cols), Device::cpu(), dtype);
  };
  const auto row = [&] { return empty(batch.inserted(batch.rank(), s.rows), Device::cpu(), DType::f32); };
  AttentionTensors t{make(s.rows, s.width), make(s.cols, s.width), make(s.cols, s.out_width), make(s.rows, s.out_width),
                     row()};
  if (backward) {
    t.gy = make(s.rows, s.out_width);
    t.gq = make(s.rows, s.width), t.gk = make(s.cols, s.width), t.gv = make(s.cols, s.out_width);
    t.means = row();
  }
  return t;
}

float at(const LibraryAttention::Operand& o, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
  REQUIRE((b < o.sizes[0] && h < o.sizes[1] && i < o.sizes[2] && j < o.sizes[3]));
  return float(
      static_cast<const bf16*>(o.data)[b * o.strides[0] + h * o.strides[1] + i * o.strides[2] + j * o.strides[3]]);
}
// y [b, h, i, j] as a library reads the words of a LibraryAttention.
double said(const LibraryAttention& c, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
  double sum = 0, result = 0;
  for (std::int64_t col = 0; col < c.k.sizes[2]; ++col) {
    if (c.causal && col > i) break;
    double score = 0;
    for (std::int64_t d = 0; d < c.q.sizes[3]; ++d)
      score += double(at(c.q, b, h, i, d)) * double(at(c.k, b, h, col, d));
    const double weight = std::exp(double(c.scale) * score);
    sum += weight;
    result += weight * double(at(c.v, b, h, col, j));
  }
  return result / sum;
}

}  // namespace

TEST_CASE("attention in the library's terms is the one that was asked for: permuted, folded and causal") {
  // [a, b, rows, heads, width] in memory, as a projection leaves its heads; batch dimensions a and b fold into one.
  const std::int64_t heads = 3, rows = 7, cols = 5, width = 16, out_width = 8;
  for (const bool causal : {false, true}) {
    for (const Shape& lead : {Shape{2}, Shape{2, 2}}) {
      const auto make = [&](std::int64_t lines, std::int64_t last, std::uint32_t seed) {
        const Shape s =
            lead.inserted(lead.rank(), lines).inserted(lead.rank() + 1, heads).inserted(lead.rank() + 2, last);
        return transpose(numbers(s, seed), -3, -2);
      };
      AttentionTensors t{make(rows, width, 1), make(cols, width, 2), make(cols, out_width, 3), {}, {}};
      const Tensor want = scaled_dot_product_attention(t.q, t.k, t.v, {.causal = causal ? Causal::yes : Causal::no});
      const Shape batch = lead.inserted(lead.rank(), heads);
      t.y = empty(want.shape(), Device::cpu(), DType::bf16);
      t.lse = empty(batch.inserted(batch.rank(), rows), Device::cpu(), DType::f32);
      const auto call = library_attention(batch, 0.25, causal, t);
      REQUIRE(call);
      CHECK(call->q.sizes == std::array<std::int64_t, 4>{lead.numel(), heads, rows, width});
      CHECK(call->lse.strides == std::array<std::int64_t, 4>{heads * rows, rows, 1, 1});
      const std::vector<float> values = want.to(DType::f32).to_vector<float>();
      double worst = 0;
      for (std::int64_t n = 0; n < want.numel(); ++n) {
        const std::int64_t j = n % out_width, i = n / out_width % rows, h = n / out_width / rows % heads,
                           b = n / out_width / rows / heads;
        worst = std::max(worst, std::abs(said(*call, b, h, i, j) - double(values[static_cast<std::size_t>(n)])));
      }
      CHECK(worst <= 0.0079);  // the result's rounding and that of its weights: 2 * 2^-8 of numbers up to 1
    }
  }
}

TEST_CASE("attention stays with our kernels where the library can not read its operands") {
  const Shape batch{2, 4};
  const auto call = [&](const AttentionTensors& t, const Shape& b) { return library_attention(b, 1, false, t); };
  const Sizes s{64, 48, 32, 32};
  const AttentionTensors taken = tensors_of(batch, s, DType::f16, true);
  CHECK(call(taken, batch));
  CHECK(call(tensors_of({}, s, DType::f16, false), {}));
  CHECK(call(tensors_of({2, 3, 4}, s, DType::f16, false), {2, 3, 4}));  // contiguous: folds
  CHECK(!call(tensors_of(batch, s, DType::f32, false), batch));
  CHECK(!call(tensors_of(batch, {64, 48, 20, 32}, DType::f16, false), batch));
  CHECK(!call(tensors_of(batch, {64, 48, 32, 4}, DType::f16, false), batch));
  CHECK(!call(tensors_of({0, 4}, s, DType::f16, false), {0, 4}));
  AttentionTensors t = taken;
  t.k = transpose(empty({2, 4, 32, 48}, Device::cpu(), DType::f16), -2, -1);  // columns are not dense
  CHECK(!call(t, batch));
  t = taken;
  t.k = empty({4, 48, 32}, Device::cpu(), DType::f16);  // one matrix for several batches
  CHECK(!call(t, batch));
  t.k = expand(empty({1, 4, 48, 32}, Device::cpu(), DType::f16), {2, 4, 48, 32});
  CHECK(!call(t, batch));
  t = taken;
  t.gy = expand(empty({1}, Device::cpu(), DType::f16), taken.gy.shape());
  CHECK(!call(t, batch));
  t = taken;
  t.v = as_strided(empty({taken.v.numel() + 1}, Device::cpu(), DType::f16), taken.v.shape(), taken.v.strides(), 1);
  CHECK(!call(t, batch));
  // Gradients whose causal mask hides columns from all rows.
  for (const bool causal : {false, true}) {
    for (const bool backward : {false, true}) {
      const AttentionTensors wide = tensors_of(batch, {48, 64, 32, 32}, DType::f16, backward);
      CHECK(library_attention(batch, 1, causal, wide).has_value() == !(causal && backward));
      CHECK(library_attention(batch, 1, causal, tensors_of(batch, s, DType::f16, backward)));
    }
  }
  // Three dimensions of which no two are one.
  t = tensors_of({2, 3, 4}, s, DType::f16, false);
  t.q = transpose(empty({4, 3, 2, 64, 32}, Device::cpu(), DType::f16), 0, 2);
  CHECK(!call(t, {2, 3, 4}));
}

TEST_CASE("cuDNN has engines for attention and its gradients on an H100 that need not be here") {
#if defined(LEVIN_CUDNN)
  if (!driver_or_its_stub()) return levin::test::skip("neither a driver nor the toolkit's stub of one is here");
  const Shape batch{2, 4};
  struct Case {
    Sizes s;
    DType dtype;
    bool causal;
  };
  for (const Case& c : {Case{{512, 512, 64, 64}, DType::bf16, true}, Case{{77, 130, 128, 40}, DType::f16, false}}) {
    for (const bool backward : {false, true}) {
      INFO(text(c.dtype), " rows ", c.s.rows, " causal ", c.causal, " backward ", backward);
      const AttentionTensors t = tensors_of(batch, c.s, c.dtype, backward);
      const auto call = library_attention(batch, 0.125, c.causal, t);
      REQUIRE(call);
      const lib::CudnnPlans found = lib::cudnn_plans(*call, kH100);
      INFO(found.why);
      CHECK(found.refused == 0);
      CHECK(found.plans + found.unloaded > 0);
    }
  }
#else
  return levin::test::skip("this build has no cuDNN");
#endif
}

TEST_CASE("the library computes attention until a process asks for our kernels") {
  CHECK(engine_choice(EngineFamily::attention) == EngineChoice::first);
  CHECK(engine_choice(EngineFamily::convolution) == EngineChoice::first);
  CHECK(engine_choice(EngineFamily::batch_norm) == EngineChoice::own);
}
