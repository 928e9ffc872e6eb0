// Streams: queues of work on a device, in order within one and unordered across; events, and graphs of recorded work.
#pragma once

#include <cstdint>
#include <memory>
#include <source_location>
#include <utility>

#include "levin/device.h"
#include "levin/export.h"

namespace levin {

// A value handle; the queue itself lives as long as the process. Ops enqueue on the current stream of their tensors'
// device. Before work reads a tensor of another stream, make its stream wait for that one; release the tensor at any
// time, as its memory stays until the streams that used it are done. backward() runs on the current stream and waits
// for none: call wait where the forward ran on another. On cpu and meta, where work is done when the call returns, a
// stream is a name.
class LEVIN_API Stream {
 public:
  // The stream that is current until a StreamGuard says otherwise.
  [[nodiscard]] static Stream default_of(Device device);
  // One of 32 further streams of the device, handed out in turn. Throws DeviceError, CudaError.
  [[nodiscard]] static Stream next_of(Device device);
  // The calling thread's current stream of the device.
  [[nodiscard]] static Stream current(Device device);

  [[nodiscard]] Device device() const { return device_; }
  // Work enqueued here after this call starts after all work that is in `other` at the call. The host does not wait.
  void wait(Stream other) const;
  // Waits on the host until all work is done, then reports errors that kernels found (IndexError naming op, index and
  // bound; ConfigError naming op and value; CudaError). Throws CaptureError while the stream is captured.
  void synchronize(std::source_location where = std::source_location::current()) const;
  // The cudaStream_t, on CUDA also of the default stream: it is Levin's own and not ordered with the legacy stream. Of
  // the current stream in a recording: the recording's own. Null on cpu and meta.
  [[nodiscard]] void* handle() const { return handle_; }
  friend bool operator==(Stream, Stream) = default;

  // For the layers: the queue behind a handle of the runtime.
  Stream(Device device, void* handle, std::uint32_t index) : device_(device), index_(index), handle_(handle) {}
  [[nodiscard]] std::uint32_t index() const { return index_; }  // 0 is the default stream

 private:
  Device device_;
  std::uint32_t index_;
  void* handle_;
};

// Waits for every stream that Levin has on the device; see Stream::synchronize.
LEVIN_API void synchronize(Device device, std::source_location where = std::source_location::current());

// Makes a stream current for the calling thread while the guard lives.
class LEVIN_API StreamGuard {
 public:
  explicit StreamGuard(Stream stream);
  ~StreamGuard();
  StreamGuard(const StreamGuard&) = delete;
  StreamGuard& operator=(const StreamGuard&) = delete;

 private:
  Stream before_;
};

// Whether an event takes the time: an event that only orders work is cheaper to record and to wait for.
enum class EnableTiming : bool { no, yes };

// A point in a stream. Movable.
class LEVIN_API Event {
 public:
  explicit Event(Device device, EnableTiming timing = EnableTiming::no);  // throws DeviceError, CudaError
  ~Event();
  Event(Event&& other) noexcept
      : device_(other.device_), timing_(other.timing_), handle_(std::exchange(other.handle_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(timing_, other.timing_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  void record(Stream stream);       // after all that is now in the stream
  void block(Stream stream) const;  // the stream's later work waits for the event, on the device
  [[nodiscard]] bool done() const;  // without waiting; true when never recorded
  void synchronize() const;         // waits on the host
  // Milliseconds on the device between two recorded events that are done. Throws StateError unless both take the time.
  [[nodiscard]] double milliseconds_since(const Event& start) const;

 private:
  Device device_;
  EnableTiming timing_;
  void* handle_ = nullptr;
};

namespace detail {
class Pool;
}

// Work recorded once and replayed: every kernel and copy that `work` enqueues on the stream, with the addresses it
// used.
//
//   Graph graph(stream, [&] { loss = step(inputs); });   // `work` runs on the host now; nothing runs on the device
//   graph.replay();                                      // as often as wanted, each an enqueue on the stream
//
// Tensors made inside lie in memory that the graph keeps; their values are those of the last replay. What a replay
// reads must be alive then, at the address it had; a backward of what was recorded, run outside, needs the graph alive.
// Each replay draws new random numbers: N replays draw what N calls of `work` would (levin/generator.h). Inside `work`
// the host may not wait for the device: item(), printing and synchronize throw CaptureError, and a thread records one
// graph at a time. Work that other threads enqueue meanwhile, also on this stream, runs and is not recorded. A stream
// that waits for an event of the recording is recorded with it until the end. Recording first releases cached memory,
// because the graph has memory of its own. Throws UnsupportedError on cpu and meta, CaptureError when foreign code
// breaks the recording. An exception of `work` ends the recording and reaches the caller; generators are then as
// before.
class LEVIN_API Graph {
 public:
  template <class F>
  Graph(Stream stream, F&& work) : Graph(stream) {
    begin();
    try {
      work();
    } catch (...) {
      abandon();
      throw;
    }
    end();
  }
  ~Graph();
  Graph(Graph&&) noexcept;
  Graph& operator=(Graph&&) noexcept;
  // Enqueues the work once more. Throws CaptureError inside a recording when the graph draws random numbers.
  void replay();
  [[nodiscard]] int nodes() const;                  // kernels, copies and fills recorded
  [[nodiscard]] std::int64_t memory_bytes() const;  // held for tensors made inside

 private:
  explicit Graph(Stream stream);
  void begin();
  void end();
  void abandon() noexcept;
  struct State;
  std::unique_ptr<State> state_;
};

// Whether the calling thread is recording a graph on this device.
[[nodiscard]] LEVIN_API bool is_capturing(Device device);

}  // namespace levin
