#include "levin/stream.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <utility>

#include "levin/error.h"
#include "levin/sync.h"
#include "tensor/core/counted.h"
#include "tensor/device/launching.h"
#include "tensor/device/runtime.h"
#include "tensor/memory/device_allocator.h"

namespace levin {
namespace {

// The user's call that may wait.
struct Caller {
  const char* call = nullptr;  // null: none
  std::source_location where;
};
thread_local Caller caller;

// Runs a wait, and enters it into the thread's ledger where there is one.
template <class F>
void waiting(const char* why, F&& f) {
  detail::count_wait();
  if (!SyncGuard::watching()) [[likely]]
    return f();
  const bool known = caller.call != nullptr;
  SyncGuard::about_to_wait(known ? caller.call : why, known ? caller.where.file_name() : "",
                           known ? static_cast<std::int64_t>(caller.where.line()) : 0);
  const auto start = std::chrono::steady_clock::now();
  f();
  SyncGuard::has_waited(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
}

constexpr int kMostDevices = 64;
constexpr std::uint32_t kFurther = 32;

// The thread's current stream on each device. Zero-initialised: a null handle is looked up.
struct Here {
  void* handle;
  std::uint32_t index;
  bool known;
  detail::Pool* pool;  // of the graph being recorded
  void* recorder;      // the recording's queue, under the number of the stream that the graph is for
  std::uint32_t recorder_index;
};
thread_local std::array<Here, kMostDevices> here;

bool has_place(Device device) { return device.index() >= 0 && device.index() < kMostDevices; }
// For a device that has a place: it passed check_usable, or a Stream names it.
Here& here_of(Device device) { return here[static_cast<std::size_t>(device.index())]; }

// A recording stands for the stream that it is for: calls of this thread on that stream mean the recording.
Stream in_recording(Stream s) {
  if (!s.device().launches()) return s;
  const Here& now = here_of(s.device());
  return now.pool && s.index() == now.recorder_index ? Stream(s.device(), now.recorder, s.index()) : s;
}

// The streams of each device, made at first use and kept until the process ends.
class Streams {
 public:
  Stream at(Device device, std::uint32_t index) {
    if (!device.launches()) return {device, nullptr, index};
    detail::check_usable("stream", device);
    Slot& slot = slots_[static_cast<std::size_t>(device.index())][index];
    if (!slot.made.load(std::memory_order_acquire)) {
      const std::lock_guard lock(mutex_);
      if (!slot.made.load(std::memory_order_relaxed)) {
        slot.handle = detail::runtime::make_stream(device, index);
        slot.made.store(true, std::memory_order_release);
      }
    }
    return {device, slot.handle, index};
  }
  // Calls f with each stream of the device that was made.
  template <class F>
  void each(Device device, F&& f) {
    const auto& of = slots_[static_cast<std::size_t>(device.index())];
    for (std::uint32_t i = 0; i < of.size(); ++i) {
      if (of[i].made.load(std::memory_order_acquire)) f(Stream(device, of[i].handle, i));
    }
  }
  std::uint32_t next() { return 1 + turn_.fetch_add(1, std::memory_order_relaxed) % kFurther; }

 private:
  struct Slot {
    std::atomic<bool> made{false};
    void* handle = nullptr;
  };
  std::array<std::array<Slot, kFurther + 1>, kMostDevices> slots_;
  std::mutex mutex_;
  std::atomic<std::uint32_t> turn_{0};
};
Streams& streams() {
  static auto* all = new Streams;
  return *all;
}

}  // namespace

Stream Stream::default_of(Device device) { return streams().at(device, 0); }
Stream Stream::next_of(Device device) { return streams().at(device, streams().next()); }
Stream Stream::current(Device device) {
  if (!device.launches()) return {device, nullptr, 0};
  if (!has_place(device)) [[unlikely]]
    return default_of(device);  // throws
  Here& now = here_of(device);
  if (!now.known) [[unlikely]] {
    now.handle = default_of(device).handle();
    now.known = true;
  }
  return {device, now.handle, now.index};
}

void Stream::wait(Stream other) const {
  if (in_recording(*this) == in_recording(other) || !device_.launches() || !other.device_.launches()) return;
  Event event(other.device_);
  event.record(other);
  event.block(*this);
}

void Stream::synchronize(std::source_location where) const {
  const detail::WaitsHere waits("synchronize", where);
  if (device_.launches()) detail::wait_for(*this, "synchronize");
}

StreamGuard::StreamGuard(Stream stream) : before_(Stream::current(stream.device())) {
  if (!stream.device().launches()) return;
  const Stream on = in_recording(stream);
  Here& now = here_of(stream.device());
  now.handle = on.handle();
  now.index = on.index();
}
StreamGuard::~StreamGuard() {
  if (!before_.device().launches()) return;
  Here& now = here_of(before_.device());
  now.handle = before_.handle();
  now.index = before_.index();
}

Event::Event(Device device, EnableTiming timing) : device_(device), timing_(timing) {
  if (!device.launches()) return;
  detail::check_usable("event", device);
  handle_ = detail::runtime::make_event(device, timing);
}
Event::~Event() {
  if (handle_) detail::runtime::free_event(device_, handle_);
}
void Event::record(Stream stream) {
  if (handle_) detail::runtime::record(handle_, in_recording(stream));
}
void Event::block(Stream stream) const {
  if (handle_ && stream.device().launches()) detail::runtime::wait(in_recording(stream), handle_);
}
bool Event::done() const {
  if (!handle_) return true;
  detail::refuse_while_capturing("Event::done", device_);
  return detail::runtime::done(device_, handle_);
}
void Event::synchronize() const {
  if (!handle_) return;
  detail::refuse_while_capturing("Event::synchronize", device_);
  waiting("Event::synchronize", [&] { detail::runtime::synchronize_event(device_, handle_); });
}
double Event::milliseconds_since(const Event& start) const {
  if (timing_ == EnableTiming::no || start.timing_ == EnableTiming::no) {
    fail<StateError>("Event::milliseconds_since: ", timing_ == EnableTiming::no ? "this event" : "the first event",
                     " takes no time; make both with EnableTiming::yes");
  }
  return handle_ && start.handle_ ? detail::runtime::milliseconds(start.handle_, handle_) : 0;
}

bool is_capturing(Device device) { return device.launches() && has_place(device) && here_of(device).pool; }

void synchronize(Device device, std::source_location where) {
  if (!device.launches()) return;
  const detail::WaitsHere waits("synchronize", where);
  detail::check_usable("synchronize", device);
  detail::refuse_while_capturing("synchronize", device);
  waiting("synchronize", [&] {
    streams().each(device, [](Stream s) {
      if (!detail::runtime::is_recorded(s)) detail::runtime::synchronize(s);  // by another thread
    });
  });
  detail::report_faults(device);
}

int device_count(DeviceType type) {
  if (type == DeviceType::cpu || type == DeviceType::meta) return 1;
  return std::min(detail::runtime::count(type), kMostDevices);
}

namespace detail {

Stream stream_of(Device device, std::uint32_t index) { return streams().at(device, index); }

Pool* recording_pool(Device device) noexcept { return here_of(device).pool; }

void check_usable(const char* op, Device device) {
  const int count = device_count(device.type());
  if (device.index() >= 0 && device.index() < count) [[likely]]
    return;
  if (device.type() == DeviceType::simt) {
    fail<UnsupportedError>(op, ": this build has no device simt; configure it with -Dsimt=true");
  }
#if defined(LEVIN_CUDA)
  if (count == 0) fail<DeviceError>(op, ": ", device, " is asked for, no CUDA device is usable here; use cpu");
  fail<DeviceError>(op, ": ", device, " is asked for, expected an index below ", count);
#else
  fail<UnsupportedError>(op, ": this build has no device ", device, "; configure it with -Dcuda=enabled");
#endif
}

WaitsHere::WaitsHere(const char* call, const std::source_location& where) noexcept : outermost_(!caller.call) {
  if (outermost_) caller = {call, where};
}
WaitsHere::~WaitsHere() {
  if (outermost_) caller.call = nullptr;
}

void refuse_while_capturing(const char* what, Device device, const char* does) {
  if (!is_capturing(device)) [[likely]]
    return;
  if (!caller.call) fail<CaptureError>(what, ": ", does, "; not allowed while a graph is recorded");
  const std::string_view file = caller.where.file_name();
  fail<CaptureError>(caller.call, " (", std::string(file.substr(file.rfind('/') + 1)), ":",
                     static_cast<std::int64_t>(caller.where.line()), "): ", does,
                     "; not allowed while a graph is recorded");
}

void report_faults(Device device) {
  FaultSlot* slot = runtime::faults(device);
  // `taken` without `filled`: a kernel of another stream is writing the fault, and the next wait reports it.
  if (!std::atomic_ref(slot->filled).load(std::memory_order_acquire)) [[likely]]
    return;
  const FaultSlot found = *slot;
  slot->filled = 0;
  std::atomic_ref(slot->taken).store(0, std::memory_order_release);  // last: afterwards kernels may write
  const InModule nowhere(0);  // the kernel ran earlier, maybe for another module than the one that waits
  switch (found.what) {
    case Fault::zero_divisor:
      fail<IndexError>(found.op, ": the divisor holds a 0 on ", device, ", expected none in an integer tensor");
    case Fault::not_a_probability:
      fail<ConfigError>(found.op, ": p is ", found.value, " on ", device, ", expected probabilities in [0, 1]");
    case Fault::index_outside: break;
  }
  fail<IndexError>(found.op, ": index ", static_cast<std::int64_t>(found.index), " is out of range on ", device,
                   ", expected 0 to ", static_cast<std::int64_t>(found.bound) - 1);
}

void wait_for(Stream stream, const char* why) {
  refuse_while_capturing(why, stream.device());
  waiting(why, [&] { runtime::synchronize(stream); });
  report_faults(stream.device());
}

OutsidePool::OutsidePool(Device device) noexcept
    : device_(device), pool_(std::exchange(here_of(device).pool, nullptr)) {}
OutsidePool::~OutsidePool() { here_of(device_).pool = pool_; }

void set_recording(Device device, Pool* pool, Stream queue) noexcept {
  Here& now = here_of(device);
  now.pool = pool;
  now.recorder = queue.handle();
  now.recorder_index = queue.index();
}

}  // namespace detail
}  // namespace levin
