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

TEST_CASE("x[mask], x[places] and index with tensors copy what index takes, after numbers and slices") {
  Tensor x = numbered({3, 4, 2});
  const Tensor rows = tensor<std::int64_t>({2, 0}, kCpu), odd = x[0] % 2 == 1;
  CHECK(equal(x[rows], index_select(x, 0, rows)));
  CHECK(equal(x[x > 20.0], tensor({21.0, 22.0, 23.0}, kCpu)));
  CHECK(equal(x.index({rows}), x[rows]));
  CHECK(equal(x.index({0, odd}), tensor({1.0, 3.0, 5.0, 7.0}, kCpu)));
  CHECK(equal(x.index({Slice{}, rows, -1}), index_select(select(x, 2, 1), 1, rows)));
  CHECK(equal(x.index({kEllipsis, tensor<std::int64_t>({1, 0}, kCpu)}), flip(x, {2})));
  CHECK(equal(x.index({rows, kEllipsis, Slice{1, 2}}), narrow(index_select(x, 0, rows), 2, 1, 1)));
  CHECK(x.index({kNewAxis, rows}).shape() == Shape{1, 2, 4, 2});
  // Tensors with a whole dimension between them stand in front; a number is no tensor.
  CHECK(x.index({rows, Slice{}, rows * 0}).shape() == Shape{2, 4});
  CHECK(x.index({1, Slice{}, rows * 0}).shape() == Shape{4, 2});
  CHECK(x[tensor<std::int64_t>({}, kCpu)].shape() == Shape{0, 4, 2});
  CHECK_THROWS_WITH_AS((void)x.index({0, x > 1.0}), doctest::Contains("index: 4 dimensions are indexed"), IndexError);
  CHECK_THROWS_AS((void)x[x[0] > 1.0], ShapeError);
  CHECK_THROWS_AS((void)x[rows + 1], IndexError);
  CHECK_THROWS_AS((void)x[x], DTypeError);
  CHECK_THROWS_AS((void)x[Tensor()], StateError);
  CHECK_THROWS_AS((void)x.index({0, Tensor()}), StateError);

  x.requires_grad_();
  backward((x.index({Slice{1, 3}, tensor<std::int64_t>({3, 3}, kCpu)}) * 2).sum());
  CHECK(x.grad().sum().item() == 2 * 2 * 2 * 2);
  CHECK(x.grad().index({1, 3, 0}).item() == 4);
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
  y = numbered({3}) + 5;
  y %= 4;
  CHECK(y.to_vector<double>() == std::vector<double>{1, 2, 3});
  y %= full({1}, 2.0, kCpu, DType::f64);
  CHECK(y.to_vector<double>() == std::vector<double>{1, 0, 1});
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
  CHECK(equal(x.cumprod(1), cumprod(x, 1)));
  CHECK(equal(x.max(), amax(x)));
  CHECK(equal(x.min(), amin(x)));
  CHECK(equal(x.median(), median(x)));
  CHECK(equal(x.median(2, yes).indices, median(x, 2, yes).indices));
  CHECK(equal(x.logsumexp({1}, yes), logsumexp(x, {1}, yes)));
  CHECK(equal(x.softmax(1), softmax(x, 1)));
  CHECK(equal(x.log_softmax(-1), log_softmax(x, -1)));
  CHECK(equal(x.unflatten(2, {2, -1}), reshape(x, {2, 3, 2, 2})));
  CHECK(equal(x.movedim({0}, {2}), movedim(x, {0}, {2})));
  CHECK(equal(x.diagonal(1, 0, 2), diagonal(x, 1, 0, 2)));
  CHECK(equal(x.repeat({2, 1, 1, 2}), repeat(x, {2, 1, 1, 2})));
  CHECK(equal(x.tile({2}), tile(x, {2})));
  CHECK(equal(x.flip({0, 2}), flip(x, {0, 2})));
  CHECK(equal(x.roll(1, 2), roll(x, 1, 2)));
  CHECK(equal(x.roll(5), roll(x, 5)));
  CHECK(equal(x.tril(1), tril(x, 1)));
  CHECK(equal(x.triu(-1), triu(x, -1)));
  const Tensor at = x.argsort(1, Order::descending), mask = x > 0;
  CHECK(equal(at, argsort(x, 1, Order::descending)));
  CHECK(equal(x.gather(1, at), gather(x, 1, at)));
  CHECK(equal(x.scatter(1, at, 2 * x), scatter(x, 1, at, 2 * x)));
  CHECK(equal(x.scatter_add(1, at, x), scatter_add(x, 1, at, x)));
  CHECK(equal(x.index_select(2, at[0][0]), index_select(x, 2, at[0][0])));
  CHECK(equal(x.sort(0).values, sort(x, 0).values));
  CHECK(equal(x.topk(2, 2).indices, topk(x, 2, 2).indices));
  CHECK(equal(x.topk(2, 2, Order::ascending).values, topk(x, 2, 2, Order::ascending).values));
  CHECK(equal(x.masked_fill(mask, 3), masked_fill(x, mask, 3)));
  CHECK(equal(x.masked_fill(mask, x.max()), masked_fill(x, mask, amax(x))));
  CHECK(equal(x.masked_select(mask), masked_select(x, mask)));
  CHECK(equal(mask.nonzero(), nonzero(mask)));
  CHECK(equal(x.matmul(x.transpose(1, 2)), matmul(x, transpose(x, 1, 2))));
  CHECK(equal(x.pow(3), pow(x, 3)));
  CHECK(equal(x.abs().pow(x), pow(abs(x), x)));
  CHECK(equal(x.clamp(-0.5, {}), clamp(x, -0.5, std::nullopt)));
}

TEST_CASE("members of one tensor are the functions of their names") {
  struct Pair {
    Tensor (Tensor::*member)() const;
    Tensor (*function)(const Tensor&);
  };
  const std::vector<Pair> pairs{
      {&Tensor::abs, abs},     {&Tensor::sign, sign},         {&Tensor::square, square},
      {&Tensor::sqrt, sqrt},   {&Tensor::rsqrt, rsqrt},       {&Tensor::reciprocal, reciprocal},
      {&Tensor::exp, exp},     {&Tensor::expm1, expm1},       {&Tensor::log, log},
      {&Tensor::log1p, log1p}, {&Tensor::log2, log2},         {&Tensor::sin, sin},
      {&Tensor::cos, cos},     {&Tensor::tanh, tanh},         {&Tensor::erf, erf},
      {&Tensor::floor, floor}, {&Tensor::ceil, ceil},         {&Tensor::round, round},
      {&Tensor::relu, relu},   {&Tensor::sigmoid, sigmoid},   {&Tensor::isnan, isnan},
      {&Tensor::isinf, isinf}, {&Tensor::isfinite, isfinite},
  };
  const Tensor x = tensor({0.3, 1.7, 2.2, 5.0}, kCpu);
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    CAPTURE(i);
    CHECK(equal((x.*pairs[i].member)(), pairs[i].function(x)));
  }
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
