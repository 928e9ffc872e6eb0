// QR, eigenvalues and singular values: each factorisation is multiplied out in f64.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "kernels/executor/rows_test.h"
#include "kernels/linalg/linalg.h"

namespace levin::kernels {
namespace {

using test::kEps;
using test::levels;

// By rows, in f64.
struct Dense {
  std::int64_t m = 0, n = 0;
  std::vector<double> data{};
  Dense(std::int64_t rows, std::int64_t cols) : m(rows), n(cols), data(size_t(rows * cols)) {}
  template <class T>
  Dense(std::int64_t rows, std::int64_t cols, const T* from) : Dense(rows, cols) {
    std::copy(from, from + rows * cols, data.begin());
  }
  double& operator()(std::int64_t i, std::int64_t j) { return data[size_t(i * n + j)]; }
  double operator()(std::int64_t i, std::int64_t j) const { return data[size_t(i * n + j)]; }
};

// Entries are scaled before they are multiplied and summed, so that none over- or underflows in f64.
double largest(const Dense& a) {
  double most = 0;
  for (const double x : a.data) most = std::max(most, std::abs(x));
  return most;
}
double norm(const Dense& a) {
  const double most = largest(a);
  if (most == 0) return 0;
  double sum = 0;
  for (const double x : a.data) sum += x / most * (x / most);
  return most * std::sqrt(sum);
}
Dense product(const Dense& a, const Dense& b) {
  Dense c(a.m, b.n);
  for (std::int64_t i = 0; i < a.m; ++i) {
    double* to = c.data.data() + i * c.n;
    for (std::int64_t k = 0; k < a.n; ++k) {
      const double x = a(i, k);
      const double* from = b.data.data() + k * b.n;
      for (std::int64_t j = 0; j < b.n; ++j) to[j] += x * from[j];
    }
  }
  return c;
}
Dense turned(const Dense& a) {
  Dense b(a.n, a.m);
  for (std::int64_t i = 0; i < a.m; ++i)
    for (std::int64_t j = 0; j < a.n; ++j) b(j, i) = a(i, j);
  return b;
}
Dense scaled_rows(Dense a, const Dense& by) {
  for (std::int64_t i = 0; i < a.m; ++i)
    for (std::int64_t j = 0; j < a.n; ++j) a(i, j) *= by.data[size_t(i)];
  return a;
}
Dense difference(Dense a, const Dense& b) {
  for (size_t i = 0; i < a.data.size(); ++i) a.data[i] -= b.data[i];
  return a;
}
Dense random(std::int64_t m, std::int64_t n, std::uint32_t seed) {
  const std::vector<double> x = test::numbers<double>(m * n, 1, seed);
  return Dense(m, n, x.data());
}
// What products are compared on: all unit vectors, of many columns eight vectors of signs. Both give the Frobenius norm
// of a matrix, the second in the mean.
Dense probes(std::int64_t n) {
  if (n <= 64) {
    Dense one(n, n);
    for (std::int64_t i = 0; i < n; ++i) one(i, i) = 1;
    return one;
  }
  Dense signs = random(n, 8, 5);
  for (double& x : signs.data) x = std::copysign(1 / std::sqrt(8.0), x);
  return signs;
}
// Of sums of products of n numbers in T.
template <class T>
double bound(std::int64_t m, std::int64_t n) {
  return (40 + 0.5 * double(std::max(m, n))) * kEps<T>;
}
// Whether the columns of q are orthonormal. Rotations by like angles round all to one side, so errors add up to more
// than those of sums.
template <class T>
void check_orthonormal(const Dense& q) {
  const Dense x = probes(q.n), back = product(turned(q), product(q, x));
  CHECK(norm(difference(back, x)) <= 2 * bound<T>(q.m, q.n) * std::sqrt(double(q.n)));
}

// A matrix of T by rows.
template <class T>
struct Given {
  std::int64_t m, n;
  std::vector<T> data;
  Given(const Dense& a, double factor = 1) : m(a.m), n(a.n) {
    for (const double x : a.data) data.push_back(T(x * factor));
  }
  Dense wide() const { return Dense(m, n, data.data()); }
};

template <class T>
struct QrOf {
  std::vector<T> q, r;
  QrOf(const Cpu& on, const std::vector<T>& a, std::int64_t batch, std::int64_t m, std::int64_t n)
      : q(size_t(batch * m * std::min(m, n))), r(size_t(batch * std::min(m, n) * n)) {
    cpu::qr(on, a.data(), q.data(), r.data(), batch, m, n);
  }
  bool operator==(const QrOf&) const = default;
};
template <class T>
struct EighOf {
  std::vector<T> w, v;
  std::int64_t failed;
  EighOf(const Cpu& on, const std::vector<T>& a, std::int64_t batch, std::int64_t n)
      : w(size_t(batch * n)), v(size_t(batch * n * n)) {
    failed = cpu::eigh(on, a.data(), w.data(), v.data(), batch, n);
  }
  bool operator==(const EighOf&) const = default;
};
template <class T>
struct SvdOf {
  std::vector<T> u, s, vh;
  std::int64_t failed;
  SvdOf(const Cpu& on, const std::vector<T>& a, std::int64_t batch, std::int64_t m, std::int64_t n)
      : u(size_t(batch * m * std::min(m, n))),
        s(size_t(batch * std::min(m, n))),
        vh(size_t(batch * std::min(m, n) * n)) {
    failed = cpu::svd(on, a.data(), u.data(), s.data(), vh.data(), batch, m, n);
  }
  bool operator==(const SvdOf&) const = default;
};

template <class T>
void check_qr(const Cpu& on, const Given<T>& a) {
  const std::int64_t k = std::min(a.m, a.n);
  const QrOf<T> f(on, a.data, 1, a.m, a.n);
  const Dense q(a.m, k, f.q.data()), r(k, a.n, f.r.data()), x = probes(a.n), whole = a.wide();
  CHECK(norm(difference(product(q, product(r, x)), product(whole, x))) <= bound<T>(a.m, a.n) * norm(whole));
  check_orthonormal<T>(q);
  for (std::int64_t i = 0; i < k; ++i)
    for (std::int64_t j = 0; j < i; ++j) REQUIRE(r(i, j) == 0);
}

// The eigenvalues. What is above the diagonal is not read.
template <class T>
std::vector<T> check_eigh(const Cpu& on, const Given<T>& a) {
  const std::int64_t n = a.n;
  std::vector<T> lower = a.data;
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = i + 1; j < n; ++j) lower[size_t(i * n + j)] = std::numeric_limits<T>::quiet_NaN();
  const EighOf<T> f(on, lower, 1, n);
  CHECK(f.failed == -1);
  const Dense w(n, 1, f.w.data()), v(n, n, f.v.data()), x = probes(n), whole = a.wide();
  const Dense made = product(v, scaled_rows(product(turned(v), x), w));
  CHECK(norm(difference(made, product(whole, x))) <= bound<T>(n, n) * norm(whole));
  check_orthonormal<T>(v);
  CHECK(std::is_sorted(f.w.begin(), f.w.end()));
  return f.w;
}

// The singular values.
template <class T>
std::vector<T> check_svd(const Cpu& on, const Given<T>& a) {
  const std::int64_t k = std::min(a.m, a.n);
  const SvdOf<T> f(on, a.data, 1, a.m, a.n);
  CHECK(f.failed == -1);
  const Dense u(a.m, k, f.u.data()), s(k, 1, f.s.data()), vh(k, a.n, f.vh.data()), x = probes(a.n), whole = a.wide();
  const Dense made = product(u, scaled_rows(product(vh, x), s));
  CHECK(norm(difference(made, product(whole, x))) <= bound<T>(a.m, a.n) * norm(whole));
  check_orthonormal<T>(u);
  check_orthonormal<T>(turned(vh));
  CHECK(std::is_sorted(f.s.begin(), f.s.end(), std::greater<>()));
  CHECK(f.s.back() >= 0);
  return f.s;
}

Dense symmetric(const Dense& a) {
  Dense b = a;
  for (std::int64_t i = 0; i < a.n; ++i)
    for (std::int64_t j = 0; j < a.n; ++j) b(i, j) = (a(i, j) + a(j, i)) / 2;
  return b;
}
// q diag(d) q^T, where q is the product of two reflections.
Dense with_spectrum(const std::vector<double>& d) {
  const std::int64_t n = std::int64_t(d.size());
  Dense a(n, n);
  for (std::int64_t i = 0; i < n; ++i) a(i, i) = d[size_t(i)];
  for (const std::uint32_t seed : {1u, 2u}) {
    Dense v = random(n, 1, seed), h(n, n);
    const double size = norm(v);
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t j = 0; j < n; ++j) h(i, j) = double(i == j) - 2 * v(i, 0) / size * (v(j, 0) / size);
    a = product(h, product(a, h));
  }
  return symmetric(a);
}
std::vector<double> filled(std::int64_t n, const std::function<double(std::int64_t)>& f) {
  std::vector<double> x;
  for (std::int64_t i = 0; i < n; ++i) x.push_back(f(i));
  return x;
}
Dense made(std::int64_t n, const std::function<double(std::int64_t, std::int64_t)>& f) {
  Dense a(n, n);
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j < n; ++j) a(i, j) = f(i, j);
  return a;
}

