// What a Trainer holds: options, counters and whom it borrows. The loop is in trainer.cpp, one step in step.cpp and
// capture.cpp, files in checkpoint.cpp and resume.cpp, the order of hooks in callback.cpp.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "levin/train.h"
#include "train/capture.h"
#include "train/log.h"
#include "train/precision.h"
#include "train/signals.h"

namespace levin {

struct Trainer::Run {
  Run(Trainer& trainer, TrainerOptions options);

  // ---- The loop (trainer.cpp)
  void fit(TrainModule& module, OptimizerConfig config, data::DataLoader& train, data::DataLoader* val,
           const std::string& ckpt_path);
  void train_epoch();
  void train_batch(const Batch& batch);
  [[nodiscard]] bool done() const;
  [[nodiscard]] bool max_steps_reached() const;
  enum class Stage : std::uint8_t { validation, test };
  Metrics evaluation(Stage stage, TrainModule& module, data::DataLoader& loader);
  Metrics evaluation_loop(Stage stage, TrainModule& module, data::DataLoader& loader, std::int64_t count);
  double mean_over(nn::Module* tree, data::DataLoader& loader, const Function<Tensor(const Batch&)>& f);
  void check_options() const;
  void check_interrupt();  // saves and throws when a signal came

  // ---- One optimizer step (step.cpp, capture.cpp): the batch's loss, detached
  Tensor step(const StepInfo& info);
  Tensor step_now(const StepInfo& info);                     // op by op
  void clip_gradients(const optim::GradScaler* knows_norm);  // or null
  [[nodiscard]] Batch to_device(const Batch& batch);         // as the step reads it: device and dtype
  void advance_schedulers(SchedulerConfig::Interval interval);

  // ---- Hooks (callback.cpp): the one place that knows their order
  template <class... P, class... A>
  void call(void (Hooks::*hook)(P...), A&&... args) {
    for (const auto& c : callbacks) (c.get()->*hook)(args...);
    if (active) (active->*hook)(args...);
  }
  // The same for hooks inside of a step: whether anybody overrides it, and if so the step can not be captured.
  template <class... P, class... A>
  bool call_in_step(const char* name, void (Hooks::*hook)(P...), A&&... args) {
    bool provided = false;
    const auto one = [&](Hooks& h) {
      const std::int64_t defaults = default_hooks_run();
      (h.*hook)(args...);
      if (default_hooks_run() != defaults) return;
      provided = true;
      if (capture) capture->prevent_by_hook(name, h);
    };
    for (const auto& c : callbacks) one(*c);
    if (active) one(*active);
    return provided;
  }
  [[nodiscard]] static std::int64_t default_hooks_run() noexcept;  // by this thread
  BatchStart call_batch_start(const StepInfo& info);
  void call_epoch_end();
  void call_exception(const std::exception& error) noexcept;
  void verify_callbacks();

  // ---- Files (checkpoint.cpp writes and reads, resume.cpp finds and takes over)
  void save(const std::string& path, WeightsOnly weights);
  void resume(const std::string& path);
  [[nodiscard]] std::string find_checkpoint(const std::string& ckpt_path) const;  // "" when there is none for "last"
  [[nodiscard]] std::string checkpoint_dir() const;
  [[nodiscard]] bool checkpointing() const { return options.enable_checkpointing.value_or(true); }

  [[nodiscard]] StepInfo info(const Batch* batch = nullptr) const;
  [[nodiscard]] Device device_of(nn::Module* tree) const;  // of its parameters; the run's for a tree without any
  [[nodiscard]] std::int64_t max_epochs() const;           // -1: no limit
  void record_step();

  Trainer& trainer;
  TrainerOptions options;
  std::vector<std::shared_ptr<Callback>> callbacks;  // the user's, the progress bar, checkpoints last
  train::Precision precision;
  std::optional<train::StepCapture> capture;  // while fit runs, where it is asked for
  CaptureReport capture_report;

  // Borrowed for the length of a stage; tree and optimizer are remembered after it.
  TrainModule* active = nullptr;
  nn::Module* tree = nullptr;
  bool fitted = false;
  std::shared_ptr<optim::Optimizer> optimizer;
  std::vector<SchedulerConfig> schedulers;
  data::DataLoader* train_loader = nullptr;
  data::DataLoader* val_loader = nullptr;
  Device device = Device::cpu();  // the parameters'
  bool in_fit = false;
  const char* call_name = "";  // the call under way, for messages: "fit", "validate", "test", "evaluate"
  std::string resumed_from;

  // Counters. An epoch is cut where max_steps ends it: it stays open, and a resumed run goes on at its next batch.
  std::int64_t epoch = 0, global_step = 0, total_batches = 0;
  std::int64_t batches_done = 0;  // in this epoch
  data::LoaderState position;     // which ones: a loader without in_order gives them as they finish
  std::int64_t batches = 0;       // an epoch has
  bool epoch_finished = false;    // its end hooks are running
  bool stop = false;
  int stop_signal = 0;
  std::int64_t skipped_seen = 0;  // by the loss scale, when the host last looked

  // Logging
  train::LogScope scope = train::LogScope::none;
  std::int64_t scope_batch_size = 1;
  train::MetricLog train_log, eval_log;
  Metrics epoch_metrics;  // of finished epochs and evaluations
  std::vector<LogRecord> history;
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

}  // namespace levin
