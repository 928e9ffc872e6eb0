// Samples of linear algebra for the conformance suite. References are sums and products of the results, or formulas of
// small matrices: factors are unique up to signs.
#include "levin/linalg.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "levin/autograd.h"
#include "tests/ops/samples.h"

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();
using namespace linalg;
constexpr double kInf = std::numeric_limits<double>::infinity();
using Values = std::vector<double>;

Tensor matrix(const Values& v, const Shape& s) { return from_data(v, s, cpu); }
Tensor turned(const Tensor& x) { return transpose(x, -2, -1); }

const std::vector<DType> kDTypes{DType::f32, DType::f64};
Tensor eye_like(const Tensor& x) { return eye(x.size(-1), x.device(), x.dtype()); }
// Far from singular.
Tensor regular(const Tensor& x) { return x + 4 * eye_like(x); }
// Symmetric and positive definite, with eigenvalues apart.
Tensor definite(const Tensor& x) {
  const Tensor apart = arange(x.size(-1), x.device()).to(x.dtype()) * 3 + 2;
  return matmul(x, turned(x)) + unsqueeze(apart, -1) * eye_like(x);
}
// With singular values apart.
Tensor spread(const Tensor& x) {
  const std::int64_t m = x.size(-2), n = x.size(-1);
  const Tensor apart = arange(m, x.device()).to(x.dtype()) * 3 + 4;
  return x + unsqueeze(apart, -1) * eye(m, n, x.device(), x.dtype());
}

// The determinant by its first row.
double by_rows(const std::vector<Values>& a) {
  if (a.empty()) return 1;
  double sum = 0;
  for (std::size_t j = 0; j < a.size(); ++j) {
    std::vector<Values> rest;
    for (std::size_t i = 1; i < a.size(); ++i) {
      Values row = a[i];
      row.erase(row.begin() + static_cast<std::ptrdiff_t>(j));
      rest.push_back(row);
    }
    sum += (j % 2 ? -1 : 1) * a[0][j] * by_rows(rest);
  }
  return sum;
}
Tensor determinants(const Tensor& a) {
  const std::int64_t n = a.size(-1);
  const auto size = static_cast<std::size_t>(n);
  const Tensor batch = reshape(a.detach(), {n == 0 ? 1 : a.numel() / (n * n), n, n});
  const Values all = batch.to_vector<double>();
  Values out;
  for (std::size_t b = 0; b < static_cast<std::size_t>(batch.size(0)); ++b) {
    std::vector<Values> rows;
    for (std::size_t i = 0; i < size; ++i) {
      const auto from = all.begin() + static_cast<std::ptrdiff_t>((b * size + i) * size);
      rows.emplace_back(from, from + static_cast<std::ptrdiff_t>(size));
    }
    out.push_back(by_rows(rows));
  }
  return from_data(out, a.shape().removed(a.rank() - 1).removed(a.rank() - 2), cpu);
}

OpCase factors(std::vector<std::string> ops, const std::function<Tensors(const Tensor&)>& call,
               const std::function<Tensors(const Tensor&)>& reference, const std::vector<Shape>& shapes) {
  OpCase c{.ops = std::move(ops),
           .dtypes = kDTypes,
           .ulps = 64,
           .sums = 30,
           .layout_changes_sums = true,
           .on_cpu_alone = true};
  for (const Shape& s : shapes) {
    c.samples.push_back({.inputs = {real(s, -1, 1)},
                         .call = [=](const Tensors& in) { return call(in[0]); },
                         .reference = [=](const Tensors& in) { return reference(in[0]); }});
  }
  return c;
}
void add_square_errors(OpCase& c, const std::string& op, const std::function<void(const Tensor&)>& call) {
  c.errors.push_back({"square",
                      [=] {
                        call(zeros({2, 3}, cpu));
                      },
                      throws<ShapeError>, op + ": a has shape [2, 3], expected square matrices"});
  c.errors.push_back({"rank", [=] { call(zeros({3}, cpu)); }, throws<ShapeError>, op + ": a has shape [3]"});
}
const std::vector<Shape> kSquares{{1, 1}, {3, 3}, {2, 4, 4}, {0, 3, 3}, {0, 0}, {2, 1, 2, 2}};

}  // namespace

