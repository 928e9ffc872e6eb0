// Calls of functions that were never set, and uses of moved-from objects: typed errors, not crashes.
#include <doctest/doctest.h>

#include "levin/levin.h"

using namespace levin;

TEST_CASE("an empty function is refused by name where it is given, and nothing has changed") {
  Tensor w = ones({2}, Device::cpu());
  w.requires_grad_();
  optim::SGD sgd({{&w, "w", nullptr}}, {.lr = 1});
  optim::LBFGS lbfgs({{&w, "w", nullptr}});
  data::DataLoader loader(data::tensor_dataset({ones({2, 2}, Device::cpu())}));
  Trainer trainer({.logger = false, .max_epochs = 1, .enable_checkpointing = false, .enable_progress_bar = false});
  nn::Module module({.gen = Generator(1), .device = Device::cpu()});
  const auto refuses = [](const char* words, const auto& call) {
    CHECK_THROWS_WITH_AS(call(), doctest::Contains(words), ConfigError);
  };
  refuses("fit: the step is empty", [&] { trainer.fit(sgd, loader, {}); });
  refuses("evaluate: the function is empty", [&] { (void)trainer.evaluate(module, loader, {}); });
  refuses("sgd: step() is given an empty closure", [&] { (void)sgd.step(Function<Tensor()>{}); });
  refuses("lbfgs: step() is given an empty closure", [&] { (void)lbfgs.step(Function<Tensor()>{}); });
  refuses("lambda_lr: the factor is empty", [&] { (void)optim::LambdaLR(sgd, {}); });
  refuses("on_gradient_complete: the hook is empty", [&] { (void)on_gradient_complete(w, {}); });
  refuses("checkpoint: the function is empty",
          [&] { (void)checkpoint(Function<Tensors(std::span<const Tensor>)>{}, std::span<const Tensor>(&w, 1)); });
  refuses("the initializer of parameter \"weight\" is empty",
          [&] { (void)module.register_parameter("weight", {2}, nn::Initializer{}); });
  CHECK(module.parameters().empty());
  CHECK(trainer.global_step() == 0);
  CHECK(w.to_vector<float>() == std::vector<float>{1, 1});
}

TEST_CASE("a parameter that points nowhere is refused by the functions that clip, as by optimizers") {
  CHECK_THROWS_WITH_AS((void)optim::clip_grad_norm_({ParamRef{}}, 1), doctest::Contains("is undefined"), ConfigError);
  CHECK_THROWS_WITH_AS(optim::clip_grad_value_({ParamRef{}}, 1), doctest::Contains("is undefined"), ConfigError);
}

TEST_CASE("a loader, its iterator and a scaler that were moved from say so") {
  data::DataLoader loader(data::tensor_dataset({ones({4, 2}, Device::cpu())}));
  data::DataLoader::Iterator it = loader.begin();
  data::DataLoader::Iterator next = std::move(it);
  CHECK_THROWS_WITH_AS(++it, doctest::Contains("moved from"), StateError);
  ++next;
  data::DataLoader other = std::move(loader);
  const auto refuses = [](const auto& call) {
    CHECK_THROWS_WITH_AS(call(), doctest::Contains("moved from"), StateError);
  };
  refuses([&] { (void)loader.size(); });
  refuses([&] { (void)loader.begin(); });
  refuses([&] { (void)loader.options(); });
  refuses([&] { (void)loader.parts(); });
  refuses([&] { (void)loader.state(); });
  refuses([&] { loader.set_epoch(1); });
  refuses([&] { (void)data::combine({{"a", &loader}}); });
  CHECK(other.size() == 4);

  optim::GradScaler scaler;
  optim::GradScaler moved = std::move(scaler);
  refuses([&] { (void)scaler.enabled(); });
  refuses([&] { (void)scaler.scale(Device::cpu()); });
  refuses([&] { scaler.update(); });
  refuses([&] { (void)scaler.state_dict(); });
  refuses([&] { scaler.load_state_dict({}); });
  CHECK(moved.enabled());
}
