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

// ---- The machine. Flags that spread a run over devices, processes and hosts belong to the four of this part; every
// program that trains then has them.

struct MachineSettings {
  std::string device = "auto", precision = "32-true", devices, strategy;  // devices, strategy: empty is one process
  std::string balance, schedule = "gpipe";                                // of a pipeline
  std::int64_t microbatches = 8;
  int threads = 0, nodes = 1, virtual_ranks = 0;
  std::int64_t memory_limit = 0;       // bytes; 0: what the device has
  std::shared_ptr<Strategy> joined{};  // of join_processes; all trainings of the program use it
};

// `precisions`: the ones that the program takes; all without a list.
inline void add_machine_flags(Flags& flags, MachineSettings& s, const std::vector<std::string>& precisions) {
  flags.add("--device", s.device);
  if (precisions.empty())
    flags.add("--precision", s.precision);
  else
    flags.add_choice("--precision", s.precision, precisions);
  flags.add("--threads", s.threads)->check(at_least(0));
  flags.add("--memory-limit", s.memory_limit)->check(at_least(1));
  flags.add("--devices", s.devices);
  flags.add("--nodes", s.nodes)->check(at_least(1));
  flags.add("--strategy", s.strategy);
  flags.add("--virtual-ranks", s.virtual_ranks)->check(at_least(0));
  flags.add("--balance", s.balance);
  flags.add("--microbatches", s.microbatches)->check(at_least(1));
  flags.add("--schedule", s.schedule)->check(CLI::IsMember({"gpipe", "1f1b"}));
}

inline bool is_pipeline(const MachineSettings& s) {
  return s.strategy == "pipeline" || s.strategy == "pipe" || s.strategy == "rpc_sequential";
}
inline bool is_split_batch(const MachineSettings& s) { return s.strategy == "dp" || s.strategy == "split_batch"; }

// Refuses bad combinations before any work.
inline void check_machine_flags(const Flags& flags, const MachineSettings& s) {
  if (s.virtual_ranks > 0 && !s.strategy.empty() && s.strategy != "ddp")
    flags.refuse("--virtual-ranks is for --strategy ddp, and --strategy is " + s.strategy);
  for (const char* name : {"--balance", "--microbatches", "--schedule"}) {
    if (flags.given(name) && !is_pipeline(s)) flags.refuse(std::string(name) + " needs --strategy pipeline");
  }
}

// Sets the number of threads, and returns the device of the run.
inline Device use_machine(const MachineSettings& s) {
  if (s.threads > 0) set_num_threads(s.threads);
  return examples::device(s.device);
}

// Numbers of "2,2".
inline std::vector<std::int64_t> numbers(const char* flag, const std::string& list) {
  std::vector<std::int64_t> all;
  for (const char *at = list.data(), *const end = at + list.size(); at < end; ++at) {
    const auto [next, error] = std::from_chars(at, end, all.emplace_back());
    if (error != std::errc() || (next != end && (*next != ',' || next + 1 == end)))
      fail<ConfigError>(flag, ": \"", list, "\" is not a list of numbers such as 2,2");
    at = next;
  }
  return all;
}

// The devices of one process that --devices names on the CPU: that many, or these. Empty where the trainer finds them.
inline std::vector<Device> cpu_devices(const MachineSettings& s) {
  if (!examples::device(s.device).is_cpu() || s.devices.empty()) return {};
  const DeviceChoice asked(s.devices);
  std::vector<Device> all;
  for (const int i : asked.indices()) all.push_back(Device::cpu(i));
  for (int i = 0; !asked.is_list() && i < asked.count().value_or(1); ++i) all.push_back(Device::cpu(i));
  return all;
}

inline const char* accelerator_of(Device device) {
  return device.is_cpu() ? "cpu" : device.is_cuda() ? "cuda" : "simt";
}

