// Nodes, leaves, modes: the implementation of levin/extend.h.
#include "autograd/leaf.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <iterator>
#include <mutex>
#include <utility>
#include <vector>

#include "autograd/home.h"
#include "autograd/leaf_dtype.h"
#include "levin/autograd.h"
#include "levin/live_graph.h"
#include "levin/ops.h"
#include "tensor/core/thread_modes.h"
#include "tensor/core/undefined.h"
#include "tensor/errors/rethrow.h"

namespace levin {
namespace detail {

Mode& mode() noexcept {
  static thread_local constinit Mode m;
  return m;
}

// All of Mode but the tape, which belongs to one call of checkpoint() on its own thread.
ThreadModes thread_modes() noexcept {
  const Mode& m = mode();
  return {.grad = m.grad, .inference = m.inference, .anomaly = m.anomaly};
}
namespace {
void set_thread_modes(const ThreadModes& modes) noexcept {
  Mode& m = mode();
  m.grad = modes.grad;
  m.inference = modes.inference;
  m.anomaly = modes.anomaly;
}
}  // namespace
ThreadModesScope::ThreadModesScope(ThreadModes modes) noexcept : before_(thread_modes()) { set_thread_modes(modes); }
ThreadModesScope::~ThreadModesScope() { set_thread_modes(before_); }

}  // namespace detail

namespace {

constinit std::atomic<std::uint64_t> made{0}, freed{0};  // nodes

// Creation order across threads; backward takes nodes by it, so only the order matters.
std::uint64_t next_seq() { return made.fetch_add(1, std::memory_order_relaxed); }

// The nodes of a GraphWatch, oldest first.
constinit std::atomic<bool> watching{false};
std::mutex watched_mutex;
std::vector<const Node*> watched;

void forget(const Node* node) noexcept {
  const std::lock_guard lock(watched_mutex);
  const auto it = std::find(watched.rbegin(), watched.rend(), node);  // backward frees the newest first
  if (it != watched.rend()) watched.erase(std::next(it).base());
}

}  // namespace

std::int64_t live_graph_nodes() noexcept {
  return static_cast<std::int64_t>(made.load(std::memory_order_relaxed) - freed.load(std::memory_order_relaxed));
}

GraphWatch::GraphWatch() noexcept : mine_(!watching.exchange(true)) {}
GraphWatch::~GraphWatch() {
  if (!mine_) return;
  watching = false;
  const std::lock_guard lock(watched_mutex);
  watched.clear();
}
const char* GraphWatch::newest_alive() const {
  const std::lock_guard lock(watched_mutex);
  return mine_ && !watched.empty() ? watched.back()->info().name : nullptr;
}

Node::Node(Kind kind) : seq_(next_seq()), kind_(kind), module_path_(detail::module_path_id()) {
  if (!watching.load(std::memory_order_relaxed)) [[likely]]
    return;
  const std::lock_guard lock(watched_mutex);
  watched.push_back(this);
}

// Note [Freeing graphs]
//
// A chain of a million nodes must not free itself by recursion, and a release must not allocate, since it may not
// throw. So dying nodes form a list through a field of their own. A node first drops what it saved, while its edges
// still hold the producers: then a saved tensor is never the last owner of its producer. Each producer that loses its
// last owner with an edge, which happens once, joins the list.
void Node::dispose() noexcept {
  Node* dying = this;
  while (dying) {
    Node* node = dying;
    dying = node->next_;
    node->free_saved();
    for (Edge& e : node->edges()) {
      if (!e.node) continue;
      Node* producer = e.node.detach();
      if (!producer->drop()) continue;
      producer->next_ = dying;
      dying = producer;
    }
    if (watching.load(std::memory_order_relaxed)) [[unlikely]]
      forget(node);
    freed.fetch_add(1, std::memory_order_relaxed);
    delete node;
  }
}

namespace detail {

const OpInfo Leaf::kInfo{.name = "leaf"};

namespace {
// True where t is dense and no other handle or view can see or write it.
bool sole_owner(const Tensor& t) {
  const TensorImpl& p = t.get();
  return t.is_contiguous(t.suggest_memory_format()) && p.refs.load(std::memory_order_acquire) == 1 &&
         p.storage->use_count() == 1;
}
}  // namespace

Leaf::~Leaf() { set_home({}); }

void Leaf::accumulate(Tensor gradient, const void* by) {
  std::vector<std::shared_ptr<LeafHook>> due;
  Tensor complete;
  {
    const std::lock_guard lock(mutex);
    make_dense();
    settle(std::move(gradient), by);
    if (hooks.empty()) return;
    std::erase_if(hooks, [](const auto& h) { return h->removed.load(); });
    due = hooks;
    complete = grad;
  }
  for (const auto& hook : due) hook->call(complete);
}

void Leaf::settle(Tensor gradient, const void* by) {
  const bool recorded = records(gradient);
  if (grad.defined()) {
    if (home.defined() && grad.impl() == home.impl() && !recorded && !grad_mode())
      add_(grad, gradient);
    else
      grad = add(grad, gradient);
  } else if (home.defined() && !recorded && (!claimed_by_ || claimed_by_ == by)) {
    if (gradient.impl() == home.impl())
      home.get().storage->wrote("backward");  // an op's kernel did
    else
      copy_(home, gradient);
    grad = home;
  } else if (recorded || sole_owner(gradient)) {
    grad = std::move(gradient);
  } else {
    grad = gradient.clone();  // an expanded or shared result must not become a buffer that is written
  }
}

std::atomic<std::int64_t> Leaf::homes_{0};

Tensor Leaf::claim_home(const void* by) {
  const std::lock_guard lock(mutex);
  if (!home.defined() || grad.defined() || claimed_by_) return {};
  claimed_by_ = by;
  return home;
}
void Leaf::disclaim_home(const void* by) noexcept {
  const std::lock_guard lock(mutex);
  if (claimed_by_ == by) claimed_by_ = nullptr;
}
void Leaf::set_home(Tensor to) {
  const std::lock_guard lock(mutex);
  homes_.fetch_add(static_cast<int>(to.defined()) - static_cast<int>(home.defined()), std::memory_order_relaxed);
  home = std::move(to);
}

BirthPlaces*& birth_places() noexcept {
  static thread_local constinit BirthPlaces* places = nullptr;
  return places;
}
Tensor birth_place(std::size_t input) {
  BirthPlaces* const places = birth_places();
  return places && input < BirthPlaces::kMost ? std::exchange(places->of_input[input], Tensor()) : Tensor();
}
Tensor place_or_empty(const Tensor& place, const Shape& shape, Device device, DType dtype) {
  return place.defined() ? place : empty(shape, device, dtype);
}

Leaf* leaf_of(const Tensor& t) {
  auto* node = static_cast<Node*>(t.get().meta.get());
  return node && node->kind() == Node::Kind::leaf ? static_cast<Leaf*>(node) : nullptr;
}

void fail_stale(std::uint32_t saved, std::uint32_t now, const char* writer, const Tensor& t) {
  throw StaleSaved{saved, now, writer ? writer : "an unnamed op", t.impl(), t.shape(), t.dtype()};
}

void fail_outputs(const OpInfo& info, std::size_t outputs) {
  fail<UnsupportedError>(std::string(info.name), ": ", outputs, " outputs of one op are to be recorded, at most ",
                         kMostOutputs, " are supported; split the work or run it without grad");
}

void fail_freed(const OpInfo& info) {
  fail<AutogradError>(
      std::string(info.name),
      ": backward runs a second time through a graph whose saved tensors were freed; pass retain_graph = true "
      "to the first backward");
}

namespace {
struct UnlistedOutput {};  // thrown by SavedOutput, which does not know its op
}  // namespace
void fail_unlisted_output() { throw UnlistedOutput{}; }

void rethrow_in_forward(const OpInfo& info) {
  try {
    throw;
  } catch (const UndefinedTensor&) { fail_undefined(info.name); }
}

void rethrow_in_backward(const OpInfo& info, std::span<const void* const> inputs, std::span<const Tensor> grads) {
  std::string shapes;
  for (const Tensor& g : grads)
    shapes += (shapes.empty() ? "" : ", ") + (g.defined() ? text(g.shape()) : std::string("none"));
  const std::string op = info.name;
  try {
    throw;
  } catch (const StaleSaved& stale) {
    std::string which = "its output";
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i] == stale.impl) which = "input " + text(i);
    }
    fail<AutogradError>(op, ": ", which, " (", stale.dtype, " ", stale.shape, ") was saved at version ", stale.saved,
                        " and is at version ", stale.now, "; last written by ", stale.writer,
                        ". Write to a clone(), or after backward");
  } catch (const UnlistedOutput&) {
    fail<AutogradError>(op,
                        ": its backward reads a SavedOutput that saved_outputs() does not list, so its history is not "
                        "known; add it there: auto saved_outputs() { return std::tie(y); }");
  } catch (const AutogradError&) {
    throw;  // already names its op
  } catch (const Error&) {
    rethrow_named<ShapeError, DTypeError, DeviceError, IndexError, UnsupportedError, OutOfMemoryError, ConfigError,
                  StateError, CaptureError, CudaError, CommError>(op + ": in its backward, with gradients " + shapes +
                                                                  ": ");
  }
}

