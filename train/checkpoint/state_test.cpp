// What callbacks and schedules keep in a checkpoint, and what they may do while it is written or read.
#include <doctest/doctest.h>

#include <stdexcept>

#include "levin/train/checkpoint.h"
#include "tests/warnings.h"
#include "train/checkpoint/fixture_test.h"

using namespace levin;
using namespace levin::test;

TEST_CASE("a callback keeps its state across a resume") {
  struct Counter : Callback {
    std::int64_t batches = 0;
    Tensor sum = zeros({2}, Device::cpu());
    Tensors stored{tensor({std::int8_t{-1}, std::int8_t{2}}, Device::cpu()), tensor({std::int16_t{-3}}, Device::cpu())};
    std::string state_key() const override { return "Counter"; }
    void on_train_batch_end(const StepInfo&) override {
      ++batches;
      sum = sum + 1.0;
    }
    CallbackState state() const override {
      return {.values = {{"batches", std::to_string(batches)}},
              .tensors = {{"sum", sum}, {"bytes", stored[0]}, {"shorts", stored[1]}}};
    }
    void load_state(const CallbackState& s) override {
      batches = std::stoll(s.values.at(0).second);
      sum = s.tensors.at(0).second;
      for (const auto& [name, x] : s.tensors) {
        if (name != "sum") stored[name == "bytes" ? 0 : 1] = x;
      }
    }
  };
  const TemporaryFolder dir;
  TrainerOptions options = three_epochs();
  options.max_steps = 7;
  options.callbacks = {std::make_shared<Counter>()};
  Setup first(Rule::sgd, options);
  first.fit();
  std::static_pointer_cast<Counter>(options.callbacks[0])->stored = {
      tensor({std::int8_t{-128}, std::int8_t{127}}, Device::cpu()), tensor({std::int16_t{-32768}}, Device::cpu())};
  first.trainer.save_checkpoint(dir / "c.safetensors");
  auto counter = std::make_shared<Counter>();
  options.max_steps = 9;
  options.callbacks = {counter};
  Setup second(Rule::sgd, options);
  second.fit(dir / "c.safetensors");
  CHECK(counter->batches == 9);
  CHECK(counter->sum.to_vector<float>() == std::vector<float>{9, 9});
  CHECK(counter->stored[0].to_vector<std::int8_t>() == std::vector<std::int8_t>{-128, 127});
  CHECK(counter->stored[1].to_vector<std::int16_t>() == std::vector<std::int16_t>{-32768});
}

TEST_CASE("a fit, an evaluation and a search inside of a save after a fit are refused, and the file is written") {
  struct Model : TrainModuleOf<Model> {
    Model() : TrainModuleOf(nn::Options{.gen = Generator(3), .device = Device::cpu()}) {}
    Net net{*this, "net"};
    StepOutput training_step(const Batch& b, std::int64_t) override { return squared_error(net(b[0]), b[1]); }
    void validation_step(const Batch& b, std::int64_t, std::int64_t) override {
      log("loss", squared_error(net(b[0]), b[1]));
    }
    OptimizerConfig configure_optimizers() override {
      return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1})}};
    }
  };
  struct Nested : Callback {
    Model* model = nullptr;
    data::DataLoader data = loader();
    bool saved = false;
    void on_save_checkpoint(CheckpointContent&) override {
      CHECK_THROWS_AS(trainer().fit(*model, {.train = data}), StateError);
      CHECK_THROWS_AS((void)trainer().validate(*model, data), StateError);
      CHECK_THROWS_AS((void)Tuner(trainer()).scale_batch_size(*model, {.method = "validate"}), StateError);
      saved = true;
    }
  };
  // The second one is asked after the nested calls, and is attached still.
  struct Last : Callback {
    bool was_attached = false;
    void on_save_checkpoint(CheckpointContent&) override { was_attached = attached(); }
  };
  const TemporaryFolder dir;
  Model model;
  data::DataLoader data = loader();
  auto nested = std::make_shared<Nested>();
  auto last = std::make_shared<Last>();
  nested->model = &model;
  TrainerOptions options = silent();
  options.max_steps = 2;
  options.callbacks = {nested, last};
  Trainer trainer(options);
  trainer.fit(model, {.train = data});
  trainer.save_checkpoint(dir / "c.safetensors");
  CHECK(nested->saved);
  CHECK(last->was_attached);
  CHECK(read_checkpoint_info(dir / "c.safetensors").global_step == 2);
  trainer.options().max_steps = 3;
  trainer.fit(model, {.train = data});  // after the save the trainer is free
  CHECK(trainer.global_step() == 3);
}

TEST_CASE("a callback whose state is tensors alone keeps it across a resume") {
  struct Sum : Callback {
    Tensor sum = zeros({2}, Device::cpu());
    std::string state_key() const override { return "Sum"; }
    void on_train_batch_end(const StepInfo&) override { sum = sum + 1.0; }
    CallbackState state() const override { return {.values = {}, .tensors = {{"sum", sum}}}; }
    void load_state(const CallbackState& s) override { sum = s.tensors.at(0).second; }
  };
  const TemporaryFolder dir;
  TrainerOptions options = three_epochs();
  options.max_steps = 7;
  options.callbacks = {std::make_shared<Sum>()};
  Setup first(Rule::sgd, options);
  first.fit();
  first.trainer.save_checkpoint(dir / "c.safetensors");
  const auto sum = std::make_shared<Sum>();
  options.max_steps = 9;
  options.callbacks = {sum};
  Setup second(Rule::sgd, options);
  second.fit(dir / "c.safetensors");
  CHECK(sum->sum.to_vector<float>() == std::vector<float>{9, 9});
}

