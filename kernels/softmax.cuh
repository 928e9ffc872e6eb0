#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_SOFTMAX_CUH
#define LEVIN_KERNELS_SOFTMAX_CUH
// Softmax, log-softmax and fused cross-entropy. T: float, double, f16, bf16; sums in Accum<T>. Sizes may be zero. Rows
// and columns run in parallel, and no sum depends on the number of threads.
//
// [outer, dim, inner], all tensors contiguous, x and y may be the same memory, so may gy and gx:
//   softmax(on, const T* x, T* y, outer, dim, inner)                    y = exp(x - max) / sum(exp(x - max)) over dim
//   log_softmax(on, const T* x, T* y, outer, dim, inner)                y = x - max - log(sum(exp(x - max)))
//   softmax_backward(on, const T* gy, const T* y, T* gx, outer, dim, inner)       gx = y * (gy - sum(gy * y))
//   log_softmax_backward(on, const T* gy, const T* y, T* gx, outer, dim, inner)   gx = gy - exp(y) * sum(gy)
// A row whose maximum is -inf or NaN gives NaN, as in PyTorch.
// [rows, cols] with x_stride and y_stride elements between the starts of rows:
//   softmax_rows(on, const T* x, x_stride, T* y, y_stride, rows, cols)
//
// Cross-entropy of logits x [rows, cols] (contiguous) with class indices target [rows]; e = label_smoothing:
//   row = w[t] * (1 - e) * (lse - x[t]) + e / cols * sum_c w[c] * (lse - x[c]),   0 where t == ignore_index
//   out: none [rows]: row;   sum [1]: the sum of rows;   mean [1]: sum / weight,  weight = sum of w[t] not ignored
//   cross_entropy(on, const T* x, const int64_t* target, const T* class_weight, T* out, A* lse, A* weight,
//                 rows, cols, int64_t ignore_index, double label_smoothing, Reduction)
//     A = Accum<T>; class_weight: [cols] or null (all 1); lse: [rows], weight: [1], both always written.
//     Every target is in [0, cols) or equals ignore_index: the op checks with first_bad_target.
//     All rows ignored: mean is NaN, as in PyTorch.
//   cross_entropy_backward(on, const T* gy, const T* x, const int64_t* target, const T* class_weight, const A* lse,
//                          const A* weight, T* gx, rows, cols, ignore_index, label_smoothing, Reduction)
//     gy: [rows] for none, else [1]; gx: [rows, cols].
//   first_bad_target(on, const int64_t* target, rows, cols, ignore_index): its row, or -1
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/cpu.h"
#include "kernels/hd.h"
#include "kernels/math.h"
#include "kernels/row_sums.cuh"

namespace levin::kernels {
enum class Reduction : uint8_t { none, sum, mean };
}

#define LEVIN_LEVEL_FILE "kernels/softmax.cuh"
#include "kernels/each_level.h"

namespace levin::kernels::cpu {
LEVIN_PICK(softmax)
LEVIN_PICK(softmax_rows)
LEVIN_PICK(log_softmax)
LEVIN_PICK(softmax_backward)
LEVIN_PICK(log_softmax_backward)
LEVIN_PICK(cross_entropy)
LEVIN_PICK(cross_entropy_backward)

inline int64_t first_bad_target(const Cpu&, const int64_t* target, int64_t rows, int64_t cols, int64_t ignore_index) {
  for (int64_t r = 0; r < rows; ++r)
    if (target[r] != ignore_index && (target[r] < 0 || target[r] >= cols)) return r;
  return -1;
}
}  // namespace levin::kernels::cpu
#endif
#else
namespace levin::kernels::cpu::LEVIN_LEVEL {

// ---- Rows: every pass but the first finds the row in the first-level cache.

template <class A>
void softmax_row(const A* x, A* y, int64_t n) {
  const A top = row_max(x, n);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) y[i] = math::exp_nonpositive(x[i] - top);
  const A scale = 1 / row_sum(y, n);
  for (int64_t i = 0; i < n; ++i) y[i] *= scale;
}

