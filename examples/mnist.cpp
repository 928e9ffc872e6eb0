// Handwritten digits: trains a small network on MNIST and shows what it learned.
#include <array>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>

#include "examples/dataset.h"
#include "examples/flags.h"

using namespace levin;

namespace {

constexpr std::int64_t kClasses = 10, kSide = 28;
// The files as they were published, gzip.
constexpr const char* kUrl = "https://ossci-datasets.s3.amazonaws.com/mnist/";
constexpr examples::RemoteFile kFiles[] = {
    {"train-images-idx3-ubyte.gz", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"},
    {"train-labels-idx1-ubyte.gz", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"},
    {"t10k-images-idx3-ubyte.gz", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"},
    {"t10k-labels-idx1-ubyte.gz", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"},
};

// ---- Models: images [N, 1, 28, 28] -> logits [N, 10]

struct Classifier : nn::Module {
  using Module::Module;
  virtual Tensor operator()(const Tensor& images) const = 0;
};

struct LeNet final : Classifier {
  using Classifier::Classifier;
  nn::Conv2d conv1{*this, "conv1", {.in = 1, .out = 32, .kernel = 5, .padding = 2}};
  nn::Conv2d conv2{*this, "conv2", {.in = 32, .out = 64, .kernel = 5, .padding = 2}};
  nn::Linear fc1{*this, "fc1", {.in = 64 * 7 * 7, .out = 256}};
  nn::Linear fc2{*this, "fc2", {.in = 256, .out = kClasses}};
  Tensor operator()(const Tensor& images) const override {
    Tensor x = max_pool2d(relu(conv1(images)), 2);
    x = max_pool2d(relu(conv2(x)), 2);
    return fc2(relu(fc1(flatten(x, 1))));
  }
};

struct Mlp final : Classifier {
  using Classifier::Classifier;
  nn::Linear fc1{*this, "fc1", {.in = kSide * kSide, .out = 512}};
  nn::Linear fc2{*this, "fc2", {.in = 512, .out = 512}};
  nn::Linear fc3{*this, "fc3", {.in = 512, .out = kClasses}};
  Tensor operator()(const Tensor& images) const override { return fc3(relu(fc2(relu(fc1(flatten(images, 1)))))); }
};

// ---- Data

struct Digits {
  data::DatasetRef train, test;
  bool real = false;
  std::string said;  // the program's first line
};

Digits real_digits(const std::string& dir) {
  return {.train = data::mnist(dir, data::Split::train, data::kMnistNormalization),
          .test = data::mnist(dir, data::Split::test, data::kMnistNormalization),
          .real = true,
          .said = "data: MNIST from " + dir};
}

bool complete(const std::string& dir) {
  return data::has_mnist(dir, data::Split::train) && data::has_mnist(dir, data::Split::test);
}

// --data, $LEVIN_DATA/mnist, the cache, a download into the cache, else digits drawn here.
Digits find_digits(const std::string& asked, const Generator& gen) {
  if (!asked.empty()) {
    if (!complete(asked))
      fail<DataError>("--data: ", asked,
                      " lacks the four MNIST files (train-images-idx3-ubyte and so on, plain or .gz)");
    return real_digits(asked);
  }
  if (const std::string root = examples::environment("LEVIN_DATA"); !root.empty() && complete(root + "/mnist"))
    return real_digits(root + "/mnist");
  std::string why = "no home directory for a cache";
  if (const std::string cache = examples::cache_dir(); !cache.empty()) {
    const std::string dir = cache + "/mnist";
    if (!complete(dir)) why = examples::download(kUrl, kFiles, dir);
    if (complete(dir)) return real_digits(dir);
  }
  return {.train = data::generated_digits(data::Split::train, gen, 60000, data::kMnistNormalization),
          .test = data::generated_digits(data::Split::test, gen, 10000, data::kMnistNormalization),
          .real = false,
          .said = "data: generated digits, not MNIST (" + why + "; --data DIR names a folder with the files)"};
}

// ---- Results

struct Predictions {
  std::vector<std::int64_t> truth, predicted;  // by position in the test set
  std::array<std::array<std::int64_t, kClasses>, kClasses> confusion{};

  void add(const Tensor& logits, const Tensor& labels) {
    const std::vector<std::int64_t> t = labels.to_vector<std::int64_t>();
    const std::vector<std::int64_t> p = argmax(logits, 1).to_vector<std::int64_t>();
    for (std::size_t i = 0; i < t.size(); ++i) {
      truth.push_back(t[i]);
      predicted.push_back(p[i]);
      ++confusion[static_cast<std::size_t>(t[i])][static_cast<std::size_t>(p[i])];
    }
  }
  [[nodiscard]] std::vector<std::int64_t> wrong() const {
    std::vector<std::int64_t> at;
    for (std::size_t i = 0; i < truth.size(); ++i) {
      if (truth[i] != predicted[i]) at.push_back(static_cast<std::int64_t>(i));
    }
    return at;
  }
  void print() const {
    std::printf("confusion (row: true digit, column: predicted)\n     ");
    for (std::int64_t c = 0; c < kClasses; ++c) std::printf("%6lld", static_cast<long long>(c));
    std::printf("   correct\n");
    for (std::size_t r = 0; r < kClasses; ++r) {
      std::int64_t all = 0;
      std::printf("%5zu", r);
      for (const std::int64_t n : confusion[r]) {
        all += n;
        std::printf("%6lld", static_cast<long long>(n));
      }
      std::printf("  %6.2f %%\n",
                  all > 0 ? 100.0 * static_cast<double>(confusion[r][r]) / static_cast<double>(all) : 0);
    }
  }
};

// Digits 3 x 5 for the labels below the pictures, a row of three bits each.
constexpr std::uint8_t kFont[kClasses][5] = {{7, 5, 5, 5, 7}, {2, 6, 2, 2, 7}, {7, 1, 7, 4, 7}, {7, 1, 7, 1, 7},
                                             {5, 5, 7, 1, 1}, {7, 4, 7, 1, 7}, {7, 4, 7, 5, 7}, {7, 1, 1, 1, 1},
                                             {7, 5, 7, 5, 7}, {7, 5, 7, 1, 7}};

// The misclassified pictures, each above "true > predicted".
void draw_misclassified(const std::string& path, const data::Dataset& test, const Predictions& p) {
  constexpr std::size_t kMost = 400;
  constexpr std::int64_t kLabel = 14;  // rows below a picture
  constexpr int kScale = 2;            // of the font
  std::vector<std::int64_t> wrong = p.wrong();
  if (wrong.size() > kMost) wrong.resize(kMost);
  const auto count = static_cast<std::int64_t>(wrong.size());
  std::vector<std::uint8_t> pixels(
      static_cast<std::size_t>(std::max<std::int64_t>(1, count) * (kSide + kLabel) * kSide));
  for (std::size_t k = 0; k < wrong.size(); ++k) {
    std::uint8_t* tile = pixels.data() + k * static_cast<std::size_t>((kSide + kLabel) * kSide);
    Generator none(0);  // test samples draw nothing
    const std::vector<float> image = test.get(wrong[k], none)[0].contiguous().to_vector<float>();
    const data::Normalization n = data::kMnistNormalization;
    for (std::size_t i = 0; i < image.size(); ++i)
      tile[i] = static_cast<std::uint8_t>(std::lround(std::clamp(image[i] * n.std + n.mean, 0.f, 1.f) * 255));
    const auto ink = [&](std::int64_t x, std::int64_t y, std::uint8_t grey) {
      for (int dy = 0; dy < kScale; ++dy) {
        for (int dx = 0; dx < kScale; ++dx) tile[(kSide + 2 + y * kScale + dy) * kSide + x + dx] = grey;
      }
    };
    const auto digit = [&](std::int64_t x, std::int64_t which, std::uint8_t grey) {
      for (int row = 0; row < 5; ++row) {
        for (int column = 0; column < 3; ++column) {
          if (kFont[which][row] >> (2 - column) & 1) ink(x + kScale * column, row, grey);
        }
      }
    };
    const auto i = static_cast<std::size_t>(wrong[k]);
    digit(3, p.truth[i], 255);
    for (int row = 0; row < 5; ++row) ink(12 + kScale * (row < 3 ? row : 4 - row), row, 110);
    digit(20, p.predicted[i], 180);
  }
  const Tensor tiles =
      from_data<std::uint8_t>(pixels, {std::max<std::int64_t>(1, count), kSide + kLabel, kSide}, Device::cpu());
  data::save_png(path, data::contact_sheet(tiles, 20));
}

void draw_loss(const std::string& path, const std::vector<LogRecord>& history) {
  std::array<Series, 2> lines;
  lines[0].name = "step";
  lines[1].name = "epoch mean";
  for (const LogRecord& record : history) {
    for (const auto& [name, value] : record.values) {
      Series& line = lines[name == "train_loss_step" ? 0 : 1];
      if (name != "train_loss_step" && name != "train_loss_epoch") continue;
      line.x.push_back(static_cast<double>(record.step + 1));
      line.y.push_back(value);
    }
  }
  write_svg_plot(path, lines, {.title = "Training loss", .x_label = "optimizer steps", .y_label = "cross-entropy"});
}

// ---- The program

struct Settings {
  std::string data, model = "cnn", device = "auto", precision = "32-true", capture = "auto", out, json, resume,
                    limit_train_batches = "1.0";
  std::int64_t batch_size = 128, epochs = 3, max_steps = -1, checkpoint_every = 0;
  int workers = 1, threads = 0;
  double lr = 2e-3;
  std::uint64_t seed = 1;
  bool quiet = false;
};

Settings parse(int argc, char** argv) {
  Settings s;
  examples::Flags flags("mnist",
                        "Trains a classifier of handwritten digits (AdamW, one-cycle learning rate up to --lr).");
  flags.add("--data", s.data);
  flags.add("--batch-size", s.batch_size)->check(examples::at_least(1));
  flags.add("--workers", s.workers)->check(examples::at_least(0));
  flags.add("--limit-train-batches", s.limit_train_batches);
  flags.add("--model", s.model)->check(CLI::IsMember({"mlp", "cnn"}));
  flags.add("--epochs", s.epochs)->check(examples::at_least(0));
  flags.add("--max-steps", s.max_steps);
  flags.add("--lr", s.lr)->check(examples::above(0));
  flags.add("--seed", s.seed);
  flags.add("--device", s.device);
  flags.add("--precision", s.precision);
  flags.add("--capture", s.capture)->check(CLI::IsMember({"auto", "off", "step"}));
  flags.add("--threads", s.threads)->check(examples::at_least(0));
  flags.add("--out", s.out);
  flags.add("--json", s.json);
  flags.add("--checkpoint-every", s.checkpoint_every)->check(examples::at_least(0));
  flags.add("--resume", s.resume);
  flags.add_switch("--quiet", s.quiet);
  flags.parse(argc, argv);
  if (s.out.empty() && s.checkpoint_every > 0) flags.refuse("--checkpoint-every needs --out for its files");
  if (s.out.empty() && s.resume == "last") flags.refuse("--resume last needs --out, where it looks");
  if (!s.resume.empty() && s.resume != "last" && s.resume != "best" && !std::filesystem::exists(s.resume))
    flags.refuse("--resume: no file " + s.resume);
  if (s.resume == "best") flags.refuse("--resume best needs a validated run; give a file or last");
  return s;
}

void make_output_folder(const std::string& path) {
  if (path.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) fail<FileError>("--out: can not make ", path, ": ", error.message());
}

std::unique_ptr<Classifier> make_model(const Settings& s, const Generator& gen, Device device) {
  const nn::Options options{.gen = gen.fork("model"), .device = device};
  if (s.model == "cnn") return std::make_unique<LeNet>(options);
  return std::make_unique<Mlp>(options);
}

// Counts what was trained on: a captured step does not call the loss function.
struct SampleCount final : Callback {
  std::int64_t samples = 0;
  void on_train_batch_end(const StepInfo& info) override { samples += info.batch->size(); }
};

TrainerOptions trainer_options(const Settings& s, const Portion& limit, Device device) {
  const bool capture = s.capture == "step" || (s.capture == "auto" && device.is_cuda());
  TrainerOptions options{.logger = false,
                         .max_epochs = s.epochs,
                         .max_steps = s.max_steps,
                         .limit_train_batches = limit,
                         .enable_checkpointing = !s.out.empty(),
                         .enable_progress_bar = !s.quiet,
                         .precision = s.precision,
                         .capture = capture ? Capture::step : Capture::off,
                         .default_root_dir = s.out};
  if (s.checkpoint_every > 0)
    options.callbacks.push_back(std::make_shared<ModelCheckpoint>(
        ModelCheckpointOptions{.save_top_k = -1, .every_n_train_steps = s.checkpoint_every}));
  return options;
}

// The schedule is one cycle over all epochs asked for, whatever --max-steps says: so a run that is cut and resumed is the
// one that was not.
StepOptions step_options(const Settings& s, optim::Optimizer& opt, std::int64_t batches) {
  StepOptions options{.ckpt_path = s.resume};
  std::int64_t planned = 0;
  if (__builtin_mul_overflow(s.epochs, batches, &planned))
    fail<ConfigError>("--epochs: ", s.epochs, " epochs of ", batches,
                      " batches are more steps than can be counted; expected ",
                      std::numeric_limits<std::int64_t>::max() / batches, " epochs at most");
  if (planned > 0)
    options.schedulers.push_back({.scheduler = std::make_shared<optim::OneCycleLR>(
                                      opt, optim::OneCycleOptions{.max_lr = s.lr, .total_steps = planned}),
                                  .interval = SchedulerConfig::Interval::step});
  return options;
}

// What a run found out, also one that was interrupted: then the accuracy is not a number.
struct Outcome {
  std::int64_t samples = 0;  // trained on
  double seconds = 0;        // of training
  bool trained = false, interrupted = false;
  double accuracy = std::numeric_limits<double>::quiet_NaN();
  Predictions predictions;

  [[nodiscard]] double samples_per_second() const { return static_cast<double>(samples) / std::max(seconds, 1e-9); }
};

Outcome train_and_test(Trainer& trainer, const Classifier& net, optim::Optimizer& opt, data::DataLoader& train,
                       data::DataLoader& test, const StepOptions& options, const SampleCount& counted) {
  Outcome outcome;
  const auto start = std::chrono::steady_clock::now();
  const auto take_time = [&] {
    outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    outcome.samples = counted.samples;
  };
  try {
    trainer.fit(
        opt, train, [&](const Batch& b) { return cross_entropy(net(b[0]), b[1]); }, options);
    synchronize(net.device());
    take_time();
    outcome.trained = true;
    (void)trainer.evaluate(test, [&](const Batch& b) {
      const Tensor logits = net(b[0]);
      outcome.predictions.add(logits, b[1]);
      return accuracy(logits, b[1]);
    });
    // From the counts: the mean of the batches' f32 accuracies is a few ulps off.
    const auto count = static_cast<double>(outcome.predictions.truth.size());
    outcome.accuracy = (count - static_cast<double>(outcome.predictions.wrong().size())) / count;
  } catch (const InterruptedError& e) {
    std::fprintf(stderr, "mnist: %s\n", e.what());
    if (!outcome.trained) take_time();
    outcome.interrupted = true;
  }
  return outcome;
}

void print_results(const Trainer& trainer, const Outcome& outcome) {
  outcome.predictions.print();
  std::printf("trained %lld steps in %.1f s, %.0f images/s\ntest accuracy %.2f %%\n",
              static_cast<long long>(trainer.global_step()), outcome.seconds, outcome.samples_per_second(),
              100 * outcome.accuracy);
}

// The files of --out and --json; of an interrupted run those that do not need its end.
void write_results(const Settings& s, const Trainer& trainer, const Classifier& net, const Digits& digits,
                   const Outcome& outcome) {
  if (!s.out.empty()) {
    write_metrics_csv(s.out + "/metrics.csv", trainer.history());
    draw_loss(s.out + "/loss.svg", trainer.history());
    if (!outcome.interrupted) {
      save_safetensors(s.out + "/model.safetensors", net.state_dict());
      draw_misclassified(s.out + "/misclassified.png", *digits.test, outcome.predictions);
    }
  }
  if (s.json.empty()) return;
  examples::Result result{.program = "mnist",
                          .status = outcome.interrupted                  ? "interrupted"
                                    : trainer.current_epoch() < s.epochs ? "stopped"
                                                                         : "done",
                          .data = digits.real ? "real" : "generated",
                          .seed = s.seed,
                          .device = net.device(),
                          .precision = s.precision,
                          .epochs = s.epochs,
                          .optimizer_steps = trainer.global_step(),
                          .parameters = net.parameter_count().total(),
                          .train_seconds = outcome.seconds,
                          .samples_per_second = outcome.samples_per_second()};
  result.more["test_accuracy"] =
      std::isnan(outcome.accuracy) ? nlohmann::ordered_json() : nlohmann::ordered_json(outcome.accuracy);
  result.more["val_loss"] = nullptr;
  result.write(s.json);
}

int run(const Settings& s) {
  if (s.threads > 0) set_num_threads(s.threads);
  const Device device = examples::device(s.device);
  const Portion limit = examples::portion("--limit-train-batches", s.limit_train_batches);
  make_output_folder(s.out);

  const Generator gen(s.seed);
  const Digits digits = find_digits(s.data, gen.fork("digits"));
  std::printf("%s\n", digits.said.c_str());
  std::fflush(stdout);
  data::DataLoader train(digits.train, {.batch_size = s.batch_size,
                                        .shuffle = true,
                                        .num_workers = s.workers,
                                        .pin_memory = device.is_cuda(),
                                        .generator = gen.fork("shuffle")});
  data::DataLoader test(digits.test, {.batch_size = 1000, .num_workers = s.workers});

  const std::unique_ptr<Classifier> net = make_model(s, gen, device);
  optim::AdamW opt(net->parameters(), {.lr = s.lr, .weight_decay = 1e-2});
  TrainerOptions how = trainer_options(s, limit, device);
  const auto counted = std::make_shared<SampleCount>();
  how.callbacks.push_back(counted);
  Trainer trainer(how);
  const StepOptions options = step_options(s, opt, limit.of(train.size(), "--limit-train-batches"));

  const Outcome outcome = train_and_test(trainer, *net, opt, train, test, options, *counted);
  if (!outcome.interrupted) print_results(trainer, outcome);
  write_results(s, trainer, *net, digits, outcome);
  return outcome.interrupted ? 128 + trainer.stop_signal() : examples::kDone;
}

}  // namespace

int main(int argc, char** argv) {
  return examples::run_program("mnist", [&] { return run(parse(argc, argv)); });
}
