#include "levin/flops.h"

#include <doctest/doctest.h>

#include <limits>
#include <string>
#include <vector>

#include "levin/autograd.h"
#include "levin/extend.h"
#include "levin/ops.h"
#include "levin/sparse.h"
#include "tests/device.h"

using namespace levin;

namespace {

Tensor shaped(const Shape& shape) { return ones(shape, Device::cpu()); }
Tensor leaf(const Shape& shape) {
  Tensor t = shaped(shape);
  t.requires_grad_();
  return t;
}
template <class F>
std::int64_t flops_of(F&& f) {
  const FlopCounter flops;
  f();
  return flops.total();
}
std::string lines(const FlopCounter& flops) {
  std::string out;
  for (const OpFlops& o : flops.by_op()) out += std::string(o.op) + " " + std::to_string(o.flops) + "\n";
  return out;
}
template <class F>
std::string ops_of(F&& f) {
  const FlopCounter flops;
  f();
  return lines(flops);
}

struct Cube {
  static constexpr OpInfo info{.name = "flops_test_cube"};
  Tensor forward(const Tensor& x) {
    FlopCounter::count(info.name, {3, x.numel()});
    return x.clone();
  }
};

}  // namespace

TEST_CASE("a product of matrices is two operations for each number that is multiplied and added") {
  CHECK(flops_of([] { (void)matmul(shaped({2, 4}), shaped({4, 3})); }) == 2 * 2 * 4 * 3);
  CHECK(flops_of([] { (void)matmul(shaped({4}), shaped({4})); }) == 2 * 4);
  CHECK(flops_of([] { (void)matmul(shaped({5, 2, 4}), shaped({4, 3})); }) == 5 * 2 * 2 * 4 * 3);
  CHECK(flops_of([] { (void)matmul(shaped({6, 1, 2, 4}), shaped({5, 4, 3})); }) == 6 * 5 * 2 * 2 * 4 * 3);
  CHECK(flops_of([] { (void)linear(shaped({2, 5, 4}), shaped({3, 4}), shaped({3})); }) == 2 * 2 * 5 * 4 * 3);
  CHECK(flops_of([] { (void)einsum("bij,bkj->bik", {shaped({5, 2, 4}), shaped({5, 3, 4})}); }) == 5 * 2 * 2 * 4 * 3);
  CHECK(flops_of([] { (void)matmul(shaped({2, 0}), shaped({0, 3})); }) == 0);
}

TEST_CASE("what does not multiply matrices counts nothing") {
  CHECK(ops_of([] {
          const Tensor x = shaped({4, 6});
          (void)layer_norm(softmax(relu(x * x) + exp(x), -1), shaped({6}), {}, 1e-5);
          (void)sum(x);
        }) == "");
}

TEST_CASE("a convolution counts the pixels of its result, its taps and the channels of a group, padding included") {
  const Tensor x = shaped({2, 4, 8, 6});
  CHECK(flops_of([&] { (void)conv2d(x, shaped({6, 4, 3, 3}), shaped({6})); }) == 2 * (2 * 6 * 6 * 4) * (4 * 9));
  CHECK(flops_of([&] {
          (void)conv2d(x, shaped({6, 4, 3, 3}), {}, {.padding = {1, 1}});
        }) == 2 * (2 * 6 * 8 * 6) * (4 * 9));
  CHECK(flops_of([&] {
          (void)conv2d(x, shaped({6, 2, 3, 3}), {}, {.stride = {2, 2}, .groups = 2});
        }) == 2 * (2 * 6 * 3 * 2) * (2 * 9));
  CHECK(flops_of([&] { (void)conv1d(shaped({2, 4, 8}), shaped({6, 4, 3}), {}); }) == 2 * (2 * 6 * 6) * (4 * 3));
  // Each pixel of x goes through all taps to all filters.
  CHECK(flops_of([&] {
          (void)conv_transpose2d(x, shaped({4, 5, 3, 3}), shaped({5}), {.stride = {2, 2}});
        }) == 2 * (2 * 4 * 8 * 6) * (5 * 9));
}

TEST_CASE("attention is two products, and the fused op counts as the one that is made of others") {
  const Tensor q = shaped({2, 3, 5, 8}), k = shaped({2, 3, 7, 8}), v = shaped({2, 3, 7, 4});
  const std::int64_t expected = 2 * (2 * 3 * 5 * 7) * (8 + 4);
  CHECK(flops_of([&] { (void)scaled_dot_product_attention(q, k, v); }) == expected);
  CHECK(flops_of([&] { (void)scaled_dot_product_attention(q, k, v, {.causal = Causal::yes}); }) == expected);
  CHECK(flops_of([&] { (void)scaled_dot_product_attention(q, k, v, {.mask = shaped({5, 7})}); }) == expected);
}

TEST_CASE("products with sparse matrices count their entries") {
  const Device cpu = Device::cpu();
  const Csr a{.crow = from_data<std::int64_t>({0, 2, 3}, {3}, cpu),
              .col = from_data<std::int64_t>({0, 2, 1}, {3}, cpu),
              .cols = 3};
  CHECK(flops_of([&] { (void)spmm(a, shaped({3}), shaped({3, 5})); }) == 2 * 3 * 5);
  CHECK(flops_of([&] { (void)spmm(a, shaped({3, 2}), shaped({3, 2, 5})); }) == 2 * 3 * 2 * 5);
  CHECK(flops_of([&] { (void)spmm(a, {}, shaped({3, 5})); }) == 0);  // sums alone
  CHECK(flops_of([&] { (void)sddmm(a, shaped({2, 5}), shaped({3, 5})); }) == 2 * 3 * 5);
  CHECK(flops_of([&] { (void)sddmm(a, shaped({2, 2, 5}), shaped({3, 2, 5})); }) == 2 * 3 * 2 * 5);
}

