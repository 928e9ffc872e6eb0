// A place in the graph where a function sees the gradient, and may replace it.
#include <utility>

#include "autograd/op_table.h"
#include "levin/autograd.h"
#include "levin/extend.h"
#include "levin/ops.h"

namespace levin {
namespace {

// The gradient's way is the hook's business, so no derivative of the hook is needed beyond what it records itself.
struct HookGradient {
  static constexpr OpInfo info{.name = "hook_gradient"};
  Function<Tensor(const Tensor&)> hook{};
  Tensor forward(const Tensor& x) { return x.detach(); }
  Grads<1> backward(const Tensor& gy, NeedMask) {
    Tensor g = hook(gy);
    if (!g.defined()) return {gy};
    if (g.shape() != gy.shape())
      fail<ShapeError>("hook_gradient: the hook returned ", g, ", expected the gradient's shape ", gy.shape());
    if (g.dtype() != gy.dtype())
      fail<DTypeError>("hook_gradient: the hook returned ", g, ", expected the gradient's dtype ", gy.dtype());
    if (g.device() != gy.device())
      fail<DeviceError>("hook_gradient: the hook returned ", g, ", expected a tensor on ", gy.device());
    return {std::move(g)};
  }
};
LEVIN_OP_TABLE(HookGradient)

}  // namespace

Tensor hook_gradient(const Tensor& x, Function<Tensor(const Tensor& gradient)> hook) {
  if (!hook) fail<ConfigError>("hook_gradient: the hook is empty, expected a function of the gradient");
  return apply(HookGradient{std::move(hook)}, x);
}

}  // namespace levin
