#ifndef LEVIN_KERNELS_INDEX_CUH
#define LEVIN_KERNELS_INDEX_CUH
// Moving elements by index. What only moves works on bits: U is the unsigned integer as wide as the element. On the CPU
// the op checks indices (first_outside) before most of these run; on a device the kernels do: they report an index
// outside and skip the access, see Note [Errors that kernels find]. Sizes may be zero.
//
//   first_outside(on, const I* index, n, bound)            the first position whose index is not in [0, bound), or -1
//   index_select(on, const U* x, index, U* y, outer, dim, m, inner)
//     y[o, i, :] = x[o, index[i], :];  x: [outer, dim, inner], y: [outer, m, inner], contiguous
//   index_add(on, const T* x, index, const T* src, T* y, outer, dim, m, inner, int64_t skip)
//     y[o, r, :] = x[o, r, :] + sum over i in order with index[i] == r of src[o, i, :];  16-bit sums in f32, rounded
//     once. x may be null (zeros). An index equal to `skip` adds nothing (-1: all add).
//   gather(on, const IndexWalk&, bound, const U* x, index, U* y)      y[w.c] = x[w.b + index * w.step]
//   scatter(on, const IndexWalk&, bound, U* y, index, const U* src)   y[w.b + index * w.step] = src[w.c], the last wins
//   scatter_add(on, const IndexWalk&, bound, T* y, index, const T* src)    the same with +=, in index order
//   cpu::scatter_extreme<kMax>(on, const IndexWalk&, bound, T* y, index, const T* src)   with the larger or smaller
//   cpu::copy_rows_onto(on, const U* x, index, const U* src, U* y, outer, dim, m, inner)
//   scatter_onto, scatter_add_onto(on, w, row, const T* x, T* y, index, src)
//     the same after y = x, on the CPU: w has runs, each of a row of y of `row` elements; row > 0
//   scatter_onto_one, scatter_add_onto_one(on, w, row, T all, T* y, index, src)   of an x whose elements all are `all`
//     On the CPU all of these check the indices themselves: false where one is not in [0, bound), and y is unfinished.
// On devices gather and scatter take IndexSteps for the walk. Sums by index stand in kernels/index/group.cuh, scatters
// along lines that a block holds in kernels/index/lines.cuh, counts in kernels/index/counts.cuh.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "kernels/device/bits.cuh"
#include "kernels/device/strided.cuh"
#include "kernels/executor/cpu.h"
#include "kernels/executor/hd.h"
#include "kernels/executor/streaming.cuh"
#include "kernels/index/add_rows.cuh"
#include "kernels/index/bounds.cuh"
#include "kernels/index/group.cuh"
#include "kernels/lib/scratch.h"
#include "levin/dtype.h"
#include "levin/shape.h"

namespace levin::kernels {

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

