#include "levin/nn/layers.h"
#include "nn/options.h"

namespace levin::nn {
namespace {
const DropoutOptions& checked(const DropoutOptions& o) {
  check_probability("Dropout", "p", o.p);
  return o;
}
}  // namespace

Dropout::Dropout(Module& parent, std::string_view name, Options given)
    : Module(parent, name), options(checked(given)), generator_(*this, "generator") {}

Tensor Dropout::operator()(const Tensor& x) const {
  return Call(*this, x).gives(is_training() && options.p > 0 ? dropout(x, options.p, generator_) : x);
}

}  // namespace levin::nn
