#include "train/signals.h"

#include <unistd.h>

#include <atomic>
#include <mutex>

namespace levin::train {
namespace {

// The handler may run on any thread, in the middle of anything: it touches this one number.
std::atomic<int> g_received{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may not wait for a lock");

// Guards of all threads share the process's two handlers: the first to come installs them, the last to go puts back
// what was there. The handler never takes the lock.
struct Handlers {
  std::mutex mutex;
  int guards = 0;
  struct sigaction before_int {};
  struct sigaction before_term {};
};
Handlers& handlers() {
  static Handlers h;
  return h;
}

extern "C" void levin_on_signal(int number) {
  int none = 0;
  if (!g_received.compare_exchange_strong(none, number))
    _exit(128 + number);  // the second one: the user waits no longer
}

}  // namespace

SignalGuard::SignalGuard(bool install) : installed_(install) {
  if (!install) return;
  Handlers& h = handlers();
  const std::lock_guard lock(h.mutex);
  if (h.guards++ > 0) return;
  g_received = 0;
  struct sigaction action {};
  action.sa_handler = levin_on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;  // reads and writes of the run go on
  sigaction(SIGINT, &action, &h.before_int);
  sigaction(SIGTERM, &action, &h.before_term);
}

SignalGuard::~SignalGuard() {
  if (!installed_) return;
  Handlers& h = handlers();
  const std::lock_guard lock(h.mutex);
  if (--h.guards > 0) return;
  sigaction(SIGINT, &h.before_int, nullptr);
  sigaction(SIGTERM, &h.before_term, nullptr);
  g_received = 0;
}

int SignalGuard::received() { return g_received; }

}  // namespace levin::train
