// Gradients of rows against dense ones: what a leaf has after backward, on the CPU and on a device.
#include "autograd/row_gradient.h"

#include <doctest/doctest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "autograd/home.h"
#include "levin/error.h"
#include "levin/nn/embedding_bag.h"
#include "levin/nn/layers.h"
#include "levin/ops.h"
#include "levin/sparse.h"
#include "tests/device.h"
#include "tests/skip.h"

namespace levin {
namespace {

const Device cpu = Device::cpu();
Tensor ints(const std::vector<std::int64_t>& values, Device device = cpu) {
  return from_data(values, {static_cast<std::int64_t>(values.size())}, cpu).to(device);
}
Tensor table(std::int64_t rows, std::int64_t columns, DType dtype = DType::f32, Device device = cpu) {
  Generator gen(3);
  Tensor t = randn({rows, columns}, gen, cpu).to(dtype).to(device);
  t.requires_grad_();
  return t;
}
// The sum of rows times factors that differ.
Tensor loss(const Tensor& rows) {
  Generator gen(5);
  return sum(rows * randn(rows.shape(), gen, cpu).to(rows.dtype()).to(rows.device()));
}
bool same(const Tensor& a, const Tensor& b) { return equal(a.detach().to(cpu), b.detach().to(cpu)); }
bool has_rows(const Tensor& leaf) { return row_grad(leaf).rows.defined(); }

const std::vector<std::int64_t> kNamed{4, 1, 4, 4, 0, 6, 1};

void check_on(Device device) {
  const Tensor index = reshape(ints(kNamed, device), {7, 1});
  for (const std::int64_t count : {8, 1000})  // few rows beside the entries, and many: found by a table, and sorted
    for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
      for (const std::int64_t columns : {1, 3, 40}) {
        CAPTURE(dtype);
        CAPTURE(columns);
        CAPTURE(count);
        const Tensor by_rows = table(count, columns, dtype, device), dense = table(count, columns, dtype, device);
        // Two calls in a pass, and two passes: sums are of sums.
        for (int pass = 0; pass < 2; ++pass) {
          const Tensor more = ints({7, 4}, device);
          backward(loss(embedding(by_rows, index, 1, EmbeddingGrad::rows)) +
                   loss(embedding(by_rows, more, {}, EmbeddingGrad::rows)));
          backward(loss(embedding(dense, index, 1)) + loss(embedding(dense, more)));
        }
        REQUIRE(has_grad(by_rows));
        const auto [rows, values] = row_grad(by_rows);
        REQUIRE(rows.defined());
        CHECK(same(detail::gradient_as_dense(by_rows), dense.grad()));
        REQUIRE(has_rows(by_rows));
        // A row is named once; what names nothing has values of 0.
        const auto named = rows.to(cpu).to_vector<std::int64_t>();
        CHECK(values.shape() == Shape{static_cast<std::int64_t>(named.size()), columns});
        std::vector<int> times(static_cast<std::size_t>(count), 0), once = times;
        for (const std::size_t r : {0, 1, 4, 6, 7}) once[r] = 1;
        for (std::size_t k = 0; k < named.size(); ++k) {
          if (named[k] >= 0)
            ++times.at(static_cast<std::size_t>(named[k]));
          else
            CHECK(sum(abs(select(values, 0, static_cast<std::int64_t>(k)))).to(DType::f64).item<double>() == 0);
        }
        CHECK(times == once);
        if (device.is_cpu()) CHECK(named.size() == 5);
        CHECK(same(by_rows.grad(), dense.grad()));
        CHECK_FALSE(has_rows(by_rows));  // grad() has made it dense
      }
    }
}

TEST_CASE("a gradient of rows has each row that an embedding named, and the bits of the dense gradient") {
  check_on(cpu);
}
TEST_CASE("a gradient of rows has the bits of the dense gradient on a device, which is not waited for") {
  DEVICE_OR_SKIP();
  check_on(device);
}

TEST_CASE("what cannot keep rows gets the dense gradient: hooks, homes, other ops, create_graph, grad()") {
  const Tensor index = ints(kNamed), dense = table(8, 3);
  backward(loss(embedding(dense, index)));
  const auto rows_of = [&](const Tensor& w) { return loss(embedding(w, index, {}, EmbeddingGrad::rows)); };

  const Tensor hooked = table(8, 3);
  int calls = 0;
  HookHandle handle = on_gradient_complete(hooked, [&](const Tensor& g) { calls += same(g, dense.grad()) ? 1 : 0; });
  backward(rows_of(hooked));
  CHECK(calls == 1);
  CHECK_FALSE(has_rows(hooked));
  handle.remove();
  Tensor again = hooked;
  again.set_grad({});
  backward(rows_of(hooked));
  CHECK(has_rows(hooked));

  const Tensor at_home = table(8, 3), home = zeros({8, 3}, cpu);
  set_gradient_home(at_home, home);
  backward(rows_of(at_home));
  CHECK(same(home, dense.grad()));
  set_gradient_home(at_home, {});

  // Tied weights: another op's gradient joins, before, beside and after.
  for (const int order : {0, 1, 2}) {
    CAPTURE(order);
    const Tensor tied = table(8, 3), want = table(8, 3);
    const auto both = [&](const Tensor& a, const Tensor& b) {
      if (order == 1) return backward(a + b);
      backward(order == 0 ? a : b);
      backward(order == 0 ? b : a);
    };
    both(rows_of(tied), loss(tied * tied));
    both(loss(embedding(want, index)), loss(want * want));
    CHECK_FALSE(has_rows(tied));
    CHECK(same(tied.grad(), want.grad()));
  }

  const Tensor twice = table(8, 3);
  backward(rows_of(twice), {.create_graph = true});
  CHECK_FALSE(has_rows(twice));
  CHECK(twice.grad().requires_grad() == false);
  const Tensor asked = table(8, 3);
  const Tensors g = grad(rows_of(asked), std::span(&asked, 1));
  CHECK(same(g[0], dense.grad()));
  CHECK_FALSE(has_grad(asked));

  // A table that is an op's result is no leaf.
  const Tensor leaf = table(8, 3);
  backward(rows_of(leaf * 2.0));
  CHECK(same(leaf.grad(), dense.grad() * 2.0));
}

TEST_CASE("a leaf's rows are its own: the caller's index and seed may change afterwards") {
  const Tensor w = table(8, 2);
  Tensor index = ints({3}), seed = ones({1, 2}, cpu);
  backward(embedding(w, index, {}, EmbeddingGrad::rows), seed);
  const NoGrad off;
  copy_(index, ints({5}));
  copy_(seed, zeros({1, 2}, cpu));
  CHECK(row_grad(w).rows.to_vector<std::int64_t>() == std::vector<std::int64_t>{3});
  CHECK(row_grad(w).values.to_vector<float>() == std::vector<float>{1, 1});
}

TEST_CASE("set_row_grad adds rows that repeat, clears, and refuses what does not fit before anything changes") {
  for (const Device device : test::all_devices()) {
    Tensor w = table(4, 2, DType::f32, device);
    const Tensor values = reshape(arange(0, 6, 1, cpu).to(DType::f32), {3, 2}).to(device);
    set_row_grad(w, {ints({2, 0, 2}, device), values});
    CHECK(same(detail::gradient_as_dense(w), reshape(tensor<float>({2, 3, 0, 0, 4, 6, 0, 0}, cpu), {4, 2})));
    CHECK_THROWS_WITH_AS(set_row_grad(w, {ints({1}, device), values}),
                         "set_row_grad: values have shape [3, 2], expected [1, 2]", ShapeError);
    CHECK_THROWS_AS(set_row_grad(w, {ints({1, 2, 3}, device).to(DType::i32), values}), DTypeError);
    CHECK_THROWS_AS(set_row_grad(w, {ints({1, 2, 3}, device), values.to(DType::f64)}), DTypeError);
    CHECK_THROWS_AS(set_row_grad(w, {ints({1, 2, 3}, device), {}}), AutogradError);
    CHECK_THROWS_AS(set_row_grad(values, {ints({1, 2, 3}, device), values}), AutogradError);
    if (device.is_cpu()) CHECK_THROWS_AS(set_row_grad(w, {ints({1, 4, 3}), values}), IndexError);
    CHECK(has_rows(w));
    set_row_grad(w, {});
    CHECK_FALSE(has_grad(w));
    set_row_grad(w, {empty({0}, device, DType::i64), empty({0, 2}, device)});
    CHECK(has_grad(w));
    CHECK(same(w.grad(), zeros({4, 2}, cpu)));
    w.set_grad({});
    CHECK_FALSE(has_grad(w));
  }
}

struct Root : nn::Module {
  Root() : Module(nn::Options{.gen = Generator(3), .device = cpu}) {}
};

TEST_CASE("sparse tables of modules give rows, and the dense gradients in them, on a device, too") {
  for (const Device device : test::all_devices()) {
    Root root;
    nn::Embedding one(root, "one", {.count = 6, .dim = 3, .padding_idx = -1, .sparse = true});
    nn::Embedding dense(root, "dense", {.count = 6, .dim = 3, .padding_idx = -1});
    root.to(device);
    const Tensor index = ints({3, 1, 3, 5}, device);
    CHECK(one(index).shape() == Shape{4, 3});
    backward(loss(one(index)) + loss(dense(index)));
    REQUIRE(has_rows(one.weight));
    CHECK(same(one.weight.grad(), dense.weight.grad()));

    for (const Reduce mode : {Reduce::sum, Reduce::mean, Reduce::max}) {
      for (const bool padded : {false, true}) {
        CAPTURE(static_cast<int>(mode));
        CAPTURE(padded);
        Root other;
        const auto padding = padded ? std::optional<std::int64_t>(1) : std::nullopt;
        nn::EmbeddingBag bag(other, "bag",
                             {.count = 6, .dim = 3, .mode = mode, .padding_idx = padding, .sparse = true});
        nn::EmbeddingBag want(other, "want", {.count = 6, .dim = 3, .mode = mode, .padding_idx = padding});
        other.to(device);
        {
          const NoGrad off;
          Tensor to = want.weight;
          copy_(to, bag.weight);
        }
        const Tensor offsets = ints({0, 2, 2}, device), at = ints({3, 1, 3, 5, 0}, device);
        const Tensor y = bag(at, offsets), z = want(at, offsets);
        CHECK(allclose(y, z));
        backward(loss(y) + loss(z));
        REQUIRE(has_rows(bag.weight));
        CHECK(allclose(bag.weight.grad(), want.weight.grad()));
      }
    }
  }
}

}  // namespace
}  // namespace levin
