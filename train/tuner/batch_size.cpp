#include <algorithm>
#include <array>
#include <cmath>
#include <new>

#include "levin/autograd.h"
#include "levin/memory.h"
#include "levin/train/process_strategy.h"
#include "train/callbacks/monitored.h"
#include "train/checkpoint/content.h"
#include "train/run/run.h"
#include "train/tuner/plan.h"
#include "train/tuner/search.h"
#include "train/tuner/state.h"

namespace levin {
namespace {

using train::choose;
using Loop = train::Loop;
constexpr const char* kCall = "scale_batch_size";

struct Chosen {
  bool binary;
  std::optional<Loop> loop;  // none: fit
};

Chosen check(const BatchSizeOptions& o) {
  const std::size_t method = choose(kCall, "method", o.method, {"fit", "validate", "test", "predict"});
  const bool binary = choose(kCall, "mode", o.mode, {"power", "binsearch"}) == 1;
  if (!o.loaders.empty())
    fail<ConfigError>(kCall, ": ", o.loaders.all().size(),
                      " loaders were given, but a size reaches only those that the module makes itself; override its "
                      "train_loader (val_loader, ...) and let it read the field ",
                      o.batch_arg_name);
  if (!(o.margin >= 0 && o.margin < 1))
    fail<ConfigError>(kCall, ": margin is ", o.margin,
                      ", expected a number in [0, 1): the share of the size to keep free");
  const std::pair<const char*, std::int64_t> counts[] = {{"steps_per_trial", o.steps_per_trial},
                                                         {"init_val", o.init_val},
                                                         {"max_trials", o.max_trials},
                                                         {"max_val", o.max_val}};
  for (const auto& [name, value] : counts) {
    if (value < 1) fail<ConfigError>(kCall, ": ", name, " is ", value, ", expected 1 or more");
  }
  return {.binary = binary, .loop = method == 0 ? std::nullopt : std::optional(static_cast<Loop>(method - 1))};
}

constexpr const char* kHooks[] = {"val_loader", "test_loader", "predict_loader"};

// Ranks that run out of memory at different sizes, or one that does inside of a collective, cannot go on together.
void refuse_processes(const Trainer::Run& run) {
  if (!run.strategy->group() && !dynamic_cast<const ProcessStrategy*>(run.strategy.get())) return;
  fail<ConfigError>(kCall, ": the strategy is \"", run.strategy->name(),
                    "\", whose processes a search for a batch size cannot keep in step; search with "
                    "strategy = \"single_device\", and give the size that it finds to the other run");
}

// Checks that the module has the field, and the hook that reads it.
void check_module(const Trainer::Run& run, TrainModule& module, const BatchSizeOptions& o, std::optional<Loop> loop) {
  const Overrides has = run.borrowed.overrides_of(module);
  const train::Fields fields(module, run.borrowed.data_module);
  const std::array hooks = {has.val_loader, has.test_loader, has.predict_loader};
  const auto k = static_cast<std::size_t>(loop.value_or(Loop::validation));
  if (loop ? !hooks[k] : !has.train_loader)
    fail<ConfigError>(kCall, ": the module has no ", loop ? kHooks[k] : "train_loader",
                      ", which a search calls to get loaders of each size; override it, and let it read the field ",
                      o.batch_arg_name);
  const std::array steps = {has.validation_step, has.test_step, true};
  if (loop && !steps[k])
    fail<ConfigError>(kCall, ": the module has no ", k == 0 ? "validation_step" : "test_step", "; override it");
  if (!fields.has(o.batch_arg_name))
    fail<ConfigError>(kCall, ": the module has no field ", o.batch_arg_name,
                      " among its members and hparams, it has: ", fields.names(),
                      "; name it by tunable or save_hparams in the constructor, or give another name as "
                      "batch_arg_name");
  fields.warn_of_both(o.batch_arg_name);
}

bool is_out_of_memory(const std::exception& e) {
  if (dynamic_cast<const OutOfMemoryError*>(&e) || dynamic_cast<const std::bad_alloc*>(&e)) return true;
  const std::string_view what = e.what();
  constexpr std::array<std::string_view, 7> kWords = {
      "CUDA out of memory",        "out of memory",         "cudaErrorMemoryAllocation", "CUBLAS_STATUS_ALLOC_FAILED",
      "CUDNN_STATUS_ALLOC_FAILED", "can't allocate memory", "cannot allocate memory"};
  return std::any_of(kWords.begin(), kWords.end(),
                     [&](std::string_view words) { return what.find(words) != std::string_view::npos; });
}

// Runs trials, each with its own loaders.
class Trials {
 public:
  Trials(Trainer::Run& run, const BatchSizeOptions& options, std::optional<Loop> loop, train::SavedRun& before)
      : run_(run),
        options_(options),
        loop_(loop),
        before_(before),
        device_(run.device_of(run.borrowed.tree_of_active())) {
    run.options.limit_train_batches.reset();
    run.options.limit_test_batches = run.options.limit_predict_batches = Portion(options.steps_per_trial);
    if (loop == Loop::validation) run.options.limit_val_batches = Portion(options.steps_per_trial);
    // Validates after each batch: a size must fit with the memory of a validation too.
    run.options.val_check_interval = 1;
    run.options.check_val_every_n_epoch = std::nullopt;
  }

