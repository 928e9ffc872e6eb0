// Gradients of attention by TMA and wgmma: against double on odd shapes, and the same bits in every order.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
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
using levin::test::Aligned;
using levin::test::AttentionForm;
using levin::test::check_in_every_order;
using levin::test::fill_heads;
using levin::test::HeadMemory;
using levin::test::kStep;
using levin::test::kUnit;
using levin::test::number_at;
using levin::test::value_at;

namespace {

// A number, and by how much a kernel's may differ.
struct Bounded {
  double value = 0, error = 0;
};
using Operand = LibraryAttention::Operand;

// Operands and results of one form. q, k and v share lines, as do their gradients where they are as long; the last slot
// of each line is no head's: it holds NaN where attention reads, 77 where it writes.
template <class T>
struct Problem {
  AttentionForm form;
  HeadMemory<T> q, kv, y, gy, gq, gkv;
  std::vector<float> lse;
  Aligned<float> scratch;
  LibraryAttention call;

  explicit Problem(const AttentionForm& f)
      : form(f),
        q(f.batches, f.rows, f.heads + 1, f.width, T(std::nanf(""))),
        kv(f.batches, f.cols, 2 * f.heads + 1, f.width, T(std::nanf(""))),
        y(q),
        gy(q),
        gq(f.batches, f.rows, f.heads + 1, f.width, T(77.0f)),
        gkv(f.batches, f.cols, 2 * f.heads + 1, f.width, T(77.0f)),
        lse(std::size_t(f.batches * f.heads * f.rows)),
        scratch(0) {
    call = {.backward = true,
            .dtype = dtype_of<T>,
            .scale = 1 / std::sqrt(float(f.width)),
            .causal = f.causal,
            .q = q.operand(f.heads),
            .k = kv.operand(f.heads),
            .v = kv.operand(f.heads, f.heads),
            .y = y.operand(f.heads),
            .lse = {lse.data(), {f.batches, f.heads, f.rows, 1}, {f.heads * f.rows, f.rows, 1, 1}},
            .gy = gy.operand(f.heads),
            .gq = gq.operand(f.heads),
            .gk = gkv.operand(f.heads),
            .gv = gkv.operand(f.heads, f.heads)};
    scratch = Aligned<float>(std::size_t(hopper_scratch(call)));
    fill_heads<T>(call.q, 3, 1);
    fill_heads<T>(call.k, 1, 2);
    fill_heads<T>(call.v, 1, 3);
    fill_heads<T>(call.gy, 1, 4);
    // y is any number near its own: kernels take it, and lse, as they are given.
    fill_heads<T>(call.y, 0.25f, 5);
    for (std::int64_t n = 0; n < std::int64_t(lse.size()); ++n) {
      const std::int64_t i = n % f.rows, h = n / f.rows % f.heads, b = n / f.rows / f.heads;
      double sum = 0;
      for (std::int64_t j = 0; j < seen(i); ++j) sum += std::exp(dot(call.q, call.k, b, h, i, j) * double(call.scale));
      lse[std::size_t(n)] = float(std::log(sum));
    }
  }
  [[nodiscard]] std::int64_t seen(std::int64_t row) const {
    return form.causal ? std::min(form.cols, row + 1) : form.cols;
  }
  [[nodiscard]] double dot(const Operand& a, const Operand& c, std::int64_t b, std::int64_t h, std::int64_t i,
                           std::int64_t j) const {
    double sum = 0;
    for (std::int64_t e = 0; e < form.width; ++e) sum += value_at<T>(a, b, h, i, e) * value_at<T>(c, b, h, j, e);
    return sum;
  }
  void run() {
    gq.fill(T(77.0f));
    gkv.fill(T(77.0f));
    for (std::size_t i = 0; i < scratch.size(); ++i) scratch[i] = std::nanf("");
    hopper_attention_backward(call, scratch.data(), Stream::current(*test::launching_device()));
  }
  [[nodiscard]] std::vector<std::byte> results() { return test::bytes_of_all(gq.numbers, gkv.numbers); }

  int wrong() {
    int count = 0;
    for (std::int64_t b = 0; b < form.batches; ++b) {
      for (std::int64_t h = 0; h < form.heads; ++h) count += wrong_head(b, h);
      for (std::int64_t c = 0; c < form.width; ++c) {
        for (std::int64_t i = 0; i < form.rows; ++i) count += value_at<T>(call.gq, b, form.heads, i, c) != 77;
        for (std::int64_t j = 0; j < form.cols; ++j) count += value_at<T>(call.gv, b, form.heads, j, c) != 77;
      }
    }
    return count;
  }
  // Counts gradients beyond their bounds: weights and slopes are rounded once, and each result. f32 sums of products
  // have an error of 2^-18 of the sum of their sizes.
  int wrong_head(std::int64_t b, std::int64_t h) {
    const std::int64_t width = form.width;
    std::vector<Bounded> want_q(std::size_t(form.rows * width)), want_k(std::size_t(form.cols * width)), want_v(want_k);
    const auto add = [&](Bounded& to, const Bounded& factor, double x) {
      to.value += factor.value * x;
      to.error += (factor.error + 0x1p-18 * std::abs(factor.value)) * std::abs(x);
    };
    for (std::int64_t i = 0; i < form.rows; ++i) {
      const double log_sum = double(lse[std::size_t((b * form.heads + h) * form.rows + i)]),
                   delta = dot(call.gy, call.y, b, h, i, i);
      double size = 0;
      for (std::int64_t e = 0; e < width; ++e) size += 2 * std::abs(value_at<T>(call.gy, b, h, i, e));
      for (std::int64_t j = 0; j < seen(i); ++j) {
        const double w = std::exp(dot(call.q, call.k, b, h, i, j) * double(call.scale) - log_sum);
        const double slope = w * (dot(call.gy, call.v, b, h, i, j) - delta);
        const Bounded weight{w, w * (kUnit<T> + 0x1p-18) + kStep<T>},
            rounded{slope, std::abs(slope) * (kUnit<T> + 0x1p-17) + w * size * 0x1p-18 + kStep<T>};
        for (std::int64_t e = 0; e < width; ++e) {
          add(want_v[std::size_t(j * width + e)], weight, value_at<T>(call.gy, b, h, i, e));
          add(want_k[std::size_t(j * width + e)], rounded, double(call.scale) * value_at<T>(call.q, b, h, i, e));
          add(want_q[std::size_t(i * width + e)], rounded, double(call.scale) * value_at<T>(call.k, b, h, j, e));
        }
      }
    }
    const auto wrong_in = [&](const Operand& got, const std::vector<Bounded>& want) {
      int count = 0;
      for (std::size_t n = 0; n < want.size(); ++n) {
        const double x = value_at<T>(got, b, h, std::int64_t(n) / width, std::int64_t(n) % width);
        count += !(std::abs(x - want[n].value) <= want[n].error + std::abs(want[n].value) * kUnit<T> + kStep<T>);
      }
      return count;
    };
    const int in_q = wrong_in(call.gq, want_q), in_k = wrong_in(call.gk, want_k), in_v = wrong_in(call.gv, want_v);
    CAPTURE(in_q);
    CAPTURE(in_k);
    CHECK(in_v == 0);
    return in_q + in_k + in_v;
  }
};

}  // namespace

