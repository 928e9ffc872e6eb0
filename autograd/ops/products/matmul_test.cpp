#include <doctest/doctest.h>

#include <array>
#include <optional>

#include "levin/autograd.h"
#include "tests/ops/samples.h"

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();

// A product in plain loops over f64, for operands of rank 2 and more.
Tensor product_reference(const Tensor& a, const Tensor& b) {
  const int ar = a.rank(), br = b.rank();
  const Shape lead = broadcast_shapes("reference", Shape(a.shape().dims().first(std::size_t(ar - 2))),
                                      Shape(b.shape().dims().first(std::size_t(br - 2))));
  const std::int64_t m = a.shape()[ar - 2], k = a.shape()[ar - 1], n = b.shape()[br - 1];
  const int r = lead.rank();
  const std::vector<double> x = expand(a, lead.inserted(r, m).inserted(r + 1, k)).contiguous().to_vector<double>();
  const std::vector<double> y = expand(b, lead.inserted(r, k).inserted(r + 1, n)).contiguous().to_vector<double>();
  std::vector<double> z(std::size_t(lead.numel() * m * n));
  for (std::int64_t s = 0; s < lead.numel(); ++s) {
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (std::int64_t l = 0; l < k; ++l)
          sum += x[std::size_t((s * m + i) * k + l)] * y[std::size_t((s * k + l) * n + j)];
        z[std::size_t((s * m + i) * n + j)] = sum;
      }
    }
  }
  return from_data(std::span<const double>(z), lead.inserted(r, m).inserted(r + 1, n), cpu);
}

Tensor matmul_reference(const Tensor& a, const Tensor& b) {
  Tensor y = product_reference(a.rank() == 1 ? unsqueeze(a, 0) : a, b.rank() == 1 ? unsqueeze(b, 1) : b);
  if (b.rank() == 1) y = squeeze(y, -1);
  return a.rank() == 1 ? squeeze(y, b.rank() == 1 ? -1 : -2) : y;
}

// The sum of products over all labels, one index tuple at a time: explicit form, no ellipsis.
Tensor einsum_reference(const std::string& equation, const Tensors& in) {
  const std::size_t arrow = equation.find("->");
  const std::string result = equation.substr(arrow + 2);
  std::vector<std::string> terms(1);
  for (const char c : equation.substr(0, arrow)) {
    if (c == ',')
      terms.emplace_back();
    else
      terms.back() += c;
  }
  std::string labels;
  std::vector<std::int64_t> sizes;
  for (std::size_t t = 0; t < terms.size(); ++t) {
    for (std::size_t d = 0; d < terms[t].size(); ++d) {
      if (labels.find(terms[t][d]) != std::string::npos) continue;
      labels += terms[t][d];
      sizes.push_back(in[t].shape()[int(d)]);
    }
  }
  std::vector<std::int64_t> out_sizes;
  for (const char c : result) out_sizes.push_back(sizes[labels.find(c)]);
  const Shape shape{std::span<const std::int64_t>(out_sizes)};
  std::vector<double> z(std::size_t(shape.numel()), 0.0);
  std::vector<std::vector<double>> data;
  for (const Tensor& t : in) data.push_back(t.contiguous().to_vector<double>());
  std::vector<std::int64_t> at(labels.size(), 0);
  std::int64_t total = 1;
  for (const std::int64_t s : sizes) total *= s;
  const auto place = [&](const std::string& term, const Shape& s) {
    std::int64_t i = 0;
    for (std::size_t d = 0; d < term.size(); ++d) i = i * s[int(d)] + at[labels.find(term[d])];
    return std::size_t(i);
  };
  for (std::int64_t n = 0; n < total; ++n) {
    std::int64_t rest = n;
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      at[d] = rest % sizes[d];
      rest /= sizes[d];
    }
    double v = 1;
    for (std::size_t t = 0; t < terms.size(); ++t) v *= data[t][place(terms[t], in[t].shape())];
    z[place(result, shape)] += v;
  }
  return from_data(std::span<const double>(z), shape, cpu);
}

}  // namespace

