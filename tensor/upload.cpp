#include <algorithm>
#include <cstddef>
#include <cstring>

#include "levin/tensor.h"
#include "tensor/runtime.h"

namespace levin::detail {

// Note [Copies from pageable memory]
// CUDA stages pageable memory in a buffer of its own before an asynchronous copy returns, but not where the device can read the
// host's pages itself: there the caller's bytes may be read later than the caller believes. So Levin stages them itself, in
// page-locked blocks that come back when the stream has passed, and waits for nothing. Large copies go in pieces, which
// lets one piece travel while the next is staged.
void upload(void* to, const void* from, std::size_t bytes, Stream stream) {
  constexpr std::size_t kPiece = std::size_t{16} << 20;
  for (std::size_t first = 0; first < bytes; first += kPiece) {
    const std::size_t n = std::min(kPiece, bytes - first);
    const Ref<Storage> piece = Storage::allocate_pinned(n);
    std::memcpy(piece->data, static_cast<const std::byte*>(from) + first, n);
    runtime::copy(static_cast<std::byte*>(to) + first, piece->data, n, runtime::Copy::to_device, stream);
    piece->used_on(stream);
  }
}

}  // namespace levin::detail
