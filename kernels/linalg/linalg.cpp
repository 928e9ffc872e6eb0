#include "kernels/linalg/linalg.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#if LEVIN_EIGEN
#include <Eigen/Dense>
#endif
#include "levin/error.h"

namespace levin::kernels::cpu {

#if LEVIN_EIGEN
namespace {

// Eigen factorises faster by columns; what enters and leaves is row-major.
template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic>;
template <class T>
using Rows = Eigen::Map<Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;
template <class T>
using ConstRows = Eigen::Map<const Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;

// body(matrix) for each of the batch, false where it failed; the first that did, or -1.
template <class F>
std::int64_t each_matrix(const Cpu& on, std::int64_t batch, std::int64_t work, const F& body) {
  constexpr std::int64_t kTaskWork = 32 * 1024;
  std::atomic<std::int64_t> first{batch};
  on.parallel_for(batch, std::max<std::int64_t>(1, kTaskWork / std::max<std::int64_t>(1, work)),
                  [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t i = begin; i < end; ++i) {
                      if (body(i)) continue;
                      std::int64_t known = first.load();
                      while (i < known && !first.compare_exchange_weak(known, i)) {}
                    }
                  });
  return first < batch ? first.load() : -1;
}
std::int64_t cube(std::int64_t n) { return n * n * n; }

}  // namespace

template <class T>
std::int64_t solve(const Cpu& on, const T* a, const T* b, T* x, std::int64_t batch, std::int64_t n, std::int64_t k) {
  if (n == 0 || k == 0) return -1;
  return each_matrix(on, batch, cube(n) + n * n * k, [&](std::int64_t i) {
    const Eigen::PartialPivLU<Matrix<T>> lu(ConstRows<T>(a + i * n * n, n, n));
    Rows<T>(x + i * n * k, n, k) = lu.solve(Matrix<T>(ConstRows<T>(b + i * n * k, n, k)));
    return (lu.matrixLU().diagonal().array() != T(0)).all();
  });
}

template <class T>
void determinant(const Cpu& on, const T* a, T* sign, T* log_size, T* det, std::int64_t batch, std::int64_t n) {
  (void)each_matrix(on, batch, cube(n), [&](std::int64_t i) {
    T signs = 1, logs = 0, product = 1;
    if (n > 0) {
      const Eigen::PartialPivLU<Matrix<T>> lu(ConstRows<T>(a + i * n * n, n, n));
      product = signs = static_cast<T>(lu.permutationP().determinant());
      for (std::int64_t k = 0; k < n; ++k) {
        const T pivot = lu.matrixLU()(k, k);
        product *= pivot;
        logs += std::log(std::abs(pivot));
        signs *= pivot < 0 ? T(-1) : pivot > 0 ? T(1) : pivot;
      }
    }
    if (sign) sign[i] = signs;
    if (log_size) log_size[i] = logs;
    if (det) det[i] = product;
    return true;
  });
}

template <class T>
std::int64_t cholesky(const Cpu& on, const T* a, T* l, std::int64_t batch, std::int64_t n) {
  return each_matrix(on, batch, cube(n), [&](std::int64_t i) {
    if (n == 0) return true;
    const Eigen::LLT<Matrix<T>> llt(ConstRows<T>(a + i * n * n, n, n));
    Rows<T>(l + i * n * n, n, n) = Matrix<T>(llt.matrixL());
    return llt.info() == Eigen::Success;
  });
}

template <class T>
void qr(const Cpu& on, const T* a, T* q, T* r, std::int64_t batch, std::int64_t m, std::int64_t n) {
  const std::int64_t k = std::min(m, n);
  if (k == 0) return;
  (void)each_matrix(on, batch, m * n * k, [&](std::int64_t i) {
    const Eigen::HouseholderQR<Matrix<T>> qr(ConstRows<T>(a + i * m * n, m, n));
    Rows<T>(q + i * m * k, m, k) = Matrix<T>(qr.householderQ() * Matrix<T>::Identity(m, k));
    Rows<T>(r + i * k * n, k, n) = Matrix<T>(qr.matrixQR().topRows(k).template triangularView<Eigen::Upper>());
    return true;
  });
}

