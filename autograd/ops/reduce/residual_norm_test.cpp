#include <doctest/doctest.h>

#include "levin/levin.h"
#include "tests/device.h"
#include "tests/ops/samples.h"
#include "tests/skip.h"
#if defined(LEVIN_SIMT)
#include "tensor/device/launch_ledger.h"
#endif

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();
constexpr double kRmsEps = 1e-6;  // of every dtype

Tensor at(const Tensors& in, std::size_t i) { return in.size() > i ? in[i] : Tensor(); }
AddNorm in_two_ops(bool centered, const Tensor& x, const Tensor& r, const Tensor& w, const Tensor& b) {
  const Tensor h = x + r.to(x.dtype());
  return {h, (centered ? layer_norm(h, w, b) : rms_norm(h, w, kRmsEps)).to(r.dtype())};
}
AddNorm in_one(bool centered, const Tensor& x, const Tensor& r, const Tensor& w, const Tensor& b) {
  return centered ? add_layer_norm(x, r, w, b) : add_rms_norm(x, r, w, kRmsEps);
}

OpCase case_of(bool centered) {
  OpCase c{.ops = centered ? std::vector<std::string>{"add_layer_norm", "add_layer_norm_backward"}
                           : std::vector<std::string>{"add_rms_norm", "add_rms_norm_backward"},
           .dtypes = kFloatDTypes,
           .ulps = 16,
           .sums = 10};
  const auto add = [&](Shape x, std::optional<Shape> w, bool bias) {
    OpSample s{.inputs = {real(x), real(x)},
               .call =
                   [centered](const Tensors& in) {
                     const AddNorm y = in_one(centered, in[0], in[1], at(in, 2), at(in, 3));
                     return Tensors{y.sum, y.normed};
                   },
               .reference =
                   [centered](const Tensors& in) {
                     const AddNorm y = in_two_ops(centered, in[0], in[1], at(in, 2), at(in, 3));
                     return Tensors{y.sum, y.normed};
                   }};
    if (w) s.inputs.push_back(optional(real(*w)));
    if (bias && centered) s.inputs.push_back(optional(real(*w)));
    c.samples.push_back(std::move(s));
  };
  add({1, 1}, Shape{1}, true);
  add({3, 5}, Shape{5}, true);
  add({2, 2, 3}, Shape{2, 3}, true);
  add({4, 6}, std::nullopt, false);
  add({2, 3, 4}, Shape{4}, false);
  add({0, 4}, Shape{4}, true);
  add({9, 1000}, Shape{1000}, true);
  add({3, 1100}, Shape{1100}, true);
  const auto error = [&](const char* what, auto call, auto is, const char* text) {
    c.errors.push_back({what, call, is, (centered ? "add_layer_norm: " : "add_rms_norm: ") + std::string(text)});
  };
  const auto call = [centered](Shape x, Shape r, Shape w, DType of_r = DType::f32, double eps = 1e-5) {
    const Tensor a = zeros(x, cpu), b = zeros(r, cpu, of_r), scale = zeros(w, cpu);
    (void)(centered ? add_layer_norm(a, b, scale, {}, eps) : add_rms_norm(a, b, scale, eps));
  };
  error(
      "shape of r",
      [call] {
        call({2, 3}, {3}, {3});
      },
      throws<ShapeError>, "r has shape [3], expected x's [2, 3]");
  error(
      "dtype of r",
      [call] {
        call({2, 3}, {2, 3}, {3}, DType::f64);
      },
      throws<DTypeError>, "r is f64 and x f32");
  error(
      "weight",
      [call] {
        call({2, 3}, {2, 3}, {2});
      },
      throws<ShapeError>, "weight has shape [2]");
  error(
      "eps",
      [call] {
        call({2, 3}, {2, 3}, {3}, DType::f32, -1);
      },
      throws<ConfigError>, "eps is -1");
  return c;
}

