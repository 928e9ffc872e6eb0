// Writes checkpoints: what each part of a run adds to the file, in the order of the file.
#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "autograd/row_gradient.h"
#include "levin/autograd.h"
#include "levin/comm/launch.h"
#include "levin/ops.h"
#include "tensor/files/file.h"
#include "tensor/files/folder.h"
#include "train/checkpoint/content.h"
#include "train/checkpoint/folder.h"
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
    std::error_code error, ignored;
    if (kind == Link::hard && fs::is_directory(file, error)) {  // a folder of hard links
      detail::NewFolder folder(link);
      for (fs::directory_iterator it(file, error), end; !error && it != end; it.increment(error)) {
        if (!detail::is_of_folder(it->path().filename().string())) continue;
        std::error_code refused;  // increment() clears `error`
        fs::create_hard_link(it->path(), fs::path(folder.temporary()) / it->path().filename(), refused);
        if (refused) return false;
      }
      if (error) return false;
      folder.commit();
      return true;
    }
    const std::string temporary = detail::temporary_name(link);
    fs::remove(temporary, error);
    if (kind == Link::hard)
      fs::create_hard_link(file, temporary, error);
    else
      fs::create_symlink(fs::path(file).filename(), temporary, error);
    if (error) return false;
    fs::rename(temporary, link, error);
    fs::remove(temporary, ignored);  // rename() leaves it if both names are links to one file
    return !error;
  } catch (...) { return false; }  // no memory for the names, or the disk
}

void train::remove_checkpoint(CheckpointIO& io, const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error) && !fs::is_symlink(path, error)) return detail::remove_folder(path);
  io.remove(path);
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

// The tensors of a checkpoint, in the order of the file.
class Parts {
 public:
  Parts(const Trainer::Run& run, bool folder) : run_(run), folder_(folder) {}

  void add(std::string name, Tensor value) { all_.push_back({.name = std::move(name), .value = std::move(value)}); }
  void add(std::string_view prefix, const NamedTensors& from) {
    for (const auto& [name, tensor] : from) add(std::string(prefix) + name, tensor);
  }
  // `piece` is this rank's part of a tensor like parameter `of`. In a file it becomes whole, so every rank calls it.
  void add_piece(std::string name, const Tensor& piece, const Tensor& of) {
    if (!folder_) {
      if (Tensor whole = run_.strategy->whole(piece, of); whole.defined()) add(std::move(name), std::move(whole));
      return;
    }
    all_.push_back({.name = std::move(name),
                    .value = piece.detach(),
                    .piece = true,
                    .shape = of.shape(),
                    .begin = run_.strategy->piece_range(of).first});
  }
  // What this rank alone has.
  void add_own(std::string name, Tensor value) {
    all_.push_back({.name = std::move(name), .value = std::move(value), .own = true});
  }
  [[nodiscard]] bool folder() const { return folder_; }
  [[nodiscard]] const std::vector<train::PartOfCheckpoint>& all() const { return all_; }
  [[nodiscard]] NamedTensors tensors() const {
    NamedTensors out;
    for (const train::PartOfCheckpoint& p : all_) out.emplace_back(p.name, p.value);
    return out;
  }

 private:
  const Trainer::Run& run_;
  bool folder_;
  std::vector<train::PartOfCheckpoint> all_;
};

// The elements of this rank's piece of a whole tensor like parameter `of`, which share its memory.
Tensor piece_of(const Trainer::Run& run, const Tensor& whole, const Tensor& of) {
  const auto [begin, end] = run.strategy->piece_range(of);
  return slice(reshape(whole.detach(), {whole.numel()}), 0, begin, end);
}

// A weight that a hook has replaced is a tensor of its own, which rank 0 has whole.
void append_weights(Parts& parts, const Trainer::Run& run, const NamedTensors& weights) {
  std::map<const void*, std::pair<Tensor, Tensor>> sharded;  // parameter and piece, by the parameter's storage
  for (const auto& o : run.optimizers.all) {
    const std::vector<ParamRef> model = o->model_parameters(), pieces = o->pieces();
    for (std::size_t k = 0; parts.folder() && k < pieces.size(); ++k)
      sharded.emplace(model[k].value->get().storage.get(), std::pair(*model[k].value, *pieces[k].value));
  }
  for (const auto& [name, t] : weights) {
    const auto at = t.defined() ? sharded.find(t.get().storage.get()) : sharded.end();
    if (at == sharded.end() || t.shape() != at->second.first.shape() || t.dtype() != at->second.first.dtype())
      parts.add(name, t);
    else if (const auto& [parameter, piece] = at->second; t.device().is_meta() || piece.dtype() != t.dtype())
      parts.add_piece(name, piece, parameter);
    else
      parts.add_piece(name, piece_of(run, parameter, parameter), parameter);
  }
}

