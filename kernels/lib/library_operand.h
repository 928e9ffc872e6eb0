// Address, alignment and sizes of an operand of a vendor's library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "levin/shape.h"
#include "levin/tensor.h"
#include "tensor/device/in_stream.h"

namespace levin::kernels {

inline std::byte* bytes_of(const Tensor& t) { return levin::detail::address_in_stream(t); }
// A plan serves all operands of its shapes, so all begin at a multiple of 16 bytes.
inline bool aligned16(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; }
// "x [8, 64, 56, 56]", for errors.
inline std::string sizes_text(const char* name, std::span<const std::int64_t> sizes) {
  return name + (" " + text(Shape(sizes)));
}

}  // namespace levin::kernels
