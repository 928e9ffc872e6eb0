// Reads and writes by several index tensors. The indexed dimensions become one, along which index_select, index_copy
// and index_add work.
#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "autograd/autocast.h"
#include "autograd/op_table.h"
#include "autograd/ops/index/dims.h"
#include "autograd/ops/pointwise/pointwise.h"
#include "levin/ops.h"

namespace levin {
namespace {

// place + index * stride, or -1 where this index or an earlier one lies outside of its dimension.
struct PlaceOf {
  const char* op;  // on the host: slots hold its pointers
  std::int64_t bound, stride;
  levin::detail::FaultSlot* faults = nullptr;  // where a kernel reports an index; the CPU looks before
  template <class I>
  LEVIN_HD I operator()(I index, I place) const {
#if defined(__CUDA_ARCH__) || defined(LEVIN_SIMT)
    if (faults && static_cast<std::uint64_t>(index) >= static_cast<std::uint64_t>(bound)) {
      kernels::report_index(faults, op, index, bound);
      return I(-1);
    }
#endif
    return place < I(0) ? I(-1) : place + index * stride;
  }
};

struct IndexPlaces {
  static constexpr OpInfo info{.name = "index"};
  PlaceOf of;

  Tensor forward(const Tensor& index, const Tensor& places) {
    Tensor y = empty(places.shape(), places.device(), DType::i64);
    dispatch(info, places, kIndex, [&]<class T>(const auto& on, T) {
      pointwise::run(on, of, pointwise::Signature<T, T, T>{}, y, index, places);
    });
    return y;
  }
};
LEVIN_OP_TABLE(IndexPlaces)

[[nodiscard]] bool is_mask(const Tensor& t) { return t.dtype() == DType::b8; }

std::int64_t product(const Shape& s, int begin, int end) {
  std::int64_t n = 1;
  for (int d = begin; d < end; ++d) n *= s[d];
  return n;
}

bool broadcasts_to(const Shape& from, const Shape& to) {
  const int lead = to.rank() - from.rank();
  if (lead < 0) return false;
  for (int d = 0; d < from.rank(); ++d) {
    if (from[d] != 1 && from[d] != to[lead + d]) return false;
  }
  return true;
}

Shape joined(std::initializer_list<std::span<const std::int64_t>> parts) {
  std::vector<std::int64_t> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return Shape(std::span<const std::int64_t>(all));
}

// The mask's dimensions are those of x from `dim` on.
void check_mask(const char* op, const Tensor& x, const Tensor& mask, std::size_t dim) {
  bool fits = mask.rank() > 0 && dim + static_cast<std::size_t>(mask.rank()) <= static_cast<std::size_t>(x.rank());
  for (int d = 0; fits && d < mask.rank(); ++d) fits = mask.shape()[d] == x.shape()[static_cast<int>(dim) + d];
  if (!fits)
    fail<ShapeError>(op, ": a mask has shape ", mask.shape(), ", expected the sizes of x ", x.shape(),
                     " from dimension ", dim, " on");
}

// One entry for each dimension of x, undefined for a whole dimension: a mask becomes the positions of its true
// elements.
Tensors by_dimension(const char* op, const Tensor& x, std::span<const Tensor> indices) {
  Tensors out;
  for (const Tensor& index : indices) {
    if (!index.defined()) {
      out.emplace_back();
    } else if (is_mask(index)) {
      check_mask(op, x, index, out.size());
      check_has_values(op, index);
      for (Tensor& t : unbind(nonzero(index), 1)) out.push_back(std::move(t));
    } else {
      out.push_back(index);
    }
  }
  return out;
}

// x seen as [outer, n, inner], where n counts the places of the indexed dimensions.
struct Placement {
  std::vector<std::int64_t> order;  // x's dimensions, the indexed ones beside each other
  Shape moved;                      // x's shape in that order
  Shape result;                     // of x at the indices
  std::int64_t outer = 1, n = 1, inner = 1;
  Tensor places;  // i64 [m]

