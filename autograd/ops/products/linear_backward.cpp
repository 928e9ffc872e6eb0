// The gradients of a linear layer's parameters as one op, so that one pass can make both.
#include <utility>

#include "autograd/home.h"
#include "autograd/op_table.h"
#include "autograd/ops/products/backward_parts.h"
#include "autograd/ops/products/layer_products.h"
#include "levin/extend.h"
#include "levin/flops.h"

namespace levin {
namespace {

// Bilinear, so its derivatives are products again.
struct LinearParametersBackward {
  static constexpr OpInfo info{.name = "linear_parameters_backward"};
  Tensor place{};  // for the gradient of W, during forward only
  SavedInput gy{}, x{};

  std::array<Tensor, 2> forward(const Tensor& gy_, const Tensor& x_) {
    gy = gy_;
    x = x_;
    const Tensor into = std::exchange(place, Tensor());
    if (gy_.device().launches()) {
      std::array<Tensor, 2> g{detail::place_or_empty(into, {gy_.size(1), x_.size(1)}, gy_.device(), gy_.dtype()),
                              empty({gy_.size(1)}, gy_.device(), gy_.dtype())};
      if (linear_parameters_on_device(gy_, x_, g[0], g[1])) {
        FlopCounter::count("matmul", {2, g[0].numel(), gy_.size(0)});
        return g;
      }
    }
    return {matmul_into(into, t(gy_), x_), sum(gy_, 0)};
  }
  Grads<2> backward(const Tensor& ggw, const Tensor& ggb, NeedMask need) {
    return {need[0] ? linear(x.get(), ggw, ggb) : Tensor(), need[1] ? matmul(gy.get(), ggw) : Tensor()};
  }
};

LEVIN_OP_TABLE(LinearParametersBackward)

}  // namespace

std::array<Tensor, 2> linear_parameters_backward(const Tensor& gy, const Tensor& x, NeedMask need,
                                                 const Tensor& place) {
  if (need[0] && need[1]) return apply(LinearParametersBackward{.place = place}, gy, x);
  return {need[0] ? matmul_into(place, t(gy), x) : Tensor(), need[1] ? sum(gy, 0) : Tensor()};
}

}  // namespace levin
