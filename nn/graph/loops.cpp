#include "nn/graph/loops.h"

#include <algorithm>
#include <limits>

#include "levin/ops.h"

namespace levin::gnn {
namespace {

// One side of a pattern with loops.
struct Side {
  Tensor crow, col;
  Tensor origin;  // i64 [E']: the old entry, or E + node for a new loop
  Tensor at;      // i64 [E]: where the old entries are
  Tensor row, added;
};

Side with_loops(const Tensor& crow, const Tensor& col, std::int64_t loops) {
  const Device device = crow.device();
  const std::int64_t rows = crow.numel() - 1, entries = col.numel(), all = entries + loops;
  const Tensor shift = clamp(arange(rows + 1, device), std::nullopt, loops), before = narrow(shift, 0, 0, rows);
  Side s;
  s.crow = crow + shift;
  s.row = gather_csr(arange(rows, device), s.crow, all);
  const Tensor place = arange(all, device), end = gather_csr(narrow(s.crow, 0, 1, rows), s.crow, all);
  s.added = logical_and(eq(place + 1, end), lt(s.row, loops));
  s.origin = where(s.added, s.row + entries, place - gather_csr(before, s.crow, all));
  s.col = index_select(cat({col, arange(loops, device).to(col.dtype())}), 0, s.origin);
  s.at = arange(entries, device) + gather_csr(before, crow, entries);
  return s;
}

// Gives `b` the facts of `a`, as long as those of `a` hold, with other bounds.
void take_facts(const Csr& a, Csr& b, std::int64_t longest_row, std::int64_t longest_column) {
  const auto facts = std::make_shared<CsrFacts>(*a.facts, b);
  facts->longest_row = longest_row;
  facts->ascending = false;  // a loop stands last in its row
  if (b.t_crow.defined()) facts->longest_column = longest_column;
  b.facts = facts;
}

// With positions that fit any number of entries.
Csr widened(const Csr& a) {
  const auto wide = [](const Tensor& t) { return t.defined() ? t.to(DType::i64) : t; };
  Csr b = a;
  b.col = wide(a.col), b.edge = wide(a.edge), b.t_col = wide(a.t_col), b.t_edge = wide(a.t_edge);
  if (const CsrFacts* facts = a.known()) b.facts = std::make_shared<const CsrFacts>(*facts, b);
  return b;
}

}  // namespace

Looped with_self_loops(const Csr& a) {
  Looped out;
  out.loops = std::min(a.rows(), a.cols);
  const std::int64_t entries = a.entries();
  const DType index = a.col.dtype();
  if (index == DType::i32 && entries + out.loops > std::numeric_limits<std::int32_t>::max())
    return with_self_loops(widened(a));
  const Side s = with_loops(a.crow, a.col, out.loops);
  out.csr = {.crow = s.crow, .col = s.col, .cols = a.cols};
  const Tensor edge = a.edge.defined() ? a.edge.to(DType::i64) : Tensor();
  const Tensor loop_values = arange(entries, entries + out.loops, 1, a.crow.device());
  out.origin = edge.defined() ? index_select(cat({edge, loop_values}), 0, s.origin) : s.origin;
  if (a.t_crow.defined()) {
    const Side t = with_loops(a.t_crow, a.t_col, out.loops);
    Tensor old = a.t_edge.to(DType::i64);  // entries of `a` in the order of columns
    if (edge.defined()) {
      const Tensor entry = arange(entries, a.crow.device());
      old = index_select(scatter(entry, 0, edge, entry), 0, old);
    }
    const Tensor loop_at = narrow(s.crow, 0, 1, out.loops) - 1;
    out.csr.t_crow = t.crow;
    out.csr.t_col = t.col;
    out.csr.t_edge = index_select(cat({index_select(s.at, 0, old), loop_at}), 0, t.origin).to(index);
  }
  if (const CsrFacts* facts = a.known()) take_facts(a, out.csr, facts->longest_row + 1, facts->longest_column + 1);
  out.replaced = logical_and(eq(s.col.to(DType::i64), s.row), logical_not(s.added));
  if (out.replaced.device().is_cpu() && sum(out.replaced).item<std::int64_t>() == 0) out.replaced = {};
  return out;
}

Csr gather_pattern(const Csr& a) {
  Csr g{.crow = arange(a.entries() + 1, a.crow.device()), .col = a.col, .cols = a.cols};
  if (!a.t_crow.defined() || a.edge.defined()) return g;
  g.t_crow = a.t_crow;
  g.t_col = a.t_edge;
  g.t_edge = a.t_edge;
  if (const CsrFacts* facts = a.known()) take_facts(a, g, 1, facts->longest_column);
  return g;
}

Tensor in_order(const Graph& g, const Tensor& by_id) {
  return g.edge_ids().defined() ? index_select(by_id, 0, g.edge_ids().to(DType::i64)) : by_id;
}

}  // namespace levin::gnn
