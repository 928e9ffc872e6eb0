// Segments and sparse products. The sums are each other's derivatives: those of spmm are spmm of the transpose and
// sddmm, those of sddmm are two spmm. The extremes differentiate through the positions where they were found.
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "kernels/executor/dispatch.h"
#include "kernels/sparse/segment.cuh"
#include "kernels/sparse/spmm.cuh"

// Nothing below is a hot loop: an op on a graph takes longer than its checks and its record. Built for size.
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

using kernels::Bits;
using kernels::CsrView;
using kernels::Heads;

// Elements of one row of x [n, ...].
std::int64_t width_of(const Tensor& x) {
  std::int64_t width = 1;
  for (int d = 1; d < x.rank(); ++d) width *= x.shape()[d];
  return width;
}
[[gnu::noinline]] Heads heads_of(const Tensor& value, const Tensor& x) {
  const std::int64_t heads = value.defined() && value.rank() == 2 ? value.shape()[1] : 1;
  return {heads, heads == 0 ? 0 : width_of(x) / heads};
}
// x by heads: [n, features] beside values [E], [n, H, features] beside [E, H].
[[gnu::noinline]] Tensor by_heads(const Tensor& x, const Tensor& value, const Heads& h) {
  const std::int64_t n = x.shape()[0];
  return reshape(x, value.rank() == 2 ? Dims{n, h.heads, h.inner} : Dims{n, h.inner});
}

// 1 / max(entries, 1) of each row, a factor of x [rows, ...].
Tensor shares_of(const Tensor& crow, const Tensor& x) {
  const std::int64_t n = crow.numel() - 1;
  const Tensor count = narrow(crow, 0, 1, n) - narrow(crow, 0, 0, n);
  const Tensor wide = clamp(count, 1, std::nullopt).to(x.dtype() == DType::f64 ? DType::f64 : DType::f32);
  Shape shape = x.shape();
  for (int d = 1; d < shape.rank(); ++d) shape = shape.with(d, 1);
  return reshape(reciprocal(wide).to(x.dtype()), Dims(shape.dims()));
}

constexpr Names kSegments{"segment_reduce", "segment_reduce: offsets must rise from 0 to the number of rows of x"};
constexpr Names kSpmm{"spmm", "spmm: crow must rise from 0 to the number of entries"};
constexpr const char* kSddmmOffsets = "sddmm: crow must rise from 0 to the number of entries";
constexpr const char* kSoftmaxOffsets = "segment_softmax: offsets must rise from 0 to the number of rows of x";
constexpr const char* kGatherOffsets = "gather_csr: offsets must rise from 0 to entries";

void check_has_rows(const char* op, const char* what, const Tensor& x) {
  if (x.rank() == 0) refuse_shape(op, what, x.shape(), "[rows, ...]");
}

// ---- Sums and means

Tensor sum_of_rows(const Names& names, const Csr& a, std::int64_t longest_row, const Tensor& value, const Tensor& x,
                   bool mean) {
  Tensor y = empty(x.shape().with(0, a.rows()), x.device(), x.dtype());
  const DensePattern p(a, a.col.defined() ? a.entries() : x.shape()[0], longest_row);
  const Tensor v = DensePattern::dense(value), dense = x.contiguous();
  const Heads h = heads_of(value, x);
  dispatch(OpInfo{.name = names.op}, x, kFloats,
           overloaded{[&]<class T>(const Cpu& on, T) {
                        kernels::cpu::spmm<T>(on, p.view, values_of<T>(v), ptr<const T>(dense), ptr<T>(y), h, mean);
                      },
                      [&]<class T>(const Gpu& on, T) {
                        kernels::gpu::spmm<T>(on, names.op, names.offsets, p.view, values_of<T>(v), ptr<const T>(dense),
                                              ptr<T>(y), h, mean, Room(x));
                      }});
  return y;
}

struct GatherCsr {
  static constexpr OpInfo info{.name = "gather_csr"};
  std::int64_t entries, longest_row;
  SavedInput offsets{};

