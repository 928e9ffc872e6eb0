// What is said to the vendor's library is the convolution that was asked for, and cuDNN has plans for it: asked on the
// host, for a device that is described to it and need not be here.
#include "kernels/conv/conv_library.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "kernels/lib/described_h100_test.h"
#include "levin/engines.h"
#include "levin/ops.h"
#include "tests/skip.h"

using namespace levin;
using namespace levin::kernels;

namespace {

struct Case {
  const char* name;
  ConvShape shape;
};

Tensor small_integers(const Shape& shape, MemoryFormat layout, std::uint32_t seed) {
  Tensor t = empty(shape, Device::cpu(), DType::f32, layout);
  auto* const p = reinterpret_cast<float*>(t.get().storage->data);
  for (std::int64_t i = 0; i < t.numel(); ++i) {
    seed = seed * 1664525u + 1013904223u;
    p[i] = float(int(seed >> 24) % 5 - 2);
  }
  return t;
}

struct Operands {
  Tensor x, w, y, bias;
};
Operands operands(const ConvShape& s, MemoryFormat layout, DType dtype) {
  const Device cpu = Device::cpu();
  return {.x = empty({s.batch, s.in_channels, s.height, s.width}, cpu, dtype, layout),
          .w = empty({s.out_channels, s.group_in(), s.kernel_h, s.kernel_w}, cpu, dtype, layout),
          .y = empty({s.batch, s.out_channels, s.out_height(), s.out_width()}, cpu, dtype, layout),
          .bias = empty({s.out_channels}, cpu, dtype)};
}

float at(const LibraryConv::Operand& o, std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
  REQUIRE((a < o.sizes[0] && b < o.sizes[1] && c < o.sizes[2] && d < o.sizes[3]));
  return static_cast<const float*>(o.data)[a * o.strides[0] + b * o.strides[1] + c * o.strides[2] + d * o.strides[3]];
}
// y[n, k, p, q] as a library reads the words of a LibraryConv.
float said(const LibraryConv& c, std::int64_t n, std::int64_t k, std::int64_t p, std::int64_t q) {
  const std::int64_t groups = c.x.sizes[1] / c.w.sizes[1], first = k / (c.w.sizes[0] / groups) * c.w.sizes[1];
  float sum = c.bias ? static_cast<const float*>(c.bias)[k] : 0.0f;
  for (std::int64_t i = 0; i < c.w.sizes[1]; ++i) {
    for (std::int64_t r = 0; r < c.w.sizes[2]; ++r) {
      for (std::int64_t s = 0; s < c.w.sizes[3]; ++s) {
        const std::int64_t h = p * c.stride[0] - c.padding[0] + r * c.dilation[0],
                           w = q * c.stride[1] - c.padding[1] + s * c.dilation[1];
        if (h >= 0 && w >= 0 && h < c.x.sizes[2] && w < c.x.sizes[3])
          sum += at(c.x, n, first + i, h, w) * at(c.w, k, i, r, s);
      }
    }
  }
  return sum;
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {"3 x 3",
       {.batch = 32,
        .in_channels = 64,
        .height = 56,
        .width = 56,
        .out_channels = 64,
        .kernel_h = 3,
        .kernel_w = 3,
        .padding_h = 1,
        .padding_w = 1}},
      {"7 x 7, stride 2, 3 channels",
       {.batch = 32,
        .in_channels = 3,
        .height = 224,
        .width = 224,
        .out_channels = 64,
        .kernel_h = 7,
        .kernel_w = 7,
        .stride_h = 2,
        .stride_w = 2,
        .padding_h = 3,
        .padding_w = 3}},
      {"1 x 1, stride 2",
       {.batch = 32, .in_channels = 256, .height = 56, .width = 56, .out_channels = 512, .stride_h = 2, .stride_w = 2}},
      {"32 groups",
       {.batch = 32,
        .in_channels = 128,
        .height = 28,
        .width = 28,
        .out_channels = 128,
        .kernel_h = 3,
        .kernel_w = 3,
        .padding_h = 1,
        .padding_w = 1,
        .groups = 32}},
      {"depthwise",
       {.batch = 32,
        .in_channels = 128,
        .height = 28,
        .width = 28,
        .out_channels = 128,
        .kernel_h = 3,
        .kernel_w = 3,
        .padding_h = 1,
        .padding_w = 1,
        .groups = 128}},
      {"dilated, odd sizes",
       {.batch = 8,
        .in_channels = 13,
        .height = 65,
        .width = 63,
        .out_channels = 17,
        .kernel_h = 5,
        .kernel_w = 3,
        .padding_h = 2,
        .padding_w = 1,
        .dilation_h = 2}},
  };
  return all;
}

}  // namespace

