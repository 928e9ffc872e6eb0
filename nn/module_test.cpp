#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "levin/autograd.h"
#include "levin/nn.h"
#include "levin/ops.h"
#include "tensor/text/type_name.h"
#include "tests/device.h"

namespace levin {
namespace {

const Device cpu = Device::cpu();

struct LeNet : nn::Module {
  using Module::Module;
  nn::Conv2d conv1{*this, "conv1", {.in = 1, .out = 32, .kernel = 5, .padding = 2}};
  nn::Conv2d conv2{*this, "conv2", {.in = 32, .out = 64, .kernel = 5, .padding = 2}};
  nn::Linear fc1{*this, "fc1", {.in = 64 * 7 * 7, .out = 256}};
  nn::Linear fc2{*this, "fc2", {.in = 256, .out = 10}};
  Tensor operator()(const Tensor& images) const {  // [N, 1, 28, 28] -> [N, 10] logits
    Tensor x = max_pool2d(relu(conv1(images)), 2);
    x = max_pool2d(relu(conv2(x)), 2);
    return fc2(relu(fc1(flatten(x, 1))));
  }
};

struct Block : nn::Module {
  using Module::Module;
  nn::Linear fc{*this, "fc", {.in = 3, .out = 3, .bias = false}};
  nn::BatchNorm1d bn{*this, "bn", {.features = 3}};
  nn::Dropout drop{*this, "drop", {.p = 0.1}};
  Tensor operator()(const Tensor& x) const { return drop(relu(bn(fc(x)))); }
};

struct Net : nn::Module {
  using Module::Module;
  nn::ModuleList<Block> blocks{*this, "blocks"};
  nn::Parameter scale{*this, "scale", tensor({2.f}, cpu)};
  nn::Buffer limits{*this, "limits", tensor({-1.f, 1.f}, cpu), nn::Persistent::no};
  Tensor operator()(const Tensor& x) const {
    Tensor y = x;
    for (const Block& block : blocks) y = block(y);
    return y * scale;
  }
};

std::vector<std::string> names(const NamedTensors& state) {
  std::vector<std::string> out;
  for (const auto& [name, value] : state) out.push_back(name);
  return out;
}

template <class E, class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const E& e) { return e.what(); }
  return "nothing was thrown";
}

TEST_CASE("a module tree lists its parameters by dotted names in the order of declaration") {
  Generator gen(1);
  LeNet net({.gen = gen, .device = cpu});
  std::vector<std::string> got;
  for (const ParamRef& p : net.parameters()) {
    got.push_back(p.name);
    CHECK(p.value->requires_grad());
    CHECK(&nn::owner_of(p)->root() == &net);
  }
  CHECK(got == std::vector<std::string>{"conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias", "fc1.weight",
                                        "fc1.bias", "fc2.weight", "fc2.bias"});
  CHECK(net.fc1.weight.shape() == Shape{256, 3136});
  CHECK(net.parameter_count().total() == 32 * 25 + 32 + 64 * 32 * 25 + 64 + 3136 * 256 + 256 + 2560 + 10);
  CHECK(net.type_name() == "LeNet");
  CHECK(net.conv2.type_name() == "Conv2d");
  CHECK(net.conv2.path() == "conv2");
}

TEST_CASE("a type is named without namespaces, in its arguments, too") {
  struct Local {};
  CHECK(detail::type_name(typeid(std::pair<LeNet, nn::TransformerEncoderLayer>)) ==
        "pair<LeNet, TransformerEncoderLayer>");
  CHECK(detail::type_name(typeid(std::pair<const nn::ReLU*, unsigned long>)) == "pair<ReLU const*, unsigned long>");
  CHECK(detail::type_name(typeid(Local)) == "Local");
  CHECK(detail::type_name(typeid(int)) == "int");
}

TEST_CASE("a backward pass gives every parameter of a net a gradient, and a step along it lowers the loss") {
  Generator gen(1);
  LeNet net({.gen = gen, .device = cpu});
  const Tensor images = rand({4, 1, 28, 28}, gen, cpu), labels = tensor<std::int64_t>({3, 1, 4, 1}, cpu);
  const Tensor before = cross_entropy(net(images), labels);
  backward(before);
  for (const ParamRef& p : net.parameters()) {
    CAPTURE(p.name);
    REQUIRE(p.value->grad().defined());
    CHECK(norm(p.value->grad()).item() > 0);
    NoGrad off;
    add_(*p.value, p.value->grad(), -1e-3);
  }
  CHECK(cross_entropy(net(images), labels).item() < before.item());
  net.zero_grad();
  for (const ParamRef& p : net.parameters()) CHECK(!p.value->grad().defined());
}

