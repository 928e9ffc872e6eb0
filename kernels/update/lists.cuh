// What is done to lists of gradients on the CPU, apart from updates. Sums are in double, by fixed chunks whose sums are
// added in order: they have the same bits on any number of threads.
//   power_sum(on, slots, power)  sum of |p|^power, power = inf: the maximum; NaN stays NaN
//   scale(on, slots, factor)     p *= factor
//   clamp_all(on, slots, limit)  p = min(max(p, -limit), limit)
//   dot(on, x, y, n)             sum of x y of two arrays
//   axpy(on, alpha, x, y, n)     y += alpha x
// slots: std::span<const Slot<T>>, T float, double, f16 or bf16 (computed in float, one rounding); their p is meant.
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_UPDATE_LISTS_CUH
#define LEVIN_KERNELS_UPDATE_LISTS_CUH

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "kernels/executor/cpu.h"
#include "kernels/executor/pieces.h"
#include "kernels/lib/scratch.h"
#include "kernels/update/update.cuh"

#define LEVIN_LEVEL_FILE "kernels/update/lists.cuh"
#include "kernels/executor/each_level.h"

namespace levin::kernels::cpu {
LEVIN_PICK(power_sum)
LEVIN_PICK(scale)
LEVIN_PICK(clamp_all)
LEVIN_PICK(dot)
LEVIN_PICK(axpy)
}  // namespace levin::kernels::cpu

#endif  // LEVIN_KERNELS_UPDATE_LISTS_CUH
#else

namespace levin::kernels::cpu::LEVIN_LEVEL {

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

// Calls body(values, n) for x[begin, end): of 16-bit x for blocks of float copies, which go back unless x is const.
template <class T, class F>
void each_in_float(T* x, std::int64_t begin, std::int64_t end, F&& body) {
  using H = std::remove_const_t<T>;
  if constexpr (sizeof(H) == 2) {
    constexpr std::int64_t kBlock = 1024;
    alignas(64) float room[kBlock];
    for (std::int64_t i = begin; i < end; i += kBlock) {
      const std::int64_t n = std::min(kBlock, end - i);
      widen(std::is_same_v<H, f16> ? Half::f16 : Half::bf16, reinterpret_cast<const std::uint16_t*>(x + i), room, n);
      body(room, n);
      if constexpr (!std::is_const_v<T>) narrow<H>(room, reinterpret_cast<std::uint16_t*>(x + i), n);
    }
  } else {
    body(x + begin, end - begin);
  }
}

// part(x, begin, end) of every chunk of every slot, in the order of slots.
template <class T, class F>
std::vector<double> of_chunks(const Cpu& on, std::span<const Slot<T>> slots, F&& part) {
  struct Chunk {
    const T* x;
    std::int64_t begin, end;
  };
  std::vector<Chunk> chunks;
  std::int64_t elements = 0;
  for (const Slot<T>& s : slots) {
    elements += s.n;
    for (std::int64_t at = 0; at < s.n; at += kUpdateChunk)
      chunks.push_back({s.p, at, std::min(s.n, at + kUpdateChunk)});
  }
  const auto n = static_cast<std::int64_t>(chunks.size());
  std::vector<double> parts(chunks.size());
  const std::int64_t grain = elements <= kUpdateChunk ? n : std::max<std::int64_t>(1, kUpdateChunk * n / elements);
  on.parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i)
      parts[i] = part(chunks[i].x, chunks[i].begin, chunks[i].end);
  });
  return parts;
}

// The sum of term(x, i) of all elements, in double.
template <class T, class F>
double sum_of_terms(const Cpu& on, std::span<const Slot<T>> slots, F&& term) {
  double total = 0;
  const auto part = [&](const T* x, std::int64_t begin, std::int64_t end) {
    double sum = 0;
    each_in_float(x, begin, end, [&](const auto* v, std::int64_t n) { sum += eight_sums(v, 0, n, term); });
    return sum;
  };
  for (const double sum : of_chunks(on, slots, part)) total += sum;
  return total;
}

template <class T>
double power_sum(const Cpu& on, std::span<const Slot<T>> slots, double power) {
  if (power == 2)
    return sum_of_terms(on, slots, [](const auto* v, std::int64_t i) { return double(v[i]) * double(v[i]); });
  if (!std::isinf(power)) {
    return sum_of_terms(on, slots,
                        [power](const auto* v, std::int64_t i) { return std::pow(std::abs(double(v[i])), power); });
  }
  // Nothing is above NaN, so it stays.
  const auto raise = [](double& high, double a) { high = a > high || a != a ? a : high; };
  const auto part = [&](const T* x, std::int64_t begin, std::int64_t end) {
    double high = 0;
    each_in_float(x, begin, end, [&](const auto* v, std::int64_t n) {
      for (std::int64_t i = 0; i < n; ++i) raise(high, std::abs(double(v[i])));
    });
    return high;
  };
  double high = 0;
  for (const double a : of_chunks(on, slots, part)) raise(high, a);
  return high;
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

// p = f(p) for every element.
template <class T, class F>
void each_element(const Cpu& on, std::span<const Slot<T>> slots, F&& f) {
  parallel_pieces(
      on, slots, kUpdateChunk, std::int64_t{2 * sizeof(T)}, [](const Slot<T>& s) { return s.n; },
      [&](const Slot<T>& s, std::int64_t begin, std::int64_t end) {
        each_in_float(s.p, begin, end, [&f](auto* v, std::int64_t n) {
          for (std::int64_t i = 0; i < n; ++i) v[i] = f(v[i]);
        });
      });
}

template <class T>
void scale(const Cpu& on, std::span<const Slot<T>> slots, double factor) {
  each_element(on, slots, [factor]<class V>(V v) { return v * V(factor); });
}

template <class T>
void clamp_all(const Cpu& on, std::span<const Slot<T>> slots, double limit) {
  each_element(on, slots, [limit]<class V>(V v) {
    const V high = V(limit);
    return v > high ? high : v < -high ? -high : v;
  });
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
