#include "levin/nn/sequential.h"

#include "levin/nn/call.h"

namespace levin::nn {

Tensor Sequential::run(const Tensor& x, std::int64_t begin, std::int64_t end) const {
  if (begin < 0 || begin > end || end > size()) {
    fail<IndexError>("Sequential: children ", begin, " to ", end,
                     " are asked for, expected 0 <= begin <= end <= ", size());
  }
  Tensor y = x;
  for (std::int64_t i = begin; i < end; ++i) {
    const Entry& entry = entries_[static_cast<std::size_t>(i)];
    y = Call(*entry.module, y).gives(entry.call(y));
  }
  return y;
}

Module& Sequential::operator[](std::int64_t i) {
  if (i < 0 || i >= size()) fail<IndexError>("Sequential: index is ", i, ", expected 0 to ", size() - 1);
  return *entries_[static_cast<std::size_t>(i)].module;
}

}  // namespace levin::nn
