#include "levin/stream.h"

#include <doctest/doctest.h>

#include <vector>

#include "levin/autograd.h"
#include "levin/ops.h"
#include "tests/device.h"
#include "tests/skip.h"

namespace {

using namespace levin;

const Device cpu = Device::cpu();

Tensor ramp(std::int64_t n, Device device) { return arange(n, cpu, DType::f32).to(device); }

}  // namespace

TEST_CASE("a device that the build has not is refused by name") {
  for (const Device d : {Device::cuda(), Device::cuda(63), Device::simt()}) {
    if (d.index() < device_count(d.type())) continue;
    CHECK_THROWS_AS((void)empty({2}, d), Error);
    CHECK_THROWS_AS((void)zeros({2}, cpu).to(d), Error);
    CHECK_THROWS_AS((void)Stream::default_of(d), Error);
  }
  CHECK(device_count(DeviceType::cpu) == 1);
  CHECK(text(Device::simt()) == "simt");
  CHECK(text(Device::cuda(3)) == "cuda:3");
}

TEST_CASE("a device whose index no machine has is refused wherever a stream is asked for") {
  for (const Device d : {Device::cuda(100), Device::cuda(-1), Device::cuda(64), Device::cuda(65536)}) {
    CAPTURE(text(d));
    CHECK_THROWS_AS((void)Stream::current(d), Error);
    CHECK_THROWS_AS((void)Stream::default_of(d), Error);
    CHECK_THROWS_AS((void)Stream::next_of(d), Error);
    CHECK_THROWS_AS(synchronize(d), Error);
    CHECK_THROWS_AS((void)Event(d), Error);
    CHECK_THROWS_AS((void)empty({2}, d), Error);
    CHECK_THROWS_AS((void)memory_stats(d), Error);
    CHECK_FALSE(is_capturing(d));
  }
  CHECK(Device::cuda(65536) != Device::cuda(0));  // does not wrap
}

TEST_CASE("a guard of a cpu stream changes nothing on a device, whatever the index") {
  DEVICE_OR_SKIP();
  const Stream before = Stream::next_of(device);
  const StreamGuard outer(before);
  const StreamGuard inner(Stream::current(Device::cpu(100)));
  const StreamGuard same_index(Stream::current(Device::cpu(device.index())));
  CHECK(Stream::current(device) == before);
}

TEST_CASE("a stream of the cpu is a name: nothing waits and nothing is recorded") {
  const Stream s = Stream::current(cpu);
  s.synchronize();
  s.wait(s);
  CHECK(s == Stream::default_of(cpu));
  CHECK_THROWS_AS(Graph(s, [] {}), UnsupportedError);
  CHECK_FALSE(is_capturing(cpu));
}

TEST_CASE("data goes to a device and comes back as it was, strided or not") {
  DEVICE_OR_SKIP();
  const Tensor x = ramp(24, cpu);
  const Tensor there = x.to(device);
  CHECK(there.device() == device);
  CHECK(there.to_vector<float>() == x.to_vector<float>());
  const Tensor turned = transpose(reshape(there, {4, 6}), 0, 1);
  CHECK(turned.to_vector<float>() == transpose(reshape(x, {4, 6}), 0, 1).to_vector<float>());
  CHECK(there.to(device).shares_storage(there));
  CHECK(zeros({0, 3}, device).to(cpu).shape() == Shape{0, 3});
  CHECK(narrow(there, 0, 5, 1).item<float>() == 5);
  CHECK_THROWS_AS((void)there.data<float>(), DeviceError);
  CHECK_THROWS_AS((void)(there + x), DeviceError);
}

TEST_CASE("a gradient crosses devices with the data") {
  DEVICE_OR_SKIP();
  Tensor x = ramp(3, cpu);
  x.requires_grad_();
  const Tensor y = x.to(device) * 2;
  const Tensor g = grad(Tensors{y}, Tensors{x}, Tensors{ramp(3, device)})[0];
  CHECK(g.device() == cpu);
  CHECK(g.to_vector<float>() == std::vector<float>{0, 2, 4});
}

