// Instructions of compute capability 9.0a, by PTX: barriers that count arrivals and bytes (mbarrier), tiles that travel
// without threads (TMA), and products of a warpgroup (wgmma). The host compiler gets the same from
// kernels/simt/hopper.h, whose README says what the shim checks. Files that use this are compiled for sm_90a alone.
// cluster.cuh has what blocks of a cluster do together.
//
//   Barrier             an mbarrier in shared memory. init(n): each phase takes n arrivals. arrive(); arrive_expect(b):
//       b more bytes belong to the phase, and one arrival. wait(k) returns when phase k = 0, 1, .. is complete; only
//       the current phase and the one before it may be asked for, and wait(-1) returns at once on a new barrier.
//       fence_barrier_init() and a barrier of the block stand between init and any other use.
//   tma_load(to, map, x, y, barrier)   one thread: the box of `map` from element x of row y on, into shared memory; the
//       bytes of the whole box count for the barrier, elements outside of the matrix are 0 (x and y may be negative).
//       Of a map of many matrices, MapHead after y names the one; so of tma_store.
//   tma_store(map, x, y, from)         one thread: the box at `from` into the matrix; elements outside are not written.
//       bulk_commit() closes a group of stores; bulk_wait_read<N>() waits until the sources of all groups of this
//       thread but the newest N have been read, bulk_wait<N>() until they are written.
//   bulk_load(to, from, bytes, barrier)   one thread: bytes of global memory to shared memory, without a map; they
//       count for the barrier. bulk_store(to, from, bytes) and bulk_reduce_add(to, from, bytes) copy shared memory to
//       global memory, or add it to f32 numbers there, each sum rounded to nearest, subnormal numbers taken for 0; in
//       groups as tma_store. Addresses and bytes are multiples of 16.
//   wait_turn(counter, n), pass_turn(counter)   one thread: waits until blocks have passed the turn n times; hands it
//       on. Copies to memory that turns order are issued between the two: after fence_async_global(), which makes what
//       the copies of earlier turns wrote theirs to add to, and with bulk_wait<0>() at their end: after bulk_wait_read
//       memory may not have their sums. A block waits only for blocks that have begun: Note [Tickets] in
//       kernels/attention/attention_hopper_backward_device.cuh.
//   wgmma<T, N, A, B>(d, a, b, accumulate)   d = a b, plus d where `accumulate`, for T f16 or bf16: a [64, 16], b
//       [N, 16], both in shared memory, by their descriptors; N is 64, 128 or 256 (the shim takes any that the
//       instruction has); all 128 threads of a warpgroup. With t the thread of the warpgroup, w = t / 32,
//       g = t % 32 / 4, q = t % 4: d[i] is row 16 w + g + 8 (i / 2 % 2), column 8 (i / 4) + 2 q + i % 2. a may
//       be four registers: r holds row 16 w + g + 8 (r % 2), columns 8 (r / 2) + 2 q and the next.
//       wgmma_fence() comes before the first product and after each access to d or to a's registers; wgmma_commit()
//       closes a group; wgmma_wait<N>() waits for all groups but the newest N. Until then d and the registers of a may
//       be neither read nor written; wgmma_registers(d) after the wait keeps the compiler from moving uses of d above.
//   descriptor<Major>(p, leading)      of an operand with 128-byte swizzle whose buffer begins at a multiple of 1024
//       bytes: rows of 128 bytes, 8 of them in 1024 bytes. Major::k: a row is 64 k of one line, +32 bytes are the next
//       16 k. Major::mn: a row is 64 lines of one k, +2048 bytes are the next 16 k, and `leading` is the number of
//       bytes from 64 lines to the next 64.
//   fence_async_shared()   between this thread's writes to shared memory and their reads by tma_store or wgmma; then
//       comes a barrier, then the reads. store_shared and stmatrix_x4 are such writes.
//   stmatrix_x4(row, r)    the inverse of ldmatrix_x4.
//   registers_give<R>(), registers_take<R>()   setmaxnreg of a warpgroup.
//   named_barrier<Id>(threads)   bar.sync of that many threads, Id 1 to 15.
//   elect()   true for one lane of the warp, always the same.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/device/mma.cuh"
#include "kernels/lib/tensor_map.h"
#if !defined(__CUDACC__)
#include "kernels/simt/hopper.h"
#endif

namespace levin::kernels::gpu {

enum class Major : std::uint8_t { k, mn };  // along which an operand's elements lie together

inline constexpr int kAtom = 1024;  // bytes of 8 rows, the unit of the 128-byte swizzle

#if defined(__CUDACC__)

struct alignas(8) Barrier {
  std::uint64_t word;

