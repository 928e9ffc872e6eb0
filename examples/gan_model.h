// What the program gan trains: its pairs of networks and their training. In a header, because `levin plan` plans them,
// too.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "examples/training.h"

namespace levin::examples::gan {

inline constexpr std::int64_t kSide = 28, kCode = 64;  // kCode: numbers that make a picture
// Pictures are in [-1, 1], the range of tanh.
inline constexpr data::Normalization kScale{0.5f, 0.5f};

struct Settings : TrainingSettings {
  std::string model = "cnn";
};
inline const std::vector<std::string> kPrecisions{"32-true", "bf16-mixed"};

// ---- Generators: codes [N, 64] -> pictures [N, 1, 28, 28]. Discriminators: pictures -> logits [N, 1] of being real.

struct Net : nn::Module {
  using Module::Module;
  Tensor operator()(const Tensor& x) const { return nn::Call(*this, x).gives(forward(x)); }

 protected:
  [[nodiscard]] virtual Tensor forward(const Tensor& x) const = 0;
};

struct ConvGenerator final : Net {
  using Net::Net;
  nn::Linear fc{*this, "fc", {.in = kCode, .out = 64 * 7 * 7, .bias = false}};
  nn::BatchNorm2d norm1{*this, "norm1", {.features = 64}};
  nn::ConvTranspose2d up1{*this, "up1", {.in = 64, .out = 32, .kernel = 4, .stride = 2, .padding = 1, .bias = false}};
  nn::BatchNorm2d norm2{*this, "norm2", {.features = 32}};
  nn::ConvTranspose2d up2{*this, "up2", {.in = 32, .out = 1, .kernel = 4, .stride = 2, .padding = 1}};
  [[nodiscard]] Tensor forward(const Tensor& code) const override {
    const Tensor x = relu(norm1(reshape(fc(code), {code.size(0), 64, 7, 7})));
    return tanh(up2(relu(norm2(up1(x)))));
  }
};

struct ConvDiscriminator final : Net {
  using Net::Net;
  nn::Conv2d conv1{*this, "conv1", {.in = 1, .out = 32, .kernel = 4, .stride = 2, .padding = 1}};
  nn::Conv2d conv2{*this, "conv2", {.in = 32, .out = 64, .kernel = 4, .stride = 2, .padding = 1}};
  nn::Linear fc{*this, "fc", {.in = 64 * 7 * 7, .out = 1}};
  [[nodiscard]] Tensor forward(const Tensor& pictures) const override {
    const Tensor x = leaky_relu(conv2(leaky_relu(conv1(pictures), 0.2)), 0.2);
    return fc(flatten(x, 1));
  }
};

struct MlpGenerator final : Net {
  using Net::Net;
  nn::Linear fc1{*this, "fc1", {.in = kCode, .out = 256}};
  nn::Linear fc2{*this, "fc2", {.in = 256, .out = 512}};
  nn::Linear fc3{*this, "fc3", {.in = 512, .out = kSide * kSide}};
  [[nodiscard]] Tensor forward(const Tensor& code) const override {
    const Tensor x = leaky_relu(fc2(leaky_relu(fc1(code), 0.2)), 0.2);
    return reshape(tanh(fc3(x)), {code.size(0), 1, kSide, kSide});
  }
};

struct MlpDiscriminator final : Net {
  using Net::Net;
  nn::Linear fc1{*this, "fc1", {.in = kSide * kSide, .out = 512}};
  nn::Linear fc2{*this, "fc2", {.in = 512, .out = 256}};
  nn::Linear fc3{*this, "fc3", {.in = 256, .out = 1}};
  [[nodiscard]] Tensor forward(const Tensor& pictures) const override {
    return fc3(leaky_relu(fc2(leaky_relu(fc1(flatten(pictures, 1)), 0.2)), 0.2));
  }
};

template <class Conv, class Mlp>
std::unique_ptr<Net> make_net(const Settings& s, nn::Module& parent, const char* name) {
  if (s.model == "cnn") return std::make_unique<Conv>(parent, name);
  return std::make_unique<Mlp>(parent, name);
}

// ---- How the pair is trained

inline Tensor loss_against(const Tensor& logits, double real) {
  return binary_cross_entropy_with_logits(logits, full(logits.shape(), real, logits.device(), logits.dtype()));
}

struct Gan final : TrainModuleOf<Gan> {
  Gan(const Settings& s, const Generator& gen, Device device)
      : TrainModuleOf({.gen = gen.fork("model"), .device = device}), settings(s) {
    Generator sample_gen = gen.fork("samples");
    sample_codes = randn({64, kCode}, sample_gen, device);
  }
  const Settings settings;
  std::unique_ptr<Net> generator = make_net<ConvGenerator, MlpGenerator>(settings, *this, "generator");
  std::unique_ptr<Net> discriminator = make_net<ConvDiscriminator, MlpDiscriminator>(settings, *this, "discriminator");
  nn::ModuleGenerator codes{*this, "codes"};
  Tensor sample_codes;  // of the shown pictures: the same in every epoch

