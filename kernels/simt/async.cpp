// Which copy or product completes next, what waits for it, and what is said of a block that cannot continue.
#include "kernels/simt/async.h"

#include <algorithm>
#include <string>

#include "levin/error.h"

namespace levin::simt {

namespace {
constexpr int kMostRegisters = 65536;  // of a multiprocessor
}

Async::Async(Engine& engine, Block& block, Cluster& cluster, std::size_t bytes, int threads, Completion completion,
             std::uint64_t seed)
    : engine_(engine),
      block_(block),
      cluster_(cluster),
      first_agent_(block.rank * cluster.kinds * cluster.warps),
      shared_(block.dynamic),
      view_(bytes, std::byte{0xff}),
      completion_(completion),
      random_(seed),
      threads_(std::size_t(threads)),
      clocks_(std::size_t(cluster.warps)),
      pages_(bytes / kPage + 1),
      warpgroups_(std::size_t((threads + kWarpgroup - 1) / kWarpgroup)) {
  for (int w = 0; w < cluster.warps; ++w) advance_clock(w);
  for (Warpgroup& group : warpgroups_) group.registers = std::min(248, kMostRegisters / threads / 8 * 8);
  cluster.blocks.push_back(this);
  if (engine.blocks_of_cluster() > 1) published_ = view_;
}

void Async::enter() {
  index_ = engine_.running_index();
  warp_ = index_ / kLanes;
}

void Async::fail_block(const std::string& what) const { engine_.fail_block(block_, what); }

// ---- Waits

bool Async::met(const Condition& c, int thread) const {
  const AsyncThread& t = threads_[std::size_t(thread)];
  const auto none_left = [&](const std::vector<int>& left) {
    return std::all_of(left.begin(), left.begin() + c.value, [](int n) { return n == 0; });
  };
  switch (c.kind) {
    case Condition::Kind::phase: return barriers_[std::size_t(c.index)].phase > c.value;
    case Condition::Kind::bulk_read: return none_left(t.unread);
    case Condition::Kind::bulk_done: return none_left(t.unwritten);
    case Condition::Kind::products:
      return c.value == 0 || warpgroups_[std::size_t(c.index)].completed >= t.ops_at_commit[std::size_t(c.value) - 1];
    case Condition::Kind::registers: return warpgroups_[std::size_t(c.index)].turn >= c.value;
    case Condition::Kind::named: return named_[c.index].turn >= c.value;
    case Condition::Kind::counter: return __atomic_load_n(c.counter, __ATOMIC_ACQUIRE) == c.value;
    case Condition::Kind::cluster: return cluster_.phase >= c.value;
  }
  return true;
}

void Async::settle(const Condition& c, int thread) {
  AsyncThread& t = threads_[std::size_t(thread)];
  const int warp = thread / kLanes;
  Clock& knows = clocks_[std::size_t(warp)];
  switch (c.kind) {
    case Condition::Kind::phase: {
      BarrierState& state = barriers_[std::size_t(c.index)];
      state.seen[std::size_t(thread)] = std::max(state.seen[std::size_t(thread)], c.value);
      if (c.value < 0) return;
      knows.join(state.released);
      knows.know(state.agent, std::uint32_t(c.value) + 1);
      for (const Landing& landing : state.landing) {
        if (landing.number <= c.value) land(landing);
      }
      std::erase_if(state.landing, [&](const Landing& l) { return l.number <= c.value; });
      return;
    }
    case Condition::Kind::bulk_done: t.bulk_done = std::max(t.bulk_done, c.value); [[fallthrough]];
    case Condition::Kind::bulk_read:
      t.bulk_waited = std::max(t.bulk_waited, c.value);
      if (t.bulk_agent >= 0) knows.know(t.bulk_agent, std::uint32_t(c.value));
      return;
    case Condition::Kind::products: {
      knows.know(products_of(warp), std::uint32_t(c.value));
      t.ops_waited = std::max(t.ops_waited, c.value == 0 ? 0 : t.ops_at_commit[std::size_t(c.value) - 1]);
      for (Registers& array : t.arrays) {
        if (array.in_flight && array.last_op < t.ops_waited) give_array(array, t.op_at);
      }
      return;
    }
    case Condition::Kind::registers: return;
    case Condition::Kind::counter:
      t.turn = c.counter;
      t.turn_fenced = false;
      return;
    case Condition::Kind::named: knows.join(named_[c.index].released); return;
    case Condition::Kind::cluster:
      t.cluster_waits = c.value;
      knows.join(cluster_.released);
      land_stores(knows);
      return;
  }
}

// The running thread waits until the condition is met.
void Async::park(Condition condition, const char* what, Site at) {
  const int thread = index_;
  if (met(condition, thread)) return settle(condition, thread);
  self().parked = true;
  self().condition = condition;
  engine_.park(what, at);
  enter();
}

void Async::wake() {
  for (std::size_t i = 0; i < threads_.size(); ++i) {
    AsyncThread& thread = threads_[i];
    if (!thread.parked || !met(thread.condition, int(i))) continue;
    thread.parked = false;
    settle(thread.condition, int(i));
    engine_.unpark(block_, int(i));
  }
}

// ---- Completion

std::vector<Async::Pending> Async::pending() const {
  std::vector<Pending> list;
  for (std::size_t i = 0; i < copies_.size(); ++i) {
    const Copy& copy = copies_[i];
    // Bulk groups of a thread complete in order; the stores of one have none.
    const bool blocked = !copy.loads && std::any_of(copies_.begin(), copies_.end(), [&](const Copy& other) {
      return !other.loads && other.thread == copy.thread && other.group < copy.group &&
             (!copy.was_read ? !other.was_read : true);
    });
    if (!blocked) list.push_back({int(i), 0});
  }
  for (std::size_t g = 0; g < warpgroups_.size(); ++g) {
    const Warpgroup& group = warpgroups_[g];
    if (!group.ops.empty() && group.ops.front().callers == kWarpgroup) list.push_back({-1, int(g)});
  }
  return list;
}

void Async::complete(const Pending& op, bool in_parts) {
  if (op.copy >= 0) {
    advance(op.copy, in_parts);
  } else {
    finish(op.warpgroup);
  }
}

void Async::at_switch() {
  if (completion_ != Completion::random) return;
  random_ = random_ * 6364136223846793005u + 1442695040888963407u;
  if (random_ >> 62 != 0) return;
  const std::vector<Pending> list = pending();
  if (!list.empty()) complete(list[std::size_t(random_ >> 32) % list.size()], true);
}

bool Async::complete_when_idle() {
  const std::vector<Pending> list = pending();
  if (list.empty()) return false;
  complete(completion_ == Completion::late_newest ? list.back() : list.front(), completion_ == Completion::random);
  return true;
}

// ---- Ends

void Async::thread_ends() {
  enter();
  const AsyncThread& thread = self();
  if (thread.bulk_open != 0) {
    engine_.fail_thread(std::string("ends with a ") + thread.bulk_what + " that no bulk_commit follows",
                        thread.bulk_at);
  }
  if (thread.bulk_waited < thread.bulk_groups) {
    engine_.fail_thread(std::string("ends before a bulk_wait_read has covered its ") + thread.bulk_what,
                        thread.bulk_at);
  }
  if (thread.ops_waited < thread.ops)
    engine_.fail_thread("ends before a wgmma_wait has covered its wgmma", thread.op_at);
}

void Async::block_ends() {
  while (complete_when_idle()) {}
  check_landed();
}

void Async::check_landed() const {
  for (const BarrierState& barrier : barriers_) {
    if (barrier.landing.empty()) continue;
    fail_block("the block ends with a copy to shared memory that no thread has waited for, in phase " +
               text(barrier.landing.front().number) + " of the barrier initialised at " + site_text(barrier.at));
  }
}

std::string Async::stuck() const {
  std::string out;
  for (std::size_t b = 0; b < barriers_.size(); ++b) {
    const BarrierState& barrier = barriers_[b];
    int waiting = 0;
    for (const AsyncThread& thread : threads_) {
      waiting += thread.parked && thread.condition.kind == Condition::Kind::phase && thread.condition.index == int(b);
    }
    const std::int64_t arrived = barrier.expected - barrier.pending;
    if (waiting == 0 && arrived == 0 && barrier.bytes == 0) continue;
    out += "; barrier of " + site_text(barrier.at) + ", at byte " +
           text(reinterpret_cast<const std::byte*>(barrier.word) - shared_) + ": phase " + text(barrier.phase) + ", " +
           text(arrived) + " of " + text(barrier.expected) + " arrivals, tx-count " + text(barrier.bytes) +
           ", no copy in flight, " + text(waiting) + " threads wait";
  }
  for (const AsyncThread& thread : threads_) {
    if (!thread.parked || thread.condition.kind != Condition::Kind::counter) continue;
    out += "; wait_turn for " + text(thread.condition.value) + " of a counter at " + text(*thread.condition.counter);
  }
  const auto in_cluster = [](const AsyncThread& t) { return t.parked && t.condition.kind == Condition::Kind::cluster; };
  if (std::any_of(threads_.begin(), threads_.end(), in_cluster)) {
    out += "; the barrier of the cluster: " + text(cluster_.arrived) + " of " + text(engine_.threads_left()) +
           " threads have arrived";
  }
  for (int id = 1; id < 16; ++id) {
    if (named_[id].waiting == 0) continue;
    out += "; named_barrier<" + text(id) + ">: " + text(named_[id].waiting) + " of " + text(named_[id].threads) +
           " threads";
  }
  for (std::size_t g = 0; g < warpgroups_.size(); ++g) {
    const Warpgroup& group = warpgroups_[g];
    const std::string name = "; warpgroup " + text(g);
    if (group.callers != 0) {
      out += name + ": " + text(group.callers) + " of 128 threads ask for " + text(group.wanted) +
             " registers, it has " + text(group.registers) + " a thread, the block's pool " + text(pool_);
    }
    if (!group.ops.empty()) out += name + ": wgmma of " + text(group.ops.front().callers) + " of 128 threads";
  }
  return out;
}

}  // namespace levin::simt
