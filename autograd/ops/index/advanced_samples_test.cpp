// Samples of reads and writes by several index tensors for the conformance suite.
#include <doctest/doctest.h>

#include <cmath>

#include "autograd/ops/pointwise/plain_test.h"
#include "tests/device.h"
#include "tests/ops/samples.h"

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();
Tensor numbers(std::initializer_list<std::int64_t> values, Dims shape) {
  return reshape(tensor<std::int64_t>(values, cpu), shape);
}

// Which place of x each place of x[indices] is, written without the rules of the implementation: the dimensions of the
// broadcast indices start at `front` of the result, and the others keep their order.
struct Reading {
  Shape x;
  std::vector<Tensor> at;  // undefined: a whole dimension
  Shape common;
  int front;

  [[nodiscard]] Shape result() const {
    std::vector<std::int64_t> sizes;
    for (int d = 0; d < x.rank(); ++d) {
      if (whole(d)) sizes.push_back(x[d]);
    }
    sizes.insert(sizes.begin() + front, common.begin(), common.end());
    return Shape(std::span<const std::int64_t>(sizes));
  }
  [[nodiscard]] bool whole(int d) const {
    return static_cast<std::size_t>(d) >= at.size() || !at[std::size_t(d)].defined();
  }
  [[nodiscard]] At source(const At& place) const {
    const At own(place.begin() + front, place.begin() + front + common.rank());
    At rest(place.begin(), place.begin() + front);
    rest.insert(rest.end(), place.begin() + front + common.rank(), place.end());
    At from;
    std::size_t next = 0;
    for (int d = 0; d < x.rank(); ++d) {
      if (whole(d))
        from.push_back(rest[next++]);
      else
        from.push_back(static_cast<std::int64_t>(Plain(expand(at[std::size_t(d)], common))(own)));
    }
    return from;
  }
  // Kept, because a recording must not copy from the host.
  [[nodiscard]] const Tensors& there(const Tensor& beside) const {
    if (moved.empty() || device != beside.device()) {
      device = beside.device();
      moved.clear();
      for (const Tensor& t : at) moved.push_back(t.defined() ? t.to(device) : t);
    }
    return moved;
  }
  mutable Tensors moved{};
  mutable Device device = Device::cpu();
};

const std::vector<Reading>& readings() {
  static const std::vector<Reading> all{
      {{4, 3}, {numbers({3, 0, 3}, {3}), numbers({1, 2, 0}, {3})}, {3}, 0},
      {{4, 3, 2}, {numbers({3, 0}, {2, 1}), numbers({1, 2, 0}, {3})}, {2, 3}, 0},
      {{2, 4, 3}, {Tensor(), numbers({3, 1, 1}, {3}), numbers({2, 0, 0}, {3})}, {3}, 1},
      {{3, 2, 4}, {numbers({2, 0}, {2}), Tensor(), numbers({1, 3}, {2})}, {2}, 0},  // not beside each other: in front
      {{2, 3, 2, 3}, {Tensor(), numbers({2, 2}, {2}), Tensor(), numbers({0, 1}, {2})}, {2}, 0},
      {{3, 4}, {numbers({2}, {}), numbers({1, 3}, {2})}, {2}, 0},
      {{3, 4}, {Tensor(), numbers({2}, {})}, {}, 1},
      {{1}, {numbers({0}, {1})}, {1}, 0},
      {{3, 0}, {numbers({2, 1}, {2})}, {2}, 0},
      {{3, 2}, {zeros({0}, cpu, DType::i64)}, {0}, 0}};
  return all;
}

}  // namespace

