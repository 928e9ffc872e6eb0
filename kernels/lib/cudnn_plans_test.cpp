// Which calls of cuDNN may make a plan, and what a user reads of one that may not.
#include "kernels/lib/cudnn_plans.h"

#include <doctest/doctest.h>

#include "kernels/attention/attention_library.h"
#include "kernels/conv/conv_library.h"
#include "kernels/norm/norm_library.h"

using namespace levin;
using namespace levin::kernels;

namespace {

struct FakePlan {
  bool engine;
  [[nodiscard]] bool made() const { return engine; }
};
// Plans of a library that has engines for keys that begin with 1.
struct Library {
  PlansByShape<FakePlan> plans;
  int asked = 0;
  const FakePlan* call(const std::vector<std::int64_t>& key, bool recording) {
    const auto make = [&] {
      ++asked;
      return FakePlan{key[0] == 1};
    };
    return plans.plan_for(key, recording, make, [] { return LibraryCallText{"conv2d", "x [1, 2]"}; });
  }
};

}  // namespace

TEST_CASE("a recording uses the plan that an eager call of the shape made") {
  Library library;
  const FakePlan* const plan = library.call({1, 8}, false);
  REQUIRE(plan != nullptr);
  CHECK(library.call({1, 8}, false) == plan);
  (void)library.call({1, 9}, false);
  CHECK(library.call({1, 8}, true) == plan);
  CHECK(library.asked == 2);
}

TEST_CASE("a shape whose plan a recording would have to make is a CaptureError that says what to do") {
  Library library;
  (void)library.call({1, 8}, false);
  CHECK_THROWS_WITH_AS(
      (void)library.call({1, 9}, true),
      "conv2d: cuDNN has no plan yet for x [1, 2], and none can be made while a graph is recorded; call "
      "it once like this before the recording",
      CaptureError);
  CHECK(library.asked == 1);  // nothing was made for it
  CHECK(library.call({1, 9}, false) != nullptr);
  CHECK(library.call({1, 9}, true) != nullptr);
}

TEST_CASE("where cuDNN was asked and has no engine our kernel is recorded as it is called") {
  Library library;
  CHECK(library.call({2, 8}, false) == nullptr);
  CHECK(library.call({2, 8}, true) == nullptr);
  CHECK(library.asked == 1);
  CHECK_THROWS_AS((void)library.call({2, 9}, true), CaptureError);  // not asked yet: it may have one
}

TEST_CASE("a call of cuDNN names its op and sizes to a user") {
  const auto is = [](const LibraryCallText& got, std::string_view op, std::string_view with) {
    CHECK(got.op == op);
    CHECK(got.with == with);
  };
  LibraryConv conv{.pass = ConvPass::forward,
                   .dtype = DType::bf16,
                   .x = {nullptr, {8, 64, 56, 56}, {200704, 3136, 56, 1}},
                   .w = {nullptr, {32, 64, 3, 3}, {576, 9, 3, 1}},
                   .y = {nullptr, {8, 32, 54, 54}, {93312, 2916, 54, 1}},
                   .bias = nullptr,
                   .stride = {1, 1},
                   .padding = {0, 0},
                   .dilation = {1, 1}};
  is(said(conv), "conv2d", "x [8, 64, 56, 56], w [32, 64, 3, 3] and y [8, 32, 54, 54] in bf16, channels first");
  conv.pass = ConvPass::input_gradient;
  conv.x.strides = {200704, 1, 3584, 64};
  is(said(conv), "conv2d_input_gradient",
     "x [8, 64, 56, 56], w [32, 64, 3, 3] and y [8, 32, 54, 54] in bf16, channels last");
  conv.pass = ConvPass::weight_gradient;
  CHECK(said(conv).op == "conv2d_weight_gradient");

  LibraryAttention attention{.causal = true};
  attention.q.sizes = {2, 12, 1024, 64}, attention.k.sizes = {2, 12, 512, 64}, attention.v.sizes = {2, 12, 512, 32};
  is(said(attention), "scaled_dot_product_attention",
     "q [2, 12, 1024, 64], k [2, 12, 512, 64] and v [2, 12, 512, 32] in f16, causal");
  attention.backward = true;
  CHECK(said(attention).op == "scaled_dot_product_attention_backward");

  LibraryBatchNorm norm{.dtype = DType::f32, .sizes = {8, 64, 7, 7}, .strides = {3136, 1, 448, 64}};
  is(said(norm), "batch_norm", "x [8, 64, 7, 7] in f32, channels last");
  norm.backward = true;
  CHECK(said(norm).op == "batch_norm_backward");
}
