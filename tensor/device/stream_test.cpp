#include "levin/stream.h"

#include <doctest/doctest.h>

#include <array>
#include <barrier>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <thread>
#include <vector>

#include "levin/autograd.h"
#include "levin/ops.h"
#include "levin/sync.h"
#include "tensor/device/runtime.h"
#include "tensor/memory/device_allocator.h"
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
  CHECK(Device::cuda(65536) != Device::cuda(0));  // 65536 does not wrap around
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
  std::swap(start, end);  // the swap moves the timing, too
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
  CHECK(sum.to_vector<float>()[3] == 0);  // the recording ran nothing
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

TEST_CASE("a further stream of simt does its work later: what a stream does not wait for it does not see") {
  DEVICE_OR_SKIP();
  if (device.type() != DeviceType::simt) return test::skip("of simt alone");
  const NoGrad off;
  const Stream main = Stream::current(device), side = Stream::next_of(device);
  Tensor x = zeros({4}, device);
  Event event(device);
  {
    const StreamGuard guard(side);
    fill_(x, 7);
  }
  event.record(side);
  CHECK((x + 1).to_vector<float>()[0] == 1);
  main.wait(side);
  CHECK((x + 1).to_vector<float>()[0] == 8);
  CHECK(event.done());
  {
    const StreamGuard guard(side);
    fill_(x, 9);
  }
  synchronize(device);
  CHECK(x.to_vector<float>()[0] == 9);
}

TEST_CASE("memory that another stream of the device still reads is given to nobody, though its tensor is released") {
  DEVICE_OR_SKIP();
  const std::int64_t n = 1 << 20;
  const Stream main = Stream::current(device), side = Stream::next_of(device);
  Tensor x = ramp(n, device), sum;
  side.wait(main);
  {
    const StreamGuard guard(side);
    sum = x;
    for (int i = 0; i < 8; ++i) sum = sum + x;  // on a GPU long enough for the lines below
  }
  x = Tensor();
  Tensors others;
  for (int i = 0; i < 4; ++i) others.push_back(full({n}, -1, device));
  side.synchronize();
  const std::vector<float> got = sum.to_vector<float>();
  CHECK(got[1] == 9);
  CHECK(got[1000] == 9000);
}

TEST_CASE("a backward of another stream of the device than the forward's keeps what it reads") {
  DEVICE_OR_SKIP();
  const std::int64_t n = 4096;
  const Stream side = Stream::next_of(device);
  Tensor w = ramp(n, device);
  w.requires_grad_();
  Tensor loss = sum(exp(w * 1e-4) * w);
  side.wait(Stream::current(device));
  {
    const StreamGuard guard(side);
    backward(loss);
  }
  loss = Tensor();
  const Tensor other = full({n}, -1, device);
  side.synchronize();
  const float x = 1000 * 1e-4F;
  CHECK(w.grad().to_vector<float>()[1000] == doctest::Approx(std::exp(x) * (1 + x)));
}

TEST_CASE("host memory that a copy to a device reads may be changed or released when the call returns") {
  DEVICE_OR_SKIP();
  const Stream side = Stream::next_of(device);
  const StreamGuard guard(side);
  Tensor small, large;
  {
    Tensor x = ramp(1000, cpu), y = ramp(5 << 20, cpu);  // two pieces of Note [Copies from pageable memory]
    small = x.to(device);
    large = y.to(device);
    x.mutable_data<float>()[1] = -1;
    y.mutable_data<float>()[(5 << 20) - 1] = -1;
  }
  const std::vector<float> values{1, 2};
  const Tensor made = from_data(values, {2}, device);
  CHECK(small.to_vector<float>()[1] == 1);
  CHECK(large.to_vector<float>() == ramp(5 << 20, cpu).to_vector<float>());
  CHECK(made.to_vector<float>() == values);
}

TEST_CASE("what another thread gives a device's stream while a graph of that stream is recorded runs at once") {
  DEVICE_OR_SKIP();
  const Stream stream = Stream::current(device);
  const Tensor x = ramp(4, device);
  Tensor y;
  float seen = 0;
  Graph graph(stream, [&] {
    y = x + 1;
    std::thread other([&] {
      const Tensor z = x * 3;
      CHECK_FALSE(is_capturing(device));
      seen = z.to_vector<float>()[2];
      synchronize(device);
      release_cached_memory(device);
    });
    other.join();
    y = y * 2;
  });
  CHECK(seen == 6);
  const int nodes = graph.nodes();
  CHECK(nodes == Graph(stream, [&] { (void)((x + 1) * 2); }).nodes());
  graph.replay();
  CHECK(y.to_vector<float>()[3] == 8);
}

