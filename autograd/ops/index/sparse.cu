// Segments and sparse products. The sums are each other's derivatives: those of spmm are spmm of the transpose and
// sddmm, those of sddmm are two spmm. The extremes differentiate through the positions where they were found.
#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/executor/dispatch.h"
#include "kernels/sparse/csr_transpose.cuh"
#include "kernels/sparse/segment.cuh"
#include "kernels/sparse/spmm.cuh"

// Nothing below is a hot loop: an op on a graph takes longer than its checks and its record. Built for size.
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__)
#pragma GCC optimize("Os")
#endif
#include "autograd/autocast.h"
#include "autograd/op_table.h"
#include "autograd/ops/index/dims.h"
#include "autograd/ops/index/sorted.h"
#include "levin/autograd.h"
#include "levin/flops.h"
#include "levin/ops.h"
#include "levin/sparse.h"

namespace levin {
namespace {

using kernels::Bits;
using kernels::CsrView;
using kernels::Heads;

// Scratch memory of a kernel; it lives as long as this object.
class Room {
 public:
  explicit Room(const Tensor& beside) : device_(beside.device()) {}
  void* operator()(std::int64_t bytes) const {
    kept_.push_back(empty({bytes}, device_, DType::u8));
    return ptr<std::uint8_t>(kept_.back());
  }

 private:
  Device device_;
  mutable std::vector<Tensor> kept_;
};

// Positions of columns and edges; offsets are i64.
constexpr Types<std::int32_t, std::int64_t> kPositions{};

// The longest row of a pattern that was examined, or -1.
std::int64_t longest_row_of(const Csr& a) {
  const CsrFacts* const facts = a.known();
  return facts ? facts->longest_row : -1;
}

// A pattern as kernels read it. Segments have no columns.
struct DensePattern {
  Tensor crow, col, edge;
  CsrView view{};
  static Tensor dense(const Tensor& t) { return t.defined() ? t.contiguous() : t; }
  static kernels::Positions positions(const Tensor& t) {
    if (!t.defined()) return {};
    const bool is_wide = t.dtype() == DType::i64;
    return {is_wide ? static_cast<const void*>(ptr<const std::int64_t>(t)) : ptr<const std::int32_t>(t), is_wide};
  }
  DensePattern(const Csr& a, std::int64_t entries, std::int64_t longest_row)
      : crow(dense(a.crow)), col(dense(a.col)), edge(dense(a.edge)) {
    view = {ptr<const std::int64_t>(crow),    positions(col), positions(edge), a.rows(),
            col.defined() ? a.cols : entries, entries,        longest_row};
  }
};

// The pattern that a backward reads. Of segments it has the offsets alone.
struct SavedCsr {
  std::array<SavedInput, 6> parts{};
  std::int64_t cols = 0;
  std::shared_ptr<const CsrFacts> facts{};
  std::int64_t longest_row = -1;
  explicit SavedCsr(const Csr& a) : cols(a.cols), facts(a.facts), longest_row(longest_row_of(a)) {
    const std::array<const Tensor*, 6> from{&a.crow, &a.col, &a.edge, &a.t_crow, &a.t_col, &a.t_edge};
    for (std::size_t i = 0; i < 6; ++i) parts[i] = *from[i];
  }
  SavedCsr(const Tensor& offsets, std::int64_t longest_row_) : longest_row(longest_row_) { parts[0] = offsets; }
  [[nodiscard]] Csr get() const {
    return {.crow = parts[0].get(),
            .col = parts[1].get(),
            .edge = parts[2].get(),
            .cols = cols,
            .t_crow = parts[3].get(),
            .t_col = parts[4].get(),
            .t_edge = parts[5].get(),
            .facts = facts};
  }
};

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

// How errors of kernels name an op and its offsets.
struct Names {
  const char *op, *offsets;
};
constexpr Names kSegments{"segment_reduce", "segment_reduce: offsets must rise from 0 to the number of rows of x"};
constexpr Names kSpmm{"spmm", "spmm: crow must rise from 0 to the number of entries"};
constexpr const char* kSddmmOffsets = "sddmm: crow must rise from 0 to the number of entries";
constexpr const char* kSoftmaxOffsets = "segment_softmax: offsets must rise from 0 to the number of rows of x";
constexpr const char* kGatherOffsets = "gather_csr: offsets must rise from 0 to entries";
constexpr const char* kTransposeOffsets = "with_transpose: crow must rise from 0 to the number of entries";

// On the CPU 16-bit tensors are converted to f32, computed in f32 and rounded once.
bool is_widened(const Tensor& x) {
  return x.device().is_cpu() && (x.dtype() == DType::f16 || x.dtype() == DType::bf16);
}
Tensor wide(const Tensor& x) { return x.defined() ? x.to(DType::f32) : x; }

template <class T>
const T* values_of(const Tensor& value) {
  return value.defined() ? ptr<const T>(value) : nullptr;
}

// ---- The transpose

struct CsrTranspose {
  static constexpr OpInfo info{.name = "csr_transpose"};
  std::int64_t cols, longest_row;