TEST_CASE("a convolution in the library's terms is the one that was asked for, in both layouts and with groups") {
  for (const std::int64_t groups : {std::int64_t{1}, std::int64_t{2}}) {
    for (const MemoryFormat layout : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
      const ConvShape s{.batch = 4,
                        .in_channels = 16,
                        .height = 15,
                        .width = 23,
                        .out_channels = 64,
                        .kernel_h = 3,
                        .kernel_w = 5,
                        .stride_h = 1,
                        .stride_w = 2,
                        .padding_h = 1,
                        .padding_w = 3,
                        .dilation_h = 2,
                        .dilation_w = 1,
                        .groups = groups};
      const Tensor x = small_integers({s.batch, s.in_channels, s.height, s.width}, layout, 1),
                   w = small_integers({s.out_channels, s.group_in(), s.kernel_h, s.kernel_w}, layout, 2),
                   bias = small_integers({1, s.out_channels, 1, 1}, MemoryFormat::contiguous, 3);
      CHECK(x.suggest_memory_format() == layout);
      const Tensor flat = reshape(bias, {s.out_channels});
      const Tensor want = conv2d(x, w, flat,
                                 {.stride = {s.stride_h, s.stride_w},
                                  .padding = {s.padding_h, s.padding_w},
                                  .dilation = {s.dilation_h, s.dilation_w},
                                  .groups = groups});
      const Tensor y = empty(want.shape(), Device::cpu(), DType::f32, layout);
      const auto call = library_conv(ConvPass::forward, s, x, w, y, flat);
      REQUIRE(call);
      const std::vector<float> values = want.to_vector<float>();
      std::int64_t wrong = 0;
      for (std::int64_t i = 0; i < want.numel(); i += 7) {
        const std::int64_t q = i % s.out_width(), p = i / s.out_width() % s.out_height(),
                           k = i / s.pixels() % s.out_channels, n = i / s.pixels() / s.out_channels;
        wrong += said(*call, n, k, p, q) != values[static_cast<std::size_t>(i)];  // sums of small integers are exact
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("a convolution stays with our kernels when it is small, in f64, or its memory is not aligned") {
  const ConvShape s = cases()[0].shape;
  const auto call = [](const ConvShape& shape, const Operands& o) {
    return library_conv(ConvPass::forward, shape, o.x, o.w, o.y, o.bias);
  };
  const Operands taken = operands(s, MemoryFormat::contiguous, DType::f16);
  CHECK(call(s, taken));
  CHECK(!call(s, operands(s, MemoryFormat::contiguous, DType::f64)));
  ConvShape small = s;
  small.batch = small.height = small.width = 3;
  CHECK(!call(small, operands(small, MemoryFormat::contiguous, DType::f16)));
  Operands shifted = taken;
  const Tensor more = empty({taken.x.numel() + 1}, Device::cpu(), DType::f16);
  shifted.x = as_strided(more, taken.x.shape(), taken.x.strides(), 1);
  CHECK(!call(s, shifted));
}

TEST_CASE("cuDNN has plans for convolutions, their gradients and biases on an H100 that need not be here") {
#if defined(LEVIN_CUDNN)
  for (const Case& c : cases()) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      for (const MemoryFormat layout : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
        for (const ConvPass pass : {ConvPass::forward, ConvPass::input_gradient, ConvPass::weight_gradient}) {
          for (const bool with_bias : {false, true}) {
            if (with_bias && pass != ConvPass::forward) continue;
            INFO(std::string(c.name), " ", text(dtype), " layout ", int(layout), " pass ", int(pass), " bias ",
                 with_bias);
            const Operands o = operands(c.shape, layout, dtype);
            const auto call = library_conv(pass, c.shape, o.x, o.w, o.y, with_bias ? o.bias : Tensor());
            REQUIRE(call);
            const lib::CudnnPlans found = lib::cudnn_plans(*call, kH100);
            INFO(found.why);
            CHECK(found.plans > 0);
            CHECK(found.plans <= found.engines - found.refused);
            // Hopper's fastest engines for f32 round it to TF32.
            if (dtype == DType::f32 && std::string(c.name) == "3 x 3") CHECK(found.refused > 0);
          }
        }
      }
    }
  }
#else
  return levin::test::skip("this build has no cuDNN");
#endif
}

TEST_CASE("cuDNN's engines on tensor cores are refused for f32 numbers until TF32 is allowed, and then taken") {
#if defined(LEVIN_CUDNN)
  const Operands o = operands(cases()[0].shape, MemoryFormat::channels_last, DType::f32);
  const auto call = library_conv(ConvPass::forward, cases()[0].shape, o.x, o.w, o.y, {});
  REQUIRE(call);
  const lib::CudnnPlans exact = lib::cudnn_plans(*call, kH100);
  set_allow_tf32(EngineFamily::convolution, AllowTf32::yes);
  const lib::CudnnPlans rounded = lib::cudnn_plans(*call, kH100);
  set_allow_tf32(EngineFamily::convolution, AllowTf32::no);
  INFO(exact.refused, " of ", exact.engines, " refused, then ", rounded.refused, " of ", rounded.engines);
  CHECK(rounded.engines == exact.engines);
  CHECK(rounded.refused < exact.refused);
#else
  return levin::test::skip("this build has no cuDNN");
#endif
}

TEST_CASE("cuDNN refuses a graph whose shapes do not meet, and the process goes on") {
#if defined(LEVIN_CUDNN)
  const ConvShape s = cases()[0].shape;
  const Operands o = operands(s, MemoryFormat::contiguous, DType::f16);
  auto call = library_conv(ConvPass::forward, s, o.x, o.w, o.y, {});
  REQUIRE(call);
  call->y.sizes[2] += 1;
  const lib::CudnnPlans found = lib::cudnn_plans(*call, kH100);
  CHECK(found.plans == 0);
  CHECK(!found.why.empty());
#else
  return levin::test::skip("this build has no cuDNN");
#endif
}
