// Pooling of channels-last images [images, height, width, channels] to [images, h.out, w.out, channels]. Names are
// those of pool.cuh with _last. Values are those of pool.cuh to the bit: the elements of one result come in its order.
//
//   max_pool_last(on, x, images, channels, h, w, y, index)       index, in y's order: the place in the plane, or null
//   max_pool_scatter_last(on, gy, index, images, channels, h, w, gx)
//   max_pool_gather_last(on, x, index, images, channels, h, w, y)
//   avg_pool_last(on, x, images, channels, h, w, y)
//   avg_pool_backward_last(on, gy, images, channels, h, w, gx)
//
// The channels of a pixel lie side by side: the CPU's loops run along them, and a device's thread has 16 bytes of them
// where they are a multiple of that.
#ifndef LEVIN_LEVEL
#ifndef LEVIN_KERNELS_POOL_CHANNELS_LAST_CUH
#define LEVIN_KERNELS_POOL_CHANNELS_LAST_CUH

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/conv/pool_device.cuh"
#include "kernels/device/vec.cuh"

#define LEVIN_LEVEL_FILE "kernels/conv/pool_channels_last.cuh"
#include "kernels/executor/each_level.h"

namespace levin::kernels::cpu {
LEVIN_PICK(max_pool_last)
LEVIN_PICK(max_pool_scatter_last)
LEVIN_PICK(max_pool_gather_last)
LEVIN_PICK(avg_pool_last)
LEVIN_PICK(avg_pool_backward_last)
}  // namespace levin::kernels::cpu