template <class T>
std::int64_t eigh(const Cpu& on, const T* a, T* w, T* v, std::int64_t batch, std::int64_t n) {
  return each_matrix(on, batch, 10 * cube(n), [&](std::int64_t i) {
    if (n == 0) return true;
    const Eigen::SelfAdjointEigenSolver<Matrix<T>> solver(Matrix<T>(ConstRows<T>(a + i * n * n, n, n)));
    Rows<T>(w + i * n, 1, n) = solver.eigenvalues().transpose();
    Rows<T>(v + i * n * n, n, n) = solver.eigenvectors();
    return solver.info() == Eigen::Success;
  });
}

template <class T>
std::int64_t svd(const Cpu& on, const T* a, T* u, T* s, T* vh, std::int64_t batch, std::int64_t m, std::int64_t n) {
  const std::int64_t k = std::min(m, n);
  if (k == 0) return -1;
  return each_matrix(on, batch, 10 * m * n * k, [&](std::int64_t i) {
    const Matrix<T> own = ConstRows<T>(a + i * m * n, m, n);
    if (!own.allFinite()) {
      constexpr T kNan = std::numeric_limits<T>::quiet_NaN();
      std::fill_n(u + i * m * k, m * k, kNan);
      std::fill_n(s + i * k, k, kNan);
      std::fill_n(vh + i * k * n, k * n, kNan);
      return false;
    }
    const Eigen::BDCSVD<Matrix<T>> svd(own, Eigen::ComputeThinU | Eigen::ComputeThinV);
    Rows<T>(u + i * m * k, m, k) = svd.matrixU();
    Rows<T>(s + i * k, 1, k) = svd.singularValues().transpose();
    Rows<T>(vh + i * k * n, k, n) = svd.matrixV().transpose();
    return svd.info() == Eigen::Success;
  });
}

#else
namespace {
[[noreturn]] void fail_absent() {
  fail<UnsupportedError>(
      "linalg: this build has no Eigen, which factorises matrices; configure it with "
      "-Deigen=enabled");
}
}  // namespace

template <class T>
std::int64_t solve(const Cpu&, const T*, const T*, T*, std::int64_t, std::int64_t, std::int64_t) {
  fail_absent();
}
template <class T>
void determinant(const Cpu&, const T*, T*, T*, T*, std::int64_t, std::int64_t) {
  fail_absent();
}
template <class T>
std::int64_t cholesky(const Cpu&, const T*, T*, std::int64_t, std::int64_t) {
  fail_absent();
}
template <class T>
void qr(const Cpu&, const T*, T*, T*, std::int64_t, std::int64_t, std::int64_t) {
  fail_absent();
}
template <class T>
std::int64_t eigh(const Cpu&, const T*, T*, T*, std::int64_t, std::int64_t) {
  fail_absent();
}
template <class T>
std::int64_t svd(const Cpu&, const T*, T*, T*, T*, std::int64_t, std::int64_t, std::int64_t) {
  fail_absent();
}
#endif

#define LEVIN_LINALG(T)                                                                                      \
  template std::int64_t solve(const Cpu&, const T*, const T*, T*, std::int64_t, std::int64_t, std::int64_t); \
  template void determinant(const Cpu&, const T*, T*, T*, T*, std::int64_t, std::int64_t);                   \
  template std::int64_t cholesky(const Cpu&, const T*, T*, std::int64_t, std::int64_t);                      \
  template void qr(const Cpu&, const T*, T*, T*, std::int64_t, std::int64_t, std::int64_t);                  \
  template std::int64_t eigh(const Cpu&, const T*, T*, T*, std::int64_t, std::int64_t);                      \
  template std::int64_t svd(const Cpu&, const T*, T*, T*, T*, std::int64_t, std::int64_t, std::int64_t)
LEVIN_LINALG(float);
LEVIN_LINALG(double);

}  // namespace levin::kernels::cpu
