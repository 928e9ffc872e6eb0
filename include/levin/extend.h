// Writing differentiable ops: an op is a struct with `info`, `forward` and `backward`; apply() runs and records it.
//
//   struct Square {
//     static constexpr OpInfo info{.name = "square"};
//     SavedInput x{};
//     Tensor forward(const Tensor& x_) { x = x_; return x_ * x_; }
//     Grads<1> backward(const Tensor& gy, Need<1>) { return {gy * x.get() * 2}; }
//   };
//   Tensor square(const Tensor& x) { return apply(Square{}, x); }
//
// `backward` calls public ops, so that it is differentiable itself, to any order. It gets one gradient for each output
// (zeros where nothing flowed) and returns one for each input, undefined where not needed. apply() hangs the record on
// the result of `forward`, so an input that `forward` returns unchanged comes back as a detach(): another handle on the
// same data.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>

#include "levin/op_info.h"
#include "levin/tensor.h"

namespace levin {

// One gradient for each of N inputs.
template <int N>
using Grads = std::array<Tensor, static_cast<std::size_t>(N)>;

// Which inputs want a gradient. Inputs from 63 on share one bit.
class NeedMask {
 public:
  constexpr NeedMask() = default;
  constexpr explicit NeedMask(std::uint64_t bits) : bits_(bits) {}
  [[nodiscard]] constexpr bool operator[](std::size_t i) const { return (bits_ >> (i < 63 ? i : 63)) & 1u; }
  constexpr void set(std::size_t i) { bits_ |= std::uint64_t{1} << (i < 63 ? i : 63); }
  [[nodiscard]] constexpr bool any() const { return bits_ != 0; }

 private:
  std::uint64_t bits_ = 0;
};
template <int>
using Need = NeedMask;

class Node;
struct Edge {  // which output of which producer
  detail::Ref<Node> node;
  std::uint32_t slot = 0;
  Edge() = default;
  Edge(detail::Ref<Node> n, std::uint32_t s);
  Edge(const Edge&);
  Edge(Edge&&) noexcept;
  Edge& operator=(Edge) noexcept;
  ~Edge();
};

// One recorded op: edges to the producers of its inputs, and what backward needs. A tensor's `meta` is its producer; a
// leaf's `meta` is a sink that receives the gradient.
class LEVIN_API Node : public detail::RefCounted {
 public:
  enum class Kind : std::uint8_t { op, leaf };
  [[nodiscard]] virtual const OpInfo& info() const = 0;
  // grads: one for each output, undefined where nothing flowed. Fills `out`, one for each edge, where needed.
  virtual void run(std::span<const Tensor> grads, NeedMask need, std::span<Tensor> out) = 0;
  virtual void free_saved() noexcept = 0;  // destroys the op struct and what it saved
  [[nodiscard]] std::span<Edge> edges() { return {edges_, edge_count_}; }
  [[nodiscard]] std::uint64_t seq() const { return seq_; }  // order of creation
  [[nodiscard]] std::uint32_t outputs() const { return outputs_; }
  [[nodiscard]] Kind kind() const { return kind_; }
  // The path of the module whose call recorded the op, for errors of its backward (detail::ModuleCall); 0 outside
  // calls.
  [[nodiscard]] std::uint32_t module_path() const { return module_path_; }
  [[nodiscard]] bool wants_grad() const { return wants_grad_; }  // false for a leaf with requires_grad_(false)

 protected:
  explicit Node(Kind kind);
  void dispose() noexcept override;  // frees whole chains by a loop; see Note [Freeing graphs]
  Edge* edges_ = nullptr;
  std::uint32_t edge_count_ = 0;
  std::uint32_t outputs_ = 1;
  std::uint64_t seq_;
  Kind kind_;
  bool wants_grad_ = true;

