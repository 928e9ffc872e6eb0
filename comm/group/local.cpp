#include "comm/group/local.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <numeric>
#include <string>
#include <system_error>
#include <thread>
#include <tuple>
#include <utility>

#include "comm/group/cpu_group.h"
#include "comm/group/engine.h"
#include "comm/group/reduce.h"
#include "comm/group/spin.h"
#include "tensor/core/thread_modes.h"
#include "tensor/text/number_text.h"

namespace levin::dist {
namespace {

using Clock = std::chrono::steady_clock;

// Note [Collectives of threads]
//
// The ranks of a local group see each other's memory, so nothing is sent. Each rank shows its task and waits for the
// others; the last one compares the entries. Then each rank writes its part: of an all_reduce rank r reads slice r of
// all ranks and writes the result to slice r of all ranks. A rank leaves when all have written. The second wait cannot
// be aborted, because others may still read this rank's memory, and need not be, because writing waits for no one.
class Hub {
 public:
  Hub(int size, double timeout) : tasks_(static_cast<std::size_t>(size)), timeout_(timeout) {}

  void run(int rank, const Task& task) {
    enter(rank, task);
    move(rank, task);
    leave();
  }

  void send(int rank, const Task& task) {
    Message message{.dtype = task.dtype, .where = task.where, .count = task.count, .bytes{}};
    message.bytes.assign(task.in, task.in + task.bytes());
    const std::lock_guard lock(mutex_);
    check_alive(task);
    mail_[{rank, task.peer, task.tag}].push_back(std::move(message));
    changed_.notify_all();
  }

  void recv(int rank, const Task& task) {
    Message message;
    {
      std::unique_lock lock(mutex_);
      std::deque<Message>& box = mail_[{task.peer, rank, task.tag}];
      const bool came = changed_.wait_until(lock, deadline(), [&] {
        return !box.empty() || dead_ || std::count(left_.begin(), left_.end(), task.peer) != 0;
      });
      if (box.empty()) {
        check_alive(task);
        if (came) fail<CommError>(words(task), ": rank ", task.peer, " has ended and sent no message");
        fail<CommError>(words(task), ": rank ", task.peer, " has sent no message for ", timeout_, " s");
      }
      message = std::move(box.front());
      box.pop_front();
    }
    if (message.dtype != task.dtype || message.count != task.count) {
      fail<CommError>(words(task), ": rank ", task.peer, " sent ", text(message.dtype), "[", message.count, "], this ",
                      "rank takes ", text(task.dtype), "[", task.count, "]");
    }
    if (!message.bytes.empty()) std::memcpy(task.out, message.bytes.data(), message.bytes.size());
  }

  // The hub of a part; the first of its ranks makes it.
  std::shared_ptr<Hub> part(std::uint64_t number, int color, int size) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Hub>& hub = parts_[{number, color}];
    if (!hub) {
      hub = std::make_shared<Hub>(size, timeout_);
      if (dead_) hub->abort(reason_);
    }
    return hub;
  }

  void abort(std::string_view reason) noexcept {
    const std::lock_guard lock(mutex_);
    kill(std::string(reason));
    for (const auto& [key, hub] : parts_) hub->abort(reason);
  }

  // The rank issues nothing more.
  void end(int rank) noexcept {
    const std::lock_guard lock(mutex_);
    left_.push_back(rank);
    if (arrived_ > 0) kill(left_words());
    changed_.notify_all();
  }

 private:
  struct Message {
    DType dtype{};
    std::source_location where;
    std::int64_t count = 0;
    std::vector<std::byte> bytes;
  };

