// Samples of orders of dimensions, diagonals, blocks and triangles for the conformance suite.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "autograd/ops/index/moves_test.h"
#include "levin/autograd.h"
#include "tests/device.h"
#include "tests/ops/samples.h"

namespace levin::testing {
namespace {
const Device cpu = Device::cpu();
}  // namespace

LEVIN_OP_CASE(movedim) {
  OpCase c{.ops = {}, .dtypes = kAllDTypes};
  const auto add = [&](const Shape& x, Dims from, Dims to, const std::vector<int>& order) {
    std::vector<std::int64_t> sizes;
    for (const int d : order) sizes.push_back(x[d]);
    add_move(
        c, x, [=](const Tensor& t) { return movedim(t, from, to); }, Shape(std::span<const std::int64_t>(sizes)),
        [=](const At& at) {
          At source(at.size());
          for (std::size_t k = 0; k < order.size(); ++k) source[static_cast<std::size_t>(order[k])] = at[k];
          return std::optional(source);
        });
  };
  add({2, 3, 4}, 0, -1, {1, 2, 0});
  add({2, 3, 4, 5}, {1, 3}, {0, 1}, {1, 3, 0, 2});
  add({2, 3, 4}, {-1, 0}, {0, 2}, {2, 1, 0});
  add({1}, 0, 0, {0});
  add({2, 0}, 0, 1, {1, 0});
  c.errors.push_back({"twice",
                      [] {
                        (void)movedim(zeros({2, 3}, cpu), {0, 0}, {0, 1});
                      },
                      throws<IndexError>, "movedim: dimension 0 is given twice"});
  c.errors.push_back({"count",
                      [] {
                        (void)movedim(zeros({2, 3}, cpu), {0, 1}, 0);
                      },
                      throws<ShapeError>, "movedim: 2 dimensions move to 1 places"});
  return c;
}

LEVIN_OP_CASE(swapaxes) {
  OpCase c{.ops = {}, .dtypes = kAllDTypes};
  for (const Shape& s : {Shape{2, 3, 4}, Shape{1, 1, 1}, Shape{2, 0, 3}}) {
    add_move(
        c, s, [](const Tensor& t) { return swapaxes(t, 0, -1); }, Shape{s[2], s[1], s[0]},
        [](const At& at) {
          return std::optional(At{at[2], at[1], at[0]});
        });
  }
  c.errors.push_back({"dim", [] { (void)swapaxes(zeros({2}, cpu), 0, 1); }, throws<IndexError>, "dimension is 1"});
  return c;
}

LEVIN_OP_CASE(diag_embed) {
  OpCase c{.ops = {}, .dtypes = kAllDTypes};
  for (const std::int64_t offset : {0, 2, -1}) {
    for (const std::int64_t n : {0, 1, 4}) {
      const std::int64_t m = n + std::abs(offset);
      const auto from = [=](std::int64_t row, std::int64_t col) {
        return col - row == offset ? std::optional(offset < 0 ? col : row) : std::nullopt;
      };
      add_move(
          c, {n}, [=](const Tensor& t) { return diag_embed(t, offset); }, {m, m},
          [=](const At& at) {
            const auto k = from(at[0], at[1]);
            return k ? std::optional(At{*k}) : std::nullopt;
          });
      // Columns first, then the batch, then rows.
      add_move(
          c, {2, n}, [=](const Tensor& t) { return diag_embed(t, offset, 2, 0); }, {m, 2, m},
          [=](const At& at) {
            const auto k = from(at[2], at[0]);
            return k ? std::optional(At{at[1], *k}) : std::nullopt;
          });
    }
  }
  c.errors.push_back({"dims",
                      [] {
                        (void)diag_embed(zeros({2, 3}, cpu), 0, 1, -2);
                      },
                      throws<IndexError>, "diag_embed: dim1 and dim2 are both 1"});
  c.errors.push_back({"rank", [] { (void)diag_embed(zeros({}, cpu)); }, throws<ShapeError>, "diag_embed: x has shape"});
  return c;
}

LEVIN_OP_CASE(rot90) {
  OpCase c{.ops = {}, .dtypes = kAllDTypes};
  for (const Shape& s : {Shape{3, 4}, Shape{1, 1}, Shape{0, 2}}) {
    const std::int64_t rows = s[0], cols = s[1];
    add_move(
        c, s, [](const Tensor& t) { return rot90(t); }, {cols, rows},
        [=](const At& at) {
          return std::optional(At{at[1], cols - 1 - at[0]});
        });
    add_move(
        c, s, [](const Tensor& t) { return rot90(t, -2); }, {rows, cols},
        [=](const At& at) {
          return std::optional(At{rows - 1 - at[0], cols - 1 - at[1]});
        });
    add_move(
        c, s, [](const Tensor& t) { return rot90(t, 7); }, {cols, rows},
        [=](const At& at) {
          return std::optional(At{rows - 1 - at[1], at[0]});
        });
    add_move(
        c, s,
        [](const Tensor& t) {
          return rot90(t, 1, {-1, -2});
        },
        {cols, rows},
        [=](const At& at) {
          return std::optional(At{rows - 1 - at[1], at[0]});
        });
    add_move(
        c, s, [](const Tensor& t) { return rot90(t, 4); }, s, [](const At& at) { return std::optional(at); });
  }
  c.errors.push_back({"dims",
                      [] {
                        (void)rot90(zeros({2, 2}, cpu), 1, {0, -2});
                      },
                      throws<IndexError>, "rot90: dimension -2 is given twice"});
  c.errors.push_back({"count",
                      [] {
                        (void)rot90(zeros({2, 2}, cpu), 1, 0);
                      },
                      throws<ShapeError>, "rot90: 1 dimensions, expected 2"});
  return c;
}

LEVIN_OP_CASE(block_diag) {
  OpCase c{.ops = {}, .dtypes = kAllDTypes};
  for (const std::vector<Shape>& shapes : {std::vector<Shape>{{2, 3}, {4}, {}, {1, 2}}, {{1}}, {{0, 2}, {2, 1}}}) {
    OpSample s;
    for (const Shape& shape : shapes) s.inputs.push_back(real(shape, 0, 8));
    s.call = [](const Tensors& in) { return Tensors{block_diag(in)}; };
    s.reference = [](const Tensors& in) {
      std::int64_t rows = 0, cols = 0;
      for (const Tensor& x : in) {
        rows += x.rank() == 2 ? x.size(0) : 1;
        cols += x.rank() == 2 ? x.size(1) : x.numel();
      }
      Plain y({rows, cols});
      std::int64_t top = 0, left = 0;
      for (const Tensor& x : in) {
        const Plain block(x.rank() == 2 ? x : reshape(x, {1, x.numel()}));
        block.each([&](const At& at) { y({top + at[0], left + at[1]}) = block(at); });
        top += block.shape[0];
        left += block.shape[1];
      }
      return Tensors{y.tensor()};
    };
    c.samples.push_back(s);
  }
  c.errors.push_back(
      {"none", [] { (void)block_diag(Tensors{}); }, throws<ShapeError>, "block_diag: no tensor is given"});
  c.errors.push_back({"rank",
                      [] {
                        (void)block_diag(Tensors{zeros({1, 2, 3}, cpu)});
                      },
                      throws<ShapeError>, "block_diag: a tensor has shape [1, 2, 3]"});
  return c;
}

LEVIN_OP_CASE(cartesian_prod) {
  OpCase c{.ops = {}, .dtypes = kAllDTypes};
  for (const std::vector<Shape>& shapes : {std::vector<Shape>{{2}, {3}, {2}}, {{1}}, {{0}, {2}}, {{3}}}) {
    OpSample s;
    for (const Shape& shape : shapes) s.inputs.push_back(real(shape, 0, 8));
    s.call = [](const Tensors& in) { return Tensors{cartesian_prod(in)}; };
    s.reference = [](const Tensors& in) {
      if (in.size() == 1) return Tensors{in[0].clone()};
      std::int64_t rows = 1;
      for (const Tensor& x : in) rows *= x.numel();
      return Tensors{Plain({rows, static_cast<std::int64_t>(in.size())}, [&](const At& at) {
                       std::int64_t after = 1;
                       for (std::size_t k = static_cast<std::size_t>(at[1]) + 1; k < in.size(); ++k)
                         after *= in[k].numel();
                       const Tensor& x = in[static_cast<std::size_t>(at[1])];
                       return Plain(x)({at[0] / after % x.numel()});
                     }).tensor()};
    };
    c.samples.push_back(s);
  }
  c.errors.push_back({"rank",
                      [] {
                        (void)cartesian_prod(Tensors{zeros({1, 2}, cpu)});
                      },
                      throws<ShapeError>, "cartesian_prod: a tensor has shape [1, 2], expected [n]"});
  c.errors.push_back({"none", [] { (void)cartesian_prod(Tensors{}); }, throws<ShapeError>, "no tensor is given"});
  return c;
}

LEVIN_OP_CASE(diff) {
  // Of sorted elements: bytes do not wrap around, and exclusive or is the difference of bool.
  OpCase c{.ops = {}, .dtypes = kComputedDTypes, .sums = 4};
  struct Difference {
    Shape x;
    std::int64_t n;
    int dim;
  };
  for (const Difference& d :
       {Difference{{3, 5}, 1, 1}, {{4, 3}, 1, 0}, {{2}, 3, 0}, {{1}, 1, 0}, {{0, 3}, 1, 0}, {{2, 3}, 0, 1}}) {
    c.samples.push_back(
        {.inputs = {real(d.x, 0, 8)},
         .call = [=](const Tensors& in) { return Tensors{diff(sort(in[0], d.dim).values, d.n, d.dim)}; },
         .reference =
             [=](const Tensors& in) {
               Plain y(sort(in[0], d.dim).values);
               for (std::int64_t i = 0; i < d.n && y.shape[d.dim] > 0; ++i) {
                 const Plain x = y;
                 y = Plain(x.shape.with(d.dim, x.shape[d.dim] - 1), [&](const At& at) {
                   const auto k = static_cast<double>(at[static_cast<std::size_t>(d.dim)]);
                   return x(with(at, d.dim, k + 1)) - x(at);
                 });
               }
               return Tensors{y.tensor()};
             }});
  }
  c.errors.push_back({"n", [] { (void)diff(zeros({3}, cpu), -1); }, throws<ConfigError>, "diff: n is -1"});
  return c;
}

TEST_CASE("tril_indices and triu_indices name the elements that tril and triu keep, row by row, also on a device") {
  const std::optional<Device> found = test::launching_device();
  for (const Device device : {cpu, found ? *found : cpu}) {
    for (const std::int64_t rows : {0, 1, 3, 5}) {
      for (const std::int64_t cols : {0, 1, 4}) {
        for (const std::int64_t offset : {-7, -2, -1, 0, 1, 3, 9}) {
          CAPTURE(rows);
          CAPTURE(cols);
          CAPTURE(offset);
          const Tensor all = ones({rows, cols}, cpu);
          CHECK(equal(tril_indices(rows, cols, device, offset).to(cpu), t(nonzero(tril(all, offset))).contiguous()));
          CHECK(equal(triu_indices(rows, cols, device, offset).to(cpu), t(nonzero(triu(all, offset))).contiguous()));
        }
      }
    }
  }
  CHECK_THROWS_WITH_AS((void)tril_indices(-1, 2, cpu), doctest::Contains("tril_indices: rows is -1"), ShapeError);
}

TEST_CASE("differences are taken n times, and that of bool is exclusive or") {
  CHECK(diff(tensor<double>({1, 4, 9, 20}, cpu), 2).to_vector<double>() == std::vector<double>{2, 6});
  const Tensor x = ne(tensor<std::int64_t>({1, 0, 0, 1}, cpu), 0);
  CHECK(diff(x).to(DType::i64).to_vector<std::int64_t>() == std::vector<std::int64_t>{1, 0, 1});
}

TEST_CASE("hstack and vstack join columns and rows, and a vector is a row of the latter") {
  const Tensor a = arange(3, cpu), b = arange(2, cpu), m = reshape(arange(6, cpu), {2, 3});
  CHECK(equal(hstack({a, b}), cat({a, b}, 0)));
  CHECK(equal(hstack({m, m}), cat({m, m}, 1)));
  CHECK(equal(hstack({select(a, 0, 1), a}), tensor<std::int64_t>({1, 0, 1, 2}, cpu)));
  CHECK(hstack({zeros({2, 3, 4}, cpu), zeros({2, 1, 4}, cpu)}).shape() == Shape{2, 4, 4});
  CHECK(equal(vstack({a, m}), cat({unsqueeze(a, 0), m}, 0)));
  CHECK(vstack({zeros({}, cpu), zeros({}, cpu)}).shape() == Shape{2, 1});
  CHECK(vstack({zeros({0}, cpu)}).shape() == Shape{1, 0});
  CHECK_THROWS_WITH_AS((void)hstack(Tensors{}), doctest::Contains("hstack: no tensor is given"), ShapeError);
  CHECK_THROWS_WITH_AS((void)vstack(Tensors{}), doctest::Contains("vstack: no tensor is given"), ShapeError);
  CHECK_THROWS_AS((void)hstack({a, m}), ShapeError);
  CHECK_THROWS_AS((void)vstack({a, b}), ShapeError);
  CHECK_THROWS_AS((void)vstack({a, zeros({3}, cpu)}), DTypeError);
}

TEST_CASE("repeat_interleave takes a number of repeats for each element, and sums their gradients") {
  Tensor x = reshape(arange(6, cpu).to(DType::f64), {3, 2});
  x.requires_grad_();
  const Tensor times = tensor<std::int64_t>({2, 0, 3}, cpu), y = repeat_interleave(x, times, 0);
  CHECK(equal(y.detach(), index_select(x.detach(), 0, tensor<std::int64_t>({0, 0, 2, 2, 2}, cpu))));
  CHECK(grad(Tensors{sum(y)}, Tensors{x})[0].to_vector<double>() == std::vector<double>{2, 2, 0, 0, 3, 3});
  CHECK(equal(repeat_interleave(x, tensor<std::int64_t>({1, 2}, cpu), -1).detach(),
              index_select(x.detach(), 1, tensor<std::int64_t>({0, 1, 1}, cpu))));
  CHECK(repeat_interleave(x, times * 0, 0).shape() == Shape{0, 2});
  CHECK(repeat_interleave(zeros({0, 2}, cpu), zeros({0}, cpu, DType::i64), 0).shape() == Shape{0, 2});
  CHECK_THROWS_WITH_AS((void)repeat_interleave(x, times - 1, 0), doctest::Contains("a number of repeats is -1"),
                       ShapeError);
  CHECK_THROWS_AS((void)repeat_interleave(x, times + (std::int64_t{1} << 50), 0), ShapeError);
  CHECK_THROWS_AS((void)repeat_interleave(x, times, 1), ShapeError);
  CHECK_THROWS_AS((void)repeat_interleave(x, times, 2), IndexError);
  CHECK_THROWS_AS((void)repeat_interleave(x, times.to(DType::i32), 0), DTypeError);
  CHECK_THROWS_AS((void)repeat_interleave(zeros({3}, Device::meta()), zeros({3}, Device::meta(), DType::i64), 0),
                  UnsupportedError);
}

TEST_CASE("lists of tensors in braces are lists of tensors") {
  const Tensor a = arange(3, cpu), b = arange(2, cpu);
  const Tensors both{a, b};
  CHECK(equal(meshgrid({a, b})[1], meshgrid(both)[1]));
  CHECK(equal(meshgrid({a, b}, Indexing::xy)[0], meshgrid(both, Indexing::xy)[0]));
  CHECK(equal(block_diag({a, b}), block_diag(both)));
  CHECK(equal(cartesian_prod({a, b}), cartesian_prod(both)));
}

}  // namespace levin::testing
