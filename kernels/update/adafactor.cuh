// Adafactor: a parameter whose mean of squares is kept as a row factor and a column factor, or whole for a vector.
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_UPDATE_ADAFACTOR_CUH
#define LEVIN_KERNELS_UPDATE_ADAFACTOR_CUH

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/executor/cpu.h"
#include "kernels/executor/hd.h"
#include "kernels/lib/scratch.h"
#include "kernels/update/update.cuh"

namespace levin::kernels {

// Of one parameter at a time. Slot::a: row factor R, b: column factor C, c: V of a vector. With e = t^beta2_decay and
// G = the gradient,
//   R += e (mean of G^2 over a row - R);  C += e (mean of G^2 over a column - C);
//   V = R C / max(mean of R over the rows of a matrix, eps1), or of a vector V += e (G^2 - V);
//   U = G / sqrt(max(V, eps1^2));  alpha = max(eps2, rms(p)) min(lr, 1 / sqrt(t));
//   p = (1 - lr weight_decay) p - alpha / max(1, rms(U) / d) U.
struct AdafactorRule {
  const double* lr;
  double beta2_decay, eps1, eps2, d, weight_decay;
  bool maximize;
};
// The parameter's elements as lines in memory: rows of its matrices, or pieces of a vector.
struct AdafactorLines {
  static constexpr std::int64_t kPiece = 1024;  // of a vector
  bool factored = false;
  std::int64_t matrices = 1, rows = 1, columns = 0;  // `matrices` is the product of `sizes`
  std::int64_t sizes[3] = {1, 1, 1}, steps[3] = {};  // of the dimensions before the last two
  std::int64_t row_step = 0, column_step = 1;

  [[nodiscard]] LEVIN_HD std::int64_t count() const {
    return factored ? matrices * rows : (columns + kPiece - 1) / kPiece;
  }
  [[nodiscard]] LEVIN_HD std::int64_t length(std::int64_t line) const {
    if (factored) return columns;
    return columns - line * kPiece < kPiece ? columns - line * kPiece : kPiece;
  }
  [[nodiscard]] LEVIN_HD std::int64_t matrix(std::int64_t m) const {  // the element where it begins
    return m / (sizes[1] * sizes[2]) * steps[0] + m / sizes[2] % sizes[1] * steps[1] + m % sizes[2] * steps[2];
  }
  [[nodiscard]] LEVIN_HD std::int64_t begin(std::int64_t line) const {
    return factored ? matrix(line / rows) + line % rows * row_step : line * kPiece;
  }
};
// e, and the factor of U, in double.
[[nodiscard]] LEVIN_HD double adafactor_share(const AdafactorRule& r, std::int64_t step) {
  return ::pow(static_cast<double>(step), r.beta2_decay);
}
[[nodiscard]] LEVIN_HD double adafactor_rate(const AdafactorRule& r, double lr, std::int64_t step, std::int64_t n,
                                             double squares_of_p, double squares_of_u) {
  const double most = 1 / ::sqrt(static_cast<double>(step)), count = static_cast<double>(n);
  const double rms_of_p = ::sqrt(squares_of_p / count), rms_of_u = ::sqrt(squares_of_u / count) / r.d;
  const double alpha = (rms_of_p <= r.eps2 ? r.eps2 : rms_of_p) * (lr < most ? lr : most);
  return alpha / (rms_of_u > 1 ? rms_of_u : 1);
}
// U of one element, from V.
template <class A>
[[nodiscard]] LEVIN_HD A adafactor_change(A g, A v, A least) {
  return g / ::sqrt(v < least ? least : v);
}

}  // namespace levin::kernels

#define LEVIN_LEVEL_FILE "kernels/update/adafactor.cuh"
#include "kernels/executor/each_level.h"

namespace levin::kernels::cpu {
LEVIN_PICK(adafactor)
}  // namespace levin::kernels::cpu

#endif  // LEVIN_KERNELS_UPDATE_ADAFACTOR_CUH
#else

