// Tensor-core products, matrix loads and asynchronous copies.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/device/mma.cuh"
#include "tests/simt/launch.h"

using namespace levin;
using namespace levin::kernels::gpu;
using levin::test::has;
using levin::test::launch;
using levin::test::message_of;
using levin::test::on_every_schedule;

namespace {

// Element (row, column) of an 8 x 8 matrix as a unique number.
std::uint16_t cell(int matrix, int row, int column) { return std::uint16_t(matrix * 64 + row * 8 + column); }

// c [16, 8] = a [16, 16] * b [16, 8] + c, all by rows: copied by cp.async, loaded by ldmatrix, multiplied by mma.
template <class T>
__global__ void product(const T* a, const T* b, const float* c, float* d) {
  LEVIN_SHARED(T, tile_a, 16 * 16);
  LEVIN_SHARED(T, tile_b, 16 * 8 * 2);  // ldmatrix_x4 takes two [16, 8]
  const int lane = int(threadIdx.x), g = lane / 4, t = lane % 4;
  cp_async_16(tile_a + lane * 8, a + lane * 8);
  cp_async_commit();
  cp_async_16(tile_b + lane * 8, lane < 16 ? b + lane * 8 : b, lane < 16);  // zeros in the second
  cp_async_commit();
  cp_async_wait<1>();
  __syncwarp();
  uint32_t ra[4], rb[4], bs[2];
  ldmatrix_x4(ra, tile_a + lane % 16 * 16 + lane / 16 * 8);
  cp_async_wait<0>();
  __syncwarp();
  ldmatrix_x4_trans(rb, tile_b + lane * 8);
  bs[0] = rb[0];
  bs[1] = rb[1];
  float sum[4] = {c[g * 8 + 2 * t], c[g * 8 + 2 * t + 1], c[(g + 8) * 8 + 2 * t], c[(g + 8) * 8 + 2 * t + 1]};
  mma_m16n8k16<T>(sum, ra, bs, sum);
  d[g * 8 + 2 * t] = sum[0];
  d[g * 8 + 2 * t + 1] = sum[1];
  d[(g + 8) * 8 + 2 * t] = sum[2];
  d[(g + 8) * 8 + 2 * t + 1] = sum[3];
  if (rb[2] != 0 || rb[3] != 0) d[0] = NAN;
}

}  // namespace

TEST_CASE_TEMPLATE("simt: mma after cp.async and ldmatrix is the matrix product", T, f16, bf16) {
  std::vector<T> a(16 * 16), b(16 * 8);
  std::vector<float> c(16 * 8);
  std::uint32_t state = 1;
  const auto next = [&] {
    state = state * 1664525u + 1013904223u;
    return float(std::int32_t(state)) * 0x1p-30f;
  };
  for (T& x : a) x = T(next());
  for (T& x : b) x = T(next());
  for (float& x : c) x = next();
  alignas(16) T in_a[16 * 16], in_b[16 * 8];
  std::copy(a.begin(), a.end(), in_a);
  std::copy(b.begin(), b.end(), in_b);
  on_every_schedule([&](simt::Schedule, std::uint64_t) {
    std::vector<float> d(16 * 8);
    launch(product<T>, 1, 32, 0, static_cast<const T*>(in_a), static_cast<const T*>(in_b),
           static_cast<const float*>(c.data()), d.data());
    for (std::size_t i = 0; i < 16; ++i) {
      for (std::size_t j = 0; j < 8; ++j) {
        double sum = double(c[i * 8 + j]), size = std::abs(sum);
        for (std::size_t k = 0; k < 16; ++k) {
          sum += double(a[i * 16 + k]) * double(b[k * 8 + j]);
          size += std::abs(double(a[i * 16 + k]) * double(b[k * 8 + j]));
        }
        CHECK(std::abs(double(d[i * 8 + j]) - sum) <= 0x1p-24 * std::abs(sum) + 17 * 0x1p-53 * size);
      }
    }
  });
}

