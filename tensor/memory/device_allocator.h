// The allocator of devices that launch kernels: blocks are kept for reuse in the order of a stream.
//
// Note [Stream-ordered memory]
//
// A block belongs to the stream that was current when the block was made. After its release the block may serve later
// work of that stream at once, because a stream runs in order: no event, no wait. The allocator notes a use by another
// stream (used_on): kernels and copies get addresses from address_in_stream (tensor/device/in_stream.h), which compares
// two numbers. Such a block becomes free when those streams have passed the work that they held at the release.
//
// Page-locked memory of the host is kept in the same way: it belongs to no stream, so every use is noted.
//
// A Pool is a private arena. A recorded graph keeps a Pool, so nothing else gets the addresses that the graph replays.
// While a graph is recorded nothing returns to the system, because cudaFree waits for the device.
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
#include "tensor/memory/size_class.h"

namespace levin::detail {

class Pool : public RefCounted {};

struct Block {
  std::byte* data = nullptr;
  std::size_t bytes = 0;   // of the size class; the exact request where blocks are not kept
  std::size_t wanted = 0;  // requested by the present owner
  std::uint32_t stream = 0;
  Ref<Pool> pool;
  Block *before = nullptr, *behind = nullptr;  // the list of live blocks
  struct Use {
    Stream stream;
    Event event;  // recorded at the release, or at the end of the recording of its stream
    bool recorded = false;
  };
  std::vector<Use> uses;      // other streams that the block must outlive
  bool used_by_fork = false;  // a pool's block: another stream of the same recording uses it
};

// True while this thread's allocator queries events. On simt a query by a user does a piece of work. A query by the
// allocator must not: the order of two streams would depend on allocations.
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

  // Throws OutOfMemoryError (refuse, tensor/memory/allocator.h) after two more attempts: one after the cache was given
  // back, one after the host has waited for the streams that blocks depend on. `pool` may be null.
  [[nodiscard]] Block* allocate(std::size_t bytes, std::uint32_t stream, const Ref<Pool>& pool);
  void release(Block* block) noexcept;
  // Work that `stream`, not the block's own, gets before the release uses `block`. For a stream that is being recorded
  // only a pool's block takes note, which the graph then uses once: the owner of the replay keeps alive what else a
  // replay reads.
  void used_on(Block* block, Stream stream);
  void drop_pool(const Pool* pool) noexcept;  // gives back the free blocks of a pool that has no recording
  void trim() noexcept;                       // gives back the free blocks outside of pools, unless a graph is recorded
  [[nodiscard]] MemoryStats stats();
  [[nodiscard]] std::size_t bytes_of(const Pool* pool);
  void reset_peak();
  std::optional<std::int64_t> set_limit(
      std::optional<std::int64_t> bytes);  // limit on the bytes in use; returns the previous limit
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

// Whether LEVIN_NO_MEMORY_CACHING=1 in the environment asks for a block for each tensor, exactly as large as the
// tensor. compute-sanitizer needs that to see where a tensor ends. Fresh blocks of a GPU hold NaN, so that a kernel
// that reads what none has written is found; no other result changes. PyTorch's variable is
// PYTORCH_NO_CUDA_MEMORY_CACHING.
[[nodiscard]] bool caching_is_off() noexcept;
[[nodiscard]] DeviceAllocator& device_allocator(Device device);
[[nodiscard]] DeviceAllocator& pinned_allocator();  // of the host's page-locked memory

// While one of these lives a graph is being recorded, in any thread and on any device.
class OpenRecording {
 public:
  OpenRecording() noexcept;
  ~OpenRecording();
  OpenRecording(const OpenRecording&) = delete;
  OpenRecording& operator=(const OpenRecording&) = delete;
  [[nodiscard]] static bool any() noexcept;
};

// The pool of the graph that the calling thread records on the device, or null. Only Graph sets it.
[[nodiscard]] Pool* recording_pool(Device device) noexcept;
// `queue`: the recording's own queue, under the number of the stream that the graph is for.
void set_recording(Device device, Pool* pool, Stream queue) noexcept;
// While it lives, the calling thread's recording on the device gets memory outside of the pool.
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