  [[nodiscard]] int64_t count() const { return tasks * k_size * l_size; }
  [[nodiscard]] bool has_runs() const { return l_size == 1 && k_step == 1; }  // along the last dimension

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

namespace cpu {

inline constexpr int64_t kIndexTask = 32 * 1024;  // elements moved by one thread at a time

template <class I>
int64_t first_outside(const Cpu& on, const I* index, int64_t n, int64_t bound) {
  std::atomic<bool> is_bad{bound <= 0 && n > 0};
  if (bound > 0) {
    on.parallel_for(n, 2 * kIndexTask, [&](int64_t begin, int64_t end) {
      if (any_outside(on, index + begin, end - begin, bound)) is_bad.store(true, std::memory_order_relaxed);
    });
  }
  if (!is_bad) return -1;
  const I* const found = std::find_if(index, index + n, [=](I v) { return v < 0 || v >= bound; });
  return found < index + n ? found - index : -1;
}

// Indices that count up: y's rows [at, at + count) are x's from `from` on.
struct IndexRun {
  int64_t at, from, count;
};
// The runs of an index, or none if they are short.
inline std::vector<IndexRun> long_runs(const int64_t* index, int64_t m) {
  constexpr int64_t kLong = 16;
  std::vector<IndexRun> runs;
  for (int64_t i = 0; i < m;) {
    if (static_cast<int64_t>(runs.size()) > m / kLong) return {};
    int64_t end = i + 1;
    while (end < m && index[end] == index[end - 1] + 1) ++end;
    runs.push_back({i, index[i], end - i});
    i = end;
  }
  return runs;
}

template <class U>
void index_select(const Cpu& on, const U* x, const int64_t* index, U* y, int64_t outer, int64_t dim, int64_t m,
                  int64_t inner) {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(U));
  const auto copy = [=](U* to, const U* from, int64_t rows) {
    std::memcpy(to, from, static_cast<size_t>(rows * inner * kBytes));
  };
  // Short rows move many at once where the index allows it; to look costs as much as an outer row.
  if (outer > 4 && inner * kBytes < 64) {
    if (const std::vector<IndexRun> runs = long_runs(index, m); !runs.empty()) {
      on.parallel_for(outer, std::max<int64_t>(1, kIndexTask / std::max<int64_t>(1, m * inner)),
                      [&](int64_t begin, int64_t end) {
                        for (int64_t o = begin; o < end; ++o)
                          for (const IndexRun& run : runs)
                            copy(y + (o * m + run.at) * inner, x + (o * dim + run.from) * inner, run.count);
                      });
      return;
    }
  }
  on.parallel_for(outer * m, std::max<int64_t>(1, kIndexTask / std::max<int64_t>(1, inner)),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t t = begin; t < end;) {
                      const int64_t o = t / m, first = t % m, last = std::min(m, first + end - t);
                      const U* const from = x + o * dim * inner;
                      U* const to = y + o * m * inner;
                      if (inner == 1) {
                        for (int64_t i = first; i < last; ++i) to[i] = from[index[i]];
                      } else {
                        for (int64_t i = first; i < last; ++i) copy(to + i * inner, from + index[i] * inner, 1);
                      }
                      t += last - first;
                    }
                  });
}

// y[index[i]] = x[i] for rows of `inner` elements; the indices in [0, dim) differ, and others name nothing.
template <class U>
void put_rows(const Cpu& on, const U* x, const int64_t* index, U* y, int64_t dim, int64_t m, int64_t inner) {
  on.parallel_for(m, std::max<int64_t>(1, kIndexTask / inner), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = index[i];
      if (row >= 0 && row < dim) std::memcpy(y + row * inner, x + i * inner, static_cast<size_t>(inner) * sizeof(U));
    }
  });
}

// y = x with row index[i] = row i of src, the last wins: x and y [outer, dim, inner], src [outer, m, inner]. A chunk
// looks at all indices for those of its rows.
template <class U>
void copy_rows_onto(const Cpu& on, const U* x, const int64_t* index, const U* src, U* y, int64_t outer, int64_t dim,
                    int64_t m, int64_t inner) {
  const int64_t all = outer * dim;
  if (all * inner == 0) return;
  const int64_t worth = all * inner / (kIndexTask + 4 * m), chunks = std::clamp<int64_t>(worth, 1, 4 * num_threads());
  on.parallel_for(all, (all + chunks - 1) / chunks, [&](int64_t begin, int64_t end) {
    const auto bytes_of = [&](int64_t rows) { return static_cast<size_t>(rows * inner) * sizeof(U); };
    for (int64_t t = begin; t < end;) {
      const int64_t o = t / dim, first = t % dim, last = std::min(dim, first + end - t);
      std::memcpy(y + t * inner, x + t * inner, bytes_of(last - first));
      for (int64_t i = 0; i < m; ++i) {
        const int64_t row = index[i];
        if (row >= first && row < last)
          std::memcpy(y + (o * dim + row) * inner, src + (o * m + i) * inner, bytes_of(1));
      }
      t += last - first;
    }
  });
}

template <class T>
void index_add(const Cpu& on, const T* x, const int64_t* index, const T* src, T* y, int64_t outer, int64_t dim,
               int64_t m, int64_t inner, int64_t skip) {
  if (outer * dim * inner == 0) return;
  // A chunk looks at all indices for those of its rows, so there are as few as keep the threads busy.
  const double work = double(outer * dim) * double(inner) * (1 + double(m) / double(dim));
  const auto worth = int64_t(work / double(std::max(kIndexTask, 4 * m)));
  const int64_t chunks = std::clamp<int64_t>(worth, 1, 4 * num_threads());
  int64_t rows = (outer * dim + chunks - 1) / chunks;
  // Sums that are wider than T need memory.
  if (!std::is_same_v<IndexSum<T>, T>) rows = std::min(rows, std::max<int64_t>(1, (int64_t{1} << 20) / inner));
  on.parallel_for(outer * dim, rows, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end;) {
      const int64_t o = t / dim, first = t % dim, last = std::min(dim, first + end - t);
      add_to_rows(on, x ? x + t * inner : nullptr, index, m, first, last, src + o * m * inner, y + t * inner, inner,
                  skip);
      t += last - first;
    }
  });
}

