// Attention by TMA and wgmma: against double on odd shapes, and the same bits in every order.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/attention/attention_hopper.h"
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

constexpr double kInf = std::numeric_limits<double>::infinity();

struct Form {
  std::int64_t batches, heads, rows, cols, width;
  bool causal;
};
// Memory [batches, lines, slots, width], as a projection to heads leaves it; the last slot is no head's.
enum class Layout : std::uint8_t { apart, packed };  // packed: q, k and v share lines of 3 heads + 1 slots

// Operands and results of one form. Padding holds NaN where attention reads, 77 where it writes.
template <class T>
struct Problem {
  Form form;
  Layout layout;
  std::int64_t slots;
  Aligned<T> q, k, v, y;
  std::vector<float> lse;
  float scale;

  explicit Problem(const Form& f, Layout l = Layout::apart)
      : form(f),
        layout(l),
        slots(l == Layout::packed ? 3 * f.heads + 1 : f.heads + 1),
        q(elements(f.rows), T(std::nanf(""))),
        k(l == Layout::packed ? 0 : elements(f.cols), T(std::nanf(""))),
        v(l == Layout::packed ? 0 : elements(f.cols), T(std::nanf(""))),
        y(std::size_t(f.batches * f.rows * (f.heads + 1) * f.width)),
        lse(std::size_t(f.batches * f.heads * f.rows)),
        scale(1 / std::sqrt(float(f.width))) {
    std::uint32_t state = 5;
    const auto next = [&] {
      state = state * 1664525u + 1013904223u;
      return T(float(std::int32_t(state)) * 0x1p-31f);
    };
    for (std::int64_t b = 0; b < f.batches; ++b) {
      for (std::int64_t h = 0; h < f.heads; ++h) {
        for (std::int64_t c = 0; c < f.width; ++c) {
          for (std::int64_t i = 0; i < f.rows; ++i) at('q', b, h, i, c) = T(3 * float(next()));
          for (std::int64_t j = 0; j < f.cols; ++j) at('k', b, h, j, c) = next(), at('v', b, h, j, c) = next();
        }
      }
    }
  }
  [[nodiscard]] std::size_t elements(std::int64_t lines) const {
    return std::size_t(form.batches * lines * slots * form.width);
  }
  LibraryAttention::Operand operand(char which) {
    const bool packed = layout == Layout::packed && which != 'y';
    const std::int64_t width = form.width, lines = which == 'q' || which == 'y' ? form.rows : form.cols,
                       line = (which == 'y' ? form.heads + 1 : slots) * width;
    T* const data = packed ? q.data() + (which == 'q'   ? 0
                                         : which == 'k' ? 1
                                                        : 2) *
                                            form.heads * width
                    : which == 'q' ? q.data()
                    : which == 'k' ? k.data()
                    : which == 'v' ? v.data()
                                   : y.data();
    return {data, {form.batches, form.heads, lines, width}, {lines * line, width, line, 1}};
  }
  T& at(char which, std::int64_t b, std::int64_t h, std::int64_t line, std::int64_t column) {
    const auto o = operand(which);
    return static_cast<T*>(o.data)[b * o.strides[0] + h * o.strides[1] + line * o.strides[2] + column];
  }
  LibraryAttention call() {
    const std::int64_t heads = form.heads, rows = form.rows;
    return {.dtype = dtype_of<T>,
            .scale = scale,
            .causal = form.causal,
            .q = operand('q'),
            .k = operand('k'),
            .v = operand('v'),
            .y = operand('y'),
            .lse = {lse.data(), {form.batches, heads, rows, 1}, {heads * rows, rows, 1, 1}}};
  }
  void run() {
    std::fill(y.data(), y.data() + y.size(), T(77.0f));
    std::fill(lse.begin(), lse.end(), 77.0f);
    hopper_attention(call(), Stream::current(*test::launching_device()));
  }
  [[nodiscard]] std::vector<std::byte> results() {
    const auto* const bytes = reinterpret_cast<const std::byte*>(y.data());
    std::vector<std::byte> all(bytes, bytes + y.size() * sizeof(T));
    const auto* const more = reinterpret_cast<const std::byte*>(lse.data());
    all.insert(all.end(), more, more + lse.size() * sizeof(float));
    return all;
  }
  // Counts results beyond their bounds, and padding that was written.
  int wrong() {
    int count = 0;
    for (std::int64_t b = 0; b < form.batches; ++b) {
      for (std::int64_t i = 0; i < form.rows; ++i) {
        for (std::int64_t h = 0; h < form.heads; ++h) count += wrong_row(b, h, i);
        for (std::int64_t c = 0; c < form.width; ++c) count += float(at('y', b, form.heads, i, c)) != 77.0f;
      }
    }
    return count;
  }
  int wrong_row(std::int64_t b, std::int64_t h, std::int64_t i) {
    const std::int64_t seen = form.causal ? std::min(form.cols, i + 1) : form.cols;
    std::vector<double> weights(std::size_t(seen), 0.0);
    double most = -kInf, total = 0;
    for (std::int64_t j = 0; j < seen; ++j) {
      double& dot = weights[std::size_t(j)];
      for (std::int64_t c = 0; c < form.width; ++c)
        dot += double(float(at('q', b, h, i, c))) * double(float(at('k', b, h, j, c)));
      most = std::max(most, dot *= double(scale));
    }
    for (double& w : weights) total += w = std::exp(w - most);
    const double log_sum = most + std::log(total);
    // Scores of up to 30 with f32's error; the logarithm to base 2 of at most 2^9 terms.
    int count = !(std::abs(double(lse[std::size_t((b * form.heads + h) * form.rows + i)]) - log_sum) < 0x1p-17);
    for (std::int64_t c = 0; c < form.width; ++c) {
      double sum = 0, size = 0, steps = 0;
      for (std::int64_t j = 0; j < seen; ++j) {
        const double x = double(float(at('v', b, h, j, c))), w = weights[std::size_t(j)] / total;
        sum += w * x;
        size += w * std::abs(x);
        steps += std::abs(x) / total;
      }
      // Weights are rounded once and the result once; f16 has steps of 2^-24 even for the smallest weights.
      constexpr double kUnit = std::is_same_v<T, f16> ? 0x1p-11 : 0x1p-8, kStep = std::is_same_v<T, f16> ? 0x1p-25 : 0;
      const double bound = kUnit * std::abs(sum) + (kUnit + 0x1p-16) * size + kStep * (1 + steps);
      count += !(std::abs(double(float(at('y', b, h, i, c))) - sum) <= bound);
    }
    return count;
  }
};

}  // namespace

