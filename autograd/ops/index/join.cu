// Joins of tensors, and moves of their elements as blocks: cat, pad, flip, triangles, and ops made from these.
#include <algorithm>
#include <array>
#include <vector>

#include "autograd/autocast.h"
#include "autograd/op_table.h"
#include "autograd/ops/index/dims.h"
#include "autograd/ops/index/point.h"
#include "autograd/ops/pointwise/pointwise.h"
#include "kernels/executor/dispatch.h"
#include "kernels/pointwise/box.cuh"
#include "kernels/pointwise/generate.cuh"
#include "levin/ops.h"

namespace levin {
namespace {

using kernels::Bits;
using kernels::Box;
using kernels::cpu::copy_box;  // for both executors
using kernels::cpu::generate;
using kernels::cpu::triangle;
using kernels::gpu::copy_box;
using kernels::gpu::generate;
using kernels::gpu::triangle;

// All of x, written with the strides of y, in the order of y's memory.
Box box_of(const Shape& shape, const Strides& from, const Strides& to) {
  Box box{.rank = shape.rank()};
  for (int d = 0; d < shape.rank(); ++d) {
    int place = d;
    for (; place > 0 && box.to[static_cast<std::size_t>(place - 1)] < to[d]; --place) {
      const auto i = static_cast<std::size_t>(place);
      box.size[i] = box.size[i - 1];
      box.from[i] = box.from[i - 1];
      box.to[i] = box.to[i - 1];
    }
    const auto i = static_cast<std::size_t>(place);
    box.size[i] = shape[d];
    box.from[i] = from[d];
    box.to[i] = to[d];
  }
  return box;
}

struct Cat {
  static constexpr OpInfo info{.name = "cat", .autocast = AutocastPolicy::widest};
  int dim;
  std::vector<std::int64_t> sizes{};

  Tensor forward(std::span<const Tensor> xs) {
    std::int64_t total = 0;
    for (const Tensor& x : xs) {
      sizes.push_back(x.shape()[dim]);
      total += sizes.back();
    }
    // channels_last where all lie so and not all lie so by having one channel or one pixel.
    constexpr MemoryFormat kLast = MemoryFormat::channels_last;
    const bool last =
        std::any_of(xs.begin(), xs.end(), [](const Tensor& x) { return x.suggest_memory_format() == kLast; }) &&
        std::all_of(xs.begin(), xs.end(), [](const Tensor& x) { return x.is_contiguous(kLast); });
    Tensor y =
        empty(xs[0].shape().with(dim, total), xs[0].device(), xs[0].dtype(), last ? kLast : MemoryFormat::contiguous);
    dispatch(info, y, kMoved, [&]<class T>(const auto& on, T) {
      auto* to = ptr<Bits<T>>(y);
      for (const Tensor& x : xs) {
        if (x.numel() > 0) copy_box(on, ptr<const Bits<T>>(x), to, box_of(x.shape(), x.strides(), y.strides()));
        to += x.shape()[dim] * y.strides()[dim];
      }
    });
    return y;
  }
  Tensors backward(const Tensor& gy, NeedMask need) {
    Tensors grads(sizes.size());
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      if (need[i]) grads[i] = narrow(gy, dim, begin, sizes[i]);
      begin += sizes[i];
    }
    return grads;
  }
};
LEVIN_OP_TABLE(Cat)

// Elements put before and after each dimension; negative ones crop.
struct Pads {
  std::array<std::int64_t, kMaxRank> before{}, after{};

  // From PyTorch's order: the last dimension first.
  Pads(const Tensor& x, const Dims& pads) {
    if (pads.count() % 2 != 0 || pads.count() > 2 * x.rank()) {
      fail<ShapeError>("pad: ", pads.count(), " numbers are given, expected two for each of at most ", x.rank(),
                       " dimensions of x ", x.shape());
    }
    for (int i = 0; i < pads.count() / 2; ++i) {
      const auto d = static_cast<std::size_t>(x.rank() - 1 - i);
      for (const std::int64_t n : {pads[2 * i], pads[2 * i + 1]}) {
        if (n < -kMaxDim || n > kMaxDim) fail<ShapeError>("pad: a pad is ", n, ", expected -2^40 to 2^40");
      }
      before[d] = pads[2 * i];
      after[d] = pads[2 * i + 1];
    }
  }
  [[nodiscard]] Pads negated() const {
    Pads p = *this;
    for (std::size_t d = 0; d < before.size(); ++d) {
      p.before[d] = -before[d];
      p.after[d] = -after[d];
    }
    return p;
  }
};

struct Pad {
  static constexpr OpInfo info{.name = "pad"};
  Pads pads;
  Scalar value;

