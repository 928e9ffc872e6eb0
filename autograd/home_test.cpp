// Gradients that are born in a home, move there, and stay there.
#include "autograd/home.h"

#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <thread>

#include "levin/autograd.h"
#include "levin/ops.h"

namespace levin {
namespace {

const Device cpu = Device::cpu();

Tensor drawn(const Shape& shape, std::uint64_t seed) {
  Generator gen(seed);
  return randn(shape, gen, cpu);
}
Tensor leaf_like(const Tensor& value) {
  Tensor t = value.clone();
  t.requires_grad_();
  return t;
}
Tensor home_of(const Tensor& leaf) {
  Tensor home = full(leaf.shape(), 77, leaf.device(), leaf.dtype());
  set_gradient_home(leaf, home);
  return home;
}
bool is(const Tensor& a, const Tensor& b) { return a.impl() == b.impl(); }
std::string writer_of(const Tensor& t) { return t.get().storage->writer.load(); }

// loss(parameters) with and without homes: the same bits, and which parameters' gradients an op wrote into the home.
template <class Loss>
std::string born(const Tensors& values, const Loss& loss) {
  Tensors plain, housed, homes;
  for (const Tensor& v : values) {
    plain.push_back(leaf_like(v));
    housed.push_back(leaf_like(v));
    homes.push_back(home_of(housed.back()));
  }
  backward(loss(plain));
  backward(loss(housed));
  std::string which;
  for (std::size_t i = 0; i < values.size(); ++i) {
    CHECK(is(housed[i].grad(), homes[i]));
    CHECK(housed[i].grad().to_vector<float>() == plain[i].grad().to_vector<float>());
    which += writer_of(homes[i]) == "backward" ? 'b' : 'c';
  }
  return which;
}

// Notes when its backward runs.
struct Noted {
  static constexpr OpInfo info{.name = "noted"};
  std::string* order;
  Tensor forward(const Tensor& x) const { return x * 2; }
  Grads<1> backward(const Tensor& gy, Need<1>) const {
    *order += "op ";
    return {gy * 2};
  }
};

}  // namespace

TEST_CASE("gradients of products, convolutions, embeddings and norms are born in their homes; others are copied") {
  const Tensor x = drawn({6, 4}, 1), y = drawn({6, 3}, 2);
  const Tensor w = drawn({3, 4}, 3), b = drawn({3}, 4);
  CHECK(born({w, b}, [&](const Tensors& p) { return mse_loss(linear(x, p[0], p[1]), y); }) == "bc");
  CHECK(born({w}, [&](const Tensors& p) { return mse_loss(linear(x, p[0], {}), y); }) == "b");
  CHECK(born({drawn({4, 3}, 5)}, [&](const Tensors& p) { return mse_loss(matmul(x, p[0]), y); }) == "b");
  CHECK(born({drawn({6, 6}, 6)}, [&](const Tensors& p) { return sum(square(matmul(p[0], x))); }) == "b");
  const Tensor image = drawn({2, 3, 5, 5}, 7);
  CHECK(born({drawn({4, 3, 3, 3}, 8), drawn({4}, 9)},
             [&](const Tensors& p) { return sum(square(conv2d(image, p[0], p[1], {.padding = 1}))); }) == "bc");
  const Tensor ids = tensor({std::int64_t{1}, std::int64_t{3}, std::int64_t{1}}, cpu);
  CHECK(born({drawn({5, 4}, 10)}, [&](const Tensors& p) { return sum(square(embedding(p[0], ids))); }) == "b");
  CHECK(born({drawn({4}, 11), drawn({4}, 12)},
             [&](const Tensors& p) { return sum(square(layer_norm(x, p[0], p[1]))); }) == "bb");
  CHECK(born({b}, [&](const Tensors& p) { return sum(square(y * p[0])); }) == "c");
}

TEST_CASE("a leaf that is used twice gets the sum of both gradients, copied to its home") {
  const Tensor x = drawn({4, 4}, 1);
  CHECK(born({drawn({4, 4}, 2)}, [&](const Tensors& p) { return sum(square(matmul(matmul(x, p[0]), p[0]))); }) == "c");
}

TEST_CASE("a gradient in its home is added to in place, and a cleared one is born there again") {
  const Tensor x = drawn({6, 4}, 1);
  Tensor w = leaf_like(drawn({4, 3}, 2)), plain = leaf_like(w.detach());
  const Tensor home = home_of(w);
  for (int window = 0; window < 2; ++window) {
    for (int i = 0; i < 3; ++i) {
      backward(sum(square(matmul(x, w))));
      backward(sum(square(matmul(x, plain))));
      CHECK(is(w.grad(), home));
    }
    CHECK(w.grad().to_vector<float>() == plain.grad().to_vector<float>());
    const std::vector<float> kept = home.to_vector<float>();
    w.set_grad({});
    plain.set_grad({});
    CHECK_FALSE(w.grad().defined());
    CHECK(home.to_vector<float>() == kept);  // clearing touches no memory
  }
}

TEST_CASE("with create_graph a gradient has a history and is no home until move_gradient_home") {
  Tensor w = leaf_like(tensor({2.0, 3.0}, cpu));
  const Tensor home = home_of(w);
  CHECK_FALSE(move_gradient_home(w));  // nothing to move
  backward(sum(w * w * w), {.create_graph = true});
  CHECK(w.grad().requires_grad());
  CHECK_FALSE(is(w.grad(), home));
  CHECK(grad(sum(w.grad()), std::span(&w, 1))[0].to_vector<double>() == std::vector<double>{12, 18});
  CHECK(move_gradient_home(w));
  CHECK(is(w.grad(), home));
  CHECK_FALSE(w.grad().requires_grad());
  CHECK(home.to_vector<double>() == std::vector<double>{12, 27});
  backward(sum(w * w * w), {.create_graph = true});  // adds out of place
  CHECK(home.to_vector<double>() == std::vector<double>{12, 27});
  CHECK(w.grad().to_vector<double>() == std::vector<double>{24, 54});
}

TEST_CASE("a gradient that the user sets stays where it is, and is not overwritten") {
  Tensor w = leaf_like(tensor({2.0, 3.0}, cpu));
  const Tensor home = home_of(w), mine = tensor({1.0, 1.0}, cpu);
  w.set_grad(mine);
  backward(sum(w * w));
  CHECK_FALSE(is(w.grad(), home));
  CHECK(mine.to_vector<double>() == std::vector<double>{1, 1});
  CHECK(w.grad().to_vector<double>() == std::vector<double>{5, 7});
}

TEST_CASE("a gradient that was saved for another backward is stale after its home was written") {
  Tensor w = leaf_like(drawn({4, 3}, 2)), v = leaf_like(drawn({4, 3}, 3));
  const Tensor x = drawn({6, 4}, 1);
  home_of(w);
  backward(sum(square(matmul(x, w))));
  const Tensor of_old = sum(v * w.grad());
  w.set_grad({});
  backward(sum(square(matmul(x, w))));
  CHECK_THROWS_AS(backward(of_old), AutogradError);
}

TEST_CASE("an op whose backward runs an inner backward does not hand its places on") {
  // The derivative of layer_norm's backward is a vjp: with grad() of a gradient the outer pass fills leaves.
  const Tensor x = drawn({6, 4}, 1);
  const auto penalty = [&](Tensor& w) {
    Tensor in = leaf_like(x);
    const Tensor g = grad(sum(square(layer_norm(in, w, {}))), std::span(&in, 1), {.create_graph = true})[0];
    backward(sum(square(g)));
  };
  Tensor plain = leaf_like(drawn({4}, 2)), w = leaf_like(plain.detach());
  home_of(w);
  penalty(plain);
  penalty(w);
  CHECK(w.grad().to_vector<float>() == plain.grad().to_vector<float>());
}

TEST_CASE("a hook runs when its leaf is complete, before older ops run their backward") {
  Tensor first = leaf_like(tensor({2.0}, cpu)), last = leaf_like(tensor({3.0}, cpu));
  std::string order;
  const HookHandle a = on_gradient_complete(first, [&](const Tensor&) { order += "first "; });
  const HookHandle b = on_gradient_complete(last, [&](const Tensor&) { order += "last "; });
  backward(apply(Noted{&order}, first * 1) * last);
  CHECK(order == "last op first ");
}

TEST_CASE("two backward passes of two threads into one leaf with a home add up") {
  const Tensor x = drawn({64, 32}, 1);
  Tensor w = leaf_like(drawn({32, 16}, 2)), plain = leaf_like(w.detach());
  home_of(w);
  backward(sum(matmul(x, plain)));
  const std::vector<float> once = plain.grad().to_vector<float>();
  for (int round = 0; round < 50; ++round) {
    const auto pass = [&] { backward(sum(matmul(x, w))); };
    std::thread other(pass);
    pass();
    other.join();
    std::vector<float> twice = w.grad().to_vector<float>();
    bool equal = true;
    for (std::size_t i = 0; i < twice.size(); ++i) equal &= twice[i] == once[i] + once[i];
    REQUIRE(equal);
    w.set_grad({});
  }
}

TEST_CASE("a home that is unlike its leaf is refused") {
  Tensor w = leaf_like(zeros({2, 3}, cpu));
  CHECK_THROWS_AS(set_gradient_home(w, zeros({3, 2}, cpu)), ShapeError);
  CHECK_THROWS_AS(set_gradient_home(w, transpose(zeros({3, 2}, cpu), 0, 1)), ShapeError);
  CHECK_THROWS_AS(set_gradient_home(w, zeros({2, 3}, cpu, DType::f64)), DTypeError);
  CHECK_THROWS_AS(set_gradient_home(w, zeros({2, 3}, Device::meta())), DeviceError);
  CHECK_THROWS_AS(set_gradient_home(w * 2, zeros({2, 3}, cpu)), AutogradError);
  const Tensor home = home_of(w);
  set_gradient_home(w, {});
  backward(sum(w));
  CHECK_FALSE(is(w.grad(), home));
}

}  // namespace levin