LEVIN_OP_CASE(matmul) {
  // 1030 terms of up to 4 beside a result of the size of their root sum of squares.
  OpCase c{.ops = {"matmul"}, .dtypes = kFloatDTypes, .sums = 1030, .layout_changes_sums = true};
  const auto add = [&](Shape a, Shape b) {
    c.samples.push_back({.inputs = {real(a), real(b)},
                         .call = [](const Tensors& in) { return Tensors{matmul(in[0], in[1])}; },
                         .reference = [](const Tensors& in) { return Tensors{matmul_reference(in[0], in[1])}; }});
  };
  add({1}, {1});
  add({5}, {5});
  add({4}, {4, 3});
  add({2, 3}, {3});
  add({2, 3}, {3, 4});
  add({0, 3}, {3, 4});
  add({2, 0}, {0, 4});
  add({2, 2, 3}, {3, 2});
  add({2, 3}, {2, 3, 2});
  add({2, 1, 2, 3}, {3, 3, 2});
  add({1, 2, 3}, {2, 3, 2});
  add({0, 2, 3}, {0, 3, 2});
  add({4}, {2, 4, 3});
  add({2, 3, 4}, {4});
  add({33, 1030}, {1030, 17});
  c.errors.push_back(
      {"inner sizes",
       [] {
         (void)matmul(zeros({2, 3}, cpu), zeros({4, 5}, cpu));
       },
       throws<ShapeError>,
       "matmul: a has shape [2, 3] and b [4, 5]; the last dimension of a, 3, and the second last one of b, 4"});
  c.errors.push_back({"batches",
                      [] {
                        (void)matmul(zeros({2, 2, 3}, cpu), zeros({3, 3, 5}, cpu));
                      },
                      throws<ShapeError>, "matmul: shapes"});
  c.errors.push_back({"a number",
                      [] {
                        (void)matmul(zeros({}, cpu), zeros({4, 5}, cpu));
                      },
                      throws<ShapeError>, "matmul: a has shape []"});
  c.errors.push_back({"two dtypes",
                      [] {
                        (void)matmul(zeros({2, 2}, cpu), zeros({2, 2}, cpu, DType::f64));
                      },
                      throws<DTypeError>, "matmul: tensors are f32 and f64"});
  return c;
}

LEVIN_OP_CASE(linear) {
  OpCase c{.ops = {"linear", "linear_parameters_backward"},
           .dtypes = kFloatDTypes,
           .sums = 301,
           .layout_changes_sums = true};
  for (const bool biased : {true, false}) {
    for (const Shape& x : {Shape{1}, Shape{3}, Shape{2, 3}, Shape{0, 3}, Shape{2, 2, 3}, Shape{40, 301}}) {
      const std::int64_t out = x == Shape{1} ? 1 : 4;
      OpSample s{.inputs = {real(x), real({out, x.back()})}, .call = {}, .reference = {}};
      if (biased) s.inputs.push_back(optional(real({out})));
      s.call = [](const Tensors& in) { return Tensors{linear(in[0], in[1], in.size() > 2 ? in[2] : Tensor())}; };
      s.reference = [](const Tensors& in) {
        const Tensor y = matmul_reference(in[0], t(in[1]));
        return Tensors{in.size() > 2 ? map_reference(y, in[2], [](double a, double b) { return a + b; }) : y};
      };
      c.samples.push_back(s);
    }
  }
  c.errors.push_back({"columns",
                      [] {
                        (void)linear(zeros({2, 3}, cpu), zeros({5, 4}, cpu));
                      },
                      throws<ShapeError>, "linear: x has shape [2, 3] and weight [5, 4]"});
  c.errors.push_back({"bias",
                      [] {
                        (void)linear(zeros({2, 3}, cpu), zeros({5, 3}, cpu), zeros({3}, cpu));
                      },
                      throws<ShapeError>, "linear: bias has shape [3], expected [5]"});
  return c;
}

LEVIN_OP_CASE(outer) {
  OpCase c{.ops = {}, .dtypes = kNumberDTypes};
  const auto add = [&](Shape a, Shape b) {
    c.samples.push_back({.inputs = {real(a, 0, 6), real(b, 0, 6)},
                         .call = [](const Tensors& in) { return Tensors{outer(in[0], in[1])}; },
                         .reference =
                             [](const Tensors& in) {
                               return Tensors{map_reference(unsqueeze(in[0], 1), unsqueeze(in[1], 0),
                                                            [](double x, double y) { return x * y; })};
                             }});
  };
  add({1}, {1});
  add({3}, {4});
  add({0}, {2});
  c.errors.push_back({"a matrix",
                      [] {
                        (void)outer(zeros({2, 2}, cpu), zeros({2}, cpu));
                      },
                      throws<ShapeError>, "outer: a has shape [2, 2] and b [2]"});
  return c;
}

