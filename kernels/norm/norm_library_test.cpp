// What is said to the vendor's library is the batch norm that was asked for, and cuDNN has engines for it: asked on the
// host, for a device that is described to it and need not be here.
#include "kernels/norm/norm_library.h"

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/lib/described_h100_test.h"
#include "levin/autograd.h"
#include "levin/engines.h"
#include "levin/ops.h"
#include "tests/skip.h"

using namespace levin;
using namespace levin::kernels;

namespace {

constexpr double kEpsilon = 0.125;  // large, so that a call which loses it is far off

Tensor eighths(const Shape& shape, MemoryFormat layout, std::uint32_t seed) {
  Tensor t = empty(shape, Device::cpu(), DType::f32, layout);
  auto* const p = reinterpret_cast<float*>(t.get().storage->data);
  for (std::int64_t i = 0; i < t.numel(); ++i) {
    seed = seed * 1664525u + 1013904223u;
    p[i] = float(int(seed >> 24) % 17 - 8) / 8;
  }
  return t;
}
Tensor row(std::int64_t channels, std::uint32_t seed) {
  return reshape(eighths({1, channels, 1, 1}, MemoryFormat::contiguous, seed), {channels});
}

BatchNormTensors tensors_of(const Shape& s, MemoryFormat layout, DType dtype, bool backward) {
  const auto image = [&] { return empty(s, Device::cpu(), dtype, layout); };
  const auto channels = [&] { return empty({s[1]}, Device::cpu(), DType::f32); };
  BatchNormTensors t{.x = image(), .y = image(), .w = channels(), .mean = channels(), .rstd = channels()};
  if (backward)
    t.gx = image(), t.gw = channels(), t.gb = channels();
  else
    t.b = channels();
  return t;
}

// What the library reads at [n, c, h, w].
double at(const LibraryBatchNorm& call, const void* image, const std::array<std::int64_t, 4>& i) {
  std::int64_t offset = 0;
  for (std::size_t d = 0; d < 4; ++d) {
    REQUIRE(i[d] < call.sizes[d]);
    offset += i[d] * call.strides[d];
  }
  return double(static_cast<const float*>(image)[offset]);
}
double at(const void* row, std::int64_t channel) { return double(static_cast<const float*>(row)[channel]); }

// f(n, h, w) summed over a channel, divided by their number.
template <class F>
double mean_over(const LibraryBatchNorm& call, F&& f) {
  double sum = 0;
  for (std::int64_t n = 0; n < call.sizes[0]; ++n)
    for (std::int64_t h = 0; h < call.sizes[2]; ++h)
      for (std::int64_t w = 0; w < call.sizes[3]; ++w) sum += f(n, h, w);
  return sum / double(call.sizes[0] * call.sizes[2] * call.sizes[3]);
}
// The largest difference of `want` to what the words say: `said(channel)` gives a function of (n, h, w).
template <class F>
double worst_of(const LibraryBatchNorm& call, const Tensor& want, F&& said) {
  const std::vector<float> values = want.to_vector<float>();
  const auto [n, c, h, w] = call.sizes;
  double worst = 0;
  for (std::int64_t j = 0; j < c; ++j) {
    const auto of_channel = said(j);
    (void)mean_over(call, [&](std::int64_t i, std::int64_t y, std::int64_t x) {
      const double v = double(values[static_cast<std::size_t>(((i * c + j) * h + y) * w + x)]);
      worst = std::max(worst, std::abs(of_channel(i, y, x) - v));
      return 0.0;
    });
  }
  return worst;
}

const Shape kImages{3, 8, 5, 7};
constexpr double kSum = 3 * 5 * 7;  // elements of a channel
// Six roundings of numbers of at most 2, and sums that lose eps * sqrt(kSum): 6 * sqrt(105) < 64.
constexpr double kTolerance = 64 * 0x1p-24;

}  // namespace

