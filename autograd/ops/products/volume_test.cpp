#include <doctest/doctest.h>

#include <array>

#include "autograd/ops/pointwise/plain_test.h"
#include "tests/ops/samples.h"

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();
using Size3 = std::array<std::int64_t, 3>;

// Runs visit(n, output channel, weight's second index, input channel, [k], [p]) over all products of kernel places k
// and outputs p of a convolution with out and in channels.
struct Loops {
  std::int64_t batch, out, in, groups;
  Size3 kernel, places;
  template <class Visit>
  void run(const Visit& visit) const {
    const std::int64_t per_in = in / groups, per_out = out / groups;
    for (std::int64_t n = 0; n < batch; ++n)
      for (std::int64_t o = 0; o < out; ++o)
        for (std::int64_t c = 0; c < per_in; ++c)
          for (std::int64_t i = 0; i < kernel[0]; ++i)
            for (std::int64_t j = 0; j < kernel[1]; ++j)
              for (std::int64_t k = 0; k < kernel[2]; ++k)
                for (std::int64_t p = 0; p < places[0]; ++p)
                  for (std::int64_t q = 0; q < places[1]; ++q)
                    for (std::int64_t r = 0; r < places[2]; ++r)
                      visit(n, o, c, o / per_out * per_in + c, Size3{i, j, k}, Size3{p, q, r});
  }
};

// Where tap k of output p reads; false outside of `size`.
bool reads(const Size3& p, const Size3& k, const Size3& stride, const Size3& padding, const Size3& dilation,
           const Size3& size, Size3& at) {
  for (std::size_t d = 0; d < 3; ++d) {
    at[d] = p[d] * stride[d] - padding[d] + k[d] * dilation[d];
    if (at[d] < 0 || at[d] >= size[d]) return false;
  }
  return true;
}
Size3 sizes(const Shape& s) { return {s[2], s[3], s[4]}; }

// With `ends` zeros more at the end of each axis.
Tensor conv_reference(const Tensor& x_, const Tensor& w_, const Tensor& b, const ConvOptions3d& o, Size3 ends = {}) {
  const Plain x(x_), w(w_);
  Size3 places{};
  for (std::size_t d = 0; d < 3; ++d) {
    const std::int64_t reach = o.dilation[d] * (w.shape[2 + int(d)] - 1) + 1;
    places[d] = (x.shape[2 + int(d)] + 2 * o.padding[d] + ends[d] - reach) / o.stride[d] + 1;
  }
  Plain y({x.shape[0], w.shape[0], places[0], places[1], places[2]});
  Loops{x.shape[0], w.shape[0], x.shape[1], o.groups, sizes(w.shape), places}.run(
      [&](std::int64_t n, std::int64_t f, std::int64_t c, std::int64_t from, const Size3& k, const Size3& p) {
        Size3 at{};
        if (!reads(p, k, o.stride, o.padding, o.dilation, sizes(x.shape), at)) return;
        y({n, f, p[0], p[1], p[2]}) += x({n, from, at[0], at[1], at[2]}) * w({f, c, k[0], k[1], k[2]});
      });
  const Tensor sums = y.tensor();
  return b.defined() ? sums + reshape(b, {b.numel(), 1, 1, 1}) : sums;
}

Tensor transposed_reference(const Tensor& x_, const Tensor& w_, const Tensor& b, const ConvTransposeOptions3d& o) {
  const Plain x(x_), w(w_);
  Size3 size{};
  for (std::size_t d = 0; d < 3; ++d) {
    size[d] = (x.shape[2 + int(d)] - 1) * o.stride[d] - 2 * o.padding[d] + o.dilation[d] * (w.shape[2 + int(d)] - 1) +
              o.output_padding[d] + 1;
  }
  const std::int64_t filters = w.shape[1] * o.groups;
  Plain y({x.shape[0], filters, size[0], size[1], size[2]});
  // The convolution that maps y's shape to x's.
  Loops{x.shape[0], x.shape[1], filters, o.groups, sizes(w.shape), sizes(x.shape)}.run(
      [&](std::int64_t n, std::int64_t f, std::int64_t c, std::int64_t to, const Size3& k, const Size3& p) {
        Size3 at{};
        if (!reads(p, k, o.stride, o.padding, o.dilation, size, at)) return;
        y({n, to, at[0], at[1], at[2]}) += x({n, f, p[0], p[1], p[2]}) * w({f, c, k[0], k[1], k[2]});
      });
  const Tensor sums = y.tensor();
  return b.defined() ? sums + reshape(b, {b.numel(), 1, 1, 1}) : sums;
}

