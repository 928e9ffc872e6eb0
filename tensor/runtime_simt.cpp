// The simt device: host memory between red zones, streams that do their work when it is enqueued, graphs as lists of
// closures.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "levin/error.h"
#include "tensor/counted.h"
#include "tensor/hardware.h"
#include "tensor/runtime.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace levin::detail::runtime {
namespace {

constexpr std::size_t kRedZone = 1024;
constexpr int kMark = 0xa5;
// Without AddressSanitizer a write to a red zone is found when the block is released, and reported at the next wait.
std::atomic<std::size_t> overrun_block{0};  // bytes of the block, 0: none

std::size_t rounded(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

void guard(std::byte* zone, std::size_t bytes) {
  std::memset(zone, kMark, bytes);
#if defined(__SANITIZE_ADDRESS__)
  ASAN_POISON_MEMORY_REGION(zone, bytes);
#endif
}
bool intact(std::byte* zone, std::size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(zone, bytes);
#endif
  for (std::size_t i = 0; i < bytes; ++i) {
    if (zone[i] != std::byte{kMark}) return false;
  }
  return true;
}

struct Recording {
  std::vector<std::function<void()>> work;
};
thread_local std::unique_ptr<Recording> recording;  // of the calling thread; not a mode: it begins and ends in Graph

struct HostEvent {
  std::chrono::steady_clock::time_point at{};
};

}  // namespace

int count(DeviceType type) noexcept { return type == DeviceType::simt ? 1 : 0; }

std::byte* allocate(Device, std::size_t bytes) {
  if (bytes > std::size_t{1} << 40) return nullptr;
  const std::size_t tail = rounded(bytes) - bytes + kRedZone;
  auto* base = static_cast<std::byte*>(std::aligned_alloc(64, kRedZone + bytes + tail));
  if (!base) return nullptr;
  guard(base, kRedZone);
  std::memset(base + kRedZone, 0xff, bytes);  // NaN in every float type
  guard(base + kRedZone + bytes, tail);
  return base + kRedZone;
}

void release(Device, std::byte* block, std::size_t bytes) noexcept {
  const std::size_t tail = rounded(bytes) - bytes + kRedZone;
  const bool front = intact(block - kRedZone, kRedZone), back = intact(block + bytes, tail);
  if (!front || !back) overrun_block = bytes + 1;
  std::free(block - kRedZone);
}

std::size_t free_memory(Device) { return std::size_t{1} << 40; }  // as allocate
bool keeps_blocks() noexcept { return false; }

std::byte* allocate_pinned(std::size_t bytes) {
  return static_cast<std::byte*>(std::aligned_alloc(64, rounded(bytes ? bytes : 1)));
}
void release_pinned(std::byte* block, std::size_t) noexcept { std::free(block); }

void enqueue(Stream, std::function<void()> work) {
  if (recording)
    recording->work.push_back(std::move(work));
  else
    work();
}

void copy(void* to, const void* from, std::size_t bytes, Copy kind, Stream stream) {
  if (bytes == 0) return;
  count_copy(kind, bytes);
  enqueue(stream, [=] { std::memcpy(to, from, bytes); });
}

void set_words(std::uint64_t* to, const Words& words, Stream stream) {
  enqueue(stream, [=] { std::memcpy(to, words.at.data(), words.count * sizeof words.at[0]); });
}

void* make_stream(Device) { return nullptr; }
void wait(Stream, void*) {}

void synchronize(Device) {
  if (const std::size_t bytes = overrun_block.exchange(0)) {
    fail<InternalError>("simt: a kernel wrote outside a tensor of ", bytes - 1,
                        " bytes; build with AddressSanitizer to see where");
  }
}
void synchronize(Stream stream) { runtime::synchronize(stream.device()); }

void* make_event(Device, EnableTiming) { return new HostEvent; }
void free_event(Device, void* event) noexcept { delete static_cast<HostEvent*>(event); }
void record(void* event, Stream) { static_cast<HostEvent*>(event)->at = std::chrono::steady_clock::now(); }
bool done(Device, void*) { return true; }
void synchronize_event(Device, void*) {}
double milliseconds(void* start, void* end) {
  return std::chrono::duration<double, std::milli>(static_cast<HostEvent*>(end)->at -
                                                   static_cast<HostEvent*>(start)->at)
      .count();
}

void begin_capture(Stream) { recording = std::make_unique<Recording>(); }
Recorded end_capture(Stream) {
  const int nodes = static_cast<int>(recording->work.size());
  return {recording.release(), nodes};
}
void abandon_capture(Stream) noexcept { recording.reset(); }
void replay(void* graph, Stream stream) {
  for (const std::function<void()>& work : static_cast<Recording*>(graph)->work) enqueue(stream, work);
}
void free_graph(Device, void* graph) noexcept { delete static_cast<Recording*>(graph); }

FaultSlot* faults(Device) {
  static FaultSlot slot{};
  return &slot;
}

}  // namespace levin::detail::runtime

int levin::detail::compute_capability(Device) { return 90; }
