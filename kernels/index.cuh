#ifndef LEVIN_KERNELS_INDEX_CUH
#define LEVIN_KERNELS_INDEX_CUH
// Moving elements by index. What only moves works on bits: U is the unsigned integer as wide as the element. Indices
// are checked by the op (first_outside) before any of these runs. Sizes may be zero.
//
//   first_outside(on, const int64_t* index, n, bound)      the first position whose index is not in [0, bound), or -1
//   index_select(on, const U* x, index, U* y, outer, dim, m, inner)
//     y[o, i, :] = x[o, index[i], :];  x: [outer, dim, inner], y: [outer, m, inner], contiguous
//   index_add(on, const T* x, index, const T* src, T* y, outer, dim, m, inner, int64_t skip)
//     y[o, r, :] = x[o, r, :] + sum over i in order with index[i] == r of src[o, i, :];  16-bit sums in f32, rounded
//     once. x may be null (zeros). An index equal to `skip` adds nothing (-1: all add).
//   gather(on, const IndexWalk&, const U* x, index, U* y)             y[w.c] = x[w.b + index * w.step]
//   scatter(on, const IndexWalk&, U* y, index, const U* src)          y[w.b + index * w.step] = src[w.c], the last wins
//   scatter_add(on, const IndexWalk&, T* y, index, const T* src)      the same with +=, in index order
//   copy_box(on, const U* from, U* to, const Box&)                    strided to strided, negative steps allowed
//   nonzero(on, const T* x, n, F&& place)                             positions of x != 0: see below
//   triangle(on, const U* x, U* y, matrices, rows, cols, diagonal, bool upper)
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "kernels/cpu.h"
#include "kernels/hd.h"
#include "levin/dtype.h"
#include "levin/shape.h"

namespace levin::kernels {

template <class T>
using Bits = std::conditional_t<
    sizeof(T) == 8, uint64_t,
    std::conditional_t<sizeof(T) == 4, uint32_t, std::conditional_t<sizeof(T) == 2, uint16_t, uint8_t>>>;

// The elements of an index tensor, and where each has its partners: b in the tensor that is indexed (without the
// indexed dimension), c in the one of the index's shape. Loops: `tasks` over the other dimensions, k over the indexed
// one, l over the last one when that is another. Tasks and l never meet in one element of b, so they may run in
// parallel; k runs in order.
struct IndexWalk {
  int rank = 0;  // of the tasks
  std::array<int64_t, kMaxRank> size{}, b{}, c{};
  int64_t tasks = 1;
  int64_t k_size = 1, k_step = 0, k_c = 0;  // k_step: of the index, which is contiguous; so is its order of tasks
  int64_t l_size = 1, l_b = 0, l_c = 0, l_step = 0;
  int64_t step = 0;  // along the indexed dimension of b
  std::array<int64_t, kMaxRank> i{};

  IndexWalk(const Shape& index, int dim, const Strides& b_steps, const Strides& c_steps) {
    if (index.rank() == 0) return;
    const Strides own = contiguous_strides(index);
    k_size = index[dim];
    k_step = own[dim];
    k_c = c_steps[dim];
    step = b_steps[dim];
    const int last = index.rank() - 1;
    if (last != dim) {
      l_size = index[last];
      l_step = 1;
      l_b = b_steps[last];
      l_c = c_steps[last];
    }
    for (int d = 0; d < index.rank(); ++d) {
      if (d == dim || d == last) continue;
      const auto at = static_cast<size_t>(rank++);
      size[at] = index[d];
      i[at] = own[d];
      b[at] = b_steps[d];
      c[at] = c_steps[d];
      tasks *= index[d];
    }
  }

