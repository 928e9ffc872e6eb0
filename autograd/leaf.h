// The sink of a leaf: its gradient slot, and the hooks that run when the gradient is complete.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "levin/autograd.h"

namespace levin::detail {

struct LeafHook {
  Function<void(const Tensor&)> call;
  std::atomic<bool> removed{false};
};

// A node without edges. The tensor's meta points to it, so every handle to the leaf shares the slot. Two threads may
// run backward into the same leaf (replicas that share parameters), so a lock guards the slot.
class Leaf final : public Node {
 public:
  explicit Leaf(const OutputMeta& tensor) : Node(Kind::leaf), meta(tensor) {}
  const OpInfo& info() const override { return kInfo; }
  void run(std::span<const Tensor>, NeedMask, std::span<Tensor>) override {}
  void free_saved() noexcept override {}

  void set_wants_grad(bool on) { wants_grad_ = on; }
  // Takes the sum of this backward: writes an unset gradient, adds to a set one, then calls the hooks.
  void accumulate(Tensor gradient);

  const OutputMeta meta;  // of the tensor, whose metadata never changes; a gradient must match it
  std::mutex mutex;
  Tensor grad;
  std::vector<std::shared_ptr<LeafHook>> hooks;

 private:
  static const OpInfo kInfo;
};

[[nodiscard]] Leaf* leaf_of(const Tensor& t);  // null unless t is a leaf with a slot

// Thrown by SavedInput::get(); OpNode::run turns it into an AutogradError that names both ops.
struct StaleSaved {
  std::uint32_t saved, now;
  const char* writer;
  const void* impl;
  Shape shape;
  DType dtype;
};

}  // namespace levin::detail
