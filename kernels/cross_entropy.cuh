#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_CROSS_ENTROPY_CUH
#define LEVIN_KERNELS_CROSS_ENTROPY_CUH
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
#include <vector>

#include "kernels/softmax.cuh"

namespace levin::kernels {
enum class Reduction : uint8_t { none, sum, mean };
}

#define LEVIN_LEVEL_FILE "kernels/cross_entropy.cuh"
#include "kernels/each_level.h"

namespace levin::kernels::cpu {
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
