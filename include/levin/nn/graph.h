// Layers on graphs: parameters under PyTorch Geometric's names, with its options, defaults and initialisation. The ops
// below them are in levin/sparse.h.
//
//   struct Net : nn::Module {
//     using Module::Module;
//     gnn::GCNConv conv1{*this, "conv1", {.in = 1433, .out = 16}};
//     gnn::GCNConv conv2{*this, "conv2", {.in = 16, .out = 7}};
//     Tensor operator()(const Tensor& x, const gnn::Graph& g) const { return conv2(relu(conv1(x, g)), g); }
//   };
//
// in(i) below are the edges e into node i, s_e the source of e, w_e its weight, N the number of nodes. Linear weights
// are [out, in]. Layers whose graph gets self-loops or coefficients keep them for the graph of the last call, so the
// first call with a graph costs more. Layers wait for no device. Constructors throw ConfigError for options out of
// range; calls throw what their ops throw, ShapeError for features that do not fit the graph and DeviceError for
// another device.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "levin/function.h"
#include "levin/graph.h"
#include "levin/nn/layers.h"
#include "levin/nn/module.h"
#include "levin/nn/sequential.h"
#include "levin/sparse.h"

namespace levin::gnn {

// A sparse matrix: features of which most are 0, or a graph with coefficients. value [E] is in the order of csr, or by
// csr.edge. Dropout of such features visits what is stored: {x.csr, dropout(x.value)}.
struct SparseMatrix {
  Csr csr{};
  Tensor value{};
};
// The elements of x [rows, cols] on cpu that are not 0, with the transpose, in x's dtype; columns are i32 where these
// fit. Throws DeviceError elsewhere.
[[nodiscard]] LEVIN_API SparseMatrix sparse_matrix(const Tensor& x);

// The edges that a layer works on: those of a Graph or of a Block, which must live during the call.
class LEVIN_API Adj {
 public:
  Adj(const Graph& graph) : graph_(&graph) {}
  Adj(const Block& block) : block_(&block) {}
  // The pattern: rows are destinations, columns sources.
  [[nodiscard]] const Csr& csr() const { return graph_ ? graph_->csr() : block_->csr; }
  // One of both is null.
  [[nodiscard]] const Graph* graph() const { return graph_; }
  [[nodiscard]] const Block* block() const { return block_; }
  // The features of destinations among those of sources: x of a graph, its first rows for a block. Throws ShapeError
  // for a bipartite graph, whose destinations need features of their own.
  [[nodiscard]] Tensor destinations(const Tensor& x) const;