// `replica`: makes a module for dp.
inline void set_machine_options(TrainerOptions& options, const MachineSettings& s,
                                Function<std::unique_ptr<TrainModule>(const nn::Options&)> replica = {}) {
  options.precision = s.precision;
  if (s.memory_limit > 0) options.memory_limit = s.memory_limit;
  if (s.nodes > 1) options.num_nodes = s.nodes;
  if (s.virtual_ranks > 0)
    options.strategy = std::make_shared<DdpStrategy>(DdpOptions{.virtual_ranks = s.virtual_ranks});
  else if (!s.strategy.empty())
    options.strategy = s.strategy;
  const bool one_process = (is_pipeline(s) && s.strategy != "rpc_sequential") || is_split_batch(s);
  // The ranks of processes have devices of the kind that --device names.
  if (!one_process && (!s.devices.empty() || s.nodes > 1 || s.virtual_ranks > 0 || !s.strategy.empty()))
    options.accelerator = accelerator_of(examples::device(s.device));
  const std::vector<Device> cpus = one_process ? cpu_devices(s) : std::vector<Device>();
  if (!s.devices.empty() && cpus.empty()) options.devices = s.devices;
  const PipelineOptions stages{
      .devices = cpus,
      .balance = numbers("--balance", s.balance),
      .microbatches = s.microbatches,
      .schedule = s.schedule == "1f1b" ? PipelineSchedule::one_f_one_b : PipelineSchedule::gpipe};
  if (s.strategy == "rpc_sequential")
    options.strategy = std::make_shared<PipelineRanksStrategy>(PipelineRanksOptions{.pipeline = stages});
  else if (is_pipeline(s))
    options.strategy = std::make_shared<PipelineStrategy>(stages);
  else if (is_split_batch(s))
    options.strategy =
        std::make_shared<DataParallelStrategy>(DataParallelOptions{.devices = cpus, .replica = std::move(replica)});
  if (s.joined) options.strategy = s.joined;
}

// Starts or joins the processes that the flags ask for before anything is trained, for programs that share data or
// train several times. Ranks above 0 write nothing to stdout from then on. Does nothing where the flags ask for one
// process.
inline void join_processes(MachineSettings& s) {
  TrainerOptions options;
  set_machine_options(options, s);
  const bool several = options.num_nodes.value() > 1 || options.devices.count().value_or(1) > 1;
  if (!several && (s.strategy.empty() || s.strategy == "auto")) return;
  std::shared_ptr<Strategy> made = options.strategy.object();
  if (!made) made = StrategyRegistry::make(s.strategy.empty() || s.strategy == "auto" ? "ddp" : s.strategy);
  if (!dynamic_cast<const ProcessStrategy*>(made.get())) return;  // devices of one process
  s.joined = std::move(made);
  options.strategy = s.joined;
  s.joined->check(options);
  s.joined->connect(options);
  if (s.joined->ranks().rank > 0 && !std::freopen("/dev/null", "w", stdout))
    fail<FileError>("/dev/null: opening failed");
}

// Whether this process writes results; after join_processes.
inline bool is_rank_zero(const MachineSettings& s) { return !s.joined || s.joined->ranks().rank == 0; }

// ---- The trainer

struct TrainerSettings : MachineSettings {
  std::string out, logger = "csv", max_time, limit_train_batches = "1.0", fast_dev_run = "0", capture = "auto",
                   clip_algorithm = "norm", early_stop, profile, limit_val_batches, val_check_interval, overfit_batches;
  std::int64_t epochs = 3, max_steps = -1, checkpoint_every = 0, accumulate = 1, check_val_every_n_epoch = 1, swa = 0;
  double lr = 0, clip = 0, ema = 0;
  bool quiet = false;
  // Not flags:
  bool manual_optimization = false;  // the module optimizes; it reads `accumulate`
  bool keeps_best = false;           // the run keeps a checkpoint of its lowest validation loss
};

// Which of the trainer's flags mean something for a program.
struct TrainerFlags {
  std::vector<std::string> precisions{};  // of --precision; empty: all
  std::vector<std::string> monitors{};    // metrics of --early-stop; empty: no such flag
  bool validation = false;                // when and on how many batches a run validates
};