// For a walk along the last dimension, where the indices of a task are one run in memory: body(the run's first index,
// place of the run) for every run, in parallel. False where an index is not in [0, bound); such a run is left out. A
// run is checked just before it is used, so the indices are read from memory once. `more`: other work
// of a run, in indices.
template <class F>
[[nodiscard]] bool each_run(const Cpu& on, const IndexWalk& w, int64_t bound, const int64_t* index, const F& body,
                            int64_t more = 0) {
  if (w.tasks * w.k_size == 0) return true;
  if (bound <= 0) return false;
  std::atomic<bool> is_bad{false};
  on.parallel_for(w.tasks, std::max<int64_t>(1, kIndexTask / (w.k_size + more)), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const IndexWalk::Place p = w.task(t);
      if (any_outside(on, index + p.i, w.k_size, bound)) {
        is_bad.store(true, std::memory_order_relaxed);
      } else {
        body(index + p.i, p);
      }
    }
  });
  return !is_bad;
}
// body(place of the index in b, place of its partner in c) along a run. Four at once: gather of 256 rows of 1,024 takes
// 146 us on a Zen 4 core and 221 one by one.
template <class F>
[[gnu::always_inline]] inline void each_in_run(const IndexWalk& w, const int64_t* index, const F& body) {
  const int64_t n = w.k_size, step = w.step, c_step = w.k_c;
  if (step == 1 && c_step == 1) {
#pragma GCC unroll 4
    for (int64_t k = 0; k < n; ++k) body(index[k], k);
  } else {
    for (int64_t k = 0; k < n; ++k) body(index[k] * step, k * c_step);
  }
}

// Note [Runs of indices beyond the cache]
//
// A run is read in blocks: its indices are checked and then used while they are in the nearest cache. Between two
// blocks the kernel asks for memory that it reads a run later. The elements that a run names are read in no order, so
// the CPU's own prefetcher does not ask for them: without the requests and with results through the caches, gather of
// 4096 rows of 1024 takes 1.8 times the time. Note [Results larger than the cache] is about the results.
inline constexpr int64_t kRunBlock = 64;       // indices
inline constexpr int64_t kIndicesAhead = 512;  // 4 KiB: what is asked for two blocks ahead comes too late

inline void ask_for(const void* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(static_cast<const char*>(from) + i);
}

// The next row of the tensor that is indexed, asked for in parts: one for each block of a run. Rows much longer
// than their runs are not asked for.
template <class T>
class RowAhead {
 public:
  RowAhead(const T* row, int64_t length, int64_t indices)
      : row_(row), end_(length <= 4 * indices ? row + length : row) {
    const int64_t blocks = (indices + kRunBlock - 1) / kRunBlock;
    part_ = (length + blocks - 1) / blocks;
  }
  void next_part() {
    const int64_t n = std::min<int64_t>(part_, end_ - row_);
    ask_for(row_, n * static_cast<int64_t>(sizeof(T)));
    row_ += n;
  }

 private:
  const T* row_;
  const T* end_;
  int64_t part_ = 0;
};

// A part of a row that is put together in the nearest cache.
template <class T>
struct StagedRow {
  static constexpr int64_t kElements = (16 << 10) / sizeof(T);
  T values[static_cast<size_t>(kElements)];
};

