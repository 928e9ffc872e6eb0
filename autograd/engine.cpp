// The backward pass: counts dependencies from the roots, then runs ready nodes, youngest first.
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "autograd/leaf.h"
#include "autograd/row_gradient.h"
#include "autograd/seeds.h"
#include "levin/autograd.h"
#include "levin/ops.h"
#include "tensor/device/launching.h"

namespace levin {
namespace detail {
namespace {

// The state of one node in one backward.
struct Visit {
  Node* node = nullptr;
  std::uint32_t waiting = 0;                         // edges into it that have not delivered yet
  bool needed = false;                               // a path from here reaches a target
  Tensor grad;                                       // of output 0
  Tensors more;                                      // of all outputs, where there are several
  std::unique_ptr<std::vector<RowGradient>> rows{};  // of a leaf; null where none came
  Tensor& slot(std::uint32_t i) {
    if (node->outputs() == 1) return grad;
    if (more.empty()) more.resize(node->outputs());
    return more[i];
  }
  std::span<const Tensor> grads() {
    if (node->outputs() == 1) return {&grad, 1};
    if (more.empty()) more.resize(node->outputs());
    return more;
  }
};

// Node -> index into a dense list. Open addressing, since the nodes of std::unordered_map cost more than a small op.
class VisitTable {
 public:
  VisitTable() : slots_(64, kEmpty) {}
  std::pair<std::uint32_t, bool> insert(Node* node) {
    if ((visits.size() + 1) * 2 > slots_.size()) grow();
    std::size_t i = home(node);
    while (slots_[i] != kEmpty) {
      if (visits[slots_[i]].node == node) return {slots_[i], false};
      i = (i + 1) & (slots_.size() - 1);
    }
    slots_[i] = static_cast<std::uint32_t>(visits.size());
    visits.emplace_back().node = node;
    return {slots_[i], true};
  }
  // The index of a node, or kEmpty.
  std::uint32_t find(Node* node) const {
    std::size_t i = home(node);
    while (slots_[i] != kEmpty && visits[slots_[i]].node != node) i = (i + 1) & (slots_.size() - 1);
    return slots_[i];
  }
  static constexpr std::uint32_t kEmpty = ~std::uint32_t{0};
  std::vector<Visit> visits;

 private:
  std::size_t home(Node* node) const {
    // Fibonacci hashing: allocation addresses share their low bits.
    return static_cast<std::size_t>((reinterpret_cast<std::uintptr_t>(node) * 0x9e3779b97f4a7c15u) >> 20) &
           (slots_.size() - 1);
  }
  void grow() {
    slots_.assign(slots_.size() * 4, kEmpty);
    for (std::uint32_t k = 0; k < visits.size(); ++k) {
      std::size_t i = home(visits[k].node);
      while (slots_[i] != kEmpty) i = (i + 1) & (slots_.size() - 1);
      slots_[i] = k;
    }
  }
  std::vector<std::uint32_t> slots_;
};

// The homes that this backward pass offers to one op. What the op did not write into is free again afterwards.
class Claims {
 public:
  explicit Claims(const void* by) : by_(by) {}
  ~Claims() {
    birth_places() = nullptr;
    for (std::size_t i = 0; i < count_; ++i) leaves_[i]->disclaim_home(by_);
  }
  Claims(const Claims&) = delete;
  Claims& operator=(const Claims&) = delete;
  void offer(std::size_t input, Leaf* leaf) {
    if (input >= BirthPlaces::kMost) return;
    places_.of_input[input] = leaf->claim_home(by_);
    if (places_.of_input[input].defined()) leaves_[count_++] = leaf;
  }
  void open() {
    if (count_ > 0) birth_places() = &places_;
  }
  // The op has returned: its result alone may hold a place.
  void close() {
    birth_places() = nullptr;
    places_ = {};
  }

 private:
  const void* by_;
  std::size_t count_ = 0;
  BirthPlaces places_{};
  Leaf* leaves_[BirthPlaces::kMost] = {};
};

// What a pass offers to its ops. An inner pass, such as that of vjp, must not use what is offered to the op around it.
class OwnOffers {
 public:
  explicit OwnOffers(RowOffer* rows)
      : places_before_(std::exchange(birth_places(), nullptr)), rows_before_(std::exchange(row_offer(), rows)) {}
  ~OwnOffers() { birth_places() = places_before_, row_offer() = rows_before_; }
  OwnOffers(const OwnOffers&) = delete;
  OwnOffers& operator=(const OwnOffers&) = delete;

