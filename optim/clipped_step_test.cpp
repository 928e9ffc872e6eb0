// Steps that clip and unscale gradients as the update reads them, against the passes one by one.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "levin/stream.h"
#include "optim/kinds_test.h"
#if defined(LEVIN_SIMT)
#include "levin/extend.h"
#include "tensor/device/launch_ledger.h"
#endif

namespace levin::optim {
namespace {

const Device cpu = Device::cpu();
constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();

std::vector<std::pair<std::string, Make>> kinds_and_rounding() {
  auto kinds = all_kinds();
  kinds.emplace_back("stochastic", make<AdamW>(AdamWOptions{.lr = 0.1, .rounding = Rounding::stochastic}));
  return kinds;
}

// The gradients of step t times `scale`, one element of the largest tensor times `odd`.
void set_gradients(Net& net, int t, double scale, double odd = 1) {
  net.set_gradients(t);
  for (std::size_t k = 0; k < net.values.size(); ++k) {
    Tensor& p = net.values[k];
    if (!p.grad().defined()) continue;
    std::vector<double> g = p.grad().to(cpu).to(DType::f64).to_vector<double>();
    for (double& x : g) x *= scale;
    if (k == 2) g[4321] *= odd;
    p.set_grad(from_data(g, p.shape(), cpu).to(p.dtype()).to(p.device()));
  }
}
std::vector<double> gradients_of(const Net& net) {
  std::vector<double> all;
  for (const Tensor& p : net.values) {
    if (!p.grad().defined()) continue;
    for (const double x : p.grad().to(cpu).to(DType::f64).to_vector<double>()) all.push_back(x);
  }
  return all;
}

// Bits, except that one NaN is as good as another.
void check_equal(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    CAPTURE(i);
    REQUIRE((a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))));
  }
}
void check_equal(const Tensor& a, const Tensor& b) {
  check_equal(a.to(cpu).to(DType::f64).to_vector<double>(), b.to(cpu).to(DType::f64).to_vector<double>());
}
void check_equal(const Net& a, const Net& b) {
  check_equal(a.all(), b.all());
  const NamedTensors x = a.optimizer->state_dict(), y = b.optimizer->state_dict();
  REQUIRE(x.size() == y.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    CAPTURE(x[i].first);
    REQUIRE(x[i].first == y[i].first);
    check_equal(x[i].second, y[i].second);
  }
}

void four_calls(GradScaler& scaler, Optimizer& optimizer, const ScaledStep& how) {
  scaler.unscale_(optimizer, how.divisor);
  if (how.max_norm) clip_grads_with_norm_(optimizer.parameters(), *how.max_norm, scaler.grad_norm(optimizer));
  scaler.step(optimizer);
  if (how.update) scaler.update();
}

}  // namespace

TEST_CASE("a clipped step has the bits of clip_grad_norm_ and step, for each optimizer, dtype and norm") {
  for (const Device device : devices()) {
    for (const auto& [name, kind] : kinds_and_rounding()) {
      for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
        for (const bool masters : {false, true}) {
          if (masters && itemsize(dtype) != 2) continue;
          CAPTURE(text(device));
          CAPTURE(name);
          CAPTURE(text(dtype));
          CAPTURE(masters);
          Net one(kind, device, dtype), two(kind, device, dtype);
          for (Net* net : {&one, &two})
            if (masters) net->optimizer->use_master_weights();
          CHECK(one.optimizer->fuses_clipping() == device.launches());
          // The norm is near 50: not clipped, clipped, clipped by another factor, infinite, NaN.
          const std::pair<double, double> steps[] = {{1000, 1}, {3, 1}, {0.7, 1}, {3, kInf}, {3, kNan}};
          int t = 0;
          for (const auto& [max_norm, odd] : steps) {
            CAPTURE(t);
            for (Net* net : {&one, &two}) set_gradients(*net, t, 1, odd);
            const Tensor norm = one.optimizer->step_clipped(max_norm);
            two.optimizer->gather_gradients();
            const Tensor expected = clip_grad_norm_(two.optimizer->parameters(), max_norm);
            two.optimizer->step();
            CHECK(norm.device() == device);
            check_equal(norm, expected);
            check_equal(one, two);
            ++t;
          }
        }
      }
    }
  }
}

