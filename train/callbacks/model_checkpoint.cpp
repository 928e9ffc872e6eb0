#include "levin/train/model_checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "train/callbacks/checkpoint_name.h"
#include "train/callbacks/monitored.h"
#include "train/checkpoint/content.h"
#include "train/checkpoint/folder.h"
#include "train/run/packed.h"
#include "train/run/run.h"

namespace levin {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t kMostFailures = 3;  // saves in a row

std::string form_of(const ModelCheckpointOptions& o, std::int64_t epoch, std::int64_t step, const Metrics& known) {
  const auto insert = static_cast<train::InsertNames>(o.auto_insert_metric_name);
  return train::checkpoint_name(o.filename, insert, epoch, step, known);
}

// The metric of this name, else the counter "step" or "epoch".
std::optional<double> monitored(const Trainer& t, const Metrics& known, const std::string& name) {
  if (const std::optional<double> logged = train::metric(known, name)) return logged;
  if (name == "step") return static_cast<double>(t.global_step());
  if (name == "epoch") return static_cast<double>(t.current_epoch());
  return {};
}

// The file that a path and its links lead to; the path itself if there is no file.
std::string resolved(const std::string& path) {
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  return error ? path : real.string();
}

// One spelling of each folder: "ckpts/" is "ckpts".
std::string normal(const std::string& folder) {
  if (folder.empty()) return folder;
  const fs::path path = fs::path(folder).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).string();
}
bool same_folder(const fs::path& a, const fs::path& b) {
  std::error_code error;
  return a == b || fs::equivalent(a, b, error);
}

void warn_not_written(const std::string& why) {
  warn("W-CKPT-WRITE", WarningCategory::runtime, "ModelCheckpoint: the run goes on without a file. " + why,
       Repeat::yes);
}

// The file or folder `last`, or a version of it.
bool is_last(const fs::path& path) {
  const std::string stem = path.stem().string();
  constexpr std::string_view kVersioned = "last-v";
  return train::is_checkpoint_name(path.string()) &&
         (stem == "last" || (stem.starts_with(kVersioned) && stem.size() > kVersioned.size() &&
                             stem.find_first_not_of("0123456789", kVersioned.size()) == std::string::npos));
}

}  // namespace

ModelCheckpoint::ModelCheckpoint(ModelCheckpointOptions options) : options_(std::move(options)) {
  ModelCheckpointOptions& o = options_;
  if (o.every_n_train_steps < 0 || o.every_n_epochs < 0)
    fail<ConfigError>("ModelCheckpoint: every_n_train_steps is ", o.every_n_train_steps, " and every_n_epochs ",
                      o.every_n_epochs, ", expected 0 (unset) or more");
  if (o.train_time_interval && !(o.train_time_interval->seconds() > 0))
    fail<ConfigError>("ModelCheckpoint: train_time_interval is ", o.train_time_interval->seconds(),
                      " seconds, expected more than 0");
  const int triggers = (o.every_n_train_steps > 0) + (o.every_n_epochs > 0) + o.train_time_interval.has_value();
  if (triggers > 1)
    fail<ConfigError>("ModelCheckpoint: of every_n_train_steps, every_n_epochs and train_time_interval ", triggers,
                      " are set, expected one at most; use a callback for each");
  if (o.save_top_k < -1)
    fail<ConfigError>("ModelCheckpoint: save_top_k is ", o.save_top_k, ", expected -1 (all), 0 (none) or more");
  if (o.monitor.empty() && o.save_top_k > 1)
    fail<ConfigError>("ModelCheckpoint: save_top_k is ", o.save_top_k,
                      " without a monitor, expected -1 (all), 0 (none) or 1 (the newest); name the metric to compare");
  (void)form_of(o, 0, 0, {});
  o.dirpath = normal(o.dirpath);
  if (triggers == 0) o.every_n_epochs = 1;
}

