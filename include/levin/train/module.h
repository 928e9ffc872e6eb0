// TrainModule: a module that knows how it is trained.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
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

// How the values of an epoch become one: the mean weighted by batch size, or without weights.
enum class EpochReduce : std::uint8_t { mean, sum, min, max };
struct LogOptions {
  bool prog_bar = false;  // show it in the progress bar
  bool logger = true;     // false: callbacks and the progress bar see it, no record has it
  // A value every log_every_n_steps, in evaluations of each batch; default: in training batches.
  std::optional<bool> on_step = {};
  std::optional<bool> on_epoch = {};       // the batch-size-weighted mean; default: everywhere else
  EpochReduce reduce = EpochReduce::mean;  // of values; a Metric says itself
  bool enable_graph = false;               // what is logged becomes a number: true is a ConfigError
  bool sync_dist = false;                  // the mean over ranks; of one rank that is its own value
  bool add_dataloader_idx = true;  // of several loaders: name/dataloader_idx_k; false: a mean over all, as named
  // The weight in the epoch's mean. Default: size(0) of the batch's first tensor, 1 where that has no dimension; fields that
  // differ warn, and a batch without tensors is a ConfigError.
  std::optional<std::int64_t> batch_size = {};
  bool rank_zero_only = false;  // the value of rank 0, where there are more
};

// What a training step gives: the loss, one element; the loss among other tensors for callbacks, as "loss"; or nothing, {}: then
// the batch adds no gradient.
class LEVIN_API StepOutput {
 public:
  StepOutput() = default;
  StepOutput(Tensor loss) : loss_(std::move(loss)) {}
  StepOutput(NamedTensors outputs);  // throws ConfigError without a "loss"
  // The sum of the losses of a batch, one element, and what it weighs: how many tokens or samples it is of, one element on the same
  // device. The loss is sum / weight; AccumulateWeighting::exact needs both. Throws ShapeError, DeviceError.
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

// When a schedule of the learning rate moves: after every `frequency` optimizer steps, or in the last batch of every `frequency`
// epochs. A plateau schedule looks at `monitor` and moves when that is known: at the end of an epoch, or of a validation.
struct SchedulerConfig {
  std::shared_ptr<optim::Scheduler> scheduler;
  enum class Interval : std::uint8_t { epoch, step } interval = Interval::epoch;
  std::int64_t frequency = 1;
  std::string monitor{};
  bool strict = true;  // a monitor that was not logged is a ConfigError; false: a warning, and no move
  std::string name{};  // in LearningRateMonitor
};
// Manual optimization may have several optimizers.
struct OptimizerConfig {
  std::vector<std::shared_ptr<optim::Optimizer>> optimizers{};
  std::vector<SchedulerConfig> schedulers{};
};

// Which of the virtual functions below a module overrides.
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

// The base of modules that the trainer's long door takes; derive from TrainModuleOf. Its parameters are those of the module tree
// below it.
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

  // ---- Steps. Called in training mode; in the others' case in eval mode without recording, where they log what they find.
  [[nodiscard]] virtual StepOutput training_step(const Batch& batch, std::int64_t batch_idx);
  virtual void validation_step(const Batch& batch, std::int64_t batch_idx, std::int64_t dataloader_idx);
  virtual void test_step(const Batch& batch, std::int64_t batch_idx, std::int64_t dataloader_idx);
  // Default: the module called with the batch's first field.
  [[nodiscard]] virtual Tensor predict_step(const Batch& batch, std::int64_t batch_idx, std::int64_t dataloader_idx);

  // ---- For the sizes and FLOPs of the summary (levin/train/summary.h), which runs this once on shapes alone
  // A batch as a loader gives it, of which only shapes and dtypes are read: {.fields = {empty({1, 3, 32, 32}, Device::meta())}}.
  // Default: without fields, and no sizes.
  [[nodiscard]] virtual Batch example_input() { return {}; }
  // What is done with it. Default: predict_step. To be overridden where that leaves out a part of the module.
  virtual void example_forward(const Batch& batch);

  // ---- Set-up
  // Makes layers where they are not made in the constructor. Called in every stage, behind setup: once it has made them, do nothing. What
  // setup and this make is converted by the precision, trained, and filled from a checkpoint.
  virtual void configure_model() {}
  // False: a checkpoint may lack weights of this module, which stay as they are, and hold others, which are left; an info line names
  // them. Those that both have must have one shape.
  [[nodiscard]] virtual bool strict_loading() const { return true; }
  // Behind setup and configure_model, so that all parameters are there, with the values of the checkpoint that the run goes on from;
  // trainer() may be asked, also estimated_stepping_batches().
  [[nodiscard]] virtual OptimizerConfig configure_optimizers();
  // More callbacks; one replaces those of the trainer that are of its class or of one that it derives from.
  [[nodiscard]] virtual std::vector<std::shared_ptr<Callback>> configure_callbacks() { return {}; }

  // ---- Data, where the call is given no loader and no data module that has one: asked for when it is needed, train_loader behind the
  // sanity check, and once a stage, or as often as TrainerOptions::reload_dataloaders_every_n_epochs says. The trainer owns it.
  // Null: none.
  [[nodiscard]] virtual std::unique_ptr<data::DataLoader> train_loader() { return nullptr; }
  [[nodiscard]] virtual std::unique_ptr<data::DataLoader> val_loader() { return nullptr; }
  [[nodiscard]] virtual std::unique_ptr<data::DataLoader> test_loader() { return nullptr; }
  [[nodiscard]] virtual std::unique_ptr<data::DataLoader> predict_loader() { return nullptr; }

