#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "levin/nn.h"
#include "levin/ops.h"

namespace levin {
namespace {

const Device cpu = Device::cpu();

struct Moments {
  double mean = 0, std = 0, low = 0, high = 0;
};
Moments moments(const Tensor& x) {
  const std::vector<float> v = x.detach().to_vector<float>();
  const auto n = static_cast<double>(v.size());
  Moments m;
  for (const float e : v) m.mean += e / n;
  for (const float e : v) m.std += (e - m.mean) * (e - m.mean) / n;
  m.std = std::sqrt(m.std);
  m.low = *std::min_element(v.begin(), v.end());
  m.high = *std::max_element(v.begin(), v.end());
  return m;
}

// The mean of n draws deviates by std / sqrt(n), their std by std * sqrt((kurtosis - 1) / 4n) <= std / sqrt(2n): six of
// each.
void check_moments(const Tensor& x, double mean, double std) {
  const Moments m = moments(x);
  const auto n = static_cast<double>(x.numel());
  CHECK(std::abs(m.mean - mean) < 6 * std / std::sqrt(n));
  CHECK(std::abs(m.std - std) < 6 * std / std::sqrt(2 * n));
}

TEST_CASE("uniform and normal draws have the moments asked for") {
  Generator gen(1);
  Tensor x = empty({200, 100}, cpu);
  nn::init::uniform_(x, gen, -1, 3);
  check_moments(x, 1, 4 / std::sqrt(12.0));
  CHECK(moments(x).low >= -1);
  CHECK(moments(x).high <= 3);
  nn::init::normal_(x, gen, 2, 0.5);
  check_moments(x, 2, 0.5);
  nn::init::constant_(x, 7);
  CHECK(moments(x).low == 7);
  CHECK(moments(x).high == 7);
}

TEST_CASE("a truncated normal stays inside its limits and has the moments of the cut distribution") {
  Generator gen(1);
  Tensor x = empty({200, 100}, cpu);
  nn::init::trunc_normal_(x, gen, 0, 1, -1, 2);
  // With phi the density at the limits and Z the share inside: mean (phi(a) - phi(b)) / Z, variance
  // 1 + (a phi(a) - b phi(b)) / Z - mean^2.
  const auto phi = [](double t) { return std::exp(-t * t / 2) / std::sqrt(2 * 3.14159265358979323846); };
  const double z = 0.5 * (std::erf(2 / std::sqrt(2.0)) - std::erf(-1 / std::sqrt(2.0)));
  const double mean = (phi(-1) - phi(2)) / z;
  check_moments(x, mean, std::sqrt(1 + (-phi(-1) - 2 * phi(2)) / z - mean * mean));
  CHECK(moments(x).low >= -1);
  CHECK(moments(x).high <= 2);
  CHECK_THROWS_AS(nn::init::trunc_normal_(x, gen, 0, 1, 5, 6), ConfigError);
}

TEST_CASE("Glorot's and He's rules give the variance of their formulas") {
  Generator gen(1);
  Tensor w = empty({64, 32, 3, 3}, cpu);
  const nn::init::Fans f = nn::init::fans(w);
  CHECK(f.in == 32 * 9);
  CHECK(f.out == 64 * 9);
  const double in = 288, out = 576;
  nn::init::xavier_uniform_(w, gen, 2);
  check_moments(w, 0, 2 * std::sqrt(2 / (in + out)));
  nn::init::xavier_normal_(w, gen);
  check_moments(w, 0, std::sqrt(2 / (in + out)));
  nn::init::kaiming_uniform_(w, gen, {.nonlinearity = nn::init::Nonlinearity::relu});
  check_moments(w, 0, std::sqrt(2 / in));
  nn::init::kaiming_normal_(w, gen, {.a = 0.5, .mode = nn::init::Fan::out});
  check_moments(w, 0, std::sqrt(2 / 1.25 / out));
  Tensor vector = empty({5}, cpu);
  CHECK_THROWS_AS(nn::init::xavier_uniform_(vector, gen), ShapeError);
}

TEST_CASE("orthogonal weights have orthonormal rows or columns, times the gain") {
  Generator gen(1);
  for (const Shape& shape : {Shape{5, 12}, Shape{12, 5}, Shape{6, 2, 3}}) {
    Tensor w = empty(shape, cpu, DType::f64);
    nn::init::orthogonal_(w, gen, 3);
    const std::int64_t rows = shape[0], cols = shape.numel() / rows, count = std::min(rows, cols);
    const std::vector<double> v = w.to_vector<double>();
    const auto at = [&](std::int64_t k, std::int64_t i) {  // element i of vector k
      return v[static_cast<std::size_t>(rows <= cols ? k * cols + i : i * cols + k)];
    };
    for (std::int64_t a = 0; a < count; ++a) {
      for (std::int64_t b = 0; b <= a; ++b) {
        double dot = 0;
        for (std::int64_t i = 0; i < std::max(rows, cols); ++i) dot += at(a, i) * at(b, i);
        CHECK(std::abs(dot - (a == b ? 9 : 0)) < 9 * 100 * 2.3e-16);  // 12 products and sums, each of two passes
      }
    }
  }
}

TEST_CASE("layers start as PyTorch's do") {
  Generator gen(3);
  nn::Module root({.gen = gen, .device = cpu});
  nn::Linear linear(root, "linear", {.in = 300, .out = 200});
  check_moments(linear.weight, 0, 1 / std::sqrt(3.0 * 300));
  CHECK(moments(linear.weight).high <= 1 / std::sqrt(300.0));
  check_moments(linear.bias, 0, 1 / std::sqrt(3.0 * 300));
  nn::Conv2d conv(root, "conv", {.in = 16, .out = 64, .kernel = 5, .groups = 2});
  check_moments(conv.weight, 0, 1 / std::sqrt(3.0 * 8 * 25));
  check_moments(conv.bias, 0, 1 / std::sqrt(3.0 * 8 * 25));
  nn::Embedding embedding(root, "embedding", {.count = 100, .dim = 50});
  check_moments(embedding.weight, 0, 1);
  nn::GRU gru(root, "gru", {.in = 10, .hidden = 40});
  for (const ParamRef& p : gru.parameters()) check_moments(*p.value, 0, 1 / std::sqrt(3.0 * 40));
  nn::MultiheadAttention mha(root, "mha", {.embed_dim = 64, .num_heads = 4});
  check_moments(mha.in_proj_weight, 0, std::sqrt(2.0 / (64 + 192)));
  CHECK(moments(mha.in_proj_bias).high == 0);
  CHECK(moments(mha.out_proj.bias).high == 0);
  check_moments(mha.out_proj.weight, 0, 1 / std::sqrt(3.0 * 64));
  nn::LayerNorm norm(root, "norm", {.shape = 10});
  CHECK(moments(norm.weight).low == 1);
  CHECK(moments(norm.bias).high == 0);
}

TEST_CASE("a 16-bit layer starts with the rounded values of an f32 one") {
  Generator gen(3);
  nn::Module one({.gen = gen, .device = cpu}), two({.gen = gen, .device = cpu, .dtype = DType::bf16});
  nn::Linear full(one, "fc", {.in = 8, .out = 8}), half(two, "fc", {.in = 8, .out = 8});
  CHECK(half.weight.dtype() == DType::bf16);
  CHECK(equal(half.weight, full.weight.to(DType::bf16)));
}

}  // namespace
}  // namespace levin
