// Factorisations of matrices on the CPU, and their derivatives.
#include "levin/linalg.h"

#include <algorithm>
#include <array>
#include <limits>
#include <tuple>

#include "autograd/autocast.h"
#include "autograd/op_table.h"
#include "kernels/linalg/linalg.h"
#include "levin/extend.h"

namespace levin {
namespace linalg {
namespace {

using kernels::cpu::TriangularForm;

Tensor turned(const Tensor& x) { return transpose(x, -2, -1); }
Tensor eye_of(const Tensor& a) { return eye(a.size(-1), a.device(), a.dtype()); }
// What may be written: never x itself.
Tensor copy_of(const Tensor& x) {
  Tensor y = empty(x.shape(), x.device(), x.dtype());
  copy_(y, x);
  return y;
}
// [..., k] as a row, or a column, of matrices.
Tensor as_row(const Tensor& s) { return unsqueeze(s, -2); }
Tensor as_column(const Tensor& s) { return unsqueeze(s, -1); }

std::int64_t batch_of(const Shape& s) {
  std::int64_t n = 1;
  for (int d = 0; d < s.rank() - 2; ++d) n *= s[d];
  return n;
}
Shape front_of(const Shape& s) { return Shape(s.dims().first(static_cast<std::size_t>(s.rank() - 2))); }
Shape with_matrix(const Shape& front, std::int64_t rows, std::int64_t cols) {
  return front.inserted(front.rank(), rows).inserted(front.rank() + 1, cols);
}

void check_matrix(const char* op, const Tensor& a) {
  check_defined(op, a);
  if (a.rank() < 2) fail<ShapeError>(op, ": a has shape ", a.shape(), ", expected matrices [..., m, n]");
  if (a.dtype() != DType::f32 && a.dtype() != DType::f64) fail_unsupported({.name = op}, a, kWideFloats);
  if (a.device().launches())
    fail<UnsupportedError>(op, ": a is on ", a.device(), ", expected a tensor on the CPU; use to(Device::cpu())");
}
void check_square(const char* op, const Tensor& a) {
  check_matrix(op, a);
  if (a.size(-1) != a.size(-2)) fail<ShapeError>(op, ": a has shape ", a.shape(), ", expected square matrices");
}
void check_all(const char* op, std::int64_t failed, const char* why) {
  if (failed >= 0) fail<ConfigError>(op, ": matrix ", failed, " of the batch ", why);
}

// a = p^-1 l u: l and u in one matrix, the rows of p a, and the first matrix that is singular or -1.
struct Lu {
  Stash lu{}, rows{};
  std::int64_t singular = -1;

  Lu() = default;
  Lu(const OpInfo& info, const Tensor& a)
      : lu(copy_of(a)), rows(empty(a.shape().removed(a.rank() - 1), a.device(), DType::i64)) {
    dispatch(info, a, kWideFloats, [&]<class T>(const Cpu& on, T) {
      singular = kernels::cpu::lu(on, ptr<T>(lu), ptr<std::int64_t>(rows), batch_of(a.shape()), a.size(-1));
    });
  }
  // The determinants, into tensors that are undefined where not wanted.
  void determinants(const OpInfo& info, const Tensor& sign, const Tensor& log_size, const Tensor& det) const {
    dispatch(info, lu, kWideFloats, [&]<class T>(const Cpu&, T) {
      const auto to = [](const Tensor& t) { return t.defined() ? ptr<T>(t) : nullptr; };
      kernels::cpu::determinants_of_lu(ptr<const T>(lu), ptr<const std::int64_t>(rows), to(sign), to(log_size), to(det),
                                       batch_of(lu.shape()), lu.size(-1));
    });
  }
};
void check_regular(const char* op, const Lu& f) { check_all(op, f.singular, "is singular"); }
// x with a x = b, or a^T x = b.
Tensor solved(const OpInfo& info, const Tensor& lu, const Tensor& rows, const Tensor& b, bool transposed) {
  Tensor x = empty(b.shape(), b.device(), b.dtype());
  const Tensor factors = lu.contiguous(), places = rows.contiguous(), right = b.contiguous();
  dispatch(info, b, kWideFloats, [&]<class T>(const Cpu& on, T) {
    kernels::cpu::lu_solve(on, ptr<const T>(factors), ptr<const std::int64_t>(places), ptr<const T>(right), ptr<T>(x),
                           batch_of(b.shape()), b.size(-2), b.size(-1), transposed);
  });
  return x;
}

// What solves with it carries the derivative.
struct LuFactor {
  static constexpr OpInfo info{.name = "lu_factor"};

