#include "train/strategy/lowered.h"

#include <exception>
#include <utility>

#include "autograd/leaf_dtype.h"
#include "levin/autograd.h"
#include "levin/ops.h"
#include "train/logs/metric_log.h"

namespace levin::train {
namespace {

// The value's memory becomes `to`, with the values of `from` where those differ by more than the conversion. A write of
// equal values, such as a broadcast, must not round the wider ones.
void swap(const Tensor& value, Tensor& to, const Tensor& from, std::uint32_t& seen) {
  if (from.version() != seen && !equal(from, to.to(from.dtype()))) copy_(to, from.to(to.dtype()));
  detail::TensorImpl& own = value.get();
  const detail::TensorImpl& next = to.get();
  own.storage = next.storage;
  own.offset = next.offset;
  own.strides = next.strides;
  own.contiguous = next.contiguous;
  set_leaf_dtype(value, to.dtype());
  seen = to.version();
}

}  // namespace

Lowered::Lowered(nn::Module& tree, std::optional<DType> parameters, std::optional<DType> buffers,
                 const std::unordered_set<const void*>& others) {
  std::unordered_set<const void*> taken = others;
  const NoGrad off;
  const auto add_new = [&](const Tensor& t, std::optional<DType> dtype) {
    if (dtype && t.defined() && is_float(t.dtype()) && t.dtype() != *dtype && taken.insert(t.impl()).second)
      add(t, *dtype);
  };
  for (const ParamRef& p : tree.parameters()) add_new(*p.value, parameters);
  for (const nn::BufferRef& b : buffers_of_model(&tree)) add_new(*b.value, buffers);
  narrow();
}

Lowered::~Lowered() {
  try {
    widen();
  } catch (const std::exception&) {  // no memory: what is left stays narrow
  }
}

void Lowered::add(const Tensor& value, DType dtype) {
  const Tensor original = value.detach();
  all_.push_back({.value = value, .original = original, .low = original.to(dtype), .seen = original.version()});
}

void Lowered::narrow() {
  if (std::exchange(narrow_, true)) return;
  const NoGrad off;
  for (One& one : all_) swap(one.value, one.low, one.original, one.seen);
}

void Lowered::widen() {
  if (!std::exchange(narrow_, false)) return;
  const NoGrad off;
  for (One& one : all_) swap(one.value, one.original, one.low, one.seen);
}

}  // namespace levin::train
