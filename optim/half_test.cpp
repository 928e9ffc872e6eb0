// Parameters of 16 bits: f32 arithmetic, one rounding, to the nearest or at random.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/device/rounding.cuh"
#include "levin/stream.h"
#include "optim/kinds_test.h"

namespace levin::optim {
namespace {

const Device cpu = Device::cpu();
constexpr DType kHalves[] = {DType::f16, DType::bf16};

const Make stochastic = make<SGD>(SGDOptions{.lr = 0.5, .rounding = Rounding::stochastic});

}  // namespace

TEST_CASE("a 16-bit parameter's step is the f32 step from its value, rounded once") {
  for (const Device device : devices()) {
    for (const auto& [name, kind] : all_kinds()) {
      for (const DType dtype : kHalves) {
        CAPTURE(text(device));
        CAPTURE(name);
        Net half(kind, device, dtype), wide(kind, device, DType::f32);
        for (int t = 0; t < 3; ++t) {
          half.set_gradients(t);
          for (std::size_t k = 0; k < half.values.size(); ++k) {
            // The f32 net starts each step from the rounded values, with the rounded gradients.
            const Tensor g = half.values[k].grad();
            copy_(wide.values[k].requires_grad_(false), half.values[k].detach());
            wide.values[k].requires_grad_();
            wide.values[k].set_grad(g.defined() ? g.to(DType::f32) : Tensor{});
          }
          half.optimizer->step();
          wide.optimizer->step();
          for (std::size_t k = 0; k < half.values.size(); ++k)
            CHECK(same_bits(half.values[k].detach().to(DType::f64), wide.values[k].detach().to(dtype).to(DType::f64)));
        }
        // Their states are the same f32 tensors.
        CHECK(same_state(half.optimizer->state_dict(), wide.optimizer->state_dict()));
      }
    }
  }
}

TEST_CASE("random rounding goes to a neighbour, exact values stay, and the mean is what was to be rounded") {
  const auto check = [&]<class H>(H, double x) {
    CAPTURE(x);
    // The neighbours, from bits.
    const float f = static_cast<float>(x);
    double sum = 0, low = std::numeric_limits<double>::infinity(), high = -low;
    const int n = 1 << 16;
    for (int i = 0; i < n; ++i) {
      // Every upper half of a word once: the mean of the 13 or 16 bits that are used is exact.
      const H h = kernels::round_stochastically<H>(f, static_cast<std::uint32_t>(i) << 16);
      const double v = static_cast<double>(static_cast<float>(h));
      sum += v;
      low = std::min(low, v);
      high = std::max(high, v);
    }
    CHECK(low <= f);
    CHECK(high >= f);
    const double step = high - low;
    if (step == 0) CHECK(low == static_cast<double>(f));
    // A part below 1 of 8192 (f16), or of 65536, is cut off.
    CHECK(std::abs(sum / n - static_cast<double>(f)) <= step / 8192);
    // One step apart, not more.
    CHECK(static_cast<float>(H(static_cast<float>(low + 0.75 * step))) == static_cast<float>(high));
  };
  for (const double x : {1.0, 1.0001, -1.0003, 3.14159, -1000.7, 6.1e-5, 5.9e-5, -3.3e-6, 2e-8, 65503.0, 0.0})
    check(f16{}, x);
  for (const double x : {1.0, 1.001, -1.003, 3.14159, -1e30, 1e-30, 2e-39, 0.0}) check(bf16{}, x);
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(static_cast<float>(kernels::round_stochastically<f16>(-inf, ~0u)) == -inf);
  CHECK(static_cast<float>(kernels::round_stochastically<f16>(65519.0f, ~0u)) == 65504);
  CHECK(static_cast<float>(kernels::round_stochastically<f16>(1e6f, 0)) == inf);
  CHECK(std::isnan(static_cast<float>(kernels::round_stochastically<f16>(nan, ~0u))));
  CHECK(std::isnan(static_cast<float>(kernels::round_stochastically<bf16>(nan, ~0u))));
}

TEST_CASE("changes below half a step add up with random rounding, and are lost without") {
  for (const DType dtype : kHalves) {
    const std::int64_t n = 4096;
    const int steps = 64;
    const double step = epsilon(dtype) / 2;  // of numbers below 1, which p is after the first change
    Tensor lost = ones({n}, cpu, dtype), kept = ones({n}, cpu, dtype);
    lost.requires_grad_();
    kept.requires_grad_();
    SGD nearest({{.value = &lost, .name = "p"}}, {.lr = 0.5});
    const auto random = stochastic({{.value = &kept, .name = "p"}});
    for (int t = 0; t < steps; ++t) {
      const Tensor g = full({n}, step / 8, cpu, dtype);  // times lr: 1/16 of a step
      lost.set_grad(g);
      kept.set_grad(g.clone());
      nearest.step();
      random->step();
    }
    CHECK(same_bits(lost.detach().to(DType::f64), ones({n}, cpu, DType::f64)));
    // Each element draws 64 times with 1/16: 4 steps on average, with a variance of 3.75 steps^2. Six deviations.
    const double got = mean(kept.detach().to(DType::f64)).item();
    CHECK(std::abs(got - (1 - 4 * step)) <= 6 * std::sqrt(3.75 / n) * step);
  }
}

namespace {

// Two parameters with the same values, of a size that no vector width divides.
struct Twins {
  Tensor a, b;
  std::unique_ptr<Optimizer> optimizer;
  Twins(Device device, DType dtype) {
    for (Tensor* t : {&a, &b}) {
      *t = linspace(-2, 2, 5003, cpu, DType::f64).to(dtype).to(device);
      t->requires_grad_();
    }
    optimizer = stochastic({{.value = &a, .name = "a"}, {.value = &b, .name = "b"}});
  }
  void step(int t) {
    set_gradient(a, t);
    set_gradient(b, t);
    optimizer->step();
  }
  [[nodiscard]] std::vector<double> all() const {
    auto v = a.detach().to(DType::f64).to_vector<double>();
    const auto w = b.detach().to(DType::f64).to_vector<double>();
    v.insert(v.end(), w.begin(), w.end());
    return v;
  }
};

}  // namespace

TEST_CASE(
    "random rounding has the same bits in each run, on each device, for any number of threads, and after a resume") {
  for (const DType dtype : kHalves) {
    Twins first(cpu, dtype);
    for (int t = 0; t < 3; ++t) first.step(t);
    CHECK_FALSE(same_bits(first.a.detach().to(DType::f64), first.b.detach().to(DType::f64)));
    const int threads = num_threads();
    set_num_threads(3);
    // A learning rate of 1/2 leaves one rounding in each step, on every device.
    for (const Device device : devices()) {
      CAPTURE(text(device));
      Twins again(device, dtype), resumed(device, dtype);
      for (int t = 0; t < 2; ++t) again.step(t);
      resumed.optimizer->load_state_dict(again.optimizer->state_dict());
      copy_(resumed.a.requires_grad_(false), again.a.detach());
      copy_(resumed.b.requires_grad_(false), again.b.detach());
      resumed.a.requires_grad_();
      resumed.b.requires_grad_();
      again.step(2);
      resumed.step(2);
      CHECK(again.all() == first.all());
      CHECK(resumed.all() == first.all());
    }
    set_num_threads(threads);
  }
}

TEST_CASE("long and short gradients of any dtype are clipped together, with the same bits on any number of threads") {
  const double inf = std::numeric_limits<double>::infinity();
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    CAPTURE(name(dtype));
    Generator generator(7);
    std::vector<Tensor> values, gradients;
    Parameters all;
    for (const std::int64_t n : {5, 40'000, 1, 0, 70'001, 1024}) {
      values.push_back(zeros({n}, Device::cpu(), dtype).requires_grad_());
      gradients.push_back(randn({n}, generator, Device::cpu(), dtype));
    }
    for (Tensor& v : values) all.push_back({&v, "p", nullptr});
    const auto give = [&] {
      for (std::size_t i = 0; i < values.size(); ++i) values[i].set_grad(gradients[i].clone());
    };
    const auto elements = [&] {
      std::vector<double> every;
      for (const Tensor& v : values) {
        for (const double g : v.grad().to(DType::f64).to_vector<double>()) every.push_back(g);
      }
      return every;
    };
    give();
    const std::vector<double> before = elements();
    for (const double p : {1.0, 2.0, 3.0, inf}) {
      CAPTURE(p);
      double sum = 0;
      for (const double g : before) sum = p == inf ? std::max(sum, std::abs(g)) : sum + std::pow(std::abs(g), p);
      const double norm = p == inf ? sum : std::pow(sum, 1 / p);
      std::vector<double> clipped[2];
      double norms[2];
      const int threads = num_threads();
      for (const int k : {0, 1}) {
        set_num_threads(k == 0 ? 1 : 3);
        give();
        norms[k] = clip_grad_norm_(all, norm / 2, p).item();
        clipped[k] = elements();
      }
      set_num_threads(threads);
      CHECK(norms[0] == norms[1]);
      CHECK(norms[0] == doctest::Approx(norm).epsilon(1e-12));
      CHECK(clipped[0] == clipped[1]);
      bool halved = true;
      for (std::size_t i = 0; i < before.size(); ++i)
        halved = halved && std::abs(clipped[0][i] - before[i] / 2) <= std::abs(before[i]) * epsilon(dtype) + 1e-6;
      CHECK(halved);
    }
    give();
    clip_grad_value_(all, 0.5);
    const std::vector<double> cut = elements();
    bool inside = true;
    for (std::size_t i = 0; i < before.size(); ++i) inside = inside && cut[i] == std::clamp(before[i], -0.5, 0.5);
    CHECK(inside);
    give();
    values[4].set_grad(
        where(eq(arange(70'001, Device::cpu()), 50'000), full({}, std::nan(""), Device::cpu(), dtype), gradients[4]));
    for (const double p : {2.0, inf}) CHECK(std::isnan(clip_grad_norm_(all, 1e9, p).item()));
  }
}

TEST_CASE("16-bit gradients are clipped with a norm in double and one rounding") {
  for (const Device device : devices()) {
    for (const DType dtype : kHalves) {
      CAPTURE(text(device));
      Net net(stochastic, device, dtype);
      net.set_gradients(0);
      std::vector<double> before, after;
      double square = 0;
      for (Tensor& p : net.values) {
        for (const double g : p.grad().to(DType::f64).to_vector<double>()) {
          before.push_back(g);
          square += g * g;
        }
      }
      const double norm = clip_grad_norm_(net.parameters(), 2).item();
      CHECK(std::abs(norm - std::sqrt(square)) <= 1e-12 * norm);
      const auto factor = static_cast<float>(2 / (norm + 1e-6));
      for (Tensor& p : net.values) {
        for (const double g : p.grad().to(DType::f64).to_vector<double>()) after.push_back(g);
      }
      for (double& g : before) g *= static_cast<double>(factor);
      // Half a step of the dtype, a f32 rounding before it, and f16's steps of 2^-24 near 0.
      REQUIRE(after.size() == before.size());
      for (std::size_t i = 0; i < after.size(); ++i)
        REQUIRE(std::abs(after[i] - before[i]) <= 0.5001 * epsilon(dtype) * std::abs(before[i]) + 0x1p-25);
      clip_grad_value_(net.parameters(), 0.01);
      const double limit = full({}, 0.01, cpu, dtype).item();
      for (Tensor& p : net.values) {
        for (const double g : p.grad().to(DType::f64).to_vector<double>()) REQUIRE(std::abs(g) <= limit);
      }
    }
  }
}

}  // namespace levin::optim
