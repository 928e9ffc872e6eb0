// The modes of a thread, for code that passes work to another thread: the result must not depend on the thread that
// runs it. autograd/ defines these functions, because the modes are its own (grad, inference and anomaly mode). They
// are declared here because data/ must not include autograd/.
#pragma once

namespace levin::detail {

struct ThreadModes {
  bool grad = true, inference = false, anomaly = false;
};
// The modes of this thread.
[[nodiscard]] ThreadModes thread_modes() noexcept;

// While it lives, this thread has the given modes.
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
