// Kernels of TMA, mbarrier and wgmma with a bug planted: the shim must catch each, in every order.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>

#include "kernels/device/hardware_math.cuh"
#include "tests/simt/hopper.h"
#include "tests/skip.h"

using namespace levin;
using namespace levin::kernels;
using namespace levin::kernels::gpu;
using levin::test::Aligned;
using levin::test::has;
using levin::test::in_every_order;
using levin::test::launch;
using levin::test::map_of;
using levin::test::message_of;

namespace {

enum class Bug : std::uint8_t {
  none,
  no_expect,  // the phase's bytes are not announced
  expects_too_little,
  expects_too_much,
  other_barrier,    // a copy counts for the other stage
  count_too_small,  // of the barrier that frees a stage
  phase_reset,      // every k-block waits for phase 0 or 1 again
  phase_ahead,
  other_stage,        // waits for the other stage's bytes
  early_release,      // frees a stage before the product has read it
  one_warp_releases,  // frees a stage for warps that have not waited
  no_empty_wait,      // fills a stage that is not free
  no_proxy_fence,
  fence_before_write,
  fence_by_another,
  fence_after_barrier,
  plain_store,
  no_barrier_before_store,
  reads_accumulator,  // before the wait
  writes_accumulator,
  waits_for_one_less,
  no_first_fence,
  no_fence_after_touch,
  stride_of_half,  // of the descriptor
  other_major,     // b is taken for [k, n]
  other_swizzle,
  base_offset,
  start_off_pattern,
  descriptor_outside,
  box_outside,
  box_misaligned,
  head_of_matrix,  // the map has none
  no_init_fence,
  no_barrier_after_init,
  descriptors_differ,
  shapes_differ,
  places_differ,
  warp_skips_product,
  half_gives_registers,
  takes_too_many,
  takes_fewer,
  gives_more,
  store_unread,  // the block ends under a store
  store_uncommitted,
  overwrites_store,  // the source, while it is read
  copy_unwaited,
  product_unwaited,
  barrier_unknown,
};

constexpr int kBlocks = 4, kStages = 2, kDepth = 64 * kBlocks;
constexpr unsigned kTile = 64 * 64 * 2, kStage = 2 * kTile;
constexpr unsigned kShared = kAtom + kStages * kStage + kTile + 256;

struct Maps {
  TensorMap a, b, b_other, y;  // b_other: 64-byte swizzle
};

__device__ void produce(const Maps& maps, Bug bug, unsigned char* ring, Barrier* full, Barrier* empty) {
  for (int s = 0; s < kBlocks; ++s) {
    const int stage = s % kStages, round = s / kStages;
    unsigned char* const to = ring + unsigned(stage) * kStage;
    if (bug != Bug::no_empty_wait) empty[stage].wait(round - 1);
    if (bug == Bug::no_expect)
      full[stage].arrive();
    else
      full[stage].arrive_expect(bug == Bug::expects_too_little ? kTile
                                : bug == Bug::expects_too_much ? 3 * kTile
                                                               : kStage);
    if (bug == Bug::head_of_matrix) tma_load(to, maps.a, s * 64, 0, MapHead{}, full[stage]);
    tma_load(bug == Bug::box_misaligned ? to + 128 : to, maps.a, s * 64, 0, full[stage]);
    Barrier& counts = full[bug == Bug::other_barrier ? 1 - stage : stage];
    unsigned char* const to_b = bug == Bug::box_outside ? ring + kStages * kStage + kTile : to + kTile;
    tma_load(to_b, bug == Bug::other_swizzle ? maps.b_other : maps.b, s * 64, 0, counts);
  }
  if (bug == Bug::copy_unwaited) {
    empty[0].wait(kBlocks / kStages - 1);
    full[0].arrive_expect(kTile);
    tma_load(ring, maps.a, 0, 0, full[0]);
  }
}

__device__ void multiply(float (&d)[32], Bug bug, unsigned char* ring, Barrier* full, Barrier* empty) {
  const int warp = int(threadIdx.x) / 32 % 4;
  const bool releases = bug == Bug::one_warp_releases ? threadIdx.x % 128 == 0 : threadIdx.x % 32 == 0;
  for (int s = 0; s < kBlocks; ++s) {
    const int stage = s % kStages;
    const unsigned char* const from = ring + unsigned(stage) * kStage;
    const int phase = bug == Bug::phase_reset ? 0 : bug == Bug::phase_ahead ? s / kStages + 1 : s / kStages;
    full[bug == Bug::other_stage ? 1 - stage : stage].wait(phase);
    std::uint64_t a = descriptor<Major::k>(from), b = descriptor<Major::k>(from + kTile);
    if (bug == Bug::stride_of_half) b = simt::descriptor(from + kTile, 16, 512, Swizzle::bytes128);
    if (bug == Bug::base_offset) a |= std::uint64_t{1} << 49;
    if (bug == Bug::start_off_pattern) a += 128 >> 4;
    if (bug == Bug::descriptor_outside) b += (kStage * kStages) >> 4;
    if (bug == Bug::descriptors_differ && warp == 2) a += 2;
    if (bug == Bug::no_fence_after_touch && s > 0) {
      wgmma_wait<0>();
      for (float& x : d) x += 1;
    }
    if (bug != Bug::no_first_fence && (bug != Bug::no_fence_after_touch || s == 0)) wgmma_fence();
    if (bug == Bug::warp_skips_product && warp == 3 && s == 1) return wgmma_wait<0>();
    if (bug == Bug::shapes_differ && warp == 1) wgmma<f16, 64, Major::k, Major::mn>(d, a, b, false);
    if (bug == Bug::places_differ && warp == 1) wgmma<f16, 64>(d, a, b, false);
    if (bug == Bug::other_major) {
      for (unsigned kk = 0; kk < 4; ++kk)
        wgmma<f16, 64, Major::k, Major::mn>(d, a + kk * 2, b + kk * 128, s > 0 || kk > 0);
      wgmma_commit();
      wgmma_wait<0>();
      if (releases) empty[stage].arrive();
      continue;
    }
    for (unsigned kk = 0; kk < 4; ++kk) wgmma<f16, 64>(d, a + kk * 2, b + kk * 2, s > 0 || kk > 0);
    wgmma_commit();
    if (bug == Bug::writes_accumulator && s == 2 && warp == 1) d[3] = 1;
    if (bug == Bug::early_release) {
      if (releases) empty[stage].arrive();
    } else if (s > 0) {
      wgmma_wait<1>();
      if (releases) empty[1 - stage].arrive();
    }
  }
  if (bug == Bug::reads_accumulator) {
    float sum = 0;
    for (float& x : d) sum += x;
    wgmma_wait<0>();
    d[0] = sum;
  } else if (bug == Bug::waits_for_one_less) {
    wgmma_wait<1>();
  } else if (bug != Bug::product_unwaited) {
    wgmma_wait<0>();
  }
  if (bug != Bug::early_release && bug != Bug::other_major && releases) empty[(kBlocks - 1) % kStages].arrive();
}

__device__ void store_result(const float (&d)[32], Bug bug, const TensorMap& y, unsigned char* panel) {
  const int t = int(threadIdx.x) % 128, lane = t % 32, row = t / 32 * 16 + lane % 8 + lane / 8 % 2 * 8;
  const bool fences = bug != Bug::no_proxy_fence && (bug != Bug::fence_by_another || t == 0);
  for (int time = 0; time < (bug == Bug::overwrites_store ? 2 : 1); ++time) {
    if (bug == Bug::fence_before_write) fence_async_shared();
    for (int c = 0; c < 4; ++c) {
      std::uint32_t r[4];
      for (int i = 0; i < 4; ++i) r[i] = rounded_pair<f16>(d[8 * c + 2 * i], d[8 * c + 2 * i + 1]);
      unsigned char* const to = panel + row * 128 + ((2 * c + lane / 16) ^ row % 8) * 16;
      stmatrix_x4(to, r);
    }
    if (bug == Bug::plain_store && t == 5) panel[77] = 1;
    if (fences && bug != Bug::fence_before_write && bug != Bug::fence_after_barrier) fence_async_shared();
    if (bug != Bug::no_barrier_before_store) named_barrier<1>(128);
    if (bug == Bug::fence_after_barrier) fence_async_shared();
    if (t == 0) {
      tma_store(y, 0, 0, panel);
      if (bug != Bug::store_uncommitted) bulk_commit();
      if (bug != Bug::store_unread && bug != Bug::overwrites_store) bulk_wait_read<0>();
    }
  }
  if (bug == Bug::overwrites_store && t == 0) bulk_wait_read<0>();
}

// y [64, 64] = a [64, 256] b [64, 256]^T: warpgroup 0 copies, warpgroup 1 multiplies and stores.
__global__ void pipeline(Maps maps, Bug bug) {
  LEVIN_SHARED_DYNAMIC(unsigned char, bytes);
  unsigned char* const ring = atom_aligned(bytes);
  unsigned char* const panel = ring + kStages * kStage;
  Barrier* const full = reinterpret_cast<Barrier*>(panel + kTile);
  Barrier* const empty = full + kStages;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      if (bug != Bug::barrier_unknown) full[s].init(1);
      empty[s].init(bug == Bug::count_too_small || bug == Bug::one_warp_releases ? 1 : 4);
    }
    if (bug != Bug::no_init_fence) fence_barrier_init();
  }
  if (bug != Bug::no_barrier_after_init) __syncthreads();
  if (threadIdx.x < 128) {
    if (bug == Bug::takes_too_many) return;
    if (bug != Bug::half_gives_registers || threadIdx.x < 64) registers_give<40>();
    if (bug == Bug::gives_more) registers_give<48>();
    if (threadIdx.x < 32 && elect()) produce(maps, bug, ring, full, empty);
    return;
  }
  if (bug == Bug::takes_too_many) registers_take<256>();
  if (bug == Bug::takes_fewer) registers_take<232>();
  registers_take<248>();
  float d[32];
  multiply(d, bug, ring, full, empty);
  store_result(d, bug, maps.y, panel);
}

