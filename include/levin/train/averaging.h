// Averages of a model's weights over its training, the batch-norm statistics that fit them, and callbacks that keep them.
//
//   Trainer trainer({.callbacks = {std::make_shared<EmaWeightAveraging>(EmaWeightAveragingOptions{.decay = 0.999})}});
//
// or, without a trainer,
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

// How an average takes the n + 1st value, n >= 1: swa_avg(), ema_avg(decay), or a function of yours that is given one average
// and the value, both on the average's device and of its dtype, and returns the new average. The first two update all tensors in
// one pass, on a device one launch for 400 of them.
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
// average + (value - average) / (n + 1): all values weigh the same. Izmailov et al., "Averaging Weights Leads to Wider Optima",
// 2018.
[[nodiscard]] LEVIN_API AvgFn swa_avg();
// decay average + (1 - decay) value: a value's weight falls with its age. Throws ConfigError outside of [0, 1].
// Polyak & Juditsky, "Acceleration of Stochastic Approximation by Averaging", 1992.
[[nodiscard]] LEVIN_API AvgFn ema_avg(double decay = 0.999);

// The same for all tensors that are averaged together: writes averages[i], whose memory stays, from values[i].
using MultiAvgFn = Function<void(const Tensors& averages, const Tensors& values, std::int64_t n)>;

struct AveragedModelOptions {
  std::optional<Device> device{};  // where the averages lie; default: where the module's first parameter is
  AvgFn avg_fn{};
  MultiAvgFn multi_avg_fn{};  // instead of avg_fn
  bool use_buffers = false;   // floating buffers are averaged, too; otherwise they are copied at each update
                              // (those of metrics neither: they count what was seen)
};

// The averages of a module's parameters, and its buffers, by their names; they require no gradient. Those of f16 and bf16 values
// are f32, which does not lose small changes, and are rounded where the module gets them. Integers are copied, never averaged.
// With the averages where the module is, nothing waits for the device; averages on the CPU of a module on a device wait at
// each update.
// All functions throw ConfigError for a module whose names or shapes are not those at construction.
class LEVIN_API AveragedModel {
 public:
  // Starts with copies of the module's tensors, and with n_averaged() == 0. Throws ConfigError for a module without any.
  explicit AveragedModel(nn::Module& module, AveragedModelOptions options = {});
  AveragedModel(nn::Module& module, std::shared_ptr<const AveragedModelOptions> options);
  AveragedModel(const AveragedModel&) = delete;
  AveragedModel& operator=(const AveragedModel&) = delete;

  // The first call copies the module's values, later ones follow avg_fn. Throws StateError while the averages are swapped into
  // a module, CaptureError in a Graph's recording: the count would stand still in its replays; ShapeError or DTypeError when
  // avg_fn returns another shape or dtype than the average's.
  void update(nn::Module& module);
  [[nodiscard]] std::int64_t n_averaged() const { return n_; }

  // Exchanges handles: until the scope ends the module's parameters and buffers are the averages, which record no gradient, and
  // what it writes to its buffers stays with them. Gradients that are there stay in the parameters. Training goes on afterwards as
  // if nothing had been. On the same device and with the same dtype nothing is copied. Module and averages outlive the scope; scopes
  // end in the order opposite to their begin.
  class LEVIN_API Swap {
   public:
    ~Swap();
    Swap(const Swap&) = delete;
    Swap& operator=(const Swap&) = delete;
    // The module's own tensors, as they stand in its state_dict outside of the scope.
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

  // Writes the averages into the module's own tensors.
  void copy_to(nn::Module& module) const;

  // "n_averaged" and "module.NAME" for what stands in the module's state_dict, as PyTorch names them. The tensors share the
  // averages' memory.
  [[nodiscard]] NamedTensors state() const;
  // Copies values, from any device, after all is checked. Throws ConfigError for other names, shapes or kinds of dtype.
  void load(const NamedTensors& state);

