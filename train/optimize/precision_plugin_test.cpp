// Precisions of users: levin/train/precision_plugin.h.
#include "levin/train/precision_plugin.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "levin/autograd.h"
#include "levin/train/ddp_strategy.h"
#include "tests/skip.h"
#include "tests/temporary.h"
#include "tests/warnings.h"
#include "train/data/rank_fixture_test.h"
#include "train/run/probe_test.h"

using namespace levin;
using namespace levin::test;

namespace {

struct Two : TrainModuleOf<Two> {
  explicit Two(Device device = Device::cpu()) : TrainModuleOf(nn::Options{.gen = Generator(5), .device = device}) {}
  nn::Linear fc1{*this, "fc1", {.in = 2, .out = 8}};
  nn::Linear fc2{*this, "fc2", {.in = 8, .out = 1}};
  std::int64_t infinite_at = -1;
  Tensor operator()(const Tensor& x) const { return fc2(tanh(fc1(x))); }
  StepOutput training_step(const Batch& b, std::int64_t i) override {
    const Tensor loss = mean(square((*this)(b[0]) - b[1]));
    return i == infinite_at ? loss * std::numeric_limits<double>::infinity() : loss;
  }
  Tensor predict_step(const Batch& b, std::int64_t, std::int64_t) override { return (*this)(b[0]); }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1, .momentum = 0.9})}};
  }
};

using Plugin = std::shared_ptr<PrecisionPlugin>;

// 64-true, made by a user.
struct Doubled : PrecisionPlugin {
  std::string name() const override { return "doubled"; }
  void convert_module(nn::Module* module, Device) override {
    if (module) module->to(DType::f64);
  }
  Tensor convert_input(Tensor field) override { return is_float(field.dtype()) ? field.to(DType::f64) : field; }
};

std::vector<double> values_of(const nn::Module& net) {
  std::vector<double> all;
  for (const auto& [name, t] : net.state_dict()) {
    const Tensor wide = t.to(DType::f64);
    const std::vector<double> values = wide.to_vector<double>();
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}
std::vector<double> trained(TrainerOptions options, Two& net) {
  data::DataLoader data = loader(40, 8);
  Trainer(std::move(options)).fit(net, {.train = data});
  return values_of(net);
}
TrainerOptions with(const Plugin& plugin, const std::string& precision = "") {
  TrainerOptions options = silent();
  options.max_epochs = 4;
  options.precision = precision;
  options.plugins.precision = plugin;
  return options;
}
std::vector<double> trained(const Plugin& plugin, const std::string& precision = "") {
  Two net;
  return trained(with(plugin, precision), net);
}

}  // namespace

TEST_CASE("a PrecisionPlugin is called at its places of a fit and an evaluation, in order") {
  struct Noting final : PrecisionPlugin {
    Words words;
    std::string name() const override { return "noting"; }
    void convert_module(nn::Module* module, Device) override {
      words.emplace_back(module ? "convert_module" : "no module");
    }
    std::optional<optim::GradScalerOptions> grad_scaler() override { return {}; }
    void setup_optimizer(optim::Optimizer&) override { words.emplace_back("setup_optimizer"); }
    Tensor convert_input(Tensor field) override {
      words.emplace_back("convert_input");
      return field;
    }
    void forward_context(const Function<void()>& forward) override {
      words.emplace_back("forward {");
      forward();
      words.emplace_back("}");
    }
    Tensor convert_output(Tensor output) override {
      CHECK_FALSE((output * 2.0).requires_grad());
      words.emplace_back("convert_output");
      return output;
    }
    Tensor pre_backward(Tensor loss) override {
      CHECK(loss.requires_grad());
      words.emplace_back("pre_backward");
      return loss;
    }
    void before_step(optim::Optimizer& o) override {
      CHECK(o.parameters().front().value->grad().defined());
      words.emplace_back("before_step");
    }
    void after_step(optim::Optimizer&) override { words.emplace_back("after_step"); }
  };
  const auto plugin = std::make_shared<Noting>();
  TrainerOptions options = with(plugin);
  options.max_epochs = 1;
  options.accumulate_grad_batches = 2;
  Trainer trainer(options);
  Probe probe(nn::Options{.gen = Generator(1), .device = Device::cpu()});
  data::DataLoader data = ramp(2), val = ramp(1);
  trainer.fit(probe, {.train = data, .val = val});
  const Words of_fit{"convert_module", "setup_optimizer",                                         //
                     "convert_input",  "forward {",       "}", "pre_backward", "convert_output",  //
                     "convert_input",  "forward {",       "}", "pre_backward", "convert_output",  //
                     "before_step",    "after_step",                                              //
                     "convert_input",  "forward {",       "}"};
  CHECK(plugin->words == of_fit);
  plugin->words.clear();
  Two net;
  data::DataLoader one = loader(4, 4);
  (void)trainer.predict(net, one);
  const std::size_t input = 2;  // fields
  Words of_predict{"convert_module"};
  of_predict.insert(of_predict.end(), input, "convert_input");
  of_predict.insert(of_predict.end(), {"forward {", "convert_output", "}"});
  CHECK(plugin->words == of_predict);
}