namespace levin::kernels::gpu {

// V channels of a pixel: of an output for results, of an input for gradients.
struct PixelPlaces {
  PoolPlaces chunks;  // a plane is an image, a column a chunk of a pixel's channels
  Divider per_pixel;
  std::int64_t channels;
  template <int V, class Int, class F>
  __device__ __forceinline__ void each(F&& f) const {  // f(image, row, col, channel, offset)
    chunks.each<std::int64_t>([&](std::int64_t u, std::int64_t image, std::int64_t row, std::int64_t chunk) {
      const std::int64_t col = per_pixel.quotient(chunk);
      const std::int64_t channel = (chunk - col * static_cast<std::int64_t>(per_pixel.divisor)) * V;
      f(image, static_cast<Int>(row), static_cast<Int>(col), channel, u * V);
    });
  }
};
// V indices, 16 bytes at a time.
template <int V>
struct Indices {
  static constexpr int kPart = V < 4 ? V : 4;
  std::int32_t of[V];
  __device__ __forceinline__ void store_at(std::int32_t* p) const {
#pragma unroll
    for (int j = 0; j < V; j += kPart) {
      Vec<std::int32_t, kPart> part;
#pragma unroll
      for (int e = 0; e < kPart; ++e) part[e] = of[j + e];
      store(p + j, part);
    }
  }
  __device__ __forceinline__ static Indices load_from(const std::int32_t* p) {
    Indices all;
#pragma unroll
    for (int j = 0; j < V; j += kPart) {
      const Vec<std::int32_t, kPart> part = load<kPart>(p + j);
#pragma unroll
      for (int e = 0; e < kPart; ++e) all.of[j + e] = part[e];
    }
    return all;
  }
};

template <class T, int V, class W>
__global__ void max_pool_pixels(const T* x, PixelPlaces at, W h, W w, T* y, std::int32_t* index) {
  using Int = typename W::Place;
  at.each<V, Int>([=](std::int64_t image, Int i, Int j, std::int64_t channel, std::int64_t to) {
    const T* const in = x + image * h.in * w.in * at.channels + channel;
    const Int r0 = h.begin(i), r1 = h.end(i), c0 = w.begin(j), c1 = w.end(j);
    Widened<T, V> best = widened(load<V>(in + (r0 * w.in + c0) * at.channels));
    Indices<V> place;
#pragma unroll
    for (int k = 0; k < V; ++k) place.of[k] = static_cast<std::int32_t>(r0 * w.in + c0);
    for (Int r = r0; r < r1; r += h.step()) {
      for (Int c = c0; c < c1; c += w.step()) {
        const Widened<T, V> v = widened(load<V>(in + (r * w.in + c) * at.channels));
#pragma unroll
        for (int k = 0; k < V; ++k) {
          const bool takes = v[k] > best[k] || v[k] != v[k];
          best[k] = takes ? v[k] : best[k];
          place.of[k] = takes ? static_cast<std::int32_t>(r * w.in + c) : place.of[k];
        }
      }
    }
    store(y + to, narrowed(best));
    if (index != nullptr) place.store_at(index + to);
  });
}

template <class T, int V, class W>
__global__ void max_pool_input_pixels(const T* gy, const std::int32_t* index, PixelPlaces at, W h, W w, T* gx) {
  using Int = typename W::Place;
  at.each<V, Int>([=](std::int64_t image, Int r, Int c, std::int64_t channel, std::int64_t to) {
    const auto place = static_cast<std::int32_t>(r * w.in + c);
    const Int i1 = h.last_window(r), j0 = w.first_window(c), j1 = w.last_window(c);
    Widened<T, V> sum = {};
    for (Int i = h.first_window(r); i <= i1; ++i) {
      for (Int j = j0; j <= j1; ++j) {
        const std::int64_t o = ((image * h.out + i) * w.out + j) * at.channels + channel;
        const Indices<V> from = Indices<V>::load_from(index + o);
        const Widened<T, V> g = widened(load<V>(gy + o));
#pragma unroll
        for (int k = 0; k < V; ++k) sum[k] = from.of[k] == place ? sum[k] + g[k] : sum[k];
      }
    }
    store(gx + to, narrowed(sum));
  });
}

template <class T, int V, class W>
__global__ void max_pool_gather_pixels(const T* x, const std::int32_t* index, PixelPlaces at, W h, W w, T* y) {
  using Int = typename W::Place;
  at.each<V, Int>([=](std::int64_t image, Int, Int, std::int64_t channel, std::int64_t to) {
    const T* const in = x + image * h.in * w.in * at.channels + channel;
    const Indices<V> from = Indices<V>::load_from(index + to);
    Vec<T, V> v;
#pragma unroll
    for (int k = 0; k < V; ++k) v[k] = in[from.of[k] * at.channels + k];
    store(y + to, v);
  });
}

template <class T, int V, class W>
__global__ void avg_pool_pixels(const T* x, PixelPlaces at, W h, W w, T* y) {
  using Int = typename W::Place;
  at.each<V, Int>([=](std::int64_t image, Int i, Int j, std::int64_t channel, std::int64_t to) {
    const T* const in = x + image * h.in * w.in * at.channels + channel;
    const Int r1 = h.end(i), c0 = w.begin(j), c1 = w.end(j);
    const ByCount<Accum<T>> by(std::int64_t{h.count(i)} * w.count(j));
    Widened<T, V> sum = {};
    for (Int r = h.begin(i); r < r1; ++r) {
      for (Int c = c0; c < c1; ++c) {
        const Widened<T, V> v = widened(load<V>(in + (r * w.in + c) * at.channels));
#pragma unroll
        for (int k = 0; k < V; ++k) sum[k] += v[k];
      }
    }
#pragma unroll
    for (int k = 0; k < V; ++k) sum[k] = by.of(sum[k]);
    store(y + to, narrowed(sum));
  });
}

template <class T, int V, class W>
__global__ void avg_pool_input_pixels(const T* gy, PixelPlaces at, W h, W w, T* gx) {
  using Int = typename W::Place;
  at.each<V, Int>([=](std::int64_t image, Int r, Int c, std::int64_t channel, std::int64_t to) {
    const Int i1 = h.last_window(r), j0 = w.first_window(c), j1 = w.last_window(c);
    Widened<T, V> sum = {};
    for (Int i = h.first_window(r); i <= i1; ++i) {
      for (Int j = j0; j <= j1; ++j) {
        const ByCount<Accum<T>> by(std::int64_t{h.count(i)} * w.count(j));
        const Widened<T, V> g = widened(load<V>(gy + ((image * h.out + i) * w.out + j) * at.channels + channel));
#pragma unroll
        for (int k = 0; k < V; ++k) sum[k] += by.of(g[k]);
      }
    }
    store(gx + to, narrowed(sum));
  });
}

// launch(V, grid, places, h, w) for the pixels [images, rows, cols], unless there is none.
template <class T, bool kMayDilate = false, class F>
void over_pixels(std::int64_t images, std::int64_t channels, std::int64_t rows, std::int64_t cols, const PoolAxis& h,
                 const PoolAxis& w, std::initializer_list<const void*> pointers, F&& launch) {
  const bool vectors = channels % kVec<T> == 0 && std::all_of(pointers.begin(), pointers.end(), aligned16);
  const std::int64_t chunks = vectors ? channels / kVec<T> : channels;
  over_places(images, rows, cols * chunks, [&](const Grid& grid, const PoolPlaces& places) {
    const PixelPlaces at{places, Divider(chunks), channels};
    with_windows<kMayDilate>(h, w, [&](const auto& along_h, const auto& along_w) {
      if (vectors)
        launch(std::integral_constant<int, kVec<T>>{}, grid, at, along_h, along_w);
      else
        launch(std::integral_constant<int, 1>{}, grid, at, along_h, along_w);
    });
  });
}

template <class T>
void max_pool_last(const Gpu& on, const T* x, std::int64_t images, std::int64_t channels, const PoolAxis& h,
                   const PoolAxis& w, T* y, std::int32_t* index) {
  over_pixels<T, true>(images, channels, h.out, w.out, h, w, {x, y, index},
                       [&]<int V, class W>(std::integral_constant<int, V>, const Grid& grid, const PixelPlaces& at,
                                           const W& along_h, const W& along_w) {
                         on.launch(max_pool_pixels<T, V, W>, grid, x, at, along_h, along_w, y, index);
                       });
}
template <class T>
void max_pool_scatter_last(const Gpu& on, const T* gy, const std::int32_t* index, std::int64_t images,
                           std::int64_t channels, const PoolAxis& h, const PoolAxis& w, T* gx) {
  over_pixels<T>(images, channels, h.in, w.in, h, w, {gy, gx, index},
                 [&]<int V, class W>(std::integral_constant<int, V>, const Grid& grid, const PixelPlaces& at,
                                     const W& along_h, const W& along_w) {
                   on.launch(max_pool_input_pixels<T, V, W>, grid, gy, index, at, along_h, along_w, gx);
                 });
}
template <class T>
void max_pool_gather_last(const Gpu& on, const T* x, const std::int32_t* index, std::int64_t images,
                          std::int64_t channels, const PoolAxis& h, const PoolAxis& w, T* y) {
  over_pixels<T>(images, channels, h.out, w.out, h, w, {x, y, index},
                 [&]<int V, class W>(std::integral_constant<int, V>, const Grid& grid, const PixelPlaces& at,
                                     const W& along_h, const W& along_w) {
                   on.launch(max_pool_gather_pixels<T, V, W>, grid, x, index, at, along_h, along_w, y);
                 });
}
template <class T>
void avg_pool_last(const Gpu& on, const T* x, std::int64_t images, std::int64_t channels, const PoolAxis& h,
                   const PoolAxis& w, T* y) {
  over_pixels<T>(
      images, channels, h.out, w.out, h, w, {x, y},
      [&]<int V, class W>(std::integral_constant<int, V>, const Grid& grid, const PixelPlaces& at, const W& along_h,
                          const W& along_w) { on.launch(avg_pool_pixels<T, V, W>, grid, x, at, along_h, along_w, y); });
}
template <class T>
void avg_pool_backward_last(const Gpu& on, const T* gy, std::int64_t images, std::int64_t channels, const PoolAxis& h,
                            const PoolAxis& w, T* gx) {
  over_pixels<T>(images, channels, h.in, w.in, h, w, {gy, gx},
                 [&]<int V, class W>(std::integral_constant<int, V>, const Grid& grid, const PixelPlaces& at,
                                     const W& along_h, const W& along_w) {
                   on.launch(avg_pool_input_pixels<T, V, W>, grid, gy, at, along_h, along_w, gx);
                 });
}

}  // namespace levin::kernels::gpu

