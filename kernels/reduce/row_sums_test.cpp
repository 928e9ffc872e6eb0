#ifndef LEVIN_LEVEL
#include "kernels/reduce/row_sums.cuh"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "kernels/executor/cpu.h"
#include "kernels/executor/rows_test.h"
#include "kernels/reduce/half_sums.cuh"
#include "kernels/reduce/running_sums.cuh"
#include "levin/dtype.h"

#define LEVIN_LEVEL_FILE "kernels/reduce/row_sums_test.cpp"
#include "kernels/executor/each_level.h"

namespace levin::kernels {
namespace cpu {
LEVIN_PICK_EVERY(widen_row)
LEVIN_PICK_EVERY(narrow_row)
}  // namespace cpu

namespace {

using test::levels;

// Equal bits, or both NaN of one sign.
template <class T>
bool same(T a, T b) {
  const float x = float(a), y = float(b);
  if (std::isnan(x)) return std::isnan(y) && std::signbit(x) == std::signbit(y);
  return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y);
}

template <class T>
std::vector<T> every_number() {
  std::vector<T> x(65536);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::bit_cast<T>(static_cast<std::uint16_t>(i));
  return x;
}

}  // namespace

TEST_CASE_TEMPLATE("vectors widen every 16-bit number exactly, and round each float as one conversion does", T, f16,
                   bf16) {
  const std::vector<T> x = every_number<T>();
  // Every number, the middle between it and the next, and the floats beside that middle.
  std::vector<float> wide;
  for (const T v : x) {
    const auto u = std::bit_cast<std::uint32_t>(float(v));
    const std::uint32_t middle = u + (std::is_same_v<T, f16> ? 0x1000u : 0x8000u);
    for (const std::uint32_t bits : {u, middle - 1, middle, middle + 1}) wide.push_back(std::bit_cast<float>(bits));
  }
  for (const float v : {0x1p-24f, 0x1p-25f, 0x1.8p-25f, 0x1.000002p-25f, 65519.99f, 65520.0f, 3.4e38f, 1e-40f}) {
    wide.push_back(v);
    wide.push_back(-v);
  }
  for (const CpuLevel level : levels()) {
    INFO("level ", std::string(name(level)));
    std::vector<float> widened(x.size());
    cpu::widen_row(Cpu{level}, x.data(), widened.data(), std::int64_t(x.size()) - 3);
    std::int64_t wrong = 0;
    for (std::size_t i = 0; i + 3 < x.size(); ++i) wrong += !same(widened[i], float(x[i]));
    CHECK(wrong == 0);
    std::vector<T> narrow(wide.size());
    cpu::narrow_row(Cpu{level}, wide.data(), narrow.data(), std::int64_t(wide.size()));
    wrong = 0;
    for (std::size_t i = 0; i < wide.size(); ++i) wrong += !same(narrow[i], T(wide[i]));
    CHECK(wrong == 0);
  }
}

TEST_CASE_TEMPLATE("sums of 16-bit rows and columns stay within the bound at every level", T, f16, bf16) {
  for (const CpuLevel level : levels()) {
    INFO("level ", std::string(name(level)));
    CHECK(cpu::half_sum(Cpu{level}, static_cast<const T*>(nullptr), 0) == 0);
    for (const std::int64_t n : {1, 7, 15, 16, 17, 63, 64, 65, 1000, 1024}) {
      const std::vector<T> x = test::numbers<T>(n, 2, std::uint32_t(n) + 1);
      const double want = std::accumulate(x.begin(), x.end(), 0.0, [](double sum, T v) { return sum + test::wide(v); });
      test::close(std::vector<float>{cpu::half_sum(Cpu{level}, x.data(), n)}, {want}, 64, 2.0 * double(n) / 16);
    }
    for (const std::int64_t rows : {1, 2, 7, 8, 9, 31, 32}) {
      for (const std::int64_t width : {1, 15, 16, 33, 100}) {
        const std::int64_t step = width + 5;
        const std::vector<T> x = test::numbers<T>(rows * step, 2, std::uint32_t(rows * 100 + width));
        std::vector<float> sums(std::size_t(width), -1.0f);
        cpu::half_columns(Cpu{level}, x.data(), step, rows, sums.data(), width);
        std::vector<double> want(std::size_t(width), 0.0);
        for (std::int64_t r = 0; r < rows; ++r)
          for (std::int64_t j = 0; j < width; ++j) want[std::size_t(j)] += test::wide(x[std::size_t(r * step + j)]);
        test::close(sums, want, 8, 2.0 * double(rows));
      }
    }
  }
}

