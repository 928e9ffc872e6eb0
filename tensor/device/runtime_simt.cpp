// The simt device: host memory between red zones; a default stream that does its work when the work is enqueued;
// further streams that do it later; graphs as lists of closures.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "levin/error.h"
#include "tensor/device/current.h"
#include "tensor/device/hardware.h"
#include "tensor/device/launch_ledger.h"
#include "tensor/device/runtime.h"
#include "tensor/memory/device_allocator.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace levin::detail::runtime {
namespace {

constexpr std::size_t kRedZone = 1024;
constexpr int kMark = 0xa5;
// Without AddressSanitizer a write to a red zone is found at the block's release, and reported at the next wait.
std::atomic<std::size_t> overrun_block{0};  // bytes of the block, 0: none

#if defined(LEVIN_LEDGER)
std::byte* from_system(std::size_t bytes) { return ledger_allocate(bytes); }
void to_system(std::byte* block, std::size_t bytes) { ledger_release(block, bytes); }
void count_access(const void* from, const void* to, std::size_t bytes) {
  ledger_read(from, bytes);
  ledger_write(to, bytes);
}
#else
std::byte* from_system(std::size_t bytes) { return static_cast<std::byte*>(std::aligned_alloc(64, bytes)); }
void to_system(std::byte* block, std::size_t) { std::free(block); }
void count_access(const void*, const void*, std::size_t) {}
#endif

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

// Note [Streams of simt]
//
// A further stream keeps its work until the host, or a stream that waits for an event, waits for it. So unordered work
// of two streams runs in the order that exposes a missing wait, and memory that was released while another stream still
// reads it is gone when that stream runs. A user's query of an event does one piece of work, so a loop of queries ends.
//
// A stream in capture keeps work of every thread as the graph; a wait for it breaks the recording, as on CUDA. A stream
// that waits for an event of a recorded stream joins the recording and, unlike on CUDA, need not be joined again.
//
// Note [Work put off]
//
// A launch that others may overlap, or that overlaps others (Grid::overlap), is put off when its turn comes: it runs
// when the queue's next work does, when the host waits, or when memory is released. If the next work follows it, the
// first part of that runs before. An error of work that was put off comes from the call that runs it.
struct Piece {
  std::function<void()> run{};
  PutOff put_off{};  // when there is no `run`
};
using Work = std::vector<Piece>;
struct Queue;
struct Recording {
  Work work{};
  std::vector<Queue*> joined{};
  const char* broken = nullptr;  // the call that broke the recording
  bool over = false;
};
struct Queue {
  bool later;
  std::deque<Piece> work{};
  std::shared_ptr<Recording> recording{};
  std::atomic<bool> has_put_off{false};
  std::unique_ptr<TwoParts> put_off{};
  std::exception_ptr failed{};  // of work put off that a release has run
};
Queue& queue(Stream stream) { return *static_cast<Queue*>(stream.handle()); }

// Guards all queues and recordings. Work runs while it is held and may wait for other queues.
std::recursive_mutex& order() {
  static auto* mutex = new std::recursive_mutex;
  return *mutex;
}
// Queues with work put off.
std::vector<Queue*>& waiting_queues() {
  static auto* queues = new std::vector<Queue*>;
  return *queues;
}
std::unique_ptr<TwoParts> take_put_off(Queue& q) {
  const std::lock_guard lock(order());
  std::erase(waiting_queues(), &q);
  q.has_put_off = false;
  return std::move(q.put_off);
}
void put_off(Queue& q, std::unique_ptr<TwoParts> work) {
  const std::lock_guard lock(order());
  q.put_off = std::move(work);
  q.has_put_off = true;
  waiting_queues().push_back(&q);
}
void finish_put_off(Queue& q) {
  if (!q.has_put_off) [[likely]]
    return;
  if (const std::unique_ptr<TwoParts> ahead = take_put_off(q)) ahead->finish();
  if (q.failed) std::rethrow_exception(std::exchange(q.failed, nullptr));
}
void run_piece(Queue& q, const Piece& piece) {
  if (piece.run) {
    finish_put_off(q);
    return piece.run();
  }
  std::unique_ptr<TwoParts> next = piece.put_off.make();
  if (piece.put_off.follows && q.has_put_off) next->begin();
  finish_put_off(q);
  put_off(q, std::move(next));
}
bool run_next(Queue& q) {
  if (q.work.empty()) return false;
  const Piece next = std::move(q.work.front());
  q.work.pop_front();
  run_piece(q, next);
  return true;
}

struct Point {  // in a queue, or in a recording
  Queue* queue = nullptr;
  std::shared_ptr<Recording> recording{};
  bool passed = false;
  std::chrono::steady_clock::time_point at{};
};
struct HostEvent {
  std::shared_ptr<Point> newest = std::make_shared<Point>(Point{.passed = true});
};
Point& point(void* event) { return *static_cast<HostEvent*>(event)->newest; }
void run_to(Point& p) {
  while (!p.passed && run_next(*p.queue)) continue;
}

[[noreturn]] void fail_broken(const Recording& r) {
  fail<CaptureError>("simt: ", r.broken, " a stream that is recorded: the recording is broken");
}
[[noreturn]] void break_recording(Recording& r, const char* by) {
  r.broken = by;
  fail_broken(r);
}
void refuse_recorded(const Point& p) {
  if (p.recording) fail<CaptureError>("simt: an event of a recording has no time and can not be asked");
}
void run_in(Queue& q, Piece piece) {
  {
    const std::lock_guard lock(order());
    if (const auto& r = q.recording) {
      if (r->broken) fail_broken(*r);
      return r->work.push_back(std::move(piece));
    }
    if (q.later) return q.work.push_back(std::move(piece));
  }
  run_piece(q, piece);
}
// Memory is about to be released that work put off on a default stream may use.
void finish_before_release() noexcept {
  std::vector<Queue*> queues;
  {
    const std::lock_guard lock(order());
    if (waiting_queues().empty()) [[likely]]
      return;
    std::copy_if(waiting_queues().begin(), waiting_queues().end(), std::back_inserter(queues),
                 [](const Queue* q) { return !q->later; });
  }
  for (Queue* const q : queues) {
    try {
      finish_put_off(*q);
    } catch (...) {
      q->failed = std::current_exception();
      q->has_put_off = true;
    }
  }
}
void end(Recording& r) {
  for (Queue* const q : std::exchange(r.joined, {})) q->recording = nullptr;
  r.over = true;
}

}  // namespace