TEST_CASE("batch norm in the library's terms is the one that was asked for, in both layouts") {
  for (const MemoryFormat layout : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    CAPTURE(int(layout));
    BatchNormTensors t = tensors_of(kImages, layout, DType::f32, false);
    t.x = eighths(kImages, layout, 1), t.w = row(kImages[1], 2), t.b = row(kImages[1], 3);
    const auto call = library_batch_norm(t, kEpsilon);
    REQUIRE(call);
    CHECK(!call->backward);
    CHECK(call->y == t.y.get().storage->data);
    CHECK(call->mean == t.mean.get().storage->data);
    CHECK(call->rstd == t.rstd.get().storage->data);
    const Tensor want = batch_norm_train(t.x, t.w, t.b, kEpsilon).y;
    CHECK(worst_of(*call, want, [&](std::int64_t j) {
            const double mean = mean_over(*call, [&](auto n, auto h, auto w) {
              return at(*call, call->x, {n, j, h, w});
            });
            const double var = mean_over(*call, [&](auto n, auto h, auto w) {
              return std::pow(at(*call, call->x, {n, j, h, w}) - mean, 2);
            });
            const double scale = at(call->w, j) / std::sqrt(var + double(call->eps)), shift = at(call->b, j);
            return [=, &call](std::int64_t n, std::int64_t h, std::int64_t w) {
              return (at(*call, call->x, {n, j, h, w}) - mean) * scale + shift;
            };
          }) <= kTolerance);
  }
}

TEST_CASE("the gradients of batch norm in the library's terms are those that were asked for, in both layouts") {
  for (const MemoryFormat layout : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    CAPTURE(int(layout));
    Tensor x = eighths(kImages, layout, 1), weight = row(kImages[1], 2), bias = row(kImages[1], 3);
    const Tensor gy = eighths(kImages, layout, 4);
    for (Tensor* leaf : {&x, &weight, &bias}) leaf->requires_grad_();
    const Tensor y = batch_norm_train(x, weight, bias, kEpsilon).y;
    const Tensor inputs[] = {x, weight, bias};
    const std::vector<Tensor> want = grad(std::span(&y, 1), inputs, std::span(&gy, 1));

    BatchNormTensors t = tensors_of(kImages, layout, DType::f32, true);
    t.x = x.detach(), t.y = gy, t.w = weight.detach();
    t.mean = mean(t.x, {0, 2, 3});
    t.rstd = rsqrt(var(t.x, {0, 2, 3}, 0) + kEpsilon);
    const auto call = library_batch_norm(t, 0);
    REQUIRE(call);
    CHECK(call->backward);
    CHECK(call->gx == t.gx.get().storage->data);
    CHECK(call->gw == t.gw.get().storage->data);
    CHECK(call->gb == t.gb.get().storage->data);
    const std::vector<float> of_weight = want[1].to_vector<float>(), of_bias = want[2].to_vector<float>();
    CHECK(worst_of(*call, want[0], [&](std::int64_t j) {
            const auto h_of = [&call, j](std::int64_t n, std::int64_t h, std::int64_t w) {
              return (at(*call, call->x, {n, j, h, w}) - at(call->mean, j)) * at(call->rstd, j);
            };
            const auto g_of = [&call, j](std::int64_t n, std::int64_t h, std::int64_t w) {
              return at(*call, call->y, {n, j, h, w});
            };
            const double g = mean_over(*call, g_of);
            const double gh = mean_over(*call, [&](auto... i) { return g_of(i...) * h_of(i...); });
            CHECK(std::abs(gh * kSum - double(of_weight[static_cast<std::size_t>(j)])) <= kSum * kTolerance);
            CHECK(std::abs(g * kSum - double(of_bias[static_cast<std::size_t>(j)])) <= kSum * kTolerance);
            const double scale = at(call->w, j) * at(call->rstd, j);
            return [=](std::int64_t n, std::int64_t h, std::int64_t w) {
              return scale * (g_of(n, h, w) - g - h_of(n, h, w) * gh);
            };
          }) <= kTolerance);
  }
}

