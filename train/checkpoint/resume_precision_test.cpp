// A checkpoint of another float precision, or of a module with other layers.
#include <doctest/doctest.h>

#include <map>

#include "levin/train/averaging.h"
#include "tests/warnings.h"
#include "train/run/fixture_test.h"

using namespace levin;
using namespace levin::test;

namespace {

struct Model : TrainModuleOf<Model> {
  Model() : TrainModuleOf({.gen = Generator(3), .device = Device::cpu()}) {}
  nn::Linear fc1{*this, "fc1", {.in = 2, .out = 8}};
  nn::Linear fc2{*this, "fc2", {.in = 8, .out = 1}};
  std::shared_ptr<optim::Adam> optimizer;
  StepOutput training_step(const Batch& b, std::int64_t) override { return squared_error(fc2(tanh(fc1(b[0]))), b[1]); }
  void test_step(const Batch& b, std::int64_t, std::int64_t) override {
    log("test_loss", squared_error(fc2(tanh(fc1(b[0]))), b[1]));
  }
  OptimizerConfig configure_optimizers() override {
    optimizer = std::make_shared<optim::Adam>(parameters(), optim::AdamOptions{.lr = 0.02});
    return {.optimizers = {optimizer}};
  }
};

void fit(Model& model, const std::string& precision, std::int64_t epochs, const std::string& from,
         const std::string& file = {}) {
  TrainerOptions options = silent();
  options.max_epochs = epochs;
  options.precision = precision;
  data::DataLoader train = loader(24, 4);
  Trainer trainer(options);
  trainer.fit(model, {.train = train, .ckpt_path = from});
  CHECK(trainer.global_step() == 6 * epochs);
  if (!file.empty()) trainer.save_checkpoint(file);
}
std::map<std::string, Tensor> entries(const std::string& file) {
  std::map<std::string, Tensor> all;
  for (const auto& [name, t] : load_safetensors(file).tensors) all.emplace(name, t);
  return all;
}

}  // namespace

TEST_CASE("a checkpoint of another float precision is converted, weights and the optimizer's state") {
  const TemporaryFolder dir;
  for (const std::string from : {"32-true", "64-true", "bf16-true", "16-o2"}) {
    const std::string file = dir / (from + ".safetensors");
    {
      const Warnings quiet;
      Model model;
      fit(model, from, 2, {}, file);
    }
    for (const std::string to : {"32-true", "64-true", "bf16-true", "16-o2"}) {
      CAPTURE(from);
      CAPTURE(to);
      const Warnings warnings;
      Model model;
      const std::string copy = dir / "copy.safetensors";
      fit(model, to, 2, file, copy);
      CHECK(warnings.count("I-CKPT-CONVERTED") == (from != to));
      const DType dtype = to == "32-true"     ? DType::f32
                          : to == "64-true"   ? DType::f64
                          : to == "bf16-true" ? DType::bf16
                                              : DType::f16;
      const auto before = entries(file), after = entries(copy);
      for (const auto& [name, t] : model.state_dict()) {
        CHECK(t.dtype() == dtype);
        // From f16 with masters: the masters are the trained weights.
        const bool wider = itemsize(dtype) > 2 && from == "16-o2";
        const Tensor& source = before.at(wider ? "levin.optimizer.0." + name + ".master" : name);
        CHECK(equal(t, source.to(dtype)));
        CHECK(equal(after.at("levin.optimizer.0." + name + ".exp_avg").to(DType::f32),
                    before.at("levin.optimizer.0." + name + ".exp_avg").to(DType::f32)));
        if (to == "16-o2" && from != "16-o2")
          CHECK(equal(after.at("levin.optimizer.0." + name + ".master"), before.at(name).to(DType::f32)));
      }
      fit(model, to, 3, file);
    }
  }
}

TEST_CASE("the state of an optimizer is refused for f16 parameters without masters, and nothing has changed") {
  const TemporaryFolder dir;
  const Warnings quiet;
  const std::string file = dir / "f32.safetensors";
  Model trained, model, untouched;
  fit(trained, "32-true", 1, {}, file);
  TrainerOptions options = silent();
  options.max_epochs = 2;
  options.precision = "16-true";
  data::DataLoader train = loader(24, 4);
  Trainer trainer(options);
  CHECK_THROWS_WITH_AS(trainer.fit(model, {.train = train, .ckpt_path = file}),
                       doctest::Contains("is f16 here, without an f32 master"), ConfigError);
  CHECK(equal(*model.parameters()[0].value, untouched.parameters()[0].value->to(DType::f16)));
}