struct Named {
  std::string name;
  Dense a;
};
// Symmetric matrices that are hard in one way each.
template <class T>
std::vector<Named> hard(std::int64_t n) {
  const Dense any = symmetric(random(n, n, 3));
  const double decades = std::is_same_v<T, float> ? 15 : 30, most = double(std::numeric_limits<T>::max());
  const auto grade = [=](std::int64_t i) { return std::pow(10, decades * (double(i) / double(n - 1) - 0.5)); };
  Dense low(n, n);
  for (std::int64_t k = 0; k < 3; ++k) {
    const Dense x = random(n, 1, std::uint32_t(7 + k)), xx = product(x, turned(x));
    for (size_t i = 0; i < xx.data.size(); ++i) low.data[i] += xx.data[i];
  }
  const auto times = [&](double factor) { return made(n, [&](auto i, auto j) { return any(i, j) * factor; }); };
  return {
      {"zero", Dense(n, n)},
      {"identity", made(n, [](auto i, auto j) { return double(i == j); })},
      {"diagonal", made(n, [](auto i, auto j) { return i == j ? std::sin(double(3 * i)) : 0; })},
      {"tridiagonal", made(n, [](auto i, auto j) { return i == j                 ? 2.
                                                          : std::abs(i - j) == 1 ? -1.
                                                                                 : 0.; })},
      {"zero diagonal", made(n, [](auto i, auto j) { return double(std::abs(i - j) == 1); })},
      {"ones", made(n, [](auto, auto) { return 1.; })},
      {"repeated", with_spectrum(filled(n, [](auto i) { return double(i % 3) - 1; }))},
      {"clustered", with_spectrum(filled(n, [](auto i) { return 1 + double(kEps<T>) * double(i); }))},
      {"two clusters", with_spectrum(filled(n, [=](auto i) { return (i < n / 2 ? 1 : 1e-3) + 1e-6 * double(i); }))},
      {"geometric", with_spectrum(filled(n, [](auto i) { return std::pow(0.5, double(i)); }))},
      {"low rank", low},
      {"blocks", made(n, [&](auto i, auto j) { return i / 4 == j / 4 ? any(i, j) : 0.; })},
      {"growing", made(n, [&](auto i, auto j) { return any(i, j) * grade(i) * grade(j); })},
      {"falling", made(n, [&](auto i, auto j) { return any(i, j) * grade(n - 1 - i) * grade(n - 1 - j); })},
      {"arrow", made(n, [](auto i, auto j) { return i == j             ? double(i)
                                                    : i == 0 || j == 0 ? 1.
                                                                       : 0.; })},
      {"huge", times(most / double(n) / 4)},
      {"tiny", times(4 * double(std::numeric_limits<T>::min()))},
  };
}

