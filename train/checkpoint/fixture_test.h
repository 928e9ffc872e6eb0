// A run of the checkpoint tests: everything of it is made anew, as in a fresh process.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "levin/serialize.h"
#include "train/run/fixture_test.h"

namespace levin::test {

enum class Rule : std::uint8_t { sgd, adam };

// One run with its own net, optimizer, loader and trainer.
struct Setup {
  Generator gen{3};
  Net net{{.gen = gen, .device = Device::cpu()}};
  std::unique_ptr<optim::Optimizer> opt;
  data::DataLoader data = loader(40, 4);
  std::vector<SchedulerConfig> schedulers;
  Trainer trainer;

  Setup(Rule rule, TrainerOptions options) : trainer(std::move(options)) {
    if (rule == Rule::sgd)
      opt = std::make_unique<optim::SGD>(net.parameters(), optim::SGDOptions{.lr = 0.05, .momentum = 0.9});
    else
      opt = std::make_unique<optim::Adam>(net.parameters(), optim::AdamOptions{.lr = 0.01});
    schedulers.push_back({.scheduler = std::make_shared<optim::OneCycleLR>(
                              *opt, optim::OneCycleOptions{.max_lr = 0.05, .total_steps = 30}),
                          .interval = SchedulerConfig::Interval::step});
  }
  void fit(const std::string& ckpt_path = {}) {
    trainer.fit(*opt, data, [&](const Batch& b) { return squared_error(net(b[0]), b[1]); },
                {.schedulers = schedulers, .ckpt_path = ckpt_path});
  }
  // The mean loss of an epoch as it was recorded.
  double epoch_loss(std::int64_t epoch) {
    for (const LogRecord& r : trainer.history()) {
      for (const auto& [name, value] : r.values) {
        if (r.epoch == epoch && name == "train_loss_epoch") return value;
      }
    }
    return -1;
  }
};

inline TrainerOptions three_epochs() {
  TrainerOptions options = silent();
  options.max_epochs = 3;
  return options;
}

// Writes the checkpoint `from` to `to` with another state text and its hashes.
inline void rewrite(const std::string& from, const std::string& to, const Function<std::string(std::string)>& change,
                    const std::string& more_hashes = {}) {
  const TensorFile file = load_safetensors(from);
  std::string state, hashes;
  for (const auto& [key, value] : file.metadata) (key == "levin.state" ? state : hashes) = value;
  const std::string before = content_hash(state);
  state = change(std::move(state));
  const std::size_t at = hashes.find(before);
  REQUIRE(at != hashes.npos);
  hashes.replace(at, before.size(), content_hash(state));
  hashes.insert(1, more_hashes);
  save_safetensors(to, file.tensors, {{"levin.state", state}, {"levin.hashes", hashes}});
}
// `text` with its first `what` replaced.
inline std::string replaced(std::string text, const std::string& what, const std::string& by) {
  const std::size_t at = text.find(what);
  REQUIRE(at != text.npos);
  return text.replace(at, what.size(), by);
}

}  // namespace levin::test
