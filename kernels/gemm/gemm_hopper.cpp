#include "kernels/gemm/gemm_hopper.h"

#include <algorithm>
#include <limits>

#include "levin/error.h"

namespace levin::kernels {

std::optional<HopperPlan> plan_hopper(const GemmSize& size) {
  constexpr std::int64_t kProcessors = 132, kRows = 128;
  const auto tiles = [&](std::int64_t columns) {
    return (size.m + kRows - 1) / kRows * ((size.n + columns - 1) / columns);
  };
  for (const int columns : {256, 128}) {
    if (tiles(columns) >= kProcessors) return HopperPlan{columns, int(kProcessors)};
  }
  return {};
}

std::optional<std::string> hopper_refusal(const HopperProduct& p) {
  const auto [m, n, k] = p.size;
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max() - 512;  // coordinates of TMA have 32 bits
  if (std::min({m, n, k}) < 1 || std::max({m, n, k}) > kMost || (m + 127) / 128 * ((n + 127) / 128) > kMost)
    return "a product of [" + text(m) + ", " + text(k) + "] and [" + text(k) + ", " + text(n) + "]";
  const bool gelu = p.end != HopperProduct::End::bias;
  if (p.before && !gelu) return "sums before an epilogue that there is none of";
  if (gelu && (p.a.along_lines || p.b.along_lines)) return "gelu of operands that do not lie along k";
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