LEVIN_OP_CASE(index) {
  OpCase c{.ops = {"index"}, .dtypes = kAllDTypes};
  for (const Reading& r : readings()) {
    c.samples.push_back({.inputs = {real(r.x, 0, 8)},
                         .call = [=](const Tensors& in) { return Tensors{levin::index(in[0], r.there(in[0]))}; },
                         .reference =
                             [=](const Tensors& in) {
                               const Plain x(in[0]);
                               return Tensors{
                                   Plain(r.result(), [&](const At& at) { return x(r.source(at)); }).tensor()};
                             }});
  }
  c.samples.push_back({.inputs = {real({4, 3}, 0, 8), index({5}, 4)},
                       .call = [](const Tensors& in) { return Tensors{levin::index(in[0], {in[1]})}; },
                       .reference = [](const Tensors& in) { return Tensors{index_select(in[0], 0, in[1])}; }});
  const auto error = [&](const char* what, std::function<void()> call, auto is, const std::string& contains) {
    c.errors.push_back({what, std::move(call), is, contains});
  };
  const Tensor x = zeros({4, 3}, cpu), two = numbers({0, 2}, {2});
  error(
      "second dimension",
      [=] {
        (void)levin::index(x, {two, two + 1});
      },
      throws<IndexError>,
      "index: index 3 at position [1] is out of range, expected 0 to 2; dimension 1 of x [4, 3] has size 3");
  error(
      "negative", [=] { (void)levin::index(x, {two - 1}); }, throws<IndexError>, "index: index -1 at position [0]");
  error(
      "none",
      [=] {
        (void)levin::index(x, {Tensor(), Tensor()});
      },
      throws<StateError>, "index: every index is undefined");
  error(
      "too many",
      [=] {
        (void)levin::index(x, {two, two, two});
      },
      throws<IndexError>, "index: 3 dimensions are indexed, but x [4, 3] has 2");
  error(
      "shapes",
      [=] {
        (void)levin::index(x, {two, numbers({0, 0, 0}, {3})});
      },
      throws<ShapeError>, "index: shapes [2] and [3]");
  error(
      "dtype", [=] { (void)levin::index(x, {two.to(DType::i32)}); }, throws<DTypeError>, "index: index is i32");
  error(
      "mask", [=] { (void)levin::index(x, {zeros({3}, cpu, DType::b8)}); }, throws<ShapeError>,
      "index: a mask has shape [3], expected the sizes of x [4, 3] from dimension 0 on");
  return c;
}

namespace {
OpCase puts(Accumulate accumulate, std::vector<DType> dtypes) {
  const bool adds = accumulate == Accumulate::yes;
  OpCase c{.ops = {}, .dtypes = std::move(dtypes), .sums = 4};
  for (const Reading& r : readings()) {
    for (const bool one : {false, true}) {
      const Shape values = one ? Shape{} : r.result();
      c.samples.push_back(
          {.inputs = {real(r.x), real(values)},
           .call = [=](const Tensors& in) { return Tensors{index_put(in[0], r.there(in[0]), in[1], accumulate)}; },
           .reference =
               [=](const Tensors& in) {
                 Plain y(in[0]);
                 const Plain v(in[1]);
                 Plain(r.result()).each([&](const At& at) {
                   double& to = y(r.source(at));
                   const double from = one ? v({}) : v(at);
                   to = adds ? to + from : from;
                 });
                 return Tensors{y.tensor()};
               }});
    }
  }
  // A mask and a value that does not vary from one true element to the next: no wait, also on meta.
  for (const auto& [x, m, v] : {std::tuple{Shape{4, 3}, Shape{4, 3}, Shape{}},
                                {Shape{4, 3}, Shape{4}, Shape{3}},
                                {Shape{4, 3}, Shape{4}, Shape{1, 3}},
                                {Shape{1}, Shape{1}, Shape{1}}}) {
    c.samples.push_back(
        {.inputs = {real(x), mask(m), real(v)},
         .call = [=](const Tensors& in) { return Tensors{index_put(in[0], {in[1]}, in[2], accumulate)}; },
         .reference =
             [=](const Tensors& in) {
               const Plain chosen(in[1]), from(expand(in[2], in[0].shape()));
               Plain y(in[0]);
               y.each([&](const At& at) {
                 if (chosen(At(at.begin(), at.begin() + chosen.shape.rank())) != 0)
                   y(at) = adds ? y(at) + from(at) : from(at);
               });
               return Tensors{y.tensor()};
             }});
  }
  const Tensor x = zeros({4, 3}, cpu), at = numbers({0, 2}, {2});
  c.errors.push_back({"values",
                      [=] {
                        (void)index_put(x, {at}, zeros({3, 3}, cpu), accumulate);
                      },
                      throws<ShapeError>,
                      "index_put: values have shape [3, 3], expected one that broadcasts to [2, 3]"});
  c.errors.push_back({"outside",
                      [=] {
                        (void)index_put(x, {Tensor(), at + 1}, zeros({}, cpu), accumulate);
                      },
                      throws<IndexError>, "index_put: index 3 at position [1] is out of range, expected 0 to 2"});
  c.errors.push_back({"dtype", [=] { (void)index_put(x, {at}, zeros({}, cpu, DType::f64), accumulate); },
                      throws<DTypeError>, "index_put: tensors are f32 and f64"});
  c.errors.push_back({"values of a mask",
                      [=] { (void)index_put(x, {zeros({4}, cpu, DType::b8)}, zeros({2}, cpu), accumulate); },
                      throws<ShapeError>, "index_put: values have shape [2], expected one that broadcasts to [1, 3]"});
  return c;
}
}  // namespace

