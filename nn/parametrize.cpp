#include "levin/nn/parametrize.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "levin/autograd.h"
#include "levin/nn/image_layers.h"
#include "levin/nn/layers.h"
#include "levin/ops.h"
#include "nn/options.h"

namespace levin {

class detail::ParametrizationList : public nn::Module {
 public:
  explicit ParametrizationList(nn::Module& layer) : Module(layer, "parametrizations") {}
  std::vector<nn::Parametrization*> all;
};

namespace nn {

namespace {

detail::ParametrizationList* list_of(const Module& layer) {
  for (const Module* const child : layer.children()) {
    if (const auto* list = dynamic_cast<const detail::ParametrizationList*>(child))
      return const_cast<detail::ParametrizationList*>(list);
  }
  return nullptr;
}

}  // namespace

}  // namespace nn

detail::ParametrizationPlace::ParametrizationPlace(nn::Module& layer, std::string_view name)
    : list(nn::list_of(layer)) {
  std::string names;
  bool found = false;
  for (const auto& [key, value] : layer.named_parameters()) {
    found = found || key == name;
    if (key.find('.') == std::string::npos) names += (names.empty() ? "" : ", ") + key;
  }
  if (!found || name.find('.') != std::string_view::npos)
    fail<ConfigError>("parametrization: ", layer.type_name(), " ", layer.path(), " has no parameter ", name,
                      ", expected one of its own: ", names.empty() ? "it has none" : names);
  if (list) return;
  own = std::make_unique<ParametrizationList>(layer);
  list = own.get();
}
detail::ParametrizationPlace::~ParametrizationPlace() = default;

namespace nn {

Parametrization::Parametrization(Module& layer, std::string_view name)
    : ParametrizationPlace(layer, name), Module(*list, name), layer_(&layer), layer_lives_(layer.alive()) {
  std::vector<Slot>& parameters = layer.parameters_;
  const auto found = std::find_if(parameters.begin(), parameters.end(), [&](const Slot& s) { return s.name == name; });
  target_ = found->value;
  position_ = found - parameters.begin();
  first_ = target_->detach();
  list->all.push_back(this);
  parameters.erase(found);
  *target_ = first_;
  layer.refresh_ = &refresh;
}

Parametrization::~Parametrization() {
  if (layer_lives_.expired()) return;
  std::erase(list->all, this);
  if (list->all.empty()) layer_->refresh_ = nullptr;
  *target_ = target_->detach();
  target_->requires_grad_();
  std::vector<Slot>& parameters = layer_->parameters_;
  parameters.insert(parameters.begin() + std::min<std::ptrdiff_t>(position_, std::ssize(parameters)),
                    Slot{name(), target_});
}

void Parametrization::refresh(const Module& layer) {
  const detail::ParametrizationList* const list = list_of(layer);
  if (!list) return;
  for (Parametrization* p : list->all) *p->target_ = p->compute();
}

namespace {

std::int64_t checked_dim(const char* op, std::int64_t dim, const Tensor& value) {
  if (dim < 0 || dim >= value.rank())
    fail<ConfigError>(op, ": dim is ", dim, ", expected a dimension of the parameter, which is ", text(value));
  return dim;
}
// The 2-norm over all dimensions but `dim`, which are kept with size 1; over all, as a scalar, without one.
Tensor norm_except(const Tensor& x, const std::optional<std::int64_t>& dim) {
  if (!dim) return norm(x);
  std::vector<std::int64_t> others;
  for (std::int64_t d = 0; d < x.rank(); ++d) {
    if (d != *dim) others.push_back(d);
  }
  if (others.empty()) return abs(x);
  return norm(x, 2, Dims(std::span<const std::int64_t>(others)), KeepDim::yes);
}
Tensor unit(const Tensor& x, double eps) { return normalize(x, 2, 0, eps); }

// Weights of transposed convolutions are [in, out / groups, ...].
template <class... Layer>
bool is_one_of(const Module& layer) {
  return ((dynamic_cast<const Layer*>(&layer) != nullptr) || ...);
}
std::int64_t dim_of_rows(const Module& layer) {
  return is_one_of<ConvTranspose1d, ConvTranspose2d, ConvTranspose3d>(layer) ? 1 : 0;
}

}  // namespace

WeightNorm::WeightNorm(Module& layer, WeightNormOptions options)
    : Parametrization(layer, options.name),
      options_(std::move(options)),
      original0(*this, "original0",
                norm_except(first(), options_.dim ? std::optional(checked_dim("weight_norm", *options_.dim, first()))
                                                  : std::nullopt)),
      original1(*this, "original1", first()) {}
Tensor WeightNorm::compute() { return original1 * (original0 / norm_except(original1, options_.dim)); }

SpectralNorm::Vectors::Vectors(const SpectralNorm& norm, Module& parent) : Module(parent, "0") {
  const NoGrad off;
  const Tensor& weight = norm.first();
  const std::int64_t rows = weight.shape()[static_cast<std::size_t>(norm.dim_)];
  for (const auto& [key, size] : {std::pair("_u", rows), std::pair("_v", weight.numel() / rows)}) {
    Generator gen = fork(key);
    register_buffer(key, unit(randn({size}, gen, weight.device(), weight.dtype()), norm.options_.eps));
  }
}

SpectralNorm::SpectralNorm(Module& layer, SpectralNormOptions options)
    : Parametrization(layer, options.name),
      options_(std::move(options)),
      dim_(checked_dim("spectral_norm", options_.dim.value_or(dim_of_rows(layer)), first())),
      original(*this, "original", first()) {
  check_at_least("spectral_norm", "n_power_iterations", options_.n_power_iterations, 1);
  if (!(options_.eps >= 0 && std::isfinite(options_.eps)))
    fail<ConfigError>("spectral_norm: eps is ", options_.eps, ", expected 0 or more, and finite");
  constexpr int kFirst = 15;
  if (original.rank() < 2 || original.numel() == 0) return;
  vectors_.emplace(*this, *this);
  iterate(kFirst);
}

Tensor SpectralNorm::matrix() const {
  return flatten(dim_ == 0 ? static_cast<const Tensor&>(original) : transpose(original, 0, dim_), 1);
}
// In the buffers' memory, which a recorded step reads.
void SpectralNorm::iterate(std::int64_t times) {
  const NoGrad off;
  const Tensor w = matrix().detach(), across = transpose(w, 0, 1);
  const std::vector<BufferRef> buffers = vectors_->buffers();
  Tensor u, v = *buffers[1].value;
  for (std::int64_t i = 0; i < times; ++i) {
    u = unit(flatten(matmul(w, unsqueeze(v, 1))), options_.eps);
    v = unit(flatten(matmul(across, unsqueeze(u, 1))), options_.eps);
  }
  copy_(*buffers[0].value, u);
  copy_(*buffers[1].value, v);
}
Tensor SpectralNorm::compute() {
  const Autocast off = Autocast::off();
  if (!vectors_) return original.numel() == 0 ? original * 1 : unit(original, options_.eps);
  if (is_training()) iterate(options_.n_power_iterations);
  // Copies: the next call writes to the buffers, and backward may come after it.
  const std::vector<BufferRef> buffers = vectors_->buffers();
  const Tensor u = buffers[0].value->clone(), v = buffers[1].value->clone();
  return original / sum(u * flatten(matmul(matrix(), unsqueeze(v, 1))));
}

}  // namespace nn
}  // namespace levin
