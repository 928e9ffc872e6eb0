#include <optional>

#include "levin/error.h"
#include "levin/stream.h"
#include "tensor/device_allocator.h"
#include "tensor/runtime.h"

namespace levin {

struct Graph::State {
  Stream stream;
  detail::Ref<detail::Pool> pool = detail::Ref<detail::Pool>::adopt(new detail::Pool);
  std::optional<StreamGuard> current{};  // while recording
  detail::runtime::Recorded recorded{};

  explicit State(Stream s) : stream(s) {}
  ~State() {
    if (recorded.graph) detail::runtime::free_graph(stream.device(), recorded.graph);
    detail::device_allocator(stream.device()).drop_pool(pool.get());
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

Graph::Graph(Stream stream) {
  const Device device = stream.device();
  if (!device.launches()) fail<UnsupportedError>("graph: ", device, " records no work; has cuda, simt");
  detail::check_usable("graph", device);
  if (is_capturing(device)) fail<CaptureError>("graph: this thread already records one on ", device);
  state_ = std::make_unique<State>(stream);
}
Graph::~Graph() {
  // Replays may still run; the memory they use goes away now. Waiting can only fail where the device is lost.
  if (!state_ || !state_->recorded.graph) return;
  try {
    detail::runtime::synchronize(state_->stream);
  } catch (...) {}
}
Graph::Graph(Graph&&) noexcept = default;
Graph& Graph::operator=(Graph&&) noexcept = default;

void Graph::begin() {
  detail::runtime::begin_capture(state_->stream);
  state_->current.emplace(state_->stream);
  detail::set_recording(state_->stream.device(), state_->pool.get());
}

void Graph::end() {
  detail::set_recording(state_->stream.device(), nullptr);
  state_->current.reset();
  state_->recorded = detail::runtime::end_capture(state_->stream);
}

void Graph::abandon() noexcept {
  detail::set_recording(state_->stream.device(), nullptr);
  state_->current.reset();
  detail::runtime::abandon_capture(state_->stream);
}

void Graph::replay() { detail::runtime::replay(state_->recorded.graph, state_->stream); }
int Graph::nodes() const { return state_->recorded.nodes; }
std::int64_t Graph::memory_bytes() const {
  return static_cast<std::int64_t>(detail::device_allocator(state_->stream.device()).bytes_of(state_->pool.get()));
}

}  // namespace levin
