#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <limits>

#include "autograd/ops/pointwise/plain_test.h"
#include "tests/ops/samples.h"

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();
using Size3 = std::array<std::int64_t, 3>;

// What output o of an axis sees: every step-th of [begin, end), and how many elements an average divides by.
struct Seen {
  std::int64_t begin, end, count, step = 1;
};
using Axis = std::function<Seen(std::int64_t o)>;

Axis strided(std::int64_t in, std::int64_t kernel, std::int64_t stride, std::int64_t padding, bool with_padding,
             std::int64_t dilation = 1) {
  return [=](std::int64_t o) {
    const std::int64_t first = o * stride - padding, past = std::min(first + (kernel - 1) * dilation + 1, in + padding);
    Seen s{first, std::min(past, in), past - first, dilation};
    while (s.begin < 0) s.begin += dilation;
    if (!with_padding) s.count = s.end - s.begin;
    return s;
  };
}
Axis adaptive(std::int64_t in, std::int64_t out) {
  return [=](std::int64_t o) {
    const std::int64_t begin = o * in / out, end = ((o + 1) * in + out - 1) / out;
    return Seen{begin, end, end - begin};
  };
}

// Of x [N, C, D, H, W].
Tensor pooled(const Tensor& x_, const Size3& out, bool largest, const std::array<Axis, 3>& axes) {
  const Plain x(x_);
  return Plain({x.shape[0], x.shape[1], out[0], out[1], out[2]},
               [&](const At& at) {
                 const Seen d = axes[0](at[2]), h = axes[1](at[3]), w = axes[2](at[4]);
                 double most = -std::numeric_limits<double>::infinity(), sum = 0;
                 for (std::int64_t i = d.begin; i < d.end; i += d.step)
                   for (std::int64_t j = h.begin; j < h.end; j += h.step)
                     for (std::int64_t k = w.begin; k < w.end; k += w.step) {
                       const double e = x({at[0], at[1], i, j, k});
                       most = std::max(most, e);
                       sum += e;
                     }
                 return largest ? most : sum / double(d.count * h.count * w.count);
               })
      .tensor();
}

struct Sample3d {
  Shape x;
  PoolOptions3d options;
  Size3 out;
};
std::vector<Sample3d> samples_3d() {
  return {
      {{1, 1, 1, 1, 1}, {.kernel = {1, 1, 1}}, {1, 1, 1}},
      {{1, 2, 2, 4, 2}, {}, {1, 2, 1}},
      {{2, 1, 5, 4, 3}, {.kernel = {3, 2, 1}, .stride = {{2, 1, 2}}, .padding = {1, 1, 0}}, {3, 5, 2}},
      {{1, 2, 4, 5, 3}, {.kernel = {3, 2, 2}, .stride = {{2, 2, 2}}, .ceil_mode = true}, {2, 3, 2}},
      // The last window of the depth starts beyond x: it is none.
      {{1, 1, 3, 4, 5},
       {.kernel = {2, 3, 3}, .stride = {{3, 2, 2}}, .padding = {1, 1, 1}, .ceil_mode = true},
       {2, 3, 3}},
      {{1, 2, 3, 3, 4},
       {.kernel = {3, 3, 3}, .stride = {{1, 1, 2}}, .padding = {1, 1, 1}, .count_include_pad = false},
       {3, 3, 2}},
      {{0, 2, 4, 4, 4}, {}, {2, 2, 2}},
      {{2, 3, 9, 11, 18}, {.kernel = {3, 3, 3}, .stride = {{2, 2, 2}}, .padding = {1, 1, 1}}, {5, 6, 9}},
  };
}
// Of max pooling alone.
std::vector<Sample3d> dilated_3d() {
  return {
      {{1, 2, 4, 5, 6}, {.stride = {{1, 1, 1}}, .dilation = {2, 3, 1}}, {2, 2, 5}},
      {{1, 1, 5, 4, 7},
       {.kernel = {3, 2, 3}, .stride = {{1, 2, 2}}, .padding = {1, 1, 1}, .dilation = {2, 2, 3}, .ceil_mode = true},
       {3, 3, 2}},
      {{0, 2, 3, 3, 3}, {.dilation = {2, 2, 2}}, {1, 1, 1}},
  };
}
std::array<Axis, 3> axes_of(const Sample3d& s) {
  const Size3 stride = s.options.stride.value_or(s.options.kernel);
  std::array<Axis, 3> out;
  for (std::size_t d = 0; d < 3; ++d) {
    out[d] = strided(s.x[2 + int(d)], s.options.kernel[d], stride[d], s.options.padding[d], s.options.count_include_pad,
                     s.options.dilation[d]);
  }
  return out;
}

