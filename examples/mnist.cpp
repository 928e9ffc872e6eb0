// Handwritten digits: trains a small network on MNIST and shows what the network learned.
#include <limits>
#include <numeric>

#include "examples/mnist_model.h"

using namespace levin;
using namespace examples::mnist;

namespace {

// ---- Flags

Settings parse(int argc, char** argv) {
  Settings s;
  s.lr = 2e-3;
  examples::Flags flags("mnist", "Trains a classifier of handwritten digits.");
  flags.add("--model", s.model)->check(CLI::IsMember({"mlp", "cnn"}));
  flags.add("--optimizer", s.optimizer)->check(CLI::IsMember({"adamw", "adam", "sgd"}));
  flags.add("--scheduler", s.scheduler)->check(CLI::IsMember({"onecycle", "cosine", "constant"}));
  examples::add_training_flags(flags, s);
  flags.add("--capture", s.capture)->check(CLI::IsMember({"auto", "off", "step"}));
  flags.add("--clip", s.clip)->check(examples::at_least(0));
  const CLI::Option* algorithm =
      flags.add("--clip-algorithm", s.clip_algorithm)->check(CLI::IsMember({"norm", "value"}));
  flags.add("--ema", s.ema)->check(CLI::Range(0.0, 1.0));
  flags.add("--swa", s.swa)->check(examples::at_least(1));
  flags.add_switch("--find-lr", s.find_lr);
  flags.add("--find-batch-size", s.find_batch_size)->check(CLI::IsMember({"power", "binsearch"}));
  flags.add("--memory-limit", s.memory_limit)->check(examples::at_least(1));
  flags.add("--profile", s.profile)->check(CLI::IsMember({"simple", "trace"}));
  flags.add("--early-stop", s.early_stop)->check(CLI::IsMember({"val_loss", "val_accuracy", "train_loss"}));
  const CLI::Option* asks[] = {
      flags.add("--limit-val-batches", s.limit_val_batches), flags.add("--val-check-interval", s.val_check_interval),
      flags.add("--check-val-every-n-epoch", s.check_val_every_n_epoch)->check(examples::at_least(1)),
      flags.add("--overfit-batches", s.overfit_batches)};
  flags.parse(argc, argv);
  s.validates = examples::dev_run_batches(s) > 0 || s.early_stop.starts_with("val_") ||
                std::any_of(std::begin(asks), std::end(asks), [](const CLI::Option* o) { return o->count() > 0; });
  s.keeps_best = s.validates && s.limit_val_batches != "0";
  examples::check_training_flags(flags, s);
  if (algorithm->count() > 0 && s.clip == 0) flags.refuse("--clip-algorithm needs --clip");
  if (s.ema > 0 && s.swa > 0) flags.refuse("--ema and --swa are two averages of the same weights; give one of them");
  if (!s.resume.empty() && (s.find_lr || !s.find_batch_size.empty()))
    flags.refuse("--resume goes on with what was found before; drop --find-lr and --find-batch-size");
  if (s.profile == "trace" && s.out.empty()) flags.refuse("--profile trace needs --out for its file");
  return s;
}

TrainerOptions trainer_options(const Settings& s, Device device) {
  TrainerOptions options = examples::trainer_options(s);
  const bool capture = s.capture == "step" || (s.capture == "auto" && device.is_cuda());
  options.capture = capture ? Capture::step : Capture::off;
  options.accumulate_grad_batches = s.accumulate;
  if (s.clip > 0) options.gradient_clip_val = s.clip;
  if (s.clip > 0 && s.clip_algorithm == "value") options.gradient_clip_algorithm = ClipAlgorithm::value;
  if (!s.limit_val_batches.empty())
    options.limit_val_batches = examples::portion("--limit-val-batches", s.limit_val_batches);
  if (!s.val_check_interval.empty()) {
    if (s.val_check_interval.find(':') != std::string::npos)
      options.val_check_interval = ValidationInterval(Duration(s.val_check_interval));
    else
      options.val_check_interval = examples::portion("--val-check-interval", s.val_check_interval);
  }
  options.check_val_every_n_epoch = s.check_val_every_n_epoch;
  if (s.memory_limit > 0) options.memory_limit = s.memory_limit;
  if (!s.early_stop.empty())
    options.callbacks.push_back(std::make_shared<EarlyStopping>(EarlyStoppingOptions{
        .monitor = s.early_stop, .mode = s.early_stop == "val_accuracy" ? Mode::max : Mode::min, .verbose = !s.quiet}));
  if (s.ema > 0)
    options.callbacks.push_back(std::make_shared<EmaWeightAveraging>(EmaWeightAveragingOptions{.decay = s.ema}));
  if (s.swa > 0)
    options.callbacks.push_back(std::make_shared<StochasticWeightAveraging>(
        StochasticWeightAveragingOptions{.swa_lrs = {s.lr / 10}, .swa_epoch_start = s.swa}));
  const std::string out = examples::out_folder(s);
  if (s.profile == "simple")
    options.profiler =
        std::make_shared<SimpleProfiler>(SimpleProfilerOptions{.path = out.empty() ? "" : out + "/profile.txt"});
  else if (s.profile == "trace" && !out.empty())
    options.profiler = std::make_shared<TraceProfiler>(TraceProfilerOptions{.path = out + "/trace.json"});
  if (!s.overfit_batches.empty()) options.overfit_batches = examples::portion("--overfit-batches", s.overfit_batches);
  return options;
}

// ---- Data

// All training images, or 55,000 of 60,000 with the rest for validation.
struct Loaders {
  std::unique_ptr<data::DataLoader> train, val, test;
};

Loaders make_loaders(const Settings& s, const examples::Digits& digits, const Generator& gen, Device device) {
  data::DatasetRef train = digits.train, val;
  if (s.validates) {
    const std::int64_t all = train->size(), kept = all / 12;
    const std::vector<data::DatasetRef> parts = data::random_split(train, {all - kept, kept}, gen.fork("split"));
    train = parts[0];
    val = parts[1];
  }
  Loaders loaders;
  loaders.train =
      std::make_unique<data::DataLoader>(train, data::DataLoaderOptions{.batch_size = s.batch_size,
                                                                        .shuffle = s.overfit_batches.empty(),
                                                                        .num_workers = s.workers,
                                                                        .pin_memory = device.is_cuda(),
                                                                        .generator = gen.fork("shuffle")});
  if (val)
    loaders.val = std::make_unique<data::DataLoader>(
        val, data::DataLoaderOptions{.batch_size = s.batch_size, .num_workers = s.workers});
  const std::int64_t test_batch =
      std::min<std::int64_t>(1000, s.batch_size);  // so a test takes no more memory than a step
  data::DatasetRef test = digits.test;
  if (const int n = examples::dev_run_batches(s); n > 0) {
    std::vector<std::int64_t> first(static_cast<std::size_t>(std::min(test->size(), n * test_batch)));
    std::iota(first.begin(), first.end(), std::int64_t{0});
    test = data::subset(test, std::move(first));
  }
  loaders.test = std::make_unique<data::DataLoader>(
      test, data::DataLoaderOptions{.batch_size = test_batch, .num_workers = s.workers});
  return loaders;
}

std::int64_t batches_of_epoch(const Settings& s, const data::DataLoader& train) {
  if (!s.overfit_batches.empty())
    return examples::portion("--overfit-batches", s.overfit_batches).of(train.size(), "--overfit-batches");
  return examples::portion("--limit-train-batches", s.limit_train_batches).of(train.size(), "--limit-train-batches");
}

// ---- Results

// The results of a run; an unknown accuracy is NaN.
struct Outcome : examples::Trained {
  double accuracy = std::numeric_limits<double>::quiet_NaN();
  examples::Predictions predictions;
};

Outcome train_and_test(Trainer& trainer, Classifier& net, const Loaders& loaders, const std::string& resume,
                       const examples::SampleCount& counted) {
  Outcome outcome;
  const auto fit = [&] {
    trainer.fit(net, {.train = loaders.train.get(), .val = loaders.val.get(), .ckpt_path = resume});
  };
  const auto test = [&] {
    (void)trainer.evaluate(net, *loaders.test, [&](const Batch& b) {
      const Tensor logits = net(b[0]);
      outcome.predictions.add(logits, b[1]);
      return accuracy(logits, b[1]);
    });
    // From the counts: the mean of the batches' f32 accuracies differs by a few ulps.
    const auto count = static_cast<double>(outcome.predictions.truth.size());
    outcome.accuracy = (count - static_cast<double>(outcome.predictions.wrong().size())) / count;
  };
  static_cast<examples::Trained&>(outcome) = examples::train("mnist", net.device(), counted, fit, test);
  return outcome;
}

void print_results(Trainer& trainer, const Outcome& outcome) {
  outcome.predictions.print();
  std::printf("trained %lld steps in %.1f s, %.0f images/s\n", static_cast<long long>(trainer.global_step()),
              outcome.seconds, outcome.samples_per_second());
  if (const double loss = examples::metric(trainer, "val_loss"); !std::isnan(loss))
    std::printf("validation loss %.4f\n", loss);
  std::printf("test accuracy %.2f %%\n", 100 * outcome.accuracy);
}

// The files of --out and --json; for an interrupted run the files that do not need its end.
void write_results(const Settings& s, Trainer& trainer, const Classifier& net, const examples::Digits& digits,
                   const Outcome& outcome) {
  if (const std::string out = examples::out_folder(s); !out.empty()) {
    examples::draw_losses(out + "/loss.svg", trainer,
                          {{"train_loss_step", "step"}, {"train_loss_epoch", "epoch mean"}, {"val_loss", "validation"}},
                          {.title = "Training loss", .x_label = "optimizer steps", .y_label = "cross-entropy"});
    write_file_atomically(out + "/report.txt", trainer.step_time_report());
    if (!outcome.interrupted) {
      save_safetensors(out + "/model.safetensors", net.state_dict());
      examples::draw_misclassified(out + "/misclassified.png", *digits.test, outcome.predictions);
    }
  }
  if (s.json.empty()) return;
  examples::Result result = examples::training_result("mnist", s, trainer, net, digits.real, outcome);
  result.more["test_accuracy"] = examples::number(outcome.accuracy);
  result.more["val_loss"] = examples::number(examples::metric(trainer, "val_loss"));
  result.write(s.json);
}

// The searches of --find-batch-size and --find-lr, before the training and by trials of it.
void search(Settings& s, Trainer& trainer, Classifier& net, const examples::Digits& digits, const Generator& gen) {
  Tuner tuner(trainer);
  const Device device = net.device();
  if (!s.find_batch_size.empty()) {
    net.loader_of = [&](const Settings& now, data::Split split) {
      Loaders loaders = make_loaders(now, digits, gen, device);
      return split == data::Split::train ? std::move(loaders.train) : std::move(loaders.val);
    };
    const auto found = tuner.scale_batch_size(net, {.mode = s.find_batch_size});
    net.loader_of = {};
    if (found) std::printf("batch size %lld\n", static_cast<long long>(*found));
  }
  if (s.find_lr) {
    const Loaders loaders = make_loaders(net.settings, digits, gen, device);
    net.batches = batches_of_epoch(s, *loaders.train);
    const auto found = tuner.lr_find(
        net, {.train = loaders.train.get(), .val = loaders.val.get(), .min_lr = 1e-6, .slope_axis = "log_lr"});
    const std::string out = examples::out_folder(s);
    if (found && !out.empty()) (void)found->plot({.suggest = true, .path = out + "/lr.svg"});
    if (found) std::printf("learning rate %.3g\n", net.settings.lr);
  }
  s.lr = net.settings.lr;
  s.batch_size = net.settings.batch_size;
}

int run(Settings s) {
  if (s.threads > 0) set_num_threads(s.threads);
  const Device device = examples::device(s.device);
  TrainerOptions how = trainer_options(s, device);
  examples::make_output_folder(examples::out_folder(s));
  const auto counted = std::make_shared<examples::SampleCount>();
  how.callbacks.push_back(counted);
  Trainer trainer(how);  // refuses bad options before the search for data

  const Generator gen(s.seed);
  const examples::Digits digits = examples::find_digits(s.data, gen.fork("digits"));
  std::printf("%s\n", digits.said.c_str());
  std::fflush(stdout);
  const std::unique_ptr<Classifier> net = make_model(s, gen, device);
  if (s.find_lr || !s.find_batch_size.empty()) {
    search(s, trainer, *net, digits, gen);
    counted->samples = 0;
  }
  const Loaders loaders = make_loaders(s, digits, gen, device);
  net->batches = batches_of_epoch(s, *loaders.train);
  (void)planned_steps(s, net->batches);  // refused before a run begins

  const Outcome outcome = train_and_test(trainer, *net, loaders, s.resume, *counted);
  if (!outcome.interrupted) print_results(trainer, outcome);
  write_results(s, trainer, *net, digits, outcome);
  return outcome.interrupted ? 128 + trainer.stop_signal() : examples::kDone;
}

}  // namespace

int main(int argc, char** argv) {
  return examples::run_program("mnist", [&] { return run(parse(argc, argv)); });
}
