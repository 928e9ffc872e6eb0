#include "comm/job/judge.h"

#include <doctest/doctest.h>

#include "levin/error.h"

namespace levin::dist {
namespace {

using std::string;

bool contains(const string& text, const string& part) { return text.find(part) != string::npos; }

// Ranks that beat each half second of a clock that the test moves.
struct Trial {
  explicit Trial(int world, double timeout = 100) : judge(world, {.silence = 3, .timeout = timeout}), size(world) {
    std::vector<string> names;
    for (int r = 0; r < world; ++r) names.push_back("rank " + text(r) + " (host a)");
    judge.start(names, 0);
    beats.resize(static_cast<std::size_t>(world));
  }
  // All ranks but `silent` beat until `end`; the verdict, with the answers of all ranks to the store's question.
  std::optional<Verdict> until(double end, int silent = -1) {
    while (now < end) {
      now = std::min(now + 0.5, end);
      for (int r = 0; r < size; ++r) {
        Beat& b = beats[static_cast<std::size_t>(r)];
        b.phase_age += 0.5;
        if (b.site != 0) b.wait_age += 0.5;
        if (r != silent) judge.beat(r, b, now);
      }
      if (auto verdict = consider()) return verdict;
      if (auto warning = judge.warning(now)) warnings.push_back(*warning);
    }
    return std::nullopt;
  }
  std::optional<Verdict> ask() {
    now += 2 * Judge::kLookEvery;
    return consider();
  }
  std::optional<Verdict> consider() {
    if (!judge.asks(now)) return judge.decide(now);
    CHECK_FALSE(judge.asks(now));  // once
    for (std::size_t r = 0; r < words.size(); ++r) judge.answered(static_cast<int>(r), words[r]);
    now += Judge::kAskGrace;
    return judge.decide(now);
  }
  Beat& beat(int r) { return beats[static_cast<std::size_t>(r)]; }