struct Planted {
  Bug bug;
  std::vector<std::string> said;  // one of them, in each order
};
const std::vector<Planted>& planted() {
  static const std::vector<Planted> list = {
      {Bug::no_expect, {"race: wgmma reads", "is in flight"}},
      {Bug::expects_too_little, {"is in flight: the phase expects too few bytes", "race: wgmma reads"}},
      {Bug::expects_too_much, {"1 of 1 arrivals, tx-count 8192, no copy in flight, 128 threads wait"}},
      {Bug::other_barrier, {"tx-count 8192, no copy in flight", "race: wgmma reads"}},
      {Bug::count_too_small, {"race: tma_load writes"}},
      {Bug::phase_reset, {"Barrier::wait(0) is for a phase that the thread has waited for"}},
      {Bug::phase_ahead, {"Barrier::wait(1) is for a phase that has not begun"}},
      {Bug::other_stage, {"no thread can continue", "race: wgmma reads"}},
      {Bug::early_release, {"race: tma_load writes", "race: wgmma reads", "long past"}},
      {Bug::one_warp_releases, {"race: tma_load writes"}},
      {Bug::no_empty_wait, {"race: tma_load writes", "more than the 1 arrivals of phase 0"}},
      {Bug::no_proxy_fence, {"tma_store reads byte", "without a fence_async_shared of its own since"}},
      {Bug::fence_before_write, {"without a fence_async_shared of its own since"}},
      {Bug::fence_by_another, {"which thread 129 wrote without a fence_async_shared of its own since"}},
      {Bug::fence_after_barrier, {"race: tma_store reads", "without a fence_async_shared of its own since"}},
      {Bug::plain_store, {"which was written by a plain store"}},
      {Bug::no_barrier_before_store, {"race: tma_store reads", "without a fence_async_shared of its own since"}},
      {Bug::writes_accumulator, {"were written before the wgmma_wait that covers it"}},
      {Bug::waits_for_one_less, {"ends before a wgmma_wait has covered its wgmma"}},
      {Bug::no_first_fence, {"wgmma before the first wgmma_fence"}},
      {Bug::no_fence_after_touch, {"wgmma: d was written after the last wgmma_fence"}},
      {Bug::other_swizzle, {"tx-count 4096, no copy in flight"}},
      {Bug::base_offset, {"the descriptor of a has base offset 1"}},
      {Bug::start_off_pattern, {"the descriptor of a starts at 128 bytes above a multiple of 1024"}},
      {Bug::descriptor_outside, {"the descriptor of b names bytes up to"}},
      {Bug::box_outside, {"bytes beyond the block's shared memory"}},
      {Bug::box_misaligned, {"misaligned address: the box is at 128 bytes above a multiple of 1024"}},
      {Bug::head_of_matrix, {"tma_load of 4 coordinates, and the map has 2"}},
      {Bug::no_init_fence, {"before fence_barrier_init and a barrier of the block"}},
      {Bug::no_barrier_after_init, {"before fence_barrier_init and a barrier of the block", "was not initialised"}},
      {Bug::descriptors_differ, {"of a warpgroup differ in the descriptor of a"}},
      {Bug::shapes_differ, {"of a warpgroup differ in the shape"}},
      {Bug::places_differ, {"of a warpgroup differ in the place"}},
      {Bug::warp_skips_product, {"wgmma of 96 of 128 threads"}},
      {Bug::half_gives_registers, {"warpgroup 0: 64 of 128 threads ask for 40 registers, it has 248"}},
      {Bug::takes_too_many, {"128 of 128 threads ask for 256 registers, it has 248 a thread, the block's pool 0"}},
      {Bug::takes_fewer, {"registers_take<232> of a warpgroup that has 248 registers a thread"}},
      {Bug::gives_more, {"registers_give<48> of a warpgroup that has 40 registers a thread"}},
      {Bug::store_unread, {"ends before a bulk_wait_read has covered its tma_store"}},
      {Bug::store_uncommitted, {"ends with a tma_store that no bulk_commit follows"}},
      {Bug::overwrites_store, {"race: tma_store reads", "race: stmatrix_x4 writes", "without a fence_async_shared"}},
      {Bug::copy_unwaited, {"the block ends with a copy to shared memory that no thread has waited for, in phase 2"}},
      {Bug::product_unwaited, {"ends before a wgmma_wait has covered its wgmma"}},
      {Bug::barrier_unknown, {"of a barrier that was not initialised"}},
  };
  return list;
}

