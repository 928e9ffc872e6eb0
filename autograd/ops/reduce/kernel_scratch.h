#pragma once

#include <cstdint>

#include "kernels/executor/dispatch.h"
#include "levin/autograd.h"
#include "levin/ops.h"

namespace levin {

// Scratch memory for kernels, held for the lifetime of this object.
struct KernelScratch {
  Device device;
  Tensor held{};
  template <class V>
  [[nodiscard]] V* operator()(std::int64_t count) {
    held = empty(Shape{count}, device, dtype_of<V>);
    return ptr<V>(held);
  }
};

}  // namespace levin
