// What a Trainer holds: options, counters and whom it borrows. A fit is set up in fit.cpp, its loop is loop.cpp,
// evaluations in evaluate.cpp, one step in step.cpp, optimizers.cpp and capture.cpp, files in checkpoint.cpp,
// find_checkpoint.cpp, incoming.cpp and resume.cpp, the order of hooks in callback.cpp.
#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "levin/memory.h"
#include "levin/train.h"
#include "train/data/loader_advice.h"
#include "train/logs/metric_log.h"
#include "train/optimize/capture.h"
#include "train/optimize/precision.h"
#include "train/profiler/batch_watch.h"
#include "train/run/hook.h"
#include "train/run/progress.h"
#include "train/run/ranks.h"
#include "train/run/signals.h"

namespace levin {

namespace train {
struct Checkpoint;
class Incoming;
}  // namespace train

// A Progress that the loop moves.
struct Trainer::Run : train::Progress {
  Run(Trainer& trainer, TrainerOptions options);

  // ---- Options (options.cpp)
  void check_options() const;
  void tell_of_portions() const;    // which of the two meanings an explicit 1 or 1.0 has
  void check_late_options() const;  // throws ConfigError for one that the constructor reads and that was changed since
  void check_idle(const char* call) const;        // throws StateError while a stage runs
  void apply_shortcuts();                         // fast_dev_run, overfit_batches
  [[nodiscard]] std::int64_t max_epochs() const;  // -1: no limit
  [[nodiscard]] std::int64_t min_epochs() const;
  void resolve_validation();

  // ---- A fit (fit.cpp)
  // `instead` is called in place of the training, with everything set up for it: a search of the tuner.
  void fit(TrainModule& module, const FitOptions& options, const Function<void()>& instead = {});
  [[nodiscard]] bool configure_optimizers();
  void run_fit(std::unique_ptr<train::Incoming>& file);
  void sanity_check();
  void clear_gradients();  // of a run before
  void tell_of_modes() const;
  void choose_loggers();
  void start_loggers(Stage stage);
  void log_hparams();
  void finish_loggers(std::string_view status);
  void give_up_loggers(const std::exception& error);
  void report_times();
  void finish_profiler();

  // ---- Loaders, and what data module and module say together (datamodule.cpp)
  // Arguments are used at once, hooks are asked when they are needed.
  void inspect(const data::DataLoader& loader, const std::string& name, train::Shuffling shuffling);  // once a stage
  void use_train(data::DataLoader& train);
  void use_val(const std::vector<data::DataLoader*>& val);
  [[nodiscard]] std::vector<data::DataLoader*> evaluated_in_turn(const std::vector<data::DataLoader*>& loaders,
                                                                 const char* name);
  void load_train();
  void load_val();
  void reload_train();                   // before an epoch and before a validation, where
  void reload_val();                     // reload_dataloaders_every_n_epochs says so
  [[nodiscard]] bool validates() const;  // the module can, and the options let it
  [[nodiscard]] HParams all_hparams()
      const;  // of data module and module; throws ConfigError where they contradict each other

  // ---- The loop (loop.cpp)
  void train_epochs();
  void train_epoch();
  void train_batch(StepInfo step_info);
  void measure_wait();                            // of the first batches
  [[nodiscard]] std::int64_t time_apart() const;  // ns on what is no part of steps
  void finish_batch();                            // what follows on_train_batch_end
  void forward_epoch();
  void finish_epoch();  // what follows on_train_epoch_end
  [[nodiscard]] bool done() const;
  [[nodiscard]] bool limits_reached() const;
  [[nodiscard]] bool max_steps_reached() const;
  [[nodiscard]] bool stop_granted() const;       // a stop was asked for, and the minima are met
  void check_interrupt();                        // saves and throws when a signal came
  [[nodiscard]] std::string save_interrupted();  // what became of it, for the error
  void record_step();
  void emit(std::int64_t step, Metrics values);  // one record
  [[nodiscard]] bool overfits() const;           // training and validation read a few batches, in sequence