  // ---- Batches on their way to the device, where the data module does not override the same
  [[nodiscard]] virtual Batch on_before_batch_transfer(Batch batch) { return batch; }
  [[nodiscard]] virtual Batch transfer_batch_to_device(Batch batch, Device device);
  [[nodiscard]] virtual Batch on_after_batch_transfer(Batch batch) { return batch; }

  // ---- Automatic optimization, and what of it can be done otherwise
  // False: training_step calls manual_backward, and steps and clears the optimizers() itself; nothing is divided, clipped, cleared
  // or scheduled for it.
  [[nodiscard]] virtual bool automatic_optimization() const { return true; }
  // Has to run the closure (forward, backward), which it may do by optimizer.step(closure).
  virtual void optimizer_step(std::int64_t epoch, std::int64_t batch_idx, OptimizerHandle& optimizer,
                              const Function<Tensor()>& closure);
  virtual void optimizer_zero_grad(std::int64_t epoch, std::int64_t batch_idx, optim::Optimizer& optimizer);
  // Before a validation in fit, outside of an open window: gradients take no memory then. Not with manual optimization, of whose
  // windows only the module knows.
  virtual void on_validation_model_zero_grad();
  // Before the first hook of a validation, a test or a prediction. Default: all modules go to eval mode. Each module's
  // own mode is restored behind the evaluation.
  virtual void on_validation_model_eval();
  virtual void on_test_model_eval();
  virtual void on_predict_model_eval();
  virtual void configure_gradient_clipping(optim::Optimizer& optimizer, std::optional<double> gradient_clip_val,
                                           std::optional<ClipAlgorithm> gradient_clip_algorithm);
  // Clips by `value` and `algorithm` (norm when unset); nothing for an unset or 0 value. Throws ConfigError when the trainer was told
  // another value.
  void clip_gradients(optim::Optimizer& optimizer, std::optional<double> gradient_clip_val,
                      std::optional<ClipAlgorithm> gradient_clip_algorithm = {});
  // The optimizers that configure_optimizers returned, in its order. Throws StateError outside of fit.
  [[nodiscard]] std::span<OptimizerHandle> optimizers();
  // OptimizerHandle::toggle_model without a scope: from toggle_optimizer to untoggle_optimizer of the same optimizer. A
  // fit that ends in between puts the flags back. Throw StateError where another optimizer is toggled, and outside of
  // fit.
  void toggle_optimizer(OptimizerHandle& optimizer);
  void untoggle_optimizer(OptimizerHandle& optimizer);
  // backward(loss) with the run's loss scale, as Apex' scale_loss. Throws StateError outside of a training step and with automatic optimization.
  void manual_backward(const Tensor& loss);

  // Whether this module overrides the function.
  [[nodiscard]] bool provides(Hook hook) const;

  [[nodiscard]] Trainer& trainer() const;  // throws StateError outside of a run
  // The natural logarithm of each element, levin::log, which the functions below would hide in a module.
  [[nodiscard]] static Tensor log(const Tensor& x);
  // Trainer::log; outside of a run a warning, and nothing is kept.
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
  void print(std::string_view line) const;  // Trainer::print; outside of a run on stdout

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

// Tells the trainer which functions of Derived are its own, so that it can say before a run what is missing. A struct derived from
// such a module names itself again: struct Deeper : TrainModuleOf<Deeper, Net>. One that does not is a ConfigError when it meets
// the trainer. The functions are public and not overloaded. A public member that has the name of a function of
// TrainModule or Hooks and another signature, which would hide the function instead of overriding it, does not compile.
template <class Derived, class Base = TrainModule>
class TrainModuleOf : public Base {
 public:
  using Base::Base;

 private:
  template <class A, class B>
  static constexpr bool differ = !std::is_same_v<A, B>;
  [[nodiscard]] Overrides overrides() const override {
    detail::check_module_hooks<Derived, TrainModule>();
    if (typeid(*this) != typeid(Derived)) this->fail_not_named(typeid(Derived));
    using D = Derived;
    using T = TrainModule;
    return {.training_step = differ<decltype(&D::training_step), decltype(&T::training_step)>,
            .validation_step = differ<decltype(&D::validation_step), decltype(&T::validation_step)>,
            .test_step = differ<decltype(&D::test_step), decltype(&T::test_step)>,
            .predict_step = differ<decltype(&D::predict_step), decltype(&T::predict_step)>,
            .configure_optimizers = differ<decltype(&D::configure_optimizers), decltype(&T::configure_optimizers)>,
            .optimizer_step = differ<decltype(&D::optimizer_step), decltype(&T::optimizer_step)>,
            .optimizer_zero_grad = differ<decltype(&D::optimizer_zero_grad), decltype(&T::optimizer_zero_grad)>,
            .configure_gradient_clipping =
                differ<decltype(&D::configure_gradient_clipping), decltype(&T::configure_gradient_clipping)>,
            .configure_model = differ<decltype(&D::configure_model), decltype(&T::configure_model)>,
            .train_loader = differ<decltype(&D::train_loader), decltype(&T::train_loader)>,
            .val_loader = differ<decltype(&D::val_loader), decltype(&T::val_loader)>,
            .test_loader = differ<decltype(&D::test_loader), decltype(&T::test_loader)>,
            .predict_loader = differ<decltype(&D::predict_loader), decltype(&T::predict_loader)>,
            .on_before_batch_transfer =
                differ<decltype(&D::on_before_batch_transfer), decltype(&T::on_before_batch_transfer)>,
            .transfer_batch_to_device =
                differ<decltype(&D::transfer_batch_to_device), decltype(&T::transfer_batch_to_device)>,
            .on_after_batch_transfer =
                differ<decltype(&D::on_after_batch_transfer), decltype(&T::on_after_batch_transfer)>};
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
