// Threads of this process that meet as the processes of a job do: for tests of backends without a fork.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/job/rendezvous.h"
#include "levin/comm.h"
#include "levin/error.h"

namespace levin::test {

// What the threads of one group share.
struct Board {
  explicit Board(std::vector<int> ranks) : world(std::move(ranks)), words(world.size()) {}
  std::vector<int> world;  // ranks of the job
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> words;
  std::size_t arrived = 0;
  std::uint64_t round = 0;
  std::map<std::pair<std::vector<int>, int>, std::shared_ptr<Board>> parts;

  std::vector<std::string> gather(std::size_t rank, std::string_view mine, const dist::Alarm& alarm) {
    alarm.check();
    std::unique_lock lock(mutex);
    const std::uint64_t now = round;
    words[rank] = mine;
    if (++arrived == words.size()) {
      arrived = 0;
      ++round;
      last = words;
      changed.notify_all();
      return last;
    }
    while (round == now) {
      changed.wait_for(lock, std::chrono::milliseconds(5));
      if (round == now) alarm.check();
    }
    return last;
  }
  std::vector<std::string> last;
};

class ThreadRanks final : public dist::Rendezvous {
 public:
  enum class Compares : bool { no, yes };
  ThreadRanks(std::shared_ptr<Board> board, int rank, int ranks_of_a_host, std::shared_ptr<dist::Alarm> alarm,
              Compares compares, double timeout)
      : board_(std::move(board)),
        rank_(rank),
        of_a_host_(ranks_of_a_host),
        alarm_(std::move(alarm)),
        compares_(compares),
        timeout_(timeout) {
    struct Exchange final : dist::Exchange {
      std::vector<std::string> gather(std::string_view mine) override { return board->gather(rank, mine, *alarm); }
      std::shared_ptr<Board> board;
      std::size_t rank = 0;
      std::shared_ptr<dist::Alarm> alarm;
    };
    auto exchange = std::make_shared<Exchange>();
    exchange->board = board_;
    exchange->rank = static_cast<std::size_t>(rank_);
    exchange->alarm = alarm_;
    plans_ = std::make_shared<dist::Plans>(compares == Compares::yes ? exchange : nullptr);
  }
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return static_cast<int>(board_->world.size()); }
  [[nodiscard]] int world_rank(int rank) const override { return board_->world[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] std::string host(int rank) const override { return std::to_string(world_rank(rank) / of_a_host_); }
  std::vector<std::string> gather(std::string_view, std::string_view mine) override {
    return board_->gather(static_cast<std::size_t>(rank_), mine, *alarm_);
  }
  [[nodiscard]] std::shared_ptr<dist::Rendezvous> part(const std::vector<int>& ranks) override {
    const std::lock_guard lock(board_->mutex);
    std::shared_ptr<Board>& board = board_->parts[{ranks, made_[ranks]++}];
    if (!board) {
      std::vector<int> world;
      for (const int r : ranks) world.push_back(world_rank(r));
      board = std::make_shared<Board>(world);
    }
    int place = 0;
    while (ranks[static_cast<std::size_t>(place)] != rank_) ++place;
    return std::make_shared<ThreadRanks>(board, place, of_a_host_, alarm_, compares_, timeout_);
  }
  [[nodiscard]] const std::shared_ptr<dist::Alarm>& alarm() const override { return alarm_; }
  [[nodiscard]] const std::shared_ptr<dist::Plans>& plans() const override { return plans_; }
  [[nodiscard]] dist::Note& note() override { return note_; }
  [[nodiscard]] double timeout() const override { return timeout_; }
  void report(std::string_view what, int) override {
    dist::Verdict verdict;
    verdict.kind = dist::Verdict::Kind::aborted;
    verdict.text = what;
    alarm_->raise(std::move(verdict));
  }

 private:
  std::shared_ptr<Board> board_;
  int rank_, of_a_host_;
  std::shared_ptr<dist::Alarm> alarm_;
  Compares compares_;
  double timeout_;
  std::shared_ptr<dist::Plans> plans_;
  dist::Note note_;
  std::map<std::vector<int>, int> made_;
};

struct ThreadJob {
  int ranks = 2;
  int ranks_of_a_host = 1024;
  ThreadRanks::Compares compares = ThreadRanks::Compares::yes;
  double timeout = 60;
};
// Runs body(rendezvous of rank r) on a thread for each rank; returns what each one threw, empty: nothing.
template <class Body>
std::vector<std::string> run_threads(const ThreadJob& job, const Body& body) {
  std::vector<int> world;
  for (int r = 0; r < job.ranks; ++r) world.push_back(r);
  const auto board = std::make_shared<Board>(world);
  const auto alarm = std::make_shared<dist::Alarm>();
  std::vector<std::string> errors(world.size());
  std::vector<std::thread> threads;
  for (int r = 0; r < job.ranks; ++r) {
    threads.emplace_back([&, r] {
      try {
        body(std::make_shared<ThreadRanks>(board, r, job.ranks_of_a_host, alarm, job.compares, job.timeout));
      } catch (const std::exception& e) {
        errors[static_cast<std::size_t>(r)] = e.what();
        dist::Verdict verdict;
        verdict.kind = dist::Verdict::Kind::failed;
        verdict.text = "rank " + std::to_string(r) + " failed: " + e.what();
        alarm->raise(std::move(verdict));
      }
    });
  }
  for (std::thread& t : threads) t.join();
  return errors;
}

}  // namespace levin::test
