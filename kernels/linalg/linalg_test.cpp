#include "kernels/linalg/linalg.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "kernels/executor/rows_test.h"

#if LEVIN_HAVE_EIGEN
namespace levin::kernels {
namespace {

using test::levels;

constexpr std::int64_t n = 37;

// Numbers in [-1, 1] and `more` on the diagonal.
template <class T>
std::vector<T> matrix(T more) {
  std::vector<T> a(n * n);
  for (std::int64_t i = 0; i < n * n; ++i) a[size_t(i)] = T(std::sin(double(i * i % 1013)));
  for (std::int64_t i = 0; i < n; ++i) a[size_t(i * n + i)] += more;
  return a;
}

// The largest |a x - b| of matrices by rows, where transposed of a^T x - b.
template <class T>
double error_of(const std::vector<T>& a, const std::vector<T>& x, const std::vector<T>& b, bool transposed) {
  double most = 0;
  for (std::int64_t r = 0; r < n; ++r) {
    for (std::int64_t c = 0; c < n; ++c) {
      double sum = -double(b[size_t(r * n + c)]);
      for (std::int64_t k = 0; k < n; ++k)
        sum += double(a[size_t(transposed ? k * n + r : r * n + k)]) * double(x[size_t(k * n + c)]);
      most = std::max(most, std::abs(sum));
    }
  }
  return most;
}

template <class T>
void solves(double bound) {
  for (const CpuLevel level : levels()) {
    INFO("level ", std::string(name(level)));
    const Cpu on{level};
    const auto& by = cpu::linalg<T>(on);
    const std::vector<T> a = matrix<T>(4), b = matrix<T>(0);
    std::vector<T> x(n * n), lu(n * n), triangle = a;
    std::vector<std::int64_t> rows(n);
    for (std::int64_t r = 0; r < n; ++r)
      for (std::int64_t c = 0; c < n; ++c) lu[size_t(c * n + r)] = a[size_t(r * n + c)];
    REQUIRE(by.lu(on, lu.data(), rows.data(), 1, n) == -1);
    for (const bool transposed : {false, true}) {
      by.lu_solve(on, lu.data(), rows.data(), b.data(), x.data(), 1, n, n, transposed);
      CHECK(error_of(a, x, b, transposed) < bound);
    }
    for (std::int64_t r = 0; r < n; ++r)
      for (std::int64_t c = r + 1; c < n; ++c) triangle[size_t(r * n + c)] = 0;
    for (const bool transposed : {false, true}) {
      x = b;
      by.solve_triangular(on, a.data(), x.data(), 1, n, n, {.transposed = transposed});
      CHECK(error_of(triangle, x, b, transposed) < bound);
    }
  }
}

// A batch of two systems with n rows and `columns` right sides.
template <class T>
struct Systems {
  std::vector<T> lu, triangles, b;
  std::vector<std::int64_t> rows = std::vector<std::int64_t>(2 * n);
  Systems(const Cpu& on, std::int64_t columns) : b(size_t(2 * n * columns)) {
    for (const T more : {T(4), T(5)}) {
      const std::vector<T> a = matrix<T>(more);
      lu.insert(lu.end(), a.begin(), a.end());
    }
    triangles = lu;
    for (std::size_t i = 0; i < b.size(); ++i) b[i] = T(std::sin(double(i * i % 997)));
    REQUIRE(cpu::linalg<T>(on).lu(on, lu.data(), rows.data(), 2, n) == -1);
  }
  std::vector<T> by_lu(const Cpu& on, std::int64_t columns, bool transposed) const {
    std::vector<T> x(b.size());
    cpu::linalg<T>(on).lu_solve(on, lu.data(), rows.data(), b.data(), x.data(), 2, n, columns, transposed);
    return x;
  }
  std::vector<T> by_triangles(const Cpu& on, std::int64_t columns, bool transposed) const {
    std::vector<T> x = b;
    cpu::linalg<T>(on).solve_triangular(on, triangles.data(), x.data(), 2, n, columns, {.transposed = transposed});
    return x;
  }
};

}  // namespace

TEST_CASE_TEMPLATE("each right side of a system is solved, however many, with the bits of one thread", T, float,
                   double) {
  for (const CpuLevel level : levels()) {
    const Cpu on{level};
    for (const std::int64_t columns : {1, 64, 65, 150}) {
      CAPTURE(columns);
      const Systems<T> all(on, columns);
      for (const bool transposed : {false, true}) {
        CAPTURE(transposed);
        const test::Threads one_thread(1);
        const std::vector<T> x = all.by_lu(on, columns, transposed), y = all.by_triangles(on, columns, transposed);
        {
          const test::Threads three(3);
          CHECK(all.by_lu(on, columns, transposed) == x);
          CHECK(all.by_triangles(on, columns, transposed) == y);
        }
        // Each column alone.
        for (std::int64_t c = 0; c < columns; ++c) {
          Systems<T> one(on, 1);
          for (std::int64_t r = 0; r < 2 * n; ++r) one.b[size_t(r)] = all.b[size_t(r * columns + c)];
          const std::vector<T> one_x = one.by_lu(on, 1, transposed), one_y = one.by_triangles(on, 1, transposed);
          double apart = 0;
          for (std::int64_t r = 0; r < 2 * n; ++r) {
            apart = std::max(apart, std::abs(double(one_x[size_t(r)]) - double(x[size_t(r * columns + c)])));
            apart = std::max(apart, std::abs(double(one_y[size_t(r)]) - double(y[size_t(r * columns + c)])));
          }
          REQUIRE(apart < (sizeof(T) == 4 ? 1e-3 : 1e-12));
        }
      }
    }
  }
}

TEST_CASE("systems of equations are solved at every level of the CPU") {
  solves<float>(1e-3);
  solves<double>(1e-12);
}

TEST_CASE("a singular matrix is named by its number in the batch at every level of the CPU") {
  for (const CpuLevel level : levels()) {
    const Cpu on{level};
    std::vector<double> a{1, 0, 0, 1, 1, 2, 2, 4, 0, 0, 0, 0};
    std::vector<std::int64_t> rows(6);
    CHECK(cpu::linalg<double>(on).lu(on, a.data(), rows.data(), 3, 2) == 1);
  }
}

}  // namespace levin::kernels
#endif
