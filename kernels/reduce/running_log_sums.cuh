// Running logarithms of sums of exponentials, of dense rows:
//
//   log_of_sum(a, b)                                     log(e^a + e^b) in double; NaN where one of them is
//   running_log_sums(on, const T* x, T* y, rows, n)      y[r, k] = log(e^x[r, 0] + ... + e^x[r, k]), joined in double
//                                                        and rounded once; T: float, double, f16 or bf16
//
// A join waits for the one before it, for more than a hundred cycles, and joins of different rows do not wait for each
// other. So rows are walked side by side by vector code. A stretch of each comes from memory at a time: rows whose
// starts are a power of two apart share the places of a cache.
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_RUNNING_LOG_SUMS_CUH
#define LEVIN_KERNELS_RUNNING_LOG_SUMS_CUH
#include <algorithm>
#include <cstdint>

#include "kernels/executor/cpu.h"
#include "kernels/executor/hd.h"
#include "kernels/math/math.h"
#include "levin/dtype.h"

namespace levin::kernels {

LEVIN_HD double log_of_sum(double a, double b) {
  constexpr double inf = math::detail::Limits<double>::inf;
  const bool first = (a >= b) | (a != a);  // a NaN is `high`
  const double high = first ? a : b, low = first ? b : a;
  // An infinite number must not be subtracted from itself.
  double sum = high + math::log1p(math::exp_nonpositive(low - high));
  sum = low == -inf ? high : sum;
  return high == inf ? high : sum;
}

namespace cpu {
inline constexpr std::int64_t kLogRows = 8;  // side by side
}  // namespace cpu
}  // namespace levin::kernels

#define LEVIN_LEVEL_FILE "kernels/reduce/running_log_sums.cuh"
#include "kernels/executor/each_level.h"

namespace levin::kernels::cpu {
LEVIN_PICK_EVERY(running_log_sums)
}  // namespace levin::kernels::cpu
#endif
#else
namespace levin::kernels::cpu::LEVIN_LEVEL {

// sum and term become log(e^sum + e^term), of each row.
inline void join_rows(double* __restrict sum, double* __restrict term) {
  for (int64_t j = 0; j < kLogRows; ++j) sum[j] = log_of_sum(sum[j], term[j]);
  for (int64_t j = 0; j < kLogRows; ++j) term[j] = sum[j];
}

template <class T>
void running_log_sums(const Cpu&, const T* x, T* y, int64_t rows, int64_t n) {
  constexpr int64_t kStretch = 16;
  for (int64_t r = 0; r < rows; r += kLogRows) {
    const int64_t there = std::min(kLogRows, rows - r);
    alignas(64) double sum[kLogRows], term[kStretch][kLogRows] = {};
    for (int64_t j = 0; j < kLogRows; ++j) sum[j] = -math::detail::Limits<double>::inf;
    for (int64_t first = 0; first < n; first += kStretch) {
      const int64_t count = std::min(kStretch, n - first);
      for (int64_t j = 0; j < there; ++j)
        for (int64_t k = 0; k < count; ++k) term[k][j] = double(x[(r + j) * n + first + k]);
      for (int64_t k = 0; k < count; ++k) join_rows(sum, term[k]);
      for (int64_t j = 0; j < there; ++j)
        for (int64_t k = 0; k < count; ++k) y[(r + j) * n + first + k] = T(term[k][j]);
    }
  }
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
