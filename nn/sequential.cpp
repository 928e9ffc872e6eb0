#include "levin/nn/sequential.h"

#include "levin/nn/call.h"
#include "levin/nn/checkpoint_policy.h"

namespace levin::nn {

Tensor Sequential::run(const Tensor& x, std::int64_t begin, std::int64_t end) const {
  if (begin < 0 || begin > end || end > size()) {
    fail<IndexError>("Sequential: children ", begin, " to ", end,
                     " are asked for, expected 0 <= begin <= end <= ", size());
  }
  Tensor y = x;
  for (std::int64_t i = begin; i < end; ++i) {
    const auto call = [this, at = static_cast<std::size_t>(i)](const Tensor& in) {
      return Call(*entries_[at].module, in).gives(entries_[at].call(in));
    };
    const Module& module = *entries_[static_cast<std::size_t>(i)].module;
    y = CheckpointPolicy::takes(module) ? CheckpointPolicy::apply(call, y) : call(y);
  }
  return y;
}

Module& Sequential::operator[](std::int64_t i) {
  if (i < 0 || i >= size()) fail<IndexError>("Sequential: index is ", i, ", expected 0 to ", size() - 1);
  return *entries_[static_cast<std::size_t>(i)].module;
}

}  // namespace levin::nn
