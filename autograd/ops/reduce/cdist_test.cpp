#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/ops/samples.h"

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();
constexpr double kInf = std::numeric_limits<double>::infinity();

// Of x1 [batch..., P, M] and x2, whose batches broadcast.
Tensor distances(const Tensor& x1, const Tensor& x2, double p) {
  const Tensor a = unsqueeze(x1, -2), b = unsqueeze(x2, -3);
  const Shape whole = broadcast_shapes("", a.shape(), b.shape());
  const auto u = expand(a, whole).contiguous().to_vector<double>(),
             v = expand(b, whole).contiguous().to_vector<double>();
  const std::int64_t length = whole.back();
  const Shape shape = whole.removed(whole.rank() - 1);
  std::vector<double> y(static_cast<std::size_t>(shape.numel()));
  for (std::size_t i = 0; i < y.size(); ++i) {
    double sum = 0;
    for (std::size_t k = 0; k < static_cast<std::size_t>(length); ++k) {
      const double d = std::abs(u[i * std::size_t(length) + k] - v[i * std::size_t(length) + k]);
      sum = std::isinf(p) ? std::max(sum, d) : sum + (p == 0 ? double(d != 0) : std::pow(d, p));
    }
    y[i] = std::isinf(p) || p == 0 ? sum : std::pow(sum, 1 / p);
  }
  return from_data(std::span<const double>(y), shape, cpu);
}

Tensor doubles(std::initializer_list<double> v, const Shape& shape) {
  return from_data(std::vector<double>(v), shape, cpu);
}

void check_close(const Tensor& x, const std::vector<double>& expected) {
  const auto v = x.contiguous().to_vector<double>();
  REQUIRE(v.size() == expected.size());
  for (std::size_t i = 0; i < v.size(); ++i) CHECK(v[i] == doctest::Approx(expected[i]).epsilon(1e-12));
}

}  // namespace

LEVIN_OP_CASE(cdist) {
  OpCase c{.ops = {"cdist", "cdist_backward"}, .dtypes = kFloatDTypes, .ulps = 8, .sums = 70};
  const auto add = [&](const Shape& x1, const Shape& x2, double p) {
    const bool single = x1.numel() == 1;
    c.samples.push_back({.inputs = {real(x1), real(x2)},
                         .call = [=](const Tensors& in) { return Tensors{cdist(in[0], in[1], p)}; },
                         .reference = [=](const Tensors& in) { return Tensors{distances(in[0], in[1], p)}; },
                         .cancelled_terms = single ? 0.25 : 0});
  };
  for (const double p : {0.0, 0.5, 1.0, 2.0, 3.0, kInf}) {
    add({1, 1}, {1, 1}, p);
    add({5, 4}, {3, 4}, p);
    add({2, 1, 6, 3}, {4, 1, 3}, p);
    add({0, 3}, {2, 3}, p);
    add({3, 2}, {0, 2}, p);
    add({2, 3, 0}, {1, 2, 0}, p);
  }
  add({9, 67}, {35, 67}, 2);  // by products, and their gradients
  add({2, 27, 3}, {1, 4, 3}, 2);
  add({3, 21}, {33, 21}, 1.5);
  const auto refused = [&](const char* what, const Shape& x1, const Shape& x2, double p, auto is, const char* message) {
    c.errors.push_back({what, [=] { (void)cdist(zeros(x1, cpu), zeros(x2, cpu), p); }, is, message});
  };
  refused("rank of x1", {3}, {3, 3}, 2, throws<ShapeError>, "cdist: x1 has shape [3], expected [..., rows, length]");
  refused("rank of x2", {3, 3}, {}, 2, throws<ShapeError>, "cdist: x2 has shape [], expected [..., rows, length]");
  refused("length", {3, 2}, {3, 3}, 2, throws<ShapeError>,
          "cdist: x1 has shape [3, 2] and x2 [3, 3], expected rows of one length");
  refused("batches", {2, 3, 3}, {3, 3, 3}, 2, throws<ShapeError>, "cdist: ");
  for (const double p : {-1.0, std::nan("")}) refused("p", {3, 2}, {3, 2}, p, throws<ConfigError>, "cdist: p is ");
  c.errors.push_back({"dtypes",
                      [] {
                        (void)cdist(zeros({2, 2}, cpu), zeros({2, 2}, cpu, DType::f64));
                      },
                      throws<DTypeError>, "cdist: tensors are f32 and f64"});
  return c;
}

