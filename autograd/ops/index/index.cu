// Reads and writes of elements by index. Ops that read and ops that add are each other's derivatives. On the CPU
// indices are checked before a result is returned; on a device the kernels check them.
#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "autograd/autocast.h"
#include "autograd/home.h"
#include "autograd/op_table.h"
#include "autograd/ops/index/dims.h"
#include "autograd/ops/index/point.h"
#include "autograd/ops/index/sorted.h"
#include "autograd/row_gradient.h"
#include "kernels/executor/dispatch.h"
#include "kernels/index/counts.cuh"
#include "kernels/index/index.cuh"
#include "kernels/index/lines.cuh"
#include "kernels/index/nonzero.cuh"
#include "levin/ops.h"
#include "tensor/device/runtime.h"

namespace levin {

// check_indices is in this source because this source is compiled for speed.
void check_indices(const char* op, const Tensor& index, std::int64_t bound, const std::string& what) {
  if (!index.device().is_cpu()) return;
  const Tensor dense = index.contiguous();
  const auto check = [&](const auto* values) {
    const std::int64_t at = kernels::cpu::first_outside(Cpu{}, values, dense.numel(), bound);
    if (at < 0) return;
    std::string position;
    std::int64_t rest = at;
    for (int d = index.rank() - 1; d >= 0; --d) {
      position = text(rest % index.shape()[d]) + (position.empty() ? "" : ", ") + position;
      rest /= index.shape()[d];
    }
    fail<IndexError>(op, ": index ", values[at], " at position [", position, "] is out of range, expected 0 to ",
                     bound - 1, "; ", what, " has size ", bound);
  };
  if (index.dtype() == DType::i32)
    check(ptr<const std::int32_t>(dense));
  else
    check(ptr<const std::int64_t>(dense));
}

namespace {

using kernels::Bits;
using kernels::IndexSum;
using kernels::IndexWalk;
using kernels::gpu::ElementKey;
using kernels::gpu::Grouping;
using kernels::gpu::IndexRange;
using kernels::gpu::IndexSteps;
using kernels::gpu::LineTiles;
using kernels::gpu::RowKey;

std::string dimension_of(int dim, const Shape& x) { return "dimension " + text(dim) + " of x " + text(x); }

// ---- Whole slices: index_select, index_add, embedding

struct IndexSelect {
  static constexpr OpInfo info{.name = "index_select"};
  int dim;
  Shape in{};
  SavedInput index{};