using Pool3d = Tensor (*)(const Tensor&, const PoolOptions3d&);
using Adaptive3d = Tensor (*)(const Tensor&, Size3);
OpCase case_3d(OpCase c, const char* name, const char* adaptive_name, bool largest, Pool3d pool,
               Adaptive3d adaptive_pool) {
  std::vector<Sample3d> samples = samples_3d();
  if (largest) {
    for (const Sample3d& s : dilated_3d()) samples.push_back(s);
  }
  for (const Sample3d& s : samples) {
    c.samples.push_back(
        {.inputs = {real(s.x)},
         .call = [=](const Tensors& in) { return Tensors{pool(in[0], s.options)}; },
         .reference = [=](const Tensors& in) { return Tensors{pooled(in[0], s.out, largest, axes_of(s))}; }});
  }
  for (const Size3 out : {Size3{2, 3, 2}, {1, 1, 1}, {7, 4, 5}, {3, 0, 2}, {0, 2, 2}}) {
    c.samples.push_back({.inputs = {real({1, 2, 3, 5, 3})},
                         .call = [=](const Tensors& in) { return Tensors{adaptive_pool(in[0], out)}; },
                         .reference =
                             [=](const Tensors& in) {
                               return Tensors{pooled(in[0], out, largest,
                                                     {adaptive(3, out[0]), adaptive(5, out[1]), adaptive(3, out[2])})};
                             }});
  }
  const std::string op = name, adaptive_op = adaptive_name;
  c.errors.push_back({"rank",
                      [=] {
                        (void)pool(zeros({1, 2, 4, 4}, cpu), {});
                      },
                      throws<ShapeError>, op + ": x has shape [1, 2, 4, 4]"});
  c.errors.push_back({"kernel",
                      [=] {
                        (void)pool(zeros({1, 1, 4, 4, 2}, cpu), {.kernel = {2, 2, 3}});
                      },
                      throws<ShapeError>, op + ": the kernel is 3 along dimension 4"});
  c.errors.push_back({"padding",
                      [=] {
                        (void)pool(zeros({1, 1, 4, 4, 4}, cpu), {.padding = {2, 0, 0}});
                      },
                      throws<ShapeError>, op + ": padding is 2"});
  c.errors.push_back({"empty",
                      [=] {
                        (void)pool(zeros({1, 1, 0, 4, 4}, cpu), {.padding = {1, 1, 1}});
                      },
                      throws<ShapeError>, op + ": dimension 2 of x [1, 1, 0, 4, 4] is empty"});
  const PoolOptions3d gaps{.dilation = {4, 1, 1}};
  if (largest) {
    c.errors.push_back({"dilation",
                        [=] {
                          (void)pool(zeros({1, 1, 4, 4, 4}, cpu), gaps);
                        },
                        throws<ShapeError>, op + ": the kernel is 2 along dimension 2, or 5 with dilation 4"});
  } else {
    c.errors.push_back({"dilation",
                        [=] {
                          (void)pool(zeros({1, 1, 4, 4, 4}, cpu), gaps);
                        },
                        throws<ConfigError>, op + ": dilation is 4, expected 1: only max pools have one"});
  }
  c.errors.push_back({"adaptive, empty",
                      [=] {
                        (void)adaptive_pool(zeros({1, 1, 0, 3, 3}, cpu), {2, 2, 2});
                      },
                      throws<ShapeError>, adaptive_op + ": dimension 2 of x [1, 1, 0, 3, 3] is empty"});
  c.errors.push_back({"adaptive, negative",
                      [=] {
                        (void)adaptive_pool(zeros({1, 1, 3, 3, 3}, cpu), {2, -1, 2});
                      },
                      throws<ShapeError>, adaptive_op + ": output is -1 along dimension 3"});
  return c;
}