LEVIN_OP_CASE(index_put) { return puts(Accumulate::no, kAllDTypes); }
LEVIN_OP_CASE(index_put_accumulate) { return puts(Accumulate::yes, kNumberDTypes); }

LEVIN_OP_CASE(masked_scatter) {
  OpCase c{.ops = {}, .dtypes = kAllDTypes};
  for (const auto& [x, m, n] : {std::tuple{Shape{3, 4}, Shape{3, 4}, 12},
                                {Shape{3, 4}, Shape{4}, 15},
                                {Shape{1}, Shape{1}, 1},
                                {Shape{0, 2}, Shape{2}, 0},
                                {Shape{2, 3}, Shape{2, 1}, 6}}) {
    c.samples.push_back({.inputs = {real(x, 0, 8), mask(m), real({n}, 0, 8)},
                         .call = [](const Tensors& in) { return Tensors{masked_scatter(in[0], in[1], in[2])}; },
                         .reference =
                             [](const Tensors& in) {
                               const Plain chosen(expand(in[1], in[0].shape())), src(in[2]);
                               Plain y(in[0]);
                               std::size_t next = 0;
                               y.each([&](const At& at) {
                                 if (chosen(at) != 0) y(at) = src.values[next++];
                               });
                               return Tensors{y.tensor()};
                             }});
  }
  c.errors.push_back({"src", [] { (void)masked_scatter(zeros({4}, cpu), ones({4}, cpu, DType::b8), zeros({3}, cpu)); },
                      throws<ShapeError>, "masked_scatter: mask has 4 true elements and src [3] has 3 elements"});
  c.errors.push_back({"mask", [] { (void)masked_scatter(zeros({4}, cpu), zeros({4}, cpu), zeros({3}, cpu)); },
                      throws<DTypeError>, "masked_scatter: mask is f32, expected bool"});
  c.errors.push_back({"shape",
                      [] {
                        (void)masked_scatter(zeros({4}, cpu), zeros({2, 4}, cpu, DType::b8), zeros({3}, cpu));
                      },
                      throws<ShapeError>, "masked_scatter: mask has shape [2, 4]"});
  return c;
}

