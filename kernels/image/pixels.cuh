// Pixels that move: windows, mirrored images, filled boxes and boxes of another image. Bits move, so U is the unsigned
// integer as wide as the element; all contiguous.
//
//   move_pixels(on, const U* x, U* y, const PixelShape&, const PixelMove&, U fill)
//
// y: [images, channels, rows, columns]; x: likewise with in_rows and in_columns, which differ from y's for windows
// alone. For image n and pixel (i, j) of y:
//
//   window   y = x[n, i + top, j + left], `fill` outside of x; {top, left} = sign * at[n]           at [images, 2]
//   mirror   y = x[n, i, columns - 1 - j] (across) or x[n, rows - 1 - i, j], where flags[n]; else x[n, i, j]
//   fill     y = `fill` inside of the box {top, left, bottom, right} = at[n], else x[n, i, j]        at [images, 4]
//   paste    y = x[(n + shift) mod images, i, j] inside of the box at, else x[n, i, j]              at [4]
//
// Positions may be any numbers. On devices a thread writes 16 bytes of y.
#ifndef LEVIN_KERNELS_PIXELS_CUH
#define LEVIN_KERNELS_PIXELS_CUH

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/device/bits.cuh"
#include "kernels/device/strided.cuh"
#include "kernels/executor/cpu.h"
#include "kernels/executor/gpu.h"
#include "kernels/executor/hd.h"

namespace levin::kernels {

struct PixelShape {
  std::int64_t images = 0, channels = 0, rows = 0, columns = 0, in_rows = 0, in_columns = 0;
  [[nodiscard]] std::int64_t lines() const { return images * channels * rows; }
};

struct PixelMove {
  enum class Kind : std::uint8_t { window, mirror_across, mirror_down, fill, paste } kind = Kind::window;
  const std::int64_t* at = nullptr;
  const bool* flags = nullptr;
  std::int64_t sign = 1, shift = 0;
};

// One line of y: y[j] = inside[first + j * step] for begin <= j < end, or `fill` where inside is null; outside[j] for
// other j, or `fill` where outside is null.
template <class U>
struct PixelLine {
  const U* inside = nullptr;
  const U* outside = nullptr;
  std::int64_t begin = 0, end = 0, first = 0, step = 1;

  LEVIN_HD PixelLine(const U* x, const PixelShape& s, const PixelMove& m, std::int64_t n, std::int64_t c,
                     std::int64_t i) {
    using Kind = PixelMove::Kind;
    const auto line = [&](std::int64_t image, std::int64_t row) {
      return x + ((image * s.channels + c) * s.in_rows + row) * s.in_columns;
    };
    switch (m.kind) {
      case Kind::window: {
        const std::int64_t row = i + m.sign * near(m.at[2 * n]), left = m.sign * near(m.at[2 * n + 1]);
        if (row < 0 || row >= s.in_rows) return;
        inside = line(n, row);
        first = left;
        begin = limited(-left, 0, s.columns);
        end = limited(s.in_columns - left, begin, s.columns);
        return;
      }
      case Kind::mirror_across:
        inside = line(n, i);
        end = s.columns;
        if (m.flags[n]) first = s.columns - 1, step = -1;
        return;
      case Kind::mirror_down:
        inside = line(n, m.flags[n] ? s.rows - 1 - i : i);
        end = s.columns;
        return;
      case Kind::fill:
      case Kind::paste: {
        outside = line(n, i);
        const std::int64_t* const box = m.kind == Kind::fill ? m.at + 4 * n : m.at;
        if (i < box[0] || i >= box[2]) return;
        begin = limited(box[1], 0, s.columns);
        end = limited(box[3], begin, s.columns);
        if (m.kind == Kind::fill) return;
        const std::int64_t other = n + m.shift;
        inside = line(other < 0 ? other + s.images : other >= s.images ? other - s.images : other, i);
        return;
      }
    }
  }
  LEVIN_HD U pixel(std::int64_t j, U fill) const {
    const U* const from =
        j >= begin && j < end ? (inside ? inside + (first + j * step) : nullptr) : (outside ? outside + j : nullptr);
    return from ? *from : fill;
  }

 private:
  LEVIN_HD static std::int64_t limited(std::int64_t v, std::int64_t low, std::int64_t high) {
    return v < low ? low : v > high ? high : v;
  }
  // Beyond every image; sums of two stay in 64 bits.
  LEVIN_HD static std::int64_t near(std::int64_t v) {
    constexpr std::int64_t kFar = std::int64_t{1} << 50;
    return limited(v, -kFar, kFar);
  }
};

namespace cpu {

inline constexpr std::int64_t kPixelTask = 32 * 1024;  // elements written by one task

template <class U>
void move_pixels(const Cpu& on, const U* x, U* y, const PixelShape& s, const PixelMove& m, U fill) {
  if (s.columns == 0) return;
  on.parallel_for(
      s.lines(), std::max<std::int64_t>(1, kPixelTask / s.columns), [=](std::int64_t begin, std::int64_t end) {
        U* to = y + begin * s.columns;
        for (std::int64_t l = begin; l < end; ++l, to += s.columns) {
          const std::int64_t plane = l / s.rows, n = plane / s.channels;
          const PixelLine<U> line(x, s, m, n, plane - n * s.channels, l - plane * s.rows);
          const auto part = [&](const U* from, std::int64_t shift, std::int64_t first, std::int64_t last) {
            if (first >= last) return;
            if (from)
              std::memcpy(to + first, from + (shift + first), static_cast<std::size_t>(last - first) * sizeof(U));
            else
              std::fill(to + first, to + last, fill);
          };
          part(line.outside, 0, 0, line.begin);
          if (line.step == 1)
            part(line.inside, line.first, line.begin, line.end);
          else
            std::reverse_copy(line.inside, line.inside + s.columns, to);
          part(line.outside, 0, line.end, s.columns);
        }
      });
}

}  // namespace cpu

namespace gpu {

template <int V, class U>
__global__ void move_pixels_items(const U* x, U* y, PixelShape s, PixelMove m, U fill, std::int64_t elements,
                                  Divider columns, Divider rows, Divider channels) {
  const std::int64_t first = own_item() * V;
  if (first >= elements) return;
  std::int64_t l = columns.quotient(first), j = first - l * s.columns;
  const auto line_at = [&](std::int64_t at) {
    const std::int64_t plane = rows.quotient(at), n = channels.quotient(plane);
    return PixelLine<U>(x, s, m, n, plane - n * s.channels, at - plane * s.rows);
  };
  PixelLine<U> line = line_at(l);
  Vec<U, V> v;
#pragma unroll
  for (int k = 0; k < V; ++k) {
    v[k] = first + k < elements ? line.pixel(j, fill) : U(0);
    if (++j < s.columns) continue;
    j = 0;
    if (first + k + 1 < elements) line = line_at(++l);
  }
  if (first + V <= elements) {
    store(y + first, v);
  } else {
#pragma unroll
    for (int k = 0; k < V; ++k)
      if (first + k < elements) y[first + k] = v[k];
  }
}

template <class U>
void move_pixels(const Gpu& on, const U* x, U* y, const PixelShape& s, const PixelMove& m, U fill) {
  const std::int64_t n = s.lines() * s.columns;
  if (n == 0) return;
  on.launch(move_pixels_items<kVec<U>, U>, item_grid((n + kVec<U> - 1) / kVec<U>), x, y, s, m, fill, n,
            Divider(s.columns), Divider(s.rows), Divider(s.channels));
}

}  // namespace gpu

using cpu::move_pixels, gpu::move_pixels;  // of the executor that is given

}  // namespace levin::kernels

#endif
