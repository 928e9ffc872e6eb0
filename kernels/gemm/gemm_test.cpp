#include "kernels/gemm/gemm.cuh"
#include "kernels/gemm/gemm_amx.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include "kernels/executor/rows_test.h"
#include "tests/skip.h"

using namespace levin;
using namespace levin::kernels;
using namespace levin::kernels::test;

namespace {

// A matrix in a layout: 0 rows contiguous, 1 columns contiguous, 2 rows with room between them, 3 every second number.
template <class T>
struct Stored {
  std::vector<T> data;
  Matrix<T> view;
  Stored(int64_t rows, int64_t cols, int layout, uint32_t seed) {
    int64_t row = cols, col = 1, size = rows * cols;
    if (layout == 1) row = 1, col = rows;
    if (layout == 2) row = cols + 5, size = rows * row;
    if (layout == 3) row = 2 * cols + 1, col = 2, size = rows * row;
    data = numbers<T>(size + 1, 1, seed);
    view = {data.data(), row, col};
  }
  double at(int64_t i, int64_t j) const { return double(float_or_double(view.data[i * view.row + j * view.col])); }
  static double float_or_double(T x) { return double(x); }
};

struct Case {
  GemmSize size;
  int a_layout = 0, b_layout = 0;
  double alpha = 1, beta = 0;
  bool col_bias = false, row_bias = false;
};

// The levels of this CPU, with a narrow and with a wide L1 cache; v4 is there with each of the ways in which it
// multiplies bf16 numbers.
std::vector<Cpu> cpus() {
  std::vector<Cpu> all;
  for (const CpuLevel level : levels()) {
    for (const int ways : {8, 12}) all.push_back({.level = level, .l1_ways = ways});
    if (level != CpuLevel::v4) continue;
    for (const auto by : {Bf16Products::f32, Bf16Products::pairs, Bf16Products::tiles}) {
      if (by != cpu_bf16_products() && cpu_runs(by)) all.push_back({.level = level, .bf16_products = by});
    }
  }
  return all;
}

// cpu::gemm, and the same by tiles that are emulated.
struct Gemm {
  template <class T, class C>
  static void run(const Cpu& on, GemmSize size, Matrix<T> a, Matrix<T> b, C* c, int64_t ldc,
                  const GemmOptions<T>& options = {}) {
    cpu::gemm(on, size, a, b, c, ldc, options);
  }
};
#if LEVIN_X86_LEVELS
struct GemmByEmulatedTiles {
  template <class C>
  static void run(const Cpu& on, GemmSize size, Matrix<bf16> a, Matrix<bf16> b, C* c, int64_t ldc,
                  const GemmOptions<bf16>& options = {}) {
    cpu::v4::TiledProduct<EmulatedTiles, C>(on, true, size, a, b, c, ldc, options).run();
  }
};
#endif

template <class T, class C = T, class Product = Gemm>
void check(const Case& t, const Cpu& on) {
  CAPTURE(t.size.m);
  CAPTURE(t.size.n);
  CAPTURE(t.size.k);
  CAPTURE(t.a_layout);
  CAPTURE(t.b_layout);
  CAPTURE(name(on.level));
  CAPTURE(int(on.bf16_products));
  const auto [m, n, k] = t.size;
  const Stored<T> a(m, k, t.a_layout, 1), b(k, n, t.b_layout, 2);
  const int64_t ldc = n + 3;
  const std::vector<C> before = numbers<C>(m * ldc, 1, 3);
  const std::vector<T> col_bias = numbers<T>(n, 1, 4), row_bias = numbers<T>(m, 1, 5);
  std::vector<C> c = before;
  if (t.beta == 0)
    for (C& x : c) x = C(std::numeric_limits<float>::quiet_NaN());  // must not be read
  Product::run(on, t.size, a.view, b.view, c.data(), ldc,
               GemmOptions<T>{.alpha = t.alpha,
                              .beta = t.beta,
                              .col_bias = t.col_bias ? col_bias.data() : nullptr,
                              .row_bias = t.row_bias ? row_bias.data() : nullptr});
  double worst = 0;
  bool outside_kept = true;
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0, sum_of_abs = 0;
      for (int64_t kk = 0; kk < k; ++kk) {
        const double x = a.at(i, kk) * b.at(kk, j);
        sum += x, sum_of_abs += std::abs(x);
      }
      double want = t.alpha * sum, scale = std::abs(t.alpha) * sum_of_abs;
      if (t.beta != 0) want += t.beta * double(before[size_t(i * ldc + j)]), scale += std::abs(t.beta);
      if (t.col_bias) want += double(col_bias[size_t(j)]), scale += 1;
      if (t.row_bias) want += double(row_bias[size_t(i)]), scale += 1;
      // |error| <= (k + 4) * eps / 2 * (sum of |a b| and the rest), and one rounding to C.
      using F = Accum<T>;
      const double bound = double(k + 4) * kEps<F> * scale + kEps<C> * std::abs(want) + 1e-300;
      const double got = double(c[size_t(i * ldc + j)]);
      worst = std::max(worst, std::isfinite(got) ? std::abs(got - want) / (bound + 0x1p-25 * (sizeof(C) == 2)) : 1e30);
    }
    for (int64_t j = n; j < ldc; ++j) {
      const C& x = c[size_t(i * ldc + j)];
      const C& was = before[size_t(i * ldc + j)];
      outside_kept = outside_kept && (t.beta == 0 ? std::isnan(double(x)) : std::memcmp(&x, &was, sizeof(C)) == 0);
    }
  }
  CHECK(worst <= 1);
  CHECK(outside_kept);
}

