// Samples of joins, pads, flips, triangles and sorts for the conformance suite.
#include <cmath>
#include <numeric>

#include "autograd/ops/index/moves_test.h"
#include "autograd/ops/pointwise/plain_test.h"
#include "tests/ops/samples.h"

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();

}  // namespace

LEVIN_OP_CASE(cat) {
  OpCase c{.ops = {"cat"}, .dtypes = kAllDTypes};
  struct Parts {
    std::vector<Shape> shapes;
    int dim;
  };
  for (const Parts& p :
       {Parts{{{2, 3}, {4, 3}, {1, 3}}, 0}, Parts{{{2, 3}, {2, 1}}, 1}, Parts{{{2, 2, 2}, {2, 0, 2}, {2, 3, 2}}, 1},
        Parts{{{1}}, 0}, Parts{{{0}, {0}}, 0}, Parts{{{5, 40'000}, {2, 40'000}}, 0}}) {
    OpSample s;
    for (const Shape& shape : p.shapes) s.inputs.push_back(real(shape, 0, 8));
    s.call = [=](const Tensors& in) { return Tensors{cat(in, p.dim - p.shapes[0].rank())}; };
    s.reference = [=](const Tensors& in) {
      std::int64_t total = 0;
      for (const Shape& shape : p.shapes) total += shape[p.dim];
      Plain y(p.shapes[0].with(p.dim, total));
      std::int64_t begin = 0;
      for (const Tensor& t : in) {
        const Plain x(t);
        x.each([&](const At& at) {
          y(with(at, p.dim, static_cast<double>(begin + at[static_cast<std::size_t>(p.dim)]))) = x(at);
        });
        begin += t.size(p.dim);
      }
      return Tensors{y.tensor()};
    };
    c.samples.push_back(s);
  }
  c.errors.push_back({"none", [] { (void)cat(Tensors{}); }, throws<ShapeError>, "cat: the list of tensors is empty"});
  c.errors.push_back({"shape",
                      [] {
                        (void)cat({zeros({2, 3}, cpu), zeros({2, 4}, cpu)}, 0);
                      },
                      throws<ShapeError>,
                      "cat: tensor 1 has shape [2, 4], expected that of tensor 0 [2, 3] except in dimension 0"});
  c.errors.push_back({"rank",
                      [] {
                        (void)cat({zeros({2}, cpu), zeros({2, 1}, cpu)}, 0);
                      },
                      throws<ShapeError>, "cat: tensor 1"});
  c.errors.push_back({"dtype",
                      [] {
                        (void)cat({zeros({2}, cpu), zeros({2}, cpu, DType::f64)});
                      },
                      throws<DTypeError>, "cat: tensors are f32 and f64"});
  c.errors.push_back({"dim", [] { (void)cat({zeros({2}, cpu)}, 1); }, throws<IndexError>, "cat: dimension is 1"});
  return c;
}

LEVIN_OP_CASE(stack) {
  OpCase c{.ops = {"cat"}, .dtypes = kAllDTypes};
  for (const Shape& shape : {Shape{2, 3}, Shape{}, Shape{1}, Shape{0}}) {
    for (const int dim : {0, shape.rank()}) {
      c.samples.push_back({.inputs = {real(shape, 0, 8), real(shape, 0, 8)},
                           .call = [=](const Tensors& in) { return Tensors{stack(in, dim)}; },
                           .reference =
                               [=](const Tensors& in) {
                                 const Plain a(in[0]), b(in[1]);
                                 return Tensors{Plain(shape.inserted(dim, 2), [&](At at) {
                                                  const std::int64_t which = at[static_cast<std::size_t>(dim)];
                                                  at.erase(at.begin() + dim);
                                                  return which == 0 ? a(at) : b(at);
                                                }).tensor()};
                               }});
    }
  }
  c.errors.push_back(
      {"none", [] { (void)stack(Tensors{}); }, throws<ShapeError>, "stack: the list of tensors is empty"});
  c.errors.push_back({"shape",
                      [] {
                        (void)stack({zeros({2}, cpu), zeros({3}, cpu)});
                      },
                      throws<ShapeError>, "stack: tensor 1 has shape [3], expected that of tensor 0 [2]"});
  c.errors.push_back({"dtype",
                      [] {
                        (void)stack({zeros({2}, cpu), zeros({2}, cpu, DType::f64)});
                      },
                      throws<DTypeError>, "stack: tensors are f32 and f64"});
  return c;
}

