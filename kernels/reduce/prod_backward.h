// The gradient of products of rows on the CPU: gx[row, k] = gy[row] times the product of x[row, j] for j other than k.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/executor/cpu.h"

namespace levin::kernels::cpu {

// gy y / x[k] for the product y in double, where gy y, y and every product on the way to it are normal numbers; else
// the product of the elements before k times that of those behind it. x and gx [rows, n], with elements; gy [rows].
template <class T>
void prod_backward(const Cpu& on, const T* gy, const T* x, T* gx, std::int64_t rows, std::int64_t n) {
  constexpr std::int64_t kTask = 8192, kChains = 4;
  on.parallel_for(rows, std::max<std::int64_t>(1, kTask / n), [=](std::int64_t begin, std::int64_t end) {
    std::vector<double> before;
    for (std::int64_t row = begin; row < end; ++row) {
      const T* const from = x + row * n;
      T* const to = gx + row * n;
      double chains[kChains] = {1, 1, 1, 1}, least[kChains] = {1, 1, 1, 1};
      for (std::int64_t k = 0; k < n; ++k) {
        double &chain = chains[k % kChains], &size = least[k % kChains];
        chain *= double(from[k]);
        size = std::abs(chain) < size ? std::abs(chain) : size;
      }
      const double g = double(gy[row]), low = chains[0] * chains[1], high = chains[2] * chains[3], all = low * high,
                   top = g * all;
      bool exact = std::isnormal(low) && std::isnormal(high) && std::isnormal(all) &&
                   (std::isnormal(top) || g == 0 || !std::isfinite(g));
      for (const double size : least) exact &= std::isnormal(size);
      if (exact) {
        for (std::int64_t k = 0; k < n; ++k) to[k] = T(top / double(from[k]));
        continue;
      }
      before.resize(static_cast<std::size_t>(n));
      double product = g;
      for (std::int64_t k = 0; k < n; ++k) {
        before[static_cast<std::size_t>(k)] = product;
        product *= double(from[k]);
      }
      product = 1;
      for (std::int64_t k = n - 1; k >= 0; --k) {
        to[k] = T(before[static_cast<std::size_t>(k)] * product);
        product *= double(from[k]);
      }
    }
  });
}

}  // namespace levin::kernels::cpu
