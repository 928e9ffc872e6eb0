// Blocking launches. The mode is that of the process and read from its environment; these tests switch it by hand.
#include <doctest/doctest.h>

#include <string>

#include "levin/autograd.h"
#include "levin/extend.h"
#include "levin/ops.h"
#include "levin/stream.h"
#include "tensor/launching.h"
#include "tensor/runtime.h"
#include "tests/device.h"
#include "tests/skip.h"

namespace {

using namespace levin;

const Device cpu = Device::cpu();

class Blocking {
 public:
  explicit Blocking(bool on = true) {
    detail::set_blocking_launches(on);
    detail::mode().detour = true;  // a thread that has run ops before knows that nothing was asked
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
    CHECK_NOTHROW(synchronize(device));  // what was thrown is not thrown again
    // The op that the user called, also where it is made of others.
    CHECK_NOTHROW((void)cat(Tensors{x, x}));
    CHECK(index_error([&] { (void)index_select(x, 0, index); }) == error);
  }
  const Blocking off(false);
  CHECK_NOTHROW((void)index_select(x, 0, index));  // else the next wait is told
  CHECK(index_error([&] { synchronize(device); }).starts_with("index_select: index 7"));
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