// y of a walk with runs, whose rows of x and runs of y are dense.
template <class U>
[[nodiscard]] bool gather_beyond_cache(const Cpu& on, const IndexWalk& w, int64_t bound, const U* x,
                                       const int64_t* index, U* y) {
  std::atomic<bool> is_bad{false};
  const int64_t* const last_index = index + w.count() - kRunBlock;
  on.parallel_for(w.tasks, std::max<int64_t>(1, kIndexTask / w.k_size), [&](int64_t begin, int64_t end) {
    const Streaming all_seen;
    StagedRow<U> staged;
    for (int64_t t = begin; t < end; ++t) {
      const IndexWalk::Place p = w.task(t);
      RowAhead<U> ahead(x + w.task(std::min(t + 1, end - 1)).b, bound, w.k_size);
      for (int64_t k = 0; k < w.k_size; k += kRunBlock) {
        const int64_t n = std::min(kRunBlock, w.k_size - k);
        const int64_t* const run = index + p.i + k;
        ahead.next_part();
        ask_for(run + std::min<int64_t>(kIndicesAhead, last_index - run), kRunBlock * 8);
        if (any_outside(on, run, n, bound)) {
          is_bad.store(true, std::memory_order_relaxed);
          return;
        }
        for (int64_t i = 0; i < n; ++i) staged.values[i] = x[p.b + run[i]];
        Streaming::write(on, y + p.c + k, staged.values, n * static_cast<int64_t>(sizeof(U)));
      }
    }
  });
  return !is_bad;
}

template <class U>
[[nodiscard]] bool gather(const Cpu& on, const IndexWalk& w, int64_t bound, const U* x, const int64_t* index, U* y) {
  if (w.has_runs()) {
    const bool is_dense = w.step == 1 && w.k_c == 1 && bound > 0 && w.k_size >= kRunBlock;
    if (is_dense && beyond_cache(w.count() * (8 + 2 * static_cast<int64_t>(sizeof(U)))))
      return gather_beyond_cache(on, w, bound, x, index, y);
    return each_run(on, w, bound, index, [&](const int64_t* run, const IndexWalk::Place& p) {
      each_in_run(w, run, [from = x + p.b, to = y + p.c](int64_t b, int64_t c) { to[c] = from[b]; });
    });
  }
  if (first_outside(on, index, w.count(), bound) >= 0) return false;
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
  return true;
}

// body(element of b, element of c) for every index: in order along k, tasks and pieces of l in parallel. `cost`: the
// time of a body, in that of a sum.
template <class B, class C, class F>
[[nodiscard]] bool each_index(const Cpu& on, const IndexWalk& w, int64_t bound, B* y, const int64_t* index,
                              const C* src, const F& body, int64_t cost = 1) {
  if (w.has_runs()) {
    return each_run(
        on, w, bound, index,
        [&](const int64_t* run, const IndexWalk::Place& p) {
          each_in_run(w, run, [&, to = y + p.b, from = src + p.c](int64_t b, int64_t c) { body(to[b], from[c]); });
        },
        (cost - 1) * w.k_size);
  }
  if (first_outside(on, index, w.count(), bound) >= 0) return false;
  if (w.count() == 0) return true;
  constexpr int64_t kPiece = 256;
  const int64_t pieces = (w.l_size + kPiece - 1) / kPiece, work = w.k_size * std::min(w.l_size, kPiece) * cost;
  on.parallel_for(w.tasks * pieces, std::max<int64_t>(1, kIndexTask / work), [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      const IndexWalk::Place p = w.task(at / pieces);
      const int64_t first = at % pieces * kPiece, last = std::min(w.l_size, first + kPiece);
      for (int64_t k = 0; k < w.k_size; ++k) {
        const int64_t* i = index + p.i + k * w.k_step;
        for (int64_t l = first; l < last; ++l) {
          body(y[p.b + i[l * w.l_step] * w.step + l * w.l_b], src[p.c + k * w.k_c + l * w.l_c]);
        }
      }
    }
  });
  return true;
}

template <class U>
[[nodiscard]] bool scatter(const Cpu& on, const IndexWalk& w, int64_t bound, U* y, const int64_t* index, const U* src) {
  return each_index(on, w, bound, y, index, src, [](U& to, U from) { to = from; });
}