LEVIN_OP_CASE(pad) {
  OpCase c{.ops = {"pad", "pad_own", "pad_own_backward"}, .dtypes = kAllDTypes};
  const auto inside = [](const Shape& x, const At& before) {
    return From([=](const At& at) -> std::optional<At> {
      At from = at;
      for (std::size_t d = 0; d < at.size(); ++d) {
        from[d] -= before[d];
        if (from[d] < 0 || from[d] >= x[static_cast<int>(d)]) return std::nullopt;
      }
      return from;
    });
  };
  const auto add = [&](const Shape& x, const Dims& pads, Scalar value, const Shape& to, const At& before) {
    add_move(
        c, x, [=](const Tensor& t) { return pad(t, pads, value); }, to, inside(x, before), value.real());
  };
  add({2, 3}, {1, 2}, 1, {2, 6}, {0, 1});
  add({2, 3}, {1, 0, 2, 1}, 0, {5, 4}, {2, 1});
  add({4, 5}, {-1, -2}, 0, {4, 2}, {0, -1});
  add({4, 5}, {-1, 3, 2, -3}, 1, {3, 7}, {2, -1});
  add({2, 2}, {-2, 3}, 1, {2, 3}, {0, -2});
  add({1}, {0, 0}, 0, {1}, {0});
  add({0, 2}, {1, 1}, 0, {0, 4}, {0, 1});
  add({0}, {1, 1}, 1, {2}, {1});
  const auto border = [&](const Shape& x, const Dims& pads, PadMode mode, const Shape& to, const At& before) {
    add_move(
        c, x, [=](const Tensor& t) { return pad(t, pads, mode); }, to,
        [=](const At& at) {
          At from = at;
          for (std::size_t d = 0; d < at.size(); ++d) {
            const std::int64_t n = x[static_cast<int>(d)];
            from[d] -= before[d];
            if (mode == PadMode::circular) from[d] = (from[d] + n) % n;
            if (mode == PadMode::replicate) from[d] = std::clamp<std::int64_t>(from[d], 0, n - 1);
            if (from[d] < 0) from[d] = -from[d];
            if (from[d] >= n) from[d] = 2 * (n - 1) - from[d];
          }
          return std::optional(from);
        });
  };
  border({3, 4}, {2, 3, 1, 2}, PadMode::reflect, {6, 9}, {1, 2});
  border({2, 3, 4}, {1, 2, 2, 1, 1, 0}, PadMode::reflect, {3, 6, 7}, {1, 2, 1});
  border({2, 1, 3}, {0, 2, 0, 0, 1, 3}, PadMode::replicate, {6, 1, 5}, {1, 0, 0});
  border({3, 4}, {2, 5, 4, 0}, PadMode::replicate, {7, 11}, {4, 2});
  border({1}, {1, 1}, PadMode::replicate, {3}, {1});
  border({3, 4}, {4, 3, 1, 3}, PadMode::circular, {7, 11}, {1, 4});
  border({1}, {1, 1}, PadMode::circular, {3}, {1});
  border({0, 2}, {1, 0}, PadMode::circular, {0, 3}, {0, 1});
  c.errors.push_back({"odd", [] { (void)pad(zeros({2}, cpu), {1}); }, throws<ShapeError>, "pad: 1 numbers are given"});
  c.errors.push_back({"many",
                      [] {
                        (void)pad(zeros({2}, cpu), {1, 1, 1, 1});
                      },
                      throws<ShapeError>, "pad: 4 numbers are given"});
  c.errors.push_back({"crop",
                      [] {
                        (void)pad(zeros({2}, cpu), {-2, -1});
                      },
                      throws<ShapeError>, "pad: pads -2 and -1 crop more than dimension 0"});
  c.errors.push_back({"huge",
                      [] {
                        (void)pad(zeros({2}, cpu), {0, std::int64_t{1} << 62});
                      },
                      throws<ShapeError>, "pad: a pad is"});
  c.errors.push_back({"fraction",
                      [] {
                        (void)pad(zeros({2}, cpu, DType::i64), {1, 1}, 0.5);
                      },
                      throws<DTypeError>, "pad: the number 0.5"});
  c.errors.push_back({"reflect",
                      [] {
                        (void)pad(zeros({2}, cpu), {2, 0}, PadMode::reflect);
                      },
                      throws<ShapeError>,
                      "pad: dimension 0 of x [2] is too small for pads 2 and 0, expected size above 2"});
  c.errors.push_back({"replicate",
                      [] {
                        (void)pad(zeros({0}, cpu), {1, 0}, PadMode::replicate);
                      },
                      throws<ShapeError>, "pad: dimension 0 of x [0] is too small"});
  c.errors.push_back({"circular",
                      [] {
                        (void)pad(zeros({2}, cpu), {0, 3}, PadMode::circular);
                      },
                      throws<ShapeError>,
                      "pad: dimension 0 of x [2] is too small for pads 0 and 3, expected size above 2"});
  c.errors.push_back({"circular of nothing",
                      [] {
                        (void)pad(zeros({0}, cpu), {0, 1}, PadMode::circular);
                      },
                      throws<ShapeError>, "pad: dimension 0 of x [0] is too small"});
  c.errors.push_back({"negative",
                      [] {
                        (void)pad(zeros({2}, cpu), {-1, 0}, PadMode::reflect);
                      },
                      throws<ShapeError>, "pad: pads -1 and 0 of dimension 0"});
  return c;
}

