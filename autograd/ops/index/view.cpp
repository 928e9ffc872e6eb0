// Views: ops without kernels whose result shares the storage of x.
#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "autograd/op_table.h"
#include "levin/ops.h"

namespace levin {
namespace {

// Note [Windows]
//
// slice, narrow, select, diagonal and unfold show some elements of x. A window names these in steps along x's
// dimensions and not in x's strides, so it holds for the gradient too, whatever the gradient's layout. Backward writes
// the gradient through the same window into zeros; the windows of unfold overlap, so backward adds there. Both are
// linear, and each is the other's derivative.
struct Geometry {
  Shape of;        // x's shape
  Shape shape;     // the result's
  Strides step{};  // result dimension d steps along x's dimension from[d], step[d] elements of it at a time
  std::array<std::int8_t, kMaxRank> from{};
  std::array<std::int8_t, kMaxRank> from2{};   // a second dimension that d steps along (diagonal), or -1
  std::array<std::int64_t, kMaxRank> start{};  // first index along each dimension of x
  bool overlaps = false;

  explicit Geometry(const Shape& s) : of(s) { from2.fill(-1); }
  [[nodiscard]] Tensor look(const Tensor& x) const {
    Strides strides;
    std::int64_t offset = x.offset();
    for (int d = 0; d < of.rank(); ++d) offset += start[static_cast<std::size_t>(d)] * x.strides()[d];
    for (int d = 0; d < shape.rank(); ++d) {
      const auto i = static_cast<std::size_t>(d);
      strides[d] = step[d] * (x.strides()[from[i]] + (from2[i] >= 0 ? x.strides()[from2[i]] : 0));
    }
    return as_strided(x, shape, strides, shape.numel() == 0 ? x.offset() : offset);
  }
};

Tensor write_through(const std::shared_ptr<const Geometry>& g, const Tensor& gy);

template <class Name>
struct Window {
  static constexpr OpInfo info{.name = Name::value};
  std::shared_ptr<const Geometry> geometry;
  Tensor forward(const Tensor& x) { return geometry->look(x); }
  Grads<1> backward(const Tensor& gy, NeedMask) { return {write_through(geometry, gy)}; }
};
struct WindowName {
  static constexpr const char* value = "window";
};
struct SliceName {
  static constexpr const char* value = "slice";
};
struct SelectName {
  static constexpr const char* value = "select";
};
struct DiagonalName {
  static constexpr const char* value = "diagonal";
};
struct UnfoldName {
  static constexpr const char* value = "unfold";
};

struct WindowBackward {
  static constexpr OpInfo info{.name = "window_backward"};
  std::shared_ptr<const Geometry> geometry;
  Tensor forward(const Tensor& gy) {
    Tensor out = zeros(geometry->of, gy.device(), gy.dtype());
    Tensor window = geometry->look(out);
    if (!geometry->overlaps) {
      copy_(window, gy);
      return out;
    }
    // Adds the windows of unfold one at a time (dimension `from` of the result): one window does not overlap itself.
    const int last = geometry->shape.rank() - 1;
    const int d = geometry->from[static_cast<std::size_t>(last)];
    for (std::int64_t i = 0; i < window.size(d); ++i) {
      Tensor part = select(window, d, i);
      add_(part, select(gy, d, i));
    }
    return out;
  }
  Grads<1> backward(const Tensor& gg, NeedMask) { return {apply(Window<WindowName>{geometry}, gg)}; }
};
Tensor write_through(const std::shared_ptr<const Geometry>& g, const Tensor& gy) {
  return apply(WindowBackward{g}, gy);
}

// All dimensions of x as they are.
std::shared_ptr<Geometry> whole(const Tensor& x) {
  auto g = std::make_shared<Geometry>(x.shape());
  g->shape = x.shape();
  for (int d = 0; d < x.rank(); ++d) {
    g->from[static_cast<std::size_t>(d)] = static_cast<std::int8_t>(d);
    g->step[d] = 1;
  }
  return g;
}
void drop_dim(Geometry& g, int d) {
  for (int k = d; k + 1 < g.shape.rank(); ++k) {
    const auto i = static_cast<std::size_t>(k);
    g.from[i] = g.from[i + 1];
    g.from2[i] = g.from2[i + 1];
    g.step[k] = g.step[k + 1];
  }
  g.shape = g.shape.removed(d);
}

struct Transpose {
  static constexpr OpInfo info{.name = "transpose"};
  int a, b;
  Tensor forward(const Tensor& x) {
    Shape shape = x.shape().with(a, x.shape()[b]).with(b, x.shape()[a]);
    Strides strides = x.strides();
    std::swap(strides[a], strides[b]);
    return as_strided(x, shape, strides, x.offset());
  }
  Grads<1> backward(const Tensor& gy, NeedMask) { return {transpose(gy, a, b)}; }
};

struct Permute {
  static constexpr OpInfo info{.name = "permute"};
  std::array<std::int64_t, kMaxRank> order;
  Tensor forward(const Tensor& x) {
    std::array<std::int64_t, kMaxRank> dims{};
    Strides strides;
    for (int d = 0; d < x.rank(); ++d) {
      const int from = static_cast<int>(order[static_cast<std::size_t>(d)]);
      dims[static_cast<std::size_t>(d)] = x.shape()[from];
      strides[d] = x.strides()[from];
    }
    return as_strided(x, Shape(std::span<const std::int64_t>(dims.data(), static_cast<std::size_t>(x.rank()))), strides,
                      x.offset());
  }
  Grads<1> backward(const Tensor& gy, NeedMask) {
    std::array<std::int64_t, kMaxRank> inverse{};
    for (int d = 0; d < gy.rank(); ++d) inverse[static_cast<std::size_t>(order[static_cast<std::size_t>(d)])] = d;
    return {permute(gy, Dims(std::span<const std::int64_t>(inverse.data(), static_cast<std::size_t>(gy.rank()))))};
  }
};

struct Expand {
  static constexpr OpInfo info{.name = "expand"};
  Shape to;
  Shape from{};
  Tensor forward(const Tensor& x) {
    from = x.shape();
    Strides strides;
    const int lead = to.rank() - x.rank();
    for (int d = lead; d < to.rank(); ++d)
      strides[d] = x.shape()[d - lead] == 1 && to[d] != 1 ? 0 : x.strides()[d - lead];
    return as_strided(x, to, strides, x.offset());
  }
  Grads<1> backward(const Tensor& gy, NeedMask) { return {sum_to(gy, from)}; }
};

// The strides that give x's elements in the same order under another shape; false when a copy is needed.
bool view_strides(const Tensor& x, const Shape& to, Strides& out) {
  if (x.is_contiguous() || x.numel() == 0) {
    out = contiguous_strides(to);
    return true;
  }
  int d = to.rank() - 1;
  // Groups of x's dimensions that are dense in each other, from the last; dimensions of `to` must cut each group
  // exactly.
  for (int end = x.rank() - 1; end >= 0;) {
    if (x.shape()[end] == 1) {
      --end;
      continue;
    }
    std::int64_t group = x.shape()[end];
    const std::int64_t step = x.strides()[end];
    int begin = end - 1;
    for (; begin >= 0; --begin) {
      if (x.shape()[begin] == 1) continue;
      if (x.strides()[begin] != step * group) break;
      group *= x.shape()[begin];
    }
    std::int64_t filled = 1;
    while (filled < group && d >= 0) {
      out[d] = step * filled;
      filled *= to[d--];
    }
    if (filled != group) return false;
    end = begin;
  }
  for (; d >= 0; --d) {
    if (to[d] != 1) return false;
    out[d] = 1;
  }
  return true;
}

// The requested shape, of as many elements as `from`, with its -1 computed.
Shape resolve(const char* op, const Shape& from, const Dims& dims) {
  std::array<std::int64_t, kMaxRank> sizes{};
  std::int64_t known = 1;
  int open = -1;
  for (int d = 0; d < dims.count(); ++d) {
    const std::int64_t size = dims[d];
    if (size == -1) {
      if (open >= 0) fail<ShapeError>(op, ": two dimensions are -1, at most one can be worked out");
      open = d;
      continue;
    }
    if (size < 0) fail<ShapeError>(op, ": dimension ", d, " is ", size, ", expected 0 or more, or one -1");
    if (__builtin_mul_overflow(known, size, &known)) fail<ShapeError>(op, ": the sizes overflow");
    sizes[static_cast<std::size_t>(d)] = size;
  }
  if (open >= 0) {
    if (known == 0 || from.numel() % known != 0) {
      fail<ShapeError>(op, ": shape ", from, " with ", from.numel(), " elements is not divisible by the given sizes' ",
                       known);
    }
    sizes[static_cast<std::size_t>(open)] = from.numel() / known;
  }
  const Shape to(std::span<const std::int64_t>(sizes.data(), static_cast<std::size_t>(dims.count())));
  if (to.numel() != from.numel()) {
    fail<ShapeError>(op, ": shape ", from, " has ", from.numel(), " elements, ", to, " has ", to.numel());
  }
  return to;
}

struct View {
  static constexpr OpInfo info{.name = "view"};
  Shape to;
  Strides strides;
  Shape from{};
  Tensor forward(const Tensor& x) {
    from = x.shape();
    return as_strided(x, to, strides, x.offset());
  }
  Grads<1> backward(const Tensor& gy, NeedMask) { return {reshape(gy, Dims(from.dims()))}; }
};

// All parts of x along a dimension as one op: backward joins their gradients once, where an op per part would fill and
// add a tensor of x's size for each part. unbind: parts of size 1 without the dimension.
template <bool kUnbind>
struct Split {
  static constexpr OpInfo info{.name = kUnbind ? "unbind" : "split"};
  int dim;
  std::vector<std::int64_t> sizes{};