  Tensor forward(const Tensor& x) {
    std::array<std::int64_t, kMaxRank> dims{};
    Shape inside = x.shape();  // what is left of x
    std::int64_t from = 0;
    for (int d = 0; d < x.rank(); ++d) {
      const auto i = static_cast<std::size_t>(d);
      dims[i] = x.shape()[d] + pads.before[i] + pads.after[i];
      inside = inside.with(
          d, x.shape()[d] + std::min<std::int64_t>(0, pads.before[i]) + std::min<std::int64_t>(0, pads.after[i]));
      from += std::max<std::int64_t>(0, -pads.before[i]) * x.strides()[d];
    }
    const Shape out(std::span<const std::int64_t>(dims.data(), static_cast<std::size_t>(x.rank())));
    Tensor y = full(out, value, x.device(), x.dtype());
    if (inside.numel() == 0) return y;
    std::int64_t to = 0;
    for (int d = 0; d < x.rank(); ++d) {
      to += std::max<std::int64_t>(0, pads.before[static_cast<std::size_t>(d)]) * y.strides()[d];
    }
    dispatch(info, x, kMoved, [&]<class T>(const auto& on, T) {
      copy_box(on, ptr<const Bits<T>>(x) + from, ptr<Bits<T>>(y) + to, box_of(inside, x.strides(), y.strides()));
    });
    return y;
  }
  Grads<1> backward(const Tensor& gy, Need<1>) { return {apply(Pad{pads.negated(), 0}, gy)}; }
};
LEVIN_OP_TABLE(Pad)

// An index tensor of n elements, element i being of(i).
template <class F>
Tensor index_of(const OpInfo& info, std::int64_t n, Device device, const F& of) {
  Tensor index = empty({n}, device, DType::i64);
  dispatch(info, index, kIndex, [&]<class T>(const auto& on, T) { generate(on, of, ptr<T>(index), n); });
  return index;
}

// The index that element i of a padded dimension reads; the dimension has n elements and `before` more in front.
struct PadSource {
  std::int64_t n, before;
  PadMode mode;
  LEVIN_HD std::int64_t operator()(std::int64_t at) const {
    const std::int64_t k = at - before;
    if (mode == PadMode::circular) return k < 0 ? k + n : k < n ? k : k - n;
    const std::int64_t nearest = k < 0 ? 0 : k < n ? k : n - 1;
    return mode == PadMode::reflect ? 2 * nearest - k : nearest;
  }
};

// Elements before and after each dimension that are copies of its own: x [in] becomes [out].
struct PadOwn {
  static constexpr OpInfo info{.name = "pad_own"};
  Pads pads;
  PadMode mode;
  Shape in, out;

  // x goes inside, then each dimension takes its pads from y itself, the last one first: with the pads of those behind
  // it, which are there, and without those in front.
  Tensor forward(const Tensor& x) {
    Tensor y = empty(out, x.device(), x.dtype());
    const Strides strides = y.strides();
    std::int64_t inside = 0;
    for (int d = 0; d < in.rank(); ++d) inside += before(d) * strides[d];
    dispatch(info, x, kMoved, [&]<class T>(const auto& on, T) {
      auto* const to = ptr<Bits<T>>(y);
      copy_box(on, ptr<const Bits<T>>(x), to + inside, box_of(in, x.strides(), strides));
      Shape done = in;
      for (int d = in.rank() - 1; d >= 0; --d) {
        inside -= before(d) * strides[d];  // where pads before d begin
        copy_pad(on, to, inside, done.with(d, before(d)), strides, d, 0);
        copy_pad(on, to, inside, done.with(d, out[d] - before(d) - in[d]), strides, d, before(d) + in[d]);
        done = done.with(d, out[d]);
      }
    });
    return y;
  }
  [[nodiscard]] std::int64_t before(int d) const { return pads.before[static_cast<std::size_t>(d)]; }
  // Pads [first, first + shape[d]) of dimension d. `base`: where y's part that has no pads in front of d begins.
  template <class On, class U>
  void copy_pad(const On& on, U* y, std::int64_t base, const Shape& shape, const Strides& to, int d,
                std::int64_t first) const {
    if (shape.numel() == 0) return;
    const std::int64_t own = before(d) + PadSource{in[d], before(d), mode}(first);
    Strides from = to;
    from[d] = mode == PadMode::reflect ? -to[d] : mode == PadMode::circular ? to[d] : 0;
    copy_box(on, static_cast<const U*>(y) + base + own * to[d], y + base + first * to[d], box_of(shape, from, to));
  }
  Grads<1> backward(const Tensor& gy, Need<1>);
};
// Each element takes the gradients of its copies.
struct PadOwnBackward {
  static constexpr OpInfo info{.name = "pad_own_backward"};
  PadOwn of;