void make_folder(const std::string& path) {
  std::error_code error;
  const bool folder = train::names_folder(path);
  if (!folder && fs::is_directory(path, error))
    fail<FileError>("save_checkpoint: ", path,
                    " is a folder, expected a file; a sharded checkpoint is a folder, whose ", "name ends in ",
                    train::kFolderEnding);
  if (const fs::path parent = fs::path(path).parent_path(); !parent.empty()) {
    fs::create_directories(parent, error);
    if (error) fail<FileError>("save_checkpoint: can not make ", parent.string(), ": ", error.message());
  }
  const std::string parent = fs::path(path).parent_path().string();
  const std::string in = parent.empty() ? "." : parent;
  detail::remove_stale_temporaries(in, train::kFileEnding);
  detail::remove_stale_temporaries(in, train::kFolderEnding, detail::Stale::folders);
}

// The state of an optimizer. With pieces each tensor of elements belongs to a parameter.
void append_optimizer(Parts& parts, const optim::Optimizer& optimizer, const std::string& prefix) {
  std::map<std::string_view, const Tensor*> by_name;
  const std::vector<ParamRef> parameters = optimizer.model_parameters();
  if (!optimizer.pieces().empty()) {
    for (const ParamRef& p : parameters) by_name.emplace(p.name, p.value);
  }
  for (const auto& [name, t] : optimizer.state_refs()) {
    const auto of = by_name.find(std::string_view(name).substr(0, name.rfind('.')));
    if (of != by_name.end() && is_float(t.dtype()))
      parts.add_piece(prefix + name, t, *of->second);
    else
      parts.add(prefix + name, t);
  }
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
// Those of pieces are averages already.
void append_gradients(Parts& parts, const Trainer::Run& run, std::size_t optimizer) {
  const std::vector<ParamRef> parameters = train::kept_gradients(run, optimizer);
  const std::string prefix = train::gradient_prefix(optimizer);
  std::string has;
  for (const ParamRef& p : parameters) has += has_grad(*p.value) ? '1' : '0';
  const bool alone = !run.files.together() || run.strategy->ranks().size == 1;
  if (!alone) {
    for (const std::string& theirs : run.strategy->gather(has)) {
      for (std::size_t i = 0; i < has.size(); ++i) has[i] = std::max(has[i], theirs.at(i));
    }
  }
  const std::vector<ParamRef> model = run.optimizers.all[optimizer]->model_parameters(),
                              pieces = run.optimizers.all[optimizer]->pieces();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Tensor& p = *parameters[i].value;
    const std::string name = prefix + parameters[i].name;
    Tensor average = detail::gradient_as_dense(p);
    if (has[i] == '1' && !alone) {
      if (!average.defined())
        average = zeros(p.shape(), p.device(), p.dtype());
      else  // a copy, in the one format that ranks reduce
        average = average.is_contiguous() ? average.clone() : average.contiguous();
      run.strategy->all_reduce(average, dist::ReduceOp::average);
    }
    Tensor mine;  // of this rank's piece
    for (std::size_t k = 0; k < pieces.size(); ++k) {
      if (model[k].value == parameters[i].value) mine = pieces[k].value->grad();
    }
    if (!mine.defined()) {
      if (average.defined()) parts.add(name, average);
      continue;
    }
    if (average.defined()) mine = mine + piece_of(run, average, p).to(mine.device());
    parts.add_piece(name, mine, p);
  }
}