  struct Place {
    int64_t i = 0, b = 0, c = 0;
  };
  [[nodiscard]] Place task(int64_t t) const {
    Place p;
    for (int d = rank - 1; d >= 0; --d) {
      const auto at = static_cast<size_t>(d);
      const int64_t x = t % size[at];
      t /= size[at];
      p.i += x * i[at];
      p.b += x * b[at];
      p.c += x * c[at];
    }
    return p;
  }
};

// A block of `size` elements, read and written with steps of their own.
struct Box {
  int rank = 0;
  std::array<int64_t, kMaxRank> size{}, from{}, to{};
};

namespace cpu {

// a + b; integers wrap around.
template <class T>
LEVIN_HD T wrapping_sum(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  } else {
    return static_cast<T>(a + b);
  }
}

inline constexpr int64_t kIndexTask = 32 * 1024;  // elements moved by one thread at a time

inline int64_t first_outside(const Cpu&, const int64_t* index, int64_t n, int64_t bound) {
  const auto limit = static_cast<uint64_t>(bound);
  bool is_bad = false;
  for (int64_t i = 0; i < n; ++i) is_bad |= static_cast<uint64_t>(index[i]) >= limit;
  if (!is_bad) return -1;
  return std::find_if(index, index + n, [&](int64_t v) { return static_cast<uint64_t>(v) >= limit; }) - index;
}

template <class U>
void index_select(const Cpu& on, const U* x, const int64_t* index, U* y, int64_t outer, int64_t dim, int64_t m,
                  int64_t inner) {
  on.parallel_for(outer * m, std::max<int64_t>(1, kIndexTask / std::max<int64_t>(1, inner)),
                  [&](int64_t begin, int64_t end) {
                    int64_t o = begin / m, i = begin % m;
                    for (int64_t t = begin; t < end; ++t) {
                      const U* from = x + (o * dim + index[i]) * inner;
                      U* to = y + t * inner;
                      if (inner == 1) {
                        *to = *from;
                      } else {
                        std::memcpy(to, from, static_cast<size_t>(inner) * sizeof(U));
                      }
                      if (++i == m) i = 0, ++o;
                    }
                  });
}

template <class T>
void index_add(const Cpu& on, const T* x, const int64_t* index, const T* src, T* y, int64_t outer, int64_t dim,
               int64_t m, int64_t inner, int64_t skip) {
  // Positions grouped by destination, in order within each: every row of y is then one thread's.
  std::vector<int64_t> begin_of(static_cast<size_t>(dim + 1)), order(static_cast<size_t>(m));
  for (int64_t i = 0; i < m; ++i) ++begin_of[static_cast<size_t>(index[i])];
  int64_t sum = 0;
  for (int64_t& b : begin_of) {
    sum += b;
    b = sum;
  }
  for (int64_t i = m - 1; i >= 0; --i) order[static_cast<size_t>(--begin_of[static_cast<size_t>(index[i])])] = i;
  const int64_t work = std::max<int64_t>(1, inner * (1 + m / std::max<int64_t>(1, dim)));
  on.parallel_for(outer * dim, std::max<int64_t>(1, kIndexTask / work), [&](int64_t begin, int64_t end) {
    using A = std::conditional_t<std::is_integral_v<T>, T, Accum<T>>;
    constexpr int64_t kTile = 512;
    A tile[kTile];
    for (int64_t t = begin; t < end; ++t) {
      const int64_t o = t / dim, r = t % dim;
      const int64_t *first = order.data() + begin_of[static_cast<size_t>(r)],
                    *last = order.data() + begin_of[static_cast<size_t>(r + 1)];
      if (r == skip) last = first;
      const T* from = x ? x + t * inner : nullptr;
      T* to = y + t * inner;
      for (int64_t c = 0; c < inner; c += kTile) {
        const int64_t n = std::min(kTile, inner - c);
        if (from) {
          for (int64_t j = 0; j < n; ++j) tile[j] = A(from[c + j]);
        } else {
          std::fill_n(tile, n, A(0));
        }
        for (const int64_t* i = first; i < last; ++i) {
          const T* add = src + (o * m + *i) * inner + c;
          for (int64_t j = 0; j < n; ++j) tile[j] = wrapping_sum(tile[j], A(add[j]));
        }
        for (int64_t j = 0; j < n; ++j) to[c + j] = T(tile[j]);
      }
    }
  });
}

template <class U>
void gather(const Cpu& on, const IndexWalk& w, const U* x, const int64_t* index, U* y) {
  on.parallel_for(w.tasks * w.k_size, std::max<int64_t>(1, kIndexTask / std::max<int64_t>(1, w.l_size)),
                  [&](int64_t begin, int64_t end) {
                    int64_t k = begin % w.k_size, t = begin / w.k_size;
                    IndexWalk::Place p = w.task(t);
                    for (int64_t at = begin; at < end; ++at) {
                      const int64_t* i = index + p.i + k * w.k_step;
                      for (int64_t l = 0; l < w.l_size; ++l) {
                        y[p.c + k * w.k_c + l * w.l_c] = x[p.b + i[l * w.l_step] * w.step + l * w.l_b];
                      }
                      if (++k == w.k_size && at + 1 < end) k = 0, p = w.task(++t);
                    }
                  });
}

// body(position in b, position in c) for every index: in order along k, tasks and pieces of l in parallel.
template <class F>
void each_index(const Cpu& on, const IndexWalk& w, const int64_t* index, const F& body) {
  if (w.tasks * w.k_size * w.l_size == 0) return;
  constexpr int64_t kPiece = 256;
  const int64_t pieces = (w.l_size + kPiece - 1) / kPiece, work = w.k_size * std::min(w.l_size, kPiece);
  on.parallel_for(w.tasks * pieces, std::max<int64_t>(1, kIndexTask / work), [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      const IndexWalk::Place p = w.task(at / pieces);
      const int64_t first = at % pieces * kPiece, last = std::min(w.l_size, first + kPiece);
      for (int64_t k = 0; k < w.k_size; ++k) {
        const int64_t* i = index + p.i + k * w.k_step;
        for (int64_t l = first; l < last; ++l) {
          body(p.b + i[l * w.l_step] * w.step + l * w.l_b, p.c + k * w.k_c + l * w.l_c);
        }
      }
    }
  });
}

