#include "kernels/random/standard_gamma.cuh"

#include <cstring>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "kernels/executor/rows_test.h"

namespace levin::kernels {
namespace {

using test::levels;

// Draws at each level and thread count have the bits of base on one thread, and so have those of later elements alone.
template <class T>
void same_everywhere(bool logs) {
  constexpr int64_t n = 8011, skip = 1234;
  const RandomRange range{0x0123456789abcdefu, 0xfffff000u};  // the counter's upper word changes on the way
  std::vector<T> a(n), want(n);
  for (int64_t i = 0; i < n; ++i) a[size_t(i)] = T(float(0.25 * double(1 + i % 37) + (i % 5 == 0 ? 100 : 0)));
  const int threads = num_threads();
  set_num_threads(1);
  cpu::standard_gamma(Cpu{CpuLevel::base}, a.data(), want.data(), n, range, logs);
  for (const CpuLevel level : levels()) {
    INFO("level ", std::string(name(level)));
    for (const int count : {1, 3}) {
      set_num_threads(count);
      std::vector<T> got(n + 1, T(7.0f));
      cpu::standard_gamma(Cpu{level}, a.data(), got.data(), n, range, logs);
      CHECK(std::memcmp(got.data(), want.data(), n * sizeof(T)) == 0);
      CHECK(float(got[n]) == 7.0f);  // nothing after the end
    }
    std::vector<T> got(n - skip);
    const RandomRange later{range.seed, range.offset + skip};
    cpu::standard_gamma(Cpu{level}, a.data() + skip, got.data(), n - skip, later, logs);
    CHECK(std::memcmp(got.data(), want.data() + skip, size_t(n - skip) * sizeof(T)) == 0);
  }
  set_num_threads(threads);
}

}  // namespace

TEST_CASE("gamma draws have the same bits for every level and thread count, each by its own counter") {
  for (const bool logs : {false, true}) {
    same_everywhere<float>(logs);
    same_everywhere<double>(logs);
    same_everywhere<f16>(logs);
  }
}

TEST_CASE("gamma draws are never rejected for good: after all attempts the center is left") {
  const GammaShape<double> shape(2.5);
  int asked = 0;
  // Words of zeros have u near 0 and |z| near 8: v is negative, or the draw is accepted.
  const auto block = [&](uint32_t) {
    ++asked;
    return PhiloxBlock{0, 0x80000000u, 0xffffffffu, 0};
  };
  CHECK(gamma_attempts<double>(shape, 0, false, block) == doctest::Approx(2.5 - 1 / 3.0));
  CHECK(asked == 2 * kGammaAttempts);
}

}  // namespace levin::kernels
