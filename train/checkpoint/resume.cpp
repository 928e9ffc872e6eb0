// Resumes from a checkpoint: compares it with the run, and only then changes the run.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <set>

#include "levin/autograd.h"
#include "levin/ops.h"
#include "train/checkpoint/content.h"
#include "train/checkpoint/folder.h"
#include "train/checkpoint/rank_states.h"
#include "train/run/by_rank_zero.h"
#include "train/run/run.h"

namespace levin {
namespace {

using train::below;
using train::check_same;
using train::Checkpoint;
using train::Due;
using train::key_in;
using train::state_in;

std::int64_t global_batch_of(const Trainer::Run& run) {
  return run.loaders.train->batch_size().value_or(0) * run.strategy->share().replicas;
}

// Why this run cannot continue the file's epoch, which is one of another number of ranks. Empty: it can.
std::string why_leaves(const Trainer::Run& run, const Checkpoint& file) {
  if (file.world_size == run.strategy->ranks().size) return {};
  if (file.progress.batches_done == 0 || file.epoch_is_whole() || file.progress.closing) return {};
  const std::string where = "resume: " + file.path + " stands at batch " + text(file.progress.batches_done) +
                            " of an epoch of " + text(file.world_size) + " ranks, this run has " +
                            text(run.strategy->ranks().size) + ", and ";
  if (run.loaders.train->stream()) return where + "streams are divided in another way among them";
  const std::int64_t then = file.global_batch > 0 ? file.global_batch : file.batch_size;  // older files have one rank
  if (const std::int64_t now = global_batch_of(run); then != now)
    return where + "the global batch is " + text(now) + " samples instead of " + text(then);
  if (run.loaders.train->length() && file.batches_per_epoch > 0 && file.batches_per_epoch != run.loaders.batches)
    return where + "the epoch has " + text(run.loaders.batches) + " batches instead of " + text(file.batches_per_epoch);
  // Batches that came as they finished are no part of an order that other ranks could continue.
  if (!file.progress.position.ahead.empty()) return where + "its batches came out of order";
  return {};
}

// Where this rank's loader goes on. On another number of ranks the batches before it are those of the file's ranks.
data::LoaderState position_here(const Trainer::Run& run, const Checkpoint& file, const train::RankState& mine) {
  if (file.world_size == run.strategy->ranks().size)
    return {.epoch = file.progress.epoch, .batch = mine.batch, .ahead = mine.ahead};
  return {.epoch = file.progress.epoch, .batch = file.progress.batches_done};
}

// Throws ConfigError for a file that does not fit the run: its counters, batches, optimizers or window.
void check_fits(const Trainer::Run& run, const Checkpoint& file, const train::RankState& mine) {
  const std::string& path = file.path;
  // Positions of streams go beyond their length, where the streams are uneven.
  const std::int64_t size = run.loaders.train->stream() ? train::kUnknownBatches
                                                        : run.loaders.train->length().value_or(train::kUnknownBatches);
  const std::int64_t max_epochs = run.stop.max_epochs();
  const std::int64_t trained = file.progress.epoch - file.progress.forward_epochs;
  const bool leaves = !why_leaves(run, file).empty();
  const bool whole = file.epoch_is_whole() || leaves;
  if (!whole && !file.progress.position.ahead.empty() && file.progress.position.ahead.back() >= size)
    fail<ConfigError>("resume: ", path, " was written after batch ", file.progress.position.ahead.back(),
                      " of an epoch, which now has ", size, " batches; use the same data and batch size");
  if (max_epochs >= 0 && trained > max_epochs)
    fail<ConfigError>("resume: ", path, " was written after ", trained, " epochs, max_epochs is ", max_epochs,
                      "; raise it");
  if (!whole && file.progress.batches_done > run.loaders.batches)
    fail<ConfigError>("resume: ", path, " stands at batch ", file.progress.batches_done, " of an epoch, which now has ",
                      run.loaders.batches, "; use the same data and batch size");
  if (!whole) {
    try {
      run.loaders.train->check_state(position_here(run, file, mine));
    } catch (const StateError& e) {
      fail<ConfigError>("resume: ", path, " does not fit the training loader: ", e.what());
    }
  }
  // In the middle of an epoch, other batches would repeat samples and leave some out.
  const bool inside = file.progress.batches_done > 0 && !whole;
  const auto differ = [&](const char* what, std::int64_t then, std::int64_t now) {
    if (inside && then > 0 && now > 0 && then != now)
      fail<ConfigError>("resume: ", path, " stands at batch ", file.progress.batches_done, " of an epoch with ", what,
                        " ", then, ", which is ", now,
                        " now; use the same data, batch size and limit_train_batches, or a file of an epoch's end");
  };
  if (file.world_size == run.strategy->ranks().size)
    differ("batch size", file.batch_size, run.loaders.train->batch_size().value_or(0));
  if (run.loaders.train->length()) differ("a number of batches of", file.batches_per_epoch, run.loaders.batches);
  if (file.optimizers.size() != run.optimizers.all.size())
    fail<ConfigError>("resume: ", path, " holds the state of ", file.optimizers.size(), " optimizers, this run has ",
                      run.optimizers.all.size());
  for (std::size_t i = 0; i < run.optimizers.all.size(); ++i) {
    if (file.optimizers[i] != run.optimizers.all[i]->name())
      fail<ConfigError>("resume: ", path, " holds the state of the optimizer ", file.optimizers[i], ", this run has ",
                        run.optimizers.all[i]->name());
  }
  const Callback* const schedule = run.hooks.accumulation_schedule();
  const std::int64_t window =
      schedule ? schedule->accumulation_at(file.progress.epoch) : run.options.accumulate_grad_batches;
  if (file.accumulate != 1 && file.accumulate != window && !leaves)
    fail<ConfigError>(
        "resume: ", path, " was written inside a window of ", file.accumulate, " batches, ",
        schedule ? "in its epoch " + train::class_of(*schedule) + " has " : std::string("accumulate_grad_batches is "),
        window, "; set it to ", file.accumulate);
  const NamedTensors weight = below(file.rest, train::window_weight_name());
  if (file.accumulate != 1 && run.window.weighs_exactly() == weight.empty() && !leaves)
    fail<ConfigError>("resume: ", path, " was written inside a window whose accumulate_weighting was ",
                      weight.empty() ? "per_batch" : "exact", "; set it so");
  for (const auto& [name, t] : weight) {
    if (t.dtype() != DType::f64 || t.numel() != 1)
      fail<FormatError>("resume: ", path, ": the weight of the window is ", text(t), ", expected one f64 element");
  }
}

// Checks the schedules, after the callbacks have their states: a callback may replace a schedule.
void check_schedules(const Trainer::Run& run, const Checkpoint& file) {
  const std::string& path = file.path;
  if (file.schedulers != run.optimizers.schedulers.size())
    fail<ConfigError>("resume: ", path, " holds the state of ", file.schedulers, " schedulers, this run has ",
                      run.optimizers.schedulers.size());
  for (std::size_t i = 0; i < run.optimizers.schedulers.size(); ++i)
    (void)check_same(path, "values of a scheduler", below(file.rest, train::scheduler_prefix(i)),
                     run.optimizers.schedulers[i].scheduler->state_dict());
}

// Returns the file's gradients of an open window, each with its parameter.
std::vector<std::pair<Tensor*, Tensor>> match_gradients(const Trainer::Run& run, const Checkpoint& file) {
  std::vector<std::pair<Tensor*, Tensor>> matched;
  std::size_t read = 0;
  for (std::size_t i = 0; i < run.optimizers.all.size(); ++i) {
    NamedTensors here;
    const NamedTensors there = below(file.rest, train::gradient_prefix(i));
    const std::vector<ParamRef> parameters = train::kept_gradients(run, i);
    const std::vector<ParamRef> model = run.optimizers.all[i]->model_parameters(),
                                pieces = run.optimizers.all[i]->pieces();
    for (const auto& [name, gradient] : there) {
      const auto it =
          std::find_if(parameters.begin(), parameters.end(), [&](const ParamRef& p) { return p.name == name; });
      if (it == parameters.end()) continue;
      here.emplace_back(name, it->value->detach());
      matched.emplace_back(it->value, gradient);
      for (std::size_t k = 0; k < pieces.size(); ++k) {
        if (model[k].value == it->value) matched.back().first = pieces[k].value;
      }
    }
    (void)check_same(file.path, "gradients", there, here, {.any_float = true});
    for (const auto& [name, gradient] : there) {
      const auto it =
          std::find_if(parameters.begin(), parameters.end(), [&](const ParamRef& p) { return p.name == name; });
      const std::string in_file = train::gradient_prefix(i) + name;
      matched[read++].second =
          pieces.empty() ? file.read(in_file, gradient) : file.read_piece(in_file, gradient, *run.strategy, *it->value);
    }
  }
  return matched;
}

// Returns the states of the module's metrics, each with its value in the file.
std::vector<std::pair<Tensor, Tensor>> match_metrics(const Trainer::Run& run, const Checkpoint& file) {
  std::vector<std::pair<Tensor, Tensor>> matched;
  NamedTensors here, there;
  const NamedTensors all = below(file.rest, train::metric_prefix());
  for (const auto& [name, state] : train::metric_states(run.borrowed.tree)) {
    const auto it = std::find_if(all.begin(), all.end(), [&](const auto& t) { return t.first == name; });
    if (it == all.end()) continue;
    here.emplace_back(name, state);
    there.push_back(*it);
    matched.emplace_back(state, it->second);
  }
  (void)check_same(file.path, "metrics", there, here);
  return matched;
}

// Returns the generators of the run's tree, each with its state in the file. Throws ConfigError if the file lacks a
// generator or has another one.
std::vector<std::pair<Generator*, RandomRange>> match_generators(const Trainer::Run& run, const Checkpoint& file,
                                                                 const train::RankState& mine) {
  std::vector<std::pair<Generator*, RandomRange>> matched;
  const std::map<std::string, RandomRange> states(mine.generators.begin(), mine.generators.end());
  if (run.borrowed.tree) {
    for (const auto& [name, generator] : run.borrowed.tree->generators()) {
      const auto state = states.find(name);
      if (state == states.end())
        fail<ConfigError>("resume: ", file.path, " has no state of the generator \"", name, "\" of this module");
      matched.emplace_back(generator, state->second);
    }
  }
  if (matched.size() != file.generators.size())
    fail<ConfigError>("resume: ", file.path, " holds the state of ", file.generators.size(),
                      " generators, this module has ", matched.size());
  return matched;
}

void warn_of_unknown_callbacks(const Trainer::Run& run, const Checkpoint& file) {
  std::string left;
  for (const auto& [key, values] : file.callbacks) {
    const bool known = key == train::kModuleKey || (key == train::kDataKey && run.borrowed.data_module) ||
                       std::any_of(run.hooks.callbacks.begin(), run.hooks.callbacks.end(),
                                   [&](const auto& c) { return key_in(file, run, *c) == key; });
    if (!known) left += (left.empty() ? "" : ", ") + key;
  }
  if (!left.empty())
    warn("W-CKPT-CALLBACKS", WarningCategory::user,
         "resume: " + file.path + " holds the state of callbacks that this trainer lacks: " + left);
}

// Restores the parts that were loaded, the last one first, unless drop() was called.
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
    } catch (...) {}  // no memory for the text; the first error is being thrown
  }
  std::vector<std::pair<std::string, std::function<void()>>> steps_;
};

