#include "tensor/memory/allocator.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "levin/memory.h"
#include "tensor/memory/device_allocator.h"
#include "tensor/memory/size_class.h"

namespace levin {
namespace detail {
namespace {

#if defined(__SANITIZE_ADDRESS__)
// Each tensor has an allocation of its own, so that overruns and stale reads are found.
constexpr bool kCaching = false;
#else
constexpr bool kCaching = true;
#endif
constexpr std::size_t kAlignment = 64;
constexpr std::size_t kHugePage = std::size_t{1} << 21;  // from 2 pages on, blocks are aligned for huge pages
constexpr std::size_t kMinCacheLimit = std::size_t{256} << 20;

class HostAllocator {
 public:
  std::byte* allocate(std::size_t bytes) {
    if (bytes > kMaxBlockBytes) give_up(bytes);
    const SizeClass c = size_class(bytes);
    {
      const std::lock_guard lock(mutex_);
      if (limit_ && in_use_ + c.bytes > static_cast<std::size_t>(*limit_)) [[unlikely]]
        refuse(bytes, "cpu", holds(), limit_);
      std::vector<std::byte*>& free = free_[c.index];
      if (!free.empty()) {
        std::byte* block = free.back();
        free.pop_back();
        cached_ -= c.bytes;
        used_[c.index] = ++uses_;
        count_in(c);
        return block;
      }
    }
    std::byte* block = from_system(kCaching ? c.bytes : bytes);
    if (!block) {
      trim();
      block = from_system(kCaching ? c.bytes : bytes);
    }
    if (!block) give_up(bytes);
    const std::lock_guard lock(mutex_);
    count_in(c);
    return block;
  }

  void release(std::byte* block, std::size_t bytes) noexcept {
    const SizeClass c = size_class(bytes);
    {
      const std::lock_guard lock(mutex_);
      in_use_ -= c.bytes;
      --live_[c.index];
      used_[c.index] = ++uses_;
      if (kCaching && make_room(c.bytes)) {
        try {
          free_[c.index].push_back(block);
          cached_ += c.bytes;
          return;
        } catch (...) {  // the free list could not grow: the block returns to the system below
        }
      }
    }
    std::free(block);
  }

  void trim() noexcept {
    const std::lock_guard lock(mutex_);
    for (std::vector<std::byte*>& list : free_) {
      for (std::byte* block : list) std::free(block);
      list.clear();
    }
    cached_ = 0;
    most_used_ = in_use_;
  }

  std::optional<std::int64_t> set_limit(std::optional<std::int64_t> bytes) {
    const std::lock_guard lock(mutex_);
    return std::exchange(limit_, bytes);
  }
  std::int64_t size() {
    const std::lock_guard lock(mutex_);
    return limit_.value_or(static_cast<std::int64_t>(machine()));
  }
  MemoryStats stats() {
    const std::lock_guard lock(mutex_);
    return {static_cast<std::int64_t>(in_use_), static_cast<std::int64_t>(peak_), static_cast<std::int64_t>(cached_)};
  }
  void reset_peak() {
    const std::lock_guard lock(mutex_);
    peak_ = in_use_;
  }

 private:
  [[noreturn, gnu::cold]] void give_up(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    refuse(bytes, "cpu", holds(), {});
  }
  [[gnu::cold]] Holds holds() const {
    Holds now{.in_use = in_use_, .cached = cached_};
    for (std::size_t index = kSizeClasses; index-- > 0;) {
      if (live_[index] > 0) now.add(class_bytes(index), live_[index]);
    }
    return now;
  }

  // The cache may hold as much as the program has needed at a time. The class that was used longest ago returns its
  // blocks first: a program that goes on to other sizes would else take its memory from the system at each call. False
  // where `bytes` more do not fit even so.
  bool make_room(std::size_t bytes) noexcept {
    const std::size_t most = std::max(most_used_ + most_used_ / 4, kMinCacheLimit);
    if (in_use_ + bytes > most) return false;
    while (cached_ + in_use_ + bytes > most) {
      std::size_t oldest = kSizeClasses;
      for (std::size_t k = 0; k < kSizeClasses; ++k) {
        if (!free_[k].empty() && (oldest == kSizeClasses || used_[k] < used_[oldest])) oldest = k;
      }
      std::free(free_[oldest].back());
      free_[oldest].pop_back();
      cached_ -= class_bytes(oldest);
    }
    return true;
  }

  void count_in(const SizeClass& c) {
    in_use_ += c.bytes;
    ++live_[c.index];
    if (in_use_ > peak_) peak_ = in_use_;
    if (in_use_ > most_used_) most_used_ = in_use_;
  }

  static std::size_t machine() noexcept {
    static const std::size_t bytes =
        static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    return bytes;
  }
  static std::byte* from_system(std::size_t bytes) noexcept {
    // Overcommit would grant more than the machine has and kill the process later, so such a request is refused here.
    if (bytes > machine()) return nullptr;
    const std::size_t alignment = bytes >= 2 * kHugePage ? kHugePage : kAlignment;
    const std::size_t padded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    void* block = nullptr;
    if (posix_memalign(&block, alignment, padded) != 0) return nullptr;
    if (alignment == kHugePage) madvise(block, padded, MADV_HUGEPAGE);  // fewer page faults; a refusal is harmless
    return static_cast<std::byte*>(block);
  }

