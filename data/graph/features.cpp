// Features of nodes: rows scaled, degrees as columns.
#include <algorithm>
#include <utility>
#include <vector>

#include "levin/data/graph.h"
#include "levin/error.h"

namespace levin::gnn {
namespace {

double factor_of(double sum, RowNorm norm) {
  if (norm == RowNorm::pyg) return 1 / std::max(sum, 1.0);
  return sum == 0 ? 0 : 1 / sum;
}

template <class T>
Tensor normalized(const Tensor& x, RowNorm norm) {
  const std::int64_t rows = x.size(0), width = x.size(1);
  const T* from = x.data<T>();
  Tensor out = empty(x.shape(), Device::cpu(), x.dtype());
  T* to = out.mutable_data<T>();
  double least = 0;
  if (norm == RowNorm::pyg && x.numel() > 0) {
    least = static_cast<double>(from[0]);
    for (std::int64_t i = 1; i < x.numel(); ++i) least = std::min(least, static_cast<double>(from[i]));
  }
  for (std::int64_t i = 0; i < rows; ++i, from += width, to += width) {
    double sum = 0;
    for (std::int64_t f = 0; f < width; ++f) sum += static_cast<double>(from[f]) - least;
    const double factor = factor_of(sum, norm);
    for (std::int64_t f = 0; f < width; ++f) to[f] = static_cast<T>((static_cast<double>(from[f]) - least) * factor);
  }
  return out;
}

}  // namespace

Tensor row_normalize(const Tensor& x, RowNorm norm) {
  if (x.device() != Device::cpu())
    fail<DeviceError>("row_normalize: x is on ", x.device(), ", expected cpu; normalize before to()");
  if (x.rank() != 2) fail<ShapeError>("row_normalize: x has shape ", x.shape(), ", expected [N, F]");
  const Tensor from = x.detach().contiguous();
  switch (x.dtype()) {
    case DType::f32: return normalized<float>(from, norm);
    case DType::f64: return normalized<double>(from, norm);
    case DType::f16: return normalized<f16>(from, norm);
    case DType::bf16: return normalized<bf16>(from, norm);
    default: fail<DTypeError>("row_normalize: x is ", x.dtype(), ", expected a float dtype");
  }
}

SparseFeatures row_normalize(const SparseFeatures& x, RowNorm norm) {
  if (!x.defined()) fail<ShapeError>("row_normalize: the matrix is undefined");
  const Csr a = x.csr.known() ? x.csr : checked(x.csr);
  if (x.values.device() != Device::cpu() || x.values.dtype() != DType::f32 || x.values.shape() != a.col.shape())
    fail<ShapeError>("row_normalize: values are ", text(x.values), ", expected f32 ", a.col.shape(), " on cpu");
  const Tensor from = x.values.detach().contiguous();
  const float* value = from.data<float>();
  double least = 0;
  // Without a zero in the whole matrix its least value is that of the entries.
  if (a.entries() > 0 && a.entries() / std::max<std::int64_t>(1, a.cols) == a.rows())
    least = static_cast<double>(value[0]);
  for (std::int64_t k = 0; k < a.entries(); ++k) least = std::min(least, static_cast<double>(value[k]));
  if (norm == RowNorm::l1) least = 0;
  if (least < 0)
    fail<ConfigError>("row_normalize: the least value is ", least,
                      ", and RowNorm::pyg would subtract it from the zeros; use RowNorm::l1, or a dense x");
  Tensor out = empty(from.shape(), Device::cpu());
  float* to = out.mutable_data<float>();
  const auto* row = a.crow.data<std::int64_t>();
  for (std::int64_t i = 0; i < a.rows(); ++i) {
    double sum = 0;
    for (std::int64_t k = row[i]; k < row[i + 1]; ++k) sum += static_cast<double>(value[k]) - least;
    const double factor = factor_of(sum, norm);
    for (std::int64_t k = row[i]; k < row[i + 1]; ++k)
      to[k] = static_cast<float>((static_cast<double>(value[k]) - least) * factor);
  }
  return {a, out};
}

Tensor one_hot_degree(const Graph& graph, std::int64_t max_degree) {
  if (max_degree < 0) fail<ConfigError>("one_hot_degree: max_degree is ", max_degree, ", expected 0 or more");
  if (graph.device() != Device::cpu())
    fail<DeviceError>("one_hot_degree: the graph is on ", graph.device(), ", expected cpu");
  const Tensor degrees = graph.out_degree();
  const auto* degree = degrees.data<std::int64_t>();
  const std::int64_t nodes = degrees.numel(), width = max_degree + 1;
  for (std::int64_t i = 0; i < nodes; ++i) {
    if (degree[i] > max_degree)
      fail<IndexError>("one_hot_degree: node ", i, " has ", degree[i], " out-edges, expected at most ", max_degree,
                       ", max_degree");
  }
  Tensor out = empty({nodes, width}, Device::cpu());
  float* to = out.mutable_data<float>();
  std::fill_n(to, out.numel(), 0.0f);
  for (std::int64_t i = 0; i < nodes; ++i) to[i * width + degree[i]] = 1;
  return out;
}

}  // namespace levin::gnn
