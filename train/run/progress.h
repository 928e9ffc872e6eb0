// The counters and the position of a run.
#pragma once

#include <cstdint>

#include "levin/data.h"
#include "train/run/resume_point.h"

namespace levin::train {

// A checkpoint keeps this value; a resume and the end of a tuner's trial restore it as a whole. A new counter is a
// member here and a line of each_counter.
struct Progress {
  std::int64_t epoch = 0;           // complete epochs
  std::int64_t forward_epochs = 0;  // complete epochs that trained nothing
  std::int64_t batches_done = 0;    // of the open epoch
  std::int64_t batches_absent = 0;  // positions of the open epoch without a batch: Batch::absent
  data::LoaderState position{};     // which batches: a loader without in_order gives them as they finish
  std::int64_t global_step = 0;     // optimizer steps
  std::int64_t total_batches = 0;
  std::int64_t skipped_batches = 0;  // drawn and not trained, because a hook returned skip_epoch
  std::int64_t records = 0;          // written to loggers and history
  std::int64_t validated_at = -1;    // total_batches at the last validation; -1: none
  Due due = Due::nothing;            // the next thing to do after a batch or at the end of an epoch
  bool closing = false;  // the epoch ends before its last batch; its schedules have moved, its end is still to come

  void start_epoch(std::int64_t e) {
    epoch = e;
    batches_done = batches_absent = 0;
    position = {.epoch = e};
    due = Due::nothing;
    closing = false;
  }

  // Calls f(name in files, counter, least value, whether every file has it) in the order of files, where global_step
  // has another place.
  template <class Self, class F>
  static void each_counter(Self& p, F&& f) {
    f("epochs_completed", p.epoch, 0, true);
    f("forward_epochs", p.forward_epochs, 0, false);
    f("batches_in_epoch", p.batches_done, 0, true);
    f("batches_absent", p.batches_absent, 0, false);
    f("total_batches", p.total_batches, 0, true);
    f("skipped_batches", p.skipped_batches, 0, false);
    f("records", p.records, 0, true);
    f("validated_at", p.validated_at, -1, true);
  }
};

}  // namespace levin::train
