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

// Linear, batch norm, dropout: weights, floating buffers, a count and random numbers.
struct Model : TrainModuleOf<Model> {
  explicit Model(Device device = cpu) : TrainModuleOf({.gen = Generator(3), .device = device}) {}
  nn::Linear fc1{*this, "fc1", {.in = 2, .out = 8}};
  nn::BatchNorm1d norm{*this, "norm", {.features = 8}};
  nn::Dropout drop{*this, "drop", {.p = 0.25}};
  nn::Linear fc2{*this, "fc2", {.in = 8, .out = 1}};
  Function<void()> in_validation{};

  StepOutput training_step(const Batch& b, std::int64_t) override {
    return squared_error(fc2(drop(tanh(norm(fc1(b[0]))))), b[1]);
  }
  void validation_step(const Batch&, std::int64_t, std::int64_t) override {
    if (in_validation) in_validation();
  }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::Adam>(parameters(), optim::AdamOptions{.lr = 0.02})}};
  }
  [[nodiscard]] std::vector<float> weights() { return values_of(state_dict()); }
};

// Notes the calls of should_update that returned true.
struct Noting : EmaWeightAveraging {
  using EmaWeightAveraging::EmaWeightAveraging;
  std::vector<std::int64_t> steps, epochs;
  bool should_update(std::optional<std::int64_t> step, std::optional<std::int64_t> epoch) override {
    CHECK(step.has_value() != epoch.has_value());
    const bool yes = EmaWeightAveraging::should_update(step, epoch);
    if (yes) (step ? steps : epochs).push_back(step ? *step : *epoch);
    return yes;
  }
};
struct FromStep100 : WeightAveraging {
  FromStep100() : WeightAveraging({.avg_fn = ema_avg()}) {}
  bool should_update(std::optional<std::int64_t> step, std::optional<std::int64_t>) override {
    return step && *step >= 100;
  }
};
struct AtBatchEnd : Callback {
  Function<void(const StepInfo&)> act;
  explicit AtBatchEnd(Function<void(const StepInfo&)> f) : act(std::move(f)) {}
  void on_train_batch_end(const StepInfo& info) override { act(info); }
};

TrainerOptions options_with(std::vector<std::shared_ptr<Callback>> callbacks, std::int64_t epochs) {
  TrainerOptions options = silent();
  options.callbacks = std::move(callbacks);
  options.max_epochs = epochs;
  return options;
}
std::shared_ptr<EmaWeightAveraging> ema(EmaWeightAveragingOptions options = {.decay = 0.9}) {
  return std::make_shared<EmaWeightAveraging>(options);
}

}  // namespace

TEST_CASE("weights are averaged after each optimizer step, and not inside of a window of accumulation") {
  auto averaging = std::make_shared<WeightAveraging>();
  TrainerOptions options = options_with({averaging}, 8);
  options.accumulate_grad_batches = 2;
  Model model;
  data::DataLoader data = loader(32, 4);
  Trainer trainer(options);
  trainer.fit(model, {.train = &data});
  CHECK(trainer.global_step() == 32);
  CHECK(averaging->average()->n_averaged() == 32);
}

TEST_CASE("an exponential average every 5 steps from step 10 is updated at steps 10, 15, 20, and at epochs besides") {
  const auto run = [](EmaWeightAveragingOptions options, std::int64_t steps) {
    auto averaging = std::make_shared<Noting>(options);
    TrainerOptions trainer_options = options_with({averaging}, -1);
    trainer_options.max_steps = steps;
    Model model;
    data::DataLoader data = loader(32, 4);
    Trainer trainer(trainer_options);
    trainer.fit(model, {.train = &data});
    CHECK(averaging->average()->n_averaged() ==
          static_cast<std::int64_t>(averaging->steps.size() + averaging->epochs.size()));
    return std::pair(averaging->steps, averaging->epochs);
  };
  using Indices = std::vector<std::int64_t>;
  CHECK(run({.update_every_n_steps = 5, .update_starting_at_step = 10}, 24) ==
        std::pair(Indices{10, 15, 20}, Indices{}));
  CHECK(run({.update_every_n_steps = 5}, 16) == std::pair(Indices{0, 5, 10, 15}, Indices{}));
  CHECK(run({.update_every_n_steps = 5, .update_starting_at_epoch = 1}, 24) ==
        std::pair(Indices{0, 5, 10, 15, 20}, Indices{1, 2}));
  CHECK(run({.update_every_n_steps = 0, .update_starting_at_epoch = 1}, 24) == std::pair(Indices{}, Indices{1, 2}));
  CHECK_THROWS_AS(EmaWeightAveraging({.decay = 2}), ConfigError);
  CHECK_THROWS_AS(EmaWeightAveraging({.update_every_n_steps = -1}), ConfigError);
  CHECK_THROWS_AS(EmaWeightAveraging({.update_starting_at_step = -1}), ConfigError);
  CHECK_THROWS_WITH_AS(EmaWeightAveraging({.update_starting_at_epoch = -2}), doctest::Contains("is -2"), ConfigError);
}