 private:
  BirthPlaces* places_before_;
  RowOffer* rows_before_;
};

// A node's output whose gradient was asked for.
struct Target {
  std::uint32_t visit;
  std::uint32_t slot;
  std::size_t result;
};

class Backward {
 public:
  Backward(std::span<const Edge> targets, bool retain, bool create)
      : targets_(targets),
        retain_(retain),
        create_(create),
        accumulate_(targets.empty()),
        offers_(accumulate_ && !create && Leaf::any_home()) {
    if (accumulate_) return;
    // A producer is older than its consumers: no node older than the oldest target can lead to a target.
    floor_ = ~std::uint64_t{0};
    for (const Edge& t : targets) {
      if (t.node) floor_ = std::min(floor_, t.node->seq());
    }
  }

  Tensors run(std::span<const Edge> roots, Tensors seeds) {
    discover(roots);
    for (std::size_t i = 0; i < roots.size(); ++i) {
      if (visits(roots[i]) && seeds[i].defined()) {
        add_to(table_.visits[table_.find(roots[i].node.get())].slot(roots[i].slot), std::move(seeds[i]));
      }
    }
    GradMode mode(create_);
    const OwnOffers own(accumulate_ && !create_ ? &row_offer_ : nullptr);
    for (std::uint32_t k = 0; k < table_.visits.size(); ++k) {
      if (table_.visits[k].waiting == 0) push(k);
    }
    Tensors results(targets_.size());
    while (!ready_.empty()) {
      std::pop_heap(ready_.begin(), ready_.end());
      const std::uint32_t k = ready_.back().visit;
      ready_.pop_back();
      step(k, results);
    }
    return results;
  }

 private:
  struct Ready {
    std::uint64_t seq;
    std::uint32_t visit;
    bool operator<(const Ready& o) const { return seq < o.seq; }
  };

  // A leaf whose requires_grad was switched off after the forward pass receives no gradient.
  [[nodiscard]] bool visits(const Edge& e) const { return e.node && e.node->seq() >= floor_ && e.node->wants_grad(); }
  // The index of an edge's node; kEmpty where the edge leads nowhere, also when a hook has switched the leaf on since.
  [[nodiscard]] std::uint32_t find(const Edge& e) const {
    return visits(e) ? table_.find(e.node.get()) : VisitTable::kEmpty;
  }

  void discover(std::span<const Edge> roots) {
    std::vector<std::uint32_t> stack;
    for (const Edge& r : roots) {
      if (visits(r) && table_.insert(r.node.get()).second) stack.push_back(table_.find(r.node.get()));
    }
    while (!stack.empty()) {
      Node* node = table_.visits[stack.back()].node;
      stack.pop_back();
      for (const Edge& e : node->edges()) {
        if (!visits(e)) continue;
        const auto [k, fresh] = table_.insert(e.node.get());
        ++table_.visits[k].waiting;
        if (fresh) stack.push_back(k);
      }
    }
    if (accumulate_) return;
    for (std::size_t i = 0; i < targets_.size(); ++i) {
      if (!targets_[i].node) continue;
      const std::uint32_t k = table_.find(targets_[i].node.get());
      if (k == VisitTable::kEmpty) continue;
      wanted_.push_back({k, targets_[i].slot, i});
      table_.visits[k].needed = true;
    }
    mark_needed();
  }

  // A node is needed when one of its edges leads to a needed node. Producers are older, so one pass, oldest first,
  // suffices.
  void mark_needed() {
    std::vector<Ready> order;
    order.reserve(table_.visits.size());
    for (std::uint32_t k = 0; k < table_.visits.size(); ++k) order.push_back({table_.visits[k].node->seq(), k});
    std::sort(order.begin(), order.end());
    for (const Ready& r : order) {
      Visit& v = table_.visits[r.visit];
      for (const Edge& e : v.node->edges()) {
        const std::uint32_t to = find(e);
        if (to != VisitTable::kEmpty && table_.visits[to].needed) v.needed = true;
      }
    }
  }