// The same as each_index_onto, below, for rows that fit a StagedRow and runs of a block or more.
template <class T, class F>
[[nodiscard]] bool each_index_onto_beyond_cache(const Cpu& on, const IndexWalk& w, int64_t row, const T* x, T* y,
                                                const int64_t* index, const T* src, const F& body) {
  constexpr int64_t kBytes = sizeof(T);
  std::atomic<bool> is_bad{false};
  const int64_t* const last_index = index + w.count() - kRunBlock;
  on.parallel_for(w.tasks, std::max<int64_t>(1, kIndexTask / w.k_size), [&](int64_t begin, int64_t end) {
    const Streaming all_seen;
    StagedRow<T> staged;
    for (int64_t t = begin; t < end; ++t) {
      const IndexWalk::Place p = w.task(t), next = w.task(std::min(t + 1, end - 1));
      RowAhead<T> ahead(x + next.b, row, w.k_size), src_ahead(src + next.c, w.k_size * w.k_c, w.k_size);
      std::memcpy(staged.values, x + p.b, static_cast<size_t>(row * kBytes));
      for (int64_t k = 0; k < w.k_size; k += kRunBlock) {
        const int64_t n = std::min(kRunBlock, w.k_size - k);
        const int64_t* const run = index + p.i + k;
        const T* const from = src + p.c + k * w.k_c;
        ahead.next_part();
        src_ahead.next_part();
        ask_for(run + std::min<int64_t>(kIndicesAhead, last_index - run), kRunBlock * 8);
        if (any_outside(on, run, n, row)) {
          is_bad.store(true, std::memory_order_relaxed);
          return;
        }
        for (int64_t i = 0; i < n; ++i) body(staged.values[run[i]], from[i * w.k_c]);
      }
      Streaming::write(on, y + p.b, staged.values, row * kBytes);
    }
  });
  return !is_bad;
}

// body(element of the row of y, element of src) for every index, in order in a row, after y = x. w has runs, one for
// each row of y of `row` elements.
template <class T, class F>
[[nodiscard]] bool each_index_onto(const Cpu& on, const IndexWalk& w, int64_t row, const T* x, T* y,
                                   const int64_t* index, const T* src, const F& body) {
  constexpr int64_t kBytes = sizeof(T);
  if (row <= StagedRow<T>::kElements && w.k_size >= kRunBlock &&
      beyond_cache(w.tasks * (2 * row + w.k_size) * kBytes + w.count() * 8))
    return each_index_onto_beyond_cache(on, w, row, x, y, index, src, body);
  return each_run(on, w, row, index, [&](const int64_t* run, const IndexWalk::Place& p) {
    std::memcpy(y + p.b, x + p.b, static_cast<size_t>(row * kBytes));
    each_in_run(w, run, [&, to = y + p.b, from = src + p.c](int64_t b, int64_t c) { body(to[b], from[c]); });
  });
}

template <class U>
[[nodiscard]] bool scatter_onto(const Cpu& on, const IndexWalk& w, int64_t row, const U* x, U* y, const int64_t* index,
                                const U* src) {
  return each_index_onto(on, w, row, x, y, index, src, [](U& to, U from) { to = from; });
}

// each_index_onto of an x whose elements all are `all`.
template <class T, class F>
[[nodiscard]] bool each_index_onto_one(const Cpu& on, const IndexWalk& w, int64_t row, T all, T* y,
                                       const int64_t* index, const T* src, const F& body) {
  constexpr int64_t kFilled = 32 / sizeof(T);  // elements in the time of an index
  return each_run(
      on, w, row, index,
      [&](const int64_t* run, const IndexWalk::Place& p) {
        // memset does not read the memory before it writes.
        if (kernels::bit_cast<Bits<T>>(all) == 0)
          std::memset(y + p.b, 0, static_cast<size_t>(row) * sizeof(T));
        else
          std::fill(y + p.b, y + p.b + row, all);
        each_in_run(w, run, [&, to = y + p.b, from = src + p.c](int64_t b, int64_t c) { body(to[b], from[c]); });
      },
      row / kFilled);
}

template <class U>
[[nodiscard]] bool scatter_onto_one(const Cpu& on, const IndexWalk& w, int64_t row, U all, U* y, const int64_t* index,
                                    const U* src) {
  return each_index_onto_one(on, w, row, all, y, index, src, [](U& to, U from) { to = from; });
}

template <class T>
[[nodiscard]] bool scatter_add_onto_one(const Cpu& on, const IndexWalk& w, int64_t row, T all, T* y,
                                        const int64_t* index, const T* src) {
  return each_index_onto_one(on, w, row, all, y, index, src, [](T& to, T from) { to = wrapping_sum(to, from); });
}

