// f32 master weights of 16-bit parameters.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "levin/stream.h"
#include "optim/kinds_test.h"

namespace levin::optim {
namespace {

const Device cpu = Device::cpu();
constexpr double kInf = std::numeric_limits<double>::infinity();

// The model's gradients of step t in its dtype, times the scale, in the tensors of the first step.
void model_gradients(Net& net, const Tensor& scale, int t, bool overflow) {
  for (std::size_t k = 0; k < net.values.size(); ++k) {
    Tensor& p = net.values[k];
    Tensor g = gradient(p.shape(), t, p.device(), p.dtype()) * scale.to(p.dtype());
    if (overflow && k == 2)
      g = g + full({}, kInf, p.device(), p.dtype()) * gradient(p.shape(), t, p.device(), p.dtype());
    if (!p.grad().defined()) p.set_grad(empty_like(p));
    Tensor slot = p.grad();
    copy_(slot, g);
  }
}

// The model's parameters are f16, and one stays f32, as a batch norm's do.
Net mixed(const Make& kind, Device device, DType dtype) {
  Net net(kind, device, dtype);
  net.values[3] = net.values[3].detach().to(DType::f32);
  net.values[3].requires_grad_();
  net.optimizer = kind(net.parameters());
  net.optimizer->use_master_weights();
  return net;
}

}  // namespace

TEST_CASE("with masters the optimizer trains f32 copies, by f32 gradients, and rounds them into the model") {
  for (const Device device : devices()) {
    for (const auto& [name, kind] : all_kinds()) {
      for (const DType dtype : {DType::f16, DType::bf16}) {
        CAPTURE(text(device));
        CAPTURE(name);
        Net half(kind, device, dtype), wide(kind, device, DType::f32);
        half.optimizer->use_master_weights();
        // Both start from the rounded values.
        for (std::size_t k = 0; k < half.values.size(); ++k) {
          copy_(wide.values[k].requires_grad_(false), half.values[k].detach());
          wide.values[k].requires_grad_();
        }
        const auto masters = half.optimizer->parameters();
        for (int t = 0; t < 3; ++t) {
          half.set_gradients(t);
          for (std::size_t k = 0; k < half.values.size(); ++k) {
            const Tensor g = half.values[k].grad();
            wide.values[k].set_grad(g.defined() ? g.to(DType::f32) : Tensor{});
          }
          half.optimizer->gather_gradients();
          const Tensor norm = clip_grad_norm_(masters, 5), want = clip_grad_norm_(wide.parameters(), 5);
          CHECK(norm.item() == want.item());
          half.optimizer->step();
          wide.optimizer->step();
          for (std::size_t k = 0; k < masters.size(); ++k) {
            CHECK(masters[k].value->dtype() == DType::f32);
            CHECK(masters[k].name == half.optimizer->model_parameters()[k].name);
            CHECK(same_bits(masters[k].value->detach().to(DType::f64), wide.values[k].detach().to(DType::f64)));
            CHECK(same_bits(half.values[k].detach().to(DType::f64), wide.values[k].detach().to(dtype).to(DType::f64)));
          }
        }
      }
    }
  }
}

TEST_CASE("a scaler unscales 16-bit gradients into those of the masters, and an overflow changes neither") {
  for (const Device device : devices()) {
    CAPTURE(text(device));
    GradScaler scaler({.init_scale = 1024});
    const Make sgd = make<SGD>(SGDOptions{.lr = 1, .momentum = 0.5});
    Net net = mixed(sgd, device, DType::f16);
    const auto before = net.all();
    for (const bool overflow : {true, false}) {
      model_gradients(net, scaler.scale(device), 0, overflow);
      scaler.unscale_(*net.optimizer);
      const auto masters = net.optimizer->parameters();
      CHECK(masters[3].value == &net.values[3]);
      CHECK(scaler.found_inf(*net.optimizer).item() == (overflow ? 1 : 0));
      if (!overflow) {
        double square = 0;
        for (const ParamRef& p : masters) {
          CHECK(p.value->grad().dtype() == DType::f32);
          for (const double g : p.value->grad().to(DType::f64).to_vector<double>()) square += g * g;
        }
        CHECK(std::abs(scaler.grad_norm(*net.optimizer).item() - std::sqrt(square)) <= 1e-12 * std::sqrt(square));
        // The scale is a power of two: unscaling gives the f16 gradient.
        const Tensor want = gradient({3}, 0, cpu, DType::f16).to(DType::f64);
        CHECK(same_bits(masters[0].value->grad().to(DType::f64), want));
      }
      const auto version = net.values[0].version();
      scaler.step(*net.optimizer);
      scaler.update();
      if (overflow)
        CHECK(net.all() == before);
      else
        CHECK(net.values[0].version() > version);
    }
    CHECK(net.all() != before);
    CHECK(scaler.get_scale() == 512);
    net.optimizer->zero_grad();
    CHECK_FALSE(net.values[0].grad().defined());
    CHECK_FALSE(net.optimizer->parameters()[0].value->grad().defined());
  }
}

TEST_CASE("recorded with masters and an overflow, steps on a device equal eager ones, bit for bit") {
  DEVICE_OR_SKIP();
  for (const auto& [name, kind] : all_kinds()) {
    CAPTURE(name);
    Net nets[2] = {mixed(kind, device, DType::f16), mixed(kind, device, DType::f16)};
    GradScaler scalers[2] = {GradScaler({.init_scale = 1024}), GradScaler({.init_scale = 1024})};
    const auto after_backward = [](Net& net, GradScaler& scaler) {
      scaler.unscale_(*net.optimizer);
      clip_grads_with_norm_(net.optimizer->parameters(), 5, scaler.grad_norm(*net.optimizer));
      scaler.step(*net.optimizer);
      scaler.update();
    };
    for (int k = 0; k < 2; ++k) {
      model_gradients(nets[k], scalers[k].scale(device), 0, false);
      after_backward(nets[k], scalers[k]);
    }
    Graph graph(Stream::current(device), [&] { after_backward(nets[1], scalers[1]); });
    if (name != "lamb") CHECK(graph.memory_bytes() == 0);  // the norms of its parameters
    for (int t = 1; t < 5; ++t) {
      for (int k = 0; k < 2; ++k) {
        nets[k].optimizer->set_lr(0, 0.1 / (t + 1));
        model_gradients(nets[k], scalers[k].scale(device), t, t == 2);
      }
      after_backward(nets[0], scalers[0]);
      nets[1].optimizer->prepare_replay();
      graph.replay();
    }
    CHECK(nets[0].all() == nets[1].all());
    CHECK(same_state(nets[0].optimizer->state_dict(), nets[1].optimizer->state_dict()));
    CHECK(scalers[1].skipped_steps() == 1);
  }
}

TEST_CASE("masters are saved with the state and continue the run bit for bit; without them a state is refused") {
  for (const Device device : devices()) {
    CAPTURE(text(device));
    const Make adam = make<AdamW>(AdamWOptions{.lr = 1e-3});
    Net first(adam, device, DType::bf16), second(adam, device, DType::bf16), plain(adam, device, DType::bf16);
    first.optimizer->use_master_weights();
    second.optimizer->use_master_weights();
    for (int t = 0; t < 3; ++t) {
      first.set_gradients(t);
      first.optimizer->step();
    }
    second.optimizer->load_state_dict(first.optimizer->state_dict());
    CHECK(second.all() == first.all());  // the model, too
    for (Net* net : {&first, &second}) {
      net->set_gradients(3);
      net->optimizer->step();
    }
    CHECK(second.all() == first.all());
    CHECK(same_state(second.optimizer->state_dict(), first.optimizer->state_dict()));
    plain.set_gradients(0);
    plain.optimizer->step();
    CHECK_THROWS_WITH_AS(first.optimizer->load_state_dict(plain.optimizer->state_dict()),
                         doctest::Contains("saved without use_master_weights()"), ConfigError);
    CHECK_THROWS_AS(plain.optimizer->load_state_dict(first.optimizer->state_dict()), ConfigError);
    CHECK_THROWS_WITH_AS(plain.optimizer->use_master_weights(), doctest::Contains("after the first step"), StateError);
    first.values[0] = first.values[0].detach().to(DType::f32).requires_grad_();
    first.set_gradients(4);
    CHECK_THROWS_WITH_AS(first.optimizer->step(), doctest::Contains("as when its master was made"), StateError);
  }
}

}  // namespace levin::optim
