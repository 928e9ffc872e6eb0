#include "kernels/linalg/linalg.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "kernels/executor/rows_test.h"

namespace levin::kernels {
namespace {

using cpu::TriangularForm;
using test::levels;

template <class T>
using Numbers = std::vector<T>;
using Places = std::vector<std::int64_t>;

// Around the edges of registers, panels, strips and halves.
constexpr std::int64_t kSizes[] = {1, 2, 15, 16, 17, 31, 33, 64, 100, 257};
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

template <class F>
void at_each_level(const F& f) {
  for (const CpuLevel level : levels()) {
    INFO("level ", std::string(name(level)));
    f(Cpu{level});
  }
}

template <class T>
T& at(Numbers<T>& a, std::int64_t n, std::int64_t row, std::int64_t col) {
  return a[static_cast<std::size_t>(row * n + col)];
}
template <class T>
double at(const Numbers<T>& a, std::int64_t n, std::int64_t row, std::int64_t col) {
  return static_cast<double>(a[static_cast<std::size_t>(row * n + col)]);
}
// n x n numbers in [-1, 1), and `more` on the diagonal.
template <class T>
Numbers<T> square(std::int64_t n, double more, std::uint32_t seed) {
  Numbers<T> a = test::numbers<T>(n * n, 1, seed);
  for (std::int64_t i = 0; i < n; ++i) at(a, n, i, i) += T(more);
  return a;
}
// Symmetric, with eigenvalues above 1.
template <class T>
Numbers<T> positive(std::int64_t n, std::uint32_t seed) {
  Numbers<T> a = square<T>(n, 0, seed);
  for (std::int64_t r = 0; r < n; ++r) {
    for (std::int64_t c = 0; c < r; ++c) at(a, n, r, c) = at(a, n, c, r) *= T(1 / std::sqrt(static_cast<double>(n)));
    at(a, n, r, r) = T(3);
  }
  return a;
}
template <class T>
bool same(const Numbers<T>& a, const Numbers<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}
template <class T>
Numbers<T> joined(const std::vector<Numbers<T>>& all) {
  Numbers<T> out;
  for (const Numbers<T>& one : all) out.insert(out.end(), one.begin(), one.end());
  return out;
}
template <class T>
Numbers<T> part(const Numbers<T>& all, std::int64_t index, std::int64_t size) {
  return {all.begin() + index * size, all.begin() + (index + 1) * size};
}

// The largest |(left right - want) v| for n x n, n x cols, and a v of 1 and -1; infinite where one is NaN.
template <class Left, class Right, class Want>
double error_of(std::int64_t n, std::int64_t cols, const Left& left, const Right& right, const Want& want) {
  const auto v = [](std::int64_t c) { return c * c % 7 < 3 ? 1.0 : -1.0; };
  Numbers<double> product(static_cast<std::size_t>(n));
  for (std::int64_t k = 0; k < n; ++k)
    for (std::int64_t c = 0; c < cols; ++c) product[static_cast<std::size_t>(k)] += right(k, c) * v(c);
  double most = 0;
  for (std::int64_t r = 0; r < n; ++r) {
    double sum = 0;
    for (std::int64_t c = 0; c < cols; ++c) sum -= want(r, c) * v(c);
    for (std::int64_t k = 0; k < n; ++k) sum += left(r, k) * product[static_cast<std::size_t>(k)];
    if (!(std::abs(sum) <= most)) most = std::isnan(sum) ? kInf : std::abs(sum);
  }
  return most;
}
// What rounding may add to numbers around 1.
template <class T>
double bound(std::int64_t n) {
  return 16 * test::kEps<T> * static_cast<double>(n + 8);
}

template <class T>
struct Lu {
  Numbers<T> both;
  Places rows;
  std::int64_t failed;
  Lu(const Cpu& on, Numbers<T> a, std::int64_t n, std::int64_t batch = 1)
      : both(std::move(a)), rows(static_cast<std::size_t>(batch * n)) {
    failed = cpu::lu(on, both.data(), rows.data(), batch, n);
  }
  // Of p a - l u.
  [[nodiscard]] double error(const Numbers<T>& a, std::int64_t n) const {
    Places from(rows.size());
    for (std::int64_t r = 0; r < n; ++r) from[static_cast<std::size_t>(rows[static_cast<std::size_t>(r)])] = r;
    return error_of(
        n, n, [&](auto r, auto k) { return k < r    ? at(both, n, r, k)
                                           : k == r ? 1.0
                                                    : 0.0; },
        [&](auto k, auto c) { return k <= c ? at(both, n, k, c) : 0.0; },
        [&](auto r, auto c) { return at(a, n, from[static_cast<std::size_t>(r)], c); });
  }
  [[nodiscard]] Numbers<T> solve(const Cpu& on, const Numbers<T>& b, std::int64_t n, std::int64_t k,
                                 bool transposed) const {
    Numbers<T> x(b.size());
    cpu::lu_solve(on, both.data(), rows.data(), b.data(), x.data(), std::ssize(b) / (n * k), n, k, transposed);
    return x;
  }
};

// rows of lu() by elimination one column after another.
Places eliminated_rows(Numbers<double> a, std::int64_t n) {
  Places order(static_cast<std::size_t>(n)), rows(order);
  for (std::int64_t r = 0; r < n; ++r) order[static_cast<std::size_t>(r)] = r;
  for (std::int64_t j = 0; j < n; ++j) {
    std::int64_t best = j;
    for (std::int64_t r = j + 1; r < n; ++r)
      if (std::abs(at(a, n, r, j)) > std::abs(at(a, n, best, j))) best = r;
    std::swap(order[static_cast<std::size_t>(j)], order[static_cast<std::size_t>(best)]);
    for (std::int64_t c = 0; c < n; ++c) std::swap(at(a, n, j, c), at(a, n, best, c));
    for (std::int64_t r = j + 1; r < n; ++r) {
      const double l = at(a, n, r, j) / at(a, n, j, j);
      for (std::int64_t c = j; c < n; ++c) at(a, n, r, c) -= l * at(a, n, j, c);
    }
  }
  for (std::int64_t r = 0; r < n; ++r) rows[static_cast<std::size_t>(order[static_cast<std::size_t>(r)])] = r;
  return rows;
}

template <class T>
Numbers<T> triangle_solved(const Cpu& on, const Numbers<T>& a, Numbers<T> b, std::int64_t n, std::int64_t k,
                           TriangularForm form) {
  cpu::solve_triangular(on, a.data(), b.data(), std::ssize(b) / (n * k), n, k, form);
  return b;
}
std::vector<TriangularForm> forms() {
  std::vector<TriangularForm> all;
  for (const bool upper : {false, true})
    for (const bool unit : {false, true})
      for (const bool transposed : {false, true}) all.push_back({upper, unit, transposed});
  return all;
}
// The number that form reads at [r, c].
template <class T>
double read(const Numbers<T>& a, std::int64_t n, std::int64_t r, std::int64_t c, TriangularForm form) {
  if (form.transposed) std::swap(r, c);
  if (r == c) return form.unit ? 1 : at(a, n, r, c);
  return (c > r) == form.upper ? at(a, n, r, c) : 0;
}
// Small beside the diagonal, so that no solution grows; NaN where form does not read.
template <class T>
Numbers<T> triangle(std::int64_t n, TriangularForm form) {
  Numbers<T> a = square<T>(n, 0, 5);
  for (std::int64_t r = 0; r < n; ++r) {
    for (std::int64_t c = 0; c < n; ++c) {
      at(a, n, r, c) *= T(1 / std::sqrt(static_cast<double>(n)));
      if (r == c) at(a, n, r, c) += T(2);
      if (r == c ? form.unit : (c > r) != form.upper) at(a, n, r, c) = T(kNan);
    }
  }
  return a;
}

}  // namespace

TEST_CASE_TEMPLATE("lu gives rows of a matrix as products of two triangles, by the largest pivots", T, float, double) {
  at_each_level([](const Cpu& on) {
    for (const std::int64_t n : kSizes) {
      CAPTURE(n);
      const Numbers<T> a = square<T>(n, 0, 1);
      const Lu<T> f(on, a, n);
      CHECK(f.failed == -1);
      CHECK(f.error(a, n) < bound<T>(n));
      double most = 0;
      for (std::int64_t r = 0; r < n; ++r)
        for (std::int64_t c = 0; c < r; ++c) most = std::max(most, std::abs(at(f.both, n, r, c)));
      CHECK(most <= 1 + test::kEps<T> * 2);
      if constexpr (sizeof(T) == 8) CHECK(f.rows == eliminated_rows(a, n));
    }
  });
}

TEST_CASE("lu exchanges rows across panels, and takes the first of equal pivots") {
  at_each_level([](const Cpu& on) {
    for (const std::int64_t n : {8, 16, 40, 100}) {
      CAPTURE(n);
      Numbers<float> a(static_cast<std::size_t>(n * n)), u(a), ties(a);
      for (std::int64_t r = 0; r < n; ++r) {
        at(a, n, r, n - 1 - r) = float(r + 1);
        at(u, n, r, r) = float(n - r);
        at(ties, n, r, 0) = r == 0 ? 0.5f : r % 2 == 0 ? 2.0f : -2.0f;
      }
      const Lu<float> f(on, a, n);
      CHECK(f.both == u);
      for (std::int64_t r = 0; r < n; ++r) CHECK(f.rows[static_cast<std::size_t>(r)] == n - 1 - r);
      const Lu<float> tied(on, ties, n);
      CHECK(tied.rows[1] == 0);
      CHECK(tied.rows[0] == 1);
    }
  });
}

TEST_CASE_TEMPLATE("lu names the first singular matrix of a batch and goes on after a pivot of 0", T, float, double) {
  at_each_level([](const Cpu& on) {
    for (const auto& [n, column] : {std::pair{2, 1}, {16, 8}, {17, 16}, {64, 40}, {100, 99}}) {
      CAPTURE(n);
      const Numbers<T> regular = square<T>(n, 0, 2);
      Numbers<T> singular = regular;
      for (std::int64_t r = 0; r < n; ++r) at(singular, n, r, column) = 0;
      const Lu<T> f(on, joined<T>({regular, singular, regular, singular}), n, 4);
      CHECK(f.failed == 1);
      const Lu<T> one(on, singular, n);
      CHECK(one.failed == 0);
      CHECK(at(one.both, n, column, column) == 0);
      CHECK(one.error(singular, n) < bound<T>(n));
      CHECK(same(part(f.both, 1, n * n), one.both));
    }
    const Lu<T> known(on, {1, 0, 0, 1, 1, 2, 2, 4, 0, 0, 0, 0}, 2, 3);
    CHECK(known.failed == 1);
  });
}

TEST_CASE_TEMPLATE("lu takes a NaN for a pivot only on the diagonal, and an infinity everywhere", T, float, double) {
  at_each_level([](const Cpu& on) {
    for (const std::int64_t n : {12, 16, 33, 100}) {
      CAPTURE(n);
      const auto is_nan = [&](const Lu<T>& f, std::int64_t r, std::int64_t c) {
        return std::isnan(at(f.both, n, r, c));
      };
      Numbers<T> a = square<T>(n, 0, 3);
      for (std::int64_t c = 0; c < 3; ++c) at(a, n, n - 1, c) *= T(1e-3);  // no pivot
      at(a, n, n - 1, 3) = T(kNan);
      const Lu<T> below(on, a, n);
      CHECK(below.failed == -1);
      CHECK(below.rows[static_cast<std::size_t>(n - 1)] == n - 1);
      std::int64_t wrong = 0;
      for (std::int64_t r = 0; r < n; ++r)
        for (std::int64_t c = 0; c < n; ++c) wrong += is_nan(below, r, c) != (r == n - 1 && c >= 3);
      CHECK(wrong == 0);

      at(a, n, 0, 0) = T(kNan);
      const Lu<T> on_diagonal(on, a, n);
      CHECK(on_diagonal.failed == -1);
      CHECK(on_diagonal.rows[0] == 0);
      for (std::int64_t r = 0; r < n; ++r) CHECK(is_nan(on_diagonal, r, n - 1) == (r > 0));

      a = square<T>(n, 0, 3);
      at(a, n, 5, 0) = T(-kInf);
      const Lu<T> infinite(on, a, n);
      CHECK(infinite.rows[5] == 0);
      CHECK(at(infinite.both, n, 0, 0) == -kInf);
      for (std::int64_t r = 1; r < n; ++r) CHECK(at(infinite.both, n, r, 0) == 0);
      CHECK(std::isfinite(at(infinite.both, n, n - 1, n - 1)));
    }
  });
}

TEST_CASE("lu divides by a pivot that is too small for an inverse") {
  at_each_level([](const Cpu& on) {
    for (const std::int64_t n : {2, 20}) {
      Numbers<float> a(static_cast<std::size_t>(n * n));
      for (std::int64_t i = 0; i < n; ++i) at(a, n, i, i) = 1;
      at(a, n, 0, 0) = 1e-40f;
      at(a, n, 1, 0) = 5e-41f;
      CHECK(at(Lu<float>(on, a, n).both, n, 1, 0) == doctest::Approx(0.5).epsilon(1e-3));
    }
  });
}

TEST_CASE_TEMPLATE("systems of equations and their transposes are solved by lu", T, float, double) {
  at_each_level([](const Cpu& on) {
    for (const std::int64_t n : kSizes) {
      for (const std::int64_t k : {1, 7, 16, 33, 150}) {
        CAPTURE(n);
        CAPTURE(k);
        const Numbers<T> a = square<T>(n, std::sqrt(static_cast<double>(n)) + 1, 4), b = test::numbers<T>(n * k, 1, 6);
        const Lu<T> f(on, a, n);
        for (const bool transposed : {false, true}) {
          const Numbers<T> x = f.solve(on, b, n, k, transposed);
          CHECK(error_of(
                    n, k, [&](auto r, auto c) { return transposed ? at(a, n, c, r) : at(a, n, r, c); },
                    [&](auto r, auto c) { return at(x, k, r, c); },
                    [&](auto r, auto c) { return at(b, k, r, c); }) < 4 * bound<T>(n));
        }
      }
    }
  });
}

TEST_CASE_TEMPLATE("each form of a triangle is solved, and what it does not name is not read", T, float, double) {
  at_each_level([](const Cpu& on) {
    for (const std::int64_t n : kSizes) {
      for (const TriangularForm form : forms()) {
        const std::int64_t k = n % 2 == 0 ? 33 : 5;
        CAPTURE(n);
        CAPTURE(form.upper);
        CAPTURE(form.unit);
        CAPTURE(form.transposed);
        const Numbers<T> a = triangle<T>(n, form), b = test::numbers<T>(n * k, 1, 7);
        const Numbers<T> x = triangle_solved(on, a, b, n, k, form);
        CHECK(error_of(
                  n, k, [&](auto r, auto c) { return read(a, n, r, c, form); },
                  [&](auto r, auto c) { return at(x, k, r, c); },
                  [&](auto r, auto c) { return at(b, k, r, c); }) < bound<T>(n));
      }
    }
  });
}

TEST_CASE_TEMPLATE("a column of a solution has the same bits alone, and a NaN stays in its column", T, float, double) {
  at_each_level([](const Cpu& on) {
    constexpr std::int64_t n = 37;
    const Numbers<T> a = square<T>(n, 4, 8);
    const Lu<T> f(on, a, n);
    for (const std::int64_t k : {1, 15, 16, 17, 64, 65, 150}) {
      CAPTURE(k);
      Numbers<T> b = test::numbers<T>(n * k, 1, 9);
      at(b, k, 3, k - 1) = T(k > 1 ? kNan : 1);
      for (const bool transposed : {false, true}) {
        const TriangularForm form{.transposed = transposed};
        const Numbers<T> x = f.solve(on, b, n, k, transposed), y = triangle_solved(on, a, b, n, k, form);
        for (std::int64_t c = 0; c < k; ++c) {
          Numbers<T> one(n), of_x(n), of_y(n);
          for (std::int64_t r = 0; r < n; ++r) {
            const auto place = static_cast<std::size_t>(r), from = static_cast<std::size_t>(r * k + c);
            one[place] = b[from];
            of_x[place] = x[from];
            of_y[place] = y[from];
          }
          if (c == k - 1 && k > 1) {
            CHECK(std::isnan(of_x[n - 1]));
            continue;
          }
          REQUIRE(same(f.solve(on, one, n, 1, transposed), of_x));
          REQUIRE(same(triangle_solved(on, a, one, n, 1, form), of_y));
          REQUIRE(std::none_of(of_x.begin(), of_x.end(), [](T v) { return std::isnan(v); }));
        }
      }
    }
  });
}

TEST_CASE_TEMPLATE("a triangle with a 0 on its diagonal gives infinities", T, float, double) {
  at_each_level([](const Cpu& on) {
    CHECK(triangle_solved<T>(on, {1, 0, 5, 0}, {1, 9}, 2, 1, {}) == Numbers<T>{1, T(kInf)});
    CHECK(triangle_solved<T>(on, {0, 5, 0, 1}, {9, 1}, 2, 1, {.upper = true}) == Numbers<T>{T(kInf), 1});
  });
}

TEST_CASE_TEMPLATE("cholesky gives a lower triangle whose square is the matrix, from its lower half", T, float,
                   double) {
  at_each_level([](const Cpu& on) {
    for (const std::int64_t n : kSizes) {
      CAPTURE(n);
      const Numbers<T> a = positive<T>(n, 10);
      Numbers<T> l = a;
      for (std::int64_t r = 0; r < n; ++r)
        for (std::int64_t c = r + 1; c < n; ++c) at(l, n, r, c) = T(kNan);
      CHECK(cpu::cholesky(on, l.data(), 1, n) == -1);
      CHECK(error_of(
                n, n, [&](auto r, auto k) { return at(l, n, r, k); }, [&](auto k, auto c) { return at(l, n, c, k); },
                [&](auto r, auto c) { return at(a, n, r, c); }) < bound<T>(n));
      std::int64_t above = 0;
      for (std::int64_t r = 0; r < n; ++r)
        for (std::int64_t c = r + 1; c < n; ++c) above += at(l, n, r, c) != 0;
      CHECK(above == 0);
    }
  });
}

TEST_CASE_TEMPLATE("cholesky names the first matrix of a batch with a pivot of 0 or less, but none with NaN", T, float,
                   double) {
  at_each_level([](const Cpu& on) {
    for (const auto& [n, place] : {std::pair{2, 1}, {16, 15}, {33, 32}, {100, 90}, {257, 200}}) {
      CAPTURE(n);
      const Numbers<T> good = positive<T>(n, 11);
      Numbers<T> bad = good, zero(good.size()), unknown = good;
      at(bad, n, place, place) = -1;
      at(unknown, n, place, place) = T(kNan);
      Numbers<T> all = joined<T>({good, unknown, bad, zero});
      CHECK(cpu::cholesky(on, all.data(), 4, n) == 2);
      CHECK(cpu::cholesky(on, zero.data(), 1, n) == 0);
      CHECK(cpu::cholesky(on, unknown.data(), 1, n) == -1);
      CHECK(std::isnan(at(unknown, n, n - 1, place)));
      CHECK(!std::isnan(at(unknown, n, place, place - 1)));
    }
  });
}

TEST_CASE_TEMPLATE("factors and solutions have the bits of one thread on three", T, float, double) {
  at_each_level([](const Cpu& on) {
    for (const std::int64_t n : {100, 257}) {
      CAPTURE(n);
      constexpr std::int64_t k = 150;
      const Numbers<T> a = square<T>(n, 4, 12), p = positive<T>(n, 13), b = test::numbers<T>(n * k, 1, 14);
      const Lu<T> f(on, a, n);
      Numbers<T> out;
      test::same_bits(out, [&] { out = Lu<T>(on, a, n).both; });
      test::same_bits(out, [&] {
        out = p;
        (void)cpu::cholesky(on, out.data(), 1, n);
      });
      for (const bool transposed : {false, true}) {
        test::same_bits(out, [&] { out = f.solve(on, b, n, k, transposed); });
        test::same_bits(out, [&] { out = triangle_solved(on, a, b, n, k, {.transposed = transposed}); });
      }
    }
  });
}

TEST_CASE_TEMPLATE("the matrices of a batch are factored and solved as each alone", T, float, double) {
  at_each_level([](const Cpu& on) {
    const test::Threads three(3);
    for (const auto& [n, batch] : {std::pair{3, 130}, {8, 130}, {40, 130}, {257, 2}}) {
      CAPTURE(n);
      constexpr std::int64_t k = 5;
      std::vector<Numbers<T>> some, definite;
      for (std::uint32_t i = 0; i < std::uint32_t(batch); ++i) {
        some.push_back(square<T>(n, 2, i));
        definite.push_back(positive<T>(n, i));
      }
      const Numbers<T> a = joined(some), b = test::numbers<T>(batch * n * k, 1, 15);
      const Lu<T> f(on, a, n, batch);
      Numbers<T> l = joined(definite);
      CHECK(cpu::cholesky(on, l.data(), batch, n) == -1);
      const Numbers<T> x = f.solve(on, b, n, k, false), y = triangle_solved(on, a, b, n, k, {.upper = true});
      for (std::int64_t i = 0; i < batch; ++i) {
        const auto place = static_cast<std::size_t>(i);
        const Lu<T> one(on, some[place], n);
        const Numbers<T> right = part(b, i, n * k);
        REQUIRE(same(one.both, part(f.both, i, n * n)));
        REQUIRE(one.rows == part(f.rows, i, n));
        REQUIRE(same(one.solve(on, right, n, k, false), part(x, i, n * k)));
        REQUIRE(same(triangle_solved(on, some[place], right, n, k, {.upper = true}), part(y, i, n * k)));
        REQUIRE(cpu::cholesky(on, definite[place].data(), 1, n) == -1);
        REQUIRE(same(definite[place], part(l, i, n * n)));
      }
    }
  });
}

TEST_CASE("nothing is done for no matrices, rows or right sides") {
  const Cpu on;
  CHECK(cpu::lu<float>(on, nullptr, nullptr, 0, 3) == -1);
  CHECK(cpu::lu<float>(on, nullptr, nullptr, 2, 0) == -1);
  CHECK(cpu::cholesky<double>(on, nullptr, 0, 3) == -1);
  CHECK(cpu::cholesky<double>(on, nullptr, 2, 0) == -1);
  cpu::lu_solve<float>(on, nullptr, nullptr, nullptr, nullptr, 1, 3, 0, false);
  cpu::solve_triangular<float>(on, nullptr, nullptr, 0, 3, 2, {});
}

}  // namespace levin::kernels
