// GAT, GATv2 and message passing by hand.
#include "nn/graph/facts_test.h"

namespace levin::gnn {
namespace {

// alpha of the path's edges by id, then of its loops, from attention in the order of the layer.
std::vector<double> by_id_then_loops(const AttentionResult& r, const Graph& g) {
  const auto crow = r.csr.crow.to_vector<std::int64_t>();
  const auto col = r.csr.col.to(DType::i64).to_vector<std::int64_t>();
  const auto alpha = r.alpha.detach().to_vector<double>();
  const EdgeList list = g.edges();
  const auto src = list.src.to(DType::i64).to_vector<std::int64_t>();
  const auto dst = list.dst.to(DType::i64).to_vector<std::int64_t>();
  std::vector<double> out;
  const auto find = [&](std::int64_t s, std::int64_t d) {
    for (auto k = static_cast<std::size_t>(crow[static_cast<std::size_t>(d)]); k < col.size(); ++k)
      if (col[k] == s) return out.push_back(alpha[k]);
  };
  for (std::size_t e = 0; e < src.size(); ++e) find(src[e], dst[e]);
  for (std::int64_t i = 0; i < g.num_nodes(); ++i) find(i, i);
  return out;
}

Tensor numbers(const std::vector<double>& v) { return values(v, {static_cast<std::int64_t>(v.size())}); }

TEST_CASE("GATConv gives the attention, values and gradients of the path of four nodes") {
  const P4 p;
  Root root;
  GATConv conv(root, "conv", {.in = 2, .out = 2});
  CHECK(state_names(conv) == std::vector<std::string>{"att_src", "att_dst", "bias", "lin.weight"});
  set(conv.lin->weight, p.w);
  set(conv.att_src, values({.3, -.2}, {2}));
  set(conv.att_dst, values({-.1, .4}, {2}));
  set(conv.bias, p.b);
  const Tensor x = trained(p.x);
  const AttentionResult r = conv.attend(x, p.graph);
  check_near(numbers(by_id_then_loops(r, p.graph)),
             {.291313, .785835, .452513, .282704, .429228, .441341, .214165, .425983, .106146, .570772});
  check_near(r.y, {.564587, .138954, .230365, 2.188686, -.056425, -1.359910, -.541543, .270937});
  CHECK(equal(r.y, conv(x, p.graph)));
  backward(sum(r.y * p.g));
  check_near(x.grad(), {.793274, .003654, .039627, -1.217718, 2.094739, -.251944, 1.872745, -.399108});
  check_near(conv.att_src.grad(), {.954854, 4.193168});
  check_near(conv.att_dst.grad(), {-.899228, .224807});
}

TEST_CASE("GATv2Conv gives the attention, values and gradients of the path, with one head and two") {
  const P4 p;
  Root root;
  const auto made = [&](const char* name, GATv2ConvOptions o) {
    auto conv = std::make_unique<GATv2Conv>(root, name, o);
    set(conv->lin_l.weight, p.w);
    set(conv->lin_l.bias, p.b);
    set(conv->lin_r->weight, p.wr);
    set(conv->lin_r->bias, zeros({2}, Device::cpu(), DType::f64));
    set(conv->att, values({1, -.5}, {2}));
    return conv;
  };
  const auto conv = made("conv", {.in = 2, .out = 2});
  CHECK(state_names(*conv) ==
        std::vector<std::string>{"att", "bias", "lin_l.weight", "lin_l.bias", "lin_r.weight", "lin_r.bias"});
  const Tensor x = trained(p.x);
  const AttentionResult r = conv->attend(x, p.graph);
  check_near(numbers(by_id_then_loops(r, p.graph)),
             {.058511, .959883, .854342, .021633, .073611, .125566, .040117, .919856, .020092, .926389});
  check_near(r.y, {.999706, -.339677, .942906, -.148480, .776039, -.774577, -1.252778, -3.329689});
  backward(sum(r.y * p.g));
  check_near(x.grad(), {.191057, -.060016, 1.091351, -1.583906, -.946685, -.511510, 3.646251, .314191});
  check_near(conv->lin_l.weight.grad(), {.189709, -.973368, -5.398486, .231704});
  check_near(conv->lin_l.bias.grad(), {2.462405, 1.515346});
  check_near(conv->lin_r->weight.grad(), {.077016, .268643, 1.367200, -.156328});
  check_near(conv->att.grad(), {.242123, 8.494140});

  check_near((*made("heads", {.in = 2, .out = 1, .heads = 2}))(p.x, p.graph),
             {.846098, .292295, .598301, .283455, .798879, -2.654998, -.202625, -3.562977});
  check_near((*made("mean", {.in = 2, .out = 1, .heads = 2, .concat = false}))(p.x, p.graph),
             {.569197, .440878, -.928059, -1.882801});
}

TEST_CASE("attention replaces a node's loops by one, whose alpha is that of a graph without them") {
  Generator gen(17);
  Root root;
  const Graph plain = graph_of({0, 1, 2, 3}, {1, 2, 1, 2}, 5),
              loops = graph_of({0, 1, 1, 1, 2, 3, 4}, {1, 1, 2, 1, 1, 2, 4}, 5);
  GATConv gat(root, "gat", {.in = 3, .out = 2, .heads = 2});
  GATv2Conv v2(root, "v2", {.in = 3, .out = 2, .heads = 2});
  const Tensor x = wave({5, 3}, .2);
  check_same(gat(x, loops), gat(x, plain), 1e-12);
  check_same(v2(x, loops), v2(x, plain), 1e-12);
  check_gradients(gat, x, [&](const Tensor& t) { return gat(t, loops); });
}

TEST_CASE("attention on a block gives the rows of the graph, with weights for each side, and without destinations") {
  Generator gen(19);
  Root root;
  const Graph g = random_graph(6, 15, gen);
  const Csr& a = g.csr();
  const std::int64_t entries = a.crow.to_vector<std::int64_t>()[3];
  const Block block{
      checked(
          {.crow = slice(a.crow, 0, 0, 4).contiguous(), .col = slice(a.col, 0, 0, entries).contiguous(), .cols = 6}),
      {}};
  const Tensor x = wave({6, 3}, .2);
  GATConv gat(root, "gat", {.in = 3, .out = 2, .heads = 3, .concat = false, .residual = true});
  GATConv pair(root, "pair", {.in = {3, 3}, .out = 2, .heads = 3});
  GATv2Conv v2(root, "v2", {.in = 3, .out = 2, .residual = true}),
      one(root, "one", {.in = 3, .out = 2, .share_weights = true});
  check_same(gat(x, block), narrow(gat(x, g), 0, 0, 3), 1e-12);
  check_same(pair(x, block), narrow(pair(x, g), 0, 0, 3), 1e-12);
  check_same(v2(x, block), narrow(v2(x, g), 0, 0, 3), 1e-12);
  check_same(one(x, block), narrow(one(x, g), 0, 0, 3), 1e-12);
  CHECK(!one.lin_r);
  CHECK(state_names(pair) ==
        std::vector<std::string>{"att_src", "att_dst", "bias", "lin_src.weight", "lin_dst.weight"});
  check_gradients(pair, x, [&](const Tensor& t) { return pair(t, block); });

  // More destinations than sources, and none of their features.
  const Graph two =
      Graph::from_coo({.src = ids({0, 1, 1}), .dst = ids({3, 0, 0}), .num_src = 2, .num_dst = 4}, {.bipartite = true});
  GATConv half(root, "half", {.in = {3, 4}, .out = 2, .add_self_loops = false});
  const Tensor sources = wave({2, 3}, .6), h = linear(sources, half.lin_src->weight);
  const Tensor y = half(sources, Tensor(), two);
  check_same(y,
             stack({select(h, 0, 1), zeros({2}, Device::cpu(), DType::f64), zeros({2}, Device::cpu(), DType::f64),
                    select(h, 0, 0)}),
             1e-12);
  CHECK(half(sources, wave({4, 4}, .1), two).shape() == Shape{4, 2});
  GATConv looped(root, "looped", {.in = {3, 4}, .out = 2});
  CHECK(looped.attend(sources, wave({4, 4}, .1), two).alpha.size(0) == 5);
}

TEST_CASE("attention drops edges in training alone, and scales what stays") {
  Root root;
  Generator gen(23);
  const Graph g = random_graph(20, 100, gen);
  GATConv conv(root, "conv", {.in = 3, .out = 2, .heads = 4, .dropout = 0.5});
  const Tensor x = wave({20, 3}, .2);
  const AttentionResult a = conv.attend(x, g);
  const auto dropped = sum(eq(a.alpha, 0)).item<std::int64_t>();
  CHECK(dropped > a.alpha.numel() / 4);
  conv.eval();
  const AttentionResult b = conv.attend(x, g);
  CHECK(equal(conv(x, g), b.y));
  check_same(a.alpha, where(eq(a.alpha, 0), a.alpha, b.alpha * 2), 1e-12);
}

TEST_CASE("layers with attention refuse options out of range") {
  Root root;
  CHECK_THROWS_AS(GATConv(root, "a", {.in = 3, .out = 2, .heads = 0}), ConfigError);
  CHECK_THROWS_AS(GATConv(root, "b", {.in = 3, .out = 2, .dropout = 1.5}), ConfigError);
  CHECK_THROWS_AS(GATv2Conv(root, "c", {.in = {3, 4}, .out = 2, .share_weights = true}), ConfigError);
  CHECK_THROWS_AS(SAGEConv(root, "d", {.in = 3, .out = 0}), ConfigError);
}

TEST_CASE("propagate by hand gives what spmm gives, and gradients reach both sides") {
  Generator gen(29);
  const Graph g = random_graph(5, 12, gen);
  const Tensor x = wave({5, 3}, .5);
  for (const Reduce reduce : {Reduce::sum, Reduce::mean, Reduce::max, Reduce::min}) {
    const Tensor y = propagate(
        g, x, x, [](const Tensor& x_j, const Tensor&) { return x_j; }, reduce);
    check_same(y, spmm(g.csr(), {}, x, reduce), 1e-12);
  }
  Tensors in{trained(x), trained(wave({5, 3}, .1))};
  const GradcheckResult r = gradcheck(
      [&](std::span<const Tensor> t) {
        return Tensors{propagate(g, t[0], t[1], [](const Tensor& a, const Tensor& b) { return tanh(a - b) * a; })};
      },
      in);
  CHECK_MESSAGE(r.ok, r.message);
  CHECK_THROWS_AS((void)propagate(g, x, {},
                                  [](const Tensor&, const Tensor&) {
                                    return zeros({2, 3}, Device::cpu());
                                  }),
                  ShapeError);
}

}  // namespace
}  // namespace levin::gnn