  // ---- Evaluations (evaluate.cpp)
  enum class Loop : std::uint8_t { validation, test, predict };
  std::vector<Metrics> evaluation(Loop loop, TrainModule& module, const std::vector<data::DataLoader*>& loaders,
                                  std::vector<Tensors>* predictions = nullptr, const Function<void()>& instead = {},
                                  const std::string& ckpt_path = {});
  // validate, test and predict; `module` null: that of the last call.
  std::vector<Metrics> evaluation_call(Loop loop, TrainModule* module, const LoaderRefs& loaders, DataModule* data,
                                       const std::string& ckpt_path, std::vector<Tensors>* predictions = nullptr);
  std::vector<Metrics> evaluation_loop(Loop loop, TrainModule& module, std::vector<data::DataLoader*> loaders,
                                       std::vector<Tensors>* predictions);
  // How many batches of each loader the options leave to an evaluation.
  [[nodiscard]] std::vector<std::int64_t> batches_to_evaluate(Loop loop,
                                                              const std::vector<data::DataLoader*>& loaders) const;
  void move_to_accelerator(TrainModule& module);  // where the options name one
  [[nodiscard]] std::unique_ptr<data::DataLoader> loader_of_hook(std::optional<Loop> loop, TrainModule& module) const;
  double mean_over(nn::Module* tree, data::DataLoader& loader, const Function<Tensor(const Batch&)>& f);
  [[nodiscard]] bool epoch_validates() const;  // by check_val_every_n_epoch
  [[nodiscard]] bool validation_due();         // after the batch that was just trained
  void validate_in_fit();
  void record_eval_batch();  // of the loader that is evaluated (logging.cpp)

  // ---- One batch (step.cpp, capture.cpp)
  train::StepResult step(const StepInfo& info);
  train::StepResult step_now(const StepInfo& info);  // op by op
  train::StepResult automatic_step(const StepInfo& info);
  train::StepResult manual_step(const StepInfo& info);
  [[nodiscard]] StepOutput training_step(const StepInfo& info);
  void to_device(TrainModule& module, Batch& batch, Device where);  // as steps read it: device, dtype
  void advance_schedulers(SchedulerConfig::Interval interval);
  void advance_plateaus(SchedulerConfig::Interval interval);
  // A window of accumulate_grad_batches batches ends with the epoch at the latest. All three are about the next batch,
  // or the one that is trained.
  [[nodiscard]] bool window_opens() const { return batches_done % options.accumulate_grad_batches == 0; }
  [[nodiscard]] bool window_closes() const {
    return (batches_done + 1) % options.accumulate_grad_batches == 0 || batches_done + 1 >= batches;
  }
  [[nodiscard]] bool weighs_exactly() const { return options.accumulate_weighting == AccumulateWeighting::exact; }
  void weigh(const StepOutput& output);  // exact weighting: adds the batch's weight to the window's
  [[nodiscard]] Tensor window_divisor()
      const;  // f64: the window's weight; 1 where that is 0, as the gradients are then
  // What records count: a batch of manual optimization may have any number of optimizer steps.
  [[nodiscard]] std::int64_t record_steps() const { return manual ? total_batches : global_step; }
  [[nodiscard]] bool window_is_open() const { return !manual && !window_opens() && batches_done < batches; }

  // ---- Optimizers of a step (optimizers.cpp)
  Tensor optimizer_step(optim::Optimizer& optimizer, const Function<Tensor()>& closure);
  void forget_scaling();
  void unscale_once(optim::Optimizer& optimizer, const Tensor& divisor = {});
  void look_for_gradients(optim::Optimizer& optimizer);
  void manual_backward(const Tensor& loss);
  void clip_gradients(optim::Optimizer& optimizer, std::optional<double> value, std::optional<ClipAlgorithm> algorithm);
  [[nodiscard]] optim::GradScaler* scaler() {
    return !planning && precision.scaler() && precision.scaler()->enabled() ? precision.scaler() : nullptr;
  }
  [[nodiscard]] optim::Optimizer& optimizer() const { return *optimizers.front(); }
  // The other optimizers' parameters require no gradients until untoggle; nothing with one optimizer.
  void toggle(const optim::Optimizer& only, const char* call);
  void untoggle() noexcept;
  [[nodiscard]] std::vector<ParamRef> model_parameters() const;  // of all optimizers, each once

  // ---- Hooks (callback.cpp): the one place that knows their order
  // The hook or step that runs. `now` is one of train/run/hook.h.
  class InHook {
   public:
    InHook(Run& run, const train::HookInfo& now) : run_(run), before_(std::exchange(run.hook, &now)) {}
    ~InHook() { run_.hook = before_; }
    InHook(const InHook&) = delete;
    InHook& operator=(const InHook&) = delete;

