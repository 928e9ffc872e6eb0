// Parametrizations against PyTorch's numbers, their names, their derivatives, and what happens to the layer.
#include "levin/nn/parametrize.h"

#include <doctest/doctest.h>

#include <cmath>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "levin/autograd.h"
#include "levin/nn/layers.h"
#include "levin/nn/sequential.h"
#include "levin/ops.h"
#include "levin/optim.h"
#include "levin/stream.h"
#include "tests/device.h"
#include "tests/skip.h"

namespace levin::nn {
namespace {

const Device cpu = Device::cpu();

struct Root : Module {
  explicit Root(Device device = cpu, DType dtype = DType::f64)
      : Module(Options{.gen = Generator(3), .device = device, .dtype = dtype}) {}
};
struct Small : Root {
  Linear fc{*this, "fc", {.in = 3, .out = 2}};
  using Root::Root;
  // The weight and bias of PyTorch's side.
  void set() {
    const NoGrad off;
    copy_(fc.weight, view(tensor({0.5, -1.0, 2.0, 1.5, 0.25, -0.75}, cpu).to(fc.weight.dtype()).to(device()), {2, 3}));
    copy_(fc.bias, tensor({0.1, -0.2}, cpu).to(fc.weight.dtype()).to(device()));
  }
};
std::vector<std::string> names(const Module& m) {
  std::vector<std::string> out;
  for (const auto& [name, value] : m.state_dict()) out.push_back(name);
  return out;
}
std::vector<std::string> trained(Module& m) {
  std::vector<std::string> out;
  for (const ParamRef& p : m.parameters()) out.push_back(p.name);
  return out;
}
Tensor input(Device device = cpu, DType dtype = DType::f64) {
  return view(tensor({1.0, 2.0, -1.0, 0.5, 0.0, 3.0}, cpu).to(dtype).to(device), {2, 3});
}
void check(const Tensor& got, const std::vector<double>& want, double tolerance = 1e-13) {
  const auto values = got.detach().to(cpu).to(DType::f64).contiguous().to_vector<double>();
  REQUIRE(values.size() == want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(values[i] - want[i]) <= tolerance * (1 + std::abs(want[i])));
  }
}
void set(const Tensor& to, const std::vector<double>& values) {
  const NoGrad off;
  Tensor target = to;
  copy_(target, from_data(values, to.shape(), cpu).to(to.dtype()).to(to.device()));
}
// The largest singular value.
double spectral(const Tensor& weight) {
  const Tensor w = flatten(weight.detach(), 1);
  Tensor v = ones({w.shape()[1], 1}, cpu, DType::f64);
  for (int i = 0; i < 2000; ++i) v = normalize(matmul(transpose(w, 0, 1), matmul(w, v)), 2, 0);
  return norm(matmul(w, v)).item();
}

}  // namespace

TEST_CASE("weight normalization has PyTorch's names, values and gradients") {
  Small net;
  net.set();
  WeightNorm norm(net.fc);
  const std::vector<std::string> want{"fc.bias", "fc.parametrizations.weight.original0",
                                      "fc.parametrizations.weight.original1"};
  CHECK(names(net) == want);
  CHECK(trained(net) == want);
  CHECK(norm.original0.shape() == Shape{2, 1});
  const Linear& fc = net.fc;
  const Tensor same = linear(input(), norm.original1, fc.bias);  // at first nothing changes
  check(fc(input()), same.detach().to_vector<double>());
  set(norm.original0, {2, 0.5});
  const Tensor y = fc(input());
  check(y, {-2.9550504633038934, 0.6109307588519342, 5.55544725589981, -0.6423258684646915});
  backward(sum(y * y));
  check(norm.original0.grad(), {39.33527777449769, 3.1181595659510752});
  check(norm.original1.grad(), {-7.802000964954466, 4.667349681329091, 4.284175081903154, -0.6425371906774614,
                                0.5850424542412481, -1.0900602299411735});
  CHECK_FALSE(fc.weight.grad().defined());
}

