// Adafactor on devices; adafactor_device.h. A warp has a line at a time.
#pragma once

#include "kernels/update/adafactor_device.h"
#include "kernels/update/update_device.cuh"

namespace levin::kernels::gpu {

// f(line) for the lines of this thread's warp, all lanes together.
template <class F>
__device__ __forceinline__ void each_adafactor_line(const AdafactorLines& lines, F&& f) {
  constexpr int kWarps = kUpdateThreads / 32;
  for (std::int64_t line = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32; line < lines.count();
       line += std::int64_t{gridDim.x} * kWarps)
    f(line);
}
// f(element, place) for this lane's elements of a line: where in memory, and its place in the line.
template <class F>
__device__ __forceinline__ void each_of_adafactor_line(const AdafactorLines& lines, std::int64_t line, F&& f) {
  const std::int64_t from = lines.begin(line), n = lines.length(line);
  for (std::int64_t i = threadIdx.x % 32; i < n; i += 32) f(from + i * lines.column_step, i);
}

// R of each row, or V of a vector; of_p[line] = the sum of p^2.
template <class T>
__global__ void adafactor_rows(Slot<T> s, AdafactorRule r, AdafactorLines lines, double* of_p, const float* found_inf) {
  using A = Accum<T>;
  if (skipped(found_inf)) return;
  const A share = A(adafactor_share(r, *s.step + 1));
  each_adafactor_line(lines, [&](std::int64_t line) {
    double squares_of_g = 0, squares_of_p = 0;
    each_of_adafactor_line(lines, line, [&](std::int64_t i, std::int64_t) {
      const A g = static_cast<A>(s.g[i]), p = static_cast<A>(s.p[i]);
      squares_of_p += double(p) * double(p);
      if (lines.factored)
        squares_of_g += double(g) * double(g);
      else
        s.c[i] += share * (g * g - s.c[i]);
    });
    squares_of_p = warp_sum(squares_of_p);
    squares_of_g = warp_sum(squares_of_g);
    if (threadIdx.x % 32 != 0) return;
    of_p[line] = squares_of_p;
    if (lines.factored) s.a[line] += share * (A(squares_of_g / double(lines.columns)) - s.a[line]);
  });
}
// part[split][matrix][column] = the sum of G^2 over every gridDim.y-th row.
template <class T>
__global__ void adafactor_columns(Slot<T> s, AdafactorLines lines, double* part, const float* found_inf) {
  using A = Accum<T>;
  if (skipped(found_inf)) return;
  const std::int64_t all = lines.matrices * lines.columns, step = gridDim.y * lines.row_step;
  const std::int64_t rows = (lines.rows - blockIdx.y + gridDim.y - 1) / gridDim.y;  // of this block
  for (std::int64_t k = std::int64_t{blockIdx.x} * kUpdateThreads + threadIdx.x; k < all;
       k += std::int64_t{gridDim.x} * kUpdateThreads) {
    const T* from = s.g + lines.matrix(k / lines.columns) + k % lines.columns * lines.column_step;
    from += blockIdx.y * lines.row_step;
    double sum = 0;
#pragma unroll 4
    for (std::int64_t i = 0; i < rows; ++i, from += step) {
      const double g = double(static_cast<A>(*from));
      sum += g * g;
    }
    part[std::int64_t{blockIdx.y} * all + k] = sum;
  }
}
// C from `splits` parts, in order; means[matrix] = the mean of R, a warp a matrix.
template <class T>
__global__ void adafactor_factors(Slot<T> s, AdafactorRule r, AdafactorLines lines, const double* part,
                                  std::int64_t splits, Accum<T>* means, const float* found_inf) {
  using A = Accum<T>;
  if (skipped(found_inf)) return;
  const A share = A(adafactor_share(r, *s.step + 1));
  const std::int64_t all = lines.matrices * lines.columns, stride = std::int64_t{gridDim.x} * kUpdateThreads;
  const std::int64_t first = std::int64_t{blockIdx.x} * kUpdateThreads + threadIdx.x;
  for (std::int64_t k = first; k < all; k += stride) {
    double sum = 0;
    for (std::int64_t split = 0; split < splits; ++split) sum += part[split * all + k];
    s.b[k] += share * (A(sum / double(lines.rows)) - s.b[k]);
  }
  for (std::int64_t m = first / 32; m < lines.matrices; m += stride / 32) {
    double sum = 0;
    for (std::int64_t row = threadIdx.x % 32; row < lines.rows; row += 32) sum += double(s.a[m * lines.rows + row]);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) means[m] = A(sum / double(lines.rows));
  }
}

