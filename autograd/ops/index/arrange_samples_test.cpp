// Samples of arrangements for the conformance suite.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <limits>

#include "autograd/ops/index/moves_test.h"
#include "tests/ops/samples.h"

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();

// The last dimensions of `at` as a place of a tensor of this shape, which was repeated.
At wrapped(const At& at, const Shape& x) {
  At from(at.end() - x.rank(), at.end());
  for (int d = 0; d < x.rank(); ++d) from[static_cast<std::size_t>(d)] %= x[d];
  return from;
}

double at_of(const Tensor& t, const At& at) { return Plain(t)(at); }

}  // namespace

LEVIN_OP_CASE(repeat) {
  OpCase c{.ops = {}, .dtypes = kAllDTypes};
  const auto add = [&](const Shape& x, Dims times, const Shape& y) {
    add_move(
        c, x, [=](const Tensor& t) { return repeat(t, times); }, y,
        [=](const At& at) { return std::optional(wrapped(at, x)); });
  };
  add({2, 3}, {2, 1}, {4, 3});
  add({2, 3}, {1, 3}, {2, 9});
  add({2, 3}, {1, 1}, {2, 3});
  add({3}, {4, 2, 2}, {4, 2, 6});
  add({}, {3}, {3});
  add({2, 3}, {0, 2}, {0, 6});
  add({0, 3}, {2, 2}, {0, 6});
  add({2, 1, 2, 1, 2, 1}, {1, 2, 1, 2, 1, 2}, {2, 2, 2, 2, 2, 2});
  c.errors.push_back({"count",
                      [] {
                        (void)repeat(zeros({2, 3}, cpu), {2});
                      },
                      throws<ShapeError>, "repeat: 1 numbers for x of shape [2, 3]"});
  c.errors.push_back({"negative", [] { (void)repeat(zeros({2}, cpu), {-1}); }, throws<ShapeError>,
                      "repeat: dimension 0 is to stand -1 times"});
  c.errors.push_back({"size", [] { (void)repeat(zeros({2}, cpu), {std::int64_t{1} << 40}); }, throws<ShapeError>,
                      "has more than 2^40 elements"});
  return c;
}

LEVIN_OP_CASE(tile) {
  OpCase c{.ops = {}, .dtypes = kAllDTypes};
  const auto add = [&](const Shape& x, Dims times, const Shape& y) {
    add_move(
        c, x, [=](const Tensor& t) { return tile(t, times); }, y,
        [=](const At& at) { return std::optional(wrapped(at, x)); });
  };
  add({2, 3}, {2}, {2, 6});
  add({2, 3}, {2, 1, 2}, {2, 2, 6});
  add({1}, {1}, {1});
  add({0}, {2}, {0});
  c.errors.push_back({"negative", [] { (void)tile(zeros({2}, cpu), {-1}); }, throws<ShapeError>,
                      "tile: dimension 0 is to stand -1 times"});
  return c;
}

LEVIN_OP_CASE(meshgrid) {
  OpCase c{.ops = {}, .dtypes = kAllDTypes};
  for (const Indexing indexing : {Indexing::ij, Indexing::xy}) {
    for (const std::vector<Shape>& shapes : {std::vector<Shape>{{3}, {4}}, {{1}}, {{0}, {2}}, {{2}, {3}, {2}}}) {
      OpSample s;
      for (const Shape& shape : shapes) s.inputs.push_back(real(shape, 0, 8));
      s.call = [=](const Tensors& in) { return meshgrid(in, indexing); };
      s.reference = [=](const Tensors& in) {
        std::array<std::int64_t, kMaxRank> sizes{};
        for (std::size_t d = 0; d < in.size(); ++d) sizes[d] = in[d].numel();
        const bool turned = indexing == Indexing::xy && in.size() > 1;
        if (turned) std::swap(sizes[0], sizes[1]);
        const Shape whole{std::span<const std::int64_t>(sizes.data(), in.size())};
        Tensors out;
        for (std::size_t d = 0; d < in.size(); ++d) {
          const std::size_t along = turned && d < 2 ? 1 - d : d;
          const Plain x(in[d]);
          out.push_back(Plain(whole, [&](const At& at) { return x({at[along]}); }).tensor());
        }
        return out;
      };
      c.samples.push_back(s);
    }
  }
  c.errors.push_back({"none", [] { (void)meshgrid(Tensors{}); }, throws<ShapeError>, "meshgrid: 0 tensors"});
  c.errors.push_back({"rank",
                      [] {
                        (void)meshgrid(Tensors{zeros({2}, cpu), zeros({2, 2}, cpu)});
                      },
                      throws<ShapeError>, "meshgrid: tensor 1 has shape [2, 2]"});
  return c;
}