   private:
    Run& run_;
    const train::HookInfo* before_;
  };
  // Callbacks, then the module. Of a hook inside of a step: whether anybody overrides it, and if so the step can not be
  // captured.
  template <class F, class... A>
  bool call(const train::Hook<F>& which, A&&... args) {
    bool provided = false;
    const ProfilerScope profiled(options.profiler.get(), which.name);
    const InHook in(*this, which);
    const auto one = [&](Hooks& h) {
      const std::int64_t defaults = which.in_step ? default_hooks_run() : 0;
      (h.*which.function)(args...);
      if (!which.in_step || default_hooks_run() != defaults) return;
      provided = true;
      if (capture) capture->prevent_by_hook(which.name, h);
    };
    for (const auto& c : callbacks) one(*c);
    if (active) one(*active);
    return provided;
  }
  [[nodiscard]] static std::int64_t default_hooks_run() noexcept;  // by this thread
  BatchStart call_batch_start(const StepInfo& info);
  // on_train_batch_end, on_validation_end of the loop's own, on_train_epoch_end: writers of checkpoints come last.
  enum class EndOf : std::uint8_t { batch, validation, epoch };
  void call_at_end(EndOf what, const StepInfo& step_info = {});
  // State keys of the writers whose turn in the hook at hand has not come: a file that is written now names them, and
  // the run that goes on from it calls them first.
  [[nodiscard]] std::vector<std::string> writers_to_come() const;
  void call_writers_due();
  void call_exception(const std::exception& error) noexcept;
  // In a catch block: whatever was thrown, hooks are told of a std::exception.
  static void with_error_in_flight(const Function<void(const std::exception&)>& tell);
  void call_setup(Stage stage);  // prepare_data, and the setup of all
  void call_teardown(Stage stage, bool quietly);
  void collect_callbacks();                    // the trainer's, and those that come by themselves
  void add_callbacks_of(TrainModule& module);  // configure_callbacks
  void verify_callbacks() const;
  void attach_callbacks(Trainer* t);
  [[nodiscard]] const Callback* accumulation_schedule() const;  // that sets accumulate_grad_batches; null: none

  // ---- The data module of a stage, as long as this lives (datamodule.cpp). Throws ConfigError for one that does not
  // name itself.
  class DataScope {
   public:
    DataScope(Run& run, DataModule* data);
    ~DataScope();
    DataScope(const DataScope&) = delete;
    DataScope& operator=(const DataScope&) = delete;

   private:
    Run& run_;
    DataModule *before_, *data_;
    DataOverrides overrides_before_;
    Trainer* trainer_before_ = nullptr;
  };
  void check_transfers(const TrainModule& module) const;  // warns of hooks that data module and module both have

  // ---- Files (checkpoint.cpp writes and reads, resume.cpp finds and takes over)
  void save(const std::string& path, WeightsOnly weights);
  void write_checkpoint(const std::string& path, WeightsOnly weights);
  // To the field of a BatchSizeFinder the size that it had found in the run that goes on, before loaders are made.
  void give_back_batch_size(const train::Checkpoint& file) const;
  void resume(train::Incoming& file);
  void take_stop(const train::Checkpoint& file);
  // The file that a ckpt_path names, and its content where it was read to be chosen; "" when there is none for "last".
  struct Found {
    std::string path;
    std::shared_ptr<train::Checkpoint> content{};
  };
  [[nodiscard]] Found find_checkpoint(const std::string& ckpt_path) const;
  void load_weights(const Found& file, TrainModule& module);  // for an evaluation; changes nothing when it throws
  [[nodiscard]] std::string best_checkpoint() const;
  [[nodiscard]] Found last_checkpoint() const;
  [[nodiscard]] std::string checkpoint_dir() const;
  // <folder>/last.safetensors, or the first version of it that is no other run's.
  [[nodiscard]] std::string last_file(const std::string& folder) const;
  [[nodiscard]] bool checkpointing() const {
    return options.enable_checkpointing.value_or(true) && options.fast_dev_run == 0;
  }

  // With the loader hooks of the data module.
  [[nodiscard]] Overrides overrides_of(const TrainModule& module) const;
  [[nodiscard]] nn::Module* tree_of_active() const { return active->tree(); }
  [[nodiscard]] StepInfo info(const Batch* batch = nullptr) const;
  [[nodiscard]] Device device_of(nn::Module* tree) const;  // of its parameters; the run's for a tree without any

  Trainer& trainer;
  TrainerOptions options;
  TrainerOptions constructed_with;                       // options as the constructor left them
  std::vector<std::shared_ptr<Callback>> own_callbacks;  // the user's, those that come by themselves, checkpoints last
  std::vector<std::shared_ptr<Callback>> callbacks;      // the same and the module's, while one is fitted
  train::Precision precision;
  std::optional<train::StepCapture> capture;  // while fit runs, where it is asked for
  CaptureReport capture_report;

