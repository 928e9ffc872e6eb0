// Tensors on several CPU devices: their names, copies between them, and ops that meet two of them.
#include <doctest/doctest.h>

#include <string>

#include "levin/autograd.h"
#include "levin/nn.h"
#include "levin/ops.h"
#include "levin/optim.h"
#include "levin/sync.h"

using namespace levin;

namespace {
Tensor values(std::initializer_list<float> list, Device device = Device::cpu()) {
  const std::vector<float> all(list);
  return from_data(std::span<const float>(all), {static_cast<std::int64_t>(all.size())}, device);
}
template <class E, class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const E& e) { return e.what(); }
  return "no error";
}
}  // namespace

TEST_CASE("CPU devices have a name each, and cpu(0) is cpu") {
  CHECK(text(Device::cpu()) == "cpu");
  CHECK(text(Device::cpu(0)) == "cpu");
  CHECK(text(Device::cpu(1)) == "cpu:1");
  CHECK(text(Device::cpu(31)) == "cpu:31");
  CHECK(Device::cpu(1) != Device::cpu());
}

TEST_CASE("a copy to another CPU device has memory of its own, and to the same device none") {
  const Tensor x = values({1, 2, 3});
  const CopyCounts before = copy_counts();
  const Tensor same = x.to(Device::cpu());
  CHECK(same.shares_storage(x));
  CHECK(copy_counts() == before);
  const Tensor y = x.to(Device::cpu(1));
  CHECK(y.device() == Device::cpu(1));
  CHECK_FALSE(y.shares_storage(x));
  CHECK(y.to_vector<float>() == std::vector<float>{1, 2, 3});
  CHECK(copy_counts() - before == CopyCounts{.between = 1, .between_bytes = 12});
  Tensor z = empty({3}, Device::cpu());
  copy_(z, y);
  CHECK(z.to_vector<float>() == std::vector<float>{1, 2, 3});
  CHECK((copy_counts() - before).between == 2);
  CHECK(slice(y, 0, 1, 2).item() == 2);
  CHECK_THROWS_AS(static_cast<void>(x.to(Device::cpu(-1))), DeviceError);
}

TEST_CASE("a gradient returns from another CPU device as a copy") {
  Tensor x = values({1, 2, 3});
  x.requires_grad_();
  const Tensor y = x.to(Device::cpu(1));
  const CopyCounts before = copy_counts();
  backward(sum(square(y)));
  CHECK((copy_counts() - before).between == 1);
  CHECK(x.grad().device() == Device::cpu());
  CHECK(x.grad().to_vector<float>() == std::vector<float>{2, 4, 6});
}

TEST_CASE("an op whose inputs are on two devices names both devices and both shapes") {
  const Tensor a = values({1, 2, 3}), b = ones({2, 3}, Device::cpu(1));
  for (const std::string& said : {message_of<DeviceError>([&] { (void)(a + b); }), message_of<DeviceError>([&] {
                                    (void)matmul(ones({4, 2}, Device::cpu()), b);
                                  })}) {
    CAPTURE(said);
    CHECK(said.find("cpu and cpu:1") != std::string::npos);
    CHECK(said.find("[2, 3]") != std::string::npos);
    CHECK((said.find("[3]") != std::string::npos || said.find("[4, 2]") != std::string::npos));
  }
}

TEST_CASE("ops on one CPU device compute as on another, and keep the device") {
  const auto loss_on = [](Device device) {
    nn::Sequential net({.gen = Generator(1), .device = device});
    net.add<nn::Linear>({.in = 5, .out = 8});
    net.add<nn::BatchNorm1d>({.features = 8});
    net.add<nn::GELU>();
    net.add<nn::Dropout>({.p = 0.5});
    net.add<nn::Linear>({.in = 8, .out = 3});
    Generator gen(2);
    const Tensor x = randn({6, 5}, gen, device);
    const Tensor loss = mean(square(softmax(net(x), 1)));
    CHECK(loss.device() == device);
    backward(loss);
    std::vector<float> all{loss.item<float>()};
    for (const ParamRef& p : net.parameters()) {
      CHECK(p.value->grad().device() == device);
      const std::vector<float> g = p.value->grad().to_vector<float>();
      all.insert(all.end(), g.begin(), g.end());
    }
    return all;
  };
  CHECK(loss_on(Device::cpu(3)) == loss_on(Device::cpu()));
}

TEST_CASE("an optimizer trains parameters on several CPU devices in one group, clipped by their common norm") {
  const auto steps = [](Device second) {
    nn::Sequential net({.gen = Generator(1), .device = Device::cpu()});
    net.add<nn::Linear>({.in = 2, .out = 4});
    nn::Linear& last = net.add<nn::Linear>({.in = 4, .out = 1});
    last.to(second);
    optim::Adam adam(net.parameters(), {.lr = 0.1});
    std::vector<float> all;
    for (int i = 0; i < 3; ++i) {
      adam.zero_grad();
      const Tensor x = full({3, 2}, 1.0 + i, Device::cpu());
      backward(mean(square(net.run(net.run(x, 0, 1).to(second), 1, 2))));
      all.push_back(static_cast<float>(optim::clip_grad_norm_(net.parameters(), 0.5).item()));
      adam.step();
    }
    for (const auto& [name, t] : net.state_dict()) {
      const std::vector<float> v = t.to_vector<float>();
      all.insert(all.end(), v.begin(), v.end());
    }
    return all;
  };
  CHECK(steps(Device::cpu(1)) == steps(Device::cpu()));
}
