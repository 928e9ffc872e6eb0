// Optimizer updates: one call updates every parameter of a group and dtype ("multi-tensor"), so that a hundred small
// tensors cost one pass over a list.
//
// A Slot is one parameter: p, its gradient g and up to three state arrays a, b, c, all dense with n elements of T (float or
// double). Numbers that change from step to step are read through pointers: `lr` of the group, `step` of the slot (already
// counted up). Elements are independent, so results do not depend on the number of threads.
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_UPDATE_CUH
#define LEVIN_KERNELS_UPDATE_CUH

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "kernels/cpu.h"
#include "kernels/hd.h"
#include "kernels/lib/scratch.h"

namespace levin::kernels {

template <class T>
struct Slot {
  T* p = nullptr;
  const T* g = nullptr;
  T* a = nullptr;
  T* b = nullptr;
  T* c = nullptr;
  std::int64_t n = 0;
  std::int64_t* step = nullptr;  // 1 at the first update
};

struct SgdRule {  // a: momentum buffer
  const double* lr;
  double momentum, dampening, weight_decay;
  bool nesterov, maximize;
};
struct AdamRule {  // a: mean, b: mean of squares, c: its maximum (amsgrad)
  const double* lr;
  double beta1, beta2, eps, weight_decay;
  bool decoupled, amsgrad, maximize;  // decoupled: AdamW
};
struct RmspropRule {  // a: mean of squares, b: momentum buffer, c: mean (centered)
  const double* lr;
  double alpha, eps, weight_decay, momentum;
  bool centered, maximize;
};
struct AdagradRule {  // a: sum of squares
  const double* lr;
  double lr_decay, eps, weight_decay;
  bool maximize;
};

inline constexpr std::int64_t kUpdateChunk = 16384;  // elements a task

}  // namespace levin::kernels

#define LEVIN_LEVEL_FILE "kernels/update.cuh"
#include "kernels/each_level.h"

namespace levin::kernels::cpu {
LEVIN_PICK(update)       // update(on, rule, span of slots)
LEVIN_PICK(squared_sum)  // sum of x^2 in double: squared_sum(on, x, n)
LEVIN_PICK(power_sum)    // sum of |x|^p in double, p = inf: the maximum; NaN stays NaN
LEVIN_PICK(scale)        // x *= factor
LEVIN_PICK(clamp_all)    // x = min(max(x, -limit), limit)
LEVIN_PICK(dot)          // sum of x y in double
LEVIN_PICK(axpy)         // y += alpha x
}  // namespace levin::kernels::cpu

#endif  // LEVIN_KERNELS_UPDATE_CUH
#else

