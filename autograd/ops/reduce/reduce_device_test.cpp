// Reductions, running sums and sorting on a device, where the work is cut: long, narrow, odd and unaligned shapes. The
// conformance suite has the short ones.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "levin/ops.h"
#include "levin/stream.h"
#include "tests/device.h"
#include "tests/skip.h"
#if defined(LEVIN_SIMT)
#include "kernels/simt/run.h"
#endif

namespace levin {
namespace {

using Values = std::vector<double>;

// Numbers of which many are equal when `levels` is small.
Tensor drawn(const Shape& shape, unsigned seed, DType dtype, int levels = 1 << 20) {
  std::mt19937 random(seed);
  Values v(static_cast<std::size_t>(shape.numel()));
  for (double& x : v) {
    const auto level = static_cast<double>(random() % static_cast<unsigned>(levels));
    x = is_float(dtype) ? 4 * level / levels - 2 : std::floor(level * 97 / levels) - (dtype == DType::u8 ? 0 : 40);
  }
  return from_data(v, shape, Device::cpu()).to(dtype);
}
Values values(const Tensor& x) { return x.to(Device::cpu()).to(DType::f64).to_vector<double>(); }

struct Cut {
  const char* what;
  Shape shape;
  Dims dims;
};
const Cut kCuts[] = {{"one output in chunks", {40003}, {0}},
                     {"a few rows in chunks", {3, 20000}, {1}},
                     {"odd rows in chunks", {2, 17001}, {1}},
                     {"a block a row", {3, 1501}, {1}},
                     {"a block an aligned row", {3, 4096}, {1}},
                     {"a warp a row", {9, 700}, {1}},
                     {"some lanes a row", {70, 12}, {1}},
                     {"a thread a row", {600, 4}, {1}},
                     {"columns", {100, 700}, {0}},
                     {"odd columns", {33, 301}, {0}},
                     {"columns in chunks", {2000, 40}, {0}},
                     {"one narrow column in chunks", {3000, 1, 3}, {0, 1}},
                     {"planes", {5, 7, 16, 8}, {0, 2, 3}},
                     {"odd planes", {5, 3, 9, 7}, {0, 2, 3}},
                     {"columns between", {4, 50, 70}, {1}},
                     {"many narrow columns", {300, 9, 3}, {1}},
                     {"long narrow columns", {3, 1000, 3}, {1}},
                     {"outer and inner", {20, 30, 40}, {0, 2}},
                     {"nothing to reduce", {4, 0}, {1}},
                     {"no output", {0, 4}, {1}}};

// x itself; rows of a longer tensor, which begin at unaligned addresses; transposed in memory.
std::vector<Tensor> layouts(const Tensor& x, Device device) {
  std::vector<Tensor> all{x.to(device)};
  if (x.rank() < 2 || x.numel() == 0) return all;
  all.push_back(narrow(cat({narrow(x, -1, 0, 1), x}, -1).to(device), -1, 1, x.size(-1)));
  all.push_back(transpose(transpose(x, 0, -1).contiguous().to(device), 0, -1));
  return all;
}

double eps_of(DType dtype) {
  return dtype == DType::f64 ? 0x1p-53 : dtype == DType::f32 ? 0x1p-24 : dtype == DType::f16 ? 0x1p-11 : 0x1p-8;
}

// No element passes through more than kAdditions sums in these shapes.
constexpr double kAdditions = 64;

template <class F>
void each_cut(F&& f) {
  const auto device = test::launching_device();
  if (!device) return test::skip("no device that launches kernels here");
  for (const Cut& cut : kCuts) {
    INFO(std::string(cut.what));
    f(cut, *device);
  }
}

}  // namespace

TEST_CASE("reductions on a device: sums of every cut and layout are within the rounding of pairwise sums") {
  each_cut([](const Cut& cut, Device device) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const Tensor x = drawn(cut.shape, 1, dtype), exact = x.to(DType::f64);
      const Values want = values(sum(exact, cut.dims)), sizes = values(sum(abs(exact), cut.dims));
      for (const Tensor& there : layouts(x, device)) {
        const Values got = values(sum(there, cut.dims));
        REQUIRE(got.size() == want.size());
        for (std::size_t o = 0; o < want.size(); ++o) {
          CHECK(std::fabs(got[o] - want[o]) <=
                1.01 * (eps_of(dtype) * std::fabs(want[o]) + kAdditions * 0x1p-24 * sizes[o]));
        }
      }
    }
  });
}