 private:
  const Graph* graph_ = nullptr;
  const Block* block_ = nullptr;
};

// Features in, of sources and destinations: one number for both, or {src, dst}.
class InFeatures {
 public:
  constexpr InFeatures(std::int64_t both) : src(both), dst(both) {}
  constexpr InFeatures(std::int64_t from, std::int64_t to) : src(from), dst(to), pair(true) {}
  std::int64_t src, dst;
  bool pair = false;
};

namespace detail {
struct GraphMemo;  // what a layer keeps of the last graph
}  // namespace detail

// ---- GCN

struct GcnNormOptions {
  bool improved = false;       // loops of weight 2 instead of 1, also without weights (PyTorch Geometric: only with)
  bool add_self_loops = true;  // each node gets one loop: its own, the last by id, else one of the weight above
  DType dtype = DType::f32;    // of the coefficients
};
// The matrix of a GCN layer: c_s w_e c_d for each edge e of s -> d, loops included, with c_i = deg_i^(-1/2), deg_i the
// sum of w_e over in(i), and c_i = 0 for deg_i <= 0. edge_weight [E] by id takes the place of g.weight(); without both
// weights are 1. Degrees and products are in f32, or f64 for f64. Differentiable in edge_weight. A loop that is
// replaced stays in the pattern with the value 0. Throws ShapeError for a bipartite graph and weights of another shape.
// Kipf & Welling, 2017.
[[nodiscard]] LEVIN_API SparseMatrix gcn_norm(const Graph& g, const GcnNormOptions& options = {},
                                              const Tensor& edge_weight = {});

struct GCNConvOptions {
  std::int64_t in = 0, out = 0;
  bool improved = false;
  bool cached = false;    // for one graph only: a call after one whose coefficients were kept throws StateError
  bool normalize = true;  // false: the weights are the coefficients
  std::optional<bool> add_self_loops{};  // default: normalize; ConfigError for true without normalize
  bool bias = true;
};
// y_i = bias + sum over in(i) of a_e W x_{s_e}, with a of gcn_norm: x [N, in] -> [N, out]. lin.weight glorot [out, in],
// bias [out] zeros. Aggregates before the product where in <= out. Kipf & Welling, 2017.
class LEVIN_API GCNConv : public nn::Module {
 public:
  using Options = GCNConvOptions;
  GCNConv(nn::Module& parent, std::string_view name, Options options);
  // edge_weight: [E] by id for a graph, in the block's order for a block, which needs weights and normalize = false.
  Tensor operator()(const Tensor& x, const Adj& on, const Tensor& edge_weight = {}) const;
  // The same of sparse features [N, in].
  Tensor operator()(const SparseMatrix& x, const Adj& on, const Tensor& edge_weight = {}) const;

  const Options options;
  nn::Linear lin;
  nn::Parameter bias;

 private:
  [[nodiscard]] SparseMatrix matrix(const Adj& on, const Tensor& edge_weight) const;
  std::shared_ptr<detail::GraphMemo> memo_;
};

// ---- GraphSAGE

struct SAGEConvOptions {
  InFeatures in = 0;
  std::int64_t out = 0;
  Reduce aggr = Reduce::mean;
  bool normalize = false;   // y <- y / max(|y|, 1e-12) in each row
  bool root_weight = true;  // false: without the term of x_dst
  bool project = false;     // x_src <- relu(lin(x_src)) first
  bool bias = true;
};
// y_i = lin_l(reduction of x_src[s_e] over in(i)) + lin_r(x_dst[i]): [N, out]. lin_l has the bias, lin_r none. No loops
// are added; a node without edges gets bias + lin_r(x_dst). Hamilton et al., 2017.
class LEVIN_API SAGEConv : public nn::Module {
 public:
  using Options = SAGEConvOptions;
  SAGEConv(nn::Module& parent, std::string_view name, Options options);
  Tensor operator()(const Tensor& x, const Adj& on) const { return (*this)(x, on.destinations(x), on); }
  // x_src [sources, in.src], x_dst [destinations, in.dst], or undefined: without its term.
  Tensor operator()(const Tensor& x_src, const Tensor& x_dst, const Adj& on) const;

  const Options options;
  std::optional<nn::Linear> lin;  // with project
  nn::Linear lin_l;
  std::optional<nn::Linear> lin_r;  // with root_weight
};

// ---- Multi-layer perceptron and batch norm over nodes

// Functions between layers; an empty one is the identity.
using Activation = Function<Tensor(const Tensor&)>;
enum class Norm : std::uint8_t { none, batch_norm };

struct BatchNormOptions {
  std::int64_t features = 0;
  double eps = 1e-5;
  std::optional<double> momentum = 0.1;
  bool affine = true;
  bool track_running_stats = true;
  bool allow_single_element = false;  // a training batch of one row takes the running statistics
};
// nn::BatchNorm1d over nodes, x [N, F], as the child `module`. In training a batch of one row throws ShapeError,
// because its variance is unknown, unless allow_single_element.
class LEVIN_API BatchNorm : public nn::Module {
 public:
  using Options = BatchNormOptions;
  BatchNorm(nn::Module& parent, std::string_view name, Options options);
  Tensor operator()(const Tensor& x) const;

