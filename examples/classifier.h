// What programs that classify pictures share: flags, training, searches, results. A program adds its pictures, models
// and drawing (ClassifierProgram).
#pragma once

#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "examples/predictions.h"
#include "examples/training.h"

namespace levin::examples {

struct ClassifierSettings : TrainingSettings {
  std::string model, optimizer = "adamw", scheduler = "onecycle", find_batch_size;
  double label_smoothing = 0;  // not a flag
  bool find_lr = false;
  bool validates = false;  // a flag asked for it
};

// ---- Flags

// Adds all flags but the program's own, parses, and refuses bad combinations before any work. `data`: the help of
// --data; empty: the vocabulary's.
inline void parse_classifier_flags(Flags& flags, ClassifierSettings& s, const std::vector<std::string>& models,
                                   int argc, const char* const* argv, const std::string& data = {}) {
  flags.add("--model", s.model)->check(CLI::IsMember(models));
  flags.add("--optimizer", s.optimizer)->check(CLI::IsMember({"adamw", "adam", "sgd"}));
  flags.add("--scheduler", s.scheduler)->check(CLI::IsMember({"onecycle", "cosine", "constant"}));
  add_training_flags(flags, s, {.monitors = {"val_loss", "val_accuracy", "train_loss"}, .validation = true});
  flags.add_switch("--find-lr", s.find_lr);
  flags.add("--find-batch-size", s.find_batch_size)->check(CLI::IsMember({"power", "binsearch"}));
  flags.describe("--data", "", data);
  flags.parse(argc, argv);
  const char* const asks[] = {"--limit-val-batches", "--val-check-interval", "--check-val-every-n-epoch",
                              "--overfit-batches"};
  s.validates = dev_run_batches(s) > 0 || s.early_stop.starts_with("val_") ||
                std::any_of(std::begin(asks), std::end(asks), [&](const char* name) { return flags.given(name); });
  s.keeps_best = s.validates && s.limit_val_batches != "0";
  check_training_flags(flags, s);
  if (!s.resume.empty() && (s.find_lr || !s.find_batch_size.empty()))
    flags.refuse("--resume continues with what was found before; drop --find-lr and --find-batch-size");
}

// ---- The model

// Optimizer steps of all requested epochs, whatever --max-steps and --max-time say: so a run that is cut and resumed
// equals an uninterrupted one.
inline std::int64_t planned_steps(const ClassifierSettings& s, std::int64_t batches) {
  const std::int64_t steps = batches / s.accumulate + (batches % s.accumulate > 0 ? 1 : 0);
  std::int64_t planned = 0;
  if (__builtin_mul_overflow(s.epochs, steps, &planned))
    fail<ConfigError>("--epochs: ", s.epochs, " epochs of ", steps,
                      " batches are more steps than can be counted; expected ",
                      std::numeric_limits<std::int64_t>::max() / steps, " epochs at most");
  return planned;
}

// Batches that a rank trains on in an epoch; `batches`: of the loader.
inline std::int64_t batches_of_epoch(const ClassifierSettings& s, std::int64_t batches, std::int64_t ranks) {
  const std::int64_t own = batches / ranks + (batches % ranks > 0 ? 1 : 0);
  if (!s.overfit_batches.empty()) return portion("--overfit-batches", s.overfit_batches).of(own, "--overfit-batches");
  return portion("--limit-train-batches", s.limit_train_batches).of(own, "--limit-train-batches");
}

inline std::shared_ptr<optim::Optimizer> make_optimizer(const ClassifierSettings& s, std::vector<ParamRef> parameters) {
  if (s.optimizer == "sgd")
    return std::make_shared<optim::SGD>(std::move(parameters), optim::SGDOptions{.lr = s.lr, .momentum = 0.9});
  if (s.optimizer == "adam")
    return std::make_shared<optim::Adam>(std::move(parameters), optim::AdamOptions{.lr = s.lr});
  return std::make_shared<optim::AdamW>(std::move(parameters), optim::AdamWOptions{.lr = s.lr, .weight_decay = 1e-2});
}

// Images [N, C, H, W] -> logits [N, classes], by the layers of `net`.
struct Classifier : PipelineModule {
  Classifier(const ClassifierSettings& s, const Generator& gen, Device device)
      : PipelineModule({.gen = gen.fork("model"), .device = device}), settings(s) {
    tunable("lr", &settings.lr);
    tunable("batch_size", &settings.batch_size);
  }
  ClassifierSettings settings;  // --find-lr and --find-batch-size set it, too
  std::int64_t batches = 0;     // of the training loader, which ranks share; set before a run
  // For --find-batch-size: loaders with batches of settings.batch_size. The search tries validation as well where the
  // run validates.
  Function<std::unique_ptr<data::DataLoader>(const ClassifierSettings&, data::Split)> loader_of;
  std::unique_ptr<data::DataLoader> train_loader() override {
    return loader_of ? loader_of(settings, data::Split::train) : nullptr;
  }
  std::unique_ptr<data::DataLoader> val_loader() override {
    return loader_of ? loader_of(settings, data::Split::test) : nullptr;
  }

