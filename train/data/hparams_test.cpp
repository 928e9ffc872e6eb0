#include <doctest/doctest.h>

#include <cmath>

#include "levin/train.h"
#include "train/run/fixture_test.h"

using namespace levin;

namespace {

struct Tunable : TrainModuleOf<Tunable> {
  explicit Tunable(nn::Options o) : TrainModuleOf(o) {
    save_hparams({{"width", 8}, {"rate", 0.25}, {"kind", "relu"}, {"bias", true}});
    tunable("rate", &rate);
    tunable("count", &count);
  }
  nn::Linear fc{*this, "fc", {.in = 2, .out = 1}};
  double rate = 0.5;
  int count = 3, setups = 0, trains = 0, vals = 0, tests = 0, predicts = 0;
  std::int64_t train_batches = 0, val_batches = 0, test_batches = 0;
  void setup(Stage) override { ++setups; }
  StepOutput training_step(const Batch& b, std::int64_t) override {
    ++train_batches;
    return test::squared_error(fc(b[0]), b[1]);
  }
  void validation_step(const Batch&, std::int64_t, std::int64_t) override { ++val_batches; }
  void test_step(const Batch&, std::int64_t, std::int64_t) override { ++test_batches; }
  Tensor predict_step(const Batch& b, std::int64_t, std::int64_t) override { return fc(b[0]); }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.01})}};
  }
  std::unique_ptr<data::DataLoader> made(std::int64_t n, int& count_of) {
    ++count_of;
    CHECK(setups > 0);  // hooks may use what setup made
    return std::make_unique<data::DataLoader>(test::loader(n, 4));
  }
  std::unique_ptr<data::DataLoader> train_loader() override { return made(24, trains); }
  std::unique_ptr<data::DataLoader> val_loader() override { return made(8, vals); }
  std::unique_ptr<data::DataLoader> test_loader() override { return made(12, tests); }
  std::unique_ptr<data::DataLoader> predict_loader() override { return made(16, predicts); }
};

constexpr std::int64_t kLong = (std::int64_t{1} << 53) + 1;  // no double has this value
struct Seeded : TrainModuleOf<Seeded> {
  explicit Seeded(nn::Options o) : TrainModuleOf(o) { save_hparams({{"seed", kLong}}); }
  nn::Linear fc{*this, "fc", {.in = 2, .out = 1}};
  StepOutput training_step(const Batch& b, std::int64_t) override { return test::squared_error(fc(b[0]), b[1]); }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.01})}};
  }
};

struct NoHooks : TrainModuleOf<NoHooks> {
  using TrainModuleOf::TrainModuleOf;
  nn::Linear fc{*this, "fc", {.in = 2, .out = 1}};
  StepOutput training_step(const Batch& b, std::int64_t) override { return test::squared_error(fc(b[0]), b[1]); }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.01})}};
  }
};

struct NullHook : TrainModuleOf<NullHook, NoHooks> {
  using TrainModuleOf<NullHook, NoHooks>::TrainModuleOf;
  std::unique_ptr<data::DataLoader> train_loader() override { return nullptr; }
};

struct Listening : Logger {
  Metadata told;
  int records = 0;
  void log_metrics(const LogRecord&) override { ++records; }
  void log_hparams(const Metadata& hparams) override { told = hparams; }
};

const nn::Options kOptions{.gen = Generator(3), .device = Device::cpu()};

}  // namespace

TEST_CASE("a field is read from hparams first, and setting it reaches member and hparam") {
  Tunable net(kOptions);
  CHECK(net.field("rate") == 0.25);
  net.set_field("rate", 0.75);
  CHECK(net.rate == 0.75);
  CHECK(net.hparam("rate") == 0.75);
  net.set_field("count", 6.0);
  CHECK(net.count == 6);
  net.set_field("width", 16);
  CHECK(net.hparam("width") == 16);
  CHECK(net.fields() == "rate, count, width");
  CHECK_FALSE(net.has_field("kind"));
  CHECK_FALSE(net.has_field("bias"));
  CHECK_THROWS_AS((void)net.hparam("kind"), ConfigError);
  try {
    net.set_field("lr", 1);
    FAIL("expected ConfigError");
  } catch (const ConfigError& e) {
    const std::string message = e.what();
    CHECK(message.find("\"lr\"") != std::string::npos);
    CHECK(message.find("rate, count, width") != std::string::npos);
  }
}