  // Of the transpose: offsets, rows of a, positions in a.
  std::array<Tensor, 3> forward(const Tensor& crow, const Tensor& col) {
    const auto indices = [&](DType dtype, std::int64_t n) { return empty({n}, crow.device(), dtype); };
    const DensePattern p(Csr{.crow = crow, .col = col, .cols = cols}, col.numel(), longest_row);
    std::array<Tensor, 3> t{indices(DType::i64, cols + 1), indices(col.dtype(), col.numel()),
                            indices(col.dtype(), col.numel())};
    auto* const t_crow = ptr<std::int64_t>(t[0]);
    dispatch(info, col, kPositions,
             overloaded{[&]<class T>(const Cpu& on, T) {
                          kernels::cpu::csr_transpose(on, p.view, t_crow, ptr<T>(t[1]), ptr<T>(t[2]));
                        },
                        [&]<class T>(const Gpu& on, T) {
                          namespace gpu = kernels::gpu;
                          const gpu::ColumnKey key{gpu::IndexRange(on, info.name, cols), p.view.col};
                          with_sorted(on, gpu::Grouping(col.numel(), cols), key, crow,
                                      [&]<class K>(const gpu::KeyOrder<K>& in) {
                                        gpu::csr_transpose(on, kTransposeOffsets, p.view, in, t_crow, ptr<T>(t[1]),
                                                           ptr<T>(t[2]));
                                      });
                        }});
    return t;
  }
};
LEVIN_OP_TABLE(CsrTranspose)

// ---- Checks

[[noreturn, gnu::cold, gnu::noinline]] void refuse(const char* op, const char* what, const Shape& shape,
                                                   const std::string& expected) {
  fail<ShapeError>(op, ": ", what, " has shape ", shape, ", expected ", expected);
}

void check_positions(const char* op, const char* what, const Tensor& t, DType dtype, const Tensor& x) {
  if (t.dtype() != dtype)
    fail<DTypeError>(op, ": ", what, " is ", t.dtype(), ", expected ", dtype, "; convert it with to(DType::", dtype,
                     ")");
  check_same_device(op, x, t);
  if (t.rank() != 1) refuse(op, what, t.shape(), "rank 1");
}

void check_offsets(const char* op, const char* what, const Tensor& offsets, std::int64_t entries, const Tensor& x) {
  check_positions(op, what, offsets, DType::i64, x);
  const std::int64_t rows = offsets.numel() - 1;
  if (rows < 0) refuse(op, what, offsets.shape(), "one element more than there are rows");
  if (rows == 0 && entries > 0)
    refuse(op, what, offsets.shape(), "more: there are " + text(entries) + " entries and no rows");
  if (!offsets.device().is_cpu()) return;
  const Tensor dense = offsets.contiguous();
  const auto* at = ptr<const std::int64_t>(dense);
  const auto bad = [&](std::int64_t i, const std::string& expected) {
    fail<IndexError>(op, ": ", what, "[", i, "] is ", at[i], ", expected ", expected);
  };
  if (at[0] != 0) bad(0, "0");
  for (std::int64_t i = 1; i <= rows; ++i)
    if (at[i] < at[i - 1]) bad(i, text(at[i - 1]) + " or more; offsets never fall");
  if (at[rows] != entries) bad(rows, text(entries) + ", the number of entries");
}

void check_range(const char* op, const Tensor& t, std::int64_t bound, const char* what) {
  if (t.dtype() == DType::i64)
    check_indices<std::int64_t>(op, t, bound, what);
  else
    check_indices<std::int32_t>(op, t, bound, what);
}
// Offsets of segments of x, or of `entries` elements; longest_row: -1, or of an examined pattern.
void check_segments(const char* op, const Tensor& offsets, std::int64_t entries, std::int64_t longest_row,
                    const Tensor& x) {
  if (longest_row < 0) return check_offsets(op, "offsets", offsets, entries, x);
  check_same_device(op, x, offsets);
}

// Columns `col` in [0, cols), and `edge`, the places of the entries' values, of `dtype`; x gives the device.
void check_entries(const char* op, const std::array<const char*, 2>& names, const Tensor& col, const Tensor& edge,
                   std::int64_t cols, DType dtype, const Tensor& x) {
  check_positions(op, names[0], col, dtype, x);
  check_range(op, col, cols, "the dimension of columns");
  if (!edge.defined()) return;
  check_positions(op, names[1], edge, dtype, x);
  if (edge.numel() != col.numel()) refuse(op, names[1], edge.shape(), "one element an entry, " + text(col.numel()));
  check_range(op, edge, col.numel(), "the values");
}
void check_csr(const char* op, const Csr& a, const Tensor& x) {
  if (a.known()) return check_same_device(op, x, a.crow);
  check_defined(op, a.crow, a.col);
  if (a.col.dtype() != DType::i32 && a.col.dtype() != DType::i64)
    fail<DTypeError>(op, ": col is ", a.col.dtype(), ", expected i32 or i64; convert it with to(DType::i64)");
  if (a.cols < 0 || a.cols > kMaxDim) fail<ShapeError>(op, ": cols is ", a.cols, ", expected 0 to ", kMaxDim);
  check_entries(op, {"col", "edge"}, a.col, a.edge, a.cols, a.col.dtype(), x);
  check_offsets(op, "crow", a.crow, a.entries(), x);
}

// The facts `known` of a pattern for `other`, the same pattern with its transpose, or transposed.
std::shared_ptr<const CsrFacts> facts_for(const Csr& other, const CsrFacts& known, std::int64_t longest_row,
                                          std::int64_t longest_column) {
  const auto facts = std::make_shared<CsrFacts>(known, other);
  facts->longest_row = longest_row;
  facts->longest_column = longest_column;
  return facts;
}
// The longest row of checked offsets. A device is not asked: there it is the number of entries.
std::int64_t longest_of(const Tensor& offsets, std::int64_t entries) {
  if (!offsets.device().is_cpu()) return entries;
  const auto* at = ptr<const std::int64_t>(offsets);
  std::int64_t longest = 0;
  for (std::int64_t i = 1; i < offsets.numel(); ++i) longest = std::max(longest, at[i] - at[i - 1]);
  return longest;
}

// As above, with the transpose, which is checked where the caller gave it.
Csr sorted_by_column(const Csr& a) {
  const CsrFacts* const known = a.known();
  if (a.t_crow.defined()) {
    if (known) return a;
    check_entries("transpose", {"t_col", "t_edge"}, a.t_col, a.t_edge, a.rows(), a.col.dtype(), a.crow);
    check_offsets("transpose", "t_crow", a.t_crow, a.entries(), a.crow);
    if (a.t_crow.numel() != a.cols + 1 || a.t_col.numel() != a.entries())
      refuse(
          "transpose", "t_crow", a.t_crow.shape(),
          text(a.cols + 1) + " offsets, and " + text(a.entries()) + " entries in t_col; make them with with_transpose");
    return a;
  }
  constexpr auto kMost = std::int64_t{std::numeric_limits<std::int32_t>::max()};
  if (a.col.dtype() == DType::i32 && std::max(a.rows(), a.entries()) > kMost)
    fail<ShapeError>("with_transpose: there are ", a.rows(), " rows and ", a.entries(), " entries, expected at most ",
                     kMost, " where positions are i32; convert col and edge with to(DType::i64)");
  const auto [crow, col, at] = apply(CsrTranspose{a.cols, longest_row_of(a)}, a.crow, a.col);
  Csr both = a;
  both.t_crow = crow;
  both.t_col = col;
  both.t_edge = a.edge.defined() ? index_select(a.edge, 0, at.to(DType::i64)) : at;
  both.facts = known ? facts_for(both, *known, known->longest_row, longest_of(crow, a.entries())) : nullptr;
  return both;
}
// The transposed matrix of a matrix whose entries were checked.
Csr swapped(const Csr& a) {
  const Csr b = sorted_by_column(a);
  Csr t{.crow = b.t_crow,
        .col = b.t_col,
        .edge = b.t_edge,
        .cols = b.rows(),
        .t_crow = b.crow,
        .t_col = b.col,
        .t_edge = b.edge};
  if (const CsrFacts* const known = b.known())
    t.facts = facts_for(t, *known, known->longest_column, known->longest_row);
  return t;
}

void check_has_rows(const char* op, const char* what, const Tensor& x) {
  if (x.rank() == 0) refuse(op, what, x.shape(), "[rows, ...]");
}

// ---- Sums and means

Tensor sum_of_rows(const Names& names, const Csr& a, std::int64_t longest_row, const Tensor& value, const Tensor& x,
                   bool mean) {
  if (is_widened(x)) return sum_of_rows(names, a, longest_row, wide(value), wide(x), mean).to(x.dtype());
  Tensor y = empty(x.shape().with(0, a.rows()), x.device(), x.dtype());
  const DensePattern p(a, a.col.defined() ? a.entries() : x.shape()[0], longest_row);
  const Tensor v = DensePattern::dense(value), dense = x.contiguous();
  const Heads h = heads_of(value, x);
  dispatch(OpInfo{.name = names.op}, x, kFloats,
           overloaded{[&]<class T>(const Cpu& on, T) {
                        if constexpr (sizeof(T) > 2)
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
    dispatch(info, x, kAll,
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
  if (is_widened(x)) {
    const auto [y, at] = extreme_of_rows(names, a, longest_row, wide(value), wide(x), largest);
    return {y.to(x.dtype()), at};
  }
  Tensor y = empty(x.shape().with(0, a.rows()), x.device(), x.dtype()), at = empty(y.shape(), y.device(), DType::i64);
  const DensePattern p(a, a.col.defined() ? a.entries() : x.shape()[0], longest_row);
  const Tensor v = DensePattern::dense(value), dense = x.contiguous();
  const Heads h = heads_of(value, x);
  dispatch(OpInfo{.name = names.op}, x, kFloats,
           overloaded{[&]<class T>(const Cpu& on, T) {
                        if constexpr (sizeof(T) > 2)
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
    Tensor gx = empty_like(y_);
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
    Tensor out = empty_like(x);
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
    refuse("gather_csr", "x", x.shape(), text(offsets.numel() - 1) + " rows, as offsets has");
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
    refuse(op, "x", x.shape(), text(a.entries()) + " rows, one an entry");
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

Csr with_transpose(const Csr& a) {
  check_csr("with_transpose", a, a.crow);
  return sorted_by_column(a);
}
Csr transpose(const Csr& a) {
  check_csr("transpose", a, a.crow);
  return swapped(a);
}

Tensor spmm(const Csr& a, const Tensor& value, const Tensor& x, Reduce reduce) {
  check_has_rows("spmm", "x", x);
  check_csr("spmm", a, x);
  if (x.shape()[0] != a.cols) refuse("spmm", "x", x.shape(), text(a.cols) + " rows, the columns of the matrix");
  if (value.defined()) {
    check_dtypes_meet("spmm", x, value);
    check_same_device("spmm", x, value);
    const bool fits = value.rank() == 1 || (value.rank() == 2 && x.rank() >= 2 && x.shape()[1] == value.shape()[1]);
    if (!fits || value.shape()[0] != a.entries())
      refuse("spmm", "value", value.shape(),
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
    refuse("sddmm", "z", z.shape(),
           "[cols, F] beside x [rows, F], or [cols, H, F] beside [rows, H, F], with " + text(a.cols) + " cols, " +
               text(a.rows()) + " rows and x " + text(x.shape()));
  return apply(Sddmm{SavedCsr(a)}, x, z);
}

}  // namespace levin
