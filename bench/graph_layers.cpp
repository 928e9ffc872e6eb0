// Graph layers for bench/compare_pyg.py, which has PyTorch Geometric's side.
//
//   bench_graph_layers --compare IN.safetensors --out OUT.safetensors
//     The outputs and all gradients of the layers that IN describes. Metadata of IN: a name of each case and its
//     options as JSON. Its tensors: "CASE/src", "CASE/dst", "CASE/x", "CASE/g" (upstream gradient), optionally
//     "CASE/x_dst", "CASE/weight" and "CASE/p/NAME" for each parameter. OUT has "CASE/y", "CASE/d/x", ...
//
//   bench_graph_layers --cora FOLDER --epochs N [--features sparse|dense]
//     Epochs of a two-layer GCN on all of Cora (Kipf & Welling, 2017: 16 hidden features, dropout 0.5, Adam 0.01, decay
//     5e-4 of the first layer): forward, backward, update. Prints a line of JSON with the seconds of each epoch.
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/flags.h"
#include "levin/levin.h"

namespace levin::bench {
namespace {

using nlohmann::json;

// ---- Comparison

// A case's tensors by their names.
class Case {
 public:
  Case(std::string name, json options, const std::map<std::string, Tensor>& all)
      : name_(std::move(name)), options_(std::move(options)), all_(all) {}
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] Tensor find(const std::string& tensor) const {
    const auto at = all_.find(name_ + "/" + tensor);
    return at == all_.end() ? Tensor() : at->second;
  }
  template <class T>
  [[nodiscard]] T get(const char* option, T otherwise) const {
    return options_.value(option, otherwise);
  }
  [[nodiscard]] gnn::InFeatures in() const {
    const auto in = get<std::int64_t>("in", 0);
    return options_.contains("in_dst") ? gnn::InFeatures(in, get<std::int64_t>("in_dst", 0)) : gnn::InFeatures(in);
  }
  [[nodiscard]] Reduce aggr() const {
    const auto name = get<std::string>("aggr", "mean");
    return name == "sum" ? Reduce::sum : name == "max" ? Reduce::max : Reduce::mean;
  }

