// Copies of memory by several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/executor/cpu.h"

namespace levin::kernels {

struct Copy {
  const std::byte* from;
  std::byte* to;
  std::int64_t n;  // bytes
  int gap = 0;     // bytes after `to` that become 0, below 16
};

}  // namespace levin::kernels

namespace levin::kernels::cpu {

// `bytes` bytes that do not overlap. One thread alone does not fill the path to memory. Large copies pass the caches
// by: Note [Results larger than the cache].
void copy_bytes(const Cpu& on, const void* from, void* to, int64_t bytes);
// All of a list, whose copies do not overlap either, as one: many small copies use as many threads as a large one.
void copy_list(const Cpu& on, std::span<const Copy> copies);

}  // namespace levin::kernels::cpu
