// Clusters of blocks that use each other's shared memory, and launches that overlap: instructions of compute capability
// 9.0, by PTX. The host compiler gets the same from kernels/simt/hopper.h. Grid::cluster (kernels/executor/gpu.h) asks
// for clusters, Grid::overlap for launches that overlap.
//
//   cluster_rank(), cluster_size()   the block's number in its cluster, and the number of blocks; 0 and 1 without.
//   cluster_arrive(), cluster_wait()   the barrier of all threads of the cluster, in two parts; threads that have ended
//       do not count. All threads of a warp call. cluster_wait() returns when all threads have arrived; what they wrote
//       before cluster_arrive() is there then. cluster_arrive_relaxed() is cheaper: it passes on what has been read,
//       waited for and initialised, and no memory that threads wrote. cluster_sync() is arrive and wait.
//   A block must be known to have begun before another uses its memory, and must not end before all others have done
//       so. A kernel begins with the initialisation of its barriers, fence_barrier_init(), cluster_arrive_relaxed() and
//       cluster_wait(), and ends with cluster_arrive_relaxed() and cluster_wait().
//   remote(p, rank)   what lies in the memory of block `rank` where p lies in this block's dynamic shared memory:
//       load() and store(value) for values of 4, 8 or 16 bytes, which cluster_arrive() and cluster_wait() order;
//       arrive() for a Barrier. That arrival orders what has been read before memory is used again; it does not pass on
//       memory that threads wrote. No block waits for a barrier of another.
//   store_remote(to, rank, value, barrier)   value (4, 8 or 16 bytes) goes to `to` in block `rank`, where its bytes
//       count for that block's `barrier`; both are named by their places in this block. The threads of that block read
//       it after a wait for the phase, for which that block itself expects the bytes.
//   tma_load(to, map, x, y, barrier, ranks)   one thread of one block: the box goes to `to` in each block of `ranks`,
//       and counts for the `barrier` of each. Each expects the whole box itself.
//   dependents_may_start()   a launch that follows (Overlap) may begin when all blocks have called or ended.
//       wait_for_prerequisites() returns when all work ahead of the launch has ended and its writes are there. In a
//       launch that follows each block calls it. No thread touches memory that earlier work writes, or still reads,
//       before it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/device/hopper.cuh"

namespace levin::kernels::gpu {

// What one instruction moves.
template <class T>
concept RemoteValue = std::is_trivially_copyable_v<T> &&(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);

struct Ranks {
  unsigned bits;  // bit r: the block of rank r
};

#if defined(__CUDACC__)

__device__ __forceinline__ int cluster_rank() {
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ int cluster_size() {
  int size;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

__device__ __forceinline__ unsigned remote_address(const void* p, int rank) {
  unsigned address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(p)), "r"(rank));
  return address;
}

template <class T>
class Remote {
 public:
  __device__ __forceinline__ explicit Remote(unsigned address) : address_(address) {}
  [[nodiscard]] __device__ __forceinline__ T load() const requires RemoteValue<T> {
    std::uint32_t words[sizeof(T) / 4];
    if constexpr (sizeof(T) == 4) {
      asm volatile("ld.shared::cluster.b32 %0, [%1];" : "=r"(words[0]) : "r"(address_) : "memory");
    } else if constexpr (sizeof(T) == 8) {
      asm volatile("ld.shared::cluster.v2.b32 {%0, %1}, [%2];"
                   : "=r"(words[0]), "=r"(words[1])
                   : "r"(address_)
                   : "memory");
    } else {
      asm volatile("ld.shared::cluster.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                   : "r"(address_)
                   : "memory");
    }
    T value;
    std::memcpy(&value, words, sizeof value);
    return value;
  }
  __device__ __forceinline__ void store(T value) const requires RemoteValue<T> {
    std::uint32_t words[sizeof(T) / 4];
    std::memcpy(words, &value, sizeof value);
    if constexpr (sizeof(T) == 4) {
      asm volatile("st.shared::cluster.b32 [%0], %1;" ::"r"(address_), "r"(words[0]) : "memory");
    } else if constexpr (sizeof(T) == 8) {
      asm volatile("st.shared::cluster.v2.b32 [%0], {%1, %2};" ::"r"(address_), "r"(words[0]), "r"(words[1])
                   : "memory");
    } else {
      asm volatile("st.shared::cluster.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address_), "r"(words[0]), "r"(words[1]),
                   "r"(words[2]), "r"(words[3])
                   : "memory");
    }
  }
  // The default form, without .release.cluster, which would wait for all memory of the thread.
  __device__ __forceinline__ void arrive() const requires std::is_same_v<T, Barrier> {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(address_) : "memory");
  }