// The state of optimizer i in the file, converted for parameters of another float precision, and with masters if the
// optimizer has some.
NamedTensors optimizer_state(const Trainer::Run& run, const train::Incoming& in, std::size_t i) {
  NamedTensors state = below(in.file().rest, train::optimizer_prefix(i));
  const optim::Optimizer& optimizer = *run.optimizers.all[i];
  std::set<std::string> masters, given;
  for (const auto& [name, t] : optimizer.state_refs()) {
    if (name.ends_with(train::kMaster)) masters.insert(name);
  }
  std::map<std::string, const ParamRef*> parameters;
  const std::vector<ParamRef> own = optimizer.model_parameters();
  for (const ParamRef& p : own) parameters.emplace(p.name, &p);
  std::map<const Tensor*, std::string> names;  // in the file
  for (const ParamRef& p : run.borrowed.tree ? run.borrowed.tree->parameters() : own) names.emplace(p.value, p.name);
  const auto weight_of = [&](const ParamRef& p) -> const Tensor* {
    const auto name = names.find(p.value);
    if (name == names.end()) return nullptr;
    for (const auto& [known, t] : in.weights()) {
      if (known == name->second) return &t;
    }
    return nullptr;
  };
  const auto values = [&](const std::string& name, const Tensor& t, const Tensor& of) {
    const std::string in_file = train::optimizer_prefix(i) + name;
    if (optimizer.pieces().empty() || !is_float(t.dtype())) return in.file().read(in_file, t);
    return in.file().read_piece(in_file, t, *run.strategy, of);
  };
  for (auto& [name, t] : state) {
    const auto at = parameters.find(name.substr(0, name.rfind('.')));
    if (at == parameters.end()) continue;
    const ParamRef& p = *at->second;
    given.insert(name);
    if (name.ends_with(train::kMaster) && !masters.contains(name)) continue;  // left out below
    const bool like = t.shape() == p.value->shape();
    t = values(name, t, *p.value);
    if (!is_float(t.dtype()) || !like || name.ends_with(train::kMaster)) continue;
    const Tensor* const weight = weight_of(p);
    if (p.value->dtype() == DType::f16 && weight && weight->dtype() != DType::f16 &&
        !masters.contains(p.name + std::string(train::kMaster)))
      fail<ConfigError>("resume: ", in.file().path, " holds the optimizer's state of ", p.name, ", which was ",
                        weight->dtype(),
                        " and is f16 here, without an f32 master, where small updates are lost; use precision "
                        "= \"16-o2\" or \"bf16-true\", or load the weights alone");
    t = t.to(p.value->dtype() == DType::f64 ? DType::f64 : DType::f32);
  }
  std::erase_if(state, [&](const auto& named) {
    const std::string& name = named.first;
    return name.ends_with(train::kMaster) && given.contains(name) && !masters.contains(name);
  });
  for (const ParamRef& p : own) {
    const std::string name = p.name + std::string(train::kMaster);
    if (!masters.contains(name) || given.contains(name)) continue;
    const Tensor* const weight = weight_of(p);
    Tensor master = (weight ? *weight : p.value->detach()).to(DType::f32);
    state.emplace_back(name, optimizer.pieces().empty() ? master : run.strategy->piece(master, *p.value));
  }
  return state;
}

