// What programs that train share: flags and their meaning for a trainer, the run itself, its results.
#pragma once

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "examples/flags.h"

namespace levin::examples {

struct TrainingSettings {
  std::string data, device = "auto", precision = "32-true", out, json, resume, logger = "csv", max_time,
                    limit_train_batches = "1.0", fast_dev_run = "0";
  std::int64_t batch_size = 128, epochs = 3, max_steps = -1, checkpoint_every = 0, accumulate = 1;
  int workers = 1, threads = 0;
  double lr = 0;
  std::uint64_t seed = 1;
  bool quiet = false;
  bool keeps_best = false;  // not a flag: the run keeps a checkpoint of its lowest validation loss
};

// `precisions`: the ones that the program takes; all without a list.
inline void add_training_flags(Flags& flags, TrainingSettings& s, const std::vector<std::string>& precisions = {}) {
  flags.add("--data", s.data);
  flags.add("--batch-size", s.batch_size)->check(at_least(1));
  flags.add("--workers", s.workers)->check(at_least(0));
  flags.add("--limit-train-batches", s.limit_train_batches);
  flags.add("--epochs", s.epochs)->check(at_least(0));
  flags.add("--max-steps", s.max_steps);
  flags.add("--max-time", s.max_time);
  flags.add("--lr", s.lr)->check(above(0));
  flags.add("--seed", s.seed);
  flags.add("--accumulate", s.accumulate)->check(at_least(1));
  flags.add("--fast-dev-run", s.fast_dev_run)->expected(0, 1)->default_str("1");  // the value of the flag alone
  flags.add("--device", s.device);
  if (precisions.empty())
    flags.add("--precision", s.precision);
  else
    flags.add_choice("--precision", s.precision, precisions);
  flags.add("--threads", s.threads)->check(at_least(0));
  flags.add("--out", s.out);
  flags.add("--json", s.json);
  flags.add("--logger", s.logger);
  flags.add("--checkpoint-every", s.checkpoint_every)->check(at_least(0));
  flags.add("--resume", s.resume);
  flags.add_switch("--quiet", s.quiet);
}

// Batches of a dev run; 0: none.
inline int dev_run_batches(const TrainingSettings& s) {
  int n = 0;
  const char* const end = s.fast_dev_run.data() + s.fast_dev_run.size();
  if (const auto [at, error] = std::from_chars(s.fast_dev_run.data(), end, n);
      error != std::errc() || at != end || n < 0)
    fail<ConfigError>("--fast-dev-run: \"", s.fast_dev_run, "\" is not a count of batches");
  return n;
}

// The folder of result files; empty: none. A dev run writes none.
inline std::string out_folder(const TrainingSettings& s) { return dev_run_batches(s) > 0 ? std::string() : s.out; }

// Refuses bad combinations before any work.
inline void check_training_flags(const Flags& flags, const TrainingSettings& s) {
  if (s.out.empty() && s.checkpoint_every > 0) flags.refuse("--checkpoint-every needs --out for its files");
  if (s.out.empty() && (s.resume == "last" || s.resume == "best"))
    flags.refuse("--resume " + s.resume + " needs --out, where it looks");
  if (!s.resume.empty() && s.resume != "last" && s.resume != "best" && !std::filesystem::exists(s.resume))
    flags.refuse("--resume: no file " + s.resume);
  if (s.resume == "best" && !s.keeps_best)
    flags.refuse("--resume best needs a run that validates; give a file or last");
  if (s.out.empty() && s.logger != "csv") flags.refuse("--logger needs --out for its files");
}

// The words of "csv,tensorboard".
inline std::vector<std::string> words(const std::string& list) {
  std::vector<std::string> all(1);
  for (const char c : list) {
    if (c == ',')
      all.emplace_back();
    else
      all.back() += c;
  }
  return all;
}

// The loggers write straight into --out.
inline std::vector<std::shared_ptr<Logger>> loggers(const TrainingSettings& s) {
  std::vector<std::shared_ptr<Logger>> all;
  for (const std::string& name : words(s.logger)) {
    if (name != "csv" && name != "tensorboard")
      fail<ConfigError>("--logger: \"", name, "\" is unknown; expected csv, tensorboard or csv,tensorboard");
    if (s.out.empty()) continue;
    if (name == "csv")
      all.push_back(std::make_shared<CsvLogger>(CsvLoggerOptions{.save_dir = s.out, .name = "", .version = ""}));
    else
      all.push_back(
          std::make_shared<TensorBoardLogger>(TensorBoardLoggerOptions{.save_dir = s.out, .name = "", .version = ""}));
  }
  return all;
}

inline TrainerOptions trainer_options(const TrainingSettings& s) {
  TrainerOptions options{.logger = loggers(s),
                         .fast_dev_run = dev_run_batches(s),
                         .max_epochs = s.epochs,
                         .max_steps = s.max_steps,
                         .enable_checkpointing = !s.out.empty(),
                         .enable_progress_bar = !s.quiet,
                         .enable_model_summary = !s.quiet,
                         .precision = s.precision,
                         .default_root_dir = s.out};
  if (s.limit_train_batches != "1.0")
    options.limit_train_batches = portion("--limit-train-batches", s.limit_train_batches);
  if (!s.max_time.empty()) options.max_time = Duration(s.max_time);
  if (s.checkpoint_every > 0)
    options.callbacks.push_back(std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{
        .monitor = "step", .mode = Mode::max, .save_top_k = 3, .every_n_train_steps = s.checkpoint_every}));
  if (s.keeps_best && !out_folder(s).empty())  // first: --resume best reads it
    options.callbacks.insert(options.callbacks.begin(), std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{
                                                            .monitor = "val_loss", .save_last = SaveLast::on}));
  return options;
}