LEVIN_OP_CASE(einsum) {
  OpCase c{.ops = {}, .dtypes = kFloatDTypes, .ulps = 8, .sums = 60, .layout_changes_sums = true};
  const auto add = [&](std::string equation, std::vector<Shape> shapes, std::string meaning = {}) {
    OpSample s{.inputs = {}, .call = {}, .reference = {}};
    for (const Shape& x : shapes) s.inputs.push_back(real(x));
    if (meaning.empty()) meaning = equation;
    s.call = [equation](const Tensors& in) { return Tensors{einsum(equation, in)}; };
    s.reference = [meaning](const Tensors& in) { return Tensors{einsum_reference(meaning, in)}; };
    c.samples.push_back(s);
  };
  add("i,i->", {{1}, {1}});
  add("ij,jk->ik", {{2, 3}, {3, 4}});
  add("ij,jk->ik", {{0, 3}, {3, 4}});
  add("bij,bjk->bik", {{2, 2, 3}, {2, 3, 2}});
  add("bij , bjk", {{2, 2, 3}, {2, 3, 2}}, "bij,bjk->ik");
  add("ij->ji", {{2, 3}});
  add("ba", {{2, 3}}, "ba->ab");
  add("ii->i", {{3, 3}});
  add("ii", {{3, 3}}, "ii->");
  add("iji->j", {{3, 2, 3}});
  add("ij,kj,lk->il", {{2, 3}, {4, 3}, {2, 4}});
  add("i,j->ji", {{3}, {4}});
  add("ijk,jil->kl", {{2, 3, 2}, {3, 2, 4}});
  add("bhid,bhjd->bhij", {{2, 2, 2, 3}, {2, 2, 2, 3}});
  add("...ij,...jk->...ik", {{2, 2, 3}, {2, 3, 2}}, "aij,ajk->aik");
  add("...i,i->...", {{2, 2, 3}, {3}}, "abi,i->ab");
  add("...ij->...ji", {{2, 3}}, "ij->ji");
  add("i...->...", {{2, 3, 2}}, "iab->ab");
  add("ij,ij->", {{8, 7}, {8, 7}});
  c.errors.push_back({"sizes of a letter",
                      [] {
                        (void)einsum("ij,jk->ik", {zeros({2, 3}, cpu), zeros({4, 5}, cpu)});
                      },
                      throws<ShapeError>, "einsum: \"j\" in \"ij,jk->ik\" is 3 in one operand and 4 in another"});
  c.errors.push_back({"rank", [] { (void)einsum("ij->i", {zeros({2}, cpu)}); }, throws<ShapeError>,
                      "einsum: operand 0 has shape [2], but \"ij->i\" names 2 dimensions"});
  c.errors.push_back({"operands", [] { (void)einsum("i,i->", {zeros({2}, cpu)}); }, throws<ShapeError>,
                      "names 2 operands, 1 are given"});
  c.errors.push_back({"a digit",
                      [] {
                        (void)einsum("i1->i", {zeros({2, 2}, cpu)});
                      },
                      throws<ShapeError>, "einsum: '1' in \"i1->i\" is not a letter"});
  c.errors.push_back({"unknown letter", [] { (void)einsum("i->j", {zeros({2}, cpu)}); }, throws<ShapeError>,
                      "\"j\" is in the result of \"i->j\" but in no operand"});
  c.errors.push_back({"repeated result", [] { (void)einsum("i->ii", {zeros({2}, cpu)}); }, throws<ShapeError>,
                      "\"i\" is twice in the result"});
  c.errors.push_back({"no square",
                      [] {
                        (void)einsum("ii->i", {zeros({2, 3}, cpu)});
                      },
                      throws<ShapeError>, "a diagonal needs equal sizes"});
  c.errors.push_back({"two dtypes",
                      [] {
                        (void)einsum("i,i->", {zeros({2}, cpu), zeros({2}, cpu, DType::f64)});
                      },
                      throws<DTypeError>, "einsum: tensors are f32 and f64"});
  return c;
}

