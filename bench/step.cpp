// Benchmarks of whole training steps: forward, backward and update of the MNIST models on batches in memory, and an
// optimizer step over many tiny tensors.
#include "bench/main.h"
#include "levin/levin.h"

namespace levin {
namespace {

const Device cpu = Device::cpu();

struct Mlp : nn::Module {
  using Module::Module;
  nn::Linear fc1{*this, "fc1", {.in = 784, .out = 512}};
  nn::Linear fc2{*this, "fc2", {.in = 512, .out = 512}};
  nn::Linear fc3{*this, "fc3", {.in = 512, .out = 10}};
  Tensor operator()(const Tensor& x) const { return fc3(relu(fc2(relu(fc1(flatten(x, 1)))))); }
};

struct SmallMlp : nn::Module {
  using Module::Module;
  nn::Linear fc1{*this, "fc1", {.in = 784, .out = 128}};
  nn::Linear fc2{*this, "fc2", {.in = 128, .out = 10}};
  Tensor operator()(const Tensor& x) const { return fc2(relu(fc1(flatten(x, 1)))); }
};

struct LeNet : nn::Module {
  using Module::Module;
  nn::Conv2d conv1{*this, "conv1", {.in = 1, .out = 32, .kernel = 5, .padding = 2}};
  nn::Conv2d conv2{*this, "conv2", {.in = 32, .out = 64, .kernel = 5, .padding = 2}};
  nn::Linear fc1{*this, "fc1", {.in = 64 * 7 * 7, .out = 256}};
  nn::Linear fc2{*this, "fc2", {.in = 256, .out = 10}};
  Tensor operator()(const Tensor& images) const {
    Tensor x = max_pool2d(relu(conv1(images)), 2);
    x = max_pool2d(relu(conv2(x)), 2);
    return fc2(relu(fc1(flatten(x, 1))));
  }
};

template <class Net>
void train_step(benchmark::State& state) {
  Generator gen(1);
  Net net({.gen = gen, .device = cpu});
  optim::Adam opt(net.parameters(), {.lr = 1e-3});
  const std::int64_t batch = state.range(0);
  const Tensor images = rand({batch, 1, 28, 28}, gen, cpu), labels = randint(0, 10, {batch}, gen, cpu);
  for (auto _ : state) {
    const Tensor loss = cross_entropy(net(images), labels);
    opt.zero_grad();
    backward(loss);
    opt.step();
  }
  state.SetItemsProcessed(state.iterations() * batch);
}
BENCHMARK(train_step<SmallMlp>)->Name("mnist_mlp_128_step")->Arg(64)->UseRealTime();
BENCHMARK(train_step<Mlp>)->Name("mnist_mlp_512_step")->Arg(64)->UseRealTime();
BENCHMARK(train_step<LeNet>)->Name("mnist_cnn_step")->Arg(64)->UseRealTime();

template <class O>
void optimizer_step(benchmark::State& state) {
  constexpr int kTensors = 100;
  std::vector<Tensor> values;
  for (int i = 0; i < kTensors; ++i) {
    values.push_back(ones({4}, cpu));
    values.back().requires_grad_();
    values.back().set_grad(ones({4}, cpu));
  }
  optim::Parameters parameters;
  for (int i = 0; i < kTensors; ++i)
    parameters.push_back({&values[static_cast<std::size_t>(i)], std::to_string(i), nullptr});
  O opt(parameters, {.lr = 1e-4});
  for (auto _ : state) opt.step();
}
BENCHMARK(optimizer_step<optim::AdamW>)->Name("adamw_100_tiny");
BENCHMARK(optimizer_step<optim::SGD>)->Name("sgd_100_tiny");

}  // namespace
}  // namespace levin

LEVIN_BENCHMARK_MAIN()
