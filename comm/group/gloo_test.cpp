#include "comm/group/gloo.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <future>
#include <string>
#include <vector>

#include "comm/group/conformance_test.h"
#include "comm/group/group.h"
#include "comm/group/thread_ranks_test.h"
#include "comm/job/job.h"
#include "comm/job/spawned_test.h"
#include "levin/comm.h"
#include "levin/comm/launch.h"
#include "levin/error.h"
#include "levin/ops.h"
#include "levin/serialize.h"
#include "tests/skip.h"
#include "tests/temporary.h"
#include "tests/variables.h"
#include "tests/where.h"

namespace levin {
namespace {

using test::Mismatch, test::ThreadJob, test::ThreadRanks;
using Ranks = std::shared_ptr<dist::Rendezvous>;

const std::string& module_path() {
  static const std::string path = test::build_dir() + "/liblevin_gloo.so";
  return path;
}
// The module of this build, for as long as the test runs.
class Module {
 public:
  Module() : planted_({{"LEVIN_GLOO_LIBRARY", module_path().c_str()}}) {}

 private:
  test::PlantedVariables planted_;
};
#define GLOO_OR_SKIP()                                                                                        \
  if (!std::filesystem::exists(module_path())) return test::skip("no liblevin_gloo.so: install libgloo-dev"); \
  const Module module

void check_none(const std::vector<std::string>& errors) {
  for (const std::string& error : errors) CHECK(error == "");
}

TEST_CASE("gloo and shm agree with every other backend on all collectives, in one host and between hosts") {
  GLOO_OR_SKIP();
  struct Case {
    const char* backend;
    int ranks, of_a_host;
  };
  for (const Case c : {Case{"gloo:all", 2, 9}, Case{"gloo:all", 3, 9}, Case{"gloo", 4, 2}, Case{"auto", 3, 2},
                       Case{"shm", 3, 9}, Case{"shm", 4, 9}}) {
    CAPTURE(c.backend);
    CAPTURE(c.ranks);
    const auto errors = test::run_threads({.ranks = c.ranks, .ranks_of_a_host = c.of_a_host}, [&](const Ranks& ranks) {
      const auto g = dist::make_cpu_group(ranks, c.backend);
      if (g->backend() != (std::string_view(c.backend) == "shm" ? "shm" : "gloo")) fail<InternalError>("backend");
      test::check_collectives(*g, Device::cpu());
      test::check_texts(*g);
      test::check_overlap(*g, Device::cpu());
      test::check_split(*g, Device::cpu());
      test::check_messages(*g, Device::cpu());
    });
    check_none(errors);
  }
}

TEST_CASE("the tree's bits are equal on shm, gloo and hosts of unequal sizes") {
  GLOO_OR_SKIP();
  struct Case {
    const char* backend;
    int of_a_host;
  };
  std::string first;
  for (const Case c : {Case{"shm", 9}, Case{"gloo:all", 9}, Case{"gloo", 2}, Case{"gloo", 3}}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      std::vector<std::string> hashes(4);
      const auto errors = test::run_threads({.ranks = 4, .ranks_of_a_host = c.of_a_host}, [&](const Ranks& ranks) {
        const auto g = dist::make_cpu_group(ranks, c.backend);
        hashes[static_cast<std::size_t>(g->rank())] = test::hash_of_sums(*g, dtype, 9001, dist::ReduceOrder::tree);
      });
      check_none(errors);
      for (const std::string& one : hashes) CHECK(one == hashes[0]);
      if (dtype == DType::bf16) continue;
      if (first.empty()) first = hashes[0];
      CHECK(hashes[0] == first);
    }
  }
}

TEST_CASE("different calls of ranks are errors that show both sides, before Gloo or shared memory meets them") {
  GLOO_OR_SKIP();
  for (const char* backend : {"gloo:all", "gloo", "shm"}) {
    for (const Mismatch kind :
         {Mismatch::count, Mismatch::dtype, Mismatch::reduction, Mismatch::operation, Mismatch::root, Mismatch::line}) {
      CAPTURE(backend);
      CAPTURE(static_cast<int>(kind));
      const bool hosts = std::string_view(backend) == "gloo";
      const auto errors = test::run_threads({.ranks = 3, .ranks_of_a_host = hosts ? 2 : 9}, [&](const Ranks& ranks) {
        test::check_mismatch(*dist::make_cpu_group(ranks, backend), kind);
      });
      check_none(errors);
    }
  }
}

TEST_CASE("a size that no plan compared never reaches Gloo's receive: the ranks wait for each other, and no longer") {
  GLOO_OR_SKIP();
  const auto errors =
      test::run_threads({.ranks = 2, .compares = ThreadRanks::Compares::no, .timeout = 0.2}, [](const Ranks& ranks) {
        const auto g = dist::make_cpu_group(ranks, "gloo:all");
        g->all_reduce(zeros({g->rank() == 0 ? 1024 : 2048}, Device::cpu())).wait();
      });
  for (const std::string& error : errors) CHECK(error.find("gloo: the connection to rank") != std::string::npos);
}

TEST_CASE("abort ends the waits over gloo and shared memory, and the group is of no use afterwards") {
  GLOO_OR_SKIP();
  for (const char* backend : {"gloo:all", "gloo", "shm"}) {
    for (const auto compares : {ThreadRanks::Compares::yes, ThreadRanks::Compares::no}) {
      CAPTURE(backend);
      const bool hosts = std::string_view(backend) == "gloo";
      const auto start = std::chrono::steady_clock::now();
      const auto errors = test::run_threads({.ranks = 3, .ranks_of_a_host = hosts ? 2 : 9, .compares = compares},
                                            [&](const Ranks& ranks) {
                                              const auto g = dist::make_cpu_group(ranks, backend);
                                              (void)ranks->gather("all groups are made", "");
                                              test::check_abort(*g);
                                            });
      check_none(errors);
      CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(30));  // the timeout is 60
    }
  }
}