// y[w.b + index * w.step] = the larger (smaller) of it and src[w.c]; NaN wins.
template <bool kMax, class T>
[[nodiscard]] bool scatter_extreme(const Cpu& on, const IndexWalk& w, int64_t bound, T* y, const int64_t* index,
                                   const T* src) {
  using W = std::conditional_t<sizeof(T) == 2, float, T>;
  constexpr int64_t kCost = 4;
  const auto join = [](T& to, T from) {
    // Without a branch, which random numbers would mispredict.
    const W a = W(to), b = W(from);
    const int wins = (kMax ? b > a : b < a) | (b != b);
    const auto mask = static_cast<Bits<T>>(-wins), old = kernels::bit_cast<Bits<T>>(to);
    to = kernels::bit_cast<T>(static_cast<Bits<T>>(old ^ ((old ^ kernels::bit_cast<Bits<T>>(from)) & mask)));
  };
  return each_index(on, w, bound, y, index, src, join, kCost);
}

template <class T>
[[nodiscard]] bool scatter_add_onto(const Cpu& on, const IndexWalk& w, int64_t row, const T* x, T* y,
                                    const int64_t* index, const T* src) {
  return each_index_onto(on, w, row, x, y, index, src, [](T& to, T from) { to = wrapping_sum(to, from); });
}

template <class T, class S>
[[nodiscard]] bool scatter_add(const Cpu& on, const IndexWalk& w, int64_t bound, T* y, const int64_t* index,
                               const S* src) {
  return each_index(on, w, bound, y, index, src, [](T& to, S from) { to = wrapping_sum(to, T(from)); });
}

}  // namespace cpu

namespace gpu {

// An item is W bytes of a row. What no index names is 0.
template <int W>
__global__ void select_items(IndexRange range, const std::uint8_t* x, const int64_t* index, std::uint8_t* y,
                             int64_t items, Divider inner, Divider m) {
  Bytes<W> v[kItems];
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    const int64_t u = first_item() + k * kMoveThreads;
    if (u >= items) continue;
    const int64_t t = inner.quotient(u), o = m.quotient(t), row = index[t - o * int64_t(m.divisor)];
    v[k] = Bytes<W>{};
    if (range.holds(row)) { v[k] = load_bytes<W>(x, (o * range.bound + row - t) * int64_t(inner.divisor) + u); }
  }
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    if (first_item() + k * kMoveThreads < items) store_bytes<W>(y, first_item() + k * kMoveThreads, v[k]);
  }
}

template <class U>
void index_select(const Gpu& on, const char* op, const U* x, const int64_t* index, U* y, int64_t outer, int64_t dim,
                  int64_t m, int64_t inner) {
  if (outer * m * inner == 0) return;
  const int64_t bytes = inner * int64_t{sizeof(U)};
  for_width(common_width({address_of(x), address_of(y), bytes}), [&]<int W>(std::integral_constant<int, W>) {
    const int64_t items = outer * m * (bytes / W);
    on.launch(select_items<W>, move_grid(items), IndexRange(on, op, dim), reinterpret_cast<const std::uint8_t*>(x),
              index, reinterpret_cast<std::uint8_t*>(y), items, Divider(bytes / W), Divider(m));
  });
}

// y[index[i]] = x[i], of rows; the indices in [0, dim) differ, and others name nothing. An item is W bytes of a row.
template <int W>
__global__ void put_row_items(const std::uint8_t* x, const int64_t* index, std::uint8_t* y, int64_t dim, int64_t items,
                              Divider inner) {
  Bytes<W> v[kItems];
  int64_t to[kItems];
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    const int64_t u = first_item() + k * kMoveThreads;
    to[k] = -1;
    if (u >= items) continue;
    const int64_t t = inner.quotient(u), row = index[t];
    if (row < 0 || row >= dim) continue;
    v[k] = load_bytes<W>(x, u);
    to[k] = (row - t) * int64_t(inner.divisor) + u;
  }
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    if (to[k] >= 0) store_bytes<W>(y, to[k], v[k]);
  }
}
template <class U>
void put_rows(const Gpu& on, const U* x, const int64_t* index, U* y, int64_t dim, int64_t m, int64_t inner) {
  const int64_t bytes = inner * int64_t{sizeof(U)};
  for_width(common_width({address_of(x), address_of(y), bytes}), [&]<int W>(std::integral_constant<int, W>) {
    const int64_t items = m * (bytes / W);
    on.launch(put_row_items<W>, move_grid(items), reinterpret_cast<const std::uint8_t*>(x), index,
              reinterpret_cast<std::uint8_t*>(y), dim, items, Divider(bytes / W));
  });
}