  std::array<Tensor, 2> forward(const Tensor& a) {
    const Lu f(info, a);
    check_regular("solve", f);
    return {f.lu, f.rows};
  }
};

// x with a x = b, or a^T x = b, by a's LU.
struct LuSolve {
  static constexpr OpInfo info{.name = "solve"};
  bool transposed = false;
  SavedInput a{}, lu{}, rows{};
  SavedOutput x{};

  Tensor forward(const Tensor& a_, const Tensor& b, const Tensor& lu_, const Tensor& rows_) {
    a = a_;
    lu = lu_;
    rows = rows_;
    Tensor y = solved(info, lu_, rows_, b, transposed);
    x = y;
    return y;
  }
  auto saved_outputs() { return std::tie(x); }
  Grads<4> backward(const Tensor& gx, Need<4> need) {
    const Tensor gb = apply(LuSolve{!transposed}, a.get(), gx, lu.get(), rows.get());
    return {need[0] ? neg(transposed ? matmul(x.get(), turned(gb)) : matmul(gb, turned(x.get()))) : Tensor{}, gb,
            Tensor{}, Tensor{}};
  }
};

// x with a x = b of matrices whose fronts are one, a being expanded or not.
Tensor solve_by_lu(const Tensor& a, const Tensor& b) {
  const auto [lu, rows] = apply(LuFactor{}, a.detach());
  const Shape front = front_of(b.shape()), square = with_matrix(front, a.size(-2), a.size(-1));
  return apply(LuSolve{}, expand(a, square), b, expand(lu, square),
               expand(rows, front.inserted(front.rank(), a.size(-1))));
}

// a^-1. It has a gradient of its own: two products in place of a system and a product.
struct Inverse {
  static constexpr OpInfo info{.name = "inv"};
  SavedOutput x{};

  Tensor forward(const Tensor& a) {
    const Lu f(info, a);
    check_regular(info.name, f);
    Tensor y = solved(info, f.lu, f.rows, expand(eye_of(a), a.shape()), false);
    x = y;
    return y;
  }
  auto saved_outputs() { return std::tie(x); }
  Grads<1> backward(const Tensor& gx, Need<1>) {
    const Tensor t = turned(x.get());
    return {neg(matmul(matmul(t, gx), t))};
  }
};
// a^-T by its LU, with its derivative in a.
Tensor inverse_transposed(const char* op, const Tensor& a, const Lu& f) {
  check_regular(op, f);
  return apply(LuSolve{true}, a, expand(eye_of(a), a.shape()), f.lu, f.rows);
}

// x with a x = b for the triangle of a that form names.
struct SolveTriangular {
  static constexpr OpInfo info{.name = "solve_triangular"};
  TriangularForm form;
  SavedInput a{};
  SavedOutput x{};