TEST_CASE("an average from step 100 on is first updated right after optimizer step number 101") {
  auto averaging = std::make_shared<FromStep100>();
  std::vector<std::int64_t> counts;
  TrainerOptions options = options_with({averaging, std::make_shared<AtBatchEnd>([&](const StepInfo& info) {
                                           if (info.global_step >= 100)
                                             counts.push_back(averaging->average()->n_averaged());
                                         })},
                                        -1);
  options.max_steps = 103;
  Model model;
  data::DataLoader data = loader(32, 4);
  Trainer trainer(options);
  trainer.fit(model, {.train = &data});
  CHECK(counts == std::vector<std::int64_t>{0, 1, 2, 3});
}

TEST_CASE(
    "validations inside of fit see the average, training continues with its own weights, and at the end the module is "
    "the average") {
  for (const bool averages : {false, true}) {
    auto averaging = ema({.decay = 0.9, .update_every_n_steps = averages ? 1 : 0});
    AveragedModel* by_hand = nullptr;
    std::vector<float> live, seen, expected;
    Model model, plain;
    AveragedModel same(model, {.avg_fn = ema_avg(0.9), .use_buffers = true});
    by_hand = &same;
    TrainerOptions options = options_with({averaging, std::make_shared<AtBatchEnd>([&](const StepInfo&) {
                                             by_hand->update(model);
                                             live = model.weights();
                                           })},
                                          3);
    options.val_check_interval = 4;  // also in the middle of epochs
    int validations = 0;
    model.in_validation = [&] {
      ++validations;
      if (averages) {
        AveragedModel copy(plain);  // the same tensors in the order of a state
        NamedTensors state = same.state();
        copy.load(state);
        copy.copy_to(plain);
        CHECK(model.weights() == plain.weights());
        CHECK(model.weights() != live);
      } else {
        CHECK(model.weights() == live);  // nothing was averaged yet
      }
    };
    data::DataLoader data = loader(32, 4), val = loader(4, 4);
    Trainer trainer(options);
    trainer.fit(model, {.train = &data, .val = &val});
    CHECK(validations == 6);
    if (averages) {
      same.copy_to(plain);
      CHECK(model.weights() == plain.weights());
    }
    CHECK((model.weights() == live) == !averages);
    CHECK(model.fc1.weight.requires_grad());

    // The average does not change the training.
    Model alone;
    data::DataLoader again = loader(32, 4);
    Trainer(options_with({}, 3)).fit(alone, {.train = &again});
    CHECK(alone.weights() == live);
    // Outside of fit an evaluation uses the module's own weights.
    model.in_validation = [&] { seen = model.weights(); };
    const std::vector<float> held = model.weights();
    trainer.validate(model, val);
    CHECK(seen == held);
  }
}

TEST_CASE("a checkpoint's weights are the average, and those of the training are kept beside them") {
  const TemporaryFolder dir;
  auto averaging = ema();
  Model model;
  std::vector<float> live, average;
  const std::string path = dir / "mid.safetensors", only = dir / "weights.safetensors", end = dir / "end.safetensors";
  Trainer* running = nullptr;
  TrainerOptions options = options_with({averaging, std::make_shared<AtBatchEnd>([&](const StepInfo& info) {
                                           if (info.global_step != 5) return;
                                           running->save_checkpoint(path);
                                           running->save_checkpoint(only, WeightsOnly::yes);
                                           live = model.weights();
                                         })},
                                        1);
  data::DataLoader data = loader(32, 4);
  Trainer trainer(options);
  running = &trainer;
  trainer.fit(model, {.train = &data});
  Model loaded;
  NamedTensors weights, kept;
  const std::string prefix = "levin.callback.WeightAveraging.current_model_state.";
  for (const auto& [name, t] : load_safetensors(path).tensors) {
    if (!name.starts_with("levin.")) weights.emplace_back(name, t);
    if (name.starts_with(prefix)) kept.emplace_back(name.substr(prefix.size()), t);
    CHECK(!name.starts_with("levin.callback.WeightAveraging.averaging_state.module."));  // no weight is stored twice
  }
  loaded.load_state_dict(kept);
  CHECK(loaded.weights() == live);
  loaded.load_state_dict(weights);
  CHECK(loaded.weights() != live);
  // A file of weights alone has only the average.
  loaded.load_state_dict(load_safetensors(only).tensors);
  Model other;
  other.load_state_dict(weights);
  CHECK(loaded.weights() == other.weights());

  // After the fit the module is the average, and a file has nothing else.
  Warnings warnings;
  trainer.save_checkpoint(end);
  CHECK(warnings.ids() == std::vector<std::string>{"I-TRAIN-AVERAGE-SAVED"});
  weights.clear();
  for (const auto& [name, t] : load_safetensors(end).tensors) {
    if (!name.starts_with("levin.")) weights.emplace_back(name, t);
    CHECK(!name.starts_with("levin.callback.WeightAveraging."));
  }
  loaded.load_state_dict(weights);
  CHECK(loaded.weights() == model.weights());
}

