#include "kernels/linalg/qr.cuh"

#include "kernels/linalg/linalg.h"

namespace levin::kernels::cpu {

template <class T>
void qr(const Cpu& on, const T* a, T* q, T* r, std::int64_t batch, std::int64_t m, std::int64_t n) {
  qr_each(on, a, q, r, batch, m, n);
}
template void qr(const Cpu&, const float*, float*, float*, std::int64_t, std::int64_t, std::int64_t);
template void qr(const Cpu&, const double*, double*, double*, std::int64_t, std::int64_t, std::int64_t);

}  // namespace levin::kernels::cpu
