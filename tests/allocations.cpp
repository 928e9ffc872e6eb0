#include "tests/allocations.h"

#include <cstdlib>
#include <new>

#include "tests/skip.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
namespace {
constinit thread_local std::int64_t news = 0;
}
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++news;
  if (void* p = std::malloc(bytes)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  ++news;
  return std::malloc(bytes);
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }
bool levin::test::counts_allocations() { return true; }
std::int64_t levin::test::allocations() { return news; }
#else
bool levin::test::counts_allocations() { return false; }
std::int64_t levin::test::allocations() { return 0; }
#endif
void levin::test::skip_allocations() { skip("a sanitizer has its own operator new, so its calls are not counted"); }
