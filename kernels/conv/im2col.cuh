// Windows of images as columns and back. Per plane (one channel of one image), all contiguous:
//
//   im2col(on, const U* x, U* y, shape)    y[plane, i, j, p, q] = x[plane, r, c], 0 where that is outside of the image
//   col2im(on, const T* y, T* x, shape)    x[plane, r, c] = sum of y[plane, i, j, p, q] over i, then j, ascending
//                        where r = p * stride.h - padding.h + i * dilation.h, and c likewise of q and j
//
// x: [planes, h.size, w.size]; y: [planes, h.kernel, w.kernel, h.windows, w.windows]; outputs are overwritten, planes
// and sizes may be 0. im2col moves bits: U is the unsigned integer as wide as the element. col2im takes float, double,
// f16, bf16 and sums in Accum<T>: a pixel gathers what its windows have for it, in one order, so that neither the
// number of threads nor the device changes a bit.
//
// On devices a thread writes 16 bytes of y, or one pixel of x.
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_IM2COL_CUH
#define LEVIN_KERNELS_IM2COL_CUH

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>

#include "kernels/device/bits.cuh"
#include "kernels/device/strided.cuh"
#include "kernels/executor/cpu.h"
#include "kernels/executor/gpu.h"
#include "kernels/executor/hd.h"
#include "levin/dtype.h"

namespace levin::kernels {

// Note [Pixels in 32 bits]
// The windows along one axis: tap i of window o sees pixel o * stride + i * dilation - padding. Padded sizes are at
// most 2^31, and a stride or dilation that is never taken is 1, so a pixel and the pixel one stride after it fit 32
// bits modulo 2^32: those in front of the image lie at 2^31 and above, and one comparison with the size finds what is
// outside.
struct WindowAxis {
  std::uint32_t size = 0, windows = 0, kernel = 1, stride = 1, padding = 0, dilation = 1;
  WindowAxis() = default;
  // At least one window must fit.
  WindowAxis(std::int64_t size_, std::int64_t kernel_, std::int64_t stride_, std::int64_t padding_,
             std::int64_t dilation_)
      : size(static_cast<std::uint32_t>(size_)),
        kernel(static_cast<std::uint32_t>(kernel_)),
        padding(static_cast<std::uint32_t>(padding_)),
        dilation(static_cast<std::uint32_t>(kernel_ == 1 ? 1 : dilation_)) {
    const std::int64_t room = size_ + 2 * padding_ - std::int64_t{dilation} * (kernel_ - 1) - 1;
    windows = static_cast<std::uint32_t>(room / stride_ + 1);
    stride = static_cast<std::uint32_t>(windows == 1 ? 1 : stride_);
  }
};

struct WindowShape {
  std::int64_t planes = 0;
  WindowAxis h, w;
  [[nodiscard]] std::int64_t taps() const { return std::int64_t{h.kernel} * w.kernel; }
  [[nodiscard]] std::int64_t places() const { return std::int64_t{h.windows} * w.windows; }  // windows of a plane
  [[nodiscard]] std::int64_t pixels() const { return std::int64_t{h.size} * w.size; }
};

// The windows whose tap i sees a pixel of [low, high).
struct WindowRange {
  std::int64_t begin, end, shift;  // window o sees pixel o * stride + shift
  LEVIN_HD WindowRange(const WindowAxis& a, std::int64_t i, std::int64_t low, std::int64_t high)
      : shift(i * a.dilation - a.padding) {
    end = std::min<std::int64_t>(a.windows, up(high - shift, a.stride));
    begin = std::min(end, up(low - shift, a.stride));
  }

 private:
  // n / stride rounded up, 0 for what is negative.
  LEVIN_HD static std::int64_t up(std::int64_t n, std::int64_t stride) {
    return n <= 0 ? 0 : stride == 1 ? n : (n + stride - 1) / stride;
  }
};

inline constexpr std::int64_t kWindowTask = 32 * 1024;  // elements read or written by one task

namespace cpu {

template <class U>
void im2col(const Cpu& on, const U* x, U* y, const WindowShape& s) {
  const WindowAxis &h = s.h, &w = s.w;
  const std::int64_t rows = s.planes * s.taps() * h.windows;
  on.parallel_for(rows, std::max<std::int64_t>(1, kWindowTask / w.windows), [=](std::int64_t begin, std::int64_t end) {
    U* to = y + begin * w.windows;
    for (std::int64_t row = begin; row < end;) {
      // Rows of one tap lie together.
      const std::int64_t tap = row / h.windows, line = tap / w.kernel, plane = line / h.kernel;
      const WindowRange q(w, tap - line * w.kernel, 0, w.size);
      const std::int64_t last = std::min(end, (tap + 1) * h.windows), count = q.end - q.begin,
                         shift = (line - plane * h.kernel) * h.dilation - h.padding;
      for (; row < last; ++row, to += w.windows) {
        const std::int64_t r = (row - tap * h.windows) * h.stride + shift;
        if (r < 0 || r >= h.size || count <= 0) {
          std::fill(to, to + w.windows, U{0});
          continue;
        }
        const U* from = x + (plane * h.size + r) * w.size + q.begin * w.stride + q.shift;
        std::fill(to, to + q.begin, U{0});
        if (w.stride == 1) {
          std::memcpy(to + q.begin, from, static_cast<std::size_t>(count) * sizeof(U));
        } else {
          for (std::int64_t k = 0; k < count; ++k) to[q.begin + k] = from[k * w.stride];
        }
        std::fill(to + q.end, to + w.windows, U{0});
      }
    }
  });
}

}  // namespace cpu
}  // namespace levin::kernels

