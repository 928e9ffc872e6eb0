// Layers: parameters and buffers under PyTorch's names, with its default initialisation, over the ops of levin/ops.h.
// Constructors throw ConfigError for options out of range; calls throw what their op throws, and ShapeError for an x of
// another shape than stated.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "levin/nn/call.h"
#include "levin/nn/module.h"
#include "levin/ops.h"

namespace levin::dist {
class ProcessGroup;
}

namespace levin::nn {

// A size along height and width: one number for both, or {h, w}.
class Size2 {
 public:
  constexpr Size2(std::int64_t both) : hw_{both, both} {}
  constexpr Size2(std::int64_t h, std::int64_t w) : hw_{h, w} {}
  [[nodiscard]] constexpr const std::array<std::int64_t, 2>& array() const { return hw_; }

 private:
  std::array<std::int64_t, 2> hw_;
};

// ---- Linear and convolution. Weights and biases start as U(-b, b) with b = 1 / sqrt(fan), fan being the number of
// elements of weight[0] (kaiming_uniform with a = sqrt(5)).

struct LinearOptions {
  std::int64_t in = 0, out = 0;  // features
  bool bias = true;
};
// y = x W^T + b: [..., in] -> [..., out]. weight [out, in], bias [out].
class LEVIN_API Linear : public Module {
 public:
  using Options = LinearOptions;
  Linear(Module& parent, std::string_view name, Options options);
  Tensor operator()(const Tensor& x) const;

  const Options options;
  Parameter weight, bias;
};

struct LinearCrossEntropyLossOptions {
  std::int64_t in = 0, classes = 0;
  bool bias = false;
  CrossEntropyOptions loss{};
};
// linear_cross_entropy: x [..., in] and target i64 [...] -> the loss. linear.weight [classes, in], linear.bias
// [classes].
class LEVIN_API LinearCrossEntropyLoss : public Module {
 public:
  using Options = LinearCrossEntropyLossOptions;
  LinearCrossEntropyLoss(Module& parent, std::string_view name, Options options);
  Tensor operator()(const Tensor& x, const Tensor& target) const;

  const Options options;
  Linear linear;
};

// Sizes of all convolutions: channels in and out, both divisible by groups, and windows as in ConvOptions
// (levin/layer_ops.h). padding_mode says what stands in the padding, by levin::pad; constant is 0, PyTorch's "zeros".
struct Conv1dOptions {
  std::int64_t in = 0, out = 0, kernel = 0;
  std::int64_t stride = 1, padding = 0, dilation = 1, groups = 1;
  bool bias = true;
  PaddingRule padding_rule = PaddingRule::given;  // same: with stride 1 and padding 0
  PadMode padding_mode = PadMode::constant;
};
// conv1d: [N, in, L] -> [N, out, L'], L' = (L + 2 padding - dilation (kernel - 1) - 1) / stride + 1. weight
// [out, in / groups, kernel], bias [out].
class LEVIN_API Conv1d : public Module {
 public:
  using Options = Conv1dOptions;
  Conv1d(Module& parent, std::string_view name, Options options);
  Tensor operator()(const Tensor& x) const;

  const Options options;
  Parameter weight, bias;
};

struct Conv2dOptions {
  std::int64_t in = 0, out = 0;
  Size2 kernel = 0;
  Size2 stride = 1, padding = 0, dilation = 1;
  std::int64_t groups = 1;
  bool bias = true;
  PaddingRule padding_rule = PaddingRule::given;  // as in Conv1dOptions
  PadMode padding_mode = PadMode::constant;
};
// conv2d: [N, in, H, W] -> [N, out, H', W'], H' and W' as L' of Conv1d. weight [out, in / groups, kH, kW], bias [out].
class LEVIN_API Conv2d : public Module {
 public:
  using Options = Conv2dOptions;
  Conv2d(Module& parent, std::string_view name, Options options);
  Tensor operator()(const Tensor& x) const;