LEVIN_OP_CASE(linalg_solve) {
  OpCase c{.ops = {"solve", "lu_factor"},
           .dtypes = kDTypes,
           .ulps = 64,
           .sums = 10,
           .layout_changes_sums = true,
           .on_cpu_alone = true};
  struct Pair {
    Shape a, x, b;  // x: of the result
  };
  // b is made of x, the reference.
  for (const Pair& s : {Pair{{3, 3}, {3, 2}, {}},
                        {{1, 1}, {1, 1}, {}},
                        {{2, 3, 3}, {2, 3, 1}, {}},
                        {{3, 3}, {2, 3, 2}, {}},
                        {{2, 1, 2, 2}, {3, 2, 1}, {}},
                        {{0, 2, 2}, {0, 2, 1}, {}}}) {
    c.samples.push_back({.inputs = {real(s.a, -1, 1), real(s.x)},
                         .call =
                             [](const Tensors& in) {
                               const Tensor a = regular(in[0]);
                               return Tensors{linalg::solve(a, matmul(a, in[1]))};
                             },
                         .reference =
                             [](const Tensors& in) {
                               const Shape whole = broadcast_shapes(
                                   "", in[0].shape().with(in[0].rank() - 1, in[1].size(-1)), in[1].shape());
                               return Tensors{expand(in[1], whole)};
                             },
                         .gradcheck = false});
    c.samples.push_back({.inputs = {real(s.a, -1, 1), real(s.x)},
                         .call = [](const Tensors& in) { return Tensors{linalg::solve(regular(in[0]), in[1])}; },
                         .reference =
                             [](const Tensors& in) {
                               const Tensor x = linalg::solve(regular(in[0]), in[1]);
                               REQUIRE(allclose(matmul(regular(in[0]), x), expand(in[1], x.shape()), 1e-10, 1e-12));
                               return Tensors{x};
                             }});
  }
  for (const auto& [a, b] : {std::pair{Shape{3, 3}, Shape{3}}, {Shape{2, 3, 3}, Shape{2, 3}}}) {
    c.samples.push_back({.inputs = {real(a, -1, 1), real(b)},
                         .call = [](const Tensors& in) { return Tensors{linalg::solve(regular(in[0]), in[1])}; },
                         .reference =
                             [](const Tensors& in) {
                               return Tensors{squeeze(matmul(inv(regular(in[0])), unsqueeze(in[1], -1)), {-1})};
                             }});
  }
  add_square_errors(c, "solve", [](const Tensor& a) { (void)linalg::solve(a, a); });
  c.errors.push_back({"singular",
                      [] {
                        (void)linalg::solve(matrix({1, 0, 0, 1, 1, 2, 2, 4}, {2, 2, 2}), ones({2}, cpu, DType::f64));
                      },
                      throws<ConfigError>, "solve: matrix 1 of the batch is singular"});
  c.errors.push_back({"b",
                      [] {
                        (void)linalg::solve(zeros({3, 3}, cpu), zeros({2, 2}, cpu));
                      },
                      throws<ShapeError>, "solve: a has shape [3, 3] and b [2, 2]"});
  return c;
}

LEVIN_OP_CASE(linalg_solve_triangular) {
  OpCase c{.ops = {"solve_triangular"},
           .dtypes = kDTypes,
           .ulps = 64,
           .sums = 30,
           .layout_changes_sums = true,
           .on_cpu_alone = true};
  const auto triangle = [](const Tensor& a, Triangular options) {
    const std::int64_t skipped = options.unitriangular ? 1 : 0;
    const Tensor part = options.upper ? triu(a, skipped) : tril(a, -skipped);
    return options.unitriangular ? part + eye_like(a) : part;
  };
  struct Pair {
    Shape a, b;
  };
  for (const bool upper : {false, true}) {
    for (const bool left : {true, false}) {
      for (const bool unitriangular : {false, true}) {
        const Triangular options{upper, left, unitriangular};
        for (const Pair& s : {Pair{{1, 1}, {1, 1}}, {{3, 3}, {3, 3}}, {{2, 1, 2, 2}, {3, 2, 2}}, {{0, 2, 2}, {2, 2}}}) {
          c.samples.push_back(
              {.inputs = {real(s.a, -1, 1), real(s.b)},
               .call =
                   [=](const Tensors& in) { return Tensors{linalg::solve_triangular(regular(in[0]), in[1], options)}; },
               .reference =
                   [=](const Tensors& in) {
                     const Tensor a = triangle(regular(in[0]), options);
                     return Tensors{left ? matmul(inv(a), in[1]) : matmul(in[1], inv(a))};
                   }});
        }
      }
    }
  }
  const Pair one_column{{2, 4, 4}, {2, 4, 1}}, one_row{{4, 4}, {1, 4}}, none{{0, 0}, {0, 2}};
  for (const auto& [s, left] : {std::pair{one_column, true}, {one_row, false}, {none, true}}) {
    c.samples.push_back({.inputs = {real(s.a, -1, 1), real(s.b)},
                         .call =
                             [left](const Tensors& in) {
                               const Triangular options{.upper = true, .left = left};
                               return Tensors{linalg::solve_triangular(regular(in[0]), in[1], options)};
                             },
                         .reference =
                             [left](const Tensors& in) {
                               const Tensor a = inv(triu(regular(in[0])));
                               return Tensors{left ? matmul(a, in[1]) : matmul(in[1], a)};
                             }});
  }
  add_square_errors(c, "solve_triangular",
                    [](const Tensor& a) { (void)linalg::solve_triangular(a, a, {.upper = true}); });
  c.errors.push_back(
      {"b",
       [] {
         (void)linalg::solve_triangular(zeros({3, 3}, cpu), zeros({3, 2}, cpu), {.upper = true, .left = false});
       },
       throws<ShapeError>, "solve_triangular: a has shape [3, 3] and b [3, 2], expected [..., n, n] and [..., k, n]"});
  return c;
}