// sum(exp(x - top)): the terms pass through a small buffer, so that the sum may use the level's vectors.
template <class A>
A sum_of_exp(const A* x, A top, int64_t n) {
  constexpr int64_t tile = 512;
  alignas(64) A e[tile];
  A sum = 0;
  for (int64_t b = 0; b < n; b += tile) {
    const int64_t count = std::min(tile, n - b);
    for (int64_t i = 0; i < count; ++i) e[i] = math::exp_nonpositive(x[b + i] - top);
    sum += row_sum(e, count);
  }
  return sum;
}

template <class A>
void log_softmax_row(const A* x, A* y, int64_t n) {
  const A top = row_max(x, n);
  const A log = math::log(sum_of_exp(x, top, n));
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - top) - log;
}

template <class A>
void softmax_backward_row(const A* gy, const A* y, A* gx, int64_t n) {
  const A dot = row_dot(gy, y, n);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) gx[i] = (gy[i] - dot) * y[i];
}

template <class A>
void log_softmax_backward_row(const A* gy, const A* y, A* gx, int64_t n) {
  const A sum = row_sum(gy, n);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) gx[i] = gy[i] - math::exp_nonpositive(y[i]) * sum;
}

template <class T, class Row>
void map_rows(const Cpu& on, const T* x, int64_t x_stride, T* y, int64_t y_stride, int64_t rows, int64_t cols,
              const Row& row) {
  on.parallel_for(rows, rows_at_once(cols), [=](int64_t first, int64_t last) {
    WideRow<T> in(cols), out(cols);
    for (int64_t r = first; r < last; ++r) {
      T* const to = y + r * y_stride;
      row(in.read(x + r * x_stride, cols), out.begin(to), cols);
      out.finish(to, cols);
    }
  });
}

template <class T, class Row>
void map_rows(const Cpu& on, const T* gy, const T* y, T* gx, int64_t rows, int64_t cols, const Row& row) {
  on.parallel_for(rows, rows_at_once(cols), [=](int64_t first, int64_t last) {
    WideRow<T> a(cols), b(cols), out(cols);
    for (int64_t r = first; r < last; ++r) {
      T* const to = gx + r * cols;
      row(a.read(gy + r * cols, cols), b.read(y + r * cols, cols), out.begin(to), cols);
      out.finish(to, cols);
    }
  });
}

// ---- An inner dimension: columns of a tile side by side, each walked along dim.

inline constexpr int64_t kColumns = 128;

// body(offset of the tile's first element, columns): its element [d, j] is at offset + d * inner + j.
template <class Body>
void each_column_tile(const Cpu& on, int64_t outer, int64_t dim, int64_t inner, const Body& body) {
  const int64_t tiles = (inner + kColumns - 1) / kColumns;
  on.parallel_for(outer * tiles, rows_at_once(dim * std::min(inner, kColumns)), [=](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      const int64_t j = t % tiles * kColumns;
      body(t / tiles * dim * inner + j, std::min(kColumns, inner - j));
    }
  });
}

// top = max and sum = sum(exp(x - top)) of each column.
template <class T>
void column_sums(const T* x, int64_t dim, int64_t inner, int64_t columns, Accum<T>* top, Accum<T>* sum) {
  using A = Accum<T>;
  for (int64_t j = 0; j < columns; ++j) top[j] = -std::numeric_limits<A>::infinity(), sum[j] = 0;
  for (int64_t d = 0; d < dim; ++d)
    for (int64_t j = 0; j < columns; ++j) {
      const A v = A(x[d * inner + j]);
      top[j] = v > top[j] ? v : top[j];
    }
  for (int64_t d = 0; d < dim; ++d)
    for (int64_t j = 0; j < columns; ++j) sum[j] += math::exp_nonpositive(A(x[d * inner + j]) - top[j]);
}

template <class T>
void softmax_rows(const Cpu& on, const T* x, int64_t x_stride, T* y, int64_t y_stride, int64_t rows, int64_t cols) {
  using A = Accum<T>;
  map_rows(on, x, x_stride, y, y_stride, rows, cols, [](const A* a, A* b, int64_t n) { softmax_row(a, b, n); });
}