  Tensors forward(const Tensor& x) {
    Tensors parts;
    parts.reserve(sizes.size());
    std::int64_t begin = 0;
    for (const std::int64_t n : sizes) {
      Strides strides = x.strides();
      if (kUnbind) {
        for (int d = dim; d + 1 < x.rank(); ++d) strides[d] = strides[d + 1];
      }
      const Shape shape = kUnbind ? x.shape().removed(dim) : x.shape().with(dim, n);
      parts.push_back(
          as_strided(x, shape, strides, shape.numel() == 0 ? x.offset() : x.offset() + begin * x.strides()[dim]));
      begin += n;
    }
    return parts;
  }
  Grads<1> backward(std::span<const Tensor> grads, NeedMask) {
    if (const Tensor whole = joined(grads); whole.defined()) return {whole};
    return {kUnbind ? stack(grads, dim) : cat(grads, dim)};
  }

 private:
  // The gradients as one view, where an op has made them beside each other: one storage, equal strides and steps.
  [[nodiscard]] Tensor joined(std::span<const Tensor> grads) const {
    if (!kUnbind || grads.size() < 2) return {};
    const Tensor& first = grads[0];
    if (!first.defined()) return {};
    const auto& of_first = first.strides().steps;
    const auto usable = [&](const Tensor& g) {
      return g.defined() && !records(g) && g.numel() > 0 && g.shares_storage(first) && g.shape() == first.shape() &&
             g.dtype() == first.dtype() &&
             std::equal(of_first.begin(), of_first.begin() + first.rank(), g.strides().steps.begin());
    };
    if (!usable(first)) return {};
    const std::int64_t step = grads[1].defined() ? grads[1].offset() - first.offset() : 0;
    for (std::size_t i = 1; i < grads.size(); ++i) {
      if (!usable(grads[i]) || step < 1 || grads[i].offset() - grads[i - 1].offset() != step) return {};
    }
    Strides strides = first.strides();
    for (int d = first.rank(); d > dim; --d) strides[d] = strides[d - 1];
    strides[dim] = step;
    const Shape shape = first.shape().inserted(dim, static_cast<std::int64_t>(grads.size()));
    return are_apart(shape, strides) ? as_strided(first, shape, strides, first.offset()) : Tensor();
  }
  // Whether no two elements of a view can lie in one place: each step passes all that smaller steps reach.
  static bool are_apart(const Shape& shape, const Strides& strides) {
    std::vector<std::pair<std::int64_t, std::int64_t>> steps;  // and sizes
    for (int d = 0; d < shape.rank(); ++d)
      if (shape[d] > 1) steps.push_back({strides[d], shape[d]});
    std::sort(steps.begin(), steps.end());
    std::int64_t reach = 0;
    for (const auto& [step, size] : steps) {
      if (step <= reach) return false;
      reach += step * (size - 1);
    }
    return true;
  }
};

LEVIN_OP_TABLE(Split<false>)
LEVIN_OP_TABLE(Split<true>)
LEVIN_OP_TABLE(Window<SliceName>)
LEVIN_OP_TABLE(Window<SelectName>)
LEVIN_OP_TABLE(Window<DiagonalName>)
LEVIN_OP_TABLE(Window<UnfoldName>)
LEVIN_OP_TABLE(Window<WindowName>)
LEVIN_OP_TABLE(WindowBackward)
LEVIN_OP_TABLE(Transpose)
LEVIN_OP_TABLE(Permute)
LEVIN_OP_TABLE(Expand)
LEVIN_OP_TABLE(View)

}  // namespace

Tensor slice(const Tensor& x, std::int64_t dim, std::int64_t begin, std::int64_t end, std::int64_t step) {
  const int d = wrap_dim("slice", dim, x.rank());
  const std::int64_t size = x.shape()[d];
  if (step < 1) fail<IndexError>("slice: the step is ", step, ", expected 1 or more; use flip for a reversed order");
  // As in Python: negative ends count from the end, and what lies outside is cut off.
  const auto clip = [size](std::int64_t i) { return std::clamp<std::int64_t>(i < 0 ? i + size : i, 0, size); };
  begin = clip(begin);
  end = std::max(clip(end), begin);
  auto g = whole(x);
  g->shape = x.shape().with(d, (end - begin) / step + ((end - begin) % step != 0));
  g->step[d] =
      std::min(step, std::max<std::int64_t>(1, size));  // a longer step is never taken, and its stride would overflow
  g->start[static_cast<std::size_t>(d)] = begin;
  return apply(Window<SliceName>{std::move(g)}, x);
}

Tensor narrow(const Tensor& x, std::int64_t dim, std::int64_t begin, std::int64_t length) {
  const int d = wrap_dim("narrow", dim, x.rank());
  const std::int64_t size = x.shape()[d];
  const std::int64_t from = begin < 0 ? begin + size : begin;
  if (from < 0 || length < 0 || from > size || length > size - from) {
    fail<IndexError>("narrow: elements ", begin, " to ", begin, " + ", length, " are asked for, dimension ", d, " has ",
                     size);
  }
  return slice(x, d, from, from + length);
}

Tensor select(const Tensor& x, std::int64_t dim, std::int64_t index) {
  const int d = wrap_dim("select", dim, x.rank());
  const std::int64_t size = x.shape()[d];
  if (index < -size || index >= size) {
    fail<IndexError>("select: index is ", index, ", expected ", -size, " to ", size - 1, "; dimension ", d, " of x ",
                     x.shape(), " has size ", size);
  }
  auto g = whole(x);
  g->start[static_cast<std::size_t>(d)] = index < 0 ? index + size : index;
  drop_dim(*g, d);
  return apply(Window<SelectName>{std::move(g)}, x);
}

Tensor diagonal(const Tensor& x, std::int64_t offset, std::int64_t dim0, std::int64_t dim1) {
  const int a = wrap_dim("diagonal", dim0, x.rank()), b = wrap_dim("diagonal", dim1, x.rank());
  if (a == b) fail<IndexError>("diagonal: both dimensions are ", a, ", expected two different ones");
  const std::int64_t rows = x.shape()[a], cols = x.shape()[b];
  offset = std::clamp(offset, -rows, cols);  // beyond is as empty, and -offset cannot overflow
  const std::int64_t length = std::max<std::int64_t>(
      0, offset >= 0 ? std::min(rows, cols - std::min(offset, cols)) : std::min(rows - std::min(-offset, rows), cols));
  auto g = whole(x);
  if (length > 0) {
    g->start[static_cast<std::size_t>(a)] = std::max<std::int64_t>(0, -offset);
    g->start[static_cast<std::size_t>(b)] = std::max<std::int64_t>(0, offset);
  }
  drop_dim(*g, std::max(a, b));
  drop_dim(*g, std::min(a, b));
  const int last = g->shape.rank();
  g->shape = g->shape.inserted(last, length);
  g->from[static_cast<std::size_t>(last)] = static_cast<std::int8_t>(a);
  g->from2[static_cast<std::size_t>(last)] = static_cast<std::int8_t>(b);
  g->step[last] = 1;
  return apply(Window<DiagonalName>{std::move(g)}, x);
}

Tensor unfold(const Tensor& x, std::int64_t dim, std::int64_t size, std::int64_t step) {
  const int d = wrap_dim("unfold", dim, x.rank());
  if (size < 1 || size > x.shape()[d])
    fail<ShapeError>("unfold: the window is ", size, ", dimension ", d, " has ", x.shape()[d]);
  if (step < 1) fail<ShapeError>("unfold: the step is ", step, ", expected 1 or more");
  step = std::min(step, x.shape()[d]);  // a longer step is never taken, and its stride would overflow
  auto g = whole(x);
  g->step[d] = step;
  g->shape = x.shape().with(d, (x.shape()[d] - size) / step + 1).inserted(x.rank(), size);
  g->from[static_cast<std::size_t>(x.rank())] = static_cast<std::int8_t>(d);
  g->step[x.rank()] = 1;
  g->overlaps = step < size;
  return apply(Window<UnfoldName>{std::move(g)}, x);
}

Tensor transpose(const Tensor& x, std::int64_t dim0, std::int64_t dim1) {
  const int rank = std::max(1, x.rank());  // as in PyTorch a tensor of rank 0 has the dimensions 0 and -1
  const int a = wrap_dim("transpose", dim0, rank), b = wrap_dim("transpose", dim1, rank);
  if (x.rank() == 0) return view(x, {});
  return apply(Transpose{a, b}, x);
}

Tensor t(const Tensor& x) {
  if (x.rank() != 2)
    fail<ShapeError>("t: x has shape ", x.shape(), ", expected 2 dimensions; use transpose or permute");
  return transpose(x, 0, 1);
}

Tensor permute(const Tensor& x, Dims order) {
  if (order.count() != x.rank())
    fail<ShapeError>("permute: ", order.count(), " dimensions are given, x has shape ", x.shape());
  Permute op{};
  if (x.rank() > 0) (void)wrap_dims("permute", order.span(), x.rank());  // each once
  for (int d = 0; d < x.rank(); ++d) op.order[static_cast<std::size_t>(d)] = wrap_dim("permute", order[d], x.rank());
  return apply(op, x);
}

Tensor expand(const Tensor& x, const Shape& shape) {
  if (shape.rank() < x.rank() || broadcast_shapes("expand", x.shape(), shape) != shape) {
    fail<ShapeError>("expand: shape ", x.shape(), " does not expand to ", shape, "; only dimensions of size 1 grow");
  }
  return apply(Expand{shape}, x);
}

Tensor view(const Tensor& x, Dims dims) {
  const Shape to = resolve("view", x.shape(), dims);
  Strides strides;
  if (!view_strides(x, to, strides)) {
    fail<ShapeError>("view: x of shape ", x.shape(), " is not laid out so that ", to, " needs no copy; use reshape");
  }
  return apply(View{to, strides}, x);
}

Tensor reshape(const Tensor& x, Dims dims) {
  const Shape to = resolve("reshape", x.shape(), dims);
  Strides strides;
  if (view_strides(x, to, strides)) return apply(View{to, strides}, x);
  return apply(View{to, contiguous_strides(to)}, x.contiguous());
}

Tensor flatten(const Tensor& x, std::int64_t begin, std::int64_t end) {
  if (x.rank() == 0) return reshape(x, {1});
  const int a = wrap_dim("flatten", begin, x.rank()), b = wrap_dim("flatten", end, x.rank());
  if (a > b) fail<IndexError>("flatten: begins at dimension ", a, " and ends at ", b);
  std::array<std::int64_t, kMaxRank> sizes{};
  std::size_t n = 0;
  for (int d = 0; d < x.rank(); ++d) {
    if (d > a && d <= b)
      sizes[n - 1] *= x.shape()[d];
    else
      sizes[n++] = x.shape()[d];
  }
  return reshape(x, Dims(std::span<const std::int64_t>(sizes.data(), n)));
}

Tensor unflatten(const Tensor& x, std::int64_t dim, Dims sizes) {
  const int at = wrap_dim("unflatten", dim, x.rank());
  if (sizes.count() == 0) fail<ShapeError>("unflatten: no size is given, expected at least one");
  const int rank = x.rank() - 1 + sizes.count();
  if (rank > kMaxRank)
    fail<ShapeError>("unflatten: dimension ", at, " of x ", x.shape(), " as ", sizes.count(), " gives ", rank,
                     " dimensions, expected at most ", kMaxRank);
  // The -1 is worked out of dim's size, which others that are 0 would hide.
  const Shape parts = resolve("unflatten", Shape{x.shape()[at]}, sizes);
  std::vector<std::int64_t> all(x.shape().begin(), x.shape().begin() + at);
  all.insert(all.end(), parts.begin(), parts.end());
  all.insert(all.end(), x.shape().begin() + at + 1, x.shape().end());
  return reshape(x, Dims(std::span<const std::int64_t>(all)));
}

Tensor squeeze(const Tensor& x, Dims dims) {
  const std::uint32_t mask = wrap_dims("squeeze", dims.span(), x.rank());
  std::array<std::int64_t, kMaxRank> sizes{};
  Strides strides;
  std::size_t n = 0;
  for (int d = 0; d < x.rank(); ++d) {
    if (x.shape()[d] == 1 && (mask >> d & 1u)) continue;
    strides.steps[n] = x.strides()[d];
    sizes[n++] = x.shape()[d];
  }
  return apply(View{Shape(std::span<const std::int64_t>(sizes.data(), n)), strides}, x);
}

Tensor unsqueeze(const Tensor& x, std::int64_t dim) {
  const int d = wrap_dim("unsqueeze", dim, x.rank() + 1);
  const Shape to = x.shape().inserted(d, 1);  // throws where there is no room
  Strides strides;
  for (int k = 0; k < to.rank(); ++k) strides[k] = k < d ? x.strides()[k] : k == d ? 1 : x.strides()[k - 1];
  return apply(View{to, strides}, x);
}

Tensors split(const Tensor& x, std::span<const std::int64_t> sizes, std::int64_t dim) {
  const int d = wrap_dim("split", dim, x.rank());
  std::int64_t total = 0;
  for (const std::int64_t s : sizes) {
    if (s < 0 || __builtin_add_overflow(total, s, &total))
      fail<ShapeError>("split: a part has size ", s, ", expected 0 or more");
  }
  if (total != x.shape()[d])
    fail<ShapeError>("split: the parts add up to ", total, ", dimension ", d, " has ", x.shape()[d]);
  if (sizes.size() <= detail::kMostOutputs) return apply(Split<false>{d, {sizes.begin(), sizes.end()}}, x);
  Tensors parts;
  std::int64_t begin = 0;
  for (const std::int64_t s : sizes) {
    parts.push_back(narrow(x, d, begin, s));
    begin += s;
  }
  return parts;
}

Tensors split(const Tensor& x, std::int64_t size, std::int64_t dim) {
  const int d = wrap_dim("split", dim, x.rank());
  if (size < 1) fail<ShapeError>("split: the part size is ", size, ", expected 1 or more");
  std::vector<std::int64_t> sizes;
  for (std::int64_t rest = x.shape()[d]; rest > 0 || sizes.empty(); rest -= sizes.back())
    sizes.push_back(std::min(size, rest));
  return split(x, sizes, d);
}

Tensors chunk(const Tensor& x, std::int64_t chunks, std::int64_t dim) {
  const int d = wrap_dim("chunk", dim, x.rank());
  if (chunks < 1) fail<ShapeError>("chunk: ", chunks, " chunks are asked for, expected 1 or more");
  const std::int64_t size = x.shape()[d];
  if (size > 0) return split(x, size / chunks + (size % chunks != 0), d);
  if (chunks > static_cast<std::int64_t>(detail::kMostOutputs))
    fail<ShapeError>("chunk: ", chunks, " chunks of an empty dimension are asked for, expected at most ",
                     detail::kMostOutputs);
  return split(x, std::vector<std::int64_t>(static_cast<std::size_t>(chunks), 0), d);
}

Tensors unbind(const Tensor& x, std::int64_t dim) {
  const int d = wrap_dim("unbind", dim, x.rank());
  const auto n = static_cast<std::size_t>(x.shape()[d]);
  if (n <= detail::kMostOutputs) return apply(Split<true>{d, std::vector<std::int64_t>(n, 1)}, x);
  Tensors parts;
  for (std::int64_t i = 0; i < x.shape()[d]; ++i) parts.push_back(select(x, d, i));
  return parts;
}

}  // namespace levin
