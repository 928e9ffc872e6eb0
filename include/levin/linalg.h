// Linear algebra of dense matrices, with the names of torch.linalg.
//
// Matrices are the last two dimensions; those in front are a batch. f32 and f64, on the CPU: elsewhere UnsupportedError
// says to move the tensor there. ShapeError for a matrix that is not square where it must be, ConfigError for one that
// the function cannot take: the message has its number in the batch. Derivatives are formulas in public ops, of every
// order.
#pragma once

#include <optional>

#include "levin/ops.h"

namespace levin::linalg {

// x with a x = b, by LU with partial pivoting: a [..., n, n], b [..., n, k], whose leading dimensions broadcast; or b
// of rank 1, or of a's shape without the last dimension, which are vectors. ConfigError where a is singular.
[[nodiscard]] LEVIN_API Tensor solve(const Tensor& a, const Tensor& b);

// x with a x = b, or x a = b where `left` is false, for a triangle of a [..., n, n]: the other one is not read, nor is
// the diagonal where `unitriangular` says that it is 1. b [..., n, k], or [..., k, n], whose leading dimensions
// broadcast with a's. A 0 on the diagonal gives infinities or NaN, as in PyTorch.
struct Triangular {
  bool upper;
  bool left = true;
  bool unitriangular = false;
};
[[nodiscard]] LEVIN_API Tensor solve_triangular(const Tensor& a, const Tensor& b, Triangular options);

// a^-1: solve(a, identity).
[[nodiscard]] LEVIN_API Tensor inv(const Tensor& a);

// The determinant, [...]; 1 of an empty matrix. Its first derivative is right where a is singular, too.
[[nodiscard]] LEVIN_API Tensor det(const Tensor& a);

// The determinant's sign, without a derivative, and the logarithm of its size: 0 and -inf where a is singular.
struct SlogDet {
  Tensor sign, logabsdet;
};
[[nodiscard]] LEVIN_API SlogDet slogdet(const Tensor& a);

// The lower l with a = l l^T of a symmetric a, whose upper triangle is not read. The derivative is symmetric.
// ConfigError unless a is positive definite.
[[nodiscard]] LEVIN_API Tensor cholesky(const Tensor& a);

// a = q r for a [..., m, n]: q [..., m, k] with orthonormal columns, r [..., k, n] upper triangular, k = min(m, n)
// (PyTorch's mode "reduced"). The derivative needs the first k columns of a to be linearly independent.
struct Qr {
  Tensor q, r;
};
[[nodiscard]] LEVIN_API Qr qr(const Tensor& a);

// a = v diag(w) v^T of a symmetric a, whose upper triangle is not read: eigenvalues [..., n] ascending, eigenvectors as
// columns [..., n, n], each with either sign. The derivative through vectors of equal eigenvalues is infinite or NaN.
struct Eigh {
  Tensor eigenvalues, eigenvectors;
};
[[nodiscard]] LEVIN_API Eigh eigh(const Tensor& a);

// a = u diag(s) vh for a [..., m, n]: u [..., m, k], s [..., k] descending, vh [..., k, n], k = min(m, n) (PyTorch's
// full_matrices = False); each pair of vectors with either sign. The derivative through vectors of equal singular
// values is infinite or NaN.
struct Svd {
  Tensor u, s, vh;
};
[[nodiscard]] LEVIN_API Svd svd(const Tensor& a);

// The pseudoinverse of Moore and Penrose, [..., n, m] for a [..., m, n], by the singular values above rtol times the
// largest one; rtol is max(m, n) times the dtype's epsilon by default. The derivative is that of matrices of a's rank.
[[nodiscard]] LEVIN_API Tensor pinv(const Tensor& a, std::optional<double> rtol = {});

// The x of the least |a x - b|^2, by QR: a [..., m, n], m >= n, of full rank, b [..., m, k], whose leading dimensions
// broadcast, -> [..., n, k]; b may be of vectors, as in solve. Where columns of a are not linearly independent the
// result is not meaningful, and may be infinite or NaN. ShapeError for m < n: matmul(pinv(a), b) is the shortest x.
[[nodiscard]] LEVIN_API Tensor lstsq(const Tensor& a, const Tensor& b);

}  // namespace levin::linalg
