// Pooling over [planes, height, width] to [planes, h.out, w.out]; a plane is one channel of one image. Tensors
// contiguous, T: float, double, f16, bf16; sums in Accum<T>.
//
//   max_pool(on, x, planes, h, w, y, index)        y = the largest of the window (the first of equals; NaN wins),
//                                                  index = its place in the plane, y * width + x
//   max_pool_scatter(on, gy, index, planes, h, w, gx)   gx[index] += gy, 0 elsewhere: the gradient
//   max_pool_gather(on, x, index, planes, h, w, y)      y = x[index]: the gradient's gradient
//   avg_pool(on, x, planes, h, w, y)                    y = sum of the window / (h.count * w.count)
//   avg_pool_backward(on, gy, planes, h, w, gx)         spreads gy / count over the window; overlaps add in order
//
// A plane belongs to one task, so results do not depend on the number of threads. No window is empty.
//
// On devices gpu::max_pool and the others take the same arguments: a thread an output, and for the two gradients a
// thread an input, which goes over the windows that see it in order: no atomics, and the bits of the CPU.
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_POOL_CUH
#define LEVIN_KERNELS_POOL_CUH

#include <algorithm>
#include <cstdint>

#include "kernels/device/strided.cuh"
#include "kernels/executor/cpu.h"
#include "kernels/executor/gpu.h"
#include "kernels/executor/hd.h"
#include "levin/dtype.h"

namespace levin::kernels {

// The windows along one axis: output o sees inputs [begin(o), end(o)).
struct PoolAxis {
  std::int64_t in = 0, out = 0;
  std::int64_t kernel = 1, stride = 1, padding = 0;  // adaptive axes cut `in` into `out` parts instead
  bool adaptive = false;
  bool count_padding = false;  // an average divides by padded elements too

  LEVIN_HD std::int64_t begin(std::int64_t o) const {
    return adaptive ? o * in / out : std::max<std::int64_t>(0, o * stride - padding);
  }
  LEVIN_HD std::int64_t end(std::int64_t o) const {
    return adaptive ? ((o + 1) * in + out - 1) / out : std::min(in, o * stride - padding + kernel);
  }
  LEVIN_HD std::int64_t count(std::int64_t o) const {
    if (adaptive || !count_padding) return end(o) - begin(o);
    const std::int64_t first = o * stride - padding;
    return std::min(first + kernel, in + padding) - first;
  }
  // The windows that see input i: [first_window(i), last_window(i)].
  LEVIN_HD std::int64_t first_window(std::int64_t i) const {
    if (adaptive) return i * out / in;
    const std::int64_t room = i + padding - kernel;
    return room < 0 ? 0 : room / stride + 1;
  }
  LEVIN_HD std::int64_t last_window(std::int64_t i) const {
    return std::min(out, adaptive ? ((i + 1) * out - 1) / in + 1 : (i + padding) / stride + 1) - 1;
  }
};

// Planes a task: about 64 K elements.
inline std::int64_t planes_at_once(const PoolAxis& h, const PoolAxis& w) {
  return std::max<std::int64_t>(1, 65536 / std::max<std::int64_t>(1, h.in * w.in));
}

}  // namespace levin::kernels

#define LEVIN_LEVEL_FILE "kernels/conv/pool.cuh"
#include "kernels/executor/each_level.h"

namespace levin::kernels::cpu {
LEVIN_PICK(max_pool)
LEVIN_PICK(max_pool_scatter)
LEVIN_PICK(max_pool_gather)
LEVIN_PICK(avg_pool)
LEVIN_PICK(avg_pool_backward)
}  // namespace levin::kernels::cpu