template <class U>
void scatter(const Cpu& on, const IndexWalk& w, U* y, const int64_t* index, const U* src) {
  each_index(on, w, index, [&](int64_t b, int64_t c) { y[b] = src[c]; });
}

template <class T, class S>
void scatter_add(const Cpu& on, const IndexWalk& w, T* y, const int64_t* index, const S* src) {
  each_index(on, w, index, [&](int64_t b, int64_t c) { y[b] = wrapping_sum(y[b], T(src[c])); });
}

template <class U>
void copy_box(const Cpu& on, const U* from, U* to, Box box) {
  if (box.rank == 0) {
    *to = *from;
    return;
  }
  // Neighbours that one step walks on both sides are one dimension.
  int rank = 0;
  for (int d = 0; d < box.rank; ++d) {
    const auto at = static_cast<size_t>(d);
    if (box.size[at] == 1) continue;
    if (rank > 0) {
      const auto before = static_cast<size_t>(rank - 1);
      if (box.from[before] == box.from[at] * box.size[at] && box.to[before] == box.to[at] * box.size[at]) {
        box.size[before] *= box.size[at];
        box.from[before] = box.from[at];
        box.to[before] = box.to[at];
        continue;
      }
    }
    const auto next = static_cast<size_t>(rank++);
    box.size[next] = box.size[at];
    box.from[next] = box.from[at];
    box.to[next] = box.to[at];
  }
  if (rank == 0) rank = 1, box.size[0] = 1, box.from[0] = box.to[0] = 1;
  for (int d = 0; d < rank; ++d)
    if (box.size[static_cast<size_t>(d)] == 0) return;
  const auto inner = static_cast<size_t>(rank - 1);
  // One long line is cut, so that threads can share it.
  constexpr int64_t kPiece = 16 * 1024;
  const int64_t n = box.size[inner], a = box.from[inner], b = box.to[inner], pieces = (n + kPiece - 1) / kPiece;
  int64_t lines = 1;
  for (int d = 0; d + 1 < rank; ++d) lines *= box.size[static_cast<size_t>(d)];
  on.parallel_for(lines * pieces, std::max<int64_t>(1, kIndexTask / std::min(n, kPiece)),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t t = begin; t < end; ++t) {
                      const int64_t first = t % pieces * kPiece, count = std::min(kPiece, n - first);
                      int64_t line = t / pieces, x = first * a, y = first * b;
                      for (int d = rank - 2; d >= 0; --d) {
                        const auto at = static_cast<size_t>(d);
                        x += line % box.size[at] * box.from[at];
                        y += line % box.size[at] * box.to[at];
                        line /= box.size[at];
                      }
                      if (a == 1 && b == 1) {
                        std::memcpy(to + y, from + x, static_cast<size_t>(count) * sizeof(U));
                      } else {
                        for (int64_t i = 0; i < count; ++i) to[y + i * b] = from[x + i * a];
                      }
                    }
                  });
}