  // The number of samples: no batch is larger. Streams may have any number.
  [[nodiscard]] std::int64_t samples() {
    const auto count = [](const data::DataLoader& l) {
      return l.stream() ? std::numeric_limits<std::int64_t>::max() : l.dataset()->size();
    };
    const data::DataLoader* known = loop_ ? run_.loaders.own_evaluated.get() : run_.loaders.own_train.get();
    return known ? count(*known) : count(*made(options_.init_val));
  }

  [[nodiscard]] bool fits(std::int64_t size) {
    reset_peak_memory(device_);
    planned_ = 0;
    bool held = true;
    try {
      trial(size);
    } catch (const std::exception& e) {
      if (!is_out_of_memory(e)) throw;
      held = false;
      error_ = e.what();
      failed_ = size;
      peak_ = std::max(planned_, memory_stats(device_).peak);
    }
    // The next trial does not see what this one left.
    run_.loaders.train = nullptr;
    run_.loaders.val.clear();
    if (nn::Module* tree = run_.borrowed.tree_of_active()) tree->zero_grad();
    release_cached_memory(device_);
    return held;
  }

  [[noreturn]] void fail_all() const {
    fail<OutOfMemoryError>(kCall, ": a batch of ", failed_, " does not fit: the trial had ", peak_, " bytes in use on ",
                           device_, " when it ended by \"", error_, "\"; use a smaller module, or another device");
  }

 private:
  [[nodiscard]] std::unique_ptr<data::DataLoader> made(std::int64_t size) {
    train::fields_of(run_).set(options_.batch_arg_name, static_cast<double>(size));
    std::unique_ptr<data::DataLoader> loader = run_.borrowed.loader_of_hook(loop_, *run_.borrowed.active);
    if (!loader)
      fail<ConfigError>(kCall, ": the module's ", loop_ ? kHooks[static_cast<std::size_t>(*loop_)] : "train_loader",
                        " gave null, expected a loader");
    return loader;
  }
  // Throws OutOfMemoryError if the plan of a step with the loader's first batch exceeds the memory. A step that cannot
  // be planned is not planned for further sizes.
  void check_plan(data::DataLoader& loader) {
    if (!plans_) return;
    std::int64_t use = 0;
    try {
      MemoryPlan plan;
      if (const data::DataLoader::Iterator first = loader.begin(); !(first == loader.end()))
        plan = train::plan_step(run_, loop_, *first, device_);
      use = train::planned_use(run_, plan, device_);
    } catch (const std::exception& e) {
      if (is_out_of_memory(e)) return;  // the trial itself decides
      plans_ = false;
      warn(
          "I-TUNE-PLAN", WarningCategory::info,
          std::string("scale_batch_size: the step can not be planned on shapes alone, each size is tried: ") + e.what(),
          Repeat::yes);
      return;
    }
    const std::int64_t most = memory_size(device_);
    if (use <= most) return;
    planned_ = use;
    fail<OutOfMemoryError>("its plan, ", use, " bytes, of ", most);
  }
  void trial(std::int64_t size) {
    const std::unique_ptr<data::DataLoader> loader = made(size);
    check_plan(*loader);
    if (loop_) {
      std::vector<Tensors> predictions;
      before_.evaluate(*loop_, *loader, *loop_ == Loop::predict ? &predictions : nullptr);
    } else {
      const std::unique_ptr<data::DataLoader> val =
          run_.loaders.val_by_hook ? run_.borrowed.loader_of_hook(Loop::validation, *run_.borrowed.active)
                                   : std::unique_ptr<data::DataLoader>();
      run_.loaders.use_val(val ? std::vector<data::DataLoader*>{val.get()} : std::vector<data::DataLoader*>{});
      run_.loaders.use_train(*loader);
      before_.train(options_.steps_per_trial, nullptr);
    }
    if (device_.launches()) synchronize(device_);
  }

