// Running logarithms of sums of exponentials, of dense rows:
//
//   log_of_sum(a, b)                                     log(e^a + e^b) in double; NaN where one of them is
//   running_log_sums(on, const T* x, T* y, rows, n)      y[r, k] = log(e^x[r, 0] + ... + e^x[r, k]), summed in double
//                                                        and rounded once; T: float, double, f16 or bf16
//
// Note [Running sums of exponentials]
// log_of_sum, one after another, waits more than a hundred cycles a number. So a row keeps its sum as s e^m, m the
// largest number so far, and a stretch of numbers takes one m: their exponentials and the logarithms of their running
// sums are vector code, and an addition is all that waits for the one before it. No sum of a stretch may underflow or
// be far below e^m, whose logarithm would lose digits: where the first is below e^(m - kFar), or a number is NaN or
// infinite, log_of_sum joins the numbers of the stretch. A row's bits do not depend on other rows.
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

}  // namespace levin::kernels

#define LEVIN_LEVEL_FILE "kernels/reduce/running_log_sums.cuh"
#include "kernels/executor/each_level.h"

namespace levin::kernels::cpu {
LEVIN_PICK_EVERY(running_log_sums)
}  // namespace levin::kernels::cpu
#endif
#else
namespace levin::kernels::cpu::LEVIN_LEVEL {

// The sum of a row's numbers so far is scale * e^most.
class RunningLogSum {
 public:
  static constexpr int64_t kStretch = 32;

  // The numbers of a stretch, of which those behind `count` are -inf, become the logarithms of the running sums.
  void take(double (&x)[kStretch], int64_t count) {
    const double first = std::max(most_, x[0]);
    double top = -kInf;
    int64_t odd = 0;
    for (int64_t k = 0; k < kStretch; ++k) {
      top = x[k] > top ? x[k] : top;
      odd |= x[k] < kInf ? 0 : 1;  // NaN is not
    }
    top = std::max(top, most_);
    if (odd != 0 || !(top - first <= kFar)) return join(x, count);  // a difference of infinities is NaN
    double sum = scale_ * math::exp_nonpositive(most_ - top);
    for (int64_t k = 0; k < kStretch; ++k) x[k] = math::exp_nonpositive(x[k] - top);
    for (int64_t k = 0; k < count; ++k) x[k] = sum += x[k];
    for (int64_t k = 0; k < kStretch; ++k) x[k] = top + math::log(x[k]);
    most_ = top;
    scale_ = sum;
  }

 private:
  static constexpr double kInf = math::detail::Limits<double>::inf;
  static constexpr double kFar = 32;

  void join(double (&x)[kStretch], int64_t count) {
    double sum = scale_ > 0 ? most_ + math::log(scale_) : most_;
    for (int64_t k = 0; k < count; ++k) x[k] = sum = log_of_sum(sum, x[k]);
    most_ = sum;
    scale_ = 1;
  }

  double most_ = -kInf, scale_ = 0;
};

template <class T>
void running_log_sums(const Cpu&, const T* x, T* y, int64_t rows, int64_t n) {
  constexpr int64_t kStretch = RunningLogSum::kStretch;
  for (int64_t r = 0; r < rows; ++r, x += n, y += n) {
    RunningLogSum sum;
    alignas(64) double numbers[kStretch];
    for (int64_t first = 0; first < n; first += kStretch) {
      const int64_t count = std::min(kStretch, n - first);
      for (int64_t k = 0; k < count; ++k) numbers[k] = double(x[first + k]);
      for (int64_t k = count; k < kStretch; ++k) numbers[k] = -math::detail::Limits<double>::inf;
      sum.take(numbers, count);
      for (int64_t k = 0; k < count; ++k) y[first + k] = T(numbers[k]);
    }
  }
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
