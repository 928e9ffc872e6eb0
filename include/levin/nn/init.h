// Initialisers: fill a tensor in place from a generator. Floats only; names end in _ because they write.
#pragma once

#include <cstdint>

#include "levin/generator.h"
#include "levin/tensor.h"

namespace levin::nn::init {

// The same value everywhere: `value`, 0, 1.
LEVIN_API void constant_(Tensor& x, double value);
LEVIN_API void zeros_(Tensor& x);
LEVIN_API void ones_(Tensor& x);
// Independent draws, in f32 and rounded for 16-bit floats. Throws ConfigError unless low <= high, std >= 0.
LEVIN_API void uniform_(Tensor& x, Generator& gen, double low = 0, double high = 1);  // U[low, high)
LEVIN_API void normal_(Tensor& x, Generator& gen, double mean = 0, double std = 1);   // N(mean, std^2)
// N(mean, std^2) within [low, high]. Waits for the device. Throws ConfigError when less than 1 % of the distribution
// lies in the interval.
LEVIN_API void trunc_normal_(Tensor& x, Generator& gen, double mean = 0, double std = 1, double low = -2,
                             double high = 2);

// in * window and out * window of a weight [out, in, window...]. Throws ShapeError below rank 2.
struct Fans {
  std::int64_t in = 0, out = 0;
};
[[nodiscard]] LEVIN_API Fans fans(const Tensor& weight);

enum class Nonlinearity : std::uint8_t { linear, sigmoid, tanh, relu, leaky_relu, selu };
// The factor that keeps variances through a nonlinearity: 1, 1, 5/3, sqrt(2), sqrt(2 / (1 + slope^2)), 3/4.
[[nodiscard]] LEVIN_API double gain(Nonlinearity f, double negative_slope = 0.01);

// Mean 0 and variance gain^2 * 2 / (in + out), uniform or normal. Glorot & Bengio, 2010.
LEVIN_API void xavier_uniform_(Tensor& weight, Generator& gen, double gain = 1);
LEVIN_API void xavier_normal_(Tensor& weight, Generator& gen, double gain = 1);

enum class Fan : std::uint8_t { in, out };
struct KaimingOptions {
  double a = 0;        // the negative slope of leaky_relu
  Fan mode = Fan::in;  // which of fans() is divided by
  Nonlinearity nonlinearity = Nonlinearity::leaky_relu;
};
// Mean 0 and variance gain(nonlinearity, a)^2 / fan, uniform or normal. He et al., 2015.
LEVIN_API void kaiming_uniform_(Tensor& weight, Generator& gen, const KaimingOptions& options = {});
LEVIN_API void kaiming_normal_(Tensor& weight, Generator& gen, const KaimingOptions& options = {});

// Orthonormal rows or columns (whichever are fewer) of the weight seen as [size(0), rest], times gain; uniform over
// such matrices. Saxe et al., 2013. Computed on the host in f64, in time n k^2.
LEVIN_API void orthogonal_(Tensor& weight, Generator& gen, double gain = 1);

}  // namespace levin::nn::init
