#include "train/run/fit_checks.h"

#include <algorithm>
#include <cstdlib>

#include "tensor/errors/warn.h"
#include "train/options/options.h"
#include "train/run/run.h"

namespace levin::train {

using Interval = SchedulerConfig::Interval;

std::vector<Device> devices_of(const std::vector<ParamRef>& parameters) {
  std::vector<Device> all;
  for (const ParamRef& p : parameters) {
    if (std::find(all.begin(), all.end(), p.value->device()) == all.end()) all.push_back(p.value->device());
  }
  return all;
}

void check_optimizers(const OptimizerConfig& config, bool manual) {
  for (const auto& o : config.optimizers) {
    if (!o) fail<ConfigError>("fit: an optimizer that configure_optimizers returned is null; leave it out");
  }
  if (config.optimizers.size() > 1 && !manual)
    fail<ConfigError>(
        "fit: configure_optimizers returned ", config.optimizers.size(),
        " optimizers, automatic optimization has one; let automatic_optimization() return false and step them in "
        "training_step");
  for (const SchedulerConfig& s : config.schedulers) {
    if (!s.scheduler) fail<ConfigError>("fit: a scheduler is null; leave it out");
    const bool known = std::any_of(config.optimizers.begin(), config.optimizers.end(),
                                   [&](const auto& o) { return &s.scheduler->optimizer() == o.get(); });
    if (!known) fail<ConfigError>("fit: a scheduler belongs to another optimizer than the one trained with");
    if (s.frequency < 1) fail<ConfigError>("fit: a scheduler has frequency ", s.frequency, ", expected 1 or more");
    if (s.scheduler->needs_metric() && s.monitor.empty())
      fail<ConfigError>("fit: a plateau schedule needs a metric; give SchedulerConfig::monitor its name");
    if (dynamic_cast<const optim::OneCycleLR*>(s.scheduler.get()) && s.interval == Interval::epoch)
      warn("W-TRAIN-ONE-CYCLE", WarningCategory::user,
           "fit: a one-cycle schedule moves once an epoch; interval = step is what its total_steps usually counts");
  }
}

namespace {

void check_manual(const TrainerOptions& options) {
  if (options.accumulate_weighting == AccumulateWeighting::exact)
    fail<ConfigError>(
        "fit: accumulate_weighting is exact and the module optimizes manually, where nothing is divided for it; drop "
        "the "
        "option, or use automatic optimization");
  if (options.gradient_clip_val.value_or(0) > 0)
    fail<ConfigError>("fit: gradient_clip_val is ", *options.gradient_clip_val,
                      " and the module optimizes manually, where nothing is clipped for it; drop the option and call "
                      "clip_gradients, or use automatic optimization");
  if (options.accumulate_grad_batches != 1)
    fail<ConfigError>(
        "fit: accumulate_grad_batches is ", options.accumulate_grad_batches,
        " and the module optimizes manually; drop the option and step every so many batches, or use automatic "
        "optimization");
}

// The environment variable that makes every launch wait; null: none is set.
const char* debugging_left_on() {
  for (const char* name : {"LEVIN_LAUNCH_BLOCKING", "CUDA_LAUNCH_BLOCKING"}) {
    const char* const value = std::getenv(name);
    if (value && std::string_view(value) == "1") return name;
  }
  return nullptr;
}

void check_overrides(const TrainerOptions& options, const Overrides& has, bool manual, bool loaders) {
  if (manual) check_manual(options);
  if (loaders && !has.validation_step)
    warn("W-TRAIN-NO-VALIDATION-STEP", WarningCategory::user,
         "fit: a validation loader was given and the module has no validation_step; validation is skipped");
  if (!loaders && has.validation_step)
    warn("W-TRAIN-NO-VALIDATION-LOADER", WarningCategory::possible_user,
         "fit: the module has a validation_step and no validation loader was given; validation is skipped");
}

}  // namespace

void check_fit(const Trainer::Run& run, const FitOptions& given, const Overrides& has, bool manual) {
  if (!has.training_step) fail<ConfigError>("fit: the module has no training_step; override it");
  if (!has.configure_optimizers) fail<ConfigError>("fit: the module has no configure_optimizers; override it");
  check_options(run.options);
  check_late_options(run.options, run.constructed_with, run.call_name);
  const LoaderRefs &train = given.train, &val = given.val;
  if (train.empty() && !has.train_loader)
    fail<ConfigError>(
        "fit: 0 training loaders were given, expected one; give .train = &loader, or override the module's "
        "train_loader");
  for (data::DataLoader* const v : val.all()) {
    if (has.validation_step && std::count(train.all().begin(), train.all().end(), v) > 0)
      fail<ConfigError>(
          "fit: a validation loader is the training loader, which can not begin a second loop in the middle of its "
          "epoch; make another one of the same data");
  }
  check_overrides(run.options, has, manual, !val.empty() || has.val_loader);
}

void check_callbacks(const Trainer::Run& run, const Overrides& has, bool manual) {
  if (run.logs.loggers.empty() && run.options.fast_dev_run == 0 && run.trainer.is_global_zero()) {
    for (const auto& c : run.hooks.callbacks) {
      if (c->needs_logger())
        fail<ConfigError>("fit: callbacks holds a ", class_of(*c),
                          " and the trainer has no logger for it; give .logger, or drop it");
    }
  }
  const Callback* const schedule = run.hooks.accumulation_schedule();
  if (!schedule) return;
  if (manual)
    fail<ConfigError>("fit: callbacks holds a ", class_of(*schedule),
                      " and the module optimizes manually; drop it and step "
                      "every so many batches, or use automatic optimization");
  if (has.optimizer_step || has.optimizer_zero_grad)
    warn("W-TRAIN-ACCUMULATION", WarningCategory::possible_user,
         "fit: callbacks holds a " + class_of(*schedule) + " and the module overrides " +
             (has.optimizer_step ? "optimizer_step" : "optimizer_zero_grad") +
             ", which is called once a window of the schedule, not once a batch");
}

void check_accumulation(const Trainer::Run& run) {
  const Callback* const schedule = run.hooks.accumulation_schedule();
  const std::int64_t window = schedule ? schedule->largest_accumulation() : run.options.accumulate_grad_batches;
  if (run.borrowed.manual || window == 1) return;
  if (run.optimizers.front().name() == std::string_view("lbfgs"))
    fail<ConfigError>(
        "fit: ", schedule ? class_of(*schedule) + " goes up to " : std::string("accumulate_grad_batches is "), window,
        " and lbfgs evaluates the loss several times a step, each time adding to the gradients; use larger "
        "batches");
}

void warn_of_debugging(const TrainerOptions& options) {
  if (options.detect_anomaly)
    warn("I-TRAIN-ANOMALY", WarningCategory::info, "fit: detect_anomaly looks at every result; it is slow");
  if (const char* const left = debugging_left_on())
    warn("I-TRAIN-DEBUG", WarningCategory::info,
         std::string("fit: ") + left + " is set in the environment; every launch waits for the device, which is slow");
}

void warn_of_eval_mode(const nn::Module* tree) {
  std::int64_t evaluating = 0, all = 0;
  if (tree)
    tree->visit([&](const std::string&, const nn::Module& m) {
      ++all;
      evaluating += m.is_training() ? 0 : 1;
    });
  if (evaluating > 0)
    warn("W-TRAIN-EVAL-MODE", WarningCategory::possible_user,
         "fit: " + text(evaluating) + " of " + text(all) +
             " modules are in eval mode and stay so: no dropout, batch norms with their running statistics; call "
             "train() on what is to be trained",
         Repeat::yes);
}

void warn_of_reached_limits(const Trainer::Run& run) {
  if (run.progress.total_batches > 0 && !run.stop.requested && run.limits_reached())
    warn("W-TRAIN-NOTHING", WarningCategory::user,
         "fit: " +
             (run.stop.max_steps_reached() ? "max_steps = " + text(run.options.max_steps)
                                           : "max_epochs = " + text(run.stop.max_epochs())) +
             " is reached, nothing is trained; raise it, or use a new Trainer for a new training",
         Repeat::yes);
}

void warn_of_few_records(const Trainer::Run& run) {
  if (run.options.log_every_n_steps > run.loaders.batches && !run.logs.loggers.empty())
    warn("W-TRAIN-LOG-INTERVAL", WarningCategory::possible_user,
         "fit: log_every_n_steps is " + text(run.options.log_every_n_steps) + " and an epoch has " +
             text(run.loaders.batches) + " batches; few records or none are written in it");
}

}  // namespace levin::train
