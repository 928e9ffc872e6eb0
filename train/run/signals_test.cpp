#include "train/run/signals.h"

#include <doctest/doctest.h>

#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include "tensor/device/interrupt.h"

using levin::train::SignalGuard;

namespace {

std::atomic<int> g_reached_us{0};
extern "C" void count_signal(int) { ++g_reached_us; }

// The process's own handler of SIGTERM, outside of guards: it counts.
class Counted {
 public:
  Counted() {
    g_reached_us = 0;
    struct sigaction action {};
    action.sa_handler = count_signal;
    sigemptyset(&action.sa_mask);
    sigaction(SIGTERM, &action, &before_);
  }
  ~Counted() { sigaction(SIGTERM, &before_, nullptr); }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
  [[nodiscard]] static bool handles() {
    struct sigaction now {};
    sigaction(SIGTERM, nullptr, &now);
    return now.sa_handler == count_signal;
  }

 private:
  struct sigaction before_ {};
};

}  // namespace

TEST_CASE("the handlers stay as long as any guard lives, whichever was made first") {
  const Counted outside;
  std::optional<SignalGuard> first(true), second(true);
  const SignalGuard none(false);
  CHECK(static_cast<bool>(levin::detail::stop_asked));
  first.reset();
  CHECK(static_cast<bool>(levin::detail::stop_asked));
  CHECK_FALSE(Counted::handles());
  raise(SIGTERM);
  CHECK(SignalGuard::received() == SIGTERM);
  CHECK(g_reached_us == 0);
  {
    const SignalGuard inner(true);
    CHECK(SignalGuard::received() == SIGTERM);  // a nested stage does not lose it
  }
  CHECK(SignalGuard::received() == SIGTERM);
  second.reset();
  CHECK_FALSE(static_cast<bool>(levin::detail::stop_asked));
  CHECK(SignalGuard::received() == 0);
  CHECK(Counted::handles());
  raise(SIGTERM);
  CHECK(g_reached_us == 1);
  const SignalGuard later(true);
  CHECK(SignalGuard::received() == 0);
}

TEST_CASE("guards of several threads at once restore the process's own handler") {
  const Counted outside;
  std::atomic<int> lost{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        const SignalGuard guard(true);
        if (Counted::handles()) ++lost;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  CHECK(lost == 0);
  CHECK(Counted::handles());
}

TEST_CASE("a guard leaves ignored signals ignored, and SIGHUP and SIGUSR1 to a handler of the program") {
  const auto set = [](int number, void (*to)(int)) {
    struct sigaction action {};
    struct sigaction before {};
    action.sa_handler = to;
    sigemptyset(&action.sa_mask);
    sigaction(number, &action, &before);
    return before;
  };
  const auto is = [](int number, void (*what)(int)) {
    struct sigaction action {};
    sigaction(number, nullptr, &action);
    return action.sa_handler == what;
  };
  const struct sigaction before_int = set(SIGINT, SIG_IGN), before_hup = set(SIGHUP, SIG_IGN),
                         before_usr = set(SIGUSR1, count_signal), before_size = set(SIGXFSZ, SIG_DFL);
  g_reached_us = 0;
  {
    const SignalGuard guard(true);
    CHECK(is(SIGINT, SIG_IGN));
    CHECK(is(SIGHUP, SIG_IGN));
    CHECK(is(SIGXFSZ, SIG_IGN));
    raise(SIGINT);
    raise(SIGHUP);
    raise(SIGUSR1);
    CHECK(SignalGuard::received() == 0);
    CHECK(g_reached_us == 1);
  }
  CHECK(is(SIGXFSZ, SIG_DFL));
  CHECK(is(SIGUSR1, count_signal));
  sigaction(SIGINT, &before_int, nullptr);
  sigaction(SIGHUP, &before_hup, nullptr);
  sigaction(SIGUSR1, &before_usr, nullptr);
  sigaction(SIGXFSZ, &before_size, nullptr);
}
