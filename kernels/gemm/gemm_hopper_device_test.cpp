// Products by TMA and wgmma: whole numbers exactly, others against double, and the same bits in every order.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/gemm/gemm_hopper.h"
#include "levin/autograd.h"
#include "levin/error.h"
#include "levin/extend.h"
#include "levin/ops.h"
#include "tensor/device/launch_ledger.h"
#include "tests/device.h"
#include "tests/simt/hopper.h"

using namespace levin;
using namespace levin::kernels;
using levin::test::Aligned;
using levin::test::in_every_order;

namespace {

using End = HopperProduct::End;

struct Form {
  GemmSize size;
  HopperPlan plan;
  bool a_along_lines, b_along_lines;
};

std::int64_t rounded_up(std::int64_t n) { return (n + 7) / 8 * 8; }

// Operands, results and what is right, for one form.
template <class T>
struct Problem {
  Form form;
  std::int64_t a_step, b_step, y_step;
  Aligned<T> a, b, y, before;
  std::vector<T> bias;  // of the exact size, so that AddressSanitizer sees a read beyond it

  explicit Problem(const Form& f)
      : form(f),
        a_step(rounded_up(f.a_along_lines ? f.size.m : f.size.k) + 8),
        b_step(rounded_up(f.b_along_lines ? f.size.n : f.size.k)),
        y_step(rounded_up(f.size.n) + 16),
        a(std::size_t(a_step * (f.a_along_lines ? f.size.k : f.size.m)), T(99.0f)),
        b(std::size_t(b_step * (f.b_along_lines ? f.size.k : f.size.n)), T(99.0f)),
        y(std::size_t(y_step * f.size.m)),
        before(std::size_t(y_step * f.size.m)),
        bias(std::size_t(f.size.n)) {}

  T& left(std::int64_t i, std::int64_t k) {
    return a[std::size_t(form.a_along_lines ? k * a_step + i : i * a_step + k)];
  }
  T& right(std::int64_t j, std::int64_t k) {
    return b[std::size_t(form.b_along_lines ? k * b_step + j : j * b_step + k)];
  }
  template <class F>
  void fill(F number) {
    std::uint32_t state = 7;
    const auto next = [&] {
      state = state * 1664525u + 1013904223u;
      return T(number(state));
    };
    for (std::int64_t k = 0; k < form.size.k; ++k) {
      for (std::int64_t i = 0; i < form.size.m; ++i) left(i, k) = next();
      for (std::int64_t j = 0; j < form.size.n; ++j) right(j, k) = next();
    }
    for (std::size_t j = 0; j < bias.size(); ++j) bias[j] = next();
  }
  HopperProduct product(bool with_bias = true) {
    return {.dtype = dtype_of<T>,
            .size = form.size,
            .a = {a.data(), a_step, form.a_along_lines},
            .b = {b.data(), b_step, form.b_along_lines},
            .bias = with_bias ? bias.data() : nullptr,
            .y = y.data(),
            .y_step = y_step};
  }
  // sum * gelu'(z), z between -4 and 4, in the memory of `before`.
  HopperProduct slope(End end) {
    std::uint32_t state = 3;
    for (std::size_t i = 0; i < before.size(); ++i) {
      state = state * 1664525u + 1013904223u;
      before[i] = T(float(std::int32_t(state)) * 0x1p-29f);
    }
    HopperProduct p = product(false);
    p.end = end;
    p.before = before.data();
    return p;
  }
  void run(const HopperProduct& p) {
    const bool reads = p.end == End::gelu_erf_slope || p.end == End::gelu_tanh_slope;
    for (std::size_t i = 0; i < y.size(); ++i) {
      y[i] = T(77.0f);
      if (!reads) before[i] = T(77.0f);
    }
    hopper_multiply(p, form.plan, Stream::current(*test::launching_device()));
  }
  // Counts elements for which !is_right(got, sum, sum of magnitudes, `before`), and the ones beyond n that were
  // written.
  template <class F>
  int wrong(Aligned<T>& got, bool with_bias, F is_right) {
    int count = 0;
    for (std::int64_t i = 0; i < form.size.m; ++i) {
      for (std::int64_t j = 0; j < y_step; ++j) {
        const double value = double(float(got[std::size_t(i * y_step + j)]));
        if (j >= form.size.n) {
          count += value != 77.0;
          continue;
        }
        double sum = with_bias ? double(float(bias[std::size_t(j)])) : 0.0, size = std::abs(sum);
        for (std::int64_t k = 0; k < form.size.k; ++k) {
          const double term = double(float(left(i, k))) * double(float(right(j, k)));
          sum += term;
          size += std::abs(term);
        }
        if constexpr (std::is_invocable_v<F, double, double, double, double>)
          count += !is_right(value, sum, size, double(float(before[std::size_t(i * y_step + j)])));
        else
          count += !is_right(value, sum, size);
      }
    }
    return count;
  }
};

float whole(std::uint32_t state) { return float(int(state >> 24) % 3 - 1); }
float real(std::uint32_t state) { return float(std::int32_t(state)) * 0x1p-31f; }

template <class T>
constexpr double kEps = std::is_same_v<T, f16> ? 0x1p-11 : 0x1p-8;

// One rounding to T of a value whose own error is at most `error`.
template <class T>
bool near(double got, double want, double error) {
  return std::abs(got - want) <= kEps<T> * std::abs(want) + error + 0x1p-25;
}

double gelu(End form, double z) {
  if (form == End::gelu_erf) return 0.5 * z * std::erfc(-z / std::sqrt(2.0));
  return 0.5 * z * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (z + 0.044715 * z * z * z)));
}

