#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

#include "data/graph/planetoid.h"
#include "levin/data/graph.h"
#include "levin/graph_edges.h"

namespace levin::gnn {
namespace {

constexpr std::int64_t kNodes = 34;
struct Friends {
  int member;
  std::string_view higher;  // members with a higher number, as characters from '0'
};
// Zachary, 1977, figure 1.
constexpr std::array kFriends = {
    Friends{0, "12345678:;<=ACEO"},
    Friends{1, "237=ACEN"},
    Friends{2, "3789=KLP"},
    Friends{3, "7<="},
    Friends{4, "6:"},
    Friends{5, "6:@"},
    Friends{6, "@"},
    Friends{8, "NPQ"},
    Friends{9, "Q"},
    Friends{13, "Q"},
    Friends{14, "PQ"},
    Friends{15, "PQ"},
    Friends{18, "PQ"},
    Friends{19, "Q"},
    Friends{20, "PQ"},
    Friends{22, "PQ"},
    Friends{23, "IKMPQ"},
    Friends{24, "IKO"},
    Friends{25, "O"},
    Friends{26, "MQ"},
    Friends{27, "Q"},
    Friends{28, "OQ"},
    Friends{29, "PQ"},
    Friends{30, "PQ"},
    Friends{31, "PQ"},
    Friends{32, "Q"},
};
constexpr std::string_view kCommunities = "1111333101311100310101002200200200";

}  // namespace

NodeData karate_club() {
  std::vector<std::int64_t> src, dst, y, val, test;
  for (const Friends& f : kFriends) {
    for (const char c : f.higher) {
      for (const auto& [a, b] : {std::pair{f.member, c - '0'}, {c - '0', f.member}}) {
        src.push_back(a);
        dst.push_back(b);
      }
    }
  }
  const auto list = [](const std::vector<std::int64_t>& v) {
    return from_data<std::int64_t>(v, {static_cast<std::int64_t>(v.size())}, Device::cpu());
  };
  const std::vector<std::int64_t> train{8, 0, 24, 4};
  for (std::int64_t i = 0; i < kNodes; ++i) {
    y.push_back(kCommunities[static_cast<std::size_t>(i)] - '0');
    if (std::find(train.begin(), train.end(), i) == train.end()) val.push_back(i);
    test.push_back(i);
  }
  // The id of an edge is its place in the order of PyTorch Geometric: by source, then destination.
  const EdgeList edges{.src = list(src), .dst = list(dst), .num_src = kNodes, .num_dst = kNodes};
  NodeData out{.name = "karate", .graph = Graph::from_coo(coalesce(edges, {}, EdgeOrder::by_src).edges)};
  out.x = empty({kNodes, kNodes}, Device::cpu());
  float* x = out.x.mutable_data<float>();
  for (std::int64_t i = 0; i < kNodes * kNodes; ++i) x[i] = i % (kNodes + 1) == 0 ? 1.0f : 0.0f;
  out.y = list(y);
  out.train = list(train);
  out.val = list(val);
  out.test = list(test);
  out.num_classes = 4;
  out.class_names = numbered_classes(4);
  return out;
}

}  // namespace levin::gnn
