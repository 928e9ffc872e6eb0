// Note [Checkpoint files]
// One safetensors file: the weights under their own names, so that PyTorch reads it as a state dict; every other tensor
// below "levin."; counters as one JSON text in the metadata under "levin.state"; XXH3 hashes of every tensor and of that
// text under "levin.hashes". Reading checks everything, hashes and names and shapes, before anything of the run is changed.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <system_error>

#include "levin/autograd.h"
#include "levin/ops.h"
#include "tensor/file.h"
#include "train/run.h"

namespace levin {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::int64_t kVersion = 1;
constexpr std::string_view kPrefix = "levin.";
constexpr int kMaxDepth = 32;  // of the JSON text; ours has 4

bool ours(std::string_view name) { return name.substr(0, kPrefix.size()) == kPrefix; }

std::string optimizer_prefix() { return "levin.optimizer.0."; }
std::string scheduler_prefix(std::size_t i) { return "levin.lr_scheduler." + std::to_string(i) + "."; }
std::string callback_prefix(std::string_view key) { return "levin.callback." + std::string(key) + "."; }

// The tensors below a prefix, without it.
NamedTensors below(const NamedTensors& all, std::string_view prefix) {
  NamedTensors out;
  for (const auto& [name, tensor] : all) {
    if (std::string_view(name).substr(0, prefix.size()) == prefix) out.emplace_back(name.substr(prefix.size()), tensor);
  }
  return out;
}

void append(NamedTensors& to, std::string_view prefix, const NamedTensors& from) {
  for (const auto& [name, tensor] : from) to.emplace_back(std::string(prefix) + name, tensor);
}

// The weights of a run: the tree's state, or the optimizer's parameters when they are bare tensors.
NamedTensors weights_of(const Trainer::Run& run) {
  if (run.tree) return run.tree->state_dict();
  NamedTensors out;
  for (const ParamRef& p : run.optimizer->parameters()) out.emplace_back(p.name, p.value->detach());
  return out;
}

// Throws unless both hold the same names with the same shapes and dtypes, and lists what differs.
void check_same(const std::string& path, const char* what, const NamedTensors& file, const NamedTensors& here) {
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
  fail<ConfigError>("resume: the ", what, " of ", path, " are not those of this run", message);
}

// What a file says, checked as far as it can be without knowing the run.
struct Loaded {
  NamedTensors tensors;
  Json state;
};

Json parse(const std::string& path, const char* key, const std::string& content) {
  try {
    return Json::parse(content, [&](int depth, Json::parse_event_t, Json&) {
      if (depth > kMaxDepth) fail<FormatError>("resume: ", path, ": \"", key, "\" is nested deeper than ", kMaxDepth);
      return true;
    });
  } catch (const Json::exception& e) {
    fail<FormatError>("resume: ", path, ": \"", key, "\" is not JSON (", e.what(), ")");
  }
}

Loaded read(const std::string& path) {
  TensorFile file = load_safetensors(path);
  const auto entry = [&](std::string_view key) -> const std::string* {
    for (const auto& [k, v] : file.metadata) {
      if (k == key) return &v;
    }
    return nullptr;
  };
  const std::string* state = entry("levin.state");
  const std::string* hashes = entry("levin.hashes");
  if (!state || !hashes)
    fail<ConfigError>(
        "resume: ", path,
        " holds weights alone, no state of a run; load it with load_state_dict, or resume from a checkpoint");
  const Json expected = parse(path, "levin.hashes", *hashes);
  const auto check = [&](std::string_view name, const std::string& actual) {
    const auto it = expected.is_object() ? expected.find(std::string(name)) : expected.end();
    if (it == expected.end() || !it->is_string())
      fail<FormatError>("resume: ", path, ": no hash of \"", name, "\"; the file is damaged");
    if (it->get<std::string>() != actual)
      fail<FormatError>("resume: ", path, ": \"", name, "\" has hash ", actual, ", expected ", it->get<std::string>(),
                        "; the file is damaged, use an older checkpoint");
  };
  check("levin.state", content_hash(*state));
  for (const auto& [name, tensor] : file.tensors) check(name, content_hash(name, tensor));
  if (expected.size() != file.tensors.size() + 1)
    fail<FormatError>("resume: ", path, ": has ", file.tensors.size(), " tensors and hashes of ", expected.size() - 1,
                      "; the file is damaged");
  Loaded loaded{.tensors = std::move(file.tensors), .state = parse(path, "levin.state", *state)};
  const Json& s = loaded.state;
  if (!s.is_object() || !s.contains("version") || !s["version"].is_number_integer())
    fail<FormatError>("resume: ", path, ": \"levin.state\" has no version");
  if (s["version"].get<std::int64_t>() != kVersion)
    fail<FormatError>("resume: ", path, ": version ", s["version"].get<std::int64_t>(), ", this Levin reads ", kVersion,
                      "; use the Levin that wrote it");
  return loaded;
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

}  // namespace

std::string Trainer::Run::checkpoint_dir() const {
  for (const auto& c : callbacks) {
    if (const auto* checkpoint = dynamic_cast<const ModelCheckpoint*>(c.get())) return checkpoint->directory();
  }
  return (options.default_root_dir.empty() ? std::string(".") : options.default_root_dir) + "/checkpoints";
}

std::string Trainer::Run::find_checkpoint(const std::string& ckpt_path) const {
  if (ckpt_path.empty()) return {};
  if (ckpt_path != "last") return ckpt_path;
  // The newest whole one. Names say nothing about age: a directory may hold several runs.
  const std::string dir = checkpoint_dir();
  std::vector<std::pair<fs::file_time_type, std::string>> files;
  std::error_code error;
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() != ".safetensors") continue;
    const auto time = fs::last_write_time(it->path(), error);
    if (!error) files.emplace_back(time, it->path().string());
  }
  std::sort(files.rbegin(), files.rend());
  for (const auto& [time, path] : files) {
    try {
      (void)read(path);
      return path;
    } catch (const Error& e) {
      warn("W-CKPT-SKIPPED", WarningCategory::runtime, std::string("fit: skipped a checkpoint. ") + e.what());
    }
  }
  warn("W-CKPT-LAST", WarningCategory::user,
       "fit: ckpt_path = \"last\" and no checkpoint in " + dir + "; starting fresh");
  return {};
}

