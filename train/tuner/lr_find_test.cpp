#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numbers>

#include "levin/train.h"
#include "tests/warnings.h"
#include "train/run/fixture_test.h"
#include "train/tuner/fixture_test.h"

using namespace levin;
using test::Tuned;
using test::tuner_files;

namespace {

// Returns the given losses, one for each training step.
struct Scripted : TrainModuleOf<Scripted> {
  explicit Scripted(std::vector<double> told) : TrainModuleOf(test::kTuned), losses(std::move(told)) {}
  nn::Linear fc{*this, "fc", {.in = 2, .out = 1}};
  std::vector<double> losses, rates;
  std::size_t steps = 0;
  StepOutput training_step(const Batch& b, std::int64_t) override {
    rates.push_back(trainer().optimizer()->lr());
    const double loss = losses[std::min(steps++, losses.size() - 1)];
    if (std::isnan(loss)) return {};
    return mean(fc(b[0])) * 0.0 + loss;
  }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.5})}};
  }
};

LrFindResult find(Scripted& net, LrFindOptions options, TrainerOptions trainer_options = test::silent()) {
  const test::TemporaryFolder dir;
  auto train = test::loader(400, 4);
  options.train = train;
  options.update_attr = false;
  trainer_options.default_root_dir = dir.path();
  trainer_options.max_epochs = 1;
  Trainer trainer(trainer_options);
  return *Tuner(trainer).lr_find(net, options);
}

struct FineTune : LearningRateFinder {
  FineTune(std::vector<std::int64_t> when, LrFindOptions options)
      : LearningRateFinder(std::move(options)), milestones(std::move(when)) {}
  std::vector<std::int64_t> milestones, searched;
  void on_fit_start() override {}
  void on_train_epoch_start() override {
    const std::int64_t epoch = trainer().current_epoch();
    if (epoch != 0 && std::find(milestones.begin(), milestones.end(), epoch) == milestones.end()) return;
    lr_find();
    searched.push_back(epoch);
  }
};

}  // namespace

TEST_CASE("rates of a search go from min_lr to max_lr, exponentially or evenly, and the second exponent is 2 / n") {
  Scripted net({1.0});
  const LrFindResult found = find(net, {});
  REQUIRE(found.results.lr.size() == 100);
  CHECK(found.results.lr[0] == 1e-8);
  // The expected numbers have five digits: half of the last is 3.5e-5 of the number. Approx would add 1 to the scale.
  CHECK(std::abs(found.results.lr[1] / 1.4454e-8 - 1) < 3.5e-5);
  CHECK(std::abs(found.results.lr[2] / 1.7378e-8 - 1) < 3.5e-5);
  CHECK(found.results.lr.back() == doctest::Approx(1.0).epsilon(1e-12));
  CHECK(net.rates == found.results.lr);  // the result has the rates that the optimizer had

  Scripted other({1.0});
  const LrFindResult even = find(other, {.min_lr = 0, .max_lr = 1, .num_training = 10, .mode = "Linear"});
  REQUIRE(even.results.lr.size() == 10);
  CHECK(even.results.lr[0] == 0);
  for (std::size_t k = 1; k < 10; ++k)
    CHECK(even.results.lr[k] == doctest::Approx(static_cast<double>(k + 1) / 10).epsilon(1e-12));
}

TEST_CASE("the smoothed loss of a constant is that constant, also after steps that return none") {
  const levin::test::ExpectedWarnings expected{"W-TRAIN-NO-LOSS"};
  Scripted net({2.0});
  for (const double loss : find(net, {}).results.loss) CHECK(loss == doctest::Approx(2.0).epsilon(1e-6));
  Scripted gaps({NAN, 2.0, NAN, 2.0});
  const std::vector<double> loss = find(gaps, {.num_training = 4}).results.loss;
  REQUIRE(loss.size() == 4);
  CHECK(std::isnan(loss[0]));
  CHECK(loss[1] == doctest::Approx(2.0).epsilon(1e-6));
  CHECK(std::isnan(loss[2]));
  CHECK(loss[3] == doctest::Approx(2.0).epsilon(1e-6));
}

