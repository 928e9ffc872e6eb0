// The optimizers of a fit: handles, schedules, the loss scale of their gradients, clipping, toggling.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "levin/train.h"

namespace levin::train {

// What configure_optimizers gave, or a fit of an optimizer and a function. Throws ConfigError.
void check_optimizers(const OptimizerConfig& config, bool manual);

class Optimizers {
 public:
  explicit Optimizers(Trainer::Run& run) : run_(run) {}

  [[nodiscard]] optim::Optimizer& front() const { return *all.front(); }
  [[nodiscard]] std::vector<ParamRef> model_parameters() const;  // of all optimizers, each once
  [[nodiscard]] optim::GradScaler* scaler() const;               // null: no loss scale, or a plan on meta
  [[nodiscard]] Tensor scaled(const Tensor& loss) const;         // what backward is given

  // ---- Of a step
  // Runs the closure; then gradients are unscaled and divided by the window's weight, hooks run, gradients are clipped,
  // and the optimizer updates. Without a loss scale all of that runs within the optimizer's own call, because LBFGS
  // runs the closure again.
  Tensor step(optim::Optimizer& optimizer, const Function<Tensor()>& closure);
  void clip(optim::Optimizer& optimizer, std::optional<double> value, std::optional<ClipAlgorithm> algorithm);
  void forget_scaling();  // what an exception left open
  // The other optimizers' parameters require no gradients until untoggle; nothing with one optimizer.
  void toggle(const optim::Optimizer& only, const char* call);
  void untoggle() noexcept;
  [[nodiscard]] const optim::Optimizer* toggled() const { return toggled_; }

  // ---- Schedules: those that count, and those that watch a metric
  void advance(SchedulerConfig::Interval interval);
  void advance_plateaus(SchedulerConfig::Interval interval);

  // Whether the loss scale skipped the step that was just made, and lr_on_skipped_step holds schedules for that. Reads
  // from the device where it holds them.
  [[nodiscard]] bool held_by_skipped_step();

  void begin_fit();
  std::vector<std::shared_ptr<optim::Optimizer>> all;
  std::vector<OptimizerHandle> handles;
  std::vector<SchedulerConfig> schedulers;
  std::int64_t skipped_seen = 0;  // steps that the loss scale skipped, when the host last looked

 private:
  void unscale_once(optim::Optimizer& of, const Tensor& divisor = {});
  void look_for_gradients(optim::Optimizer& of);
  void prepare(optim::Optimizer& of);
  Trainer::Run& run_;
  std::vector<const optim::Optimizer*> unscaled_;     // since their last step
  std::vector<const optim::Optimizer*> looked_at_;    // in this fit, for gradients
  const optim::GradScaler* norm_known_by_ = nullptr;  // the norm of the gradients that are clipped
  const optim::Optimizer* toggled_ = nullptr;
  std::vector<std::pair<Tensor*, bool>> flags_before_toggle_;  // requires_grad of parameters of all optimizers
};

}  // namespace levin::train
