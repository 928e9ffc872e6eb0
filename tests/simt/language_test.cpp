// CUDA's names have CUDA's meaning under the shim.
#include "kernels/device/language.h"

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <thread>
#include <vector>

#include "tests/simt/launch.h"

using namespace levin;
using levin::test::has;
using levin::test::launch;
using levin::test::message_of;
using levin::test::on_every_schedule;

namespace {

// f(lane) of each lane of one warp, under every schedule.
template <class T, class F>
std::array<T, 32> lanes(F f) {
  std::array<T, 32> first{};
  bool begun = false;
  on_every_schedule([&](simt::Schedule, std::uint64_t) {
    std::array<T, 32> out{};
    const auto body = [&] { out[threadIdx.x] = f(int(threadIdx.x)); };
    simt::run_grid(1, 32, 0, body, "lanes");
    if (!begun) first = out;
    begun = true;
    CHECK(out == first);
  });
  return first;
}

template <class T, class F>
void check_lanes(const std::array<T, 32>& got, F expected) {
  for (int l = 0; l < 32; ++l) {
    INFO("lane ", l);
    CHECK(got[std::size_t(l)] == T(expected(l)));
  }
}

constexpr unsigned kAll = 0xffffffffu;

}  // namespace

TEST_CASE("simt: every thread of every block runs once and knows where it is") {
  const dim3 blocks(5, 3, 2), threads(7, 4, 3);
  on_every_schedule([&](simt::Schedule, std::uint64_t) {
    std::vector<int> runs(5 * 3 * 2 * 7 * 4 * 3);
    const auto body = [&] {
      const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
      const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
      ++runs[block * (blockDim.x * blockDim.y * blockDim.z) + thread];
    };
    simt::run_grid(blocks, threads, 0, body, "place");
    CHECK(runs == std::vector<int>(runs.size(), 1));
  });
  CHECK(warpSize == 32);
}

TEST_CASE_TEMPLATE("simt: shuffles", T, int, unsigned, long, unsigned long, long long, unsigned long long, float,
                   double) {
  const auto value = [](int l) { return T(l * 3 + 1); };
  check_lanes(lanes<T>([&](int l) { return __shfl_sync(kAll, value(l), 5); }), [&](int) { return value(5); });
  check_lanes(lanes<T>([&](int l) { return __shfl_sync(kAll, value(l), l + 33); }),
              [&](int l) { return value((l + 1) % 32); });
  check_lanes(lanes<T>([&](int l) { return __shfl_sync(kAll, value(l), 9, 8); }),
              [&](int l) { return value(l / 8 * 8 + 1); });
  check_lanes(lanes<T>([&](int l) { return __shfl_up_sync(kAll, value(l), 3); }),
              [&](int l) { return value(l < 3 ? l : l - 3); });
  check_lanes(lanes<T>([&](int l) { return __shfl_up_sync(kAll, value(l), 3, 8); }),
              [&](int l) { return value(l % 8 < 3 ? l : l - 3); });
  check_lanes(lanes<T>([&](int l) { return __shfl_down_sync(kAll, value(l), 5); }),
              [&](int l) { return value(l > 26 ? l : l + 5); });
  check_lanes(lanes<T>([&](int l) { return __shfl_down_sync(kAll, value(l), 2, 4); }),
              [&](int l) { return value(l % 4 > 1 ? l : l + 2); });
  check_lanes(lanes<T>([&](int l) { return __shfl_xor_sync(kAll, value(l), 21); }),
              [&](int l) { return value(l ^ 21); });
  // Of two segments the later may read the earlier, and the earlier may not read the later.
  check_lanes(lanes<T>([&](int l) { return __shfl_xor_sync(kAll, value(l), 16, 16); }),
              [&](int l) { return value(l < 16 ? l : l - 16); });
}

TEST_CASE("simt: a shuffle from a lane outside of the mask is NaN, and a width must be a power of two") {
  const auto got =
      lanes<int>([](int l) { return l < 16 ? int(std::isnan(__shfl_down_sync(0x0000ffffu, 1.0f, 8))) : 0; });
  check_lanes(got, [](int l) { return l >= 8 && l < 16; });
  const auto wide = [] { __shfl_xor_sync(kAll, 1, 1, 12); };
  CHECK(has(message_of<InternalError>([&] { simt::run_grid(1, 32, 0, wide, "wide"); }), "has width 12"));
}

TEST_CASE("simt: parts of a warp work apart") {
  const auto got = lanes<unsigned>([](int l) {
    const unsigned half = l < 16 ? 0x0000ffffu : 0xffff0000u;
    unsigned votes = __ballot_sync(half, l % 3 == 0);
    for (int i = 0; i < l / 16; ++i) votes += __reduce_add_sync(half, unsigned(l));  // the upper half only
    return votes;
  });
  unsigned votes = 0, sum = 0;
  for (int l = 0; l < 32; l += 3) votes |= 1u << l;
  for (unsigned l = 16; l < 32; ++l) sum += l;
  check_lanes(got, [&](int l) { return l < 16 ? votes & 0xffffu : (votes & 0xffff0000u) + sum; });
}