LEVIN_OP_CASE(flip) {
  OpCase c{.ops = {"flip"}, .dtypes = kAllDTypes};
  const auto add = [&](const Shape& x, const Dims& dims) {
    add_move(
        c, x, [=](const Tensor& t) { return flip(t, dims); }, x,
        [=](At at) {
          for (const std::int64_t d : dims.span()) {
            const int k = static_cast<int>(d < 0 ? d + x.rank() : d);
            at[static_cast<std::size_t>(k)] = x[k] - 1 - at[static_cast<std::size_t>(k)];
          }
          return std::optional(at);
        });
  };
  add({3, 4}, 0);
  add({3, 4}, {0, -1});
  add({2, 3, 4}, 1);
  add({2, 3}, {});
  add({1}, 0);
  add({0, 2}, 1);
  c.errors.push_back({"dim", [] { (void)flip(zeros({2}, cpu), 1); }, throws<IndexError>, "flip: dimension is 1"});
  c.errors.push_back({"twice",
                      [] {
                        (void)flip(zeros({2}, cpu), {0, 0});
                      },
                      throws<IndexError>, "flip: dimension 0 is given twice"});
  return c;
}

LEVIN_OP_CASE(roll) {
  OpCase c{.ops = {"cat"}, .dtypes = kAllDTypes};
  const auto add = [&](const Shape& x, std::int64_t shift, int dim) {
    add_move(
        c, x, [=](const Tensor& t) { return roll(t, shift, dim); }, x,
        [=](const At& at) {
          const std::int64_t n = x[dim], to = at[static_cast<std::size_t>(dim)];
          return std::optional(with(at, dim, static_cast<double>((((to - shift) % n) + n) % n)));
        });
  };
  add({3, 4}, 1, 0);
  add({3, 4}, -1, 1);
  add({3, 4}, 9, 1);
  add({1}, 5, 0);
  add({0, 2}, 1, 0);
  // Several dimensions, one of them twice, and none.
  const auto back = [](std::int64_t to, std::int64_t shift, std::int64_t n) { return ((to - shift) % n + n) % n; };
  add_move(
      c, {3, 4, 2},
      [](const Tensor& t) {
        return roll(t, {1, -2}, {0, -2});
      },
      {3, 4, 2},
      [=](const At& at) {
        return std::optional(At{back(at[0], 1, 3), back(at[1], -2, 4), at[2]});
      });
  add_move(
      c, {5},
      [](const Tensor& t) {
        return roll(t, {1, 2}, {0, 0});
      },
      {5}, [=](const At& at) { return std::optional(At{back(at[0], 3, 5)}); });
  add_move(
      c, {3, 4}, [](const Tensor& t) { return roll(t, -5); }, {3, 4},
      [=](const At& at) {
        const std::int64_t from = back(4 * at[0] + at[1], -5, 12);
        return std::optional(At{from / 4, from % 4});
      });
  c.errors.push_back({"dim", [] { (void)roll(zeros({2}, cpu), 1, 1); }, throws<IndexError>, "roll: dimension is 1"});
  c.errors.push_back({"second dim",
                      [] {
                        (void)roll(zeros({2}, cpu), {1, 1}, {0, 1});
                      },
                      throws<IndexError>, "roll: dimension is 1"});
  c.errors.push_back({"count",
                      [] {
                        (void)roll(zeros({2, 2}, cpu), 1, {0, 1});
                      },
                      throws<ShapeError>, "roll: 1 shifts for 2 dimensions"});
  c.errors.push_back({"count without dimensions",
                      [] {
                        (void)roll(zeros({2, 2}, cpu), {1, 2});
                      },
                      throws<ShapeError>, "roll: 2 shifts for 0 dimensions"});
  return c;
}

