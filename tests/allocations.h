// Calls of operator new in this program.
#pragma once

#include <cstdint>

namespace levin::test {

[[nodiscard]] bool counts_allocations();   // not under sanitizers, which have an operator new of their own
[[nodiscard]] std::int64_t allocations();  // of this thread, since it began
void skip_allocations();

}  // namespace levin::test
