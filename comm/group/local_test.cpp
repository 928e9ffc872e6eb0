#include "comm/group/local.h"

#include <doctest/doctest.h>
#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "comm/group/conformance_test.h"
#include "levin/autograd.h"
#include "levin/error.h"
#include "tests/device.h"

namespace levin {
namespace {

using dist::ProcessGroup, dist::ReduceOp, dist::ReduceOrder;
using Group = std::shared_ptr<ProcessGroup>;

TEST_CASE("local ranks agree on every collective, dtype and size") {
  for (const int ranks : {1, 2, 3, 4}) {
    CAPTURE(ranks);
    dist::run_local(ranks, [](const Group& g) {
      test::check_collectives(*g, Device::cpu());
      test::check_texts(*g);
      test::check_overlap(*g, Device::cpu());
      if (g->size() > 1) {
        test::check_split(*g, Device::cpu());
        test::check_messages(*g, Device::cpu());
      }
    });
  }
}

TEST_CASE("local ranks take tensors of any device of the host, each of its own") {
  dist::run_local(4, [](const Group& g) {
    test::check_split(*g, Device::cpu(g->rank()));
    test::check_overlap(*g, Device::cpu(g->rank()));
  });
}

TEST_CASE("local ranks take tensors of simt") {
  if (device_count(DeviceType::simt) == 0) return test::skip("no simt in this build");
  dist::run_local(2, [](const Group& g) {
    test::check_overlap(*g, Device::simt());
    test::check_messages(*g, Device::simt());
  });
}

TEST_CASE("local ranks that issue different collectives all get both") {
  using test::Mismatch;
  for (const Mismatch kind :
       {Mismatch::count, Mismatch::dtype, Mismatch::reduction, Mismatch::operation, Mismatch::root, Mismatch::line}) {
    CAPTURE(static_cast<int>(kind));
    dist::run_local(3, [kind](const Group& g) { test::check_mismatch(*g, kind); });
  }
}

TEST_CASE("abort ends the waits of local ranks, those of parts too") {
  dist::run_local(3, [](const Group& g) { test::check_abort(*g); });
  dist::run_local(3, [](const Group& g) {
    const Group part = g->split(g->rank() == 2 ? 1 : 0, 0);
    if (g->rank() == 0) return g->abort("from above");
    if (g->rank() == 1) CHECK_THROWS_WITH_AS(part->barrier(), doctest::Contains("from above"), CommError);
  });
}

TEST_CASE("run_local rethrows the first error and ends the other ranks") {
  std::atomic<int> told{0};
  const auto body = [&](const Group& g) {
    if (g->rank() == 1) throw std::runtime_error("broken data");
    try {
      g->barrier();
    } catch (const CommError& e) {
      told += std::string(e.what()).find("rank 1 failed: broken data") != std::string::npos ? 1 : 0;
      throw;
    }
  };
  CHECK_THROWS_WITH_AS(dist::run_local(3, body), "broken data", std::runtime_error);
  CHECK(told == 2);
}

TEST_CASE("run_local rethrows the error that ended the others, also where theirs come first") {
  // Rank 1 fails, tells the others, and throws when rank 0 has ended.
  for (const bool tells_part : {false, true}) {
    std::weak_ptr<dist::ProcessGroup> of_zero;
    const auto body = [&](const Group& g) {
      const Group part = g->split(0, g->rank());
      if (g->rank() == 0) of_zero = g;
      g->barrier();
      if (g->rank() == 0) return (tells_part ? part : g)->barrier();
      (tells_part ? part : g)->abort("broken data");
      while (!of_zero.expired()) std::this_thread::yield();
      fail<DataError>("broken data");
    };
    CHECK_THROWS_WITH_AS(dist::run_local(2, body), doctest::Contains("broken data"), DataError);
  }
}

TEST_CASE("a local rank that ends without the others' collective ends their wait") {
  const auto body = [](const Group& g) {
    if (g->rank() == 0) return;
    g->all_reduce(tensor({1.f}, Device::cpu())).wait();
  };
  CHECK_THROWS_WITH_AS(dist::run_local(2, body), doctest::Contains("rank 0 has ended"), CommError);
  const auto waits = [](const Group& g) {
    if (g->rank() == 1) g->recv(empty({1}, Device::cpu()), 0).wait();
  };
  CHECK_THROWS_WITH_AS(dist::run_local(2, waits), doctest::Contains("sent no message"), CommError);
}

TEST_CASE("a local rank that does not come is missed after the timeout") {
  const auto groups = dist::make_local_groups(2, {.timeout = 0.02});
  CHECK_THROWS_WITH_AS(groups[0]->barrier(), doctest::Contains("1 of 2 ranks did not come within 0.02 s"), CommError);
  CHECK_THROWS_AS(groups[1]->barrier(), CommError);
  const auto more = dist::make_local_groups(2, {.timeout = 0.02});
  CHECK_THROWS_WITH_AS(more[0]->recv(empty({1}, Device::cpu()), 1).wait(), doctest::Contains("no message for 0.02 s"),
                       CommError);
}

TEST_CASE("works run beside the caller") {
  const auto groups = dist::make_local_groups(2);
  const Tensor a = tensor({1.f}, Device::cpu()), b = tensor({2.f}, Device::cpu());
  // One thread issues both: neither work could end if issuing one ran it.
  const dist::Work x = groups[0]->all_reduce(a), y = groups[1]->all_reduce(b);
  CHECK_NOTHROW(x.wait());
  CHECK_NOTHROW(y.wait());
  CHECK(a.item() == 3);
  CHECK(b.item() == 3);
  CHECK((x.done() && y.done()));
}

TEST_CASE("the threads of local ranks have the modes of the caller") {
  const NoGrad off;
  dist::run_local(2, [](const Group&) {
    Tensor w = tensor({1.f}, Device::cpu());
    w.requires_grad_();
    if ((w.clone()).requires_grad()) throw std::runtime_error("grad mode is on");
  });
}

TEST_CASE("local groups refuse wrong sizes and timeouts") {
  CHECK_THROWS_AS(dist::make_local_groups(0), ConfigError);
  CHECK_THROWS_AS(dist::make_local_groups(2, {.timeout = 0}), ConfigError);
}

}  // namespace
}  // namespace levin
