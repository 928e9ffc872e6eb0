#include "tensor/device/tickets.h"

#include <array>
#include <atomic>
#include <mutex>
#include <vector>

#include "levin/error.h"
#include "tensor/device/runtime.h"

namespace levin::detail {
namespace {

constexpr std::size_t kMostDevices = 64, kMostStreams = 33;

unsigned* zeros(Device device, int sets) {
  std::byte* const made =
      runtime::allocate_filled(device, static_cast<std::size_t>(sets) * kTickets * sizeof(unsigned), 0);
  if (!made) fail<OutOfMemoryError>("launch: ", device, " has no memory left for the counters of blocks");
  return reinterpret_cast<unsigned*>(made);
}

// Made at first use and kept until the process ends.
struct Sets {
  std::mutex mutex{};
  std::array<std::vector<unsigned*>, kMostDevices> of_ended_graphs{};
#if defined(LEVIN_SIMT)
  std::vector<unsigned*> of_threads{};
#endif
};
Sets& sets() {
  static auto* all = new Sets;
  return *all;
}
std::size_t place(Device device) { return static_cast<std::size_t>(device.index()); }

struct Here {
  RecordedTickets* sets;
  const void* queue;
};
thread_local std::array<Here, kMostDevices> here;

}  // namespace

unsigned* tickets(Stream stream) {
  const Device device = stream.device();
  const Here& recording = here[place(device)];
  if (recording.sets && (stream.handle() == recording.queue || runtime::is_recorded(stream)))
    return recording.sets->of(stream.handle());
#if defined(LEVIN_SIMT)
  thread_local std::array<unsigned*, kMostStreams> of_streams{};  // there is one device
  unsigned*& set = of_streams[stream.index()];
  if (!set) {
    const std::lock_guard lock(sets().mutex);
    sets().of_threads.push_back(zeros(device, 1));
    set = sets().of_threads.back();
  }
  return set;
#else
  static std::array<std::array<std::atomic<unsigned*>, kMostStreams>, kMostDevices> of_streams{};
  std::atomic<unsigned*>& set = of_streams[place(device)][stream.index()];
  if (unsigned* const made = set.load(std::memory_order_acquire)) [[likely]]
    return made;
  const std::lock_guard lock(sets().mutex);
  if (!set.load(std::memory_order_relaxed)) set.store(zeros(device, 1), std::memory_order_release);
  return set.load(std::memory_order_relaxed);
#endif
}

RecordedTickets::RecordedTickets(Device device) : device_(device), counters_(nullptr) {
  const std::lock_guard lock(sets().mutex);
  auto& ended = sets().of_ended_graphs[place(device)];
  ended.reserve(ended.size() + 1);  // so that the destructor allocates nothing
  if (ended.empty()) {
    counters_ = zeros(device, kRecordedStreams);
  } else {
    counters_ = ended.back();
    ended.pop_back();
  }
}
RecordedTickets::~RecordedTickets() {
  const std::lock_guard lock(sets().mutex);
  sets().of_ended_graphs[place(device_)].push_back(counters_);
}
unsigned* RecordedTickets::of(const void* stream) {
  int at = 0;
  while (at < used_ && streams_[at] != stream) ++at;
  if (at == kRecordedStreams)
    fail<CaptureError>("graph: more than ", kRecordedStreams, " streams are recorded together; use fewer");
  if (at == used_) streams_[used_++] = stream;
  return counters_ + std::ptrdiff_t{at} * kTickets;
}
void set_recorded_tickets(Device device, RecordedTickets* sets, const void* queue) noexcept {
  here[place(device)] = {sets, queue};
}

}  // namespace levin::detail