  Placement(const char* op, const Tensor& x, std::span<const Tensor> indices) {
    check_defined(op, x);
    for (const Tensor& index : indices) {
      if (!index.defined()) continue;
      check_same_device(op, x, index);
      if (!is_mask(index)) check_index_type(op, x, index);
    }
    const Tensors at = by_dimension(op, x, indices);
    if (at.size() > static_cast<std::size_t>(x.rank()))
      fail<IndexError>(op, ": ", at.size(), " dimensions are indexed, but x ", x.shape(), " has ", x.rank());
    std::vector<std::int64_t> indexed, others;
    Shape common;
    for (std::size_t d = 0; d < static_cast<std::size_t>(x.rank()); ++d) {
      const bool is_indexed = d < at.size() && at[d].defined();
      (is_indexed ? indexed : others).push_back(static_cast<std::int64_t>(d));
      if (is_indexed) common = broadcast_shapes(op, common, at[d].shape());
    }
    if (indexed.empty()) fail<StateError>(op, ": every index is undefined, expected at least one tensor");
    const std::int64_t first = indexed.front(), count = static_cast<std::int64_t>(indexed.size());
    const bool beside = indexed.back() - first + 1 == count;
    const std::int64_t lead = beside ? first : 0;  // dimensions in front of the result's indexed ones
    order.assign(others.begin(), others.begin() + lead);
    order.insert(order.end(), indexed.begin(), indexed.end());
    order.insert(order.end(), others.begin() + lead, others.end());
    std::vector<std::int64_t> sizes;
    for (const std::int64_t d : order) sizes.push_back(x.shape()[static_cast<int>(d)]);
    moved = Shape(std::span<const std::int64_t>(sizes));
    const int from = static_cast<int>(lead), to = static_cast<int>(lead + count);
    outer = product(moved, 0, from);
    n = product(moved, from, to);
    inner = product(moved, to, moved.rank());
    const std::span<const std::int64_t> all = moved.dims();
    result =
        joined({all.first(static_cast<std::size_t>(from)), common.dims(), all.subspan(static_cast<std::size_t>(to))});
    for (const std::int64_t d : indexed) {
      const std::int64_t size = x.shape()[static_cast<int>(d)];
      check_indices(op, at[static_cast<std::size_t>(d)], size, "dimension " + text(d) + " of x " + text(x.shape()));
    }
    Tensor sum = zeros(common, x.device(), DType::i64);
    std::int64_t stride = n;
    for (const std::int64_t d : indexed) {
      const std::int64_t size = x.shape()[static_cast<int>(d)];
      stride = size == 0 ? 0 : stride / size;
      sum = apply(IndexPlaces{{op, size, stride}}, at[static_cast<std::size_t>(d)], sum);
    }
    places = reshape(sum, {sum.numel()});
  }

