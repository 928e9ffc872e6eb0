// Goes on from a checkpoint: finds it, compares it with the run, and only then changes the run.
#include <algorithm>
#include <filesystem>
#include <functional>
#include <optional>
#include <system_error>

#include "levin/autograd.h"
#include "levin/ops.h"
#include "train/checkpoint.h"

namespace levin {
namespace {

namespace fs = std::filesystem;
using train::below;
using train::Checkpoint;

// Throws unless both hold the same names with the same shapes and dtypes, and lists what differs.
void check_same(const std::string& path, const char* what, const NamedTensors& file, const NamedTensors& here,
                const char* call = "resume") {
  std::map<std::string_view, const Tensor*> found;
  for (const auto& [name, t] : file) found.emplace(name, &t);
  std::string missing, shapes, unexpected;
  const auto list = [](std::string& to, std::string_view entry) {
    to += (to.empty() ? "" : ", ") + std::string(entry);
  };
  for (const auto& [name, t] : here) {
    const auto it = found.find(name);
    if (it == found.end()) {
      list(missing, name);
      continue;
    }
    const Tensor& f = *it->second;
    if (f.shape() != t.shape() || f.dtype() != t.dtype())
      list(shapes, name + " (" + text(f.dtype()) + " " + text(f.shape()) + " in the file, " + text(t.dtype()) + " " +
                       text(t.shape()) + " here)");
    found.erase(it);
  }
  for (const auto& [name, t] : found) list(unexpected, name);
  if (missing.empty() && shapes.empty() && unexpected.empty()) return;
  std::string message;
  if (!missing.empty()) message += "; missing in the file: " + missing;
  if (!unexpected.empty()) message += "; only in the file: " + unexpected;
  if (!shapes.empty()) message += "; different: " + shapes;
  fail<ConfigError>(call, ": the ", what, " of ", path, " are not those of this run", message);
}

// Throws ConfigError where the file is another run's.
void check_fits(const Trainer::Run& run, const Checkpoint& file) {
  const std::string& path = file.path;
  const std::int64_t size = run.train_loader->size(), max_epochs = run.max_epochs();
  if (!file.batches_ahead.empty() && file.batches_ahead.back() >= size)
    fail<ConfigError>("resume: ", path, " was written after batch ", file.batches_ahead.back(),
                      " of an epoch, which now has ", size, " batches; use the same data and batch size");
  if (max_epochs >= 0 && file.epochs_completed > max_epochs)
    fail<ConfigError>("resume: ", path, " was written after ", file.epochs_completed, " epochs, max_epochs is ",
                      max_epochs, "; raise it");
  if (file.batches_in_epoch > run.batches)
    fail<ConfigError>("resume: ", path, " stands at batch ", file.batches_in_epoch, " of an epoch, which now has ",
                      run.batches, "; use the same data and batch size");
  // In the middle of an epoch: another cut of the data into batches would repeat samples and leave some out.
  const bool inside = file.batches_in_epoch > 0 && file.due != Trainer::Run::Due::epoch_end;
  const auto differ = [&](const char* what, std::int64_t then, std::int64_t now) {
    if (inside && then > 0 && now > 0 && then != now)
      fail<ConfigError>("resume: ", path, " stands at batch ", file.batches_in_epoch, " of an epoch with ", what, " ",
                        then, ", which is ", now,
                        " now; use the same data, batch size and limit_train_batches, or a file of an epoch's end");
  };
  differ("batch size", file.batch_size, run.train_loader->batch_size().value_or(0));
  differ("a number of batches of", file.batches_per_epoch, run.batches);
  if (file.optimizers.size() != run.optimizers.size())
    fail<ConfigError>("resume: ", path, " holds the state of ", file.optimizers.size(), " optimizers, this run has ",
                      run.optimizers.size());
  for (std::size_t i = 0; i < run.optimizers.size(); ++i) {
    if (file.optimizers[i] != run.optimizers[i]->name())
      fail<ConfigError>("resume: ", path, " holds the state of the optimizer ", file.optimizers[i], ", this run has ",
                        run.optimizers[i]->name());
  }
  const auto* const schedule = run.find_callback<GradientAccumulationScheduler>();
  const std::int64_t window = schedule ? schedule->factor(file.epochs_completed) : run.options.accumulate_grad_batches;
  if (file.accumulate != 1 && file.accumulate != window)
    fail<ConfigError>("resume: ", path, " was written inside a window of ", file.accumulate, " batches, ",
                      schedule ? "in its epoch GradientAccumulationScheduler has " : "accumulate_grad_batches is ",
                      window, "; set it to ", file.accumulate);
  const NamedTensors weight = below(file.rest, train::window_weight_name());
  if (file.accumulate != 1 && run.weighs_exactly() == weight.empty())
    fail<ConfigError>("resume: ", path, " was written inside a window whose accumulate_weighting was ",
                      weight.empty() ? "per_batch" : "exact", "; set it so");
  for (const auto& [name, t] : weight) {
    if (t.dtype() != DType::f64 || t.numel() != 1)
      fail<FormatError>("resume: ", path, ": the weight of the window is ", text(t), ", expected one f64 element");
  }
}

// The same of schedules, which a callback may have replaced when it saw its state.
void check_schedules(const Trainer::Run& run, const Checkpoint& file) {
  const std::string& path = file.path;
  if (file.schedulers != run.schedulers.size())
    fail<ConfigError>("resume: ", path, " holds the state of ", file.schedulers, " schedulers, this run has ",
                      run.schedulers.size());
  for (std::size_t i = 0; i < run.schedulers.size(); ++i)
    check_same(path, "values of a scheduler", below(file.rest, train::scheduler_prefix(i)),
               run.schedulers[i].scheduler->state_dict());
}

// The gradients of an open window, by the parameters they belong to.
std::vector<std::pair<Tensor*, Tensor>> match_gradients(const Trainer::Run& run, const Checkpoint& file) {
  std::vector<std::pair<Tensor*, Tensor>> matched;
  for (std::size_t i = 0; i < run.optimizers.size(); ++i) {
    NamedTensors here;
    const NamedTensors there = below(file.rest, train::gradient_prefix(i));
    const std::vector<ParamRef> parameters = train::kept_gradients(run, i);
    for (const auto& [name, gradient] : there) {
      const auto it =
          std::find_if(parameters.begin(), parameters.end(), [&](const ParamRef& p) { return p.name == name; });
      if (it == parameters.end()) continue;
      here.emplace_back(name, it->value->detach());
      matched.emplace_back(it->value, gradient);
    }
    check_same(file.path, "gradients", there, here);
  }
  return matched;
}

// The states of the module's metrics with what the file has for them.
std::vector<std::pair<Tensor, Tensor>> match_metrics(const Trainer::Run& run, const Checkpoint& file) {
  std::vector<std::pair<Tensor, Tensor>> matched;
  NamedTensors here, there;
  const NamedTensors all = below(file.rest, train::metric_prefix());
  for (const auto& [name, state] : train::metric_states(run.tree)) {
    const auto it = std::find_if(all.begin(), all.end(), [&](const auto& t) { return t.first == name; });
    if (it == all.end()) continue;
    here.emplace_back(name, state);
    there.push_back(*it);
    matched.emplace_back(state, it->second);
  }
  check_same(file.path, "metrics", there, here);
  return matched;
}

// The generators of the run's tree with the states that the file has for them. Throws ConfigError unless it has one for
// each and no other.
std::vector<std::pair<Generator*, RandomRange>> match_generators(const Trainer::Run& run, const Checkpoint& file) {
  std::vector<std::pair<Generator*, RandomRange>> matched;
  if (run.tree) {
    for (const auto& [name, generator] : run.tree->generators()) {
      const auto state = file.generators.find(name);
      if (state == file.generators.end())
        fail<ConfigError>("resume: ", file.path, " has no state of the generator \"", name, "\" of this module");
      matched.emplace_back(generator, state->second);
    }
  }
  if (matched.size() != file.generators.size())
    fail<ConfigError>("resume: ", file.path, " holds the state of ", file.generators.size(),
                      " generators, this module has ", matched.size());
  return matched;
}

// The key under which the file has what this callback gets; empty when it has nothing for it.
std::string key_in(const Checkpoint& file, const Trainer::Run& run, const Callback& callback) {
  const std::string own = callback.state_key();
  if (own.empty() || file.callbacks.contains(own)) return own;
  for (const auto& [key, values] : file.callbacks) {
    const bool anothers =
        std::any_of(run.callbacks.begin(), run.callbacks.end(), [&](const auto& c) { return c->state_key() == key; });
    if (!anothers && callback.takes_state_of(key)) return key;
  }
  return {};
}

void warn_of_unknown_callbacks(const Trainer::Run& run, const Checkpoint& file) {
  std::string left;
  for (const auto& [key, values] : file.callbacks) {
    const bool known = key == train::kModuleKey || (key == train::kDataKey && run.data_module) ||
                       std::any_of(run.callbacks.begin(), run.callbacks.end(),
                                   [&](const auto& c) { return key_in(file, run, *c) == key; });
    if (!known) left += (left.empty() ? "" : ", ") + key;
  }
  if (!left.empty())
    warn("W-CKPT-CALLBACKS", WarningCategory::user,
         "resume: " + file.path + " holds the state of callbacks that this trainer lacks: " + left);
}

// Takes back what was loaded, the newest first, unless dropped.
class Undo {
 public:
  Undo() = default;
  Undo(const Undo&) = delete;
  Undo& operator=(const Undo&) = delete;
  ~Undo() {
    for (auto it = steps_.rbegin(); it != steps_.rend(); ++it) {
      try {
        it->second();
      } catch (const std::exception& e) { tell(it->first, e.what()); } catch (...) {
        tell(it->first, "an exception that is no std::exception");
      }
    }
  }
  void add(std::string what, std::function<void()> step) { steps_.emplace_back(std::move(what), std::move(step)); }
  void drop() { steps_.clear(); }

