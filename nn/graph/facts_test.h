// The path of four nodes and the weights that the numbers of the tests belong to, and comparisons with six digits.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "levin/autograd.h"
#include "levin/nn.h"
#include "levin/ops.h"
#include "nn/golden_test.h"

namespace levin::gnn {

inline Tensor values(const std::vector<double>& v, const Shape& shape) { return from_data(v, shape, Device::cpu()); }
inline Tensor ids(const std::vector<std::int64_t>& v) {
  return from_data(v, {static_cast<std::int64_t>(v.size())}, Device::cpu());
}
inline Graph graph_of(const std::vector<std::int64_t>& src, const std::vector<std::int64_t>& dst, std::int64_t nodes,
                      const Tensor& weight = {}) {
  return Graph::from_coo({.src = ids(src), .dst = ids(dst), .weight = weight, .num_src = nodes, .num_dst = nodes});
}

// 0 - 1 - 2 - 3, both directions.
struct P4 {
  Graph graph = graph_of({0, 1, 1, 2, 2, 3}, {1, 0, 2, 1, 3, 2}, 4);
  Tensor x = values({1, 2, 0, -1, 3, 1, -2, 0.5}, {4, 2});
  Tensor w = values({0.5, -1, 2, 0.25}, {2, 2}), b = values({0.1, -0.2}, {2});
  Tensor wr = values({1, 0, 0.5, -0.5}, {2, 2});
  Tensor g = values({1, 0, 0, 1, 1, -1, 0.5, 2}, {4, 2});
};

inline void set(Tensor& parameter, const Tensor& value) {
  const NoGrad off;
  copy_(parameter, reshape(value, Dims(parameter.shape().dims())));
}

// The literals have six decimals.
inline void check_near(const Tensor& got, const std::vector<double>& expected, double tolerance = 1e-6) {
  const std::vector<double> v = got.detach().to(Device::cpu()).to(DType::f64).contiguous().to_vector<double>();
  REQUIRE(v.size() == expected.size());
  for (std::size_t i = 0; i < v.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(v[i] - expected[i]) <= tolerance * std::max(1.0, std::abs(expected[i])));
  }
}
inline void check_same(const Tensor& got, const Tensor& expected, double tolerance) {
  REQUIRE(got.shape() == expected.shape());
  check_near(got, expected.detach().to(Device::cpu()).to(DType::f64).contiguous().to_vector<double>(), tolerance);
}

inline Tensor trained(const Tensor& x) {
  Tensor leaf = x.detach().clone();
  leaf.requires_grad_();
  return leaf;
}

// A multigraph of random edges with loops and duplicates; the last node is isolated.
inline Graph random_graph(std::int64_t nodes, std::int64_t edges, Generator& gen, const Tensor& weight = {}) {
  std::vector<std::int64_t> src, dst;
  for (std::int64_t e = 0; e < edges; ++e) {
    src.push_back(gen.integer(0, nodes - 1));
    dst.push_back(e % 7 == 0 ? src.back() : gen.integer(0, nodes - 1));
    if (e % 5 == 4) src.back() = src[src.size() - 2], dst.back() = dst[dst.size() - 2];
  }
  return graph_of(src, dst, nodes, weight);
}

}  // namespace levin::gnn
