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

TEST_CASE("a step's collectives are exchanged until they recur, and are expected afterwards") {
  Table table(2);
  std::size_t learnt = 0;
  const auto errors = on_ranks(table, 2, [&](Plans& plans, std::size_t rank) {
    const auto step = [&] {
      for (const std::uint64_t count : {4096, 10, 4}) issue(plans, reduction(count));
    };
    for (int i = 0; i < 3; ++i) step();
    if (rank == 0) learnt = table.rounds();
    for (int i = 0; i < 100; ++i) step();
    CHECK(plans.passed() == 309);
    CHECK(plans.last().words == "all_reduce f32[4]");
  });
  CHECK(errors == std::vector<std::string>{"", ""});
  CHECK(learnt <= 9);
  CHECK(table.rounds() == learnt);
}

TEST_CASE("windows of several batches are expected, and a step after an unusual collective") {
  Table table(2);
  std::size_t learnt = 0, after = 0;
  const auto errors = on_ranks(table, 2, [&](Plans& plans, std::size_t rank) {
    const auto window = [&] {
      for (int batch = 0; batch < 4; ++batch) {
        issue(plans, reduction(4));
        if (batch == 3) issue(plans, reduction(4096));
        issue(plans, reduction(5));
      }
    };
    for (int i = 0; i < 5; ++i) window();
    if (rank == 0) learnt = table.rounds();
    for (int i = 0; i < 20; ++i) window();
    if (rank == 0) after = table.rounds();
    issue(plans, reduction(77));
    for (int i = 0; i < 5; ++i) window();
  });
  CHECK(errors == std::vector<std::string>{"", ""});
  CHECK(after == learnt);
  CHECK(table.rounds() > after);
  CHECK(table.rounds() <= after + 12);
}

TEST_CASE("the one rank that issues another collective than before meets the others' next exchange") {
  Table table(2);
  const auto errors = on_ranks(table, 2, [&](Plans& plans, std::size_t rank) {
    for (int i = 0; i < 20; ++i) issue(plans, reduction(i == 15 && rank == 1 ? 7 : 4));
    issue(plans, {.op = Collective::barrier});
  });
  CHECK(contains(errors[0], "rank 1 issues all_reduce f32[7]"));
  CHECK(contains(errors[1], "rank 0 issues barrier"));
}

TEST_CASE("a rank that left out an expected collective does not agree with the others on the next new one") {
  Table table(2);
  const auto errors = on_ranks(table, 2, [&](Plans& plans, std::size_t rank) {
    for (int i = 0; i < 20; ++i) {
      issue(plans, reduction(4));
      if (i < 19 || rank == 0) issue(plans, reduction(5));
    }
    issue(plans, reduction(6));
  });
  CHECK(contains(errors[0], "rank 1 issues all_reduce f32[6] (number in the group 40, here 41)"));
  CHECK(contains(errors[1], "rank 0 issues all_reduce f32[6] (number in the group 41, here 40)"));
}

TEST_CASE("collectives that never recur are each exchanged, within bounded memory") {
  Plans alone(nullptr);
  for (std::uint64_t i = 0; i < 100'000; ++i) issue(alone, reduction(i));
  CHECK(alone.passed() == 100'000);
  CHECK(alone.last().words == "all_reduce f32[99999]");
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

}  // namespace
}  // namespace levin::dist
