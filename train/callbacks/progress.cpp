#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "levin/train.h"

namespace levin {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kRedrawSeconds = 0.1;  // faster is not seen, and each redraw reads metrics from the device

std::string number(const char* format, double x) {
  std::array<char, 48> buffer{};
  const int n = std::snprintf(buffer.data(), buffer.size(), format, x);
  return std::string(buffer.data(), static_cast<std::size_t>(n));
}

std::string minutes(double seconds) {
  const auto s = static_cast<std::int64_t>(std::min(seconds, 3.6e8));
  std::array<char, 48> buffer{};
  const int n =
      s >= 3600 ? std::snprintf(buffer.data(), buffer.size(), "%lld:%02lld:%02lld", static_cast<long long>(s / 3600),
                                static_cast<long long>(s / 60 % 60), static_cast<long long>(s % 60))
                : std::snprintf(buffer.data(), buffer.size(), "%02lld:%02lld", static_cast<long long>(s / 60),
                                static_cast<long long>(s % 60));
  return std::string(buffer.data(), static_cast<std::size_t>(n));
}

std::string shown(const Metrics& metrics) {
  std::string out;
  for (const auto& [name, value] : metrics) out += ", " + name + "=" + number("%-5.3g", value);
  return out;
}

}  // namespace

struct ProgressBar::Drawing {
  bool terminal = isatty(STDERR_FILENO) == 1;
  Clock::time_point epoch_start, last_draw;
  std::int64_t first_batch = 0;  // of this run in this epoch
  bool open = false;             // a bar without a line end is on the screen

  double seconds() const { return std::chrono::duration<double>(Clock::now() - epoch_start).count(); }
  void end_line() {
    if (open) std::fputc('\n', stderr);
    open = false;
  }
};

ProgressBar::ProgressBar() : drawing_(std::make_unique<Drawing>()) {}
ProgressBar::~ProgressBar() = default;

void ProgressBar::on_train_epoch_start() {
  drawing_->epoch_start = Clock::now();
  drawing_->last_draw = {};
  drawing_->first_batch = trainer().batch_idx() + 1;
}

void ProgressBar::on_train_batch_end(const StepInfo& info) {
  Drawing& d = *drawing_;
  const Trainer& t = trainer();
  const std::int64_t total = t.batches_per_epoch(), done = info.batch_idx + 1;
  const std::int64_t every = trainer().options().log_every_n_steps;
  if (!d.terminal) {
    if (every == 0 || info.global_step % every != 0) return;
    const double rate = static_cast<double>(done - d.first_batch) / std::max(d.seconds(), 1e-9);
    std::fprintf(stderr, "epoch %lld: %lld/%lld batches, %.1f batches/s%s\n", static_cast<long long>(info.epoch),
                 static_cast<long long>(done), static_cast<long long>(total), rate,
                 shown(trainer().progress_metrics()).c_str());
    return;
  }
  const Clock::time_point now = Clock::now();
  if (done != total && std::chrono::duration<double>(now - d.last_draw).count() < kRedrawSeconds) return;
  d.last_draw = now;
  const double elapsed = d.seconds(), rate = static_cast<double>(done - d.first_batch) / std::max(elapsed, 1e-9);
  constexpr std::int64_t kCells = 24;
  const std::int64_t filled = total > 0 ? kCells * done / total : 0;
  std::string bar;
  for (std::int64_t i = 0; i < kCells; ++i) bar += i < filled ? '#' : '.';
  std::fprintf(stderr, "\r\033[KEpoch %lld: [%s] %lld/%lld [%s<%s, %.1f batches/s%s]",
               static_cast<long long>(info.epoch), bar.c_str(), static_cast<long long>(done),
               static_cast<long long>(total), minutes(elapsed).c_str(),
               minutes(static_cast<double>(total - done) / std::max(rate, 1e-9)).c_str(), rate,
               shown(trainer().progress_metrics()).c_str());
  std::fflush(stderr);
  d.open = true;
}

void ProgressBar::on_train_epoch_end() {
  Drawing& d = *drawing_;
  d.end_line();
  if (d.terminal) return;
  std::string means;
  for (const auto& [name, value] : trainer().callback_metrics()) {
    if (!name.ends_with("_step") && !name.ends_with("_epoch")) means += ", " + name + "=" + number("%.4g", value);
  }
  std::fprintf(stderr, "epoch %lld done: %lld steps in all, %.1f s%s\n",
               static_cast<long long>(trainer().current_epoch()), static_cast<long long>(trainer().global_step()),
               d.seconds(), means.c_str());
}

void ProgressBar::on_exception(const std::exception&) { drawing_->end_line(); }

}  // namespace levin