LEVIN_OP_CASE(linalg_inv) {
  OpCase c = factors(
      {"inv"},
      [](const Tensor& x) {
        return Tensors{matmul(inv(regular(x)), regular(x)), inv(regular(x))};
      },
      [](const Tensor& x) {
        return Tensors{expand(eye_like(x), x.shape()), inv(regular(x))};
      },
      kSquares);
  add_square_errors(c, "inv", [](const Tensor& a) { (void)inv(a); });
  c.errors.push_back({"singular",
                      [] {
                        (void)inv(matrix({1, 0, 0, 1, 1, 2, 2, 4}, {2, 2, 2}));
                      },
                      throws<ConfigError>, "inv: matrix 1 of the batch is singular"});
  return c;
}

LEVIN_OP_CASE(linalg_det) {
  OpCase c = factors(
      {"det"}, [](const Tensor& x) { return Tensors{det(x)}; },
      [](const Tensor& x) { return Tensors{determinants(x)}; }, kSquares);
  add_square_errors(c, "det", [](const Tensor& a) { (void)det(a); });
  return c;
}

LEVIN_OP_CASE(linalg_slogdet) {
  OpCase c = factors(
      {"slogdet"},
      [](const Tensor& x) {
        const SlogDet y = slogdet(neg(regular(x)));
        return Tensors{y.sign, y.logabsdet};
      },
      [](const Tensor& x) {
        const Tensor d = determinants(neg(regular(x)));
        return Tensors{sign(d), log(abs(d))};
      },
      kSquares);
  add_square_errors(c, "slogdet", [](const Tensor& a) { (void)slogdet(a); });
  return c;
}

LEVIN_OP_CASE(linalg_cholesky) {
  OpCase c = factors(
      {"cholesky"},
      [](const Tensor& x) {
        const Tensor l = cholesky(definite(x));
        return Tensors{matmul(l, turned(l)), triu(l, 1), l};
      },
      [](const Tensor& x) {
        return Tensors{definite(x), zeros(x.shape(), cpu, DType::f64), cholesky(definite(x))};
      },
      kSquares);
  add_square_errors(c, "cholesky", [](const Tensor& a) { (void)cholesky(a); });
  c.errors.push_back({"definite",
                      [] {
                        (void)cholesky(matrix({1, 2, 2, 1}, {2, 2}));
                      },
                      throws<ConfigError>, "cholesky: matrix 0 of the batch is not positive definite"});
  return c;
}

LEVIN_OP_CASE(linalg_qr) {
  OpCase c = factors(
      {"qr"},
      [](const Tensor& x) {
        const Qr f = qr(spread(x));
        return Tensors{matmul(f.q, f.r), matmul(turned(f.q), f.q), tril(f.r, -1), f.r};
      },
      [](const Tensor& x) {
        const Qr f = qr(spread(x));
        return Tensors{spread(x), expand(eye(f.q.size(-1), cpu, DType::f64), matmul(turned(f.q), f.q).shape()),
                       zeros(f.r.shape(), cpu, DType::f64), f.r};
      },
      {{1, 1}, {3, 3}, {4, 2}, {2, 4}, {2, 3, 2}, {0, 2, 2}, {3, 0}});
  c.errors.push_back({"rank", [] { (void)qr(zeros({3}, cpu)); }, throws<ShapeError>,
                      "qr: a has shape [3], expected matrices [..., m, n]"});
  return c;
}

