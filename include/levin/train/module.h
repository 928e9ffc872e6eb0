// TrainModule: a module with its training step, its optimizers and its hooks.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

#include "levin/data.h"
#include "levin/function.h"
#include "levin/nn/module.h"
#include "levin/optim.h"
#include "levin/train/check_hooks.h"
#include "levin/train/hooks.h"
#include "levin/train/hparams.h"
#include "levin/train/metric.h"
#include "levin/train/options.h"
#include "levin/train/records.h"

namespace levin {

class OptimizerHandle;

// How the values of an epoch become one. mean weighs by batch size, the others do not weigh.
enum class EpochReduce : std::uint8_t { mean, sum, min, max };
// Of log().
struct LogOptions {
  bool prog_bar = false;  // show the value in the progress bar
  bool logger = true;     // false: no record has it; callbacks and the progress bar see it
  // A value for every log_every_n_steps-th step, in evaluations for each batch. Unset: true in steps and hooks of
  // training batches.
  std::optional<bool> on_step = {};
  // One value for the epoch or evaluation. Unset: true everywhere else. ConfigError if both are false.
  std::optional<bool> on_epoch = {};
  EpochReduce reduce = EpochReduce::mean;  // of values; a Metric has its own
  bool enable_graph = false;               // known from Lightning; true is a ConfigError, because log() keeps a number
  // Of several ranks: records of training steps have the mean over ranks; without it they have rank 0's value. Values
  // of epochs and evaluations are always those of all ranks' samples together. In evaluations records of steps are rank
  // 0's, because ranks may have different numbers of batches.
  bool sync_dist = false;
  // In an evaluation of several loaders: true appends "/dataloader_idx_k" to the name, false takes one mean over all.
  bool add_dataloader_idx = true;
  // The weight in the epoch's mean, 1 or more. Unset: size(0) of the batch's first tensor, 1 if it has no dimension.
  // Tensors of different sizes cause a warning, a batch without tensors is a ConfigError.
  std::optional<std::int64_t> batch_size = {};
  bool rank_zero_only = false;  // only rank 0's values count, and other ranks need not log the name
};

// What training_step returns: the loss, one element; or tensors by name, of which "loss" is the loss and the others are
// for callbacks; or nothing, {}, which adds no gradient.
class LEVIN_API StepOutput {
 public:
  StepOutput() = default;
  StepOutput(Tensor loss) : loss_(std::move(loss)) {}
  StepOutput(NamedTensors outputs);  // throws ConfigError without a "loss"
  // The sum of a batch's losses and its weight, the number of tokens or samples in it: one element each, on one device.
  // The loss is sum / weight; AccumulateWeighting::exact needs both. Throws ShapeError, DeviceError.
  [[nodiscard]] static StepOutput sum(const Tensor& sum, const Tensor& weight);
  [[nodiscard]] static StepOutput sum(const Tensor& sum, double weight);
  [[nodiscard]] const Tensor& loss() const { return loss_; }  // undefined: nothing was returned
  [[nodiscard]] const NamedTensors& outputs() const { return outputs_; }
  [[nodiscard]] const Tensor& summed() const { return sum_; }     // undefined: the loss alone was given
  [[nodiscard]] const Tensor& weight() const { return weight_; }  // f64

