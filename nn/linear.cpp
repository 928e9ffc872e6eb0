#include <utility>

#include "levin/nn/layers.h"
#include "nn/options.h"

namespace levin::nn {
namespace {
const LinearOptions& checked(const LinearOptions& o) {
  check_size("Linear", "in", o.in);
  check_size("Linear", "out", o.out);
  return o;
}
}  // namespace

Linear::Linear(Module& parent, std::string_view name, Options given)
    : Module(parent, name),
      options(checked(given)),
      weight(*this, "weight", {options.out, options.in}, uniform_by_fan(options.in)),
      bias(options.bias ? Parameter(*this, "bias", {options.out}, uniform_by_fan(options.in)) : Parameter()) {}

Tensor Linear::operator()(const Tensor& x) const { return Call(*this, x).gives(linear(x, weight, bias)); }

LinearCrossEntropyLoss::LinearCrossEntropyLoss(Module& parent, std::string_view name, Options given)
    : Module(parent, name),
      options(std::move(given)),
      linear(*this, "linear", {.in = options.in, .out = options.classes, .bias = options.bias}) {}

Tensor LinearCrossEntropyLoss::operator()(const Tensor& x, const Tensor& target) const {
  return Call(*this, x, target).gives(linear_cross_entropy(x, linear.weight, target, linear.bias, options.loss));
}

}  // namespace levin::nn
