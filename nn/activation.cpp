#include <cmath>

#include "levin/nn/layers.h"
#include "nn/options.h"

namespace levin::nn {
namespace {
const PReLUOptions& checked(const PReLUOptions& o) {
  check_size("PReLU", "num_parameters", o.num_parameters);
  if (!std::isfinite(o.init)) fail<ConfigError>("PReLU: init is ", o.init, ", expected a finite number");
  return o;
}
}  // namespace

PReLU::PReLU(Module& parent, std::string_view name, Options given)
    : Module(parent, name),
      options(checked(given)),
      weight(*this, "weight", {options.num_parameters}, constant_value(options.init)) {}

Tensor PReLU::operator()(const Tensor& x) const { return Call(*this, x).gives(prelu(x, weight)); }

void check_options(const CELUOptions& o) {
  if (!(o.alpha != 0 && std::isfinite(o.alpha)))
    fail<ConfigError>("CELU: alpha is ", o.alpha, ", expected a finite number other than 0");
}
void check_options(const HardtanhOptions& o) {
  if (!(o.min_val <= o.max_val))
    fail<ConfigError>("Hardtanh: min_val is ", o.min_val, ", expected at most max_val, ", o.max_val);
}
void check_options(const GLUOptions& o) { check_range("GLU", "dim", o.dim, -kMaxRank, kMaxRank - 1); }

}  // namespace levin::nn