TEST_CASE("reductions on a device: variance and log-sum-exp of every cut match f64 on the cpu") {
  each_cut([](const Cut& cut, Device device) {
    if (cut.shape.numel() == 0) return;
    const Tensor x = drawn(cut.shape, 2, DType::f32), exact = x.to(DType::f64);
    const Values spread = values(var(exact, cut.dims)), soft = values(logsumexp(exact, cut.dims)),
                 length = values(norm(exact, 2, cut.dims));
    for (const Tensor& there : layouts(x, device)) {
      const Values got_spread = values(var(there, cut.dims)), got_soft = values(logsumexp(there, cut.dims)),
                   got_length = values(norm(there, 2, cut.dims));
      for (std::size_t o = 0; o < spread.size(); ++o) {
        const double allowed = kAdditions * 0x1p-23;
        CHECK(std::fabs(got_spread[o] - spread[o]) <= allowed * spread[o]);
        CHECK(std::fabs(got_soft[o] - soft[o]) <= allowed * (1 + std::fabs(soft[o])));
        CHECK(std::fabs(got_length[o] - length[o]) <= allowed * length[o]);
      }
    }
  });
}

TEST_CASE("reductions on a device: sums of integers, extremes and truth values are exact in every cut") {
  each_cut([](const Cut& cut, Device device) {
    for (const DType dtype : {DType::u8, DType::i64, DType::bf16}) {
      const Tensor x = drawn(cut.shape, 3, dtype);
      const bool empty = cut.shape.numel() == 0;
      for (const Tensor& there : layouts(x, device)) {
        if (!is_float(dtype)) CHECK(values(sum(there, cut.dims)) == values(sum(x, cut.dims)));
        CHECK(values(any(there, cut.dims)) == values(any(x, cut.dims)));
        CHECK(values(all(there, cut.dims)) == values(all(x, cut.dims)));
        if (empty) continue;
        CHECK(values(amax(there, cut.dims)) == values(amax(x, cut.dims)));
        CHECK(values(amin(there, cut.dims)) == values(amin(x, cut.dims)));
      }
    }
  });
}

TEST_CASE("argmax, max and cumsum on a device: long, narrow and odd lines, in chunks too, give the cpu's results") {
  const auto device = test::launching_device();
  if (!device) return test::skip("no device that launches kernels here");
  const Cut cuts[] = {{"one line in chunks", {30001}, {0}},
                      {"lines in chunks", {3, 9000}, {1}},
                      {"short lines", {300, 5}, {1}},
                      {"columns in chunks", {3000, 5}, {0}},
                      {"columns", {2, 60, 70}, {1}},
                      {"middling lines", {7, 300}, {1}},
                      {"no line", {0, 3}, {1}},
                      {"one element", {1}, {0}}};
  for (const Cut& cut : cuts) {
    INFO(std::string(cut.what));
    const std::int64_t dim = cut.dims.span()[0];
    for (const DType dtype : {DType::f32, DType::bf16, DType::f64, DType::i64, DType::u8, DType::b8}) {
      const Tensor x = drawn(cut.shape, 4, dtype, 60), there = x.to(*device);
      const ValuesIndices top = max(x, dim), got = max(there, dim);
      CHECK(values(got.values) == values(top.values));
      CHECK(values(got.indices) == values(top.indices));
      CHECK(values(argmin(there, dim)) == values(argmin(x, dim)));
      if (x.numel() > 0) CHECK(values(argmax(there)) == values(argmax(x)));
      const Values sums = values(cumsum(x.to(is_float(dtype) ? DType::f64 : dtype), dim)),
                   running = values(cumsum(there, dim));
      REQUIRE(sums.size() == running.size());
      // Sums of at most 30001 numbers up to 2 in double, then rounded.
      const double allowed = is_float(dtype) ? 60002 * 30001 * 0x1p-53 : 0;
      for (std::size_t i = 0; i < sums.size(); ++i) {
        CHECK(std::fabs(running[i] - sums[i]) <=
              allowed + (is_float(dtype) ? 1.01 * eps_of(dtype) * std::fabs(sums[i]) : 0));
      }
    }
  }
  Values v(5000, 1.0);
  v[3000] = v[4000] = std::numeric_limits<double>::quiet_NaN();
  const Tensor x = from_data(v, {5000}, Device::cpu()).to(DType::f32).to(*device);
  CHECK(argmax(x).item<std::int64_t>() == 3000);
  CHECK(argmin(x).item<std::int64_t>() == 3000);
  const Tensor nothing = full({5000}, -std::numeric_limits<double>::infinity(), *device, DType::f32);
  CHECK(argmax(nothing).item<std::int64_t>() == 0);
}

