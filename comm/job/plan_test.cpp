#include "comm/job/plan.h"

#include <doctest/doctest.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "levin/error.h"

namespace levin::dist {
namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Ranks that are threads, with a count of exchanges.
class Table {
 public:
  explicit Table(std::size_t size) : values_(size) {}
  std::vector<std::string> gather(std::size_t rank, std::string_view mine) {
    std::unique_lock lock(mutex_);
    values_[rank] = mine;
    const std::size_t round = round_;
    if (++arrived_ == values_.size()) {
      arrived_ = 0;
      result_ = values_;
      ++round_;
      changed_.notify_all();
    } else {
      changed_.wait(lock, [&] { return round_ != round; });
    }
    return result_;
  }
  [[nodiscard]] std::size_t rounds() const { return round_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> values_, result_;
  std::size_t arrived_ = 0, round_ = 0;
};
struct Seat final : Exchange {
  Seat(Table& t, std::size_t r) : table(t), rank(r) {}
  std::vector<std::string> gather(std::string_view mine) override { return table.gather(rank, mine); }
  Table& table;
  std::size_t rank;
};

Entry reduction(std::uint64_t count, DType dtype = DType::f32) {
  return {.op = Collective::all_reduce, .dtype = dtype, .count = count, .site = 91};
}
void issue(Plans& plans, const Entry& entry) {
  plans.issue(entry,
              [&] { return std::string(name_of(entry.op)) + " " + name(entry.dtype) + "[" + text(entry.count) + "]"; });
}

// What each of `size` ranks threw.
template <class Body>
std::vector<std::string> on_ranks(Table& table, std::size_t size, const Body& body) {
  std::vector<std::string> errors(size);
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      try {
        Plans plans(std::make_shared<Seat>(table, r));
        body(plans, r);
      } catch (const CommError& e) { errors[r] = e.what(); }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

TEST_CASE("a plan is exchanged in its first pass and compared locally afterwards") {
  Table table(2);
  const auto errors = on_ranks(table, 2, [&](Plans& plans, std::size_t rank) {
    const auto pass = [&] {
      plans.begin("train/closing");
      issue(plans, reduction(4096));
      issue(plans, reduction(10));
      plans.end();
    };
    plans.begin("train/closing");
    const auto unknown = plans.hash();
    pass();
    const std::size_t after_first = table.rounds();
    pass();
    pass();
    if (rank == 0) {
      CHECK(after_first == 3);  // two entries and the end of the pass
      CHECK(table.rounds() == 3);
    }
    CHECK(plans.sequence() == 6);
    plans.begin("train/closing");
    CHECK(plans.hash() != unknown);
    CHECK(plans.last().words == "all_reduce f32[10]");
  });
  CHECK(errors == std::vector<std::string>{"", ""});
}

TEST_CASE("ranks that issue different collectives get an error with both") {
  const auto differ = [](const Entry& first, const Entry& second) {
    Table table(3);
    return on_ranks(table, 3, [&](Plans& plans, std::size_t rank) { issue(plans, rank == 2 ? second : first); });
  };
  const auto count = differ(reduction(4096), reduction(2048));
  CHECK(contains(count[0], "this rank issues all_reduce f32[4096]; rank 2 issues all_reduce f32[2048]"));
  CHECK(contains(count[2], "this rank issues all_reduce f32[2048]; ranks 0 and 1 issue all_reduce f32[4096]"));
  CHECK(contains(differ(reduction(8), reduction(8, DType::f64))[1], "rank 2 issues all_reduce f64[8]"));
  Entry other = reduction(8);
  other.op = Collective::broadcast;
  CHECK(contains(differ(reduction(8), other)[1], "rank 2 issues broadcast f32[8]"));
  other = reduction(8);
  other.reduce = 3;  // not in the words
  CHECK(contains(differ(reduction(8), other)[2], "ranks 0 and 1 issue all_reduce f32[8] (reduction 0, here 3)"));
  other = reduction(8);
  other.site = 92;
  CHECK(contains(differ(reduction(8), other)[0], "(place of the call 92, here 91)"));
  // Words alone are no difference.
  Table table(2);
  const auto errors = on_ranks(table, 2, [&](Plans& plans, std::size_t rank) {
    plans.issue(reduction(8), [&] { return "all_reduce of rank " + text(rank); });
  });
  CHECK(errors == std::vector<std::string>{"", ""});
}

TEST_CASE("a rank whose pass ends early is found at the end of the pass") {
  Table table(2);
  const auto learning = on_ranks(table, 2, [&](Plans& plans, std::size_t rank) {
    plans.begin("val");
    issue(plans, reduction(4));
    if (rank == 0) issue(plans, reduction(5));
    plans.end();
  });
  CHECK(contains(learning[0], "this rank issues all_reduce f32[5]; rank 1 issues the end of the pass `val` after 1"));
  CHECK(contains(learning[1], "rank 0 issues all_reduce f32[5]"));
  Plans alone(nullptr);
  for (int pass = 0; pass < 2; ++pass) {
    alone.begin("val");
    issue(alone, reduction(4));
    if (pass == 0) {
      issue(alone, reduction(5));
      alone.end();
    }
  }
  CHECK_THROWS_WITH_AS(alone.end(),
                       doctest::Contains("ended the pass `val` after 1 of 2 collectives; the next one was "
                                         "all_reduce f32[5]"),
                       CommError);
}

TEST_CASE("a sealed plan that changes on all ranks is learnt anew") {
  Table table(2);
  const auto errors = on_ranks(table, 2, [&](Plans& plans, std::size_t) {
    const auto pass = [&](std::uint64_t last) {
      plans.begin("train");
      issue(plans, reduction(4));
      issue(plans, reduction(last));
      plans.end();
    };
    pass(5);
    plans.begin("train");
    const auto before = plans.hash();
    pass(6);
    plans.begin("train");
    CHECK(plans.hash() != before);
    const std::size_t rounds = table.rounds();
    pass(6);
    CHECK(table.rounds() == rounds);
  });
  CHECK(errors == std::vector<std::string>{"", ""});
  // Where one rank alone changes, the exchange shows its entry beside what the other rank exchanges next.
  const auto one = on_ranks(table, 2, [&](Plans& plans, std::size_t rank) {
    for (int pass = 0; pass < 2; ++pass) {
      plans.begin("train");
      issue(plans, reduction(pass == 1 && rank == 1 ? 7 : 4));
      plans.end();
    }
    plans.begin("");
    issue(plans, {.op = Collective::barrier});
  });
  CHECK(contains(one[0], "rank 1 issues all_reduce f32[7]"));
  CHECK(contains(one[1], "rank 0 issues barrier"));
}

TEST_CASE("forgotten plans are learnt again") {
  Table table(2);
  const auto errors = on_ranks(table, 2, [&](Plans& plans, std::size_t) {
    for (int pass = 0; pass < 2; ++pass) {
      plans.begin("train");
      issue(plans, reduction(4));
      plans.end();
      plans.forget();
    }
  });
  CHECK(errors == std::vector<std::string>{"", ""});
  CHECK(table.rounds() == 4);
}

}  // namespace
}  // namespace levin::dist
