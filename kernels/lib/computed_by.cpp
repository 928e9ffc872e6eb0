#include "kernels/lib/computed_by.h"

#include <atomic>
#include <cstddef>

namespace levin::kernels {
namespace {

std::atomic<ComputedBy> chosen[] = {ComputedBy::first, ComputedBy::first, ComputedBy::own, ComputedBy::own};
std::atomic<bool> tf32[4] = {};

}  // namespace

ComputedBy computed_by(LibraryFamily family) noexcept {
  return chosen[static_cast<std::size_t>(family)].load(std::memory_order_relaxed);
}
void set_computed_by(LibraryFamily family, ComputedBy by) noexcept {
  chosen[static_cast<std::size_t>(family)].store(by, std::memory_order_relaxed);
}

bool tf32_allowed(LibraryFamily family) noexcept {
  return tf32[static_cast<std::size_t>(family)].load(std::memory_order_relaxed);
}
void allow_tf32(LibraryFamily family, bool allowed) noexcept {
  tf32[static_cast<std::size_t>(family)].store(allowed, std::memory_order_relaxed);
}

}  // namespace levin::kernels
