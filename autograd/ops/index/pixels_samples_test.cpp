// Samples of pixels and channels that change places, for the conformance suite.
#include <doctest/doctest.h>

#include "autograd/ops/index/moves_test.h"

namespace levin::testing {
namespace {
const Device cpu = Device::cpu();
}

LEVIN_OP_CASE(pixel_shuffle) {
  OpCase c{.ops = {}, .dtypes = kAllDTypes};
  const auto add = [&](const Shape& x, std::int64_t r, const Shape& y) {
    add_move(
        c, x, [=](const Tensor& t) { return pixel_shuffle(t, r); }, y,
        [=](const At& at) {
          At from = at;
          const std::size_t h = at.size() - 2, w = at.size() - 1;
          from[h - 1] = (at[h - 1] * r + at[h] % r) * r + at[w] % r;
          from[h] = at[h] / r;
          from[w] = at[w] / r;
          return std::optional(from);
        });
  };
  add({4, 1, 1}, 2, {1, 2, 2});
  add({1, 1, 1}, 1, {1, 1, 1});
  add({2, 3, 2, 5}, 1, {2, 3, 2, 5});
  add({2, 18, 2, 3}, 3, {2, 2, 6, 9});
  add({2, 1, 4, 3, 2}, 2, {2, 1, 1, 6, 4});
  add({0, 4, 3, 2}, 2, {0, 1, 6, 4});
  add({2, 4, 0, 2}, 2, {2, 1, 0, 4});
  c.errors.push_back({"rank",
                      [] {
                        (void)pixel_shuffle(zeros({4, 4}, cpu), 2);
                      },
                      throws<ShapeError>, "pixel_shuffle: x has shape [4, 4]"});
  c.errors.push_back({"channels",
                      [] {
                        (void)pixel_shuffle(zeros({1, 6, 2, 2}, cpu), 2);
                      },
                      throws<ShapeError>, "has 6 channels, expected a multiple of 4"});
  for (const std::int64_t r : {std::int64_t{0}, std::int64_t{-2}, std::int64_t{1} << 32}) {
    c.errors.push_back({"factor",
                        [r] {
                          (void)pixel_shuffle(zeros({1, 4, 2, 2}, cpu), r);
                        },
                        throws<ShapeError>, "pixel_shuffle: upscale_factor is "});
  }
  return c;
}

LEVIN_OP_CASE(pixel_unshuffle) {
  OpCase c{.ops = {}, .dtypes = kAllDTypes};
  const auto add = [&](const Shape& x, std::int64_t r, const Shape& y) {
    add_move(
        c, x, [=](const Tensor& t) { return pixel_unshuffle(t, r); }, y,
        [=](const At& at) {
          At from = at;
          const std::size_t h = at.size() - 2, w = at.size() - 1;
          from[h - 1] = at[h - 1] / (r * r);
          from[h] = at[h] * r + at[h - 1] / r % r;
          from[w] = at[w] * r + at[h - 1] % r;
          return std::optional(from);
        });
  };
  add({1, 2, 2}, 2, {4, 1, 1});
  add({1, 1, 1}, 1, {1, 1, 1});
  add({2, 2, 6, 9}, 3, {2, 18, 2, 3});
  add({2, 1, 1, 6, 4}, 2, {2, 1, 4, 3, 2});
  add({0, 1, 6, 4}, 2, {0, 4, 3, 2});
  c.errors.push_back({"size",
                      [] {
                        (void)pixel_unshuffle(zeros({1, 1, 4, 3}, cpu), 2);
                      },
                      throws<ShapeError>, "has images of 4 by 3, expected multiples of 2"});
  c.errors.push_back({"factor",
                      [] {
                        (void)pixel_unshuffle(zeros({1, 1, 4, 4}, cpu), 0);
                      },
                      throws<ShapeError>, "pixel_unshuffle: downscale_factor is 0"});
  return c;
}

LEVIN_OP_CASE(channel_shuffle) {
  OpCase c{.ops = {}, .dtypes = kAllDTypes};
  const auto add = [&](const Shape& x, std::int64_t groups) {
    add_move(
        c, x, [=](const Tensor& t) { return channel_shuffle(t, groups); }, x,
        [=](const At& at) {
          At from = at;
          from[1] = at[1] % groups * (x[1] / groups) + at[1] / groups;
          return std::optional(from);
        });
  };
  add({1, 1, 1}, 1);
  add({2, 6, 3}, 2);
  add({2, 6, 2, 3}, 3);
  add({1, 4, 1, 1}, 2);
  add({3, 4, 2, 1, 2}, 4);
  add({0, 4, 2, 2}, 2);
  c.errors.push_back({"rank",
                      [] {
                        (void)channel_shuffle(zeros({4, 4}, cpu), 2);
                      },
                      throws<ShapeError>, "channel_shuffle: x has shape [4, 4]"});
  c.errors.push_back({"groups",
                      [] {
                        (void)channel_shuffle(zeros({1, 4, 2}, cpu), 3);
                      },
                      throws<ShapeError>, "channel_shuffle: groups is 3, expected a divisor of the 4 channels"});
  return c;
}

TEST_CASE("pixels and channels in other places are copies, also where none moves") {
  const Tensor x = ones({1, 4, 1, 1}, cpu);
  for (Tensor y : {pixel_shuffle(x, 1), pixel_shuffle(x, 2), pixel_unshuffle(x, 1), channel_shuffle(x, 1)}) {
    CHECK(y.is_contiguous());
    fill_(y, 2);
    CHECK(equal(x, ones({1, 4, 1, 1}, cpu)));
  }
}

}  // namespace levin::testing
