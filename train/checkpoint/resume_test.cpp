// A run that is interrupted anywhere and resumed equals the run that was not, bit for bit.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/warnings.h"
#include "train/run/fixture_test.h"

using namespace levin;
using namespace levin::test;

namespace {

constexpr std::int64_t kEpochs = 3, kBatches = 10;  // windows of 3: the last of an epoch has one batch

// Dropout, a schedule by steps, one by a metric, losses logged by step and by epoch.
struct Model : TrainModuleOf<Model> {
  using TrainModuleOf::TrainModuleOf;
  nn::Linear fc1{*this, "fc1", {.in = 2, .out = 8}};
  nn::Dropout drop{*this, "drop", {.p = 0.25}};
  nn::Linear fc2{*this, "fc2", {.in = 8, .out = 1}};
  std::shared_ptr<optim::AdamW> optimizer;
  bool one_schedule = false;
  Tensor operator()(const Tensor& x) const { return fc2(drop(tanh(fc1(x)))); }
  StepOutput training_step(const Batch& b, std::int64_t) override {
    Tensor loss = squared_error((*this)(b[0]), b[1]);
    log("loss", loss, {.on_step = true, .on_epoch = true});
    return loss;
  }
  void validation_step(const Batch& b, std::int64_t, std::int64_t) override {
    log("val_loss", squared_error((*this)(b[0]), b[1]));
  }
  OptimizerConfig configure_optimizers() override {
    optimizer = std::make_shared<optim::AdamW>(parameters(), optim::AdamWOptions{.lr = 0.02});
    OptimizerConfig config{.optimizers = {optimizer},
                           .schedulers = {{.scheduler = std::make_shared<optim::StepLR>(*optimizer, 3, 0.9),
                                           .interval = SchedulerConfig::Interval::step}}};
    if (!one_schedule)
      config.schedulers.push_back({.scheduler = std::make_shared<optim::ReduceLROnPlateau>(
                                       *optimizer, optim::PlateauOptions{.patience = 0, .threshold = 0.5}),
                                   .monitor = "val_loss"});
    return config;
  }
};

struct Cut : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Saves at the n-th call of one of its hooks, and ends the run there like a crash.
struct CutAt : Callback {
  enum class Where { batch_end, validation_end, epoch_end, next_batch } where;
  std::int64_t n;
  std::string file;
  std::vector<LogRecord> history;  // until then
  CutAt(Where w, std::int64_t count, std::string path) : where(w), n(count), file(std::move(path)) {}
  void at(Where w) {
    if (w != where || --n > 0) return;
    trainer().save_checkpoint(file);
    history = trainer().history();
    throw Cut("cut");
  }
  void on_train_batch_end(const StepInfo&) override { at(Where::batch_end); }
  BatchStart on_train_batch_start(const StepInfo&) override {
    at(Where::next_batch);
    return BatchStart::proceed;
  }
  void on_validation_end() override { at(Where::validation_end); }
  void on_train_epoch_end() override { at(Where::epoch_end); }
  bool after_module() const override { return true; }
};

struct Ended {
  std::vector<float> weights;
  NamedTensors optimizer;
  std::vector<LogRecord> history;
  std::int64_t steps = 0;
};

// With a folder: stochastic weight averaging from the second epoch on, and metrics.csv in that folder.
Ended train(const std::shared_ptr<Callback>& callback, const std::string& from = {}, const std::string& folder = {}) {
  Model model({.gen = Generator(3), .device = Device::cpu()});
  model.one_schedule = !folder.empty();
  data::DataLoader data = loader(kBatches * 4), val = loader(8);
  TrainerOptions options = silent();
  options.max_epochs = kEpochs;
  options.accumulate_grad_batches = 3;
  options.val_check_interval = folder.empty() ? 4 : 1;  // 1: several in an open window, with equal weights
  options.log_every_n_steps = 2;
  options.num_sanity_val_steps = 2;
  if (!folder.empty()) {
    options.callbacks = {std::make_shared<StochasticWeightAveraging>(
        StochasticWeightAveragingOptions{.swa_lrs = {0.01}, .swa_epoch_start = 2})};
    options.logger = std::make_shared<CsvLogger>(CsvLoggerOptions{.save_dir = folder, .name = "", .version = ""});
  }
  if (callback) options.callbacks.push_back(callback);
  Trainer trainer(options);
  trainer.fit(model, {.train = data, .val = val, .ckpt_path = from});
  return {.weights = weights_of(model),
          .optimizer = model.optimizer->state_dict(),
          .history = trainer.history(),
          .steps = trainer.global_step()};
}

bool same(const std::vector<LogRecord>& a, const std::vector<LogRecord>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const LogRecord& x, const LogRecord& y) {
    return x.step == y.step && x.epoch == y.epoch && x.values == y.values;
  });
}
bool same(const NamedTensors& a, const NamedTensors& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.first == y.first && content_hash(x.first, x.second) == content_hash(y.first, y.second);
  });
}

}  // namespace