TEST_CASE("two threads record graphs of one device stream at the same time") {
  DEVICE_OR_SKIP();
  const Stream stream = Stream::default_of(device);
  const Tensor x = ramp(4, device);
  std::array<Tensor, 2> y;
  std::array<std::optional<Graph>, 2> graphs;
  std::barrier together(2);
  const auto record = [&](std::size_t i) {
    graphs[i].emplace(stream, [&] {
      together.arrive_and_wait();
      y[i] = x + double(i);
      together.arrive_and_wait();
      y[i] = y[i] * 2;
    });
  };
  std::thread other([&] { record(1); });
  record(0);
  other.join();
  CHECK(graphs[0]->nodes() == 2);
  CHECK(graphs[1]->nodes() == 2);
  for (auto& graph : graphs) graph->replay();
  CHECK(y[0].to_vector<float>()[3] == 6);
  CHECK(y[1].to_vector<float>()[3] == 8);
}

TEST_CASE("a graph of a device holds the work of a stream that the recording forks, and keeps its memory apart") {
  DEVICE_OR_SKIP();
  const Stream stream = Stream::current(device), side = Stream::next_of(device);
  const Tensor x = ramp(1000, device);
  Tensor y, z;
  Graph graph(stream, [&] {
    const Stream here = Stream::current(device);
    Tensor a = x + 1;
    side.wait(here);
    {
      const StreamGuard guard(side);
      y = a * 2;
    }
    a = Tensor();
    z = x * 100;  // nothing orders it after the side stream: it must not lie where `a` did
    here.wait(side);
  });
  graph.replay();
  CHECK(y.to_vector<float>()[10] == 22);
  CHECK(z.to_vector<float>()[10] == 1000);
  graph.replay();
  CHECK(y.to_vector<float>()[10] == 22);
  CHECK((x + 1).to_vector<float>()[10] == 11);  // the side stream runs again
}

TEST_CASE("a block that a forked stream of a device's recording uses is handed out again only without the graph") {
  DEVICE_OR_SKIP();
  using detail::DeviceAllocator;
  const DeviceAllocator::Source heap{
      [](Device, std::size_t bytes) { return static_cast<std::byte*>(std::malloc(bytes)); },
      [](Device, std::byte* block, std::size_t) noexcept { std::free(block); }};
  DeviceAllocator a(device, heap, true);
  const detail::Ref<detail::Pool> pool = detail::Ref<detail::Pool>::adopt(new detail::Pool);
  const Stream side = Stream::next_of(device);
  const Graph graph(Stream::default_of(device), [&] {
    detail::Block *used = a.allocate(512, 0, pool), *own = a.allocate(1024, 0, pool);
    const std::byte *of_used = used->data, *of_own = own->data;
    const Stream here = Stream::current(device);
    side.wait(here);
    a.used_on(used, side);
    a.used_on(own, here);
    here.wait(side);
    a.release(used);
    a.release(own);
    detail::Block *second = a.allocate(512, 0, pool), *third = a.allocate(1024, 0, pool);
    CHECK(second->data != of_used);
    CHECK(third->data == of_own);
    a.release(second);
    a.release(third);
  });
  CHECK(a.stats().cached == 512 + 512 + 1024);
  a.drop_pool(pool.get());
  a.trim();
  CHECK(a.stats().cached == 0);
}

TEST_CASE("a recording that foreign code breaks ends with CaptureError, and the device works on") {
  DEVICE_OR_SKIP();
  const Tensor x = ramp(4, device);
  const Stream stream = Stream::current(device);
  Generator gen(1);
  const std::uint64_t before = gen.state().offset;
  const auto waits_itself = [&] {
    (void)rand({2}, gen, device);
    // A library that waits for its stream, and hides the refusal.
    try {
      detail::runtime::synchronize(Stream::current(device));
    } catch (const CaptureError&) {}
  };
  CHECK_THROWS_AS(Graph(stream, waits_itself), CaptureError);
  CHECK_FALSE(is_capturing(device));
  CHECK(gen.state().offset == before);
  CHECK_THROWS_AS(Graph(stream,
                        [&] {
                          waits_itself();
                          (void)(x + 1);
                        }),
                  CaptureError);
  CHECK((x + 1).to_vector<float>()[3] == 4);
}

