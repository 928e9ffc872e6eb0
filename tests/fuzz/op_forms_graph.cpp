// Ops on graphs.
#include "levin/sparse.h"
#include "tests/fuzz/op_forms.h"

namespace levin::fuzz {
namespace {

// Increasing offsets, or any positions.
Tensor offsets(Chooser& c, Pool& p, std::int64_t to) {
  if (c.one_in(4)) return p.index();
  std::vector<std::int64_t> all{0};
  while (all.size() < 6 && !c.one_in(4)) all.push_back(all.back() + static_cast<std::int64_t>(c.below(3)));
  if (!c.one_in(8)) all.push_back(to);
  return from_data(all, {static_cast<std::int64_t>(all.size())}, Device::cpu());
}

Csr pattern(Chooser& c, Pool& p) {
  const Tensor col = c.one_in(4) ? p.index() : p.index().to(DType::i64);
  Csr a{.crow = offsets(c, p, col.numel()), .col = col, .cols = c.one_in(4) ? c.integer() : c.size()};
  if (c.one_in(4)) a.edge = p.index();
  return c.one_in(3) ? with_transpose(a) : a;
}

constexpr Form kForms[] = {
    // Graphs
    {"segment_reduce and segment_softmax",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const Tensor at = offsets(c, p, x.rank() > 0 ? x.size(0) : 0);
       return Tensors{segment_reduce(x, at, c.choice<Reduce>(4)), segment_softmax(x, at)};
     }},
    {"gather_csr",
     [](Chooser& c, Pool& p) {
       const Tensor x = p.any();
       const std::int64_t entries = c.integer();
       return Tensors{gather_csr(x, offsets(c, p, entries), entries)};
     }},
    {"spmm",
     [](Chooser& c, Pool& p) {
       const Csr a = pattern(c, p);
       const Tensor x = c.one_in(3) ? p.any() : p.of({a.cols, c.size()}, c.dtype());
       const Tensor value = c.one_in(2) ? Tensor() : c.one_in(4) ? p.any() : p.of({a.entries()}, x.dtype());
       return Tensors{spmm(a, value, x, c.choice<Reduce>(4))};
     }},
    {"embedding_bag",
     [](Chooser& c, Pool& p) {
       const Tensor weight = c.one_in(8) ? p.any() : p.of({c.size(), c.size()}, c.dtype());
       const Tensor index = p.index().to(DType::i64);
       BagOptions o{.mode = c.choice<Reduce>(4), .include_last_offset = c.one_in(2)};
       if (c.one_in(3)) o.per_sample_weights = c.one_in(4) ? p.any() : p.of(index.shape(), weight.dtype());
       if (c.one_in(3)) o.padding_idx = c.integer();
       return Tensors{embedding_bag(weight, index, c.one_in(4) ? Tensor() : offsets(c, p, index.numel()), o)};
     }},
    {"sddmm",
     [](Chooser& c, Pool& p) {
       const Csr a = pattern(c, p);
       const std::int64_t width = c.size();
       const DType dtype = c.dtype();
       const Tensor x = c.one_in(4) ? p.any() : p.of({a.rows(), width}, dtype);
       return Tensors{sddmm(a, x, c.one_in(4) ? p.any() : p.of({a.cols, width}, dtype))};
     }},
    {"edge_scores",
     [](Chooser& c, Pool& p) {
       const Csr a = pattern(c, p);
       const std::int64_t heads = c.size();
       const DType dtype = c.dtype();
       const Tensor u = c.one_in(4) ? p.any() : p.of({a.cols, heads}, dtype);
       const Tensor v = c.one_in(4) ? p.any() : p.of({a.rows(), heads}, dtype);
       return Tensors{edge_scores(a, u, v, c.real())};
     }},
    {"gatv2_scores",
     [](Chooser& c, Pool& p) {
       const Csr a = pattern(c, p);
       const std::int64_t heads = c.size(), channels = c.size();
       const DType dtype = c.dtype();
       const Tensor l = c.one_in(4) ? p.any() : p.of({a.cols, heads, channels}, dtype);
       const Tensor r = c.one_in(4) ? p.any() : p.of({a.rows(), heads, channels}, dtype);
       return Tensors{gatv2_scores(a, l, r, c.one_in(4) ? p.any() : p.of({heads, channels}, dtype), c.real())};
     }},
    {"transposed pattern",
     [](Chooser& c, Pool& p) {
       const Csr a = transpose(pattern(c, p));
       return Tensors{a.crow, a.col};
     }},
};

}  // namespace

std::span<const Form> graph_forms() { return kForms; }

}  // namespace levin::fuzz
