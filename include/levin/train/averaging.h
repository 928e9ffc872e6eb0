// Averages of a model's weights over its training, batch-norm statistics for them, and callbacks that do both in a run.
//
//   Trainer trainer({.callbacks = {std::make_shared<EmaWeightAveraging>(EmaWeightAveragingOptions{.decay = 0.999})}});
//
// Without a trainer:
//
//   AveragedModel average(net, {.avg_fn = ema_avg(0.999)});
//   for (const Batch& b : train) {
//     ...
//     opt.step();
//     average.update(net);
//   }
//   {
//     const auto swapped = average.swap_into(net);  // net computes with the averages
//     accuracy = trainer.evaluate(net, test, f);
//   }
//   average.copy_to(net);
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "levin/data.h"
#include "levin/function.h"
#include "levin/nn/module.h"
#include "levin/serialize.h"
#include "levin/tensor.h"
#include "levin/train/hooks.h"
#include "levin/train/options.h"

namespace levin {

// How an average takes the n + 1st value, n >= 1: swa_avg(), ema_avg(decay), or a function of one tensor,
// (average, value, n) -> new average, on the average's device and in its dtype. The first two update all tensors in one
// pass, on a device one launch for up to 384 of them.
class LEVIN_API AvgFn {
 public:
  AvgFn() = default;  // swa_avg()
  template <class F>
  requires(!std::same_as<std::remove_cvref_t<F>, AvgFn> &&
           std::is_invocable_r_v<Tensor, F&, const Tensor&, const Tensor&, std::int64_t>) AvgFn(F&& f)
      : each_(std::forward<F>(f)) {}

 private:
  friend class AveragedModel;
  friend LEVIN_API AvgFn ema_avg(double decay);
  std::optional<double> decay_;
  Function<Tensor(const Tensor& average, const Tensor& value, std::int64_t n)> each_;
};
// average + (value - average) / (n + 1): all values weigh the same.
// Izmailov et al., "Averaging Weights Leads to Wider Optima", 2018.
[[nodiscard]] LEVIN_API AvgFn swa_avg();
// decay average + (1 - decay) value: a value's weight falls with its age. Throws ConfigError outside of [0, 1].
// Polyak & Juditsky, "Acceleration of Stochastic Approximation by Averaging", 1992.
[[nodiscard]] LEVIN_API AvgFn ema_avg(double decay = 0.999);

// The same for all averaged tensors at once: updates averages[i] in place by values[i].
using MultiAvgFn = Function<void(const Tensors& averages, const Tensors& values, std::int64_t n)>;

struct AveragedModelOptions {
  std::optional<Device> device{};  // of the averages; unset: that of the module's first parameter
  AvgFn avg_fn{};                  // default: swa_avg()
  MultiAvgFn multi_avg_fn{};       // in place of avg_fn
  // True: floating buffers are averaged too; false: each update copies them. Buffers of metrics are left out.
  bool use_buffers = false;
};

// Averages of a module's parameters and buffers, by name; they require no gradient. Averages of f16 and bf16 values are
// f32, so small changes are not lost, and are rounded when the module gets them. Integers are copied, never averaged.
// An update waits for the device only if the averages are on the CPU and the module on a device. All functions throw
// ConfigError for a module whose names or shapes differ from those at construction.
class LEVIN_API AveragedModel {
 public:
  // Copies the module's tensors; n_averaged() is 0. Throws ConfigError for a module without tensors.
  explicit AveragedModel(nn::Module& module, AveragedModelOptions options = {});
  AveragedModel(nn::Module& module, std::shared_ptr<const AveragedModelOptions> options);
  AveragedModel(const AveragedModel&) = delete;
  AveragedModel& operator=(const AveragedModel&) = delete;

  // Updates the averages: the first call copies the module's values, later calls apply avg_fn. Throws StateError while
  // the averages are swapped into a module; CaptureError while a Graph is recorded, because replays do not count;
  // ShapeError or DTypeError if avg_fn returns another shape or dtype than the average's.
  void update(nn::Module& module);
  [[nodiscard]] std::int64_t n_averaged() const { return n_; }  // updates so far

  // Until the scope ends, the module's parameters and buffers are the averages. They record no gradient, and what the
  // module writes to its buffers stays in the averages. Gradients stay in the parameters, and training continues after
  // it as if there had been no swap. Handles are exchanged: on one device and with one dtype nothing is copied. Module
  // and averages outlive the scope. Nested scopes end in reverse order.
  class LEVIN_API Swap {
   public:
    ~Swap();
    Swap(const Swap&) = delete;
    Swap& operator=(const Swap&) = delete;
    // The module's own tensors, by the names of its state_dict.
    [[nodiscard]] NamedTensors own_state() const;

