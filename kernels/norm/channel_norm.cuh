#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_CHANNEL_NORM_CUH
#define LEVIN_KERNELS_CHANNEL_NORM_CUH
// Batch and group norm; types, null pointers and the order of sums are those of kernels/norm/norm.cuh.
//
// Per channel, x, y, gy, gx: [n, c, s] (s: product of the spatial sizes, 1 for [n, c]); w, b, gw, gb: [c]:
//   batch_norm_train(on, const T* x, const W* w, const W* b, T* y, A* mean, A* rstd, W* running_mean, W* running_var,
//                    n, c, s, double momentum, double eps, Last<T> last)
//     mean, rstd [c]: of the batch (biased variance); running = (1 - momentum) * running + momentum * batch, the
//     variance unbiased there (needs n * s >= 2 to be finite); running_mean and running_var may be null.
//     `last` (both forwards): y becomes max(y + residual, 0), without the addition where there is no residual.
//   batch_norm_eval(on, const T* x, const W* w, const W* b, const W* running_mean, const W* running_var, T* y,
//                   n, c, s, double eps, Last<T> last)
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
#include <cstdint>
#include <vector>

#include "kernels/norm/norm.cuh"

namespace levin::kernels {

enum class Rectify : std::uint8_t { no, yes };
// What follows a batch norm in the same pass. A residual [n, c, s] comes with Rectify::yes alone.
template <class T>
struct Last {
  Rectify rectify = Rectify::no;
  const T* residual = nullptr;
};

}  // namespace levin::kernels

#define LEVIN_LEVEL_FILE "kernels/norm/channel_norm.cuh"
#include "kernels/executor/each_level.h"

#include "kernels/executor/pick_halves.h"

namespace levin::kernels::cpu {
LEVIN_PICK_HALVES(batch_norm_train)
LEVIN_PICK_HALVES(batch_norm_eval)
LEVIN_PICK_HALVES(batch_norm_backward)
LEVIN_PICK_HALVES(batch_norm_eval_backward)
LEVIN_PICK_HALVES(group_norm)
LEVIN_PICK_HALVES(group_norm_backward)
}  // namespace levin::kernels::cpu
#endif
#else
namespace levin::kernels::cpu::LEVIN_LEVEL {

// ---- Per channel of [n, c, s]

// Sums over n and s of each channel: total[k * c + channel]. term(V{}, channel, a, b) gives the terms of numbers a and
// b of x and y at one place, V a vector or A; y may be null (b is then a).
template <int kSums, class T, class Term>
void channel_sums(const Cpu& on, const T* x, const T* y, int64_t n, int64_t c, int64_t s, Accum<T>* total,
                  const Term& term) {
  using A = Accum<T>;
  if (s == 1) {  // rows of channels: column sums
    const int64_t grain = rows_of_part(n, c);
    std::vector<A> parts(size_t((n + grain - 1) / grain * kSums * c));
    on.parallel_for(n, grain, [&](int64_t first, int64_t last) {
      A* const part = parts.data() + first / grain * kSums * c;
      const WideRow<T> wide_x(c), wide_y(y != nullptr ? c : 0);
      for (int64_t i = first; i < last; ++i) {
        const A* const a = wide_x.read(x + i * c, c);
        const A* const b = y != nullptr ? wide_y.read(y + i * c, c) : a;
#pragma GCC ivdep
        for (int64_t j = 0; j < c; ++j) {
          const Sums<A, kSums> t = term(A{}, j, a[j], b[j]);
          for (int k = 0; k < kSums; ++k) part[k * c + j] += t.s[k];
        }
      }
    });
    return combine(on, parts.data(), (n + grain - 1) / grain, kSums * c, total);
  }
  constexpr int64_t tile = 4096;
  on.parallel_for(c, std::max<int64_t>(1, rows_at_once(n * s)), [&](int64_t first, int64_t last) {
    for (int64_t j = first; j < last; ++j) {
      double sum[kSums] = {};
      for (int64_t i = 0; i < n; ++i)
        for (int64_t at = 0; at < s; at += tile) {
          const int64_t count = std::min(tile, s - at), offset = (i * c + j) * s + at;
          const T *const a = x + offset, *const b = y != nullptr ? y + offset : a;
          const Sums<A, kSums> t = sum_terms<kSums, A>(
              count, [&]<class V>(V v, int64_t e)
                         __attribute__((always_inline)) { return term(v, j, load<V>(a + e), load<V>(b + e)); });
          for (int k = 0; k < kSums; ++k) sum[k] += double(t.s[k]);
        }
      for (int k = 0; k < kSums; ++k) total[k * c + j] = A(sum[k]);
    }
  });
}

// y = then(x * scale[channel] + shift[channel], place) after taking `center` away, all in [n, c, s].
template <class T, class F>
void channel_affine_then(const Cpu& on, const T* x, const Accum<T>* center, const Accum<T>* scale,
                         const Accum<T>* shift, T* y, int64_t n, int64_t c, int64_t s, const F& then) {
  using A = Accum<T>;
  on.parallel_for(n, rows_at_once(c * s), [=](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const T* const in = x + i * c * s;
      T* const out = y + i * c * s;
      if (s == 1) {
        each_vector<A>(
            c, [=]<class V>(V, int64_t j) __attribute__((always_inline)) {
              const V v = (load<V>(in + j) - load<V>(center + j)) * load<V>(scale + j) + load<V>(shift + j);
              put(out + j, then(v, i * c + j));
            });
        continue;
      }
      for (int64_t j = 0; j < c; ++j) {
        const A m = center[j], f = scale[j], h = shift[j];
        const T* const from = in + j * s;
        T* const to = out + j * s;
        each_vector<A>(
            s, [=]<class V>(V, int64_t e) __attribute__((always_inline)) {
              const V v = (load<V>(from + e) - m) * f + h;
              put(to + e, then(v, (i * c + j) * s + e));
            });
      }
    }
  });
}
// max(v, 0) of a number or a vector; NaN stays NaN. nvcc's front end knows no constant of a vector type.
template <class V>
[[gnu::always_inline]] inline V rectified(const V& v) {
  V zero;
  __builtin_memset(&zero, 0, sizeof zero);
  return v < zero ? zero : v;
}
// channel_affine_then with Last in the place of a function.
template <class T>
void channel_affine(const Cpu& on, const T* x, const Accum<T>* center, const Accum<T>* scale, const Accum<T>* shift,
                    T* y, int64_t n, int64_t c, int64_t s, const Last<T>& last) {
  const auto with = [&](const auto& f) { channel_affine_then(on, x, center, scale, shift, y, n, c, s, f); };
  if (last.rectify == Rectify::no)
    with([]<class V>(V v, int64_t) __attribute__((always_inline)) { return v; });
  else if (const T* const r = last.residual; r != nullptr)
    with([r]<class V>(V v, int64_t at) __attribute__((always_inline)) { return rectified(v + load<V>(r + at)); });
  else
    with([]<class V>(V v, int64_t) __attribute__((always_inline)) { return rectified(v); });
}