const int64_t kSizes[] = {0, 1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 33, 64, 65, 129, 257};

}  // namespace

TEST_CASE("gemm is the sum over k for every mix of sizes at every level") {
  std::mt19937 gen(7);
  const auto size = [&] { return kSizes[gen() % std::size(kSizes)]; };
  const auto layout = [&] { return int(gen() % 4); };
  for (const Cpu& on : cpus())
    for (const int64_t m : kSizes)
      for (const int64_t n : kSizes) {
        check<float>({.size = {m, n, size()}, .a_layout = layout(), .b_layout = layout()}, on);
        check<double>({.size = {m, n, size()}, .a_layout = layout(), .b_layout = layout()}, on);
        check<bf16>({.size = {m, n, size()}, .a_layout = layout(), .b_layout = layout()}, on);
      }
}

TEST_CASE("gemm reads every layout, scales, accumulates and adds biases, in every dtype") {
  const GemmSize sizes[] = {{1, 70, 33}, {70, 1, 33}, {1, 300, 17},  {33, 65, 31},   {16, 10, 65},
                            {5, 129, 0}, {64, 17, 7}, {3, 200, 600}, {57, 40, 1100}, {14, 31, 95}};
  const double scales[][2] = {{1, 0}, {1, 1}, {-0.5, 2}, {2, 0}};
  int count = 0;
  for (const Cpu& on : cpus())
    for (const GemmSize& size : sizes)
      for (int a_layout = 0; a_layout < 4; ++a_layout)
        for (int b_layout = 0; b_layout < 4; ++b_layout) {
          const auto& [alpha, beta] = scales[count % 4];
          const Case t{size, a_layout, b_layout, alpha, beta, (count / 4) % 2 == 1, (count / 8) % 2 == 1};
          ++count;
          check<float>(t, on);
          check<double>(t, on);
          check<f16>(t, on);
          check<bf16>(t, on);
          check<bf16, float>(t, on);
          check<f16, float>(t, on);
        }
}

TEST_CASE("a product with A^T in several blocks of k and of panels scales, accumulates and adds biases") {
  const Threads two(2);
  for (const Cpu& on : cpus())
    for (const GemmSize& size : {GemmSize{130, 290, 1030}, GemmSize{140, 70, 530}}) {
      const Case t{size, 1, 0, -0.5, 2, true, true};
      check<float>(t, on);
      check<double>(t, on);
    }
}