using Pool1d = Tensor (*)(const Tensor&, const PoolOptions1d&);
using Adaptive1d = Tensor (*)(const Tensor&, std::int64_t);
OpCase case_1d(OpCase c, const char* name, bool largest, Pool1d pool, Adaptive1d adaptive_pool) {
  const auto lifted = [](const Tensor& t) { return unsqueeze(unsqueeze(t, 2), 2); };
  const Axis one = [](std::int64_t) { return Seen{0, 1, 1}; };
  const auto add = [&](const Shape& x, const PoolOptions1d& o, std::int64_t out) {
    c.samples.push_back(
        {.inputs = {real(x)},
         .call = [=](const Tensors& in) { return Tensors{pool(in[0], o)}; },
         .reference =
             [=](const Tensors& in) {
               const Axis axis =
                   strided(x[2], o.kernel, o.stride.value_or(o.kernel), o.padding, o.count_include_pad, o.dilation);
               return Tensors{squeeze(pooled(lifted(in[0]), {1, 1, out}, largest, {one, one, axis}), {2, 3})};
             }});
  };
  add({1, 1, 1}, {.kernel = 1}, 1);
  add({2, 3, 7}, {}, 3);
  add({2, 3, 7}, {.kernel = 3, .stride = 2, .padding = 1}, 4);
  add({1, 2, 9}, {.kernel = 3, .stride = 3, .padding = 1, .ceil_mode = true}, 4);
  add({1, 2, 8}, {.kernel = 3, .stride = 3, .padding = 1, .ceil_mode = true}, 3);  // a fourth would see padding alone
  add({1, 2, 6}, {.kernel = 4, .stride = 1, .padding = 2, .count_include_pad = false}, 7);
  add({0, 3, 4}, {}, 2);
  if (largest) {
    add({2, 3, 9}, {.kernel = 3, .stride = 1, .dilation = 2}, 5);
    add({1, 2, 8}, {.kernel = 3, .stride = 2, .padding = 1, .dilation = 3, .ceil_mode = true}, 3);
    add({1, 2, 40}, {.stride = 1, .dilation = 5}, 35);
  }
  for (const std::int64_t out : {1, 3, 9}) {
    c.samples.push_back({.inputs = {real({2, 2, 7})},
                         .call = [=](const Tensors& in) { return Tensors{adaptive_pool(in[0], out)}; },
                         .reference =
                             [=](const Tensors& in) {
                               return Tensors{squeeze(
                                   pooled(lifted(in[0]), {1, 1, out}, largest, {one, one, adaptive(7, out)}), {2, 3})};
                             }});
  }
  const std::string op = name;
  c.errors.push_back({"rank",
                      [=] {
                        (void)pool(zeros({1, 2, 4, 4}, cpu), {});
                      },
                      throws<ShapeError>, op + ": x has shape [1, 2, 4, 4], expected [N, C, L]"});
  c.errors.push_back({"kernel",
                      [=] {
                        (void)pool(zeros({1, 1, 4}, cpu), {.kernel = 5});
                      },
                      throws<ShapeError>, op + ": the kernel is 5 along dimension 2"});
  if (largest) {
    c.errors.push_back({"dilation",
                        [=] {
                          (void)pool(zeros({1, 1, 4}, cpu), {.dilation = 0});
                        },
                        throws<ShapeError>, op + ": dilation is 0, expected 1 to 2^30"});
  } else {
    c.errors.push_back({"dilation",
                        [=] {
                          (void)pool(zeros({1, 1, 4}, cpu), {.dilation = 2});
                        },
                        throws<ConfigError>, op + ": dilation is 2, expected 1: only max pools have one"});
  }
  c.errors.push_back({"adaptive, rank", [=] { (void)adaptive_pool(zeros({4}, cpu), 2); }, throws<ShapeError>,
                      "pool1d: x has shape [4], expected [N, C, L]"});
  return c;
}

}  // namespace

LEVIN_OP_CASE(max_pool3d) {
  return case_3d({.ops = {"max_pool2d", "max_pool2d_backward"}, .dtypes = kFloatDTypes}, "max_pool3d",
                 "adaptive_max_pool3d", true, max_pool3d, adaptive_max_pool3d);
}
LEVIN_OP_CASE(avg_pool3d) {
  return case_3d({.ops = {"avg_pool2d", "avg_pool2d_backward"}, .dtypes = kFloatDTypes, .sums = 27}, "avg_pool3d",
                 "adaptive_avg_pool3d", false, avg_pool3d, adaptive_avg_pool3d);
}
LEVIN_OP_CASE(max_pool1d) {
  return case_1d({.ops = {"max_pool2d", "max_pool2d_backward"}, .dtypes = kFloatDTypes}, "max_pool1d", true, max_pool1d,
                 adaptive_max_pool1d);
}
LEVIN_OP_CASE(avg_pool1d) {
  return case_1d({.ops = {"avg_pool2d", "avg_pool2d_backward"}, .dtypes = kFloatDTypes, .sums = 9}, "avg_pool1d", false,
                 avg_pool1d, adaptive_avg_pool1d);
}

