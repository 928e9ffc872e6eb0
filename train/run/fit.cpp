// A fit around its loop: what is checked before any work, what is set up and taken back, what comes before the first epoch. The
// epochs are in loop.cpp.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "levin/autograd.h"
#include "levin/ops.h"
#include "tensor/warn.h"
#include "train/checkpoint/content.h"
#include "train/run/options_text.h"
#include "train/run/run.h"

namespace levin {

using train::EngineScope;
using train::Restore;
using train::Scope;
using Interval = SchedulerConfig::Interval;

// ---- Before any work

void train::check_optimizers(const OptimizerConfig& config, bool manual) {
  for (const auto& o : config.optimizers) {
    if (!o) fail<ConfigError>("fit: an optimizer that configure_optimizers returned is null; leave it out");
  }
  if (config.optimizers.size() > 1 && !manual)
    fail<ConfigError>(
        "fit: configure_optimizers returned ", config.optimizers.size(),
        " optimizers, automatic optimization has one; let automatic_optimization() return false and step them in "
        "training_step");
  for (const SchedulerConfig& s : config.schedulers) {
    if (!s.scheduler) fail<ConfigError>("fit: a scheduler is null; leave it out");
    const bool known = std::any_of(config.optimizers.begin(), config.optimizers.end(),
                                   [&](const auto& o) { return &s.scheduler->optimizer() == o.get(); });
    if (!known) fail<ConfigError>("fit: a scheduler belongs to another optimizer than the one trained with");
    if (s.frequency < 1) fail<ConfigError>("fit: a scheduler has frequency ", s.frequency, ", expected 1 or more");
    if (s.scheduler->needs_metric() && s.monitor.empty())
      fail<ConfigError>("fit: a plateau schedule needs a metric; give SchedulerConfig::monitor its name");
    if (dynamic_cast<const optim::OneCycleLR*>(s.scheduler.get()) && s.interval == Interval::epoch)
      warn("W-TRAIN-ONE-CYCLE", WarningCategory::user,
           "fit: a one-cycle schedule moves once an epoch; interval = step is what its total_steps usually counts");
  }
}

namespace {

void check_manual(const TrainerOptions& options) {
  if (options.accumulate_weighting == AccumulateWeighting::exact)
    fail<ConfigError>(
        "fit: accumulate_weighting is exact and the module optimizes manually, where nothing is divided for it; drop "
        "the "
        "option, or use automatic optimization");
  if (options.gradient_clip_val.value_or(0) > 0)
    fail<ConfigError>("fit: gradient_clip_val is ", *options.gradient_clip_val,
                      " and the module optimizes manually, where nothing is clipped for it; drop the option and call "
                      "clip_gradients, or use automatic optimization");
  if (options.accumulate_grad_batches != 1)
    fail<ConfigError>(
        "fit: accumulate_grad_batches is ", options.accumulate_grad_batches,
        " and the module optimizes manually; drop the option and step every so many batches, or use automatic "
        "optimization");
}

// Of a schedule of accumulation, before any work.
void check_schedule(const Trainer::Run& run) {
  const Callback* const schedule = run.accumulation_schedule();
  if (!schedule) return;
  if (run.manual)
    fail<ConfigError>("fit: callbacks holds a ", train::class_of(*schedule),
                      " and the module optimizes manually; drop it and step "
                      "every so many batches, or use automatic optimization");
  if (run.overrides.optimizer_step || run.overrides.optimizer_zero_grad)
    warn("W-TRAIN-ACCUMULATION", WarningCategory::possible_user,
         "fit: callbacks holds a " + train::class_of(*schedule) + " and the module overrides " +
             (run.overrides.optimizer_step ? "optimizer_step" : "optimizer_zero_grad") +
             ", which is called once a window of the schedule, not once a batch");
}

void check_accumulation(const Trainer::Run& run) {
  const Callback* const schedule = run.accumulation_schedule();
  const std::int64_t window = schedule ? schedule->largest_accumulation() : run.options.accumulate_grad_batches;
  if (run.manual || window == 1) return;
  if (run.optimizer().name() == std::string_view("lbfgs"))
    fail<ConfigError>(
        "fit: ", schedule ? train::class_of(*schedule) + " goes up to " : std::string("accumulate_grad_batches is "),
        window,
        " and lbfgs evaluates the loss several times a step, each time adding to the gradients; use larger "
        "batches");
}

SyncCheck check_of_environment() {
  const char* const text = std::getenv("LEVIN_SYNC_CHECK");
  const std::string_view name = text ? text : "";
  if (name.empty() || name == "count") return SyncCheck::count;
  if (name == "off") return SyncCheck::off;
  if (name == "warn") return SyncCheck::warn;
  if (name == "forbid") return SyncCheck::forbid;
  fail<ConfigError>("fit: LEVIN_SYNC_CHECK is \"", name, "\", expected off, count, warn or forbid");
}

// The variable that makes every launch wait; null: none.
const char* debugging_left_on() {
  for (const char* name : {"LEVIN_LAUNCH_BLOCKING", "CUDA_LAUNCH_BLOCKING"}) {
    const char* const value = std::getenv(name);
    if (value && std::string_view(value) == "1") return name;
  }
  return nullptr;
}

void check_overrides(const TrainerOptions& options, const Overrides& has, bool manual, bool given) {
  const bool loaders = given || has.val_loader;
  if (manual) check_manual(options);
  if (loaders && !has.validation_step)
    warn("W-TRAIN-NO-VALIDATION-STEP", WarningCategory::user,
         "fit: a validation loader was given and the module has no validation_step; validation is skipped");
  if (!loaders && has.validation_step)
    warn("W-TRAIN-NO-VALIDATION-LOADER", WarningCategory::possible_user,
         "fit: the module has a validation_step and no validation loader was given; validation is skipped");
}

}  // namespace

void Trainer::Run::fit(TrainModule& module, const FitOptions& loaders, const Function<void()>& instead) {
  check_idle("fit");
  if (!trial) detail::begin_warnings_of_a_run();
  DataModule* const data = train::data_module_of("fit", {&loaders.train, &loaders.val}, loaders.data_module);
  const DataScope with(*this, data);
  const Overrides has = overrides_of(module);
  if (!has.training_step) fail<ConfigError>("fit: the module has no training_step; override it");
  if (!has.configure_optimizers) fail<ConfigError>("fit: the module has no configure_optimizers; override it");
  check_options();
  check_late_options();
  const LoaderRefs &train = loaders.train, &val = loaders.val;
  if (train.empty() && !has.train_loader)
    fail<ConfigError>(
        "fit: 0 training loaders were given, expected one; give .train = &loader, or override the module's "
        "train_loader");
  for (data::DataLoader* const v : val.all()) {
    if (has.validation_step && std::count(train.all().begin(), train.all().end(), v) > 0)
      fail<ConfigError>(
          "fit: a validation loader is the training loader, which can not begin a second loop in the middle of its "
          "epoch; make another one of the same data");
  }
  const bool by_hand = !module.automatic_optimization();
  check_overrides(options, has, by_hand, !val.empty() || has.val_loader);
  last_module = &module;
  last_alive = module.tree() ? module.tree()->alive() : std::weak_ptr<const void>();
  last_data_module = data;
  const auto attach = [&](TrainModule* m) {
    active = m;
    module.trainer_ = m ? &trainer : nullptr;
    if (!m) attach_callbacks(nullptr);  // the module's as well
    callbacks = own_callbacks;
    if (m) add_callbacks_of(module);
    if (m) attach_callbacks(&trainer);
    in_fit = m != nullptr;
    scope = train::LogScope::none;
    due = Due::nothing;
    training = unfinished = closing = false;
    writers_due.clear();
    in_training_step = false;
    untoggle();
    capture.reset();
    handles.clear();
    if (m) optimizers.clear();
    if (m) schedulers.clear();
    train_loader = nullptr;
    val_loaders.clear();
    own_train.reset();
    own_val.reset();
    combined_train.reset();
    inspected.clear();
  };
  const Restore named(call_name, "fit");
  const Scope attached([&] { attach(&module); }, [&] { attach(nullptr); });
  const Restore for_tuner(searching, static_cast<bool>(instead));
  const Restore recorded(loggers, instead ? std::vector<std::shared_ptr<Logger>>{} : loggers);
  if (!options.max_epochs && max_epochs() == 1000)
    warn("W-TRAIN-EPOCHS", WarningCategory::possible_user,
         "fit: neither max_epochs nor max_steps is set; training for 1000 epochs");
  if (loggers.empty() && options.fast_dev_run == 0) {
    for (const auto& c : callbacks) {
      if (c->needs_logger())
        fail<ConfigError>("fit: callbacks holds a ", train::class_of(*c),
                          " and the trainer has no logger for it; give .logger, or drop it");
    }
  }
  overrides = has;
  manual = by_hand;
  check_schedule(*this);
  if (options.enable_autolog_hparams) (void)all_hparams();  // that contradict each other end the run here
  check_transfers(module);
  batches = val_every = 0;
  val_by_hook = val.empty() && has.val_loader && validates();
  if (!val.empty()) use_val(val.all());
  if (train.all().size() > 1)
    combined_train = std::make_unique<data::DataLoader>(data::combine(std::span(train.all())));
  if (!train.empty()) use_train(combined_train ? *combined_train : *train.all().front());
  data_wait = {};
  const void* const trains = module.tree() ? static_cast<const void*>(module.tree()) : lone_optimizer;
  same_module = fitted && trains && trains == trained && !trained_alive.expired();  // not another one at its address
  if (!same_module) {  // what the other one logged is not this one's
    train_log.reset();
    epoch_metrics.clear();
  }
  if (same_module && cut) train_log.back_to(cut->log);
  cut.reset();
  tree = module.tree();
  trained = trains;
  trained_alive = tree ? tree->alive() : lone_optimizer ? lone_optimizer->alive() : std::weak_ptr<const void>();
  optimizers_alive.clear();
  fitted = true;
  fit_module = &module;
  fit_data = data_module;
  fit_callbacks = callbacks;
  device = device_of(tree);
  capture_report = {};
  stop = stop_kept = told_minimum = false;
  stopped_by.clear();
  looked_at.clear();
  forget_scaling();
  stop_signal = 0;
  resumed_from.clear();
  resumed_at = -1;
  validated_at = -1;
  syncs.clear();
  watch.start();
  loss_watch.start();
  sync_check = options.sync_budget ? SyncCheck::forbid : check_of_environment();
  const SyncGuard noted = own_waits();
  const train::SignalGuard signals(options.handle_signals);
  std::optional<train::MemoryLimit> limit;
  if (options.memory_limit) limit.emplace(device, options.memory_limit);
  std::optional<AnomalyMode> anomaly;
  if (options.detect_anomaly) {
    anomaly.emplace();
    warn("I-TRAIN-ANOMALY", WarningCategory::info, "fit: detect_anomaly looks at every result; it is slow");
  }
  if (const char* const left = debugging_left_on())
    warn("I-TRAIN-DEBUG", WarningCategory::info,
         std::string("fit: ") + left + " is set in the environment; every launch waits for the device, which is slow");
  const EngineScope engines(options);

  try {
    call_setup(Stage::fit);
    module.configure_model();
    move_to_accelerator(module);
    std::unique_ptr<train::Incoming> file;
    if (const Found found = instead ? Found() : find_checkpoint(loaders.ckpt_path); !found.path.empty())
      file = std::make_unique<train::Incoming>(
          *this, found.content ? std::move(*found.content) : train::read_checkpoint(found.path));
    if (file) give_back_batch_size(file->file());
    if (file) file->ask_module();
    precision.convert(tree, device_of(tree));
    if (file && tree) file->take_weights();
    if (!configure_optimizers()) return call_teardown(Stage::fit, /*quietly=*/false);
    if (options.memory_limit) limit.emplace(device, options.memory_limit);  // setup may have made the first parameter
    times.reset();
    times.start();
    if (instead) {
      load_val();
      load_train();
      instead();
    } else {
      run_fit(file);
    }
    if (!instead) report_times();
    call_teardown(Stage::fit, /*quietly=*/false);
    finish_loggers("success");
    if (!instead) finish_profiler();
  } catch (...) {
    with_error_in_flight([&](const std::exception& error) {
      call_exception(error);
      if (!instead) report_times();
      give_up_loggers(error);
      call_teardown(Stage::fit, /*quietly=*/true);
      if (!instead) finish_profiler();
    });
    throw;
  }
  check_interrupt();  // of a hook behind on_fit_end
}

// Of the module as setup, configure_model and the file left it, in the dtype of the precision. False: there is none, and nothing is
// trained.
bool Trainer::Run::configure_optimizers() {
  OptimizerConfig config = active->configure_optimizers();
  train::check_optimizers(config, manual);
  if (config.optimizers.empty()) {
    warn("W-TRAIN-NO-OPTIMIZER", WarningCategory::user,
         "fit: configure_optimizers returned no optimizer; nothing is trained");
    return false;
  }
  optimizers = std::move(config.optimizers);
  schedulers = std::move(config.schedulers);
  check_accumulation(*this);
  for (const auto& o : optimizers) {
    handles.push_back(OptimizerHandle(&trainer, o.get()));
    optimizers_alive.push_back(o->alive());
  }
  device = optimizer().parameters().front().value->device();
  train::check_accelerator(options, "fit", device);
  for (const auto& o : optimizers) precision.adopt(*o);
  if (options.capture == Capture::step) capture.emplace(*this);
  return true;
}

void Trainer::Run::run_fit(std::unique_ptr<train::Incoming>& file) {
  if (file) resume(*file);
  file.reset();  // the memory of a second copy of all
  if (precision.scaler()) skipped_seen = precision.scaler()->skipped_steps();
  start_loggers(Stage::fit);
  call(train::hooks::on_fit_start);
  log_hparams();
  clear_gradients();
  load_val();
  const bool trains =
      train_loader ? batches > 0 : !(options.limit_train_batches && options.limit_train_batches->is_zero());
  if (trains && !limits_reached()) tell_of_modes();
  if (resumed_from.empty()) sanity_check();
  if (trains && !limits_reached()) load_train();
  if (due == Due::epoch_end) finish_epoch();
  if (total_batches > 0 && !stop && limits_reached())
    warn("W-TRAIN-NOTHING", WarningCategory::user,
         "fit: " +
             (max_steps_reached() ? "max_steps = " + text(options.max_steps) : "max_epochs = " + text(max_epochs())) +
             " is reached, nothing is trained; raise it, or use a new Trainer for a new training",
         Repeat::yes);
  if (!done() || (trains && unfinished)) {
    last_validation = train::steady_seconds();
    if (options.log_every_n_steps > batches && !loggers.empty())
      warn("W-TRAIN-LOG-INTERVAL", WarningCategory::possible_user,
           "fit: log_every_n_steps is " + text(options.log_every_n_steps) + " and an epoch has " + text(batches) +
               " batches; few records or none are written in it");
    train_epochs();
  }
  call(train::hooks::on_fit_end);
  check_interrupt();
}

// What a run before has left; not what a file gave back, and not the open window of a fit that goes on with this module.
void Trainer::Run::clear_gradients() {
  const bool goes_on = !resumed_from.empty() || (same_module && !manual && !window_opens() && !gradients_torn);
  for (const auto& o : optimizers) {
    if (!goes_on) o->zero_grad();
  }
  if (!goes_on) window_weight = Tensor();
  gradients_torn = batch_torn = false;
}

void Trainer::Run::tell_of_modes() const {
  std::int64_t evaluating = 0, all = 0;
  if (tree)
    tree->visit([&](const std::string&, const nn::Module& m) {
      ++all;
      evaluating += m.is_training() ? 0 : 1;
    });
  if (evaluating > 0)
    warn("W-TRAIN-EVAL-MODE", WarningCategory::possible_user,
         "fit: " + text(evaluating) + " of " + text(all) +
             " modules are in eval mode and stay so: no dropout, batch norms with their running statistics; call "
             "train() on what is to be trained",
         Repeat::yes);
}

// A few batches of validation, so that its errors show before an epoch was trained. It leaves no trace: no metric, no count, no
// random number.
void Trainer::Run::sanity_check() {
  const std::int64_t count = options.num_sanity_val_steps.value_or(2);
  if (val_loaders.empty() || count == 0) return;
  std::vector<std::pair<Generator*, RandomRange>> before;
  if (tree) {
    for (const auto& [name, generator] : tree->generators()) before.emplace_back(generator, generator->state());
  }
  const Metrics metrics = epoch_metrics;
  const train::MetricGuard objects(tree);
  const auto leave = [&] {
    for (const auto& [generator, state] : before) generator->set_state(state);
    epoch_metrics = metrics;
    eval_log.reset();
    sanity = false;
  };
  const Scope checking([&] { sanity = true; }, leave);
  call(train::hooks::on_sanity_check_start);
  (void)evaluation(Loop::validation, *active, val_loaders);
  call(train::hooks::on_sanity_check_end);
}

// Both are told at the end of a run, also of one that was ended.
void Trainer::Run::report_times() {
  times.stop();
  time_report = times.report(device);
  if (options.enable_progress_bar.value_or(true) && !time_report.empty()) std::fputs(time_report.c_str(), stderr);
}
// The last of all, so that the report has teardown. One that can not be written is no reason to lose the run.
void Trainer::Run::finish_profiler() {
  try {
    if (options.profiler) options.profiler->finish();
  } catch (const std::exception& e) {
    warn("W-TRAIN-PROFILER", WarningCategory::runtime,
         std::string("fit: the profiler could not write what it measured. ") + e.what(), Repeat::yes);
  }
}

void Trainer::Run::choose_loggers() {
  loggers.clear();
  if (options.fast_dev_run > 0) return;
  loggers = options.logger.loggers();
  for (const auto& logger : loggers) {
    if (!logger) fail<ConfigError>("Trainer: logger holds a null pointer; leave it out");
  }
  if (options.logger.by_default())
    loggers.push_back(
        std::make_shared<TensorBoardLogger>(TensorBoardLoggerOptions{.save_dir = options.default_root_dir}));
}
void Trainer::Run::start_loggers(Stage stage) {
  for (const auto& logger : loggers) {
    if (stage == Stage::fit)
      logger->start(record_steps(), records);
    else
      logger->start_evaluation(record_steps(), records);
  }
}
void Trainer::Run::log_hparams() {
  if (!options.enable_autolog_hparams) return;
  const HParams all = all_hparams();
  for (const auto& logger : all.empty() ? std::vector<std::shared_ptr<Logger>>{} : loggers)
    logger->log_hparams(to_metadata(all));
}
void Trainer::Run::finish_loggers(std::string_view status) {
  for (const auto& logger : loggers) logger->finalize(status);
}
// The first error is the one to report: what a logger throws now would hide it.
void Trainer::Run::give_up_loggers(const std::exception& error) {
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

}  // namespace levin