// Loads the parts that check their own state and may refuse it: either all of them change, or none. The last optimizer
// needs no undo, because it changes nothing when it throws.
void load_parts(Trainer::Run& run, const train::Incoming& in) {
  const Checkpoint& file = in.file();
  Undo undo;
  for (const auto& c : run.hooks.callbacks) {
    const std::string key = c->state_key();
    const auto it = in.states().find(key);
    if (key.empty() || it == in.states().end()) continue;
    CallbackState before = c->state();
    for (auto& [name, t] : before.tensors) t = t.clone();  // the callback may write into the tensors of its state
    undo.add("callback " + key, [c, before = std::move(before)] { c->load_state(before); });
    c->load_state(it->second);
  }
  check_schedules(run, file);
  for (std::size_t i = 0; i < run.optimizers.schedulers.size(); ++i) {
    const std::shared_ptr<optim::Scheduler> scheduler = run.optimizers.schedulers[i].scheduler;
    undo.add("scheduler " + std::to_string(i),
             [scheduler, before = scheduler->state_dict()] { scheduler->load_state_dict(before); });
    scheduler->load_state_dict(below(file.rest, train::scheduler_prefix(i)));
  }
  const NamedTensors scale = below(file.rest, train::precision_prefix());
  if (optim::GradScaler* scaler = run.precision.scaler()) {
    undo.add("the loss scale", [scaler, before = scaler->state_dict()] { scaler->load_state_dict(before); });
    scaler->load_state_dict(scale);  // warns if the file has no loss scale
  } else if (!scale.empty()) {
    warn("W-CKPT-SCALE", WarningCategory::user,
         "resume: " + file.path + " holds a loss scale and precision = \"" + run.precision.name() +
             "\" uses none; it is ignored");
  }
  if (const NamedTensors state = below(file.rest, train::precision_plugin_prefix()); !state.empty()) {
    if (PrecisionPlugin* const plugin = run.precision.plugin()) {
      NamedTensors before = plugin->state_dict();
      for (auto& [name, t] : before) t = t.clone();
      undo.add("the precision", [plugin, before = std::move(before)] { plugin->load_state_dict(before); });
      plugin->load_state_dict(state);
    } else {
      warn("W-CKPT-PRECISION", WarningCategory::user,
           "resume: " + file.path + " holds the state of a PrecisionPlugin and the run has none; it is ignored");
    }
  }
  if (file.world_size == run.strategy->ranks().size) {
    NamedTensors own;
    const std::string prefix = train::strategy_prefix(run.strategy->ranks().rank);
    for (const auto& [name, t] : below(file.rest, prefix)) own.emplace_back(name, file.read(prefix + name, t));
    undo.add("strategy", [&run, before = run.strategy->state()] { run.strategy->load_state(before); });
    run.strategy->load_state(own);
  }
  for (std::size_t i = 0; i < run.optimizers.all.size(); ++i) {
    const std::shared_ptr<optim::Optimizer> optimizer = run.optimizers.all[i];
    if (i + 1 < run.optimizers.all.size()) {
      NamedTensors before = optimizer->state_dict();
      for (auto& [name, t] : before) t = t.clone();
      undo.add("optimizer " + std::to_string(i),
               [optimizer, before = std::move(before)] { optimizer->load_state_dict(before); });
    }
    optimizer->load_state_dict(optimizer_state(run, in, i));
  }
  undo.drop();
}

}  // namespace

