#include <doctest/doctest.h>

#include "tests/device.h"
#include "tests/ops/samples.h"
#include "tests/skip.h"

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();

// The definition, in plain loops over f64.
Tensor conv_reference(const Tensor& x, const Tensor& w, const Tensor& b, const ConvOptions& o) {
  const auto extent = [&](int d) {
    const auto i = static_cast<std::size_t>(d);
    return (x.size(2 + d) + 2 * o.padding[i] - o.dilation[i] * (w.size(2 + d) - 1) - 1) / o.stride[i] + 1;
  };
  const Shape shape{x.size(0), w.size(0), extent(0), extent(1)};
  const auto xs = x.detach().to_vector<double>(), ws = w.detach().to_vector<double>();
  const auto bs =
      b.defined() ? b.detach().to_vector<double>() : std::vector<double>(static_cast<std::size_t>(w.size(0)), 0.0);
  const std::int64_t per_group = w.size(1), filters = w.size(0) / o.groups;
  std::vector<double> y;
  for (std::int64_t n = 0; n < shape[0]; ++n) {
    for (std::int64_t f = 0; f < shape[1]; ++f) {
      for (std::int64_t p = 0; p < shape[2]; ++p) {
        for (std::int64_t q = 0; q < shape[3]; ++q) {
          double sum = bs[static_cast<std::size_t>(f)];
          for (std::int64_t c = 0; c < per_group; ++c) {
            for (std::int64_t i = 0; i < w.size(2); ++i) {
              for (std::int64_t j = 0; j < w.size(3); ++j) {
                const std::int64_t r = p * o.stride[0] - o.padding[0] + i * o.dilation[0],
                                   s = q * o.stride[1] - o.padding[1] + j * o.dilation[1];
                if (r < 0 || r >= x.size(2) || s < 0 || s >= x.size(3)) continue;
                const std::int64_t from = f / filters * per_group + c;
                sum += xs[static_cast<std::size_t>(((n * x.size(1) + from) * x.size(2) + r) * x.size(3) + s)] *
                       ws[static_cast<std::size_t>(((f * per_group + c) * w.size(2) + i) * w.size(3) + j)];
              }
            }
          }
          y.push_back(sum);
        }
      }
    }
  }
  return from_data(y, shape, cpu);
}

// y_t[n, o, i * s - p + k * d] += x[n, c, i] w[c, o, k]: a transposed convolution in plain loops.
Tensor transposed_reference(const Tensor& x, const Tensor& w, const Tensor& b, const ConvTransposeOptions& o) {
  const auto extent = [&](int d) {
    const auto i = static_cast<std::size_t>(d);
    return (x.size(2 + d) - 1) * o.stride[i] - 2 * o.padding[i] + o.dilation[i] * (w.size(2 + d) - 1) +
           o.output_padding[i] + 1;
  };
  const std::int64_t out_per_group = w.size(1), in_per_group = x.size(1) / o.groups;
  const Shape shape{x.size(0), out_per_group * o.groups, extent(0), extent(1)};
  const auto xs = x.detach().to_vector<double>(), ws = w.detach().to_vector<double>();
  std::vector<double> y(static_cast<std::size_t>(shape.numel()), 0.0);
  const auto at = [&](std::int64_t n, std::int64_t c, std::int64_t r, std::int64_t s) -> double& {
    return y[static_cast<std::size_t>(((n * shape[1] + c) * shape[2] + r) * shape[3] + s)];
  };
  for (std::int64_t n = 0; n < x.size(0); ++n) {
    for (std::int64_t c = 0; c < x.size(1); ++c) {
      for (std::int64_t p = 0; p < x.size(2); ++p) {
        for (std::int64_t q = 0; q < x.size(3); ++q) {
          for (std::int64_t f = 0; f < out_per_group; ++f) {
            for (std::int64_t i = 0; i < w.size(2); ++i) {
              for (std::int64_t j = 0; j < w.size(3); ++j) {
                const std::int64_t r = p * o.stride[0] - o.padding[0] + i * o.dilation[0],
                                   s = q * o.stride[1] - o.padding[1] + j * o.dilation[1];
                if (r < 0 || r >= shape[2] || s < 0 || s >= shape[3]) continue;
                at(n, c / in_per_group * out_per_group + f, r, s) +=
                    xs[static_cast<std::size_t>(((n * x.size(1) + c) * x.size(2) + p) * x.size(3) + q)] *
                    ws[static_cast<std::size_t>(((c * out_per_group + f) * w.size(2) + i) * w.size(3) + j)];
              }
            }
          }
        }
      }
    }
  }
  Tensor out = from_data(y, shape, cpu);
  return b.defined() ? out + reshape(b, {1, b.numel(), 1, 1}) : out;
}

