#include <algorithm>
#include <cmath>
#include <limits>

#include "levin/autograd.h"
#include "levin/ops.h"
#include "train/run.h"

namespace levin {
namespace {

// The short door's module: the user's closure as a training step. Its tree is the one the parameters belong to.
class StepModule final : public TrainModule {
 public:
  StepModule(Function<Tensor(const Batch&)> step, nn::Module* tree) : step_(std::move(step)), tree_(tree) {}
  Tensor training_step(const Batch& batch, std::int64_t) override {
    Tensor loss = step_(batch);
    if (loss.defined() && loss.numel() == 1)
      log("train_loss", loss, {.prog_bar = true, .on_step = true, .on_epoch = true});
    return loss;
  }
  OptimizerConfig configure_optimizers() override { return {}; }

 private:
  nn::Module* tree() override { return tree_; }
  Function<Tensor(const Batch&)> step_;
  nn::Module* tree_;
};

// The root of the tree that holds the parameters; null for bare tensors.
nn::Module* root_of(const std::vector<ParamRef>& parameters) {
  nn::Module* root = nullptr;
  for (const ParamRef& p : parameters) {
    nn::Module* owner = nn::owner_of(p);
    if (!owner) continue;
    owner = &owner->root();
    if (root && owner != root)
      fail<ConfigError>("fit: the optimizer's parameters belong to two module trees (\"", p.name,
                        "\" to the second); put both below one module, or use a TrainModule");
    root = owner;
  }
  return root;
}

void check_limit(const char* name, std::int64_t value) {
  if (value < -1) fail<ConfigError>("Trainer: ", name, " is ", value, ", expected -1 (no limit), 0 or more");
}

// Sets what is true for the length of a stage, and takes it back however the stage ends.
template <class Enter, class Leave>
class Scope {
 public:
  Scope(Enter enter, Leave leave) : leave_(std::move(leave)) { enter(); }
  ~Scope() { leave_(); }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  Leave leave_;
};

template <class T>
class Restore {
 public:
  Restore(T& variable, T value) : variable_(variable), before_(std::exchange(variable, std::move(value))) {}
  ~Restore() { variable_ = std::move(before_); }
  Restore(const Restore&) = delete;
  Restore& operator=(const Restore&) = delete;