 private:
  std::uint32_t module_path_;
  Node* next_ = nullptr;  // in dispose(): the list of nodes to destroy
};
inline Edge::Edge(detail::Ref<Node> n, std::uint32_t s) : node(std::move(n)), slot(s) {}
inline Edge::Edge(const Edge&) = default;
inline Edge::Edge(Edge&&) noexcept = default;
inline Edge& Edge::operator=(Edge o) noexcept {
  std::swap(node, o.node);
  slot = o.slot;
  return *this;
}
inline Edge::~Edge() = default;

// The edge a gradient of t flows into; empty when t does not require grad.
[[nodiscard]] inline Edge edge_of(const Tensor& t) {
  auto* node = static_cast<Node*>(t.get().meta.get());
  if (!node || !node->wants_grad()) return {};
  return {detail::Ref<Node>::share(node), t.get().meta_slot};
}
// Whether ops on t are recorded while grad mode is on; false for an undefined tensor.
[[nodiscard]] inline bool records(const Tensor& t) {
  const detail::TensorImpl* p = t.impl();
  return p && p->meta && static_cast<const Node*>(p->meta.get())->wants_grad();
}

namespace detail {
// Thread-local mode, changed by RAII guards alone (levin/autograd.h).
class RandomTape;
class CastCache;
struct Mode {
  bool grad = true;               // record ops
  bool inference = false;         // switching `grad` on is refused
  bool anomaly = false;           // check every result for NaN
  RandomTape* tape = nullptr;     // checkpoint(): ranges of random numbers recorded or replayed
  CastCache* autocast = nullptr;  // on: where casts of parameters are kept
  bool detour = true;             // apply() takes a Detour; the Detour clears it where there is nothing to do
  DType autocast_dtype = DType::f32;
};
LEVIN_API Mode& mode() noexcept;

[[noreturn]] LEVIN_API void fail_stale(std::uint32_t saved, std::uint32_t now, const char* writer, const Tensor& t);
[[noreturn]] LEVIN_API void fail_unlisted_output();
[[noreturn]] LEVIN_API void fail_freed(const OpInfo& info);
inline constexpr std::size_t kMostOutputs = 65535;  // of one recorded op: a tensor's slot has 16 bits
[[noreturn]] LEVIN_API void fail_outputs(const OpInfo& info, std::size_t outputs);
LEVIN_API void check_anomaly(const OpInfo& info, const char* phase, std::span<const Tensor> values,
                             std::span<const Tensor> inputs);
// Rethrows the error in flight; the StateError of an undefined tensor gets the op's name.
[[noreturn]] LEVIN_API void rethrow_in_forward(const OpInfo& info);
// Rethrows the error in flight with the op's name in front, its type and place kept; a stale saved tensor and an output
// that is not listed become an AutogradError.
[[noreturn]] LEVIN_API void rethrow_in_backward(const OpInfo& info, std::span<const void* const> inputs,
                                                std::span<const Tensor> grads);
LEVIN_API Tensor zeros_for(const Shape& shape, DType dtype, Device device);
}  // namespace detail

// An input that backward reads, with its history. get() throws AutogradError when the storage was written since.
class SavedInput {
 public:
  SavedInput() = default;
  SavedInput& operator=(const Tensor& t) {
    tensor_ = t;
    if (t.defined()) version_ = t.version();
    return *this;
  }
  [[nodiscard]] bool defined() const { return tensor_.defined(); }
  [[nodiscard]] const Tensor& get() const {
    if (tensor_.defined() && tensor_.version() != version_) {
      detail::fail_stale(version_, tensor_.version(), tensor_.get().storage->writer.load(), tensor_);
    }
    return tensor_;
  }