TEST_CASE(
    "a run with an average that is cut and resumed ends with the bits of one that was not: average and training") {
  const TemporaryFolder dir;
  struct Result {
    std::vector<float> live, average;
    std::int64_t n = 0;
    bool operator==(const Result&) const = default;
  };
  for (const std::string precision : {"32-true", "bf16-true"}) {
    CAPTURE(precision);
    // Steps at which a checkpoint is written: in a window, at its end, at an epoch's end. An epoch has 5 batches in 3
    // windows.
    const auto run = [&](const std::string& resume, const std::string& folder) {
      Model model;
      auto averaging =
          ema({.decay = 0.7, .update_every_n_steps = 2, .update_starting_at_step = 2, .update_starting_at_epoch = 1});
      Result result;
      Trainer* running = nullptr;
      TrainerOptions options =
          options_with({averaging, std::make_shared<AtBatchEnd>([&](const StepInfo&) {
                          if (!folder.empty())
                            running->save_checkpoint(folder + "/" + std::to_string(running->total_batch_idx()));
                          result.live = model.weights();
                        })},
                       4);
      options.accumulate_grad_batches = 2;
      options.precision = precision;
      options.val_check_interval = 3;
      data::DataLoader data = loader(20, 4), val = loader(4, 4);
      Trainer trainer(options);
      running = &trainer;
      trainer.fit(model, {.train = &data, .val = &val, .ckpt_path = resume});
      result.average = values_of(averaging->average()->state());
      result.n = averaging->average()->n_averaged();
      CHECK(model.weights() != result.live);
      return result;
    };
    const std::string folder = dir / precision;
    const Result whole = run({}, folder);
    CHECK(whole.n == 8);  // steps 2, 4, 6, 8, 10 and epochs 1, 2, 3
    for (const int at : {1, 4, 5, 9, 10, 17}) {
      CAPTURE(at);
      CHECK(run(folder + "/" + std::to_string(at), {}) == whole);
    }
  }
}

TEST_CASE("a run that resumes from a file of its end ends with the average too") {
  const levin::test::ExpectedWarnings expected{"W-TRAIN-NOTHING"};
  const TemporaryFolder dir;
  const auto run = [&](const std::string& resume) {
    Model model;
    TrainerOptions options = options_with({ema()}, 2);
    options.enable_checkpointing = true;
    options.default_root_dir = dir.path();
    data::DataLoader data = loader(20, 4);
    Trainer trainer(options);
    trainer.fit(model, {.train = &data, .ckpt_path = resume});
    return model.weights();
  };
  const std::vector<float> whole = run({});
  CHECK(run(dir / "checkpoints/epoch=1-step=10.safetensors") == whole);
}

TEST_CASE(
    "a checkpoint saved inside of a validation, or by an interrupt in one, holds the training's weights and open "
    "window") {
  const levin::test::ExpectedWarnings expected{"W-CKPT-CALLBACKS"};
  const TemporaryFolder dir;
  struct Result {
    std::vector<float> live, average;
    bool operator==(const Result&) const = default;
  };
  const auto run = [&](const std::string& resume, bool interrupt) {
    Model model;
    auto averaging = ema();
    Result result;
    TrainerOptions options = options_with(
        {averaging, std::make_shared<AtBatchEnd>([&](const StepInfo&) { result.live = model.weights(); })}, 2);
    options.accumulate_grad_batches = 2;
    options.val_check_interval = 3;
    options.default_root_dir = dir.path();
    options.enable_checkpointing = options.handle_signals = interrupt;
    data::DataLoader data = loader(20, 4), val = loader(4, 4);
    Trainer trainer(options);
    if (interrupt) {
      model.in_validation = [&] { (void)std::raise(SIGINT); };
      CHECK_THROWS_AS(trainer.fit(model, {.train = &data, .val = &val}), InterruptedError);
      CHECK(model.weights() == result.live);
      CHECK(trainer.total_batch_idx() == 3);
    } else {
      trainer.fit(model, {.train = &data, .val = &val, .ckpt_path = resume});
    }
    result.average = values_of(averaging->average()->state());
    return result;
  };
  const Result whole = run({}, false);
  (void)run({}, true);
  CHECK(run(dir / "checkpoints/last.safetensors", false) == whole);
}

