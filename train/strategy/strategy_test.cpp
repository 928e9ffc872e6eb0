// The options that name devices and strategies, and the places of a run at which a strategy is asked.
#include "levin/train/strategy.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "tests/warnings.h"
#include "train/run/fixture_test.h"
#include "train/run/packed.h"
#include "train/run/probe_test.h"

using namespace levin;

namespace {

template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const ConfigError& e) { return e.what(); }
  return "accepted";
}
bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

// Notes what it is asked, and votes as it is told.
struct Noting final : Strategy {
  std::vector<std::string> asked;
  RankInfo at{};
  Votes others{};
  bool fuses = false;
  std::string failure;
  int interrupts = 0;
  std::string_view name() const override { return "noting"; }
  RankInfo ranks() const override { return at; }
  void connect(const TrainerOptions&) override { asked.emplace_back("connect"); }
  void attach_model(TrainModule&, nn::Module*, Stage) override { asked.emplace_back("attach_model"); }
  void attach_optimizers(std::span<const std::shared_ptr<optim::Optimizer>> all) override {
    asked.push_back("attach_optimizers " + text(all.size()));
  }
  void detach() noexcept override { asked.emplace_back("detach"); }
  void begin_step() override { asked.emplace_back("begin_step"); }
  StepOutput training_step(const StepCall& call) override {
    asked.emplace_back(call.closes ? "training_step closes" : "training_step");
    StepOutput output = Strategy::training_step(call);
    if (!fuses) return output;
    levin::backward(call.objective(output));
    return output.loss().detach();
  }
  bool fuses_backward() const override { return fuses; }
  void backward(const Tensor& loss, SyncGrad sync) override {
    asked.emplace_back(sync == SyncGrad::yes ? "backward" : "backward alone");
    Strategy::backward(loss, sync);
  }
  void finish_step() override { asked.emplace_back("finish_step"); }
  void failed(const std::exception& error) noexcept override { failure = error.what(); }
  void interrupted() noexcept override { ++interrupts; }
  // Rank 0 answers with nothing and has no error.
  std::string from_rank_zero(std::string_view mine) override {
    if (at.rank == 0) return std::string(mine);
    return train::Packed().add(std::uint8_t{0}).add(std::string_view()).bytes();
  }
  Votes vote(const Votes& mine) override {
    Votes all = others;
    all.stop |= mine.stop;
    all.skip |= mine.skip;
    return all;
  }
};

TrainerOptions with(const std::shared_ptr<Noting>& strategy) {
  TrainerOptions options = test::silent();
  options.max_epochs = 1;
  options.strategy = strategy;
  return options;
}

}  // namespace

TEST_CASE("devices is a count, a list, or a text of either") {
  CHECK(DeviceChoice().is_auto());
  CHECK(DeviceChoice("auto").is_auto());
  CHECK(DeviceChoice(-1).is_auto());
  CHECK(DeviceChoice("3").count() == 3);
  CHECK(DeviceChoice(3) == DeviceChoice("3"));
  CHECK(DeviceChoice("3,").indices() == std::vector{3});
  CHECK(DeviceChoice("0, 2") == DeviceChoice({0, 2}));
  CHECK(text(DeviceChoice("3,")) == "3,");
  CHECK(text(DeviceChoice({0, 2})) == "0,2");
  CHECK(contains(error_of([] { (void)DeviceChoice(0); }), "devices is 0, expected a count of 1 or more"));
  CHECK(contains(error_of([] { (void)DeviceChoice("0"); }), "devices is 0"));
  CHECK(contains(error_of([] { (void)DeviceChoice(std::vector<int>{}); }), "an empty list"));
  CHECK(contains(error_of([] { (void)DeviceChoice({0, 0}); }), "devices lists 0 twice (0,0)"));
  CHECK(contains(error_of([] { (void)DeviceChoice("two"); }), "devices is \"two\", expected a count"));
  CHECK(contains(error_of([] { (void)NodeCount(0); }), "num_nodes is 0"));
}

TEST_CASE("a strategy is chosen by name in any case, and an unknown one lists those that there are") {
  TrainerOptions options = test::silent();
  CHECK(Trainer(options).strategy().name() == "single_device");
  options.strategy = "Single_Device";
  CHECK(Trainer(options).strategy().name() == "single_device");
  options.strategy = "auto";
  options.devices = 1;
  CHECK(Trainer(options).strategy().name() == "single_device");
  options.strategy = "ddq";
  const std::string unknown = error_of([&] { (void)Trainer(options); });
  CHECK(contains(unknown, "strategy is \"ddq\", expected one of: auto, "));
  CHECK(contains(unknown, "single_device"));
}

TEST_CASE("a strategy of the user's has a name after StrategyRegistry::add, and keeps it unless it is replaced") {
  StrategyRegistry::add(
      "Noted_One", [] { return std::make_shared<Noting>(); }, "notes");
  TrainerOptions options = test::silent();
  options.strategy = "noted_one";
  CHECK(Trainer(options).strategy().name() == "noting");
  const auto again = [](bool replace) {
    StrategyRegistry::add(
        "noted_one", [] { return std::make_shared<Strategy>(); }, "another", replace);
  };
  CHECK(contains(error_of([&] { again(false); }), "\"noted_one\" is there already (notes)"));
  again(true);
  CHECK(Trainer(options).strategy().name() == "single_device");
  bool listed = false;
  for (const StrategyRegistry::Entry& e : StrategyRegistry::all())
    listed |= e.name == "noted_one" && e.description == "another";
  CHECK(listed);
}