  Tensor forward(const Tensor& a_, const Tensor& b) {
    a = a_;
    Tensor y = copy_of(b);
    const Tensor left = a_.contiguous();
    dispatch(info, b, kWideFloats, [&]<class T>(const Cpu& on, T) {
      kernels::cpu::solve_triangular(on, ptr<const T>(left), ptr<T>(y), batch_of(b.shape()), b.size(-2), b.size(-1),
                                     form);
    });
    x = y;
    return y;
  }
  auto saved_outputs() { return std::tie(x); }
  Grads<2> backward(const Tensor& gx, Need<2> need) {
    TriangularForm other = form;
    other.transposed = !form.transposed;
    const Tensor gb = apply(SolveTriangular{other}, a.get(), gx);
    if (!need[0]) return {Tensor{}, gb};
    const Tensor ga = neg(form.transposed ? matmul(x.get(), turned(gb)) : matmul(gb, turned(x.get())));
    return {form.upper ? triu(ga, form.unit ? 1 : 0) : tril(ga, form.unit ? -1 : 0), gb};
  }
};

// At i the product of all s but s[i].
Tensor products_without(const Tensor& s) {
  const std::int64_t k = s.size(-1);
  const Tensor one = ones(s.shape().with(s.rank() - 1, 1), s.device(), s.dtype());
  const Tensor before = cat({one, cumprod(narrow(s, -1, 0, k - 1), -1)}, -1);
  const Tensor after = flip(cat({one, cumprod(flip(narrow(s, -1, 1, k - 1), -1), -1)}, -1), -1);
  return before * after;
}

struct Det {
  static constexpr OpInfo info{.name = "det"};
  SavedInput a{};
  SavedOutput y{};
  Lu factor{};

  Tensor forward(const Tensor& a_) {
    a = a_;
    factor = Lu(info, a_);
    Tensor out = empty(front_of(a_.shape()), a_.device(), a_.dtype());
    factor.determinants(info, {}, {}, out);
    y = out;
    return out;
  }
  auto saved_outputs() { return std::tie(y); }
  Grads<1> backward(const Tensor& gy, Need<1>) {
    const Tensor& m = a.get();
    if (m.numel() == 0) return {zeros(m.shape(), m.device(), m.dtype())};
    const bool is_regular = m.device().is_meta() || all(ne(y.get().detach(), 0)).item<bool>();
    if (is_regular) return {as_column(as_column(gy * y.get())) * inverse_transposed(info.name, m, factor)};
    // The cofactors: det(u) det(vh) u diag(products of the other singular values) vh.
    const Svd f = svd(m);
    const Tensor sign = (det(f.u) * det(f.vh)).detach();
    return {matmul(f.u * as_row(as_column(gy * sign) * products_without(f.s)), f.vh)};
  }
};

struct LogDet {
  static constexpr OpInfo info{.name = "slogdet"};
  SavedInput a{};
  Lu factor{};

  std::array<Tensor, 2> forward(const Tensor& a_) {
    a = a_;
    factor = Lu(info, a_);
    Tensor sign = empty(front_of(a_.shape()), a_.device(), a_.dtype()), logs = empty_like(sign);
    factor.determinants(info, sign, logs, {});
    return {sign, logs};
  }
  Grads<1> backward(const Tensor&, const Tensor& gy, Need<1>) {
    return {as_column(as_column(gy)) * inverse_transposed(info.name, a.get(), factor)};
  }
};

struct Cholesky {
  static constexpr OpInfo info{.name = "cholesky"};
  SavedOutput l{};

  Tensor forward(const Tensor& a) {
    Tensor y = copy_of(a);
    dispatch(info, a, kWideFloats, [&]<class T>(const Cpu& on, T) {
      check_all(info.name, kernels::cpu::cholesky(on, ptr<T>(y), batch_of(a.shape()), a.size(-1)),
                "is not positive definite");
    });
    l = y;
    return y;
  }
  auto saved_outputs() { return std::tie(l); }
  // l^-T p l^-1 with the lower half p of l^T gl, made symmetric.
  Grads<1> backward(const Tensor& gl, Need<1>) {
    const Tensor low = l.get(), up = turned(low);
    const Tensor p = tril(matmul(up, gl)) * (1 - 0.5 * eye_of(gl));
    constexpr TriangularForm kTurned{.transposed = true};
    const Tensor s = turned(apply(SolveTriangular{kTurned}, low, turned(apply(SolveTriangular{kTurned}, low, p))));
    return {(s + turned(s)) * 0.5};
  }
};

struct QrOp {  // of matrices with at least as many rows as columns
  static constexpr OpInfo info{.name = "qr"};
  SavedOutput q{}, r{};

