// What happens to the optimizers in a step: the loss scale, clipping, manual optimization, toggling.
#include <algorithm>
#include <set>

#include "levin/autograd.h"
#include "levin/ops.h"
#include "train/run.h"

namespace levin {

using train::Restore;

std::vector<ParamRef> Trainer::Run::model_parameters() const {
  std::vector<ParamRef> all;
  std::set<const Tensor*> seen;
  for (const auto& o : optimizers) {
    for (ParamRef& p : o->model_parameters()) {
      if (seen.insert(p.value).second) all.push_back(std::move(p));
    }
  }
  return all;
}

void Trainer::Run::forget_scaling() {
  if (scaler()) scaler()->forget();
  unscaled.clear();
}
// With manual optimization clipping may have done it before the step.
void Trainer::Run::unscale_once(optim::Optimizer& of, const Tensor& divisor) {
  if (std::find(unscaled.begin(), unscaled.end(), &of) != unscaled.end()) return;
  scaler()->unscale_(of, divisor);
  unscaled.push_back(&of);
}

// At the first step of each optimizer in a fit: gradients of another model would leave it as it is for ever.
void Trainer::Run::look_for_gradients(optim::Optimizer& of) {
  if (trial || planning || std::find(looked_at.begin(), looked_at.end(), &of) != looked_at.end()) return;
  looked_at.push_back(&of);
  const std::vector<ParamRef> all = of.model_parameters();
  const bool any = std::any_of(all.begin(), all.end(), [](const ParamRef& p) { return p.value->grad().defined(); });
  if (any) return;
  std::string names;
  for (std::size_t i = 0; i < std::min<std::size_t>(3, all.size()); ++i) names += (i > 0 ? ", " : "") + all[i].name;
  warn("W-TRAIN-NO-GRADIENT", WarningCategory::user,
       std::string("fit: ") + of.name() + " makes its first step and none of its " + text(all.size()) +
           " parameters (" + names + (all.size() > 3 ? ", ..." : "") +
           ") has a gradient, so it changes nothing; is the loss that of this model, and do they require grad?",
       Repeat::yes);
}

// The closure, then true gradients (unscaled, and divided by the window's weight), hooks and clipping, then the update: within the optimizer's own call where there is no loss
// scale, because LBFGS runs the closure again.
Tensor Trainer::Run::optimizer_step(optim::Optimizer& of, const Function<Tensor()>& closure) {
  const auto prepare = [&] {
    const bool touched = call_in_step("on_before_optimizer_step", &Hooks::on_before_optimizer_step, of);
    if (manual) return;
    const bool changed = touched || overrides.configure_gradient_clipping;
    const Restore<const optim::GradScaler*> norm(knows_norm, changed ? nullptr : scaler());
    active->configure_gradient_clipping(of, options.gradient_clip_val, options.gradient_clip_algorithm);
  };
  if (!scaler()) {
    return of.step([&] {
      Tensor loss = closure();
      if (manual || loss.defined()) look_for_gradients(of);
      of.gather_gradients();
      if (!manual && window_weight.defined()) optim::divide_gradients_(of.parameters(), window_divisor());
      prepare();
      return loss;
    });
  }
  Tensor loss = closure();
  if (!manual && !loss.defined()) return loss;
  look_for_gradients(of);
  Tensor divisor;
  if (!manual && window_weight.defined()) {
    const NoGrad off;
    divisor = (scaler()->scale(window_weight.device()).to(DType::f64) * window_divisor()).to(DType::f32);
  }
  unscale_once(of, divisor);
  prepare();
  scaler()->step(of);
  scaler()->update();
  std::erase(unscaled, &of);
  trainer.log("amp/skipped_steps", scaler()->skipped().to(DType::f64), {.on_step = true, .on_epoch = false});
  return loss;
}

void Trainer::Run::manual_backward(const Tensor& loss) {
  if (!manual)
    fail<StateError>("manual_backward: the module optimizes automatically; let automatic_optimization() return false");
  if (!in_training_step) fail<StateError>("manual_backward: called outside of training_step");
  if (!loss.defined() || loss.numel() != 1)
    fail<ShapeError>("manual_backward: the loss is ", loss.defined() ? text(loss) : "undefined",
                     ", expected one element");
  const Autocast off = Autocast::off();  // backward is not run under it
  const Tensor scaled = scaler() ? loss.to(DType::f32) * scaler()->scale(loss.device()) : loss;
  gradients_torn = true;
  call_in_step("on_before_backward", &Hooks::on_before_backward, scaled.detach());
  backward(scaled);
  call_in_step("on_after_backward", &Hooks::on_after_backward);
}

void Trainer::Run::clip_gradients(optim::Optimizer& of, std::optional<double> value,
                                  std::optional<ClipAlgorithm> algorithm) {
  const double told = options.gradient_clip_val.value_or(0);
  if (told > 0 && value && *value != told)
    fail<ConfigError>("clip_gradients: gradient_clip_val is ", *value, " and the trainer was told ", told,
                      "; give it to one of them");
  const double limit = value.value_or(0);
  if (!(limit > 0)) return;
  if (manual && scaler())
    unscale_once(of);
  else if (manual)
    of.gather_gradients();
  const optim::Parameters parameters = of.parameters();
  if (algorithm.value_or(ClipAlgorithm::norm) == ClipAlgorithm::value)
    return optim::clip_grad_value_(parameters, limit);
  const bool any =
      std::any_of(parameters.begin(), parameters.end(), [](const ParamRef& p) { return p.value->grad().defined(); });
  if (!any) return;
  if (knows_norm)
    optim::clip_grads_with_norm_(parameters, limit, knows_norm->grad_norm(of));
  else
    optim::clip_grad_norm_(parameters, limit);
}

// ---- Handles

void OptimizerHandle::step() {
  (void)step([] { return Tensor(); });
}
Tensor OptimizerHandle::step(const Function<Tensor()>& closure) {
  Trainer::Run& run = *trainer_->run_;
  Tensor loss = run.optimizer_step(*optimizer_, closure);
  if (run.manual) ++run.global_step;
  return loss;
}
void OptimizerHandle::zero_grad(optim::SetToNone set_to_none) { optimizer_->zero_grad(set_to_none); }

struct ToggledModel::State {
  Trainer::Run* run;
  std::vector<std::pair<Tensor*, bool>> before;  // requires_grad of parameters of all optimizers
};
ToggledModel::ToggledModel(std::unique_ptr<State> state) : state_(std::move(state)) {}
ToggledModel::ToggledModel(ToggledModel&&) noexcept = default;
ToggledModel::~ToggledModel() {
  if (!state_) return;
  for (const auto& [parameter, on] : state_->before) parameter->requires_grad_(on);
  state_->run->toggled = nullptr;
}

ToggledModel OptimizerHandle::toggle_model(SyncGrad) {
  Trainer::Run& run = *trainer_->run_;
  if (run.handles.size() == 1) return ToggledModel(nullptr);
  const auto named = [&](const optim::Optimizer* of) {
    const auto at =
        std::find_if(run.optimizers.begin(), run.optimizers.end(), [&](const auto& o) { return o.get() == of; });
    return text(at - run.optimizers.begin()) + " (" + of->name() + ")";
  };
  if (run.toggled)
    fail<StateError>("toggle_model: called for optimizer ", named(optimizer_), " while optimizer ", named(run.toggled),
                     " is toggled; end the scope of that one first");
  auto state = std::make_unique<ToggledModel::State>();
  state->run = &run;
  std::set<const Tensor*> own;
  for (const ParamRef& p : optimizer_->model_parameters()) own.insert(p.value);
  for (const ParamRef& p : run.model_parameters()) {
    state->before.emplace_back(p.value, p.value->requires_grad());
    if (!own.contains(p.value)) p.value->requires_grad_(false);
  }
  run.toggled = optimizer_;
  return ToggledModel(std::move(state));
}

}  // namespace levin
