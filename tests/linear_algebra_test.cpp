// Products and factors of matrices against Eigen, which shares no code with ours: sizes for which the plain loops of
// other tests are too slow, and functions of products up to a gradient.
#include <doctest/doctest.h>

#include "tests/skip.h"

#if LEVIN_HAVE_EIGEN
#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <vector>

#include "levin/autograd.h"
#include "levin/linalg.h"
#include "levin/ops.h"

namespace levin {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
const Device cpu = Device::cpu();

Tensor uniform(const Shape& shape, DType dtype, std::uint64_t seed) {
  Generator gen(seed);
  return rand(shape, gen, cpu, DType::f64).to(DType::f32).to(dtype) * 2 - 1;  // [-1, 1]
}
Matrix matrix(const Tensor& t) {  // [rows, cols], in f64
  const auto x = t.detach().to(DType::f64).to_vector<double>();
  return Eigen::Map<const Matrix>(x.data(), t.size(0), t.size(1));
}
// The largest error over its bound, (k + 4) * eps * (the sum without signs): k products, each rounded once.
double worst(const Tensor& got, const Matrix& want, const Matrix& size, std::int64_t k) {
  const double eps = epsilon(got.dtype()) / 2;
  const Matrix error = (matrix(got) - want).cwiseAbs();
  return (error.array() / ((static_cast<double>(k) + 4) * eps * size.array() + 1e-300)).maxCoeff();
}

}  // namespace

TEST_CASE("matmul agrees with Eigen's f64 product for large, thin and transposed matrices") {
  const std::int64_t sizes[][3] = {{257, 511, 1023}, {1, 3000, 700}, {2000, 1, 900}, {64, 64, 5000}, {300, 700, 3}};
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const auto& [m, n, k] : sizes) {
      CAPTURE(m);
      CAPTURE(n);
      CAPTURE(k);
      const Tensor a = uniform({m, k}, dtype, 1), b = uniform({k, n}, dtype, 2);
      const Matrix ea = matrix(a), eb = matrix(b), want = ea * eb, size = ea.cwiseAbs() * eb.cwiseAbs();
      // Eigen's own f64 sums round as often as ours do.
      const double allowed = dtype == DType::f64 ? 2 : 1;
      CHECK(worst(matmul(a, b), want, size, k) <= allowed);
      const Tensor at = transpose(a, 0, 1).contiguous(), bt = transpose(b, 0, 1).contiguous();
      CHECK(worst(matmul(transpose(at, 0, 1), transpose(bt, 0, 1)), want, size, k) <= allowed);
    }
  }
}

TEST_CASE("linear and its gradients agree with Eigen's products") {
  const std::int64_t batch = 200, in = 784, out = 128;
  Tensor x = uniform({batch, in}, DType::f32, 3), w = uniform({out, in}, DType::f32, 4),
         b = uniform({out}, DType::f32, 5);
  for (Tensor* t : {&x, &w, &b}) t->requires_grad_();
  const Tensor gy = uniform({batch, out}, DType::f32, 6), y = linear(x, w, b);
  backward(y, gy);
  const Matrix ex = matrix(x), ew = matrix(w), eg = matrix(gy), eb = matrix(reshape(b.detach(), {1, out}));
  CHECK(worst(y, (ex * ew.transpose()).rowwise() + eb.row(0),
              (ex.cwiseAbs() * ew.cwiseAbs().transpose()).rowwise() + eb.cwiseAbs().row(0), in + 1) <= 1);
  CHECK(worst(x.grad(), eg * ew, eg.cwiseAbs() * ew.cwiseAbs(), out) <= 1);
  CHECK(worst(w.grad(), eg.transpose() * ex, eg.cwiseAbs().transpose() * ex.cwiseAbs(), batch) <= 1);
  CHECK(worst(reshape(b.grad(), {1, out}), eg.colwise().sum(), eg.cwiseAbs().colwise().sum(), batch) <= 1);
}