namespace levin::kernels {  // of the executor that is given
using cpu::avg_pool_backward_last, gpu::avg_pool_backward_last;
using cpu::avg_pool_last, gpu::avg_pool_last;
using cpu::max_pool_gather_last, gpu::max_pool_gather_last;
using cpu::max_pool_last, gpu::max_pool_last;
using cpu::max_pool_scatter_last, gpu::max_pool_scatter_last;
}  // namespace levin::kernels

#endif  // LEVIN_KERNELS_POOL_CHANNELS_LAST_CUH
#else

namespace levin::kernels::cpu::LEVIN_LEVEL {

// f(image, row) for rows of outputs; a task has about 64 K elements of x.
template <class F>
void each_output_row(const Cpu& on, std::int64_t images, std::int64_t channels, const PoolAxis& h, const PoolAxis& w,
                     F&& f) {
  const std::int64_t row = std::max<std::int64_t>(1, h.in * w.in * channels / std::max<std::int64_t>(1, h.out));
  on.parallel_for(images * h.out, std::max<std::int64_t>(1, 65536 / row), [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t u = first; u < last; ++u) f(u / h.out, u % h.out);
  });
}

template <bool kPlaces, class T, class Axis>
void largest_of_pixels(const Cpu& on, const T* x, std::int64_t images, std::int64_t channels, const Axis& h,
                       const Axis& w, T* y, std::int32_t* index) {
  using A = Accum<T>;
  each_output_row(on, images, channels, h, w, [=](std::int64_t image, std::int64_t i) {
    std::vector<A> best(static_cast<std::size_t>(channels));
    const T* const in = x + image * h.in * w.in * channels;
    const std::int64_t r0 = h.begin(i), r1 = h.end(i);
    for (std::int64_t j = 0; j < w.out; ++j) {
      const std::int64_t c0 = w.begin(j), c1 = w.end(j), to = ((image * h.out + i) * w.out + j) * channels;
      A* const most = best.data();
      std::int32_t* const place = kPlaces ? index + to : nullptr;
      for (std::int64_t k = 0; k < channels; ++k) {
        most[k] = A(in[(r0 * w.in + c0) * channels + k]);
        if constexpr (kPlaces) place[k] = std::int32_t(r0 * w.in + c0);
      }
      for (std::int64_t r = r0; r < r1; r += h.step()) {
        for (std::int64_t c = c0; c < c1; c += w.step()) {
          const T* const tap = in + (r * w.in + c) * channels;
          [[maybe_unused]] const auto here = std::int32_t(r * w.in + c);
#pragma GCC ivdep
          for (std::int64_t k = 0; k < channels; ++k) {
            const A v = A(tap[k]);
            const bool takes = (v > most[k]) | (v != v);
            most[k] = takes ? v : most[k];
            if constexpr (kPlaces) place[k] = takes ? here : place[k];
          }
        }
      }
      for (std::int64_t k = 0; k < channels; ++k) y[to + k] = T(most[k]);
    }
  });
}
template <class T>
void max_pool_last(const Cpu& on, const T* x, std::int64_t images, std::int64_t channels, const PoolAxis& h,
                   const PoolAxis& w, T* y, std::int32_t* index) {
  with_steps(h, w, [&](const auto& rows, const auto& cols) {
    if (index)
      largest_of_pixels<true>(on, x, images, channels, rows, cols, y, index);
    else
      largest_of_pixels<false>(on, x, images, channels, rows, cols, y, index);
  });
}

