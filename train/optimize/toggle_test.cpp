#include <doctest/doctest.h>

#include <functional>
#include <stdexcept>

#include "train/run/fixture_test.h"

using namespace levin;
using namespace levin::test;

namespace {

// A generator and a discriminator that train against each other on points of the plane, and note what happens.
struct Gan : TrainModuleOf<Gan> {
  using TrainModuleOf::TrainModuleOf;
  nn::Linear g1{*this, "g1", {.in = 2, .out = 4}};
  nn::Linear g2{*this, "g2", {.in = 4, .out = 2}};
  nn::Linear d1{*this, "d1", {.in = 2, .out = 4}};
  nn::Linear d2{*this, "d2", {.in = 4, .out = 1}};
  std::int64_t window = 2;
  std::vector<std::int64_t> stepped_after;                  // batches
  std::function<void(OptimizerHandle& d)> while_d_toggled;  // after its backward

  std::vector<ParamRef> parts(nn::Linear& a, nn::Linear& b) {
    std::vector<ParamRef> all = a.parameters();
    for (ParamRef& p : b.parameters()) {
      p.name = "second." + p.name;  // layers repeat names, and an optimizer needs each once
      all.push_back(std::move(p));
    }
    return all;
  }
  [[nodiscard]] bool automatic_optimization() const override { return false; }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::SGD>(parts(g1, g2), optim::SGDOptions{.lr = 0.1}),
                           std::make_shared<optim::SGD>(parts(d1, d2), optim::SGDOptions{.lr = 0.1})}};
  }
  Tensor judge(const Tensor& x) { return d2(tanh(d1(x))); }
  StepOutput training_step(const Batch& b, std::int64_t batch_idx) override {
    const Tensor made = g2(tanh(g1(b[0])));
    const bool closes = (batch_idx + 1) % window == 0 || trainer().is_last_batch();
    OptimizerHandle &g = optimizers()[0], &d = optimizers()[1];
    {
      const ToggledModel toggled = d.toggle_model(closes ? SyncGrad::yes : SyncGrad::no);
      manual_backward(mean(square(judge(b[0]) - 1)) + mean(square(judge(made.detach()))));
      if (while_d_toggled) while_d_toggled(d);
      if (closes) d.step(), d.zero_grad();
    }
    {
      const ToggledModel toggled = g.toggle_model();
      manual_backward(mean(square(judge(made) - 1)));
      if (closes) g.step(), g.zero_grad();
    }
    if (closes) stepped_after.push_back(batch_idx + 1);
    return {};
  }
  // Whether each parameter requires gradients, g1's and g2's first.
  [[nodiscard]] std::vector<int> flags() const {
    std::vector<int> all;
    for (const nn::Linear* l : {&g1, &g2, &d1, &d2}) {
      all.push_back(l->weight.requires_grad());
      all.push_back(l->bias.requires_grad());
    }
    return all;
  }
};

// Five batches.
struct Run {
  Generator gen{3};
  Gan gan{{.gen = gen, .device = Device::cpu()}};
  data::DataLoader data = loader(20, 4);
  Trainer trainer{[] {
    TrainerOptions options = silent();
    options.max_epochs = 1;
    return options;
  }()};
  void fit() { trainer.fit(gan, {.train = data}); }
};

const std::vector<int> kAll(8, 1);

}  // namespace

TEST_CASE("two optimizers with a window of two batches step after batches 2, 4 and 5, and each step counts") {
  Run run;
  const std::vector<float> before = weights_of(run.gan);
  run.fit();
  CHECK(run.gan.stepped_after == std::vector<std::int64_t>{2, 4, 5});
  CHECK(run.trainer.global_step() == 6);
  CHECK(run.trainer.total_batch_idx() == 5);
  const std::vector<float> after = weights_of(run.gan);
  for (std::size_t i = 0; i < after.size(); ++i) CHECK(after[i] != before[i]);
}

TEST_CASE("while the discriminator is toggled no parameter of the generator gets a gradient, and its own do") {
  Run run;
  int looked = 0;
  run.gan.window = 1;
  run.gan.while_d_toggled = [&](OptimizerHandle&) {
    ++looked;
    CHECK(run.gan.flags() == std::vector<int>{0, 0, 0, 0, 1, 1, 1, 1});
    for (const nn::Linear* l : {&run.gan.g1, &run.gan.g2}) {
      CHECK_FALSE(l->weight.grad().defined());
      CHECK_FALSE(l->bias.grad().defined());
    }
    for (const nn::Linear* l : {&run.gan.d1, &run.gan.d2}) {
      CHECK(l->weight.grad().defined());
      CHECK(l->bias.grad().defined());
    }
  };
  run.fit();
  CHECK(looked == 5);
  CHECK(run.gan.flags() == kAll);
}

