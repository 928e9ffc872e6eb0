// Memory that can be written as if it were new.
#pragma once

#include "levin/tensor.h"

namespace levin::detail {

// Whether this handle alone has the tensor, the tensor alone has its memory, no graph of autograd knows it, and the
// memory is Levin's own and no stream uses it: neither a view nor foreign memory (Storage::wrap). Then a write is seen
// by no other.
[[nodiscard]] bool is_sole_owner(const Tensor& t);

}  // namespace levin::detail
