#include "kernels/executor/cpu.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#ifdef __linux__
#include <sys/wait.h>
#include <unistd.h>
#endif

#include "kernels/executor/copy.h"
#include "kernels/executor/pieces.h"
#include "kernels/executor/rows_test.h"
#include "kernels/executor/streaming.cuh"
#include "kernels/lib/scratch.h"
#include "levin/device.h"
#include "levin/error.h"
#include "tests/memory.h"

using namespace levin::kernels;
using levin::kernels::test::Threads;

TEST_CASE("parallel_for visits every index once, in chunks that depend on n and grain alone") {
  for (const int threads : {1, 2, 5}) {
    const Threads guard(threads);
    CHECK(num_threads() == threads);
    for (const int64_t n : {0, 1, 2, 7, 64, 1000})
      for (const int64_t grain : {1, 3, 64, 999, 5000}) {
        std::mutex mutex;
        std::set<std::pair<int64_t, int64_t>> chunks;
        Cpu{}.parallel_for(n, grain, [&](int64_t begin, int64_t end) {
          const std::lock_guard lock(mutex);
          CHECK(chunks.emplace(begin, end).second);
        });
        std::set<std::pair<int64_t, int64_t>> want;
        for (int64_t i = 0; i < n; i += grain) want.emplace(i, std::min(n, i + grain));
        CHECK(chunks == want);
      }
  }
}

TEST_CASE("parallel_for uses the threads it may use") {
  const Threads guard(2);
  std::atomic<int> inside{0};
  std::atomic<bool> met{false};
  // Each of two chunks waits for the other; on one thread they would not meet before the deadline.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  Cpu{}.parallel_for(2, 1, [&](int64_t, int64_t) {
    if (++inside == 2) met = true;
    while (!met && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  });
  CHECK(met);
}

TEST_CASE("an exception of the body reaches the caller, and the threads stay usable") {
  for (const int threads : {1, 2}) {
    const Threads guard(threads);
    for (int repeat = 0; repeat < 20; ++repeat)
      CHECK_THROWS_WITH_AS(Cpu{}.parallel_for(100, 1,
                                              [](int64_t begin, int64_t) {
                                                if (begin == 57) throw std::runtime_error("chunk 57");
                                              }),
                           "chunk 57", std::runtime_error);
    std::atomic<int64_t> sum{0};
    Cpu{}.parallel_for(100, 7, [&](int64_t begin, int64_t end) { sum += end - begin; });
    CHECK(sum == 100);
  }
}

TEST_CASE("parallel_for nests, and several threads of the program may call it at once") {
  const Threads guard(2);
  std::atomic<int64_t> sum{0};
  const auto nested = [&] {
    Cpu{}.parallel_for(20, 1, [&](int64_t begin, int64_t) {
      Cpu{}.parallel_for(50, 10, [&](int64_t b, int64_t e) { sum += (e - b) * (begin + 1); });
    });
  };
  std::vector<std::jthread> callers;
  for (int i = 0; i < 4; ++i) callers.emplace_back(nested);
  callers.clear();
  CHECK(sum == 4 * 50 * 210);
}

TEST_CASE("the number of threads may change while loops run") {
  const Threads guard(2);
  std::atomic<bool> stop{false};
  std::atomic<int64_t> wrong{0};
  std::jthread caller([&] {
    while (!stop) {
      std::atomic<int64_t> sum{0};
      Cpu{}.parallel_for(1000, 10, [&](int64_t b, int64_t e) { sum += e - b; });
      wrong += sum != 1000;
    }
  });
  for (int i = 0; i < 30; ++i) set_num_threads(1 + i % 4);
  stop = true;
  caller.join();
  CHECK(wrong == 0);
  set_num_threads(0);
  CHECK(num_threads() >= 1);
}