LEVIN_OP_CASE(masked_fill_by_a_tensor) {
  OpCase c{.ops = {}, .dtypes = kAllDTypes};
  for (const auto& [x, m, v] :
       {std::tuple{Shape{3, 4}, Shape{4}, Shape{}}, {Shape{1}, Shape{1}, Shape{1}}, {Shape{0, 2}, Shape{2}, Shape{}}}) {
    c.samples.push_back({.inputs = {real(x, 0, 8), mask(m), real(v, 0, 8)},
                         .call = [](const Tensors& in) { return Tensors{masked_fill(in[0], in[1], in[2])}; },
                         .reference =
                             [](const Tensors& in) {
                               const Plain chosen(expand(in[1], in[0].shape()));
                               Plain y(in[0]);
                               const double value = Plain(in[2]).values[0];
                               y.each([&](const At& at) {
                                 if (chosen(at) != 0) y(at) = value;
                               });
                               return Tensors{y.tensor()};
                             }});
  }
  c.errors.push_back({"value", [] { (void)masked_fill(zeros({4}, cpu), zeros({4}, cpu, DType::b8), zeros({2}, cpu)); },
                      throws<ShapeError>, "masked_fill: value has shape [2], expected one element"});
  return c;
}

LEVIN_OP_CASE(take) {
  OpCase c{.ops = {}, .dtypes = kAllDTypes};
  for (const auto& [x, i] :
       {std::pair{Shape{3, 4}, Shape{2, 5}}, {Shape{1}, Shape{1}}, {Shape{2, 3}, Shape{}}, {Shape{2, 3}, Shape{0}}}) {
    c.samples.push_back({.inputs = {real(x, 0, 8), index(i, x.numel())},
                         .call = [](const Tensors& in) { return Tensors{take(in[0], in[1])}; },
                         .reference =
                             [](const Tensors& in) {
                               const Plain from(in[0]), at(in[1]);
                               Plain y(at.shape);
                               for (std::size_t k = 0; k < y.values.size(); ++k)
                                 y.values[k] = from.values[static_cast<std::size_t>(at.values[k])];
                               return Tensors{y.tensor()};
                             }});
  }
  c.errors.push_back({"outside",
                      [] {
                        (void)take(zeros({2, 2}, cpu), numbers({4}, {1}));
                      },
                      throws<IndexError>,
                      "take: index 4 at position [0] is out of range, expected 0 to 3; x [2, 2], flattened, has size"});
  return c;
}

LEVIN_OP_CASE(take_along_dim) {
  OpCase c{.ops = {}, .dtypes = kAllDTypes};
  struct Along {
    Shape x, index;
    int dim;
    Shape result;
  };
  for (const Along& s : {Along{{3, 4}, {3, 2}, 1, {3, 2}},
                         {{3, 4}, {1, 2}, 1, {3, 2}},
                         {{1, 4}, {3, 2}, 1, {3, 2}},
                         {{2, 3, 2}, {2, 5, 1}, 1, {2, 5, 2}},
                         {{1}, {1}, 0, {1}},
                         {{3, 2}, {0, 2}, 0, {0, 2}}}) {
    c.samples.push_back(
        {.inputs = {real(s.x, 0, 8), index(s.index, s.x[s.dim])},
         .call = [=](const Tensors& in) { return Tensors{take_along_dim(in[0], in[1], s.dim - s.x.rank())}; },
         .reference =
             [=](const Tensors& in) {
               const Plain x(in[0]), at(in[1]);
               const auto folded = [](At place, const Shape& shape) {
                 for (int d = 0; d < shape.rank(); ++d) {
                   if (shape[d] == 1) place[static_cast<std::size_t>(d)] = 0;
                 }
                 return place;
               };
               return Tensors{Plain(s.result, [&](const At& place) {
                                return x(folded(with(place, s.dim, at(folded(place, s.index))), s.x));
                              }).tensor()};
             }});
  }
  c.samples.push_back({.inputs = {real({3, 4}, 0, 8), index({2, 2}, 12)},
                       .call = [](const Tensors& in) { return Tensors{take_along_dim(in[0], in[1])}; },
                       .reference = [](const Tensors& in) { return Tensors{flatten(take(in[0], in[1]))}; }});
  c.errors.push_back({"rank",
                      [] {
                        (void)take_along_dim(zeros({2, 2}, cpu), numbers({0}, {1}), 0);
                      },
                      throws<ShapeError>, "take_along_dim: index has shape [1], expected rank 2"});
  return c;
}