// A request to stop holds until a limit is raised above the limit of the file's run.
void Trainer::Files::take_stop(const Checkpoint& file) {
  const auto raised = [](const std::optional<std::int64_t>& then, std::int64_t now) {
    return then && *then >= 0 && (now < 0 || now > *then);  // below 0: no limit
  };
  const bool same = !raised(file.max_epochs, run_.stop.max_epochs()) && !raised(file.max_steps, run_.options.max_steps);
  run_.stop.requested = run_.stop.kept = file.stop && same;
  run_.stop.by = file.stopped_by;
  if (!file.stop) return;
  const std::string who = run_.stop.by.empty() ? "a request of its own" : run_.stop.by;
  const std::string what = "resume: the run of " + file.path + " was stopped by " + who;
  warn("I-CKPT-STOPPED", WarningCategory::info,
       same ? what +
                  "; min_epochs and min_steps are met, and nothing is trained beyond; raise max_epochs or max_steps "
                  "to train on"
            : what +
                  "; max_epochs or max_steps is larger, so this run trains on. Where the same callback would "
                  "stop it again at once, raise min_epochs, or empty content.state in its on_load_checkpoint",
       Repeat::yes);
}

void Trainer::Files::begin_fit() {
  resumed_from.clear();
  resumed_at = -1;
  // File systems read a clock that stands still between two ticks of the kernel.
  constexpr std::chrono::milliseconds kTick(10);
  began_ = (std::filesystem::file_time_type::clock::now() - kTick).time_since_epoch().count();
}

