// Reductions of elements that an index sends to one place. Sums and means are scatter_add. Products, and extremes on a
// device, join the elements of a place in log2 n steps, after a sort by place: the derivatives of products are right
// where elements are 0. Extremes on the CPU go through the elements in order.
#include <algorithm>
#include <array>
#include <limits>
#include <tuple>
#include <vector>

#include "autograd/autocast.h"
#include "autograd/op_table.h"
#include "autograd/ops/index/dims.h"
#include "kernels/executor/dispatch.h"
#include "kernels/index/index.cuh"
#include "levin/ops.h"

namespace levin {
namespace {

Tensor flat(const Tensor& x) { return reshape(x, {x.numel()}); }

// src may be larger than the index: the part that the index reads.
Tensor front(const Tensor& src, const Shape& shape) {
  Tensor part = src;
  for (int d = 0; d < shape.rank(); ++d) {
    if (part.shape()[d] != shape[d]) part = narrow(part, d, 0, shape[d]);
  }
  return part;
}

// For each element of the index its place in x, flattened: i64 [index.numel()].
Tensor places_of(const Tensor& x, int dim, const Tensor& index) {
  const Tensor all = reshape(arange(x.numel(), x.device()), Dims(x.shape().dims()));
  return flat(gather(all, dim, index));
}

// true where a place gets an element.
Tensor touched(const Tensor& x, int dim, const Tensor& index) {
  const Tensor none = zeros(x.shape(), x.device(), DType::b8);
  return scatter(none, dim, index, ones(index.shape(), x.device(), DType::b8));
}

// The elements of each place, joined: those of a place stand beside each other in sorted order, and after steps of 1,
// 2, 4, ... the last one of them has all. Where the place of an element changes, nothing is joined.
struct Groups {
  Tensor order, place;  // of the sorted elements
  Tensor is_last;

  explicit Groups(const Tensor& places) {
    const ValuesIndices sorted = sort(places);
    place = sorted.values;
    order = sorted.indices;
    const std::int64_t n = places.numel();
    const Tensor end = ones({std::min<std::int64_t>(n, 1)}, places.device(), DType::b8);
    is_last = n < 2 ? end : cat({ne(narrow(place, 0, 1, n - 1), narrow(place, 0, 0, n - 1)), end});
  }
  template <class F>
  [[nodiscard]] Tensor joined(const Tensor& elements, const F& join) const {
    Tensor y = index_select(elements, 0, order);
    const std::int64_t n = y.numel();
    for (std::int64_t step = 1; step < n; step *= 2) {
      const Tensor earlier = narrow(y, 0, 0, n - step), later = narrow(y, 0, step, n - step);
      const Tensor one_place = eq(narrow(place, 0, 0, n - step), narrow(place, 0, step, n - step));
      y = cat({narrow(y, 0, 0, step), where(one_place, join(earlier, later), later)});
    }
    return y;
  }
};

// Writes what Groups joined. Elements that are not the last of their place go to one more place, which is cut.
Tensor spread(const Tensor& x, const Groups& groups, const Tensor& joined) {
  const std::int64_t n = x.numel();
  const Tensor to = masked_fill(groups.place, logical_not(groups.is_last), n);
  const Tensor room = zeros({1}, x.device(), x.dtype());
  const Tensor y = index_copy(cat({flat(x), room}), 0, to, joined);
  return reshape(narrow(y, 0, 0, n), Dims(x.shape().dims()));
}

// x, which counts as an element of each place or does not, joined with the elements by a maximum or minimum.
template <bool kMax>
struct ScatterExtreme {
  static constexpr OpInfo info{.name = kMax ? "scatter_amax" : "scatter_amin", .autocast = AutocastPolicy::widest};
  int dim;
  IncludeSelf include;
  SavedInput x{}, index{}, src{};
  SavedOutput y{};
  auto saved_outputs() { return std::tie(y); }

