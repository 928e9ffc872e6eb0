#include "kernels/gemm/gemm_hopper.h"

#include <algorithm>
#include <limits>

#include "levin/error.h"

namespace levin::kernels {

std::optional<HopperPlan> plan_hopper(const GemmSize& size) {
  constexpr std::int64_t kProcessors = 132, kRows = 128;
  const auto up = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  const auto tiles = [&](std::int64_t columns, std::int64_t peers) {
    return up(size.m, kRows * peers) * up(size.n, columns);
  };
  for (const int columns : {256, 128}) {
    if (tiles(columns, 1) < kProcessors) continue;
    const bool pairs = up(tiles(columns, 2), kProcessors / 2) <= up(tiles(columns, 1), kProcessors);
    return HopperPlan{columns, int(kProcessors), pairs ? 2 : 1};
  }
  return {};
}

std::optional<std::string> hopper_refusal(const HopperProduct& p) {
  const auto [m, n, k] = p.size;
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max() - 512;  // coordinates of TMA have 32 bits
  if (std::min({m, n, k}) < 1 || std::max({m, n, k}) > kMost || (m + 127) / 128 * ((n + 127) / 128) > kMost)
    return "a product of [" + text(m) + ", " + text(k) + "] and [" + text(k) + ", " + text(n) + "]";
  using End = HopperProduct::End;
  const bool slope = p.end == End::gelu_erf_slope || p.end == End::gelu_tanh_slope;
  const bool gelu = p.end == End::gelu_erf || p.end == End::gelu_tanh;
  if (p.before && p.end == End::bias) return "sums before an epilogue that there is none of";
  if (gelu && (p.a.along_lines || p.b.along_lines)) return "gelu of operands that do not lie along k";
  if (slope && (!p.before || p.bias)) return "the slope of gelu without z, or with a bias";
  if (slope && (p.a.along_lines || !p.b.along_lines))
    return "the slope of gelu of an a that does not lie along k, or a b that does";
  const auto matrix = [&](const void* data, std::int64_t columns, std::int64_t rows, std::int64_t step) {
    return tensor_map_refusal({.data = data,
                               .dtype = p.dtype,
                               .columns = columns,
                               .rows = rows,
                               .row_bytes = step * 2,
                               .box_columns = 64,
                               .box_rows = 64});
  };
  const auto operand = [&](const HopperProduct::Operand& o, std::int64_t lines) {
    return matrix(o.data, o.along_lines ? lines : k, o.along_lines ? k : lines, o.step);
  };
  if (auto why = operand(p.a, m)) return "a: " + *why;
  if (auto why = operand(p.b, n)) return "b: " + *why;
  if (auto why = matrix(p.y, n, m, p.y_step)) return "y: " + *why;
  if (auto why = p.before ? matrix(p.before, n, m, p.y_step) : std::nullopt) return "before: " + *why;
  return {};
}

}  // namespace levin::kernels
