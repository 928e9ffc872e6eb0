// Runs the models of tests/peer/compare_modules.py with PyTorch's state dicts.
//
//   peer_modules MODEL STATE.safetensors INPUTS.safetensors RESULTS.safetensors
//
// The state is loaded strictly. Inputs are x0, x1, ... and g, the seed of the output; a model of f64 trains one step.
// Results are y, gradients under their parameters' names, d0, d1, ... (gradients of inputs) and, under "state.", the
// buffers after the step.
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "levin/levin.h"

namespace levin {
namespace {

using nn::Module;
using In = std::vector<Tensor>;

struct Model : Module {
  using Module::Module;
  virtual Tensor run(const In& x) = 0;
};

// ---- ResNet-50 (He et al., 2016), names of torchvision

struct Bottleneck : Module {
  struct Options {
    std::int64_t in = 0, width = 0, stride = 1;
  };
  Bottleneck(Module& parent, std::string_view name, Options o)
      : Module(parent, name),
        conv1(*this, "conv1", {.in = o.in, .out = o.width, .kernel = 1, .bias = false}),
        bn1(*this, "bn1", {.features = o.width}),
        conv2(*this, "conv2",
              {.in = o.width, .out = o.width, .kernel = 3, .stride = o.stride, .padding = 1, .bias = false}),
        bn2(*this, "bn2", {.features = o.width}),
        conv3(*this, "conv3", {.in = o.width, .out = 4 * o.width, .kernel = 1, .bias = false}),
        bn3(*this, "bn3", {.features = 4 * o.width}) {
    if (o.stride == 1 && o.in == 4 * o.width) return;
    downsample.emplace(*this, "downsample");
    downsample->add<nn::Conv2d>({.in = o.in, .out = 4 * o.width, .kernel = 1, .stride = o.stride, .bias = false});
    downsample->add<nn::BatchNorm2d>({.features = 4 * o.width});
  }
  Tensor operator()(const Tensor& x) const {
    const Tensor y = bn2.relu(conv2(bn1.relu(conv1(x))));
    return bn3.relu(conv3(y), downsample ? (*downsample)(x) : x);
  }
  nn::Conv2d conv1;
  nn::BatchNorm2d bn1;
  nn::Conv2d conv2;
  nn::BatchNorm2d bn2;
  nn::Conv2d conv3;
  nn::BatchNorm2d bn3;
  std::optional<nn::Sequential> downsample;
};

struct ResNet50 : Model {
  using Model::Model;
  nn::Conv2d conv1{*this, "conv1", {.in = 3, .out = 64, .kernel = 7, .stride = 2, .padding = 3, .bias = false}};
  nn::BatchNorm2d bn1{*this, "bn1", {.features = 64}};
  nn::MaxPool2d maxpool{*this, "maxpool", {.kernel = 3, .stride = 2, .padding = 1}};
  nn::Sequential layer1{*this, "layer1"}, layer2{*this, "layer2"}, layer3{*this, "layer3"}, layer4{*this, "layer4"};
  nn::Linear fc{*this, "fc", {.in = 2048, .out = 1000}};

  explicit ResNet50(nn::Options o) : Model(std::move(o)) {
    const auto fill = [](nn::Sequential& layer, std::int64_t in, std::int64_t width, int blocks, std::int64_t stride) {
      for (int i = 0; i < blocks; ++i)
        layer.add<Bottleneck>(Bottleneck::Options{i == 0 ? in : 4 * width, width, i == 0 ? stride : 1});
    };
    fill(layer1, 64, 64, 3, 1);
    fill(layer2, 256, 128, 4, 2);
    fill(layer3, 512, 256, 6, 2);
    fill(layer4, 1024, 512, 3, 2);
  }
  Tensor run(const In& x) override {
    const Tensor y = layer4(layer3(layer2(layer1(maxpool(bn1.relu(conv1(x[0])))))));
    return fc(y.mean({2, 3}));
  }
};

// ---- U-Net (Ronneberger et al., 2015) that upsamples by bilinear interpolation

struct TwoConvolutions : nn::Sequential {
  TwoConvolutions(Module& parent, std::string_view name, std::int64_t in, std::int64_t out) : Sequential(parent, name) {
    for (const std::int64_t from : {in, out}) {
      add<nn::Conv2d>({.in = from, .out = out, .kernel = 3, .padding = 1});
      add<nn::BatchNorm2d>({.features = out});
      add<nn::ReLU>();
    }
  }
};
struct UNet : Model {
  using Model::Model;
  TwoConvolutions down1{*this, "down1", 3, 8}, down2{*this, "down2", 8, 16}, bottom{*this, "bottom", 16, 16};
  TwoConvolutions up2{*this, "up2", 32, 8}, up1{*this, "up1", 16, 8};
  nn::Upsample upsample{
      *this, "upsample", {.scale_factor = {2}, .mode = InterpolateMode::bilinear, .align_corners = true}};
  nn::Conv2d head{*this, "head", {.in = 8, .out = 2, .kernel = 1}};

