// Apart from the other distributions: a program that uses those alone is linked without linear algebra.
#include <cmath>
#include <numbers>
#include <vector>

#include "autograd/autocast.h"
#include "levin/autograd.h"
#include "levin/distributions.h"
#include "levin/linalg.h"

namespace levin::distributions {
namespace {

constexpr const char* kOp = "MultivariateNormal";

// The parameters after their checks, both with the distribution's shape in front.
struct Parts {
  Tensor loc, l;
  Shape batch;
  std::int64_t n;

  explicit Parts(const MultivariateNormal& d) {
    check_float(kOp, d.loc);
    check_dtypes_meet(kOp, d.loc, d.scale_tril);
    check_same_device(kOp, d.loc, d.scale_tril);
    const Shape& of_loc = d.loc.shape();
    const Shape& of_l = d.scale_tril.shape();
    if (of_loc.rank() < 1 || of_l.rank() < 2 || of_l[of_l.rank() - 1] != of_loc[of_loc.rank() - 1] ||
        of_l[of_l.rank() - 2] != of_loc[of_loc.rank() - 1]) {
      fail<ShapeError>(kOp, ": loc has shape ", of_loc, ", scale_tril ", of_l, ", expected [..., n] and [..., n, n]");
    }
    n = of_loc[of_loc.rank() - 1];
    const Shape matrices = of_l.removed(of_l.rank() - 1);
    batch = broadcast_shapes(kOp, of_loc.removed(of_loc.rank() - 1), matrices.removed(matrices.rank() - 1));
    loc = expand(d.loc, vectors(batch));
    l = expand(tril(d.scale_tril), vectors(vectors(batch)));
  }
  [[nodiscard]] Shape vectors(const Shape& of) const { return of.inserted(of.rank(), n); }
  [[nodiscard]] Tensor half_log_det() const { return sum(log(diagonal(l, 0, -2, -1)), {-1}); }
};

// The squared length of l^-1 v, of vectors v.
Tensor squared_distance(const Tensor& l, const Tensor& v) {
  return sum(square(linalg::solve_triangular(l, unsqueeze(v, -1), {.upper = false})), {-2, -1});
}

}  // namespace

MultivariateNormal MultivariateNormal::of_covariance(const Tensor& loc, const Tensor& covariance) {
  return {loc, linalg::cholesky(covariance)};
}
Tensor MultivariateNormal::covariance() const {
  const Parts p(*this);
  return matmul(p.l, transpose(p.l, -2, -1));
}
Tensor MultivariateNormal::sample(Generator& generator, const Shape& shape) const {
  const NoGrad off;
  return rsample(generator, shape).detach();
}
Tensor MultivariateNormal::rsample(Generator& generator, const Shape& shape) const {
  const Parts p(*this);
  std::vector<std::int64_t> sizes(shape.begin(), shape.end());
  sizes.insert(sizes.end(), p.loc.shape().begin(), p.loc.shape().end());
  const Tensor drawn = randn(Shape(std::span<const std::int64_t>(sizes)), generator, p.loc.device(), p.loc.dtype());
  return p.loc + squeeze(matmul(p.l, unsqueeze(drawn, -1)), {-1});
}
Tensor MultivariateNormal::log_prob(const Tensor& x) const {
  const Parts p(*this);
  check_defined(kOp, x);
  if (x.rank() < 1 || x.size(-1) != p.n)
    fail<ShapeError>(kOp, ": values have shape ", x.shape(), ", expected ", p.n, " numbers in the last dimension");
  const Tensor apart = x - p.loc;
  return squared_distance(p.l, apart) * -0.5 - p.half_log_det() - 0.5 * double(p.n) * std::log(2 * std::numbers::pi);
}
Tensor MultivariateNormal::entropy() const {
  const Parts p(*this);
  return p.half_log_det() + 0.5 * double(p.n) * (1 + std::log(2 * std::numbers::pi));
}
Tensor MultivariateNormal::mean() const { return Parts(*this).loc; }
Tensor MultivariateNormal::variance() const { return sum(square(Parts(*this).l), {-1}); }

Tensor kl_divergence(const MultivariateNormal& p, const MultivariateNormal& q) {
  const Parts of_p(p), of_q(q);
  if (of_p.n != of_q.n)
    fail<ShapeError>("kl_divergence: vectors of ", of_p.n, " and of ", of_q.n, " numbers, expected as many");
  const Tensor scaled = linalg::solve_triangular(of_q.l, of_p.l, {.upper = false});
  return of_q.half_log_det() - of_p.half_log_det() +
         (sum(square(scaled), {-2, -1}) + squared_distance(of_q.l, of_q.loc - of_p.loc) - double(of_p.n)) * 0.5;
}

}  // namespace levin::distributions
