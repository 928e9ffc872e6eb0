#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>
#include <stdexcept>

#include "levin/train/averaging.h"
#include "tests/device.h"
#include "tests/warnings.h"
#include "train/run/fixture_test.h"

using namespace levin;
using namespace levin::test;

namespace {

const Device cpu = Device::cpu();

std::vector<float> values_of(const NamedTensors& state) {
  std::vector<float> all;
  for (const auto& [name, t] : state) {
    const std::vector<float> values = t.to(DType::f32).to_vector<float>();
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

enum class Scheduled : std::uint8_t { no, epochs, steps };

template <bool with_norm>
struct Model : TrainModuleOf<Model<with_norm>> {
  using Base = TrainModuleOf<Model<with_norm>>;
  explicit Model(Device device = cpu) : Base({.gen = Generator(3), .device = device}) {
    if constexpr (with_norm)
      norm = std::make_unique<nn::BatchNorm1d>(*this, "norm", nn::BatchNormOptions{.features = 8});
  }
  nn::Linear fc1{*this, "fc1", {.in = 2, .out = 8}};
  std::unique_ptr<nn::BatchNorm1d> norm;
  nn::Linear fc2{*this, "fc2", {.in = 8, .out = 1}};
  Scheduled scheduled = Scheduled::no;
  Function<void()> in_step{}, in_validation{};
  std::vector<std::vector<float>> starts{};  // weights at the beginning of each epoch
  std::vector<double> rates{};               // of each epoch
  int steps = 0;

  Tensor operator()(const Tensor& x) const { return fc2(tanh(norm ? (*norm)(fc1(x)) : fc1(x))); }
  StepOutput training_step(const Batch& b, std::int64_t) override {
    ++steps;
    if (in_step) in_step();
    const Tensor loss = squared_error((*this)(b[0]), b[1]);
    this->log("loss", loss);
    return loss;
  }
  void validation_step(const Batch&, std::int64_t, std::int64_t) override {
    if (in_validation) in_validation();
  }
  OptimizerConfig configure_optimizers() override {
    auto sgd = std::make_shared<optim::SGD>(this->parameters(), optim::SGDOptions{.lr = 0.1, .momentum = 0.9});
    OptimizerConfig config{.optimizers = {sgd}};
    if (scheduled != Scheduled::no)
      config.schedulers.push_back({.scheduler = std::make_shared<optim::ExponentialLR>(*sgd, 0.9),
                                   .interval = scheduled == Scheduled::steps ? SchedulerConfig::Interval::step
                                                                             : SchedulerConfig::Interval::epoch});
    return config;
  }
  void on_train_epoch_start() override {
    starts.push_back(trained());
    rates.push_back(this->trainer().optimizer()->lr());
  }
  [[nodiscard]] std::vector<float> trained() {
    NamedTensors all;
    for (const auto& [name, t] : this->named_parameters()) all.emplace_back(name, t.detach());
    return values_of(all);
  }
  [[nodiscard]] std::vector<float> weights() { return values_of(this->state_dict()); }
};
using Plain = Model<false>;
using WithNorm = Model<true>;

std::shared_ptr<StochasticWeightAveraging> swa(Portion start, std::optional<Device> where = cpu) {
  StochasticWeightAveragingOptions options{
      .swa_lrs = {0.02}, .swa_epoch_start = start, .annealing_epochs = 3, .device = where};
  return std::make_shared<StochasticWeightAveraging>(std::move(options));
}
TrainerOptions options_with(std::vector<std::shared_ptr<Callback>> callbacks, std::int64_t epochs) {
  TrainerOptions options = silent();
  options.callbacks = std::move(callbacks);
  options.max_epochs = epochs;
  return options;
}
struct AtBatchEnd : Callback {
  Function<void()> act;
  explicit AtBatchEnd(Function<void()> f) : act(std::move(f)) {}
  void on_train_batch_end(const StepInfo&) override { act(); }
};

// Whether `got` is the mean of the weights at the beginning of epochs `from` and later: f32 sums of up to 8 numbers
// below 4.
template <class M>
void check_mean(const M& model, const std::vector<float>& got, std::size_t from) {
  const std::size_t n = model.starts.size() - from;
  for (std::size_t i = 0; i < got.size(); ++i) {
    double mean = 0;
    for (std::size_t e = from; e < model.starts.size(); ++e) mean += double(model.starts[e][i]) / double(n);
    REQUIRE(std::abs(got[i] - mean) <= 3 * double(n) * 0x1p-23 * 4);
  }
}

}  // namespace

TEST_CASE(
    "the beginnings of epochs 1 to 4 are averaged when averaging starts with the second of 5, and the module gets "
    "them") {
  for (const auto& where : {std::optional<Device>(cpu), std::optional<Device>()}) {
    auto averaging = swa(2, where);
    Plain model;
    std::vector<float> last;
    data::DataLoader data = loader(20, 4), val = loader(4, 4);
    Trainer trainer(options_with({averaging, std::make_shared<AtBatchEnd>([&] { last = model.trained(); })}, 5));
    // Validations use the training's own weights.
    model.in_validation = [&] { CHECK(model.trained() == last); };
    trainer.fit(model, {.train = &data, .val = &val});
    CHECK(averaging->n_averaged() == 4);
    CHECK(trainer.current_epoch() == 5);
    CHECK(trainer.global_step() == 25);
    CHECK(model.steps == 25);
    check_mean(model, model.trained(), 1);
    CHECK(model.trained() != last);
    CHECK(model.fc1.weight.requires_grad());
  }
}

TEST_CASE("averaging starts at epoch 7 of 10 by default, and where a number or a fraction says") {
  const auto count = [](const std::shared_ptr<StochasticWeightAveraging>& averaging, std::int64_t epochs,
                        std::int64_t steps = -1) {
    Plain model;
    data::DataLoader data = loader(8, 4);
    TrainerOptions options = options_with({averaging}, epochs);
    options.max_steps = steps;
    Trainer(options).fit(model, {.train = &data});
    check_mean(model, model.trained(), model.starts.size() - static_cast<std::size_t>(averaging->n_averaged()));
    return averaging->n_averaged();
  };
  StochasticWeightAveragingOptions defaults{.swa_lrs = {0.05}};
  CHECK(count(std::make_shared<StochasticWeightAveraging>(std::move(defaults)), 10) == 3);
  CHECK(count(swa(1), 3) == 3);
  CHECK(count(swa(0.0), 3) == 3);
  CHECK(count(swa(1.0), 3) == 1);
  CHECK(count(swa(0.5), 5) == 4);    // floor(2.5) is the second epoch
  CHECK(count(swa(3), -1, 9) == 3);  // without a limit of epochs: 2, 3, and 4, which is cut
  CHECK_THROWS_WITH_AS(count(swa(0.8), -1, 9), doctest::Contains("no limit"), ConfigError);
}

TEST_CASE("with batch norms one more epoch runs forward alone and leaves statistics of the average") {
  const std::vector<Device> devices = test::all_devices();
  for (const Device device : devices) {
    CAPTURE(text(device));
    for (const auto& where : {std::optional<Device>(cpu), std::optional<Device>()}) {
      auto averaging = swa(2, where);
      WithNorm model(device);
      int trained = 0;
      Metrics logged;
      Trainer* running = nullptr;
      TrainerOptions options = options_with({averaging, std::make_shared<AtBatchEnd>([&] {
                                               ++trained;
                                               logged = running->callback_metrics();
                                             })},
                                            5);
      if (device.launches()) options.capture = Capture::step;
      data::DataLoader data = loader(20, 4);
      Trainer trainer(options);
      running = &trainer;
      int forward = 0;
      model.in_step = [&] { forward += !grad_mode(); };
      trainer.fit(model, {.train = &data});
      CHECK(trainer.callback_metrics() == logged);
      CHECK(trained == 25);
      CHECK(forward == 5);
      CHECK(trainer.global_step() == 25);
      CHECK(trainer.total_batch_idx() == 25);
      CHECK(trainer.current_epoch() == 6);
      CHECK(*trainer.options().max_epochs == 5);
      CHECK(averaging->n_averaged() == 4);
      CHECK(trainer.history().back().epoch == 4);
      CHECK(model.norm->momentum == 0.1);
      check_mean(model, model.trained(), 1);
      // The same by hand, over the samples of epoch 5.
      CHECK(model.norm->num_batches_tracked.item<std::int64_t>() == 5);
      const Tensor mean = model.norm->running_mean.clone(), var = model.norm->running_var.clone();
      model.norm->reset_running_stats();
      data.set_epoch(5);
      update_bn(data, model);
      CHECK(equal(mean, model.norm->running_mean));
      CHECK(equal(var, model.norm->running_var));
    }
  }
}

TEST_CASE(
    "a forward epoch that fails or is interrupted leaves the module as it was trained, and a run that resumes ends "
    "it") {
  const levin::test::ExpectedWarnings expected{"W-CKPT-FOLDER", "W-TRAIN-NOTHING"};
  const TemporaryFolder dir;
  const auto run = [&](const std::string& resume, const Function<void()>& disturb, std::vector<float>* last = nullptr) {
    auto averaging = swa(2);
    WithNorm model;
    TrainerOptions options = options_with({averaging, std::make_shared<AtBatchEnd>([&] {
                                             if (last) *last = model.weights();
                                           })},
                                          3);
    options.enable_checkpointing = options.handle_signals = true;
    options.default_root_dir = dir.path();
    data::DataLoader data = loader(20, 4);
    Trainer trainer(options);
    int forward = 0;
    model.in_step = [&] {
      forward += !grad_mode();
      if (forward == 2 && disturb) disturb();
    };
    try {
      trainer.fit(model, {.train = &data, .ckpt_path = resume});
      CHECK(trainer.current_epoch() == 4);
    } catch (const InterruptedError&) {
    } catch (const std::runtime_error& e) { CHECK(std::string(e.what()) == "no"); }
    return model.weights();
  };
  std::vector<float> last;
  const std::vector<float> whole = run({}, {}, &last);
  CHECK(whole != last);
  CHECK(run({}, [] { throw std::runtime_error("no"); }) == last);
  CHECK(run({}, [] { (void)std::raise(SIGTERM); }) == last);
  WithNorm saved;
  NamedTensors weights;
  for (const auto& [name, t] : load_safetensors(dir / "checkpoints/last.safetensors").tensors) {
    if (!name.starts_with("levin.")) weights.emplace_back(name, t);
  }
  saved.load_state_dict(weights);
  CHECK(saved.weights() == last);
  CHECK(run(dir / "checkpoints/last.safetensors", {}) == whole);
  CHECK(run(dir / "checkpoints/epoch=2-step=15.safetensors", {}) == whole);
}

TEST_CASE("the learning rate follows the run's schedule, and from the start of averaging goes to swa_lrs") {
  for (const Scheduled scheduled : {Scheduled::no, Scheduled::epochs, Scheduled::steps}) {
    Plain model;
    model.scheduled = scheduled;
    data::DataLoader data = loader(8, 4);
    Warnings warnings;
    Trainer trainer(options_with({swa(3)}, 7));
    trainer.fit(model, {.train = &data});
    // Two epochs of the run's schedule, then 3 of a cosine from there.
    double start = 0.1;
    for (int i = 0; i < (scheduled == Scheduled::epochs ? 2 : scheduled == Scheduled::steps ? 4 : 0); ++i) start *= 0.9;
    const std::vector<double> share{0, 0.25, 0.75, 1, 1};
    for (std::size_t i = 0; i < share.size(); ++i)
      CHECK(model.rates[i + 2] == doctest::Approx(0.02 * share[i] + start * (1 - share[i])).epsilon(1e-12));
    CHECK(trainer.schedulers().size() == 1);
    const std::vector<std::string> ids = warnings.ids();
    CHECK(std::count(ids.begin(), ids.end(), "I-TRAIN-SWA") == (scheduled != Scheduled::no));
    CHECK(std::count(ids.begin(), ids.end(), "W-TRAIN-SWA-INTERVAL") == (scheduled == Scheduled::steps));
    CHECK(std::count(ids.begin(), ids.end(), "W-TRAIN-SWA-LATE") == 0);
  }
}

TEST_CASE("a run with stochastic averaging that is cut and resumed ends with the bits of one that was not") {
  const TemporaryFolder dir;
  for (const Scheduled scheduled : {Scheduled::no, Scheduled::epochs}) {
    const auto run = [&](const std::string& resume, const std::string& folder) {
      auto averaging = swa(3);
      WithNorm model;
      model.scheduled = scheduled;
      Trainer* running = nullptr;
      TrainerOptions options =
          options_with({averaging, std::make_shared<AtBatchEnd>([&] {
                          if (!folder.empty())
                            running->save_checkpoint(folder + "/" + std::to_string(running->total_batch_idx()));
                        })},
                       6);
      data::DataLoader data = loader(20, 4);
      Trainer trainer(options);
      running = &trainer;
      trainer.fit(model, {.train = &data, .ckpt_path = resume});
      CHECK(averaging->n_averaged() == 4);
      std::vector<float> all = model.weights();
      all.push_back(static_cast<float>(trainer.optimizer()->lr()));
      return all;
    };
    const std::string folder = dir / (scheduled == Scheduled::no ? "free" : "scheduled");
    const std::vector<float> whole = run({}, folder);
    // Before averaging, in its first epoch, at an epoch's last batch, and at the end.
    for (const int at : {7, 10, 12, 15, 23, 30}) {
      CAPTURE(at);
      CHECK(run(folder + "/" + std::to_string(at), {}) == whole);
    }
  }
}

TEST_CASE("a training that is stopped early gets its average, too, and one that has none stays as it is") {
  for (const int stop_at : {4, 17}) {
    auto averaging = swa(3);
    Plain model;
    std::vector<float> last;
    int batches = 0;
    Trainer* running = nullptr;
    data::DataLoader data = loader(20, 4);
    Trainer trainer(options_with({averaging, std::make_shared<AtBatchEnd>([&] {
                                    last = model.trained();
                                    if (++batches == stop_at) running->request_stop();
                                  })},
                                 9));
    running = &trainer;
    trainer.fit(model, {.train = &data});
    CHECK(batches == stop_at);
    CHECK(averaging->n_averaged() == (stop_at == 17 ? 2 : 0));
    CHECK((model.trained() == last) == (stop_at == 4));
    if (stop_at == 17) check_mean(model, model.trained(), 2);
  }
}

TEST_CASE("averaging that begins late, without a state of its own, says so") {
  const TemporaryFolder dir;
  TrainerOptions options = options_with({}, 4);
  options.enable_checkpointing = true;
  options.default_root_dir = dir.path();
  Plain model, resumed;
  data::DataLoader data = loader(20, 4);
  Trainer(options).fit(model, {.train = &data});
  auto averaging = swa(2);
  Warnings warnings;
  Trainer trainer(options_with({averaging}, 6));
  trainer.fit(resumed, {.train = &data, .ckpt_path = dir / "checkpoints/epoch=3-step=20.safetensors"});
  const std::vector<std::string> ids = warnings.ids();
  CHECK(std::count(ids.begin(), ids.end(), "W-TRAIN-SWA-LATE") == 1);
  CHECK(averaging->n_averaged() == 2);
}

TEST_CASE("options of stochastic averaging that cannot work are refused before any work") {
  const auto made = [](StochasticWeightAveragingOptions options) {
    const StochasticWeightAveraging one(std::move(options));
  };
  CHECK_THROWS_WITH_AS(made({}), doctest::Contains("swa_lrs is empty"), ConfigError);
  CHECK_THROWS_AS(made({.swa_lrs = {0.0}}), ConfigError);
  CHECK_THROWS_AS(made({.swa_lrs = {0.1, -0.1}}), ConfigError);
  CHECK_THROWS_AS(made({.swa_lrs = {0.1}, .swa_epoch_start = 0}), ConfigError);
  CHECK_THROWS_AS(made({.swa_lrs = {0.1}, .swa_epoch_start = -0.5}), ConfigError);
  CHECK_THROWS_WITH_AS(made({.swa_lrs = {0.1}, .swa_epoch_start = 1.5}), doctest::Contains("1.5"), ConfigError);
  CHECK_THROWS_AS(made({.swa_lrs = {0.1}, .annealing_epochs = -1}), ConfigError);

  struct Several : TrainModuleOf<Several, Plain> {
    using TrainModuleOf::TrainModuleOf;
    int optimizers = 1, schedules = 0;
    bool automatic_optimization() const override { return optimizers == 1; }
    OptimizerConfig configure_optimizers() override {
      OptimizerConfig config;
      for (int i = 0; i < optimizers; ++i)
        config.optimizers.push_back(std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1}));
      for (int i = 0; i < schedules; ++i)
        config.schedulers.push_back({.scheduler = std::make_shared<optim::ExponentialLR>(*config.optimizers[0], 0.9)});
      return config;
    }
  };
  data::DataLoader data = loader(8, 4);
  const auto fit = [&](TrainModule& module, std::vector<double> rates) {
    StochasticWeightAveragingOptions options{.swa_lrs = std::move(rates)};
    Trainer(options_with({std::make_shared<StochasticWeightAveraging>(std::move(options))}, 2))
        .fit(module, {.train = &data});
  };
  Several several;
  CHECK_THROWS_WITH_AS(fit(several, {0.1, 0.1}), doctest::Contains("2 rates"), ConfigError);
  several.schedules = 2;
  CHECK_THROWS_WITH_AS(fit(several, {0.1}), doctest::Contains("2 schedules"), ConfigError);
  several.schedules = 0;
  several.optimizers = 2;
  CHECK_THROWS_WITH_AS(fit(several, {0.1}), doctest::Contains("2 optimizers"), ConfigError);
  CHECK(several.steps == 0);
  struct ByHand : TrainModuleOf<ByHand, WithNorm> {
    using TrainModuleOf::TrainModuleOf;
    bool automatic_optimization() const override { return false; }
  } by_hand;
  CHECK_THROWS_WITH_AS(fit(by_hand, {0.1}), doctest::Contains("batch norms"), ConfigError);
}
