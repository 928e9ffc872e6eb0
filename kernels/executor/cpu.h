// The CPU executor: every CPU kernel takes a `const Cpu&` first. It says which x86 level the kernel runs at, and it is
// the one way to use more than one core.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace levin {
struct f16;
struct bf16;
}  // namespace levin

namespace levin::kernels {

// x86-64 (SSE2), x86-64-v3 (AVX2, FMA), x86-64-v4 (AVX-512); other CPUs have `base` alone.
enum class CpuLevel : uint8_t { base, v3, v4 };

// The highest level this CPU and its operating system run; found once.
[[nodiscard]] CpuLevel cpu_level();
// What a CPU of level v4 multiplies bf16 numbers with: f32 after conversion, AVX512_BF16 (vectors of pairs), or AMX
// (tiles of pairs), where the operating system lets it.
enum class Bf16Products : uint8_t { f32, pairs, tiles };
// Whether this CPU has the instructions; found once.
[[nodiscard]] bool cpu_runs(Bf16Products by);
// The fastest that this CPU runs.
[[nodiscard]] Bf16Products cpu_bf16_products();
// How many cache lines one set of the L1 data cache holds, 8 where the system does not tell; found once.
[[nodiscard]] int cpu_l1_ways();
[[nodiscard]] const char* name(CpuLevel level);

// Cores a kernel may use, the caller included; at start LEVIN_NUM_THREADS or OMP_NUM_THREADS, else those of the
// affinity mask; n <= 0: the mask. At any time: a running loop keeps the number it started with. Results never depend
// on it.
void set_num_threads(int n);
[[nodiscard]] int num_threads();

namespace lib {
using ChunkBody = void (*)(void* context, int64_t begin, int64_t end);
// Calls body for every chunk [i * grain, min(n, (i + 1) * grain)), on up to num_threads() threads, in no fixed order.
// Rethrows the first exception; chunks not yet started are then skipped. Needs n >= 1 and grain >= 1.
void parallel_chunks(int64_t n, int64_t grain, ChunkBody body, void* context);
}  // namespace lib

struct Cpu {
  CpuLevel level = cpu_level();
  Bf16Products bf16_products = cpu_bf16_products();  // may be used at level v4
  int l1_ways = cpu_l1_ways();                       // decides what is copied, and no bits

  // body(begin, end) over [0, n) in chunks of `grain`, the last one shorter. Chunk boundaries depend on n and grain
  // only, also where one thread runs them all: a sum that writes one partial a chunk and adds the partials in chunk
  // order has the same bits on any number of threads. One chunk or less costs a plain call. Nesting is fine; an
  // exception of body reaches the caller. Choose a grain worth 10 us or more.
  template <class F>
  void parallel_for(int64_t n, int64_t grain, F&& body) const {
    if (n <= 0) return;
    if (grain < 1) grain = 1;
    if (n <= grain) {
      body(int64_t{0}, n);
      return;
    }
    using Body = std::remove_reference_t<F>;
    lib::parallel_chunks(
        n, grain, [](void* context, int64_t begin, int64_t end) { (*static_cast<Body*>(context))(begin, end); },
        const_cast<void*>(static_cast<const void*>(std::addressof(body))));
  }
};

// Note [Levels and types]
// A kernel's v4 code serves f32, the type that nets compute in; calls that involve f64 or 16-bit floats, or no f32 at
// all, run its v3 code there, which is as fast on many CPUs and keeps the library a third smaller. gemm, conv,
// attention and linear algebra have all levels for all types: their tiles use the wider registers fully. Rows of
// softmax, norms and sums (pick_halves.h) and sparse products (pick_float.h) have v4 code for 16-bit floats, too: one
// instruction widens a register of them. Stores past the caches are of bytes, and as wide at v4 for all types.
template <class T>
using PointedTo = std::remove_cv_t<std::remove_pointer_t<std::remove_cvref_t<T>>>;
template <class T, class... Any>
inline constexpr bool kIsOneOf = (std::is_same_v<PointedTo<T>, Any> || ...);
template <class... T>
inline constexpr bool kRunsAtV4 = (kIsOneOf<T, float> || ...) && !(kIsOneOf<T, double, f16, bf16> || ...);

}  // namespace levin::kernels
