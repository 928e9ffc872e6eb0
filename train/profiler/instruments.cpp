#include "train/profiler/instruments.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string_view>

#include "train/run/run.h"

namespace levin::train {
namespace {

SyncCheck check_of_environment() {
  const char* const text = std::getenv("LEVIN_SYNC_CHECK");
  const std::string_view name = text ? text : "";
  if (name.empty() || name == "count") return SyncCheck::count;
  if (name == "off") return SyncCheck::off;
  if (name == "warn") return SyncCheck::warn;
  if (name == "forbid") return SyncCheck::forbid;
  fail<ConfigError>("fit: LEVIN_SYNC_CHECK is \"", name, "\", expected off, count, warn or forbid");
}

}  // namespace

void Instruments::begin_fit() {
  data_wait = {};
  syncs.clear();
  watch.start();
  losses.start();
  sync_check = options_.sync_budget ? SyncCheck::forbid : check_of_environment();
}
void Instruments::start_clock() {
  times.reset();
  times.start();
}

void Instruments::report_times() {
  times.stop();
  time_report = times.report(run_.device);
  if (options_.enable_progress_bar.value_or(true) && !time_report.empty() && run_.trainer.is_global_zero())
    std::fputs(time_report.c_str(), stderr);
}
void Instruments::finish_profiler() {
  try {
    if (options_.profiler) options_.profiler->finish();
  } catch (const std::exception& e) {
    warn("W-TRAIN-PROFILER", WarningCategory::runtime,
         std::string("fit: the profiler could not write what it measured. ") + e.what(), Repeat::yes);
  }
}

void Instruments::step_done(const Batch& batch, const Tensor& loss, std::int64_t step) {
  watch.step_done(batch);
  if (!run_.trial) losses.batch_done(loss, step);
  times.enter(Phase::hooks);
}
void Instruments::look_at_loss() {
  const SyncGuard own = own_waits();
  losses.look();
}

// ---- Around batches

std::int64_t Instruments::time_apart() const {
  return times.nanoseconds(Phase::validating) + times.nanoseconds(Phase::saving);
}
bool Instruments::measures_wait() const { return data_wait.measures() && !run_.trial; }
void Instruments::report_wait(const data::DataLoader& loader) {
  const std::optional<double> share = data_wait.trained(steady_ns(), time_apart());
  if (share && *share > DataWait::kMuch)
    warn("W-DATA-SLOW", WarningCategory::possible_user,
         "fit: " + text(std::lround(100 * *share)) + " % of the first " + text(DataWait::kBatches) +
             " steps' time was waiting for data, with num_workers=" + text(loader.num_workers()) +
             "; give the loader more workers, or make its samples cheaper",
         Repeat::yes);
}

Instruments::Batches::Batches(Instruments& instruments, data::DataLoader& loader, Function<bool()> until)
    : of_(instruments), loader_(loader), until_(std::move(until)), ahead_(instruments.run_.loaders.looks_ahead()) {
  start_waiting();
  fetch([&] { at_.emplace(loader_.begin()); });
}
Instruments::Batches::~Batches() {
  fetching_.reset();
  charged_.reset();
  at_.reset();  // ends the pass of the loader, in the phase of the batch
  if (std::uncaught_exceptions() == exceptions_) of_.times.enter(Phase::unexplained);
}

void Instruments::Batches::start_waiting() {
  of_.times.enter(Phase::data);
  if (of_.measures_wait()) of_.data_wait.begins(steady_ns(), of_.time_apart());
  fetching_.emplace(of_.profiler(), "fetch_batch");
}

// Ranks train streams in step, so an epoch ends on all ranks with the first whose streams have ended.
bool Instruments::Batches::any_rank(bool ended) const {
  return of_.run_.strategy->vote({.no_data = ended}).no_data != 0;
}

// Takes a batch from the loader, or its end. During the wait no batch is half trained, so after a signal the run can be
// saved.
template <class Next>
void Instruments::Batches::fetch(const Next& next) {
  try {
    next();
  } catch (const InterruptedError&) {
    at_.reset();  // the loader's workers stop before the run is saved
    fetching_.reset();
    of_.run_.check_interrupt();
    throw;
  }
  bool ended = *at_ == loader_.end();
  // With a look ahead the end is agreed there; but the first batch has none before it.
  if (loader_.stream() && (!ahead_ || !std::exchange(begun_, true))) ended = any_rank(ended);
  if (ended) {
    ended_ = true;
    const std::int64_t done = of_.run_.progress.batches_done;
    if (ahead_ || done == 0) of_.run_.loaders.batches = done;  // ahead_: before the first batch
    if (done == 0)                                             // also of streams that declared a size
      warn("W-DATA-EMPTY", WarningCategory::user, "the train_loader's streams gave no batch; was that meant?",
           Repeat::yes);
    return;
  }
  if (ahead_) look_ahead();
  fetching_.reset();
  if (of_.measures_wait()) of_.data_wait.arrived(steady_ns());
  of_.watch.batch_start();
  charged_.emplace(of_.syncs, of_.sync_check, of_.options_.sync_budget.value_or(0));
}

// Takes the batch from the iterator, and moves the iterator to the next one. A number of batches that is not known yet
// is known at the end. Only training loops have such a loader.
void Instruments::Batches::look_ahead() {
  std::swap(current_, **at_);
  std::int64_t& batches = of_.run_.loaders.batches;
  const std::int64_t done = of_.run_.progress.batches_done + 1;
  if (done >= batches) return;  // by a limit
  try {
    ++*at_;
  } catch (...) { next_error_ = std::current_exception(); }
  if (any_rank(!next_error_ && *at_ == loader_.end())) batches = done;
}

void Instruments::Batches::next() {
  of_.watch.batch_done();
  if (of_.measures_wait()) of_.report_wait(loader_);
  (ahead_ ? current_ : **at_).fields.clear();  // their memory serves the next batch
  if (until_()) {
    ended_ = true;
    return;
  }
  of_.run_.check_interrupt();
  start_waiting();
  charged_.reset();
  fetch([&] {
    if (next_error_) std::rethrow_exception(std::exchange(next_error_, nullptr));
    if (!ahead_) ++*at_;
  });
}

}  // namespace levin::train
