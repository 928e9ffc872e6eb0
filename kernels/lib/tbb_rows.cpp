// The parallel_for seam over oneTBB. Waking a worker that sleeps takes longer than many kernels run, so a worker that
// has helped with a loop stays for a moment and waits for the next one, which reaches it through one cache line.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <tbb/global_control.h>
#include <tbb/info.h>
#include <tbb/task_arena.h>

#include "kernels/executor/cpu.h"
#include "tensor/device/cpus.h"

namespace levin::kernels {
namespace {

using Clock = std::chrono::steady_clock;

// How long a worker waits for the next loop before its thread goes back to TBB: longer than what stands between the
// kernels of a training step, short enough to be nothing beside a pause that a person or a disk makes.
constexpr std::chrono::microseconds kStay{100};

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// One loop: its chunks lie in as many equal shares as threads may come, and a thread that has finished its own share
// takes from the others'. The same thread thus meets the same part of the data in one loop after another, and a worker
// that comes late finds nothing to do. Lives on the stack of its caller.
struct Loop {
  static constexpr int kMostShares = 16;
  struct alignas(64) Share {
    std::atomic<int64_t> next;
    int64_t end;
  };

  Loop(int64_t n_, int64_t grain_, int64_t chunks, int threads, lib::ChunkBody body_, void* context_)
      : n(n_), grain(grain_), count(std::min(threads, kMostShares)), body(body_), context(context_) {
    for (int i = 0; i < count; ++i) {
      shares[static_cast<size_t>(i)].next.store(chunks * i / count, std::memory_order_relaxed);
      shares[static_cast<size_t>(i)].end = chunks * (i + 1) / count;
    }
  }

  void run(int thread) {
    for (int k = 0; k < count; ++k) {
      Share& share = shares[static_cast<size_t>((thread + k) % count)];
      for (int64_t i; (i = share.next.load(std::memory_order_relaxed)) < share.end;) {
        i = share.next.fetch_add(1, std::memory_order_relaxed);
        if (i >= share.end) break;
        try {
          const int64_t begin = i * grain;
          body(context, begin, n - begin < grain ? n : begin + grain);
        } catch (...) {
          if (!failed.exchange(true)) error = std::current_exception();
          for (int s = 0; s < count; ++s) {
            Share& other = shares[static_cast<size_t>(s)];
            other.next.store(other.end, std::memory_order_relaxed);
          }
        }
      }
    }
  }

  int64_t n, grain;
  int count;
  lib::ChunkBody body;
  void* context;
  std::atomic<bool> failed{false};
  std::exception_ptr error;
  alignas(64) std::atomic<int> left{0};  // workers that took the loop and are done with it
  std::array<Share, kMostShares> shares;
};

// The place of one worker: what it does, or the loop that waits there to be taken. The caller of a loop takes it back
// if no worker took it, so no loop waits for a thread that did not start (after fork there is none).
struct alignas(64) Place {
  static constexpr uintptr_t kEmpty = 0, kFree = 1, kBusy = 2;  // no worker; one waits or is on its way; one works
  std::atomic<uintptr_t> state{kEmpty};
};

struct Team {
  explicit Team(int n) : places(static_cast<size_t>(n - 1)), arena(std::max(1, n - 1), 0) {
    // Here, where it may throw: TBB waits forever for an arena whose creation failed in the first enqueue().
    if (n > 1) arena.initialize();
  }

  // Puts the loop into the place of an idle worker, and asks for a worker where there is none. A request may fail (no
  // memory for the message, or no thread): the caller of the loop can do all of it.
  bool post(size_t index, Loop& loop) {
    std::atomic<uintptr_t>& state = places[index].state;
    uintptr_t seen = state.load(std::memory_order_relaxed);
    while (seen == Place::kEmpty || seen == Place::kFree)
      if (state.compare_exchange_weak(seen, reinterpret_cast<uintptr_t>(&loop), std::memory_order_acq_rel)) {
        if (seen == Place::kFree) return true;
        try {
          arena.enqueue([this, index] { serve(index); });
          return true;
        } catch (...) {
          // Waking a thread may have failed after the message was left: then a worker may have the loop.
          auto mine = reinterpret_cast<uintptr_t>(&loop);
          return !state.compare_exchange_strong(mine, Place::kEmpty, std::memory_order_acq_rel);
        }
      }
    return false;
  }

