// The parallel_for seam over oneTBB.
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include <tbb/blocked_range.h>
#include <tbb/global_control.h>
#include <tbb/info.h>
#include <tbb/parallel_for.h>
#include <tbb/partitioner.h>
#include <tbb/task_arena.h>

#include "kernels/cpu.h"

namespace levin::kernels {
namespace {

// Kernels have an arena of their own, so that a limit on them limits no other
// user of TBB in the process.
struct Team {
  explicit Team(int n) : threads(n), arena(n) {
    // TBB starts no more workers than cores unless it is told to: a test may
    // ask for more.
    if (n > tbb::info::default_concurrency())
      more_workers.emplace(tbb::global_control::max_allowed_parallelism, static_cast<size_t>(n));
  }
  int threads;
  std::optional<tbb::global_control> more_workers;
  tbb::task_arena arena;
};

struct Teams {
  std::mutex mutex;
  std::shared_ptr<Team> current = std::make_shared<Team>(tbb::info::default_concurrency());
  std::atomic<int> threads{current->threads};
};

// Never destroyed: kernels may run in destructors of static objects.
Teams& teams() {
  static Teams& instance = *new Teams;
  return instance;
}

std::shared_ptr<Team> current_team() {
  Teams& all = teams();
  const std::lock_guard lock(all.mutex);
  return all.current;
}

// One loop: its threads draw chunk numbers from a shared counter until none is
// left. A worker that wakes late finds nothing to do, and the caller never
// waits for one that did not start.
struct Loop {
  int64_t n, grain, chunks;
  lib::ChunkBody body;
  void* context;
  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};
  std::exception_ptr error;

  void draw() {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < chunks;) {
      try {
        const int64_t begin = i * grain;
        body(context, begin, n - begin < grain ? n : begin + grain);
      } catch (...) {
        if (!failed.exchange(true)) error = std::current_exception();
        next.store(chunks, std::memory_order_relaxed);
      }
    }
  }
};

}  // namespace

void set_num_threads(int n) {
  if (n <= 0) n = tbb::info::default_concurrency();
  Teams& all = teams();
  if (n == num_threads()) return;
  auto team = std::make_shared<Team>(n);
  const std::lock_guard lock(all.mutex);
  all.current = std::move(team);
  all.threads = n;
}

int num_threads() { return teams().threads.load(std::memory_order_relaxed); }

void lib::parallel_chunks(int64_t n, int64_t grain, ChunkBody body, void* context) {
  const int64_t chunks = n / grain + (n % grain != 0);
  if (chunks == 1 || num_threads() == 1) {
    for (int64_t begin = 0; begin < n; begin += grain) body(context, begin, n - begin < grain ? n : begin + grain);
    return;
  }
  Loop loop{.n = n, .grain = grain, .chunks = chunks, .body = body, .context = context, .error = nullptr};
  const std::shared_ptr<Team> team = current_team();
  const int64_t threads = chunks < team->threads ? chunks : team->threads;
  team->arena.execute([&] {
    tbb::parallel_for(
        tbb::blocked_range<int64_t>(0, threads, 1), [&](const tbb::blocked_range<int64_t>&) { loop.draw(); },
        tbb::simple_partitioner());
  });
  if (loop.error) std::rethrow_exception(loop.error);
}

}  // namespace levin::kernels
