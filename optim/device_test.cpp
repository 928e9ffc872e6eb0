// Optimizers and clipping on the device that launches kernels, compared with the cpu.
#include <doctest/doctest.h>

#include <cmath>

#include "levin/stream.h"
#include "levin/sync.h"
#include "optim/kinds_test.h"

namespace levin::optim {
namespace {

const Device cpu = Device::cpu();

}  // namespace

TEST_CASE("every optimizer makes the steps on a device that it makes on the cpu, lr moving") {
  DEVICE_OR_SKIP();
  for (const auto& [name, kind] : all_kinds()) {
    CAPTURE(name);
    for (const DType dtype : {DType::f32, DType::f64}) {
      Net here(kind, cpu, dtype), there(kind, device, dtype);
      for (int t = 0; t < 4; ++t) {
        for (Net* net : {&here, &there}) {
          net->set_gradients(t);
          net->optimizer->set_lr(0, 0.1 / (t + 1));
          net->optimizer->step();
        }
      }
      // A few roundings in each step; f32's division and root differ by one at most.
      check_close(there.all(), here.all(), 32 * epsilon(dtype));
    }
  }
}

TEST_CASE(
    "an optimizer on a device makes the same steps on a further stream, and copies no number from the host for them") {
  DEVICE_OR_SKIP();
  for (const auto& [name, kind] : all_kinds()) {
    CAPTURE(name);
    const auto trained = [&, &make = kind](Stream stream) {
      const StreamGuard guard(stream);
      Net net(make, device, DType::f32);
      for (int t = 0; t < 4; ++t) {
        net.set_gradients(t);
        net.optimizer->set_lr(0, 0.1 / (t + 1));
        const std::int64_t before = copy_counts().to_device;
        net.optimizer->step();
        if (t > 1) CHECK(copy_counts().to_device == before);  // the first steps make their state
      }
      return net.all();
    };
    CHECK(trained(Stream::next_of(device)) == trained(Stream::default_of(device)));
  }
}

TEST_CASE("the state of an optimizer on a device is saved and loaded bit for bit, also on the cpu") {
  DEVICE_OR_SKIP();
  for (const auto& [name, kind] : all_kinds()) {
    CAPTURE(name);
    Net first(kind, device, DType::f32), second(kind, device, DType::f32);
    for (int t = 0; t < 2; ++t) {
      first.set_gradients(t);
      first.optimizer->step();
    }
    const NamedTensors state = first.optimizer->state_dict();
    CHECK(first.steps("p3") == 2);
    CHECK(first.steps("p1") == 1);
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
    CAPTURE(name);
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
    CHECK(replayed.steps() == 4);
  }
}

TEST_CASE(
    "gradients are filled with zeros in their memory: handles see it, nothing crosses the bus, a record holds it") {
  for (const Device on : devices()) {
    CAPTURE(text(on));
    for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
      Tensor p = ones({5000}, on, dtype), q = ones({2, 3}, on, dtype);
      for (Tensor* t : {&p, &q}) t->requires_grad_();
      SGD o({{&p, "p"}, {&q, "q"}}, {.lr = 1});
      p.set_grad(full({5000}, 3, on, dtype));
      q.set_grad(full({2, 3}, 5, on, dtype));
      const Tensor held = p.grad(), other = q.grad();
      const CopyCounts before = copy_counts();
      o.zero_grad(SetToNone::no);
      CHECK(copy_counts() == before);
      CHECK(held.to(cpu).to(DType::f64).to_vector<double>() == std::vector<double>(5000));
      CHECK(other.to(cpu).to(DType::f64).to_vector<double>() == std::vector<double>(6));
      CHECK(p.grad().get().storage == held.get().storage);
      if (!on.launches()) continue;
      Graph graph(Stream::current(on), [&] { o.zero_grad(SetToNone::no); });
      Tensor filled = p.grad();
      copy_(filled, full({5000}, 7, on, dtype));
      graph.replay();
      CHECK(held.to(cpu).to(DType::f64).to_vector<double>() == std::vector<double>(5000));
    }
  }
}

TEST_CASE("an optimizer's first step on a device makes its state there, and none while a step is recorded") {
  DEVICE_OR_SKIP();
  Tensor p = ones({5000}, device), late = ones({3}, device);
  for (Tensor* t : {&p, &late}) t->requires_grad_();
  Adagrad o({{&p, "p"}, {&late, "late"}}, {.initial_accumulator_value = 0.5});
  p.set_grad(zeros({5000}, device));
  const CopyCounts before = copy_counts();
  o.step();
  CHECK((copy_counts() - before).to_device_bytes <= 64);  // step counts and numbers
  for (const auto& [key, value] : o.state_dict()) {
    if (key == "p.sum") CHECK(value.to(cpu).to_vector<float>() == std::vector<float>(5000, 0.5F));
  }
  late.set_grad(ones({3}, device));
  CHECK_THROWS_WITH_AS(Graph(Stream::current(device), [&] { o.step(); }), doctest::Contains("makes its state"),
                       CaptureError);
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
