// Generated pairs of nodes become a graph, on all cores.
#pragma once

#include <cstdint>

#include "levin/function.h"
#include "levin/graph.h"

namespace levin::gnn {

// f(begin, end) for pieces of [0, n) of `grain`, on oneTBB's threads. Pieces do not depend on the number of threads.
void for_pieces(std::int64_t n, std::int64_t grain, const Function<void(std::int64_t, std::int64_t)>& f);

// The edges without loops, each in both directions, once: as from_coo(to_undirected(remove_self_loops(edges).edges)).
// src and dst are i32 [E], E < 2^30, of `nodes` <= 2^30 nodes.
[[nodiscard]] Graph undirected_graph(const EdgeList& edges, std::int64_t nodes);

}  // namespace levin::gnn
