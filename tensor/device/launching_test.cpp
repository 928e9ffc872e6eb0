// Blocking launches, and the blocks that a runtime allocates. The environment sets the mode of a process; these tests
// switch it by hand.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <string>

#include "levin/autograd.h"
#include "levin/extend.h"
#include "levin/nn.h"
#include "levin/ops.h"
#include "levin/stream.h"
#include "levin/sync.h"
#include "tensor/device/launching.h"
#include "tensor/device/runtime.h"
#include "tests/device.h"
#include "tests/skip.h"

namespace {

using namespace levin;

const Device cpu = Device::cpu();

class Blocking {
 public:
  explicit Blocking(bool on = true) {
    detail::set_blocking_launches(on);
    detail::mode().detour = true;  // as in a thread that ran ops before the mode was set
  }
  ~Blocking() { detail::set_blocking_launches(before_); }
  Blocking(const Blocking&) = delete;
  Blocking& operator=(const Blocking&) = delete;

 private:
  bool before_ = detail::blocking_launches();
};

template <class F>
std::string index_error(const F& f) {
  try {
    f();
  } catch (const IndexError& e) { return e.what(); }
  return "";
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Looks rows up twice: by a layer of its own, and by an op.
struct LookingUp : nn::Module {
  using Module::Module;
  nn::Embedding table{*this, "table", {.count = 3, .dim = 2}};
  Tensor operator()(const Tensor& index) const {
    const nn::Call call(*this, index);
    return call.gives(index_select(table(zeros_like(index)), 0, index));
  }
};
struct Waiting : nn::Module {
  using Module::Module;
  Tensor operator()(const Tensor& x) const {
    const nn::Call call(*this, x);
    return call.gives(x * x.item());
  }
};

}  // namespace

TEST_CASE("a device's blocking launch throws at the op, with its inputs and the line of the launch") {
  DEVICE_OR_SKIP();
  const Tensor x = zeros({3, 2}, device), index = tensor({std::int64_t{0}, std::int64_t{7}}, device);
  {
    const Blocking mode;
    const std::string error = index_error([&] { (void)index_select(x, 0, index); });
    CAPTURE(error);
    CHECK(error.starts_with("index_select ("));
    CHECK(has(error, text(x)));
    CHECK(has(error, text(index)));
    CHECK(has(error, "launched at index.cuh:"));
    CHECK(has(error, "index 7 is out of range"));
    CHECK_NOTHROW(synchronize(device));  // an error that was thrown is not thrown again
    // The op that the user called, also where other ops make it up.
    CHECK_NOTHROW((void)cat(Tensors{x, x}));
    CHECK(index_error([&] { (void)index_select(x, 0, index); }) == error);
  }
  const Blocking off(false);
  CHECK_NOTHROW((void)index_select(x, 0, index));  // otherwise the next wait reports it
  CHECK(index_error([&] { synchronize(device); }).starts_with("index_select: index 7"));
}

TEST_CASE("a device's blocking launch names the innermost module whose call is under way") {
  DEVICE_OR_SKIP();
  const nn::Options options{.gen = Generator(1), .device = device};
  nn::Module root(options);
  nn::Sequential layers(root, "layers");
  const auto& block = layers.add<LookingUp>();
  const Tensor good = tensor({std::int64_t{0}, std::int64_t{1}}, device),
               bad = tensor({std::int64_t{0}, std::int64_t{7}}, device);
  const Blocking mode;
  const auto origin_of = [&](const auto& work) {
    const std::string error = index_error(work);
    CAPTURE(error);
    REQUIRE(has(error, ", launched at "));
    return error.substr(0, error.find(" ("));
  };
  CHECK(origin_of([&] { (void)block.table(bad); }) == "in layers.0.table: embedding");
  CHECK(origin_of([&] { (void)layers(bad); }) == "in layers.0: index_select");
  // A call that has ended, by an exception too, is not named.
  CHECK_NOTHROW((void)layers(good));
  CHECK(origin_of([&] { (void)index_select(good, 0, bad); }) == "index_select");
}

TEST_CASE("a device's blocking launch throws what bernoulli refuses as the error that the CPU throws") {
  DEVICE_OR_SKIP();
  const Tensor p = tensor({0.5f, -1.f}, device);
  const Blocking mode;
  Generator g(1);
  std::string error;
  try {
    (void)bernoulli(p, g);
  } catch (const ConfigError& e) { error = e.what(); }
  CAPTURE(error);
  CHECK(error.starts_with("bernoulli (" + text(p) + "), launched at "));
  CHECK(has(error, ": bernoulli: p is -1 on " + text(device) + ", expected probabilities in [0, 1]"));
  CHECK_NOTHROW(synchronize(device));
}

TEST_CASE("a host wait for a device is entered with the module whose call is under way") {
  DEVICE_OR_SKIP();
  nn::Sequential layers({.gen = Generator(1), .device = device});
  layers.add<Waiting>();
  layers.add<Waiting>();
  const Tensor x = ones({1}, device);
  SyncLedger ledger;
  {
    const SyncGuard guard(ledger);
    (void)layers(x);
    (void)layers(x);
    (void)x.item();
  }
  REQUIRE(ledger.records().size() == 3);
  CHECK(ledger.records()[0].module == "0");
  CHECK(ledger.records()[1].module == "1");
  CHECK(ledger.records()[1].count == 2);
  CHECK(ledger.records()[2].module.empty());
  const SyncGuard guard(ledger, SyncCheck::forbid);
  std::string error;
  try {
    (void)layers(x);
  } catch (const StateError& e) { error = e.what(); }
  CAPTURE(error);
  CHECK(error.starts_with("in 0: item (launching_test.cpp:"));
  CHECK(has(error, "): waits for the device"));
}

TEST_CASE("a device's blocking launches change no result and no gradient, and leave autocast as it is") {
  DEVICE_OR_SKIP();
  const auto run = [&](bool lower) {
    Tensor x = (arange(12, cpu, DType::f32) / 7).to(device);
    x.requires_grad_();
    std::vector<float> out;
    const auto keep = [&](const Tensor& t) {
      const std::vector<float> v = t.to(cpu).to(DType::f32).to_vector<float>();
      out.insert(out.end(), v.begin(), v.end());
    };
    const auto work = [&] {
      const Tensor y = cat(Tensors{x * x, x});
      CHECK((detail::mode().autocast != nullptr) == lower);
      keep(y);
      keep(grad(Tensors{sum(y * y)}, Tensors{x})[0]);
    };
    if (lower) {
      const Autocast mode(DType::bf16);
      work();
    } else {
      work();
    }
    return out;
  };
  for (const bool lower : {false, true}) {
    const std::vector<float> want = run(lower);
    const Blocking mode;
    CHECK(run(lower) == want);
  }
}

TEST_CASE("nothing waits for a launch that is recorded on a device") {
  DEVICE_OR_SKIP();
  const Blocking mode;
  const Tensor x = ones({5}, device);
  Tensor y;
  Graph graph(Stream::current(device), [&] { y = x + x; });
  graph.replay();
  CHECK(y.to_vector<float>() == std::vector<float>(5, 2));
}

TEST_CASE("an error of work that ran earlier says so, and how to find its origin") {
  const Blocking off(false);
  CHECK(has(detail::late_error_hint(700), "LEVIN_LAUNCH_BLOCKING=1"));  // cudaErrorIllegalAddress
  CHECK(detail::late_error_hint(1).empty());                            // cudaErrorInvalidValue: the call's own
  const Blocking mode;
  CHECK(detail::late_error_hint(700).empty());
}

TEST_CASE("CUDA's errors of a recording are CaptureErrors, after which work goes on op by op; no others are") {
  for (int code = 900; code <= 908; ++code) CHECK(detail::breaks_recording(code));
  for (const int code : {1, 2, 700, 719, 899, 909, 910}) CHECK_FALSE(detail::breaks_recording(code));
}

TEST_CASE("a device has a block for no bytes: a tensor without elements needs no cache") {
  DEVICE_OR_SKIP();
  std::byte* const none = detail::runtime::allocate(device, 0);
  CHECK(none != nullptr);
  detail::runtime::release(device, none, 0);
}

TEST_CASE("a device's block filled with ones holds NaN, which shows that nothing has written there") {
  DEVICE_OR_SKIP();
  std::byte* const block = detail::runtime::allocate_filled(device, 64, 0xff);
  REQUIRE(block != nullptr);
  std::array<float, 16> values{};
  detail::runtime::copy(values.data(), block, sizeof values, detail::runtime::Copy::to_host, Stream::current(device));
  Stream::current(device).synchronize();
  for (const float v : values) CHECK(std::isnan(v));
  detail::runtime::release(device, block, 64);
}