TEST_CASE_TEMPLATE(
    "simt: gradients of attention by TMA and wgmma agree with double for lengths of no whole tile, causal and not", T,
    f16, bf16) {
  for (const std::int64_t width : {64, 128}) {
    for (const bool causal : {false, true}) {
      for (const auto& [rows, cols] :
           {std::pair{1, 1}, {63, 63}, {129, 129}, {200, 200}, {1, 130}, {200, 63}, {129, 260}, {260, 140}}) {
        CAPTURE(width);
        CAPTURE(causal);
        CAPTURE(rows);
        CAPTURE(cols);
        Problem<T> problem({1, 1, rows, cols, width, causal});
        problem.run();
        CHECK(problem.wrong() == 0);
      }
    }
  }
}

TEST_CASE("simt: gradients of attention by TMA and wgmma find each head of each batch where it lies") {
  for (const std::int64_t width : {64, 128}) {
    Problem<bf16> problem({2, 3, 70, 135, width, true});
    problem.run();
    CHECK(problem.wrong() == 0);
  }
}

TEST_CASE("simt: no order of threads, copies and products changes gradients of attention by TMA and wgmma") {
  for (const std::int64_t width : {64, 128}) {
    for (const bool causal : {false, true}) {
      Problem<bf16> problem({1, 1, 140, 260, width, causal});
      check_in_every_order(problem);
    }
  }
}

TEST_CASE("simt: a column that is not there takes no part in gradients of attention by TMA and wgmma") {
  // exp(0 - lse) of such a column would be infinite.
  for (const std::int64_t width : {64, 128}) {
    Problem<bf16> problem({1, 1, 66, 70, width, false});
    std::fill(problem.lse.begin(), problem.lse.end(), -500.0f);
    for (std::int64_t i = 0; i < 66; ++i) {
      for (std::int64_t c = 0; c < width; ++c)
        number_at<bf16>(problem.call.q, 0, 0, i, c) = bf16(c == 0 ? -1.0f : 0.0f);
    }
    for (std::int64_t j = 0; j < 70; ++j)
      number_at<bf16>(problem.call.k, 0, 0, j, 0) = bf16(float(500 * std::sqrt(width)));
    problem.run();
    CHECK(problem.wrong() == 0);
  }
}

TEST_CASE("simt: gradients of attention beyond the limits of TMA are an UnsupportedError, before any launch") {
  Problem<bf16> problem({1, 1, 16, 16, 64, false});
  LibraryAttention call = problem.call;
  call.gv.strides[2] = 68;
  CHECK_THROWS_WITH_AS(
      hopper_attention_backward(call, problem.scratch.data(), Stream::current(*test::launching_device())),
      doctest::Contains("gv: rows 136 bytes apart"), UnsupportedError);
}

#if defined(LEVIN_SIMT)
TEST_CASE("simt: gradients of attention whose blocks fill half of 132 multiprocessors go to TMA and wgmma") {
  struct Ledger : detail::LaunchLedger {
    Ledger() { detail::mode().detour = true; }
  };
  Ledger ledger;
  const auto reached = [&](std::int64_t heads, std::int64_t cols, std::int64_t width, std::int64_t rows = 64) {
    const auto make = [&](std::int64_t lines) {
      return transpose(zeros({2, lines, heads, width}, Device::simt(), DType::bf16), 1, 2).detach().requires_grad_();
    };
    const Tensor q = make(rows), k = make(cols), v = make(cols);
    const Tensor y = scaled_dot_product_attention(q, k, v), gy = ones(y.shape(), Device::simt(), DType::bf16);
    (void)ledger.take();
    (void)grad(Tensors{y}, Tensors{q, k, v}, Tensors{gy});
    std::size_t launches = 0;
    for (const auto& call : ledger.take()) {
      for (const auto& launch : call.launches)
        launches += launch.place.find("attention_hopper.cu") != std::string::npos;
    }
    return launches == 3;
  };
  CHECK(reached(33, 3, 64));
  CHECK(reached(17, 129, 128));
  CHECK(!reached(32, 3, 64));
  CHECK(!reached(33, 3, 72));
  CHECK(!reached(33, 3, 64, 63));
}
#endif