LEVIN_OP_CASE(max_pool2d_with_indices) {
  OpCase c{.ops = {"max_pool2d", "max_pool2d_backward"}, .dtypes = kFloatDTypes};
  const auto add = [&](const Shape& x, const PoolOptions& o, std::int64_t h, std::int64_t w) {
    c.samples.push_back({.inputs = {real(x)},
                         .call =
                             [=](const Tensors& in) {
                               const ValuesIndices y = max_pool2d_with_indices(in[0], o);
                               return Tensors{y.values, y.indices};
                             },
                         .reference =
                             [=](const Tensors& in) {
                               const Plain v(in[0]);
                               const auto stride = o.stride.value_or(o.kernel);
                               Plain values({x[0], x[1], h, w}), places(values.shape);
                               values.each([&](const At& at) {
                                 const auto seen = [&](std::size_t d) {
                                   return strided(x[2 + int(d)], o.kernel[d], stride[d], o.padding[d], true,
                                                  o.dilation[d])(at[2 + d]);
                                 };
                                 const Seen rows = seen(0), cols = seen(1);
                                 At best{at[0], at[1], rows.begin, cols.begin};
                                 for (std::int64_t i = rows.begin; i < rows.end; i += rows.step)
                                   for (std::int64_t j = cols.begin; j < cols.end; j += cols.step)
                                     if (v({at[0], at[1], i, j}) > v(best)) best[2] = i, best[3] = j;
                                 values(at) = v(best);
                                 places(at) = double(best[2] * x[3] + best[3]);
                               });
                               return Tensors{values.tensor(), places.tensor(DType::i64)};
                             }});
  };
  add({1, 1, 1, 1}, {.kernel = {1, 1}}, 1, 1);
  add({2, 2, 5, 4}, {.kernel = {3, 2}, .stride = {{2, 1}}, .padding = {1, 1}}, 3, 5);
  add({1, 3, 5, 7}, {.ceil_mode = true}, 3, 4);
  add({0, 2, 4, 4}, {}, 2, 2);
  add({2, 2, 5, 4}, {.kernel = {3, 2}, .stride = {{2, 1}}, .padding = {1, 1}, .dilation = {2, 3}}, 2, 3);
  add({1, 3, 5, 7}, {.dilation = {2, 4}, .ceil_mode = true}, 2, 2);
  c.errors.push_back({"rank",
                      [] {
                        (void)max_pool2d_with_indices(zeros({3, 3}, cpu), {});
                      },
                      throws<ShapeError>, "max_pool2d_with_indices: x has shape [3, 3]"});
  return c;
}

LEVIN_OP_CASE(max_unpool2d) {
  OpCase c{.ops = {"scatter"}, .dtypes = kAllDTypes};
  const auto add = [&](const Shape& x, std::vector<std::int64_t> places, const MaxUnpoolOptions& o, std::int64_t h,
                       std::int64_t w) {
    c.samples.push_back({.inputs = {real(x, 0, 8), fixed(from_data(std::span<const std::int64_t>(places), x, cpu))},
                         .call = [=](const Tensors& in) { return Tensors{max_unpool2d(in[0], in[1], o)}; },
                         .reference =
                             [=](const Tensors& in) {
                               const Plain v(in[0]);
                               Plain y({x[0], x[1], h, w});
                               std::size_t i = 0;
                               v.each([&](const At& at) {
                                 const std::int64_t place = places[i++];
                                 y({at[0], at[1], place / w, place % w}) = v(at);
                               });
                               return Tensors{y.tensor()};
                             }});
  };
  add({1, 1, 1, 1}, {3}, {}, 2, 2);
  add({1, 2, 2, 1}, {1, 6, 0, 7}, {}, 4, 2);
  add({2, 1, 1, 2}, {5, 11, 2, 0}, {.kernel = {3, 2}, .stride = {{2, 2}}, .output_size = {{4, 3}}}, 4, 3);
  add({1, 1, 2, 2}, {0, 4, 4, 8}, {.kernel = {3, 3}, .stride = {{2, 2}}, .padding = {1, 1}}, 3, 3);  // the last wins
  add({0, 1, 2, 2}, {}, {}, 4, 4);
  c.errors.push_back({"rank",
                      [] {
                        (void)max_unpool2d(zeros({2, 2}, cpu), zeros({2, 2}, cpu, DType::i64), {});
                      },
                      throws<ShapeError>, "max_unpool2d: x has shape [2, 2]"});
  const auto refused = [&](const char* what, const Tensor& indices, const MaxUnpoolOptions& o, auto is,
                           const char* message) {
    c.errors.push_back({what, [=] { (void)max_unpool2d(ones({1, 1, 2, 2}, cpu), indices, o); }, is, message});
  };
  const Tensor at = zeros({1, 1, 2, 2}, cpu, DType::i64);
  refused("dtype", zeros({1, 1, 2, 2}, cpu, DType::i32), {}, throws<DTypeError>, "max_unpool2d: indices are i32");
  refused("shape", zeros({1, 1, 2, 1}, cpu, DType::i64), {}, throws<ShapeError>,
          "max_unpool2d: indices have shape [1, 1, 2, 1], expected that of x, [1, 1, 2, 2]");
  refused("kernel", at, {.kernel = {0, 2}}, throws<ShapeError>, "max_unpool2d: kernel is 0");
  refused("stride", at, {.stride = {{2, -1}}}, throws<ShapeError>, "max_unpool2d: stride is -1");
  refused("padding", at, {.padding = {0, -1}}, throws<ShapeError>, "max_unpool2d: padding is -1");
  refused("size", at, {.output_size = {{6, 4}}}, throws<ShapeError>,
          "max_unpool2d: output_size is 6 along dimension 2, expected 1 or more, and within 1 of 4");
  refused("a place outside", at + 16, {}, throws<IndexError>, "16");
  refused("a negative place", at - 1, {}, throws<IndexError>, "-1");
  return c;
}