LEVIN_OP_CASE(diag) {
  OpCase c{.ops = {}, .dtypes = kAllDTypes};
  for (const std::int64_t offset : {0, 1, -2}) {
    for (const std::int64_t n : {0, 1, 4}) {
      const std::int64_t m = n + std::abs(offset);
      add_move(
          c, {n}, [=](const Tensor& t) { return diag(t, offset); }, {m, m},
          [=](const At& at) {
            return at[1] - at[0] == offset ? std::optional(At{offset < 0 ? at[1] : at[0]}) : std::nullopt;
          });
    }
    const std::int64_t length = std::min<std::int64_t>(offset < 0 ? 3 + offset : 3, offset > 0 ? 4 - offset : 4);
    add_move(
        c, {3, 4}, [=](const Tensor& t) { return diag(t, offset); }, {length},
        [=](const At& at) {
          return std::optional(At{at[0] + (offset < 0 ? -offset : 0), at[0] + (offset > 0 ? offset : 0)});
        });
  }
  c.errors.push_back({"rank",
                      [] {
                        (void)diag(zeros({2, 2, 2}, cpu));
                      },
                      throws<ShapeError>, "diag: x has shape [2, 2, 2]"});
  c.errors.push_back({"offset", [] { (void)diag(zeros({2}, cpu), std::numeric_limits<std::int64_t>::min()); },
                      throws<ShapeError>, "expected at most 2^40 away from 0"});
  return c;
}

LEVIN_OP_CASE(trace) {
  OpCase c{.ops = {}, .dtypes = kComputedDTypes, .layout_changes_sums = true};
  for (const Shape& s : {Shape{1, 1}, Shape{0, 0}, Shape{3, 4}, Shape{5, 2}}) {
    c.samples.push_back({.inputs = {real(s)},
                         .call = [](const Tensors& in) { return Tensors{trace(in[0])}; },
                         .reference =
                             [](const Tensors& in) {
                               const Plain x(in[0]);
                               double sum = 0;
                               for (std::int64_t i = 0; i < std::min(x.shape[0], x.shape[1]); ++i) sum += x({i, i});
                               return Tensors{Plain({}, sum).tensor()};
                             }});
  }
  c.errors.push_back({"rank", [] { (void)trace(zeros({2}, cpu)); }, throws<ShapeError>, "trace: x has shape [2]"});
  return c;
}

LEVIN_OP_CASE(cross) {
  OpCase c{.ops = {}, .dtypes = kFloatDTypes};
  for (const auto& [a, b] : {std::pair{Shape{3}, Shape{3}}, std::pair{Shape{4, 3}, Shape{4, 3}},
                             std::pair{Shape{0, 3}, Shape{3}}, std::pair{Shape{2, 1, 3}, Shape{5, 3}}}) {
    c.samples.push_back({.inputs = {real(a), real(b)},
                         .call = [](const Tensors& in) { return Tensors{cross(in[0], in[1])}; },
                         .reference =
                             [](const Tensors& in) {
                               const Shape whole = broadcast_shapes("", in[0].shape(), in[1].shape());
                               const Plain x(expand(in[0], whole)), y(expand(in[1], whole));
                               return Tensors{Plain(whole, [&](const At& at) {
                                                const int last = whole.rank() - 1;
                                                const auto i = static_cast<double>(at.back());
                                                const At p = with(at, last, std::fmod(i + 1, 3)),
                                                         q = with(at, last, std::fmod(i + 2, 3));
                                                return x(p) * y(q) - x(q) * y(p);
                                              }).tensor()};
                             }});
  }
  c.samples.push_back({.inputs = {real({3, 2}), real({3, 2})},
                       .call = [](const Tensors& in) { return Tensors{cross(in[0], in[1], 0)}; },
                       .reference =
                           [](const Tensors& in) {
                             const Plain x(in[0]), y(in[1]);
                             return Tensors{Plain({3, 2}, [&](const At& at) {
                                              const At p{(at[0] + 1) % 3, at[1]}, q{(at[0] + 2) % 3, at[1]};
                                              return x(p) * y(q) - x(q) * y(p);
                                            }).tensor()};
                           }});
  c.no_single = "vectors have three elements";
  c.errors.push_back({"size", [] { (void)cross(zeros({2}, cpu), zeros({2}, cpu)); }, throws<ShapeError>,
                      "cross: a has shape [2] and b [2], expected 3 elements along dimension -1 in both"});
  // dim counts the dimensions of the shape that both broadcast to.
  c.errors.push_back({"dim",
                      [] {
                        (void)cross(zeros({2, 1, 3}, cpu), zeros({3, 3}, cpu), 0);
                      },
                      throws<ShapeError>,
                      "cross: a has shape [2, 1, 3] and b [3, 3], expected 3 elements along dimension 0 in both"});
  return c;
}

