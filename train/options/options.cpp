#include "train/options/options.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "levin/train.h"
#include "tensor/errors/warn.h"
#include "train/options/accelerators.h"
#include "train/run/requeue.h"

namespace levin {
namespace {

void check_limit(const char* name, std::int64_t value) {
  if (value < -1) fail<ConfigError>("Trainer: ", name, " is ", value, ", expected -1 (no limit), 0 or more");
}
void check_minimum(const char* name, const std::optional<std::int64_t>& value) {
  if (value && *value < 0)
    fail<ConfigError>("Trainer: ", name, " is ", *value, ", expected 0 or more; or leave it unset");
}

constexpr double kSecondsOfDay = 86400;

// "DD:HH:MM:SS" as four numbers; false for another form.
bool read_clock(std::string_view text, std::array<std::int64_t, 4>& fields) {
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const std::size_t end = i + 1 < fields.size() ? text.find(':') : text.size();
    if (end == std::string_view::npos || end == 0 || (i > 0 && end != 2)) return false;
    const auto [at, error] = std::from_chars(text.data(), text.data() + end, fields[i]);
    if (error != std::errc() || at != text.data() + end || fields[i] < 0) return false;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return true;
}

}  // namespace

Portion::Portion(double fraction) {
  constexpr double kExact = 1e15;  // integers up to here are exact
  if (fraction > 1 && fraction < kExact && fraction == std::floor(fraction)) {
    count_ = static_cast<std::int64_t>(fraction);
  } else {
    fraction_ = fraction;
    is_fraction_ = true;
  }
}

std::int64_t Portion::of(std::int64_t n, std::string_view option) const {
  if (is_fraction_ ? !(fraction_ >= 0 && fraction_ <= 1) : count_ < 0)
    fail<ConfigError>("Trainer: ", option, " is ", is_fraction_ ? text(fraction_) : text(count_),
                      ", expected a count of 0 or more, or a fraction in [0, 1]");
  if (!is_fraction_) return std::min(count_, n);
  const auto count = static_cast<std::int64_t>(static_cast<double>(n) * fraction_);
  if (count == 0 && fraction_ > 0 && n > 0)
    fail<ConfigError>("Trainer: ", option, " = ", fraction_, " of ", n,
                      " batches is none; the least fraction that works is ", 1.0 / static_cast<double>(n));
  return count;
}

Duration::Duration(const Parts& p)
    : seconds_((p.weeks * 7 + p.days) * kSecondsOfDay + p.hours * 3600 + p.minutes * 60 + p.seconds +
               p.milliseconds / 1000) {}

Duration::Duration(std::string_view text) {
  std::array<std::int64_t, 4> f{};
  if (!read_clock(text, f))
    fail<ConfigError>("Duration: \"", text, "\" is not of the form DD:HH:MM:SS, such as \"00:12:00:00\" for 12 hours");
  seconds_ = static_cast<double>(f[0]) * kSecondsOfDay + static_cast<double>(f[1] * 3600 + f[2] * 60 + f[3]);
}

void train::check_options(const TrainerOptions& o) {
  check_accelerator_name(o.accelerator);
  (void)requeue_signal(o);
  if (o.sync_batchnorm && o.plugins.layer_sync)
    fail<ConfigError>(
        "Trainer: sync_batchnorm is on and plugins has a LayerSync, which are two of one kind; give one of them");
  if (o.max_epochs) check_limit("max_epochs", *o.max_epochs);
  check_limit("max_steps", o.max_steps);
  check_minimum("min_epochs", o.min_epochs);
  check_minimum("min_steps", o.min_steps);
  if (o.num_sanity_val_steps) check_limit("num_sanity_val_steps", *o.num_sanity_val_steps);
  if (o.fast_dev_run < 0)
    fail<ConfigError>("Trainer: fast_dev_run is ", o.fast_dev_run, ", expected 0 (off) or a count of batches");
  if (o.log_every_n_steps < 0)
    fail<ConfigError>("Trainer: log_every_n_steps is ", o.log_every_n_steps, ", expected 0 (never) or more");
  if (o.reload_dataloaders_every_n_epochs < 0)
    fail<ConfigError>("Trainer: reload_dataloaders_every_n_epochs is ", o.reload_dataloaders_every_n_epochs,
                      ", expected 0 (once a fit) or a count of epochs");
  if (o.accumulate_grad_batches < 1)
    fail<ConfigError>("Trainer: accumulate_grad_batches is ", o.accumulate_grad_batches, ", expected 1 or more");
  if (o.memory_limit && *o.memory_limit < 1)
    fail<ConfigError>("Trainer: memory_limit is ", *o.memory_limit,
                      ", expected 1 byte or more; leave it unset for none");
  if (o.gradient_clip_val && std::isnan(*o.gradient_clip_val))
    fail<ConfigError>("Trainer: gradient_clip_val is NaN, expected a number, of which 0 and less are off");
  if (o.max_epochs.value_or(-1) >= 0 && o.min_epochs.value_or(0) > *o.max_epochs)
    fail<ConfigError>("Trainer: min_epochs is ", *o.min_epochs, " and max_epochs ", *o.max_epochs,
                      ", expected no more than that");
  if (o.max_steps >= 0 && o.min_steps.value_or(0) > o.max_steps)
    fail<ConfigError>("Trainer: min_steps is ", *o.min_steps, " and max_steps ", o.max_steps,
                      ", expected no more than that");
  if (o.sync_budget && *o.sync_budget < 0)
    fail<ConfigError>("Trainer: sync_budget is ", *o.sync_budget, ", expected 0 (no wait in a batch) or more");
  if (o.check_val_every_n_epoch && *o.check_val_every_n_epoch < 1)
    fail<ConfigError>("Trainer: check_val_every_n_epoch is ", *o.check_val_every_n_epoch,
                      ", expected 1 or more; nullopt counts batches over all epochs");
  if (o.max_time && !(o.max_time->seconds() >= 0))
    fail<ConfigError>("Trainer: max_time is ", o.max_time->seconds(), " seconds, expected 0 or more");
  for (const auto& [limit, name] :
       {std::pair{&o.limit_train_batches, "limit_train_batches"}, std::pair{&o.limit_val_batches, "limit_val_batches"},
        std::pair{&o.limit_test_batches, "limit_test_batches"},
        std::pair{&o.limit_predict_batches, "limit_predict_batches"},
        std::pair{&o.overfit_batches, "overfit_batches"}}) {
    if (*limit) (void)(*limit)->of(0, name);
  }
  if (!o.val_check_interval) return;
  const ValidationInterval& every = *o.val_check_interval;
  const bool positive = every.time() ? every.time()->seconds() > 0
                        : every.portion().is_fraction()
                            ? every.portion().fraction() > 0 && every.portion().fraction() <= 1
                            : every.portion().count() > 0;
  if (!positive)
    fail<ConfigError>(
        "Trainer: val_check_interval is ",
        every.time()                    ? text(every.time()->seconds()) + " seconds"
        : every.portion().is_fraction() ? text(every.portion().fraction())
                                        : text(every.portion().count()),
        ", expected a count of 1 or more, a fraction in (0, 1] or a duration above 0; limit_val_batches = 0 "
        "switches validation off");
  if (!o.check_val_every_n_epoch && !every.time() && every.portion().is_fraction())
    fail<ConfigError>(
        "Trainer: val_check_interval is the fraction ", every.portion().fraction(),
        " and check_val_every_n_epoch is unset, so that batches are counted over all epochs; give a count or a "
        "duration");
}

void train::report_portions(const TrainerOptions& o) {
  const auto meaning = [](const std::optional<Portion>& p, const char* name) {
    if (p == Portion(1)) return std::string(name) + " = 1 is one batch; ";
    if (p == Portion(1.0)) return std::string(name) + " = 1.0 is all batches; ";
    return std::string();
  };
  std::string meanings =
      meaning(o.limit_train_batches, "limit_train_batches") + meaning(o.limit_val_batches, "limit_val_batches") +
      meaning(o.limit_test_batches, "limit_test_batches") + meaning(o.limit_predict_batches, "limit_predict_batches") +
      meaning(o.overfit_batches, "overfit_batches");
  if (o.val_check_interval && !o.val_check_interval->time()) {
    const Portion& every = o.val_check_interval->portion();
    if (every == Portion(1)) meanings += "val_check_interval = 1 is after each batch; ";
    if (every == Portion(1.0)) meanings += "val_check_interval = 1.0 is at the end of each epoch; ";
  }
  if (!meanings.empty())
    warn("I-TRAIN-PORTION", WarningCategory::info,
         "Trainer: " + meanings + "whole numbers count batches, numbers with a point are a share");
}

// The constructor builds callbacks, loggers and precision of these options.
void train::check_late_options(const TrainerOptions& now, const TrainerOptions& then, const char* call) {
  const auto check = [&](bool same, const char* name) {
    if (!same)
      fail<ConfigError>(call[0] == '\0' ? "fit" : call, ": options().", name,
                        " was changed after the trainer's constructor, which alone reads it; make another Trainer");
  };
  check(now.callbacks == then.callbacks, "callbacks");
  check(now.logger.loggers() == then.logger.loggers() && now.logger.by_default() == then.logger.by_default(), "logger");
  check(now.devices == then.devices, "devices");
  check(now.num_nodes == then.num_nodes, "num_nodes");
  check(now.strategy.name() == then.strategy.name() && now.strategy.object() == then.strategy.object(), "strategy");
  check(now.plugins == then.plugins, "plugins");
  check(now.fast_dev_run == then.fast_dev_run, "fast_dev_run");
  check(now.max_time.has_value() == then.max_time.has_value() &&
            (!now.max_time || now.max_time->seconds() == then.max_time->seconds()),
        "max_time");
  check(now.overfit_batches == then.overfit_batches, "overfit_batches");
  check(now.enable_checkpointing == then.enable_checkpointing, "enable_checkpointing");
  check(now.enable_progress_bar == then.enable_progress_bar, "enable_progress_bar");
  check(now.enable_model_summary == then.enable_model_summary, "enable_model_summary");
  check(now.barebones == then.barebones, "barebones");
  check(now.precision == then.precision, "precision");
  check(now.amp_level == then.amp_level, "amp_level");
  check(now.grad_scaler == then.grad_scaler, "grad_scaler");
}

// overfit_batches comes last, so its limits win over those of fast_dev_run.
void train::apply_shortcuts(TrainerOptions& o) {
  if (o.barebones) {
    const auto refuse = [](const char* option) {
      fail<ConfigError>("Trainer: barebones is on and ", option, " is set; drop one of them");
    };
    if (o.enable_checkpointing.value_or(false)) refuse("enable_checkpointing");
    if (o.enable_progress_bar.value_or(false)) refuse("enable_progress_bar");
    if (o.enable_model_summary.value_or(false)) refuse("enable_model_summary");
    if (!o.logger.loggers().empty() || (o.logger.chosen() && o.logger.by_default())) refuse("logger");
    if (o.num_sanity_val_steps.value_or(0) != 0) refuse("num_sanity_val_steps");
    if (o.fast_dev_run > 0) refuse("fast_dev_run");
    if (o.detect_anomaly) refuse("detect_anomaly");
    if (o.profiler) refuse("profiler");
    o.enable_checkpointing = o.enable_progress_bar = o.enable_model_summary = false;
    o.logger = false;
    o.num_sanity_val_steps = 0;
    o.log_every_n_steps = 0;
    warn("I-TRAIN-BAREBONES", WarningCategory::info,
         "Trainer: barebones switches off checkpoints, loggers, the progress bar, the summary, the sanity check, dev "
         "runs, anomaly mode, profilers and log()");
  }
  if (o.fast_dev_run > 0) {
    const Portion n(o.fast_dev_run);
    o.limit_train_batches = o.limit_val_batches = o.limit_test_batches = o.limit_predict_batches = n;
    o.max_steps = o.fast_dev_run;
    o.max_epochs = 1;
    o.min_epochs = o.min_steps = std::nullopt;
    o.max_time = std::nullopt;
    o.num_sanity_val_steps = 0;
    o.val_check_interval = 1.0;
    o.check_val_every_n_epoch = 1;
    warn("I-TRAIN-DEV-RUN", WarningCategory::info,
         "Trainer: fast_dev_run runs " + text(o.fast_dev_run) +
             " batches of everything; nothing is logged, saved or stopped early");
  }
  if (o.overfit_batches && !o.overfit_batches->is_zero())
    o.limit_train_batches = o.limit_val_batches = o.overfit_batches;
}

}  // namespace levin
