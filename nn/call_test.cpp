#include "levin/nn/call.h"

#include <doctest/doctest.h>

#include <string>
#include <string_view>

#include "levin/autograd.h"
#include "levin/extend.h"
#include "levin/nn.h"
#include "tensor/device/launching.h"

using namespace levin;

namespace {

const nn::Options kCalled{.gen = Generator(1), .device = Device::cpu()};

std::string path_now() { return detail::path_text(detail::module_path_id()); }

// Writes down the reports.
struct Noted final : nn::CallWatch {
  std::string text;
  void list(std::span<const Tensor* const> tensors) {
    for (const Tensor* t : tensors) text += t->defined() ? " " + levin::text(t->shape()) : " none";
    text += "\n";
  }
  void called(const nn::Module& m, std::span<const Tensor* const> inputs) override {
    text += "> " + m.path();
    list(inputs);
  }
  void returned(const nn::Module& m, std::span<const Tensor* const> outputs) override {
    text += "= " + m.path();
    list(outputs);
  }
  void left(const nn::Module& m) noexcept override { text += "< " + m.path() + "\n"; }
};

struct CalledBlock : nn::Module {
  using Module::Module;
  nn::Linear fc{*this, "fc", {.in = 4, .out = 4}};
  Tensor operator()(const Tensor& x) const {
    const nn::Call call(*this, x);
    return call.gives(x + fc(x));
  }
};
struct CalledPlain : nn::Module {  // does not report
  using Module::Module;
  Tensor operator()(const Tensor& x) const { return x + x; }
};

// Every layer that is called with one tensor, its name, and the shapes of input and output.
template <class T, class... O>
std::string told(const Tensor& x, const O&... options) {
  nn::Module root(kCalled);
  const T layer(root, "m", options...);
  const Noted noted;
  (void)layer(x);
  const std::string& all = noted.text;
  // The outermost call's first and last lines.
  const std::string in = all.substr(0, all.find('\n')), rest = all.substr(0, all.rfind("< m\n"));
  const std::string out = rest.substr(rest.rfind("= m "));
  CHECK(all.ends_with("< m\n"));
  return in.substr(4) + " ->" + out.substr(3, out.size() - 4);
}

}  // namespace

TEST_CASE("a watch is told of calls from the outside in, with their tensors") {
  nn::Module root(kCalled);
  const CalledBlock block(root, "block");
  const Noted noted;
  (void)block(ones({2, 4}, Device::cpu()));
  CHECK(noted.text == "> block [2, 4]\n> block.fc [2, 4]\n= block.fc [2, 4]\n< block.fc\n= block [2, 4]\n< block\n");
}

TEST_CASE("a thread knows the path of the innermost call, until that ends, be it by what a watch throws") {
  struct Asking final : nn::CallWatch {
    std::string paths;
    bool throws = false;
    void called(const nn::Module& m, std::span<const Tensor* const>) override {
      paths += "> " + path_now();
      if (throws && m.name() == "fc") fail<StateError>("asking: enough");
    }
    void returned(const nn::Module&, std::span<const Tensor* const>) override { paths += "= " + path_now(); }
    void left(const nn::Module&) noexcept override { paths += "< " + path_now(); }
  };
  nn::Module root(kCalled);
  const CalledBlock block(root, "block");
  Asking asking;
  (void)block(ones({2, 4}, Device::cpu()));
  CHECK(asking.paths == "> block> block.fc= block.fc< block.fc= block< block");
  CHECK(path_now().empty());
  asking.throws = true;
  CHECK_THROWS_AS((void)block(ones({2, 4}, Device::cpu())), StateError);
  CHECK(path_now().empty());
  const nn::Call outer(block, Tensor());
  CHECK_THROWS_AS((void)block.fc(ones({2, 4}, Device::cpu())), StateError);
  CHECK(path_now() == "block");
}

