// How many kernels, copies and fills the recorded steps of bench_step are. The numbers are limits: a step that costs
// more of them than it did has lost a fused kernel.
#include <doctest/doctest.h>

#include "bench/step_models.h"

namespace levin::bench {
namespace {

template <class Loss>
int nodes_of_step(optim::Optimizer& optimizer, const Loss& loss) {
  const auto step = [&] {
    const Tensor now = loss();
    optimizer.zero_grad();
    backward(now);
    optimizer.step();
  };
  step();  // the optimizer's state is made in the first step
  return Graph(Stream::current(Device::simt()), step).nodes();
}

template <class Net>
int nodes_of_digits(std::int64_t batch) {
  const Device simt = Device::simt();
  Generator generator(1);
  Net net(nn::Options{.gen = generator, .device = simt});
  optim::Adam optimizer(net.parameters(), {.lr = 1e-3});
  const Tensor images = rand({batch, 1, 28, 28}, generator, simt), labels = randint(0, 10, {batch}, generator, simt);
  return nodes_of_step(optimizer, [&] { return cross_entropy(net(images), labels); });
}

// Forward, loss, backward and update under bf16.
int nodes_of_gpt(std::int64_t blocks) {
  const Device simt = Device::simt();
  Generator generator(1);
  Gpt net({.gen = generator, .device = simt}, {.layers = blocks, .width = 64, .heads = 2, .words = 128});
  optim::AdamW optimizer(net.parameters(), {.lr = 3e-4});
  const Tensor tokens = randint(0, 128, {1, 64}, generator, simt), next = randint(0, 128, {64}, generator, simt);
  CastPlan plan;
  return nodes_of_step(optimizer, [&] {
    const Autocast in_16_bits(DType::bf16, plan);
    return cross_entropy(net(tokens), next);
  });
}

}  // namespace

TEST_CASE("on simt, a recorded step of the MNIST MLP is at most 12 nodes, of the CNN 30, of a two-layer GCN 16") {
  const Device simt = Device::simt();
  const int mlp = nodes_of_digits<SmallMlp>(8), cnn = nodes_of_digits<LeNet>(1);
  Generator generator(1);
  const Csr a = checked(with_transpose({.crow = arange(0, 33, 4, Device::cpu()),
                                        .col = randint(0, 8, {32}, generator, Device::cpu()),
                                        .cols = 8}))
                    .to(simt);
  const Tensor weight = full({32}, 0.25, simt), x = rand({8, 12}, generator, simt),
               labels = randint(0, 7, {8}, generator, simt);
  Gcn net({.gen = generator, .device = simt}, 12);
  optim::Adam optimizer(net.parameters(), {.lr = 1e-2});
  const int gcn = nodes_of_step(optimizer, [&] { return cross_entropy(net(a, weight, x), labels); });
  MESSAGE("nodes: MLP " << mlp << ", CNN " << cnn << ", GCN " << gcn);
  CHECK(mlp <= 12);
  CHECK(cnn <= 30);
  CHECK(gcn <= 16);
}

TEST_CASE("on simt, a block of GPT-2 adds at most 27 nodes to a recorded step: 9 forward and 18 backward") {
  const int one = nodes_of_gpt(1), two = nodes_of_gpt(2);
  MESSAGE("nodes: one block " << one << ", two blocks " << two);
  CHECK(two - one <= 27);
}

}  // namespace levin::bench
