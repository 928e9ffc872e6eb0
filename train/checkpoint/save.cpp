// Writes checkpoints: what each part of a run adds to the file, in the order of the file.
#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "levin/autograd.h"
#include "levin/comm/launch.h"
#include "levin/ops.h"
#include "tensor/files/file.h"
#include "train/checkpoint/content.h"
#include "train/checkpoint/rank_states.h"
#include "train/checkpoint/text.h"
#include "train/run/by_rank_zero.h"
#include "train/run/requeue.h"
#include "train/run/run.h"
#include "train/run/signals.h"

namespace levin {

namespace fs = std::filesystem;

bool train::link_to(const std::string& file, const std::string& link, Link kind) noexcept {
  try {
    const std::string temporary = detail::temporary_name(link);
    std::error_code error, ignored;
    fs::remove(temporary, error);
    if (kind == Link::hard)
      fs::create_hard_link(file, temporary, error);
    else
      fs::create_symlink(fs::path(file).filename(), temporary, error);
    if (error) return false;
    fs::rename(temporary, link, error);
    fs::remove(temporary, ignored);  // rename() leaves it if both names are links to one file
    return !error;
  } catch (...) { return false; }  // no memory for the names
}

void train::replace_link(const std::string& path, const Function<void(const std::string&)>& write) {
  std::error_code error;
  if (!fs::is_symlink(path, error)) return write(path);
  const std::string beside = path + ".new";  // ckpt_path = "last" ignores this name
  detail::remove_stale_temporaries(fs::path(path).parent_path().string(), ".new");
  write(beside);
  fs::rename(beside, path, error);
  if (error) fail<FileError>("save_checkpoint: can not rename ", beside, " to ", path, ": ", error.message());
}

namespace {

// Warns of a file that is written in the middle of a batch: it is no state between two steps.
void warn_of_torn_batch(const Trainer::Run& run, const std::string& path) {
  const bool window = (run.borrowed.manual || run.window.is_open()) && run.window.gradients_torn;
  const bool seen = run.window.batch_torn && run.borrowed.tree &&
                    !(run.borrowed.tree->buffers().empty() && run.borrowed.tree->generators().empty());
  if (!window && !seen) return;
  std::string what = "save_checkpoint: " + path + " is written in the middle of a batch";
  if (seen)
    what +=
        ", which a run that goes on from it trains again; buffers, random numbers and metrics in the file have seen "
        "this batch already";
  if (window)
    what +=
        "; its gradients lie among those of its window, so the file holds none, and a run that goes on from it begins "
        "the window's sum anew with this batch";
  warn("W-CKPT-WINDOW", WarningCategory::user, what, Repeat::yes);
}

void append(NamedTensors& to, std::string_view prefix, const NamedTensors& from) {
  for (const auto& [name, tensor] : from) to.emplace_back(std::string(prefix) + name, tensor);
}

void make_folder(const std::string& path) {
  std::error_code error;
  if (const fs::path parent = fs::path(path).parent_path(); !parent.empty()) {
    fs::create_directories(parent, error);
    if (error) fail<FileError>("save_checkpoint: can not make ", parent.string(), ": ", error.message());
  }
  const std::string folder = fs::path(path).parent_path().string();
  detail::remove_stale_temporaries(folder.empty() ? "." : folder, ".safetensors");
}

// The state of an optimizer. With pieces it is that of whole parameters, and other ranks than 0 get the numbers alone.
NamedTensors state_of(const Trainer::Run& run, const optim::Optimizer& optimizer) {
  NamedTensors state = optimizer.state_refs();
  if (optimizer.pieces().empty()) return state;
  const std::vector<ParamRef> parameters = optimizer.model_parameters();
  std::map<std::string_view, const Tensor*> by_name;
  for (const ParamRef& p : parameters) by_name.emplace(p.name, p.value);
  for (auto& [name, t] : state) {
    const auto of = by_name.find(std::string_view(name).substr(0, name.rfind('.')));
    if (of != by_name.end() && is_float(t.dtype())) t = run.strategy->whole(t, *of->second);
  }
  std::erase_if(state, [](const auto& named) { return !named.second.defined(); });
  return state;
}

// Writes a file that must not exist yet: of several writers one gets the name.
void write_new(const std::string& path, const Function<void(const std::string&)>& write) {
  const std::string temporary = detail::temporary_name(path);
  write(temporary);
  std::error_code error, ignored;
  fs::create_hard_link(temporary, path, error);
  const bool taken = fs::exists(path, ignored);
  if (error && !taken) fs::rename(temporary, path, error);  // a file system without hard links
  fs::remove(temporary, ignored);
  if (error) fail<FileError>("save_checkpoint: can not make ", path, ": ", error.message());
}

// The gradients of an open window, each the average over ranks: it enters the sum over ranks once for each of them.
// Those of pieces are averages already, and become whole on rank 0.
std::vector<Tensor> gradients_of_ranks(const Trainer::Run& run, const optim::Optimizer& optimizer,
                                       const std::vector<ParamRef>& parameters) {
  std::vector<Tensor> all;
  std::string has;
  for (const ParamRef& p : parameters) {
    all.push_back(p.value->grad());
    has += all.back().defined() ? '1' : '0';
  }
  const bool alone = run.strategy->ranks().size == 1;
  if (!run.files.together() && !alone) return all;
  if (!alone) {
    for (const std::string& theirs : run.strategy->gather(has)) {
      for (std::size_t i = 0; i < has.size(); ++i) has[i] = std::max(has[i], theirs.at(i));
    }
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (has[i] == '0') continue;
      const Tensor& p = *parameters[i].value;
      all[i] = all[i].defined() ? all[i].clone() : zeros(p.shape(), p.device(), p.dtype());
      run.strategy->all_reduce(all[i], dist::ReduceOp::average);
    }
  }
  const std::vector<ParamRef> model = optimizer.model_parameters(), pieces = optimizer.pieces();
  for (std::size_t k = 0; k < pieces.size(); ++k) {
    const Tensor gradient = pieces[k].value->grad();
    if (!gradient.defined()) continue;
    const Tensor whole = run.strategy->whole(gradient, *model[k].value);
    for (std::size_t i = 0; whole.defined() && i < all.size(); ++i) {
      if (parameters[i].value != model[k].value) continue;
      all[i] = all[i].defined() ? all[i].to(whole.device()) + whole : whole;
    }
  }
  return all;
}

// Adds the state of each part of the run under its prefix. Every rank calls it.
void append_state(NamedTensors& tensors, const Trainer::Run& run) {
  const std::vector<std::shared_ptr<optim::Optimizer>>& optimizers = run.optimizers.all;
  for (std::size_t i = 0; i < optimizers.size(); ++i)
    append(tensors, train::optimizer_prefix(i), state_of(run, *optimizers[i]));
  for (std::size_t i = 0; i < run.optimizers.schedulers.size(); ++i)
    append(tensors, train::scheduler_prefix(i), run.optimizers.schedulers[i].scheduler->state_dict());
  if (const optim::GradScaler* scale = run.precision.scaler())
    append(tensors, train::precision_prefix(), scale->state_dict());
  if (PrecisionPlugin* const plugin = run.precision.plugin())
    append(tensors, train::precision_plugin_prefix(), plugin->state_dict());
  const train::Window& window = run.window;
  const bool keeps_gradients = (run.borrowed.manual || window.is_open()) && !window.gradients_torn;
  for (std::size_t i = 0; keeps_gradients && i < optimizers.size(); ++i) {
    const std::vector<ParamRef> parameters = train::kept_gradients(run, i);
    const std::vector<Tensor> gradients = gradients_of_ranks(run, *optimizers[i], parameters);
    for (std::size_t k = 0; k < parameters.size(); ++k) {
      if (gradients[k].defined()) tensors.emplace_back(train::gradient_prefix(i) + parameters[k].name, gradients[k]);
    }
  }
  if (window.is_open() && window.weighs_exactly()) {
    // The weight is 0 if the window's batches gave no gradient, or their gradients are lost.
    const bool any = window.weight.defined() && !window.gradients_torn;
    Tensor weight = any ? window.weight : tensor({0.0}, Device::cpu());
    if (run.files.together() && run.strategy->ranks().size > 1) {  // as the gradients
      weight = weight.to(Device::cpu()).clone();
      run.strategy->all_reduce(weight, dist::ReduceOp::average);
    }
    tensors.emplace_back(train::window_weight_name(), weight);
  }
  if (run.files.together()) {
    append(tensors, train::metric_prefix(), train::merged_metric_states(run));
    train::append_rank_states(tensors, train::states_of_ranks(run));
  } else {
    append(tensors, train::metric_prefix(), train::metric_states(run.borrowed.tree));
  }
}

// What the open epoch has logged, of all ranks. Every rank calls it.
std::vector<train::MetricLog::Saved> logged(const Trainer::Run& run) {
  const train::Exchange ranks = run.files.together() ? run.logs.ranks() : train::Exchange();
  if (const std::optional<train::EpochCut>& cut = run.files.cut) return run.logs.ranks() ? cut->log_of_ranks : cut->log;
  return run.logs.train.save(ranks);
}

}  // namespace