// In f64, column by column.
Dense r_by_reflections(Dense a) {
  for (std::int64_t j = 0; j < std::min(a.m, a.n); ++j) {
    Dense v(a.m, 1);
    for (std::int64_t i = j; i < a.m; ++i) v(i, 0) = a(i, j);
    const double size = norm(v);
    double rest = 0;
    for (std::int64_t i = j + 1; i < a.m; ++i) rest = std::max(rest, std::abs(v(i, 0)));
    if (rest == 0) continue;
    v(j, 0) += std::copysign(size, v(j, 0));
    const double length = norm(v);
    for (std::int64_t c = j; c < a.n; ++c) {
      double dot = 0;
      for (std::int64_t i = j; i < a.m; ++i) dot += v(i, 0) / length * a(i, c);
      for (std::int64_t i = j; i < a.m; ++i) a(i, c) -= 2 * dot * v(i, 0) / length;
    }
  }
  return a;
}

constexpr std::array<std::int64_t, 11> kSizes{1, 2, 3, 8, 15, 16, 17, 33, 64, 100, 257};
constexpr std::array<std::array<std::int64_t, 2>, 10> kRectangles{
    {{2, 1}, {1, 2}, {5, 4}, {40, 3}, {3, 40}, {70, 50}, {50, 70}, {300, 45}, {45, 300}, {90, 61}}};
