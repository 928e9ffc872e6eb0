#include "comm/group/reduce.h"

#include <doctest/doctest.h>
#include <array>
#include <cmath>
#include <vector>

namespace levin {
namespace {

using dist::ReduceOp;

TEST_CASE("ranks are added by the fixed tree, whatever their number") {
  for (const std::size_t ranks : {1u, 2u, 3u, 5u, 6u, 8u, 13u}) {
    // A rank's value is a power of two of its number, so that sums round and orders differ.
    std::vector<std::vector<float>> x(ranks, std::vector<float>(3000));
    for (std::size_t r = 0; r < ranks; ++r) {
      for (std::size_t i = 0; i < x[r].size(); ++i) {
        x[r][i] =
            std::ldexp(1.f + static_cast<float>(i % 97) / 64, static_cast<int>(r * 7 % 25)) * (r % 3 == 0 ? -1.f : 1.f);
      }
    }
    std::vector<std::vector<float>> level = x;
    while (level.size() > 1) {
      std::vector<std::vector<float>> next;
      for (std::size_t j = 0; j < level.size(); j += 2) {
        next.push_back(level[j]);
        if (j + 1 == level.size()) continue;
        for (std::size_t i = 0; i < next.back().size(); ++i) next.back()[i] = level[j][i] + level[j + 1][i];
      }
      level = std::move(next);
    }
    std::vector<const std::byte*> in;
    for (const auto& v : x) in.push_back(reinterpret_cast<const std::byte*>(v.data()));
    std::vector<float> other(3000);
    // In place for the first rank.
    const std::array<std::byte*, 2> outs{reinterpret_cast<std::byte*>(x[0].data()),
                                         reinterpret_cast<std::byte*>(other.data())};
    dist::reduce_tree(DType::f32, ReduceOp::sum, in, outs, 3000);
    CHECK(x[0] == level[0]);
    CHECK(other == level[0]);
  }
}

TEST_CASE("16-bit elements are added in f32 and rounded once") {
  // 1 + 2^-8 + 2^-8: in bf16 each addition alone rounds back to 1.
  const std::array<bf16, 4> ranks{bf16(1.f), bf16(0x1p-8f), bf16(0x1p-8f), bf16(0.f)};
  std::array<const std::byte*, 4> in{};
  for (std::size_t r = 0; r < 4; ++r) in[r] = reinterpret_cast<const std::byte*>(&ranks[r]);
  bf16 out;
  const std::array<std::byte*, 1> outs{reinterpret_cast<std::byte*>(&out)};
  dist::reduce_tree(DType::bf16, ReduceOp::sum, in, outs, 1);
  CHECK(static_cast<float>(out) == 1.f + 0x1p-7f);
  dist::reduce_tree(DType::bf16, ReduceOp::average, in, outs, 1);
  CHECK(static_cast<float>(out) == (1.f + 0x1p-7f) / 4);
}

TEST_CASE("combine works on one side's memory, and NaN wins") {
  std::vector<float> a{1, NAN, 3}, b{2, 2, NAN};
  auto* const pa = reinterpret_cast<std::byte*>(a.data());
  const auto* const pb = reinterpret_cast<const std::byte*>(b.data());
  dist::combine(DType::f32, ReduceOp::max, pa, pa, pb, 3);
  CHECK(a[0] == 2);
  CHECK(std::isnan(a[1]));
  CHECK(std::isnan(a[2]));
  std::vector<f16> half{f16(1.5f)}, other{f16(-2.f)};
  dist::combine(DType::f16, ReduceOp::sum, reinterpret_cast<std::byte*>(half.data()),
                reinterpret_cast<const std::byte*>(half.data()), reinterpret_cast<const std::byte*>(other.data()), 1);
  CHECK(static_cast<float>(half[0]) == -0.5f);
  dist::divide(DType::f16, reinterpret_cast<std::byte*>(half.data()), 1, 2);
  CHECK(static_cast<float>(half[0]) == -0.25f);
}

}  // namespace
}  // namespace levin
