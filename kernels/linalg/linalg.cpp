#include "kernels/linalg/linalg.h"

#include <cmath>
#include <cstdint>
#include <vector>

namespace levin::kernels::cpu {

template <class T>
void determinants_of_lu(const T* lu, const std::int64_t* rows, T* sign, T* log_size, T* det, std::int64_t batch,
                        std::int64_t n) {
  std::vector<std::uint8_t> seen(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < batch; ++i, lu += n * n, rows += n) {
    // A cycle of k rows is k - 1 exchanges of two.
    seen.assign(seen.size(), 0);
    bool is_odd = false;
    for (std::int64_t r = 0; r < n; ++r) {
      if (seen[static_cast<std::size_t>(r)]) continue;
      for (std::int64_t at = rows[r]; at != r; at = rows[at]) {
        seen[static_cast<std::size_t>(at)] = 1;
        is_odd = !is_odd;
      }
    }
    T signs = is_odd ? T(-1) : T(1), logs = 0, product = signs;
    for (std::int64_t k = 0; k < n; ++k) {
      const T pivot = lu[k * n + k];
      product *= pivot;
      logs += std::log(std::abs(pivot));
      signs *= pivot < 0 ? T(-1) : pivot > 0 ? T(1) : pivot;
    }
    if (sign) sign[i] = signs;
    if (log_size) log_size[i] = logs;
    if (det) det[i] = product;
  }
}
template void determinants_of_lu(const float*, const std::int64_t*, float*, float*, float*, std::int64_t, std::int64_t);
template void determinants_of_lu(const double*, const std::int64_t*, double*, double*, double*, std::int64_t,
                                 std::int64_t);

}  // namespace levin::kernels::cpu