  __device__ __forceinline__ void init(unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(this)), "r"(arrivals) : "memory");
  }
  __device__ __forceinline__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(this)) : "memory");
  }
  __device__ __forceinline__ void arrive_expect(unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(this)), "r"(bytes)
                 : "memory");
  }
  __device__ __forceinline__ void wait(int phase) {
    unsigned done = 0;
    do {
      asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.b32 %0, 1, 0, p;\n}"
                   : "=r"(done)
                   : "r"(shared_address(this)), "r"(unsigned(phase) & 1u)
                   : "memory");
    } while (done == 0);
  }
};

__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void tma_load(void* to, const TensorMap& map, int x, int y, Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          shared_address(to)),
      "l"(&map), "r"(x), "r"(y), "r"(shared_address(&barrier))
      : "memory");
}
__device__ __forceinline__ void tma_load(void* to, const TensorMap& map, int x, int y, MapHead of, Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
      "[%6];" ::"r"(shared_address(to)),
      "l"(&map), "r"(x), "r"(y), "r"(of.head), "r"(of.batch), "r"(shared_address(&barrier))
      : "memory");
}
__device__ __forceinline__ void tma_store(const TensorMap& map, int x, int y, const void* from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map), "r"(x),
               "r"(y), "r"(shared_address(from))
               : "memory");
}
__device__ __forceinline__ void tma_store(const TensorMap& map, int x, int y, MapHead of, const void* from) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::"l"(&map),
               "r"(x), "r"(y), "r"(of.head), "r"(of.batch), "r"(shared_address(from))
               : "memory");
}
__device__ __forceinline__ void bulk_load(void* to, const void* from, unsigned bytes, Barrier& barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(&barrier))
               : "memory");
}
__device__ __forceinline__ void bulk_store(void* to, const void* from, unsigned bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void bulk_reduce_add(float* to, const void* from, unsigned bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(from)), "r"(bytes)
               : "memory");
}
// The one loop that waits by looking.
__device__ __forceinline__ void wait_turn(const int* counter, int value) {
  int count;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(count) : "l"(counter) : "memory");
  } while (count != value);
}
__device__ __forceinline__ void pass_turn(int* counter) {
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(counter) : "memory");
}
__device__ __forceinline__ void fence_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int kGroupsLeft>
__device__ __forceinline__ void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kGroupsLeft) : "memory");
}
template <int kGroupsLeft>
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kGroupsLeft) : "memory");
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// ptxas takes 8 and more groups for 7 without a message.
template <int kGroupsLeft>
requires(kGroupsLeft >= 0 && kGroupsLeft <= 7) __device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroupsLeft) : "memory");
}

template <int kCount>
__device__ __forceinline__ void wgmma_registers(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

template <Major kMajor>
__device__ __forceinline__ std::uint64_t descriptor(const void* p, unsigned leading = 16) {
  constexpr std::uint64_t kFixed = std::uint64_t{1} << 62 | std::uint64_t{kAtom >> 4} << 32;
  return kFixed | std::uint64_t{(leading & 0x3ffffu) >> 4} << 16 | ((shared_address(p) & 0x3ffffu) >> 4);
}

// The operands of an instruction with 32, 64 or 128 registers of d, and what its text calls them.
#define LEVIN_D8(i)                                                                                     \
  "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3]), "+f"(d[(i) + 4]), "+f"(d[(i) + 5]), \
      "+f"(d[(i) + 6]), "+f"(d[(i) + 7])
#define LEVIN_D32(i) LEVIN_D8(i), LEVIN_D8((i) + 8), LEVIN_D8((i) + 16), LEVIN_D8((i) + 24)
#define LEVIN_D64(i) LEVIN_D32(i), LEVIN_D32((i) + 32)
#define LEVIN_D128(i) LEVIN_D64(i), LEVIN_D64((i) + 64)
#define LEVIN_NAMES32                                                                                                  \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30," \
  "%31"
#define LEVIN_NAMES64                                                                                                  \
  LEVIN_NAMES32                                                                                                        \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%" \
  "60,"                                                                                                                \
  "%61,%62,%63"
#define LEVIN_NAMES128                                                                                                \
  LEVIN_NAMES64                                                                                                       \
  ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91," \
  "%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,"  \
  "%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

// r0 and the next: the numbers of the operands after d.
#define LEVIN_WGMMA(n, type, registers, names, r0, r1, r2, r3, r4)                                                   \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #r2 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type \
               "." type " {" names "}, %" #r0 ", %" #r1 ", p, 1, 1, %" #r3 ", %" #r4 ";\n}"                          \
               : registers(0)                                                                                        \
               : "l"(a), "l"(b), "r"(int(accumulate)), "n"(kMajorA == Major::mn), "n"(kMajorB == Major::mn))
