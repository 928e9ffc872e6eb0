#include "train/logs/run_logs.h"

#include <utility>

#include "train/run/packed.h"
#include "train/run/run.h"

namespace levin::train {

// ---- Loggers

void RunLogs::choose_loggers() {
  loggers.clear();
  if (run_.options.fast_dev_run > 0) return;
  loggers = run_.options.logger.loggers();
  for (const auto& logger : loggers) {
    if (!logger) fail<ConfigError>("Trainer: logger holds a null pointer; leave it out");
  }
  if (run_.options.logger.by_default())
    loggers.push_back(
        std::make_shared<TensorBoardLogger>(TensorBoardLoggerOptions{.save_dir = run_.options.default_root_dir}));
}
void RunLogs::start(Stage stage) {
  for (const auto& logger : loggers) {
    if (stage == Stage::fit)
      logger->start(steps(), run_.progress.records);
    else
      logger->start_evaluation(steps(), run_.progress.records);
  }
}
void RunLogs::log_hparams() {
  if (!run_.options.enable_autolog_hparams) return;
  const HParams all = run_.borrowed.all_hparams();
  for (const auto& logger : all.empty() ? std::vector<std::shared_ptr<Logger>>{} : loggers)
    logger->log_hparams(to_metadata(all));
}
void RunLogs::finish(std::string_view status) {
  for (const auto& logger : loggers) logger->finalize(status);
}
void RunLogs::give_up(const std::exception& error) {
  const char* const status = dynamic_cast<const InterruptedError*>(&error) ? "interrupted" : "failed";
  for (const auto& logger : loggers) {
    try {
      logger->finalize(status);
    } catch (const std::exception& second) {
      warn("W-TRAIN-LOGGER", WarningCategory::runtime,
           std::string("a logger's finalize threw as well: ") + second.what(), Repeat::yes);
    }
  }
}

// ---- Records

void RunLogs::begin_fit(bool same_module, std::optional<EpochCut>& cut) {
  if (!same_module) {
    train.reset();
    epoch.clear();
  } else if (cut) {
    train.back_to(cut->log);
  }
  cut.reset();
}

void RunLogs::begin_batch(const Batch& batch) {
  scope = LogScope::train_batch;
  weight = weight_of(batch);
}

std::int64_t RunLogs::steps() const {
  return run_.borrowed.manual ? run_.progress.total_batches : run_.progress.global_step;
}

void RunLogs::write_step() {
  if (run_.window.is_open()) return;
  const std::int64_t every = run_.options.log_every_n_steps;
  if (every <= 0 || (steps() % every != 0 && !run_.stop.requested)) return;
  const SyncGuard own = run_.instruments.own_waits();
  const PhaseScope phase(run_.instruments.times, Phase::logging);
  MetricLog::Step step = train.take_step(run_.trial ? Tensor() : run_.instruments.losses.kept());
  // A stop that this rank alone asked for is due here alone, and others would not take part.
  if (steps() % every == 0) synchronize(step);
  if (step.values.empty()) return;
  if (step.beside) run_.instruments.losses.read(*step.beside);
  write(steps() - 1, std::move(step.values));
}

void RunLogs::write_eval_batch() {
  if (run_.evaluation.current_loop == Loop::predict || run_.evaluation.sanity) return;
  const SyncGuard own = run_.instruments.own_waits();
  std::vector<std::int64_t>& seen = batches_evaluated[static_cast<std::size_t>(run_.evaluation.current_loop)];
  const auto loader = static_cast<std::size_t>(eval_loader);
  if (seen.size() <= loader) seen.resize(loader + 1);
  const std::int64_t at = seen[loader]++;
  if (Metrics values = eval.take_step().values; !values.empty()) write(at, std::move(values));
}

void RunLogs::write(std::int64_t step, Metrics values) {
  if (run_.trial) return;
  history.push_back({.step = step, .epoch = run_.progress.epoch, .values = std::move(values)});
  ++run_.progress.records;
  for (const auto& logger : loggers) logger->log_metrics(history.back());
}

Exchange RunLogs::ranks() const {
  // Ranks that read the same batches log the same.
  const DataShare share = run_.strategy->share();
  if (run_.strategy->ranks().size == 1 || share.replicas * share.shards == 1) return {};
  return [strategy = run_.strategy](std::string_view mine) { return strategy->gather(mine); };
}

// Values with sync_dist become their mean over ranks.
void RunLogs::synchronize(MetricLog::Step& step) const {
  const Exchange gather = ranks();
  if (!gather || !train.synchronizes()) return;
  Packed mine;
  for (const auto& [name, value] : step.synced) mine.add(name).add(value);
  const std::vector<std::string> all = gather(mine.bytes());
  for (auto& [name, sum] : step.synced) sum = 0;
  const auto named = [](const Metrics& values) {
    std::string names;
    for (const auto& [name, value] : values) names += (names.empty() ? "" : ", ") + name;
    return names.empty() ? std::string("nothing") : names;
  };
  for (std::size_t r = 0; r < all.size(); ++r) {
    Metrics theirs;
    for (Unpacked in(all[r]); !in.empty();) {
      auto name = in.take<std::string>();
      theirs.emplace_back(std::move(name), in.take<double>());
    }
    bool same = theirs.size() == step.synced.size();
    for (std::size_t i = 0; same && i < theirs.size(); ++i) {
      same = theirs[i].first == step.synced[i].first;
      step.synced[i].second += theirs[i].second / static_cast<double>(all.size());
    }
    if (!same)
      fail<ConfigError>("log: with sync_dist rank ", r, " logged ", named(theirs), " in this step, and rank ",
                        run_.strategy->ranks().rank, " ", named(step.synced), "; log the same names in the same order");
  }
  for (const auto& [name, mean] : step.synced) set_metric(step.values, name, mean);
}

Metrics RunLogs::monitored() {
  const Exchange gather = ranks();
  if (!gather) return run_.trainer.callback_metrics();
  const SyncGuard own = run_.instruments.own_waits();
  Metrics mine = epoch;
  train.newest(mine, gather);
  eval.newest(mine, gather);
  Packed of_zero;
  for (const auto& [name, value] : mine) of_zero.add(name).add(value);
  Metrics all;
  const std::string bytes = run_.strategy->from_rank_zero(of_zero.bytes());
  for (Unpacked in(bytes); !in.empty();) {
    auto name = in.take<std::string>();
    all.emplace_back(std::move(name), in.take<double>());
  }
  return all;
}

Metrics RunLogs::take_means(MetricLog& log, const Function<void(const MetricLog::Mean&)>& each) {
  Metrics recorded;
  for (const MetricLog::Mean& mean : log.take_epoch(ranks())) {
    set_metric(epoch, mean.name, mean.value);
    if (mean.logger) recorded.emplace_back(mean.name, mean.value);
    if (each) each(mean);
  }
  return recorded;
}

}  // namespace levin::train
