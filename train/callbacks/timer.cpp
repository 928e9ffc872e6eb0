#include <chrono>
#include <cmath>

#include "levin/train.h"
#include "train/callbacks/monitored.h"

namespace levin {

// Counts between on_train_start and on_train_end.
struct Timer::Clock {
  using Steady = std::chrono::steady_clock;
  std::optional<Steady::time_point> start;
  bool asked = false;  // a stop, in this run

  [[nodiscard]] double seconds() const {
    return start ? std::chrono::duration<double>(Steady::now() - *start).count() : 0;
  }
};

Timer::Timer(Duration duration, Interval interval)
    : clock_(std::make_unique<Clock>()), limit_(duration.seconds()), interval_(interval) {
  if (!(limit_ >= 0)) fail<ConfigError>("Timer: the duration is ", limit_, " seconds, expected 0 or more");
}
Timer::~Timer() = default;

double Timer::time_elapsed() const { return before_ + clock_->seconds(); }
double Timer::time_remaining() const { return std::max(0.0, limit_ - time_elapsed()); }

void Timer::check() {
  // The clock of rank 0 counts; the other ranks learn of the request after the batch.
  if (clock_->asked || !trainer().is_global_zero() || time_elapsed() < limit_) return;
  clock_->asked = true;
  trainer().request_stop(KeepStop::no);
  warn("I-TRAIN-TIME", WarningCategory::info,
       "Timer: " + text(time_elapsed()) + " seconds of training, the limit is " + text(limit_) + "; stopping");
}

void Timer::on_fit_start() {
  *clock_ = {};
  check();
}
void Timer::on_train_start() { clock_->start = Clock::Steady::now(); }
void Timer::on_train_end() {
  before_ = time_elapsed();
  clock_->start.reset();
}
void Timer::on_exception(const std::exception&) { on_train_end(); }
void Timer::on_train_batch_end(const StepInfo&) {
  if (interval_ == Interval::step) check();
}
void Timer::on_train_epoch_end() {
  if (interval_ == Interval::epoch) check();
}

CallbackState Timer::state() const {
  return {.values = {{"time_elapsed", train::exact(time_elapsed())}}, .tensors = {}};
}
void Timer::load_state(const CallbackState& state) {
  for (const auto& [name, value] : state.values) {
    if (name != "time_elapsed") continue;
    const double seconds = train::read_number("Timer", name, value);
    if (!(seconds >= 0) || std::isinf(seconds))
      fail<ConfigError>("Timer: the state's time_elapsed is \"", value, "\", expected seconds");
    before_ = seconds;
  }
}

}  // namespace levin
