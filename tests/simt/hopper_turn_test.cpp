// Linear copies, their additions to memory, and turns of blocks: what they compute, and kernels with a bug planted,
// which the shim must catch in every order.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "tests/simt/hopper.h"
#include "tests/skip.h"

using namespace levin;
using namespace levin::kernels;
using namespace levin::kernels::gpu;
using levin::test::Aligned;
using levin::test::has;
using levin::test::in_every_order;
using levin::test::launch;
using levin::test::message_of;

namespace {

enum class Bug : std::uint8_t {
  none,
  no_turn_wait,
  read_wait,  // the turn is passed when shared memory has been read
  no_write_wait,
  uncommitted,
  no_pass,
  waits_for_later,
  waits_for_earlier,
  added_before_turn,
  other_counter,  // is passed
  no_global_fence,
  no_shared_fence,
  fence_by_another,
  plain_store,
  no_barrier_before_add,
  overwrites_source,
  ends_unread,
  odd_bytes,
  no_bytes,
  misaligned_shared,
  misaligned_global,
  beyond_shared,
  expects_too_little,
  expects_too_much,
  loads_over_unfenced,
};

constexpr int kBlocks = 3, kTiles = 2, kNumbers = 256;
constexpr unsigned kTileBytes = kNumbers * 4, kShared = 2 * kTileBytes + 64;

// sums[tile] = the sum over blocks b, in order, of 2 parts[b][tile]. counters: a ticket, then one for each tile.
__global__ void sum_in_turn(const float* parts, float* sums, int* counters, Bug bug) {
  LEVIN_SHARED_DYNAMIC(unsigned char, bytes);
  float* const loaded = reinterpret_cast<float*>(bytes);
  float* const doubled = loaded + kNumbers;
  Barrier* const full = reinterpret_cast<Barrier*>(bytes + 2 * kTileBytes);
  int* const ticket = reinterpret_cast<int*>(full + 1);
  const int thread = int(threadIdx.x);
  if (thread == 0) {
    *ticket = atomicAdd(counters, 1);
    full->init(1);
    fence_barrier_init();
  }
  __syncthreads();
  const int rank = *ticket;
  for (int tile = 0; tile < kTiles; ++tile) {
    const float* const from = parts + (rank * kTiles + tile) * kNumbers;
    float* const to = sums + tile * kNumbers;
    int* const counter = counters + 1 + tile;
    if (thread == 0) {
      full->arrive_expect(bug == Bug::expects_too_little ? kTileBytes - 16
                          : bug == Bug::expects_too_much ? kTileBytes + 16
                                                         : kTileBytes);
      unsigned char* const place = bug == Bug::misaligned_shared     ? bytes + 8
                                   : bug == Bug::beyond_shared       ? bytes + kTileBytes + 80
                                   : bug == Bug::loads_over_unfenced ? bytes + kTileBytes
                                                                     : bytes;
      if (bug == Bug::loads_over_unfenced) store_shared(doubled, 1.0f);
      bulk_load(place, bug == Bug::misaligned_global ? from + 2 : from,
                bug == Bug::odd_bytes  ? kTileBytes - 8
                : bug == Bug::no_bytes ? 0
                                       : kTileBytes,
                *full);
    }
    full->wait(tile);
    for (int i = thread; i < kNumbers; i += 64) store_shared(doubled + i, 2 * loaded[i]);
    if (bug != Bug::no_shared_fence && (bug != Bug::fence_by_another || thread < 32)) fence_async_shared();
    if (bug == Bug::plain_store && thread == 9) doubled[9] = 3;
    if (bug != Bug::no_barrier_before_add) __syncthreads();
    if (thread == 0) {
      const auto add = [&] {
        if (rank == 0)
          bulk_store(to, doubled, kTileBytes);
        else
          bulk_reduce_add(to, doubled, kTileBytes);
      };
      const int turn = bug == Bug::waits_for_later ? rank + 1 : bug == Bug::waits_for_earlier ? 0 : rank;
      if (bug == Bug::added_before_turn) add(), bulk_commit();
      if (bug != Bug::no_turn_wait) wait_turn(counter, turn);
      if (bug != Bug::no_global_fence) fence_async_global();
      if (bug != Bug::added_before_turn) add();
      if (bug != Bug::uncommitted && bug != Bug::added_before_turn) bulk_commit();
      if (bug == Bug::read_wait)
        bulk_wait_read<0>();
      else if (bug != Bug::no_write_wait && bug != Bug::overwrites_source && bug != Bug::ends_unread)
        bulk_wait<0>();
      const bool passes = bug != Bug::no_pass && bug != Bug::overwrites_source && bug != Bug::ends_unread;
      if (passes) pass_turn(bug == Bug::other_counter ? counters + 1 + kTiles : counter);
    }
    if (bug == Bug::ends_unread) return;
    __syncthreads();
  }
}

struct Planted {
  Bug bug;
  std::vector<std::string> said;  // one of them, in each order
};
const std::vector<Planted>& planted() {
  static const std::vector<Planted> list = {
      {Bug::no_turn_wait, {"pass_turn of a counter that the thread has not waited for"}},
      {Bug::read_wait, {"pass_turn before a bulk_wait, not bulk_wait_read, has covered the bulk_store"}},
      {Bug::no_write_wait, {"pass_turn before a bulk_wait, not bulk_wait_read, has covered the bulk_store"}},
      {Bug::uncommitted, {"pass_turn before a bulk_wait, not bulk_wait_read, has covered the bulk_store"}},
      {Bug::no_pass, {"wait_turn for 1 of a counter at 0"}},
      {Bug::waits_for_later, {"wait_turn for 1 of a counter at 0"}},
      {Bug::waits_for_earlier, {"wait_turn for 0 of a counter that is at 1"}},
      {Bug::added_before_turn, {"wait_turn while a bulk_store"}},
      {Bug::other_counter, {"pass_turn of a counter that the thread has not waited for"}},
      {Bug::no_global_fence, {"bulk_store in a turn without a fence_async_global since wait_turn"}},
      {Bug::no_shared_fence, {"without a fence_async_shared of its own since"}},
      {Bug::fence_by_another, {"bulk_store reads byte 1152, which thread 32 wrote without a fence_async_shared"}},
      {Bug::plain_store, {"which was written by a plain store"}},
      {Bug::no_barrier_before_add,
       {"race: bulk_store reads", "race: store_shared writes", "without a fence_async_shared of its own since"}},
      {Bug::overwrites_source, {"race: store_shared writes"}},
      {Bug::ends_unread, {"ends before a bulk_wait_read has covered its bulk_store"}},
      {Bug::odd_bytes, {"bulk_load of 1016 bytes, expected a multiple of 16 above 0"}},
      {Bug::no_bytes, {"bulk_load of 0 bytes, expected a multiple of 16 above 0"}},
      {Bug::misaligned_shared, {"misaligned address"}},
      {Bug::misaligned_global, {"misaligned address"}},
      {Bug::beyond_shared, {"bulk_load: the range ends 16 bytes beyond the block's shared memory"}},
      {Bug::expects_too_little, {"is in flight: the phase expects too few bytes", "tx-count -16"}},
      {Bug::expects_too_much, {"1 of 1 arrivals, tx-count 16, no copy in flight, 64 threads wait"}},
      {Bug::loads_over_unfenced, {"bulk_load overwrites byte 1024, which was written without a fence_async_shared"}},
  };
  return list;
}

struct Run {
  Aligned<float> parts = Aligned<float>(kBlocks * kTiles * kNumbers), sums = Aligned<float>(kTiles * kNumbers);
  Run() {
    std::uint32_t state = 9;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      state = state * 1664525u + 1013904223u;
      parts[i] = float(std::int32_t(state)) * 0x1p-31f;
    }
  }
  void launch_with(Bug bug) {
    std::vector<int> counters(2 + kTiles);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = 99;
    launch(sum_in_turn, kBlocks, 64, kShared, static_cast<const float*>(parts.data()), sums.data(), counters.data(),
           bug);
  }
  int wrong() {
    int count = 0;
    for (std::size_t i = 0; i < sums.size(); ++i) {
      float sum = 2 * parts[i];
      for (std::size_t b = 1; b < kBlocks; ++b) sum += 2 * parts[b * sums.size() + i];
      count += sums[i] != sum;
    }
    return count;
  }
};