LEVIN_OP_CASE(kron) {
  OpCase c{.ops = {}, .dtypes = kNumberDTypes};
  for (const auto& [a, b] : {std::pair{Shape{2, 3}, Shape{4, 2}}, std::pair{Shape{1}, Shape{1}},
                             std::pair{Shape{0}, Shape{3}}, std::pair{Shape{2}, Shape{3, 2}},
                             std::pair{Shape{}, Shape{2}}, std::pair{Shape{2, 1, 2, 2}, Shape{1, 3, 1, 2}}}) {
    c.samples.push_back({.inputs = {real(a), real(b)},
                         .call = [](const Tensors& in) { return Tensors{kron(in[0], in[1])}; },
                         .reference =
                             [](const Tensors& in) {
                               Tensor left = in[0], right = in[1];
                               while (left.rank() < right.rank()) left = unsqueeze(left, 0);
                               while (right.rank() < left.rank()) right = unsqueeze(right, 0);
                               const Plain x(left), y(right);
                               Shape whole = left.shape();
                               for (int d = 0; d < left.rank(); ++d)
                                 whole = whole.with(d, left.shape()[d] * right.shape()[d]);
                               return Tensors{Plain(whole, [&](const At& at) {
                                                At p = at, q = at;
                                                for (std::size_t d = 0; d < at.size(); ++d) {
                                                  p[d] = at[d] / y.shape[static_cast<int>(d)];
                                                  q[d] = at[d] % y.shape[static_cast<int>(d)];
                                                }
                                                return x(p) * y(q);
                                              }).tensor()};
                             }});
  }
  c.errors.push_back({"rank",
                      [] {
                        (void)kron(zeros({1, 1, 1, 1, 1}, cpu), zeros({1}, cpu));
                      },
                      throws<ShapeError>, "expected at most 4 dimensions"});
  return c;
}

LEVIN_OP_CASE(tensordot) {
  OpCase c{.ops = {}, .dtypes = kFloatDTypes, .sums = 20, .layout_changes_sums = true};
  c.samples.push_back({.inputs = {real({2, 3, 4}), real({3, 4, 5})},
                       .call = [](const Tensors& in) { return Tensors{tensordot(in[0], in[1])}; },
                       .reference =
                           [](const Tensors& in) {
                             return Tensors{einsum("ijk,jkl->il", {in[0], in[1]})};
                           }});
  c.samples.push_back({.inputs = {real({3, 2, 4}), real({4, 5, 3})},
                       .call =
                           [](const Tensors& in) {
                             return Tensors{tensordot(in[0], in[1], {0, -1}, {2, 0})};
                           },
                       .reference =
                           [](const Tensors& in) {
                             return Tensors{einsum("aib,bja->ij", {in[0], in[1]})};
                           }});
  c.samples.push_back({.inputs = {real({2, 1}), real({3})},
                       .call = [](const Tensors& in) { return Tensors{tensordot(in[0], in[1], 0)}; },
                       .reference =
                           [](const Tensors& in) {
                             return Tensors{einsum("ij,k->ijk", {in[0], in[1]})};
                           }});
  c.samples.push_back({.inputs = {real({1}), real({1})},
                       .call = [](const Tensors& in) { return Tensors{tensordot(in[0], in[1], 1)}; },
                       .reference = [](const Tensors& in) { return Tensors{sum(in[0] * in[1])}; }});
  c.samples.push_back({.inputs = {real({2, 0}), real({0, 3})},
                       .call = [](const Tensors& in) { return Tensors{tensordot(in[0], in[1], 1)}; },
                       .reference = [](const Tensors& in) { return Tensors{matmul(in[0], in[1])}; }});
  c.errors.push_back({"sizes",
                      [] {
                        (void)tensordot(zeros({2, 3}, cpu), zeros({2, 3}, cpu), 1);
                      },
                      throws<ShapeError>, "tensordot: dimension 1 of a [2, 3] and 0 of b [2, 3]"});
  c.errors.push_back({"twice",
                      [] {
                        (void)tensordot(zeros({2, 2}, cpu), zeros({2, 2}, cpu), {0, 0}, {0, 1});
                      },
                      throws<ShapeError>, "tensordot: a dimension of [2, 2] is named twice"});
  c.errors.push_back({"count",
                      [] {
                        (void)tensordot(zeros({2, 2}, cpu), zeros({2, 2}, cpu), {0}, {0, 1});
                      },
                      throws<ShapeError>, "tensordot: 1 dimensions of a and 2 of b"});
  return c;
}

