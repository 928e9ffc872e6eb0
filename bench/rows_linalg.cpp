// Rows of bench_kernels: factorisations of matrices [batch, n, n], forward and backward. The functions are the CPU's.
#include "bench/rows.h"
#include "levin/linalg.h"

namespace levin::bench {

void linalg_rows(std::vector<Kernel>& k) {
  if (!device().is_cpu()) return;
  using namespace linalg;
  using Call = std::function<Tensor(const Tensors&)>;
  const auto add = [&](const std::string& name, bool has_right_side, const Call& f) {
    k.push_back({name + "_both",
                 Sizes::own,
                 {DType::f32},
                 [=](const Shape& s, DType d) {
                   const Tensor x = random({s[0], s[1], s[1]}, d), apart = eye(s[1], device(), d);
                   // Symmetric, and far from singular.
                   const Tensor a = matmul(x, transpose(x, -2, -1)) / static_cast<double>(s[1]) + apart;
                   return both_of(has_right_side ? Tensors{a, x} : Tensors{a}, f, 4 * bytes_of(a));
                 },
                 {{64, 8}, {8, 64}, {1, 256}}});
  };
  add("solve", true, [](const Tensors& in) { return solve(in[0], in[1]); });
  add("solve_triangular", true, [](const Tensors& in) { return solve_triangular(in[0], in[1], {.upper = false}); });
  add("inv", false, [](const Tensors& in) { return inv(in[0]); });
  add("slogdet", false, [](const Tensors& in) { return slogdet(in[0]).logabsdet; });
  add("cholesky", false, [](const Tensors& in) { return cholesky(in[0]); });
  add("qr", false, [](const Tensors& in) { return qr(in[0]).r; });
  add("eigh", false, [](const Tensors& in) { return eigh(in[0]).eigenvalues; });
  add("svd", false, [](const Tensors& in) { return svd(in[0]).s; });
}

}  // namespace levin::bench