TEST_CASE("gemm reads a broadcast matrix and one that runs backwards") {
  for (const CpuLevel level : levels()) {
    const std::vector<float> row{1, 2, 3, 4, 5}, b = numbers<float>(5 * 40, 1, 1);
    std::vector<float> c(20 * 40);
    cpu::gemm(Cpu{level}, GemmSize{20, 40, 5}, Matrix<float>{row.data(), 0, 1}, Matrix<float>{b.data(), 40, 1},
              c.data(), 40);
    for (int64_t i = 1; i < 20; ++i) CHECK(std::memcmp(&c[size_t(i * 40)], c.data(), 40 * sizeof(float)) == 0);
    std::vector<float> backwards(20 * 40), turned(5 * 40);
    for (size_t i = 0; i < 5; ++i)
      for (size_t j = 0; j < 40; ++j) turned[(4 - i) * 40 + j] = b[i * 40 + j];
    cpu::gemm(Cpu{level}, GemmSize{20, 40, 5}, Matrix<float>{row.data(), 0, 1},
              Matrix<float>{turned.data() + 4 * 40, -40, 1}, backwards.data(), 40);
    CHECK(backwards == c);
  }
}

TEST_CASE("gemm reads one row of A^T at every step, rows that run backwards, and rows with room between them") {
  // Of m rows some tiles are copied together, with as much beyond their rows as a vector holds.
  constexpr int64_t kM = 150, kN = 200, kK = 30;
  const std::vector<float> at = numbers<float>(kK * (kM + 7), 1, 1), b = numbers<float>(kK * kN, 1, 2);
  for (const Cpu& on : cpus())
    for (const int64_t step : {int64_t{0}, -kM, kM, kM + 7}) {
      const float* const first = at.data() + (step < 0 ? (kK - 1) * kM : 0);
      std::vector<float> rows(size_t(kM * kK)), c(size_t(kM * kN)), want = c;
      for (int64_t i = 0; i < kM; ++i)
        for (int64_t k = 0; k < kK; ++k) rows[size_t(i * kK + k)] = first[k * step + i];
      const GemmSize size{kM, kN, kK};
      cpu::gemm(on, size, Matrix<float>{rows.data(), kK, 1}, Matrix<float>{b.data(), kN, 1}, want.data(), kN);
      cpu::gemm(on, size, Matrix<float>{first, 1, step}, Matrix<float>{b.data(), kN, 1}, c.data(), kN);
      CHECK(std::memcmp(c.data(), want.data(), c.size() * sizeof(float)) == 0);
    }
}

TEST_CASE_TEMPLATE("gemm has the same bits on one, two and three threads", T, float, bf16) {
  const GemmSize sizes[] = {{257, 300, 1100}, {64, 128, 784}, {1, 3000, 700}, {3000, 1, 700},
                            {130, 4000, 9},   {8, 3000, 700}, {300, 256, 256}};
  for (const Cpu& on : cpus())
    for (const GemmSize& size : sizes)
      for (int layout = 0; layout < 2; ++layout) {
        const Stored<T> a(size.m, size.k, layout, 1), b(size.k, size.n, 1 - layout, 2);
        std::vector<T> c[3];
        for (int threads = 1; threads <= 3; ++threads) {
          const Threads guard(threads);
          c[threads - 1].resize(size_t(size.m * size.n));
          cpu::gemm(on, size, a.view, b.view, c[threads - 1].data(), size.n);
        }
        CHECK(std::memcmp(c[0].data(), c[1].data(), c[0].size() * sizeof(T)) == 0);
        CHECK(std::memcmp(c[0].data(), c[2].data(), c[0].size() * sizeof(T)) == 0);
      }
}

