// The allocator of devices that launch kernels: blocks are kept for reuse in the order of a stream.
//
// Note [Stream-ordered memory]
// A block belongs to the stream that was current when it was made. Released, it may be handed out at once to later work
// of that stream, because the stream runs in order: no event, no wait. Work of another stream that uses it is noted
// (used_on): kernels and copies get addresses from address_in_stream (tensor/in_stream.h), which compares two numbers.
// Such a block, released, comes back when those streams have passed what they hold then. Page-locked memory of the host
// is kept in the same way: it belongs to no stream, so every use is noted. A Pool is a private arena: a recorded graph
// keeps one, so that the addresses it replays are given to nobody else while it lives. While a graph is recorded
// nothing goes back to the system, because cudaFree waits for the device.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "levin/stream.h"
#include "levin/tensor.h"
#include "tensor/size_class.h"

namespace levin::detail {

class Pool : public RefCounted {};

struct Block {
  std::byte* data = nullptr;
  std::size_t bytes = 0;   // of the size class; exactly what was asked for where blocks are not kept
  std::size_t wanted = 0;  // by whom holds it now
  std::uint32_t stream = 0;
  Ref<Pool> pool;
  Block *before = nullptr, *behind = nullptr;  // the list of live blocks
  struct Use {
    Stream stream;
    Event event;  // recorded when the block is released, or when the recording of its stream is over
    bool recorded = false;
  };
  std::vector<Use> uses;      // other streams that the block must outlive
  bool used_by_fork = false;  // of a pool: by another stream that is recorded with its own
};

// True while this thread's allocator looks which events have passed. On simt a user's look does a piece of work, an
// allocation must not: which of two streams is first would depend on what is allocated.
[[nodiscard]] bool only_looks() noexcept;

class DeviceAllocator {
 public:
  enum class Wait : bool { no, yes };
  struct Source {  // the system below; replaced in tests
    std::byte* (*allocate)(Device device, std::size_t bytes);
    void (*release)(Device device, std::byte* block, std::size_t bytes) noexcept;
    bool (*passed)(const Event& event, Wait wait) = &ask;
  };
  DeviceAllocator(Device device, Source source, bool keeps_blocks)
      : device_(device), source_(source), keeps_(keeps_blocks) {}

  // Throws OutOfMemoryError (refuse, tensor/allocator.h) after one more try with the cache given back, and one more
  // when the host has waited for other streams that blocks wait for. `pool` may be null.
  [[nodiscard]] Block* allocate(std::size_t bytes, std::uint32_t stream, const Ref<Pool>& pool);
  void release(Block* block) noexcept;
  // `block` is used by work that `stream`, another than its own, is given before the release. Of a stream that is
  // recorded only a pool's block takes note, which its graph then uses once: what a replay reads besides is kept alive
  // by who replays.
  void used_on(Block* block, Stream stream);
  void drop_pool(const Pool* pool) noexcept;  // gives back the free blocks of a pool that nothing records in any more
  void trim() noexcept;                       // gives back the free blocks outside of pools, unless a graph is recorded
  [[nodiscard]] MemoryStats stats();
  [[nodiscard]] std::size_t bytes_of(const Pool* pool);
  void reset_peak();
  std::optional<std::int64_t> set_limit(
      std::optional<std::int64_t> bytes);  // of what is in use; returns the one before
  [[nodiscard]] std::int64_t size();       // see memory_size

 private:
  struct Lists {
    std::array<std::vector<Block*>, kSizeClasses> by_class;
  };
  using Key = std::pair<const Pool*, std::uint32_t>;
  [[nodiscard]] Block* block_of(std::byte* data, std::size_t bytes, std::uint32_t stream, const Ref<Pool>& pool);
  Block* reuse(std::size_t size_class, std::uint32_t stream, const Pool* pool);
  void keep(Block* block) noexcept;
  void wait_for_uses(Block* block) noexcept;
  bool passed(Block::Use& use, Wait wait) const;
  void free_block(Block* block) noexcept;
  static bool ask(const Event& event, Wait wait);
  void collect(Wait wait) noexcept;  // blocks whose other streams have passed
  void trim_locked(Wait wait) noexcept;
  void link(Block* block);
  [[noreturn]] void give_up(std::size_t bytes, std::optional<std::int64_t> limit) const;

  Device device_;
  Source source_;
  bool keeps_;
  std::mutex mutex_;
  std::map<Key, std::unique_ptr<Lists>> free_;
  std::vector<Block*> waiting_;
  Block* live_ = nullptr;
  std::size_t in_use_ = 0, peak_ = 0, cached_ = 0;
  std::optional<std::int64_t> limit_;
};

// Whether LEVIN_NO_MEMORY_CACHING=1 of the environment asks for a block of its own for each tensor, exactly as large:
// what compute-sanitizer needs to see where a tensor ends. It changes no result. PyTorch's is
// PYTORCH_NO_CUDA_MEMORY_CACHING.
[[nodiscard]] bool caching_is_off() noexcept;
[[nodiscard]] DeviceAllocator& device_allocator(Device device);
[[nodiscard]] DeviceAllocator& pinned_allocator();  // of the host's page-locked memory

// A graph is recorded while one of these lives, in any thread and on any device.
class OpenRecording {
 public:
  OpenRecording() noexcept;
  ~OpenRecording();
  OpenRecording(const OpenRecording&) = delete;
  OpenRecording& operator=(const OpenRecording&) = delete;
  [[nodiscard]] static bool any() noexcept;
};

// The pool of the graph that the calling thread records on the device, or null. Set by Graph alone.
[[nodiscard]] Pool* recording_pool(Device device) noexcept;
// `queue`: of the recording, behind the number of the stream that the graph is for.
void set_recording(Device device, Pool* pool, Stream queue) noexcept;
// While it lives, the calling thread's recording on the device gets memory from outside of the pool.
class OutsidePool {
 public:
  explicit OutsidePool(Device device) noexcept;
  ~OutsidePool();
  OutsidePool(const OutsidePool&) = delete;
  OutsidePool& operator=(const OutsidePool&) = delete;

 private:
  Device device_;
  Pool* pool_;
};

}  // namespace levin::detail