// gelu'(z), and the sum of magnitudes of its two terms, which cancel near z = -0.75.
struct Slope {
  double value, size;
};
Slope slope_of(End form, double z) {
  double cdf, rest;
  if (form == End::gelu_erf_slope) {
    cdf = 0.5 * std::erfc(-z / std::sqrt(2.0));
    rest = z * std::exp(-0.5 * z * z) / std::sqrt(2 * std::acos(-1.0));
  } else {
    const double c = std::sqrt(2 / std::acos(-1.0)), t = std::tanh(c * (z + 0.044715 * z * z * z));
    cdf = 0.5 * (1 + t);
    rest = 0.5 * z * (1 - t * t) * c * (1 + 3 * 0.044715 * z * z);
  }
  return {cdf + rest, cdf + std::abs(rest)};
}

}  // namespace

TEST_CASE_TEMPLATE("simt: a product by TMA and wgmma of whole numbers is exact, in both directions of both operands", T,
                   f16, bf16) {
  for (const bool a : {false, true}) {
    for (const bool b : {false, true}) {
      for (const Form& form : {Form{{200, 264, 136}, {256, 2}, a, b}, Form{{136, 131, 200}, {128, 3}, a, b},
                               Form{{1, 8, 1}, {128, 132}, a, b}, Form{{130, 520, 65}, {256, 1}, a, b},
                               // In clusters of two: three tiles of rows, one, and columns of the second half alone.
                               Form{{300, 264, 136}, {256, 4, 2}, a, b}, Form{{100, 131, 330}, {128, 2, 2}, a, b},
                               Form{{513, 72, 40}, {128, 132, 2}, a, b}}) {
        CAPTURE(a);
        CAPTURE(b);
        CAPTURE(form.size.n);
        CAPTURE(form.plan.peers);
        Problem<T> problem(form);
        problem.fill(whole);
        for (const bool bias : {false, true}) {
          problem.run(problem.product(bias));
          CHECK(problem.wrong(problem.y, bias, [](double got, double sum, double) { return got == sum; }) == 0);
        }
      }
    }
  }
}

TEST_CASE("simt: no order of threads, copies and products changes a product by TMA and wgmma") {
  for (const HopperPlan plan : {HopperPlan{128, 2}, HopperPlan{256, 2}, HopperPlan{128, 2, 2}, HopperPlan{256, 4, 2}}) {
    for (const auto& [a, b] : {std::pair{false, false}, {true, true}, {false, true}}) {
      Problem<bf16> problem({{260, 328, 330}, plan, a, b});
      problem.fill(real);
      HopperProduct p = problem.product();
      if (!a && b) p = problem.slope(End::gelu_tanh_slope);
      if (!b) {
        p.end = End::gelu_tanh;
        p.before = problem.before.data();
      }
      std::vector<bf16> first;
      const auto results = [&] {
        std::vector<bf16> all(problem.y.data(), problem.y.data() + problem.y.size());
        all.insert(all.end(), problem.before.data(), problem.before.data() + problem.before.size());
        return all;
      };
      in_every_order([&] {
        problem.run(p);
        if (first.empty()) first = results();
        const std::vector<bf16> again = results();
        CHECK(std::memcmp(again.data(), first.data(), first.size() * sizeof(bf16)) == 0);
      });
    }
  }
}