 private:
  Tensor tensor_;
  std::uint32_t version_ = 0;
};

// The op's own output: the data, and a plain pointer to the node, so that no cycle keeps the graph alive. The op lists
// all of them, in the order of its outputs: `auto saved_outputs() { return std::tie(y); }`. An output that is not
// listed would have no history, and second derivatives would miss a term: get() throws AutogradError.
class SavedOutput {
 public:
  SavedOutput() = default;
  SavedOutput& operator=(const Tensor& t) {
    data_ = t.detach();
    version_ = t.version();
    return *this;
  }
  void attach(Node* node, std::uint16_t slot) {
    node_ = node;
    slot_ = slot;
  }  // apply() calls this
  [[nodiscard]] Tensor get() const {
    if (data_.version() != version_) {
      detail::fail_stale(version_, data_.version(), data_.get().storage->writer.load(), data_);
    }
    if (!node_) [[unlikely]]
      detail::fail_unlisted_output();
    Tensor t = data_.detach();
    t.get().meta = detail::Ref<Node>::share(node_);
    t.get().meta_slot = slot_;
    return t;
  }

 private:
  Tensor data_;
  Node* node_ = nullptr;
  std::uint32_t version_ = 0;
  std::uint16_t slot_ = 0;
};

using Stash = Tensor;  // an intermediate without history

namespace detail {

class AutocastOff {
 public:
  AutocastOff() : mode_(mode()), before_(mode_.autocast) { mode_.autocast = nullptr; }
  ~AutocastOff() {
    mode_.autocast = before_;
    mode_.detour = true;
  }
  AutocastOff(const AutocastOff&) = delete;
  AutocastOff& operator=(const AutocastOff&) = delete;

 private:
  Mode& mode_;
  CastCache* before_;
};

// What apply() does around an op when the mode asks for more than running it: `out` becomes the inputs as the op's
// policy wants them under autocast, autocast is off while this lives, and blocking launches learn which op runs.
class LEVIN_API Detour {
 public:
  Detour(const OpInfo& info, std::span<const Tensor* const> in, std::span<Tensor> out);
  ~Detour();
  Detour(const Detour&) = delete;
  Detour& operator=(const Detour&) = delete;

 private:
  void restore() noexcept;
  Mode& mode_;
  CastCache* before_;
  Launching now_;
  const Launching* outer_;
};

class GradOff {  // the cheapest form of NoGrad, for apply()
 public:
  GradOff() : mode_(mode()), before_(mode_.grad) { mode_.grad = false; }
  ~GradOff() { mode_.grad = before_; }
  GradOff(const GradOff&) = delete;
  GradOff& operator=(const GradOff&) = delete;

 private:
  Mode& mode_;
  bool before_;
};

struct OutputMeta {  // enough to make zeros for an output that got no gradient
  Shape shape;
  DType dtype = DType::f32;
  Device device = Device::cpu();
};
inline OutputMeta meta_of(const Tensor& t) { return {t.shape(), t.dtype(), t.device()}; }

// How many gradients O::backward takes: one for a Tensor result, K for std::array<Tensor, K>, a span for Tensors.
template <class Out>
struct Outputs;
template <>
struct Outputs<Tensor> {
  static std::span<Tensor> list(Tensor& t) { return {&t, 1}; }
};
template <std::size_t K>
struct Outputs<std::array<Tensor, K>> {
  static std::span<Tensor> list(std::array<Tensor, K>& t) { return t; }
};
template <>
struct Outputs<Tensors> {
  static std::span<Tensor> list(Tensors& t) { return t; }
};

template <class O>
concept Differentiable = requires {
  &O::backward;
};

// An op of several results that says kPerTensor: result k depends on input k alone, and backward needs nothing but the
// gradients. Its backward gets undefined gradients where none have come, and may run in several passes.
template <class O>
concept PerTensor = requires {
  requires O::kPerTensor;
};

template <class O>
void attach_saved_outputs(O& op, Node* node) {
  if constexpr (requires { op.saved_outputs(); }) {
    std::uint16_t slot = 0;
    std::apply([&](auto&... s) { (s.attach(node, slot++), ...); }, op.saved_outputs());
  }
}

template <class O, class Out, std::size_t N>  // N inputs; 0 means a list of any length
class OpNode final : public Node {
  static constexpr bool kSingle = std::is_same_v<Out, Tensor>;
  static constexpr bool kList = std::is_same_v<Out, Tensors>;
  using EdgeStore = std::conditional_t<N == 0, std::unique_ptr<Edge[]>, std::array<Edge, N == 0 ? 1 : N>>;
  using IdStore = std::conditional_t<N == 0, std::unique_ptr<const void*[]>, std::array<const void*, N == 0 ? 1 : N>>;

