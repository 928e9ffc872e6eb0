// Edges sorted into the rows of a Csr.
#pragma once

#include <cstdint>
#include <limits>

#include "levin/graph.h"

namespace levin::detail {

// The first entry that stands below its neighbour in its row: index falls, or is equal and the id does not rise; -1
// where there is none. Offsets must be legal.
[[nodiscard]] std::int64_t first_descent(const Tensor& offsets, const Tensor& index, const Tensor& ids);

struct Rows {
  Csr csr{};          // checked, ascending, `edge` undefined
  Tensor edge_ids{};  // or undefined
};
// The edges by destination, source, id. src and dst [E] are contiguous, on cpu, of one integer dtype. Throws IndexError
// `op: ...` with the edge for a node out of range. Indices are i32 up to `most_narrow` nodes and edges, then i64.
[[nodiscard]] Rows rows_of_edges(const char* op, const Tensor& src, const Tensor& dst, std::int64_t num_src,
                                 std::int64_t num_dst, bool transposed,
                                 std::int64_t most_narrow = std::numeric_limits<std::int32_t>::max());
// t_crow, t_col and t_edge of a checked, ascending pattern without `edge`.
[[nodiscard]] Csr with_columns(Csr a);

}  // namespace levin::detail