  Tensor forward(const Tensor& x, const Tensor& index_) {
    in = x.shape();
    index = index_;
    Tensor y = empty(in.with(dim, index_.numel()), x.device(), x.dtype());
    const Tensor dense = x.contiguous(), at = index_.contiguous();
    const AlongDim l(in, dim);
    dispatch(info, x, kMoved,
             overloaded{[&]<class T>(const Cpu& on, T) {
                          kernels::cpu::index_select(on, ptr<const Bits<T>>(dense), ptr<const std::int64_t>(at),
                                                     ptr<Bits<T>>(y), l.outer, l.n, at.numel(), l.inner);
                        },
                        [&]<class T>(const Gpu& on, T) {
                          kernels::gpu::index_select(on, info.name, ptr<const Bits<T>>(dense),
                                                     ptr<const std::int64_t>(at), ptr<Bits<T>>(y), l.outer, l.n,
                                                     at.numel(), l.inner);
                        }});
    return y;
  }
  Grads<2> backward(const Tensor& gy, Need<2>) {
    return {index_add(zeros(in, gy.device(), gy.dtype()), dim, index.get(), gy)};
  }
};
LEVIN_OP_TABLE(IndexSelect)

constexpr std::int64_t kNoSkip = -1;

// y = x (zeros of `shape` when undefined) plus the slices of src, in `place` where that is defined.
Tensor add_slices(const OpInfo& info, const Tensor& x, const Shape& shape, int dim, const Tensor& index,
                  const Tensor& src, std::int64_t skip, const Tensor& place = {}) {
  Tensor y = detail::place_or_empty(place, shape, src.device(), src.dtype());
  const Tensor dense = x.defined() ? x.contiguous() : x, at = index.contiguous(), add = src.contiguous();
  const AlongDim l(shape, dim);
  dispatch(
      info, src, kNumbers,
      overloaded{
          [&]<class T>(const Cpu& on, T) {
            kernels::cpu::index_add<T>(on, dense.defined() ? ptr<const T>(dense) : nullptr, ptr<const std::int64_t>(at),
                                       ptr<const T>(add), ptr<T>(y), l.outer, l.n, at.numel(), l.inner, skip);
          },
          [&]<class T>(const Gpu& on, T) {
            using Sum = IndexSum<T>;
            const Tensor partial = scratch_of<Sum>(y, kernels::gpu::partial_sums(l.outer, at.numel(), l.inner));
            const RowKey key{IndexRange(on, info.name, l.n), ptr<const std::int64_t>(at)};
            // Few elements of many: the others are a copy.
            if (dense.defined() && l.outer * l.inner == 1 && at.numel() < l.n / 4 && skip == kNoSkip) {
              copy_(y, dense);
              with_sorted(on, Grouping(at.numel(), l.n), key, y, [&]<class K>(kernels::gpu::KeyOrder<K> in) {
                kernels::gpu::sum_elements<T, K>(on, in, ptr<const T>(add), ptr<T>(y), l.n, scratch_ptr<Sum>(partial));
              });
              return;
            }
            with_sorted(on, Grouping(at.numel(), l.n), key, y, [&]<class K>(kernels::gpu::KeyOrder<K> in) {
              const Tensor begin = scratch_of<K>(y, l.n + 1);
              kernels::gpu::sum_rows<T, K>(on, in, dense.defined() ? ptr<const T>(dense) : nullptr, ptr<const T>(add),
                                           ptr<T>(y), l.outer, l.n, l.inner, skip, scratch_ptr<Sum>(partial),
                                           scratch_ptr<K>(begin));
            });
          }});
  return y;
}

struct IndexAdd {
  static constexpr OpInfo info{.name = "index_add", .autocast = AutocastPolicy::widest};
  int dim;
  SavedInput index{};

  Tensor forward(const Tensor& x, const Tensor& index_, const Tensor& src) {
    index = index_;
    return add_slices(info, x, x.shape(), dim, index_, src, kNoSkip);
  }
  Grads<3> backward(const Tensor& gy, Need<3> need) {
    return {gy, Tensor{}, need[2] ? index_select(gy, dim, index.get()) : Tensor{}};
  }
};
LEVIN_OP_TABLE(IndexAdd)

// The padding row gives zeros, whatever its weight is.
Tensor without_padding(const Tensor& y, const Tensor& index, std::optional<std::int64_t> padding_idx) {
  return padding_idx ? masked_fill(y, unsqueeze(eq(index, *padding_idx), -1), 0) : y;
}

// gw[r] = sum of gy[i] over index[i] == r in order; 0 for the padding row.
struct EmbeddingBackward {
  static constexpr OpInfo info{.name = "embedding_backward"};
  Shape weight;
  std::optional<std::int64_t> padding_idx;
  Tensor place{};  // memory for the result, during forward only; undefined: new memory
  SavedInput index{};

  Tensor forward(const Tensor& gy, const Tensor& index_) {
    index = index_;
    return add_slices(info, Tensor{}, weight, 0, index_, gy, padding_idx.value_or(kNoSkip),
                      std::exchange(place, Tensor()));
  }
  Grads<2> backward(const Tensor& gg, Need<2>) {
    return {without_padding(embedding(gg, index.get()), index.get(), padding_idx)};
  }
};
LEVIN_OP_TABLE(EmbeddingBackward)

struct Embedding {
  static constexpr OpInfo info{.name = "embedding"};
  std::optional<std::int64_t> padding_idx;
  EmbeddingGrad gradient;
  Shape weight{};
  SavedInput index{};

