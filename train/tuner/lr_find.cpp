#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "levin/ops.h"
#include "tensor/text/number_text.h"
#include "train/run/packed.h"
#include "train/run/run.h"
#include "train/tuner/search.h"
#include "train/tuner/state.h"

namespace levin {
namespace {

using train::choose;
constexpr double kBeta = 0.98;  // of the moving average

void check(const LrFindOptions& o) {
  (void)choose("lr_find", "mode", o.mode, {"exponential", "linear"});
  (void)choose("lr_find", "slope_axis", o.slope_axis, {"lr", "log_lr"});
  if (!(o.min_lr < o.max_lr) || !(o.min_lr >= 0) || !std::isfinite(o.max_lr))
    fail<ConfigError>("lr_find: min_lr is ", o.min_lr, " and max_lr ", o.max_lr, ", expected 0 <= min_lr < max_lr");
  if (o.min_lr == 0 && choose("lr_find", "mode", o.mode, {"exponential", "linear"}) == 0)
    fail<ConfigError>(
        "lr_find: min_lr is 0, from where exponential steps do not lead; give one above 0, or mode = "
        "\"linear\"");
  if (o.num_training < 1) fail<ConfigError>("lr_find: num_training is ", o.num_training, ", expected 1 step or more");
  if (o.early_stop_threshold && !(*o.early_stop_threshold > 0))
    fail<ConfigError>("lr_find: early_stop_threshold is ", *o.early_stop_threshold,
                      ", expected a number above 0; nullopt never stops");
}

// The name of the field; empty: none is set.
std::string field_of(const train::Fields& fields, const LrFindOptions& o) {
  if (!o.update_attr) return {};
  for (const char* usual : {"lr", "learning_rate"}) {
    const std::string name = o.attr_name.empty() ? usual : o.attr_name;
    if (fields.has(name)) {
      fields.warn_of_both(name);
      return name;
    }
  }
  fail<ConfigError>("lr_find: the module has no field ", o.attr_name.empty() ? "lr or learning_rate" : o.attr_name,
                    ", it has: ", fields.names(),
                    "; name it by tunable or save_hparams in the constructor, give its name as attr_name, or set "
                    "update_attr = false");
}

// Sets the rate of each step and notes its loss.
class Probe final : public Callback {
 public:
  Probe(const LrFindOptions& options, Trainer::Run& run)
      : options_(options),
        run_(run),
        linear_(choose("lr_find", "mode", options.mode, {"exponential", "linear"}) == 1) {}
  LrFindResult::Points points;

  BatchStart on_train_batch_start(const StepInfo& info) override {
    const double lr = rate(static_cast<std::int64_t>(points.lr.size()));
    for (int g = 0; g < run_.optimizers.front().groups(); ++g) run_.optimizers.front().set_lr(g, lr);
    step_ = info.global_step;
    return BatchStart::proceed;
  }
  void on_train_batch_end(const StepInfo& info) override {
    if (info.global_step == step_) return;  // the window is open
    points.lr.push_back(rate(static_cast<std::int64_t>(points.lr.size())));
    if (!info.loss.defined()) {
      points.loss.push_back(NAN);
      return;
    }
    const SyncGuard own = run_.instruments.own_waits();
    const double window = run_.borrowed.manual ? 1 : static_cast<double>(run_.options.accumulate_grad_batches);
    average_ = kBeta * average_ + (1 - kBeta) * info.loss.item() * window;
    const double loss = average_ / (1 - std::pow(kBeta, static_cast<double>(++losses_)));
    points.loss.push_back(loss);
    const bool grew = losses_ > 1 && options_.early_stop_threshold && loss > *options_.early_stop_threshold * best_;
    if (grew && run_.strategy->ranks().rank == 0) {  // by its loss; the others learn of it after the batch
      warn("I-TUNE-STOP", WarningCategory::info,
           "lr_find: stopped after " + text(points.lr.size()) + " of " + text(options_.num_training) +
               " steps, the loss grew",
           Repeat::yes);
      run_.stop.requested = true;
    }
    best_ = losses_ > 1 ? std::min(best_, loss) : loss;
    draw();
  }

