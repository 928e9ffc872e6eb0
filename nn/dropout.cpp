#include "levin/nn/layers.h"
#include "nn/options.h"

namespace levin::nn {
namespace {
const DropoutOptions& checked(const DropoutOptions& o, std::string_view layer = "Dropout") {
  check_probability(layer, "p", o.p);
  return o;
}
}  // namespace

Dropout::Dropout(Module& parent, std::string_view name, Options given)
    : Module(parent, name), options(checked(given)), generator_(*this, "generator") {}

Tensor Dropout::operator()(const Tensor& x) const {
  return Call(*this, x).gives(is_training() && options.p > 0 ? dropout(x, options.p, generator_) : x);
}

FeatureDropout::FeatureDropout(Module& parent, std::string_view name, Options given, std::string_view layer)
    : Module(parent, name), options(checked(given, layer)), generator_(*this, "generator") {}

Tensor FeatureDropout::drop(const Tensor& x, const char* layer, int rank, const char* shape) const {
  const Call call(*this, x);
  if (x.rank() != rank) fail<ShapeError>(layer, ": x has shape ", x.shape(), ", expected ", shape);
  return call.gives(is_training() && options.p > 0 ? feature_dropout(x, options.p, generator_) : x);
}
Tensor Dropout1d::operator()(const Tensor& x) const { return drop(x, "Dropout1d", 3, "[N, C, L]"); }
Tensor Dropout2d::operator()(const Tensor& x) const { return drop(x, "Dropout2d", 4, "[N, C, H, W]"); }
Tensor Dropout3d::operator()(const Tensor& x) const { return drop(x, "Dropout3d", 5, "[N, C, D, H, W]"); }

AlphaDropout::AlphaDropout(Module& parent, std::string_view name, Options given)
    : Module(parent, name), options(checked(given, "AlphaDropout")), generator_(*this, "generator") {}

Tensor AlphaDropout::operator()(const Tensor& x) const {
  return Call(*this, x).gives(is_training() && options.p > 0 ? alpha_dropout(x, options.p, generator_) : x);
}

}  // namespace levin::nn
