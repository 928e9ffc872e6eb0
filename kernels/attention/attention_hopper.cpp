#include "kernels/attention/attention_hopper.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/lib/tensor_map.h"
#include "levin/error.h"

namespace levin::kernels {

namespace {

std::int64_t up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// A block has so many rows (attention_hopper_device.cuh, HopperHead), or columns for gradients.
std::int64_t blocks_of(const LibraryAttention& c) {
  const std::int64_t heads = c.q.sizes[0] * c.q.sizes[1];
  return heads * (c.backward ? up(c.k.sizes[2], 128) : up(c.q.sizes[2], c.q.sizes[3] == 128 ? 128 : 192));
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
  if (auto why = operand("y", c.y); why || !c.backward) return why;
  if (auto why = operand("gy", c.gy)) return why;
  if (auto why = operand("gq", c.gq)) return why;
  if (auto why = operand("gk", c.gk)) return why;
  return operand("gv", c.gv);
}

bool fills_hopper(const LibraryAttention& call) {
  constexpr std::int64_t kProcessors = 132;
  // Gradients keep f32 sums of whole tiles of rows.
  return 2 * blocks_of(call) >= kProcessors && (!call.backward || call.q.sizes[2] >= 64);
}

// The parts of HopperScratch in attention_hopper_backward_device.cuh: a tile has 8192 sums, two numbers for each row,
// and a counter.
std::int64_t hopper_scratch(const LibraryAttention& c) {
  const std::int64_t rows = c.q.sizes[3] == 128 ? 64 : 128;
  return c.q.sizes[0] * c.q.sizes[1] * up(c.q.sizes[2], rows) * (8192 + 2 * rows + 1) + 1;
}

}  // namespace levin::kernels
