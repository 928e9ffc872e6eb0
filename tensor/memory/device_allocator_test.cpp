#include "tensor/memory/device_allocator.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <string>
#include <utility>

#include "levin/error.h"

namespace {

using levin::Device;
using levin::OutOfMemoryError;
using levin::detail::Block;
using levin::detail::DeviceAllocator;
using levin::detail::OpenRecording;
using levin::detail::Pool;
using levin::detail::Ref;

// A system with bounded memory that counts its calls.
struct System {
  std::size_t room = std::size_t{1} << 30, used = 0;
  int allocations = 0, releases = 0;
};
System system_;

DeviceAllocator::Source source() {
  system_ = {};
  return {[](Device, std::size_t bytes) -> std::byte* {
            if (system_.used + bytes > system_.room) return nullptr;
            system_.used += bytes;
            ++system_.allocations;
            return static_cast<std::byte*>(std::malloc(bytes));
          },
          [](Device, std::byte* block, std::size_t bytes) noexcept {
            system_.used -= bytes;
            ++system_.releases;
            std::free(block);
          }};
}

const Device device = Device::cpu();  // only a name here: the system above is what allocates

}  // namespace

TEST_CASE("a device block released is handed out again to its stream, and to no other") {
  DeviceAllocator a(device, source(), true);
  Block* first = a.allocate(1000, 0, {});
  const std::byte* data = first->data;
  a.release(first);
  Block* other = a.allocate(1000, 1, {});
  CHECK(other->data != data);
  Block* again = a.allocate(900, 0, {});  // the same size class
  CHECK(again->data == data);
  CHECK(system_.allocations == 2);
  a.release(other);
  a.release(again);
  CHECK(a.stats().in_use == 0);
  CHECK(a.stats().cached == 2 * 1024);
  a.trim();
  CHECK(a.stats().cached == 0);
  CHECK(system_.releases == 2);
}

TEST_CASE("a device has a limit of what is in use, whatever is cached") {
  DeviceAllocator a(device, source(), true);
  Block* held = a.allocate(1024, 0, {});
  a.release(a.allocate(4096, 0, {}));
  CHECK_FALSE(a.set_limit(4096).has_value());
  try {
    (void)a.allocate(4000, 0, {});
    FAIL("expected OutOfMemoryError");
  } catch (const OutOfMemoryError& e) {
    CHECK(std::string(e.what()) ==
          "allocate: 4000 bytes wanted on page-locked memory, 1024 in use by 1 tensors (largest: 1024), 4096 cached, "
          "the limit is 4096; use a smaller batch, or raise the limit");
  }
  a.release(a.allocate(2048, 0, {}));
  CHECK(a.set_limit(std::nullopt) == 4096);
  a.release(a.allocate(4096, 0, {}));
  a.release(held);
  a.trim();
}

TEST_CASE("a device out of memory gives its cache back first, then names what is asked, in use and largest") {
  DeviceAllocator a(device, source(), true);
  system_.room = 10000;
  Block* small = a.allocate(1024, 0, {});
  a.release(a.allocate(4096, 0, {}));
  Block* large = a.allocate(8192, 0, {});  // fits only once the cached 4096 are gone
  CHECK(system_.releases == 1);
  try {
    (void)a.allocate(2000, 0, {});
    FAIL("expected OutOfMemoryError");
  } catch (const OutOfMemoryError& e) {
    const std::string message = e.what();
    CHECK(message.find("2000 bytes wanted") != std::string::npos);
    CHECK(message.find("9216 in use by 2 tensors (largest: 8192, 1024), 0 cached; use") != std::string::npos);
  }
  CHECK_THROWS_AS((void)a.allocate(std::size_t{1} << 60, 0, {}), OutOfMemoryError);
  a.release(small);
  a.release(large);
  a.trim();
}

