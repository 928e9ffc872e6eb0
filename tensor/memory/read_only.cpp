#include "tensor/memory/read_only.h"

#include <atomic>
#include <map>
#include <mutex>
#include <shared_mutex>

namespace levin::detail {
namespace {

std::atomic<int> count{0};
std::shared_mutex mutex;
std::map<const std::byte*, std::size_t>& ranges() {
  static auto* const all = new std::map<const std::byte*, std::size_t>;  // views may outlive static objects
  return *all;
}

}  // namespace

void mark_read_only(const std::byte* begin, std::size_t bytes) {
  const std::unique_lock lock(mutex);
  ranges()[begin] = bytes;
  count.store(static_cast<int>(ranges().size()), std::memory_order_release);
}
void release_read_only(const std::byte* begin) {
  const std::unique_lock lock(mutex);
  ranges().erase(begin);
  count.store(static_cast<int>(ranges().size()), std::memory_order_release);
}

void check_writable(const char* op, const Tensor& x) {
  if (count.load(std::memory_order_acquire) == 0) return;
  const std::byte* const data = x.get().storage->data;
  bool inside = false;
  {
    const std::shared_lock lock(mutex);
    auto at = ranges().upper_bound(data);
    inside = at != ranges().begin() && data < (--at)->first + at->second;
  }
  if (inside) fail<StateError>(op, ": the tensor is a read-only view of a store; write to its clone()");
}

}  // namespace levin::detail