LEVIN_OP_CASE(max_pool_with_indices) {
  OpCase c{.ops = {"max_pool2d", "max_pool2d_backward", "places_in_volumes"}, .dtypes = kFloatDTypes};
  // Values and places of x [N, C, D, H, W].
  const auto reference = [](const Tensor& x, const Size3& out, const std::array<Axis, 3>& axes) {
    const Plain v(x);
    Plain values({x.size(0), x.size(1), out[0], out[1], out[2]}), places(values.shape);
    values.each([&](const At& at) {
      const Seen d = axes[0](at[2]), h = axes[1](at[3]), w = axes[2](at[4]);
      At best{at[0], at[1], d.begin, h.begin, w.begin};
      for (std::int64_t i = d.begin; i < d.end; i += d.step)
        for (std::int64_t j = h.begin; j < h.end; j += h.step)
          for (std::int64_t k = w.begin; k < w.end; k += w.step)
            if (v({at[0], at[1], i, j, k}) > v(best)) best = {at[0], at[1], i, j, k};
      values(at) = v(best);
      places(at) = double((best[2] * x.size(3) + best[3]) * x.size(4) + best[4]);
    });
    return Tensors{values.tensor(), places.tensor(DType::i64)};
  };
  std::vector<Sample3d> samples = samples_3d();
  for (const Sample3d& s : dilated_3d()) samples.push_back(s);
  for (const Sample3d& s : samples) {
    c.samples.push_back({.inputs = {real(s.x)},
                         .call =
                             [=](const Tensors& in) {
                               const ValuesIndices y = max_pool3d_with_indices(in[0], s.options);
                               return Tensors{y.values, y.indices};
                             },
                         .reference = [=](const Tensors& in) { return reference(in[0], s.out, axes_of(s)); }});
  }
  const auto along = [&](const Shape& x, const PoolOptions1d& o, std::int64_t out) {
    c.samples.push_back({.inputs = {real(x)},
                         .call =
                             [=](const Tensors& in) {
                               const ValuesIndices y = max_pool1d_with_indices(in[0], o);
                               return Tensors{y.values, y.indices};
                             },
                         .reference =
                             [=](const Tensors& in) {
                               const Axis one = [](std::int64_t) { return Seen{0, 1, 1}; };
                               const Axis axis =
                                   strided(x[2], o.kernel, o.stride.value_or(o.kernel), o.padding, true, o.dilation);
                               Tensors y = reference(unsqueeze(unsqueeze(in[0], 2), 2), {1, 1, out}, {one, one, axis});
                               for (Tensor& t : y) t = squeeze(t, {2, 3});
                               return y;
                             }});
  };
  along({1, 1, 1}, {.kernel = 1}, 1);
  along({2, 3, 7}, {.kernel = 3, .stride = 2, .padding = 1}, 4);
  along({1, 2, 9}, {.kernel = 3, .stride = 3, .padding = 1, .ceil_mode = true}, 4);
  along({0, 3, 4}, {}, 2);
  along({2, 3, 9}, {.kernel = 3, .stride = 2, .padding = 1, .dilation = 3}, 3);
  c.errors.push_back({"rank of a sequence",
                      [] {
                        (void)max_pool1d_with_indices(zeros({3, 3}, cpu), {});
                      },
                      throws<ShapeError>, "max_pool1d_with_indices: x has shape [3, 3], expected [N, C, L]"});
  c.errors.push_back({"rank of a volume",
                      [] {
                        (void)max_pool3d_with_indices(zeros({3, 3, 3}, cpu), {});
                      },
                      throws<ShapeError>, "max_pool3d_with_indices: x has shape [3, 3, 3], expected [N, C, D, H, W]"});
  return c;
}

