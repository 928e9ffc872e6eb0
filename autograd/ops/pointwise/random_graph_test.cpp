// Random numbers in recorded graphs: one recording and N replays are N calls.
#include <doctest/doctest.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "levin/autograd.h"
#include "levin/distributions.h"
#include "levin/ops.h"
#include "levin/stream.h"
#include "tests/device.h"
#include "tests/skip.h"

namespace {

using namespace levin;

const Device cpu = Device::cpu();

using Values = std::vector<double>;
Values values(const Tensor& t) { return t.to(cpu).to(DType::f64).to_vector<double>(); }
bool same(const Generator& a, const Generator& b) {
  return a.seed() == b.seed() && a.state().offset == b.state().offset;
}

using Step = std::function<Tensors(Generator&)>;
constexpr int kReplays = 4;

// `step` called and `step` recorded agree in every number and in the generator's final state.
void check_replays(const Step& step, Device device) {
  Generator called(11), drawn(11);
  called.reserve(5);
  drawn.reserve(5);
  Tensors got;
  Graph graph(Stream::current(device), [&] { got = step(drawn); });
  CHECK(same(drawn, called));  // the recording has drawn nothing
  for (int i = 0; i < kReplays; ++i) {
    CAPTURE(i);
    const Tensors want = step(called);
    graph.replay();
    REQUIRE(got.size() == want.size());
    for (std::size_t k = 0; k < want.size(); ++k) CHECK(values(got[k]) == values(want[k]));
    CHECK(same(drawn, called));
  }
}

Tensor noise(Generator& g, Device device) { return randn({37}, g, device); }

}  // namespace

TEST_CASE("on a device every random op draws in a replayed graph what it draws when called") {
  DEVICE_OR_SKIP();
  const Tensor p = rand({50}, *std::make_unique<Generator>(3), device);
  const std::pair<std::string, Step> ops[] = {
      {"rand",
       [&](Generator& g) {
         return Tensors{rand({9}, g, device), rand({130}, g, device, DType::f64)};
       }},
      {"randn",
       [&](Generator& g) {
         return Tensors{randn({33}, g, device), randn({6}, g, device, DType::bf16)};
       }},
      {"randint", [&](Generator& g) { return Tensors{randint(-5, 90, {21}, g, device, DType::i64)}; }},
      {"randperm", [&](Generator& g) { return Tensors{randperm(1500, g, device)}; }},
      {"bernoulli", [&](Generator& g) { return Tensors{bernoulli(p, g)}; }},
      {"standard_gamma",
       [&](Generator& g) {
         return Tensors{distributions::standard_gamma(p, g), distributions::standard_gamma(p, g)};
       }},
      {"dropout",
       [&](Generator& g) {
         return Tensors{dropout(p, 0.5, g), dropout(p, 0.1, g)};
       }},
  };
  for (const auto& [name, step] : ops) {
    CAPTURE(name);
    check_replays(step, device);
  }
}

TEST_CASE("on a device dropout's gradient has the mask of its replay") {
  DEVICE_OR_SKIP();
  Tensor x = ones({64}, device);
  x.requires_grad_();
  check_replays(
      [&](Generator& g) {
        const Tensor y = dropout(x * 3, 0.5, g);
        return Tensors{y, grad(Tensors{sum(y)}, Tensors{x})[0]};
      },
      device);
}

TEST_CASE("on a device a checkpointed region repeats its random numbers inside a recording") {
  DEVICE_OR_SKIP();
  Tensor x = ones({64}, device);
  x.requires_grad_();
  check_replays(
      [&](Generator& g) {
        const auto region = [&g](std::span<const Tensor> in) {
          return Tensors{dropout(in[0] * in[0], 0.5, g) + dropout(in[0], 0.2, g)};
        };
        const Tensor y = checkpoint(region, Tensors{x})[0];
        return Tensors{y, grad(Tensors{sum(y)}, Tensors{x})[0], noise(g, device)};
      },
      device);
}

TEST_CASE("on a device copies, forks, new generators and states set inside a recording draw as in a call") {
  DEVICE_OR_SKIP();
  const std::pair<std::string, Step> steps[] = {
      {"copy before the first draw",
       [&](Generator& g) {
         Generator copy = g;
         return Tensors{noise(copy, device), noise(copy, device)};
       }},
      {"copy behind a draw, and on",
       [&](Generator& g) {
         const Tensor a = noise(g, device);
         Generator copy = g;
         return Tensors{a, noise(copy, device), noise(g, device), noise(copy, device)};
       }},
      {"moved copy",
       [&](Generator& g) {
         Generator copy = g;
         Generator moved = std::move(copy);
         return Tensors{noise(moved, device), noise(g, device)};
       }},
      {"fork",
       [&](Generator& g) {
         Generator fork = g.fork("noise");
         return Tensors{noise(fork, device), noise(g, device), noise(fork, device)};
       }},
      {"new",
       [&](Generator& g) {
         Generator mine(5);
         return Tensors{noise(mine, device), noise(g, device)};
       }},
      {"state set",
       [&](Generator& g) {
         const Tensor a = noise(g, device);
         g.set_state({23, 1000});
         return Tensors{a, noise(g, device)};
       }},
      {"assigned from a copy that drew",
       [&](Generator& g) {
         Generator copy = g;
         const Tensor a = noise(copy, device);
         const Tensor b = noise(copy, device);
         g = copy;
         return Tensors{a, b, noise(g, device)};
       }},
  };
  for (const auto& [name, step] : steps) {
    CAPTURE(name);
    check_replays(step, device);
  }
}

