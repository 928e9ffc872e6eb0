// Optimizers and clipping on the device that launches kernels, beside the same on the cpu.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <optional>

#include "levin/autograd.h"
#include "levin/ops.h"
#include "levin/optim.h"
#include "levin/stream.h"
#include "tests/device.h"
#include "tests/skip.h"

namespace levin::optim {
namespace {

const Device cpu = Device::cpu();

using Make = std::function<std::unique_ptr<Optimizer>(Parameters)>;
template <class O, class Options>
Make make(Options options) {
  return [options](Parameters p) { return std::make_unique<O>(std::move(p), options); };
}
const std::vector<std::pair<const char*, Make>>& all_kinds() {
  static const std::vector<std::pair<const char*, Make>> kinds{
      {"sgd", make<SGD>(SGDOptions{.lr = 0.1})},
      {"momentum", make<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.2, .weight_decay = 0.01})},
      {"nesterov", make<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9, .nesterov = true, .maximize = true})},
      {"adam", make<Adam>(AdamOptions{.lr = 0.1, .weight_decay = 0.1})},
      {"amsgrad", make<Adam>(AdamOptions{.lr = 0.1, .beta1 = 0.8, .beta2 = 0.9, .amsgrad = true})},
      {"adamw", make<AdamW>(AdamWOptions{.lr = 0.1, .weight_decay = 0.1})},
      {"rmsprop", make<RMSprop>(RMSpropOptions{.lr = 0.1})},
      {"centered", make<RMSprop>(RMSpropOptions{.lr = 0.1, .weight_decay = 0.1, .momentum = 0.5, .centered = true})},
      {"adagrad", make<Adagrad>(AdagradOptions{
                      .lr = 0.1, .lr_decay = 0.1, .weight_decay = 0.1, .initial_accumulator_value = 0.5})},
  };
  return kinds;
}

// Parameters of several sizes, more than one block among them, and their optimizer.
struct Net {
  std::vector<Tensor> values;
  std::unique_ptr<Optimizer> optimizer;

  Net(const Make& kind, Device device, DType dtype) {
    for (const std::int64_t n : {3, 1, 5000, 64}) {
      Tensor t = linspace(-2, 2, n, cpu, DType::f64).to(dtype).to(device);
      t.requires_grad_();
      values.push_back(t);
    }
    optimizer = kind(parameters());
  }
  Parameters parameters() {
    Parameters p;
    for (Tensor& t : values) p.push_back({.value = &t, .name = "p" + std::to_string(t.numel())});
    return p;
  }
  // The gradient of element i at step t; the second parameter has none in every other step.
  void set_gradients(int t) {
    for (std::size_t k = 0; k < values.size(); ++k) {
      if (k == 1 && t % 2 == 1) {
        values[k].set_grad({});
        continue;
      }
      std::vector<double> g;
      for (std::int64_t i = 0; i < values[k].numel(); ++i) g.push_back(std::sin(double(i) + 1.5 * t));
      values[k].set_grad(from_data(g, values[k].shape(), cpu).to(values[k].dtype()).to(values[k].device()));
    }
  }
  [[nodiscard]] std::vector<double> all() const {
    std::vector<double> out;
    for (const Tensor& t : values) {
      const auto v = t.detach().to(cpu).to(DType::f64).to_vector<double>();
      out.insert(out.end(), v.begin(), v.end());
    }
    return out;
  }
};

void check_close(const std::vector<double>& got, const std::vector<double>& want, double tolerance) {
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    REQUIRE(std::abs(got[i] - want[i]) <= tolerance * (1 + std::abs(want[i])));
  }
}

#define DEVICE_OR_SKIP()                                                 \
  const auto found = test::launching_device();                           \
  if (!found) return test::skip("no device that launches kernels here"); \
  const Device device = *found

}  // namespace

TEST_CASE("every optimizer makes the steps on a device that it makes on the cpu, lr moving") {
  DEVICE_OR_SKIP();
  for (const auto& [name, kind] : all_kinds()) {
    CAPTURE(std::string(name));
    for (const DType dtype : {DType::f32, DType::f64}) {
      Net here(kind, cpu, dtype), there(kind, device, dtype);
      for (int t = 0; t < 4; ++t) {
        for (Net* net : {&here, &there}) {
          net->set_gradients(t);
          net->optimizer->set_lr(0, 0.1 / (t + 1));
          net->optimizer->step();
        }
      }
      // A few roundings a step; f32's division and root differ by one at most.
      check_close(there.all(), here.all(), 32 * epsilon(dtype));
    }
  }
}

