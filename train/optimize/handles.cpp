// The optimizers of a module: OptimizerHandle, and toggling.
#include "levin/ops.h"
#include "train/run/run.h"

namespace levin {

void OptimizerHandle::step() {
  (void)step([] { return Tensor(); });
}
Tensor OptimizerHandle::step(const Function<Tensor()>& closure) {
  Trainer::Run& run = Trainer::Run::of(*trainer_);
  if (!run.borrowed.manual) return run.optimizers.step(*optimizer_, closure);
  const PhaseScope phase(run.instruments.times, Phase::optimizer);
  Tensor loss = run.optimizers.step(*optimizer_, [&] {
    const PhaseScope inside(run.instruments.times, Phase::forward);
    return closure();
  });
  ++run.progress.global_step;
  run.instruments.times.count_step();
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
void OptimizerHandle::zero_grad(optim::SetToNone set_to_none) {
  optimizer_->zero_grad(set_to_none);
  Trainer::Run::of(*trainer_).optimizers.forget_gradients(*optimizer_);
}

struct ToggledModel::State {
  Trainer::Run* run;
};
ToggledModel::ToggledModel(std::unique_ptr<State> state) : state_(std::move(state)) {}
ToggledModel::ToggledModel(ToggledModel&&) noexcept = default;
ToggledModel::~ToggledModel() {
  if (!state_) return;
  state_->run->optimizers.untoggle();
  state_->run->optimizers.sync_grad = SyncGrad::yes;
}

ToggledModel OptimizerHandle::toggle_model(SyncGrad sync_grad) {
  Trainer::Run& run = Trainer::Run::of(*trainer_);
  run.optimizers.toggle(*optimizer_, "toggle_model");
  run.optimizers.sync_grad = sync_grad;
  return ToggledModel(std::make_unique<ToggledModel::State>(&run));
}

void TrainModule::toggle_optimizer(OptimizerHandle& optimizer) {
  if (!Trainer::Run::of(trainer()).in_fit) fail<StateError>("toggle_optimizer: called outside of fit");
  Trainer::Run::of(trainer()).optimizers.toggle(optimizer.optimizer(), "toggle_optimizer");
}
void TrainModule::untoggle_optimizer(OptimizerHandle& optimizer) {
  Trainer::Run& run = Trainer::Run::of(trainer());
  if (!run.in_fit) fail<StateError>("untoggle_optimizer: called outside of fit");
  if (run.optimizers.toggled() && run.optimizers.toggled() != &optimizer.optimizer())
    fail<StateError>("untoggle_optimizer: called for ", optimizer.optimizer().name(),
                     " while another optimizer is toggled; name that one");
  run.optimizers.untoggle();
}

}  // namespace levin