TEST_CASE_TEMPLATE("gemm has the same bits whatever is copied, and for B^T as for B", T, float, double, bf16) {
  // From 1,100 on k is longer than a block. A task transposes four tiles of the seventh size together, and packs four
  // panels of the eighth. Of the ninth and tenth, tasks of two threads pack rows of A of their own. Rows of the last
  // one are a multiple of 4,096 bytes apart in f32 and f64. Pairs of bf16 are read from rows of A where they lie,
  // unless these begin at odd places or k is odd.
  const GemmSize sizes[] = {{64, 512, 784},  {17, 300, 40},    {37, 1000, 65},   {200, 130, 512},
                            {20, 45, 1100},  {30, 300, 2300},  {32, 2000, 1100}, {300, 1100, 70},
                            {300, 256, 256}, {250, 250, 1280}, {30, 600, 1024}};
  for (const Cpu& on : cpus())
    for (const GemmSize& size : sizes)
      for (const bool biased : {false, true}) {
        const auto [m, n, k] = size;
        const Stored<T> a(m, k, 0, 1), b(k, n, 0, 2);
        std::vector<T> turned(b.data.size());
        for (int64_t i = 0; i < k; ++i)
          for (int64_t j = 0; j < n; ++j) turned[size_t(j * k + i)] = b.data[size_t(i * n + j)];
        const std::vector<T> col_bias = numbers<T>(n, 1, 4);
        const GemmOptions<T> options{.col_bias = biased ? col_bias.data() : nullptr};
        const auto product_of = [&](int ways, Matrix<T> left, Matrix<T> right) {
          Cpu cpu = on;
          cpu.l1_ways = ways;
          std::vector<T> c(size_t(m * n));
          cpu::gemm(cpu, size, left, right, c.data(), n, options);
          return c;
        };
        const auto product = [&](int ways, Matrix<T> right) { return product_of(ways, a.view, right); };
        const std::vector<T> want = product(8, b.view);
        const auto same = [&](const std::vector<T>& got) {
          return std::memcmp(got.data(), want.data(), want.size() * sizeof(T)) == 0;
        };
        CAPTURE(m);
        CAPTURE(name(on.level));
        CHECK(same(product(12, b.view)));
        CHECK(same(product(8, {turned.data(), 1, k})));
        CHECK(same(product(12, {turned.data(), 1, k})));
        const int64_t odd = k / 2 * 2 + 1;  // numbers from row to row
        std::vector<T> apart(size_t(1 + m * odd)), by_columns(size_t(m * k));
        for (int64_t i = 0; i < m; ++i)
          for (int64_t j = 0; j < k; ++j) {
            apart[size_t(1 + i * odd + j)] = a.data[size_t(i * k + j)];
            by_columns[size_t(j * m + i)] = a.data[size_t(i * k + j)];
          }
        CHECK(same(product_of(8, {apart.data() + 1, odd, 1}, b.view)));
        CHECK(same(product_of(8, {by_columns.data(), 1, m}, b.view)));
      }
}

TEST_CASE_TEMPLATE("gemm carries NaN and infinity into every result they touch, and no further", T, float, bf16) {
  const T inf(std::numeric_limits<float>::infinity()), nan(std::numeric_limits<float>::quiet_NaN()), one(1.0f);
  for (const Cpu& on : cpus())
    for (const GemmSize& size : {GemmSize{20, 37, 19}, GemmSize{1, 37, 19}, GemmSize{20, 1, 19}}) {
      const auto [m, n, k] = size;
      std::vector<T> a(size_t(m * k), one), b(size_t(k * n), T(0.0f)), c(size_t(m * n));
      a[size_t((m - 1) * k + 3)] = nan;  // times 0 in b
      cpu::gemm(on, size, Matrix<T>{a.data(), k, 1}, Matrix<T>{b.data(), n, 1}, c.data(), n);
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) CHECK(std::isnan(float(c[size_t(i * n + j)])) == (i == m - 1));
      a[size_t((m - 1) * k + 3)] = one;
      b[size_t(18 * n + n - 1)] = inf;
      cpu::gemm(on, size, Matrix<T>{a.data(), k, 1}, Matrix<T>{b.data(), n, 1}, c.data(), n);
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) CHECK(float(c[size_t(i * n + j)]) == (j == n - 1 ? float(inf) : 0.0f));
      std::vector<T> roomy(size_t(m * (k + 1)), nan);  // a NaN behind each row
      for (int64_t i = 0; i < m; ++i) std::fill_n(roomy.begin() + i * (k + 1), k, T(0.0f));
      b[size_t(18 * n + n - 1)] = one;
      cpu::gemm(on, size, Matrix<T>{roomy.data(), k + 1, 1}, Matrix<T>{b.data(), n, 1}, c.data(), n);
      for (const T& sum : c) CHECK(float(sum) == 0);
    }
}

TEST_CASE("gemm with k = 0 scales C and adds the biases") {
  for (const CpuLevel level : levels()) {
    std::vector<float> c(6 * 40, 3.0f), bias(40, 0.5f);
    cpu::gemm(Cpu{level}, GemmSize{6, 40, 0}, Matrix<float>{nullptr, 0, 1}, Matrix<float>{nullptr, 40, 1}, c.data(), 40,
              GemmOptions<float>{.beta = 2, .col_bias = bias.data()});
    for (const float x : c) CHECK(x == 6.5f);
  }
}