// add(image, sums) adds into an image [h.in, w.in, channels] of zeros in Accum<T>, which is rounded once.
template <class T, class F>
void add_into_images(const Cpu& on, std::int64_t images, std::int64_t channels, const PoolAxis& h, const PoolAxis& w,
                     T* gx, F&& add) {
  using A = Accum<T>;
  const std::int64_t size = h.in * w.in * channels;
  on.parallel_for(images, std::max<std::int64_t>(1, 65536 / std::max<std::int64_t>(1, size)),
                  [&](std::int64_t first, std::int64_t last) {
                    std::vector<A> room(std::is_same_v<A, T> ? 0 : static_cast<std::size_t>(size));
                    for (std::int64_t image = first; image < last; ++image) {
                      T* const out = gx + image * size;
                      A* sums = room.data();
                      if constexpr (std::is_same_v<A, T>) sums = out;
                      std::fill_n(sums, size, A(0));
                      add(image, sums);
                      if constexpr (!std::is_same_v<A, T>) {
                        for (std::int64_t e = 0; e < size; ++e) out[e] = T(sums[e]);
                      }
                    }
                  });
}

template <class T>
void max_pool_scatter_last(const Cpu& on, const T* gy, const std::int32_t* index, std::int64_t images,
                           std::int64_t channels, const PoolAxis& h, const PoolAxis& w, T* gx) {
  const std::int64_t outputs = h.out * w.out;
  add_into_images(on, images, channels, h, w, gx, [=](std::int64_t image, Accum<T>* sums) {
    for (std::int64_t o = image * outputs; o < (image + 1) * outputs; ++o) {
      for (std::int64_t k = 0; k < channels; ++k)
        sums[index[o * channels + k] * channels + k] += Accum<T>(gy[o * channels + k]);
    }
  });
}

