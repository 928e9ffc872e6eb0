// Kernels of clusters with a bug planted: the shim must catch each, in every order.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "tests/simt/cluster.h"
#include "tests/skip.h"

using namespace levin;
using namespace levin::kernels;
using namespace levin::kernels::gpu;
using levin::test::Aligned;
using levin::test::ClusterBug;
using levin::test::has;
using levin::test::in_every_order;
using levin::test::kAddressSanitizer;
using levin::test::launch;
using levin::test::map_of;
using levin::test::message_of;

namespace {

struct Planted {
  ClusterBug bug;
  std::vector<std::string> said;  // one of them, in each order
};

// Runs each bug in every order, and the right kernel after it.
template <class F, class R>
void check_planted(const std::vector<Planted>& planted, F launch_with, R is_right) {
  for (const auto& [bug, said] : planted) {
    CAPTURE(int(bug));
    in_every_order([&, &bug = bug, &said = said] {
      const std::string message = message_of<InternalError>([&] { launch_with(bug); });
      CAPTURE(message);
      CHECK(std::any_of(said.begin(), said.end(), [&](const std::string& part) { return has(message, part); }));
    });
    launch_with(ClusterBug::none);
    CHECK(is_right());
  }
}

struct Moments {
  std::vector<float> x = std::vector<float>(3 * 128), out = std::vector<float>(2 * 3 * 2);
  Moments() {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = float(int(i * 7 % 11) - 5);
  }
  void launch_with(ClusterBug bug) {
    std::fill(out.begin(), out.end(), -1.0f);
    launch(
        levin::test::row_moments,
        {.blocks = 2, .threads = levin::test::kMomentThreads, .shared_bytes = levin::test::kMomentBytes, .cluster = 2},
        static_cast<const float*>(x.data()), out.data(), 3, 128, bug);
  }
  bool is_right() {
    for (std::size_t row = 0; row < 3; ++row) {
      float mean = 0, squares = 0;
      for (std::size_t i = 0; i < 128; ++i) mean += x[row * 128 + i] / 128;
      for (std::size_t i = 0; i < 128; ++i) squares += (x[row * 128 + i] - mean) * (x[row * 128 + i] - mean);
      for (std::size_t rank = 0; rank < 2; ++rank) {
        if (!(std::fabs(out[2 * (row * 2 + rank)] - mean) < 1e-5f)) return false;
        if (!(std::fabs(out[2 * (row * 2 + rank) + 1] - squares) < 1e-2f)) return false;
      }
    }
    return true;
  }
};

struct Tiles {
  Aligned<f16> a = Aligned<f16>(128 * levin::test::kTileDepth), b = Aligned<f16>(64 * levin::test::kTileDepth);
  std::vector<float> y = std::vector<float>(128 * 64), right = y;
  std::vector<Barrier*> smuggled = std::vector<Barrier*>(2);
  Tiles() {
    constexpr std::size_t kDepth = levin::test::kTileDepth;
    levin::test::fill_integers(a, 1);
    levin::test::fill_integers(b, 2);
    for (std::size_t i = 0; i < 128; ++i) {
      for (std::size_t j = 0; j < 64; ++j) {
        for (std::size_t k = 0; k < kDepth; ++k)
          right[i * 64 + j] += float(a[i * kDepth + k]) * float(b[j * kDepth + k]);
      }
    }
  }
  void launch_with(ClusterBug bug) {
    constexpr int kDepth = levin::test::kTileDepth;
    const levin::test::TileMaps maps{map_of(a.data(), kDepth, 128, 64, 64), map_of(b.data(), kDepth, 64, 64, 32)};
    std::fill(y.begin(), y.end(), -1.0f);
    launch(levin::test::shared_tile,
           {.blocks = 2, .threads = 160, .shared_bytes = levin::test::kTileShared, .cluster = 2}, maps, y.data(),
           smuggled.data(), bug);
  }
  bool is_right() { return y == right; }
};

// Each block writes a number, loads that of the next, and sends its own to it.
enum class ShareBug : std::uint8_t {
  none,
  no_sync_before_load,
  relaxed_before_load,
  written_after_sync,
  stores_before_begin,
  no_sync_after_store,
  relaxed_after_store,
  two_store,  // to one place
  overwrites_store,
  overwrites_loaded,  // with what it is
  no_last_sync,
  ends_before_access,
  arrives_twice,
  waits_without_arrival,
  half_a_warp_arrives,
  one_block_skips_sync,
  outside_of_memory,
  misaligned,
};
__global__ void share(int* out, ShareBug bug) {
  LEVIN_SHARED_DYNAMIC(int, own);
  const int rank = cluster_rank(), size = cluster_size(), next = (rank + 1) % size, thread = int(threadIdx.x);
  if (bug == ShareBug::stores_before_begin && thread == 0) remote(own, next).store(1);
  if (bug == ShareBug::written_after_sync) cluster_sync();
  if (thread < 16) own[thread] = 10 * rank + thread;
  if (bug == ShareBug::one_block_skips_sync && rank == 1) {
    __syncthreads();
  } else if (bug == ShareBug::relaxed_before_load) {
    cluster_arrive_relaxed();
    cluster_wait();
  } else if (bug == ShareBug::arrives_twice) {
    cluster_arrive();
    cluster_arrive();
  } else if (bug == ShareBug::waits_without_arrival) {
    cluster_wait();
  } else if (bug == ShareBug::half_a_warp_arrives) {
    if (thread < 16) cluster_arrive();
    cluster_wait();
  } else if (bug != ShareBug::no_sync_before_load && bug != ShareBug::written_after_sync) {
    cluster_sync();
  }
  if (bug == ShareBug::ends_before_access && rank == 1) return;
  if (bug == ShareBug::overwrites_loaded && rank == 0 && thread == 40) store_shared(own, 10 * rank);
  int seen = 0;
  if (thread < 16) {
    const int skew = bug == ShareBug::misaligned ? 2 : 0;
    int* const from = reinterpret_cast<int*>(reinterpret_cast<unsigned char*>(own + thread) + skew);
    seen = remote(bug == ShareBug::outside_of_memory ? own + 64 : from, next).load();
  }
  if (bug == ShareBug::no_last_sync) return;
  if (thread < 16) remote(own + 16 + (bug == ShareBug::two_store ? thread / 2 : thread), next).store(rank);
  if (bug == ShareBug::two_store && thread == 33) remote(own + 16, next).store(rank);
  if (bug == ShareBug::overwrites_store && thread == 0) store_shared(own + 16, 5);
  if (bug == ShareBug::relaxed_after_store) {
    cluster_arrive_relaxed();
    cluster_wait();
  } else if (bug != ShareBug::no_sync_after_store) {
    cluster_sync();
  }
  if (thread < 16) out[rank * 16 + thread] = 100 * seen + own[16 + thread];
  cluster_sync();
}
// One block waits for what never comes, the other for the first.
__global__ void one_waits() {
  LEVIN_SHARED_DYNAMIC(unsigned char, bytes);
  Barrier* const never = reinterpret_cast<Barrier*>(bytes);
  if (threadIdx.x == 0) {
    never->init(1);
    fence_barrier_init();
  }
  cluster_sync();
  if (cluster_rank() == 1) never->wait(0);
  if (cluster_rank() == 2) return;
  cluster_sync();
}

struct PlantedShare {
  ShareBug bug;
  std::vector<std::string> said;
};

void launch_share(ShareBug bug, std::vector<int>& out, unsigned size = 2) {
  out.assign(16 * size, -1);
  launch(share, {.blocks = size, .threads = 64, .shared_bytes = 256, .cluster = size}, out.data(), bug);
}
bool is_right(const std::vector<int>& out) {
  const int size = int(out.size()) / 16;
  for (int rank = 0; rank < size; ++rank) {
    for (int i = 0; i < 16; ++i) {
      const int want = 100 * (10 * ((rank + 1) % size) + i) + (rank + size - 1) % size;
      if (out[std::size_t(rank * 16 + i)] != want) return false;
    }
  }
  return true;
}

}  // namespace