TEST_CASE("a backward pass counts the products that it makes") {
  const Tensor x = leaf({2, 4}), w = leaf({3, 4}), b = leaf({3});
  const Tensor y = linear(x, w, b);
  CHECK(flops_of([&] { backward(sum(y)); }) == 2 * 48);  // of x and of w
  const Tensor fixed = shaped({2, 4});
  const Tensor of_fixed = linear(fixed, w, b);
  CHECK(flops_of([&] { backward(sum(of_fixed)); }) == 48);
  const Tensor image = leaf({1, 2, 5, 5}), filters = leaf({3, 2, 3, 3});
  const std::int64_t once = 2 * (3 * 3 * 3) * (2 * 9);
  const Tensor z = conv2d(image, filters, {});
  CHECK(flops_of([&] { backward(sum(z)); }) == 2 * once);
  // q k^T once more, and gradients of scores, q, k, v.
  const Tensor q = leaf({5, 8}), k = leaf({7, 8}), v = leaf({7, 4});
  const Tensor o = scaled_dot_product_attention(q, k, v);
  CHECK(flops_of([&] { backward(sum(o)); }) == 2 * (5 * 7) * (3 * 8 + 2 * 4));
}

TEST_CASE("on meta the same is counted and nothing computed") {
  const auto count = [](Device device) {
    const auto on = [&](const Shape& s) { return empty(s, device); };
    return ops_of([&] {
      (void)linear(on({2, 4}), on({3, 4}), on({3}));
      (void)conv2d(on({1, 2, 5, 5}), on({3, 2, 3, 3}), {});
      (void)scaled_dot_product_attention(on({5, 8}), on({7, 8}), on({7, 4}));
      (void)gelu_mlp(on({2, 4}), on({6, 4}), on({6}), on({3, 6}), on({3}));
    });
  };
  CHECK(count(Device::meta()) == count(Device::cpu()));
  CHECK(count(Device::meta()) == "linear " + std::to_string(48 + 2 * 2 * 6 * (4 + 3)) + "\nconv2d " +
                                     std::to_string(2 * 27 * 18) + "\nscaled_dot_product_attention " +
                                     std::to_string(2 * 35 * 12) + "\n");
}

TEST_CASE("the forward of linear_cross_entropy counts the products of its gradients, and its backward nothing") {
  Tensor x = ones({5, 4}, Device::cpu()), w = ones({3, 4}, Device::cpu());
  const Tensor target = zeros({5}, Device::cpu(), DType::i64);
  const std::int64_t product = 2 * 5 * 4 * 3;
  Tensor loss;
  const auto forward = [&] { return flops_of([&] { loss = linear_cross_entropy(x, w, target); }); };
  CHECK(forward() == product);
  w.requires_grad_();
  CHECK(forward() == 2 * product);
  x.requires_grad_();
  CHECK(forward() == 3 * product);
  CHECK(flops_of([&] { backward(loss); }) == 0);
}

TEST_CASE("fused ops of devices count what the CPU's count, in both directions") {
  DEVICE_OR_SKIP();
  const auto count = [](Device on_device, DType dtype) {
    const auto on = [&](const Shape& s) {
      Tensor t = ones(s, on_device, dtype);
      t.requires_grad_();
      return t;
    };
    std::vector<std::int64_t> counts;
    const Tensor x = on({2, 4}), w1 = on({6, 4}), b1 = on({6}), w2 = on({3, 6}), b2 = on({3});
    const Tensor q = on({5, 8}), k = on({7, 8}), v = on({7, 4});
    Tensor y;
    counts.push_back(flops_of([&] { y = sum(gelu_mlp(x, w1, b1, w2, b2)); }));
    counts.push_back(flops_of([&] { backward(y); }));
    counts.push_back(flops_of([&] { y = sum(scaled_dot_product_attention(q, k, v)); }));
    if (dtype == DType::f16) counts.push_back(flops_of([&] { backward(y); }));
    return counts;
  };
  const std::int64_t forward = 2 * 2 * 6 * (4 + 3), attention = 2 * 35 * 12;
  const std::vector<std::int64_t> expected{forward, 2 * forward, attention};
  CHECK(count(device, DType::f32) == expected);
  CHECK(count(Device::cpu(), DType::f32) == expected);
  CHECK(count(device, DType::f16) == count(Device::cpu(), DType::f16));
}

TEST_CASE("a counter sees what another one in its scope counts, and nothing behind its end") {
  const Tensor a = shaped({2, 4}), b = shaped({4, 3});
  const FlopCounter outer;
  (void)matmul(a, b);
  {
    const FlopCounter inner;
    (void)matmul(a, b);
    (void)linear(a, shaped({1, 4}), {});
    CHECK(lines(inner) == "matmul 48\nlinear 16\n");
  }
  (void)matmul(a, b);
  CHECK(outer.total() == 3 * 48 + 16);
  CHECK(lines(outer) == "matmul 144\nlinear 16\n");
}

TEST_CASE("ops of others can count, and too many operations are the most that can be told") {
  CHECK(ops_of([] { (void)apply(Cube{}, shaped({7})); }) == "flops_test_cube 21\n");
  const Tensor huge = empty({1 << 24, 1 << 24}, Device::meta());
  CHECK(flops_of([&] { (void)matmul(huge, huge); }) == std::numeric_limits<std::int64_t>::max());
}
