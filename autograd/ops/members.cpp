// The members of Tensor that are ops.
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <vector>

#include "levin/ops.h"

namespace levin {

Tensor Tensor::operator[](std::int64_t i) const { return levin::select(*this, 0, i); }

Tensor Tensor::index(std::initializer_list<Index> at) const {
  using Kind = Index::Kind;
  int named = 0, ellipses = 0;
  for (const Index& i : at) {
    named += i.kind == Kind::number || i.kind == Kind::slice;
    ellipses += i.kind == Kind::ellipsis;
  }
  if (named > rank())
    fail<IndexError>("index: ", named, " dimensions are indexed, expected at most ", rank(), " for shape ", shape());
  if (ellipses > 1) fail<IndexError>("index: kEllipsis is given ", ellipses, " times, expected once");
  const int left = rank() - named;
  Tensor x = *this;
  int d = 0;
  for (const Index& i : at) {
    switch (i.kind) {
      case Kind::number: x = levin::select(x, d, i.number); break;
      case Kind::slice:
        x = levin::slice(x, d, i.slice.begin.value_or(0),
                         i.slice.end.value_or(std::numeric_limits<std::int64_t>::max()), i.slice.step);
        ++d;
        break;
      case Kind::new_axis: x = levin::unsqueeze(x, d++); break;
      case Kind::ellipsis: d += left; break;
    }
  }
  return x;
}

Tensor Tensor::view(Dims shape) const { return levin::view(*this, shape); }
Tensor Tensor::reshape(Dims shape) const { return levin::reshape(*this, shape); }
Tensor Tensor::flatten(std::int64_t begin, std::int64_t end) const { return levin::flatten(*this, begin, end); }
Tensor Tensor::squeeze(Dims dims) const { return levin::squeeze(*this, dims); }
Tensor Tensor::unsqueeze(std::int64_t dim) const { return levin::unsqueeze(*this, dim); }
Tensor Tensor::transpose(std::int64_t dim0, std::int64_t dim1) const { return levin::transpose(*this, dim0, dim1); }
Tensor Tensor::t() const { return levin::t(*this); }
Tensor Tensor::permute(Dims order) const { return levin::permute(*this, order); }
Tensor Tensor::expand(const Shape& shape) const { return levin::expand(*this, shape); }
Tensor Tensor::select(std::int64_t dim, std::int64_t i) const { return levin::select(*this, dim, i); }
Tensor Tensor::slice(std::int64_t dim, std::int64_t begin, std::int64_t end, std::int64_t step) const {
  return levin::slice(*this, dim, begin, end, step);
}
Tensor Tensor::narrow(std::int64_t dim, std::int64_t begin, std::int64_t length) const {
  return levin::narrow(*this, dim, begin, length);
}
Tensors Tensor::split(std::int64_t size, std::int64_t dim) const { return levin::split(*this, size, dim); }
Tensors Tensor::chunk(std::int64_t chunks, std::int64_t dim) const { return levin::chunk(*this, chunks, dim); }
Tensors Tensor::unbind(std::int64_t dim) const { return levin::unbind(*this, dim); }

Tensor Tensor::sum(Dims dims, KeepDim keep) const { return levin::sum(*this, dims, keep); }
Tensor Tensor::mean(Dims dims, KeepDim keep) const { return levin::mean(*this, dims, keep); }
Tensor Tensor::prod(Dims dims, KeepDim keep) const { return levin::prod(*this, dims, keep); }
Tensor Tensor::amax(Dims dims, KeepDim keep) const { return levin::amax(*this, dims, keep); }
Tensor Tensor::amin(Dims dims, KeepDim keep) const { return levin::amin(*this, dims, keep); }
Tensor Tensor::var(Dims dims, double correction, KeepDim keep) const {
  return levin::var(*this, dims, correction, keep);
}
Tensor Tensor::std(Dims dims, double correction, KeepDim keep) const {
  return levin::std(*this, dims, correction, keep);
}
Tensor Tensor::norm(double p, Dims dims, KeepDim keep) const { return levin::norm(*this, p, dims, keep); }
Tensor Tensor::any(Dims dims, KeepDim keep) const { return levin::any(*this, dims, keep); }
Tensor Tensor::all(Dims dims, KeepDim keep) const { return levin::all(*this, dims, keep); }
Tensor Tensor::argmax(std::optional<std::int64_t> dim, KeepDim keep) const { return levin::argmax(*this, dim, keep); }
Tensor Tensor::argmin(std::optional<std::int64_t> dim, KeepDim keep) const { return levin::argmin(*this, dim, keep); }
ValuesIndices Tensor::max(std::int64_t dim, KeepDim keep) const { return levin::max(*this, dim, keep); }
ValuesIndices Tensor::min(std::int64_t dim, KeepDim keep) const { return levin::min(*this, dim, keep); }
Tensor Tensor::cumsum(std::int64_t dim) const { return levin::cumsum(*this, dim); }

}  // namespace levin
