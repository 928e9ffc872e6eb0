// ModelCheckpoint: files of a run's state while it trains, the best or the newest of them; OnExceptionCheckpoint: one when it fails.
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

// last.safetensors: none; a copy of the newest state (where this save has made a file a second name of it, a hard link, if the file
// system has them); a symbolic link to it. Where a file of this name is there that this run has not written it is
// last-v1.safetensors, last-v2.safetensors and so on; a run that goes on from a file goes on with the `last` of its callback.
enum class SaveLast : std::uint8_t { off, on, link };

struct ModelCheckpointOptions {
  // Default: the folder "checkpoints" in the first logger's (with default options <default_root_dir>/levin_logs/version_N), without
  // one in default_root_dir. A run that is started again is a new version there, and ckpt_path = "last" finds the newest file of
  // all versions of that logger; "best" the best one of the run that wrote that.
  std::string dirpath{};
  // {epoch} (its index), {step} (global_step) or the name of a metric, with a format such as {val_loss:.2f} or {step:06d}:
  // [0][width][.precision][d|e|f|g]. A metric that is not known is 0. ".safetensors" is added.
  std::string filename = "epoch={epoch}-step={step}";
  // The metric to compare, or step or epoch, which need not be logged; empty: the newest is the best. With "step" and
  // Mode::max the newest save_top_k stay.
  std::string monitor{};
  Mode mode = Mode::min;
  std::int64_t save_top_k = 1;  // so many of the best are kept; -1 all, 0 none; without monitor -1, 0 or 1
  SaveLast save_last = SaveLast::off;
  bool save_weights_only = false;
  // One trigger at most; none: every epoch. The time is that of training.
  std::int64_t every_n_train_steps = 0;
  std::int64_t every_n_epochs = 0;
  std::optional<Duration> train_time_interval{};
  // Whether every_n_epochs saves at the end of training epochs or of validations. Unset: of epochs without validation or with
  // Trainer::validates_once_an_epoch().
  std::optional<bool> save_on_train_epoch_end{};
  bool save_on_exception = false;       // once more when the run fails, beside the best
  bool auto_insert_metric_name = true;  // {epoch} is epoch=3, unless "epoch=" stands before it; false: 3
  bool enable_version_counter = true;   // a name that is taken gets -v1, -v2, ...; false: its file is replaced
  bool verbose = false;
};

// Writes checkpoints and removes those that better ones replace: never the file that the run came from, never one outside of
// its folder, and of those that an earlier run has written only what is a whole checkpoint of Levin. A metric that is NaN is worse than any other; a new file replaces the worst one only by being strictly better.
// Nothing is written before the first step, twice at one global_step, in the sanity check, in a dev run and outside of fit.
//
// A file that can not be written is a warning each time (W-CKPT-WRITE), and training goes on to the next save; the third in a row is a
// FileError. At the end of a run a warning tells how many of its last saves failed (W-CKPT-UNSAVED).
//
// A save by steps or time whose monitor is not known yet waits for the end of the next validation. A monitor that is not known after a
// validation is a ConfigError, before the first one a warning. Added by default with enable_checkpointing.
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
  // Monitor, mode, trigger and dirpath. What a file has is restored for another trigger or folder as well: the files of another folder
  // take part in the ranking, and are not removed. A dirpath that is another one than before is warned of.
  [[nodiscard]] std::string state_key() const override;
  [[nodiscard]] bool takes_state_of(std::string_view key) const override;
  [[nodiscard]] CallbackState state() const override;
  void load_state(const CallbackState& state) override;

  // The file with the best score, without monitor the newest one, that was written whole. Empty before the first, with
  // save_top_k = 0, and when the file resumed from names one that is not there any more.
  [[nodiscard]] const std::string& best_model_path() const { return best_path_; }
  [[nodiscard]] std::optional<double> best_model_score() const { return best_score_; }  // none without monitor
  // <dirpath>/last.safetensors, or its version, once this callback has written it; empty without save_last. The file that an
  // interrupt saves has the same name and is the trainer's own.
  [[nodiscard]] const std::string& last_model_path() const { return last_path_; }
  // The files that are kept and their scores, in the order they were written; empty without monitor.
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

  ModelCheckpointOptions options_;
  std::string best_path_, last_path_;
  std::optional<double> best_score_;
  std::vector<std::pair<std::string, double>> kept_;
  bool waits_ = false;                                        // a save, for the end of a validation
  std::optional<std::int64_t> loaded_step_, loaded_trigger_;  // the two below, in the state that a run goes on from

  // Of the run under way
  std::string came_from_;                               // resolved
  std::int64_t saved_step_ = -1, triggered_step_ = -1;  // global_step of the last save, of the last trigger by steps
  double last_time_ = 0;                                // of a trigger by time
  std::int64_t failed_ = 0;                             // saves in a row
  std::string failure_;                                 // of the save at hand; empty: none
  bool training_ = false, validated_ = false;
};

// <dirpath>/on_exception.safetensors when the run fails or is interrupted after its first step; ckpt_path = "last" finds it. A run that
// goes on from it repeats the batch that failed; random numbers that had been drawn for it are not drawn again.
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
