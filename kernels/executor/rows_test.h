// What the tests of kernels share: the levels of this CPU, a number of threads, test numbers, comparison with a
// reference in double.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include "levin/dtype.h"

#include "kernels/executor/cpu.h"
#include "kernels/executor/hd.h"

namespace levin::kernels::test {

inline std::vector<CpuLevel> levels() {
  std::vector<CpuLevel> all{CpuLevel::base};
  if (cpu_level() >= CpuLevel::v3) all.push_back(CpuLevel::v3);
  if (cpu_level() >= CpuLevel::v4) all.push_back(CpuLevel::v4);
  return all;
}

// Runs kernels on n threads while it lives.
struct Threads {
  int before = num_threads();
  explicit Threads(int n) { set_num_threads(n); }
  ~Threads() { set_num_threads(before); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
};

template <class T>
inline constexpr double kEps = std::is_same_v<T, double>  ? 0x1p-53
                               : std::is_same_v<T, float> ? 0x1p-24
                               : std::is_same_v<T, f16>   ? 0x1p-11
                                                          : 0x1p-8;  // of one rounding, relative

template <class T>
double wide(T x) {
  if constexpr (std::is_same_v<T, double>)
    return x;
  else
    return double(float(x));
}

// n numbers in [-range, range), in no order a kernel could like; exact in T.
template <class T>
std::vector<T> numbers(int64_t n, double range, uint32_t seed) {
  std::vector<T> x(static_cast<size_t>(n));
  uint32_t h = seed * 2654435761u + 12345;
  for (T& v : x) {
    h = h * 1664525u + 1013904223u;
    v = T(float(double(h >> 8) * 0x1p-23 * range - range));
  }
  return x;
}

// |got - want| <= (rounding to T) + steps * eps of the sums * size, size bounding what was added up.
template <class T>
void close(const std::vector<T>& got, const std::vector<double>& want, double steps, double size) {
  REQUIRE(got.size() == want.size());
  const double eps = kEps<Accum<T>>;
  double worst = 0;
  bool inside = true;  // also false for a NaN, which no comparison of worst would keep
  for (size_t i = 0; i < got.size(); ++i) {
    const double smallest = std::is_same_v<T, f16> ? 0x1p-25 : 0;  // half a step of its subnormal numbers
    const double bound = 1.001 * kEps<T> * std::fabs(want[i]) + smallest + steps * eps * size;
    const double ratio = std::fabs(wide(got[i]) - want[i]) / bound;
    inside = inside && ratio <= 1;
    if (ratio > worst) worst = ratio;
  }
  INFO("largest error over its bound: ", worst);
  CHECK(inside);
}

// run() on 1, 2 and 3 threads fills `out`: the bits must not change.
template <class T, class Run>
void same_bits(std::vector<T>& out, const Run& run) {
  const int threads = num_threads();
  set_num_threads(1);
  run();
  const std::vector<T> first = out;
  for (const int count : {2, 3}) {
    set_num_threads(count);
    std::fill(out.begin(), out.end(), T(0.0f));
    run();
    CHECK((out.empty() || std::memcmp(out.data(), first.data(), out.size() * sizeof(T)) == 0));
  }
  set_num_threads(threads);
}

}  // namespace levin::kernels::test
