#include <filesystem>
#include <system_error>
#include <utility>

#include "levin/train.h"

namespace levin {
namespace fs = std::filesystem;

ModelCheckpoint::ModelCheckpoint(ModelCheckpointOptions options) : options_(std::move(options)) {
  if (options_.every_n_train_steps < 0 || options_.every_n_epochs < 0)
    fail<ConfigError>("ModelCheckpoint: every_n_train_steps is ", options_.every_n_train_steps, " and every_n_epochs ",
                      options_.every_n_epochs, ", expected 0 (unset) or more");
  if (options_.every_n_train_steps > 0 && options_.every_n_epochs > 0)
    fail<ConfigError>(
        "ModelCheckpoint: every_n_train_steps and every_n_epochs are both set; use two callbacks or drop one");
  if (options_.save_top_k < -1 || options_.save_top_k > 1)
    fail<ConfigError>("ModelCheckpoint: save_top_k is ", options_.save_top_k,
                      ", expected -1 (all), 0 (none) or 1 (the newest)");
  if (options_.every_n_train_steps == 0 && options_.every_n_epochs == 0) options_.every_n_epochs = 1;
}

std::string ModelCheckpoint::directory() const {
  if (!options_.dirpath.empty()) return options_.dirpath;
  const std::string& root = trainer().options().default_root_dir;
  return (root.empty() ? std::string(".") : root) + "/checkpoints";
}

void ModelCheckpoint::on_fit_start() { saved_step_ = trainer().resumed_from().empty() ? -1 : trainer().global_step(); }

void ModelCheckpoint::on_train_batch_end(const StepInfo& info) {
  if (options_.every_n_train_steps > 0 && info.global_step % options_.every_n_train_steps == 0) save();
}
void ModelCheckpoint::on_train_epoch_end() {
  if (options_.every_n_epochs > 0 && (trainer().current_epoch() + 1) % options_.every_n_epochs == 0) save();
}

void ModelCheckpoint::save() {
  const std::int64_t step = trainer().global_step();
  if (step == 0 || step == saved_step_) return;
  const std::string dir = directory();
  const std::string stem =
      dir + "/epoch=" + std::to_string(trainer().current_epoch()) + "-step=" + std::to_string(step);
  std::string path = stem + ".safetensors";
  std::error_code error;
  for (int v = 1; fs::exists(path, error); ++v) path = stem + "-v" + std::to_string(v) + ".safetensors";
  // A file names itself in its own state, so that a run that goes on from it knows what to delete next. A path whose
  // file was not written is taken back.
  const auto write = [&](std::string& member, const std::string& file) {
    const std::string before = std::exchange(member, file);
    try {
      trainer().save_checkpoint(file);
      saved_step_ = step;
      return true;
    } catch (const FileError& e) {
      // A full disk costs a file, not the run.
      member = before;
      warn("W-CKPT-WRITE", WarningCategory::runtime,
           std::string("ModelCheckpoint: the run goes on without a file. ") + e.what());
      return false;
    } catch (...) {
      member = before;
      throw;
    }
  };
  const std::string before = best_model_path_;
  const bool newest = options_.save_top_k != 0 && write(best_model_path_, path);
  if (options_.save_last) (void)write(last_model_path_, dir + "/last.safetensors");
  // Older ones go only when the new one is on disk; never the one that this run came from, never one from elsewhere.
  if (newest && options_.save_top_k == 1 && !before.empty() && before != path && before != trainer().resumed_from() &&
      fs::path(before).parent_path() == fs::path(path).parent_path())
    fs::remove(before, error);
}

CallbackState ModelCheckpoint::state() const {
  return {.values = {{"dirpath", directory()},
                     {"best_model_path", best_model_path_},
                     {"last_model_path", last_model_path_}},
          .tensors = {}};
}

void ModelCheckpoint::load_state(const CallbackState& state) {
  std::string dir, best, last;
  for (const auto& [name, value] : state.values) {
    if (name == "dirpath") dir = value;
    if (name == "best_model_path") best = value;
    if (name == "last_model_path") last = value;
  }
  // A file that was moved or removed since is no longer named.
  std::error_code error;
  if (!fs::exists(best, error)) best.clear();
  if (!fs::exists(last, error)) last.clear();
  best_model_path_ = best;
  if (dir == directory()) {
    last_model_path_ = last;
  } else {
    warn("W-CKPT-DIR", WarningCategory::user,
         "ModelCheckpoint: the run wrote to " + dir + " before and writes to " + directory() + " now");
  }
}

}  // namespace levin