bool Trainer::Files::together() const { return !apart_ && run_.hooks.now != &train::hooks::on_exception; }

std::string Trainer::Files::by_rank_zero(const Function<std::string()>& f) const {
  return together() ? train::by_rank_zero(*run_.strategy, f) : f();
}

void Trainer::Files::save(const std::string& path, WeightsOnly only, train::AtLink at_link) {
  if (run_.trial)
    return warn("W-CKPT-TRIAL", WarningCategory::user,
                "save_checkpoint: " + path + " is not written in a trial of a search, whose weights are taken back");
  std::size_t bytes = 0;  // of the weights
  for (const ParamRef& p : run_.optimizers.model_parameters())
    bytes += static_cast<std::size_t>(p.value->numel()) * itemsize(p.value->dtype());
  const train::Restore apart(apart_, !together());
  const auto& optimizers = run_.optimizers.all;
  const bool of_ranks =
      run_.strategy->ranks().size > 1 &&
      std::any_of(optimizers.begin(), optimizers.end(), [](const auto& o) { return !o->pieces().empty(); });
  if (apart_ && of_ranks)
    return warn("W-CKPT-SHARDED", WarningCategory::runtime,
                "save_checkpoint: " + path +
                    " is not written after an error: each rank holds a part of the state, and the ranks "
                    "can not wait for each other; resume from an earlier file",
                Repeat::yes);
  if (apart_ && !rescuing_ && run_.strategy->ranks().rank != 0) return;
  train::with_memory("save_checkpoint", path, bytes, [&] { write(path, only, at_link); });
  written.insert(path);
}

