#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "levin/error.h"
#include "levin/ops.h"
#include "levin/serialize.h"
#include "levin/train/profiler.h"
#include "tests/device.h"
#include "tests/temporary.h"
#include "tests/warnings.h"

using namespace levin;
using namespace levin::test;

namespace {

std::int64_t now = 0;
std::int64_t test_clock() noexcept { return now; }
constexpr std::int64_t kMs = 1'000'000;

void run(Profiler& p, const std::string& action, std::int64_t ns) {
  const ProfilerScope scope(&p, action);
  now += ns;
}

}  // namespace

TEST_CASE("the simple profiler's lines are sorted by total time, with calls, mean and share of the run") {
  now = 0;
  SimpleProfiler p({.clock = &test_clock});
  for (int i = 0; i < 4; ++i) run(p, "backward", 150 * kMs);
  run(p, "on_train_start", 300 * kMs);
  now += 100 * kMs;  // of no action
  run(p, "on_train_end", 0);
  CHECK(p.report() ==
        "Action         |     Mean s |      Calls |    Total s | Share % |    Waits\n"
        "--------------------------------------------------------------------------\n"
        "backward       |       0.15 |          4 |        0.6 |   60.00 |        0\n"
        "on_train_start |        0.3 |          1 |        0.3 |   30.00 |        0\n"
        "on_train_end   |          0 |          1 |          0 |    0.00 |        0\n");
  const TemporaryFolder folder;
  SimpleProfiler to_file({.path = folder / "profile.txt", .clock = &test_clock});
  run(to_file, "x", kMs);
  to_file.finish();
  CHECK(read_file(folder / "profile.txt", 10'000) == to_file.report());
}

TEST_CASE("on a device the simple profiler counts the host's waits, of an action and of those around it") {
  DEVICE_OR_SKIP();
  SimpleProfiler p({.clock = &test_clock});
  const Tensor x = ones({}, device);
  {
    const ProfilerScope outer(&p, "outer");
    (void)x.item();
    {
      const ProfilerScope inner(&p, "inner");
      (void)x.item();
      (void)x.item();
    }
  }
  CHECK(p.report().find("|        3\n") != std::string::npos);
  CHECK(p.report().find("|        2\n") != std::string::npos);
}

TEST_CASE("ranges of NVTX need a build with CUDA, which the error says") {
  std::string message;
  try {
    NvtxProfiler p;
    p.start("a");
    p.start("b");  // ranges overlap
    CHECK_THROWS_AS(p.start("a"), StateError);
    p.stop("a");
    CHECK_THROWS_AS(p.stop("a"), StateError);
  } catch (const ConfigError& e) { message = e.what(); }
  CHECK((message.empty() || message.find("-Dcuda=enabled") != std::string::npos));
#if !defined(LEVIN_CUDA)
  CHECK_FALSE(message.empty());
#endif
}

TEST_CASE("an action that runs cannot be started again, nor one that does not run be stopped") {
  const TemporaryFolder folder;
  SimpleProfiler simple;
  TraceProfiler trace({.path = folder / "trace.json"});
  for (Profiler* p : {static_cast<Profiler*>(&simple), static_cast<Profiler*>(&trace)}) {
    p->start("a");
    p->start("b");  // actions overlap
    CHECK_THROWS_AS(p->start("a"), StateError);
    p->stop("a");
    CHECK_THROWS_AS(p->stop("a"), StateError);
    CHECK_THROWS_AS(p->stop("never"), StateError);
    p->start("a");
    p->stop("b");
    p->stop("a");
  }
  { const ProfilerScope nobody(nullptr, "a"); }
}

TEST_CASE("a scope stops its action when an exception passes") {
  SimpleProfiler p;
  try {
    const ProfilerScope scope(&p, "step");
    throw 1;
  } catch (int) {}
  p.start("step");  // throws if it were still running
  p.stop("step");
}

TEST_CASE("the trace is JSON in Chrome's format, and nested actions lie inside of each other") {
  const TemporaryFolder folder;
  now = 5'000'000'007;
  TraceProfiler p({.path = folder / "trace.json", .clock = &test_clock});
  {
    const ProfilerScope outer(&p, "epoch \"1\"\\\n\xff");
    now += 1500;
    run(p, "batch", 2'000'000'001);
    now += 499;
  }
  p.start("open");
  now += 1000;
  p.finish();
  const auto json = nlohmann::json::parse(read_file(folder / "trace.json", 100'000));
  std::vector<nlohmann::json> spans;
  for (const auto& event : json.at("traceEvents")) {
    if (event.at("ph") == "X") spans.push_back(event);
  }
  REQUIRE(spans.size() == 3);
  CHECK(spans[0].at("name") == "batch");
  CHECK(spans[0].at("ts") == 1.5);
  CHECK(spans[0].at("dur") == 2'000'000.001);
  CHECK(spans[1].at("name") == "epoch \"1\"\\\n?");
  CHECK(spans[1].at("ts") == 0);
  CHECK(spans[1].at("dur") == 2'000'002);
  CHECK(spans[2].at("name") == "open");
  CHECK(spans[2].at("ts") == 2'000'002);
  CHECK(spans[2].at("dur") == 1);
  for (const auto& span : spans) CHECK(span.at("pid") == json.at("traceEvents")[0].at("pid"));
}

TEST_CASE("a trace of too many actions keeps the first ones and says so once") {
  const TemporaryFolder folder;
  Warnings warnings;
  TraceProfiler p({.path = folder / "trace.json", .max_actions = 2, .clock = &test_clock});
  for (const char* name : {"a", "b", "c", "d"}) run(p, name, 1000);
  p.finish();
  p.finish();
  CHECK(warnings.ids() == std::vector<std::string>{"W-PROFILER-FULL"});
  CHECK(warnings.all().front().text.find("2 actions are not in") != std::string::npos);
  const auto json = nlohmann::json::parse(read_file(folder / "trace.json", 100'000));
  CHECK(json.at("traceEvents").size() == 3);  // the third is the name of the process
  CHECK_THROWS_AS(TraceProfiler({.path = ""}), ConfigError);
  CHECK_THROWS_AS(TraceProfiler({.path = "x", .max_actions = 0}), ConfigError);
  TraceProfiler nowhere({.path = folder / "absent/trace.json"});
  CHECK_THROWS_AS(nowhere.finish(), FileError);
}
