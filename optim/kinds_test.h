// Shared by the tests of optimizers: one of each kind, and parameters with gradients to update.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "levin/autograd.h"
#include "levin/ops.h"
#include "levin/optim.h"
#include "tests/device.h"
#include "tests/skip.h"

namespace levin::optim {

using Make = std::function<std::unique_ptr<Optimizer>(Parameters)>;
template <class O, class Options>
Make make(Options options) {
  return [options](Parameters p) { return std::make_unique<O>(std::move(p), options); };
}

inline const std::vector<std::pair<std::string, Make>>& all_kinds() {
  static const std::vector<std::pair<std::string, Make>> kinds{
      {"sgd", make<SGD>(SGDOptions{.lr = 0.1})},
      {"momentum", make<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.2, .weight_decay = 0.01})},
      {"nesterov", make<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9, .nesterov = true})},
      {"adam", make<Adam>(AdamOptions{.lr = 0.1, .weight_decay = 0.1})},
      {"amsgrad", make<Adam>(AdamOptions{.lr = 0.1, .beta1 = 0.8, .beta2 = 0.9, .amsgrad = true})},
      {"adamw", make<AdamW>(AdamWOptions{.lr = 0.1, .weight_decay = 0.1})},
      {"rmsprop", make<RMSprop>(RMSpropOptions{.lr = 0.1})},
      {"rmsprop centered",
       make<RMSprop>(RMSpropOptions{.lr = 0.1, .weight_decay = 0.1, .momentum = 0.5, .centered = true})},
      {"adagrad", make<Adagrad>(AdagradOptions{
                      .lr = 0.1, .lr_decay = 0.1, .weight_decay = 0.1, .initial_accumulator_value = 0.5})},
      {"nadam", make<NAdam>(NAdamOptions{.lr = 0.1, .weight_decay = 0.1})},
      {"nadam decoupled", make<NAdam>(NAdamOptions{.lr = 0.1,
                                                   .beta1 = 0.8,
                                                   .beta2 = 0.9,
                                                   .weight_decay = 0.1,
                                                   .momentum_decay = 0.5,
                                                   .decoupled_weight_decay = true})},
      {"radam", make<RAdam>(RAdamOptions{.lr = 0.1, .beta2 = 0.9, .weight_decay = 0.1})},
      {"radam decoupled", make<RAdam>(RAdamOptions{.lr = 0.1, .weight_decay = 0.1, .decoupled_weight_decay = true})},
      {"adamax", make<Adamax>(AdamaxOptions{.lr = 0.1, .weight_decay = 0.1})},
      {"adadelta", make<Adadelta>(AdadeltaOptions{.weight_decay = 0.1})},
      {"lion", make<Lion>(LionOptions{.lr = 0.1, .weight_decay = 0.1})},
      {"asgd", make<ASGD>(ASGDOptions{.lr = 0.1, .lambd = 0.1, .t0 = 2, .weight_decay = 0.1})},
      {"rprop", make<Rprop>(RpropOptions{.lr = 0.1})},
      {"lamb", make<LAMB>(LAMBOptions{.lr = 0.1, .weight_decay = 0.1})},
      {"maximize", make<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9, .nesterov = true, .maximize = true})},
  };
  return kinds;
}

// Those whose rule treats each element by itself.
inline std::vector<std::pair<std::string, Make>> elementwise_kinds() {
  std::vector<std::pair<std::string, Make>> kinds = all_kinds();
  std::erase_if(kinds, [](const auto& kind) { return kind.first == "lamb"; });
  return kinds;
}

// The gradient of element i at step t: anything without a pattern.
inline Tensor gradient(const Shape& shape, int t, Device device, DType dtype) {
  std::vector<double> g;
  for (std::int64_t i = 0; i < shape.numel(); ++i) g.push_back(std::sin(double(i) + 1.5 * t));
  return from_data(g, shape, Device::cpu()).to(dtype).to(device);
}
inline void set_gradient(Tensor& p, int t) { p.set_grad(gradient(p.shape(), t, p.device(), p.dtype())); }

// All elements of some tensors, in order.
inline std::vector<double> elements_of(const std::vector<Tensor>& values) {
  std::vector<double> out;
  for (const Tensor& t : values) {
    const auto v = t.detach().to(Device::cpu()).to(DType::f64).to_vector<double>();
    out.insert(out.end(), v.begin(), v.end());
  }
  return out;
}

// Parameters p0, p1, .. and the optimizer O of all, each with a gradient in every step.
template <class O>
struct Stepped {
  std::vector<Tensor> values;
  std::unique_ptr<O> optimizer;

  template <class Options>
  Stepped(std::vector<Tensor> starts, const Options& options) : values(std::move(starts)) {
    Parameters p;
    for (std::size_t k = 0; k < values.size(); ++k)
      p.push_back({.value = &values[k].requires_grad_(), .name = "p" + std::to_string(k)});
    optimizer = std::make_unique<O>(std::move(p), options);
  }
  void set_gradients(int t) {
    for (Tensor& v : values) set_gradient(v, t);
  }
  void step(int t) {
    set_gradients(t);
    optimizer->step();
  }
  [[nodiscard]] std::vector<double> all() const { return elements_of(values); }
};

// Parameters of several sizes, more than one block among them, and their optimizer.
struct Net {
  std::vector<Tensor> values;
  std::unique_ptr<Optimizer> optimizer;

  Net(const Make& kind, Device device, DType dtype) {
    for (const std::int64_t n : {3, 1, 5000, 64}) {
      Tensor t = linspace(-2, 2, n, Device::cpu(), DType::f64).to(dtype).to(device);
      t.requires_grad_();
      values.push_back(t);
    }
    optimizer = kind(parameters());
  }
  Parameters parameters() {
    Parameters p;
    for (Tensor& t : values) p.push_back({.value = &t, .name = "p" + std::to_string(t.numel())});
    return p;
  }
  // The second parameter has no gradient in every other step.
  void set_gradients(int t) {
    for (std::size_t k = 0; k < values.size(); ++k) {
      if (k == 1 && t % 2 == 1)
        values[k].set_grad({});
      else
        set_gradient(values[k], t);
    }
  }
  [[nodiscard]] std::vector<double> all() const { return elements_of(values); }
  [[nodiscard]] std::int64_t steps(const std::string& parameter = "p3") const {
    for (const auto& [key, value] : optimizer->state_dict())
      if (key == parameter + ".step") return value.item<std::int64_t>();
    return 0;
  }
};

inline void check_close(const std::vector<double>& got, const std::vector<double>& want, double tolerance) {
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    REQUIRE(std::abs(got[i] - want[i]) <= tolerance * (1 + std::abs(want[i])));
  }
}

// The cpu, and the build's device that launches kernels, if any.
inline std::vector<Device> devices() {
  std::vector<Device> all{Device::cpu()};
  if (const auto found = test::launching_device()) all.push_back(*found);
  return all;
}
inline bool same_bits(const Tensor& a, const Tensor& b) {
  const auto x = a.to_vector<double>(), y = b.to_vector<double>();
  return x.size() == y.size() && (x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof(double)) == 0);
}
inline bool same_state(const NamedTensors& a, const NamedTensors& b) {
  bool same = a.size() == b.size();
  for (std::size_t i = 0; same && i < a.size(); ++i)
    same = a[i].first == b[i].first && a[i].second.dtype() == b[i].second.dtype() &&
           same_bits(a[i].second.to(DType::f64), b[i].second.to(DType::f64));
  return same;
}

}  // namespace levin::optim
