#include "tensor/memory/allocator.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <initializer_list>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "levin/memory.h"
#include "levin/tensor.h"
#include "tests/skip.h"

using namespace levin;

namespace {
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kCaching = false;  // every block is its own there, so that stale reads are seen
#else
constexpr bool kCaching = true;
#endif
}  // namespace

TEST_CASE("released blocks are kept and handed out again") {
  release_cached_memory(Device::cpu());
  const MemoryStats before = memory_stats(Device::cpu());
  std::byte* first = detail::host_allocate(100000);
  const MemoryStats during = memory_stats(Device::cpu());
  CHECK(during.in_use - before.in_use >= 100000);
  CHECK(during.in_use - before.in_use <= 125000);  // size classes waste at most a fifth of the block
  CHECK(during.peak >= during.in_use);
  detail::host_release(first, 100000);
  const MemoryStats after = memory_stats(Device::cpu());
  CHECK(after.in_use == before.in_use);
  if (kCaching) {
    CHECK(after.cached - before.cached == during.in_use - before.in_use);
    std::byte* second = detail::host_allocate(99000);  // same size class
    CHECK(second == first);
    CHECK(memory_stats(Device::cpu()).cached == before.cached);
    detail::host_release(second, 99000);
  }
  release_cached_memory(Device::cpu());
  CHECK(memory_stats(Device::cpu()).cached == 0);
}

TEST_CASE("a full cache returns the blocks of the sizes that were used longest ago, and keeps those of now") {
  if (!kCaching) return levin::test::skip("a sanitizer's build keeps no blocks");
  release_cached_memory(Device::cpu());
  constexpr std::size_t kOld = std::size_t{64} << 20, kNow = std::size_t{28} << 20;
  const auto cached = [] { return memory_stats(Device::cpu()).cached; };
  std::array<std::byte*, 6> old{};
  for (std::byte*& block : old) block = detail::host_allocate(kOld);
  for (std::byte* const block : old) detail::host_release(block, kOld);
  const std::int64_t full = cached();
  CHECK(full == 6 * std::int64_t{kOld});
  reset_peak_memory(Device::cpu());
  detail::host_release(detail::host_allocate(kOld), kOld);
  CHECK(cached() == full);  // who measures each step's peak keeps the cache
  // 384 MiB are cached of 480 at most (the most in use, and a quarter): the last blocks of another size need room.
  std::array<std::byte*, 4> now{};
  for (std::byte*& block : now) block = detail::host_allocate(kNow);
  for (std::byte* const block : now) detail::host_release(block, kNow);
  const std::int64_t after = cached();
  CHECK(after <= std::int64_t{480} << 20);
  for (std::byte*& block : now) block = detail::host_allocate(kNow);
  CHECK(after - cached() == 4 * std::int64_t{kNow});  // all four came from the cache
  for (std::byte* const block : now) detail::host_release(block, kNow);
  release_cached_memory(Device::cpu());
  CHECK(cached() == 0);
}

TEST_CASE("the peak is the highest sum since it was reset") {
  reset_peak_memory(Device::cpu());
  const std::int64_t base = memory_stats(Device::cpu()).in_use;
  {
    const Tensor a = empty({1 << 20}, Device::cpu(), DType::u8);
    const Tensor b = empty({1 << 20}, Device::cpu(), DType::u8);
  }
  const Tensor c = empty({1 << 20}, Device::cpu(), DType::u8);
  const MemoryStats s = memory_stats(Device::cpu());
  CHECK(s.in_use - base == 1 << 20);
  CHECK(s.peak - base == 2 << 20);
  reset_peak_memory(Device::cpu());
  CHECK(memory_stats(Device::cpu()).peak == s.in_use);
}

