// Measures a run: the time of its phases, the profiler, copies, waits for data and for the device, losses that are no
// numbers.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "levin/train.h"
#include "train/data/loader_advice.h"
#include "train/profiler/batch_watch.h"

namespace levin::train {

class Instruments {
 public:
  Instruments(Trainer::Run& run, const TrainerOptions& options) : run_(run), options_(options) {}

  void begin_fit();        // resets the counts, and reads LEVIN_SYNC_CHECK. Throws ConfigError
  void start_clock();      // of the phases
  void report_times();     // prints the step-time report, also of a run that an exception ended
  void finish_profiler();  // called last, so that the report has teardown. An error is a warning
  // The trainer's own reads from the device: the ledger counts them, the sync budget does not.
  [[nodiscard]] SyncGuard own_waits() {
    return SyncGuard(syncs, sync_check == SyncCheck::off ? SyncCheck::off : SyncCheck::count);
  }
  [[nodiscard]] Profiler* profiler() const { return options_.profiler.get(); }

  // The batches of a loader, measured: `for (Batch& batch : instruments.batches(loader, until))`. The loop ends after a
  // batch for which `until` returns true. The wait for a batch is a phase and a span of the profiler; the copies and
  // waits of its training are watched. A signal during the wait saves the run and throws InterruptedError.
  class Batches;
  [[nodiscard]] Batches batches(data::DataLoader& loader, Function<bool()> until);
  void step_done(const Batch& batch, const Tensor& loss, std::int64_t step);  // step: RunLogs::steps()
  void look_at_loss();                                                        // reads the newest loss from the device

  StepTimes times;
  std::string time_report;  // of the last fit
  BatchWatch watch;
  LossWatch losses;
  SyncLedger syncs;
  SyncCheck sync_check = SyncCheck::count;  // of training batches
  DataWait data_wait;

 private:
  [[nodiscard]] std::int64_t time_apart() const;  // ns of validations and saves
  [[nodiscard]] bool measures_wait() const;
  void report_wait(const data::DataLoader& loader);
  Trainer::Run& run_;
  const TrainerOptions& options_;
};

class Instruments::Batches {
 public:
  Batches(Instruments& instruments, data::DataLoader& loader, Function<bool()> until);
  ~Batches();
  Batches(const Batches&) = delete;
  Batches& operator=(const Batches&) = delete;

  struct End {};
  struct Iterator {
    Batches& of;
    [[nodiscard]] Batch& operator*() const { return of.ahead_ ? of.current_ : **of.at_; }
    Iterator& operator++() {
      of.next();
      return *this;
    }
    [[nodiscard]] bool operator==(End) const { return of.ended_; }
  };
  [[nodiscard]] Iterator begin() { return {*this}; }
  [[nodiscard]] static End end() { return {}; }

 private:
  void start_waiting();
  template <class Next>
  void fetch(const Next& next);
  [[nodiscard]] bool any_rank(bool ended) const;
  void look_ahead();
  void next();

  Instruments& of_;
  data::DataLoader& loader_;
  Function<bool()> until_;
  std::optional<data::DataLoader::Iterator> at_;
  // Of a loader without a length, whose last batch shows only by the wait for the next one: the batch at hand, while
  // at_ stands at the next one, and the error of the wait, which belongs to the next batch.
  const bool ahead_;
  Batch current_{};
  std::exception_ptr next_error_{};
  std::optional<ProfilerScope> fetching_;
  std::optional<SyncGuard> charged_;
  bool begun_ = false, ended_ = false;
  int exceptions_ = std::uncaught_exceptions();  // an exception that ends the loop keeps its phase
};

inline Instruments::Batches Instruments::batches(data::DataLoader& loader, Function<bool()> until) {
  return Batches(*this, loader, std::move(until));
}

}  // namespace levin::train
