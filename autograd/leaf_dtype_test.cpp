// Leaves that change their dtype.
#include "autograd/leaf_dtype.h"

#include <doctest/doctest.h>

#include <vector>

#include "levin/autograd.h"
#include "levin/ops.h"

using namespace levin;

namespace {

// The tensor's memory becomes that of `with`, whose dtype it gets.
void exchange(Tensor& t, const Tensor& with) {
  t.get().storage = with.get().storage;
  set_leaf_dtype(t, with.dtype());
}

}  // namespace

TEST_CASE("a leaf that changes its dtype keeps its hooks and edges, and gets gradients of that dtype") {
  Tensor t = ones({3}, Device::cpu());
  const Tensor wide = t.detach(), low = wide.to(DType::bf16);
  t.requires_grad_();
  std::vector<DType> seen;
  const HookHandle hook = on_gradient_complete(t, [&](const Tensor& g) { seen.push_back(g.dtype()); });
  backward(sum(t * 3));
  const void* const impl = t.impl();
  exchange(t, low);
  CHECK(t.impl() == impl);
  CHECK(t.dtype() == DType::bf16);
  CHECK(t.requires_grad());
  CHECK(t.grad().dtype() == DType::bf16);
  CHECK(t.grad().to(DType::f32).to_vector<float>() == std::vector<float>{3, 3, 3});
  t.set_grad({});
  const Tensor loss = sum(square(t));
  // Away and back while a graph waits.
  exchange(t, wide);
  exchange(t, low);
  backward(loss);
  CHECK(t.grad().dtype() == DType::bf16);
  CHECK(t.grad().to(DType::f32).to_vector<float>() == std::vector<float>{2, 2, 2});
  CHECK(seen == std::vector{DType::f32, DType::bf16});
}

TEST_CASE("results of ops and integers have no dtype of a leaf") {
  Tensor t = ones({3}, Device::cpu());
  CHECK_THROWS_AS(set_leaf_dtype(t, DType::i64), DTypeError);
  t.requires_grad_();
  CHECK_THROWS_AS(set_leaf_dtype(t * 2, DType::bf16), AutogradError);
  CHECK(t.dtype() == DType::f32);
}