TEST_CASE("a fit asks its strategy in one order, and synchronizes gradients where a window closes") {
  const auto noting = std::make_shared<Noting>();
  TrainerOptions options = with(noting);
  options.accumulate_grad_batches = 2;
  test::Probe probe(nn::Options{.gen = Generator(1), .device = Device::cpu()});
  data::DataLoader data = test::loader(12, 4);
  Trainer(options).fit(probe, {.train = data});
  const std::vector<std::string> wanted = {"connect",     "attach_model",         "attach_optimizers 1",
                                           "begin_step",  "training_step",        "backward alone",
                                           "begin_step",  "training_step closes", "backward",
                                           "finish_step", "begin_step",           "training_step closes",
                                           "backward",    "finish_step",          "detach"};
  CHECK(noting->asked == wanted);
}

TEST_CASE("a strategy that fuses backward gives the same weights, with gradients cleared before the forward pass") {
  std::vector<float> weights[2];
  for (const bool fuses : {false, true}) {
    const auto noting = std::make_shared<Noting>();
    noting->fuses = fuses;
    TrainerOptions options = with(noting);
    options.accumulate_grad_batches = 2;
    test::Probe probe(nn::Options{.gen = Generator(1), .device = Device::cpu()});
    data::DataLoader data = test::loader(20, 4);
    Trainer(options).fit(probe, {.train = data});
    weights[fuses] = test::weights_of(probe);
    CHECK((std::find(noting->asked.begin(), noting->asked.end(), "backward") == noting->asked.end()) == fuses);
  }
  CHECK(weights[0] == weights[1]);
}

TEST_CASE("a stop, a skip or a signal of another rank takes effect here at the same batch") {
  for (const Votes& others : {Votes{.stop = 1}, Votes{.skip = 1}}) {
    const auto noting = std::make_shared<Noting>();
    noting->others = others;
    noting->at = {.rank = 1, .size = 2};
    test::Probe probe(nn::Options{.gen = Generator(1), .device = Device::cpu()});
    data::DataLoader data = test::loader(20, 4);
    Trainer trainer(with(noting));
    trainer.fit(probe, {.train = data});
    CHECK(trainer.total_batch_idx() == 0);
    CHECK(trainer.stop_requested() == (others.stop != 0));
  }
  const auto noting = std::make_shared<Noting>();
  noting->others = {.signal = 15};
  noting->at = {.rank = 1, .size = 2};
  test::Probe probe(nn::Options{.gen = Generator(1), .device = Device::cpu()});
  data::DataLoader data = test::loader(20, 4);
  Trainer trainer(with(noting));
  CHECK_THROWS_AS(trainer.fit(probe, {.train = data}), InterruptedError);
  CHECK(trainer.stop_signal() == 15);
  CHECK(noting->interrupts == 1);
  CHECK(noting->failure == "");
}

TEST_CASE("an error of a stage reaches its strategy, and a step without a loss is an error with several ranks") {
  struct Lossless final : TrainModuleOf<Lossless, test::Probe> {
    using TrainModuleOf<Lossless, test::Probe>::TrainModuleOf;
    StepOutput training_step(const Batch&, std::int64_t) override { return {}; }
  };
  const auto noting = std::make_shared<Noting>();
  noting->at = {.rank = 0, .size = 2};
  Lossless module(nn::Options{.gen = Generator(1), .device = Device::cpu()});
  data::DataLoader data = test::loader(20, 4);
  Trainer trainer(with(noting));
  CHECK_THROWS_AS(trainer.fit(module, {.train = data}), StateError);
  CHECK(contains(noting->failure, "training_step returned nothing, and the other 1 ranks wait"));
  CHECK(noting->asked.back() == "detach");
}

TEST_CASE("ranks are those of the strategy, and only rank 0 has loggers") {
  const auto noting = std::make_shared<Noting>();
  noting->at = {.rank = 3, .size = 4, .local_rank = 1, .local_size = 2, .node = 1, .nodes = 2};
  TrainerOptions options = with(noting);
  const test::TemporaryFolder folder;
  options.logger = std::make_shared<CsvLogger>(CsvLoggerOptions{.save_dir = folder.path()});
  options.enable_progress_bar = true;
  test::Probe probe(nn::Options{.gen = Generator(1), .device = Device::cpu()});
  data::DataLoader data = test::loader(8, 4);
  Trainer trainer(std::move(options));
  trainer.fit(probe, {.train = data});
  CHECK(trainer.global_rank() == 3);
  CHECK(trainer.local_rank() == 1);
  CHECK(trainer.node_rank() == 1);
  CHECK(trainer.world_size() == 4);
  CHECK_FALSE(trainer.is_global_zero());
  CHECK(trainer.loggers().empty());
  for (const auto& c : trainer.callbacks()) CHECK(c->kind() != Callback::Kind::progress_bar);
}
