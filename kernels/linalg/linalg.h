// Factorisations of dense matrices on the CPU, by Eigen. `batch` matrices stand one after another, by columns unless
// said otherwise; T: float or double. Functions that may fail return the first matrix that failed, or -1.
#pragma once

#include <cstdint>

#include "kernels/executor/cpu.h"

namespace levin::kernels::cpu {

// Which triangle of a matrix is read, and how.
struct TriangularForm {
  bool upper = false;
  bool unit = false;        // the diagonal is taken as 1
  bool transposed = false;  // the triangle's transpose is meant
};

template <class T>
struct Linalg {
  virtual ~Linalg() = default;

  // a [n, n] = p^-1 l u with partial pivoting, in place: l without its diagonal of ones, and u. Row i of a is row
  // rows[i] of p a. Fails where a is singular.
  virtual std::int64_t lu(const Cpu& on, T* a, std::int64_t* rows, std::int64_t batch, std::int64_t n) const = 0;
  // x = a^-1 b, or a^-T b, of what lu() made: b and x [n, k] by rows.
  virtual void lu_solve(const Cpu& on, const T* lu, const std::int64_t* rows, const T* b, T* x, std::int64_t batch,
                        std::int64_t n, std::int64_t k, bool transposed) const = 0;
  // x = a^-1 x of a triangle of a [n, n]: a, and x [n, k], by rows.
  virtual void solve_triangular(const Cpu& on, const T* a, T* x, std::int64_t batch, std::int64_t n, std::int64_t k,
                                TriangularForm form) const = 0;
  // Lower l with a = l l^T from the lower triangle of a, in place and by rows; fails unless a is positive definite.
  virtual std::int64_t cholesky(const Cpu& on, T* a, std::int64_t batch, std::int64_t n) const = 0;
  // a [m, n] = q r with q [m, k], r [k, n], k = min(m, n). Householder reflections.
  virtual void qr(const Cpu& on, const T* a, T* q, T* r, std::int64_t batch, std::int64_t m, std::int64_t n) const = 0;
  // The lower triangle of a symmetric a = v diag(w) v^T, w ascending; fails where the iteration does not converge.
  virtual std::int64_t eigh(const Cpu& on, const T* a, T* w, T* v, std::int64_t batch, std::int64_t n) const = 0;
  // a [m, n] = u diag(s) vh with u [m, k], vh [k, n], s descending; fails where the iteration does not converge.
  virtual std::int64_t svd(const Cpu& on, const T* a, T* u, T* s, T* vh, std::int64_t batch, std::int64_t m,
                           std::int64_t n) const = 0;
};

// The one of on's level. A build without Eigen throws UnsupportedError.
template <class T>
[[nodiscard]] const Linalg<T>& linalg(const Cpu& on);

// The determinants of what lu() made, as sign, log of their size, and themselves, one of each a matrix; null where not
// wanted.
template <class T>
void determinants_of_lu(const T* lu, const std::int64_t* rows, T* sign, T* log_size, T* det, std::int64_t batch,
                        std::int64_t n);

// Eigen compiled for a level of x86 (kernels/executor/each_level.h), by eigen_base.cpp and eigen_v3.cpp.
namespace base {
[[nodiscard]] const Linalg<float>& linalg(float);
[[nodiscard]] const Linalg<double>& linalg(double);
}  // namespace base
namespace v3 {
[[nodiscard]] const Linalg<float>& linalg(float);
[[nodiscard]] const Linalg<double>& linalg(double);
}  // namespace v3

}  // namespace levin::kernels::cpu