  const Options options;
  Parameter weight, bias;
};

struct ConvTranspose2dOptions {
  std::int64_t in = 0, out = 0;
  Size2 kernel = 0;
  Size2 stride = 1, padding = 0, output_padding = 0, dilation = 1;
  std::int64_t groups = 1;
  bool bias = true;
};
// conv_transpose2d: [N, in, H, W] -> [N, out, H', W'], H' = (H - 1) stride - 2 padding + dilation (kernel - 1) +
// output_padding + 1. weight [in, out / groups, kH, kW], bias [out].
class LEVIN_API ConvTranspose2d : public Module {
 public:
  using Options = ConvTranspose2dOptions;
  ConvTranspose2d(Module& parent, std::string_view name, Options options);
  Tensor operator()(const Tensor& x) const;

  const Options options;
  Parameter weight, bias;
};

// ---- Normalisation

struct BatchNormOptions {
  std::int64_t features = 0;             // channels
  double eps = 1e-5;                     // added to the variance
  std::optional<double> momentum = 0.1;  // 0 to 1; empty: the running statistics are averages over all batches
  bool affine = true;                    // weight and bias [features], ones and zeros at first
  bool track_running_stats = true;       // buffers running_mean, running_var [features], num_batches_tracked []
};
// y = (x - mean) / sqrt(var + eps) * weight + bias for each channel of x [N, C, ...]. In training mean and var are the
// batch's, and the running ones move without history: r <- (1 - momentum) r + momentum s, with the unbiased variance.
// In evaluation they are the running ones, or the batch's when not tracked. Ioffe & Szegedy, 2015.
//
// With sync_group the batch is that of all ranks of the group: every rank calls the layer in the same order, and the
// ranks' batches may differ in size. TrainerOptions::sync_batchnorm sets it for the length of a fit.
class LEVIN_API BatchNorm : public Module {
 public:
  using Options = BatchNormOptions;

  // Sets means to 0, variances to 1 and num_batches_tracked to 0, if tracked.
  void reset_running_stats();

  const Options options;
  std::optional<double> momentum;  // options.momentum at first; a captured step keeps the value of its recording
  Parameter weight, bias;
  mutable Buffer running_mean, running_var, num_batches_tracked;
  std::shared_ptr<dist::ProcessGroup> sync_group{};  // null, or one rank: the batch of this process

 protected:
  BatchNorm(Module& parent, std::string_view name, Options options);
  [[nodiscard]] Tensor normalise(const Tensor& x) const;
  [[nodiscard]] Tensor normalise_relu(const Tensor& x, const Tensor& residual) const;
};
// x [N, C] or [N, C, L].
// `relu`: levin::relu of the result, or of its sum with a residual, in the pass that normalises: in training
// batch_norm_relu_train, in evaluation batch_norm_relu_eval. With a sync_group, relu follows in a pass of its own.
class LEVIN_API BatchNorm1d : public BatchNorm {
 public:
  BatchNorm1d(Module& parent, std::string_view name, Options options) : BatchNorm(parent, name, options) {}
  Tensor operator()(const Tensor& x) const;
  Tensor relu(const Tensor& x, const Tensor& residual = {}) const;
};
// x [N, C, H, W].
class LEVIN_API BatchNorm2d : public BatchNorm {
 public:
  BatchNorm2d(Module& parent, std::string_view name, Options options) : BatchNorm(parent, name, options) {}
  Tensor operator()(const Tensor& x) const;
  Tensor relu(const Tensor& x, const Tensor& residual = {}) const;
};

// x [N, C, D, H, W].
class LEVIN_API BatchNorm3d : public BatchNorm {
 public:
  BatchNorm3d(Module& parent, std::string_view name, Options options) : BatchNorm(parent, name, options) {}
  Tensor operator()(const Tensor& x) const;
  Tensor relu(const Tensor& x, const Tensor& residual = {}) const;
};

struct LayerNormOptions {
  Dims shape;  // the last dimensions of x, or one number
  double eps = 1e-5;
  bool affine = true;  // weight and bias of `shape`, ones and zeros at first
  bool bias = true;    // false: weight alone
};
// layer_norm: y = (x - mean) / sqrt(var + eps) * weight + bias over the last dimensions. Ba et al., 2016.
class LEVIN_API LayerNorm : public Module {
 public:
  using Options = LayerNormOptions;
  LayerNorm(Module& parent, std::string_view name, Options options);
  Tensor operator()(const Tensor& x) const;
  AddNorm operator()(const Tensor& x, const Tensor& r) const;  // add_layer_norm: the norm of x + r, and the sum