 private:
  [[nodiscard]] double rate(std::int64_t k) const {
    if (k == 0) return options_.min_lr;
    const double share = static_cast<double>(k + 1) / static_cast<double>(options_.num_training);
    return linear_ ? options_.min_lr + (options_.max_lr - options_.min_lr) * share
                   : options_.min_lr * std::pow(options_.max_lr / options_.min_lr, share);
  }
  void draw() const {
    if (!run_.options.enable_progress_bar.value_or(true) || ::isatty(STDERR_FILENO) == 0) return;
    if (!run_.trainer.is_global_zero()) return;
    const bool last = run_.stop.requested || static_cast<std::int64_t>(points.lr.size()) == options_.num_training;
    std::fprintf(stderr, "\rFinding a learning rate: %zu/%lld%s", points.lr.size(),
                 static_cast<long long>(options_.num_training), last ? "\n" : "");
  }

  const LrFindOptions& options_;
  Trainer::Run& run_;
  bool linear_;
  double average_ = 0, best_ = 0;
  std::int64_t losses_ = 0, step_ = 0;
};

// All ranks set the rate that the losses of rank 0 suggest.
LrFindResult::Points of_rank_zero(Strategy& strategy, const LrFindResult::Points& mine) {
  train::Packed packed;
  for (std::size_t k = 0; k < mine.lr.size(); ++k) packed.add(mine.lr[k]).add(mine.loss[k]);
  const std::string bytes = strategy.from_rank_zero(packed.bytes());
  LrFindResult::Points all;
  for (train::Unpacked in(bytes); !in.empty();) {
    all.lr.push_back(in.take<double>());
    all.loss.push_back(in.take<double>());
  }
  return all;
}

// Sets the rate of live optimizers and the start of their schedules, whose next step would undo the rate otherwise.
void set_rates(Trainer::Run& run, double lr) {
  for (const auto& optimizer : run.optimizers.all) {
    for (int g = 0; g < optimizer->groups(); ++g) optimizer->set_lr(g, lr);
  }
  for (const SchedulerConfig& s : run.optimizers.schedulers) {
    NamedTensors state = s.scheduler->state_dict();
    for (auto& [name, value] : state) {
      if (name == "base") value = full(value.shape(), lr, value.device(), value.dtype());
    }
    s.scheduler->load_state_dict(state);
  }
}

}  // namespace

// Called in fit, outside of batches.
LrFindResult train::find_lr(Trainer::Run& run, const LrFindOptions& options) {
  check(options);
  const Fields fields = fields_of(run);
  const std::string field = field_of(fields, options);
  run.loaders.load_val();
  run.loaders.load_train();
  if (run.optimizers.all.size() != 1)
    fail<ConfigError>("lr_find: configure_optimizers returned ", run.optimizers.all.size(),
                      " optimizers, a search has one rate to set; expected exactly one");
  if (run.loaders.batches == 0)
    fail<ConfigError>(
        "lr_find: there are no training batches; give a loader that has some, and no limit_train_batches = 0");
  LrFindResult found;
  found.mode = options.mode;
  found.slope_axis = options.slope_axis;
  {
    SavedRun before(run, run.borrowed.tree, ".lr_find_");
    const auto probe = std::make_shared<Probe>(options, run);
    try {
      before.train(options.num_training, probe);
    } catch (...) {
      before.restore_quietly();
      throw;
    }
    before.restore();
    found.results = of_rank_zero(*run.strategy, probe->points);
  }
  run.check_interrupt();
  if (!options.update_attr) return found;
  const std::optional<double> lr = found.suggestion();
  if (!lr) return found;
  fields.set(field, *lr);
  set_rates(run, *lr);
  warn("I-TUNE-LR", WarningCategory::info, "lr_find: Learning rate set to " + text(*lr), Repeat::yes);
  return found;
}

// ---- The result

std::optional<std::size_t> LrFindResult::suggested(std::int64_t skip_begin, std::int64_t skip_end) const {
  if (skip_begin < 0 || skip_end < 0)
    fail<ConfigError>("suggestion: skip_begin is ", skip_begin, " and skip_end ", skip_end, ", expected 0 or more");
  const bool log_axis = choose("suggestion", "slope_axis", slope_axis, {"lr", "log_lr"}) == 1;
  const auto n = static_cast<std::int64_t>(results.loss.size());
  std::vector<std::size_t> at;
  std::vector<double> x, f;
  for (std::int64_t i = skip_begin; i < n - skip_end; ++i) {
    const auto k = static_cast<std::size_t>(i);
    const double along = log_axis ? std::log(results.lr[k]) : results.lr[k];
    if (!std::isfinite(results.loss[k]) || !std::isfinite(along)) continue;
    at.push_back(k);
    x.push_back(along);
    f.push_back(results.loss[k]);
  }
  if (at.size() < 2) {
    warn("W-TUNE-SUGGESTION", WarningCategory::runtime,
         "suggestion: " + text(at.size()) + " of " + text(n) +
             " points are left, too few for a slope; train more steps, or skip fewer of them",
         Repeat::yes);
    return std::nullopt;
  }
  const std::size_t last = at.size() - 1;
  std::size_t best = 0;
  double least = HUGE_VAL;
  for (std::size_t i = 0; i <= last; ++i) {
    double slope = 0;
    if (i == 0 || i == last) {
      const std::size_t j = i == 0 ? 1 : last;
      slope = (f[j] - f[j - 1]) / (x[j] - x[j - 1]);
    } else {
      const double left = x[i] - x[i - 1], right = x[i + 1] - x[i];
      slope = (left * left * f[i + 1] - right * right * f[i - 1] + (right * right - left * left) * f[i]) /
              (left * right * (left + right));
    }
    if (slope < least) {
      least = slope;
      best = i;
    }
  }
  return at[best];
}

std::optional<double> LrFindResult::suggestion(std::int64_t skip_begin, std::int64_t skip_end) const {
  const std::optional<std::size_t> k = suggested(skip_begin, skip_end);
  return k ? std::optional(results.lr[*k]) : std::nullopt;
}

std::string LrFindResult::plot(const PlotOptions& options) const {
  levin::PlotOptions drawn{.x_label = "Learning rate", .y_label = "Loss"};
  if (choose("plot", "mode", mode, {"exponential", "linear"}) == 0) drawn.x_axis = Axis::log;
  if (options.suggest) {
    if (const auto k = suggested()) drawn.marks.push_back({.x = results.lr[*k], .y = results.loss[*k]});
  }
  std::string svg = svg_plot(std::vector<Series>{{.name = "loss", .x = results.lr, .y = results.loss}}, drawn);
  if (!options.path.empty()) write_file_atomically(options.path, svg);
  return svg;
}

void LrFindResult::write_csv(const std::string& path) const {
  std::string lines = "lr,loss\n";
  for (std::size_t k = 0; k < results.lr.size(); ++k) {
    constexpr int kExact = 17;  // digits that read back as the same number
    lines += detail::general(results.lr[k], kExact) + "," + detail::general(results.loss[k], kExact) + "\n";
  }
  write_file_atomically(path, lines);
}

// ---- Calls of users

std::optional<LrFindResult> Tuner::lr_find(TrainModule& module, const LrFindOptions& options) {
  Trainer::Run& run = Trainer::Run::of(*trainer_);
  check(options);
  DataModule* const data = train::data_module_of("lr_find", {&options.train, &options.val}, options.data_module);
  (void)field_of(train::Fields(module, data), options);
  train::check_free(run, "lr_find");
  for (const auto& c : run.hooks.own) {
    if (dynamic_cast<const LearningRateFinder*>(c.get()))
      fail<ConfigError>(
          "lr_find: callbacks holds a LearningRateFinder, which searches by itself; remove it, or leave the "
          "call out");
  }
  if (train::skipped_by_dev_run(run, "lr_find")) return std::nullopt;
  std::optional<LrFindResult> found;
  run.fit(module, {.train = options.train, .val = options.val, .data_module = data},
          [&] { found = train::find_lr(run, options); });
  if (!found)
    fail<ConfigError>(
        "lr_find: configure_optimizers returned 0 optimizers, a search has one rate to set; expected exactly "
        "one");
  return found;
}

LearningRateFinder::LearningRateFinder(LrFindOptions options) : options_(std::move(options)) {
  check(options_);
  if (!options_.train.empty() || !options_.val.empty() || options_.data_module || options_.train.data_module())
    fail<ConfigError>("LearningRateFinder: loaders were given, it takes those of the fit; leave them out");
}
void LearningRateFinder::on_fit_start() { lr_find(); }
void LearningRateFinder::lr_find() {
  Trainer::Run& run = Trainer::Run::of(trainer());
  if (!run.in_fit || run.logs.scope == train::LogScope::train_batch || run.logs.scope == train::LogScope::eval)
    fail<StateError>("lr_find: called ", run.in_fit ? "inside of a batch or an evaluation" : "outside of fit",
                     "; call it from on_fit_start or on_train_epoch_start");
  if (train::skipped_by_dev_run(run, "lr_find")) return;
  result_ = train::find_lr(run, options_);
}

}  // namespace levin
