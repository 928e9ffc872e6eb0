// Trainer::log: checks the place of the call, and adds the value to the log of training or of the evaluation.
#include <cstdio>

#include "levin/ops.h"
#include "train/run/run.h"

namespace levin {
namespace {

// The log that keeps a value, and the index of the loader there. A null log keeps nothing.
struct Target {
  train::MetricLog* log = nullptr;
  int loader = -1;
};

Target target_of(Trainer::Run& run, std::string_view name, const LogOptions& options) {
  if (run.logs.scope == train::LogScope::none || run.hooks.now->logs == train::Logs::nothing) {
    const std::string where = run.hooks.now == &train::kOutside
                                  ? std::string("outside of batches and epochs")
                                  : "in " + std::string(run.hooks.now->name) + ", which may not log";
    fail<StateError>("log: \"", name, "\" is logged ", where, "; call it in a step, or in hooks of batches and epochs");
  }
  if (run.options.barebones || (options.rank_zero_only && run.strategy->ranks().rank != 0)) return {};
  // A run that resumes in the middle of an epoch calls this hook again, and its sums have the value already.
  const bool goes_on = run.progress.batches_done > 0 && (run.borrowed.same_module || !run.files.resumed_from.empty());
  if (goes_on && run.hooks.now == &train::hooks::on_train_epoch_start) return {};
  if (run.logs.scope != train::LogScope::eval) return {.log = &run.logs.train};
  const bool of_one = run.logs.eval_loaders > 1 && run.logs.eval_loader >= 0 && options.add_dataloader_idx;
  return {.log = &run.logs.eval, .loader = of_one ? run.logs.eval_loader : -1};
}

// The weight of a value in the mean of the epoch. Throws ConfigError for a batch without a size.
std::int64_t weight_here(const Trainer::Run& run, std::string_view name, const LogOptions& options) {
  if (options.batch_size || run.logs.scope == train::LogScope::train_epoch ||
      run.hooks.now->logs == train::Logs::epochs)
    return 1;
  const bool on_epoch = options.on_epoch.value_or(run.logs.scope != train::LogScope::train_batch);
  if (!on_epoch) return 1;
  if (run.logs.weight.size < 1)
    fail<ConfigError>("log: \"", name,
                      "\" is to be a mean over batches weighted by their sizes, and the batch has no tensor that tells "
                      "its own; give LogOptions::batch_size");
  if (run.logs.weight.ambiguous)
    warn("W-LOG-BATCH-SIZE", WarningCategory::possible_user,
         "log: the fields of the batch differ in size(0); " + text(run.logs.weight.size) +
             " of the first is its weight in means of an epoch. LogOptions::batch_size says another");
  return run.logs.weight.size;
}

}  // namespace

void Trainer::log(std::string_view name, const Tensor& value, const LogOptions& options) {
  const Target to = target_of(*run_, name, options);
  if (!to.log) return;
  if (!is_float(value.dtype())) TrainModule::warn_of_integral(name);
  to.log->log(name, value, options, {run_->logs.scope, *run_->hooks.now, to.loader, weight_here(*run_, name, options)});
}
void Trainer::log(std::string_view name, double value, const LogOptions& options) {
  log(name, full({}, value, Device::cpu(), DType::f64), options);
}
void Trainer::log(std::string_view name, const Metric& metric, const LogOptions& options) {
  const Target to = target_of(*run_, name, options);
  if (!to.log) return;
  const train::MetricLog& other = to.log == &run_->logs.train ? run_->logs.eval : run_->logs.train;
  if (other.logs(metric))
    fail<ConfigError>("log: \"", name,
                      "\" is a Metric that is logged in training and in evaluation, whose sums it would mix; make two");
  to.log->log(name, metric, run_->borrowed.active ? run_->borrowed.active->tree() : run_->borrowed.tree, options,
              {run_->logs.scope, *run_->hooks.now, to.loader});
}
void Trainer::log_dict(const NamedTensors& values, const LogOptions& options) {
  for (const auto& [name, value] : values) log(name, value, options);
}
void Trainer::log_dict(const Metrics& values, const LogOptions& options) {
  for (const auto& [name, value] : values) log(name, value, options);
}

Metrics Trainer::callback_metrics() {
  const SyncGuard own = run_->instruments.own_waits();
  Metrics all = run_->logs.epoch;
  run_->logs.train.newest(all);
  run_->logs.eval.newest(all);
  return all;
}
Metrics Trainer::progress_metrics() {
  const SyncGuard own = run_->instruments.own_waits();
  Metrics shown;
  run_->logs.train.progress(shown);
  run_->logs.eval.progress(shown);
  return shown;
}

void Trainer::print(std::string_view line) const {
  if (!is_global_zero()) return;
  for (const auto& c : run_->hooks.callbacks) {
    if (c->print_line(line)) return;
  }
  std::printf("%.*s\n", static_cast<int>(line.size()), line.data());
}

}  // namespace levin
