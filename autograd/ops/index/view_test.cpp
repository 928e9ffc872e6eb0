#include <doctest/doctest.h>

#include <limits>

#include "levin/extend.h"
#include "tests/ops/samples.h"

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();

// A view's definition: the element of x at each index of the result.
using At = std::function<std::vector<std::int64_t>(const std::vector<std::int64_t>&)>;
Tensor picked(const Tensor& x, const Shape& shape, const At& at) {
  const std::vector<double> values = x.detach().to_vector<double>();
  std::vector<double> out;
  std::vector<std::int64_t> index(static_cast<std::size_t>(shape.rank()), 0);
  for (std::int64_t i = 0; i < shape.numel(); ++i) {
    std::int64_t rest = i;
    for (int d = shape.rank() - 1; d >= 0; --d) {
      index[static_cast<std::size_t>(d)] = rest % shape[d];
      rest /= shape[d];
    }
    const std::vector<std::int64_t> from = at(index);
    std::int64_t flat = 0;
    for (int d = 0; d < x.rank(); ++d) flat = flat * x.shape()[d] + from[static_cast<std::size_t>(d)];
    out.push_back(values[static_cast<std::size_t>(flat)]);
  }
  return from_data(std::span<const double>(out), shape, cpu);
}

struct ViewSample {
  Shape from;
  std::function<Tensor(const Tensor&)> view;
  Shape to;
  At at;
};

OpCase views(std::vector<std::string> ops, const std::vector<ViewSample>& samples) {
  OpCase c{.ops = std::move(ops), .dtypes = kAllDTypes};
  for (const ViewSample& s : samples) {
    c.samples.push_back({.inputs = {real(s.from, 0, 8)},
                         .call = [s](const Tensors& in) { return Tensors{s.view(in[0])}; },
                         .reference = [s](const Tensors& in) { return Tensors{picked(in[0], s.to, s.at)}; }});
  }
  return c;
}

using Ix = std::vector<std::int64_t>;

}  // namespace

LEVIN_OP_CASE(slice) {
  OpCase c = views({"slice", "window_backward", "window"},
                   {{{5, 3},
                     [](const Tensor& x) { return slice(x, 0, 1, 5, 2); },
                     {2, 3},
                     [](const Ix& i) {
                       return Ix{1 + 2 * i[0], i[1]};
                     }},
                    {{5, 3},
                     [](const Tensor& x) { return slice(x, -1, -2, 100); },
                     {5, 2},
                     [](const Ix& i) {
                       return Ix{i[0], i[1] + 1};
                     }},
                    {{4}, [](const Tensor& x) { return slice(x, 0, 3, 1); }, {0}, [](const Ix& i) { return i; }},
                    {{0, 2}, [](const Tensor& x) { return slice(x, 1, 0, 1); }, {0, 1}, [](const Ix& i) { return i; }},
                    {{1}, [](const Tensor& x) { return narrow(x, 0, 0, 1); }, {1}, [](const Ix& i) { return i; }}});
  c.errors.push_back(
      {"step", [] { (void)slice(zeros({3}, cpu), 0, 0, 3, 0); }, throws<IndexError>, "slice: the step is 0"});
  c.errors.push_back(
      {"narrow", [] { (void)narrow(zeros({3}, cpu), 0, 2, 2); }, throws<IndexError>, "narrow: elements 2 to 2 + 2"});
  c.errors.push_back(
      {"dim", [] { (void)slice(zeros({3}, cpu), 1, 0, 1); }, throws<IndexError>, "slice: dimension is 1"});
  return c;
}

LEVIN_OP_CASE(select) {
  OpCase c = views({"select", "window_backward"},
                   {{{5, 3},
                     [](const Tensor& x) { return select(x, 0, -1); },
                     {3},
                     [](const Ix& i) {
                       return Ix{4, i[0]};
                     }},
                    {{2, 3, 4},
                     [](const Tensor& x) { return select(x, 1, 2); },
                     {2, 4},
                     [](const Ix& i) {
                       return Ix{i[0], 2, i[1]};
                     }},
                    {{0, 2}, [](const Tensor& x) { return select(x, 1, 1); }, {0}, [](const Ix& i) { return i; }},
                    {{1}, [](const Tensor& x) { return select(x, 0, 0); }, {}, [](const Ix&) { return Ix{0}; }}});
  c.errors.push_back({"index", [] { (void)select(zeros({3}, cpu), 0, 3); }, throws<IndexError>,
                      "select: index is 3, expected -3 to 2; dimension 0"});
  return c;
}