void Trainer::Run::save(const std::string& path, WeightsOnly only) {
  const NoGrad off;
  NamedTensors tensors;
  for (const auto& [name, t] : weights_of(*this)) {
    if (ours(name))
      fail<ConfigError>("save_checkpoint: the weight \"", name, "\" has the reserved prefix levin.; rename it");
    tensors.emplace_back(name, t);
  }
  std::error_code error;
  if (const fs::path parent = fs::path(path).parent_path(); !parent.empty()) {
    fs::create_directories(parent, error);
    if (error) fail<FileError>("save_checkpoint: can not make ", parent.string(), ": ", error.message());
  }
  const std::string folder = fs::path(path).parent_path().string();
  detail::remove_stale_temporaries(folder.empty() ? "." : folder, ".safetensors");
  if (only == WeightsOnly::yes) return save_safetensors(path, tensors);

  append(tensors, optimizer_prefix(), optimizer->state_dict());
  for (std::size_t i = 0; i < schedulers.size(); ++i)
    append(tensors, scheduler_prefix(i), schedulers[i].scheduler->state_dict());
  Json callback_state = Json::object();
  for (const auto& c : callbacks) {
    const std::string key = c->state_key();
    if (key.empty()) continue;
    const CallbackState state = c->state();
    callback_state[key] = Json::object();
    for (const auto& [name, value] : state.values) callback_state[key][name] = value;
    append(tensors, callback_prefix(key), state.tensors);
  }
  Json generators = Json::object();
  if (tree) {
    for (const auto& [name, generator] : tree->generators())
      generators[name] = {generator->state().seed, generator->state().offset};
  }
  // At an epoch's end the next batch is the first of the next epoch, and the sums of this one are done with.
  Json sums = Json::array();
  if (!epoch_finished) {
    for (const auto& e : train_log.save())
      sums.push_back({{"name", e.name},
                      {"on_step", e.on_step},
                      {"on_epoch", e.on_epoch},
                      {"prog_bar", e.prog_bar},
                      {"sum", e.sum},
                      {"weight", e.weight},
                      {"last", e.last}});
  }
  const Json state = {{"version", kVersion},
                      {"epoch", epoch},
                      {"global_step", global_step},
                      {"loops",
                       {{"epochs_completed", epoch + (epoch_finished ? 1 : 0)},
                        {"batches_in_epoch", epoch_finished ? 0 : batches_done},
                        {"batches_ahead", epoch_finished ? std::vector<std::int64_t>{} : position.ahead},
                        {"batches_per_epoch", batches},
                        {"total_batches", total_batches}}},
                      {"optimizers", {optimizer->name()}},
                      {"lr_schedulers", schedulers.size()},
                      {"callbacks", callback_state},
                      {"generators", generators},
                      {"log", sums}};
  const std::string text = state.dump(-1, ' ', false, Json::error_handler_t::replace);
  Json hashes = {{"levin.state", content_hash(text)}};
  for (const auto& [name, tensor] : tensors) hashes[name] = content_hash(name, tensor);
  save_safetensors(path, tensors, {{"levin.state", text}, {"levin.hashes", hashes.dump()}});
}