// There is one device at most.
Current::Current(Device device) : before_(device.index()), now_(before_) {}
Current::~Current() { now_ = before_; }

int count(DeviceType type) noexcept { return type == DeviceType::simt ? 1 : 0; }

std::byte* allocate(Device, std::size_t bytes) {
  if (bytes > std::size_t{1} << 40) return nullptr;
  const std::size_t tail = rounded(bytes) - bytes + kRedZone;
  std::byte* const base = from_system(kRedZone + bytes + tail);
  if (!base) return nullptr;
  guard(base, kRedZone);
  std::memset(base + kRedZone, 0xff, bytes);  // NaN in every float type
  guard(base + kRedZone + bytes, tail);
  return base + kRedZone;
}

void release(Device, std::byte* block, std::size_t bytes) noexcept {
  finish_before_release();
  const std::size_t tail = rounded(bytes) - bytes + kRedZone;
  const bool front = intact(block - kRedZone, kRedZone), back = intact(block + bytes, tail);
  if (!front || !back) overrun_block = bytes + 1;
  to_system(block - kRedZone, kRedZone + bytes + tail);
}
std::byte* allocate_filled(Device device, std::size_t bytes, unsigned char value) {
  std::byte* const made = allocate(device, bytes);
  if (made) std::memset(made, value, bytes);
  return made;
}

std::size_t free_memory(Device) { return std::size_t{1} << 40; }  // as allocate
bool keeps_blocks() noexcept { return false; }

std::byte* allocate_pinned(std::size_t bytes) {
  return static_cast<std::byte*>(std::aligned_alloc(64, rounded(bytes ? bytes : 1)));
}
void release_pinned(std::byte* block, std::size_t) noexcept { std::free(block); }

void enqueue(Stream stream, std::function<void()> work, const std::source_location& where) {
  if (LaunchLedger* const ledger = LaunchLedger::of_thread()) work = ledger->entered(where, std::move(work));
  run_in(queue(stream), {.run = std::move(work)});
}
void enqueue(Stream stream, PutOff work, const std::source_location& where) {
  if (LaunchLedger::of_thread() == nullptr) return run_in(queue(stream), {.put_off = std::move(work)});
  const auto at_once = [make = std::move(work.make)] { make()->finish(); };  // a ledger enters what it has run
  enqueue(stream, std::function<void()>(at_once), where);
}