TEST_CASE("a validation that throws leaves the module with the weights of the training") {
  Model model;
  std::vector<float> live;
  TrainerOptions options =
      options_with({ema(), std::make_shared<AtBatchEnd>([&](const StepInfo&) { live = model.weights(); })}, 2);
  model.in_validation = [] { throw std::runtime_error("no"); };
  data::DataLoader data = loader(20, 4), val = loader(4, 4);
  Trainer trainer(options);
  CHECK_THROWS_WITH_AS(trainer.fit(model, {.train = &data, .val = &val}), "no", std::runtime_error);
  CHECK(model.weights() == live);
  CHECK(model.fc1.weight.requires_grad());
}

TEST_CASE("from a checkpoint without an average both start at its weights, with a warning") {
  const TemporaryFolder dir;
  TrainerOptions options = options_with({}, 1);
  options.enable_checkpointing = true;
  options.default_root_dir = dir.path();
  Model model;
  data::DataLoader data = loader(20, 4);
  Trainer(options).fit(model, {.train = &data});
  const std::vector<float> saved = model.weights();

  auto averaging = ema({.decay = 0.9, .update_starting_at_step = 100});
  Model resumed;
  Trainer trainer(options_with({averaging}, 1));
  Warnings warnings;
  trainer.fit(resumed, {.train = &data, .ckpt_path = dir / "checkpoints/epoch=0-step=5.safetensors"});
  const std::vector<std::string> ids = warnings.ids();
  CHECK(std::count(ids.begin(), ids.end(), "W-TRAIN-NO-AVERAGE") == 1);
  CHECK(resumed.weights() == saved);
  CHECK(averaging->average()->n_averaged() == 0);
}

TEST_CASE("bare tensors and two averages in one run are refused") {
  Tensor w = zeros({2, 1}, cpu).requires_grad_();
  optim::SGD opt({{&w, "w", nullptr}}, {.lr = 0.1});
  data::DataLoader data = loader(8, 4);
  Trainer trainer(options_with({ema()}, 1));
  CHECK_THROWS_WITH_AS(trainer.fit(opt, data, [&](const Batch& b) { return squared_error(matmul(b[0], w), b[1]); }),
                       doctest::Contains("no module"), ConfigError);
  CHECK_THROWS_WITH_AS(Trainer(options_with({ema(), std::make_shared<WeightAveraging>()}, 1)),
                       doctest::Contains("WeightAveraging"), ConfigError);
}

TEST_CASE("on a device averages of a captured training have the bits of one whose steps run one by one") {
  DEVICE_OR_SKIP();
  const auto run = [&](Capture capture, std::optional<Device> where) {
    Model model(device);
    auto averaging = ema({.decay = 0.8, .device = where});
    TrainerOptions options = options_with({averaging}, 3);
    options.capture = capture;
    std::vector<float> seen;
    model.in_validation = [&] {
      const std::vector<float> now = model.weights();
      seen.insert(seen.end(), now.begin(), now.end());
    };
    data::DataLoader data = loader(24, 4), val = loader(4, 4);
    Trainer trainer(options);
    trainer.fit(model, {.train = &data, .val = &val});
    CHECK((trainer.capture_report().replayed > 5) == (capture == Capture::step));
    CHECK(averaging->average()->n_averaged() == 18);
    const std::vector<float> last = model.weights();
    seen.insert(seen.end(), last.begin(), last.end());
    return seen;
  };
  CHECK(run(Capture::step, {}) == run(Capture::off, {}));
  CHECK(run(Capture::step, cpu) == run(Capture::off, cpu));
}

TEST_CASE("a validation inside of a validation finds the average in place, and the training's weights come back once") {
  auto averaging = ema();
  Model model;
  data::DataLoader data = loader(16, 4), val = loader(8, 4), few = loader(4, 4);
  std::vector<std::vector<float>> seen;
  std::vector<float> live;
  bool nested = false;
  struct Live : Callback {
    std::vector<float>* weights = nullptr;
    Model* of = nullptr;
    void on_train_batch_end(const StepInfo&) override { *weights = of->weights(); }
    void on_validation_end() override {
      if (!trainer().nested_evaluation()) CHECK(of->weights() == *weights);
    }
  };
  const auto watch = std::make_shared<Live>();
  watch->weights = &live;
  watch->of = &model;
  Trainer trainer(options_with({averaging, watch}, 2));
  model.in_validation = [&] {
    seen.push_back(model.weights());
    if (std::exchange(nested, true)) return;
    (void)trainer.validate(model, few);
    nested = false;
    seen.push_back(model.weights());
  };
  trainer.fit(model, {.train = &data, .val = val});
  REQUIRE(seen.size() == 12);  // 2 epochs of 2 batches: before, inside and after the inner one
  for (std::size_t i = 0; i < 12; ++i) CHECK(seen[i] == seen[i / 6 * 6]);
  CHECK(seen[0] != live);
}