// Calls on_save_checkpoint of callbacks and module, which may change the weights and their own state.
train::SavedStates Trainer::Files::ask_all(const std::vector<std::shared_ptr<Callback>>& asked,
                                           CheckpointContent& content, WeightsOnly only) {
  const Borrowed& borrowed = run_.borrowed;
  train::SavedStates states;
  const auto ask = [&](Hooks& h, const std::string& key, CallbackState state) {
    content.state = std::move(state);
    h.on_save_checkpoint(content);
    if (!key.empty()) states.emplace_back(key, std::move(content.state));
  };
  for (const std::shared_ptr<Callback>& c : asked) {
    const std::string key = c->state_key();
    ask(*c, key, key.empty() || only == WeightsOnly::yes ? CallbackState{} : c->state());
  }
  if (borrowed.fit_module) ask(*borrowed.fit_module, train::kModuleKey, {});
  if (borrowed.data_module && only == WeightsOnly::no) {
    CallbackState state = borrowed.data_module->state();
    if (!state.values.empty() || !state.tensors.empty()) states.emplace_back(train::kDataKey, std::move(state));
  }
  return states;
}

void Trainer::Files::write(const std::string& path, WeightsOnly only, train::AtLink at_link) {
  const NoGrad off;
  const SyncGuard own = run_.instruments.own_waits();
  const PhaseScope phase(run_.instruments.times, Phase::saving);
  const ProfilerScope profiled(run_.instruments.profiler(), "save_checkpoint");
  (void)by_rank_zero([&] {
    for (const auto& logger : run_.logs.loggers) logger->save();  // the resumed run continues the records on disk
    make_folder(path);
    return std::string();
  });
  const train::Restore during(saving, true);
  const train::Scope whole([&] { run_.strategy->unshard(); }, [&] { run_.strategy->reshard(); });
  const Borrowed::DataScope with(run_.borrowed, run_.trainer, run_.borrowed.fit_data);
  // After a fit the callbacks and the module of that fit are asked, and attached until the file is written.
  const std::vector<std::shared_ptr<Callback>> asked = run_.hooks.of_last_fit(run_.in_fit);
  const HookCalls::Attached attached(asked, run_.trainer);
  const Borrowed::ModuleScope of_module(run_.borrowed.fit_module, &run_.trainer);
  const HookCalls::Inside in(run_.hooks, train::hooks::on_save_checkpoint);
  CheckpointContent content{.weights = train::weights_of(run_), .state = {}};
  const train::SavedStates states = ask_all(asked, content, only);
  NamedTensors& tensors = content.weights;
  for (const auto& [name, t] : tensors) {
    if (train::is_ours(name))
      fail<ConfigError>("save_checkpoint: the weight \"", name, "\" has the reserved prefix levin.; rename it");
  }
  std::string text;
  if (only == WeightsOnly::no) {
    warn_of_torn_batch(run_, path);
    append_state(tensors, run_);
    for (const auto& [key, state] : states) append(tensors, train::callback_prefix(key), state.tensors);
    text = train::state_text(run_, states, logged(run_));
  }
  (void)by_rank_zero([&] {
    TensorFile file{.tensors = std::move(tensors), .metadata = {}};
    std::vector<std::pair<std::string, std::string>> hashes = {{"levin.state", content_hash(text)}};
    for (auto& [name, tensor] : file.tensors) {
      tensor = detail::dense_on_host("save_checkpoint: " + path + ": tensor '" + name + "'", tensor);
      if (only == WeightsOnly::no) hashes.emplace_back(name, content_hash(name, tensor));
    }
    if (only == WeightsOnly::no) file.metadata = {{"levin.state", text}, {"levin.hashes", train::hashes_text(hashes)}};
    const auto to_path = [&](const std::string& to) {
      io().save(to, std::move(file));
      if (to != path) io().finish();  // the caller renames it
    };
    if (at_link == train::AtLink::replace)
      train::replace_link(path, to_path);
    else if (at_link == train::AtLink::nothing)
      write_new(path, to_path);
    else
      to_path(path);
    return std::string();
  });
}