 private:
  struct Entry {
    std::string name;
    Tensor value;
    bool averaged;    // or copied
    bool persistent;  // stands in state()
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

// Gives the module's batch norms that are trained new running statistics: the mean over one pass of the loader, in which
// `forward` is called on each batch, moved to the module's device, in training mode and without recording. For weights that were
// not trained but computed, as averages are. Modes and momenta are afterwards as before; statistics as well when something throws.
// Without batch norms nothing is loaded. Throws DataError when the loader gives no batch.
LEVIN_API void update_bn(data::DataLoader& loader, nn::Module& module, const Function<void(const Batch&)>& forward);
// The same with module(batch[0]).
template <std::derived_from<nn::Module> M>
requires std::invocable<M&, const Tensor&>
void update_bn(data::DataLoader& loader, M& module) {
  update_bn(loader, module, [&](const Batch& batch) { (void)module(batch[0]); });
}

// ---- In a run of the trainer

struct WeightAveragingOptions {
  std::optional<Device> device{};  // default: where the parameters are
  bool use_buffers = true;
  AvgFn avg_fn{};
  MultiAvgFn multi_avg_fn{};
};
// Averages the weights after optimizer steps. Validations inside of fit judge the average, and so do checkpoints that watch their
// metrics; at the end of training the module gets it. Until the first update the module is validated, and kept, as it is.
//
// Derive from it to say when:
//   bool should_update(std::optional<std::int64_t> step, std::optional<std::int64_t>) override { return step && *step >= 100; }
//
// A checkpoint's weights are the average, to be loaded for inference; the weights of the training stand beside them as
// "current_model_state.NAME" in the callback's state, where 16-bit weights have their f32 averages, too. A run that goes on from it
// ends with the bits of one that was not cut. From a checkpoint without them both start at its weights, with a warning. Outside of
// fit a checkpoint holds the module's own weights. Each fit begins a new average. fit throws ConfigError for bare tensors.
class LEVIN_API WeightAveraging : public Callback {
 public:
  explicit WeightAveraging(WeightAveragingOptions options = {});
  ~WeightAveraging() override;
  // Exactly one argument is set: the index of the optimizer step that was just made, or of the epoch that ends. Both may cause an
  // update at the same place. Default: after every step.
  [[nodiscard]] virtual bool should_update(std::optional<std::int64_t> step_idx, std::optional<std::int64_t> epoch_idx);
  [[nodiscard]] const AveragedModel* average() const { return average_.get(); }  // of the running or last fit

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
  // One for all that derive from it: two averages can not be in the module at once.
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
  std::int64_t update_every_n_steps = 1;  // after the steps whose index it divides; 0: after none
  std::optional<std::int64_t> update_starting_at_step{};
  // More updates, at the end of each epoch from this one on. It does not delay those after steps.
  std::optional<std::int64_t> update_starting_at_epoch{};
  std::optional<Device> device{};
  bool use_buffers = true;
};
// The exponential average of ema_avg. Throws ConfigError for options out of range.
class LEVIN_API EmaWeightAveraging : public WeightAveraging {
 public:
  explicit EmaWeightAveraging(EmaWeightAveragingOptions options = {});
  bool should_update(std::optional<std::int64_t> step_idx, std::optional<std::int64_t> epoch_idx) override;

 private:
  EmaWeightAveragingOptions options_;
};

struct StochasticWeightAveragingOptions {
  std::vector<double> swa_lrs{};  // one for all groups of the optimizer, or one a group; above 0
  // The first epoch whose beginning is averaged, counted from 1; or that fraction of max_epochs.
  Portion swa_epoch_start = 0.8;
  std::int64_t annealing_epochs = 10;
  optim::Anneal annealing_strategy = optim::Anneal::cosine;
  AvgFn avg_fn{};
  std::optional<Device> device = Device::cpu();  // nullopt: where the parameters are
};
// Stochastic weight averaging: from an epoch on the learning rate goes to swa_lrs by an optim::SwaLr in place of the run's schedule,
// and the weights at the beginning of each epoch are averaged, so what the last epoch learns is not in the average. At the end of
// training the module gets it, also when the training was stopped early. Where the module has batch norms, one more epoch runs
// forward alone to give them statistics that fit: nothing is trained, logged or counted but the epoch. Validations see the module
// as it is trained. Buffers are not averaged.
// fit throws ConfigError for rates or a start out of range, a fraction of unlimited epochs, several optimizers or schedules, bare
// tensors, and batch norms with manual optimization. Izmailov et al., "Averaging Weights Leads to Wider Optima", 2018.
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
