// Launching a kernel on the shim without a device or tensors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/simt/run.h"
#include "levin/error.h"

namespace levin::test {

// Whether this build ends the process at an access that is out of bounds or poisoned.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif

// Restores the schedule that a test chose.
class KeepSchedule {
 public:
  ~KeepSchedule() { simt::set_schedule(before_); }

 private:
  simt::Schedule before_ = simt::schedule();
};

template <class... P, class... A>
void launch(void (*kernel)(P...), dim3 blocks, dim3 threads, unsigned shared, A... args) {
  const auto body = [&] { kernel(args...); };
  simt::run_grid(blocks, threads, shared, body, "test");
}

template <class... P, class... A>
void launch(void (*kernel)(P...), const simt::Launch& how, A... args) {
  const auto body = [&] { kernel(args...); };
  simt::run_grid(how, body, "test");
}

// Calls f(schedule, seed) under each schedule; three seeds for those that use one.
template <class F>
void on_every_schedule(F f) {
  const KeepSchedule keep;
  for (const simt::Schedule schedule : simt::kSchedules) {
    const bool seeded = schedule == simt::Schedule::shuffled || schedule == simt::Schedule::greedy_warp;
    for (std::uint64_t seed = 0; seed < (seeded ? 3u : 1u); ++seed) {
      simt::set_schedule(schedule, seed);
      f(schedule, seed);
    }
  }
}

// The message of the E that f throws; "" when it throws nothing. Other exceptions pass.
template <class E, class F>
std::string message_of(F f) {
  try {
    f();
  } catch (const E& e) { return e.what(); }
  return "";
}

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace levin::test