 private:
  Tensor loss_, sum_, weight_;
  NamedTensors outputs_;
};

// Whether a backward pass ends with the gradients of all ranks. no: gradients stay local and are added to.
enum class SyncGrad : bool { no, yes };

// When a schedule of the learning rate moves: after every `frequency` optimizer steps, or in the last batch of every
// `frequency` epochs. A plateau schedule reads `monitor` and moves when it is known: after the validation that follows
// a batch, or at the end of the epoch. With manual optimization no schedule moves by itself.
struct SchedulerConfig {
  std::shared_ptr<optim::Scheduler> scheduler;
  enum class Interval : std::uint8_t { epoch, step } interval = Interval::epoch;
  std::int64_t frequency = 1;
  std::string monitor{};  // the name of a logged value; a plateau schedule needs one (ConfigError)
  bool strict = true;     // a monitor that was not logged is a ConfigError; false: a warning, and no move
  std::string name{};     // of the learning rate in LearningRateMonitor; empty: "lr-" and the optimizer's type
};
// What configure_optimizers returns. More than one optimizer needs manual optimization (ConfigError). Without an
// optimizer nothing is trained, with a warning.
struct OptimizerConfig {
  std::vector<std::shared_ptr<optim::Optimizer>> optimizers{};
  std::vector<SchedulerConfig> schedulers{};
};

// The virtual functions of TrainModule that a module overrides.
struct Overrides {
  bool training_step = false, validation_step = false, test_step = false, predict_step = false;
  bool configure_optimizers = false, optimizer_step = false, optimizer_zero_grad = false;
  bool configure_gradient_clipping = false, configure_model = false;
  bool train_loader = false, val_loader = false, test_loader = false, predict_loader = false;
  bool on_before_batch_transfer = false, transfer_batch_to_device = false, on_after_batch_transfer = false;
};
// The same by name, for TrainModule::provides.
enum class Hook : std::uint8_t {
  training_step,
  validation_step,
  test_step,
  predict_step,
  configure_optimizers,
  optimizer_step,
  optimizer_zero_grad,
  configure_gradient_clipping,
  train_loader,
  val_loader,
  test_loader,
  predict_loader,
  on_before_batch_transfer,
  transfer_batch_to_device,
  on_after_batch_transfer,
};

// The base of the modules that Trainer::fit takes. Derive from TrainModuleOf, and override what differs. The order of
// all functions in a run is in levin/train/hooks.h.
//
//   struct Net : TrainModuleOf<Net> {
//     using TrainModuleOf::TrainModuleOf;
//     nn::Linear fc{*this, "fc", {.in = 2, .out = 1}};
//     StepOutput training_step(const Batch& b, std::int64_t) override { return mse_loss(fc(b[0]), b[1]); }
//     OptimizerConfig configure_optimizers() override {
//       return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1})}};
//     }
//   };
class LEVIN_API TrainModule : public nn::Module, public Hooks, public HasHParams {
 public:
  using Module::Module;

  // ---- Steps

  // The forward pass of a training batch; returns the loss. Modules have the mode that they had before the fit. fit
  // throws ConfigError without it.
  [[nodiscard]] virtual StepOutput training_step(const Batch& batch, std::int64_t batch_idx);
  // One batch of an evaluation, in eval mode and without recording; log() what it finds. fit skips validation without
  // validation_step; validate and test throw ConfigError without theirs.
  virtual void validation_step(const Batch& batch, std::int64_t batch_idx, std::int64_t dataloader_idx);
  virtual void test_step(const Batch& batch, std::int64_t batch_idx, std::int64_t dataloader_idx);
  // Returns the prediction for a batch. Default: the module called with the batch's first field.
  [[nodiscard]] virtual Tensor predict_step(const Batch& batch, std::int64_t batch_idx, std::int64_t dataloader_idx);

  // ---- Sizes and FLOPs in the summary (levin/train/summary.h), which runs the module once on shapes alone

  // A batch as the loader gives it, of which only shapes and dtypes are read:
  // {.fields = {empty({1, 3, 32, 32}, Device::meta())}}. Default: no fields, and a summary without sizes.
  [[nodiscard]] virtual Batch example_input() { return {}; }
  // Runs the module on that batch. Default: predict_step. Override it if that leaves out a part of the module.
  virtual void example_forward(const Batch& batch);

  // ---- Set-up

  // Makes layers that the constructor does not make. Called in every stage, after setup: do nothing if they are there.
  // Layers of setup and configure_model are converted to the precision, filled from a checkpoint, and trained.
  virtual void configure_model() {}
  // False: weights that a checkpoint lacks stay as they are, and weights that only the checkpoint has are left out; an
  // info line names both (I-CKPT-NAMES). Weights that both have must have one shape.
  [[nodiscard]] virtual bool strict_loading() const { return true; }
  // Makes the optimizers and schedules. All parameters are there, on their device, in their dtype, and with the values
  // of the checkpoint that the run resumes. trainer() may be asked, also estimated_stepping_batches(). fit throws
  // ConfigError without it.
  [[nodiscard]] virtual OptimizerConfig configure_optimizers();
  // Callbacks for this module. Each replaces the trainer's callbacks of its own class and of classes that it derives
  // from.
  [[nodiscard]] virtual std::vector<std::shared_ptr<Callback>> configure_callbacks() { return {}; }