std::string ModelCheckpoint::directory() const {
  if (!options_.dirpath.empty()) return options_.dirpath;
  return train::checkpoint_folder(trainer(), trainer().options());
}

std::optional<CheckpointFiles> ModelCheckpoint::checkpoint_files() const {
  return CheckpointFiles{.folder = attached() || !options_.dirpath.empty() ? directory() : "",
                         .best = best_path_,
                         .keeps_best = options_.save_top_k != 0};
}

bool ModelCheckpoint::active() const {
  const Trainer& t = trainer();
  return t.train_loader() != nullptr && t.global_step() > 0 && t.global_step() != saved_step_ &&
         trainer().options().fast_dev_run == 0;
}

bool ModelCheckpoint::at_epoch_end() const {
  return options_.save_on_train_epoch_end.value_or(!trainer().validation_enabled() ||
                                                   trainer().validates_once_an_epoch());
}

// ---- When

void ModelCheckpoint::on_fit_start() {
  const Trainer& t = trainer();
  const bool resumed = !t.resumed_from().empty();
  came_from_ = resumed ? resolved(t.resumed_from()) : "";
  const auto of_file = [&](std::optional<std::int64_t>& loaded) {
    const std::optional<std::int64_t> step = std::exchange(loaded, std::nullopt);
    return resumed ? step.value_or(t.global_step()) : -1;
  };
  triggered_step_ = of_file(loaded_trigger_);
  saved_step_ = of_file(loaded_step_);
  validated_ = training_ = false;
  failed_ = 0;
  if (!resumed) waits_ = false;
  take_rank_zero();
  const std::string dir = directory();
  // The run that resumes continues with its own `last`.
  if (resumed && is_last(last_path_) && last_path_ == dir + "/" + fs::path(last_path_).filename().string())
    Trainer::Run::of(trainer()).files.written.insert(last_path_);
  std::error_code error;
  const bool known = !best_path_.empty() || !last_path_.empty() ||
                     (resumed && fs::equivalent(fs::path(came_from_).parent_path(), dir, error));
  if (t.is_global_zero() && options_.save_top_k != 0 && !known && trainer().options().fast_dev_run == 0 &&
      fs::is_directory(dir, error) && !fs::is_empty(dir, error))
    warn("W-CKPT-FOLDER", WarningCategory::user,
         "ModelCheckpoint: " + dir + " is not empty; files of this run come beside those of others");
}

// A resume looks for files, which ranks may see differently; rank 0 is right.
void ModelCheckpoint::take_rank_zero() {
  const std::string bytes = Trainer::Run::of(trainer()).files.by_rank_zero([&] {
    train::Packed mine;
    mine.add(best_path_).add(last_path_).add(best_score_.has_value()).add(best_score_.value_or(0)).add(waits_);
    mine.add(saved_step_).add(triggered_step_);
    for (const auto& [path, score] : kept_) mine.add(path).add(score);
    return mine.bytes();
  });
  train::Unpacked in(bytes);
  best_path_ = in.take<std::string>();
  last_path_ = in.take<std::string>();
  const bool scored = in.take<bool>();
  const auto score = in.take<double>();
  best_score_ = scored ? std::optional(score) : std::nullopt;
  waits_ = in.take<bool>();
  saved_step_ = in.take<std::int64_t>();
  triggered_step_ = in.take<std::int64_t>();
  kept_.clear();
  while (!in.empty()) {
    auto path = in.take<std::string>();
    kept_.emplace_back(std::move(path), in.take<double>());
  }
}

void ModelCheckpoint::on_train_start() {
  training_ = true;
  last_time_ = train::steady_seconds();
}
void ModelCheckpoint::on_train_end() {
  training_ = false;
  if (failed_ > 0)
    warn("W-CKPT-UNSAVED", WarningCategory::runtime,
         "ModelCheckpoint: the last " + text(failed_) + " saves of the run failed; " +
             (best_path_.empty() ? "no file holds it" : "of the files that are kept the best is " + best_path_),
         Repeat::yes);
}