   private:
    friend class AveragedModel;
    Swap(AveragedModel& of, nn::Module& module);
    struct Exchanged {
      Tensor* place;
      Tensor live, lent;
      std::uint32_t version;  // of `lent`, then
    };
    AveragedModel* of_;
    std::vector<Exchanged> exchanged_;
  };
  [[nodiscard]] Swap swap_into(nn::Module& module) { return Swap(*this, module); }

  // Copies the averages into the module's own tensors.
  void copy_to(nn::Module& module) const;

  // "n_averaged", and "module.NAME" for each tensor of the module's state_dict, as in PyTorch. The tensors share the
  // averages' memory.
  [[nodiscard]] NamedTensors state() const;
  // Copies the values of a state(), from any device. Throws ConfigError for other names, shapes or kinds of dtype,
  // which changes nothing, and StateError while the averages are swapped into a module.
  void load(const NamedTensors& state);

 private:
  struct Entry {
    std::string name;
    Tensor value;
    bool averaged;    // or copied
    bool persistent;  // part of state()
  };
  // The module's tensors in the order of entries_, parameters first; checked.
  [[nodiscard]] std::vector<Tensor*> tensors_of(nn::Module& module, const char* op) const;
  void average(const Tensors& averages, Tensors values);

  std::shared_ptr<const AveragedModelOptions> options_;
  Device device_ = Device::cpu();
  std::vector<Entry> entries_;
  std::vector<std::string> left_out_;  // buffers of metrics
  Tensor decay_;                       // one f64 element on device_
  std::int64_t n_ = 0;
  int swapped_ = 0;
};

// Computes new running statistics for batch norms: the mean over one pass of the loader, in which `forward` is called
// on each batch, on the module's device, in training mode and without recording. For weights that were computed and not
// trained, as averages are. A batch norm that module.train() leaves in eval mode keeps its statistics. Modes and
// momenta are then as before; after an exception the statistics too. Loads nothing if there is no statistic to compute.
// Throws DataError if the loader gives no batch.
LEVIN_API void update_bn(data::DataLoader& loader, nn::Module& module, const Function<void(const Batch&)>& forward);
// The same with module(batch[0]) as the forward pass.
template <std::derived_from<nn::Module> M>
requires std::invocable<M&, const Tensor&>
void update_bn(data::DataLoader& loader, M& module) {
  update_bn(loader, module, [&](const Batch& batch) { (void)module(batch[0]); });
}

// ---- Callbacks

struct WeightAveragingOptions {
  std::optional<Device> device{};  // of the averages; unset: that of the parameters
  bool use_buffers = true;
  AvgFn avg_fn{};
  MultiAvgFn multi_avg_fn{};
};
// Averages the weights after optimizer steps. A fit's validations evaluate the average, so checkpoints compare its
// metrics, and at the end of training the module gets the average. Before the first update the module is validated and
// saved as it is. Each fit begins a new average. fit throws ConfigError for bare tensors.
//
// Derive from it to say when to update:
//   bool should_update(std::optional<std::int64_t> step, std::optional<std::int64_t>) override {
//     return step && *step >= 100;
//   }
//
// A checkpoint's weights are the average, ready for inference. The weights of the training are in the callback's state
// as "current_model_state.NAME", which for 16-bit weights also has the f32 averages. A run that resumes ends with the
// same bits as one that was not interrupted. From a checkpoint without an average, average and training start at its
// weights, with a warning. Outside of fit a checkpoint has the module's own weights.
class LEVIN_API WeightAveraging : public Callback {
 public:
  explicit WeightAveraging(WeightAveragingOptions options = {});
  ~WeightAveraging() override;
  // Asked after each optimizer step, with its index, and at the end of each epoch, with its index; the other argument
  // is unset. Both may answer true. Default: after every step.
  [[nodiscard]] virtual bool should_update(std::optional<std::int64_t> step_idx, std::optional<std::int64_t> epoch_idx);
  // Of the running or last fit; null before on_fit_start.
  [[nodiscard]] const AveragedModel* average() const { return average_.get(); }