Tensor image() { return zeros({1, 4, 5, 5}, cpu); }

}  // namespace

LEVIN_OP_CASE(conv2d) {
  OpCase c{.ops = {"conv2d", "conv2d_input_gradient", "conv2d_weight_gradient"},
           .dtypes = kFloatDTypes,
           .sums = 60,
           .layout_changes_sums = true};
  const auto add = [&](Shape x, Shape w, const ConvOptions& o, bool bias) {
    OpSample s{
        .inputs = {real(x, -1, 1), real(w, -1, 1)},
        .call = [o](const Tensors& in) { return Tensors{conv2d(in[0], in[1], in.size() > 2 ? in[2] : Tensor(), o)}; },
        .reference =
            [o](const Tensors& in) {
              return Tensors{conv_reference(in[0], in[1], in.size() > 2 ? in[2] : Tensor(), o)};
            }};
    if (bias) s.inputs.push_back(optional(real({w[0]}, -1, 1)));
    c.samples.push_back(std::move(s));
  };
  add({1, 1, 1, 1}, {1, 1, 1, 1}, {}, false);
  add({1, 2, 4, 3}, {3, 2, 2, 2}, {}, true);
  add({2, 1, 4, 4}, {2, 1, 3, 3}, {.stride = {2, 1}, .padding = {1, 1}}, true);
  add({1, 4, 3, 3}, {4, 2, 2, 2}, {.padding = {1, 0}, .groups = 2}, true);
  add({1, 1, 5, 5}, {1, 1, 2, 3}, {.dilation = {2, 2}}, false);
  add({2, 3, 4, 1}, {2, 3, 1, 1}, {}, true);
  add({0, 2, 3, 3}, {2, 2, 2, 2}, {}, true);
  add({2, 3, 17, 19}, {33, 3, 5, 3}, {.stride = {1, 2}, .padding = {2, 1}}, true);
  // Of an even kernel the last row or column of the padding is one more.
  const auto same = [&](Shape x, Shape w, const ConvOptions& o) {
    c.samples.push_back({.inputs = {real(x, -1, 1), real(w, -1, 1)},
                         .call =
                             [o](const Tensors& in) {
                               ConvOptions rule = o;
                               rule.padding_rule = PaddingRule::same;
                               return Tensors{conv2d(in[0], in[1], {}, rule)};
                             },
                         .reference =
                             [o](const Tensors& in) {
                               std::array<std::int64_t, 4> all{};
                               for (std::size_t d = 0; d < 2; ++d) {
                                 const std::int64_t total = o.dilation[d] * (in[1].size(2 + int(d)) - 1);
                                 all[2 - 2 * d] = total / 2;
                                 all[3 - 2 * d] = (total + 1) / 2;
                               }
                               const Tensor padded = pad(in[0], Dims(std::span<const std::int64_t>(all)));
                               return Tensors{conv_reference(padded, in[1], {}, o)};
                             }});
  };
  same({1, 2, 4, 5}, {2, 2, 3, 3}, {});
  same({2, 2, 4, 5}, {2, 1, 2, 4}, {.groups = 2});
  same({1, 1, 3, 6}, {1, 1, 4, 2}, {.dilation = {3, 1}});
  c.errors.push_back({"rank",
                      [] {
                        (void)conv2d(zeros({3, 3}, cpu), zeros({1, 1, 1, 1}, cpu));
                      },
                      throws<ShapeError>, "conv2d: x has shape [3, 3]"});
  c.errors.push_back({"channels",
                      [] {
                        (void)conv2d(image(), zeros({2, 3, 3, 3}, cpu));
                      },
                      throws<ShapeError>, "conv2d: weight has shape [2, 3, 3, 3], expected [out, 4,"});
  c.errors.push_back({"groups",
                      [] {
                        (void)conv2d(image(), zeros({2, 3, 3, 3}, cpu), {}, {.groups = 3});
                      },
                      throws<ShapeError>, "conv2d: groups is 3"});
  c.errors.push_back({"kernel",
                      [] {
                        (void)conv2d(image(), zeros({2, 4, 7, 3}, cpu));
                      },
                      throws<ShapeError>, "conv2d: the kernel reaches over 7"});
  c.errors.push_back({"stride",
                      [] {
                        (void)conv2d(image(), zeros({2, 4, 3, 3}, cpu), {}, {.stride = {0, 1}});
                      },
                      throws<ShapeError>, "conv2d: stride is 0"});
  c.errors.push_back({"bias",
                      [] {
                        (void)conv2d(image(), zeros({2, 4, 3, 3}, cpu), zeros({3}, cpu));
                      },
                      throws<ShapeError>, "conv2d: bias has shape [3], expected [2]"});
  c.errors.push_back({"huge padding",
                      [] {
                        (void)conv2d(image(), zeros({2, 4, 3, 3}, cpu), {}, {.padding = {std::int64_t{1} << 62, 0}});
                      },
                      throws<ShapeError>, "conv2d: padding is"});
  c.errors.push_back(
      {"same size with a stride",
       [] {
         (void)conv2d(image(), zeros({2, 4, 3, 3}, cpu), {}, {.stride = {1, 2}, .padding_rule = PaddingRule::same});
       },
       throws<ShapeError>, "conv2d: stride is 2 and padding 0 along dimension 3, expected 1 and 0"});
  c.errors.push_back(
      {"same size with a padding",
       [] {
         (void)conv2d(image(), zeros({2, 4, 3, 3}, cpu), {}, {.padding = {1, 1}, .padding_rule = PaddingRule::same});
       },
       throws<ShapeError>, "conv2d: stride is 1 and padding 1 along dimension 2, expected 1 and 0"});
  c.errors.push_back({"padded image",
                      [] {
                        constexpr std::int64_t far = std::int64_t{1} << 31;
                        (void)conv2d(zeros({1, 1, 5, 5}, cpu), zeros({1, 1, 3, 3}, cpu), {},
                                     {.stride = {far, far}, .padding = {far, far}});
                      },
                      throws<ShapeError>, "conv2d: the padded image is"});
  c.errors.push_back({"padded pixels",
                      [] {
                        constexpr std::int64_t far = std::int64_t{1} << 24;
                        (void)conv2d(zeros({1, 1, 5, 5}, cpu), zeros({1, 1, 3, 3}, cpu), {},
                                     {.stride = {far, far}, .padding = {far, far}});
                      },
                      throws<ShapeError>, "conv2d: the padded image is"});
  return c;
}

