#include <doctest/doctest.h>

#include <limits>

#include "levin/train/summary.h"
#include "train/fixture_test.h"

using namespace levin;
using namespace levin::test;

namespace {

struct Block : nn::Module {
  using Module::Module;
  nn::Linear in{*this, "in", {.in = 1000, .out = 1000}};
  nn::ReLU act{*this, "act"};
};
struct Deep : nn::Module {
  using Module::Module;
  nn::Parameter scale{*this, "scale", Tensor(zeros({7}, Device::cpu()))};
  Block first{*this, "first"};
  nn::Linear head{*this, "head", {.in = 1000, .out = 3}};
};
const nn::Options kRoot{.gen = Generator(1), .device = Device::cpu()};

}  // namespace

TEST_CASE("counts read as Lightning prints them") {
  const std::vector<std::pair<std::int64_t, std::string>> cases = {
      {0, "0"},
      {123, "123"},
      {999, "999"},
      {1000, "1.0 K"},
      {1234, "1.2 K"},
      {1299, "1.2 K"},
      {99'999, "99.9 K"},
      {100'000, "100 K"},
      {999'999, "999 K"},
      {2'000'000, "2.0 M"},
      {61'706, "61.7 K"},
      {3'000'000'000, "3.0 B"},
      {4'100'000'000'000, "4.1 T"},
      {std::numeric_limits<std::int64_t>::max(), "9223372 T"}};
  for (const auto& [n, expected] : cases) CHECK(readable_count(n) == expected);
}

TEST_CASE("a summary has a line for each child of the root, totals of all parameters and the modes") {
  Net net(kRoot);
  net.drop.eval();
  net.fc2.requires_grad_(false);
  CHECK(summarize(net) ==
        "  | Name | Type    | Params | Mode\n"
        "-----------------------------------\n"
        "0 | fc1  | Linear  | 48     | train\n"
        "1 | drop | Dropout | 0      | eval\n"
        "2 | fc2  | Linear  | 17     | train\n"
        "-----------------------------------\n"
        "48 trainable parameters\n"
        "17 non-trainable parameters\n"
        "65 parameters in all, 260 bytes\n"
        "3 modules in train mode, 1 in eval mode\n");
}

TEST_CASE("max_depth decides which modules have a line, and the root's own parameters have one too") {
  const Deep deep(kRoot);
  const std::string one = summarize(deep);
  CHECK(one.find("0 | (own) | Deep   | 7      | train\n") != std::string::npos);
  CHECK(one.find("1 | first | Block  | 1.0 M  | train\n") != std::string::npos);
  CHECK(one.find("first.in") == std::string::npos);
  CHECK(one.find("1.0 M parameters in all, 4.016 MB\n") != std::string::npos);
  const std::string all = summarize(deep, {.max_depth = -1});
  CHECK(all == summarize(deep, {.max_depth = 2}));
  CHECK(all.find("2 | first.in  | Linear | 1.0 M  | train\n") != std::string::npos);
  CHECK(all.find("3 | first.act | ReLU   | 0      | train\n") != std::string::npos);
  CHECK(summarize(deep, {.max_depth = 0}).starts_with("1.0 M trainable parameters\n"));
  CHECK_THROWS_AS((void)summarize(deep, {.max_depth = -2}), ConfigError);
  CHECK_THROWS_AS(ModelSummary({.max_depth = -2}), ConfigError);
}

TEST_CASE("the callback summarizes the model of a fit before its first batch") {
  Net net(kRoot);
  optim::SGD opt(net.parameters(), {.lr = 0.1});
  auto summary = std::make_shared<ModelSummary>();
  TrainerOptions options = silent();
  options.max_epochs = 1;
  options.callbacks = {summary};
  Trainer trainer(std::move(options));
  data::DataLoader train = loader();
  std::string at_first_batch;
  trainer.fit(opt, train, [&](const Batch& b) {
    if (at_first_batch.empty()) at_first_batch = summary->text();
    return squared_error(net(b[0]), b[1]);
  });
  CHECK(at_first_batch == summarize(net));
}
