// kernels/device: the primitives of warps and blocks give right results, the same in every schedule.
#include "kernels/device/block.cuh"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/device/vec.cuh"
#include "levin/dtype.h"
#include "tests/simt/launch.h"

using namespace levin;
using namespace levin::kernels::gpu;
using levin::test::has;
using levin::test::launch;
using levin::test::message_of;
using levin::test::on_every_schedule;

namespace {

// Numbers between -1 and 1 with all mantissa bits in use.
std::vector<float> numbers(int n) {
  std::vector<float> x(std::size_t(n), 0);
  std::uint32_t state = 12345;
  for (float& v : x) {
    state = state * 1664525u + 1013904223u;
    v = float(std::int32_t(state)) * 0x1p-31f;
  }
  return x;
}

// Runs `f(y)`, which fills y, under every schedule; the bits must agree. Returns y.
template <class T, class F>
std::vector<T> same_in_every_schedule(std::size_t n, F f) {
  std::vector<T> first;
  on_every_schedule([&](simt::Schedule schedule, std::uint64_t seed) {
    std::vector<T> y(n);
    f(y.data());
    if (first.empty()) first = y;
    INFO(std::string(name(schedule)), ", seed ", seed);
    CHECK(std::memcmp(first.data(), y.data(), n * sizeof(T)) == 0);
  });
  return first;
}

template <class T, int kThreads>
__global__ void sum_rows(const T* x, T* y, int64_t cols) {
  LEVIN_SHARED(T, scratch, kThreads / 32);
  T sum = 0;
  for (int64_t c = threadIdx.x; c < cols; c += kThreads) sum += x[blockIdx.x * cols + c];
  const T total = block_sum<kThreads>(sum, scratch);
  y[blockIdx.x * kThreads + threadIdx.x] = block_max<kThreads>(total, scratch);  // equal in all: scratch is used again
}

template <int kThreads>
__global__ void softmax_rows(const float* x, float* y, int64_t cols) {
  LEVIN_SHARED(float, scratch, kThreads / 32);
  x += blockIdx.x * cols;
  y += blockIdx.x * cols;
  float most = -INFINITY;
  for (int64_t c = threadIdx.x; c < cols; c += kThreads) most = max(most, x[c]);
  most = block_max<kThreads>(most, scratch);
  float sum = 0;
  for (int64_t c = threadIdx.x; c < cols; c += kThreads) sum += expf(x[c] - most);
  sum = block_sum<kThreads>(sum, scratch);
  for (int64_t c = threadIdx.x; c < cols; c += kThreads) y[c] = expf(x[c] - most) / sum;
}

template <class T, int kThreads>
__global__ void scan(const T* x, T* y) {
  LEVIN_SHARED(T, scratch, kThreads / 32);
  y[threadIdx.x] = block_scan<kThreads>(x[threadIdx.x], scratch);
}

// 32 x 32 tiles, a row of padding; blocks of (32, 8).
static __global__ void transpose(const float* x, float* y, int rows, int cols) {
  LEVIN_SHARED(float, tile, 32 * 33);
  const int x0 = int(blockIdx.x) * 32, y0 = int(blockIdx.y) * 32, i = int(threadIdx.x), j = int(threadIdx.y);
  for (int k = j; k < 32; k += 8)
    if (y0 + k < rows && x0 + i < cols) tile[k * 33 + i] = x[(y0 + k) * cols + x0 + i];
  __syncthreads();
  for (int k = j; k < 32; k += 8)
    if (x0 + k < cols && y0 + i < rows) y[(x0 + k) * rows + y0 + i] = tile[i * 33 + k];
}

template <int kThreads>
__global__ void first_largest(const float* x, long long* y) {
  LEVIN_SHARED(Indexed<float>, scratch, kThreads / 32);
  const Indexed<float> mine{x[threadIdx.x], threadIdx.x};
  const Indexed<float> largest = block_argmax<kThreads>(mine, scratch);
  const Indexed<float> smallest = block_argmin<kThreads>(mine, scratch);
  y[threadIdx.x * 2] = largest.index;
  y[threadIdx.x * 2 + 1] = smallest.index;
}

}  // namespace

TEST_CASE_TEMPLATE("simt: block_sum is exact for exact sums, in all threads", T, float, double, int, unsigned, long,
                   long long) {
  const int rows = 3, cols = 1000;
  std::vector<T> x(rows * cols);
  for (int i = 0; i < rows * cols; ++i) x[std::size_t(i)] = T((i * 7919) % 1000);
  const auto check = [&]<int kThreads>() {
    const auto y = same_in_every_schedule<T>(std::size_t(rows * kThreads), [&](T* out) {
      launch(sum_rows<T, kThreads>, rows, kThreads, 0, static_cast<const T*>(x.data()), out, int64_t(cols));
    });
    for (int r = 0; r < rows; ++r) {
      T sum = 0;
      for (int c = 0; c < cols; ++c) sum += x[std::size_t(r * cols + c)];
      CHECK(std::count(y.begin() + r * kThreads, y.begin() + (r + 1) * kThreads, sum) == kThreads);
    }
  };
  check.template operator()<32>();
  check.template operator()<256>();
  check.template operator()<1024>();
}

TEST_CASE("simt: block_sum of any numbers has the same bits in every schedule and is as near as its order allows") {
  const auto x = numbers(5 * 777);
  const auto y = same_in_every_schedule<float>(
      5 * 256, [&](float* out) { launch(sum_rows<float, 256>, 5, 256, 0, x.data(), out, int64_t(777)); });
  for (int r = 0; r < 5; ++r) {
    double sum = 0, size = 0;
    for (int c = 0; c < 777; ++c) {
      sum += double(x[std::size_t(r * 777 + c)]);
      size += std::abs(double(x[std::size_t(r * 777 + c)]));
    }
    // 4 numbers a thread, 5 levels in the warp, 8 warps: at most 3 + 5 + 7 roundings on the way of any number.
    CHECK(std::abs(double(y[std::size_t(r * 256)]) - sum) <= 15 * 0x1p-24 * size);
  }
}

