// Distributions made of gamma draws. Apart from the others: a program that uses those alone is linked without them.
#include <cmath>
#include <limits>
#include <numbers>

#include "autograd/autocast.h"
#include "autograd/distribution_parts.h"
#include "levin/autograd.h"
#include "levin/distributions.h"

namespace levin::distributions {
namespace {

// Draws whose logarithms go on into other functions keep f32's digits.
Tensor widened(const Tensor& x) { return x.dtype() == DType::f64 ? x : x.to(DType::f32); }

// The logarithm of the beta function.
Tensor log_beta(const Tensor& a, const Tensor& b) { return lgamma(a) + lgamma(b) - lgamma(a + b); }

Shape shape_of(const StudentT& t) {
  (void)common("StudentT", t.df, t.loc);
  return broadcast_shapes("StudentT", t.df.shape(), common("StudentT", t.loc, t.scale));
}

Shape categories(const Dirichlet& d) {
  check_float("Dirichlet", d.concentration);
  if (d.concentration.rank() == 0)
    fail<ShapeError>("Dirichlet: concentration is a single element, expected categories along the last dimension");
  return d.concentration.shape();
}

}  // namespace

Tensor Gamma::sample(Generator& generator, const Shape& shape) const { return detached(*this, generator, shape); }
Tensor Gamma::rsample(Generator& generator, const Shape& shape) const {
  const Shape whole = joined(shape, common("Gamma", concentration, rate));
  return standard_gamma(expand(concentration, whole), generator) / rate;
}
Tensor Gamma::log_prob(const Tensor& x) const {
  (void)common("Gamma", concentration, rate);
  check_defined("Gamma", x);
  const Tensor outside = lt(x, 0), y = rate * masked_fill(x, outside, 0.5);
  return unless(xlogy(concentration - 1, y) - y + (log(rate) - lgamma(concentration)), outside);
}
Tensor Gamma::entropy() const {
  (void)common("Gamma", concentration, rate);
  return concentration - log(rate) + lgamma(concentration) + (1 - concentration) * digamma(concentration);
}
Tensor Gamma::mean() const {
  (void)common("Gamma", concentration, rate);
  return concentration / rate;
}
Tensor Gamma::variance() const {
  (void)common("Gamma", concentration, rate);
  return concentration / square(rate);
}

Tensor Chi2::sample(Generator& generator, const Shape& shape) const { return detached(*this, generator, shape); }
Tensor Chi2::rsample(Generator& generator, const Shape& shape) const {
  return standard_gamma(expand(df * 0.5, joined(shape, common("Chi2", df))), generator) * 2;
}
Tensor Chi2::log_prob(const Tensor& x) const {
  (void)common("Chi2", df);
  return Gamma{df * 0.5, full({}, 0.5, df.device(), df.dtype())}.log_prob(x);
}
Tensor Chi2::entropy() const {
  (void)common("Chi2", df);
  return Gamma{df * 0.5, full({}, 0.5, df.device(), df.dtype())}.entropy();
}
Tensor Chi2::mean() const { return expand(df, common("Chi2", df)); }
Tensor Chi2::variance() const {
  (void)common("Chi2", df);
  return df * 2;
}

Tensor StudentT::sample(Generator& generator, const Shape& shape) const { return detached(*this, generator, shape); }
Tensor StudentT::rsample(Generator& generator, const Shape& shape) const {
  const Shape whole = joined(shape, shape_of(*this));
  const Tensor half = widened(df) * 0.5, z = randn(whole, generator, df.device(), half.dtype());
  // sqrt(df / 2) / sqrt(draw), by logarithms: draws of a small df underflow.
  const Tensor spread = exp((log(half) - standard_gamma(expand(half, whole), generator, Logarithm::yes)) * 0.5);
  return loc + scale * (z * spread).to(df.dtype());
}
Tensor StudentT::log_prob(const Tensor& x) const {
  (void)shape_of(*this);
  const Tensor half = df * 0.5, above = half + 0.5;
  return (lgamma(above) - lgamma(half) - log(df * std::numbers::pi) * 0.5 - log(scale)) -
         above * log1p(square((x - loc) / scale) / df);
}
Tensor StudentT::entropy() const {
  const Shape whole = shape_of(*this);
  const Tensor half = df * 0.5, above = half + 0.5;
  const Tensor of_df = above * (digamma(above) - digamma(half)) + log(df) * 0.5 + lgamma(half) - lgamma(above) +
                       0.5 * std::log(std::numbers::pi);
  return expand(of_df + log(scale), whole);
}
Tensor StudentT::mean() const {
  return masked_fill(expand(loc, shape_of(*this)), le(df.detach(), 1), std::numeric_limits<double>::quiet_NaN());
}
Tensor StudentT::variance() const {
  const Shape whole = shape_of(*this);
  // A df without a finite variance is replaced, so that no NaN enters a gradient.
  const Tensor own = df.detach(), at = masked_fill(df, le(own, 2), 3);
  const Tensor finite = expand(square(scale) * (at / (at - 2)), whole);
  return masked_fill(masked_fill(finite, le(own, 2), std::numeric_limits<double>::infinity()), le(own, 1),
                     std::numeric_limits<double>::quiet_NaN());
}

Tensor Beta::sample(Generator& generator, const Shape& shape) const { return detached(*this, generator, shape); }
Tensor Beta::rsample(Generator& generator, const Shape& shape) const {
  const Shape whole = joined(shape, common("Beta", concentration1, concentration0));
  const Tensor a = standard_gamma(expand(widened(concentration1), whole), generator, Logarithm::yes);
  const Tensor b = standard_gamma(expand(widened(concentration0), whole), generator, Logarithm::yes);
  return sigmoid(a - b).to(concentration1.dtype());
}
Tensor Beta::log_prob(const Tensor& x) const {
  (void)common("Beta", concentration1, concentration0);
  check_defined("Beta", x);
  const Tensor outside = logical_or(lt(x, 0), gt(x, 1)), y = masked_fill(x, outside, 0.5);
  return unless(
      xlogy(concentration1 - 1, y) + xlogy(concentration0 - 1, 1 - y) - log_beta(concentration1, concentration0),
      outside);
}
Tensor Beta::entropy() const {
  (void)common("Beta", concentration1, concentration0);
  const Tensor &a = concentration1, &b = concentration0, total = a + b;
  return log_beta(a, b) + (1 - a) * digamma(a) + (1 - b) * digamma(b) + (total - 2) * digamma(total);
}
Tensor Beta::mean() const {
  (void)common("Beta", concentration1, concentration0);
  return concentration1 / (concentration1 + concentration0);
}
Tensor Beta::variance() const {
  (void)common("Beta", concentration1, concentration0);
  const Tensor total = concentration1 + concentration0;
  return concentration1 * concentration0 / (square(total) * (total + 1));
}

Tensor Dirichlet::sample(Generator& generator, const Shape& shape) const { return detached(*this, generator, shape); }
Tensor Dirichlet::rsample(Generator& generator, const Shape& shape) const {
  const Shape whole = joined(shape, categories(*this));
  const Tensor draws = standard_gamma(expand(widened(concentration), whole), generator, Logarithm::yes);
  return softmax(draws, -1).to(concentration.dtype());
}
Tensor Dirichlet::log_prob(const Tensor& x) const {
  const Shape own = categories(*this);
  check_defined("Dirichlet", x);
  const std::int64_t k = own[own.rank() - 1];
  if (x.rank() < 1 || x.size(-1) != k)
    fail<ShapeError>("Dirichlet: values have shape ", x.shape(), ", expected ", k, " numbers in the last dimension");
  const Tensor outside = lt(x, 0), y = masked_fill(x, outside, 0.5);
  return unless(
      lgamma(sum(concentration, {-1})) - sum(lgamma(concentration), {-1}) + sum(xlogy(concentration - 1, y), {-1}),
      any(outside, {-1}));
}
Tensor Dirichlet::entropy() const {
  const Shape own = categories(*this);
  const Tensor total = sum(concentration, {-1});
  return sum(lgamma(concentration) + (1 - concentration) * digamma(concentration), {-1}) - lgamma(total) +
         (total - double(own[own.rank() - 1])) * digamma(total);
}
Tensor Dirichlet::mean() const {
  (void)categories(*this);
  return concentration / sum(concentration, {-1}, KeepDim::yes);
}
Tensor Dirichlet::variance() const {
  (void)categories(*this);
  const Tensor total = sum(concentration, {-1}, KeepDim::yes);
  return concentration * (total - concentration) / (square(total) * (total + 1));
}

Tensor kl_divergence(const Gamma& p, const Gamma& q) {
  (void)common("kl_divergence", p.concentration, p.rate);
  (void)common("kl_divergence", q.concentration, q.rate);
  return q.concentration * log(p.rate / q.rate) + lgamma(q.concentration) - lgamma(p.concentration) +
         (p.concentration - q.concentration) * digamma(p.concentration) +
         (q.rate - p.rate) * (p.concentration / p.rate);
}
Tensor kl_divergence(const Beta& p, const Beta& q) {
  (void)common("kl_divergence", p.concentration1, p.concentration0);
  (void)common("kl_divergence", q.concentration1, q.concentration0);
  const Tensor a = p.concentration1 - q.concentration1, b = p.concentration0 - q.concentration0;
  return log_beta(q.concentration1, q.concentration0) - log_beta(p.concentration1, p.concentration0) +
         a * digamma(p.concentration1) + b * digamma(p.concentration0) -
         (a + b) * digamma(p.concentration1 + p.concentration0);
}
Tensor kl_divergence(const Dirichlet& p, const Dirichlet& q) {
  const Shape of_p = categories(p), of_q = categories(q);
  const std::int64_t k = of_p[of_p.rank() - 1], other = of_q[of_q.rank() - 1];
  if (k != other) fail<ShapeError>("kl_divergence: ", k, " and ", other, " categories, expected as many");
  const Tensor total = sum(p.concentration, {-1}, KeepDim::yes);
  const Tensor apart = (p.concentration - q.concentration) * (digamma(p.concentration) - digamma(total));
  return lgamma(squeeze(total, {-1})) - lgamma(sum(q.concentration, {-1})) + sum(lgamma(q.concentration), {-1}) -
         sum(lgamma(p.concentration), {-1}) + sum(apart, {-1});
}

}  // namespace levin::distributions
