// Addresses of tensors for kernels and copies.
#pragma once

#include <cstddef>

#include "levin/tensor.h"
#include "tensor/device/runtime.h"

namespace levin::detail {

// Work for the calling thread's current stream of the storage's device reads or writes the storage.
void use_in_current_stream(Storage& storage);

// The first element, for the work that is enqueued next on the current stream. Memory of another stream then stays
// until that work is done (Note [Stream-ordered memory]).
[[nodiscard]] inline std::byte* address_in_stream(const Tensor& t) {
  const TensorImpl& p = t.get();
  Storage& storage = *p.storage;
#if LEVIN_LAUNCHES
  if (storage.device.launches()) use_in_current_stream(storage);
#endif
  return storage.data + p.offset * static_cast<std::int64_t>(itemsize(p.dtype));
}

}  // namespace levin::detail
