// Optimizer updates: one call updates every parameter of a group and dtype ("multi-tensor"), so that a hundred small
// tensors cost one pass over a list.
//
// A Slot is one parameter: p, its gradient g and up to three state arrays a, b, c, all dense with n elements. T is
// float or double, on devices also f16 or bf16, whose states are float: all arithmetic is in float then, and p is
// rounded once, at the end. On the cpu a Slot<float> does that, too: with `half` its p and g are of that type, and
// blocks of them are converted around the same loops. On devices `half` is the type of g alone, and p, the master of a
// 16-bit parameter, is also rounded into `rounded`. Numbers that change from step to step are read through pointers:
// `lr` of the group, `step` of the slot (already counted up). Elements are independent, so results do not depend on the
// number of threads.
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_UPDATE_CUH
#define LEVIN_KERNELS_UPDATE_CUH

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>

#include "kernels/device/rounding.cuh"
#include "kernels/executor/cpu.h"
#include "kernels/executor/hd.h"
#include "kernels/executor/pieces.h"
#include "kernels/lib/scratch.h"
#include "levin/dtype.h"

namespace levin::kernels {

enum class Half : std::uint8_t { none, f16, bf16 };

template <class T>
struct Slot {
  T* p = nullptr;
  const T* g = nullptr;
  Accum<T>* a = nullptr;
  Accum<T>* b = nullptr;
  Accum<T>* c = nullptr;
  std::int64_t n = 0;
  std::int64_t* step = nullptr;  // 1 at the first update
  std::int64_t first = 0;        // the element of the parameter at p[0]
  void* rounded = nullptr;       // [n] of rounded_as; devices, T float
  std::uint32_t parameter = 0;   // its place among the optimizer's
  Half half = Half::none;        // see above
  Half rounded_as = Half::none;
  bool stochastic = false;  // how a 16-bit p is rounded: kernels/device/rounding.cuh
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
  bool raw_eps = false;               // eps joins sqrt(v) before the correction for the first steps (SparseAdam)
  // What joins sqrt(v), where root is sqrt(1 - beta2^t).
  LEVIN_HD double added(double root) const { return raw_eps ? eps : eps * root; }
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
struct NadamRule {  // a: mean, b: mean of squares
  const double* lr;
  double beta1, beta2, eps, weight_decay, momentum_decay;
  bool decoupled, maximize;
};
struct RadamRule {  // a: mean, b: mean of squares
  const double* lr;
  double beta1, beta2, eps, weight_decay;
  bool decoupled, maximize;
};
struct AdamaxRule {  // a: mean, b: largest magnitude
  const double* lr;
  double beta1, beta2, eps, weight_decay;
  bool maximize;
};
struct AdadeltaRule {  // a: mean of squares, b: mean of squared changes
  const double* lr;
  double rho, eps, weight_decay;
  bool maximize;
};
struct LionRule {  // a: mean
  const double* lr;
  double beta1, beta2, weight_decay;
  bool maximize;
};
struct AsgdRule {  // a: mean of the parameter
  const double* lr;
  double lambd, alpha, t0, weight_decay;
  bool maximize;
};
struct RpropRule {  // a: the gradient before, b: step size
  const double* lr;
  double eta_minus, eta_plus, least, most;
  bool maximize;
};

// LAMB, in two passes, because the length of a step depends on all elements of a slot. a: mean, b: mean of squares.
// First a and b, and the norms of p and of its direction u = a / (1 - beta1^t) / (sqrt(b / (1 - beta2^t)) + eps)
// + weight_decay p; then p -= lr |p| / |u| u, or lr u where a norm is 0.
struct LambRule {
  const double* lr;
  double beta1, beta2, eps, weight_decay;
  bool maximize;
};

// Muon, of one matrix at a time. a: momentum buffer. First a, and the direction x, which lies beside the slot in bf16:
// a += (1 - momentum) (g - a); x = a, or g + momentum (a - g) with nesterov. When x has been made orthogonal,
// p = (1 - lr weight_decay) p - lr scale x.
struct MuonRule {
  const double* lr;
  double momentum, weight_decay, scale;
  bool nesterov;
};

// Note [One division]
// m / (sqrt(v) / root + eps) with root = sqrt(1 - beta2^t) is root m / (sqrt(v) + root eps): the factors of a step take
// root once, and an element is divided once.
//
// What NAdam and RAdam multiply in step t, formed in double: p = shrink p - of_grad g / d - of_mean m / d with
// d = sqrt(v) / root + eps, or d = 1 where `plain`.
struct MeanFactors {
  double of_grad = 0, of_mean = 0, root = 1;
  bool plain = false;
};
// mu(t) = beta1 (1 - 0.96^(t momentum_decay) / 2); the product of all mu so far is too small to matter after some dozen
// of them.
LEVIN_HD MeanFactors nadam_factors(const NadamRule& r, double lr, double beta1, std::int64_t step) {
  const double decay = ::pow(0.96, r.momentum_decay);
  double product = 1, power = 1;
  for (std::int64_t k = 1; k <= step && product > 1e-18; ++k) {
    power *= decay;
    product *= beta1 * (1 - 0.5 * power);
  }
  const double t = static_cast<double>(step);
  const double mu = beta1 * (1 - 0.5 * ::pow(decay, t));
  const double next = beta1 * (1 - 0.5 * ::pow(decay, t + 1));
  return {.of_grad = lr * (1 - mu) / (1 - product),
          .of_mean = lr * next / (1 - product * next),
          .root = ::sqrt(1 - ::pow(r.beta2, t)),
          .plain = false};
}
// The variance of the first steps says too little: there the mean alone moves p.
LEVIN_HD MeanFactors radam_factors(const RadamRule& r, double lr, double beta1, std::int64_t step) {
  const double t = static_cast<double>(step), power = ::pow(r.beta2, t), most = 2 / (1 - r.beta2) - 1,
               rho = most - 2 * t * power / (1 - power), of_mean = lr / (1 - ::pow(beta1, t));
  if (!(rho > 5)) return {.of_grad = 0, .of_mean = of_mean, .root = 1, .plain = true};
  const double rectified = ::sqrt((rho - 4) * (rho - 2) * most / ((most - 4) * (most - 2) * rho));
  return {.of_grad = 0, .of_mean = of_mean * rectified * ::sqrt(1 - power), .root = 1, .plain = false};
}
// What ASGD multiplies in a step: p = (1 - lambd eta) p - eta g, mean += mu (p - mean).
struct AsgdFactors {
  double eta, mu;
};
LEVIN_HD AsgdFactors asgd_factors(const AsgdRule& r, double lr, std::int64_t step) {
  const double before = static_cast<double>(step - 1), since = before - r.t0;
  return {.eta = lr / ::pow(1 + r.lambd * lr * before, r.alpha), .mu = since > 1 ? 1 / since : 1};
}
LEVIN_HD double lamb_ratio(double square_of_p, double square_of_u) {
  return square_of_p > 0 && square_of_u > 0 ? ::sqrt(square_of_p) / ::sqrt(square_of_u) : 1;
}
// -1, 0, 1 or NaN.
template <class T>
LEVIN_HD T sign_of(T x) {
  return x > T(0) ? T(1) : x < T(0) ? T(-1) : x;
}

inline constexpr std::int64_t kUpdateChunk = 16384;  // elements a task

}  // namespace levin::kernels

#define LEVIN_LEVEL_FILE "kernels/update/update.cuh"
#include "kernels/executor/each_level.h"

namespace levin::kernels::cpu {
LEVIN_PICK(update)          // update(on, rule, span of slots)
LEVIN_PICK(update_rows)     // update_rows(on, rule, slot, rows, width)
LEVIN_PICK(muon_direction)  // muon_direction(on, rule, slot, x)
LEVIN_PICK(muon_apply)      // muon_apply(on, rule, slot, x)
}  // namespace levin::kernels::cpu

#endif  // LEVIN_KERNELS_UPDATE_CUH
#else

namespace levin::kernels::cpu::LEVIN_LEVEL {

// Note [No subnormal averages]
// Where gradients stay 0, an average shrinks by beta a step until rounding keeps it where it is: among subnormal
// numbers, which take a CPU several times as long. So averages below the least normal number become 0. Those of squares
// do so only where the square root of what is dropped is nothing beside eps.
template <class T>
inline T normal_or_zero(T x, T least) {
  return std::abs(x) < least ? T(0) : x;
}
template <class T>
inline T least_square(double eps) {
  return eps >= 1e-11 ? std::numeric_limits<T>::min() : T(0);
}

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
  const T of_grad = r.nesterov ? T(1) : T(0), of_buffer = r.nesterov ? mu : T(1), least = std::numeric_limits<T>::min();
#pragma GCC ivdep
  for (std::int64_t i = begin; i < end; ++i) {
    const T d = sign * g[i] + wd * p[i];
    const T m = normal_or_zero(keep * a[i] + take * d, least);
    a[i] = m;
    p[i] -= lr * (of_grad * d + of_buffer * m);
  }
}

template <class T>
void update_slot(const AdamRule& r, const Slot<T>& s, std::int64_t begin, std::int64_t end) {
  const double t = static_cast<double>(*s.step), root = std::sqrt(1 - std::pow(r.beta2, t));  // Note [One division]
  const T b1 = T(r.beta1), b2 = T(r.beta2), c1 = T(1 - r.beta1), c2 = T(1 - r.beta2), eps = T(r.added(root)),
          sign = r.maximize ? T(-1) : T(1);
  const T step_size = T(*r.lr / (1 - std::pow(r.beta1, t)) * root);
  const T shrink = r.decoupled ? T(1 - *r.lr * r.weight_decay) : T(1), wd = r.decoupled ? T(0) : T(r.weight_decay);
  T* p = s.p;
  const T* g = s.g;
  T* m = s.a;
  T* v = s.b;
  T* high = s.c;
  const T least = std::numeric_limits<T>::min(), least_of_squares = least_square<T>(r.added(root));
  if (!high) {
#pragma GCC ivdep
    for (std::int64_t i = begin; i < end; ++i) {
      const T d = sign * g[i] + wd * p[i];
      const T mean = normal_or_zero(b1 * m[i] + c1 * d, least);
      const T square = normal_or_zero(b2 * v[i] + c2 * d * d, least_of_squares);
      m[i] = mean;
      v[i] = square;
      p[i] = p[i] * shrink - step_size * mean / (std::sqrt(square) + eps);
    }
    return;
  }
#pragma GCC ivdep
  for (std::int64_t i = begin; i < end; ++i) {
    const T d = sign * g[i] + wd * p[i];
    const T mean = normal_or_zero(b1 * m[i] + c1 * d, least);
    const T square = normal_or_zero(b2 * v[i] + c2 * d * d, least_of_squares);
    const T most = square > high[i] ? square : high[i];
    m[i] = mean;
    v[i] = square;
    high[i] = most;
    p[i] = p[i] * shrink - step_size * mean / (std::sqrt(most) + eps);
  }
}

// kCentered: there is s.c; kBuffered: there is s.b.
template <bool kCentered, bool kBuffered, class T>
void update_rmsprop_slot(const RmspropRule& r, const Slot<T>& s, std::int64_t begin, std::int64_t end) {
  const T lr = T(*r.lr), wd = T(r.weight_decay), alpha = T(r.alpha), rest = T(1 - r.alpha), eps = T(r.eps),
          mu = T(r.momentum), sign = r.maximize ? T(-1) : T(1);
#pragma GCC ivdep
  for (std::int64_t i = begin; i < end; ++i) {
    const T d = sign * s.g[i] + wd * s.p[i];
    const T square = alpha * s.a[i] + rest * d * d;
    s.a[i] = square;
    T spread = square;
    if constexpr (kCentered) {
      const T mean = s.c[i] + rest * (d - s.c[i]);
      s.c[i] = mean;
      spread = square - mean * mean;
    }
    T change = d / (std::sqrt(spread) + eps);
    if constexpr (kBuffered) s.b[i] = change = mu * s.b[i] + change;
    s.p[i] -= lr * change;
  }
}
template <class T>
void update_slot(const RmspropRule& r, const Slot<T>& s, std::int64_t begin, std::int64_t end) {
  if (s.c)
    s.b ? update_rmsprop_slot<true, true>(r, s, begin, end) : update_rmsprop_slot<true, false>(r, s, begin, end);
  else
    s.b ? update_rmsprop_slot<false, true>(r, s, begin, end) : update_rmsprop_slot<false, false>(r, s, begin, end);
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

// NAdam and RAdam. kPlain: f.plain.
template <bool kPlain, class R, class T>
void update_mean_slot(const R& r, const MeanFactors& f, const Slot<T>& s, std::int64_t begin, std::int64_t end) {
  const T b1 = T(r.beta1), b2 = T(r.beta2), c1 = T(1 - r.beta1), c2 = T(1 - r.beta2), eps = T(r.eps * f.root),
          sign = r.maximize ? T(-1) : T(1);
  const T shrink = r.decoupled ? T(1 - *r.lr * r.weight_decay) : T(1), wd = r.decoupled ? T(0) : T(r.weight_decay);
  const T of_grad = T(f.of_grad * f.root), of_mean = T(f.of_mean * f.root);  // Note [One division]
  const T least = std::numeric_limits<T>::min(), least_of_squares = least_square<T>(r.eps * f.root);
#pragma GCC ivdep
  for (std::int64_t i = begin; i < end; ++i) {
    const T d = sign * s.g[i] + wd * s.p[i];
    const T mean = normal_or_zero(b1 * s.a[i] + c1 * d, least);
    const T square = normal_or_zero(b2 * s.b[i] + c2 * d * d, least_of_squares);
    s.a[i] = mean;
    s.b[i] = square;
    const T spread = kPlain ? T(1) : std::sqrt(square) + eps;
    s.p[i] = s.p[i] * shrink - (of_grad * d + of_mean * mean) / spread;
  }
}
template <class T>
void update_slot(const NadamRule& r, const Slot<T>& s, std::int64_t begin, std::int64_t end) {
  update_mean_slot<false>(r, nadam_factors(r, *r.lr, r.beta1, *s.step), s, begin, end);
}
template <class T>
void update_slot(const RadamRule& r, const Slot<T>& s, std::int64_t begin, std::int64_t end) {
  const MeanFactors f = radam_factors(r, *r.lr, r.beta1, *s.step);
  f.plain ? update_mean_slot<true>(r, f, s, begin, end) : update_mean_slot<false>(r, f, s, begin, end);
}

template <class T>
void update_slot(const AdamaxRule& r, const Slot<T>& s, std::int64_t begin, std::int64_t end) {
  const T b1 = T(r.beta1), b2 = T(r.beta2), c1 = T(1 - r.beta1), eps = T(r.eps), wd = T(r.weight_decay),
          step_size = T(*r.lr / (1 - std::pow(r.beta1, static_cast<double>(*s.step)))),
          sign = r.maximize ? T(-1) : T(1);
#pragma GCC ivdep
  for (std::int64_t i = begin; i < end; ++i) {
    const T d = sign * s.g[i] + wd * s.p[i];
    const T mean = b1 * s.a[i] + c1 * d;
    const T kept = b2 * s.b[i], now = std::abs(d) + eps;
    const T most = kept > now || kept != kept ? kept : now;
    s.a[i] = mean;
    s.b[i] = most;
    s.p[i] -= step_size * mean / most;
  }
}

template <class T>
void update_slot(const AdadeltaRule& r, const Slot<T>& s, std::int64_t begin, std::int64_t end) {
  const T lr = T(*r.lr), rho = T(r.rho), rest = T(1 - r.rho), eps = T(r.eps), wd = T(r.weight_decay),
          sign = r.maximize ? T(-1) : T(1);
#pragma GCC ivdep
  for (std::int64_t i = begin; i < end; ++i) {
    const T d = sign * s.g[i] + wd * s.p[i];
    const T square = rho * s.a[i] + rest * d * d;
    const T change = std::sqrt(s.b[i] + eps) / std::sqrt(square + eps) * d;
    s.a[i] = square;
    s.b[i] = rho * s.b[i] + rest * change * change;
    s.p[i] -= lr * change;
  }
}

template <class T>
void update_slot(const LionRule& r, const Slot<T>& s, std::int64_t begin, std::int64_t end) {
  const T lr = T(*r.lr), b1 = T(r.beta1), c1 = T(1 - r.beta1), b2 = T(r.beta2), c2 = T(1 - r.beta2),
          shrink = T(1 - *r.lr * r.weight_decay), sign = r.maximize ? T(-1) : T(1);
#pragma GCC ivdep
  for (std::int64_t i = begin; i < end; ++i) {
    const T d = sign * s.g[i];
    const T way = sign_of(b1 * s.a[i] + c1 * d);
    s.a[i] = b2 * s.a[i] + c2 * d;
    s.p[i] = s.p[i] * shrink - lr * way;
  }
}

template <class T>
void update_slot(const AsgdRule& r, const Slot<T>& s, std::int64_t begin, std::int64_t end) {
  const AsgdFactors f = asgd_factors(r, *r.lr, *s.step);
  const T eta = T(f.eta), shrink = T(1 - r.lambd * f.eta), mu = T(f.mu), wd = T(r.weight_decay),
          sign = r.maximize ? T(-1) : T(1);
  const bool follows = f.mu == 1;
#pragma GCC ivdep
  for (std::int64_t i = begin; i < end; ++i) {
    const T d = sign * s.g[i] + wd * s.p[i];
    const T p = s.p[i] * shrink - eta * d;
    s.p[i] = p;
    s.a[i] = follows ? p : s.a[i] + mu * (p - s.a[i]);
  }
}

template <class T>
void update_slot(const RpropRule& r, const Slot<T>& s, std::int64_t begin, std::int64_t end) {
  const T down = T(r.eta_minus), up = T(r.eta_plus), least = T(r.least), most = T(r.most),
          sign = r.maximize ? T(-1) : T(1);
#pragma GCC ivdep
  for (std::int64_t i = begin; i < end; ++i) {
    const T g = sign * s.g[i], product = g * s.a[i];
    const T size = s.b[i] * (product > T(0) ? up : product < T(0) ? down : product == T(0) ? T(1) : product);
    const T cut = size > most ? most : size, bounded = size < least ? least : cut, kept = product < T(0) ? T(0) : g;
    s.b[i] = bounded;
    s.a[i] = kept;
    s.p[i] -= sign_of(kept) * bounded;
  }
}

// x = h, n elements of 16 bits. Not inlined: one copy a level serves all rules.
[[gnu::noinline]] inline void widen(Half type, const std::uint16_t* h, float* x, std::int64_t n) {
  if (type == Half::f16) {
    for (std::int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(kernels::bit_cast<f16>(h[i]));
  } else {
    for (std::int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(kernels::bit_cast<bf16>(h[i]));
  }
}
// h = x, rounded to the nearest.
template <class H>
[[gnu::noinline]] void narrow(const float* x, std::uint16_t* h, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) h[i] = H(x[i]).bits;
}
template <class H>
[[gnu::noinline]] void narrow_as(const Slot<float>& s, const float* x, std::int64_t begin, std::int64_t n) {
  std::uint16_t* h = reinterpret_cast<std::uint16_t*>(s.p) + begin;
  if (!s.stochastic) return narrow<H>(x, h, n);
  std::uint32_t four[4] = {};
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t element = s.first + begin + i;
    if (i == 0 || element % 4 == 0) {
      const PhiloxBlock words = rounding_words(static_cast<std::uint64_t>(*s.step), s.parameter, element);
      four[0] = words.x0, four[1] = words.x1, four[2] = words.x2, four[3] = words.x3;
    }
    h[i] = round_stochastically<H>(x[i], four[element % 4]).bits;
  }
}
// p and g of 16 bits: blocks of them as floats around the loops above.
template <class R>
void update_half(const R& rule, const Slot<float>& s, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kBlock = 1024;
  alignas(64) float p[kBlock], g[kBlock];
  const auto at = [](float* state, std::int64_t i) { return state ? state + i : nullptr; };
  const auto* from_p = reinterpret_cast<const std::uint16_t*>(s.p);
  const auto* from_g = reinterpret_cast<const std::uint16_t*>(s.g);
  for (std::int64_t i = begin; i < end; i += kBlock) {
    const std::int64_t n = std::min(kBlock, end - i);
    widen(s.half, from_p + i, p, n);
    widen(s.half, from_g + i, g, n);
    update_slot(rule, Slot<float>{p, g, at(s.a, i), at(s.b, i), at(s.c, i), n, s.step}, 0, n);
    if (s.half == Half::f16)
      narrow_as<f16>(s, p, i, n);
    else
      narrow_as<bf16>(s, p, i, n);
  }
}
template <class R, class T>
void update_elements(const R& rule, const Slot<T>& s, std::int64_t begin, std::int64_t end) {
  if constexpr (std::is_same_v<T, float>) {
    if (s.half != Half::none) return update_half(rule, s, begin, end);
  }
  update_slot(rule, s, begin, end);
}

// Updates of rows of a table, which differ: the slot's p and states are the table's, [.., width], its g and n are those
// of the rows alone. They are updated in a copy that stays in the nearest caches.
template <class R, class T>
void update_rows(const Cpu& on, const R& rule, const Slot<T>& s, const std::int64_t* rows, std::int64_t width) {
  using A = Accum<T>;
  constexpr std::int64_t kBlock = 2048;
  const auto bytes = static_cast<std::int64_t>(s.half == Half::none ? sizeof(T) : 2);
  // Copies elements [begin, begin + n) of the rows between the table and a buffer.
  const auto copy = [=](bool to_table, void* table, void* buffer, std::int64_t size, std::int64_t begin,
                        std::int64_t n) {
    auto* const far = static_cast<std::byte*>(table);
    auto* near = static_cast<std::byte*>(buffer);
    for (std::int64_t row = begin / width, at = begin - row * width; n > 0; ++row, at = 0) {
      const std::int64_t some = std::min(n, width - at);
      std::byte* const in_table = far + (rows[row] * width + at) * size;
      const auto moved = static_cast<std::size_t>(some * size);
      to_table ? std::memcpy(in_table, near, moved) : std::memcpy(near, in_table, moved);
      near += some * size;
      n -= some;
    }
  };
  on.parallel_for(s.n, kUpdateChunk, [&](std::int64_t begin, std::int64_t end) {
    alignas(64) T p[kBlock];
    alignas(64) A states[3][kBlock];
    A* const of_table[] = {s.a, s.b, s.c};
    for (std::int64_t i = begin; i < end; i += kBlock) {
      const std::int64_t n = std::min(kBlock, end - i);
      const auto all = [&](bool to_table) {
        copy(to_table, s.p, p, bytes, i, n);
        for (int k = 0; k < 3; ++k) {
          if (of_table[k]) copy(to_table, of_table[k], states[k], sizeof(A), i, n);
        }
      };
      all(false);
      Slot<T> part = s;
      part.p = p;
      part.g = reinterpret_cast<const T*>(reinterpret_cast<const std::byte*>(s.g) + i * bytes);
      part.a = s.a ? states[0] : nullptr;
      part.b = s.b ? states[1] : nullptr;
      part.c = s.c ? states[2] : nullptr;
      part.n = n;
      update_elements(rule, part, 0, n);
      all(true);
    }
  });
}

template <class R, class T>
void update(const Cpu& on, const R& rule, std::span<const Slot<T>> slots) {
  if (slots.empty()) return;
  const Slot<T>& any = slots.front();
  const int states = (any.a != nullptr) + (any.b != nullptr) + (any.c != nullptr);
  const auto bytes = static_cast<std::int64_t>(sizeof(T)) * (3 + 2 * states);  // all but g read and written
  parallel_pieces(
      on, slots, kUpdateChunk, bytes, [](const Slot<T>& s) { return s.n; },
      [&](const Slot<T>& s, std::int64_t begin, std::int64_t end) { update_elements(rule, s, begin, end); });
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
struct LambBlock {
  T b1, b2, c1, c2, eps, wd, sign, of_mean;
  LambBlock(const LambRule& r, std::int64_t step)
      : b1(T(r.beta1)),
        b2(T(r.beta2)),
        c1(T(1 - r.beta1)),
        c2(T(1 - r.beta2)),
        wd(T(r.weight_decay)),
        sign(r.maximize ? T(-1) : T(1)) {
    const double t = static_cast<double>(step), root = std::sqrt(1 - std::pow(r.beta2, t));  // Note [One division]
    eps = T(r.eps * root);
    of_mean = T(root / (1 - std::pow(r.beta1, t)));
  }
  void direction(const T* p, const T* a, const T* b, T* u, std::int64_t n) const {
    for (std::int64_t i = 0; i < n; ++i) u[i] = of_mean * a[i] / (std::sqrt(b[i]) + eps) + wd * p[i];
  }
  void average(const T* g, T* a, T* b, std::int64_t n) const {
    for (std::int64_t i = 0; i < n; ++i) {
      const T d = sign * g[i];
      a[i] = b1 * a[i] + c1 * d;
      b[i] = b2 * b[i] + c2 * d * d;
    }
  }
};
template <class T>
void update(const Cpu& on, const LambRule& r, std::span<const Slot<T>> slots) {
  constexpr std::int64_t kBlock = 1024;
  for (const Slot<T>& s : slots) {
    const LambBlock<T> f(r, *s.step);
    // f(p, g, offset, n, u) for blocks of [begin, end): p, g as T, u their memory.
    const auto blocks = [&](std::int64_t begin, std::int64_t end, auto&& body) {
      alignas(64) T p[kBlock], g[kBlock], u[kBlock];
      for (std::int64_t i = begin; i < end; i += kBlock) {
        const std::int64_t n = std::min(kBlock, end - i);
        if constexpr (std::is_same_v<T, float>) {
          if (s.half != Half::none) {
            widen(s.half, reinterpret_cast<const std::uint16_t*>(s.p) + i, p, n);
            widen(s.half, reinterpret_cast<const std::uint16_t*>(s.g) + i, g, n);
            body(p, static_cast<const T*>(g), i, n, u);
            continue;
          }
        }
        body(s.p + i, s.g + i, i, n, u);
      }
    };
    const std::int64_t chunks = std::max<std::int64_t>(1, (s.n + kUpdateChunk - 1) / kUpdateChunk);
    const lib::Scratch memory(static_cast<std::size_t>(2 * chunks) * sizeof(double));
    double* const squares = memory.as<double>();
    squares[0] = squares[1] = 0;
    on.parallel_for(s.n, kUpdateChunk, [&](std::int64_t begin, std::int64_t end) {
      double of_p = 0, of_u = 0;
      blocks(begin, end, [&](const T* p, const T* g, std::int64_t i, std::int64_t n, T* u) {
        f.average(g, s.a + i, s.b + i, n);
        f.direction(p, s.a + i, s.b + i, u, n);
        const auto square = [](const T* x, std::int64_t k) { return double(x[k]) * double(x[k]); };
        of_p += eight_sums(p, 0, n, square);
        of_u += eight_sums(static_cast<const T*>(u), 0, n, square);
      });
      squares[2 * (begin / kUpdateChunk)] = of_p;
      squares[2 * (begin / kUpdateChunk) + 1] = of_u;
    });
    double of_p = 0, of_u = 0;
    for (std::int64_t k = 0; k < chunks; ++k) of_p += squares[2 * k], of_u += squares[2 * k + 1];
    const T rate = T(*r.lr * lamb_ratio(of_p, of_u));
    on.parallel_for(s.n, kUpdateChunk, [&](std::int64_t begin, std::int64_t end) {
      blocks(begin, end, [&](T* p, const T*, std::int64_t i, std::int64_t n, T* u) {
        f.direction(p, s.a + i, s.b + i, u, n);
        for (std::int64_t k = 0; k < n; ++k) p[k] -= rate * u[k];
        if constexpr (std::is_same_v<T, float>) {
          if (s.half == Half::f16) narrow_as<f16>(s, p, i, n);
          if (s.half == Half::bf16) narrow_as<bf16>(s, p, i, n);
        }
      });
    });
  }
}

// Calls body(p, g, offset, n) for blocks of [begin, end); 16-bit p and g as float copies.
template <class T, class F>
void each_block(const Slot<T>& s, std::int64_t begin, std::int64_t end, F&& body) {
  constexpr std::int64_t kBlock = 1024;
  alignas(64) T p[kBlock], g[kBlock];
  for (std::int64_t i = begin; i < end; i += kBlock) {
    const std::int64_t n = std::min(kBlock, end - i);
    if constexpr (std::is_same_v<T, float>) {
      if (s.half != Half::none) {
        widen(s.half, reinterpret_cast<const std::uint16_t*>(s.p) + i, p, n);
        widen(s.half, reinterpret_cast<const std::uint16_t*>(s.g) + i, g, n);
        body(p, static_cast<const T*>(g), i, n);
        continue;
      }
    }
    body(s.p + i, s.g + i, i, n);
  }
}
template <class T>
void muon_direction(const Cpu& on, const MuonRule& r, const Slot<T>& s, bf16* x) {
  const T mu = T(r.momentum), rest = T(1 - r.momentum);
  on.parallel_for(s.n, kUpdateChunk, [&](std::int64_t begin, std::int64_t end) {
    each_block(s, begin, end, [&](const T*, const T* g, std::int64_t i, std::int64_t n) {
      for (std::int64_t k = 0; k < n; ++k) {
        const T a = s.a[i + k] + rest * (g[k] - s.a[i + k]);
        s.a[i + k] = a;
        x[i + k] = bf16(static_cast<float>(r.nesterov ? g[k] + mu * (a - g[k]) : a));
      }
    });
  });
}
template <class T>
void muon_apply(const Cpu& on, const MuonRule& r, const Slot<T>& s, const bf16* x) {
  const T shrink = T(1 - *r.lr * r.weight_decay), rate = T(*r.lr * r.scale);
  on.parallel_for(s.n, kUpdateChunk, [&](std::int64_t begin, std::int64_t end) {
    each_block(s, begin, end, [&](T* p, const T*, std::int64_t i, std::int64_t n) {
      for (std::int64_t k = 0; k < n; ++k) p[k] = p[k] * shrink - rate * T(static_cast<float>(x[i + k]));
      if constexpr (std::is_same_v<T, float>) {
        if (s.half == Half::f16) narrow_as<f16>(s, p, i, n);
        if (s.half == Half::bf16) narrow_as<bf16>(s, p, i, n);
      }
    });
  });
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
