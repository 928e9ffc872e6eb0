// Ranks with a device each: simt in the place of GPUs, the fake of NCCL between them, shared memory for decisions.
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

#include "comm/group/by_device.h"
#include "comm/group/nccl_fake_test.h"
#include "comm/group/thread_ranks_test.h"
#include "levin/train/ddp_strategy.h"
#include "levin/train/fsdp_strategy.h"
#include "levin/train/zero_strategy.h"
#include "tests/variables.h"
#include "train/strategy/parallel_fixture_test.h"

using namespace levin;
using namespace levin::test::parallel;

TEST_CASE("strategies of processes refuse a backend that does not fit the accelerator") {
  const auto refused = [](const std::string& backend) {
    TrainerOptions options = plain();
    options.accelerator = "cpu";
    options.strategy = std::make_shared<DdpStrategy>(DdpOptions{.process = {.backend = backend}});
    try {
      const Trainer trainer(options);
    } catch (const ConfigError& e) { return std::string(e.what()); }
    return std::string("accepted");
  };
  for (const char* backend : {"nccl", "cpu:gloo,cuda:nccl"}) {
    CHECK(contains(refused(backend), "NCCL connects CUDA devices"));
  }
  CHECK(refused("gloo") == "accepted");
}

#if defined(LEVIN_SIMT)

namespace {

template <class Make>
std::vector<Weights> trained_on_devices(int ranks, TrainerOptions options, const Make& make) {
  std::vector<Weights> weights(static_cast<std::size_t>(ranks));
  options.accelerator = "simt";
  const auto errors = test::run_threads({.ranks = ranks}, [&](const std::shared_ptr<dist::Rendezvous>& meeting) {
    const Group group = dist::group_by_device(meeting, "shm", Device::simt());
    TrainerOptions mine = options;
    mine.strategy = make(group);
    weights[static_cast<std::size_t>(group->rank())] = trained(mine);
  });
  for (const std::string& error : errors) CHECK(error == "");
  return weights;
}

}  // namespace

TEST_CASE("ranks with a device each train as one process does: gradients by NCCL, votes on the CPU") {
  const test::NcclFake fake;
  TrainerOptions options = plain();
  options.gradient_clip_val = 0.5;
  options.max_steps = 8;
  const Weights alone = trained(options);
  for (const CommHook hook : {CommHook::none, CommHook::bf16}) {
    const auto by_ddp = trained_on_devices(2, options, [&](const Group& group) -> std::shared_ptr<Strategy> {
      return std::make_shared<DdpStrategy>(DdpOptions{.comm_hook = hook, .process = {.group = group}});
    });
    CHECK(by_ddp[0] == by_ddp[1]);
    CHECK(difference(by_ddp[0], alone) < (hook == CommHook::none ? 1e-5 : 2e-2));
  }
  const auto by_zero = trained_on_devices(2, options, [](const Group& group) -> std::shared_ptr<Strategy> {
    return std::make_shared<ZeroStrategy>(ZeroOptions{.process = {.group = group}});
  });
  CHECK(by_zero[0] == by_zero[1]);
  CHECK(difference(by_zero[0], alone) < 1e-5);
  const auto by_fsdp = trained_on_devices(2, options, [](const Group& group) -> std::shared_ptr<Strategy> {
    return std::make_shared<FsdpStrategy>(FsdpOptions{.process = {.group = group}});
  });
  CHECK(by_fsdp[0] == by_fsdp[1]);
  CHECK(difference(by_fsdp[0], alone) < 1e-5);
}

TEST_CASE("ddp of one rank on a device has the bits of a run without ddp") {
  const test::PlantedVariables planted({});
  TrainerOptions options = plain();
  options.accelerator = "simt";
  options.max_steps = 8;
  const Weights alone = trained(options);
  options.strategy = "ddp";
  options.devices = 1;
  CHECK(trained(options) == alone);
}

#endif
