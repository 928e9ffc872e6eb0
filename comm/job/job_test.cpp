#include "comm/job/job.h"

#include <doctest/doctest.h>

#include <array>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "comm/job/secret.h"
#include "levin/build_info.h"
#include "levin/error.h"
#include "tests/skip.h"
#include "tests/variables.h"
#include "tests/warnings.h"

namespace levin::dist {
namespace {

using std::string;

bool contains(const string& text, const string& part) { return text.find(part) != string::npos; }

int free_port() {
  const Fd probe = listen_at({"127.0.0.1", 0}, Reach::loopback, 0);
  return port_of(probe);
}

struct Seat {
  InitOptions options{.timeout = 30, .rendezvous_timeout = 10};
  Job::Place place;
  Card card;
};

// The ranks of a job as threads of this process, each with its own connection. Returns what each threw.
std::vector<string> run_job(int world, const std::function<void(int rank, Seat&)>& prepare,
                            const std::function<void(int rank, Job&)>& body, const string& host = "127.0.0.1") {
  const int port = free_port();
  std::vector<string> errors(static_cast<std::size_t>(world));
  std::vector<std::thread> threads;
  for (int r = 0; r < world; ++r) {
    threads.emplace_back([&, r] {
      string& error = errors[static_cast<std::size_t>(r)];
      try {
        Seat seat;
        seat.place = {.main = {host, port}, .world = world, .rank = r, .local_rank = r};
        seat.card = own_card(world, "");
        prepare(r, seat);
        const auto job = Job::join(seat.options, seat.place, seat.card);
        body(r, *job);
      } catch (const ConfigError& e) { error = string("ConfigError ") + e.what(); } catch (const CommError& e) {
        error = string("CommError ") + e.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}
void as_is(int, Seat&) {}
std::vector<string> nothing(int world) { return std::vector<string>(static_cast<std::size_t>(world)); }

TEST_CASE("ranks meet at the store, and gather values in the order of ranks") {
  const auto errors = run_job(4, as_is, [](int rank, Job& job) {
    const auto world = job.rendezvous();
    CHECK(world->rank() == rank);
    CHECK(world->size() == 4);
    CHECK(world->host(0) == world->host(3));
    CHECK(world->address() == "127.0.0.1");
    for (int i = 0; i < 20; ++i) {
      const auto all = world->gather("numbers", text(rank) + "/" + text(i));
      for (int r = 0; r < 4; ++r) CHECK(all[static_cast<std::size_t>(r)] == text(r) + "/" + text(i));
    }
    // Parts meet by themselves.
    const auto part = world->part(rank % 2 == 0 ? std::vector<int>{0, 2} : std::vector<int>{3, 1});
    CHECK(part->size() == 2);
    CHECK(part->world_rank(part->rank()) == rank);
    CHECK(part->gather("ranks", text(rank)) ==
          (rank % 2 == 0 ? std::vector<string>{"0", "2"} : std::vector<string>{"3", "1"}));
    if (rank == 3) job.set("key", string(100000, 'x'));
    CHECK(job.get("key").size() == 100000);
  });
  CHECK(errors == nothing(4));
}

TEST_CASE("a job works over IPv6") {
  if (!connect_once({"::1", 1}, steady_seconds() + 1).error.starts_with("Connection refused"))
    return test::skip("no IPv6 on this machine");
  const auto errors = run_job(
      2, as_is,
      [](int rank, Job& job) {
        CHECK(job.rendezvous()->gather("x", text(rank)) == std::vector<string>{"0", "1"});
        CHECK(job.rendezvous()->address() == "::1");
      },
      "::1");
  CHECK(errors == nothing(2));
}

TEST_CASE("ranks with other options, programs or worlds get both sides, all of them, before any work") {
  const auto never = [](int, Job&) { FAIL("the job began"); };
  const auto differ = [&](const std::function<void(int, Seat&)>& prepare) {
    const auto errors = run_job(3, prepare, never);
    for (const string& error : errors) CHECK(error.starts_with("ConfigError init_process_group"));
    return errors[1];
  };
  CHECK(contains(differ([](int rank, Seat& seat) {
                   seat.card = own_card(3, rank == 2 ? "lr 0.2\nepochs 3" : "lr 0.1\nepochs 3");
                 }),
                 "\n  lr: ranks 0, 1: `0.1`; rank 2: `0.2`"));
  CHECK(contains(differ([](int rank, Seat& seat) {
                   for (auto& [name, value] : seat.card.equal) {
                     if (name == "program" && rank == 0) value = "another";
                   }
                 }),
                 "\n  program: rank 0: `another`; ranks 1, 2: `"));
  CHECK(contains(differ([](int rank, Seat& seat) { seat.card = own_card(3, rank == 1 ? "a 1" : "a 1\na 2"); }),
                 "\n  a: ranks 0, 2: `2`; rank 1: `(not given)`"));
  CHECK(contains(differ([](int rank, Seat& seat) {
                   seat.place.world = rank == 2 ? 4 : 3;
                   seat.card = own_card(seat.place.world, "");
                 }),
                 "\n  world size: ranks 0, 1: `3`; rank 2: `4`"));
  CHECK(contains(differ([](int rank, Seat& seat) { seat.place.rank = rank == 2 ? 1 : rank; }),
                 "rank 1 arrived twice: rank 1 (host "));
  CHECK(contains(differ([](int rank, Seat& seat) {
                   if (rank == 2) seat.place = {.main = seat.place.main, .world = 9, .rank = 8};
                 }),
                 "arrived at a job whose rank 0 says world size 3"));
}

TEST_CASE("ranks that do not arrive are named on all that did") {
  const int port = free_port();
  std::vector<string> errors(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      try {
        (void)Job::join({.rendezvous_timeout = 0.3}, {.main = {"127.0.0.1", port}, .world = 4, .rank = 2 * r},
                        own_card(4, ""));
      } catch (const CommError& e) { errors[static_cast<std::size_t>(r)] = e.what(); }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const string& error : errors) CHECK(contains(error, "ranks 1, 3 of 4 did not arrive within 0.3 s"));
}

TEST_CASE("a store that is not there, an unknown name and a taken port are named with what to set") {
  const int port = free_port();
  const auto join = [](const Job::Place& place) {
    (void)Job::join({.rendezvous_timeout = 0.2}, place, own_card(2, ""));
  };
  const string at = "127.0.0.1:" + text(port);
  CHECK_THROWS_WITH_AS(
      join({.main = {"127.0.0.1", port}, .world = 2, .rank = 1}),
      doctest::Contains(
          ("rank 1 did not reach the store of rank 0 at " + at + " within 0.2 s: Connection refused").c_str()),
      CommError);
  {
    const test::PlantedVariables trusted({{"LEVIN_JOB_SECRET", "none"}});
    CHECK_THROWS_WITH_AS(join({.main = {"no-such-host.invalid", port}, .world = 2, .rank = 1}),
                         doctest::Contains("the address of rank 0, no-such-host.invalid, is unknown: "), CommError);
  }
  const Fd taken = listen_at({"127.0.0.1", port}, Reach::loopback, 0);
  CHECK_THROWS_WITH_AS(join({.main = {"127.0.0.1", port}, .world = 2}),
                       doctest::Contains(("cannot listen at " + at + ": Address already in use").c_str()), CommError);
  CHECK_THROWS_WITH_AS(join({.main = {"127.0.0.1", 0}, .world = 2}), doctest::Contains("set MASTER_PORT"), ConfigError);
  CHECK_THROWS_WITH_AS(join({.main = {"", port}, .world = 2}), doctest::Contains("set MASTER_ADDR"), ConfigError);
  CHECK_THROWS_WITH_AS(join({.main = {"127.0.0.1", port}, .world = 2, .rank = 2}),
                       doctest::Contains("rank 2 of 2 ranks"), ConfigError);
}

TEST_CASE("two jobs at one address are told apart, and an earlier start of a job is waited out") {
  const auto errors = run_job(
      2,
      [](int rank, Seat& seat) {
        seat.place.run = rank == 0 ? "first" : "second";
        seat.options.rendezvous_timeout = 1;
      },
      [](int, Job&) { FAIL("the job began"); });
  CHECK(contains(errors[1], "ConfigError"));
  CHECK(contains(errors[1], "is of the job `second`, and the store at its address is of the job `first`"));
  CHECK(contains(errors[0], "rank 1 of 2 did not arrive within 1 s"));
  // A store of start 0 ends; rank 1 of start 1 reaches the next one.
  const int port = free_port();
  const Job::Place main{.main = {"127.0.0.1", port}, .world = 2};
  std::optional<Store> stale(std::in_place, listen_at(main.main, Reach::loopback, 0),
                             Store::Options{.world = 2, .run = "levin"});
  const auto start_1 = [&](int rank) -> string {
    Job::Place place = main;
    place.rank = rank;
    place.restart = 1;
    try {
      const auto job = Job::join({.rendezvous_timeout = 10}, place, own_card(2, ""));
      return job->rendezvous()->gather("x", "b")[0];
    } catch (const Error& e) { return e.what(); }
  };
  string of_1;
  std::thread other([&] { of_1 = start_1(1); });
  stale.reset();
  CHECK(start_1(0) == "b");
  other.join();
  CHECK(of_1 == "b");
}

TEST_CASE("the exception of one rank ends the waits of all others, with its text") {
  const auto errors = run_job(3, as_is, [](int rank, Job& job) {
    const auto world = job.rendezvous();
    (void)world->gather("together", "");
    job.note().set_step(rank == 2 ? 7 : 8);
    job.sync_note();
    (void)world->gather("noted", "");
    if (rank == 2) {
      job.note().set_phase(Phase::data);
      job.sync_note();
      job.failed("DataError: sample 3 is damaged");
      return;
    }
    (void)world->gather("alone", "");
  });
  for (const int r : {0, 1}) {
    const string& error = errors[static_cast<std::size_t>(r)];
    CHECK(contains(error, "CommError rank 2 (host "));
    CHECK(contains(error, "failed in phase data, 7 steps completed: DataError: sample 3 is damaged"));
    CHECK(contains(error, "rank 0 has completed the most steps of the survivors, 8"));
  }
  CHECK(errors[2].empty());
}

TEST_CASE("an exception that passes a job ends the other ranks' waits") {
  for (const int thrower : {0, 1}) {
    const auto errors = run_job(2, as_is, [&](int rank, Job& job) {
      if (rank == thrower) fail<ConfigError>("from rank ", rank);
      (void)job.rendezvous()->gather("alone", "");
    });
    CHECK(errors[static_cast<std::size_t>(thrower)] == "ConfigError from rank " + text(thrower));
    CHECK(contains(errors[static_cast<std::size_t>(1 - thrower)], "rank " + text(thrower) + " (host "));
  }
}

TEST_CASE("ranks that end one after the other, in any order, get no verdict") {
  for (int first = 0; first < 3; ++first) {
    std::array<Verdict, 3> verdicts;
    const auto errors = run_job(3, as_is, [&](int rank, Job& job) {
      const auto alarm = job.alarm();
      (void)job.rendezvous()->gather("together", "");
      // The rank that ends first has its barrier wait for the others.
      if (rank != first) (void)job.rendezvous()->address();
      verdicts[static_cast<std::size_t>(rank)] = alarm->verdict();
    });
    CHECK(errors == nothing(3));
    for (const Verdict& verdict : verdicts) CHECK(verdict.kind == Verdict::Kind::none);
  }
}

TEST_CASE("plans compare collectives over the store, and name a call of one rank alone") {
  const auto errors = run_job(3, as_is, [](int rank, Job& job) {
    const auto plans = job.plans();
    const auto issue = [&](std::uint64_t count, const char* words) {
      plans->issue({.op = Collective::all_reduce, .count = count}, [&] { return string(words); });
    };
    for (int step = 0; step < 10; ++step) {
      issue(8, "all_reduce f32[8]");
      if (step == 9 && rank == 0) issue(1, "all_reduce f32[1] at callback.cpp:7");
      issue(9, "all_reduce f32[9]");
    }
    (void)job.rendezvous()->gather("the data of the collective", "");
  });
  CHECK(contains(errors[0], "collectives differ between ranks: rank 0 is in all_reduce f32[1] at callback.cpp:7"));
  CHECK(contains(errors[0], "ranks 1 and 2 are in all_reduce f32[9]"));
  CHECK(errors[1] == errors[0]);
  CHECK(errors[2] == errors[0]);
}

TEST_CASE("a part's plan is its own") {
  const auto errors = run_job(4, as_is, [](int rank, Job& job) {
    const auto part = job.rendezvous()->part(rank < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3});
    const std::uint64_t count = rank < 2 ? 8 : rank == 2 ? 9 : 10;
    part->plans()->issue({.op = Collective::all_reduce, .count = count}, [&] { return "f32[" + text(count) + "]"; });
    (void)job.rendezvous()->gather("together", "");
  });
  for (const string& error : {errors[0], errors[1]}) {  // their parts agree
    CHECK(contains(error, "failed in phase rendezvous: an exception ended its use of the process group"));
  }
  CHECK(contains(errors[2], "this rank issues f32[9]; rank 1 issues f32[10]"));
  CHECK(contains(errors[3], "this rank issues f32[10]; rank 0 issues f32[9]"));
}

TEST_CASE("an error of a connection becomes the job's one cause, and abort ends all") {
  const auto errors = run_job(3, as_is, [](int rank, Job& job) {
    const auto world = job.rendezvous();
    (void)world->gather("together", "");
    if (rank == 1) world->report("recv: connection reset by peer", 2);
    (void)world->gather("alone", "");
  });
  for (const string& error : {errors[0], errors[1]}) {
    CHECK(contains(error, "rank 1 (host "));
    CHECK(contains(error, "lost its connection to rank 2 (host "));
    CHECK(contains(error, "recv: connection reset by peer"));
  }
}

TEST_CASE("the version on a rank's card is Levin's") {
  const Card card = own_card(2, "");
  bool found = false;
  for (const auto& [name, value] : card.equal) found = found || (name == "Levin" && value == build_info().version);
  CHECK(found);
  const ReadCard read = read_card(packed(card));
  CHECK(read.good);
  CHECK(read.card.equal == card.equal);
  CHECK_FALSE(read_card(packed(card).substr(0, 40)).good);
}

}  // namespace
}  // namespace levin::dist