void check_anomaly(const OpInfo& info, const char* phase, std::span<const Tensor> values,
                   std::span<const Tensor> inputs) {
  GradOff off;
  Mode& m = mode();
  m.anomaly = false;  // the check's own ops are not checked
  struct Restore {
    Mode& m;
    ~Restore() { m.anomaly = true; }
  } restore{m};
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Tensor& v = values[i];
    if (!v.defined() || !is_float(v.dtype()) || v.device().is_meta() || v.numel() == 0) continue;
    if (!any(isnan(v.detach())).item<bool>()) continue;
    std::string shapes;
    for (const Tensor& t : inputs)
      shapes += (shapes.empty() ? "" : ", ") + (t.defined() ? text(t) : std::string("undefined"));
    fail<AutogradError>(std::string(info.name), ": the first NaN is in its ", phase, " result ", i, " of shape ",
                        v.shape(), "; inputs: ", shapes);
  }
}

Tensor zeros_for(const Shape& shape, DType dtype, Device device) { return zeros(shape, device, dtype); }

}  // namespace detail

GradMode::GradMode(bool on) : before_(detail::mode().grad) {
  if (on && detail::mode().inference) {
    fail<StateError>(
        "grad mode: it is switched on inside InferenceMode; leave InferenceMode first, or use NoGrad instead of it");
  }
  detail::mode().grad = on;
}
GradMode::~GradMode() { detail::mode().grad = before_; }

