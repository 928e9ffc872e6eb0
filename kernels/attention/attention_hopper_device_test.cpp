// Attention by TMA and wgmma: against double on odd shapes, and the same bits in every order.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/attention/attention_hopper.h"
#include "kernels/attention/attention_hopper_memory_test.h"
#include "levin/autograd.h"
#include "levin/error.h"
#include "levin/extend.h"
#include "levin/ops.h"
#include "tensor/device/launch_ledger.h"
#include "tests/device.h"
#include "tests/simt/hopper.h"

using namespace levin;
using namespace levin::kernels;
using levin::test::AttentionForm;
using levin::test::check_in_every_order;
using levin::test::fill_heads;
using levin::test::HeadMemory;
using levin::test::kStep;
using levin::test::kUnit;
using levin::test::number_at;
using levin::test::value_at;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

enum class Layout : std::uint8_t { apart, packed };  // packed: q, k and v share lines

// Operands and results of one form. The last slot of each line is no head's: it holds NaN where attention reads, 77
// where it writes.
template <class T>
struct Problem {
  AttentionForm form;
  HeadMemory<T> q, k, v, y;
  std::vector<float> lse;
  LibraryAttention call;

  explicit Problem(const AttentionForm& f, Layout layout = Layout::apart)
      : form(f),
        q(f.batches, f.rows, (layout == Layout::packed ? 3 * f.heads : f.heads) + 1, f.width, T(std::nanf(""))),
        k(f.batches, f.cols, f.heads + 1, f.width, T(std::nanf(""))),
        v(f.batches, f.cols, f.heads + 1, f.width, T(std::nanf(""))),
        y(f.batches, f.rows, f.heads + 1, f.width, T(77.0f)),
        lse(std::size_t(f.batches * f.heads * f.rows)) {
    const bool packed = layout == Layout::packed;
    call = {.dtype = dtype_of<T>,
            .scale = 1 / std::sqrt(float(f.width)),
            .causal = f.causal,
            .q = q.operand(f.heads),
            .k = packed ? q.operand(f.heads, f.heads) : k.operand(f.heads),
            .v = packed ? q.operand(f.heads, 2 * f.heads) : v.operand(f.heads),
            .y = y.operand(f.heads),
            .lse = {lse.data(), {f.batches, f.heads, f.rows, 1}, {f.heads * f.rows, f.rows, 1, 1}}};
    fill_heads<T>(call.q, 3, 1);
    fill_heads<T>(call.k, 1, 2);
    fill_heads<T>(call.v, 1, 3);
  }
  void run() {
    y.fill(T(77.0f));
    std::fill(lse.begin(), lse.end(), 77.0f);
    hopper_attention(call, Stream::current(*test::launching_device()));
  }
  [[nodiscard]] std::vector<std::byte> results() { return test::bytes_of_all(y.numbers, lse); }
  // Counts results beyond their bounds, and padding that was written.
  int wrong() {
    int count = 0;
    for (std::int64_t b = 0; b < form.batches; ++b) {
      for (std::int64_t i = 0; i < form.rows; ++i) {
        for (std::int64_t h = 0; h < form.heads; ++h) count += wrong_row(b, h, i);
        for (std::int64_t c = 0; c < form.width; ++c) count += value_at<T>(call.y, b, form.heads, i, c) != 77;
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
        dot += value_at<T>(call.q, b, h, i, c) * value_at<T>(call.k, b, h, j, c);
      most = std::max(most, dot *= double(call.scale));
    }
    for (double& w : weights) total += w = std::exp(w - most);
    const double log_sum = most + std::log(total);
    // Scores of up to 30 with f32's error; the logarithm to base 2 of at most 2^9 terms.
    int count = !(std::abs(double(lse[std::size_t((b * form.heads + h) * form.rows + i)]) - log_sum) < 0x1p-17);
    for (std::int64_t c = 0; c < form.width; ++c) {
      double sum = 0, size = 0, steps = 0;
      for (std::int64_t j = 0; j < seen; ++j) {
        const double x = value_at<T>(call.v, b, h, j, c), w = weights[std::size_t(j)] / total;
        sum += w * x;
        size += w * std::abs(x);
        steps += std::abs(x) / total;
      }
      // Weights are rounded once and the result once; f16 has steps of 2^-24 even for the smallest weights.
      const double bound = kUnit<T> * std::abs(sum) + (kUnit<T> + 0x1p-16) * size + kStep<T> * (1 + steps);
      count += !(std::abs(value_at<T>(call.y, b, h, i, c) - sum) <= bound);
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
      check_in_every_order(problem);
    }
  }
}

TEST_CASE("simt: a row whose scores are all -inf gets NaN from attention by TMA and wgmma, as a row with a NaN does") {
  for (const std::int64_t width : {64, 128}) {
    Problem<f16> problem({1, 1, 70, 150, width, true});
    const LibraryAttention& call = problem.call;
    for (std::int64_t i = 0; i < 70; ++i) number_at<f16>(call.q, 0, 0, i, 0) = f16(1.0f);
    for (std::int64_t j = 0; j < 30; ++j) number_at<f16>(call.k, 0, 0, j, 0) = f16(float(-kInf));
    number_at<f16>(call.q, 0, 0, 60, 5) = f16(std::nanf(""));
    problem.run();
    for (std::int64_t i = 0; i < 30; ++i) {
      CHECK(problem.lse[std::size_t(i)] == float(-kInf));
      CHECK(std::isnan(value_at<f16>(call.y, 0, 0, i, width - 1)));
    }
    CHECK(problem.wrong_row(0, 0, 31) == 0);
    CHECK(std::isnan(value_at<f16>(call.y, 0, 0, 60, 3)));
    CHECK(std::isnan(problem.lse[60]));
    CHECK(problem.wrong_row(0, 0, 61) == 0);
  }
}

TEST_CASE("simt: attention beyond the limits of TMA is an UnsupportedError, before any launch") {
  Problem<bf16> problem({1, 1, 16, 16, 64, false});
  LibraryAttention call = problem.call;
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
