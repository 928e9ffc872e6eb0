// Barriers that count arrivals and bytes (PTX ISA, "mbarrier"), named barriers, and the registers of warpgroups.
#include <algorithm>
#include <string>

#include "kernels/simt/async.h"
#include "levin/error.h"

namespace levin::simt {

namespace {
constexpr std::uint64_t kWord = std::uint64_t{0x62617272} << 32;  // above the number of a barrier
int number_of(const Barrier& barrier) { return int(barrier.word & 0xffffffffu); }
}  // namespace

void Async::init(Barrier& barrier, unsigned arrivals, Site at) {
  enter();
  range_of(&barrier, sizeof barrier, "Barrier::init", at);
  if (arrivals < 1 || arrivals >= 1u << 20) {
    engine_.fail_thread("Barrier::init of " + text(arrivals) + " arrivals, expected 1 to 1048575", at);
  }
  for (const BarrierState& known : barriers_) {
    if (known.word == &barrier) engine_.fail_thread("Barrier::init of a barrier that is in use", at);
  }
  barrier.word = kWord + barriers_.size();
  barriers_.push_back({.word = &barrier,
                       .expected = arrivals,
                       .pending = arrivals,
                       .agent = add_agent(),
                       .init_warp = warp_,
                       .seen = std::vector<int>(threads_.size(), -1),
                       .at = at});
}

void Async::fence_init() {
  enter();
  for (BarrierState& barrier : barriers_) {
    if (barrier.init_warp == warp_) barrier.init_value = clock().of(past_of(warp_));
  }
  engine_.yield();
}

BarrierState& Async::state_of(const Barrier& barrier, Async& from, const char* what, Site at) {
  const auto found =
      std::find_if(barriers_.begin(), barriers_.end(), [&](const BarrierState& b) { return b.word == &barrier; });
  if (found == barriers_.end()) {
    if (const Async* const holder = holder_of(&barrier); holder != nullptr && holder != this) {
      engine_.fail_thread(std::string(what) + " of a barrier of rank " + text(holder->block_.rank) +
                              ": another block arrives by remote() alone, and cannot wait",
                          at);
    }
    engine_.fail_thread(std::string(what) + " of a barrier" + in_rank(from) + " that was not initialised", at);
  }
  if (barrier.word != kWord + std::uint64_t(found - barriers_.begin())) {
    engine_.fail_thread(std::string(what) + " of a barrier" + in_rank(from) + " whose word was overwritten", at);
  }
  if (found->init_value == 0 || from.clock().of(past_of(found->init_warp)) < found->init_value) {
    engine_.fail_thread(std::string(what) + " of a barrier" + in_rank(from) + ", initialised at " +
                            site_text(found->at) + ", before fence_barrier_init and a barrier of the " +
                            (&from == this ? "block" : "cluster"),
                        at);
  }
  return *found;
}

void Async::arrive(Barrier& barrier, std::int64_t bytes, const char* what, Site at) {
  enter();
  BarrierState& state = state_of(barrier, what, at);
  take_arrival(state, bytes, what, at);
  release(state.gathering);
  try_phase(state);
  engine_.yield();
}

// Without what the arrival brings to the clock; try_phase follows.
void Async::take_arrival(BarrierState& state, std::int64_t bytes, const char* what, Site at) {
  if (state.pending == 0) {
    engine_.fail_thread(std::string(what) + ": more than the " + text(state.expected) + " arrivals of phase " +
                            text(state.phase) + " of the barrier initialised at " + site_text(state.at),
                        at);
  }
  count_bytes(state, bytes);
  --state.pending;
}

void Async::count_bytes(BarrierState& state, std::int64_t bytes) const {
  constexpr std::int64_t kMost = (1 << 20) - 1;  // PTX ISA, "Valid range for tx-count"
  state.bytes += bytes;
  if (state.bytes >= -kMost && state.bytes <= kMost) return;
  fail_block("the tx-count of the barrier initialised at " + site_text(state.at) + " is " + text(state.bytes) +
             ", beyond " + text(kMost));
}

void Async::try_phase(BarrierState& state) {
  if (state.pending != 0 || state.bytes != 0) return;
  const int number = number_of(*state.word);
  for (const Copy& copy : copies_) {
    if (!copy.loads || copy.barrier != number || copy.phase != state.phase) continue;
    fail_block("phase " + text(state.phase) + " of the barrier initialised at " + site_text(state.at) +
               " is complete while a copy of " + text(copy.range.end - copy.range.begin) + " bytes, issued at " +
               site_text(copy.at) + ", is in flight: the phase expects too few bytes or arrivals");
  }
  ++state.phase;
  state.pending = state.expected;
  state.released = std::move(state.gathering);
  state.gathering = {};
  wake();
}

void Async::wait(Barrier& barrier, int phase, Site at) {
  enter();
  BarrierState& state = state_of(barrier, "Barrier::wait", at);
  const auto refuse = [&](const std::string& why) {
    engine_.fail_thread("Barrier::wait(" + text(phase) + ") " + why + "; the barrier, initialised at " +
                            site_text(state.at) + ", is in phase " + text(state.phase),
                        at);
  };
  int& seen = state.seen[std::size_t(index_)];
  if (phase > state.phase) refuse("is for a phase that has not begun: its parity stands for an earlier one");
  if (phase < state.phase - 1) refuse("is for a phase long past: its parity stands for a later one");
  if (phase >= 0 && phase <= seen) refuse("is for a phase that the thread has waited for");
  park({Condition::Kind::phase, number_of(barrier), phase}, "Barrier::wait", at);
}

void Async::block_barrier() {
  Clock all;
  for (std::size_t w = 0; w < clocks_.size(); ++w) all.join(clocks_[w]);
  for (std::size_t w = 0; w < clocks_.size(); ++w) {
    clocks_[w] = all;
    advance_clock(int(w));
  }
}

void Async::named(int id, int threads, Site at) {
  enter();
  NamedBarrier& barrier = named_[id];
  if (threads < 32 || threads % 32 != 0 || threads > int(threads_.size())) {
    engine_.fail_thread("named_barrier<" + text(id) + "> of " + text(threads) +
                            " threads, expected a multiple of 32 up to the block's " + text(threads_.size()),
                        at);
  }
  if (barrier.waiting != 0 && barrier.threads != threads) {
    engine_.fail_thread(
        "named_barrier<" + text(id) + "> of " + text(threads) + " threads, others wait for " + text(barrier.threads),
        at);
  }
  barrier.threads = threads;
  release(barrier.gathering);
  const int turn = barrier.turn;
  if (++barrier.waiting == threads) {
    barrier.waiting = 0;
    ++barrier.turn;
    barrier.released = std::move(barrier.gathering);
    barrier.gathering = {};
    wake();
  }
  park({Condition::Kind::named, id, turn + 1}, "named_barrier", at);
}

void Async::set_registers(int registers, bool take, Site at) {
  enter();
  const char* const what = take ? "registers_take" : "registers_give";
  Warpgroup& group = warpgroups_[std::size_t(index_ / kWarpgroup)];
  if (group.callers != 0 && (group.wanted != registers || group.takes != take)) {
    engine_.fail_thread(
        std::string(what) + "<" + text(registers) + ">: other warps of the warpgroup ask for " + text(group.wanted),
        at);
  }
  if (take ? registers < group.registers : registers > group.registers) {
    engine_.fail_thread(std::string(what) + "<" + text(registers) + "> of a warpgroup that has " +
                            text(group.registers) + " registers a thread",
                        at);
  }
  group.wanted = registers;
  group.takes = take;
  const int turn = group.turn;
  ++group.callers;
  for (Warpgroup& any : warpgroups_) {  // what one gives another may wait for
    if (try_registers(any)) wake();
  }
  park({Condition::Kind::registers, index_ / kWarpgroup, turn + 1}, what, at);
  engine_.yield();
}

bool Async::try_registers(Warpgroup& group) {
  if (group.callers < kWarpgroup || pool_ + group.registers < group.wanted) return false;
  pool_ += group.registers - group.wanted;
  group.registers = group.wanted;
  group.callers = 0;
  ++group.turn;
  return true;
}

// ---- The calls of hopper.h

void Barrier::init(unsigned arrivals, Site at) { in_kernel("Barrier::init").async(at).init(*this, arrivals, at); }
void Barrier::arrive(Site at) { in_kernel("Barrier::arrive").async(at).arrive(*this, 0, "Barrier::arrive", at); }
void Barrier::arrive_expect(unsigned bytes, Site at) {
  in_kernel("Barrier::arrive_expect").async(at).arrive(*this, bytes, "Barrier::arrive_expect", at);
}
void Barrier::wait(int phase, Site at) { in_kernel("Barrier::wait").async(at).wait(*this, phase, at); }
void fence_barrier_init(Site at) { in_kernel("fence_barrier_init").async(at).fence_init(); }
void fence_async_shared(Site at) { in_kernel("fence_async_shared").async(at).fence(); }
void named_barrier(int id, int threads, Site at) { in_kernel("named_barrier").async(at).named(id, threads, at); }
void set_registers(int registers, bool take, Site at) {
  in_kernel("setmaxnreg").async(at).set_registers(registers, take, at);
}
unsigned shared_address(const void* p) { return in_kernel("shared_address").async(Site::current()).window_address(p); }

}  // namespace levin::simt
