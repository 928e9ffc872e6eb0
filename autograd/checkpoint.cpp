// Activation checkpointing.
#include <algorithm>
#include <memory>
#include <optional>
#include <unordered_set>

#include "autograd/random_tape.h"
#include "levin/autograd.h"

namespace levin {
namespace {

using RegionFn = Function<Tensors(std::span<const Tensor>)>;

struct TapeScope {  // restores the tape of an outer region at the end of this one
  explicit TapeScope(detail::RandomTape* tape) : before(detail::mode().tape) { detail::mode().tape = tape; }
  ~TapeScope() { detail::mode().tape = before; }
  TapeScope(const TapeScope&) = delete;
  TapeScope& operator=(const TapeScope&) = delete;
  detail::RandomTape* before;
};

// The present place in the order of nodes: every node recorded later is younger.
std::uint64_t now() {
  struct Mark final : Node {
    Mark() : Node(Kind::op) {}
    const OpInfo& info() const override {
      static constexpr OpInfo mark{.name = "mark"};
      return mark;
    }
    void run(std::span<const Tensor>, NeedMask, std::span<Tensor>) override {}
    void free_saved() noexcept override {}
  };
  return detail::Ref<Mark>::adopt(new Mark)->seq();
}

bool same(const Edge& a, const Edge& b) { return a.node == b.node && a.slot == b.slot; }

// Edges from what a region recorded to older nodes: its inputs, and the parameters and other tensors that it captured.
std::vector<Edge> outside_edges(std::span<const Tensor> outputs, std::uint64_t since) {
  std::vector<Edge> found;
  std::unordered_set<const Node*> seen;
  std::vector<Edge> stack;
  for (const Tensor& t : outputs) {
    if (records(t)) stack.push_back(edge_of(t));
  }
  while (!stack.empty()) {
    const Edge e = std::move(stack.back());
    stack.pop_back();
    if (e.node->seq() < since) {
      if (std::none_of(found.begin(), found.end(), [&](const Edge& f) { return same(e, f); })) found.push_back(e);
      continue;
    }
    if (!seen.insert(e.node.get()).second) continue;
    for (const Edge& next : e.node->edges()) {
      if (next.node) stack.push_back(next);
    }
  }
  return found;
}

// Autocast as around the region, with casts of the region's own: a cast that was made outside before would be another
// edge in the second run.
class Region {
 public:
  explicit Region(DType autocast) : off_(Autocast::off()) {
    if (autocast != DType::f32) on_.emplace(autocast);
  }

 private:
  Autocast off_;
  std::optional<Autocast> on_;
};

// Note [Checkpoint]
//
// The node's edges are those that leave the recorded region. checkpoint() finds them by recording the region once and
// dropping the record. Backward records the region again and asks the engine for gradients at exactly these edges, so
// captured parameters get their gradients through the outer backward: hooks see complete gradients, and grad() with
// create_graph works to any order.
class CheckpointNode final : public Node {
 public:
  CheckpointNode(std::shared_ptr<const RegionFn> fn, std::span<const Tensor> inputs, std::vector<Edge> outside,
                 std::shared_ptr<detail::RandomTape> tape, DType autocast, std::size_t outputs)
      : Node(Kind::op), fn_(std::move(fn)), tape_(std::move(tape)), autocast_(autocast), outside_(std::move(outside)) {
    saved_.resize(inputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i) saved_[i] = inputs[i];
    edges_ = outside_.data();
    edge_count_ = static_cast<std::uint32_t>(outside_.size());
    outputs_ = static_cast<std::uint32_t>(outputs);
  }
  const OpInfo& info() const override { return kInfo; }
  void free_saved() noexcept override {
    saved_.clear();
    fn_.reset();
  }

  void run(std::span<const Tensor> grads, NeedMask need, std::span<Tensor> out) override {
    if (!fn_) detail::fail_freed(kInfo);
    try {
      const bool create_graph = grad_mode();
      Tensors inputs;
      for (const SavedInput& s : saved_) inputs.push_back(s.get());
      const std::uint64_t since = now();
      const GradMode on(true);
      Tensors again = rerun(inputs);
      std::vector<Edge> roots, targets;
      for (const Tensor& t : again) roots.push_back(records(t) ? edge_of(t) : Edge{});
      const std::vector<Edge> used = outside_edges(again, since);
      if (!std::equal(used.begin(), used.end(), outside_.begin(), outside_.end(), same)) {
        fail<AutogradError>("checkpoint: the second run used other tensors than the first; the function must be pure");
      }
      for (std::size_t i = 0; i < outside_.size(); ++i) targets.push_back(need[i] ? outside_[i] : Edge{});
      Tensors seeds(grads.begin(), grads.end());
      Tensors result = detail::run_backward(roots, std::move(seeds), targets, create_graph, create_graph);
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = std::move(result[i]);
    } catch (...) { detail::rethrow_in_backward(kInfo, {}, grads); }
  }

  static constexpr OpInfo kInfo{.name = "checkpoint"};

 private:
  Tensors rerun(std::span<const Tensor> inputs) {
    const Region region(autocast_);
    tape_->play();
    const TapeScope scope(tape_.get());
    return (*fn_)(inputs);
  }
  std::shared_ptr<const RegionFn> fn_;
  std::shared_ptr<detail::RandomTape> tape_;
  DType autocast_;  // f32: off
  std::vector<SavedInput> saved_;
  std::vector<Edge> outside_;
};

}  // namespace

Tensors checkpoint(Function<Tensors(std::span<const Tensor>)> fn, std::span<const Tensor> inputs) {
  if (!fn) fail<ConfigError>("checkpoint: the function is empty, expected one of the inputs");
  if (!grad_mode()) return fn(inputs);
  const std::uint64_t since = now();
  auto tape = std::make_shared<detail::RandomTape>();
  const DType autocast = autocast_dtype();
  Tensors out;
  {
    const Region region(autocast);
    const TapeScope scope(tape.get());
    out = fn(inputs);
  }
  std::vector<Edge> outside = outside_edges(out, since);
  if (outside.empty()) return out;
  if (out.size() > detail::kMostOutputs) detail::fail_outputs(CheckpointNode::kInfo, out.size());
  Tensors result;
  for (const Tensor& t : out) result.push_back(records(t) ? t.detach() : t);
  auto node = detail::Ref<Node>::adopt(new CheckpointNode(std::make_shared<const RegionFn>(std::move(fn)), inputs,
                                                          std::move(outside), std::move(tape), autocast, out.size()));
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (!records(out[i])) continue;
    result[i].get().meta = node;
    result[i].get().meta_slot = static_cast<std::uint16_t>(i);
  }
  return result;
}

}  // namespace levin
