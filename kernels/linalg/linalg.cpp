#include "kernels/linalg/linalg.h"

#include "levin/error.h"

namespace levin::kernels::cpu {

template <class T>
const Linalg<T>& linalg([[maybe_unused]] const Cpu& on) {
#if LEVIN_EIGEN
#if LEVIN_EIGEN_V3
  if (on.level != CpuLevel::base) return v3::linalg(T{});
#endif
  return base::linalg(T{});
#else
  fail<UnsupportedError>(
      "linalg: this build has no Eigen, which factorises matrices; configure it with "
      "-Deigen=enabled");
#endif
}
template const Linalg<float>& linalg(const Cpu&);
template const Linalg<double>& linalg(const Cpu&);

}  // namespace levin::kernels::cpu