LEVIN_OP_CASE(linalg_eigh) {
  OpCase c = factors(
      {"eigh"},
      [](const Tensor& x) {
        const Eigh f = eigh(definite(x));
        const Tensor v = f.eigenvectors;
        return Tensors{matmul(v * unsqueeze(f.eigenvalues, -2), turned(v)), matmul(turned(v), v), f.eigenvalues,
                       square(v)};
      },
      [](const Tensor& x) {
        const Eigh f = eigh(definite(x));
        return Tensors{definite(x), expand(eye_like(x), x.shape()), f.eigenvalues, square(f.eigenvectors)};
      },
      kSquares);
  add_square_errors(c, "eigh", [](const Tensor& a) { (void)eigh(a); });
  return c;
}

LEVIN_OP_CASE(linalg_svd) {
  OpCase c = factors(
      {"svd"},
      [](const Tensor& x) {
        const Svd f = svd(spread(x));
        return Tensors{matmul(f.u * unsqueeze(f.s, -2), f.vh),
                       matmul(turned(f.u), f.u),
                       matmul(f.vh, turned(f.vh)),
                       f.s,
                       square(f.u),
                       square(f.vh)};
      },
      [](const Tensor& x) {
        const Svd f = svd(spread(x));
        const Tensor one = expand(eye(f.s.size(-1), cpu, DType::f64), matmul(turned(f.u), f.u).shape());
        return Tensors{spread(x), one, one, f.s, square(f.u), square(f.vh)};
      },
      {{1, 1}, {3, 3}, {4, 2}, {2, 4}, {2, 3, 2}, {0, 2, 2}, {3, 0}});
  c.errors.push_back({"rank", [] { (void)svd(zeros({3}, cpu)); }, throws<ShapeError>,
                      "svd: a has shape [3], expected matrices [..., m, n]"});
  c.errors.push_back({"finite",
                      [] {
                        (void)svd(full({2, 2}, kInf, cpu));
                      },
                      throws<ConfigError>, "svd: matrix 0 of the batch has no singular values"});
  return c;
}

LEVIN_OP_CASE(linalg_pinv) {
  // Of full rank: (a^T a)^-1 a^T, or a^T (a a^T)^-1.
  const auto by_inverse = [](const Tensor& a) {
    const Tensor h = turned(a);
    return a.size(-2) >= a.size(-1) ? matmul(inv(matmul(h, a)), h) : matmul(h, inv(matmul(a, h)));
  };
  OpCase c = factors(
      {"pinv"},
      [](const Tensor& x) {
        const Tensor a = spread(x), p = pinv(a);
        return Tensors{matmul(a, matmul(p, a)), p};
      },
      [=](const Tensor& x) {
        return Tensors{spread(x), by_inverse(spread(x))};
      },
      {{1, 1}, {3, 3}, {4, 2}, {2, 4}, {2, 3, 2}, {0, 2, 2}, {3, 0}});
  c.errors.push_back({"rank", [] { (void)pinv(zeros({3}, cpu)); }, throws<ShapeError>,
                      "pinv: a has shape [3], expected matrices [..., m, n]"});
  c.errors.push_back({"rtol",
                      [] {
                        (void)pinv(zeros({2, 2}, cpu), -1);
                      },
                      throws<ConfigError>, "pinv: rtol is -1, expected 0 or more"});
  return c;
}

