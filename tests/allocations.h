// Calls of operator new in this program.
#pragma once

#include <cstdint>

namespace levin::test {

[[nodiscard]] bool counts_allocations();   // not under sanitizers, which have an operator new of their own
[[nodiscard]] std::int64_t allocations();  // of this thread, since it began
void skip_allocations();

// Of this thread: what it has and has not given back, and the most of that since the reset.
[[nodiscard]] std::int64_t bytes_in_use();
[[nodiscard]] std::int64_t peak_bytes();
void reset_peak_bytes();

// The n-th allocation of this thread from now on fails, and those behind it where `later_too`; 0: none.
void fail_allocations(std::int64_t n, bool later_too);
[[nodiscard]] bool allocation_failed();  // since then

}  // namespace levin::test
