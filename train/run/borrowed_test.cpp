// What a trainer borrows, and modules and optimizers that were destroyed; and fits that train nothing.
#include <doctest/doctest.h>

#include <limits>
#include <memory>
#include <optional>

#include "levin/train/checkpoint.h"

#include "tests/warnings.h"
#include "train/run/fixture_test.h"

using namespace levin;
using namespace levin::test;

namespace {

Tensor loss_of(const Net& net, const Batch& b) { return squared_error(net(b[0]), b[1]); }
nn::Options here() { return {.gen = Generator(3), .device = Device::cpu()}; }

TrainerOptions so_many(std::int64_t epochs) {
  TrainerOptions options = silent();
  options.max_epochs = epochs;
  return options;
}

struct Whole : TrainModuleOf<Whole> {
  using TrainModuleOf::TrainModuleOf;
  Net net{*this, "net"};
  bool trains_another = false;
  std::unique_ptr<Net> another;
  StepOutput training_step(const Batch& b, std::int64_t) override {
    if (trains_another && !another) another = std::make_unique<Net>(here());
    return loss_of(another ? *another : net, b);
  }
  void validation_step(const Batch& b, std::int64_t, std::int64_t) override { log("val_loss", loss_of(net, b)); }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::SGD>(net.parameters(), optim::SGDOptions{.lr = 0.1})}};
  }
};

std::string words_of(const Warnings& warnings, std::string_view id) {
  for (const Warning& w : warnings.all()) {
    if (w.id == id) return w.text;
  }
  return {};
}

}  // namespace

TEST_CASE("after a fit whose module or optimizer is destroyed, calls that need them throw and the rest returns null") {
  const TemporaryFolder dir;
  data::DataLoader data = loader(8, 4);
  Trainer trainer(so_many(1));
  const auto refused = [&] {
    CHECK_THROWS_WITH_AS(trainer.save_checkpoint(dir / "c.safetensors"), doctest::Contains("is gone"), StateError);
    CHECK_THROWS_WITH_AS((void)trainer.evaluate(data, [](const Batch& b) { return mean(b[0]); }),
                         doctest::Contains("is gone"), StateError);
    CHECK(trainer.optimizer() == nullptr);
    CHECK(trainer.module() == nullptr);
  };
  {
    Net net(here());
    {
      optim::SGD o(net.parameters());
      trainer.fit(o, data, [&](const Batch& b) { return loss_of(net, b); });
      trainer.save_checkpoint(dir / "c.safetensors");
      CHECK(trainer.optimizer() == &o);
    }
    refused();
  }
  {
    Whole whole(here());
    trainer.options().max_epochs = 2;
    trainer.fit(whole, {.train = data});
    CHECK(trainer.module() == &whole);
  }
  refused();
  CHECK_THROWS_WITH_AS((void)trainer.validate(data), doctest::Contains("is gone"), StateError);
}

TEST_CASE("another net at the address of the last one is another one: it has none of its metrics") {
  data::DataLoader data = loader(8, 4);
  Trainer trainer(so_many(1));
  std::optional<Net> net;
  const auto fit = [&] {
    net.emplace(here());
    optim::SGD o(net->parameters());
    trainer.fit(o, data, [&](const Batch& b) { return loss_of(*net, b); });
  };
  fit();
  CHECK_FALSE(trainer.callback_metrics().empty());
  const Warnings warnings;
  fit();  // max_epochs is reached, so it logs nothing
  CHECK(trainer.callback_metrics().empty());
  // Bare tensors: the same optimizer is the same training.
  Tensor w = ones({1}, Device::cpu());
  w.requires_grad_();
  const auto bare = [&](optim::Optimizer& o) {
    ++*trainer.options().max_epochs;
    trainer.fit(o, data, [&](const Batch& b) { return mean(b[0] * w); });
    trainer.fit(o, data, [&](const Batch& b) { return mean(b[0] * w); });
    return trainer.callback_metrics().empty();
  };
  optim::SGD first({{&w, "w"}}), second({{&w, "w"}});
  CHECK_FALSE(bare(first));
  trainer.fit(second, data, [&](const Batch& b) { return mean(b[0] * w); });
  CHECK(trainer.callback_metrics().empty());
}

TEST_CASE(
    "a fit whose limits are reached says that nothing is trained; one that never had any steps to make does not") {
  data::DataLoader data = loader(8, 4);
  Net net(here());
  optim::SGD o(net.parameters());
  const auto fit = [&](Trainer& trainer) {
    const Warnings warnings;
    trainer.fit(o, data, [&](const Batch& b) { return loss_of(net, b); });
    return words_of(warnings, "W-TRAIN-NOTHING");
  };
  Trainer none(so_many(0));
  CHECK(fit(none).empty());
  Trainer trainer(so_many(2));
  CHECK(fit(trainer).empty());
  CHECK(fit(trainer).find("max_epochs = 2 is reached, nothing is trained") != std::string::npos);
  trainer.options().max_epochs = 3;
  CHECK(fit(trainer).empty());
  TrainerOptions options = silent();
  options.max_steps = 3;
  Trainer counted(options);
  CHECK(fit(counted).empty());
  CHECK(fit(counted).find("max_steps = 3 is reached") != std::string::npos);
}

