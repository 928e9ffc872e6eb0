#include "kernels/reduce/running_log_sums.cuh"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "kernels/executor/cpu.h"
#include "kernels/executor/rows_test.h"
#include "levin/dtype.h"

namespace levin::kernels {
namespace {

using test::levels;

long double log_of_two(long double a, long double b) {
  if (std::isnan(a) || std::isnan(b)) return a + b;
  if (std::isinf(a) && a == b) return a;
  return std::max(a, b) + std::log1p(std::exp(-std::abs(a - b)));
}

// How far y may be from what is wanted: the rounding of T and that of n joins in double.
template <class T>
bool is_near(T y, long double want, std::int64_t n) {
  if (std::isnan(want)) return std::isnan(double(y));
  if (std::isinf(want) || std::abs(want) > std::numeric_limits<float>::max())
    return double(y) == double(T(double(want)));
  const double epsilon = sizeof(T) == 8            ? 0x1p-52
                         : sizeof(T) == 4          ? 0x1p-23
                         : std::is_same_v<T, bf16> ? 0x1p-7
                                                   : 0x1p-10;
  const long double joins = 4 * 0x1p-52L * static_cast<long double>(n) * (1 + std::abs(want));
  return std::abs(static_cast<long double>(double(y)) - want) <= epsilon * std::abs(want) + joins;
}

}  // namespace

TEST_CASE_TEMPLATE("running logarithms of sums have the same bits however many rows there are, at every level", T,
                   float, double, f16, bf16) {
  constexpr double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> odd{-inf, -inf, 3, -1000, 800, -inf, 2, inf, 1, -inf, nan, 1};
  for (const CpuLevel level : levels()) {
    INFO("level ", std::string(name(level)));
    for (const std::int64_t rows : {1, 2, 7, 8, 9, 17}) {
      for (const std::int64_t n : {1, 3, 15, 31, 32, 33, 70}) {
        CAPTURE(rows);
        CAPTURE(n);
        std::vector<T> x = test::numbers<T>(rows * n, 4, std::uint32_t(rows * 64 + n)), y(x.size()), one(x.size());
        for (std::int64_t k = 0; k < n && rows > 2; ++k)  // one row of edges
          x[std::size_t(2 * n + k)] = T(odd[std::size_t(k) % odd.size()]);
        cpu::running_log_sums(Cpu{level}, x.data(), y.data(), rows, n);
        std::int64_t wrong = 0, apart = 0;
        for (std::int64_t r = 0; r < rows; ++r) {
          cpu::running_log_sums(Cpu{level}, x.data() + r * n, one.data() + r * n, 1, n);
          long double sum = -inf;
          for (std::int64_t k = 0; k < n; ++k) {
            const auto i = std::size_t(r * n + k);
            sum = log_of_two(sum, static_cast<long double>(double(x[i])));
            wrong += !is_near(y[i], sum, n);
            apart += double(y[i]) != double(one[i]) && !(std::isnan(double(y[i])) && std::isnan(double(one[i])));
          }
        }
        CHECK(wrong == 0);
        CHECK(apart == 0);
      }
    }
  }
}

}  // namespace levin::kernels
