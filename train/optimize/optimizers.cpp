// What happens to the optimizers in a step: the loss scale, clipping, manual optimization, toggling.
#include <algorithm>
#include <set>

#include "levin/autograd.h"
#include "levin/ops.h"
#include "train/run/run.h"

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
    const bool touched = call(train::hooks::on_before_optimizer_step, of);
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
  const PhaseScope phase(times, Phase::backward);
  call(train::hooks::on_before_backward, scaled.detach());
  backward(scaled);
  call(train::hooks::on_after_backward);
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
  if (!run.manual) return run.optimizer_step(*optimizer_, closure);
  const PhaseScope phase(run.times, Phase::optimizer);
  Tensor loss = run.optimizer_step(*optimizer_, [&] {
    const PhaseScope inside(run.times, Phase::forward);
    return closure();
  });
  ++run.global_step;
  run.times.count_step();
  return loss;
}
std::vector<ParamGroup> OptimizerHandle::param_groups() const {
  std::vector<ParamGroup> all;
  for (int g = 0; g < optimizer_->groups(); ++g)
    all.push_back({.parameters = optimizer_->parameters(g),
                   .lr = optimizer_->lr(g),
                   .momentum = optimizer_->momentum(g),
                   .weight_decay = optimizer_->weight_decay(g)});
  return all;
}
void OptimizerHandle::zero_grad(optim::SetToNone set_to_none) { optimizer_->zero_grad(set_to_none); }

struct ToggledModel::State {
  Trainer::Run* run;
};
ToggledModel::ToggledModel(std::unique_ptr<State> state) : state_(std::move(state)) {}
ToggledModel::ToggledModel(ToggledModel&&) noexcept = default;
ToggledModel::~ToggledModel() {
  if (state_) state_->run->untoggle();
}

void Trainer::Run::toggle(const optim::Optimizer& only, const char* call) {
  if (handles.size() == 1) return;
  const auto named = [&](const optim::Optimizer* of) {
    const auto at = std::find_if(optimizers.begin(), optimizers.end(), [&](const auto& o) { return o.get() == of; });
    return text(at - optimizers.begin()) + " (" + of->name() + ")";
  };
  if (toggled)
    fail<StateError>(call, ": called for optimizer ", named(&only), " while optimizer ", named(toggled),
                     " is toggled; end that first");
  std::set<const Tensor*> own;
  for (const ParamRef& p : only.model_parameters()) own.insert(p.value);
  const std::vector<ParamRef> all = model_parameters();
  flags_before_toggle.reserve(all.size());
  for (const ParamRef& p : all) {
    flags_before_toggle.emplace_back(p.value, p.value->requires_grad());
    if (!own.contains(p.value)) p.value->requires_grad_(false);
  }
  toggled = &only;
}

void Trainer::Run::untoggle() noexcept {
  for (const auto& [parameter, on] : flags_before_toggle) parameter->requires_grad_(on);
  flags_before_toggle.clear();
  toggled = nullptr;
}

ToggledModel OptimizerHandle::toggle_model(SyncGrad) {
  Trainer::Run& run = *trainer_->run_;
  run.toggle(*optimizer_, "toggle_model");
  if (run.handles.size() == 1) return ToggledModel(nullptr);
  return ToggledModel(std::make_unique<ToggledModel::State>(&run));
}

void TrainModule::toggle_optimizer(OptimizerHandle& optimizer) {
  if (!trainer().run_->in_fit) fail<StateError>("toggle_optimizer: called outside of fit");
  trainer().run_->toggle(optimizer.optimizer(), "toggle_optimizer");
}
void TrainModule::untoggle_optimizer(OptimizerHandle& optimizer) {
  Trainer::Run& run = *trainer().run_;
  if (!run.in_fit) fail<StateError>("untoggle_optimizer: called outside of fit");
  if (run.toggled && run.toggled != &optimizer.optimizer())
    fail<StateError>("untoggle_optimizer: called for ", optimizer.optimizer().name(),
                     " while another optimizer is toggled; name that one");
  run.untoggle();
}

}  // namespace levin
