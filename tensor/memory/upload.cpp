#include <algorithm>
#include <cstddef>
#include <cstring>

#include "levin/error.h"
#include "levin/tensor.h"
#include "tensor/core/counted.h"
#include "tensor/device/runtime.h"

namespace levin::detail {

// Note [Copies from pageable memory]
//
// CUDA stages pageable memory in a buffer of its own before an asynchronous copy returns, but not where the device can
// read the host's pages itself: there the device may read the caller's bytes after the call has returned. So Levin
// stages the bytes itself, in page-locked blocks that come back when the stream has passed, and waits for nothing while
// the system has such memory. Large copies go in pieces, so one piece travels while the next is staged.
void upload(void* to, const void* from, std::size_t bytes, Stream stream) {
  constexpr std::size_t kPiece = std::size_t{16} << 20;
  count_copy(runtime::Copy::to_device, bytes);
  for (std::size_t first = 0; first < bytes; first += kPiece) {
    const std::size_t n = std::min(kPiece, bytes - first);
    const std::byte* const source = static_cast<const std::byte*>(from) + first;
    std::byte* const target = static_cast<std::byte*>(to) + first;
    Ref<Storage> piece;
    try {
      piece = Storage::allocate_pinned(n);
    } catch (const OutOfMemoryError&) {
      runtime::copy(target, source, n, runtime::Copy::to_device, stream);
      wait_for(stream, "to");
      continue;
    }
    piece->used_on(stream);
    std::memcpy(piece->data, source, n);
    runtime::copy(target, piece->data, n, runtime::Copy::to_device, stream);
  }
}

}  // namespace levin::detail
