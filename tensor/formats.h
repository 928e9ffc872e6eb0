// The readers behind levin/serialize.h, over any source: tests give them damaged bytes in memory.
#pragma once

#include "levin/serialize.h"
#include "tensor/file.h"

namespace levin::detail {

[[nodiscard]] Tensor read_npy(Source& source);
[[nodiscard]] TensorFile read_safetensors(Source& source, SafetensorsLimits limits = {});

// The file save_safetensors writes, up to the first tensor; `order` is that of the tensors behind it.
struct SafetensorsLayout {
  std::string header;
  std::vector<std::size_t> order;
};
[[nodiscard]] SafetensorsLayout layout_safetensors(const std::string& path, const NamedTensors& tensors,
                                                   const Metadata& metadata);

}  // namespace levin::detail
