#include <doctest/doctest.h>
#include <memory>

#include "comm/group/conformance_test.h"
#include "comm/group/local.h"
#include "levin/comm.h"
#include "levin/error.h"
#include "tests/device.h"

namespace levin {
namespace {

using dist::ReduceOp, dist::ReduceOrder;

Tensor f(const Shape& shape) { return empty(shape, Device::cpu()); }

TEST_CASE("a group refuses wrong arguments before any rank is told") {
  // Only rank 0 calls: a call that reached the backend would wait for rank 1.
  const auto groups = dist::make_local_groups(3, {.timeout = 60});
  dist::ProcessGroup& g = *groups[0];
  const auto cpu = Device::cpu();
  const Tensor bools = empty({3}, cpu, DType::b8), ints = empty({3}, cpu, DType::i32);
  const Tensor across = as_strided(f({2, 3}), {3, 2}, {1, 3}, 0);
  CHECK_THROWS_AS(static_cast<void>(g.all_reduce({})), StateError);
  CHECK_THROWS_WITH_AS(static_cast<void>(g.all_reduce(across)), doctest::Contains("contiguous"), ShapeError);
  CHECK_THROWS_AS(static_cast<void>(g.all_reduce(bools)), DTypeError);
  CHECK_THROWS_AS(static_cast<void>(g.all_reduce(ints, ReduceOp::average)), DTypeError);
  for (const DType stored : {DType::i8, DType::i16}) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::min, ReduceOp::max}) {
      CHECK_THROWS_WITH_AS(static_cast<void>(g.all_reduce(empty({3}, cpu, stored), op)),
                           doctest::Contains("are moved and not computed with; reduce to(DType::i32)"), DTypeError);
    }
    CHECK_THROWS_AS(static_cast<void>(g.reduce_scatter(empty({1}, cpu, stored), empty({3}, cpu, stored))), DTypeError);
  }
  CHECK_THROWS_WITH_AS(static_cast<void>(g.all_reduce(f({3}), ReduceOp::sum, ReduceOrder::tree)),
                       doctest::Contains("a power of two of ranks, the group has 3"), ConfigError);
  CHECK_THROWS_AS(static_cast<void>(g.all_reduce(f({3}), static_cast<ReduceOp>(9))), ConfigError);
  CHECK_THROWS_WITH_AS(static_cast<void>(g.broadcast(f({3}), 3)),
                       "broadcast: root is 3, but the group's ranks are 0 "
                       "to 2",
                       ConfigError);
  CHECK_THROWS_AS(static_cast<void>(g.broadcast(f({3}), -1)), ConfigError);
  CHECK_THROWS_AS(static_cast<void>(g.all_gather(f({5}), f({2}))), ShapeError);
  CHECK_THROWS_AS(static_cast<void>(g.all_gather(ints, f({1}))), DTypeError);
  CHECK_THROWS_AS(static_cast<void>(g.all_gather(f({3}), empty({1}, Device::cpu(1)))), DeviceError);
  CHECK_THROWS_AS(static_cast<void>(g.reduce_scatter(f({2}), f({5}))), ShapeError);
  CHECK_THROWS_AS(static_cast<void>(g.all_to_all(f({6}), f({3}))), ShapeError);
  CHECK_THROWS_AS(static_cast<void>(g.all_to_all(f({4}), f({4}))), ShapeError);
  const Tensor whole = f({6});
  CHECK_THROWS_WITH_AS(static_cast<void>(g.all_gather(whole, as_strided(whole, {2}, {1}, 1))),
                       doctest::Contains("overlap"), ShapeError);
  CHECK_THROWS_AS(static_cast<void>(g.all_to_all(whole, whole)), ShapeError);
  CHECK_THROWS_AS(static_cast<void>(g.send(f({1}), 0)), ConfigError);
  CHECK_THROWS_AS(static_cast<void>(g.send(f({1}), 3)), ConfigError);
  CHECK_THROWS_AS(static_cast<void>(g.recv(f({1}), 1, -1)), ConfigError);
  CHECK_THROWS_AS(static_cast<void>(g.broadcast_text("", 3)), ConfigError);
  CHECK_THROWS_AS(static_cast<void>(g.split(-2, 0)), ConfigError);
  CHECK(g.traffic().collectives == 0);
}

TEST_CASE("collectives on meta are checked and move nothing") {
  const auto groups = dist::make_local_groups(2);
  CHECK_NOTHROW(groups[0]->all_reduce(empty({4}, Device::meta())).wait());
  CHECK_THROWS_AS(static_cast<void>(groups[0]->all_gather(empty({5}, Device::meta()), empty({2}, Device::meta()))),
                  ShapeError);
  CHECK(groups[0]->traffic().collectives == 0);
}

TEST_CASE("a collective counts as a write, a send does not") {
  dist::run_local(2, [](const std::shared_ptr<dist::ProcessGroup>& g) {
    const Tensor t = tensor({1.f}, Device::cpu());
    const std::uint32_t before = t.version();
    g->all_reduce(t).wait();
    if (t.version() == before) fail<InternalError>("an all_reduce is no write");
    const std::uint32_t after = t.version();
    if (g->rank() == 0) g->send(t, 1).wait();
    if (g->rank() == 0 && t.version() != after) fail<InternalError>("a send is a write");
    if (g->rank() == 1) g->recv(t, 0).wait();
  });
}

TEST_CASE("traffic counts what a rank sends and issues") {
  dist::run_local(4, [](const std::shared_ptr<dist::ProcessGroup>& g) {
    g->all_reduce(empty({1000}, Device::cpu())).wait();
    if (g->traffic().bytes != 6000 || g->traffic().collectives != 1) fail<InternalError>("bytes of an all_reduce");
    g->barrier();
    g->all_gather(empty({40}, Device::cpu()), empty({10}, Device::cpu())).wait();
    if (g->traffic().bytes != 6120 || g->traffic().collectives != 3) fail<InternalError>("bytes of an all_gather");
  });
}

TEST_CASE("the group of one rank leaves tensors as they are and copies slices") {
  const auto one = dist::single_process_group();
  CHECK(one->backend() == "single");
  CHECK(one->size() == 1);
  CHECK_NOTHROW(test::check_collectives(*one, Device::cpu()));
  CHECK_NOTHROW(test::check_texts(*one));
  CHECK_THROWS_AS(static_cast<void>(one->send(f({1}), 0)), ConfigError);
  CHECK(one->split(3, 0)->size() == 1);
  CHECK(one->split(-1, 0) == nullptr);
}

TEST_CASE("the group of one rank copies on a device, in the current stream") {
  DEVICE_OR_SKIP();
  const auto one = dist::single_process_group();
  const Tensor in = tensor({1.f, 2.f}, device), out = empty({2}, device);
  one->all_gather(out, in).wait();
  CHECK(out.to_vector<float>() == std::vector<float>{1, 2});
}

}  // namespace
}  // namespace levin