#define LEVIN_WGMMA_R(n, type, registers, names, r0, r1, r2, r3, r4, r5, r6)                                         \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #r5 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type \
               "." type " {" names "}, {%" #r0 ", %" #r1 ", %" #r2 ", %" #r3 "}, %" #r4 ", p, 1, 1, %" #r6 ";\n}"    \
               : registers(0)                                                                                        \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(accumulate)), "n"(kMajorB == Major::mn))

template <TensorCoreHalf T, int kN, Major kMajorA = Major::k, Major kMajorB = Major::k>
requires(kN == 64 || kN == 128 || kN == 256) __device__ __forceinline__
    void wgmma(float (&d)[kN / 2], std::uint64_t a, std::uint64_t b, bool accumulate) {
  constexpr bool kIsF16 = std::is_same_v<T, f16>;
  if constexpr (kN == 64) {
    if constexpr (kIsF16) LEVIN_WGMMA(64, "f16", LEVIN_D32, LEVIN_NAMES32, 32, 33, 34, 35, 36);
    if constexpr (!kIsF16) LEVIN_WGMMA(64, "bf16", LEVIN_D32, LEVIN_NAMES32, 32, 33, 34, 35, 36);
  } else if constexpr (kN == 128) {
    if constexpr (kIsF16) LEVIN_WGMMA(128, "f16", LEVIN_D64, LEVIN_NAMES64, 64, 65, 66, 67, 68);
    if constexpr (!kIsF16) LEVIN_WGMMA(128, "bf16", LEVIN_D64, LEVIN_NAMES64, 64, 65, 66, 67, 68);
  } else {
    if constexpr (kIsF16) LEVIN_WGMMA(256, "f16", LEVIN_D128, LEVIN_NAMES128, 128, 129, 130, 131, 132);
    if constexpr (!kIsF16) LEVIN_WGMMA(256, "bf16", LEVIN_D128, LEVIN_NAMES128, 128, 129, 130, 131, 132);
  }
}
template <TensorCoreHalf T, int kN, Major kMajorB = Major::k>
requires(kN == 64 || kN == 128 || kN == 256) __device__ __forceinline__
    void wgmma(float (&d)[kN / 2], const std::uint32_t (&a)[4], std::uint64_t b, bool accumulate) {
  constexpr bool kIsF16 = std::is_same_v<T, f16>;
  if constexpr (kN == 64) {
    if constexpr (kIsF16) LEVIN_WGMMA_R(64, "f16", LEVIN_D32, LEVIN_NAMES32, 32, 33, 34, 35, 36, 37, 38);
    if constexpr (!kIsF16) LEVIN_WGMMA_R(64, "bf16", LEVIN_D32, LEVIN_NAMES32, 32, 33, 34, 35, 36, 37, 38);
  } else if constexpr (kN == 128) {
    if constexpr (kIsF16) LEVIN_WGMMA_R(128, "f16", LEVIN_D64, LEVIN_NAMES64, 64, 65, 66, 67, 68, 69, 70);
    if constexpr (!kIsF16) LEVIN_WGMMA_R(128, "bf16", LEVIN_D64, LEVIN_NAMES64, 64, 65, 66, 67, 68, 69, 70);
  } else {
    if constexpr (kIsF16) LEVIN_WGMMA_R(256, "f16", LEVIN_D128, LEVIN_NAMES128, 128, 129, 130, 131, 132, 133, 134);
    if constexpr (!kIsF16) LEVIN_WGMMA_R(256, "bf16", LEVIN_D128, LEVIN_NAMES128, 128, 129, 130, 131, 132, 133, 134);
  }
}
#undef LEVIN_WGMMA
#undef LEVIN_WGMMA_R
#undef LEVIN_NAMES32
#undef LEVIN_NAMES64
#undef LEVIN_NAMES128
#undef LEVIN_D8
#undef LEVIN_D32
#undef LEVIN_D64
#undef LEVIN_D128

__device__ __forceinline__ void stmatrix_x4(void* row, const std::uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}
template <class T>
requires(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16) __device__ __forceinline__
    void store_shared(T* to, std::type_identity_t<T> value) {
  *to = value;
}

template <int kRegisters>
requires(kRegisters >= 24 && kRegisters <= 256 && kRegisters % 8 == 0) __device__ __forceinline__
    void registers_give() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
requires(kRegisters >= 24 && kRegisters <= 256 && kRegisters % 8 == 0) __device__ __forceinline__
    void registers_take() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kId>
requires(kId >= 1 && kId <= 15) __device__ __forceinline__ void named_barrier(int threads) {
  asm volatile("bar.sync %0, %1;" ::"n"(kId), "r"(threads) : "memory");
}

__device__ __forceinline__ bool elect() {
  unsigned chosen;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.b32 %0, 1, 0, p;\n}" : "=r"(chosen));
  return chosen != 0;
}

#else

