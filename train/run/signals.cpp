#include "train/run/signals.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>

#include "levin/tensor.h"
#include "tensor/device/interrupt.h"

namespace levin::train {
namespace {

// The handler may run on any thread, in the middle of any code, so it writes this number alone.
std::atomic<int> g_received{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may not wait for a lock");

struct Handled {
  int number;
  bool always;  // also in place of the program's own handler
};
constexpr std::array kHandled = {Handled{SIGINT, true}, Handled{SIGTERM, true}, Handled{SIGHUP, false},
                                 Handled{SIGUSR1, false}};

// Guards of all threads share the process's handlers: the first guard installs them, the last one restores those of the
// program. The handler takes no lock.
struct Handlers {
  std::mutex mutex;
  int guards = 0;
  std::array<std::optional<struct sigaction>, kHandled.size()> before;  // none: was not replaced
  int also = 0;
  std::optional<struct sigaction> before_also;
  std::optional<struct sigaction> before_file_size;
  // While SIGTERM is ignored: what the guards would have ended with, and whether a living guard handled it.
  std::optional<struct sigaction> before_ignored;
  bool handled_term = false;
};
Handlers& handlers() {
  static Handlers h;
  return h;
}

thread_local int of_thread = 0;  // guards of this thread that end waits

struct sigaction action_now(int number) {
  struct sigaction now {};
  sigaction(number, nullptr, &now);
  return now;
}
bool is(const struct sigaction& action, void (*what)(int)) {
  return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == what;
}

extern "C" void levin_on_signal(int number) {
  int none = 0;
  if (!g_received.compare_exchange_strong(none, number))
    _exit(128 + number);  // the second signal: the user does not want to wait
}

}  // namespace

SignalGuard::SignalGuard(bool install, WaitsEnd waits, int also)
    : installed_(install), ends_waits_(install && waits == WaitsEnd::yes) {
  if (!install) return;
  if (ends_waits_ && of_thread++ == 0) detail::stop_asked = [] { return received() != 0; };
  Handlers& h = handlers();
  const std::lock_guard lock(h.mutex);
  if (h.guards++ > 0) return;
  g_received = 0;
  h.handled_term = false;
  struct sigaction action {};
  action.sa_handler = levin_on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;  // the run's reads and writes continue
  for (std::size_t i = 0; i < kHandled.size(); ++i) {
    const struct sigaction now = action_now(kHandled[i].number);
    h.before[i].reset();
    if (is(now, SIG_IGN) || (!kHandled[i].always && !is(now, SIG_DFL))) continue;
    h.before[i] = now;
    sigaction(kHandled[i].number, &action, nullptr);
  }
  h.before_also.reset();
  h.also = std::any_of(kHandled.begin(), kHandled.end(), [&](const Handled& k) { return k.number == also; }) ? 0 : also;
  if (const struct sigaction now = action_now(h.also); h.also != 0 && is(now, SIG_DFL)) {
    h.before_also = now;
    sigaction(h.also, &action, nullptr);
  }
  h.before_file_size.reset();
  if (const struct sigaction now = action_now(SIGXFSZ); is(now, SIG_DFL)) {  // ignored, so that the write fails
    h.before_file_size = now;
    action.sa_handler = SIG_IGN;
    sigaction(SIGXFSZ, &action, nullptr);
  }
}

SignalGuard::~SignalGuard() {
  if (!installed_) return;
  if (ends_waits_ && --of_thread == 0) detail::stop_asked = nullptr;
  Handlers& h = handlers();
  const std::lock_guard lock(h.mutex);
  if (--h.guards > 0) return;
  for (std::size_t i = 0; i < kHandled.size(); ++i) {
    if (kHandled[i].number == SIGTERM && h.before_ignored && is(action_now(SIGTERM), SIG_IGN)) continue;
    if (h.before[i]) sigaction(kHandled[i].number, &*h.before[i], nullptr);
  }
  if (h.before_also) sigaction(h.also, &*h.before_also, nullptr);
  if (h.before_file_size) sigaction(SIGXFSZ, &*h.before_file_size, nullptr);
  g_received = 0;
}

namespace {

void set_term(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
}

}  // namespace

void SignalGuard::ignore_term() {
  Handlers& h = handlers();
  const std::lock_guard lock(h.mutex);
  const struct sigaction now = action_now(SIGTERM);
  if (is(now, SIG_IGN)) return;
  h.handled_term = is(now, levin_on_signal);
  constexpr std::size_t kTerm = 1;
  static_assert(kHandled[kTerm].number == SIGTERM);
  h.before_ignored = h.handled_term && h.before[kTerm] ? *h.before[kTerm] : now;
  set_term(SIG_IGN);
}

void SignalGuard::heed_term() {
  Handlers& h = handlers();
  const std::lock_guard lock(h.mutex);
  if (!h.before_ignored) return;
  const struct sigaction before = *std::exchange(h.before_ignored, std::nullopt);
  if (!is(action_now(SIGTERM), SIG_IGN)) return;
  if (h.guards > 0 && h.handled_term)
    set_term(levin_on_signal);
  else
    sigaction(SIGTERM, &before, nullptr);
}

std::string SignalGuard::name_of(int signal) {
  const char* const name = ::sigabbrev_np(signal);
  return name ? std::string("SIG") + name : "signal " + text(signal);
}

int SignalGuard::received() { return g_received; }

}  // namespace levin::train