 public:
  OpNode(O op, std::span<const Tensor* const> inputs) : Node(Kind::op), op_(std::move(op)) {
    if constexpr (N == 0) {
      store_ = std::make_unique<Edge[]>(inputs.size());
      ids_ = std::make_unique<const void*[]>(inputs.size());
      edges_ = store_.get();
    } else {
      edges_ = store_.data();
    }
    edge_count_ = static_cast<std::uint32_t>(inputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      ids_[i] = inputs[i]->impl();
      if (inputs[i]->defined()) edges_[i] = edge_of(*inputs[i]);
    }
  }
  const OpInfo& info() const override { return O::info; }
  void free_saved() noexcept override {
    if constexpr (!PerTensor<O>) op_.reset();
  }

  void attach(Out& out) {
    std::span<Tensor> list = Outputs<Out>::list(out);
    if (list.size() > kMostOutputs) fail_outputs(O::info, list.size());
    outputs_ = static_cast<std::uint32_t>(list.size());
    std::uint16_t slot = 0;
    for (Tensor& t : list) {
      // Integer outputs (indices) carry no gradient.
      if (t.defined() && is_float(t.dtype())) {
        t.get().meta = Ref<Node>::share(this);
        t.get().meta_slot = slot;
      }
      ++slot;
    }
    if constexpr (!kSingle) {
      shapes_ = std::make_unique<OutputMeta[]>(list.size());
      for (std::size_t i = 0; i < list.size(); ++i) {
        if (list[i].defined()) shapes_[i] = meta_of(list[i]);
      }
    }
    attach_saved_outputs(*op_, this);
  }

  void run(std::span<const Tensor> grads, NeedMask need, std::span<Tensor> out) override {
    if (!op_) fail_freed(O::info);
    try {
      if constexpr (kSingle) {
        take(op_->backward(grads[0], need), out);
      } else if constexpr (PerTensor<O>) {
        take(op_->backward(grads, need), out);
      } else {
        Tensors full(grads.begin(), grads.end());
        for (std::size_t i = 0; i < full.size(); ++i) {
          if (!full[i].defined()) full[i] = zeros_for(shapes_[i].shape, shapes_[i].dtype, shapes_[i].device);
        }
        if constexpr (kList) {
          take(op_->backward(std::span<const Tensor>(full), need), out);
        } else {
          take(expand(full, need, std::make_index_sequence<std::tuple_size_v<Out>>{}), out);
        }
      }
    } catch (...) { rethrow_in_backward(O::info, {&ids_[0], edge_count_}, grads); }
  }

