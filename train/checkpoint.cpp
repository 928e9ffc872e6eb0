// Note [Checkpoint files]
// One safetensors file: the weights under their own names, so that PyTorch reads it as a state dict; every other tensor
// below "levin."; counters as one JSON text in the metadata under "levin.state"; XXH3 hashes of every tensor and of
// that text under "levin.hashes". Reading checks everything, hashes and names and shapes, before anything of the run is
// changed.
#include "train/checkpoint.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "levin/autograd.h"
#include "levin/train/checkpoint.h"
#include "tensor/file.h"

namespace levin {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::int64_t kVersion = 3;
constexpr std::string_view kPrefix = "levin.";
constexpr int kMaxDepth = 32;  // of the JSON text; ours has 4

bool ours(std::string_view name) { return name.substr(0, kPrefix.size()) == kPrefix; }

void append(NamedTensors& to, std::string_view prefix, const NamedTensors& from) {
  for (const auto& [name, tensor] : from) to.emplace_back(std::string(prefix) + name, tensor);
}

Json parse(const std::string& path, const char* key, const std::string& content) {
  try {
    return Json::parse(content, [&](int depth, Json::parse_event_t, Json&) {
      if (depth > kMaxDepth) fail<FormatError>(path, ": \"", key, "\" is nested deeper than ", kMaxDepth);
      return true;
    });
  } catch (const Json::exception& e) { fail<FormatError>(path, ": \"", key, "\" is not JSON (", e.what(), ")"); }
}

const std::string* find_entry(const TensorFile& file, std::string_view key) {
  for (const auto& [k, v] : file.metadata) {
    if (k == key) return &v;
  }
  return nullptr;
}

// What of the file is not what its hash says, and what has none.
std::vector<CheckpointInfo::Damage> find_damage(const std::string& path, const TensorFile& file,
                                                const std::string& state, const std::string& hashes) {
  std::vector<CheckpointInfo::Damage> found;
  const Json expected = parse(path, "levin.hashes", hashes);
  const auto check = [&](const std::string& name, const std::string& actual) {
    const auto it = expected.is_object() ? expected.find(name) : expected.end();
    if (it == expected.end() || !it->is_string())
      found.push_back({name, "has no hash in the file"});
    else if (it->get<std::string>() != actual)
      found.push_back({name, "has hash " + actual + ", expected " + it->get<std::string>()});
  };
  check("levin.state", content_hash(state));
  for (const auto& [name, tensor] : file.tensors) check(name, content_hash(name, tensor));
  std::set<std::string_view> here = {"levin.state"};
  for (const auto& [name, tensor] : file.tensors) here.insert(name);
  for (const auto& [name, hash] : expected.items()) {
    if (!here.contains(name)) found.push_back({name, "has a hash and is not there"});
  }
  return found;
}

// The state's text, after every hash was found right.
Json checked_state(const std::string& path, const TensorFile& file) {
  const std::string* state = find_entry(file, "levin.state");
  const std::string* hashes = find_entry(file, "levin.hashes");
  if (!state || !hashes)
    fail<ConfigError>(
        "resume: ", path,
        " holds weights alone, no state of a run; load it with load_state_dict, or resume from a checkpoint");
  if (const auto damage = find_damage(path, file, *state, *hashes); !damage.empty())
    fail<FormatError>("resume: ", path, ": \"", damage[0].name, "\" ", damage[0].what,
                      "; the file is damaged, use an older checkpoint");
  Json s = parse(path, "levin.state", *state);
  if (!s.is_object() || !s.contains("version") || !s["version"].is_number_integer())
    fail<FormatError>("resume: ", path, ": \"levin.state\" has no version");
  if (s["version"].get<std::int64_t>() != kVersion)
    fail<FormatError>("resume: ", path, ": version ", s["version"].get<std::int64_t>(), ", this Levin reads ", kVersion,
                      "; use the Levin that wrote it");
  return s;
}

Json hparams_text(const Trainer::Run& run) {
  HParams hparams;
  if (const auto* held = dynamic_cast<const HasHParams*>(run.tree)) hparams = held->hparams();
  const std::size_t of_module = hparams.size();
  for (const auto& pair : run.data_module ? run.data_module->hparams() : HParams{}) {
    const auto end = hparams.begin() + static_cast<std::ptrdiff_t>(of_module);
    if (std::none_of(hparams.begin(), end, [&](const auto& h) { return h.first == pair.first; }))
      hparams.push_back(pair);
  }
  Json all = Json::array();  // of pairs: the order is kept
  for (const auto& [name, h] : hparams) {
    switch (h.kind()) {
      case HParam::Kind::flag: all.push_back({name, h.number() != 0}); break;
      case HParam::Kind::integer: all.push_back({name, h.integer()}); break;
      case HParam::Kind::real: all.push_back({name, h.number()}); break;
      case HParam::Kind::word: all.push_back({name, h.as_text()}); break;
    }
  }
  return all;
}
HParams hparams_from(const Json& all) {
  HParams out;
  for (const Json& pair : all) {
    const Json& value = pair.at(1);
    const auto name = pair.at(0).get<std::string>();
    if (value.is_boolean())
      out.emplace_back(name, value.get<bool>());
    else if (value.is_number_integer())
      out.emplace_back(name, value.get<std::int64_t>());
    else if (value.is_string())
      out.emplace_back(name, value.get<std::string>());
    else
      out.emplace_back(name, value.is_null() ? NAN : value.get<double>());  // JSON has no NaN
  }
  return out;
}

// Throws Json::exception for what is not there or of another type.
void take_state(train::Checkpoint& to, const Json& s) {
  const Json& loops = s.at("loops");
  loops.at("epochs_completed").get_to(to.epochs_completed);
  loops.at("batches_in_epoch").get_to(to.batches_in_epoch);
  loops.at("total_batches").get_to(to.total_batches);
  loops.at("records").get_to(to.records);
  to.skipped_batches = loops.value("skipped_batches", to.skipped_batches);
  to.batches_ahead = loops.value("batches_ahead", to.batches_ahead);
  to.train_loaded_at = loops.value("train_loaded_at", to.train_loaded_at);
  to.val_loaded_at = loops.value("val_loaded_at", to.val_loaded_at);
  s.at("global_step").get_to(to.global_step);
  loops.at("accumulate").get_to(to.accumulate);
  loops.at("validated_at").get_to(to.validated_at);
  to.batches_validated = loops.value("batches_validated", to.batches_validated);
  to.batches_per_epoch = loops.value("batches_per_epoch", to.batches_per_epoch);
  to.batch_size = loops.value("batch_size", to.batch_size);
  to.stop = loops.value("stop", to.stop);
  if (loops.contains("writers_to_come")) loops["writers_to_come"].get_to(to.writers_to_come);
  const auto due = loops.at("due").get<std::int64_t>();
  if (due < 0 || due > static_cast<std::int64_t>(Trainer::Run::Due::epoch_end))
    fail<FormatError>("resume: ", to.path, ": \"due\" is ", due, ", expected 0 to 4");
  to.due = static_cast<Trainer::Run::Due>(due);
  s.at("optimizers").get_to(to.optimizers);
  s.at("lr_schedulers").get_to(to.schedulers);
  const auto reduction = [&](std::int64_t which) {
    if (which < 0 || which > static_cast<std::int64_t>(EpochReduce::max))
      fail<FormatError>("resume: ", to.path, ": \"reduce\" is ", which, ", expected 0 to 3");
    return static_cast<EpochReduce>(which);
  };
  const auto number = [](const Json& x) { return x.is_null() ? NAN : x.get<double>(); };  // JSON has no NaN
  for (const Json& e : s.at("log"))
    to.log.push_back({.name = e.at("name").get<std::string>(),
                      .on_step = e.at("on_step").get<bool>(),
                      .on_epoch = e.at("on_epoch").get<bool>(),
                      .prog_bar = e.at("prog_bar").get<bool>(),
                      .logger = e.at("logger").get<bool>(),
                      .reduce = reduction(e.at("reduce").get<std::int64_t>()),
                      .sum = number(e.at("sum")),
                      .weight = e.at("weight").get<double>(),
                      .last = number(e.at("last")),
                      .fresh = e.at("fresh").get<bool>(),
                      .hook = e.value("hook", ""),
                      .metric = e.value("metric", "")});
  for (const Json& m : s.at("metrics")) to.epoch_metrics.emplace_back(m.at(0).get<std::string>(), number(m.at(1)));
  if (s.contains("hparams")) to.hparams = hparams_from(s["hparams"]);
  for (const auto& [key, values] : s.at("callbacks").items()) {
    Metadata& kept = to.callbacks[key];  // also without values: its state may be tensors alone
    for (const auto& [name, value] : values.items()) kept.emplace_back(name, value.get<std::string>());
  }
  for (const auto& [name, pair] : s.at("generators").items())
    to.generators[name] = {.seed = pair.at(0).get<std::uint64_t>(), .offset = pair.at(1).get<std::uint64_t>()};
}

// Objects become dotted names; what is in them is text as it is, or JSON.
void flatten(Metadata& to, const std::string& name, const Json& value) {
  if (!value.is_object() || value.empty()) {
    to.emplace_back(name, value.is_string() ? value.get<std::string>() : value.dump());
    return;
  }
  for (const auto& [key, below] : value.items()) flatten(to, name.empty() ? key : name + "." + key, below);
}

// Counters, sums and names: what is not a tensor.
Json state_text(const Trainer::Run& run, const Json& callback_state) {
  Json generators = Json::object();
  if (run.tree) {
    for (const auto& [name, generator] : run.tree->generators())
      generators[name] = {generator->state().seed, generator->state().offset};
  }
  Json sums = Json::array(), metrics = Json::array(), optimizers = Json::array();
  for (const auto& e : run.cut ? run.cut->log : run.train_log.save())
    sums.push_back({{"name", e.name},
                    {"on_step", e.on_step},
                    {"on_epoch", e.on_epoch},
                    {"prog_bar", e.prog_bar},
                    {"logger", e.logger},
                    {"reduce", static_cast<std::int64_t>(e.reduce)},
                    {"sum", e.sum},
                    {"weight", e.weight},
                    {"last", e.last},
                    {"fresh", e.fresh},
                    {"hook", e.hook},
                    {"metric", e.metric}});
  for (const auto& [name, value] : run.epoch_metrics) metrics.push_back({name, value});
  for (const auto& o : run.optimizers) optimizers.push_back(o->name());
  return {{"version", kVersion},
          {"epoch", run.epoch},
          {"global_step", run.global_step},
          {"loops",
           {{"epochs_completed", run.epoch},
            {"batches_in_epoch", run.batches_done},
            {"batches_ahead", run.position.ahead},
            {"batches_per_epoch", run.batches},
            {"batch_size", run.train_loader ? run.train_loader->batch_size().value_or(0) : 0},
            {"total_batches", run.total_batches},
            {"skipped_batches", run.skipped_batches},
            {"train_loaded_at", run.train_loaded_at},
            {"val_loaded_at", run.val_loaded_at},
            {"records", run.records},
            {"accumulate", run.window_is_open() ? run.options.accumulate_grad_batches : 1},
            {"validated_at", run.validated_at},
            {"batches_validated", run.eval_batches[0]},
            {"stop", run.cut ? run.cut->stop_kept : run.stop_kept},
            {"due", static_cast<std::int64_t>(run.due)},
            {"writers_to_come", run.writers_to_come()}}},
          {"optimizers", optimizers},
          {"lr_schedulers", run.schedulers.size()},
          {"callbacks", callback_state},
          {"hparams", hparams_text(run)},
          {"generators", generators},
          {"log", sums},
          {"metrics", metrics}};
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
    const std::string temporary = link + ".link";
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

Checkpoint read_checkpoint(const std::string& path, Needs needs) {
  TensorFile file = load_safetensors(path);
  Checkpoint checkpoint;
  checkpoint.path = path;
  if (needs == Needs::weights && !find_entry(file, "levin.state") && !find_entry(file, "levin.hashes") &&
      std::none_of(file.tensors.begin(), file.tensors.end(), [](const auto& t) { return ours(t.first); })) {
    checkpoint.weights = std::move(file.tensors);
    return checkpoint;
  }
  try {
    take_state(checkpoint, checked_state(path, file));
  } catch (const Json::exception& e) {
    fail<FormatError>("resume: ", path, ": \"levin.state\" lacks what it should hold (", e.what(), ")");
  }
  if (checkpoint.epochs_completed < 0 || checkpoint.batches_in_epoch < 0 || checkpoint.global_step < 0 ||
      checkpoint.total_batches < 0 || checkpoint.skipped_batches < 0 || checkpoint.records < 0)
    fail<FormatError>("resume: ", path, ": a counter is negative");
  const std::vector<std::int64_t>& ahead = checkpoint.batches_ahead;
  const std::int64_t in_order = checkpoint.batches_in_order();
  for (std::size_t i = 0; i < ahead.size(); ++i) {
    if (ahead[i] <= (i == 0 ? in_order : ahead[i - 1]) || in_order < 0)
      fail<FormatError>("resume: ", path, ": batch ", ahead[i], " was trained ahead of ", in_order,
                        " others, expected ascending numbers above that");
  }
  for (auto& named : file.tensors)
    (ours(named.first) ? checkpoint.rest : checkpoint.weights).push_back(std::move(named));
  return checkpoint;
}

}  // namespace train

CheckpointInfo read_checkpoint_info(const std::string& path) {
  TensorFile file = load_safetensors(path);
  CheckpointInfo info;
  const std::string* state = find_entry(file, "levin.state");
  const std::string* hashes = find_entry(file, "levin.hashes");
  info.weights_only = !state && !hashes && std::none_of(file.tensors.begin(), file.tensors.end(), [](const auto& t) {
    return ours(t.first);
  });
  if (state && hashes)
    info.damage = find_damage(path, file, *state, *hashes);
  else if (!info.weights_only)
    info.damage.push_back({state ? "levin.hashes" : "levin.state", "is not there"});
  if (state) {
    const Json parsed = parse(path, "levin.state", *state);
    flatten(info.state, "", parsed);
    const auto count = [&](const char* pointer) {
      const Json::json_pointer at(pointer);
      return parsed.contains(at) && parsed[at].is_number_integer() ? parsed[at].get<std::int64_t>() : 0;
    };
    info.epochs_completed = count("/loops/epochs_completed");
    info.global_step = count("/global_step");
  }
  for (auto& named : file.tensors) (ours(named.first) ? info.rest : info.weights).push_back(std::move(named));
  return info;
}

void Trainer::Run::save(const std::string& path, WeightsOnly only) {
  if (trial)
    return warn("W-CKPT-TRIAL", WarningCategory::user,
                "save_checkpoint: " + path + " is not written in a trial of a search, whose weights are taken back");
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
  const InHook in(*this, "on_save_checkpoint");
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
  if (keeps_gradients && gradients_torn) {
    warn("W-CKPT-WINDOW", WarningCategory::user,
         "save_checkpoint: " + path +
             " is written in the middle of a batch, whose gradients lie among those of its "
             "window; the file holds none, and a run that goes on from it begins the window's sum anew with this batch",
         Repeat::yes);
  }
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
  Json callback_state = Json::object();
  for (const auto& [key, state] : states) {
    callback_state[key] = Json::object();
    for (const auto& [name, value] : state.values) callback_state[key][name] = value;
    append(tensors, train::callback_prefix(key), state.tensors);
  }
  const std::string text = state_text(*this, callback_state).dump(-1, ' ', false, Json::error_handler_t::replace);
  Json hashes = {{"levin.state", content_hash(text)}};
  for (auto& [name, tensor] : tensors) {
    tensor = detail::dense_on_host("save_checkpoint: " + path + ": tensor '" + name + "'", tensor);  // once for both
    hashes[name] = content_hash(name, tensor);
  }
  save_safetensors(path, tensors, {{"levin.state", text}, {"levin.hashes", hashes.dump()}});
}

}  // namespace levin
