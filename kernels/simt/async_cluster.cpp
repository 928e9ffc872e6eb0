// What blocks of a cluster do to each other: the cluster's barrier, and accesses to each other's shared memory (PTX
// ISA, "barrier.cluster", "mapa", "st.async"). Notes [Weak order between blocks] and [Views of other blocks].
#include <algorithm>
#include <cstring>
#include <string>

#include "kernels/simt/async.h"
#include "kernels/simt/poison.h"
#include "levin/error.h"

namespace levin::simt {

// ---- The barrier of the cluster

void Async::arrive_cluster(bool relaxed, Site at) {
  enter();
  AsyncThread& thread = self();
  if (thread.cluster_phase != thread.cluster_waits) {
    engine_.fail_thread("cluster_arrive a second time without a cluster_wait", at);
  }
  thread.cluster_phase = cluster_.phase + 1;
  relaxed ? release_weakly(cluster_.gathering) : release(cluster_.gathering);
  publishes_ = publishes_ || !relaxed;
  ++cluster_.arrived;
  try_cluster();
  engine_.yield();
}

void Async::wait_cluster(Site at) {
  enter();
  const AsyncThread& thread = self();
  if (thread.cluster_phase == thread.cluster_waits) {
    engine_.fail_thread("cluster_wait without a cluster_arrive before it", at);
  }
  park({Condition::Kind::cluster, 0, thread.cluster_phase}, "cluster_wait", at);
}

void Async::try_cluster() {
  if (cluster_.arrived == 0 || cluster_.arrived != engine_.threads_left()) return;
  cluster_.arrived = 0;
  ++cluster_.phase;
  cluster_.released = std::move(cluster_.gathering);
  cluster_.gathering = {};
  for (Async* const block : cluster_.blocks) block->publish();
  for (Async* const block : cluster_.blocks) block->wake();
}

void Async::thread_exits(int thread) {
  if (threads_[std::size_t(thread)].cluster_phase > cluster_.phase) --cluster_.arrived;
  try_cluster();
}

// Other blocks read what the bytes are at this moment.
void Async::publish() {
  if (!publishes_ || published_.empty()) return;
  publishes_ = false;
  unpoison_memory(shared_, view_.size());  // AddressSanitizer also checks what memmove reads
  std::copy(shared_, shared_ + published_.size(), published_.begin());
  const auto hidden = [&](const Range& range) { poison_memory(shared_ + range.begin, range.end - range.begin); };
  for (const BarrierState& barrier : barriers_) {
    for (const Landing& copy : barrier.landing) hidden(copy.range);
  }
  for (const Landing& store : stores_) {
    hidden(store.range);
    std::copy(store.bytes.begin(), store.bytes.end(), published_.begin() + long(store.range.begin));
  }
}

// ---- Whose memory

const Async* Async::holder_of(const void* p) const {
  const auto address = reinterpret_cast<std::uintptr_t>(p);
  for (const Async* const block : cluster_.blocks) {
    const auto begin = reinterpret_cast<std::uintptr_t>(block->shared_);
    if (address >= begin && address < begin + block->view_.size()) return block;
  }
  return nullptr;
}

std::string Async::in_rank(const Async& from) const { return &from == this ? "" : " of rank " + text(block_.rank); }

int Async::rank_in_cluster(int rank, const char* what, Site at) {
  const int blocks = engine_.blocks_of_cluster();
  if (rank < 0 || rank >= blocks) {
    engine_.fail_thread(std::string(what) + ": rank " + text(rank) + " of a cluster of " + text(blocks) + " blocks",
                        at);
  }
  return rank;
}

Async& Async::peer(int rank, const char* what, Site at) {
  Async& other = *cluster_.blocks[std::size_t(rank_in_cluster(rank, what, at))];
  if (other.has_ended_) {
    engine_.fail_thread(std::string(what) + ": the block of rank " + text(rank) + " has exited, and its memory with it",
                        at);
  }
  return other;
}

std::byte* Async::same_place(const void* p, const Async& other) const {
  return other.shared_ + (static_cast<const std::byte*>(p) - shared_);
}

void Async::touch(Async& owner, const char* what, Site at) {
  if (&owner == this) return;
  bool has_begun = false;
  for (int w = 0; w < cluster_.warps; ++w) has_begun = has_begun || clock().of(owner.past_of(w)) != 0;
  if (!has_begun) {
    engine_.fail_thread(std::string(what) + " before a barrier of the cluster: the block of rank " +
                            text(owner.block_.rank) + " may not have begun",
                        at);
  }
  const int agent = past_of(warp_);
  std::erase_if(owner.touches_, [&](const RemoteAccess& a) { return a.agent == agent; });
  owner.touches_.push_back({agent, clock().of(agent), what, block_.rank, at});
}

// ---- Accesses

void Async::load_remote(const void* from, std::size_t bytes, int rank, void* value, Site at) {
  constexpr const char* kWhat = "remote load";
  enter();
  const Range range = range_of(from, bytes, kWhat, at);
  check_aligned(from, bytes, at);
  Async& owner = peer(rank, kWhat, at);
  touch(owner, kWhat, at);
  owner.check(range, false, clock(), kWhat, at);
  owner.record({range, past_of(warp_), clock().of(past_of(warp_)), false, kWhat, at});
  if (&owner == this) {
    std::memcpy(value, from, bytes);
    return;
  }
  for (std::size_t i = range.begin; i < range.end; ++i) {
    const auto covers = [&](const Landing& store) { return store.range.begin <= i && i < store.range.end; };
    if (owner.shared_[i] == owner.published_[i] || std::any_of(owner.stores_.begin(), owner.stores_.end(), covers)) {
      continue;
    }
    engine_.fail_thread("remote load reads byte " + text(i) + " of rank " + text(rank) +
                            ", which has been written since that block's last cluster_arrive",
                        at);
  }
  std::memcpy(value, &owner.published_[range.begin], bytes);
}

void Async::store_remote(void* to, std::size_t bytes, int rank, const void* value, Site at) {
  constexpr const char* kWhat = "remote store";
  enter();
  const Range range = range_of(to, bytes, kWhat, at);
  check_aligned(to, bytes, at);
  Async& owner = peer(rank, kWhat, at);
  touch(owner, kWhat, at);
  owner.check(range, true, clock(), kWhat, at);
  const int agent = writes_of(warp_);
  owner.record({range, agent, clock().of(agent), true, kWhat, at});
  if (&owner == this) {
    std::memcpy(to, value, bytes);
    return;
  }
  const auto* const first = static_cast<const std::byte*>(value);
  owner.hide({int(clock().of(agent)), range, {first, first + bytes}, agent});
}

void Async::hide(Landing store) {
  std::copy(store.bytes.begin(), store.bytes.end(), published_.begin() + long(store.range.begin));
  std::erase_if(stores_, [&](const Landing& before) { return store.range.holds(before.range); });
  poison(store.range);
  stores_.push_back(std::move(store));
}

void Async::land_stores(const Clock& known) {
  std::erase_if(stores_, [&](const Landing& store) {
    if (known.of(store.agent) < std::uint32_t(store.number)) return false;
    land(store);
    return true;
  });
}

void Async::store_remote_async(void* to, std::size_t bytes, int rank, const void* value, Barrier& barrier, Site at) {
  constexpr const char* kWhat = "store_remote";
  enter();
  const Range range = range_of(to, bytes, kWhat, at);
  check_aligned(to, bytes, at);
  range_of(&barrier, sizeof barrier, kWhat, at);
  Async& other = peer(rank, kWhat, at);
  const auto& there = *reinterpret_cast<const Barrier*>(same_place(&barrier, other));
  release_weakly(other.state_of(there, *this, kWhat, at).gathering);
  const auto* const first = static_cast<const std::byte*>(value);
  other.start_load({.what = kWhat, .range = range, .at = at, .loads = true, .source = {first, first + bytes}}, there,
                   *this);
}

void Async::arrive_remote(Barrier& barrier, int rank, Site at) {
  constexpr const char* kWhat = "remote arrive";
  enter();
  range_of(&barrier, sizeof barrier, kWhat, at);
  Async& other = peer(rank, kWhat, at);
  const auto& there = *reinterpret_cast<const Barrier*>(same_place(&barrier, other));
  BarrierState& state = other.state_of(there, *this, kWhat, at);
  touch(other, kWhat, at);
  other.take_arrival(state, 0, kWhat, at);
  &other == this ? release(state.gathering) : release_weakly(state.gathering);
  other.try_phase(state);
  engine_.yield();
}

// ---- The end of a block

void Async::leave_cluster() {
  check_landed();
  Clock all;
  for (const Clock& clock : clocks_) all.join(clock);
  for (const RemoteAccess& access : touches_) {
    if (all.of(access.agent) >= access.value) continue;
    fail_block(std::string("the block ends, and nothing orders the ") + access.what + " of rank " + text(access.rank) +
               ", " + site_text(access.at) + ", before its end");
  }
  has_ended_ = true;
  poison_memory(shared_, view_.size());
}

// ---- The calls of hopper.h

namespace {
Async& aligned(const char* what, Site at) {
  Engine& e = in_kernel(what);
  e.warp_collective(e.lanes_left(), what, at, {}, nothing);
  return e.async_without_memory();
}
}  // namespace

int cluster_rank() { return in_kernel("cluster_rank").block().rank; }
int cluster_size() { return in_kernel("cluster_size").blocks_of_cluster(); }
void cluster_arrive(Site at) { aligned("cluster_arrive", at).arrive_cluster(false, at); }
void cluster_arrive_relaxed(Site at) { aligned("cluster_arrive_relaxed", at).arrive_cluster(true, at); }
void cluster_wait(Site at) { aligned("cluster_wait", at).wait_cluster(at); }
int rank_in_cluster(int rank, Site at) { return in_kernel("remote").async(at).rank_in_cluster(rank, "remote", at); }
void load_remote(const void* from, std::size_t bytes, int rank, void* value, Site at) {
  in_kernel("remote load").async(at).load_remote(from, bytes, rank, value, at);
}
void store_remote(void* to, std::size_t bytes, int rank, const void* value, Site at) {
  in_kernel("remote store").async(at).store_remote(to, bytes, rank, value, at);
}
void store_remote_async(void* to, std::size_t bytes, int rank, const void* value, Barrier& barrier, Site at) {
  in_kernel("store_remote").async(at).store_remote_async(to, bytes, rank, value, barrier, at);
}
void arrive_remote(Barrier& barrier, int rank, Site at) {
  in_kernel("remote arrive").async(at).arrive_remote(barrier, rank, at);
}
void tma_load(void* to, const kernels::TensorMap& map, BoxAt box, Barrier& barrier, unsigned ranks, Site at) {
  Engine& e = in_kernel("tma_load");
  if (ranks == 0) e.fail_thread("tma_load for no block of the cluster", at);
  e.async(at).load(to, map, box, barrier, ranks, at);
}

}  // namespace levin::simt