  [[nodiscard]] Clock::time_point deadline() const {
    // A long timeout must not overflow the clock.
    return Clock::now() +
           std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::clamp(timeout_, 0.0, 1e8)));
  }
  [[nodiscard]] std::string left_words() const {
    return "rank " + text(left_.front()) + " has ended and takes no part in the collective";
  }
  void kill(std::string reason) {  // with the lock
    if (dead_) return;
    reason_ = std::move(reason);
    dead_ = true;
    changed_.notify_all();
  }
  void check_alive(const Task& task) const {
    if (dead_) fail<CommError>(words(task), ": ", reason_);
  }

  void enter(int rank, const Task& task) {
    const auto me = static_cast<std::size_t>(rank);
    std::unique_lock lock(mutex_);
    if (!left_.empty()) kill(left_words());
    check_alive(task);
    tasks_[me] = &task;
    if (++arrived_ == tasks_.size()) {
      arrived_ = 0;
      if (std::string differs = compare(); !differs.empty()) {
        kill(std::move(differs));
        check_alive(task);
      }
      moving_.store(static_cast<int>(tasks_.size()), std::memory_order_relaxed);
      round_.fetch_add(1, std::memory_order_release);
      lock.unlock();
      changed_.notify_all();
      return;
    }
    const std::uint64_t before = round_.load(std::memory_order_relaxed);
    lock.unlock();
    const auto ready = [&] { return round_.load(std::memory_order_acquire) != before; };
    if (spin_until(ready)) return;
    lock.lock();
    if (!changed_.wait_until(lock, deadline(), [&] { return ready() || dead_; })) kill(missing_words());
    if (ready()) return;
    check_alive(task);
  }

  // Returns when all ranks have written.
  void leave() {
    if (moving_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      const std::lock_guard lock(mutex_);
      changed_.notify_all();
      return;
    }
    // The next round begins when this rank has entered it.
    const auto over = [&] { return moving_.load(std::memory_order_acquire) == 0; };
    if (spin_until(over)) return;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, over);
  }

  [[nodiscard]] std::string compare() const {
    bool equal = true;
    for (const Task* const task : tasks_) equal = equal && task->entry == tasks_[0]->entry;
    if (equal) return {};
    std::vector<std::string> calls;
    for (const Task* const task : tasks_) calls.push_back(words(*task));
    return "the ranks issue different collectives: " + all_words(calls);
  }

  [[nodiscard]] std::string missing_words() const {
    return text(tasks_.size() - arrived_) + " of " + text(tasks_.size()) + " ranks did not come within " +
           text(timeout_) + " s";
  }

  void move(int rank, const Task& task) const {
    const auto ranks = static_cast<std::int64_t>(tasks_.size());
    const auto item = static_cast<std::int64_t>(itemsize(task.dtype));
    const std::size_t bytes = task.bytes();
    const auto slice = static_cast<std::int64_t>(bytes);
    switch (task.op) {
      case Collective::all_reduce: {
        // Slices begin at multiples of a cache line.
        const std::int64_t step = (task.count + ranks * 64 - 1) / (ranks * 64) * 64;
        const std::int64_t begin = std::min(task.count, rank * step), end = std::min(task.count, begin + step);
        if (begin == end) return;
        std::vector<const std::byte*> in;
        std::vector<std::byte*> outs;
        for (const Task* const t : tasks_) {
          in.push_back(t->in + begin * item);
          outs.push_back(t->out + begin * item);
        }
        reduce_tree(task.dtype, task.reduce, in, outs, end - begin);
        return;
      }
      case Collective::reduce_scatter: {
        if (bytes == 0) return;
        std::vector<const std::byte*> in;
        for (const Task* const t : tasks_) in.push_back(t->in + rank * slice);
        std::byte* const outs[] = {task.out};
        reduce_tree(task.dtype, task.reduce, in, outs, task.count);
        return;
      }
      case Collective::broadcast:
        if (rank != task.peer && bytes > 0) {
          std::memcpy(task.out, tasks_[static_cast<std::size_t>(task.peer)]->in, bytes);
        }
        return;
      case Collective::all_gather:
      case Collective::all_to_all:
        if (bytes == 0) return;
        for (std::int64_t r = 0; r < ranks; ++r) {
          const std::byte* const in = tasks_[static_cast<std::size_t>(r)]->in;
          const std::byte* const from = task.op == Collective::all_gather ? in : in + rank * slice;
          if (from != task.out + r * slice) std::memcpy(task.out + r * slice, from, bytes);
        }
        return;
      case Collective::send:
      case Collective::recv:
      case Collective::barrier:
      case Collective::text: return;
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<const Task*> tasks_;  // of the round
  std::size_t arrived_ = 0;
  std::atomic<std::uint64_t> round_{0};
  std::atomic<int> moving_{0};  // ranks of the round that have not written their part
  std::vector<int> left_;
  bool dead_ = false;
  std::string reason_;
  std::map<std::tuple<int, int, int>, std::deque<Message>> mail_;  // from, to, tag
  std::map<std::pair<std::uint64_t, int>, std::shared_ptr<Hub>> parts_;
  double timeout_;
};

// The rank, of all, whose failure ended the group of all or a part; -1: none.
class FirstFailure {
 public:
  void note(int rank) noexcept {
    int none = -1;
    rank_.compare_exchange_strong(none, rank);
  }
  [[nodiscard]] int rank() const { return rank_; }

 private:
  std::atomic<int> rank_{-1};
};

class LocalEngine final : public Engine {
 public:
  LocalEngine(std::shared_ptr<Hub> hub, int rank, std::shared_ptr<FirstFailure> failure, int rank_of_all)
      : hub_(std::move(hub)), rank_(rank), failure_(std::move(failure)), rank_of_all_(rank_of_all) {}
  ~LocalEngine() override {
    if (std::uncaught_exceptions() > 0) failure_->note(rank_of_all_);  // the others only see that the rank has ended
    hub_->end(rank_);
  }
  [[nodiscard]] std::string_view name() const override { return "local"; }
  void run(const Task& task) override { hub_->run(rank_, task); }
  void send(const Task& task) override { hub_->send(rank_, task); }
  void recv(const Task& task) override { hub_->recv(rank_, task); }
  [[nodiscard]] std::shared_ptr<Engine> part(const std::vector<int>& ranks, std::uint64_t number, int color,
                                             const std::shared_ptr<Rendezvous>&) override {
    const auto at = std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin();
    return std::make_shared<LocalEngine>(hub_->part(number, color, static_cast<int>(ranks.size())),
                                         static_cast<int>(at), failure_, rank_of_all_);
  }
  void abort(std::string_view reason) noexcept override {
    failure_->note(rank_of_all_);
    hub_->abort(reason);
  }

 private:
  std::shared_ptr<Hub> hub_;
  int rank_;
  std::shared_ptr<FirstFailure> failure_;
  int rank_of_all_;
};

std::vector<std::shared_ptr<ProcessGroup>> groups_of(int size, const LocalOptions& options,
                                                     const std::shared_ptr<FirstFailure>& failure) {
  if (size < 1 || size > 4096) fail<ConfigError>("make_local_groups: 1 to 4096 ranks, got ", size);
  if (!(options.timeout > 0)) {
    fail<ConfigError>("make_local_groups: the timeout is a number of seconds above 0, got ", options.timeout);
  }
  const auto hub = std::make_shared<Hub>(size, options.timeout);
  std::vector<std::shared_ptr<ProcessGroup>> groups;
  for (int r = 0; r < size; ++r) {
    groups.push_back(
        std::make_shared<CpuGroup>(r, size, std::make_shared<LocalEngine>(hub, r, failure, r), 1u, nullptr));
  }
  return groups;
}

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) { return e.what(); } catch (...) {
    return "an exception that is no std::exception";
  }
}

}  // namespace

