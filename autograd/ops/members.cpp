// The members of Tensor that are ops.
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <vector>

#include "levin/ops.h"

namespace levin {

namespace {

// How many dimensions a tensor among the indices stands for.
int indexed_by(const Tensor& places) { return places.dtype() == DType::b8 ? places.rank() : 1; }

}  // namespace

Tensor Tensor::operator[](std::int64_t i) const { return levin::select(*this, 0, i); }
Tensor Tensor::operator[](const Slice& elements) const { return index({elements}); }
Tensor Tensor::operator[](const Tensor& places) const { return levin::index(*this, {places}); }

Tensor Tensor::index(std::initializer_list<Index> at) const {
  using Kind = Index::Kind;
  int named = 0, ellipses = 0;
  for (const Index& i : at) {
    named += i.kind == Kind::number || i.kind == Kind::slice;
    if (i.kind == Kind::tensor) named += indexed_by(i.tensor);
    ellipses += i.kind == Kind::ellipsis;
  }
  if (named > rank())
    fail<IndexError>("index: ", named, " dimensions are indexed, expected at most ", rank(), " for shape ", shape());
  if (ellipses > 1) fail<IndexError>("index: kEllipsis is given ", ellipses, " times, expected once");
  const int left = rank() - named;
  Tensor x = *this;
  Tensors places;  // one for each dimension of x up to `covered`, but that a mask stands for several
  int d = 0, covered = 0;
  for (const Index& i : at) {
    switch (i.kind) {
      case Kind::number: x = levin::select(x, d, i.number); break;
      case Kind::slice:
        x = levin::slice(x, d, i.slice.begin.value_or(0),
                         i.slice.end.value_or(std::numeric_limits<std::int64_t>::max()), i.slice.step);
        ++d;
        break;
      case Kind::tensor:
        for (; covered < d; ++covered) places.emplace_back();
        places.push_back(i.tensor);
        covered = d += indexed_by(i.tensor);
        break;
      case Kind::new_axis: x = levin::unsqueeze(x, d++); break;
      case Kind::ellipsis: d += left; break;
    }
  }
  return places.empty() ? x : levin::index(x, places);
}

Tensor Tensor::view(Dims shape) const { return levin::view(*this, shape); }
Tensor Tensor::reshape(Dims shape) const { return levin::reshape(*this, shape); }
Tensor Tensor::flatten(std::int64_t begin, std::int64_t end) const { return levin::flatten(*this, begin, end); }
Tensor Tensor::unflatten(std::int64_t dim, Dims sizes) const { return levin::unflatten(*this, dim, sizes); }
Tensor Tensor::squeeze(Dims dims) const { return levin::squeeze(*this, dims); }
Tensor Tensor::unsqueeze(std::int64_t dim) const { return levin::unsqueeze(*this, dim); }
Tensor Tensor::transpose(std::int64_t dim0, std::int64_t dim1) const { return levin::transpose(*this, dim0, dim1); }
Tensor Tensor::t() const { return levin::t(*this); }
Tensor Tensor::permute(Dims order) const { return levin::permute(*this, order); }
Tensor Tensor::movedim(Dims source, Dims destination) const { return levin::movedim(*this, source, destination); }
Tensor Tensor::expand(const Shape& shape) const { return levin::expand(*this, shape); }
Tensor Tensor::select(std::int64_t dim, std::int64_t i) const { return levin::select(*this, dim, i); }
Tensor Tensor::slice(std::int64_t dim, std::int64_t begin, std::int64_t end, std::int64_t step) const {
  return levin::slice(*this, dim, begin, end, step);
}
Tensor Tensor::narrow(std::int64_t dim, std::int64_t begin, std::int64_t length) const {
  return levin::narrow(*this, dim, begin, length);
}
Tensor Tensor::diagonal(std::int64_t offset, std::int64_t dim0, std::int64_t dim1) const {
  return levin::diagonal(*this, offset, dim0, dim1);
}
Tensors Tensor::split(std::int64_t size, std::int64_t dim) const { return levin::split(*this, size, dim); }
Tensors Tensor::chunk(std::int64_t chunks, std::int64_t dim) const { return levin::chunk(*this, chunks, dim); }
Tensors Tensor::unbind(std::int64_t dim) const { return levin::unbind(*this, dim); }

Tensor Tensor::repeat(Dims times) const { return levin::repeat(*this, times); }
Tensor Tensor::tile(Dims times) const { return levin::tile(*this, times); }
Tensor Tensor::flip(Dims dims) const { return levin::flip(*this, dims); }
Tensor Tensor::roll(Dims shifts, Dims dims) const { return levin::roll(*this, shifts, dims); }
Tensor Tensor::tril(std::int64_t diagonal) const { return levin::tril(*this, diagonal); }
Tensor Tensor::triu(std::int64_t diagonal) const { return levin::triu(*this, diagonal); }
Tensor Tensor::gather(std::int64_t dim, const Tensor& index) const { return levin::gather(*this, dim, index); }
Tensor Tensor::scatter(std::int64_t dim, const Tensor& index, const Tensor& src) const {
  return levin::scatter(*this, dim, index, src);
}
Tensor Tensor::scatter_add(std::int64_t dim, const Tensor& index, const Tensor& src) const {
  return levin::scatter_add(*this, dim, index, src);
}
Tensor Tensor::index_select(std::int64_t dim, const Tensor& index) const {
  return levin::index_select(*this, dim, index);
}
Tensor Tensor::masked_fill(const Tensor& mask, Scalar value) const { return levin::masked_fill(*this, mask, value); }
Tensor Tensor::masked_fill(const Tensor& mask, const Tensor& value) const {
  return levin::masked_fill(*this, mask, value);
}
Tensor Tensor::masked_select(const Tensor& mask) const { return levin::masked_select(*this, mask); }
Tensor Tensor::nonzero() const { return levin::nonzero(*this); }
ValuesIndices Tensor::sort(std::int64_t dim, Order order) const { return levin::sort(*this, dim, order); }
Tensor Tensor::argsort(std::int64_t dim, Order order) const { return levin::argsort(*this, dim, order); }
ValuesIndices Tensor::topk(std::int64_t k, std::int64_t dim, Order order) const {
  return levin::topk(*this, k, dim, order);
}

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
Tensor Tensor::logsumexp(Dims dims, KeepDim keep) const { return levin::logsumexp(*this, dims, keep); }
Tensor Tensor::any(Dims dims, KeepDim keep) const { return levin::any(*this, dims, keep); }
Tensor Tensor::all(Dims dims, KeepDim keep) const { return levin::all(*this, dims, keep); }
Tensor Tensor::argmax(std::optional<std::int64_t> dim, KeepDim keep) const { return levin::argmax(*this, dim, keep); }
Tensor Tensor::argmin(std::optional<std::int64_t> dim, KeepDim keep) const { return levin::argmin(*this, dim, keep); }
Tensor Tensor::max() const { return levin::max(*this); }
Tensor Tensor::min() const { return levin::min(*this); }
Tensor Tensor::median() const { return levin::median(*this); }
ValuesIndices Tensor::max(std::int64_t dim, KeepDim keep) const { return levin::max(*this, dim, keep); }
ValuesIndices Tensor::min(std::int64_t dim, KeepDim keep) const { return levin::min(*this, dim, keep); }
ValuesIndices Tensor::median(std::int64_t dim, KeepDim keep) const { return levin::median(*this, dim, keep); }
Tensor Tensor::cumsum(std::int64_t dim) const { return levin::cumsum(*this, dim); }
Tensor Tensor::cumprod(std::int64_t dim) const { return levin::cumprod(*this, dim); }
Tensor Tensor::softmax(std::int64_t dim) const { return levin::softmax(*this, dim); }
Tensor Tensor::log_softmax(std::int64_t dim) const { return levin::log_softmax(*this, dim); }

Tensor Tensor::matmul(const Tensor& other) const { return levin::matmul(*this, other); }
Tensor Tensor::pow(const Tensor& y) const { return levin::pow(*this, y); }
Tensor Tensor::pow(Scalar y) const { return levin::pow(*this, y); }
Tensor Tensor::clamp(std::optional<Scalar> low, std::optional<Scalar> high) const {
  return levin::clamp(*this, low, high);
}
Tensor Tensor::abs() const { return levin::abs(*this); }
Tensor Tensor::sign() const { return levin::sign(*this); }
Tensor Tensor::square() const { return levin::square(*this); }
Tensor Tensor::sqrt() const { return levin::sqrt(*this); }
Tensor Tensor::rsqrt() const { return levin::rsqrt(*this); }
Tensor Tensor::reciprocal() const { return levin::reciprocal(*this); }
Tensor Tensor::exp() const { return levin::exp(*this); }
Tensor Tensor::expm1() const { return levin::expm1(*this); }
Tensor Tensor::log() const { return levin::log(*this); }
Tensor Tensor::log1p() const { return levin::log1p(*this); }
Tensor Tensor::log2() const { return levin::log2(*this); }
Tensor Tensor::sin() const { return levin::sin(*this); }
Tensor Tensor::cos() const { return levin::cos(*this); }
Tensor Tensor::tanh() const { return levin::tanh(*this); }
Tensor Tensor::erf() const { return levin::erf(*this); }
Tensor Tensor::floor() const { return levin::floor(*this); }
Tensor Tensor::ceil() const { return levin::ceil(*this); }
Tensor Tensor::round() const { return levin::round(*this); }
Tensor Tensor::relu() const { return levin::relu(*this); }
Tensor Tensor::sigmoid() const { return levin::sigmoid(*this); }
Tensor Tensor::isnan() const { return levin::isnan(*this); }
Tensor Tensor::isinf() const { return levin::isinf(*this); }
Tensor Tensor::isfinite() const { return levin::isfinite(*this); }

}  // namespace levin
