// Linalg by Eigen for one level: defines LEVIN_LEVEL's linalg(). No include guard: a file a level includes it, after
// every header.
namespace levin::kernels::cpu::LEVIN_LEVEL {
namespace {

template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic>;
template <class T>
using Columns = Eigen::Map<Matrix<T>>;
template <class T>
using ConstColumns = Eigen::Map<const Matrix<T>>;
template <class T>
using Rows = Eigen::Map<Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;
template <class T>
using ConstRows = Eigen::Map<const Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;

// body(matrix) for each of the batch, false where it failed; the first that did, or -1. `work`: of a body, in ns.
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

// body(matrix, first column, columns) over k columns of the right side of each of the batch, which have nothing to do
// with each other. Pieces depend on k alone, so the number of threads changes no bits.
template <class F>
void each_right_side(const Cpu& on, std::int64_t batch, std::int64_t n, std::int64_t k, const F& body) {
  constexpr std::int64_t kColumns = 64;
  const std::int64_t pieces = (k + kColumns - 1) / kColumns;
  (void)each_matrix(on, batch * pieces, n * n * std::min(k, kColumns), [&](std::int64_t at) {
    const std::int64_t first = at % pieces * kColumns;
    body(at / pieces, first, std::min(kColumns, k - first));
    return true;
  });
}

template <class T>
struct ByEigen final : Linalg<T> {
  std::int64_t lu(const Cpu& on, T* a, std::int64_t* rows, std::int64_t batch, std::int64_t n) const override {
    if (n == 0) return -1;
    return each_matrix(on, batch, cube(n), [&](std::int64_t i) {
      Columns<T> both(a + i * n * n, n, n);
      const Eigen::PartialPivLU<Eigen::Ref<Matrix<T>>> found(both);
      for (std::int64_t r = 0; r < n; ++r) rows[i * n + r] = found.permutationP().indices()(r);
      return (both.diagonal().array() != T(0)).all();
    });
  }

  void lu_solve(const Cpu& on, const T* lu, const std::int64_t* rows, const T* b, T* x, std::int64_t batch,
                std::int64_t n, std::int64_t k, bool transposed) const override {
    if (n == 0 || k == 0) return;
    each_right_side(on, batch, n, k, [&](std::int64_t i, std::int64_t first, std::int64_t columns) {
      const ConstColumns<T> both(lu + i * n * n, n, n);
      const auto l = both.template triangularView<Eigen::UnitLower>();
      const auto u = both.template triangularView<Eigen::Upper>();
      const auto right = ConstRows<T>(b + i * n * k, n, k).middleCols(first, columns);
      Rows<T> all(x + i * n * k, n, k);
      auto out = all.middleCols(first, columns);
      if (transposed) {
        Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> y = right;
        u.transpose().solveInPlace(y);
        l.transpose().solveInPlace(y);
        for (std::int64_t r = 0; r < n; ++r) out.row(r) = y.row(rows[i * n + r]);
      } else {
        for (std::int64_t r = 0; r < n; ++r) out.row(rows[i * n + r]) = right.row(r);
        l.solveInPlace(out);
        u.solveInPlace(out);
      }
    });
  }

  void solve_triangular(const Cpu& on, const T* a, T* x, std::int64_t batch, std::int64_t n, std::int64_t k,
                        TriangularForm form) const override {
    if (n == 0 || k == 0) return;
    each_right_side(on, batch, n, k, [&](std::int64_t i, std::int64_t first, std::int64_t columns) {
      const ConstRows<T> whole(a + i * n * n, n, n);
      Rows<T> all(x + i * n * k, n, k);
      auto y = all.middleCols(first, columns);
      const auto solve = [&]<unsigned kMode>(std::integral_constant<unsigned, kMode>) {
        const auto triangle = whole.template triangularView<kMode>();
        form.transposed ? triangle.transpose().solveInPlace(y) : triangle.solveInPlace(y);
      };
      if (form.upper && form.unit) solve(std::integral_constant<unsigned, Eigen::UnitUpper>{});
      if (form.upper && !form.unit) solve(std::integral_constant<unsigned, Eigen::Upper>{});
      if (!form.upper && form.unit) solve(std::integral_constant<unsigned, Eigen::UnitLower>{});
      if (!form.upper && !form.unit) solve(std::integral_constant<unsigned, Eigen::Lower>{});
    });
  }