LEVIN_OP_CASE(pdist) {
  OpCase c{.ops = {"pdist", "pdist_backward"}, .dtypes = kFloatDTypes, .ulps = 8, .sums = 5};
  for (const double p : {0.0, 1.0, 2.0, 3.0, kInf}) {
    for (const Shape& s : {Shape{4, 5}, Shape{2, 1}, Shape{1, 3}, Shape{0, 3}, Shape{3, 0}, Shape{37, 3}}) {
      c.samples.push_back({.inputs = {real(s)},
                           .call = [=](const Tensors& in) { return Tensors{pdist(in[0], p)}; },
                           .reference =
                               [=](const Tensors& in) {
                                 const Tensor all = distances(in[0], in[0], p);
                                 const auto v = all.to_vector<double>();
                                 std::vector<double> y;
                                 for (std::int64_t i = 0; i < s[0]; ++i)
                                   for (std::int64_t j = i + 1; j < s[0]; ++j)
                                     y.push_back(v[static_cast<std::size_t>(i * s[0] + j)]);
                                 return Tensors{from_data(std::span<const double>(y), {std::int64_t(y.size())}, cpu)};
                               },
                           .cancelled_terms = s.back() == 1 ? 0.25 : 0});
    }
  }
  c.no_single = "a distance takes two rows";
  c.errors.push_back({"rank",
                      [] {
                        (void)pdist(zeros({2, 2, 2}, cpu));
                      },
                      throws<ShapeError>, "pdist: x has shape [2, 2, 2], expected [N, M]"});
  c.errors.push_back({"p", [] { (void)pdist(zeros({2, 2}, cpu), -0.5); }, throws<ConfigError>, "pdist: p is -0.5"});
  return c;
}

TEST_CASE("cdist gives PyTorch's distances and gradients for each p, also where rows and numbers are equal") {
  struct Case {
    double p;
    std::vector<double> y, g1, g2;
  };
  // torch.cdist(x1, x2, p, "donot_use_mm_for_euclid_dist"), and gradients for seeds g
  const Case cases[] = {
      {0.0, {2, 3, 3, 3, 2, 0}, {0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0, 0, 0, 0}},
      {0.5,
       {7.49165738677394, 12.3411021312761, 14.0556208691466, 6.62100924133356, 10.908326913196, 0},
       {-9.76904068814226, -6.62346835164919, 4.10654940260154, 3.49087472133351, -0.909739608441171,
        -3.94605868397474},
       {-0.742799279826744, 2.84515395513466, -1.42576192140695, -1.63717030913605, -1.43417235896272, 5.78683503026633,
        8.65813555577154, 6.12222636391842, -4.52156382748618}},
      {1.0,
       {3.75, 4.5, 5, 2.25, 5.5, 0},
       {-2.5, -2.5, 2.5, 1.75, -0.25, -1.75},
       {-0.25, 1.25, -0.75, -1, -0.5, 2, 2, 2, -2}},
      {1.5,
       {2.97968405932777, 3.35437345554875, 3.67566560083099, 1.58902636931615, 4.40143101788386, 0},
       {-1.33507863573389, -1.76255616569629, 2.30325029757552, 1.46070305838918, -0.140235981593201,
        -1.27079465358788},
       {-0.171753299240839, 0.959511333197197, -0.568038290680918, -0.857297217621156, -0.334356620936581,
        1.26551191158914, 0.903426094206707, 1.27763743502888, -1.72992926489586}},
      {2.0,
       {2.65753645318366, 2.95803989154981, 3.22102468168128, 1.34629120178363, 3.95284707521047, 0},
       {-0.888267442788058, -1.43041104913592, 2.2815203389496, 1.37255979109846, -0.0928476690885259,
        -1.03951030642251},
       {-0.139271503632789, 0.845424363795404, -0.472809269691466, -0.81071116010141, -0.253546276418555,
        0.938330393718314, 0.4656903154238, 0.931380630847599, -1.70753115655393}},
      {3.0,
       {2.37280498950733, 2.67424062061968, 2.90809273430659, 1.15651625229569, 3.57573053028708, 0},
       {-0.569993264662306, -1.08524899176372, 2.31492111967279, 1.34430077950163, -0.0467279293856843,
        -0.780830048957475},
       {-0.10513784111779, 0.757181820980862, -0.357029543209821, -0.802195516713953, -0.157308271801158,
        0.611397028281533, 0.133025842992424, 0.532103371969695, -1.78845855578703}},
      {kInf, {2, 2.5, 2.75, 1, 3.25, 0}, {-0.5, -1, 2, 1.5, 0, -0.25}, {0, 1, 0.25, -1, 0, 0, 0, 0, -2}},
  };
  const Tensor g = doubles({1, -0.5, 2, 0.25, 1.5, 3}, {2, 3});
  for (const Case& c : cases) {
    CAPTURE(c.p);
    Tensor x1 = doubles({0.5, -1, 2, 1.25, 0.5, -0.75}, {2, 3}),
           x2 = doubles({0.5, 1, 0.25, -2, 0.5, 1.5, 1.25, 0.5, -0.75}, {3, 3});
    x1.requires_grad_();
    x2.requires_grad_();
    const Tensor y = cdist(x1, x2, c.p);
    check_close(y, c.y);
    const Tensors grads = grad(Tensors{y}, Tensors{x1, x2}, Tensors{g});
    check_close(grads[0], c.g1);
    check_close(grads[1], c.g2);
  }
}