  const Options options;
  Parameter weight, bias;
};

struct RMSNormOptions {
  std::int64_t features = 0;    // the last dimension of x
  std::optional<double> eps{};  // default: the machine epsilon, as of rms_norm
};
// rms_norm: y = x / sqrt(mean(x^2) + eps) * weight over the last dimension. weight [features], ones at first. Zhang &
// Sennrich, 2019.
class LEVIN_API RMSNorm : public Module {
 public:
  using Options = RMSNormOptions;
  RMSNorm(Module& parent, std::string_view name, Options options);
  Tensor operator()(const Tensor& x) const;
  AddNorm operator()(const Tensor& x, const Tensor& r) const;  // add_rms_norm: the norm of x + r, and the sum

  const Options options;
  Parameter weight;
};

struct GroupNormOptions {
  std::int64_t groups = 0, features = 0;  // groups divides the channels
  double eps = 1e-5;
  bool affine = true;  // weight and bias [features], ones and zeros at first
};
// group_norm: layer norm's formula with the statistics of each sample and group of neighbouring channels; x [N, C,
// ...]. Wu & He, 2018.
class LEVIN_API GroupNorm : public Module {
 public:
  using Options = GroupNormOptions;
  GroupNorm(Module& parent, std::string_view name, Options options);
  Tensor operator()(const Tensor& x) const;

  const Options options;
  Parameter weight, bias;
};

struct InstanceNormOptions {
  std::int64_t features = 0;
  double eps = 1e-5;
  bool affine = false;  // weight and bias [features], ones and zeros at first
};
using InstanceNorm2dOptions = InstanceNormOptions;
// GroupNorm with one channel a group. No running statistics. Ulyanov et al., 2016.
class LEVIN_API InstanceNorm : public Module {
 public:
  using Options = InstanceNormOptions;

  const Options options;
  Parameter weight, bias;

 protected:
  InstanceNorm(Module& parent, std::string_view name, Options options);
  [[nodiscard]] Tensor normalise(const Tensor& x, const char* layer, int rank, const char* shape) const;
};
// x [N, C, L], [N, C, H, W] and [N, C, D, H, W]; PyTorch also takes them without N.
class LEVIN_API InstanceNorm1d : public InstanceNorm {
 public:
  InstanceNorm1d(Module& parent, std::string_view name, Options options) : InstanceNorm(parent, name, options) {}
  Tensor operator()(const Tensor& x) const;
};
class LEVIN_API InstanceNorm2d : public InstanceNorm {
 public:
  InstanceNorm2d(Module& parent, std::string_view name, Options options) : InstanceNorm(parent, name, options) {}
  Tensor operator()(const Tensor& x) const;
};
class LEVIN_API InstanceNorm3d : public InstanceNorm {
 public:
  InstanceNorm3d(Module& parent, std::string_view name, Options options) : InstanceNorm(parent, name, options) {}
  Tensor operator()(const Tensor& x) const;
};

// ---- Dropout, embedding

struct DropoutOptions {
  double p = 0.5;
};
// In training each element becomes 0 with probability p and the rest is divided by 1 - p; in evaluation x itself. Draws
// from the module's own stream, "generator" below its path.
class LEVIN_API Dropout : public Module {
 public:
  using Options = DropoutOptions;
  Dropout(Module& parent, std::string_view name, Options options = {});
  Tensor operator()(const Tensor& x) const;

  const Options options;

 private:
  mutable ModuleGenerator generator_;
};

// feature_dropout in training, x itself in evaluation: whole channels of x [N, C, L], [N, C, H, W] and [N, C, D, H, W];
// PyTorch also takes them without N.
class LEVIN_API FeatureDropout : public Module {
 public:
  using Options = DropoutOptions;
  const Options options;

