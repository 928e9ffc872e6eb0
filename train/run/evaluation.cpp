#include "train/run/evaluation.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "levin/autograd.h"
#include "levin/ops.h"
#include "tensor/errors/batch_error.h"
#include "tensor/errors/warn.h"
#include "train/options/accelerators.h"
#include "train/options/options.h"
#include "train/run/packed.h"
#include "train/run/predictions.h"
#include "train/run/requeue.h"
#include "train/run/run.h"
#include "train/run/signals.h"

namespace levin {

using train::Loop;
using train::Restore;
using train::Scope;

double train::steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

train::ModeGuard::ModeGuard(nn::Module* tree) {
  if (!tree) return;
  tree->visit([&](const std::string&, nn::Module& m) { before_.emplace_back(&m, m.is_training()); });
}
train::ModeGuard::~ModeGuard() {
  for (const auto& [module, training] : before_) module->set_training_flag(training);
}

namespace {

// The differences between the three loops.
struct Words {
  const char* call;
  const char* limit;
  const char* loader;  // the hook
  const train::Hook<void (Hooks::*)()>&start, &end, &epoch_start, &epoch_end;
  const train::Hook<void (Hooks::*)(const StepInfo&)>&batch_start, &batch_end;
  const train::HookInfo& step;
  Stage stage;
  void (TrainModule::*model_eval)();
};
constexpr Words kWords[] = {
    {"validate", "limit_val_batches", "val_loader", train::hooks::on_validation_start, train::hooks::on_validation_end,
     train::hooks::on_validation_epoch_start, train::hooks::on_validation_epoch_end,
     train::hooks::on_validation_batch_start, train::hooks::on_validation_batch_end, train::hooks::validation_step,
     Stage::validate, &TrainModule::on_validation_model_eval},
    {"test", "limit_test_batches", "test_loader", train::hooks::on_test_start, train::hooks::on_test_end,
     train::hooks::on_test_epoch_start, train::hooks::on_test_epoch_end, train::hooks::on_test_batch_start,
     train::hooks::on_test_batch_end, train::hooks::test_step, Stage::test, &TrainModule::on_test_model_eval},
    {"predict", "limit_predict_batches", "predict_loader", train::hooks::on_predict_start, train::hooks::on_predict_end,
     train::hooks::on_predict_epoch_start, train::hooks::on_predict_epoch_end, train::hooks::on_predict_batch_start,
     train::hooks::on_predict_batch_end, train::hooks::predict_step, Stage::predict,
     &TrainModule::on_predict_model_eval},
};
const Words& words_of(Loop loop) { return kWords[static_cast<std::size_t>(loop)]; }
// The beginning of an error's text.
const char* loop_name(Loop loop) { return loop == Loop::validation ? "validation" : words_of(loop).call; }

const std::optional<Portion>& limit_of(const TrainerOptions& o, Loop loop) {
  using enum Loop;
  return loop == validation ? o.limit_val_batches : loop == test ? o.limit_test_batches : o.limit_predict_batches;
}

// Evaluations record nothing. A hook can switch recording on inside of NoGrad, but not inside of InferenceMode.
struct Unrecorded {
  explicit Unrecorded(bool strictly) {
    if (strictly)
      strict.emplace();
    else
      lenient.emplace();
  }
  std::optional<InferenceMode> strict;
  std::optional<NoGrad> lenient;
};

// Gives an evaluation an empty log. The outermost evaluation leaves its values there to be read. An evaluation in a
// hook of another one restores the outer values.
class OwnValues {
 public:
  OwnValues(train::MetricLog& log, bool inside) : log_(log), inside_(inside), outer_(std::exchange(log, {})) {}
  ~OwnValues() {
    if (inside_) log_ = std::move(outer_);
  }
  OwnValues(const OwnValues&) = delete;
  OwnValues& operator=(const OwnValues&) = delete;