LEVIN_OP_CASE(max_unpool_of_sequences_and_volumes) {
  OpCase c{.ops = {"scatter"}, .dtypes = kAllDTypes};
  // Places count in the `extent` of one sequence or volume.
  const auto add = [&](const Shape& x, const Shape& out, const std::vector<std::int64_t>& places, const auto& unpool) {
    const Tensor at = from_data(std::span<const std::int64_t>(places), x, cpu);
    c.samples.push_back({.inputs = {real(x, 0, 8), fixed(at)},
                         .call = [=](const Tensors& in) { return Tensors{unpool(in[0], in[1])}; },
                         .reference =
                             [=](const Tensors& in) {
                               const auto from = in[0].contiguous().template to_vector<double>();
                               const std::int64_t pixels = std::max<std::int64_t>(
                                                      1, x.numel() / std::max<std::int64_t>(1, x[0] * x[1])),
                                                  extent = out.numel() / std::max<std::int64_t>(1, out[0] * out[1]);
                               std::vector<double> y(static_cast<std::size_t>(out.numel()));
                               for (std::size_t i = 0; i < from.size(); ++i)
                                 y[static_cast<std::size_t>(std::int64_t(i) / pixels * extent + places[i])] = from[i];
                               return Tensors{from_data(std::span<const double>(y), out, cpu)};
                             }});
  };
  const auto along = [](const MaxUnpoolOptions1d& o) {
    return [=](const Tensor& x, const Tensor& at) { return max_unpool1d(x, at, o); };
  };
  add({1, 1, 1}, {1, 1, 2}, {1}, along({}));
  add({2, 2, 2}, {2, 2, 5}, {0, 4, 1, 2, 3, 0, 2, 4}, along({.output_size = 5}));
  add({1, 2, 3}, {1, 2, 5}, {0, 2, 4, 1, 1, 3}, along({.kernel = 3, .stride = 2, .padding = 1}));  // the last wins
  add({1, 0, 2}, {1, 0, 4}, {}, along({}));
  const auto volume = [](const MaxUnpoolOptions3d& o) {
    return [=](const Tensor& x, const Tensor& at) { return max_unpool3d(x, at, o); };
  };
  add({1, 1, 1, 1, 1}, {1, 1, 2, 2, 2}, {7}, volume({}));
  add({1, 2, 1, 2, 1}, {1, 2, 2, 6, 1}, {11, 3, 0, 10}, volume({.kernel = {2, 3, 1}}));
  add({2, 1, 2, 1, 1}, {2, 1, 4, 3, 2}, {23, 5, 8, 12},
      volume({.kernel = {3, 2, 2}, .stride = {{2, 2, 1}}, .padding = {1, 0, 0}, .output_size = {{4, 3, 2}}}));
  add({0, 1, 1, 2, 2}, {0, 1, 2, 4, 4}, {}, volume({}));
  const auto refused = [&](const char* what, const Tensor& x, const Tensor& indices, const auto& unpool, auto is,
                           const char* message) {
    c.errors.push_back({what, [=] { (void)unpool(x, indices); }, is, message});
  };
  const Tensor line = ones({1, 1, 2}, cpu), box = ones({1, 1, 2, 1, 1}, cpu);
  const Tensor in_line = zeros(line.shape(), cpu, DType::i64), in_box = zeros(box.shape(), cpu, DType::i64);
  refused("rank", zeros({2, 2}, cpu), zeros({2, 2}, cpu, DType::i64), along({}), throws<ShapeError>,
          "max_unpool1d: x has shape [2, 2], expected [N, C, L]");
  refused("rank", line, in_line, volume({}), throws<ShapeError>,
          "max_unpool3d: x has shape [1, 1, 2], expected [N, C, D, H, W]");
  refused("dtype", line, zeros(line.shape(), cpu, DType::i32), along({}), throws<DTypeError>,
          "max_unpool1d: indices are i32, expected i64");
  refused("shape", line, zeros({1, 1, 3}, cpu, DType::i64), along({}), throws<ShapeError>,
          "max_unpool1d: indices have shape [1, 1, 3], expected that of x, [1, 1, 2]");
  refused("kernel", line, in_line, along({.kernel = 0}), throws<ShapeError>, "max_unpool1d: kernel is 0");
  refused("stride", box, in_box, volume({.stride = {{1, 0, 1}}}), throws<ShapeError>, "max_unpool3d: stride is 0");
  refused("padding", box, in_box, volume({.padding = {0, 0, -1}}), throws<ShapeError>, "max_unpool3d: padding is -1");
  refused("size", box, in_box, volume({.output_size = {{4, 2, 4}}}), throws<ShapeError>,
          "max_unpool3d: output_size is 4 along dimension 4, expected 1 or more, and within 1 of 2");
  refused("size", line, in_line, along({.output_size = 6}), throws<ShapeError>,
          "max_unpool1d: output_size is 6 along dimension 2, expected 1 or more, and within 1 of 4");
  refused("a place outside", line, in_line + 4, along({}), throws<IndexError>, "4");
  refused("a negative place", box, in_box - 1, volume({}), throws<IndexError>, "-1");
  return c;
}