  Tensor forward(const Tensor& gy) {
    Tensor g = gy;
    for (int d = 0; d < of.in.rank(); ++d) {
      const std::int64_t n = of.in[d];
      if (of.out[d] == n) continue;
      const Tensor index = index_of(info, of.out[d], gy.device(), PadSource{n, of.before(d), of.mode});
      g = index_add(zeros(g.shape().with(d, n), g.device(), g.dtype()), d, index, g);
    }
    return g;
  }
  Grads<1> backward(const Tensor& gg, Need<1>) { return {apply(of, gg)}; }
};
Grads<1> PadOwn::backward(const Tensor& gy, Need<1>) { return {apply(PadOwnBackward{*this}, gy)}; }
LEVIN_OP_TABLE(PadOwn)
LEVIN_OP_TABLE(PadOwnBackward)

struct Flip {
  static constexpr OpInfo info{.name = "flip"};
  std::uint32_t mask;

  Tensor forward(const Tensor& x) {
    Tensor y = empty(x.shape(), x.device(), x.dtype());
    if (x.numel() == 0) return y;
    Strides strides = x.strides();
    std::int64_t from = 0;
    for (int d = 0; d < x.rank(); ++d) {
      if (!(mask >> d & 1u)) continue;
      from += (x.shape()[d] - 1) * strides[d];
      strides[d] = -strides[d];
    }
    dispatch(info, x, kMoved, [&]<class T>(const auto& on, T) {
      copy_box(on, ptr<const Bits<T>>(x) + from, ptr<Bits<T>>(y), box_of(x.shape(), strides, y.strides()));
    });
    return y;
  }
  Grads<1> backward(const Tensor& gy, Need<1>) { return {apply(Flip{mask}, gy)}; }
};
LEVIN_OP_TABLE(Flip)

template <bool kUpper>
struct Triangle {
  static constexpr OpInfo info{.name = kUpper ? "triu" : "tril"};
  std::int64_t diagonal;

  Tensor forward(const Tensor& x) {
    const Tensor dense = x.contiguous();
    Tensor y = empty_like(dense);
    if (x.numel() == 0) return y;
    const std::int64_t rows = x.size(-2), cols = x.size(-1);
    dispatch(info, x, kMoved, [&]<class T>(const auto& on, T) {
      triangle(on, ptr<const Bits<T>>(dense), ptr<Bits<T>>(y), x.numel() / (rows * cols), rows, cols,
               std::clamp(diagonal, -rows, cols), kUpper);
    });
    return y;
  }
  Grads<1> backward(const Tensor& gy, Need<1>) { return {apply(Triangle{diagonal}, gy)}; }
};
LEVIN_OP_TABLE(Triangle<false>)
LEVIN_OP_TABLE(Triangle<true>)

template <bool kUpper>
Tensor checked_triangle(const Tensor& x, std::int64_t diagonal) {
  if (x.rank() < 2) {
    fail<ShapeError>(Triangle<kUpper>::info.name, ": x has shape ", x.shape(), ", expected at least rank 2");
  }
  return apply(Triangle<kUpper>{diagonal}, x);
}

struct RepeatSource {
  std::int64_t repeats;
  LEVIN_HD std::int64_t operator()(std::int64_t i) const { return i / repeats; }
};
constexpr OpInfo kRepeatInterleave{.name = "repeat_interleave"};

}  // namespace

Tensor cat(std::span<const Tensor> xs, std::int64_t dim) {
  if (xs.empty()) fail<ShapeError>("cat: the list of tensors is empty, expected at least one");
  const Tensor& first = xs[0];
  const int at = wrap_dim("cat", dim, first.rank());
  for (std::size_t i = 1; i < xs.size(); ++i) {
    const Tensor& x = xs[i];
    check_dtypes_meet("cat", first, x);
    check_same_device("cat", first, x);
    if (x.rank() != first.rank() || x.shape().with(at, first.shape()[at]) != first.shape()) {
      fail<ShapeError>("cat: tensor ", i, " has shape ", x.shape(), ", expected that of tensor 0 ", first.shape(),
                       " except in dimension ", at);
    }
  }
  return apply(Cat{at}, xs);
}

Tensor stack(std::span<const Tensor> xs, std::int64_t dim) {
  if (xs.empty()) fail<ShapeError>("stack: the list of tensors is empty, expected at least one");
  const int at = wrap_dim("stack", dim, xs[0].rank() + 1);
  Tensors rows;
  rows.reserve(xs.size());
  for (std::size_t i = 0; i < xs.size(); ++i) {
    check_dtypes_meet("stack", xs[0], xs[i]);
    check_same_device("stack", xs[0], xs[i]);
    if (xs[i].shape() != xs[0].shape()) {
      fail<ShapeError>("stack: tensor ", i, " has shape ", xs[i].shape(), ", expected that of tensor 0 ",
                       xs[0].shape());
    }
    rows.push_back(unsqueeze(xs[i], at));
  }
  return cat(rows, at);
}