  std::mutex mutex_;
  std::array<std::vector<std::byte*>, kSizeClasses> free_;
  std::array<std::uint64_t, kSizeClasses> used_{};  // of each class, the value of uses_ when a block came or went last
  std::uint64_t uses_ = 0;
  // The number of blocks in use of each class. Counts cost a step nothing, where a list of the blocks would be a cache
  // miss each. An error names the largest tensors by the size of their class, which is the memory that they take.
  std::array<std::size_t, kSizeClasses> live_{};
  std::size_t in_use_ = 0, peak_ = 0, cached_ = 0;
  std::size_t most_used_ = 0;  // since the cache was emptied; reset_peak() does not lower it
  std::optional<std::int64_t> limit_;
};

// Never destroyed: static objects may release tensors after the end of main.
HostAllocator& host() {
  static HostAllocator* allocator = new HostAllocator;
  return *allocator;
}

struct Ledger {
  std::atomic<std::int64_t> in_use{0}, peak{0};
};
Ledger& ledger() {
  static Ledger l;
  return l;
}

}  // namespace

void Holds::add(std::size_t bytes, std::size_t count) noexcept {
  tensors += count;
  const auto at = std::lower_bound(largest.begin(), largest.end(), bytes, std::greater<>());
  const auto n = std::min(static_cast<std::ptrdiff_t>(count), largest.end() - at);
  std::shift_right(at, largest.end(), n);
  std::fill_n(at, n, bytes);
}

void refuse(std::size_t bytes, std::string_view on, const Holds& now, std::optional<std::int64_t> limit) {
  std::string largest;
  for (const std::size_t size : now.largest) {
    if (size > 0) largest += (largest.empty() ? "" : ", ") + text(size);
  }
  fail<OutOfMemoryError>("allocate: ", bytes, " bytes wanted on ", on, ", ", now.in_use, " in use by ", now.tensors,
                         " tensors (largest: ", largest.empty() ? "none" : largest, "), ", now.cached, " cached",
                         limit ? ", the limit is " + text(*limit) + "; use a smaller batch, or raise the limit"
                               : std::string("; use a smaller batch or free some"));
}

std::byte* host_allocate(std::size_t bytes) {
  std::byte* block = host().allocate(bytes);
#if defined(__SANITIZE_ADDRESS__)
  std::memset(block, 0xff, bytes);  // NaN in every float type: a read of unwritten memory shows in results
#endif
  return block;
}
void host_release(std::byte* block, std::size_t bytes) noexcept { host().release(block, bytes); }

namespace {
thread_local PlannedMemory* plan = nullptr;  // of the calling thread; only PlannedMemory sets it
}  // namespace

PlannedMemory::PlannedMemory(Device as) : as_(as) {
  if (plan) fail<StateError>("PlannedMemory: the thread plans already");
  plan = this;
}
PlannedMemory::~PlannedMemory() { plan = nullptr; }

std::int64_t PlannedMemory::size_of(std::size_t bytes) const {
  const bool exact = as_.is_meta() || as_.type() == DeviceType::simt || bytes > kMaxBlockBytes;
  if (as_.is_cpu() && bytes <= kInlineBytes) return 0;
  return static_cast<std::int64_t>(exact ? bytes : size_class(bytes).bytes);
}
void PlannedMemory::count(std::size_t bytes, int sign) noexcept {
  in_use_ += sign * size_of(bytes);
  peak_ = std::max(peak_, in_use_);
}

void meta_add(std::size_t bytes) noexcept {
  if (plan) plan->count(bytes, 1);
  const std::int64_t now = ledger().in_use += static_cast<std::int64_t>(bytes);
  std::int64_t peak = ledger().peak.load();
  while (now > peak && !ledger().peak.compare_exchange_weak(peak, now)) {}
}
void meta_remove(std::size_t bytes) noexcept {
  if (plan) plan->count(bytes, -1);
  ledger().in_use -= static_cast<std::int64_t>(bytes);
}

}  // namespace detail

std::optional<std::int64_t> set_memory_limit(Device d, std::optional<std::int64_t> bytes) {
  if (bytes && *bytes < 0)
    fail<ConfigError>("set_memory_limit: ", *bytes, " bytes on ", d,
                      ", expected 0 or more; nullopt takes the limit away");
  if (d.is_cpu()) return detail::host().set_limit(bytes);
  if (d.launches()) return detail::device_allocator(d).set_limit(bytes);
  fail<UnsupportedError>("set_memory_limit: tensors on ", d, " take no memory; limit the device that the step runs on");
}

std::int64_t memory_size(Device d) {
  if (d.is_cpu()) return detail::host().size();
  if (d.launches()) return detail::device_allocator(d).size();
  fail<UnsupportedError>("memory_size: tensors on ", d, " take no memory; ask for the device that the step runs on");
}

MemoryStats memory_stats(Device d) {
  if (d.is_cpu()) return detail::host().stats();
  if (d.launches()) return detail::device_allocator(d).stats();
  return {detail::ledger().in_use.load(), detail::ledger().peak.load(), 0};
}
void reset_peak_memory(Device d) {
  if (d.is_cpu()) return detail::host().reset_peak();
  if (d.launches()) return detail::device_allocator(d).reset_peak();
  detail::ledger().peak = detail::ledger().in_use.load();
}
namespace {
thread_local std::int64_t releases = 0;
}  // namespace
std::int64_t cache_releases() noexcept { return releases; }
void release_cached_memory(Device d) {
  ++releases;
  if (d.is_cpu()) {
    detail::host().trim();
    detail::pinned_allocator().trim();
  }
  if (d.launches()) detail::device_allocator(d).trim();
}

}  // namespace levin
