// Evaluations: validation, test, predict, and the mean of a function over a loader.
#include <algorithm>

#include "levin/autograd.h"
#include "levin/ops.h"
#include "tensor/batch_error.h"
#include "tensor/warn.h"
#include "train/run/options_text.h"
#include "train/run/run.h"

namespace levin {

using train::Restore;
using train::Scope;

ModeGuard::ModeGuard(nn::Module* tree) {
  if (!tree) return;
  tree->visit([&](const std::string&, nn::Module& m) { before_.emplace_back(&m, m.is_training()); });
}
ModeGuard::~ModeGuard() {
  for (const auto& [module, training] : before_) module->set_training_flag(training);
}

namespace {

// What differs between the three loops.
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
const Words& words_of(Trainer::Run::Loop loop) { return kWords[static_cast<std::size_t>(loop)]; }
// In front of an error.
const char* loop_name(Trainer::Run::Loop loop) {
  return loop == Trainer::Run::Loop::validation ? "validation" : words_of(loop).call;
}

void evaluate_batch(Trainer::Run& run, Trainer::Run::Loop loop, TrainModule& module, StepInfo& at) {
  const train::HookInfo& step = words_of(loop).step;
  run.precision.run([&] {
    const ProfilerScope profiled(run.options.profiler.get(), step.name);
    const Trainer::Run::InHook in(run, step);
    if (loop == Trainer::Run::Loop::validation)
      module.validation_step(*at.batch, at.batch_idx, at.dataloader_idx);
    else if (loop == Trainer::Run::Loop::test)
      module.test_step(*at.batch, at.batch_idx, at.dataloader_idx);
    else
      at.outputs = {{"prediction",
                     run.precision.output(module.predict_step(*at.batch, at.batch_idx, at.dataloader_idx).detach())}};
  });
}

const std::optional<Portion>& limit_of(const TrainerOptions& o, Trainer::Run::Loop loop) {
  using enum Trainer::Run::Loop;
  return loop == validation ? o.limit_val_batches : loop == test ? o.limit_test_batches : o.limit_predict_batches;
}

// Evaluations record nothing. NoGrad can be left inside, InferenceMode can not.
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

// What an evaluation logs. One inside of another (a hook evaluates) gives the outer one its values back; the outermost leaves its own
// to be read.
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

std::vector<Metrics> Trainer::Run::evaluation(Loop loop, TrainModule& module,
                                              const std::vector<data::DataLoader*>& loaders,
                                              std::vector<Tensors>* predictions, const Function<void()>& instead,
                                              const std::string& ckpt_path) {
  // A hook may evaluate, another module too: afterwards the stage around it goes on with its own.
  const bool nested = active != nullptr;
  const Restore<TrainModule*> now_active(active, &module);
  const Restore<Trainer*> of_module(module.trainer_, &trainer);
  const Words& words = words_of(loop);
  const Restore named(call_name, nested ? call_name : words.call);
  if (!nested) check_late_options();
  const train::SignalGuard signals(options.handle_signals && !nested);
  const auto attach = [&] {
    if (!nested) callbacks = own_callbacks;
    if (!nested) add_callbacks_of(module);
    attach_callbacks(&trainer);
  };
  const auto detach = [&] {
    attach_callbacks(nested ? &trainer : nullptr);
    if (!nested) callbacks = own_callbacks;
  };
  const Scope attached(attach, detach);
  const auto convert = [&] {
    if (nested && (module.tree() != tree || !in_fit)) precision.convert(module.tree(), device_of(module.tree()));
  };
  const Scope mixed(convert, [&, before = precision.mixed()] { precision.set_mixed(before); });
  // One that a hook began would tell the profiler of hooks that run already.
  const bool of_a_hook = nested && !validating && !sanity;
  const Restore profiled(options.profiler, of_a_hook ? std::shared_ptr<Profiler>() : options.profiler);
  if (nested) return evaluation_loop(loop, module, evaluated_in_turn(loaders, words.loader), predictions);
  inspected.clear();
  Found file = find_checkpoint(ckpt_path);
  check_transfers(module);
  const Scope owning([] {}, [&] { own_evaluated.reset(); });
  const Restore recorded(loggers, instead ? std::vector<std::shared_ptr<Logger>>{} : loggers);
  std::optional<train::MemoryLimit> limit;
  if (options.memory_limit) limit.emplace(device_of(module.tree()), options.memory_limit);
  std::vector<Metrics> result;
  try {
    call_setup(words.stage);
    module.configure_model();
    move_to_accelerator(module);
    precision.convert(module.tree(), device_of(module.tree()));
    if (!file.path.empty()) load_weights(std::exchange(file, {}), module);
    if (instead) {
      instead();
      call_teardown(words.stage, /*quietly=*/false);
      return {};
    }
    if (loop != Loop::predict) start_loggers(words.stage);
    std::vector<data::DataLoader*> used = loaders;
    if (loaders.empty()) {
      own_evaluated = loader_of_hook(loop, module);
      if (!own_evaluated)
        fail<ConfigError>(words.call, ": no loader was given, and ", words.loader,
                          " of data module and module gives none; give one, or override it");
      used = {own_evaluated.get()};
    }
    used = evaluated_in_turn(used, words.loader);
    result = evaluation_loop(loop, module, std::move(used), predictions);
    call_teardown(words.stage, /*quietly=*/false);
    if (loop != Loop::predict) finish_loggers("success");
  } catch (...) {
    with_error_in_flight([&](const std::exception& error) {
      call_exception(error);
      give_up_loggers(error);
      call_teardown(words.stage, /*quietly=*/true);
    });
    throw;
  }
  check_interrupt();  // of a hook behind the loop
  return result;
}

void Trainer::Run::move_to_accelerator(TrainModule& module) {
  nn::Module* const all = module.tree();
  const std::optional<Device> to = train::accelerator_device(options);
  if (!all || !to || all->parameters().empty() || device_of(all).type() == to->type()) return;
  all->to(*to);
  if (all == tree) device = *to;
}

std::vector<std::int64_t> Trainer::Run::batches_to_evaluate(Loop loop,
                                                            const std::vector<data::DataLoader*>& loaders) const {
  const bool in_sequence = loop == Loop::validation && overfits();
  const char* const option = in_sequence ? "overfit_batches" : words_of(loop).limit;
  std::vector<std::int64_t> counts;
  for (const data::DataLoader* l : loaders) {
    std::int64_t count = limit_of(options, loop).value_or(Portion(1.0)).of(l->size(), option);
    if (sanity) {
      if (const std::int64_t few = options.num_sanity_val_steps.value_or(2); few >= 0) count = std::min(count, few);
    }
    counts.push_back(count);
  }
  return counts;
}

std::vector<Metrics> Trainer::Run::evaluation_call(Loop loop, TrainModule* given, const LoaderRefs& loaders,
                                                   DataModule* data, const std::string& ckpt_path,
                                                   std::vector<Tensors>* predictions) {
  const char* const name = words_of(loop).call;
  if (!given && active)
    fail<StateError>(name, ": called in a hook without a module; give the one that is to be evaluated");
  if (!given && !last_module)
    fail<StateError>(name, ": no module is known; give one, or call it behind a fit of a module");
  if (!given && last_alive.expired())
    fail<StateError>(name, ": the module of the last call is gone; give one, or let it live as long as the trainer");
  if (active && !ckpt_path.empty())
    fail<StateError>(name, ": called in a hook with ckpt_path = \"", ckpt_path,
                     "\", whose weights would replace those of the run; leave it out");
  TrainModule& module = given ? *given : *last_module;
  const Overrides has = module.overrides();
  if (loop != Loop::predict && !(loop == Loop::test ? has.test_step : has.validation_step))
    fail<ConfigError>(name, ": the module has no ", words_of(loop).step.name, "; override it");
  DataModule* chosen = train::data_module_of(name, {&loaders}, data);
  if (!given && !chosen && loaders.empty()) chosen = last_data_module;
  if (!active) detail::begin_warnings_of_a_run();
  if (given == active && !chosen) chosen = data_module;  // in a hook: whose batches the module knows
  std::string path = ckpt_path;
  if (!given && path.empty()) {
    path = "best";
    warn("W-CKPT-BEST-USED", WarningCategory::user,
         std::string(name) +
             ": called without module and ckpt_path: the best checkpoint of the last fit is loaded; "
             "give the module to use its weights as they are, or ckpt_path = \"last\"",
         Repeat::yes);
  }
  const DataScope with(*this, chosen);
  const Restore of_a_hook(validating, false);
  if (!active) {
    last_module = &module;
    last_alive = module.tree() ? module.tree()->alive() : std::weak_ptr<const void>();
    last_data_module = chosen;
  }
  return evaluation(loop, module, loaders.all(), predictions, {}, path);
}

std::vector<Metrics> Trainer::Run::evaluation_loop(Loop loop, TrainModule& module,
                                                   std::vector<data::DataLoader*> loaders,
                                                   std::vector<Tensors>* predictions) {
  const Words& words = words_of(loop);
  const std::vector<std::int64_t> counts = batches_to_evaluate(loop, loaders);
  if (std::all_of(counts.begin(), counts.end(), [](std::int64_t n) { return n == 0; })) return {};
  const Restore current(evaluated, &loaders);
  const Restore which_loop(evaluating, loop);
  const Restore depth(evaluations, evaluations + 1);
  if (loop == Loop::validation && in_fit && !manual && !window_is_open()) {
    module.on_validation_model_zero_grad();
    if (capture) capture->gradients_were_cleared();
  }
  const ModeGuard modes(module.tree());
  (module.*words.model_eval)();
  const Unrecorded off(options.inference_mode);
  const Device there = device_of(module.tree());
  train::check_accelerator(options, words.call, there);
  const bool inside = scope == train::LogScope::eval;
  const Restore restore(scope, train::LogScope::eval);
  const Restore size(scope_weight, train::BatchWeight());
  const Restore several(eval_loaders, static_cast<int>(loaders.size()));
  const Restore which(eval_loader, -1);
  const OwnValues own(eval_log, inside);

  call(words.start);
  call(words.epoch_start);
  for (std::size_t l = 0; l < loaders.size(); ++l) {
    data::DataLoader& loader = *loaders[l];
    eval_loader = static_cast<int>(l);
    const bool in_sequence = loop == Loop::validation && overfits();
    const std::int64_t count = eval_count = counts[l];
    if (predictions) predictions->emplace_back();
    if (count == 0) continue;
    if (in_fit || in_sequence) loader.load_state({.epoch = epoch, .in_sequence = in_sequence});
    std::int64_t done = 0;
    bool waiting = true;  // for a batch
    try {
      for (const Batch& loaded : loader) {
        waiting = false;
        scope = train::LogScope::eval;
        scope_weight = train::weight_of(loaded);
        Batch batch = loaded;
        to_device(module, batch, there);
        StepInfo at{.epoch = epoch,
                    .batch_idx = done,
                    .dataloader_idx = eval_loader,
                    .global_step = global_step,
                    .batch = &batch,
                    .loss = {},
                    .outputs = {}};
        call(words.batch_start, at);
        try {
          evaluate_batch(*this, loop, module, at);
        } catch (const InterruptedError&) { throw; } catch (Error& e) {
          detail::name_batch(e, in_fit ? std::optional(epoch) : std::nullopt, loop_name(loop), done);
          throw;
        }
        if (predictions) predictions->back().push_back(at.outputs.front().second);
        call(words.batch_end, at);
        record_eval_batch();
        check_interrupt();
        if (++done == count) break;
        waiting = true;
      }
    } catch (const InterruptedError&) {
      if (waiting) check_interrupt();
      throw;
    }
  }
  eval_loader = -1;
  scope_weight = {};
  call(words.epoch_end);
  std::vector<Metrics> result(std::max<std::size_t>(1, loaders.size()));
  if (loop != Loop::predict) {
    Metrics means;
    for (const train::MetricLog::Mean& mean : eval_log.take_epoch()) {
      train::set_metric(epoch_metrics, mean.name, mean.value);
      if (mean.logger) means.emplace_back(mean.name, mean.value);
      for (std::size_t l = 0; l < result.size(); ++l) {
        if (mean.loader < 0 || mean.loader == static_cast<int>(l)) result[l].emplace_back(mean.name, mean.value);
      }
    }
    if (!means.empty() && !sanity) emit(std::max<std::int64_t>(0, record_steps() - 1), std::move(means));
  }
  const bool the_loops_own = validating && loop == Loop::validation;
  if (the_loops_own && due == Due::validation) due = Due::plateaus;  // for a checkpoint that the next hooks write
  if (the_loops_own)
    call_at_end(EndOf::validation);
  else
    call(words.end);
  if (!in_fit) check_interrupt();
  return result;
}

bool Trainer::Run::epoch_validates() const {
  return !val_loaders.empty() &&
         (!options.check_val_every_n_epoch || (epoch + 1) % *options.check_val_every_n_epoch == 0);
}

bool Trainer::Run::validation_due() {
  if (!epoch_validates()) return false;
  const std::int64_t of_run = total_batches + skipped_batches;
  if (val_every > 0) return (options.check_val_every_n_epoch ? batches_done : of_run) % val_every == 0;
  return train::steady_seconds() - last_validation >= options.val_check_interval->time()->seconds();
}

void Trainer::Run::validate_in_fit() {
  // Told now: a checkpoint that is written in the hooks of this validation knows that it ran.
  validated_at = total_batches;
  const SyncGuard own = own_waits();
  const Restore running(validating, true);
  const PhaseScope phase(times, Phase::validating);
  reload_val();
  if (val_loaders.empty()) return;  // the hook has none this time
  (void)evaluation(Loop::validation, *active, val_loaders);
  last_validation = train::steady_seconds();
}

double Trainer::Run::mean_over(nn::Module* over, data::DataLoader& loader, const Function<Tensor(const Batch&)>& f) {
  const ModeGuard modes(over);
  const Restore named(call_name, in_fit ? call_name : "evaluate");
  if (over) over->train(false);
  const Unrecorded off(options.inference_mode);
  const Device there = device_of(over);
  const train::SignalGuard signals(options.handle_signals);
  const OwnValues own(eval_log, scope == train::LogScope::eval);
  const Restore restore(scope, train::LogScope::eval);
  const Restore of_a_batch(scope_weight, train::BatchWeight());
  const Restore several(eval_loaders, 1);
  auto* const module = dynamic_cast<TrainModule*>(over);  // its hooks see the batches, as in validate
  Trainer* nobody = nullptr;
  const Restore of_module(module ? module->trainer_ : nobody, &trainer);
  Tensor sum;  // f64 on the values' device: read once, at the end
  double weight = 0;
  for (const Batch& loaded : loader) {
    scope_weight = train::weight_of(loaded);
    const auto size = static_cast<double>(std::max<std::int64_t>(1, scope_weight.size));
    Batch batch = loaded;
    if (module)
      to_device(*module, batch, there);
    else
      precision.inputs(batch, there);
    const Tensor value = precision.run([&] { return f(batch); });
    if (!value.defined() || value.numel() != 1)
      fail<ShapeError>("evaluate: the function returned ", value.defined() ? text(value) : "an undefined tensor",
                       ", expected one element a batch");
    const Tensor term = value.to(DType::f64) * size;
    sum = sum.defined() ? sum + term : term;
    weight += size;
    check_interrupt();
  }
  if (weight == 0) fail<DataError>("evaluate: the loader has no batches, and a mean of nothing is not defined");
  for (const train::MetricLog::Mean& mean : eval_log.take_epoch()) {
    if (mean.logger) train::set_metric(epoch_metrics, mean.name, mean.value);
  }
  return sum.item() / weight;
}

}  // namespace levin
