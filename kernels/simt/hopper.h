// The instructions of kernels/device/hopper.cuh for the host compiler; README.md says what is checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/lib/tensor_map.h"
#include "kernels/simt/simt.h"

namespace levin::simt {

// An mbarrier; its word names a record of the block.
struct alignas(8) Barrier {
  std::uint64_t word;

  void init(unsigned arrivals, Site at = Site::current());
  void arrive(Site at = Site::current());
  void arrive_expect(unsigned bytes, Site at = Site::current());
  void wait(int phase, Site at = Site::current());
};

void fence_barrier_init(Site at = Site::current());
void fence_async_shared(Site at = Site::current());

// Where a box begins: the instruction names a head where its map has heads.
struct BoxAt {
  int x, y;
  kernels::MapHead of;
  bool of_heads;
};
void tma_load(void* to, const kernels::TensorMap& map, BoxAt box, Barrier& barrier, Site at);
// `ranks`: bit r stands for the block of rank r.
void tma_load(void* to, const kernels::TensorMap& map, BoxAt box, Barrier& barrier, unsigned ranks, Site at);
void tma_store(const kernels::TensorMap& map, BoxAt box, const void* from, Site at);
void bulk_load(void* to, const void* from, unsigned bytes, Barrier& barrier, Site at = Site::current());
enum class BulkStore : std::uint8_t { overwrite, add_f32 };
void bulk_store(void* to, const void* from, unsigned bytes, BulkStore how, Site at);
void wait_turn(const int* counter, int value, Site at = Site::current());
void pass_turn(int* counter, Site at = Site::current());
void fence_async_global(Site at = Site::current());
void bulk_commit(Site at = Site::current());
void bulk_wait(int groups_left, bool read, Site at);

// Bytes from a multiple of 1024 at or below the block's dynamic shared memory, as an address of the shared window.
[[nodiscard]] unsigned shared_address(const void* p);
// A descriptor's fields, each in bytes.
[[nodiscard]] std::uint64_t descriptor(const void* p, unsigned leading, unsigned stride, kernels::Swizzle swizzle,
                                       Site at = Site::current());

struct ProductCall {
  bool is_f16 = false;
  int n = 0;
  bool a_in_registers = false, a_along_mn = false, b_along_mn = false;
  std::uint64_t a = 0, b = 0;
  bool accumulate = false;
  Site at;
};
void wgmma(const ProductCall& call, float* d, const std::uint32_t* a_registers);
void wgmma_fence(Site at = Site::current());
void wgmma_commit(Site at = Site::current());
void wgmma_wait(int groups_left, Site at);

void stmatrix_x4(void* row, const std::uint32_t (&r)[4], Site at = Site::current());
// Before the store itself: the range is one that the async proxy may read.
void will_store(void* to, std::size_t bytes, Site at);
template <class T>
requires(sizeof(T) == 4 || sizeof(T) == 8 ||
         sizeof(T) == 16) inline void store_shared(T* to, std::type_identity_t<T> value, Site at = Site::current()) {
  will_store(to, sizeof(T), at);
  *to = value;
}

// ---- Clusters
[[nodiscard]] int cluster_rank();
[[nodiscard]] int cluster_size();
void cluster_arrive(Site at = Site::current());
void cluster_arrive_relaxed(Site at = Site::current());
void cluster_wait(Site at = Site::current());
// The rank; InternalError where the cluster has no such block.
[[nodiscard]] int rank_in_cluster(int rank, Site at);
// `from`, `to` and `barrier` name a place of the own block's memory, which stands for the same place of the other's.
void load_remote(const void* from, std::size_t bytes, int rank, void* value, Site at);
void store_remote(void* to, std::size_t bytes, int rank, const void* value, Site at);
void store_remote_async(void* to, std::size_t bytes, int rank, const void* value, Barrier& barrier, Site at);
void arrive_remote(Barrier& barrier, int rank, Site at);

// ---- Launches that overlap
void dependents_may_start();
void wait_for_prerequisites(Site at = Site::current());

void set_registers(int registers, bool take, Site at);
void named_barrier(int id, int threads, Site at);
[[nodiscard]] bool elect(Site at = Site::current());

}  // namespace levin::simt