  Tensor forward(const Tensor& w, const Tensor& index_) {
    weight = w.shape();
    index = index_;
    Tensor y = empty(index_.shape().inserted(index_.rank(), weight[1]), w.device(), w.dtype());
    const Tensor dense = w.contiguous(), at = index_.contiguous();
    dispatch(info, w, kFloats,
             overloaded{[&]<class T>(const Cpu& on, T) {
                          kernels::cpu::index_select(on, ptr<const Bits<T>>(dense), ptr<const std::int64_t>(at),
                                                     ptr<Bits<T>>(y), 1, weight[0], at.numel(), weight[1]);
                        },
                        [&]<class T>(const Gpu& on, T) {
                          kernels::gpu::index_select(on, info.name, ptr<const Bits<T>>(dense),
                                                     ptr<const std::int64_t>(at), ptr<Bits<T>>(y), 1, weight[0],
                                                     at.numel(), weight[1]);
                        }});
    return y;
  }
  Grads<2> backward(const Tensor& gy, Need<2>) {
    const Tensor place = detail::birth_place(0), at = index.get();
    if (gradient == EmbeddingGrad::rows && !place.defined() && detail::takes_rows(0)) {
      detail::give_rows(0, at, reshape(without_padding(gy, at, padding_idx), {at.numel(), weight[1]}));
      return {};
    }
    return {apply(EmbeddingBackward{weight, padding_idx, place}, gy, at)};
  }
};
LEVIN_OP_TABLE(Embedding)

// ---- Single elements: gather, scatter, scatter_add. On the CPU their kernels check the indices, and the result of one
// that found an index outside is dropped.

[[noreturn]] void fail_outside(const char* op, const Tensor& index, int dim, const Shape& x) {
  check_indices(op, index, AlongDim(x, dim).n, dimension_of(dim, x));
  fail<StateError>(op, ": another thread wrote to the index while it was read");
}

struct Gather {
  static constexpr OpInfo info{.name = "gather"};
  int dim;
  Shape in{};
  SavedInput index{};

  Tensor forward(const Tensor& x, const Tensor& index_) {
    in = x.shape();
    index = index_;
    Tensor y = empty(index_.shape(), x.device(), x.dtype());
    const Tensor at = index_.contiguous();
    dispatch(info, x, kMoved,
             overloaded{[&]<class T>(const Cpu& on, T) {
                          if (!kernels::cpu::gather(on, IndexWalk(y.shape(), dim, x.strides(), y.strides()),
                                                    AlongDim(in, dim).n, ptr<const Bits<T>>(x),
                                                    ptr<const std::int64_t>(at), ptr<Bits<T>>(y)))
                            fail_outside(info.name, index_, dim, in);
                        },
                        [&]<class T>(const Gpu& on, T) {
                          kernels::gpu::gather(on, IndexRange(on, info.name, AlongDim(in, dim).n),
                                               IndexSteps(y.shape(), dim, x.strides(), y.strides()),
                                               ptr<const Bits<T>>(x), ptr<const std::int64_t>(at), ptr<Bits<T>>(y));
                        }});
    return y;
  }
  Grads<2> backward(const Tensor& gy, Need<2>) { return {put_back(gy, in, dim, index.get())}; }
};
LEVIN_OP_TABLE(Gather)

// src may be larger than index: an element that no index reads has the gradient 0.
Tensor fill_up(const Tensor& g, const Shape& src) {
  if (g.numel() == 0) return zeros(src, g.device(), g.dtype());  // an index without elements may be longer than src
  for (int d = src.rank() - 1; d >= 0; --d) {
    if (g.shape()[d] == src[d]) continue;
    Tensor whole = g;
    for (int k = d; k >= 0; --k) {
      if (whole.shape()[k] == src[k]) continue;
      whole = cat({whole, zeros(whole.shape().with(k, src[k] - whole.shape()[k]), g.device(), g.dtype())}, k);
    }
    return whole;
  }
  return g;
}

// Whether every row of x has indices, so that a row can be copied just before elements of the copy are written.
[[maybe_unused]] bool has_rows(const IndexWalk& walk, const Tensor& x, int dim, const Tensor& index) {
  return x.device().is_cpu() && walk.has_runs() && walk.step == 1 && x.numel() > 0 && index.numel() > 0 &&
         index.shape().with(dim, x.size(dim)) == x.shape();
}
[[maybe_unused]] bool goes_by_rows(const IndexWalk& walk, const Tensor& x, int dim, const Tensor& index) {
  return x.is_contiguous() && has_rows(walk, x, dim, index);
}

// Whether x repeats one element. Rows longer than kLongRow leave the cache, so all threads fill the result first.
constexpr std::int64_t kLongRow = std::int64_t{1} << 17;
[[maybe_unused]] bool repeats_one(const Tensor& x, int dim) {
  if (x.size(dim) > kLongRow) return false;
  for (int d = 0; d < x.rank(); ++d)
    if (x.shape()[d] != 1 && x.strides()[d] != 0) return false;
  return true;
}

// The lines of x along dim, where each has as many indices and a block of a device holds some of them.
[[maybe_unused]] std::optional<LineTiles> line_tiles(const Tensor& x, int dim, const Tensor& index) {
  if (x.device().is_cpu() || index.shape().with(dim, x.size(dim)) != x.shape()) return std::nullopt;
  const AlongDim l(x.shape(), dim);
  const LineTiles tiles(l.outer, l.n, index.size(dim), l.inner);
  return tiles.fits(itemsize(x.dtype())) ? std::optional(tiles) : std::nullopt;
}

// The part of src that an index of `shape` reads.
[[maybe_unused]] Tensor front(const Tensor& src, const Shape& shape) {
  if (shape.numel() == 0) return empty(shape, src.device(), src.dtype());
  Tensor part = src;
  for (int d = 0; d < shape.rank(); ++d) {
    if (part.shape()[d] != shape[d]) part = narrow(part, d, 0, shape[d]);
  }
  return part;
}

// The one line of an index that is expanded from it, so that each of its elements names whole rows of x, of the CPU.
[[maybe_unused]] std::optional<Tensor> line_of_rows(const Tensor& x, int dim, const Tensor& index, const Tensor& src) {
  const bool whole = x.device().is_cpu() && x.is_contiguous() && index.shape() == src.shape() && index.numel() > 0 &&
                     index.numel() > index.size(dim) && index.shape().with(dim, x.size(dim)) == x.shape();
  if (!whole) return std::nullopt;
  Tensor line = index;
  for (int d = 0; d < index.rank(); ++d) {
    if (d == dim) continue;
    if (index.shape()[d] != 1 && index.strides()[d] != 0) return std::nullopt;
    line = narrow(line, d, 0, 1);
  }
  return reshape(line, {index.size(dim)}).contiguous();
}

struct Scatter {
  static constexpr OpInfo info{.name = "scatter", .autocast = AutocastPolicy::widest};
  int dim;
  Shape source{};
  SavedInput index{};