namespace levin::kernels::gpu {

// Places of [planes, rows, cols] in a grid-stride loop: f(u, plane, row, col) for place u.
template <class F>
__device__ __forceinline__ void for_each_place(std::int64_t places, const Divider& rows, const Divider& cols, F&& f) {
  const std::int64_t step = std::int64_t{blockDim.x} * gridDim.x;
  for (std::int64_t u = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; u < places; u += step) {
    const std::int64_t line = cols.quotient(u), plane = rows.quotient(line);
    f(u, plane, line - plane * static_cast<std::int64_t>(rows.divisor),
      u - line * static_cast<std::int64_t>(cols.divisor));
  }
}

template <class T>
__global__ void max_pool_windows(const T* x, std::int64_t places, Divider rows, Divider cols, PoolAxis h, PoolAxis w,
                                 T* y, std::int32_t* index) {
  for_each_place(places, rows, cols, [=](std::int64_t u, std::int64_t plane, std::int64_t i, std::int64_t j) {
    const T* in = x + plane * h.in * w.in;
    const std::int64_t r1 = h.end(i), c0 = w.begin(j), c1 = w.end(j);
    std::int64_t place = h.begin(i) * w.in + c0;
    auto best = Accum<T>(in[place]);
    for (std::int64_t r = h.begin(i); r < r1; ++r) {
      for (std::int64_t c = c0; c < c1; ++c) {
        const auto v = Accum<T>(in[r * w.in + c]);
        if (v > best || v != v) {
          best = v;
          place = r * w.in + c;
        }
      }
    }
    y[u] = T(best);
    index[u] = static_cast<std::int32_t>(place);
  });
}

template <class T>
__global__ void max_pool_inputs(const T* gy, const std::int32_t* index, std::int64_t places, Divider rows, Divider cols,
                                PoolAxis h, PoolAxis w, T* gx) {
  for_each_place(places, rows, cols, [=](std::int64_t u, std::int64_t plane, std::int64_t r, std::int64_t c) {
    const auto place = static_cast<std::int32_t>(r * w.in + c);
    const std::int64_t i1 = h.last_window(r), j0 = w.first_window(c), j1 = w.last_window(c);
    Accum<T> sum = 0;
    for (std::int64_t i = h.first_window(r); i <= i1; ++i) {
      for (std::int64_t j = j0; j <= j1; ++j) {
        const std::int64_t o = (plane * h.out + i) * w.out + j;
        if (index[o] == place) sum += Accum<T>(gy[o]);
      }
    }
    gx[u] = T(sum);
  });
}

template <class T>
__global__ void max_pool_places(const T* x, const std::int32_t* index, std::int64_t places, Divider rows, Divider cols,
                                PoolAxis h, PoolAxis w, T* y) {
  for_each_place(places, rows, cols, [=](std::int64_t u, std::int64_t plane, std::int64_t, std::int64_t) {
    y[u] = x[plane * h.in * w.in + index[u]];
  });
}

template <class T>
__global__ void avg_pool_windows(const T* x, std::int64_t places, Divider rows, Divider cols, PoolAxis h, PoolAxis w,
                                 T* y) {
  for_each_place(places, rows, cols, [=](std::int64_t u, std::int64_t plane, std::int64_t i, std::int64_t j) {
    const T* in = x + plane * h.in * w.in;
    const std::int64_t r1 = h.end(i), c0 = w.begin(j), c1 = w.end(j);
    Accum<T> sum = 0;
    for (std::int64_t r = h.begin(i); r < r1; ++r) {
      for (std::int64_t c = c0; c < c1; ++c) sum += Accum<T>(in[r * w.in + c]);
    }
    y[u] = T(sum / Accum<T>(h.count(i) * w.count(j)));
  });
}

template <class T>
__global__ void avg_pool_inputs(const T* gy, std::int64_t places, Divider rows, Divider cols, PoolAxis h, PoolAxis w,
                                T* gx) {
  for_each_place(places, rows, cols, [=](std::int64_t u, std::int64_t plane, std::int64_t r, std::int64_t c) {
    const std::int64_t i1 = h.last_window(r), j0 = w.first_window(c), j1 = w.last_window(c);
    Accum<T> sum = 0;
    for (std::int64_t i = h.first_window(r); i <= i1; ++i) {
      for (std::int64_t j = j0; j <= j1; ++j) {
        sum += Accum<T>(gy[(plane * h.out + i) * w.out + j]) / Accum<T>(h.count(i) * w.count(j));
      }
    }
    gx[u] = T(sum);
  });
}

// Calls launch(grid, places, rows, cols) for [planes, rows, cols], unless that is empty.
template <class F>
void over_places(std::int64_t planes, std::int64_t rows, std::int64_t cols, F&& launch) {
  const std::int64_t places = planes * rows * cols;
  if (places == 0) return;
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>((places + 255) / 256, 132 * 16));
  launch(Grid{.blocks = blocks, .threads = 256}, places, Divider(rows), Divider(cols));
}

