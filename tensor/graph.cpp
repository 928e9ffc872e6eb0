#include <optional>

#include "levin/error.h"
#include "levin/stream.h"
#include "tensor/device_allocator.h"
#include "tensor/graph_random.h"
#include "tensor/runtime.h"

namespace levin {

struct Graph::State {
  Stream stream;
  detail::Ref<detail::Pool> pool = detail::Ref<detail::Pool>::adopt(new detail::Pool);
  std::optional<StreamGuard> current{};  // while recording
  detail::runtime::Recorded recorded{};
  detail::GraphRandom random{};

  explicit State(Stream s) : stream(s) {}
  ~State() {
    if (recorded.graph) {
      // Replays may still run; the memory they use goes away now. Waiting can only fail where the device is lost.
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
  state_->current.emplace(state_->stream);
  detail::runtime::begin_capture(state_->stream);
  detail::set_recording(state_->stream.device(), state_->pool.get());
  state_->random.begin(state_->stream);
}

void Graph::end() {
  state_->random.end();
  detail::set_recording(state_->stream.device(), nullptr);
  state_->current.reset();
  state_->recorded = detail::runtime::end_capture(state_->stream);
}

void Graph::abandon() noexcept {
  state_->random.abandon();
  detail::set_recording(state_->stream.device(), nullptr);
  state_->current.reset();
  detail::runtime::abandon_capture(state_->stream);
}

void Graph::replay() {
  if (state_->random.draws()) {
    if (detail::GraphRandom::recording())
      fail<CaptureError>("graph: a replay inside a recording would draw the same numbers each time");
    state_->random.before_replay(state_->stream);
  }
  detail::runtime::replay(state_->recorded.graph, state_->stream);
}
int Graph::nodes() const { return state_->recorded.nodes; }
std::int64_t Graph::memory_bytes() const {
  return static_cast<std::int64_t>(detail::device_allocator(state_->stream.device()).bytes_of(state_->pool.get()));
}

}  // namespace levin