 private:
  static void tell(const std::string& what, const char* why) noexcept {
    try {
      warn("W-CKPT-UNDO", WarningCategory::runtime,
           "resume: the file does not fit, and the state that " + what + " had before could not be put back: " + why);
    } catch (...) {}  // no memory for the text; the first error is on its way
  }
  std::vector<std::pair<std::string, std::function<void()>>> steps_;
};

using States = std::map<std::string, CallbackState>;  // by state key

// What the file has under a key, for one who is shown the weights.
CallbackState state_in(const Checkpoint& file, const std::string& key) {
  const auto it = file.callbacks.find(key);
  if (key.empty() || it == file.callbacks.end()) return {};
  return {.values = it->second, .tensors = below(file.rest, train::callback_prefix(key))};
}

// The weights and states as callbacks and module want them: each is shown its own.
std::pair<NamedTensors, States> ask_hooks(Trainer::Run& run, const Checkpoint& file) {
  CheckpointContent content{.weights = file.weights, .state = {}};
  States states;
  const auto ask = [&](Hooks& h, const std::string& own, const std::string& key) {
    const bool known = !key.empty() && file.callbacks.contains(key);
    content.state = state_in(file, key);
    h.on_load_checkpoint(content);
    if (known) states[own] = std::move(content.state);
  };
  if (run.active) ask(*run.active, train::kModuleKey, train::kModuleKey);
  for (const auto& c : run.callbacks) ask(*c, c->state_key(), key_in(file, run, *c));
  return {std::move(content.weights), std::move(states)};
}

// The parts that look at their state themselves and may refuse it: all of them change, or none. The last optimizer needs no undo,
// because it changes nothing when it throws.
void load_parts(Trainer::Run& run, const Checkpoint& file, const States& states) {
  Undo undo;
  for (const auto& c : run.callbacks) {
    const std::string key = c->state_key();
    const auto it = states.find(key);
    if (key.empty() || it == states.end()) continue;
    CallbackState before = c->state();
    for (auto& [name, t] : before.tensors) t = t.clone();  // the callback may write into its own
    undo.add("callback " + key, [c, before = std::move(before)] { c->load_state(before); });
    c->load_state(it->second);
  }
  for (std::size_t i = 0; i < run.schedulers.size(); ++i) {
    const std::shared_ptr<optim::Scheduler> scheduler = run.schedulers[i].scheduler;
    undo.add("scheduler " + std::to_string(i),
             [scheduler, before = scheduler->state_dict()] { scheduler->load_state_dict(before); });
    scheduler->load_state_dict(below(file.rest, train::scheduler_prefix(i)));
  }
  const NamedTensors scale = below(file.rest, train::precision_prefix());
  if (optim::GradScaler* scaler = run.precision.scaler()) {
    undo.add("the loss scale", [scaler, before = scaler->state_dict()] { scaler->load_state_dict(before); });
    scaler->load_state_dict(scale);  // warns when the file has none
  } else if (!scale.empty()) {
    warn("W-CKPT-SCALE", WarningCategory::user,
         "resume: " + file.path + " holds a loss scale and precision = \"" + run.precision.name() +
             "\" uses none; it is ignored");
  }
  for (std::size_t i = 0; i < run.optimizers.size(); ++i) {
    const std::shared_ptr<optim::Optimizer> optimizer = run.optimizers[i];
    if (i + 1 < run.optimizers.size()) {
      NamedTensors before = optimizer->state_dict();
      for (auto& [name, t] : before) t = t.clone();
      undo.add("optimizer " + std::to_string(i),
               [optimizer, before = std::move(before)] { optimizer->load_state_dict(before); });
    }
    optimizer->load_state_dict(below(file.rest, train::optimizer_prefix(i)));
  }
  undo.drop();
}

void copy_weights(NamedTensors here, const NamedTensors& weights) {  // `here` shares the parameters' memory
  std::map<std::string_view, const Tensor*> by_name;
  for (const auto& [name, t] : weights) by_name.emplace(name, &t);
  for (auto& [name, t] : here) copy_(t, *by_name.at(name));
}

}  // namespace

namespace {

std::string below_root(const TrainerOptions& options) {
  return (options.default_root_dir.empty() ? std::string(".") : options.default_root_dir) + "/checkpoints";
}

// Where a run like this one may have left files: the callbacks' folders; and where these have none of their own, <root>/checkpoints
// and those of all versions of the loggers' folders, because a run that is started again is a new version.
std::vector<std::string> folders_of(const Trainer::Run& run) {
  const std::string first = run.checkpoint_dir();
  std::vector<std::string> folders = {first};
  for (const auto& c : run.fit_callbacks) {
    const auto* checkpoint = dynamic_cast<const ModelCheckpoint*>(c.get());
    if (checkpoint && !checkpoint->best_model_path().empty())
      folders.push_back(fs::path(checkpoint->best_model_path()).parent_path().string());
  }
  for (const auto& c : run.callbacks) {
    if (const auto* checkpoint = dynamic_cast<const ModelCheckpoint*>(c.get()))
      folders.push_back(checkpoint->directory());
  }
  if (first == train::checkpoint_folder(run.trainer, run.options)) {
    folders.push_back(below_root(run.options));
    for (const auto& logger : run.loggers) {
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

// The newest whole one. Names say nothing about age: a folder may hold several runs.
std::optional<Checkpoint> newest_checkpoint(const Trainer::Run& run) {
  std::vector<std::pair<fs::file_time_type, std::string>> files;
  std::error_code error;
  const auto add = [&](const fs::path& path) {
    const auto time = fs::last_write_time(path, error);
    if (!error) files.emplace_back(time, path.string());
  };
  for (const auto& c : run.callbacks) {
    if (const auto* failed = dynamic_cast<const OnExceptionCheckpoint*>(c.get())) add(failed->path());
  }
  for (const std::string& dir : folders_of(run)) {
    error.clear();
    for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
      if (it->path().extension() == ".safetensors") add(it->path());
    }
  }
  std::sort(files.rbegin(), files.rend());
  for (const auto& [time, path] : files) {
    try {
      return train::read_checkpoint(path);
    } catch (const Error& e) {
      warn("W-CKPT-SKIPPED", WarningCategory::runtime,
           std::string(run.call_name) + ": skipped a checkpoint. " + e.what());
    }
  }
  return std::nullopt;
}

// The best file of the run that wrote the newest checkpoint, by what that says of a callback like this one.
std::string best_of_earlier_run(const Trainer::Run& run, const ModelCheckpoint& callback) {
  const std::optional<Checkpoint> newest = newest_checkpoint(run);
  if (!newest) return {};
  const auto known = newest->callbacks.find(key_in(*newest, run, callback));
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
  const std::string dir = loggers.empty() ? std::string() : loggers.front()->log_dir();
  return dir.empty() ? below_root(options) : dir + "/checkpoints";
}

std::string Trainer::Run::checkpoint_dir() const {
  for (const auto& c : callbacks) {
    if (const auto* checkpoint = dynamic_cast<const ModelCheckpoint*>(c.get())) return checkpoint->directory();
  }
  return train::checkpoint_folder(trainer, options);
}

// Of the first checkpoint callback. Throws ConfigError that says why there is none.
std::string Trainer::Run::best_checkpoint() const {
  const std::string what = std::string(call_name) + ": ckpt_path = \"best\" and there is none: ";
  if (options.fast_dev_run > 0) fail<ConfigError>(what, "a dev run (fast_dev_run) writes no files");
  const ModelCheckpoint* first = nullptr;
  std::int64_t count = 0;
  for (const auto& c : in_fit || fit_callbacks.empty() ? callbacks : fit_callbacks) {
    const auto* checkpoint = dynamic_cast<const ModelCheckpoint*>(c.get());
    if (checkpoint && count++ == 0) first = checkpoint;
  }
  if (!first) fail<ConfigError>(what, "the trainer has no ModelCheckpoint; add one, or set enable_checkpointing");
  if (first->options().save_top_k == 0) fail<ConfigError>(what, "its ModelCheckpoint keeps none, save_top_k is 0");
  const std::string best =
      first->best_model_path().empty() ? best_of_earlier_run(*this, *first) : first->best_model_path();
  if (best.empty())
    fail<ConfigError>(what, "this trainer's ModelCheckpoint has saved none yet, and no earlier run in ",
                      checkpoint_dir(), "; fit first, or give the file's path");
  if (count > 1)
    warn("W-CKPT-BEST", WarningCategory::user,
         std::string(call_name) + ": ckpt_path = \"best\" is that of the first of " + text(count) +
             " checkpoint callbacks, " + best);
  return best;
}

Trainer::Run::Found Trainer::Run::last_checkpoint() const {
  if (std::optional<Checkpoint> newest = newest_checkpoint(*this)) {
    std::string path = newest->path;
    return {.path = std::move(path), .content = std::make_shared<Checkpoint>(std::move(*newest))};
  }
  std::string searched;
  for (const std::string& dir : folders_of(*this)) searched += (searched.empty() ? "" : ", ") + dir;
  warn("W-CKPT-LAST", WarningCategory::user,
       std::string(call_name) + ": ckpt_path = \"last\" and no checkpoint in " + searched +
           (in_fit ? "; starting fresh" : "; the weights stay as they are"));
  return {};
}

Trainer::Run::Found Trainer::Run::find_checkpoint(const std::string& ckpt_path) const {
  if (ckpt_path == "last") return last_checkpoint();
  return {.path = ckpt_path == "best" ? best_checkpoint() : ckpt_path};
}

void Trainer::Run::resume(const Checkpoint& file) {
  const NoGrad off;
  const std::string& path = file.path;
  Undo data;
  if (data_module && file.callbacks.contains(train::kDataKey)) {
    CallbackState before = data_module->state();
    for (auto& [name, t] : before.tensors) t = t.clone();
    data.add("data module", [this, before = std::move(before)] { data_module->load_state(before); });
    data_module->load_state(state_in(file, train::kDataKey));
    if (own_train) train_loader = nullptr;  // one that configure_optimizers asked about; the state decides
  }
  {
    const train::Restore at(epoch, file.epochs_completed);  // what a hook reads
    load_val();
    load_train();
  }
  const auto generators = match_generators(*this, file);
  const auto gradients = match_gradients(*this, file);
  auto metrics = match_metrics(*this, file);
  check_fits(*this, file);
  warn_of_unknown_callbacks(*this, file);
  const auto [weights, states] = ask_hooks(*this, file);
  check_schedules(*this, file);
  check_same(path, "weights", weights, train::weights_of(*this));

  load_parts(*this, file, states);
  data.drop();
  // Nothing below can fail.
  copy_weights(train::weights_of(*this), weights);
  for (const auto& [generator, state] : generators) generator->set_state(state);
  for (const auto& [name, metric] : train::metrics_of(tree)) metric->reset();  // one that the file lacks begins anew
  for (auto& [state, value] : metrics) copy_(state, value);
  for (const auto& o : optimizers) o->zero_grad();
  gradients_torn = false;
  for (const auto& [parameter, gradient] : gradients) parameter->set_grad(gradient.to(parameter->device()));
  window_weight = Tensor();
  for (const auto& [name, t] : below(file.rest, train::window_weight_name())) window_weight = t.to(device);
  epoch = file.epochs_completed;
  batches_done = file.batches_in_epoch;
  position = {.epoch = epoch, .batch = file.batches_in_order(), .ahead = file.batches_ahead};
  global_step = file.global_step;
  total_batches = file.total_batches;
  skipped_batches = file.skipped_batches;
  records = file.records;
  validated_at = file.validated_at;
  due = file.due;
  writers_due = file.writers_to_come;
  train_log.load(file.log, tree);
  eval_batches[0] = file.batches_validated;
  stop = stop_kept = file.stop;
  stop_asked_at = global_step;
  if (stop)
    warn("I-CKPT-STOPPED", WarningCategory::info,
         "resume: " + path +
             " holds the request to stop that its run was given; min_epochs and min_steps are met, and "
             "nothing is trained beyond",
         Repeat::yes);
  epoch_metrics = file.epoch_metrics;
  // Loaders are as old as they were, so that the next ones come when they would have come. One that is due came now.
  const auto age = [&](std::int64_t& loaded_at, std::int64_t before) {
    if (before >= 0 && epoch - before < options.reload_dataloaders_every_n_epochs) loaded_at = before;
  };
  age(train_loaded_at, file.train_loaded_at);
  age(val_loaded_at, file.val_loaded_at);
  resumed_from = path;
  resumed_at = total_batches;
}

void Trainer::Run::load_weights(const Found& found, TrainModule& module) {
  const NoGrad off;
  const std::string& path = found.path;
  const Checkpoint file = found.content ? *found.content : train::read_checkpoint(path, train::Needs::weights);
  CheckpointContent content{.weights = file.weights, .state = state_in(file, train::kModuleKey)};
  module.on_load_checkpoint(content);
  NamedTensors here = module.tree()->state_dict();
  check_same(path, "weights", content.weights, here, call_name);
  copy_weights(std::move(here), content.weights);
  warn("I-CKPT-LOADED", WarningCategory::info, std::string(call_name) + ": the weights are those of " + path,
       Repeat::yes);
}

}  // namespace levin
