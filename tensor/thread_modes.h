// The modes of a thread, for code that hands work to another thread: what it runs there must not depend on which thread
// took it. The modes are those of autograd/ (grad mode, inference mode, anomaly mode), which defines these functions;
// they are declared here because data/ does not know autograd/.
#pragma once

namespace levin::detail {

struct ThreadModes {
  bool grad = true, inference = false, anomaly = false;
};
// Those of this thread.
[[nodiscard]] ThreadModes thread_modes() noexcept;

// While it lives, this thread has the modes given.
class ThreadModesScope {
 public:
  explicit ThreadModesScope(ThreadModes modes) noexcept;
  ~ThreadModesScope();
  ThreadModesScope(const ThreadModesScope&) = delete;
  ThreadModesScope& operator=(const ThreadModesScope&) = delete;

 private:
  ThreadModes before_;
};

}  // namespace levin::detail