// Outputs and gradients of x, r, weight and bias.
Tensors all_of(bool centered, bool fused, Device device, DType x_type, DType r_type, std::int64_t cols) {
  Generator gen(3);
  const auto leaf = [&](Shape shape, DType dtype) {
    Tensor t = (rand(std::move(shape), gen, cpu) * 2 - 1).to(dtype).to(device).detach();
    t.requires_grad_();
    return t;
  };
  const Tensor x = leaf({7, cols}, x_type), r = leaf({7, cols}, r_type), w = leaf({cols}, DType::f32),
               b = leaf({cols}, DType::f32);
  const Tensor gh = leaf({7, cols}, x_type).detach(), gy = leaf({7, cols}, r_type).detach();
  const AddNorm y = fused ? in_one(centered, x, r, w, b) : in_two_ops(centered, x, r, w, b);
  Tensors wanted{x, r, w};
  if (centered) wanted.push_back(b);
  Tensors all = grad(Tensors{y.sum, y.normed}, wanted, Tensors{gh, gy});
  all.push_back(y.sum.detach());
  all.push_back(y.normed.detach());
  return all;
}

}  // namespace

LEVIN_OP_CASE(add_layer_norm) { return case_of(true); }
LEVIN_OP_CASE(add_rms_norm) { return case_of(false); }

TEST_CASE("a residual norm has the values of an addition and a norm, and keeps the dtypes of its operands") {
  const std::vector<Device> devices = test::all_devices();
  const std::pair<DType, DType> dtypes[] = {
      {DType::f32, DType::f32}, {DType::f32, DType::bf16}, {DType::f32, DType::f16}, {DType::bf16, DType::bf16}};
  for (const Device device : devices)
    for (const bool centered : {true, false})
      for (const auto& [x, r] : dtypes)
        for (const std::int64_t cols : {1, 30, 64, 1100, 60001}) {
          CAPTURE(text(device));
          CAPTURE(text(x));
          CAPTURE(text(r));
          CAPTURE(cols);
          const Tensors one = all_of(centered, true, device, x, r, cols),
                        two = all_of(centered, false, device, x, r, cols);
          REQUIRE(one.size() == two.size());
          for (std::size_t i = 0; i < one.size(); ++i) {
            CAPTURE(i);
            REQUIRE(one[i].dtype() == two[i].dtype());
            const auto a = one[i].to(cpu).to(DType::f64).to_vector<double>(),
                       b = two[i].to(cpu).to(DType::f64).to_vector<double>();
            double most = 0, largest = 0;
            for (std::size_t k = 0; k < a.size(); ++k) {
              most = std::max(most, std::abs(a[k] - b[k]));
              largest = std::max(largest, std::abs(b[k]));
            }
            // Gradients of the stream round where two ops round once more.
            CHECK(most <= 2 * epsilon(one[i].dtype()) * largest);
          }
        }
}

#if defined(LEVIN_SIMT)
TEST_CASE("a residual norm is one launch, and its backward one with another for the parameters") {
  const Device simt = Device::simt();
  struct Ledger : detail::LaunchLedger {
    Ledger() { detail::mode().detour = true; }
  };
  Generator gen(1);
  Tensor x = rand({8, 64}, gen, simt), r = rand({8, 64}, gen, simt), w = ones({64}, simt), b = zeros({64}, simt);
  for (Tensor* t : {&x, &r, &w, &b}) t->requires_grad_();
  const Tensor g = rand({8, 64}, gen, simt);
  Ledger ledger;
  const AddNorm y = add_layer_norm(x, r, w, b);
  CHECK(ledger.take().size() == 1);
  (void)grad(Tensors{y.sum, y.normed}, Tensors{x, r, w, b}, Tensors{g, g});
  const auto calls = ledger.take();
  REQUIRE(calls.size() == 1);
  CHECK(calls[0].op == "add_layer_norm_backward");
  CHECK(calls[0].launches.size() == 2);
}
#endif

}  // namespace levin::testing