  std::array<Tensor, 2> forward(const Tensor& a) {
    const std::int64_t m = a.size(-2), n = a.size(-1);
    const Tensor rows = a.contiguous();
    Tensor q_ = empty(a.shape(), a.device(), a.dtype());
    Tensor r_ = empty(with_matrix(front_of(a.shape()), n, n), a.device(), a.dtype());
    dispatch(info, a, kWideFloats, [&]<class T>(const Cpu& on, T) {
      kernels::cpu::qr(on, ptr<const T>(rows), ptr<T>(q_), ptr<T>(r_), batch_of(a.shape()), m, n);
    });
    q = q_;
    r = r_;
    return {q_, r_};
  }
  auto saved_outputs() { return std::tie(q, r); }
  // (gq + q c) r^-T, where c has the lower triangle of r gr^T - gq^T q in both of its triangles.
  Grads<1> backward(const Tensor& gq, const Tensor& gr, Need<1>) {
    const Tensor q_ = q.get(), r_ = r.get();
    const Tensor m = matmul(r_, turned(gr)) - matmul(turned(gq), q_);
    const Tensor c = tril(m) + turned(tril(m, -1));
    return {turned(apply(SolveTriangular{{.upper = true}}, r_, turned(gq + matmul(q_, c))))};
  }
};

// numerator / (w[j] - w[i]) at [i, j]; 0 where both are 0.
Tensor over_gaps(const Tensor& numerator, const Tensor& w) {
  const Tensor gaps = as_row(w) - as_column(w);
  const Tensor neither = logical_and(eq(numerator.detach(), 0), eq(gaps.detach(), 0));
  return numerator / masked_fill(gaps, neither, 1);
}

struct EighOp {
  static constexpr OpInfo info{.name = "eigh"};
  SavedOutput w{}, v{};

  std::array<Tensor, 2> forward(const Tensor& a) {
    Tensor w_ = empty(a.shape().removed(a.rank() - 1), a.device(), a.dtype());
    Tensor v_ = empty(a.shape(), a.device(), a.dtype());
    const Tensor rows = a.contiguous();
    dispatch(info, a, kWideFloats, [&]<class T>(const Cpu& on, T) {
      check_all(info.name,
                kernels::cpu::eigh(on, ptr<const T>(rows), ptr<T>(w_), ptr<T>(v_), batch_of(a.shape()), a.size(-1)),
                "has no eigenvalues that could be found; is it finite?");
    });
    w = w_;
    v = v_;
    return {w_, v_};
  }
  auto saved_outputs() { return std::tie(w, v); }
  Grads<1> backward(const Tensor& gw, const Tensor& gv, Need<1>) {
    const Tensor v_ = v.get(), one = eye_of(gv);
    const Tensor turn = over_gaps(matmul(turned(v_), gv) * (1 - one), w.get());
    const Tensor s = matmul(v_, matmul(turn + as_column(gw) * one, turned(v_)));
    return {(s + turned(s)) * 0.5};
  }
};

struct SvdOp {
  static constexpr OpInfo info{.name = "svd"};
  SavedOutput u{}, s{}, vh{};