TEST_CASE("pinv of a matrix without full rank inverts what is left, with the derivative of matrices of its rank") {
  const auto close = [](const Tensor& a, const Tensor& b) { return allclose(a, b, 1e-10, 1e-11); };
  CHECK(close(pinv(matrix({2, 0, 0, 0}, {2, 2})), matrix({0.5, 0, 0, 0}, {2, 2})));
  CHECK(close(pinv(zeros({2, 3}, cpu, DType::f64)), zeros({3, 2}, cpu, DType::f64)));
  CHECK(close(pinv(matrix({1, 0, 0, 1e-3}, {2, 2}), 1e-2), matrix({1, 0, 0, 0}, {2, 2})));
  CHECK(close(pinv(matrix({1, 0, 0, 1e-3}, {2, 2}), 1e-4), matrix({1, 0, 0, 1e3}, {2, 2})));
  CHECK(pinv(zeros({2, 0, 3}, cpu)).shape() == Shape{2, 3, 0});
  // b c of rank 2 has the pseudoinverse c^T (c c^T)^-1 (b^T b)^-1 b^T, with the same gradients in b and c.
  Generator generator(1);
  for (const auto& [m, n] : {std::pair{5, 4}, {4, 5}}) {
    Tensor b = randn({m, 2}, generator, cpu, DType::f64), c = randn({2, n}, generator, cpu, DType::f64);
    const Tensor weight = randn({n, m}, generator, cpu, DType::f64);
    b.requires_grad_(), c.requires_grad_();
    const Tensor p = pinv(matmul(b, c), 1e-10);
    const Tensor want =
        matmul(matmul(turned(c), inv(matmul(c, turned(c)))), matmul(inv(matmul(turned(b), b)), turned(b)));
    CHECK(close(p, want));
    const Tensors g = grad(Tensors{sum(p * weight)}, Tensors{b, c}),
                  expected = grad(Tensors{sum(want * weight)}, Tensors{b, c});
    CHECK(allclose(g[0], expected[0], 1e-7, 1e-8));
    CHECK(allclose(g[1], expected[1], 1e-7, 1e-8));
  }
  // Equal singular values, between which the derivative of svd would divide.
  Tensor one = eye(3, cpu, DType::f64) * 2;
  one.requires_grad_();
  CHECK(close(grad(Tensors{sum(pinv(one))}, Tensors{one})[0], full({3, 3}, -0.25, cpu, DType::f64)));
}

TEST_CASE("lstsq is the least squares solution, of matrices and vectors, with its derivative") {
  const auto close = [](const Tensor& a, const Tensor& b) { return allclose(a, b, 1e-9, 1e-10); };
  // The line through (0, 1), (1, 3), (2, 4), (3, 4): 1.5 + x.
  CHECK(close(lstsq(matrix({1, 0, 1, 1, 1, 2, 1, 3}, {4, 2}), matrix({1, 3, 4, 4}, {4})), matrix({1.5, 1}, {2})));
  Generator generator(2);
  Tensor a = randn({2, 5, 3}, generator, cpu, DType::f64), b = randn({5, 2}, generator, cpu, DType::f64);
  a.requires_grad_(), b.requires_grad_();
  const Tensor x = lstsq(a, b), want = linalg::solve(matmul(turned(a), a), matmul(turned(a), b));
  CHECK(x.shape() == Shape{2, 3, 2});
  CHECK(close(x, want));
  const Tensor weight = randn({2, 3, 2}, generator, cpu, DType::f64);
  const Tensors g = grad(Tensors{sum(x * weight)}, Tensors{a, b}),
                expected = grad(Tensors{sum(want * weight)}, Tensors{a, b});
  CHECK(close(g[0], expected[0]));
  CHECK(close(g[1], expected[1]));
  CHECK(lstsq(a, zeros({2, 5}, cpu, DType::f64)).shape() == Shape{2, 3});
  CHECK(lstsq(zeros({0, 3, 2}, cpu), zeros({3, 1}, cpu)).shape() == Shape{0, 2, 1});
  CHECK(lstsq(zeros({3, 0}, cpu), zeros({3, 2}, cpu)).shape() == Shape{0, 2});
  CHECK_THROWS_WITH_AS((void)lstsq(zeros({2, 3}, cpu), zeros({2, 1}, cpu)),
                       doctest::Contains("lstsq: a has shape [2, 3], expected at least as many rows"), ShapeError);
  CHECK_THROWS_WITH_AS((void)lstsq(zeros({3, 2}, cpu), zeros({2, 1}, cpu)),
                       doctest::Contains("lstsq: a has shape [3, 2] and b [2, 1]"), ShapeError);
  CHECK_THROWS_AS((void)lstsq(zeros({3}, cpu), zeros({3}, cpu)), ShapeError);
  CHECK_THROWS_AS((void)lstsq(a, b.detach().to(DType::f32)), DTypeError);
}