TEST_CASE("a scaled step with options has the bits of unscale_, clipping, step and update") {
  for (const Device device : devices()) {
    for (const auto& [name, kind] : kinds_and_rounding()) {
      for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
        for (const bool clips : {false, true}) {
          CAPTURE(text(device));
          CAPTURE(name);
          CAPTURE(text(dtype));
          CAPTURE(clips);
          Net one(kind, device, dtype), two(kind, device, dtype);
          // No power of two, so that unscaling rounds.
          const GradScalerOptions options{.init_scale = 1000, .growth_factor = 1.7, .growth_interval = 2};
          GradScaler a(options), b(options);
          for (Net* net : {&one, &two})
            if (itemsize(dtype) == 2) net->optimizer->use_master_weights();
          (void)a.scale(device), (void)b.scale(device);
          int t = 0;
          for (const double odd : {1.0, 1.0, kInf, 1.0, kNan, -2.0, 1.0}) {
            CAPTURE(t);
            const double scale = a.get_scale();
            for (Net* net : {&one, &two}) set_gradients(*net, t, scale, odd);
            ScaledStep how{.update = true};
            if (clips) how.max_norm = t == 3 ? 1000 : 0.7;
            if (t == 5) how.divisor = tensor({float(3 * scale)}, device);
            a.step(*one.optimizer, how);
            four_calls(b, *two.optimizer, how);
            check_equal(a.found_inf(*one.optimizer), b.found_inf(*two.optimizer));
            check_equal(a.grad_norm(*one.optimizer), b.grad_norm(*two.optimizer));
            CHECK(a.found_inf(*one.optimizer).item() == (std::isfinite(odd) ? 0 : 1));
            check_equal(one, two);
            CHECK(same_state(a.state_dict(), b.state_dict()));
            ++t;
          }
          CHECK(a.skipped_steps() == 2);
        }
      }
    }
  }
}

TEST_CASE("a step that clips on a device leaves gradients as backward wrote them, and masters get none") {
  DEVICE_OR_SKIP();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Net net(make<AdamW>(AdamWOptions{}), device, dtype);
    if (dtype == DType::bf16) net.optimizer->use_master_weights();
    set_gradients(net, 0, 65536);
    const std::vector<double> before = gradients_of(net);
    GradScaler scaler;
    (void)scaler.scale(device);
    scaler.step(*net.optimizer, {.max_norm = 0.5, .update = true});
    CHECK(gradients_of(net) == before);
    (void)net.optimizer->step_clipped(0.5);
    CHECK(gradients_of(net) == before);
    for (const ParamRef& p : net.optimizer->parameters()) CHECK(p.value->grad().defined() == (dtype == DType::f32));
    // Passes in memory take them from there.
    scaler.unscale_(*net.optimizer);
    CHECK(net.optimizer->parameters().front().value->grad().defined());
    CHECK(scaler.grad_norm(*net.optimizer).item() < 100);
  }
}

TEST_CASE("recorded on a device, scaled steps with options equal eager ones, overflows and a moving rate included") {
  DEVICE_OR_SKIP();
  for (const auto& [name, kind] : all_kinds()) {
    for (const DType dtype : {DType::f32, DType::f16}) {
      CAPTURE(name);
      CAPTURE(text(dtype));
      Net eager(kind, device, dtype), replayed(kind, device, dtype);
      Net* const nets[2] = {&eager, &replayed};
      GradScaler scalers[2] = {GradScaler({.init_scale = 1024, .growth_interval = 2}),
                               GradScaler({.init_scale = 1024, .growth_interval = 2})};
      const auto set = [&](int k, int t) {
        Net& net = *nets[k];
        for (std::size_t i = 0; i < net.values.size(); ++i) {
          Tensor& p = net.values[i];
          Tensor g = gradient(p.shape(), t, device, p.dtype()) * scalers[k].scale(device).to(p.dtype());
          if (t == 3 && i == 2) g = g * full({}, kInf, device, p.dtype());
          if (!p.grad().defined()) p.set_grad(empty_like(p));
          Tensor slot = p.grad();
          copy_(slot, g);
        }
      };
      const auto step = [&](int k) { scalers[k].step(*nets[k]->optimizer, {.max_norm = 5, .update = true}); };
      for (int k = 0; k < 2; ++k) {
        if (dtype == DType::f16) nets[k]->optimizer->use_master_weights();
        set(k, 0);
        step(k);
      }
      Graph graph(Stream::current(device), [&] { step(1); });
      if (name != "lamb") CHECK(graph.memory_bytes() == 0);  // the norms of its parameters
      for (int t = 1; t < 7; ++t) {
        for (int k = 0; k < 2; ++k) {
          nets[k]->optimizer->set_lr(0, 0.1 / (t + 1));
          set(k, t);
        }
        step(0);
        replayed.optimizer->prepare_replay();
        graph.replay();
      }
      check_equal(eager, replayed);
      CHECK(same_state(scalers[0].state_dict(), scalers[1].state_dict()));
      CHECK(scalers[1].skipped_steps() == 1);
    }
  }
}