void ModelCheckpoint::on_train_batch_end(const StepInfo& info) {
  const std::int64_t step = info.global_step;
  if (const auto& every = options_.train_time_interval) {
    const double now = train::steady_seconds();
    const bool due = now - last_time_ >= every->seconds();
    if (Trainer::Run::of(trainer()).files.by_rank_zero([&] { return std::string(due ? "1" : ""); }).empty()) return;
    last_time_ = now;
    trigger();
  } else if (options_.every_n_train_steps > 0 && step % options_.every_n_train_steps == 0 && step != triggered_step_) {
    triggered_step_ = step;  // all batches of a window have the same step
    trigger();
  }
}

void ModelCheckpoint::on_validation_end() {
  if (!trainer().validating()) return;
  validated_ = true;
  const std::int64_t every = options_.every_n_epochs;
  const bool due = every > 0 && !at_epoch_end() && (trainer().current_epoch() + 1) % every == 0;
  if (due || waits_) save();
}

void ModelCheckpoint::on_train_epoch_end() {
  const std::int64_t every = options_.every_n_epochs;
  if (every > 0 && at_epoch_end() && (trainer().current_epoch() + 1) % every == 0) save();
}

void ModelCheckpoint::trigger() {
  const bool ranked = !options_.monitor.empty() && options_.save_top_k != 0;
  if (ranked && !validated_ && active() && trainer().validation_enabled() &&
      !monitored(trainer(), Trainer::Run::of(trainer()).logs.monitored(), options_.monitor)) {
    waits_ = true;
    return;
  }
  save();
}

// The best files stay, because the state of a failed run may be worse.
void ModelCheckpoint::on_exception(const std::exception& error) {
  const bool in_training = std::exchange(training_, false);
  // On an interrupt the trainer has saved `last`.
  if (!options_.save_on_exception || !in_training || !active() || dynamic_cast<const InterruptedError*>(&error)) return;
  if (!trainer().is_global_zero()) return;  // other ranks may be gone
  const std::string path = path_for(trainer().callback_metrics(), "");
  save_last(write(path) ? path : "");
}

// ---- What

void ModelCheckpoint::missing_monitor(const Metrics& known) const {
  const std::string what =
      "ModelCheckpoint: the metric \"" + options_.monitor + "\" is not known; known are: " + train::names_of(known);
  if (validated_) fail<ConfigError>(what, "; log it under this name, or name another monitor");
  warn("W-CKPT-MONITOR", WarningCategory::user, what + "; nothing is compared or kept as best until it is");
}

void ModelCheckpoint::save() {
  if (!active()) return;
  waits_ = false;
  failure_.clear();
  const Metrics known = Trainer::Run::of(trainer()).logs.monitored();
  const std::optional<double> score = monitored(trainer(), known, options_.monitor);
  const bool ranked = !options_.monitor.empty();
  if (ranked && !score && options_.save_top_k != 0) missing_monitor(known);
  const std::vector<std::pair<std::string, double>> before = kept_;
  const std::string best = best_path_;
  std::string newest;
  if (options_.save_top_k != 0 && (!ranked || score)) newest = save_ranked(known, ranked ? score : std::nullopt);
  save_last(newest);
  count_failures();
  // Older files are removed only after the new one is on disk.
  if (newest.empty()) return;
  if (!ranked) {
    if (options_.save_top_k == 1 && best != newest) remove(best);
    return;
  }
  for (const auto& [path, unused] : before) {
    const bool stays = std::any_of(kept_.begin(), kept_.end(), [&](const auto& k) { return k.first == path; });
    if (!stays) remove(path);
  }
}