Tensor third(const Tensors& in) { return in.size() > 2 ? in[2] : Tensor(); }
Tensor volume() { return zeros({1, 4, 5, 5, 5}, cpu); }
Tensor kernels(std::int64_t out, std::int64_t in) { return zeros({out, in, 3, 3, 3}, cpu); }

}  // namespace

LEVIN_OP_CASE(conv3d) {
  OpCase c{.ops = {"conv2d", "conv2d_input_gradient", "conv2d_weight_gradient", "im2col", "col2im"},
           .dtypes = kFloatDTypes,
           .sums = 100,
           .layout_changes_sums = true};
  const auto add = [&](Shape x, Shape w, const ConvOptions3d& o, bool bias) {
    OpSample s{.inputs = {real(x, -1, 1), real(w, -1, 1)},
               .call = [o](const Tensors& in) { return Tensors{conv3d(in[0], in[1], third(in), o)}; },
               .reference = [o](const Tensors& in) { return Tensors{conv_reference(in[0], in[1], third(in), o)}; }};
    if (bias) s.inputs.push_back(optional(real({w[0]}, -1, 1)));
    c.samples.push_back(std::move(s));
  };
  add({1, 1, 1, 1, 1}, {1, 1, 1, 1, 1}, {}, false);
  add({1, 2, 3, 3, 2}, {2, 2, 2, 2, 2}, {}, true);
  add({2, 1, 3, 2, 3}, {2, 1, 3, 1, 2}, {.stride = {2, 1, 2}, .padding = {1, 0, 1}}, true);
  add({1, 4, 3, 2, 2}, {4, 2, 2, 1, 2}, {.padding = {1, 0, 1}, .groups = 2}, true);
  add({1, 1, 5, 3, 4}, {1, 1, 2, 2, 2}, {.dilation = {3, 2, 1}}, false);
  add({2, 2, 5, 2, 2}, {3, 2, 1, 2, 1}, {.stride = {2, 1, 1}}, true);
  add({2, 3, 4, 1, 1}, {2, 3, 1, 1, 1}, {}, true);
  add({0, 2, 3, 3, 3}, {2, 2, 2, 2, 2}, {}, true);
  add({2, 3, 7, 9, 8}, {5, 3, 3, 3, 3}, {.stride = {1, 2, 1}, .padding = {1, 1, 1}}, true);
  c.samples.push_back(
      {.inputs = {real({1, 2, 3, 4, 2}, -1, 1), real({2, 2, 2, 3, 4}, -1, 1)},
       .call = [](const Tensors& in) { return Tensors{conv3d(in[0], in[1], {}, {.padding_rule = PaddingRule::same})}; },
       .reference =
           [](const Tensors& in) {
             return Tensors{conv_reference(in[0], in[1], {}, {.padding = {0, 1, 1}}, {1, 0, 1})};
           }});
  c.samples.push_back(
      {.inputs = {real({1, 1, 4, 3, 3}, -1, 1), real({1, 1, 2, 3, 1}, -1, 1)},
       .call =
           [](const Tensors& in) {
             return Tensors{conv3d(in[0], in[1], {}, {.dilation = {3, 2, 1}, .padding_rule = PaddingRule::same})};
           },
       .reference =
           [](const Tensors& in) {
             return Tensors{conv_reference(in[0], in[1], {}, {.padding = {1, 2, 0}, .dilation = {3, 2, 1}}, {1, 0, 0})};
           }});
  c.errors.push_back({"rank",
                      [] {
                        (void)conv3d(zeros({1, 4, 5, 5}, cpu), kernels(2, 4));
                      },
                      throws<ShapeError>, "conv3d: x has shape [1, 4, 5, 5]"});
  c.errors.push_back({"rank of weight",
                      [] {
                        (void)conv3d(volume(), zeros({2, 4, 3, 3}, cpu));
                      },
                      throws<ShapeError>, "conv3d: weight has shape [2, 4, 3, 3], expected [out,"});
  c.errors.push_back({"empty kernel",
                      [] {
                        (void)conv3d(volume(), zeros({2, 4, 3, 0, 3}, cpu));
                      },
                      throws<ShapeError>, "expected a kernel of at least 1 by 1 by 1"});
  c.errors.push_back({"empty",
                      [] {
                        (void)conv3d(zeros({1, 4, 5, 0, 5}, cpu), kernels(2, 4), {}, {.padding = {1, 1, 1}});
                      },
                      throws<ShapeError>, "conv3d: dimension 3 of x [1, 4, 5, 0, 5] is empty"});
  c.errors.push_back({"channels", [] { (void)conv3d(volume(), kernels(2, 3)); }, throws<ShapeError>,
                      "conv3d: weight has shape [2, 3, 3, 3, 3], expected [out, 4,"});
  c.errors.push_back({"groups", [] { (void)conv3d(volume(), kernels(2, 3), {}, {.groups = 3}); }, throws<ShapeError>,
                      "conv3d: groups is 3"});
  c.errors.push_back({"bias", [] { (void)conv3d(volume(), kernels(2, 4), zeros({3}, cpu)); }, throws<ShapeError>,
                      "conv3d: bias has shape [3], expected [2]"});
  c.errors.push_back({"kernel",
                      [] {
                        (void)conv3d(volume(), zeros({2, 4, 3, 3, 7}, cpu));
                      },
                      throws<ShapeError>, "conv3d: the kernel reaches over 7 elements along dimension 4"});
  c.errors.push_back({"stride",
                      [] {
                        (void)conv3d(volume(), kernels(2, 4), {}, {.stride = {0, 1, 1}});
                      },
                      throws<ShapeError>, "conv3d: stride is 0"});
  c.errors.push_back({"huge padding",
                      [] {
                        (void)conv3d(volume(), kernels(2, 4), {}, {.padding = {std::int64_t{1} << 31, 0, 0}});
                      },
                      throws<ShapeError>, "elements along dimension 2 with padding, expected at most 2^31"});
  c.errors.push_back(
      {"same size with a stride",
       [] {
         (void)conv3d(volume(), kernels(2, 4), {}, {.stride = {1, 1, 2}, .padding_rule = PaddingRule::same});
       },
       throws<ShapeError>, "conv3d: stride is 2 and padding 0 along dimension 4"});
  c.errors.push_back({"dtype", [] { (void)conv3d(volume(), kernels(2, 4).to(DType::f64)); }, throws<DTypeError>,
                      "conv3d: tensors are f32 and f64"});
  return c;
}