TEST_CASE("a net on meta has shapes and counts and no memory") {
  Generator gen(1);
  LeNet net({.gen = gen, .device = Device::meta()});
  CHECK(net.parameter_count().total() == 32 * 25 + 32 + 64 * 32 * 25 + 64 + 3136 * 256 + 256 + 2560 + 10);
  CHECK(net(zeros({2, 1, 28, 28}, Device::meta())).shape() == Shape{2, 10});
}

TEST_CASE("a module that overrides train keeps its part frozen in evaluation mode") {
  struct Frozen : nn::Module {
    using Module::Module;
    nn::BatchNorm1d bn{*this, "bn", {.features = 3}};
    void train(bool on) override {
      Module::train(on);
      bn.train(false);
    }
  };
  struct Whole : nn::Module {
    using Module::Module;
    Frozen frozen{*this, "frozen"};
    nn::Dropout drop{*this, "drop"};
  };
  Generator gen(1);
  Whole net({.gen = gen, .device = cpu});
  net.train();
  CHECK(net.drop.is_training());
  CHECK(net.frozen.is_training());
  CHECK(!net.frozen.bn.is_training());
}

TEST_CASE("a state holds parameters and persistent buffers under PyTorch's names, module by module") {
  Generator gen(1);
  Net net({.gen = gen, .device = cpu});
  net.blocks.add();
  net.blocks.add();
  std::vector<std::string> expected{"scale"};
  for (const std::string block : {"blocks.0.", "blocks.1."}) {
    for (const char* part :
         {"fc.weight", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var", "bn.num_batches_tracked"}) {
      expected.push_back(block + part);
    }
  }
  CHECK(names(net.state_dict()) == expected);
  std::vector<std::string> drawn;
  for (const auto& [name, generator] : net.generators()) drawn.push_back(name);
  CHECK(drawn == std::vector<std::string>{"blocks.0.drop.generator", "blocks.1.drop.generator"});
  std::vector<std::string> visited;
  net.visit([&](const std::string& at, nn::Module&) { visited.push_back(at); });
  CHECK(visited == std::vector<std::string>{"", "blocks", "blocks.0", "blocks.0.fc", "blocks.0.bn", "blocks.0.drop",
                                            "blocks.1", "blocks.1.fc", "blocks.1.bn", "blocks.1.drop"});
  CHECK(net.buffers().size() == 1 + 2 * 3);
}

TEST_CASE("names that are empty, taken or hold a dot are refused") {
  Generator gen(1);
  nn::Module root({.gen = gen, .device = cpu});
  nn::Linear fc(root, "fc", {.in = 2, .out = 2});
  CHECK(message_of<ConfigError>([&] { nn::Module child(root, "a.b"); }).find("\"a.b\"") != std::string::npos);
  CHECK_THROWS_AS(nn::Module(root, ""), ConfigError);
  CHECK_THROWS_AS(nn::Module(root, "fc"), ConfigError);
  CHECK_THROWS_AS(nn::Parameter(root, "fc", ones({1}, cpu)), ConfigError);
  CHECK_THROWS_AS(nn::Buffer(fc, "weight", ones({1}, cpu)), ConfigError);
  CHECK(root.children().size() == 1);
  CHECK_THROWS_AS(nn::Module({.gen = gen, .device = cpu, .dtype = DType::i64}), DTypeError);
}

TEST_CASE("a part that goes leaves the tree, and a tree that goes first leaves its parts whole") {
  Generator gen(1);
  auto root = std::make_unique<nn::Module>(nn::Options{.gen = gen, .device = cpu});
  { nn::Linear gone(*root, "gone", {.in = 2, .out = 2}); }
  CHECK(root->children().empty());
  nn::Linear fc(*root, "fc", {.in = 2, .out = 2});
  nn::Parameter own(*root, "own", ones({1}, cpu));
  root.reset();
  CHECK(fc.parent() == nullptr);
  CHECK(fc.parameters().size() == 2);
}

TEST_CASE("wrong options are refused with their name and value") {
  Generator gen(1);
  nn::Module root({.gen = gen, .device = cpu});
  CHECK(message_of<ConfigError>([&] { nn::Linear(root, "a", {.in = 0, .out = 1}); }) ==
        "Linear: in is 0, expected 1 or more");
  CHECK_THROWS_AS(nn::Conv2d(root, "a", {.in = 3, .out = 4, .kernel = 3, .groups = 2}), ConfigError);
  CHECK_THROWS_AS(nn::Dropout(root, "a", {.p = 1.5}), ConfigError);
  CHECK_THROWS_AS(nn::Embedding(root, "a", {.count = 3, .dim = 1, .padding_idx = 3}), ConfigError);
  CHECK(root.children().empty());
}

TEST_CASE("initial values depend on seed and name, not on the order of construction") {
  Generator gen(7);
  nn::Module one({.gen = gen, .device = cpu}), two({.gen = gen, .device = cpu});
  nn::Linear a1(one, "a", {.in = 5, .out = 4}), b1(one, "b", {.in = 5, .out = 4});
  nn::Linear b2(two, "b", {.in = 5, .out = 4}), a2(two, "a", {.in = 5, .out = 4});
  CHECK(equal(a1.weight, a2.weight));
  CHECK(equal(b1.bias, b2.bias));
  CHECK(!equal(a1.weight, b1.weight));
  Generator other(8);
  nn::Module three({.gen = other, .device = cpu});
  nn::Linear a3(three, "a", {.in = 5, .out = 4});
  CHECK(!equal(a1.weight, a3.weight));
}

TEST_CASE("a root takes a fork, a const generator or a seed as it is, and leaves the given one where it stands") {
  Generator gen(7);
  const Generator constant(7);
  const auto weight = [](nn::Options options) {
    nn::Module root(std::move(options));
    return nn::Linear(root, "a", {.in = 5, .out = 4}).weight.detach();
  };
  const Tensor of_seed = weight({.gen = Generator(7), .device = cpu});
  CHECK(equal(weight({.gen = gen, .device = cpu}), of_seed));
  CHECK(equal(weight({.gen = constant, .device = cpu}), of_seed));
  CHECK(!equal(weight({.gen = gen.fork("critic"), .device = cpu}), of_seed));
  CHECK(gen.state().offset == 0);
}

TEST_CASE("train and eval set the flags of the whole tree, set_training_flag one of them") {
  Generator gen(1);
  Block net({.gen = gen, .device = cpu});
  CHECK(net.bn.is_training());
  net.eval();
  CHECK(!net.is_training());
  CHECK(!net.bn.is_training());
  net.train();
  net.bn.set_training_flag(false);
  CHECK(net.drop.is_training());
  CHECK(!net.bn.is_training());
}

TEST_CASE("to(dtype) converts values, gradients and floating buffers in place; handles and freezing stay") {
  Generator gen(1);
  Block net({.gen = gen, .device = cpu});
  std::vector<ParamRef> handles = net.parameters();
  net.bn.requires_grad_(false);
  handles[0].value->set_grad(full({3, 3}, 0.5, cpu));
  const Tensor before = net.fc.weight.clone().detach();
  net.to(DType::f64);
  CHECK(handles[0].value->dtype() == DType::f64);
  CHECK(equal(handles[0].value->detach(), before.to(DType::f64)));
  CHECK(handles[0].value->requires_grad());
  CHECK(handles[0].value->grad().dtype() == DType::f64);
  CHECK(handles[0].value->grad().to_vector<double>() == std::vector<double>(9, 0.5));
  CHECK(!net.bn.weight.requires_grad());
  CHECK(net.bn.running_var.dtype() == DType::f64);
  CHECK(net.bn.num_batches_tracked.dtype() == DType::i64);
  CHECK(net.dtype() == DType::f64);
  CHECK_THROWS_AS(net.to(DType::i32), DTypeError);
  CHECK(net.parameter_count().trainable == 9);
  CHECK(net.parameter_count().frozen == 6);
  handles[0].value->requires_grad_(false);
  net.zero_grad();
  handles[0].value->requires_grad_();
  CHECK(!handles[0].value->grad().defined());  // of a parameter that was frozen, too
}

TEST_CASE("buffers, saved or not, are no parameters: an optimizer does not see them") {
  Generator gen(1);
  Net net({.gen = gen, .device = cpu});
  net.blocks.add();
  std::vector<std::string> got;
  for (const ParamRef& p : net.parameters()) {
    got.push_back(p.name);
    const Block& block = *net.blocks.begin();
    for (const Tensor* buffer :
         {static_cast<const Tensor*>(&net.limits), static_cast<const Tensor*>(&block.bn.running_mean),
          static_cast<const Tensor*>(&block.bn.running_var), static_cast<const Tensor*>(&block.bn.num_batches_tracked)})
      CHECK(p.value->impl() != buffer->impl());
  }
  CHECK(got == std::vector<std::string>{"scale", "blocks.0.fc.weight", "blocks.0.bn.weight", "blocks.0.bn.bias"});
}

TEST_CASE("to(device) moves values, gradients and every buffer, saved or not, and handles and freezing stay") {
  DEVICE_OR_SKIP();
  Generator gen(1);
  Net net({.gen = gen, .device = cpu});
  Block& block = net.blocks.add();
  block.bn.eval();  // its statistics stay
  const std::vector<ParamRef> handles = net.parameters();
  block.bn.requires_grad_(false);
  block.fc.weight.set_grad(full({3, 3}, 0.5, cpu));
  fill_(block.bn.running_mean, 3);
  const NamedTensors before = net.state_dict();
  for (const Device to : {device, cpu}) {
    CAPTURE(text(to));
    net.to(to);
    CHECK(net.device() == to);
    for (const ParamRef& p : handles) CHECK(p.value->device() == to);
    CHECK(block.fc.weight.requires_grad());
    CHECK_FALSE(block.bn.weight.requires_grad());
    REQUIRE(block.fc.weight.grad().defined());
    CHECK(block.fc.weight.grad().device() == to);
    CHECK(block.fc.weight.grad().to_vector<float>() == std::vector<float>(9, 0.5));
    CHECK(net.limits.device() == to);  // not persistent
    CHECK(net.limits.to_vector<float>() == std::vector<float>{-1, 1});
    CHECK(block.bn.num_batches_tracked.device() == to);
    CHECK(block.bn.running_mean.to_vector<float>() == std::vector<float>{3, 3, 3});
    const NamedTensors state = net.state_dict();
    CHECK(names(state) == names(before));
    for (std::size_t i = 0; i < state.size(); ++i) {
      CHECK(state[i].second.device() == to);
      CHECK(equal(state[i].second.to(cpu), before[i].second.to(cpu)));
    }
    CHECK(net(ones({2, 3}, to)).device() == to);
  }
}

TEST_CASE("modules that share a tensor share it after a conversion, with the gradients of all uses") {
  struct Tied : nn::Module {
    explicit Tied(Generator gen) : nn::Module(nn::Options{.gen = gen, .device = cpu}) {
      static_cast<Tensor&>(out.weight) = static_cast<const Tensor&>(in.weight);
    }
    nn::Linear in{*this, "in", {.in = 3, .out = 3, .bias = false}};
    nn::Linear out{*this, "out", {.in = 3, .out = 3, .bias = false}};
  };
  Tied net(Generator(1));
  net.to(DType::f64);
  CHECK(net.in.weight.dtype() == DType::f64);
  CHECK(net.in.weight.impl() == net.out.weight.impl());
  CHECK(net.parameter_count().trainable == 9);
  const Tensor x = ones({1, 3}, cpu, DType::f64);
  backward(sum(net.out(net.in(x))));
  const Tensor both = net.in.weight.grad().clone();
  Tensor w = net.in.weight.detach().clone();
  w.requires_grad_();
  backward(sum(linear(linear(x, w), w)));
  CHECK(equal(both, w.grad()));
  for (const bool first : {true, false}) {  // what one of them keeps stays for the other, too
    Tied kept(Generator(1));
    const nn::Module* const stays = first ? &kept.in : &kept.out;
    kept.to(DType::f64, [&](const nn::Module& m) { return &m == stays; });
    CHECK(kept.in.weight.dtype() == DType::f32);
    CHECK(kept.in.weight.impl() == kept.out.weight.impl());
  }
}

TEST_CASE("to(dtype) takes the gradients of frozen parameters and the hooks on gradients along") {
  Generator gen(1);
  Block net({.gen = gen, .device = cpu});
  Tensor& weight = net.fc.weight;
  int calls = 0;
  DType seen = DType::f32;
  HookHandle hook = on_gradient_complete(weight, [&](const Tensor& g) {
    ++calls;
    seen = g.dtype();
  });
  weight.set_grad(full({3, 3}, 0.5, cpu));
  weight.requires_grad_(false);
  net.to(DType::f64);
  CHECK(!weight.requires_grad());
  REQUIRE(weight.grad().defined());
  CHECK(weight.grad().to_vector<double>() == std::vector<double>(9, 0.5));
  weight.requires_grad_();
  backward(sum(weight * 2));
  CHECK(calls == 1);
  CHECK(seen == DType::f64);
  CHECK(weight.grad().to_vector<double>() == std::vector<double>(9, 2.5));
  hook.remove();
  backward(sum(weight));
  CHECK(calls == 1);
}

TEST_CASE("a state goes from one net to another; values are copied, not shared") {
  Generator gen(1), other(2);
  Block from({.gen = gen, .device = cpu}), to({.gen = other, .device = cpu});
  fill_(from.bn.running_mean, 3);
  const void* address = to.fc.weight.impl();
  const nn::LoadReport report = to.load_state_dict(from.state_dict());
  CHECK(report.complete());
  CHECK(to.fc.weight.impl() == address);
  CHECK(equal(to.fc.weight, from.fc.weight));
  CHECK(to.bn.running_mean.to_vector<float>() == std::vector<float>{3, 3, 3});
  CHECK(!to.fc.weight.shares_storage(from.fc.weight));
}

TEST_CASE("a strict load of a state that does not fit lists every difference and changes nothing") {
  Generator gen(1);
  Block net({.gen = gen, .device = cpu});
  const Tensor before = net.fc.weight.clone().detach();
  NamedTensors state;
  for (const auto& [name, value] : net.state_dict()) {
    if (name == "bn.bias") continue;
    state.emplace_back(name == "bn.weight" ? "bn.gamma" : name, value.clone());
  }
  fill_(state[0].second, 5);  // fc.weight, which fits
  for (auto& [name, value] : state) {
    if (name == "bn.running_mean") value = zeros({4}, cpu);
    if (name == "bn.running_var") value = value.to(DType::f64);
  }
  const std::string message = message_of<ConfigError>([&] { net.load_state_dict(state); });
  CHECK(
      message ==
      "load_state_dict: the state does not fit the module; missing: bn.weight, bn.bias; unexpected: bn.gamma; "
      "mismatched: bn.running_mean: f32 [4] given, f32 [3] expected, bn.running_var: f64 [3] given, f32 [3] expected; "
      "give a state of the same architecture and dtype, or Strict::no to take what fits");
  CHECK(equal(net.fc.weight, before));

  const nn::LoadReport report = net.load_state_dict(state, nn::Strict::no);
  CHECK(report.missing == std::vector<std::string>{"bn.weight", "bn.bias"});
  CHECK(report.unexpected == std::vector<std::string>{"bn.gamma"});
  CHECK(report.mismatched.size() == 2);
  CHECK(net.fc.weight.detach().to_vector<float>() == std::vector<float>(9, 5));
  state.push_back(state[0]);
  CHECK(net.load_state_dict(state, nn::Strict::no).mismatched[0] == "fc.weight: given twice");
}

TEST_CASE("a Sequential names its children by number and calls them in order") {
  Generator gen(3);
  nn::Sequential net({.gen = gen, .device = cpu});
  net.add<nn::Linear>({.in = 4, .out = 3});
  net.add<nn::ReLU>();
  net.add<nn::LeakyReLU>({.negative_slope = 0.2});
  net.add<nn::Linear>({.in = 3, .out = 2, .bias = false});
  CHECK(names(net.state_dict()) == std::vector<std::string>{"0.weight", "0.bias", "3.weight"});
  CHECK(net.size() == 4);
  CHECK(net[1].type_name() == "ReLU");
  CHECK(net[3].path() == "3");
  CHECK_THROWS_AS((void)net[4], IndexError);
  const Tensor x = tensor({0.5f, -1.f, 2.f, 0.f}, cpu);
  CHECK(equal(net.run(x, 1, 3), leaky_relu(relu(x), 0.2)));
  CHECK(equal(net.run(x, 2, 2), x));
  CHECK_THROWS_AS((void)net.run(x, 2, 5), IndexError);
}

TEST_CASE("a module without generator and device says what it lacks") {
  struct Bare : nn::Module {
    Bare() = default;
  };
  Bare bare;
  CHECK(message_of<ConfigError>([&] { nn::Linear(bare, "fc", {.in = 1, .out = 1}); }).find("construct the root with") !=
        std::string::npos);
}

}  // namespace
}  // namespace levin