LEVIN_OP_CASE(conv1d) {
  OpCase c{.ops = {"conv2d"}, .dtypes = kFloatDTypes, .sums = 20};
  for (const auto& [x, w] : {std::pair{Shape{1, 1, 1}, Shape{1, 1, 1}},
                             {Shape{2, 2, 7}, Shape{3, 2, 3}},
                             {Shape{0, 2, 7}, Shape{3, 2, 3}}}) {
    c.samples.push_back(
        {.inputs = {real(x, -1, 1), real(w, -1, 1)},
         .call = [](const Tensors& in) { return Tensors{conv1d(in[0], in[1], {}, {.stride = 2, .padding = 1})}; },
         .reference =
             [](const Tensors& in) {
               return Tensors{squeeze(
                   conv_reference(unsqueeze(in[0], 2), unsqueeze(in[1], 2), {}, {.stride = {1, 2}, .padding = {0, 1}}),
                   2)};
             }});
  }
  c.samples.push_back(
      {.inputs = {real({2, 2, 5}, -1, 1), real({3, 2, 4}, -1, 1)},
       .call = [](const Tensors& in) { return Tensors{conv1d(in[0], in[1], {}, {.padding_rule = PaddingRule::same})}; },
       .reference =
           [](const Tensors& in) {
             const Tensor x = unsqueeze(pad(in[0], {1, 2}), 2);
             return Tensors{squeeze(conv_reference(x, unsqueeze(in[1], 2), {}, {}), 2)};
           }});
  c.errors.push_back({"rank",
                      [] {
                        (void)conv1d(zeros({3, 3}, cpu), zeros({1, 1, 1}, cpu));
                      },
                      throws<ShapeError>, "conv1d: x has shape [3, 3]"});
  return c;
}

LEVIN_OP_CASE(conv_transpose2d) {
  OpCase c{.ops = {"conv2d_input_gradient"}, .dtypes = kFloatDTypes, .sums = 30};
  const auto add = [&](Shape x, Shape w, const ConvTransposeOptions& o, std::int64_t bias) {
    OpSample s{.inputs = {real(x, -1, 1), real(w, -1, 1)},
               .call =
                   [o](const Tensors& in) {
                     return Tensors{conv_transpose2d(in[0], in[1], in.size() > 2 ? in[2] : Tensor(), o)};
                   },
               .reference =
                   [o](const Tensors& in) {
                     return Tensors{transposed_reference(in[0], in[1], in.size() > 2 ? in[2] : Tensor(), o)};
                   }};
    if (bias) s.inputs.push_back(optional(real({bias}, -1, 1)));
    c.samples.push_back(std::move(s));
  };
  add({1, 1, 1, 1}, {1, 1, 1, 1}, {}, 0);
  add({1, 2, 2, 3}, {2, 3, 2, 2}, {.stride = {2, 2}, .output_padding = {1, 0}}, 3);
  add({2, 2, 3, 3}, {2, 1, 3, 3}, {.padding = {1, 1}, .groups = 2}, 2);
  add({0, 2, 3, 3}, {2, 1, 3, 3}, {}, 0);
  c.errors.push_back({"channels",
                      [] {
                        (void)conv_transpose2d(image(), zeros({2, 3, 3, 3}, cpu));
                      },
                      throws<ShapeError>, "conv_transpose2d: weight has shape"});
  c.errors.push_back({"output padding",
                      [] {
                        (void)conv_transpose2d(image(), zeros({4, 3, 3, 3}, cpu), {}, {.output_padding = {1, 0}});
                      },
                      throws<ShapeError>, "conv_transpose2d: output_padding is 1"});
  c.errors.push_back(
      {"huge stride",
       [] {
         (void)conv_transpose2d(image(), zeros({4, 3, 3, 3}, cpu), {}, {.stride = {std::int64_t{1} << 31, 1}});
       },
       throws<ShapeError>, "pixels along dimension 2, expected 1 to 2^31"});
  return c;
}

