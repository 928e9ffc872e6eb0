#include "levin/distributions.h"

#include <cmath>
#include <numbers>

#include "autograd/autocast.h"
#include "autograd/distribution_parts.h"
#include "levin/autograd.h"

namespace levin::distributions {
namespace {

const double kLogTwoPi = std::log(2 * std::numbers::pi);

// U[0, 1) beside a parameter; 16-bit numbers are drawn in f32, so that tails have their digits.
DType wide_of(const Tensor& beside) { return beside.dtype() == DType::f64 ? DType::f64 : DType::f32; }
Tensor uniform(const Shape& shape, Generator& generator, const Tensor& beside) {
  return rand(shape, generator, beside.device(), wide_of(beside));
}

Tensor log_probs(const Categorical& c) {
  check_float("Categorical", c.logits);
  if (c.logits.rank() == 0)
    fail<ShapeError>("Categorical: logits are a single element, expected categories along the last dimension");
  return log_softmax(c.logits, -1);
}

// p t, and 0 where p is 0, whatever t is there.
Tensor weighted(const Tensor& p, const Tensor& t) { return p * masked_fill(t, eq(p.detach(), 0), 0); }

}  // namespace

Tensor Normal::sample(Generator& generator, const Shape& shape) const { return detached(*this, generator, shape); }
Tensor Normal::rsample(Generator& generator, const Shape& shape) const {
  const Shape whole = joined(shape, common("Normal", loc, scale));
  return loc + scale * randn(whole, generator, loc.device(), loc.dtype());
}
Tensor Normal::log_prob(const Tensor& x) const {
  (void)common("Normal", loc, scale);
  return square((x - loc) / scale) * -0.5 - log(scale) - 0.5 * kLogTwoPi;
}
Tensor Normal::entropy() const { return expand(log(scale) + (0.5 + 0.5 * kLogTwoPi), common("Normal", loc, scale)); }

Tensor Uniform::sample(Generator& generator, const Shape& shape) const { return detached(*this, generator, shape); }
Tensor Uniform::rsample(Generator& generator, const Shape& shape) const {
  const Shape whole = joined(shape, common("Uniform", low, high));
  return low + (high - low) * rand(whole, generator, low.device(), low.dtype());
}
Tensor Uniform::log_prob(const Tensor& x) const {
  (void)common("Uniform", low, high);
  return inside(neg(log(high - low)), logical_and(ge(x, low), lt(x, high)));
}
Tensor Uniform::entropy() const {
  (void)common("Uniform", low, high);
  return log(high - low);
}

Tensor Exponential::sample(Generator& generator, const Shape& shape) const { return detached(*this, generator, shape); }
Tensor Exponential::rsample(Generator& generator, const Shape& shape) const {
  const Tensor u = uniform(joined(shape, common("Exponential", rate)), generator, rate);
  return neg(log1p(neg(u))).to(rate.dtype()) / rate;
}
Tensor Exponential::log_prob(const Tensor& x) const {
  (void)common("Exponential", rate);
  return inside(log(rate) - rate * x, ge(x, 0));
}
Tensor Exponential::entropy() const {
  (void)common("Exponential", rate);
  return 1 - log(rate);
}

Tensor Laplace::sample(Generator& generator, const Shape& shape) const { return detached(*this, generator, shape); }
Tensor Laplace::rsample(Generator& generator, const Shape& shape) const {
  const Tensor u = uniform(joined(shape, common("Laplace", loc, scale)), generator, loc) * 2 - 1;
  // u of -1 would be infinitely far away.
  const double most = wide_of(loc) == DType::f64 ? 1 - 0x1p-53 : 1 - 0x1p-24;
  return loc - scale * (sign(u) * log1p(neg(clamp(abs(u), {}, most)))).to(loc.dtype());
}
Tensor Laplace::log_prob(const Tensor& x) const {
  (void)common("Laplace", loc, scale);
  return neg(log(scale * 2)) - abs(x - loc) / scale;
}
Tensor Laplace::entropy() const { return expand(log(scale * 2) + 1, common("Laplace", loc, scale)); }

Tensor LogNormal::sample(Generator& generator, const Shape& shape) const { return detached(*this, generator, shape); }
Tensor LogNormal::rsample(Generator& generator, const Shape& shape) const {
  return exp(Normal{loc, scale}.rsample(generator, shape));
}
Tensor LogNormal::log_prob(const Tensor& x) const {
  const Tensor is_inside = gt(x, 0), y = log(masked_fill(x, logical_not(is_inside), 1));
  return inside(Normal{loc, scale}.log_prob(y) - y, is_inside);
}
Tensor LogNormal::entropy() const { return Normal{loc, scale}.entropy() + loc; }

Tensor Gumbel::sample(Generator& generator, const Shape& shape) const { return detached(*this, generator, shape); }
Tensor Gumbel::rsample(Generator& generator, const Shape& shape) const {
  const Tensor u = uniform(joined(shape, common("Gumbel", loc, scale)), generator, loc);
  // u of 0 would be infinitely far away; the next number that is drawn is twice this one.
  const double least = wide_of(loc) == DType::f64 ? 0x1p-54 : 0x1p-25;
  return loc - scale * log(neg(log1p(neg(clamp(u, least, {}))))).to(loc.dtype());
}
Tensor Gumbel::log_prob(const Tensor& x) const {
  (void)common("Gumbel", loc, scale);
  const Tensor z = (x - loc) / scale;
  return neg(z + exp(neg(z))) - log(scale);
}
Tensor Gumbel::entropy() const { return expand(log(scale) + (1 + std::numbers::egamma), common("Gumbel", loc, scale)); }

Tensor Cauchy::sample(Generator& generator, const Shape& shape) const { return detached(*this, generator, shape); }
Tensor Cauchy::rsample(Generator& generator, const Shape& shape) const {
  const Tensor u = uniform(joined(shape, common("Cauchy", loc, scale)), generator, loc);
  return loc + scale * tan((u - 0.5) * std::numbers::pi).to(loc.dtype());
}
Tensor Cauchy::log_prob(const Tensor& x) const {
  (void)common("Cauchy", loc, scale);
  return neg(log(scale) + log1p(square((x - loc) / scale))) - std::log(std::numbers::pi);
}
Tensor Cauchy::entropy() const {
  return expand(log(scale) + std::log(4 * std::numbers::pi), common("Cauchy", loc, scale));
}

Bernoulli Bernoulli::of_probs(const Tensor& probs) {
  check_float("Bernoulli", probs);
  double eps = 0x1p-52;
  if (probs.dtype() == DType::f32) eps = 0x1p-23;
  if (probs.dtype() == DType::f16) eps = 0x1p-10;
  if (probs.dtype() == DType::bf16) eps = 0x1p-7;
  const Tensor p = clamp(probs, eps, 1 - eps);
  return {log(p) - log1p(neg(p))};
}
Tensor Bernoulli::probs() const {
  check_float("Bernoulli", logits);
  return sigmoid(logits);
}
Tensor Bernoulli::sample(Generator& generator, const Shape& shape) const {
  const NoGrad off;
  return bernoulli(expand(probs().detach(), joined(shape, logits.shape())), generator);
}
Tensor Bernoulli::log_prob(const Tensor& x) const {
  check_float("Bernoulli", logits);
  return x * logsigmoid(logits) + (1 - x) * logsigmoid(neg(logits));
}
Tensor Bernoulli::entropy() const {
  check_float("Bernoulli", logits);
  return neg(logsigmoid(neg(logits))) - logits * sigmoid(logits);
}

Categorical Categorical::of_probs(const Tensor& probs) {
  check_float("Categorical", probs);
  return {log(probs)};
}
Tensor Categorical::probs() const {
  check_float("Categorical", logits);
  return softmax(logits, -1);
}
Tensor Categorical::sample(Generator& generator, const Shape& shape) const {
  const NoGrad off;
  const Tensor p = exp(log_probs(*this).detach());
  const Shape batch = p.shape().removed(p.rank() - 1), whole = joined(shape, batch);
  if (whole.numel() == 0) return empty(whole, p.device(), DType::i64);
  const Tensor drawn = multinomial(reshape(p, {batch.numel(), p.size(-1)}), shape.numel(), generator, Replacement::yes);
  return reshape(t(drawn), Dims(whole.dims()));
}
Tensor Categorical::log_prob(const Tensor& value) const {
  constexpr const char* op = "Categorical";
  const Tensor all = log_probs(*this);
  check_defined(op, value);
  const std::int64_t m = all.size(-1);
  const Shape batch = broadcast_shapes(op, all.shape().removed(all.rank() - 1), value.shape());
  const Tensor rows = expand(all, batch.inserted(batch.rank(), m));
  return squeeze(gather(rows, -1, unsqueeze(expand(value, batch), -1)), {-1});
}
Tensor Categorical::entropy() const {
  const Tensor all = log_probs(*this);
  return neg(sum(weighted(exp(all), all), {-1}));
}

Tensor kl_divergence(const Normal& p, const Normal& q) {
  (void)common("kl_divergence", p.loc, p.scale);
  (void)common("kl_divergence", q.loc, q.scale);
  const Tensor ratio = square(p.scale / q.scale), apart = square((p.loc - q.loc) / q.scale);
  return (ratio + apart - 1 - log(ratio)) * 0.5;
}
Tensor kl_divergence(const Categorical& p, const Categorical& q) {
  const Tensor all = log_probs(p);
  return sum(weighted(exp(all), all - log_probs(q)), {-1});
}

}  // namespace levin::distributions
