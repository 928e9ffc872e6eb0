#include "train/optimize/optimizers.h"

#include <algorithm>
#include <set>
#include <utility>

#include "levin/autograd.h"
#include "levin/ops.h"
#include "train/run/run.h"

namespace levin::train {

std::vector<ParamRef> Optimizers::model_parameters() const {
  std::vector<ParamRef> parameters;
  std::set<const Tensor*> seen;
  for (const auto& o : all) {
    for (ParamRef& p : o->model_parameters()) {
      if (seen.insert(p.value).second) parameters.push_back(std::move(p));
    }
  }
  return parameters;
}

optim::GradScaler* Optimizers::scaler() const {
  optim::GradScaler* const scaler = run_.precision.scaler();
  return !run_.planning && scaler && scaler->enabled() ? scaler : nullptr;
}
Tensor Optimizers::scaled(const Tensor& loss) const {
  const Tensor objective = run_.precision.objective(loss);
  return scaler() ? objective.to(DType::f32) * scaler()->scale(objective.device()) : objective;
}
bool Optimizers::held_by_skipped_step() {
  const optim::GradScaler* const scaler = run_.precision.scaler();
  if (!scaler || run_.options.lr_on_skipped_step != OnSkippedStep::hold) return false;
  const SyncGuard own = run_.instruments.own_waits();
  const std::int64_t before = std::exchange(skipped_seen, scaler->skipped_steps());
  return skipped_seen != before;
}
void Optimizers::begin_fit() {
  looked_at_.clear();
  sync_grad = SyncGrad::yes;
  forget_scaling();
}

void Optimizers::forget_scaling() {
  if (scaler()) scaler()->forget();
  unscaled_.clear();
  stepped_.clear();
}
// A user who clips and then makes no step clears the gradients.
void Optimizers::forget_gradients(const optim::Optimizer& of) {
  if (std::erase(unscaled_, &of) > 0 && unscaled_.empty() && stepped_.empty()) forget_scaling();
}

// Note [When the loss scale moves]
// A gradient is divided by the scale that its loss was multiplied with, so all optimizers of one backward pass step
// under one scale. With automatic optimization the step moves it. With manual optimization it moves at the first
// backward pass after a step, or after training_step. Steps in the hooks of a batch's or an epoch's end move it before
// checkpoints are written.
void Optimizers::move_scale(BatchEnds batch_ends) {
  if (!scaler()) return;
  if (batch_ends == BatchEnds::yes && stepped_.empty() && !unscaled_.empty()) return forget_scaling();
  if (stepped_.empty() || (batch_ends == BatchEnds::no && !unscaled_.empty())) return;
  scaler()->update();
  unscaled_.clear();
  stepped_.clear();
  log_skipped_steps();
}
std::int64_t Optimizers::skipped_steps() const {
  const optim::GradScaler* const scaler = run_.precision.scaler();
  if (!scaler) return 0;
  return scaler->skipped_steps() +
         std::ranges::count_if(stepped_, [&](const auto* of) { return scaler->found_inf(*of).item() != 0; });
}
void Optimizers::log_skipped_steps() {
  run_.trainer.log("amp/skipped_steps", scaler()->skipped().to(DType::f64), {.on_step = true, .on_epoch = false});
}
// With manual optimization clipping may have unscaled the gradients before the step.
void Optimizers::unscale_once(optim::Optimizer& of, const Tensor& divisor) {
  if (std::find(unscaled_.begin(), unscaled_.end(), &of) != unscaled_.end()) return;
  if (std::find(stepped_.begin(), stepped_.end(), &of) != stepped_.end())
    fail<StateError>("fit: ", of.name(), " has stepped since the last backward pass; under a loss scale call ",
                     "manual_backward before it clips or steps again");
  scaler()->unscale_(of, divisor);
  unscaled_.push_back(&of);
  if (of.pieces().empty()) return;
  Tensor found = scaler()->found_inf(of);  // of all ranks: each has gradients of the same parameters
  run_.strategy->merge_found_inf(found);
}

// Warns at the first step of each optimizer in a fit if no parameter has a gradient: then no step changes a parameter.
void Optimizers::look_for_gradients(optim::Optimizer& of) {
  if (run_.trial || run_.planning || std::find(looked_at_.begin(), looked_at_.end(), &of) != looked_at_.end()) return;
  looked_at_.push_back(&of);
  const std::vector<ParamRef> pieces = of.pieces(), own = pieces.empty() ? of.model_parameters() : pieces;
  const bool any = std::any_of(own.begin(), own.end(), [](const ParamRef& p) { return has_grad(*p.value); });
  if (any) return;
  std::string names;
  for (std::size_t i = 0; i < std::min<std::size_t>(3, own.size()); ++i) names += (i > 0 ? ", " : "") + own[i].name;
  warn("W-TRAIN-NO-GRADIENT", WarningCategory::user,
       std::string("fit: ") + of.name() + " makes its first step and none of its " + text(own.size()) +
           " parameters (" + names + (own.size() > 3 ? ", ..." : "") +
           ") has a gradient, so it changes nothing; is the loss that of this model, and do they require grad?",
       Repeat::yes);
}

// Calls the hook with the true gradients, and clips them.
void Optimizers::prepare(optim::Optimizer& of) {
  const bool touched = run_.hooks.call(hooks::on_before_optimizer_step, of);
  if (run_.borrowed.manual) return;
  const bool changed = touched || run_.borrowed.overrides.configure_gradient_clipping;
  const Restore<const optim::GradScaler*> norm(norm_known_by_, changed ? nullptr : scaler());
  run_.borrowed.active->configure_gradient_clipping(of, run_.options.gradient_clip_val,
                                                    run_.options.gradient_clip_algorithm);
}

// Note [Gradients between backward and update]
// Where user code may look at gradients between backward and the update, they are unscaled and clipped in memory first:
// passes of their own. Elsewhere the optimizer finds norm and verdict in one pass and multiplies gradients as it reads
// them (Optimizer::step_clipped, GradScaler::step with options): two launches, the same bits in parameters and states
// but where step_clipped names an exception.
// User code is an override of on_before_optimizer_step, of on_before_zero_grad, which sees the gradients of the step
// before, and of the module's functions around the update; a precision plug-in of the user; manual optimization. Hooks
// inside of a step report that their default body ran, so the first step of a fit, which unscales in memory, finds
// whether callbacks and module override them (HookCalls::is_idle).
bool Optimizers::fuses(const optim::Optimizer& of) const {
  const Overrides& has = run_.borrowed.overrides;
  const bool by_value = run_.options.gradient_clip_val.value_or(0) > 0 &&
                        run_.options.gradient_clip_algorithm.value_or(ClipAlgorithm::norm) != ClipAlgorithm::norm;
  return !run_.borrowed.manual && !run_.planning && !by_value && !run_.precision.plugin() && !has.optimizer_step &&
         !has.optimizer_zero_grad && !has.configure_gradient_clipping &&
         run_.hooks.is_idle(hooks::on_before_optimizer_step) && run_.hooks.is_idle(hooks::on_before_zero_grad) &&
         of.fuses_clipping();
}
// For the profiler: no object has the hook.
void Optimizers::call_idle_hook(optim::Optimizer& of) { run_.hooks.call(hooks::on_before_optimizer_step, of); }

Tensor Optimizers::step(optim::Optimizer& of, const Function<Tensor()>& closure) {
  const bool manual = run_.borrowed.manual;
  const Window& window = run_.window;
  const double limit = run_.options.gradient_clip_val.value_or(0);
  const bool fused = fuses(of);
  if (!scaler()) {
    if (fused && limit > 0 && !window.weighs_exactly()) {
      Tensor loss = closure();
      if (loss.defined()) look_for_gradients(of);
      call_idle_hook(of);
      (void)of.step_clipped(limit);
      return loss;
    }
    bool prepared = false;
    Tensor of_closure = of.step([&] {
      Tensor loss = closure();
      if (manual || loss.defined()) look_for_gradients(of);
      of.gather_gradients();
      if (!manual && window.weight.defined()) optim::divide_gradients_(of.parameters(), window.divisor());
      if (manual || loss.defined()) {
        run_.precision.before_step(of);
        prepared = true;
      }
      prepare(of);
      return loss;
    });
    if (prepared) run_.precision.after_step(of);
    return of_closure;
  }
  Tensor loss = closure();
  if (!manual && !loss.defined()) return loss;
  look_for_gradients(of);
  Tensor divisor;
  if (!manual && window.weight.defined()) {
    const NoGrad off;
    const Tensor scale = scaler()->scale(loss.device());  // the weight may be where an offloaded optimizer is
    divisor = (scale.to(DType::f64) * window.divisor().to(scale.device())).to(DType::f32);
  }
  if (fused) {
    call_idle_hook(of);
    scaler()->step(of,
                   {.max_norm = limit > 0 ? std::optional(limit) : std::nullopt, .update = true, .divisor = divisor});
    log_skipped_steps();
  } else {
    unscale_once(of, divisor);
    run_.precision.before_step(of);
    prepare(of);
    scaler()->step(of);
    run_.precision.after_step(of);
    std::erase(unscaled_, &of);
    stepped_.push_back(&of);
    if (!manual) move_scale(BatchEnds::yes);
  }
  return loss;
}

// ---- Toggling

void Optimizers::toggle(const optim::Optimizer& only, const char* call) {
  if (handles.size() == 1) return;
  const auto named = [&](const optim::Optimizer* of) {
    const auto at = std::find_if(all.begin(), all.end(), [&](const auto& o) { return o.get() == of; });
    return text(at - all.begin()) + " (" + of->name() + ")";
  };
  if (toggled_)
    fail<StateError>(call, ": called for optimizer ", named(&only), " while optimizer ", named(toggled_),
                     " is toggled; end that first");
  std::set<const Tensor*> own;
  for (const ParamRef& p : only.model_parameters()) own.insert(p.value);
  const std::vector<ParamRef> parameters = model_parameters();
  flags_before_toggle_.reserve(parameters.size());
  for (const ParamRef& p : parameters) {
    flags_before_toggle_.emplace_back(p.value, p.value->requires_grad());
    if (!own.contains(p.value)) p.value->requires_grad_(false);
  }
  toggled_ = &only;
}

void Optimizers::untoggle() noexcept {
  for (const auto& [parameter, on] : flags_before_toggle_) parameter->requires_grad_(on);
  flags_before_toggle_.clear();
  toggled_ = nullptr;
}

}  // namespace levin::train