template <class T>
void max_pool_gather_last(const Cpu& on, const T* x, const std::int32_t* index, std::int64_t images,
                          std::int64_t channels, const PoolAxis& h, const PoolAxis& w, T* y) {
  each_output_row(on, images, channels, h, w, [=](std::int64_t image, std::int64_t i) {
    const T* const in = x + image * h.in * w.in * channels;
    const std::int64_t first = (image * h.out + i) * w.out;
    for (std::int64_t o = first; o < first + w.out; ++o) {
      for (std::int64_t k = 0; k < channels; ++k) y[o * channels + k] = in[index[o * channels + k] * channels + k];
    }
  });
}

template <class T>
void avg_pool_last(const Cpu& on, const T* x, std::int64_t images, std::int64_t channels, const PoolAxis& h,
                   const PoolAxis& w, T* y) {
  using A = Accum<T>;
  each_output_row(on, images, channels, h, w, [=](std::int64_t image, std::int64_t i) {
    std::vector<A> sums(static_cast<std::size_t>(channels));
    A* const sum = sums.data();
    const T* const in = x + image * h.in * w.in * channels;
    const std::int64_t r1 = h.end(i);
    for (std::int64_t j = 0; j < w.out; ++j) {
      const std::int64_t c0 = w.begin(j), c1 = w.end(j), to = ((image * h.out + i) * w.out + j) * channels;
      std::fill_n(sum, channels, A(0));
      for (std::int64_t r = h.begin(i); r < r1; ++r) {
        for (std::int64_t c = c0; c < c1; ++c) {
          const T* const tap = in + (r * w.in + c) * channels;
#pragma GCC ivdep
          for (std::int64_t k = 0; k < channels; ++k) sum[k] += A(tap[k]);
        }
      }
      const A divisor = A(h.count(i) * w.count(j));
      for (std::int64_t k = 0; k < channels; ++k) y[to + k] = T(sum[k] / divisor);
    }
  });
}

template <class T>
void avg_pool_backward_last(const Cpu& on, const T* gy, std::int64_t images, std::int64_t channels, const PoolAxis& h,
                            const PoolAxis& w, T* gx) {
  using A = Accum<T>;
  add_into_images(on, images, channels, h, w, gx, [=](std::int64_t image, A* sums) {
    std::vector<A> shares(static_cast<std::size_t>(channels));
    A* const share = shares.data();
    for (std::int64_t i = 0; i < h.out; ++i) {
      const std::int64_t r1 = h.end(i);
      for (std::int64_t j = 0; j < w.out; ++j) {
        const T* const g = gy + ((image * h.out + i) * w.out + j) * channels;
        const A divisor = A(h.count(i) * w.count(j));
        for (std::int64_t k = 0; k < channels; ++k) share[k] = A(g[k]) / divisor;
        const std::int64_t c0 = w.begin(j), c1 = w.end(j);
        for (std::int64_t r = h.begin(i); r < r1; ++r) {
          for (std::int64_t c = c0; c < c1; ++c) {
            A* const to = sums + (r * w.in + c) * channels;
#pragma GCC ivdep
            for (std::int64_t k = 0; k < channels; ++k) to[k] += share[k];
          }
        }
      }
    }
  });
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
#endif
