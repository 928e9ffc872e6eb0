#include <cmath>

#include "optim/updates.h"

namespace levin::optim {
namespace {

// Calls f(T*, n) on every gradient.
template <class F>
void each_gradient(const char* op, const Parameters& parameters, const char* writer, F&& f) {
  for (const ParamRef& p : parameters) {
    Tensor g = p.value->grad();
    if (!g.defined()) continue;
    if (g.dtype() != DType::f32 && g.dtype() != DType::f64) {
      fail<UnsupportedError>(op, ": the gradient of ", p.name, " is ", g.dtype(), "; has f32, f64");
    }
    if (!g.is_contiguous()) {
      g = Updates::dense(g);
      if (writer) p.value->set_grad(g);
    }
    if (writer) g.get().storage->wrote(writer);
    if (g.dtype() == DType::f32)
      f(Updates::first<float>(g), g.numel());
    else
      f(Updates::first<double>(g), g.numel());
  }
}

}  // namespace

Tensor clip_grad_norm_(const Parameters& parameters, double max_norm, double p, ErrorIfNonfinite check) {
  if (!(max_norm >= 0)) fail<ConfigError>("clip_grad_norm_: max_norm is ", max_norm, ", expected 0 or more");
  if (!(p > 0)) fail<ConfigError>("clip_grad_norm_: p is ", p, ", expected more than 0");
  const kernels::Cpu on;
  double total = 0;
  each_gradient("clip_grad_norm_", parameters, nullptr, [&](auto* g, std::int64_t n) {
    const double part = kernels::cpu::power_sum(on, g, n, p);
    total = std::isinf(p) ? (part > total || part != part ? part : total) : total + part;
  });
  const double norm = std::isinf(p) ? total : p == 2 ? std::sqrt(total) : std::pow(total, 1 / p);
  if (check == ErrorIfNonfinite::yes && !std::isfinite(norm)) {
    fail<StateError>("clip_grad_norm_: the gradients' norm is ", norm,
                     ", expected a finite number; nothing was scaled");
  }
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
  const kernels::Cpu on;
  each_gradient("clip_grad_value_", parameters, "clip_grad_value_",
                [&](auto* g, std::int64_t n) { kernels::cpu::clamp_all(on, g, n, limit); });
}

}  // namespace levin::optim
