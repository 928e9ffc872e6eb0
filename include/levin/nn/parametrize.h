// Parameters that are computed from others before each call of their layer, under the names of PyTorch's
// torch.nn.utils.parametrizations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "levin/nn/module.h"

namespace levin::nn {
class Parametrization;
}
namespace levin::detail {
class ParametrizationList;  // the module "parametrizations" of a layer
// Where a parametrization lies in its layer.
struct LEVIN_API ParametrizationPlace {
  ParametrizationPlace(nn::Module& layer, std::string_view name);
  ~ParametrizationPlace();
  ParametrizationPlace(const ParametrizationPlace&) = delete;
  ParametrizationPlace& operator=(const ParametrizationPlace&) = delete;
  std::unique_ptr<ParametrizationList> own;  // of the layer's first parametrization
  ParametrizationList* list;
};
}  // namespace levin::detail

namespace levin::nn {

// Takes the place of a parameter of a layer. Its own parameters, which optimizers get, are the layer's
// "parametrizations.NAME.original" and the like. Each call of the layer that begins with nn::Call, as all of levin/nn
// do, first sets the layer's member to compute(), with its history, so that gradients reach the originals. Until then,
// also after a load, a conversion or a step, the member has an older value.
//
//   struct Critic : nn::Module {
//     using Module::Module;
//     nn::Conv2d conv{*this, "conv", {.in = 3, .out = 64, .kernel = 4}};
//     nn::SpectralNorm norm{conv};
//   };
//
// Make optimizers after it. When it is destroyed, before the layer or after it, the member is a parameter again, with
// its last value. Those of one layer are destroyed in the reverse order of their construction. One thread at a time
// calls the layer. Throws ConfigError unless the layer has a parameter of this name, which none has taken yet.
//
// For your own: derive, and make Parameters and Buffers of *this from first().
class LEVIN_API Parametrization : private levin::detail::ParametrizationPlace, public Module {
 public:
  Parametrization(Module& layer, std::string_view name);
  ~Parametrization() override;
  // The parameter's value, of its shape and dtype.
  [[nodiscard]] virtual Tensor compute() = 0;

 protected:
  [[nodiscard]] const Tensor& first() const { return first_; }  // the value when the parametrization was made

 private:
  friend class Call;
  static void refresh(const Module& layer);  // before a call
  Module* layer_;
  std::weak_ptr<const void> layer_lives_;
  Tensor* target_ = nullptr;
  std::ptrdiff_t position_ = 0;  // among the layer's parameters
  Tensor first_;
};

struct WeightNormOptions {
  std::string name = "weight";
  std::optional<std::int64_t> dim = 0;  // of the norms, one for each index; empty: one norm of all elements
};
// torch.nn.utils.parametrizations.weight_norm: w = original0 v / |v| with v = original1, the norm being the 2-norm over
// all dimensions but dim. original0 has size 1 in the others, or is a scalar without dim. Throws ConfigError for a dim
// that the parameter has not. Salimans & Kingma, "Weight Normalization", 2016.
class LEVIN_API WeightNorm final : public Parametrization {
 public:
  explicit WeightNorm(Module& layer, WeightNormOptions options = {});
  Tensor compute() override;

 private:
  WeightNormOptions options_;

 public:
  Parameter original0, original1;
};

struct SpectralNormOptions {
  std::string name = "weight";
  std::int64_t n_power_iterations = 1;  // in each call while training; 1 or more
  double eps = 1e-12;                   // least divisor of the vectors
  std::optional<std::int64_t> dim{};    // of the matrix's rows; empty: 0, and 1 for transposed convolutions
};
// torch.nn.utils.parametrizations.spectral_norm: w = original / (u . W v), W being original as a matrix with `dim` as
// rows. u and v, the buffers 0._u and 0._v, approach the singular vectors of the largest singular value: 15 power
// iterations at first, from random vectors of the layer's generator, and n_power_iterations before each call while
// training; they have no gradient. (A checkpointed region runs twice, and so do its iterations.) A parameter of one
// dimension is divided by its norm. Computed outside of autocast. Miyato et al., "Spectral Normalization for Generative
// Adversarial Networks", 2018.
class LEVIN_API SpectralNorm final : public Parametrization {
 public:
  explicit SpectralNorm(Module& layer, SpectralNormOptions options = {});
  Tensor compute() override;

 private:
  class Vectors : public Module {
   public:
    explicit Vectors(const SpectralNorm& norm, Module& parent);
  };
  [[nodiscard]] Tensor matrix() const;
  void iterate(std::int64_t times);
  SpectralNormOptions options_;
  std::int64_t dim_;

 public:
  Parameter original;

 private:
  std::optional<Vectors> vectors_;  // of a parameter of two dimensions or more
};

}  // namespace levin::nn