TEST_CASE("a guard makes a device's stream current for its scope and its thread") {
  DEVICE_OR_SKIP();
  const Stream before = Stream::current(device), other = Stream::next_of(device);
  CHECK(other.index() != before.index());
  Tensor x;
  {
    const StreamGuard guard(other);
    CHECK(Stream::current(device) == other);
    x = ramp(1000, device) + 1;
  }
  CHECK(Stream::current(device) == before);
  before.wait(other);
  CHECK((x + 1).to_vector<float>()[999] == 1001);
}

TEST_CASE("memory of a device is counted and comes back") {
  DEVICE_OR_SKIP();
  const auto before = memory_stats(device).in_use;
  {
    const Tensor x = zeros({1000}, device);
    CHECK(memory_stats(device).in_use >= before + 4000);
  }
  CHECK(memory_stats(device).in_use == before);
  CHECK_THROWS_AS((void)empty({std::int64_t{1} << 40}, device), OutOfMemoryError);
}

TEST_CASE("events measure time between two points of a device's stream") {
  DEVICE_OR_SKIP();
  const Stream s = Stream::current(device);
  Event start(device, EnableTiming::yes), end(device, EnableTiming::yes);
  CHECK(start.done());
  start.record(s);
  (void)(ramp(100, device) + 1);
  end.record(s);
  end.synchronize();
  CHECK(end.done());
  CHECK(end.milliseconds_since(start) >= 0);
  std::swap(start, end);  // they take their timing with them
  CHECK(start.milliseconds_since(end) >= 0);
}

TEST_CASE("an event gives a time only where it was made to take it") {
  for (const Device d : {cpu, test::launching_device().value_or(cpu)}) {
    const Event plain(d), timed(d, EnableTiming::yes);
    CHECK_THROWS_WITH_AS((void)plain.milliseconds_since(timed),
                         "Event::milliseconds_since: this event takes no time; make both with EnableTiming::yes",
                         StateError);
    CHECK_THROWS_WITH_AS((void)timed.milliseconds_since(plain),
                         "Event::milliseconds_since: the first event takes no time; make both with EnableTiming::yes",
                         StateError);
  }
}

TEST_CASE("a recorded graph runs on the device when it is replayed, on the addresses it saw") {
  DEVICE_OR_SKIP();
  Tensor x = ramp(8, device), sum = zeros({8}, device);
  Tensor y;
  Graph graph(Stream::current(device), [&] {
    y = x * 2 + 1;
    NoGrad guard;
    add_(sum, y);
  });
  CHECK(graph.nodes() >= 3);
  CHECK(graph.memory_bytes() >= 32);
  CHECK(sum.to_vector<float>()[3] == 0);  // recording ran nothing
  graph.replay();
  CHECK(y.to_vector<float>()[3] == 7);
  copy_(x, ramp(8, device) + 10);
  graph.replay();
  CHECK(y.to_vector<float>()[3] == 27);
  CHECK(sum.to_vector<float>()[3] == 34);
}

TEST_CASE("while a graph is recorded nothing may wait for the device, and a failed recording leaves none") {
  DEVICE_OR_SKIP();
  const Tensor x = ramp(1, device);
  const Stream s = Stream::current(device);
  // The message names the call and the line of the program that waits.
  CHECK_THROWS_WITH_AS(Graph(s, [&] { (void)x.item(); }), doctest::Contains("item (stream_test.cpp:"), CaptureError);
  CHECK_THROWS_WITH_AS(Graph(s, [&] { (void)x.to_vector<float>(); }), doctest::Contains("to_vector (stream_test.cpp:"),
                       CaptureError);
  CHECK_FALSE(is_capturing(device));
  CHECK_THROWS_AS(Graph(s, [&] { s.synchronize(); }), CaptureError);
  CHECK_THROWS_AS(Graph(s, [&] { (void)ramp(2, device); }), CaptureError);
  CHECK_THROWS_AS(Graph(s, [&] { Graph inner(s, [] {}); }), CaptureError);
  CHECK((x + 1).item<float>() == 1);
}