template <class T>
void at_levels(const std::function<void(const Cpu&)>& check) {
  for (const CpuLevel level : levels()) {
    INFO("level ", std::string(name(level)));
    check(Cpu{level});
  }
}

}  // namespace

TEST_CASE_TEMPLATE("q of a QR is orthonormal, r is a triangle, and their product is the matrix", T, float, double) {
  at_levels<T>([](const Cpu& on) {
    for (const std::int64_t n : kSizes) {
      CAPTURE(n);
      check_qr(on, Given<T>(random(n, n, 1)));
    }
    for (const auto& [m, n] : kRectangles) {
      CAPTURE(m);
      CAPTURE(n);
      check_qr(on, Given<T>(random(m, n, 2)));
    }
    for (const Named& each : hard<T>(33)) {
      CAPTURE(each.name);
      check_qr(on, Given<T>(each.a));
    }
  });
}

TEST_CASE_TEMPLATE("r of a QR has the signs of Householder's reflections as LAPACK makes them", T, float, double) {
  at_levels<T>([](const Cpu& on) {
    for (const auto& [m, n] : {std::pair{20, 20}, {50, 45}, {9, 14}}) {
      CAPTURE(m);
      const Given<T> a(random(m, n, 4));
      const QrOf<T> f(on, a.data, 1, m, n);
      const Dense want = r_by_reflections(a.wide());
      for (std::int64_t i = 0; i < std::min(m, n); ++i)
        for (std::int64_t j = i; j < n; ++j)
          REQUIRE(std::abs(double(f.r[size_t(i * n + j)]) - want(i, j)) < 1e4 * kEps<T>);
    }
    // Nothing to reflect: the diagonal keeps its signs.
    const QrOf<T> f(on, {2, 1, 0, -3}, 1, 2, 2);
    CHECK(f.r == std::vector<T>{2, 1, 0, -3});
    CHECK(f.q == std::vector<T>{1, 0, 0, 1});
  });
}

TEST_CASE_TEMPLATE("each column of a QR is as exact as its own size allows", T, float, double) {
  at_levels<T>([](const Cpu& on) {
    const std::int64_t m = 40, n = 12;
    Dense a = random(m, n, 6);
    const double far = std::is_same_v<T, float> ? 1e5 : 1e45;
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < n; ++j) a(i, j) *= std::pow(far, double(j % 7 - 3));
    const Given<T> given(a);
    const QrOf<T> f(on, given.data, 1, m, n);
    const Dense made_of = product(Dense(m, n, f.q.data()), Dense(n, n, f.r.data()));
    for (std::int64_t j = 0; j < n; ++j) {
      double size = 0, apart = 0;
      for (std::int64_t i = 0; i < m; ++i) {
        size = std::max(size, std::abs(given.wide()(i, j)));
        apart = std::max(apart, std::abs(made_of(i, j) - given.wide()(i, j)));
      }
      CAPTURE(j);
      CHECK(apart <= 40 * kEps<T> * size);
    }
  });
}

TEST_CASE_TEMPLATE("eigenvalues ascend, and their vectors make the symmetric matrix", T, float, double) {
  at_levels<T>([](const Cpu& on) {
    for (const std::int64_t n : kSizes) {
      CAPTURE(n);
      (void)check_eigh(on, Given<T>(symmetric(random(n, n, 1))));
    }
    for (const std::int64_t n : {2, 5, 33, 70}) {
      for (const Named& each : hard<T>(n)) {
        CAPTURE(n);
        CAPTURE(each.name);
        (void)check_eigh(on, Given<T>(each.a));
      }
    }
  });
}

