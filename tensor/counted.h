// What is counted of the traffic between the host and a device; read by levin/sync.h.
#pragma once

#include <cstddef>

#include "levin/sync.h"
#include "tensor/runtime.h"

namespace levin::detail {

void count_copy(runtime::Copy kind, std::size_t bytes) noexcept;  // that this thread enqueues
void count_wait() noexcept;                                       // of this thread for a device

// While it lives, copies of this thread are Levin's own, such as the numbers of an optimizer that a schedule changed: they are counted,
// and nobody is blamed for them.
class OwnCopies {
 public:
  OwnCopies() noexcept;
  ~OwnCopies();
  OwnCopies(const OwnCopies&) = delete;
  OwnCopies& operator=(const OwnCopies&) = delete;

 private:
  CopyCounts before_;
};
[[nodiscard]] CopyCounts own_copies() noexcept;  // of all scopes of this thread so far

}  // namespace levin::detail