template <class T>
void max_pool(const Gpu& on, const T* x, std::int64_t planes, const PoolAxis& h, const PoolAxis& w, T* y,
              std::int32_t* index) {
  over_places(planes, h.out, w.out,
              [&](const Grid& grid, std::int64_t places, const Divider& rows, const Divider& cols) {
                on.launch(max_pool_windows<T>, grid, x, places, rows, cols, h, w, y, index);
              });
}
template <class T>
void max_pool_scatter(const Gpu& on, const T* gy, const std::int32_t* index, std::int64_t planes, const PoolAxis& h,
                      const PoolAxis& w, T* gx) {
  over_places(planes, h.in, w.in, [&](const Grid& grid, std::int64_t places, const Divider& rows, const Divider& cols) {
    on.launch(max_pool_inputs<T>, grid, gy, index, places, rows, cols, h, w, gx);
  });
}
template <class T>
void max_pool_gather(const Gpu& on, const T* x, const std::int32_t* index, std::int64_t planes, const PoolAxis& h,
                     const PoolAxis& w, T* y) {
  over_places(planes, h.out, w.out,
              [&](const Grid& grid, std::int64_t places, const Divider& rows, const Divider& cols) {
                on.launch(max_pool_places<T>, grid, x, index, places, rows, cols, h, w, y);
              });
}
template <class T>
void avg_pool(const Gpu& on, const T* x, std::int64_t planes, const PoolAxis& h, const PoolAxis& w, T* y) {
  over_places(planes, h.out, w.out,
              [&](const Grid& grid, std::int64_t places, const Divider& rows, const Divider& cols) {
                on.launch(avg_pool_windows<T>, grid, x, places, rows, cols, h, w, y);
              });
}
template <class T>
void avg_pool_backward(const Gpu& on, const T* gy, std::int64_t planes, const PoolAxis& h, const PoolAxis& w, T* gx) {
  over_places(planes, h.in, w.in, [&](const Grid& grid, std::int64_t places, const Divider& rows, const Divider& cols) {
    on.launch(avg_pool_inputs<T>, grid, gy, places, rows, cols, h, w, gx);
  });
}

}  // namespace levin::kernels::gpu

namespace levin::kernels {  // of the executor that is given
using cpu::avg_pool, gpu::avg_pool;
using cpu::avg_pool_backward, gpu::avg_pool_backward;
using cpu::max_pool, gpu::max_pool;
using cpu::max_pool_gather, gpu::max_pool_gather;
using cpu::max_pool_scatter, gpu::max_pool_scatter;
}  // namespace levin::kernels

#endif  // LEVIN_KERNELS_POOL_CUH
#else

namespace levin::kernels::cpu::LEVIN_LEVEL {

// Two by two without overlap, the usual case: a row of maxima without branches.
template <class T>
void max_pool_2x2_row(const T* top, const T* bottom, std::int32_t at, std::int32_t width, T* y, std::int32_t* index,
                      std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t o = 0; o < n; ++o) {
    const auto v0 = Accum<T>(top[2 * o]), v1 = Accum<T>(top[2 * o + 1]), v2 = Accum<T>(bottom[2 * o]),
               v3 = Accum<T>(bottom[2 * o + 1]);
    auto best = v0;
    std::int32_t place = 0;
    const bool b1 = v1 > best || v1 != v1;
    best = b1 ? v1 : best;
    place = b1 ? 1 : place;
    const bool b2 = v2 > best || v2 != v2;
    best = b2 ? v2 : best;
    place = b2 ? width : place;
    const bool b3 = v3 > best || v3 != v3;
    best = b3 ? v3 : best;
    place = b3 ? width + 1 : place;
    y[o] = T(best);
    index[o] = at + static_cast<std::int32_t>(2 * o) + place;
  }
}

template <class T>
void max_pool(const Cpu& on, const T* x, std::int64_t planes, const PoolAxis& h, const PoolAxis& w, T* y,
              std::int32_t* index) {
  const auto two = [](const PoolAxis& a) {
    return !a.adaptive && a.kernel == 2 && a.stride == 2 && a.padding == 0 && 2 * a.out <= a.in;
  };
  const bool plain = two(h) && two(w);
  on.parallel_for(planes, planes_at_once(h, w), [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t p = first; p < last; ++p) {
      const T* in = x + p * h.in * w.in;
      T* out = y + p * h.out * w.out;
      std::int32_t* places = index + p * h.out * w.out;
      for (std::int64_t i = 0; i < h.out; ++i, out += w.out, places += w.out) {
        if (plain) {
          max_pool_2x2_row(in + 2 * i * w.in, in + (2 * i + 1) * w.in, static_cast<std::int32_t>(2 * i * w.in),
                           static_cast<std::int32_t>(w.in), out, places, w.out);
          continue;
        }
        for (std::int64_t j = 0; j < w.out; ++j) {
          std::int64_t place = h.begin(i) * w.in + w.begin(j);
          auto best = Accum<T>(in[place]);
          for (std::int64_t r = h.begin(i); r < h.end(i); ++r) {
            for (std::int64_t c = w.begin(j); c < w.end(j); ++c) {
              const auto v = Accum<T>(in[r * w.in + c]);
              if (v > best || v != v) {
                best = v;
                place = r * w.in + c;
              }
            }
          }
          out[j] = T(best);
          places[j] = static_cast<std::int32_t>(place);
        }
      }
    }
  });
}

