// Dynamic loss scaling, for gradients that f16 would round to 0. Micikevicius et al., "Mixed precision training", 2018.
#pragma once

#include <cstdint>
#include <memory>

#include "levin/optim/optimizer.h"
#include "levin/serialize.h"
#include "levin/tensor.h"

namespace levin::optim {

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2, backoff_factor = 0.5;  // above 1; between 0 and 1
  std::int64_t growth_interval = 2000;             // updates in a row without an overflow
  double max_scale = 0;                            // 0: as far as f32 goes
  bool enabled = true;
  friend bool operator==(const GradScalerOptions&, const GradScalerOptions&) = default;
};

// Multiplies the loss by a scale, takes it out of the gradients again, skips the step whose gradients are not finite, and
// moves the scale: times backoff_factor after an overflow, times growth_factor after growth_interval updates without one.
//
//   GradScaler scaler;
//   for (const Batch& batch : loader) {
//     optimizer.zero_grad();
//     Tensor loss = model(batch);                 // under Autocast
//     backward(loss * scaler.scale(loss.device()));  // Apex' scale_loss(loss, optimizer)
//     scaler.unscale_(optimizer);                 // only where gradients are looked at before the step
//     clip_grads_with_norm_(optimizer.parameters(), 1, scaler.grad_norm(optimizer));
//     scaler.step(optimizer);
//     scaler.update();
//   }
//
// Scale, verdicts and counts live on the gradients' device and are read there: nothing waits but the three functions that
// say so and state_dict, and a step between scale() and update() can be recorded in a Graph after one was run. (Options and a loaded state
// are as of the recording; Optimizer::prepare_replay is needed as without a scaler.) One scaler serves one device, and
// any number of optimizers: each skips by its own gradients, the scale moves by all of them. A scaler that is not enabled
// has a scale of 1, and step() is the optimizer's.
class LEVIN_API GradScaler {
 public:
  explicit GradScaler(GradScalerOptions options = {});  // throws ConfigError for numbers out of range
  ~GradScaler();
  GradScaler(GradScaler&&) noexcept;
  GradScaler& operator=(GradScaler&&) noexcept;

  [[nodiscard]] bool enabled() const;
  // The f32 scalar [] to multiply the loss with: always the same tensor, which update() writes. The first call says where
  // the scaler works; DeviceError for another device later.
  [[nodiscard]] Tensor scale(Device device);
  // The optimizer's gradients times 1 / scale, and whether one of them is then not finite; one pass, which takes their
  // norm, too. With master weights it is they that get the f32 gradients. Throws StateError before scale(), twice between
  // updates, and after step(); DataError for 16-bit gradients without masters (autocast leaves gradients f32); DeviceError for gradients that lie elsewhere;
  // ConfigError for LBFGS.
  // `divisor`, where it is given, takes the scale's place: one f32 element on the gradients' device, the scale times what the
  // gradients are to be divided by besides (the weight of a window of accumulated batches).
  void unscale_(Optimizer& optimizer, const Tensor& divisor = {});
  // optimizer.step(), unless its gradients are not finite; unscale_ first where nobody called it. Throws StateError twice
  // between updates, and when no parameter has a gradient.
  void step(Optimizer& optimizer);
  // Moves the scale by the gradients seen since the last call. Throws StateError when there were none.
  void update();

  // Takes back calls of unscale_ and step since the last update, for a step that an exception ended between them.
  void forget();

  // Of the optimizer's last unscale_: f32 [], 1 where a gradient was not finite, else 0; and f64 [], the 2-norm of all
  // gradients together as they were after it. Always the same tensors. Throw StateError before the first unscale_.
  [[nodiscard]] Tensor found_inf(const Optimizer& optimizer) const;
  [[nodiscard]] Tensor grad_norm(const Optimizer& optimizer) const;

  // These wait for the device. skipped_steps counts steps of optimizers.
  [[nodiscard]] double get_scale() const;
  [[nodiscard]] std::int64_t growth_tracker() const;  // updates without an overflow since the scale moved
  [[nodiscard]] std::int64_t skipped_steps() const;
  // What skipped_steps reads: i64 [], always the same tensor. Throws StateError before scale().
  [[nodiscard]] Tensor skipped() const;

  // scale, growth_factor, backoff_factor, growth_interval, growth_tracker, skipped_steps, on cpu; nothing when not enabled. Loading what
  // an enabled scaler saved continues bit for bit. A state for a scaler that is not enabled is ignored, and without one
  // ("state" is empty) the options' values stand: both with a warning. Throws ConfigError, with nothing changed, for
  // other names and for numbers out of range.
  [[nodiscard]] NamedTensors state_dict() const;
  void load_state_dict(const NamedTensors& state);

 private:
  struct State;
  [[nodiscard]] State& state() const;  // throws StateError for a scaler that was moved from
  std::unique_ptr<State> state_;
};

}  // namespace levin::optim