  void push(std::uint32_t k) {
    ready_.push_back({table_.visits[k].node->seq(), k});
    std::push_heap(ready_.begin(), ready_.end());
  }

  static void add_to(Tensor& slot, Tensor grad) { slot = slot.defined() ? add(slot, grad) : std::move(grad); }
  // Gradients of ops outside Levin are checked where they would be added or kept: an optimizer would read a gradient of
  // another size past its end, and a kernel would read one on another device.
  static void check_gradient(const Node& from, std::size_t input, const Tensor& grad, const char* expected,
                             const OutputMeta& want) {
    if (grad.shape() == want.shape && grad.dtype() == want.dtype && grad.device() == want.device) [[likely]]
      return;
    fail<AutogradError>(from.info().name, ": its backward returns ", grad.dtype(), " ", grad.shape(), " on ",
                        grad.device(), " as the gradient of input ", static_cast<std::int64_t>(input), expected,
                        want.dtype, " ", want.shape, " on ", want.device, "; a gradient is like its input");
  }
  static void deliver(const Node& from, std::size_t input, Visit& to, std::uint16_t at, Tensor grad) {
    Tensor& slot = to.slot(at);
    if (to.rows) [[unlikely]]
      make_dense(to);
    if (to.node->kind() == Node::Kind::leaf)
      check_gradient(from, input, grad, ", expected ", static_cast<Leaf*>(to.node)->meta);
    if (slot.defined()) check_gradient(from, input, grad, ", another op's is ", meta_of(slot));
    add_to(slot, std::move(grad));
  }

  void step(std::uint32_t k, Tensors& results) {
    Visit& v = table_.visits[k];
    Node* node = v.node;
    for (const Target& t : wanted_) {
      if (t.visit == k) results[t.result] = v.slot(t.slot);
    }
    const std::span<const Tensor> grads = v.grads();
    const bool flows = std::any_of(grads.begin(), grads.end(), [](const Tensor& g) { return g.defined(); });
    if (node->kind() == Node::Kind::leaf) {
      if (v.rows)
        static_cast<Leaf*>(node)->accumulate_rows(*v.rows, this);
      else if (accumulate_ && flows)
        static_cast<Leaf*>(node)->accumulate(std::move(v.grad), this);
      return;
    }
    const InModule in(node->module_path() ? node->module_path() : module_path_id());
    const std::span<Edge> edges = node->edges();
    NeedMask need;
    std::optional<Claims> claims;
    if (offers_) [[unlikely]]
      claims.emplace(this);
    for (std::size_t i = 0; i < edges.size(); ++i) {
      const std::uint32_t to = find(edges[i]);
      if (to == VisitTable::kEmpty || (!accumulate_ && !table_.visits[to].needed)) continue;
      need.set(i);
      if (claims) [[unlikely]]
        offer(*claims, i, table_.visits[to]);
    }
    Tensor few[4];
    Tensors many;
    std::span<Tensor> out(few, std::min<std::size_t>(edges.size(), 4));
    if (edges.size() > 4) {
      many.resize(edges.size());
      out = many;
    }
    if (flows && need.any()) {
      if (claims) claims->open();
      row_offer_.edges = edges;
      node->run(grads, need, out);
      if (claims) claims->close();
      if (mode().anomaly) [[unlikely]]
        check_anomalies(*node, out, grads);
      if (!retain_) node->free_saved();
    }
    deliver_rows(edges);
    for (std::size_t i = 0; i < edges.size(); ++i) {
      const std::uint32_t to = find(edges[i]);
      if (to == VisitTable::kEmpty) continue;
      Visit& next = table_.visits[to];
      if (out[i].defined() && need[i]) deliver(*node, i, next, edges[i].slot, std::move(out[i]));
      if (--next.waiting > 0) continue;
      // A leaf's gradient is complete: its hooks run at once, so that they overlap with the rest of the pass.
      next.node->kind() == Node::Kind::leaf ? step(to, results) : push(to);
    }
    v.grad = Tensor();
    v.more.clear();
  }