template <class T>
void softmax(const Cpu& on, const T* x, T* y, int64_t outer, int64_t dim, int64_t inner) {
  using A = Accum<T>;
  if (inner == 1) return softmax_rows(on, x, dim, y, dim, outer, dim);
  each_column_tile(on, outer, dim, inner, [=](int64_t at, int64_t columns) {
    A top[kColumns], scale[kColumns];
    const T* const in = x + at;
    T* const out = y + at;
    column_sums(in, dim, inner, columns, top, scale);
    for (int64_t j = 0; j < columns; ++j) scale[j] = 1 / scale[j];
    for (int64_t d = 0; d < dim; ++d)
#pragma GCC ivdep
      for (int64_t j = 0; j < columns; ++j)
        out[d * inner + j] = T(math::exp_nonpositive(A(in[d * inner + j]) - top[j]) * scale[j]);
  });
}

template <class T>
void log_softmax(const Cpu& on, const T* x, T* y, int64_t outer, int64_t dim, int64_t inner) {
  using A = Accum<T>;
  if (inner == 1)
    return map_rows(on, x, dim, y, dim, outer, dim, [](const A* a, A* b, int64_t n) { log_softmax_row(a, b, n); });
  each_column_tile(on, outer, dim, inner, [=](int64_t at, int64_t columns) {
    A top[kColumns], log[kColumns];
    const T* const in = x + at;
    T* const out = y + at;
    column_sums(in, dim, inner, columns, top, log);
    for (int64_t j = 0; j < columns; ++j) log[j] = math::log(log[j]);
    for (int64_t d = 0; d < dim; ++d)
#pragma GCC ivdep
      for (int64_t j = 0; j < columns; ++j) out[d * inner + j] = T((A(in[d * inner + j]) - top[j]) - log[j]);
  });
}

template <class T>
void softmax_backward(const Cpu& on, const T* gy, const T* y, T* gx, int64_t outer, int64_t dim, int64_t inner) {
  using A = Accum<T>;
  if (inner == 1)
    return map_rows(on, gy, y, gx, outer, dim,
                    [](const A* g, const A* a, A* b, int64_t n) { softmax_backward_row(g, a, b, n); });
  each_column_tile(on, outer, dim, inner, [=](int64_t at, int64_t columns) {
    A dot[kColumns];
    for (int64_t j = 0; j < columns; ++j) dot[j] = 0;
    const T *const g = gy + at, *const p = y + at;
    T* const out = gx + at;
    for (int64_t d = 0; d < dim; ++d)
      for (int64_t j = 0; j < columns; ++j) dot[j] += A(g[d * inner + j]) * A(p[d * inner + j]);
    for (int64_t d = 0; d < dim; ++d)
#pragma GCC ivdep
      for (int64_t j = 0; j < columns; ++j)
        out[d * inner + j] = T((A(g[d * inner + j]) - dot[j]) * A(p[d * inner + j]));
  });
}

template <class T>
void log_softmax_backward(const Cpu& on, const T* gy, const T* y, T* gx, int64_t outer, int64_t dim, int64_t inner) {
  using A = Accum<T>;
  if (inner == 1)
    return map_rows(on, gy, y, gx, outer, dim,
                    [](const A* g, const A* a, A* b, int64_t n) { log_softmax_backward_row(g, a, b, n); });
  each_column_tile(on, outer, dim, inner, [=](int64_t at, int64_t columns) {
    A sum[kColumns];
    for (int64_t j = 0; j < columns; ++j) sum[j] = 0;
    const T *const g = gy + at, *const p = y + at;
    T* const out = gx + at;
    for (int64_t d = 0; d < dim; ++d)
      for (int64_t j = 0; j < columns; ++j) sum[j] += A(g[d * inner + j]);
    for (int64_t d = 0; d < dim; ++d)
#pragma GCC ivdep
      for (int64_t j = 0; j < columns; ++j)
        out[d * inner + j] = T(A(g[d * inner + j]) - math::exp_nonpositive(A(p[d * inner + j])) * sum[j]);
  });
}

// ---- Cross-entropy

// The weights of the classes in the type of the sums, or nothing.
template <class T>
std::vector<Accum<T>> wide_weights(const T* class_weight, int64_t cols) {
  std::vector<Accum<T>> w;
  if (class_weight != nullptr)
    for (int64_t c = 0; c < cols; ++c) w.push_back(Accum<T>(class_weight[c]));
  return w;
}

