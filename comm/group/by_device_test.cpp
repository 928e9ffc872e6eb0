// Groups with a backend for each kind of device: shared memory on the CPU, the fake of NCCL on simt.
#include "comm/group/by_device.h"

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

#include "comm/group/conformance_test.h"
#include "comm/group/nccl_fake_test.h"
#include "comm/group/thread_ranks_test.h"
#include "levin/comm.h"
#include "levin/error.h"
#include "levin/ops.h"
#include "tests/variables.h"

namespace levin {
namespace {

using Ranks = std::shared_ptr<dist::Rendezvous>;

TEST_CASE("a backend for each kind of device names both, once") {
  const test::PlantedVariables planted({});
  for (const char* backend : {"cpu:gloo", "cuda:nccl", "cpu:gloo,cuda:gloo", "cpu:gloo,cpu:shm,cuda:nccl",
                              "cpu:,cuda:nccl", "cpu:gloo,cuda:nccl,", "cpu:gloo,tpu:nccl"}) {
    CAPTURE(backend);
    CHECK_THROWS_WITH_AS(static_cast<void>(dist::init_process_group({.backend = backend})),
                         doctest::Contains("expected one backend for each kind of device"), ConfigError);
  }
  for (const char* backend : {"cpu:gloo:all,cuda:nccl", "cuda:nccl,cpu:auto"})
    CHECK(dist::init_process_group({.backend = backend})->backend() == "single");  // nothing has started several
}

#if defined(LEVIN_SIMT)

std::shared_ptr<dist::ProcessGroup> group_of(const Ranks& ranks) {
  return dist::group_by_device(ranks, "shm", Device::simt());
}

TEST_CASE("a group by device agrees with every other one on collectives of CPU and device tensors, texts and parts") {
  const test::NcclFake fake;
  for (const int size : {1, 2, 3}) {
    CAPTURE(size);
    const auto errors = test::run_threads({.ranks = size}, [](const Ranks& ranks) {
      const auto g = group_of(ranks);
      if (g->backend() != "cpu:shm,simt:nccl" || g->capturable()) fail<InternalError>("backend");
      for (const Device device : {Device::cpu(), Device::simt()}) {
        test::check_collectives(*g, device);
        test::check_overlap(*g, device);
        if (g->size() > 1) test::check_split(*g, device);
      }
      test::check_texts(*g);
      g->barrier();
    });
    for (const std::string& error : errors) CHECK(error == "");
  }
  CHECK(fake->aborted == 0);
}

TEST_CASE("a rank that calls with a CPU tensor and one that calls with a device's are told so before data moves") {
  const test::NcclFake fake;
  for (const bool part : {false, true}) {
    const auto errors = test::run_threads({.ranks = 2}, [&](const Ranks& ranks) {
      const auto all = group_of(ranks);
      const auto g = part ? all->split(0, 0) : all;
      g->all_reduce(ones({4}, g->rank() == 0 ? Device::cpu() : Device::simt())).wait();
    });
    for (const std::string& error : errors) {
      CHECK(error.find("collectives differ between ranks") != std::string::npos);
      CHECK(error.find(" on simt") != std::string::npos);
    }
  }
}

TEST_CASE("abort ends the waits of a group by device on the CPU and on its device") {
  const test::NcclFake fake;
  for (const Device device : {Device::cpu(), Device::simt()}) {
    const auto errors = test::run_threads({.ranks = 2}, [&](const Ranks& ranks) {
      const auto g = group_of(ranks);
      (void)ranks->gather("all groups are made", "");
      test::check_abort(*g, device);
    });
    for (const std::string& error : errors) CHECK(error == "");
  }
}

#endif

}  // namespace
}  // namespace levin