void copy(void* to, const void* from, std::size_t bytes, Copy, Stream stream) {
  if (bytes == 0) return;
  enqueue(stream, [=] {
    count_access(from, to, bytes);
    std::memcpy(to, from, bytes);
  });
}

void set_words(std::uint64_t* to, const Words& words, Stream stream) {
  enqueue(stream, [=] {
    const std::size_t bytes = words.count * sizeof words.at[0];
    count_access(nullptr, to, bytes);
    std::memcpy(to, words.at.data(), bytes);
  });
}

void* make_stream(Device, std::uint32_t index) { return new Queue{.later = index != 0}; }
void free_stream(Device, void* stream) noexcept {
  auto* const q = static_cast<Queue*>(stream);
  (void)take_put_off(*q);
  delete q;
}

void wait(Stream stream, void* event) {
  Queue& q = queue(stream);
  const std::lock_guard lock(order());
  const std::shared_ptr<Point> p = static_cast<HostEvent*>(event)->newest;
  if (!p->queue) return;  // never recorded
  if (p->recording != q.recording) {
    // Recorded work cannot depend on unrecorded work, and a stream that waits for recorded work is recorded.
    if (q.recording) break_recording(*q.recording, "an event of work that is not recorded holds up");
    if (p->recording->over) refuse_recorded(*p);
    q.recording = p->recording;
    q.recording->joined.push_back(&q);
  }
  if (p->recording || p->passed) return;
  if (q.later)
    q.work.push_back({.run = [p] { run_to(*p); }});
  else
    run_to(*p);
}

void synchronize(Stream stream) {
  Queue& q = queue(stream);
  {
    const std::lock_guard lock(order());
    if (q.recording) break_recording(*q.recording, "the host waits for");
    while (run_next(q)) continue;
    finish_put_off(q);
  }
  if (const std::size_t bytes = overrun_block.exchange(0)) {
    fail<InternalError>("simt: a kernel wrote outside a tensor of ", bytes - 1,
                        " bytes; build with AddressSanitizer to see where");
  }
}

void* make_event(Device, EnableTiming) { return new HostEvent; }
void free_event(Device, void* event) noexcept { delete static_cast<HostEvent*>(event); }
void record(void* event, Stream stream) {
  const auto p = std::make_shared<Point>();
  {
    const std::lock_guard lock(order());
    p->queue = &queue(stream);
    p->recording = p->queue->recording;
    static_cast<HostEvent*>(event)->newest = p;
    if (p->recording) return;
  }
  const auto pass = [p] {
    p->at = std::chrono::steady_clock::now();
    p->passed = true;
  };
  run_in(queue(stream), {.run = pass});
}
bool done(Device, void* event) {
  const std::lock_guard lock(order());
  Point& p = point(event);
  refuse_recorded(p);
  if (!p.passed && !only_looks()) (void)run_next(*p.queue);
  return p.passed;
}
void synchronize_event(Device, void* event) {
  const std::lock_guard lock(order());
  refuse_recorded(point(event));
  run_to(point(event));
}
double milliseconds(void* start, void* end) {
  const std::lock_guard lock(order());
  return std::chrono::duration<double, std::milli>(point(end).at - point(start).at).count();
}

void begin_capture(Stream stream) {
  const std::lock_guard lock(order());
  queue(stream).recording = std::make_shared<Recording>(Recording{.joined = {&queue(stream)}});
}
bool is_recorded(Stream stream) {
  const std::lock_guard lock(order());
  return queue(stream).recording != nullptr;
}
void abandon_capture(Stream stream) noexcept {
  const std::lock_guard lock(order());
  if (const std::shared_ptr<Recording> r = queue(stream).recording) end(*r);
}
Recorded end_capture(Stream stream) {
  const std::lock_guard lock(order());
  const std::shared_ptr<Recording> r = queue(stream).recording;
  end(*r);
  if (r->broken) fail_broken(*r);
  const int nodes = static_cast<int>(r->work.size());
  return {new Work(std::move(r->work)), nodes};
}
void replay(void* graph, Stream stream) {
  for (const Piece& piece : *static_cast<Work*>(graph)) run_in(queue(stream), piece);
}
void free_graph(Device, void* graph) noexcept { delete static_cast<Work*>(graph); }

FaultSlot* faults(Device) {
  static FaultSlot slot{};
  return &slot;
}

}  // namespace levin::detail::runtime

int levin::detail::compute_capability(Device) { return 90; }
