// What the ops of norms over channels share: x as [n, c, s], its checks, and memory of the kernels.
#pragma once

#include <cstdint>

#include "autograd/ops/reduce/norm_parts.h"
#include "kernels/norm/channel_norm_device.cuh"
#include "levin/ops.h"

namespace levin::norm_parts {

using kernels::Accum;

struct Sizes {
  std::int64_t n, c, s;
};
inline Sizes sizes_of(const Tensor& x) {
  std::int64_t s = 1;
  for (int d = 2; d < x.rank(); ++d) s *= x.shape()[d];
  return {x.shape()[0], x.shape()[1], s};
}
// The same of a dense x as kernels read it: pixels in channels-last memory are rows of channels.
inline Sizes sizes_in_memory(const Tensor& x) {
  const Sizes z = sizes_of(x);
  return x.is_contiguous() ? z : Sizes{z.n * z.s, z.c, 1};
}
// A parameter [c] beside x [n, c, s].
inline Tensor per_channel(const Tensor& p, DType t) { return reshape(cast(p, t), {1, p.numel(), 1}); }

// Scratch memory of the kernels: partial sums, and `rows` rows of coefficients.
template <class T>
struct ChannelScratch {
  kernels::gpu::ChannelPlan plan;
  Tensor sums, table;
  ChannelScratch(const Tensor& x, std::int64_t n, std::int64_t c, std::int64_t s, std::int64_t rows)
      : plan(kernels::gpu::plan_channels<T>(n, c, s)),
        sums(empty({plan.scratch()}, x.device(), DType::f64)),
        table(empty({4 * rows}, x.device(), wide(x.dtype()))) {}
  [[nodiscard]] double* parts() const { return ptr<double>(sums); }
  [[nodiscard]] kernels::gpu::Coefficients<Accum<T>>* coefficients() const {
    return reinterpret_cast<kernels::gpu::Coefficients<Accum<T>>*>(ptr<Accum<T>>(table));
  }
};

inline void check_channels(const char* op, const Tensor& x, const Tensor& w, const Tensor& b, double eps) {
  check_eps(op, eps);
  if (x.rank() < 2) fail<ShapeError>(op, ": x has shape ", x.shape(), ", expected [N, C, ...]");
  check_parameter(op, "weight", x, w, {x.shape()[1]});
  check_parameter(op, "bias", x, b, {x.shape()[1]});
  check_alike(op, w, b);
}

}  // namespace levin::norm_parts