TEST_CASE(
    "a leaf that is switched off when backward reaches it receives nothing, though its graph was recorded with it on") {
  Generator gen(3);
  Gan gan({.gen = gen, .device = Device::cpu()});
  const Tensor x = randn({4, 2}, gen, Device::cpu()), y = gan.judge(gan.g2(tanh(gan.g1(x))));
  for (const nn::Linear* l : {&gan.g1, &gan.g2}) {
    for (Tensor p : {Tensor(l->weight), Tensor(l->bias)}) p.requires_grad_(false);
  }
  backward(sum(y), {.retain_graph = true});
  CHECK_FALSE(gan.g1.weight.grad().defined());
  CHECK_FALSE(gan.g2.bias.grad().defined());
  CHECK(gan.d1.weight.grad().defined());
  // Flags that are restored before backward: it receives gradients again.
  for (Tensor p : {Tensor(gan.g1.weight), Tensor(gan.g2.bias)}) p.requires_grad_(true);
  backward(sum(y));
  CHECK(gan.g1.weight.grad().defined());
  CHECK(gan.g2.bias.grad().defined());
  CHECK_FALSE(gan.g1.bias.grad().defined());
  CHECK_FALSE(gan.g2.weight.grad().defined());
}

TEST_CASE("an exception while a model is toggled leaves all flags as they were, and the next run can toggle") {
  Run run;
  run.gan.while_d_toggled = [](OptimizerHandle&) { throw std::runtime_error("planted"); };
  CHECK_THROWS_WITH(run.fit(), "planted");
  CHECK(run.gan.flags() == kAll);
  run.gan.while_d_toggled = nullptr;
  CHECK_NOTHROW(run.fit());
}

TEST_CASE("a layer that the user froze is frozen before, in and after a toggle") {
  Run run;
  for (const ParamRef& p : run.gan.g1.parameters()) p.value->requires_grad_(false);
  std::vector<int> frozen = kAll;
  frozen[0] = frozen[1] = 0;
  const std::vector<float> before = run.gan.g1.weight.to_vector<float>();
  int looked = 0;
  struct Look : Callback {
    std::function<void()> f;
    void on_train_batch_end(const StepInfo&) override { f(); }
  };
  const auto look = std::make_shared<Look>();
  look->f = [&] {
    ++looked;
    CHECK(run.gan.flags() == frozen);
  };
  run.gan.while_d_toggled = [&](OptimizerHandle&) {
    CHECK(run.gan.flags() == std::vector<int>{0, 0, 0, 0, 1, 1, 1, 1});
  };
  TrainerOptions options = silent();
  options.max_epochs = 1;
  options.callbacks = {look};
  Trainer trainer(options);
  trainer.fit(run.gan, {.train = run.data});
  CHECK(looked == 5);
  CHECK(run.gan.flags() == frozen);
  CHECK(run.gan.g1.weight.to_vector<float>() == before);
}

TEST_CASE("a toggle inside of a toggle is a StateError that names both optimizers") {
  Run run;
  run.gan.while_d_toggled = [&](OptimizerHandle&) { (void)run.gan.optimizers()[0].toggle_model(); };
  CHECK_THROWS_WITH_AS(run.fit(), doctest::Contains("optimizer 0 (sgd) while optimizer 1 (sgd)"), StateError);
  CHECK(run.gan.flags() == kAll);
}