// The third failure in a row ends the run, whose training would be lost.
void ModelCheckpoint::count_failures() {
  if (failure_.empty()) {
    failed_ = 0;
  } else if (++failed_ >= kMostFailures) {
    fail<FileError>("ModelCheckpoint: ", failed_, " saves in a row failed, the newest because: ", failure_);
  }
}

// Returns the file that was written; empty: none.
std::string ModelCheckpoint::save_ranked(const Metrics& known, std::optional<double> score) {
  const auto better = [&](const auto& a, const auto& b) { return train::better(options_.mode, a.second, b.second); };
  std::string replaced = options_.save_top_k == 1 ? best_path_ : "";
  auto kept = kept_;
  if (score) {
    replaced.clear();
    if (options_.save_top_k > 0 && static_cast<std::int64_t>(kept.size()) >= options_.save_top_k) {
      // The newest of several that are equally bad.
      const auto worst =
          std::max_element(kept.begin(), kept.end(), [&](const auto& a, const auto& b) { return !better(b, a); });
      if (!train::better(options_.mode, *score, worst->second)) {
        if (options_.verbose)
          warn("I-CKPT-SAVED", WarningCategory::info,
               "ModelCheckpoint: " + options_.monitor + " is " + text(*score) + ", not among the best " +
                   text(options_.save_top_k),
               Repeat::yes);
        return {};
      }
      replaced = worst->first;
      kept.erase(worst);
    }
  }
  const std::string path = path_for(known, replaced);
  if (score) {
    std::erase_if(kept, [&](const auto& k) { return k.first == path; });  // its content is replaced
    kept.emplace_back(path, *score);
  }
  // A file names itself in its own state, so that a run that resumes from it knows what to remove next. A failed write
  // takes that back.
  struct Marks {
    std::string best;
    std::optional<double> score;
    std::vector<std::pair<std::string, double>> kept;
  };
  const Marks before{best_path_, best_score_, kept_};
  kept_ = std::move(kept);
  best_path_ = path;
  if (score) {
    const auto best =
        std::min_element(kept_.begin(), kept_.end(), better);  // the first of several that are equally good
    best_path_ = best->first;
    best_score_ = best->second;
  }
  const auto take_back = [&] {
    best_path_ = before.best;
    best_score_ = before.score;
    kept_ = before.kept;
  };
  try {
    if (write(path)) {
      if (options_.verbose)
        warn("I-CKPT-SAVED", WarningCategory::info,
             "ModelCheckpoint: saved " + path + (score ? ", " + options_.monitor + " is " + text(*score) : ""),
             Repeat::yes);
      return path;
    }
  } catch (...) {
    take_back();
    throw;
  }
  take_back();
  return {};
}

void ModelCheckpoint::save_last(const std::string& newest) {
  if (options_.save_last == SaveLast::off) return;
  const train::Link kind = options_.save_last == SaveLast::on ? train::Link::hard : train::Link::symbolic;
  const std::string before = std::exchange(last_path_, last_file());
  try {
    const auto link = [&] { return std::string(train::link_to(newest, last_path_, kind) ? "1" : ""); };
    if (!newest.empty() && !Trainer::Run::of(trainer()).files.by_rank_zero(link).empty()) {
      Trainer::Run::of(trainer()).files.written.insert(last_path_);
      return;
    }
    if (write(last_path_)) return;
  } catch (...) {
    last_path_ = before;
    throw;
  }
  last_path_ = before;
}

std::string ModelCheckpoint::last_file() const {
  const Trainer::Files& files = Trainer::Run::of(trainer()).files;
  return files.by_rank_zero([&] { return files.last_file(directory()); });
}

bool ModelCheckpoint::not_written(const Error& error) {
  failure_ = error.what();
  warn_not_written(failure_);
  return false;
}