  const Options options;
  nn::BatchNorm1d module;
};

struct MLPOptions {
  std::vector<std::int64_t> channels{};  // in, hidden ..., out: at least two
  double dropout = 0;
  Activation act = relu;
  bool act_first = false;  // act before the norm
  Norm norm = Norm::batch_norm;
  bool plain_last = true;  // false: norm, act and dropout after the last layer, too
  bool bias = true;
};
// Linear, norm, act, dropout for each pair of channels, the last a bare Linear: [..., in] -> [..., out]. lins.i,
// norms.i.
class LEVIN_API MLP : public nn::Module {
 public:
  using Options = MLPOptions;
  MLP(nn::Module& parent, std::string_view name, Options options);
  Tensor operator()(const Tensor& x) const;

  const Options options;
  nn::ModuleList<nn::Linear> lins;
  nn::ModuleList<BatchNorm> norms;

 private:
  nn::Dropout dropout_;
};

// ---- GIN

struct GINConvOptions {
  MLPOptions mlp{};
  double eps = 0;
  bool train_eps = false;  // eps is a parameter instead of a buffer
};
// What all GINConv share: eps [1], and the sum before the network.
class LEVIN_API GINConvBase : public nn::Module {
 public:
  // Shape [1].
  [[nodiscard]] const Tensor& eps() const;
  // (1 + eps) x_dst[i] + sum over in(i) of x_src[s_e]; x_dst undefined: without its term.
  [[nodiscard]] Tensor aggregate(const Tensor& x_src, const Tensor& x_dst, const Adj& on) const;

 protected:
  GINConvBase(nn::Module& parent, std::string_view name, double eps, bool train_eps);

 private:
  nn::Parameter trained_eps_;
  nn::Buffer fixed_eps_;
};
// y_i = nn((1 + eps) x_dst[i] + sum over in(i) of x_src[s_e]). The network `nn` is an MLP. No loops are added. Xu et
// al., 2019.
class LEVIN_API GINConv : public GINConvBase {
 public:
  using Options = GINConvOptions;
  GINConv(nn::Module& parent, std::string_view name, Options options);
  Tensor operator()(const Tensor& x, const Adj& on) const { return (*this)(x, on.destinations(x), on); }
  // x_src [sources, in], x_dst [destinations, in] or undefined.
  Tensor operator()(const Tensor& x_src, const Tensor& x_dst, const Adj& on) const;

  const Options options;
  MLP mlp;  // named "nn"
};
// GINConv around a network of another type, such as nn::Sequential, which is the child "nn":
//
//   gnn::GINConvOf<nn::Sequential> conv{*this, "conv"};
//   conv.net.add<nn::Linear>({.in = 7, .out = 32});
template <class Net>
class GINConvOf : public GINConvBase {
 public:
  // `args` follow the parent and the name in Net's constructor.
  template <class... Args>
  GINConvOf(nn::Module& parent, std::string_view name, double eps = 0, bool train_eps = false, Args&&... args)
      : GINConvBase(parent, name, eps, train_eps), net(*this, "nn", std::forward<Args>(args)...) {}
  Tensor operator()(const Tensor& x, const Adj& on) const { return (*this)(x, on.destinations(x), on); }
  Tensor operator()(const Tensor& x_src, const Tensor& x_dst, const Adj& on) const {
    const nn::Call call(*this, x_src, x_dst);
    return call.gives(net(aggregate(x_src, x_dst, on)));
  }

