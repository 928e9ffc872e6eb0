#include <optional>

#include "levin/error.h"
#include "levin/stream.h"
#include "tensor/device/graph_random.h"
#include "tensor/device/runtime.h"
#include "tensor/device/tickets.h"
#include "tensor/memory/device_allocator.h"

namespace levin {

// Note [A stream of the recording's own]
//
// A stream in capture keeps work from every thread, while other threads still use the stream that the graph is for. So
// a recording has a queue of its own under that stream's number. The recording thread's current stream names this
// queue, and so does every call of that thread on the stream. Memory belongs to the stream's number as without a
// recording, and no work of another thread enters the graph. A replay inside of a recording becomes part of it.
struct Graph::State {
  struct Recording {
    detail::OpenRecording open{};
    Stream stream;
    StreamGuard current;

    explicit Recording(Stream of)
        : stream(of.device(), detail::runtime::make_stream(of.device(), of.index()), of.index()), current(stream) {}
    ~Recording() { detail::runtime::free_stream(stream.device(), stream.handle()); }
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;
  };

  Stream stream;  // for replays
  detail::Ref<detail::Pool> pool = detail::Ref<detail::Pool>::adopt(new detail::Pool);
  std::optional<Recording> recording{};
  detail::runtime::Recorded recorded{};
  detail::GraphRandom random{};
  std::optional<detail::RecordedTickets> tickets{};

  explicit State(Stream s) : stream(s) {}
  ~State() {
    if (recorded.graph) {
      // Replays may still run, and their memory is released now. The wait can fail only where the device is lost.
      try {
        detail::runtime::synchronize(stream);
      } catch (...) {}
      detail::runtime::free_graph(stream.device(), recorded.graph);
    }
    detail::device_allocator(stream.device()).drop_pool(pool.get());
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

Graph::Graph(Stream stream) {
  const Device device = stream.device();
  if (!device.launches()) fail<UnsupportedError>("graph: ", device, " records no work; has cuda, simt");
  detail::check_usable("graph", device);
  if (detail::GraphRandom::recording()) fail<CaptureError>("graph: this thread already records one");
  state_ = std::make_unique<State>(stream);
}
Graph::~Graph() = default;
Graph::Graph(Graph&&) noexcept = default;
Graph& Graph::operator=(Graph&&) noexcept = default;

void Graph::begin() {
  // The graph needs its memory beside the cache of eager work, and during a recording nothing can be given back.
  detail::device_allocator(state_->stream.device()).trim();
  state_->recording.emplace(state_->stream);
  const Stream queue = state_->recording->stream;
  state_->tickets.emplace(queue.device());
  detail::runtime::begin_capture(queue);
  detail::set_recording(queue.device(), state_->pool.get(), queue);
  detail::set_recorded_tickets(queue.device(), &*state_->tickets, queue.handle());
  state_->random.begin(state_->stream);
}

void Graph::end() {
  try {
    state_->recorded = detail::runtime::end_capture(state_->recording->stream);
  } catch (...) {
    abandon();
    throw;
  }
  detail::set_recorded_tickets(state_->stream.device(), nullptr, nullptr);
  state_->random.end();
  detail::set_recording(state_->stream.device(), nullptr, state_->stream);
  state_->recording.reset();
}

void Graph::abandon() noexcept {
  state_->random.abandon();
  detail::set_recording(state_->stream.device(), nullptr, state_->stream);
  detail::set_recorded_tickets(state_->stream.device(), nullptr, nullptr);
  detail::runtime::abandon_capture(state_->recording->stream);
  state_->recording.reset();
}

void Graph::replay() {
  if (state_->random.draws()) {
    if (detail::GraphRandom::recording())
      fail<CaptureError>("graph: a replay inside a recording would draw the same numbers each time");
    state_->random.before_replay(state_->stream);
  }
  const Device device = state_->stream.device();
  detail::runtime::replay(state_->recorded.graph, is_capturing(device) ? Stream::current(device) : state_->stream);
}
int Graph::nodes() const { return state_->recorded.nodes; }
std::int64_t Graph::memory_bytes() const {
  return static_cast<std::int64_t>(detail::device_allocator(state_->stream.device()).bytes_of(state_->pool.get()));
}

}  // namespace levin