  [[nodiscard]] Tensor flat(const Tensor& x) const {
    return reshape(permute(x, Dims(std::span<const std::int64_t>(order))), {outer, n, inner});
  }
  [[nodiscard]] Tensor back(const Tensor& y) const {
    std::array<std::int64_t, kMaxRank> inverse{};
    for (std::size_t k = 0; k < order.size(); ++k)
      inverse[static_cast<std::size_t>(order[k])] = static_cast<std::int64_t>(k);
    return permute(reshape(y, Dims(moved.dims())), Dims(std::span<const std::int64_t>(inverse.data(), order.size())));
  }
};

void check_values(const char* op, const Tensor& x, const Tensor& values) {
  check_dtypes_meet(op, x, values);
  check_same_device(op, x, values);
}
[[noreturn]] void fail_values(const char* op, const Shape& values, const Shape& target) {
  fail<ShapeError>(op, ": values have shape ", values, ", expected one that broadcasts to ", target,
                   ", the shape of x at the indices");
}

// x where the mask, of x's first dimensions, is false; elsewhere values, which do not vary along those dimensions.
Tensor put_by_mask(const char* op, const Tensor& x, const Tensor& mask, const Tensor& values, Accumulate accumulate) {
  const Shape rest(x.shape().dims().subspan(static_cast<std::size_t>(mask.rank())));
  if (!broadcasts_to(values.shape(), rest)) fail_values(op, values.shape(), rest.inserted(0, 1));
  Tensor chosen = mask;
  while (chosen.rank() < x.rank()) chosen = unsqueeze(chosen, -1);
  return where(chosen, accumulate == Accumulate::yes ? x + values : expand(values, x.shape()), x);
}

}  // namespace

Tensor index(const Tensor& x, std::span<const Tensor> indices) {
  const Placement at("index", x, indices);
  return reshape(index_select(at.flat(x), 1, at.places), Dims(at.result.dims()));
}

Tensor index_put(const Tensor& x, std::span<const Tensor> indices, const Tensor& values, Accumulate accumulate) {
  constexpr const char* op = "index_put";
  check_values(op, x, values);
  if (indices.size() == 1 && indices[0].defined() && is_mask(indices[0])) {
    const Tensor& mask = indices[0];
    check_same_device(op, x, mask);
    check_mask(op, x, mask, 0);
    const int rest = x.rank() - mask.rank();
    const bool one = values.rank() == rest + 1 && values.shape()[0] == 1;
    if (one || values.rank() <= rest) return put_by_mask(op, x, mask, one ? squeeze(values, {0}) : values, accumulate);
  }
  const Placement at(op, x, indices);
  if (!broadcasts_to(values.shape(), at.result)) fail_values(op, values.shape(), at.result);
  const Tensor src = reshape(expand(values, at.result), {at.outer, at.places.numel(), at.inner});
  return at.back(accumulate == Accumulate::yes ? index_add(at.flat(x), 1, at.places, src)
                                               : index_copy(at.flat(x), 1, at.places, src));
}

Tensor index_put(const Tensor& x, std::span<const Tensor> indices, Scalar value, Accumulate accumulate) {
  return index_put(x, indices, pointwise::number_beside("index_put", value, x), accumulate);
}

Tensor masked_scatter(const Tensor& x, const Tensor& mask, const Tensor& src) {
  constexpr const char* op = "masked_scatter";
  check_defined(op, mask);
  if (!is_mask(mask)) fail<DTypeError>(op, ": mask is ", mask.dtype(), ", expected bool");
  check_dtypes_meet(op, x, src);
  check_same_device(op, x, src);
  check_same_device(op, x, mask);
  if (!broadcasts_to(mask.shape(), x.shape()))
    fail<ShapeError>(op, ": mask has shape ", mask.shape(), ", expected one that broadcasts to x's, ", x.shape());
  if (x.numel() == 0) return x.clone();
  const Tensor chosen = reshape(expand(mask, x.shape()), {x.numel()});
  const Tensor place = cumsum(chosen, 0) - 1;
  const std::int64_t n = src.numel();
  if (x.device().is_cpu()) {
    const std::int64_t wanted = select(place, 0, -1).item<std::int64_t>() + 1;
    if (wanted > n)
      fail<ShapeError>(op, ": mask has ", wanted, " true elements and src ", src.shape(), " has ", n,
                       " elements, expected at least as many");
    if (n == 0) return x.clone();
  } else if (n == 0) {
    fail<ShapeError>(op, ": src has no elements, expected at least one for each true element of mask");
  }
  const Tensor taken = index_select(reshape(src, {n}), 0, masked_fill(place, logical_not(chosen), 0));
  return where(expand(mask, x.shape()), reshape(taken, Dims(x.shape().dims())), x);
}

Tensor masked_fill(const Tensor& x, const Tensor& mask, const Tensor& value) {
  constexpr const char* op = "masked_fill";
  check_values(op, x, value);
  if (value.numel() != 1)
    fail<ShapeError>(op, ": value has shape ", value.shape(), ", expected one element; use where for several");
  return where(mask, reshape(value, {}), x);
}

Tensor take(const Tensor& x, const Tensor& index) {
  constexpr const char* op = "take";
  check_defined(op, x, index);
  check_index_type(op, x, index);
  check_indices(op, index, x.numel(), "x " + text(x.shape()) + ", flattened,");
  return reshape(index_select(reshape(x, {x.numel()}), 0, reshape(index, {index.numel()})), Dims(index.shape().dims()));
}

Tensor take_along_dim(const Tensor& x, const Tensor& index, std::optional<std::int64_t> dim) {
  constexpr const char* op = "take_along_dim";
  check_defined(op, x, index);
  check_index_type(op, x, index);
  if (!dim) return gather(reshape(x, {x.numel()}), 0, reshape(index, {index.numel()}));
  const int at = wrap_dim(op, *dim, x.rank());
  if (index.rank() != x.rank())
    fail<ShapeError>(op, ": index has shape ", index.shape(), ", expected rank ", x.rank(), " as x ", x.shape());
  const Shape common = broadcast_shapes(op, x.shape().with(at, 1), index.shape().with(at, 1));
  return gather(expand(x, common.with(at, x.shape()[at])), at, expand(index, common.with(at, index.shape()[at])));
}

}  // namespace levin
