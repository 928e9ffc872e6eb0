// GCN, GraphSAGE and GIN.
#include <array>

#include "nn/graph/facts_test.h"

namespace levin::gnn {
namespace {

TEST_CASE("GCNConv gives the values and gradients of the path of four nodes") {
  const P4 p;
  Root root;
  GCNConv conv(root, "conv", {.in = 2, .out = 2});
  CHECK(state_names(conv) == std::vector<std::string>{"bias", "lin.weight"});
  set(conv.lin.weight, p.w);
  set(conv.bias, p.b);
  const Tensor x = trained(p.x), y = conv(x, p.graph);
  check_near(y, {-.241752, .947938, -.012372, 2.820621, -.012372, .218038, -.445876, .414052});
  backward(sum(y * p.g));
  check_near(conv.lin.weight.grad(), {.795876, 1.125, 1.674235, 1.928869});
  check_near(conv.bias.grad(), {2.5, 2});
  check_near(x.grad(), {1.066497, -.397938, .370791, -.741582, 1.901722, -.333333, 1.512628, -.510310});

  const SparseMatrix a = gcn_norm(p.graph, {.dtype = DType::f64});
  check_near(spmm(a.csr, a.value, eye(4, Device::cpu(), DType::f64)),
             {.5, .408248, 0, 0, .408248, 1. / 3, 1. / 3, 0, 0, 1. / 3, 1. / 3, .408248, 0, 0, .408248, .5});

  GCNConv improved(root, "improved", {.in = 2, .out = 2, .improved = true});
  set(improved.lin.weight, p.w);
  set(improved.bias, p.b);
  check_near(improved(p.x, p.graph), {-.611325, 1.394498, .291987, 1.959188, .166987, 1.743884, -.755662, -.979114});
}

TEST_CASE("GCNConv keeps the last of a node's loops, counts duplicates and leaves isolated nodes their own features") {
  const P4 p;
  Root root;
  const Tensor weight = values({1, 2, .5, 3, 1, .25}, {6});
  const Graph g = graph_of({0, 0, 1, 2, 2, 0}, {1, 1, 2, 2, 3, 0}, 5, weight);
  const Tensor x = cat({p.x, values({1, -1}, {1, 2})});
  const auto made = [&](const char* name, GCNConvOptions o) {
    auto conv = std::make_unique<GCNConv>(root, name, o);
    set(conv->lin.weight, p.w);
    set(conv->bias, p.b);
    return conv;
  };
  const auto conv = made("conv", {.in = 2, .out = 2}),
             bare = made("bare", {.in = 2, .out = 2, .add_self_loops = false});
  const std::vector<double> expected{-1.4, 2.3, -4.15, 7.2375, .662202, 5.123735, -.461018, .224778, 1.6, 1.55};
  check_near((*conv)(x, g), expected);
  check_near((*bare)(x, g), {-1.4, 2.3, -5.096152, 8.460254, .682875, 5.118567, .367261, 3.140766, .1, -.2});
  // Weights as an argument, in place of the graph's.
  const Graph unweighted = graph_of({0, 0, 1, 2, 2, 0}, {1, 1, 2, 2, 3, 0}, 5);
  check_near((*conv)(x, unweighted, weight), expected);
  // Of several loops at a node the last one counts.
  const Graph two = graph_of({0, 0, 0, 1, 2, 2, 0}, {0, 1, 1, 2, 2, 3, 0}, 5);
  check_near((*conv)(x, two, values({9, 1, 2, .5, 3, 1, .25}, {7})), expected);
}

TEST_CASE("edge weights get gradients through the degrees of GCNConv") {
  Root root;
  Generator gen(3);
  const Graph g = random_graph(5, 12, gen);
  GCNConv conv(root, "conv", {.in = 2, .out = 3});
  const Tensor x = wave({5, 2}, .3), weight = rand({12}, gen, Device::cpu(), DType::f64) + 0.5;
  Tensors in{trained(x), trained(weight), conv.lin.weight, conv.bias};
  const GradcheckResult r = gradcheck([&](std::span<const Tensor> t) { return Tensors{conv(t[0], g, t[1])}; }, in);
  CHECK_MESSAGE(r.ok, r.message);
  GCNConv plain(root, "plain", {.in = 3, .out = 2, .normalize = false});
  Tensors two{trained(wave({5, 3}, .3)), trained(weight), plain.lin.weight};
  const GradcheckResult s = gradcheck([&](std::span<const Tensor> t) { return Tensors{plain(t[0], g, t[1])}; }, two);
  CHECK_MESSAGE(s.ok, s.message);
}

TEST_CASE("GCNConv takes sparse features and gives what dense ones give") {
  Root root;
  Generator gen(5);
  const Graph g = random_graph(6, 15, gen);
  Tensor x = wave({6, 9}, .3);
  x = masked_fill(x, gt(x, 0), 0);
  const SparseMatrix sparse = sparse_matrix(x);
  CHECK(sparse.value.numel() == sum(ne(x, 0)).item<std::int64_t>());
  GCNConv conv(root, "conv", {.in = 9, .out = 4});
  const Tensor dense = conv(x, g);
  backward(sum(square(dense)));
  const Tensor grad = conv.lin.weight.grad().clone();
  conv.zero_grad();
  const Tensor y = conv(sparse, g);
  check_same(y, dense, 1e-12);
  backward(sum(square(y)));
  check_same(conv.lin.weight.grad(), grad, 1e-12);
  CHECK_THROWS_AS((void)conv(sparse_matrix(wave({6, 8}, .1)), g), ShapeError);
}

TEST_CASE("a layer that is cached refuses another graph, others compute again") {
  Root root;
  const P4 p;
  const Graph other = graph_of({0, 1}, {1, 2}, 4);
  GCNConv cached(root, "cached", {.in = 2, .out = 2, .cached = true}), free(root, "free", {.in = 2, .out = 2});
  const Tensor first = cached(p.x, p.graph);
  CHECK(equal(first, cached(p.x, p.graph)));
  CHECK_THROWS_WITH_AS((void)cached(p.x, other), doctest::Contains("another one"), StateError);
  set(free.lin.weight, cached.lin.weight);
  const Tensor on_other = free(p.x, other);
  CHECK(equal(free(p.x, p.graph), first));
  CHECK(equal(free(p.x, other), on_other));
  CHECK(!equal(on_other, first));
  // A written weight counts as another one.
  Tensor weight = ones({6}, Device::cpu(), DType::f64);
  check_same(free(p.x, p.graph, weight), first, 1e-12);
  fill_(weight, 3);
  CHECK(!allclose(free(p.x, p.graph, weight), first));
}

TEST_CASE("GCNConv refuses options, weights and graphs that do not fit") {
  Root root;
  const P4 p;
  CHECK_THROWS_AS(GCNConv(root, "a", {.in = 2, .out = 2, .normalize = false, .add_self_loops = true}), ConfigError);
  CHECK_THROWS_AS(GCNConv(root, "b", {.in = 0, .out = 2}), ConfigError);
  GCNConv conv(root, "conv", {.in = 2, .out = 2});
  CHECK_THROWS_AS((void)conv(wave({5, 2}, 1), p.graph), ShapeError);
  CHECK_THROWS_AS((void)conv(wave({4, 3}, 1), p.graph), ShapeError);
  CHECK_THROWS_AS((void)conv(p.x, p.graph, wave({5}, 1)), ShapeError);
  CHECK_THROWS_AS((void)conv(p.x, p.graph, ids({1, 2, 3, 4, 5, 6})), DTypeError);
  const Graph bipartite =
      Graph::from_coo({.src = ids({0}), .dst = ids({1}), .num_src = 3, .num_dst = 2}, {.bipartite = true});
  CHECK_THROWS_WITH_AS((void)conv(wave({3, 2}, 1), bipartite), doctest::Contains("bipartite"), ShapeError);
  CHECK_THROWS_AS((void)conv(p.x, Block{p.graph.csr(), {}}), ConfigError);
}

TEST_CASE("SAGEConv gives the values of the path for each reduction, and rows of length one") {
  const P4 p;
  Root root;
  const auto made = [&](const char* name, SAGEConvOptions o) {
    auto conv = std::make_unique<SAGEConv>(root, name, o);
    set(conv->lin_l.weight, p.w);
    set(conv->lin_l.bias, p.b);
    set(conv->lin_r->weight, p.wr);
    return conv;
  };
  const auto mean = made("mean", {.in = 2, .out = 2});
  CHECK(state_names(*mean) == std::vector<std::string>{"lin_l.weight", "lin_l.bias", "lin_r.weight"});
  check_near((*mean)(p.x, p.graph), {2.1, -.95, -.4, 4.675, 2.85, -1.2625, -1.4, 4.8});
  check_near((*made("max", {.in = 2, .out = 2, .aggr = Reduce::max}))(p.x, p.graph),
             {2.1, -.95, -.4, 6.8, 2.6, .925, -1.4, 4.8});
  check_near((*made("unit", {.in = 2, .out = 2, .normalize = true}))(p.x, p.graph),
             {.911108, -.412168, -.085250, .996360, .914307, -.405022, -.28, .96});
}

TEST_CASE("SAGEConv aggregates before and after the product alike, on graphs and blocks") {
  Generator gen(7);
  Root root;
  const Graph g = random_graph(6, 14, gen);
  // out < in: the product first; the block of the same edges aggregates first where it has fewer rows.
  for (const Reduce aggr : {Reduce::sum, Reduce::mean}) {
    SAGEConv conv(root, "conv" + std::to_string(static_cast<int>(aggr)),
                  {.in = 5, .out = 2, .aggr = aggr, .project = true});
    const Tensor x = wave({6, 5}, .4);
    const Csr& a = g.csr();
    const Csr head{.crow = slice(a.crow, 0, 0, 4).contiguous(),
                   .col = slice(a.col, 0, 0, a.crow.to_vector<std::int64_t>()[3]).contiguous(),
                   .cols = 6};
    const Tensor all = conv(x, g), part = conv(x, Block{checked(head), {}});
    CHECK(part.shape() == Shape{3, 2});
    check_same(part, narrow(all, 0, 0, 3), 1e-12);
    check_gradients(conv, x, [&](const Tensor& t) { return conv(t, g); });
  }
  SAGEConv wide(root, "wide", {.in = {3, 4}, .out = 2, .bias = false});
  const Graph two = Graph::from_coo({.src = ids({0, 2, 1, 2}), .dst = ids({0, 0, 1, 1}), .num_src = 3, .num_dst = 2},
                                    {.bipartite = true});
  CHECK_THROWS_AS((void)wide(wave({3, 3}, 1), two), ShapeError);
  const Tensor y = wide(wave({3, 3}, 1), wave({2, 4}, 2), two);
  check_same(y - wide(wave({3, 3}, 1), Tensor(), two), linear(wave({2, 4}, 2), wide.lin_r->weight), 1e-12);
  SAGEConv rootless(root, "rootless", {.in = 3, .out = 2, .root_weight = false});
  CHECK(!rootless.lin_r);
}

TEST_CASE("GINConv gives the values of the path, with eps as buffer and as parameter") {
  const P4 p;
  Root root;
  const GINConvOptions o{.mlp = {.channels = {2, 2, 2}, .norm = Norm::none, .bias = true}, .eps = 0.1};
  GINConv conv(root, "conv", o);
  CHECK(state_names(conv) ==
        std::vector<std::string>{"eps", "nn.lins.0.weight", "nn.lins.0.bias", "nn.lins.1.weight", "nn.lins.1.bias"});
  CHECK(conv.parameter_count().total() == 12);
  set(conv.mlp.lins[0].weight, p.w);
  set(conv.mlp.lins[0].bias, p.b);
  set(conv.mlp.lins[1].weight, p.wr);
  set(conv.mlp.lins[1].bias, zeros({2}, Device::cpu(), DType::f64));
  check_near(conv.aggregate(p.x, p.x, p.graph), {1.1, 1.2, 4, 1.9, 1.3, .6, .8, 1.55});
  check_near(conv(p.x, p.graph), {0, -1.15, .2, -4.0375, .15, -1.2, 0, -.89375});

  GINConvOf<nn::Sequential> trained_eps(root, "trained", 0.1, true);
  trained_eps.net.add<nn::Linear>({.in = 2, .out = 3});
  CHECK(state_names(trained_eps) == std::vector<std::string>{"eps", "nn.0.weight", "nn.0.bias"});
  check_gradients(trained_eps, p.x, [&](const Tensor& x) { return trained_eps(x, p.graph); });
}

TEST_CASE("graph layers work without nodes and without edges") {
  Root root;
  GCNConv gcn(root, "gcn", {.in = 2, .out = 3}), bare(root, "bare", {.in = 2, .out = 3, .add_self_loops = false});
  SAGEConv sage(root, "sage", {.in = 2, .out = 3}), most(root, "most", {.in = 2, .out = 3, .aggr = Reduce::max});
  GINConv gin(root, "gin", {.mlp = {.channels = {2, 3}}});
  GATConv gat(root, "gat", {.in = 2, .out = 3}),
      gat_bare(root, "gat_bare", {.in = 2, .out = 3, .add_self_loops = false});
  GATv2Conv v2(root, "v2", {.in = 2, .out = 3}), v2_bare(root, "v2_bare", {.in = 2, .out = 3, .add_self_loops = false});
  for (const std::int64_t nodes : {0, 3}) {
    CAPTURE(nodes);
    const Graph g = graph_of({}, {}, nodes);
    const auto check = [&](auto& layer) {
      const Tensor x = trained(wave({nodes, 2}, .2)), y = layer(x, g);
      CHECK(y.shape() == Shape{nodes, 3});
      backward(sum(y));
      CHECK(x.grad().shape() == x.shape());
      return y;
    };
    const Tensor x = wave({nodes, 2}, .2);
    check_same(check(gcn), linear(x, gcn.lin.weight), 1e-12);
    check_same(check(bare), zeros({nodes, 3}, Device::cpu(), DType::f64), 1e-12);
    check_same(check(sage), linear(x, sage.lin_r->weight) + sage.lin_l.bias, 1e-12);
    (void)check(most);
    check_same(check(gin), gin.mlp(x), 1e-12);
    check_same(check(gat), linear(x, gat.lin->weight), 1e-12);
    check_same(check(gat_bare), zeros({nodes, 3}, Device::cpu(), DType::f64), 1e-12);
    check_same(check(v2), v2.lin_l(x), 1e-12);
    check_same(check(v2_bare), zeros({nodes, 3}, Device::cpu(), DType::f64), 1e-12);
  }
}

// Each layer as a function of features and graph.
template <class Check>
void each_layer(Check&& check) {
  Root root;
  GCNConv gcn(root, "gcn", {.in = 3, .out = 2});
  check("GCNConv", gcn);
  SAGEConv sage(root, "sage", {.in = 3, .out = 2}), most(root, "most", {.in = 3, .out = 4, .aggr = Reduce::max});
  check("SAGEConv", sage);
  check("SAGEConv of max", most);
  GINConv gin(root, "gin", {.mlp = {.channels = {3, 4, 2}, .norm = Norm::none}, .eps = 0.3, .train_eps = true});
  check("GINConv", gin);
  GATConv gat(root, "gat", {.in = 3, .out = 2, .heads = 2, .residual = true});
  check("GATConv", gat);
  GATv2Conv v2(root, "v2", {.in = 3, .out = 2, .heads = 2, .concat = false});
  check("GATv2Conv", v2);
}

TEST_CASE("a layer's rows move with the nodes, and the order of edges changes nothing") {
  Generator gen(11);
  const std::int64_t nodes = 7, edges = 20;
  const Graph g = random_graph(nodes, edges, gen);
  const EdgeList list = g.edges();
  const auto src = list.src.to(DType::i64).to_vector<std::int64_t>(),
             dst = list.dst.to(DType::i64).to_vector<std::int64_t>();
  const std::vector<std::int64_t> to = gen.permutation(nodes), order = gen.permutation(edges);
  std::vector<std::int64_t> new_src, new_dst, mixed_src, mixed_dst, from(to.size());
  for (std::size_t e = 0; e < src.size(); ++e) {
    new_src.push_back(to[static_cast<std::size_t>(src[e])]);
    new_dst.push_back(to[static_cast<std::size_t>(dst[e])]);
    mixed_src.push_back(src[static_cast<std::size_t>(order[e])]);
    mixed_dst.push_back(dst[static_cast<std::size_t>(order[e])]);
  }
  for (std::size_t i = 0; i < to.size(); ++i) from[static_cast<std::size_t>(to[i])] = static_cast<std::int64_t>(i);
  const Graph moved = graph_of(new_src, new_dst, nodes), mixed = graph_of(mixed_src, mixed_dst, nodes);
  const Tensor x = wave({nodes, 3}, .7);
  each_layer([&](const char* name, auto& layer) {
    CAPTURE(name);
    const Tensor y = layer(x, g);
    check_same(index_select(layer(index_select(x, 0, ids(from)), moved), 0, ids(to)), y, 1e-12);
    check_same(layer(x, mixed), y, 1e-12);
  });
}

TEST_CASE("finite differences agree with the gradients of all graph layers") {
  Generator gen(13);
  const Graph g = random_graph(5, 11, gen);
  each_layer([&](const char* name, auto& layer) {
    CAPTURE(name);
    check_gradients(layer, wave({5, 3}, .9), [&](const Tensor& x) { return layer(x, g); });
  });
}

TEST_CASE("graph layers of 16 bits, and of f32 under autocast, give the values of f32 to three digits") {
  Generator gen(17);
  const Graph g = random_graph(8, 20, gen, rand({20}, gen, Device::cpu()) + 0.5);
  const auto made = [&](DType dtype) {
    auto root = std::make_unique<nn::Module>(nn::Options{.gen = gen, .device = Device::cpu(), .dtype = dtype});
    return root;
  };
  const auto full = made(DType::f32), half = made(DType::bf16);
  const Tensor x = randn({8, 3}, gen, Device::cpu());
  const auto check = [&]<class Layer>(Layer*, const typename Layer::Options& o) {
    Layer a(*full, "layer", o), b(*half, "layer", o);
    const Tensor y = a(x, g), z = b(x.to(DType::bf16), g);
    CHECK(z.dtype() == DType::bf16);
    check_same(z.to(DType::f32), y, 0.05);
    Tensor mixed;
    {
      const Autocast on(DType::bf16);
      mixed = a(x, g);
      backward(sum(mixed.to(DType::f32)));
    }
    check_same(mixed.to(DType::f32), y, 0.05);
    for (const ParamRef& p : a.parameters()) CHECK(p.value->grad().dtype() == DType::f32);
  };
  check(static_cast<GCNConv*>(nullptr), {.in = 3, .out = 2});
  check(static_cast<SAGEConv*>(nullptr), {.in = 3, .out = 2, .normalize = true});
  check(static_cast<GINConv*>(nullptr), {.mlp = {.channels = {3, 4, 2}, .norm = Norm::none}, .train_eps = true});
  check(static_cast<GATConv*>(nullptr), {.in = 3, .out = 2, .heads = 2});
  check(static_cast<GATv2Conv*>(nullptr), {.in = 3, .out = 2, .heads = 2});
}

TEST_CASE("a layer that is converted to another dtype computes with the graph of an earlier call") {
  Generator gen(3);
  const Graph g = random_graph(8, 20, gen);
  Root root;
  GCNConv gcn(root, "gcn", {.in = 3, .out = 2});
  const Tensor x = randn({8, 3}, gen, Device::cpu(), DType::f64);
  const Tensor wide = gcn(x, g);
  gcn.to(DType::f32);
  check_same(gcn(x.to(DType::f32), g).to(DType::f64), wide, 1e-5);
}

TEST_CASE("features without gradient need no transpose in the first layer") {
  const Graph g =
      Graph::from_coo({.src = ids({0, 1}), .dst = ids({1, 2}), .num_src = 3, .num_dst = 3}, {.transposed = false});
  Root root;
  SAGEConv conv(root, "conv", {.in = 2, .out = 3});
  const Tensor x = wave({3, 2}, .1);
  backward(sum(conv(x, g)));
  CHECK(conv.lin_l.weight.grad().defined());
  CHECK(!x.requires_grad());
}

}  // namespace
}  // namespace levin::gnn
