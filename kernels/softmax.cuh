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

template <class T>
void softmax(const Cpu& on, const T* x, T* y, int64_t outer, int64_t dim, int64_t inner);
template <class T>
void softmax_rows(const Cpu& on, const T* x, int64_t x_stride, T* y, int64_t y_stride, int64_t rows, int64_t cols);
template <class T>
void log_softmax(const Cpu& on, const T* x, T* y, int64_t outer, int64_t dim, int64_t inner);
template <class T>
void softmax_backward(const Cpu& on, const T* gy, const T* y, T* gx, int64_t outer, int64_t dim, int64_t inner);
template <class T>
void log_softmax_backward(const Cpu& on, const T* gy, const T* y, T* gx, int64_t outer, int64_t dim, int64_t inner);
template <class T>
void cross_entropy(const Cpu& on, const T* x, const int64_t* target, const T* class_weight, T* out, Accum<T>* lse,
                   Accum<T>* weight, int64_t rows, int64_t cols, int64_t ignore_index, double label_smoothing,
                   Reduction reduction);
template <class T>
void cross_entropy_backward(const Cpu& on, const T* gy, const T* x, const int64_t* target, const T* class_weight,
                            const Accum<T>* lse, const Accum<T>* weight, T* gx, int64_t rows, int64_t cols,
                            int64_t ignore_index, double label_smoothing, Reduction reduction);

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
