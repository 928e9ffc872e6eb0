// The readers of levin/serialize.h over any source: tests pass damaged bytes in memory.
#pragma once

#include "levin/serialize.h"
#include "tensor/files/file.h"

namespace levin::detail {

[[nodiscard]] Tensor read_npy(Source& source);
[[nodiscard]] TensorFile read_safetensors(Source& source, SafetensorsLimits limits = {});

// The bytes of save_safetensors before the first tensor; `order` is the order of the tensors that follow.
struct SafetensorsLayout {
  std::string header;
  std::vector<std::size_t> order;
};
[[nodiscard]] SafetensorsLayout layout_safetensors(const std::string& path, const NamedTensors& tensors,
                                                   const Metadata& metadata);

}  // namespace levin::detail
