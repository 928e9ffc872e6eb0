#include "kernels/softmax/cross_entropy.cuh"

#include "kernels/executor/rows_test.h"

namespace levin::kernels {
namespace {

using test::close, test::kEps, test::levels, test::numbers, test::same_bits, test::wide;

struct Box {
  int64_t outer, dim, inner;
  [[nodiscard]] int64_t size() const { return outer * dim * inner; }
};
const Box kBoxes[] = {{1, 1, 1}, {3, 5, 1}, {2, 17, 1},   {5, 64, 1},   {70, 1000, 1}, {1, 4099, 1},
                      {0, 7, 1}, {4, 3, 2}, {2, 10, 129}, {1, 33, 500}, {3, 1, 7},     {2, 0, 3}};

// The definition, in double: probabilities and their logarithms.
struct Reference {
  std::vector<double> p, log_p;
};
template <class T>
Reference reference(const std::vector<T>& x, Box b) {
  Reference r{std::vector<double>(x.size()), std::vector<double>(x.size())};
  for (int64_t o = 0; o < b.outer; ++o)
    for (int64_t i = 0; i < b.inner; ++i) {
      auto at = [&](int64_t d) { return size_t((o * b.dim + d) * b.inner + i); };
      double top = -std::numeric_limits<double>::infinity(), sum = 0;
      for (int64_t d = 0; d < b.dim; ++d) top = std::max(top, wide(x[at(d)]));
      for (int64_t d = 0; d < b.dim; ++d) sum += std::exp(wide(x[at(d)]) - top);
      for (int64_t d = 0; d < b.dim; ++d) {
        r.log_p[at(d)] = wide(x[at(d)]) - top - std::log(sum);
        r.p[at(d)] = std::exp(r.log_p[at(d)]);
      }
    }
  return r;
}

TEST_CASE_TEMPLATE("softmax and log_softmax agree with their definition at every level", T, float, double, f16, bf16) {
  for (const Box b : kBoxes) {
    CAPTURE(b.outer);
    CAPTURE(b.dim);
    CAPTURE(b.inner);
    const std::vector<T> x = numbers<T>(b.size(), 8, 3);
    const Reference want = reference(x, b);
    for (const CpuLevel level : levels()) {
      const Cpu on{level};
      std::vector<T> y(x.size());
      // Few roundings of numbers up to 1, and a sum of dim positive terms; logarithms reach 16 + log(dim) < 25.
      const double steps = 8 + 2 * std::sqrt(double(b.dim));
      same_bits(y, [&] { cpu::softmax(on, x.data(), y.data(), b.outer, b.dim, b.inner); });
      close(y, want.p, steps, b.dim > 64 ? 16.0 / double(b.dim) : 1.0);
      same_bits(y, [&] { cpu::log_softmax(on, x.data(), y.data(), b.outer, b.dim, b.inner); });
      close(y, want.log_p, 8, 25);
      std::vector<T> in_place = x;
      cpu::softmax(on, in_place.data(), in_place.data(), b.outer, b.dim, b.inner);
      close(in_place, want.p, steps, 1);
    }
  }
}

TEST_CASE_TEMPLATE("softmax_backward and log_softmax_backward agree with their definition at every level", T, float,
                   double, f16, bf16) {
  for (const Box b : kBoxes) {
    CAPTURE(b.dim);
    CAPTURE(b.inner);
    const std::vector<T> x = numbers<T>(b.size(), 4, 5), gy = numbers<T>(b.size(), 1, 9);
    const Reference r = reference(x, b);
    std::vector<T> p(x.size()), log_p(x.size());
    for (size_t i = 0; i < x.size(); ++i) p[i] = T(r.p[i]), log_p[i] = T(r.log_p[i]);
    std::vector<double> want(x.size()), want_log(x.size());
    for (int64_t o = 0; o < b.outer; ++o)
      for (int64_t i = 0; i < b.inner; ++i) {
        auto at = [&](int64_t d) { return size_t((o * b.dim + d) * b.inner + i); };
        double dot = 0, sum = 0;
        for (int64_t d = 0; d < b.dim; ++d) dot += wide(gy[at(d)]) * wide(p[at(d)]), sum += wide(gy[at(d)]);
        for (int64_t d = 0; d < b.dim; ++d) {
          want[at(d)] = (wide(gy[at(d)]) - dot) * wide(p[at(d)]);
          want_log[at(d)] = wide(gy[at(d)]) - std::exp(wide(log_p[at(d)])) * sum;
        }
      }
    for (const CpuLevel level : levels()) {
      const Cpu on{level};
      std::vector<T> gx(x.size());
      const double steps = 8 + 2 * std::sqrt(double(b.dim));
      same_bits(gx, [&] { cpu::softmax_backward(on, gy.data(), p.data(), gx.data(), b.outer, b.dim, b.inner); });
      close(gx, want, steps, 2);
      same_bits(gx,
                [&] { cpu::log_softmax_backward(on, gy.data(), log_p.data(), gx.data(), b.outer, b.dim, b.inner); });
      close(gx, want_log, steps, 2 + std::sqrt(double(b.dim)));
    }
  }
}

TEST_CASE("softmax_rows keeps to its strides") {
  const std::vector<float> x = numbers<float>(6 * 40, 3, 1);
  for (const CpuLevel level : levels()) {
    std::vector<float> y(6 * 50, 7.0f), packed(6 * 33), want(6 * 33);
    for (int64_t r = 0; r < 6; ++r) std::copy_n(x.data() + r * 40, 33, packed.data() + r * 33);
    cpu::softmax(Cpu{level}, packed.data(), want.data(), int64_t{6}, int64_t{33}, int64_t{1});
    cpu::softmax_rows(Cpu{level}, x.data(), int64_t{40}, y.data(), int64_t{50}, int64_t{6}, int64_t{33});
    for (int64_t r = 0; r < 6; ++r)
      for (int64_t c = 0; c < 50; ++c) REQUIRE(y[size_t(r * 50 + c)] == (c < 33 ? want[size_t(r * 33 + c)] : 7.0f));
  }
}

TEST_CASE("softmax of large numbers, masked numbers and NaN") {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const CpuLevel level : levels())
    for (const int64_t inner : {1, 3}) {
      const int64_t dim = 20;
      const Cpu on{level};
      std::vector<float> x(size_t(dim * inner), 1e30f), y(x.size());
      cpu::softmax(on, x.data(), y.data(), int64_t{1}, dim, inner);
      for (const float v : y) CHECK(v == doctest::Approx(0.05));
      for (int64_t i = 0; i < inner; ++i) x[size_t(7 * inner + i)] = -inf;
      cpu::softmax(on, x.data(), y.data(), int64_t{1}, dim, inner);
      CHECK(y[size_t(7 * inner)] == 0);
      CHECK(y[0] == doctest::Approx(1.0 / 19));
      cpu::log_softmax(on, x.data(), y.data(), int64_t{1}, dim, inner);
      CHECK(y[size_t(7 * inner)] == -inf);
      x[size_t(3 * inner)] = nan;
      cpu::softmax(on, x.data(), y.data(), int64_t{1}, dim, inner);
      for (int64_t d = 0; d < dim; ++d) CHECK(std::isnan(y[size_t(d * inner)]));
      std::fill(x.begin(), x.end(), -inf);
      cpu::softmax(on, x.data(), y.data(), int64_t{1}, dim, inner);
      for (const float v : y) CHECK(std::isnan(v));
    }
}

struct Entropy {
  int64_t rows, cols;
  bool weighted;
  double smoothing;
};

TEST_CASE_TEMPLATE("cross_entropy and its gradient agree with their definition", T, float, double, f16, bf16) {
  constexpr int64_t ignored = -100;
  for (const Entropy e : {Entropy{1, 1, false, 0}, Entropy{7, 10, false, 0}, Entropy{7, 10, true, 0.1},
                          Entropy{300, 130, true, 0}, Entropy{300, 130, false, 0.3}, Entropy{5, 2000, true, 0.2}}) {
    CAPTURE(e.rows);
    CAPTURE(e.cols);
    const std::vector<T> x = numbers<T>(e.rows * e.cols, 4, 21);
    using A = Accum<T>;
    std::vector<A> w = numbers<A>(e.cols, 0.5, 4);
    for (A& v : w) v += 1;
    const A* const weights = e.weighted ? w.data() : nullptr;
    std::vector<int64_t> target(static_cast<size_t>(e.rows));
    for (int64_t r = 0; r < e.rows; ++r) target[size_t(r)] = r % 5 == 3 ? ignored : (r * 7919) % e.cols;
    const Reference ref = reference(x, {e.rows, e.cols, 1});
    auto weight_of = [&](int64_t c) { return e.weighted ? wide(w[size_t(c)]) : 1.0; };
    std::vector<double> loss(size_t(e.rows), 0), lse(static_cast<size_t>(e.rows));
    double sum = 0, total = 0;
    for (int64_t r = 0; r < e.rows; ++r) {
      lse[size_t(r)] = wide(x[size_t(r * e.cols)]) - ref.log_p[size_t(r * e.cols)];
      const int64_t t = target[size_t(r)];
      if (t == ignored) continue;
      double& l = loss[size_t(r)];
      l = -weight_of(t) * (1 - e.smoothing) * ref.log_p[size_t(r * e.cols + t)];
      for (int64_t c = 0; c < e.cols; ++c)
        l -= e.smoothing / double(e.cols) * weight_of(c) * ref.log_p[size_t(r * e.cols + c)];
      sum += l, total += weight_of(t);
    }
    const double steps = 16 + 2 * std::sqrt(double(e.cols));
    for (const CpuLevel level : levels())
      for (const Reduction reduction : {Reduction::none, Reduction::sum, Reduction::mean}) {
        const Cpu on{level};
        std::vector<A> out(reduction == Reduction::none ? size_t(e.rows) : 1);
        std::vector<A> got_lse(static_cast<size_t>(e.rows)), got_weight(1);
        same_bits(out, [&] {
          cpu::cross_entropy(on, x.data(), target.data(), weights, out.data(), got_lse.data(), got_weight.data(),
                             e.rows, e.cols, ignored, e.smoothing, reduction);
        });
        const std::vector<double> want = reduction == Reduction::none  ? loss
                                         : reduction == Reduction::sum ? std::vector<double>{sum}
                                                                       : std::vector<double>{sum / total};
        close(out, want, steps, reduction == Reduction::sum ? 15 * double(e.rows) : 15.0);
        close(got_lse, lse, steps, 15);
        close(got_weight, {total}, 4, total);

        const std::vector<A> gy(out.size(), A(0.75));
        std::vector<T> gx(x.size());
        std::vector<double> want_gx(x.size(), 0);
        double all = 0;
        for (int64_t c = 0; c < e.cols; ++c) all += weight_of(c);
        for (int64_t r = 0; r < e.rows; ++r) {
          const int64_t t = target[size_t(r)];
          if (t == ignored) continue;
          const double up = 0.75 / (reduction == Reduction::mean ? total : 1.0);
          for (int64_t c = 0; c < e.cols; ++c) {
            const double p = ref.p[size_t(r * e.cols + c)], s = e.smoothing / double(e.cols);
            const double own = (1 - e.smoothing) * weight_of(t);
            want_gx[size_t(r * e.cols + c)] = up * (p * (own + s * all) - s * weight_of(c) - (c == t ? own : 0.0));
          }
        }
        same_bits(gx, [&] {
          cpu::cross_entropy_backward(on, gy.data(), x.data(), target.data(), weights, got_lse.data(),
                                      got_weight.data(), gx.data(), e.rows, e.cols, ignored, e.smoothing, reduction);
        });
        close(gx, want_gx, steps, reduction == Reduction::mean ? 8 / total : 8.0);
      }
  }
}

TEST_CASE("cross_entropy of rows that are all ignored, small losses, and bad targets") {
  const std::vector<float> x = {50, 0, 0, 0};
  std::vector<int64_t> target = {-1};
  float out = 0, lse = 0, weight = 7;
  const float* const none = nullptr;
  for (const CpuLevel level : levels()) {
    const Cpu on{level};
    target[0] = -1;
    cpu::cross_entropy(on, x.data(), target.data(), none, &out, &lse, &weight, int64_t{1}, int64_t{4}, int64_t{-1}, 0.0,
                       Reduction::mean);
    CHECK(std::isnan(out));
    CHECK(weight == 0);
    CHECK(lse == doctest::Approx(50));
    cpu::cross_entropy(on, x.data(), target.data(), none, &out, &lse, &weight, int64_t{1}, int64_t{4}, int64_t{-1}, 0.0,
                       Reduction::sum);
    CHECK(out == 0);
    std::vector<float> gx(4, 9.0f);
    const float gy = 1;
    cpu::cross_entropy_backward(on, &gy, x.data(), target.data(), none, &lse, &weight, gx.data(), int64_t{1},
                                int64_t{4}, int64_t{-1}, 0.0, Reduction::mean);
    for (const float g : gx) CHECK(g == 0);
    const std::vector<float> close_call = {1000, 990, 0, 0};  // loss log(1 + e^-10), far below the step of 1000
    target[0] = 0;
    cpu::cross_entropy(on, close_call.data(), target.data(), none, &out, &lse, &weight, int64_t{1}, int64_t{4},
                       int64_t{-1}, 0.0, Reduction::mean);
    CHECK(out == doctest::Approx(std::log1p(std::exp(-10.0))).epsilon(2e-3));
  }
  const std::vector<int64_t> targets = {0, -100, 3, 4, -1};
  CHECK(cpu::first_bad_target(Cpu{}, targets.data(), 3, 4, -100) == -1);
  CHECK(cpu::first_bad_target(Cpu{}, targets.data(), 5, 4, -100) == 3);
  CHECK(cpu::first_bad_target(Cpu{}, targets.data() + 4, 1, 4, -100) == 0);
}

}  // namespace
}  // namespace levin::kernels
