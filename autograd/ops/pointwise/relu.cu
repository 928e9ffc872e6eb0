// ReLU, in a file of its own: an op table entry keeps its op, and most programs take no other activation.
#include "autograd/ops/pointwise/relu.h"

#include "autograd/ops/pointwise/activation.h"

namespace levin {
namespace pointwise {
namespace {

struct Relu {
  LEVIN_ACTIVATION(Relu, "relu", keep, Saves::output)
  template <class T>
  LEVIN_HD T operator()(T x) const {
    return x < T(0) ? T(0) : x;  // NaN stays NaN
  }
  template <class T>
  LEVIN_HD T slope(T y) const {
    return y <= T(0) ? T(0) : T(1);  // 1 for NaN
  }
  Tensor slope(const Tensor& y) const { return step(logical_not(le(y, 0)), y); }
};

LEVIN_LIST(Relu)

}  // namespace
}  // namespace pointwise

using namespace pointwise;

Tensor relu(const Tensor& x) { return unary<Relu>(x); }
Tensor relu_backward(const Tensor& gy, const Tensor& y) { return Relu{}.backward(gy, y); }

}  // namespace levin
