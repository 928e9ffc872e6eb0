// The sink of a leaf: its gradient slot, dense or of rows, its home, and the hooks that run when the gradient is
// complete.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
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
  ~Leaf() override;
  const OpInfo& info() const override { return kInfo; }
  void run(std::span<const Tensor>, NeedMask, std::span<Tensor>) override {}
  void free_saved() noexcept override {}

  void set_wants_grad(bool on) { wants_grad_ = on; }
  // Takes the sum of this backward: writes an unset gradient, adds to a set one, then calls the hooks.
  // `by` is the pass, as in claim_home.
  void accumulate(Tensor gradient, const void* by);

  // As accumulate, of rows that ops gave. Note [Gradients of rows]
  void accumulate_rows(std::span<const RowGradient> parts, const void* by);

  // The home, for an op of the backward pass `by` to write the gradient into; undefined where the leaf has none, has a
  // gradient, or where another pass writes there. Until disclaim_home(by).
  [[nodiscard]] Tensor claim_home(const void* by);
  void disclaim_home(const void* by) noexcept;
  void set_home(Tensor to);
  [[nodiscard]] static bool any_home() noexcept { return homes_.load(std::memory_order_relaxed) > 0; }

  // Under the lock:
  void keep(std::span<const RowGradient> parts);  // adds them to the rows
  void make_dense();
  void clear() { grad = Tensor(), rows = RowGradient(); }

  OutputMeta meta;  // of the tensor, whose dtype alone may change (set_leaf_dtype); a gradient must match it
  std::mutex mutex;
  Tensor grad;
  RowGradient rows;  // each once; at most one of grad and rows is defined
  Tensor home;       // Note [Gradient homes]
  std::vector<std::shared_ptr<LeafHook>> hooks;

 private:
  void settle(Tensor gradient, const void* by);  // under the lock
  static const OpInfo kInfo;
  static std::atomic<std::int64_t> homes_;  // of the process
  const void* claimed_by_ = nullptr;
};

[[nodiscard]] Leaf* leaf_of(const Tensor& t);  // null unless t is a leaf with a slot

// What birth_place gives to the op whose backward runs on this thread.
struct BirthPlaces {
  static constexpr std::size_t kMost = 4;  // inputs that are offered a place: no op has more parameters
  Tensor of_input[kMost];
};
[[nodiscard]] BirthPlaces*& birth_places() noexcept;

// What backward of the op that runs on this thread gives as rows.
struct RowOffer {
  struct Given {
    std::size_t input;
    RowGradient rows;
  };
  std::span<const Edge> edges;  // of the op
  std::vector<Given> given;
};
[[nodiscard]] RowOffer*& row_offer() noexcept;

// Thrown by SavedInput::get(); OpNode::run turns it into an AutogradError that names both ops.
struct StaleSaved {
  std::uint32_t saved, now;
  const char* writer;
  const void* impl;
  Shape shape;
  DType dtype;
};

}  // namespace levin::detail