// Returns false, with a warning, if the write fails: a full disk or memory costs a file, not the run.
bool ModelCheckpoint::write(const std::string& path) {
  const std::int64_t before = std::exchange(saved_step_, trainer().global_step());  // the file's state holds it
  // The same file becomes `last`, and its state names it.
  const train::Restore names_last(last_path_, options_.save_last == SaveLast::on ? last_file() : last_path_);
  const auto none = [&](const Error& e) {
    saved_step_ = before;
    return not_written(e);
  };
  try {
    // A write through a link that is `last` would change the file of another step.
    Trainer::Run::of(trainer()).files.save(path, options_.save_weights_only ? WeightsOnly::yes : WeightsOnly::no,
                                           path == last_path_ ? train::AtLink::replace : train::AtLink::follow);
    // `last` becomes a link to a file that is whole.
    if (options_.save_last != SaveLast::off) Trainer::Run::of(trainer()).files.finish();
    Trainer::Run::of(trainer()).files.written.insert(path);
    return true;
  } catch (const FileError& e) { return none(e); } catch (const OutOfMemoryError& e) {
    return none(e);
  } catch (...) {
    saved_step_ = before;
    throw;
  }
}

std::string ModelCheckpoint::path_for(const Metrics& known, const std::string& replaced) const {
  return Trainer::Run::of(trainer()).files.by_rank_zero([&] {
    const std::string stem =
        directory() + "/" + form_of(options_, trainer().current_epoch(), trainer().global_step(), known);
    const std::string ending = Trainer::Run::of(trainer()).files.ending();
    std::string path = stem + ending;
    CheckpointIO& io = Trainer::Run::of(trainer()).files.io();
    const auto taken = [&] {
      if (!io.exists(path)) return false;
      if (!came_from_.empty() && resolved(path) == came_from_) return true;
      return options_.enable_version_counter && path != replaced;
    };
    for (int v = 1; taken(); ++v) path = stem + "-v" + std::to_string(v) + ending;
    return path;
  });
}

// Keeps the file that this run resumed, files of other folders, and the file that `last` links to. A file that this run
// has not written, but that a state names, is removed only if it is a whole checkpoint.
void ModelCheckpoint::remove(const std::string& path) const {
  std::error_code error;
  if (!trainer().is_global_zero()) return;
  if (path.empty() || !same_folder(fs::path(path).parent_path(), directory()) || resolved(path) == came_from_) return;
  const std::string last = Trainer::Run::of(trainer()).files.last_file(directory());
  if (fs::is_symlink(last, error) && fs::equivalent(path, last, error)) return;
  const Trainer::Files& files = Trainer::Run::of(trainer()).files;
  if (!files.written.contains(path) && !train::is_whole_checkpoint(files.io(), path)) return;
  train::remove_checkpoint(files.io(), path);
}

// ---- State

std::string ModelCheckpoint::state_key() const {
  const ModelCheckpointOptions& o = options_;
  const std::string trigger = o.every_n_train_steps > 0 ? "every_n_train_steps=" + text(o.every_n_train_steps)
                              : o.train_time_interval ? "train_time_interval=" + text(o.train_time_interval->seconds())
                                                      : "every_n_epochs=" + text(o.every_n_epochs);
  return "ModelCheckpoint(monitor=" + o.monitor + ", mode=" + train::name_of(o.mode) + ", " + trigger +
         (o.dirpath.empty() ? "" : ", dirpath=" + o.dirpath) + ")";
}

bool ModelCheckpoint::takes_state_of(std::string_view key) const {
  return key.starts_with("ModelCheckpoint(monitor=" + options_.monitor + ", mode=" + train::name_of(options_.mode) +
                         ", ");
}

CallbackState ModelCheckpoint::state() const {
  CallbackState state{.values = {{"dirpath", directory()},
                                 {"best_model_path", best_path_},
                                 {"last_model_path", last_path_},
                                 {"saved_step", text(saved_step_)},
                                 {"triggered_step", text(triggered_step_)},
                                 {"waits", waits_ ? "1" : "0"}},
                      .tensors = {}};
  if (best_score_) state.values.emplace_back("best_model_score", train::exact(*best_score_));
  // Numbered, because the values are kept by name.
  for (std::size_t i = 0; i < kept_.size(); ++i) {
    state.values.emplace_back("kept_path_" + text(i), kept_[i].first);
    state.values.emplace_back("kept_score_" + text(i), train::exact(kept_[i].second));
  }
  return state;
}