Checkpoint Trainer::Files::read(const train::FoundCheckpoint& found, train::Needs needs) const {
  Checkpoint content;
  train::by_all_ranks(*run_.strategy, [&] {
    content = found.content ? std::move(*found.content)
                            : train::read_checkpoint(io(), found.path, needs, run_.strategy->ranks());
  });
  return content;
}

std::unique_ptr<train::Incoming> Trainer::Files::open(const std::string& ckpt_path) {
  const train::FoundCheckpoint found = find_for_fit(ckpt_path);
  if (found.path.empty()) return nullptr;
  auto file = std::make_unique<train::Incoming>(run_, read(found, train::Needs::run));
  give_back_batch_size(file->file());
  file->ask_module();
  return file;
}

// Drops the open window and ends the epoch: the next thing that the run does is what follows an epoch's end.
void Trainer::Files::leave_epoch(const std::string& why) {
  warn("W-CKPT-WORLD", WarningCategory::user, why + "; the rest of the epoch is left out", Repeat::yes);
  for (const auto& o : run_.optimizers.all) o->zero_grad();
  run_.window.weight = Tensor();
  train::Progress& p = run_.progress;
  if (!run_.loaders.train->length()) run_.loaders.batches = p.batches_done;  // its end was reached
  p.batches_done = run_.loaders.batches;
  p.batches_absent = 0;
  p.position = {.epoch = p.epoch, .batch = p.batches_done};
  p.closing = true;
  if (!run_.borrowed.manual) run_.optimizers.advance(SchedulerConfig::Interval::epoch);
}

