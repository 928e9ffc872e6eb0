// What only moves elements works on their bits: one body for all dtypes of a width, and on devices the widest accesses
// that sizes and addresses allow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "kernels/device/vec.cuh"
#include "kernels/executor/gpu.h"

namespace levin::kernels {

// The unsigned integer as wide as the element.
template <class T>
using Bits = std::conditional_t<
    sizeof(T) == 8, uint64_t,
    std::conditional_t<sizeof(T) == 4, uint32_t, std::conditional_t<sizeof(T) == 2, uint16_t, uint8_t>>>;

namespace gpu {

// W bytes that move together, as the fewest registers.
template <int W>
using Word = std::conditional_t<(W >= 4), std::uint32_t, std::conditional_t<W == 2, std::uint16_t, std::uint8_t>>;
template <int W>
using Bytes = Vec<Word<W>, W / int(sizeof(Word<W>))>;
template <int W>
__device__ __forceinline__ Bytes<W> load_bytes(const std::uint8_t* p, std::int64_t at) {
  return load<Bytes<W>::kSize>(reinterpret_cast<const Word<W>*>(p + at * W));
}
template <int W>
__device__ __forceinline__ void store_bytes(std::uint8_t* p, std::int64_t at, const Bytes<W>& v) {
  store(reinterpret_cast<Word<W>*>(p + at * W), v);
}

// The widest access of 1 to 16 bytes that all of these, in bytes, are multiples of.
[[nodiscard]] inline int common_width(std::initializer_list<std::int64_t> bytes) {
  std::uint64_t all = 16;
  for (const std::int64_t b : bytes) all |= static_cast<std::uint64_t>(b);
  return static_cast<int>(all & (~all + 1));
}
[[nodiscard]] inline std::int64_t address_of(const void* p) {
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(p));
}

// Calls f(std::integral_constant<int, W>) for the width.
template <class F>
void for_width(int width, F&& f) {
  switch (width) {
    case 16: return f(std::integral_constant<int, 16>{});
    case 8: return f(std::integral_constant<int, 8>{});
    case 4: return f(std::integral_constant<int, 4>{});
    case 2: return f(std::integral_constant<int, 2>{});
    default: return f(std::integral_constant<int, 1>{});
  }
}

// Kernels that move give each thread kItems items, a block's width apart: so many loads are on their way at a time.
inline constexpr int kMoveThreads = 256, kItems = 4;
[[nodiscard]] inline Grid move_grid(std::int64_t items) {
  return {.blocks = blocks_for(items, std::int64_t{kMoveThreads} * kItems), .threads = kMoveThreads};
}
__device__ __forceinline__ std::int64_t first_item() {
  return std::int64_t{blockIdx.x} * (kMoveThreads * kItems) + threadIdx.x;
}
// One item a thread.
[[nodiscard]] inline Grid item_grid(std::int64_t items) {
  return {.blocks = blocks_for(items, kMoveThreads), .threads = kMoveThreads};
}
__device__ __forceinline__ std::int64_t own_item() { return std::int64_t{blockIdx.x} * kMoveThreads + threadIdx.x; }

// The range that a kernel's indices must be in, and where one outside of it is reported.
struct IndexRange {
  levin::detail::FaultSlot* slot;
  const char* op;
  std::int64_t bound;

  IndexRange(const Gpu& on, const char* op_, std::int64_t bound_) : slot(on.faults()), op(op_), bound(bound_) {}
  __device__ bool holds(std::int64_t index) const {
    if (static_cast<std::uint64_t>(index) < static_cast<std::uint64_t>(bound)) return true;
    report_index(slot, op, index, bound);
    return false;
  }
};

}  // namespace gpu
}  // namespace levin::kernels