  Net net;
};

// ---- Attention

// An output with the attention behind it: alpha [E, H] in the order of csr, whose loops are those of the layer. A loop
// that was replaced stays in csr with alpha = 0. alpha is after dropout.
struct AttentionResult {
  Tensor y{};
  Csr csr{};
  Tensor alpha{};
};

struct GATConvOptions {
  InFeatures in = 0;
  std::int64_t out = 0;  // features of a head
  std::int64_t heads = 1;
  bool concat = true;           // [N, heads * out]; false: the mean over heads, [N, out]
  double negative_slope = 0.2;  // of leaky_relu
  double dropout = 0;           // of attention, for each edge and head
  bool add_self_loops = true;   // one loop at each node that is source and destination, in place of its own
  bool bias = true;
  bool residual = false;  // y += res(x_dst)
};
// h = lin(x) as [N, H, C]; alpha_e = softmax over in(i) of leaky_relu(<att_src, h_{s_e}> + <att_dst, h_i>);
// y_i = sum over in(i) of alpha_e h_{s_e}, plus bias. lin.weight [H C, in], or lin_src and lin_dst for {src, dst},
// without biases; att_src, att_dst [1, H, C]; all glorot. Velickovic et al., 2018.
class LEVIN_API GATConv : public nn::Module {
 public:
  using Options = GATConvOptions;
  GATConv(nn::Module& parent, std::string_view name, Options options);
  Tensor operator()(const Tensor& x, const Adj& on) const { return attend(x, on).y; }
  // x_src [sources, in.src], x_dst [destinations, in.dst] or undefined: without its terms.
  Tensor operator()(const Tensor& x_src, const Tensor& x_dst, const Adj& on) const {
    return attend(x_src, x_dst, on).y;
  }
  // The same, with the attention.
  [[nodiscard]] AttentionResult attend(const Tensor& x, const Adj& on) const;
  [[nodiscard]] AttentionResult attend(const Tensor& x_src, const Tensor& x_dst, const Adj& on) const;

  const Options options;
  std::optional<nn::Linear> lin, lin_src, lin_dst;
  nn::Parameter att_src, att_dst;
  std::optional<nn::Linear> res;
  nn::Parameter bias;

 private:
  [[nodiscard]] AttentionResult attend_heads(const Tensor& h_src, const Tensor& h_dst, const Tensor& x_dst,
                                             const Adj& on) const;
  mutable nn::ModuleGenerator generator_;
  std::shared_ptr<detail::GraphMemo> memo_;
};

struct GATv2ConvOptions {
  InFeatures in = 0;
  std::int64_t out = 0;
  std::int64_t heads = 1;
  bool concat = true;
  double negative_slope = 0.2;
  double dropout = 0;
  bool add_self_loops = true;
  bool bias = true;
  bool residual = false;
  bool share_weights = false;  // lin_l for both sides; the state has no lin_r then
};
// l = lin_l(x_src), r = lin_r(x_dst) as [N, H, C]; alpha_e = softmax over in(i) of <att, leaky_relu(l_{s_e} + r_i)>;
// y_i = sum over in(i) of alpha_e l_{s_e}, plus bias. lin_l and lin_r have biases where the layer has; weights and att
// [1, H, C] glorot. Options as in GATConv. Brody et al., 2022.
class LEVIN_API GATv2Conv : public nn::Module {
 public:
  using Options = GATv2ConvOptions;
  GATv2Conv(nn::Module& parent, std::string_view name, Options options);
  Tensor operator()(const Tensor& x, const Adj& on) const { return attend(x, on).y; }
  // x_src [sources, in.src], x_dst [destinations, in.dst].
  Tensor operator()(const Tensor& x_src, const Tensor& x_dst, const Adj& on) const {
    return attend(x_src, x_dst, on).y;
  }
  // The same, with the attention.
  [[nodiscard]] AttentionResult attend(const Tensor& x, const Adj& on) const {
    return attend(x, on.destinations(x), on);
  }
  [[nodiscard]] AttentionResult attend(const Tensor& x_src, const Tensor& x_dst, const Adj& on) const;

  const Options options;
  nn::Linear lin_l;
  std::optional<nn::Linear> lin_r;  // without share_weights
  nn::Parameter att;
  std::optional<nn::Linear> res;
  nn::Parameter bias;

