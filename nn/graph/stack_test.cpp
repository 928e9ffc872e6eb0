// Stacks, perceptrons, jumping knowledge and pools.
#include "nn/graph/facts_test.h"

namespace levin::gnn {
namespace {

std::int64_t parameters(const nn::Module& m) { return m.parameter_count().total(); }

TEST_CASE("the stacks of the literature have its numbers of parameters") {
  Root root;
  CHECK(parameters(GCN(root, "gcn", {.in = 1433, .hidden = 16, .layers = 2, .out = 7})) == 23'063);
  CHECK(parameters(GraphSAGE(root, "sage", {.in = 100, .hidden = 256, .layers = 3, .out = 47})) == 206'895);
  GATConv first(root, "first", {.in = 1433, .out = 8, .heads = 8}), second(root, "second", {.in = 64, .out = 7});
  CHECK(parameters(first) + parameters(second) == 92'373);
  // 136 features of IMDB-BINARY, layers joined by cat, a classifier with batch norm.
  GIN gin(root, "gin", {.in = 136, .hidden = 64, .layers = 3, .dropout = 0.5, .jk = Jumping::cat});
  MLP head(root, "head", {.channels = {64, 64, 2}, .dropout = 0.5});
  CHECK(parameters(gin) + parameters(head) == 46'338);
  // Reddit.
  CHECK(parameters(GraphSAGE(
            root, "reddit",
            {.in = 602, .hidden = 256, .layers = 2, .out = 41, .dropout = 0.5, .norm = Norm::batch_norm})) == 330'025);
  // Five layers on MUTAG.
  GIN mutag(root, "mutag", {.in = 7, .hidden = 32, .layers = 5});
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < 5; ++i)
    count += parameters(GINConv(root, "conv" + std::to_string(i), {.mlp = {.channels = {i == 0 ? 7 : 32, 32, 32}}}));
  CHECK(count + parameters(MLP(root, "end", {.channels = {32, 32, 2}, .norm = Norm::none})) == 11'202);
}

TEST_CASE("stacks name their parameters as PyTorch Geometric does") {
  Root root;
  GCN gcn(root, "gcn", {.in = 4, .hidden = 3, .layers = 2, .out = 2, .norm = Norm::batch_norm, .jk = Jumping::max});
  CHECK(state_names(gcn) == std::vector<std::string>{"convs.0.bias", "convs.0.lin.weight", "convs.1.bias",
                                                     "convs.1.lin.weight", "norms.0.module.weight",
                                                     "norms.0.module.bias", "norms.0.module.running_mean",
                                                     "norms.0.module.running_var", "norms.0.module.num_batches_tracked",
                                                     "norms.1.module.weight", "norms.1.module.bias",
                                                     "norms.1.module.running_mean", "norms.1.module.running_var",
                                                     "norms.1.module.num_batches_tracked", "lin.weight", "lin.bias"});
  GIN gin(root, "gin", {.in = 4, .hidden = 3, .layers = 1});
  CHECK(state_names(gin) == std::vector<std::string>{"convs.0.eps", "convs.0.nn.lins.0.weight",
                                                     "convs.0.nn.lins.0.bias", "convs.0.nn.lins.1.weight",
                                                     "convs.0.nn.lins.1.bias"});
}

TEST_CASE("a stack is its layers with norm, activation and dropout between them") {
  const P4 p;
  Root root;
  GCN plain(root, "plain", {.in = 2, .hidden = 3, .layers = 2, .out = 2});
  check_same(plain(p.x, p.graph), plain.convs[1](relu(plain.convs[0](p.x, p.graph)), p.graph), 1e-12);
  const Tensor w = wave({6}, .4) + 1;
  check_same(plain(p.x, p.graph, w), plain.convs[1](relu(plain.convs[0](p.x, p.graph, w)), p.graph, w), 1e-12);
  check_same(plain(sparse_matrix(p.x), p.graph), plain(p.x, p.graph), 1e-12);

  GAT gat(root, "gat",
          {.in = 2,
           .hidden = 4,
           .layers = 2,
           .out = 3,
           .dropout = 0.6,
           .act = [](const Tensor& x) { return elu(x); },
           .conv = {.heads = 2}});
  CHECK(gat.convs[0].options.out == 2);
  CHECK(gat.convs[0].options.dropout == 0.6);
  CHECK(!gat.convs[1].options.concat);
  CHECK(!equal(gat(p.x, p.graph), gat(p.x, p.graph)));
  gat.eval();
  check_same(gat(p.x, p.graph), gat.convs[1](elu(gat.convs[0](p.x, p.graph)), p.graph), 1e-12);
  CHECK_THROWS_AS(GAT(root, "odd", {.in = 2, .hidden = 5, .layers = 2, .out = 3, .conv = {.heads = 2}}), ConfigError);
  CHECK_THROWS_AS((void)gat(p.x, p.graph, w), ConfigError);

  GraphSAGE sage(
      root, "sage",
      {.in = 2, .hidden = 3, .layers = 2, .out = 4, .act_first = true, .norm = Norm::batch_norm, .jk = Jumping::cat});
  const Tensor a = sage.norms[0](relu(sage.convs[0](p.x, p.graph)));
  const Tensor b = sage.norms[1](relu(sage.convs[1](a, p.graph)));
  check_same(sage(p.x, p.graph), (*sage.lin)(cat({a, b}, 1)), 1e-12);
  check_gradients(sage, p.x, [&](const Tensor& x) { return sage(x, p.graph); });
}

TEST_CASE("a stack on blocks gives the seeds' rows of the stack on the graph") {
  Generator gen(37);
  Root root;
  const Graph g = random_graph(8, 25, gen);
  const Tensor x = wave({8, 3}, .3);
  const Csr& a = g.csr();
  const auto crow = a.crow.to_vector<std::int64_t>();
  const auto rows = [&](std::int64_t n, std::int64_t cols) {
    return Block{checked({.crow = slice(a.crow, 0, 0, n + 1).contiguous(),
                          .col = slice(a.col, 0, 0, crow[static_cast<std::size_t>(n)]).contiguous(),
                          .cols = cols}),
                 {}};
  };
  const std::vector<Block> blocks{rows(8, 8), rows(2, 8)};
  GraphSAGE sage(root, "sage", {.in = 3, .hidden = 5, .layers = 2, .out = 2});
  check_same(sage(x, blocks), narrow(sage(x, g), 0, 0, 2), 1e-12);
  GAT gat(root, "gat", {.in = 3, .hidden = 4, .layers = 2, .out = 2, .conv = {.heads = 2}});
  check_same(gat(x, blocks), narrow(gat(x, g), 0, 0, 2), 1e-12);
  CHECK_THROWS_AS((void)sage(x, std::span(blocks).first(1)), ShapeError);
}

TEST_CASE("jumping knowledge joins layers; of equal elements the first layer gets the gradient") {
  const Tensor a = trained(values({1, 5, 2}, {1, 3})), b = trained(values({3, 4, 2}, {1, 3}));
  const std::vector<Tensor> xs{a, b};
  check_near(jumping_knowledge(xs, Jumping::last), {3, 4, 2});
  const double nan = std::nan("");
  for (const bool first : {false, true}) {
    const Tensor whole = tensor({1.0, 2.0}, Device::cpu()), broken = tensor({nan, 1.0}, Device::cpu());
    const std::vector<Tensor> two = first ? std::vector<Tensor>{broken, whole} : std::vector<Tensor>{whole, broken};
    const auto y = jumping_knowledge(two, Jumping::max).to_vector<double>();
    CHECK(std::isnan(y[0]));
    CHECK(y[1] == 2);
  }
  check_near(jumping_knowledge(xs, Jumping::cat), {1, 5, 2, 3, 4, 2});
  const Tensor most = jumping_knowledge(xs, Jumping::max);
  check_near(most, {3, 5, 2});
  backward(sum(most));
  check_near(a.grad(), {0, 1, 1});
  check_near(b.grad(), {1, 0, 0});
  CHECK_THROWS_AS((void)jumping_knowledge({}, Jumping::cat), ShapeError);
}

TEST_CASE("MLP is linear layers with norm, activation and dropout, the last one plain") {
  Root root;
  MLP mlp(root, "mlp", {.channels = {3, 4, 2}});
  const Tensor x = wave({5, 3}, .3);
  check_same(mlp(x), mlp.lins[1](relu(mlp.norms[0](mlp.lins[0](x)))), 1e-12);
  MLP all(root, "all", {.channels = {3, 2}, .act_first = true, .plain_last = false, .bias = false});
  check_same(all(x), all.norms[0](relu(all.lins[0](x))), 1e-12);
  CHECK(!all.lins[0].bias.defined());
  CHECK_THROWS_AS(MLP(root, "short", {.channels = {3}}), ConfigError);
  CHECK_THROWS_AS(MLP(root, "drop", {.channels = {3, 2}, .dropout = 2}), ConfigError);
}

TEST_CASE("batch norm over nodes refuses one row in training, or takes the running statistics") {
  Root root;
  BatchNorm strict(root, "strict", {.features = 3}), lax(root, "lax", {.features = 3, .allow_single_element = true});
  CHECK_THROWS_WITH_AS((void)strict(wave({1, 3}, .2)), doctest::Contains("more than one row"), ShapeError);
  (void)lax(wave({6, 3}, .9));
  const Tensor x = wave({1, 3}, .2), y = lax(x);
  CHECK(lax.module.num_batches_tracked.item<std::int64_t>() == 1);
  lax.eval();
  strict.eval();
  check_same(lax(x), y, 1e-12);
  CHECK(strict(x).shape() == Shape{1, 3});
}

TEST_CASE("a pool reduces the rows of each graph, and gives 0 for a graph without nodes") {
  const P4 p;
  const Tensor ptr = ids({0, 2, 2, 4, 4});
  check_near(global_pool(p.x, ptr), {1, 1, 0, 0, 1, 1.5, 0, 0});
  check_near(global_pool(p.x, ptr, Reduce::mean), {.5, .5, 0, 0, .5, .75, 0, 0});
  check_near(global_pool(p.x, ptr, Reduce::max), {1, 2, 0, 0, 3, 1, 0, 0});
}

}  // namespace
}  // namespace levin::gnn