std::vector<std::shared_ptr<ProcessGroup>> make_local_groups(int size, const LocalOptions& options) {
  return groups_of(size, options, std::make_shared<FirstFailure>());
}

void run_local(int size, const Function<void(const std::shared_ptr<ProcessGroup>&)>& body,
               const LocalOptions& options) {
  const auto failure = std::make_shared<FirstFailure>();
  std::vector<std::shared_ptr<ProcessGroup>> groups = groups_of(size, options, failure);
  const levin::detail::ThreadModes modes = levin::detail::thread_modes();
  std::mutex mutex;
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(size));  // by rank
  std::exception_ptr first;                                                // by time
  const auto failed = [&](int rank, const std::exception_ptr& error) {
    const std::lock_guard lock(mutex);
    errors[static_cast<std::size_t>(rank)] = error;
    if (first) return;
    first = error;
    groups[static_cast<std::size_t>(rank)]->abort("rank " + text(rank) + " failed: " + message_of(error));
  };
  std::vector<std::thread> threads;
  const auto start = [&](int rank) {
    threads.emplace_back([&, rank] {
      const levin::detail::ThreadModesScope scope(modes);
      std::shared_ptr<ProcessGroup>& group = groups[static_cast<std::size_t>(rank)];
      try {
        body(group);
      } catch (...) { failed(rank, std::current_exception()); }
      std::shared_ptr<ProcessGroup> mine;
      {
        const std::lock_guard lock(mutex);  // an abort of another rank goes through its own group
        mine.swap(group);
      }
    });
  };
  for (int r = 0; r < size; ++r) {
    try {
      start(r);
    } catch (const std::system_error& e) {
      failed(r, std::make_exception_ptr(
                    CommError("run_local: the system gives no thread for rank " + text(r) + ": " + e.what(),
                              std::source_location::current())));
      break;
    }
  }
  for (std::thread& t : threads) t.join();
  // A rank that ends the others' waits may be slower than they are.
  if (const int cause = failure->rank(); cause >= 0 && errors[static_cast<std::size_t>(cause)])
    std::rethrow_exception(errors[static_cast<std::size_t>(cause)]);
  if (first) std::rethrow_exception(first);
}

}  // namespace levin::dist
