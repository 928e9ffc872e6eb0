#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_EDGE_SCORES_CUH
#define LEVIN_KERNELS_EDGE_SCORES_CUH
// Scores of edges from features of both ends. Entry k of row i stands in column j = col[k] and has the place
// e = edge[k] (k itself where edge is null). x: [rows, heads, inner], z: [cols, heads, inner], attn: [heads, inner] or
// null (ones), y and gy: [entries, heads], contiguous. leaky(s) = s for s > 0, else slope s; leaky'(s) = 1 for s > 0,
// else slope. T: float, double, f16, bf16 (on the CPU float and double: the op widens); sums in Accum<T>. Sizes may be
// zero.
//
//   edge_scores(on, CsrView, const T* x, const T* z, const T* attn, T* y, Heads, Accum<T> slope)
//     y[e, h] = sum over c of attn[h, c] leaky(x[i, h, c] + z[j, h, c])
//   edge_scores_backward(on, CsrView, const T* gy, const T* x, const T* z, const T* attn, T* gx, Accum<T>* t, Heads,
//                        Accum<T> slope)
//     gx[i, h, c] = attn[h, c] sum over k of row i of gy[e, h] leaky'(x[i, h, c] + z[j, h, c])
//     t[i, h, c]  = sum over k of row i of gy[e, h] leaky(x[i, h, c] + z[j, h, c]); nothing where t is null
// The gradient of z is gx of the transposed pattern with x and z exchanged, and that of attn is the sum of t over rows:
// every output is gathered, in the order of entries. On the CPU the op checks the pattern before. On a device the
// kernels do, and the gpu functions take the op's name, what to call offsets in errors, and room(bytes) for memory.
#include "kernels/executor/cpu.h"
#include "kernels/sparse/edge_scores_device.cuh"

#define LEVIN_LEVEL_FILE "kernels/sparse/edge_scores.cuh"
#include "kernels/executor/each_level.h"
#include "kernels/executor/pick_float.h"

namespace levin::kernels::cpu {
LEVIN_PICK_FLOAT(edge_scores)
LEVIN_PICK_FLOAT(edge_scores_backward)
}  // namespace levin::kernels::cpu
#endif

#else
namespace levin::kernels::cpu::LEVIN_LEVEL {

// The sum over c < n of w[c] leaky(p[c] + q[c]), L sums beside each other.
template <int L, class T>
inline T dot_leaky(const T* w, const T* p, const T* q, std::int64_t n, T slope) {
  T lanes[L] = {}, sum = 0;
  std::int64_t j = 0;
  for (; j + L <= n; j += L)
    for (std::int64_t l = 0; l < L; ++l) {
      const T s = p[j + l] + q[j + l];
      lanes[l] += w[j + l] * (s > 0 ? s : s * slope);
    }
  const T slopes[] = {slope, T(1)};  // no branch, which would be taken by chance
  for (; j < n; ++j) {
    const T s = p[j] + q[j];
    sum += w[j] * (s * slopes[s > 0]);
  }
  for (std::int64_t l = 0; l < L; ++l) sum += lanes[l];
  return sum;
}

// y = leaky(p + q), n columns.
template <class T>
inline void leaky_sums(T* y, const T* p, const T* q, std::int64_t n, T slope) {
#pragma GCC ivdep
  for (std::int64_t j = 0; j < n; ++j) {
    const T s = p[j] + q[j];
    y[j] = s * (s > 0 ? T(1) : slope);
  }
}

template <class T, class I>
void edge_scores_by(const Cpu& on, const CsrView& view, const T* x, const T* z, const T* attn, T* y, const Heads& h,
                    T slope) {
  const CsrArrays<I> a(view);
  constexpr int kLanes = LEVIN_VECTOR_BYTES / int(sizeof(T));
  const std::int64_t width = h.width();
  each_row_block(on, view, width, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      for (std::int64_t k = a.crow[i]; k < a.crow[i + 1]; ++k) {
        const T *const p = x + i * width, *const q = z + a.column(k) * width;
        T* const to = y + a.place(k) * h.heads;
        if (h.inner == 1) {
          leaky_sums(to, p, q, width, slope);
          if (attn)
            for (std::int64_t c = 0; c < width; ++c) to[c] *= attn[c];
        } else if (h.inner < 4 * kLanes) {
          for (std::int64_t c = 0; c < h.heads; ++c)
            to[c] = dot_leaky<kLanes>(attn + c * h.inner, p + c * h.inner, q + c * h.inner, h.inner, slope);
        } else {
          for (std::int64_t c = 0; c < h.heads; ++c)
            to[c] = dot_leaky<4 * kLanes>(attn + c * h.inner, p + c * h.inner, q + c * h.inner, h.inner, slope);
        }
      }
  });
}

