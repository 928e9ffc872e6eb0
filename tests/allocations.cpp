#include "tests/allocations.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>
#include <utility>

#include "tests/skip.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
namespace {
constinit thread_local std::int64_t news = 0, bytes = 0, peak = 0, fail_at = 0;
constinit std::atomic<std::int64_t> all_news{0};
constinit thread_local bool fail_later = false, failed = false;

void* allocate(std::size_t wanted) {
  ++news;
  all_news.fetch_add(1, std::memory_order_relaxed);
  if (fail_at > 0 && --fail_at == 0) {
    if (fail_later) fail_at = 1;
    failed = true;
    return nullptr;
  }
  void* const p = std::malloc(wanted);
  bytes += static_cast<std::int64_t>(::malloc_usable_size(p));
  peak = std::max(peak, bytes);
  return p;
}
void release(void* p) {
  bytes -= static_cast<std::int64_t>(::malloc_usable_size(p));
  std::free(p);
}
}  // namespace
[[gnu::noinline]] void* operator new(std::size_t wanted) {
  if (void* p = allocate(wanted)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t wanted, const std::nothrow_t&) noexcept { return allocate(wanted); }
[[gnu::noinline]] void operator delete(void* p) noexcept { release(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { release(p); }
bool levin::test::counts_allocations() { return true; }
std::int64_t levin::test::allocations() { return news; }
std::int64_t levin::test::allocations_of_all_threads() { return all_news; }
std::int64_t levin::test::bytes_in_use() { return bytes; }
std::int64_t levin::test::peak_bytes() { return peak; }
void levin::test::reset_peak_bytes() { peak = bytes; }
void levin::test::fail_allocations(std::int64_t n, bool later_too) {
  fail_at = n;
  fail_later = later_too;
  failed = false;
}
bool levin::test::allocation_failed() { return failed; }
#else
bool levin::test::counts_allocations() { return false; }
std::int64_t levin::test::allocations() { return 0; }
std::int64_t levin::test::allocations_of_all_threads() { return 0; }
std::int64_t levin::test::bytes_in_use() { return 0; }
std::int64_t levin::test::peak_bytes() { return 0; }
void levin::test::reset_peak_bytes() {}
void levin::test::fail_allocations(std::int64_t, bool) {}
bool levin::test::allocation_failed() { return false; }
#endif
void levin::test::skip_allocations() { skip("a sanitizer has its own operator new, so its calls are not counted"); }
