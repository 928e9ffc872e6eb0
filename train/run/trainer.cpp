// The public face of a Trainer, and the module of a fit of an optimizer and a function.
#include <algorithm>
#include <cstdio>
#include <limits>

#include "levin/autograd.h"
#include "levin/ops.h"
#include "train/options/accelerators.h"
#include "train/options/options.h"
#include "train/run/fit_checks.h"
#include "train/run/run.h"

namespace levin {
namespace {

// The user's function as a training step. The tree is the one that the parameters belong to.
class StepModule final : public TrainModuleOf<StepModule> {
 public:
  StepModule(Function<Tensor(const Batch&)> step, nn::Module* tree, OptimizerConfig config)
      : step_(std::move(step)), tree_(tree), config_(std::move(config)) {}
  OptimizerConfig configure_optimizers() override { return config_; }
  StepOutput training_step(const Batch& batch, std::int64_t) override {
    Tensor loss = step_(batch);
    if (!loss.defined())
      fail<ConfigError>(
          "fit: the function that gives the loss of a batch returned an undefined tensor; return the loss");
    if (loss.numel() == 1) log("train_loss", loss, {.prog_bar = true, .on_step = true, .on_epoch = true});
    return loss;
  }

 private:
  nn::Module* tree() override { return tree_; }
  Function<Tensor(const Batch&)> step_;
  nn::Module* tree_;
  OptimizerConfig config_;
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

}  // namespace

LoaderRefs::LoaderRefs(data::DataLoader* one) {
  if (one) all_.push_back(one);
}
LoaderRefs::LoaderRefs(std::initializer_list<data::DataLoader*> all) : all_(all) {
  for (std::size_t i = 0; i < all_.size(); ++i) {
    if (!all_[i]) fail<ConfigError>("Trainer: loader ", i, " is null; leave it out");
  }
}

namespace {
std::shared_ptr<Strategy> strategy_of(const TrainerOptions& o) {
  if (o.strategy.object()) return o.strategy.object();
  for (const detail::MakeStrategy make : {o.strategy.maker(), o.devices.maker(), o.num_nodes.maker()}) {
    if (make) return make(o);
  }
  return std::make_shared<Strategy>();
}
}  // namespace

Trainer::Run::Run(Trainer& t, TrainerOptions o)
    : trainer(t), options(std::move(o)), strategy(strategy_of(options)), precision(options) {
  train::check_options(options);
  strategy->check(options);
  train::report_portions(options);
  train::apply_shortcuts(options);
  hooks.collect();
  logs.choose_loggers();
  constructed_with = options;
}

void Trainer::Run::check_idle(const char* call) const {
  if (borrowed.active)
    fail<StateError>(call, ": the trainer is running ", call_name,
                     ", and this was called in a hook or step of it; call "
                     "it when that has ended, or use another Trainer");
  if (files.saving)
    fail<StateError>(call,
                     ": the trainer is writing a checkpoint, and this was called in on_save_checkpoint; call it "
                     "when the file is written, or use another Trainer");
}
Device Trainer::Run::device_of(nn::Module* of) const {
  if (of) {
    if (const std::vector<ParamRef> parameters = of->parameters(); !parameters.empty())
      return parameters.front().value->device();
  }
  return device;
}

// ---- The public face

Trainer::Trainer(TrainerOptions options) : run_(std::make_unique<Run>(*this, std::move(options))) {}
Trainer::~Trainer() = default;

void Trainer::fit(TrainModule& module, const FitOptions& loaders) { run_->fit_in_place(module, loaders); }

void Trainer::fit(optim::Optimizer& optimizer, data::DataLoader& train, Function<Tensor(const Batch&)> step,
                  const StepOptions& options) {
  run_->check_idle("fit");
  if (!step) fail<ConfigError>("fit: the step is empty, expected a function from a batch to its loss");
  const std::vector<ParamRef> parameters = optimizer.model_parameters();
  nn::Module* const tree = root_of(parameters);
  train::check_options(run_->options);
  // Borrowed: the caller's optimizer outlives the call.
  OptimizerConfig config{.optimizers = {std::shared_ptr<optim::Optimizer>(std::shared_ptr<void>(), &optimizer)},
                         .schedulers = options.schedulers};
  train::check_optimizers(config, /*manual=*/false);
  StepModule module(std::move(step), tree, std::move(config));
  run_->device = parameters.front().value->device();  // bare tensors have no tree that knows their device
  train::check_accelerator(run_->options, "fit", run_->device);
  const train::Restore<const optim::Optimizer*> lone(run_->borrowed.lone_optimizer, tree ? nullptr : &optimizer);
  const auto forget = [&] { run_->borrowed.fit_module = run_->borrowed.last_module = nullptr; };
  const train::Scope gone([] {}, forget);
  run_->fit_in_place(module, {.train = train, .ckpt_path = options.ckpt_path});
}

namespace {
// Prints the results of an evaluation, on rank 0 and unless it ran in a hook, and returns them.
std::vector<Metrics> shown(const Trainer& trainer, const char* call, const EvaluationOptions& options,
                           std::vector<Metrics> results, bool inside) {
  if (options.verbose && !inside && trainer.is_global_zero())
    std::fputs(train::results_table(call, results).c_str(), stderr);
  return results;
}
void check_function(const Function<Tensor(const Batch&)>& f) {
  if (!f) fail<ConfigError>("evaluate: the function is empty, expected one from a batch to a number");
}
}  // namespace

std::vector<Metrics> Trainer::validate(TrainModule& module, const LoaderRefs& loaders, const EvaluationOptions& o) {
  return shown(*this, "validate", o,
               run_->evaluation.call({train::Loop::validation, &module, loaders, o.data_module, o.ckpt_path}),
               run_->borrowed.active != nullptr);
}
std::vector<Metrics> Trainer::validate(const LoaderRefs& loaders, const EvaluationOptions& o) {
  return shown(*this, "validate", o,
               run_->evaluation.call({train::Loop::validation, nullptr, loaders, o.data_module, o.ckpt_path}), false);
}
std::vector<Metrics> Trainer::test(TrainModule& module, const LoaderRefs& loaders, const EvaluationOptions& o) {
  return shown(*this, "test", o,
               run_->evaluation.call({train::Loop::test, &module, loaders, o.data_module, o.ckpt_path}),
               run_->borrowed.active != nullptr);
}
std::vector<Metrics> Trainer::test(const LoaderRefs& loaders, const EvaluationOptions& o) {
  return shown(*this, "test", o,
               run_->evaluation.call({train::Loop::test, nullptr, loaders, o.data_module, o.ckpt_path}), false);
}
std::vector<Tensors> Trainer::predict(TrainModule& module, const LoaderRefs& loaders, const PredictOptions& o) {
  std::vector<Tensors> all;
  (void)run_->evaluation.call(
      {train::Loop::predict, &module, loaders, o.data_module, o.ckpt_path, o.return_predictions ? &all : nullptr});
  return all;
}
std::vector<Tensors> Trainer::predict(const LoaderRefs& loaders, const PredictOptions& o) {
  std::vector<Tensors> all;
  (void)run_->evaluation.call(
      {train::Loop::predict, nullptr, loaders, o.data_module, o.ckpt_path, o.return_predictions ? &all : nullptr});
  return all;
}
double Trainer::evaluate(data::DataLoader& loader, const Function<Tensor(const Batch&)>& f) {
  check_function(f);
  if (!run_->borrowed.fitted)
    fail<StateError>("evaluate: no module is known before a fit; use evaluate(module, loader, f)");
  run_->borrowed.check_lives("evaluate", run_->in_fit);
  return run_->evaluation.mean_over(run_->borrowed.tree, loader, f);
}
double Trainer::evaluate(nn::Module& module, data::DataLoader& loader, const Function<Tensor(const Batch&)>& f) {
  check_function(f);
  const auto back = [&, before = run_->precision.mixed()] { run_->precision.set_mixed(before); };
  const train::Scope mixed([&] { run_->precision.convert(&module, run_->device_of(&module)); }, back);
  return run_->evaluation.mean_over(&module, loader, f);
}

std::int64_t Trainer::max_epochs() const { return run_->stop.max_epochs(); }
void Trainer::forward_epoch() {
  if (!run_->in_fit) fail<StateError>("forward_epoch: called outside of fit; call it in a hook");
  run_->forward_epoch();
}
std::int64_t Trainer::global_step() const { return run_->progress.global_step; }
std::int64_t Trainer::record_step() const { return run_->logs.steps(); }
int Trainer::global_rank() const { return run_->strategy->ranks().rank; }
int Trainer::local_rank() const { return run_->strategy->ranks().local_rank; }
int Trainer::node_rank() const { return run_->strategy->ranks().node; }
int Trainer::world_size() const { return run_->strategy->ranks().size; }
Strategy& Trainer::strategy() const { return *run_->strategy; }

std::int64_t Trainer::current_epoch() const { return run_->progress.epoch; }
std::int64_t Trainer::batch_idx() const {
  return run_->in_batch ? run_->progress.batches_done : run_->progress.batches_done - 1;
}
std::int64_t Trainer::total_batch_idx() const { return run_->progress.total_batches; }
std::int64_t Trainer::batches_per_epoch() const {
  return run_->loaders.batches == train::kUnknownBatches ? -1 : run_->loaders.batches;
}
bool Trainer::epoch_is_cut() const { return run_->files.cut.has_value(); }
bool Trainer::is_last_batch() const { return batch_idx() + 1 >= run_->loaders.batches; }
bool Trainer::sanity_checking() const { return run_->evaluation.sanity; }
bool Trainer::nested_evaluation() const { return run_->evaluation.depth > 1; }
bool Trainer::validating() const { return run_->evaluation.validating; }
bool Trainer::validation_enabled() const {
  return run_->in_fit && (run_->loaders.val_by_hook || !run_->loaders.val.empty());
}
bool Trainer::validates_once_an_epoch() const {
  const TrainerOptions& o = run_->options;
  return o.check_val_every_n_epoch == 1 &&
         (!o.val_check_interval || (!o.val_check_interval->time() && o.val_check_interval->portion() == Portion(1.0)));
}
std::optional<std::int64_t> Trainer::estimated_stepping_batches() const {
  if (!run_->in_fit) fail<StateError>("estimated_stepping_batches: called outside of fit");
  if (const Callback* const schedule = run_->hooks.accumulation_schedule())
    fail<StateError>("estimated_stepping_batches: the number of batches an optimizer step changes by ",
                     train::class_of(*schedule), "; count steps instead, by max_steps");
  run_->loaders.load_train();
  const std::int64_t epochs = run_->stop.max_epochs(), steps = run_->options.max_steps;
  if (epochs < 0 || run_->loaders.batches == train::kUnknownBatches)
    return steps < 0 ? std::nullopt : std::optional(steps);
  const std::int64_t window = run_->options.accumulate_grad_batches;
  const std::int64_t an_epoch = run_->loaders.batches / window + (run_->loaders.batches % window == 0 ? 0 : 1);
  std::int64_t all = 0;
  if (__builtin_mul_overflow(epochs, an_epoch, &all)) all = std::numeric_limits<std::int64_t>::max();
  return steps < 0 ? all : std::min(all, steps);
}
const std::string& Trainer::step_time_report() const { return run_->instruments.time_report; }
const StepTimes& Trainer::step_times() const { return run_->instruments.times; }
const Trainer::CopyReport& Trainer::copy_report() const { return run_->instruments.watch.copies(); }
std::int64_t Trainer::evaluation_batches() const {
  return run_->evaluation.batches == train::kUnknownBatches ? -1 : run_->evaluation.batches;
}
const SyncLedger& Trainer::sync_report() const { return run_->instruments.syncs; }
void Trainer::request_stop(KeepStop keep, std::string_view why) {
  run_->stop.request(keep, why.empty() ? std::string("request_stop in ") + run_->hooks.now->name : std::string(why));
}
bool Trainer::stop_requested() const { return run_->stop.requested; }
int Trainer::stop_signal() const { return run_->stop.signal; }
std::int64_t Trainer::skipped_steps() const { return run_->optimizers.skipped_steps(); }
Trainer::CaptureReport Trainer::capture_report() const { return run_->capture_report; }

const std::vector<LogRecord>& Trainer::history() const { return run_->logs.history; }

void Trainer::save_checkpoint(const std::string& path, WeightsOnly weights) {
  if (!run_->borrowed.fitted) fail<StateError>("save_checkpoint: nothing to save before a fit");
  run_->borrowed.check_lives("save_checkpoint", run_->in_fit);
  run_->files.save(path, weights);
}
TrainerOptions& Trainer::options() { return run_->options; }
const std::string& Trainer::resumed_from() const { return run_->files.resumed_from; }
nn::Module* Trainer::module() const { return run_->borrowed.lives(run_->in_fit) ? run_->borrowed.tree : nullptr; }
optim::Optimizer* Trainer::optimizer() const {
  return run_->optimizers.all.empty() || !run_->borrowed.lives(run_->in_fit) ? nullptr
                                                                             : run_->optimizers.all.front().get();
}
std::span<OptimizerHandle> Trainer::optimizers() {
  if (!run_->in_fit) fail<StateError>("optimizers: called outside of fit");
  return run_->optimizers.handles;
}
std::vector<SchedulerConfig>& Trainer::schedulers() { return run_->optimizers.schedulers; }
data::DataLoader* Trainer::train_loader() const { return run_->loaders.train; }
DataModule* Trainer::data_module() const { return run_->borrowed.data_module; }
const std::vector<std::shared_ptr<Logger>>& Trainer::loggers() const { return run_->logs.loggers; }
const std::vector<std::shared_ptr<Callback>>& Trainer::callbacks() const { return run_->hooks.callbacks; }

}  // namespace levin