TEST_CASE("all watches of a thread are told, the newest too, and none behind its end") {
  nn::Module root(kCalled);
  const nn::ReLU relu(root, "relu");
  const Noted outer;
  const Tensor x = ones({3}, Device::cpu());
  {
    const Noted inner;
    (void)relu(x);
    CHECK(inner.text == "> relu [3]\n= relu [3]\n< relu\n");
  }
  const std::string once = outer.text;
  CHECK(once == "> relu [3]\n= relu [3]\n< relu\n");
  (void)relu(x);
  CHECK(outer.text == once + once);
}

TEST_CASE("a call that throws is left all the same") {
  nn::Module root(kCalled);
  const CalledBlock block(root, "block");
  const Noted noted;
  CHECK_THROWS_AS((void)block(ones({2, 5}, Device::cpu())), ShapeError);
  CHECK(noted.text == "> block [2, 5]\n> block.fc [2, 5]\n< block.fc\n< block\n");
}

TEST_CASE("a sequence reports what is in it, also modules that do not") {
  nn::Sequential net(kCalled);
  net.add<CalledPlain>();
  net.add<nn::Linear>({.in = 4, .out = 3});
  const Noted noted;
  (void)net(ones({2, 4}, Device::cpu()));
  CHECK(noted.text.starts_with("> 0 [2, 4]\n= 0 [2, 4]\n< 0\n> 1 [2, 4]\n"));
  CHECK(noted.text.ends_with("= 1 [2, 3]\n< 1\n"));
}