LEVIN_OP_CASE(conv_transpose3d) {
  OpCase c{.ops = {"conv2d_input_gradient", "col2im"}, .dtypes = kFloatDTypes, .sums = 60, .layout_changes_sums = true};
  const auto add = [&](Shape x, Shape w, const ConvTransposeOptions3d& o, std::int64_t bias) {
    OpSample s{
        .inputs = {real(x, -1, 1), real(w, -1, 1)},
        .call = [o](const Tensors& in) { return Tensors{conv_transpose3d(in[0], in[1], third(in), o)}; },
        .reference = [o](const Tensors& in) { return Tensors{transposed_reference(in[0], in[1], third(in), o)}; }};
    if (bias) s.inputs.push_back(optional(real({bias}, -1, 1)));
    c.samples.push_back(std::move(s));
  };
  add({1, 1, 1, 1, 1}, {1, 1, 1, 1, 1}, {}, 0);
  add({1, 2, 2, 2, 2}, {2, 2, 2, 2, 2}, {.stride = {2, 2, 2}, .output_padding = {1, 0, 1}}, 2);
  add({2, 2, 3, 2, 2}, {2, 1, 3, 3, 2}, {.padding = {1, 1, 0}, .groups = 2}, 2);
  add({1, 4, 2, 2, 1}, {4, 1, 2, 1, 2}, {.stride = {1, 2, 1}, .dilation = {2, 1, 2}, .groups = 2}, 2);
  // Output paddings of a stride or more.
  add({1, 1, 2, 2, 2}, {1, 1, 2, 2, 1}, {.output_padding = {2, 1, 0}, .dilation = {3, 2, 1}}, 0);
  add({1, 1, 3, 1, 2}, {1, 1, 2, 1, 2}, {.padding = {1, 0, 0}, .output_padding = {1, 0, 0}, .dilation = {2, 1, 1}}, 1);
  add({0, 2, 3, 3, 2}, {2, 1, 3, 3, 3}, {}, 0);
  c.errors.push_back({"channels", [] { (void)conv_transpose3d(volume(), kernels(2, 3)); }, throws<ShapeError>,
                      "conv_transpose3d: weight has shape [2, 3, 3, 3, 3], expected [4,"});
  c.errors.push_back({"groups", [] { (void)conv_transpose3d(volume(), kernels(4, 3), {}, {.groups = 3}); },
                      throws<ShapeError>, "conv_transpose3d: groups is 3"});
  c.errors.push_back({"output padding",
                      [] {
                        (void)conv_transpose3d(volume(), kernels(4, 3), {}, {.output_padding = {0, 1, 0}});
                      },
                      throws<ShapeError>, "conv_transpose3d: output_padding is 1"});
  c.errors.push_back({"padding",
                      [] {
                        (void)conv_transpose3d(volume(), kernels(4, 3), {}, {.padding = {0, 0, 4}});
                      },
                      throws<ShapeError>, "gives -1 elements along dimension 4"});
  c.errors.push_back({"bias", [] { (void)conv_transpose3d(volume(), kernels(4, 3), zeros({4}, cpu)); },
                      throws<ShapeError>, "conv_transpose3d: bias has shape [4], expected [3]"});
  c.errors.push_back({"rank",
                      [] {
                        (void)conv_transpose3d(zeros({4, 5, 5, 5}, cpu), kernels(4, 3));
                      },
                      throws<ShapeError>, "conv_transpose3d: x has shape [4, 5, 5, 5]"});
  return c;
}

