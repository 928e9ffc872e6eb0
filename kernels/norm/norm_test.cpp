#include "kernels/norm/channel_norm.cuh"

#include "kernels/executor/rows_test.h"

namespace levin::kernels {
namespace {

using test::close, test::levels, test::numbers, test::same_bits, test::wide;

using Doubles = std::vector<double>;

template <class T>
Doubles in_double(const std::vector<T>& x) {
  Doubles y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = wide(x[i]);
  return y;
}

// The definition of every norm here, in double: elements with the same group(i) share mean and variance, those with the
// same channel(i) share w and b.
struct Reference {
  Doubles y, gx, gw, gb, mean, rstd, variance;
};
template <class Group, class Channel>
Reference reference(const Doubles& x, const Doubles& gy, const Doubles& w, const Doubles& b, double eps, size_t groups,
                    bool centered, const Group& group, const Channel& channel) {
  Reference r;
  r.mean.resize(groups), r.rstd.resize(groups), r.variance.resize(groups);
  Doubles count(groups), u(groups), uh(groups);
  for (size_t i = 0; i < x.size(); ++i) r.mean[group(i)] += x[i], count[group(i)] += 1;
  for (size_t g = 0; g < groups; ++g) r.mean[g] = centered ? r.mean[g] / count[g] : 0.0;
  for (size_t i = 0; i < x.size(); ++i) r.variance[group(i)] += std::pow(x[i] - r.mean[group(i)], 2);
  for (size_t g = 0; g < groups; ++g) r.variance[g] /= count[g], r.rstd[g] = 1 / std::sqrt(r.variance[g] + eps);
  r.y.resize(x.size()), r.gx.resize(x.size()), r.gw.resize(w.size()), r.gb.resize(w.size());
  auto h = [&](size_t i) { return (x[i] - r.mean[group(i)]) * r.rstd[group(i)]; };
  for (size_t i = 0; i < x.size(); ++i) {
    r.y[i] = h(i) * w[channel(i)] + b[channel(i)];
    r.gw[channel(i)] += gy[i] * h(i);
    r.gb[channel(i)] += gy[i];
    u[group(i)] += gy[i] * w[channel(i)];
    uh[group(i)] += gy[i] * w[channel(i)] * h(i);
  }
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t g = group(i);
    r.gx[i] = r.rstd[g] * (gy[i] * w[channel(i)] - (centered ? u[g] / count[g] : 0.0) - h(i) * uh[g] / count[g]);
  }
  return r;
}

template <class W>
struct Parameters {
  std::vector<W> w, b;
  Doubles wide_w, wide_b;
  bool given;
  Parameters(int64_t n, bool given_) : given(given_) {
    w = numbers<W>(n, 0.5, 31);
    for (W& v : w) v = W(wide(v) + 1);
    b = numbers<W>(n, 1, 32);
    wide_w = given ? in_double(w) : Doubles(size_t(n), 1);
    wide_b = given ? in_double(b) : Doubles(size_t(n), 0);
  }
  [[nodiscard]] const W* weight() const { return given ? w.data() : nullptr; }
  [[nodiscard]] const W* bias() const { return given ? b.data() : nullptr; }
};

// x is within 3 around 1; h within about 2 sqrt(n), in practice 2; y within 4; sums over n numbers stray by sqrt(n).
double steps(int64_t n) { return 24 + 4 * std::sqrt(double(n)); }

template <class T>
std::vector<T> inputs(int64_t n) {
  std::vector<T> x = numbers<T>(n, 2, 11);
  for (T& v : x) v = T(wide(v) + 1);
  return x;
}

TEST_CASE_TEMPLATE("layer_norm, rms_norm and their gradients agree with their definition at every level", T, float,
                   double, f16, bf16) {
  using A = Accum<T>;
  struct Size {
    int64_t rows, cols;
  };
  for (const Size s : {Size{1, 2}, Size{3, 5}, Size{7, 64}, Size{200, 1000}, Size{2, 4099}, Size{400, 16}, Size{0, 8}})
    for (const bool given : {true, false}) {
      CAPTURE(s.rows);
      CAPTURE(s.cols);
      const size_t n = size_t(s.rows * s.cols), cols = size_t(s.cols);
      const std::vector<T> x = inputs<T>(int64_t(n)), gy = numbers<T>(int64_t(n), 1, 17);
      const Parameters<T> p(s.cols, given);
      for (const bool centered : {true, false}) {
        const Doubles zero(cols, 0);
        const Reference want = reference(
            in_double(x), in_double(gy), p.wide_w, centered ? p.wide_b : zero, 1e-3, size_t(s.rows), centered,
            [=](size_t i) { return i / cols; }, [=](size_t i) { return i % cols; });
        for (const CpuLevel level : levels()) {
          const Cpu on{level};
          std::vector<T> y(n), gx(n), gw(cols), gb(cols);
          std::vector<A> mean(size_t(s.rows), A(0)), rstd(static_cast<size_t>(s.rows));
          same_bits(y, [&] {
            if (centered)
              cpu::layer_norm(on, x.data(), p.weight(), p.bias(), y.data(), mean.data(), rstd.data(), s.rows, s.cols,
                              1e-3);
            else
              cpu::rms_norm(on, x.data(), p.weight(), y.data(), rstd.data(), s.rows, s.cols, 1e-3);
          });
          close(y, want.y, steps(s.cols), 8);
          close(mean, want.mean, steps(s.cols), 3);
          close(rstd, want.rstd, steps(s.cols), 30);
          auto backward = [&](T* to_gx, T* to_gw, T* to_gb) {
            if (centered)
              cpu::layer_norm_backward(on, gy.data(), x.data(), p.weight(), mean.data(), rstd.data(), to_gx, to_gw,
                                       to_gb, s.rows, s.cols);
            else
              cpu::rms_norm_backward(on, gy.data(), x.data(), p.weight(), rstd.data(), to_gx, to_gw, s.rows, s.cols);
          };
          same_bits(gx, [&] { backward(gx.data(), gw.data(), gb.data()); });
          same_bits(gw, [&] { backward(gx.data(), gw.data(), gb.data()); });
          close(gx, want.gx, steps(s.cols), s.cols == 2 ? 900 : 16);  // two columns: rstd reaches 30
          close(gw, want.gw, steps(s.rows), 4 + std::sqrt(double(s.rows)) * 4);
          if (centered) close(gb, want.gb, steps(s.rows), 4 + std::sqrt(double(s.rows)) * 4);
          std::vector<T> alone(n), alone_w(cols);
          backward(alone.data(), nullptr, nullptr);
          CHECK((n == 0 || std::memcmp(alone.data(), gx.data(), n * sizeof(T)) == 0));
          backward(nullptr, alone_w.data(), nullptr);
          CHECK(std::memcmp(alone_w.data(), gw.data(), cols * sizeof(T)) == 0);
        }
      }
    }
}

struct Block {
  int64_t n, c, s;
};

TEST_CASE_TEMPLATE("batch_norm in training and its gradient agree with their definition at every level", T, float,
                   double, f16, bf16) {
  using A = Accum<T>;
  using W = std::conditional_t<sizeof(T) == 2, float, T>;  // f32 parameters beside 16-bit data
  for (const Block k :
       {Block{2, 1, 1}, Block{64, 10, 1}, Block{700, 33, 1}, Block{3, 5, 7}, Block{4, 6, 100}, Block{2, 3, 5000}})
    for (const bool given : {true, false}) {
      CAPTURE(k.n);
      CAPTURE(k.c);
      CAPTURE(k.s);
      const size_t size = size_t(k.n * k.c * k.s), c = size_t(k.c), s = size_t(k.s);
      const std::vector<T> x = inputs<T>(int64_t(size)), gy = numbers<T>(int64_t(size), 1, 17);
      const Parameters<W> p(k.c, given);
      const auto channel = [=](size_t i) { return i / s % c; };
      const Reference want =
          reference(in_double(x), in_double(gy), p.wide_w, p.wide_b, 1e-3, c, true, channel, channel);
      const double count = double(k.n * k.s);
      Doubles running_mean(c), running_var(c);
      for (size_t j = 0; j < c; ++j) {
        running_mean[j] = 0.9 * 0.5 + 0.1 * want.mean[j];
        running_var[j] = 0.9 * 2 + 0.1 * want.variance[j] * count / (count - 1);
      }
      for (const CpuLevel level : levels()) {
        const Cpu on{level};
        std::vector<T> y(size), gx(size);
        std::vector<A> mean(c), rstd(c);
        std::vector<W> rm(c), rv(c), gw(c), gb(c);
        same_bits(y, [&] {
          std::fill(rm.begin(), rm.end(), W(0.5f)), std::fill(rv.begin(), rv.end(), W(2.0f));
          cpu::batch_norm_train(on, x.data(), p.weight(), p.bias(), y.data(), mean.data(), rstd.data(), rm.data(),
                                rv.data(), k.n, k.c, k.s, 0.1, 1e-3);
        });
        const double n_steps = steps(k.n * k.s);
        close(y, want.y, n_steps, 8);
        close(mean, want.mean, n_steps, 3);
        close(rstd, want.rstd, n_steps, 30);
        close(rm, running_mean, n_steps, 3);
        close(rv, running_var, n_steps, 3);
        const auto backward = [&] {
          cpu::batch_norm_backward(on, gy.data(), x.data(), p.weight(), mean.data(), rstd.data(), gx.data(), gw.data(),
                                   gb.data(), k.n, k.c, k.s);
        };
        same_bits(gx, backward);
        same_bits(gw, backward);
        close(gx, want.gx, n_steps, count == 2 ? 900 : 16);
        close(gw, want.gw, n_steps, 4 + std::sqrt(count) * 4);
        close(gb, want.gb, n_steps, 4 + std::sqrt(count) * 4);
        cpu::batch_norm_train(on, x.data(), p.weight(), p.bias(), y.data(), mean.data(), rstd.data(),
                              static_cast<W*>(nullptr), static_cast<W*>(nullptr), k.n, k.c, k.s, 0.1, 1e-3);
        close(y, want.y, n_steps, 8);
      }
    }
}

TEST_CASE_TEMPLATE("batch_norm in evaluation and its gradient agree with their definition at every level", T, float,
                   double, f16, bf16) {
  for (const Block k : {Block{1, 1, 1}, Block{64, 10, 1}, Block{3, 5, 7}, Block{2, 3, 5000}})
    for (const bool given : {true, false}) {
      const size_t size = size_t(k.n * k.c * k.s), c = size_t(k.c), s = size_t(k.s);
      const std::vector<T> x = inputs<T>(int64_t(size)), gy = numbers<T>(int64_t(size), 1, 17);
      const Parameters<T> p(k.c, given);
      const std::vector<T> rm = numbers<T>(k.c, 1, 3);
      std::vector<T> rv = numbers<T>(k.c, 1, 4);
      for (T& v : rv) v = T(wide(v) + 2);
      Doubles y(size), gx(size), gw(c), gb(c);
      for (size_t i = 0; i < size; ++i) {
        const size_t j = i / s % c;
        const double rstd = 1 / std::sqrt(wide(rv[j]) + 1e-3), h = (wide(x[i]) - wide(rm[j])) * rstd;
        y[i] = h * p.wide_w[j] + p.wide_b[j];
        gx[i] = wide(gy[i]) * p.wide_w[j] * rstd;
        gw[j] += wide(gy[i]) * h;
        gb[j] += wide(gy[i]);
      }
      const double count = double(k.n * k.s);
      for (const CpuLevel level : levels()) {
        const Cpu on{level};
        std::vector<T> got(size), got_w(c), got_b(c);
        cpu::batch_norm_eval(on, x.data(), p.weight(), p.bias(), rm.data(), rv.data(), got.data(), k.n, k.c, k.s, 1e-3);
        close(got, y, 24, 8);
        cpu::batch_norm_eval_backward(on, gy.data(), x.data(), p.weight(), rm.data(), rv.data(), got.data(),
                                      got_w.data(), got_b.data(), k.n, k.c, k.s, 1e-3);
        close(got, gx, 24, 2);
        close(got_w, gw, steps(k.n * k.s), 4 + std::sqrt(count) * 4);
        close(got_b, gb, steps(k.n * k.s), 4 + std::sqrt(count) * 4);
      }
    }
}

TEST_CASE_TEMPLATE("group_norm and its gradient agree with their definition at every level", T, float, double, f16,
                   bf16) {
  using A = Accum<T>;
  struct Grouped {
    Block k;
    int64_t groups;
  };
  for (const Grouped g : {Grouped{{2, 6, 5}, 1}, Grouped{{2, 6, 5}, 3}, Grouped{{5, 8, 1}, 2}, Grouped{{3, 4, 300}, 4},
                          Grouped{{40, 16, 49}, 8}})
    for (const bool given : {true, false}) {
      const Block k = g.k;
      CAPTURE(k.n);
      CAPTURE(k.c);
      CAPTURE(k.s);
      const size_t size = size_t(k.n * k.c * k.s), c = size_t(k.c), s = size_t(k.s);
      const size_t in_group = size / size_t(k.n * g.groups);
      const std::vector<T> x = inputs<T>(int64_t(size)), gy = numbers<T>(int64_t(size), 1, 17);
      const Parameters<T> p(k.c, given);
      const Reference want = reference(
          in_double(x), in_double(gy), p.wide_w, p.wide_b, 1e-3, size_t(k.n * g.groups), true,
          [=](size_t i) { return i / in_group; }, [=](size_t i) { return i / s % c; });
      for (const CpuLevel level : levels()) {
        const Cpu on{level};
        std::vector<T> y(size), gx(size), gw(c), gb(c);
        std::vector<A> mean(size_t(k.n * g.groups)), rstd(mean.size());
        same_bits(y, [&] {
          cpu::group_norm(on, x.data(), p.weight(), p.bias(), y.data(), mean.data(), rstd.data(), k.n, k.c, k.s,
                          g.groups, 1e-3);
        });
        close(y, want.y, steps(int64_t(in_group)), 8);
        close(mean, want.mean, steps(int64_t(in_group)), 3);
        close(rstd, want.rstd, steps(int64_t(in_group)), 30);
        const auto backward = [&] {
          cpu::group_norm_backward(on, gy.data(), x.data(), p.weight(), mean.data(), rstd.data(), gx.data(), gw.data(),
                                   gb.data(), k.n, k.c, k.s, g.groups);
        };
        same_bits(gx, backward);
        same_bits(gw, backward);
        close(gx, want.gx, steps(int64_t(in_group)), 16);
        close(gw, want.gw, steps(k.n * k.s), 4 + std::sqrt(double(k.n * k.s)) * 4);
        close(gb, want.gb, steps(k.n * k.s), 4 + std::sqrt(double(k.n * k.s)) * 4);
      }
    }
}

TEST_CASE("a large mean does not spoil the variance") {
  std::vector<float> x = numbers<float>(4 * 257, 1, 8);
  for (float& v : x) v += 4096;
  std::vector<float> y(x.size()), mean(4), rstd(4);
  const float* const none = nullptr;
  const Doubles ones(257, 1), zeros(257, 0);
  const Reference want = reference(
      in_double(x), in_double(x), ones, zeros, 0.0, 4, true, [](size_t i) { return i / 257; },
      [](size_t i) { return i % 257; });
  for (const CpuLevel level : levels()) {
    cpu::layer_norm(Cpu{level}, x.data(), none, none, y.data(), mean.data(), rstd.data(), int64_t{4}, int64_t{257},
                    0.0);
    // The mean is rounded to 2^-12, which moves the variance by its square, 2^-24, alone.
    for (size_t r = 0; r < 4; ++r) CHECK(rstd[r] == doctest::Approx(want.rstd[r]).epsilon(1e-5));
  }
}

}  // namespace
}  // namespace levin::kernels
