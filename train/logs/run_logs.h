// The logs of a run: logged values, the records made of them, and the loggers that write records.
#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "levin/train.h"
#include "train/logs/metric_log.h"
#include "train/run/resume_point.h"

namespace levin::train {

class RunLogs {
 public:
  explicit RunLogs(Trainer::Run& run) : run_(run) {}

  // ---- Loggers
  void choose_loggers();                 // by the options. Throws ConfigError for a null pointer
  void start(Stage stage);               // before the records of a stage
  void log_hparams();                    // of data module and module, if enable_autolog_hparams is on
  void finish(std::string_view status);  // at the end of a stage
  // At the end of a stage that failed by `error`, which is the one to report: an error of a logger is a warning.
  void give_up(const std::exception& error);

  // ---- Records
  // Forgets what another module logged. Of the same module it drops what was logged after a `cut`, which is reset.
  void begin_fit(bool same_module, std::optional<EpochCut>& cut);
  void begin_batch(const Batch& batch);  // of training
  // The step that records count: batches with manual optimization, whose batches have any number of optimizer steps,
  // else optimizer steps.
  [[nodiscard]] std::int64_t steps() const;
  void write_step();                              // after a training batch: writes a record if one is due
  void write_eval_batch();                        // after a batch of an evaluation
  void write(std::int64_t step, Metrics values);  // writes one record to history and loggers
  // Ends the epoch of a log. `epoch` keeps all its means, and `each` is called with every one. Returns the means that
  // go into records.
  Metrics take_means(MetricLog& log, const Function<void(const MetricLog::Mean&)>& each = {});
  // Trainer::callback_metrics with the values of all ranks, the same on each. Every rank calls it.
  [[nodiscard]] Metrics monitored();
  // What the ranks have of a log, together; empty for one rank.
  [[nodiscard]] Exchange ranks() const;

  LogScope scope = LogScope::none;  // decides whether log() may be called
  BatchWeight weight;               // of the current batch
  // The number of loaders of the current evaluation, and the index of the one that is read; -1: none.
  int eval_loaders = 1, eval_loader = -1;
  std::array<std::vector<std::int64_t>, 3> batches_evaluated;  // by Loop and loader: the step of their records
  MetricLog train, eval;
  Metrics epoch;                   // means of finished epochs and evaluations
  std::vector<LogRecord> history;  // all records
  std::vector<std::shared_ptr<Logger>> loggers;

 private:
  void synchronize(MetricLog::Step& step) const;
  Trainer::Run& run_;
};

}  // namespace levin::train
