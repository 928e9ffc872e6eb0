#include "levin/live_graph.h"

#include <doctest/doctest.h>

#include "levin/autograd.h"
#include "levin/ops.h"

using namespace levin;

TEST_CASE("recorded ops are alive as long as somebody holds what they made") {
  const std::int64_t before = live_graph_nodes();
  Tensor kept;
  {
    Tensor x = ones({3}, Device::cpu());
    x.requires_grad_();
    CHECK(live_graph_nodes() == before + 1);  // the leaf
    Tensor y = sum(square(x));
    CHECK(live_graph_nodes() == before + 3);
    backward(y);
    CHECK(live_graph_nodes() == before + 3);  // the graph stays, what it saved is freed
    kept = y;
  }
  CHECK(live_graph_nodes() == before + 3);
  kept = kept.detach();
  CHECK(live_graph_nodes() == before);
  {
    const NoGrad off;
    kept = square(kept);
  }
  CHECK(live_graph_nodes() == before);
}

TEST_CASE("a watch names the newest op that is held, of those it saw") {
  Tensor x = ones({3}, Device::cpu());
  x.requires_grad_();
  const Tensor old = exp(x);
  const GraphWatch watch;
  CHECK(watch.newest_alive() == nullptr);
  Tensor held = square(x);
  { const Tensor gone = sum(held); }
  REQUIRE(watch.newest_alive() != nullptr);
  CHECK(std::string(watch.newest_alive()) == "square");
  {
    const GraphWatch second;
    CHECK(second.newest_alive() == nullptr);
  }
  held = Tensor();
  CHECK(watch.newest_alive() == nullptr);
}
