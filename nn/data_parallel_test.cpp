#include "levin/nn/data_parallel.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "levin/autograd.h"
#include "levin/nn.h"
#include "levin/ops.h"
#include "tests/skip.h"

using namespace levin;

namespace {

const nn::Options kOptions{.gen = Generator(3), .device = Device::cpu()};

std::vector<Device> cpus(int n, int first = 0) {
  std::vector<Device> all;
  for (int i = 0; i < n; ++i) all.push_back(Device::cpu(first + i));
  return all;
}

struct BlockOptions {
  std::int64_t width = 8;
  bool norm = false, drop = false;
};
struct Block : nn::Module {
  using Options = BlockOptions;
  Block(nn::Module& parent, std::string_view name, const Options& o)
      : Module(parent, name),
        options(o),
        fc1(*this, "fc1", {.in = 3, .out = o.width}),
        norm(*this, "norm", {.features = o.width}),
        drop(*this, "drop", {.p = 0.5}),
        fc2(*this, "fc2", {.in = o.width, .out = 3}) {}
  Options options;
  nn::Linear fc1;
  nn::BatchNorm1d norm;
  nn::Dropout drop;
  nn::Linear fc2;
  Tensor operator()(const Tensor& x) const {
    Tensor h = tanh(fc1(x));
    if (options.norm) h = norm(h);
    if (options.drop) h = drop(h);
    return fc2(h);
  }
};

// The wrapped block, or the block itself under the same name.
struct Wrapped : nn::Module {
  Wrapped(std::vector<Device> devices, BlockOptions o)
      : Module(kOptions), block(*this, "block", std::move(devices), o) {}
  nn::DataParallel<Block> block;
};
struct Plain : nn::Module {
  explicit Plain(BlockOptions o) : Module(kOptions), outer(*this, "block"), block(outer, "module", o) {}
  nn::Module outer;
  Block block;
};

Tensor input(std::int64_t n, Device device = Device::cpu()) {
  Generator gen(7);
  return randn({n, 3}, gen, Device::cpu()).to(device);
}

struct Result {
  std::vector<float> y, of_x;
  std::vector<std::vector<float>> gradients{};
};
template <class M>
Result ran(M& net, std::int64_t n) {
  Tensor x = input(n).requires_grad_();
  const Tensor y = net.block(x);
  backward(sum(square(y)));
  Result result{.y = y.detach().template to_vector<float>(), .of_x = x.grad().template to_vector<float>()};
  for (const ParamRef& p : net.parameters()) {
    const Tensor g = p.value->grad();
    result.gradients.push_back(g.defined() ? g.template to_vector<float>() : std::vector<float>());
  }
  return result;
}
void check_close(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) CHECK(std::abs(a[i] - b[i]) <= 4e-6 * (1 + std::abs(b[i])));
}
void check_close(const Result& a, const Result& b) {
  check_close(a.y, b.y);
  check_close(a.of_x, b.of_x);
  REQUIRE(a.gradients.size() == b.gradients.size());
  for (std::size_t i = 0; i < a.gradients.size(); ++i) check_close(a.gradients[i], b.gradients[i]);
}

template <class E, class F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const E& e) { return e.what(); }
  return "accepted";
}
bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("a module on several devices computes and differentiates as on one, also for short and missing parts") {
  for (const std::int64_t n : {10, 7, 2, 1}) {
    Plain plain({});
    const Result one = ran(plain, n);
    for (const int devices : {1, 2, 4}) {
      CAPTURE(n);
      CAPTURE(devices);
      Wrapped wrapped(cpus(devices), {});
      CHECK(wrapped.named_parameters().size() == plain.named_parameters().size());
      for (std::size_t i = 0; i < plain.named_parameters().size(); ++i)
        CHECK(wrapped.named_parameters()[i].first == plain.named_parameters()[i].first);
      check_close(ran(wrapped, n), one);
    }
  }
}

TEST_CASE("two calls of a module on several devices before one backward add their gradients") {
  Wrapped wrapped(cpus(2), {});
  Plain plain({});
  const Tensor x = input(6);
  backward(sum(wrapped.block(x)) + sum(square(wrapped.block(x * 2))));
  backward(sum(plain.block(x)) + sum(square(plain.block(x * 2))));
  for (std::size_t i = 0; i < plain.parameters().size(); ++i) {
    if (plain.parameters()[i].value->grad().defined())
      check_close(wrapped.parameters()[i].value->grad().to_vector<float>(),
                  plain.parameters()[i].value->grad().to_vector<float>());
  }
}

