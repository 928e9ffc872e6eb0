// Turns SIGINT, SIGTERM, SIGHUP and SIGUSR1 into a flag while a stage runs: Note [Interrupts] in levin/train/trainer.h.
#pragma once

#include <csignal>

namespace levin::train {

// Installs the handlers while at least one guard lives, on any thread. Nested stages and trainers of several threads
// share the handlers, and a signal is for all of them. A signal ends waits on the thread of a guard
// (tensor/device/interrupt.h). A guard must end on the thread that made it.
class SignalGuard {
 public:
  explicit SignalGuard(bool install);
  ~SignalGuard();
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;
  // The number of the signal; 0: none came since the first of the living guards was made.
  [[nodiscard]] static int received();
  [[nodiscard]] static const char* name_of(int signal);

 private:
  bool installed_;
};

}  // namespace levin::train
