#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <limits>
#include <optional>
#include <vector>

#include "levin/train.h"
#include "tensor/text/number_text.h"
#include "tensor/text/screen.h"

namespace levin {
namespace {

constexpr std::int64_t kRedrawNs = 100'000'000;  // faster is not seen, and each redraw reads metrics from the device

template <class... A>
std::string printed(const char* format, A... values) {
  std::array<char, 64> buffer{};
  const int n = std::snprintf(buffer.data(), buffer.size(), format, values...);
  return std::string(buffer.data(), std::min(static_cast<std::size_t>(n), buffer.size() - 1));
}

// Three significant digits, padded to five characters: "0.250", "12.00", "123.0"; "1.2e-5".
std::string number(double x) {
  std::string out = detail::general(x, 3);
  for (const char* exponent : {"e+0", "e-0"}) {
    if (const std::size_t at = out.find(exponent); at != std::string::npos) out.erase(at + 2, 1);
  }
  if (out.find('e') != std::string::npos || !std::isfinite(x)) return out;
  if (out.find('.') == std::string::npos && out.size() < 5) out += '.';
  while (out.size() < 5) out += '0';
  return out;
}

std::string minutes(double seconds) {
  const auto s = static_cast<long long>(std::clamp(seconds, 0.0, 3.6e8));
  return s >= 3600 ? printed("%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60)
                   : printed("%02lld:%02lld", s / 60, s % 60);
}

// What a bar shows in brackets; a narrow terminal drops the first ones here first.
struct Told {
  std::string version{}, rate{}, times{}, metrics{};
  [[nodiscard]] std::string text() const {
    std::string out;
    for (const std::string* part : {&times, &rate, &version, &metrics}) {
      if (!part->empty()) out += (out.empty() ? "" : ", ") + *part;
    }
    return " [" + out + "]";
  }
};

std::string shown(const Metrics& metrics) {
  std::string out;
  for (const auto& [name, value] : metrics) out += (out.empty() ? "" : ", ") + name + "=" + number(value);
  return out;
}

// A loader of unknown length has no total.
std::optional<std::int64_t> known(std::int64_t batches) {
  return batches < 0 || batches == std::numeric_limits<std::int64_t>::max() ? std::nullopt : std::optional(batches);
}

// One bar: batches done, and since when.
struct Bar {
  std::string title;
  std::int64_t started = 0, last_draw = -kRedrawNs;
  std::int64_t first = 0, done = 0;  // first: where a run resumes in an epoch
  std::optional<std::int64_t> total;

  [[nodiscard]] double seconds(std::int64_t now) const { return static_cast<double>(now - started) / 1e9; }
  [[nodiscard]] double rate(std::int64_t now) const {
    return static_cast<double>(done - first) / std::max(seconds(now), 1e-9);
  }
  [[nodiscard]] bool due(std::int64_t every, std::int64_t now) const {
    if (total && done == *total) return true;
    return done % every == 0 && now - last_draw >= kRedrawNs;
  }
  // At most `width` characters, because a line that the terminal breaks cannot be overwritten.
  [[nodiscard]] std::string line(std::int64_t now, Told told, std::size_t width) const {
    constexpr std::size_t kCells = 24, kFewest = 4, kBrackets = 3;
    const double per_second = rate(now);
    const std::string count = std::to_string(done) + (total ? "/" + std::to_string(*total) : "");
    told.rate = detail::fixed(per_second, 1) + " batches/s";
    told.times = minutes(seconds(now));
    if (total) told.times += "<" + minutes(static_cast<double>(*total - done) / std::max(per_second, 1e-9));
    const auto used = [&] { return title.size() + 2 + count.size() + told.text().size(); };
    for (std::string* part : {&told.version, &told.rate, &told.times}) {
      if (used() > width) part->clear();
    }
    const std::size_t room = width - std::min(width, used());
    std::string out = title + ": ";
    if (total && room >= kFewest + kBrackets) {
      const std::size_t cells = std::min(kCells, room - kBrackets);
      const auto filled = static_cast<std::size_t>(
          *total > 0 ? static_cast<double>(cells) * static_cast<double>(done) / static_cast<double>(*total) : 0.0);
      out += "[" + std::string(std::min(filled, cells), '#') + std::string(cells - std::min(filled, cells), '.') + "] ";
    }
    return (out + count + told.text()).substr(0, width);
  }
};

}  // namespace

struct ProgressBar::Drawing final : detail::BottomLine {
  ProgressBarOptions options;
  bool terminal = false;
  std::optional<Bar> main, below;  // of training; of an evaluation, below it
  Metrics metrics;                 // when they were last read
  std::int64_t fetched = -kRedrawNs;
  std::int64_t evaluated_at = 0;      // the end of the last batch of an evaluation, or its start
  std::string main_line, below_line;  // on the screen
  std::int64_t recorded = 0;          // record_step() of the last line without a terminal, or of the epoch's start
  bool main_open = false;             // main_line is on the screen, without a line end
  bool below_open = false;            // likewise below_line