TEST_CASE("groups, pieces and more parameters than a table take: a clipped step has the bits of its passes") {
  for (const Device device : devices()) {
    for (const bool many : {false, true}) {
      CAPTURE(text(device));
      CAPTURE(many);
      std::vector<Tensor> values[2];
      std::unique_ptr<AdamW> optimizers[2];
      for (int k = 0; k < 2; ++k) {
        for (int i = 0; i < (many ? 830 : 6); ++i)
          values[k].push_back(
              full({1 + i % 3}, 0.1 * i, device, i % 2 == 0 ? DType::f32 : DType::f64).requires_grad_());
        Parameters first, second;
        for (std::size_t i = 0; i < values[k].size(); ++i)
          (i < 2 ? second : first).push_back({.value = &values[k][i], .name = text(i)});
        optimizers[k] = std::make_unique<AdamW>(first, AdamWOptions{.lr = 0.1});
        optimizers[k]->add_group(second, {.lr = 0.01});
      }
      GradScaler a, b;
      (void)a.scale(device), (void)b.scale(device);
      for (int t = 0; t < 3; ++t) {
        for (int k = 0; k < 2; ++k)
          for (Tensor& p : values[k]) p.set_grad(gradient(p.shape(), t, device, p.dtype()) * 65536);
        a.step(*optimizers[0], {.max_norm = 0.5, .update = true});
        four_calls(b, *optimizers[1], {.max_norm = 0.5, .update = true});
        for (std::size_t i = 0; i < values[0].size(); ++i) check_equal(values[0][i], values[1][i]);
      }
    }
    Net one(make<Adam>(AdamOptions{}), device, DType::f32), two(make<Adam>(AdamOptions{}), device, DType::f32);
    for (Net* net : {&one, &two}) {
      net->optimizer->use_pieces([&](const ParamRef& p) {
        return Optimizer::Piece{as_strided(*p.value, {p.value->numel()}, {1}, 0), 0};
      });
      for (const ParamRef& p : net->optimizer->pieces())
        p.value->set_grad(gradient(p.value->shape(), 1, device, DType::f32));
    }
    CHECK_FALSE(one.optimizer->fuses_clipping());
    (void)one.optimizer->step_clipped(0.5);
    (void)clip_grad_norm_(two.optimizer->parameters(), 0.5);
    two.optimizer->step();
    check_equal(one, two);
  }
}

TEST_CASE("optimizers that share a scaler move the scale by the gradients of all, in the last step") {
  for (const Device device : devices()) {
    CAPTURE(text(device));
    const Make sgd = make<SGD>(SGDOptions{.lr = 1});
    Net a(sgd, device, DType::f32), b(sgd, device, DType::f32);
    GradScaler scaler;
    (void)scaler.scale(device);
    for (const double odd : {kInf, 1.0}) {
      const double before = scaler.get_scale();
      set_gradients(a, 0, before, odd);
      set_gradients(b, 0, before);
      scaler.step(*a.optimizer, {.max_norm = 1});
      CHECK(scaler.get_scale() == before);
      CHECK_THROWS_WITH_AS(scaler.step(*a.optimizer, {.max_norm = 1}), doctest::Contains("step() was already called"),
                           StateError);
      scaler.step(*b.optimizer, {.max_norm = 1, .update = true});
      CHECK(scaler.get_scale() == (odd == 1 ? before : before / 2));
    }
    CHECK(scaler.skipped_steps() == 1);
    CHECK(a.steps() == 1);
    CHECK(b.steps() == 2);
  }
}

