#include <cmath>

#include "levin/stream.h"
#include "optim/updates.h"

namespace levin::optim {
namespace {

// The gradients that are there, dense. `writer` names who will write to them.
std::vector<Tensor> dense_gradients(const char* op, const Parameters& parameters, const char* writer) {
  std::vector<Tensor> all;
  for (const ParamRef& p : parameters) {
    Tensor g = p.value->grad();
    if (!g.defined()) continue;
    if (g.dtype() != DType::f32 && g.dtype() != DType::f64) {
      fail<UnsupportedError>(op, ": the gradient of ", p.name, " is ", g.dtype(), "; has f32, f64");
    }
    if (!all.empty() && g.device() != all.front().device()) {
      fail<DeviceError>(op, ": the gradient of ", p.name, " is on ", g.device(), ", others are on ",
                        all.front().device(), "; clip each device's parameters by themselves");
    }
    if (!g.is_contiguous()) {
      g = Updates::dense(g);
      if (writer) p.value->set_grad(g);
    }
    if (writer) g.get().storage->wrote(writer);
    all.push_back(std::move(g));
  }
  return all;
}

// Calls f(T*, n) on every gradient.
template <class F>
void each_gradient(const char* op, const Parameters& parameters, const char* writer, F&& f) {
  for (const Tensor& g : dense_gradients(op, parameters, writer)) {
    if (g.dtype() == DType::f32)
      f(Updates::first<float>(g), g.numel());
    else
      f(Updates::first<double>(g), g.numel());
  }
}

void check_finite(double norm) {
  if (std::isfinite(norm)) return;
  fail<StateError>("clip_grad_norm_: the gradients' norm is ", norm, ", expected a finite number; nothing was scaled");
}

#if LEVIN_LAUNCHES
// The device whose kernels clip, where it is not the cpu.
Device device_of(const Parameters& parameters) {
  for (const ParamRef& p : parameters) {
    if (const Tensor g = p.value->grad(); g.defined()) return g.device();
  }
  return Device::cpu();
}

// The gradients as the kernels take them.
class OnDevice {
 public:
  OnDevice(const char* op, const Parameters& parameters, const char* writer)
      : gradients_(dense_gradients(op, parameters, writer)) {
    for (const Tensor& g : gradients_) {
      if (g.numel() == 0) continue;
      if (g.dtype() == DType::f32)
        single_.push_back({.p = Updates::first<float>(g), .g = Updates::first<float>(g), .n = g.numel()});
      else
        wide_.push_back({.p = Updates::first<double>(g), .g = Updates::first<double>(g), .n = g.numel()});
    }
  }
  [[nodiscard]] kernels::GradientSlots slots() const { return {single_, wide_}; }

 private:
  std::vector<Tensor> gradients_;  // kept until the kernels are enqueued
  std::vector<kernels::Slot<float>> single_;
  std::vector<kernels::Slot<double>> wide_;
};
#endif

}  // namespace

Tensor clip_grad_norm_(const Parameters& parameters, double max_norm, double p, ErrorIfNonfinite check) {
  if (!(max_norm >= 0)) fail<ConfigError>("clip_grad_norm_: max_norm is ", max_norm, ", expected 0 or more");
  if (!(p > 0)) fail<ConfigError>("clip_grad_norm_: p is ", p, ", expected more than 0");
#if LEVIN_LAUNCHES
  if (const Device device = device_of(parameters); device.launches()) {
    const kernels::Gpu on{Stream::current(device)};
    const Tensor norm = empty({}, device, DType::f64);
    kernels::gradient_norm(on, OnDevice("clip_grad_norm_", parameters, nullptr).slots(), p,
                           Updates::first<double>(norm));
    if (check == ErrorIfNonfinite::yes) check_finite(norm.item());
    const OnDevice gradients("clip_grad_norm_", parameters, "clip_grad_norm_");
    kernels::scale_to_norm(on, gradients.slots(), max_norm, Updates::first<double>(norm));
    return norm;
  }
#endif
  const kernels::Cpu on;
  double total = 0;
  each_gradient("clip_grad_norm_", parameters, nullptr, [&](auto* g, std::int64_t n) {
    const double part = kernels::cpu::power_sum(on, g, n, p);
    total = std::isinf(p) ? (part > total || part != part ? part : total) : total + part;
  });
  const double norm = std::isinf(p) ? total : p == 2 ? std::sqrt(total) : std::pow(total, 1 / p);
  if (check == ErrorIfNonfinite::yes) check_finite(norm);
  const double factor = max_norm / (norm + 1e-6);
  // Not `factor < 1`: a NaN norm spreads into the gradients, as in PyTorch, instead of hiding.
  if (!(factor >= 1)) {
    each_gradient("clip_grad_norm_", parameters, "clip_grad_norm_",
                  [&](auto* g, std::int64_t n) { kernels::cpu::scale(on, g, n, factor); });
  }
  return from_data(std::span<const double>(&norm, 1), Shape{}, Device::cpu());
}

void clip_grad_value_(const Parameters& parameters, double limit) {
  if (!(limit >= 0)) fail<ConfigError>("clip_grad_value_: the limit is ", limit, ", expected 0 or more");
#if LEVIN_LAUNCHES
  if (const Device device = device_of(parameters); device.launches()) {
    const kernels::Gpu on{Stream::current(device)};
    const OnDevice gradients("clip_grad_value_", parameters, "clip_grad_value_");
    kernels::clamp_gradients(on, gradients.slots(), limit);
    return;
  }
#endif
  const kernels::Cpu on;
  each_gradient("clip_grad_value_", parameters, "clip_grad_value_",
                [&](auto* g, std::int64_t n) { kernels::cpu::clamp_all(on, g, n, limit); });
}

}  // namespace levin::optim
