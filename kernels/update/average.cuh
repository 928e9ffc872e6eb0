// Running averages of lists of arrays, in one pass: to = decay to + (1 - decay) from.
//   average(on, std::span<const Average<From, To>>, double decay)
//     From is To (f32, f64, f16, bf16), or of 16 bits and To float; the arithmetic is Accum<To>'s, rounded once.
// bucket_device.h has it for devices.
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_AVERAGE_CUH
#define LEVIN_KERNELS_AVERAGE_CUH

#include <cstdint>
#include <span>

#include "kernels/executor/cpu.h"
#include "kernels/executor/hd.h"
#include "kernels/executor/pieces.h"
#include "levin/dtype.h"

namespace levin::kernels {

template <class From, class To>
struct Average {
  const From* from;
  To* to;
  std::int64_t n;
};

}  // namespace levin::kernels

#define LEVIN_LEVEL_FILE "kernels/update/average.cuh"
#include "kernels/executor/each_level.h"

namespace levin::kernels::cpu {
LEVIN_PICK(average)
}  // namespace levin::kernels::cpu

#endif  // LEVIN_KERNELS_AVERAGE_CUH
#else

namespace levin::kernels::cpu::LEVIN_LEVEL {

template <class From, class To>
void average(const Cpu& on, std::span<const Average<From, To>> list, double decay) {
  using A = Accum<To>;
  constexpr std::int64_t kGrain = 16384;
  const A keep = static_cast<A>(decay), take = static_cast<A>(1 - decay);
  const auto count = [](const Average<From, To>& a) { return a.n; };
  constexpr std::int64_t kBytes = sizeof(From) + 2 * sizeof(To);
  parallel_pieces(on, list, kGrain, kBytes, count,
                  [&](const Average<From, To>& a, std::int64_t begin, std::int64_t end) {
#pragma GCC ivdep
                    for (std::int64_t i = begin; i < end; ++i) a.to[i] = To(keep * A(a.to[i]) + take * A(a.from[i]));
                  });
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
