// Graphs of the sampler's tests.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "levin/generator.h"
#include "levin/graph.h"

namespace levin::gnn::testing {

template <class I>
Tensor list(const std::vector<I>& values) {
  return from_data<I>(values, {static_cast<std::int64_t>(values.size())}, Device::cpu());
}

// The in-edges of a list of edges (source, destination); an edge's id is its position.
inline Csr pattern_of(const std::vector<std::pair<int, int>>& edges, std::int64_t nodes) {
  std::vector<std::int32_t> order(edges.size());
  for (std::size_t e = 0; e < order.size(); ++e) order[e] = static_cast<std::int32_t>(e);
  const auto at = [&](std::int32_t e) { return edges[static_cast<std::size_t>(e)]; };
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return std::pair(at(a).second, at(a).first) < std::pair(at(b).second, at(b).first);
  });
  std::vector<std::int64_t> crow(static_cast<std::size_t>(nodes) + 1);
  std::vector<std::int32_t> col;
  for (const std::int32_t e : order) {
    ++crow[static_cast<std::size_t>(at(e).second) + 1];
    col.push_back(at(e).first);
  }
  for (std::size_t i = 1; i < crow.size(); ++i) crow[i] += crow[i - 1];
  return {.crow = list(crow), .col = list(col), .edge = list(order), .cols = nodes};
}

// Zachary's karate club: 156 edges, both directions, sorted by source and destination.
inline std::vector<std::pair<int, int>> karate_edges() {
  const std::vector<std::pair<int, std::vector<int>>> higher = {
      {0, {1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 17, 19, 21, 31}},
      {1, {2, 3, 7, 13, 17, 19, 21, 30}},
      {2, {3, 7, 8, 9, 13, 27, 28, 32}},
      {3, {7, 12, 13}},
      {4, {6, 10}},
      {5, {6, 10, 16}},
      {6, {16}},
      {8, {30, 32, 33}},
      {9, {33}},
      {13, {33}},
      {14, {32, 33}},
      {15, {32, 33}},
      {18, {32, 33}},
      {19, {33}},
      {20, {32, 33}},
      {22, {32, 33}},
      {23, {25, 27, 29, 32, 33}},
      {24, {25, 27, 31}},
      {25, {31}},
      {26, {29, 33}},
      {27, {33}},
      {28, {31, 33}},
      {29, {32, 33}},
      {30, {32, 33}},
      {31, {32, 33}},
      {32, {33}},
  };
  std::vector<std::pair<int, int>> edges;
  for (const auto& [low, highs] : higher) {
    for (const int high : highs) {
      edges.emplace_back(low, high);
      edges.emplace_back(high, low);
    }
  }
  std::sort(edges.begin(), edges.end());
  return edges;
}
inline Csr karate() { return pattern_of(karate_edges(), 34); }

// Random edges, with repeats and loops.
inline std::vector<std::pair<int, int>> random_edges(std::uint64_t seed, int nodes, int edges) {
  Generator gen(seed);
  std::vector<std::pair<int, int>> all;
  for (int e = 0; e < edges; ++e)
    all.emplace_back(static_cast<int>(gen.integer(0, nodes)), static_cast<int>(gen.integer(0, nodes)));
  return all;
}

}  // namespace levin::gnn::testing
