#include "nn/sync_batch_norm.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "levin/autograd.h"
#include "levin/extend.h"

namespace levin::nn {
namespace {

using Group = std::shared_ptr<dist::ProcessGroup>;

// y = the sum of all ranks' x. Every rank's loss depends on y, so the gradient is the sum of all ranks' gradients.
struct SumOverRanks {
  static constexpr OpInfo info{.name = "sum_over_ranks"};
  Group group;
  Tensor forward(const Tensor& x) const {
    Tensor y = x.clone();
    group->all_reduce_now(y);
    return y;
  }
  Grads<1> backward(const Tensor& gy, Need<1>) { return {apply(SumOverRanks{group}, gy)}; }
};

// The type of statistics.
DType wide(const Tensor& x) { return x.dtype() == DType::f64 ? DType::f64 : DType::f32; }
// The dimensions of x but the channels'.
Dims all_but_channels(const Tensor& x) {
  std::vector<std::int64_t> dims{0};
  for (int d = 2; d < x.rank(); ++d) dims.push_back(d);
  return Dims(std::span<const std::int64_t>(dims));
}
// A vector [C] beside x.
Tensor beside(const Tensor& v, const Tensor& x) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(x.rank()), 1);
  shape[1] = v.numel();
  return reshape(v, Dims(std::span<const std::int64_t>(shape)));
}

// Note [Statistics of all ranks]
//
// Rank r has n_r values a channel with mean m_r and M_r, the sum of squared deviations from m_r. Of all values
//   n = sum n_r,   mean = sum n_r m_r / n,   n var = sum (M_r + n_r m_r^2) - n mean^2.
// The sums are made in f64, where the last difference is exact enough for any m_r of f32: unlike the sum of squares,
// M_r has lost nothing to a large mean. A rank without values records the same ops as the others: each derivative makes
// a collective, which needs all ranks.
struct Statistics {
  Tensor mean, var;  // [C], f64; var with n
  Tensor count;      // [1], f64
};
Statistics statistics_of(const Tensor& x, const Group& group) {
  const std::int64_t c = x.size(1), n = c > 0 ? x.numel() / c : 0;
  const Dims over = all_but_channels(x);
  const Tensor v = x.to(wide(x));
  const Tensor own = sum(v, over) / static_cast<double>(std::max<std::int64_t>(n, 1));
  const Tensor apart = v - beside(own, v);
  const Tensor m = own.to(DType::f64);
  const Tensor sums = m * static_cast<double>(n);
  const Tensor squares = sum(apart * apart, over).to(DType::f64) + sums * m;
  const std::array<Tensor, 3> parts{sums, squares, full({1}, static_cast<double>(n), x.device(), DType::f64)};
  const Tensor all = apply(SumOverRanks{group}, cat(parts, 0));
  const Tensor count = slice(all, 0, 2 * c, 2 * c + 1);
  const Tensor mean = slice(all, 0, 0, c) / count;
  return {mean, relu(slice(all, 0, c, 2 * c) / count - mean * mean), count};
}

// The definition, in public ops.
Tensor composed(const Tensor& x, const Tensor& w, const Tensor& b, double eps, const Group& group) {
  const Statistics s = statistics_of(x, group);
  const DType t = wide(x);
  Tensor y = (x.to(t) - beside(s.mean.to(t), x)) * beside(rsqrt(s.var + eps).to(t), x);
  if (w.defined()) y = y * beside(w.to(t), x);
  if (b.defined()) y = y + beside(b.to(t), x);
  return y.to(x.dtype());
}

// The same by fused ops: evaluation with the statistics of all ranks. With h = (x - mean) r, r = 1 / sqrt(var + eps),
// the derivative of that gives g w r, sum g h and sum g, and sums over all ranks complete it:
//   gx = w r (g - sum g / n - h sum(g h) / n).
struct SyncBatchNorm {
  static constexpr OpInfo info{.name = "sync_batch_norm"};
  double eps;
  Group group;
  BatchNormResult* result = nullptr;  // where the statistics go, during forward only
  SavedInput x{}, w{}, b{};
  Stash mean{}, var{}, count{};

  Tensor forward(const Tensor& x_, const Tensor& w_, const Tensor& b_) {
    const Statistics s = statistics_of(x_, group);
    const DType t = wide(x_);
    mean = s.mean.to(t);
    var = s.var.to(t);
    count = s.count;
    *result = {.y = {}, .mean = mean, .var = (s.var * s.count / maximum(s.count - 1.0, ones_like(s.count))).to(t)};
    result = nullptr;
    x = x_;
    w = w_;
    b = b_;
    return batch_norm_eval(x_, like(w_, t), like(b_, t), mean, var, eps);
  }
  Grads<3> backward(const Tensor& gy, Need<3> need) {
    const std::array<Tensor, 3> in{x.get(), w.get(), b.get()};
    if (grad_mode())
      return vjp<3>([&](const auto& i) { return composed(i[0], i[1], i[2], eps, group); }, in, std::array{gy}, need);
    const std::int64_t c = mean.numel();
    const DType t = mean.dtype();
    const Tensor values = in[0].detach(), weight = in[1].defined() ? in[1].detach().to(t) : ones_like(mean);
    NeedMask all;
    for (std::size_t i = 0; i < 3; ++i) all.set(i);
    const Grads<3> g =
        vjp<3>([&](const auto& i) { return batch_norm_eval(i[0], i[1], i[2], mean, var, eps); },
               {values, weight, in[2].defined() ? in[2].detach().to(t) : zeros_like(mean)}, std::array{gy}, all);
    Grads<3> out;
    if (need[0]) {
      const std::array<Tensor, 2> mine{g[2].to(DType::f64), g[1].to(DType::f64)};
      const Tensor sums = cat(mine, 0);
      group->all_reduce_now(sums);
      const Tensor scale = weight.to(DType::f64) * rsqrt(var.to(DType::f64) + eps) / count;
      const auto part = [&](std::int64_t k) { return (slice(sums, 0, k * c, (k + 1) * c) * scale).to(t); };
      out[0] = g[0] - batch_norm_eval(values, part(1), part(0), mean, var, eps);
    }
    if (need[1]) out[1] = g[1].to(in[1].dtype());
    if (need[2]) out[2] = g[2].to(in[2].dtype());
    return out;
  }

 private:
  static Tensor like(const Tensor& parameter, DType t) { return parameter.defined() ? parameter.to(t) : parameter; }
};

}  // namespace

BatchNormResult sync_batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                                const Group& group) {
  BatchNormResult r;
  r.y = apply(SyncBatchNorm{.eps = eps, .group = group, .result = &r}, x, weight, bias);
  return r;
}

}  // namespace levin::nn