TEST_CASE_TEMPLATE("running sums of rows are the sums in double, rounded once, at every level", T, float, f16, bf16) {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<std::vector<T>> rows;
  for (const std::int64_t n : {0, 1, 3, 4, 7, 8, 9, 511, 512, 513, 2000})
    rows.push_back(test::numbers<T>(n, 2, std::uint32_t(n) + 1));
  // Ties that only a sticky bit decides, sums beyond the largest number and back, infinities, NaN.
  rows.push_back({T(256.0f), T(1.0f), T(0x1p-14f), T(-0x1p-13f), T(1.0f), T(0x1p-14f), T(2048.0f), T(1.0f), T(0x1p-14f),
                  T(-0.0f)});
  rows.push_back({T(3e38f), T(3e38f), T(-3e38f), T(-3e38f), T(-3e38f), T(-3e38f), T(3e38f), T(3e38f), T(-0.0f)});
  rows.push_back({T(60000.0f), T(60000.0f), T(-60000.0f), T(1.0f), T(inf), T(1.0f), T(-inf), T(1.0f), T(1.0f)});
  for (const CpuLevel level : levels()) {
    INFO("level ", std::string(name(level)));
    for (const std::vector<T>& x : rows) {
      std::vector<T> y = x;
      cpu::running_sums(Cpu{level}, y.data(), y.data(), std::int64_t(y.size()));
      double sum = 0;
      std::int64_t wrong = 0;
      for (std::size_t i = 0; i < x.size(); ++i) {
        sum += test::wide(x[i]);
        wrong += std::isnan(sum) ? !std::isnan(float(y[i])) : !same(y[i], T(sum));
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE_TEMPLATE("running products of rows are the products in double, rounded once, at every level", T, float, f16,
                   bf16) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const CpuLevel level : levels()) {
    INFO("level ", std::string(name(level)));
    for (const std::int64_t rows : {1, 3, 4, 5, 9}) {
      for (const std::int64_t n : {1, 63, 64, 65, 200}) {
        CAPTURE(rows);
        CAPTURE(n);
        std::vector<T> x = test::numbers<T>(rows * n, 2, std::uint32_t(rows * 1000 + n)), y(x.size());
        // The last row rises beyond the largest number and falls below the smallest one again; then 0 and infinity.
        for (std::int64_t k = 0; k < n; ++k) {
          const float at = k % 16 < 8 ? 30000.0f : 0x1p-14f;
          x[std::size_t((rows - 1) * n + k)] = T(k == 150 ? 0.0f : k == 151 ? inf : at);
        }
        cpu::running_products(Cpu{level}, x.data(), y.data(), rows, n);
        std::int64_t wrong = 0;
        for (std::int64_t r = 0; r < rows; ++r) {
          double product = 1;
          for (std::int64_t k = 0; k < n; ++k) {
            const auto i = std::size_t(r * n + k);
            product *= test::wide(x[i]);
            wrong += std::isnan(product) ? !std::isnan(float(y[i])) : !same(y[i], T(product));
          }
        }
        CHECK(wrong == 0);
      }
    }
  }
}

}  // namespace levin::kernels
#else
namespace levin::kernels::cpu::LEVIN_LEVEL {

template <class T>
void widen_row(const Cpu&, const T* x, float* y, int64_t n) {
  wide_numbers(x, n, y);
}

template <class T>
void narrow_row(const Cpu&, const float* x, T* y, int64_t n) {
  each_vector<float>(
      n, [=]<class V>(V, int64_t i) __attribute__((always_inline)) { put(y + i, load<V>(x + i)); });
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
