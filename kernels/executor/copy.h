// Copies of memory by several threads.
#pragma once

#include <cstdint>

#include "kernels/executor/cpu.h"

namespace levin::kernels::cpu {

// `bytes` bytes that do not overlap. One thread alone does not fill the path to memory. Large copies pass the caches
// by: Note [Results larger than the cache].
void copy_bytes(const Cpu& on, const void* from, void* to, int64_t bytes);

}  // namespace levin::kernels::cpu
