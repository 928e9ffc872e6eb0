// A module with a learning rate and the files of a search, for the tuner's tests.
#pragma once

#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/warnings.h"
#include "train/run/fixture_test.h"

namespace levin::test {

inline const nn::Options kTuned{.gen = Generator(3), .device = Device::cpu()};

// The names of files that searches leave in a folder.
inline std::vector<std::string> tuner_files(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(".lr_find_") || name.starts_with(".scale_batch_size_")) names.push_back(name);
  }
  return names;
}

struct Inner : Net {
  using Net::Net;
  std::uint64_t drop_offset() { return generators().at(0).second->state().offset; }
};

// Adam, dropout, a member and an hparam "lr", and failures that a test chooses.
struct Tuned : TrainModuleOf<Tuned> {
  Tuned() : TrainModuleOf(kTuned) {
    save_hparams({{"lr", 0.02}});
    tunable("lr", &lr);
  }
  Inner net{*this, "net"};
  double lr = 0.02;
  int steps = 0, throw_at = 0, optimizers_made = 1;
  bool manual = false, scheduled = false;
  std::pair<int, std::string> save_at{0, {}};  // after so many batches

  StepOutput training_step(const Batch& b, std::int64_t) override {
    if (++steps == throw_at) throw std::domain_error("planted");
    const Tensor loss = squared_error(net(b[0]), b[1]);
    log("loss", loss, {.on_epoch = true});
    return loss;
  }
  void validation_step(const Batch& b, std::int64_t, std::int64_t) override {
    log("val_loss", squared_error(net(b[0]), b[1]));
  }
  void on_train_batch_end(const StepInfo&) override {
    if (save_at.first > 0 && trainer().total_batch_idx() == save_at.first) trainer().save_checkpoint(save_at.second);
  }
  bool automatic_optimization() const override { return !manual; }
  OptimizerConfig configure_optimizers() override {
    OptimizerConfig made;
    for (int i = 0; i < optimizers_made; ++i)
      made.optimizers.push_back(std::make_shared<optim::Adam>(parameters(), optim::AdamOptions{.lr = field("lr")}));
    if (scheduled)
      made.schedulers = {{.scheduler = std::make_shared<optim::ExponentialLR>(*made.optimizers.front(), 0.5)}};
    return made;
  }
};

}  // namespace levin::test
