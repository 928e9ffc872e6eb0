// The limits of a run, and requests to stop.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "levin/train.h"
#include "train/run/progress.h"

namespace levin::train {

// Knows when the training ends: at max_epochs or max_steps, or after a request once min_epochs and min_steps are met.
class Stopping {
 public:
  using Callbacks = std::vector<std::shared_ptr<Callback>>;
  Stopping(const TrainerOptions& options, const Progress& progress, const Callbacks& callbacks)
      : options_(options), progress_(progress), callbacks_(callbacks) {}

  void start_fit();                               // forgets the requests of the fit before
  void request(KeepStop keep, std::string why);   // `why`: for reports; it names the caller
  [[nodiscard]] std::int64_t max_epochs() const;  // -1: no limit; by default 1000 without max_steps and timer
  [[nodiscard]] std::int64_t min_epochs() const;  // by default 1 with min_steps, else 0
  [[nodiscard]] bool max_steps_reached() const {
    return options_.max_steps >= 0 && progress_.global_step >= options_.max_steps;
  }
  [[nodiscard]] bool max_epochs_reached() const { return max_epochs() >= 0 && progress_.epoch >= max_epochs(); }
  [[nodiscard]] bool granted() const {  // whether a stop was requested and the minima are met
    return requested && progress_.global_step >= options_.min_steps.value_or(0) && progress_.epoch >= min_epochs();
  }
  void report_wait();  // reports once a fit that a request waits for the minima

  bool requested = false;
  bool kept = false;  // checkpoints keep the request
  bool wait_reported = false;
  std::int64_t requested_at = 0;  // global_step at the first request
  std::string by;                 // the newest request's origin and reason
  int signal = 0;                 // the signal that interrupted the run; 0: none
  int agreed_signal = 0;          // the signal that all ranks act on; 0: none

 private:
  const TrainerOptions& options_;
  const Progress& progress_;
  const Callbacks& callbacks_;
};

}  // namespace levin::train