  std::int64_t cholesky(const Cpu& on, T* a, std::int64_t batch, std::int64_t n) const override {
    if (n == 0) return -1;
    return each_matrix(on, batch, cube(n), [&](std::int64_t i) {
      // By columns it is the upper triangle of l^T.
      Columns<T> upper(a + i * n * n, n, n);
      const Eigen::LLT<Eigen::Ref<Matrix<T>>, Eigen::Upper> llt(upper);
      for (std::int64_t r = 0; r < n; ++r) upper.col(r).tail(n - 1 - r).setZero();
      return llt.info() == Eigen::Success;
    });
  }

  void qr(const Cpu& on, const T* a, T* q, T* r, std::int64_t batch, std::int64_t m, std::int64_t n) const override {
    const std::int64_t k = std::min(m, n);
    if (k == 0) return;
    (void)each_matrix(on, batch, 4 * m * n * k, [&](std::int64_t i) {
      Matrix<T> own = ConstColumns<T>(a + i * m * n, m, n);
      const Eigen::HouseholderQR<Eigen::Ref<Matrix<T>>> qr(own);
      Columns<T> vectors(q + i * m * k, m, k);
      vectors.setIdentity();
      Eigen::Matrix<T, Eigen::Dynamic, 1> room(k);
      // m == k: to the whole identity, of which each reflection changes a part.
      qr.householderQ().applyThisOnTheLeft(vectors, room, m == k);
      Columns<T>(r + i * k * n, k, n) = own.topRows(k).template triangularView<Eigen::Upper>();
      return true;
    });
  }

  std::int64_t eigh(const Cpu& on, const T* a, T* w, T* v, std::int64_t batch, std::int64_t n) const override {
    return each_matrix(on, batch, 10 * cube(n), [&](std::int64_t i) {
      if (n == 0) return true;
      const Eigen::SelfAdjointEigenSolver<Matrix<T>> solver(Matrix<T>(ConstColumns<T>(a + i * n * n, n, n)));
      Columns<T>(w + i * n, n, 1) = solver.eigenvalues();
      Columns<T>(v + i * n * n, n, n) = solver.eigenvectors();
      return solver.info() == Eigen::Success;
    });
  }

  std::int64_t svd(const Cpu& on, const T* a, T* u, T* s, T* vh, std::int64_t batch, std::int64_t m,
                   std::int64_t n) const override {
    const std::int64_t k = std::min(m, n);
    if (k == 0) return -1;
    return each_matrix(on, batch, 10 * m * n * k, [&](std::int64_t i) {
      const Matrix<T> own = ConstColumns<T>(a + i * m * n, m, n);
      if (!own.allFinite()) {
        constexpr T kNan = std::numeric_limits<T>::quiet_NaN();
        std::fill_n(u + i * m * k, m * k, kNan);
        std::fill_n(s + i * k, k, kNan);
        std::fill_n(vh + i * k * n, k * n, kNan);
        return false;
      }
      const Eigen::BDCSVD<Matrix<T>> svd(own, Eigen::ComputeThinU | Eigen::ComputeThinV);
      Columns<T>(u + i * m * k, m, k) = svd.matrixU();
      Columns<T>(s + i * k, k, 1) = svd.singularValues();
      Columns<T>(vh + i * k * n, k, n) = svd.matrixV().transpose();
      return svd.info() == Eigen::Success;
    });
  }
};

}  // namespace

const Linalg<float>& linalg(float) {
  static const ByEigen<float> all;
  return all;
}
const Linalg<double>& linalg(double) {
  static const ByEigen<double> all;
  return all;
}

}  // namespace levin::kernels::cpu::LEVIN_LEVEL