TEST_CASE("a device out of memory waits for blocks that another stream still uses, and refuses only then") {
  static int waits = 0;
  static bool passes = true;
  waits = 0;
  DeviceAllocator::Source slow = source();
  slow.passed = [](const levin::Event&, DeviceAllocator::Wait wait) {
    waits += wait == DeviceAllocator::Wait::yes;
    return passes && wait == DeviceAllocator::Wait::yes;
  };
  DeviceAllocator a(device, slow, true);
  system_.room = 10000;
  const levin::Stream other(device, nullptr, 1);
  const auto leave_used = [&] {
    Block* block = a.allocate(8192, 0, {});
    a.used_on(block, other);
    a.release(block);
  };
  leave_used();
  Block* small = a.allocate(1024, 0, {});  // fits beside it
  CHECK(waits == 0);
  Block* large = a.allocate(8192, 0, {});
  CHECK(waits == 1);
  CHECK(system_.used == 9216);
  a.release(large);
  a.trim();
  leave_used();
  passes = false;  // the wait failed: the block may still be written to
  CHECK_THROWS_AS((void)a.allocate(8192, 0, {}), OutOfMemoryError);
  CHECK(a.stats().cached == 8192);
  passes = true;
  a.release(a.allocate(8192, 0, {}));
  a.release(small);
  a.trim();
  CHECK(system_.used == 0);
}

TEST_CASE("a pool's blocks go to the pool alone, until it is dropped") {
  DeviceAllocator a(device, source(), true);
  const Ref<Pool> pool = Ref<Pool>::adopt(new Pool);
  Block* inside = a.allocate(512, 0, pool);
  const std::byte* data = inside->data;
  a.release(inside);
  Block* outside = a.allocate(512, 0, {});
  CHECK(outside->data != data);
  Block* again = a.allocate(512, 0, pool);
  CHECK(again->data == data);
  CHECK(a.bytes_of(pool.get()) == 512);
  a.trim();  // leaves pools alone
  a.drop_pool(pool.get());
  CHECK(again->data == data);  // a tensor that outlives the graph keeps its memory
  a.release(again);
  a.release(outside);
  CHECK(a.stats().in_use == 0);
  CHECK(a.stats().peak == 1024);
  a.trim();
  CHECK(system_.used == 0);
}

TEST_CASE("where blocks are not kept every block is exactly as large as asked and goes back at once, pools apart") {
  DeviceAllocator a(device, source(), false);
  a.release(a.allocate(1000, 0, {}));
  CHECK(system_.used == 0);
  const Ref<Pool> pool = Ref<Pool>::adopt(new Pool);
  Block* inside = a.allocate(1000, 0, pool);
  CHECK(inside->bytes == 1000);
  a.release(inside);
  CHECK(system_.used == 1000);  // the recorded graph may still write there
  a.drop_pool(pool.get());
  CHECK(system_.used == 0);
}

TEST_CASE("while a graph is recorded no memory of a device goes back to the system, and afterwards it does") {
  DeviceAllocator a(device, source(), true);
  const Ref<Pool> pool = Ref<Pool>::adopt(new Pool);
  a.release(a.allocate(512, 0, pool));
  a.release(a.allocate(4096, 0, {}));
  {
    const OpenRecording open;
    a.trim();
    a.drop_pool(pool.get());  // the graph that it is of is gone, another is recorded
    system_.room = system_.used;
    CHECK_THROWS_AS((void)a.allocate(8192, 0, {}), OutOfMemoryError);
    CHECK(system_.releases == 0);
    CHECK(a.stats().cached == 4096 + 512);
    a.release(a.allocate(512, 0, {}));  // the pool's block has become common memory
    CHECK(system_.allocations == 2);
  }
  a.trim();
  CHECK(system_.used == 0);
}

TEST_CASE("LEVIN_NO_MEMORY_CACHING=1 gives each tensor of a device a block of its own") {
  const char* const before = std::getenv("LEVIN_NO_MEMORY_CACHING");
  const std::string kept = before ? before : "0";
  for (const auto& [value, off] : {std::pair("1", true), std::pair("0", false), std::pair("", false)}) {
    ::setenv("LEVIN_NO_MEMORY_CACHING", value, 1);
    CHECK(levin::detail::caching_is_off() == off);
  }
  ::setenv("LEVIN_NO_MEMORY_CACHING", kept.c_str(), 1);
}

TEST_CASE("while a graph is recorded a device out of memory hands out what another stream is done with") {
  DeviceAllocator::Source slow = source();
  slow.passed = [](const levin::Event&, DeviceAllocator::Wait wait) { return wait == DeviceAllocator::Wait::yes; };
  DeviceAllocator a(device, slow, true);
  Block* block = a.allocate(4096, 0, {});
  const std::byte* data = block->data;
  a.used_on(block, levin::Stream(device, nullptr, 1));
  a.release(block);
  system_.room = system_.used;
  {
    const OpenRecording open;
    Block* again = a.allocate(4096, 0, {});
    CHECK(again->data == data);
    a.release(again);
  }
  a.trim();
  CHECK(system_.used == 0);
}