 private:
  unsigned address_;  // of the cluster's shared window
};
template <class T>
__device__ __forceinline__ Remote<T> remote(T* p, int rank) {
  return Remote<T>(remote_address(p, rank));
}

template <RemoteValue T>
__device__ __forceinline__ void store_remote(T* to, int rank, std::type_identity_t<T> value, Barrier& barrier) {
  const unsigned address = remote_address(to, rank), counts = remote_address(&barrier, rank);
  std::uint32_t words[sizeof(T) / 4];
  std::memcpy(words, &value, sizeof value);
  if constexpr (sizeof(T) == 4) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(address),
                 "r"(words[0]), "r"(counts)
                 : "memory");
  } else if constexpr (sizeof(T) == 8) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(address),
                 "r"(words[0]), "r"(words[1]), "r"(counts)
                 : "memory");
  } else {
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(address),
        "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]), "r"(counts)
        : "memory");
  }
}

__device__ __forceinline__ void tma_load(void* to, const TensorMap& map, int x, int y, Barrier& barrier, Ranks ranks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, "
      "%3}], [%4], %5;" ::"r"(shared_address(to)),
      "l"(&map), "r"(x), "r"(y), "r"(shared_address(&barrier)), "h"(std::uint16_t(ranks.bits))
      : "memory");
}
__device__ __forceinline__ void tma_load(void* to, const TensorMap& map, int x, int y, MapHead of, Barrier& barrier,
                                         Ranks ranks) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, "
      "%3, %4, %5}], [%6], %7;" ::"r"(shared_address(to)),
      "l"(&map), "r"(x), "r"(y), "r"(of.head), "r"(of.batch), "r"(shared_address(&barrier)),
      "h"(std::uint16_t(ranks.bits))
      : "memory");
}

__device__ __forceinline__ void dependents_may_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ __forceinline__ void wait_for_prerequisites() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

#else

using simt::cluster_arrive;
using simt::cluster_arrive_relaxed;
using simt::cluster_rank;
using simt::cluster_size;
using simt::cluster_wait;
using simt::dependents_may_start;
using simt::wait_for_prerequisites;

inline void cluster_sync(simt::Site at = simt::Site::current()) {
  cluster_arrive(at);
  cluster_wait(at);
}

template <class T>
class Remote {
 public:
  Remote(T* p, int rank) : p_(p), rank_(rank) {}
  [[nodiscard]] T load(simt::Site at = simt::Site::current()) const requires RemoteValue<T> {
    T value;
    simt::load_remote(p_, sizeof value, rank_, &value, at);
    return value;
  }
  void store(T value, simt::Site at = simt::Site::current()) const requires RemoteValue<T> {
    simt::store_remote(p_, sizeof value, rank_, &value, at);
  }
  void arrive(simt::Site at = simt::Site::current()) const requires std::is_same_v<T, Barrier> {
    simt::arrive_remote(*p_, rank_, at);
  }

 private:
  T* p_;  // in this block
  int rank_;
};
template <class T>
inline Remote<T> remote(T* p, int rank, simt::Site at = simt::Site::current()) {
  return Remote<T>(p, simt::rank_in_cluster(rank, at));
}
template <RemoteValue T>
inline void store_remote(T* to, int rank, std::type_identity_t<T> value, Barrier& barrier,
                         simt::Site at = simt::Site::current()) {
  simt::store_remote_async(to, sizeof value, rank, &value, barrier, at);
}
inline void tma_load(void* to, const TensorMap& map, int x, int y, Barrier& barrier, Ranks ranks,
                     simt::Site at = simt::Site::current()) {
  simt::tma_load(to, map, {x, y, {}, false}, barrier, ranks.bits, at);
}
inline void tma_load(void* to, const TensorMap& map, int x, int y, MapHead of, Barrier& barrier, Ranks ranks,
                     simt::Site at = simt::Site::current()) {
  simt::tma_load(to, map, {x, y, of, true}, barrier, ranks.bits, at);
}

#endif

}  // namespace levin::kernels::gpu
