// The loop, top to bottom: epochs, batches, one step, what follows a batch and what follows an epoch.
#include "levin/autograd.h"
#include "levin/ops.h"
#include "tensor/errors/batch_error.h"
#include "train/options/options.h"
#include "train/run/requeue.h"
#include "train/run/run.h"
#include "train/run/signals.h"

namespace levin {

using train::Due;
using train::LogScope;
using train::Restore;
using Interval = SchedulerConfig::Interval;

// max_steps cannot be reached inside of a window, max_epochs counts complete epochs. A stop waits for the window.
bool Trainer::Run::limits_reached() const {
  return stop.max_steps_reached() || stop.max_epochs_reached() || (!window.is_open() && stop.granted());
}

void Trainer::Run::train_epochs() {
  const Restore during(files.training, true);
  {
    const Restore logging(logs.scope, LogScope::train_epoch);
    hooks.call(train::hooks::on_train_start);
  }
  agree();
  // A file may have been written in the middle of a batch or of an epoch's end. Its run finishes that, whatever the
  // limits.
  const auto is_open = [&] { return progress.due != Due::nothing || progress.closing; };
  while (loaders.batches > 0 && (!limits_reached() || is_open())) {
    check_interrupt();
    train_epoch();
  }
  if (!trial && !window.weighs_exactly()) instruments.losses.end();  // exact: NaN, where a batch weighs 0
  check_interrupt();                                                 // of the last batch, or of what followed it
  files.training = false;
  hooks.call(train::hooks::on_train_end);
}

// Starts with the batch at which the last run was cut, else with the first. The order of batches is a function of the
// epoch's index alone.
void Trainer::Run::train_epoch() {
  if (!trial) train::check_late_options(options, constructed_with, call_name);
  loaders.reload_train();
  logs.scope = LogScope::train_epoch;
  hooks.call_timed(train::hooks::on_train_epoch_start);
  if (progress.due != Due::nothing) follow_batch();  // of the file that the run resumed from
  bool skipped = false;
  const auto ends = [&] {
    return progress.batches_done >= loaders.batches || stop.max_steps_reached() || progress.closing ||
           (!window.is_open() && stop.granted());
  };
  if (!ends()) {
    loaders.start_epoch(progress);
    for (Batch& batch : instruments.batches(*loaders.train, ends)) {
      logs.begin_batch(batch);
      const Restore during(in_batch, true);
      to_device(*borrowed.active, batch, device, capture ? &*capture : nullptr);
      if (capture) capture->admit(batch);
      StepInfo at = info(&batch);
      const bool skips = hooks.batch_start(at) == BatchStart::skip_epoch;
      if (strategy->vote({.skip = skips}).skip != 0) {
        skipped = true;
        ++progress.skipped_batches;
        if (window.is_open()) optimizers.front().zero_grad();
        break;
      }
      train_batch(std::move(at));
    }
  }
  const bool whole = progress.batches_done == loaders.batches, granted = stop.granted() || progress.closing;
  // max_steps leaves the epoch open for the run that resumes. A loader with fewer batches than its size() ends the
  // epoch, because the rest never comes.
  const bool open = !whole && !skipped && !granted && stop.max_steps_reached();
  if (!whole && !open && !granted && !borrowed.manual) optimizers.advance(Interval::epoch);
  progress.closing = !whole && !open;
  if (granted && !skipped && evaluation.epoch_validates() && progress.validated_at != progress.total_batches)
    evaluation.validate();

  logs.scope = LogScope::train_epoch;
  if (open)
    files.cut_epoch();
  else
    progress.due = Due::epoch_end;
  hooks.at_end(train::EndOf::epoch);
  logs.scope = LogScope::none;
  if (!open) follow_epoch();
  agree();
}

void Trainer::Run::train_batch(StepInfo at) {
  const bool closes = borrowed.manual || window.closes();
  train::StepResult result;
  try {
    result = step(at);
  } catch (const InterruptedError&) { throw; } catch (Error& e) {
    detail::name_batch(e, progress.epoch, "", progress.batches_done);
    throw;
  }
  instruments.step_done(*at.batch, result.loss, logs.steps());
  at.loss = std::move(result.loss);
  at.outputs = std::move(result.outputs);
  if (closes && !borrowed.manual) {
    ++progress.global_step;
    instruments.times.count_step();
  }
  ++progress.batches_done;
  window.gradients_torn = window.batch_torn = step_torn = false;
  in_batch = false;
  progress.position.hand_out(*at.batch);
  progress.batches_absent += static_cast<std::int64_t>(at.batch->absent.size());
  ++progress.total_batches;
  const bool held = closes && optimizers.held_by_skipped_step();
  if (closes && !borrowed.manual && !held) optimizers.advance(Interval::step);
  if (!borrowed.manual && progress.batches_done == loaders.batches) optimizers.advance(Interval::epoch);
  at.global_step = progress.global_step;
  progress.due = Due::record;
  hooks.at_end(train::EndOf::batch, at);
  follow_batch();
  agree();
}

// Forward, backward, and the optimizer's step if the batch closes a window of accumulation. The optimizer calls the
// closure once or several times (LBFGS). Gradients are cleared after the forward pass of a window's first batch, so
// hooks can read those of the step before until then. With a loss scale the device skips a step whose gradients are not
// finite, and the host does not know of it.
struct Trainer::Run::AutomaticStep {
  const StepInfo& at;
  bool opens, closes;  // the window
  const Function<StepOutput(TrainModule&, const Batch&)>& forward;
  const Function<Tensor(const StepOutput&)>& objective;
  bool ran = false;
  train::StepResult result{};
};

train::StepResult Trainer::Run::automatic_step(const StepInfo& at) {
  const Function<StepOutput(TrainModule&, const Batch&)> forward = [&](TrainModule& module, const Batch& batch) {
    return training_step(module, batch, at.batch_idx);
  };
  const Function<Tensor(const StepOutput&)> objective = [&](const StepOutput& output) {
    const Tensor loss = window.share(output);
    return loss.defined() ? optimizers.scaled(loss) : loss;
  };
  AutomaticStep step{at, window.opens(), window.closes(), forward, objective};
  if (step.opens) optimizers.forget_scaling();  // of a step that an exception ended
  const Function<Tensor()> closure = [&] { return forward_backward(step); };
  if (!step.closes) {
    (void)closure();
    return std::move(step.result);
  }
  const ProfilerScope profiled(instruments.profiler(), "optimizer_step");
  borrowed.active->optimizer_step(at.epoch, at.batch_idx, optimizers.handles.front(), closure);
  strategy->finish_step();
  if (!step.ran)
    fail<StateError>(
        "fit: the module's optimizer_step did not run the closure, which holds forward and backward; call it, or "
        "optimizer.step(closure)");
  return std::move(step.result);
}

Tensor Trainer::Run::forward_backward(AutomaticStep& step) {
  const StepInfo& at = step.at;
  const bool fused = strategy->fuses_backward();
  const auto clear = [&] {
    window.weight = Tensor();
    hooks.call(train::hooks::on_before_zero_grad, optimizers.front());
    borrowed.active->optimizer_zero_grad(at.epoch, at.batch_idx, optimizers.front());
  };
  step_torn = step.ran;  // a step that has its gradients may have changed parameters
  step.ran = true;
  step.result = {};
  instruments.times.enter(Phase::forward);
  if (step.opens && fused) clear();
  strategy->begin_step();
  const StepOutput output = strategy->training_step({.module = *borrowed.active,
                                                     .batch = *at.batch,
                                                     .batch_idx = at.batch_idx,
                                                     .closes = step.closes,
                                                     .forward = step.forward,
                                                     .objective = step.objective});
  const Tensor loss = window.share(output);
  if (step.opens && !fused) clear();
  if (!loss.defined()) {
    if (const int ranks = strategy->ranks().size; ranks > 1)
      fail<StateError>("fit: training_step returned nothing, and the other ", ranks - 1,
                       " ranks wait for its gradients; return a loss of 0 that depends on the parameters");
    warn("W-TRAIN-NO-LOSS", WarningCategory::user, "fit: training_step returned nothing; such batches add no gradient");
    return Tensor();
  }
  const bool exact = window.weighs_exactly();
  const Tensor& reported = exact ? output.loss() : loss;
  const Tensor scaled = optimizers.scaled(loss);
  detail::detach_into(seen_loss, precision.output(reported));
  instruments.times.enter(Phase::backward);
  window.gradients_torn = true;
  hooks.call(train::hooks::on_before_backward, exact || scaled.impl() != loss.impl() ? scaled.detach() : seen_loss);
  {
    const ProfilerScope profiled(instruments.profiler(), "backward");
    if (!fused) strategy->backward(scaled, SyncGrad{step.closes});
  }
  hooks.call(train::hooks::on_after_backward);
  if (exact) window.add(output);
  if (exact && step.closes) strategy->merge_weight(window.weight);
  step.result = {.loss = seen_loss, .outputs = detached_outputs(output)};
  instruments.times.enter(Phase::optimizer);
  return reported;
}

// Does what is due after a batch, row by row of kDue. A run that resumes from a file of a hook in between starts at the
// file's row.
void Trainer::Run::follow_batch() {
  hooks.call_writers_due();
  while (progress.due != Due::nothing) {
    const train::DueRow& row = train::row_of(progress.due);
    if (row.due == Due::record) logs.write_step();
    if (row.due == Due::validation && evaluation.due()) evaluation.validate();
    if (row.due == Due::plateaus && !window.is_open()) optimizers.advance_plateaus(Interval::step);
    progress.due = row.next;
  }
  stop.report_wait();
}

void Trainer::Run::follow_epoch() {
  hooks.call_writers_due();
  if (!trial) instruments.look_at_loss();
  Metrics means = logs.take_means(logs.train);
  optimizers.advance_plateaus(Interval::epoch);
  if (!means.empty() && logs.steps() > 0) logs.write(logs.steps() - 1, std::move(means));
  // An epoch without a batch leaves `batches` at 0, which ends the training.
  if (loaders.batches != 0) loaders.epoch_begins();
  progress.start_epoch(progress.epoch + 1);
}

// Nothing is trained, so logged values are dropped.
void Trainer::Run::forward_epoch() {
  const NoGrad off;
  const train::Scope whole([&] { strategy->unshard(); }, [&] { strategy->reshard(); });
  const Restore quiet(logs.train, train::MetricLog());
  const Restore logging(logs.scope, LogScope::train_batch);
  const Restore size(logs.weight, train::BatchWeight());
  const train::MetricGuard metrics(borrowed.tree);
  loaders.load_train();
  if (train::never_ends(*loaders.train) && loaders.batches == train::kUnknownBatches)
    fail<ConfigError>(
        "forward_epoch: the streams of the train_loader never end, and limit_train_batches is no number of batches; "
        "give one");
  loaders.train->load_state({.epoch = progress.epoch, .in_sequence = loaders.overfits()});
  std::int64_t done = 0;
  try {
    for (Batch& batch : *loaders.train) {
      logs.weight = train::weight_of(batch);
      to_device(*borrowed.active, batch, device);
      const HookCalls::Inside in(hooks, train::hooks::training_step);
      precision.run([&] { (void)borrowed.active->training_step(batch, done); });
      if (++done == loaders.batches) break;
      check_interrupt();
    }
  } catch (const InterruptedError&) {
    if (stop.signal == 0) check_interrupt();  // the signal ended a wait of the loader
    throw;
  }
  if (progress.batches_done > 0) return;  // an epoch is open, and the run that resumes ends it
  progress.position = {.epoch = ++progress.epoch};
  ++progress.forward_epochs;
}

void Trainer::Run::agree() {
  const int signal = options.handle_signals ? train::SignalGuard::received() : 0;
  // 2: checkpoints keep the request. Rank 0, which writes them, may learn of it from another rank.
  const std::uint8_t mine = stop.requested ? (stop.kept ? 2 : 1) : 0;
  const Votes all = strategy->vote({.stop = mine, .signal = static_cast<std::uint8_t>(signal)});
  if (all.stop > mine) stop.request(all.stop == 2 ? KeepStop::yes : KeepStop::no, "another rank");
  stop.agreed_signal = all.signal;
}

void Trainer::Run::check_interrupt() {
  // Ranks act on a signal at the same place: where they agreed on it. Without handle_signals no signal is for this run.
  const bool alone = strategy->ranks().size == 1;
  const int signal = !alone ? stop.agreed_signal : options.handle_signals ? train::SignalGuard::received() : 0;
  if (signal == 0) return;
  if (trial) {  // a trial is not saved: the search ends, restores the run and checks again
    stop.requested = true;
    return;
  }
  stop.signal = signal;
  const bool requeues = signal == train::requeue_signal(options) &&
                        files.by_rank_zero([] { return std::string(train::in_slurm_task() ? "1" : ""); }) == "1";
  fail<InterruptedError>(call_name, ": stopped by ", train::SignalGuard::name_of(signal), " after ",
                         progress.global_step, " optimizer steps; ",
                         requeues ? files.save_and_requeue() : files.save_interrupted());
}

}  // namespace levin
