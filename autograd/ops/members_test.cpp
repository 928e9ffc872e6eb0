// Operators and members of Tensor, and tensors of rank 0 along a dimension.
#include <doctest/doctest.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "levin/autograd.h"
#include "levin/generator.h"
#include "levin/ops.h"

namespace levin {
namespace {

const Device kCpu = Device::cpu();

Tensor numbered(const Shape& shape) {
  return arange(0, shape.numel(), 1, kCpu, DType::f64).reshape(Dims(shape.dims()));
}

TEST_CASE("x[i] and x[Slice] are views of the first dimension, as Python's") {
  Tensor x = numbered({4, 3});
  CHECK(equal(x[1], select(x, 0, 1)));
  CHECK(equal(x[-1], select(x, 0, 3)));
  CHECK(x[2][1].item() == 7);
  CHECK(equal(x[Slice{1, 3}], narrow(x, 0, 1, 2)));
  CHECK(equal(x[Slice{.end = -1}], narrow(x, 0, 0, 3)));
  CHECK(equal(x[Slice{.step = 2}], slice(x, 0, 0, 4, 2)));
  CHECK(x[Slice{}].shares_storage(x));
  CHECK_THROWS_AS((void)x[4], IndexError);
  CHECK_THROWS_AS((void)x[0][0][0], IndexError);
}

TEST_CASE("index takes numbers, slices, new axes and one ellipsis, and has the derivative of its views") {
  Tensor x = numbered({2, 3, 4, 5});
  CHECK(equal(x.index({1, 2}), select(select(x, 0, 1), 0, 2)));
  CHECK(equal(x.index({kEllipsis, 0}), select(x, 3, 0)));
  CHECK(equal(x.index({0, kEllipsis, Slice{1, 3}}), narrow(select(x, 0, 0), 2, 1, 2)));
  CHECK(equal(x.index({Slice{}, -1, kEllipsis}), select(x, 1, 2)));
  CHECK(x.index({Slice{0, 1}, kNewAxis, 0}).shape() == Shape{1, 1, 4, 5});
  CHECK(x.index({kEllipsis, kNewAxis}).shape() == Shape{2, 3, 4, 5, 1});
  CHECK(x.index({}).shape() == x.shape());
  CHECK(x.index({1, 2, 3, 4, kEllipsis}).item() == 119);
  CHECK_THROWS_WITH_AS((void)x.index({0, 0, 0, 0, 0}), doctest::Contains("index: 5 dimensions are indexed, expected"),
                       IndexError);
  CHECK_THROWS_WITH_AS((void)x.index({kEllipsis, kEllipsis}), doctest::Contains("kEllipsis is given 2 times"),
                       IndexError);
  CHECK_THROWS_AS((void)x.index({2}), IndexError);
  CHECK_THROWS_AS((void)x.index({Slice{.step = -1}}), IndexError);

  x.requires_grad_();
  backward(x.index({1, kEllipsis, Slice{.step = 4}}).sum());
  CHECK(x.grad().sum().item() == 3 * 4 * 2);
  CHECK(x.grad().index({1, 2, 3, 4}).item() == 1);
  CHECK(x.grad()[0].sum().item() == 0);
}

TEST_CASE("+= and its kind give the handle a new tensor, are recorded, and leave other handles as they are") {
  Tensor w = full({2}, 3.0, kCpu, DType::f64);
  w.requires_grad_();
  Tensor x = w;
  const Tensor old = x;
  x += 1;
  x *= x;
  x -= w;
  x /= 2.0;  // ((w + 1)^2 - w) / 2
  CHECK(equal(old, w));
  CHECK(equal(x, full({2}, 6.5, kCpu, DType::f64)));
  backward(x.sum());
  CHECK(equal(w.grad(), full({2}, 3.5, kCpu, DType::f64)));  // (2 (w + 1) - 1) / 2
  Tensor y = numbered({3});
  y += numbered({2, 1});
  y -= 1;
  y *= 2;
  y /= numbered({3}) + 1;
  CHECK(y.shape() == Shape{2, 3});
  CHECK(y[1][2].item() == doctest::Approx(4.0 / 3));
}

TEST_CASE("comparison operators are eq, ne, lt, le, gt, ge, with numbers on either side") {
  const Tensor a = numbered({3}), b = flip(a, {0});
  CHECK(equal(a == b, eq(a, b)));
  CHECK(equal(a != b, ne(a, b)));
  CHECK(equal(a < b, lt(a, b)));
  CHECK(equal(a <= b, le(a, b)));
  CHECK(equal(a > b, gt(a, b)));
  CHECK(equal(a >= b, ge(a, b)));
  CHECK(equal(a == 1, eq(a, 1)));
  CHECK(equal(a != 1, ne(a, 1)));
  CHECK(equal(a < 1, lt(a, 1)));
  CHECK(equal(a <= 1, le(a, 1)));
  CHECK(equal(a > 1, gt(a, 1)));
  CHECK(equal(a >= 1, ge(a, 1)));
  CHECK(equal(1 == a, eq(a, 1)));
  CHECK(equal(1 != a, ne(a, 1)));
  CHECK(equal(1 < a, gt(a, 1)));
  CHECK(equal(1 <= a, ge(a, 1)));
  CHECK(equal(1 > a, lt(a, 1)));
  CHECK(equal(1 >= a, le(a, 1)));
}

TEST_CASE("members are the ops of their names") {
  Generator g(1);
  const Tensor x = randn({2, 3, 4}, g, kCpu, DType::f64);
  using enum KeepDim;
  CHECK(equal(x.view({6, 4}), view(x, {6, 4})));
  CHECK(equal(x.reshape({4, -1}), reshape(x, {4, 6})));
  CHECK(equal(x.flatten(1), flatten(x, 1)));
  CHECK(equal(x.unsqueeze(1).squeeze(1), x));
  CHECK(x.unsqueeze(-1).shape() == Shape{2, 3, 4, 1});
  CHECK(equal(x.transpose(0, 2), transpose(x, 0, 2)));
  CHECK(equal(x[0].t(), t(select(x, 0, 0))));
  CHECK(equal(x.permute({2, 0, 1}), permute(x, {2, 0, 1})));
  CHECK(equal(x.sum({0}, yes).expand({2, 3, 4}), expand(sum(x, {0}, yes), {2, 3, 4})));
  CHECK(equal(x.select(1, 2), select(x, 1, 2)));
  CHECK(equal(x.slice(2, 1, 4, 2), slice(x, 2, 1, 4, 2)));
  CHECK(equal(x.narrow(2, 1, 2), narrow(x, 2, 1, 2)));
  CHECK(equal(x.split(3, 2)[1], split(x, 3, 2)[1]));
  CHECK(equal(x.chunk(2, 2)[1], chunk(x, 2, 2)[1]));
  CHECK(equal(x.unbind(1)[2], unbind(x, 1)[2]));
  CHECK(equal(x.sum({0, 2}), sum(x, {0, 2})));
  CHECK(equal(x.mean({1}, yes), mean(x, {1}, yes)));
  CHECK(equal(x.prod({1}), prod(x, {1})));
  CHECK(equal(x.amax({1}), amax(x, {1})));
  CHECK(equal(x.amin({1}), amin(x, {1})));
  CHECK(equal(x.var({1}, 0), var(x, {1}, 0)));
  CHECK(equal(x.std({1}), levin::std(x, {1})));
  CHECK(equal(x.norm(1, {1}), norm(x, 1, {1})));
  CHECK(equal((x > 0).any({1}), any(x > 0, {1})));
  CHECK(equal((x > 0).all({1}), all(x > 0, {1})));
  CHECK(equal(x.argmax(1), argmax(x, 1)));
  CHECK(equal(x.argmin(), argmin(x)));
  CHECK(equal(x.max(1).indices, max(x, 1).indices));
  CHECK(equal(x.min(1, yes).values, min(x, 1, yes).values));
  CHECK(equal(x.cumsum(1), cumsum(x, 1)));
}

TEST_CASE(
    "dimensions 0 and -1 of a tensor of rank 0 are those of a line of one element, and its gradient is the line's") {
  using Op = std::function<Tensor(const Tensor&, std::int64_t)>;
  const auto index = [](const Tensor& x) { return zeros_like(x.detach()).to(DType::i64); };
  const std::vector<Op> ops{
      [](const Tensor& x, std::int64_t d) { return sum(x, {d}); },
      [](const Tensor& x, std::int64_t d) { return mean(x, {d}, KeepDim::yes); },
      [](const Tensor& x, std::int64_t d) { return prod(x, {d}); },
      [](const Tensor& x, std::int64_t d) { return amax(x, {d}); },
      [](const Tensor& x, std::int64_t d) { return var(x, {d}, 0); },
      [](const Tensor& x, std::int64_t d) { return norm(x, 2, {d}); },
      [](const Tensor& x, std::int64_t d) { return logsumexp(x, {d}); },
      [](const Tensor& x, std::int64_t d) { return softmax(x, d); },
      [](const Tensor& x, std::int64_t d) { return max(x, d).values; },
      [](const Tensor& x, std::int64_t d) { return min(x, d, KeepDim::yes).values; },
      [](const Tensor& x, std::int64_t d) { return cumsum(x, d); },
      [](const Tensor& x, std::int64_t d) { return sort(x, d).values; },
      [](const Tensor& x, std::int64_t d) { return topk(x, 1, d).values; },
      [](const Tensor& x, std::int64_t d) { return kthvalue(x, 1, d).values; },
      [](const Tensor& x, std::int64_t d) { return median(x, d).values; },
      [](const Tensor& x, std::int64_t d) { return quantile(x, 0.3, d); },
      [](const Tensor& x, std::int64_t d) { return flip(x, {d}); },
      [](const Tensor& x, std::int64_t d) { return roll(x, 3, d); },
      [](const Tensor& x, std::int64_t d) { return squeeze(x, {d}); },
      [](const Tensor& x, std::int64_t d) { return transpose(x, d, d); },
      [=](const Tensor& x, std::int64_t d) { return gather(x, d, index(x)); },
      [=](const Tensor& x, std::int64_t d) { return scatter(x, d, index(x), 2 * x); },
      [=](const Tensor& x, std::int64_t d) { return scatter_add(x, d, index(x), 2 * x); },
  };
  for (std::size_t i = 0; i < ops.size(); ++i) {
    CAPTURE(i);
    for (const std::int64_t d : {0, -1}) {
      Tensor point = full({}, 2.5, kCpu, DType::f64), line = full({1}, 2.5, kCpu, DType::f64);
      point.requires_grad_();
      line.requires_grad_();
      const Tensor y = ops[i](point, d), expected = ops[i](line, d);
      CHECK(y.shape() == Shape{});
      CHECK(y.item() == expected.item());
      backward(y * 3);
      backward(expected.sum() * 3);
      CHECK(point.grad().item() == line.grad().item());
    }
    const Tensor point = full({}, 2.5, kCpu, DType::f64);
    CHECK_THROWS_AS((void)ops[i](point, 1), IndexError);
    CHECK_THROWS_AS((void)ops[i](point, -2), IndexError);
  }
  const Tensor point = full({}, 2.5, kCpu, DType::f64);
  CHECK(argmax(point, 0).item() == 0);
  CHECK(argmin(point, -1, KeepDim::yes).shape() == Shape{});
  CHECK(argsort(point, 0).shape() == Shape{});
  CHECK(any(point, {0}).item<bool>());
  CHECK_THROWS_AS((void)topk(point, 2, 0), IndexError);
  CHECK_THROWS_AS((void)select(point, 0, 0), IndexError);
  CHECK_THROWS_AS((void)sum(point, {0, 0}), IndexError);
}

}  // namespace
}  // namespace levin