LEVIN_OP_CASE(diagonal) {
  OpCase c = views({"diagonal"},
                   {{{4, 3},
                     [](const Tensor& x) { return diagonal(x); },
                     {3},
                     [](const Ix& i) {
                       return Ix{i[0], i[0]};
                     }},
                    {{3, 4},
                     [](const Tensor& x) { return diagonal(x, 2); },
                     {2},
                     [](const Ix& i) {
                       return Ix{i[0], i[0] + 2};
                     }},
                    {{3, 4}, [](const Tensor& x) { return diagonal(x, -3); }, {0}, [](const Ix& i) { return i; }},
                    {{2, 3, 2},
                     [](const Tensor& x) { return diagonal(x, -1, 1, 2); },
                     {2, 2},
                     [](const Ix& i) {
                       return Ix{i[0], i[1] + 1, i[1]};
                     }},
                    {{0, 2}, [](const Tensor& x) { return diagonal(x); }, {0}, [](const Ix& i) { return i; }},
                    {{1, 1},
                     [](const Tensor& x) { return diagonal(x); },
                     {1},
                     [](const Ix&) {
                       return Ix{0, 0};
                     }}});
  c.errors.push_back({"dims",
                      [] {
                        (void)diagonal(zeros({3, 3}, cpu), 0, 1, -1);
                      },
                      throws<IndexError>, "diagonal: both"});
  return c;
}

LEVIN_OP_CASE(unfold) {
  OpCase c =
      views({"unfold", "window_backward"},
            {{{7},
              [](const Tensor& x) { return unfold(x, 0, 3, 2); },
              {3, 3},
              [](const Ix& i) { return Ix{2 * i[0] + i[1]}; }},
             {{2, 5},
              [](const Tensor& x) { return unfold(x, 1, 2, 1); },
              {2, 4, 2},
              [](const Ix& i) {
                return Ix{i[0], i[1] + i[2]};
              }},
             {{0, 3}, [](const Tensor& x) { return unfold(x, 1, 2, 2); }, {0, 1, 2}, [](const Ix& i) { return i; }},
             {{1}, [](const Tensor& x) { return unfold(x, 0, 1, 1); }, {1, 1}, [](const Ix&) { return Ix{0}; }}});
  c.errors.push_back(
      {"size", [] { (void)unfold(zeros({3}, cpu), 0, 4, 1); }, throws<ShapeError>, "unfold: the window is 4"});
  return c;
}

// Part k of x begins at index begin[k] of its dimension dim.
template <bool kUnbind>
OpCase parts_case(const char* op) {
  OpCase c{.ops = {op}, .dtypes = kAllDTypes};
  struct Parts {
    Shape from;
    int dim;
    std::vector<std::int64_t> sizes;
  };
  for (const Parts& p : {Parts{{7, 2}, 0, {3, 3, 1}}, Parts{{2, 3, 2}, 1, {1, 0, 2}}, Parts{{0, 2}, 1, {1, 1}},
                         Parts{{1}, 0, {1}}, Parts{{2, 4}, -1, {4}}}) {
    const int dim = p.dim < 0 ? p.dim + p.from.rank() : p.dim;
    const std::vector<std::int64_t> sizes =
        kUnbind ? std::vector<std::int64_t>(static_cast<std::size_t>(p.from[dim]), 1) : p.sizes;
    // With and without the last part: an unused part has the gradient 0.
    for (const std::size_t used : {sizes.size(), std::max<std::size_t>(1, sizes.size() - 1)}) {
      c.samples.push_back({.inputs = {real(p.from, 0, 8)},
                           .call =
                               [=](const Tensors& in) {
                                 Tensors parts = kUnbind ? unbind(in[0], p.dim) : split(in[0], sizes, p.dim);
                                 parts.resize(used);
                                 return parts;
                               },
                           .reference =
                               [=](const Tensors& in) {
                                 Tensors parts;
                                 std::int64_t begin = 0;
                                 for (std::size_t k = 0; k < used; begin += sizes[k++]) {
                                   const Shape to = kUnbind ? p.from.removed(dim) : p.from.with(dim, sizes[k]);
                                   parts.push_back(picked(in[0], to, [=](const Ix& i) {
                                     Ix at = i;
                                     if (kUnbind)
                                       at.insert(at.begin() + dim, begin);
                                     else
                                       at[static_cast<std::size_t>(dim)] += begin;
                                     return at;
                                   }));
                                 }
                                 return parts;
                               }});
    }
  }
  return c;
}

