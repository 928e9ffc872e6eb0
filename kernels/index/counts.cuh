#ifndef LEVIN_KERNELS_COUNTS_CUH
#define LEVIN_KERNELS_COUNTS_CUH
// Counts by index. On the CPU the op checks indices before; on a device an index outside is reported and counts for
// nothing.
//
//   one_hot(on, index, int64_t* y, n, classes)     y[i, index[i]] = 1;  y: [n, classes], zeros before
//   bincount(on, index, int64_t* y, n, bins)       y[index[i]] += 1;  y: [bins], zeros before
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/executor/cpu.h"
#include "kernels/index/index.cuh"
#include "kernels/lib/scratch.h"

namespace levin::kernels {
namespace cpu {

inline void one_hot(const Cpu&, const int64_t* index, int64_t* y, int64_t n, int64_t classes) {
  for (int64_t i = 0; i < n; ++i) y[i * classes + index[i]] = 1;
}

// Tasks count for themselves where that is little beside their indices.
inline void bincount(const Cpu& on, const int64_t* index, int64_t* y, int64_t n, int64_t bins) {
  const int64_t tasks = std::min<int64_t>(num_threads(), n / std::max(2 * kIndexTask, 4 * bins));
  const auto count = [=](int64_t task, int64_t* to) {
    for (int64_t i = task * n / tasks; i < (task + 1) * n / tasks; ++i) ++to[index[i]];
  };
  if (tasks < 2) {
    for (int64_t i = 0; i < n; ++i) ++y[index[i]];
    return;
  }
  const lib::Scratch memory(static_cast<size_t>((tasks - 1) * bins) * sizeof(int64_t));
  auto* const more = memory.as<int64_t>();
  std::memset(more, 0, static_cast<size_t>((tasks - 1) * bins) * sizeof(int64_t));
  on.parallel_for(tasks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) count(t, t == 0 ? y : more + (t - 1) * bins);
  });
  for (int64_t i = 0; i < (tasks - 1) * bins; ++i) y[i % bins] += more[i];
}

}  // namespace cpu

namespace gpu {

template <class = void>
__global__ void one_hot_items(IndexRange range, const int64_t* index, int64_t* y, int64_t n) {
  const int64_t i = own_item();
  if (i < n && range.holds(index[i])) y[i * range.bound + index[i]] = 1;
}
inline void one_hot(const Gpu& on, const char* op, const int64_t* index, int64_t* y, int64_t n, int64_t classes) {
  on.launch(one_hot_items<>, item_grid(n), IndexRange(on, op, classes), index, y, n);
}

// Integers: any order of the additions gives the same.
template <class = void>
__global__ void bincount_items(IndexRange range, const int64_t* index, unsigned long long* y, int64_t n) {
  const int64_t i = own_item();
  if (i < n && range.holds(index[i])) atomicAdd(y + index[i], 1ull);
}
inline void bincount(const Gpu& on, const char* op, const int64_t* index, int64_t* y, int64_t n, int64_t bins) {
  on.launch(bincount_items<>, item_grid(n), IndexRange(on, op, bins), index, reinterpret_cast<unsigned long long*>(y),
            n);
}

}  // namespace gpu
}  // namespace levin::kernels
#endif
