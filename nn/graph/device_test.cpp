// Graph layers on a device: the CPU's numbers, no waits, and recordings.
#include <algorithm>

#include "levin/stream.h"
#include "levin/sync.h"
#include "nn/graph/facts_test.h"
#include "tests/device.h"

namespace levin::gnn {
namespace {

// Features 6 of 9 nodes -> the layers' outputs, one beside the other.
struct Layers : nn::Module {
  explicit Layers(nn::Options o) : Module(std::move(o)) {}
  GCNConv gcn{*this, "gcn", {.in = 6, .out = 4}};
  SAGEConv sage{*this, "sage", {.in = 6, .out = 4}}, most{*this, "most", {.in = 6, .out = 4, .aggr = Reduce::max}};
  GINConv gin{*this, "gin", {.mlp = {.channels = {6, 5, 4}}, .train_eps = true}};
  GATConv gat{*this, "gat", {.in = 6, .out = 2, .heads = 2}};
  GATv2Conv v2{*this, "v2", {.in = 6, .out = 2, .heads = 2, .residual = true}};
  Tensor operator()(const Tensor& x, const Graph& g, const Tensor& weight) const {
    return cat({gcn(x, g, weight), sage(x, g), most(x, g), gin(x, g), gat(x, g), v2(x, g)}, 1);
  }
};

struct OnBoth {
  Generator gen{31};
  Tensor weight = rand({30}, gen, Device::cpu()) + 0.5, x = randn({9, 6}, gen, Device::cpu());
  Graph graph = random_graph(9, 30, gen, weight);
};

double largest_difference(const Tensor& a, const Tensor& b) {
  const Tensor d = a.detach().to(Device::cpu()).to(DType::f64) - b.detach().to(Device::cpu()).to(DType::f64);
  return amax(abs(d)).item<double>() / std::max(1.0, amax(abs(b.detach().to(Device::cpu()))).item());
}

TEST_CASE("graph layers on a device give the CPU's values and gradients without a wait") {
  DEVICE_OR_SKIP();
  const OnBoth on;
  Generator seed(1);
  Layers here({.gen = seed, .device = Device::cpu()}), there({.gen = seed, .device = device});
  const Graph moved = on.graph.to(device);
  const Tensor x = trained(on.x), w = trained(on.weight), x2 = trained(on.x.to(device)),
               w2 = trained(on.weight.to(device));
  for (const bool weights_trained : {true, false}) {
    here.zero_grad();
    there.zero_grad();
    const Tensor y = here(x, on.graph, weights_trained ? w : Tensor());
    backward(sum(square(y)));
    Tensor z;
    {
      SyncLedger ledger;
      const SyncGuard guard(ledger, SyncCheck::forbid);
      z = there(x2, moved, weights_trained ? w2 : Tensor());
      backward(sum(square(z)));
    }
    CHECK(largest_difference(z, y) < 1e-5);
    CHECK(largest_difference(x2.grad(), x.grad()) < 1e-5);
    const auto a = here.parameters(), b = there.parameters();
    for (std::size_t i = 0; i < a.size(); ++i) {
      CAPTURE(a[i].name);
      CHECK(largest_difference(b[i].value->grad(), a[i].value->grad()) < 1e-5);
    }
  }
  CHECK(largest_difference(w2.grad(), w.grad()) < 1e-5);
}

TEST_CASE("a recorded graph on a device holds graph layers, also where the recording meets a graph first") {
  DEVICE_OR_SKIP();
  const OnBoth on;
  Generator seed(1);
  Layers eager({.gen = seed, .device = device}), recorded({.gen = seed, .device = device});
  const Graph moved = on.graph.to(device);
  const Tensor x = on.x.to(device);
  const auto run = [&](Layers& net) {
    net.zero_grad();
    const Tensor y = net(x, moved, Tensor());
    backward(sum(square(y)));
    return y;
  };
  const Tensor expected = run(eager);
  for (const bool warm : {false, true}) {
    CAPTURE(warm);
    Tensor y;
    if (warm) {
      const NoGrad off;
      (void)recorded(x, moved, Tensor());
    }
    levin::Graph step(Stream::current(device), [&] { y = run(recorded); });
    step.replay();
    step.replay();
    CHECK(largest_difference(y, expected) < 1e-6);
    CHECK(largest_difference(recorded.gat.att_src.grad(), eager.gat.att_src.grad()) < 1e-6);
    CHECK(largest_difference(recorded.gcn.lin.weight.grad(), eager.gcn.lin.weight.grad()) < 1e-6);
    recorded.zero_grad();
  }
  // After the recordings an eager call prepares the graph itself.
  CHECK(largest_difference(run(recorded), expected) < 1e-6);
}

TEST_CASE("on a device layers take blocks, sparse features and a batch's pools") {
  DEVICE_OR_SKIP();
  const OnBoth on;
  Root root;
  Generator seed(1);
  Layers here({.gen = seed, .device = Device::cpu()}), there({.gen = seed, .device = device});
  const Block block{on.graph.csr(), {}};
  const Block moved{on.graph.csr().to(device), {}};
  const Tensor x = on.x.to(device);
  CHECK(largest_difference(there.gat(x, moved), here.gat(on.x, block)) < 1e-5);
  CHECK(largest_difference(there.v2(x, moved), here.v2(on.x, block)) < 1e-5);
  CHECK(largest_difference(there.sage(x, moved), here.sage(on.x, block)) < 1e-5);
  const SparseMatrix sparse = sparse_matrix(relu(on.x));
  const SparseMatrix sparse_moved{sparse.csr.to(device), sparse.value.to(device)};
  CHECK(largest_difference(there.gcn(sparse_moved, on.graph.to(device)), here.gcn(sparse, on.graph)) < 1e-5);
  const Tensor ptr = ids({0, 3, 3, 9});
  for (const Reduce reduce : {Reduce::sum, Reduce::mean, Reduce::max})
    CHECK(largest_difference(global_pool(x, ptr.to(device), reduce), global_pool(on.x, ptr, reduce)) < 1e-5);
}

}  // namespace
}  // namespace levin::gnn
