// Every form of the device's products against plain sums: small integers, so that results are exact in all types.
#include <doctest/doctest.h>

#include <vector>

#include "kernels/gemm/gemm_device.cuh"
#include "tests/device.h"
#include "tests/simt/launch.h"

using namespace levin;
using namespace levin::kernels;

namespace {

template <class T>
std::vector<T> small_integers(int64_t n, std::uint32_t seed) {
  std::vector<T> v;
  for (int64_t i = 0; i < n; ++i) {
    seed = seed * 1664525u + 1013904223u;
    v.push_back(T(float(int(seed >> 24) % 3 - 1)));
  }
  return v;
}

struct Form {
  GemmSize size;
  int tile;
  int64_t splits;
  bool a_by_rows, b_by_rows;
  int64_t
      slack;  // elements between neighbouring lines beyond their length: 0 keeps chunks aligned where the length does
};

template <class T>
void check_product(const Form& f) {
  const auto [m, n, k] = f.size;
  const int64_t lda = (f.a_by_rows ? k : m) + f.slack, ldb = (f.b_by_rows ? n : k) + f.slack, batches = 2;
  const int64_t a_numbers = lda * (f.a_by_rows ? m : k), b_numbers = ldb * (f.b_by_rows ? k : n);
  const std::vector<T> a = small_integers<T>(a_numbers * batches, 1), b = small_integers<T>(b_numbers, 2),
                       col = small_integers<T>(n, 3), row = small_integers<T>(m * batches, 4);
  const Matrix<T> left{a.data(), f.a_by_rows ? lda : 1, f.a_by_rows ? 1 : lda};
  const Matrix<T> right{b.data(), f.b_by_rows ? ldb : 1, f.b_by_rows ? 1 : ldb};
  std::vector<T> c(size_t(m * n * batches), T(99.0f));
  const GemmPlan plan = plan_gemm_as<T>(f.size, batches, f.tile, f.splits);
  CHECK(plan.splits == f.splits);
  std::vector<Accum<T>> partial(size_t(plan.workspace()));
  const gpu::Target<T> to{
      .y = c.data(), .row_step = n, .col_bias = col.data(), .row_bias = row.data(), .partial = partial.data()};
  const BatchDim dim{batches, a_numbers, 0, m * n};  // one B for both
  gpu::gemm_batched(Gpu{Stream::current(*test::launching_device())}, plan, {&dim, 1}, left, right, to);
  int64_t wrong = 0;
  for (int64_t s = 0; s < batches; ++s) {
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        float want = float(col[size_t(j)]) + float(row[size_t(s * m + i)]);
        for (int64_t l = 0; l < k; ++l) {
          want += float(left.data[s * a_numbers + i * left.row + l * left.col]) *
                  float(right.data[l * right.row + j * right.col]);
        }
        wrong += float(c[size_t((s * m + i) * n + j)]) != want;
      }
    }
  }
  CHECK(wrong == 0);
}

