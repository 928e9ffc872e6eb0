// Loss scaling on the cpu and on the device that launches kernels.
#include "levin/optim/grad_scaler.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "levin/stream.h"
#include "levin/warning.h"
#include "optim/kinds_test.h"

namespace levin::optim {
namespace {

const Device cpu = Device::cpu();
constexpr double kInf = std::numeric_limits<double>::infinity();

// As a backward: the gradients of step t times the scale, in the tensors of the first step; with an overflow one
// element is infinite.
void scaled_gradients(Net& net, GradScaler& scaler, int t, bool overflow) {
  for (std::size_t k = 0; k < net.values.size(); ++k) {
    Tensor& p = net.values[k];
    Tensor g = gradient(p.shape(), t, p.device(), p.dtype()) * scaler.scale(p.device()).to(p.dtype());
    if (overflow && k == 2)
      g = g + full({}, kInf, p.device(), p.dtype()) * (gradient(p.shape(), t, p.device(), p.dtype()));
    if (!p.grad().defined()) p.set_grad(empty_like(p));
    Tensor slot = p.grad();
    copy_(slot, g);
  }
}

const Make sgd = make<SGD>(SGDOptions{.lr = 1});

// Parameters [2] of one optimizer.
struct Small {
  Tensor p;
  std::unique_ptr<Optimizer> optimizer;
  Small(Device device, const Make& kind = sgd, DType dtype = DType::f32) {
    p = zeros({2}, device, dtype);
    p.requires_grad_();
    optimizer = kind({{.value = &p, .name = "p"}});
  }
  void gradient(double a, double b) { p.set_grad(tensor({a, b}, cpu).to(p.dtype()).to(p.device())); }
};

}  // namespace

TEST_CASE("an overflow halves the scale and changes nothing else, clean updates in a row double it") {
  for (const Device device : devices()) {
    CAPTURE(text(device));
    const int interval = device.is_cpu() ? 2000 : 3;
    GradScaler scaler({.growth_interval = interval});
    Small s(device, make<AdamW>(AdamWOptions{}));
    CHECK(scaler.get_scale() == 65536);
    CHECK(scaler.scale(device).item() == 65536);
    for (const double bad : {kInf, -kInf, std::nan("")}) {
      s.gradient(1, bad);
      scaler.step(*s.optimizer);
      scaler.update();
    }
    CHECK(s.p.to_vector<float>() == std::vector<float>{0, 0});
    CHECK(scaler.get_scale() == 8192);
    CHECK(scaler.skipped_steps() == 3);
    for (int i = 0; i < interval; ++i) {
      CHECK(scaler.growth_tracker() == i);
      s.gradient(1, 0);
      scaler.step(*s.optimizer);
      scaler.update();
    }
    CHECK(scaler.get_scale() == 16384);
    CHECK(scaler.growth_tracker() == 0);
    CHECK(s.p.to_vector<float>()[0] < 0);
    CHECK(scaler.skipped_steps() == 3);
  }
}

TEST_CASE("by default an overflow makes the scale 32768 and 2000 clean updates 131072, through a saved state as well") {
  for (const Device device : devices()) {
    CAPTURE(text(device));
    GradScaler hurt;
    Small a(device, make<AdamW>(AdamWOptions{}));
    CHECK(hurt.scale(device).item() == 65536);
    a.gradient(65536, 65536);
    hurt.step(*a.optimizer);
    hurt.update();
    const std::vector<float> values = a.p.to_vector<float>();
    const NamedTensors state = a.optimizer->state_dict();
    a.gradient(kInf, 1);
    hurt.step(*a.optimizer);
    hurt.update();
    CHECK(hurt.get_scale() == 32768);
    CHECK(a.p.to_vector<float>() == values);
    CHECK(same_state(a.optimizer->state_dict(), state));

    GradScaler clean, loaded;
    Small b(device);
    const auto update = [&](GradScaler& scaler) {
      (void)scaler.scale(device);
      b.gradient(1, 0);
      scaler.step(*b.optimizer);
      scaler.update();
    };
    for (int i = 0; i < 1999; ++i) update(clean);
    CHECK(clean.get_scale() == 65536);
    CHECK(clean.growth_tracker() == 1999);
    loaded.load_state_dict(clean.state_dict());
    CHECK(same_state(loaded.state_dict(), clean.state_dict()));
    for (GradScaler* scaler : {&clean, &loaded}) {
      update(*scaler);
      CHECK(scaler->get_scale() == 131072);
      CHECK(scaler->growth_tracker() == 0);
    }
    CHECK(same_state(loaded.state_dict(), clean.state_dict()));
  }
}

TEST_CASE("clipping sees unscaled gradients: a norm of 10 at a scale of 65536 is 10, and so is the scaler's") {
  for (const Device device : devices()) {
    for (const DType dtype : {DType::f32, DType::f64}) {
      CAPTURE(text(device));
      GradScaler scaler;
      Small s(device, sgd, dtype);
      const double scale = scaler.scale(device).item();
      s.gradient(6 * scale, 8 * scale);
      scaler.unscale_(*s.optimizer);
      CHECK(s.p.grad().to(DType::f64).to_vector<double>() == std::vector<double>{6, 8});
      CHECK(scaler.grad_norm(*s.optimizer).item() == 10);
      CHECK(scaler.found_inf(*s.optimizer).item() == 0);
      clip_grads_with_norm_(s.optimizer->parameters(), 0.5, scaler.grad_norm(*s.optimizer));
      scaler.step(*s.optimizer);
      scaler.update();
      // 1e-6 joins the norm, then two roundings.
      const auto got = s.p.to(DType::f64).to_vector<double>();
      CHECK(std::abs(got[0] + 0.3) <= 0.3e-7 + epsilon(dtype));
      CHECK(std::abs(got[1] + 0.4) <= 0.4e-7 + epsilon(dtype));
    }
  }
}

TEST_CASE("every optimizer skips the overflowing step alone, and makes the others as without a scale") {
  for (const Device device : devices()) {
    for (const auto& [name, kind] : all_kinds()) {
      CAPTURE(text(device));
      CAPTURE(name);
      // Scaling by a power of two and back changes no bit.
      Net plain(kind, device, DType::f32), scaled(kind, device, DType::f32);
      GradScaler scaler, off({.enabled = false});
      for (int t = 0; t < 5; ++t) {
        const bool overflow = t < 2;
        if (!overflow) {
          scaled_gradients(plain, off, t, false);
          off.step(*plain.optimizer);
          off.update();
        }
        scaled_gradients(scaled, scaler, t, overflow);
        scaler.step(*scaled.optimizer);
        if (overflow) {
          CHECK(scaler.found_inf(*scaled.optimizer).item() == 1);
          CHECK(scaled.steps() == 0);
        }
        scaler.update();
      }
      CHECK(scaler.skipped_steps() == 2);
      CHECK(scaled.steps() == 3);
      CHECK(same_state(scaled.optimizer->state_dict(), plain.optimizer->state_dict()));
      CHECK(scaled.all() == plain.all());
    }
  }
}

TEST_CASE("recorded on a device, steps with an overflow among them equal eager ones and the cpu's, lr moving") {
  DEVICE_OR_SKIP();
  for (const auto& [name, kind] : all_kinds()) {
    CAPTURE(name);
    Net eager(kind, device, DType::f32), replayed(kind, device, DType::f32), host(kind, cpu, DType::f32);
    GradScaler scalers[3] = {GradScaler({.growth_interval = 2}), GradScaler({.growth_interval = 2}),
                             GradScaler({.growth_interval = 2})};
    Net* const nets[3] = {&eager, &replayed, &host};
    const auto after_backward = [](Net& net, GradScaler& scaler) {
      scaler.unscale_(*net.optimizer);
      clip_grads_with_norm_(net.parameters(), 5, scaler.grad_norm(*net.optimizer));
      scaler.step(*net.optimizer);
      scaler.update();
    };
    for (int k = 0; k < 3; ++k) {  // the first step makes what the others use
      scaled_gradients(*nets[k], scalers[k], 0, false);
      after_backward(*nets[k], scalers[k]);
    }
    Graph graph(Stream::current(device), [&] { after_backward(replayed, scalers[1]); });
    if (name != "lamb") CHECK(graph.memory_bytes() == 0);  // the norms of its parameters
    for (int t = 1; t < 7; ++t) {
      for (int k = 0; k < 3; ++k) {
        nets[k]->optimizer->set_lr(0, 0.1 / (t + 1));
        scaled_gradients(*nets[k], scalers[k], t, t == 3);
        if (k == 1) {
          replayed.optimizer->prepare_replay();
          graph.replay();
        } else {
          after_backward(*nets[k], scalers[k]);
        }
      }
    }
    CHECK(eager.all() == replayed.all());
    CHECK(same_state(eager.optimizer->state_dict(), replayed.optimizer->state_dict()));
    CHECK(same_state(scalers[0].state_dict(), scalers[1].state_dict()));
    CHECK(same_state(scalers[0].state_dict(), scalers[2].state_dict()));
    CHECK(scalers[1].skipped_steps() == 1);
    CHECK(replayed.steps() == 6);
    // Grown after steps 0 and 1 and halved after 3, grown after 4 and 5: 2^17, 2^16, 2^17.
    CHECK(scalers[1].get_scale() == 131072);
    check_close(replayed.all(), host.all(), 64 * epsilon(DType::f32));
  }
}

TEST_CASE("optimizers share a scaler: each skips by its own gradients, the scale moves by all") {
  for (const Device device : devices()) {
    CAPTURE(text(device));
    GradScaler scaler;
    Small a(device), b(device);
    const double scale = scaler.scale(device).item();
    a.gradient(scale, scale);
    b.gradient(kInf, scale);
    scaler.unscale_(*b.optimizer);
    scaler.step(*a.optimizer);
    scaler.step(*b.optimizer);
    scaler.update();
    CHECK(a.p.to_vector<float>() == std::vector<float>{-1, -1});
    CHECK(b.p.to_vector<float>() == std::vector<float>{0, 0});
    CHECK(scaler.get_scale() == scale / 2);
    CHECK(scaler.skipped_steps() == 1);
    // Unscaled and not stepped: the scale moves, no step was skipped.
    b.gradient(kInf, 0);
    scaler.unscale_(*b.optimizer);
    scaler.update();
    CHECK(scaler.get_scale() == scale / 4);
    CHECK(scaler.skipped_steps() == 1);
  }
}

TEST_CASE("calls out of order are refused with words and change nothing") {
  for (const Device device : devices()) {
    CAPTURE(text(device));
    GradScaler scaler;
    Small s(device);
    CHECK_THROWS_WITH_AS(scaler.update(), doctest::Contains("no inf checks were recorded prior to update"), StateError);
    CHECK_THROWS_WITH_AS((void)scaler.found_inf(*s.optimizer), doctest::Contains("before its first unscale_"),
                         StateError);
    s.gradient(4, 4);
    CHECK_THROWS_WITH_AS(scaler.unscale_(*s.optimizer), doctest::Contains("before scale()"), StateError);
    (void)scaler.scale(device);
    scaler.unscale_(*s.optimizer);
    CHECK_THROWS_WITH_AS(scaler.unscale_(*s.optimizer),
                         doctest::Contains("unscale_() was already called since the last update()"), StateError);
    scaler.step(*s.optimizer);
    CHECK_THROWS_WITH_AS(scaler.step(*s.optimizer),
                         doctest::Contains("step() was already called since the last update()"), StateError);
    CHECK_THROWS_WITH_AS(scaler.unscale_(*s.optimizer), doctest::Contains("unscale_() is called after step()"),
                         StateError);
    scaler.update();
    CHECK_THROWS_AS(scaler.update(), StateError);
    s.optimizer->zero_grad();
    CHECK_THROWS_WITH_AS(scaler.step(*s.optimizer), doctest::Contains("none of its parameters has a gradient"),
                         StateError);
    CHECK(s.p.to_vector<float>()[0] == -4.0f / 65536);
  }
}

TEST_CASE("gradients on a device that no scale can be taken out of are refused by name") {
  DEVICE_OR_SKIP();
  GradScaler scaler;
  Small here(cpu), there(device);
  (void)scaler.scale(device);
  CHECK_THROWS_WITH_AS((void)scaler.scale(cpu), doctest::Contains("a scaler of its own"), DeviceError);
  here.gradient(1, 1);
  CHECK_THROWS_WITH_AS(scaler.unscale_(*here.optimizer), doctest::Contains("the gradient of p is on cpu"), DeviceError);
  there.gradient(1, 1);
  there.p = there.p.detach().to(DType::f16).requires_grad_();
  there.gradient(1, 1);
  CHECK_THROWS_WITH_AS(scaler.unscale_(*there.optimizer), doctest::Contains("the gradient of p is f16"), DataError);
  LBFGS lbfgs({{.value = &here.p, .name = "p"}});
  CHECK_THROWS_WITH_AS(scaler.step(lbfgs), doctest::Contains("lbfgs"), ConfigError);
  CHECK_THROWS_AS(lbfgs.step_unless(zeros({}, cpu)), ConfigError);
  CHECK_THROWS_WITH_AS(here.optimizer->step_unless(zeros({}, device)), doctest::Contains("found_inf is on"),
                       DeviceError);
  CHECK_THROWS_AS(here.optimizer->step_unless(zeros({}, cpu, DType::f64)), ShapeError);
}

TEST_CASE("a large finite f64 gradient is no overflow, though its square is") {
  for (const Device device : devices()) {
    CAPTURE(text(device));
    GradScaler scaler({.init_scale = 1});
    (void)scaler.scale(device);
    Small s(device, sgd, DType::f64);
    s.gradient(1e200, 1);
    scaler.unscale_(*s.optimizer);
    CHECK(scaler.found_inf(*s.optimizer).item() == 0);
  }
}

TEST_CASE("the scale stays where 1 / scale is a number, and below its limit") {
  for (const Device device : devices()) {
    CAPTURE(text(device));
    const auto after = [&](GradScalerOptions options, double gradient, int updates) {
      GradScaler scaler(options);
      Small s(device);
      (void)scaler.scale(device);
      for (int i = 0; i < updates; ++i) {
        s.gradient(gradient, 0);
        scaler.step(*s.optimizer);
        scaler.update();
      }
      return scaler.get_scale();
    };
    CHECK(after({.init_scale = 0x1p126, .growth_interval = 1}, 0, 3) == 0x1p127);
    CHECK(after({.init_scale = 0x1p22, .growth_interval = 1, .max_scale = 0x1p24}, 0, 4) == 0x1p24);
    CHECK(after({.init_scale = 0x1p-124}, kInf, 4) == 0x1p-126);
  }
}

TEST_CASE("a scaler's state is loaded before and after its first use, and continues bit for bit") {
  for (const Device device : devices()) {
    CAPTURE(text(device));
    GradScaler first({.init_scale = 1000, .growth_factor = 1.5, .backoff_factor = 0.3, .growth_interval = 5}), fresh,
        used;
    Small s(device);
    const auto update = [&](GradScaler& scaler, double g) {
      (void)scaler.scale(device);
      s.gradient(g, 0);
      scaler.step(*s.optimizer);
      scaler.update();
    };
    update(used, kInf);
    for (const double g : {kInf, 1.0, 1.0}) update(first, g);
    const NamedTensors state = first.state_dict();
    fresh.load_state_dict(state);
    used.load_state_dict(state);
    CHECK(fresh.get_scale() == first.get_scale());
    for (const double g : {1.0, 1.0, 1.0, kInf, 1.0}) {
      for (GradScaler* scaler : {&first, &fresh, &used}) update(*scaler, g);
      CHECK(same_state(fresh.state_dict(), first.state_dict()));
      CHECK(same_state(used.state_dict(), first.state_dict()));
    }
    NamedTensors bad = state;
    bad[1].second = tensor({0.5}, cpu);
    CHECK_THROWS_WITH_AS(used.load_state_dict(bad), doctest::Contains("growth_factor is 0.5"), ConfigError);
    bad = state;
    bad.emplace_back("other", tensor({1.0}, cpu));
    CHECK_THROWS_AS(used.load_state_dict(bad), ConfigError);
    bad.resize(3);
    CHECK_THROWS_WITH_AS(used.load_state_dict(bad), doctest::Contains("has no growth_interval"), ConfigError);
    CHECK(same_state(used.state_dict(), first.state_dict()));
  }
}

TEST_CASE("a scaler's state loaded on a further stream of a device is what was saved") {
  DEVICE_OR_SKIP();
  const StreamGuard guard(Stream::next_of(device));
  GradScaler first({.init_scale = 1000, .growth_interval = 5}), used;
  (void)first.scale(device), (void)used.scale(device);
  used.load_state_dict(first.state_dict());
  CHECK(used.scale(device).item<float>() == 1000);
  CHECK(same_state(used.state_dict(), first.state_dict()));
}

TEST_CASE("a scaler that is not enabled changes nothing; a state it should not or could not have is a warning") {
  std::vector<std::string> warned;
  auto before = set_warning_handler([&](const Warning& w) { warned.push_back(w.id); });
  GradScaler on, off({.enabled = false});
  CHECK(off.scale(cpu).item() == 1);
  CHECK(off.get_scale() == 1);
  Small s(cpu);
  s.gradient(kInf, 1);
  off.unscale_(*s.optimizer);
  off.step(*s.optimizer);
  off.update();
  CHECK(s.p.to_vector<float>()[1] == -1);
  CHECK(s.p.to_vector<float>()[0] == -kInf);
  CHECK(off.state_dict().empty());
  off.load_state_dict(on.state_dict());
  on.load_state_dict(off.state_dict());
  set_warning_handler(std::move(before));
  CHECK(warned == std::vector<std::string>{"W-AMP-STATE-IGNORED", "W-AMP-STATE-MISSING"});
  CHECK(off.get_scale() == 1);
  CHECK(on.get_scale() == 65536);
}

TEST_CASE("options of a scaler out of range are refused") {
  CHECK_THROWS_WITH_AS(GradScaler({.init_scale = 0}), doctest::Contains("the scale is 0"), ConfigError);
  CHECK_THROWS_AS(GradScaler({.init_scale = 1e39}), ConfigError);
  CHECK_THROWS_AS(GradScaler({.init_scale = std::nan("")}), ConfigError);
  CHECK_THROWS_AS(GradScaler({.growth_factor = 1}), ConfigError);
  CHECK_THROWS_AS(GradScaler({.backoff_factor = 1}), ConfigError);
  CHECK_THROWS_AS(GradScaler({.backoff_factor = 0}), ConfigError);
  CHECK_THROWS_AS(GradScaler({.growth_interval = 0}), ConfigError);
  CHECK_THROWS_AS(GradScaler({.max_scale = -1}), ConfigError);
  CHECK_THROWS_AS(GradScaler({.init_scale = 65536, .max_scale = 1024}), ConfigError);
}

}  // namespace levin::optim