TEST_CASE("gemm_batched equals its products one by one, bit for bit, with any strides of the batch") {
  for (const CpuLevel level : levels())
    for (const GemmSize& size :
         {GemmSize{5, 7, 9}, GemmSize{33, 20, 40}, GemmSize{1, 50, 8}, GemmSize{200, 210, 220}}) {
      const auto [m, n, k] = size;
      const int64_t heads = 2, rows = 3;
      const std::vector<float> a = numbers<float>(rows * heads * m * k, 1, 1);
      const std::vector<float> b = numbers<float>(rows * k * n, 1, 2);
      std::vector<float> c(size_t(rows * heads * m * n)), want(c.size());
      // b is the same for every head; c lies head by head.
      const BatchDim batch[] = {{rows, heads * m * k, k * n, m * n}, {heads, m * k, 0, rows * m * n}};
      cpu::gemm_batched(Cpu{level}, std::span<const BatchDim>(batch), size, Matrix<float>{a.data(), k, 1},
                        Matrix<float>{b.data(), n, 1}, c.data(), n);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t h = 0; h < heads; ++h)
          cpu::gemm(Cpu{level}, size, Matrix<float>{a.data() + (r * heads + h) * m * k, k, 1},
                    Matrix<float>{b.data() + r * k * n, n, 1}, want.data() + (h * rows + r) * m * n, n);
      CHECK(std::memcmp(c.data(), want.data(), c.size() * sizeof(float)) == 0);
      float untouched = 1;
      const BatchDim none[] = {{0, 1, 1, 1}};
      cpu::gemm_batched(Cpu{level}, std::span<const BatchDim>(none), size, Matrix<float>{a.data(), k, 1},
                        Matrix<float>{b.data(), n, 1}, &untouched, n);
      CHECK(untouched == 1);
    }
}

TEST_CASE_TEMPLATE("products with one panel of B after another have the bits of the product with B", T, float, double) {
  for (const Cpu& on : cpus())
    for (const int64_t k : {70, 2300}) {
      const int64_t m = 45, panels = 3, columns = cpu::panel_columns(on, T(), 10000, 64, 4096), n = panels * columns;
      REQUIRE(columns > 0);
      CHECK(cpu::panel_columns(on, bf16(), 10000, 64, 4096) == 0);
      CHECK(cpu::panel_columns(on, T(), 1, 64, 4096) == 0);
      CHECK(cpu::panel_columns(on, T(), 10000, 4096, 4096) == 0);
      const Stored<T> a(m, k, 0, 1), b(k, n, 0, 2);
      std::vector<T> by_panels(size_t(k * n)), c = numbers<T>(m * n, 1, 3), want = c;
      for (int64_t p = 0; p < panels; ++p)
        for (int64_t i = 0; i < k; ++i)
          for (int64_t j = 0; j < columns; ++j)
            by_panels[size_t((p * k + i) * columns + j)] = b.view.data[i * n + p * columns + j];
      const GemmOptions<T> adds{.beta = 1};
      cpu::gemm(on, GemmSize{m, n, k}, a.view, b.view, want.data(), n, adds);
      const BatchDim batch[] = {{panels, 0, k * columns, columns}};
      cpu::gemm_batched(on, std::span<const BatchDim>(batch), GemmSize{m, columns, k}, a.view,
                        Matrix<T>{by_panels.data(), columns, 1}, c.data(), n, adds);
      CHECK(std::memcmp(c.data(), want.data(), c.size() * sizeof(T)) == 0);
    }
}

TEST_CASE("a product by tiles is the sum over k for every layout, scale, bias and edge of a tile") {
#if LEVIN_X86_LEVELS
  if (!cpu_runs(Bf16Products::pairs)) return levin::test::skip("this CPU has no AVX512_BF16");
  const GemmSize sizes[] = {{16, 16, 32}, {17, 33, 31},  {1, 1, 1},     {64, 96, 128}, {48, 15, 1055},
                            {15, 48, 40}, {160, 140, 5}, {33, 32, 512}, {300, 70, 65}};
  const double scales[][2] = {{1, 0}, {1, 1}, {-0.5, 2}, {2, 0}};
  int count = 0;
  for (const GemmSize& size : sizes)
    for (int a_layout = 0; a_layout < 4; ++a_layout)
      for (int b_layout = 0; b_layout < 4; ++b_layout) {
        const auto& [alpha, beta] = scales[count % 4];
        const Case t{size, a_layout, b_layout, alpha, beta, (count / 4) % 2 == 1, (count / 8) % 2 == 1};
        ++count;
        check<bf16, bf16, GemmByEmulatedTiles>(t, {});
        check<bf16, float, GemmByEmulatedTiles>(t, {});
      }
#else
  levin::test::skip("no code for x86 levels in this build");
#endif
}

