// What a run logs: the values at hand, records of them, and the loggers that write records.
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

  void choose_loggers();
  void start(Stage stage);
  void log_hparams();
  void finish(std::string_view status);
  void give_up(const std::exception& error);  // the first error is the one to report: an error here is a warning

  void begin_fit(bool same_module, std::optional<EpochCut>& cut);
  void begin_batch(const Batch& batch);  // of training
  // What records count: a batch of manual optimization may have any number of optimizer steps.
  [[nodiscard]] std::int64_t steps() const;
  void write_step();                              // after a batch: a record where one is due
  void write_eval_batch();                        // of the loader that is evaluated
  void write(std::int64_t step, Metrics values);  // one record, to history and loggers
  // Ends the epoch of a log: its means, of which `epoch` keeps all. Returns those that records have.
  Metrics take_means(MetricLog& log, const Function<void(const MetricLog::Mean&)>& each = {});

  LogScope scope = LogScope::none;
  BatchWeight weight;                      // of the batch at hand
  int eval_loaders = 1, eval_loader = -1;  // how many the evaluation has, and which it is at; -1: between them
  std::array<std::vector<std::int64_t>, 3> batches_evaluated;  // by Loop and loader, for records of them
  MetricLog train, eval;
  Metrics epoch;  // of finished epochs and evaluations
  std::vector<LogRecord> history;
  std::vector<std::shared_ptr<Logger>> loggers;

 private:
  Trainer::Run& run_;
};

}  // namespace levin::train
