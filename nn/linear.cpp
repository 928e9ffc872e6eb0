#include "levin/nn/layers.h"
#include "nn/options.h"

namespace levin::nn {
namespace {
const LinearOptions& checked(const LinearOptions& o) {
  check_at_least("Linear", "in", o.in, 1);
  check_at_least("Linear", "out", o.out, 1);
  return o;
}
}  // namespace

Linear::Linear(Module& parent, std::string_view name, Options given)
    : Module(parent, name),
      options(checked(given)),
      weight(*this, "weight", {options.out, options.in}, uniform_by_fan(options.in)),
      bias(options.bias ? Parameter(*this, "bias", {options.out}, uniform_by_fan(options.in)) : Parameter()) {}

Tensor Linear::operator()(const Tensor& x) const { return Call(*this, x).gives(linear(x, weight, bias)); }

}  // namespace levin::nn
