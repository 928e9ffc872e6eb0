#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "levin/train/lr_monitor.h"
#include "tests/warnings.h"
#include "train/run/fixture_test.h"

using namespace levin;
using namespace levin::test;

namespace {

using Names = std::vector<std::string>;
Names names_of(const Metrics& metrics) {
  Names out;
  for (const auto& [name, value] : metrics) out.push_back(name);
  return out;
}

struct Silent : Logger {
  void log_metrics(const LogRecord&) override {}
};

// The values of `name` in the records of 3 epochs of 10 steps with StepLR, or none, a record every 4 steps.
std::vector<std::pair<std::int64_t, double>> logged(LearningRateMonitorOptions options, const std::string& name,
                                                    std::optional<SchedulerConfig::Interval> interval) {
  const Warnings of_a_loss_that_grows;
  Net net({.gen = Generator(1), .device = Device::cpu()});
  optim::SGD opt(net.parameters(), {.lr = 1, .momentum = 0.5});
  TrainerOptions trainer_options = silent();
  trainer_options.max_epochs = 3;
  trainer_options.log_every_n_steps = 4;
  trainer_options.logger = std::make_shared<Silent>();
  trainer_options.callbacks = {std::make_shared<LearningRateMonitor>(options)};
  Trainer trainer(std::move(trainer_options));
  data::DataLoader train = loader();
  StepOptions step;
  if (interval)
    step.schedulers.push_back({.scheduler = std::make_shared<optim::StepLR>(opt, 1, 0.5), .interval = *interval});
  trainer.fit(
      opt, train, [&](const Batch& b) { return squared_error(net(b[0]), b[1]); }, step);
  std::vector<std::pair<std::int64_t, double>> out;
  for (const LogRecord& record : trainer.history()) {
    for (const auto& [key, value] : record.values) {
      if (key == name) out.emplace_back(record.step, value);
    }
  }
  return out;
}

}  // namespace

TEST_CASE(
    "learning rates have Lightning's names: the type, a number for the second of a kind, groups and the schedule's "
    "name") {
  Net net({.gen = Generator(1), .device = Device::cpu()});
  const std::vector<ParamRef> all_parameters = net.parameters();
  optim::Adam adam({all_parameters[0], all_parameters[1]}, {.lr = 0.25});
  adam.add_group({all_parameters[2], all_parameters[3]}, {.lr = 0.5, .beta1 = 0.75});
  optim::Adam second(net.fc2.parameters(), {.lr = 0.125});
  optim::SGD sgd(net.fc1.parameters(), {.lr = 2});
  optim::LBFGS lbfgs(net.parameters(), {.lr = 1});
  const std::vector<MonitoredOptimizer> all = {{&adam},  {&second}, {&sgd},   {&second, "warm-up"},
                                               {&lbfgs}, {&sgd},    {nullptr}};
  CHECK(learning_rates(all) == Metrics{{"lr-Adam/pg1", 0.25},
                                       {"lr-Adam/pg2", 0.5},
                                       {"lr-Adam-1", 0.125},
                                       {"lr-SGD", 2},
                                       {"warm-up", 0.125},
                                       {"lr-LBFGS", 1},
                                       {"lr-SGD-1", 2}});
  const Metrics more = learning_rates(all, {.log_momentum = true, .log_weight_decay = true});
  const Names names = names_of(more);
  CHECK(more[4] == std::pair<std::string, double>("lr-Adam/pg2-momentum", 0.75));
  CHECK(std::count(names.begin(), names.end(), "lr-Adam/pg2-weight_decay") == 1);
  CHECK(std::count(names.begin(), names.end(), "lr-SGD-1-weight_decay") == 1);
  CHECK(std::count(names.begin(), names.end(), "lr-LBFGS-momentum") == 0);
  CHECK(std::count(names.begin(), names.end(), "lr-LBFGS-weight_decay") == 0);
}

TEST_CASE("a record of steps holds the rate that its step uses") {
  using Expected = std::vector<std::pair<std::int64_t, double>>;
  const auto by_epoch = logged({.logging_interval = LoggingInterval::step}, "lr-SGD", SchedulerConfig::Interval::epoch);
  CHECK(by_epoch == Expected{{3, 1}, {7, 1}, {11, 0.5}, {15, 0.5}, {19, 0.5}, {23, 0.25}, {27, 0.25}});
  const auto by_step = logged({.logging_interval = LoggingInterval::step}, "lr-SGD", SchedulerConfig::Interval::step);
  REQUIRE(by_step.size() == 7);
  for (const auto& [step, lr] : by_step) CHECK(lr == std::ldexp(1.0, -static_cast<int>(step)));
  CHECK(logged({.log_momentum = true}, "lr-SGD-momentum", SchedulerConfig::Interval::step).size() == 7);
}

TEST_CASE(
    "without an interval the monitor logs a rate where its schedule moves it, without a schedule in both places") {
  using Expected = std::vector<std::pair<std::int64_t, double>>;
  CHECK(logged({}, "lr-SGD", SchedulerConfig::Interval::epoch) == Expected{{9, 1}, {19, 0.5}, {29, 0.25}});
  const auto steps = logged({}, "lr-SGD", SchedulerConfig::Interval::step);
  CHECK(steps.size() == 7);
  CHECK(steps.front() == std::pair<std::int64_t, double>(3, 0.125));
  const auto both = logged({}, "lr-SGD", std::nullopt);
  CHECK(both.size() == 10);
  CHECK(std::count(both.begin(), both.end(), std::pair<std::int64_t, double>(9, 1.0)) == 1);
}

TEST_CASE("an epoch's record holds the rate at its start") {
  using Expected = std::vector<std::pair<std::int64_t, double>>;
  const auto rates = logged({.logging_interval = LoggingInterval::epoch}, "lr-SGD", SchedulerConfig::Interval::epoch);
  CHECK(rates == Expected{{9, 1}, {19, 0.5}, {29, 0.25}});
}
