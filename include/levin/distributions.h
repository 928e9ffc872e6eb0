// Probability distributions, with PyTorch's names: samples, log-densities, moments, entropies, divergences.
//
//   distributions::Normal z{.loc = mean, .scale = std};
//   Tensor x = z.rsample(gen);                       // a gradient flows to mean and std
//   Tensor loss = neg(z.log_prob(target));
//
// Parameters are floats of one dtype on one device and broadcast: their common shape is the distribution's. A sample
// has `shape` in front of it. rsample is differentiable in the parameters, sample has no gradient; both move the
// generator on as rand does, and give the same numbers on every device. Values of log_prob broadcast with the
// parameters. Where the support is an interval, log_prob is -inf outside of it (PyTorch throws). Geometric's and
// Dirichlet's is -inf below 0, and they examine nothing else; Bernoulli and OneHotCategorical examine nothing;
// Categorical throws IndexError. Parameters are not examined, because that would wait for the device: a scale below 0
// gives NaN. Everything is made of public ops, so derivatives have every order, except those of samples in a
// concentration or df, which have the first.
#pragma once

#include "levin/generator.h"
#include "levin/ops.h"

namespace levin::distributions {

// exp(-((x - loc) / scale)^2 / 2) / (scale sqrt(2 pi)).
struct Normal {
  Tensor loc, scale;
  [[nodiscard]] LEVIN_API Tensor sample(Generator& generator, const Shape& shape = {}) const;   // detached
  [[nodiscard]] LEVIN_API Tensor rsample(Generator& generator, const Shape& shape = {}) const;  // loc + scale N(0, 1)
  [[nodiscard]] LEVIN_API Tensor log_prob(const Tensor& x) const;                               // of the density
  [[nodiscard]] LEVIN_API Tensor entropy() const;                                               // in nats
  [[nodiscard]] LEVIN_API Tensor mean() const;                                                  // loc
  [[nodiscard]] LEVIN_API Tensor variance() const;                                              // scale^2
};

// |x| of Normal{0, scale}: twice its density for x >= 0.
struct HalfNormal {
  Tensor scale;
  [[nodiscard]] LEVIN_API Tensor sample(Generator& generator, const Shape& shape = {}) const;   // detached
  [[nodiscard]] LEVIN_API Tensor rsample(Generator& generator, const Shape& shape = {}) const;  // scale |N(0, 1)|
  [[nodiscard]] LEVIN_API Tensor log_prob(const Tensor& x) const;                               // of the density
  [[nodiscard]] LEVIN_API Tensor entropy() const;                                               // in nats
  [[nodiscard]] LEVIN_API Tensor mean() const;                                                  // scale sqrt(2 / pi)
  [[nodiscard]] LEVIN_API Tensor variance() const;                                              // scale^2 (1 - 2 / pi)
};

// 1 / (high - low) for low <= x < high.
struct Uniform {
  Tensor low, high;
  [[nodiscard]] LEVIN_API Tensor sample(Generator& generator, const Shape& shape = {}) const;   // detached
  [[nodiscard]] LEVIN_API Tensor rsample(Generator& generator, const Shape& shape = {}) const;  // low + (high - low) u
  [[nodiscard]] LEVIN_API Tensor log_prob(const Tensor& x) const;                               // of the density
  [[nodiscard]] LEVIN_API Tensor entropy() const;                                               // in nats
  [[nodiscard]] LEVIN_API Tensor mean() const;                                                  // (low + high) / 2
  [[nodiscard]] LEVIN_API Tensor variance() const;                                              // (high - low)^2 / 12
};

// rate exp(-rate x) for x >= 0.
struct Exponential {
  Tensor rate;
  [[nodiscard]] LEVIN_API Tensor sample(Generator& generator, const Shape& shape = {}) const;   // detached
  [[nodiscard]] LEVIN_API Tensor rsample(Generator& generator, const Shape& shape = {}) const;  // -log(1 - u) / rate
  [[nodiscard]] LEVIN_API Tensor log_prob(const Tensor& x) const;                               // of the density
  [[nodiscard]] LEVIN_API Tensor entropy() const;                                               // in nats
  [[nodiscard]] LEVIN_API Tensor mean() const;                                                  // 1 / rate
  [[nodiscard]] LEVIN_API Tensor variance() const;                                              // 1 / rate^2
};

// exp(-|x - loc| / scale) / (2 scale).
struct Laplace {
  Tensor loc, scale;
  [[nodiscard]] LEVIN_API Tensor sample(Generator& generator, const Shape& shape = {}) const;   // detached
  [[nodiscard]] LEVIN_API Tensor rsample(Generator& generator, const Shape& shape = {}) const;  // by its inverse
  [[nodiscard]] LEVIN_API Tensor log_prob(const Tensor& x) const;                               // of the density
  [[nodiscard]] LEVIN_API Tensor entropy() const;                                               // in nats
  [[nodiscard]] LEVIN_API Tensor mean() const;                                                  // loc
  [[nodiscard]] LEVIN_API Tensor variance() const;                                              // 2 scale^2
};

// The exponential of Normal{loc, scale}, x > 0.
struct LogNormal {
  Tensor loc, scale;
  [[nodiscard]] LEVIN_API Tensor sample(Generator& generator, const Shape& shape = {}) const;   // detached
  [[nodiscard]] LEVIN_API Tensor rsample(Generator& generator, const Shape& shape = {}) const;  // exp of Normal's
  [[nodiscard]] LEVIN_API Tensor log_prob(const Tensor& x) const;                               // of the density
  [[nodiscard]] LEVIN_API Tensor entropy() const;                                               // in nats
  [[nodiscard]] LEVIN_API Tensor mean() const;      // exp(loc + scale^2 / 2)
  [[nodiscard]] LEVIN_API Tensor variance() const;  // (exp(scale^2) - 1) mean^2
};

// exp(-z - exp(-z)) / scale, z = (x - loc) / scale: of the largest of many values.
struct Gumbel {
  Tensor loc, scale;
  [[nodiscard]] LEVIN_API Tensor sample(Generator& generator, const Shape& shape = {}) const;   // detached
  [[nodiscard]] LEVIN_API Tensor rsample(Generator& generator, const Shape& shape = {}) const;  // by its inverse
  [[nodiscard]] LEVIN_API Tensor log_prob(const Tensor& x) const;                               // of the density
  [[nodiscard]] LEVIN_API Tensor entropy() const;                                               // in nats
  [[nodiscard]] LEVIN_API Tensor mean() const;      // loc + scale times Euler's constant
  [[nodiscard]] LEVIN_API Tensor variance() const;  // pi^2 / 6 scale^2
};

// 1 / (pi scale (1 + ((x - loc) / scale)^2)), which has no mean.
struct Cauchy {
  Tensor loc, scale;
  [[nodiscard]] LEVIN_API Tensor sample(Generator& generator, const Shape& shape = {}) const;   // detached
  [[nodiscard]] LEVIN_API Tensor rsample(Generator& generator, const Shape& shape = {}) const;  // by its inverse
  [[nodiscard]] LEVIN_API Tensor log_prob(const Tensor& x) const;                               // of the density
  [[nodiscard]] LEVIN_API Tensor entropy() const;                                               // in nats
  [[nodiscard]] LEVIN_API Tensor mean() const;                                                  // NaN
  [[nodiscard]] LEVIN_API Tensor variance() const;                                              // inf
};

// Normal vectors of n numbers: loc [..., n], scale_tril [..., n, n], the Cholesky factor l of their covariance l l^T,
// whose upper triangle is not read. The leading dimensions broadcast and are the distribution's shape; samples and
// values have n behind it. of_covariance, log_prob and kl_divergence are linear algebra: f32 and f64 on the CPU, as
// levin/linalg.h says. ShapeError where sizes do not meet.
struct MultivariateNormal {
  Tensor loc, scale_tril;
  // By linalg::cholesky, which throws ConfigError unless the covariance is positive definite.
  [[nodiscard]] LEVIN_API static MultivariateNormal of_covariance(const Tensor& loc, const Tensor& covariance);
  [[nodiscard]] LEVIN_API Tensor covariance() const;                                            // l l^T
  [[nodiscard]] LEVIN_API Tensor sample(Generator& generator, const Shape& shape = {}) const;   // detached
  [[nodiscard]] LEVIN_API Tensor rsample(Generator& generator, const Shape& shape = {}) const;  // loc + l N(0, 1)
  [[nodiscard]] LEVIN_API Tensor log_prob(const Tensor& x) const;                               // of the density
  [[nodiscard]] LEVIN_API Tensor entropy() const;                                               // in nats
  [[nodiscard]] LEVIN_API Tensor mean() const;                                                  // loc
  [[nodiscard]] LEVIN_API Tensor variance() const;                                              // the diagonal of l l^T
};

// rate^concentration x^(concentration - 1) exp(-rate x) / Gamma(concentration) for x >= 0. Samples: standard_gamma's.
struct Gamma {
  Tensor concentration, rate;
  [[nodiscard]] LEVIN_API Tensor sample(Generator& generator, const Shape& shape = {}) const;   // detached
  [[nodiscard]] LEVIN_API Tensor rsample(Generator& generator, const Shape& shape = {}) const;  // a draw / rate
  [[nodiscard]] LEVIN_API Tensor log_prob(const Tensor& x) const;                               // of the density
  [[nodiscard]] LEVIN_API Tensor entropy() const;                                               // in nats
  [[nodiscard]] LEVIN_API Tensor mean() const;                                                  // concentration / rate
  [[nodiscard]] LEVIN_API Tensor variance() const;                                              // mean / rate
};

// The sum of df squares of N(0, 1): Gamma{df / 2, 1 / 2}.
struct Chi2 {
  Tensor df;
  [[nodiscard]] LEVIN_API Tensor sample(Generator& generator, const Shape& shape = {}) const;   // detached
  [[nodiscard]] LEVIN_API Tensor rsample(Generator& generator, const Shape& shape = {}) const;  // Gamma's
  [[nodiscard]] LEVIN_API Tensor log_prob(const Tensor& x) const;                               // of the density
  [[nodiscard]] LEVIN_API Tensor entropy() const;                                               // in nats
  [[nodiscard]] LEVIN_API Tensor mean() const;                                                  // df
  [[nodiscard]] LEVIN_API Tensor variance() const;                                              // 2 df
};

// loc + scale N(0, 1) / sqrt(Chi2{df} / df).
struct StudentT {
  Tensor df, loc, scale;
  [[nodiscard]] LEVIN_API Tensor sample(Generator& generator, const Shape& shape = {}) const;   // detached
  [[nodiscard]] LEVIN_API Tensor rsample(Generator& generator, const Shape& shape = {}) const;  // that formula
  [[nodiscard]] LEVIN_API Tensor log_prob(const Tensor& x) const;                               // of the density
  [[nodiscard]] LEVIN_API Tensor entropy() const;                                               // in nats
  [[nodiscard]] LEVIN_API Tensor mean() const;                                                  // loc; NaN for df <= 1
  [[nodiscard]] LEVIN_API Tensor variance() const;  // scale^2 df / (df - 2); inf for df <= 2, NaN for df <= 1
};

// x^(concentration1 - 1) (1 - x)^(concentration0 - 1) / B(concentration1, concentration0) for 0 <= x <= 1. A sample is
// a / (a + b) of two gamma draws, of which the logarithms are drawn: small concentrations do not give 0 / 0.
struct Beta {
  Tensor concentration1, concentration0;
  [[nodiscard]] LEVIN_API Tensor sample(Generator& generator, const Shape& shape = {}) const;   // detached
  [[nodiscard]] LEVIN_API Tensor rsample(Generator& generator, const Shape& shape = {}) const;  // that formula
  [[nodiscard]] LEVIN_API Tensor log_prob(const Tensor& x) const;                               // of the density
  [[nodiscard]] LEVIN_API Tensor entropy() const;                                               // in nats
  [[nodiscard]] LEVIN_API Tensor mean() const;      // m = concentration1 / (concentration1 + concentration0)
  [[nodiscard]] LEVIN_API Tensor variance() const;  // m (1 - m) / (concentration1 + concentration0 + 1)
};

// Probabilities of k categories: the product of x[j]^(concentration[j] - 1) / Gamma(concentration[j]), times the gamma
// function of the sum of the concentrations. The last dimension, of the k concentrations, is not one of the
// distribution's shape; samples and values have it at their end. A sample is the softmax of logarithms of gamma draws.
// log_prob is -inf for a negative x[j]; whether values add up to 1 is not examined. ShapeError without a last
// dimension, and where that of the values is another.
struct Dirichlet {
  Tensor concentration;
  [[nodiscard]] LEVIN_API Tensor sample(Generator& generator, const Shape& shape = {}) const;   // detached
  [[nodiscard]] LEVIN_API Tensor rsample(Generator& generator, const Shape& shape = {}) const;  // that formula
  [[nodiscard]] LEVIN_API Tensor log_prob(const Tensor& x) const;                               // of the density
  [[nodiscard]] LEVIN_API Tensor entropy() const;                                               // in nats
  [[nodiscard]] LEVIN_API Tensor mean() const;      // concentration / its sum
  [[nodiscard]] LEVIN_API Tensor variance() const;  // mean (1 - mean) / (the sum + 1)
};

// A draw of Gamma{concentration, 1} for each concentration (G. Marsaglia, W. W. Tsang, "A simple method for generating
// gamma variables", 2000), or its logarithm: of small concentrations most draws underflow. Floats; 16-bit ones are
// computed in f32. A draw is at least the dtype's smallest normal number (f16: 2^-24). It is NaN where the
// concentration is NaN, 0 or below: the host does not wait to see the values.
// The gradient is that of the draw's quantile (M. Figurnov, S. Mohamed, A. Mnih, "Implicit reparameterization
// gradients", 2018), within 2e-6 of itself in f32 and 1e-11 in f64. There is no second derivative in the concentration:
// AutogradError.
enum class Logarithm : bool { no, yes };
[[nodiscard]] LEVIN_API Tensor standard_gamma(const Tensor& concentration, Generator& generator,
                                              Logarithm logarithm = Logarithm::no);

// 1 with probability sigmoid(logits), else 0, in the dtype of logits.
struct Bernoulli {
  Tensor logits;
  // From probabilities, which are kept the dtype's eps away from 0 and 1.
  [[nodiscard]] LEVIN_API static Bernoulli of_probs(const Tensor& probs);
  [[nodiscard]] LEVIN_API Tensor probs() const;                                                // sigmoid(logits)
  [[nodiscard]] LEVIN_API Tensor sample(Generator& generator, const Shape& shape = {}) const;  // detached
  [[nodiscard]] LEVIN_API Tensor log_prob(const Tensor& x) const;                              // of 0 and 1
  [[nodiscard]] LEVIN_API Tensor entropy() const;                                              // in nats
  [[nodiscard]] LEVIN_API Tensor mean() const;                                                 // probs
  [[nodiscard]] LEVIN_API Tensor variance() const;                                             // probs (1 - probs)
};

// How many trials fail before one succeeds, which happens with probability p = sigmoid(logits): x of 0, 1, ... with
// probability p (1 - p)^x, in the dtype of logits. Whether values are whole numbers is not examined. A sample is
// floor(log(1 - u) / log(1 - p)), whose u of 24 bits (53 in f64) ends the tail where its weight is 2^-24.
struct Geometric {
  Tensor logits;
  // From probabilities, which are kept the dtype's eps away from 0 and 1.
  [[nodiscard]] LEVIN_API static Geometric of_probs(const Tensor& probs);
  [[nodiscard]] LEVIN_API Tensor probs() const;                                                // sigmoid(logits)
  [[nodiscard]] LEVIN_API Tensor sample(Generator& generator, const Shape& shape = {}) const;  // detached
  [[nodiscard]] LEVIN_API Tensor log_prob(const Tensor& x) const;                              // of whole numbers
  [[nodiscard]] LEVIN_API Tensor entropy() const;                                              // in nats
  [[nodiscard]] LEVIN_API Tensor mean() const;                                                 // 1 / p - 1
  [[nodiscard]] LEVIN_API Tensor variance() const;                                             // (1 - p) / p^2
};

// Category k of the last dimension with probability softmax(logits)[k], i64. The last dimension is not one of the
// distribution's shape.
struct Categorical {
  Tensor logits;
  // From weights, of which each row has a sum above 0.
  [[nodiscard]] LEVIN_API static Categorical of_probs(const Tensor& probs);
  [[nodiscard]] LEVIN_API Tensor probs() const;                                                // softmax(logits)
  [[nodiscard]] LEVIN_API Tensor sample(Generator& generator, const Shape& shape = {}) const;  // detached
  // `value` holds categories, i64; IndexError for others.
  [[nodiscard]] LEVIN_API Tensor log_prob(const Tensor& value) const;
  [[nodiscard]] LEVIN_API Tensor entropy() const;   // in nats
  [[nodiscard]] LEVIN_API Tensor mean() const;      // NaN: categories have no order
  [[nodiscard]] LEVIN_API Tensor variance() const;  // NaN
};

// Categorical as vectors of the logits' dtype: 1 at the drawn category, else 0. The last dimension is not one of the
// distribution's shape; samples and values have it at their end.
struct OneHotCategorical {
  Tensor logits;
  // From weights, of which each row has a sum above 0.
  [[nodiscard]] LEVIN_API static OneHotCategorical of_probs(const Tensor& probs);
  [[nodiscard]] LEVIN_API Tensor probs() const;                                                // softmax(logits)
  [[nodiscard]] LEVIN_API Tensor sample(Generator& generator, const Shape& shape = {}) const;  // detached
  // Of the category of x's largest element; what else x holds is not examined, and x has no gradient. ShapeError where
  // its last dimension is not that of logits.
  [[nodiscard]] LEVIN_API Tensor log_prob(const Tensor& x) const;
  [[nodiscard]] LEVIN_API Tensor entropy() const;   // in nats
  [[nodiscard]] LEVIN_API Tensor mean() const;      // probs
  [[nodiscard]] LEVIN_API Tensor variance() const;  // probs (1 - probs)
};

// The mean of log p(x) - log q(x) for x drawn from p. Of categories with p = 0 nothing is added; where q = 0 and p > 0
// it is infinite. The same holds for the two values of Bernoulli.
[[nodiscard]] LEVIN_API Tensor kl_divergence(const Normal& p, const Normal& q);
[[nodiscard]] LEVIN_API Tensor kl_divergence(const Bernoulli& p, const Bernoulli& q);
[[nodiscard]] LEVIN_API Tensor kl_divergence(const Geometric& p, const Geometric& q);
[[nodiscard]] LEVIN_API Tensor kl_divergence(const Categorical& p, const Categorical& q);
[[nodiscard]] LEVIN_API Tensor kl_divergence(const OneHotCategorical& p, const OneHotCategorical& q);
[[nodiscard]] LEVIN_API Tensor kl_divergence(const MultivariateNormal& p, const MultivariateNormal& q);
[[nodiscard]] LEVIN_API Tensor kl_divergence(const Gamma& p, const Gamma& q);
[[nodiscard]] LEVIN_API Tensor kl_divergence(const Beta& p, const Beta& q);
[[nodiscard]] LEVIN_API Tensor kl_divergence(const Dirichlet& p, const Dirichlet& q);

}  // namespace levin::distributions