TEST_CASE("rows far from zero and close to each other keep their distance, and equal ones have none") {
  Generator gen(5);
  const Tensor x = randn({40, 70}, gen, cpu) * 0.01 + 100;
  const Tensor y = cdist(x, x), exact = cdist(x.to(DType::f64), x.to(DType::f64));
  CHECK(sum(abs(diagonal(y))).item() == 0);
  CHECK(amax(abs(y.to(DType::f64) - exact)).item() < 1e-6 * amax(exact).item());
}

TEST_CASE("rows in clusters far apart keep the digits of their distances, and gradients are those of f64") {
  Generator gen(6);
  const Tensor cluster = cast(randint(0, 4, {50, 1}, gen, cpu), DType::f32) * 100;
  Tensor x = randn({50, 40}, gen, cpu) + cluster, wide = x.to(DType::f64);
  const Tensor y = cdist(x, x), seed = randn({50, 50}, gen, cpu);
  const Tensor d = unsqueeze(wide, 1) - unsqueeze(wide, 0), exact = sqrt(sum(square(d), {2}));
  CHECK(amax(abs(y.to(DType::f64) - exact) / clamp(exact, 1.0, {})).item() < 1e-5);
  x.requires_grad_();
  const Tensor other = x.detach() + 0.5, y2 = cdist(x, other), wide_other = other.to(DType::f64);
  const Tensor gx = grad(Tensors{y2}, Tensors{x}, Tensors{seed})[0];
  const Tensor e = unsqueeze(wide, 1) - unsqueeze(wide_other, 0), length = sqrt(sum(square(e), {2}, KeepDim::yes));
  const Tensor expected = sum(unsqueeze(seed.to(DType::f64), 2) * e / length, {1});
  CHECK(amax(abs(gx.to(DType::f64) - expected)).item() < 1e-3);
}

TEST_CASE("a row of NaN or infinities among many spoils its own distances and gradients alone") {
  Generator gen(7);
  for (const double bad : {std::nan(""), kInf}) {
    const Tensor x = randn({40, 33}, gen, cpu), mask = eq(arange(40, cpu), 3);
    Tensor a = masked_fill(x, unsqueeze(mask, 1), bad);
    const Tensor y = cdist(a, x), plain = cdist(x, x);
    CHECK(amax(abs(masked_fill(y - plain, unsqueeze(mask, 1), 0))).item() < 1e-4);
    CHECK(all(eq(isfinite(y), unsqueeze(logical_not(mask), 1))).item() == 1);
    a.requires_grad_();
    backward(sum(cdist(a, x)));
    CHECK(all(eq(isfinite(a.grad()), unsqueeze(logical_not(mask), 1))).item() == 1);
  }
}

TEST_CASE("at p = infinity each of equal largest differences has the whole gradient") {
  Tensor x = doubles({2, 0, -2, 1}, {1, 4});
  x.requires_grad_();
  backward(sum(cdist(x, zeros({1, 4}, cpu, DType::f64), kInf)));
  CHECK(x.grad().to_vector<double>() == std::vector<double>{1, 0, -1, 0});
}

TEST_CASE("a NaN or a difference of equal infinities makes the distances of its row NaN, and those alone") {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const double p : {0.0, 0.5, 1.0, 2.0, 3.0, kInf}) {
      CAPTURE(p);
      const Tensor x1 = doubles({1, 2, std::nan(""), 1, kInf, 0}, {3, 2}).to(dtype),
                   x2 = doubles({1, 3, kInf, 5}, {2, 2}).to(dtype);
      const auto y = cdist(x1, x2, p).to(DType::f64).to_vector<double>();
      CHECK(y[0] == 1);
      CHECK(y[1] == (p == 0 ? 2 : kInf));
      CHECK(std::isnan(y[2]));
      CHECK(std::isnan(y[3]));
      CHECK(y[4] == (p == 0 ? 2 : kInf));
      CHECK(std::isnan(y[5]));
    }
  }
}

TEST_CASE("rows whose squares underflow have the gradient 0") {
  Tensor x = full({1, 2}, 1e-30, cpu);
  x.requires_grad_();
  const Tensor y = cdist(x, zeros({3, 2}, cpu));
  backward(sum(y));
  CHECK(equal(x.grad(), zeros({1, 2}, cpu)));
}

TEST_CASE("pdist lists the pairs in the order of their rows") {
  const Tensor x = tensor({0.0, 1.0, 3.0, 7.0}, cpu);
  CHECK(pdist(reshape(x, {4, 1})).to_vector<double>() == std::vector<double>{1, 3, 7, 2, 6, 4});
  Generator gen(8);
  const Tensor rows = randn({301, 2}, gen, cpu), at = triu_indices(301, 301, cpu, 1);
  const Tensor places = select(at, 0, 0) * 301 + select(at, 0, 1);
  CHECK(equal(pdist(rows), gather(flatten(cdist(rows, rows)), 0, places)));
}

}  // namespace levin::testing
