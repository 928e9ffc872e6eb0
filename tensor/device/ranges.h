// Named ranges on the timeline of the vendor's profiler; they may overlap.
#pragma once

#include <cstdint>

namespace levin::detail::runtime {

[[nodiscard]] bool has_ranges() noexcept;  // false: the functions below do nothing
[[nodiscard]] std::uint64_t begin_range(const char* name);
void end_range(std::uint64_t range) noexcept;

}  // namespace levin::detail::runtime
