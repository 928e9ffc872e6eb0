// Samples of scans for the conformance suite, and what they make of zeros, ties, infinities and NaN.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "autograd/ops/pointwise/plain_test.h"
#include "tests/device.h"
#include "tests/ops/samples.h"

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();
constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();
using Values = std::vector<double>;

struct Along {
  Shape shape;
  int dim;
};
// Long lines take several threads, tiles and chunks of a device.
const Along kAlong[] = {{{4, 5}, 0}, {{4, 5}, 1}, {{2, 3, 2}, 1}, {{1}, 0},     {{0, 3}, 1},
                        {{2, 0}, 1}, {{2, 9}, 1}, {{3, 700}, 1},  {{300, 2}, 0}};

// Elements of each line joined one by one: f(what stands before, the element, its place).
struct Step {
  double value, place;
};
Tensors scanned(const Tensor& t, int dim, const std::function<Step(const Step&, double, double)>& f) {
  const Plain x(t);
  Plain values(x.shape), places(x.shape);
  values.each([&](const At& at) {
    const double k = static_cast<double>(at[static_cast<std::size_t>(dim)]);
    const At before = with(at, dim, k - 1);
    const Step step = k == 0 ? Step{x(at), 0} : f({values(before), places(before)}, x(at), k);
    values(at) = step.value;
    places(at) = step.place;
  });
  return {values.tensor(), places.tensor(DType::i64)};
}
double log_sum(double a, double b) {
  const double high = std::max(a, b);
  return std::isinf(high) ? high : high + std::log1p(std::exp(std::min(a, b) - high));
}

OpCase scans(const char* op, std::vector<DType> dtypes, double low, double high,
             const std::function<Tensors(const Tensor&, std::int64_t)>& call, bool places,
             const std::function<Step(const Step&, double, double)>& f) {
  OpCase c{.ops = {op}, .dtypes = std::move(dtypes), .sums = 10};
  for (const Along& s : kAlong) {
    c.samples.push_back({.inputs = {real(s.shape, low, high)},
                         .call = [=](const Tensors& in) { return call(in[0], s.dim - s.shape.rank()); },
                         .reference =
                             [=](const Tensors& in) {
                               Tensors y = scanned(in[0], s.dim, f);
                               if (!places) y.pop_back();
                               return y;
                             }});
  }
  c.errors.push_back(
      {"dim", [=] { (void)call(zeros({3}, cpu), 1); }, throws<IndexError>, std::string(op) + ": dimension is 1"});
  return c;
}
Tensors both(const ValuesIndices& y) { return {y.values, y.indices}; }

Tensor leaf(const Values& v, DType dtype = DType::f64) {
  Tensor x = from_data(v, {static_cast<std::int64_t>(v.size())}, cpu).to(dtype);
  x.requires_grad_();
  return x;
}
Values values(const Tensor& x) { return x.detach().to(DType::f64).to_vector<double>(); }

}  // namespace

LEVIN_OP_CASE(cumprod) {
  OpCase c = scans(
      "cumprod", kFloatDTypes, 0.9, 1.1, [](const Tensor& x, std::int64_t d) { return Tensors{cumprod(x, d)}; }, false,
      [](const Step& before, double v, double) {
        return Step{before.value * v, 0};
      });
  c.dtypes = kComputedDTypes;
  c.ops = {"cumprod", "cumprod_backward"};
  return c;
}

LEVIN_OP_CASE(logcumsumexp) {
  return scans(
      "logcumsumexp", kFloatDTypes, -3, 3, [](const Tensor& x, std::int64_t d) { return Tensors{logcumsumexp(x, d)}; },
      false,
      [](const Step& before, double v, double) {
        return Step{log_sum(before.value, v), 0};
      });
}

LEVIN_OP_CASE(cummax) {
  return scans(
      "cummax", kComputedDTypes, -50, 50, [](const Tensor& x, std::int64_t d) { return both(cummax(x, d)); }, true,
      [](const Step& before, double v, double k) {
        return v >= before.value ? Step{v, k} : before;
      });
}
LEVIN_OP_CASE(cummin) {
  return scans(
      "cummin", kComputedDTypes, -50, 50, [](const Tensor& x, std::int64_t d) { return both(cummin(x, d)); }, true,
      [](const Step& before, double v, double k) {
        return v <= before.value ? Step{v, k} : before;
      });
}