TEST_CASE("more memory than the machine has is a typed error with the sizes, and nothing changes") {
  const MemoryStats before = memory_stats(Device::cpu());
  std::string message;
  try {
    const Tensor huge = empty({std::int64_t{1} << 40, 64}, Device::cpu(), DType::f64);
  } catch (const OutOfMemoryError& e) { message = e.what(); }
  CHECK(message.find("562949953421312 bytes wanted") != std::string::npos);
  CHECK(message.find("in use") != std::string::npos);
  CHECK(memory_stats(Device::cpu()).in_use == before.in_use);
  // The largest shape that exists, in the widest dtype: the size class arithmetic must not wrap around.
  CHECK_THROWS_AS((void)empty({std::int64_t{1} << 40, 256}, Device::cpu(), DType::f64), OutOfMemoryError);
  CHECK_THROWS_AS((void)detail::host_allocate(~std::size_t{0}), OutOfMemoryError);
  CHECK_THROWS_AS((void)detail::host_allocate((std::size_t{1} << 63) + 1), OutOfMemoryError);
}

TEST_CASE("a plan counts tensors on meta by the sizes that a device's allocator gives") {
  const std::int64_t before = memory_stats(Device::cpu()).in_use;
  std::int64_t real = 0;
  {
    const Tensor a = empty({1000}, Device::cpu()), b = empty({12345}, Device::cpu()), c = empty({8}, Device::cpu());
    real = memory_stats(Device::cpu()).in_use - before;
  }
  const detail::PlannedMemory plan(Device::cpu());
  CHECK_THROWS_AS(detail::PlannedMemory(Device::cpu()), StateError);
  {
    const Tensor a = empty({1000}, Device::meta()), b = empty({12345}, Device::meta()), c = empty({8}, Device::meta());
    CHECK(plan.in_use() == real);
  }
  CHECK(plan.in_use() == 0);
  CHECK(plan.peak() == real);
}

TEST_CASE("the memory's size is the limit, else what the machine has") {
  const std::int64_t machine = memory_size(Device::cpu());
  CHECK(machine > std::int64_t{1} << 26);
  (void)set_memory_limit(Device::cpu(), 12345);
  CHECK(memory_size(Device::cpu()) == 12345);
  (void)set_memory_limit(Device::cpu(), std::nullopt);
  CHECK(memory_size(Device::cpu()) == machine);
  CHECK_THROWS_AS((void)memory_size(Device::meta()), UnsupportedError);
}

TEST_CASE("meta tensors are counted in a ledger of their own") {
  const MemoryStats cpu = memory_stats(Device::cpu());
  reset_peak_memory(Device::meta());
  const std::int64_t base = memory_stats(Device::meta()).in_use;
  {
    const Tensor x = empty({std::int64_t{1} << 40}, Device::meta());
    CHECK(memory_stats(Device::meta()).in_use - base == std::int64_t{4} << 40);
  }
  CHECK(memory_stats(Device::meta()).in_use == base);
  CHECK(memory_stats(Device::meta()).peak - base == std::int64_t{4} << 40);
  CHECK(memory_stats(Device::cpu()).in_use == cpu.in_use);
}

TEST_CASE("blocks may be taken and given back by several threads at once") {
  const std::int64_t base = memory_stats(Device::cpu()).in_use;
  std::vector<std::jthread> threads;
  std::atomic<int> clashes{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&clashes, t] {
      for (std::size_t i = 0; i < 500; ++i) {
        const std::size_t bytes = 1024 + 64 * (i % 7);
        std::byte* block = detail::host_allocate(bytes);
        block[0] = block[bytes - 1] = static_cast<std::byte>(t);
        std::this_thread::yield();
        if (block[0] != static_cast<std::byte>(t) || block[bytes - 1] != static_cast<std::byte>(t)) ++clashes;
        detail::host_release(block, bytes);
      }
    });
  }
  threads.clear();
  CHECK(clashes == 0);
  CHECK(memory_stats(Device::cpu()).in_use == base);
}