TEST_CASE("a stride longer than the image costs nothing, forward and backward") {
  Tensor x = reshape(arange(25, cpu, DType::f32), {1, 1, 5, 5}), w = ones({1, 1, 3, 3}, cpu);
  x.requires_grad_();
  w.requires_grad_();
  const std::int64_t far = std::int64_t{1} << 31;
  // The first of four outputs is the only one of a longer stride.
  const Tensor near = select(select(conv2d(x, w, {}, {.stride = {4, 4}, .padding = {1, 1}}), 2, 0), 2, 0);
  const Tensor y = conv2d(x, w, {}, {.stride = {far, far}, .padding = {1, 1}});
  REQUIRE(y.shape() == Shape{1, 1, 1, 1});
  CHECK(y.item<float>() == 12);  // 0 + 1 + 5 + 6
  CHECK(near.item<float>() == 12);
  const Tensors inputs{x, w}, grads = grad(sum(y), inputs), expected = grad(sum(near), inputs);
  for (std::size_t i = 0; i < 2; ++i) CHECK(grads[i].to_vector<float>() == expected[i].to_vector<float>());
}

TEST_CASE("conv_transpose2d with an output padding of a stride adds pixels that the kernel does not reach") {
  const Tensor x = ones({1, 1, 2, 2}, cpu), w = ones({1, 1, 2, 2}, cpu);
  const Tensor y = conv_transpose2d(x, w, {}, {.output_padding = {1, 1}, .dilation = {2, 2}});
  REQUIRE(y.shape() == Shape{1, 1, 5, 5});
  for (std::int64_t i = 0; i < 5; ++i)
    for (std::int64_t j = 0; j < 5; ++j)
      CHECK(select(select(y, 2, i), 2, j).item<float>() == (i < 4 && j < 4 ? 1.0f : 0.0f));
}

// Sums of small integers are exact, so every order of them has the same bits.
TEST_CASE(
    "convolution on a device: split sums, whole chunks of pixels and single channels equal the cpu's, bit by bit") {
  const auto device = test::launching_device();
  if (!device) return test::skip("no device that launches kernels here");
  struct Case {
    Shape x, w;
    ConvOptions options;
  };
  for (const Case& c : {Case{{2, 4, 4, 4}, {8, 2, 1, 1}, {.groups = 2}},          // images as they lie
                        Case{{1, 64, 3, 4}, {2, 64, 3, 3}, {.padding = {1, 1}}},  // a long sum over taps
                        Case{{3, 2, 16, 16}, {2, 2, 3, 3}, {.padding = {1, 1}}},  // a long sum over pixels
                        Case{{2, 6, 9, 8}, {6, 1, 3, 3}, {.stride = {2, 3}, .groups = 6}}}) {
    for (const DType dtype : kFloatDTypes) {
      CAPTURE(text(c.x));
      CAPTURE(text(dtype));
      Generator g(1);
      const auto make = [&](const Shape& s) { return round(randn(s, g, cpu, DType::f32)).to(dtype); };
      const Tensor x = make(c.x), w = make(c.w), b = make({c.w[0]});
      const Tensor seed = make(conv2d(x, w, b, c.options).shape());
      const auto run = [&](Device on) {
        Tensors in{x.to(on), w.to(on), b.to(on)};
        for (Tensor& t : in) t = t.detach(), t.requires_grad_();
        Tensors out{conv2d(in[0], in[1], in[2], c.options)};
        for (const Tensor& t : grad(out, in, std::array{seed.to(on)})) out.push_back(t);
        return out;
      };
      const Tensors want = run(cpu), got = run(*device);
      for (std::size_t k = 0; k < want.size(); ++k) CHECK(equal(got[k].to(cpu), want[k]));
    }
  }
}

}  // namespace levin::testing