TEST_CASE("spectral normalization has PyTorch's names, values, gradients and vectors") {
  Small net;
  net.set();
  SpectralNorm norm(net.fc);
  CHECK(names(net) == std::vector<std::string>{"fc.bias", "fc.parametrizations.weight.original",
                                               "fc.parametrizations.weight.0._u", "fc.parametrizations.weight.0._v"});
  CHECK(trained(net) == std::vector<std::string>{"fc.bias", "fc.parametrizations.weight.original"});
  const auto buffers = net.buffers();
  set(*buffers[0].value, {0.6, 0.8});
  set(*buffers[1].value, {0, 0.6, 0.8});
  const Tensor y = net.fc(input());
  check(y, {-1.3792190298945812, 0.9622435234885998, 2.741462553383181, -0.8339510128119634});
  backward(sum(y * y));
  check(norm.original.grad(), {0.5609973731777785, 1.2803298277601458, 0.5284696904515078, 0.2052203058042748,
                               0.0013301665380902605, 0.48702832009692676});
  const std::vector<double> u{0.9119215051751063, -0.4103646773287979},
      v{-0.06744658221125638, -0.4287675583429868, 0.9008936338217811};
  check(*buffers[0].value, u);
  check(*buffers[1].value, v);
  net.eval();  // the vectors stay
  (void)net.fc(input());
  check(*buffers[0].value, u);
  net.train();
  for (int i = 0; i < 50; ++i) (void)net.fc(input());
  CHECK(std::abs(spectral(net.fc.weight) - 1) <= 1e-12);
}

TEST_CASE("weights of convolutions are normalized over their outputs, or over the dimension that is asked for") {
  struct Net : Root {
    Conv2d conv{*this, "conv", {.in = 2, .out = 3, .kernel = 3}};
    ConvTranspose2d up{*this, "up", {.in = 3, .out = 4, .kernel = 2}};
    Conv1d line{*this, "line", {.in = 2, .out = 3, .kernel = 2}};
    Linear fc{*this, "fc", {.in = 3, .out = 4}};
  } net;
  SpectralNorm conv(net.conv, {.n_power_iterations = 40}), up(net.up, {.n_power_iterations = 40});
  WeightNorm line(net.line, {.dim = 1}), all(net.fc, {.dim = std::nullopt});
  SpectralNorm bias(net.fc, {.name = "bias"});
  CHECK(conv.buffers()[0].value->shape() == Shape{3});
  CHECK(conv.buffers()[1].value->shape() == Shape{18});
  CHECK(up.buffers()[0].value->shape() == Shape{4});
  CHECK(bias.buffers().empty());
  CHECK(line.original0.shape() == Shape{1, 2, 1});
  CHECK(all.original0.shape() == Shape{});
  Generator gen(5);
  const Tensor image = randn({1, 2, 5, 5}, gen, cpu, DType::f64);
  CHECK(net.up(net.conv(image)).shape() == Shape{1, 4, 4, 4});
  CHECK(std::abs(spectral(net.conv.weight) - 1) <= 1e-9);
  CHECK(std::abs(spectral(transpose(net.up.weight, 0, 1).contiguous()) - 1) <= 1e-9);
  set(line.original0, {2, 3});
  (void)net.line(randn({1, 2, 4}, gen, cpu, DType::f64));
  for (const std::int64_t k : {0, 1})
    CHECK(norm(select(net.line.weight.detach(), 1, k)).item() == doctest::Approx(2 + double(k)));
  set(all.original0, {7});
  (void)net.fc(randn({1, 3}, gen, cpu, DType::f64));
  CHECK(norm(net.fc.weight.detach()).item() == doctest::Approx(7));
  CHECK(norm(net.fc.bias.detach()).item() == doctest::Approx(1));
  CHECK(trained(net.fc) == std::vector<std::string>{"parametrizations.weight.original0",
                                                    "parametrizations.weight.original1",
                                                    "parametrizations.bias.original"});
}

TEST_CASE("a penalty of the gradient is differentiated through both normalizations") {
  for (const bool is_spectral : {true, false}) {
    CAPTURE(is_spectral);
    Small net;
    net.set();
    std::optional<SpectralNorm> by_value;
    std::optional<WeightNorm> by_row;
    if (is_spectral)
      by_value.emplace(net.fc);
    else
      by_row.emplace(net.fc);
    net.eval();  // fixed vectors: the loss is a function of the originals
    Tensor& original = is_spectral ? by_value->original : by_row->original1;
    const auto loss = [&] {
      Tensor x = input().detach();
      x.requires_grad_();
      const Tensor score = sum(tanh(net.fc(x)));
      const Tensor slope = grad(score, std::span(&x, 1), {.create_graph = true})[0];
      const Tensor excess = norm(slope, 2, 1) - 1;
      return sum(excess * excess);
    };
    backward(loss());
    const auto got = original.grad().to_vector<double>();
    const auto at = original.detach().to_vector<double>();
    for (std::size_t i = 0; i < at.size(); ++i) {
      double side[2];
      for (const int k : {0, 1}) {
        auto moved = at;
        moved[i] += k ? 1e-6 : -1e-6;
        set(original, moved);
        side[k] = loss().item();
      }
      set(original, at);
      CHECK(std::abs((side[1] - side[0]) / 2e-6 - got[i]) <= 1e-7);
    }
  }
}