TEST_CASE("a user's precision trains to the bits of the built-in mode that does the same, on ranks too") {
  CHECK(trained(std::make_shared<Doubled>()) == trained({}, "64-true"));
  CHECK(trained(std::make_shared<Doubled>()) != trained({}, "32-true"));
  const auto ranks = [](bool own) {
    std::vector<std::vector<double>> all(2);
    dist::run_local(2, [&](const std::shared_ptr<dist::ProcessGroup>& group) {
      TrainerOptions options = own ? with(std::make_shared<Doubled>()) : with({}, "64-true");
      options.strategy = std::make_shared<DdpStrategy>(DdpOptions{.process = {.group = group}});
      Two net;
      all[static_cast<std::size_t>(group->rank())] = trained(std::move(options), net);
    });
    CHECK(all[0] == all[1]);
    return all[0];
  };
  CHECK(ranks(true) == ranks(false));
}

TEST_CASE("a user's precision under autocast trains to the bits of bf16-mixed") {
  struct Lower final : PrecisionPlugin {
    std::string name() const override { return "lower"; }
    void forward_context(const Function<void()>& forward) override {
      const Autocast on(DType::bf16);
      forward();
    }
  };
  CHECK(trained(std::make_shared<Lower>()) == trained({}, "bf16-mixed"));
  CHECK(trained(std::make_shared<Lower>()) != trained({}));
}

TEST_CASE("a user's precision may round the weights after each step, also in a captured one") {
  struct Rounded final : PrecisionPlugin {
    std::string name() const override { return "rounded"; }
    void after_step(optim::Optimizer& optimizer) override {
      for (const ParamRef& p : optimizer.model_parameters()) copy_(*p.value, round(p.value->detach() * 64.0) / 64.0);
    }
  };
  Two net;
  const auto loss = [&net] {
    const NoGrad off;
    double sum = 0;
    for (const Batch& b : loader(40, 40)) sum += squared_error(net(b[0]), b[1]).item<float>();
    return sum;
  };
  const double before = loss();
  TrainerOptions options = with(std::make_shared<Rounded>());
  options.max_epochs = 20;
  for (const double w : trained(options, net)) CHECK(w * 64 == std::round(w * 64));
  CHECK(loss() < before / 2);
  if (device_count(DeviceType::simt) == 0) return skip("no simt in this build");
  std::vector<std::vector<double>> all;
  for (const Capture capture : {Capture::off, Capture::step}) {
    Two there(Device::simt());
    options.capture = capture;
    options.max_epochs = 3;
    all.push_back(trained(options, there));
  }
  CHECK(all[0] == all[1]);
  for (const double w : all[1]) CHECK(w * 64 == std::round(w * 64));
}