namespace levin::kernels::cpu::LEVIN_LEVEL {

// Elements from + i step of p or g, i in [0, n), as T: in place, or copied to `room`.
template <class T>
T* adafactor_line(const Slot<T>& s, T* x, std::int64_t from, std::int64_t step, std::int64_t n, T* room) {
  if constexpr (std::is_same_v<T, float>) {
    if (s.half != Half::none) {
      const auto* h = reinterpret_cast<const std::uint16_t*>(x) + from;
      if (step == 1)
        widen(s.half, h, room, n);
      else
        for (std::int64_t i = 0; i < n; ++i) widen(s.half, h + i * step, room + i, 1);
      return room;
    }
  }
  if (step == 1) return x + from;
  for (std::int64_t i = 0; i < n; ++i) room[i] = x[from + i * step];
  return room;
}
template <class T>
void put_adafactor_line(const Slot<T>& s, const T* p, std::int64_t from, std::int64_t step, std::int64_t n) {
  if constexpr (std::is_same_v<T, float>) {
    const auto narrow = [&]<class H>(H) {
      if (step == 1) return narrow_as<H>(s, p, from, n);
      for (std::int64_t i = 0; i < n; ++i) narrow_as<H>(s, p + i, from + i * step, 1);
    };
    if (s.half == Half::f16) return narrow(f16{});
    if (s.half == Half::bf16) return narrow(bf16{});
  }
  if (step == 1) return;
  for (std::int64_t i = 0; i < n; ++i) s.p[from + i * step] = p[i];
}

// C, columns 512 at a time, and the mean of R of each matrix.
template <class T>
void adafactor_columns(const Cpu& on, const Slot<T>& s, const AdafactorLines& lines, T share, T* means) {
  constexpr std::int64_t kColumns = 512;
  const std::int64_t parts = (lines.columns + kColumns - 1) / kColumns;
  const std::int64_t work = lines.rows * std::min(lines.columns, kColumns);
  on.parallel_for(lines.matrices * parts, std::max<std::int64_t>(1, kUpdateChunk / work),
                  [&](std::int64_t begin, std::int64_t end) {
                    double sums[kColumns];
                    T room[kColumns];
                    for (std::int64_t part = begin; part < end; ++part) {
                      const std::int64_t m = part / parts, c = part % parts * kColumns;
                      const std::int64_t n = std::min(kColumns, lines.columns - c);
                      std::fill_n(sums, n, 0.0);
                      for (std::int64_t row = 0; row < lines.rows; ++row) {
                        const std::int64_t from = lines.begin(m * lines.rows + row) + c * lines.column_step;
                        const T* g = adafactor_line(s, const_cast<T*>(s.g), from, lines.column_step, n, room);
                        for (std::int64_t i = 0; i < n; ++i) sums[i] += double(g[i]) * double(g[i]);
                      }
                      T* to = s.b + m * lines.columns + c;
                      for (std::int64_t i = 0; i < n; ++i) to[i] += share * (T(sums[i] / double(lines.rows)) - to[i]);
                    }
                  });
  for (std::int64_t m = 0; m < lines.matrices; ++m) {
    double sum = 0;
    for (std::int64_t row = 0; row < lines.rows; ++row) sum += double(s.a[m * lines.rows + row]);
    means[m] = T(sum / double(lines.rows));
  }
}

template <class T>
void adafactor(const Cpu& on, const AdafactorRule& r, const Slot<T>& s, const AdafactorLines& lines) {
  const std::int64_t count = lines.count();
  if (s.n == 0) return;
  const T share = T(adafactor_share(r, *s.step)), least = T(r.eps1 * r.eps1), eps1 = T(r.eps1);
  const T sign = r.maximize ? T(-1) : T(1), shrink = T(1 - *r.lr * r.weight_decay);
  const lib::Scratch sums(static_cast<std::size_t>(count) * 2 * sizeof(double)),
      of_matrices(static_cast<std::size_t>(lines.matrices) * sizeof(T));
  double *const of_p = sums.as<double>(), *const of_u = of_p + count;
  T* const means = of_matrices.as<T>();
  const std::int64_t longest = lines.length(0);
  // body(line, n, p, g, u), where u is memory for n elements.
  const auto each_line = [&](auto&& body) {
    on.parallel_for(count, std::max<std::int64_t>(1, kUpdateChunk / longest),
                    [&](std::int64_t begin, std::int64_t end) {
                      const lib::Scratch memory(static_cast<std::size_t>(longest) * 3 * sizeof(T));
                      T *const room = memory.as<T>(), *const u = room + 2 * longest;
                      for (std::int64_t line = begin; line < end; ++line) {
                        const std::int64_t from = lines.begin(line), n = lines.length(line);
                        T* p = adafactor_line(s, s.p, from, lines.column_step, n, room);
                        const T* g = adafactor_line(s, const_cast<T*>(s.g), from, lines.column_step, n, room + longest);
                        body(line, n, p, g, u);
                      }
                    });
  };
  const auto square = [](const T* x, std::int64_t i) { return double(x[i]) * double(x[i]); };
  const auto changes = [&](std::int64_t line, std::int64_t n, const T* g, T* u) {
    if (!lines.factored) {
      const T* v = s.c + lines.begin(line);
      for (std::int64_t i = 0; i < n; ++i) u[i] = adafactor_change(sign * g[i], v[i], least);
      return;
    }
    const std::int64_t m = line / lines.rows;
    const T of_row = s.a[line], mean = means[m] < eps1 ? eps1 : means[m], *of_columns = s.b + m * lines.columns;
    for (std::int64_t i = 0; i < n; ++i) u[i] = adafactor_change(sign * g[i], of_row * of_columns[i] / mean, least);
  };

  each_line([&](std::int64_t line, std::int64_t n, const T* p, const T* g, T*) {
    of_p[line] = eight_sums(p, 0, n, square);
    if (lines.factored) {
      s.a[line] += share * (T(eight_sums(g, 0, n, square) / double(n)) - s.a[line]);
    } else {
      T* v = s.c + lines.begin(line);
      for (std::int64_t i = 0; i < n; ++i) v[i] += share * (g[i] * g[i] - v[i]);
    }
  });
  if (lines.factored) adafactor_columns(on, s, lines, share, means);
  each_line([&](std::int64_t line, std::int64_t n, const T*, const T* g, T* u) {
    changes(line, n, g, u);
    of_u[line] = eight_sums(static_cast<const T*>(u), 0, n, square);
  });
  double squares_of_p = 0, squares_of_u = 0;
  for (std::int64_t line = 0; line < count; ++line) squares_of_p += of_p[line], squares_of_u += of_u[line];
  const T rate = T(adafactor_rate(r, *r.lr, *s.step, s.n, squares_of_p, squares_of_u));
  each_line([&](std::int64_t line, std::int64_t n, T* p, const T* g, T* u) {
    changes(line, n, g, u);
    for (std::int64_t i = 0; i < n; ++i) p[i] = p[i] * shrink - rate * u[i];
    put_adafactor_line(s, p, lines.begin(line), lines.column_step, n);
  });
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