void Trainer::Files::resume(train::Incoming& in) {
  const NoGrad off;
  const Checkpoint& file = in.file();
  const std::string& path = file.path;
  Undo data;
  if (run_.borrowed.data_module && file.callbacks.contains(train::kDataKey)) {
    CallbackState before = run_.borrowed.data_module->state();
    for (auto& [name, t] : before.tensors) t = t.clone();
    data.add("data module", [this, before = std::move(before)] { run_.borrowed.data_module->load_state(before); });
    run_.borrowed.data_module->load_state(state_in(file, train::kDataKey));
    if (run_.loaders.own_train)
      run_.loaders.train = nullptr;  // configure_optimizers asked for it before the data module had its state
  }
  {
    const train::Restore at(run_.progress.epoch, file.progress.epoch);  // hooks read the file's epoch
    run_.loaders.load_val();
    run_.loaders.load_train();
  }
  const int rank = run_.strategy->ranks().rank;
  const train::RankState mine = train::rank_state_in(file, *run_.strategy);
  const auto generators = match_generators(run_, file, mine);
  const auto gradients = match_gradients(run_, file);
  auto metrics = match_metrics(run_, file);
  check_fits(run_, file, mine);
  const std::string leaves = why_leaves(run_, file);
  warn_of_unknown_callbacks(run_, file);
  if (!run_.borrowed.tree) {  // of bare tensors, which only the optimizers know
    const train::Scope whole([&] { run_.strategy->unshard(); }, [&] { run_.strategy->reshard(); });
    in.take_weights();
  }
  load_parts(run_, in);
  data.drop();
  in.keep();
  // Nothing below fails.
  for (const auto& [generator, state] : generators) generator->set_state(state);
  for (const auto& [name, metric] : train::metrics_of(run_.borrowed.tree))
    metric->reset();                                    // a metric that the file lacks starts afresh
  if (rank != 0 && run_.logs.ranks()) metrics.clear();  // rank 0 has the states of all
  for (auto& [state, value] : metrics) copy_(state, value);
  for (const auto& o : run_.optimizers.all) o->zero_grad();
  run_.window.gradients_torn = run_.window.batch_torn = false;
  for (const auto& [parameter, gradient] : gradients)
    parameter->set_grad(gradient.to(parameter->device()).to(parameter->dtype()));
  run_.window.weight = Tensor();
  for (const auto& [name, t] : below(file.rest, train::window_weight_name())) run_.window.weight = t.to(run_.device);
  run_.progress = file.progress;
  run_.progress.position = position_here(run_, file, mine);
  run_.progress.batches_absent = file.world_size == run_.strategy->ranks().size ? mine.absent : 0;
  if (!leaves.empty()) {
    leave_epoch(leaves);
  } else if (file.epoch_is_whole() && !run_.loaders.train->length()) {
    if (run_.progress.batches_done > 0) run_.loaders.batches = run_.progress.batches_done;  // its end was reached
  } else if (file.epoch_is_whole()) {  // by the number of batches in this run
    run_.progress.batches_done = run_.loaders.batches;
    run_.progress.position = {.epoch = run_.progress.epoch, .batch = run_.loaders.batches};
  }
  unfinished = file.training.value_or(run_.progress.due != Due::nothing);
  run_.hooks.writers_due = file.writers_to_come;
  run_.logs.train.load(file.log, run_.borrowed.tree, /*sums=*/rank == 0 || !run_.logs.ranks());
  run_.logs.batches_evaluated[0] = file.batches_validated;
  take_stop(file);
  run_.stop.requested_at = run_.progress.global_step;
  // max_steps cut the epoch of the file's run, and it cuts this one at the same batch.
  if (unfinished && run_.progress.due == Due::nothing && run_.stop.max_steps_reached() &&
      run_.progress.batches_done > 0 && run_.progress.batches_done < run_.loaders.batches)
    cut = {.log = rank == 0 ? file.log : run_.logs.train.save(), .stop_kept = file.stop, .log_of_ranks = file.log};
  run_.logs.epoch = file.epoch_metrics;
  // Loaders keep their age, so the next ones are made in the same epoch as without the resume. A loader that is due was
  // made above.
  const auto age = [&](std::int64_t& loaded_at, std::int64_t before) {
    if (before >= 0 && run_.progress.epoch - before < run_.options.reload_dataloaders_every_n_epochs)
      loaded_at = before;
  };
  age(run_.loaders.train_loaded_at, file.train_loaded_at);
  age(run_.loaders.val_loaded_at, file.val_loaded_at);
  resumed_from = path;
  resumed_at = run_.progress.total_batches;
}

}  // namespace levin
