#include <algorithm>
#include <cmath>
#include <type_traits>
#include <typeinfo>

#include "kernels/update/lists.cuh"
#include "levin/stream.h"
#include "optim/gradients.h"
#include "optim/masters.h"
#include "optim/updates.h"
#include "tensor/device/one_memory.h"

namespace levin::optim {
namespace {

void check_limit(const char* op, const char* what, double limit) {
  if (!(limit >= 0)) fail<ConfigError>(op, ": ", what, " is ", limit, ", expected 0 or more");
}

// The p-norm of all elements together, a f64 scalar on their device; there the factors are written, too.
Tensor norm_of(const Gradients& gradients, double p, [[maybe_unused]] const kernels::Factors& factors = {}) {
  if (gradients.device().is_meta()) return empty({}, Device::meta(), DType::f64);
#if LEVIN_LAUNCHES
  if (const Device device = gradients.device(); device.launches()) {
    Tensor norm = empty({}, device, DType::f64);
    kernels::gradient_norm({Stream::current(device)}, gradients.slots(), p, Updates::first<double>(norm), factors);
    return norm;
  }
#endif
  double total = 0;
  gradients.each([&](auto slots) {
    const double part = kernels::cpu::power_sum(kernels::Cpu{}, slots, p);
    total = std::isinf(p) ? (part > total || part != part ? part : total) : total + part;
  });
  const double norm = std::isinf(p) ? total : p == 2 ? std::sqrt(total) : std::pow(total, 1 / p);
  return from_data(std::span<const double>(&norm, 1), Shape{}, Device::cpu());
}

void scale_to(const char* op, const Parameters& parameters, double max_norm, const Tensor& norm) {
  if (norm.device().is_meta()) return;
#if LEVIN_LAUNCHES
  if (const Device device = norm.device(); device.launches()) {
    const Gradients gradients(op, parameters, op);
    kernels::scale_to_norm({Stream::current(device)}, gradients.slots(), max_norm, Updates::first<double>(norm));
    return;
  }
#endif
  const double factor = max_norm / (norm.item() + 1e-6);
  // Not `factor < 1`: a NaN norm spreads into the gradients, as in PyTorch.
  if (factor >= 1) return;
  Gradients(op, parameters, op).each([&](auto slots) { kernels::cpu::scale(kernels::Cpu{}, slots, factor); });
}

}  // namespace

Tensor clip_grad_norm_(const Parameters& parameters, double max_norm, double p, ErrorIfNonfinite check) {
  check_limit("clip_grad_norm_", "max_norm", max_norm);
  if (!(p > 0)) fail<ConfigError>("clip_grad_norm_: p is ", p, ", expected more than 0");
  Tensor norm = norm_of(Gradients("clip_grad_norm_", parameters), p);
  if (check == ErrorIfNonfinite::yes) {
    if (const double value = norm.item(); !std::isfinite(value)) {
      fail<StateError>("clip_grad_norm_: the gradients' norm is ", value,
                       ", expected a finite number; nothing was scaled");
    }
  }
  scale_to("clip_grad_norm_", parameters, max_norm, norm);
  return norm;
}

void clip_grads_with_norm_(const Parameters& parameters, double max_norm, const Tensor& total_norm) {
  constexpr const char* op = "clip_grads_with_norm_";
  check_limit(op, "max_norm", max_norm);
  if (total_norm.dtype() != DType::f64 || total_norm.numel() != 1)
    fail<ShapeError>(op, ": total_norm is ", total_norm, ", expected one f64 element");
  const Gradients gradients(op, parameters);
  if (gradients.empty()) return;
  if (!detail::one_memory(gradients.device(), total_norm.device())) {
    fail<DeviceError>(op, ": total_norm is on ", total_norm.device(), ", the gradients are on ", gradients.device(),
                      "; take the norm where they are");
  }
  scale_to(op, parameters, max_norm, total_norm);
}

bool Optimizer::fuses_clipping() const {
  if (groups_.empty() || memory_) return false;
  const Device device = groups_.front().source(0).device();
  const bool together = std::all_of(groups_.begin(), groups_.end(), [&](const Group& g) {
    return g.pieces.empty() && g.parameters.front().value->device() == device;
  });
  // A class of a user may override the update.
  const std::type_info& type = typeid(*this);
  const auto is_any = [&]<class... Os>(std::type_identity<Os>...) { return ((type == typeid(Os)) || ...); };
  using std::type_identity;
  return together && device.launches() &&
         is_any(type_identity<SGD>{}, type_identity<Adam>{}, type_identity<AdamW>{}, type_identity<RMSprop>{},
                type_identity<Adagrad>{}, type_identity<NAdam>{}, type_identity<RAdam>{}, type_identity<Adamax>{},
                type_identity<Adadelta>{}, type_identity<Lion>{}, type_identity<ASGD>{}, type_identity<Rprop>{},
                type_identity<LAMB>{});
}

Tensor Optimizer::step_clipped(double max_norm) {
  constexpr const char* op = "step_clipped";
  check_limit(op, "max_norm", max_norm);
  if (dynamic_cast<const LBFGS*>(this))
    fail<ConfigError>(name(), ": a step evaluates the loss several times; clip gradients in its closure");
  if (gathered_ || !fuses_clipping()) {
    gather_gradients();
    Tensor norm = clip_grad_norm_(parameters(), max_norm);
    step();
    return norm;
  }
  if (masters_) Masters::check(*this);
  (void)Masters::sources(*this);
  const Tensor factors = empty({2}, groups_.front().source(0).device(), DType::f64);
  double* const at = Updates::first<double>(factors);
  Tensor norm = norm_of(Gradients(op, model_parameters()), 2, {at, max_norm});
  step_groups(nullptr, at);
  return norm;
}

void divide_gradients_(const Parameters& parameters, const Tensor& divisor) {
  constexpr const char* op = "divide_gradients_";
  if (divisor.dtype() != DType::f64 || divisor.numel() != 1)
    fail<ShapeError>(op, ": the divisor is ", divisor, ", expected one f64 element");
  if (const Gradients all(op, parameters); all.empty() || all.device().is_meta())
    return;
  else if (!detail::one_memory(all.device(), divisor.device()))
    fail<DeviceError>(op, ": the divisor is on ", divisor.device(), ", the gradients are on ", all.device());
  const Gradients gradients(op, parameters, op);
#if LEVIN_LAUNCHES
  if (const Device device = gradients.device(); device.launches()) {
    kernels::divide_gradients({Stream::current(device)}, gradients.slots(), Updates::first<double>(divisor));
    return;
  }
#endif
  gradients.each([&](auto slots) { kernels::cpu::scale(kernels::Cpu{}, slots, 1 / *Updates::first<double>(divisor)); });
}

void clip_grad_value_(const Parameters& parameters, double limit) {
  check_limit("clip_grad_value_", "the limit", limit);
  const Gradients gradients("clip_grad_value_", parameters, "clip_grad_value_");
#if LEVIN_LAUNCHES
  if (const Device device = gradients.device(); device.launches()) {
    kernels::clamp_gradients({Stream::current(device)}, gradients.slots(), limit);
    return;
  }
#endif
  if (gradients.device().is_meta()) return;
  gradients.each([&](auto slots) { kernels::cpu::clamp_all(kernels::Cpu{}, slots, limit); });
}

}  // namespace levin::optim