LEVIN_OP_CASE(repeat_interleave) {
  OpCase c{.ops = {"index_select"}, .dtypes = kAllDTypes};
  const auto add = [&](const Shape& x, std::int64_t repeats, int dim) {
    add_move(
        c, x, [=](const Tensor& t) { return repeat_interleave(t, repeats, dim); }, x.with(dim, x[dim] * repeats),
        [=](const At& at) {
          return std::optional(with(at, dim, static_cast<double>(at[static_cast<std::size_t>(dim)] / repeats)));
        });
  };
  add({3, 2}, 3, 0);
  add({3, 2}, 2, 1);
  add({1}, 1, 0);
  add({2, 3}, 0, 0);
  add({0}, 2, 0);
  c.errors.push_back({"repeats", [] { (void)repeat_interleave(zeros({2}, cpu), -1, 0); }, throws<ShapeError>,
                      "repeat_interleave: repeats is -1"});
  c.errors.push_back({"huge", [] { (void)repeat_interleave(zeros({2}, cpu), std::int64_t{1} << 62, 0); },
                      throws<ShapeError>, "repeat_interleave: dimension 0"});
  return c;
}

namespace {
OpCase triangles(const std::string& op, Tensor (*call)(const Tensor&, std::int64_t), bool upper) {
  OpCase c{.ops = {op}, .dtypes = kAllDTypes};
  for (const Shape& x : {Shape{4, 3}, Shape{3, 5}, Shape{2, 3, 3}, Shape{1, 1}, Shape{0, 2}}) {
    for (const std::int64_t diagonal : {0, 1, -2, 100, -100}) {
      add_move(
          c, x, [=](const Tensor& t) { return call(t, diagonal); }, x,
          [=](const At& at) -> std::optional<At> {
            const std::int64_t above = at[at.size() - 1] - at[at.size() - 2] - diagonal;
            if (upper ? above < 0 : above > 0) return std::nullopt;
            return at;
          });
    }
  }
  c.errors.push_back({"rank", [=] { (void)call(zeros({3}, cpu), 0); }, throws<ShapeError>,
                      op + ": x has shape [3], expected at least rank 2"});
  return c;
}
}  // namespace

LEVIN_OP_CASE(tril) { return triangles("tril", tril, false); }
LEVIN_OP_CASE(triu) { return triangles("triu", triu, true); }

// ---- Sorting

