// Where item u of a broadcast, strided operand lies: index arithmetic that kernels take by value.
#pragma once

#include <cstdint>

#include "kernels/device/language.h"
#include "levin/shape.h"

namespace levin::kernels {

// u / divisor for 0 <= u < 2^63 by one high multiplication: of 32 bits where u has no more, as it has in all but the
// largest tensors, since one of 64 bits takes several times the instructions. Source: Granlund, Montgomery, "Division
// by invariant integers using multiplication", PLDI 1994, figure 4.1, for words of 64 and of 32 bits.
struct Divider {
  std::uint64_t divisor = 1, magic = 1;
  std::uint32_t magic32 = 1;
  unsigned shift = 0;
  Divider() = default;
  explicit Divider(std::int64_t d) : divisor(static_cast<std::uint64_t>(d)) {
    while ((std::uint64_t{1} << shift) < divisor) ++shift;
    const auto rest = static_cast<unsigned __int128>((std::uint64_t{1} << shift) - divisor);
    magic = static_cast<std::uint64_t>((rest << 64) / divisor) + 1;
    // A divisor above 2^32 gives 0 by the shift alone.
    magic32 = shift > 32 ? 0 : static_cast<std::uint32_t>(static_cast<std::uint64_t>((rest << 32) / divisor) + 1);
  }
  __device__ std::int64_t quotient(std::int64_t u) const {
    const auto n = static_cast<std::uint64_t>(u);
    const auto low = static_cast<std::uint32_t>(n);
    if (low == n) return static_cast<std::int64_t>((std::uint64_t{__umulhi(magic32, low)} + low) >> shift);
    return static_cast<std::int64_t>((__umul64hi(magic, n) + n) >> shift);
  }
};

// Steps of N operands over a common shape, innermost dimension last. A one-dimensional shape costs no division.
template <int N>
struct Strided {
  int rank = 1;
  Divider sizes[kMaxRank];
  std::int64_t steps[N][kMaxRank] = {};

  // The offsets of item u, in the unit of the steps.
  __device__ void offsets(std::int64_t u, std::int64_t (&offset)[N]) const {
    for (int k = 0; k < N; ++k) offset[k] = 0;
#pragma unroll 1  // nvcc makes four copies of some forty instructions, at each of a kernel's calls
    for (int d = rank - 1; d > 0; --d) {
      const std::int64_t q = sizes[d].quotient(u);
      const std::int64_t at = u - q * static_cast<std::int64_t>(sizes[d].divisor);
      for (int k = 0; k < N; ++k) offset[k] += at * steps[k][d];
      u = q;
    }
    for (int k = 0; k < N; ++k) offset[k] += u * steps[k][0];
  }
};

}  // namespace levin::kernels