TEST_CASE_TEMPLATE("simt: attention by TMA and wgmma agrees with double for lengths of no whole tile, causal and not",
                   T, f16, bf16) {
  for (const std::int64_t width : {64, 128}) {
    for (const bool causal : {false, true}) {
      for (const auto& [rows, cols] :
           {std::pair{1, 1}, {63, 63}, {129, 129}, {200, 200}, {1, 130}, {200, 63}, {129, 260}, {385, 129}}) {
        CAPTURE(width);
        CAPTURE(causal);
        CAPTURE(rows);
        CAPTURE(cols);
        Problem<T> problem({1, 2, rows, cols, width, causal});
        problem.run();
        CHECK(problem.wrong() == 0);
      }
    }
  }
}

TEST_CASE_TEMPLATE("simt: attention by TMA and wgmma reads q, k and v that share lines of memory", T, f16, bf16) {
  for (const std::int64_t width : {64, 128}) {
    Problem<T> problem({2, 3, 140, 140, width, true}, Layout::packed);
    problem.run();
    CHECK(problem.wrong() == 0);
  }
}

TEST_CASE("simt: no order of threads, copies and products changes attention by TMA and wgmma") {
  for (const std::int64_t width : {64, 128}) {
    for (const bool causal : {false, true}) {
      Problem<bf16> problem({1, 1, 200, 520, width, causal});
      std::vector<std::byte> first;
      in_every_order([&] {
        problem.run();
        if (first.empty()) {
          first = problem.results();
          CHECK(problem.wrong() == 0);
        }
        CHECK(problem.results() == first);
      });
    }
  }
}

TEST_CASE("simt: a row whose scores are all -inf gets zeros from attention by TMA and wgmma, a NaN stays one") {
  for (const std::int64_t width : {64, 128}) {
    Problem<f16> problem({1, 1, 70, 150, width, true});
    for (std::int64_t i = 0; i < 70; ++i) problem.at('q', 0, 0, i, 0) = f16(1.0f);
    for (std::int64_t j = 0; j < 30; ++j) problem.at('k', 0, 0, j, 0) = f16(-std::numeric_limits<float>::infinity());
    problem.at('q', 0, 0, 60, 5) = f16(std::nanf(""));
    problem.run();
    for (std::int64_t i = 0; i < 30; ++i) {
      CHECK(problem.lse[std::size_t(i)] == -std::numeric_limits<float>::infinity());
      CHECK(float(problem.at('y', 0, 0, i, width - 1)) == 0.0f);
    }
    CHECK(problem.wrong_row(0, 0, 31) == 0);
    CHECK(std::isnan(float(problem.at('y', 0, 0, 60, 3))));
    CHECK(std::isnan(problem.lse[60]));
    CHECK(problem.wrong_row(0, 0, 61) == 0);
  }
}

TEST_CASE("simt: attention beyond the limits of TMA is an UnsupportedError, before any launch") {
  Problem<bf16> problem({1, 1, 16, 16, 64, false});
  LibraryAttention call = problem.call();
  call.k.strides[2] = 68;
  CHECK_THROWS_WITH_AS(hopper_attention(call, Stream::current(*test::launching_device())),
                       doctest::Contains("k: rows 136 bytes apart"), UnsupportedError);
}

#if defined(LEVIN_SIMT)
TEST_CASE("simt: attention of heads 64 and 128 wide that fill half of 132 multiprocessors goes to TMA and wgmma") {
  struct Ledger : detail::LaunchLedger {
    Ledger() { detail::mode().detour = true; }
  };
  const NoGrad no_grad;
  Ledger ledger;
  const auto reached = [&](std::int64_t heads, std::int64_t rows, std::int64_t width, double scale = 1) {
    const Tensor q = transpose(zeros({2, rows, heads, width}, Device::simt(), DType::bf16), 1, 2);
    (void)ledger.take();
    (void)scaled_dot_product_attention(q, q, q, {.scale = scale});
    bool found = false;
    for (const auto& call : ledger.take()) {
      for (const auto& launch : call.launches)
        found = found || launch.place.find("attention_hopper.cu") != std::string::npos;
    }
    return found;
  };
  CHECK(reached(33, 2, 64));
  CHECK(reached(17, 129, 128));
  CHECK(!reached(32, 2, 64));
  CHECK(!reached(32, 129, 64));  // a block has 192 rows
  CHECK(!reached(33, 2, 72));
  CHECK(!reached(33, 2, 64, -1));
}
#endif
