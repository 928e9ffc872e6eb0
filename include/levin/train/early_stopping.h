// EarlyStopping: ends a run when a metric has stopped improving.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "levin/train/hooks.h"
#include "levin/train/records.h"

namespace levin {

struct EarlyStoppingOptions {
  std::string monitor{};      // the name of a logged metric; required
  double min_delta = 0;       // a gain of this size or less does not count
  std::int64_t patience = 3;  // checks in a row without a gain that end the run; 0 is as 1
  Mode mode = Mode::min;
  bool strict = true;        // an unknown metric is a ConfigError; false: no check, and a warning if verbose
  bool check_finite = true;  // NaN or infinity end the run
  std::optional<double> stopping_threshold{};    // a better value ends the run
  std::optional<double> divergence_threshold{};  // a worse value ends the run
  // True: a check at the end of each training epoch; false: of each validation. Unset:
  // Trainer::validates_once_an_epoch().
  std::optional<bool> check_on_train_epoch_end{};
  bool verbose = false;  // prints an info line for a gain after checks without one, and at the end
};

// Checks `monitor`. The first rule that fits decides:
//   1. NaN or infinity, with check_finite    the run ends
//   2. better than stopping_threshold        the run ends
//   3. worse than divergence_threshold       the run ends
//   4. a gain                                it is the new best, and the count is 0
//   5. else                                  the count grows, and at `patience` the run ends
// A gain is value + min_delta < best for Mode::min, value - min_delta > best for Mode::max. The run ends by
// Trainer::request_stop(), which min_epochs and min_steps delay. The count is of checks, not of epochs.
// There is no check in the sanity check, with fast_dev_run and outside of fit. Of several ranks the metric is that of
// all samples, also in the middle of an epoch, so that all ranks stop.
// Checkpoints keep count and best by monitor and mode, so a run may have callbacks for several metrics.
class LEVIN_API EarlyStopping : public Callback {
 public:
  enum class Reason : std::uint8_t {
    not_stopped,
    non_finite_metric,
    stopping_threshold,
    divergence_threshold,
    patience_exhausted
  };
  // Throws ConfigError for an empty monitor, and for min_delta or patience below 0.
  explicit EarlyStopping(EarlyStoppingOptions options);

  [[nodiscard]] double best_score() const { return best_; }  // +-infinity before the first gain
  [[nodiscard]] std::int64_t wait_count() const { return wait_; }
  [[nodiscard]] std::int64_t patience() const { return options_.patience; }
  [[nodiscard]] std::int64_t stopped_epoch() const { return stopped_epoch_; }  // index; 0 also when not stopped
  [[nodiscard]] Reason stopping_reason() const { return reason_; }
  [[nodiscard]] const std::string& stopping_message() const { return message_; }  // empty: not stopped

  void on_validation_end() override;
  void on_train_epoch_end() override;
  [[nodiscard]] bool after_module() const override { return true; }
  [[nodiscard]] std::string state_key() const override;
  [[nodiscard]] CallbackState state() const override;
  // A patience in the file replaces that of the options, with a warning if it differs.
  void load_state(const CallbackState& state) override;

 private:
  [[nodiscard]] bool at_epoch_end() const;
  void check();
  [[nodiscard]] Reason judge(double value);
  EarlyStoppingOptions options_;
  double best_;
  std::int64_t wait_ = 0, stopped_epoch_ = 0;
  Reason reason_ = Reason::not_stopped;
  std::string message_;
};

}  // namespace levin
