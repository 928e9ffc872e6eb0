// The works of a CPU group, run in the order of their issue.
//
// Note [Lanes]
//
// A group has three lanes: collectives, sends and receives. A lane runs its works in the order of issue, on a thread
// that starts with the first asynchronous work. A thread that waits for a work runs the lane's next works itself when
// no one else does: a wait that follows the issue costs no change of threads. A work also waits for works of the other
// lanes that were issued before it and share memory with it, where one of the two writes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/group/engine.h"
#include "comm/group/work.h"
#include "levin/function.h"
#include "levin/tensor.h"

namespace levin::dist {

class Lane;

class HostWork final : public detail::WorkState {
 public:
  HostWork(Task task, Tensor out, Tensor in, std::shared_ptr<Lane> lane)
      : task_(std::move(task)), out_(std::move(out)), in_(std::move(in)), lane_(std::move(lane)) {}
  void wait() override;
  [[nodiscard]] bool done() override { return done_.load(std::memory_order_acquire); }
  [[nodiscard]] const Task& task() const { return task_; }

 private:
  friend class Lane;
  [[nodiscard]] bool meets(const HostWork& earlier) const;  // shares memory that one of the two writes

  Task task_;
  Tensor out_, in_;  // kept alive until the work is done
  std::shared_ptr<Lane> lane_;
  std::vector<std::shared_ptr<HostWork>> after_;
  std::atomic<bool> done_{false};
  std::exception_ptr error_;  // before done_
};

enum class RunsOn : bool { caller, thread };

class Lane {
 public:
  explicit Lane(Function<void(const Task&)> run) : run_(std::move(run)) {}
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;
  // The works that are not done and meet `work`.
  void collect(const HostWork& work, std::vector<std::shared_ptr<HostWork>>& out);
  // Appends a work, after the works that it must follow. RunsOn::caller: the caller waits for it next.
  void add(const std::shared_ptr<HostWork>& work, std::vector<std::shared_ptr<HostWork>> after, RunsOn where);
  void wait(HostWork& work);
  // Runs what is left and ends the thread.
  void close() noexcept;

 private:
  void run_next(std::unique_lock<std::mutex>& lock);  // pending_ has one, busy_ is false
  void loop();

  Function<void(const Task&)> run_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::deque<std::shared_ptr<HostWork>> pending_;  // the first is the one that runs
  bool busy_ = false;                              // a thread runs a work
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace levin::dist