TEST_CASE("a step with options after unscale_ clips what is there; wrong calls are refused and change nothing") {
  for (const Device device : devices()) {
    CAPTURE(text(device));
    Net one(make<Adam>(AdamOptions{}), device, DType::f32), two(make<Adam>(AdamOptions{}), device, DType::f32);
    GradScaler a, b;
    set_gradients(one, 0, 65536), set_gradients(two, 0, 65536);
    CHECK_THROWS_WITH_AS(a.step(*one.optimizer, {.max_norm = 1}), doctest::Contains("before scale()"), StateError);
    (void)a.scale(device), (void)b.scale(device);
    CHECK_THROWS_WITH_AS(a.step(*one.optimizer, {.max_norm = -1}), doctest::Contains("max_norm is -1"), ConfigError);
    CHECK_THROWS_WITH_AS(a.step(*one.optimizer, {.divisor = tensor({1.0}, device)}), doctest::Contains("the divisor"),
                         ShapeError);
    CHECK_THROWS_WITH_AS((void)one.optimizer->step_clipped(kNan), doctest::Contains("max_norm is nan"), ConfigError);
    a.unscale_(*one.optimizer);
    CHECK_THROWS_WITH_AS(a.step(*one.optimizer, {.divisor = tensor({1.0F}, device)}),
                         doctest::Contains("a divisor after unscale_"), StateError);
    a.step(*one.optimizer, {.max_norm = 0.5, .update = true});
    four_calls(b, *two.optimizer, {.max_norm = 0.5, .update = true});
    check_equal(one, two);
    CHECK(same_state(a.state_dict(), b.state_dict()));
    one.optimizer->zero_grad();
    CHECK_THROWS_WITH_AS(a.step(*one.optimizer, {.max_norm = 1}), doctest::Contains("none of its parameters"),
                         StateError);
    CHECK(one.optimizer->step_clipped(1).item() == 0);
    check_equal(one, two);
    GradScaler off({.enabled = false});
    set_gradients(one, 1, 1), set_gradients(two, 1, 1);
    off.step(*one.optimizer, {.max_norm = 0.5, .update = true});
    (void)two.optimizer->step_clipped(0.5);
    check_equal(one, two);
  }
  Tensor p = ones({2}, cpu).requires_grad_();
  LBFGS lbfgs({{.value = &p, .name = "p"}});
  CHECK_FALSE(lbfgs.fuses_clipping());
  CHECK_THROWS_WITH_AS((void)lbfgs.step_clipped(1), doctest::Contains("in its closure"), ConfigError);
  GradScaler scaler;
  (void)scaler.scale(cpu);
  CHECK_THROWS_AS(scaler.step(lbfgs, {.max_norm = 1}), ConfigError);
  Tensor shape = empty({2}, Device::meta()).requires_grad_();
  shape.set_grad(empty({2}, Device::meta()));
  SGD planned({{.value = &shape, .name = "shape"}});
  CHECK(planned.step_clipped(1).device().is_meta());
}

TEST_CASE("on a device, an optimizer of a user's class is clipped in memory, because its update may read gradients") {
  DEVICE_OR_SKIP();
  struct Own : Adam {
    using Adam::Adam;
  };
  Net one(make<Own>(AdamOptions{}), device, DType::f32), two(make<Adam>(AdamOptions{}), device, DType::f32);
  CHECK_FALSE(one.optimizer->fuses_clipping());
  set_gradients(one, 0, 1), set_gradients(two, 0, 1);
  (void)one.optimizer->step_clipped(0.5);
  (void)two.optimizer->step_clipped(0.5);
  check_equal(one, two);
  CHECK(gradients_of(one) != gradients_of(two));
}

#if defined(LEVIN_SIMT)
TEST_CASE("a step that unscales, clips and moves the scale is two launches, with masters too, and a plain step one") {
  const Device simt = Device::simt();
  struct Ledger : detail::LaunchLedger {
    Ledger() { detail::mode().detour = true; }
    std::size_t launches() {
      std::size_t all = 0;
      for (const auto& call : take()) all += call.launches.size();
      return all;
    }
  };
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    for (const auto& [name, kind] : all_kinds()) {
      CAPTURE(name);
      Net net(kind, simt, dtype);
      const bool masters = dtype == DType::bf16;
      if (masters) net.optimizer->use_master_weights();
      GradScaler scaler;
      (void)scaler.scale(simt);
      for (int t = 0; t < 2; ++t) {
        for (Tensor& p : net.values) set_gradient(p, t);
        Ledger ledger;
        scaler.step(*net.optimizer, {.max_norm = 1, .update = true});
        const std::size_t scaled = ledger.launches();
        (void)net.optimizer->step_clipped(1);
        const std::size_t clipped = ledger.launches();
        net.optimizer->step();
        const std::size_t plain = ledger.launches();
        if (t == 0) continue;  // the first step makes the state
        const std::size_t passes = name == "lamb" ? 2 : 1;
        CHECK(scaled == passes + 1);
        CHECK(clipped == passes + 1);
        CHECK(plain == passes);
        for (const ParamRef& p : net.optimizer->parameters()) CHECK(p.value->grad().defined() == !masters);
      }
    }
  }
}
#endif

}  // namespace levin::optim