  void setup(Stage stage) override;
  void teardown(Stage stage) override;
  void on_fit_start() override;
  void on_train_batch_end(const StepInfo& info) override;
  void on_train_epoch_end() override;
  void on_validation_epoch_start() override;
  void on_validation_epoch_end() override;
  void on_train_end() override;
  void on_fit_end() override;
  void on_exception(const std::exception& error) override;
  void on_save_checkpoint(CheckpointContent& content) override;
  void on_load_checkpoint(CheckpointContent& content) override;
  // One key for all derived classes, because two averages cannot be in the module at once.
  [[nodiscard]] std::string state_key() const override { return "WeightAveraging"; }
  [[nodiscard]] CallbackState state() const override;
  void load_state(const CallbackState& state) override;

 private:
  void begin();
  void update_of_epoch();
  std::shared_ptr<const AveragedModelOptions> options_;
  std::unique_ptr<AveragedModel> average_;        // from on_fit_start on
  std::unique_ptr<AveragedModel::Swap> swapped_;  // in a validation
  bool fitting_ = false, finished_ = false;
  std::int64_t latest_update_step_ = 0, asked_step_ = 0;  // global_step then
};

struct EmaWeightAveragingOptions {
  double decay = 0.999;
  std::int64_t update_every_n_steps = 1;  // updates after steps whose index is a multiple; 0: after no step
  std::optional<std::int64_t> update_starting_at_step{};
  // More updates, at the end of each epoch from this index on. It does not delay updates after steps.
  std::optional<std::int64_t> update_starting_at_epoch{};
  std::optional<Device> device{};
  bool use_buffers = true;
};
// Keeps the exponential average of ema_avg. Throws ConfigError for options out of range.
class LEVIN_API EmaWeightAveraging : public WeightAveraging {
 public:
  explicit EmaWeightAveraging(EmaWeightAveragingOptions options = {});
  bool should_update(std::optional<std::int64_t> step_idx, std::optional<std::int64_t> epoch_idx) override;

 private:
  EmaWeightAveragingOptions options_;
};

struct StochasticWeightAveragingOptions {
  std::vector<double> swa_lrs{};  // above 0: one for all groups of the optimizer, or one for each
  // The first epoch whose beginning is averaged, counted from 1, or the fraction of max_epochs that comes before.
  Portion swa_epoch_start = 0.8;
  std::int64_t annealing_epochs = 10;  // in which the rate goes to swa_lrs
  optim::Anneal annealing_strategy = optim::Anneal::cosine;
  AvgFn avg_fn{};
  std::optional<Device> device = Device::cpu();  // of the averages; nullopt: that of the parameters
};
// Stochastic weight averaging. From swa_epoch_start on an optim::SwaLr replaces the run's schedule, and the weights at
// the beginning of each epoch are averaged; so the average lacks what the last epoch learns. At the end of training,
// also of one that was stopped early, the module gets the average. If it has batch norms, one more epoch runs forward
// alone for their statistics (Trainer::forward_epoch). Validations evaluate the module as it is trained. Buffers are
// not averaged. fit throws ConfigError for swa_lrs of another length, a fraction of unlimited epochs, several
// optimizers or schedules, bare tensors, and batch norms with manual optimization. Izmailov et al., "Averaging Weights
// Leads to Wider Optima", 2018.
class LEVIN_API StochasticWeightAveraging : public Callback {
 public:
  explicit StochasticWeightAveraging(StochasticWeightAveragingOptions options);  // throws ConfigError
  ~StochasticWeightAveraging() override;
  [[nodiscard]] const AveragedModel* average() const { return average_.get(); }  // null until the first update
  [[nodiscard]] std::int64_t n_averaged() const { return average_ ? average_->n_averaged() : 0; }

  void setup(Stage stage) override;
  void teardown(Stage stage) override;
  void on_fit_start() override;
  void on_train_epoch_start() override;
  void on_train_end() override;
  void on_fit_end() override;
  void on_save_checkpoint(CheckpointContent& content) override;
  [[nodiscard]] std::string state_key() const override { return "StochasticWeightAveraging"; }
  [[nodiscard]] CallbackState state() const override;
  void load_state(const CallbackState& state) override;

 private:
  void check_run() const;
  void take_over();  // the schedule
  void finish();
  std::shared_ptr<const AveragedModelOptions> averaging_;
  StochasticWeightAveragingOptions options_;
  std::unique_ptr<AveragedModel> average_;
  std::unique_ptr<AveragedModel::Swap> swapped_;  // in the forward epoch
  std::int64_t start_ = 0, latest_update_epoch_ = -1;
  bool fitting_ = false, took_over_ = false, finished_ = false;
};

}  // namespace levin