InferenceMode::InferenceMode() : grad_before_(detail::mode().grad), inference_before_(detail::mode().inference) {
  detail::mode().grad = false;
  detail::mode().inference = true;
}
InferenceMode::~InferenceMode() {
  detail::mode().grad = grad_before_;
  detail::mode().inference = inference_before_;
}

bool grad_mode() { return detail::mode().grad; }

AnomalyMode::AnomalyMode() : before_(detail::mode().anomaly) { detail::mode().anomaly = true; }
AnomalyMode::~AnomalyMode() { detail::mode().anomaly = before_; }

bool Tensor::requires_grad() const {
  (void)get();
  return records(*this);
}

bool Tensor::is_leaf() const {
  (void)get();
  return !impl_->meta || detail::leaf_of(*this);
}

Tensor& Tensor::requires_grad_(bool on) {
  if (!is_leaf()) {
    fail<AutogradError>("requires_grad_: the tensor is the result of ",
                        static_cast<Node*>(impl_->meta.get())->info().name,
                        ", only a leaf can be switched; use detach()");
  }
  if (on && !is_float(dtype()))
    fail<DTypeError>("requires_grad_: the tensor is ", dtype(), ", expected a floating dtype");
  if (detail::Leaf* leaf = detail::leaf_of(*this)) {
    leaf->set_wants_grad(on);
  } else if (on) {
    impl_->meta = detail::Ref<detail::RefCounted>::adopt(new detail::Leaf(detail::meta_of(*this)));
    impl_->meta_slot = 0;
  }
  return *this;
}