TEST_CASE("a state of one net is loaded by another, and the weight follows the optimizer") {
  Small a, b;
  SpectralNorm of_a(a.fc), of_b(b.fc);
  optim::SGD sgd(a.parameters(), {.lr = 0.1});
  for (int i = 0; i < 3; ++i) {
    sgd.zero_grad();
    backward(sum(a.fc(input())));
    sgd.step();
  }
  CHECK(b.load_state_dict(a.state_dict()).complete());
  a.eval();
  b.eval();
  CHECK(a.fc(input()).to_vector<double>() == b.fc(input()).to_vector<double>());
}

TEST_CASE("a parametrization that ends leaves its last value as a parameter, and wrong names are refused") {
  Small net;
  net.set();
  const std::vector<std::string> before = trained(net);
  {
    WeightNorm norm(net.fc);
    set(norm.original0, {2, 0.5});
    (void)net.fc(input());
    CHECK_THROWS_WITH_AS(WeightNorm(net.fc), doctest::Contains("has no parameter weight"), ConfigError);
    CHECK_THROWS_WITH_AS(SpectralNorm(net.fc, {.name = "wieght"}), doctest::Contains("expected one of its own: bias"),
                         ConfigError);
    CHECK_THROWS_AS(SpectralNorm(net, {.name = "fc.bias"}), ConfigError);
  }
  CHECK(trained(net) == before);
  CHECK(net.fc.weight.is_leaf());
  CHECK(norm(select(net.fc.weight.detach(), 0, 1)).item() == doctest::Approx(0.5));
  backward(sum(net.fc(input())));
  CHECK(net.fc.weight.grad().defined());
  CHECK_THROWS_WITH_AS(WeightNorm(net.fc, {.dim = 2}), doctest::Contains("weight_norm: dim is 2"), ConfigError);
  CHECK_THROWS_WITH_AS(SpectralNorm(net.fc, {.n_power_iterations = 0}), doctest::Contains("n_power_iterations is 0"),
                       ConfigError);
  CHECK_THROWS_AS(SpectralNorm(net.fc, {.eps = std::nan("")}), ConfigError);
  CHECK(trained(net) == before);
  // The layer may go first.
  auto layer = std::make_unique<Small>();
  auto norm = std::make_unique<WeightNorm>(layer->fc);
  layer.reset();
  norm.reset();
}

TEST_CASE("a parametrization of one's own sets the weight of each call") {
  struct Doubled : Parametrization {
    explicit Doubled(Module& layer) : Parametrization(layer, "weight") {}
    Tensor compute() override { return original * 2; }
    Parameter original{*this, "original", first()};
  };
  Small net;
  net.set();
  const Tensor once = matmul(input(), transpose(net.fc.weight.detach().clone(), 0, 1));
  const Doubled doubled(net.fc);
  check(net.fc(input()) - net.fc.bias, (once * 2).to_vector<double>());
  // Also where calls are watched.
  struct Watch : CallWatch {
    void called(const Module&, std::span<const Tensor* const>) override {}
    void returned(const Module&, std::span<const Tensor* const>) override {}
  } watch;
  set(doubled.original, {1, 0, 0, 0, 1, 0});
  check(net.fc(input()) - net.fc.bias, {2, 4, 1, 0});
}

TEST_CASE("on a device normalized weights equal those of the cpu, also in a recorded call") {
  DEVICE_OR_SKIP();
  Small here(cpu, DType::f32), there(device, DType::f32);
  here.set();
  there.set();
  SpectralNorm of_here(here.fc), of_there(there.fc);
  CHECK(there.load_state_dict(here.state_dict()).complete());
  const Tensor x = input(device, DType::f32);
  Tensor y = there.fc(x);
  check(y, here.fc(input(cpu, DType::f32)).to(DType::f64).to_vector<double>(), 1e-6);
  Graph graph(Stream::current(device), [&] { y = there.fc(x); });
  for (int i = 0; i < 2; ++i) {
    graph.replay();
    check(y, here.fc(input(cpu, DType::f32)).to(DType::f64).to_vector<double>(), 1e-6);
  }
}

}  // namespace levin::nn