// U of an element of a line.
template <class T>
struct AdafactorChange {
  using A = Accum<T>;
  const Slot<T>& s;
  const AdafactorLines& lines;
  A least, eps1, sign;
  const A* means;
  __device__ AdafactorChange(const Slot<T>& slot, const AdafactorRule& r, const AdafactorLines& l, const A* m)
      : s(slot), lines(l), least(A(r.eps1 * r.eps1)), eps1(A(r.eps1)), sign(r.maximize ? A(-1) : A(1)), means(m) {}
  __device__ A operator()(std::int64_t line, std::int64_t i, std::int64_t place) const {
    const A g = sign * static_cast<A>(s.g[i]);
    if (!lines.factored) return adafactor_change(g, s.c[i], least);
    const std::int64_t m = line / lines.rows;
    const A mean = means[m] < eps1 ? eps1 : means[m];
    return adafactor_change(g, s.a[line] * s.b[m * lines.columns + place] / mean, least);
  }
};
// of_u[line] = the sum of U^2; the last block makes the factor of U of the sums of all lines.
template <class T>
__global__ void adafactor_lengths(Slot<T> s, AdafactorRule r, AdafactorLines lines, const Accum<T>* means,
                                  const double* of_p, double* of_u, double* rate, const double* numbers,
                                  const float* found_inf, unsigned* ticket) {
  LEVIN_SHARED(double, scratch, kUpdateThreads / 32);
  if (skipped(found_inf)) return;
  const AdafactorChange<T> change(s, r, lines, means);
  each_adafactor_line(lines, [&](std::int64_t line) {
    double squares = 0;
    each_of_adafactor_line(lines, line, [&](std::int64_t i, std::int64_t place) {
      const double u = double(change(line, i, place));
      squares += u * u;
    });
    squares = warp_sum(squares);
    if (threadIdx.x % 32 == 0) of_u[line] = squares;
  });
  if (!is_last_block(ticket, gridDim.x)) return;
  double all_p = 0, all_u = 0;
  for (std::int64_t line = threadIdx.x; line < lines.count(); line += kUpdateThreads) {
    all_p += of_p[line];
    all_u += of_u[line];
  }
  all_p = block_sum<kUpdateThreads>(all_p, scratch);
  all_u = block_sum<kUpdateThreads>(all_u, scratch);
  if (threadIdx.x == 0) *rate = adafactor_rate(r, numbers[0], *s.step + 1, s.n, all_p, all_u);
}
// The last block counts, when every block has read the count.
template <class T>
__global__ void adafactor_apply(Slot<T> s, AdafactorRule r, AdafactorLines lines, const Accum<T>* means,
                                const double* rate, const double* numbers, const float* found_inf, unsigned* ticket) {
  using A = Accum<T>;
  if (skipped(found_inf)) return;
  const AdafactorChange<T> change(s, r, lines, means);
  const A shrink = A(1 - numbers[0] * r.weight_decay), factor = A(*rate);
  const std::int64_t step = *s.step + 1;
  each_adafactor_line(lines, [&](std::int64_t line) {
    each_of_adafactor_line(lines, line, [&](std::int64_t i, std::int64_t place) {
      const A value[1] = {static_cast<A>(s.p[i]) * shrink - factor * change(line, i, place)};
      Vec<T, 1> p{};
      round_parameters<1>(s, step, i, value, p);
      store(s.p + i, p);
    });
  });
  if (is_last_block(ticket, gridDim.x) && threadIdx.x == 0) ++*s.step;
}

}  // namespace levin::kernels::gpu