TEST_CASE_TEMPLATE("singular values descend, and their vectors make the matrix", T, float, double) {
  at_levels<T>([](const Cpu& on) {
    for (const std::int64_t n : kSizes) {
      CAPTURE(n);
      (void)check_svd(on, Given<T>(random(n, n, 1)));
    }
    for (const auto& [m, n] : kRectangles) {
      CAPTURE(m);
      CAPTURE(n);
      (void)check_svd(on, Given<T>(random(m, n, 2)));
    }
    for (const std::int64_t n : {2, 5, 33, 70}) {
      for (const Named& each : hard<T>(n)) {
        CAPTURE(n);
        CAPTURE(each.name);
        (void)check_svd(on, Given<T>(each.a));
      }
    }
  });
}

TEST_CASE_TEMPLATE("singular values of matrices that are graded by rows, by columns and as bidiagonals", T, float,
                   double) {
  at_levels<T>([](const Cpu& on) {
    const std::int64_t n = 40;
    const double decades = std::is_same_v<T, float> ? 15 : 30;
    const auto grade = [=](std::int64_t i) { return std::pow(10, 2 * decades * (double(i) / double(n - 1) - 0.5)); };
    const Dense any = random(n, n, 9);
    const auto check = [&](const std::function<double(std::int64_t, std::int64_t)>& f) {
      (void)check_svd(on, Given<T>(made(n, f)));
    };
    check([&](auto i, auto j) { return any(i, j) * grade(i); });
    check([&](auto i, auto j) { return any(i, j) * grade(j); });
    check([&](auto i, auto j) { return any(i, j) * grade(n - 1 - i); });
    check([&](auto i, auto j) { return any(i, j) * grade(n - 1 - j); });
    check([&](auto i, auto j) { return j == i || j == i + 1 ? any(i, j) * grade(i) : 0; });
    check([&](auto i, auto j) { return j == i || j == i + 1 ? any(i, j) * grade(n - 1 - i) : 0; });
    // Zeros on a bidiagonal's diagonal: first, in the middle, last, and all of them.
    for (const std::int64_t zero : {std::int64_t{0}, n / 2, n - 1})
      check([&](auto i, auto j) { return (j == i && i != zero) || j == i + 1 ? 1 + any(i, j) : 0; });
    check([&](auto i, auto j) { return j == i + 1 ? 1 + any(i, j) : 0; });
  });
}

TEST_CASE_TEMPLATE("eigenvalues and singular values that are known", T, float, double) {
  at_levels<T>([](const Cpu& on) {
    const std::int64_t n = 50;
    const double near = bound<T>(n, n) * 14;
    const std::vector<double> known = filled(n, [](auto i) { return double(i / 2) - 10; });
    const Given<T> a(with_spectrum(known));
    const std::vector<T> w = check_eigh(on, a), s = check_svd(on, a);
    std::vector<double> sizes;
    for (const double x : known) sizes.push_back(std::abs(x));
    std::sort(sizes.rbegin(), sizes.rend());
    for (size_t i = 0; i < known.size(); ++i) {
      CHECK(std::abs(double(w[i]) - known[i]) < near);
      CHECK(std::abs(double(s[i]) - sizes[i]) < near);
    }
    // Of a diagonal they are its numbers, bit for bit.
    const EighOf<T> f(on, {3, 0, 0, 0, -1, 0, 0, 0, 2}, 1, 3);
    CHECK(f.w == std::vector<T>{-1, 2, 3});
    const SvdOf<T> g(on, {3, 0, 0, 0, -4, 0, 0, 0, 2}, 1, 3, 3);
    CHECK(g.s == std::vector<T>{4, 3, 2});
  });
}

TEST_CASE_TEMPLATE("singular values below the precision of the largest are found no larger than that", T, float,
                   double) {
  at_levels<T>([](const Cpu& on) {
    const std::int64_t n = 60, rank = 7;
    const Given<T> a(product(random(n, rank, 1), random(rank, n, 2)));
    const std::vector<T> s = check_svd(on, a);
    CHECK(double(s[rank - 1]) > 0.1);
    CHECK(double(s[rank]) < bound<T>(n, n) * double(s[0]));
  });
}