  void deliver_rows(std::span<const Edge> edges) {
    for (auto& [input, rows] : row_offer_.given) {
      const std::uint32_t to = find(edges[input]);
      if (to == VisitTable::kEmpty) continue;
      Visit& leaf = table_.visits[to];
      if (!leaf.rows) leaf.rows = std::make_unique<std::vector<RowGradient>>();
      leaf.rows->push_back(std::move(rows));
      if (leaf.grad.defined()) make_dense(leaf);
    }
    row_offer_.given.clear();
  }
  // Adds a leaf's rows to its dense gradient, in the order in which they came.
  static void make_dense(Visit& leaf) {
    const Shape& shape = static_cast<Leaf*>(leaf.node)->meta.shape;
    for (const RowGradient& rows : *leaf.rows) add_to(leaf.grad, dense(rows, shape));
    leaf.rows.reset();
  }

  void check_anomalies(const Node& node, std::span<const Tensor> out, std::span<const Tensor> grads) const {
    check_anomaly(node.info(), "backward", out, grads);
    for (const auto& [input, rows] : row_offer_.given)
      check_anomaly(node.info(), "backward", std::span(&rows.values, 1), grads);
  }

  // The leaf's home for input i, where this op makes the only gradient that the leaf gets in this pass.
  void offer(Claims& claims, std::size_t i, const Visit& to) {
    if (to.node->kind() == Node::Kind::leaf && to.waiting == 1 && !to.grad.defined())
      claims.offer(i, static_cast<Leaf*>(to.node));
  }

  VisitTable table_;
  std::vector<Ready> ready_;
  std::vector<Target> wanted_;
  std::span<const Edge> targets_;
  bool retain_, create_, accumulate_;
  bool offers_;  // homes to ops
  RowOffer row_offer_;
  std::uint64_t floor_ = 0;
};

}  // namespace

Tensors run_backward(std::span<const Edge> roots, Tensors seeds, std::span<const Edge> targets, bool retain_graph,
                     bool create_graph) {
  const AutocastOff off;  // each op's backward runs in the dtype of its forward
  // Handles seeds of outputs that are targets themselves, too: a root is a node like any other.
  return Backward(targets, retain_graph || create_graph, create_graph).run(roots, std::move(seeds));
}

}  // namespace detail

void backward(const Tensor& loss, BackwardOptions options) {
  backward(loss, detail::kept_seed(loss, "backward"), options);
}

void backward(const Tensor& loss, const Tensor& seed, BackwardOptions options) {
  if (!loss.requires_grad()) {
    fail<AutogradError>(
        "backward: the loss does not require grad; no tensor that requires grad took part, or it was computed "
        "under NoGrad");
  }
  detail::check_seed("backward", loss, seed);
  const Edge root = edge_of(loss);
  // One copy of the seed: a leaf that is its own loss must not take the caller's tensor as its gradient slot.
  detail::run_backward(std::span(&root, 1), {seed}, {}, options.retain_graph, options.create_graph);
}

Tensors grad(std::span<const Tensor> outputs, std::span<const Tensor> inputs, std::span<const Tensor> seeds,
             GradOptions options) {
  if (!seeds.empty() && seeds.size() != outputs.size()) {
    fail<AutogradError>("grad: ", seeds.size(), " seeds are given for ", outputs.size(), " outputs");
  }
  if (inputs.empty()) fail<AutogradError>("grad: no inputs are given");
  std::vector<Edge> roots, targets;
  Tensors start;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].requires_grad())
      fail<AutogradError>("grad: output ", i, " of shape ", outputs[i].shape(), " does not require grad");
    roots.push_back(edge_of(outputs[i]));
    if (seeds.empty() || !seeds[i].defined()) {
      start.push_back(detail::ones_seed(outputs[i], "grad"));
    } else {
      detail::check_seed("grad", outputs[i], seeds[i]);
      start.push_back(seeds[i]);
    }
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].requires_grad())
      fail<AutogradError>("grad: input ", i, " of shape ", inputs[i].shape(), " does not require grad");
    targets.push_back(edge_of(inputs[i]));
  }
  Tensors result = detail::run_backward(roots, std::move(start), targets, options.retain_graph, options.create_graph);
  if (!options.allow_unused) {
    for (std::size_t i = 0; i < result.size(); ++i) {
      if (!result[i].defined()) {
        fail<AutogradError>("grad: input ", i, " of shape ", inputs[i].shape(),
                            " is not used by the outputs; pass allow_unused = true to get an undefined tensor");
      }
    }
  }
  return result;
}

}  // namespace levin
