// Turns SIGINT, SIGTERM, SIGHUP and SIGUSR1 into a flag while a stage runs: Note [Interrupts] in levin/train/trainer.h.
#pragma once

#include <csignal>
#include <string>

namespace levin::train {

// Whether a signal ends waits on the thread of a guard (tensor/device/interrupt.h). A rank among several continues its
// wait, because the others train on until all have agreed on the signal.
enum class WaitsEnd : bool { no, yes };

// Installs the handlers while at least one guard lives, on any thread. Nested stages and trainers of several threads
// share the handlers, and a signal is for all of them. A guard must end on the thread that made it.
class SignalGuard {
 public:
  // `also`: one more signal; 0: none.
  explicit SignalGuard(bool install, WaitsEnd waits = WaitsEnd::yes, int also = 0);
  ~SignalGuard();
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;
  // The number of the signal; 0: none came since the first of the living guards was made.
  [[nodiscard]] static int received();
  [[nodiscard]] static std::string name_of(int signal);  // "SIGTERM"
  // From here on SIGTERM has no effect on the process, also after the last guard, until heed_term().
  static void ignore_term();
  static void heed_term();

 private:
  bool installed_, ends_waits_;
};

}  // namespace levin::train