TEST_CASE("a parameter of two optimizers goes with the active one, and one of none is left alone") {
  struct Shared : TrainModuleOf<Shared> {
    using TrainModuleOf::TrainModuleOf;
    nn::Linear a{*this, "a", {.in = 2, .out = 2, .bias = false}};
    nn::Linear both{*this, "both", {.in = 2, .out = 2, .bias = false}};
    nn::Linear none{*this, "none", {.in = 2, .out = 1, .bias = false}};
    nn::Linear b{*this, "b", {.in = 2, .out = 2, .bias = false}};
    std::vector<int> in_first, in_second;
    [[nodiscard]] bool automatic_optimization() const override { return false; }
    OptimizerConfig configure_optimizers() override {
      const auto sgd = [](std::vector<ParamRef> x, std::vector<ParamRef> y) {
        x.push_back(y[0]);
        x.back().name = "both." + y[0].name;
        return std::make_shared<optim::SGD>(x, optim::SGDOptions{.lr = 0.1});
      };
      return {.optimizers = {sgd(a.parameters(), both.parameters()), sgd(b.parameters(), both.parameters())}};
    }
    [[nodiscard]] std::vector<int> flags() const {
      return {a.weight.requires_grad(), both.weight.requires_grad(), none.weight.requires_grad(),
              b.weight.requires_grad()};
    }
    StepOutput training_step(const Batch& batch, std::int64_t) override {
      const Tensor y = sum(none(b(both(a(batch[0])))));
      {
        const ToggledModel toggled = optimizers()[0].toggle_model();
        in_first = flags();
      }
      {
        ToggledModel toggled = optimizers()[1].toggle_model();
        const ToggledModel moved = std::move(toggled);
        in_second = flags();
      }
      manual_backward(y);
      return {};
    }
  };
  Generator gen(1);
  Shared net({.gen = gen, .device = Device::cpu()});
  data::DataLoader data = loader(4, 4);
  TrainerOptions options = silent();
  options.max_epochs = 1;
  Trainer trainer(options);
  trainer.fit(net, {.train = data});
  CHECK(net.in_first == std::vector<int>{1, 1, 1, 0});
  CHECK(net.in_second == std::vector<int>{0, 1, 1, 1});
  CHECK(net.flags() == std::vector<int>{1, 1, 1, 1});
  // Flags that are restored before backward: all received gradients.
  CHECK(net.a.weight.grad().defined());
}

TEST_CASE("with one optimizer a toggle changes nothing, also inside of another") {
  struct One : TrainModuleOf<One> {
    using TrainModuleOf::TrainModuleOf;
    nn::Linear used{*this, "used", {.in = 2, .out = 1}};
    nn::Linear other{*this, "other", {.in = 2, .out = 1}};
    bool on = true;
    [[nodiscard]] bool automatic_optimization() const override { return false; }
    OptimizerConfig configure_optimizers() override {
      return {.optimizers = {std::make_shared<optim::SGD>(used.parameters(), optim::SGDOptions{.lr = 0.1})}};
    }
    StepOutput training_step(const Batch&, std::int64_t) override {
      const ToggledModel a = optimizers()[0].toggle_model(), b = optimizers()[0].toggle_model();
      on = on && used.weight.requires_grad() && other.weight.requires_grad();
      return {};
    }
  };
  Generator gen(1);
  One net({.gen = gen, .device = Device::cpu()});
  data::DataLoader data = loader(4, 4);
  TrainerOptions options = silent();
  options.max_epochs = 1;
  Trainer trainer(options);
  CHECK_NOTHROW(trainer.fit(net, {.train = data}));
  CHECK(net.on);
}

TEST_CASE(
    "toggle_optimizer and untoggle_optimizer do what the scope does, and a fit that ends in between mends the flags") {
  struct ByCalls : TrainModuleOf<ByCalls, Gan> {
    using TrainModuleOf::TrainModuleOf;
    bool fails = false;
    std::vector<int> between, behind;
    StepOutput training_step(const Batch& b, std::int64_t) override {
      OptimizerHandle &g = optimizers()[0], &d = optimizers()[1];
      toggle_optimizer(d);
      between = flags();
      CHECK_THROWS_AS(toggle_optimizer(g), StateError);
      CHECK_THROWS_AS(untoggle_optimizer(g), StateError);
      if (fails) throw std::runtime_error("planted");
      manual_backward(mean(square(judge(b[0]) - 1)));
      untoggle_optimizer(d);
      untoggle_optimizer(d);  // a second call does nothing
      behind = flags();
      return {};
    }
  } gan({.gen = Generator(3), .device = Device::cpu()});
  gan.g1.bias.requires_grad_(false);  // frozen by the user
  const std::vector<int> before = gan.flags();
  data::DataLoader data = loader(4, 4);
  TrainerOptions options = silent();
  options.max_epochs = 1;
  Trainer trainer(options);
  trainer.fit(gan, {.train = data});
  CHECK(gan.between == std::vector<int>{0, 0, 0, 0, 1, 1, 1, 1});
  CHECK(gan.behind == before);
  gan.fails = true;
  trainer.options().max_epochs = 2;
  CHECK_THROWS_WITH(trainer.fit(gan, {.train = data}), "planted");
  CHECK(gan.flags() == before);
}