  Judge judge;
  int size;
  double now = 0;
  std::vector<Beat> beats;
  std::vector<string> words, warnings;
};

TEST_CASE("ranks that beat get no verdict, however long they compute") {
  Trial trial(3);
  CHECK_FALSE(trial.until(60));
  CHECK(trial.warnings.empty());
}

TEST_CASE("a rank whose connection closes is lost, with its phase, its step and the survivors' newest step") {
  Trial trial(3);
  trial.beat(0).step = 12;
  trial.beat(1) = {.phase = Phase::backward, .step = 12};
  trial.beat(2).step = 13;
  trial.words = {"all_reduce f32[8]", "all_reduce f32[8]", "all_reduce f32[8]"};
  CHECK_FALSE(trial.until(1));
  trial.judge.lost(1, trial.now);
  const auto verdict = trial.ask();
  REQUIRE(verdict);
  CHECK(verdict->kind == Verdict::Kind::lost);
  CHECK(verdict->rank == 1);
  CHECK(verdict->newest_step == 13);
  CHECK(verdict->writer == 2);
  CHECK(contains(verdict->text, "rank 1 (host a) was lost in phase backward, 12 steps completed"));
  CHECK(contains(verdict->text, "ranks 0 and 2 are after all_reduce f32[8]"));
  CHECK_FALSE(trial.ask());  // one verdict
}

TEST_CASE("a silent rank is named after the silence, and a store that slept blames no rank") {
  Trial trial(2);
  trial.beat(1).phase = Phase::data;
  CHECK_FALSE(trial.until(0.5));
  const auto verdict = trial.until(10, 1);
  REQUIRE(verdict);
  CHECK(verdict->kind == Verdict::Kind::silent);
  CHECK(verdict->rank == 1);
  CHECK(trial.now < 4.5);
  CHECK(contains(verdict->text, "has been silent for"));
  CHECK(contains(verdict->text, "in phase data"));
  Trial asleep(2);
  CHECK_FALSE(asleep.until(1));
  asleep.now += 100;
  asleep.judge.slept(asleep.now);
  CHECK_FALSE(asleep.ask());
}

TEST_CASE("a rank that does not come to a collective is stuck after the timeout") {
  Trial trial(3, 20);
  trial.beat(0) = {.entry = 5, .site = 9};
  trial.beat(2) = {.entry = 5, .site = 9};
  trial.beat(1).phase = Phase::data;
  trial.words = {"all_reduce f32[8]", "broadcast f32[2]", "all_reduce f32[8]"};
  CHECK_FALSE(trial.until(19));
  const auto verdict = trial.until(25);
  REQUIRE(verdict);
  CHECK(verdict->kind == Verdict::Kind::stuck);
  CHECK(verdict->rank == 1);
  CHECK(contains(verdict->text, "is in phase data"));
  CHECK(contains(verdict->text, "ranks 0 and 2 are in all_reduce f32[8]"));
  // Where all wait, no rank is to blame.
  Trial all(2, 20);
  all.beat(0) = all.beat(1) = {.entry = 5, .site = 9};
  const auto of_all = all.until(25);
  REQUIRE(of_all);
  CHECK(of_all->rank == -1);
}

TEST_CASE("a failing rank's text comes before the loss of its connection") {
  Trial trial(2);
  CHECK_FALSE(trial.until(1));
  trial.judge.failed(1, "DataError: file 7 is damaged", trial.now);
  trial.judge.lost(1, trial.now);
  const auto verdict = trial.ask();
  REQUIRE(verdict);
  CHECK(verdict->kind == Verdict::Kind::failed);
  CHECK(contains(verdict->text, "rank 1 (host a) failed"));
  CHECK(contains(verdict->text, "DataError: file 7 is damaged"));
}

TEST_CASE("a rank's report counts only when no better cause is found") {
  Trial better(3);
  CHECK_FALSE(better.until(1));
  better.judge.reported(0, 2, "connection reset", better.now);
  CHECK_FALSE(better.ask());
  better.judge.lost(2, better.now);
  const auto lost = better.ask();
  REQUIRE(lost);
  CHECK(lost->kind == Verdict::Kind::lost);
  Trial trial(3);
  CHECK_FALSE(trial.until(1));
  trial.judge.reported(0, 2, "connection reset", trial.now);
  const auto verdict = trial.until(2);
  REQUIRE(verdict);
  CHECK(verdict->kind == Verdict::Kind::aborted);
  CHECK(verdict->rank == 2);
  CHECK(contains(verdict->text, "connection reset"));
  Trial abort(2);
  abort.judge.reported(1, -1, "the user says so", 0);
  const auto aborted = abort.ask();
  REQUIRE(aborted);
  CHECK(aborted->rank == -1);
}

TEST_CASE("a collective on one rank alone is a mismatch as soon as another rank has passed its place in the plan") {
  Trial trial(3);
  const std::vector<int> all{0, 1, 2};
  trial.words = {"broadcast f32[1]", "all_reduce f32[8]", "all_reduce f32[8]"};
  for (int r = 0; r < 3; ++r) trial.judge.passed(r, "w", 4);
  trial.judge.gathers(0, "w", all, 5, "entries", trial.now);
  CHECK_FALSE(trial.until(5));  // the others may come
  trial.judge.passed(2, "other", 9);
  CHECK_FALSE(trial.until(6));
  trial.judge.passed(2, "w", 5);
  const auto verdict = trial.ask();
  REQUIRE(verdict);
  CHECK(verdict->kind == Verdict::Kind::mismatch);
  CHECK(verdict->rank == 0);
  CHECK(contains(verdict->text, "rank 0 is in broadcast f32[1]"));
  CHECK(contains(verdict->text, "ranks 1 and 2 are after all_reduce f32[8]"));
}

TEST_CASE("the end of another group at the same time leaves a mismatch its words") {
  Trial trial(3);
  const std::vector<int> all{0, 1, 2};
  trial.words = {"broadcast f32[1]", "all_reduce f32[8]", "all_reduce f32[8]"};
  for (int r = 0; r < 3; ++r) trial.judge.passed(r, "w", 4);
  trial.judge.gathers(0, "w", all, 5, "entries", trial.now);
  trial.judge.passed(2, "w", 5);
  trial.judge.passed(0, "part", 2);
  trial.judge.passed(1, "part", 3);
  trial.judge.ends(0, "part");
  const auto verdict = trial.ask();
  REQUIRE(verdict);
  CHECK(verdict->kind == Verdict::Kind::mismatch);
  CHECK(contains(verdict->text, "rank 0 is in broadcast f32[1]"));
}

TEST_CASE("a rank that has left is named by those who wait for it, and leaves without a verdict else") {
  Trial trial(3);
  trial.judge.left(1);
  trial.judge.lost(1, trial.now);
  CHECK_FALSE(trial.until(30));
  trial.judge.gathers(0, "part", {0, 2}, 0, "addresses", trial.now);
  CHECK_FALSE(trial.until(31));
  trial.judge.gathers(2, "w", {0, 1, 2}, 0, "addresses", trial.now);
  const auto verdict = trial.ask();
  REQUIRE(verdict);
  CHECK(verdict->kind == Verdict::Kind::mismatch);
  CHECK(verdict->rank == 1);
  CHECK(contains(verdict->text,
                 "rank 1 (host a) has come to its end of the job, and rank 2 (host a) waits for it in addresses"));
  Trial end(2);
  end.judge.finish();
  end.judge.lost(0, 1);
  CHECK_FALSE(end.until(30, 1));
}

TEST_CASE("a rank that ends is named where another waits for it in a collective that was expected") {
  Trial trial(3);
  trial.words = {"all_reduce f32[8]", "all_reduce f32[8]", "broadcast f32[1]"};
  for (int r = 0; r < 3; ++r) trial.judge.passed(r, "w", 4);
  trial.judge.passed(0, "part", 9);
  trial.judge.passed(2, "part", 9);
  trial.judge.closes(1);
  trial.judge.passed(0, "part", 10);  // rank 1 is not in it
  CHECK_FALSE(trial.until(5));        // the others come to their ends later
  trial.judge.passed(2, "w", 5);
  const auto verdict = trial.ask();
  REQUIRE(verdict);
  CHECK(verdict->kind == Verdict::Kind::mismatch);
  CHECK(verdict->rank == 1);
  CHECK(contains(verdict->text,
                 "rank 1 (host a) has come to its end of the group after 4 collectives, and rank 2 (host a) "
                 "waits for it in one more; call the same collectives on all ranks; rank 0 is after all_reduce f32[8], "
                 "rank 2 is after broadcast f32[1]"));
  CHECK(verdict->writer != 1);
  // Of one group, while both work in others.
  Trial of_part(2);
  of_part.judge.passed(0, "part", 3);
  of_part.judge.passed(1, "part", 2);
  of_part.judge.passed(0, "w", 7);
  of_part.judge.passed(1, "w", 6);
  CHECK_FALSE(of_part.until(5));
  of_part.judge.ends(1, "part");
  const auto in_part = of_part.ask();
  REQUIRE(in_part);
  CHECK(contains(in_part->text, "rank 1 (host a) has come to its end of the group after 2 collectives, and rank 0"));
  // Where all end, nobody waits, whatever each has called last.
  Trial all(2);
  all.judge.passed(0, "w", 5);
  all.judge.closes(0);
  all.judge.passed(1, "w", 4);
  all.judge.closes(1);
  CHECK_FALSE(all.until(30));
}

TEST_CASE("a rank that computes four times as long as the others is named with the ratio") {
  Trial trial(3);
  // Steps of a second: ranks 0 and 2 compute for a fifth of it, rank 1 for four.
  for (int second = 1; second <= 30; ++second) {
    for (int r = 0; r < 3; ++r) {
      trial.beat(r).step = second;
      trial.beat(r).waited += r == 1 ? 0.2 : 0.8;
    }
    CHECK_FALSE(trial.until(second));
  }
  REQUIRE(!trial.warnings.empty());
  INFO(trial.warnings[0]);
  CHECK(contains(trial.warnings[0], "rank 1 (host a) is 4 times slower"));
}

}  // namespace
}  // namespace levin::dist
