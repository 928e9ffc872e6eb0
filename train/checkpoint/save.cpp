// Note [Checkpoint files]
// One safetensors file: the weights under their own names, so that PyTorch reads it as a state dict; every other tensor
// below "levin."; counters as one JSON text in the metadata under "levin.state"; XXH3 hashes of every tensor and of
// that text under "levin.hashes". Reading checks everything, hashes and names and shapes, before anything of the run is
// changed.
#include "train/checkpoint/content.h"

#include <algorithm>
#include <filesystem>
#include <new>
#include <system_error>

#include "levin/autograd.h"
#include "levin/train/checkpoint.h"
#include "tensor/file.h"
#include "train/checkpoint/text.h"

namespace levin {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "levin.";

bool ours(std::string_view name) { return name.substr(0, kPrefix.size()) == kPrefix; }

void append(NamedTensors& to, std::string_view prefix, const NamedTensors& from) {
  for (const auto& [name, tensor] : from) to.emplace_back(std::string(prefix) + name, tensor);
}

const std::string* find_entry(const TensorFile& file, std::string_view key) {
  for (const auto& [k, v] : file.metadata) {
    if (k == key) return &v;
  }
  return nullptr;
}

// The state's text, after every hash was found right.
const std::string& checked_state(const std::string& path, const TensorFile& file) {
  const std::string* state = find_entry(file, "levin.state");
  const std::string* hashes = find_entry(file, "levin.hashes");
  if (!state || !hashes)
    fail<ConfigError>(
        "resume: ", path,
        " holds weights alone, no state of a run; load it with load_state_dict, or resume from a checkpoint");
  if (const auto damage = train::find_damage(path, file, *state, *hashes); !damage.empty())
    fail<FormatError>("resume: ", path, ": \"", damage[0].name, "\" ", damage[0].what,
                      "; the file is damaged, use an older checkpoint");
  return *state;
}

// What runs out of memory in `f` is told as such, with what it was about.
template <class F>
auto with_memory(const char* call, const std::string& path, std::size_t bytes, F&& f) {
  try {
    return f();
  } catch (const std::bad_alloc&) {
    fail<OutOfMemoryError>(call, ": ", path, ": the system has no more memory on cpu for the file's ", bytes, " bytes");
  }
}
std::size_t bytes_of_file(const std::string& path) {
  std::error_code error;
  const auto bytes = fs::file_size(path, error);
  return error ? 0 : static_cast<std::size_t>(bytes);
}

}  // namespace

namespace train {

std::string optimizer_prefix(std::size_t i) { return "levin.optimizer." + std::to_string(i) + "."; }
std::string gradient_prefix(std::size_t i) { return "levin.gradient." + std::to_string(i) + "."; }
std::string window_weight_name() { return "levin.window_weight"; }
std::string scheduler_prefix(std::size_t i) { return "levin.lr_scheduler." + std::to_string(i) + "."; }
std::string metric_prefix() { return "levin.metric."; }
std::string precision_prefix() { return "levin.precision."; }
std::string callback_prefix(std::string_view key) { return "levin.callback." + std::string(key) + "."; }

NamedTensors below(const NamedTensors& all, std::string_view prefix) {
  NamedTensors out;
  for (const auto& [name, tensor] : all) {
    if (std::string_view(name).substr(0, prefix.size()) == prefix) out.emplace_back(name.substr(prefix.size()), tensor);
  }
  return out;
}

NamedTensors weights_of(const Trainer::Run& run) {
  if (run.tree) return run.tree->state_dict();
  NamedTensors out;
  for (const ParamRef& p : run.model_parameters()) out.emplace_back(p.name, p.value->detach());
  return out;
}

bool link_to(const std::string& file, const std::string& link, Link kind) noexcept {
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
    fs::remove(temporary, ignored);  // there still where both are one file already
    return !error;
  } catch (...) { return false; }  // no memory for the names
}

void replace_link(const std::string& path, const Function<void(const std::string&)>& write) {
  std::error_code error;
  if (!fs::is_symlink(path, error)) return write(path);
  const std::string beside = path + ".new";  // no name that ckpt_path = "last" looks at
  detail::remove_stale_temporaries(fs::path(path).parent_path().string(), ".new");
  write(beside);
  fs::rename(beside, path, error);
  if (error) fail<FileError>("save_checkpoint: can not rename ", beside, " to ", path, ": ", error.message());
}

