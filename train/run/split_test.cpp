// A module that places its parts on several devices itself: Note [A module on several devices].
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "levin/nn/data_parallel.h"
#include "tests/warnings.h"
#include "train/run/fixture_test.h"

using namespace levin;

namespace {

// fc1 on the CPU, fc2 on `second`.
struct Split final : TrainModuleOf<Split> {
  Split(nn::Options options, Device second) : TrainModuleOf(std::move(options)), second_(second) { fc2.to(second); }
  nn::Linear fc1{*this, "fc1", {.in = 2, .out = 16}};
  nn::Linear fc2{*this, "fc2", {.in = 16, .out = 1}};
  std::vector<Device> batches;
  Tensor operator()(const Tensor& x) const { return fc2(tanh(fc1(x)).to(second_)); }
  StepOutput training_step(const Batch& b, std::int64_t) override {
    batches.push_back(b[0].device());
    return test::squared_error((*this)(b[0]), b[1].to(second_));
  }
  void validation_step(const Batch& b, std::int64_t, std::int64_t) override {
    log("val_loss", test::squared_error((*this)(b[0]), b[1].to(second_)));
  }
  OptimizerConfig configure_optimizers() override {
    return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.05})}};
  }

 private:
  Device second_;
};

struct Result {
  std::vector<float> weights;
  double val_loss = 0;
  CopyCounts copies{};
};
Result trained(Device second, const std::string& accelerator) {
  Split net({.gen = Generator(3), .device = Device::cpu()}, second);
  TrainerOptions options = test::silent();
  options.max_epochs = 2;
  options.gradient_clip_val = 0.4;
  options.accelerator = accelerator;
  Trainer trainer(std::move(options));
  data::DataLoader data = test::loader(20, 4), val = test::loader(8, 4);
  trainer.fit(net, {.train = data, .val = val});
  CHECK(net.fc1.weight.device() == Device::cpu());
  CHECK(net.fc2.weight.device() == second);
  CHECK(std::all_of(net.batches.begin(), net.batches.end(), [](Device d) { return d == Device::cpu(); }));
  return {test::weights_of(net), trainer.callback_metrics().at(0).second, trainer.copy_report().newest};
}

}  // namespace

TEST_CASE("a module on two CPU devices trains as on one, and its crossings are said and counted") {
  const Result whole = trained(Device::cpu(), "auto");
  CHECK(whole.copies == CopyCounts{});
  test::Warnings said;
  const Result split = trained(Device::cpu(1), "auto");
  CHECK(split.weights == whole.weights);
  CHECK(split.val_loss == whole.val_loss);
  // A batch: the activation [4, 16] and the target [4, 1] forward, the activation's gradient backward.
  CHECK(split.copies == CopyCounts{.between = 3, .between_bytes = 4 * (64 + 4 + 64)});
  CHECK(said.count("I-TRAIN-SPLIT") == 1);
}

TEST_CASE("the summary says how many bytes of a split module lie on each device") {
  const Split net({.gen = Generator(3), .device = Device::cpu()}, Device::cpu(2));
  const std::string table = summarize(net);
  CHECK(table.find("65 parameters in all, 260 bytes\n  192 bytes of them on cpu\n  68 bytes of them on cpu:2\n") !=
        std::string::npos);
}

TEST_CASE("batches of a split module go to the device of its first parameter") {
  struct Late final : TrainModuleOf<Late> {
    explicit Late(nn::Options options) : TrainModuleOf(std::move(options)) { fc2.to(Device::cpu()); }
    nn::Linear fc1{*this, "fc1", {.in = 2, .out = 4}};
    nn::Linear fc2{*this, "fc2", {.in = 4, .out = 1}};
    StepOutput training_step(const Batch& b, std::int64_t) override {
      CHECK(b[0].device() == Device::cpu(1));
      return test::squared_error(fc2(fc1(b[0]).to(Device::cpu())), b[1].to(Device::cpu()));
    }
    OptimizerConfig configure_optimizers() override {  // names the second device's parameters first
      std::vector<ParamRef> all = parameters();
      std::reverse(all.begin(), all.end());
      return {.optimizers = {std::make_shared<optim::SGD>(std::move(all), optim::SGDOptions{.lr = 0.05})}};
    }
  };
  Late net({.gen = Generator(3), .device = Device::cpu(1)});
  TrainerOptions options = test::silent();
  options.max_steps = 2;
  Trainer trainer(std::move(options));
  data::DataLoader data = test::loader(20, 4);
  trainer.fit(net, {.train = data});
  CHECK(trainer.global_step() == 2);
}

TEST_CASE("a module of two parts, each on devices of its own, trains as on one device") {
  const auto trained_on = [](std::vector<Device> encoder, std::vector<Device> decoder) {
    struct Mixed final : TrainModuleOf<Mixed> {
      Mixed(nn::Options options, const std::vector<Device>& first, const std::vector<Device>& second)
          : TrainModuleOf(std::move(options)),
            next(second.front()),
            encoder(*this, "encoder", first, {.in = 2, .out = 16}),
            decoder(*this, "decoder", second, {.in = 16, .out = 1}) {}
      Device next;
      nn::DataParallel<nn::Linear> encoder, decoder;
      StepOutput training_step(const Batch& b, std::int64_t) override {
        return test::squared_error(decoder(tanh(encoder(b[0])).to(next)), b[1].to(next));
      }
      OptimizerConfig configure_optimizers() override {
        return {.optimizers = {std::make_shared<optim::SGD>(parameters(), optim::SGDOptions{.lr = 0.05})}};
      }
    };
    Mixed net({.gen = Generator(3), .device = Device::cpu()}, encoder, decoder);
    const test::Warnings said;
    TrainerOptions options = test::silent();
    options.max_epochs = 2;
    Trainer trainer(std::move(options));
    data::DataLoader data = test::loader(23, 5);
    trainer.fit(net, {.train = data});
    CHECK(net.encoder.module().weight.device() == encoder.front());
    CHECK(net.decoder.module().weight.device() == decoder.front());
    CHECK(said.count("I-TRAIN-SPLIT") == (encoder.front() == decoder.front() ? 0 : 1));
    return test::weights_of(net);
  };
  const std::vector<float> one = trained_on({Device::cpu()}, {Device::cpu()}),
                           mixed = trained_on({Device::cpu(), Device::cpu(1)}, {Device::cpu(2), Device::cpu(3)});
  REQUIRE(one.size() == mixed.size());
  for (std::size_t i = 0; i < one.size(); ++i) CHECK(std::abs(one[i] - mixed[i]) <= 1e-5f);
}
