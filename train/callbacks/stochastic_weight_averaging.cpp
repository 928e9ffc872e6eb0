#include <cmath>

#include "levin/train.h"
#include "levin/train/averaging.h"
#include "train/averaging/batch_norms.h"
#include "train/callbacks/state.h"

namespace levin {
namespace {

constexpr const char* kName = "StochasticWeightAveraging";
const std::string kAverage = "average_model_state.", kLatest = "latest_update_epoch", kTookOver = "took_over",
                  kFinished = "finished";

// Index of the first epoch whose beginning is averaged.
std::int64_t first_epoch(const Portion& start, std::int64_t max_epochs) {
  if (!start.is_fraction()) return start.count() - 1;
  if (max_epochs < 0)
    fail<ConfigError>(kName, ": swa_epoch_start is the fraction ", start.fraction(),
                      " of max_epochs, which has no limit; give the epoch's number");
  const double epochs = std::floor(start.fraction() * static_cast<double>(max_epochs));
  return std::max<std::int64_t>(static_cast<std::int64_t>(epochs) - 1, 0);
}

void tell_of(const SchedulerConfig& replaced) {
  using Interval = SchedulerConfig::Interval;
  if (replaced.interval != Interval::epoch || replaced.frequency != 1)
    warn("W-TRAIN-SWA-INTERVAL", WarningCategory::user,
         std::string(kName) + ": the schedule that is replaced moved every " + text(replaced.frequency) +
             (replaced.interval == Interval::step ? " steps" : " epochs") + "; the new one moves every epoch");
  warn("I-TRAIN-SWA", WarningCategory::info,
       std::string(kName) + ": the run's schedule ends here, and the learning rate goes to swa_lrs");
}

}  // namespace

StochasticWeightAveraging::StochasticWeightAveraging(StochasticWeightAveragingOptions options)
    : averaging_(std::make_shared<const AveragedModelOptions>(
          AveragedModelOptions{.device = options.device, .avg_fn = std::move(options.avg_fn)})),
      options_(std::move(options)) {
  if (options_.swa_lrs.empty())
    fail<ConfigError>(kName, ": swa_lrs is empty, expected one rate, or one for each group of the optimizer");
  for (const double lr : options_.swa_lrs) {
    if (!(lr > 0)) fail<ConfigError>(kName, ": the rate in swa_lrs is ", lr, ", expected above 0");
  }
  const Portion& start = options_.swa_epoch_start;
  if (start.is_fraction() ? !(start.fraction() >= 0 && start.fraction() <= 1) : start.count() < 1)
    fail<ConfigError>(kName, ": swa_epoch_start is ",
                      start.is_fraction() ? text(start.fraction()) : text(start.count()),
                      ", expected an epoch of 1 or more, or a fraction in [0, 1]");
  if (options_.annealing_epochs < 0)
    fail<ConfigError>(kName, ": annealing_epochs is ", options_.annealing_epochs, ", expected 0 or more");
}
StochasticWeightAveraging::~StochasticWeightAveraging() = default;

void StochasticWeightAveraging::setup(Stage stage) {
  if (stage != Stage::fit) return;
  (void)train::module_to_average(kName, trainer());
  start_ = first_epoch(options_.swa_epoch_start, trainer().max_epochs());
  average_.reset();
  latest_update_epoch_ = -1;
  took_over_ = finished_ = false;
  fitting_ = true;
}
void StochasticWeightAveraging::on_fit_start() { check_run(); }

// After module and optimizers were made, and before the state of a file is read.
void StochasticWeightAveraging::check_run() const {
  nn::Module& module = *trainer().module();
  const std::size_t optimizers = trainer().optimizers().size(), schedulers = trainer().schedulers().size();
  if (optimizers != 1) fail<ConfigError>(kName, ": the run has ", optimizers, " optimizers, expected 1");
  if (schedulers > 1)
    fail<ConfigError>(kName, ": the run has ", schedulers, " schedules, which one is to replace; expected 1 at most");
  const auto groups = static_cast<std::size_t>(trainer().optimizer()->groups());
  if (options_.swa_lrs.size() != 1 && options_.swa_lrs.size() != groups)
    fail<ConfigError>(kName, ": swa_lrs has ", options_.swa_lrs.size(), " rates, expected 1, or one for each of ",
                      groups, " groups");
  const auto* by_hand = dynamic_cast<const TrainModule*>(&module);
  if (by_hand && !by_hand->automatic_optimization() && train::has_statistics(module))
    fail<ConfigError>(
        kName,
        ": the module has batch norms, whose statistics need training steps without backward, and optimizes "
        "manually; use automatic optimization");
}
void StochasticWeightAveraging::teardown(Stage stage) {
  if (stage == Stage::fit) fitting_ = false;
}

void StochasticWeightAveraging::take_over() {
  std::vector<double> rates = options_.swa_lrs;
  if (rates.size() == 1) rates.resize(static_cast<std::size_t>(trainer().optimizer()->groups()), rates[0]);
  std::vector<SchedulerConfig>& schedulers = trainer().schedulers();
  SchedulerConfig config;
  config.scheduler = std::make_shared<optim::SwaLr>(*trainer().optimizer(), std::move(rates), options_.annealing_epochs,
                                                    options_.annealing_strategy);
  schedulers = {std::move(config)};
  took_over_ = true;
}

void StochasticWeightAveraging::on_train_epoch_start() {
  const std::int64_t epoch = trainer().current_epoch();
  if (epoch < start_) return;
  if (!took_over_) {
    if (!trainer().schedulers().empty()) tell_of(trainer().schedulers().front());
    if (epoch > start_)
      warn("W-TRAIN-SWA-LATE", WarningCategory::user,
           std::string(kName) + ": averaging begins in epoch " + text(epoch) + " instead of " + text(start_) +
               ", without a state of its own");
    take_over();
  }
  if (epoch <= latest_update_epoch_) return;  // a run that resumes in the middle of the epoch
  nn::Module& module = *trainer().module();
  if (!average_) average_ = std::make_unique<AveragedModel>(module, averaging_);
  average_->update(module);
  latest_update_epoch_ = epoch;
  finished_ = false;  // true from a file that was written at the end of a run
}

void StochasticWeightAveraging::on_train_end() { finish(); }
// Without a training before it if the run that resumed was at its end.
void StochasticWeightAveraging::on_fit_end() { finish(); }

void StochasticWeightAveraging::finish() {
  if (finished_ || n_averaged() == 0) return;
  nn::Module& module = *trainer().module();
  if (train::has_statistics(module)) {
    // The statistics are written to the average's buffers, so an interrupt saves the training as it was.
    swapped_.reset(new AveragedModel::Swap(average_->swap_into(module)));
    try {
      train::estimate_statistics(module, [&] { trainer().forward_epoch(); });
    } catch (...) {
      swapped_.reset();
      throw;
    }
    swapped_.reset();
  }
  average_->copy_to(module);
  finished_ = true;
}

CallbackState StochasticWeightAveraging::state() const {
  CallbackState out{.values = {},
                    .tensors = {{kLatest, train::count_tensor(latest_update_epoch_)},
                                {kTookOver, train::count_tensor(took_over_)},
                                {kFinished, train::count_tensor(finished_)}}};
  if (average_ && fitting_ && !finished_) train::append_below(out.tensors, kAverage, average_->state());
  return out;
}

// Called before schedules get their states: after a replacement the file has the state of the SwaLr.
void StochasticWeightAveraging::load_state(const CallbackState& state) {
  if (fitting_) check_run();
  const std::int64_t latest = train::count_in(kName, state.tensors, kLatest);
  const std::int64_t took_over = train::count_in(kName, state.tensors, kTookOver);
  const std::int64_t finished = train::count_in(kName, state.tensors, kFinished);
  const NamedTensors average = train::names_below(state.tensors, kAverage);
  std::unique_ptr<AveragedModel> loaded;
  if (!average.empty()) {
    loaded = std::make_unique<AveragedModel>(*trainer().module(), averaging_);
    loaded->load(average);
  }
  if (fitting_ && took_over != 0 && !took_over_) take_over();
  average_ = std::move(loaded);
  latest_update_epoch_ = latest;
  took_over_ = took_over != 0;
  finished_ = finished != 0;
}

void StochasticWeightAveraging::on_save_checkpoint(CheckpointContent& content) {
  if (!swapped_) return;
  for (const auto& [name, own] : swapped_->own_state()) {
    if (Tensor* weight = train::find(content.weights, name)) *weight = own;
  }
}

}  // namespace levin