inline void add_trainer_flags(Flags& flags, TrainerSettings& s, const TrainerFlags& which) {
  flags.add("--limit-train-batches", s.limit_train_batches);
  flags.add("--epochs", s.epochs)->check(at_least(0));
  flags.add("--max-steps", s.max_steps);
  flags.add("--max-time", s.max_time);
  flags.add("--lr", s.lr)->check(above(0));
  flags.add("--accumulate", s.accumulate)->check(at_least(1));
  if (!s.manual_optimization) {
    flags.add("--capture", s.capture)->check(CLI::IsMember({"auto", "off", "step"}));
    flags.add("--clip", s.clip)->check(at_least(0));
    flags.add("--clip-algorithm", s.clip_algorithm)->check(CLI::IsMember({"norm", "value"}));
    flags.add("--ema", s.ema)->check(CLI::Range(0.0, 1.0));
    flags.add("--swa", s.swa)->check(at_least(1));
  }
  if (!which.monitors.empty()) flags.add("--early-stop", s.early_stop)->check(CLI::IsMember(which.monitors));
  if (which.validation) {
    flags.add("--limit-val-batches", s.limit_val_batches);
    flags.add("--val-check-interval", s.val_check_interval);
    flags.add("--check-val-every-n-epoch", s.check_val_every_n_epoch)->check(at_least(1));
    flags.add("--overfit-batches", s.overfit_batches);
  }
  flags.add("--fast-dev-run", s.fast_dev_run)->expected(0, 1)->default_str("1");  // the value of the flag alone
  add_machine_flags(flags, s, which.precisions);
  flags.add("--out", s.out);
  flags.add("--logger", s.logger);
  flags.add("--profile", s.profile)->check(CLI::IsMember({"simple", "trace"}));
  flags.add("--checkpoint-every", s.checkpoint_every)->check(at_least(0));
  flags.add_switch("--quiet", s.quiet);
}

// Batches of a dev run; 0: none.
inline int dev_run_batches(const TrainerSettings& s) {
  int n = 0;
  const char* const end = s.fast_dev_run.data() + s.fast_dev_run.size();
  if (const auto [at, error] = std::from_chars(s.fast_dev_run.data(), end, n);
      error != std::errc() || at != end || n < 0)
    fail<ConfigError>("--fast-dev-run: \"", s.fast_dev_run, "\" is not a count of batches");
  return n;
}

// The folder of result files; empty: none. A dev run writes none.
inline std::string out_folder(const TrainerSettings& s) { return dev_run_batches(s) > 0 ? std::string() : s.out; }