TEST_CASE("factors of known matrices, and determinants of singular ones with their derivative") {
  const auto close = [](const Tensor& a, const Tensor& b) { return allclose(a, b, 1e-12, 1e-12); };
  CHECK(close(cholesky(matrix({4, 99, 2, 5}, {2, 2})), matrix({2, 0, 1, 2}, {2, 2})));
  CHECK(close(eigh(matrix({2, 99, 1, 2}, {2, 2})).eigenvalues, matrix({1, 3}, {2})));
  CHECK(close(svd(matrix({0, -3, 2, 0}, {2, 2})).s, matrix({3, 2}, {2})));
  CHECK(close(inv(matrix({1, 2, 3, 4}, {2, 2})), matrix({-2, 1, 1.5, -0.5}, {2, 2})));
  const SlogDet singular = slogdet(matrix({1, 2, 2, 4}, {2, 2}));
  CHECK(singular.sign.item() == 0);
  CHECK(singular.logabsdet.item() == -kInf);
  CHECK(det(zeros({0, 0}, cpu)).item() == 1);
  // Rows in another order: one exchange, a cycle of three, and both.
  const Tensor two = matrix({0, 1, 1, 0}, {2, 2}), three = matrix({0, 1, 0, 0, 0, 1, 1, 0, 0}, {3, 3});
  const Tensor five = matrix({0, 0, 2, 0, 0, 3, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 1, 0}, {5, 5});
  CHECK(det(two).item() == -1);
  CHECK(det(three).item() == 1);
  CHECK(det(five).item() == -210);
  CHECK(slogdet(two).sign.item() == -1);
  CHECK(slogdet(three).sign.item() == 1);
  CHECK(slogdet(five).sign.item() == -1);
  // Cofactors: of rank n - 1, and of rank n - 2, where all are 0.
  Tensor a = matrix({1, 2, 2, 4}, {2, 2}), none = zeros({3, 3}, cpu, DType::f64);
  a.requires_grad_();
  none.requires_grad_();
  backward(det(a));
  backward(det(none));
  CHECK(close(a.grad(), matrix({4, -2, -2, 1}, {2, 2})));
  CHECK(close(none.grad(), zeros({3, 3}, cpu, DType::f64)));
}

TEST_CASE("a triangle with a 0 on its diagonal gives infinities") {
  const Tensor x = linalg::solve_triangular(matrix({1, 0, 5, 0}, {2, 2}), matrix({1, 9}, {2, 1}), {.upper = false});
  CHECK(x.to_vector<double>() == Values{1, kInf});
}

TEST_CASE("large matrices are factorised and solved to the precision of their dtype") {
  for (const DType dtype : kDTypes) {
    const double near = dtype == DType::f32 ? 2e-5 : 1e-13;
    Generator generator(1);
    const Tensor a = randn({150, 150}, generator, cpu, dtype), b = randn({150, 33}, generator, cpu, dtype);
    const auto close = [&](const Tensor& x, const Tensor& y) {
      return amax(abs(x - y)).item() <= near * amax(abs(y)).item() * 20;
    };
    CHECK(close(matmul(a, linalg::solve(a, b)), b));
    const Tensor positive = matmul(a, turned(a)) + 150 * eye_like(a), l = cholesky(positive);
    CHECK(close(matmul(l, turned(l)), positive));
    CHECK(close(matmul(l, linalg::solve_triangular(l, b, {.upper = false})), b));
    for (const Tensor& x : {a, narrow(a, 1, 0, 70), narrow(a, 0, 0, 70)}) {
      const Qr f = qr(x);
      CHECK(close(matmul(f.q, f.r), x));
    }
    const Eigh w = eigh(positive);
    CHECK(close(matmul(w.eigenvectors * unsqueeze(w.eigenvalues, -2), turned(w.eigenvectors)), positive));
    const Svd s = svd(a);
    CHECK(close(matmul(s.u * unsqueeze(s.s, -2), s.vh), a));
  }
}

TEST_CASE("the gradient of singular values alone is finite where values are equal") {
  Tensor a = eye(3, cpu, DType::f64) * 2;
  a.requires_grad_();
  backward(sum(svd(a).s));
  CHECK(allclose(a.grad(), eye(3, cpu, DType::f64), 1e-12, 1e-12));
  Tensor b = eye(3, cpu, DType::f64) * 2;
  b.requires_grad_();
  backward(sum(eigh(b).eigenvalues));
  CHECK(allclose(b.grad(), eye(3, cpu, DType::f64), 1e-12, 1e-12));
}

TEST_CASE("linear algebra of 16 bits is refused by the name of the function") {
  CHECK_THROWS_WITH_AS((void)inv(zeros({2, 2}, cpu, DType::f16)), doctest::Contains("inv: f16 on cpu; has f32, f64"),
                       UnsupportedError);
}

}  // namespace levin::testing