TEST_CASE("a loss scale of a user's precision is that of the run, or multiplied and divided by itself") {
  struct Scaled : PrecisionPlugin {
    std::string name() const override { return "scaled"; }
    std::optional<optim::GradScalerOptions> grad_scaler() override {
      return optim::GradScalerOptions{.init_scale = 1024};
    }
  };
  struct ByHand final : PrecisionPlugin {
    std::string name() const override { return "by hand"; }
    Tensor pre_backward(Tensor loss) override { return loss * 1024.0; }
    void before_step(optim::Optimizer& optimizer) override {
      for (const ParamRef& p : optimizer.parameters()) p.value->set_grad(p.value->grad().detach() / 1024.0);
    }
  };
  // A power of two changes no bits.
  const std::vector<double> plain = trained({});
  CHECK(trained(std::make_shared<Scaled>()) == plain);
  CHECK(trained(std::make_shared<ByHand>()) == plain);
  Two net;
  net.infinite_at = 2;
  data::DataLoader data = loader(40, 8);
  TrainerOptions options = with(std::make_shared<Scaled>());
  options.max_epochs = 1;
  Trainer trainer(options);
  trainer.fit(net, {.train = data});
  CHECK(trainer.skipped_steps() == 1);
  for (const double w : values_of(net)) CHECK(std::isfinite(w));
}

TEST_CASE("checkpoints keep the state of a user's precision") {
  struct Counting final : PrecisionPlugin {
    Tensor steps = zeros({}, Device::cpu(), DType::i64);
    std::string name() const override { return "counting"; }
    void after_step(optim::Optimizer&) override { steps = steps + 1; }
    NamedTensors state_dict() override { return {{"steps", steps}}; }
    void load_state_dict(const NamedTensors& state) override {
      REQUIRE(state.size() == 1);
      CHECK(state[0].first == "steps");
      steps = state[0].second.clone();
    }
  };
  const TemporaryFolder folder;
  const std::string file = folder / "one.safetensors";
  data::DataLoader data = loader(40, 8);
  const auto first = std::make_shared<Counting>(), second = std::make_shared<Counting>();
  TrainerOptions options = with(first);
  options.max_epochs = 1;
  Two net;
  Trainer trainer(options);
  trainer.fit(net, {.train = data});
  trainer.save_checkpoint(file);
  CHECK(first->steps.item<std::int64_t>() == 5);
  options = with(second);
  options.max_epochs = 2;
  Two again;
  Trainer(options).fit(again, {.train = data, .ckpt_path = file});
  CHECK(second->steps.item<std::int64_t>() == 10);
  Two plain;  // a run without the plug-in takes the rest
  options = with({});
  options.max_epochs = 2;
  {
    const ExpectedWarnings told{"W-CKPT-PRECISION"};
    Trainer(options).fit(plain, {.train = data, .ckpt_path = file});
  }
  CHECK(values_of(plain) == values_of(again));
}

TEST_CASE("a PrecisionPlugin beside the options that say the same is refused, and one that runs no step") {
  const auto made = [](auto&& change) {
    TrainerOptions options = with(std::make_shared<Doubled>());
    change(options);
    Trainer trainer(options);
  };
  CHECK_THROWS_WITH_AS(made([](TrainerOptions& o) { o.precision = "32-true"; }),
                       doctest::Contains("precision is \"32-true\" and plugins has a PrecisionPlugin, doubled"),
                       ConfigError);
  CHECK_THROWS_WITH_AS(made([](TrainerOptions& o) { o.amp_level = "O2"; }),
                       doctest::Contains("amp_level is \"O2\" and plugins has a PrecisionPlugin"), ConfigError);
  CHECK_THROWS_WITH_AS(made([](TrainerOptions& o) { o.grad_scaler.emplace(); }),
                       doctest::Contains("grad_scaler is given and plugins has a PrecisionPlugin"), ConfigError);
  CHECK_NOTHROW(made([](TrainerOptions&) {}));
  struct Forgets final : PrecisionPlugin {
    std::string name() const override { return "forgets"; }
    void forward_context(const Function<void()>&) override {}
  };
  CHECK_THROWS_WITH_AS(trained(std::make_shared<Forgets>()),
                       doctest::Contains("forward_context of forgets did not call forward"), StateError);
  TrainerOptions options = with(std::make_shared<Doubled>());
  Trainer trainer(options);
  trainer.options().plugins.precision = std::make_shared<Forgets>();
  Two net;
  data::DataLoader data = loader(8, 8);
  CHECK_THROWS_WITH_AS(trainer.fit(net, {.train = data}), doctest::Contains("plugins"), ConfigError);
}