 private:
  T& variable_;
  T before_;
};

}  // namespace

ModeGuard::ModeGuard(nn::Module* tree) {
  if (!tree) return;
  tree->visit([&](const std::string&, nn::Module& m) { before_.emplace_back(&m, m.is_training()); });
}
ModeGuard::~ModeGuard() {
  for (const auto& [module, training] : before_) module->set_training_flag(training);
}

std::int64_t Portion::of(std::int64_t n, std::string_view option) const {
  if (!is_fraction_) {
    if (count_ < 0)
      fail<ConfigError>("Trainer: ", option, " is ", count_,
                        ", expected a count of 0 or more, or a fraction in [0, 1]");
    return std::min(count_, n);
  }
  if (fraction_ > 1 && fraction_ == std::floor(fraction_) && fraction_ < 1e15)
    return std::min(static_cast<std::int64_t>(fraction_), n);
  if (!(fraction_ >= 0 && fraction_ <= 1))
    fail<ConfigError>("Trainer: ", option, " is ", fraction_,
                      ", expected a count of 0 or more, or a fraction in [0, 1]");
  const auto count = static_cast<std::int64_t>(static_cast<double>(n) * fraction_);
  if (count == 0 && fraction_ > 0 && n > 0)
    fail<ConfigError>("Trainer: ", option, " = ", fraction_, " of ", n,
                      " batches is none; the least fraction that works is ", 1.0 / static_cast<double>(n));
  return count;
}

Trainer::Run::Run(Trainer& t, TrainerOptions o) : trainer(t), options(std::move(o)), precision(options) {
  check_options();
  verify_callbacks();
}

void Trainer::Run::check_options() const {
  if (options.max_epochs) check_limit("max_epochs", *options.max_epochs);
  check_limit("max_steps", options.max_steps);
  if (options.log_every_n_steps < 0)
    fail<ConfigError>("Trainer: log_every_n_steps is ", options.log_every_n_steps, ", expected 0 (never) or more");
  if (options.gradient_clip_val && !(*options.gradient_clip_val >= 0))
    fail<ConfigError>("Trainer: gradient_clip_val is ", *options.gradient_clip_val,
                      ", expected a number above 0; leave it unset to switch clipping off");
}

std::int64_t Trainer::Run::max_epochs() const {
  if (options.max_epochs) return *options.max_epochs;
  return options.max_steps >= 0 ? -1 : 1000;
}
bool Trainer::Run::max_steps_reached() const { return options.max_steps >= 0 && global_step >= options.max_steps; }
bool Trainer::Run::done() const {
  return batches == 0 || max_steps_reached() || (max_epochs() >= 0 && epoch >= max_epochs()) || stop;
}

Device Trainer::Run::device_of(nn::Module* of) const {
  if (of) {
    if (const std::vector<ParamRef> parameters = of->parameters(); !parameters.empty())
      return parameters.front().value->device();
  }
  return device;
}
StepInfo Trainer::Run::info(const Batch* batch) const {
  return {.epoch = epoch, .batch_idx = batches_done, .global_step = global_step, .batch = batch, .loss = {}};
}

// ---- The loop

void Trainer::Run::fit(TrainModule& module, OptimizerConfig config, data::DataLoader& train, data::DataLoader* val,
                       const std::string& ckpt_path) {
  check_options();  // they may have been changed since the constructor looked
  if (!config.optimizer)
    fail<ConfigError>("fit: configure_optimizers returned no optimizer; return one, there is nothing to train without");
  for (const SchedulerConfig& s : config.schedulers) {
    if (!s.scheduler) fail<ConfigError>("fit: a scheduler is null; leave it out");
    if (&s.scheduler->optimizer() != config.optimizer.get())
      fail<ConfigError>("fit: a scheduler belongs to another optimizer than the one trained with");
    if (s.frequency < 1) fail<ConfigError>("fit: a scheduler has frequency ", s.frequency, ", expected 1 or more");
    if (s.scheduler->needs_metric())
      fail<ConfigError>("fit: plateau schedules need a metric; call step(metric) on it in on_validation_end");
  }
  batches = options.limit_train_batches.value_or(Portion(1.0)).of(train.size(), "limit_train_batches");
  if (val && options.limit_val_batches.value_or(Portion(1.0)).of(val->size(), "limit_val_batches") == 0) val = nullptr;
  if (!options.max_epochs && options.max_steps < 0)
    warn("W-TRAIN-EPOCHS", WarningCategory::possible_user,
         "fit: neither max_epochs nor max_steps is set; training for 1000 epochs");

  const auto attach = [&](TrainModule* m) {
    active = m;
    module.trainer_ = m ? &trainer : nullptr;
    for (const auto& c : callbacks) c->trainer_ = m ? &trainer : nullptr;
    in_fit = m != nullptr;
    scope = train::LogScope::none;
    epoch_finished = false;
    capture.reset();
    if (!m) train_loader = val_loader = nullptr;
  };
  const Scope attached([&] { attach(&module); }, [&] { attach(nullptr); });
  const Restore named(call_name, "fit");
  tree = module.tree();
  fitted = true;
  optimizer = std::move(config.optimizer);
  schedulers = std::move(config.schedulers);
  device = optimizer->parameters().front().value->device();
  precision.adopt(*optimizer);
  capture_report = {};
  if (options.capture == Capture::step) capture.emplace(device);
  train_loader = &train;
  val_loader = val;
  stop = false;
  stop_signal = 0;
  resumed_from.clear();
  const train::SignalGuard signals(options.handle_signals);
  std::optional<AnomalyMode> anomaly;
  if (options.detect_anomaly) anomaly.emplace();

  try {
    if (const std::string file = find_checkpoint(ckpt_path); !file.empty()) resume(file);
    if (precision.scaler()) skipped_seen = precision.scaler()->skipped_steps();
    call(&Hooks::on_fit_start);
    if (!done()) {
      call(&Hooks::on_train_start);
      while (!done()) {
        check_interrupt();
        train_epoch();
      }
      call(&Hooks::on_train_end);
    }
    call(&Hooks::on_fit_end);
  } catch (const std::exception& error) {
    call_exception(error);
    throw;
  }
}

// From the batch where the last run was cut, else from the first. The epoch's order is a function of its index alone.
void Trainer::Run::train_epoch() {
  using Interval = SchedulerConfig::Interval;
  const std::int64_t first = batches_done;
  bool skipped = false;
  scope = train::LogScope::train_epoch;
  call(&Hooks::on_train_epoch_start);
  if (batches_done < batches) {
    position.epoch = epoch;
    train_loader->load_state(position);
    for (const Batch& loaded : *train_loader) {
      scope = train::LogScope::train_batch;
      scope_batch_size = std::max<std::int64_t>(1, loaded.size());
      const Batch batch = to_device(loaded);
      if (call_batch_start(info(&batch)) == BatchStart::skip_epoch) {
        skipped = true;
        break;
      }
      train_batch(batch);
      if (batches_done == batches || max_steps_reached() || stop) break;
      check_interrupt();
    }
  }
  const bool whole = batches_done == batches;
  // By max_steps: the epoch stays open for a run that goes on. A loader that gave fewer batches than its size()
  // promised ends it: waiting for the rest would never end.
  const bool cut = !whole && !skipped && !stop && max_steps_reached();
  if (!whole && !cut) advance_schedulers(Interval::epoch);
  if (val_loader && !skipped && !cut && (whole || batches_done > first))
    evaluation(Stage::validation, *active, *val_loader);

  scope = train::LogScope::train_epoch;
  epoch_finished = !cut;
  call_epoch_end();
  epoch_finished = false;
  scope = train::LogScope::none;
  if (cut) return;
  const Metrics means = train_log.take_epoch();
  for (const auto& [name, value] : means) {
    train::set_metric(epoch_metrics, name, value);
    if (name.ends_with("_epoch")) train::set_metric(epoch_metrics, name.substr(0, name.size() - 6), value);
  }
  if (!means.empty() && global_step > 0) history.push_back({.step = global_step - 1, .epoch = epoch, .values = means});
  ++epoch;
  batches_done = 0;
  position = {.epoch = epoch};
}

void Trainer::Run::train_batch(const Batch& batch) {
  using Interval = SchedulerConfig::Interval;
  StepInfo step_info = info(&batch);
  const bool hold = precision.scaler() && options.lr_on_skipped_step == OnSkippedStep::hold;
  const std::int64_t skipped = skipped_seen;
  step_info.loss = step(step_info);
  ++batches_done;
  position.hand_out(batch.position);
  ++total_batches;
  if (hold) skipped_seen = precision.scaler()->skipped_steps();
  if (!hold || skipped_seen == skipped) advance_schedulers(Interval::step);
  if (batches_done == batches) advance_schedulers(Interval::epoch);
  step_info.global_step = global_step;
  call(&Hooks::on_train_batch_end, step_info);
  record_step();
}

void Trainer::Run::record_step() {
  const bool due = options.log_every_n_steps > 0 && (global_step % options.log_every_n_steps == 0 || stop);
  if (!due) return;
  Metrics values = train_log.take_step();
  if (!values.empty()) history.push_back({.step = global_step - 1, .epoch = epoch, .values = std::move(values)});
}

void Trainer::Run::check_interrupt() {
  const int signal = options.handle_signals ? train::SignalGuard::received() : 0;  // else: another trainer's
  if (signal == 0) return;
  stop_signal = signal;
  std::string saved = "; nothing was saved because checkpointing is off";
  if (in_fit && checkpointing()) {
    const std::string path = checkpoint_dir() + "/last.safetensors";
    save(path, WeightsOnly::no);
    saved = "; saved " + path + ", ckpt_path = \"last\" goes on from there";
  }
  fail<InterruptedError>(call_name, ": stopped by ", signal == SIGINT ? "SIGINT" : "SIGTERM", " after ", global_step,
                         " optimizer steps", saved);
}

// ---- Evaluation

Metrics Trainer::Run::evaluation(Stage stage, TrainModule& module, data::DataLoader& loader) {
  const bool val = stage == Stage::validation;
  const auto& limit = val ? options.limit_val_batches : options.limit_test_batches;
  const std::int64_t count =
      limit.value_or(Portion(1.0)).of(loader.size(), val ? "limit_val_batches" : "limit_test_batches");
  // A hook may evaluate, another module too: afterwards the stage around it goes on with its own.
  const bool nested = active != nullptr;
  const Restore<TrainModule*> now_active(active, &module);
  const Restore<Trainer*> of_module(module.trainer_, &trainer);
  const auto attach_callbacks = [&](Trainer* t) {
    for (const auto& c : callbacks) c->trainer_ = t;
  };
  const Scope attached([&] { attach_callbacks(&trainer); }, [&] { attach_callbacks(nested ? &trainer : nullptr); });
  if (module.tree() != tree || !in_fit) precision.convert(module.tree(), device_of(module.tree()));
  const Restore named(call_name, nested ? call_name : val ? "validate" : "test");
  try {
    return evaluation_loop(stage, module, loader, count);
  } catch (const std::exception& error) {
    if (!nested) call_exception(error);
    throw;
  }
}

Metrics Trainer::Run::evaluation_loop(Stage stage, TrainModule& module, data::DataLoader& loader, std::int64_t count) {
  const bool val = stage == Stage::validation;
  const ModeGuard modes(module.tree());
  if (module.tree()) module.tree()->train(false);
  const InferenceMode inference;
  const Device there = device_of(module.tree());
  const train::SignalGuard signals(options.handle_signals);
  const Restore restore(scope, train::LogScope::eval);
  const Restore size(scope_batch_size, std::int64_t{1});
  eval_log.reset();

  call(val ? &Hooks::on_validation_start : &Hooks::on_test_start);
  call(val ? &Hooks::on_validation_epoch_start : &Hooks::on_test_epoch_start);
  std::int64_t done = 0;
  if (count > 0) {
    for (const Batch& loaded : loader) {
      scope_batch_size = std::max<std::int64_t>(1, loaded.size());
      const Batch batch = precision.inputs(loaded, there);
      const StepInfo at{.epoch = epoch, .batch_idx = done, .global_step = global_step, .batch = &batch, .loss = {}};
      call(val ? &Hooks::on_validation_batch_start : &Hooks::on_test_batch_start, at);
      precision.run([&] { val ? module.validation_step(batch, done) : module.test_step(batch, done); });
      call(val ? &Hooks::on_validation_batch_end : &Hooks::on_test_batch_end, at);
      check_interrupt();
      if (++done == count) break;
    }
  }
  call(val ? &Hooks::on_validation_epoch_end : &Hooks::on_test_epoch_end);
  Metrics means = eval_log.take_epoch();
  for (const auto& [name, value] : means) train::set_metric(epoch_metrics, name, value);
  if (!means.empty())
    history.push_back({.step = std::max<std::int64_t>(0, global_step - 1), .epoch = epoch, .values = means});
  call(val ? &Hooks::on_validation_end : &Hooks::on_test_end);
  return means;
}

double Trainer::Run::mean_over(nn::Module* over, data::DataLoader& loader, const Function<Tensor(const Batch&)>& f) {
  const ModeGuard modes(over);
  const Restore named(call_name, in_fit ? call_name : "evaluate");
  if (over) over->train(false);
  const InferenceMode inference;
  const Device there = device_of(over);
  const train::SignalGuard signals(options.handle_signals);
  const Restore restore(scope, train::LogScope::eval);
  const Restore size(scope_batch_size, std::int64_t{1});
  eval_log.reset();
  Tensor sum;  // f64 on the values' device: read once, at the end
  double weight = 0;
  for (const Batch& loaded : loader) {
    scope_batch_size = std::max<std::int64_t>(1, loaded.size());
    const Batch batch = precision.inputs(loaded, there);
    const Tensor value = precision.run([&] { return f(batch); });
    if (!value.defined() || value.numel() != 1)
      fail<ShapeError>("evaluate: the function returned ", value.defined() ? text(value) : "an undefined tensor",
                       ", expected one element a batch");
    const Tensor term = value.to(DType::f64) * static_cast<double>(scope_batch_size);
    sum = sum.defined() ? sum + term : term;
    weight += static_cast<double>(scope_batch_size);
    check_interrupt();
  }
  if (weight == 0) fail<DataError>("evaluate: the loader has no batches, and a mean of nothing is not defined");
  for (const auto& [name, mean] : eval_log.take_epoch()) train::set_metric(epoch_metrics, name, mean);
  return sum.item() / weight;
}

// ---- The public face

Trainer::Trainer(TrainerOptions options) : run_(std::make_unique<Run>(*this, std::move(options))) {}
Trainer::~Trainer() = default;

void Trainer::fit(TrainModule& module, const FitOptions& loaders) {
  if (!loaders.train) fail<ConfigError>("fit: no training loader; give .train = &loader");
  run_->check_options();
  run_->precision.convert(module.tree(), run_->device_of(module.tree()));
  run_->fit(module, module.configure_optimizers(), *loaders.train, loaders.val, loaders.ckpt_path);
}

void Trainer::fit(optim::Optimizer& optimizer, data::DataLoader& train, Function<Tensor(const Batch&)> step,
                  const StepOptions& options) {
  const std::vector<ParamRef> parameters = optimizer.parameters();
  nn::Module* const tree = root_of(parameters);
  run_->check_options();
  StepModule module(std::move(step), tree);
  run_->precision.convert(tree, parameters.front().value->device());
  // Borrowed: the caller's optimizer outlives the call.
  OptimizerConfig config{.optimizer = std::shared_ptr<optim::Optimizer>(std::shared_ptr<void>(), &optimizer),
                         .schedulers = options.schedulers};
  run_->fit(module, std::move(config), train, nullptr, options.ckpt_path);
}

Metrics Trainer::validate(TrainModule& module, data::DataLoader& loader) {
  return run_->evaluation(Run::Stage::validation, module, loader);
}
Metrics Trainer::test(TrainModule& module, data::DataLoader& loader) {
  return run_->evaluation(Run::Stage::test, module, loader);
}
double Trainer::evaluate(data::DataLoader& loader, const Function<Tensor(const Batch&)>& f) {
  if (!run_->fitted) fail<StateError>("evaluate: no module is known before a fit; use evaluate(module, loader, f)");
  return run_->mean_over(run_->tree, loader, f);
}
double Trainer::evaluate(nn::Module& module, data::DataLoader& loader, const Function<Tensor(const Batch&)>& f) {
  run_->precision.convert(&module, run_->device_of(&module));
  return run_->mean_over(&module, loader, f);
}

std::int64_t Trainer::global_step() const { return run_->global_step; }
std::int64_t Trainer::current_epoch() const { return run_->epoch; }
std::int64_t Trainer::batch_idx() const { return run_->batches_done - 1; }
std::int64_t Trainer::total_batch_idx() const { return run_->total_batches; }
std::int64_t Trainer::batches_per_epoch() const { return run_->batches; }
bool Trainer::is_last_batch() const { return run_->batches_done + 1 >= run_->batches; }
std::optional<std::int64_t> Trainer::estimated_stepping_batches() const {
  if (!run_->in_fit) fail<StateError>("estimated_stepping_batches: called outside of fit");
  const std::int64_t epochs = run_->max_epochs(), steps = run_->options.max_steps;
  if (epochs < 0) return steps < 0 ? std::nullopt : std::optional(steps);
  std::int64_t all = 0;
  if (__builtin_mul_overflow(epochs, run_->batches, &all)) all = std::numeric_limits<std::int64_t>::max();
  return steps < 0 ? all : std::min(all, steps);
}
void Trainer::request_stop() { run_->stop = true; }
bool Trainer::stop_requested() const { return run_->stop; }
int Trainer::stop_signal() const { return run_->stop_signal; }
std::int64_t Trainer::skipped_steps() const {
  const optim::GradScaler* scaler = run_->precision.scaler();
  return scaler ? scaler->skipped_steps() : 0;
}
Trainer::CaptureReport Trainer::capture_report() const { return run_->capture_report; }

void Trainer::log(std::string_view name, const Tensor& value, const LogOptions& options) {
  if (run_->scope == train::LogScope::none)
    fail<StateError>("log: \"", name,
                     "\" is logged outside of batches and epochs; call it in a step or in their hooks");
  train::MetricLog& log = run_->scope == train::LogScope::eval ? run_->eval_log : run_->train_log;
  log.log(name, value, options, run_->scope, run_->scope == train::LogScope::train_epoch ? 1 : run_->scope_batch_size);
}
void Trainer::log(std::string_view name, double value, const LogOptions& options) {
  log(name, full({}, value, Device::cpu(), DType::f64), options);
}
Metrics Trainer::callback_metrics() {
  Metrics all = run_->epoch_metrics;
  run_->train_log.newest(all);
  run_->eval_log.newest(all);
  return all;
}
Metrics Trainer::progress_metrics() {
  Metrics shown;
  run_->train_log.progress(shown);
  run_->eval_log.progress(shown);
  return shown;
}
const std::vector<LogRecord>& Trainer::history() const { return run_->history; }

void Trainer::save_checkpoint(const std::string& path, WeightsOnly weights) {
  if (!run_->fitted) fail<StateError>("save_checkpoint: nothing to save before a fit");
  run_->save(path, weights);
}
TrainerOptions& Trainer::options() { return run_->options; }
const std::string& Trainer::resumed_from() const { return run_->resumed_from; }
nn::Module* Trainer::module() const { return run_->tree; }
optim::Optimizer* Trainer::optimizer() const { return run_->optimizer.get(); }

}  // namespace levin
