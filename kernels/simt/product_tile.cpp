// The arithmetic of a wgmma, apart because it takes nearly all the time of a kernel on the shim.
#include "kernels/simt/async.h"

namespace levin::simt {

void multiply_tile(const float (&a)[64][16], const float* b, float* d, int n) {
  double sums[256];
  for (int i = 0; i < 64; ++i) {
    float* const row = d + i * n;
    for (int j = 0; j < n; ++j) sums[j] = double(row[j]);
    for (int k = 0; k < 16; ++k) {
      const double left = double(a[i][k]);
      for (int j = 0; j < n; ++j) sums[j] += left * double(b[k * n + j]);
    }
    for (int j = 0; j < n; ++j) row[j] = static_cast<float>(sums[j]);
  }
}

}  // namespace levin::simt