  Tensor run(const In& x) override {
    const Tensor a = down1(x[0]), b = down2(max_pool2d(a, 2)), c = bottom(max_pool2d(b, 2));
    const Tensor d = up2(cat({b, upsample(c)}, 1));
    return head(up1(cat({a, upsample(d)}, 1)));
  }
};

// ---- An encoder and a decoder of texts

struct Translator : Model {
  using Model::Model;
  nn::Embedding source{*this, "source", {.count = 40, .dim = 32}}, target{*this, "target", {.count = 30, .dim = 32}};
  nn::Transformer transformer{*this,
                              "transformer",
                              {.d_model = 32,
                               .nhead = 4,
                               .num_encoder_layers = 2,
                               .num_decoder_layers = 2,
                               .dim_feedforward = 64,
                               .dropout = 0}};
  nn::Linear head{*this, "head", {.in = 32, .out = 30}};

  // x: tokens of both texts, and where the source is padding.
  Tensor run(const In& x) override {
    const nn::TransformerMasks masks{
        .src = {.key_padding = x[2]}, .tgt = {.causal = Causal::yes}, .memory = {.key_padding = x[2]}};
    return head(transformer(source(x[0]), target(x[1]), masks));
  }
};

// ---- A block as Llama's: RMS norm, rotary positions, grouped queries, SwiGLU (Touvron et al., 2023)

struct LlamaBlock : Model {
  using Model::Model;
  static constexpr std::int64_t kWidth = 32, kHeads = 8, kGroups = 2, kHead = kWidth / kHeads, kHidden = 48;
  nn::RMSNorm input_layernorm{*this, "input_layernorm", {.features = kWidth, .eps = 1e-5}};
  nn::RMSNorm post_attention_layernorm{*this, "post_attention_layernorm", {.features = kWidth, .eps = 1e-5}};
  nn::Linear q_proj{*this, "q_proj", {.in = kWidth, .out = kHeads * kHead, .bias = false}};
  nn::Linear k_proj{*this, "k_proj", {.in = kWidth, .out = kGroups * kHead, .bias = false}};
  nn::Linear v_proj{*this, "v_proj", {.in = kWidth, .out = kGroups * kHead, .bias = false}};
  nn::Linear o_proj{*this, "o_proj", {.in = kHeads * kHead, .out = kWidth, .bias = false}};
  nn::Linear gate_proj{*this, "gate_proj", {.in = kWidth, .out = kHidden, .bias = false}};
  nn::Linear up_proj{*this, "up_proj", {.in = kWidth, .out = kHidden, .bias = false}};
  nn::Linear down_proj{*this, "down_proj", {.in = kHidden, .out = kWidth, .bias = false}};