 private:
  template <std::size_t... I>
  auto expand(const Tensors& g, NeedMask need, std::index_sequence<I...>) {
    return op_->backward(g[I]..., need);
  }
  template <class G>
  static void take(G&& from, std::span<Tensor> out) {
    // By pointer: g++ 12 folds equal instances for arrays of different sizes, and then warns of their bounds.
    Tensor* grads = from.data();
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = std::move(grads[i]);
  }
  std::optional<O> op_;
  EdgeStore store_{};
  IdStore ids_{};
  std::conditional_t<kSingle, std::tuple<>, std::unique_ptr<OutputMeta[]>> shapes_;
};

// Detaches results that are not the op's own (an input passed through, one with a history): their record must stay.
template <class Out>
void make_own(Out& out, std::span<const Tensor* const> inputs) {
  for (Tensor& t : Outputs<Out>::list(out)) {
    if (!t.defined()) continue;
    bool foreign = bool(t.get().meta);
    for (const Tensor* in : inputs) foreign |= in->impl() == t.impl();
    if (foreign) [[unlikely]]
      t = t.detach();
  }
}

template <class O, std::size_t N, class Out>
void record(O&& op, Out& out, std::span<const Tensor* const> inputs) {
  auto* node = new OpNode<std::remove_cvref_t<O>, Out, N>(std::move(op), inputs);
  const Ref<Node> owner = Ref<Node>::adopt(node);
  node->attach(out);
}

template <class O, class... T>
auto forward(O& op, const T&... in) {
  const GradOff off;
  try {
    return op.forward(in...);
  } catch (...) { rethrow_in_forward(O::info); }
}

template <class Out>
void anomaly(const OpInfo& info, Out& out, std::span<const Tensor* const> inputs) {
  Tensors in;
  for (const Tensor* t : inputs) in.push_back(*t);
  check_anomaly(info, "forward", Outputs<Out>::list(out), in);
}

}  // namespace detail

template <class O, class... T>
requires(std::is_same_v<T, Tensor>&&...) auto apply(O op, const T&... in) -> decltype(op.forward(in...));

namespace detail {
// apply() by way of a Detour. Built small.
template <class O, class... T>
[[gnu::noinline, gnu::cold]] auto apply_detour(O& op, const T&... in) -> decltype(op.forward(in...)) {
  std::array<Tensor, sizeof...(T)> args;
  const Detour detour(O::info, std::array<const Tensor*, sizeof...(T)>{&in...}, args);
  return std::apply([&](const auto&... a) { return levin::apply(std::move(op), a...); }, args);
}
}  // namespace detail

// Runs op.forward(in...) without recording inside, and records `op` when grad mode is on and an input requires grad.
// forward returns a Tensor, a std::array of tensors, or Tensors. An op without `backward` has no derivative
// (comparisons, indices): its result never requires grad.
template <class O, class... T>
requires(std::is_same_v<T, Tensor>&&...) auto apply(O op, const T&... in) -> decltype(op.forward(in...)) {
  detail::Mode& mode = detail::mode();
  if (mode.detour) [[unlikely]]
    return detail::apply_detour(op, in...);
  [[maybe_unused]] const bool record = mode.grad && (records(in) || ...);
  auto out = detail::forward(op, in...);
  const std::array<const Tensor*, sizeof...(T)> inputs{&in...};
  detail::make_own(out, inputs);
  if constexpr (detail::Differentiable<O>) {
    if (record) detail::record<O, sizeof...(T)>(std::move(op), out, inputs);
  }
  if (mode.anomaly) [[unlikely]]
    detail::anomaly(O::info, out, inputs);
  return out;
}

// The same for an op over a list of tensors (cat, stack): forward(std::span<const Tensor>), backward returns Tensors.
template <class O>
auto apply(O op, std::span<const Tensor> in) -> decltype(op.forward(in)) {
  detail::Mode& mode = detail::mode();
  if (mode.detour) [[unlikely]] {
    std::vector<const Tensor*> given;
    for (const Tensor& t : in) given.push_back(&t);
    Tensors args(in.size());
    const detail::Detour detour(O::info, given, args);
    return apply(std::move(op), std::span<const Tensor>(args));
  }
  bool record = false;
  for (const Tensor& t : in) record |= mode.grad && records(t);
  auto out = detail::forward(op, in);
  std::vector<const Tensor*> inputs;
  for (const Tensor& t : in) inputs.push_back(&t);
  detail::make_own(out, inputs);
  if constexpr (detail::Differentiable<O>) {
    if (record) detail::record<O, 0>(std::move(op), out, inputs);
  }
  if (mode.anomaly) [[unlikely]]
    detail::anomaly(O::info, out, inputs);
  return out;
}

}  // namespace levin