TEST_CASE("loops that follow at once or after a pause, from several callers, lose and repeat no chunk") {
  for (const int threads : {2, 4}) {
    const Threads guard(threads);
    std::atomic<int> wrong{0};
    const auto caller = [&](int seed) {
      std::vector<int> seen(97);
      for (int repeat = 0; repeat < 300; ++repeat) {
        std::fill(seen.begin(), seen.end(), 0);
        Cpu{}.parallel_for(97, 1 + (repeat + seed) % 40, [&](int64_t b, int64_t e) {
          for (int64_t i = b; i < e; ++i) ++seen[static_cast<size_t>(i)];
        });
        wrong += std::count(seen.begin(), seen.end(), 1) != 97;
        // Longer than a worker waits, about as long, and not at all.
        if (repeat % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(20 * (repeat + seed) % 400));
      }
    };
    {
      std::vector<std::jthread> callers;
      for (int i = 0; i < 3; ++i) callers.emplace_back(caller, i);
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("more threads than shares, and more than chunks, still run every chunk once") {
  const Threads guard(40);
  for (const int64_t n : {2, 39, 41, 1000}) {
    std::vector<std::atomic<int>> seen(static_cast<size_t>(n));
    Cpu{}.parallel_for(n, 1, [&](int64_t b, int64_t) { ++seen[static_cast<size_t>(b)]; });
    CHECK(std::all_of(seen.begin(), seen.end(), [](const std::atomic<int>& s) { return s == 1; }));
  }
}

TEST_CASE("parallel_pieces visits every element of short, long and empty arrays once") {
  const std::vector<std::vector<int64_t>> lists = {
      {0, 5, 300'001, 0, 131'071, 131'072, 7, 90'000, 0}, {400'000}, {1, 2, 3}, {60'000, 60'000, 60'000}, {}};
  for (const int threads : {1, 3}) {
    const Threads guard(threads);
    for (const std::vector<int64_t>& sizes : lists) {
      std::vector<std::vector<std::atomic<uint8_t>>> seen;
      for (const int64_t n : sizes) seen.emplace_back(size_t(n));
      std::vector<size_t> items(sizes.size());
      for (size_t i = 0; i < items.size(); ++i) items[i] = i;
      // Both layouts: arrays that stay in a cache, and arrays that do not.
      for (const int64_t bytes : {int64_t{8}, int64_t{1} << 40}) {
        parallel_pieces(
            Cpu{}, std::span<const size_t>(items), int64_t{5000}, bytes, [&](size_t i) { return sizes[i]; },
            [&](size_t i, int64_t begin, int64_t end) {
              for (int64_t k = begin; k < end; ++k) ++seen[i][size_t(k)];
            });
      }
      for (const auto& array : seen)
        CHECK(std::all_of(array.begin(), array.end(), [](const std::atomic<uint8_t>& x) { return x == 2; }));
    }
  }
}

#ifdef __linux__
TEST_CASE("the child of a fork has no workers and runs its loops alone") {
  const Threads guard(2);
  const auto total = [] {
    std::atomic<int64_t> sum{0};
    Cpu{}.parallel_for(1000, 10, [&](int64_t b, int64_t e) { sum += e - b; });
    return sum.load();
  };
  CHECK(total() == 1000);  // a worker waits for the next loop
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    ::_exit(total() == 1000 && total() == 1000 ? 0 : 1);
  }
  REQUIRE(child > 0);
  int status = -1;
  CHECK(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}
#endif

#if defined(__linux__) && !defined(__SANITIZE_ADDRESS__)
TEST_CASE("a loop that can not send for its workers is run by its caller") {
  // In a child without memory the message to a worker cannot be made.
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::alarm(60);
    set_num_threads(100);
    levin::test::use_up_memory();
    bool right = true;
    for (int repeat = 0; repeat < 3; ++repeat) {
      std::atomic<int64_t> sum{0};
      try {
        Cpu{}.parallel_for(1000, 1, [&](int64_t b, int64_t e) { sum += e - b; });
      } catch (...) { right = false; }
      right = right && sum == 1000;
    }
    ::_exit(right ? 0 : 1);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}
#endif

TEST_CASE("stores past the caches write every byte of a block, wherever it begins and ends, and no other") {
  std::vector<char> from(200);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<char>(i + 1);
  for (const CpuLevel level : test::levels()) {
    for (int64_t offset = 0; offset < 66; ++offset) {
      for (const int64_t bytes : {0, 1, 7, 15, 16, 17, 40, 64, 65, 131}) {
        std::vector<char> to(200, char{0});
        {
          const Streaming all_seen;
          Streaming::write(Cpu{.level = level}, to.data() + offset, from.data() + 3, bytes);
        }
        bool is_right = true;
        for (int64_t i = 0; i < 200; ++i) {
          const bool inside = i >= offset && i < offset + bytes;
          is_right = is_right && to[size_t(i)] == (inside ? from[size_t(3 + i - offset)] : 0);
        }
        CAPTURE(offset);
        CAPTURE(bytes);
        CHECK(is_right);
      }
    }
  }
  CHECK_FALSE(beyond_cache(int64_t{64} << 10));
  CHECK(beyond_cache(int64_t{8} << 30));
}

TEST_CASE("a level has a name, and the CPU's level is one this machine runs") {
  CHECK(std::strcmp(name(CpuLevel::base), "base") == 0);
  CHECK(std::strcmp(name(CpuLevel::v4), "x86-64-v4") == 0);
  CHECK(Cpu{}.level == cpu_level());
}

TEST_CASE("scratch memory is aligned, is given out once at a time, and comes back") {
  lib::trim_scratch();
  void* first = nullptr;
  {
    const lib::Scratch a(100000), b(100000), none(0);
    first = a.as<void>();
    CHECK(first != b.as<void>());
    CHECK(none.as<void>() == nullptr);
    CHECK(reinterpret_cast<uintptr_t>(first) % 64 == 0);
    std::memset(first, 1, 100000);
    std::memset(b.as<void>(), 1, 100000);
  }
  {
    const lib::Scratch a(99000), b(99000);  // both blocks are used again
    CHECK((a.as<void>() == first || b.as<void>() == first));
  }
  CHECK_THROWS_AS(lib::Scratch(size_t{1} << 62), levin::OutOfMemoryError);
  lib::trim_scratch();
}

TEST_CASE("a thread gets the scratch memory that it had before, not another thread's") {
  lib::trim_scratch();
  void* own = nullptr;
  {
    const lib::Scratch a(100000);
    own = a.as<void>();
    std::thread([] { const lib::Scratch b(100000); }).join();  // comes back first
  }
  for (int i = 0; i < 3; ++i) CHECK(lib::Scratch(100000).as<void>() == own);
  lib::trim_scratch();
}

TEST_CASE("a number of threads that no machine has is refused, and the one before stays") {
  const int before = num_threads();
  for (const int absurd : {4097, 1000000000}) CHECK_THROWS_AS(levin::set_num_threads(absurd), levin::ConfigError);
  CHECK(num_threads() == before);
}

TEST_CASE("copies of all sizes and places move each byte, by any number of threads") {
  std::vector<unsigned char> from(3 << 20), to(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(i * 2654435761u >> 13);
  for (const int threads : {1, 3}) {
    const levin::kernels::test::Threads some(threads);
    for (const std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{255}, std::size_t{262144},
                                std::size_t{262145}, from.size() - 64}) {
      for (const std::size_t place : {0u, 1u, 16u, 33u}) {
        std::fill(to.begin(), to.end(), 0);
        levin::kernels::cpu::copy_bytes(Cpu{}, from.data() + place / 3, to.data() + place, std::int64_t(n));
        CHECK(std::equal(from.begin() + std::ptrdiff_t(place / 3), from.begin() + std::ptrdiff_t(place / 3 + n),
                         to.begin() + std::ptrdiff_t(place)));
        CHECK(std::count(to.begin(), to.begin() + std::ptrdiff_t(place), 0) == std::ptrdiff_t(place));
        CHECK(to[place + n] == 0);
      }
    }
  }
}

TEST_CASE("a list of copies moves each byte and clears each gap, by any number of threads") {
  using levin::kernels::Copy;
  const std::vector<int> sizes = {0, 7, 300000, 16, 1, 700001, 64};
  std::vector<std::byte> from(std::size_t{1} << 20), to(std::size_t{2} << 20);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 2654435761u >> 13 | 1);
  for (const int threads : {1, 3}) {
    const levin::kernels::test::Threads some(threads);
    std::fill(to.begin(), to.end(), std::byte{0xff});
    std::vector<Copy> copies;
    std::size_t source = 0, target = 0;
    for (const int n : sizes) {
      const int gap = (16 - n % 16) % 16;
      copies.push_back({from.data() + source, to.data() + target, n, gap});
      source += std::size_t(n);
      target += std::size_t(n + gap) + 1;  // a byte that no copy owns
    }
    levin::kernels::cpu::copy_list(Cpu{}, copies);
    for (const Copy& c : copies) {
      CHECK(std::equal(c.from, c.from + c.n, c.to));
      CHECK(std::count(c.to + c.n, c.to + c.n + c.gap, std::byte{0}) == c.gap);
      CHECK(c.to[c.n + c.gap] == std::byte{0xff});
    }
  }
}