// gx = gy * p[channel] + x * q[channel] + r[channel].
template <class T>
void channel_combine(const Cpu& on, const T* gy, const T* x, const Accum<T>* center, const Accum<T>* p,
                     const Accum<T>* q, const Accum<T>* r, T* gx, int64_t n, int64_t c, int64_t s) {
  using A = Accum<T>;
  on.parallel_for(n, rows_at_once(c * s), [=](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const T *const g = gy + i * c * s, *const in = x + i * c * s;
      T* const out = gx + i * c * s;
      if (s == 1) {
        each_vector<A>(
            c, [=]<class V>(V, int64_t j) __attribute__((always_inline)) {
              put(out + j, load<V>(g + j) * load<V>(p + j) + (load<V>(in + j) - load<V>(center + j)) * load<V>(q + j) +
                               load<V>(r + j));
            });
        continue;
      }
      for (int64_t j = 0; j < c; ++j) {
        const A m = center[j], a = p[j], b = q[j], h = r[j];
        const T *const gs = g + j * s, *const from = in + j * s;
        T* const to = out + j * s;
        each_vector<A>(
            s, [=]<class V>(V, int64_t e) __attribute__((always_inline)) {
              put(to + e, load<V>(gs + e) * a + (load<V>(from + e) - m) * b + h);
            });
      }
    }
  });
}