namespace levin::kernels::cpu::LEVIN_LEVEL {

template <class T>
void update_slot(const SgdRule& r, const Slot<T>& s, std::int64_t begin, std::int64_t end) {
  const T lr = T(*r.lr), wd = T(r.weight_decay), mu = T(r.momentum), sign = r.maximize ? T(-1) : T(1);
  T* p = s.p;
  const T* g = s.g;
  T* a = s.a;
  if (!a) {
#pragma GCC ivdep
    for (std::int64_t i = begin; i < end; ++i) p[i] -= lr * (sign * g[i] + wd * p[i]);
    return;
  }
  // The first buffer is the gradient itself, undamped.
  const T keep = *s.step == 1 ? T(0) : mu, take = *s.step == 1 ? T(1) : T(1 - r.dampening);
  const T of_grad = r.nesterov ? T(1) : T(0), of_buffer = r.nesterov ? mu : T(1);
#pragma GCC ivdep
  for (std::int64_t i = begin; i < end; ++i) {
    const T d = sign * g[i] + wd * p[i];
    const T m = keep * a[i] + take * d;
    a[i] = m;
    p[i] -= lr * (of_grad * d + of_buffer * m);
  }
}

template <class T>
void update_slot(const AdamRule& r, const Slot<T>& s, std::int64_t begin, std::int64_t end) {
  const double t = static_cast<double>(*s.step);
  const T b1 = T(r.beta1), b2 = T(r.beta2), c1 = T(1 - r.beta1), c2 = T(1 - r.beta2), eps = T(r.eps),
          sign = r.maximize ? T(-1) : T(1);
  const T step_size = T(*r.lr / (1 - std::pow(r.beta1, t)));
  const T root = T(std::sqrt(1 - std::pow(r.beta2, t)));
  const T shrink = r.decoupled ? T(1 - *r.lr * r.weight_decay) : T(1), wd = r.decoupled ? T(0) : T(r.weight_decay);
  T* p = s.p;
  const T* g = s.g;
  T* m = s.a;
  T* v = s.b;
  T* high = s.c;
  if (!high) {
#pragma GCC ivdep
    for (std::int64_t i = begin; i < end; ++i) {
      const T d = sign * g[i] + wd * p[i];
      const T mean = b1 * m[i] + c1 * d;
      const T square = b2 * v[i] + c2 * d * d;
      m[i] = mean;
      v[i] = square;
      p[i] = p[i] * shrink - step_size * mean / (std::sqrt(square) / root + eps);
    }
    return;
  }
#pragma GCC ivdep
  for (std::int64_t i = begin; i < end; ++i) {
    const T d = sign * g[i] + wd * p[i];
    const T mean = b1 * m[i] + c1 * d;
    const T square = b2 * v[i] + c2 * d * d;
    const T most = square > high[i] ? square : high[i];
    m[i] = mean;
    v[i] = square;
    high[i] = most;
    p[i] = p[i] * shrink - step_size * mean / (std::sqrt(most) / root + eps);
  }
}

template <class T>
void update_slot(const RmspropRule& r, const Slot<T>& s, std::int64_t begin, std::int64_t end) {
  const T lr = T(*r.lr), wd = T(r.weight_decay), alpha = T(r.alpha), rest = T(1 - r.alpha), eps = T(r.eps),
          mu = T(r.momentum), sign = r.maximize ? T(-1) : T(1);
  for (std::int64_t i = begin; i < end; ++i) {
    const T d = sign * s.g[i] + wd * s.p[i];
    const T square = alpha * s.a[i] + rest * d * d;
    s.a[i] = square;
    T spread = square;
    if (s.c) {
      s.c[i] += rest * (d - s.c[i]);
      spread = square - s.c[i] * s.c[i];
    }
    T change = d / (std::sqrt(spread) + eps);
    if (s.b) s.b[i] = change = mu * s.b[i] + change;
    s.p[i] -= lr * change;
  }
}

template <class T>
void update_slot(const AdagradRule& r, const Slot<T>& s, std::int64_t begin, std::int64_t end) {
  const T lr = T(*r.lr / (1 + static_cast<double>(*s.step - 1) * r.lr_decay)), wd = T(r.weight_decay), eps = T(r.eps),
          sign = r.maximize ? T(-1) : T(1);
  for (std::int64_t i = begin; i < end; ++i) {
    const T d = sign * s.g[i] + wd * s.p[i];
    s.a[i] += d * d;
    s.p[i] -= lr * d / (std::sqrt(s.a[i]) + eps);
  }
}

template <class R, class T>
void update(const Cpu& on, const R& rule, std::span<const Slot<T>> slots) {
  std::int64_t total = 0;
  for (const Slot<T>& s : slots) total += s.n;
  if (total <= kUpdateChunk) {
    for (const Slot<T>& s : slots) update_slot(rule, s, 0, s.n);
    return;
  }
  // Elements are independent, so how they are laid end to end is free: the first eighth of every slot, then the second,
  // and so on. A thread, which gets a stretch of that, then updates the part of a matrix that its rows of the gradient's
  // product also wrote: memory that another core wrote last costs several times as much.
  constexpr std::int64_t kParts = 8;
  on.parallel_for(total, kUpdateChunk, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t at = 0;
    for (std::int64_t part = 0; part < kParts && at < end; ++part)
      for (const Slot<T>& s : slots) {
        const std::int64_t first = s.n * part / kParts, count = s.n * (part + 1) / kParts - first;
        const std::int64_t from = std::max(begin - at, std::int64_t{0}), to = std::min(end - at, count);
        if (from < to) update_slot(rule, s, first + from, first + to);
        at += count;
        if (at >= end) break;
      }
  });
}

