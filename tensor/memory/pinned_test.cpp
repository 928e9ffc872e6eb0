// Page-locked memory of the host and copies that the host does not wait for.
#include <doctest/doctest.h>

#include <vector>

#include "levin/autograd.h"
#include "levin/ops.h"
#include "levin/stream.h"
#include "tensor/memory/device_allocator.h"
#include "tests/device.h"
#include "tests/skip.h"

namespace {

using namespace levin;

const Device cpu = Device::cpu();

Tensor ramp(std::int64_t n) { return arange(n, cpu, DType::f32); }

}  // namespace

TEST_CASE("without a device that launches kernels pin_memory is refused") {
  if (test::launching_device()) return test::skip("this build has one");
  CHECK_THROWS_AS((void)ramp(3).pin_memory(), UnsupportedError);
}

TEST_CASE("pin_memory beside a device copies values of any layout and dtype into page-locked memory once") {
  DEVICE_OR_SKIP();
  const Tensor x = ramp(12), turned = transpose(reshape(x, {3, 4}), 0, 1);
  const Tensor p = turned.pin_memory();
  CHECK(p.is_pinned());
  CHECK_FALSE(turned.is_pinned());
  CHECK(p.is_contiguous());
  CHECK(p.device() == cpu);
  CHECK(p.to_vector<float>() == turned.to_vector<float>());
  CHECK(p.pin_memory().shares_storage(p));
  CHECK(narrow(p, 0, 1, 2).is_pinned());  // a view of it
  CHECK(narrow(x, 0, 5, 3).pin_memory().to_vector<float>() == std::vector<float>{5, 6, 7});
  CHECK(zeros({0, 2}, cpu).pin_memory().shape() == Shape{0, 2});
  CHECK(tensor({true, false}, cpu).pin_memory().to_vector<bool>() == std::vector<bool>{true, false});
  CHECK_FALSE((p + p).is_pinned());
  CHECK_THROWS_AS((void)x.to(device).pin_memory(), DeviceError);
  CHECK_FALSE(x.to(device).is_pinned());
}

TEST_CASE("copies to a device that the host does not wait for arrive both ways, and their source may be released") {
  DEVICE_OR_SKIP();
  Tensor there;
  {
    const Tensor p = ramp(1000).pin_memory();
    there = p.to(device, NonBlocking::yes);
  }
  const Tensor again = ramp(1000).pin_memory();  // may be the same block: the copy is done or the block is another
  const Tensor back = (there + 1).to(cpu, NonBlocking::yes);
  CHECK(back.is_pinned());
  Stream::current(device).synchronize();
  CHECK(back.to_vector<float>() == (ramp(1000) + 1).to_vector<float>());
  CHECK(ramp(5).to(device, NonBlocking::yes).to(cpu).to_vector<float>() == ramp(5).to_vector<float>());  // staged
  CHECK(again.to(device).to_vector<float>() == ramp(1000).to_vector<float>());
  CHECK_FALSE(there.to(cpu).is_pinned());
  CHECK_THROWS_AS(Graph(Stream::current(device), [&] { (void)there.to(cpu, NonBlocking::yes); }), CaptureError);
}

TEST_CASE("a gradient crosses a copy to a device that the host does not wait for") {
  DEVICE_OR_SKIP();
  Tensor x = ramp(3);
  x.requires_grad_();
  const Tensor y = x.to(device, NonBlocking::yes) * 2;
  CHECK(grad(Tensors{y}, Tensors{x}, Tensors{ramp(3).to(device)})[0].to_vector<float>() == std::vector<float>{0, 2, 4});
}

TEST_CASE("a page-locked block is used again once the device's streams that used it have passed") {
  DEVICE_OR_SKIP();
  release_cached_memory(cpu);
  const float* first = nullptr;
  const Stream other = Stream::next_of(device);
  {
    const Tensor p = ramp(5000).pin_memory();
    first = p.data<float>();
    const StreamGuard guard(other);
    (void)p.to(device, NonBlocking::yes);
  }
  other.synchronize();
  CHECK(ramp(5000).pin_memory().data<float>() == first);
  CHECK(detail::pinned_allocator().stats().cached > 0);
  release_cached_memory(cpu);
  CHECK(detail::pinned_allocator().stats().cached == 0);
}