void Trainer::Run::resume(const std::string& path) {
  const NoGrad off;
  const Loaded file = read(path);
  NamedTensors weights;
  for (const auto& [name, t] : file.tensors) {
    if (!ours(name)) weights.emplace_back(name, t);
  }

  // ---- Read and check everything first
  std::int64_t epochs_completed, batches_in_epoch, steps, total;
  std::vector<std::int64_t> ahead;
  std::vector<train::MetricLog::Saved> sums;
  std::vector<std::pair<Generator*, RandomRange>> generators;
  std::map<std::string, Metadata> callback_values;
  std::string optimizer_name;
  std::size_t scheduler_count = 0;
  try {
    const Json& s = file.state;
    epochs_completed = s.at("loops").at("epochs_completed").get<std::int64_t>();
    batches_in_epoch = s.at("loops").at("batches_in_epoch").get<std::int64_t>();
    total = s.at("loops").at("total_batches").get<std::int64_t>();
    ahead = s.at("loops").value("batches_ahead", ahead);
    steps = s.at("global_step").get<std::int64_t>();
    optimizer_name = s.at("optimizers").at(0).get<std::string>();
    scheduler_count = s.at("lr_schedulers").get<std::size_t>();
    for (const Json& e : s.at("log"))
      sums.push_back({.name = e.at("name").get<std::string>(),
                      .on_step = e.at("on_step").get<bool>(),
                      .on_epoch = e.at("on_epoch").get<bool>(),
                      .prog_bar = e.at("prog_bar").get<bool>(),
                      // a NaN has no JSON number and is written as null
                      .sum = e.at("sum").is_null() ? NAN : e.at("sum").get<double>(),
                      .weight = e.at("weight").get<double>(),
                      .last = e.at("last").is_null() ? NAN : e.at("last").get<double>()});
    for (const auto& [key, values] : s.at("callbacks").items()) {
      for (const auto& [name, value] : values.items())
        callback_values[key].emplace_back(name, value.get<std::string>());
    }
    const Json& states = s.at("generators");
    std::size_t used = 0;
    if (tree) {
      for (const auto& [name, generator] : tree->generators()) {
        if (!states.contains(name))
          fail<ConfigError>("resume: ", path, " has no state of the generator \"", name, "\" of this module");
        const Json& pair = states.at(name);
        generators.emplace_back(generator,
                                RandomRange{pair.at(0).get<std::uint64_t>(), pair.at(1).get<std::uint64_t>()});
        ++used;
      }
    }
    if (used != states.size())
      fail<ConfigError>("resume: ", path, " holds the state of ", states.size(), " generators, this module has ", used);
  } catch (const Json::exception& e) {
    fail<FormatError>("resume: ", path, ": \"levin.state\" lacks what it should hold (", e.what(), ")");
  }
  if (epochs_completed < 0 || batches_in_epoch < 0 || steps < 0 || total < 0)
    fail<FormatError>("resume: ", path, ": a counter is negative");
  const std::int64_t behind = batches_in_epoch - static_cast<std::int64_t>(ahead.size());
  for (std::size_t i = 0; i < ahead.size(); ++i) {
    if (ahead[i] <= (i == 0 ? behind : ahead[i - 1]) || behind < 0)
      fail<FormatError>("resume: ", path, ": batch ", ahead[i], " was trained ahead of ", behind,
                        " others, expected ascending numbers above that");
  }
  if (!ahead.empty() && ahead.back() >= train_loader->size())
    fail<ConfigError>("resume: ", path, " was written after batch ", ahead.back(), " of an epoch, which now has ",
                      train_loader->size(), " batches; use the same data and batch size");
  if (max_epochs() >= 0 && epochs_completed > max_epochs())
    fail<ConfigError>("resume: ", path, " was written after ", epochs_completed, " epochs, max_epochs is ",
                      max_epochs(), "; raise it");
  if (batches_in_epoch > batches)
    fail<ConfigError>("resume: ", path, " stands at batch ", batches_in_epoch, " of an epoch, which now has ", batches,
                      "; use the same data and batch size");
  if (optimizer_name != optimizer->name())
    fail<ConfigError>("resume: ", path, " holds the state of the optimizer ", optimizer_name, ", this run has ",
                      optimizer->name());
  if (scheduler_count != schedulers.size())
    fail<ConfigError>("resume: ", path, " holds the state of ", scheduler_count, " schedulers, this run has ",
                      schedulers.size());
  const NamedTensors here = weights_of(*this);
  check_same(path, "weights", weights, here);
  for (std::size_t i = 0; i < schedulers.size(); ++i)
    check_same(path, "values of a scheduler", below(file.tensors, scheduler_prefix(i)),
               schedulers[i].scheduler->state_dict());

  std::string left;
  for (const auto& [key, values] : callback_values) {
    const bool known =
        std::any_of(callbacks.begin(), callbacks.end(), [&](const auto& c) { return c->state_key() == key; });
    if (!known) left += (left.empty() ? "" : ", ") + key;
  }
  if (!left.empty())
    warn("W-CKPT-CALLBACKS", WarningCategory::user,
         "resume: " + path + " holds the state of callbacks that this trainer lacks: " + left);

  // ---- Change the run: first the parts that look at their state themselves and may refuse it, the optimizer last, which
  // changes nothing when it throws; then those that can not fail.
  Undo undo;
  for (const auto& c : callbacks) {
    const std::string key = c->state_key();
    const auto it = callback_values.find(key);
    if (key.empty() || it == callback_values.end()) continue;
    CallbackState before = c->state();
    for (auto& [name, t] : before.tensors) t = t.clone();  // the callback may write into its own
    undo.add("callback " + key, [c, before = std::move(before)] { c->load_state(before); });
    c->load_state({.values = it->second, .tensors = below(file.tensors, callback_prefix(key))});
  }
  for (std::size_t i = 0; i < schedulers.size(); ++i) {
    const std::shared_ptr<optim::Scheduler> scheduler = schedulers[i].scheduler;
    undo.add("scheduler " + std::to_string(i),
             [scheduler, before = scheduler->state_dict()] { scheduler->load_state_dict(before); });
    scheduler->load_state_dict(below(file.tensors, scheduler_prefix(i)));
  }
  optimizer->load_state_dict(below(file.tensors, optimizer_prefix()));
  undo.drop();
  std::map<std::string_view, const Tensor*> by_name;
  for (const auto& [name, t] : weights) by_name.emplace(name, &t);
  for (const auto& [name, t] : here) {
    Tensor target = t;  // shares the parameter's memory
    copy_(target, *by_name.at(name));
  }
  for (const auto& [generator, state] : generators) generator->set_state(state);
  epoch = epochs_completed;
  batches_done = batches_in_epoch;
  position = {.epoch = epoch, .batch = behind, .ahead = std::move(ahead)};
  global_step = steps;
  total_batches = total;
  train_log.load(sums);
  resumed_from = path;
}

}  // namespace levin
