// Finds the file that a ckpt_path names.
#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>

#include "tensor/files/folder.h"
#include "train/checkpoint/content.h"
#include "train/checkpoint/folder.h"
#include "train/run/requeue.h"
#include "train/run/run.h"

namespace levin {

namespace fs = std::filesystem;
using train::Checkpoint;

namespace {

std::string root_of(const TrainerOptions& options) {
  return options.default_root_dir.empty() ? std::string(".") : options.default_root_dir;
}
std::string below_root(const TrainerOptions& options) { return root_of(options) + "/checkpoints"; }

// The folders in which a run like this one may have written files: those of the callbacks. Without one, also
// <root>/checkpoints and the folders of all versions of the loggers, because a program that is started again is a new
// version.
std::vector<std::string> folders_of(const Trainer::Run& run) {
  const std::string first = run.files.dir();
  std::vector<std::string> folders = {first};
  for (const auto& c : run.hooks.of_fit) {
    const std::optional<CheckpointFiles> files = c->checkpoint_files();
    if (files && !files->best.empty()) folders.push_back(fs::path(files->best).parent_path().string());
  }
  for (const auto& c : run.hooks.callbacks) {
    const std::optional<CheckpointFiles> files = c->checkpoint_files();
    if (files && !files->folder.empty()) folders.push_back(files->folder);
  }
  if (first == train::checkpoint_folder(run.trainer, run.options)) {
    folders.push_back(below_root(run.options));
    for (const auto& logger : run.logs.loggers) {
      const fs::path dir = logger->log_dir();
      if (!dir.filename().string().starts_with("version_")) continue;
      std::error_code error;
      for (fs::directory_iterator it(dir.parent_path(), error), end; !error && it != end; it.increment(error)) {
        if (it->path().filename().string().starts_with("version_"))
          folders.push_back((it->path() / "checkpoints").string());
      }
    }
  }
  std::sort(folders.begin(), folders.end());
  folders.erase(std::unique(folders.begin(), folders.end()), folders.end());
  return folders;
}

// The newest checkpoint that is whole, by the time of its last write: a folder may hold files of several runs.
std::optional<Checkpoint> newest_checkpoint(const Trainer::Run& run) {
  std::vector<std::pair<fs::file_time_type, std::string>> files;
  std::error_code error;
  // The index of a folder is written last; a folder without it is a save that was not finished.
  const auto add = [&](const fs::path& path) {
    const auto time = fs::last_write_time(fs::is_directory(path, error) ? path / detail::kIndex : path, error);
    if (!error) files.emplace_back(time, path.string());
  };
  for (const auto& c : run.hooks.callbacks) {
    for (const std::string& path : c->checkpoint_files().value_or(CheckpointFiles()).others) add(path);
  }
  for (const std::string& dir : folders_of(run)) {
    error.clear();
    for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
      if (train::is_checkpoint_name(it->path().string())) add(it->path());
    }
  }
  error.clear();
  for (fs::directory_iterator it(root_of(run.options), error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if ((name.starts_with("rescue-") || name.starts_with("hpc_ckpt_")) && train::is_checkpoint_name(name))
      add(it->path());
  }
  std::sort(files.rbegin(), files.rend());
  for (const auto& [time, path] : files) {
    try {
      return train::read_checkpoint(run.files.io(), path);
    } catch (const Error& e) {
      warn("W-CKPT-SKIPPED", WarningCategory::runtime,
           std::string(run.call_name) + ": skipped a checkpoint. " + e.what());
    }
  }
  return std::nullopt;
}

// The best file of the run that wrote the newest checkpoint, by the state there of a callback like this one.
std::string best_of_earlier_run(const Trainer::Run& run, const Callback& callback) {
  const std::optional<Checkpoint> newest = newest_checkpoint(run);
  if (!newest) return {};
  const auto known = newest->callbacks.find(train::key_in(*newest, run, callback));
  if (known == newest->callbacks.end()) return {};
  std::error_code error;
  for (const auto& [name, value] : known->second) {
    if (name != "best_model_path") continue;
    if (fs::exists(value, error)) return value;
    const fs::path beside = fs::path(newest->path).parent_path() / fs::path(value).filename();  // the folder was moved
    if (!value.empty() && fs::exists(beside, error)) return beside.string();
  }
  return {};
}

}  // namespace

std::string train::checkpoint_folder(const Trainer& trainer, const TrainerOptions& options) {
  const auto& loggers = trainer.loggers();
  const std::string dir =
      loggers.empty() ? Trainer::Run::of(trainer).files.folder_of_logger : loggers.front()->log_dir();
  return dir.empty() ? below_root(options) : dir + "/checkpoints";
}

std::string Trainer::Files::dir() const {
  for (const auto& c : run_.hooks.callbacks) {
    const std::optional<CheckpointFiles> files = c->checkpoint_files();
    if (files && !files->folder.empty()) return files->folder;
  }
  return train::checkpoint_folder(run_.trainer, run_.options);
}

std::string Trainer::Files::last_file(const std::string& folder) const {
  std::error_code error;
  for (std::int64_t version = 0;; ++version) {
    std::string path = folder + "/last" + (version > 0 ? "-v" + text(version) : "") + ending();
    const bool came_from = !resumed_from.empty() && fs::equivalent(path, resumed_from, error);
    if (!fs::exists(path, error) || written.contains(path) || came_from) return path;
  }
}

// The best file of the first checkpoint callback. Throws ConfigError, which gives the reason, if there is none.
std::string Trainer::Files::best() const {
  const std::string what = std::string(run_.call_name) + ": ckpt_path = \"best\" and there is none: ";
  if (run_.options.fast_dev_run > 0) fail<ConfigError>(what, "a dev run (fast_dev_run) writes no files");
  const Callback* first = nullptr;
  std::int64_t count = 0;
  for (const auto& c : run_.in_fit || run_.hooks.of_fit.empty() ? run_.hooks.callbacks : run_.hooks.of_fit) {
    if (c->kind() == Callback::Kind::checkpoint && count++ == 0) first = c.get();
  }
  if (!first) fail<ConfigError>(what, "the trainer has no ModelCheckpoint; add one, or set enable_checkpointing");
  const CheckpointFiles files = first->checkpoint_files().value_or(CheckpointFiles{.keeps_best = false});
  const std::string by = train::class_of(*first);
  if (!files.keeps_best)
    fail<ConfigError>(what, "its ", by, " keeps none", by == "ModelCheckpoint" ? ", save_top_k is 0" : "");
  const std::string best = files.best.empty() ? best_of_earlier_run(run_, *first) : files.best;
  if (best.empty())
    fail<ConfigError>(what, "this trainer's ", by, " has saved none yet, and no earlier run in ", dir(),
                      "; fit first, or give the file's path");
  if (count > 1)
    warn("W-CKPT-BEST", WarningCategory::user,
         std::string(run_.call_name) + ": ckpt_path = \"best\" is that of the first of " + text(count) +
             " checkpoint callbacks, " + best);
  return best;
}

train::FoundCheckpoint Trainer::Files::last() const {
  if (std::optional<Checkpoint> newest = newest_checkpoint(run_)) {
    std::string path = newest->path;
    return {.path = std::move(path), .content = std::make_shared<Checkpoint>(std::move(*newest))};
  }
  std::string searched;
  for (const std::string& dir : folders_of(run_)) searched += (searched.empty() ? "" : ", ") + dir;
  warn("W-CKPT-LAST", WarningCategory::user,
       std::string(run_.call_name) + ": ckpt_path = \"last\" and no checkpoint in " + searched +
           (run_.in_fit ? "; starting fresh" : "; the weights stay as they are"));
  return {};
}

train::FoundCheckpoint Trainer::Files::find(const std::string& ckpt_path) const {
  if (run_.options.plugins.checkpoint_io) finish();
  if (ckpt_path != "last" && ckpt_path != "best" && ckpt_path != "hpc") return {.path = ckpt_path};
  train::FoundCheckpoint found;  // with the content on rank 0, which has read it
  found.path = by_rank_zero([&] {
    found = ckpt_path == "last" ? last() : ckpt_path == "hpc" ? hpc() : train::FoundCheckpoint{.path = best()};
    if (ckpt_path == "hpc" && found.path.empty())
      fail<ConfigError>(run_.call_name, ": ckpt_path = \"hpc\" and there is no hpc_ckpt file in default_root_dir, ",
                        run_.options.default_root_dir.empty() ? "." : run_.options.default_root_dir);
    return found.path;
  });
  return found;
}

train::FoundCheckpoint Trainer::Files::hpc() const {
  for (const std::string& path : train::hpc_files(run_.options)) {
    try {
      return {.path = path, .content = std::make_shared<Checkpoint>(train::read_checkpoint(io(), path))};
    } catch (const Error& e) {
      warn("W-CKPT-SKIPPED", WarningCategory::runtime,
           std::string(run_.call_name) + ": skipped a checkpoint. " + e.what());
    }
  }
  return {};
}

train::FoundCheckpoint Trainer::Files::find_for_fit(const std::string& ckpt_path) {
  if (!std::exchange(looks_hpc_, false) || !ckpt_path.empty()) return find(ckpt_path);
  train::FoundCheckpoint found;
  found.path = by_rank_zero([&] {
    if (train::in_slurm_task()) found = hpc();
    return found.path;
  });
  if (!found.path.empty())
    warn("I-CKPT-HPC", WarningCategory::info,
         std::string(run_.call_name) + ": the run of a requeued job goes on from " + found.path, Repeat::yes);
  return found;
}

}  // namespace levin
