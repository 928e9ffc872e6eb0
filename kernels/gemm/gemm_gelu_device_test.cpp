// Products that end in GELU or its slope: sums of small integers, which are exact, so that all that may differ is GELU.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/gemm/gemm_gelu_device.cuh"
#include "tests/device.h"
#include "tests/simt/launch.h"

using namespace levin;
using namespace levin::kernels;

namespace {

template <class T>
constexpr double kEps = std::is_same_v<T, double>  ? 0x1p-52
                        : std::is_same_v<T, float> ? 0x1p-23
                        : std::is_same_v<T, f16>   ? 0x1p-10
                                                   : 0x1p-7;

template <class T>
std::vector<T> integers(int64_t n, std::uint32_t seed) {
  std::vector<T> v;
  for (int64_t i = 0; i < n; ++i) {
    seed = seed * 1664525u + 1013904223u;
    v.push_back(T(float(int(seed >> 24) % 3 - 1)));
  }
  return v;
}

double value(GeluErf, double z) { return 0.5 * z * std::erfc(-z / std::sqrt(2.0)); }
double slope(GeluErf, double z) {
  return 0.5 * std::erfc(-z / std::sqrt(2.0)) + z * std::exp(-0.5 * z * z) / std::sqrt(2 * std::acos(-1.0));
}
double inner(double z) { return std::sqrt(2 / std::acos(-1.0)) * (z + 0.044715 * z * z * z); }
double value(GeluTanh, double z) { return 0.5 * z * (1 + std::tanh(inner(z))); }
double slope(GeluTanh, double z) {
  const double t = std::tanh(inner(z)), d = std::sqrt(2 / std::acos(-1.0)) * (1 + 3 * 0.044715 * z * z);
  return 0.5 * (1 + t) + 0.5 * z * (1 - t * t) * d;
}

// One rounding to T, beside which the functions' own errors of some 2^-24 (absolute, times z) count for float alone.
template <class T>
bool near(T got, double want, double factor) {
  return std::abs(double(float(got)) - want) <= kEps<T> * std::abs(want) + 0x1p-21 * factor;
}

template <class T, class Form>
void check_epilogues(GemmSize size, int tile, int64_t splits, int64_t slack) {
  const auto [m, n, k] = size;
  const GemmPlan plan = plan_gemm_as<T>(size, 1, tile, splits);
  REQUIRE(plan.splits == splits);
  const Gpu on{Stream::current(*test::launching_device())};
  const int64_t lda = k + slack, ldw = k + slack, ldv = n + slack;
  const std::vector<T> x = integers<T>(m * lda, 1), w = integers<T>(n * ldw, 2), v = integers<T>(k * ldv, 5),
                       bias = integers<T>(n, 3);
  std::vector<T> z(size_t(m * n), T(99.0f)), h = z, alone = z, dz = z;
  std::vector<Accum<T>> partial(size_t(plan.workspace()));
  const Matrix<T> left{x.data(), lda, 1}, right{w.data(), 1, ldw}, back{v.data(), ldv, 1};
  gpu::gelu_product<Form>(on, plan, left, right, bias.data(), z.data(), h.data(), partial.data());
  gpu::gelu_product<Form>(on, plan, left, right, bias.data(), static_cast<T*>(nullptr), alone.data(), partial.data());
  const auto dot = [&](const Matrix<T>& b, int64_t i, int64_t j) {
    double sum = 0;
    for (int64_t l = 0; l < k; ++l)
      sum += double(float(x[size_t(i * lda + l)])) * double(float(b.data[l * b.row + j * b.col]));
    return sum;
  };
  int64_t wrong_z = 0, wrong_h = 0, wrong_alone = 0, wrong_dz = 0;
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      const size_t at = size_t(i * n + j);
      const double sum = dot(right, i, j) + double(float(bias[size_t(j)]));
      wrong_z += double(float(z[at])) != sum;
      wrong_h += !near(h[at], value(Form{}, sum), std::abs(sum));
      wrong_alone += float(alone[at]) != float(h[at]);
    }
  }
  // Where the slope bends: between -2 and 2, in steps that every type holds.
  for (size_t i = 0; i < z.size(); ++i) z[i] = T(float(int(i * 7 % 33) - 16) / 8);
  gpu::gelu_slope_product<Form>(on, plan, left, back, static_cast<const T*>(z.data()), dz.data(), partial.data());
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      const size_t at = size_t(i * n + j);
      const double sum = dot(back, i, j);
      wrong_dz += !near(dz[at], sum * slope(Form{}, double(float(z[at]))), std::abs(sum));
    }
  }
  CHECK(wrong_z == 0);
  CHECK(wrong_h == 0);
  CHECK(wrong_alone == 0);
  CHECK(wrong_dz == 0);
}

}  // namespace

TEST_CASE_TEMPLATE("simt: products end in GELU and its slope in both tiles, with split sums and tails", T, float,
                   double, f16, bf16) {
  check_epilogues<T, GeluErf>({70, 75, 41}, 64, 1, 0);
  check_epilogues<T, GeluTanh>({70, 75, 41}, 64, 1, 0);
  check_epilogues<T, GeluErf>({72, 80, 96}, 64, 3, 8);
  check_epilogues<T, GeluTanh>({72, 80, 96}, 64, 3, 8);
  if constexpr (!std::is_same_v<T, double>) {
    check_epilogues<T, GeluErf>({136, 144, 40}, 128, 1, 0);
    check_epilogues<T, GeluTanh>({136, 144, 64}, 128, 2, 3);
  }
}

TEST_CASE("simt: no order of threads changes a product that ends in GELU") {
  test::on_every_schedule([](simt::Schedule, std::uint64_t) {
    check_epilogues<bf16, GeluTanh>({72, 80, 64}, 64, 1, 0);
    check_epilogues<float, GeluErf>({72, 80, 32}, 64, 2, 0);
  });
}