  // Borrowed for the length of a stage; tree and optimizers are remembered after it, and the last module for calls
  // without one.
  TrainModule* active = nullptr;
  TrainModule* fit_module = nullptr;  // of the running or last fit; null behind the short door's
  DataModule* fit_data = nullptr;
  std::vector<std::shared_ptr<Callback>>
      fit_callbacks;         // the module's among them; a checkpoint behind a fit asks all of these
  bool same_module = false;  // as in the fit before
  // Who was trained: the tree, or the optimizer of bare tensors; and whether those that are borrowed live still.
  const void* trained = nullptr;
  const optim::Optimizer* lone_optimizer = nullptr;  // in the short door, of bare tensors
  std::weak_ptr<const void> trained_alive, last_alive;
  std::vector<std::weak_ptr<const void>> optimizers_alive;
  [[nodiscard]] bool lives() const;          // what the last fit trained
  void check_lives(const char* call) const;  // throws StateError
  Overrides overrides;                       // of the module that is fitted, and its data module's loaders
  DataModule* data_module = nullptr;
  DataOverrides data_overrides;
  TrainModule* last_module = nullptr;
  DataModule* last_data_module = nullptr;
  train::Ranks ranks;
  nn::Module* tree = nullptr;
  bool fitted = false, manual = false;
  std::vector<std::shared_ptr<optim::Optimizer>> optimizers;
  std::vector<OptimizerHandle> handles;
  std::vector<SchedulerConfig> schedulers;
  data::DataLoader* train_loader = nullptr;
  std::vector<data::DataLoader*> val_loaders;
  // Those that the module's hooks made, for the length of a stage. `evaluated` are the loaders of the innermost
  // evaluation.
  std::unique_ptr<data::DataLoader> own_train, own_val, own_evaluated, combined_train;
  std::set<std::string> inspected;  // loaders of this stage
  bool searching = false;           // the stage is there for the tuner
  train::DataWait data_wait;
  bool val_by_hook = false;                             // a hook makes the loader, or will
  std::int64_t train_loaded_at = 0, val_loaded_at = 0;  // the epoch in which hooks were asked
  std::vector<data::DataLoader*>* evaluated = nullptr;
  Loop evaluating = Loop::validation;
  int evaluations = 0;            // under way, one in a hook of another
  bool planning = false;          // a step on meta (Note [Plans]): without the loss scale, which has values
  bool trial = false;             // of the tuner: what happens is taken back, so nothing is told or saved
  Device device = Device::cpu();  // the parameters'
  bool in_fit = false;
  const char* call_name = "";  // the call under way, for messages: "fit", "validate", "test", "evaluate"
  std::string resumed_from;
  std::int64_t resumed_at = -1;   // total_batches then
  std::set<std::string> written;  // files of this run, by the paths they were given: those may be replaced

  // Beside Progress. An epoch is cut where max_steps ends it: it stays open, and a resumed run continues with its next
  // batch.
  using Due = train::Due;
  std::int64_t batches = 0;    // an epoch has
  std::int64_t val_every = 0;  // batches between validations; 0: by time, or none
  double last_validation = 0;  // end of it, or of set-up: seconds of the steady clock
  // Between on_train_start and on_train_end; and whether the file that the run goes on from was written there, so that
  // what was left of its training is done also where the limits are reached.
  bool training = false, unfinished = false;
  std::optional<std::size_t>
      writers_from{};  // in the hook at hand the writers of checkpoints from here on are still to come
  std::vector<std::string> writers_due;                        // of the file that the run goes on from
  bool stop = false, stop_kept = false, told_minimum = false;  // stop_kept: a checkpoint holds it
  std::int64_t stop_asked_at = 0;                              // global_step of the first request
  std::string stopped_by;                                      // who asked, and why
  // What was so before the hooks of an epoch's end ran in the middle of it: they run again when a run that goes on ends
  // the epoch, so a checkpoint, and the next fit, begin with this.
  struct Cut {
    std::vector<train::MetricLog::Saved> log;
    bool stop_kept;
  };
  std::optional<Cut> cut;   // of the running or last fit
  bool sanity = false;      // the check runs
  bool validating = false;  // the loop's own validation runs
  int stop_signal = 0;
  std::int64_t skipped_seen = 0;  // by the loss scale, when the host last looked