 private:
  mutable nn::ModuleGenerator generator_;
  std::shared_ptr<detail::GraphMemo> memo_;
};

// ---- Message passing by hand

// y_i = the reduction of message(x_src[s_e], x_dst[i]) over in(i), where message gets both sides as [E, ...] in the
// order of csr() and returns [E, ...]. It keeps tensors of E rows, which spmm does not.
[[nodiscard]] LEVIN_API Tensor propagate(const Adj& on, const Tensor& x_src, const Tensor& x_dst,
                                         const Function<Tensor(const Tensor& x_j, const Tensor& x_i)>& message,
                                         Reduce reduce = Reduce::sum);
// x_src[s_e] for each edge in the order of `a`: x [cols, ...] -> [E, ...]. Its backward sums by the transpose, where
// `a` has one.
[[nodiscard]] LEVIN_API Tensor gather_sources(const Csr& a, const Tensor& x);

// One row for each graph of a batch: the reduction of x[ptr[g] .. ptr[g + 1]); 0 for a graph without nodes.
[[nodiscard]] inline Tensor global_pool(const Tensor& x, const Tensor& ptr, Reduce reduce = Reduce::sum) {
  return segment_reduce(x, ptr, reduce);
}

// ---- Stacks

enum class Jumping : std::uint8_t { last, cat, max };
// The outputs of all layers as one: cat along the last dimension, the largest element, or the last layer's. Xu et al.,
// 2018.
[[nodiscard]] LEVIN_API Tensor jumping_knowledge(std::span<const Tensor> xs, Jumping mode);

// Options of the stacks below; those of their layers are in `conv`, whose in, out and, for attention, dropout the stack
// sets.
template <class Conv>
struct StackOptions {
  std::int64_t in = 0, hidden = 0, layers = 0;
  std::optional<std::int64_t> out{};  // default: hidden
  double dropout = 0;                 // after each layer but the last; of attention, too
  Activation act = relu;
  bool act_first = false;  // act before the norm
  Norm norm = Norm::none;
  std::optional<Jumping> jk{};  // with a Linear `lin` at the end; the last layer gets norm, act and dropout, too
  typename Conv::Options conv{};
};
// Layers with norm, act and dropout between them, [N, in] -> [N, out]: convs.i, norms.i, lin. The networks of layers
// GIN have the stack's act and norm. Layers with attention and concat have hidden / heads features a head; the last one
// without jk takes the mean over heads.
template <class Conv>
class LEVIN_API Stack : public nn::Module {
 public:
  using Options = StackOptions<Conv>;
  Stack(nn::Module& parent, std::string_view name, Options options);
  // edge_weight by id, for GCN alone.
  Tensor operator()(const Tensor& x, const Graph& g, const Tensor& edge_weight = {}) const;
  // Of sparse features, for GCN alone.
  Tensor operator()(const SparseMatrix& x, const Graph& g,
                    const Tensor& edge_weight = {}) const requires std::same_as<Conv, GCNConv>;
  // Layer i works on blocks[i], the outermost first. Throws ShapeError for another number of blocks.
  Tensor operator()(const Tensor& x, std::span<const Block> blocks) const;

  const Options options;
  nn::ModuleList<Conv> convs;
  nn::ModuleList<BatchNorm> norms;
  std::optional<nn::Linear> lin;  // with jk

 private:
  template <class Apply>
  Tensor run(Tensor first, Apply&& apply_conv) const;
  nn::Dropout dropout_;
};
extern template class Stack<GCNConv>;
extern template class Stack<SAGEConv>;
extern template class Stack<GINConv>;
extern template class Stack<GATConv>;
extern template class Stack<GATv2Conv>;
using GCN = Stack<GCNConv>;
using GraphSAGE = Stack<SAGEConv>;
using GIN = Stack<GINConv>;
using GAT = Stack<GATConv>;
using GATv2 = Stack<GATv2Conv>;

}  // namespace levin::gnn