// The elements of an index tensor, which is contiguous: offset 0 of an element is that of its partner in the tensor
// that is indexed, without the indexed dimension; offset 1 that of its partner in the tensor of the index's shape.
struct IndexSteps {
  Strided<2> at;
  int64_t step = 0;  // along the indexed dimension
  int64_t items = 1;

  IndexSteps(const Shape& index, int dim, const Strides& b, const Strides& c) : items(index.numel()) {
    if (items == 0) return;
    at.rank = 0;
    if (index.rank() > 0) step = b[dim];
    for (int d = 0; d < index.rank(); ++d) {
      const int64_t own = d == dim ? 0 : b[d];
      if (index[d] == 1) continue;
      const int last = at.rank - 1;
      if (last >= 0 && at.steps[0][last] == own * index[d] && at.steps[1][last] == c[d] * index[d]) {
        at.sizes[last] = Divider(int64_t(at.sizes[last].divisor) * index[d]);
        at.steps[0][last] = own;
        at.steps[1][last] = c[d];
        continue;
      }
      at.sizes[at.rank] = Divider(index[d]);
      at.steps[0][at.rank] = own;
      at.steps[1][at.rank++] = c[d];
    }
    if (at.rank == 0) at.rank = 1;
  }
};

template <class U>
__global__ void gather_items(IndexRange range, IndexSteps s, const U* x, const int64_t* index, U* y) {
  U v[kItems];
  int64_t to[kItems];
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    const int64_t u = first_item() + k * kMoveThreads;
    if (u >= s.items) continue;
    const int64_t i = index[u];
    int64_t offset[2];
    s.at.offsets(u, offset);
    v[k] = range.holds(i) ? x[offset[0] + i * s.step] : U(0);
    to[k] = offset[1];
  }
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    if (first_item() + k * kMoveThreads < s.items) y[to[k]] = v[k];
  }
}
template <class U>
void gather(const Gpu& on, const IndexRange& range, const IndexSteps& s, const U* x, const int64_t* index, U* y) {
  on.launch(gather_items<U>, move_grid(s.items), range, s, x, index, y);
}

// The element with the highest position wins: it is found first, then it alone is written.
template <class = void>
__global__ void find_last(IndexRange range, IndexSteps s, const int64_t* index, unsigned long long* last) {
  const int64_t u = own_item();
  if (u >= s.items) return;
  int64_t offset[2];
  s.at.offsets(u, offset);
  const int64_t i = index[u];
  if (range.holds(i)) atomicMax(last + (offset[0] + i * s.step), static_cast<unsigned long long>(u + 1));
}
template <class U>
__global__ void write_last(IndexRange range, IndexSteps s, const int64_t* index, const unsigned long long* last,
                           const U* src, U* y) {
  const int64_t u = own_item();
  if (u >= s.items) return;
  int64_t offset[2];
  s.at.offsets(u, offset);
  const int64_t i = index[u];
  if (!range.holds(i)) return;
  const int64_t to = offset[0] + i * s.step;
  if (last[to] == static_cast<unsigned long long>(u + 1)) y[to] = src[offset[1]];
}
// last: as y, zeros.
template <class U>
void scatter(const Gpu& on, const IndexRange& range, const IndexSteps& s, U* y, const int64_t* index, const U* src,
             unsigned long long* last) {
  on.launch(find_last<>, item_grid(s.items), range, s, index, last);
  on.launch(write_last<U>, item_grid(s.items), range, s, index, last, src, y);
}

// Keys of sort_by_key: the row that an index names, and the element of y, contiguous, that an index's element goes to.
struct RowKey {
  IndexRange range;
  const int64_t* index;
  __device__ int64_t operator()(int64_t i) const { return range.holds(index[i]) ? index[i] : range.bound; }
};
struct ElementKey {
  IndexRange range;
  IndexSteps s;
  const int64_t* index;
  int64_t none;  // the key of an index outside: y's size
  __device__ int64_t operator()(int64_t u) const {
    if (!range.holds(index[u])) return none;
    int64_t offset[2];
    s.at.offsets(u, offset);
    return offset[0] + index[u] * s.step;
  }
};

}  // namespace gpu
}  // namespace levin::kernels
#endif
