// Where a run stands.
#pragma once

#include <cstdint>

#include "levin/data.h"
#include "train/run/resume_point.h"

namespace levin::train {

// One value: a checkpoint keeps it, a resume and the end of a tuner's trial put it back whole. A further counter is a
// member here and a line in each_counter.
struct Progress {
  std::int64_t epoch = 0;           // complete epochs
  std::int64_t forward_epochs = 0;  // of them, those in which nothing was trained
  std::int64_t batches_done = 0;    // of the epoch that is open
  data::LoaderState position{};     // which ones: a loader without in_order gives them as they finish
  std::int64_t global_step = 0;     // optimizer steps
  std::int64_t total_batches = 0;
  std::int64_t skipped_batches = 0;  // by skip_epoch: drawn and not trained
  std::int64_t records = 0;          // of steps, written to loggers and history
  std::int64_t validated_at = -1;    // total_batches when a validation last ended
  Due due = Due::nothing;
  bool closing = false;  // the epoch ends before its last batch: its schedules have moved, its end has not come

  void start_epoch(std::int64_t e) {
    epoch = e;
    batches_done = 0;
    position = {.epoch = e};
    due = Due::nothing;
    closing = false;
  }

  // f(name in files, the counter, the least that it can be, whether every file has it), in the order of files, which
  // have global_step above them.
  template <class Self, class F>
  static void each_counter(Self& p, F&& f) {
    f("epochs_completed", p.epoch, 0, true);
    f("forward_epochs", p.forward_epochs, 0, false);
    f("batches_in_epoch", p.batches_done, 0, true);
    f("total_batches", p.total_batches, 0, true);
    f("skipped_batches", p.skipped_batches, 0, false);
    f("records", p.records, 0, true);
    f("validated_at", p.validated_at, -1, true);
  }
};

}  // namespace levin::train
