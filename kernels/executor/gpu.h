// The executor of devices that launch kernels: every such kernel goes through Gpu::launch, which enqueues it on a
// stream.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <source_location>
#include <string>
#include <type_traits>
#include <utility>

#include "kernels/device/language.h"
#include "levin/stream.h"
#include "tensor/device/runtime.h"
#include "tensor/device/tickets.h"

namespace levin::kernels {

// A launch that `follows` may begin before the launch ahead of it in the stream has ended, up to its
// wait_for_prerequisites (kernels/device/cluster.cuh): programmatic dependent launch. The launch ahead `leads`, or
// itself follows. On a GPU a launch that leads is an ordinary one. On simt both run when the stream's next work does:
// Note [Work put off] in tensor/device/runtime_simt.cpp.
enum class Overlap : std::uint8_t { none, leads, follows };

struct Grid {
  dim3 blocks{1, 1, 1}, threads{1, 1, 1};
  unsigned shared = 0;         // bytes of LEVIN_SHARED_DYNAMIC
  dim3 cluster{1, 1, 1};       // blocks of a cluster, at most 8; the grid is a multiple of it
  bool large_cluster = false;  // at most 16, which not every GPU of a kind can place
  Overlap overlap = Overlap::none;
};

// A grid and the line that launches it, for messages.
struct GridAt {
  Grid grid;
  std::source_location where;
  GridAt(const Grid& g, std::source_location at = std::source_location::current()) : grid(g), where(at) {}
};

// Blocks that cover n items, `per_block` each.
[[nodiscard]] inline unsigned blocks_for(std::int64_t n, std::int64_t per_block) {
  return static_cast<unsigned>((n + per_block - 1) / per_block);
}

namespace lib {
#if defined(LEVIN_SIMT)
// Enqueues a launch in which each thread calls `thread`.
void launch_kernel(std::function<void()> thread, const GridAt& to, Stream stream);
#else
// cudaLaunchKernel, and its error as CudaError or OutOfMemoryError.
void launch_kernel(const void* kernel, const Grid& grid, void** arguments, Stream stream);
#endif
}  // namespace lib

struct Gpu {
  Stream stream;

  // Enqueues kernel<<<grid>>>(args...). A grid without blocks does nothing. On simt the default stream has run the
  // kernel on return, unless the thread records a graph.
  template <class... P, class... A>
  requires(sizeof...(P) == sizeof...(A) &&
           (std::convertible_to<A, P> && ...)) void launch(void (*kernel)(P...), const GridAt& to, A... args) const {
    const Grid& grid = to.grid;
    if (grid.blocks.x == 0 || grid.blocks.y == 0 || grid.blocks.z == 0) return;
    pass(kernel, to, static_cast<P>(args)...);
    levin::detail::launched(stream, to.where);
  }

  // For kernels that meet what the op refuses; see Note [Errors that kernels find].
  [[nodiscard]] levin::detail::FaultSlot* faults() const { return levin::detail::runtime::faults(stream.device()); }

  // Counters for kernels whose last block finishes; see Note [The last block].
  [[nodiscard]] unsigned* tickets() const { return levin::detail::tickets(stream); }

 private:
  // Of what a launch does, the part that depends on the kernel's parameters.
  template <class... P>
  void pass(void (*kernel)(P...), const GridAt& to, P... args) const {
#if defined(LEVIN_SIMT)
    lib::launch_kernel([=] { kernel(args...); }, to, stream);
#else
    void* arguments[] = {const_cast<void*>(static_cast<const void*>(&args))..., nullptr};
    lib::launch_kernel(reinterpret_cast<const void*>(kernel), to.grid, arguments, stream);
#endif
  }
};

// Device code: `write` fills the slot with what is wrong, unless another thread was first.
template <class F>
__device__ inline void report(levin::detail::FaultSlot* slot, levin::detail::Fault what, const char* op, F&& write) {
  if (atomicExch(&slot->taken, 1u) == 0u) {
    slot->what = what;
    slot->op = op;
    write();
    __threadfence_system();
    *static_cast<volatile unsigned*>(&slot->filled) = 1u;
  }
}
// The index is bad. The caller then skips the access.
__device__ inline void report_index(levin::detail::FaultSlot* slot, const char* op, long long index, long long bound) {
  report(slot, levin::detail::Fault::index_outside, op, [&] {
    slot->index = index;
    slot->bound = bound;
  });
}
// The value is one that the op refuses. The caller's result for it is 0.
__device__ inline void report_value(levin::detail::FaultSlot* slot, levin::detail::Fault what, const char* op,
                                    double value) {
  report(slot, what, op, [&] { slot->value = value; });
}

}  // namespace levin::kernels