  Tensor forward(const Tensor& x, const Tensor& index_, const Tensor& src) {
    index = index_;
    source = src.shape();
    if (const std::optional<Tensor> line = line_of_rows(x, dim, index_, src)) return with_rows(x, index_, *line, src);
    Tensor y = empty(x.shape(), x.device(), x.dtype());
    const Tensor at = index_.contiguous();
    const IndexWalk walk(at.shape(), dim, y.strides(), src.strides());
    const bool of_one = has_rows(walk, x, dim, at) && repeats_one(x, dim),
               by_rows = !of_one && goes_by_rows(walk, x, dim, at);
    const std::optional<LineTiles> lines = line_tiles(x, dim, at);
    if (!of_one && !by_rows && !lines) copy_(y, x);
    dispatch(info, x, kMoved,
             overloaded{[&]<class T>(const Cpu& on, T) {
                          const std::int64_t n = AlongDim(x.shape(), dim).n;
                          const auto* const i = ptr<const std::int64_t>(at);
                          const auto* const from = ptr<const Bits<T>>(src);
                          const auto* const onto = ptr<const Bits<T>>(x);
                          auto* const to = ptr<Bits<T>>(y);
                          if (!(of_one    ? kernels::cpu::scatter_onto_one(on, walk, n, *onto, to, i, from)
                                : by_rows ? kernels::cpu::scatter_onto(on, walk, n, onto, to, i, from)
                                          : kernels::cpu::scatter(on, walk, n, to, i, from)))
                            fail_outside(info.name, index_, dim, x.shape());
                        },
                        [&]<class T>(const Gpu& on, T) {
                          const IndexRange range(on, info.name, AlongDim(y.shape(), dim).n);
                          if (lines) {
                            const Tensor dense = x.contiguous(), from = front(src, at.shape()).contiguous();
                            kernels::gpu::write_lines(on, range, *lines, ptr<const Bits<T>>(dense),
                                                      ptr<const std::int64_t>(at), ptr<const Bits<T>>(from),
                                                      ptr<Bits<T>>(y));
                            return;
                          }
                          const Tensor last = zeros(y.shape(), y.device(), DType::i64);
                          kernels::gpu::scatter(on, range, IndexSteps(at.shape(), dim, y.strides(), src.strides()),
                                                ptr<Bits<T>>(y), ptr<const std::int64_t>(at), ptr<const Bits<T>>(src),
                                                reinterpret_cast<unsigned long long*>(ptr<std::int64_t>(last)));
                        }});
    return y;
  }
  [[nodiscard]] Tensor with_rows(const Tensor& x, const Tensor& index_, const Tensor& line, const Tensor& src) const {
    const Tensor y = empty(x.shape(), x.device(), x.dtype()), from = src.contiguous();
    const AlongDim l(x.shape(), dim);
    dispatch_dtype(info, x, kMoved, [&]<class T>(T) {
      const auto* const i = ptr<const std::int64_t>(line);
      if (kernels::cpu::first_outside(Cpu{}, i, line.numel(), l.n) >= 0)
        fail_outside(info.name, index_, dim, x.shape());
      kernels::cpu::copy_rows_onto(Cpu{}, ptr<const Bits<T>>(x), i, ptr<const Bits<T>>(from), ptr<Bits<T>>(y), l.outer,
                                   l.n, line.numel(), l.inner);
    });
    return y;
  }
  Grads<3> backward(const Tensor& gy, Need<3> need) {
    const Tensor& at = index.get();
    Grads<3> grads;
    if (need[0]) grads[0] = scatter(gy, dim, at, zeros(at.shape(), gy.device(), gy.dtype()));
    if (need[2]) {
      // Only the last write to an element is seen in y. Scattering the positions themselves finds that write.
      const Tensor position = reshape(arange(at.numel(), gy.device()), Dims(at.shape().dims()));
      const Tensor winner = gather(scatter(zeros(gy.shape(), gy.device(), DType::i64), dim, at, position), dim, at);
      grads[2] = fill_up(masked_fill(gather(gy, dim, at), ne(winner, position), 0), source);
    }
    return grads;
  }
};
LEVIN_OP_TABLE(Scatter)

struct ScatterAdd {
  static constexpr OpInfo info{.name = "scatter_add", .autocast = AutocastPolicy::widest};
  int dim;
  Shape source{};
  SavedInput index{};

