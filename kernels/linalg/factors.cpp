// Factors and solutions that need no library, for each level.
#include <cstdint>

#include "kernels/linalg/cholesky.cuh"
#include "kernels/linalg/linalg.h"
#include "kernels/linalg/lu.cuh"
#include "kernels/linalg/triangles.cuh"

namespace levin::kernels::cpu {

template <class T>
std::int64_t lu(const Cpu& on, T* a, std::int64_t* rows, std::int64_t batch, std::int64_t n) {
  return factor_lu(on, a, rows, batch, n);
}
template std::int64_t lu(const Cpu&, float*, std::int64_t*, std::int64_t, std::int64_t);
template std::int64_t lu(const Cpu&, double*, std::int64_t*, std::int64_t, std::int64_t);

template <class T>
void lu_solve(const Cpu& on, const T* lu, const std::int64_t* rows, const T* b, T* x, std::int64_t batch,
              std::int64_t n, std::int64_t k, bool transposed) {
  solve_by_lu(on, lu, rows, b, x, batch, n, k, transposed);
}
template void lu_solve(const Cpu&, const float*, const std::int64_t*, const float*, float*, std::int64_t, std::int64_t,
                       std::int64_t, bool);
template void lu_solve(const Cpu&, const double*, const std::int64_t*, const double*, double*, std::int64_t,
                       std::int64_t, std::int64_t, bool);

template <class T>
void solve_triangular(const Cpu& on, const T* a, T* x, std::int64_t batch, std::int64_t n, std::int64_t k,
                      TriangularForm form) {
  solve_by_triangle(on, a, x, batch, n, k, form);
}
template void solve_triangular(const Cpu&, const float*, float*, std::int64_t, std::int64_t, std::int64_t,
                               TriangularForm);
template void solve_triangular(const Cpu&, const double*, double*, std::int64_t, std::int64_t, std::int64_t,
                               TriangularForm);

template <class T>
std::int64_t cholesky(const Cpu& on, T* a, std::int64_t batch, std::int64_t n) {
  return factor_cholesky(on, a, batch, n);
}
template std::int64_t cholesky(const Cpu&, float*, std::int64_t, std::int64_t);
template std::int64_t cholesky(const Cpu&, double*, std::int64_t, std::int64_t);

}  // namespace levin::kernels::cpu
