#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_NORM_CUH
#define LEVIN_KERNELS_NORM_CUH
// Layer, RMS, group and batch norm. T: type of x, y and their gradients (float, double, f16, bf16); W: type of the
// parameters and running statistics, T or float; A = Accum<T>: sums and saved statistics. All tensors contiguous. Every
// sum has a fixed order, whatever the number of threads. w and b may be null (1 and 0); gx, gw, gb may be null (not
// wanted; what is wanted is overwritten, not added to). Sizes may be zero. Pass typed null pointers.
//
// Over the last dimension, x, y, gy, gx: [rows, cols]; w, b, gw, gb: [cols]; mean, rstd: [rows]:
//   layer_norm(on, const T* x, const W* w, const W* b, T* y, A* mean, A* rstd, rows, cols, double eps)
//     y = (x - mean) * rstd * w + b,  rstd = 1 / sqrt(variance + eps), biased variance
//   layer_norm_backward(on, const T* gy, const T* x, const W* w, const A* mean, const A* rstd, T* gx, W* gw, W* gb,
//                       rows, cols)
//   rms_norm(on, const T* x, const W* w, T* y, A* rstd, rows, cols, double eps)     y = x / sqrt(mean(x^2) + eps) * w
//   rms_norm_backward(on, const T* gy, const T* x, const W* w, const A* rstd, T* gx, W* gw, rows, cols)
//
// Per channel, x, y, gy, gx: [n, c, s] (s: product of the spatial sizes, 1 for [n, c]); w, b, gw, gb: [c]:
//   batch_norm_train(on, const T* x, const W* w, const W* b, T* y, A* mean, A* rstd, W* running_mean, W* running_var,
//                    n, c, s, double momentum, double eps)
//     mean, rstd [c]: of the batch (biased variance); running = (1 - momentum) * running + momentum * batch, the
//     variance unbiased there (needs n * s >= 2 to be finite); running_mean and running_var may be null.
//   batch_norm_eval(on, const T* x, const W* w, const W* b, const W* running_mean, const W* running_var, T* y,
//                   n, c, s, double eps)
//   batch_norm_backward(on, const T* gy, const T* x, const W* w, const A* mean, const A* rstd, T* gx, W* gw, W* gb,
//                       n, c, s)                                            of batch_norm_train
//   batch_norm_eval_backward(on, const T* gy, const T* x, const W* w, const W* running_mean, const W* running_var,
//                            T* gx, W* gw, W* gb, n, c, s, double eps)
//
// Per sample and group of c / groups channels; mean, rstd: [n, groups]; groups divides c:
//   group_norm(on, const T* x, const W* w, const W* b, T* y, A* mean, A* rstd, n, c, s, groups, double eps)
//   group_norm_backward(on, const T* gy, const T* x, const W* w, const A* mean, const A* rstd, T* gx, W* gw, W* gb,
//                       n, c, s, groups)
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/cpu.h"
#include "kernels/hd.h"

#define LEVIN_LEVEL_FILE "kernels/norm.cuh"
#include "kernels/each_level.h"

namespace levin::kernels::cpu {
LEVIN_PICK(layer_norm)
LEVIN_PICK(layer_norm_backward)
LEVIN_PICK(rms_norm)
LEVIN_PICK(rms_norm_backward)
LEVIN_PICK(batch_norm_train)
LEVIN_PICK(batch_norm_eval)
LEVIN_PICK(batch_norm_backward)
LEVIN_PICK(batch_norm_eval_backward)
LEVIN_PICK(group_norm)
LEVIN_PICK(group_norm_backward)
}  // namespace levin::kernels::cpu
#endif
#else
namespace levin::kernels::cpu::LEVIN_LEVEL {

template <class T, class W>
void layer_norm(const Cpu& on, const T* x, const W* w, const W* b, T* y, Accum<T>* mean, Accum<T>* rstd, int64_t rows,
                int64_t cols, double eps);
template <class T, class W>
void layer_norm_backward(const Cpu& on, const T* gy, const T* x, const W* w, const Accum<T>* mean, const Accum<T>* rstd,
                         T* gx, W* gw, W* gb, int64_t rows, int64_t cols);
template <class T, class W>
void rms_norm(const Cpu& on, const T* x, const W* w, T* y, Accum<T>* rstd, int64_t rows, int64_t cols, double eps);
template <class T, class W>
void rms_norm_backward(const Cpu& on, const T* gy, const T* x, const W* w, const Accum<T>* rstd, T* gx, W* gw,
                       int64_t rows, int64_t cols);
template <class T, class W>
void batch_norm_train(const Cpu& on, const T* x, const W* w, const W* b, T* y, Accum<T>* mean, Accum<T>* rstd,
                      W* running_mean, W* running_var, int64_t n, int64_t c, int64_t s, double momentum, double eps);
template <class T, class W>
void batch_norm_eval(const Cpu& on, const T* x, const W* w, const W* b, const W* running_mean, const W* running_var,
                     T* y, int64_t n, int64_t c, int64_t s, double eps);
template <class T, class W>
void batch_norm_backward(const Cpu& on, const T* gy, const T* x, const W* w, const Accum<T>* mean, const Accum<T>* rstd,
                         T* gx, W* gw, W* gb, int64_t n, int64_t c, int64_t s);
template <class T, class W>
void batch_norm_eval_backward(const Cpu& on, const T* gy, const T* x, const W* w, const W* running_mean,
                              const W* running_var, T* gx, W* gw, W* gb, int64_t n, int64_t c, int64_t s, double eps);
template <class T, class W>
void group_norm(const Cpu& on, const T* x, const W* w, const W* b, T* y, Accum<T>* mean, Accum<T>* rstd, int64_t n,
                int64_t c, int64_t s, int64_t groups, double eps);
template <class T, class W>
void group_norm_backward(const Cpu& on, const T* gy, const T* x, const W* w, const Accum<T>* mean, const Accum<T>* rstd,
                         T* gx, W* gw, W* gb, int64_t n, int64_t c, int64_t s, int64_t groups);

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
