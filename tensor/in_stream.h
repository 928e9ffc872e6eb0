// Where kernels and copies get the address of a tensor.
#pragma once

#include <cstddef>

#include "levin/tensor.h"
#include "tensor/runtime.h"

namespace levin::detail {

// The storage is read or written by work for the calling thread's current stream of its device.
void use_in_current_stream(Storage& storage);

// The first element, for work that is enqueued on the current stream next: memory of another stream then stays until
// that work is done (Note [Stream-ordered memory]).
[[nodiscard]] inline std::byte* address_in_stream(const Tensor& t) {
  const TensorImpl& p = t.get();
  Storage& storage = *p.storage;
#if LEVIN_LAUNCHES
  if (storage.device.launches()) use_in_current_stream(storage);
#endif
  return storage.data + p.offset * static_cast<std::int64_t>(itemsize(p.dtype));
}

}  // namespace levin::detail