std::vector<ParamRef> kept_gradients(const Trainer::Run& run, std::size_t i) {
  std::vector<ParamRef> own = run.optimizers[i]->model_parameters();
  for (std::size_t earlier = 0; earlier < i; ++earlier) {
    for (const ParamRef& p : run.optimizers[earlier]->model_parameters())
      std::erase_if(own, [&](const ParamRef& mine) { return mine.value == p.value; });
  }
  return own;
}

namespace {
Checkpoint read_all(const std::string& path, Needs needs) {
  TensorFile file = load_safetensors(path);
  Checkpoint checkpoint;
  checkpoint.path = path;
  if (needs == Needs::weights && !find_entry(file, "levin.state") && !find_entry(file, "levin.hashes") &&
      std::none_of(file.tensors.begin(), file.tensors.end(), [](const auto& t) { return ours(t.first); })) {
    checkpoint.weights = std::move(file.tensors);
    return checkpoint;
  }
  read_state(checkpoint, checked_state(path, file));
  Progress& progress = checkpoint.progress;
  Progress::each_counter(progress, [&](const char* name, std::int64_t counter, std::int64_t least, bool) {
    if (counter < least)
      fail<FormatError>("resume: ", path, ": \"", name, "\" is ", counter, ", expected ", least, " or more");
  });
  if (progress.global_step < 0)
    fail<FormatError>("resume: ", path, ": \"global_step\" is ", progress.global_step, ", expected 0 or more");
  const std::vector<std::int64_t>& ahead = progress.position.ahead;
  const std::int64_t in_order = progress.batches_done - static_cast<std::int64_t>(ahead.size());
  for (std::size_t i = 0; i < ahead.size(); ++i) {
    if (ahead[i] <= (i == 0 ? in_order : ahead[i - 1]) || in_order < 0)
      fail<FormatError>("resume: ", path, ": batch ", ahead[i], " was trained ahead of ", in_order,
                        " others, expected ascending numbers above that");
  }
  progress.position.epoch = progress.epoch;
  progress.position.batch = in_order;
  for (auto& named : file.tensors)
    (ours(named.first) ? checkpoint.rest : checkpoint.weights).push_back(std::move(named));
  return checkpoint;
}
}  // namespace

Checkpoint read_checkpoint(const std::string& path, Needs needs) {
  return with_memory("resume", path, bytes_of_file(path), [&] { return read_all(path, needs); });
}

bool is_whole_checkpoint(const std::string& path) noexcept {
  try {
    const CheckpointInfo info = read_checkpoint_info(path);
    return !info.weights_only && info.damage.empty();
  } catch (...) { return false; }
}

}  // namespace train

namespace {
CheckpointInfo describe(const std::string& path) {
  TensorFile file = load_safetensors(path);
  CheckpointInfo info;
  const std::string* state = find_entry(file, "levin.state");
  const std::string* hashes = find_entry(file, "levin.hashes");
  info.weights_only = !state && !hashes && std::none_of(file.tensors.begin(), file.tensors.end(), [](const auto& t) {
    return ours(t.first);
  });
  if (state && hashes)
    info.damage = train::find_damage(path, file, *state, *hashes);
  else if (!info.weights_only)
    info.damage.push_back({state ? "levin.hashes" : "levin.state", "is not there"});
  if (state) train::describe_state(info, path, *state);
  for (auto& named : file.tensors) (ours(named.first) ? info.rest : info.weights).push_back(std::move(named));
  return info;
}
}  // namespace