  Trainer::Run& run_;
  const BatchSizeOptions& options_;
  std::optional<Loop> loop_;
  train::SavedRun& before_;
  Device device_;
  bool plans_ = true;
  std::int64_t planned_ = 0;  // bytes of a trial that was not run
  std::string error_;
  std::int64_t peak_ = 0, failed_ = 0;  // of the last trial that did not fit
};

// Doubles until a size does not fit, and takes half of that.
std::int64_t by_powers(const BatchSizeOptions& o, std::int64_t cap, Trials& trials) {
  std::int64_t size = std::min(o.init_val, cap), best = 0;
  for (std::int64_t trial = 0; trial < o.max_trials; ++trial) {
    if (trials.fits(size)) {
      best = size;
      if (size == cap) break;
      size = std::min(2 * size, cap);
    } else {
      if (best > 0) break;
      if (size == 1) trials.fail_all();
      size /= 2;
    }
  }
  if (best == 0) trials.fail_all();
  return best;
}

// Doubles until a size does not fit, then halves the gap between the largest that fits and the smallest that does not.
std::int64_t by_bisection(const BatchSizeOptions& o, std::int64_t cap, Trials& trials) {
  std::int64_t size = std::min(o.init_val, cap), fits = 0, fails = cap + 1, successes = 0;
  bool failed = false;
  while (fails - fits > 1 && successes < o.max_trials) {
    if (trials.fits(size)) {
      fits = size;
      ++successes;
    } else {
      if (size == 1) trials.fail_all();
      fails = size;
      failed = true;
    }
    size = failed ? (fits + fails) / 2 : std::min(2 * size, cap);
  }
  const auto kept = std::max<std::int64_t>(1, static_cast<std::int64_t>(static_cast<double>(fits) * (1 - o.margin)));
  if (kept != fits)
    warn("I-TUNE-MARGIN", WarningCategory::info,
         "scale_batch_size: " + text(fits) + " fits, " + text(kept) + " leaves a margin of " + text(o.margin),
         Repeat::yes);
  return kept;
}

}  // namespace

// Called in a stage of the run, outside of batches. Leaves the loaders as they are.
std::int64_t train::find_batch_size(Trainer::Run& run, const BatchSizeOptions& options, std::optional<Loop> loop) {
  const Chosen chosen = check(options);
  check_module(run, *run.borrowed.active, options, loop);
  const Fields fields = fields_of(run);
  const double field = fields.get(options.batch_arg_name);
  std::int64_t found = 0;
  {
    SavedRun before(run, run.borrowed.tree_of_active(), ".scale_batch_size_");
    try {
      Trials trials(run, options, loop, before);
      const std::int64_t samples = trials.samples();
      if (samples < 1) fail<ConfigError>(kCall, ": the loader's dataset is empty, expected at least one sample");
      const std::int64_t cap = std::min(options.max_val, samples);
      found = chosen.binary ? by_bisection(options, cap, trials) : by_powers(options, cap, trials);
    } catch (...) {
      fields.set(options.batch_arg_name, field);
      before.restore_quietly();
      throw;
    }
    before.restore();
  }
  fields.set(options.batch_arg_name, static_cast<double>(found));
  run.check_interrupt();
  warn("I-TUNE-BATCH-SIZE", WarningCategory::info,
       "scale_batch_size: " + options.batch_arg_name + " is " + text(found) + " from now on", Repeat::yes);
  return found;
}

void scale_lr(TrainModule& module, double factor) {
  if (!(factor > 0) || !std::isfinite(factor))
    fail<ConfigError>("scale_lr: factor is ", factor, ", expected a number above 0");
  for (const char* name : {"lr", "learning_rate"}) {
    if (module.has_field(name)) return module.set_field(name, module.field(name) * factor);
  }
  fail<ConfigError>("scale_lr: the module has no field lr or learning_rate, it has: ", module.fields(),
                    "; name it by tunable or save_hparams in the constructor");
}

// ---- Calls of users

std::optional<std::int64_t> Tuner::scale_batch_size(TrainModule& module, const BatchSizeOptions& options) {
  Trainer::Run& run = Trainer::Run::of(*trainer_);
  const Chosen chosen = check(options);
  train::check_free(run, kCall);
  refuse_processes(run);
  DataModule* const data = train::data_module_of(kCall, {&options.loaders}, options.data_module);
  const Trainer::Borrowed::DataScope with(run.borrowed, run.trainer, data);
  check_module(run, module, options, chosen.loop);
  for (const auto& c : run.hooks.own) {
    if (dynamic_cast<const BatchSizeFinder*>(c.get()))
      fail<ConfigError>(kCall,
                        ": callbacks holds a BatchSizeFinder, which searches by itself; remove it, or leave the call "
                        "out");
  }
  if (train::skipped_by_dev_run(run, kCall)) return std::nullopt;
  std::optional<std::int64_t> found;
  const auto search = [&] { found = train::find_batch_size(run, options, chosen.loop); };
  if (chosen.loop)
    run.evaluation.run(*chosen.loop, module, {}, nullptr, search);
  else
    run.fit(module, {.data_module = data}, search);
  return found;
}

std::string BatchSizeFinder::state_key() const { return "BatchSizeFinder(" + options_.batch_arg_name + ")"; }
CallbackState BatchSizeFinder::state() const {
  CallbackState out;
  if (size_) out.values.emplace_back("size", text(*size_));
  return out;
}

// Reads the state of the finder; in a file without one the hyper-parameter that it had set.
void Trainer::Files::give_back_batch_size(const train::Checkpoint& file) const {
  for (const auto& c : run_.hooks.callbacks) {
    auto* const finder = dynamic_cast<BatchSizeFinder*>(c.get());
    if (!finder) continue;
    const std::string& field = finder->options_.batch_arg_name;
    std::optional<double> size;
    for (const auto& [name, value] : file.hparams) {
      if (name == field && value.is_number()) size = value.number();
    }
    const auto state = file.callbacks.find(finder->state_key());
    for (const auto& [name, value] : state == file.callbacks.end() ? Metadata{} : state->second) {
      if (name == "size") size = train::read_number("BatchSizeFinder", name, value);
    }
    const train::Fields fields = train::fields_of(run_);
    if (!size || !fields.has(field)) continue;
    fields.set(field, *size);
    finder->size_ = static_cast<std::int64_t>(*size);
  }
}

BatchSizeFinder::BatchSizeFinder(BatchSizeOptions options) : options_(std::move(options)) {
  if (check(options_).loop)
    fail<ConfigError>("BatchSizeFinder: method is \"", options_.method,
                      "\", but it searches in whatever stage it runs in; leave it out");
  if (options_.data_module || options_.loaders.data_module())
    fail<ConfigError>("BatchSizeFinder: a data module was given, it takes that of the stage; leave it out");
}
void BatchSizeFinder::on_fit_start() {
  if (trainer().resumed_from().empty() || !size_) scale_batch_size();
}
void BatchSizeFinder::on_validation_start() {
  if (!Trainer::Run::of(trainer()).in_fit) scale_batch_size();
}
void BatchSizeFinder::on_test_start() { scale_batch_size(); }
void BatchSizeFinder::on_predict_start() { scale_batch_size(); }

void BatchSizeFinder::scale_batch_size() {
  Trainer::Run& run = Trainer::Run::of(trainer());
  refuse_processes(run);
  // A run that resumes within an epoch keeps the size of the run before, which its loader has.
  if (run.in_fit && run.progress.batches_done > 0 && run.progress.total_batches == run.files.resumed_at &&
      !run.evaluation.loaders)
    return;
  if (run.logs.scope == train::LogScope::train_batch || (run.in_fit && run.evaluation.loaders) ||
      (run.in_fit && run.progress.batches_done > 0))
    fail<StateError>(kCall,
                     ": called inside of an epoch's batches, whose loader can not change any more; call it from "
                     "on_fit_start or on_train_epoch_start");
  if (train::skipped_by_dev_run(run, kCall)) return;
  const std::optional<Loop> loop = run.in_fit ? std::nullopt : std::optional(run.evaluation.current_loop);
  if (run.in_fit) {
    run.loaders.load_val();
    run.loaders.load_train();
  }
  if (run.in_fit ? !run.loaders.own_train : !run.loaders.own_evaluated)
    fail<ConfigError>(kCall,
                      ": the stage was given its loader as an argument, and a size reaches only those that the module "
                      "makes itself; override its train_loader (val_loader, ...) and leave the argument out");
  size_ = train::find_batch_size(run, options_, loop);
  if (loop) {
    run.loaders.own_evaluated = run.borrowed.loader_of_hook(*loop, *run.borrowed.active);
    std::vector<train::RankShare> shares;  // none: a search has one process
    *run.evaluation.loaders = run.loaders.evaluated_in_turn({run.loaders.own_evaluated.get()},
                                                            kHooks[static_cast<std::size_t>(*loop)], shares);
    return;
  }
  run.loaders.train = nullptr;
  run.loaders.load_train();
  if (!run.loaders.own_val) return;
  run.loaders.val.clear();
  run.loaders.own_val.reset();
  run.loaders.load_val();
}

}  // namespace levin