TEST_CASE("a search stops at the first loss above the threshold, keeps it, and continues without a threshold") {
  Scripted net({1, 1, 1, 300});
  const LrFindResult found = find(net, {});
  CHECK(found.results.loss.size() == 4);
  CHECK(found.results.loss[3] > 4);
  Scripted on({1, 1, 1, 300});
  CHECK(find(on, {.early_stop_threshold = std::nullopt}).results.loss.size() == 100);
}

TEST_CASE("with accumulation a search takes a point a window") {
  Scripted net({3.0});
  TrainerOptions options = test::silent();
  options.accumulate_grad_batches = 2;
  const LrFindResult found = find(net, {}, options);
  CHECK(net.steps == 200);
  CHECK(found.results.loss.size() == 100);
  CHECK(found.results.loss.back() == doctest::Approx(3.0).epsilon(1e-6));  // what the step returned, not divided
  CHECK(net.rates[2] == net.rates[3]);
}

TEST_CASE("the suggestion is where the loss falls most steeply") {
  LrFindResult wave;
  wave.mode = "linear";
  for (int i = 0; i < 1000; ++i) {
    wave.results.lr.push_back(2 * std::numbers::pi * i / 999);
    wave.results.loss.push_back(std::sin(wave.results.lr.back()));
  }
  REQUIRE(wave.suggestion(2, 2).has_value());
  CHECK(std::abs(*wave.suggestion(2, 2) - 3.138) < 0.01);

  // On an uneven grid the derivative of a parabola is exact: x^2 - 8 x falls most at its first inner point.
  LrFindResult uneven;
  for (const double x : {0.0, 1.0, 3.0, 3.5, 7.0}) {
    uneven.results.lr.push_back(x);
    uneven.results.loss.push_back(x * x - 8 * x);
  }
  CHECK(uneven.suggested(0, 0) == 0);
  uneven.results.loss[0] = NAN;
  CHECK(uneven.suggested(0, 0) == 1);
  // Against log lr the same parabola is steepest where x (2 x - 8) is least, at 2.
  LrFindResult other;
  for (const double x : {0.1, 1.0, 2.0, 4.0}) {
    other.results.lr.push_back(x);
    other.results.loss.push_back(x * x - 8 * x);
  }
  CHECK(other.suggested(0, 0) == 0);
  other.slope_axis = "log_lr";
  CHECK(other.suggested(0, 0) == 2);

  const test::Warnings warnings;
  CHECK_FALSE(wave.suggestion(999, 0).has_value());
  CHECK(warnings.count("W-TUNE-SUGGESTION") == 1);
  CHECK_THROWS_AS((void)wave.suggestion(-1, 0), ConfigError);
}

TEST_CASE("a search leaves weights, counters, optimizer, records and files as they were, and sets the field") {
  const test::TemporaryFolder dir;
  Tuned net;
  auto train = test::loader();
  auto val = test::loader(8, 4);
  TrainerOptions options = test::silent();
  options.default_root_dir = dir.path();
  options.max_epochs = 2;
  options.max_steps = 77;
  Trainer trainer(options);
  const std::vector<float> before = test::weights_of(net);
  const std::uint64_t random = net.net.drop_offset();
  const LrFindOptions search{.train = train, .val = val, .min_lr = 1e-4, .num_training = 30};
  const test::Warnings warnings;
  const auto found = Tuner(trainer).lr_find(net, search);
  REQUIRE(found.has_value());
  CHECK(warnings.count("I-TUNE-LR") == 1);
  CHECK(test::weights_of(net) == before);
  CHECK(net.net.drop_offset() == random);
  CHECK(trainer.global_step() == 0);
  CHECK(trainer.current_epoch() == 0);
  CHECK(trainer.total_batch_idx() == 0);
  CHECK(trainer.options().max_steps == 77);
  CHECK(trainer.options().max_epochs == 2);
  CHECK_FALSE(trainer.options().limit_val_batches.has_value());
  CHECK(trainer.history().empty());
  CHECK(tuner_files(dir.path()).empty());
  REQUIRE(found->suggestion().has_value());
  CHECK(net.lr == *found->suggestion());
  CHECK(net.hparam("lr") == net.lr);

  const auto again = Tuner(trainer).lr_find(net, search);
  CHECK(again->results.lr == found->results.lr);
  CHECK(again->results.loss == found->results.loss);

  // The training after it equals one without a search.
  trainer.fit(net, {.train = train});
  Tuned fresh;
  fresh.set_field("lr", net.lr);
  auto same = test::loader();
  Trainer plain(options);
  plain.fit(fresh, {.train = same});
  CHECK(test::weights_of(net) == test::weights_of(fresh));
}