  std::array<Tensor, 3> forward(const Tensor& a) {
    const std::int64_t m = a.size(-2), n = a.size(-1), k = std::min(m, n);
    const Shape front = front_of(a.shape());
    const Tensor rows = a.contiguous();
    Tensor u_ = empty(with_matrix(front, m, k), a.device(), a.dtype());
    Tensor s_ = empty(front.inserted(front.rank(), k), a.device(), a.dtype());
    Tensor vh_ = empty(with_matrix(front, k, n), a.device(), a.dtype());
    dispatch(info, a, kWideFloats, [&]<class T>(const Cpu& on, T) {
      check_all(
          info.name,
          kernels::cpu::svd(on, ptr<const T>(rows), ptr<T>(u_), ptr<T>(s_), ptr<T>(vh_), batch_of(a.shape()), m, n),
          "has no singular values that could be found; is it finite?");
    });
    u = u_;
    s = s_;
    vh = vh_;
    return {u_, s_, vh_};
  }
  auto saved_outputs() { return std::tie(u, s, vh); }
  // Townsend, "Differentiating the singular value decomposition", 2016.
  Grads<1> backward(const Tensor& gu, const Tensor& gs, const Tensor& gvh, Need<1>) {
    const Tensor u_ = u.get(), s_ = s.get(), v = turned(vh.get()), gv = turned(gvh);
    const std::int64_t m = u_.size(-2), n = v.size(-2), k = s_.size(-1);
    const Tensor squares = square(s_), of_u = matmul(turned(u_), gu), of_v = matmul(turned(v), gv);
    const Tensor middle = over_gaps(of_u - turned(of_u), squares) * as_row(s_) +
                          as_column(s_) * over_gaps(of_v - turned(of_v), squares) +
                          as_column(gs) * eye(k, s_.device(), s_.dtype());
    // What leaves the space of the vectors; 0 where that is the whole space.
    const auto leaving = [&](const Tensor& g, const Tensor& q, const Tensor& of_q) {
      const Tensor out = g - matmul(q, of_q);
      const Tensor neither = logical_and(eq(out.detach(), 0), eq(as_row(s_).detach(), 0));
      return out / masked_fill(expand(as_row(s_), out.shape()), neither, 1);
    };
    Tensor left = matmul(u_, middle);
    if (m > k) left = left + leaving(gu, u_, of_u);
    Tensor g = matmul(left, turned(v));
    if (n > k) g = g + matmul(u_, turned(leaving(gv, v, of_v)));
    return {g};
  }
};

// The pseudoinverse of matrices with at least as many rows as columns.
struct Pinv {
  static constexpr OpInfo info{.name = "pinv"};
  double rtol;
  SavedInput a{};
  SavedOutput y{};