#define LEVIN_LEVEL_FILE "kernels/conv/im2col.cuh"
#include "kernels/executor/each_level.h"

#include "kernels/executor/pick_float.h"

namespace levin::kernels::cpu {
LEVIN_PICK_FLOAT(col2im)
}  // namespace levin::kernels::cpu

namespace levin::kernels::gpu {

// A thread writes V neighbouring elements of y, which may continue in the next row, tap or plane.
template <int V, class U>
__global__ void im2col_items(const U* x, U* y, std::int64_t n, WindowAxis h, WindowAxis w, Divider p_count,
                             Divider q_count, Divider i_count, Divider j_count) {
  const std::int64_t first = own_item() * V;
  if (first >= n) return;
  const std::int64_t row = q_count.quotient(first), tap = p_count.quotient(row), line = j_count.quotient(tap);
  std::int64_t plane = i_count.quotient(line);
  auto q = static_cast<std::uint32_t>(first - row * w.windows), p = static_cast<std::uint32_t>(row - tap * h.windows),
       j = static_cast<std::uint32_t>(tap - line * w.kernel), i = static_cast<std::uint32_t>(line - plane * h.kernel);
  // Of the row: where it begins, and how many pixels of it may be read.
  const U* from = nullptr;
  std::uint32_t readable = 0, c = 0;
  const auto begin_row = [&] {
    const std::uint32_t r = p * h.stride + i * h.dilation - h.padding;
    readable = r < h.size ? w.size : 0;
    if (readable > 0) from = x + (plane * h.size + r) * w.size;
    c = q * w.stride + j * w.dilation - w.padding;
  };
  begin_row();
  Vec<U, V> v;
#pragma unroll
  for (int k = 0; k < V; ++k) {
    v[k] = c < readable && first + k < n ? from[c] : U(0);
    c += w.stride;
    if (++q < w.windows) continue;
    q = 0;
    if (++p == h.windows) {
      p = 0;
      if (++j == w.kernel) {
        j = 0;
        if (++i == h.kernel) i = 0, ++plane;
      }
    }
    begin_row();
  }
  if (first + V <= n) {
    store(y + first, v);
  } else {
#pragma unroll
    for (int k = 0; k < V; ++k) {
      if (first + k < n) y[first + k] = v[k];
    }
  }
}

template <class U>
void im2col(const Gpu& on, const U* x, U* y, const WindowShape& s) {
  const std::int64_t n = s.planes * s.taps() * s.places();
  on.launch(im2col_items<kVec<U>, U>, item_grid((n + kVec<U> - 1) / kVec<U>), x, y, n, s.h, s.w, Divider(s.h.windows),
            Divider(s.w.windows), Divider(s.h.kernel), Divider(s.w.kernel));
}

// The windows and their taps that see a pixel, along one axis: taps ascend, windows descend. From one to the next it is
// `taps` and `windows` further, the least that keeps window * stride + tap * dilation.
struct Sight {
  WindowAxis axis;
  Divider stride, dilation;
  std::uint32_t windows, taps;
  explicit Sight(const WindowAxis& a) : axis(a), stride(a.stride), dilation(a.dilation) {
    const std::uint32_t both = std::gcd(a.stride, a.dilation);
    windows = a.dilation / both;
    taps = a.stride / both;
  }
  __device__ static std::uint32_t quotient(std::uint32_t n, const Divider& by) {
    return static_cast<std::uint32_t>(by.quotient(static_cast<std::int64_t>(n)));
  }
};
struct Seen {
  std::uint32_t tap, window;
  // The first; tap is axis.kernel where no window sees the pixel.
  __device__ __forceinline__ Seen(const Sight& s, std::uint32_t pixel) : tap(s.axis.kernel), window(0) {
    const std::uint32_t at = pixel + s.axis.padding;
    const std::uint32_t last = min(Sight::quotient(at, s.stride), s.axis.windows - 1);
    // One of as many neighbours as the windows' step is at a tap, or none is.
    for (std::uint32_t k = 0; k < s.windows && k <= last; ++k) {
      const std::uint32_t rest = at - (last - k) * s.axis.stride, i = Sight::quotient(rest, s.dilation);
      if (i >= s.axis.kernel) return;
      if (i * s.axis.dilation != rest) continue;
      tap = i;
      window = last - k;
      return;
    }
  }
  __device__ __forceinline__ bool any(const Sight& s) const { return tap < s.axis.kernel; }
  __device__ __forceinline__ void next(const Sight& s) {
    tap = window < s.windows || s.axis.kernel - tap <= s.taps ? s.axis.kernel : tap + s.taps;
    window -= s.windows;
  }
};

template <class T>
__global__ void col2im_pixels(const T* y, T* x, std::int64_t n, Sight h, Sight w, Divider rows, Divider cols) {
  const std::int64_t u = own_item();
  if (u >= n) return;
  const std::int64_t line = cols.quotient(u), plane = rows.quotient(line);
  const Seen first(w, static_cast<std::uint32_t>(u - line * w.axis.size));
  // From one tap and window to the next of a row of windows.
  const std::int64_t step = (std::int64_t{w.taps} * h.axis.windows) * w.axis.windows - w.windows;
  Accum<T> sum = 0;
  for (Seen a(h, static_cast<std::uint32_t>(line - plane * h.axis.size)); a.any(h); a.next(h)) {
    const std::int64_t tap = (plane * h.axis.kernel + a.tap) * w.axis.kernel + first.tap;
    const T* from = y + (tap * h.axis.windows + a.window) * w.axis.windows + first.window;
    for (Seen b = first; b.any(w); b.next(w), from += step) sum += Accum<T>(*from);
  }
  x[u] = T(sum);
}

template <class T>
void col2im(const Gpu& on, const T* y, T* x, const WindowShape& s) {
  const std::int64_t n = s.planes * s.pixels();
  if (n == 0) return;
  on.launch(col2im_pixels<T>, item_grid(n), y, x, n, Sight(s.h), Sight(s.w), Divider(s.h.size), Divider(s.w.size));
}

}  // namespace levin::kernels::gpu