TEST_CASE_TEMPLATE("factorisations have the same bits on any number of threads, and in a batch or alone", T, float,
                   double) {
  const auto check = [](const Cpu& on, std::int64_t batch, std::int64_t m, std::int64_t n) {
    CAPTURE(m);
    CAPTURE(n);
    const std::vector<T> a = test::numbers<T>(batch * m * n, 1, 8);
    const auto all = [&] {
      return std::tuple(QrOf<T>(on, a, batch, m, n), SvdOf<T>(on, a, batch, m, n),
                        m == n ? EighOf<T>(on, a, batch, n) : EighOf<T>(on, {}, 0, 0));
    };
    const test::Threads one(1);
    const auto want = all();
    {
      const test::Threads three(3);
      CHECK(all() == want);
    }
    if (batch == 1) return;
    const std::int64_t last = batch - 1;
    const std::vector<T> alone(a.begin() + last * m * n, a.end());
    const QrOf<T> qr(on, alone, 1, m, n);
    const SvdOf<T> svd(on, alone, 1, m, n);
    CHECK(std::equal(qr.q.begin(), qr.q.end(), std::get<0>(want).q.end() - std::ptrdiff_t(qr.q.size())));
    CHECK(std::equal(svd.u.begin(), svd.u.end(), std::get<1>(want).u.end() - std::ptrdiff_t(svd.u.size())));
    CHECK(std::equal(svd.vh.begin(), svd.vh.end(), std::get<1>(want).vh.end() - std::ptrdiff_t(svd.vh.size())));
  };
  at_levels<T>([&](const Cpu& on) {
    check(on, 20, 8, 8);
    check(on, 3, 70, 70);
    check(on, 2, 150, 40);
    check(on, 1, 130, 130);
  });
  check(Cpu{}, 1, 520, 520);  // several parts of a pass
}

TEST_CASE_TEMPLATE("a matrix that is not finite fails by its number in the batch, and its results are NaN", T, float,
                   double) {
  at_levels<T>([](const Cpu& on) {
    for (const std::int64_t n : {1, 3, 40}) {
      for (const T bad : {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::infinity(),
                          -std::numeric_limits<T>::infinity()}) {
        CAPTURE(n);
        const std::vector<T> good = test::numbers<T>(3 * n * n, 1, 8);
        std::vector<T> a = good;
        a[size_t(2 * n * n - n)] = bad;  // the first of the second's last row
        const auto nans = [](const std::vector<T>& x, std::int64_t each) {
          for (std::int64_t i = 0; i < 3 * each; ++i) REQUIRE(std::isnan(x[size_t(i)]) == (i / each == 1));
        };
        const EighOf<T> f(on, a, 3, n);
        CHECK(f.failed == 1);
        nans(f.w, n);
        nans(f.v, n * n);
        const SvdOf<T> g(on, a, 3, n, n);
        CHECK(g.failed == 1);
        nans(g.u, n * n);
        nans(g.s, n);
        nans(g.vh, n * n);
        // A QR does not fail.
        const QrOf<T> h(on, a, 3, n, n), of_good(on, good, 3, n, n);
        CHECK(!std::isfinite(h.r[size_t(n * n)]));
        CHECK(std::equal(h.r.begin(), h.r.begin() + n * n, of_good.r.begin()));
        CHECK(std::equal(h.r.begin() + 2 * n * n, h.r.end(), of_good.r.begin() + 2 * n * n));
      }
    }
  });
}

TEST_CASE("matrices without elements have factors without elements") {
  const Cpu on;
  for (const auto& [batch, m, n] : {std::array<std::int64_t, 3>{0, 3, 3}, {2, 0, 0}, {2, 0, 4}, {2, 4, 0}}) {
    CHECK(SvdOf<float>(on, {}, batch, m, n).failed == -1);
    (void)QrOf<float>(on, {}, batch, m, n);
    if (m == n) CHECK(EighOf<float>(on, {}, batch, n).failed == -1);
  }
}

}  // namespace levin::kernels