  Tensor forward(const Tensor& x, const Tensor& offsets_) {
    offsets = offsets_;
    Tensor y = empty(x.shape().with(0, entries), x.device(), x.dtype());
    const DensePattern p(Csr{.crow = offsets_}, entries, longest_row);
    const Tensor dense = x.contiguous();
    const std::int64_t width = width_of(x);
    dispatch(info, x, kMoved,
             overloaded{[&]<class T>(const Cpu& on, T) {
                          kernels::cpu::gather_csr(on, p.view, ptr<const Bits<T>>(dense), ptr<Bits<T>>(y), width);
                        },
                        [&]<class T>(const Gpu& on, T) {
                          kernels::gpu::gather_csr(on, kGatherOffsets, p.view, ptr<const Bits<T>>(dense),
                                                   ptr<Bits<T>>(y), width, Room(x));
                        }});
    return y;
  }
  Grads<2> backward(const Tensor& gy, Need<2>);
};

struct Sddmm {
  static constexpr OpInfo info{.name = "sddmm", .autocast = AutocastPolicy::widest};
  SavedCsr a;
  SavedInput x{}, z{};

  Tensor forward(const Tensor& x_, const Tensor& z_);
  Grads<2> backward(const Tensor& gy, Need<2> need);
};

// Segments are rows without columns.
struct Spmm {
  static constexpr OpInfo info{.name = "spmm", .autocast = AutocastPolicy::widest};
  bool mean;
  SavedCsr a;
  Names names;
  std::int64_t entries = 0;
  SavedInput value{}, x{};  // x where there are values: only their gradient reads it

  Tensor forward(const Tensor& value_, const Tensor& x_) {
    value = value_;
    entries = x_.shape()[0];
    const Csr of = a.get();
    if (value_.defined()) {
      x = x_;
      FlopCounter::count(info.name, {2, of.entries(), width_of(x_)});
    }
    return sum_of_rows(names, of, a.longest_row, value_, x_, mean);
  }
  Grads<2> backward(const Tensor& gy, Need<2> need) {
    const Csr of = a.get();
    const Tensor g = mean ? gy * shares_of(of.crow, gy) : gy;
    Grads<2> grads;
    if (need[0]) {
      const Heads h = heads_of(value.get(), x.get());
      grads[0] = apply(Sddmm{a}, by_heads(g, value.get(), h), by_heads(x.get(), value.get(), h));
    }
    if (need[1]) {
      grads[1] = of.col.defined() ? apply(Spmm{false, SavedCsr(swapped(of)), kSpmm}, value.get(), g)
                                  : apply(GatherCsr{entries, a.longest_row}, g, of.crow);
    }
    return grads;
  }
};
LEVIN_OP_TABLE(Spmm)

Grads<2> GatherCsr::backward(const Tensor& gy, Need<2>) {
  return {apply(Spmm{false, SavedCsr(offsets.get(), longest_row), kSegments}, Tensor{}, gy)};
}
LEVIN_OP_TABLE(GatherCsr)

Tensor products(const OpInfo& info, const Csr& a, std::int64_t longest_row, const Tensor& x_, const Tensor& z_) {
  if (is_widened(x_)) return products(info, a, longest_row, wide(x_), wide(z_)).to(x_.dtype());
  const DensePattern p(a, a.entries(), longest_row);
  const Heads h{x_.rank() == 3 ? x_.shape()[1] : 1, x_.shape().back()};
  Tensor y = empty(x_.rank() == 3 ? Shape{a.entries(), h.heads} : Shape{a.entries()}, x_.device(), x_.dtype());
  const Tensor left = x_.contiguous(), right = z_.contiguous();
  dispatch(info, x_, kFloats,
           overloaded{[&]<class T>(const Cpu& on, T) {
                        if constexpr (sizeof(T) > 2)
                          kernels::cpu::sddmm<T>(on, p.view, ptr<const T>(left), ptr<const T>(right), ptr<T>(y), h);
                      },
                      [&]<class T>(const Gpu& on, T) {
                        kernels::gpu::sddmm<T>(on, info.name, kSddmmOffsets, p.view, ptr<const T>(left),
                                               ptr<const T>(right), ptr<T>(y), h, Room(x_));
                      }});
  return y;
}
Tensor Sddmm::forward(const Tensor& x_, const Tensor& z_) {
  x = x_;
  z = z_;
  Tensor y = products(info, a.get(), a.longest_row, x_, z_);
  FlopCounter::count(info.name, {2, y.numel(), x_.shape().back()});
  return y;
}
Grads<2> Sddmm::backward(const Tensor& gy, Need<2> need) {
  Grads<2> grads;
  if (need[0]) grads[0] = apply(Spmm{false, a, kSpmm}, gy, z.get());
  if (need[1]) grads[1] = apply(Spmm{false, SavedCsr(swapped(a.get())), kSpmm}, gy, x.get());
  return grads;
}
LEVIN_OP_TABLE(Sddmm)