 private:
  std::string name_;
  json options_;
  const std::map<std::string, Tensor>& all_;
};

// The layer's output for (x_src, x_dst, weight); x_dst is undefined where the graph has one side.
using Call = std::function<Tensor(const Tensor&, const Tensor&, const Tensor&, const gnn::Graph&)>;

template <class Layer>
Call pair_call(const Layer& layer) {
  return [&layer](const Tensor& x, const Tensor& x_dst, const Tensor&, const gnn::Graph& g) {
    return x_dst.defined() ? layer(x, x_dst, g) : layer(x, g);
  };
}

struct Made {
  std::unique_ptr<nn::Module> module;
  Call call;
};
template <class Layer, class Options>
Made make(nn::Module& root, const Options& o) {
  auto layer = std::make_unique<Layer>(root, "layer", o);
  Call call;
  if constexpr (std::is_same_v<Layer, gnn::GCNConv>) {
    call = [&l = *layer](const Tensor& x, const Tensor&, const Tensor& w, const gnn::Graph& g) { return l(x, g, w); };
  } else {
    call = pair_call(*layer);
  }
  return {std::move(layer), std::move(call)};
}

template <class Options>
Options attention_options(const Case& c) {
  return {.in = c.in(),
          .out = c.get<std::int64_t>("out", 0),
          .heads = c.get<std::int64_t>("heads", 1),
          .concat = c.get("concat", true),
          .negative_slope = c.get("negative_slope", 0.2),
          .add_self_loops = c.get("add_self_loops", true),
          .bias = c.get("bias", true),
          .residual = c.get("residual", false)};
}

Made layer_of(const Case& c, nn::Module& root) {
  const auto kind = c.get<std::string>("layer", "");
  const auto out = c.get<std::int64_t>("out", 0);
  if (kind == "GCNConv") {
    gnn::GCNConvOptions o{.in = c.in().src,
                          .out = out,
                          .improved = c.get("improved", false),
                          .normalize = c.get("normalize", true),
                          .bias = c.get("bias", true)};
    o.add_self_loops = c.get("add_self_loops", o.normalize);
    return make<gnn::GCNConv>(root, o);
  }
  if (kind == "SAGEConv")
    return make<gnn::SAGEConv>(root, gnn::SAGEConvOptions{.in = c.in(),
                                                          .out = out,
                                                          .aggr = c.aggr(),
                                                          .normalize = c.get("normalize", false),
                                                          .root_weight = c.get("root_weight", true),
                                                          .project = c.get("project", false),
                                                          .bias = c.get("bias", true)});
  if (kind == "GINConv")
    return make<gnn::GINConv>(
        root, gnn::GINConvOptions{.mlp = {.channels = c.get<std::vector<std::int64_t>>("channels", {}),
                                          .norm = c.get("norm", false) ? gnn::Norm::batch_norm : gnn::Norm::none},
                                  .eps = c.get("eps", 0.0),
                                  .train_eps = c.get("train_eps", false)});
  if (kind == "GATConv") return make<gnn::GATConv>(root, attention_options<gnn::GATConvOptions>(c));
  if (kind == "GATv2Conv") {
    auto o = attention_options<gnn::GATv2ConvOptions>(c);
    o.share_weights = c.get("share_weights", false);
    return make<gnn::GATv2Conv>(root, o);
  }
  fail<ConfigError>("bench_graph_layers: case ", c.name(), " has the layer \"", kind, "\", which it does not know");
}

Tensor leaf(const Tensor& x) {
  Tensor y = x;
  if (y.defined()) y.requires_grad_();
  return y;
}

void compute(const Case& c, NamedTensors& results) {
  const Tensor x = leaf(c.find("x")), x_dst = leaf(c.find("x_dst")), weight = leaf(c.find("weight"));
  Generator gen(1);
  nn::Module root({.gen = gen, .device = Device::cpu(), .dtype = x.dtype()});
  const Made made = layer_of(c, root);
  NamedTensors state;
  for (const auto& [name, value] : made.module->state_dict()) {
    const Tensor given = c.find("p/" + name);
    state.emplace_back(name, given.defined() ? given : value);
  }
  (void)made.module->load_state_dict(state);
  const auto nodes = x.size(0);
  const gnn::Graph g = gnn::Graph::from_coo({.src = c.find("src"),
                                             .dst = c.find("dst"),
                                             .num_src = nodes,
                                             .num_dst = x_dst.defined() ? x_dst.size(0) : nodes},
                                            {.bipartite = x_dst.defined()});
  const Tensor y = made.call(x, x_dst, weight, g);
  backward(sum(y * c.find("g")));
  const auto give = [&](const std::string& name, const Tensor& value) {
    results.emplace_back(c.name() + "/" + name, value.detach().contiguous());
  };
  give("y", y);
  for (const auto& [name, t] : {std::pair("d/x", x), std::pair("d/x_dst", x_dst), std::pair("d/weight", weight)})
    if (t.defined() && t.grad().defined()) give(name, t.grad());
  for (const ParamRef& p : made.module->parameters()) {
    const Tensor grad = p.value->grad();
    give("d/p/" + p.name, grad.defined() ? grad : zeros_like(*p.value));
  }
}

void compare(const std::string& in, const std::string& out) {
  const TensorFile file = load_safetensors(in);
  const std::map<std::string, Tensor> tensors(file.tensors.begin(), file.tensors.end());
  NamedTensors results;
  for (const auto& [name, options] : file.metadata) compute(Case(name, json::parse(options), tensors), results);
  save_safetensors(out, results);
}

// ---- Cora

struct Cora {
  gnn::Graph graph;
  gnn::SparseMatrix x;
  Tensor dense, y, train;
};

Cora read_cora(const std::string& folder) {
  const auto npy = [&](const char* name) { return load_npy(folder + "/" + name + ".npy"); };
  const Tensor edges = npy("edge_index"), shape = npy("x_shape");
  const auto size = shape.to_vector<std::int64_t>();
  // Rows sum to 1.
  const Csr csr = checked(with_transpose({.crow = npy("x_indptr").to(DType::i64).contiguous(),
                                          .col = npy("x_indices").to(DType::i32).contiguous(),
                                          .cols = size[1]}));
  const Tensor value = npy("x_data").to(DType::f32);
  const Tensor scaled = value / clamp(gather_csr(segment_reduce(value, csr), csr), 1, std::nullopt);
  const Tensor dense = spmm(csr, scaled, eye(size[1], Device::cpu()));
  return {gnn::Graph::from_coo({.src = select(edges, 0, 0).contiguous(),
                                .dst = select(edges, 0, 1).contiguous(),
                                .num_src = size[0],
                                .num_dst = size[0]}),
          {csr, scaled},
          dense,
          npy("y").to(DType::i64),
          npy("train_idx").to(DType::i64)};
}

struct Net : nn::Module {
  explicit Net(nn::Options o) : Module(std::move(o)) {}
  gnn::GCNConv conv1{*this, "conv1", {.in = 1433, .out = 16, .cached = true}};
  gnn::GCNConv conv2{*this, "conv2", {.in = 16, .out = 7, .cached = true}};
  nn::Dropout dropout{*this, "dropout", {.p = 0.5}}, input_dropout{*this, "input_dropout", {.p = 0.5}};
  Tensor operator()(const gnn::SparseMatrix& x, const gnn::Graph& g) const {
    return conv2(dropout(relu(conv1(gnn::SparseMatrix{x.csr, input_dropout(x.value)}, g))), g);
  }
  Tensor operator()(const Tensor& x, const gnn::Graph& g) const {
    return conv2(dropout(relu(conv1(input_dropout(x), g))), g);
  }
};

template <class X>
json epochs(const Cora& cora, const X& x, int n) {
  Generator gen(1);
  Net net({.gen = gen, .device = Device::cpu()});
  const std::vector<ParamRef> all = net.parameters();  // conv1.lin.weight, conv1.bias, then those of conv2
  const auto second = all.begin() + 2;
  optim::Adam adam(std::vector(all.begin(), second), {.lr = 0.01, .weight_decay = 5e-4});
  adam.add_group(std::vector(second, all.end()), {.lr = 0.01});
  const Tensor target = index_select(cora.y, 0, cora.train);
  std::vector<double> seconds;
  double last = 0;
  for (int i = 0; i < n; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    adam.zero_grad();
    const Tensor loss = cross_entropy(index_select(net(x, cora.graph), 0, cora.train), target);
    backward(loss);
    adam.step();
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    last = loss.item();
  }
  net.eval();
  const Tensor logits = net(x, cora.graph);
  return {{"seconds", seconds},
          {"loss", last},
          {"train_accuracy", accuracy(index_select(logits, 0, cora.train), target).item()}};
}

int main(int argc, char** argv) {
  std::string in, out, folder, features;
  int n = 200, threads = 0;
  const Parsed parsed = parse(
      argc, argv, "Graph layers for bench/compare_pyg.py.",
      {{"--compare", "FILE", "compute the cases of this .safetensors file", [&](const std::string& v) { in = v; }},
       {"--out", "FILE", "write their outputs and gradients there", [&](const std::string& v) { out = v; }},
       {"--cora", "FOLDER", "time epochs of a GCN on these arrays", [&](const std::string& v) { folder = v; }},
       {"--features", "FORM", "of the first layer: sparse or dense (both)",
        [&](const std::string& v) { features = v; }},
       number_flag<int>("--epochs", "N", "of them (200)", 1, [&](int v) { n = v; }),
       number_flag<int>("--threads", "N", "of computation", 1, [&](int v) { threads = v; })});
  if (parsed.ended) return *parsed.ended;
  try {
    if (threads > 0) set_num_threads(threads);
    if (!in.empty()) compare(in, out);
    if (!folder.empty()) {
      const Cora cora = read_cora(folder);
      json report;
      if (features != "dense") report["sparse"] = epochs(cora, cora.x, n);
      if (features != "sparse") report["dense"] = epochs(cora, cora.dense, n);
      std::printf("%s\n", report.dump().c_str());
    }
  } catch (const Error& e) {
    std::fprintf(stderr, "bench_graph_layers: %s\n", e.what());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace levin::bench

int main(int argc, char** argv) { return levin::bench::main(argc, argv); }
