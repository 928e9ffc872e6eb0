#include "levin/train/early_stopping.h"

#include <cmath>
#include <limits>
#include <utility>

#include "levin/train.h"
#include "train/callbacks/monitored.h"
#include "train/run/run.h"

namespace levin {
namespace {

using Reason = EarlyStopping::Reason;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

double start_of(Mode mode) { return mode == Mode::min ? kInfinity : -kInfinity; }

}  // namespace

EarlyStopping::EarlyStopping(EarlyStoppingOptions options)
    : options_(std::move(options)), best_(start_of(options_.mode)) {
  if (options_.monitor.empty())
    fail<ConfigError>("EarlyStopping: monitor is empty; give it the name of a metric that the module logs");
  if (!(options_.min_delta >= 0))
    fail<ConfigError>("EarlyStopping: min_delta is ", options_.min_delta, ", expected 0 or more");
  if (options_.patience < 0)
    fail<ConfigError>("EarlyStopping: patience is ", options_.patience, ", expected 0 checks or more");
}

bool EarlyStopping::at_epoch_end() const {
  return options_.check_on_train_epoch_end.value_or(trainer().validates_once_an_epoch());
}
void EarlyStopping::on_validation_end() {
  if (trainer().validating() && !at_epoch_end()) check();
}
void EarlyStopping::on_train_epoch_end() {
  if (at_epoch_end() && !trainer().epoch_is_cut()) check();
}

Reason EarlyStopping::judge(double value) {
  const EarlyStoppingOptions& o = options_;
  if (o.check_finite && !std::isfinite(value)) return Reason::non_finite_metric;
  const auto beyond = [](Mode mode, double x, const std::optional<double>& limit) {
    return limit && !std::isnan(x) && train::better(mode, x, *limit);
  };
  if (beyond(o.mode, value, o.stopping_threshold)) return Reason::stopping_threshold;
  if (beyond(o.mode == Mode::min ? Mode::max : Mode::min, value, o.divergence_threshold))
    return Reason::divergence_threshold;
  if (o.mode == Mode::min ? value + o.min_delta < best_ : value - o.min_delta > best_) {
    best_ = value;
    const std::int64_t waited = std::exchange(wait_, 0);
    if (o.verbose && waited > 0)  // a gain right after a gain is no news
      warn("I-STOP-GAIN", WarningCategory::info,
           "EarlyStopping: " + o.monitor + " is at its best again, " + text(value) + ", after " + text(waited) +
               (waited == 1 ? " check" : " checks") + " without a gain",
           Repeat::yes);
    return Reason::not_stopped;
  }
  return ++wait_ >= o.patience ? Reason::patience_exhausted : Reason::not_stopped;
}

void EarlyStopping::check() {
  Trainer& t = trainer();
  const EarlyStoppingOptions& o = options_;
  if (t.options().fast_dev_run > 0) return;
  const Metrics known = Trainer::Run::of(t).logs.monitored();
  const std::optional<double> value = train::metric(known, o.monitor);
  if (!value) {
    const std::string what = "EarlyStopping: the metric \"" + o.monitor + "\" is not known at the end of a " +
                             (at_epoch_end() ? "training epoch" : "validation") +
                             "; known are: " + train::names_of(known);
    if (o.strict)
      fail<ConfigError>(what,
                        ". Either it has another name, or it is logged at another time "
                        "(check_on_train_epoch_end); strict = false goes on without");
    if (o.verbose) warn("W-STOP-METRIC", WarningCategory::runtime, what + "; no check");
    return;
  }
  const bool first = wait_ == 0 && best_ == start_of(o.mode);
  const Reason reason = judge(*value);
  if (reason == Reason::not_stopped) return;
  const std::string at = o.monitor + " is " + text(*value);
  switch (reason) {
    case Reason::not_stopped: break;
    case Reason::non_finite_metric: message_ = at + ", which is not finite; its best was " + text(best_); break;
    case Reason::stopping_threshold:
      message_ = at + ", better than stopping_threshold = " + text(*o.stopping_threshold);
      break;
    case Reason::divergence_threshold:
      message_ = at + ", worse than divergence_threshold = " + text(*o.divergence_threshold);
      break;
    case Reason::patience_exhausted:
      message_ = at + "; " + text(wait_) + " checks in a row were no gain of more than " + text(o.min_delta) +
                 " on the best, " + text(best_);
      break;
  }
  reason_ = reason;
  stopped_epoch_ = t.current_epoch();
  t.request_stop(KeepStop::yes, "EarlyStopping: " + message_);
  if (o.verbose)
    warn("I-STOP-END", WarningCategory::info, "EarlyStopping: " + message_ + "; a stop is asked for", Repeat::yes);
  if (first && reason == Reason::stopping_threshold)
    warn("W-STOP-FIRST", WarningCategory::possible_user,
         "EarlyStopping: the first check found " + message_ + " (mode = " + train::name_of(o.mode) + "). If " +
             (o.mode == Mode::min ? "more is better, set mode = max" : "less is better, set mode = min"));
}

std::string EarlyStopping::state_key() const {
  return "EarlyStopping(monitor=" + options_.monitor + ", mode=" + train::name_of(options_.mode) + ")";
}

CallbackState EarlyStopping::state() const {
  return {.values = {{"wait_count", text(wait_)},
                     {"stopped_epoch", text(stopped_epoch_)},
                     {"best_score", train::exact(best_)},
                     {"patience", text(options_.patience)},
                     {"reason", text(static_cast<std::int64_t>(reason_))},
                     {"message", message_}},
          .tensors = {}};
}

void EarlyStopping::load_state(const CallbackState& state) {
  std::int64_t wait = 0, epoch = 0, patience = options_.patience, reason = 0;
  double best = start_of(options_.mode);
  std::string message;
  for (const auto& [name, value] : state.values) {
    const auto count = [&] { return train::read_count("EarlyStopping", name, value); };
    if (name == "wait_count") wait = count();
    if (name == "stopped_epoch") epoch = count();
    if (name == "best_score") best = train::read_number("EarlyStopping", name, value);
    if (name == "patience") patience = count();
    if (name == "reason") reason = count();
    if (name == "message") message = value;
  }
  if (reason > static_cast<std::int64_t>(Reason::patience_exhausted))
    fail<ConfigError>("EarlyStopping: the state's reason is ", reason, ", expected 0 to 4");
  if (patience != options_.patience)
    warn("W-STOP-PATIENCE", WarningCategory::user,
         "EarlyStopping: the run goes on with the patience of its checkpoint, " + text(patience) +
             " checks instead of " + text(options_.patience));
  wait_ = wait;
  stopped_epoch_ = epoch;
  best_ = best;
  options_.patience = patience;
  reason_ = static_cast<Reason>(reason);
  message_ = std::move(message);
}

}  // namespace levin