TEST_CASE("einsum broadcasts size 1 like PyTorch, in letters and in the ellipsis") {
  Generator g(1);
  const Tensor a = randn({3, 1, 4}, g, cpu, DType::f64), b = randn({2, 4}, g, cpu, DType::f64);
  const Tensor y = einsum("bji,ji->bj", {a, b});
  const Tensor want = sum(a * b, 2);
  CHECK(allclose(y, want, 1e-14, 1e-14));
  CHECK(allclose(einsum("...i,...i->...", {a, b}), want, 1e-14, 1e-14));
  CHECK(allclose(einsum("...i,...i->", {a, b}), sum(want), 1e-14, 1e-13));
}

TEST_CASE("many matrices times one matrix give one product for the gradient of the one") {
  Generator g(1);
  Tensor x = randn({2, 3, 4}, g, cpu), w = randn({4, 5}, g, cpu);
  x.requires_grad_(), w.requires_grad_();
  const Tensor y = matmul(x, w);
  CHECK(y.shape() == Shape{2, 3, 5});
  backward(sum(y));
  CHECK(w.grad().shape() == Shape{4, 5});
  CHECK(allclose(w.grad(), expand(unsqueeze(sum(x.detach(), {0, 1}), 1), {4, 5}), 1e-5, 1e-6));
}

TEST_CASE("the gradient of a matrix lies as the matrix does, so that of a weight used as t(w) is dense") {
  Generator g(1);
  for (const bool narrow : {false, true}) {
    CAPTURE(narrow);
    std::optional<Autocast> autocast;
    if (narrow) autocast.emplace(DType::bf16);
    Tensor x = randn({3, 4}, g, cpu), w = randn({5, 4}, g, cpu), a = randn({4, 3}, g, cpu);
    for (Tensor* leaf : {&x, &w, &a}) leaf->requires_grad_();
    const Tensor right = t(w), left = t(a);
    const Tensor of_right = grad(sum(matmul(x, right)), std::array{right})[0];
    const Tensor of_left = grad(sum(matmul(left, right)), std::array{left})[0];
    CHECK(t(of_right).is_contiguous());
    CHECK(t(of_left).is_contiguous());
    CHECK(of_right.shape() == Shape{4, 5});
    CHECK(allclose(of_right, expand(unsqueeze(sum(x.detach(), 0), 1), {4, 5}), 2e-2, 2e-2));
    CHECK(allclose(of_left, expand(unsqueeze(sum(w.detach(), 0), 0), {3, 4}), 2e-2, 2e-2));
  }
}

TEST_CASE("mm and bmm are products of matrices, and of lists of as many, and broadcast nothing") {
  Generator g(1);
  const Tensor a = randn({2, 3, 4}, g, cpu), b = randn({2, 4, 5}, g, cpu);
  CHECK(equal(bmm(a, b), matmul(a, b)));
  CHECK(equal(mm(select(a, 0, 0), select(b, 0, 1)), matmul(select(a, 0, 0), select(b, 0, 1))));
  CHECK(mm(zeros({0, 3}, cpu), zeros({3, 2}, cpu)).shape() == Shape{0, 2});
  CHECK(bmm(zeros({0, 2, 3}, cpu), zeros({0, 3, 2}, cpu)).shape() == Shape{0, 2, 2});
  CHECK_THROWS_WITH_AS((void)mm(a, b), doctest::Contains("mm: a has shape [2, 3, 4] and b [2, 4, 5]"), ShapeError);
  CHECK_THROWS_AS((void)mm(zeros({3}, cpu), zeros({3, 2}, cpu)), ShapeError);
  CHECK_THROWS_AS((void)mm(zeros({2, 3}, cpu), zeros({2, 3}, cpu)), ShapeError);
  CHECK_THROWS_WITH_AS((void)bmm(a, narrow(b, 0, 0, 1)), doctest::Contains("expected [b, m, k] and [b, k, n]"),
                       ShapeError);
  CHECK_THROWS_AS((void)bmm(a, select(b, 0, 0)), ShapeError);
}

}  // namespace levin::testing
