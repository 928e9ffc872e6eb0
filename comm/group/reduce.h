// Sums, minima and maxima over the buffers of ranks, on the host.
//
// Note [The tree over ranks]
//
// node(0, r) is rank r's element, node(l, j) = node(l-1, 2j) + node(l-1, 2j+1), and the result is the last node. The
// order depends on the number of ranks alone, so each backend that adds in it gives the same bits. Where the number is
// no power of two, a node without a partner moves up as it is. 16-bit elements are widened to f32, and the result is
// rounded once. A recursive halving of the buffer whose distance doubles (partner r^1, then r^2, r^4) adds in this
// order, and moves as few bytes as a ring.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "levin/comm.h"
#include "levin/dtype.h"

namespace levin::dist {

// Writes the combination of in[0], in[1], ... (Note [The tree over ranks]), divided by their number for an average, to
// each of `outs`. An out may be one of the inputs, and may not overlap them otherwise.
void reduce_tree(DType dtype, ReduceOp op, std::span<const std::byte* const> in, std::span<std::byte* const> outs,
                 std::int64_t elements);

// out = a op b, element by element, without the division of an average. 16-bit elements are added in f32 and rounded.
// out may be a or b.
void combine(DType dtype, ReduceOp op, std::byte* out, const std::byte* a, const std::byte* b, std::int64_t elements);

// x = x / by. Floats alone.
void divide(DType dtype, std::byte* x, std::int64_t elements, int by);

// Between 16-bit floats and f32.
void widen(DType from, float* out, const std::byte* in, std::int64_t elements);
void narrow(DType to, std::byte* out, const float* in, std::int64_t elements);

}  // namespace levin::dist