// The operands and the result of the pipeline, and what is wrong with it.
struct Run {
  Aligned<f16> a = Aligned<f16>(64 * kDepth), b = Aligned<f16>(64 * kDepth), y = Aligned<f16>(64 * 64);
  std::vector<float> right;
  Run() {
    levin::test::fill_integers(a, 1);
    levin::test::fill_integers(b, 2);
    for (std::size_t i = 0; i < 64; ++i) {
      for (std::size_t j = 0; j < 64; ++j) {
        float sum = 0;
        for (std::size_t k = 0; k < kDepth; ++k) sum += float(a[i * kDepth + k]) * float(b[j * kDepth + k]);
        right.push_back(sum);
      }
    }
  }
  void launch_with(Bug bug) {
    const Maps maps{map_of(a.data(), kDepth, 64, 64, 64), map_of(b.data(), kDepth, 64, 64, 64),
                    map_of(b.data(), kDepth, 64, 32, 64, Swizzle::bytes64), map_of(y.data(), 64, 64, 64, 64)};
    for (std::size_t i = 0; i < y.size(); ++i) y[i] = f16(99.0f);
    launch(pipeline, 1, 256, kShared, maps, bug);
  }
  int wrong() {
    int count = 0;
    for (std::size_t i = 0; i < y.size(); ++i) count += !(float(y[i]) == float(f16(right[i])));
    return count;
  }
};

