// ModelCheckpoint: saves the best or the newest states of a run while it trains. OnExceptionCheckpoint: saves a run
// that fails.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "levin/error.h"
#include "levin/train/hooks.h"
#include "levin/train/options.h"
#include "levin/train/records.h"

namespace levin {

// What last.safetensors is.
//   off    there is none
//   on     the newest state: a hard link to a file of the same save, or a folder of hard links; a copy if there is
//          none, or no hard links
//   link   a symbolic link to the newest file
// If another run wrote a file of that name, it stays and the new one is last-v1.safetensors, last-v2.safetensors and so
// on. A run that resumes continues with the `last` of its callback.
enum class SaveLast : std::uint8_t { off, on, link };

struct ModelCheckpointOptions {
  // The folder. Empty: "checkpoints" in the first logger's folder (by default <default_root_dir>/levin_logs/version_N),
  // or in default_root_dir without a logger. Each start of a run is a new version there: ckpt_path = "last" finds the
  // newest file of all versions of that logger, "best" the best file of the run that wrote it.
  std::string dirpath{};
  // {epoch} (its index), {step} (global_step) or {NAME} of a metric, with a format as in {val_loss:.2f} or {step:06d}:
  // [0][width][.precision][d|e|f|g]. An unknown metric is 0. ".safetensors" is added; ".levin" by a strategy whose
  // checkpoints are folders (StateDictType), which are kept, linked and removed as files are.
  std::string filename = "epoch={epoch}-step={step}";
  // The metric to compare, or "step" or "epoch", which need not be logged. Empty: the newest file is the best. "step"
  // with Mode::max keeps the newest save_top_k files.
  std::string monitor{};
  Mode mode = Mode::min;
  std::int64_t save_top_k = 1;  // how many of the best files stay; -1: all, 0: none; without monitor -1, 0 or 1
  SaveLast save_last = SaveLast::off;
  bool save_weights_only = false;  // true: such a file cannot be resumed
  // When to save, one trigger at most (ConfigError); without a trigger every epoch. The time is time of training.
  std::int64_t every_n_train_steps = 0;
  std::int64_t every_n_epochs = 0;
  std::optional<Duration> train_time_interval{};
  // every_n_epochs saves at the end of training epochs (true) or of validations (false). Unset: true without validation
  // or with Trainer::validates_once_an_epoch().
  std::optional<bool> save_on_train_epoch_end{};
  bool save_on_exception = false;       // saves once more when the run fails; the best files stay
  bool auto_insert_metric_name = true;  // {epoch} becomes "epoch=3", unless "epoch=" precedes it; false: "3"
  bool enable_version_counter = true;   // a name that is taken gets -v1, -v2, ...; false: the file is replaced
  bool verbose = false;                 // prints an info line for each save
};

// Writes checkpoints and removes those that better ones replace. Added by default (enable_checkpointing).
//   A metric of NaN is worse than any other value. A new file replaces the worst one only if it is strictly better.
//   It never removes the file that the run resumed, nor a file outside of its folder; of an earlier run's files it
//   removes only whole checkpoints of Levin.
//   It saves nothing before the first step, twice at one global_step, in the sanity check, with fast_dev_run, and
//   outside of fit.
//   A file that cannot be written is a warning (W-CKPT-WRITE), and training continues; the third in a row is a
//   FileError. At the end of a run a warning reports how many of the last saves failed (W-CKPT-UNSAVED).
//   Of several ranks rank 0 decides by its disk and its clock, and writes, links and removes; all ranks have the same
//   paths and scores.
//   A save by steps or time before the monitor is known waits for the end of the next validation. An unknown monitor is
//   a warning before the first validation and a ConfigError after it.
class LEVIN_API ModelCheckpoint : public Callback {
 public:
  explicit ModelCheckpoint(ModelCheckpointOptions options = {});  // throws ConfigError