TEST_CASE("a search that throws puts back what it changed and removes its file") {
  const levin::test::ExpectedWarnings expected{"W-TUNE-BOTH"};
  const test::TemporaryFolder dir;
  Tuned net;
  net.throw_at = 5;
  auto train = test::loader();
  TrainerOptions options = test::silent();
  options.default_root_dir = dir.path();
  options.max_epochs = 3;
  Trainer trainer(options);
  const std::vector<float> before = test::weights_of(net);
  CHECK_THROWS_AS((void)Tuner(trainer).lr_find(net, {.train = train}), std::domain_error);
  CHECK(net.steps == 5);
  CHECK(test::weights_of(net) == before);
  CHECK(net.lr == 0.02);
  CHECK(tuner_files(dir.path()).empty());
  CHECK(trainer.options().max_epochs == 3);
  CHECK(trainer.options().max_steps == -1);
  CHECK(trainer.global_step() == 0);
}

TEST_CASE("set-ups that a search cannot work with are refused before any work") {
  const levin::test::ExpectedWarnings expected{"W-TRAIN-NO-OPTIMIZER", "W-TUNE-BOTH"};
  Tuned net;
  auto train = test::loader();
  Trainer trainer(test::silent());
  Tuner tuner(trainer);
  const auto refuses = [&](LrFindOptions o, const std::string& word) {
    o.train = train;
    try {
      (void)tuner.lr_find(net, o);
      FAIL("expected ConfigError for ", word);
    } catch (const ConfigError& e) { CHECK_MESSAGE(std::string(e.what()).find(word) != std::string::npos, e.what()); }
  };
  refuses({.min_lr = 1, .max_lr = 1}, "min_lr is 1");
  refuses({.min_lr = 0}, "min_lr is 0");
  refuses({.num_training = 0}, "num_training is 0");
  refuses({.mode = "cubic"}, "expected one of: exponential, linear");
  refuses({.slope_axis = "x"}, "expected one of: lr, log_lr");
  refuses({.early_stop_threshold = 0.0}, "early_stop_threshold is 0");
  refuses({.attr_name = "eta"}, "no field eta, it has: lr");
  CHECK(net.steps == 0);

  Scripted unnamed({1.0});
  CHECK_THROWS_WITH_AS((void)tuner.lr_find(unnamed, {.train = train}),
                       doctest::Contains("no field lr or learning_rate, it has: none"), ConfigError);
  net.optimizers_made = 2;
  net.manual = true;
  refuses({}, "returned 2 optimizers");
  net.optimizers_made = 0;
  refuses({}, "returned 0 optimizers");
  net.optimizers_made = 1;
  net.manual = false;

  TrainerOptions with = test::silent();
  with.callbacks = {std::make_shared<LearningRateFinder>()};
  Trainer doubled(with);
  CHECK_THROWS_WITH_AS((void)Tuner(doubled).lr_find(net, {.train = train}), doctest::Contains("LearningRateFinder"),
                       ConfigError);
  CHECK_THROWS_AS(LearningRateFinder({.train = train}), ConfigError);
  CHECK_THROWS_AS(LearningRateFinder({.num_training = 0}), ConfigError);

  TrainerOptions dev = test::silent();
  dev.fast_dev_run = 1;
  Trainer quick(dev);
  const test::Warnings warnings;
  CHECK_FALSE(Tuner(quick).lr_find(net, {.train = train}).has_value());
  CHECK(warnings.count("W-TUNE-DEV-RUN") == 1);
  CHECK(net.steps == 0);
}

