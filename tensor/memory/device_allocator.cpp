#include "tensor/memory/device_allocator.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "tensor/device/graph_random.h"
#include "tensor/device/runtime.h"
#include "tensor/memory/allocator.h"

namespace levin::detail {
namespace {
thread_local bool only_looking = false;
bool is_recorded(Stream s) { return s.device().launches() && runtime::is_recorded(s); }
}  // namespace

bool only_looks() noexcept { return only_looking; }

Block* DeviceAllocator::allocate(std::size_t bytes, std::uint32_t stream, const Ref<Pool>& pool) {
  const std::lock_guard lock(mutex_);
  if (bytes > kMaxBlockBytes) give_up(bytes, {});
  const SizeClass c = keeps_ ? size_class(bytes) : SizeClass{0, bytes};
  if (limit_ && in_use_ + c.bytes > static_cast<std::size_t>(*limit_)) give_up(bytes, limit_);
  collect(Wait::no);
  Block* block = keeps_ ? reuse(c.index, stream, pool.get()) : nullptr;
  if (!block) {
    std::byte* data = source_.allocate(device_, c.bytes);
    // Before it refuses, the host waits for streams that still use released blocks. The allocator stays locked
    // meanwhile: another thread that wants memory would have to wait for the same streams.
    for (const Wait wait : {Wait::no, Wait::yes}) {
      if (data || (wait == Wait::yes && waiting_.empty())) break;
      trim_locked(wait);
      if (keeps_) block = reuse(c.index, stream, pool.get());  // while a graph is recorded no block was given back
      if (block) break;
      data = source_.allocate(device_, c.bytes);
    }
    if (!block && !data) give_up(bytes, {});
    if (!block) block = block_of(data, c.bytes, stream, pool);
  }
  block->wanted = bytes;
  link(block);
  in_use_ += block->bytes;
  peak_ = std::max(peak_, in_use_);
  return block;
}

Block* DeviceAllocator::block_of(std::byte* data, std::size_t bytes, std::uint32_t stream, const Ref<Pool>& pool) {
  try {
    auto* const block = new Block;
    block->data = data;
    block->bytes = bytes;
    block->stream = stream;
    block->pool = pool;
    return block;
  } catch (...) {
    source_.release(device_, data, bytes);
    throw;
  }
}

void DeviceAllocator::link(Block* block) {
  block->before = nullptr;
  block->behind = live_;
  if (live_) live_->before = block;
  live_ = block;
}

Block* DeviceAllocator::reuse(std::size_t size_class, std::uint32_t stream, const Pool* pool) {
  const auto at = free_.find(Key{pool, stream});
  if (at == free_.end()) return nullptr;
  std::vector<Block*>& list = at->second->by_class[size_class];
  if (list.empty()) return nullptr;
  Block* block = list.back();
  list.pop_back();
  cached_ -= block->bytes;
  return block;
}

void DeviceAllocator::release(Block* block) noexcept {
  const std::lock_guard lock(mutex_);
  (block->before ? block->before->behind : live_) = block->behind;
  if (block->behind) block->behind->before = block->before;
  in_use_ -= block->bytes;
  // Where blocks are not kept, the system would get this block back before its own stream has reached the work that
  // uses it.
  const bool own_use = !keeps_ && block->stream != 0 && !block->pool;
  if (block->uses.empty() && !own_use && !block->used_by_fork) return keep(block);
  try {
    if (own_use) block->uses.push_back({stream_of(device_, block->stream), Event(device_)});
    for (Block::Use& use : block->uses) {
      use.recorded = !is_recorded(use.stream);  // an event of a recording cannot be queried
      if (use.recorded) use.event.record(use.stream);
    }
    waiting_.push_back(block);
    cached_ += block->bytes;
  } catch (...) { wait_for_uses(block); }
}

// There is no memory for an event or for the list, or the device is lost; then waiting fails as well, and nothing runs
// on the device.
void DeviceAllocator::wait_for_uses(Block* block) noexcept {
  for (const Block::Use& use : block->uses) {
    try {
      runtime::synchronize(use.stream);
    } catch (...) {}
  }
  block->uses.clear();
  keep(block);
}

// A pool's block stays with its pool even where blocks are not kept, because a recorded graph still uses it. While a
// graph is recorded a GPU's block stays, too.
void DeviceAllocator::keep(Block* block) noexcept {
  if (keeps_ || block->pool || (device_.is_cuda() && OpenRecording::any())) {
    try {
      std::unique_ptr<Lists>& lists = free_[Key{block->pool.get(), block->stream}];
      if (!lists) lists = std::make_unique<Lists>();
      lists->by_class[keeps_ ? size_class(block->bytes).index : 0].push_back(block);
      cached_ += block->bytes;
      return;
    } catch (...) {
      if (block->pool) return;  // leaked: a graph may still use the block
    }
  }
  free_block(block);
}

void DeviceAllocator::free_block(Block* block) noexcept {
  source_.release(device_, block->data, block->bytes);
  delete block;
}

bool DeviceAllocator::passed(Block::Use& use, Wait wait) const {
  if (!use.recorded) {
    if (is_recorded(use.stream)) return false;
    use.event.record(use.stream);
    use.recorded = true;
  }
  return source_.passed(use.event, wait);
}

bool DeviceAllocator::ask(const Event& event, Wait wait) {
  if (wait == Wait::yes) event.synchronize();
  return event.done();
}

void DeviceAllocator::collect(Wait wait) noexcept {
  if (waiting_.empty() || GraphRandom::recording()) return;  // a thread that records must not query an event
  const bool before = std::exchange(only_looking, wait == Wait::no);
  std::erase_if(waiting_, [&](Block* block) {
    try {
      std::erase_if(block->uses, [&](Block::Use& use) { return passed(use, wait); });
    } catch (...) { return false; }
    if (!block->uses.empty() || (block->used_by_fork && block->pool)) return false;
    block->used_by_fork = false;
    cached_ -= block->bytes;
    keep(block);
    return true;
  });
  only_looking = before;
}

void DeviceAllocator::used_on(Block* block, Stream stream) {
  if (stream.device() == device_ && stream.index() == block->stream) return;
  const std::lock_guard lock(mutex_);
  // An event of a recording could never be queried.
  if (is_capturing(stream.device()) && runtime::is_recorded(stream)) {
    block->used_by_fork = bool(block->pool);
    return;
  }
  const auto known =
      std::find_if(block->uses.begin(), block->uses.end(), [&](const Block::Use& u) { return u.stream == stream; });
  if (known == block->uses.end()) block->uses.push_back({stream, Event(stream.device())});
}

void DeviceAllocator::trim() noexcept {
  const std::lock_guard lock(mutex_);
  trim_locked(Wait::no);
}

void DeviceAllocator::trim_locked(Wait wait) noexcept {
  collect(wait);
  if (OpenRecording::any()) return;
  for (auto& [key, lists] : free_) {
    if (key.first) continue;
    for (std::vector<Block*>& list : lists->by_class) {
      for (Block* block : list) {
        cached_ -= block->bytes;
        free_block(block);
      }
      list.clear();
    }
  }
}

void DeviceAllocator::drop_pool(const Pool* pool) noexcept {
  const std::lock_guard lock(mutex_);
  for (auto at = free_.begin(); at != free_.end();) {
    if (at->first.first != pool) {
      ++at;
      continue;
    }
    const std::unique_ptr<Lists> dropped = std::move(at->second);
    at = free_.erase(at);
    for (std::vector<Block*>& list : dropped->by_class) {
      for (Block* block : list) {
        cached_ -= block->bytes;
        block->pool = {};
        if (OpenRecording::any())
          keep(block);
        else
          free_block(block);
      }
    }
  }
  // Tensors that outlive the graph keep their memory; once released it becomes ordinary memory.
  for (Block* block = live_; block; block = block->behind) {
    if (block->pool.get() == pool) block->pool = {};
  }
  for (Block* block : waiting_) {
    if (block->pool.get() == pool) block->pool = {};
  }
}

std::int64_t DeviceAllocator::size() {
  const std::lock_guard lock(mutex_);
  if (limit_) return *limit_;
  return static_cast<std::int64_t>(runtime::free_memory(device_) + in_use_ + cached_);
}

std::optional<std::int64_t> DeviceAllocator::set_limit(std::optional<std::int64_t> bytes) {
  const std::lock_guard lock(mutex_);
  return std::exchange(limit_, bytes);
}

MemoryStats DeviceAllocator::stats() {
  const std::lock_guard lock(mutex_);
  return {static_cast<std::int64_t>(in_use_), static_cast<std::int64_t>(peak_), static_cast<std::int64_t>(cached_)};
}

std::size_t DeviceAllocator::bytes_of(const Pool* pool) {
  const std::lock_guard lock(mutex_);
  std::size_t bytes = 0;
  for (const Block* block = live_; block; block = block->behind) bytes += block->pool.get() == pool ? block->bytes : 0;
  for (const auto& [key, lists] : free_) {
    if (key.first != pool) continue;
    for (const std::vector<Block*>& list : lists->by_class) {
      for (const Block* block : list) bytes += block->bytes;
    }
  }
  for (const Block* block : waiting_) bytes += block->pool.get() == pool ? block->bytes : 0;
  return bytes;
}

void DeviceAllocator::reset_peak() {
  const std::lock_guard lock(mutex_);
  peak_ = in_use_;
}

void DeviceAllocator::give_up(std::size_t bytes, std::optional<std::int64_t> limit) const {
  Holds now{.in_use = in_use_, .cached = cached_};
  for (const Block* block = live_; block; block = block->behind) now.add(block->wanted);
  refuse(bytes, device_.is_cpu() ? "page-locked memory" : text(device_), now, limit);
}

namespace {
std::atomic<int> open_recordings{0};
}  // namespace
OpenRecording::OpenRecording() noexcept { ++open_recordings; }
OpenRecording::~OpenRecording() { --open_recordings; }
bool OpenRecording::any() noexcept { return open_recordings > 0; }

bool caching_is_off() noexcept {
  const char* const value = std::getenv("LEVIN_NO_MEMORY_CACHING");
  return value && std::string_view(value) == "1";
}

DeviceAllocator& device_allocator(Device device) {
  static constexpr DeviceAllocator::Source kSource{&runtime::allocate, &runtime::release};
  // Every float type reads bytes of ones as NaN. simt has a pattern of its own.
  static constexpr DeviceAllocator::Source kNan{
      [](Device of, std::size_t bytes) { return runtime::allocate_filled(of, bytes, 0xff); }, &runtime::release};
  // Never destroyed: static objects may release tensors after the end of main.
  static auto* allocators = [] {
    auto* all = new std::vector<std::unique_ptr<DeviceAllocator>>;
    const bool keeps = runtime::keeps_blocks() && !caching_is_off();
    for (int i = 0; i < runtime::count(DeviceType::cuda); ++i) {
      all->push_back(std::make_unique<DeviceAllocator>(Device::cuda(i), keeps ? kSource : kNan, keeps));
    }
    if (runtime::count(DeviceType::simt) > 0) {
      all->push_back(std::make_unique<DeviceAllocator>(Device::simt(), kSource, keeps));
    }
    return all;
  }();
  check_usable("memory", device);
  return *(*allocators)[static_cast<std::size_t>(device.index())];
}

DeviceAllocator& pinned_allocator() {
  static constexpr DeviceAllocator::Source kSource{
      [](Device, std::size_t bytes) { return runtime::allocate_pinned(bytes); },
      [](Device, std::byte* block, std::size_t bytes) noexcept { runtime::release_pinned(block, bytes); }};
  static auto* allocator = new DeviceAllocator(Device::cpu(), kSource, true);
  return *allocator;
}

}  // namespace levin::detail