  Tensor forward(const Tensor& x, const Tensor& index_, const Tensor& src) {
    index = index_;
    source = src.shape();
    Tensor y = empty(x.shape(), x.device(), x.dtype());
    const Tensor at = index_.contiguous();
    const IndexWalk walk(at.shape(), dim, y.strides(), src.strides());
    const std::int64_t n = AlongDim(x.shape(), dim).n;
    dispatch(info, x, kNumbers,
             overloaded{
                 [&]<class T>(const Cpu& on, T) {
                   const auto* const i = ptr<const std::int64_t>(at);
                   const auto* const from = ptr<const T>(src);
                   bool is_inside = false;
                   if constexpr (sizeof(T) == 2) {  // sums in f32, rounded once
                     const Tensor sums = cast(x, DType::f32).contiguous();
                     is_inside = kernels::cpu::scatter_add(on, walk, n, ptr<float>(sums), i, from);
                     y = cast(sums, dtype_of<T>);
                   } else if (has_rows(walk, x, dim, at) && repeats_one(x, dim)) {
                     is_inside = kernels::cpu::scatter_add_onto_one(on, walk, n, *ptr<const T>(x), ptr<T>(y), i, from);
                   } else if (goes_by_rows(walk, x, dim, at)) {
                     is_inside = kernels::cpu::scatter_add_onto(on, walk, n, ptr<const T>(x), ptr<T>(y), i, from);
                   } else {
                     copy_(y, x);
                     is_inside = kernels::cpu::scatter_add(on, walk, n, ptr<T>(y), i, from);
                   }
                   if (!is_inside) fail_outside(info.name, index_, dim, x.shape());
                 },
                 [&]<class T>(const Gpu& on, T) {
                   const Tensor add = front(src, at.shape()).contiguous();
                   const IndexRange range(on, info.name, n);
                   if (const std::optional<LineTiles> lines = line_tiles(x, dim, at)) {
                     const Tensor dense = x.contiguous();
                     kernels::gpu::add_lines<T>(on, range, *lines, ptr<const T>(dense), ptr<const std::int64_t>(at),
                                                ptr<const T>(add), ptr<T>(y));
                     return;
                   }
                   copy_(y, x);
                   const Tensor partial = scratch_of<IndexSum<T>>(y, kernels::gpu::partial_sums(1, at.numel(), 1));
                   const ElementKey key{range, IndexSteps(at.shape(), dim, y.strides(), add.strides()),
                                        ptr<const std::int64_t>(at), y.numel()};
                   with_sorted(on, Grouping(at.numel(), y.numel()), key, y,
                               [&]<class K>(kernels::gpu::KeyOrder<K> sorted) {
                                 kernels::gpu::sum_elements<T, K>(on, sorted, ptr<const T>(add), ptr<T>(y), y.numel(),
                                                                  scratch_ptr<IndexSum<T>>(partial));
                               });
                 }});
    return y;
  }
  Grads<3> backward(const Tensor& gy, Need<3> need) {
    return {gy, Tensor{}, need[2] ? fill_up(gather(gy, dim, index.get()), source) : Tensor{}};
  }
};
LEVIN_OP_TABLE(ScatterAdd)

// ---- Masks, counts

struct Nonzero {
  static constexpr OpInfo info{.name = "nonzero"};