LEVIN_OP_CASE(lp_pool2d) {
  OpCase c{.ops = {"avg_pool2d", "avg_pool2d_backward"}, .dtypes = kFloatDTypes, .sums = 9};
  const auto add = [&](const Shape& x, double p, const PoolOptions& o, std::int64_t h, std::int64_t w) {
    c.samples.push_back({.inputs = {p == 2 ? real(x) : real(x, 0.25, 2)},
                         .call = [=](const Tensors& in) { return Tensors{lp_pool2d(in[0], p, o)}; },
                         .reference =
                             [=](const Tensors& in) {
                               const Plain v(in[0]);
                               const auto stride = o.stride.value_or(o.kernel);
                               return Tensors{
                                   Plain({x[0], x[1], h, w}, [&](const At& at) {
                                     const Seen rows = strided(x[2], o.kernel[0], stride[0], 0, false)(at[2]),
                                                cols = strided(x[3], o.kernel[1], stride[1], 0, false)(at[3]);
                                     double sum = 0;
                                     for (std::int64_t i = rows.begin; i < rows.end; ++i)
                                       for (std::int64_t j = cols.begin; j < cols.end; ++j)
                                         sum += std::pow(v({at[0], at[1], i, j}), p);
                                     sum *= double(o.kernel[0] * o.kernel[1]) / double(rows.count * cols.count);
                                     return std::pow(sum, 1 / p);
                                   }).tensor()};
                             }});
  };
  add({1, 1, 1, 1}, 2, {.kernel = {1, 1}}, 1, 1);
  add({1, 2, 4, 5}, 2, {}, 2, 2);
  add({2, 1, 5, 4}, 3, {.kernel = {3, 2}, .stride = {{1, 2}}}, 3, 2);
  add({1, 1, 5, 5}, 1.5, {.ceil_mode = true}, 3, 3);
  add({1, 1, 4, 4}, 1, {}, 2, 2);
  add({0, 1, 4, 4}, 2, {}, 2, 2);
  c.errors.push_back({"padding",
                      [] {
                        (void)lp_pool2d(zeros({1, 1, 4, 4}, cpu), 2, {.padding = {1, 0}});
                      },
                      throws<ConfigError>, "lp_pool2d: padding is 1 and 0, expected 0"});
  c.errors.push_back({"dilation",
                      [] {
                        (void)lp_pool2d(zeros({1, 1, 4, 4}, cpu), 2, {.dilation = {1, 2}});
                      },
                      throws<ConfigError>, "lp_pool2d: dilation is 2, expected 1"});
  for (const double p : {0.0, -1.0, std::numeric_limits<double>::infinity(), std::nan("")}) {
    c.errors.push_back({"p",
                        [p] {
                          (void)lp_pool2d(zeros({1, 1, 4, 4}, cpu), p, {});
                        },
                        throws<ConfigError>, "lp_pool2d: p is"});
  }
  c.errors.push_back({"rank",
                      [] {
                        (void)lp_pool2d(zeros({4, 4}, cpu), 2, {});
                      },
                      throws<ShapeError>, "avg_pool2d: x has shape [4, 4]"});
  return c;
}