  Tensor window_weight;  // exact weighting: f64, of the batches of the window that is open or was last

  // Of the step at hand
  bool in_training_step = false;
  bool in_batch = false;                          // from its transfer to its end: batches_done is its index
  const optim::GradScaler* knows_norm = nullptr;  // of the gradients that are clipped
  const optim::Optimizer* toggled = nullptr;
  std::vector<std::pair<Tensor*, bool>> flags_before_toggle;  // requires_grad of parameters of all optimizers
  // From the backward of a batch until the batch counts: an exception in between leaves part of its gradients in those
  // of the window.
  bool gradients_torn = false;
  bool batch_torn = false;  // from its forward pass until it counts, or the fit ends

  // Logging
  train::LogScope scope = train::LogScope::none;
  train::BatchWeight scope_weight;  // of the batch at hand
  const train::HookInfo* hook = &train::kOutside;
  std::int64_t eval_count = 0;                // batches that the loader at hand will give
  int eval_loaders = 1, eval_loader = -1;     // how many the evaluation has, and which it is at; -1: between them
  std::vector<std::int64_t> eval_batches[3];  // by Loop and loader: batches that were evaluated, for records of them
  std::vector<const optim::Optimizer*> unscaled;   // since their last step
  std::vector<const optim::Optimizer*> looked_at;  // in this fit, for gradients
  Tensor seen_loss;  // of the newest step, detached: its handle is used again where nobody kept it
  train::MetricLog train_log, eval_log;
  Metrics epoch_metrics;  // of finished epochs and evaluations
  std::vector<LogRecord> history;
  std::vector<std::shared_ptr<Logger>> loggers;
  StepTimes times;
  std::string time_report;
  train::BatchWatch watch;
  train::LossWatch loss_watch;
  SyncLedger syncs;
  SyncCheck sync_check = SyncCheck::count;  // of training batches

  // The trainer's own reading from the device: noted, and not charged.
  [[nodiscard]] SyncGuard own_waits() {
    return SyncGuard(syncs, sync_check == SyncCheck::off ? SyncCheck::off : SyncCheck::count);
  }
};

// The mode flags of all modules of a tree, put back at the end.
class ModeGuard {
 public:
  explicit ModeGuard(nn::Module* tree);
  ~ModeGuard();
  ModeGuard(const ModeGuard&) = delete;
  ModeGuard& operator=(const ModeGuard&) = delete;

 private:
  std::vector<std::pair<nn::Module*, bool>> before_;
};

namespace train {

// Sets what is true for the length of a stage, and takes it back however the stage ends, also where setting it throws.
template <class Enter, class Leave>
class Scope {
 public:
  Scope(Enter enter, Leave leave) : leave_(std::move(leave)) {
    try {
      enter();
    } catch (...) {
      leave_();
      throw;
    }
  }
  ~Scope() { leave_(); }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  Leave leave_;
};

template <class T>
class Restore {
 public:
  Restore(T& variable, T value) : variable_(variable), before_(std::exchange(variable, std::move(value))) {}
  ~Restore() { variable_ = std::move(before_); }
  Restore(const Restore&) = delete;
  Restore& operator=(const Restore&) = delete;

 private:
  T& variable_;
  T before_;
};

// A limit of the memory in use on a device for a scope; none where `bytes` is unset and the scope does not lift it.
class MemoryLimit {
 public:
  MemoryLimit(Device device, std::optional<std::int64_t> bytes)
      : device_(device), before_(set_memory_limit(device, bytes)) {}
  ~MemoryLimit() { (void)set_memory_limit(device_, before_); }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

 private:
  Device device_;
  std::optional<std::int64_t> before_;
};

// The data module that stands in the loaders' place or was named. Throws ConfigError where loaders, or another one, are
// given too.
[[nodiscard]] DataModule* data_module_of(const char* call, std::initializer_list<const LoaderRefs*> loaders,
                                         DataModule* named);
// "accuracy  0.98  0.97": a line a name, a column a loader; empty without metrics.
[[nodiscard]] std::string results_table(std::string_view call, const std::vector<Metrics>& results);

// What configure_optimizers gave, or the short door was given. Throws ConfigError.
void check_optimizers(const OptimizerConfig& config, bool manual);
[[nodiscard]] double steady_seconds();
[[nodiscard]] std::string class_of(const Callback& callback);  // for messages
// The fields on `device`; copies do not wait where they need not.
[[nodiscard]] Batch move_batch(Batch batch, Device device);

}  // namespace train
}  // namespace levin
