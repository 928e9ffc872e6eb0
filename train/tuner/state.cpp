#include "train/tuner/state.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <map>
#include <random>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "levin/autograd.h"
#include "levin/ops.h"
#include "train/checkpoint/content.h"
#include "train/run/run.h"
#include "train/tuner/search.h"

namespace levin::train {
namespace {

namespace fs = std::filesystem;

// Everything but tensors that a trial counts, moves or sets.
auto counters_of(Trainer::Run& r) {
  return std::tie(r.progress, r.loaders.batches, r.loaders.val_every, r.evaluation.last_validation, r.stop.requested,
                  r.stop.kept, r.stop.wait_reported, r.optimizers.skipped_seen, r.logs.scope, r.logs.weight,
                  r.window.weight, r.logs.batches_evaluated[0], r.logs.batches_evaluated[1],
                  r.logs.batches_evaluated[2], r.logs.epoch, r.loaders.train, r.loaders.val, r.options);
}
template <class... T>
std::tuple<T...> values_of(const std::tuple<T&...>& variables) {
  return variables;
}

std::string uuid() {
  std::random_device random;
  std::array<char, 40> buffer{};
  const auto word = [&] { return static_cast<unsigned>(random()); };
  const unsigned b = word(), c = word();
  std::snprintf(buffer.data(), buffer.size(), "%08x-%04x-4%03x-%04x-%04x%08x", word(), b >> 16, b & 0xfff,
                0x8000 | (c >> 16 & 0x3fff), c & 0xffff, word());
  return buffer.data();
}

// The names of weights in the file begin with this; the rest has the names of checkpoints.
std::string weight_prefix() { return "weight."; }
std::string buffer_prefix() { return "levin.buffer."; }

NamedTensors weights(const Trainer::Run& run, const nn::Module* tree) {
  return tree ? tree->state_dict() : weights_of(run);
}
std::vector<ParamRef> parameters(const Trainer::Run& run, nn::Module* tree) {
  return tree ? tree->parameters() : run.optimizers.model_parameters();
}

}  // namespace

struct SavedRun::Before {
  explicit Before(Trainer::Run& run) : counters(values_of(counters_of(run))) {}
  decltype(values_of(counters_of(std::declval<Trainer::Run&>()))) counters;
  std::vector<std::shared_ptr<Callback>> callbacks{};
  std::vector<SchedulerConfig> schedulers{};
  std::optional<StepCapture> capture{};
  MetricLog train_log{}, eval_log{};
  std::vector<LogRecord> history{};
  std::vector<std::pair<Generator*, RandomRange>> generators{};
  std::vector<std::pair<data::DataLoader*, data::LoaderState>> loaders{};
  void exchange(Trainer::Run& run) {  // moves no element, so loops over the callbacks continue
    callbacks.swap(run.hooks.callbacks);
    schedulers.swap(run.optimizers.schedulers);
    std::swap(capture, run.capture);
    std::swap(train_log, run.logs.train);
    std::swap(eval_log, run.logs.eval);
    history.swap(run.logs.history);
  }
};

SavedRun::SavedRun(Trainer::Run& run, nn::Module* tree, const char* prefix) : run_(run), tree_(tree) {
  if (run.trial) fail<StateError>("Tuner: called in a trial of another search; let one of them end first");
  const NoGrad off;
  NamedTensors kept;
  const auto keep = [&](const std::string& below, const NamedTensors& tensors) {
    for (const auto& [name, t] : tensors) kept.emplace_back(below + name, t);
  };
  const Scope whole([&] { run.strategy->unshard(); }, [&] { run.strategy->reshard(); });
  keep(weight_prefix(), weights(run, tree));
  if (tree) {
    for (const nn::BufferRef& b : tree->buffers()) {
      if (b.persistent == nn::Persistent::no) keep(buffer_prefix(), {{b.name, *b.value}});
    }
  }
  for (const ParamRef& p : parameters(run, tree)) {
    if (p.value->grad().defined()) keep(gradient_prefix(0), {{p.name, p.value->grad()}});
  }
  if (run.in_fit) {
    for (std::size_t i = 0; i < run.optimizers.all.size(); ++i)
      keep(optimizer_prefix(i), run.optimizers.all[i]->state_dict());
    if (const optim::GradScaler* scaler = run.precision.scaler()) keep(precision_prefix(), scaler->state_dict());
    if (PrecisionPlugin* const plugin = run.precision.plugin()) keep(precision_plugin_prefix(), plugin->state_dict());
  }
  before_ = std::make_unique<Before>(run);
  if (tree) {
    for (const auto& [name, generator] : tree->generators())
      before_->generators.emplace_back(generator, generator->state());
  }
  if (run.loaders.train) before_->loaders.emplace_back(run.loaders.train, run.loaders.train->state());
  for (data::DataLoader* v : run.loaders.val) before_->loaders.emplace_back(v, v->state());

  const fs::path root = run.options.default_root_dir.empty() ? "." : run.options.default_root_dir;
  std::error_code error;
  fs::create_directories(root, error);
  if (error) fail<FileError>("Tuner: can not make ", root.string(), ": ", error.message());
  path_ = (root / (prefix + uuid() + ".safetensors")).string();
  save_safetensors(path_, kept);
  before_->exchange(run);
  run.options.profiler.reset();  // a trial inside a hook would start that hook's action twice
  run.optimizers.forget_scaling();
  run.trial = true;
}

SavedRun::~SavedRun() {
  Trainer::Run& r = run_;
  r.trial = false;
  r.optimizers.forget_scaling();  // of steps of the trials
  for (const auto& [generator, state] : before_->generators) generator->set_state(state);
  for (const auto& [loader, state] : before_->loaders) loader->load_state(state);
  before_->exchange(r);
  counters_of(r) = before_->counters;
  if (r.capture) r.capture->gradients_were_cleared();  // they are not those of its record
  std::error_code ignored;
  fs::remove(path_, ignored);
}

void SavedRun::restore() {
  if (std::exchange(restored_, true)) return;
  const NoGrad off;
  const MemoryLimit on_host(Device::cpu(), std::nullopt);  // reading the file is no part of the training
  const MemoryLimit on_device(run_.device_of(tree_), std::nullopt);
  const Scope whole([&] { run_.strategy->unshard(); }, [&] { run_.strategy->reshard(); });
  const NamedTensors file = load_safetensors(path_).tensors;
  std::map<std::string_view, const Tensor*> by_name;
  for (const auto& [name, t] : file) by_name.emplace(name, &t);
  const auto find = [&](const std::string& name) {
    const auto it = by_name.find(name);
    return it == by_name.end() ? nullptr : it->second;
  };
  for (auto& [name, t] : weights(run_, tree_)) copy_(t, *find(weight_prefix() + name));
  if (tree_) {
    for (const nn::BufferRef& b : tree_->buffers()) {
      if (const Tensor* t = find(buffer_prefix() + b.name)) copy_(*b.value, *t);
    }
  }
  for (const ParamRef& p : parameters(run_, tree_)) {
    const Tensor* t = find(gradient_prefix(0) + p.name);
    if (t || p.value->grad().defined()) p.value->set_grad(t ? t->to(p.value->device()) : Tensor());
  }
  if (!run_.in_fit) return;
  for (std::size_t i = 0; i < run_.optimizers.all.size(); ++i)
    run_.optimizers.all[i]->load_state_dict(below(file, optimizer_prefix(i)));
  if (optim::GradScaler* scaler = run_.precision.scaler()) scaler->load_state_dict(below(file, precision_prefix()));
  if (const NamedTensors state = below(file, precision_plugin_prefix()); !state.empty())
    run_.precision.plugin()->load_state_dict(state);
}

void SavedRun::restore_quietly() noexcept {
  try {
    restore();
  } catch (const std::exception& e) {
    try {
      warn("W-TUNE-RESTORE", WarningCategory::runtime,
           std::string("Tuner: what the search changed could not be put back: ") + e.what());
    } catch (...) {}  // no memory for the text; the first error is on its way
  } catch (...) {}
}

void SavedRun::train(std::int64_t steps, std::shared_ptr<Callback> watch) {
  Trainer::Run& r = run_;
  r.hooks.callbacks.clear();
  if (watch) r.hooks.callbacks.push_back(std::move(watch));
  r.hooks.attach(&r.trainer);
  r.progress.batches_done = 0;
  r.progress.position = {.epoch = r.progress.epoch};
  r.progress.due = train::Due::nothing;
  r.progress.closing = false;
  r.stop.requested = false;
  r.stop.wait_reported = true;
  r.logs.scope = LogScope::none;
  TrainerOptions& o = r.options;
  o.max_steps = r.progress.global_step + steps;
  o.max_epochs = r.progress.epoch + steps;  // a trial without a step ends too
  o.min_epochs = o.min_steps = std::nullopt;
  o.log_every_n_steps = 0;
  if (!r.loaders.val.empty()) {
    o.limit_val_batches =
        Portion(std::min(steps, limited(*r.loaders.val.front(), o.limit_val_batches, "limit_val_batches")));
  }
  r.train_epochs();
}

void SavedRun::evaluate(Loop loop, data::DataLoader& loader, std::vector<Tensors>* predictions) {
  run_.hooks.callbacks.clear();
  (void)run_.evaluation.run(loop, *run_.borrowed.active, {&loader}, predictions);
}

void check_free(const Trainer::Run& run, const char* call) {
  if (run.borrowed.active) fail<StateError>(call, ": the trainer is running; search between runs, or by a callback");
  run.check_idle(call);
}

bool skipped_by_dev_run(const Trainer::Run& run, const char* call) {
  if (run.options.fast_dev_run == 0) return false;
  warn("W-TUNE-DEV-RUN", WarningCategory::user, std::string(call) + ": skipped because of fast_dev_run", Repeat::yes);
  return true;
}

Fields::Fields(TrainModule& module, DataModule* data_module) {
  if (data_module) holders_.push_back(data_module);
  holders_.push_back(&module);
}
Fields fields_of(const Trainer::Run& run) { return Fields(*run.borrowed.active, run.borrowed.data_module); }

bool Fields::has(std::string_view name) const {
  return std::any_of(holders_.begin(), holders_.end(), [&](const HasHParams* h) { return h->has_field(name); });
}
double Fields::get(std::string_view name) const {
  const auto it =
      std::find_if(holders_.begin(), holders_.end(), [&](const HasHParams* h) { return h->has_field(name); });
  return (it == holders_.end() ? holders_.back() : *it)->field(name);
}
void Fields::set(std::string_view name, double value) const {
  for (HasHParams* h : holders_) {
    if (h->has_field(name)) h->set_field(name, value);
  }
}
std::string Fields::names() const {
  std::string all = holders_.back()->fields();
  return holders_.size() == 1 ? all : all + "; of the data module: " + holders_.front()->fields();
}
void Fields::warn_of_both(const std::string& name) const {
  for (const HasHParams* holder : holders_) {
    const HParams& h = holder->hparams();
    const bool both = holder->has_member(name) &&
                      std::any_of(h.begin(), h.end(), [&](const auto& pair) { return pair.first == name; });
    if (both)
      warn("W-TUNE-BOTH", WarningCategory::user,
           "Tuner: \"" + name + "\" is a member and an hparam of one module; both are set, the hparam is what is read");
  }
}

std::size_t choose(const char* op, const char* option, std::string_view chosen,
                   std::initializer_list<const char*> allowed) {
  const auto same = [&](std::string_view word) {
    return std::equal(word.begin(), word.end(), chosen.begin(), chosen.end(), [](char a, char b) {
      return a == static_cast<char>(std::tolower(static_cast<unsigned char>(b)));
    });
  };
  std::string all;
  for (std::size_t i = 0; i < allowed.size(); ++i) {
    const char* word = allowed.begin()[i];
    if (same(word)) return i;
    all += (i ? ", " : "") + std::string(word);
  }
  fail<ConfigError>(op, ": ", option, " is \"", chosen, "\", expected one of: ", all);
}

}  // namespace levin::train