  Tensor forward(const Tensor& x_, const Tensor& index_, const Tensor& src_) {
    x = x_;
    index = index_;
    src = src_;
    const Tensor out = x_.device().is_cpu() ? in_order(x_, index_, src_) : by_groups(x_, index_, src_);
    y = out;
    return out;
  }
  [[nodiscard]] Tensor in_order(const Tensor& x_, const Tensor& index_, const Tensor& src_) const {
    Tensor out;
    const Tensor at = index_.contiguous();
    dispatch_dtype(info, x_, kNumbers, [&]<class T>(T) {
      using W = std::conditional_t<sizeof(T) == 2, float, T>;
      using Limits = std::numeric_limits<W>;
      // What the first element of a place replaces.
      constexpr W least = Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
      constexpr W most = Limits::has_infinity ? Limits::infinity() : Limits::max();
      const Tensor start =
          include == IncludeSelf::yes ? x_ : masked_fill(x_, touched(x_, dim, index_), Scalar(kMax ? least : most));
      out = empty(x_.shape(), x_.device(), x_.dtype());
      copy_(out, start);
      const kernels::IndexWalk walk(at.shape(), dim, out.strides(), src_.strides());
      // All are inside: scatter_reduce has looked.
      (void)kernels::cpu::scatter_extreme<kMax>(Cpu{}, walk, out.size(dim), ptr<T>(out), ptr<const std::int64_t>(at),
                                                ptr<const T>(src_));
    });
    return out;
  }
  [[nodiscard]] Tensor by_groups(const Tensor& x_, const Tensor& index_, const Tensor& src_) const {
    const auto join = [](const Tensor& a, const Tensor& b) { return kMax ? maximum(a, b) : minimum(a, b); };
    const Groups groups(places_of(x_, dim, index_));
    const Tensor own = spread(x_, groups, groups.joined(flat(src_), join));
    return include == IncludeSelf::yes ? where(touched(x_, dim, index_), join(x_, own), x_) : own;
  }
  // Equal elements share the gradient.
  Grads<3> backward(const Tensor& gy, Need<3> need) {
    const Tensor &at = index.get(), &from = x.get(), hit = touched(from, dim, at), out = y.get().detach();
    Tensor own = cast(eq(from.detach(), out), gy.dtype());
    own = masked_fill(own, logical_not(hit), 1);
    if (include == IncludeSelf::no) own = masked_fill(own, hit, 0);
    const Tensor tied = cast(eq(src.get().detach(), gather(out, dim, at)), gy.dtype());
    const Tensor count = scatter_add(own, dim, at, tied), share = gy / masked_fill(count, eq(count, 0), 1);
    return {need[0] ? share * own : Tensor{}, Tensor{}, need[2] ? gather(share, dim, at) * tied : Tensor{}};
  }
};
LEVIN_OP_TABLE(ScatterExtreme<true>)
LEVIN_OP_TABLE(ScatterExtreme<false>)

Tensor widened(const Tensor& x) {
  return x.dtype() == DType::f16 || x.dtype() == DType::bf16 ? cast(x, DType::f32) : x;
}

}  // namespace

Tensor scatter_reduce(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src, ScatterReduce reduce,
                      IncludeSelf include) {
  constexpr const char* op = "scatter_reduce";
  check_dtypes_meet(op, x, src);
  check_same_device(op, x, src);
  check_defined(op, index);
  const int at = wrap_dim(op, dim, x.rank());
  check_index_type(op, x, index);
  if (index.rank() != x.rank() || src.rank() != x.rank()) {
    fail<ShapeError>(op, ": x has shape ", x.shape(), ", index ", index.shape(), " and src ", src.shape(),
                     ", expected one rank");
  }
  if (x.dtype() == DType::b8) fail<UnsupportedError>(op, ": bool; has numbers, convert x and src with to(dtype)");
  if (is_storage(x.dtype()))
    fail<UnsupportedError>(op, ": ", x.dtype(), "; has numbers, convert x and src with to(DType::i32)");
  if (reduce == ScatterReduce::mean && !is_float(x.dtype()))
    fail<UnsupportedError>(op, ": the mean of ", x.dtype(), "; has f32, f64, f16, bf16");
  if (index.numel() == 0) return x.clone();
  for (int d = 0; d < x.rank(); ++d) {
    if ((d != at && index.shape()[d] > x.shape()[d]) || index.shape()[d] > src.shape()[d]) {
      fail<ShapeError>(op, ": index ", index.shape(), " is larger than x ", x.shape(), " or src ", src.shape(),
                       " in dimension ", d);
    }
  }
  check_indices(op, index, x.shape()[at], "dimension " + text(at) + " of x " + text(x.shape()));
  const Tensor part = front(src, index.shape());
  switch (reduce) {
    case ScatterReduce::amax: return apply(ScatterExtreme<true>{at, include}, x, index, part);
    case ScatterReduce::amin: return apply(ScatterExtreme<false>{at, include}, x, index, part);
    default: break;
  }
  const Tensor wide = widened(x), elements = widened(part);
  const bool own = include == IncludeSelf::yes;
  if (reduce == ScatterReduce::prod) {
    const Groups groups(places_of(x, at, index));
    const Tensor products = groups.joined(flat(elements), [](const Tensor& a, const Tensor& b) { return a * b; });
    const Tensor start = own ? ones(x.shape(), x.device(), wide.dtype()) : wide;
    const Tensor y = spread(start, groups, products);
    return cast(own ? wide * y : y, x.dtype());
  }
  const Tensor hit = touched(x, at, index);
  const Tensor sums = scatter_add(own ? wide : masked_fill(wide, hit, 0), at, index, elements);
  if (reduce == ScatterReduce::sum) return cast(sums, x.dtype());
  const Tensor count = scatter_add(
      own ? ones(x.shape(), x.device(), wide.dtype()) : masked_fill(ones(x.shape(), x.device(), wide.dtype()), hit, 0),
      at, index, ones(index.shape(), x.device(), wide.dtype()));
  return cast(sums / count, x.dtype());
}

Tensor index_reduce(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src, ScatterReduce reduce,
                    IncludeSelf include) {
  constexpr const char* op = "index_reduce";
  check_defined(op, x, index, src);
  const int at = wrap_dim(op, dim, x.rank());
  return scatter_reduce(x, at, index_of_rows(op, x, at, index, src), src, reduce, include);
}

}  // namespace levin