LEVIN_OP_CASE(conv_transpose1d) {
  OpCase c{.ops = {"conv2d_input_gradient"}, .dtypes = kFloatDTypes, .sums = 20};
  const auto add = [&](Shape x, Shape w, const ConvTransposeOptions1d& o, std::int64_t bias) {
    OpSample s{.inputs = {real(x, -1, 1), real(w, -1, 1)},
               .call = [o](const Tensors& in) { return Tensors{conv_transpose1d(in[0], in[1], third(in), o)}; },
               .reference =
                   [o](const Tensors& in) {
                     const auto lift = [](const Tensor& t) { return unsqueeze(unsqueeze(t, 2), 2); };
                     const Tensor y = transposed_reference(lift(in[0]), lift(in[1]), third(in),
                                                           {.stride = {1, 1, o.stride},
                                                            .padding = {0, 0, o.padding},
                                                            .output_padding = {0, 0, o.output_padding},
                                                            .dilation = {1, 1, o.dilation},
                                                            .groups = o.groups});
                     return Tensors{squeeze(y, {2, 3})};
                   }};
    if (bias) s.inputs.push_back(optional(real({bias}, -1, 1)));
    c.samples.push_back(std::move(s));
  };
  add({1, 1, 1}, {1, 1, 1}, {}, 0);
  add({2, 2, 4}, {2, 3, 3}, {.stride = 2, .padding = 1, .output_padding = 1}, 3);
  add({1, 4, 3}, {4, 1, 2}, {.dilation = 2, .groups = 2}, 2);
  add({0, 2, 3}, {2, 1, 2}, {}, 1);
  c.errors.push_back({"rank",
                      [] {
                        (void)conv_transpose1d(zeros({3, 3}, cpu), zeros({3, 1, 1}, cpu));
                      },
                      throws<ShapeError>, "conv_transpose1d: x has shape [3, 3]"});
  c.errors.push_back({"rank of weight",
                      [] {
                        (void)conv_transpose1d(zeros({1, 3, 3}, cpu), zeros({3, 1}, cpu));
                      },
                      throws<ShapeError>, "conv_transpose1d: weight has shape [3, 1]"});
  return c;
}

TEST_CASE("convolutions of volumes give contiguous memory, and take 16 bits under autocast") {
  Generator g(1);
  const Tensor x = randn({2, 3, 4, 5, 6}, g, cpu), w = randn({4, 3, 3, 3, 3}, g, cpu), b = randn({4}, g, cpu);
  const Tensor up = randn({3, 2, 2, 2, 2}, g, cpu), c = randn({2}, g, cpu);
  const Tensor last = permute(permute(x, {0, 2, 3, 4, 1}).contiguous(), {0, 4, 1, 2, 3});
  REQUIRE(!last.is_contiguous());
  CHECK(conv3d(last, w, b, {.padding = {1, 1, 1}}).is_contiguous());
  CHECK(conv_transpose3d(last, up, c).is_contiguous());
  const Autocast on(DType::bf16);
  CHECK(conv3d(x, w, b).dtype() == DType::bf16);
  CHECK(conv_transpose3d(x, up, c).dtype() == DType::bf16);
}

}  // namespace levin::testing