CheckpointIO& Trainer::Files::io() const {
  static CheckpointIO plain;  // has no state
  return run_.options.plugins.checkpoint_io ? *run_.options.plugins.checkpoint_io : plain;
}
void Trainer::Files::finish() const {
  if (!run_.options.plugins.checkpoint_io) return;
  (void)by_rank_zero([&] {
    io().finish();
    return std::string();
  });
}
void Trainer::Files::finish_quietly() const {
  try {
    io().finish();
  } catch (const std::exception& e) {
    warn("W-CKPT-WRITE", WarningCategory::runtime, std::string("a checkpoint was not written: ") + e.what());
  }
}

std::string Trainer::Files::save_interrupted() {
  const std::string nothing = "nothing was saved because ";
  if (!run_.in_fit) return "an evaluation changes nothing that could be saved";
  if (!enabled()) return nothing + "checkpointing is off";
  if (run_.progress.total_batches == 0) return nothing + "nothing was trained";
  if (run_.progress.total_batches == resumed_at) return nothing + "nothing was trained since " + resumed_from;
  const std::string path = by_rank_zero([&] { return last_file(dir()); });
  try {
    save(path, WeightsOnly::no, train::AtLink::replace);
    finish();
    return "saved " + path + ", ckpt_path = \"last\" goes on from there";
  } catch (const std::exception& e) { return std::string("it could not be saved. ") + e.what(); }  // still an interrupt
}