TEST_CASE("simt: a product of integers is exact, with d beside c") {
  alignas(16) f16 a[16 * 16], b[16 * 8];
  float c[16 * 8], d[16 * 8];
  for (int i = 0; i < 256; ++i) a[i] = f16(i % 23 - 11);
  for (int i = 0; i < 128; ++i) b[i] = f16(i % 19 - 9);
  for (int i = 0; i < 128; ++i) c[i] = float(i * 1000);
  launch(product<f16>, 1, 32, 0, static_cast<const f16*>(a), static_cast<const f16*>(b), static_cast<const float*>(c),
         &d[0]);
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 8; ++j) {
      int sum = (i * 8 + j) * 1000;
      for (int k = 0; k < 16; ++k) sum += ((i * 16 + k) % 23 - 11) * ((k * 8 + j) % 19 - 9);
      CHECK(d[i * 8 + j] == float(sum));
    }
  }
}

TEST_CASE("simt: ldmatrix hands out rows, and columns when transposed") {
  on_every_schedule([&](simt::Schedule, std::uint64_t) {
    std::uint32_t plain[32][4], transposed[32][4];
    const auto body = [&] {
      LEVIN_SHARED(std::uint16_t, tile, 256);
      const int lane = int(threadIdx.x);
      for (int column = 0; column < 8; ++column) tile[lane * 8 + column] = cell(lane / 8, lane % 8, column);
      __syncwarp();
      ldmatrix_x4(plain[lane], tile + lane * 8);
      ldmatrix_x4_trans(transposed[lane], tile + lane * 8);
    };
    simt::run_grid(1, 32, 0, body, "ldmatrix");
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, t = lane % 4;
      for (int m = 0; m < 4; ++m) {
        CHECK(plain[lane][m] == (cell(m, g, 2 * t) | std::uint32_t(cell(m, g, 2 * t + 1)) << 16));
        CHECK(transposed[lane][m] == (cell(m, 2 * t, g) | std::uint32_t(cell(m, 2 * t + 1, g)) << 16));
      }
    }
  });
  const auto shifted = [] {
    LEVIN_SHARED(std::uint16_t, tile, 264);
    std::uint32_t r[4];
    ldmatrix_x4(r, tile + threadIdx.x * 8 + 1);
  };
  CHECK(has(message_of<InternalError>([&] { simt::run_grid(1, 32, 0, shifted, "shifted"); }), "misaligned address"));
  const auto half = [] {
    LEVIN_SHARED(std::uint16_t, tile, 264);
    std::uint32_t r[4];
    if (threadIdx.x < 16) ldmatrix_x4(r, tile + threadIdx.x * 8);
    __syncthreads();
  };
  CHECK(has(message_of<InternalError>([&] { simt::run_grid(1, 32, 0, half, "half"); }),
            "waits in ldmatrix_x4, tests/simt/tensor_core_test.cpp"));
}

TEST_CASE("simt: data of cp.async is NaN until the wait that covers it") {
  alignas(16) float x[16];
  for (int i = 0; i < 16; ++i) x[i] = float(i);
  on_every_schedule([&](simt::Schedule, std::uint64_t) {
    std::vector<float> seen;
    const auto body = [&] {
      LEVIN_SHARED(float, tile, 16);
      if (threadIdx.x != 0) return;
      for (int group = 0; group < 3; ++group) {
        cp_async_16(tile + group * 4, x + group * 4);
        cp_async_commit();
      }
      const auto look = [&] {
        for (int group = 0; group < 4; ++group) seen.push_back(tile[group * 4 + 1]);
      };
      look();
      cp_async_wait<2>();
      look();
      cp_async_16(tile, x + 8);  // the target reads as NaN again; its group is not closed
      cp_async_wait<0>();
      look();
      cp_async_16(tile + 12, x, false);
      cp_async_commit();
      cp_async_wait<0>();
      look();
    };
    simt::run_grid(1, 2, 0, body, "copies");
    const float nan = NAN;
    const float expected[] = {nan, nan, nan, nan, 1, nan, nan, nan, nan, 5, 9, nan, 9, 5, 9, 0};
    REQUIRE(seen.size() == 16);
    for (std::size_t i = 0; i < 16; ++i) {
      INFO("number ", i);
      CHECK((std::isnan(expected[i]) ? std::isnan(seen[i]) : seen[i] == expected[i]));
    }
  });
  const auto unaligned = [&] {
    LEVIN_SHARED(float, tile, 8);
    cp_async_16(tile, x + 1);
  };
  CHECK(has(message_of<InternalError>([&] { simt::run_grid(1, 1, 0, unaligned, "unaligned"); }), "misaligned address"));
}