TEST_CASE("pooling of a volume keeps the first of equal values, and a NaN wins") {
  Tensor x = ones({1, 1, 2, 2, 2}, cpu);
  x.requires_grad_();
  backward(sum(max_pool3d(x, 2)));
  CHECK(x.grad().to_vector<float>() == std::vector<float>{1, 0, 0, 0, 0, 0, 0, 0});
  const Tensor nan = reshape(tensor({1.0, std::nan(""), 3.0, 2.0, 5.0, 1.0, 1.0, 1.0}, cpu), {1, 1, 2, 2, 2});
  CHECK(std::isnan(max_pool3d(nan, 2).item()));
}

TEST_CASE("unpooling puts what max pooling took back, and its gradient is taken from there") {
  Generator g(3);
  Tensor x = randn({2, 3, 6, 8}, g, cpu, DType::f64);
  const auto [y, places] = max_pool2d_with_indices(x, {});
  CHECK(equal(y, max_pool2d(x, 2)));
  CHECK(equal(gather(flatten(x, 2), 2, flatten(places, 2)), flatten(y, 2)));
  Tensor pooled = y.detach();
  pooled.requires_grad_();
  const Tensor back = max_unpool2d(pooled, places, {});
  CHECK(equal(where(ne(back, 0), back, x), x));
  CHECK(sum(ne(back, 0)).item() == double(y.numel()));
  const Tensor seed = randn(back.shape(), g, cpu, DType::f64);
  const Tensor gx = grad(Tensors{back}, Tensors{pooled}, Tensors{seed})[0];
  CHECK(equal(flatten(gx, 2), gather(flatten(seed, 2), 2, flatten(places, 2))));
}

TEST_CASE("unpooling puts elements of sequences and volumes back where max pooling took them") {
  Generator g(4);
  const Tensor x = randn({2, 3, 9}, g, cpu), v = randn({2, 2, 5, 6, 4}, g, cpu);
  const auto [y, places] = max_pool1d_with_indices(x, {});
  const Tensor line = max_unpool1d(y, places, {.output_size = 9});
  CHECK(equal(y, max_pool1d(x, 2)));
  CHECK(equal(where(ne(line, 0), line, x), x));
  CHECK(sum(ne(line, 0)).item() == double(y.numel()));
  const auto [z, spots] = max_pool3d_with_indices(v, {});
  const Tensor box = max_unpool3d(z, spots, {.output_size = {{5, 6, 4}}});
  CHECK(equal(z, max_pool3d(v, 2)));
  CHECK(equal(where(ne(box, 0), box, v), v));
  CHECK(sum(ne(box, 0)).item() == double(z.numel()));
}

TEST_CASE("of equal elements of a volume the place of the first is given, of -inf alone too") {
  const PoolOptions3d o{.kernel = {2, 2, 2}, .stride = {{1, 1, 1}}, .padding = {1, 1, 1}};
  for (const double v : {0.0, -std::numeric_limits<double>::infinity()}) {
    // F.max_pool3d(torch.zeros(1, 1, 1, 2, 2), 2, 1, 1, return_indices=True)[1]
    const Tensor places = max_pool3d_with_indices(full({1, 1, 1, 2, 2}, v, cpu), o).indices;
    CHECK(places.to_vector<std::int64_t>() ==
          std::vector<std::int64_t>{0, 0, 1, 0, 0, 1, 2, 2, 3, 0, 0, 1, 0, 0, 1, 2, 2, 3});
    // F.max_pool3d(torch.zeros(1, 1, 2, 3, 3), 2, 1, 1, 2, return_indices=True)[1]
    const PoolOptions3d gaps{.stride = {{1, 1, 1}}, .padding = {1, 1, 1}, .dilation = {2, 2, 2}};
    CHECK(max_pool3d_with_indices(full({1, 1, 2, 3, 3}, v, cpu), gaps).indices.to_vector<std::int64_t>() ==
          std::vector<std::int64_t>{13, 12, 13, 10, 9, 10, 13, 12, 13, 4, 3, 4, 1, 0, 1, 4, 3, 4});
  }
}

TEST_CASE("pooling by a norm has gradient 0 where all elements are 0, and does not overflow in 16 bits") {
  Tensor x = zeros({1, 1, 2, 2}, cpu);
  x.requires_grad_();
  const Tensor y = lp_pool2d(x, 2, {});
  CHECK(y.item() == 0);
  backward(sum(y));
  CHECK(equal(x.grad(), zeros({1, 1, 2, 2}, cpu)));
  CHECK(lp_pool2d(full({1, 1, 2, 2}, 1000, cpu, DType::f16), 2, {}).to(DType::f32).item() == 2000);
  CHECK(std::isnan(lp_pool2d(full({1, 1, 2, 2}, -1, cpu), 3, {}).item()));
}

}  // namespace levin::testing