namespace levin::kernels {  // of the executor that is given
using cpu::col2im, gpu::col2im;
using cpu::im2col, gpu::im2col;
}  // namespace levin::kernels

#endif  // LEVIN_KERNELS_IM2COL_CUH
#else

namespace levin::kernels::cpu::LEVIN_LEVEL {

template <class T>
void col2im(const Cpu& on, const T* y, T* x, const WindowShape& s) {
  using A = Accum<T>;
  // A piece of a row is summed at a time, so that 16-bit types are not rounded one by one.
  constexpr std::int64_t kPiece = 1024;
  const WindowAxis h = s.h, w = s.w;
  const std::int64_t pieces = (std::int64_t{w.size} + kPiece - 1) / kPiece;
  const double reads = double(s.taps()) / (double(h.stride) * double(w.stride));  // of one pixel, about
  const auto grain = static_cast<std::int64_t>(double(kWindowTask) /
                                               ((1 + reads) * double(std::clamp<std::int64_t>(w.size, 1, kPiece))));
  on.parallel_for(s.planes * h.size * pieces, grain, [=](std::int64_t begin, std::int64_t end) {
    A sums[kPiece];
    for (std::int64_t piece = begin; piece < end; ++piece) {
      const std::int64_t line = piece / pieces, plane = line / h.size, low = (piece - line * pieces) * kPiece,
                         high = std::min<std::int64_t>(w.size, low + kPiece);
      std::fill(sums, sums + (high - low), A(0));
      for (std::int64_t i = 0, at = line - plane * h.size + h.padding; i < h.kernel && at >= 0; ++i, at -= h.dilation) {
        const std::int64_t p = at / h.stride;
        if (p * h.stride != at || p >= h.windows) continue;
        for (std::int64_t j = 0; j < w.kernel; ++j) {
          const WindowRange q(w, j, low, high);
          const std::int64_t count = q.end - q.begin;
          if (count <= 0) continue;
          const T* from = y + (((plane * h.kernel + i) * w.kernel + j) * h.windows + p) * w.windows + q.begin;
          A* to = sums + (q.begin * w.stride + q.shift - low);
          if (w.stride == 1) {
#pragma GCC ivdep
            for (std::int64_t k = 0; k < count; ++k) to[k] += A(from[k]);
          } else {
            for (std::int64_t k = 0; k < count; ++k) to[k * w.stride] += A(from[k]);
          }
        }
      }
      T* out = x + line * w.size + low;
      for (std::int64_t k = 0; k < high - low; ++k) out[k] = T(sums[k]);
    }
  });
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