using simt::Barrier;
using simt::bulk_commit;
using simt::bulk_load;
using simt::elect;
using simt::fence_async_global;
using simt::fence_async_shared;
using simt::fence_barrier_init;
using simt::pass_turn;
using simt::shared_address;
using simt::stmatrix_x4;
using simt::store_shared;
using simt::wait_turn;
using simt::wgmma_commit;
using simt::wgmma_fence;

inline void tma_load(void* to, const TensorMap& map, int x, int y, Barrier& barrier,
                     simt::Site at = simt::Site::current()) {
  simt::tma_load(to, map, {x, y, {}, false}, barrier, at);
}
inline void tma_load(void* to, const TensorMap& map, int x, int y, MapHead of, Barrier& barrier,
                     simt::Site at = simt::Site::current()) {
  simt::tma_load(to, map, {x, y, of, true}, barrier, at);
}
inline void tma_store(const TensorMap& map, int x, int y, const void* from, simt::Site at = simt::Site::current()) {
  simt::tma_store(map, {x, y, {}, false}, from, at);
}
inline void tma_store(const TensorMap& map, int x, int y, MapHead of, const void* from,
                      simt::Site at = simt::Site::current()) {
  simt::tma_store(map, {x, y, of, true}, from, at);
}
inline void bulk_store(void* to, const void* from, unsigned bytes, simt::Site at = simt::Site::current()) {
  simt::bulk_store(to, from, bytes, simt::BulkStore::overwrite, at);
}
inline void bulk_reduce_add(float* to, const void* from, unsigned bytes, simt::Site at = simt::Site::current()) {
  simt::bulk_store(to, from, bytes, simt::BulkStore::add_f32, at);
}
template <int kGroupsLeft>
inline void bulk_wait(simt::Site at = simt::Site::current()) {
  simt::bulk_wait(kGroupsLeft, false, at);
}
template <int kGroupsLeft>
inline void bulk_wait_read(simt::Site at = simt::Site::current()) {
  simt::bulk_wait(kGroupsLeft, true, at);
}
template <int kGroupsLeft>
requires(kGroupsLeft >= 0 && kGroupsLeft <= 7) inline void wgmma_wait(simt::Site at = simt::Site::current()) {
  simt::wgmma_wait(kGroupsLeft, at);
}
template <int kCount>
inline void wgmma_registers(float (&)[kCount]) {}
template <Major kMajor>
inline std::uint64_t descriptor(const void* p, unsigned leading = 16, simt::Site at = simt::Site::current()) {
  return simt::descriptor(p, leading, kAtom, Swizzle::bytes128, at);
}
template <TensorCoreHalf T, int kN, Major kMajorA = Major::k, Major kMajorB = Major::k>
requires(kN % 8 == 0 && kN >= 8 && kN <= 256) inline void wgmma(float (&d)[kN / 2], std::uint64_t a, std::uint64_t b,
                                                                bool accumulate,
                                                                simt::Site at = simt::Site::current()) {
  simt::wgmma({.is_f16 = std::is_same_v<T, f16>,
               .n = kN,
               .a_along_mn = kMajorA == Major::mn,
               .b_along_mn = kMajorB == Major::mn,
               .a = a,
               .b = b,
               .accumulate = accumulate,
               .at = at},
              d, nullptr);
}
template <TensorCoreHalf T, int kN, Major kMajorB = Major::k>
requires(kN % 8 == 0 && kN >= 8 && kN <= 256) inline void wgmma(float (&d)[kN / 2], const std::uint32_t (&a)[4],
                                                                std::uint64_t b, bool accumulate,
                                                                simt::Site at = simt::Site::current()) {
  simt::wgmma({.is_f16 = std::is_same_v<T, f16>,
               .n = kN,
               .a_in_registers = true,
               .b_along_mn = kMajorB == Major::mn,
               .b = b,
               .accumulate = accumulate,
               .at = at},
              d, a);
}
template <int kRegisters>
requires(kRegisters >= 24 && kRegisters <= 256 &&
         kRegisters % 8 == 0) inline void registers_give(simt::Site at = simt::Site::current()) {
  simt::set_registers(kRegisters, false, at);
}
template <int kRegisters>
requires(kRegisters >= 24 && kRegisters <= 256 &&
         kRegisters % 8 == 0) inline void registers_take(simt::Site at = simt::Site::current()) {
  simt::set_registers(kRegisters, true, at);
}
template <int kId>
requires(kId >= 1 && kId <= 15) inline void named_barrier(int threads, simt::Site at = simt::Site::current()) {
  simt::named_barrier(kId, threads, at);
}

#endif

// The first address of a block's dynamic shared memory that is a multiple of kAtom.
__device__ __forceinline__ unsigned char* atom_aligned(unsigned char* p) {
  return p + (kAtom - shared_address(p) % kAtom) % kAtom;
}

}  // namespace levin::kernels::gpu