  Tensor forward(const Tensor& x) {
    if (is_storage(x.dtype())) return forward(x.to(DType::b8));
    Tensor y;
    const Tensor dense = x.contiguous();
    const auto result = [&](std::int64_t count) { return empty({count, x.rank()}, x.device(), DType::i64); };
    dispatch(info, x, kAll,
             overloaded{[&]<class T>(const Cpu& on, T) {
                          const std::vector<std::int64_t> before =
                              kernels::cpu::count_nonzero(on, ptr<const T>(dense), dense.numel());
                          y = result(before.back());
                          kernels::cpu::nonzero(on, ptr<const T>(dense), before, ptr<std::int64_t>(y), x.shape());
                        },
                        [&]<class T>(const Gpu& on, T) {
                          const std::int64_t tiles = kernels::gpu::nonzero_tiles(dense.numel());
                          const Tensor counts = empty({tiles + 1}, x.device(), DType::i64);
                          auto* const before = ptr<std::int64_t>(counts);
                          kernels::gpu::count_nonzero(on, ptr<const T>(dense), dense.numel(), before);
                          y = result(narrow(counts, 0, tiles, 1).template item<std::int64_t>());
                          kernels::gpu::nonzero(on, ptr<const T>(dense), before, ptr<std::int64_t>(y), x.shape());
                        }});
    return y;
  }
};
LEVIN_OP_TABLE(Nonzero)

struct OneHot {
  static constexpr OpInfo info{.name = "one_hot"};
  std::int64_t classes;

  Tensor forward(const Tensor& index) {
    Tensor y = zeros(index.shape().inserted(index.rank(), classes), index.device(), DType::i64);
    const Tensor dense = index.contiguous();
    dispatch(info, index, kIndex,
             overloaded{[&]<class T>(const Cpu& on, T) {
                          kernels::cpu::one_hot(on, ptr<const T>(dense), ptr<T>(y), dense.numel(), classes);
                        },
                        [&]<class T>(const Gpu& on, T) {
                          kernels::gpu::one_hot(on, info.name, ptr<const T>(dense), ptr<T>(y), dense.numel(), classes);
                        }});
    return y;
  }
};
LEVIN_OP_TABLE(OneHot)

struct BinCount {
  static constexpr OpInfo info{.name = "bincount"};
  std::int64_t bins;

