// The readers of levin/serialize.h over any source: tests pass damaged bytes in memory.
#pragma once

#include "levin/serialize.h"
#include "tensor/files/file.h"

namespace levin::detail {

// Reads the source from begin to end, each byte once.
[[nodiscard]] Tensor read_npy(Source& source);
// The bytes of save_npy before the values. Throws DTypeError `what: ...` for bf16.
[[nodiscard]] std::string npy_header(const std::string& what, const Tensor& x);
// No surrogates, nothing longer than needed, nothing over U+10FFFF.
[[nodiscard]] bool valid_utf8(std::string_view s);
[[nodiscard]] TensorFile read_safetensors(Source& source, SafetensorsLimits limits = {});
// The header alone: read_tensor reads a tensor, or any range of its elements, from what it says.
struct SafetensorsHeader {
  struct Entry {
    std::string name;
    Shape shape;
    FileType type;
    std::uint64_t at = 0;  // byte of the first element in the source
  };
  std::vector<Entry> entries;
  Metadata metadata;
};
[[nodiscard]] SafetensorsHeader read_safetensors_header(Source& source, SafetensorsLimits limits = {});

// The bytes of save_safetensors before the first tensor; `order` is the order of the tensors that follow.
struct SafetensorsLayout {
  std::string header;
  std::vector<std::size_t> order;
};
[[nodiscard]] SafetensorsLayout layout_safetensors(const std::string& path, const NamedTensors& tensors,
                                                   const Metadata& metadata);

}  // namespace levin::detail