TEST_CASE("every layer reports its call") {
  const Device cpu = Device::cpu();
  const Tensor image = ones({2, 4, 6, 6}, cpu), rows = ones({2, 4}, cpu), line = ones({2, 4, 6}, cpu);
  const Tensor volume = ones({2, 4, 2, 2, 2}, cpu);
  CHECK(told<nn::Linear>(rows, nn::LinearOptions{.in = 4, .out = 3}) == "[2, 4] -> [2, 3]");
  CHECK(told<nn::Conv1d>(line, nn::Conv1dOptions{.in = 4, .out = 3, .kernel = 3}) == "[2, 4, 6] -> [2, 3, 4]");
  CHECK(told<nn::Conv2d>(image, nn::Conv2dOptions{.in = 4, .out = 3, .kernel = 3}) == "[2, 4, 6, 6] -> [2, 3, 4, 4]");
  CHECK(told<nn::ConvTranspose2d>(image, nn::ConvTranspose2dOptions{.in = 4, .out = 3, .kernel = 3}) ==
        "[2, 4, 6, 6] -> [2, 3, 8, 8]");
  CHECK(told<nn::ConvTranspose1d>(line, nn::ConvTranspose1dOptions{.in = 4, .out = 3, .kernel = 3}) ==
        "[2, 4, 6] -> [2, 3, 8]");
  CHECK(told<nn::Conv3d>(volume, nn::Conv3dOptions{.in = 4, .out = 3, .kernel = 2}) ==
        "[2, 4, 2, 2, 2] -> [2, 3, 1, 1, 1]");
  CHECK(told<nn::ConvTranspose3d>(volume, nn::ConvTranspose3dOptions{.in = 4, .out = 3, .kernel = 2}) ==
        "[2, 4, 2, 2, 2] -> [2, 3, 3, 3, 3]");
  CHECK(told<nn::BatchNorm3d>(volume, nn::BatchNormOptions{.features = 4}) == "[2, 4, 2, 2, 2] -> [2, 4, 2, 2, 2]");
  CHECK(told<nn::InstanceNorm1d>(line, nn::InstanceNormOptions{.features = 4}) == "[2, 4, 6] -> [2, 4, 6]");
  CHECK(told<nn::InstanceNorm3d>(volume, nn::InstanceNormOptions{.features = 4}) ==
        "[2, 4, 2, 2, 2] -> [2, 4, 2, 2, 2]");
  CHECK(told<nn::Dropout1d>(line, nn::DropoutOptions{}) == "[2, 4, 6] -> [2, 4, 6]");
  CHECK(told<nn::Dropout2d>(image, nn::DropoutOptions{}) == "[2, 4, 6, 6] -> [2, 4, 6, 6]");
  CHECK(told<nn::Dropout3d>(volume, nn::DropoutOptions{}) == "[2, 4, 2, 2, 2] -> [2, 4, 2, 2, 2]");
  CHECK(told<nn::AlphaDropout>(rows, nn::DropoutOptions{}) == "[2, 4] -> [2, 4]");
  CHECK(told<nn::MaxPool1d>(line) == "[2, 4, 6] -> [2, 4, 3]");
  CHECK(told<nn::AvgPool1d>(line) == "[2, 4, 6] -> [2, 4, 3]");
  CHECK(told<nn::AdaptiveAvgPool1d>(line) == "[2, 4, 6] -> [2, 4, 1]");
  CHECK(told<nn::AdaptiveMaxPool1d>(line) == "[2, 4, 6] -> [2, 4, 1]");
  CHECK(told<nn::AdaptiveMaxPool2d>(image) == "[2, 4, 6, 6] -> [2, 4, 1, 1]");
  CHECK(told<nn::MaxPool3d>(volume) == "[2, 4, 2, 2, 2] -> [2, 4, 1, 1, 1]");
  CHECK(told<nn::AvgPool3d>(volume) == "[2, 4, 2, 2, 2] -> [2, 4, 1, 1, 1]");
  CHECK(told<nn::AdaptiveAvgPool3d>(volume) == "[2, 4, 2, 2, 2] -> [2, 4, 1, 1, 1]");
  CHECK(told<nn::AdaptiveMaxPool3d>(volume) == "[2, 4, 2, 2, 2] -> [2, 4, 1, 1, 1]");
  CHECK(told<nn::LPPool2d>(image) == "[2, 4, 6, 6] -> [2, 4, 3, 3]");
  CHECK(told<nn::PixelShuffle>(image, nn::PixelShuffleOptions{.upscale_factor = 2}) ==
        "[2, 4, 6, 6] -> [2, 1, 12, 12]");
  CHECK(told<nn::PixelUnshuffle>(image, nn::PixelUnshuffleOptions{.downscale_factor = 2}) ==
        "[2, 4, 6, 6] -> [2, 16, 3, 3]");
  CHECK(told<nn::ChannelShuffle>(image, nn::ChannelShuffleOptions{.groups = 2}) == "[2, 4, 6, 6] -> [2, 4, 6, 6]");
  CHECK(told<nn::BatchNorm1d>(rows, nn::BatchNormOptions{.features = 4}) == "[2, 4] -> [2, 4]");
  CHECK(told<nn::BatchNorm2d>(image, nn::BatchNormOptions{.features = 4}) == "[2, 4, 6, 6] -> [2, 4, 6, 6]");
  CHECK(told<nn::LayerNorm>(rows, nn::LayerNormOptions{.shape = 4}) == "[2, 4] -> [2, 4]");
  CHECK(told<nn::RMSNorm>(rows, nn::RMSNormOptions{.features = 4}) == "[2, 4] -> [2, 4]");
  CHECK(told<nn::GroupNorm>(image, nn::GroupNormOptions{.groups = 2, .features = 4}) == "[2, 4, 6, 6] -> [2, 4, 6, 6]");
  CHECK(told<nn::InstanceNorm2d>(image, nn::InstanceNorm2dOptions{.features = 4}) == "[2, 4, 6, 6] -> [2, 4, 6, 6]");
  CHECK(told<nn::Dropout>(rows, nn::DropoutOptions{}) == "[2, 4] -> [2, 4]");
  CHECK(told<nn::Embedding>(zeros({2, 5}, cpu, DType::i64), nn::EmbeddingOptions{.count = 3, .dim = 4}) ==
        "[2, 5] -> [2, 5, 4]");
  CHECK(told<nn::ReLU>(rows) == "[2, 4] -> [2, 4]");
  CHECK(told<nn::SiLU>(rows) == "[2, 4] -> [2, 4]");
  CHECK(told<nn::Tanh>(rows) == "[2, 4] -> [2, 4]");
  CHECK(told<nn::Sigmoid>(rows) == "[2, 4] -> [2, 4]");
  CHECK(told<nn::Identity>(rows) == "[2, 4] -> [2, 4]");
  CHECK(told<nn::GELU>(rows) == "[2, 4] -> [2, 4]");
  CHECK(told<nn::LeakyReLU>(rows) == "[2, 4] -> [2, 4]");
  CHECK(told<nn::ELU>(rows) == "[2, 4] -> [2, 4]");
  CHECK(told<nn::Softplus>(rows) == "[2, 4] -> [2, 4]");
  CHECK(told<nn::Mish>(rows) == "[2, 4] -> [2, 4]");
  CHECK(told<nn::Hardswish>(rows) == "[2, 4] -> [2, 4]");
  CHECK(told<nn::Hardsigmoid>(rows) == "[2, 4] -> [2, 4]");
  CHECK(told<nn::ReLU6>(rows) == "[2, 4] -> [2, 4]");
  CHECK(told<nn::SELU>(rows) == "[2, 4] -> [2, 4]");
  CHECK(told<nn::Softsign>(rows) == "[2, 4] -> [2, 4]");
  CHECK(told<nn::CELU>(rows) == "[2, 4] -> [2, 4]");
  CHECK(told<nn::Hardtanh>(rows) == "[2, 4] -> [2, 4]");
  CHECK(told<nn::GLU>(rows) == "[2, 4] -> [2, 2]");
  CHECK(told<nn::PReLU>(rows) == "[2, 4] -> [2, 4]");
  CHECK(told<nn::LogSoftmax>(rows) == "[2, 4] -> [2, 4]");
  CHECK(told<nn::Softmax>(rows) == "[2, 4] -> [2, 4]");
  CHECK(told<nn::Flatten>(image) == "[2, 4, 6, 6] -> [2, 144]");
  CHECK(told<nn::MaxPool2d>(image) == "[2, 4, 6, 6] -> [2, 4, 3, 3]");
  CHECK(told<nn::AvgPool2d>(image) == "[2, 4, 6, 6] -> [2, 4, 3, 3]");
  CHECK(told<nn::AdaptiveAvgPool2d>(image) == "[2, 4, 6, 6] -> [2, 4, 1, 1]");
  CHECK(told<nn::Upsample>(image, nn::UpsampleOptions{.size = 9}) == "[2, 4, 6, 6] -> [2, 4, 9, 9]");
  CHECK(told<nn::UpsamplingNearest2d>(image, nn::Upsampling2dOptions{.size = 9}) == "[2, 4, 6, 6] -> [2, 4, 9, 9]");
  CHECK(told<nn::UpsamplingBilinear2d>(image, nn::Upsampling2dOptions{.size = 9}) == "[2, 4, 6, 6] -> [2, 4, 9, 9]");
  CHECK(told<nn::MultiheadAttention>(line, nn::MultiheadAttentionOptions{.embed_dim = 6, .num_heads = 2}) ==
        "[2, 4, 6] [2, 4, 6] [2, 4, 6] -> [2, 4, 6]");
  CHECK(told<nn::TransformerEncoderLayer>(
            line, nn::TransformerEncoderLayerOptions{.d_model = 6, .nhead = 2, .dim_feedforward = 8}) ==
        "[2, 4, 6] -> [2, 4, 6]");
  CHECK(told<nn::TransformerEncoder>(
            line, nn::TransformerEncoderOptions{.layer = {.d_model = 6, .nhead = 2, .dim_feedforward = 8}}) ==
        "[2, 4, 6] -> [2, 4, 6]");
  CHECK(told<nn::RNNCell>(rows, nn::RNNCellOptions{.in = 4, .hidden = 3}) == "[2, 4] none -> [2, 3]");
  CHECK(told<nn::RNN>(line, nn::RecurrentOptions{.in = 6, .hidden = 3}) == "[2, 4, 6] none -> [2, 4, 3] [1, 4, 3]");
  CHECK(told<nn::EmbeddingBag>(zeros({2, 5}, cpu, DType::i64), nn::EmbeddingBagOptions{.count = 3, .dim = 4}) ==
        "[2, 5] none none -> [2, 4]");
  CHECK(told<nn::LSTMCell>(rows, nn::CellOptions{.in = 4, .hidden = 3}) == "[2, 4] none none -> [2, 3] [2, 3]");
  CHECK(told<nn::GRUCell>(rows, nn::CellOptions{.in = 4, .hidden = 3}) == "[2, 4] none -> [2, 3]");
  CHECK(told<nn::LSTM>(line, nn::RecurrentOptions{.in = 6, .hidden = 3}) ==
        "[2, 4, 6] none none -> [2, 4, 3] [1, 4, 3] [1, 4, 3]");
  CHECK(told<nn::GRU>(line, nn::RecurrentOptions{.in = 6, .hidden = 3}) == "[2, 4, 6] none -> [2, 4, 3] [1, 4, 3]");
}

