// Scores of edges, for attention over neighbours. Their derivatives gather: by rows for the row side, by columns for
// the column side, so no entry is scattered and no tensor has a number for each entry, head and channel.
#include <array>
#include <string>

#include "kernels/executor/dispatch.h"
#include "kernels/sparse/edge_scores.cuh"

// Nothing below is a hot loop, as in sparse.cu.
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__)
#pragma GCC optimize("Os")
#endif
#include "autograd/autocast.h"
#include "autograd/op_table.h"
#include "autograd/ops/index/pattern.h"
#include "levin/autograd.h"
#include "levin/flops.h"
#include "levin/ops.h"
#include "levin/sparse.h"

namespace levin {
namespace {

using kernels::Heads;

constexpr Names kGatv2{"gatv2_scores", "gatv2_scores: crow must rise from 0 to the number of entries"};
constexpr Names kEdges{"edge_scores", "edge_scores: crow must rise from 0 to the number of entries"};

Tensor dense(const Tensor& t) { return DensePattern::dense(t); }
Heads heads_of(const Tensor& x) { return {x.shape()[1], x.shape()[2]}; }
// What kernels sum in.
DType sum_type(const Tensor& x) { return x.dtype() == DType::f64 ? DType::f64 : DType::f32; }
Tensor as_sums(const Tensor& x) { return x.to(sum_type(x)); }

// With x of the rows, z of the columns and gy of the entries, by rows of `a`: what kernels/sparse/edge_scores.cuh calls
// gx, and t, in f32 or f64; t is undefined where it is not wanted.
struct EdgeScoresBackward {
  static constexpr OpInfo info{.name = "edge_scores_backward"};
  SavedCsr a;
  Names names;
  double slope;
  bool wants_t;
  SavedInput gy{}, x{}, z{}, attn{};

  std::array<Tensor, 2> forward(const Tensor& gy_, const Tensor& x_, const Tensor& z_, const Tensor& attn_) {
    gy = gy_;
    x = x_;
    z = z_;
    attn = attn_;
    return run(a.get(), {gy_, x_, z_, attn_});
  }
  std::array<Tensor, 2> run(const Csr& of, const std::array<Tensor, 4>& in) const {
    if (is_widened(in[1])) {
      auto [gx, t] = run(of, {wide(in[0]), wide(in[1]), wide(in[2]), wide(in[3])});
      return {gx.to(in[1].dtype()), t};
    }
    const Tensor g = dense(in[0]), p = dense(in[1]), q = dense(in[2]), w = dense(in[3]);
    const Tensor gx = empty(p.shape(), p.device(), p.dtype());
    const Tensor t = wants_t ? empty(p.shape(), p.device(), sum_type(p)) : Tensor{};
    const Heads h = heads_of(p);
    const DensePattern pattern(of, of.entries(), a.longest_row);
    dispatch(info, p, kFloats,
             overloaded{[&]<class T>(const Cpu& on, T) {
                          if constexpr (sizeof(T) > 2)
                            kernels::cpu::edge_scores_backward<T>(on, pattern.view, ptr<const T>(g), ptr<const T>(p),
                                                                  ptr<const T>(q), values_of<T>(w), ptr<T>(gx),
                                                                  wants_t ? ptr<T>(t) : nullptr, h, T(slope));
                        },
                        [&]<class T>(const Gpu& on, T) {
                          using A = kernels::Accum<T>;
                          kernels::gpu::edge_scores_backward<T>(on, names.op, names.offsets, pattern.view,
                                                                ptr<const T>(g), ptr<const T>(p), ptr<const T>(q),
                                                                values_of<T>(w), ptr<T>(gx),
                                                                wants_t ? ptr<A>(t) : nullptr, h, A(slope), Room(p));
                        }});
    return {gx, t};
  }
  // The same in public ops, through a tensor of entries x heads x channels.
  static std::array<Tensor, 2> reference(const std::array<Tensor, 4>& in, const Csr& of, double slope, bool wants_t) {
    const auto [gy, x, z] = std::array{as_sums(in[0]), as_sums(in[1]), as_sums(in[2])};
    const Tensor g = unsqueeze(of.edge.defined() ? index_select(gy, 0, of.edge.to(DType::i64)) : gy, 2);
    const Tensor s = gather_csr(x, of) + index_select(z, 0, of.col.to(DType::i64));
    const Tensor d = g * (gt(s, 0).to(s.dtype()) * (1 - slope) + slope);
    Tensor gx = segment_reduce(d, of);
    if (in[3].defined()) gx = gx * as_sums(in[3]);
    return {gx.to(in[1].dtype()), wants_t ? segment_reduce(d * s, of) : Tensor{}};
  }
  Grads<4> backward(const Tensor& ggx, const Tensor& ggt, NeedMask need) {
    const Csr of = a.get();
    return vjp<4>([&](auto& in) { return reference(in, of, slope, wants_t); },
                  std::array{gy.get(), x.get(), z.get(), attn.get()}, std::array{ggx, ggt}, need);
  }
};
LEVIN_OP_TABLE(EdgeScoresBackward)

// x of the rows, z of the columns; attn undefined: ones.
struct EdgeScores {
  static constexpr OpInfo info{.name = "edge_scores", .autocast = AutocastPolicy::widest};
  SavedCsr a;
  Names names;
  double slope;
  SavedInput x{}, z{}, attn{};

