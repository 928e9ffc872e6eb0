// A fit around its loop: its set-up and its end, and what comes before the first epoch.
#include "levin/autograd.h"
#include "tensor/errors/warn.h"
#include "train/checkpoint/content.h"
#include "train/options/accelerators.h"
#include "train/run/fit_checks.h"
#include "train/run/requeue.h"
#include "train/run/run.h"
#include "train/run/signals.h"

namespace levin {

using train::Due;
using train::Restore;
using train::Scope;

void Trainer::Run::fit(TrainModule& module, const FitOptions& given, const Function<void()>& instead) {
  check_idle("fit");
  if (!trial) detail::begin_warnings_of_a_run();
  DataModule* const data = train::data_module_of("fit", {&given.train, &given.val}, given.data_module);
  const Borrowed::DataScope with(borrowed, trainer, data);
  const Overrides has = borrowed.overrides_of(module);
  const bool manual = !module.automatic_optimization();
  train::check_fit(*this, given, has, manual);
  connect();
  borrowed.remember(module, data);
  const Restore named(call_name, "fit");
  const Scope attached([&] { attach(module, true); }, [&] { attach(module, false); });
  const Restore for_tuner(searching, static_cast<bool>(instead));
  const Restore recorded(logs.loggers, instead ? std::vector<std::shared_ptr<Logger>>{} : logs.loggers);
  begin_fit(module, given, has, manual);
  const SyncGuard noted = instruments.own_waits();
  const train::SignalGuard signals(options.handle_signals, ends_waits(), train::requeue_signal(options));
  std::optional<train::MemoryLimit> limit;
  if (options.memory_limit) limit.emplace(device, options.memory_limit);
  std::optional<AnomalyMode> anomaly;
  if (options.detect_anomaly) anomaly.emplace();
  train::warn_of_debugging(options);
  const train::EngineScope engines(options);

  const Scope on_ranks([] {}, [&] { strategy->detach(); });
  try {
    hooks.setup(Stage::fit);
    module.configure_model();
    move_to_accelerator(module);
    std::unique_ptr<train::Incoming> file;
    if (!instead) file = files.open(given.ckpt_path);
    precision.convert(borrowed.tree, device_of(borrowed.tree));
    // Ranks reduce a gradient while backward goes on, and sharded parameters have no values until their unit runs.
    const bool alone = !strategy->group() && !strategy->fuses_backward();
    const Scope casts([&] { precision.cast_together(alone); }, [&] { precision.cast_together(false); });
    strategy->attach_model(module, borrowed.tree, Stage::fit);
    const bool one = strategy->ranks().size == 1;
    if (options.sync_batchnorm && one)
      warn("W-TRAIN-SYNC-BATCHNORM", WarningCategory::user,
           "fit: sync_batchnorm is on and there is one rank, so batch norms take the statistics of its batches");
    std::shared_ptr<LayerSync> synced = options.plugins.layer_sync;
    if (options.sync_batchnorm) synced = std::make_shared<BatchNormSync>();
    if (one || !strategy->group() || !borrowed.tree) synced = nullptr;
    const auto sync = [&] {
      if (synced) synced->apply(*borrowed.tree, strategy->group());
    };
    const Scope over_ranks(sync, [&, tree = borrowed.tree] {
      if (synced) synced->revert(*tree);
    });
    if (file && borrowed.tree) file->take_weights();
    if (!configure_optimizers()) return hooks.teardown(Stage::fit, /*quietly=*/false);
    if (options.memory_limit) limit.emplace(device, options.memory_limit);  // setup may have made the first parameter
    instruments.start_clock();
    if (instead) {
      loaders.load_val();
      loaders.load_train();
      instead();
    } else {
      train(file);
      instruments.report_times();
    }
    hooks.teardown(Stage::fit, /*quietly=*/false);
    logs.finish("success");
    if (!instead) instruments.finish_profiler();
  } catch (...) {
    std::string rescued;
    train::with_error_in_flight([&](const std::exception& error) {
      if (ends_together(error))
        strategy->interrupted();
      else
        strategy->failed(error);
      const bool by_rank = dynamic_cast<const CommError*>(&error) != nullptr ||
                           (dynamic_cast<const InterruptedError*>(&error) != nullptr && stop.signal == 0);
      if (by_rank && strategy->rescues()) rescued = files.rescue();
      if (!rescued.empty()) rescued = std::string(error.what()) + "; " + rescued;
      hooks.exception(error);
      files.finish_quietly();
      if (!instead) instruments.report_times();
      logs.give_up(error);
      hooks.teardown(Stage::fit, /*quietly=*/true);
      if (!instead) instruments.finish_profiler();
    });
    if (!rescued.empty()) fail<CommError>(rescued);
    throw;
  }
  check_interrupt();  // of a hook after on_fit_end
}

// Resets the run at both ends of a fit. Calls after the fit need the parts that the end keeps.
void Trainer::Run::attach(TrainModule& module, bool begins) {
  borrowed.active = begins ? &module : nullptr;
  Borrowed::attach(module, begins ? &trainer : nullptr);
  if (begins)
    hooks.begin(module);
  else
    hooks.end();
  in_fit = begins;
  in_training_step = false;
  logs.scope = train::LogScope::none;
  progress.due = Due::nothing;
  files.training = files.unfinished = progress.closing = false;
  hooks.writers_due.clear();
  optimizers.untoggle();
  optimizers.handles.clear();
  capture.reset();
  if (begins) {
    optimizers.all.clear();
    optimizers.schedulers.clear();
  }
  loaders.forget();
}

void Trainer::Run::begin_fit(TrainModule& module, const FitOptions& given, const Overrides& has, bool manual) {
  if (!options.max_epochs && stop.max_epochs() == 1000)
    warn("W-TRAIN-EPOCHS", WarningCategory::possible_user,
         "fit: neither max_epochs nor max_steps is set; training for 1000 epochs");
  train::check_callbacks(*this, has, manual);
  borrowed.overrides = has;
  borrowed.manual = manual;
  if (options.enable_autolog_hparams) (void)borrowed.all_hparams();  // throws here for names with two values
  borrowed.check_transfers(call_name, module);
  loaders.begin_fit(given.train, given.val, has);
  borrowed.begin_fit(module);
  logs.begin_fit(borrowed.same_module, files.cut);
  hooks.of_fit = hooks.callbacks;
  device = device_of(borrowed.tree);
  capture_report = {};
  stop.start_fit();
  optimizers.begin_fit();
  files.begin_fit();
  progress.validated_at = -1;
  instruments.begin_fit();
}

// Rank 0 alone writes records and draws. Its logger names the folder of checkpoints.
void Trainer::Run::connect() {
  strategy->connect(options);
  if (strategy->ranks().size == 1) return;
  instruments.times.tell([this](Phase phase) { strategy->entered(phase, progress.global_step); });
  files.folder_of_logger = files.by_rank_zero(  // the call makes the folder
      [&] { return logs.loggers.empty() ? std::string() : logs.loggers.front()->log_dir(); });
  if (strategy->ranks().rank == 0) return;
  logs.loggers.clear();
  hooks.drop_screens();
}

train::WaitsEnd Trainer::Run::ends_waits() const {
  return strategy->ranks().size == 1 ? train::WaitsEnd::yes : train::WaitsEnd::no;
}

bool Trainer::Run::ends_together(const std::exception& error) const {
  return stop.agreed_signal != 0 && dynamic_cast<const InterruptedError*>(&error) != nullptr;
}

// Note [A module on several devices]
// A module that places its parts on several devices itself stays as it is. Its batches go to the device of its first
// parameter, and its own calls move what crosses from one device to the next.
void Trainer::Run::move_to_accelerator(TrainModule& module) {
  nn::Module* const all = Borrowed::tree_of(module);
  const std::optional<Device> own = strategy->device(), to = own ? own : train::accelerator_device(options);
  if (!all) return;
  const std::vector<ParamRef> parameters = all->parameters();
  if (parameters.empty()) return;
  if (const std::vector<Device> devices = train::devices_of(parameters); !own && devices.size() > 1) {
    std::string names;
    for (const Device d : devices) names += (names.empty() ? "" : ", ") + text(d);
    warn("I-TRAIN-SPLIT", WarningCategory::info,
         std::string(call_name) + ": the module's parameters are on " + names + "; nothing is moved, batches go to " +
             text(devices.front()) + ", and each activation that crosses devices is a copy (Trainer::copy_report)");
    return;
  }
  if (!to) return;
  if (own ? device_of(all) == *own : device_of(all).type() == to->type()) return;
  all->to(*to);
  if (all == borrowed.tree) device = *to;
}

// Called after setup, configure_model, the file and the precision have changed the module. Returns false if there is no
// optimizer; then nothing is trained.
bool Trainer::Run::configure_optimizers() {
  OptimizerConfig config = borrowed.active->configure_optimizers();
  train::check_optimizers(config, borrowed.manual);
  if (config.optimizers.empty()) {
    warn("W-TRAIN-NO-OPTIMIZER", WarningCategory::user,
         "fit: configure_optimizers returned no optimizer; nothing is trained");
    return false;
  }
  optimizers.all = std::move(config.optimizers);
  optimizers.schedulers = std::move(config.schedulers);
  train::check_accumulation(*this);
  for (const auto& o : optimizers.all) {
    optimizers.handles.push_back(OptimizerHandle(&trainer, o.get()));
    borrowed.watch(*o);
  }
  const std::vector<ParamRef> trained = optimizers.front().parameters();
  device = train::devices_of(trained).size() > 1 ? device_of(borrowed.tree) : trained.front().value->device();
  train::check_accelerator(options, "fit", device);
  strategy->attach_optimizers(optimizers.all);  // before masters, which are then those of this rank's pieces
  for (const auto& o : optimizers.all) precision.adopt(*o);
  if (options.capture == Capture::step) capture.emplace(*this);
  return true;
}

void Trainer::Run::train(std::unique_ptr<train::Incoming>& file) {
  if (file) files.resume(*file);
  file.reset();  // frees a second copy of the weights
  if (precision.scaler()) optimizers.skipped_seen = precision.scaler()->skipped_steps();
  logs.start(Stage::fit);
  hooks.call(train::hooks::on_fit_start);
  agree();  // what a hook asked for on one rank decides below what all do
  logs.log_hparams();
  clear_gradients();
  loaders.load_val();
  const bool trains =
      loaders.train ? loaders.batches > 0 : !(options.limit_train_batches && options.limit_train_batches->is_zero());
  if (trains && !limits_reached()) train::warn_of_eval_mode(borrowed.tree);
  if (files.resumed_from.empty()) evaluation.sanity_check();
  if (trains && !limits_reached()) loaders.load_train();
  if (progress.due == Due::epoch_end) follow_epoch();
  train::warn_of_reached_limits(*this);
  if ((loaders.batches > 0 && !limits_reached()) || (trains && files.unfinished)) {
    evaluation.last_validation = train::steady_seconds();
    train::warn_of_few_records(*this);
    train_epochs();
  }
  strategy->unshard();  // what follows reads the module as a whole
  strategy->reshard();
  hooks.call(train::hooks::on_fit_end);
  files.finish();
  check_interrupt();
}

// Clears the gradients of the fit before, unless a file brought them or they belong to an open window of this module.
void Trainer::Run::clear_gradients() {
  const bool resumes = !files.resumed_from.empty() ||
                       (borrowed.same_module && !borrowed.manual && !window.opens() && !window.gradients_torn);
  for (const auto& o : optimizers.all) {
    if (!resumes) o->zero_grad();
  }
  if (!resumes) window.weight = Tensor();
  window.gradients_torn = window.batch_torn = false;
}

}  // namespace levin