  bool take_back(size_t index, Loop& loop) {
    auto mine = reinterpret_cast<uintptr_t>(&loop);
    return places[index].state.compare_exchange_strong(mine, Place::kFree, std::memory_order_acq_rel);
  }

  // A worker runs every loop that comes to its place, until none has come for a while. It does not yield while it
  // waits: with a yield the scheduler put it last, and two threads ran at 1.4 times one instead of 1.9. The wait is
  // short.
  void serve(size_t index) noexcept {
    std::atomic<uintptr_t>& state = places[index].state;
    auto last = Clock::now();
    for (unsigned spins = 1;; ++spins) {
      uintptr_t seen = state.load(std::memory_order_acquire);
      // A worker without a place: its request seemed to fail and it came after all. See post().
      if (seen == Place::kEmpty || seen == Place::kBusy) return;
      if (seen != Place::kFree) {
        if (!state.compare_exchange_strong(seen, Place::kBusy, std::memory_order_acq_rel)) continue;
        Loop& loop = *reinterpret_cast<Loop*>(seen);
        loop.run(static_cast<int>(index) + 1);
        state.store(Place::kFree, std::memory_order_release);  // before the caller may start its next loop
        loop.left.fetch_add(1, std::memory_order_release);     // the last touch
        last = Clock::now();
        continue;
      }
      pause();
      if (spins % 64 != 0) continue;
      if (Clock::now() - last > kStay && state.compare_exchange_strong(seen, Place::kEmpty, std::memory_order_acq_rel))
        return;
    }
  }

  std::vector<Place> places;
  // Kernels have an arena of their own, so that a limit on them limits no other user of TBB in the process. Callers of
  // loops do not enter it.
  tbb::task_arena arena;
};

struct Teams {
  Teams() {
    const int asked = levin::detail::threads_by_environment();
    use(asked > 0 ? asked : tbb::info::default_concurrency());
  }

  void use(int n) {
    const std::lock_guard lock(mutex);
    // TBB starts no more workers than cores by default: a test may ask for more.
    more_workers.reset();
    if (n > tbb::info::default_concurrency())
      more_workers.emplace(tbb::global_control::max_allowed_parallelism, static_cast<size_t>(n));
    Team& team = all.try_emplace(n, n).first->second;
    current.store(&team, std::memory_order_release);
    threads.store(n, std::memory_order_relaxed);
  }

  std::mutex mutex;
  std::map<int, Team> all;  // a team once made stays: a loop or a worker may be in it
  std::optional<tbb::global_control> more_workers;
  std::atomic<Team*> current{nullptr};
  std::atomic<int> threads{1};
};

// Never destroyed: kernels may run in destructors of static objects.
Teams& teams() {
  static Teams& instance = *new Teams;
  return instance;
}

}  // namespace

void set_num_threads(int n) {
  if (n <= 0) n = tbb::info::default_concurrency();
  if (n != num_threads()) teams().use(n);
}

int num_threads() { return teams().threads.load(std::memory_order_relaxed); }

void lib::parallel_chunks(int64_t n, int64_t grain, ChunkBody body, void* context) {
  const int64_t chunks = n / grain + (n % grain != 0);
  Team& team = *teams().current.load(std::memory_order_acquire);
  const auto helpers = std::min<size_t>(static_cast<size_t>(chunks - 1), team.places.size());
  if (helpers == 0) {
    for (int64_t begin = 0; begin < n; begin += grain) body(context, begin, n - begin < grain ? n : begin + grain);
    return;
  }
  Loop loop(n, grain, chunks, static_cast<int>(helpers) + 1, body, context);
  int taken = 0;
  for (size_t i = 0; i < helpers; ++i) taken += team.post(i, loop);
  loop.run(0);
  for (size_t i = 0; i < helpers; ++i) taken -= team.take_back(i, loop);
  for (unsigned spins = 1; loop.left.load(std::memory_order_acquire) != taken; ++spins) {
    pause();
    if (spins > 256) std::this_thread::yield();
  }
  if (loop.error) std::rethrow_exception(loop.error);
}

}  // namespace levin::kernels
