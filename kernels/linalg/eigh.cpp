#include "kernels/linalg/eigh.cuh"

#include "kernels/linalg/linalg.h"

namespace levin::kernels::cpu {

template <class T>
std::int64_t eigh(const Cpu& on, const T* a, T* w, T* v, std::int64_t batch, std::int64_t n) {
  return eigh_each(on, a, w, v, batch, n);
}
template std::int64_t eigh(const Cpu&, const float*, float*, float*, std::int64_t, std::int64_t);
template std::int64_t eigh(const Cpu&, const double*, double*, double*, std::int64_t, std::int64_t);

}  // namespace levin::kernels::cpu