// Refuses bad combinations before any work.
inline void check_trainer_flags(const Flags& flags, const TrainerSettings& s) {
  check_machine_flags(flags, s);
  if (s.out.empty() && s.checkpoint_every > 0) flags.refuse("--checkpoint-every needs --out for its files");
  if (s.out.empty() && s.logger != "csv") flags.refuse("--logger needs --out for its files");
  if (s.profile == "trace" && s.out.empty()) flags.refuse("--profile trace needs --out for its file");
  if (s.manual_optimization) return;
  if (flags.given("--clip-algorithm") && s.clip == 0) flags.refuse("--clip-algorithm needs --clip");
  if (s.ema > 0 && s.swa > 0) flags.refuse("--ema and --swa are two averages of the same weights; give one of them");
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
inline std::vector<std::shared_ptr<Logger>> loggers(const TrainerSettings& s) {
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

// Callbacks of flags, without those that write checkpoints.
inline void add_callbacks(Callbacks& all, const TrainerSettings& s) {
  if (!s.early_stop.empty())
    all.push_back(std::make_shared<EarlyStopping>(
        EarlyStoppingOptions{.monitor = s.early_stop,
                             .mode = s.early_stop.ends_with("accuracy") ? Mode::max : Mode::min,
                             .verbose = !s.quiet}));
  if (s.ema > 0) all.push_back(std::make_shared<EmaWeightAveraging>(EmaWeightAveragingOptions{.decay = s.ema}));
  if (s.swa > 0)
    all.push_back(std::make_shared<StochasticWeightAveraging>(
        StochasticWeightAveragingOptions{.swa_lrs = {s.lr / 10}, .swa_epoch_start = s.swa}));
}

// `device`: of the module. `replica`: makes a module for dp.
inline TrainerOptions trainer_options(const TrainerSettings& s, Device device,
                                      Function<std::unique_ptr<TrainModule>(const nn::Options&)> replica = {}) {
  TrainerOptions options{.logger = loggers(s),
                         .fast_dev_run = dev_run_batches(s),
                         .max_epochs = s.epochs,
                         .max_steps = s.max_steps,
                         .check_val_every_n_epoch = s.check_val_every_n_epoch,
                         .enable_checkpointing = !s.out.empty(),
                         .enable_progress_bar = !s.quiet,
                         .enable_model_summary = !s.quiet,
                         .default_root_dir = s.out};
  set_machine_options(options, s, std::move(replica));
  if (s.limit_train_batches != "1.0")
    options.limit_train_batches = portion("--limit-train-batches", s.limit_train_batches);
  if (!s.max_time.empty()) options.max_time = Duration(s.max_time);
  if (!s.manual_optimization) {
    const bool capture = s.capture == "step" || (s.capture == "auto" && device.is_cuda());
    options.capture = capture ? Capture::step : Capture::off;
    options.accumulate_grad_batches = s.accumulate;
    if (s.clip > 0) options.gradient_clip_val = s.clip;
    if (s.clip > 0 && s.clip_algorithm == "value") options.gradient_clip_algorithm = ClipAlgorithm::value;
  }
  if (!s.limit_val_batches.empty()) options.limit_val_batches = portion("--limit-val-batches", s.limit_val_batches);
  if (!s.val_check_interval.empty()) {
    if (s.val_check_interval.find(':') != std::string::npos)
      options.val_check_interval = ValidationInterval(Duration(s.val_check_interval));
    else
      options.val_check_interval = portion("--val-check-interval", s.val_check_interval);
  }
  if (!s.overfit_batches.empty()) options.overfit_batches = portion("--overfit-batches", s.overfit_batches);
  const std::string out = out_folder(s);
  if (s.keeps_best && !out.empty())  // the first that writes checkpoints: --resume best reads it
    options.callbacks.push_back(
        std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.monitor = "val_loss", .save_last = SaveLast::on}));
  if (s.checkpoint_every > 0)
    options.callbacks.push_back(std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{
        .monitor = "step", .mode = Mode::max, .save_top_k = 3, .every_n_train_steps = s.checkpoint_every}));
  add_callbacks(options.callbacks, s);
  if (s.profile == "simple")
    options.profiler =
        std::make_shared<SimpleProfiler>(SimpleProfilerOptions{.path = out.empty() ? "" : out + "/profile.txt"});
  else if (s.profile == "trace" && !out.empty())
    options.profiler = std::make_shared<TraceProfiler>(TraceProfilerOptions{.path = out + "/trace.json"});
  return options;
}

// ---- A program that trains

struct TrainingSettings : TrainerSettings {
  std::string data, json, resume;
  std::int64_t batch_size = 128;
  int workers = 1;
  std::uint64_t seed = 1;
};

inline void add_training_flags(Flags& flags, TrainingSettings& s, const TrainerFlags& which) {
  flags.add("--data", s.data);
  flags.add("--batch-size", s.batch_size)->check(at_least(1));
  flags.add("--workers", s.workers)->check(at_least(0));
  flags.add("--seed", s.seed);
  add_trainer_flags(flags, s, which);
  flags.add("--json", s.json);
  flags.add("--resume", s.resume);
}

// Refuses bad combinations before any work.
inline void check_training_flags(const Flags& flags, const TrainingSettings& s) {
  check_trainer_flags(flags, s);
  if (s.out.empty() && (s.resume == "last" || s.resume == "best"))
    flags.refuse("--resume " + s.resume + " needs --out, where it looks");
  if (!s.resume.empty() && s.resume != "last" && s.resume != "best" && !std::filesystem::exists(s.resume))
    flags.refuse("--resume: no file " + s.resume);
  if (s.resume == "best" && !s.keeps_best)
    flags.refuse("--resume best needs a run that validates; give a file or last");
}

// The settings of a further run of a program that trains several times: the first one writes the files and talks.
template <class Settings>
Settings without_files(Settings s) {
  s.quiet = true;
  s.out.clear();
  s.profile.clear();
  s.checkpoint_every = 0;
  return s;
}

inline void make_output_folder(const std::string& path) {
  if (path.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) fail<FileError>("--out: cannot make ", path, ": ", error.message());
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
          .strategy = std::string(trainer.strategy().name()),
          .world_size = trainer.world_size(),
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
