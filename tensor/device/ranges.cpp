#include "tensor/device/ranges.h"

#if defined(LEVIN_CUDA) && __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define LEVIN_NVTX 1
#else
#define LEVIN_NVTX 0
#endif

namespace levin::detail::runtime {

bool has_ranges() noexcept { return LEVIN_NVTX != 0; }

#if LEVIN_NVTX
std::uint64_t begin_range(const char* name) { return nvtxRangeStartA(name); }
void end_range(std::uint64_t range) noexcept { nvtxRangeEnd(range); }
#else
std::uint64_t begin_range(const char*) { return 0; }
void end_range(std::uint64_t) noexcept {}
#endif

}  // namespace levin::detail::runtime
