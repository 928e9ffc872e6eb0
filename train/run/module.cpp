// The default bodies of TrainModule, and what a module asks its trainer for.
#include <cstdio>
#include <typeinfo>

#include "levin/autograd.h"
#include "levin/ops.h"
#include "tensor/text/type_name.h"
#include "train/data/transfer.h"
#include "train/run/run.h"
#include "train/strategy/parts.h"

namespace levin {

Trainer& TrainModule::trainer() const {
  if (!trainer_) fail<StateError>("TrainModule: trainer() needs a run; call it inside a hook or a step");
  return *trainer_;
}

StepOutput TrainModule::training_step(const Batch&, std::int64_t) {
  fail<ConfigError>("fit: the module has no training_step; override it");
}
void TrainModule::validation_step(const Batch&, std::int64_t, std::int64_t) {
  fail<ConfigError>("validate: the module has no validation_step; override it");
}
void TrainModule::test_step(const Batch&, std::int64_t, std::int64_t) {
  fail<ConfigError>("test: the module has no test_step; override it");
}
Tensor TrainModule::predict_step(const Batch& batch, std::int64_t, std::int64_t) { return call(batch); }
void TrainModule::example_forward(const Batch& batch) { (void)predict_step(batch, 0, 0); }
OptimizerConfig TrainModule::configure_optimizers() {
  fail<ConfigError>("fit: the module has no configure_optimizers; override it");
}

Batch TrainModule::transfer_batch_to_device(Batch batch, Device device) {
  return train::move_batch(std::move(batch), device);
}

void TrainModule::optimizer_step(std::int64_t, std::int64_t, OptimizerHandle& optimizer,
                                 const Function<Tensor()>& closure) {
  (void)optimizer.step(closure);
}
void TrainModule::optimizer_zero_grad(std::int64_t, std::int64_t, optim::Optimizer& optimizer) {
  optimizer.zero_grad();
}
void TrainModule::on_validation_model_zero_grad() {
  for (OptimizerHandle& o : optimizers()) o.zero_grad();
}
void TrainModule::on_validation_model_eval() {
  if (nn::Module* const all = tree()) all->train(false);
}
void TrainModule::on_test_model_eval() {
  if (nn::Module* const all = tree()) all->train(false);
}
void TrainModule::on_predict_model_eval() {
  if (nn::Module* const all = tree()) all->train(false);
}
void TrainModule::configure_gradient_clipping(optim::Optimizer& optimizer, std::optional<double> value,
                                              std::optional<ClipAlgorithm> algorithm) {
  clip_gradients(optimizer, value, algorithm);
}
void TrainModule::clip_gradients(optim::Optimizer& optimizer, std::optional<double> value,
                                 std::optional<ClipAlgorithm> algorithm) {
  Trainer::Run::of(trainer()).optimizers.clip(optimizer, value, algorithm);
}
std::span<OptimizerHandle> TrainModule::optimizers() { return trainer().optimizers(); }
void TrainModule::manual_backward(const Tensor& loss) { Trainer::Run::of(trainer()).manual_backward(loss); }

bool TrainModule::provides(Hook hook) const {
  const Overrides has = overrides();
  switch (hook) {
    case Hook::training_step: return has.training_step;
    case Hook::validation_step: return has.validation_step;
    case Hook::test_step: return has.test_step;
    case Hook::predict_step: return has.predict_step;
    case Hook::configure_optimizers: return has.configure_optimizers;
    case Hook::optimizer_step: return has.optimizer_step;
    case Hook::optimizer_zero_grad: return has.optimizer_zero_grad;
    case Hook::configure_gradient_clipping: return has.configure_gradient_clipping;
    case Hook::train_loader: return has.train_loader;
    case Hook::val_loader: return has.val_loader;
    case Hook::test_loader: return has.test_loader;
    case Hook::predict_loader: return has.predict_loader;
    case Hook::on_before_batch_transfer: return has.on_before_batch_transfer;
    case Hook::transfer_batch_to_device: return has.transfer_batch_to_device;
    case Hook::on_after_batch_transfer: return has.on_after_batch_transfer;
  }
  return false;
}

Tensor TrainModule::log(const Tensor& x) { return levin::log(x); }
bool TrainModule::may_log() const {
  if (train::ReplicaThread::here()) return false;
  if (trainer_) return true;
  warn("W-TRAIN-LOG", WarningCategory::user, "log: the module is not attached to a trainer; the value is ignored");
  return false;
}
void TrainModule::log(std::string_view name, const Tensor& value, const LogOptions& options) {
  if (may_log()) trainer_->log(name, value, options);
}
void TrainModule::log(std::string_view name, double value, const LogOptions& options) {
  if (may_log()) trainer_->log(name, value, options);
}
void TrainModule::log(std::string_view name, const Metric& metric, const LogOptions& options) {
  if (may_log()) trainer_->log(name, metric, options);
}
void TrainModule::log_dict(const NamedTensors& values, const LogOptions& options) {
  if (may_log()) trainer_->log_dict(values, options);
}
void TrainModule::log_dict(const Metrics& values, const LogOptions& options) {
  if (may_log()) trainer_->log_dict(values, options);
}
void TrainModule::print(std::string_view line) const {
  if (trainer_) return trainer_->print(line);
  std::printf("%.*s\n", static_cast<int>(line.size()), line.data());
}
void TrainModule::warn_of_integral(std::string_view name) {
  warn("W-LOG-INTEGRAL", WarningCategory::user,
       "log: \"" + std::string(name) + "\" is an integer and is kept as a floating number; convert it to say so");
}

void TrainModule::fail_not_named(const std::type_info& named) const {
  const std::string type = type_name();
  fail<ConfigError>("Trainer: ", type, " is derived from a module that names itself (", detail::type_name(named),
                    "), so that what it overrides would not be seen; write struct ", type, " : TrainModuleOf<", type,
                    ", Base> with that module as Base");
}
void TrainModule::fail_not_callable() {
  fail<ConfigError>(
      "predict: the module has no predict_step and can not be called with a tensor; override predict_step, or "
      "give it Tensor operator()(const Tensor&)");
}

}  // namespace levin
