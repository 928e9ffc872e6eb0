// EarlyStopping: ends a run once a metric says that going on is of no use.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "levin/train/hooks.h"
#include "levin/train/records.h"

namespace levin {

struct EarlyStoppingOptions {
  std::string monitor{};      // the name of a logged metric; required
  double min_delta = 0;       // a gain of this size or less is none
  std::int64_t patience = 3;  // checks without a gain that end the run; 0 is as 1
  Mode mode = Mode::min;
  bool strict = true;        // a metric that is not known is a ConfigError; false: no check, a warning when verbose
  bool check_finite = true;  // NaN or infinity end the run
  std::optional<double> stopping_threshold{};    // what is better ends the run
  std::optional<double> divergence_threshold{};  // what is worse ends the run
  // Whether the checks are made at the end of training epochs or of validations. Unset: as Trainer::validates_once_an_epoch().
  std::optional<bool> check_on_train_epoch_end{};
  bool verbose = false;  // tells of a gain behind checks without one, and of the end
};

// One check looks at `monitor`, in this order: not finite; better than stopping_threshold; worse than divergence_threshold; a
// gain (min: value + min_delta < best, max: value - min_delta > best), which resets the count; else the count grows, and at `patience`
// the run ends. It ends by Trainer::request_stop(), so minima are kept. Checks are counted, not epochs. There are none in the
// sanity check, in a dev run and outside of fit.
//
// Counts and best are kept in checkpoints, by monitor and mode: callbacks for several metrics go together.
class LEVIN_API EarlyStopping : public Callback {
 public:
  enum class Reason : std::uint8_t {
    not_stopped,
    non_finite_metric,
    stopping_threshold,
    divergence_threshold,
    patience_exhausted
  };
  explicit EarlyStopping(EarlyStoppingOptions options);  // throws ConfigError

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
  // The file's patience counts, with a warning where it is another one.
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