 protected:
  FeatureDropout(Module& parent, std::string_view name, Options options, std::string_view layer);
  [[nodiscard]] Tensor drop(const Tensor& x, const char* layer, int rank, const char* shape) const;

 private:
  mutable ModuleGenerator generator_;
};
// Of x [N, C, L].
class LEVIN_API Dropout1d : public FeatureDropout {
 public:
  Dropout1d(Module& parent, std::string_view name, Options options = {})
      : FeatureDropout(parent, name, options, "Dropout1d") {}
  Tensor operator()(const Tensor& x) const;
};
// Of x [N, C, H, W].
class LEVIN_API Dropout2d : public FeatureDropout {
 public:
  Dropout2d(Module& parent, std::string_view name, Options options = {})
      : FeatureDropout(parent, name, options, "Dropout2d") {}
  Tensor operator()(const Tensor& x) const;
};
// Of x [N, C, D, H, W].
class LEVIN_API Dropout3d : public FeatureDropout {
 public:
  Dropout3d(Module& parent, std::string_view name, Options options = {})
      : FeatureDropout(parent, name, options, "Dropout3d") {}
  Tensor operator()(const Tensor& x) const;
};
// alpha_dropout in training, x itself in evaluation.
class LEVIN_API AlphaDropout : public Module {
 public:
  using Options = DropoutOptions;
  AlphaDropout(Module& parent, std::string_view name, Options options = {});
  Tensor operator()(const Tensor& x) const;

  const Options options;

 private:
  mutable ModuleGenerator generator_;
};

struct EmbeddingOptions {
  std::int64_t count = 0, dim = 0;            // rows of the table, and their length
  std::optional<std::int64_t> padding_idx{};  // this row is 0 at first and gets no gradient; may be negative
  std::optional<double> max_norm{};           // a call first shortens its rows to that, in place: embedding_renorm_
  double norm_type = 2;
  bool sparse = false;  // gradients of rows: EmbeddingGrad::rows
};
// Rows of weight [count, dim], N(0, 1) at first: index i64 [...] -> [..., dim].
class LEVIN_API Embedding : public Module {
 public:
  using Options = EmbeddingOptions;
  Embedding(Module& parent, std::string_view name, Options options);
  Tensor operator()(const Tensor& index) const;

  const Options options;
  Parameter weight;
};

struct PReLUOptions {
  std::int64_t num_parameters = 1;  // 1, or the channels of x
  double init = 0.25;
};
// prelu: x above 0, else weight x, of x [N, C, ...]. weight [num_parameters]. He et al., 2015.
class LEVIN_API PReLU : public Module {
 public:
  using Options = PReLUOptions;
  PReLU(Module& parent, std::string_view name, Options options = {});
  Tensor operator()(const Tensor& x) const;