// Adds the state of each part of the run under its prefix. Every rank calls it.
void append_state(Parts& parts, const Trainer::Run& run) {
  const std::vector<std::shared_ptr<optim::Optimizer>>& optimizers = run.optimizers.all;
  for (std::size_t i = 0; i < optimizers.size(); ++i)
    append_optimizer(parts, *optimizers[i], train::optimizer_prefix(i));
  for (std::size_t i = 0; i < run.optimizers.schedulers.size(); ++i)
    parts.add(train::scheduler_prefix(i), run.optimizers.schedulers[i].scheduler->state_dict());
  if (const optim::GradScaler* scale = run.precision.scaler())
    parts.add(train::precision_prefix(), scale->state_dict());
  if (PrecisionPlugin* const plugin = run.precision.plugin())
    parts.add(train::precision_plugin_prefix(), plugin->state_dict());
  const train::Window& window = run.window;
  const bool keeps_gradients = (run.borrowed.manual || window.is_open()) && !window.gradients_torn;
  for (std::size_t i = 0; keeps_gradients && i < optimizers.size(); ++i) append_gradients(parts, run, i);
  if (window.is_open() && window.weighs_exactly()) {
    // The weight is 0 if the window's batches gave no gradient, or their gradients are lost.
    const bool any = window.weight.defined() && !window.gradients_torn;
    Tensor weight = any ? window.weight : tensor({0.0}, Device::cpu());
    if (run.files.together() && run.strategy->ranks().size > 1) {  // as the gradients
      weight = weight.to(Device::cpu()).clone();
      run.strategy->all_reduce(weight, dist::ReduceOp::average);
    }
    parts.add(train::window_weight_name(), weight);
  }
  if (!run.files.together()) return parts.add(train::metric_prefix(), train::metric_states(run.borrowed.tree));
  parts.add(train::metric_prefix(), train::merged_metric_states(run));
  NamedTensors ranks;
  train::append_rank_states(ranks, train::states_of_ranks(run));
  parts.add("", ranks);
  const std::string own = train::strategy_prefix(run.strategy->ranks().rank);
  if (parts.folder()) {
    for (const auto& [name, t] : run.strategy->state()) parts.add_own(own + name, t);
  } else {
    parts.add("", train::strategy_states(run));
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
  const bool parted = run_.strategy->ranks().size > 1 &&
                      (train::names_folder(path) || std::any_of(optimizers.begin(), optimizers.end(),
                                                                [](const auto& o) { return !o->pieces().empty(); }));
  if (apart_ && parted)
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
  const bool folder = train::names_folder(path);
  if (folder && run_.options.plugins.checkpoint_io)
    fail<ConfigError>("save_checkpoint: ", path, " is a folder, and plugins.checkpoint_io writes files; give a name ",
                      "that ends in ", train::kFileEnding, ", or leave the plug-in out");
  const bool gathers = !folder || !run_.strategy->shards_checkpoints();
  const train::Scope whole(
      [&] {
        if (gathers) run_.strategy->unshard();
      },
      [&] {
        if (gathers) run_.strategy->reshard();
      });
  const Borrowed::DataScope with(run_.borrowed, run_.trainer, run_.borrowed.fit_data);
  // After a fit the callbacks and the module of that fit are asked, and attached until the file is written.
  const std::vector<std::shared_ptr<Callback>> asked = run_.hooks.of_last_fit(run_.in_fit);
  const HookCalls::Attached attached(asked, run_.trainer);
  const Borrowed::ModuleScope of_module(run_.borrowed.fit_module, &run_.trainer);
  const HookCalls::Inside in(run_.hooks, train::hooks::on_save_checkpoint);
  CheckpointContent content{.weights = train::weights_of(run_), .state = {}};
  train::SavedStates states;
  // The ranks agree after the code of the user: one that failed there would leave the others waiting.
  const auto ask = [&] {
    states = ask_all(asked, content, only);
    for (const auto& [name, t] : content.weights) {
      if (train::is_ours(name))
        fail<ConfigError>("save_checkpoint: the weight \"", name, "\" has the reserved prefix levin.; rename it");
    }
  };
  if (together())
    train::by_all_ranks(*run_.strategy, ask);
  else
    ask();
  Parts parts(run_, folder);
  append_weights(parts, run_, content.weights);
  content.weights.clear();
  std::string text;
  if (only == WeightsOnly::no) {
    warn_of_torn_batch(run_, path);
    append_state(parts, run_);
    for (const auto& [key, state] : states) parts.add(train::callback_prefix(key), state.tensors);
    text = train::state_text(run_, states, logged(run_));
  }
  if (folder) {
    std::error_code error;
    const bool follows = at_link == train::AtLink::follow && fs::is_symlink(path, error);
    if (at_link == train::AtLink::nothing && fs::exists(path, error))
      fail<FileError>("save_checkpoint: can not make ", path, ": it exists");
    return train::write_folder(*run_.strategy, follows ? fs::weakly_canonical(path).string() : path, parts.all(), text);
  }
  (void)by_rank_zero([&] {
    TensorFile file{.tensors = parts.tensors(), .metadata = {}};
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
    try {
      io().finish();
    } catch (const std::bad_alloc&) {
      fail<OutOfMemoryError>("save_checkpoint: the system has no more memory on cpu for a file that was being written");
    }
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
      const std::string path = by_rank_zero([&] { return train::next_hpc_file(run_.options, ending()); });
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

std::string Trainer::Files::ending() const {
  return std::string(run_.strategy->shards_checkpoints() ? train::kFolderEnding : train::kFileEnding);
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