TEST_CASE_TEMPLATE("simt: a product by TMA and wgmma agrees with double on odd shapes, and ends in GELU of both forms",
                   T, f16, bf16) {
  for (const Form& form : {Form{{77, 61, 59}, {128, 132}, false, false}, Form{{129, 257, 100}, {256, 2}, false, false},
                           Form{{191, 40, 519}, {128, 1}, false, false}}) {
    CAPTURE(form.size.m);
    Problem<T> problem(form);
    problem.fill(real);
    // f32 sums: an error of 2^-24 for each of k additions of 16 products, and for the bias.
    const double factor = 0x1p-24 * double(form.size.k / 16 + 2);
    HopperProduct p = problem.product();
    problem.run(p);
    CHECK(problem.wrong(problem.y, true,
                        [&](double got, double sum, double size) { return near<T>(got, sum, factor * size); }) == 0);
    for (const End end : {End::gelu_erf, End::gelu_tanh}) {
      for (const bool keeps : {false, true}) {
        p.end = end;
        p.before = keeps ? problem.before.data() : nullptr;
        problem.run(p);
        // half_math's own errors, and a slope of GELU of at most 1.13.
        CHECK(problem.wrong(problem.y, true, [&](double got, double sum, double size) {
          return near<T>(got, gelu(end, sum),
                         1.13 * factor * size + 0.5 * kEps<T> * std::abs(gelu(end, sum)) + 0x1p-20);
        }) == 0);
        if (!keeps) continue;
        CHECK(problem.wrong(problem.before, true, [&](double got, double sum, double size) {
          return near<T>(got, sum, factor * size);
        }) == 0);
      }
    }
  }
}

TEST_CASE_TEMPLATE("simt: a product by TMA and wgmma ends in the slope of GELU of both forms", T, f16, bf16) {
  for (const Form& form :
       {Form{{77, 61, 59}, {128, 132}, false, true}, Form{{129, 577, 100}, {256, 2}, false, true},
        Form{{300, 328, 130}, {256, 4, 2}, false, true}, Form{{191, 40, 200}, {128, 1}, false, true}}) {
    CAPTURE(form.size.m);
    Problem<T> problem(form);
    problem.fill(real);
    const double factor = 0x1p-24 * double(form.size.k / 16 + 2);
    for (const End end : {End::gelu_erf_slope, End::gelu_tanh_slope}) {
      problem.run(problem.slope(end));
      // A slope of at most 1.13, and half_math's own errors of 2^-12 of each term.
      CHECK(problem.wrong(problem.y, false, [&](double got, double sum, double size, double z) {
        const Slope slope = slope_of(end, z);
        return near<T>(got, sum * slope.value, 1.13 * factor * size + std::abs(sum) * 0x1p-12 * slope.size);
      }) == 0);
    }
  }
}

TEST_CASE("simt: a product in clusters of two has the bits of one by single blocks") {
  for (const bool along_lines : {false, true}) {
    Problem<f16> single({{400, 264, 200}, {256, 3}, along_lines, along_lines}),
        pairs({{400, 264, 200}, {256, 6, 2}, along_lines, along_lines});
    for (Problem<f16>* p : {&single, &pairs}) {
      p->fill(real);
      p->run(p->product());
    }
    CHECK(std::memcmp(single.y.data(), pairs.y.data(), single.y.size() * sizeof(f16)) == 0);
  }
}

TEST_CASE("simt: a product beyond the limits of TMA is an UnsupportedError, before any launch") {
  Problem<bf16> problem({{16, 16, 16}, {128, 1}, false, false});
  HopperProduct p = problem.product();
  p.a.step = 20;
  CHECK_THROWS_WITH_AS(hopper_multiply(p, problem.form.plan, Stream::current(*test::launching_device())),
                       doctest::Contains("a: rows 40 bytes apart"), UnsupportedError);
}

#if defined(LEVIN_SIMT)
TEST_CASE(
    "simt: matmul, linear and the hidden products of gelu_mlp that fill 132 multiprocessors go to TMA and wgmma") {
  struct Ledger : detail::LaunchLedger {
    Ledger() { detail::mode().detour = true; }
  };
  const Device simt = Device::simt();
  constexpr std::int64_t kRows = 128 * 12, kColumns = 128 * 11, kDepth = 24;
  const NoGrad no_grad;
  const Tensor x = ones({kRows, kDepth}, simt, DType::bf16), w = ones({kColumns, kDepth}, simt, DType::bf16),
               out = ones({8, kColumns}, simt, DType::bf16);
  Ledger ledger;
  const auto reached = [&] {
    bool found = false;
    for (const auto& call : ledger.take()) {
      for (const auto& launch : call.launches)
        found = found || launch.place.find("gemm_hopper.cu") != std::string::npos;
    }
    return found;
  };
  (void)matmul(x, transpose(w, 0, 1));
  CHECK(reached());
  (void)linear(x, w);
  CHECK(reached());
  (void)gelu_mlp(x, w, {}, out, {});
  CHECK(reached());
  {
    const GradMode recorded(true);
    const Tensor leaf = x.detach().requires_grad_();
    const Tensor y = gelu_mlp(leaf, w, {}, out, {});
    (void)reached();
    backward(sum(y * y));  // the slope of gelu alone has as many tiles
    CHECK(reached());
  }
  (void)matmul(x, transpose(narrow(w, 0, 0, kColumns - 128), 0, 1));  // 120 tiles
  CHECK(!reached());
}
#endif