// Both wait for the other's barrier first.
__global__ void swapped_order() {
  LEVIN_SHARED_DYNAMIC(unsigned char, bytes);
  bytes[0] = 0;
  if (threadIdx.x < 128) {
    named_barrier<1>(256);
    named_barrier<2>(256);
  } else {
    named_barrier<2>(256);
    named_barrier<1>(256);
  }
}

// A box of 16 x 64 with one swizzle, read with another.
__global__ void mixed_swizzles(const __grid_constant__ TensorMap map) {
  LEVIN_SHARED_DYNAMIC(unsigned char, bytes);
  unsigned char* const tile = atom_aligned(bytes);
  Barrier* const full = reinterpret_cast<Barrier*>(tile + 8192);
  if (threadIdx.x == 0) {
    full->init(1);
    fence_barrier_init();
    full->arrive_expect(64 * 64);
    tma_load(tile, map, 0, 0, *full);
  }
  __syncthreads();
  full->wait(0);
  float d[4] = {};
  wgmma_fence();
  wgmma<f16, 8>(d, descriptor<Major::k>(tile), descriptor<Major::k>(tile), false);
  wgmma_commit();
  wgmma_wait<0>();
}

// d [64, 64] = a b^T twice, a in registers that change in between.
enum class RegisterBug : std::uint8_t { none, no_fence, written_in_flight };
__global__ void registers_of_a(const __grid_constant__ TensorMap map, RegisterBug bug, float* y) {
  LEVIN_SHARED_DYNAMIC(unsigned char, bytes);
  unsigned char* const tile = atom_aligned(bytes);
  Barrier* const full = reinterpret_cast<Barrier*>(tile + kTile);
  if (threadIdx.x == 0) {
    full->init(1);
    fence_barrier_init();
    full->arrive_expect(kTile);
    tma_load(tile, map, 0, 0, *full);
  }
  __syncthreads();
  full->wait(0);
  float d[32];
  const std::uint32_t ones = rounded_pair<f16>(1.0f, 1.0f), twos = rounded_pair<f16>(2.0f, 2.0f);
  std::uint32_t a[4] = {ones, ones, ones, ones};
  for (int time = 0; time < 2; ++time) {
    if (time == 0 || bug != RegisterBug::no_fence) wgmma_fence();
    wgmma<f16, 64>(d, a, descriptor<Major::k>(tile), time == 1);
    wgmma_commit();
    if (bug == RegisterBug::written_in_flight) a[1] = twos;
    wgmma_wait<0>();
    for (std::uint32_t& r : a) r = twos;
  }
  y[threadIdx.x] = d[0];
}