TEST_CASE("hparams keep names, order and kinds in a checkpoint, and read as words for loggers") {
  const test::TemporaryFolder dir;
  Tunable net(kOptions);
  net.save_hparams({{"rate", 0.1}, {"late", std::nan("")}});
  TrainerOptions options = test::silent();
  options.max_steps = 1;
  const auto logger = std::make_shared<Listening>();
  options.logger = logger;
  Trainer trainer(options);
  trainer.fit(net);
  CHECK(logger->told == to_metadata(net.hparams()));
  trainer.save_checkpoint(dir / "a.safetensors");
  const HParams back = load_hparams(dir / "a.safetensors");
  REQUIRE(back.size() == 5);
  CHECK(back[0] == std::pair<std::string, HParam>("width", 8));
  CHECK(back[1] == std::pair<std::string, HParam>("rate", 0.1));
  CHECK(back[2] == std::pair<std::string, HParam>("kind", "relu"));
  CHECK(back[3] == std::pair<std::string, HParam>("bias", true));
  CHECK(std::isnan(back[4].second.number()));
  const Metadata words = to_metadata(back);
  CHECK(words[0].second == "8");
  CHECK(words[1].second == "0.1");
  CHECK(words[3].second == "true");
  trainer.save_checkpoint(dir / "w.safetensors", WeightsOnly::yes);
  CHECK_THROWS_AS((void)load_hparams(dir / "w.safetensors"), ConfigError);
}

TEST_CASE("loaders of a module's hooks are asked for once, after setup, and only if the call is given none") {
  Tunable net(kOptions);
  TrainerOptions options = test::silent();
  options.max_epochs = 2;
  Trainer trainer(options);
  trainer.fit(net);
  CHECK(net.trains == 1);
  CHECK(net.vals == 1);
  CHECK(net.tests == 0);
  CHECK(net.train_batches == 12);
  CHECK(net.val_batches == 4);
  CHECK(trainer.train_loader() == nullptr);  // it ended with the stage
  auto given = test::loader(4, 4);
  trainer.options().max_epochs = 3;
  trainer.fit(net, {.train = given});
  CHECK(net.trains == 1);
  CHECK(net.train_batches == 13);
  CHECK(net.vals == 2);
  (void)trainer.test(net);
  CHECK(net.tests == 1);
  CHECK(net.test_batches == 3);
  CHECK(trainer.predict(net).at(0).size() == 4);
  (void)trainer.validate(net, given);
  CHECK(net.vals == 2);
}

TEST_CASE("a fit without a loader names the argument and the hook") {
  NoHooks without(kOptions);
  Trainer trainer(test::silent());
  CHECK_THROWS_WITH_AS(
      trainer.fit(without),
      "fit: 0 training loaders were given, expected one; give .train = &loader, or override the module's "
      "train_loader",
      ConfigError);
  NullHook null(kOptions);
  CHECK_THROWS_WITH_AS(trainer.fit(null),
                       "fit: the module's train_loader gave null, expected a loader; give .train = &loader",
                       ConfigError);
}

TEST_CASE("an integer among the hparams keeps all its digits, in a logger's text and in a checkpoint") {
  const HParam seed = kLong;
  CHECK(seed.as_text() == "9007199254740993");
  CHECK_FALSE(seed == HParam(kLong - 1));
  CHECK(HParam(~std::uint64_t{0}).kind() == HParam::Kind::real);
  const test::TemporaryFolder dir;
  Seeded module({.gen = Generator(1), .device = Device::cpu()});
  auto train = test::loader(8, 4);
  TrainerOptions options = test::silent();
  options.max_epochs = 1;
  Trainer trainer(options);
  trainer.fit(module, {.train = train});
  trainer.save_checkpoint(dir / "c.safetensors");
  const HParams loaded = load_hparams(dir / "c.safetensors");
  REQUIRE(loaded.size() == 1);
  CHECK(loaded[0].second == seed);
}