TEST_CASE("a rank that does not come is missed after the timeout, over shared memory too") {
  const auto errors =
      test::run_threads({.ranks = 2, .compares = ThreadRanks::Compares::no, .timeout = 0.05}, [](const Ranks& ranks) {
        const auto g = dist::make_cpu_group(ranks, "shm");
        if (g->rank() == 0) g->barrier();
      });
  CHECK(errors[0].find("rank 1 did not come within 0.05 s") != std::string::npos);
  CHECK(errors[1].empty());
}

TEST_CASE("a rank that ends first does not cut the last collective of the others") {
  GLOO_OR_SKIP();
  for (int i = 0; i < 20; ++i) {
    const auto errors = test::run_threads({.ranks = 3}, [](const Ranks& ranks) {
      const auto g = dist::make_cpu_group(ranks, "gloo:all");
      g->broadcast(full({100000}, g->rank(), Device::cpu())).wait();
    });
    check_none(errors);
  }
}

TEST_CASE("a rank that drops its Gloo group long before another ends without an error of the job") {
  GLOO_OR_SKIP();
  std::promise<void> first_has_ended;
  const auto errors = test::run_threads({.ranks = 2, .timeout = 0.3}, [&](const Ranks& ranks) {
    auto g = dist::make_cpu_group(ranks, "gloo:all");
    (void)ranks->gather("both are connected", "");
    if (ranks->rank() == 1) first_has_ended.get_future().wait();
    g.reset();  // rank 0 waits for the other as long as its timeout says
    if (ranks->rank() == 0) first_has_ended.set_value();
    if (ranks->alarm()->raised()) fail<InternalError>(ranks->alarm()->verdict().text);
  });
  check_none(errors);
}

TEST_CASE("processes whose peer is killed over Gloo get an error that names it, and no signal") {
  GLOO_OR_SKIP();
  for (const char* backend : {"gloo:all", "auto"}) {
    CAPTURE(backend);
    const test::TemporaryFolder folder;
    CHECK_THROWS(dist::spawn(3, [&](int rank) -> std::string {
      // Ranks 0 and 1 are of one host, rank 2 of another.
      ::setenv("LEVIN_HOST", rank == 2 ? "b" : "a", 1);
      const auto world = dist::init_process_group({.backend = backend});
      if (world->backend() != "gloo") return "another backend";
      const Tensor t = zeros({200000}, Device::cpu());
      for (int i = 0; i < 3; ++i) world->all_reduce(t).wait();
      if (rank == 1) ::raise(SIGKILL);
      try {
        for (;;) world->all_reduce(t).wait();
      } catch (const CommError& e) {
        write_file_atomically(folder / text(rank), e.what());
        throw;
      }
    }));
    for (const char* rank : {"0", "2"}) {
      // The launcher ends the others; the survivor that was faster than that has written why.
      if (!std::filesystem::exists(folder / rank)) continue;
      const std::string error = read_file(folder / rank, 1 << 16);
      CAPTURE(error);
      CHECK(error.find("rank 1") != std::string::npos);
    }
  }
}

TEST_CASE("ranks that connect by Gloo learn within 2 seconds that one is killed or stopped, and do not wait for it") {
  GLOO_OR_SKIP();
  struct Case {
    const char *action, *words;
    double wait;
  };
  for (const Case c : {Case{"kill", "was lost in phase rendezvous", 0}, Case{"stop", "has been silent for ", 0.4}}) {
    CAPTURE(c.action);
    // Closed before a rank begins, which would take it for the store.
    const std::string chosen = text(dist::port_of(dist::listen_at({"127.0.0.1", 0}, dist::Reach::loopback, 0)));
    test::Spawned group(
        3,
        [](test::Rank& rank) {
          ::setenv("LEVIN_GLOO_LIBRARY", module_path().c_str(), 1);
          int port = 0;
          (void)std::from_chars(rank.argument().data(), rank.argument().data() + rank.argument().size(), port);
          const auto job = dist::Job::join({.timeout = 50, .rendezvous_timeout = 20, .silence = 0.4},
                                           {.main = {"127.0.0.1", port}, .world = rank.size(), .rank = rank.rank()},
                                           dist::own_card(rank.size(), ""));
          (void)dist::make_cpu_group(job->rendezvous(), "gloo:all");
        },
        {.argument = chosen, .points = std::string("rank 2: at gloo:connect -> ") + c.action});
    group.wait_but(2);
    group.kill(2, SIGKILL);
    group.wait();
    for (const int survivor : {0, 1}) {
      const std::string& error = group.end_of(survivor).error;
      CAPTURE(error);
      CHECK(error.starts_with("CommError: rank 2 (host "));
      CHECK(error.find(c.words) != std::string::npos);
      CHECK(group.seconds_to_error(2, "rank 2 at gloo:connect", survivor) < c.wait + 2);
    }
  }
}