LEVIN_OP_CASE(split) {
  OpCase c = parts_case<false>("split");
  c.errors.push_back({"total",
                      [] {
                        const std::vector<std::int64_t> sizes{1, 1};
                        (void)split(zeros({3}, cpu), sizes);
                      },
                      throws<ShapeError>, "split: the parts add up to 2"});
  c.errors.push_back(
      {"size", [] { (void)split(zeros({3}, cpu), 0); }, throws<ShapeError>, "split: the part size is 0"});
  return c;
}

LEVIN_OP_CASE(unbind) {
  OpCase c = parts_case<true>("unbind");
  c.errors.push_back({"dim", [] { (void)unbind(zeros({3}, cpu), 1); }, throws<IndexError>, "unbind: dimension is 1"});
  return c;
}

LEVIN_OP_CASE(transpose) {
  OpCase c =
      views({"transpose"}, {{{2, 3, 4},
                             [](const Tensor& x) { return transpose(x, 0, -1); },
                             {4, 3, 2},
                             [](const Ix& i) {
                               return Ix{i[2], i[1], i[0]};
                             }},
                            {{3, 5},
                             [](const Tensor& x) { return t(x); },
                             {5, 3},
                             [](const Ix& i) {
                               return Ix{i[1], i[0]};
                             }},
                            {{0, 2}, [](const Tensor& x) { return t(x); }, {2, 0}, [](const Ix& i) { return i; }},
                            {{1, 1}, [](const Tensor& x) { return t(x); }, {1, 1}, [](const Ix& i) { return i; }}});
  c.errors.push_back({"rank", [] { (void)t(zeros({3}, cpu)); }, throws<ShapeError>, "t: x has shape [3]"});
  return c;
}

LEVIN_OP_CASE(permute) {
  OpCase c =
      views({"permute"}, {{{2, 3, 4},
                           [](const Tensor& x) {
                             return permute(x, {2, 0, 1});
                           },
                           {4, 2, 3},
                           [](const Ix& i) {
                             return Ix{i[1], i[2], i[0]};
                           }},
                          {{0, 2},
                           [](const Tensor& x) {
                             return permute(x, {1, 0});
                           },
                           {2, 0},
                           [](const Ix& i) { return i; }},
                          {{1}, [](const Tensor& x) { return permute(x, {0}); }, {1}, [](const Ix& i) { return i; }}});
  c.errors.push_back({"twice",
                      [] {
                        (void)permute(zeros({2, 2}, cpu), {0, 0});
                      },
                      throws<IndexError>, "permute: dimension 0 is given twice"});
  c.errors.push_back({"count",
                      [] {
                        (void)permute(zeros({2, 2}, cpu), {0});
                      },
                      throws<ShapeError>, "permute: 1 dimensions"});
  return c;
}

LEVIN_OP_CASE(expand) {
  OpCase c =
      views({"expand"}, {{{3, 1},
                          [](const Tensor& x) {
                            return expand(x, {2, 3, 4});
                          },
                          {2, 3, 4},
                          [](const Ix& i) {
                            return Ix{i[1], 0};
                          }},
                         {{1}, [](const Tensor& x) { return expand(x, {3}); }, {3}, [](const Ix&) { return Ix{0}; }},
                         {{1, 0},
                          [](const Tensor& x) {
                            return expand(x, {2, 0});
                          },
                          {2, 0},
                          [](const Ix& i) { return i; }},
                         {{},
                          [](const Tensor& x) {
                            return expand(x, {2, 2});
                          },
                          {2, 2},
                          [](const Ix&) { return Ix{}; }}});
  c.errors.push_back({"grow", [] { (void)expand(zeros({3}, cpu), {4}); }, throws<ShapeError>, "expand: shape"});
  return c;
}

