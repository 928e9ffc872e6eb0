// Where the extreme of a row first stands, at every level.
#include "kernels/reduce/extreme_row.cuh"

#include <doctest/doctest.h>

#include "kernels/executor/rows_test.h"

using namespace levin;
using namespace levin::kernels;

namespace {

template <bool kLargest, class T>
std::int64_t by_definition(const std::vector<T>& x) {
  std::size_t at = 0;
  for (std::size_t i = 1; i < x.size(); ++i) {
    const float v = float(x[i]), top = float(x[at]);
    if ((kLargest ? v > top : v < top) || (v != v && top == top)) at = i;
  }
  return std::int64_t(at);
}
template <class T>
void check(const std::vector<T>& x) {
  for (const CpuLevel level : test::levels()) {
    const auto n = std::int64_t(x.size());
    CHECK(cpu::extreme_of_row<std::true_type>(Cpu{level}, x.data(), n) == by_definition<true>(x));
    CHECK(cpu::extreme_of_row<std::false_type>(Cpu{level}, x.data(), n) == by_definition<false>(x));
  }
}

}  // namespace

TEST_CASE_TEMPLATE("a row's extreme is found where it first stands, NaN before numbers, at every level", T, float, f16,
                   bf16) {
  constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const std::int64_t n : {1, 2, 15, 16, 17, 63, 64, 65, 100, 2047, 2048, 2049, 5000}) {
    std::vector<T> x = test::numbers<T>(n, 8, std::uint32_t(n));
    CAPTURE(n);
    check(x);
    for (const float special : {inf, -inf, nan, 9.0f, -9.0f}) {
      CAPTURE(special);
      for (const std::int64_t at : {std::int64_t{0}, n / 2, n - 1}) {
        std::vector<T> y = x;
        y[std::size_t(at)] = T(special);
        check(y);
        y[std::size_t(n - 1)] = T(special);  // the first of two counts
        check(y);
      }
    }
  }
  check(std::vector<T>(300, T(-0.0f)));
  std::vector<T> zeros(300, T(-0.0f));
  zeros[7] = T(0.0f);  // equal to the others
  check(zeros);
  check(std::vector<T>(300, T(nan)));
  check(std::vector<T>(3000, T(-inf)));
  check(std::vector<T>(3000, T(inf)));
}