TEST_CASE("on a device draws and states set between replays are honoured") {
  DEVICE_OR_SKIP();
  Generator called(1), drawn(1);
  Tensor got;
  Graph graph(Stream::current(device), [&] { got = noise(drawn, device); });
  const auto step_of_both = [&] {
    const Tensor want = noise(called, device);
    graph.replay();
    CHECK(values(got) == values(want));
    CHECK(same(drawn, called));
  };
  step_of_both();
  CHECK(values(randn({3}, called, cpu)) == values(randn({3}, drawn, cpu)));
  CHECK(values(noise(called, device)) == values(noise(drawn, device)));
  step_of_both();
  for (Generator* g : {&called, &drawn}) g->set_state({99, 7});
  step_of_both();
  for (Generator* g : {&called, &drawn}) *g = Generator(5);
  step_of_both();
  Generator copy = drawn;  // a value: neither the graph nor the generator advances it
  CHECK(values(noise(copy, device)) == values(noise(called, device)));
  called = drawn;
  step_of_both();
}

TEST_CASE("on a device two graphs draw from one generator in the order of their replays, several in flight") {
  DEVICE_OR_SKIP();
  Generator called(2), drawn(2);
  Tensor sums[2] = {zeros({37}, device), zeros({37}, device)}, want[2] = {zeros({37}, device), zeros({37}, device)};
  const auto step = [&](Generator& g, Tensor& sum, int draws) {
    for (int i = 0; i < draws; ++i) add_(sum, noise(g, device));
  };
  Graph first(Stream::current(device), [&] { step(drawn, sums[0], 1); });
  Graph second(Stream::current(device), [&] { step(drawn, sums[1], 3); });
  CHECK(same(drawn, called));
  for (const int which : {0, 1, 1, 0, 1, 0, 0}) {
    (which == 0 ? first : second).replay();
    step(called, want[which], which == 0 ? 1 : 3);
  }
  for (const int which : {0, 1}) CHECK(values(sums[which]) == values(want[which]));
  CHECK(same(drawn, called));
}

TEST_CASE("a device's graph goes on drawing after its generator is gone, and a generator after its graph") {
  DEVICE_OR_SKIP();
  Generator called(4);
  Tensor got;
  auto drawn = std::make_unique<Generator>(4);
  auto graph = std::make_unique<Graph>(Stream::current(device), [&] { got = noise(*drawn, device); });
  Generator moved = std::move(*drawn);  // takes its place in the graph with it
  drawn.reset();
  graph->replay();
  CHECK(values(got) == values(noise(called, device)));
  CHECK(same(moved, called));
  { const Generator last = std::move(moved); }
  for (int i = 0; i < 2; ++i) {
    graph->replay();
    CHECK(values(got) == values(noise(called, device)));
  }
  Generator left(6);
  Graph other(Stream::current(device), [&] { got = noise(left, device); });
  other.replay();
  { const Graph gone = std::move(other); }
  Generator as_left(6);
  as_left.reserve(37);
  CHECK(values(noise(left, device)) == values(noise(as_left, device)));
}

TEST_CASE("on a device a recording that fails leaves generators as they were") {
  DEVICE_OR_SKIP();
  Generator g(8);
  g.reserve(40);
  const Generator before = g;
  const Stream s = Stream::current(device);
  CHECK_THROWS_AS(Graph(s,
                        [&] {
                          (void)noise(g, device);
                          g.set_state({1, 2});
                          s.synchronize();
                        }),
                  CaptureError);
  CHECK(same(g, before));
  Generator same_as_before = before;
  CHECK(values(noise(g, device)) == values(noise(same_as_before, device)));
}

TEST_CASE("a device's graph draws from more generators than one launch sets") {
  DEVICE_OR_SKIP();
  std::deque<Generator> called, drawn;
  for (std::uint64_t seed = 0; seed < 70; ++seed) {
    called.emplace_back(seed);
    drawn.emplace_back(seed);
  }
  const auto step = [&](std::deque<Generator>& all) {
    Tensors out;
    for (Generator& g : all) out.push_back(rand({5}, g, device));
    return cat(out);
  };
  Tensor got;
  Graph graph(Stream::current(device), [&] { got = step(drawn); });
  for (int i = 0; i < 3; ++i) {
    graph.replay();
    CHECK(values(got) == values(step(called)));
  }
}

TEST_CASE("a device's graph that draws can not be replayed inside a recording") {
  DEVICE_OR_SKIP();
  Generator g(1);
  const Stream s = Stream::current(device);
  Graph graph(s, [&] { (void)noise(g, device); });
  CHECK_THROWS_AS(Graph(s, [&] { graph.replay(); }), CaptureError);
  graph.replay();
}