LEVIN_OP_CASE(view) {
  const auto same_order = [](const Shape& from, const Shape& to) {
    return [from, to](const Ix& i) {
      std::int64_t flat = 0;
      for (int d = 0; d < to.rank(); ++d) flat = flat * to[d] + i[static_cast<std::size_t>(d)];
      Ix out(static_cast<std::size_t>(from.rank()));
      for (int d = from.rank() - 1; d >= 0; --d) {
        out[static_cast<std::size_t>(d)] = flat % from[d];
        flat /= from[d];
      }
      return out;
    };
  };
  std::vector<ViewSample> s;
  const auto add = [&](Shape from, std::function<Tensor(const Tensor&)> f, Shape to) {
    s.push_back({from, std::move(f), to, same_order(from, to)});
  };
  add({2, 6}, [](const Tensor& x) { return reshape(x, {3, -1}); }, {3, 4});
  add({2, 3, 4}, [](const Tensor& x) { return flatten(x, 1); }, {2, 12});
  add({2, 1, 3, 1}, [](const Tensor& x) { return squeeze(x); }, {2, 3});
  add({2, 1, 3, 1}, [](const Tensor& x) { return squeeze(x, {1}); }, {2, 3, 1});
  add({2, 3}, [](const Tensor& x) { return unsqueeze(x, -1); }, {2, 3, 1});
  add({0, 3}, [](const Tensor& x) { return reshape(x, {3, 0}); }, {3, 0});
  add({1}, [](const Tensor& x) { return reshape(x, {}); }, {});
  add({}, [](const Tensor& x) { return flatten(x); }, {1});
  OpCase c = views({"view"}, s);
  c.errors.push_back({"count",
                      [] {
                        (void)reshape(zeros({2, 3}, cpu), {4});
                      },
                      throws<ShapeError>, "reshape: shape [2, 3] has 6 elements, [4] has 4"});
  c.errors.push_back({"two open",
                      [] {
                        (void)reshape(zeros({2, 3}, cpu), {-1, -1});
                      },
                      throws<ShapeError>, "reshape: two dimensions are -1"});
  c.errors.push_back({"needs a copy",
                      [] {
                        (void)view(t(zeros({2, 3}, cpu)), {6});
                      },
                      throws<ShapeError>, "view: x of shape [3, 2]"});
  c.errors.push_back({"not divisible",
                      [] {
                        (void)reshape(zeros({2, 3}, cpu), {4, -1});
                      },
                      throws<ShapeError>, "reshape:"});
  return c;
}

TEST_CASE("a reshape shares storage exactly when the layout allows it") {
  const Tensor x = zeros({4, 6}, cpu);
  CHECK(reshape(x, {24}).shares_storage(x));
  CHECK(reshape(t(x), {6, 2, 2}).shares_storage(x));
  CHECK_FALSE(reshape(t(x), {24}).shares_storage(x));
  CHECK(view(slice(x, 0, 0, 4, 2), {2, 3, 2}).shares_storage(x));
  CHECK_FALSE(reshape(slice(x, 1, 0, 4), {16}).shares_storage(x));
}

TEST_CASE("steps and offsets of any size are taken without overflow") {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  const Tensor x = reshape(arange(6, cpu), {2, 3});
  CHECK(slice(x, 0, 1, most, most).to_vector<std::int64_t>() == std::vector<std::int64_t>{3, 4, 5});
  CHECK(unfold(x, 0, 2, most).shape() == Shape{1, 3, 2});
  CHECK(unfold(x, 0, 1, most).to_vector<std::int64_t>() == std::vector<std::int64_t>{0, 1, 2});
  CHECK(diagonal(x, -most - 1).numel() == 0);
  CHECK(diagonal(x, most).numel() == 0);
  CHECK(slice(x, 0, -most - 1, most).shape() == Shape{2, 3});
}

TEST_CASE("split, chunk and unbind cover the dimension once") {
  const Tensor x = arange(7, cpu);
  const Tensors parts = split(x, 3);
  REQUIRE(parts.size() == 3);
  for (const Tensor& part : parts) CHECK(part.shares_storage(x));
  CHECK(parts[2].to_vector<std::int64_t>() == std::vector<std::int64_t>{6});
  CHECK(chunk(x, 3).size() == 3);
  CHECK(unbind(reshape(arange(6, cpu), {2, 3}), 1).size() == 3);
  const std::vector<std::int64_t> wrong{3, 3};
  CHECK_THROWS_AS((void)split(x, wrong), ShapeError);
}

