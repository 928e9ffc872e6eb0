// Brings the content of a checkpoint into a run: asks module and callbacks, and loads the weights.
#include <algorithm>
#include <map>

#include "levin/autograd.h"
#include "levin/ops.h"
#include "train/checkpoint/content.h"
#include "train/checkpoint/folder.h"
#include "train/run/run.h"

namespace levin {

using train::below;
using train::Checkpoint;
using train::Same;

std::int64_t train::check_same(const std::string& path, const char* what, const NamedTensors& file,
                               const NamedTensors& here, const Same& how) {
  std::map<std::string_view, const Tensor*> found;
  for (const auto& [name, t] : file) found.emplace(name, &t);
  std::string missing, shapes, unexpected;
  std::int64_t converted = 0;
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
    const bool alike = how.any_float && is_float(f.dtype()) && is_float(t.dtype());
    if (f.shape() != t.shape() || (f.dtype() != t.dtype() && !alike))
      list(shapes, name + " (" + text(f.dtype()) + " " + text(f.shape()) + " in the file, " + text(t.dtype()) + " " +
                       text(t.shape()) + " here)");
    else if (f.dtype() != t.dtype())
      ++converted;
    found.erase(it);
  }
  for (const auto& [name, t] : found) list(unexpected, name);
  std::string message;
  if (!missing.empty()) message += "; missing in the file: " + missing;
  if (!unexpected.empty()) message += "; only in the file: " + unexpected;
  if (!how.strict && shapes.empty()) {
    if (!message.empty())
      warn("I-CKPT-NAMES", WarningCategory::info,
           std::string(how.call) + ": the " + what + " of " + path + " are those of this run in part" + message,
           Repeat::yes);
    return converted;
  }
  if (!shapes.empty()) message += "; different: " + shapes;
  if (message.empty()) return converted;
  fail<ConfigError>(how.call, ": the ", what, " of ", path, " are not those of this run", message);
}

std::string train::key_in(const Checkpoint& file, const Trainer::Run& run, const Callback& callback) {
  const std::string own = callback.state_key();
  if (own.empty() || file.callbacks.contains(own)) return own;
  for (const auto& [key, values] : file.callbacks) {
    const bool anothers = std::any_of(run.hooks.callbacks.begin(), run.hooks.callbacks.end(),
                                      [&](const auto& c) { return c->state_key() == key; });
    if (!anothers && callback.takes_state_of(key)) return key;
  }
  return {};
}

CallbackState train::state_in(const Checkpoint& file, const std::string& key) {
  const auto it = file.callbacks.find(key);
  if (key.empty() || it == file.callbacks.end()) return {};
  return {.values = it->second, .tensors = below(file.rest, callback_prefix(key))};
}

namespace {

// `here` shares the memory of the parameters. A parameter that the file lacks keeps its value.
void copy_weights(NamedTensors here, const NamedTensors& weights) {
  std::map<std::string_view, const Tensor*> by_name;
  for (const auto& [name, t] : weights) by_name.emplace(name, &t);
  for (auto& [name, t] : here) {
    if (const auto it = by_name.find(name); it != by_name.end()) copy_(t, *it->second);
  }
}

void tell_of_conversion(const char* call, const std::string& path, std::int64_t converted) {
  if (converted == 0) return;
  warn("I-CKPT-CONVERTED", WarningCategory::info,
       std::string(call) + ": " + text(converted) + " weights of " + path +
           " have another float precision than those of this run, and are converted",
       Repeat::yes);
}

bool is_half(const Tensor& t) { return is_float(t.dtype()) && itemsize(t.dtype()) == 2; }

// Takes weights that are 16-bit in the file and wider in the module from the optimizer's f32 masters, if the file has
// them.
void take_masters(NamedTensors& weights, const NamedTensors& here, const Checkpoint& file) {
  std::map<std::string, const std::pair<std::string, Tensor>*> masters;
  for (std::size_t i = 0; i < file.optimizers.size(); ++i) {
    const std::string prefix = train::optimizer_prefix(i);
    for (const auto& named : file.rest) {
      const std::string& name = named.first;
      if (name.starts_with(prefix) && name.ends_with(train::kMaster))
        masters.emplace(name.substr(prefix.size(), name.size() - prefix.size() - train::kMaster.size()), &named);
    }
  }
  for (const auto& [name, t] : here) {
    const auto master = masters.find(name);
    if (master == masters.end() || is_half(t)) continue;
    for (auto& [known, weight] : weights) {
      if (known != name || !is_half(weight) || weight.shape() != master->second->second.shape()) continue;
      weight = file.read(master->second->first, master->second->second);
    }
  }
}

}  // namespace

void train::Incoming::ask(Hooks& hooks, const std::string& own, const std::string& key) {
  const bool known = !key.empty() && file_.callbacks.contains(key);
  CheckpointContent content{.weights = std::move(weights_), .state = state_in(file_, key)};
  hooks.on_load_checkpoint(content);
  weights_ = std::move(content.weights);
  if (known) states_[own] = std::move(content.state);
}

void train::Incoming::ask_module() { ask(*run_.borrowed.active, kModuleKey, kModuleKey); }

void train::Incoming::take_weights() {
  if (std::exchange(taken_, true)) return;
  for (const auto& c : run_.hooks.callbacks) ask(*c, c->state_key(), key_in(file_, run_, *c));
  const NoGrad off;
  NamedTensors here = weights_of(run_);
  const std::int64_t converted = check_same(file_.path, "weights", weights_, here,
                                            {.any_float = true, .strict = run_.borrowed.active->strict_loading()});
  take_masters(weights_, here, file_);
  NamedTensors before;
  for (const auto& [name, t] : here) before.emplace_back(name, t.clone());
  before_ = std::move(before);
  tell_of_conversion("resume", file_.path, converted);
  copy_weights(std::move(here), weights_);
}

train::Incoming::~Incoming() {
  if (before_.empty()) return;
  try {
    const NoGrad off;
    copy_weights(weights_of(run_), before_);
  } catch (const std::exception& e) {
    try {
      warn("W-CKPT-UNDO", WarningCategory::runtime,
           std::string("resume: the file does not fit, and the weights of before could not be put back: ") + e.what());
    } catch (...) {}  // no memory for the text; the first error is being thrown
  } catch (...) {}
}

// ---- For an evaluation

void Trainer::Files::load_weights(const train::FoundCheckpoint& found, TrainModule& module) {
  const NoGrad off;
  const std::string& path = found.path;
  const Checkpoint file = read(found, train::Needs::weights);
  CheckpointContent content{.weights = file.weights, .state = train::state_in(file, train::kModuleKey)};
  module.on_load_checkpoint(content);
  NamedTensors here = module.tree()->state_dict();
  const Same how{.call = run_.call_name, .any_float = true, .strict = module.strict_loading()};
  tell_of_conversion(run_.call_name, path, train::check_same(path, "weights", content.weights, here, how));
  take_masters(content.weights, here, file);
  copy_weights(std::move(here), content.weights);
  warn("I-CKPT-LOADED", WarningCategory::info, std::string(run_.call_name) + ": the weights are those of " + path,
       Repeat::yes);
}

}  // namespace levin