  Tensor forward(const Tensor& a_) {
    a = a_;
    const auto [u, s, vh] = svd(a_);
    // Of matrices without elements there is no largest value, and nothing to invert.
    const Tensor least = s.numel() == 0 ? s : amax(s, {-1}, KeepDim::yes) * rtol;
    const Tensor kept = where(gt(s, least), reciprocal(s), 0);
    const Tensor out = matmul(turned(vh) * as_row(kept), turned(u));
    y = out;
    return out;
  }
  auto saved_outputs() { return std::tie(y); }
  // Golub & Pereyra, "The Differentiation of Pseudo-Inverses and Nonlinear Least Squares Problems", 1973.
  Grads<1> backward(const Tensor& gy, Need<1>) {
    const Tensor m = a.get(), p = y.get(), g = turned(gy), k = matmul(p, g);
    return {matmul(g - matmul(m, k), matmul(p, turned(p))) + matmul(turned(p), k - matmul(k, matmul(p, m))) -
            turned(matmul(k, p))};
  }
};

LEVIN_OP_TABLE(LuFactor)
LEVIN_OP_TABLE(LuSolve)
LEVIN_OP_TABLE(Inverse)
LEVIN_OP_TABLE(SolveTriangular)
LEVIN_OP_TABLE(Det)
LEVIN_OP_TABLE(LogDet)
LEVIN_OP_TABLE(Cholesky)
LEVIN_OP_TABLE(QrOp)
LEVIN_OP_TABLE(EighOp)
LEVIN_OP_TABLE(SvdOp)
LEVIN_OP_TABLE(Pinv)

}  // namespace

Tensor solve(const Tensor& a, const Tensor& b) {
  constexpr const char* op = "solve";
  check_square(op, a);
  check_same_dtype(op, a, b);
  check_same_device(op, a, b);
  const bool are_vectors = b.rank() == 1 || (b.rank() == a.rank() - 1 && b.shape() == a.shape().removed(a.rank() - 1));
  const Tensor right = are_vectors ? unsqueeze(b, -1) : b;
  if (right.rank() < 2 || right.size(-2) != a.size(-1))
    fail<ShapeError>(op, ": a has shape ", a.shape(), " and b ", b.shape(), ", expected [..., n, n] and [..., n, k]");
  const Shape front = broadcast_shapes(op, front_of(a.shape()), front_of(right.shape()));
  const Tensor x = solve_by_lu(a, expand(right, with_matrix(front, right.size(-2), right.size(-1))));
  return are_vectors ? squeeze(x, {-1}) : x;
}

Tensor inv(const Tensor& a) {
  check_square("inv", a);
  return apply(Inverse{}, a);
}

Tensor solve_triangular(const Tensor& a, const Tensor& b, Triangular options) {
  constexpr const char* op = "solve_triangular";
  check_square(op, a);
  check_matrix(op, b);
  check_same_dtype(op, a, b);
  check_same_device(op, a, b);
  if (b.size(options.left ? -2 : -1) != a.size(-1)) {
    fail<ShapeError>(op, ": a has shape ", a.shape(), " and b ", b.shape(), ", expected [..., n, n] and ",
                     options.left ? "[..., n, k]" : "[..., k, n]");
  }
  const Shape front = broadcast_shapes(op, front_of(a.shape()), front_of(b.shape()));
  const Tensor left = expand(a, with_matrix(front, a.size(-2), a.size(-1))),
               right = expand(b, with_matrix(front, b.size(-2), b.size(-1)));
  // x a = b is a^T x^T = b^T.
  const TriangularForm form{.upper = options.upper, .unit = options.unitriangular, .transposed = !options.left};
  return options.left ? apply(SolveTriangular{form}, left, right)
                      : turned(apply(SolveTriangular{form}, left, turned(right)));
}

Tensor det(const Tensor& a) {
  check_square("det", a);
  return apply(Det{}, a);
}

SlogDet slogdet(const Tensor& a) {
  check_square("slogdet", a);
  auto [sign, logs] = apply(LogDet{}, a);
  return {sign.detach(), logs};
}

Tensor cholesky(const Tensor& a) {
  check_square("cholesky", a);
  return apply(Cholesky{}, a);
}

Qr qr(const Tensor& a) {
  check_matrix("qr", a);
  const std::int64_t m = a.size(-2), n = a.size(-1);
  auto [q, r] = apply(QrOp{}, narrow(a, -1, 0, std::min(m, n)));
  if (n <= m) return {q, r};
  return {q, cat({r, matmul(turned(q), narrow(a, -1, m, n - m))}, -1)};
}

Eigh eigh(const Tensor& a) {
  check_square("eigh", a);
  auto [w, v] = apply(EighOp{}, a);
  return {w, v};
}

Svd svd(const Tensor& a) {
  check_matrix("svd", a);
  auto [u, s, vh] = apply(SvdOp{}, a);
  return {u, s, vh};
}

Tensor pinv(const Tensor& a, std::optional<double> rtol) {
  check_matrix("pinv", a);
  const std::int64_t m = a.size(-2), n = a.size(-1);
  if (rtol && !(*rtol >= 0)) fail<ConfigError>("pinv: rtol is ", *rtol, ", expected 0 or more");
  const double share = rtol.value_or(static_cast<double>(std::max(m, n)) * epsilon(a.dtype()));
  return m < n ? turned(apply(Pinv{share}, turned(a))) : apply(Pinv{share}, a);
}

Tensor lstsq(const Tensor& a, const Tensor& b) {
  constexpr const char* op = "lstsq";
  check_matrix(op, a);
  check_same_dtype(op, a, b);
  check_same_device(op, a, b);
  if (a.size(-2) < a.size(-1))
    fail<ShapeError>(op, ": a has shape ", a.shape(), ", expected at least as many rows as columns; use pinv");
  const bool are_vectors = b.rank() == 1 || (b.rank() == a.rank() - 1 && b.shape() == a.shape().removed(a.rank() - 1));
  const Tensor right = are_vectors ? unsqueeze(b, -1) : b;
  if (right.rank() < 2 || right.size(-2) != a.size(-2))
    fail<ShapeError>(op, ": a has shape ", a.shape(), " and b ", b.shape(), ", expected [..., m, n] and [..., m, k]");
  (void)broadcast_shapes(op, front_of(a.shape()), front_of(right.shape()));
  const Qr f = qr(a);
  const Tensor x = solve_triangular(f.r, matmul(turned(f.q), right), {.upper = true});
  return are_vectors ? squeeze(x, {-1}) : x;
}

}  // namespace linalg
}  // namespace levin
