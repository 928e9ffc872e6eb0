// The failures of ranks that are processes: killed, stopped, failing, gone, late.
#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <csignal>

#include "comm/job/job.h"
#include "comm/job/point.h"
#include "comm/job/spawned_test.h"
#include "levin/error.h"

namespace levin::dist {
namespace {

using std::string;
using test::Rank;
using test::Spawned;

bool contains(const string& text, const string& part) { return text.find(part) != string::npos; }

string port_text() { return text(port_of(listen_at({"127.0.0.1", 0}, Reach::loopback, 0))); }

std::shared_ptr<Job> join(const Rank& rank, const InitOptions& options) {
  int port = 0;
  (void)std::from_chars(rank.argument().data(), rank.argument().data() + rank.argument().size(), port);
  return Job::join(options, {.main = {"127.0.0.1", port}, .world = rank.size(), .rank = rank.rank()},
                   own_card(rank.size(), ""));
}

// Three steps with a gather in the place of the gradients' reduction.
void train(Rank& rank) {
  const auto job = join(rank, {.timeout = 30, .rendezvous_timeout = 20});
  const auto world = job->rendezvous();
  Note& note = job->note();
  const auto phase = [&](Phase p) {
    note.set_phase(p);
    point(name_of(p));
  };
  try {
    for (std::int64_t step = 0; step < 3; ++step) {
      note.set_step(step);
      phase(Phase::data);
      phase(Phase::forward);
      phase(Phase::backward);
      job->plans()->issue({.op = Collective::all_reduce, .count = 8}, [] { return "all_reduce f32[8]"; });
      (void)world->gather("gradients", text(step));
      phase(Phase::optimizer);
    }
    note.set_step(3);
    phase(Phase::validation);
    (void)world->gather("metrics", "");
    phase(Phase::save);
    (void)world->gather("saved", "");
  } catch (const CommError&) {
    const Verdict verdict = job->alarm()->verdict();
    rank.report(string(name_of(verdict.kind)) + " " + text(verdict.rank));
    rank.report("newest " + text(verdict.newest_step) + " by " + text(verdict.writer));
    throw;
  } catch (const DataError& e) {
    job->failed(string("DataError: ") + e.what());
    throw;
  }
}

// What survivors throw after `points` for the rank.
string survivors_error(int rank, const string& points, const string& kind, bool of_store) {
  Spawned group(3, train, {.argument = port_text(), .points = points});
  group.wait();
  string error;
  for (int r = 0; r < 3; ++r) {
    if (r == rank) continue;
    CHECK(group.end_of(r).code == 1);
    REQUIRE(group.end_of(r).reports.size() == 2);
    CHECK(group.end_of(r).reports[0] == kind + " " + text(rank));
    if (!of_store) CHECK_FALSE(contains(group.end_of(r).reports[1], "newest -1"));
    CHECK(group.seconds_to_error(rank, "rank " + text(rank) + " at ", r) < 2);
    if (!error.empty() && !of_store) CHECK(group.end_of(r).error == error);
    error = group.end_of(r).error;
  }
  return error;
}

TEST_CASE("a rank that is killed in any phase is named with phase and steps by all survivors") {
  const std::array<string, 6> phases{"data", "forward", "backward", "optimizer", "validation", "save"};
  for (std::size_t i = 0; i < phases.size(); ++i) {
    const int rank = 1 + static_cast<int>(i) % 2;
    const bool in_step = i < 4;
    CAPTURE(phases[i]);
    const string error = survivors_error(
        rank, "rank " + text(rank) + ": at " + phases[i] + (in_step ? " of step 1" : "") + " -> kill", "lost", false);
    CHECK(contains(error, "CommError: rank " + text(rank) + " (host "));
    CHECK(contains(error, "was lost in phase " + phases[i] + (in_step ? ", 1 step completed" : ", 3 steps completed")));
  }
}

TEST_CASE("survivors of rank 0, which had the store, name it with its phase") {
  const string error = survivors_error(0, "rank 0: at forward of step 2 -> kill", "lost", true);
  CHECK(contains(error, "CommError: rank 0 (host "));
  CHECK(contains(error, "was lost in phase forward, 2 steps completed; the job's store was there"));
}

TEST_CASE("a rank that is killed while collectives are compared is named") {
  const string error = survivors_error(1, "rank 1: at plan:exchange -> kill", "lost", false);
  CHECK(contains(error, "was lost in phase backward, 0 steps completed"));
}

TEST_CASE("an exception of one rank reaches the others with its text") {
  const string error = survivors_error(2, "rank 2: at data of step 1 -> throw", "failed", false);
  CHECK(contains(error, "failed in phase data, 1 step completed: DataError: LEVIN_POINTS: rank 2 at data 0"));
}

TEST_CASE("a rank that is killed before it arrives is missed by number") {
  Spawned group(3, [](Rank& rank) { (void)join(rank, {.rendezvous_timeout = 0.4}); },
                {.argument = port_text(), .points = "rank 2: at rendezvous -> kill"});
  group.wait();
  CHECK(group.end_of(2).signal == SIGKILL);
  for (const int r : {0, 1}) CHECK(contains(group.end_of(r).error, "rank 2 of 3 did not arrive within 0.4 s"));
}

TEST_CASE("a rank that is stopped is silent, and named by all others") {
  for (const int stopped : {0, 1}) {
    Spawned group(3,
                  [](Rank& rank) {
                    const auto job = join(rank, {.timeout = 30, .rendezvous_timeout = 20, .silence = 0.4});
                    (void)job->rendezvous()->gather("together", "");
                    job->note().set_phase(Phase::forward);
                    point("here");
                    (void)job->rendezvous()->gather("gradients", "");
                  },
                  {.argument = port_text(), .points = "rank " + text(stopped) + ": at here -> stop"});
    group.wait_but(stopped);
    group.kill(stopped, SIGKILL);
    group.wait();
    for (int r = 0; r < 3; ++r) {
      if (r == stopped) continue;
      const string& error = group.end_of(r).error;
      CAPTURE(error);
      CHECK(contains(error, "CommError: rank " + text(stopped) + " (host "));
      CHECK(contains(error, "has been silent for 0."));
      CHECK(contains(error, "last heard in phase forward"));
      CHECK(group.seconds_to_error(stopped, "rank " + text(stopped) + " at here", r) < 0.4 + 2);
    }
  }
}

TEST_CASE("a rank that is alive and does not come is stuck after the timeout") {
  Spawned group(2,
                [](Rank& rank) {
                  const auto job = join(rank, {.timeout = 0.3, .rendezvous_timeout = 20});
                  (void)job->rendezvous()->gather("together", "");
                  job->note().set_phase(Phase::data);
                  point("here");
                  (void)job->rendezvous()->gather("gradients", "");
                },
                {.argument = port_text(), .points = "rank 1: at here -> hold"});
  group.wait_but(1);
  group.release();
  group.wait();
  for (const int r : {0, 1}) {
    CHECK(contains(group.end_of(r).error, "CommError: rank 1 (host "));
    CHECK(contains(group.end_of(r).error, "is alive and has not come to a collective for 0."));
    CHECK(contains(group.end_of(r).error, "in phase data"));
    CHECK(group.seconds_to_error(1, "rank 1 at here", r) < 0.3 + 2);
  }
}

TEST_CASE("ranks that end without a word, or are killed at their end, are named by the rest") {
  Spawned group(3,
                [](Rank& rank) {
                  const auto job = join(rank, {.timeout = 30, .rendezvous_timeout = 20});
                  (void)job->rendezvous()->gather("together", "");
                  if (rank.rank() == 1) ::_exit(3);
                  (void)job->rendezvous()->gather("gradients", "");
                },
                {.argument = port_text()});
  group.wait();
  CHECK(group.end_of(1).code == 3);
  for (const int r : {0, 2}) CHECK(contains(group.end_of(r).error, "CommError: rank 1 (host "));
  Spawned at_end(3,
                 [](Rank& rank) {
                   const auto job = join(rank, {.timeout = 30, .rendezvous_timeout = 20});
                   (void)job->rendezvous()->gather("together", "");
                 },
                 {.argument = port_text(), .points = "rank 2: at exit -> kill"});
  at_end.wait();
  for (const int r : {0, 1}) {
    CHECK(at_end.end_of(r).code == 0);
    CHECK(contains(at_end.end_of(r).output, "was lost in phase exit"));
  }
}

TEST_CASE("a process begins a job at the address of the one that it has left, while others still leave that one") {
  Spawned group(
      3,
      [](Rank& rank) {
        for (const char* job : {"first", "second"})
          rank.report(join(rank, {.timeout = 30, .rendezvous_timeout = 20})->rendezvous()->gather("", job)[2]);
      },
      {.argument = port_text(), .points = "rank 1: at rendezvous:stale -> hold; rank 2: at leave -> hold"});
  group.wait_for(2, "rank 2 at leave 0");
  group.wait_for(1, "rank 1 at rendezvous:stale 0");
  group.release();
  group.wait();
  for (int r = 0; r < 3; ++r) {
    CHECK(group.end_of(r).error.empty());
    CHECK(group.end_of(r).output.empty());
    CHECK(group.end_of(r).reports.back() == (r == 2 ? "rank 2 at leave 0" : "second"));
  }
}

TEST_CASE("processes end in any order without a word about it") {
  for (int held = 0; held < 3; ++held) {
    Spawned group(3,
                  [](Rank& rank) {
                    const auto job = join(rank, {.timeout = 30, .rendezvous_timeout = 20});
                    (void)job->rendezvous()->gather("together", "");
                    rank.report("ends");
                    point("end");
                  },
                  {.argument = port_text(), .points = "rank " + text(held) + ": at end -> hold"});
    for (int r = 0; r < 3; ++r) group.wait_for(r, "ends");
    group.release();
    group.wait();
    for (int r = 0; r < 3; ++r) {
      CHECK(group.end_of(r).code == 0);
      CHECK(group.end_of(r).output.empty());
    }
  }
}

}  // namespace
}  // namespace levin::dist
