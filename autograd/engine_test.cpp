#include <doctest/doctest.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <thread>

#include "levin/autograd.h"
#include "levin/extend.h"
#include "levin/ops.h"
#include "tests/device.h"
#include "tests/memory.h"
#include "tests/skip.h"

namespace levin {
namespace {

const Device cpu = Device::cpu();
Tensor leaf(std::initializer_list<double> values) {
  Tensor t = tensor(values, cpu);
  t.requires_grad_();
  return t;
}

TEST_CASE("backward adds the product rule's two terms into the leaves") {
  Tensor x = leaf({2, 3}), y = leaf({5, 7});
  const Tensor z = x * y + x;
  backward(z, ones_like(z));
  CHECK(x.grad().to_vector<double>() == std::vector<double>{6, 8});
  CHECK(y.grad().to_vector<double>() == std::vector<double>{2, 3});
}

TEST_CASE("a second backward adds to gradients that are set, and clearing them starts anew") {
  Tensor x = leaf({2});
  for (int i = 0; i < 2; ++i) backward(x * 3);
  CHECK(x.grad().item() == 6);
  x.set_grad({});
  backward(x * 3);
  CHECK(x.grad().item() == 3);
}

TEST_CASE("a tensor used twice gets both contributions before its producer runs") {
  Tensor x = leaf({0.5});
  const Tensor a = exp(x);
  backward(a * a + a);
  const double e = std::exp(0.5);
  CHECK(x.grad().item() == doctest::Approx(2 * e * e + e));
}

TEST_CASE("higher derivatives: the third of x^4 is 24 x") {
  Tensor x = leaf({1.5});
  Tensor y = x * x * x * x;
  for (int order = 0; order < 3; ++order) y = grad(y, std::span(&x, 1), {.create_graph = true})[0];
  CHECK(y.item() == doctest::Approx(36));
}

TEST_CASE("a fused backward differentiates through its composite to the third order") {
  Tensor x = leaf({0.3});
  Tensor y = tanh(x);
  for (int order = 0; order < 3; ++order) y = grad(y, std::span(&x, 1), {.create_graph = true})[0];
  const double t = std::tanh(0.3);
  CHECK(y.item() == doctest::Approx((1 - t * t) * (6 * t * t - 2)));
}

TEST_CASE("a saved tensor written since names both ops and the versions") {
  Tensor x = leaf({1, 2}), w = tensor({3.0, 4.0}, cpu);
  const Tensor y = x * w;
  fill_(w, 0);
  CHECK_THROWS_WITH_AS(
      backward(y, ones_like(y)),
      "mul: input 1 (f64 [2]) was saved at version 0 and is at version 1; last written by fill_. Write to a "
      "clone(), or after backward",
      AutogradError);
}

TEST_CASE("a view shares its base's version counter") {
  Tensor base = zeros({4}, cpu);
  Tensor part = narrow(base, 0, 1, 2);
  const auto before = base.version();
  fill_(part, 1);
  CHECK(base.version() == before + 1);
  CHECK(base.to_vector<float>() == std::vector<float>{0, 1, 1, 0});
}

TEST_CASE("a second backward through a freed graph says so") {
  Tensor x = leaf({2});
  const Tensor y = x * x;
  backward(y);
  CHECK_THROWS_AS(backward(y), AutogradError);
  const Tensor z = x * x;
  backward(z, {.retain_graph = true});
  backward(z);
  CHECK(x.grad().item() == 12);
}

TEST_CASE("nothing is recorded under NoGrad, and InferenceMode refuses to switch it on") {
  Tensor x = leaf({2});
  {
    const NoGrad off;
    CHECK_FALSE((x * x).requires_grad());
  }
  CHECK((x * x).requires_grad());
  CHECK_FALSE((x * x).detach().requires_grad());
  const InferenceMode inference;
  CHECK_FALSE((x * x).requires_grad());
  CHECK_THROWS_AS(GradMode(true), StateError);
}

TEST_CASE("in-place writes to a tensor that requires grad are refused while recording") {
  Tensor x = leaf({2});
  CHECK_THROWS_AS(add_(x, x), AutogradError);
  CHECK(x.item() == 2);
  const NoGrad off;
  add_(x, x);
  CHECK(x.item() == 4);
}

TEST_CASE("grad leaves the leaves alone, and an unused input is an error or undefined") {
  Tensor x = leaf({2}), unused = leaf({1});
  const Tensor y = x * x;
  CHECK(grad(y, std::span(&x, 1))[0].item() == 4);
  CHECK_FALSE(x.grad().defined());
  const std::array<Tensor, 2> both{x, unused};
  CHECK_THROWS_AS((void)grad(x * x, both), AutogradError);
  const Tensors some = grad(x * x, both, {.allow_unused = true});
  CHECK(some[0].item() == 4);
  CHECK_FALSE(some[1].defined());
}

TEST_CASE("grad with respect to an inner result stops there") {
  Tensor x = leaf({3});
  const Tensor inner = x * 2;
  CHECK(grad(inner * inner, std::span(&inner, 1))[0].item() == 12);
}

TEST_CASE("a hook runs once, after the last contribution") {
  Tensor x = leaf({2});
  int calls = 0;
  double seen = 0;
  HookHandle handle = on_gradient_complete(x, [&](const Tensor& g) {
    ++calls;
    seen = g.item();
  });
  backward(x * x + x * 3 + x);
  CHECK(calls == 1);
  CHECK(seen == 8);
  handle.remove();
  backward(x * x);
  CHECK(calls == 1);
}

TEST_CASE("anomaly mode names the op that made the first NaN") {
  const AnomalyMode on;
  Tensor x = leaf({-1});
  CHECK_THROWS_WITH_AS((void)(log(x) * 2), doctest::Contains("log: the first NaN"), AutogradError);
}

TEST_CASE("chains and diamonds of a million nodes run and free on a small stack") {
  std::exception_ptr failed;
  double chain = 0, diamond = 0;
  const auto work = [&] {
    try {
      Tensor x = leaf({1});
      Tensor y = x;
      for (int i = 0; i < 1'000'000; ++i) y = y + x;
      backward(y);
      chain = x.grad().item();
      x.set_grad({});
      y = x;
      for (int i = 0; i < 60; ++i) y = (y + y) * 0.5;
      backward(y);
      diamond = x.grad().item();
      y = x;
      for (int i = 0; i < 1'000'000; ++i) y = y * 1.0;  // freed without a backward
    } catch (...) { failed = std::current_exception(); }
  };
  // pthread's smallest usual stack; recursion over the chain would need hundreds of megabytes.
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 512 * 1024);
  pthread_t thread;
  auto body = +[](void* f) -> void* {
    (*static_cast<decltype(work)*>(f))();
    return nullptr;
  };
  REQUIRE(pthread_create(&thread, &attributes, body, const_cast<void*>(static_cast<const void*>(&work))) == 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
  CHECK_FALSE(failed);
  CHECK(chain == 1'000'001);
  CHECK(diamond == 1);
}

TEST_CASE("a loss that needs no seed, and one that does") {
  Tensor x = leaf({1, 2});
  CHECK_THROWS_AS(backward(x * 2), AutogradError);
  CHECK_THROWS_AS(backward(x * 2, tensor({1.0}, cpu)), ShapeError);
  CHECK_THROWS_AS(backward(tensor({1.0}, cpu)), AutogradError);
}

TEST_CASE("a leaf that is its own loss keeps a gradient of its own") {
  Tensor x = leaf({1});
  Tensor seed = tensor({2.0}, cpu);
  backward(x, seed);
  fill_(seed, 5);
  CHECK(x.grad().item() == 2);
}

TEST_CASE("a frozen leaf takes part without a gradient") {
  Tensor x = leaf({2}), w = leaf({3});
  w.requires_grad_(false);
  backward(x * w);
  CHECK(x.grad().item() == 3);
  CHECK_FALSE(w.grad().defined());
  CHECK_THROWS_AS((x * w).requires_grad_(false), AutogradError);
  Tensor index = tensor({std::int64_t{1}}, cpu);
  CHECK_THROWS_AS(index.requires_grad_(), DTypeError);
}

template <class O>
Tensor of_list(O op, const Tensors& in) {
  return apply(std::move(op), std::span<const Tensor>(in));
}

struct Sum {
  static constexpr OpInfo info{.name = "sum_of_list"};
  std::size_t count = 0;
  Tensor forward(std::span<const Tensor> in) {
    count = in.size();
    return in[0].clone();
  }
  Tensors backward(const Tensor& gy, NeedMask) { return Tensors(count, gy); }
};

TEST_CASE("freeing a graph allocates nothing, however many edges a node has") {
#ifdef __SANITIZE_ADDRESS__
  test::skip("the sanitizer itself needs the address space");
#else
  // A child process that has used up its memory: there an allocation fails, and a release that may not throw would
  // abort.
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    Tensor x = leaf({1});
    Tensor y = x * 1.0;
    y = of_list(Sum{}, Tensors(100'000, y));
    y = y * 1.0 + of_list(Sum{}, {y, y * 2.0});
    test::use_up_memory();
    y = Tensor();
    ::_exit(0);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
#endif
}

// Returns its input: x itself, and beside it a result of its own.
struct PassThrough {
  static constexpr OpInfo info{.name = "pass_through"};
  std::array<Tensor, 2> forward(const Tensor& x, const Tensor& y) { return {x, y.clone()}; }
  Grads<2> backward(const Tensor& gx, const Tensor& gy, NeedMask) { return {gx * 3, gy}; }
};
struct PassOne {
  static constexpr OpInfo info{.name = "pass_one"};
  Tensor forward(std::span<const Tensor> in) { return in[0]; }
  Tensors backward(const Tensor& gy, NeedMask) { return {gy * 3, Tensor()}; }
};
struct Remembered {
  static constexpr OpInfo info{.name = "remembered"};
  Tensor result;
  Tensor forward(const Tensor&) { return result; }
  Grads<1> backward(const Tensor& gy, Need<1>) { return {gy * 5}; }
};

TEST_CASE("an op that returns its input leaves that input's history alone") {
  Tensor x = leaf({2}), y = leaf({5});
  const Tensor inner = x * 2, constant = tensor({7.0}, cpu);
  const auto out = apply(PassThrough{}, inner, y);
  CHECK(out[0].impl() != inner.impl());
  CHECK(grad(inner, std::span(&x, 1), {.retain_graph = true})[0].item() == 2);  // not through the op
  const std::array<Tensor, 2> both{x, y};
  const Tensors g = grad(out[0] + out[1], both);
  CHECK(g[0].item() == 6);
  CHECK(g[1].item() == 1);

  const auto of_leaf = apply(PassThrough{}, x, y);  // a leaf stays a leaf, a constant a constant
  CHECK(x.is_leaf());
  CHECK(grad(of_leaf[0], std::span(&x, 1))[0].item() == 3);
  (void)apply(PassThrough{}, constant, y);
  CHECK(!constant.requires_grad());

  const Tensor one = of_list(PassOne{}, {x, y});
  CHECK(x.is_leaf());
  CHECK(grad(one, std::span(&x, 1))[0].item() == 3);
  {
    const NoGrad off;
    CHECK(!apply(PassThrough{}, x, y)[0].requires_grad());
  }
}

TEST_CASE("an op that returns a result of before twice gives each call a record of its own") {
  Tensor x = leaf({2}), y = leaf({3});
  const Tensor kept = tensor({1.0}, cpu);
  const Tensor first = apply(Remembered{kept}, x), second = apply(Remembered{kept}, y);
  CHECK(grad(first, std::span(&x, 1))[0].item() == 5);
  CHECK(grad(second, std::span(&y, 1))[0].item() == 5);
}

struct Copies {
  static constexpr OpInfo info{.name = "copies"};
  Tensors forward(const Tensor& t) { return Tensors(65536, t.detach()); }
  Grads<1> backward(std::span<const Tensor> gy, NeedMask) { return {gy[0]}; }
};

TEST_CASE("an op with more outputs than a slot can count is refused") {
  const auto many = [](std::span<const Tensor> in) { return Tensors(65536, in[0] * 2); };
  Tensor x = ones({1}, Device::cpu());
  x.requires_grad_();
  const Tensors in{x};
  CHECK_THROWS_AS((void)checkpoint(many, in), UnsupportedError);
  CHECK_THROWS_AS((void)apply(Copies{}, x), UnsupportedError);
}

struct FailsBackward {
  static constexpr OpInfo info{.name = "fails_backward"};
  Tensor forward(const Tensor& x) { return x.clone(); }
  Grads<1> backward(const Tensor& gy, NeedMask) { return {select(gy, 0, 7)}; }
};

TEST_CASE("an error inside a backward keeps its type and names the op") {
  Tensor x = leaf({1, 2});
  const Tensor y = apply(FailsBackward{}, x);
  CHECK_THROWS_WITH_AS(backward(y, ones_like(y)),
                       doctest::Contains("fails_backward: in its backward, with gradients [2]: select: index is 7"),
                       IndexError);
}

// The test sets its gradients.
struct GivesGradient {
  static constexpr OpInfo info{.name = "gives_gradient"};
  Tensor gradient;
  Tensor forward(const Tensor& x) { return sum(x); }
  Grads<1> backward(const Tensor&, NeedMask) { return {gradient}; }
};

TEST_CASE("a gradient that is not like its input is refused where it would be kept or added") {
  const auto refuse = [](const Tensor& gradient, const char* expected) {
    Tensor x = leaf({1, 2, 3, 4});
    const Tensor y = apply(GivesGradient{.gradient = gradient}, x);
    CHECK_THROWS_WITH_AS(backward(y), doctest::Contains(expected), AutogradError);
    CHECK(!x.grad().defined());
    const Tensors roots{apply(GivesGradient{.gradient = gradient}, x)}, wanted{x};
    CHECK_THROWS_WITH_AS((void)grad(roots, wanted), doctest::Contains(expected), AutogradError);
    // Beside a correct gradient, at a tensor that is no leaf.
    const Tensor inner = x * 2;
    CHECK_THROWS_WITH_AS(backward(sum(inner) + apply(GivesGradient{.gradient = gradient}, inner)),
                         doctest::Contains(", another op's is "), AutogradError);
  };
  const Device cpu = Device::cpu();
  refuse(ones({}, cpu),
         "gives_gradient: its backward returns f32 [] on cpu as the gradient of input 0, expected f64 [4] on cpu");
  refuse(ones({4}, cpu), "returns f32 [4] on cpu as the gradient of input 0, expected f64 [4]");
  refuse(ones({4}, Device::meta()), "returns f32 [4] on meta as the gradient of input 0, expected f64 [4] on cpu");
}

// Saves its output; `listed` states that.
template <bool listed>
struct KeepsOutput {
  static constexpr OpInfo info{.name = "keeps_output"};
  SavedOutput y{};
  Tensor forward(const Tensor& x) {
    Tensor out = exp(x);
    y = out;
    return out;
  }
  auto saved_outputs() requires listed { return std::tie(y); }
  Grads<1> backward(const Tensor& gy, NeedMask) { return {gy * y.get()}; }
};

TEST_CASE("a saved output that saved_outputs does not list is an error that names the op, and no derivative of 0") {
  Tensor x = leaf({1, 2});
  const auto second = [&](const Tensor& y) {
    const Tensors first = grad(Tensors{sum(y)}, Tensors{x}, {}, {.create_graph = true});
    return grad(Tensors{sum(first[0])}, Tensors{x})[0].to_vector<double>()[1];
  };
  CHECK(second(apply(KeepsOutput<true>{}, x)) == doctest::Approx(std::exp(2.0)));
  const Tensor y = apply(KeepsOutput<false>{}, x);
  CHECK_THROWS_WITH_AS((void)second(y), doctest::Contains("keeps_output: its backward reads a SavedOutput that"),
                       AutogradError);
  CHECK_THROWS_AS(backward(sum(y)), AutogradError);
}

TEST_CASE("an undefined tensor is named by the op that got it, one that a user wrote too") {
  CHECK_THROWS_WITH_AS((void)(leaf({1}) + Tensor()), doctest::Contains("add: an undefined tensor is used"), StateError);
  CHECK_THROWS_WITH_AS((void)mse_loss(leaf({1}), Tensor()), doctest::Contains("mse_loss: an undefined tensor is used"),
                       StateError);
  CHECK_THROWS_WITH_AS((void)remainder(Tensor(), leaf({1})), doctest::Contains("remainder: an undefined tensor"),
                       StateError);
  CHECK_THROWS_WITH_AS((void)relu(Tensor()), doctest::Contains("relu: an undefined tensor is used"), StateError);
  CHECK_THROWS_WITH_AS((void)apply(Copies{}, Tensor()), doctest::Contains("copies: an undefined tensor is used"),
                       StateError);
}

// An op whose backward writes the gradient that it gets.
struct WritesItsGradient {
  static constexpr OpInfo info{.name = "writes_its_gradient"};
  Tensor forward(const Tensor& x) const { return x.clone(); }
  Grads<1> backward(const Tensor& gy, Need<1>) {
    Tensor g = gy;
    mul_(g, 3);
    return {g};
  }
};
TEST_CASE("a seed that a backward has written on a device serves no further pass") {
  DEVICE_OR_SKIP();
  for (int pass = 0; pass < 3; ++pass) {
    Tensor x = ones({}, device);
    x.requires_grad_();
    backward(apply(WritesItsGradient{}, x));
    CHECK(x.grad().to(Device::cpu()).item() == 3);
    Tensor y = ones({}, device);
    y.requires_grad_();
    backward(y * 2);
    CHECK(y.grad().to(Device::cpu()).item() == 2);
    CHECK_FALSE(y.grad().shares_storage(x.grad()));
  }
}

}  // namespace
}  // namespace levin