template <class T>
void cross_entropy(const Cpu& on, const T* x, const int64_t* target, const T* class_weight, T* out, Accum<T>* lse,
                   Accum<T>* weight, int64_t rows, int64_t cols, int64_t ignore_index, double label_smoothing,
                   Reduction reduction) {
  using A = Accum<T>;
  const std::vector<A> weights = wide_weights(class_weight, cols);
  const A* const w = class_weight != nullptr ? weights.data() : nullptr;
  const A smooth = A(label_smoothing / double(cols)), rest = A(1 - label_smoothing);
  const int64_t grain = rows_at_once(cols);
  struct Part {
    double loss = 0, weight = 0;
  };
  std::vector<Part> parts(size_t((rows + grain - 1) / grain));
  on.parallel_for(rows, grain, [&](int64_t first, int64_t last) {
    WideRow<T> row(cols);
    Part part;
    for (int64_t r = first; r < last; ++r) {
      const A* const in = row.read(x + r * cols, cols);
      const A top = row_max(in, cols);
      const A log = math::log(sum_of_exp(in, top, cols));
      const A total = top + log;
      lse[r] = total;
      const int64_t t = target[r];
      A loss = 0, own = 0;
      if (t != ignore_index) {
        own = w != nullptr ? w[t] : A(1);
        loss = rest * own * ((top - in[t]) + log);  // lse - x[t] would lose the bits of a small loss
        if (smooth != 0) {
          const A others =
              w != nullptr
                  ? sum_terms<1, A>(
                        cols, [=]<class V>(V, int64_t i) __attribute__((
                                  always_inline)) { return Sums<V, 1>{{(total - load<V>(in + i)) * load<V>(w + i)}}; })
                        .s[0]
                  : sum_terms<1, A>(
                        cols, [=]<class V>(V, int64_t i)
                                  __attribute__((always_inline)) { return Sums<V, 1>{{total - load<V>(in + i)}}; })
                        .s[0];
          loss += smooth * others;
        }
      }
      if (reduction == Reduction::none) out[r] = T(loss);
      part.loss += double(loss);
      part.weight += double(own);
    }
    parts[size_t(first / grain)] = part;
  });
  Part all;
  for (const Part& p : parts) all.loss += p.loss, all.weight += p.weight;
  *weight = A(all.weight);
  if (reduction == Reduction::sum) *out = T(A(all.loss));
  if (reduction == Reduction::mean) *out = T(A(all.loss / all.weight));
}

template <class T>
void cross_entropy_backward(const Cpu& on, const T* gy, const T* x, const int64_t* target, const T* class_weight,
                            const Accum<T>* lse, const Accum<T>* weight, T* gx, int64_t rows, int64_t cols,
                            int64_t ignore_index, double label_smoothing, Reduction reduction) {
  using A = Accum<T>;
  const std::vector<A> weights = wide_weights(class_weight, cols);
  const A* const w = class_weight != nullptr ? weights.data() : nullptr;
  const A smooth = A(label_smoothing / double(cols)), rest = A(1 - label_smoothing);
  const A all = w != nullptr ? row_sum(w, cols) : A(cols);
  on.parallel_for(rows, rows_at_once(cols), [=](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const T* const in = x + r * cols;
      T* const g = gx + r * cols;
      const int64_t t = target[r];
      if (t == ignore_index) {
        for (int64_t c = 0; c < cols; ++c) g[c] = T(A(0));
        continue;
      }
      A up = A(gy[reduction == Reduction::none ? r : 0]);
      if (reduction == Reduction::mean) up /= *weight;
      const A own = up * rest * (w != nullptr ? w[t] : A(1));
      const A scale = own + up * smooth * all, total = lse[r], even = up * smooth;
      const A at_target = math::exp_nonpositive(A(in[t]) - total) * scale - even * (w != nullptr ? w[t] : A(1)) - own;
      if (w != nullptr)
#pragma GCC ivdep
        for (int64_t c = 0; c < cols; ++c) g[c] = T(math::exp_nonpositive(A(in[c]) - total) * scale - even * w[c]);
      else
#pragma GCC ivdep
        for (int64_t c = 0; c < cols; ++c) g[c] = T(math::exp_nonpositive(A(in[c]) - total) * scale - even);
      g[t] = T(at_target);
    }
  });
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