TEST_CASE("simt: each bug planted in an exchange between blocks is reported in every order") {
  const std::vector<Planted> planted = {
      {ClusterBug::expects_too_much, {"1 of 1 arrivals, tx-count 4, no copy in flight, 64 threads wait"}},
      {ClusterBug::one_barrier, {"race: store_remote writes"}},
      {ClusterBug::one_slot, {"race: store_remote writes shared memory at byte 64, which store_remote, "}},
      {ClusterBug::no_first_barrier, {"before fence_barrier_init and a barrier of the cluster", "was not initialised"}},
      {ClusterBug::no_init_fence, {"before fence_barrier_init and a barrier of the"}},
      {ClusterBug::other_rank_misses, {"1 of 1 arrivals, tx-count 4, no copy in flight, 64 threads wait"}},
      {ClusterBug::rank_outside, {"store_remote: rank 2 of a cluster of 2 blocks"}},
      {ClusterBug::value_misaligned, {"misaligned address: an access of 8 bytes"}},
  };
  Moments run;
  check_planted(
      planted, [&](ClusterBug bug) { run.launch_with(bug); }, [&] { return run.is_right(); });
}

TEST_CASE("simt: each bug planted in copies to all blocks of a cluster is reported in every order") {
  const std::vector<Planted> planted = {
      {ClusterBug::peer_expects_nothing, {"race: wgmma reads", "is in flight: the phase expects", "no copy in flight"}},
      {ClusterBug::peer_expects_half, {"race: wgmma reads", "is in flight: the phase expects", "no copy in flight"}},
      {ClusterBug::frees_own_alone, {"race: tma_load writes"}},
      {ClusterBug::no_empty_wait, {"race: tma_load writes", "more than the 1 arrivals"}},
      {ClusterBug::early_release, {"race: tma_load writes", "race: wgmma reads", "long past"}},
      {ClusterBug::mask_outside, {"tma_load: rank 3 of a cluster of 2 blocks"}},
      {ClusterBug::mask_empty, {"tma_load for no block of the cluster"}},
      {ClusterBug::no_last_barrier, {"has exited, and its memory with it", "and nothing orders the remote arrive"}},
      {ClusterBug::waits_for_remote, {"Barrier::wait of a barrier of rank 1: another block arrives by remote() alone"}},
      {ClusterBug::arrives_twice, {"race: tma_load writes"}},
      {ClusterBug::copies_into_ended, {"has exited, and its memory with it", "and nothing orders the remote arrive"}},
      {ClusterBug::copy_unwaited, {"the block ends with a copy to shared memory that no thread has waited for"}},
  };
  Tiles run;
  check_planted(
      planted, [&](ClusterBug bug) { run.launch_with(bug); }, [&] { return run.is_right(); });
}