TEST_CASE("a member and an hparam of one name are a warning, and both are set") {
  const test::TemporaryFolder dir;
  Tuned net;
  auto train = test::loader();
  TrainerOptions options = test::silent();
  options.default_root_dir = dir.path();
  Trainer trainer(options);
  const test::Warnings warnings;
  (void)Tuner(trainer).lr_find(net, {.train = train, .min_lr = 1e-4, .num_training = 20});
  CHECK(warnings.count("W-TUNE-BOTH") > 0);
}

TEST_CASE("LearningRateFinder sets the rate of the fit it begins, also for its schedule") {
  const levin::test::ExpectedWarnings expected{"W-TUNE-BOTH"};
  const test::TemporaryFolder dir;
  Tuned net;
  net.scheduled = true;
  auto train = test::loader();
  const auto finder = std::make_shared<LearningRateFinder>(LrFindOptions{.min_lr = 1e-4, .num_training = 30});
  TrainerOptions options = test::silent();
  options.default_root_dir = dir.path();
  options.callbacks = {finder};
  options.max_epochs = 2;
  Trainer trainer(options);
  trainer.fit(net, {.train = train});
  REQUIRE(finder->result().has_value());
  const double lr = *finder->result()->suggestion();
  CHECK(net.lr == lr);
  CHECK(trainer.optimizer()->lr() == doctest::Approx(lr / 4));  // halved by the schedule after each of 2 epochs
  CHECK(trainer.global_step() == 20);

  // Weights end where a run with that rate from the start ends.
  Tuned fresh;
  fresh.scheduled = true;
  fresh.set_field("lr", lr);
  auto same = test::loader();
  options.callbacks.clear();
  Trainer plain(options);
  plain.fit(fresh, {.train = same});
  CHECK(test::weights_of(net) == test::weights_of(fresh));
}

TEST_CASE("FineTuneLearningRateFinder searches at epoch 0 and at its milestones, and the counters do not notice") {
  const test::TemporaryFolder dir;
  Tuned net;
  auto train = test::loader();
  const auto finder = std::make_shared<FineTune>(
      std::vector<std::int64_t>{2, 3},
      LrFindOptions{.min_lr = 1e-4, .num_training = 25, .early_stop_threshold = 1e6, .update_attr = false});
  TrainerOptions options = test::silent();
  options.default_root_dir = dir.path();
  options.callbacks = {finder};
  options.max_epochs = 5;
  Trainer trainer(options);
  trainer.fit(net, {.train = train});
  CHECK(finder->searched == std::vector<std::int64_t>{0, 2, 3});
  CHECK(finder->result()->results.loss.size() == 25);  // not stopped by a best loss of 0
  CHECK(trainer.global_step() == 50);
  CHECK(trainer.current_epoch() == 5);

  Tuned undisturbed;
  auto same = test::loader();
  options.callbacks.clear();
  Trainer plain(options);
  plain.fit(undisturbed, {.train = same});
  CHECK(test::weights_of(net) == test::weights_of(undisturbed));
  REQUIRE(trainer.history().size() == plain.history().size());
  for (std::size_t i = 0; i < plain.history().size(); ++i)
    CHECK(trainer.history()[i].values == plain.history()[i].values);
}

