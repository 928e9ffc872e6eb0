// Device memory for kernels, and the positions of keys in sorted order.
#pragma once

#include <cstdint>

#include "kernels/executor/dispatch.h"
#include "kernels/index/group.cuh"
#include "levin/ops.h"

namespace levin {

// Memory of a kernel: n elements of T.
template <class T>
[[nodiscard]] Tensor scratch_of(const Tensor& beside, std::int64_t n) {
  return empty({n * std::int64_t{sizeof(T)}}, beside.device(), DType::u8);
}
template <class T>
[[nodiscard]] T* scratch_ptr(const Tensor& scratch) {
  return reinterpret_cast<T*>(ptr<std::uint8_t>(scratch));
}
// Calls f(positions in the order of their keys), for the integer type that holds the positions.
template <class Key, class F>
void with_sorted(const Gpu& on, const kernels::gpu::Grouping& grouping, const Key& key, const Tensor& beside,
                 const F& f) {
  const Tensor scratch = scratch_of<std::uint8_t>(beside, grouping.bytes());
  void* memory = ptr<std::uint8_t>(scratch);
  if (grouping.is_wide())
    f(kernels::gpu::sort_by_key<std::uint64_t>(on, grouping, key, memory));
  else
    f(kernels::gpu::sort_by_key<std::uint32_t>(on, grouping, key, memory));
}

}  // namespace levin
