// Factorisations of dense matrices on the CPU, by Eigen. All matrices are row-major and stand one after another,
// `batch` of them; T: float or double. Functions that may fail return the first matrix that failed, or -1. A build
// without Eigen throws UnsupportedError.
#pragma once

#include <cstdint>

#include "kernels/executor/cpu.h"

namespace levin::kernels::cpu {

// x = a^-1 b: a [n, n], b and x [n, k]; -1 unless a is singular. LU with partial pivoting.
template <class T>
std::int64_t solve(const Cpu& on, const T* a, const T* b, T* x, std::int64_t batch, std::int64_t n, std::int64_t k);
// The determinant as sign, log of its size, and itself, one of each a matrix; null where not wanted.
template <class T>
void determinant(const Cpu& on, const T* a, T* sign, T* log_size, T* det, std::int64_t batch, std::int64_t n);
// Lower l with a = l l^T, from the lower triangle of a; fails unless a is positive definite.
template <class T>
std::int64_t cholesky(const Cpu& on, const T* a, T* l, std::int64_t batch, std::int64_t n);
// a [m, n] = q r with q [m, k], r [k, n], k = min(m, n). Householder reflections.
template <class T>
void qr(const Cpu& on, const T* a, T* q, T* r, std::int64_t batch, std::int64_t m, std::int64_t n);
// The lower triangle of a symmetric a = v diag(w) v^T, w ascending; fails where the iteration does not converge.
template <class T>
std::int64_t eigh(const Cpu& on, const T* a, T* w, T* v, std::int64_t batch, std::int64_t n);
// a [m, n] = u diag(s) vh with u [m, k], vh [k, n], s descending; fails where the iteration does not converge.
template <class T>
std::int64_t svd(const Cpu& on, const T* a, T* u, T* s, T* vh, std::int64_t batch, std::int64_t m, std::int64_t n);

}  // namespace levin::kernels::cpu