  Tensor forward(const Tensor& index) {
    Tensor y = zeros({bins}, index.device(), DType::i64);
    const Tensor dense = index.contiguous();
    dispatch(info, index, kIndex,
             overloaded{[&]<class T>(const Cpu& on, T) {
                          kernels::cpu::bincount(on, ptr<const T>(dense), ptr<T>(y), dense.numel(), bins);
                        },
                        [&]<class T>(const Gpu& on, T) {
                          kernels::gpu::bincount(on, info.name, ptr<const T>(dense), ptr<T>(y), dense.numel(), bins);
                        }});
    return y;
  }
};
LEVIN_OP_TABLE(BinCount)

}  // namespace

Tensor counts_of(const Tensor& index, std::int64_t bins) { return apply(BinCount{bins}, index); }

namespace {

// Checks index and src against x, for the ops on single elements. src may be undefined.
int check_elements(const char* op, const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src = {}) {
  const int at = wrap_dim(op, dim, x.rank());
  check_index_type(op, x, index);
  if (index.rank() != x.rank()) {
    fail<ShapeError>(op, ": index has shape ", index.shape(), ", expected rank ", x.rank(), " as x ", x.shape());
  }
  if (src.defined()) {
    check_dtypes_meet(op, x, src);
    check_same_device(op, x, src);
    if (src.rank() != x.rank()) {
      fail<ShapeError>(op, ": src has shape ", src.shape(), ", expected rank ", x.rank(), " as x ", x.shape());
    }
  }
  if (index.numel() == 0) return at;
  for (int d = 0; d < x.rank(); ++d) {
    if (d != at && index.shape()[d] > x.shape()[d]) {
      fail<ShapeError>(op, ": index ", index.shape(), " is larger than x ", x.shape(), " in dimension ", d,
                       "; only dimension ", at, " may differ");
    }
    if (src.defined() && index.shape()[d] > src.shape()[d]) {
      fail<ShapeError>(op, ": index ", index.shape(), " is larger than src ", src.shape(), " in dimension ", d);
    }
  }
  return at;
}

// Of tensors of rank 0 the ops on single elements take dimension 0 as of lines of one element.
bool points(const Tensor& a, const Tensor& b) { return a.rank() == 0 && b.rank() == 0; }
Tensor as_line(const Tensor& x) { return reshape(x, {1}); }

void check_rank_one(const char* op, const Tensor& index) {
  if (index.rank() != 1) fail<ShapeError>(op, ": index has shape ", index.shape(), ", expected rank 1");
}

}  // namespace

Tensor index_select(const Tensor& x, std::int64_t dim, const Tensor& index) {
  const int at = wrap_dim("index_select", dim, x.rank());
  check_index_type("index_select", x, index);
  check_rank_one("index_select", index);
  check_indices("index_select", index, x.shape()[at], dimension_of(at, x.shape()));
  return apply(IndexSelect{at}, x, index);
}

Tensor index_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src) {
  const int at = wrap_dim("index_add", dim, x.rank());
  check_index_type("index_add", x, index);
  check_rank_one("index_add", index);
  check_dtypes_meet("index_add", x, src);
  check_same_device("index_add", x, src);
  if (src.rank() != x.rank() || src.shape() != x.shape().with(at, index.numel())) {
    fail<ShapeError>("index_add: src has shape ", src.shape(), ", expected ", x.shape().with(at, index.numel()),
                     ", that of x with one slice an index");
  }
  check_indices("index_add", index, x.shape()[at], dimension_of(at, x.shape()));
  return apply(IndexAdd{at}, x, index, src);
}

Tensor embedding(const Tensor& weight, const Tensor& index, std::optional<std::int64_t> padding_idx,
                 EmbeddingGrad gradient) {
  if (weight.rank() != 2) {
    fail<ShapeError>("embedding: weight has shape ", weight.shape(), ", expected [rows, columns]");
  }
  check_index_type("embedding", weight, index);
  const std::int64_t rows = weight.shape()[0];
  if (padding_idx) {
    if (*padding_idx < -rows || *padding_idx >= rows) {
      fail<IndexError>("embedding: padding_idx is ", *padding_idx, ", expected ", -rows, " to ", rows - 1,
                       "; weight has ", rows, " rows");
    }
    if (*padding_idx < 0) *padding_idx += rows;
  }
  check_indices("embedding", index, rows, "dimension 0 of weight " + text(weight.shape()));
  return apply(Embedding{padding_idx, gradient}, weight, index);
}