// Sums in double, by fixed chunks whose partial sums are added in order.
template <class F>
double chunked_sum(const Cpu& on, std::int64_t n, F&& part) {
  const std::int64_t chunks = (n + kUpdateChunk - 1) / kUpdateChunk;
  if (chunks <= 1) return n > 0 ? part(std::int64_t{0}, n) : 0.0;
  const lib::Scratch memory(static_cast<std::size_t>(chunks) * sizeof(double));
  double* const partial = memory.as<double>();
  on.parallel_for(n, kUpdateChunk,
                  [&](std::int64_t begin, std::int64_t end) { partial[begin / kUpdateChunk] = part(begin, end); });
  double total = 0;
  for (std::int64_t i = 0; i < chunks; ++i) total += partial[i];
  return total;
}

// Eight running sums: enough for the widest registers, and a fixed order.
template <class T, class F>
double eight_sums(const T* x, std::int64_t begin, std::int64_t end, F&& term) {
  double lanes[8] = {};
  std::int64_t i = begin;
  for (; i + 8 <= end; i += 8) {
    for (int k = 0; k < 8; ++k) lanes[k] += term(x, i + k);
  }
  for (; i < end; ++i) lanes[0] += term(x, i);
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

template <class T>
double squared_sum(const Cpu& on, const T* x, std::int64_t n) {
  return chunked_sum(on, n, [x](std::int64_t begin, std::int64_t end) {
    return eight_sums(x, begin, end, [](const T* v, std::int64_t i) { return double(v[i]) * double(v[i]); });
  });
}

template <class T>
double power_sum(const Cpu& on, const T* x, std::int64_t n, double p) {
  if (p == 2) return squared_sum(on, x, n);
  if (std::isinf(p)) {
    double high = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const double v = std::abs(double(x[i]));
      if (v > high || v != v) high = v;
      if (high != high) break;
    }
    return high;
  }
  return chunked_sum(on, n, [x, p](std::int64_t begin, std::int64_t end) {
    return eight_sums(x, begin, end, [p](const T* v, std::int64_t i) { return std::pow(std::abs(double(v[i])), p); });
  });
}

template <class T>
double dot(const Cpu& on, const T* x, const T* y, std::int64_t n) {
  return chunked_sum(on, n, [x, y](std::int64_t begin, std::int64_t end) {
    return eight_sums(x, begin, end, [y](const T* v, std::int64_t i) { return double(v[i]) * double(y[i]); });
  });
}

template <class T>
void axpy(const Cpu& on, double alpha, const T* x, T* y, std::int64_t n) {
  on.parallel_for(n, kUpdateChunk, [&, a = T(alpha)](std::int64_t begin, std::int64_t end) {
#pragma GCC ivdep
    for (std::int64_t i = begin; i < end; ++i) y[i] += a * x[i];
  });
}

template <class T>
void scale(const Cpu& on, T* x, std::int64_t n, double factor) {
  on.parallel_for(n, kUpdateChunk, [&, f = T(factor)](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) x[i] *= f;
  });
}

template <class T>
void clamp_all(const Cpu& on, T* x, std::int64_t n, double limit) {
  on.parallel_for(n, kUpdateChunk, [&, high = T(limit)](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const T v = x[i];
      x[i] = v > high ? high : v < -high ? -high : v;
    }
  });
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