TEST_CASE("simt: votes, matches and reductions of a warp") {
  check_lanes(lanes<unsigned>([](int l) { return __ballot_sync(kAll, l == 4 || l == 31); }),
              [](int) { return 0x80000010u; });
  check_lanes(lanes<int>([](int l) { return __any_sync(kAll, l == 4) * 2 + __any_sync(kAll, 0); }),
              [](int) { return 2; });
  check_lanes(lanes<int>([](int l) { return __all_sync(kAll, l >= 0) * 2 + __all_sync(kAll, l != 7); }),
              [](int) { return 2; });
  const auto matched = lanes<unsigned>([](int l) { return __match_any_sync(kAll, (unsigned long long)(l % 3) << 40); });
  check_lanes(matched, [](int l) {
    unsigned equal = 0;
    for (int o = l % 3; o < 32; o += 3) equal |= 1u << o;
    return equal;
  });
  check_lanes(lanes<int>([](int l) { return __reduce_add_sync(kAll, l - 20); }), [](int) { return 496 - 640; });
  check_lanes(lanes<int>([](int l) { return __reduce_min_sync(kAll, l - 20); }), [](int) { return -20; });
  check_lanes(lanes<int>([](int l) { return __reduce_max_sync(kAll, -l); }), [](int) { return 0; });
  check_lanes(lanes<unsigned>([](int l) { return __reduce_max_sync(kAll, unsigned(-l)); }), [](int) { return ~0u; });
  check_lanes(lanes<unsigned>([](int l) { return __reduce_or_sync(kAll, 1u << l % 5); }), [](int) { return 31u; });
}

TEST_CASE("simt: barriers that vote") {
  std::vector<int> got(100 * 3);
  on_every_schedule([&](simt::Schedule, std::uint64_t) {
    const auto body = [&] {
      const int t = int(threadIdx.x);
      int* const mine = &got[std::size_t(t) * 3];
      mine[0] = __syncthreads_count(t % 7);
      mine[1] = __syncthreads_and(t < 99) * 2 + __syncthreads_and(t < 100);
      mine[2] = __syncthreads_or(t == 50) * 2 + __syncthreads_or(t == 100);
    };
    simt::run_grid(1, 100, 0, body, "votes");
    for (std::size_t t = 0; t < 100; ++t) {
      CHECK(got[t * 3] == 85);  // 15 multiples of 7
      CHECK(got[t * 3 + 1] == 1);
      CHECK(got[t * 3 + 2] == 2);
    }
  });
}

TEST_CASE("simt: atomics return the old value and lose none") {
  on_every_schedule([&](simt::Schedule, std::uint64_t) {
    int count = 0, least = 100, most = -100, ors = 0, ands = -1;
    unsigned ring = 0, low = ~0u;
    unsigned long long wide = 0, claimed = 0;
    float sum = 0;
    double total = 0;
    std::set<int> olds;
    const auto body = [&] {
      const int t = int(blockIdx.x * blockDim.x + threadIdx.x);
      olds.insert(atomicAdd(&count, 1));
      atomicAdd(&wide, 1ull << 33);
      atomicAdd(&sum, 0.5f);
      atomicAdd(&total, 0.25);
      atomicMin(&least, t - 7);
      atomicMax(&most, t);
      atomicMin(&low, unsigned(t + 3));
      atomicOr(&ors, 1 << t % 4);
      atomicAnd(&ands, ~(1 << t % 4));
      atomicInc(&ring, 9);
      if (atomicCAS(&claimed, 0ull, (unsigned long long)(t + 1)) == 0) CHECK(claimed == (unsigned long long)(t + 1));
      atomicExch(&sum, atomicExch(&sum, 0.0f));
    };
    simt::run_grid(4, 50, 0, body, "atomics");
    CHECK(count == 200);
    CHECK(olds.size() == 200);
    CHECK(wide == 200ull << 33);
    CHECK(sum == 100.0f);
    CHECK(total == 50.0);
    CHECK(least == -7);
    CHECK(most == 199);
    CHECK(low == 3);
    CHECK(ors == 15);
    CHECK(ands == -16);
    CHECK(ring == 0);
    CHECK(claimed != 0);
  });
}

