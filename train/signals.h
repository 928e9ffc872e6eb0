// SIGINT and SIGTERM as a flag while a stage runs; see Note [Interrupts] in levin/train.h.
#pragma once

#include <csignal>

namespace levin::train {

class SignalGuard {
 public:
  explicit SignalGuard(bool install);  // an inner guard of a nested stage leaves the outer one's handlers alone
  ~SignalGuard();
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;
  [[nodiscard]] static int received();  // the signal's number, 0: none since the outermost guard was made

 private:
  bool installed_ = false;
  struct sigaction before_int_ {};
  struct sigaction before_term_ {};
};

}  // namespace levin::train
