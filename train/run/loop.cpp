// The loop: epochs, batches, what follows a batch and what follows an epoch. Reads top to bottom.
#include <chrono>
#include <cmath>

#include "levin/autograd.h"
#include "tensor/batch_error.h"
#include "train/checkpoint/content.h"
#include "train/run/run.h"

namespace levin {

using train::Restore;
using Interval = SchedulerConfig::Interval;

double train::steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool Trainer::Run::overfits() const { return options.overfit_batches && !options.overfit_batches->is_zero(); }
bool Trainer::Run::max_steps_reached() const { return options.max_steps >= 0 && global_step >= options.max_steps; }
bool Trainer::Run::stop_granted() const {
  return stop && global_step >= options.min_steps.value_or(0) && epoch >= min_epochs();
}
bool Trainer::Run::limits_reached() const {
  return max_steps_reached() || (max_epochs() >= 0 && epoch >= max_epochs()) || (!window_is_open() && stop_granted());
}
bool Trainer::Run::done() const { return batches == 0 || limits_reached(); }

void Trainer::Run::train_epochs() {
  const Restore told(training, true);
  {
    const Restore logging(scope, train::LogScope::train_epoch);
    call(train::hooks::on_train_start);
  }
  // What a file was written in the middle of is ended, whatever the limits.
  const auto is_open = [&] { return batches > 0 && (due != Due::nothing || closing); };
  while (!done() || is_open()) {
    check_interrupt();
    train_epoch();
  }
  if (!trial && !weighs_exactly()) loss_watch.end();  // a batch of no weight has no loss
  check_interrupt();                                  // of the last batch, or of what followed it
  training = false;
  call(train::hooks::on_train_end);
}

// From the batch where the last run was cut, else from the first. The epoch's order is a function of its index alone.
void Trainer::Run::train_epoch() {
  bool skipped = false;
  if (!trial) check_late_options();
  reload_train();
  scope = train::LogScope::train_epoch;
  {
    const PhaseScope hooks(times, Phase::hooks);
    call(train::hooks::on_train_epoch_start);
  }
  if (due != Due::nothing) finish_batch();
  const auto ends = [&] {
    return batches_done >= batches || max_steps_reached() || closing || (!window_is_open() && stop_granted());
  };
  if (!ends()) {
    position.epoch = epoch;
    data::LoaderState from = position;
    from.in_sequence = overfits();
    train_loader->load_state(from);
    const auto measures = [&] { return data_wait.measures() && !trial; };
    times.enter(Phase::data);
    if (measures()) data_wait.begins(steady_ns(), time_apart());
    std::optional<ProfilerScope> fetching(std::in_place, options.profiler.get(), "fetch_batch");
    try {
      for (Batch& batch : *train_loader) {
        fetching.reset();
        if (measures()) data_wait.arrived(steady_ns());
        scope = train::LogScope::train_batch;
        scope_weight = train::weight_of(batch);
        watch.batch_start();
        const SyncGuard charged(syncs, sync_check, options.sync_budget.value_or(0));
        const Restore at(in_batch, true);
        to_device(*active, batch, device);
        if (capture) capture->admit(batch);
        times.enter(Phase::hooks);
        StepInfo step_info = info(&batch);
        if (call_batch_start(step_info) == BatchStart::skip_epoch) {
          skipped = true;
          ++skipped_batches;
          if (window_is_open()) optimizer().zero_grad();
          break;
        }
        train_batch(std::move(step_info));
        watch.batch_done();
        if (measures()) measure_wait();
        batch.fields.clear();  // their memory serves the next batch
        if (ends()) break;
        check_interrupt();
        times.enter(Phase::data);
        if (measures()) data_wait.begins(steady_ns(), time_apart());
        fetching.emplace(options.profiler.get(), "fetch_batch");
      }
    } catch (const InterruptedError&) {
      if (!fetching) throw;  // else the wait for a batch has ended, and nothing of the run is half done
      fetching.reset();
      check_interrupt();
      throw;
    }
    times.enter(Phase::unexplained);
  }
  const bool whole = batches_done == batches, granted = stop_granted() || closing;
  // By max_steps: the epoch stays open for a run that goes on. A loader that gave fewer batches than its size()
  // promised ends it: waiting for the rest would never end.
  const bool open = !whole && !skipped && !granted && max_steps_reached();
  if (!whole && !open && !granted && !manual) advance_schedulers(Interval::epoch);
  closing = !whole && !open;
  if (granted && !skipped && epoch_validates() && validated_at != total_batches) validate_in_fit();

  scope = train::LogScope::train_epoch;
  if (!open) {
    due = Due::epoch_end;
  } else if (!trial) {
    const SyncGuard own = own_waits();
    cut = {.log = train_log.save(), .stop_kept = stop_kept};
  }
  {
    const PhaseScope hooks(times, Phase::hooks);
    call_at_end(EndOf::epoch);
  }
  scope = train::LogScope::none;
  if (!open) finish_epoch();
}

std::int64_t Trainer::Run::time_apart() const {
  return times.nanoseconds(Phase::validating) + times.nanoseconds(Phase::saving);
}
void Trainer::Run::measure_wait() {
  const std::optional<double> share = data_wait.trained(steady_ns(), time_apart());
  if (share && *share > train::DataWait::kMuch)
    warn("W-DATA-SLOW", WarningCategory::possible_user,
         "fit: " + text(std::lround(100 * *share)) + " % of the first " + text(train::DataWait::kBatches) +
             " steps' time was waiting for data, with num_workers=" + text(train_loader->num_workers()) +
             "; give the loader more workers, or make its samples cheaper",
         Repeat::yes);
}

void Trainer::Run::finish_epoch() {
  if (!writers_due.empty()) call_writers_due();
  if (!trial) {
    const SyncGuard own = own_waits();
    loss_watch.look();
  }
  Metrics means;
  for (const train::MetricLog::Mean& mean : train_log.take_epoch()) {
    train::set_metric(epoch_metrics, mean.name, mean.value);
    if (mean.logger) means.emplace_back(mean.name, mean.value);
  }
  advance_plateaus(Interval::epoch);
  if (!means.empty() && record_steps() > 0) emit(record_steps() - 1, std::move(means));
  ++epoch;
  batches_done = 0;
  position = {.epoch = epoch};
  due = Due::nothing;
  closing = false;
}

void Trainer::Run::train_batch(StepInfo step_info) {
  const bool closes = manual || window_closes();
  const bool hold = precision.scaler() && options.lr_on_skipped_step == OnSkippedStep::hold;
  const std::int64_t skipped = skipped_seen, steps = global_step;
  train::StepResult result;
  try {
    result = step(step_info);
  } catch (const InterruptedError&) { throw; } catch (Error& e) {
    detail::name_batch(e, epoch, "", batches_done);
    throw;
  }
  watch.step_done(*step_info.batch);
  if (!trial) loss_watch.batch_done(result.loss, record_steps());
  step_info.loss = std::move(result.loss);
  step_info.outputs = std::move(result.outputs);
  times.enter(Phase::hooks);
  if (closes && !manual) ++global_step;
  if (closes && !manual) times.count_step();
  ++batches_done;
  gradients_torn = batch_torn = false;
  in_batch = false;
  position.hand_out(step_info.batch->position);
  ++total_batches;
  if (closes && hold) {
    const SyncGuard own = own_waits();
    skipped_seen = precision.scaler()->skipped_steps();
  }
  if (!manual && global_step != steps && (!hold || skipped_seen == skipped)) advance_schedulers(Interval::step);
  if (!manual && batches_done == batches) advance_schedulers(Interval::epoch);
  step_info.global_step = global_step;
  due = Due::record;
  call_at_end(EndOf::batch, step_info);
  finish_batch();
}

void Trainer::Run::finish_batch() {
  if (!writers_due.empty()) call_writers_due();
  if (due == Due::record) {
    record_step();
    due = Due::validation;
  }
  if (due == Due::validation) {
    if (validation_due()) validate_in_fit();
    due = Due::plateaus;
  }
  if (!window_is_open()) advance_plateaus(Interval::step);
  due = Due::nothing;
  if (stop && !stop_granted() && !std::exchange(told_minimum, true))
    warn("I-TRAIN-MINIMUM", WarningCategory::info,
         "fit: a stop was asked for after " + text(stop_asked_at) + " steps; training goes on to min_epochs = " +
             text(min_epochs()) + " and min_steps = " + text(options.min_steps.value_or(0)));
}

// What the steps log is forgotten: nothing was trained.
void Trainer::Run::forward_epoch() {
  const NoGrad off;
  const Restore quiet(train_log, train::MetricLog());
  const Restore logging(scope, train::LogScope::train_batch);
  const Restore size(scope_weight, train::BatchWeight());
  const train::MetricGuard metrics(tree);
  load_train();
  train_loader->load_state({.epoch = epoch, .in_sequence = overfits()});
  std::int64_t done = 0;
  try {
    for (Batch& batch : *train_loader) {
      scope_weight = train::weight_of(batch);
      to_device(*active, batch, device);
      const InHook in(*this, train::hooks::training_step);
      precision.run([&] { (void)active->training_step(batch, done); });
      if (++done == batches) break;
      check_interrupt();
    }
  } catch (const InterruptedError&) {
    if (stop_signal == 0) check_interrupt();  // the loader's, which waited
    throw;
  }
  if (batches_done > 0) return;  // an epoch is open, and a run that goes on ends it
  position = {.epoch = ++epoch};
  ++forward_epochs;
}

void Trainer::Run::record_step() {
  if (window_is_open()) return;
  const std::int64_t steps = record_steps();
  const bool asked = options.log_every_n_steps > 0 && (steps % options.log_every_n_steps == 0 || stop);
  if (!asked) return;
  const SyncGuard own = own_waits();
  const PhaseScope phase(times, Phase::logging);
  train::MetricLog::Step step = train_log.take_step(trial ? Tensor() : loss_watch.kept());
  if (step.values.empty()) return;
  if (step.beside) loss_watch.read(*step.beside);
  emit(steps - 1, std::move(step.values));
}

void Trainer::Run::emit(std::int64_t step, Metrics values) {
  if (trial) return;
  history.push_back({.step = step, .epoch = epoch, .values = std::move(values)});
  ++records;
  for (const auto& logger : loggers) logger->log_metrics(history.back());
}

void Trainer::Run::check_interrupt() {
  const int signal = options.handle_signals ? train::SignalGuard::received() : 0;  // else: another trainer's
  if (signal == 0) return;
  if (trial) {  // what would be saved is not the run: the search ends, takes its trial back and asks again
    stop = true;
    return;
  }
  stop_signal = signal;
  fail<InterruptedError>(call_name, ": stopped by ", train::SignalGuard::name_of(signal), " after ", global_step,
                         " optimizer steps; ", save_interrupted());
}

std::string Trainer::Run::save_interrupted() {
  const std::string nothing = "nothing was saved because ";
  if (!in_fit) return "an evaluation changes nothing that could be saved";
  if (!checkpointing()) return nothing + "checkpointing is off";
  if (total_batches == 0) return nothing + "nothing was trained";
  if (total_batches == resumed_at) return nothing + "nothing was trained since " + resumed_from;
  const std::string path = last_file(checkpoint_dir());
  try {
    train::replace_link(path, [&](const std::string& to) { save(to, WeightsOnly::no); });
    written.insert(path);
    return "saved " + path + ", ckpt_path = \"last\" goes on from there";
  } catch (const std::exception& e) { return std::string("it could not be saved. ") + e.what(); }  // still an interrupt
}

}  // namespace levin
