#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "levin/error.h"
#include "levin/generator.h"
#include "levin/graph_edges.h"
#include "tests/device.h"

namespace levin::gnn {
namespace {

using Ids = std::vector<std::int64_t>;
using Weights = std::vector<float>;

Tensor ids(const Ids& v) { return from_data<std::int64_t>(v, {static_cast<std::int64_t>(v.size())}, Device::cpu()); }
Tensor floats(const Weights& v) { return from_data<float>(v, {static_cast<std::int64_t>(v.size())}, Device::cpu()); }
Tensor rows(const Weights& v, std::int64_t width) {
  return from_data<float>(v, {static_cast<std::int64_t>(v.size()) / width, width}, Device::cpu());
}
Ids list(const Tensor& x) { return x.to_vector<std::int64_t>(); }
Weights numbers(const Tensor& x) { return x.to_vector<float>(); }
// 0 -> 1 twice, a loop at 2 twice, 2 -> 0; node 3 has no edge.
EdgeList sample() {
  return {.src = ids({0, 0, 2, 2, 2}),
          .dst = ids({1, 1, 2, 2, 0}),
          .weight = floats({1, 2, 5, 7, 4}),
          .attr = rows({1, 10, 3, 20, 5, 30, 7, 40, 9, 50}, 2),
          .num_src = 4,
          .num_dst = 4};
}

TEST_CASE("remove_self_loops keeps the other edges with their values") {
  const ChangedEdges r = remove_self_loops(sample());
  CHECK(list(r.edges.src) == Ids{0, 0, 2});
  CHECK(list(r.edges.dst) == Ids{1, 1, 0});
  CHECK(numbers(r.edges.weight) == Weights{1, 2, 4});
  CHECK(numbers(r.edges.attr) == Weights{1, 10, 3, 20, 9, 50});
  CHECK(list(r.old_id) == Ids{0, 1, 4});
  CHECK(list(r.new_id) == Ids{0, 1, -1, -1, 2});
  CHECK(r.edges.num_src == 4);
}

TEST_CASE("add_self_loops appends a loop a node, with the mean of what arrives as attributes") {
  const ChangedEdges r = add_self_loops(sample(), {.weight = 3});
  CHECK(list(r.edges.src) == Ids{0, 0, 2, 2, 2, 0, 1, 2, 3});
  CHECK(list(r.edges.dst) == Ids{1, 1, 2, 2, 0, 0, 1, 2, 3});
  CHECK(numbers(r.edges.weight) == Weights{1, 2, 5, 7, 4, 3, 3, 3, 3});
  CHECK(numbers(r.edges.attr) == Weights{1, 10, 3, 20, 5, 30, 7, 40, 9, 50, 9, 50, 2, 15, 6, 35, 0, 0});
  CHECK(list(r.old_id) == Ids{0, 1, 2, 3, 4, -1, -1, -1, -1});
  CHECK(list(r.new_id) == Ids{0, 1, 2, 3, 4});
  const auto attr = [](LoopFill fill) {
    const Weights all = numbers(add_self_loops(sample(), fill).edges.attr);
    return Weights(all.begin() + 10, all.end());
  };
  CHECK(attr({.attr = EdgeReduce::sum}) == Weights{9, 50, 4, 30, 12, 70, 0, 0});
  CHECK(attr({.attr = EdgeReduce::max}) == Weights{9, 50, 3, 20, 7, 40, 0, 0});
  CHECK(attr({.attr = EdgeReduce::min}) == Weights{9, 50, 1, 10, 5, 30, 0, 0});
  CHECK(attr({.attr = {}, .value = 8}) == Weights(8, 8.0f));
}

TEST_CASE("a list without weights gets some only where loops weigh other than 1") {
  EdgeList plain{.src = ids({0, 1}), .dst = ids({0, 0}), .num_src = 2, .num_dst = 2};
  CHECK_FALSE(add_self_loops(plain).edges.weight.defined());
  CHECK(numbers(add_self_loops(plain, {.weight = 2}).edges.weight) == Weights{1, 1, 2, 2});
  CHECK_FALSE(add_remaining_self_loops(plain).edges.weight.defined());
  CHECK(numbers(add_remaining_self_loops(plain, {.weight = 2}).edges.weight) == Weights{1, 2, 2});
}

TEST_CASE("add_remaining_self_loops leaves one loop a node, the last one that it has") {
  const ChangedEdges r = add_remaining_self_loops(sample(), {.weight = 3});
  CHECK(list(r.edges.src) == Ids{0, 0, 2, 0, 1, 2, 3});
  CHECK(list(r.edges.dst) == Ids{1, 1, 0, 0, 1, 2, 3});
  CHECK(numbers(r.edges.weight) == Weights{1, 2, 4, 3, 3, 7, 3});
  CHECK(numbers(r.edges.attr) == Weights{1, 10, 3, 20, 9, 50, 9, 50, 2, 15, 7, 40, 0, 0});
  CHECK(list(r.old_id) == Ids{0, 1, 4, -1, -1, 3, -1});
  CHECK(list(r.new_id) == Ids{0, 1, -1, 5, 2});
}

TEST_CASE("two sides of nodes get loops up to the smaller number") {
  const EdgeList two{.src = ids({0}), .dst = ids({1}), .num_src = 3, .num_dst = 2};
  CHECK(list(add_self_loops(two).edges.src) == Ids{0, 0, 1});
  CHECK(list(add_remaining_self_loops(two).edges.dst) == Ids{1, 0, 1});
  CHECK_THROWS_AS((void)to_undirected(two), ConfigError);
}

TEST_CASE("coalesce joins parallel edges by each reduction, in both orders") {
  const EdgeList small{.src = ids({0, 0, 2}), .dst = ids({1, 1, 2}), .weight = floats({1, 2, 5}), .num_src = 4};
  const ChangedEdges sum = coalesce(small, EdgeReduce::sum);
  CHECK(list(sum.edges.src) == Ids{0, 2});
  CHECK(list(sum.edges.dst) == Ids{1, 2});
  CHECK(numbers(sum.edges.weight) == Weights{3, 5});
  const auto by = [](EdgeReduce reduce, EdgeOrder order) { return coalesce(sample(), reduce, order); };
  const ChangedEdges dst = by(EdgeReduce::mean, EdgeOrder::by_dst);
  CHECK(list(dst.edges.src) == Ids{2, 0, 2});
  CHECK(list(dst.edges.dst) == Ids{0, 1, 2});
  CHECK(numbers(dst.edges.weight) == Weights{4, 1.5, 6});
  CHECK(numbers(dst.edges.attr) == Weights{9, 50, 2, 15, 6, 35});
  CHECK(list(dst.old_id) == Ids{4, 0, 2});
  CHECK(list(dst.new_id) == Ids{1, 1, 2, 2, 0});
  const ChangedEdges src = by(EdgeReduce::max, EdgeOrder::by_src);
  CHECK(list(src.edges.src) == Ids{0, 2, 2});
  CHECK(list(src.edges.dst) == Ids{1, 0, 2});
  CHECK(numbers(src.edges.weight) == Weights{2, 4, 7});
  CHECK(numbers(by(EdgeReduce::min, EdgeOrder::by_src).edges.weight) == Weights{1, 4, 5});
  CHECK(numbers(by(EdgeReduce::first, EdgeOrder::by_src).edges.weight) == Weights{1, 4, 5});
  CHECK(numbers(by(EdgeReduce::sum, EdgeOrder::by_src).edges.attr) == Weights{4, 30, 9, 50, 12, 70});
}

TEST_CASE("min and max of edges return NaN where there is one") {
  for (const auto& w : {Weights{NAN, 1, 2}, Weights{1, NAN, 2}, Weights{1, 2, NAN}}) {
    const EdgeList edges{.src = ids({0, 0, 0}), .dst = ids({0, 0, 0}), .weight = floats(w)};
    CHECK(std::isnan(numbers(coalesce(edges, EdgeReduce::max).edges.weight)[0]));
    CHECK(std::isnan(numbers(coalesce(edges, EdgeReduce::min).edges.weight)[0]));
  }
}

TEST_CASE("to_undirected mirrors edges, and loops not") {
  const ChangedEdges r = to_undirected(sample(), EdgeReduce::sum);
  CHECK(list(r.edges.src) == Ids{1, 2, 0, 0, 2});
  CHECK(list(r.edges.dst) == Ids{0, 0, 1, 2, 2});
  CHECK(numbers(r.edges.weight) == Weights{3, 4, 3, 4, 12});
  CHECK(list(r.old_id) == Ids{0, 4, 0, 4, 2});
  CHECK(list(r.new_id) == Ids{2, 2, 4, 4, 1});
  CHECK(Graph::from_coo(r.edges).is_undirected());
  // An edge that is there in both directions is joined with its mirror.
  const EdgeList both{.src = ids({0, 1}), .dst = ids({1, 0}), .weight = floats({1, 2})};
  CHECK(numbers(to_undirected(both, EdgeReduce::sum).edges.weight) == Weights{3, 3});
  CHECK(numbers(to_undirected(both, EdgeReduce::first).edges.weight) == Weights{2, 1});
}

TEST_CASE("random edges join as a map of pairs says") {
  Generator gen(3);
  for (int run = 0; run < 50; ++run) {
    const std::int64_t nodes = gen.integer(1, 8), edges = gen.integer(0, 40);
    Ids src, dst;
    Weights weight;
    std::map<std::pair<std::int64_t, std::int64_t>, float> expected, mirrored;
    for (std::int64_t e = 0; e < edges; ++e) {
      src.push_back(gen.integer(0, nodes));
      dst.push_back(gen.integer(0, nodes));
      weight.push_back(static_cast<float>(gen.integer(0, 100)));
      expected[{dst.back(), src.back()}] += weight.back();
      mirrored[{dst.back(), src.back()}] += weight.back();
      if (src.back() != dst.back()) mirrored[{src.back(), dst.back()}] += weight.back();
    }
    const EdgeList given{.src = ids(src), .dst = ids(dst), .weight = floats(weight), .num_src = nodes};
    const auto as_map = [](const ChangedEdges& r) {
      std::map<std::pair<std::int64_t, std::int64_t>, float> out;
      for (std::size_t k = 0; k < list(r.edges.src).size(); ++k)
        out[{list(r.edges.dst)[k], list(r.edges.src)[k]}] += numbers(r.edges.weight)[k];
      return out;
    };
    const ChangedEdges joined = coalesce(given, EdgeReduce::sum), both = to_undirected(given, EdgeReduce::sum);
    CHECK(as_map(joined) == expected);
    CHECK(joined.edges.src.numel() == static_cast<std::int64_t>(expected.size()));
    CHECK(as_map(both) == mirrored);
    CHECK_FALSE(Graph::from_coo(joined.edges).edge_ids().defined());
  }
}

TEST_CASE("values of every dtype follow their edges, where the reduction has a meaning") {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    EdgeList edges{.src = ids({0, 0}), .dst = ids({0, 0}), .attr = rows({3, 1}, 1).to(dtype)};
    const auto joined = [&](EdgeReduce reduce) {
      return coalesce(edges, reduce).edges.attr.to(DType::f32).to_vector<float>()[0];
    };
    const bool flag = dtype == DType::b8;
    CHECK(joined(EdgeReduce::first) == (flag ? 1 : 3));
    CHECK(joined(EdgeReduce::max) == (flag ? 1 : 3));
    CHECK(joined(EdgeReduce::min) == 1);
    if (is_float(dtype))
      CHECK(joined(EdgeReduce::mean) == 2);
    else
      CHECK_THROWS_AS(joined(EdgeReduce::mean), DTypeError);
    if (flag)
      CHECK_THROWS_AS(joined(EdgeReduce::sum), DTypeError);
    else
      CHECK(joined(EdgeReduce::sum) == 4);
    if (!is_float(dtype)) CHECK_THROWS_AS((void)add_self_loops(edges), DTypeError);
  }
}

TEST_CASE("functions of edge lists refuse lists that fit no graph, by their names") {
  const auto said = [](const EdgeList& edges) {
    try {
      (void)add_self_loops(edges);
    } catch (const Error& e) { return std::string(e.what()); }
    return std::string();
  };
  EdgeList bad = sample();
  bad.num_src = bad.num_dst = 2;
  CHECK(said(bad).find("add_self_loops: src[2] is 2, expected 0 to 1") == 0);
  bad = sample();
  bad.dst = ids({1, 1, 2, 2, -1});
  CHECK_THROWS_AS((void)remove_self_loops(bad), IndexError);
  CHECK_THROWS_AS((void)coalesce(bad, EdgeReduce::sum), IndexError);
  CHECK_THROWS_AS((void)coalesce(sample()), ConfigError);
  CHECK_THROWS_AS((void)to_undirected(sample()), ConfigError);
  bad = sample();
  bad.weight = {};
  CHECK_THROWS_AS((void)coalesce(bad), ConfigError);  // attributes alone
  bad.attr = {};
  CHECK(coalesce(bad).edges.src.numel() == 3);
}

TEST_CASE("narrow ids stay narrow") {
  const EdgeList edges{.src = ids({1, 0, 1}).to(DType::i32), .dst = ids({0, 0, 0}).to(DType::i32)};
  CHECK(coalesce(edges).edges.src.dtype() == DType::i32);
  CHECK(to_undirected(edges).edges.dst.dtype() == DType::i32);
  CHECK(coalesce(edges).old_id.dtype() == DType::i64);
}

}  // namespace
}  // namespace levin::gnn