TEST_CASE("simt: integer and float functions") {
  CHECK(__popc(0xf0f0u) == 8);
  CHECK(__popcll(~0ull) == 64);
  CHECK(__clz(1) == 31);
  CHECK(__clz(0) == 32);
  CHECK(__clzll(0) == 64);
  CHECK(__clzll(1ll << 40) == 23);
  CHECK(__ffs(0) == 0);
  CHECK(__ffs(8) == 4);
  CHECK(__brev(1u) == 0x80000000u);
  CHECK(__brev(0x0000f0a1u) == 0x850f0000u);
  CHECK(__umulhi(0xffffffffu, 0xffffffffu) == 0xfffffffeu);
  CHECK(__umul64hi(~0ull, ~0ull) == ~0ull - 1);
  CHECK(rsqrtf(4.0f) == 0.5f);
  CHECK(rsqrt(16.0) == 0.25);
  CHECK(__fmaf_rn(1 + 0x1p-23f, 1 + 0x1p-23f, -1.0f) == 0x1p-22f + 0x1p-46f);
  CHECK(__fmul_rn(1 + 0x1p-23f, 1 + 0x1p-23f) - 1.0f == 0x1p-22f);
  CHECK(min(3, -2) == -2);
  CHECK(max(3u, 5u) == 5u);
  CHECK(max(int64_t{3}, int64_t{5}) == 5);
  CHECK(max(-1, 1u) == ~0u);  // as in C++: the common type is unsigned
  CHECK(min(1.0f, NAN) == 1.0f);
  CHECK(max(2.0f, 3.0) == 3.0);
  CHECK(__float_as_uint(1.0f) == 0x3f800000u);
  CHECK(__uint_as_float(0x40000000u) == 2.0f);
  static_assert(alignof(float4) == 16 && alignof(int2) == 8 && alignof(double2) == 16 && alignof(uint3) == 4);
  static_assert(alignof(uchar4) == 4 && alignof(ushort4) == 8 && sizeof(uint3) == 12 && alignof(longlong2) == 16);
  CHECK(make_float4(1, 2, 3, 4).z == 3);
  const uint4 four = make_uint4(1, 2, 3, 4);
  uint4 copy{};
  __stcs(&copy, __ldg(&four));
  CHECK(copy.w == 4);
}

TEST_CASE("simt: shared arrays belong to a block, start as NaN and are aligned; dynamic ones have the launch's bytes") {
  on_every_schedule([&](simt::Schedule, std::uint64_t) {
    std::vector<const void*> seen(64 * 3);
    int nans = 0;
    const auto body = [&] {
      LEVIN_SHARED(float, a, 10);
      LEVIN_SHARED(float, b, 10);
      LEVIN_SHARED_DYNAMIC(float, c);
      if (threadIdx.x < 10) {
        nans += std::isnan(a[threadIdx.x]) && std::isnan(b[threadIdx.x]) && std::isnan(c[threadIdx.x]);
      }
      __syncthreads();
      if (threadIdx.x < 10) a[threadIdx.x] = b[threadIdx.x] = c[threadIdx.x] = 1;
      seen[threadIdx.x] = a;
      seen[64 + threadIdx.x] = b;
      seen[128 + threadIdx.x] = c;
    };
    simt::run_grid(3, 64, 40, body, "arrays");
    CHECK(nans == 30);
    CHECK(std::set<const void*>(seen.begin(), seen.end()).size() == 3);
    for (const void* p : seen) CHECK(reinterpret_cast<std::uintptr_t>(p) % 16 == 0);
  });
}

TEST_CASE("simt: launches from several threads at once do not meet") {
  std::vector<std::thread> threads;
  std::array<std::vector<int>, 3> out;
  for (std::size_t n = 0; n < out.size(); ++n) {
    out[n].resize(128);
    threads.emplace_back([&out, n] {
      for (int round = 0; round < 20; ++round) {
        const auto body = [&] {
          LEVIN_SHARED(int, row, 128);
          row[threadIdx.x] = int(threadIdx.x) * int(n + 1);
          __syncthreads();
          const int sum = __shfl_xor_sync(kAll, row[127 - threadIdx.x], 1);
          __syncthreads();
          if (blockIdx.x == 1) out[n][threadIdx.x] = sum;
        };
        simt::run_grid(2, 128, 0, body, "threads");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t n = 0; n < out.size(); ++n) {
    for (int t = 0; t < 128; ++t) CHECK(out[n][std::size_t(t)] == (127 - (t ^ 1)) * int(n + 1));
  }
}

TEST_CASE("simt: a launch costs one switch of stacks for each wait") {
  const auto cost = [](dim3 blocks, auto body) {
    const std::uint64_t before = simt::switches();
    simt::run_grid(blocks, 256, 0, body, "cost");
    return simt::switches() - before;
  };
  on_every_schedule([&](simt::Schedule, std::uint64_t) {
    CHECK(cost(10, [] {}) == 10 * 2);  // to the first thread and back
    // Each thread waits once, then each resumes once.
    const std::uint64_t barrier = cost(1, [] { __syncthreads(); });
    CHECK(barrier >= 256);
    CHECK(barrier <= 2 * 256 + 2);
    // 31 lanes wait for the last, 20 times.
    const std::uint64_t shuffles = cost(1, [] {
      for (int i = 0; i < 20; ++i) __shfl_xor_sync(kAll, i, 1);
    });
    CHECK(shuffles >= 20 * 8 * 31);
    CHECK(shuffles <= 2 * 20 * 256);
  });
}
