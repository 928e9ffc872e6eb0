// What layers prepare for a graph: self-loops, coefficients, and the memory of the last graph.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <typeinfo>
#include <utility>
#include <vector>

#include "levin/nn/graph.h"
#include "levin/stream.h"

namespace levin::gnn {

// A pattern in which each node that is source and destination has one loop, the last entry of its row. Made by ops of
// known sizes, so nothing waits; therefore a loop that the new one replaces stays.
struct Looped {
  Csr csr{};          // values are in row order
  Tensor origin{};    // i64 [E']: the old value, or E + node for a new loop
  Tensor replaced{};  // bool [E']: entries that are replaced loops; undefined on cpu where there are none
  std::int64_t loops = 0;
};
[[nodiscard]] Looped with_self_loops(const Csr& a);

// The sources of each entry as rows of a pattern, whose product with x is gather_sources.
[[nodiscard]] Csr gather_pattern(const Csr& a);

namespace detail {

struct GraphMemo {
  std::mutex mutex;
  std::optional<Graph> graph;
  Device device = Device::cpu();
  Tensor weight;  // the handle keeps the memory, so no other tensor gets the same
  std::uint32_t version = 0;
  const std::type_info* type = nullptr;
  DType dtype = DType::f32;
  std::shared_ptr<const void> kept;
  std::vector<std::shared_ptr<const void>> recorded;  // what recordings read, as long as the layer lives
};

}  // namespace detail

// What make() returns for the graph, a tensor beside it and a dtype, made again when one of them is another one. During
// a recording what is made belongs to the recording and is not kept.
template <class T, class Make>
std::shared_ptr<const T> remembered(detail::GraphMemo& memo, const Graph& g, const Tensor& weight, DType dtype,
                                    Make&& make) {
  const std::lock_guard lock(memo.mutex);
  const bool same = memo.graph && *memo.type == typeid(T) && memo.dtype == dtype && memo.graph->is_same(g) &&
                    memo.device == g.device() && memo.weight.impl() == weight.impl() &&
                    (!weight.defined() || memo.version == weight.version());
  if (same && is_capturing(g.device()) && (memo.recorded.empty() || memo.recorded.back() != memo.kept))
    memo.recorded.push_back(memo.kept);
  if (same) return std::static_pointer_cast<const T>(memo.kept);
  auto made = std::make_shared<const T>(make());
  if (is_capturing(g.device())) return made;
  memo.graph = g;
  memo.device = g.device();
  memo.weight = weight;
  memo.version = weight.defined() ? weight.version() : 0;
  memo.type = &typeid(T);
  memo.dtype = dtype;
  memo.kept = made;
  return made;
}

// Values by id in the order of g.csr().
[[nodiscard]] Tensor in_order(const Graph& g, const Tensor& by_id);

}  // namespace levin::gnn