// ---- Errors name the layer

namespace {

template <class E, class F>
E thrown_by(const F& f) {
  try {
    f();
  } catch (const E& e) { return e; }
  FAIL("nothing of that type was thrown");
  throw;
}
int count_of(std::string_view text, std::string_view part) {
  int n = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

// Its backward throws for every input.
constexpr int kBadLine = __LINE__ + 4;
struct BadBackward {
  static constexpr OpInfo info{.name = "bad"};
  Tensor forward(const Tensor& x) { return x + 0; }
  Grads<1> backward(const Tensor&, NeedMask) { fail<ShapeError>("inside: no gradient is right"); }
};
struct CalledBad : nn::Module {
  using Module::Module;
  Tensor operator()(const Tensor& x) const {
    const nn::Call call(*this, x);
    return call.gives(apply(BadBackward{}, x));
  }
};
struct CalledCheckpoint : nn::Module {
  using Module::Module;
  CalledBad bad{*this, "bad"};
  Tensor operator()(const Tensor& x) const {
    const nn::Call call(*this, x);
    return call.gives(checkpoint([&](std::span<const Tensor> in) { return Tensors{bad(in[0])}; }, Tensors{x})[0]);
  }
};

}  // namespace

TEST_CASE("an error in a nested module begins with the module's path, and keeps its type and its place") {
  nn::Module root(kCalled);
  nn::Sequential encoder(root, "encoder");
  const auto& block = encoder.add<CalledBlock>();
  const Tensor wrong = ones({2, 5}, Device::cpu());
  const auto outside = thrown_by<ShapeError>([&] { (void)linear(wrong, block.fc.weight); });
  CHECK(outside.module_path().empty());
  CHECK(std::string(outside.what()) == outside.message());
  const auto e = thrown_by<ShapeError>([&] { (void)encoder(wrong); });
  CHECK(std::string(e.what()) == "in encoder.0.fc: " + std::string(outside.message()));
  CHECK(e.module_path() == "encoder.0.fc");
  CHECK(e.op() == "linear");
  CHECK(e.where().line() == outside.where().line());
  // Errors do not name a call that has ended, by an exception too.
  CHECK(thrown_by<ShapeError>([&] { (void)linear(wrong, block.fc.weight); }).module_path().empty());
}

TEST_CASE("a root has no path, and one that another module calls is named by that module") {
  const CalledBlock root(kCalled);
  const Tensor wrong = ones({2, 5}, Device::cpu());
  CHECK(thrown_by<ShapeError>([&] { (void)root(wrong); }).module_path() == "fc");
  const auto bare = [&](const nn::Module& m) {
    const nn::Call call(m, wrong);
    (void)matmul(wrong, wrong);
  };
  CHECK(thrown_by<ShapeError>([&] { bare(root); }).module_path().empty());
  nn::Module other(kCalled);
  const nn::Identity caller(other, "caller");
  const nn::Call call(caller, wrong);
  CHECK(thrown_by<ShapeError>([&] { bare(root); }).module_path() == "caller");
}

TEST_CASE("an error in the backward of a nested module begins with the path, also when the module is gone") {
  Tensor x = ones({3}, Device::cpu());
  x.requires_grad_();
  Tensor y;
  {
    nn::Module root(kCalled);
    nn::Sequential encoder(root, "encoder");
    encoder.add<CalledBad>();
    y = encoder(x);
  }
  const Tensor seed = ones({3}, Device::cpu());
  const auto e = thrown_by<ShapeError>([&] { backward(y, seed); });
  CHECK(std::string(e.what()) ==
        "in encoder.0: bad: in its backward, with gradients [3]: inside: no gradient is right");
  CHECK(e.where().line() == kBadLine);
  // An op outside of modules has no path.
  const auto plain = thrown_by<ShapeError>([&] { backward(apply(BadBackward{}, x), seed); });
  CHECK(plain.module_path().empty());
  CHECK(std::string(plain.what()).starts_with("bad: in its backward"));
}

TEST_CASE("a stale saved tensor and a freed graph name the module of their op") {
  nn::Module root(kCalled);
  const CalledBlock block(root, "block");
  Tensor x = ones({2, 4}, Device::cpu());
  x.requires_grad_();
  const Tensor y = sum(block(x));
  backward(y);
  CHECK(thrown_by<AutogradError>([&] { backward(y); }).module_path().empty());  // of sum, which stands outside
  const Tensor z = block(x), seed = ones({2, 4}, Device::cpu());
  {
    const NoGrad off;
    fill_(const_cast<nn::Parameter&>(block.fc.weight), 1);
  }
  const auto stale = thrown_by<AutogradError>([&] { backward(z, seed); });
  CHECK(stale.module_path() == "block.fc");
  CHECK(count_of(stale.what(), "in block") == 1);
}

TEST_CASE("an error that is told again by the op around it has the path of the inner module, once") {
  nn::Module root(kCalled);
  const CalledCheckpoint outer(root, "outer");
  Tensor x = ones({3}, Device::cpu());
  x.requires_grad_();
  const Tensor y = outer(x);
  const auto e = thrown_by<ShapeError>([&] { backward(y, ones({3}, Device::cpu())); });
  CHECK(e.module_path() == "outer.bad");
  CHECK(count_of(e.what(), "in outer") == 1);
  CHECK(e.where().line() == kBadLine);
}

TEST_CASE("what a layer itself refuses names the layer as well") {
  nn::Module root(kCalled);
  const nn::BatchNorm1d batch1(root, "batch1", {.features = 4});
  const nn::BatchNorm2d batch2(root, "batch2", {.features = 4});
  const nn::GroupNorm group(root, "group", {.groups = 2, .features = 4});
  const nn::InstanceNorm2d instance(root, "instance", {.features = 4});
  const nn::BatchNorm3d batch3(root, "batch3", {.features = 4});
  const nn::Dropout2d drop(root, "drop");
  const Tensor wrong = ones({4}, Device::cpu());
  CHECK(thrown_by<ShapeError>([&] { (void)batch1(wrong); }).module_path() == "batch1");
  CHECK(thrown_by<ShapeError>([&] { (void)batch2(wrong); }).module_path() == "batch2");
  CHECK(thrown_by<ShapeError>([&] { (void)batch3(wrong); }).module_path() == "batch3");
  CHECK(thrown_by<ShapeError>([&] { (void)drop(wrong); }).module_path() == "drop");
  CHECK(thrown_by<ShapeError>([&] { (void)group(wrong); }).module_path() == "group");
  CHECK(thrown_by<ShapeError>([&] { (void)instance(wrong); }).module_path() == "instance");
}
