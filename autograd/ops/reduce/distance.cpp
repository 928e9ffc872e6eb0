// Norms of vectors along a dimension, the distances that follow from them, and losses of distances. All are public ops
// in a row; 16-bit numbers are widened to f32 first, since a small eps is 0 in 16 bits.
#include "autograd/ops/reduce/loss_parts.h"
#include "levin/ops.h"

namespace levin {
namespace {

void check_eps(const char* op, double eps) {
  if (!(eps >= 0)) fail<ConfigError>(op, ": eps is ", eps, ", expected 0 or more");
}
Tensor at_least(const Tensor& x, double low) { return clamp(x, low, {}); }

// Along dimension `at` < 0 of a shape that a and b broadcast to.
Tensor cosine(const Tensor& a, const Tensor& b, std::int64_t at, double eps) {
  const auto unit = [&](const Tensor& x) { return x / at_least(norm(x, 2, {at}, KeepDim::yes), eps); };
  return sum(unit(a) * unit(b), {at});
}

Tensor distance(const Tensor& a, const Tensor& b, double p, double eps, KeepDim keep = KeepDim::no) {
  return norm(a - b + eps, p, {-1}, keep);
}
void check_vectors(const char* op, const Tensor& x) {
  if (x.rank() == 0) fail<ShapeError>(op, ": x is a single element, expected vectors along its last dimension");
}

}  // namespace

Tensor normalize(const Tensor& x, double p, std::int64_t dim, double eps) {
  check_float("normalize", x);
  check_eps("normalize", eps);
  const int at = wrap_dim("normalize", dim, x.rank());
  const Tensor wide = widened(x);
  return finished(wide / at_least(norm(wide, p, {at}, KeepDim::yes), eps), x);
}

Tensor cosine_similarity(const Tensor& a, const Tensor& b, std::int64_t dim, double eps) {
  constexpr const char* op = "cosine_similarity";
  check_float(op, a);
  check_dtypes_meet(op, a, b);
  check_same_device(op, a, b);
  check_eps(op, eps);
  const Shape shape = broadcast_shapes(op, a.shape(), b.shape());
  const int at = wrap_dim(op, dim, shape.rank()) - shape.rank();
  // A vector that broadcasts along dim is as long as the other one.
  const auto whole = [&](const Tensor& x) {
    return x.rank() >= -at && x.size(at) == shape[shape.rank() + at] ? widened(x) : expand(widened(x), shape);
  };
  return finished(cosine(whole(a), whole(b), at, eps), a);
}

Tensor pairwise_distance(const Tensor& a, const Tensor& b, double p, double eps, KeepDim keep) {
  constexpr const char* op = "pairwise_distance";
  check_float(op, a);
  check_dtypes_meet(op, a, b);
  check_same_device(op, a, b);
  if (broadcast_shapes(op, a.shape(), b.shape()).rank() == 0) check_vectors(op, a);
  return finished(distance(widened(a), widened(b), p, eps, keep), a);
}

Tensor cosine_embedding_loss(const Tensor& a, const Tensor& b, const Tensor& target, double margin,
                             Reduction reduction) {
  constexpr const char* op = "cosine_embedding_loss";
  constexpr double kEps = 1e-12;
  check_float(op, a);
  check_dtypes_meet(op, a, b);
  check_equal_shapes(op, "a", a, "b", b);
  check_vectors(op, a);
  check_defined(op, target);
  check_same_device(op, a, target);
  if (target.shape() != a.shape().removed(a.rank() - 1)) {
    fail<ShapeError>(op, ": target has shape ", target.shape(), ", expected one element for each vector of ",
                     a.shape());
  }
  const Tensor x = widened(a), y = widened(b);
  const auto length = [&](const Tensor& v) { return sum(square(v), {-1}) + kEps; };
  const Tensor cosines = sum(x * y, {-1}) / sqrt(length(x) * length(y));
  const Tensor alike = masked_fill(1 - cosines, ne(target, 1), 0);
  const Tensor unlike = masked_fill(at_least(cosines - margin, 0), ne(target, -1), 0);
  return finished(alike + unlike, a, reduction);
}

Tensor triplet_margin_loss(const Tensor& anchor, const Tensor& positive, const Tensor& negative,
                           const TripletMarginOptions& o) {
  constexpr const char* op = "triplet_margin_loss";
  check_float(op, anchor);
  check_dtypes_meet(op, anchor, positive);
  check_dtypes_meet(op, anchor, negative);
  check_equal_shapes(op, "anchor", anchor, "positive", positive);
  check_equal_shapes(op, "anchor", anchor, "negative", negative);
  check_vectors(op, anchor);
  if (!(o.margin > 0)) fail<ConfigError>(op, ": margin is ", o.margin, ", expected a positive number");
  const Tensor a = widened(anchor), near = widened(positive), far = widened(negative);
  Tensor apart = distance(a, far, o.p, o.eps);
  if (o.swap == SwapAnchor::yes) apart = minimum(apart, distance(near, far, o.p, o.eps));
  const Tensor losses = at_least(distance(a, near, o.p, o.eps) - apart + o.margin, 0);
  return finished(losses, anchor, o.reduction);
}

}  // namespace levin