  // ---- Loaders, for calls that are given neither a loader nor a data module with one. Each is asked for when it is
  // needed, once a stage or every reload_dataloaders_every_n_epochs epochs. The trainer owns the loader. Null: none.

  [[nodiscard]] virtual std::unique_ptr<data::DataLoader> train_loader() { return nullptr; }
  [[nodiscard]] virtual std::unique_ptr<data::DataLoader> val_loader() { return nullptr; }
  [[nodiscard]] virtual std::unique_ptr<data::DataLoader> test_loader() { return nullptr; }
  [[nodiscard]] virtual std::unique_ptr<data::DataLoader> predict_loader() { return nullptr; }
  // Whether the loader of an evaluation may give some ranks batches and others none. By default that is a ConfigError,
  // unless the trainer or a distributed sampler divides the loader, where it happens to data sets of few samples.
  [[nodiscard]] virtual bool allow_zero_length_with_multiple_devices() const { return false; }

  // ---- A batch on its way to the device. A data module that overrides the same function is asked instead. They are
  // called for a TrainModule in fit, validate, test, predict and evaluate.

  [[nodiscard]] virtual Batch on_before_batch_transfer(Batch batch) { return batch; }
  // Default: moves the fields.
  [[nodiscard]] virtual Batch transfer_batch_to_device(Batch batch, Device device);
  [[nodiscard]] virtual Batch on_after_batch_transfer(Batch batch) { return batch; }

  // ---- Automatic optimization, and its parts that may be overridden

  // False: manual optimization. training_step calls manual_backward, steps and clears the optimizers() itself. The
  // trainer divides, clips and clears no gradient and moves no schedule.
  [[nodiscard]] virtual bool automatic_optimization() const { return true; }
  // Must run the closure (forward and backward), which optimizer.step(closure) does; StateError if it does not. Called
  // in the last batch of an accumulation window.
  virtual void optimizer_step(std::int64_t epoch, std::int64_t batch_idx, OptimizerHandle& optimizer,
                              const Function<Tensor()>& closure);
  // Clears the gradients, after the forward pass of a window's first batch.
  virtual void optimizer_zero_grad(std::int64_t epoch, std::int64_t batch_idx, optim::Optimizer& optimizer);
  // Before a validation in fit if no accumulation window is open: gradients take no memory then. Not called with manual
  // optimization, whose windows only the module knows.
  virtual void on_validation_model_zero_grad();
  // Before the first hook of an evaluation. Default: sets all modules to eval mode. After the evaluation each module
  // has its own mode again.
  virtual void on_validation_model_eval();
  virtual void on_test_model_eval();
  virtual void on_predict_model_eval();
  // Clips the gradients before the optimizer's step. Default: clip_gradients with the trainer's options.
  virtual void configure_gradient_clipping(optim::Optimizer& optimizer, std::optional<double> gradient_clip_val,
                                           std::optional<ClipAlgorithm> gradient_clip_algorithm);

  // ---- For steps and hooks to call

  // Clips to gradient_clip_val by the algorithm, unset: norm. A value that is unset, 0 or less clips nothing. Throws
  // ConfigError if TrainerOptions::gradient_clip_val is another value.
  void clip_gradients(optim::Optimizer& optimizer, std::optional<double> gradient_clip_val,
                      std::optional<ClipAlgorithm> gradient_clip_algorithm = {});
  // The optimizers of configure_optimizers, in its order. Throws StateError outside of fit.
  [[nodiscard]] std::span<OptimizerHandle> optimizers();
  // OptimizerHandle::toggle_model without a scope, from toggle_optimizer to untoggle_optimizer. A fit that ends in
  // between restores the flags. Throw StateError while another optimizer is toggled, and outside of fit.
  void toggle_optimizer(OptimizerHandle& optimizer);
  void untoggle_optimizer(OptimizerHandle& optimizer);
  // backward(loss) with the run's loss scale, as Apex' scale_loss. Throws StateError outside of training_step and with
  // automatic optimization, ShapeError for a loss of more than one element.
  void manual_backward(const Tensor& loss);

