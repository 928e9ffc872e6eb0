// Modules that run in checkpoints because a policy takes them.
#include "levin/nn/checkpoint_policy.h"

#include <doctest/doctest.h>

#include <cstring>
#include <string>

#include "levin/nn/layers.h"
#include "levin/nn/sequential.h"
#include "levin/ops.h"

using namespace levin;

namespace {

struct Block : nn::Module {
  Block(nn::Module& parent, const std::string& name)
      : Module(parent, name), fc(*this, "fc", {.in = 8, .out = 8}), drop(*this, "drop", {.p = 0.5}) {}
  nn::Linear fc;
  nn::Dropout drop;
  mutable int calls = 0;
  Tensor operator()(const Tensor& x) const {
    const nn::Call call(*this, x);
    ++calls;
    return call.gives(x + drop(tanh(fc(x))));
  }
};
struct Net : nn::Module {
  explicit Net() : Module(nn::Options{.gen = Generator(3), .device = Device::cpu()}) {
    for (int i = 0; i < 3; ++i) list.add();
    for (int i = 0; i < 2; ++i) sequence.add<Block>();
  }
  nn::ModuleList<Block> list{*this, "list"};
  nn::Sequential sequence{*this, "sequence"};
  Tensor operator()(const Tensor& x) const {
    Tensor h = x;
    for (const Block& b : list) h = nn::run(b, h);
    return sequence(h);
  }
};
bool is_block(const nn::Module& m) { return dynamic_cast<const Block*>(&m) != nullptr; }

// The gradients of two backward passes, and how often the first block ran.
struct Outcome {
  std::vector<float> values;
  int calls = 0;
};
Outcome train(const Function<bool(const nn::Module&)>& takes) {
  Net net;
  Generator gen(5);
  const Tensor x = randn({4, 8}, gen, Device::cpu());
  Outcome out;
  for (int pass = 0; pass < 2; ++pass) {
    Tensor loss;
    if (takes) {
      const nn::CheckpointPolicy policy(takes);
      loss = sum(square(net(x)));
    } else {
      loss = sum(square(net(x)));
    }
    backward(loss);
    out.values.push_back(loss.item<float>());
  }
  for (const ParamRef& p : net.parameters()) {
    const std::vector<float> g = p.value->grad().to_vector<float>();
    out.values.insert(out.values.end(), g.begin(), g.end());
  }
  out.calls = net.list[0].calls;
  return out;
}

}  // namespace

TEST_CASE("modules that a policy takes run again in backward, with the same bits and draws") {
  const Outcome plain = train({});
  CHECK(plain.calls == 2);
  const Outcome blocks = train(is_block);
  CHECK(blocks.calls == 4);
  CHECK(blocks.values == plain.values);
  // A taken module within one that runs in a checkpoint already is a part of that.
  const Outcome nested = train([](const nn::Module& m) { return is_block(m) || m.name() == "drop"; });
  CHECK(nested.calls == 4);
  CHECK(nested.values == plain.values);
  const Outcome none = train([](const nn::Module&) { return false; });
  CHECK(none.calls == 2);
  CHECK(none.values == plain.values);
}

TEST_CASE("a module that a policy takes and that is called otherwise is an error that names it") {
  const Net net;
  const Tensor x = ones({4, 8}, Device::cpu());
  const nn::CheckpointPolicy policy([](const nn::Module& m) { return m.name() == "fc"; });
  CHECK_THROWS_WITH_AS((void)net(x), doctest::Contains("the activation checkpoint policy takes list.0.fc"),
                       ConfigError);
  {
    const nn::CheckpointPolicy inner(is_block);
    CHECK_NOTHROW((void)net(x));
  }
  CHECK_THROWS_AS((void)net(x), ConfigError);
  CHECK_THROWS_AS(nn::CheckpointPolicy({}), ConfigError);
}
