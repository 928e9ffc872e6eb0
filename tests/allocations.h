// Calls of operator new in this program.
#pragma once

#include <cstdint>

namespace levin::test {

[[nodiscard]] bool counts_allocations();   // not under sanitizers, which replace operator new
[[nodiscard]] std::int64_t allocations();  // of this thread since its start
[[nodiscard]] std::int64_t allocations_of_all_threads();
void skip_allocations();

// Of this thread: the bytes that it holds, and their peak since the reset.
[[nodiscard]] std::int64_t bytes_in_use();
[[nodiscard]] std::int64_t peak_bytes();
void reset_peak_bytes();

// This thread's n-th allocation from here fails, and all later ones where `later_too`; 0: none fails.
void fail_allocations(std::int64_t n, bool later_too);
[[nodiscard]] bool allocation_failed();  // since that call

}  // namespace levin::test
