#include <limits>

#include "levin/autograd.h"
#include "levin/ops.h"
#include "nn/graph/loops.h"

namespace levin::gnn {

SparseMatrix sparse_matrix(const Tensor& x) {
  if (!x.device().is_cpu())
    fail<DeviceError>("sparse_matrix: x is on ", x.device(), ", expected cpu; build it there, and move its tensors");
  if (x.rank() != 2) fail<ShapeError>("sparse_matrix: x has shape ", x.shape(), ", expected [rows, cols]");
  const Tensor at = nonzero(x.detach());  // [E, 2], row by row
  const std::int64_t entries = at.size(0), rows = x.size(0);
  Tensor crow = zeros({rows + 1}, Device::cpu(), DType::i64);
  auto* offset = crow.mutable_data<std::int64_t>();
  const auto* place = at.data<std::int64_t>();
  for (std::int64_t k = 0; k < entries; ++k) ++offset[place[2 * k] + 1];
  for (std::int64_t i = 0; i < rows; ++i) offset[i + 1] += offset[i];
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  const DType index = entries <= most && x.size(1) <= most ? DType::i32 : DType::i64;
  const Csr csr{.crow = crow, .col = select(at, 1, 1).to(index).contiguous(), .cols = x.size(1)};
  return {checked(with_transpose(csr)), masked_select(x, ne(x.detach(), 0))};
}

Tensor Adj::destinations(const Tensor& x) const {
  if (x.rank() < 1 || x.size(0) != csr().cols)
    fail<ShapeError>("x has shape ", x.shape(), ", expected ", csr().cols, " rows, one for each source");
  if (block_) return narrow(x, 0, 0, csr().rows());
  if (graph_->is_bipartite())
    fail<ShapeError>("the graph is bipartite, expected features of its ", csr().rows(),
                     " destinations, too; call the layer with x_src and x_dst");
  return x;
}

Tensor gather_sources(const Csr& a, const Tensor& x) { return spmm(gather_pattern(a), {}, x); }

Tensor propagate(const Adj& on, const Tensor& x_src, const Tensor& x_dst,
                 const Function<Tensor(const Tensor& x_j, const Tensor& x_i)>& message, Reduce reduce) {
  const Csr& a = on.csr();
  const Tensor x_j = gather_sources(a, x_src);
  const Tensor x_i = x_dst.defined() ? gather_csr(x_dst, a) : Tensor();
  const Tensor m = message(x_j, x_i);
  if (m.rank() < 1 || m.size(0) != a.entries())
    fail<ShapeError>("propagate: message returned shape ", m.shape(), ", expected ", a.entries(),
                     " rows, one for each edge");
  return segment_reduce(m, a, reduce);
}

}  // namespace levin::gnn