  void on_fit_start() override;
  void on_train_start() override;
  void on_train_batch_end(const StepInfo& info) override;
  void on_validation_end() override;
  void on_train_epoch_end() override;
  void on_train_end() override;
  void on_exception(const std::exception& error) override;
  [[nodiscard]] bool writes_checkpoints() const override { return true; }
  [[nodiscard]] Kind kind() const override { return Kind::checkpoint; }
  [[nodiscard]] std::optional<CheckpointFiles> checkpoint_files() const override;
  // Has monitor, mode, trigger and dirpath. A state of another trigger or folder is taken too: files of the other
  // folder are ranked and not removed. Another dirpath is a warning.
  [[nodiscard]] std::string state_key() const override;
  [[nodiscard]] bool takes_state_of(std::string_view key) const override;
  [[nodiscard]] CallbackState state() const override;
  void load_state(const CallbackState& state) override;

  // The whole file with the best score, without monitor the newest. Empty before the first save, with save_top_k = 0,
  // and if the file resumed names one that does not exist.
  [[nodiscard]] const std::string& best_model_path() const { return best_path_; }
  [[nodiscard]] std::optional<double> best_model_score() const { return best_score_; }  // unset without monitor
  // <dirpath>/last.safetensors, or its version. Empty before this callback has written it. The file that an interrupt
  // saves has the same name and is not this callback's.
  [[nodiscard]] const std::string& last_model_path() const { return last_path_; }
  // The files that it keeps and their scores, in the order of saving; empty without monitor.
  [[nodiscard]] const std::vector<std::pair<std::string, double>>& best_k_models() const { return kept_; }
  [[nodiscard]] std::string directory() const;  // throws StateError while not attached and dirpath is empty
  [[nodiscard]] const ModelCheckpointOptions& options() const { return options_; }

 private:
  [[nodiscard]] bool active() const;
  [[nodiscard]] bool at_epoch_end() const;
  void trigger();
  void save();
  [[nodiscard]] std::string save_ranked(const Metrics& known, std::optional<double> score);
  void save_last(const std::string& newest);
  [[nodiscard]] std::string last_file() const;
  [[nodiscard]] bool not_written(const Error& error);
  void count_failures();
  [[nodiscard]] bool write(const std::string& path);
  [[nodiscard]] std::string path_for(const Metrics& known, const std::string& replaced) const;
  void remove(const std::string& path) const;
  void missing_monitor(const Metrics& known) const;
  void take_rank_zero();

  ModelCheckpointOptions options_;
  std::string best_path_, last_path_;
  std::optional<double> best_score_;
  std::vector<std::pair<std::string, double>> kept_;
  bool waits_ = false;                                        // a save waits for the end of a validation
  std::optional<std::int64_t> loaded_step_, loaded_trigger_;  // the two below, in the state that a run resumes

  // Of the running fit
  std::string came_from_;                               // resolved
  std::int64_t saved_step_ = -1, triggered_step_ = -1;  // global_step of the last save, of the last trigger by steps
  double last_time_ = 0;                                // of a trigger by time
  std::int64_t failed_ = 0;                             // saves in a row
  std::string failure_;                                 // of the save at hand; empty: none
  bool training_ = false, validated_ = false;
};

// Writes <dirpath>/on_exception.safetensors when the run fails or is interrupted after its first step; ckpt_path =
// "last" finds it. A run that resumes from it repeats the batch that failed, with the random numbers that follow those
// already drawn.
class LEVIN_API OnExceptionCheckpoint : public Callback {
 public:
  explicit OnExceptionCheckpoint(std::string dirpath);  // throws ConfigError for an empty one
  [[nodiscard]] std::string path() const;
  [[nodiscard]] bool writes_checkpoints() const override { return true; }
  [[nodiscard]] std::optional<CheckpointFiles> checkpoint_files() const override;
  void on_fit_start() override { training_ = false; }
  void on_train_start() override { training_ = true; }
  void on_train_end() override { training_ = false; }
  void on_exception(const std::exception& error) override;

 private:
  std::string dirpath_;
  bool training_ = false;
};

}  // namespace levin