  [[nodiscard]] bool automatic_optimization() const override { return false; }

  Batch example_input() override { return {.fields = {empty({1, kCode}, Device::meta())}}; }
  void example_forward(const Batch& codes_of_one) override { (void)(*discriminator)((*generator)(codes_of_one[0])); }

  OptimizerConfig configure_optimizers() override {
    const optim::AdamOptions options{.lr = settings.lr, .beta1 = 0.5};
    return {.optimizers = {std::make_shared<optim::Adam>(generator->parameters(), options),
                           std::make_shared<optim::Adam>(discriminator->parameters(), options)}};
  }

  // The discriminator learns to tell real pictures from generated ones, then the generator learns to pass for real.
  // While one is toggled, no gradient of the other is computed. A window of --accumulate batches is one step of each.
  StepOutput training_step(const Batch& batch, std::int64_t batch_idx) override {
    const Tensor& real = batch[0];
    const Tensor made = (*generator)(randn({real.size(0), kCode}, codes, real.device()));
    const bool closes = (batch_idx + 1) % settings.accumulate == 0 || trainer().is_last_batch();
    const Tensor d_loss = train_one(optimizers()[1], closes, [&] {
      return (loss_against((*discriminator)(real), 1) + loss_against((*discriminator)(made.detach()), 0)) / 2;
    });
    const Tensor g_loss = train_one(optimizers()[0], closes, [&] { return loss_against((*discriminator)(made), 1); });
    log("d_loss", d_loss, {.prog_bar = true, .on_step = true, .on_epoch = true});
    log("g_loss", g_loss, {.prog_bar = true, .on_step = true, .on_epoch = true});
    return {};
  }

  template <class Loss>
  Tensor train_one(OptimizerHandle& optimizer, bool closes, Loss&& loss_of) {
    const ToggledModel toggled = optimizer.toggle_model(closes ? SyncGrad::yes : SyncGrad::no);
    const Tensor loss = loss_of();
    manual_backward(loss);
    if (closes) {
      optimizer.step();
      optimizer.zero_grad();
    }
    return loss.detach();
  }

  void on_train_epoch_end() override { draw(); }

  // samples.png: the generator's pictures of the codes, with its running statistics.
  void draw() {
    const std::string out = out_folder(settings);
    if (out.empty()) return;
    const NoGrad off;
    const bool training = generator->is_training();
    generator->eval();
    const Tensor pictures = (*generator)(sample_codes).to(DType::f32).to(Device::cpu());
    generator->train(training);
    const std::vector<float> values = pictures.contiguous().to_vector<float>();
    std::vector<std::uint8_t> grey(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float shade = std::clamp(values[i] * kScale.std + kScale.mean, 0.f, 1.f);
      grey[i] = static_cast<std::uint8_t>(std::lround((shade == shade ? shade : 0.f) * 255));
    }
    data::save_png(
        out + "/samples.png",
        data::contact_sheet(from_data<std::uint8_t>(grey, {pictures.size(0), kSide, kSide}, Device::cpu()), 8));
  }
};

}  // namespace levin::examples::gan