TEST_CASE("copies draw numbers of their own in each call, bits repeat, and a checkpointed call repeats them") {
  const auto once = [](bool again) {
    Wrapped wrapped(cpus(3), {.drop = true});
    Tensor x = input(9).requires_grad_();
    const Tensor first = wrapped.block(x).detach();
    const auto call = [&](std::span<const Tensor> in) { return Tensors{wrapped.block(in[0])}; };
    const Tensor y = again ? checkpoint(call, std::span<const Tensor>(&x, 1))[0] : wrapped.block(x);
    CHECK(first.to_vector<float>() != y.detach().to_vector<float>());
    backward(sum(square(y)));
    Result result{.y = y.detach().to_vector<float>(), .of_x = x.grad().to_vector<float>()};
    for (const ParamRef& p : wrapped.parameters()) {
      if (p.value->grad().defined()) result.gradients.push_back(p.value->grad().to_vector<float>());
    }
    return result;
  };
  const Result a = once(false), b = once(false), again = once(true);
  CHECK(a.y == b.y);
  CHECK(a.gradients == b.gradients);
  CHECK(a.y == again.y);
  CHECK(a.of_x == again.of_x);
  CHECK(a.gradients == again.gradients);

  // The same sample in each part, and three masks.
  Wrapped wrapped(cpus(3), {.width = 64, .drop = true});
  const Tensor same = cat({input(1), input(1), input(1)});
  const std::vector<float> y = wrapped.block(same).detach().to_vector<float>();
  CHECK(y[0] != y[3]);
  CHECK(y[0] != y[6]);
  CHECK(y[3] != y[6]);
  wrapped.eval();
  const std::vector<float> sure = wrapped.block(same).detach().to_vector<float>();
  CHECK(sure[0] == sure[3]);
  CHECK(sure[0] == sure[6]);
}

TEST_CASE("only the buffers of the first device are kept, and autocast and no-grad mode reach the copies") {
  Wrapped wrapped(cpus(2), {.norm = true});
  Plain plain({.norm = true});
  const Tensor x = input(8);
  (void)wrapped.block(x);
  (void)plain.block(slice(x, 0, 0, 4));
  CHECK(wrapped.block.module().norm.running_mean.to_vector<float>() ==
        plain.block.norm.running_mean.to_vector<float>());
  CHECK(wrapped.block.module().norm.num_batches_tracked.item<std::int64_t>() == 1);

  Wrapped half(cpus(2), {});
  {
    const Autocast on(DType::bf16);
    CHECK(half.block(x).dtype() == DType::bf16);
  }
  const NoGrad off;
  CHECK_FALSE(half.block(x).requires_grad());
}

TEST_CASE("frozen parameters of a module on several devices get no gradient") {
  Wrapped wrapped(cpus(2), {});
  wrapped.block.module().fc1.requires_grad_(false);
  backward(sum(wrapped.block(input(4))));
  CHECK_FALSE(wrapped.block.module().fc1.weight.grad().defined());
  CHECK(wrapped.block.module().fc2.weight.grad().defined());
  wrapped.requires_grad_(false);
  CHECK_FALSE(wrapped.block(input(4)).requires_grad());
}

TEST_CASE("DataParallel refuses devices and inputs that do not fit, with both devices") {
  CHECK(contains(refusal<ConfigError>([] { Wrapped w({}, {}); }), "DataParallel block: there is no device"));
  CHECK(contains(refusal<ConfigError>([] {
                   Wrapped w({Device::cpu(1), Device::cpu(1)}, {});
                 }),
                 "list cpu:1 twice (cpu:1, cpu:1)"));
  Wrapped wrapped(cpus(2, 1), {});
  CHECK(wrapped.block.module().fc1.weight.device() == Device::cpu(1));
  CHECK(contains(refusal<DeviceError>([&] { (void)wrapped.block(input(4)); }),
                 "x is on cpu, expected cpu:1, the first of its devices (cpu:1, cpu:2)"));
  CHECK(contains(refusal<ShapeError>([&] { (void)wrapped.block(zeros({}, Device::cpu(1))); }), "expected a dimension"));
  wrapped.to(Device::cpu());
  CHECK(contains(refusal<DeviceError>([&] { (void)wrapped.block(input(4, Device::cpu(1))); }),
                 "the parameter fc1.weight is on cpu, expected cpu:1"));
  Wrapped twice(cpus(2), {});
  Tensor x = input(4).requires_grad_();
  const Tensor y = sum(square(twice.block(x)));
  CHECK(contains(refusal<AutogradError>([&] { (void)grad(y, std::span<const Tensor>(&x, 1), {.create_graph = true}); }),
                 "second order"));
}

TEST_CASE("DataParallel copies values to the simt device and adds its gradients on the CPU") {
  if (device_count(DeviceType::simt) == 0) return test::skip("no simt device in this build");
  Plain plain({});
  Wrapped wrapped({Device::cpu(), Device::simt()}, {});
  check_close(ran(wrapped, 7), ran(plain, 7));
}