TEST_CASE("a rank that calls a collective more often than one that has ended is told so at once") {
  GLOO_OR_SKIP();
  for (const char* backend : {"shm", "gloo:all"}) {
    CAPTURE(backend);
    const std::string chosen = text(dist::port_of(dist::listen_at({"127.0.0.1", 0}, dist::Reach::loopback, 0)));
    test::Spawned group(2,
                        [](test::Rank& rank) {
                          ::setenv("LEVIN_GLOO_LIBRARY", module_path().c_str(), 1);
                          const std::size_t space = rank.argument().find(' ');
                          int port = 0;
                          (void)std::from_chars(rank.argument().data(), rank.argument().data() + space, port);
                          const auto job =
                              dist::Job::join({.timeout = 50, .rendezvous_timeout = 20},
                                              {.main = {"127.0.0.1", port}, .world = rank.size(), .rank = rank.rank()},
                                              dist::own_card(rank.size(), ""));
                          const auto world = dist::make_cpu_group(job->rendezvous(), rank.argument().substr(space + 1));
                          const Tensor t = ones({8}, Device::cpu());
                          for (int step = 0; step < 31 - rank.rank(); ++step) world->all_reduce(t).wait();
                          rank.report("ends");
                        },
                        {.argument = chosen + " " + backend});
    group.wait();
    const std::string& error = group.end_of(0).error;
    CAPTURE(error);
    CHECK(error.starts_with("CommError: rank 1 (host "));
    CHECK(error.find("has come to its end of the group after 30 collectives") != std::string::npos);
    CHECK(error.find("rank 0 is in all_reduce f32[8]") != std::string::npos);
    CHECK(group.seconds_to_error(1, "ends", 0) < 2);
    CHECK(group.end_of(1).code == 0);
  }
}

TEST_CASE("an average of f16 does not overflow where its sum does") {
  GLOO_OR_SKIP();
  for (const int of_a_host : {9, 2, 1}) {
    check_none(test::run_threads({.ranks = 4, .ranks_of_a_host = of_a_host}, [&](const Ranks& ranks) {
      const auto g = dist::make_cpu_group(ranks, of_a_host == 9 ? "gloo:all" : "auto");
      for (const std::int64_t n : {100, 20000}) {
        const Tensor t = full({n}, 40000 + 64 * g->rank(), Device::cpu(), DType::f16);
        g->all_reduce(t, dist::ReduceOp::average).wait();
        for (const float x : t.to(DType::f32).to_vector<float>()) {
          if (x != 40096) fail<InternalError>("an average is ", x);
        }
      }
    }));
  }
}

TEST_CASE("a program without liblevin_gloo.so runs, and learns what is missing when it wants several hosts") {
  if (std::filesystem::exists(module_path())) {
    // A library that this process has loaded is not the one that the variable names below.
    const Module module;
    check_none(test::run_threads({}, [](const Ranks& ranks) { (void)dist::make_cpu_group(ranks, "gloo:all"); }));
  }
  const test::PlantedVariables planted({{"LEVIN_GLOO_LIBRARY", "/nowhere/liblevin_gloo.so"}});
  const std::vector<std::string> results = dist::spawn(2, [](int rank) -> std::string {
    ::setenv("LEVIN_HOST", rank == 0 ? "a" : "b", 1);
    try {
      (void)dist::init_process_group();
    } catch (const ConfigError& e) {
      const std::string text = e.what();
      const bool names = text.find("libgloo-dev") != std::string::npos &&
                         text.find("/nowhere/liblevin_gloo.so: no such file") != std::string::npos;
      return names ? "" : text;
    }
    return "no error";
  });
  check_none(results);
}

TEST_CASE("backends have names, and shm is of one host") {
  const auto errors = test::run_threads({.ranks = 2, .ranks_of_a_host = 1}, [](const Ranks& ranks) {
    CHECK_THROWS_WITH_AS(static_cast<void>(dist::make_cpu_group(ranks, "mpi")),
                         doctest::Contains("backend is \"mpi\", expected auto, shm, gloo, gloo:all, nccl or single"),
                         ConfigError);
    CHECK_THROWS_WITH_AS(static_cast<void>(dist::make_cpu_group(ranks, "shm")), doctest::Contains("different hosts"),
                         ConfigError);
  });
  check_none(errors);
}

}  // namespace
}  // namespace levin
