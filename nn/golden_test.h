// Parameters and inputs by formula, so that PyTorch gets the same ones:
//
//   def wave(shape, phase):
//       n = math.prod(shape)
//       return torch.tensor([0.5 * math.sin(0.7 * i + phase) for i in range(n)], dtype=torch.float64).reshape(shape)
//   def fill(m):
//       m = m.double()
//       for k, p in enumerate(m.parameters()): p.data = wave(p.shape, k + 1.0)
//       return m
//
// The literals of the tests are what PyTorch 2.13 prints with 15 digits for the expression in the comment beside them.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "levin/autograd.h"
#include "levin/nn.h"
#include "levin/ops.h"

namespace levin {

inline Tensor wave(const Shape& shape, double phase) {
  std::vector<double> v(static_cast<std::size_t>(shape.numel()));
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = 0.5 * std::sin(0.7 * static_cast<double>(i) + phase);
  return from_data(v, shape, Device::cpu());
}

inline void fill_waves(nn::Module& m) {
  double phase = 1;
  NoGrad off;
  for (const ParamRef& p : m.parameters()) copy_(*p.value, wave(p.value->shape(), phase++));
}

// A root in f64, for layers that are children of it.
struct Root : nn::Module {
  Root() : Module({.gen = seed, .device = Device::cpu(), .dtype = DType::f64}) {}
  static inline Generator seed{1};
};

// Values below 2 in magnitude after some hundred roundings, each of at most a few units in the last place: 2^10 eps.
inline void check_close(const Tensor& got, const std::vector<double>& expected) {
  const std::vector<double> values = got.detach().to_vector<double>();
  REQUIRE(values.size() == expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    CAPTURE(i);
    CAPTURE(values[i]);
    CAPTURE(expected[i]);
    CHECK(std::abs(values[i] - expected[i]) <= std::ldexp(1, 10 - 52) * std::max(1.0, std::abs(expected[i])));
  }
}

inline std::vector<std::string> state_names(const nn::Module& m) {
  std::vector<std::string> out;
  for (const auto& [name, value] : m.state_dict()) out.push_back(name);
  return out;
}

// Finite differences of sum(fn() * wave) with respect to x and every parameter of m.
template <class F>
void check_gradients(nn::Module& m, const Tensor& x, F&& fn) {
  Tensor leaf = x.clone();
  leaf.requires_grad_();
  Tensors inputs{leaf};
  for (const ParamRef& p : m.parameters()) inputs.push_back(*p.value);
  const GradcheckResult r = gradcheck([&](std::span<const Tensor> in) { return Tensors{fn(in[0])}; }, inputs);
  CHECK_MESSAGE(r.ok, r.message);
}

}  // namespace levin
