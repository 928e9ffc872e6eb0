// Dynamic loss scaling, for gradients that f16 would round to 0. Micikevicius et al., "Mixed precision training", 2018.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "levin/optim/optimizer.h"
#include "levin/serialize.h"
#include "levin/tensor.h"

namespace levin::optim {

struct GradScalerOptions {
  double init_scale = 65536;                       // above 0
  double growth_factor = 2, backoff_factor = 0.5;  // above 1; between 0 and 1
  std::int64_t growth_interval = 2000;             // updates in a row without an overflow, before the scale grows
  double max_scale = 0;                            // 0: the largest f32
  bool enabled = true;                             // false: a scale of 1, and plain steps
  friend bool operator==(const GradScalerOptions&, const GradScalerOptions&) = default;
};

// What GradScaler::step does besides the update.
struct ScaledStep {
  std::optional<double> max_norm{};  // scales unscaled gradients by min(1, max_norm / (norm + 1e-6)); empty: none
  bool update = false;               // true: moves the scale, as update() does
  Tensor divisor{};                  // of unscale_
};

// Multiplies the loss by a scale, divides gradients by it, skips a step whose gradients are not finite, and moves the
// scale: times backoff_factor after an overflow, times growth_factor after growth_interval updates without one.
//
//   GradScaler scaler;
//   for (const Batch& batch : loader) {
//     optimizer.zero_grad();
//     Tensor loss = model(batch);                 // under Autocast
//     backward(loss * scaler.scale(loss.device()));  // Apex' scale_loss(loss, optimizer)
//     scaler.step(optimizer, {.max_norm = 1, .update = true});
//   }
//
// The last line has the results of these four, which let the caller read and change unscaled gradients on the way:
//
//     scaler.unscale_(optimizer);
//     clip_grads_with_norm_(optimizer.parameters(), 1, scaler.grad_norm(optimizer));
//     scaler.step(optimizer);
//     scaler.update();
//
// Scale, verdicts and counts live on the gradients' device: only state_dict and the three functions that say so wait
// for it. After one eager step, a step from scale() to update() can be recorded in a Graph. A replay has the options
// and the loaded state of the recording, and needs Optimizer::prepare_replay as without a scaler. One scaler serves one
// device and any number of optimizers: each skips by its own gradients, and the scale moves by the gradients of all.
class LEVIN_API GradScaler {
 public:
  explicit GradScaler(GradScalerOptions options = {});  // throws ConfigError for numbers out of range
  ~GradScaler();
  GradScaler(GradScaler&&) noexcept;
  GradScaler& operator=(GradScaler&&) noexcept;

  [[nodiscard]] bool enabled() const;
  // The f32 scalar [] to multiply the loss with: always the same tensor, which update() writes. The first call decides
  // the scaler's device; another device throws DeviceError later.
  [[nodiscard]] Tensor scale(Device device);
  // Multiplies the optimizer's gradients by 1 / scale, and finds their norm and whether one is then not finite, in one
  // pass. With master weights the masters get the f32 gradients. A defined `divisor` takes the scale's place: one f32
  // element on the gradients' device, the scale times a further divisor (the weight of a window of accumulated
  // batches). Throws StateError before scale(), twice between updates, and after step(); DataError for 16-bit gradients
  // without masters (autocast leaves gradients f32); DeviceError for gradients on another device; ConfigError for
  // LBFGS.
  void unscale_(Optimizer& optimizer, const Tensor& divisor = {});
  // optimizer.step(), unless its gradients are not finite. Calls unscale_ first if it was not called. Throws StateError
  // twice between updates, and when no parameter has a gradient.
  void step(Optimizer& optimizer);
  // unscale_ if it was not called, clip_grads_with_norm_ with grad_norm, step and, if asked for, update, with the same
  // bits in parameters, states, found_inf, grad_norm and scale. Where optimizer.fuses_clipping() and unscale_ was not
  // called, one pass finds norm and verdict and moves the scale, the update multiplies gradients by 1 / scale, then by
  // min(1, max_norm / (norm + 1e-6)), as it reads them, and memory keeps what backward left, the scale included;
  // masters get no gradients. Elsewhere the gradients in memory are unscaled and clipped. Throws what the four throw,
  // ConfigError for a max_norm below 0, and StateError for a divisor after unscale_.
  void step(Optimizer& optimizer, const ScaledStep& how);
  // Moves the scale by the gradients seen since the last call. Throws StateError without any.
  void update();

  // Forgets calls of unscale_ and step since the last update, for a step that an exception ended.
  void forget();

  // Results of the optimizer's last unscale_: f32 [], 1 where a gradient was not finite, else 0; and f64 [], the 2-norm
  // of all gradients together, unscaled. Always the same tensors. Throw StateError before the first unscale_.
  [[nodiscard]] Tensor found_inf(const Optimizer& optimizer) const;
  [[nodiscard]] Tensor grad_norm(const Optimizer& optimizer) const;

  // These three wait for the device. skipped_steps counts steps of optimizers.
  [[nodiscard]] double get_scale() const;
  [[nodiscard]] std::int64_t growth_tracker() const;  // updates without an overflow since the last move
  [[nodiscard]] std::int64_t skipped_steps() const;
  // The tensor of skipped_steps: i64 [], always the same. Throws StateError before scale().
  [[nodiscard]] Tensor skipped() const;

  // scale, growth_factor, backoff_factor, growth_interval, growth_tracker and skipped_steps, on cpu; empty when not
  // enabled. Loading the state of an enabled scaler continues bit for bit. A scaler that is not enabled ignores a
  // state, and an empty state leaves the options' values: both with a warning. Throws ConfigError, with nothing
  // changed, for other names and for numbers out of range.
  [[nodiscard]] NamedTensors state_dict() const;
  void load_state_dict(const NamedTensors& state);

 private:
  struct State;
  // Checks the optimizer's gradients, and begins its record of this update.
  void begin(Optimizer& optimizer, const Tensor& divisor);
  // Finds norm, verdict and factors for an update that multiplies the gradients, and moves the scale if asked to.
  void judge(Optimizer& optimizer, const ScaledStep& how, bool moves);
  [[nodiscard]] State& state() const;  // throws StateError for a scaler that was moved from
  std::unique_ptr<State> state_;
};

}  // namespace levin::optim
