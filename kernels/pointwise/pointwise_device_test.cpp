// What devices' pointwise kernels stand on: index arithmetic, and rows of which a thread has several items in flight.
#include <doctest/doctest.h>

#include <vector>

#include "kernels/pointwise/pointwise.cuh"
#include "tests/device.h"

using namespace levin;
using namespace levin::kernels;

namespace {

struct MulAdd {
  template <class T>
  LEVIN_HD T operator()(T a, T b, T c) const {
    return a * b + c;
  }
};

// The same as a function whose row kernel takes one item a thread.
struct LongMulAdd : MulAdd {
  static constexpr std::int64_t kGrain = 4096;
};

template <class T, class F>
void check_row(std::int64_t items) {
  constexpr int V = gpu::kVec<T>;
  const auto n = static_cast<std::size_t>(items * V);
  const std::size_t slack = V;  // the memory after y must stay as it is
  std::vector<gpu::Vec<T>> a(n / V + 1), b(n / V + 1), out(n / V + 1);
  T *const pa = a[0].data, *const pb = b[0].data, *const po = out[0].data;
  for (std::size_t i = 0; i < n + slack; ++i) pa[i] = T(float(i % 13)), pb[i] = T(float(i % 7)), po[i] = T(-1.0f);
  Gpu{Stream::current(*test::launching_device())}.launch(
      gpu::pointwise_row<F, V, T, gpu::Operand<T>, gpu::Number<T>, gpu::Operand<T>>,
      Grid{.blocks = blocks_for(items, gpu::kPointwiseAhead<F> * gpu::kPointwiseThreads),
           .threads = gpu::kPointwiseThreads},
      F{}, items, po, gpu::Operand<T>{pa}, gpu::Number<T>{2.0f}, gpu::Operand<T>{pb});
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < n + slack; ++i) wrong += float(po[i]) != (i < n ? float(2 * (i % 13) + i % 7) : -1.0f);
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE_TEMPLATE("simt: a row is computed whole, whatever its last block has, four items or one a thread", T, float,
                   bf16) {
  for (const std::int64_t items : {1, 255, 256, 257, 769, 1023, 1024, 1025, 2047, 2048, 2500}) {
    CAPTURE(items);
    check_row<T, MulAdd>(items);
    check_row<T, LongMulAdd>(items);
  }
}

TEST_CASE("simt: a divider gives the quotient, of numbers of 32 bits and of more, by divisors of either") {
  std::vector<std::uint64_t> numbers;
  for (int bit = 0; bit < 63; ++bit) {
    for (const std::int64_t by : {-3, -2, -1, 0, 1, 2, 3}) {
      const auto n = static_cast<std::int64_t>((std::uint64_t{1} << bit)) + by;
      if (n > 0) numbers.push_back(static_cast<std::uint64_t>(n));
    }
  }
  std::uint64_t x = 1;
  for (int i = 0; i < 400; ++i) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    numbers.push_back((x >> (1 + i % 62)) + 1 > std::uint64_t{1} << 62 ? 7 : (x >> (1 + i % 62)) + 1);
  }
  std::int64_t wrong = 0;
  for (const std::uint64_t d : numbers) {
    const Divider by(static_cast<std::int64_t>(d));
    wrong += by.quotient(0) != 0;
    for (const std::uint64_t n : numbers)
      wrong += by.quotient(static_cast<std::int64_t>(n)) != static_cast<std::int64_t>(n / d);
    // The numbers where a quotient changes.
    for (const std::uint64_t q : {std::uint64_t{1}, std::uint64_t{2}, std::uint64_t{0xffffffffu} / d}) {
      if (q == 0 || q > (std::uint64_t{1} << 62) / d) continue;
      wrong += by.quotient(static_cast<std::int64_t>(q * d)) != static_cast<std::int64_t>(q);
      wrong += by.quotient(static_cast<std::int64_t>(q * d - 1)) != static_cast<std::int64_t>(q - 1);
    }
  }
  CHECK(wrong == 0);
}
