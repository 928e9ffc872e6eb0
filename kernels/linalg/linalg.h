// Factorisations of dense matrices on the CPU. `batch` matrices stand one after another, by rows; T: float or double.
// Functions that may fail return the first matrix that failed, or -1. Results have the same bits for any number of
// threads. OutOfMemoryError where there is no memory for copies of strips or columns.
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

// a [n, n] = p^-1 l u with partial pivoting, in place: l without its diagonal of ones, and u. Row i of a is row rows[i]
// of p a. A pivot of 0 fails, after which the others are found all the same; one of NaN does not.
template <class T>
std::int64_t lu(const Cpu& on, T* a, std::int64_t* rows, std::int64_t batch, std::int64_t n);
// x = a^-1 b, or a^-T b, of what lu() made: b and x [n, k].
template <class T>
void lu_solve(const Cpu& on, const T* lu, const std::int64_t* rows, const T* b, T* x, std::int64_t batch,
              std::int64_t n, std::int64_t k, bool transposed);
// x = a^-1 x of a triangle of a [n, n]: x [n, k].
template <class T>
void solve_triangular(const Cpu& on, const T* a, T* x, std::int64_t batch, std::int64_t n, std::int64_t k,
                      TriangularForm form);
// Lower l with a = l l^T from the lower triangle of a, in place, with zeros above. Fails where a pivot is not above 0,
// and then a is of no use; a pivot of NaN does not fail.
template <class T>
std::int64_t cholesky(const Cpu& on, T* a, std::int64_t batch, std::int64_t n);

// a [m, n] = q r with q [m, k], r [k, n], k = min(m, n). Householder reflections.
template <class T>
void qr(const Cpu& on, const T* a, T* q, T* r, std::int64_t batch, std::int64_t m, std::int64_t n);
// The lower triangle of a symmetric a = v diag(w) v^T, w ascending; fails where the iteration does not converge, or a
// number of the triangle is not finite: w and v are NaN then.
template <class T>
std::int64_t eigh(const Cpu& on, const T* a, T* w, T* v, std::int64_t batch, std::int64_t n);
// a [m, n] = u diag(s) vh with u [m, k], vh [k, n], s descending; fails as eigh() does.
template <class T>
std::int64_t svd(const Cpu& on, const T* a, T* u, T* s, T* vh, std::int64_t batch, std::int64_t m, std::int64_t n);

// The determinants of what lu() made, as sign, log of their size, and themselves, one of each a matrix; null where not
// wanted.
template <class T>
void determinants_of_lu(const T* lu, const std::int64_t* rows, T* sign, T* log_size, T* det, std::int64_t batch,
                        std::int64_t n);

}  // namespace levin::kernels::cpu
