#include "kernels/attention/attention_hopper.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/lib/tensor_map.h"
#include "levin/error.h"

namespace levin::kernels {

namespace {

// Rows of a block: attention_hopper_device.cuh, HopperHead.
std::int64_t blocks_of(const LibraryAttention& c) {
  const std::int64_t rows = c.q.sizes[3] == 128 ? 128 : 192;
  return c.q.sizes[0] * c.q.sizes[1] * ((c.q.sizes[2] + rows - 1) / rows);
}

}  // namespace

std::optional<std::string> hopper_refusal(const LibraryAttention& c) {
  const std::int64_t width = c.q.sizes[3], rows = c.q.sizes[2], cols = c.k.sizes[2];
  if ((width != 64 && width != 128) || c.v.sizes[3] != width)
    return "heads of width " + text(width) + " and " + text(c.v.sizes[3]) + ", expected 64 or 128 of both";
  if (!(c.scale > 0) || !std::isfinite(c.scale)) return "scale " + text(c.scale) + ", expected one above 0";
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max() - 512;  // coordinates of TMA have 32 bits
  if (std::min({rows, cols, c.q.sizes[0], c.q.sizes[1]}) < 1 || std::max(rows, cols) > kMost || blocks_of(c) > kMost)
    return said(c).with;
  const auto operand = [&](const char* name, const LibraryAttention::Operand& o) -> std::optional<std::string> {
    if (auto why = tensor_map_refusal({.data = o.data,
                                       .dtype = c.dtype,
                                       .columns = o.sizes[3],
                                       .rows = o.sizes[2],
                                       .row_bytes = o.strides[2] * 2,
                                       .box_columns = 64,
                                       .box_rows = 64,
                                       .heads = {o.sizes[1], o.strides[1] * 2},
                                       .batches = {o.sizes[0], o.strides[0] * 2}}))
      return name + (": " + *why);
    return {};
  };
  if (auto why = operand("q", c.q)) return why;
  if (auto why = operand("k", c.k)) return why;
  if (auto why = operand("v", c.v)) return why;
  return operand("y", c.y);
}

bool fills_hopper(const LibraryAttention& call) {
  constexpr std::int64_t kProcessors = 132;
  return 2 * blocks_of(call) >= kProcessors;
}

}  // namespace levin::kernels