  [[nodiscard]] bool provides(Hook hook) const;  // whether this module overrides the function
  [[nodiscard]] Trainer& trainer() const;        // throws StateError outside of a run
  // levin::log, the natural logarithm of each element: the functions below hide that name in a module.
  [[nodiscard]] static Tensor log(const Tensor& x);
  // As Trainer::log. Outside of a run they warn and keep nothing.
  void log(std::string_view name, const Tensor& value, const LogOptions& options = {});
  void log(std::string_view name, double value, const LogOptions& options = {});
  void log(std::string_view name, const Metric& metric, const LogOptions& options = {});
  template <std::integral I>
  void log(std::string_view name, I value, const LogOptions& options = {}) {
    warn_of_integral(name);
    log(name, static_cast<double>(value), options);
  }
  void log_dict(const NamedTensors& values, const LogOptions& options = {});
  void log_dict(const Metrics& values, const LogOptions& options = {});
  void print(std::string_view line) const;  // as Trainer::print; outside of a run on stdout

 private:
  friend class Trainer;
  template <class, class>
  friend class TrainModuleOf;
  static void warn_of_integral(std::string_view name);
  [[nodiscard]] bool may_log() const;
  [[nodiscard]] virtual Overrides overrides() const = 0;
  [[nodiscard]] virtual Tensor call(const Batch& batch) = 0;
  [[noreturn]] void fail_not_named(const std::type_info& named) const;
  [[noreturn]] static void fail_not_callable();
  // The tree whose mode, buffers and generators are the run's; null for bare tensors.
  [[nodiscard]] virtual nn::Module* tree() { return this; }
  Trainer* trainer_ = nullptr;
};

// Shows the trainer which functions Derived overrides, so that fit can say before a run what is missing. These
// functions are public and not overloaded. A struct derived from such a module names itself again, else its first call
// throws ConfigError:
//
//   struct Deeper : TrainModuleOf<Deeper, Net> {};
//
// A public member that has the name of a function of TrainModule or Hooks and another signature, which hides the
// function instead of overriding it, does not compile.
template <class Derived, class Base = TrainModule>
class TrainModuleOf : public Base {
 public:
  using Base::Base;

 private:
  [[nodiscard]] Overrides overrides() const override {
    detail::check_module_hooks<Derived, TrainModule>();
    if (typeid(*this) != typeid(Derived)) this->fail_not_named(typeid(Derived));
    using D = Derived;
    using T = TrainModule;
    return {.training_step = detail::overrides(&D::training_step, &T::training_step),
            .validation_step = detail::overrides(&D::validation_step, &T::validation_step),
            .test_step = detail::overrides(&D::test_step, &T::test_step),
            .predict_step = detail::overrides(&D::predict_step, &T::predict_step),
            .configure_optimizers = detail::overrides(&D::configure_optimizers, &T::configure_optimizers),
            .optimizer_step = detail::overrides(&D::optimizer_step, &T::optimizer_step),
            .optimizer_zero_grad = detail::overrides(&D::optimizer_zero_grad, &T::optimizer_zero_grad),
            .configure_gradient_clipping =
                detail::overrides(&D::configure_gradient_clipping, &T::configure_gradient_clipping),
            .configure_model = detail::overrides(&D::configure_model, &T::configure_model),
            .train_loader = detail::overrides(&D::train_loader, &T::train_loader),
            .val_loader = detail::overrides(&D::val_loader, &T::val_loader),
            .test_loader = detail::overrides(&D::test_loader, &T::test_loader),
            .predict_loader = detail::overrides(&D::predict_loader, &T::predict_loader),
            .on_before_batch_transfer = detail::overrides(&D::on_before_batch_transfer, &T::on_before_batch_transfer),
            .transfer_batch_to_device = detail::overrides(&D::transfer_batch_to_device, &T::transfer_batch_to_device),
            .on_after_batch_transfer = detail::overrides(&D::on_after_batch_transfer, &T::on_after_batch_transfer)};
  }
  [[nodiscard]] Tensor call(const Batch& batch) override {
    if constexpr (requires(Derived & d, const Tensor& x) {
                    { d(x) } -> std::convertible_to<Tensor>;
                  })
      return static_cast<Derived&>(*this)(batch[0]);
    else
      TrainModule::fail_not_callable();
  }
};

}  // namespace levin
