#include "kernels/lib/scratch.h"

#include <array>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <utility>

#include "levin/error.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace levin::kernels::lib {
namespace {

constexpr size_t kAlignment = 64;               // a cache line, and the widest vector
constexpr size_t kKeptBytes = size_t{1} << 28;  // what the list may hold between calls
constexpr size_t kHugePage = size_t{1} << 21;

struct Block {
  void* data = nullptr;
  size_t bytes = 0;
  const void* user = nullptr;  // the thread that had it last
};
// An address of the thread's own.
const void* this_thread() {
  static thread_local const char own = 0;
  return &own;
}

// A few large blocks: one a running kernel, so a linear search is the fastest.
struct FreeList {
  std::mutex mutex;
  std::array<Block, 64> blocks;
  size_t count = 0;
  size_t bytes = 0;

  Block take(size_t at) {
    const Block block = blocks[at];
    blocks[at] = blocks[--count];
    bytes -= block.bytes;
    return block;
  }
};

// Never destroyed: kernels may run in destructors of static objects.
FreeList& free_list() {
  static FreeList& instance = *new FreeList;
  return instance;
}

[[noreturn]] void fail_memory(size_t bytes) {
  fail<OutOfMemoryError>("scratch: ", bytes,
                         " bytes wanted by a kernel on cpu, the system has no more; use a smaller batch");
}

// Steps of an eighth of the size's power of two: sizes that differ little share a block.
size_t rounded(size_t bytes) {
  if (bytes > std::numeric_limits<size_t>::max() / 4) fail_memory(bytes);
  size_t step = 4096;
  while (step * 16 <= bytes) step *= 2;
  if (bytes >= kHugePage && step < kHugePage) step = kHugePage;
  return (bytes + step - 1) / step * step;
}

// Null when there is no memory. Large blocks ask for huge pages: fewer faults, and packed panels miss the TLB less.
void* system_block(size_t bytes) {
  const bool large = bytes >= 2 * kHugePage;
  void* data = std::aligned_alloc(large ? kHugePage : kAlignment, bytes);
#if defined(__linux__)
  if (data && large) madvise(data, bytes, MADV_HUGEPAGE);  // a wish; failure costs speed alone
#endif
  return data;
}

}  // namespace

Scratch::Scratch(size_t bytes) {
  if (bytes == 0) return;
  FreeList& list = free_list();
  {
    const std::lock_guard lock(list.mutex);
    // The smallest that is large enough; among equals one of the caller's own, whose lines may be in its core's cache:
    // those of another core, where two share no cache, cost as much as memory and more.
    size_t best = list.count;
    const void* const me = this_thread();
    const auto cost = [&](size_t i) { return std::pair(list.blocks[i].bytes, list.blocks[i].user != me); };
    for (size_t i = 0; i < list.count; ++i)
      if (list.blocks[i].bytes >= bytes && (best == list.count || cost(i) < cost(best))) best = i;
    if (best < list.count) {
      const Block block = list.take(best);
      data_ = block.data;
      bytes_ = block.bytes;
      return;
    }
  }
  bytes_ = rounded(bytes);
  data_ = system_block(bytes_);
  if (!data_) {
    trim_scratch();
    data_ = system_block(bytes_);
  }
  if (!data_) fail_memory(bytes);
}

Scratch::~Scratch() {
  if (!data_) return;
  FreeList& list = free_list();
  Block drop{data_, bytes_, this_thread()};
  {
    const std::lock_guard lock(list.mutex);
    if (list.bytes + bytes_ <= kKeptBytes) {
      Block in = drop;
      drop = {};
      if (list.count == list.blocks.size()) {  // the smallest is the cheapest to get again
        size_t least = 0;
        for (size_t i = 1; i < list.count; ++i)
          if (list.blocks[i].bytes < list.blocks[least].bytes) least = i;
        drop = list.take(least);
      }
      list.blocks[list.count++] = in;
      list.bytes += in.bytes;
    }
  }
  std::free(drop.data);
}

void trim_scratch() {
  FreeList& list = free_list();
  const std::lock_guard lock(list.mutex);
  while (list.count > 0) std::free(list.take(list.count - 1).data);
}

}  // namespace levin::kernels::lib