void ModelCheckpoint::load_state(const CallbackState& state) {
  const auto value = [&](const std::string& key) -> const std::string* {
    for (const auto& [name, v] : state.values) {
      if (name == key) return &v;
    }
    return nullptr;
  };
  const auto number = [&](const std::string& key, const std::string& v) {
    return train::read_number("ModelCheckpoint", key, v);
  };
  const std::string* dir = value("dirpath");
  const bool same = dir && same_folder(*dir, directory());
  // Leaves out files that do not exist. Files of another folder are ranked and not removed.
  std::error_code error;
  const auto file = [&](const std::string& key) {
    const std::string* found = value(key);
    if (!found || !fs::exists(*found, error)) return std::string();
    const fs::path path = *found;
    return same && path.parent_path() == fs::path(*dir) ? directory() + "/" + path.filename().string() : *found;
  };
  const std::string best = file("best_model_path");
  std::optional<double> score;
  std::vector<std::pair<std::string, double>> kept;
  for (std::size_t i = 0; value("kept_path_" + text(i)); ++i) {
    const std::string key = "kept_score_" + text(i), path = file("kept_path_" + text(i));
    const std::string* of = value(key);
    const double x = of ? number(key, *of) : 0;
    if (of && !path.empty()) kept.emplace_back(path, x);
  }
  if (const std::string* s = value("best_model_score"); s && !best.empty()) score = number("best_model_score", *s);
  if (!same && !options_.dirpath.empty())  // without a dirpath each start has its own folder
    warn("W-CKPT-DIR", WarningCategory::user,
         "ModelCheckpoint: the run wrote to " + (dir ? *dir : std::string("another folder")) +
             " before and writes to " + directory() + " now; what is there takes part in the ranking and stays");
  const auto step = [&](const char* key) {
    const std::string* v = value(key);  // older files have none
    if (!v || *v == "-1") return v ? std::optional<std::int64_t>(-1) : std::nullopt;
    return std::optional(train::read_count("ModelCheckpoint", key, *v));
  };
  const std::optional<std::int64_t> saved = step("saved_step"), triggered = step("triggered_step");
  best_path_ = best;
  best_score_ = score;
  kept_ = std::move(kept);
  if (!same) return;
  loaded_step_ = saved;
  loaded_trigger_ = triggered;
  const std::string* waits = value("waits");
  last_path_ = file("last_model_path");
  waits_ = waits && *waits == "1";
}

// ---- OnExceptionCheckpoint

OnExceptionCheckpoint::OnExceptionCheckpoint(std::string dirpath) : dirpath_(std::move(dirpath)) {
  if (dirpath_.empty()) fail<ConfigError>("OnExceptionCheckpoint: dirpath is empty; name the folder to save in");
}
std::string OnExceptionCheckpoint::path() const { return dirpath_ + "/on_exception" + std::string(train::kFileEnding); }
std::optional<CheckpointFiles> OnExceptionCheckpoint::checkpoint_files() const {
  return CheckpointFiles{.keeps_best = false, .others = {path()}};
}

void OnExceptionCheckpoint::on_exception(const std::exception&) {
  const Trainer& t = trainer();
  if (!std::exchange(training_, false) || t.global_step() == 0 || trainer().options().fast_dev_run > 0) return;
  try {
    trainer().save_checkpoint(path());
  } catch (const FileError& e) { warn_not_written(e.what()); } catch (const OutOfMemoryError& e) {
    warn_not_written(e.what());
  }
}

}  // namespace levin