TEST_CASE("a search in a run that was resumed inside of a window keeps its gradients") {
  const test::TemporaryFolder dir;
  TrainerOptions options = test::silent();
  options.default_root_dir = dir.path();
  options.max_epochs = 2;
  options.accumulate_grad_batches = 4;
  std::vector<float> expected;
  {
    Tuned net;
    auto train = test::loader();
    net.save_at = {6, dir / "inside.safetensors"};
    Trainer trainer(options);
    trainer.fit(net, {.train = train});
    expected = test::weights_of(net);
  }
  Tuned net;
  auto train = test::loader();
  options.callbacks = {
      std::make_shared<LearningRateFinder>(LrFindOptions{.min_lr = 1e-4, .num_training = 12, .update_attr = false})};
  Trainer trainer(options);
  trainer.fit(net, {.train = train, .ckpt_path = dir / "inside.safetensors"});
  CHECK(test::weights_of(net) == expected);
}

TEST_CASE("what a search found is drawn with a log axis and a red dot, also at index 0, and written as CSV") {
  const test::TemporaryFolder dir;
  LrFindResult found;
  found.results.lr = {1e-4, 1e-3, 1e-2, 1e-1};
  found.results.loss = {2, 1, 0.5, 0.4};
  CHECK(found.plot().find("<circle") == std::string::npos);
  const std::string log = svg_plot(std::vector<Series>{{.name = "s", .x = {0, 1e-4, 1e-3, 1e-2}, .y = {9, 2, 1, 0.5}}},
                                   {.x_axis = Axis::log, .marks = {{.x = 1e-4, .y = 2}, {.x = 0, .y = 1}}});
  CHECK(log.find(">0.0001</text>") != std::string::npos);
  CHECK(log.find(">0.001</text>") != std::string::npos);
  const std::size_t circle = log.find("<circle cx=\"70.00\"");  // the least x that has a logarithm: the left margin
  REQUIRE(circle != std::string::npos);
  CHECK(log.find("<circle", circle + 1) == std::string::npos);
  CHECK(log.find("r=\"5\" fill=\"red\"") != std::string::npos);
  CHECK(log.find("nan") == std::string::npos);

  LrFindResult many = found;
  for (int i = 0; i < 12; ++i) {
    many.results.lr.push_back(0.2 + 0.1 * i);
    many.results.loss.push_back(0.4 + 0.01 * i);
  }
  many.results.loss[10] = 3;
  many.results.loss[11] = 0.1;
  (void)many.plot({.suggest = true, .path = dir / "a.svg"});
  const std::string file = read_file(dir / "a.svg", 100000);
  CHECK(file.find("fill=\"red\"") != std::string::npos);
  CHECK(file.find("Learning rate") != std::string::npos);
  CHECK(file.find(">Loss<") != std::string::npos);
  found.write_csv(dir / "a.csv");
  CHECK(read_file(dir / "a.csv", 1000) ==
        "lr,loss\n0.0001,2\n0.001,1\n0.01,0.5\n0.10000000000000001,0.40000000000000002\n");
}

TEST_CASE("a hook that saves in a trial of a search, whose weights are taken back, writes nothing and gets a warning") {
  struct Saving : TrainModuleOf<Saving, Scripted> {
    using TrainModuleOf<Saving, Scripted>::TrainModuleOf;
    std::string path;
    void on_train_batch_end(const StepInfo&) override { trainer().save_checkpoint(path); }
  };
  const test::TemporaryFolder dir;
  const test::Warnings warnings;
  Saving net({1.0});
  net.path = dir / "of_a_hook.safetensors";
  auto train = test::loader(40, 4);
  TrainerOptions options = test::silent();
  options.max_epochs = 1;
  options.default_root_dir = dir.path();
  Trainer trainer(options);
  (void)Tuner(trainer).lr_find(net, {.train = train, .num_training = 5, .update_attr = false});
  CHECK_FALSE(std::filesystem::exists(net.path));
  CHECK(warnings.count("W-CKPT-TRIAL") >= 1);
  trainer.fit(net, {.train = train});
  CHECK(std::filesystem::exists(net.path));
}