// Bugs that AddressSanitizer reports, which ends the process.
constexpr Bug kTouchesAccumulator[] = {Bug::reads_accumulator, Bug::writes_accumulator, Bug::waits_for_one_less,
                                       Bug::product_unwaited};
bool ends_process(Bug bug) {
  return levin::test::kAddressSanitizer &&
         std::count(std::begin(kTouchesAccumulator), std::end(kTouchesAccumulator), bug) != 0;
}
}  // namespace

TEST_CASE("simt: a pipeline of TMA, mbarrier and wgmma is right in every schedule and order of completion") {
  Run run;
  int orders = 0;
  in_every_order([&] {
    ++orders;
    run.launch_with(Bug::none);
    CHECK(run.wrong() == 0);
  });
  CHECK(orders == 16 + 2 * 2);
}

TEST_CASE(
    "simt: each bug planted in a pipeline of TMA and wgmma is reported in every order, and the next launch works") {
  Run run;
  for (const auto& [bug, said] : planted()) {
    if (ends_process(bug)) continue;
    CAPTURE(int(bug));
    in_every_order([&, &bug = bug, &said = said] {
      const std::string message = message_of<InternalError>([&] { run.launch_with(bug); });
      CAPTURE(message);
      CHECK(std::any_of(said.begin(), said.end(), [&](const std::string& part) { return has(message, part); }));
    });
    run.launch_with(Bug::none);
    CHECK(run.wrong() == 0);
  }
}