  Tensor forward(const Tensor& x_, const Tensor& z_, const Tensor& attn_) {
    x = x_;
    z = z_;
    attn = attn_;
    const Csr of = a.get();
    FlopCounter::count(info.name, {2, of.entries(), x_.shape()[1] * x_.shape()[2]});
    return run(of, {x_, z_, attn_});
  }
  Tensor run(const Csr& of, const std::array<Tensor, 3>& in) const {
    if (is_widened(in[0])) return run(of, {wide(in[0]), wide(in[1]), wide(in[2])}).to(in[0].dtype());
    const Tensor p = dense(in[0]), q = dense(in[1]), w = dense(in[2]);
    const Heads h = heads_of(p);
    const Tensor y = empty({of.entries(), h.heads}, p.device(), p.dtype());
    const DensePattern pattern(of, of.entries(), a.longest_row);
    dispatch(info, p, kFloats,
             overloaded{[&]<class T>(const Cpu& on, T) {
                          if constexpr (sizeof(T) > 2)
                            kernels::cpu::edge_scores<T>(on, pattern.view, ptr<const T>(p), ptr<const T>(q),
                                                         values_of<T>(w), ptr<T>(y), h, T(slope));
                        },
                        [&]<class T>(const Gpu& on, T) {
                          kernels::gpu::edge_scores<T>(on, names.op, names.offsets, pattern.view, ptr<const T>(p),
                                                       ptr<const T>(q), values_of<T>(w), ptr<T>(y), h,
                                                       kernels::Accum<T>(slope), Room(p));
                        }});
    return y;
  }
  Grads<3> backward(const Tensor& gy, NeedMask need) {
    Grads<3> grads;
    if (need[0] || need[2]) {
      const auto [gx, t] = apply(EdgeScoresBackward{a, names, slope, need[2]}, gy, x.get(), z.get(), attn.get());
      if (need[0]) grads[0] = gx;
      if (need[2]) grads[2] = sum(t, 0).to(attn.get().dtype());
    }
    if (need[1]) {
      const SavedCsr t(swapped(a.get()));
      grads[1] = apply(EdgeScoresBackward{t, names, slope, false}, gy, z.get(), x.get(), attn.get())[0];
    }
    return grads;
  }
};
LEVIN_OP_TABLE(EdgeScores)

// l of the columns, r of the rows, both [n, rest...].
void check_ends(const char* op, const Csr& a, const Tensor& l, const Tensor& r, int rank, const char* rest,
                const std::array<const char*, 2>& names) {
  check_dtypes_meet(op, l, r);
  check_same_device(op, l, r);
  if (l.rank() != rank || l.shape()[0] != a.cols)
    refuse_shape(op, names[0], l.shape(), "[" + text(a.cols) + rest + "], a row for each column of the matrix");
  if (r.shape() != l.shape().with(0, a.rows()))
    refuse_shape(op, names[1], r.shape(), text(l.shape().with(0, a.rows())) + ", a row for each row of the matrix");
}

}  // namespace

Tensor edge_scores(const Csr& a, const Tensor& u, const Tensor& v, double negative_slope) {
  check_defined(kEdges.op, u, v);
  check_csr(kEdges.op, a, u);
  check_ends(kEdges.op, a, u, v, 2, ", H", {"u", "v"});
  return apply(EdgeScores{SavedCsr(a), kEdges, negative_slope}, unsqueeze(v, 2), unsqueeze(u, 2), Tensor{});
}

Tensor gatv2_scores(const Csr& a, const Tensor& l, const Tensor& r, const Tensor& attn, double negative_slope) {
  check_defined(kGatv2.op, l, r, attn);
  check_csr(kGatv2.op, a, l);
  check_ends(kGatv2.op, a, l, r, 3, ", H, C", {"l", "r"});
  check_dtypes_meet(kGatv2.op, l, attn);
  check_same_device(kGatv2.op, l, attn);
  if (attn.shape() != l.shape().removed(0)) refuse_shape(kGatv2.op, "attn", attn.shape(), text(l.shape().removed(0)));
  return apply(EdgeScores{SavedCsr(a), kGatv2, negative_slope}, r, l, attn);
}

}  // namespace levin