  void write(std::string_view text) const {
    if (options.write) return options.write(text);
    std::fwrite(text.data(), 1, text.size(), stderr);
    std::fflush(stderr);
  }
  [[nodiscard]] std::int64_t now() const { return options.clock(); }
  void begin_evaluation() {
    below.reset();
    evaluated_at = now();
  }
  [[nodiscard]] std::size_t width() const {
    constexpr std::size_t kNoLimit = 4096;
    if (options.columns) return static_cast<std::size_t>(*options.columns) - 1;
    winsize size{};
    if (options.write || ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col < 2) return kNoLimit;
    return size.ws_col - 1U;
  }
  // Removes both lines; the cursor is then where the first one began.
  void lift() override {
    if (below_open) write(main_open ? "\r\033[K\033[A" : "");
    if (main_open || below_open) write("\r\033[K");
  }
  void put_back() override {
    if (main_open) write(main_line);
    if (below_open) write((main_open ? "\n\033[K" : "\r\033[K") + below_line);
  }
  void start(std::optional<Bar>& bar, std::string title, std::int64_t first, std::optional<std::int64_t> total) {
    bar = Bar{.title = std::move(title), .started = now(), .first = first, .done = first, .total = total};
  }
  void draw_main(Told told) {
    const detail::ScreenLock lock;
    main_line = main->line(now(), std::move(told), width());
    main->last_draw = now();
    write("\r\033[K" + main_line);
    main_open = true;
    shown();
  }
  void draw_below() {
    const detail::ScreenLock lock;
    below_line = below->line(now(), {}, width());
    below->last_draw = now();
    write((below_open || !main_open ? "\r\033[K" : "\n\033[K") + below_line);
    below_open = true;
    shown();
  }
  // The cursor is after the main line again.
  void clear_below() {
    const detail::ScreenLock lock;
    if (below_open) write(main_open ? "\r\033[K\033[A\r\033[" + std::to_string(main_line.size()) + "C" : "\r\033[K");
    below_open = false;
    below.reset();
    if (!main_open) hidden();
  }
  void end_lines() {
    const detail::ScreenLock lock;
    if (main_open || below_open) write("\n");
    main_open = below_open = false;
    hidden();
  }
  void evaluated(const char* title, const StepInfo& info, std::int64_t batches) {
    if (!terminal || options.refresh_rate == 0) return;
    if (!below || info.batch_idx == 0) {
      start(below, std::string(title) + " DataLoader " + std::to_string(info.dataloader_idx), 0, known(batches));
      below->started = evaluated_at;
    }
    evaluated_at = now();
    below->done = info.batch_idx + 1;
    if (below->due(options.refresh_rate, now())) draw_below();
  }
};

ProgressBar::ProgressBar(ProgressBarOptions options) : drawing_(std::make_unique<Drawing>()) {
  if (options.refresh_rate < 0)
    fail<ConfigError>("ProgressBar: refresh_rate is ", options.refresh_rate,
                      ", expected 0 (off) or a count of batches");
  if (options.columns && *options.columns < 2)
    fail<ConfigError>("ProgressBar: columns is ", *options.columns, ", expected 2 or more");
  drawing_->terminal = options.terminal.value_or(isatty(STDERR_FILENO) == 1);
  drawing_->options = std::move(options);
}
ProgressBar::~ProgressBar() = default;

bool ProgressBar::print_line(std::string_view line) {
  print(line);
  return true;
}
void ProgressBar::print(std::string_view line) {
  Drawing& d = *drawing_;
  const std::string text = std::string(line) + "\n";
  if (!d.options.write) return detail::print_above(stdout, text);
  const detail::ScreenLock lock;
  d.lift();
  d.write(text);
  d.put_back();
}

void ProgressBar::on_train_epoch_start() {
  Drawing& d = *drawing_;
  const Trainer& t = trainer();
  const TrainerOptions& o = trainer().options();
  const std::int64_t first = t.batch_idx() + 1;
  std::optional<std::int64_t> total = known(t.batches_per_epoch());
  if (t.max_epochs() < 0 && o.max_steps > 0) {  // the rest of the run may be less than an epoch
    const std::int64_t left = first + (o.max_steps - t.global_step()) * o.accumulate_grad_batches;
    total = total ? std::min(*total, left) : left;
  }
  d.start(d.main, printed("Epoch %lld", static_cast<long long>(t.current_epoch())), first, total);
  d.recorded = t.record_step();
}

void ProgressBar::on_train_batch_end(const StepInfo& info) {
  Drawing& d = *drawing_;
  if (!d.main || d.options.refresh_rate == 0) return;
  d.main->done = info.batch_idx + 1;
  if (!d.terminal) {
    const std::int64_t every = trainer().options().log_every_n_steps, step = trainer().record_step();
    if (every == 0 || step % every != 0 || step == d.recorded) return;
    d.recorded = step;
    const std::string metrics = shown(trainer().progress_metrics());
    const std::string of = d.main->total ? "/" + std::to_string(*d.main->total) : "";
    d.write(printed("epoch %lld: ", static_cast<long long>(info.epoch)) + std::to_string(d.main->done) + of +
            " batches, " + detail::fixed(d.main->rate(d.now()), 1) + " batches/s" +
            (metrics.empty() ? "" : ", " + metrics) + "\n");
    return;
  }
  if (!d.main->due(d.options.refresh_rate, d.now())) return;
  if (d.now() - d.fetched >= kRedrawNs) {
    d.fetched = d.now();
    d.metrics = trainer().progress_metrics();
  }
  std::string version = trainer().loggers().empty() ? std::string() : trainer().loggers().front()->version();
  if (!std::all_of(version.begin(), version.end(), [](unsigned char c) { return std::isdigit(c) != 0; }))
    version = version.substr(version.size() - std::min<std::size_t>(4, version.size()));
  d.draw_main({.version = version.empty() ? "" : "v_num=" + version, .metrics = shown(d.metrics)});
}

void ProgressBar::on_train_epoch_end() {
  Drawing& d = *drawing_;
  d.end_lines();
  if (d.terminal || d.options.refresh_rate == 0 || !d.main) return;
  std::string means;
  for (const auto& [name, value] : trainer().callback_metrics()) {
    if (!name.ends_with("_step") && !name.ends_with("_epoch")) means += ", " + name + "=" + detail::general(value, 4);
  }
  d.write(printed("epoch %lld done: ", static_cast<long long>(trainer().current_epoch())) +
          std::to_string(trainer().global_step()) + " steps in all, " + detail::fixed(d.main->seconds(d.now()), 1) +
          " s" + means + "\n");
}

void ProgressBar::on_sanity_check_start() { drawing_->main.reset(); }
void ProgressBar::on_validation_start() { drawing_->begin_evaluation(); }
void ProgressBar::on_test_start() { drawing_->begin_evaluation(); }
void ProgressBar::on_predict_start() { drawing_->begin_evaluation(); }
void ProgressBar::on_validation_batch_end(const StepInfo& info) {
  drawing_->evaluated(trainer().sanity_checking() ? "Sanity Checking" : "Validation", info,
                      trainer().evaluation_batches());
}
void ProgressBar::on_test_batch_end(const StepInfo& info) {
  drawing_->evaluated("Testing", info, trainer().evaluation_batches());
}
void ProgressBar::on_predict_batch_end(const StepInfo& info) {
  drawing_->evaluated("Predicting", info, trainer().evaluation_batches());
}
// In a fit the bar was below that of the training; alone it stays on the screen.
void ProgressBar::on_validation_end() {
  if (drawing_->main_open || trainer().sanity_checking())
    drawing_->clear_below();
  else
    drawing_->end_lines();
}
void ProgressBar::on_test_end() { on_validation_end(); }
void ProgressBar::on_predict_end() { on_validation_end(); }

void ProgressBar::on_exception(const std::exception&) { drawing_->end_lines(); }

}  // namespace levin
