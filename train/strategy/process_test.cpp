// What strategies of several processes share, with threads of this process as ranks.
#include "levin/train/process_strategy.h"

#include <doctest/doctest.h>

#include <array>
#include <memory>
#include <optional>

#include "comm/group/local.h"
#include "comm/job/socket.h"
#include "levin/autograd.h"
#include "tests/variables.h"
#include "train/run/fixture_test.h"
#include "train/run/probe_test.h"

using namespace levin;

namespace {

using Group = std::shared_ptr<dist::ProcessGroup>;

TrainerOptions on(const Group& group) {
  TrainerOptions options = test::silent();
  options.max_epochs = 1;
  options.strategy = std::make_shared<ProcessStrategy>(ProcessOptions{.group = group});
  return options;
}

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("ranks start with the weights and buffers of rank 0, and draw from forks of its generators") {
  struct Mixed : nn::Module {
    using Module::Module;
    nn::Linear fc{*this, "fc", {.in = 300, .out = 7}};
    nn::BatchNorm1d norm{*this, "norm", {.features = 7}};
    nn::Dropout drop{*this, "drop", {.p = 0.5}};
  };
  std::array<std::vector<float>, 3> weights, drawn;
  std::array<RandomRange, 3> states;
  dist::run_local(3, [&](const Group& group) {
    const auto r = static_cast<std::size_t>(group->rank());
    Mixed net(nn::Options{.gen = Generator(7 + r), .device = Device::cpu()});
    (void)net.drop(ones({4, static_cast<std::int64_t>(r) + 1}, Device::cpu()));
    ProcessStrategy strategy({.group = group});
    strategy.connect({});
    test::Probe module(nn::Options{.gen = Generator(1), .device = Device::cpu()});
    strategy.attach_model(module, &net, Stage::fit);
    CHECK(strategy.ranks().rank == group->rank());
    CHECK(strategy.ranks().size == 3);
    for (const auto& [name, t] : net.state_dict()) {
      const Tensor values = t.to(DType::f32);
      for (const float v : values.to_vector<float>()) weights[r].push_back(v);
    }
    states[r] = net.generators().front().second->state();
    drawn[r] = net.drop(ones({50}, Device::cpu())).to_vector<float>();
  });
  CHECK(weights[1] == weights[0]);
  CHECK(weights[2] == weights[0]);
  for (const std::size_t r : {1, 2}) {
    CHECK(states[r].seed == Generator(states[0].seed).fork("rank " + text(r)).seed());
    CHECK(states[r].offset == states[0].offset);
    CHECK(drawn[r] != drawn[0]);
  }
  CHECK(drawn[1] != drawn[2]);
}

TEST_CASE("ranks take rank 0's buffers that no file has, and keep their own states of metrics") {
  struct Layer : nn::Module {
    Layer(nn::Options o, std::int64_t r, std::int64_t size)
        : Module(std::move(o)),
          mask(*this, "mask", full({size}, static_cast<double>(r), Device::cpu()), nn::Persistent::no) {}
    nn::Buffer mask;
    MeanMetric metric{*this, "metric"};
  };
  std::array<std::vector<float>, 2> masks;
  std::array<double, 2> means{};
  std::array<std::string, 2> errors;
  dist::run_local(2, [&](const Group& group) {
    const auto r = static_cast<std::size_t>(group->rank());
    ProcessStrategy strategy({.group = group});
    strategy.connect({});
    test::Probe module(nn::Options{.gen = Generator(1), .device = Device::cpu()});
    Layer net(nn::Options{.gen = Generator(1), .device = Device::cpu()}, group->rank() + 1, 3);
    net.metric.update(full({1}, group->rank() + 1.0, Device::cpu()));
    strategy.attach_model(module, &net, Stage::fit);
    masks[r] = net.mask.to_vector<float>();
    means[r] = net.metric.compute().item();
    Layer longer(nn::Options{.gen = Generator(1), .device = Device::cpu()}, 0, 3 + group->rank());
    try {
      strategy.attach_model(module, &longer, Stage::fit);
    } catch (const CommError& e) { errors[r] = e.what(); }
  });
  for (const std::vector<float>& mask : masks) CHECK(mask == std::vector<float>(3, 1));
  CHECK(means == std::array<double, 2>{1, 2});
  for (const std::string& error : errors) CHECK(contains(error, "\"mask f32 [3]\" on rank 0 and \"mask f32 [4]\""));
}

TEST_CASE("ranks whose modules have different generators are an error that names them, on every rank") {
  struct Layer : nn::Module {
    Layer(nn::Options o, bool drops) : Module(std::move(o)) {
      if (drops) drop = std::make_unique<nn::Dropout>(*this, "drop", nn::Dropout::Options{.p = 0.5});
    }
    nn::Linear fc{*this, "fc", {.in = 3, .out = 2}};
    std::unique_ptr<nn::Dropout> drop;
  };
  std::array<std::string, 2> errors;
  dist::run_local(2, [&](const Group& group) {
    Layer net(nn::Options{.gen = Generator(1), .device = Device::cpu()}, group->rank() == 1);
    ProcessStrategy strategy({.group = group});
    strategy.connect({});
    test::Probe module(nn::Options{.gen = Generator(1), .device = Device::cpu()});
    try {
      strategy.attach_model(module, &net, Stage::fit);
    } catch (const CommError& e) { errors[static_cast<std::size_t>(group->rank())] = e.what(); }
  });
  for (const std::string& error : errors) {
    CHECK(contains(error, "the modules of rank 0 and rank 1 differ: tensor 2 is \"nothing\" on rank 0"));
    CHECK(contains(error, "generator\" on rank 1"));
  }
}

TEST_CASE("a wrong size, address or port of a job is one typed error of the fit, before any hook") {
  struct Noting final : Callback {
    bool called = false;
    std::string state_key() const override { return ""; }
    void setup(Stage) override { called = true; }
    void on_exception(const std::exception&) override { called = true; }
  };
  const auto error_of = [](test::PlantedVariables::List variables, std::optional<int> devices, int nodes = 1) {
    const test::PlantedVariables planted(variables);
    const auto noting = std::make_shared<Noting>();
    TrainerOptions options = test::silent();
    options.accelerator = "cpu";
    if (devices) options.devices = *devices;
    options.num_nodes = nodes;
    options.callbacks = {noting};
    options.strategy = std::make_shared<ProcessStrategy>(ProcessOptions{.rendezvous_timeout = 0.2});
    test::Probe probe(nn::Options{.gen = Generator(1), .device = Device::cpu()});
    data::DataLoader data = test::ramp(2);
    std::string error;
    try {
      Trainer(std::move(options)).fit(probe, {.train = data});
    } catch (const ConfigError& e) { error = std::string("ConfigError ") + e.what(); } catch (const CommError& e) {
      error = std::string("CommError ") + e.what();
    }
    CHECK_FALSE(noting->called);
    CHECK(test::weights_of(probe) == std::vector<float>{1});
    return error;
  };
  // As a person starts rank 0 or 1 of two by hand.
  const auto by_hand = [&](const char* rank, const char* address, const char* port) {
    return error_of({{"RANK", rank},
                     {"LOCAL_RANK", rank},
                     {"WORLD_SIZE", "2"},
                     {"MASTER_ADDR", address},
                     {"MASTER_PORT", port},
                     {"LEVIN_JOB_SECRET", "none"}},
                    2);
  };
  std::string error = error_of(
      {{"RANK", "0"}, {"LOCAL_RANK", "0"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}},
      3);
  CHECK(error.starts_with("ConfigError "));
  CHECK(contains(error, "WORLD_SIZE is 4, and num_nodes 1 times devices 3 is 3"));
  // srun's task 0 of 4 on one node.
  const auto step = [&](int devices, int nodes) {
    return error_of({{"SLURM_STEP_ID", "0"},
                     {"SLURM_JOB_ID", "7"},
                     {"SLURM_PROCID", "0"},
                     {"SLURM_LOCALID", "0"},
                     {"SLURM_NODEID", "0"},
                     {"SLURM_NTASKS", "4"},
                     {"SLURM_NNODES", "1"},
                     {"SLURM_TASKS_PER_NODE", "4"},
                     {"SLURM_NODELIST", "n1"},
                     {"SLURM_JOB_NAME", "train"}},
                    devices, nodes);
  };
  CHECK(step(2, 1).starts_with("ConfigError "));
  CHECK(contains(step(2, 1), "a node runs 4 tasks, as SLURM_TASKS_PER_NODE says, and devices is 2"));
  CHECK(contains(step(4, 2), "the step has 1 nodes, and num_nodes is 2"));
  error = by_hand("1", "no-such-host.invalid", "29500");
  CHECK(error.starts_with("CommError "));
  CHECK(contains(error, "the address of rank 0, no-such-host.invalid, is unknown"));
  const dist::Fd taken = dist::listen_at({"127.0.0.1", 0}, dist::Reach::loopback, 0);
  const std::string port = text(dist::port_of(taken));
  error = by_hand("0", "127.0.0.1", port.c_str());
  CHECK(error.starts_with("CommError "));
  CHECK(contains(error, "rank 0 cannot listen at 127.0.0.1:" + port + ": Address already in use"));
}

TEST_CASE("modules that differ between ranks are an error that names the tensor and both sides, on every rank") {
  std::array<std::string, 2> errors;
  dist::run_local(2, [&](const Group& group) {
    const auto r = static_cast<std::size_t>(group->rank());
    struct Layer : nn::Module {
      Layer(nn::Options o, std::int64_t out) : Module(std::move(o)), fc(*this, "fc", {.in = 3, .out = out}) {}
      nn::Linear fc;
    } net(nn::Options{.gen = Generator(1), .device = Device::cpu()}, 2 + group->rank());
    ProcessStrategy strategy({.group = group});
    strategy.connect({});
    test::Probe module(nn::Options{.gen = Generator(1), .device = Device::cpu()});
    try {
      strategy.attach_model(module, &net, Stage::fit);
    } catch (const CommError& e) { errors[r] = e.what(); }
  });
  for (const std::string& error : errors) {
    CHECK(contains(error, "the modules of rank 0 and rank 1 differ"));
    CHECK(contains(error, "\"fc.weight f32 [2, 3]\" on rank 0"));
    CHECK(contains(error, "\"fc.weight f32 [3, 3]\" on rank 1"));
  }
}

TEST_CASE("a stop that one rank requests ends all ranks after the same batch") {
  std::array<std::int64_t, 3> batches{};
  dist::run_local(3, [&](const Group& group) {
    struct Stopping final : Callback {
      std::string state_key() const override { return ""; }
      void on_train_batch_end(const StepInfo& info) override {
        if (trainer().global_rank() == 2 && info.batch_idx == 1) trainer().request_stop();
      }
    };
    TrainerOptions options = on(group);
    options.callbacks.push_back(std::make_shared<Stopping>());
    test::Probe probe(nn::Options{.gen = Generator(1), .device = Device::cpu()});
    data::DataLoader data = test::loader(24, 4);
    Trainer trainer(std::move(options));
    trainer.fit(probe, {.train = data});
    batches[static_cast<std::size_t>(group->rank())] = trainer.total_batch_idx();
  });
  CHECK(batches == std::array<std::int64_t, 3>{2, 2, 2});
}

TEST_CASE("an error of one rank ends the others with an error that has its text") {
  std::array<std::string, 2> errors;
  const auto body = [&](const Group& group) {
    struct Throwing final : TrainModuleOf<Throwing, test::Probe> {
      using TrainModuleOf<Throwing, test::Probe>::TrainModuleOf;
      StepOutput training_step(const Batch& b, std::int64_t i) override {
        if (trainer().global_rank() == 1 && i == 2) fail<DataError>("planted: the third batch");
        return test::Probe::training_step(b, i);
      }
    };
    Throwing module(nn::Options{.gen = Generator(1), .device = Device::cpu()});
    data::DataLoader data = test::loader(24, 4);
    Trainer trainer(on(group));
    try {
      trainer.fit(module, {.train = data});
    } catch (const Error& e) {
      errors[static_cast<std::size_t>(group->rank())] = e.what();
      throw;
    }
  };
  CHECK_THROWS_AS(dist::run_local(2, body), DataError);
  CHECK(contains(errors[1], "planted: the third batch"));
  CHECK(contains(errors[0], "planted: the third batch"));
}