  nn::Sequential net{*this, "net"};
  nn::Sequential& layers() override { return net; }

  // The training loss; validation takes the cross-entropy without smoothing.
  [[nodiscard]] virtual Tensor criterion(const Tensor& logits, const Batch& b) const {
    return cross_entropy(logits, b[1], {.label_smoothing = settings.label_smoothing});
  }
  StepOutput loss_of(const Tensor& logits, const Batch& b) override { return criterion(logits, b); }
  void on_step_output(const StepOutput& output) override {
    log("train_loss", output.loss(), {.prog_bar = true, .on_step = true, .on_epoch = true});
  }
  void validation_step(const Batch& b, std::int64_t, std::int64_t) override {
    const Tensor logits = (*this)(b[0]), labels = b[1].to(logits.device());
    log("val_loss", cross_entropy(logits, labels), {.prog_bar = true});
    log("val_accuracy", accuracy(logits, labels));
  }
  OptimizerConfig configure_optimizers() override;
};

inline OptimizerConfig Classifier::configure_optimizers() {
  const std::shared_ptr<optim::Optimizer> optimizer = make_optimizer(settings, parameters());
  OptimizerConfig config{.optimizers = {optimizer}};
  const std::int64_t planned = planned_steps(settings, batches_of_epoch(settings, batches, trainer().world_size()));
  if (planned == 0 || settings.scheduler == "constant") return config;
  std::shared_ptr<optim::Scheduler> scheduler;
  if (settings.scheduler == "cosine")
    scheduler = std::make_shared<optim::CosineAnnealingLR>(*optimizer, planned);
  else
    scheduler = std::make_shared<optim::OneCycleLR>(
        *optimizer, optim::OneCycleOptions{.max_lr = settings.lr, .total_steps = planned});
  config.schedulers.push_back({.scheduler = scheduler, .interval = SchedulerConfig::Interval::step});
  return config;
}

// ---- The program

struct Pictures {
  data::DatasetRef train, test;
  data::DatasetRef plain{};  // the training pictures without augmentation, for validation; null: train
  std::vector<std::string> classes{};
  bool real = false;
  std::string said{};  // the program's first line
};

struct ClassifierProgram {
  const char* name;
  const char* class_is;  // what a class is
  Function<Pictures(const ClassifierSettings&, const Generator&)> find;
  Function<std::unique_ptr<Classifier>(const ClassifierSettings&, const Generator&, Device)> make_model;
  Function<void(const std::string& path, const Pictures&, const Predictions&)> draw_misclassified;
};

// All training pictures, or 11 of 12 with the rest for validation.
struct Loaders {
  std::unique_ptr<data::DataLoader> train, val, test;
};

inline Loaders make_loaders(const ClassifierSettings& s, const Pictures& pictures, const Generator& gen,
                            Device device) {
  data::DatasetRef train = pictures.train, val;
  if (s.validates) {
    const std::int64_t all = train->size(), kept = all / 12;
    const auto split = [&](const data::DatasetRef& of) {
      return data::random_split(of, {all - kept, kept}, gen.fork("split"));
    };
    val = split(pictures.plain ? pictures.plain : train)[1];
    train = split(train)[0];
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
  data::DatasetRef test = pictures.test;
  if (const int n = dev_run_batches(s); n > 0) {
    std::vector<std::int64_t> first(static_cast<std::size_t>(std::min(test->size(), n * test_batch)));
    std::iota(first.begin(), first.end(), std::int64_t{0});
    test = data::subset(test, std::move(first));
  }
  loaders.test = std::make_unique<data::DataLoader>(
      test, data::DataLoaderOptions{.batch_size = test_batch, .num_workers = s.workers});
  return loaders;
}

// ---- Results

// The results of a run; an unknown accuracy is NaN.
struct Outcome : Trained {
  double accuracy = std::numeric_limits<double>::quiet_NaN();
  Predictions predictions;
};

inline Outcome train_and_test(const ClassifierProgram& program, Trainer& trainer, Classifier& net,
                              const Loaders& loaders, const Pictures& pictures, const std::string& resume,
                              const SampleCount& counted) {
  Outcome outcome;
  outcome.predictions = Predictions(pictures.classes, program.class_is);
  const auto fit = [&] {
    trainer.fit(net, {.train = loaders.train.get(), .val = loaders.val.get(), .ckpt_path = resume});
  };
  const auto test = [&] {
    RankPredictions mine;
    (void)trainer.evaluate(net, *loaders.test, [&](const Batch& b) {
      const Tensor logits = net(b[0]), labels = b[1].to(logits.device());
      mine.add(logits, labels, b.indices);
      return accuracy(logits, labels);
    });
    mine.add_to(outcome.predictions, trainer.strategy());
    // From the counts: the mean of the batches' f32 accuracies differs by a few ulps.
    outcome.accuracy = outcome.predictions.accuracy();
  };
  static_cast<Trained&>(outcome) = examples::train(program.name, net.device(), counted, fit, test);
  return outcome;
}

inline void print_results(Trainer& trainer, const Outcome& outcome) {
  outcome.predictions.print();
  std::printf("trained %lld steps in %.1f s, %.0f images/s\n", static_cast<long long>(trainer.global_step()),
              outcome.seconds, outcome.samples_per_second());
  if (const double loss = metric(trainer, "val_loss"); !std::isnan(loss)) std::printf("validation loss %.4f\n", loss);
  std::printf("test accuracy %.2f %%\n", 100 * outcome.accuracy);
}

// The files of --out and --json, by rank 0; for an interrupted run the files that do not need its end.
inline void write_results(const ClassifierProgram& program, const ClassifierSettings& s, Trainer& trainer,
                          const Classifier& net, const Pictures& pictures, const Outcome& outcome) {
  if (trainer.global_rank() > 0) return;
  if (const std::string out = out_folder(s); !out.empty()) {
    draw_losses(out + "/loss.svg", trainer,
                {{"train_loss_step", "step"}, {"train_loss_epoch", "epoch mean"}, {"val_loss", "validation"}},
                {.title = "Training loss", .x_label = "optimizer steps", .y_label = "cross-entropy"});
    write_file_atomically(out + "/report.txt", trainer.step_time_report());
    if (!outcome.interrupted) {
      save_safetensors(out + "/model.safetensors", net.state_dict());
      program.draw_misclassified(out + "/misclassified.png", pictures, outcome.predictions);
    }
  }
  if (s.json.empty()) return;
  Result result = training_result(program.name, s, trainer, net, pictures.real, outcome);
  result.more["test_accuracy"] = number(outcome.accuracy);
  result.more["val_loss"] = number(metric(trainer, "val_loss"));
  result.write(s.json);
}

// The searches of --find-batch-size and --find-lr, before the training and by trials of it.
inline void search(ClassifierSettings& s, Trainer& trainer, Classifier& net, const Pictures& pictures,
                   const Generator& gen) {
  Tuner tuner(trainer);
  const Device device = net.device();
  if (!s.find_batch_size.empty()) {
    net.loader_of = [&](const ClassifierSettings& now, data::Split split) {
      Loaders loaders = make_loaders(now, pictures, gen, device);
      return split == data::Split::train ? std::move(loaders.train) : std::move(loaders.val);
    };
    const auto found = tuner.scale_batch_size(net, {.mode = s.find_batch_size});
    net.loader_of = {};
    if (found) std::printf("batch size %lld\n", static_cast<long long>(*found));
  }
  if (s.find_lr) {
    const Loaders loaders = make_loaders(net.settings, pictures, gen, device);
    net.batches = loaders.train->size();
    const auto found = tuner.lr_find(
        net, {.train = loaders.train.get(), .val = loaders.val.get(), .min_lr = 1e-6, .slope_axis = "log_lr"});
    const std::string out = out_folder(s);
    if (found && !out.empty()) (void)found->plot({.suggest = true, .path = out + "/lr.svg"});
    if (found) std::printf("learning rate %.3g\n", net.settings.lr);
  }
  s.lr = net.settings.lr;
  s.batch_size = net.settings.batch_size;
}

inline int run_classifier(const ClassifierProgram& program, ClassifierSettings s) {
  const Device device = use_machine(s);
  const Generator gen(s.seed);
  TrainerOptions how = trainer_options(
      s, device, [&program, &s, &gen](const nn::Options& o) { return program.make_model(s, gen, o.device); });
  make_output_folder(out_folder(s));
  const auto counted = std::make_shared<SampleCount>();
  how.callbacks.push_back(counted);
  Trainer trainer(how);  // refuses bad options before the search for data

  const Pictures pictures = program.find(s, gen);
  std::printf("%s\n", pictures.said.c_str());
  std::fflush(stdout);
  const std::unique_ptr<Classifier> net = program.make_model(s, gen, device);
  if (s.find_lr || !s.find_batch_size.empty()) {
    search(s, trainer, *net, pictures, gen);
    counted->samples = 0;
  }
  const Loaders loaders = make_loaders(s, pictures, gen, device);
  net->batches = loaders.train->size();
  (void)planned_steps(s, batches_of_epoch(s, net->batches, 1));  // refused before a run begins

  const Outcome outcome = train_and_test(program, trainer, *net, loaders, pictures, s.resume, *counted);
  if (trainer.is_global_zero()) {
    if (!outcome.interrupted) print_results(trainer, outcome);
    write_results(program, s, trainer, *net, pictures, outcome);
  }
  return outcome.interrupted ? 128 + trainer.stop_signal() : kDone;
}

}  // namespace levin::examples