TEST_CASE("the cpu names its largest live tensors when it refuses, with what is wanted, in use and cached") {
  const auto bytes = [](std::int64_t n) { return empty({n}, Device::cpu(), DType::u8); };
  const std::int64_t mega = 1 << 20;
  const Tensor second = bytes(20 * mega), third = bytes(20 * mega - 5), small = bytes(5000);
  Tensor first = bytes(28 * mega);
  { const Tensor cached = bytes(24 * mega); }
  const auto refused = [&] {
    std::string message;
    try {
      (void)empty({1 << 18, 1 << 30}, Device::cpu(), DType::u8);
    } catch (const OutOfMemoryError& e) { message = e.what(); }
    return message;
  };
  // Out of memory the cache has been given back. Sizes are those of the blocks' classes, which `in use` sums up.
  const std::string many = refused(), in_use = text(memory_stats(Device::cpu()).in_use);
  CAPTURE(many);
  CHECK(many.starts_with("allocate: 281474976710656 bytes wanted on cpu, " + in_use + " in use by "));
  CHECK(many.find(" tensors (largest: 29360128, 20971520, 20971520, ") != std::string::npos);
  CHECK(many.ends_with("), 0 cached; use a smaller batch or free some"));
  first = {};
  const std::string fewer = refused();
  CAPTURE(fewer);
  CHECK(fewer.find(" tensors (largest: 20971520, 20971520, ") != std::string::npos);
}

TEST_CASE("of many tensors an allocator that refuses names the five largest, however they come") {
  const auto largest = [](std::initializer_list<std::pair<std::size_t, std::size_t>> sizes) {
    detail::Holds h;
    for (const auto& [bytes, count] : sizes) h.add(bytes, count);
    return std::pair(h.tensors, h.largest);
  };
  using Sizes = std::array<std::size_t, 5>;
  CHECK(largest({}) == std::pair(std::size_t{0}, Sizes{}));
  CHECK(largest({{3, 1}, {9, 1}, {1, 1}, {7, 1}}) == std::pair(std::size_t{4}, Sizes{9, 7, 3, 1, 0}));
  CHECK(largest({{3, 1}, {9, 1}, {1, 1}, {7, 1}, {2, 1}, {8, 1}}) == std::pair(std::size_t{6}, Sizes{9, 8, 7, 3, 2}));
  CHECK(largest({{9, 3}, {7, 4}, {1, 2}}) == std::pair(std::size_t{9}, Sizes{9, 9, 9, 7, 7}));
  CHECK(largest({{1, 2}, {7, 9}, {9, 3}}) == std::pair(std::size_t{14}, Sizes{9, 9, 9, 7, 7}));
}

TEST_CASE("beyond a memory limit an allocation throws with all of that and the limit, and reuse counts as well") {
  const std::int64_t in_use = memory_stats(Device::cpu()).in_use;
  const Tensor held = empty({2048}, Device::cpu());  // 8192 bytes
  { const Tensor cached = empty({4096}, Device::cpu()); }
  CHECK_FALSE(set_memory_limit(Device::cpu(), in_use + 8192 + 4096).has_value());
  std::string message;
  try {
    (void)empty({4096}, Device::cpu());
  } catch (const OutOfMemoryError& e) { message = e.what(); }
  CAPTURE(message);
  CHECK(message.starts_with("allocate: 16384 bytes wanted on cpu, " + text(in_use + 8192) + " in use by "));
  CHECK(message.find(" tensors (largest: ") != std::string::npos);
  CHECK(message.ends_with("), " + text(memory_stats(Device::cpu()).cached) + " cached, the limit is " +
                          text(in_use + 8192 + 4096) + "; use a smaller batch, or raise the limit"));
  const Tensor fits = empty({1024}, Device::cpu());
  CHECK(set_memory_limit(Device::cpu(), std::nullopt) == in_use + 8192 + 4096);
  CHECK_NOTHROW((void)empty({4096}, Device::cpu()));
  CHECK_THROWS_AS(set_memory_limit(Device::cpu(), -1), ConfigError);
  CHECK_THROWS_AS(set_memory_limit(Device::meta(), 1), UnsupportedError);
}