__global__ void add_once(float* to, float term) {
  LEVIN_SHARED_DYNAMIC(float, shared);
  store_shared(shared + threadIdx.x, term);
  fence_async_shared();
  __syncthreads();
  if (threadIdx.x != 0) return;
  bulk_reduce_add(to, shared, 128);
  bulk_commit();
  bulk_wait<0>();
}

}  // namespace

TEST_CASE("simt: blocks that add to memory in turn give the sums of one order, in every schedule") {
  Run run;
  in_every_order([&] {
    run.launch_with(Bug::none);
    CHECK(run.wrong() == 0);
  });
}

TEST_CASE("simt: each bug planted in blocks that add in turn is reported in every order, and the next launch works") {
  Run run;
  for (const auto& [bug, said] : planted()) {
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

TEST_CASE("simt: bulk_reduce_add rounds each sum to nearest and takes subnormal numbers for 0") {
  const auto sum = [](float before, float term) {
    Aligned<float> to(32, before);
    launch(add_once, 1, 32, 128, to.data(), term);
    CHECK(std::count_if(to.data(), to.data() + 32, [&](float x) { return x == to[0] || std::isnan(x); }) == 32);
    return to[0];
  };
  in_every_order([&] {
    CHECK(sum(1, 0x1p-24f) == 1);  // a tie, to even
    CHECK(sum(1, 0x1.8p-24f) == 1 + 0x1p-23f);
    CHECK(sum(0, 0x1p-127f) == 0);
    CHECK(sum(0x1p-127f, 1) == 1);
    CHECK(sum(0x1.8p-126f, -0x1p-126f) == 0);
    CHECK(std::isnan(sum(INFINITY, -INFINITY)));
  });
}

TEST_CASE("simt: a linear copy beyond the end of global memory is reported where AddressSanitizer knows it") {
  if (!levin::test::kAddressSanitizer) return levin::test::skip("needs -Db_sanitize=address");
  std::vector<float> to(28);  // add_once adds 32
  in_every_order([&] {
    const std::string message = message_of<InternalError>([&] { launch(add_once, 1, 32, 128, to.data(), 1.0f); });
    CHECK(has(message, "bulk_reduce_add: not all of the 128 bytes of global memory are there"));
  });
}
