// The CUDA runtime behind tensor/device/runtime.h.
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "levin/error.h"
#include "tensor/device/current.h"
#include "tensor/device/hardware.h"
#include "tensor/device/launching.h"
#include "tensor/device/runtime.h"

namespace levin::detail::runtime {
namespace {

void check(cudaError_t code, const char* call) {
  if (code == cudaSuccess) [[likely]]
    return;
  (void)cudaGetLastError();  // a sticky error stays; any other error must not surface at a later check
  if (breaks_recording(code))
    fail<CaptureError>("cuda: ", call, ": ", cudaGetErrorString(code), " (", cudaGetErrorName(code), ")");
  fail<CudaError>("cuda: ", call, " failed: ", cudaGetErrorString(code), " (", cudaGetErrorName(code), ")",
                  late_error_hint(code));
}

// Allows system allocations while the thread records, which would break the recording otherwise.
class DuringCapture {
 public:
  DuringCapture() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~DuringCapture() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  DuringCapture(const DuringCapture&) = delete;
  DuringCapture& operator=(const DuringCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

cudaStream_t queue(Stream stream) { return static_cast<cudaStream_t>(stream.handle()); }
cudaEvent_t point(void* event) { return static_cast<cudaEvent_t>(event); }

}  // namespace

Current::Current(Device device) {
  check(cudaGetDevice(&before_), "cudaGetDevice");
  if (before_ != device.index()) check(cudaSetDevice(device.index()), "cudaSetDevice");
  now_ = device.index();
}
Current::~Current() {
  if (before_ != now_) (void)cudaSetDevice(before_);
}

int count(DeviceType type) noexcept {
  if (type != DeviceType::cuda) return 0;
  static const int devices = [] {
    int n = 0;
    // No driver, or one too old: the process works on the CPU.
    if (cudaGetDeviceCount(&n) != cudaSuccess) {
      (void)cudaGetLastError();
      n = 0;
    }
    return n;
  }();
  return devices;
}

std::byte* allocate(Device device, std::size_t bytes) {
  const Current current(device);
  const DuringCapture relaxed;
  void* block = nullptr;
  // cudaMalloc has no block for no bytes, and null would mean that there is no memory.
  const cudaError_t code = cudaMalloc(&block, std::max<std::size_t>(bytes, 1));
  if (code == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    return nullptr;
  }
  check(code, "cudaMalloc");
  return static_cast<std::byte*>(block);
}
void release(Device device, std::byte* block, std::size_t) noexcept {
  const DuringCapture relaxed;
  int before = 0;
  (void)cudaGetDevice(&before);
  (void)cudaSetDevice(device.index());
  (void)cudaFree(block);
  (void)cudaSetDevice(before);
}
std::byte* allocate_filled(Device device, std::size_t bytes, unsigned char value) {
  std::byte* const made = allocate(device, bytes);
  if (!made) return nullptr;
  const Current current(device);
  const DuringCapture relaxed;
  // A stream of its own: other streams may be recorded, or have work to wait for.
  const Stream own(device, make_stream(device, 0), 0);
  cudaError_t code = cudaMemsetAsync(made, value, bytes, queue(own));
  if (code == cudaSuccess) code = cudaStreamSynchronize(queue(own));
  free_stream(device, own.handle());
  check(code, "cudaMemsetAsync");
  return made;
}
std::size_t free_memory(Device device) {
  const Current now(device);
  std::size_t free = 0, all = 0;
  check(cudaMemGetInfo(&free, &all), "cudaMemGetInfo");
  return free;
}
bool keeps_blocks() noexcept { return true; }

std::byte* allocate_pinned(std::size_t bytes) {
  const DuringCapture relaxed;
  void* block = nullptr;
  const cudaError_t code = cudaHostAlloc(&block, bytes ? bytes : 1, cudaHostAllocPortable | cudaHostAllocMapped);
  if (code == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    return nullptr;
  }
  check(code, "cudaHostAlloc");
  return static_cast<std::byte*>(block);
}
void release_pinned(std::byte* block, std::size_t) noexcept {
  const DuringCapture relaxed;
  (void)cudaFreeHost(block);
}

void copy(void* to, const void* from, std::size_t bytes, Copy kind, Stream stream) {
  if (bytes == 0) return;
  const Current current(stream.device());
  const cudaMemcpyKind direction = kind == Copy::to_device ? cudaMemcpyHostToDevice
                                   : kind == Copy::to_host ? cudaMemcpyDeviceToHost
                                                           : cudaMemcpyDefault;
  check(cudaMemcpyAsync(to, from, bytes, direction, queue(stream)), "cudaMemcpyAsync");
}

void* make_stream(Device device, std::uint32_t) {
  const Current current(device);
  const DuringCapture relaxed;
  cudaStream_t stream = nullptr;
  // Not ordered with the legacy stream, which cannot be captured.
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return stream;
}
void free_stream(Device, void* stream) noexcept {
  const DuringCapture relaxed;
  if (stream) (void)cudaStreamDestroy(static_cast<cudaStream_t>(stream));
}
void wait(Stream stream, void* event) {
  const Current current(stream.device());
  check(cudaStreamWaitEvent(queue(stream), point(event), 0), "cudaStreamWaitEvent");
}
void synchronize(Stream stream) {
  const Current current(stream.device());
  const DuringCapture relaxed;  // a graph destroyed during another recording waits for its replays
  check(cudaStreamSynchronize(queue(stream)), "cudaStreamSynchronize");
}

void* make_event(Device device, EnableTiming timing) {
  const Current current(device);
  cudaEvent_t event = nullptr;
  const unsigned flags = timing == EnableTiming::yes ? cudaEventDefault : cudaEventDisableTiming;
  check(cudaEventCreateWithFlags(&event, flags), "cudaEventCreateWithFlags");
  return event;
}
void free_event(Device, void* event) noexcept {
  if (event) (void)cudaEventDestroy(point(event));
}
void record(void* event, Stream stream) {
  const Current current(stream.device());
  check(cudaEventRecord(point(event), queue(stream)), "cudaEventRecord");
}
bool done(Device device, void* event) {
  const Current current(device);
  const cudaError_t code = cudaEventQuery(point(event));
  if (code == cudaErrorNotReady) {
    (void)cudaGetLastError();
    return false;
  }
  check(code, "cudaEventQuery");
  return true;
}
void synchronize_event(Device device, void* event) {
  const Current current(device);
  check(cudaEventSynchronize(point(event)), "cudaEventSynchronize");
}
double milliseconds(void* start, void* end) {
  float ms = 0;
  check(cudaEventElapsedTime(&ms, point(start), point(end)), "cudaEventElapsedTime");
  return ms;
}

void begin_capture(Stream stream) {
  const Current current(stream.device());
  check(cudaStreamBeginCapture(queue(stream), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
}
bool is_recorded(Stream stream) {
  const Current current(stream.device());
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(queue(stream), &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}
namespace {

// What a stream replays, and what a recording takes in when the graph is replayed inside of it.
struct Graphs {
  cudaGraph_t recorded = nullptr;
  cudaGraphExec_t exec = nullptr;
  ~Graphs() {
    if (exec) (void)cudaGraphExecDestroy(exec);
    if (recorded) (void)cudaGraphDestroy(recorded);
  }
};

// Makes `graph` a node of the recording of `stream`, after what the stream has recorded: CUDA refuses cudaGraphLaunch
// while a stream records.
void add_to_capture(cudaGraph_t graph, cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaGraph_t outer = nullptr;
  const cudaGraphNode_t* after = nullptr;
  std::size_t count = 0;
  cudaGraphNode_t node = nullptr;
#if CUDART_VERSION >= 13000
  check(cudaStreamGetCaptureInfo(stream, &status, nullptr, &outer, &after, nullptr, &count),
        "cudaStreamGetCaptureInfo");
#else
  check(cudaStreamGetCaptureInfo_v2(stream, &status, nullptr, &outer, &after, &count), "cudaStreamGetCaptureInfo");
#endif
  check(cudaGraphAddChildGraphNode(&node, outer, after, count, graph), "cudaGraphAddChildGraphNode");
#if CUDART_VERSION >= 13000
  check(cudaStreamUpdateCaptureDependencies(stream, &node, nullptr, 1, cudaStreamSetCaptureDependencies),
        "cudaStreamUpdateCaptureDependencies");
#else
  check(cudaStreamUpdateCaptureDependencies(stream, &node, 1, cudaStreamSetCaptureDependencies),
        "cudaStreamUpdateCaptureDependencies");
#endif
}

}  // namespace

Recorded end_capture(Stream stream) {
  const Current current(stream.device());
  auto made = std::make_unique<Graphs>();
  check(cudaStreamEndCapture(queue(stream), &made->recorded), "cudaStreamEndCapture");
  std::size_t nodes = 0;
  cudaError_t code = cudaGraphGetNodes(made->recorded, nullptr, &nodes);
  if (code == cudaSuccess) code = cudaGraphInstantiate(&made->exec, made->recorded, 0);
  if (code == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    fail<OutOfMemoryError>("graph: ", stream.device(), " has no memory left for a graph of ",
                           static_cast<std::int64_t>(nodes),
                           " nodes; release_cached_memory() gives back what Levin keeps");
  }
  check(code, "cudaGraphInstantiate");
  return {made.release(), static_cast<int>(nodes)};
}
void abandon_capture(Stream stream) noexcept {
  cudaGraph_t graph = nullptr;
  (void)cudaStreamEndCapture(queue(stream), &graph);
  if (graph) (void)cudaGraphDestroy(graph);
  (void)cudaGetLastError();
}
void replay(void* graph, Stream stream) {
  const Current current(stream.device());
  const auto* const graphs = static_cast<const Graphs*>(graph);
  if (is_recorded(stream)) return add_to_capture(graphs->recorded, queue(stream));
  check(cudaGraphLaunch(graphs->exec, queue(stream)), "cudaGraphLaunch");
}
void free_graph(Device, void* graph) noexcept { delete static_cast<Graphs*>(graph); }

FaultSlot* faults(Device device) {
  // One per device, made at first use, in host memory that kernels can write; kept until the process ends.
  static std::array<std::atomic<FaultSlot*>, 64> slots{};
  static std::mutex mutex;
  std::atomic<FaultSlot*>& slot = slots[static_cast<std::size_t>(device.index()) % slots.size()];
  if (FaultSlot* made = slot.load(std::memory_order_acquire)) return made;
  const std::lock_guard lock(mutex);
  if (!slot.load()) {
    auto* made = reinterpret_cast<FaultSlot*>(allocate_pinned(sizeof(FaultSlot)));
    if (!made) fail<OutOfMemoryError>("launch: no page-locked memory for the device's error slot");
    *made = {};
    slot.store(made, std::memory_order_release);
  }
  return slot.load();
}

}  // namespace levin::detail::runtime

int levin::detail::compute_capability(Device device) {
  int major = 0, minor = 0;
  runtime::check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device.index()),
                 "cudaDeviceGetAttribute");
  runtime::check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device.index()),
                 "cudaDeviceGetAttribute");
  return 10 * major + minor;
}