Tensor Tensor::grad() const {
  (void)get();
  detail::Leaf* leaf = detail::leaf_of(*this);
  if (!leaf) return {};
  const std::lock_guard lock(leaf->mutex);
  leaf->make_dense();
  return leaf->grad;
}

void Tensor::set_grad(Tensor gradient) {
  detail::Leaf* leaf = detail::leaf_of(*this);
  if (!leaf) {
    fail<AutogradError>("set_grad: the tensor of shape ", shape(),
                        " is not a leaf that requires grad; call requires_grad_() first");
  }
  if (gradient.defined()) {
    if (gradient.shape() != shape())
      fail<ShapeError>("set_grad: the gradient has shape ", gradient.shape(), ", expected ", shape());
    if (gradient.dtype() != dtype())
      fail<DTypeError>("set_grad: the gradient is ", gradient.dtype(), ", expected ", dtype());
    if (gradient.device() != device())
      fail<DeviceError>("set_grad: the gradient is on ", gradient.device(), ", expected ", device());
  }
  const std::lock_guard lock(leaf->mutex);
  leaf->clear();
  leaf->grad = std::move(gradient);
}

void set_gradient_home(const Tensor& leaf, Tensor home) {
  detail::Leaf* const sink = detail::leaf_of(leaf);
  if (!sink)
    fail<AutogradError>("set_gradient_home: the tensor of shape ", leaf.shape(), " is not a leaf that requires grad");
  if (home.defined()) {
    if (home.shape() != leaf.shape() || !home.is_contiguous())
      fail<ShapeError>("set_gradient_home: the home is ", text(home), ", expected dense memory of shape ",
                       leaf.shape());
    if (home.dtype() != leaf.dtype())
      fail<DTypeError>("set_gradient_home: the home is ", home.dtype(), ", expected ", leaf.dtype());
    if (home.device() != leaf.device())
      fail<DeviceError>("set_gradient_home: the home is on ", home.device(), ", expected ", leaf.device());
  }
  sink->set_home(std::move(home));
}

bool move_gradient_home(const Tensor& leaf) {
  detail::Leaf* const sink = detail::leaf_of(leaf);
  if (!sink) return false;
  const std::lock_guard lock(sink->mutex);
  sink->make_dense();
  if (!sink->grad.defined() || !sink->home.defined() || sink->grad.impl() == sink->home.impl()) return false;
  const NoGrad off;
  copy_(sink->home, sink->grad.detach());
  sink->grad = sink->home;
  return true;
}

void set_leaf_dtype(const Tensor& leaf, DType dtype) {
  if (!is_float(dtype)) fail<DTypeError>("set_leaf_dtype: the dtype is ", dtype, ", expected a floating dtype");
  if (!leaf.is_leaf())
    fail<AutogradError>("set_leaf_dtype: the tensor of shape ", leaf.shape(), " is the result of an op");
  if (detail::Leaf* const sink = detail::leaf_of(leaf)) {
    const std::lock_guard lock(sink->mutex);
    const NoGrad off;
    sink->make_dense();
    if (sink->grad.defined()) sink->grad = sink->grad.detach().to(dtype);
    sink->meta.dtype = dtype;
  }
  leaf.get().dtype = dtype;
}

HookHandle on_gradient_complete(const Tensor& tensor, Function<void(const Tensor& gradient)> hook) {
  if (!hook) fail<ConfigError>("on_gradient_complete: the hook is empty, expected a function of the gradient");
  detail::Leaf* leaf = detail::leaf_of(tensor);
  if (!leaf)
    fail<AutogradError>("on_gradient_complete: the tensor of shape ", tensor.shape(),
                        " is not a leaf that requires grad");
  auto held = std::make_shared<detail::LeafHook>();
  held->call = std::move(hook);
  const std::lock_guard lock(leaf->mutex);
  leaf->hooks.push_back(held);
  return HookHandle(held);
}

void HookHandle::remove() {
  if (auto hook = std::static_pointer_cast<detail::LeafHook>(hook_.lock())) hook->removed = true;
}

}  // namespace levin