TEST_CASE("a product by tiles has the same bits on one, two and three threads, and keeps NaN to its row") {
#if LEVIN_X86_LEVELS
  if (!cpu_runs(Bf16Products::pairs)) return levin::test::skip("this CPU has no AVX512_BF16");
  const int64_t m = 257, n = 300, k = 1100;
  Stored<bf16> a(m, k, 0, 1);
  const Stored<bf16> b(k, n, 1, 2);
  a.data[size_t(100 * k + 1099)] = bf16(std::numeric_limits<float>::quiet_NaN());
  std::vector<float> c[3];
  for (int threads = 1; threads <= 3; ++threads) {
    const Threads guard(threads);
    c[threads - 1].resize(size_t(m * n));
    GemmByEmulatedTiles::run(Cpu{}, {m, n, k}, a.view, b.view, c[threads - 1].data(), n);
  }
  CHECK(std::memcmp(c[0].data(), c[1].data(), c[0].size() * sizeof(float)) == 0);
  CHECK(std::memcmp(c[0].data(), c[2].data(), c[0].size() * sizeof(float)) == 0);
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) REQUIRE(std::isnan(c[0][size_t(i * n + j)]) == (i == 100));
#else
  levin::test::skip("no code for x86 levels in this build");
#endif
}

TEST_CASE("a block by tiles is the sum over pairs for every edge of a tile, and reads no NaN from beyond it") {
#if LEVIN_X86_LEVELS
  if (!cpu_runs(Bf16Products::pairs)) return levin::test::skip("this CPU has no AVX512_BF16");
  const bf16 nan = bf16(std::numeric_limits<float>::quiet_NaN());
  const GemmSize sizes[] = {{1, 1, 1}, {16, 16, 16}, {17, 33, 5}, {40, 15, 35}, {32, 64, 48}, {9, 48, 17}};  // k: pairs
  for (const auto& [m, n, k] : sizes) {
    CAPTURE(m);
    CAPTURE(n);
    CAPTURE(k);
    // Rows of A lie apart, with NaN between them; B has room for whole vectors, NaN there too.
    const int64_t a_row = k + 3, b_row = (n + 15) / 16 * 16 + 16, ldc = n + 2;
    std::vector<bf16> a(size_t(2 * m * a_row), nan), b(size_t(2 * k * b_row), nan);
    const auto a_values = numbers<bf16>(2 * m * k, 1, 1), b_values = numbers<bf16>(2 * k * n, 1, 2);
    for (int64_t i = 0; i < m; ++i) std::copy_n(&a_values[size_t(2 * i * k)], 2 * k, &a[size_t(2 * i * a_row)]);
    for (int64_t i = 0; i < k; ++i) std::copy_n(&b_values[size_t(2 * i * n)], 2 * n, &b[size_t(2 * i * b_row)]);
    const auto before = numbers<float>(m * ldc, 1, 3), shift = numbers<float>(m, 1, 4);
    std::vector<float> c = before;
    cpu::v4::multiply_block_by_tiles<EmulatedTiles>(m, n, k, {reinterpret_cast<const float*>(a.data()), a_row, 1},
                                                    reinterpret_cast<const float*>(b.data()), b_row,
                                                    {c.data(), ldc, 1.0f, 1.0f, nullptr, shift.data()}, 0);
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < ldc; ++j) {
        double sum = double(before[size_t(i * ldc + j)]);
        if (j < n) {
          sum += double(shift[size_t(i)]);
          for (int64_t kk = 0; kk < 2 * k; ++kk)
            sum += double(a_values[size_t(2 * i * k + kk)]) * double(b_values[size_t(kk / 2 * 2 * n + 2 * j + kk % 2)]);
        }
        REQUIRE(std::abs(double(c[size_t(i * ldc + j)]) - sum) <= (j < n ? 1e-5 * double(k + 4) : 0));
      }
    }
  }
#else
  levin::test::skip("no code for x86 levels in this build");
#endif
}
