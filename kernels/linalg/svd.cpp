#include "kernels/linalg/svd.cuh"

#include "kernels/linalg/linalg.h"

namespace levin::kernels::cpu {

template <class T>
std::int64_t svd(const Cpu& on, const T* a, T* u, T* s, T* vh, std::int64_t batch, std::int64_t m, std::int64_t n) {
  return svd_each(on, a, u, s, vh, batch, m, n);
}
template std::int64_t svd(const Cpu&, const float*, float*, float*, float*, std::int64_t, std::int64_t, std::int64_t);
template std::int64_t svd(const Cpu&, const double*, double*, double*, double*, std::int64_t, std::int64_t,
                          std::int64_t);

}  // namespace levin::kernels::cpu