template <class T, class W>
void batch_norm_train(const Cpu& on, const T* x, const W* w, const W* b, T* y, Accum<T>* mean, Accum<T>* rstd,
                      W* running_mean, W* running_var, int64_t n, int64_t c, int64_t s, double momentum, double eps,
                      Last<T> last = {}) {
  using A = Accum<T>;
  const T* const none = nullptr;
  const double count = double(n * s);
  channel_sums<1>(
      on, x, none, n, c, s, mean,
      []<class V>(V, int64_t, V a, V) __attribute__((always_inline)) { return Sums<V, 1>{{a}}; });
  for (int64_t j = 0; j < c; ++j) mean[j] = A(double(mean[j]) / count);
  channel_sums<1>(
      on, x, none, n, c, s, rstd, [mean]<class V>(V, int64_t j, V a, V) __attribute__((always_inline)) {
        const V d = a - mean[j];
        return Sums<V, 1>{{d * d}};
      });
  std::vector<A> scale = widened(w, c, A(1));
  const std::vector<A> shift = widened(b, c, A(0));
  for (int64_t j = 0; j < c; ++j) {
    const double square = double(rstd[j]);
    if (running_mean != nullptr)
      running_mean[j] = W(A((1 - momentum) * double(A(running_mean[j])) + momentum * double(mean[j])));
    if (running_var != nullptr)
      running_var[j] = W(A((1 - momentum) * double(A(running_var[j])) + momentum * (square / (count - 1))));
    rstd[j] = reciprocal_root(A(square / count), eps);
    scale[size_t(j)] *= rstd[j];
  }
  channel_affine(on, x, mean, scale.data(), shift.data(), y, n, c, s, last);
}

template <class T, class W>
void batch_norm_eval(const Cpu& on, const T* x, const W* w, const W* b, const W* running_mean, const W* running_var,
                     T* y, int64_t n, int64_t c, int64_t s, double eps, Last<T> last = {}) {
  using A = Accum<T>;
  std::vector<A> scale = widened(w, c, A(1));
  const std::vector<A> shift = widened(b, c, A(0)), center = widened(running_mean, c, A(0));
  for (int64_t j = 0; j < c; ++j) scale[size_t(j)] *= reciprocal_root(A(running_var[j]), eps);
  channel_affine(on, x, center.data(), scale.data(), shift.data(), y, n, c, s, last);
}

// sums: gb and gw of each channel, one after the other.
template <class T>
void batch_norm_sums(const Cpu& on, const T* gy, const T* x, const Accum<T>* mean, const Accum<T>* rstd, Accum<T>* sums,
                     int64_t n, int64_t c, int64_t s) {
  channel_sums<2>(
      on, gy, x, n, c, s, sums, [ mean, rstd ]<class V>(V, int64_t j, V g, V a) __attribute__((always_inline)) {
        return Sums<V, 2>{{g, g * ((a - mean[j]) * rstd[j])}};
      });
}

template <class T, class W>
void batch_norm_backward(const Cpu& on, const T* gy, const T* x, const W* w, const Accum<T>* mean, const Accum<T>* rstd,
                         T* gx, W* gw, W* gb, int64_t n, int64_t c, int64_t s) {
  using A = Accum<T>;
  std::vector<A> sums(size_t(2 * c));
  batch_norm_sums(on, gy, x, mean, rstd, sums.data(), n, c, s);
  store(gb, sums.data(), c);
  store(gw, sums.data() + c, c);
  if (gx == nullptr) return;
  // gx = w rstd (gy - mean(gy) - h mean(gy h)), h = (x - mean) rstd
  std::vector<A> p = widened(w, c, A(1)), q(static_cast<size_t>(c)), r(static_cast<size_t>(c));
  for (int64_t j = 0; j < c; ++j) {
    const size_t k = size_t(j);
    p[k] *= rstd[j];
    q[k] = -p[k] * rstd[j] * A(double(sums[size_t(c) + k]) / double(n * s));
    r[k] = -p[k] * A(double(sums[k]) / double(n * s));
  }
  channel_combine(on, gy, x, mean, p.data(), q.data(), r.data(), gx, n, c, s);
}

template <class T, class W>
void batch_norm_eval_backward(const Cpu& on, const T* gy, const T* x, const W* w, const W* running_mean,
                              const W* running_var, T* gx, W* gw, W* gb, int64_t n, int64_t c, int64_t s, double eps) {
  using A = Accum<T>;
  std::vector<A> scale = widened(w, c, A(1)), rstd(static_cast<size_t>(c));
  const std::vector<A> center = widened(running_mean, c, A(0)), zero(size_t(c), A(0));
  for (size_t k = 0; k < size_t(c); ++k) {
    rstd[k] = reciprocal_root(A(running_var[k]), eps);
    scale[k] *= rstd[k];
  }
  if (gw != nullptr || gb != nullptr) {
    std::vector<A> sums(size_t(2 * c));
    batch_norm_sums(on, gy, x, center.data(), rstd.data(), sums.data(), n, c, s);
    store(gb, sums.data(), c);
    store(gw, sums.data() + c, c);
  }
  if (gx != nullptr) channel_affine(on, gy, zero.data(), scale.data(), zero.data(), gx, n, c, s, Last<T>{});
}

