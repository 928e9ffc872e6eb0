#include <doctest/doctest.h>

#include <algorithm>
#include <limits>

#include "levin/sparse.h"
#include "tests/ops/samples.h"

namespace levin::testing {
namespace {

using Ints = std::vector<std::int64_t>;
const Device cpu = Device::cpu();
Tensor ints(const Ints& v, const Shape& shape) { return from_data(std::span<const std::int64_t>(v), shape, cpu); }
Tensor ints(const Ints& v) { return ints(v, {static_cast<std::int64_t>(v.size())}); }

// The definition in plain loops; weight [rows, d] and factors [E] or none as f64, bag i is at[i] .. at[i + 1].
Tensor bags_reference(const Tensor& weight, const Ints& index, const Ints& at, const Tensor& factors, Reduce mode,
                      std::int64_t padding) {
  const std::int64_t d = weight.size(1), bags = static_cast<std::int64_t>(at.size()) - 1;
  const std::vector<double> w = weight.contiguous().to_vector<double>();
  const std::vector<double> f = factors.defined() ? factors.contiguous().to_vector<double>() : std::vector<double>{};
  std::vector<double> y(static_cast<std::size_t>(bags * d), 0.0);
  for (std::int64_t i = 0; i < bags; ++i) {
    for (std::int64_t c = 0; c < d; ++c) {
      double& out = y[static_cast<std::size_t>(i * d + c)];
      std::int64_t count = 0;
      for (std::int64_t k = at[static_cast<std::size_t>(i)]; k < at[static_cast<std::size_t>(i + 1)]; ++k) {
        const std::int64_t row = index[static_cast<std::size_t>(k)];
        if (row == padding) continue;
        const double v = w[static_cast<std::size_t>(row * d + c)] * (f.empty() ? 1 : f[static_cast<std::size_t>(k)]);
        if (mode == Reduce::max)
          out = count == 0 ? v : std::max(out, v);
        else if (mode == Reduce::min)
          out = count == 0 ? v : std::min(out, v);
        else
          out += v;
        ++count;
      }
      if (mode == Reduce::mean && count > 0) out /= static_cast<double>(count);
    }
  }
  return from_data(std::span<const double>(y), {bags, d}, cpu);
}

}  // namespace

LEVIN_OP_CASE(embedding_bag) {
  OpCase c{.ops = {},
           .dtypes = kFloatDTypes,
           .ulps = 4,
           .sums = 8,
           .layout_changes_sums = true,
           .no_single = "offsets have one element more than there are bags"};
  struct Bags {
    std::int64_t rows, columns;
    Ints index, at;
  };
  const Bags one{1, 1, {0}, {0, 1}}, no_columns{3, 0, {2, 0}, {0, 2}}, empty_bags{3, 2, {}, {0, 0, 0}},
      no_bags{3, 2, {}, {0}}, mixed{5, 3, {0, 4, 1, 2, 1, 3, 3, 1}, {0, 3, 3, 4, 6, 8}};
  for (const Reduce mode : {Reduce::sum, Reduce::mean, Reduce::max, Reduce::min}) {
    for (const Bags& b : {one, no_columns, empty_bags, no_bags, mixed}) {
      for (const std::int64_t padding : {-1, 1}) {
        if (padding >= b.rows) continue;
        BagOptions o{.mode = mode, .include_last_offset = true};
        if (padding >= 0) o.padding_idx = padding;
        c.samples.push_back(
            {.inputs = {real({b.rows, b.columns}), fixed(ints(b.index)), fixed(ints(b.at))},
             .call = [=](const Tensors& in) { return Tensors{embedding_bag(in[0], in[1], in[2], o)}; },
             .reference =
                 [=](const Tensors& in) { return Tensors{bags_reference(in[0], b.index, b.at, {}, mode, padding)}; }});
      }
    }
  }
  // Factors, offsets without the end, and rows of an index.
  for (const std::int64_t padding : {-1, 2}) {
    BagOptions o{.mode = Reduce::sum};
    if (padding >= 0) o.padding_idx = padding - 5;
    const Ints index{0, 4, 1, 2, 2, 3}, at{0, 2, 2, 6}, halves{0, 3, 6};
    const auto call = [=](const Tensors& in) {
      BagOptions with = o;
      with.per_sample_weights = in[1];
      return Tensors{embedding_bag(in[0], in[2], in.size() > 3 ? in[3] : Tensor(), with)};
    };
    c.samples.push_back({.inputs = {real({5, 3}), optional(real({6})), fixed(ints(index)), fixed(ints({0, 2, 2}))},
                         .call = call,
                         .reference = [=](const Tensors& in) {
                           return Tensors{bags_reference(in[0], index, at, in[1], Reduce::sum, padding)};
                         }});
    c.samples.push_back({.inputs = {real({5, 3}), optional(real({2, 3})), fixed(ints(index, {2, 3}))},
                         .call = call,
                         .reference = [=](const Tensors& in) {
                           return Tensors{bags_reference(in[0], index, halves, in[1], Reduce::sum, padding)};
                         }});
  }
  const Tensor table = zeros({3, 2}, cpu), two = ints({0, 1}), begin = ints({0});
  const auto refuse = [&](const char* what, std::function<void()> call, std::function<bool(const Error&)> is,
                          const char* contains) {
    c.errors.push_back({what, std::move(call), std::move(is), contains});
  };
  refuse(
      "index",
      [=] {
        (void)embedding_bag(table, ints({0, 3}), begin);
      },
      throws<IndexError>, "embedding_bag: index 3 at position [1] is out of range, expected 0 to 2");
  refuse(
      "no offsets", [=] { (void)embedding_bag(table, two); }, throws<StateError>,
      "embedding_bag: offsets are undefined beside an index of shape [2]");
  refuse(
      "offsets of rows",
      [=] {
        (void)embedding_bag(table, ints({0, 1}, {1, 2}), begin);
      },
      throws<ShapeError>, "embedding_bag: offsets are given beside an index of shape [1, 2]");
  refuse(
      "offsets that fall",
      [=] {
        (void)embedding_bag(table, two, ints({0, 2, 1}));
      },
      throws<IndexError>, "crow");
  refuse(
      "factors of a mean", [=] { (void)embedding_bag(table, two, begin, {.per_sample_weights = ones({2}, cpu)}); },
      throws<ConfigError>, "embedding_bag: per_sample_weights are given");
  refuse(
      "factors' shape",
      [=] { (void)embedding_bag(table, two, begin, {.mode = Reduce::sum, .per_sample_weights = ones({3}, cpu)}); },
      throws<ShapeError>, "embedding_bag: per_sample_weights have shape [3], expected index's [2]");
  refuse(
      "padding", [=] { (void)embedding_bag(table, two, begin, {.padding_idx = 3}); }, throws<IndexError>,
      "embedding_bag: padding_idx is 3");
  refuse(
      "dtype", [=] { (void)embedding_bag(table, two.to(DType::i32), begin); }, throws<DTypeError>,
      "embedding_bag: index is i32, expected i64");
  return c;
}

TEST_CASE("a bag's padding row is not read") {
  Tensor table = from_data(std::vector<float>{1, 2, std::numeric_limits<float>::quiet_NaN(), 4}, {4, 1}, cpu);
  table.requires_grad_();
  for (const Reduce mode : {Reduce::sum, Reduce::mean, Reduce::max}) {
    const Tensor y = embedding_bag(table, ints({0, 2, 3, 2}), ints({0, 3}), {.mode = mode, .padding_idx = 2});
    CHECK(y.detach().to_vector<float>() == std::vector<float>{mode == Reduce::sum    ? 5.F
                                                              : mode == Reduce::mean ? 2.5F
                                                                                     : 4.F,
                                                              0.F});
    const Tensor g = grad(Tensors{sum(y)}, Tensors{table})[0];
    CHECK(select(g, 0, 2).item<float>() == 0);
    CHECK(all(isfinite(g)).item<bool>());
  }
}

}  // namespace levin::testing
