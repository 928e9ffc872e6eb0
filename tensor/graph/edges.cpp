#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "levin/error.h"
#include "levin/graph_edges.h"
#include "tensor/graph/edge_list.h"
#include "tensor/graph/rows.h"

namespace levin::gnn {
namespace {

using Ids = std::vector<std::int64_t>;

// A checked list: contiguous tensors, known numbers of nodes, no node out of range.
struct Given {
  const char* op;
  EdgeList list{};
  Ids src{}, dst{};
  [[nodiscard]] std::int64_t edges() const { return list.src.numel(); }
  [[nodiscard]] std::int64_t loops() const { return std::min(list.num_src, list.num_dst); }
  [[nodiscard]] bool is_loop(std::int64_t e) const {
    return src[static_cast<std::size_t>(e)] == dst[static_cast<std::size_t>(e)];
  }
};

Ids widened(const Tensor& t) {
  if (t.dtype() == DType::i64) return {t.data<std::int64_t>(), t.data<std::int64_t>() + t.numel()};
  return {t.data<std::int32_t>(), t.data<std::int32_t>() + t.numel()};
}
Tensor as_tensor(const Ids& ids, DType dtype = DType::i64) {
  const Shape shape{static_cast<std::int64_t>(ids.size())};
  if (dtype == DType::i64) return from_data<std::int64_t>(ids, shape, Device::cpu());
  Tensor out = empty(shape, Device::cpu(), dtype);
  std::transform(ids.begin(), ids.end(), out.mutable_data<std::int32_t>(),
                 [](std::int64_t i) { return static_cast<std::int32_t>(i); });
  return out;
}

Given given(const char* op, const EdgeList& edges) {
  detail::check_edges(op, edges);
  Given g{.op = op, .list = edges};
  g.list.src = edges.src.contiguous();
  g.list.dst = edges.dst.contiguous();
  if (edges.weight.defined()) g.list.weight = edges.weight.detach().contiguous();
  if (edges.attr.defined()) g.list.attr = edges.attr.detach().contiguous();
  const bool bipartite = edges.num_src >= 0 && edges.num_dst >= 0 && edges.num_src != edges.num_dst;
  std::tie(g.list.num_src, g.list.num_dst) = detail::count_nodes(op, g.list, bipartite);
  g.src = widened(g.list.src);
  g.dst = widened(g.list.dst);
  const auto check = [&](const char* name, const Ids& ids, std::int64_t nodes) {
    for (std::size_t e = 0; e < ids.size(); ++e) {
      if (ids[e] < 0 || ids[e] >= nodes)
        fail<IndexError>(op, ": ", name, "[", e, "] is ", ids[e], ", expected 0 to ", nodes - 1, ", a node");
    }
  };
  check("src", g.src, g.list.num_src);
  check("dst", g.dst, g.list.num_dst);
  return g;
}

// New edges in their order: entries [start[k], start[k + 1]) of `ids` become edge k; none: an added loop.
struct Plan {
  Ids src{}, dst{};
  Ids start{0}, ids{};
  std::vector<std::uint8_t> mirror{};  // of an entry of `ids`; empty: none is
  void add(std::int64_t from, std::int64_t to) {
    src.push_back(from);
    dst.push_back(to);
    start.push_back(static_cast<std::int64_t>(ids.size()));
  }
  void keep(const Given& g, std::int64_t e) {
    ids.push_back(e);
    add(g.src[static_cast<std::size_t>(e)], g.dst[static_cast<std::size_t>(e)]);
  }
};

template <class F>
void with_type(DType dtype, const F& f) {
  switch (dtype) {
    case DType::f32: f(float{}); break;
    case DType::f64: f(double{}); break;
    case DType::f16: f(f16{}); break;
    case DType::bf16: f(bf16{}); break;
    case DType::i32: f(std::int32_t{}); break;
    case DType::i64: f(std::int64_t{}); break;
    case DType::u8: f(std::uint8_t{}); break;
    case DType::b8: f(bool{}); break;
    case DType::i8: f(std::int8_t{}); break;
    case DType::i16: f(std::int16_t{}); break;
  }
}

// out[c] = the reduction of x[ids][c] over `ids`, which is not empty.
template <class T>
void reduce_rows(const T* x, std::int64_t width, const std::int64_t* ids, std::int64_t count, EdgeReduce reduce,
                 T* out) {
  using Sum = std::conditional_t<std::is_integral_v<T>, std::uint64_t, double>;  // integers wrap
  for (std::int64_t c = 0; c < width; ++c) {
    const auto value = [&](std::int64_t n) { return x[ids[n] * width + c]; };
    T best = value(0);
    if (reduce == EdgeReduce::sum || reduce == EdgeReduce::mean) {
      Sum sum = static_cast<Sum>(best);
      for (std::int64_t n = 1; n < count; ++n) sum += static_cast<Sum>(value(n));
      if constexpr (!std::is_integral_v<T>) {
        if (reduce == EdgeReduce::mean) sum /= static_cast<double>(count);
      }
      best = static_cast<T>(sum);
    } else if (reduce != EdgeReduce::first) {
      for (std::int64_t n = 1; n < count; ++n) {
        const T v = value(n);
        const auto a = static_cast<Sum>(v), b = static_cast<Sum>(best);
        if constexpr (std::is_integral_v<T>) {
          if (reduce == EdgeReduce::max ? best < v : v < best) best = v;
        } else if (b == b && (a != a || (reduce == EdgeReduce::max ? b < a : a < b))) {  // NaN wins
          best = v;
        }
      }
    }
    out[c] = best;
  }
}

void check_reduce(const char* op, const char* name, const Tensor& x, EdgeReduce reduce) {
  const bool number =
      reduce == EdgeReduce::sum ? x.dtype() != DType::b8 : reduce != EdgeReduce::mean || is_float(x.dtype());
  if (!number)
    fail<DTypeError>(op, ": the ", reduce == EdgeReduce::sum ? "sum" : "mean", " of ", name, " of dtype ", x.dtype(),
                     ", expected a float dtype; choose another reduction");
}

// Rows of x for each edge of the plan, reduced; row k of added loops is left to `loop(k, out)`.
template <class Loop>
Tensor values_of(const Plan& plan, const Tensor& x, EdgeReduce reduce, const Loop& loop) {
  const auto edges = static_cast<std::int64_t>(plan.src.size());
  const std::int64_t width = x.rank() == 2 ? x.size(1) : 1;
  Tensor out = empty(x.shape().with(0, edges), Device::cpu(), x.dtype());
  with_type(x.dtype(), [&]<class T>(T) {
    const T* from = x.data<T>();
    T* to = out.mutable_data<T>();
    for (std::int64_t k = 0; k < edges; ++k) {
      const std::int64_t begin = plan.start[static_cast<std::size_t>(k)],
                         end = plan.start[static_cast<std::size_t>(k) + 1];
      if (begin == end)
        loop(k, to + k * width);
      else
        reduce_rows(from, width, plan.ids.data() + begin, end - begin, reduce, to + k * width);
    }
  });
  return out;
}

// Ids and maps of the plan; weights and attributes are added by the caller.
ChangedEdges without_values(const Given& g, const Plan& plan) {
  ChangedEdges out;
  const DType dtype = g.list.src.dtype();
  out.edges = {.src = as_tensor(plan.src, dtype),
               .dst = as_tensor(plan.dst, dtype),
               .num_src = g.list.num_src,
               .num_dst = g.list.num_dst};
  Ids old_id, new_id(static_cast<std::size_t>(g.edges()), -1);
  for (std::size_t k = 0; k < plan.src.size(); ++k) {
    const auto begin = static_cast<std::size_t>(plan.start[k]), end = static_cast<std::size_t>(plan.start[k + 1]);
    old_id.push_back(begin == end ? -1 : plan.ids[begin]);
    for (std::size_t n = begin; n < end; ++n) {
      if (plan.mirror.empty() || !plan.mirror[n])
        new_id[static_cast<std::size_t>(plan.ids[n])] = static_cast<std::int64_t>(k);
    }
  }
  out.old_id = as_tensor(old_id);
  out.new_id = as_tensor(new_id);
  return out;
}

ChangedEdges with_loops(const Given& g, Plan plan, std::int64_t loops_begin, bool overwrite, const LoopFill& fill) {
  const char* op = g.op;
  const Tensor& attr = g.list.attr;
  if (attr.defined() && fill.attr) check_reduce(op, "attr", attr, *fill.attr);
  ChangedEdges out = without_values(g, plan);
  const auto edges = static_cast<std::int64_t>(plan.src.size());
  if (g.list.weight.defined()) {
    out.edges.weight = values_of(plan, g.list.weight, EdgeReduce::first, [&](std::int64_t, auto* to) {
      *to = static_cast<std::remove_pointer_t<decltype(to)>>(fill.weight);
    });
  } else if (fill.weight != 1) {
    out.edges.weight = empty({edges}, Device::cpu());
    auto* to = out.edges.weight.mutable_data<float>();
    for (std::int64_t k = 0; k < edges; ++k) {
      const bool loop = overwrite
                            ? k >= loops_begin
                            : plan.start[static_cast<std::size_t>(k)] == plan.start[static_cast<std::size_t>(k) + 1];
      to[k] = loop ? static_cast<float>(fill.weight) : 1.0f;
    }
  }
  if (!attr.defined()) return out;
  // The edges that arrive at each node, by id.
  Ids start(static_cast<std::size_t>(g.list.num_dst) + 1), arriving;
  if (fill.attr) {
    for (const std::int64_t d : g.dst) ++start[static_cast<std::size_t>(d) + 1];
    std::partial_sum(start.begin(), start.end(), start.begin());
    arriving.resize(g.dst.size());
    Ids at = start;
    for (std::size_t e = 0; e < g.dst.size(); ++e)
      arriving[static_cast<std::size_t>(at[static_cast<std::size_t>(g.dst[e])]++)] = static_cast<std::int64_t>(e);
  }
  const std::int64_t width = attr.size(1);
  out.edges.attr = values_of(plan, attr, EdgeReduce::first, [&](std::int64_t k, auto* to) {
    using T = std::remove_pointer_t<decltype(to)>;
    const auto node = static_cast<std::size_t>(plan.dst[static_cast<std::size_t>(k)]);
    if (!fill.attr)
      std::fill_n(to, width, Scalar(fill.value).to<T>());
    else if (start[node] == start[node + 1])
      std::fill_n(to, width, static_cast<T>(0));
    else
      reduce_rows(attr.data<T>(), width, arriving.data() + start[node], start[node + 1] - start[node], *fill.attr, to);
  });
  return out;
}

// `g`'s edges and the mirrors of its edges `mirrored`, joined and sorted.
ChangedEdges joined(const Given& g, const Ids& mirrored, std::optional<EdgeReduce> reduce, EdgeOrder order) {
  for (const auto& [name, x] :
       {std::pair<const char*, const Tensor&>{"weight", g.list.weight}, {"attr", g.list.attr}}) {
    if (!x.defined()) continue;
    if (!reduce)
      fail<ConfigError>(g.op, ": the list has ", name,
                        ", expected a reduction for joined edges; choose one, such as EdgeReduce::sum");
    check_reduce(g.op, name, x, *reduce);
  }
  Ids src = g.src, dst = g.dst;
  for (const std::int64_t e : mirrored) {
    src.push_back(g.dst[static_cast<std::size_t>(e)]);
    dst.push_back(g.src[static_cast<std::size_t>(e)]);
  }
  const bool by_dst = order == EdgeOrder::by_dst;
  const DType dtype = g.list.src.dtype();
  const Tensor row = as_tensor(by_dst ? dst : src, dtype), col = as_tensor(by_dst ? src : dst, dtype);
  const levin::detail::Rows rows = levin::detail::rows_of_edges(
      g.op, col, row, by_dst ? g.list.num_src : g.list.num_dst, by_dst ? g.list.num_dst : g.list.num_src, false);
  const Ids columns = widened(rows.csr.col), ids = rows.edge_ids.defined() ? widened(rows.edge_ids) : Ids{};
  const auto* crow = rows.csr.crow.data<std::int64_t>();
  Plan plan;
  for (std::int64_t i = 0; i < rows.csr.rows(); ++i) {
    for (std::int64_t k = crow[i]; k < crow[i + 1]; ++k) {
      const auto at = static_cast<std::size_t>(k);
      const std::int64_t e = ids.empty() ? k : ids[at];
      const bool is_mirror = e >= g.edges();
      plan.ids.push_back(is_mirror ? mirrored[static_cast<std::size_t>(e - g.edges())] : e);
      plan.mirror.push_back(is_mirror);
      if (k + 1 < crow[i + 1] && columns[at + 1] == columns[at]) continue;
      by_dst ? plan.add(columns[at], i) : plan.add(i, columns[at]);
    }
  }
  ChangedEdges out = without_values(g, plan);
  const auto none = [](std::int64_t, auto*) {};
  if (g.list.weight.defined()) out.edges.weight = values_of(plan, g.list.weight, *reduce, none);
  if (g.list.attr.defined()) out.edges.attr = values_of(plan, g.list.attr, *reduce, none);
  return out;
}

}  // namespace

ChangedEdges remove_self_loops(const EdgeList& edges) {
  const Given g = given("remove_self_loops", edges);
  Plan plan;
  for (std::int64_t e = 0; e < g.edges(); ++e) {
    if (!g.is_loop(e)) plan.keep(g, e);
  }
  return with_loops(g, plan, 0, false, {.attr = {}});
}

ChangedEdges add_self_loops(const EdgeList& edges, LoopFill fill) {
  const Given g = given("add_self_loops", edges);
  Plan plan;
  for (std::int64_t e = 0; e < g.edges(); ++e) plan.keep(g, e);
  for (std::int64_t i = 0; i < g.loops(); ++i) plan.add(i, i);
  return with_loops(g, plan, g.edges(), false, fill);
}

ChangedEdges add_remaining_self_loops(const EdgeList& edges, LoopFill fill) {
  const Given g = given("add_remaining_self_loops", edges);
  Plan plan;
  Ids last(static_cast<std::size_t>(g.loops()), -1);
  for (std::int64_t e = 0; e < g.edges(); ++e) {
    if (g.is_loop(e))
      last[static_cast<std::size_t>(g.src[static_cast<std::size_t>(e)])] = e;
    else
      plan.keep(g, e);
  }
  const auto kept = static_cast<std::int64_t>(plan.src.size());
  for (std::int64_t i = 0; i < g.loops(); ++i) {
    if (const std::int64_t e = last[static_cast<std::size_t>(i)]; e >= 0)
      plan.keep(g, e);
    else
      plan.add(i, i);
  }
  return with_loops(g, plan, kept, true, fill);
}

ChangedEdges coalesce(const EdgeList& edges, std::optional<EdgeReduce> reduce, EdgeOrder order) {
  return joined(given("coalesce", edges), {}, reduce, order);
}

ChangedEdges to_undirected(const EdgeList& edges, std::optional<EdgeReduce> reduce) {
  const Given g = given("to_undirected", edges);
  if (g.list.num_src != g.list.num_dst)
    fail<ConfigError>(g.op, ": num_src is ", g.list.num_src, " and num_dst ", g.list.num_dst,
                      ", expected one number of nodes");
  Ids mirrored;
  for (std::int64_t e = 0; e < g.edges(); ++e) {
    if (!g.is_loop(e)) mirrored.push_back(e);
  }
  return joined(g, mirrored, reduce, EdgeOrder::by_dst);
}

}  // namespace levin::gnn