TEST_CASE("a run cut after any batch, in any hook after it, resumes to the same weights, optimizer state and records") {
  const levin::test::ExpectedWarnings expected{"W-TRAIN-NOTHING"};
  const TemporaryFolder dir;
  const Ended whole = train(nullptr);
  CHECK(whole.steps == kEpochs * 4);
  using enum CutAt::Where;
  int cuts = 0;
  for (const auto& [where, count] : {std::pair{batch_end, kEpochs * kBatches},
                                     {next_batch, kEpochs * kBatches},
                                     {validation_end, 1 + kEpochs * 2},  // the first is the sanity check
                                     {epoch_end, kEpochs}}) {
    for (std::int64_t n = where == validation_end ? 2 : 1; n <= count; ++n) {
      CAPTURE(static_cast<int>(where));
      CAPTURE(n);
      const auto cut = std::make_shared<CutAt>(where, n, dir / "cut.safetensors");
      CHECK_THROWS_AS((void)train(cut), Cut);
      const Ended resumed = train(nullptr, cut->file);
      ++cuts;
      CHECK(resumed.weights == whole.weights);
      CHECK(same(resumed.optimizer, whole.optimizer));
      std::vector<LogRecord> history = cut->history;
      history.insert(history.end(), resumed.history.begin(), resumed.history.end());
      CHECK(same(history, whole.history));
    }
  }
  CHECK(cuts == 2 * kEpochs * kBatches + kEpochs * 2 + kEpochs);
}

TEST_CASE("a checkpoint of an open window resumes only with the same accumulate_grad_batches") {
  const TemporaryFolder dir;
  const auto cut = std::make_shared<CutAt>(CutAt::Where::batch_end, 2, dir / "cut.safetensors");
  CHECK_THROWS_AS((void)train(cut), Cut);
  Model model({.gen = Generator(3), .device = Device::cpu()});
  data::DataLoader data = loader(kBatches * 4);
  TrainerOptions options = silent();
  options.max_epochs = kEpochs;
  options.accumulate_grad_batches = 2;
  Trainer trainer(options);
  CHECK_THROWS_WITH_AS(trainer.fit(model, {.train = data, .ckpt_path = cut->file}),
                       doctest::Contains("inside a window of 3 batches, accumulate_grad_batches is 2"), ConfigError);
}

TEST_CASE(
    "a run with averaged weights that is cut after any batch resumes to the same weights, state and metrics.csv") {
  const TemporaryFolder dir;
  const test::Warnings quiet;
  const auto csv = [&](const std::string& folder) { return read_file(dir / (folder + "/metrics.csv"), 1 << 20); };
  const Ended whole = train(nullptr, {}, dir / "whole");
  for (std::int64_t n = 1; n <= kEpochs * kBatches; ++n) {
    CAPTURE(n);
    const std::string folder = "cut" + std::to_string(n);
    const auto cut = std::make_shared<CutAt>(CutAt::Where::batch_end, n, dir / "cut.safetensors");
    CHECK_THROWS_AS((void)train(cut, {}, dir / folder), Cut);
    const Ended resumed = train(nullptr, cut->file, dir / folder);
    CHECK(resumed.weights == whole.weights);
    CHECK(same(resumed.optimizer, whole.optimizer));
    CHECK(csv(folder) == csv("whole"));
  }
}

TEST_CASE(
    "a resume with max_epochs below the epochs of the file names both numbers, and the trainer resumes with more") {
  const TemporaryFolder dir;
  const std::string file = dir / "end.safetensors";
  data::DataLoader data = loader(8);
  const auto fit = [&](Model& model, std::int64_t epochs, const std::string& from) {
    model.one_schedule = true;
    TrainerOptions options = silent();
    options.max_epochs = epochs;
    Trainer trainer(options);
    trainer.fit(model, {.train = data, .ckpt_path = from});
    if (from.empty()) trainer.save_checkpoint(file);
  };
  const nn::Options fresh{.gen = Generator(3), .device = Device::cpu()};
  Model whole(fresh), first(fresh), resumed(fresh);
  fit(whole, 5, {});
  fit(first, 3, {});
  TrainerOptions options = silent();
  options.max_epochs = 2;
  Trainer trainer(options);
  resumed.one_schedule = true;
  CHECK_THROWS_WITH_AS(trainer.fit(resumed, {.train = data, .ckpt_path = file}),
                       doctest::Contains("was written after 3 epochs, max_epochs is 2"), ConfigError);
  CHECK(trainer.global_step() == 0);
  trainer.options().max_epochs = 5;
  trainer.fit(resumed, {.train = data, .ckpt_path = file});
  CHECK(weights_of(resumed) == weights_of(whole));
  CHECK(trainer.current_epoch() == 5);
}