TEST_CASE("an optimizer none of whose parameters gets a gradient is reported once, with the names of its parameters") {
  data::DataLoader data = loader(8, 4);
  for (const bool wrong : {false, true}) {
    Whole whole(here());
    whole.trains_another = wrong;
    const Warnings warnings;
    Trainer trainer(so_many(2));
    trainer.fit(whole, {.train = data});
    CHECK(warnings.count("W-TRAIN-NO-GRADIENT") == (wrong ? 1 : 0));
    if (wrong)
      CHECK(words_of(warnings, "W-TRAIN-NO-GRADIENT")
                .find("none of its 4 parameters (fc1.weight, fc1.bias, fc2.weight, "
                      "...) has a gradient") != std::string::npos);
  }
}

TEST_CASE("a fit of an optimizer refuses a function that returns nothing, and reports a loss that is NaN once") {
  data::DataLoader data = loader(8, 4);
  Net net(here());
  optim::SGD o(net.parameters());
  Trainer empty(so_many(1));
  CHECK_THROWS_WITH_AS(empty.fit(o, data, [](const Batch&) { return Tensor(); }),
                       doctest::Contains("returned an undefined tensor; return the loss"), ConfigError);
  const Warnings warnings;
  Trainer trainer(so_many(3));
  trainer.fit(o, data, [&](const Batch& b) {
    const bool last = trainer.current_epoch() > 0;
    return loss_of(net, b) * (last ? std::numeric_limits<double>::quiet_NaN() : 1.0);
  });
  CHECK(warnings.count("W-TRAIN-NAN") == 1);
  CHECK(words_of(warnings, "W-TRAIN-NAN").find("is nan at step 5, and was not finite since step 2") !=
        std::string::npos);
}

TEST_CASE("the training loader as a validation loader is refused before any work") {
  data::DataLoader data = loader(8, 4), other = loader(8, 4);
  Whole whole(here());
  Trainer trainer(so_many(1));
  CHECK_THROWS_WITH_AS(trainer.fit(whole, {.train = data, .val = {&other, &data}}),
                       doctest::Contains("a validation loader is the training loader"), ConfigError);
  CHECK(trainer.global_step() == 0);
  trainer.fit(whole, {.train = data, .val = other});
  CHECK(trainer.global_step() == 2);
}

TEST_CASE("a run without a logger has no warning of how seldom records are written") {
  data::DataLoader data = loader(8, 4);
  Whole whole(here());
  TrainerOptions options = so_many(1);
  options.log_every_n_steps = 50;
  const Warnings warnings;
  Trainer trainer(options);
  trainer.fit(whole, {.train = data});
  CHECK(warnings.count("W-TRAIN-LOG-INTERVAL") == 0);
  struct Quiet : Logger {
    void log_metrics(const LogRecord&) override {}
  };
  options.logger = std::make_shared<Quiet>();
  Trainer logged(options);
  logged.fit(whole, {.train = data});
  CHECK(warnings.count("W-TRAIN-LOG-INTERVAL") == 1);
}

TEST_CASE("what is thrown and is no std::exception ends a stage as an error does") {
  struct Ends : Callback {
    bool torn = false, told = false;
    BatchStart on_train_batch_start(const StepInfo&) override { throw 7; }
    void on_validation_batch_start(const StepInfo&) override { throw 8; }
    void on_exception(const std::exception&) override { told = true; }
    void teardown(Stage) override { torn = true; }
  };
  data::DataLoader data = loader(8, 4);
  Whole whole(here());
  const auto ends = std::make_shared<Ends>();
  TrainerOptions options = so_many(1);
  options.callbacks = {ends};
  Trainer trainer(options);
  CHECK_THROWS_AS(trainer.fit(whole, {.train = data}), int);
  CHECK((ends->torn && ends->told));
  ends->torn = ends->told = false;
  CHECK_THROWS_AS((void)trainer.validate(whole, data), int);
  CHECK((ends->torn && ends->told));
}

TEST_CASE("a checkpoint's state given to load_state_dict is refused with the call that gives its weights") {
  const TemporaryFolder dir;
  data::DataLoader data = loader(8, 4);
  Net net(here());
  optim::Adam o(net.parameters());
  Trainer trainer(so_many(1));
  trainer.fit(o, data, [&](const Batch& b) { return loss_of(net, b); });
  const std::string path = dir / "c.safetensors";
  trainer.save_checkpoint(path);
  Net other({.gen = Generator(8), .device = Device::cpu()});
  CHECK_THROWS_WITH_AS((void)other.load_state_dict(load_safetensors(path).tensors),
                       doctest::Contains("give read_checkpoint_info(path).weights"), ConfigError);
  (void)other.load_state_dict(read_checkpoint_info(path).weights);
  CHECK(weights_of(other) == weights_of(net));
}