template <class T>
[[nodiscard]] bool is_nonzero(T x) {
  if constexpr (std::is_integral_v<T>) {
    return x != T(0);
  } else {
    return static_cast<Accum<T>>(x) != 0;
  }
}
inline constexpr int64_t kNonzeroChunk = 64 * 1024;

// How many of x's n elements are not zero before each chunk of kNonzeroChunk, and in all (the last entry).
template <class T>
std::vector<int64_t> count_nonzero(const Cpu& on, const T* x, int64_t n) {
  const int64_t chunks = (n + kNonzeroChunk - 1) / kNonzeroChunk;
  std::vector<int64_t> before(static_cast<size_t>(chunks + 1));
  on.parallel_for(n, kNonzeroChunk, [&](int64_t begin, int64_t end) {
    int64_t count = 0;
    for (int64_t i = begin; i < end; ++i) count += is_nonzero(x[i]);
    before[static_cast<size_t>(begin / kNonzeroChunk + 1)] = count;
  });
  for (size_t c = 1; c < before.size(); ++c) before[c] += before[c - 1];
  return before;
}

// y: [before.back(), rank], the coordinates of the elements that are not zero, in row-major order.
template <class T>
void nonzero(const Cpu& on, const T* x, const std::vector<int64_t>& before, int64_t* y, const Shape& shape) {
  const int rank = shape.rank();
  on.parallel_for(shape.numel(), kNonzeroChunk, [&](int64_t begin, int64_t end) {
    int64_t* to = y + before[static_cast<size_t>(begin / kNonzeroChunk)] * rank;
    for (int64_t i = begin; i < end; ++i) {
      if (!is_nonzero(x[i])) continue;
      int64_t rest = i;
      for (int d = rank - 1; d >= 0; --d) {
        to[d] = rest % shape[d];
        rest /= shape[d];
      }
      to += rank;
    }
  });
}

template <class U>
void triangle(const Cpu& on, const U* x, U* y, int64_t matrices, int64_t rows, int64_t cols, int64_t diagonal,
              bool upper) {
  on.parallel_for(matrices * rows, std::max<int64_t>(1, kIndexTask / std::max<int64_t>(1, cols)),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t r = begin; r < end; ++r) {
                      // Columns below `split` belong to the lower triangle without the upper one, or with it.
                      const int64_t row = r % rows, edge = row + diagonal + (upper ? 0 : 1);
                      const int64_t split = std::clamp<int64_t>(edge, 0, cols);
                      const U* from = x + r * cols;
                      U* to = y + r * cols;
                      const auto copy = [&](int64_t b, int64_t e) { std::copy(from + b, from + e, to + b); };
                      const auto clear = [&](int64_t b, int64_t e) { std::fill(to + b, to + e, U{0}); };
                      upper ? clear(0, split) : copy(0, split);
                      upper ? copy(split, cols) : clear(split, cols);
                    }
                  });
}

}  // namespace cpu
}  // namespace levin::kernels
#endif
