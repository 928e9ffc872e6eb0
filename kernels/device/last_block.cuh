// The block that comes last to a place of a kernel finishes what all blocks have begun, so that no second launch does.
//
// Note [The last block]
//
// Blocks write their parts to memory, then call is_last_block with the number of blocks that come. It returns true in
// the one that comes last, and what the others wrote before is visible to it. That block adds the parts in the order of
// their numbers, so bits do not depend on which block it is. No block waits for another: blocks need not be resident
// together, and simt runs them one after another.
//
// `ticket` is a counter of Gpu::tickets(). It is 0 before the launch and after it.
#pragma once

#include "kernels/device/language.h"

namespace levin::kernels::gpu {

// All threads of the block call, at one place of the kernel.
__device__ __forceinline__ bool is_last_block(unsigned* ticket, unsigned count) {
  LEVIN_SHARED(unsigned, last, 1);
  __syncthreads();  // all of the block have written
  if (threadIdx.x == 0) {
    __threadfence();
    *last = atomicInc(ticket, count - 1) == count - 1 ? 1u : 0u;  // the last one returns the counter to 0
    __threadfence();
  }
  __syncthreads();
  return *last != 0;
}

}  // namespace levin::kernels::gpu