TEST_CASE("chunk of an empty dimension gives as many parts as are asked for") {
  const Tensors parts = chunk(zeros({0, 2}, cpu), 3);
  REQUIRE(parts.size() == 3);
  for (const Tensor& p : parts) CHECK(p.shape() == Shape{0, 2});
  CHECK_THROWS_AS((void)chunk(zeros({0, 2}, cpu), std::int64_t{1} << 40), ShapeError);
  CHECK(chunk(zeros({5}, cpu), 4).size() == 3);
}

TEST_CASE("a dimension more than 8 is refused, with nothing written behind the last") {
  const Tensor x = ones({1, 1, 1, 1, 1, 1, 1, 2}, cpu);
  for (const std::int64_t dim : {0, 3, 8}) {
    CHECK_THROWS_AS((void)unsqueeze(x, dim), ShapeError);
    CHECK_THROWS_AS((void)stack({x, x}, dim), ShapeError);
  }
  CHECK_THROWS_AS((void)unfold(x, 0, 1, 1), ShapeError);
  CHECK_THROWS_AS((void)one_hot(x.to(DType::i64), 3), ShapeError);
  CHECK(repeat_interleave(x, 2, 7).rank() == 8);
}

namespace {
// y[i] = a[i] + b[i - 1], one longer than both: the gradients are two windows of one tensor, which overlap.
struct AddShifted {
  static constexpr OpInfo info{.name = "add_shifted"};
  Tensor forward(const Tensor& a, const Tensor& b) const {
    const Tensor end = zeros({1}, a.device(), a.dtype());
    return cat(Tensors{a, end}, 0) + cat(Tensors{end, b}, 0);
  }
  Grads<2> backward(const Tensor& gy, Need<2>) {
    return {narrow(gy, 0, 0, gy.size(0) - 1), narrow(gy, 0, 1, gy.size(0) - 1)};
  }
};
}  // namespace

TEST_CASE("the gradient of what unbind splits has memory for each of its elements") {
  Tensor x = zeros({2, 3}, cpu);
  x.requires_grad_();
  const Tensors parts = unbind(x);
  const Tensor y = apply(AddShifted{}, parts[0], parts[1]);
  Tensor g = grad(Tensors{y}, Tensors{x}, Tensors{tensor({1.0, 2.0, 3.0, 4.0}, cpu).to(DType::f32)})[0];
  mul_(g, 2);
  CHECK(g.to_vector<float>() == std::vector<float>{2, 4, 6, 4, 6, 8});
}

TEST_CASE("unflatten is a view with one dimension as several, and broadcast_to is expand") {
  const Tensor x = reshape(arange(24, cpu), {2, 12});
  CHECK(equal(unflatten(x, 1, {3, 4}), reshape(x, {2, 3, 4})));
  CHECK(unflatten(x, -1, {-1, 2, 2}).shape() == Shape{2, 3, 2, 2});
  CHECK(unflatten(x, 0, 2).shape() == x.shape());
  CHECK(unflatten(x, 1, {3, 4}).shares_storage(x));
  CHECK(unflatten(zeros({0, 6}, cpu), 1, {-1, 3}).shape() == Shape{0, 2, 3});
  CHECK(unflatten(zeros({0, 6}, cpu), 0, {2, 0}).shape() == Shape{2, 0, 6});
  CHECK_THROWS_WITH_AS((void)unflatten(x, 1, {5, 2}), doctest::Contains("unflatten: shape [12] has 12 elements"),
                       ShapeError);
  CHECK_THROWS_AS((void)unflatten(x, 1, {-1, 5}), ShapeError);
  CHECK_THROWS_AS((void)unflatten(x, 1, {-1, -1}), ShapeError);
  CHECK_THROWS_WITH_AS((void)unflatten(x, 1, {}), doctest::Contains("unflatten: no size is given"), ShapeError);
  CHECK_THROWS_AS((void)unflatten(x, 1, {12, 1, 1, 1, 1, 1, 1, 1}), ShapeError);
  CHECK_THROWS_AS((void)unflatten(x, 2, {2, 6}), IndexError);
  CHECK_THROWS_AS((void)unflatten(zeros({}, cpu), 0, {1}), IndexError);
  CHECK(equal(broadcast_to(x[0], {3, 12}), expand(x[0], {3, 12})));
  CHECK_THROWS_AS((void)broadcast_to(x, {3, 12}), ShapeError);
}

}  // namespace levin::testing