TEST_CASE("derivatives of cumprod are right where elements are zero, to the second order") {
  for (const Values& v : {Values{2, 0, 3, 4}, Values{0, 0, 3, 4}, Values{2, 3, 0, 0, 5}, Values{0}}) {
    const GradcheckFn f = [](std::span<const Tensor> x) { return Tensors{cumprod(x[0], 0)}; };
    Generator generator(3);
    CHECK(gradcheck(f, std::array{leaf(v)}).ok);
    CHECK(gradgradcheck(f, std::array{leaf(v)}, generator).ok);
  }
  const Tensor x = leaf({2, 0, 3, 4});
  backward(sum(cumprod(x, 0)));
  CHECK(values(x.grad()) == Values{1, 2 * (1 + 3 + 12), 0, 0});
}

TEST_CASE("a scan lets NaN win, keeps infinities, and takes the last of equal elements") {
  const Values v{1, 3, 3, kNan, 7, kNan, kInf};
  const auto at = [](const ValuesIndices& y) { return y.indices.to_vector<std::int64_t>(); };
  using Places = std::vector<std::int64_t>;
  const Tensor x = leaf(v);
  CHECK(at(cummax(x, 0)) == Places{0, 1, 2, 3, 3, 5, 5});
  CHECK(std::isnan(values(cummax(x, 0).values)[4]));
  CHECK(at(cummin(leaf({3, -kInf, kNan, -kInf}), 0)) == Places{0, 1, 2, 2});
  CHECK(at(cummin(leaf({3, 3, -kInf, -kInf}), 0)) == Places{0, 1, 2, 3});
  CHECK(values(logcumsumexp(leaf({-kInf, -kInf, 0, kInf, 5}), 0)) == Values{-kInf, -kInf, 0, kInf, kInf});
  CHECK(std::isnan(values(logcumsumexp(leaf({0, kNan, 0}), 0))[2]));
  CHECK(values(logcumsumexp(leaf({1000, 1000}), 0))[1] == doctest::Approx(1000 + std::log(2.0)));
  CHECK(values(logcumsumexp(leaf({-1000, -1000}), 0))[1] == doctest::Approx(-1000 + std::log(2.0)));
  // The gradient at leading -inf is 0, and what follows is as if they were absent.
  const Tensor low = leaf({-kInf, -kInf, 1, 2}), rest = leaf({1, 2});
  backward(sum(logcumsumexp(low, 0) * tensor<double>({0, 0, 3, 5}, cpu)));
  backward(sum(logcumsumexp(rest, 0) * tensor<double>({3, 5}, cpu)));
  const Values g = values(low.grad()), h = values(rest.grad());
  CHECK(g[0] == 0);
  CHECK(g[1] == 0);
  CHECK(g[2] == doctest::Approx(h[0]));
  CHECK(g[3] == doctest::Approx(h[1]));
}

TEST_CASE("the second derivative of logcumsumexp is right where its cotangent is zero") {
  const Tensor x = leaf({0.3, -0.2, 0.5});
  Tensor gy = leaf({0, 1, 0});
  const Tensor first = grad(std::array{logcumsumexp(x, 0)}, std::array{x}, std::array{gy}, {.create_graph = true})[0];
  const Values slope = values(grad(sum(first), std::array{gy})[0]);
  for (const double s : slope) CHECK(s == doctest::Approx(1));  // sum over k of e^(x[k] - y[i])
}

TEST_CASE("scans of long lines are the same on a device as on the CPU") {
  DEVICE_OR_SKIP();
  Generator generator(5);
  for (const Along& s : {Along{{40'000}, 0}, {{3, 5'000}, 1}, {{5'000, 40}, 0}}) {
    const Tensor x = rand(s.shape, generator, cpu, DType::f64) + 0.5;
    const auto close = [&](const Tensor& a, const Tensor& b) { return allclose(a.to(cpu), b, 1e-9, 1e-9); };
    const Tensor there = x.to(device), whole = floor(x * 40), whole_there = whole.to(device);
    CHECK(close(logcumsumexp(there, s.dim), logcumsumexp(x, s.dim)));
    CHECK(close(log(cumprod(there * 0.999, s.dim) + 1e-300), log(cumprod(x * 0.999, s.dim) + 1e-300)));
    CHECK(equal(cummax(whole_there, s.dim).indices.to(cpu), cummax(whole, s.dim).indices));
    CHECK(equal(cummin(whole_there, s.dim).indices.to(cpu), cummin(whole, s.dim).indices));
    CHECK(equal(cummin(whole_there, s.dim).values.to(cpu), cummin(whole, s.dim).values));
  }
}

}  // namespace levin::testing
