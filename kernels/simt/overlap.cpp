#include "kernels/simt/overlap.h"

#include <algorithm>
#include <utility>

#include "kernels/simt/async.h"
#include "kernels/simt/block.h"
#include "levin/error.h"

namespace levin::simt {

OverlappingGrid::OverlappingGrid(const Launch& launch, std::function<void()> body, std::string name)
    : launch_(launch), body_(std::move(body)), name_(std::move(name)) {
  check_limits(launch, name_.c_str());
}

OverlappingGrid::~OverlappingGrid() {
  if (begun_.empty() || thread_ == std::this_thread::get_id()) return;
  for (std::unique_ptr<Engine>& own : begun_) (void)own.release();  // their stacks can be unwound by no other thread
}

void OverlappingGrid::begin() {
  const InKernel in_kernel(name_.c_str());
  constexpr std::uint64_t kMostBlocks = 8;
  const std::uint64_t most = std::max<std::uint64_t>(1, kMostBlocks / count_of(launch_.cluster));
  const std::uint64_t clusters = count_of(launch_.blocks) / count_of(launch_.cluster);
  thread_ = std::this_thread::get_id();
  for (std::uint64_t turn = 0; turn < std::min(most, clusters); ++turn) {
    auto own = std::make_unique<Engine>();
    own->prepare(launch_, body_, name_.c_str());
    own->begin_cluster(turn);
    begun_.push_back(std::move(own));
  }
}

void OverlappingGrid::finish() {
  if (!begun_.empty() && thread_ != std::this_thread::get_id()) {
    fail<InternalError>("simt: ", name_, ": begun by one thread, before the work ahead of it, and finished by another");
  }
  const InKernel in_kernel(name_.c_str());
  Engine& rest = engine_of_thread();
  rest.prepare(launch_, body_, name_.c_str(), begun_.empty() ? nullptr : begun_.front().get());
  for (const std::unique_ptr<Engine>& own : begun_) own->finish_cluster();
  for (std::uint64_t turn = begun_.size(); turn < rest.clusters(); ++turn) rest.run_cluster(turn);
  begun_.clear();
}

void Engine::wait_for_prerequisites(Site at) {
  block_->has_waited_for_prerequisites = true;
  if (!holds_) return;
  held_.push_back(running_);
  park("wait_for_prerequisites", at);
}

void wait_for_prerequisites(Site at) { in_kernel("wait_for_prerequisites").wait_for_prerequisites(at); }
void dependents_may_start() { (void)in_kernel("dependents_may_start"); }

}  // namespace levin::simt
