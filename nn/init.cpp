#include "levin/nn/init.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "levin/autograd.h"
#include "levin/ops.h"

namespace levin::nn::init {
namespace {

// Draws are f64 for f64 and f32 for the rest: a 16-bit tensor gets an f32 model's values, rounded.
DType drawn_as(const Tensor& x) { return x.dtype() == DType::f64 ? DType::f64 : DType::f32; }

void check_range(const char* op, double low, double high) {
  if (!(low <= high)) fail<ConfigError>(op, ": low is ", low, ", high is ", high, "; expected low <= high");
}
void check_std(const char* op, double std) {
  if (!(std >= 0)) fail<ConfigError>(op, ": std is ", std, ", expected 0 or more");
}

}  // namespace

void constant_(Tensor& x, double value) {
  NoGrad off;
  fill_(x, value);
}
void zeros_(Tensor& x) { constant_(x, 0); }
void ones_(Tensor& x) { constant_(x, 1); }

void uniform_(Tensor& x, Generator& gen, double low, double high) {
  check_range("uniform_", low, high);
  NoGrad off;
  copy_(x, rand(x.shape(), gen, x.device(), drawn_as(x)) * (high - low) + low);
}

void normal_(Tensor& x, Generator& gen, double mean, double std) {
  check_std("normal_", std);
  NoGrad off;
  copy_(x, randn(x.shape(), gen, x.device(), drawn_as(x)) * std + mean);
}

void trunc_normal_(Tensor& x, Generator& gen, double mean, double std, double low, double high) {
  check_range("trunc_normal_", low, high);
  check_std("trunc_normal_", std);
  const double root2 = std::sqrt(2.0);
  const double share = 0.5 * (std::erf((high - mean) / (std * root2)) - std::erf((low - mean) / (std * root2)));
  if (!(share >= 0.01)) {
    fail<ConfigError>("trunc_normal_: [", low, ", ", high, "] holds ", 100 * share, " % of N(", mean, ", ", std,
                      "^2), expected 1 % or more; choose limits nearer to the mean");
  }
  NoGrad off;
  const auto draw = [&] { return randn(x.shape(), gen, x.device(), drawn_as(x)) * std + mean; };
  Tensor value = draw();
  if (x.device().is_meta()) return;
  // Elements outside are drawn again: each round leaves the share (1 - share) of them.
  for (;;) {
    const Tensor outside = logical_or(lt(value, low), gt(value, high));
    if (!any(outside).item<bool>()) break;
    value = where(outside, draw(), value);
  }
  copy_(x, value);
}

Fans fans(const Tensor& weight) {
  if (weight.rank() < 2) {
    fail<ShapeError>("fans: weight has shape ", weight.shape(), ", expected [out, in, window...] of rank 2 or more");
  }
  std::int64_t window = 1;
  for (int d = 2; d < weight.rank(); ++d) window *= weight.size(d);
  return {weight.size(1) * window, weight.size(0) * window};
}

double gain(Nonlinearity f, double negative_slope) {
  switch (f) {
    case Nonlinearity::linear:
    case Nonlinearity::sigmoid: return 1;
    case Nonlinearity::tanh: return 5.0 / 3;
    case Nonlinearity::relu: return std::sqrt(2.0);
    case Nonlinearity::leaky_relu: return std::sqrt(2 / (1 + negative_slope * negative_slope));
    case Nonlinearity::selu: return 0.75;
  }
  fail<InternalError>("gain: unknown nonlinearity");
}

namespace {
double xavier_std(const Tensor& weight, double gain) {
  const Fans f = fans(weight);
  return gain * std::sqrt(2.0 / static_cast<double>(f.in + f.out));
}
double kaiming_std(const Tensor& weight, const KaimingOptions& options) {
  const Fans f = fans(weight);
  return gain(options.nonlinearity, options.a) / std::sqrt(static_cast<double>(options.mode == Fan::in ? f.in : f.out));
}
// The half width of the uniform distribution of this standard deviation.
double bound_of(double std) { return std::sqrt(3.0) * std; }
}  // namespace

void xavier_uniform_(Tensor& weight, Generator& gen, double gain) {
  const double bound = bound_of(xavier_std(weight, gain));
  if (weight.numel() > 0) uniform_(weight, gen, -bound, bound);
}
void xavier_normal_(Tensor& weight, Generator& gen, double gain) {
  const double std = xavier_std(weight, gain);
  if (weight.numel() > 0) normal_(weight, gen, 0, std);
}
void kaiming_uniform_(Tensor& weight, Generator& gen, const KaimingOptions& options) {
  const double bound = bound_of(kaiming_std(weight, options));
  if (weight.numel() > 0) uniform_(weight, gen, -bound, bound);
}
void kaiming_normal_(Tensor& weight, Generator& gen, const KaimingOptions& options) {
  const double std = kaiming_std(weight, options);
  if (weight.numel() > 0) normal_(weight, gen, 0, std);
}

void orthogonal_(Tensor& weight, Generator& gen, double gain) {
  if (weight.rank() < 2) {
    fail<ShapeError>("orthogonal_: weight has shape ", weight.shape(), ", expected rank 2 or more");
  }
  if (weight.numel() == 0) return;
  const std::int64_t rows = weight.size(0), cols = weight.numel() / rows;
  const std::int64_t count = std::min(rows, cols), length = std::max(rows, cols);
  NoGrad off;
  const Tensor drawn =
      randn({count, length}, gen, weight.device().is_meta() ? weight.device() : Device::cpu(), DType::f64);
  if (weight.device().is_meta()) return;
  std::vector<double> v = drawn.to_vector<double>();
  // Gram-Schmidt of Gaussian vectors is uniform over orthonormal sets. The second pass removes what rounding left of
  // the first ("twice is enough"; Giraud, Langou, Rozloznik, 2005).
  const auto dot = [&](const double* a, const double* b) {
    double s = 0;
    for (std::int64_t i = 0; i < length; ++i) s += a[i] * b[i];
    return s;
  };
  for (std::int64_t k = 0; k < count; ++k) {
    double* a = v.data() + k * length;
    for (int pass = 0; pass < 2; ++pass) {
      for (std::int64_t j = 0; j < k; ++j) {
        const double* b = v.data() + j * length;
        const double s = dot(a, b);
        for (std::int64_t i = 0; i < length; ++i) a[i] -= s * b[i];
      }
    }
    const double scale = 1 / std::sqrt(dot(a, a));
    for (std::int64_t i = 0; i < length; ++i) a[i] *= scale;
  }
  for (double& e : v) e *= gain;
  Tensor q = from_data(v, {count, length}, Device::cpu());
  if (rows > cols) q = t(q);
  copy_(weight, reshape(q, Dims(weight.shape().dims())));
}

}  // namespace levin::nn::init