TEST_CASE("x[mask] and x[mask, i] read the true elements, and x[mask] = v writes one value for each") {
  const Tensor x = reshape(arange(6, cpu).to(DType::f32), {3, 2});
  const Tensor rows = ne(tensor<std::int64_t>({1, 0, 1}, cpu), 0);
  CHECK(equal(levin::index(x, {rows}), reshape(tensor<float>({0, 1, 4, 5}, cpu), {2, 2})));
  CHECK(equal(levin::index(x, {rows, numbers({1}, {1})}), tensor<float>({1, 5}, cpu)));
  CHECK(equal(levin::index(x, {gt(x, 2)}), tensor<float>({3, 4, 5}, cpu)));
  Tensor v = tensor<float>({10, 20, 30}, cpu);
  v.requires_grad_();
  const Tensor y = index_put(x, {gt(x, 2)}, v);
  CHECK(equal(y.detach(), reshape(tensor<float>({0, 1, 2, 10, 20, 30}, cpu), {3, 2})));
  backward(sum(y * x));
  CHECK(equal(v.grad(), tensor<float>({3, 4, 5}, cpu)));
  // Equal places: the last write wins, and gradients flow to it alone.
  const Tensor twice = numbers({1, 1}, {2});
  CHECK(equal(index_put(zeros({2}, cpu), {twice}, tensor<float>({7, 8}, cpu)), tensor<float>({0, 8}, cpu)));
  CHECK(equal(index_put(zeros({2}, cpu), {twice}, tensor<float>({7, 8}, cpu), Accumulate::yes),
              tensor<float>({0, 15}, cpu)));
}

TEST_CASE("index_put takes a number, which has x's dtype, and where alone names the places of what is not 0") {
  Tensor x = reshape(arange(6, cpu).to(DType::f64), {3, 2});
  x.requires_grad_();
  const Tensor y = index_put(x, {gt(x.detach(), 3)}, -0.5);
  CHECK(y.detach().to_vector<double>() == std::vector<double>{0, 1, 2, 3, -0.5, -0.5});
  CHECK(grad(Tensors{sum(y)}, Tensors{x})[0].to_vector<double>() == std::vector<double>{1, 1, 1, 1, 0, 0});
  const Tensor bytes = zeros({2}, cpu, DType::u8), twice = numbers({1, 1}, {2});
  CHECK(index_put(bytes, {twice}, 7, Accumulate::yes).to_vector<std::uint8_t>() == std::vector<std::uint8_t>{0, 14});
  CHECK(index_put(bytes, Tensors{twice}, 7).to_vector<std::uint8_t>() == std::vector<std::uint8_t>{0, 7});
  CHECK_THROWS_WITH_AS((void)index_put(bytes, {twice}, 300),
                       doctest::Contains("index_put: the number 300 does not fit"), DTypeError);
  CHECK_THROWS_AS((void)index_put(bytes, {twice}, 0.5), DTypeError);

  const Tensors at = where(gt(x.detach(), 3));
  REQUIRE(at.size() == 2);
  CHECK(equal(at[0], numbers({2, 2}, {2})));
  CHECK(equal(at[1], numbers({0, 1}, {2})));
  CHECK(equal(levin::index(x.detach(), at), tensor({4.0, 5.0}, cpu)));
  CHECK(where(zeros({0, 3, 2}, cpu)).size() == 3);
}

TEST_CASE("an index out of range in one dimension is found on a device, though the place lies inside of x") {
  DEVICE_OR_SKIP();
  const Tensor x = zeros({4, 3}, device);
  const Tensor y = levin::index(x, {numbers({0}, {1}).to(device), numbers({5}, {1}).to(device)});
  CHECK_THROWS_WITH_AS((void)y.to(cpu), doctest::Contains("index: index 5 is out of range"), IndexError);
}

}  // namespace levin::testing