// gw = gy^T x and the sums of gy's columns, as a layer's parameters get them.
template <class T>
void check_row_sums(GemmSize size, int tile, int64_t splits, bool by_rows) {
  const auto [m, n, k] = size;
  const std::vector<T> a = small_integers<T>(m * k, 1), b = small_integers<T>(k * n, 2);
  std::vector<T> y(size_t(m * n), T(99.0f)), sums(size_t(m), T(99.0f));
  const GemmPlan plan = plan_gemm_as<T>(size, 1, tile, splits);
  CHECK(plan.splits == splits);
  std::vector<Accum<T>> partial(size_t(plan.workspace(true)));
  const Matrix<T> left{a.data(), by_rows ? k : 1, by_rows ? 1 : m}, right{b.data(), n, 1};
  gpu::gemm_with_row_sums(Gpu{Stream::current(*test::launching_device())}, plan, left, right, y.data(), sums.data(),
                          partial.data());
  int64_t wrong = 0;
  for (int64_t i = 0; i < m; ++i) {
    float sum = 0;
    for (int64_t l = 0; l < k; ++l) sum += float(a[size_t(i * left.row + l * left.col)]);
    wrong += float(sums[size_t(i)]) != sum;
    for (int64_t j = 0; j < n; ++j) {
      float want = 0;
      for (int64_t l = 0; l < k; ++l)
        want += float(a[size_t(i * left.row + l * left.col)]) * float(b[size_t(l * n + j)]);
      wrong += float(y[size_t(i * n + j)]) != want;
    }
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE_TEMPLATE("simt: products in both tiles, both directions of both operands, with split sums and tails", T,
                   float, double, f16, bf16) {
  for (const bool a_by_rows : {true, false}) {
    for (const bool b_by_rows : {true, false}) {
      CAPTURE(a_by_rows);
      CAPTURE(b_by_rows);
      check_product<T>({{70, 75, 41}, 64, 1, a_by_rows, b_by_rows, 0});
      check_product<T>({{72, 80, 200}, 64, 3, a_by_rows, b_by_rows, 0});
      if constexpr (!std::is_same_v<T, double>) check_product<T>({{136, 144, 168}, 128, 2, a_by_rows, b_by_rows, 3});
    }
  }
  if constexpr (!std::is_same_v<T, double>) check_product<T>({{136, 144, 160}, 128, 1, true, false, 0});
}

TEST_CASE_TEMPLATE("simt: a product that adds up the rows of its left operand, whole and in parts", T, float, double,
                   f16, bf16) {
  for (const bool by_rows : {true, false}) {
    check_row_sums<T>({70, 75, 41}, 64, 1, by_rows);
    check_row_sums<T>({72, 10, 200}, 64, 3, by_rows);  // the last block of a tile adds them
    check_row_sums<T>({3, 5, 32 * (kMostJoined + 1)}, 64, kMostJoined + 1, by_rows);  // another kernel does
    check_row_sums<T>({5, 70, 0}, 64, 1, by_rows);
    if constexpr (!std::is_same_v<T, double>) check_row_sums<T>({136, 144, 168}, 128, 1, by_rows);
  }
}

TEST_CASE("simt: no order of threads changes a product") {
  test::on_every_schedule([](simt::Schedule, std::uint64_t) {
    check_product<bf16>({{72, 80, 200}, 64, 1, true, true, 0});
    check_product<float>({{72, 80, 60}, 64, 1, false, true, 0});
    check_product<bf16>({{72, 80, 200}, 64, 3, true, true, 0});
    check_product<float>({{72, 80, 200}, 64, 3, false, true, 0});
    check_row_sums<bf16>({72, 80, 200}, 64, 3, true);
    check_row_sums<float>({72, 80, 200}, 64, 3, false);
  });
}

TEST_CASE("a plan cuts k into whole tiles, covers it, and leaves full devices alone") {
  const GemmPlan full = plan_gemm<bf16>({8192, 8192, 8192}, 1);
  CHECK(full.tile == 128);
  CHECK(full.splits == 1);
  CHECK(full.workspace() == 0);
  const GemmPlan thin = plan_gemm<bf16>({768, 100, 65536}, 1);
  CHECK(thin.tile == 64);
  CHECK(thin.splits > 4);
  CHECK(thin.part % kTileDepth<bf16> == 0);
  CHECK(thin.part * thin.splits >= 65536);
  CHECK(thin.part * (thin.splits - 1) < 65536);
  CHECK(thin.joins);
  CHECK(!plan_gemm<bf16>({64, 64, 65536}, 1).joins);  // too many parts for a block
  const GemmPlan few = plan_gemm_as<bf16>({768, 100, 4096}, 1, 64, kMostJoined);
  CHECK(few.splits == kMostJoined);
  CHECK(few.joins);
  CHECK(!plan_gemm_as<bf16>({64 * 17, 64 * 17, 4096}, 1, 64, 2).joins);  // more tiles than counters
  CHECK(plan_gemm<float>({5, 5, 0}, 1).splits == 1);
  CHECK(plan_gemm<float>({5, 0, 100000}, 1).row_tiles * plan_gemm<float>({5, 0, 100000}, 1).col_tiles == 0);
}
