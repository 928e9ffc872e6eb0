// The variance for running statistics, from 1 / sqrt(var + eps) alone.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/channel_norm_device.cuh"
#include "tests/device.h"
#include "tests/simt/launch.h"

using namespace levin;
using namespace levin::kernels;

namespace {

template <class A>
std::vector<A> unbiased_of(const std::vector<A>& rstd, double eps, std::int64_t count) {
  std::vector<A> out(rstd.size(), A(99));
  gpu::unbiased_variance(Gpu{Stream::current(*test::launching_device())}, rstd.data(), eps, count, out.data(),
                         std::int64_t(rstd.size()));
  return out;
}

}  // namespace

TEST_CASE("the unbiased variance of a batch comes from 1 / sqrt(var + eps)") {
  const double eps = 1e-5;
  const std::int64_t count = 10;
  std::vector<float> rstd;
  std::vector<double> var;
  for (int i = 0; i < 300; ++i) {  // more than a block
    var.push_back(std::exp2(double(i % 40) - 20));
    rstd.push_back(float(1 / std::sqrt(var.back() + double(float(eps)))));
  }
  const std::vector<float> got = unbiased_of(rstd, eps, count);
  for (std::size_t i = 0; i < var.size(); ++i) {
    CAPTURE(var[i]);
    // rstd is rounded once: twice that, of var + eps; and the result once.
    const double want = var[i] * 10 / 9, most = (2 * (var[i] + eps) * 10 / 9 + want) * 0x1p-24;
    CHECK(std::abs(double(got[i]) - want) <= 1.01 * most);
  }
}

TEST_CASE("the unbiased variance of channels that are constant is 0 and never below, of NaN it is NaN") {
  std::vector<float> rstd;  // of var 0, rounded, and a last place to each side
  const float eps = 1e-5f, root = float(1 / std::sqrt(double(eps)));
  const float most = std::numeric_limits<float>::infinity();
  for (const float r : {root, std::nextafter(root, most), std::nextafter(root, 0.0f)}) rstd.push_back(r);
  for (const float v : unbiased_of(rstd, double(eps), 4)) {
    CHECK(v >= 0);
    CHECK(v <= eps * 0x1p-20f);
  }
  CHECK(unbiased_of<float>({std::nextafter(root, most)}, double(eps), 4)[0] == 0);
  CHECK(unbiased_of<float>({most}, 0, 4)[0] == 0);
  CHECK(std::isnan(unbiased_of<float>({std::nanf("")}, double(eps), 4)[0]));
}