TEST_CASE("an evaluation loads the weights of a checkpoint of another float precision") {
  const TemporaryFolder dir;
  const std::string file = dir / "f32.safetensors";
  Model trained;
  fit(trained, "32-true", 1, {}, file);
  data::DataLoader test = loader(24, 4);
  for (const std::string precision : {"64-true", "bf16-true", "16-true"}) {
    CAPTURE(precision);
    const Warnings warnings;
    Model model;
    TrainerOptions options = silent();
    options.precision = precision;
    Trainer trainer(options);
    (void)trainer.test(model, test, {.ckpt_path = file, .verbose = false});
    CHECK(warnings.count("I-CKPT-CONVERTED") == 1);
    for (std::size_t i = 0; i < model.parameters().size(); ++i) {
      const Tensor& here = *model.parameters()[i].value;
      CHECK(equal(here, trained.parameters()[i].value->to(here.dtype())));
    }
  }
}

TEST_CASE("a module changes its layers from the file, and its optimizer is made of them with the file's weights") {
  struct Grows : TrainModuleOf<Grows> {
    Grows() : TrainModuleOf({.gen = Generator(3), .device = Device::cpu()}) {}
    nn::Linear fc{*this, "fc", {.in = 2, .out = 1}};
    std::unique_ptr<nn::Linear> more;
    float seen = 0;
    void grow() { more = std::make_unique<nn::Linear>(*this, "more", nn::LinearOptions{.in = 2, .out = 1}); }
    StepOutput training_step(const Batch& b, std::int64_t) override {
      return squared_error(more ? fc(b[0]) + (*more)(b[0]) : fc(b[0]), b[1]);
    }
    void on_load_checkpoint(CheckpointContent& content) override {
      for (const auto& [name, t] : content.weights) {
        if (name == "more.weight" && !more) grow();
      }
    }
    OptimizerConfig configure_optimizers() override {
      seen = fc.weight.to_vector<float>()[0];
      return {
          .optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.1, .momentum = 0.9})}};
    }
  };
  const TemporaryFolder dir;
  const std::string file = dir / "grown.safetensors";
  data::DataLoader train = loader(24, 4);
  const auto run = [&](Grows& module, std::int64_t epochs, const std::string& from) {
    TrainerOptions options = silent();
    options.max_epochs = epochs;
    Trainer trainer(options);
    trainer.fit(module, {.train = train, .ckpt_path = from});
    if (from.empty() && epochs == 1) trainer.save_checkpoint(file);
  };
  Grows whole, first, resumed;
  whole.grow();
  first.grow();
  run(whole, 2, {});
  run(first, 1, {});
  run(resumed, 2, file);
  CHECK(resumed.seen == first.fc.weight.to_vector<float>()[0]);
  CHECK(weights_of(resumed) == weights_of(whole));
}

TEST_CASE("a module that does not load strictly takes the weights that it has in common with the file") {
  struct Loose : TrainModuleOf<Loose, Model> {
    nn::Linear head{*this, "head", {.in = 8, .out = 3}};
    bool strict = false;
    [[nodiscard]] bool strict_loading() const override { return strict; }
  };
  const TemporaryFolder dir;
  const std::string file = dir / "f32.safetensors";
  Model trained;
  fit(trained, "32-true", 1, {}, file);
  data::DataLoader test = loader(24, 4);
  Loose module;
  const std::vector<float> head = module.head.weight.to_vector<float>();
  Trainer trainer(silent());
  const Warnings warnings;
  (void)trainer.test(module, test, {.ckpt_path = file, .verbose = false});
  CHECK(equal(module.fc1.weight, trained.fc1.weight));
  CHECK(module.head.weight.to_vector<float>() == head);
  CHECK(warnings.count("I-CKPT-NAMES") == 1);
  module.strict = true;
  CHECK_THROWS_WITH_AS((void)trainer.test(module, test, {.ckpt_path = file, .verbose = false}),
                       doctest::Contains("missing in the file: head.weight, head.bias"), ConfigError);
}

TEST_CASE("averages of a module that makes its layers in configure_model are warned of") {
  struct Late : TrainModuleOf<Late, Model> {
    void configure_model() override {}
  };
  for (const bool late : {true, false}) {
    const Warnings warnings;
    TrainerOptions options = silent();
    options.max_steps = 1;
    options.callbacks = {std::make_shared<EmaWeightAveraging>()};
    data::DataLoader train = loader(24, 4);
    Trainer trainer(options);
    Late with;
    Model without;
    trainer.fit(late ? static_cast<TrainModule&>(with) : without, {.train = train});
    CHECK(warnings.count("W-TRAIN-AVERAGE-MODEL") == (late ? 1 : 0));
  }
}