namespace {

// What is written in the middle of a batch is no state between two steps.
void tell_of_torn_batch(Trainer::Run& run, const std::string& path, bool keeps_gradients) {
  const bool window = keeps_gradients && run.gradients_torn;
  const bool seen = run.batch_torn && run.tree && !(run.tree->buffers().empty() && run.tree->generators().empty());
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

}  // namespace

CheckpointInfo read_checkpoint_info(const std::string& path) {
  return with_memory("read_checkpoint_info", path, bytes_of_file(path), [&] { return describe(path); });
}

void Trainer::Run::save(const std::string& path, WeightsOnly only) {
  if (trial)
    return warn("W-CKPT-TRIAL", WarningCategory::user,
                "save_checkpoint: " + path + " is not written in a trial of a search, whose weights are taken back");
  std::size_t bytes = 0;  // of the weights
  for (const ParamRef& p : model_parameters())
    bytes += static_cast<std::size_t>(p.value->numel()) * itemsize(p.value->dtype());
  with_memory("save_checkpoint", path, bytes, [&] { write_checkpoint(path, only); });
  written.insert(path);
}

void Trainer::Run::write_checkpoint(const std::string& path, WeightsOnly only) {
  const NoGrad off;
  const SyncGuard own = own_waits();
  const PhaseScope phase(times, Phase::saving);
  const ProfilerScope profiled(options.profiler.get(), "save_checkpoint");
  for (const auto& logger : loggers) logger->save();  // the file's run goes on behind the records that are on disk
  std::error_code error;
  if (const fs::path parent = fs::path(path).parent_path(); !parent.empty()) {
    fs::create_directories(parent, error);
    if (error) fail<FileError>("save_checkpoint: can not make ", parent.string(), ": ", error.message());
  }
  const std::string folder = fs::path(path).parent_path().string();
  detail::remove_stale_temporaries(folder.empty() ? "." : folder, ".safetensors");

  const DataScope with(*this, fit_data);
  // Behind a fit those of that fit are asked, as in it: they are attached as long as this lasts.
  const std::vector<std::shared_ptr<Callback>>& asked = in_fit ? callbacks : fit_callbacks;
  std::vector<Trainer*> before;
  const auto attach = [&] {
    for (const auto& c : asked) before.push_back(std::exchange(c->trainer_, &trainer));
  };
  const auto detach = [&] {
    for (std::size_t i = 0; i < asked.size(); ++i) asked[i]->trainer_ = before[i];
  };
  const train::Scope attached(attach, detach);
  Trainer* nobody = nullptr;
  const train::Restore of_module(fit_module ? fit_module->trainer_ : nobody, &trainer);

  // Those who keep something may also change what the file's weights are.
  CheckpointContent content{.weights = train::weights_of(*this), .state = {}};
  std::vector<std::pair<std::string, CallbackState>> states;
  const InHook in(*this, train::hooks::on_save_checkpoint);
  const auto ask = [&](Hooks& h, const std::string& key, CallbackState state) {
    content.state = std::move(state);
    h.on_save_checkpoint(content);
    if (!key.empty()) states.emplace_back(key, std::move(content.state));
  };
  for (const auto& c : asked) {
    const std::string key = c->state_key();
    ask(*c, key, key.empty() || only == WeightsOnly::yes ? CallbackState{} : c->state());
  }
  if (fit_module) ask(*fit_module, train::kModuleKey, {});
  if (data_module && only == WeightsOnly::no) {
    CallbackState state = data_module->state();
    if (!state.values.empty() || !state.tensors.empty()) states.emplace_back(train::kDataKey, std::move(state));
  }
  NamedTensors& tensors = content.weights;
  for (const auto& [name, t] : tensors) {
    if (ours(name))
      fail<ConfigError>("save_checkpoint: the weight \"", name, "\" has the reserved prefix levin.; rename it");
  }
  if (only == WeightsOnly::yes) return save_safetensors(path, tensors);

  for (std::size_t i = 0; i < optimizers.size(); ++i)
    append(tensors, train::optimizer_prefix(i), optimizers[i]->state_refs());
  for (std::size_t i = 0; i < schedulers.size(); ++i)
    append(tensors, train::scheduler_prefix(i), schedulers[i].scheduler->state_dict());
  if (const optim::GradScaler* scale = precision.scaler())
    append(tensors, train::precision_prefix(), scale->state_dict());
  const bool keeps_gradients = manual || window_is_open();
  tell_of_torn_batch(*this, path, keeps_gradients);
  for (std::size_t i = 0; keeps_gradients && !gradients_torn && i < optimizers.size(); ++i) {
    for (const ParamRef& p : train::kept_gradients(*this, i)) {
      if (p.value->grad().defined()) tensors.emplace_back(train::gradient_prefix(i) + p.name, p.value->grad());
    }
  }
  if (window_is_open() &&
      weighs_exactly()) {  // no weight: the window's batches gave nothing, or what they gave is lost
    const bool any = window_weight.defined() && !gradients_torn;
    tensors.emplace_back(train::window_weight_name(), any ? window_weight : tensor({0.0}, Device::cpu()));
  }
  append(tensors, train::metric_prefix(), train::metric_states(tree));
  for (const auto& [key, state] : states) append(tensors, train::callback_prefix(key), state.tensors);
  const std::string text = train::state_text(*this, states);
  std::vector<std::pair<std::string, std::string>> hashes = {{"levin.state", content_hash(text)}};
  for (auto& [name, tensor] : tensors) {
    tensor = detail::dense_on_host("save_checkpoint: " + path + ": tensor '" + name + "'", tensor);  // once for both
    hashes.emplace_back(name, content_hash(name, tensor));
  }
  save_safetensors(path, tensors, {{"levin.state", text}, {"levin.hashes", train::hashes_text(hashes)}});
}

}  // namespace levin
