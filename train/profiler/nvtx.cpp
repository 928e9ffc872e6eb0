#include <algorithm>
#include <utility>
#include <vector>

#include "levin/error.h"
#include "levin/train/profiler.h"
#include "tensor/device/ranges.h"

namespace levin {

struct NvtxProfiler::Ranges {
  std::vector<std::pair<std::string, std::uint64_t>> running;  // a handful
  [[nodiscard]] auto find(std::string_view action) {
    return std::find_if(running.begin(), running.end(), [&](const auto& r) { return r.first == action; });
  }
};

NvtxProfiler::NvtxProfiler() : ranges_(std::make_unique<Ranges>()) {
  if (!detail::runtime::has_ranges())
    fail<ConfigError>(
        "NvtxProfiler: this build has no NVTX; configure one with -Dcuda=enabled and the CUDA toolkit's headers, or "
        "use "
        "TraceProfiler");
}
NvtxProfiler::~NvtxProfiler() {
  for (const auto& [name, range] : ranges_->running) detail::runtime::end_range(range);
}

void NvtxProfiler::start(std::string_view action) {
  if (ranges_->find(action) != ranges_->running.end())
    fail<StateError>("NvtxProfiler: action \"", action, "\" is started while it runs; stop it first");
  ranges_->running.emplace_back(action, 0);
  ranges_->running.back().second = detail::runtime::begin_range(ranges_->running.back().first.c_str());
}

void NvtxProfiler::stop(std::string_view action) {
  const auto it = ranges_->find(action);
  if (it == ranges_->running.end())
    fail<StateError>("NvtxProfiler: action \"", action, "\" is stopped and does not run; start it first");
  detail::runtime::end_range(it->second);
  ranges_->running.erase(it);
}

}  // namespace levin
