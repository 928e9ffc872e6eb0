#include <doctest/doctest.h>

#include <cmath>

#include "tests/device.h"
#include "tests/ops/samples.h"
#include "tests/skip.h"

namespace levin::testing {
namespace {

const Device cpu = Device::cpu();

double gelu_of(double z, GeluForm form) {
  if (form == GeluForm::erf) return 0.5 * z * std::erfc(-z / std::sqrt(2.0));
  return 0.5 * z * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (z + 0.044715 * z * z * z)));
}

// f(x W^T + b) in plain loops over f64.
template <class F>
std::vector<double> layer(const std::vector<double>& x, std::int64_t rows, const Tensor& w, const Tensor& b, F f) {
  const std::int64_t out = w.size(0), in = w.size(1);
  const std::vector<double> weight = w.contiguous().to_vector<double>();
  const std::vector<double> bias =
      b.defined() ? b.contiguous().to_vector<double>() : std::vector<double>(std::size_t(out));
  std::vector<double> y;
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < out; ++j) {
      double sum = bias[std::size_t(j)];
      for (std::int64_t k = 0; k < in; ++k) sum += x[std::size_t(i * in + k)] * weight[std::size_t(j * in + k)];
      y.push_back(f(sum));
    }
  }
  return y;
}

Tensor reference(const Tensor& x, const Tensor& w1, const Tensor& b1, const Tensor& w2, const Tensor& b2,
                 GeluForm form) {
  const Shape shape = x.shape().with(x.rank() - 1, w2.size(0));
  std::int64_t rows = 1;
  for (int d = 0; d + 1 < x.rank(); ++d) rows *= x.shape()[d];
  const std::vector<double> h =
      layer(x.contiguous().to_vector<double>(), rows, w1, b1, [form](double z) { return gelu_of(z, form); });
  const std::vector<double> y = layer(h, rows, w2, b2, [](double v) { return v; });
  return from_data(std::span<const double>(y), shape, cpu);
}

}  // namespace

LEVIN_OP_CASE(gelu_mlp) {
  // The longest sum has 136 terms.
  OpCase c{.ops = {"gelu_mlp", "gelu_mlp_backward"}, .dtypes = kFloatDTypes, .sums = 136, .layout_changes_sums = true};
  const auto add = [&](GeluForm form, Shape x, std::int64_t hidden, std::int64_t out, bool biased) {
    OpSample s{.inputs = {real(x), real({hidden, x.back()}), real({out, hidden})}, .call = {}, .reference = {}};
    if (biased) {
      s.inputs.push_back(optional(real({hidden})));
      s.inputs.push_back(optional(real({out})));
    }
    s.call = [=](const Tensors& in) {
      return Tensors{gelu_mlp(in[0], in[1], biased ? in[3] : Tensor(), in[2], biased ? in[4] : Tensor(), form)};
    };
    s.reference = [=](const Tensors& in) {
      return Tensors{reference(in[0], in[1], biased ? in[3] : Tensor(), in[2], biased ? in[4] : Tensor(), form)};
    };
    c.samples.push_back(s);
  };
  for (const GeluForm form : {GeluForm::erf, GeluForm::tanh}) {
    add(form, {1}, 1, 1, true);
    add(form, {2, 3}, 4, 2, true);
    add(form, {2, 3}, 4, 2, false);
    add(form, {2, 2, 2}, 3, 3, true);
    add(form, {0, 3}, 4, 2, true);
    add(form, {2, 3}, 0, 2, true);
    add(form, {40, 72}, 136, 24, true);
  }
  c.errors.push_back({"a number",
                      [] {
                        (void)gelu_mlp(zeros({}, cpu), zeros({4, 3}, cpu), {}, zeros({2, 4}, cpu), {});
                      },
                      throws<ShapeError>, "gelu_mlp: x is a number"});
  c.errors.push_back({"columns of w1",
                      [] {
                        (void)gelu_mlp(zeros({2, 3}, cpu), zeros({4, 5}, cpu), {}, zeros({2, 4}, cpu), {});
                      },
                      throws<ShapeError>, "gelu_mlp: w1 has shape [4, 5], expected two dimensions and 3 columns"});
  c.errors.push_back({"columns of w2",
                      [] {
                        (void)gelu_mlp(zeros({2, 3}, cpu), zeros({4, 3}, cpu), {}, zeros({2, 5}, cpu), {});
                      },
                      throws<ShapeError>, "gelu_mlp: w2 has shape [2, 5], expected two dimensions and 4 columns"});
  c.errors.push_back({"bias",
                      [] {
                        (void)gelu_mlp(zeros({2, 3}, cpu), zeros({4, 3}, cpu), zeros({3}, cpu), zeros({2, 4}, cpu), {});
                      },
                      throws<ShapeError>, "gelu_mlp: b1 has shape [3], expected [4], the rows of w1 [4, 3]"});
  c.errors.push_back({"dtypes",
                      [] {
                        (void)gelu_mlp(zeros({2, 3}, cpu), zeros({4, 3}, cpu), {}, zeros({2, 4}, cpu, DType::f64), {});
                      },
                      throws<DTypeError>, "gelu_mlp: tensors are f32 and f64"});
  return c;
}

TEST_CASE("gelu_mlp gives the bits of its layers on the CPU, forward and backward") {
  Generator gen(1);
  Tensors in{randn({3, 5, 8}, gen, cpu), randn({16, 8}, gen, cpu), randn({16}, gen, cpu), randn({4, 16}, gen, cpu),
             randn({4}, gen, cpu)};
  for (Tensor& t : in) t.requires_grad_();
  for (const GeluForm form : {GeluForm::erf, GeluForm::tanh}) {
    const Tensor one = gelu_mlp(in[0], in[1], in[2], in[3], in[4], form);
    const Tensor layers = linear(gelu(linear(in[0], in[1], in[2]), form), in[3], in[4]);
    CHECK(one.to_vector<float>() == layers.to_vector<float>());
    const Tensors got = grad(sum(one * one), in), want = grad(sum(layers * layers), in);
    for (std::size_t i = 0; i < in.size(); ++i) CHECK(got[i].to_vector<float>() == want[i].to_vector<float>());
  }
}

TEST_CASE("under autocast gelu_mlp multiplies in 16 bits and gives parameters gradients of their own dtype") {
  Generator gen(1);
  Tensor x = randn({3, 8}, gen, cpu), w1 = randn({16, 8}, gen, cpu), w2 = randn({4, 16}, gen, cpu);
  w1.requires_grad_();
  const Tensor y = [&] {
    const Autocast on(DType::bf16);
    return gelu_mlp(x, w1, {}, w2, {});
  }();
  CHECK(y.dtype() == DType::bf16);
  backward(sum(y));
  CHECK(w1.grad().dtype() == DType::f32);
}

TEST_CASE("on a device gelu_mlp has the same bits whether it keeps what backward needs or not") {
  const auto device = test::launching_device();
  if (!device) return test::skip("no device that launches kernels here");
  Generator gen(1);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor x = randn({9, 8}, gen, cpu).to(dtype).to(*device), w2 = randn({4, 24}, gen, cpu).to(dtype).to(*device);
    Tensor w1 = randn({24, 8}, gen, cpu).to(dtype).to(*device);
    const Tensor without = gelu_mlp(x, w1, {}, w2, {});
    w1.requires_grad_();
    const Tensor with = gelu_mlp(x, w1, {}, w2, {});
    CHECK(with.requires_grad());
    CHECK(with.to(DType::f64).to(cpu).to_vector<double>() == without.to(DType::f64).to(cpu).to_vector<double>());
  }
}

}  // namespace levin::testing
