// Tensors whose elements are a function of their position: y[i] = T(f(i)), i < n, y contiguous.
//
// A functor F holds its constants and has `operator()(int64_t) const` for host and device.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/device/bits.cuh"
#include "kernels/executor/cpu.h"

namespace levin::kernels::cpu {

template <class T, class F>
void generate(const Cpu& on, const F& f, T* y, int64_t n) {
  on.parallel_for(n, 16 * 1024, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) y[i] = static_cast<T>(f(i));
  });
}

}  // namespace levin::kernels::cpu

namespace levin::kernels::gpu {

// V elements a thread: 16 bytes, or one where y is not aligned to that.
template <int V, class T, class F>
__global__ void generate_items(F f, T* y, int64_t n) {
  const int64_t first = own_item() * V;
  if (first + V <= n) {
    Vec<T, V> v;
    for (int j = 0; j < V; ++j) v[j] = static_cast<T>(f(first + j));
    store(y + first, v);
  } else {
    for (int64_t i = first; i < n; ++i) y[i] = static_cast<T>(f(i));
  }
}

template <class T, class F>
void generate(const Gpu& on, const F& f, T* y, int64_t n) {
  if (aligned16(y))
    on.launch(generate_items<kVec<T>, T, F>, item_grid((n + kVec<T> - 1) / kVec<T>), f, y, n);
  else
    on.launch(generate_items<1, T, F>, item_grid(n), f, y, n);
}

}  // namespace levin::kernels::gpu