TEST_CASE("simt: each bug planted in loads and stores between blocks is reported in every order") {
  const std::vector<PlantedShare> planted = {
      {ShareBug::no_sync_before_load, {"may not have begun"}},
      {ShareBug::relaxed_before_load, {"which has been written since that block's last cluster_arrive"}},
      {ShareBug::written_after_sync, {"which has been written since that block's last cluster_arrive"}},
      {ShareBug::stores_before_begin, {"remote store before a barrier of the cluster: the block of rank"}},
      {ShareBug::two_store, {"race: remote store writes"}},
      {ShareBug::overwrites_store, {"race: "}},
      {ShareBug::overwrites_loaded,
       {"race: store_shared writes shared memory at byte 0, which remote load", "race: remote load reads"}},
      {ShareBug::no_last_sync, {"nothing orders the remote load of rank", "has exited"}},
      {ShareBug::ends_before_access, {"the block of rank 1 has exited", "nothing orders the remote"}},
      {ShareBug::arrives_twice, {"cluster_arrive a second time without a cluster_wait"}},
      {ShareBug::waits_without_arrival, {"cluster_wait without a cluster_arrive before it"}},
      {ShareBug::half_a_warp_arrives, {"waits in cluster_arrive, ", "cluster_wait without a cluster_arrive"}},
      {ShareBug::one_block_skips_sync, {"the block of rank 0 may not have begun"}},
      {ShareBug::outside_of_memory, {"remote load: the address is not in the block's dynamic shared memory"}},
      {ShareBug::misaligned, {"misaligned address: an access of 4 bytes"}},
  };
  std::vector<int> out;
  for (const auto& [bug, said] : planted) {
    CAPTURE(int(bug));
    in_every_order([&, &bug = bug, &said = said] {
      const std::string message = message_of<InternalError>([&] { launch_share(bug, out); });
      CAPTURE(message);
      CHECK(std::any_of(said.begin(), said.end(), [&](const std::string& part) { return has(message, part); }));
    });
    launch_share(ShareBug::none, out, 3);
    CHECK(is_right(out));
  }
}

