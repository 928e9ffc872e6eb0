// What a device that launches kernels can do below kernels: memory, copies, streams, events, recorded graphs. A build
// has at most one such device, and exactly one of runtime_cuda.cpp, runtime_simt.cpp and runtime_none.cpp.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <source_location>
#include <string>
#if defined(LEVIN_SIMT)
#include <functional>
#include <memory>
#endif

#include "levin/op_info.h"
#include "levin/stream.h"

// Whether this build has a device that launches kernels, so that ops instantiate their bodies for it.
#if defined(LEVIN_CUDA) || defined(LEVIN_SIMT)
#define LEVIN_LAUNCHES 1
#else
#define LEVIN_LAUNCHES 0
#endif

namespace levin::detail {

// Note [Errors that kernels find]
//
// A kernel cannot throw. A kernel that meets an index outside its range, or a value that the op refuses, computes
// nothing with it and fills the device's slot, in memory that host and device share; the first fault wins. At its next
// wait for the device the host reads the slot and throws what the CPU would throw, with the op and the value. The
// context stays whole, so the process can continue. A new kind of fault is an enumerator, its text in report_faults,
// and a call of report_value (kernels/executor/gpu.h) in the kernel.
enum class Fault : unsigned {
  index_outside,      // index, bound
  zero_divisor,       // an integer divisor; no value
  not_a_probability,  // value
};
struct FaultSlot {
  unsigned taken;   // set by an atomic exchange: one thread writes
  unsigned filled;  // set after the members below
  Fault what;
  const char* op;  // OpInfo::name, a pointer of the host
  long long index, bound;
  double value;
};

// Note [Blocking launches]
//
// With LEVIN_LAUNCH_BLOCKING=1 (or CUDA_LAUNCH_BLOCKING=1) in the environment, read once, the host waits after every
// launch that is not recorded and throws there. The error names the op that the user called, its inputs, the path of
// the module whose call is under way (in a backward: the module that recorded the op), and the line of the launch. The
// mode changes when an error appears and no result.
//
// apply() names the op through a Launching on its stack, which it makes in this mode alone, on the same path as
// autocast (extend.h, Detour). A module's call always names itself (nn::Call, ModuleCall): two stores.
[[nodiscard]] bool blocking_launches() noexcept;
void set_blocking_launches(bool on) noexcept;  // for tests, while one thread runs
// What the calling thread runs; returns what it ran before.
const Launching* set_launching(const Launching* now) noexcept;

namespace runtime {

[[nodiscard]] int count(DeviceType type) noexcept;  // cuda or simt

// System memory of the device: null when there is none left, CudaError for any other failure. Release waits for work
// that was enqueued before.
[[nodiscard]] std::byte* allocate(Device device, std::size_t bytes);
void release(Device device, std::byte* block, std::size_t bytes) noexcept;
// As allocate. Every byte is `value` when the call returns; it waits for no stream.
[[nodiscard]] std::byte* allocate_filled(Device device, std::size_t bytes, unsigned char value);
[[nodiscard]] std::size_t free_memory(Device device);  // that the system can still give
// Whether blocks are kept for reuse: on simt each must be fresh, so that overruns and stale reads are found.
[[nodiscard]] bool keeps_blocks() noexcept;
// Host memory that copies reach without staging.
[[nodiscard]] std::byte* allocate_pinned(std::size_t bytes);
void release_pinned(std::byte* block, std::size_t bytes) noexcept;

enum class Copy : std::uint8_t { to_device, to_host, within };
// Enqueued; the host memory must stay until the stream has passed. upload() accepts host memory that may change at
// once.
void copy(void* to, const void* from, std::size_t bytes, Copy kind, Stream stream);

// `index`: the number of the Stream. On simt the default stream does its work when the work is enqueued, a further
// stream later.
[[nodiscard]] void* make_stream(Device device, std::uint32_t index);
void free_stream(Device device, void* stream) noexcept;  // work in the stream still runs
void wait(Stream stream, void* event);
// No function waits for a whole device: CUDA's ends the recordings of all threads.
void synchronize(Stream stream);

// Pairs of words in device memory, set in the order of the stream. The values travel with the call.
inline constexpr std::size_t kWordsAtOnce = 32;
struct Words {
  std::array<std::array<std::uint64_t, 2>, kWordsAtOnce> at{};
  std::size_t count = 0;
};
void set_words(std::uint64_t* to, const Words& words, Stream stream);

[[nodiscard]] void* make_event(Device device, EnableTiming timing);
void free_event(Device device, void* event) noexcept;
void record(void* event, Stream stream);
[[nodiscard]] bool done(Device device, void* event);
void synchronize_event(Device device, void* event);
[[nodiscard]] double milliseconds(void* start, void* end);

// Begins to record: all work that the stream gets is recorded, from any thread.
void begin_capture(Stream stream);
[[nodiscard]] bool is_recorded(Stream stream);
struct Recorded {
  void* graph = nullptr;
  int nodes = 0;
};
// Throws CaptureError when something broke the recording.
[[nodiscard]] Recorded end_capture(Stream stream);
void abandon_capture(Stream stream) noexcept;
void replay(void* graph, Stream stream);
void free_graph(Device device, void* graph) noexcept;

[[nodiscard]] FaultSlot* faults(Device device);

// Work of which a part may run before the work ahead of it; Note [Work put off] in runtime_simt.cpp.
class TwoParts {
 public:
  virtual ~TwoParts() = default;
  virtual void begin() = 0;   // at most once, before finish
  virtual void finish() = 0;  // all that begin() has not done
};
#if defined(LEVIN_SIMT)
// Runs the work now, or later on a further stream, or keeps it while the stream is recorded. A LaunchLedger enters it
// with the place.
void enqueue(Stream stream, std::function<void()> work,
             const std::source_location& where = std::source_location::current());

// The work is made when its turn comes. `follows`: it begins before work put off ahead of it.
struct PutOff {
  std::function<std::unique_ptr<TwoParts>()> make;
  bool follows;
};
void enqueue(Stream stream, PutOff work, const std::source_location& where);
#endif

}  // namespace runtime

// The stream with that number; 0 is the default stream.
[[nodiscard]] Stream stream_of(Device device, std::uint32_t index);
// Enqueues a copy of host memory that the caller may change or release on return: the bytes go through page-locked
// memory.
void upload(void* to, const void* from, std::size_t bytes, Stream stream);
// Throws DeviceError or UnsupportedError unless the process can use the device.
void check_usable(const char* op, Device device);
// Throws CaptureError when the calling thread records a graph on the device: `what` would make the host wait.
void refuse_while_capturing(const char* what, Device device, const char* does = "waits for the device");
// Throws what a kernel has reported since the last check; the device must be idle. See Note [Errors that kernels find].
void report_faults(Device device);
// Called after every launch of a kernel; see Note [Blocking launches]. The place is that of the launch.
void launched(Stream stream, const std::source_location& where);
// "norm.cuh:276"
[[nodiscard]] std::string place_of(const std::source_location& where);
// The one place where the host waits for a stream and then reports what kernels found. `why` is the call that waits.
void wait_for(Stream stream, const char* why);

}  // namespace levin::detail