TEST_CASE(
    "simt: a wrong stride or direction of a descriptor, and an accumulator read before its wait, give wrong results") {
  Run run;
  in_every_order([&] {
    run.launch_with(Bug::stride_of_half);
    CHECK(run.wrong() > 0);
    run.launch_with(Bug::other_major);
    CHECK(run.wrong() > 0);
    if (levin::test::kAddressSanitizer) return;  // it ends the process
    run.launch_with(Bug::reads_accumulator);
    CHECK(run.wrong() == 128);  // one sum of each thread is NaN
  });
}

TEST_CASE("simt: an accumulator that is touched before its wait is reported by AddressSanitizer") {
  if (const char* const bug = levin::test::planted_in_child()) {
    Run run;
    run.launch_with(Bug(std::atoi(bug)));
    return;
  }
  if (!levin::test::kAddressSanitizer) return levin::test::skip("needs -Db_sanitize=address");
  for (const Bug bug : kTouchesAccumulator) {
    const levin::test::Child child = levin::test::child_with(
        int(bug), "simt: an accumulator that is touched before its wait is reported by AddressSanitizer");
    CHECK(!child.ended_well);
    INFO(child.output);
    CHECK(has(child.output, "use-after-poison"));
    CHECK(has(child.output, "hopper_planted_test.cpp"));
  }
}

TEST_CASE("simt: registers of a that change without a wgmma_fence, or in flight, are reported") {
  Aligned<f16> b(64 * 64, f16(3.0f));
  const TensorMap map = map_of(b.data(), 64, 64, 64, 64);
  std::vector<float> y(128);
  in_every_order([&] {
    const auto message = [&](RegisterBug bug) {
      return message_of<InternalError>([&] { launch(registers_of_a, 1, 128, kShared, map, bug, y.data()); });
    };
    CHECK(message(RegisterBug::none) == "");
    CHECK(y == std::vector<float>(128, 16 * 3.0f + 16 * 2 * 3.0f));
    CHECK(has(message(RegisterBug::no_fence), "wgmma: a was written after the last wgmma_fence"));
    if (levin::test::kAddressSanitizer) return;  // it ends the process
    CHECK(has(message(RegisterBug::written_in_flight), "were written before the wgmma_wait that covers it"));
  });
}

TEST_CASE("simt: two warpgroups that take named barriers in opposite orders are reported with both") {
  in_every_order([] {
    const std::string message = message_of<InternalError>([] { launch(swapped_order, 1, 256, 16); });
    CHECK(has(message, "named_barrier<1>: 128 of 256 threads; named_barrier<2>: 128 of 256 threads"));
  });
}

TEST_CASE("simt: a descriptor whose swizzle is not the copy's is reported with both") {
  Aligned<f16> a(64 * 64);
  const TensorMap map = map_of(a.data(), 64, 64, 32, 64, Swizzle::bytes64);
  in_every_order([&] {
    const std::string message = message_of<InternalError>([&] { launch(mixed_swizzles, 1, 128, kShared, map); });
    CHECK(has(message, "wgmma: swizzle 128 bytes, and tma_load"));
    CHECK(has(message, "wrote the bytes with swizzle 64 bytes"));
  });
}