TEST_CASE("simt: a softmax row agrees with double and between schedules") {
  const auto x = numbers(4 * 301);
  const auto y = same_in_every_schedule<float>(
      x.size(), [&](float* out) { launch(softmax_rows<128>, 4, 128, 0, x.data(), out, int64_t(301)); });
  for (std::size_t r = 0; r < 4; ++r) {
    double sum = 0;
    for (std::size_t c = 0; c < 301; ++c) sum += std::exp(double(x[r * 301 + c]));
    // exp: 1 ulp and the rounding of its argument (up to 2); the sum: 3 + 5 + 3 roundings; the division.
    for (std::size_t c = 0; c < 301; ++c) {
      const double expected = std::exp(double(x[r * 301 + c])) / sum;
      CHECK(std::abs(double(y[r * 301 + c]) - expected) <= (2 + 2 + 11 + 2 + 1) * 0x1p-24 * expected);
    }
  }
}

TEST_CASE_TEMPLATE("simt: block_scan gives prefix sums", T, int, long, double) {
  std::vector<T> x(256);
  for (int i = 0; i < 256; ++i) x[std::size_t(i)] = T((i * 31) % 17 - 8);
  const auto check = [&]<int kThreads>() {
    const auto y = same_in_every_schedule<T>(
        kThreads, [&](T* out) { launch(scan<T, kThreads>, 1, kThreads, 0, static_cast<const T*>(x.data()), out); });
    T sum = 0;
    for (std::size_t i = 0; i < kThreads; ++i) CHECK(y[i] == (sum += x[i]));
  };
  check.template operator()<32>();
  check.template operator()<256>();
}

TEST_CASE("simt: a tiled transpose") {
  const int rows = 45, cols = 70;
  const auto x = numbers(rows * cols);
  const auto y = same_in_every_schedule<float>(
      x.size(), [&](float* out) { launch(transpose, dim3(3, 2), dim3(32, 8), 0, x.data(), out, rows, cols); });
  int wrong = 0;
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < cols; ++c) wrong += y[std::size_t(c * rows + r)] != x[std::size_t(r * cols + c)];
  CHECK(wrong == 0);
}

TEST_CASE("simt: argmax takes the first of equals and NaN above all") {
  std::vector<float> x(128, 0.0f);
  const auto result = [&] {
    const auto y = same_in_every_schedule<long long>(
        256, [&](long long* out) { launch(first_largest<128>, 1, 128, 0, static_cast<const float*>(x.data()), out); });
    for (std::size_t i = 0; i < 256; ++i) CHECK(y[i] == y[i % 2]);
    return std::pair(y[0], y[1]);
  };
  CHECK(result() == std::pair(0LL, 0LL));
  x[37] = x[99] = 5;
  x[64] = x[65] = -2;
  CHECK(result() == std::pair(37LL, 64LL));
  x[70] = x[12] = std::numeric_limits<float>::quiet_NaN();
  CHECK(result() == std::pair(12LL, 12LL));
}

TEST_CASE("simt: maxima and minima pass NaN on and know infinities") {
  struct Out {
    float most, least;
  };
  const auto both = [](float first) {
    Out out{};
    const auto body = [&] {
      const float x = threadIdx.x == 9 ? first : float(threadIdx.x);
      const float most = warp_max(x), least = warp_min(x);
      if (threadIdx.x == 31) out = {most, least};
    };
    simt::run_grid(1, 32, 0, body, "both");
    return out;
  };
  CHECK(both(4).most == 31);
  CHECK(both(-4).least == -4);
  CHECK(both(INFINITY).most == INFINITY);
  CHECK(both(-INFINITY).least == -INFINITY);
  CHECK(std::isnan(both(NAN).most));
  CHECK(std::isnan(both(NAN).least));
}

TEST_CASE_TEMPLATE("simt: vectors are loaded and stored whole, at aligned addresses alone", T, float, double, f16, bf16,
                   std::uint8_t, int64_t) {
  static_assert(sizeof(Vec<T>) == 16 && alignof(Vec<T>) == 16 && kVec<T> * sizeof(T) == 16);
  alignas(16) unsigned char from[48], to[48] = {};
  for (int i = 0; i < 48; ++i) from[i] = static_cast<unsigned char>(i);
  const T* const x = reinterpret_cast<const T*>(from);
  T* const y = reinterpret_cast<T*>(to);
  CHECK(aligned16(x));
  CHECK(!aligned16(from + 8));
  const auto copy = [&] {
    store(y, load<kVec<T>>(x));
    store_streaming(y + kVec<T>, load_streaming<kVec<T>>(x + kVec<T>));
    auto half = load<kVec<T> / 2>(x + kVec<T> * 2);
    half[0] = x[0];
    store(y + kVec<T> * 2, half);
  };
  simt::run_grid(1, 1, 0, copy, "copy");
  CHECK(std::memcmp(from, to, 32) == 0);
  CHECK(std::memcmp(from, to + 32, sizeof(T)) == 0);
  CHECK(to[40] == 0);
  const auto unaligned = [&] { store(y, load<kVec<T>>(reinterpret_cast<const T*>(from + 8))); };
  CHECK(has(message_of<InternalError>([&] { simt::run_grid(1, 1, 0, unaligned, "unaligned"); }),
            "misaligned address: an access of 16 bytes at 8 bytes above a multiple of that; at tests/simt/"));
}