  const Options options;
  Parameter weight;
};

// ---- Ops as modules, for Sequential: the formulas, shapes and errors are those of the ops in levin/ops.h.

// The op of that name in lower case; Identity returns x.
#define LEVIN_OP_MODULE(Name, op)                                                    \
  class LEVIN_API Name : public Module {                                             \
   public:                                                                           \
    using Module::Module;                                                            \
    Tensor operator()(const Tensor& x) const { return Call(*this, x).gives(op(x)); } \
  }
LEVIN_OP_MODULE(ReLU, relu);
LEVIN_OP_MODULE(SiLU, silu);
LEVIN_OP_MODULE(Tanh, tanh);
LEVIN_OP_MODULE(Sigmoid, sigmoid);
LEVIN_OP_MODULE(Mish, mish);
LEVIN_OP_MODULE(Hardswish, hardswish);
LEVIN_OP_MODULE(Hardsigmoid, hardsigmoid);
LEVIN_OP_MODULE(ReLU6, relu6);
LEVIN_OP_MODULE(SELU, selu);
LEVIN_OP_MODULE(Softsign, softsign);
LEVIN_OP_MODULE(Identity, );
#undef LEVIN_OP_MODULE

// An op with options. Each type of options has a check_options(options) beside it, which throws ConfigError.
template <class O>
class OpModule : public Module {
 public:
  using Options = O;
  OpModule(Module& parent, std::string_view name, O given = {}) : Module(parent, name), options(given) {
    check_options(options);
  }
  const O options;
};
// gelu, leaky_relu, elu, celu, hardtanh, glu, softplus, softmax, log_softmax and flatten, with the options of the op.
struct GELUOptions {
  GeluForm form = GeluForm::erf;
};
inline void check_options(const GELUOptions&) {}
class GELU : public OpModule<GELUOptions> {
 public:
  using OpModule::OpModule;
  Tensor operator()(const Tensor& x) const { return Call(*this, x).gives(gelu(x, options.form)); }
};
struct LeakyReLUOptions {
  double negative_slope = 0.01;
};
LEVIN_API void check_options(const LeakyReLUOptions& options);  // throws ConfigError
class LeakyReLU : public OpModule<LeakyReLUOptions> {
 public:
  using OpModule::OpModule;
  Tensor operator()(const Tensor& x) const { return Call(*this, x).gives(leaky_relu(x, options.negative_slope)); }
};
struct ELUOptions {
  double alpha = 1;
};
LEVIN_API void check_options(const ELUOptions& options);  // throws ConfigError
class ELU : public OpModule<ELUOptions> {
 public:
  using OpModule::OpModule;
  Tensor operator()(const Tensor& x) const { return Call(*this, x).gives(elu(x, options.alpha)); }
};
struct CELUOptions {
  double alpha = 1;
};
LEVIN_API void check_options(const CELUOptions& options);  // throws ConfigError
class CELU : public OpModule<CELUOptions> {
 public:
  using OpModule::OpModule;
  Tensor operator()(const Tensor& x) const { return Call(*this, x).gives(celu(x, options.alpha)); }
};
struct HardtanhOptions {
  double min_val = -1, max_val = 1;
};
LEVIN_API void check_options(const HardtanhOptions& options);  // throws ConfigError
class Hardtanh : public OpModule<HardtanhOptions> {
 public:
  using OpModule::OpModule;
  Tensor operator()(const Tensor& x) const {
    return Call(*this, x).gives(hardtanh(x, options.min_val, options.max_val));
  }
};
struct GLUOptions {
  std::int64_t dim = -1;
};
LEVIN_API void check_options(const GLUOptions& options);  // throws ConfigError
class GLU : public OpModule<GLUOptions> {
 public:
  using OpModule::OpModule;
  Tensor operator()(const Tensor& x) const { return Call(*this, x).gives(glu(x, options.dim)); }
};
struct SoftplusOptions {
  double beta = 1, threshold = 20;
};
LEVIN_API void check_options(const SoftplusOptions& options);  // throws ConfigError
class Softplus : public OpModule<SoftplusOptions> {
 public:
  using OpModule::OpModule;
  Tensor operator()(const Tensor& x) const {
    return Call(*this, x).gives(softplus(x, options.beta, options.threshold));
  }
};
struct SoftmaxOptions {
  std::int64_t dim = -1;
};
LEVIN_API void check_options(const SoftmaxOptions& options);  // throws ConfigError
class Softmax : public OpModule<SoftmaxOptions> {
 public:
  using OpModule::OpModule;
  Tensor operator()(const Tensor& x) const { return Call(*this, x).gives(softmax(x, options.dim)); }
};
class LogSoftmax : public OpModule<SoftmaxOptions> {
 public:
  using OpModule::OpModule;
  Tensor operator()(const Tensor& x) const { return Call(*this, x).gives(log_softmax(x, options.dim)); }
};
struct FlattenOptions {
  std::int64_t begin = 1, end = -1;
};
LEVIN_API void check_options(const FlattenOptions& options);  // throws ConfigError
class Flatten : public OpModule<FlattenOptions> {
 public:
  using OpModule::OpModule;
  Tensor operator()(const Tensor& x) const { return Call(*this, x).gives(flatten(x, options.begin, options.end)); }
};
struct PairwiseDistanceOptions {
  double p = 2, eps = 1e-6;
  bool keepdim = false;
};
LEVIN_API void check_options(const PairwiseDistanceOptions& options);  // throws ConfigError
// pairwise_distance: two tensors [..., d] -> [...], or [..., 1] with keepdim.
class LEVIN_API PairwiseDistance : public OpModule<PairwiseDistanceOptions> {
 public:
  using OpModule::OpModule;
  Tensor operator()(const Tensor& a, const Tensor& b) const;
};
struct Pool2dOptions {
  Size2 kernel = 2;
  std::optional<Size2> stride{};  // default: the kernel
  Size2 padding = 0;              // at most half the kernel
  Size2 dilation = 1;             // max pooling
  bool ceil_mode = false;         // as in PoolOptions
  bool count_include_pad = true;  // average pooling
};
LEVIN_API void check_options(const Pool2dOptions& options);                      // throws ConfigError
[[nodiscard]] LEVIN_API PoolOptions pool_options(const Pool2dOptions& options);  // as the ops take them
// max_pool2d and avg_pool2d: [N, C, H, W] -> [N, C, H', W'].
class MaxPool2d : public OpModule<Pool2dOptions> {
 public:
  using OpModule::OpModule;
  Tensor operator()(const Tensor& x) const { return Call(*this, x).gives(max_pool2d(x, pool_options(options))); }
  // max_pool2d_with_indices, for MaxUnpool2d.
  [[nodiscard]] ValuesIndices with_indices(const Tensor& x) const {
    const Call call(*this, x);
    ValuesIndices y = max_pool2d_with_indices(x, pool_options(options));
    call.gave(y.values, y.indices);
    return y;
  }
};
class AvgPool2d : public OpModule<Pool2dOptions> {
 public:
  LEVIN_API AvgPool2d(Module& parent, std::string_view name, Options given = {});  // ConfigError for a dilation
  Tensor operator()(const Tensor& x) const { return Call(*this, x).gives(avg_pool2d(x, pool_options(options))); }
};
struct AdaptivePool2dOptions {
  Size2 output = 1;
};
LEVIN_API void check_options(const AdaptivePool2dOptions& options);  // throws ConfigError
// adaptive_avg_pool2d and adaptive_max_pool2d: [N, C, H, W] -> [N, C, output].
class AdaptiveAvgPool2d : public OpModule<AdaptivePool2dOptions> {
 public:
  using OpModule::OpModule;
  Tensor operator()(const Tensor& x) const {
    return Call(*this, x).gives(adaptive_avg_pool2d(x, options.output.array()));
  }
};
class AdaptiveMaxPool2d : public OpModule<AdaptivePool2dOptions> {
 public:
  using OpModule::OpModule;
  Tensor operator()(const Tensor& x) const {
    return Call(*this, x).gives(adaptive_max_pool2d(x, options.output.array()));
  }
};
struct UnfoldOptions {
  Size2 kernel = 0;
  Size2 stride = 1, padding = 0, dilation = 1;
};
LEVIN_API void check_options(const UnfoldOptions& options);  // throws ConfigError
// im2col: [N, C, H, W] -> [N, C * kH * kW, L].
class LEVIN_API Unfold : public OpModule<UnfoldOptions> {
 public:
  using OpModule::OpModule;
  Tensor operator()(const Tensor& x) const;
};
struct FoldOptions {
  Size2 output = 0, kernel = 0;  // {H, W} of the images; the windows' size
  Size2 stride = 1, padding = 0, dilation = 1;
};
LEVIN_API void check_options(const FoldOptions& options);  // throws ConfigError
// col2im: [N, C * kH * kW, L] -> [N, C, output].
class LEVIN_API Fold : public OpModule<FoldOptions> {
 public:
  using OpModule::OpModule;
  Tensor operator()(const Tensor& columns) const;
};

}  // namespace levin::nn