TEST_CASE("scans of many rows on a device, a warp or a block for each, give the cpu's results") {
  DEVICE_OR_SKIP();
  const auto same = [](const ValuesIndices& is, const ValuesIndices& want) {
    CHECK(values(is.values) == values(want.values));
    CHECK(values(is.indices) == values(want.indices));
  };
  const auto close = [](const Tensor& is, const Tensor& exact, DType dtype) {
    const Values p = values(is), q = values(exact);
    std::int64_t wrong = 0;
    for (std::size_t i = 0; i < p.size(); ++i)
      wrong += !(std::fabs(p[i] - q[i]) <= 4096 * 2048 * 0x1p-53 + 1.01 * eps_of(dtype) * std::fabs(q[i]));
    CHECK(wrong == 0);
  };
  // From so many rows on (kManyRows of the scans) dense ones have kernels of their own; the last tile is not full.
  for (const Shape& shape : {Shape{512, 136}, Shape{512, 1288}}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      CAPTURE(text(shape));
      CAPTURE(text(dtype));
      const Tensor x = drawn(shape, 11, dtype, 60), there = x.to(device);
      close(cumsum(there, 1), cumsum(x.to(DType::f64), 1), dtype);
      same(cummax(there, 1), cummax(x, 1));
    }
  }
  const Tensor x = drawn({8192, 136}, 12, DType::f32, 60);
  close(logcumsumexp(x.to(device), 1), logcumsumexp(x.to(DType::f64), 1), DType::f32);
}

TEST_CASE("argmax and scans on a device: rows of whole vectors, aligned or not, give the cpu's results") {
  DEVICE_OR_SKIP();
  constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();
  const auto same = [](const Tensor& a, const Tensor& b) {
    const Values p = values(a), q = values(b);
    CHECK(std::equal(p.begin(), p.end(), q.begin(), q.end(),
                     [](double v, double w) { return v == w || (std::isnan(v) && std::isnan(w)); }));
  };
  // Rows of a warp and of a block, of full and of part tiles; and odd ones.
  for (const Shape& shape : {Shape{9, 1024}, Shape{6, 328}, Shape{3, 1928}, Shape{5, 1001}}) {
    for (const std::int64_t offset : {0, 1}) {
      for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i64, DType::u8, DType::b8}) {
        CAPTURE(text(shape));
        CAPTURE(offset);
        CAPTURE(int(dtype));
        const std::int64_t n = shape.numel(), width = shape[1];
        const auto rows = [&](const Tensor& line, Device to) {
          return reshape(narrow(line.to(to), 0, offset, n), Dims(shape.dims()));
        };
        const auto check = [&](const Tensor& line) {
          const Tensor x = rows(line, Device::cpu()), there = rows(line, device);
          const ValuesIndices want[] = {max(x, 1), min(x, 1), cummax(x, 1), cummin(x, 1)};
          const ValuesIndices got[] = {max(there, 1), min(there, 1), cummax(there, 1), cummin(there, 1)};
          for (int k = 0; k < 4; ++k) same(got[k].values, want[k].values), same(got[k].indices, want[k].indices);
        };
        check(drawn({n + offset}, 8, dtype, 60));
        if (is_float(dtype)) {
          Values v = values(drawn({n + offset}, 9, dtype, 60));
          const auto at = [&](std::int64_t row, std::int64_t k) -> double& {
            return v[static_cast<std::size_t>(offset + row * width + k)];
          };
          at(0, 300) = at(0, 301) = kNan;
          at(1, 7) = at(1, width - 1) = kInf;
          at(2, width / 2) = -kInf;
          for (std::int64_t k = 0; k < width; ++k) at(shape[0] - 1, k) = -kInf;
          check(from_data(v, {n + offset}, Device::cpu()).to(dtype));
          // Sums in double, of one rounding.
          const Tensor line = drawn({n + offset}, 10, dtype, 60), x = rows(line, Device::cpu()),
                       there = rows(line, device);
          const Tensor wide = x.to(DType::f64);
          const auto close = [&](const Tensor& is, const Tensor& exact) {
            const Values p = values(is), q = values(exact);
            for (std::size_t i = 0; i < p.size(); ++i)
              CHECK(std::fabs(p[i] - q[i]) <= 4096 * 2048 * 0x1p-53 + 1.01 * eps_of(dtype) * std::fabs(q[i]));
          };
          close(cumsum(there, 1), cumsum(wide, 1));
          close(logcumsumexp(there, 1), logcumsumexp(wide, 1));
        } else {
          const Tensor line = drawn({n + offset}, 10, dtype, 60);
          same(cumsum(rows(line, device), 1), cumsum(rows(line, Device::cpu()), 1));
        }
        // Exact products.
        Values factors(static_cast<std::size_t>(n + offset));
        for (std::size_t k = 0; k < factors.size(); ++k) factors[k] = std::array{1.0, 2.0, -1.0, 0.5}[k % 4];
        const Tensor line = from_data(factors, {n + offset}, Device::cpu()).to(dtype);
        same(cumprod(rows(line, device), 1), cumprod(rows(line, Device::cpu()), 1));
      }
    }
  }
}