TEST_CASE("batch norm stays with our kernels where the library can not read its operands") {
  const auto taken = [](const BatchNormTensors& t) { return library_batch_norm(t, 1e-5).has_value(); };
  const Shape s{4, 16, 6, 6};
  const MemoryFormat first = MemoryFormat::contiguous, last = MemoryFormat::channels_last;
  for (const bool backward : {false, true}) {
    CAPTURE(backward);
    for (const MemoryFormat layout : {first, last})
      for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
        CHECK(taken(tensors_of(s, layout, dtype, backward)));
    CHECK(taken(tensors_of({4, 12, 6, 6}, last, DType::f32, backward)));
    CHECK(!taken(tensors_of({4, 14, 6, 6}, last, DType::f32, backward)));
    CHECK(!taken(tensors_of({4, 12, 6, 6}, last, DType::f16, backward)));
    CHECK(!taken(tensors_of({4, 12, 6, 6}, first, DType::bf16, backward)));
    CHECK(!taken(tensors_of(s, first, DType::f64, backward)));
    CHECK(!taken(tensors_of({4, 16, 36}, first, DType::f32, backward)));
    CHECK(!taken(tensors_of({0, 16, 6, 6}, first, DType::f32, backward)));

    const BatchNormTensors good = tensors_of(s, last, DType::f16, backward);
    const auto without = [&](auto&& change) {
      BatchNormTensors t = good;
      change(t);
      return !taken(t);
    };
    const Tensor other = empty(s, Device::cpu(), DType::f16, first), half = empty({s[1]}, Device::cpu(), DType::f16);
    CHECK(without([&](BatchNormTensors& t) { t.y = other; }));  // two layouts in a call
    CHECK(without([&](BatchNormTensors& t) { t.x = other; }));
    CHECK(without([&](BatchNormTensors& t) { t.x = transpose(t.x, 2, 3); }));
    CHECK(without([&](BatchNormTensors& t) { t.y = empty(s, Device::cpu(), DType::f32, last); }));
    CHECK(without([&](BatchNormTensors& t) { t.y = expand(empty({1}, Device::cpu(), DType::f16), s); }));
    CHECK(without([&](BatchNormTensors& t) { t.w = {}; }));
    CHECK(without([&](BatchNormTensors& t) { t.w = half; }));
    CHECK(without([&](BatchNormTensors& t) {  // not at a multiple of 16 bytes
      t.w = as_strided(empty({s[1] + 1}, Device::cpu(), DType::f32), {s[1]}, {1}, 1);
    }));
    CHECK(without([&](BatchNormTensors& t) {
      t.x = as_strided(empty({t.x.numel() + 1}, Device::cpu(), DType::f16), s, t.x.strides(), 1);
    }));
    CHECK(without([&](BatchNormTensors& t) { (backward ? t.gb : t.b) = {}; }));
    if (backward) {
      CHECK(without([&](BatchNormTensors& t) { t.gx = other; }));
      CHECK(without([&](BatchNormTensors& t) { t.gw = half; }));
    }
  }
}

TEST_CASE("cuDNN has engines for batch norm in training and its gradients on an H100 that need not be here") {
#if defined(LEVIN_CUDNN)
  if (!driver_or_its_stub()) return levin::test::skip("neither a driver nor the toolkit's stub of one is here");
  struct Case {
    Shape sizes;
    DType dtype;
  };
  for (const Case& c : {Case{{32, 64, 28, 28}, DType::f16}, Case{{8, 24, 13, 7}, DType::bf16},
                        Case{{32, 64, 28, 28}, DType::f32}, Case{{8, 12, 13, 7}, DType::f32}}) {
    for (const MemoryFormat layout : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
      for (const bool backward : {false, true}) {
        INFO(text(c.dtype), " channels ", c.sizes[1], " layout ", int(layout), " backward ", backward);
        const auto call = library_batch_norm(tensors_of(c.sizes, layout, c.dtype, backward), 1e-5);
        REQUIRE(call);
        const lib::CudnnPlans found = lib::cudnn_plans(*call, kH100);
        INFO(found.why);
        CHECK(found.refused == 0);
        CHECK(found.plans + found.unloaded > 0);
      }
    }
  }
#else
  return levin::test::skip("this build has no cuDNN");
#endif
}

TEST_CASE("our kernels compute batch norm until a process asks for the library") {
  CHECK(engine_choice(EngineFamily::batch_norm) == EngineChoice::own);
}