TEST_CASE("the state of an optimizer on a device is saved and loaded bit for bit, also on the cpu") {
  DEVICE_OR_SKIP();
  for (const auto& [name, kind] : all_kinds()) {
    CAPTURE(std::string(name));
    Net first(kind, device, DType::f32), second(kind, device, DType::f32);
    for (int t = 0; t < 2; ++t) {
      first.set_gradients(t);
      first.optimizer->step();
    }
    const NamedTensors state = first.optimizer->state_dict();
    for (const auto& [key, value] : state) {
      if (key == "p3.step") CHECK(value.item<std::int64_t>() == 2);
      if (key == "p1.step") CHECK(value.item<std::int64_t>() == 1);
    }
    second.optimizer->load_state_dict([&] {
      NamedTensors host;
      for (const auto& [key, value] : state) host.emplace_back(key, value.to(cpu));
      return host;
    }());
    for (std::size_t k = 0; k < first.values.size(); ++k) second.values[k] = first.values[k].detach().clone();
    for (Tensor& t : second.values) t.requires_grad_();
    for (Net* net : {&first, &second}) {
      net->set_gradients(2);
      net->optimizer->step();
    }
    CHECK(first.all() == second.all());
  }
}

TEST_CASE("a recorded optimizer step goes on learning on a device: replays equal eager steps, bit for bit, lr moving") {
  DEVICE_OR_SKIP();
  for (const auto& [name, kind] : all_kinds()) {
    CAPTURE(std::string(name));
    Net eager(kind, device, DType::f32), replayed(kind, device, DType::f32);
    for (Net* net : {&eager, &replayed}) {  // warm-up: state is made, gradients get their addresses
      net->set_gradients(0);
      net->optimizer->step();
    }
    Graph graph(Stream::current(device), [&] { replayed.optimizer->step(); });
    for (int t = 1; t < 4; ++t) {
      const double lr = 0.1 / (t + 1);
      eager.optimizer->set_lr(0, lr);
      eager.optimizer->step();
      replayed.optimizer->set_lr(0, lr);
      replayed.optimizer->prepare_replay();
      graph.replay();
    }
    CHECK(eager.all() == replayed.all());
    const auto steps = [](const Net& net) {
      for (const auto& [key, value] : net.optimizer->state_dict())
        if (key == "p3.step") return value.item<std::int64_t>();
      return std::int64_t{0};
    };
    CHECK(steps(replayed) == 4);
  }
}

TEST_CASE("gradients are clipped on a device as on the cpu, by norm and by value") {
  DEVICE_OR_SKIP();
  const Make sgd = make<SGD>(SGDOptions{.lr = 1});
  for (const double p : {2.0, 1.0, 3.0, std::numeric_limits<double>::infinity()}) {
    CAPTURE(p);
    Net here(sgd, cpu, DType::f32), there(sgd, device, DType::f32);
    std::vector<double> norms;
    for (Net* net : {&here, &there}) {
      net->set_gradients(0);
      norms.push_back(clip_grad_norm_(net->parameters(), 0.5, p).item());
      net->optimizer->step();
    }
    CHECK(std::abs(norms[0] - norms[1]) <= 1e-6 * norms[0]);
    check_close(there.all(), here.all(), 8 * epsilon(DType::f32));
  }
  Net here(sgd, cpu, DType::f64), there(sgd, device, DType::f64);
  for (Net* net : {&here, &there}) {
    net->set_gradients(1);
    clip_grad_value_(net->parameters(), 0.25);
    net->optimizer->step();
  }
  CHECK(here.all() == there.all());
}

TEST_CASE("a norm that is not finite is an error on a device where asked, and nothing is scaled") {
  DEVICE_OR_SKIP();
  Net net(make<SGD>(SGDOptions{.lr = 1}), device, DType::f32);
  net.set_gradients(0);
  net.values[0].set_grad(full({3}, std::numeric_limits<double>::quiet_NaN(), device));
  const double before = net.values[2].grad().to_vector<float>()[7];
  CHECK_THROWS_AS((void)clip_grad_norm_(net.parameters(), 1, 2, ErrorIfNonfinite::yes), StateError);
  CHECK(net.values[2].grad().to_vector<float>()[7] == before);
  CHECK(std::isnan(clip_grad_norm_(net.parameters(), 1).item()));
  CHECK(std::isnan(net.values[2].grad().to_vector<float>()[7]));
}

TEST_CASE("parameters on two devices, or LBFGS on one that launches kernels, are refused by name") {
  DEVICE_OR_SKIP();
  Tensor a = zeros({2}, cpu), b = zeros({2}, device);
  a.requires_grad_();
  b.requires_grad_();
  const Parameters both{{.value = &a, .name = "a"}, {.value = &b, .name = "b"}};
  CHECK_THROWS_WITH_AS(SGD{both}, doctest::Contains("parameter b is on"), ConfigError);
  b.set_grad(ones({2}, device));
  LBFGS lbfgs({{.value = &b, .name = "b"}});
  CHECK_THROWS_AS((void)lbfgs.step([&] { return zeros({}, device); }), StateError);
  a.set_grad(ones({2}, cpu));
  CHECK_THROWS_WITH_AS((void)clip_grad_norm_(both, 1), doctest::Contains("others are on cpu"), DeviceError);
}

}  // namespace levin::optim
