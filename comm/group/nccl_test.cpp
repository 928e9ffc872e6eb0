#include "comm/group/nccl.h"

#include <doctest/doctest.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "comm/group/conformance_test.h"
#include "comm/group/nccl_api.h"
#include "comm/group/nccl_fake_test.h"
#include "comm/group/thread_ranks_test.h"
#include "levin/comm.h"
#include "levin/error.h"
#include "levin/ops.h"
#include "tests/skip.h"
#include "tests/variables.h"

namespace levin {
namespace {

using test::ThreadJob, test::ThreadRanks;
using Ranks = std::shared_ptr<dist::Rendezvous>;
using dist::nccl::Result;

TEST_CASE("a machine without NCCL, or with a library that is none, learns what to install") {
  {
    const test::PlantedVariables planted({{"LEVIN_NCCL_LIBRARY", "/nowhere/libnccl.so.2"}});
    CHECK_THROWS_WITH_AS(static_cast<void>(dist::nccl::library()),
                         doctest::Contains("install NCCL 2.27 or a later 2.x (package libnccl2)"), ConfigError);
  }
  const test::PlantedVariables planted({{"LEVIN_NCCL_LIBRARY", "libz.so.1"}});
  CHECK_THROWS_WITH_AS(static_cast<void>(dist::nccl::library()),
                       doctest::Contains("libz.so.1 is no NCCL 2.27 or later, it lacks ncclGetVersion, ncclGetUn"),
                       ConfigError);
}

TEST_CASE("the toolkit's NCCL has the functions that are called, where it is installed") {
  for (const char* place : {"/usr/local/cuda/lib64/libnccl.so.2", "/usr/local/cuda/lib/libnccl.so.2",
                            "/usr/lib/x86_64-linux-gnu/libnccl.so.2"}) {
    if (!std::filesystem::exists(place)) continue;
    const test::PlantedVariables planted({{"LEVIN_NCCL_LIBRARY", place}});
    const dist::nccl::Library& nccl = dist::nccl::library();
    CHECK(nccl.version >= dist::nccl::kOldest);
    CHECK(std::string(nccl.ncclGetErrorString(Result::remote_error)).find("remote") != std::string::npos);
    return;
  }
  test::skip("no libnccl.so.2: install libnccl2");
}

TEST_CASE("NCCL moves tensors of CUDA devices, which a build or a machine may lack") {
#if defined(LEVIN_CUDA)
  if (device_count(DeviceType::cuda) == 0) CHECK_THROWS_AS(static_cast<void>(dist::nccl_device(0)), DeviceError);
  if (device_count(DeviceType::cuda) > 1) CHECK_THROWS_AS(static_cast<void>(dist::nccl_device(999)), DeviceError);
#else
  CHECK_THROWS_WITH_AS(static_cast<void>(dist::nccl_device(0)), doctest::Contains("build with -Dcuda=enabled"),
                       UnsupportedError);
#endif
  const auto errors = test::run_threads({.ranks = 1}, [](const Ranks& ranks) {
    CHECK_THROWS_WITH_AS(static_cast<void>(dist::make_nccl_group(ranks, Device::cpu())),
                         doctest::Contains("the group's device is cpu"), DeviceError);
  });
  CHECK(errors[0] == "");
}

#if defined(LEVIN_SIMT)

using Fake = test::NcclFake;

void check_none(const std::vector<std::string>& errors) {
  for (const std::string& error : errors) CHECK(error == "");
}
std::shared_ptr<dist::ProcessGroup> group_of(const Ranks& ranks) {
  return dist::make_nccl_group(ranks, Device::simt());
}

TEST_CASE("NCCL's group agrees with every other backend on all collectives, texts and parts") {
  const Fake fake;
  for (const int size : {1, 2, 3}) {
    CAPTURE(size);
    check_none(test::run_threads({.ranks = size}, [](const Ranks& ranks) {
      const auto g = group_of(ranks);
      if (g->backend() != "nccl" || !g->capturable()) fail<InternalError>("backend");
      test::check_collectives(*g, Device::simt());
      test::check_overlap(*g, Device::simt());
      test::check_texts(*g);
      if (g->size() > 1) test::check_split(*g, Device::simt());
    }));
  }
  CHECK(fake->aborted == 0);  // each group and part said farewell
  CHECK(fake->finalized == fake->destroyed);
}

TEST_CASE("a work of NCCL is in no stream but its own before its wait") {
  const Fake fake;
  check_none(test::run_threads({.ranks = 2}, [](const Ranks& ranks) {
    const auto g = group_of(ranks);
    // What the current stream does before the call is in the sum; the caller's stream sees the sum after the wait.
    const Stream mine = Stream::next_of(Device::simt());
    const StreamGuard guard(mine);
    const Tensor t = full({1000}, g->rank() + 1, Device::simt());
    const dist::Work sum = g->all_reduce(t);
    sum.wait();
    const Tensor twice = t + t;
    if (twice.to_vector<float>()[999] != 6) fail<InternalError>("the sum");
    if (!sum.done()) fail<InternalError>("done");
  }));
}

TEST_CASE("messages of NCCL arrive in order; a tag is refused") {
  const Fake fake;
  check_none(test::run_threads({.ranks = 2}, [](const Ranks& ranks) {
    const auto g = group_of(ranks);
    const auto device = Device::simt();
    if (g->rank() == 0) {
      for (const float x : {3.f, 4.f}) g->send(full({100}, x, device), 1).wait();
      CHECK_THROWS_AS(static_cast<void>(g->send(full({1}, 0, device), 1, 7)), UnsupportedError);
    } else {
      for (const float x : {3.f, 4.f}) {
        const Tensor t = zeros({100}, device);
        g->recv(t, 0).wait();
        if (t.to_vector<float>()[99] != x) fail<InternalError>("a message");
      }
    }
    g->barrier();
  }));
}

TEST_CASE("what NCCL cannot do is refused before a rank is told") {
  const Fake fake;
  check_none(test::run_threads({.ranks = 3}, [](const Ranks& ranks) {
    const auto g = group_of(ranks);
    CHECK_THROWS_AS(static_cast<void>(g->all_reduce(zeros({2}, Device::cpu()))), DeviceError);
    // A recording cannot hold what the host waits for.
    const Stream mine = Stream::next_of(Device::simt());
    CHECK_THROWS_AS(levin::Graph(mine,
                                 [&] {
                                   const StreamGuard guard(mine);
                                   g->barrier();
                                 }),
                    CaptureError);
    g->barrier();
  }));
  check_none(test::run_threads({.ranks = 4}, [](const Ranks& ranks) {
    const auto g = group_of(ranks);
    CHECK_THROWS_AS(
        static_cast<void>(g->all_reduce(zeros({2}, Device::simt()), dist::ReduceOp::sum, dist::ReduceOrder::tree)),
        UnsupportedError);
  }));
}

TEST_CASE("different calls of ranks are errors that show both sides, before NCCL meets them") {
  const Fake fake;
  check_none(test::run_threads({.ranks = 2}, [](const Ranks& ranks) {
    const auto g = group_of(ranks);
    const Tensor t = zeros({g->rank() == 0 ? 4 : 5}, Device::simt());
    try {
      g->all_reduce(t).wait();
    } catch (const CommError& e) {
      const std::string text = e.what();
      if (text.find("f32[4]") != std::string::npos && text.find("f32[5]") != std::string::npos) return;
      fail<InternalError>(text);
    }
    fail<InternalError>("a mismatch was not found");
  }));
}

TEST_CASE("a rank that does not come is missed at the deadline, in NCCL's connection and in a collective") {
  const Fake fake;
  auto errors = test::run_threads({.ranks = 2, .timeout = 0.05}, [](const Ranks& ranks) {
    if (ranks->rank() == 1) {
      (void)ranks->gather("NCCL's id", "");
      return;
    }
    (void)group_of(ranks);
  });
  CHECK(errors[0].find("nccl: the connection of the ranks was not done within 0.05 s") != std::string::npos);
  CHECK(fake->aborted == 1);
  errors =
      test::run_threads({.ranks = 2, .compares = ThreadRanks::Compares::no, .timeout = 0.5}, [](const Ranks& ranks) {
        const auto g = group_of(ranks);
        if (g->rank() == 0) g->all_reduce(zeros({4}, Device::simt())).wait();
      });
  CHECK(errors[0].find("nccl: all_reduce f32[4] sum at nccl_test.cpp:") != std::string::npos);
  CHECK(errors[0].find("was not done within 0.5 s") != std::string::npos);
}

TEST_CASE("an error of NCCL's calls ends the group on all ranks, with NCCL's words") {
  const Fake fake;
  fake->init_fails = static_cast<int>(Result::invalid_usage);
  auto errors = test::run_threads({.ranks = 2}, [](const Ranks& ranks) { (void)group_of(ranks); });
  for (const std::string& error : errors) {
    CHECK(error.find("nccl: the connection of the ranks: system error (the fake wants it)") != std::string::npos);
  }
  fake->all_reduce_fails = static_cast<int>(Result::system_error);
  errors = test::run_threads({.ranks = 2}, [](const Ranks& ranks) {
    const auto g = group_of(ranks);
    for (;;) g->all_reduce(zeros({4}, Device::simt())).wait();
  });
  for (const std::string& error : errors) CHECK(error.find("(the fake wants it)") != std::string::npos);
  CHECK(fake->destroyed == 0);
}

TEST_CASE("an error that NCCL finds while nobody calls it ends the group, and its waits") {
  const Fake fake;
  const auto errors = test::run_threads({.ranks = 2}, [&](const Ranks& ranks) {
    const auto g = group_of(ranks);
    const Tensor t = zeros({4}, Device::simt());
    const dist::Work sum = g->all_reduce(t);
    sum.wait();
    (void)ranks->gather("all ranks have summed", "");
    fake->async_error = static_cast<int>(Result::remote_error);
    while (!ranks->alarm()->raised()) std::this_thread::yield();  // the group's thread asks
    sum.wait();
  });
  for (const std::string& error : errors) {
    CHECK(error.find("nccl: remote process exited or there was a network error") != std::string::npos);
  }
  CHECK(fake->aborted == 2);
}

TEST_CASE("abort ends NCCL's waits on all ranks, and the group is of no use afterwards") {
  const Fake fake;
  for (const auto compares : {ThreadRanks::Compares::yes, ThreadRanks::Compares::no}) {
    const auto start = std::chrono::steady_clock::now();
    check_none(test::run_threads({.ranks = 3, .compares = compares}, [](const Ranks& ranks) {
      const auto g = group_of(ranks);
      (void)ranks->gather("all groups are made", "");
      test::check_abort(*g, Device::simt());
    }));
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(30));  // the timeout is 60
  }
  CHECK(fake->aborted == 6);
}

TEST_CASE("a farewell of NCCL that fails is followed by an abort") {
  const Fake fake;
  check_none(test::run_threads({.ranks = 2}, [&](const Ranks& ranks) {
    auto g = group_of(ranks);
    g->barrier();
    (void)ranks->gather("all ranks are done", "");
    fake->async_error = static_cast<int>(Result::internal_error);
    g.reset();
  }));
  CHECK(fake->aborted == 2);
}

TEST_CASE("an old NCCL is refused with both versions") {
  const Fake fake;
  const std::string other = test::build_dir() + "/tests/../tests/libnccl_fake.so";  // a place of its own in the table
  const test::PlantedVariables planted({{"LEVIN_NCCL_LIBRARY", other.c_str()}});
  for (const int version : {22605, 30000}) {
    fake->version = version;
    CHECK_THROWS_WITH_AS(static_cast<void>(dist::nccl::library()),
                         doctest::Contains("expected 2.27.0 or a later 2.x; install that one"), ConfigError);
  }
}

#endif

}  // namespace
}  // namespace levin
