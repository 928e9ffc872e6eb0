#include <doctest/doctest.h>

#include <vector>

#include "levin/autograd.h"
#include "tests/ops/samples.h"

namespace levin {
namespace {

using namespace testing;
const Device cpu = Device::cpu();

LEVIN_OP_CASE(hook_gradient) {
  OpCase c{.ops = {"hook_gradient"}, .dtypes = kAllDTypes};
  for (const Shape& s : {Shape{}, Shape{1}, Shape{0}, Shape{3, 5}}) {
    c.samples.push_back(
        {.inputs = {real(s)},
         .call =
             [](const Tensors& in) { return Tensors{hook_gradient(in[0], [](const Tensor&) { return Tensor(); })}; },
         .reference = [](const Tensors& in) { return Tensors{in[0]}; }});
  }
  c.errors.push_back(
      {"an empty hook", [] { (void)hook_gradient(zeros({2}, cpu), {}); }, throws<ConfigError>, "the hook is empty"});
  const auto returning = [](const Tensor& g) {
    return [g] {
      Tensor x = ones({2}, cpu);
      x.requires_grad_();
      backward(sum(hook_gradient(x, [g](const Tensor&) { return g; })));
    };
  };
  c.errors.push_back(
      {"another shape", returning(zeros({3}, cpu)), throws<ShapeError>, "expected the gradient's shape"});
  c.errors.push_back(
      {"another dtype", returning(zeros({2}, cpu, DType::f64)), throws<DTypeError>, "expected the gradient's dtype"});
  c.errors.push_back(
      {"another device", returning(zeros({2}, Device::meta())), throws<DeviceError>, "expected a tensor on cpu"});
  return c;
}

TEST_CASE("a hook on an inner tensor sees its whole gradient, replaces it, and is part of higher derivatives") {
  Tensor x = tensor({2.0, 3.0}, cpu);
  x.requires_grad_();
  std::vector<double> seen;
  int calls = 0;
  const auto run = [&](const Function<Tensor(const Tensor&)>& hook) {
    const Tensor inner = hook_gradient(x * x, hook);
    return sum(inner * inner + inner);  // two paths into inner
  };
  const auto look = [&](const Tensor& g) {
    seen = g.to_vector<double>();
    ++calls;
    return Tensor();
  };
  backward(run(look));
  CHECK(calls == 1);
  CHECK(seen == std::vector<double>{9, 19});
  CHECK(x.grad().to_vector<double>() == std::vector<double>{36, 114});
  x.set_grad({});
  backward(run([](const Tensor& g) { return g * 0.5; }));
  CHECK(x.grad().to_vector<double>() == std::vector<double>{18, 57});
  // The derivative of (2 inner + 1) x: the second backward passes through the hook, too, so that of inner is x.
  const Tensor first = grad(run([](const Tensor& g) { return g * 0.5; }), std::span(&x, 1), {.create_graph = true})[0];
  CHECK(grad(sum(first), std::span(&x, 1))[0].to_vector<double>() == std::vector<double>{17, 37});
  // Without a graph nothing calls it.
  const NoGrad off;
  calls = 0;
  CHECK(run(look).item() == 4 * 4 + 4 + 81 + 9);
  CHECK(calls == 0);
}

}  // namespace
}  // namespace levin