// ---- The largest and the smallest

// The second result is the entry of each element, i64, -1 where the row has none.
std::array<Tensor, 2> extreme_of_rows(const Names& names, const Csr& a, std::int64_t longest_row, const Tensor& value,
                                      const Tensor& x, bool largest) {
  Tensor y = empty(x.shape().with(0, a.rows()), x.device(), x.dtype()), at = empty(y.shape(), y.device(), DType::i64);
  const DensePattern p(a, a.col.defined() ? a.entries() : x.shape()[0], longest_row);
  const Tensor v = DensePattern::dense(value), dense = x.contiguous();
  const Heads h = heads_of(value, x);
  dispatch(OpInfo{.name = names.op}, x, kFloats,
           overloaded{[&]<class T>(const Cpu& on, T) {
                        kernels::cpu::spmm_extreme<T>(on, p.view, values_of<T>(v), ptr<const T>(dense), ptr<T>(y),
                                                      ptr<std::int64_t>(at), h, largest);
                      },
                      [&]<class T>(const Gpu& on, T) {
                        kernels::gpu::spmm_extreme<T>(on, names.op, names.offsets, p.view, values_of<T>(v),
                                                      ptr<const T>(dense), ptr<T>(y), ptr<std::int64_t>(at), h, largest,
                                                      Room(x));
                      }});
  return {y, at};
}

struct SpmmExtreme {
  static constexpr OpInfo info{.name = "spmm_extreme", .autocast = AutocastPolicy::widest};
  bool largest;
  SavedCsr a;
  Names names;
  SavedInput value{}, x{};
  Stash arg{};

  std::array<Tensor, 2> forward(const Tensor& value_, const Tensor& x_) {
    value = value_;
    x = x_;
    std::array<Tensor, 2> found = extreme_of_rows(names, a.get(), a.longest_row, value_, x_, largest);
    arg = found[1];
    return found;
  }
  // The same values, read from the places where they were found.
  static Tensor reference(const std::array<Tensor, 2>& in, const Csr& a, const Tensor& arg) {
    const auto& [value, x] = in;
    const Heads h = heads_of(value, x);
    const std::int64_t rows = arg.shape()[0], width = h.width();
    const Tensor at = reshape(clamp(arg, 0, std::nullopt), {rows, width}), flat = reshape(at, -1);
    const Tensor column = a.col.defined() ? reshape(index_select(a.col, 0, flat).to(DType::i64), {rows, width}) : at;
    Tensor y = gather(reshape(x, {x.shape()[0], width}), 0, column);
    if (value.defined()) {
      const auto swapped = [&](const Tensor& t, std::int64_t p, std::int64_t q) {
        return permute(reshape(t, {rows, p, q}), {0, 2, 1});
      };
      const Tensor entry = a.edge.defined() ? index_select(a.edge, 0, flat).to(DType::i64) : flat;
      const Tensor of = reshape(swapped(entry, h.heads, h.inner), {rows * h.inner, h.heads});
      const Tensor v = gather(reshape(value, {value.shape()[0], h.heads}), 0, of);
      y = y * reshape(swapped(v, h.inner, h.heads), {rows, width});
    }
    return reshape(masked_fill(y, reshape(lt(arg, 0), {rows, width}), 0), Dims(arg.shape().dims()));
  }
  Grads<2> backward(const Tensor& gy, const Tensor&, Need<2> need) {
    const Csr of = a.get();
    const std::array<Tensor, 2> in{value.get(), x.get()};
    if (arg.numel() == 0 || x.get().numel() == 0 || (of.col.defined() && of.col.numel() == 0)) {
      Grads<2> none;
      for (std::size_t i = 0; i < 2; ++i)
        if (need[i]) none[i] = zeros_like(in[i]);
      return none;
    }
    return vjp<2>([&](auto& i) { return reference(i, of, arg); }, in, std::array{gy}, need);
  }
};
LEVIN_OP_TABLE(SpmmExtreme)

// ---- Softmax of segments

struct SegmentSoftmaxBackward {
  static constexpr OpInfo info{.name = "segment_softmax_backward"};
  std::int64_t longest_row;
  SavedInput gy{}, y{}, offsets{};