Tensor detail::sum_of_rows(const Shape& shape, const Tensor& rows, const Tensor& values) {
  constexpr OpInfo info{.name = "sum_of_rows"};
  return add_slices(info, Tensor(), shape, 0, rows, values, kNoSkip);
}

void detail::put_rows_(const Tensor& to, const Tensor& rows, const Tensor& from) {
  constexpr OpInfo info{.name = "put_rows_"};
  if (from.numel() == 0) return;
  const std::int64_t n = rows.numel(), inner = from.numel() / n;
  dispatch(info, to, kMoved,
           overloaded{[&]<class T>(const Cpu& on, T) {
                        kernels::cpu::put_rows(on, ptr<const Bits<T>>(from), ptr<const std::int64_t>(rows),
                                               ptr<Bits<T>>(to), to.size(0), n, inner);
                      },
                      [&]<class T>(const Gpu& on, T) {
                        kernels::gpu::put_rows(on, ptr<const Bits<T>>(from), ptr<const std::int64_t>(rows),
                                               ptr<Bits<T>>(to), to.size(0), n, inner);
                      }});
}

Tensor gather(const Tensor& x, std::int64_t dim, const Tensor& index) {
  if (points(x, index)) return of_point(x, [&](const Tensor& line) { return gather(line, dim, as_line(index)); });
  return apply(Gather{check_elements("gather", x, dim, index)}, x, index);
}
Tensor scatter(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src) {
  if (points(x, index) && points(src, src)) {
    return of_point(x, [&](const Tensor& line) { return scatter(line, dim, as_line(index), as_line(src)); });
  }
  return apply(Scatter{check_elements("scatter", x, dim, index, src)}, x, index, src);
}
Tensor scatter_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src) {
  if (points(x, index) && points(src, src)) {
    return of_point(x, [&](const Tensor& line) { return scatter_add(line, dim, as_line(index), as_line(src)); });
  }
  return apply(ScatterAdd{check_elements("scatter_add", x, dim, index, src)}, x, index, src);
}

Tensor nonzero(const Tensor& x) {
  check_has_values("nonzero", x);
  detail::refuse_while_capturing("nonzero", x.device());
  return apply(Nonzero{}, x);
}

Tensors where(const Tensor& x) { return unbind(nonzero(x), 1); }

Tensor masked_select(const Tensor& x, const Tensor& mask) {
  if (mask.dtype() != DType::b8) fail<DTypeError>("masked_select: mask is ", mask.dtype(), ", expected bool");
  check_same_device("masked_select", x, mask);
  check_has_values("masked_select", x);
  detail::refuse_while_capturing("masked_select", x.device());
  const Shape shape = broadcast_shapes("masked_select", x.shape(), mask.shape());
  const Tensor chosen = nonzero(reshape(expand(mask, shape), -1));
  return index_select(reshape(expand(x, shape), -1), 0, reshape(chosen, -1));
}

Tensor one_hot(const Tensor& index, std::int64_t classes) {
  if (index.dtype() != DType::i64) fail<DTypeError>("one_hot: index is ", index.dtype(), ", expected i64");
  if (classes < 1) fail<ShapeError>("one_hot: classes is ", classes, ", expected at least 1");
  check_indices("one_hot", index, classes, "the dimension of classes");
  return apply(OneHot{classes}, index);
}

Tensor bincount(const Tensor& index, std::int64_t minlength) {
  if (index.dtype() != DType::i64) fail<DTypeError>("bincount: index is ", index.dtype(), ", expected i64");
  check_rank_one("bincount", index);
  if (minlength < 0) fail<ShapeError>("bincount: minlength is ", minlength, ", expected at least 0");
  check_has_values("bincount", index);
  detail::refuse_while_capturing("bincount", index.device());
  check_indices("bincount", index, kMaxDim, "the largest possible result");
  const std::int64_t top = index.numel() == 0 ? -1 : amax(index).item<std::int64_t>();
  return counts_of(index, std::max(minlength, top + 1));
}

}  // namespace levin
