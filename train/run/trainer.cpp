// The public face, and the short door's module.
#include <algorithm>
#include <cstdio>
#include <limits>

#include "levin/autograd.h"
#include "levin/ops.h"
#include "train/run/options_text.h"
#include "train/run/run.h"

namespace levin {
namespace {

// The short door's module: the user's closure as a training step. Its tree is the one the parameters belong to.
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

Trainer::Run::Run(Trainer& t, TrainerOptions o) : trainer(t), options(std::move(o)), precision(options) {
  check_options();
  tell_of_portions();
  apply_shortcuts();
  collect_callbacks();
  choose_loggers();
  constructed_with = options;
}

void Trainer::Run::check_idle(const char* call) const {
  if (active)
    fail<StateError>(call, ": the trainer is running ", call_name,
                     ", and this was called in a hook or step of it; call "
                     "it when that has ended, or use another Trainer");
}
bool Trainer::Run::lives() const {
  return (in_fit || !trained || !trained_alive.expired()) &&
         std::none_of(optimizers_alive.begin(), optimizers_alive.end(), [](const auto& o) { return o.expired(); });
}
void Trainer::Run::check_lives(const char* call) const {
  if (!lives())
    fail<StateError>(
        call,
        ": the module or the optimizer of the last fit is gone; a trainer borrows them, so let them live as "
        "long as it is used");
}
Device Trainer::Run::device_of(nn::Module* of) const {
  if (of) {
    if (const std::vector<ParamRef> parameters = of->parameters(); !parameters.empty())
      return parameters.front().value->device();
  }
  return device;
}
StepInfo Trainer::Run::info(const Batch* batch) const {
  return {.epoch = epoch,
          .batch_idx = batches_done,
          .dataloader_idx = 0,
          .global_step = global_step,
          .batch = batch,
          .loss = {},
          .outputs = {}};
}

// ---- The public face

Trainer::Trainer(TrainerOptions options) : run_(std::make_unique<Run>(*this, std::move(options))) {}
Trainer::~Trainer() = default;

void Trainer::fit(TrainModule& module, const FitOptions& loaders) { run_->fit(module, loaders); }

void Trainer::fit(optim::Optimizer& optimizer, data::DataLoader& train, Function<Tensor(const Batch&)> step,
                  const StepOptions& options) {
  run_->check_idle("fit");
  if (!step) fail<ConfigError>("fit: the step is empty, expected a function from a batch to its loss");
  const std::vector<ParamRef> parameters = optimizer.model_parameters();
  nn::Module* const tree = root_of(parameters);
  run_->check_options();
  // Borrowed: the caller's optimizer outlives the call.
  OptimizerConfig config{.optimizers = {std::shared_ptr<optim::Optimizer>(std::shared_ptr<void>(), &optimizer)},
                         .schedulers = options.schedulers};
  train::check_optimizers(config, /*manual=*/false);
  StepModule module(std::move(step), tree, std::move(config));
  run_->device = parameters.front().value->device();  // which a tree does not tell of bare tensors
  train::check_accelerator(run_->options, "fit", run_->device);
  const train::Restore<const optim::Optimizer*> lone(run_->lone_optimizer, tree ? nullptr : &optimizer);
  const auto forget = [&] { run_->fit_module = run_->last_module = nullptr; };
  const train::Scope gone([] {}, forget);
  run_->fit(module, {.train = train, .ckpt_path = options.ckpt_path});
}

namespace {
// `run` gives the results of an evaluation.
std::vector<Metrics> shown(const char* call, const EvaluationOptions& options, std::vector<Metrics> results,
                           bool inside) {
  if (options.verbose && !inside) std::fputs(train::results_table(call, results).c_str(), stderr);
  return results;
}
void check_function(const Function<Tensor(const Batch&)>& f) {
  if (!f) fail<ConfigError>("evaluate: the function is empty, expected one from a batch to a number");
}
}  // namespace

std::vector<Metrics> Trainer::validate(TrainModule& module, const LoaderRefs& loaders, const EvaluationOptions& o) {
  return shown("validate", o,
               run_->evaluation_call(Run::Loop::validation, &module, loaders, o.data_module, o.ckpt_path),
               run_->active != nullptr);
}
std::vector<Metrics> Trainer::validate(const LoaderRefs& loaders, const EvaluationOptions& o) {
  return shown("validate", o,
               run_->evaluation_call(Run::Loop::validation, nullptr, loaders, o.data_module, o.ckpt_path), false);
}
std::vector<Metrics> Trainer::test(TrainModule& module, const LoaderRefs& loaders, const EvaluationOptions& o) {
  return shown("test", o, run_->evaluation_call(Run::Loop::test, &module, loaders, o.data_module, o.ckpt_path),
               run_->active != nullptr);
}
std::vector<Metrics> Trainer::test(const LoaderRefs& loaders, const EvaluationOptions& o) {
  return shown("test", o, run_->evaluation_call(Run::Loop::test, nullptr, loaders, o.data_module, o.ckpt_path), false);
}
std::vector<Tensors> Trainer::predict(TrainModule& module, const LoaderRefs& loaders, const PredictOptions& o) {
  std::vector<Tensors> all;
  (void)run_->evaluation_call(Run::Loop::predict, &module, loaders, o.data_module, o.ckpt_path,
                              o.return_predictions ? &all : nullptr);
  return all;
}
std::vector<Tensors> Trainer::predict(const LoaderRefs& loaders, const PredictOptions& o) {
  std::vector<Tensors> all;
  (void)run_->evaluation_call(Run::Loop::predict, nullptr, loaders, o.data_module, o.ckpt_path,
                              o.return_predictions ? &all : nullptr);
  return all;
}
double Trainer::evaluate(data::DataLoader& loader, const Function<Tensor(const Batch&)>& f) {
  check_function(f);
  if (!run_->fitted) fail<StateError>("evaluate: no module is known before a fit; use evaluate(module, loader, f)");
  run_->check_lives("evaluate");
  return run_->mean_over(run_->tree, loader, f);
}
double Trainer::evaluate(nn::Module& module, data::DataLoader& loader, const Function<Tensor(const Batch&)>& f) {
  check_function(f);
  const auto back = [&, before = run_->precision.mixed()] { run_->precision.set_mixed(before); };
  const train::Scope mixed([&] { run_->precision.convert(&module, run_->device_of(&module)); }, back);
  return run_->mean_over(&module, loader, f);
}

std::int64_t Trainer::max_epochs() const { return run_->max_epochs(); }
void Trainer::forward_epoch() {
  if (!run_->in_fit) fail<StateError>("forward_epoch: called outside of fit; call it in a hook");
  run_->forward_epoch();
}
std::int64_t Trainer::global_step() const { return run_->global_step; }
std::int64_t Trainer::record_step() const { return run_->record_steps(); }
std::int64_t Trainer::current_epoch() const { return run_->epoch; }
std::int64_t Trainer::batch_idx() const { return run_->in_batch ? run_->batches_done : run_->batches_done - 1; }
std::int64_t Trainer::total_batch_idx() const { return run_->total_batches; }
std::int64_t Trainer::batches_per_epoch() const { return run_->batches; }
bool Trainer::epoch_is_cut() const { return run_->cut.has_value(); }
bool Trainer::is_last_batch() const { return batch_idx() + 1 >= run_->batches; }
bool Trainer::sanity_checking() const { return run_->sanity; }
bool Trainer::nested_evaluation() const { return run_->evaluations > 1; }
bool Trainer::validating() const { return run_->validating; }
bool Trainer::validation_enabled() const { return run_->in_fit && (run_->val_by_hook || !run_->val_loaders.empty()); }
bool Trainer::validates_once_an_epoch() const {
  const TrainerOptions& o = run_->options;
  return o.check_val_every_n_epoch == 1 &&
         (!o.val_check_interval || (!o.val_check_interval->time() && o.val_check_interval->portion() == Portion(1.0)));
}
std::optional<std::int64_t> Trainer::estimated_stepping_batches() const {
  if (!run_->in_fit) fail<StateError>("estimated_stepping_batches: called outside of fit");
  if (const Callback* const schedule = run_->accumulation_schedule())
    fail<StateError>("estimated_stepping_batches: the number of batches an optimizer step changes by ",
                     train::class_of(*schedule), "; count steps instead, by max_steps");
  run_->load_train();
  const std::int64_t epochs = run_->max_epochs(), steps = run_->options.max_steps;
  if (epochs < 0) return steps < 0 ? std::nullopt : std::optional(steps);
  const std::int64_t window = run_->options.accumulate_grad_batches;
  const std::int64_t an_epoch = run_->batches / window + (run_->batches % window == 0 ? 0 : 1);
  std::int64_t all = 0;
  if (__builtin_mul_overflow(epochs, an_epoch, &all)) all = std::numeric_limits<std::int64_t>::max();
  return steps < 0 ? all : std::min(all, steps);
}
const std::string& Trainer::step_time_report() const { return run_->time_report; }
const StepTimes& Trainer::step_times() const { return run_->times; }
const Trainer::CopyReport& Trainer::copy_report() const { return run_->watch.copies(); }
std::int64_t Trainer::evaluation_batches() const { return run_->eval_count; }
const SyncLedger& Trainer::sync_report() const { return run_->syncs; }
void Trainer::request_stop(KeepStop keep, std::string_view why) {
  if (!std::exchange(run_->stop, true)) run_->stop_asked_at = run_->global_step;
  run_->stopped_by = why.empty() ? std::string("request_stop in ") + run_->hook->name : std::string(why);
  if (keep == KeepStop::yes) run_->stop_kept = true;
}
bool Trainer::stop_requested() const { return run_->stop; }
int Trainer::stop_signal() const { return run_->stop_signal; }
std::int64_t Trainer::skipped_steps() const {
  const optim::GradScaler* scaler = run_->precision.scaler();
  return scaler ? scaler->skipped_steps() : 0;
}
Trainer::CaptureReport Trainer::capture_report() const { return run_->capture_report; }

const std::vector<LogRecord>& Trainer::history() const { return run_->history; }

void Trainer::save_checkpoint(const std::string& path, WeightsOnly weights) {
  if (!run_->fitted) fail<StateError>("save_checkpoint: nothing to save before a fit");
  run_->check_lives("save_checkpoint");
  run_->save(path, weights);
}
TrainerOptions& Trainer::options() { return run_->options; }
const std::string& Trainer::resumed_from() const { return run_->resumed_from; }
nn::Module* Trainer::module() const { return run_->lives() ? run_->tree : nullptr; }
optim::Optimizer* Trainer::optimizer() const {
  return run_->optimizers.empty() || !run_->lives() ? nullptr : run_->optimizers.front().get();
}
std::span<OptimizerHandle> Trainer::optimizers() {
  if (!run_->in_fit) fail<StateError>("optimizers: called outside of fit");
  return run_->handles;
}
std::vector<SchedulerConfig>& Trainer::schedulers() { return run_->schedulers; }
data::DataLoader* Trainer::train_loader() const { return run_->train_loader; }
DataModule* Trainer::data_module() const { return run_->data_module; }
const std::vector<std::shared_ptr<Logger>>& Trainer::loggers() const { return run_->loggers; }
const std::vector<std::shared_ptr<Callback>>& Trainer::callbacks() const { return run_->callbacks; }

}  // namespace levin