  Tensor run(const In& in) override {
    const Tensor x = input_layernorm(in[0]), at = arange(x.size(1), x.device());
    const auto heads = [&](const Tensor& t) { return t.view({t.size(0), t.size(1), -1, kHead}).transpose(1, 2); };
    const Tensor q = rotary_embedding(heads(q_proj(x)), at), k = rotary_embedding(heads(k_proj(x)), at);
    const Tensor y = scaled_dot_product_attention(q, k, heads(v_proj(x)), {.causal = Causal::yes, .enable_gqa = true});
    const Tensor z = in[0] + o_proj(y.transpose(1, 2).flatten(2));
    const Tensor n = post_attention_layernorm(z);
    return z + down_proj(silu(gate_proj(n)) * up_proj(n));
  }
};

// ---- Two LSTM layers over sequences of different lengths

struct Reader : Model {
  using Model::Model;
  nn::LSTM lstm{*this, "lstm", {.in = 6, .hidden = 8, .num_layers = 2, .batch_first = true, .bidirectional = true}};
  nn::Linear head{*this, "head", {.in = 16, .out = 3}};
  Tensor run(const In& x) override {
    const nn::LSTMOutput out = lstm(x[0], {}, x[1]);
    return cat({head(out.y).flatten(1), out.h.transpose(0, 1).flatten(1), out.c.transpose(0, 1).flatten(1)}, 1);
  }
};

// ---- A WGAN-GP critic with spectral norm: the output is its loss (Gulrajani et al., 2017; Miyato et al., 2018)

struct Critic : Model {
  using Model::Model;
  nn::Conv2d conv1{*this, "conv1", {.in = 1, .out = 8, .kernel = 4, .stride = 2, .padding = 1}};
  nn::Conv2d conv2{*this, "conv2", {.in = 8, .out = 16, .kernel = 4, .stride = 2, .padding = 1}};
  nn::Linear fc{*this, "fc", {.in = 16 * 4 * 4, .out = 1}};
  nn::SpectralNorm norm1{conv1}, norm2{conv2}, norm3{fc};

  Tensor score(const Tensor& x) const { return fc(leaky_relu(conv2(leaky_relu(conv1(x), 0.2)), 0.2).flatten(1)); }
  Tensor run(const In& x) override {
    Tensor between = lerp(x[0], x[1], x[2]).detach();
    between.requires_grad_();
    const Tensor slope = grad(score(between).sum(), std::span(&between, 1), {.create_graph = true})[0];
    const Tensor penalty = square(slope.flatten(1).norm(2, {1}) - 1).mean();
    // Each call iterates once, so their order counts.
    const Tensor fake = score(x[1]).mean(), real = score(x[0]).mean();
    return fake - real + 10 * penalty;
  }
};

template <class T>
std::unique_ptr<Model> make(const nn::Options& o) {
  return std::make_unique<T>(o);
}

int run(const std::string& name, const char* state, const char* inputs, const char* results) {
  using Make = std::unique_ptr<Model> (*)(const nn::Options&);
  const std::map<std::string, Make> models{{"resnet50", make<ResNet50>},     {"unet", make<UNet>},
                                           {"translator", make<Translator>}, {"llama_block", make<LlamaBlock>},
                                           {"lstm", make<Reader>},           {"wgan_critic", make<Critic>}};
  Generator gen(1);
  const std::unique_ptr<Model> model = models.at(name)({.gen = gen, .device = Device::cpu(), .dtype = DType::f64});
  model->load_state_dict(load_safetensors(state).tensors);
  const TensorFile file = load_safetensors(inputs);
  const std::map<std::string, Tensor> given(file.tensors.begin(), file.tensors.end());
  In x;
  for (std::size_t i = 0; given.contains("x" + std::to_string(i)); ++i) {
    x.push_back(given.at("x" + std::to_string(i)));
    if (is_float(x.back().dtype())) x.back().requires_grad_();
  }
  const Tensor y = model->run(x);
  backward(y, given.at("g"));
  NamedTensors out{{"y", y.detach().contiguous()}};
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (x[i].grad().defined()) out.emplace_back("d" + std::to_string(i), x[i].grad().contiguous());
  }
  for (const ParamRef& p : model->parameters()) {
    if (p.value->grad().defined()) out.emplace_back(p.name, p.value->grad().contiguous());
  }
  for (const nn::BufferRef& b : model->buffers()) out.emplace_back("state." + b.name, b.value->contiguous());
  save_safetensors(results, out);
  return 0;
}

}  // namespace
}  // namespace levin

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fputs("usage: peer_modules MODEL STATE.safetensors INPUTS.safetensors RESULTS.safetensors\n", stderr);
    return 2;
  }
  try {
    return levin::run(argv[1], argv[2], argv[3], argv[4]);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "peer_modules: %s\n", e.what());
    return 1;
  }
}
