// SIGINT, SIGTERM, SIGHUP and SIGUSR1 as a flag while a stage runs; see Note [Interrupts] in levin/train/trainer.h.
#pragma once

#include <csignal>

namespace levin::train {

// Waits on the thread of a guard end when a signal came (tensor/device/interrupt.h); the guard goes on the thread that made it. Guards
// count, over all threads: nested stages and trainers of several threads share the handlers, and a signal is for all of them.
class SignalGuard {
 public:
  explicit SignalGuard(bool install);
  ~SignalGuard();
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;
  // The signal's number, 0: none since the first of the guards that live now was made.
  [[nodiscard]] static int received();
  [[nodiscard]] static const char* name_of(int signal);

 private:
  bool installed_;
};

}  // namespace levin::train