TEST_CASE("simt: a cluster that cannot continue is reported with the state of each of its blocks") {
  in_every_order([] {
    const std::string message = message_of<InternalError>(
        [] { launch(one_waits, {.blocks = 3, .threads = 64, .shared_bytes = 16, .cluster = 3}); });
    CAPTURE(message);
    CHECK(has(message, "simt: test: block (0, 0, 0) and its cluster: rank 0: no thread can continue: 64 threads"));
    CHECK(has(message, "the barrier of the cluster: 64 of 128 threads have arrived; rank 1: no thread can continue"));
    CHECK(has(message, "phase 0, 0 of 1 arrivals, tx-count 0, no copy in flight, 64 threads wait; rank 2: has ended"));
  });
}

namespace {
// Bugs that a thread's plain read meets: AddressSanitizer ends the process at it. Otherwise it gives NaN, unless the
// shim reports the phase that ends too early.
enum class Hidden : std::uint8_t {
  read_before_wait,
  no_expect,
  expects_too_little,
  no_sync_after_store,
  relaxed_after_store,
  count
};
// Whether the results are right.
bool run_hidden(Hidden bug) {
  if (bug >= Hidden::no_sync_after_store) {
    std::vector<int> out;
    launch_share(bug == Hidden::relaxed_after_store ? ShareBug::relaxed_after_store : ShareBug::no_sync_after_store,
                 out);
    return is_right(out);
  }
  Moments run;
  run.launch_with(bug == Hidden::no_expect            ? ClusterBug::no_expect
                  : bug == Hidden::expects_too_little ? ClusterBug::expects_too_little
                                                      : ClusterBug::reads_before_wait);
  return run.is_right();
}
}  // namespace

TEST_CASE("simt: bytes that another block sends are read by no thread before it has waited for them") {
  if (const char* const bug = levin::test::planted_in_child()) {
    (void)run_hidden(Hidden(std::atoi(bug)));
    return;
  }
  for (int bug = 0; bug < int(Hidden::count); ++bug) {
    CAPTURE(bug);
    if (!kAddressSanitizer) {
      in_every_order([&] {
        bool is_right = true;
        const std::string message = message_of<InternalError>([&] { is_right = run_hidden(Hidden(bug)); });
        CHECK((message != "" || !is_right));
      });
      continue;
    }
    const levin::test::Child child = levin::test::child_with(
        bug, "simt: bytes that another block sends are read by no thread before it has waited for them");
    CHECK(!child.ended_well);
    INFO(child.output);
    CHECK((has(child.output, "AddressSanitizer") || has(child.output, "race: store_remote writes") ||
           has(child.output, "the phase expects too few bytes")));
    CHECK(has(child.output, Hidden(bug) < Hidden::no_sync_after_store ? "cluster.h" : "cluster_planted_test.cpp"));
  }
}