// Adds gy leaky'(p + q) to sum and gy leaky(p + q) to moment, n columns; gy_at(j) is gy of column j. Neither way has a
// branch on the sign, which would be taken by chance: blocks of a constant size are vector code, the rest looks up.
template <class T, class F>
inline void add_slopes(T* sum, T* moment, const T* p, const T* q, const F& gy_at, std::int64_t n, T slope) {
  constexpr std::int64_t kBlock = 8;
  const T slopes[] = {slope, T(1)};
  std::int64_t j = 0;
  for (; j + kBlock <= n; j += kBlock) {
    T s[kBlock], of[kBlock];
    for (std::int64_t l = 0; l < kBlock; ++l) s[l] = p[j + l] + q[j + l];
    for (std::int64_t l = 0; l < kBlock; ++l) of[l] = s[l] > 0 ? T(1) : slope;
    for (std::int64_t l = 0; l < kBlock; ++l) of[l] *= gy_at(j + l);
    for (std::int64_t l = 0; l < kBlock; ++l) sum[j + l] += of[l];
    for (std::int64_t l = 0; l < kBlock; ++l) moment[j + l] += of[l] * s[l];
  }
  for (; j < n; ++j) {
    const T s = p[j] + q[j], d = gy_at(j) * slopes[s > 0];
    sum[j] += d;
    moment[j] += d * s;
  }
}

// kFlat: columns are heads of their own, and the gradient has a column for each. kColumns: of a head, or of all heads,
// where the compiler knows them; 0: any.
template <int kColumns, bool kFlat, class T, class I>
void edge_scores_backward_by(const Cpu& on, const CsrView& view, const T* gy, const T* x, const T* z, const T* attn,
                             T* gx, T* t, const Heads& h, T slope) {
  const CsrArrays<I> a(view);
  constexpr std::int64_t kTile = kColumns > 0 ? kColumns : 256;
  const std::int64_t width = h.width();
  const std::int64_t groups = kFlat ? 1 : h.heads, columns = kColumns > 0 ? kColumns : kFlat ? width : h.inner;
  each_row_block(on, view, width, [=](std::int64_t begin, std::int64_t end) {
    T sum[kTile], moment[kTile];
    for (std::int64_t i = begin; i < end; ++i)
      for (std::int64_t head = 0; head < groups; ++head)
        for (std::int64_t c = 0; c < columns; c += kTile) {
          const std::int64_t n = kColumns > 0 ? kColumns : columns - c < kTile ? columns - c : kTile;
          const std::int64_t at = head * columns + c;
          const T* const p = x + i * width + at;
          for (std::int64_t j = 0; j < n; ++j) sum[j] = moment[j] = 0;
          for (std::int64_t k = a.crow[i]; k < a.crow[i + 1]; ++k) {
            const T *const q = z + a.column(k) * width + at, *const g = gy + a.place(k) * h.heads;
            if constexpr (kFlat)
              add_slopes(
                  sum, moment, p, q, [=](std::int64_t j) { return g[c + j]; }, n, slope);
            else
              add_slopes(
                  sum, moment, p, q, [of = g[head]](std::int64_t) { return of; }, n, slope);
          }
          T* const to = gx + i * width + at;
          // Not by `?:` within the loop: masked loads from a null pointer take a hundred times as long.
          if (attn)
            for (std::int64_t j = 0; j < n; ++j) to[j] = attn[at + j] * sum[j];
          else
            for (std::int64_t j = 0; j < n; ++j) to[j] = sum[j];
          if (!t) continue;
          for (std::int64_t j = 0; j < n; ++j) t[i * width + at + j] = moment[j];
        }
  });
}
template <class T, class I>
void edge_scores_backward_of(const Cpu& on, const CsrView& a, const T* gy, const T* x, const T* z, const T* attn, T* gx,
                             T* t, const Heads& h, T slope) {
  const auto with = [&]<int kColumns, bool kFlat>() {
    edge_scores_backward_by<kColumns, kFlat, T, I>(on, a, gy, x, z, attn, gx, t, h, slope);
  };
  if (h.inner == 1) return h.heads == 8 ? with.template operator()<8, true>() : with.template operator()<0, true>();
  return h.inner == 8 ? with.template operator()<8, false>() : with.template operator()<0, false>();
}

template <class T>
void edge_scores(const Cpu& on, const CsrView& a, const T* x, const T* z, const T* attn, T* y, const Heads& h,
                 T slope) {
  if (a.col.is_wide)
    edge_scores_by<T, std::int64_t>(on, a, x, z, attn, y, h, slope);
  else
    edge_scores_by<T, std::int32_t>(on, a, x, z, attn, y, h, slope);
}
template <class T>
void edge_scores_backward(const Cpu& on, const CsrView& a, const T* gy, const T* x, const T* z, const T* attn, T* gx,
                          T* t, const Heads& h, T slope) {
  if (a.col.is_wide)
    edge_scores_backward_of<T, std::int64_t>(on, a, gy, x, z, attn, gx, t, h, slope);
  else
    edge_scores_backward_of<T, std::int32_t>(on, a, gy, x, z, attn, gx, t, h, slope);
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