inline void make_output_folder(const std::string& path) {
  if (path.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) fail<FileError>("--out: can not make ", path, ": ", error.message());
}

// Counts trained samples: a captured step does not call the loss function.
struct SampleCount final : Callback {
  std::int64_t samples = 0;
  void on_train_batch_end(const StepInfo& info) override { samples += info.batch->size(); }
};

// The outcome of a run.
struct Trained {
  std::int64_t samples = 0;
  double seconds = 0;  // of training
  bool done = false, interrupted = false;

  [[nodiscard]] double samples_per_second() const { return static_cast<double>(samples) / std::max(seconds, 1e-9); }
};

// Trains by fit(), timed, then calls after(). An interrupt of either ends it and is no error.
template <class Fit, class After>
Trained train(const char* program, Device device, const SampleCount& counted, Fit&& fit, After&& after) {
  Trained trained;
  const auto start = std::chrono::steady_clock::now();
  const auto take_time = [&] {
    trained.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    trained.samples = counted.samples;
  };
  try {
    fit();
    synchronize(device);
    take_time();
    trained.done = true;
    after();
  } catch (const InterruptedError& e) {
    std::fprintf(stderr, "%s: %s\n", program, e.what());
    if (!trained.done) take_time();
    trained.interrupted = true;
  }
  return trained;
}

// The part of the JSON result that every program has.
inline Result training_result(const char* program, const TrainingSettings& s, const Trainer& trainer,
                              const nn::Module& net, bool real_data, const Trained& trained) {
  return {.program = program,
          .status = trained.interrupted                  ? "interrupted"
                    : trainer.current_epoch() < s.epochs ? "stopped"
                                                         : "done",
          .data = real_data ? "real" : "generated",
          .seed = s.seed,
          .device = net.device(),
          .precision = s.precision,
          .epochs = s.epochs,
          .optimizer_steps = trainer.global_step(),
          .parameters = net.parameter_count().total(),
          .train_seconds = trained.seconds,
          .samples_per_second = trained.samples_per_second()};
}

// JSON has no NaN.
inline nlohmann::ordered_json number(double x) {
  return std::isnan(x) ? nlohmann::ordered_json() : nlohmann::ordered_json(x);
}

// The newest value of a metric; NaN when it was never logged.
inline double metric(Trainer& trainer, std::string_view name) {
  for (const auto& [key, value] : trainer.callback_metrics()) {
    if (key == name) return value;
  }
  return std::nan("");
}

// One line per name: {metric, its label in the plot}. A run too short for a record of a metric has its newest value.
inline void draw_losses(const std::string& path, Trainer& trainer,
                        const std::vector<std::pair<std::string, std::string>>& names, const PlotOptions& labels) {
  std::vector<Series> lines;
  for (const auto& [metric, title] : names) {
    Series line{.name = title, .x = {}, .y = {}};
    for (const LogRecord& record : trainer.history()) {
      for (const auto& [name, value] : record.values) {
        if (name != metric) continue;
        line.x.push_back(static_cast<double>(record.step + 1));
        line.y.push_back(value);
      }
    }
    if (const double newest = examples::metric(trainer, metric); line.x.empty() && !std::isnan(newest)) {
      line.x.push_back(static_cast<double>(trainer.record_step()));
      line.y.push_back(newest);
    }
    if (!line.x.empty()) lines.push_back(std::move(line));
  }
  write_svg_plot(path, lines, labels);
}

}  // namespace levin::examples