LEVIN_OP_CASE(index_copy) {
  OpCase c{.ops = {"scatter"}, .dtypes = kAllDTypes};
  const auto add = [&](const Shape& x, int dim, std::vector<std::int64_t> places) {
    const auto n = static_cast<std::int64_t>(places.size());
    const Tensor index = from_data(std::span<const std::int64_t>(places), {n}, cpu);
    c.samples.push_back({.inputs = {real(x, 0, 8), fixed(index), real(x.with(dim, n), 0, 8)},
                         .call = [=](const Tensors& in) { return Tensors{index_copy(in[0], dim, in[1], in[2])}; },
                         .reference =
                             [=](const Tensors& in) {
                               Plain y(in[0]);
                               const Plain src(in[2]);
                               src.each([&](const At& at) {
                                 y(with(at, dim, static_cast<double>(places[std::size_t(at[std::size_t(dim)])]))) =
                                     src(at);
                               });
                               return Tensors{y.tensor()};
                             }});
  };
  add({4, 3}, 0, {2, 0});
  add({2, 5, 3}, 1, {4, 1, 1});  // the last one wins
  add({1}, 0, {0});
  add({0, 2}, 1, {1});
  c.errors.push_back({"shape",
                      [] {
                        (void)index_copy(zeros({4, 3}, cpu), 0, zeros({2}, cpu, DType::i64), zeros({3, 3}, cpu));
                      },
                      throws<ShapeError>, "index_copy: x has shape [4, 3], index [2] and src [3, 3]"});
  return c;
}

LEVIN_OP_CASE(lerp) {
  OpCase c{.ops = {"lerp"}, .dtypes = kFloatDTypes, .ulps = 8};
  for (const double weight : {0.0, 0.3, 0.5, 1.0, 1.7}) {
    for (const Shape& s : {Shape{1}, Shape{0}, Shape{3, 5}}) {
      c.samples.push_back(
          {.inputs = {real(s), real(s)},
           .call = [=](const Tensors& in) { return Tensors{lerp(in[0], in[1], weight)}; },
           .reference =
               [=](const Tensors& in) {
                 return Tensors{map_reference(in[0], in[1], [=](double a, double b) { return a + weight * (b - a); })};
               }});
    }
  }
  c.samples.push_back({.inputs = {real({3, 5}), real({5}), real({3, 1}, 0, 1)},
                       .call = [](const Tensors& in) { return Tensors{lerp(in[0], in[1], in[2])}; },
                       .reference =
                           [](const Tensors& in) {
                             const Plain b(in[1]), w(in[2]), a(in[0]);
                             return Tensors{Plain({3, 5}, [&](const At& at) {
                                              const double from = a(at);
                                              return from + w({at[0], 0}) * (b({at[1]}) - from);
                                            }).tensor()};
                           }});
  c.errors.push_back({"dtypes", [] { (void)lerp(zeros({2}, cpu), zeros({2}, cpu, DType::f64), 0.5); },
                      throws<DTypeError>, "lerp: tensors are f32 and f64"});
  return c;
}

TEST_CASE("a tensor that is repeated once, and the end of lerp, are copies with the same bits") {
  const Tensor x = tensor({0.1, 0.2}, cpu), y = tensor({7.0, 1e-9}, cpu);
  Tensor once = repeat(x, {1});
  fill_(once, 3);
  CHECK(x.to_vector<double>() == std::vector<double>{0.1, 0.2});
  CHECK(equal(lerp(x, y, 1), y));
  CHECK(equal(lerp(x, y, 0), x));
  CHECK(at_of(tile(x, {2}), {3}) == 0.2);
}

}  // namespace levin::testing