namespace {
// The first `count` of the stable order along dim: {values, indices}.
Tensors sorted(const Tensor& t, int dim, bool descending, std::int64_t count) {
  const Plain x(t);
  Plain values(x.shape.with(dim, count)), where(values.shape);
  x.each([&](const At& at) {
    if (at[static_cast<std::size_t>(dim)] != 0) return;
    std::vector<std::int64_t> order(static_cast<std::size_t>(x.shape[dim]));
    std::iota(order.begin(), order.end(), 0);
    const auto value = [&](std::int64_t k) { return x(with(at, dim, static_cast<double>(k))); };
    const auto less = [](double a, double b) { return a < b || (std::isnan(b) && !std::isnan(a)); };
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
      return descending ? less(value(b), value(a)) : less(value(a), value(b));
    });
    for (std::int64_t k = 0; k < count; ++k) {
      const At to = with(at, dim, static_cast<double>(k));
      values(to) = value(order[static_cast<std::size_t>(k)]);
      where(to) = static_cast<double>(order[static_cast<std::size_t>(k)]);
    }
  });
  return {values.tensor(), where.tensor()};
}
}  // namespace

LEVIN_OP_CASE(sort) {
  OpCase c{.ops = {"sort"}, .dtypes = kComputedDTypes};
  for (const Shape& x : {Shape{3, 5}, Shape{2, 4, 3}, Shape{1}, Shape{2, 0}, Shape{2, 5000}}) {
    for (const int dim : {0, x.rank() - 1}) {
      for (const Order order : {Order::ascending, Order::descending}) {
        c.samples.push_back({.inputs = {real(x, -9, 9)},
                             .call =
                                 [=](const Tensors& in) {
                                   const ValuesIndices r = sort(in[0], dim - x.rank(), order);
                                   return Tensors{r.values, r.indices, argsort(in[0], dim, order)};
                                 },
                             .reference =
                                 [=](const Tensors& in) {
                                   Tensors r = sorted(in[0], dim, order == Order::descending, x[dim]);
                                   r.push_back(r[1]);
                                   return r;
                                 }});
      }
    }
  }
  c.errors.push_back({"dim", [] { (void)sort(zeros({3}, cpu), 1); }, throws<IndexError>, "sort: dimension is 1"});
  c.errors.push_back(
      {"argsort dim", [] { (void)argsort(zeros({3}, cpu), -2); }, throws<IndexError>, "argsort: dimension is -2"});
  return c;
}

LEVIN_OP_CASE(topk) {
  OpCase c{.ops = {"topk"}, .dtypes = kComputedDTypes};
  struct Top {
    Shape x;
    std::int64_t k;
    int dim;
  };
  for (const Top& s : {Top{{3, 7}, 3, 1}, Top{{5, 2, 3}, 4, 0}, Top{{4}, 4, 0}, Top{{1}, 1, 0}, Top{{3, 4}, 0, 1},
                       Top{{0, 4}, 2, 1}, Top{{2, 3000}, 70, 1}}) {
    for (const Order order : {Order::ascending, Order::descending}) {
      c.samples.push_back(
          {.inputs = {real(s.x, -9, 9)},
           .call =
               [=](const Tensors& in) {
                 const ValuesIndices r = topk(in[0], s.k, s.dim, order);
                 return Tensors{r.values, r.indices};
               },
           .reference = [=](const Tensors& in) { return sorted(in[0], s.dim, order == Order::descending, s.k); }});
    }
  }
  c.errors.push_back(
      {"k", [] { (void)topk(zeros({3}, cpu), 4); }, throws<IndexError>, "topk: k is 4, expected 0 to 3"});
  c.errors.push_back({"negative", [] { (void)topk(zeros({3}, cpu), -1); }, throws<IndexError>, "topk: k is -1"});
  c.errors.push_back({"dim", [] { (void)topk(zeros({3}, cpu), 1, 2); }, throws<IndexError>, "topk: dimension is 2"});
  return c;
}

}  // namespace levin::testing