TEST_CASE("recording a graph first gives a device's cached memory back, for the graph's is its own") {
  DEVICE_OR_SKIP();
  const Stream side = Stream::next_of(device);
  synchronize(device);  // memory that a stream has yet to pass is cached, too
  release_cached_memory(device);
  {
    Tensor x = ramp(1 << 20, device);
    side.wait(Stream::current(device));
    const StreamGuard guard(side);
    (void)(x + 1);
    x = Tensor();  // simt keeps the block, too, until the side stream has passed
  }
  side.synchronize();
  CHECK(memory_stats(device).cached >= 4 << 20);
  std::int64_t during = -1;
  const Graph graph(Stream::current(device), [&] { during = memory_stats(device).cached; });
  CHECK(during < 1 << 20);
}

TEST_CASE("a graph replayed inside of a device's recording becomes part of it") {
  DEVICE_OR_SKIP();
  const Stream stream = Stream::current(device);
  const Tensor one = ones({4}, device);
  Tensor sum = zeros({4}, device), y;
  Graph inner(stream, [&] {
    const NoGrad off;
    add_(sum, one);
  });
  Graph outer(stream, [&] {
    inner.replay();
    y = sum * 10;
  });
  CHECK(sum.to_vector<float>()[0] == 0);
  outer.replay();
  outer.replay();
  CHECK(y.to_vector<float>()[0] == 20);
}

TEST_CASE("what a recording says of its device stream by the handle from outside is said of the recording") {
  DEVICE_OR_SKIP();
  const Stream stream = Stream::default_of(device), side = Stream::next_of(device);
  const Tensor x = ramp(100, device);
  Tensor y, z;
  Graph graph(stream, [&] {
    const Tensor a = x + 1;
    side.wait(stream);
    {
      const StreamGuard guard(side);
      y = a * 2;
    }
    stream.wait(side);
    const StreamGuard guard(Stream::default_of(device));
    z = y + 1;
  });
  CHECK(graph.nodes() == 3);
  graph.replay();
  CHECK(y.to_vector<float>()[10] == 22);
  CHECK(z.to_vector<float>()[10] == 23);
}

TEST_CASE("a device can be waited for while another thread records, with streams that the recording forked") {
  DEVICE_OR_SKIP();
  const Stream stream = Stream::default_of(device), side = Stream::next_of(device);
  const Tensor x = ramp(100, device);
  Tensor y, kept = ramp(100, device);
  side.wait(stream);
  {
    const StreamGuard guard(side);
    (void)(kept + 1);
  }
  side.synchronize();
  Graph graph(stream, [&] {
    side.wait(stream);
    {
      const StreamGuard guard(side);
      y = x * 2;
    }
    std::thread other([&] {
      synchronize(device);
      kept = Tensor();  // was used on the stream that is recorded now
      (void)empty({8}, device);
    });
    other.join();
    stream.wait(side);
  });
  graph.replay();
  CHECK(y.to_vector<float>()[10] == 20);
  (void)empty({8}, device);
  side.synchronize();
  release_cached_memory(device);
  CHECK(memory_stats(device).cached < 400);  // `kept` came back when the recording ended
}

TEST_CASE("the words of random numbers are not memory that a device's graph uses for anything else") {
  DEVICE_OR_SKIP();
  if (device.type() != DeviceType::simt) return test::skip("of simt alone, whose blocks are exactly as large as asked");
  Generator gen(1);
  Tensor y;
  const Graph graph(Stream::current(device), [&] { y = rand({2}, gen, device); });
  CHECK(graph.memory_bytes() == 2 * 4);
}

TEST_CASE("an allocation on a device does no work of a further stream, and a large copy counts once") {
  DEVICE_OR_SKIP();
  const Stream side = Stream::next_of(device);
  const std::int64_t before = copy_counts().to_device, bytes = copy_counts().to_device_bytes;
  Tensor x = ramp(5 << 20, device);
  CHECK(copy_counts().to_device == before + 1);
  CHECK(copy_counts().to_device_bytes == bytes + (20 << 20));
  Tensor y = zeros({4}, device);
  side.wait(Stream::current(device));
  {
    const StreamGuard guard(side);
    const NoGrad off;
    (void)(x + 1);
    fill_(y, 7);
  }
  x = Tensor();
  for (int i = 0; i < 100; ++i) (void)empty({4}, device);
  if (device.type() == DeviceType::simt) CHECK(y.to_vector<float>()[0] == 0);
  side.synchronize();
  CHECK(y.to_vector<float>()[0] == 7);
}