namespace {

// Saves after every batch into one file, and kills the process after the save of batch `kill_at`.
struct SavesEach : Callback {
  std::string file;
  std::int64_t kill_at;
  std::vector<std::vector<float>> live;  // the training's weights after each batch; the file's are the average
  SavesEach(std::string path, std::int64_t n) : file(std::move(path)), kill_at(n) {}
  void on_train_batch_end(const StepInfo&) override {
    std::vector<float>& weights = live.emplace_back();
    for (const auto& [name, t] : trainer().module()->state_dict()) {
      const std::vector<float> values = t.to(DType::f32).to_vector<float>();
      weights.insert(weights.end(), values.begin(), values.end());
    }
    trainer().save_checkpoint(file);
    if (trainer().total_batch_idx() == kill_at) ::raise(SIGKILL);
  }
};

struct Everything {
  std::vector<std::pair<std::string, std::string>>
      saved;  // of the last batch's file: hashes of all tensors, and the other state
  std::vector<std::vector<float>> live;
  std::vector<float> average;
  std::vector<LogRecord> history;
  std::int64_t steps = 0, skipped = 0;
};

// Shuffle, dropout, windows of 3, an exponential average, a loss scale that falls and grows, f32 masters of f16
// weights.
Everything train_with_everything(const std::string& file, std::int64_t kill_at = -1, const std::string& from = {}) {
  Model model({.gen = Generator(3), .device = Device::cpu()});
  model.one_schedule = true;
  Generator gen(5);
  std::vector<float> x = randn({40, 2}, gen, Device::cpu()).to_vector<float>(), y;
  for (std::size_t i = 0; i < 40; ++i) y.push_back(x[2 * i] * x[2 * i + 1]);
  y[17] = 100;  // its gradient times the scale at the beginning is beyond f16
  data::DataLoader data(
      data::tensor_dataset({from_data<float>(x, {40, 2}, Device::cpu()), from_data<float>(y, {40, 1}, Device::cpu())}),
      {.batch_size = 4, .shuffle = true, .generator = Generator(9)});
  data::DataLoader val = loader(8);
  const auto saves = std::make_shared<SavesEach>(file, kill_at);
  TrainerOptions options = silent();
  options.max_epochs = 2;
  options.accumulate_grad_batches = 3;
  options.precision = "16-o2";
  options.grad_scaler = optim::GradScalerOptions{.init_scale = 8192, .growth_interval = 2};
  options.callbacks = {std::make_shared<EmaWeightAveraging>(EmaWeightAveragingOptions{.decay = 0.7}), saves};
  Trainer trainer(options);
  trainer.fit(model, {.train = data, .val = val, .ckpt_path = from});
  Everything out{.saved = {}, .live = saves->live, .average = {}, .history = trainer.history()};
  for (const auto& [key, value] : load_safetensors(file).metadata) out.saved.emplace_back(key, value);
  for (const auto& [name, t] : model.state_dict()) {
    const std::vector<float> values = t.to(DType::f32).to_vector<float>();
    out.average.insert(out.average.end(), values.begin(), values.end());
  }
  out.steps = trainer.global_step();
  out.skipped = trainer.skipped_steps();
  return out;
}

// Runs in a child process that is killed; returns whether it was.
bool train_and_kill(const std::string& file, std::int64_t kill_at) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      set_num_threads(1);  // worker threads do not survive a fork
      (void)train_with_everything(file, kill_at);
    } catch (...) { ::_exit(1); }
    ::_exit(0);
  }
  int status = 0;
  return child > 0 && ::waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

}  // namespace

TEST_CASE(
    "a process killed after any batch resumes bit for bit: shuffle, dropout, windows of 3, EMA and a loss scale "
    "together") {
  const TemporaryFolder dir;
  const Everything whole = train_with_everything(dir / "whole.safetensors");
  CHECK(whole.steps == 2 * 4);
  CHECK(whole.skipped > 0);
  CHECK(whole.skipped < whole.steps);
  CHECK(whole.average != whole.live.back());
  for (std::int64_t n = 1; n < 2 * kBatches; ++n) {  // 7 of 10 among them, the first of a window of 3
    CAPTURE(n);
    const std::string file = dir / "killed.safetensors";
    REQUIRE(train_and_kill(file, n));
    const Everything resumed = train_with_everything(file, -1, file);
    CHECK(resumed.saved == whole.saved);
    REQUIRE(resumed.live.size() == static_cast<std::size_t>(2 * kBatches - n));
    CHECK(std::equal(resumed.live.rbegin(), resumed.live.rend(), whole.live.rbegin()));
    CHECK(resumed.average == whole.average);
    CHECK(resumed.steps == whole.steps);
    CHECK(resumed.skipped == whole.skipped);
    const std::vector<LogRecord> tail(whole.history.end() - static_cast<std::ptrdiff_t>(resumed.history.size()),
                                      whole.history.end());
    CHECK(resumed.history.size() >= 2);  // at least the end of the last epoch
    CHECK(same(resumed.history, tail));
  }
}