// Note [Rescue checkpoints]
// Where a rank is lost, the others stand at the end of step s or s + 1: the optimizer changes parameters after the last
// reduction alone. So one survivor that has the whole state writes it (Strategy::rescues), without the others, to a
// name that no earlier file has: rescue-S.safetensors, and rescue-S-v1.safetensors where an earlier run has left the
// first. Where several survivors may write, because nothing is left that knows them all, the first one's file stands.
// The file is that of a save in the middle of a batch (warn_of_torn_batch). What it has of one rank alone: the sums of
// the open epoch's logged values and of metrics, and random numbers. Gradients of an open window are parts of a sum
// over ranks, so the file holds none.
std::string Trainer::Files::rescue() {
  constexpr double kSeconds = 20;  // for which launchers wait with SIGKILL
  if (!run_.in_fit || run_.trial || run_.searching || !enabled() || run_.progress.total_batches == 0) return {};
  if (run_.progress.total_batches == resumed_at) return "nothing was trained since " + resumed_from;
  if (run_.step_torn)
    return "nothing was saved, because the optimizer calls its closure several times and was within a step";
  const train::Restore apart(apart_, true), own(rescuing_, true);
  if (run_.window.is_open()) run_.window.gradients_torn = true;
  const train::Scope time([] { dist::hold_kill(kSeconds); }, [] { dist::hold_kill(0); });
  const std::string root = run_.options.default_root_dir.empty() ? "." : run_.options.default_root_dir;
  const std::string name = root + "/rescue-" + text(run_.progress.global_step);
  const auto saved = [](int rank, const std::string& path) {
    return (rank < 0 ? "another rank" : "rank " + text(rank)) + " saved " + path +
           ", ckpt_path = \"last\" resumes from there";
  };
  try {
    for (std::int64_t version = 0;; ++version) {
      const std::string path = name + (version > 0 ? "-v" + text(version) : "") + ".safetensors";
      std::error_code error;
      if (!fs::exists(path, error)) {
        try {
          save(path, WeightsOnly::no, train::AtLink::nothing);
          return saved(run_.strategy->ranks().rank, path);
        } catch (const FileError&) {
          if (!fs::exists(path, error)) throw;
        }
      }
      if (fs::last_write_time(path, error).time_since_epoch().count() >= began_ && !error) return saved(-1, path);
    }
  } catch (const std::exception& e) { return std::string("its state could not be saved. ") + e.what(); }
}

std::string Trainer::Files::save_and_requeue() {
  std::string done;
  const train::Progress& p = run_.progress;
  if (run_.in_fit && run_.options.fast_dev_run == 0 && p.total_batches > 0 && p.total_batches != resumed_at) {
    try {
      const std::string path = by_rank_zero([&] { return train::next_hpc_file(run_.options); });
      save(path, WeightsOnly::no);
      finish();
      done = "saved " + path + "; ";
    } catch (const std::exception& e) {
      return std::string("it could not be saved, so the job is not requeued. ") + e.what();
    }
  }
  try {
    // SLURM's SIGTERM would be the second signal, which ends a rank before the others know that it stops.
    train::SignalGuard::ignore_term();
    run_.strategy->barrier();
    const std::string told = by_rank_zero([]() -> std::string {
      try {
        dist::requeue_job();
        return "+job " + dist::slurm_job_name() + " is requeued";
      } catch (const std::exception& e) { return std::string("-the job could not be requeued. ") + e.what(); }
    });
    // The first rank that ends cuts the waits of the others, which know by then what rank 0 did.
    try {
      run_.strategy->barrier();
    } catch (const CommError&) {}
    if (told.front() == '-') train::SignalGuard::heed_term();
    return done + told.substr(1);
  } catch (const std::exception& e) {
    train::SignalGuard::heed_term();
    return done + "the job could not be requeued. " + e.what();
  }
}

bool Trainer::Files::enabled() const {
  return run_.options.enable_checkpointing.value_or(true) && run_.options.fast_dev_run == 0;
}

void Trainer::Files::cut_epoch() {
  if (run_.trial) return;
  const SyncGuard own = run_.instruments.own_waits();
  cut = {.log = run_.logs.train.save(), .stop_kept = run_.stop.kept};
  if (const train::Exchange ranks = run_.logs.ranks()) cut->log_of_ranks = run_.logs.train.save(ranks);
}

}  // namespace levin