Tensor pad(const Tensor& x, Dims pads, Scalar value) {
  const Pads p(x, pads);
  pointwise::check_scalar("pad", x, value);
  for (int d = 0; d < x.rank(); ++d) {
    const auto i = static_cast<std::size_t>(d);
    const std::int64_t cropped = std::max<std::int64_t>(0, -p.before[i]) + std::max<std::int64_t>(0, -p.after[i]);
    if (cropped > x.shape()[d]) {
      fail<ShapeError>("pad: pads ", p.before[i], " and ", p.after[i], " crop more than dimension ", d, " of x ",
                       x.shape(), " has");
    }
  }
  return apply(Pad{p, value}, x);
}

Tensor pad(const Tensor& x, Dims pads, PadMode mode) {
  if (mode == PadMode::constant) return pad(x, pads, Scalar(0));
  const Pads p(x, pads);
  for (int d = 0; d < x.rank(); ++d) {
    const auto i = static_cast<std::size_t>(d);
    const std::int64_t n = x.shape()[d], low = std::min(p.before[i], p.after[i]),
                       high = std::max(p.before[i], p.after[i]);
    if (low < 0) {
      fail<ShapeError>("pad: pads ", p.before[i], " and ", p.after[i], " of dimension ", d,
                       " must not be negative in this mode; crop with PadMode::constant or narrow");
    }
    // Reflection does not repeat the edge, and a pad wraps around once.
    const std::int64_t above = mode == PadMode::reflect ? high : mode == PadMode::circular ? high - 1 : 0;
    if (high > 0 && n <= above) {
      fail<ShapeError>("pad: dimension ", d, " of x ", x.shape(), " is too small for pads ", p.before[i], " and ",
                       p.after[i], ", expected size above ", above);
    }
  }
  Shape out = x.shape();  // checked as a whole before any work
  for (int d = 0; d < x.rank(); ++d) {
    const auto i = static_cast<std::size_t>(d);
    out = out.with(d, out[d] + p.before[i] + p.after[i]);
  }
  return out == x.shape() ? x.clone() : apply(PadOwn{p, mode, x.shape(), out}, x);
}

Tensor flip(const Tensor& x, Dims dims) {
  return apply(Flip{dims.count() == 0 ? 0u : wrap_dims("flip", dims.span(), x.rank())}, x);
}

Tensor roll(const Tensor& x, Dims shifts, Dims dims) {
  if (x.rank() == 0) return of_point(x, [&](const Tensor& line) { return roll(line, shifts, dims); });
  const bool is_flat = dims.count() == 0;
  if (shifts.count() != (is_flat ? 1 : dims.count()))
    fail<ShapeError>("roll: ", shifts.count(), " shifts for ", dims.count(),
                     " dimensions, expected one for each, or one without dimensions");
  if (is_flat) return reshape(roll(reshape(x, {x.numel()}), shifts, 0), Dims(x.shape().dims()));
  for (const std::int64_t dim : dims.span()) (void)wrap_dim("roll", dim, x.rank());  // all before any work
  Tensor y = x;
  for (int i = 0; i < dims.count(); ++i) {
    const int at = wrap_dim("roll", dims[i], x.rank());
    const std::int64_t n = x.shape()[at];
    if (n == 0 || shifts[i] % n == 0) continue;
    const std::int64_t split = n - (shifts[i] % n + n) % n;
    y = cat({narrow(y, at, split, n - split), narrow(y, at, 0, split)}, at);
  }
  return y.impl() == x.impl() ? x.clone() : y;
}

Tensor repeat_interleave(const Tensor& x, std::int64_t repeats, std::int64_t dim) {
  const int at = wrap_dim("repeat_interleave", dim, x.rank());
  if (repeats < 0) fail<ShapeError>("repeat_interleave: repeats is ", repeats, ", expected at least 0");
  if (repeats > kMaxDim / std::max<std::int64_t>(1, x.shape()[at])) {
    fail<ShapeError>("repeat_interleave: dimension ", at, " of x ", x.shape(), " repeated ", repeats,
                     " times has more than 2^40 elements");
  }
  const Shape out = x.shape().with(at, x.shape()[at] * repeats);
  return index_select(x, at, index_of(kRepeatInterleave, out[at], x.device(), RepeatSource{repeats}));
}

Tensor tril(const Tensor& x, std::int64_t diagonal) { return checked_triangle<false>(x, diagonal); }
Tensor triu(const Tensor& x, std::int64_t diagonal) { return checked_triangle<true>(x, diagonal); }

}  // namespace levin