  Tensor forward(const Tensor& gy_, const Tensor& y_, const Tensor& offsets_) {
    gy = gy_;
    y = y_;
    offsets = offsets_;
    return run(gy_, y_, offsets_);
  }
  [[nodiscard]] Tensor run(const Tensor& gy_, const Tensor& y_, const Tensor& offsets_) const {
    if (is_widened(y_)) return run(wide(gy_), wide(y_), offsets_).to(y_.dtype());
    Tensor gx = empty(y_.shape(), y_.device(), y_.dtype());
    const DensePattern p(Csr{.crow = offsets_}, y_.shape()[0], longest_row);
    const Tensor g = gy_.contiguous(), out = y_.contiguous();
    const std::int64_t width = width_of(y_);
    dispatch(info, y_, kFloats,
             overloaded{[&]<class T>(const Cpu& on, T) {
                          if constexpr (sizeof(T) > 2)
                            kernels::cpu::segment_softmax_backward<T>(on, p.view, ptr<const T>(g), ptr<const T>(out),
                                                                      ptr<T>(gx), width);
                        },
                        [&]<class T>(const Gpu& on, T) {
                          kernels::gpu::segment_softmax_backward<T>(on, kSoftmaxOffsets, p.view, ptr<const T>(g),
                                                                    ptr<const T>(out), ptr<T>(gx), width, Room(y_));
                        }});
    return gx;
  }
  static Tensor reference(const Tensor& g, const Tensor& y, const Tensor& offsets) {
    return y * (g - gather_csr(segment_reduce(g * y, offsets), offsets, y.shape()[0]));
  }
  Grads<3> backward(const Tensor& gg, NeedMask need) {
    const Grads<2> grads = vjp<2>([&](auto& in) { return reference(in[0], in[1], offsets.get()); },
                                  std::array{gy.get(), y.get()}, std::array{gg}, need);
    return {grads[0], grads[1], Tensor{}};
  }
};
LEVIN_OP_TABLE(SegmentSoftmaxBackward)

struct SegmentSoftmax {
  static constexpr OpInfo info{.name = "segment_softmax", .autocast = AutocastPolicy::full};
  std::int64_t longest_row;
  SavedInput offsets{};
  SavedOutput y{};

  Tensor forward(const Tensor& x, const Tensor& offsets_) {
    offsets = offsets_;
    const Tensor out = run(x, offsets_);
    y = out;
    return out;
  }
  [[nodiscard]] Tensor run(const Tensor& x, const Tensor& offsets_) const {
    if (is_widened(x)) return run(wide(x), offsets_).to(x.dtype());
    Tensor out = empty(x.shape(), x.device(), x.dtype());
    const DensePattern p(Csr{.crow = offsets_}, x.shape()[0], longest_row);
    const Tensor dense = x.contiguous();
    const std::int64_t width = width_of(x);
    dispatch(info, x, kFloats,
             overloaded{[&]<class T>(const Cpu& on, T) {
                          if constexpr (sizeof(T) > 2)
                            kernels::cpu::segment_softmax<T>(on, p.view, ptr<const T>(dense), ptr<T>(out), width);
                        },
                        [&]<class T>(const Gpu& on, T) {
                          kernels::gpu::segment_softmax<T>(on, kSoftmaxOffsets, p.view, ptr<const T>(dense),
                                                           ptr<T>(out), width, Room(x));
                        }});
    return out;
  }
  auto saved_outputs() { return std::tie(y); }
  Grads<2> backward(const Tensor& gy, NeedMask) {
    return {apply(SegmentSoftmaxBackward{longest_row}, gy, y.get(), offsets.get())};
  }
};
LEVIN_OP_TABLE(SegmentSoftmax)

Tensor reduced(const SavedCsr& a, const Tensor& value, const Tensor& x, Reduce reduce, const Names& names) {
  if (reduce == Reduce::sum || reduce == Reduce::mean) return apply(Spmm{reduce == Reduce::mean, a, names}, value, x);
  return apply(SpmmExtreme{reduce == Reduce::max, a, names}, value, x)[0];
}

// ---- Segments: the offsets of a pattern that was examined are not examined again.