TEST_CASE("conv2d that goes through Winograd keeps the error that layer_ops.h states, beside Eigen's f64 products") {
  struct Form {
    std::int64_t rows, cols, stride;
  };
  for (const auto [rows, cols, stride] : {Form{3, 3, 1}, Form{5, 5, 1}, Form{1, 3, 1}, Form{1, 5, 1}, Form{4, 4, 2}}) {
    CAPTURE(rows);
    CAPTURE(cols);
    const std::int64_t batch = 4, in = 64, out = 48, height = stride == 2 ? 40 : 20, width = stride == 2 ? 43 : 23,
                       top = (rows - 1) / 2, left = (cols - 1) / 2;
    const Tensor x = uniform({batch, in, height, width}, DType::f32, 7),
                 w = uniform({out, in, rows, cols}, DType::f32, 8);
    const Tensor image = pad(x, {left, left, top, top});
    const Tensor y = conv2d(x, w, {}, {.stride = {stride, stride}, .padding = {top, left}});
    const std::int64_t high = y.size(2), wide = y.size(3);
    double error = 0, direct = 0;
    for (std::int64_t n = 0; n < batch; ++n) {
      Matrix want = Matrix::Zero(out, high * wide);
      for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t j = 0; j < cols; ++j) {  // one tap: [out, in] times the pixels that it sees [in, pixels]
          const Tensor seen = slice(slice(select(image, 0, n), 1, i, i + stride * (high - 1) + 1, stride), 2, j,
                                    j + stride * (wide - 1) + 1, stride);
          want += matrix(select(select(w, 3, j), 2, i)) * matrix(reshape(seen, {in, high * wide}));
        }
      }
      const Matrix got = matrix(reshape(select(y, 0, n), {out, high * wide}));
      error = std::max(error, (got - want).cwiseAbs().maxCoeff());
      direct = std::max(direct, want.cwiseAbs().maxCoeff());
    }
    const double terms = static_cast<double>(in * rows * cols);
    CHECK(error <= (cols == 3 ? 128 : 256) * 0x1p-24 * std::sqrt(terms));
    CHECK(direct > 1);  // the test compared something
  }
}

TEST_CASE("solutions, factors, eigenvalues and singular values agree with Eigen's") {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const std::int64_t n : {3, 40, 150, 300}) {
      CAPTURE(dtype);
      CAPTURE(n);
      const Tensor x = uniform({n, n}, dtype, 7), b = uniform({n, 5}, dtype, 8), tall = uniform({n + 60, n}, dtype, 9);
      const Tensor regular = x + static_cast<double>(n) * eye(n, cpu, dtype);
      const Tensor definite = matmul(x, transpose(x, 0, 1)) + eye(n, cpu, dtype);
      const double bound = 20 * std::sqrt(static_cast<double>(n)) * epsilon(dtype);
      const auto close = [&](const Tensor& got, const Matrix& want) {
        const Matrix is = got.rank() == 1 ? matrix(unsqueeze(got, 1)) : matrix(got);
        CHECK((is - want).cwiseAbs().maxCoeff() <= bound * want.cwiseAbs().maxCoeff());
      };
      const Matrix er = matrix(regular), ed = matrix(definite), et = matrix(tall);
      const Eigen::PartialPivLU<Matrix> lu(er);
      close(linalg::solve(regular, b), lu.solve(matrix(b)));
      close(linalg::inv(regular), lu.inverse());
      const linalg::SlogDet det = linalg::slogdet(regular);
      CHECK(det.sign.item<double>() == 1);
      CHECK(std::abs(det.logabsdet.item<double>() - lu.matrixLU().diagonal().array().log().sum()) <=
            bound * static_cast<double>(n));
      const Eigen::LLT<Matrix> llt(ed);
      close(linalg::cholesky(definite), llt.matrixL());
      const Matrix l = llt.matrixL();
      close(linalg::solve_triangular(linalg::cholesky(definite), b, {.upper = false}),
            l.triangularView<Eigen::Lower>().solve(matrix(b)));
      const Eigen::HouseholderQR<Matrix> qr(et);
      const Matrix r = qr.matrixQR().topRows(n).triangularView<Eigen::Upper>();
      close(abs(linalg::qr(tall).r), r.cwiseAbs());
      close(linalg::eigh(definite).eigenvalues, Eigen::SelfAdjointEigenSolver<Matrix>(ed).eigenvalues());
      close(linalg::svd(tall).s, Eigen::BDCSVD<Matrix>(et).singularValues());
    }
}

}  // namespace levin
#else
TEST_CASE("products of matrices agree with Eigen's") {
  levin::test::skip("this build has no Eigen: install libeigen3-dev");
}
#endif
