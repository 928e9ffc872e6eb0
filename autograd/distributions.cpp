#include "levin/distributions.h"

#include <cmath>
#include <limits>
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

// The shape of a distribution of categories.
Shape batch_of(const char* op, const Tensor& logits) {
  check_float(op, logits);
  if (logits.rank() == 0)
    fail<ShapeError>(op, ": logits are a single element, expected categories along the last dimension");
  return logits.shape().removed(logits.rank() - 1);
}
Tensor log_probs(const Categorical& c) {
  (void)batch_of("Categorical", c.logits);
  return log_softmax(c.logits, -1);
}
Categorical categorical(const OneHotCategorical& d) {
  (void)batch_of("OneHotCategorical", d.logits);
  return {d.logits};
}

// The logits of probabilities, which are kept the dtype's eps away from 0 and 1.
Tensor logits_of(const char* op, const Tensor& probs) {
  check_float(op, probs);
  return logit(probs, epsilon(probs.dtype()));
}

// A moment that no parameter moves.
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
Tensor fixed(double moment, const Shape& shape, const Tensor& beside) {
  return full(shape, moment, beside.device(), beside.dtype());
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
Tensor Normal::mean() const { return expand(loc, common("Normal", loc, scale)); }
Tensor Normal::variance() const { return expand(square(scale), common("Normal", loc, scale)); }

Tensor HalfNormal::sample(Generator& generator, const Shape& shape) const { return detached(*this, generator, shape); }
Tensor HalfNormal::rsample(Generator& generator, const Shape& shape) const {
  const Shape whole = joined(shape, common("HalfNormal", scale));
  return scale * abs(randn(whole, generator, scale.device(), scale.dtype()));
}
Tensor HalfNormal::log_prob(const Tensor& x) const {
  (void)common("HalfNormal", scale);
  return inside(square(x / scale) * -0.5 - log(scale) + (std::numbers::ln2 - 0.5 * kLogTwoPi), ge(x, 0));
}
Tensor HalfNormal::entropy() const {
  (void)common("HalfNormal", scale);
  return log(scale) + (0.5 + 0.5 * kLogTwoPi - std::numbers::ln2);
}
Tensor HalfNormal::mean() const {
  (void)common("HalfNormal", scale);
  return scale * std::sqrt(2 / std::numbers::pi);
}
Tensor HalfNormal::variance() const {
  (void)common("HalfNormal", scale);
  return square(scale) * (1 - 2 / std::numbers::pi);
}

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
Tensor Uniform::mean() const {
  (void)common("Uniform", low, high);
  return (low + high) * 0.5;
}
Tensor Uniform::variance() const {
  (void)common("Uniform", low, high);
  return square(high - low) / 12;
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
Tensor Exponential::mean() const {
  (void)common("Exponential", rate);
  return reciprocal(rate);
}
Tensor Exponential::variance() const { return square(mean()); }

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
Tensor Laplace::mean() const { return expand(loc, common("Laplace", loc, scale)); }
Tensor Laplace::variance() const { return expand(square(scale) * 2, common("Laplace", loc, scale)); }

Tensor LogNormal::sample(Generator& generator, const Shape& shape) const { return detached(*this, generator, shape); }
Tensor LogNormal::rsample(Generator& generator, const Shape& shape) const {
  return exp(Normal{loc, scale}.rsample(generator, shape));
}
Tensor LogNormal::log_prob(const Tensor& x) const {
  const Tensor is_inside = gt(x, 0), y = log(masked_fill(x, logical_not(is_inside), 1));
  return inside(Normal{loc, scale}.log_prob(y) - y, is_inside);
}
Tensor LogNormal::entropy() const { return Normal{loc, scale}.entropy() + loc; }
Tensor LogNormal::mean() const {
  (void)common("LogNormal", loc, scale);
  return exp(loc + square(scale) * 0.5);
}
Tensor LogNormal::variance() const {
  (void)common("LogNormal", loc, scale);
  const Tensor spread = square(scale);
  return expm1(spread) * exp(loc * 2 + spread);
}

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
Tensor Gumbel::mean() const {
  (void)common("Gumbel", loc, scale);
  return loc + scale * std::numbers::egamma;
}
Tensor Gumbel::variance() const {
  return expand(square(scale) * (std::numbers::pi * std::numbers::pi / 6), common("Gumbel", loc, scale));
}

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
Tensor Cauchy::mean() const { return fixed(kNaN, common("Cauchy", loc, scale), loc); }
Tensor Cauchy::variance() const {
  return fixed(std::numeric_limits<double>::infinity(), common("Cauchy", loc, scale), loc);
}

Bernoulli Bernoulli::of_probs(const Tensor& probs) { return {logits_of("Bernoulli", probs)}; }
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
Tensor Bernoulli::mean() const { return probs(); }
Tensor Bernoulli::variance() const {
  const Tensor p = probs();
  return p * (1 - p);
}

// log(1 - p) is logsigmoid(-logits), and (1 - p) / p is exp(-logits).
Geometric Geometric::of_probs(const Tensor& probs) { return {logits_of("Geometric", probs)}; }
Tensor Geometric::probs() const {
  check_float("Geometric", logits);
  return sigmoid(logits);
}
Tensor Geometric::sample(Generator& generator, const Shape& shape) const {
  const NoGrad off;
  const Tensor u = uniform(joined(shape, common("Geometric", logits)), generator, logits);
  const Tensor log_of_failure = logsigmoid(neg(logits.detach().to(wide_of(logits))));
  return floor(log1p(neg(u)) / log_of_failure).to(logits.dtype());
}
Tensor Geometric::log_prob(const Tensor& x) const {
  check_float("Geometric", logits);
  return inside(x * logsigmoid(neg(logits)) + logsigmoid(logits), ge(x, 0));
}
Tensor Geometric::entropy() const { return Bernoulli{logits}.entropy() / probs(); }
Tensor Geometric::mean() const {
  check_float("Geometric", logits);
  return exp(neg(logits));
}
Tensor Geometric::variance() const {
  const Tensor m = mean();
  return m * (m + 1);
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
  const Shape batch = batch_of("Categorical", p), whole = joined(shape, batch);
  if (whole.numel() == 0) return empty(whole, p.device(), DType::i64);
  const Tensor drawn = multinomial(reshape(p, {batch.numel(), p.size(-1)}), shape.numel(), generator, Replacement::yes);
  return reshape(t(drawn), Dims(whole.dims()));
}
Tensor Categorical::log_prob(const Tensor& value) const {
  constexpr const char* op = "Categorical";
  const Tensor all = log_probs(*this);
  check_defined(op, value);
  const std::int64_t m = all.size(-1);
  const Shape batch = broadcast_shapes(op, batch_of(op, all), value.shape());
  const Tensor rows = expand(all, batch.inserted(batch.rank(), m));
  return squeeze(gather(rows, -1, unsqueeze(expand(value, batch), -1)), {-1});
}
Tensor Categorical::entropy() const {
  const Tensor all = log_probs(*this);
  return neg(sum(weighted(exp(all), all), {-1}));
}
Tensor Categorical::mean() const { return fixed(kNaN, batch_of("Categorical", logits), logits); }
Tensor Categorical::variance() const { return fixed(kNaN, batch_of("Categorical", logits), logits); }

OneHotCategorical OneHotCategorical::of_probs(const Tensor& probs) {
  check_float("OneHotCategorical", probs);
  return {log(probs)};
}
Tensor OneHotCategorical::probs() const { return categorical(*this).probs(); }
Tensor OneHotCategorical::sample(Generator& generator, const Shape& shape) const {
  return one_hot(categorical(*this).sample(generator, shape), logits.size(-1)).to(logits.dtype());
}
Tensor OneHotCategorical::log_prob(const Tensor& x) const {
  constexpr const char* op = "OneHotCategorical";
  (void)batch_of(op, logits);
  check_defined(op, x);
  const std::int64_t k = logits.size(-1);
  if (x.rank() < 1 || x.size(-1) != k)
    fail<ShapeError>(op, ": values have shape ", x.shape(), ", expected ", k, " numbers in the last dimension");
  return Categorical{logits}.log_prob(argmax(x, -1));
}
Tensor OneHotCategorical::entropy() const { return categorical(*this).entropy(); }
Tensor OneHotCategorical::mean() const { return probs(); }
Tensor OneHotCategorical::variance() const {
  const Tensor p = probs();
  return p * (1 - p);
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
Tensor kl_divergence(const OneHotCategorical& p, const OneHotCategorical& q) {
  return kl_divergence(categorical(p), categorical(q));
}
Tensor kl_divergence(const Bernoulli& p, const Bernoulli& q) {
  (void)common("kl_divergence", p.logits, q.logits);
  const Tensor of_1 = logsigmoid(p.logits) - logsigmoid(q.logits);
  const Tensor of_0 = logsigmoid(neg(p.logits)) - logsigmoid(neg(q.logits));
  return weighted(sigmoid(p.logits), of_1) + weighted(sigmoid(neg(p.logits)), of_0);
}
Tensor kl_divergence(const Geometric& p, const Geometric& q) {
  (void)common("kl_divergence", p.logits, q.logits);
  const Tensor of_success = logsigmoid(p.logits) - logsigmoid(q.logits);
  const Tensor of_failure = logsigmoid(neg(p.logits)) - logsigmoid(neg(q.logits));
  return of_success + exp(neg(p.logits)) * of_failure;
}

}  // namespace levin::distributions