 private:
  train::MetricLog& log_;
  bool inside_;
  train::MetricLog outer_;
};

}  // namespace

// ---- Calls of users

std::vector<Metrics> Trainer::Evaluation::call(const Call& c) {
  const Borrowed& borrowed = run_.borrowed;
  const char* const name = words_of(c.loop).call;
  const bool in_hook = borrowed.active != nullptr;
  if (!in_hook) run_.check_idle(name);
  if (!c.module && in_hook)
    fail<StateError>(name, ": called in a hook without a module; give the one that is to be evaluated");
  if (!c.module && !borrowed.last_module)
    fail<StateError>(name, ": no module is known; give one, or call it behind a fit of a module");
  if (!c.module && !borrowed.last_lives())
    fail<StateError>(name, ": the module of the last call is gone; give one, or let it live as long as the trainer");
  if (in_hook && !c.ckpt_path.empty())
    fail<StateError>(name, ": called in a hook with ckpt_path = \"", c.ckpt_path,
                     "\", whose weights would replace those of the run; leave it out");
  TrainModule& module = c.module ? *c.module : *borrowed.last_module;
  const Overrides has = Borrowed::own_overrides_of(module);
  if (c.loop != Loop::predict && !(c.loop == Loop::test ? has.test_step : has.validation_step))
    fail<ConfigError>(name, ": the module has no ", words_of(c.loop).step.name, "; override it");
  DataModule* data = train::data_module_of(name, {&c.loaders}, c.data);
  if (!c.module && !data && c.loaders.empty()) data = borrowed.last_data_module;
  if (!in_hook) detail::begin_warnings_of_a_run();
  if (c.module == borrowed.active && !data) data = borrowed.data_module;  // in a hook: whose batches the module knows
  std::string path = c.ckpt_path;
  if (!c.module && path.empty()) {
    path = "best";
    warn("W-CKPT-BEST-USED", WarningCategory::user,
         std::string(name) +
             ": called without module and ckpt_path: the best checkpoint of the last fit is loaded; "
             "give the module to use its weights as they are, or ckpt_path = \"last\"",
         Repeat::yes);
  }
  const Borrowed::DataScope with(run_.borrowed, run_.trainer, data);
  const Restore of_a_hook(validating, false);
  if (!in_hook) run_.borrowed.remember(module, data);
  if (!in_hook && run_.strategy->runs_in_copies()) {
    if (c.predictions)
      fail<ConfigError>(name,
                        ": return_predictions is true, and the stage runs in copies of this process (ddp_spawn), which "
                        "return no tensors; set it to false, and take \"prediction\" from StepInfo::outputs in a hook");
    return run_.in_copies(name, module, [&] { return run(c.loop, module, c.loaders.all(), nullptr, {}, path); });
  }
  return run(c.loop, module, c.loaders.all(), c.predictions, {}, path);
}

std::vector<Metrics> Trainer::Evaluation::run(Loop loop, TrainModule& module,
                                              const std::vector<data::DataLoader*>& given,
                                              std::vector<Tensors>* predictions, const Function<void()>& instead,
                                              const std::string& ckpt_path) {
  // A hook may evaluate, also another module. The stage around it then continues with its own module.
  const bool nested = run_.borrowed.active != nullptr;
  const Restore<TrainModule*> now_active(run_.borrowed.active, &module);
  const Borrowed::ModuleScope of_module(&module, &run_.trainer);
  const Words& words = words_of(loop);
  const Restore named(run_.call_name, nested ? run_.call_name : words.call);
  if (!nested) {
    train::check_late_options(run_.options, run_.constructed_with, run_.call_name);
    run_.connect();
    run_.stop.agreed_signal = 0;
    const train::SignalGuard signals(run_.options.handle_signals, run_.ends_waits(),
                                     train::requeue_signal(run_.options));
    const Scope attached([&] { run_.hooks.begin(module); }, [&] { run_.hooks.end(); });
    const Scope mixed([] {}, [&, before = run_.precision.mixed()] { run_.precision.set_mixed(before); });
    return stage(loop, module, given, predictions, instead, ckpt_path);
  }
  const auto attach = [&] { run_.hooks.attach(&run_.trainer); };
  const Scope attached(attach, attach);
  nn::Module* const tree = Borrowed::tree_of(module);
  const auto convert = [&] {
    if (tree != run_.borrowed.tree || !run_.in_fit) run_.precision.convert(tree, run_.device_of(tree));
  };
  const Scope mixed(convert, [&, before = run_.precision.mixed()] { run_.precision.set_mixed(before); });
  // A hook's evaluation is not profiled: it would start actions inside of the hook's action.
  const bool of_a_hook = !validating && !sanity;
  const Restore profiled(run_.options.profiler, of_a_hook ? std::shared_ptr<Profiler>() : run_.options.profiler);
  std::vector<train::RankShare> shares;
  std::vector<data::DataLoader*> used = run_.loaders.evaluated_in_turn(given, words.loader, shares);
  return all_batches(loop, module, std::move(used), predictions, shares);
}

// A stage of its own, outside of a fit.
std::vector<Metrics> Trainer::Evaluation::stage(Loop loop, TrainModule& module,
                                                const std::vector<data::DataLoader*>& given,
                                                std::vector<Tensors>* predictions, const Function<void()>& instead,
                                                const std::string& ckpt_path) {
  const Words& words = words_of(loop);
  train::StageLoaders& loaders = run_.loaders;
  loaders.begin_evaluation();
  train::FoundCheckpoint file = run_.files.find(ckpt_path);
  run_.borrowed.check_transfers(run_.call_name, module);
  const Scope owning([] {}, [&] { loaders.own_evaluated.reset(); });
  const Restore recorded(run_.logs.loggers, instead ? std::vector<std::shared_ptr<Logger>>{} : run_.logs.loggers);
  nn::Module* const tree = Borrowed::tree_of(module);
  std::optional<train::MemoryLimit> limit;
  if (run_.options.memory_limit) limit.emplace(run_.device_of(tree), run_.options.memory_limit);
  std::vector<Metrics> result;
  const Scope on_ranks([] {}, [&] { run_.strategy->detach(); });
  try {
    run_.hooks.setup(words.stage);
    module.configure_model();
    run_.move_to_accelerator(module);
    run_.precision.convert(tree, run_.device_of(tree));
    run_.strategy->attach_model(module, tree, words.stage);
    if (!file.path.empty()) run_.files.load_weights(std::exchange(file, {}), module);
    if (instead) {
      instead();
    } else {
      if (loop != Loop::predict) run_.logs.start(words.stage);
      std::vector<data::DataLoader*> used = given;
      if (used.empty()) {
        loaders.own_evaluated = run_.borrowed.loader_of_hook(loop, module);
        if (!loaders.own_evaluated)
          fail<ConfigError>(words.call, ": no loader was given, and ", words.loader,
                            " of data module and module gives none; give one, or override it");
        used = {loaders.own_evaluated.get()};
      }
      std::vector<train::RankShare> shares;
      used = loaders.evaluated_in_turn(used, words.loader, shares);
      result = all_batches(loop, module, std::move(used), predictions, shares);
    }
    run_.hooks.teardown(words.stage, /*quietly=*/false);
    if (instead) return {};
    if (loop != Loop::predict) run_.logs.finish("success");
  } catch (...) {
    train::with_error_in_flight([&](const std::exception& error) {
      if (run_.ends_together(error))
        run_.strategy->interrupted();
      else
        run_.strategy->failed(error);
      run_.hooks.exception(error);
      run_.logs.give_up(error);
      run_.hooks.teardown(words.stage, /*quietly=*/true);
    });
    throw;
  }
  run_.check_interrupt();  // of a hook after the loop
  return result;
}

// ---- The batches of an evaluation

std::vector<std::int64_t> Trainer::Evaluation::counts(Loop loop, const std::vector<data::DataLoader*>& of) const {
  const bool in_sequence = loop == Loop::validation && run_.loaders.overfits();
  const char* const option = in_sequence ? "overfit_batches" : words_of(loop).limit;
  std::vector<std::int64_t> all;
  for (const data::DataLoader* l : of) {
    std::int64_t count = train::limited(*l, limit_of(run_.options, loop), option);
    if (count == train::kUnknownBatches && l->stream()->endless())
      fail<ConfigError>(words_of(loop).call, ": the streams of a loader never end, and ", option,
                        " is no number of batches; give one");
    if (sanity) {
      if (const std::int64_t few = run_.options.num_sanity_val_steps.value_or(2); few >= 0)
        count = std::min(count, few);
    }
    all.push_back(count);
  }
  return all;
}

std::vector<Metrics> Trainer::Evaluation::all_batches(Loop loop, TrainModule& module,
                                                      std::vector<data::DataLoader*> given,
                                                      std::vector<Tensors>* predictions,
                                                      std::span<const train::RankShare> shares) {
  const Words& words = words_of(loop);
  const std::vector<std::int64_t> of_each = counts(loop, given);
  // A rank without a batch calls the hooks, too, and takes part in what ranks agree on.
  const std::string any = run_.loaders.with_batches(given, of_each);
  if (any.find('1') == std::string::npos) return {};
  const train::Scope whole([&] { run_.strategy->unshard(); }, [&] { run_.strategy->reshard(); });
  const Restore current(loaders, &given);
  const Restore which_loop(current_loop, loop);
  const Restore deeper(depth, depth + 1);
  const PhaseScope phase(run_.instruments.times, Phase::validating);
  if (loop == Loop::validation && run_.in_fit && !run_.borrowed.manual && !run_.window.is_open()) {
    module.on_validation_model_zero_grad();
    if (run_.capture) run_.capture->gradients_were_cleared();
  }
  const train::ModeGuard modes(Borrowed::tree_of(module));
  (module.*words.model_eval)();
  const Unrecorded off(run_.options.inference_mode);
  const Device there = run_.device_of(Borrowed::tree_of(module));
  train::check_accelerator(run_.options, words.call, there);
  train::RunLogs& logs = run_.logs;
  const bool inside = logs.scope == train::LogScope::eval;
  const Restore restore(logs.scope, train::LogScope::eval);
  const Restore size(logs.weight, train::BatchWeight());
  const Restore several(logs.eval_loaders, static_cast<int>(given.size()));
  const Restore which(logs.eval_loader, -1);
  const OwnValues own(logs.eval, inside);

  run_.hooks.call(words.start);
  run_.hooks.call(words.epoch_start);
  for (std::size_t l = 0; l < given.size(); ++l) {
    logs.eval_loader = static_cast<int>(l);
    batches = of_each[l];
    std::optional<train::Predictions> kept;
    if (predictions) kept.emplace(predictions_of(*given[l], shares));
    if (any[l] == '1') batches_of(loop, module, *given[l], of_each[l], there, kept ? &*kept : nullptr);
    if (kept) predictions->push_back(std::move(*kept).of_all_ranks(*run_.strategy, there));
  }
  logs.eval_loader = -1;
  logs.weight = {};
  run_.hooks.call(words.epoch_end);
  std::vector<Metrics> result = results(loop, given.size());
  if (validating && loop == Loop::validation) {
    // A checkpoint that the next hooks write knows that the validation is done.
    if (run_.progress.due == train::Due::validation) run_.progress.due = train::row_of(train::Due::validation).next;
    run_.hooks.at_end(train::EndOf::validation);
  } else {
    run_.hooks.call(words.end);
  }
  if (!run_.in_fit) {
    run_.agree();
    run_.check_interrupt();
  }
  return result;
}

void Trainer::Evaluation::batches_of(Loop loop, TrainModule& module, data::DataLoader& loader, std::int64_t count,
                                     Device there, train::Predictions* predictions) {
  const bool in_sequence = loop == Loop::validation && run_.loaders.overfits();
  if (run_.in_fit || in_sequence) loader.load_state({.epoch = run_.progress.epoch, .in_sequence = in_sequence});
  std::int64_t done = 0;
  bool waiting = true;  // for a batch
  try {
    for (const Batch& loaded : loader) {
      waiting = false;
      if (done == count) break;  // a limit leaves this rank no batch
      run_.logs.scope = train::LogScope::eval;
      run_.logs.weight = train::weight_of(loaded);
      Batch batch = loaded;
      run_.to_device(module, batch, there);
      StepInfo at = run_.info(&batch);
      at.batch_idx = done;
      at.dataloader_idx = run_.logs.eval_loader;
      run_.hooks.call(words_of(loop).batch_start, at);
      one_batch(loop, module, at);
      if (predictions) predictions->add(loaded, at.outputs.front().second);
      run_.hooks.call(words_of(loop).batch_end, at);
      run_.logs.write_eval_batch();
      run_.check_interrupt();
      if (++done == count) break;
      waiting = true;
    }
  } catch (const InterruptedError&) {
    if (waiting) run_.check_interrupt();
    throw;
  }
}

train::Predictions Trainer::Evaluation::predictions_of(const data::DataLoader& loader,
                                                       std::span<const train::RankShare> shares) const {
  const auto share =
      std::find_if(shares.begin(), shares.end(), [&](const auto& s) { return s.loader.get() == &loader; });
  const data::DataLoaderOptions* const o = loader.parts() == 0 ? &loader.options() : nullptr;
  const std::int64_t size = !o ? 0 : o->batch_sampler ? o->batch_sampler->batch_size() : o->batch_size.value_or(0);
  std::optional<std::vector<std::int64_t>> places;
  if (size > 0 && share != shares.end() && share->whole >= 0)
    places = train::places_of_rank(run_.strategy->share(), share->whole, size);
  return {size, std::move(places)};
}

void Trainer::Evaluation::one_batch(Loop loop, TrainModule& module, StepInfo& at) {
  const train::HookInfo& step = words_of(loop).step;
  try {
    run_.precision.run([&] {
      const ProfilerScope profiled(run_.instruments.profiler(), step.name);
      const HookCalls::Inside in(run_.hooks, step);
      if (loop == Loop::validation)
        module.validation_step(*at.batch, at.batch_idx, at.dataloader_idx);
      else if (loop == Loop::test)
        module.test_step(*at.batch, at.batch_idx, at.dataloader_idx);
      else
        at.outputs = {{"prediction", run_.precision.output(
                                         module.predict_step(*at.batch, at.batch_idx, at.dataloader_idx).detach())}};
    });
  } catch (const InterruptedError&) { throw; } catch (Error& e) {
    detail::name_batch(e, run_.in_fit ? std::optional(run_.progress.epoch) : std::nullopt, loop_name(loop),
                       at.batch_idx);
    throw;
  }
}

// Returns the means of the evaluation by loader, and writes their record.
std::vector<Metrics> Trainer::Evaluation::results(Loop loop, std::size_t count) {
  std::vector<Metrics> result(std::max<std::size_t>(1, count));
  if (loop == Loop::predict) return result;
  Metrics means = run_.logs.take_means(run_.logs.eval, [&](const train::MetricLog::Mean& mean) {
    for (std::size_t l = 0; l < result.size(); ++l) {
      if (mean.loader < 0 || mean.loader == static_cast<int>(l)) result[l].emplace_back(mean.name, mean.value);
    }
  });
  if (!means.empty() && !sanity) run_.logs.write(std::max<std::int64_t>(0, run_.logs.steps() - 1), std::move(means));
  return result;
}

// ---- Validation in a fit

// Validates a few batches, so that errors of validation come before an epoch was trained. Metrics, counts and random
// numbers are restored.
void Trainer::Evaluation::sanity_check() {
  const std::int64_t count = run_.options.num_sanity_val_steps.value_or(2);
  if (run_.loaders.val.empty() || count == 0) return;
  std::vector<std::pair<Generator*, RandomRange>> before;
  if (run_.borrowed.tree) {
    for (const auto& [name, generator] : run_.borrowed.tree->generators())
      before.emplace_back(generator, generator->state());
  }
  const Metrics metrics = run_.logs.epoch;
  const train::MetricGuard objects(run_.borrowed.tree);
  const auto leave = [&] {
    for (const auto& [generator, state] : before) generator->set_state(state);
    run_.logs.epoch = metrics;
    run_.logs.eval.reset();
    sanity = false;
  };
  const Scope checking([&] { sanity = true; }, leave);
  run_.hooks.call(train::hooks::on_sanity_check_start);
  (void)run(Loop::validation, *run_.borrowed.active, run_.loaders.val);
  run_.hooks.call(train::hooks::on_sanity_check_end);
}

bool Trainer::Evaluation::epoch_validates() const {
  return !run_.loaders.val.empty() && (!run_.options.check_val_every_n_epoch ||
                                       (run_.progress.epoch + 1) % *run_.options.check_val_every_n_epoch == 0);
}

bool Trainer::Evaluation::due() {
  if (!epoch_validates()) return false;
  const std::int64_t of_run = run_.progress.total_batches + run_.progress.skipped_batches;
  if (run_.loaders.val_every == train::kUnknownBatches) return run_.progress.batches_done == run_.loaders.batches;
  if (run_.loaders.val_every > 0)
    return (run_.options.check_val_every_n_epoch ? run_.progress.batches_done : of_run) % run_.loaders.val_every == 0;
  const bool late = train::steady_seconds() - last_validation >= run_.options.val_check_interval->time()->seconds();
  return !run_.strategy->from_rank_zero(late ? "1" : "").empty();  // by one clock
}

void Trainer::Evaluation::validate() {
  // Set first, so that a checkpoint of a hook of this validation knows that the validation ran.
  run_.progress.validated_at = run_.progress.total_batches;
  const SyncGuard own = run_.instruments.own_waits();
  const Restore running(validating, true);
  const PhaseScope phase(run_.instruments.times, Phase::validating);
  run_.loaders.reload_val();
  if (run_.loaders.val.empty()) return;  // the hook returned no loader this time
  (void)run(Loop::validation, *run_.borrowed.active, run_.loaders.val);
  last_validation = train::steady_seconds();
}

// ---- The mean of a function

double Trainer::Evaluation::mean_over(nn::Module* over, data::DataLoader& given,
                                      const Function<Tensor(const Batch&)>& f) {
  const train::ModeGuard modes(over);
  const Restore named(run_.call_name, run_.in_fit ? run_.call_name : "evaluate");
  const bool alone = run_.borrowed.active == nullptr;  // in no stage
  if (alone) {
    run_.connect();
    run_.stop.agreed_signal = 0;
  }
  const train::RankShare mine_of = run_.loaders.share(given, train::Reads::evaluation, "loader");
  data::DataLoader& loader = mine_of.loader ? *mine_of.loader : given;
  if (over) over->train(false);
  const Unrecorded off(run_.options.inference_mode);
  const Device there = run_.device_of(over);
  const train::SignalGuard signals(run_.options.handle_signals, run_.ends_waits(), train::requeue_signal(run_.options));
  const OwnValues own(run_.logs.eval, run_.logs.scope == train::LogScope::eval);
  const Restore restore(run_.logs.scope, train::LogScope::eval);
  const Restore of_a_batch(run_.logs.weight, train::BatchWeight());
  const Restore several(run_.logs.eval_loaders, 1);
  auto* const module = dynamic_cast<TrainModule*>(over);  // its transfer hooks run, as in validate
  const Borrowed::ModuleScope of_module(module, &run_.trainer);
  Tensor sum;  // f64 on the values' device: read once, at the end
  double weight = 0;
  for (const Batch& loaded : loader) {
    run_.logs.weight = train::weight_of(loaded);
    const auto size = static_cast<double>(std::max<std::int64_t>(1, run_.logs.weight.size));
    Batch batch = loaded;
    if (module)
      run_.to_device(*module, batch, there);
    else
      run_.precision.inputs(batch, there);
    const Tensor value = run_.precision.run([&] { return f(batch); });
    if (!value.defined() || value.numel() != 1)
      fail<ShapeError>("evaluate: the function returned ", value.defined() ? text(value) : "an undefined tensor",
                       ", expected one element a batch");
    const Tensor term = value.to(DType::f64) * size;
    sum = sum.defined() ? sum + term : term;
    weight += size;
    run_.check_interrupt();
  }
  // Of all ranks, added in their order.
  double total = 0, of_all = 0;
  const std::string mine = train::Packed().add(sum.defined() ? sum.item() : 0.0).add(weight).bytes();
  for (const std::string& bytes : run_.strategy->gather(mine)) {
    train::Unpacked in(bytes);
    total += in.take<double>();
    of_all += in.take<double>();
  }
  if (alone) {
    run_.agree();
    run_.check_interrupt();
  }
  if (of_all == 0) fail<DataError>("evaluate: the loader has no batches, and a mean of nothing is not defined");
  for (const train::MetricLog::Mean& mean : run_.logs.eval.take_epoch(run_.logs.ranks())) {
    if (mean.logger) train::set_metric(run_.logs.epoch, mean.name, mean.value);
  }
  return total / of_all;
}

}  // namespace levin