// Adds into a plane of Accum<T>; for 16-bit types a scratch plane keeps the sums from being rounded one by one.
template <class T, class F>
void gather_into_planes(const Cpu& on, std::int64_t planes, const PoolAxis& h, const PoolAxis& w, T* gx, F&& add) {
  using A = Accum<T>;
  const std::int64_t size = h.in * w.in;
  on.parallel_for(planes, planes_at_once(h, w), [&](std::int64_t first, std::int64_t last) {
    A* scratch = nullptr;
    if constexpr (!std::is_same_v<A, T>) scratch = new A[static_cast<std::size_t>(size)];
    for (std::int64_t p = first; p < last; ++p) {
      T* out = gx + p * size;
      A* sums;
      if constexpr (std::is_same_v<A, T>)
        sums = out;
      else
        sums = scratch;
      std::fill(sums, sums + size, A(0));
      add(p, sums);
      if constexpr (!std::is_same_v<A, T>) {
        for (std::int64_t i = 0; i < size; ++i) out[i] = T(sums[i]);
      }
    }
    delete[] scratch;
  });
}

template <class T>
void max_pool_scatter(const Cpu& on, const T* gy, const std::int32_t* index, std::int64_t planes, const PoolAxis& h,
                      const PoolAxis& w, T* gx) {
  const std::int64_t n = h.out * w.out;
  gather_into_planes(on, planes, h, w, gx, [=](std::int64_t p, Accum<T>* sums) {
    for (std::int64_t o = p * n; o < (p + 1) * n; ++o) sums[index[o]] += Accum<T>(gy[o]);
  });
}

template <class T>
void max_pool_gather(const Cpu& on, const T* x, const std::int32_t* index, std::int64_t planes, const PoolAxis& h,
                     const PoolAxis& w, T* y) {
  const std::int64_t n = h.out * w.out, size = h.in * w.in;
  on.parallel_for(planes, planes_at_once(h, w), [=](std::int64_t first, std::int64_t last) {
    for (std::int64_t p = first; p < last; ++p) {
      for (std::int64_t o = p * n; o < (p + 1) * n; ++o) y[o] = x[p * size + index[o]];
    }
  });
}

template <class T>
void avg_pool(const Cpu& on, const T* x, std::int64_t planes, const PoolAxis& h, const PoolAxis& w, T* y) {
  using A = Accum<T>;
  on.parallel_for(planes, planes_at_once(h, w), [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t p = first; p < last; ++p) {
      const T* in = x + p * h.in * w.in;
      T* out = y + p * h.out * w.out;
      for (std::int64_t i = 0; i < h.out; ++i) {
        for (std::int64_t j = 0; j < w.out; ++j) {
          A sum = 0;
          for (std::int64_t r = h.begin(i); r < h.end(i); ++r) {
            for (std::int64_t c = w.begin(j); c < w.end(j); ++c) sum += A(in[r * w.in + c]);
          }
          *out++ = T(sum / A(h.count(i) * w.count(j)));
        }
      }
    }
  });
}

template <class T>
void avg_pool_backward(const Cpu& on, const T* gy, std::int64_t planes, const PoolAxis& h, const PoolAxis& w, T* gx) {
  using A = Accum<T>;
  gather_into_planes(on, planes, h, w, gx, [&](std::int64_t p, A* sums) {
    const T* g = gy + p * h.out * w.out;
    for (std::int64_t i = 0; i < h.out; ++i) {
      for (std::int64_t j = 0; j < w.out; ++j) {
        const A share = A(*g++) / A(h.count(i) * w.count(j));
        for (std::int64_t r = h.begin(i); r < h.end(i); ++r) {
          for (std::int64_t c = w.begin(j); c < w.end(j); ++c) sums[r * w.in + c] += share;
        }
      }
    }
  });
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