TEST_CASE("sort and topk on a device: tiles, merges and equal values give the cpu's order") {
  const auto device = test::launching_device();
  if (!device) return test::skip("no device that launches kernels here");
  const Cut cuts[] = {{"one tile", {2, 1000}, {1}},
                      {"two tiles", {2, 3000}, {1}},
                      {"five tiles", {9001}, {0}},
                      {"columns", {5, 6, 7}, {1}},
                      {"columns of tiles", {2500, 3}, {0}},
                      {"whole tiles", {8192}, {0}},
                      {"empty lines", {3, 0}, {1}},
                      {"no line", {0, 3}, {1}},
                      {"one element", {1}, {0}}};
  for (const Cut& cut : cuts) {
    INFO(std::string(cut.what));
    const std::int64_t dim = cut.dims.span()[0], n = cut.shape[static_cast<int>(dim)];
    for (const DType dtype : {DType::f32, DType::bf16, DType::f64, DType::i64, DType::i32, DType::u8, DType::b8}) {
      const Tensor x = drawn(cut.shape, 5, dtype, 600), there = x.to(*device);
      for (const Order order : {Order::ascending, Order::descending}) {
        const ValuesIndices want = sort(x, dim, order), got = sort(there, dim, order);
        CHECK(values(got.values) == values(want.values));
        CHECK(values(got.indices) == values(want.indices));
        for (const std::int64_t k : {std::int64_t{0}, std::int64_t{1}, std::int64_t{37}, std::int64_t{700}, n}) {
          if (k > n) continue;
          const ValuesIndices few = topk(x, k, dim, order), found = topk(there, k, dim, order);
          CHECK(values(found.values) == values(few.values));
          CHECK(values(found.indices) == values(few.indices));
        }
      }
    }
  }
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const Values odd{0.0, -kInf, std::numeric_limits<double>::quiet_NaN(), kInf, -0.0, 1.0};
  const Tensor x = from_data(odd, {6}, Device::cpu()).to(DType::f16).to(*device);
  CHECK(values(argsort(x)) == Values{1, 0, 4, 5, 3, 2});
  CHECK(values(argsort(x, -1, Order::descending)) == Values{2, 3, 5, 0, 4, 1});
}

TEST_CASE("reductions, cumsum, sort and topk on a device: cut work has the same bits in every order and in a graph") {
  const auto device = test::launching_device();
  if (!device) return test::skip("no device that launches kernels here");
  const Tensor line = drawn({20003}, 6, DType::f32).to(*device), rows = drawn({700, 30}, 7, DType::f32).to(*device);
  const auto work = [&] {
    const ValuesIndices sorted = sort(narrow(line, 0, 0, 5000)), few = topk(line, 100), top = max(line, 0);
    return std::vector<Tensor>{sum(line),     sum(rows, {0}), cumsum(line, 0), cumsum(rows, 0),
                               sorted.values, sorted.indices, few.values,      few.indices,
                               top.values,    top.indices,    var(rows, {0}),  logsumexp(line, {})};
  };
  const std::vector<Tensor> want = work();
  std::vector<Tensor> got;
  Graph graph(Stream::current(*device), [&] { got = work(); });
  graph.replay();
  for (std::size_t k = 0; k < want.size(); ++k) CHECK_MESSAGE(values(got[k]) == values(want[k]), "result " << k);
#if defined(LEVIN_SIMT)
  for (const simt::Schedule schedule : simt::kSchedules) {
    CAPTURE(simt::name(schedule));
    simt::set_schedule(schedule, 17);
    got = work();
    simt::set_schedule(simt::Schedule::ascending);
    for (std::size_t k = 0; k < want.size(); ++k) CHECK_MESSAGE(values(got[k]) == values(want[k]), "result " << k);
  }
#endif
}

}  // namespace levin