Tensor segment_reduce_of(const Tensor& x, const Tensor& offsets, std::int64_t longest_row, Reduce reduce) {
  check_has_rows("segment_reduce", "x", x);
  check_segments("segment_reduce", offsets, x.shape()[0], longest_row, x);
  return reduced(SavedCsr(offsets, longest_row), Tensor{}, x, reduce, kSegments);
}
Tensor gather_csr_of(const Tensor& x, const Tensor& offsets, std::int64_t longest_row, std::int64_t entries) {
  check_has_rows("gather_csr", "x", x);
  check_segments("gather_csr", offsets, entries, longest_row, x);
  if (x.shape()[0] != offsets.numel() - 1)
    refuse_shape("gather_csr", "x", x.shape(), text(offsets.numel() - 1) + " rows, as offsets has");
  return apply(GatherCsr{entries, longest_row}, x, offsets);
}
Tensor segment_softmax_of(const Tensor& x, const Tensor& offsets, std::int64_t longest_row) {
  check_has_rows("segment_softmax", "x", x);
  check_segments("segment_softmax", offsets, x.shape()[0], longest_row, x);
  return apply(SegmentSoftmax{longest_row}, x, offsets);
}
// x has a row an entry of a.
void check_entry_rows(const char* op, const Tensor& x, const Csr& a) {
  check_defined(op, x, a.crow, a.col);
  if (x.rank() == 0 || x.shape()[0] != a.entries())
    refuse_shape(op, "x", x.shape(), text(a.entries()) + " rows, one an entry");
}

}  // namespace

Tensor segment_reduce(const Tensor& x, const Tensor& offsets, Reduce reduce) {
  return segment_reduce_of(x, offsets, -1, reduce);
}
Tensor segment_reduce(const Tensor& x, const Csr& a, Reduce reduce) {
  check_entry_rows("segment_reduce", x, a);
  return segment_reduce_of(x, a.crow, longest_row_of(a), reduce);
}

Tensor gather_csr(const Tensor& x, const Tensor& offsets, std::int64_t entries) {
  if (entries < 0) fail<ShapeError>("gather_csr: entries is ", entries, ", expected at least 0");
  return gather_csr_of(x, offsets, -1, entries);
}
Tensor gather_csr(const Tensor& x, const Csr& a) {
  check_defined("gather_csr", x, a.crow, a.col);
  return gather_csr_of(x, a.crow, longest_row_of(a), a.entries());
}

Tensor segment_softmax(const Tensor& x, const Tensor& offsets) { return segment_softmax_of(x, offsets, -1); }
Tensor segment_softmax(const Tensor& x, const Csr& a) {
  check_entry_rows("segment_softmax", x, a);
  return segment_softmax_of(x, a.crow, longest_row_of(a));
}

Tensor spmm(const Csr& a, const Tensor& value, const Tensor& x, Reduce reduce) {
  check_has_rows("spmm", "x", x);
  check_csr("spmm", a, x);
  if (x.shape()[0] != a.cols) refuse_shape("spmm", "x", x.shape(), text(a.cols) + " rows, the columns of the matrix");
  if (value.defined()) {
    check_dtypes_meet("spmm", x, value);
    check_same_device("spmm", x, value);
    const bool fits = value.rank() == 1 || (value.rank() == 2 && x.rank() >= 2 && x.shape()[1] == value.shape()[1]);
    if (!fits || value.shape()[0] != a.entries())
      refuse_shape(
          "spmm", "value", value.shape(),
          "[E], or [E, H] beside x [cols, H, ...], with E = " + text(a.entries()) + " and x " + text(x.shape()));
  }
  return reduced(SavedCsr(a), value, x, reduce, kSpmm);
}

Tensor sddmm(const Csr& a, const Tensor& x, const Tensor& z) {
  check_csr("sddmm", a, x);
  check_dtypes_meet("sddmm", x, z);
  check_same_device("sddmm", x, z);
  const bool fits = (x.rank() == 2 || x.rank() == 3) && z.rank() == x.rank() && x.shape()[0] == a.rows() &&
                    z.shape()[0] == a.cols && x.shape().with(0, 0) == z.shape().with(0, 0);
  if (!fits)
    refuse_shape("sddmm", "z", z.shape(),
                 "[cols, F] beside x [rows, F], or [cols, H, F] beside [rows, H, F], with " + text(a.cols) + " cols, " +
                     text(a.rows()) + " rows and x " + text(x.shape()));
  return apply(Sddmm{SavedCsr(a)}, x, z);
}

}  // namespace levin