namespace {

// A state of one value and one tensor, written in place; refuses the value `refused`.
struct Picky : Callback {
  std::string key, value;
  Tensor tensor = zeros({2}, Device::cpu());
  std::string refused;  // the value that load_state refuses
  std::int64_t step_seen = -1;
  Picky(std::string k, std::string v, double x, std::string no = {})
      : key(std::move(k)), value(std::move(v)), refused(std::move(no)) {
    fill_(tensor, x);
  }
  std::string state_key() const override { return key; }
  CallbackState state() const override { return {.values = {{"value", value}}, .tensors = {{"tensor", tensor}}}; }
  void load_state(const CallbackState& s) override {
    step_seen = trainer().global_step();
    value = s.values.at(0).second;
    const NoGrad off;
    copy_(tensor, s.tensors.at(0).second);
    if (value == refused) throw std::runtime_error("a state of another kind");  // after it has changed
  }
};

}  // namespace

TEST_CASE("a callback that refuses its state leaves run, schedules and other callbacks as they were") {
  const TemporaryFolder dir;
  const std::string path = dir / "c.safetensors";
  const auto with = [](std::shared_ptr<Callback> a, std::shared_ptr<Callback> b) {
    TrainerOptions options = three_epochs();
    options.callbacks = {std::move(a), std::move(b)};
    return options;
  };
  TrainerOptions cut = with(std::make_shared<Picky>("a", "old", 1), std::make_shared<Picky>("b", "bad", 2));
  cut.max_steps = 14;
  Setup first(Rule::adam, cut);
  first.fit();
  first.trainer.save_checkpoint(path);

  const auto a = std::make_shared<Picky>("a", "fresh", 7), b = std::make_shared<Picky>("b", "fresh", 8, "bad");
  Setup second(Rule::adam, with(a, b));
  const std::vector<float> weights = weights_of(second.net);
  const double lr = second.opt->lr();
  const auto scheduled = second.schedulers[0].scheduler->state_dict();
  const auto generators = [&] {
    std::vector<std::uint64_t> all;
    for (const auto& [name, g] : second.net.generators()) all.push_back(g->state().offset);
    return all;
  };
  const auto drawn = generators();
  CHECK_THROWS_WITH_AS(second.fit(path), "a state of another kind", std::runtime_error);
  CHECK(weights_of(second.net) == weights);
  CHECK(second.opt->lr() == lr);
  CHECK(second.opt->state_dict().size() == Setup(Rule::adam, three_epochs()).opt->state_dict().size());
  const auto after = second.schedulers[0].scheduler->state_dict();
  for (std::size_t i = 0; i < scheduled.size(); ++i)
    CHECK(content_hash(after[i].first, after[i].second) == content_hash(scheduled[i].first, scheduled[i].second));
  CHECK(generators() == drawn);
  CHECK(second.trainer.global_step() == 0);
  CHECK(second.trainer.current_epoch() == 0);
  CHECK(second.trainer.total_batch_idx() == 0);
  CHECK(second.trainer.resumed_from() == "");
  CHECK(a->step_seen == 0);  // asked before the run changes
  for (const auto& c : {a, b}) {
    CHECK(c->value == "fresh");
    CHECK(c->tensor.to_vector<float>() == std::vector<float>(2, c == a ? 7.f : 8.f));
  }
  // The same objects train as if nothing had been tried.
  second.fit();
  Setup whole(Rule::adam, three_epochs());
  whole.fit();
  CHECK(weights_of(second.net) == weights_of(whole.net));
}

TEST_CASE("a schedule that refuses its state leaves the run as it was") {
  struct Fresh : optim::Scheduler {  // refuses every state but that of the start
    explicit Fresh(optim::Optimizer& o) : Scheduler(o) {}
    double lr_at(int group, std::int64_t) const override { return base(group); }
    void load_state_dict(const NamedTensors& state) override {
      Scheduler::load_state_dict(state);
      if (steps() > 0) fail<ConfigError>("fresh: not this state");
    }
  };
  const TemporaryFolder dir;
  const std::string path = dir / "c.safetensors";
  TrainerOptions options = three_epochs();
  const auto counter = std::make_shared<Picky>("a", "old", 1);
  options.callbacks = {counter};
  options.max_steps = 14;
  Setup first(Rule::sgd, options);
  first.schedulers = {{.scheduler = std::make_shared<Fresh>(*first.opt)}};
  first.fit();
  first.trainer.save_checkpoint(path);

  counter->value = "fresh";
  Setup second(Rule::sgd, options);
  const auto fresh = std::make_shared<Fresh>(*second.opt);
  second.schedulers = {{.scheduler = fresh}};
  const std::vector<float> weights = weights_of(second.net);
  CHECK_THROWS_WITH_AS(second.fit(path), doctest::Contains("not this state"), ConfigError);
  CHECK(weights_of(second.net) == weights);
  CHECK(second.trainer.global_step() == 0);
  CHECK(counter->value == "fresh");
  CHECK(fresh->steps() == 0);
}