// ---- Per sample and group: the elements of a group are contiguous.

template <class T, class W>
void group_norm(const Cpu& on, const T* x, const W* w, const W* b, T* y, Accum<T>* mean, Accum<T>* rstd, int64_t n,
                int64_t c, int64_t s, int64_t groups, double eps) {
  using A = Accum<T>;
  const std::vector<A> weight = widened(w, c, A(1)), bias = widened(b, c, A(0));
  const A *const wide_w = weight.data(), *const wide_b = bias.data();
  const int64_t width = c / groups, count = width * s;
  on.parallel_for(n * groups, rows_at_once(count), [=](int64_t first, int64_t last) {
    for (int64_t k = first; k < last; ++k) {
      const T* const in = x + k * count;
      const A mu = row_sum(in, count) / A(count);
      const A square = sum_terms<1, A>(
                           count,
                           [=]<class V>(V, int64_t i) __attribute__((always_inline)) {
                             const V d = load<V>(in + i) - mu;
                             return Sums<V, 1>{{d * d}};
                           })
                           .s[0];
      mean[k] = mu;
      rstd[k] = reciprocal_root(square / A(count), eps);
      for (int64_t j = 0; j < width; ++j) {
        const int64_t channel = k % groups * width + j;
        const A scale = rstd[k] * wide_w[channel], shift = wide_b[channel];
        const T* const from = in + j * s;
        T* const to = y + k * count + j * s;
        each_vector<A>(
            s, [=]<class V>(V, int64_t e)
                   __attribute__((always_inline)) { put(to + e, (load<V>(from + e) - mu) * scale + shift); });
      }
    }
  });
}

template <class T, class W>
void group_norm_backward(const Cpu& on, const T* gy, const T* x, const W* w, const Accum<T>* mean, const Accum<T>* rstd,
                         T* gx, W* gw, W* gb, int64_t n, int64_t c, int64_t s, int64_t groups) {
  using A = Accum<T>;
  const std::vector<A> weight = widened(w, c, A(1));
  const int64_t width = c / groups, count = width * s;
  std::vector<A> sums(size_t(2 * n * c));  // of gy h and of gy, for each sample and channel
  on.parallel_for(n * groups, rows_at_once(count), [&](int64_t first, int64_t last) {
    for (int64_t k = first; k < last; ++k) {
      const T *const g = gy + k * count, *const in = x + k * count;
      const A mu = mean[k], scale = rstd[k];
      A* const part = sums.data() + k / groups * 2 * c;
      A shift = 0, slope = 0;
      for (int64_t j = 0; j < width; ++j) {
        const int64_t channel = k % groups * width + j;
        const T *const gs = g + j * s, *const from = in + j * s;
        const Sums<A, 2> t = sum_terms<2, A>(
            s, [=]<class V>(V, int64_t e) __attribute__((always_inline)) {
              const V u = load<V>(gs + e);
              return Sums<V, 2>{{u * ((load<V>(from + e) - mu) * scale), u}};
            });
        part[channel] = t.s[0];
        part[c + channel] = t.s[1];
        slope += weight[size_t(channel)] * t.s[0];
        shift += weight[size_t(channel)] * t.s[1];
      }
      if (gx == nullptr) continue;
      shift /= A(count);
      slope = slope * scale / A(count);
      for (int64_t j = 0; j < width; ++j) {
        const A own = weight[size_t(k % groups * width + j)];
        const T *const gs = g + j * s, *const from = in + j * s;
        T* const to = gx + k * count + j * s;
        each_vector<A>(
            s, [=]<class V>(V, int64_t e) __attribute__((always_inline)) {
              put(to + e, (load<V>(gs + e) * own - shift - (load<V>(from + e) - mu) * slope) * scale);
            });
      }
    }
  });
  std::vector<A> total(size_t(2 * c));
  combine(on, sums.data(), n, 2 * c, total.data());
  store(gw, total.data(), c);
  store(gb, total.data() + c, c);
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
