// Scaled dot-product attention from public ops: any order of derivatives, any mask, any device that has them.
// Source: Vaswani et al., "Attention Is All You Need", 2017, equation 1.
#include <cmath>
#include <limits>

#include "levin/extend.h"
#include "levin/ops.h"

namespace levin {
namespace {

constexpr const char* kOp = "scaled_dot_product_attention";

Shape batch_of(const Tensor& t) { return Shape(t.shape().dims().first(static_cast<std::size_t>(t.rank() - 2))); }

void check_operand(const char* name, const Tensor& q, const Tensor& t) {
  if (t.rank() < 2) fail<ShapeError>(kOp, ": ", name, " has shape ", t.shape(), ", expected at least two dimensions");
  if (t.device() != q.device())
    fail<DeviceError>(kOp, ": tensors are on ", q.device(), " and ", t.device(), "; move one with to(device)");
}

// Everything is checked before the first product.
void check(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options) {
  check_operand("q", q, q);
  check_operand("k", q, k);
  check_operand("v", q, v);
  for (const Tensor* t : {&k, &v}) {
    if (t->dtype() != q.dtype())
      fail<DTypeError>(kOp, ": tensors are ", q.dtype(), " and ", t->dtype(), "; convert one with to(dtype)");
  }
  if (!is_float(q.dtype()))
    fail<UnsupportedError>(kOp, ": ", q.dtype(), " on ", q.device(), "; has f32, f64, f16, bf16");
  if (q.size(-1) != k.size(-1) || k.size(-2) != v.size(-2)) {
    fail<ShapeError>(kOp, ": q has shape ", q.shape(), ", k ", k.shape(), " and v ", v.shape(),
                     ", expected [..., L, E], [..., S, E] and [..., S, Ev]");
  }
  const Shape batch = broadcast_shapes(kOp, broadcast_shapes(kOp, batch_of(q), batch_of(k)), batch_of(v));
  const Shape scores = batch.inserted(batch.rank(), q.size(-2)).inserted(batch.rank() + 1, k.size(-2));
  if (options.mask.defined()) {
    const Tensor& mask = options.mask;
    check_operand("mask", q, mask.rank() < 2 ? q : mask);
    if (mask.device() != q.device())
      fail<DeviceError>(kOp, ": tensors are on ", q.device(), " and ", mask.device(), "; move one with to(device)");
    if (mask.dtype() != DType::b8 && mask.dtype() != q.dtype())
      fail<DTypeError>(kOp, ": the mask is ", mask.dtype(), ", expected bool or q's ", q.dtype());
    if (broadcast_shapes(kOp, scores, mask.shape()) != scores)
      fail<ShapeError>(kOp, ": the mask has shape ", mask.shape(), ", expected one that broadcasts to ", scores);
  }
  if (!(options.dropout_p >= 0 && options.dropout_p <= 1))
    fail<ConfigError>(kOp, ": dropout_p is ", options.dropout_p, ", expected a probability in [0, 1]");
  if (options.dropout_p > 0 && !options.generator)
    fail<ConfigError>(kOp, ": dropout_p is ", options.dropout_p, " and generator is null; pass a generator");
}

}  // namespace

Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const AttentionOptions& options) {
  check(q, k, v, options);
  const double width = static_cast<double>(q.size(-1));
  // The scale goes to the smaller side of the first product.
  Tensor scores = matmul(q * options.scale.value_or(width > 0 ? 1 / std::sqrt(width) : 1), transpose(k, -2, -1));
  const double low = -std::numeric_limits<double>::infinity();
  const bool causal = options.causal == Causal::yes;
  if (causal) {
    const Tensor row = arange(q.size(-2), q.device()), col = arange(k.size(-2), q.device());
    scores = masked_fill(scores, gt(col, unsqueeze(row, 1)), low);
  }
  Tensor nobody;
  if (options.mask.defined()) {
    if (options.mask.dtype() == DType::b8)
      scores = masked_fill(scores, logical_not(options.mask), low);
    else
      scores = scores + options.mask;
    // A row that may look at nothing gives zeros, without a NaN on the way: its softmax is taken of zeros.
    nobody = all(eq(scores.detach(), low), -1, KeepDim::yes);
    scores = masked_fill(scores, nobody, 0);
  }
  Tensor share = softmax(scores, -1);
  if (nobody.defined()) share = masked_fill(share, nobody, 0);
  if (options.dropout_p > 0) share = dropout(share, options.dropout_p, *options.generator);
  return matmul(share, v);
}

}  // namespace levin
